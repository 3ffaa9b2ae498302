"""Solving with the kernel of the fire sets: H counted, preconditioners made of it, and conjugate residuals.

The systems are (R H R + ν) z = right, with R = diag(√b) the roots of the rows' curvatures, H the fire-set kernel
∂u/∂W (∂u/∂W)ᵀ over all outputs, (n·c) × (n·c). Its diagonal blocks, one for each output, are all the same n × n
matrix, the paper's H(t) times κ²; the blocks off the diagonal are noise of order 1/√m. A preconditioner is made of that
one matrix, and conjugate residuals absorb the rest.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from fireset._util.parallel import all_blas_threads, parallel_map, ranges
from fireset._util.rounding import row_norms
from fireset.distributed.process_group import ProcessGroup
from fireset.engines.base import Engine
from fireset.sparse_rows import Rows

_NUMBERS_AT_ONCE = 1 << 20
_PIVOTS_AT_ONCE = 64
_WORTH_A_PIVOT = 10.0  # times ν: what a column must take away, or a few more products cost less
_LEFT_OUT = 0.1  # quantile of the eigenvalues of a partial factor
_JITTER = 1e-6  # of the mean diagonal, where a float32 factorization fails


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


class CholeskyPreconditioner:
    """(R̄ H R̄ + ν)⁻¹ by a Cholesky factor, with one weight for a row. Cost n³/3 once, 2 n² c for each application."""

    def __init__(self, kernel: np.ndarray, roots: np.ndarray, shift: float):
        """``kernel`` as ``counted_kernel`` gives it; it is not changed. ``roots`` (n,) are the rows' √b."""
        from scipy.linalg import get_lapack_funcs

        (potrf,) = get_lapack_funcs(("potrf",), (kernel,))
        roots = roots.astype(kernel.dtype)
        jitter, failed = 0.0, True
        while failed:
            scaled = kernel * roots[:, None]
            scaled *= roots
            diagonal = scaled.diagonal()
            mean = float(diagonal.mean())
            scaled[np.diag_indices(len(scaled))] = diagonal + kernel.dtype.type(shift + jitter)
            # The transpose is in Fortran's order: its upper triangle is our lower one, and nothing is copied.
            with all_blas_threads():
                self._factor, failed = potrf(scaled.T, lower=0, overwrite_a=True, clean=False)
            jitter = max(10 * jitter, _JITTER * mean)

    def apply(self, vector: np.ndarray) -> np.ndarray:
        from scipy.linalg import cho_solve

        right = vector.astype(self._factor.dtype)
        return cho_solve((self._factor, False), right, overwrite_b=True, check_finite=False).astype(np.float64)


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
    left to the products. Only k columns of H are counted. Cost O(n k² + k · column); an application costs 4 n k c.
    """

    def __init__(self, columns: "KernelColumns", roots: np.ndarray, shift: float, rank: int, group: ProcessGroup):
        from scipy.linalg import cho_factor

        rng = np.random.default_rng(0)
        n = len(roots)
        F = np.zeros((rank, n), np.float32)  # the transpose: a pivot has a row
        diagonal = roots**2 * columns.diagonal()
        total, done, found = diagonal.sum(), 0, np.inf
        while done < rank and diagonal.sum() > 1e-6 * total > 0 and found > _WORTH_A_PIVOT * shift:
            size = min(_PIVOTS_AT_ONCE, rank - done)
            drawn = rng.choice(n, size, p=diagonal / diagonal.sum())
            group.broadcast(drawn, source=0)  # all workers count the same columns
            chosen = np.unique(drawn)
            new = F[done : done + len(chosen)]
            _add_pivots(columns.of(chosen), roots.astype(np.float32), chosen, F[:done], new)
            taken = np.einsum("ij,ij->j", new, new, dtype=np.float64)
            diagonal, found = np.maximum(diagonal - taken, 0.0), float(taken.sum()) / len(chosen)
            done += len(chosen)
        self._F = F[:done]
        with all_blas_threads():
            inner = (self._F @ self._F.T).astype(np.float64)
        self.shift = shift + max(0.0, float(np.quantile(np.linalg.eigvalsh(inner), _LEFT_OUT)))
        inner[np.diag_indices(done)] += self.shift
        self._inner = cho_factor(inner, lower=True, overwrite_a=True, check_finite=False)

    def apply(self, vector: np.ndarray) -> np.ndarray:
        from scipy.linalg import cho_solve

        inside = cho_solve(self._inner, (self._F @ vector.astype(np.float32)).astype(np.float64), check_finite=False)
        return (vector - self._F.T @ inside.astype(np.float32)) / self.shift


def _add_pivots(rows: np.ndarray, roots: np.ndarray, chosen: np.ndarray, F: np.ndarray, new: np.ndarray) -> None:
    """``new`` (k, n) becomes what the pivots ``chosen`` add to F (done, n); ``rows`` (k, n) are those of H."""
    from scipy.linalg import solve_triangular

    known = np.ascontiguousarray(F[:, chosen].T)
    core = (rows[:, chosen] * roots[chosen] * roots[chosen, None] - known @ known.T).astype(np.float64)
    core[np.diag_indices(len(chosen))] += 1e-6 * max(float(np.trace(core)), 1e-30) / len(chosen)
    inverse = solve_triangular(np.linalg.cholesky(core), np.eye(len(chosen)), lower=True).astype(np.float32)

    def add(span: tuple[int, int]) -> None:
        some = slice(*span)
        rest = rows[:, some] * roots[some]
        rest *= roots[chosen, None]
        rest -= known @ F[:, some]
        new[:, some] = inverse @ rest

    parallel_map(add, ranges(len(roots)), uses_blas=True)


class KernelColumns:
    """Some columns of H at a time, as rows, without the whole of it; valid until the weights move."""

    def __init__(self, engine: Engine):
        self._columns = engine.count_columns()
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
    enough: Callable[[np.ndarray, np.ndarray, np.ndarray], bool],
    max_products: int,
) -> Solved:
    """Solve A z = right for a symmetric positive definite A, given as products, with a preconditioner M⁻¹.

    Begins at ``start``, or at 0, and ends when ``enough(z, r, M⁻¹ r)`` says so, r = right − A z being what is left; the
    first question is about the start. Unlike with conjugate gradients the residual falls in every step, in the norm of
    M⁻¹, so that stopping early is safe. Preconditioned as by Saad (Iterative Methods for Sparse Linear Systems, 6.8).
    """
    products = 0
    if start is None:
        z, r = np.zeros_like(right), right.copy()
    else:
        z, r, products = start.copy(), right - product(start), 1
    y = preconditioner.apply(r)
    if not r.any() or enough(z, r, y):
        return Solved(z, r, products, sound=True)
    p, Ay = y.copy(), product(y)
    Ap, yAy, products = Ay.copy(), float((y * Ay).sum()), products + 1
    while True:
        MAp = preconditioner.apply(Ap)
        curvature = float((Ap * MAp).sum())
        if not (curvature > 0 and yAy > 0):  # rounding has the last word
            return Solved(z, r, products, sound=False)
        alpha = yAy / curvature
        z += alpha * p
        r -= alpha * Ap
        y -= alpha * MAp
        if products >= max_products or enough(z, r, y):
            return Solved(z, r, products, sound=True)
        Ay = product(y)
        products += 1
        before, yAy = yAy, float((y * Ay).sum())
        p = y + yAy / before * p
        Ap = Ay + yAy / before * Ap
