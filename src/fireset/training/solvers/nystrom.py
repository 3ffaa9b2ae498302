"""Gauss–Newton restricted to the gradients of a few centre rows, for many rows.

The weights stay in W₀ + span{∂u(c_j)/∂W}: W = W₀ + J_Mᵀ γ with γ (M, c), for M centres c_j that are drawn from the
rows, where J_M is the Jacobian of the centres at the initial weights. This is Nyström's restriction of kernel
regression, with the network's own tangent kernel (Rudi, Carratino and Rosasco, "FALKON", 2017). With K_nM the kernel
between rows and centres, e = ∂L/∂u, b the curvatures of the loss and D = W − W₀, a round minimizes the objective of
``gauss_newton.py`` over steps J_Mᵀγ:

    (K_Mn B K_nM + ν K_MM) γ = −(K_Mn e + λ J_M D).

The sums over rows, K_Mn B K_nM and K_Mn e, are made in one pass over blocks of rows (``engines/centre_kernel.py``); no
block is kept, and neither the width nor the number of active pairs affects the memory. Each sum is M × M or M × c
numbers, whatever the number of rows. With L Lᵀ = K_MM and γ = L⁻ᵀ z the system is (L⁻¹ K_Mn B K_nM L⁻ᵀ + ν) z =
−L⁻¹(…).

Three approximations, none of which affects the reported loss, which is that of the returned weights:

1. The optimum is that over the span of the centres' gradients.
2. The kernel is that of the initial weights. With a large output scale κ hardly any pair changes state. The trust ratio
   of the round shows whether it does.
3. The kernel between different outputs is 0 at an orthogonal start. At other starts its entries are noise of order
   1/√m: the matrix leaves them out, and the gradient J_M Jᵀe includes them, by a dense pass over all pairs, so that
   further rounds converge to the optimum over the span.
"""

from typing import Any

import numpy as np

from fireset._util.checks import whole_number
from fireset._util.cholesky import cholesky_solve, cholesky_with_jitter
from fireset._util.errors import InputError
from fireset._util.parallel import parallel_map
from fireset.engines.centre_kernel import BLOCK_ROWS, CentreKernel
from fireset.engines.registry import REFERENCE, create
from fireset.network import ShiftedReLUNetwork
from fireset.training.run import Run
from fireset.training.solvers.gauss_newton import GaussNewton, _Point, _Proposal, choose_ridge

CENTRES, SHARED_CENTRES = 1600, 3200  # default for one output, and for several, which share the sums over the rows
_GRAM_TILE = 512  # largest number of centres of a tile of K_Mn B K_nM that one task adds to
_SPLIT_ROWS = 512  # rows of a block that one task splits
_LARGE_DIRECTIONS = 16  # directions of the centres that are summed in float64
_POWER_STEPS = 4  # orthogonal iterations that find these directions
_DEPENDENT_EPS = 32.0  # times eps of float32 and the largest diagonal entry: below, a centre depends on others
_MAX_SYSTEMS = 16  # outputs with curvatures of their own; with more, all use the largest curvature of a row
_NEGLIGIBLE_GAIN = 0.3  # of ``tol`` of the objective: gain of a further round, estimated at the centres


class NystromGaussNewton(GaussNewton):
    """Gauss–Newton over the span of the centres' gradients.

    Parameters
    ----------
    ridge, tol
        As for ``GaussNewton``. "auto" chooses the ridge by leave-one-out on the centres.
    centres : int, optional
        Largest number M of centres, by default 1,600 for one output and 3,200 for several. They are drawn from the
        rows, with probabilities proportional to sample weights. A pass costs 2·m·d + M·m/512 + M² operations for each
        row; memory is that of a few M × M matrices.

    Attributes
    ----------
    n_centres : int
        Number of centres in use, whose gradients are linearly independent.
    passes : int
        Number of passes over the rows so far.
    """

    name = "nystrom"
    uses_centres = True
    label = "Gauss–Newton on centres"
    forward_only = True
    chooses_output_scale = False
    shares_rows = False

    def __init__(self, ridge: float | str = "auto", tol: float = 1e-3, centres: int | None = None):
        super().__init__(ridge, tol)
        self._given_centres = None if centres is None else whole_number("centres", centres, 1)
        self.n_centres = self.passes = 0

    def _reset(self, run: Run) -> None:
        super()._reset(run)
        if run.group.size > 1:
            raise InputError(
                f"solver='nystrom' needs a single process, got {run.group.size} workers; use solver='gauss-newton'"
            )
        network, problem = run.network, run.problem
        weight = problem.weight
        count = min(self._max_centres(network), np.count_nonzero(weight))
        drawn = np.random.default_rng(0).choice(len(weight), count, replace=False, p=weight / weight.sum())
        start = ShiftedReLUNetwork(
            self._initial_weights, network.output_weights, network.threshold, network.output_scale
        )
        self._kernel = CentreKernel(start, problem.X[drawn])
        independent, self._factor = _independent(self._kernel.matrix)
        self._kernel.keep(independent)
        self._centres, self.n_centres = drawn[independent], len(independent)
        self._directions = _large_directions(self._kernel.matrix)
        # Σ f over all rows is estimated by Σ f/weight over the centres, times this number.
        self._rows_per_centre = float(weight.sum()) / max(self.n_centres, 1)
        self._centre_engine = create(REFERENCE)  # J_M and its transpose, at the initial weights
        self._centre_engine.start(start, self._kernel.centres)
        by_copy = network.output_weights.reshape(self._kernel.copies, -1, network.n_outputs)
        self._zero_at_start = not by_copy.sum(axis=0).any()
        products = np.einsum("qrk,qrl->rkl", by_copy, by_copy)
        self._decoupled = bool((products == len(by_copy) * np.eye(network.n_outputs)).all())
        if not self._decoupled:
            self._row_engine = create(REFERENCE, forward_only=True)  # Jᵀ of all rows, at the initial weights
            self._row_engine.start(start, problem.X)
        self._systems: list[_System] = []
        self._system_roots = np.empty((0, 0))
        self._expected: np.ndarray | None = None  # ∂L/∂u at the centres that the last round predicts

    def _max_centres(self, network: ShiftedReLUNetwork) -> int:
        return self._given_centres or (CENTRES if network.n_outputs == 1 else SHARED_CENTRES)

    def _choose_ridge(self) -> float:
        """Choose the ridge on the centres. All have one weight: they were drawn in proportion to theirs."""
        problem = self.run.problem
        if not self.n_centres:
            return 1.0
        weight = np.full(self.n_centres, float(problem.weight[problem.weight > 0].mean()))
        kernel = (self._kernel.matrix * self._kernel.unit).astype(self.run.network.dtype)
        start, targets = self._centre_engine.forward(), problem.targets[self._centres]
        found = choose_ridge(kernel, self.run.loss, start, targets, weight)
        self.leave_one_out_error = found.error
        return found.ridge

    def predictions(self) -> np.ndarray | None:
        """Return zeros where copies of neurons cancel, as at an antisymmetric start, else None.

        Zeros need no forward pass.
        """
        run = self.run
        if not (self._zero_at_start and np.array_equal(run.network.weights, self._initial_weights)):
            return None
        run.engine.work.active_pairs = round(self._kernel.active_per_centre * len(run.problem.X))
        return np.zeros((len(run.problem.X), run.network.n_outputs))

    def _move(self, point: _Point) -> None:
        if self._gain_is_negligible(point):
            self.converged = True
        else:
            super()._move(point)

    def _gain_is_negligible(self, point: _Point) -> bool:
        """Estimate at the centres what a further round would gain, without a pass over the rows.

        The last round made the gradient over the span 0 for residuals e₁ of the linearized network. With the residuals
        e of the network itself, a further round gains at most ½ Σ (e − e₁)²/b.
        """
        if self._expected is None:
            return False
        run, rows = self.run, self._centres
        weight = run.problem.weight[rows]
        targets, u = run.problem.targets[rows], point.predictions[rows]
        b = np.maximum(run.loss.curvatures(u, targets, weight), 1e-300)
        gain = 0.5 * ((point.residual[rows] - self._expected) ** 2 / b).sum(axis=1) @ (1.0 / weight)
        return float(gain) * self._rows_per_centre <= _NEGLIGIBLE_GAIN * self._tol * point.objective

    def _propose(self, point: _Point, *, strict: bool = False) -> _Proposal:  # noqa: ARG002 - systems are factored
        run, unit, L = self.run, self._kernel.unit, self._factor
        ridge, shift = self._ridge / unit, (self._ridge + self._damping) / unit
        curvatures = run.loss.curvatures(point.predictions, run.problem.targets, run.problem.weight)
        gradient = self._sum_rows(point.residual, np.sqrt(curvatures))
        gradient += ridge * self._centre_engine.jacobian_product(run.network.weights - self._initial_weights)
        right = _solve(L, gradient)
        z, reduction = np.empty_like(right), 0.0
        for k in range(right.shape[1]):
            system = self._systems[min(k, len(self._systems) - 1)]
            z[:, k] = system.solve(right[:, k], shift)
            reduction += float(z[:, k] @ right[:, k]) - 0.5 * system.square(z[:, k], ridge)
        change = -L @ z  # of the outputs of the centres
        self._expected = point.residual[self._centres] + curvatures[self._centres] * change
        if self._damping:
            self._expected = None
        else:
            self.predicted_reduction = reduction / point.objective if point.objective > 0 else 0.0
        neurons, rows = self._centre_engine.gradient(_solve(L, z, transposed=True) / unit)
        new = run.network.weights.copy()
        new[neurons] -= rows
        return _Proposal(new, None, reduction, solved=True)

    def _sum_rows(self, residual: np.ndarray, roots: np.ndarray) -> np.ndarray:
        """Return J_M Jᵀe, (M, c), and make the systems of K_Mn B K_nM anew if the curvatures have changed.

        If outputs are not coupled, the first is K_Mn e, and one pass over the rows makes both sums.
        """
        count, outputs = self.n_centres, residual.shape[1]
        if (roots == roots[:, :1]).all():
            roots = roots[:, :1]
        elif outputs > _MAX_SYSTEMS:
            roots = roots.max(axis=1, keepdims=True)
        unchanged = bool(self._systems) and np.array_equal(roots, self._system_roots)
        gradient = np.zeros((count, outputs))
        grams = [] if unchanged else [_GramSum(self._directions) for _ in roots.T]
        if not self._decoupled:
            directions = np.zeros_like(self._initial_weights)
            neurons, sums = self._row_engine.gradient(residual)
            directions[neurons] = sums
            gradient = self._centre_engine.jacobian_product(directions) / self._kernel.unit
        sums = {"gradient": gradient}
        sums |= {f"{name}{k}": array for k, gram in enumerate(grams) for name, array in gram.sums.items()}
        path, first = None, 0
        if self.pass_state is not None:
            inputs = {"weights": self.run.network.weights, "residual": residual, "roots": roots}
            path, first = self.pass_state.resume(inputs | {"centres": self._centres}, sums)
        for rows, K in self._kernel.blocks(self.run.problem.X, first) if self._decoupled or grams else ():
            P = _split(K, self._directions)
            if self._decoupled:
                gradient += K.T @ residual[rows].astype(K.dtype)
                gradient += self._directions @ (P.T.astype(np.float64) @ residual[rows])
            for k, gram in enumerate(grams):
                gram.add(K, P, roots[rows, k])
            if self.pass_state is not None and path is not None:
                self.pass_state.save(path, rows.stop, sums)
        self.passes += 1
        if not unchanged:
            self._systems = []  # frees the memory of the old ones first
            self._systems = [_System(gram.total(), self._factor) for gram in grams]
            self._system_roots = roots
        return gradient

    # Reports, memory and checkpoints

    def details(self) -> dict[str, Any]:
        own = {"centres": self.n_centres, "passes": self.passes}
        return {name: value for name, value in super().details().items() if name != "products"} | own

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"centres": self._given_centres}

    def extra_bytes(self, network: ShiftedReLUNetwork, n_samples: int) -> float:
        """Return the memory of copies of the weights, M × M matrices, and a block of the kernel with a scaled copy."""
        count, systems = min(self._max_centres(network), n_samples), min(network.n_outputs, _MAX_SYSTEMS)
        matrices = 8.0 * count**2 * (6 + 2 * systems)
        block = 3.0 * min(BLOCK_ROWS, n_samples) * count * network.dtype.itemsize
        return 6.0 * network.weights.nbytes + count * network.width + matrices + block

    def spare_bytes(self, network: ShiftedReLUNetwork, n_samples: int, free: float) -> float:  # noqa: ARG002
        return 0.0

    def drop_caches(self) -> None:
        super().drop_caches()
        self._systems, self._expected = [], None


class _System:
    """The matrix L⁻¹ K_Mn B K_nM L⁻ᵀ + ν of one output or of all; the factor of the last ν is kept."""

    def __init__(self, gram: np.ndarray, L: np.ndarray):
        """``gram`` is K_Mn B K_nM, of which the lower triangle is read. Cost 2 M³."""
        symmetric = np.tril(gram) + np.tril(gram, -1).T
        inner = _solve(L, _solve(L, symmetric).T)
        self._matrix = (inner + inner.T) / 2
        self._factor, self._shift = np.empty((0, 0)), -1.0

    def solve(self, right: np.ndarray, shift: float) -> np.ndarray:
        """Solve for a right side (M,). Rounding of float32 may leave the matrix indefinite for a tiny ν."""
        if shift != self._shift:
            self._factor, _ = cholesky_with_jitter(lambda: self._matrix + shift * np.eye(len(self._matrix)))
            self._shift = shift
        return cholesky_solve(self._factor, right[:, None])[:, 0]

    def square(self, z: np.ndarray, ridge: float) -> float:
        """Return z·(L⁻¹ K_Mn B K_nM L⁻ᵀ + λ) z."""
        return float(z @ (self._matrix @ z)) + ridge * float(z @ z)


class _GramSum:
    """The sum K_Mn B K_nM over blocks of rows, with products in the precision of K and sums in float64.

    All entries of K are positive and similar if all rows are similar, as with a large bias coordinate. Products in
    float32 then round away the differences, which L⁻¹ enlarges. A few directions U of the centres, (M, r) with UᵀU = 1,
    have nearly all of K. Without them K is R = K − P Uᵀ, P = K U, with small entries, and

        Kᵀ B K = Rᵀ B R + (Rᵀ B P) Uᵀ + U (Rᵀ B P)ᵀ + U (Pᵀ B P) Uᵀ,

    in which only Rᵀ B R is computed in float32. Any U gives the same sum up to rounding.
    """

    def __init__(self, directions: np.ndarray):
        count, few = directions.shape
        self._directions = directions
        self._rest, self._cross, self._core = np.zeros((count, count)), np.zeros((count, few)), np.zeros((few, few))

    @property
    def sums(self) -> dict[str, np.ndarray]:
        """The sums so far, which a checkpoint stores."""
        return {"rest": self._rest, "cross": self._cross, "core": self._core}

    def add(self, R: np.ndarray, P: np.ndarray, roots: np.ndarray) -> None:
        """Add a block of rows, R (k, M) and P (k, r), with curvatures roots² (k,).

        Tasks divide the sums, so that the result does not depend on the number of threads.
        """
        scaled = R * roots[:, None].astype(R.dtype)
        large = P * roots[:, None]
        count = len(self._rest)
        tiles = _tiles(count)

        def add(tile: tuple[slice, slice | None]) -> None:
            rows, columns = tile
            if columns is None:
                self._cross[rows] += scaled[:, rows].T.astype(np.float64) @ large
            else:
                self._rest[rows, columns] += scaled[:, rows].T @ scaled[:, columns]

        pairs = [(rows, columns) for k, rows in enumerate(tiles) for columns in (*tiles[: k + 1], None)]
        parallel_map(add, pairs, uses_blas=True)
        self._core += large.T @ large

    def total(self) -> np.ndarray:
        """Return the sum, (M, M), of which the lower triangle is valid. The parts are not kept."""
        U, total = self._directions, self._rest
        mixed = (self._cross + 0.5 * U @ self._core) @ U.T
        total += mixed
        total += mixed.T
        return total


def _tiles(count: int) -> list[slice]:
    """Divide ``count`` centres into slices of nearly equal size."""
    parts = max(1, -(-count // _GRAM_TILE))
    return [slice(count * k // parts, count * (k + 1) // parts) for k in range(parts)]


def _large_directions(matrix: np.ndarray) -> np.ndarray:
    """Return orthonormal directions of the largest eigenvalues of K_MM, (M, r), by orthogonal iteration."""
    few = min(_LARGE_DIRECTIONS, len(matrix))
    U = np.random.default_rng(0).standard_normal((len(matrix), few))
    for _ in range(_POWER_STEPS):
        U = np.linalg.qr(matrix @ U)[0]
    return U


def _split(K: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Replace a block K (k, M) by R = K − P Uᵀ and return P = K U, (k, r), both in the precision of K."""
    U = directions.astype(K.dtype)
    P = np.empty((len(K), U.shape[1]), K.dtype)

    def split(lo: int) -> None:
        rows = slice(lo, lo + _SPLIT_ROWS)
        P[rows] = K[rows] @ U
        K[rows] -= P[rows] @ U.T

    parallel_map(split, range(0, len(K), _SPLIT_ROWS), uses_blas=True)
    return P


def _independent(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of independent centres and the Cholesky factor L of their kernel, (k, k).

    Pivoted Cholesky: centres whose remaining diagonal entry is below the rounding of float32 are left out, such as
    copies of others and centres without an active neuron. Cost M³/3.
    """
    from scipy.linalg import get_lapack_funcs

    least = _DEPENDENT_EPS * float(np.finfo(np.float32).eps) * float(matrix.diagonal().max())
    if not least > 0:
        return np.empty(0, np.int64), np.empty((0, 0))
    (pstrf,) = get_lapack_funcs(("pstrf",), (matrix,))
    factor, order, count, _ = pstrf(matrix, tol=least, lower=1)
    return order[:count] - 1, np.tril(factor[:count, :count])


def _solve(L: np.ndarray, right: np.ndarray, *, transposed: bool = False) -> np.ndarray:
    """Solve L Z = right, or Lᵀ Z = right."""
    from scipy.linalg import solve_triangular

    return solve_triangular(L, right, lower=True, trans=1 if transposed else 0)
