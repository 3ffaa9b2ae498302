"""The linear systems of Gauss–Newton: conjugate residuals, and the choice and reuse of a preconditioner.

All constants of the cost model (when to factor the whole kernel, part of it, or again) are at the top of this file.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fireset.engines.base import Engine
from fireset.network import ShiftedReLUNetwork
from fireset.training.memory import free_bytes
from fireset.training.run import Run
from fireset.training.solvers.preconditioners import (
    CholeskyPreconditioner,
    KernelColumns,
    OutputPreconditioner,
    PartialCholeskyPreconditioner,
    Preconditioner,
    SharedPreconditioner,
    tangent_kernel,
)

MAX_PRODUCTS = 60  # tangent products for one linear system
_REFACTOR_PRODUCTS = 40  # after which the kernel and its factor are computed again
_FULL_CHOLESKY_ROWS = 2500  # up to which the whole kernel is always factored
_MAX_CHOLESKY_ROWS = 6000  # up to which it is factored for a small ν; beyond, n³/3 costs more than it saves
_SMALL_SHIFT = 0.05  # ν relative to the mean diagonal, below which a partial factor needs many products
_MAX_PIVOTS = 1200  # of a partial factor
_REWEIGHTED_QUANTILE = 0.9  # of the changes of log √b since the preconditioner was made,
_REWEIGHTED_CHANGE = 0.35  # above which it is made again: b changed by a factor of two for many rows


def partial_factor_bytes(n_samples: int) -> float:
    """Return the memory of a partial factor in float32 and of its computation."""
    return 7.0 * n_samples * min(_MAX_PIVOTS, n_samples)


def kernel_bytes(n_samples: int, network: ShiftedReLUNetwork, factors: int = 1) -> float:
    """Return the memory of the whole kernel and of its factors (one for each output that has its own)."""
    return (1.1 + factors) * n_samples * n_samples * network.dtype.itemsize


def kernel_fits(n_samples: int, network: ShiftedReLUNetwork, free: float, factors: int = 1) -> bool:
    """Return whether the whole kernel fits into memory and is worth factoring."""
    return n_samples <= _MAX_CHOLESKY_ROWS and kernel_bytes(n_samples, network, factors) < 0.5 * free


class KernelSystem:
    """The matrix R J Jᵀ R + ν at the current weights."""

    def __init__(self, engine: Engine, roots: np.ndarray, shift: float):
        self._product = engine.tangent_operator()
        self.roots, self.shift = roots, shift

    def apply(self, vector: np.ndarray) -> np.ndarray:
        return self.roots * self._product(self.roots * vector) + self.shift * vector


def divided(vector: np.ndarray, roots: np.ndarray) -> np.ndarray:
    """Return ``vector``/``roots``, and 0 where the root is 0."""
    return np.divide(vector, roots, out=np.zeros_like(roots), where=roots > 0)


class Solution(NamedTuple):
    """Result of ``conjugate_residuals``."""

    z: np.ndarray
    residual: np.ndarray  # right − A z
    products: int
    sound: bool  # whether A and M⁻¹ were positive throughout


# enough(z, r, y, yAy): whether to stop. See ``conjugate_residuals``.
StoppingTest = Callable[[np.ndarray, np.ndarray, np.ndarray, float | None], bool]


class LinearSolver:
    """Solves the systems of successive iterations, and reuses kernel, preconditioner and last solution.

    Attributes
    ----------
    dual : (n, c) array or None
        δ = R z of the last system, where the next one starts.
    reached_limit : bool
        Whether the last system stopped at ``MAX_PRODUCTS``.
    """

    def __init__(self, run: Run):
        self._run = run
        self.dual: np.ndarray | None = None
        self.reached_limit = False
        self._separate_outputs = run.loss.outputs_per_target > 1
        self._preconditioner: Preconditioner | None = None
        self._preconditioner_roots = np.empty((0, 0))
        self._kernel: np.ndarray | None = None
        self._columns: KernelColumns | None = None

    @property
    def has_history(self) -> bool:
        """Whether the next system would reuse results of earlier ones."""
        return self._preconditioner is not None or self.dual is not None

    def drop_preconditioner(self) -> None:
        self._preconditioner = None

    def drop_caches(self) -> None:
        """Start the next system without results of earlier ones."""
        self._preconditioner = self._kernel = self._columns = self.dual = None

    def weights_moved(self) -> None:
        """Drop the columns of the kernel, which are valid for the current weights only."""
        self._columns = None

    def solve(self, system: KernelSystem, right: np.ndarray, enough: StoppingTest) -> Solution:
        """Solve (R J Jᵀ R + ν) z = right, starting from the last solution."""
        if self._preconditioner is None or self._is_reweighted(system.roots):
            self._preconditioner = self._make_preconditioner(system)
        start = None if self.dual is None else divided(self.dual, system.roots)
        solution = conjugate_residuals(system.apply, self._preconditioner, right, start=start, enough=enough)
        self.dual = system.roots * solution.z
        self.reached_limit = solution.products >= MAX_PRODUCTS
        if solution.products > _REFACTOR_PRODUCTS and self._kernel is not None:
            self._preconditioner = self._kernel = None  # a new partial factor would be no better than the old one
        several = self._run.network.n_outputs > 1 and len(right) <= _FULL_CHOLESKY_ROWS  # else they need much memory
        if self.reached_limit and several and not self._separate_outputs:
            self._separate_outputs, self._preconditioner = True, None
        return solution

    def kernel_block(self, rows: np.ndarray) -> np.ndarray:
        """Return the kernel of some rows, ascending, (k, k); only the lower triangle is valid."""
        if len(self._run.problem.X) <= _FULL_CHOLESKY_ROWS and self._kernel_fits():
            return self._whole_kernel()[np.ix_(rows, rows)]
        return self._kernel_columns().submatrix(rows)

    def _is_reweighted(self, roots: np.ndarray) -> bool:
        """Return whether the curvatures of many rows have changed much since the preconditioner was made."""
        made = self._preconditioner_roots
        changes = np.abs(np.log(np.divide(roots, made, out=np.ones_like(roots), where=(roots > 0) & (made > 0))))
        return float(np.quantile(changes, _REWEIGHTED_QUANTILE)) > _REWEIGHTED_CHANGE

    def _make_preconditioner(self, system: KernelSystem) -> Preconditioner:
        """Make a preconditioner from the kernel, which may be a few iterations old: it hardly changes.

        One for all outputs, with the mean of their curvatures. One for each output if they share a target, as quantiles
        do, or if a common one did not suffice.
        """
        group, roots, shift, n = self._run.group, system.roots, system.shift, len(system.roots)
        self._preconditioner_roots, mean = roots, np.sqrt(np.mean(roots**2, axis=1))
        whole = (n <= _FULL_CHOLESKY_ROWS or self._is_small(shift, mean)) and self._kernel_fits()

        def factor(row_roots: np.ndarray) -> Preconditioner:
            if whole:
                return CholeskyPreconditioner(self._whole_kernel(), row_roots, shift)
            return PartialCholeskyPreconditioner(self._kernel_columns(), row_roots, shift, min(_MAX_PIVOTS, n), group)

        made = OutputPreconditioner([factor(column) for column in roots.T]) if self._separate_outputs else factor(mean)
        self._columns = None
        return made if group.size == 1 else SharedPreconditioner(made, group)

    def _is_small(self, shift: float, roots: np.ndarray) -> bool:
        return shift < _SMALL_SHIFT * float(np.mean(roots**2 * self._kernel_columns().diagonal()))

    def _kernel_fits(self) -> bool:
        """Return whether all workers can and should factor the whole kernel."""
        network, n = self._run.network, len(self._run.problem.X)
        factors = network.n_outputs if self._separate_outputs else 1
        return self._run.group.all_true(kernel_fits(n, network, free_bytes(self._run.memory), factors))

    def _whole_kernel(self) -> np.ndarray:
        if self._kernel is None:
            self._kernel = tangent_kernel(self._run.engine, dtype=self._run.network.dtype.type)
        return self._kernel

    def _kernel_columns(self) -> KernelColumns:
        if self._columns is None:
            self._columns = KernelColumns(self._run.engine)
        return self._columns


def conjugate_residuals(
    product: Callable[[np.ndarray], np.ndarray],
    preconditioner: Preconditioner,
    right: np.ndarray,
    *,
    start: np.ndarray | None,
    enough: StoppingTest,
    max_products: int = MAX_PRODUCTS,
) -> Solution:
    """Solve A z = right for a symmetric positive definite A, given as products, with a preconditioner M⁻¹.

    Starts at ``start``, or at 0, and ends when ``enough(z, r, y, yAy)`` is true, with the residual r = right − A z and
    y = M⁻¹ r. The test is called twice for each z, including the start: with yAy = None, and one product later with
    yAy = y·A y. Unlike with conjugate gradients, the residual decreases in every step in the norm of M⁻¹, so that an
    early stop is safe. Preconditioned as by Saad (Iterative Methods for Sparse Linear Systems, 6.8).
    """
    products = 0
    if start is None:
        z, r = np.zeros_like(right), right.copy()
    else:
        z, r, products = start.copy(), right - product(start), 1
    y = preconditioner.apply(r)
    if enough(z, r, y, None):
        return Solution(z, r, products, sound=True)
    p, Ay = y.copy(), product(y)
    Ap, yAy, products = Ay.copy(), float((y * Ay).sum()), products + 1
    if not r.any() or (yAy > 0 and enough(z, r, y, yAy)):
        return Solution(z, r, products, sound=True)
    while True:
        MAp = preconditioner.apply(Ap)
        curvature = float((Ap * MAp).sum())
        if not (curvature > 0 and yAy > 0):  # rounding dominates
            return Solution(z, r, products, sound=False)
        alpha = yAy / curvature
        z += alpha * p
        r -= alpha * Ap
        y -= alpha * MAp
        if products >= max_products or enough(z, r, y, None):
            return Solution(z, r, products, sound=True)
        Ay = product(y)
        products += 1
        before, yAy = yAy, float((y * Ay).sum())
        if yAy > 0 and enough(z, r, y, yAy):
            return Solution(z, r, products, sound=True)
        p = y + yAy / before * p
        Ap = Ay + yAy / before * Ap
