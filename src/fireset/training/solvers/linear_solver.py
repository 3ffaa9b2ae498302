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
    KernelColumns,
    OutputPreconditioner,
    PartialCholeskyPreconditioner,
    Preconditioner,
    ScaledOutputLayer,
    SharedPreconditioner,
    tangent_kernel,
    whole_preconditioner,
)

MAX_PRODUCTS = 60  # tangent products for one linear system
_REFACTOR_PRODUCTS = 40  # after which the kernel and its factor are computed again
FULL_CHOLESKY_ROWS = 2500  # up to which the whole kernel is always factored
_MAX_CHOLESKY_ROWS = 6000  # up to which it is factored for a small ν; beyond, n³/3 costs more than it saves
_SMALL_SHIFT = 0.005  # ν relative to the mean diagonal, below which a partial factor needs many products
_SMALL_REUSED_SHIFT = 0.05  # that for losses with many systems, which share the whole kernel
_MAX_PIVOTS = 1200  # of a partial factor
# A preconditioner is made again if the curvatures of enough rows have changed. Default fits of quantiles with these
# values and with (0.35, 0.1), processor time: 2.2 and 5.2 s (600 rows), 18 and 38 s (2,000), friedman1, 2026-11-18.
_REWEIGHTED_CHANGE = 0.1  # of log √b: b changed by a fifth,
_REWEIGHTED_SHARE = 0.02  # of the rows with such a change


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
    """The matrix R J Jᵀ R + ν at the current weights. With ``outputs``, J Jᵀ is the kernel of both layers."""

    def __init__(self, engine: Engine, roots: np.ndarray, shift: float, outputs: ScaledOutputLayer | None = None):
        self._product = engine.tangent_operator()
        self.roots, self.shift, self._outputs = roots, shift, outputs

    def apply(self, vector: np.ndarray) -> np.ndarray:
        weighted = self.roots * vector
        product = self._product(weighted)
        if self._outputs is not None:
            product = product + self._outputs.factor * self._outputs.layer.tangent_product(weighted)
        return self.roots * product + self.shift * vector


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

    Parameters
    ----------
    output_factor : float
        s², the factor of the kernel of the output layer; 0 if only the weights are trained.

    Attributes
    ----------
    dual : (n, c) array or None
        δ = R z of the last system, where the next one starts.
    reached_limit : bool
        Whether the last system stopped at ``MAX_PRODUCTS``.
    separate_outputs : bool
        Whether each output has a preconditioner of its own.
    """

    def __init__(self, run: Run, output_factor: float = 0.0):
        self._run, self._shares, self._output_factor = run, run.problem.shares, output_factor
        self._outputs: ScaledOutputLayer | None = None
        self.dual: np.ndarray | None = None
        self.reached_limit = False
        self.separate_outputs = run.loss.outputs_per_target > 1
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
        self._preconditioner = self._kernel = self._columns = self._outputs = self.dual = None

    def weights_moved(self) -> None:
        """Drop the columns of the kernel and the output layer, which are valid for the current weights only."""
        self._columns = self._outputs = None

    def output_layer(self) -> ScaledOutputLayer | None:
        """Return the output layer at the current weights; None if it is not trained."""
        if self._outputs is None and self._output_factor:
            squares = np.square(self._run.network.output_weights, dtype=np.float64)
            total, count = self._run.shard.group.all_reduce_exact(np.array([squares.sum(), squares.size]))[0]
            layer = self._run.engine.output_layer()
            self._outputs = ScaledOutputLayer(layer, self._output_factor, float(total / count))
        return self._outputs

    def system(self, roots: np.ndarray, shift: float) -> KernelSystem:
        """Return the system at the current weights."""
        return KernelSystem(self._run.engine, roots, shift, self.output_layer())

    def solve(self, system: KernelSystem, right: np.ndarray, enough: StoppingTest) -> Solution:
        """Solve (R J Jᵀ R + ν) z = right, starting from the last solution."""
        if self._preconditioner is None or self._reweighted_share(system.roots) > _REWEIGHTED_SHARE:
            self._preconditioner = self._make_preconditioner(system)
        start = None if self.dual is None else divided(self.dual, system.roots)
        solution = conjugate_residuals(
            system.apply, self._preconditioner, right, start=start, enough=enough, dot=self._shares.dot
        )
        self.dual = system.roots * solution.z
        self.reached_limit = solution.products >= MAX_PRODUCTS
        # A new partial factor would be no better than the old one, unless it is for other curvatures.
        if solution.products > _REFACTOR_PRODUCTS and (
            self._kernel is not None or self._reweighted_share(system.roots) > 0.0
        ):
            self._preconditioner = self._kernel = None
        few_rows = self._run.problem.n_rows <= FULL_CHOLESKY_ROWS
        several = self._run.network.n_outputs > 1 and few_rows  # else they need much memory
        if self.reached_limit and several and not self.separate_outputs:
            self.separate_outputs, self._preconditioner = True, None
        return solution

    def kernel_block(self, rows: np.ndarray) -> np.ndarray:
        """Return the kernel of some rows, ascending, (k, k); only the lower triangle is valid.

        Rows are given by number in ``problem.shares``. Where workers share the rows, the result of the first is valid.
        """
        if self._run.problem.n_rows <= FULL_CHOLESKY_ROWS and self._kernel_fits():
            kernel = self._whole_kernel()
            return kernel[np.ix_(rows, rows)] if len(kernel) else kernel
        return self._kernel_columns().submatrix(rows)

    def _reweighted_share(self, roots: np.ndarray) -> float:
        """Return the share of the rows whose curvatures have changed much since the preconditioner was made."""
        made = self._preconditioner_roots
        changes = np.abs(np.log(np.divide(roots, made, out=np.ones_like(roots), where=(roots > 0) & (made > 0))))
        changed, size = self._shares.totals(float((changes > _REWEIGHTED_CHANGE).sum()), changes.size)
        return changed / size

    def _make_preconditioner(self, system: KernelSystem) -> Preconditioner:
        """Make a preconditioner from the kernel, which may be a few iterations old: it hardly changes.

        One for all outputs, with the mean of their curvatures. One for each output if they share a target, as quantiles
        do, or if a common one did not suffice.
        """
        group, shares, n = self._run.shard.group, self._shares, self._run.problem.n_rows
        roots, shift = system.roots, system.shift
        self._preconditioner_roots, mean = roots, np.sqrt(np.mean(roots**2, axis=1))
        whole = (n <= FULL_CHOLESKY_ROWS or self._is_small(shift, mean)) and self._kernel_fits()

        def factor(row_roots: np.ndarray) -> Preconditioner:
            if whole:
                return whole_preconditioner(self._whole_kernel(), row_roots, shift, shares, group)
            rank = min(_MAX_PIVOTS, n)
            return PartialCholeskyPreconditioner(self._kernel_columns(), row_roots, shift, rank, group, shares)

        made = OutputPreconditioner([factor(column) for column in roots.T]) if self.separate_outputs else factor(mean)
        self._columns = None
        return made if group.size == 1 else SharedPreconditioner(made, group)

    def _is_small(self, shift: float, roots: np.ndarray) -> bool:
        (total,) = self._shares.totals(float((roots**2 * self._kernel_columns().diagonal()).sum()))
        least = _SMALL_SHIFT if self._run.loss.is_squared_error else _SMALL_REUSED_SHIFT
        return shift < least * total / self._run.problem.n_rows

    def _kernel_fits(self) -> bool:
        """Return whether all workers can and should factor the whole kernel."""
        network, n = self._run.network, self._run.problem.n_rows
        factors = network.n_outputs if self.separate_outputs else 1
        return self._run.group.all_true(kernel_fits(n, network, free_bytes(self._run.memory), factors))

    def _whole_kernel(self) -> np.ndarray:
        """Return the kernel of all rows; where workers share the rows, on the first worker only, else empty."""
        dtype = self._run.network.dtype.type
        if self._kernel is None and self._shares.group.size == 1:
            self._kernel = tangent_kernel(self._run.engine, self.output_layer(), dtype)
        elif self._kernel is None:
            own = self._kernel_columns().of(np.arange(self._run.problem.n_rows), dtype)
            leads = self._run.shard.group.rank == 0  # of the workers with the same rows
            gathered = self._shares.gather(own.T) if leads else own
            self._kernel = gathered if self._run.group.rank == 0 else np.empty((0, 0), dtype)
        return self._kernel

    def _kernel_columns(self) -> KernelColumns:
        if self._columns is None:
            self._columns = KernelColumns(self._run.engine, self._shares, self.output_layer())
        return self._columns


def conjugate_residuals(
    product: Callable[[np.ndarray], np.ndarray],
    preconditioner: Preconditioner,
    right: np.ndarray,
    *,
    start: np.ndarray | None,
    enough: StoppingTest,
    max_products: int = MAX_PRODUCTS,
    dot: Callable[[np.ndarray, np.ndarray], float] = lambda first, second: float((first * second).sum()),
) -> Solution:
    """Solve A z = right for a symmetric positive definite A, given as products, with a preconditioner M⁻¹.

    Starts at ``start``, or at 0, and ends when ``enough(z, r, y, yAy)`` is true, with the residual r = right − A z and
    y = M⁻¹ r. The test is called twice for each z, including the start: with yAy = None, and one product later with
    yAy = y·A y. Unlike with conjugate gradients, the residual decreases in every step in the norm of M⁻¹, so that an
    early stop is safe. Preconditioned as by Saad (Iterative Methods for Sparse Linear Systems, 6.8).

    Where workers share the rows, vectors are those of this worker's rows, and ``dot`` is the inner product over all
    rows, with equal bits on all workers.
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
    Ap, yAy, products = Ay.copy(), dot(y, Ay), products + 1
    if not dot(r != 0, r != 0) or (yAy > 0 and enough(z, r, y, yAy)):
        return Solution(z, r, products, sound=True)
    while True:
        MAp = preconditioner.apply(Ap)
        curvature = dot(Ap, MAp)
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
        before, yAy = yAy, dot(y, Ay)
        if yAy > 0 and enough(z, r, y, yAy):
            return Solution(z, r, products, sound=True)
        p = y + yAy / before * p
        Ap = Ay + yAy / before * Ap
