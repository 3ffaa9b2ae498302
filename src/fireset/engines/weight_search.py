"""Algorithm 1 of the paper (preprocess the weights), with a certificate radius.

The listing, line by line::

    hsr.Init({w_r(0)})                                      _first_lists
    for t = 1 … T:
        S_i ← hsr.Query(x_i, b)            for i ∈ [n]      _search, before each forward pass
        forward pass only on S_i                            ListEngine.forward
        gradient only on S_i, update of ∪ S_i               ListEngine.step
        hsr.Delete(w_r(t)), hsr.Add(w_r(t+1))               _update_lists, by ``index.move``

``radius=0`` runs the listing as written. With a radius R the index may contain a neuron at an earlier position, as long
as it has moved by at most R since. Queries use the threshold b − R, so that no active neuron is missed, and the forward
pass discards the neurons that are not active.

Deviations from the listing:

1. Both passes run neuron by neuron over the transpose of the S_i, so that a neuron's weights are read and written once.
2. The gradient has the sign of u − y; the listing's M = X diag(y − u) ascends.
3. Every neuron that moved is updated in the index. With momentum that includes neurons that are not active.
4. The distance to a neuron's position in the index is bounded by the path length Σ‖Δw_r‖.
"""

from math import sqrt

import numpy as np

from fireset._util.gaussian import density, threshold_for, upper_tail
from fireset._util.rounding import deciding_band, dot_slack, row_norms
from fireset.engines.cost import MAX_TREE_BUFFER_BYTES, NS_PER_INDEX_MOVE, NS_PER_NEAR_MISS, RETAINED_REPORT_BYTES
from fireset.engines.list_engine import ListEngine, check_radius
from fireset.engines.list_passes import pass_bytes, union_ascending
from fireset.hsr import build, check_kind, choose

_EXPECTED_ITERATIONS = 50  # of a run, to choose an index
_MAX_LIST_GROWTH = 1.25  # of the average length, relative to lists without a radius
_SPEED_SMOOTHING = 0.9  # weight of the previous steps in the moving average of the speed


class WeightSearchEngine(ListEngine):
    """Algorithm 1 with a certificate radius. Memory: the index, and 8 bytes per candidate.

    Parameters
    ----------
    radius : "auto" or float
        R of all neurons. "auto" balances moves in the index against near misses by the average speed v of a neuron: an
        iteration takes m·v/R moves and n·m·φ(b)·R near misses, φ the normal density, so that R = √(c v / (n φ(b))),
        where c is the cost of a move divided by that of a near miss.
    index : str
        Kind of the half-space index over the weights, a dynamic one; see ``fireset.hsr.build``.
    """

    name = "weights"
    index_calls = ("report", "move")
    summary = "searches the neurons for each row, in an index that follows them as they move (Algorithm 1)"

    def __init__(self, radius: float | str = "auto", index: str = "auto"):
        super().__init__()
        self._given_radius = check_radius(radius)
        self._kind = check_kind(index, dynamic=True)

    def index_kind(self, network, n_samples: int) -> str:
        if self._kind != "auto":
            return self._kind
        output = network.width * upper_tail(network.threshold)
        return choose(network.width, network.n_features, output=output, queries=_EXPECTED_ITERATIONS * n_samples)

    def memory_bytes(self, network, n_samples: int) -> float:
        """The index, and the candidates: reported by chunk and in total, and transposed to lists by neuron.

        Before, neurons that moved are copied twice for the index, beside the lists of the last search and the parts of
        its report, which the allocator retains.
        """
        pairs = float(n_samples * network.width)
        candidates, active = (
            pairs * upper_tail(network.threshold - radius) for radius in (self._max_radius(network), 0.0)
        )
        size = network.weights.nbytes
        index, searched = 1.2 * size, max(13 * candidates, 2.0 * size + 8 * candidates)
        if self.index_kind(network, n_samples) != "scan":
            index, searched = 6.0 * size, 13 * candidates + min(MAX_TREE_BUFFER_BYTES, 12 * candidates)
        lists = searched + 4 * active + pass_bytes(network, n_samples, sparse=False)
        return index + 2 * network.output_weights.nbytes + lists + RETAINED_REPORT_BYTES

    def _max_radius(self, network) -> float:
        """Return the given radius, or for "auto" the one whose lists are longer by a quarter on average."""
        if self._given_radius != "auto":
            return float(self._given_radius)
        return max(0.0, network.threshold - threshold_for(_MAX_LIST_GROWTH * upper_tail(network.threshold)))

    def _first_lists(self) -> None:
        self._index = build(self.network.weights, self.index_kind(self.network, len(self.X)))
        self.work.points_indexed += self.network.width
        self._radius = 0.0 if self._given_radius == "auto" else float(self._given_radius)
        self._mean_speed = -1.0
        self._max_norm = 0.0  # upper bound on ‖w_r‖ of all neurons
        self._displaced = np.empty(0, np.int64)  # neurons that moved since their position in the index, ascending
        self._search()

    def _update_lists(self) -> None:
        if self._given_radius == "auto":
            self._radius = self._balanced_radius()
        self._displaced = union_ascending(self._displaced, self._moved)
        is_due = self._drifts[self._displaced] > self._radius
        due, self._displaced = self._displaced[is_due], self._displaced[~is_due]
        self._index.move(due, self.network.weights[due])
        self._drifts[due] = 0.0
        self.work.refreshes += len(due)
        self._search()

    def _balanced_radius(self) -> float:
        mean = float(self._speeds[self._moved].sum()) / self.network.width * self._sample_norm
        kept = _SPEED_SMOOTHING
        self._mean_speed = mean if self._mean_speed < 0 else kept * self._mean_speed + (1 - kept) * mean
        near = max(density(self.network.threshold), 1e-6)
        best = sqrt(NS_PER_INDEX_MOVE / NS_PER_NEAR_MISS * self._mean_speed / (max(1, len(self.X)) * near))
        return min(best, self._max_radius(self.network))

    def _search(self) -> None:
        """Query S_i for all rows, and make the lists of the neurons from them."""
        network, X = self.network, self.X
        norms = row_norms(network.weights[self._moved])  # at the start, of all neurons; the others are unchanged
        self._max_norm = max(self._max_norm, float(norms.max(initial=0.0)))
        self._bands[self._moved] = deciding_band(network.n_features, network.dtype, norms, self._sample_norm)
        max_norm = self._max_norm + self._radius / max(self._sample_norm, 1e-300)
        slack = dot_slack(network.n_features, network.dtype, max_norm, self._sample_norm)
        # Without a radius the index contains the current weights and decides pairs as the forward pass does.
        margin = self._radius + 2 * slack if self._radius > 0 else 0.0
        self._passes.clear_complete_lists()  # frees the previous lists
        thresholds = np.full(len(X), network.threshold - margin)
        found = self._search_index(self._index, X, thresholds, with_values=False)
        listed = self._passes.use_complete_lists(found.indptr, found.ids)
        # A neuron that left all lists stays live for one more step, which sets its speed to 0.
        self._passes.live = union_ascending(listed, self._moved[self._speeds[self._moved] != 0.0])
        self._radii[self._passes.live] = self._radius
