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
that gave nothing is taken back. Training has converged when a round without damping promises less than ``tol`` of the
objective, and a bound says that its system was solved. It has stalled when no damped round decreases the objective.
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
from fireset.training.solvers.kernel_memory import MAX_PIVOTS, kernel_bytes, kernel_fits, partial_bytes
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
_LINEAR_SOLVE_TOLERANCE = 0.3  # of ``tol`` a linear system may leave to be gained
_LOOSE_SOLVE_TOLERANCE = 0.03  # of what a round gains may be left, where the last one did not keep what it promised
_MIN_OBJECTIVE = 1e-3  # of the objective now: what a round leaves counts as no less
_MORE_SOLVES = 3  # that a system gets before it counts as unsolved
_NEGLIGIBLE = 1e-3  # of ``tol`` of the objective: a damped round that gains less is not taken
_MAX_PRODUCTS = 60  # for one linear system
_KEPT = 0.1  # of what a round promised, below which it is damped more
_MODEL_TOLERANCE = (
    3.0  # times ``tol`` of the objective, by which a round may be off where the network is as good as linear
)
_GOOD = 0.75  # from which on the damping is lowered, and linear systems are solved to the end
_MANY_PRODUCTS = 40  # after which the preconditioner is made anew
_MANY_ROWS = 0.9  # quantile of how √b has changed
_MUCH = 0.35  # in its logarithm: b by a factor of two
_SLOW_ROUNDS = 5  # successful ones that decrease the objective by less than ``tol`` each, on average, end training
_MAX_DAMPING = 1e8  # times the ridge; beyond, no step decreases the loss
_LEFT_OUT_ROWS = 800  # that the ridge is chosen by


class _Pending(NamedTuple):
    """A round whose outcome is not known yet."""

    weights: np.ndarray  # before it
    record: Iteration  # of those weights
    promise: float


class _Proposal(NamedTuple):
    """What a round would do."""

    weights: np.ndarray  # after it
    promise: float  # by how much the objective falls, as far as the network is linear
    solved: bool  # a bound says that no other weights would gain much more


class GaussNewton(Solver):
    """Rounds of regularized least squares on the linearized network.

    Parameters
    ----------
    ridge : "auto" or float
        λ. "auto" chooses it by leave-one-out on up to 800 rows (``choose_ridge.py``).
    tol : float
        Stop when a round has less than this share of the objective to gain, or when five successful rounds have
        decreased it by less than this share each, on average.

    Attributes
    ----------
    ridge : float
        λ as it was chosen.
    leave_one_out_error : float or None
        Leave-one-out error that λ was chosen by, beside that of the start: mean square, or loss (``choose_ridge.py``).
    products : int
        Products with J Jᵀ so far.
    predicted_decrease : float or None
        By which share of the objective the last round without damping would have decreased it, had the network been
        linear: at most about ``tol`` where training has converged.
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
        self.predicted_decrease: float | None = None
        self._first = np.empty((0, 0))
        self._reset()

    def _reset(self) -> None:
        self._ridge, self._damping = 0.0, 0.0
        self.converged = self.stalled = False
        self._apart = False  # whether each output has a preconditioner of its own
        self._cut_off = False  # whether the last linear system was left at ``_MAX_PRODUCTS``
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
        unit = context.problem.weight_unit
        self._ridge = self._choose_ridge() if self._asked_ridge == "auto" else float(self._asked_ridge) / unit

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
    def ridge(self) -> float:
        """λ as it was chosen."""
        return self._ridge * self.context.problem.weight_unit

    def _objective(self, record: Iteration) -> float:
        """The objective of an iteration, in units of ``problem.weight_unit`` as everything here is."""
        return record.loss / self.context.problem.weight_unit

    @property
    def adaptive(self) -> bool:
        return True

    @property
    def learning_rate(self) -> float:
        """The share of a full step that the damping leaves to a direction that the ridge alone would halve."""
        return 2.0 * self._ridge / (2.0 * self._ridge + self._damping) if self._ridge else 1.0

    def penalty(self) -> float:
        return 0.5 * self._ridge * self._squared_norm(self._drift()) if self._ridge else 0.0

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
            loss = self._objective(record)
            gained = self._objective(pending.record) - loss
            self._trusted = gained >= _GOOD * pending.promise
            self._kept_its_word = abs(gained - pending.promise) <= _MODEL_TOLERANCE * self._tol * loss
            if not gained >= _KEPT * pending.promise:  # NaN is no gain
                self._damp()
            if not gained > 0:
                predictions, residual = self._roll_back(pending)
                record = pending.record
            elif self._trusted:
                self._damping = 0.0 if self._damping < 0.1 * self._ridge else self._damping / 8
            self._pending = None
        if self._damping > _MAX_DAMPING * self._ridge:
            self._stall(self._objective(record))
            return
        if self._is_slow():
            self.converged, self.stalled = not self._cut_off, self._cut_off
            return
        self._move(residual, predictions, record)

    def _is_slow(self) -> bool:
        """Whether the last successful rounds together have decreased the objective by less than ``tol`` each."""
        losses = self.context.history.column("loss")
        successes = losses[losses <= np.minimum.accumulate(losses)]
        if not self._tol or len(successes) <= _SLOW_ROUNDS:
            return False
        return bool(successes[-1 - _SLOW_ROUNDS] - successes[-1] <= _SLOW_ROUNDS * self._tol * successes[-1])

    def _stall(self, loss: float) -> None:
        """No step decreases the objective: converged if only rounding is left of the first one, else stalled."""
        rounding = float(np.finfo(self.context.network.dtype).eps) * self._objective(self.context.history[0])
        self.converged, self.stalled = loss <= rounding, loss > rounding

    def _damp(self) -> None:
        self._damping = max(10 * self._damping, self._ridge)
        self._preconditioner = None

    def _roll_back(self, pending: _Pending) -> tuple[np.ndarray, np.ndarray]:
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
        """Solve for δ, and move the weights unless the model has less than ``tol`` of the objective to gain."""
        loss = self._objective(record)
        enough = self._tol * loss
        fresh = self._preconditioner is None and self._dual is None
        proposal = self._propose(residual, predictions, loss)
        if proposal.promise <= enough and not (fresh or self._kept_its_word):
            # The kernel has changed, and with it where a round should begin: that alone may be why nothing is promised.
            self.drop_caches()
            proposal = self._propose(residual, predictions, loss)
        if proposal.promise <= enough:
            proposal = self._solve_on(proposal, residual, predictions, loss)
        if proposal.promise <= enough:
            if not proposal.solved:  # nothing gained, for want of a solution: more damping makes one easier to find
                self._damp()
                self._dual = None
                return
            if self._has_converged(residual, predictions, loss):
                self.converged = True
                return
            if proposal.promise <= _NEGLIGIBLE * enough:
                self._stall(loss)
                return
        self._pending = _Pending(self.context.network.weights.copy(), record, proposal.promise)
        self._replace_weights(proposal.weights)

    def _solve_on(
        self, proposal: "_Proposal", residual: np.ndarray, predictions: np.ndarray, loss: float
    ) -> "_Proposal":
        """Solve a system that seems to have little to gain until a bound says so, or there is something to gain."""
        for _ in range(_MORE_SOLVES):
            if proposal.solved or proposal.promise > self._tol * loss:
                break
            proposal = self._propose(residual, predictions, loss, strict=True)
        return proposal

    def _has_converged(self, residual: np.ndarray, predictions: np.ndarray, loss: float) -> bool:
        """Whether a round without damping has nothing to gain either; a damped one is short by construction."""
        if not self._damping:
            return True
        damping, dual = self._damping, self._dual
        self._damping, self._preconditioner = 0.0, None  # not kept: two at a time would take more memory than estimated
        problem = residual, predictions, loss
        proposal = self._solve_on(self._propose(*problem, strict=True), *problem)
        self._damping, self._preconditioner, self._dual = damping, None, dual
        return proposal.solved and proposal.promise <= self._tol * loss

    def _propose(
        self, residual: np.ndarray, predictions: np.ndarray, loss: float, *, strict: bool = False
    ) -> "_Proposal":
        """The weights after a round, and by how much the objective falls there as far as the network is linear."""
        context = self.context
        network, engine, problem = context.network, context.engine, context.problem
        shift = self._ridge + self._damping
        drift = self._drift()
        roots = np.sqrt(context.loss.curvatures(predictions, problem.targets, problem.weight))
        system = KernelSystem(engine, divided(residual, roots), roots, shift)
        drifted = self._squared_norm(drift)
        # (λ/ν) J D
        pulled = engine.jacobian_product(drift) * (self._ridge / shift) if drifted else np.zeros_like(residual)
        right = system.residual - roots * pulled
        solved, certified = self._solve(system, right, loss, drifted, strict=strict)
        # R J Δ, from what the solver left over: no further product with J Jᵀ.
        weighted_change = -(right - solved.residual - shift * solved.solution) - roots * pulled
        change = divided(weighted_change, roots)
        neurons, rows = engine.gradient(roots * solved.solution)
        new = network.weights - drift * (self._ridge / shift)
        new[neurons] -= rows
        promise = -float((residual * change).sum()) - 0.5 * float((weighted_change**2).sum())
        promise += 0.5 * self._ridge * (drifted - self._squared_norm(new - self._first))
        self._dual = roots * solved.solution
        if not self._damping:
            self.predicted_decrease = promise / loss if loss > 0 else 0.0
        return _Proposal(new, promise, certified)

    def _solve(
        self, system: KernelSystem, right: np.ndarray, loss: float, drifted: float, *, strict: bool
    ) -> tuple[Solved, bool]:
        """(R J Jᵀ R + ν) z = right, from where the last round ended, as far as it is worth while.

        With w = Jᵀ R z, the round minimizes ½ ‖right − R J w‖² + (ν/2) ‖w‖² and a constant. With A = R J Jᵀ R + ν and
        the residual r it is above its least by g = ½ r·(1 − ν A⁻¹) r. The preconditioner M⁻¹ gives an estimate of g,
        y = M⁻¹ r in place of A⁻¹ r. Once A y is known there is a bound,

            g ≤ ½ (‖r‖² − ν (r·y)²/(y·A y)),

        since r·A⁻¹ r is the largest (r·v)²/(v·A v). The second value says whether the bound was met; ``strict`` leaves
        the estimate out. It is said of the start alone, whose residual is computed: afterwards the residual is updated,
        and rounding adds up.
        """
        if self._preconditioner is None or self._reweighted(system.roots):
            self._preconditioner = self._make_preconditioner(system.roots, system.shift)
        shift = system.shift
        # Without damping and for squared error this is 0: the objective is the rest.
        constant = loss - 0.5 * float((system.residual**2).sum()) - 0.5 * self._ridge**2 / shift * drifted
        certified: bool | None = None

        def enough(z: np.ndarray, r: np.ndarray, y: np.ndarray, curvature: float | None) -> bool:
            nonlocal certified
            ry = float((r * y).sum())
            taken = ry if curvature is None else ry * ry / curvature
            left = 0.5 * max(float((r * r).sum()) - shift * taken, 0.0)
            applied = right - r - shift * z  # R J Jᵀ R z
            now = constant + 0.5 * (float(((right - applied) ** 2).sum()) + shift * float((z * applied).sum()))
            small = left <= _LINEAR_SOLVE_TOLERANCE * self._tol * max(now, _MIN_OBJECTIVE * loss)
            if curvature is None:
                return not strict and (small or (not self._trusted and left <= _LOOSE_SOLVE_TOLERANCE * (loss - now)))
            certified = small if certified is None else certified
            return small

        start = None if self._dual is None else divided(self._dual, system.roots)
        solved = conjugate_residuals(
            system.apply, self._preconditioner, right, start=start, enough=enough, max_products=_MAX_PRODUCTS
        )
        self.products += solved.products
        self._cut_off = solved.products >= _MAX_PRODUCTS
        if solved.products > _MANY_PRODUCTS and self._kernel is not None:
            self._preconditioner = self._kernel = None  # a partial one would be no better for being new
        several = 1 < self.context.network.n_outputs and len(system.roots) <= _FEW_ROWS  # else they take much memory
        if solved.products >= _MAX_PRODUCTS and several and not self._apart:
            self._apart, self._preconditioner = True, None
        return solved, bool(certified) and solved.sound

    def _reweighted(self, roots: np.ndarray) -> bool:
        """Whether the curvatures of many rows have changed much since the preconditioner was made."""
        made = self._factored_roots
        changes = np.abs(np.log(np.divide(roots, made, out=np.ones_like(roots), where=(roots > 0) & (made > 0))))
        return float(np.quantile(changes, _MANY_ROWS)) > _MUCH

    @property
    def _outputs_apart(self) -> bool:
        return self._apart or self.context.loss.outputs_per_target > 1

    def _has_room_for_kernel(self) -> bool:
        """Whether all workers can factor the kernel of all samples, and whether that is worth while."""
        network, n = self.context.network, len(self.context.problem.X)
        factors = network.n_outputs if self._outputs_apart else 1
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

        One for all outputs, with the mean of their curvatures. One for each where they share a target, as quantiles do,
        or where a common one has left a system unsolved.
        """
        group, n = self.context.group, len(roots)
        self._factored_roots, mean = roots, np.sqrt(np.mean(roots**2, axis=1))
        whole = (n <= _FEW_ROWS or self._has_small(shift, mean)) and self._has_room_for_kernel()

        def factor(row_roots: np.ndarray) -> Preconditioner:
            if whole:
                return CholeskyPreconditioner(self._whole_kernel(), row_roots, shift)
            return PartialCholeskyPreconditioner(self._kernel_columns(), row_roots, shift, min(MAX_PIVOTS, n), group)

        made = OutputPreconditioner([factor(column) for column in roots.T]) if self._outputs_apart else factor(mean)
        self._columns = None
        return made if group.size == 1 else SharedPreconditioner(made, group)

    def details(self) -> dict[str, Any]:
        return {
            "ridge": self.ridge,
            "leave_one_out_error": self.leave_one_out_error,
            "products": self.products,
            "predicted_decrease": self.predicted_decrease if self.stalled else None,
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
            "ridge": self._ridge,
            "damping": self._damping,
            "trusted": float(self._trusted),
            "cut_off": float(self._cut_off),
            "promise": pending.promise if pending else 0.0,
            "before": pending.record.iteration if pending else -1,
        }

    def check_state(self, state: Mapping[str, Any], iteration: int) -> None:
        for name in ("ridge", "damping", "trusted", "cut_off", "promise"):
            value = state.get(name)
            if not (isinstance(value, float) and isfinite(value) and value >= 0):
                raise InputError(f"its {name} is {str(value)[:40]!r}")
        before = state.get("before")
        if type(before) is not int or not -1 <= before < iteration:
            raise InputError(f"its last round began in iteration {str(before)[:40]!r}")

    def resume(self, context: SolverContext, state: Mapping[str, Any], velocity: np.ndarray | None) -> None:
        super().resume(context, state, velocity)
        self._reset()
        self._ridge, self._damping = state["ridge"], state["damping"]
        self._trusted = bool(state["trusted"])
        self._cut_off = bool(state["cut_off"])
        if state["before"] >= 0:
            before = context.network.weights.copy()
            if velocity is not None:
                moved = velocity.any(axis=1)
                before[moved] = velocity[moved]
            self._pending = _Pending(before, context.history[state["before"]], state["promise"])

    def drop_caches(self) -> None:
        self._preconditioner = self._kernel = self._columns = self._dual = None
