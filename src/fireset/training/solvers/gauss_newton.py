"""Gauss–Newton in function space: a few regularized least-squares problems instead of hundreds of gradient steps.

The objective is L(u) + (λ/2) ‖W − W₀‖², with a ridge towards the initial weights. Let J = ∂u/∂W on the active pairs,
e = ∂L/∂u, b the curvatures of the loss in u (1 for squared error) and D = W − W₀. An iteration moves W by the Δ that
minimizes

    Σ e·JΔ + ½ Σ b (JΔ)² + (λ/2) ‖D + Δ‖² + (μ/2) ‖Δ‖².

With ν = λ + μ the solution is Δ = −Jᵀδ − (λ/ν) D, where δ solves (J Jᵀ + ν/b) δ = e/b − (λ/ν) J D: n·c unknowns for any
number of neurons. With δ = R z and R = √b the matrix is R J Jᵀ R + ν (``linear_solver.py``).

J Jᵀ for one output is the kernel H(t) of the paper. Brand, Peng, Song and Weinstein ("Training (Overparametrized)
Neural Networks in Near-Linear Time", ITCS 2021) prove that few such iterations train an over-parameterized network;
docs/solvers.md lists which of their steps are used.

With ``trained_outputs=s`` the output weights A are trained, too, and the penalty of A is (λ/2) ‖A − A₀‖²/s². In the
variables (W, A/s) all formulas hold as above: J Jᵀ becomes J_W J_Wᵀ + s² J_A J_Aᵀ, J D becomes J_W D_W + J_A D_A, and A
moves by −s² J_Aᵀδ − (λ/ν) D_A.

μ is the Levenberg–Marquardt damping. It is raised if the trust ratio, the actual divided by the predicted reduction of
the objective, is below a tenth. A step that does not reduce the objective is undone. Training has converged when the
predicted reduction of an undamped step is below ``tol`` of the objective and a bound shows that its system was solved.
It has stalled when no damped step reduces the objective.
"""

from collections.abc import Callable, Mapping
from math import isfinite, log
from typing import Any, NamedTuple

import numpy as np

from fireset._util.checks import is_number
from fireset._util.errors import InputError
from fireset._util.gaussian import upper_tail
from fireset.distributed.agreement import raise_on_all_workers
from fireset.engines.output_layer import output_layer_bytes
from fireset.network import ShiftedReLUNetwork
from fireset.theory.leave_one_out import LeaveOneOutFit, best_ridge
from fireset.training.best_weights import Snapshot
from fireset.training.history import Iteration
from fireset.training.losses import Loss
from fireset.training.progress import Progress
from fireset.training.run import Run
from fireset.training.solvers.base import Solver
from fireset.training.solvers.linear_solver import (
    MAX_PRODUCTS,
    KernelSystem,
    LinearSolver,
    Solution,
    divided,
    partial_factor_bytes,
)

# Accuracy of the linear systems: the objective of the linearized network may exceed its minimum by
_LINEAR_SOLVE_TOLERANCE = 0.3  # of ``tol`` of the objective, or
_LOOSE_SOLVE_TOLERANCE = 0.03  # of the reduction of the step, if the last trust ratio was not good
_MIN_OBJECTIVE = 1e-3  # of the current objective: lower bound of the objective after a step in the first criterion
_MAX_STRICT_SOLVES = 3  # of a system with a small predicted reduction, before it counts as unsolved

# Trust ratio and damping
_MIN_TRUST_RATIO = 0.1  # below, the damping is raised
_GOOD_TRUST_RATIO = 0.75  # from here on, the damping is lowered and linear systems are solved to the end
_MODEL_TOLERANCE = 3.0  # times ``tol`` of the objective: largest error of the prediction of a nearly linear network
_MAX_DAMPING = 1e8  # times the ridge; beyond, no step decreases the loss
_DAMPING_INCREASE, _DAMPING_DECREASE = 10.0, 8.0
_NEGLIGIBLE_DAMPING = 0.1  # times the ridge: below, it is set to 0 instead of being lowered

# Convergence
_NEGLIGIBLE_REDUCTION = 1e-3  # of ``tol`` of the objective: smaller damped steps are not made
_EXPECTED_LOSS_SHARE = 0.1  # of the loss that leave-one-out expects for other rows, which ``tol`` refers to at least
_SLOW_ITERATIONS = 5  # successful ones with an average reduction below ``tol`` end training

_MIN_TRAINED_OUTPUTS = 1e-6  # beyond this and its inverse, a step of one layer is rounded away in float32

# Choice of the ridge
_RIDGE_ROWS = 800
_FIRST_RIDGE = 6  # index in ``RELATIVE_RIDGES``
_MAX_LOSS_INCREASE = 10.0  # of one iteration of ``choose_ridge``, above which its predictions give no curvatures


class _TrialStep(NamedTuple):
    """A step whose actual reduction is not known yet."""

    start: Snapshot
    predicted_reduction: float

    @property
    def record(self) -> Iteration:
        assert self.start.record is not None
        return self.start.record


class _Proposal(NamedTuple):
    """A step that has been computed and not made yet."""

    weights: np.ndarray  # after the step
    output_weights: np.ndarray | None  # after the step; None if they are not trained
    predicted_reduction: float
    solved: bool  # whether a bound shows that no other step has a much larger predicted reduction


class _Point(NamedTuple):
    """The network at the current weights. ``objective`` is in units of ``problem.weight_unit``."""

    record: Iteration
    predictions: np.ndarray
    residual: np.ndarray
    objective: float


class GaussNewton(Solver):
    """Iterations of regularized least squares on the linearized network.

    Parameters
    ----------
    ridge : "auto" or float
        λ. "auto" chooses it by leave-one-out on up to 800 rows (``choose_ridge``).
    tol : float
        Stop when the predicted reduction of a step is below this fraction of the objective, or when the average of the
        last five successful steps is. If the ridge was chosen by leave-one-out, the fraction is that of the objective
        or of a tenth of the loss that leave-one-out expects for other rows, whichever is larger.
    trained_outputs : bool or float
        s: the scale of the steps of the output weights relative to those of the weights. 0 or False keeps the output
        weights, True is 1.

    Attributes
    ----------
    ridge : float
        The chosen λ.
    leave_one_out_error : float or None
        Leave-one-out error of the chosen λ relative to that of the initial network: mean square, or loss.
    products : int
        Number of tangent products so far.
    predicted_reduction : float or None
        Predicted reduction of the last undamped step, relative to the objective. At most about ``tol`` if training has
        converged.
    """

    name = "gauss-newton"
    label = "Gauss–Newton"
    iteration_label = "round"
    runs_to_max_iter = False
    default_output_scale = 1000.0
    uses_tangent_products = True
    chooses_output_scale = True
    steady_since = None
    shares_rows = True

    def __init__(self, ridge: float | str = "auto", tol: float = 1e-3, trained_outputs: bool | float = False):
        if ridge != "auto" and not (is_number(ridge) and float(ridge) > 0):
            raise InputError(f"ridge must be 'auto' or a positive number, got {ridge!r}")
        if not is_number(tol) or tol < 0:
            raise InputError(f"tol must be at least 0, got {tol!r}")
        scale = float(trained_outputs) if is_number(trained_outputs) or isinstance(trained_outputs, bool) else -1.0
        if scale and not _MIN_TRAINED_OUTPUTS <= scale <= 1.0 / _MIN_TRAINED_OUTPUTS:
            raise InputError(
                f"trained_outputs must be a bool, 0, or a number from {_MIN_TRAINED_OUTPUTS:g} to "
                f"{1.0 / _MIN_TRAINED_OUTPUTS:g}, got {trained_outputs!r}"
            )
        self._requested_ridge, self._tol = ridge, float(tol)
        self._output_factor = scale**2
        self.trains_outputs = self._output_factor > 0
        self.leave_one_out_error: float | None = None
        self.products = 0
        self.predicted_reduction: float | None = None
        self._initial_weights = self._initial_outputs = np.empty((0, 0))
        self._ridge = self._damping = 0.0

    @classmethod
    def default_tol(cls, loss: Loss) -> float:
        return loss.gauss_newton_tol

    def remember_start(self, network: ShiftedReLUNetwork) -> None:
        self._initial_weights = network.weights.copy()
        self._initial_outputs = network.output_weights.copy()

    def start(self, run: Run) -> None:
        if not run.network.has_sign_outputs and not self.trains_outputs:
            raise InputError(
                "solver='gauss-newton' needs outputs of ±1 unless they are trained; use trained_outputs=True, or "
                "solver='gradient'"
            )
        self._reset(run)
        requested = self._requested_ridge
        self._ridge = self._choose_ridge() if requested == "auto" else float(requested) / run.problem.weight_unit

    def _reset(self, run: Run) -> None:
        self.run = run
        self._ridge, self._damping = 0.0, 0.0
        self.converged = self.stalled = False
        self._trusted = True  # whether the last trust ratio was good
        self._model_accurate = True  # whether the last prediction was within ``_MODEL_TOLERANCE``
        self._trial: _TrialStep | None = None
        self._linear = LinearSolver(run, self._output_factor)

    def _choose_ridge(self) -> float:
        run, problem = self.run, self.run.problem
        rows = problem.sample(_RIDGE_ROWS)
        u = problem.shares.select(run.engine.forward(), rows)
        targets, weight = problem.shares.select(problem.targets, rows), problem.shares.select(problem.weight, rows)
        kernel = self._linear.kernel_block(rows)
        return self._choose_on_first_worker(lambda: choose_ridge(kernel, run.loss, u, targets, weight))

    def _choose_on_first_worker(self, choose: Callable[[], LeaveOneOutFit]) -> float:
        """Return the ridge that the first worker chooses, and store its leave-one-out error."""
        shared = np.zeros(2)
        with raise_on_all_workers(self.run.group):
            if self.run.group.rank == 0:
                found = choose()
                shared[:] = found.ridge, found.error
        self.run.group.broadcast(shared, source=0)
        self.leave_one_out_error = float(shared[1])
        return float(shared[0])

    @property
    def ridge(self) -> float:
        """The chosen λ."""
        return self._ridge * self.run.problem.weight_unit

    @property
    def adaptive(self) -> bool:
        return True

    @property
    def learning_rate(self) -> float:
        """The factor by which damping shortens the step in a direction that the ridge alone would halve."""
        return 2.0 * self._ridge / (2.0 * self._ridge + self._damping) if self._ridge else 1.0

    def penalty(self) -> float:
        network = self.run.network
        return (
            0.5 * self._ridge * self._squared_distance(network.weights, network.output_weights) if self._ridge else 0.0
        )

    def penalty_at_zero(self) -> float:
        """Return the smallest penalty of predictions of 0, by weights of 0 or by output weights of 0."""
        if not self._ridge:
            return 0.0
        squares = self._squared_norm(self._initial_weights)
        if self.trains_outputs:
            squares = min(squares, self._squared_norm(self._initial_outputs) / self._output_factor)
        return 0.5 * self._ridge * squares

    def _squared_distance(self, weights: np.ndarray, output_weights: np.ndarray | None) -> float:
        """Return ‖W − W₀‖² + ‖A − A₀‖²/s², without the second term if the output weights are not trained."""
        squares = self._squared_norm(weights - self._initial_weights)
        if self.trains_outputs and output_weights is not None:
            squares += self._squared_norm(output_weights - self._initial_outputs) / self._output_factor
        return squares

    def _squared_norm(self, rows: np.ndarray) -> float:
        """Return the squared norm over all neurons."""
        own = np.array([np.einsum("ij,ij->", rows, rows, dtype=np.float64)])
        return float(self.run.shard.group.all_reduce_exact(own)[0][0])

    def _objective(self, record: Iteration) -> float:
        """Return the objective of an iteration in units of ``problem.weight_unit``."""
        return record.loss / self.run.problem.weight_unit

    # One iteration: accept or undo the last step, test for convergence, make the next step

    def step(self, progress: Progress) -> None:
        record = progress.record
        point = _Point(record, progress.predictions, progress.scaled_residual, self._objective(record))
        if self._trial is not None:
            point = self._judge(self._trial, point)
            self._trial = None
        if self._damping > _MAX_DAMPING * self._ridge or not isfinite(self._ridge + self._damping):
            self._stop_without_step(point.objective)
        elif self._is_slow():
            self.converged, self.stalled = not self._linear.reached_limit, self._linear.reached_limit
        else:
            self._move(point)

    def _judge(self, trial: _TrialStep, point: _Point) -> _Point:
        """Adapt the damping to the trust ratio of the last step; undo a step that did not reduce the objective.

        Returns the point to continue from.
        """
        reduction = self._objective(trial.record) - point.objective
        self._trusted = reduction >= _GOOD_TRUST_RATIO * trial.predicted_reduction
        error = abs(reduction - trial.predicted_reduction)
        self._model_accurate = error <= _MODEL_TOLERANCE * self._least_reduction(point.objective)
        if not reduction >= _MIN_TRUST_RATIO * trial.predicted_reduction:  # also for NaN
            self._raise_damping()
        if not reduction > 0:
            return self._undo(trial)
        if self._trusted:
            small = self._damping < _NEGLIGIBLE_DAMPING * self._ridge
            self._damping = 0.0 if small else self._damping / _DAMPING_DECREASE
        return point

    def _raise_damping(self) -> None:
        self._damping = max(_DAMPING_INCREASE * self._damping, self._ridge)
        self._linear.drop_preconditioner()

    def _undo(self, trial: _TrialStep) -> _Point:
        run, record = self.run, trial.record
        self._replace_weights(trial.start.weights, trial.start.output_weights)
        run.best.update(record)
        u = run.engine.forward()
        residual = run.loss.residual(u, run.problem.targets, run.problem.weight)
        return _Point(record, u, residual, self._objective(record))

    def finish(self) -> None:
        """Undo the last step if it increased the loss."""
        trial = self._trial
        if trial is not None and not self.run.history[-1].loss <= trial.record.loss:
            trial.start.restore()
            self.run.best.update(trial.record)
        self._trial = None

    def _replace_weights(self, weights: np.ndarray, output_weights: np.ndarray | None) -> None:
        engine, network = self.run.engine, self.run.network
        change = weights - network.weights
        distances = np.sqrt(np.einsum("ij,ij->i", change, change, dtype=np.float64))
        moved = np.flatnonzero(distances)
        np.copyto(network.weights, weights)
        self._linear.weights_moved()
        # The factor covers the rounding of the difference, of each square and of their sum.
        engine.weights_moved(moved, distances[moved] * (1.0 + 1e-5 if network.dtype == np.float32 else 1.0 + 1e-12))
        if output_weights is not None:
            np.copyto(network.output_weights, output_weights)
            engine.outputs_moved()

    def _move(self, point: _Point) -> None:
        """Compute a step and make it, unless its predicted reduction is below ``tol`` of the objective."""
        least = self._least_reduction(point.objective)
        reused = self._linear.has_history
        # After a step of a nearly linear network training has probably converged. A strict solution shows it at once.
        proposal = self._propose(point, strict=reused and self._model_accurate)
        if proposal.predicted_reduction <= least and reused and not self._model_accurate:
            # The kernel has changed, so that the last solution may be a bad start.
            self._linear.drop_caches()
            proposal = self._propose(point)
        if proposal.predicted_reduction <= least:
            proposal = self._solve_strictly(proposal, point)
        if proposal.predicted_reduction <= least:
            if not proposal.solved:  # more damping makes the system easier to solve
                self._raise_damping()
                self._linear.dual = None
                return
            if self._has_converged(point):
                self.converged = True
                return
            if proposal.predicted_reduction <= _NEGLIGIBLE_REDUCTION * least:
                self._stop_without_step(point.objective)
                return
        start = Snapshot(self.run.network, point.record, with_outputs=self.trains_outputs)
        self._trial = _TrialStep(start, proposal.predicted_reduction)
        self._replace_weights(proposal.weights, proposal.output_weights)

    # Convergence

    def _least_reduction(self, objective: float) -> float:
        """Return the reduction of the objective below which a step is not worthwhile."""
        expected = 0.0
        if self.leave_one_out_error is not None and len(self.run.history):
            expected = min(self.leave_one_out_error, 1.0) * self._objective(self.run.history[0])
        return self._tol * max(objective, _EXPECTED_LOSS_SHARE * expected)

    def _solve_strictly(self, proposal: _Proposal, point: _Point) -> _Proposal:
        """Solve again until a bound shows that the predicted reduction is small, or it is not small."""
        for _ in range(_MAX_STRICT_SOLVES):
            if proposal.solved or proposal.predicted_reduction > self._least_reduction(point.objective):
                break
            proposal = self._propose(point, strict=True)
        return proposal

    def _has_converged(self, point: _Point) -> bool:
        """Return whether the predicted reduction is small without damping, too."""
        if not self._damping:
            return True
        damping, dual = self._damping, self._linear.dual
        self._damping = 0.0
        self._linear.drop_preconditioner()  # not kept: two would need more memory than ``extra_bytes``
        proposal = self._solve_strictly(self._propose(point, strict=True), point)
        self._damping, self._linear.dual = damping, dual
        self._linear.drop_preconditioner()
        return proposal.solved and proposal.predicted_reduction <= self._least_reduction(point.objective)

    def _is_slow(self) -> bool:
        """Return whether the average reduction of the last successful steps is below ``tol`` of the objective."""
        losses = self.run.history.column("loss")
        successes = losses[losses <= np.minimum.accumulate(losses)]
        if not self._tol or len(successes) <= _SLOW_ITERATIONS:
            return False
        unit = self.run.problem.weight_unit
        reduction = (successes[-1 - _SLOW_ITERATIONS] - successes[-1]) / unit
        return bool(reduction <= _SLOW_ITERATIONS * self._least_reduction(successes[-1] / unit))

    def _stop_without_step(self, objective: float) -> None:
        """Stop because no step reduces the objective: converged if it is rounding of the first one, else stalled."""
        rounding = float(np.finfo(self.run.network.dtype).eps) * self._objective(self.run.history[0])
        self.converged, self.stalled = objective <= rounding, objective > rounding

    # The linearized network

    def _propose(self, point: _Point, *, strict: bool = False) -> _Proposal:
        """Return the weights after a step, and the reduction of the objective that the linearized network predicts."""
        run, residual = self.run, point.residual
        network, shares = run.network, run.problem.shares
        shift = self._ridge + self._damping
        displacement = network.weights - self._initial_weights
        roots = np.sqrt(run.loss.curvatures(point.predictions, run.problem.targets, run.problem.weight))
        system, outputs = self._linear.system(roots, shift), self._linear.output_layer()
        squared_displacement = self._squared_distance(network.weights, network.output_weights)
        pull = np.zeros_like(residual)  # (λ/ν) J D
        if squared_displacement:
            pull = run.engine.jacobian_product(displacement)
            if outputs is not None:
                pull = pull + outputs.layer.jacobian_product(network.output_weights - self._initial_outputs)
            pull = pull * (self._ridge / shift)
        scaled_residual = divided(residual, roots)
        right = scaled_residual - roots * pull
        # The objective of the step without what the system minimizes. 0 for squared error without damping.
        constant = point.objective - 0.5 * shares.dot(scaled_residual, scaled_residual)
        constant -= 0.5 * self._ridge * (self._ridge / shift) * squared_displacement  # λ² may overflow
        solution, solved = self._solve(system, right, point.objective, constant, strict=strict)
        # R J Δ follows from the residual of the system, without a further tangent product.
        weighted_change = -(right - solution.residual - shift * solution.z) - roots * pull
        change = divided(weighted_change, roots)
        neurons, rows = run.engine.gradient(roots * solution.z)
        new = network.weights - displacement * (self._ridge / shift)
        new[neurons] -= rows
        new_outputs = None
        if outputs is not None:
            output_displacement = network.output_weights - self._initial_outputs
            new_outputs = network.output_weights - output_displacement * (self._ridge / shift)
            new_outputs -= outputs.times(outputs.layer.gradient(roots * solution.z))
        linear, squares = shares.totals(float((residual * change).sum()), float((weighted_change**2).sum()))
        reduction = -linear - 0.5 * squares
        reduction += 0.5 * self._ridge * (squared_displacement - self._squared_distance(new, new_outputs))
        if not self._damping:
            self.predicted_reduction = reduction / point.objective if point.objective > 0 else 0.0
        return _Proposal(new, new_outputs, reduction, solved)

    def _solve(
        self, system: KernelSystem, right: np.ndarray, objective: float, constant: float, *, strict: bool
    ) -> tuple[Solution, bool]:
        """Solve A z = right, A = R J Jᵀ R + ν, to the accuracy that the step needs.

        With w = Jᵀ R z, the step minimizes ½ ‖right − R J w‖² + (ν/2) ‖w‖² + ``constant``. At a residual r this exceeds
        its minimum by g = ½ r·(1 − ν A⁻¹) r. The preconditioner gives an estimate of g, with y = M⁻¹ r for A⁻¹ r. Once
        A y is known there is a bound,

            g ≤ ½ (‖r‖² − ν (r·y)²/(y·A y)),

        since r·A⁻¹ r is the maximum of (r·v)²/(v·A v). ``strict`` ignores the estimate. The second result is whether
        the bound was met at the start of the iteration, where the residual is computed; later residuals are updated and
        accumulate rounding.
        """
        shift, shares = system.shift, self.run.problem.shares
        certified: bool | None = None
        excesses: list[float] = []  # after each product
        self.run.meter.begin("system")
        sums: list[float] = []  # of the last z, for both tests of it

        def enough(z: np.ndarray, r: np.ndarray, y: np.ndarray, yAy: float | None) -> bool:
            nonlocal certified, sums
            if yAy is None:
                applied = right - r - shift * z  # R J Jᵀ R z
                value = float(((right - applied) ** 2).sum()) + shift * float((z * applied).sum())
                sums = shares.totals(float((r * r).sum()), float((r * y).sum()), value)
            rr, ry, value = sums  # r·r, r·y, and twice the objective of the system
            excess = 0.5 * max(rr - shift * (ry if yAy is None else ry * (ry / yAy)), 0.0)
            now = constant + 0.5 * value
            limit = _LINEAR_SOLVE_TOLERANCE * self._least_reduction(max(now, _MIN_OBJECTIVE * objective))
            small = excess <= limit
            if yAy is None:
                excesses.append(excess)
                self.run.meter.report(len(excesses), _expected_products(excesses, limit))
                loose = not self._trusted and excess <= _LOOSE_SOLVE_TOLERANCE * (objective - now)
                return not strict and (small or loose)
            certified = small if certified is None else certified
            return small

        solution = self._linear.solve(system, right, enough)
        self.products += solution.products
        return solution, bool(certified) and solution.sound

    # Reports and memory

    def details(self) -> dict[str, Any]:
        return {
            "ridge": self.ridge,
            "leave_one_out_error": self.leave_one_out_error,
            "products": self.products,
            "predicted_reduction": self.predicted_reduction if self.stalled else None,
        }

    def settings(self) -> dict[str, Any]:
        outputs = {"trained_outputs": self._output_factor**0.5} if self.trains_outputs else {}
        return {"solver": self.name, "ridge": self._requested_ridge, **outputs}

    def extra_bytes(self, network: ShiftedReLUNetwork, n_samples: int) -> float:
        """Return the memory of copies of the weights, a partial factor, and the active pairs as lists and as bits.

        The copies are the weights at the start, the displacement, the same scaled, the new weights, and the gradient.
        With trained outputs also that of copies of them, and of the activations of the active pairs.
        """
        pairs = n_samples * network.width
        active = pairs * (1 / 8 + 5 * upper_tail(network.threshold))
        if self.trains_outputs:
            active += output_layer_bytes(network, pairs * upper_tail(network.threshold))
            active += 6.0 * network.output_weights.nbytes
        return 5.0 * network.weights.nbytes + partial_factor_bytes(n_samples) + active

    # Checkpoints

    @property
    def neuron_state(self) -> np.ndarray | None:
        """The weights before the last step, for neurons that it moved."""
        if self._trial is None:
            return None
        before, now = self._trial.start.weights, self.run.network.weights
        return np.where((before != now).any(axis=1)[:, None], before, before.dtype.type(0))

    def state(self) -> dict[str, float]:
        trial = self._trial
        return {
            "ridge": self._ridge,
            "damping": self._damping,
            "trusted": float(self._trusted),
            "reached_limit": float(self._linear.reached_limit),
            "separate_outputs": float(self._linear.separate_outputs),
            "leave_one_out_error": min(self.leave_one_out_error or 0.0, 1.0),  # 0 if it is unknown
            "predicted_reduction": trial.predicted_reduction if trial else 0.0,
            "trial_start": trial.record.iteration if trial else -1,
        }

    def check_state(self, state: Mapping[str, Any], iteration: int) -> None:
        numbers = "ridge", "damping", "trusted", "reached_limit", "separate_outputs"
        for name in (*numbers, "leave_one_out_error", "predicted_reduction"):
            value = state.get(name)
            if not (isinstance(value, float) and isfinite(value) and value >= 0):
                raise InputError(f"`{name}` is {str(value)[:40]!r}")
        start = state.get("trial_start")
        if type(start) is not int or not -1 <= start < iteration:
            raise InputError(f"`trial_start` is {str(start)[:40]!r}")

    def resume(self, run: Run, state: Mapping[str, Any], neuron_state: np.ndarray | None) -> None:
        self._reset(run)
        self._ridge, self._damping = state["ridge"], state["damping"]
        self.leave_one_out_error = state["leave_one_out_error"] or None
        self._trusted = bool(state["trusted"])
        self._linear.reached_limit = bool(state["reached_limit"])
        self._linear.separate_outputs = bool(state["separate_outputs"])
        if state["trial_start"] >= 0:
            start = Snapshot(run.network, run.history[state["trial_start"]], with_outputs=self.trains_outputs)
            if neuron_state is not None:
                moved = neuron_state.any(axis=1)
                start.weights[moved] = neuron_state[moved]
            self._trial = _TrialStep(start, state["predicted_reduction"])

    @property
    def output_state(self) -> np.ndarray | None:
        """The output weights before the last step."""
        return None if self._trial is None else self._trial.start.output_weights

    def resume_outputs(self, output_state: np.ndarray | None) -> None:
        if self._trial is not None and self._trial.start.output_weights is not None and output_state is not None:
            np.copyto(self._trial.start.output_weights, output_state)

    def drop_caches(self) -> None:
        self._linear.drop_caches()


def _expected_products(excesses: list[float], limit: float) -> float:
    """Return the number of products until the excess is below ``limit``, if it goes on to fall at its mean rate."""
    first, last = excesses[0], excesses[-1]
    if not 0 < limit < last < first:
        return MAX_PRODUCTS if last > limit else len(excesses)
    made = len(excesses) - 1
    return min(1 + made * log(first / limit) / log(first / last), MAX_PRODUCTS)


def choose_ridge(
    kernel: np.ndarray, loss: Loss, start: np.ndarray, targets: np.ndarray, weight: np.ndarray
) -> LeaveOneOutFit:
    """Choose the ridge for a loss by reweighted leave-one-out least squares.

    Each iteration makes a working response u − e/b with weights b from the current predictions u, as iteratively
    reweighted least squares does. It predicts each row without that row for several λ, in closed form
    (``theory/leave_one_out.py``), and chooses the λ whose predictions have the smallest *loss*. They are the u of the
    next iteration. With a single iteration (``Loss.ridge_iterations``), the λ with the smallest weighted square error
    is chosen, which is the loss for squared error.

    Parameters
    ----------
    kernel : (n, n) array
        Only the lower triangle is used.
    start : (n, c) array
        Outputs of the network before training.
    """
    loss, targets = loss.ridge_problem(targets, weight)
    first = start[:, : targets.shape[1]]
    # λ is in units of the curvatures. Those of an exponential link are e^u: at a start far from all targets, one row
    # would dominate all others, and λ would keep the weights at that start.
    zero = np.zeros_like(first)
    u = zero if loss.value(zero, targets, weight) < loss.value(first, targets, weight) else first
    place, found = _FIRST_RIDGE, None
    for _ in range(loss.ridge_iterations):
        smooth = loss.smoothed(targets - u, weight)
        # One curvature for all outputs of a row, so that one factorization serves all.
        curvatures = np.maximum(smooth.curvatures(u, targets, weight).mean(axis=1), 1e-300)
        response = u - smooth.residual(u, targets, weight) / curvatures[:, None] - first

        def score(errors: np.ndarray, response: np.ndarray = response) -> float:
            return loss.value(first + response - errors, targets, weight)

        found = best_ridge(kernel, response, curvatures, place, score if loss.ridge_iterations > 1 else None)
        before = loss.value(u, targets, weight)
        u, place = first + response - found.errors, max(found.ridge_index, 0)
        if not loss.value(u, targets, weight) <= _MAX_LOSS_INCREASE * before:
            break
    assert found is not None
    return found
