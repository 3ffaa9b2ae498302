"""Weight–data correlation trees, for comparison with the other engines.

After "Bypass Exponential Time Preprocessing: Fast Neural Network Training via Weight-Data Correlation Preprocessing"
(Alman, Liang, Song, Zhang, Zhuo; NeurIPS 2023, arXiv 2211.14227). All inner products ⟨w_r, x_i⟩ are computed once and
are the leaves of trees of maxima; the k active pairs of a tree are found from its root in O(k log). Both layouts:

- ``layout="data"``: a tree for each neuron, over the n rows. After a step the n leaves of every neuron that moved are
  computed again and its tree is rebuilt: O(n d) for each.
- ``layout="weights"``: a tree for each row, over the m neurons. After a step one leaf in every tree is computed again
  for every neuron that moved, with the path above it: O(n (d + log m)) for each.

The method stores n × m numbers by definition, and computes all n inner products of a neuron again however little it
moved: the certificate radius of the engine ``data`` saves this.

Deviations from the paper:

1. A node has eight children, a cache line in float64, instead of two: half the time, and 8/7 instead of 2 numbers
   stored for each pair.
2. Paths of several leaves of one tree are updated together, each node once: never more than the whole tree.
3. The gradient has the sign of u − y, and active means >, as everywhere in fireset.
4. Inner products near b in float64, and those whose sums may overflow, are computed by ``deciding_dot``
   (``fireset.kernels.firing``), so that leaf > b is exact. With BLAS alone the active pairs near b would depend on its
   version.
5. With momentum a neuron may move without being active. It is updated as well.
"""

from typing import NamedTuple

import numpy as np

from fireset._util.aligned import aligned_outputs, aligned_rows
from fireset._util.checks import is_number
from fireset._util.errors import InputError
from fireset._util.gaussian import upper_tail
from fireset._util.parallel import parallel_map, ranges
from fireset._util.rounding import deciding_band, row_norms
from fireset.engines.fire_set_engine import FireSetEngine
from fireset.engines.step_rule import StepRule
from fireset.fire_sets import fire_sets_by_neuron, list_offsets
from fireset.kernels.candidates import ListArrays, backward
from fireset.kernels.firing import refine_near_threshold
from fireset.kernels.max_trees import forward, level_starts, lists_by_leaf, nodes_above, set_leaves

_TILE_PAIRS = 1 << 17  # inner products computed at a time, so that they are still in the L2 cache when read again
_BYTES_PER_ACTIVE_PAIR = 18
_MIN_ROWS_PER_TILE = 16  # with fewer, a matrix product reads the other matrix too often for the work done on it


class CorrelationEngine(FireSetEngine):
    """Exact fire sets from trees over all inner products.

    Parameters
    ----------
    layout : "data" or "weights"
        A tree for each neuron over the rows, or for each row over the neurons.
    memory_limit : float
        Maximum bytes of the trees, about 8/7 · n · m numbers. ``start`` raises ``InputError`` for larger problems.
    """

    name = "correlation"
    scratch_bytes = 4e6  # products of few rows at a time
    summary = "keeps a number for every pair of row and neuron, in trees (Alman et al. 2023); for comparison"

    def __init__(self, layout: str = "data", memory_limit: float = 4 * 2**30):
        super().__init__()
        if layout not in ("data", "weights"):
            raise InputError(f"layout must be 'data' or 'weights', got {layout!r}")
        if not is_number(memory_limit) or memory_limit <= 0:
            raise InputError(f"memory_limit must be a number of bytes above 0, got {memory_limit!r}")
        self._layout = layout
        self._memory_limit = float(memory_limit)

    def memory_bytes(self, network, n_samples: int) -> float:
        """The trees, the active pairs, and the fire sets, which the choice of a step size needs."""
        active = n_samples * network.width * upper_tail(network.threshold)
        nodes = 1 + 1 / 6 + 64 / max(1, n_samples if self._layout == "data" else network.width)
        trees = nodes * n_samples * network.width * network.dtype.itemsize
        sums = 8.0 * n_samples * network.n_outputs * (len(ranges(network.width)) + 4)
        return trees + sums + _BYTES_PER_ACTIVE_PAIR * active

    def _prepare(self) -> None:
        network, X = self.network, self.X
        self._rows = aligned_rows(X)
        trees, leaves = (network.width, len(X)) if self._layout == "data" else (len(X), network.width)
        needed = trees * int(level_starts(leaves)[-1]) * network.dtype.itemsize
        if needed > self._memory_limit:
            raise InputError(
                f"engine 'correlation' keeps every inner product: about {_size(needed)} for {len(X):,} samples and "
                f"{network.width:,} neurons, more than memory_limit = {_size(self._memory_limit)}; use engine 'data'"
            )
        vars(self).pop("_forest", None)  # frees the forest of an earlier start: two of them might not fit
        self._forest = (_TreesOfNeurons if self._layout == "data" else _TreesOfSamples)(network, X)
        self._speeds = np.full(network.width, np.inf)  # unknown, so no neuron may be skipped
        self._lists = None
        self._recompute(np.arange(network.width))

    def forward(self) -> np.ndarray:
        sums, self._lists, visited = self._forest.forward()
        self.work.nodes_visited += visited
        self.work.active_pairs = int(self._lists.counts.sum(dtype=np.int64))
        return sums / self.network.divisor

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        network = self.network
        active = self._active_lists()
        nothing = np.empty(0, network.dtype)  # no references: the active pairs are known
        lists = ListArrays(
            active.starts,
            active.counts,
            active.samples[0],
            nothing,
            active.counts,
            nothing,
            active.starts,
            active.counts,
        )
        velocity, arguments = rule.velocity_of(network.weights), rule.kernel_arguments(network.dtype)
        residual = aligned_outputs((residual / network.divisor).astype(network.dtype))
        moved = np.empty(network.width, bool)
        near_misses = np.zeros(network.width, np.int32)  # ``backward`` counts them; a walk has none

        def step_span(task: tuple[tuple[int, int], np.ndarray]) -> None:
            span, samples = task
            before = network.weights[slice(*span)].copy()
            moving = network.weights, velocity, network.output_weights
            written = self._speeds, near_misses, np.arange(*span)
            backward(self._rows, *moving, residual, lists, samples, arguments, *written)
            moved[slice(*span)] = (network.weights[slice(*span)] != before).any(axis=1)

        parallel_map(step_span, zip(ranges(network.width), active.samples, strict=True))
        self._lists = None
        self._recompute(np.flatnonzero(moved))

    def weights_moved(self, neurons: np.ndarray, distances: np.ndarray) -> None:  # noqa: ARG002
        self._speeds[:] = np.inf  # the velocities are unknown
        self._lists = None
        self._recompute(neurons)

    def fire_sets(self):
        """Computed from the trees; otherwise as ``Engine.fire_sets``."""
        lists = self._active_lists()
        samples = np.concatenate(
            [
                part[lists.starts[lo] : lists.starts[hi - 1] + lists.counts[hi - 1]]
                for part, (lo, hi) in zip(lists.samples, ranges(self.network.width), strict=True)
            ]
        )
        return fire_sets_by_neuron(list_offsets(lists.counts), samples, len(self.X))

    def _active_lists(self) -> "_ActiveLists":
        """Return the active pairs at the current weights."""
        if self._lists is None:
            self.forward()
        assert self._lists is not None
        return self._lists

    def _recompute(self, neurons: np.ndarray) -> None:
        """Update all leaves of these neurons and the nodes above them."""
        if len(neurons):
            self._forest.recompute(neurons)
        self.work.refreshes += len(neurons)
        self.work.inner_products += len(neurons) * len(self.X)


class _ActiveLists(NamedTuple):
    """Active pairs: neuron r has ``counts[r]`` active rows, from ``starts[r]`` on in the array of its range, ascending.

    ``samples`` has an array for each of ``ranges(width)``. Within an array, lists follow one another without a gap.
    """

    samples: list[np.ndarray]
    starts: np.ndarray
    counts: np.ndarray


class _Forest:
    """Trees in the layout of ``fireset.kernels.max_trees``, over all inner products of a network and rows."""

    def __init__(self, network, X: np.ndarray, trees: int, leaves: int):
        self.network, self.X = network, X
        self.threshold = network.dtype.type(network.threshold)
        self.sample_norm = float(row_norms(X).max(initial=0.0))
        self.n_leaves = leaves
        self.levels = level_starts(leaves)
        self.trees = np.full((trees, self.levels[-1]), -np.inf, network.dtype)
        self.ranges = ranges(trees)
        self.lists = [np.empty(leaves, np.int32) for _ in self.ranges]  # reused in every pass
        self.starts, self.counts = np.zeros(trees, np.int64), np.zeros(trees, np.int32)

    def refine(self, H: np.ndarray, rows: np.ndarray, columns: np.ndarray, weight_norms: np.ndarray) -> None:
        """Replace values of ``H = rows @ columns.T`` near the threshold by those of ``deciding_dot``."""
        bands = deciding_band(self.network.n_features, self.network.dtype, weight_norms, self.sample_norm)
        if bands.max() < 0:  # float32 whose sums cannot overflow: the computed value decides
            return
        refine_near_threshold(H, rows, columns, np.full(len(H), self.threshold), bands)

    def walk(self, sums: list[np.ndarray], trees_are_neurons: bool) -> int:
        """Find the active leaves of every tree: write ``starts`` and ``counts`` of its list in the array of its range.

        Range k adds to ``sums[k]``. Return the number of nodes visited.
        """

        def walk_span(k: int) -> int:
            (tree, stop), used, visited = self.ranges[k], 0, 0
            while True:
                tree, used, more = forward(
                    self.trees,
                    self.levels,
                    self.network.output_weights,
                    self.threshold,
                    trees_are_neurons,
                    self.lists[k],
                    self.starts,
                    self.counts,
                    sums[k],
                    used,
                    tree,
                    stop,
                )
                visited += more
                if tree == stop:
                    return visited
                self.lists[k] = np.concatenate([self.lists[k], np.empty(used + self.n_leaves, np.int32)])

        return sum(parallel_map(walk_span, range(len(self.ranges))))


class _TreesOfNeurons(_Forest):
    """One tree for each neuron, over the rows."""

    def __init__(self, network, X: np.ndarray):
        super().__init__(network, X, trees=network.width, leaves=len(X))

    def recompute(self, neurons: np.ndarray) -> None:
        samples = np.arange(len(self.X))
        nodes, children = nodes_above(samples, self.levels)

        def recompute_span(span: tuple[int, int]) -> None:
            for tile in _tiles(span, len(self.X)):
                W = self.network.weights[neurons[tile]]
                with np.errstate(over="ignore", invalid="ignore"):  # what overflows is computed again
                    H = W @ self.X.T
                self.refine(H, W, self.X, row_norms(W))
                set_leaves(self.trees, neurons[tile], samples, H, nodes, children)

        parallel_map(recompute_span, ranges(len(neurons)), uses_blas=True)

    def forward(self) -> tuple[np.ndarray, _ActiveLists, int]:
        """Return Σ_r a_r σ_b(⟨w_r, x_i⟩) for every row, (n, c), the active pairs, and the nodes visited."""
        sums = [np.zeros((len(self.X), self.network.n_outputs)) for _ in self.ranges]
        visited = self.walk(sums, True)
        return np.sum(sums, axis=0), _ActiveLists(self.lists, self.starts, self.counts), visited


class _TreesOfSamples(_Forest):
    """One tree for each row, over the neurons."""

    def __init__(self, network, X: np.ndarray):
        super().__init__(network, X, trees=len(X), leaves=network.width)

    def recompute(self, neurons: np.ndarray) -> None:
        nodes, children = nodes_above(neurons, self.levels)
        W = self.network.weights[neurons]
        largest_norm = row_norms(W).max()

        def recompute_span(span: tuple[int, int]) -> None:
            for tile in _tiles(span, len(neurons)):
                X = self.X[tile]
                with np.errstate(over="ignore", invalid="ignore"):  # overflowing sums are computed again
                    H = X @ W.T
                # Rows of H are samples: one band for all neurons, wide enough for each of them.
                self.refine(H, X, W, np.full(len(X), largest_norm))
                set_leaves(self.trees, np.arange(tile.start, tile.stop), neurons, H, nodes, children)

        parallel_map(recompute_span, self.ranges, uses_blas=True)

    def forward(self) -> tuple[np.ndarray, _ActiveLists, int]:
        """As ``_TreesOfNeurons.forward``; transposes the lists by row to lists by neuron, which the gradient needs."""
        sums = np.zeros((len(self.X), self.network.n_outputs))
        visited = self.walk([sums] * len(self.ranges), False)  # ranges have no row in common
        by_span = np.stack([self._active_in_span(k) for k in range(len(self.ranges))])
        counts = by_span.sum(axis=0)
        ends = np.cumsum(counts)
        # After the entries of earlier neurons, and of the same neuron in earlier ranges.
        offsets = (ends - counts) + np.cumsum(by_span, axis=0) - by_span
        samples = np.empty(ends[-1], np.int32)

        def transpose_span(k: int) -> None:
            lists_by_leaf(self.lists[k], self.starts, self.counts, offsets[k], samples, *self.ranges[k])

        parallel_map(transpose_span, range(len(self.ranges)))
        active = _ActiveLists([samples] * len(ranges(self.network.width)), ends - counts, counts.astype(np.int32))
        return sums, active, visited

    def _active_in_span(self, k: int) -> np.ndarray:
        """Return the number of active rows of each neuron in range k."""
        last = self.ranges[k][1] - 1
        return np.bincount(self.lists[k][: self.starts[last] + self.counts[last]], minlength=self.n_leaves)


def _tiles(span: tuple[int, int], row_length: int):
    """Divide lo … hi−1 into slices whose inner products fit into the cache."""
    rows = max(_MIN_ROWS_PER_TILE, _TILE_PAIRS // row_length)
    for lo in range(span[0], span[1], rows):
        yield slice(lo, min(lo + rows, span[1]))


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.3g} MB"
