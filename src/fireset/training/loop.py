"""The training loop: ``train`` runs it, ``Trainer`` also allows one iteration at a time.

An iteration::

    checkpoint, if one is due
    evaluate        forward pass, loss, residual, record            Trainer.evaluate
    stop?           callbacks, stopping rules, signals              Trainer.run
    step            the solver moves the weights                    training/solvers/

The loop does not depend on a particular engine or solver.
"""

import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import isfinite
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.parallel import one_blas_thread, parallel_map, ranges
from fireset.distributed.agreement import check_same, raise_on_all_workers
from fireset.distributed.shard import NetworkShard, check_same_run
from fireset.distributed.worker_grid import current_grid
from fireset.engines.base import Engine
from fireset.network import ShiftedReLUNetwork
from fireset.sparse_rows import equal_rows
from fireset.training.checkpoint import Checkpoints, RunCheckpoints
from fireset.training.engine_setup import set_up_engine
from fireset.training.history import Clock, History, Iteration, WorkCounter
from fireset.training.losses import Loss, get_loss
from fireset.training.memory import parse_memory
from fireset.training.problem import TrainingProblem
from fireset.training.progress import Callback, EndCallback, Progress
from fireset.training.result import TrainingResult, check_result
from fireset.training.run import Run
from fireset.training.signals import Received, interruptible, terminable
from fireset.training.solvers import Solver, make_solver
from fireset.training.stopping import Stopping, StopReason, reason_of_rank, stop_rank

_CHECKED_ROUNDING = 1e-3  # output_scale times eps, above which the loss of the result is computed again
_GOLDEN_RATIO = 0.6180339887498949


def train(
    network: ShiftedReLUNetwork | NetworkShard,
    X,
    y,
    *,
    callbacks: Sequence[Callback] = (),
    **settings,
) -> TrainingResult:
    """Train ``network`` in place, by full-batch gradient descent unless another ``solver`` is given.

    ``train(network, X, y, callbacks=…, **settings)`` is ``Trainer(network, X, y, **settings).run(callbacks)``. The
    settings are documented there.

    Inside an initialized process group of torch.distributed, all workers train this network together. Each has some of
    its neurons, or in a grid (``fireset.distributed.worker_grid.grid``) some of its neurons and some of the rows. All
    must call ``train`` with equal arguments.

    Ctrl-C ends training after the current iteration and keeps the best network: with validation rows that of the lowest
    validation loss; without, the current one unless its loss is more than twice the lowest. A second Ctrl-C ends at
    once.

    Parameters
    ----------
    callbacks
        Called with a ``Progress`` after each forward pass. One that returns True or a ``StopReason`` ends training. If
        a callback has a method ``end``, that is called with the ``Progress`` of the last iteration.
    """
    return Trainer(network, X, y, **settings).run(callbacks)


class Trainer:
    """Trains a network in place: completely with ``run``, or one iteration at a time with ``step``.

    >>> trainer = Trainer(network, X, y, engine="data")     # checks the input and does the preprocessing
    >>> for _ in range(100):
    ...     record = trainer.step()                         # loss, active pairs, work, seconds
    >>> result = trainer.finish()                           # restores the best weights

    Parameters
    ----------
    X : (n, d) array, or sparse matrix of SciPy (engines "dense" and "data")
        Rows of norm 1. ``any_norm=True`` allows others: training stays exact, but the paper's thresholds assume norm 1.
    y : (n,) or (n, c) array
    engine : str or Engine
        "auto", a name that ``fireset engines`` lists, or an engine object such as ``create("data", radius=0)``.
    solver : "gradient", "gauss-newton", "nystrom" or Solver
        The paper's gradient descent, regularized least squares on the linearized network (``GaussNewton``), its
        restriction to centre rows for many rows (``NystromGaussNewton``), or an object.
    loss : str or Loss
        "squared_error", the paper's ½ Σ (u − y)², or another name or object of ``fireset.training.losses``.
    learning_rate : "auto", "theory" or a number
        "auto" starts from 1/λ_max of the tangent kernel and halves when a step increases the loss.
    momentum, nesterov
        Heavy-ball or Nesterov momentum; 0 is the paper's plain descent. With learning_rate="auto", a loss that grows
        first resets the momentum, then halves the rate.
    batch_size, shuffle_seed
        Number of rows for one step, drawn by the seed; an iteration is then an epoch (``MiniBatchDescent``).
    trained_outputs : bool or float
        Whether the output weights are trained, too, which then become real numbers. For "gauss-newton" a number s is
        the scale of their steps relative to those of the weights; True is 1.
    ridge : "auto" or a number
        λ of the ridge towards the initial weights, for "gauss-newton"; "auto" chooses it by leave-one-out.
    max_iter : int
    tol : float
        Stop when the loss is below tol times the first loss, or improves by less than tol of itself in 10 iterations.
        0 runs all ``max_iter`` iterations.
    sample_weight : (n,) array, optional
    validation : (X, y), optional
        Stop when the validation loss has not improved for ``patience`` iterations; the weights of the best iteration
        are kept. The engine processes these rows with residual 0, at the cost of their active pairs.
    checkpoint : Checkpoints, optional
        Write checkpoints, and resume from one. SIGTERM then ends training as "terminated", with a final checkpoint,
        within 5 seconds.
    memory : int or str, optional
        Bytes that this process may use, such as "12G"; by default the free memory. If the candidate lists of the data
        engine need more, they are made in blocks, at the cost of a pass over all pairs in each iteration.
    own_rows : bool
        On a grid with several parts of the rows: whether X, y, sample_weight and validation have the rows of this
        worker only, which are then numbered in the order of the workers. By default every worker passes all rows. Parts
        of solver="nystrom" should begin at multiples of ``NystromGaussNewton.row_unit`` rows.

    Attributes
    ----------
    history : History
    engine : Engine
    problem : TrainingProblem
    """

    def __init__(
        self,
        network: ShiftedReLUNetwork | NetworkShard,
        X,
        y,
        *,
        engine: str | Engine = "auto",
        solver: str | Solver = "gradient",
        loss: str | Loss = "squared_error",
        learning_rate: float | str = "auto",
        momentum: float = 0.0,
        nesterov: bool = False,
        batch_size: int | None = None,
        shuffle_seed: int = 0,
        trained_outputs: bool | float = False,
        ridge: float | str = "auto",
        max_iter: int = 500,
        tol: float = 1e-6,
        sample_weight=None,
        validation: tuple[Any, Any] | None = None,
        patience: int = 20,
        any_norm: bool = False,
        checkpoint: Checkpoints | None = None,
        memory: int | str | None = None,
        own_rows: bool = False,
    ):
        solver_settings = {
            "learning_rate": learning_rate,
            "momentum": momentum,
            "nesterov": nesterov,
            "ridge": ridge,
            "tol": tol,
            "batch_size": batch_size,
            "shuffle_seed": shuffle_seed,
            "trained_outputs": trained_outputs,
        }
        other = {"engine": engine, "solver": solver, "loss": loss, "max_iter": max_iter, "patience": patience}
        other |= {"any_norm": any_norm, "checkpoint": checkpoint.shared_settings() if checkpoint else None}
        other |= {"own_rows": own_rows}
        workers = check_same_run(network, {**solver_settings, **other})  # first: later calls may wait for all workers
        self._stopping = Stopping(max_iter, tol, patience)
        self._solver = make_solver(solver, solver_settings)
        loss = get_loss(loss)
        self._whole_network, self._any_norm = network, any_norm
        memory_bytes = parse_memory(memory)
        shard = NetworkShard.of(network, current_grid())
        row_group = shard.grid.same_neurons
        with raise_on_all_workers(workers):
            given = TrainingProblem.check(
                shard.local,
                X,
                y,
                loss,
                sample_weight=sample_weight,
                validation=validation,
                any_norm=any_norm,
                is_share=own_rows and row_group.size > 1,
            )
        given = given.joined(row_group) if own_rows else given
        if workers.size > 1:
            check_same(workers, {"rows": given.n_rows, **given.fingerprints()})
        self._loss_name = str(loss)
        loss = given.for_targets(loss)
        problem = given if own_rows else given.share(row_group, self._solver.row_unit)
        started = time.perf_counter()
        engine = set_up_engine(
            engine,
            shard,
            problem,
            self._solver,
            max_iter=max_iter,
            memory=memory,
            resumed_engine=checkpoint.engine_to_resume(workers, self._solver.settings()) if checkpoint else None,
        )
        self._compile_seconds = time.perf_counter() - started
        self._clock = Clock()
        with self._clock.running():
            self._begin(Run(shard, engine, problem, loss, self._solver, max_iter, memory_bytes))
            self._start(checkpoint)
        self.start_seconds = self._clock.seconds
        # The clock of a resumed run continues from that of the checkpoint.
        self._clock = Clock(self.history[-1].seconds if self.history else 0.0)
        self._remember_weights()

    @property
    def history(self) -> History:
        return self._run.history

    @property
    def engine(self) -> Engine:
        return self._run.engine

    @property
    def problem(self) -> TrainingProblem:
        return self._run.problem

    @property
    def _network(self) -> ShiftedReLUNetwork:
        return self._run.network

    def _settings(self) -> dict[str, Any]:
        """Return the settings and fingerprints that identify the run."""
        network = self._network
        return {
            "loss": self._loss_name,
            **self._solver.settings(),
            "tol": self._stopping.tol,
            "patience": self._stopping.patience,
            "engine": self.engine.name,
            "width": self._run.shard.width,
            "outputs": network.n_outputs,
            "dtype": str(network.dtype),
            "threshold": network.threshold,
            "output_scale": network.output_scale,
            **self.problem.fingerprints(),
        }

    def _begin(self, run: Run) -> None:
        self._run = run
        self._counter = WorkCounter(run.engine)
        self._rolled_back = False

    def _start(self, checkpoint: Checkpoints | None) -> None:
        """Load a checkpoint if there is one; then start the engine and the solver."""
        self._solver.remember_start(self._network)
        self._checkpoints = RunCheckpoints(checkpoint, self._run, self._settings()) if checkpoint else None
        self._solver.pass_state = self._checkpoints.pass_state() if self._checkpoints else None
        with self._checkpoints.released_on_error() if self._checkpoints else nullcontext():
            resumed = self._checkpoints is not None and self._checkpoints.load()
            self.resumed_at = len(self.history) if resumed else None
            if self.resumed_at is not None and self._stopping.max_iter < self.resumed_at:
                raise InputError(
                    f"max_iter must be at least {self.resumed_at}, the iteration of the checkpoint, got "
                    f"{self._stopping.max_iter}"
                )
            with one_blas_thread():  # faster, and η does not depend on how BLAS divides its sums
                self._run.start_engine()
                if self.resumed_at is None:
                    self._solver.start(self._run)
                    # In a resumed run this work belongs to the next iteration, as without an interruption.
                    self._counter.skip(self.engine, oracle_queries=False)

    # One iteration

    def step(self, callbacks: Iterable[Callback] = ()) -> Iteration:
        """Evaluate, call the callbacks and move the weights; return the record of the weights before the step."""
        self._check_weights()
        with self._guarded():
            self._checkpoint_if_due()
            progress = self.evaluate()
            for callback in callbacks:
                callback(progress)
            self._solver.step(progress)
        self._remember_weights()
        return progress.record

    def _remember_weights(self) -> None:
        """Compute checksums of all weights. Cost O(m d), a fraction of a forward pass over a few rows."""
        self._checksums = {name: _checksums(getattr(self._network, name)) for name in ("weights", "output_weights")}

    def _check_weights(self) -> None:
        """Raise InputError if the weights have changed since the last step: the engine's lists would be invalid."""
        for name, expected in self._checksums.items():
            if not np.array_equal(_checksums(getattr(self._network, name)), expected, equal_nan=True):
                raise InputError(
                    f"`network.{name}` must not change between the steps of a Trainer, got other values than after the "
                    f"last step; make a new Trainer to go on from them"
                )

    def evaluate(self) -> Progress:
        """Make a forward pass at the current weights, and record it as an iteration."""
        engine, problem, loss = self.engine, self.problem, self._run.loss
        predictions = self._solver.predictions()
        u = engine.forward() if predictions is None else predictions
        pairs = problem.n_rows * self._run.shard.width
        weights = [problem.weight, problem.held_out][: 1 + problem.has_validation]
        value, *validation = problem.total(*(loss.value(u, problem.targets, weight) for weight in weights))
        record = Iteration(
            iteration=len(self.history),
            loss=problem.weight_unit * (value + self._solver.penalty()),
            validation_loss=validation[0] if validation else None,
            active_fraction=engine.work.active_pairs / pairs,
            learning_rate=self._solver.learning_rate,
            seconds=self._clock.seconds,
            **self._counter.since_last(engine),
        )
        self.history.append(record)
        self._run.best.update(record)
        return Progress(self._run, record, u, loss.residual(u, problem.targets, problem.weight))

    def _checkpoint_if_due(self) -> None:
        if self._at_checkpoint() and len(self.history) != self.resumed_at and self._save_checkpoint():
            # As in a resumed run: the order of sums depends on the order of the candidate lists.
            self._run.start_engine()
            self._solver.drop_caches()

    def _at_checkpoint(self) -> bool:
        """Return whether a checkpoint is due. A run that ends elsewhere cannot be resumed bit for bit."""
        return self._checkpoints is not None and self._checkpoints.due(len(self.history))

    def _save_checkpoint(self) -> bool:
        """Write a checkpoint unless a weight is not finite, which the next iteration handles."""
        assert self._checkpoints is not None
        finite = self._run.group.all_true(bool(np.isfinite(self._network.weights).all()))
        if finite:
            self._checkpoints.save()
        return finite

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Set up what each iteration needs. NumPy does not warn of overflow, which the stopping rules handle."""
        with (
            self._clock.running(),
            self._checkpoints.released_on_error() if self._checkpoints else nullcontext(),
            self._run.best.restored_on_error(),
            np.errstate(over="ignore", invalid="ignore"),
            one_blas_thread(),  # entered once, not in each pass
        ):
            yield

    def use_rows(self, X, y, *, sample_weight=None) -> None:
        """Continue on other rows with the next ``run``: network, engine and solver stay, the history starts again.

        The engine is started again only if the rows differ. Not available with checkpoints.
        """
        if self._checkpoints is not None:
            raise InputError("a run with checkpoints keeps to its rows; leave checkpoint out, or make another Trainer")
        self._check_weights()
        whole = TrainingProblem.check(self._network, X, y, self._run.loss, sample_weight, any_norm=self._any_norm)
        problem = whole.share(self._run.shard.grid.same_neurons, self._solver.row_unit)
        restart = self._rolled_back or not equal_rows(problem.X, self.problem.X)
        rolled_back, self._clock, self.start_seconds = self._rolled_back, Clock(), 0.0
        self._begin(self._run.on(problem))
        with one_blas_thread():
            if restart:
                self._run.start_engine()
            self._solver.use_rows(self._run, rolled_back=rolled_back)
        self._counter.skip(self.engine)

    # All iterations

    def run(self, callbacks: Sequence[Callback] = ()) -> TrainingResult:
        """Iterate until a stopping rule, a callback or a signal ends the run."""
        self._check_weights()
        with (
            interruptible() as interrupted,
            terminable() if self._checkpoints else nullcontext(Received()) as terminated,
            self._guarded(),
        ):
            while True:
                self._checkpoint_if_due()
                progress = self.evaluate()
                reason = self._stop_reason(progress, callbacks, interrupted, terminated)
                if reason is not None:
                    for callback in callbacks:
                        if isinstance(callback, EndCallback):
                            callback.end(progress)
                if reason in (None, StopReason.TERMINATED):
                    self._solver.step(progress)
                if reason is None and self._solver.converged:
                    reason = StopReason.TOL
                elif reason is None and self._solver.stalled:
                    reason = StopReason.STALLED
                if reason is StopReason.TERMINATED:
                    self._save_checkpoint()
                if reason is not None:
                    return self.finish(reason)

    def _stop_reason(
        self, progress: Progress, callbacks: Sequence[Callback], interrupted: Received, terminated: Received
    ) -> StopReason | None:
        """Return why to stop now, equal on all workers, or None."""
        answers = [callback(progress) for callback in callbacks]  # all are called, even if one stops the run
        reasons = [answer if isinstance(answer, StopReason) else StopReason.CALLBACK for answer in answers if answer]
        reason = max(reasons, key=stop_rank, default=None) or self._stopping.reason(
            self.history,
            self._run.best.best,
            steady_since=self._solver.steady_since,
            adaptive=self._solver.adaptive,
        )
        if interrupted.is_set():
            reason = StopReason.INTERRUPTED
        elif terminated.is_set() and not reason and (terminated.overdue or self._at_checkpoint()):
            reason = StopReason.TERMINATED
        reason = reason_of_rank(self._run.group.all_reduce_max(stop_rank(reason)))
        if reason in (None, StopReason.TERMINATED) and progress.record.iteration == self._stopping.max_iter:
            return StopReason.MAX_ITER
        return reason

    def finish(self, reason: StopReason = StopReason.MAX_ITER) -> TrainingResult:
        """Restore the best weights on all workers, and release the checkpoint folder."""
        self._solver.finish()
        best = self._run.best.finish()
        if reason is StopReason.TOL and self._is_above_zero_weights():
            reason = StopReason.STALLED
        by_validation = self.problem.has_validation
        check_result(self.history, best, reason, by_validation=by_validation, settings=self._all_settings)
        self._check_rounding()
        self._rolled_back = best is not self.history[-1]
        self._run.shard.gather_into(self._whole_network)
        self._remember_weights()
        if self._checkpoints is not None:
            if self._solver.pass_state is not None and reason is not StopReason.TERMINATED:
                self._solver.pass_state.clear()
            self._checkpoints.release()
        if reason is StopReason.DIVERGED:
            self._warn_diverged(best)
        return TrainingResult(
            history=self.history,
            stop_reason=reason,
            engine=self.engine.name,
            solver=self._solver.name,
            details=self._solver.details(),
            learning_rate=self._solver.learning_rate,
            loss=best.loss,
            best_iteration=best.iteration,
            start_seconds=self.start_seconds,
            compile_seconds=self._compile_seconds,
            blocks=self.engine.blocks,
            resumed_at=self.resumed_at,
        )

    def _all_settings(self) -> dict[str, Any]:
        """Return settings and results of the run, for the report of an internal error."""
        features = self._network.n_features
        return {**self._settings(), **self._solver.details(), "rows": self.problem.n_rows, "features": features}

    def _warn_diverged(self, best: Iteration) -> None:
        first = self.history[0].loss
        message = (
            f"the loss grew beyond all bounds at learning_rate={self._solver.learning_rate:.4g}; the network is that "
            f"of iteration {best.iteration}. Use learning_rate='auto' or a smaller number"
            if isfinite(first)
            else f"the loss is {first} at the start: the predictions overflow. Use smaller weights"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=5)

    def _is_above_zero_weights(self) -> bool:
        """Return whether weights of 0 have a lower objective than all iterations, which are then not at a minimum.

        With a threshold of at least 0 the outputs of such weights are 0. A loss that is flat in floating point, such as
        one with an exponential link at e^200, would otherwise count as converged.
        """
        if self._network.threshold < 0:
            return False
        problem = self.problem
        (loss,) = problem.total(self._run.loss.value(np.zeros_like(problem.targets), problem.targets, problem.weight))
        at_zero = problem.weight_unit * (loss + self._solver.penalty_at_zero())
        return float(np.nanmin(self.history.column("loss"))) > (1.0 + self._stopping.tol) * at_zero

    def _check_rounding(self) -> None:
        """Raise InputError if outputs are scaled so much that rounding cancels the improvement by training.

        The loss in the history and that of ``network.predict`` then differ, since they add in another order.
        """
        network, problem, first = self._network, self.problem, self.history[0].loss
        rounding = network.output_scale * float(np.finfo(network.dtype).eps)
        if rounding <= _CHECKED_ROUNDING or self._run.group.size > 1 or problem.has_validation or not isfinite(first):
            return
        loss = problem.weight_unit * self._run.loss.value(network.predict(problem.X), problem.targets, problem.weight)
        if not loss <= first * (1.0 + _CHECKED_ROUNDING):
            raise InputError(
                f"output_scale must be small enough for {network.dtype}, got {network.output_scale:g}: rounding of the "
                f"predictions leaves a loss of {loss:.4g}, {first:.4g} before training; use output_scale=1000 or less, "
                f"or dtype='float64'"
            )


def _checksums(array: np.ndarray) -> np.ndarray:
    """Return the products of the rows of (m, d) with fixed factors, (m,); three times faster than a CRC of all bytes.

    They do not show changes below the rounding error of an inner product, for which certificates have slack.
    """
    array = np.ascontiguousarray(array)  # another order would be rounded otherwise
    factors = (1.0 + np.arange(array.shape[1]) * _GOLDEN_RATIO % 1.0).astype(array.dtype)  # no two are equal
    with np.errstate(over="ignore", invalid="ignore"):
        parts = parallel_map(lambda span: array[slice(*span)] @ factors, ranges(len(array)), uses_blas=True)
    return np.concatenate(parts)
