"""Solving with the kernel of the fire sets: H counted, preconditioners made of it, and conjugate residuals.

The systems are (R H R + ν) z = right, with R = diag(√b) the roots of the rows' curvatures, H the fire-set kernel
∂u/∂W (∂u/∂W)ᵀ over all outputs, (n·c) × (n·c). Its diagonal blocks, one for each output, are all the same n × n
matrix, the paper's H(t) times κ²; the blocks off the diagonal are noise of order 1/√m. A preconditioner is made of that
one matrix, and conjugate residuals absorb the rest.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from fireset._util.cholesky import cholesky_solve, cholesky_with_jitter
from fireset._util.parallel import parallel_map, ranges
from fireset._util.rounding import row_norms
from fireset.distributed.process_group import ProcessGroup
from fireset.engines.base import Engine
from fireset.sparse_rows import Rows

_NUMBERS_AT_ONCE = 1 << 20
_PIVOTS_AT_ONCE = 64
_WORTH_A_PIVOT = 10.0  # times ν: what a column must take away, or a few more products cost less
_LEFT_OUT = 0.1  # quantile of the eigenvalues of a partial factor
_DEPENDENT = 32.0  # times eps of float32, of a pivot's own entry: with less left it depends on earlier pivots


class Preconditioner(Protocol):
    """An approximate inverse: ``apply(v)`` for v (n, c)."""

    def apply(self, vector: np.ndarray) -> np.ndarray: ...


def counted_kernel(engine: Engine, dtype=np.float64) -> np.ndarray:
    """κ²/m ⟨x_i, x_j⟩ #{r fires for i and for j} for all samples; (n, n), its lower triangle."""
    return _times_products(engine.common_counts(dtype), engine.X, engine.tangent_scale)


def _times_products(table: np.ndarray, X: Rows, scale: float) -> np.ndarray:
    """``table[i, j]`` times ``scale`` ⟨x_i, x_j⟩, in place."""
    dtype = table.dtype.type
    X = X.astype(dtype, copy=False)
    at_once = max(1, _NUMBERS_AT_ONCE // len(X))

    def multiply(lo: int) -> None:
        some = slice(lo, lo + at_once)
        table[some] *= X[some] @ X.T
        table[some] *= dtype(scale)

    parallel_map(multiply, range(0, len(X), at_once), uses_blas=True)
    return table


def _mean_diagonal(diagonal: np.ndarray, roots: np.ndarray, shift: float) -> float:
    """Mean diagonal of R̄ H R̄ + ν. Preconditioners divide by it, so that no float32 number over- or underflows."""
    size = float(np.mean(roots**2 * diagonal)) + shift
    if not (np.isfinite(size) and size > 0):
        raise FloatingPointError(f"the system to be solved has a mean diagonal of {size:g}")
    return size


class CholeskyPreconditioner:
    """(R̄ H R̄ + ν)⁻¹ by a Cholesky factor, with one weight for a row. Cost n³/3 once, 2 n² c for each application."""

    def __init__(self, kernel: np.ndarray, roots: np.ndarray, shift: float):
        """``kernel`` as ``counted_kernel`` gives it; it is not changed. ``roots`` (n,) are the rows' √b."""
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
    """``vector`` divided by its largest absolute value, in ``dtype``, and that value; 1 for a vector of zeros."""
    largest = float(np.abs(vector).max(initial=0.0)) or 1.0
    return (vector / largest).astype(dtype), largest


class OutputPreconditioner:
    """A preconditioner for each output."""

    def __init__(self, parts: list[Preconditioner]):
        self._parts = parts

    def apply(self, vector: np.ndarray) -> np.ndarray:
        columns = [part.apply(vector[:, k : k + 1]) for k, part in enumerate(self._parts)]
        return np.concatenate(columns, axis=1)


class PartialCholeskyPreconditioner:
    """(F Fᵀ + ρ)⁻¹ with F (n, k) from randomly pivoted Cholesky of R̄ H R̄ (Chen, Epperly, Tropp, Webber 2023).

    ρ is ν and about the largest eigenvalue that F leaves out, for which the smallest ones that it has are taken
    (as for Nyström preconditioners; Frangella, Tropp, Udell 2023): nearer to the matrix, and farther from what float32
    cannot tell from 0. Columns are added while they take away eigenvalues well above ν, up to ``rank``; the rest is
    left to the products. Pivots that depend on earlier ones, up to the rounding of float32, are dropped. Only k columns
    of H are counted. Cost O(n k² + k · column); an application costs 4 n k c.

    All is of R̄ H R̄ divided by its mean diagonal; ``shift`` is ρ in the units of H.
    """

    def __init__(self, columns: "KernelColumns", roots: np.ndarray, shift: float, rank: int, group: ProcessGroup):
        diagonal = columns.diagonal()
        self._size = _mean_diagonal(diagonal, roots, shift)
        roots, shift = roots / np.sqrt(self._size), shift / self._size
        diagonal = roots**2 * diagonal
        leads = group.rank == 0  # the first worker alone applies the factor; the others only count columns
        F = np.zeros((rank if leads else 1, len(roots)), np.float32)  # the transpose: a pivot has a row
        rng = np.random.default_rng(0)
        total, done, found = diagonal.sum(), 0, np.inf
        while True:
            more = done < rank and diagonal.sum() > 1e-6 * total > 0 and found > _WORTH_A_PIVOT * shift
            size = _of_first_worker(group, min(_PIVOTS_AT_ONCE, rank - done) if more else 0)
            if size == 0:
                break
            drawn = rng.choice(len(roots), size, p=diagonal / diagonal.sum()) if leads else np.zeros(size, np.int64)
            group.broadcast(drawn, source=0)
            chosen = np.unique(drawn)
            rows = columns.of(chosen)
            if not leads:
                continue
            new = F[done : done + len(chosen)]
            added = _add_pivots(rows, roots, chosen, F[:done], new)
            taken = np.einsum("ij,ij->j", new[:added], new[:added], dtype=np.float64)
            diagonal, found = np.maximum(diagonal - taken, 0.0), float(taken.sum()) / len(chosen)
            diagonal[chosen] = 0.0  # a pivot has nothing left, or nothing that float32 can tell from 0
            done += added
        self.rank = done
        self._F = F[: max(done, 1)]  # without pivots a row of zeros: the inverse of ρ alone
        inner = _inner_products(self._F)
        values = np.linalg.eigvalsh(inner)
        left_out = max(0.0, float(np.quantile(values, _LEFT_OUT)))
        # Below, what float32 makes of F Fᵀ v would drown the rest in ``apply``.
        rounding = float(np.finfo(np.float32).eps) * max(0.0, float(values[-1]))
        scaled_shift = max(shift + left_out, rounding)
        self.shift, self._scaled_shift = scaled_shift * self._size, scaled_shift
        self._inner, _ = cholesky_with_jitter(lambda: inner + scaled_shift * np.eye(len(inner)))

    def apply(self, vector: np.ndarray) -> np.ndarray:
        right, largest = _scaled_to_one(vector, np.float32)
        inside = cholesky_solve(self._inner, self._F @ right)
        rest = vector - self._F.T @ inside.astype(np.float32) * largest
        return rest / self.shift


def _of_first_worker(group: ProcessGroup, number: int) -> int:
    """The first worker's number: rounding may have given others another one."""
    told = np.array([number])
    group.broadcast(told, source=0)
    return int(told[0])


def _inner_products(F: np.ndarray) -> np.ndarray:
    """Compute F Fᵀ (k, k) in float64 for F (k, n), some columns at a time."""
    at_once = max(1, _NUMBERS_AT_ONCE // max(1, len(F)))

    inner = np.zeros((len(F), len(F)))
    blocks = ranges(len(F))
    for lo in range(0, F.shape[1], at_once):
        some = F[:, lo : lo + at_once].astype(np.float64)

        def add(span: tuple[int, int], some: np.ndarray = some) -> None:
            inner[slice(*span)] += some[slice(*span)] @ some.T

        parallel_map(add, blocks, uses_blas=True)
    return inner


def _add_pivots(rows: np.ndarray, roots: np.ndarray, chosen: np.ndarray, F: np.ndarray, new: np.ndarray) -> int:
    """Write what the pivots ``chosen`` add to F (done, n) into the first rows of ``new`` (k, n); returns how many.

    ``rows`` (k, n) are those of H. The core, what is left of the pivots' own block, is a small difference of large
    numbers: it is computed in float64 and factored with pivoting. Pivots of which less is left than float32 can tell
    from 0 depend on the others and are dropped.
    """
    from scipy.linalg import get_lapack_funcs, solve_triangular

    known = F[:, chosen].T.astype(np.float64)
    own = rows[:, chosen] * roots[chosen] * roots[chosen, None]
    core = own - known @ known.T
    least = _DEPENDENT * float(np.finfo(np.float32).eps) * max(float(own.diagonal().max()), 0.0)
    (pstrf,) = get_lapack_funcs(("pstrf",), (core,))
    factor, order, count, _ = pstrf((core + core.T) / 2, tol=least, lower=1)
    if not (count > 0 and factor[0, 0] ** 2 > least):
        return 0
    kept = order[:count] - 1
    inverse = solve_triangular(factor[:count, :count], np.eye(count), lower=True).astype(np.float32)
    known, roots = known[kept].astype(np.float32), roots.astype(np.float32)

    def add(span: tuple[int, int]) -> None:
        some = slice(*span)
        rest = rows[kept, some] * roots[some]
        rest *= roots[chosen[kept], None]
        rest -= known @ F[:, some]
        new[:count, some] = inverse @ rest

    parallel_map(add, ranges(len(roots)), uses_blas=True)
    return int(count)


class KernelColumns:
    """Some columns of H at a time, as rows, without the whole of it; valid until the weights move."""

    def __init__(self, engine: Engine):
        self._columns = engine.common_count_columns()
        self._X: Rows = engine.X.astype(np.float32, copy=False)
        self._scale = engine.tangent_scale

    def diagonal(self) -> np.ndarray:
        return row_norms(self._X) ** 2 * self._columns.diagonal() * self._scale

    def of(self, chosen: np.ndarray) -> np.ndarray:
        """(len(chosen), n), float32."""
        table = self._columns.counts(chosen)
        table *= self._X[chosen] @ self._X.T
        table *= np.float32(self._scale)
        return table

    def among(self, chosen: np.ndarray) -> np.ndarray:
        """The rows of these samples, too: (k, k), float32, its lower triangle."""
        return _times_products(self._columns.table(chosen), self._X[chosen], self._scale)


class SharedPreconditioner:
    """A preconditioner that the first worker alone applies; the others are told.

    All workers then go on with the same bits, whatever their processors: a worker that saw another residual might stop
    when the others wait for it. What travels is n · c numbers, as in a product.
    """

    def __init__(self, inner: Preconditioner, group: ProcessGroup):
        self._inner, self._group = inner, group

    def apply(self, vector: np.ndarray) -> np.ndarray:
        applied = self._inner.apply(vector) if self._group.rank == 0 else np.empty_like(vector)
        applied = np.ascontiguousarray(applied)
        self._group.broadcast(applied, source=0)
        return applied


class KernelSystem:
    """R J Jᵀ R + ν at the current weights, and e/R."""

    def __init__(self, engine: Engine, residual: np.ndarray, roots: np.ndarray, shift: float):
        self._product = engine.tangent_operator()
        self.residual, self.roots, self.shift = residual, roots, shift

    def apply(self, vector: np.ndarray) -> np.ndarray:
        return self.roots * self._product(self.roots * vector) + self.shift * vector


def divided(vector: np.ndarray, roots: np.ndarray) -> np.ndarray:
    """``vector``/``roots``, 0 where the root is."""
    return np.divide(vector, roots, out=np.zeros_like(roots), where=roots > 0)


class Solved(NamedTuple):
    """z, what is left of the right-hand side, the products it took, and whether A and M⁻¹ were positive throughout."""

    solution: np.ndarray
    residual: np.ndarray
    products: int
    sound: bool


def conjugate_residuals(
    product: Callable[[np.ndarray], np.ndarray],
    preconditioner: Preconditioner,
    right: np.ndarray,
    *,
    start: np.ndarray | None,
    enough: Callable[[np.ndarray, np.ndarray, np.ndarray, float | None], bool],
    max_products: int,
) -> Solved:
    """Solve A z = right for a symmetric positive definite A, given as products, with a preconditioner M⁻¹.

    Begins at ``start``, or at 0, and ends when ``enough(z, r, y, curvature)`` is true; r = right − A z is the residual
    and y = M⁻¹ r. It is called twice for each z, the start included: with None, and, one product later, with the
    curvature y·A y. Unlike with conjugate gradients the residual decreases in every step, in the norm of M⁻¹, so that
    stopping early is safe. Preconditioned as by Saad (Iterative Methods for Sparse Linear Systems, 6.8).
    """
    products = 0
    if start is None:
        z, r = np.zeros_like(right), right.copy()
    else:
        z, r, products = start.copy(), right - product(start), 1
    y = preconditioner.apply(r)
    if enough(z, r, y, None):
        return Solved(z, r, products, sound=True)
    p, Ay = y.copy(), product(y)
    Ap, yAy, products = Ay.copy(), float((y * Ay).sum()), products + 1
    if not r.any() or (yAy > 0 and enough(z, r, y, yAy)):
        return Solved(z, r, products, sound=True)
    while True:
        MAp = preconditioner.apply(Ap)
        curvature = float((Ap * MAp).sum())
        if not (curvature > 0 and yAy > 0):  # rounding has the last word
            return Solved(z, r, products, sound=False)
        alpha = yAy / curvature
        z += alpha * p
        r -= alpha * Ap
        y -= alpha * MAp
        if products >= max_products or enough(z, r, y, None):
            return Solved(z, r, products, sound=True)
        Ay = product(y)
        products += 1
        before, yAy = yAy, float((y * Ay).sum())
        if yAy > 0 and enough(z, r, y, yAy):
            return Solved(z, r, products, sound=True)
        p = y + yAy / before * p
        Ap = Ay + yAy / before * Ap
