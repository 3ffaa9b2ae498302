"""Half-space sums instead of reports: in low dimension a step costs less than the pairs that fire.

σ_b is linear where it fires. To all samples of a half-space that neuron r fires for, it adds the same linear function
a_r(⟨w_r, x⟩ − b), and of them its gradient needs the sum Σ e_i x_i only. So a partition tree over the samples is asked
for neither pairs nor points: a subtree wholly inside the half-space receives the linear function once, pushed down to
its samples at the end of the pass, and gives back a sum made once for all neurons; only leaves on the boundary are
looked at sample by sample. For samples on the sphere an iteration costs about n + m·n^(1−1/(d−1)), whatever share of
them fires: plain ReLU (b = 0) gains, too.

Samples on a circle (d = 2) have arcs for half-spaces, and need no tree: ``circle_sums.py``.

The paper's two algorithms cannot go below Σ k_i, the number of fired pairs. This is not in the paper.
"""

from math import sqrt

import numpy as np

from fireset._util.parallel import parallel_map, ranges
from fireset._util.rounding import deciding_band, dot_slack, row_norms
from fireset.engines.base import Engine, EngineWork
from fireset.engines.circle_sums import CircleSums, count_ranges, on_a_circle
from fireset.engines.cost import boundary_leaves
from fireset.engines.step_rule import RowGradients, StepRule
from fireset.engines.tangent import TangentOperator
from fireset.fire_sets import fire_sets_by_neuron
from fireset.hsr.partition_tree import PartitionTreeIndex

_FIRST_ENTRIES = 64  # for each neuron; there will be more when they turn out not to be enough
_ENTRY_BYTES = 12
_ENTRIES, _FEWER_ENTRIES = {3: 4.0, 4: 2.1, 5: 1.5}, 1.2  # of a neuron for each leaf on its boundary, by dimension
_NEURON_BYTES = 200
_CIRCLE_SAMPLE_BYTES, _CIRCLE_NEURON_BYTES = 96, 160


class HalfSpaceSumsEngine(Engine):
    """Exact gradient steps from sums over half-spaces, by arcs where the samples lie on a circle, else by a tree."""

    name = "sums"
    compiled_dimensions = (1, 2)  # samples on a circle have kernels of their own
    summary = "for tables of few columns: adds up whole groups of rows at once"

    def index_kind(self, network, n_samples: int) -> str:  # noqa: ARG002 - always the same
        return "partition-tree"

    def memory_bytes(self, network, n_samples: int) -> float:
        """Sums of every range of neurons for every sample, and what a neuron's boundary cuts."""
        m, d, outputs, item = network.width, network.n_features, network.n_outputs, network.dtype.itemsize
        if d == 2:
            summed = 56 * count_ranges(m, n_samples) + 40
            return n_samples * (_CIRCLE_SAMPLE_BYTES + outputs * summed) + _CIRCLE_NEURON_BYTES * m
        summed = outputs * item * len(ranges(m)) * (1.6 + 0.07 * d)
        cut = _ENTRIES.get(d, _FEWER_ENTRIES) * boundary_leaves(n_samples, d, network.threshold)
        if d >= 5:  # where neurons that are far out cut fewer boxes than the formula has
            cut *= 1 - 0.25 * min(1.0, max(0.0, network.threshold))
        return n_samples * (summed + 3 * d * item + 24 * outputs + 64) + m * (_ENTRY_BYTES * cut + _NEURON_BYTES)

    def _prepare(self) -> None:
        self._sums = (CircleSums if on_a_circle(self.X) else TreeSums)(self.network, self.X, self.work)

    def forward(self) -> np.ndarray:
        return self._sums.forward()

    def gradient(self, residual: np.ndarray) -> RowGradients:
        return RowGradients(np.arange(self.network.width), self._sums.gradient_rows(residual))

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        self._sums.step(residual, rule)

    def weights_moved(self, neurons: np.ndarray, distances: np.ndarray) -> None:  # noqa: ARG002
        self._sums.weights_moved()

    def tangent_operator(self) -> TangentOperator:
        """At the price of an iteration for each product, without listing who fires."""
        return self._sums.tangent_product

    def fire_sets(self):
        return self._sums.fire_sets()


class TreeSums:
    """Sums over half-spaces from a partition tree. Memory: the tree, and 12 bytes for each entry of a neuron."""

    def __init__(self, network, X: np.ndarray, work: EngineWork):
        from fireset.kernels.partition_tree import FAN, LEAF
        from fireset.kernels.partition_tree_sums import top_down_order

        self._network, self._X, self.work = network, X, work
        self._index = PartitionTreeIndex(X)
        self._tree = tree = self._index.trimmed_arrays()
        self._sample_norm = float(row_norms(X).max(initial=0.0)) * (1 + 1e-12)
        nodes, leaves = len(tree.nodes), len(tree.buckets)
        order = np.empty(nodes, np.int32)
        self._order = order[: top_down_order(tree.nodes, order)]
        outputs, d = network.n_outputs, network.n_features
        self._neuron_order = order_by_boundary(network)
        self._ranges = ranges(network.width)
        self._entries: list[np.ndarray] = [np.empty(0, np.int32)] * len(self._ranges)
        self._masks: list[np.ndarray] = [np.empty(0, np.int64)] * len(self._ranges)
        self._ends = np.zeros(network.width, np.int64)
        self._shares = np.zeros((len(self._ranges), nodes * FAN, outputs, d + 1), network.dtype)
        self._totals = np.zeros((len(self._ranges), leaves, outputs, LEAF), network.dtype)
        self._visits = np.zeros((len(self._ranges), nodes * FAN), np.int64)
        self._weights = np.zeros((leaves, outputs, LEAF), network.dtype)
        self._sums = np.zeros((nodes * FAN, outputs, d), network.dtype)
        self._forward_done = False
        self._diverged = False

    def forward(self) -> np.ndarray:
        from fireset.kernels.partition_tree_sums import pairs_inside

        network, tree = self._network, self._tree
        norms = row_norms(network.weights)
        self._diverged = not np.isfinite(norms).all()
        if self._diverged or not len(self._X):
            return np.full((len(self._X), network.n_outputs), np.nan)
        # Corners of boxes around samples are bounded by √d times the largest norm.
        corner = sqrt(network.n_features) * self._sample_norm
        slacks = dot_slack(network.n_features, network.dtype, norms, corner)
        bands = deciding_band(network.n_features, network.dtype, norms, self._sample_norm)
        counted = parallel_map(lambda span: self._forward_span(span, slacks, bands), range(len(self._ranges)))
        nodes, tested, active = (int(sum(column)) for column in zip(*counted, strict=True))
        self.work.nodes_visited += nodes
        self.work.inner_products += tested
        self.work.active_pairs = active + pairs_inside(tree.nodes, tree.buckets, self._order, self._visits.sum(axis=0))
        self._forward_done = True
        return self._collect_predictions(1.0 / network.divisor)

    def _collect_predictions(self, scale: float) -> np.ndarray:
        """What all samples have received, times ``scale``; (n, c)."""
        from fireset.kernels.partition_tree_sums import leaf_predictions, push_down

        tree = self._tree
        shares = self._shares.sum(axis=0)
        push_down(tree.nodes, self._order, shares)
        received = np.empty((len(self._X), self._network.n_outputs))

        def finish(leaves: tuple[int, int]) -> None:
            leaf_predictions(tree.coordinates, tree.buckets, shares, self._totals, scale, received, *leaves)

        parallel_map(finish, ranges(len(tree.buckets)))
        return received

    def _sum_subtrees(self, rows: np.ndarray) -> None:
        """Lay rows (n, c) out by leaf, and sum row · x over all subtrees."""
        from fireset.kernels.partition_tree_sums import leaf_sums, sum_up

        tree = self._tree

        def sum_leaves(leaves: tuple[int, int]) -> None:
            leaf_sums(tree.coordinates, tree.buckets, rows, self._weights, self._sums, *leaves)

        parallel_map(sum_leaves, ranges(len(tree.buckets)))
        sum_up(tree.nodes, self._order, self._sums)

    def tangent_product(self, direction: np.ndarray) -> np.ndarray:
        from fireset.kernels.partition_tree_sums import Contributions, EntryArrays, tangent

        self._ensure_forward()
        self._sum_subtrees(direction.astype(self._network.dtype))

        def span_product(span: int) -> None:
            for zeroed in (self._shares, self._totals):
                zeroed[span] = 0
            tangent(
                self._tree.coordinates,
                self._network.output_weights,
                self._neuron_order,
                EntryArrays(self._entries[span], self._masks[span], self._ends),
                self._sums,
                self._weights,
                Contributions(self._shares[span], self._totals[span], self._visits[span]),
                *self._ranges[span],
            )

        parallel_map(span_product, range(len(self._ranges)))
        return self._collect_predictions(1.0 / self._network.squared_divisor)

    def _forward_span(self, span: int, slacks: np.ndarray, bands: np.ndarray) -> np.ndarray:
        """Nodes visited, points tested and pairs fired in leaves that are cut, by the neurons of one range."""
        from fireset.kernels.partition_tree_sums import Contributions, EntryArrays, forward

        network, tree = self._network, self._tree
        self._shares[span] = 0
        self._totals[span] = 0
        self._visits[span] = 0
        counted = np.zeros(3, np.int64)
        threshold = network.dtype.type(network.threshold)
        turn, hi = self._ranges[span]
        end = 0
        while turn < hi:
            if end + len(tree.nodes) + len(tree.buckets) > len(self._entries[span]):
                self._grow_entries(span, turn, end)
            turn, end = forward(
                tree,
                network.weights,
                network.output_weights,
                threshold,
                slacks,
                bands,
                self._neuron_order,
                EntryArrays(self._entries[span], self._masks[span], self._ends),
                Contributions(self._shares[span], self._totals[span], self._visits[span]),
                counted,
                turn,
                hi,
                end,
            )
        return counted

    def _grow_entries(self, span: int, turn: int, end: int) -> None:
        """Make space for the entries of the rest of a range, guessed from those before this turn."""
        lo, hi = self._ranges[span]
        each = end / (turn - lo) if turn > lo else _FIRST_ENTRIES
        capacity = int(1.2 * each * (hi - lo)) + len(self._tree.nodes) + len(self._tree.buckets)
        for arrays in (self._entries, self._masks):
            grown = np.empty(max(capacity, end + end // 4), arrays[span].dtype)
            grown[:end] = arrays[span][:end]
            arrays[span] = grown

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        from fireset.kernels.partition_tree_sums import EntryArrays, backward

        self._ensure_forward()
        network, tree = self._network, self._tree
        velocity, arguments = rule.velocity_of(network.weights), rule.arguments(network.dtype)
        if self._diverged:
            network.weights[:] = np.nan
            return
        self._sum_subtrees((residual / network.divisor).astype(network.dtype))
        moving = network.weights, velocity, network.output_weights, self._neuron_order

        def step_span(span: int) -> None:
            entries = EntryArrays(self._entries[span], self._masks[span], self._ends)
            about = self._sums, self._weights, arguments
            backward(tree.coordinates, *moving, entries, *about, *self._ranges[span])

        parallel_map(step_span, range(len(self._ranges)))
        self.weights_moved()

    def gradient_rows(self, residual: np.ndarray) -> np.ndarray:
        """∂L/∂w_r of all neurons, (m, d)."""
        from fireset.kernels.partition_tree_sums import EntryArrays, gradients

        self._ensure_forward()
        network, tree = self._network, self._tree
        if self._diverged:
            return np.full_like(network.weights, np.nan)
        self._sum_subtrees((residual / network.divisor).astype(network.dtype))
        rows = np.empty_like(network.weights)

        def span_gradients(span: int) -> None:
            entries = EntryArrays(self._entries[span], self._masks[span], self._ends)
            sums = self._sums, self._weights
            gradients(
                tree.coordinates, network.output_weights, self._neuron_order, entries, *sums, rows, *self._ranges[span]
            )

        parallel_map(span_gradients, range(len(self._ranges)))
        return rows

    def weights_moved(self) -> None:
        self._forward_done = False

    def _ensure_forward(self) -> None:
        """Have the entries of the current weights."""
        if not self._forward_done:
            self.forward()

    def fire_sets(self):
        """n × m, by asking the tree for the samples themselves."""
        network = self._network
        if not np.isfinite(network.weights).all():
            return network.fire_sets(self._X)
        indptr, samples = self._index.query_batch(network.weights, np.full(network.width, network.threshold))
        return fire_sets_by_neuron(indptr, samples, len(self._X))


def order_by_boundary(network) -> np.ndarray:
    """All neurons in an order in which those with boundaries near each other come one after the other.

    They cut the same leaves, which are then still in the cache: a third of the time for a million samples. The order
    is that of the leaves of a tree over (w, b)/‖w‖. Neurons move, and the order only gets less good.
    """
    from fireset.kernels.partition_tree import LEAF, N_FILLED

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        norms = row_norms(network.weights)[:, None]
        boundaries = (np.hstack([network.weights, np.full_like(norms, network.threshold)]) / norms).astype(np.float32)
    if not np.isfinite(boundaries).all():
        return np.arange(network.width, dtype=np.int32)
    buckets = PartitionTreeIndex(boundaries).trimmed_arrays().buckets
    return buckets[:, :LEAF][np.arange(LEAF) < buckets[:, [N_FILLED]]]
