"""The tangent kernel as a matrix or by columns, and preconditioners made from it.

The systems to be solved are (R H R + ν) z = right. R = diag(√b) contains the roots of the curvatures of the rows. H is
the tangent kernel ∂u/∂W (∂u/∂W)ᵀ over all outputs, (n·c) × (n·c). All its diagonal blocks equal one n × n matrix,
the paper's H(t) times κ². The off-diagonal blocks are noise of order 1/√m. Preconditioners use the n × n matrix alone.

With trained output weights A, s² ∂u/∂A (∂u/∂A)ᵀ is added (``ScaledOutputLayer``). The output weights then differ from
±1. The first part of the n × n matrix is multiplied by their mean square, which is exact where all squares are equal.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np

from fireset._util.cholesky import cholesky_solve, cholesky_with_jitter
from fireset._util.parallel import parallel_map, ranges
from fireset._util.rounding import row_norms
from fireset.distributed.agreement import raise_on_all_workers
from fireset.distributed.process_group import ProcessGroup
from fireset.distributed.row_shares import RowShares
from fireset.engines.base import Engine
from fireset.engines.tangent import OutputLayer
from fireset.sparse_rows import Rows

_CHUNK_ENTRIES = 1 << 20  # of a matrix that one task computes
_PIVOT_BATCH = 64
_MIN_PIVOT_GAIN = 10.0  # times ν: below, a few more products cost less than a pivot
_OMITTED_QUANTILE = 0.1  # of the eigenvalues of a partial factor, as the estimate of the largest omitted one
_DEPENDENT_EPS = 32.0  # times eps of float32 and the pivot's diagonal entry: below, a pivot depends on earlier ones


class Preconditioner(Protocol):
    """An approximate inverse; ``apply`` maps (n, c) to (n, c)."""

    def apply(self, vector: np.ndarray) -> np.ndarray: ...


class ScaledOutputLayer(NamedTuple):
    """The Jacobian of the output layer, the factor s² of its kernel, and the mean square of the output weights."""

    layer: OutputLayer
    factor: float
    mean_square: float = 1.0  # over all workers

    def times(self, kernel_part: np.ndarray) -> np.ndarray:
        """Multiply a part of the kernel by s² in place, in its precision."""
        kernel_part *= kernel_part.dtype.type(self.factor)
        return kernel_part


def tangent_kernel(engine: Engine, outputs: ScaledOutputLayer | None = None, dtype=np.float64) -> np.ndarray:
    """Return κ²/m ⟨x_i, x_j⟩ #{r active for i and j}, (n, n); only the lower triangle is valid.

    With ``outputs`` the kernel of the output layer is added.
    """
    kernel = _times_inner_products(engine.common_counts(dtype), engine.X, _hidden_scale(engine, outputs))
    if outputs is not None:
        kernel += outputs.times(outputs.layer.whole_kernel())
    return kernel


def _hidden_scale(engine: Engine, outputs: ScaledOutputLayer | None) -> float:
    """Return the factor of the common counts: κ²/m times the mean square of the output weights, which is 1 for ±1."""
    return engine.tangent_scale * (1.0 if outputs is None else outputs.mean_square)


def _times_inner_products(counts: np.ndarray, X: Rows, scale: float) -> np.ndarray:
    """Multiply ``counts[i, j]`` by ``scale`` ⟨x_i, x_j⟩ in place."""
    dtype = counts.dtype.type
    X = X.astype(dtype, copy=False)
    chunk = max(1, _CHUNK_ENTRIES // len(X))

    def multiply(lo: int) -> None:
        rows = slice(lo, lo + chunk)
        counts[rows] *= X[rows] @ X.T
        counts[rows] *= dtype(scale)

    parallel_map(multiply, range(0, len(X), chunk), uses_blas=True)
    return counts


def _mean_diagonal(diagonal: np.ndarray, roots: np.ndarray, shift: float, shares: RowShares | None = None) -> float:
    """Return the mean diagonal of R̄ H R̄ + ν, by which preconditioners divide to keep float32 within its range."""
    sums = float((roots**2 * diagonal).sum()), len(roots)
    total, rows = sums if shares is None else shares.totals(*sums)
    size = total / rows + shift
    if not (np.isfinite(size) and size > 0):
        raise FloatingPointError(f"the system to be solved has a mean diagonal of {size:g}")
    return size


class CholeskyPreconditioner:
    """(R̄ H R̄ + ν)⁻¹ by a Cholesky factor, with one curvature for each row. Cost n³/3, and 2 n² c for an application."""

    def __init__(self, kernel: np.ndarray, roots: np.ndarray, shift: float):
        """``kernel`` is the result of ``tangent_kernel`` and is not changed. ``roots``, (n,), are √b."""
        self._size = _mean_diagonal(kernel.diagonal().astype(np.float64), roots, shift)
        scaled_roots = (roots / np.sqrt(self._size)).astype(kernel.dtype)

        def scaled() -> np.ndarray:
            matrix = kernel * scaled_roots[:, None]
            matrix *= scaled_roots
            matrix[np.diag_indices(len(matrix))] += kernel.dtype.type(shift / self._size)
            return matrix

        self._factor, self.jitter = cholesky_with_jitter(scaled)

    def apply(self, vector: np.ndarray) -> np.ndarray:
        right, largest = _scaled_to_one(vector, self._factor.dtype)
        return cholesky_solve(self._factor, right).astype(np.float64) * (largest / self._size)


def _scaled_to_one(vector: np.ndarray, dtype) -> tuple[np.ndarray, float]:
    """Return ``vector`` divided by its largest absolute value, in ``dtype``, and that value (1 for zeros)."""
    largest = float(np.abs(vector).max(initial=0.0)) or 1.0
    return (vector / largest).astype(dtype), largest


def whole_preconditioner(
    kernel: np.ndarray, roots: np.ndarray, shift: float, shares: RowShares, neuron_group: ProcessGroup
) -> Preconditioner:
    """Return a ``CholeskyPreconditioner`` for all rows, from the kernel of all rows and this worker's ``roots``.

    Where workers share the rows, only the first worker has the kernel. Only the first worker of each ``neuron_group``,
    those with the same rows, may apply the result (``SharedPreconditioner``).
    """
    if shares.group.size == 1:
        return CholeskyPreconditioner(kernel, roots, shift)
    gathered = shares.gather(roots)
    # Every group with the same rows contains a worker that has received an error of the first.
    with raise_on_all_workers(neuron_group), raise_on_all_workers(shares.group):
        made = CholeskyPreconditioner(kernel, gathered, shift) if len(kernel) else None
    return GatheredPreconditioner(made, shares)


class GatheredPreconditioner:
    """A preconditioner for all rows that the first of the workers applies which share them.

    An application gathers n · c numbers and broadcasts as many: for few rows.
    """

    def __init__(self, inner: Preconditioner | None, shares: RowShares):
        self._inner, self._shares = inner, shares

    def apply(self, vector: np.ndarray) -> np.ndarray:
        gathered = self._shares.gather(vector)
        applied = np.empty_like(gathered) if self._inner is None else self._inner.apply(gathered)
        applied = np.ascontiguousarray(applied)
        self._shares.group.broadcast(applied, source=0)
        return applied[self._shares.first :][: len(vector)]


class OutputPreconditioner:
    """A separate preconditioner for each output, applied in parallel."""

    def __init__(self, parts: list[Preconditioner]):
        self._parts = parts

    def apply(self, vector: np.ndarray) -> np.ndarray:
        def apply(k: int) -> np.ndarray:
            return self._parts[k].apply(vector[:, k : k + 1])

        return np.concatenate(parallel_map(apply, range(len(self._parts)), uses_blas=True), axis=1)


class PartialCholeskyPreconditioner:
    """(F Fᵀ + ρ)⁻¹ with F (n, k) from randomly pivoted Cholesky of R̄ H R̄ (Chen, Epperly, Tropp, Webber 2023).

    ρ is ν plus an estimate of the largest eigenvalue that F omits, taken from the smallest eigenvalues of F Fᵀ (as for
    Nyström preconditioners; Frangella, Tropp, Udell 2023). Columns are added while their eigenvalues are well above ν,
    up to ``rank``. Pivots that depend on earlier ones, up to the rounding of float32, are dropped. Only k columns of H
    are computed. Cost O(n k² + k · column); an application costs 4 n k c.

    All matrices are divided by the mean diagonal of R̄ H R̄. ``shift`` is ρ in the units of H.
    """

    def __init__(
        self,
        columns: "KernelColumns",
        roots: np.ndarray,
        shift: float,
        rank: int,
        group: ProcessGroup,
        shares: RowShares,
    ):
        diagonal = columns.diagonal()
        self._shares = shares
        self._size = _mean_diagonal(diagonal, roots, shift, shares)
        roots, shift = roots / np.sqrt(self._size), shift / self._size
        diagonal = roots**2 * diagonal
        leads = group.rank == 0  # only the first worker with these rows applies the factor; the others compute columns
        F = np.zeros((rank if leads else 1, len(roots)), np.float32)  # transposed: one row for each pivot
        rng = np.random.default_rng(0)
        done = 0
        (total,) = shares.totals(float(diagonal.sum()))
        left = found = total  # a pivot takes at most the trace; a far larger shift would make F underflow
        while True:
            more = done < rank and left > 1e-6 * total > 0 and found > _MIN_PIVOT_GAIN * shift
            size = _broadcast_int(group, min(_PIVOT_BATCH, rank - done) if more else 0)
            if size == 0:
                break
            drawn = shares.draw(diagonal, rng.random(size)) if leads else np.zeros(size, np.int64)
            group.broadcast(drawn, source=0)
            chosen = np.unique(drawn)
            rows = columns.of(chosen)
            if not leads:
                continue
            new = F[done : done + len(chosen)]
            added = _add_pivots(rows, roots, chosen, F[:done], new, shares)
            taken = np.einsum("ij,ij->j", new[:added], new[:added], dtype=np.float64)
            diagonal = np.maximum(diagonal - taken, 0.0)
            # What is left of a pivot is 0 up to the rounding of float32.
            diagonal[shares.own(chosen)] = 0.0
            left, gained = shares.totals(float(diagonal.sum()), float(taken.sum()))
            found = gained / len(chosen)
            done += added
        self.rank = done
        with raise_on_all_workers(shares.group), raise_on_all_workers(group):
            if leads:
                self._factor(F[: max(done, 1)], shift)  # without pivots a row of zeros: only ρ remains

    def _factor(self, F: np.ndarray, shift: float) -> None:
        """Choose ρ, and factor the inner products of F (k, n_j) and ρ."""
        self._F = F
        inner = self._shares.sum(_inner_products(F))
        values = np.linalg.eigvalsh(inner)
        left_out = max(0.0, float(np.quantile(values, _OMITTED_QUANTILE)))
        # With a smaller shift, the rounding of F Fᵀ v would dominate the difference in ``apply``.
        rounding = float(np.finfo(np.float32).eps) * max(0.0, float(values[-1]))
        scaled_shift = max(shift + left_out, rounding)
        self.shift = scaled_shift * self._size
        self._inner, _ = cholesky_with_jitter(lambda: inner + scaled_shift * np.eye(len(inner)))

    def apply(self, vector: np.ndarray) -> np.ndarray:
        right, largest = _scaled_to_one(vector, np.float32)
        inside = cholesky_solve(self._inner, self._shares.sum((self._F @ right).astype(np.float64) * largest))
        coefficients, largest = _scaled_to_one(inside, np.float32)
        rest = vector - self._F.T @ coefficients * largest
        return rest / self.shift


def _broadcast_int(group: ProcessGroup, number: int) -> int:
    """Return the number of the first worker; those of others may differ by rounding."""
    shared = np.array([number])
    group.broadcast(shared, source=0)
    return int(shared[0])


def _inner_products(F: np.ndarray) -> np.ndarray:
    """Return F Fᵀ, (k, k), in float64 for F (k, n), computed in chunks of columns."""
    chunk = max(1, _CHUNK_ENTRIES // max(1, len(F)))
    inner = np.zeros((len(F), len(F)))
    blocks = ranges(len(F))
    for lo in range(0, F.shape[1], chunk):
        columns = F[:, lo : lo + chunk].astype(np.float64)

        def add(span: tuple[int, int], columns: np.ndarray = columns) -> None:
            inner[slice(*span)] += columns[slice(*span)] @ columns.T

        parallel_map(add, blocks, uses_blas=True)
    return inner


def _add_pivots(
    rows: np.ndarray, roots: np.ndarray, chosen: np.ndarray, F: np.ndarray, new: np.ndarray, shares: RowShares
) -> int:
    """Write the rows that the pivots ``chosen`` add to F (done, n_j) into ``new`` (k, n_j); return their number.

    ``rows`` (k, n_j) are rows of H, with a column for each row of this worker; the pivots are rows of all workers. The
    Schur complement of the pivots is a small difference of large numbers: it is computed in float64 and factored with
    pivoting. Pivots below the rounding of float32 are dropped.
    """
    from scipy.linalg import get_lapack_funcs, solve_triangular

    known = shares.select_columns(F, chosen).T.astype(np.float64)
    pivot_roots = shares.select(roots, chosen)
    own = shares.select_columns(rows, chosen) * pivot_roots * pivot_roots[:, None]
    schur = own - known @ known.T
    least = _DEPENDENT_EPS * float(np.finfo(np.float32).eps) * max(float(own.diagonal().max()), 0.0)
    (pstrf,) = get_lapack_funcs(("pstrf",), (schur,))
    factor, order, count, _ = pstrf((schur + schur.T) / 2, tol=least, lower=1)
    if not (count > 0 and factor[0, 0] ** 2 > least):
        return 0
    kept = order[:count] - 1
    inverse = solve_triangular(factor[:count, :count], np.eye(count), lower=True).astype(np.float32)
    known, roots = known[kept].astype(np.float32), roots.astype(np.float32)
    kept_roots = pivot_roots[kept].astype(np.float32)

    def add(span: tuple[int, int]) -> None:
        columns = slice(*span)
        rest = rows[kept, columns] * roots[columns]
        rest *= kept_roots[:, None]
        rest -= known @ F[:, columns]
        new[:count, columns] = inverse @ rest

    parallel_map(add, ranges(len(roots)), uses_blas=True)
    return int(count)


class KernelColumns:
    """Selected columns of H, returned as rows. Valid until the weights move.

    Columns are those of rows of all workers, by number in ``shares``; they contain the rows of this worker.
    """

    def __init__(self, engine: Engine, shares: RowShares, outputs: ScaledOutputLayer | None = None):
        self._columns = engine.common_count_columns()
        self._full_X: Rows = engine.X
        self._X: Rows = engine.X.astype(np.float32, copy=False)
        self._scale = _hidden_scale(engine, outputs)
        self._shares, self._outputs = shares, outputs

    def diagonal(self) -> np.ndarray:
        diagonal = row_norms(self._X) ** 2 * self._columns.diagonal() * self._scale
        return diagonal if self._outputs is None else diagonal + self._outputs.times(self._outputs.layer.diagonal())

    def of(self, chosen: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
        """Return (len(chosen), n), in float32 or in the precision of the network."""
        columns = self._columns.counts(chosen).astype(dtype, copy=False)
        X = self._X if dtype == np.float32 else self._full_X
        columns *= self._shares.select(X, chosen) @ X.T
        columns *= dtype(self._scale)
        if self._outputs is not None:
            columns += self._outputs.times(self._outputs.layer.columns(self._shares.select(self._full_X, chosen)))
        return columns

    def submatrix(self, chosen: np.ndarray) -> np.ndarray:
        """Return the rows and columns ``chosen``, (k, k), float32; only the lower triangle is valid."""
        rows = self._shares.select(self._full_X, chosen)
        kernel = _times_inner_products(self._columns.table(chosen), rows, self._scale)
        if self._outputs is not None:
            kernel += self._outputs.times(self._outputs.layer.kernel(rows))
        return kernel


class SharedPreconditioner:
    """A preconditioner that the first worker applies and broadcasts.

    All workers then continue with the same bits: with different residuals, one could stop while the others wait for it.
    A broadcast has n · c numbers, as a tangent product has.
    """

    def __init__(self, inner: Preconditioner, group: ProcessGroup):
        self._inner, self._group = inner, group

    def apply(self, vector: np.ndarray) -> np.ndarray:
        applied = self._inner.apply(vector) if self._group.rank == 0 else np.empty_like(vector)
        applied = np.ascontiguousarray(applied)
        self._group.broadcast(applied, source=0)
        return applied
