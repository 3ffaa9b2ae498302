"""Half-space sums instead of reports: in low dimension an iteration costs less than the number of active pairs.

σ_b is linear where it is active. Neuron r adds the same linear function a_r(⟨w_r, x⟩ − b) to all rows of its
half-space, and its gradient needs only their sum Σ e_i x_i. A partition tree over the rows therefore reports neither
pairs nor rows: a subtree inside the half-space receives the linear function once, which is pushed down to its rows at
the end of the pass, and returns a sum that is computed once for all neurons. Only leaves on the boundary are processed
row by row. For rows on the unit sphere an iteration costs about n + m·n^(1−1/(d−1)), independent of the fraction of
active pairs: plain ReLU (b = 0) gains as well.

On a circle (d = 2) half-spaces are arcs, and no tree is needed: ``circle_sums.py``.

The paper's two algorithms cost at least Σ k_i, the number of active pairs. This method is not in the paper.
"""

from math import sqrt

import numpy as np

from fireset._util.parallel import parallel_map, ranges
from fireset._util.rounding import deciding_band, dot_slack, row_norms
from fireset.engines.base import EngineWork
from fireset.engines.circle_sums import CircleSums, count_ranges, on_a_circle
from fireset.engines.cost import (
    BYTES_PER_BOUNDARY_ENTRY,
    BYTES_PER_CIRCLE_NEURON,
    BYTES_PER_CIRCLE_ROW,
    BYTES_PER_SUMMED_NEURON,
    boundary_leaves,
)
from fireset.engines.fire_set_engine import FireSetEngine
from fireset.engines.step_rule import NeuronGradients, StepRule
from fireset.engines.tangent import TangentOperator
from fireset.fire_sets import fire_sets_by_neuron
from fireset.hsr.partition_tree import PartitionTreeIndex, new_tree_size, tree_bytes
from fireset.kernels.partition_tree import FAN, LEAF, N_FILLED
from fireset.kernels.partition_tree_sums import (
    Contributions,
    EntryArrays,
    backward,
    forward,
    gradients,
    leaf_predictions,
    leaf_sums,
    pairs_inside,
    push_down,
    sum_up,
    tangent,
    top_down_order,
)

_FIRST_ENTRIES_PER_NEURON = 64  # grows when it turns out to be too few
_ENTRIES_PER_LEAF = {3: 4.0, 4: 2.1, 5: 1.5}  # entries of a neuron per leaf on its boundary, by dimension
_ENTRIES_PER_LEAF_FROM_6 = 1.2


class HalfSpaceSumsEngine(FireSetEngine):
    """Exact gradient steps from sums over half-spaces: arcs if the rows lie on a circle, else a partition tree."""

    name = "sums"
    suits_trained_outputs = False
    compiled_dimensions = (1, 2)  # rows on a circle have kernels of their own
    scratch_bytes = 0.0  # no matrix products
    index_calls = ()  # it uses the tree of an index, not its queries
    summary = "for tables of few columns: adds up whole groups of rows at once"

    def index_kind(self, network, n_samples: int) -> str:  # noqa: ARG002
        return "partition-tree"

    def memory_bytes(self, network, n_samples: int) -> float:
        """Sums of every range of neurons for every row, and the nodes and leaves that boundaries cut."""
        m, d, outputs, item = network.width, network.n_features, network.n_outputs, network.dtype.itemsize
        if d == 2:
            summed = 56 * count_ranges(m, n_samples) + 40
            return n_samples * (BYTES_PER_CIRCLE_ROW + outputs * summed) + BYTES_PER_CIRCLE_NEURON * m
        entries = _ENTRIES_PER_LEAF.get(d, _ENTRIES_PER_LEAF_FROM_6) * boundary_leaves(n_samples, d, network.threshold)
        if d >= 5:  # boundaries far from the center cut fewer boxes than the formula predicts
            entries *= 1 - 0.25 * min(1.0, max(0.0, network.threshold))
        nodes, leaves = new_tree_size(n_samples)
        boxes = nodes * FAN
        shares, totals = boxes * outputs * (d + 1) * item, leaves * outputs * LEAF * item
        tree = tree_bytes(n_samples, d, item) + totals + boxes * outputs * d * item
        received = shares + n_samples * outputs * (8 + item)  # by subtrees and rows, and the rows that are summed
        sums = len(ranges(m)) * (shares + totals + 8 * boxes)
        return tree + received + sums + m * (BYTES_PER_BOUNDARY_ENTRY * entries + BYTES_PER_SUMMED_NEURON)

    def _prepare(self) -> None:
        self._sums = (CircleSums if on_a_circle(self.X) else TreeSums)(self.network, self.X, self.work)

    def forward(self) -> np.ndarray:
        return self._sums.forward()

    def gradient(self, residual: np.ndarray) -> NeuronGradients:
        return NeuronGradients(np.arange(self.network.width), self._sums.gradient_rows(residual))

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        self._sums.step(residual, rule)

    def weights_moved(self, neurons: np.ndarray, distances: np.ndarray) -> None:  # noqa: ARG002
        self._sums.weights_moved()

    def tangent_operator(self) -> TangentOperator:
        """Each product costs as much as an iteration; otherwise as ``Engine.tangent_operator``."""
        return self._sums.tangent_product

    def fire_sets(self):
        return self._sums.fire_sets()


class TreeSums:
    """Sums over half-spaces from a partition tree. Memory: the tree, and 12 bytes per entry of a neuron.

    The entries of a neuron are the subtrees inside its half-space and the leaves on its boundary.
    """

    def __init__(self, network, X: np.ndarray, work: EngineWork):
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
        network, tree = self._network, self._tree
        norms = row_norms(network.weights)
        self._diverged = not np.isfinite(norms).all()
        if self._diverged or not len(self._X):
            return np.full((len(self._X), network.n_outputs), np.nan)
        # The norm of a corner of a box around rows is at most √d times the largest norm.
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
        """Return what all rows have received, times ``scale``; (n, c)."""
        tree = self._tree
        shares = self._shares.sum(axis=0)
        push_down(tree.nodes, self._order, shares)
        received = np.empty((len(self._X), self._network.n_outputs))

        def finish(leaves: tuple[int, int]) -> None:
            leaf_predictions(tree.coordinates, tree.buckets, shares, self._totals, scale, received, *leaves)

        parallel_map(finish, ranges(len(tree.buckets)))
        return received

    def _sum_subtrees(self, rows: np.ndarray) -> None:
        """Write ``rows`` (n, c) to the leaves, and compute Σ rows_i x_i over every subtree."""
        tree = self._tree

        def sum_leaves(leaves: tuple[int, int]) -> None:
            leaf_sums(tree.coordinates, tree.buckets, rows, self._weights, self._sums, *leaves)

        parallel_map(sum_leaves, ranges(len(tree.buckets)))
        sum_up(tree.nodes, self._order, self._sums)

    def tangent_product(self, direction: np.ndarray) -> np.ndarray:
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
        """Return the nodes visited, rows tested and active pairs in boundary leaves, for the neurons of one range."""
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
        """Allocate memory for the entries of the rest of a range, extrapolated from the neurons before ``turn``."""
        lo, hi = self._ranges[span]
        each = end / (turn - lo) if turn > lo else _FIRST_ENTRIES_PER_NEURON
        capacity = int(1.2 * each * (hi - lo)) + len(self._tree.nodes) + len(self._tree.buckets)
        for arrays in (self._entries, self._masks):
            grown = np.empty(max(capacity, end + end // 4), arrays[span].dtype)
            grown[:end] = arrays[span][:end]
            arrays[span] = grown

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        self._ensure_forward()
        network, tree = self._network, self._tree
        velocity, arguments = rule.velocity_of(network.weights), rule.kernel_arguments(network.dtype)
        if self._diverged:
            network.weights[:] = np.nan
            return
        self._sum_subtrees((residual / network.divisor).astype(network.dtype))
        moving = network.weights, velocity, network.output_weights, self._neuron_order

        def step_span(span: int) -> None:
            entries = EntryArrays(self._entries[span], self._masks[span], self._ends)
            sums = self._sums, self._weights
            backward(tree.coordinates, *moving, entries, *sums, arguments, *self._ranges[span])

        parallel_map(step_span, range(len(self._ranges)))
        self.weights_moved()

    def gradient_rows(self, residual: np.ndarray) -> np.ndarray:
        """Return ∂L/∂w_r of all neurons, (m, d)."""
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
        """Run a forward pass unless the entries of the current weights are recorded."""
        if not self._forward_done:
            self.forward()

    def fire_sets(self):
        """Return the active pairs as a boolean CSR array of shape (n, m), by half-space queries to the tree."""
        network = self._network
        if not np.isfinite(network.weights).all():
            return network.fire_sets(self._X)
        indptr, samples = self._index.query_batch(network.weights, np.full(network.width, network.threshold))
        return fire_sets_by_neuron(indptr, samples, len(self._X))


def order_by_boundary(network) -> np.ndarray:
    """Return all neurons in an order that keeps neurons with similar boundaries together.

    They cut the same leaves, which are then still in the cache: a third of the time for a million rows. The order is
    that of the leaves of a tree over (w, b)/‖w‖. It is only a heuristic, so it is not updated when neurons move.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        norms = row_norms(network.weights)[:, None]
        boundaries = (np.hstack([network.weights, np.full_like(norms, network.threshold)]) / norms).astype(np.float32)
    if not np.isfinite(boundaries).all():
        return np.arange(network.width, dtype=np.int32)
    buckets = PartitionTreeIndex(boundaries).trimmed_arrays().buckets
    return buckets[:, :LEAF][np.arange(LEAF) < buckets[:, [N_FILLED]]]
