"""The pairs that fire for a batch of rows: found by looking at all neurons or at lists, and what follows from them.

``row_lists.py`` keeps the lists; ``kernels/row_lists.py`` runs the passes.
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

_BLOCK_BYTES = 1 << 20  # of weights that stay in a core's cache while all rows of a batch look at them
_PARTS = 4  # that a pass is shared out in; a constant, so that sums do not depend on the number of cores

_SAFE_SQUARES = 1e-20, 1e30  # sums of squares between these neither overflow nor vanish, in float32 either

NO_DRIFTED_NEURONS = np.empty(0, np.uint8)


def neurons_of(weights: np.ndarray, outputs: np.ndarray, threshold: float) -> Neurons:
    """A network as the passes read it: its own memory where rows are whole cache lines, else a copy."""
    aligned = weights if is_aligned(weights) else aligned_rows(weights)
    fitting = int(np.clip(_BLOCK_BYTES // max(1, aligned.shape[1] * aligned.itemsize), 64, 1 << 15))
    blocks = -(-len(weights) // (_PARTS * fitting)) * _PARTS  # as many for each part
    return Neurons(aligned, outputs, weights.dtype.type(threshold), max(1, -(-len(weights) // blocks)))


class ActiveRows(NamedTuple):
    """The pairs of a batch that fire, at the weights of one forward pass."""

    batch: Batch
    block: int
    parts: list[tuple[tuple[int, int], ActiveLists]]  # ranges of blocks, and who fires there
    pairs: int
    looked_at: int  # pairs, to find them

    def fire_sets(self, width: int) -> "csr_array":
        """k × m, rows sorted."""
        neurons, samples = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
        for (lo, _), active in self.parts:
            for q, ends in enumerate(active.ends):
                neurons.append(np.int32((lo + q) * self.block) + active.ids[ends[0] : ends[-1]])
                samples.append(np.repeat(np.arange(len(ends) - 1, dtype=np.int32), np.diff(ends)))
        found = np.concatenate(samples), np.concatenate(neurons)
        del samples, neurons
        return fire_sets_of_pairs(*found, (len(self.batch.rows), width))

    def neurons(self, width: int) -> np.ndarray:
        """Those that fire for any row, ascending."""
        fires = np.zeros(width, bool)
        for (lo, _), active in self.parts:
            for q, ends in enumerate(active.ends):
                fires[(lo + q) * self.block + active.ids[ends[0] : ends[-1]].astype(np.int64)] = True
        return np.flatnonzero(fires)

    def count(self, neuron: int) -> int:
        """For how many rows this neuron fires."""
        q, place = divmod(neuron, self.block)
        for (lo, hi), active in self.parts:
            if lo <= q < hi:
                return int(np.count_nonzero(active.ids[active.ends[q - lo, 0] : active.ends[q - lo, -1]] == place))
        return 0

    def weight_gradients(self, outputs: np.ndarray, residual: np.ndarray, width: int) -> np.ndarray:
        """Σ_i fired (Σ_c a_rc residual_ic) x_i for all neurons, (m, d), aligned as the samples are."""
        columns, dtype = self.batch.samples.shape[1], self.batch.samples.dtype
        if not self.parts:
            return aligned_zeros(width, columns, dtype)
        gradients = aligned_empty(width, columns, dtype)

        def add(part: tuple[tuple[int, int], ActiveLists]) -> None:
            add_weight_gradients(self.batch, outputs, residual, part[1], gradients, self.block, *part[0])

        parallel_map(add, self.parts)
        return gradients

    def output_gradients(self, residual: np.ndarray, width: int) -> np.ndarray:
        """Σ_i fired (⟨w_r, x_i⟩ − b) residual_ic for all neurons, (m, c); the pass must have kept values."""
        gradients = np.zeros((width, residual.shape[1]), residual.dtype)
        parallel_map(lambda part: add_output_gradients(residual, part[1], gradients, self.block, *part[0]), self.parts)
        return gradients

    def row_gradients(self, neurons: Neurons, residual: np.ndarray) -> np.ndarray:
        """Σ_r fired (Σ_c a_rc residual_ic) w_r for all rows of the batch, (k, d), aligned as the weights are."""

        def add(part: tuple[tuple[int, int], ActiveLists]) -> np.ndarray:
            gradients = aligned_zeros(len(residual), neurons.weights.shape[1], residual.dtype)
            add_row_gradients(neurons, residual, part[1], gradients, *part[0])
            return gradients

        nothing = np.zeros((len(residual), neurons.weights.shape[1]), residual.dtype)
        return sum(parallel_map(add, self.parts), nothing)

    def products(self, *factors: tuple[np.ndarray, np.ndarray]) -> "ActiveRows":
        """Replace the value of each fired pair (i, r) by Σ ⟨v_r, z_i⟩ over the given pairs of matrices (v, z).

        Both have as many columns as the aligned weights: v (m, d) one row for each neuron, z one for each sample.
        """

        def replaced(part: tuple[tuple[int, int], ActiveLists]) -> tuple[tuple[int, int], ActiveLists]:
            span, active = part
            values = np.zeros(len(active.ids), factors[0][0].dtype)
            for vectors, samples in factors:
                add_products(vectors, self.batch._replace(samples=samples), active, self.block, values, *span)
            return span, active._replace(values=values)

        return self._replace(parts=parallel_map(replaced, self.parts))

    def sums(self, outputs: np.ndarray) -> np.ndarray:
        """Σ_r fired values_ri a_rc for all rows of the batch, (k, c), float64; the pass must have kept values."""

        def summed(part: tuple[tuple[int, int], ActiveLists]) -> np.ndarray:
            sums = np.zeros((len(self.batch.rows), outputs.shape[1]))
            add_sums(outputs, part[1], self.block, part[1].values, sums, *part[0])
            return sums

        return sum(parallel_map(summed, self.parts), np.zeros((len(self.batch.rows), outputs.shape[1])))

    def step(
        self,
        neurons: Neurons,
        velocity: np.ndarray,
        residual: np.ndarray,
        rule: StepRule,
        followed: tuple[np.ndarray, np.ndarray],
    ) -> None:
        """``W ← W − rule(∂L/∂W)`` in place, with ``followed`` = (references, moved) as ``RowLists`` has them.

        ``velocity`` is aligned as the weights are, or has no rows.
        """
        arguments = rule.arguments(neurons.weights.dtype)

        def step_part(part: tuple[tuple[int, int], ActiveLists]) -> None:
            step_blocks(neurons, velocity, self.batch, residual, part[1], arguments, *followed, *part[0])

        parallel_map(step_part, self.parts)


def fire_rows(neurons: Neurons, X: np.ndarray, *, with_values: bool = False) -> tuple[np.ndarray, ActiveRows]:
    """One pass over rows X (k, d) that nothing is known of: every pair is looked at. Returns Σ_r a_rc σ_b, who fires.

    Cost O(k · m · d), by matrix products; what follows from it is paid for by fired pair.
    """
    samples = aligned_rows(X)
    norm = weight_norm(neurons.weights)
    slack = rounding_slack(norm, samples)
    if not np.isfinite(slack):
        if np.isfinite(norm) and samples.dtype == np.float32:
            return _fire_rows_in_float64(neurons, samples, with_values)
        return np.full((len(X), neurons.outputs.shape[1]), np.nan), empty(samples, neurons)
    lists = search_rows(neurons, index_of(neurons.weights, norm), samples, 2 * slack)
    batch = Batch(samples, np.arange(len(samples)))
    return pass_over(neurons, batch, lists, LEVELS - 1, NO_DRIFTED_NEURONS, slack, with_values)


def _fire_rows_in_float64(neurons: Neurons, samples: np.ndarray, with_values: bool) -> tuple[np.ndarray, ActiveRows]:
    """``fire_rows`` where inner products may overflow float32: decided and summed in float64."""
    wide = Neurons(
        aligned_rows(neurons.weights.astype(np.float64)),
        neurons.outputs.astype(np.float64),
        np.float64(neurons.threshold),
        neurons.block,
    )
    sums, active = fire_rows(wide, samples.astype(np.float64), with_values=with_values)
    with np.errstate(over="ignore"):
        parts = [(span, part._replace(values=part.values.astype(np.float32))) for span, part in active.parts]
    return sums, active._replace(batch=active.batch._replace(samples=samples), parts=parts)


def empty(samples: np.ndarray, neurons: Neurons) -> ActiveRows:
    return ActiveRows(Batch(samples, np.arange(len(samples))), neurons.block, [], 0, 0)


def weight_norm(weights: np.ndarray) -> float:
    """A bound on the norms of all neurons, not finite where weights are not.

    Normally the norm of all together, in one pass. Where its square may overflow or vanish, the largest of the norms.
    """
    flat = weights.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = float(np.dot(flat, flat))
    return sqrt(squares) if _SAFE_SQUARES[0] < squares < _SAFE_SQUARES[1] else float(row_norms(weights).max())


def rounding_slack(norm: float, samples: np.ndarray) -> float:
    """Bound on the rounding of inner products with neurons up to this norm; not finite where they may overflow.

    The bound on the norm being rather too large costs a few more candidates.
    """
    slack = dot_slack(samples.shape[1], samples.dtype, norm, row_norms(samples).max(initial=0.0))
    return float(slack) if np.isfinite(norm) else np.inf


def index_of(weights: np.ndarray, norm: float) -> HalfSpaceIndex:
    """What rows are held against; the weights must not change as long as it is used."""
    return ScanIndex(weights, copy=False, largest_norm=norm)


def count_blocks(neurons: Neurons) -> int:
    return -(-len(neurons.weights) // neurons.block)


def search_rows(neurons: Neurons, index: HalfSpaceIndex, samples: np.ndarray, margin: float) -> Lists:
    """The lists of these samples: whoever may be above b − ``margin``. Cost O(samples · m · d)."""
    cuts = np.zeros((len(samples), LEVELS * count_blocks(neurons) + 1), np.int32)
    if len(samples) == 0:
        return Lists(np.empty(0, np.int16), np.empty(0, np.int64), cuts)
    threshold = float(neurons.threshold)
    found = index.report(samples, np.full(len(samples), threshold - margin))
    ids = np.empty(len(found.ids), np.int16)
    height = max(margin, 1e-300) / LEVELS
    parallel_map(
        lambda span: cut_rows(*found, threshold, height, neurons.block, ids, cuts, *span), parts_of(len(samples))
    )
    return Lists(ids, found.indptr[:-1], cuts)


def parts_of(count: int) -> list[tuple[int, int]]:
    parts = max(1, min(_PARTS, count))
    return [(count * k // parts, count * (k + 1) // parts) for k in range(parts)]


def pass_over(
    neurons: Neurons,
    batch: Batch,
    lists: Lists,
    level: int,
    far_off: np.ndarray,
    slack: float,
    with_values: bool,
) -> tuple[np.ndarray, ActiveRows]:
    """Sums (k, c), float64, and who fires."""
    dtype, rows, spans = neurons.weights.dtype, batch.rows, parts_of(count_blocks(neurons))
    band = dtype.type(slack if dtype == np.float64 else -1.0)
    edges = LEVELS * np.array([span[0] for span in spans] + [spans[-1][1]])
    candidates = np.diff(lists.cuts[rows[:, None], edges].sum(axis=0, dtype=np.int64))

    def run(k: int) -> tuple[np.ndarray, ActiveLists, tuple[int, int]]:
        lo, hi = spans[k]
        room = candidates[k] + len(rows) * np.count_nonzero(far_off[lo * neurons.block : hi * neurons.block]) + 1
        active = ActiveLists(
            np.empty(room, np.int16),
            np.zeros((hi - lo, len(rows) + 1), np.int64),
            np.empty(room if with_values else 0, dtype),
        )
        sums = np.zeros((len(rows), neurons.outputs.shape[1]))
        looked_at, pairs = forward_rows(neurons, batch, lists, level, far_off, band, active, sums, lo, hi)
        return sums, active, (int(looked_at), int(pairs))

    done = parallel_map(run, range(len(spans)))
    parts = [(span, active) for span, (_, active, _) in zip(spans, done, strict=True)]
    looked_at, pairs = (sum(counted[k] for _, _, counted in done) for k in range(2))
    active_rows = ActiveRows(batch, neurons.block, parts, pairs, looked_at)
    return sum((sums for sums, _, _ in done[1:]), done[0][0]), active_rows
