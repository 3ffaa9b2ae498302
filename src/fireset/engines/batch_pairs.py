"""The active pairs of a batch of rows: how they are found, and sums and gradients over them.

``row_lists.py`` keeps candidate lists by row; ``kernels/row_lists.py`` has the passes.
"""

from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fireset._util.aligned import aligned_empty, aligned_rows, aligned_zeros, is_aligned
from fireset._util.parallel import parallel_map
from fireset._util.rounding import dot_slack, row_norms
from fireset.engines.step_rule import StepRule
from fireset.fire_sets import fire_sets_of_pairs
from fireset.hsr import HalfSpaceIndex
from fireset.hsr.scan import ScanIndex
from fireset.kernels.row_lists import (
    LEVELS,
    ActiveLists,
    Batch,
    Lists,
    Neurons,
    add_output_gradients,
    add_products,
    add_row_gradients,
    add_sums,
    add_weight_gradients,
    cut_rows,
    forward_rows,
    step_blocks,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_CACHED_WEIGHT_BYTES = 1 << 20  # weights of a cache block, which stay in a core's cache for all rows of a batch
_TASKS_PER_PASS = 4  # a constant, so that sums do not depend on the number of cores

_SAFE_SQUARES = 1e-20, 1e30  # sums of squares between these neither overflow nor underflow, even in float32

NO_NEURONS = np.empty(0, np.uint8)  # mask for ``evaluate_candidates``: no neuron is beyond its lists


def kernel_neurons(weights: np.ndarray, output_weights: np.ndarray, threshold: float) -> Neurons:
    """Return a network in the form that the kernels take: a view if rows are whole cache lines, else a copy."""
    aligned = weights if is_aligned(weights) else aligned_rows(weights)
    per_block = int(np.clip(_CACHED_WEIGHT_BYTES // max(1, aligned.shape[1] * aligned.itemsize), 64, 1 << 15))
    blocks = -(-len(weights) // (_TASKS_PER_PASS * per_block)) * _TASKS_PER_PASS  # equally many for each task
    return Neurons(aligned, output_weights, weights.dtype.type(threshold), max(1, -(-len(weights) // blocks)))


class BatchPairs(NamedTuple):
    """The active pairs of a batch at the weights of one forward pass."""

    batch: Batch
    block: int  # neurons of a cache block
    parts: list[tuple[tuple[int, int], ActiveLists]]  # ranges of cache blocks, and the active pairs in them
    active_pairs: int
    tested_pairs: int

    def fire_sets(self, width: int) -> "csr_array":
        """Return the pairs as a boolean CSR array of shape (k, m), rows sorted."""
        neurons, samples = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
        for (lo, _), active in self.parts:
            for q, ends in enumerate(active.ends):
                neurons.append(np.int32((lo + q) * self.block) + active.ids[ends[0] : ends[-1]])
                samples.append(np.repeat(np.arange(len(ends) - 1, dtype=np.int32), np.diff(ends)))
        found = np.concatenate(samples), np.concatenate(neurons)
        del samples, neurons
        return fire_sets_of_pairs(*found, (len(self.batch.rows), width))

    def active_neurons(self, width: int) -> np.ndarray:
        """Return the neurons that are active for any row, ascending."""
        active_mask = np.zeros(width, bool)
        for (lo, _), active in self.parts:
            for q, ends in enumerate(active.ends):
                active_mask[(lo + q) * self.block + active.ids[ends[0] : ends[-1]].astype(np.int64)] = True
        return np.flatnonzero(active_mask)

    def count(self, neuron: int) -> int:
        """Return the number of rows that a neuron is active for."""
        q, offset = divmod(neuron, self.block)
        for (lo, hi), active in self.parts:
            if lo <= q < hi:
                return int(np.count_nonzero(active.ids[active.ends[q - lo, 0] : active.ends[q - lo, -1]] == offset))
        return 0

    def weight_gradients(self, output_weights: np.ndarray, residual: np.ndarray, width: int) -> np.ndarray:
        """Return Σ_{i active} (Σ_c a_rc residual_ic) x_i for all neurons, (m, d), aligned as the rows are."""
        columns, dtype = self.batch.samples.shape[1], self.batch.samples.dtype
        if not self.parts:
            return aligned_zeros(width, columns, dtype)
        gradients = aligned_empty(width, columns, dtype)

        def add(part: tuple[tuple[int, int], ActiveLists]) -> None:
            add_weight_gradients(self.batch, output_weights, residual, part[1], gradients, self.block, *part[0])

        parallel_map(add, self.parts)
        return gradients

    def output_gradients(self, residual: np.ndarray, width: int) -> np.ndarray:
        """Return Σ_{i active} (⟨w_r, x_i⟩ − b) residual_ic for all neurons, (m, c). Requires ``with_values``."""
        gradients = np.zeros((width, residual.shape[1]), residual.dtype)
        parallel_map(lambda part: add_output_gradients(residual, part[1], gradients, self.block, *part[0]), self.parts)
        return gradients

    def row_gradients(self, neurons: Neurons, residual: np.ndarray) -> np.ndarray:
        """Return Σ_{r active} (Σ_c a_rc residual_ic) w_r for all rows of the batch, (k, d), aligned as the weights."""

        def add(part: tuple[tuple[int, int], ActiveLists]) -> np.ndarray:
            gradients = aligned_zeros(len(residual), neurons.weights.shape[1], residual.dtype)
            add_row_gradients(neurons, residual, part[1], gradients, *part[0])
            return gradients

        zeros = np.zeros((len(residual), neurons.weights.shape[1]), residual.dtype)
        return sum(parallel_map(add, self.parts), zeros)

    def with_products(self, *factors: tuple[np.ndarray, np.ndarray]) -> "BatchPairs":
        """Replace the value of each active pair (i, r) by Σ ⟨v_r, z_i⟩ over the given pairs of matrices (v, z).

        Both have as many columns as the aligned weights: v (m, d) one row for each neuron, z one for each sample.
        """

        def replaced(part: tuple[tuple[int, int], ActiveLists]) -> tuple[tuple[int, int], ActiveLists]:
            span, active = part
            values = np.zeros(len(active.ids), factors[0][0].dtype)
            for vectors, samples in factors:
                add_products(vectors, self.batch._replace(samples=samples), active, self.block, values, *span)
            return span, active._replace(values=values)

        return self._replace(parts=parallel_map(replaced, self.parts))

    def sums(self, output_weights: np.ndarray) -> np.ndarray:
        """Return Σ_{r active} values_ri a_rc for all rows of the batch, (k, c), float64. Requires ``with_values``."""

        def summed(part: tuple[tuple[int, int], ActiveLists]) -> np.ndarray:
            sums = np.zeros((len(self.batch.rows), output_weights.shape[1]))
            add_sums(output_weights, part[1], self.block, part[1].values, sums, *part[0])
            return sums

        return sum(parallel_map(summed, self.parts), np.zeros((len(self.batch.rows), output_weights.shape[1])))

    def step(
        self,
        neurons: Neurons,
        velocity: np.ndarray,
        residual: np.ndarray,
        rule: StepRule,
        references: np.ndarray,
        drifts: np.ndarray,
    ) -> None:
        """Update ``W ← W − rule(∂L/∂W)`` in place, and ``drifts``, the distances from ``references`` (``RowLists``).

        ``velocity`` is aligned as the weights are, or has no rows.
        """
        arguments = rule.kernel_arguments(neurons.weights.dtype)

        def step_part(part: tuple[tuple[int, int], ActiveLists]) -> None:
            step_blocks(neurons, velocity, self.batch, residual, part[1], arguments, references, drifts, *part[0])

        parallel_map(step_part, self.parts)


def find_active_pairs(neurons: Neurons, X: np.ndarray, *, with_values: bool = False) -> tuple[np.ndarray, BatchPairs]:
    """Compute every pair of neurons and rows X (k, d). Return Σ_r a_rc σ_b(⟨w_r, x_i⟩), (k, c), and the active pairs.

    ``with_values`` keeps ⟨w_r, x_i⟩ − b of the active pairs. Cost O(k · m · d), in matrix products.
    """
    samples = aligned_rows(X)
    norm = weight_norm_bound(neurons.weights)
    slack = rounding_slack(norm, samples)
    if not np.isfinite(slack):
        if np.isfinite(norm) and samples.dtype == np.float32:
            return _find_in_float64(neurons, samples, with_values)
        no_pairs = BatchPairs(Batch(samples, np.arange(len(samples))), neurons.block, [], 0, 0)
        return np.full((len(X), neurons.outputs.shape[1]), np.nan), no_pairs
    lists = search_candidates(neurons, weight_index(neurons.weights, norm), samples, 2 * slack)
    batch = Batch(samples, np.arange(len(samples)))
    return evaluate_candidates(neurons, batch, lists, LEVELS - 1, NO_NEURONS, slack, with_values)


def _find_in_float64(neurons: Neurons, samples: np.ndarray, with_values: bool) -> tuple[np.ndarray, BatchPairs]:
    """Call ``find_active_pairs`` in float64, where inner products may overflow float32."""
    wide = Neurons(
        aligned_rows(neurons.weights.astype(np.float64)),
        neurons.outputs.astype(np.float64),
        np.float64(neurons.threshold),
        neurons.block,
    )
    sums, active = find_active_pairs(wide, samples.astype(np.float64), with_values=with_values)
    with np.errstate(over="ignore"):
        parts = [(span, part._replace(values=part.values.astype(np.float32))) for span, part in active.parts]
    return sums, active._replace(batch=active.batch._replace(samples=samples), parts=parts)


def weight_norm_bound(weights: np.ndarray) -> float:
    """Return an upper bound on the norms of all neurons; not finite if a weight is not.

    Usually the norm of the whole matrix, in one pass. Where its square may overflow or underflow, the largest norm.
    """
    flat = weights.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = float(np.dot(flat, flat))
    return sqrt(squares) if _SAFE_SQUARES[0] < squares < _SAFE_SQUARES[1] else float(row_norms(weights).max())


def rounding_slack(norm: float, samples: np.ndarray) -> float:
    """Return a bound on the rounding of inner products with neurons up to this norm; infinite if they may overflow.

    A loose bound on the norm costs only a few more candidates.
    """
    slack = dot_slack(samples.shape[1], samples.dtype, norm, row_norms(samples).max(initial=0.0))
    return float(slack) if np.isfinite(norm) else np.inf


def weight_index(weights: np.ndarray, norm: float) -> HalfSpaceIndex:
    """Return a scan index over the weights, without a copy: they must not change while it is used."""
    return ScanIndex(weights, copy=False, largest_norm=norm)


def count_cache_blocks(neurons: Neurons) -> int:
    """Return the number of cache blocks of a network."""
    return -(-len(neurons.weights) // neurons.block)


def search_candidates(neurons: Neurons, index: HalfSpaceIndex, samples: np.ndarray, margin: float) -> Lists:
    """Return the candidate lists of these samples: the neurons above b − ``margin``. Cost O(samples · m · d)."""
    cuts = np.zeros((len(samples), LEVELS * count_cache_blocks(neurons) + 1), np.int32)
    if len(samples) == 0:
        return Lists(np.empty(0, np.int16), np.empty(0, np.int64), cuts)
    threshold = float(neurons.threshold)
    found = index.report(samples, np.full(len(samples), threshold - margin))
    ids = np.empty(len(found.ids), np.int16)
    height = max(margin, 1e-300) / LEVELS
    parallel_map(
        lambda span: cut_rows(*found, threshold, height, neurons.block, ids, cuts, *span), task_ranges(len(samples))
    )
    return Lists(ids, found.indptr[:-1], cuts)


def task_ranges(count: int) -> list[tuple[int, int]]:
    """Divide 0 … count−1 into the ranges of the tasks of a pass."""
    parts = max(1, min(_TASKS_PER_PASS, count))
    return [(count * k // parts, count * (k + 1) // parts) for k in range(parts)]


def evaluate_candidates(
    neurons: Neurons,
    batch: Batch,
    lists: Lists,
    level: int,
    beyond_lists: np.ndarray,
    slack: float,
    with_values: bool,
) -> tuple[np.ndarray, BatchPairs]:
    """Test the candidates up to ``level``, and the neurons of the mask ``beyond_lists`` for all rows of the batch.

    Return Σ_r a_rc σ_b(⟨w_r, x_i⟩), (k, c), float64, and the active pairs.
    """
    dtype, rows, spans = neurons.weights.dtype, batch.rows, task_ranges(count_cache_blocks(neurons))
    band = dtype.type(slack if dtype == np.float64 else -1.0)
    edges = LEVELS * np.array([span[0] for span in spans] + [spans[-1][1]])
    candidates = np.diff(lists.cuts[rows[:, None], edges].sum(axis=0, dtype=np.int64))

    def run(k: int) -> tuple[np.ndarray, ActiveLists, tuple[int, int]]:
        lo, hi = spans[k]
        beyond = np.count_nonzero(beyond_lists[lo * neurons.block : hi * neurons.block])
        capacity = candidates[k] + len(rows) * beyond + 1
        active = ActiveLists(
            np.empty(capacity, np.int16),
            np.zeros((hi - lo, len(rows) + 1), np.int64),
            np.empty(capacity if with_values else 0, dtype),
        )
        sums = np.zeros((len(rows), neurons.outputs.shape[1]))
        tested, pairs = forward_rows(neurons, batch, lists, level, beyond_lists, band, active, sums, lo, hi)
        return sums, active, (int(tested), int(pairs))

    done = parallel_map(run, range(len(spans)))
    parts = [(span, active) for span, (_, active, _) in zip(spans, done, strict=True)]
    tested, pairs = (sum(counted[k] for _, _, counted in done) for k in range(2))
    found = BatchPairs(batch, neurons.block, parts, pairs, tested)
    return sum((sums for sums, _, _ in done[1:]), done[0][0]), found
