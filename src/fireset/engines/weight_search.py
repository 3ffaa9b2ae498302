"""Algorithm 1 of the paper (preprocess the weights), run with a certificate radius.

The listing, line by line::

    hsr.Init({w_r(0)})                                      _first_lists
    for t = 1 … T:
        S_i ← hsr.Query(x_i, b)            for i ∈ [n]      _search, before each forward pass
        forward pass only on S_i                            ListEngine.forward
        gradient only on S_i, update of ∪ S_i               ListEngine.step
        hsr.Delete(w_r(t)), hsr.Add(w_r(t+1))               _renew_lists, by ``index.move``

With ``radius=0`` this is done to the letter. With a radius R the index may hold a neuron where it was some steps ago,
as long as it has not moved further than R since; queries ask for b − R, so that no neuron that fires is missed, and the
few that do not fire are found out by the forward pass.

Deviations from the listing:

1. Both passes run neuron by neuron over the transpose of the S_i, so that a neuron's weights are read and written once.
2. The gradient has the sign of u − y; the listing's M = X diag(y − u) climbs.
3. Neurons are moved when they moved (with momentum, some that do not fire do).
4. The distance to where the index has a neuron is bounded by the path length Σ‖Δw_r‖.
"""

from math import sqrt

import numpy as np

from fireset._util.gaussian import density, threshold_for, upper_tail
from fireset._util.rounding import deciding_band, dot_slack, row_norms
from fireset.engines.candidate_lists import pass_bytes
from fireset.engines.list_engine import ListEngine, check_radius
from fireset.hsr import build, check_kind, choose

_MOVE = 200.0  # cost of moving a neuron in the index, in candidates looked at; measured: 2 µs beside 10 ns
_ITERATIONS = 50  # of a run, to choose an index by
_LISTS_GROW = 1.25  # at most so many times as long, on average, as without a radius
_TREE_BUFFERS = 128e6  # that a partition tree keeps for its answers, at most
_KEPT_BLOCKS = 8e6  # of what was reported, that the allocator keeps
_MEMORY = 0.9  # of the mean speed, from one step to the next


class WeightSearchEngine(ListEngine):
    """Algorithm 1 with a certificate radius. Memory: the index, and 8 bytes for each candidate.

    Parameters
    ----------
    radius : "auto" or float
        R of all neurons. "auto" balances moves in the index against near misses by the mean speed v of a neuron: an
        iteration pays m·v/R moves and n·m·φ(b)·R near misses, φ the normal density, so that R = √(c v / (n φ(b))),
        where c is the cost of a move beside that of a near miss.
    index : str
        Kind of the half-space index over the weights, one that can be changed; see ``fireset.hsr.build``.
    """

    name = "weights"
    summary = "searches the neurons for each row, in an index that follows them as they move (Algorithm 1)"

    def __init__(self, radius: float | str = "auto", index: str = "auto"):
        super().__init__()
        self._wanted_radius = check_radius(radius)
        self._kind = check_kind(index, dynamic=True)

    def index_kind(self, network, n_samples: int) -> str:
        if self._kind != "auto":
            return self._kind
        output = network.width * upper_tail(network.threshold)
        return choose(network.width, network.n_features, output=output, queries=_ITERATIONS * n_samples)

    def memory_bytes(self, network, n_samples: int) -> float:
        """The index, and the lists: as they are reported, block by block and together, and turned by neuron."""
        pairs = float(n_samples * network.width)
        listed, active = (
            pairs * upper_tail(network.threshold - radius) for radius in (self._largest_radius(network), 0.0)
        )
        index, buffers = 2.2, 0.0
        if self.index_kind(network, n_samples) != "scan":
            index, buffers = 6.0, min(_TREE_BUFFERS, 12 * listed)
        lists = 13 * listed + 4 * active + pass_bytes(network, n_samples, sparse=False)
        return index * network.weights.nbytes + 2 * network.output_weights.nbytes + lists + buffers + _KEPT_BLOCKS

    def _largest_radius(self, network) -> float:
        """With "auto", one whose lists are longer by a quarter, on average: moves saved beyond cost too much."""
        if self._wanted_radius != "auto":
            return float(self._wanted_radius)
        return max(0.0, network.threshold - threshold_for(_LISTS_GROW * upper_tail(network.threshold)))

    def _first_lists(self) -> None:
        self._index = build(self.network.weights, self.index_kind(self.network, len(self.X)))
        self._radius = 0.0 if self._wanted_radius == "auto" else float(self._wanted_radius)
        self._mean_speed = -1.0
        self._weight_norms = np.zeros(self.network.width)
        self._search()

    def _renew_lists(self) -> None:
        if self._wanted_radius == "auto":
            self._radius = self._balanced_radius()
        due = np.flatnonzero(self._drifts > self._radius)
        self._index.move(due, self.network.weights[due])
        self._drifts[due] = 0.0
        self.work.refreshes += len(due)
        self._search()

    def _balanced_radius(self) -> float:
        mean = float(self._speeds.mean()) * self._sample_norm
        self._mean_speed = mean if self._mean_speed < 0 else _MEMORY * self._mean_speed + (1 - _MEMORY) * mean
        near = max(density(self.network.threshold), 1e-6)
        best = sqrt(_MOVE * self._mean_speed / (max(1, len(self.X)) * near))
        return min(best, self._largest_radius(self.network))

    def _search(self) -> None:
        """S_i for all i, and from them the lists of the neurons."""
        network, X = self.network, self.X
        norms = row_norms(network.weights[self._moved])  # all at the start; others have the norms that they had
        self._weight_norms[self._moved] = norms
        self._bands[self._moved] = deciding_band(network.n_features, network.dtype, norms, self._sample_norm)
        largest = self._weight_norms.max() + self._radius / max(self._sample_norm, 1e-300)
        slack = dot_slack(network.n_features, network.dtype, largest, self._sample_norm)
        # Without a radius the index has the last word: it holds the weights as they are, and decides as we do.
        widened = self._radius + 2 * slack if self._radius > 0 else 0.0
        self._look_at_none()  # frees the lists as they were
        with self._counting(self._index):
            thresholds = np.full(len(X), network.threshold - widened)
            indptr, neurons = self._index.query_batch(X, thresholds, ordered=False)
        self._radii[:] = self._radius
        self._look_at_all(indptr, neurons)
