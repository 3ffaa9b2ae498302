"""Gauss–Newton in function space: a handful of rounds instead of hundreds of steps.

The objective is L(u) + (λ/2) ‖W − W₀‖², a ridge towards the start. With J = ∂u/∂W as the fire sets have it, e = ∂L/∂u,
b the curvatures of the loss in u (1 for squared error) and D = W − W₀, a round moves W by the Δ that minimizes

    Σ e·JΔ + ½ Σ b (JΔ)² + (λ/2) ‖D + Δ‖² + (μ/2) ‖Δ‖².

With ν = λ + μ the solution is Δ = −Jᵀδ − (λ/ν) D, where δ solves (J Jᵀ + ν/b) δ = e/b − (λ/ν) J D: n·c unknowns,
however many neurons there are. In δ = R z, R = √b, the matrix is R J Jᵀ R + ν (``kernel_solve.py``).

J Jᵀ for one output is the kernel H(t) of the paper. That few such rounds train an over-parameterized network is proved
by Brand, Peng, Song and Weinstein ("Training (Overparametrized) Neural Networks in Near-Linear Time", ITCS 2021);
docs/solvers.md says which of their steps are run here.

μ is Levenberg–Marquardt damping: a round that did not give a tenth of its promise has the next one damped more, and one
that gave nothing is taken back. Training ends when a round promises less than ``tol`` of the objective.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from fireset._util.checks import is_number
from fireset._util.errors import InputError
from fireset._util.gaussian import upper_tail
from fireset.network import ShiftedReLUNetwork
from fireset.training.history import Iteration
from fireset.training.memory import free_bytes
from fireset.training.solvers.base import Evaluation, Solver, SolverContext
from fireset.training.solvers.choose_ridge import ridge_for_loss
from fireset.training.solvers.kernel_memory import MOST_PIVOTS, kernel_bytes, kernel_fits, partial_bytes
from fireset.training.solvers.kernel_solve import (
    CholeskyPreconditioner,
    KernelColumns,
    KernelSystem,
    OutputPreconditioner,
    PartialCholeskyPreconditioner,
    Preconditioner,
    SharedPreconditioner,
    Solved,
    conjugate_residuals,
    counted_kernel,
    divided,
)

_FEW_ROWS = 2500  # up to which the whole kernel is factored
_SMALL_SHIFT = 0.05  # ν beside the mean diagonal, below which a partial factor leaves many products to be done
_LEFT = 0.3  # of ``tol`` a linear system may leave to be gained
_LOOSE = 0.03  # of what a round gains may be left, where the last one did not keep what it promised
_PATIENCE = 10  # products after which a round that has gained less than ``tol`` is given up
_MOST_PRODUCTS = 60  # for one linear system
_KEPT = 0.1  # of what a round promised, below which it is damped more
_KEPT_WORD = 3.0  # times ``tol`` of the objective, by which a round may be off where the network is as good as linear
_GOOD = 0.75  # from which on the damping is lowered, and linear systems are solved to the end
_MANY_PRODUCTS = 40  # after which the preconditioner is made anew
_MANY_ROWS = 0.9  # quantile of how √b has changed
_MUCH = 0.35  # in its logarithm: b by a factor of two
_MOST_DAMPING = 1e8  # times the ridge: a loss that no step lowers is not ours to lower
_LEFT_OUT_ROWS = 800  # that the ridge is chosen by


class _Pending(NamedTuple):
    """A round whose outcome is not known yet."""

    weights: np.ndarray  # before it
    record: Iteration  # of those weights
    promise: float


class GaussNewton(Solver):
    """Rounds of regularized least squares on the linearized network.

    Parameters
    ----------
    ridge : "auto" or float
        λ. "auto" chooses it by leave-one-out on up to 800 rows (``choose_ridge.py``).
    tol : float
        Stop when a round promises less than this share of the objective.

    Attributes
    ----------
    ridge : float
        λ as it was chosen.
    leave_one_out_error : float or None
        Leave-one-out error that λ was chosen by, beside that of the start: mean square, or loss (``choose_ridge.py``).
    products : int
        Products with J Jᵀ so far.
    """

    name = "gauss-newton"
    steady_since = None

    def __init__(self, ridge: float | str = "auto", tol: float = 1e-3):
        if ridge != "auto" and not (is_number(ridge) and float(ridge) > 0):
            raise InputError(f"ridge must be 'auto' or a positive number, got {ridge!r}")
        if not is_number(tol) or tol < 0:
            raise InputError(f"tol must be at least 0, got {tol!r}")
        self._asked_ridge, self._tol = ridge, float(tol)
        self.leave_one_out_error: float | None = None
        self.products = 0
        self._first = np.empty((0, 0))
        self._reset()

    def _reset(self) -> None:
        self.ridge, self._damping, self.converged = 0.0, 0.0, False
        self._trusted = True  # the last round gave what it had promised, or most of it
        self._kept_its_word = True  # and that within what counts
        self._pending: _Pending | None = None
        self._preconditioner: Preconditioner | None = None
        self._factored_roots = np.empty((0, 0))  # √b that it was made with
        self._kernel: np.ndarray | None = None
        self._columns: KernelColumns | None = None
        self._dual: np.ndarray | None = None  # δ of the last round, (n, c), where the next one begins

    def remember_start(self, network: ShiftedReLUNetwork) -> None:
        self._first = network.weights.copy()

    def start(self, context: SolverContext) -> None:
        super().start(context)
        if not context.network.has_signs:
            raise InputError("solver='gauss-newton' needs outputs of ±1; go on with solver='gradient'")
        self._reset()
        self.ridge = self._choose_ridge() if self._asked_ridge == "auto" else float(self._asked_ridge)

    def _choose_ridge(self) -> float:
        """By leave-one-out on some rows, from the start."""
        engine, problem = self.context.engine, self.context.problem
        trained = np.flatnonzero(problem.weight > 0)
        rows = np.sort(np.random.default_rng(0).permutation(trained)[:_LEFT_OUT_ROWS])
        u = engine.forward()[rows]
        if len(problem.X) <= _FEW_ROWS and self._has_room_for_kernel():
            kernel = self._whole_kernel()[np.ix_(rows, rows)]  # rows ascend: a lower triangle has a lower triangle
        else:
            kernel = self._kernel_columns().among(rows)
        found = ridge_for_loss(kernel, self.context.loss, u, problem.targets[rows], problem.weight[rows])
        agreed = np.array([found.ridge, found.error])
        self.context.group.broadcast(agreed, source=0)
        self.leave_one_out_error = float(agreed[1])
        return float(agreed[0])

    @property
    def adaptive(self) -> bool:
        return True

    @property
    def learning_rate(self) -> float:
        """The share of a full step that the damping leaves to a direction that the ridge alone would halve."""
        return 2.0 * self.ridge / (2.0 * self.ridge + self._damping) if self.ridge else 1.0

    def penalty(self) -> float:
        return 0.5 * self.ridge * self._squared_norm(self._drift()) if self.ridge else 0.0

    def _drift(self) -> np.ndarray:
        """D = W − W₀."""
        return self.context.network.weights - self._first

    def _squared_norm(self, rows: np.ndarray) -> float:
        """Of all workers' rows together."""
        own = np.array([np.einsum("ij,ij->", rows, rows, dtype=np.float64)])
        return float(self.context.group.all_reduce_exact(own)[0][0])

    def step(self, evaluation: Evaluation) -> None:
        record, residual, predictions = evaluation.record, evaluation.residual, evaluation.predictions
        pending = self._pending
        if pending is not None:
            gained = pending.record.loss - record.loss
            self._trusted = gained >= _GOOD * pending.promise
            self._kept_its_word = abs(gained - pending.promise) <= _KEPT_WORD * self._tol * record.loss
            if not gained >= _KEPT * pending.promise:  # NaN is no gain
                self._damp()
            if not gained > 0:
                predictions, residual = self._go_back(pending)
                record = pending.record
            elif self._trusted:
                self._damping = 0.0 if self._damping < 0.1 * self.ridge else self._damping / 8
            self._pending = None
        if self._damping > _MOST_DAMPING * self.ridge:
            self.converged = True
            return
        self._move(residual, predictions, record)

    def _damp(self) -> None:
        self._damping = max(10 * self._damping, self.ridge)
        self._preconditioner = None

    def _go_back(self, pending: _Pending) -> tuple[np.ndarray, np.ndarray]:
        """Take the last round back. Gives predictions and residual there."""
        problem = self.context.problem
        self._replace_weights(pending.weights)
        self.context.best.update(pending.record)
        u = self.context.engine.forward()
        return u, self.context.loss.residual(u, problem.targets, problem.weight)

    def finish(self) -> None:
        """A last round that made things worse is taken back, too."""
        pending = self._pending
        if pending is not None and not self.context.history[-1].loss <= pending.record.loss:
            np.copyto(self.context.network.weights, pending.weights)
            self.context.best.update(pending.record)
        self._pending = None

    def _replace_weights(self, weights: np.ndarray) -> None:
        engine, network = self.context.engine, self.context.network
        change = weights - network.weights
        distances = np.sqrt(np.einsum("ij,ij->i", change, change, dtype=np.float64))
        moved = np.flatnonzero(distances)
        np.copyto(network.weights, weights)
        self._columns = None
        # A difference of two floats is rounded by half a unit in the last place, and so is each square and their sum.
        engine.weights_moved(moved, distances[moved] * (1.0 + 1e-5 if network.dtype == np.float32 else 1.0 + 1e-12))

    def _move(self, residual: np.ndarray, predictions: np.ndarray, record: Iteration) -> None:
        """Solve for δ, move the weights, and remember what was promised."""
        fresh = self._preconditioner is None and self._dual is None
        new, promise, sound = self._propose(residual, predictions, record.loss)
        if promise <= self._tol * record.loss and not (fresh or self._kept_its_word):
            # The kernel has changed, and with it where a round should begin: that alone may be why nothing is promised.
            self.drop_caches()
            new, promise, sound = self._propose(residual, predictions, record.loss)
        if promise <= self._tol * record.loss:
            if sound:
                self.converged = True
            else:  # nothing gained, for want of a solution: more damping makes one easier to find
                self._damp()
                self._dual = None
            return
        self._pending = _Pending(self.context.network.weights.copy(), record, promise)
        self._replace_weights(new)

    def _propose(self, residual: np.ndarray, predictions: np.ndarray, loss: float) -> tuple[np.ndarray, float, bool]:
        """The weights after a round, and by how much the objective falls there as far as the network is linear.

        And whether the linear system was solved: by as many products as it takes, and spared by rounding.
        """
        context = self.context
        network, engine, problem = context.network, context.engine, context.problem
        shift = self.ridge + self._damping
        drift = self._drift()
        roots = np.sqrt(context.loss.curvatures(predictions, problem.targets, problem.weight))
        system = KernelSystem(engine, divided(residual, roots), roots, shift)
        drifted = self._squared_norm(drift)
        # (λ/ν) J D
        pulled = engine.jacobian_product(drift) * (self.ridge / shift) if drifted else np.zeros_like(residual)
        right = system.residual - roots * pulled
        solved = self._solve(system, right, loss, drifted)
        # R J Δ, from what the solver left over: no further product with J Jᵀ.
        weighted_change = -(right - solved.residual - shift * solved.solution) - roots * pulled
        change = divided(weighted_change, roots)
        neurons, rows = engine.gradient(roots * solved.solution)
        new = network.weights - drift * (self.ridge / shift)
        new[neurons] -= rows
        promise = -float((residual * change).sum()) - 0.5 * float((weighted_change**2).sum())
        promise += 0.5 * self.ridge * (drifted - self._squared_norm(new - self._first))
        self._dual = roots * solved.solution
        return new, promise, solved.sound and solved.products < _MOST_PRODUCTS

    def _solve(self, system: KernelSystem, right: np.ndarray, loss: float, drifted: float) -> Solved:
        """(R J Jᵀ R + ν) z = right, from where the last round ended, as far as it is worth while.

        With w = Jᵀ R z, the round minimizes ½ ‖right − R J w‖² + (ν/2) ‖w‖² and a constant. It is above its least by
        ½ r·(1 − ν (R J Jᵀ R + ν)⁻¹) r, r the residual, and the preconditioner nearly has that inverse.
        """
        if self._preconditioner is None or self._reweighted(system.roots):
            self._preconditioner = self._make_preconditioner(system.roots, system.shift)
        shift = system.shift
        # Without damping and for squared error this is 0: the objective is the rest.
        constant = loss - 0.5 * float((system.residual**2).sum()) - 0.5 * self.ridge**2 / shift * drifted

        asked, patient = 0, self._dual is not None  # a first round has to get from W₀ to where it is first

        def enough(z: np.ndarray, r: np.ndarray, y: np.ndarray) -> bool:
            nonlocal asked
            asked += 1
            left = 0.5 * max(float((r * r).sum()) - shift * float((r * y).sum()), 0.0)
            applied = right - r - shift * z  # R J Jᵀ R z
            now = constant + 0.5 * (float(((right - applied) ** 2).sum()) + shift * float((z * applied).sum()))
            worth = self._tol * max(now, 0.0)
            # What a partial factor says of the rest may be too much.
            if patient and asked > _PATIENCE and loss - now <= worth:
                return True
            return left <= _LEFT * worth or (not self._trusted and left <= _LOOSE * (loss - now))

        start = None if self._dual is None else divided(self._dual, system.roots)
        solved = conjugate_residuals(
            system.apply, self._preconditioner, right, start=start, enough=enough, max_products=_MOST_PRODUCTS
        )
        self.products += solved.products
        if solved.products > _MANY_PRODUCTS and self._kernel is not None:
            self._preconditioner = self._kernel = None  # a partial one would be no better for being new
        return solved

    def _reweighted(self, roots: np.ndarray) -> bool:
        """Whether the curvatures of many rows have changed much since the preconditioner was made."""
        made = self._factored_roots
        changes = np.abs(np.log(np.divide(roots, made, out=np.ones_like(roots), where=(roots > 0) & (made > 0))))
        return float(np.quantile(changes, _MANY_ROWS)) > _MUCH

    def _has_room_for_kernel(self) -> bool:
        """Whether all workers can factor the kernel of all samples, and whether that is worth while."""
        network, n = self.context.network, len(self.context.problem.X)
        factors = network.n_outputs if self.context.loss.shares_target else 1
        return self.context.group.all_true(kernel_fits(n, network, free_bytes(self.context.memory), factors))

    def _has_small(self, shift: float, roots: np.ndarray) -> bool:
        return shift < _SMALL_SHIFT * float(np.mean(roots**2 * self._kernel_columns().diagonal()))

    def _whole_kernel(self) -> np.ndarray:
        if self._kernel is None:
            self._kernel = counted_kernel(self.context.engine, dtype=self.context.network.dtype.type)
        return self._kernel

    def _kernel_columns(self) -> KernelColumns:
        if self._columns is None:
            self._columns = KernelColumns(self.context.engine)
        return self._columns

    def _make_preconditioner(self, roots: np.ndarray, shift: float) -> Preconditioner:
        """Of the kernel as it is now, or was a few rounds ago: it hardly changes.

        One for all outputs, with the mean of their curvatures; one for each where they share a target, as quantiles do.
        """
        group, n = self.context.group, len(roots)
        self._factored_roots, mean = roots, np.sqrt(np.mean(roots**2, axis=1))
        whole = (n <= _FEW_ROWS or self._has_small(shift, mean)) and self._has_room_for_kernel()

        def factor(row_roots: np.ndarray) -> Preconditioner:
            if whole:
                return CholeskyPreconditioner(self._whole_kernel(), row_roots, shift)
            return PartialCholeskyPreconditioner(self._kernel_columns(), row_roots, shift, min(MOST_PIVOTS, n), group)

        apart = self.context.loss.shares_target
        made = OutputPreconditioner([factor(column) for column in roots.T]) if apart else factor(mean)
        self._columns = None
        return made if group.size == 1 else SharedPreconditioner(made, group)

    def details(self) -> dict[str, Any]:
        return {
            "ridge": self.ridge,
            "leave_one_out_error": self.leave_one_out_error,
            "products": self.products,
        }

    def settings(self) -> dict[str, Any]:
        return {"solver": self.name, "ridge": self._asked_ridge}

    def extra_bytes(self, network: ShiftedReLUNetwork, n_samples: int) -> float:
        """W₀, the weights before a round, the step, the gradient; a partial factor; who fires, listed and in bits."""
        who_fires = n_samples * network.width * (1 / 8 + 5 * upper_tail(network.threshold))
        return 6.0 * network.weights.nbytes + partial_bytes(n_samples) + who_fires

    def spare_bytes(self, network: ShiftedReLUNetwork, n_samples: int, free: float) -> float:
        return kernel_bytes(n_samples, network) if kernel_fits(n_samples, network, free) else 0.0

    # Checkpoints

    @property
    def velocity(self) -> np.ndarray | None:
        """The weights before the last round, where they differ from those after it."""
        if self._pending is None:
            return None
        before, now = self._pending.weights, self.context.network.weights
        return np.where((before != now).any(axis=1)[:, None], before, before.dtype.type(0))

    def state(self) -> dict[str, float]:
        pending = self._pending
        return {
            "ridge": self.ridge,
            "damping": self._damping,
            "trusted": float(self._trusted),
            "promise": pending.promise if pending else 0.0,
            "before": pending.record.iteration if pending else -1,
        }

    def check_state(self, state: Mapping[str, Any], iteration: int) -> None:
        for name in ("ridge", "damping", "trusted", "promise"):
            value = state.get(name)
            if not (isinstance(value, float) and isfinite(value) and value >= 0):
                raise InputError(f"its {name} is {str(value)[:40]!r}")
        before = state.get("before")
        if type(before) is not int or not -1 <= before < iteration:
            raise InputError(f"its last round began in iteration {str(before)[:40]!r}")

    def resume(self, context: SolverContext, state: Mapping[str, Any], velocity: np.ndarray | None) -> None:
        super().resume(context, state, velocity)
        self._reset()
        self.ridge, self._damping = state["ridge"], state["damping"]
        self._trusted = bool(state["trusted"])
        if state["before"] >= 0:
            before = context.network.weights.copy()
            if velocity is not None:
                moved = velocity.any(axis=1)
                before[moved] = velocity[moved]
            self._pending = _Pending(before, context.history[state["before"]], state["promise"])

    def drop_caches(self) -> None:
        self._preconditioner = self._kernel = self._columns = self._dual = None
