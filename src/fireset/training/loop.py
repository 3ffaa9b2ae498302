"""The training loop: ``train`` runs it, ``Trainer`` can be driven an iteration at a time.

An iteration is a forward pass, what the solvers, callbacks and stopping rules make of it, and a step::

    checkpoint, if one is due
    evaluate        forward pass, loss, residual, record            Trainer.evaluate
    stop?           callbacks, stopping rules, signals              Trainer.run
    step            the solver moves the weights                    training/solvers/

The loop knows no engine and no solver by name.
"""

import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import isfinite
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.parallel import one_blas_thread
from fireset.distributed.agreement import check_same, failing_together
from fireset.distributed.shard import NetworkShard, check_same_run
from fireset.engines.base import Engine
from fireset.network import ShiftedReLUNetwork
from fireset.sparse_rows import same_rows
from fireset.training.best_weights import BestWeights
from fireset.training.checkpoint import CheckpointFolder, Checkpoints
from fireset.training.clock import Clock
from fireset.training.history import History, Iteration, WorkCounter
from fireset.training.invariants import check_result
from fireset.training.losses import Loss, get_loss
from fireset.training.memory import parse_memory
from fireset.training.plan import Plan, shard_of
from fireset.training.problem import TrainingProblem
from fireset.training.progress import Callback, EndCallback, Progress
from fireset.training.result import TrainingResult
from fireset.training.signals import Received, interruptible, terminable
from fireset.training.solvers import Evaluation, Solver, SolverContext, make_solver
from fireset.training.stopping import Stopping, StopReason, reason_of_rank, stop_rank

_MUCH_ROUNDING = 1e-3  # of 1: output_scale times eps, from which on rounding is looked at


def train(
    network: ShiftedReLUNetwork | NetworkShard,
    X,
    y,
    *,
    callbacks: Sequence[Callback] = (),
    **settings,
) -> TrainingResult:
    """Train ``network`` in place, by full-batch gradient descent unless another ``solver`` is given.

    ``train(network, X, y, callbacks=…, **settings)`` is ``Trainer(network, X, y, **settings).run(callbacks)``: the
    settings, with what they mean, are those of ``Trainer``.

    Inside an initialized process group of torch.distributed all workers train this one network together, each some of
    its neurons, or in a grid (``fireset.distributed.worker_grid.grid``) some of its neurons and some of the rows. All
    must call ``train`` with the same arguments.

    Ctrl-C ends training after the current iteration and keeps the network (with validation, the best one; without, the
    current one unless a step has just made it worse than twice the best); a second Ctrl-C ends at once.

    Parameters
    ----------
    callbacks
        Called with a ``Progress`` after each forward pass; one that returns True ends training. One with a method
        ``end`` has it called with the ``Progress`` of the last iteration.
    """
    return Trainer(network, X, y, **settings).run(callbacks)


class Trainer:
    """Trains a network in place: all at once with ``run``, or an iteration at a time.

    >>> trainer = Trainer(network, X, y, engine="data")     # checks, chooses, preprocesses
    >>> for _ in range(100):
    ...     record = trainer.step()                         # loss, fired pairs, work, seconds
    >>> result = trainer.finish()                           # the best weights are in the network

    Parameters
    ----------
    X : (n, d) array, or sparse matrix of SciPy (engines "dense" and "data")
        Rows of norm 1. ``any_norm=True`` allows others: exactness is kept, but the paper's thresholds assume norm 1.
    y : (n,) or (n, c) array
    engine : str or Engine
        "auto", a name that ``fireset engines`` lists, or an engine object such as ``create("data", radius=0)``.
    solver : "gradient", "gauss-newton" or Solver
        How the weights are moved: by the paper's gradient descent, by rounds of regularized least squares
        (``GaussNewton``), or by an object of your own.
    loss : str or Loss
        "squared_error", the paper's ½ Σ (u − y)², another name or object of ``fireset.training.losses``, or your own.
    learning_rate : "auto", "theory" or a number
        "auto" starts from 1/λ_max of the fire-set kernel, and halves when a step makes the loss grow.
    momentum, nesterov
        Heavy-ball or Nesterov momentum; 0 is the paper's plain descent. With learning_rate="auto" a growing loss
        first stops the momentum, then halves the rate.
    batch_size, shuffle_seed
        Step on batches of so many rows, drawn by the seed; an iteration is then an epoch (``MiniBatchDescent``).
    trained_outputs : bool
        Whether gradient descent trains the output layer, too; ``network.output_weights`` are real numbers then.
    ridge : "auto" or a number
        λ of the ridge towards the start that "gauss-newton" has; "auto" chooses it by leave-one-out.
    max_iter : int
    tol : float
        Stop when the loss is below tol times the first loss, or improves by less than tol of itself over 10
        iterations. 0 runs all ``max_iter`` iterations.
    sample_weight : (n,) array, optional
    validation : (X, y), optional
        Stop when the loss there has not improved for ``patience`` iterations; the weights of the best iteration are
        kept. The rows ride along in the engine with residual 0, at the price of their fired pairs.
    checkpoint : Checkpoints, optional
        Write checkpoints, and go on from one. SIGTERM then ends training as "terminated" with one more, in 5 seconds.
    memory : int or str, optional
        Bytes that this process may take, such as "12G"; by default what the system has free. Where the lists of the
        data engine would take more they are made in blocks, at the price of a pass over all pairs in each iteration.

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
        trained_outputs: bool = False,
        ridge: float | str = "auto",
        max_iter: int = 500,
        tol: float = 1e-6,
        sample_weight=None,
        validation: tuple[Any, Any] | None = None,
        patience: int = 20,
        any_norm: bool = False,
        checkpoint: Checkpoints | None = None,
        memory: int | str | None = None,
    ):
        given = {"learning_rate": learning_rate, "momentum": momentum, "nesterov": nesterov, "ridge": ridge, "tol": tol}
        given |= {"batch_size": batch_size, "shuffle_seed": shuffle_seed, "trained_outputs": trained_outputs}
        asked = {"engine": engine, "solver": solver, "loss": loss, "max_iter": max_iter, "patience": patience}
        asked |= {"any_norm": any_norm, "checkpoint": checkpoint.shared_settings() if checkpoint else None}
        workers = check_same_run(network, {**given, **asked})  # first of all: what follows may wait for the others
        self._stopping = Stopping(max_iter, tol, patience)
        self._solver = make_solver(solver, given)
        loss = get_loss(loss)
        self._whole, self._any_norm, self._memory = network, any_norm, parse_memory(memory)
        shard = shard_of(network)
        self._network = shard.local
        with failing_together(workers):
            whole = TrainingProblem.check(
                self._network, X, y, loss, sample_weight=sample_weight, validation=validation, any_norm=any_norm
            )
        if workers.size > 1:
            check_same(workers, {"rows": whole.n_rows, **whole.fingerprints()})
        self._loss_name, self._loss = str(loss), loss.for_targets(whole.targets, whole.weight)
        self.problem = whole.share(shard.grid.same_neurons)
        self._plan = Plan.make(
            shard, self.problem, engine=engine, solver=self._solver, max_iter=max_iter, memory=memory
        )
        self.engine = self._plan.engine
        self._clock = Clock()
        with self._clock.running():
            self._start(checkpoint)
        self.start_seconds = self._clock.seconds
        # After a crash, time goes on from where the checkpoint was written.
        self._clock = Clock(self.history[-1].seconds if self.history else 0.0)
        self._remember_weights()

    def _facts(self) -> dict[str, Any]:
        """What a run is made of, for a report of a fault."""
        network = self._network
        return {
            "loss": self._loss_name,
            **self._solver.settings(),
            **self._solver.details(),
            "engine": self.engine.name,
            "rows": self.problem.n_rows,
            "width": self._plan.shard.width,
            "features": network.n_features,
            "outputs": network.n_outputs,
            "dtype": str(network.dtype),
            "threshold": network.threshold,
            "output_scale": network.output_scale,
            **self.problem.fingerprints(),
        }

    def _check_rounding(self) -> None:
        """Refuse a network whose outputs are scaled up so much that rounding undoes what training has gained.

        The loss that the history records and that of ``network.predict`` then differ: they add in another order.
        """
        network, problem, first = self._network, self.problem, self.history[0].loss
        rounding = network.output_scale * float(np.finfo(network.dtype).eps)
        if rounding <= _MUCH_ROUNDING or self._plan.group.size > 1 or problem.has_validation or not isfinite(first):
            return
        loss = problem.weight_unit * self._loss.value(network.predict(problem.X), problem.targets, problem.weight)
        if not loss <= first * (1.0 + _MUCH_ROUNDING):
            raise InputError(
                f"output_scale must be small enough for {network.dtype}, got {network.output_scale:g}: rounding of the "
                f"predictions leaves a loss of {loss:.4g}, {first:.4g} before training; use output_scale=1000 or less, "
                f"or dtype='float64'"
            )

    def _new_context(self) -> SolverContext:
        """An empty history, and a safe copy of the weights as they are."""
        self.history = History()
        self._counter = WorkCounter(self.engine)
        kept = {"by_validation": self.problem.has_validation, "with_outputs": self._solver.trains_outputs}
        self._best = BestWeights(self._network, **kept)
        shared = self._loss, self._best, self.history, self._plan.group, self._memory
        return SolverContext(self._network, self.engine, self.problem, *shared)

    def _start(self, checkpoint: Checkpoints | None) -> None:
        """The preprocessing; the state of a checkpoint, if there is one to go on from; the solver's start."""
        self._context = self._new_context()
        self._went_back = False
        self._solver.remember_start(self._network)
        self._folder = self._checkpoint_folder(checkpoint)
        with self._folder.released_on_error() if self._folder else nullcontext():
            self.resumed_at = len(self.history) if self._folder is not None and self._folder.load() else None
            if self.resumed_at is not None and self._stopping.max_iter < self.resumed_at:
                raise InputError(
                    f"max_iter must be at least {self.resumed_at}, the iteration of the checkpoint, got "
                    f"{self._stopping.max_iter}"
                )
            with one_blas_thread():  # for speed, and so that η does not depend on how BLAS shares its sums out
                self.engine.start(self._network, self.problem.X)
                if self.resumed_at is None:
                    self._solver.start(self._context)
                    # When resumed, they belong to the next iteration, as in a run that was not interrupted.
                    self._counter.skip(self.engine, oracle_queries=False)

    def _checkpoint_folder(self, checkpoint: Checkpoints | None) -> CheckpointFolder | None:
        network = self._network
        if checkpoint is None:
            return None
        if self._solver.trains_outputs:
            raise InputError("a run with trained_outputs cannot be resumed; leave checkpoint out")
        settings = {
            "loss": self._loss_name,
            **self._solver.settings(),
            "tol": self._stopping.tol,
            "patience": self._stopping.patience,
            "engine": self.engine.name,
            "width": self._plan.shard.width,
            "outputs": network.n_outputs,
            "dtype": str(network.dtype),
            "threshold": network.threshold,
            "output_scale": network.output_scale,
            **self.problem.fingerprints(),
        }
        return CheckpointFolder(checkpoint, self._plan.shard, self._context, self._solver, settings)

    # One iteration

    def step(self, callbacks: Iterable[Callback] = ()) -> Iteration:
        """One iteration: evaluate, tell the callbacks, move the weights; returns what was seen before they moved."""
        self._check_weights()
        with self._guarded():
            self._checkpoint_if_due()
            progress = self.evaluate()
            for callback in callbacks:
                callback(progress)
            self._solver.step(self._evaluation)
        self._remember_weights()
        return progress.record

    def _remember_weights(self) -> None:
        """Compute checksums of weights and outputs. Cost O(m d), a fraction of a forward pass over a few rows."""
        self._checksums = {name: _checksum(getattr(self._network, name)) for name in ("weights", "output_weights")}

    def _check_weights(self) -> None:
        """Refuse weights that were changed since the last step: what the engine knows of them is no longer true."""
        for name, known in self._checksums.items():
            if _checksum(getattr(self._network, name)) != known:
                raise InputError(
                    f"`network.{name}` must not change between the steps of a Trainer, got other values than after the "
                    f"last step; make a new Trainer to go on from them"
                )

    def evaluate(self) -> Progress:
        """The forward pass at the current weights, recorded as an iteration."""
        engine, problem = self.engine, self.problem
        seen = self._solver.predictions()
        u = engine.forward() if seen is None else seen
        pairs = problem.n_rows * self._plan.shard.width
        counted = [problem.weight, problem.held_out][: 1 + problem.has_validation]
        loss, *held_out = problem.total(*(self._loss.value(u, problem.targets, weight) for weight in counted))
        record = Iteration(
            iteration=len(self.history),
            loss=problem.weight_unit * (loss + self._solver.penalty()),
            validation_loss=held_out[0] if held_out else None,
            active_fraction=engine.work.active_pairs / pairs,
            learning_rate=self._solver.learning_rate,
            seconds=self._clock.seconds,
            **self._counter.since_last(engine),
        )
        self.history.append(record)
        self._best.update(record)
        residual = self._loss.residual(u, problem.targets, problem.weight)
        self._evaluation = Evaluation(record, u, residual)
        scaled = problem.weight_unit != 1.0
        return Progress(
            record,
            self._network,
            engine,
            u,
            problem.weight_unit * residual if scaled else residual,
            self._stopping.max_iter,
            problem.X,
            problem.targets,
            problem.weight_unit * problem.weight if scaled else problem.weight,
            self._solver.momentum,
            self._solver.name,
        )

    def _checkpoint_if_due(self) -> None:
        if self._at_checkpoint() and len(self.history) != self.resumed_at and self._save_checkpoint():
            # As after a crash: sums are added in the order that lists are in.
            self.engine.start(self._network, self.problem.X)
            self._solver.drop_caches()

    def _at_checkpoint(self) -> bool:
        """Whether one is due; a run that ends elsewhere cannot go on bit for bit."""
        return self._folder is not None and self._folder.due(len(self.history))

    def _save_checkpoint(self) -> bool:
        """Weights that are not finite any more are nothing to go on from; the next iteration deals with them."""
        assert self._folder is not None
        sound = self._plan.group.all_true(bool(np.isfinite(self._network.weights).all()))
        if sound:
            self._folder.save()
        return sound

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """What surrounds every iteration. A loss that overflows is dealt with; NumPy need not warn of it too."""
        with (
            self._clock.running(),
            self._folder.released_on_error() if self._folder else nullcontext(),
            self._best.restored_on_error(),
            np.errstate(over="ignore", invalid="ignore"),
            one_blas_thread(),  # entered once, not in every pass
        ):
            yield

    def use_rows(self, X, y, *, sample_weight=None) -> None:
        """Go on with other rows, for the next ``run``: network, engine and solver stay, the history begins anew.

        The engine's preprocessing is done again only if the rows are not those it has. Not with checkpoints.
        """
        if self._folder is not None:
            raise InputError("a run with checkpoints keeps to its rows; leave checkpoint out, or make another Trainer")
        self._check_weights()
        whole = TrainingProblem.check(self._network, X, y, self._loss, sample_weight, any_norm=self._any_norm)
        problem = whole.share(self._plan.shard.grid.same_neurons)
        has_these_rows = same_rows(problem.X, self.problem.X)
        self.problem, self._clock, self.start_seconds = problem, Clock(), 0.0
        self._context = self._new_context()
        with one_blas_thread():
            if not has_these_rows or self._went_back:
                self.engine.start(self._network, problem.X)
            self._solver.use_rows(self._context, went_back=self._went_back)
        self._counter.skip(self.engine)

    # All iterations

    def run(self, callbacks: Sequence[Callback] = ()) -> TrainingResult:
        """Iterate until a stopping rule, a callback or a signal ends it."""
        self._check_weights()
        with (
            interruptible() as interrupted,
            terminable() if self._folder else nullcontext(Received()) as terminated,
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
                    self._solver.step(self._evaluation)
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
        """Why to stop now, the same on all workers."""
        asked = [bool(callback(progress)) for callback in callbacks]  # all are called, whoever asks to stop
        reason = StopReason.CALLBACK if any(asked) else None
        reason = reason or self._stopping.reason(
            self.history,
            self._best.best,
            steady_since=self._solver.steady_since,
            adaptive=self._solver.adaptive,
        )
        if interrupted.is_set():
            reason = StopReason.INTERRUPTED
        elif terminated.is_set() and not reason and (terminated.overdue or self._at_checkpoint()):
            reason = StopReason.TERMINATED
        reason = reason_of_rank(self._plan.group.all_reduce_max(stop_rank(reason)))
        if reason in (None, StopReason.TERMINATED) and progress.record.iteration == self._stopping.max_iter:
            return StopReason.MAX_ITER
        return reason

    def finish(self, reason: StopReason = StopReason.MAX_ITER) -> TrainingResult:
        """Leave the best weights in the network, on all workers, and the checkpoints to others; returns how it went."""
        self._solver.finish()
        best = self._best.finish()
        if reason is StopReason.TOL and self._is_above_zero_weights():
            reason = StopReason.STALLED
        check_result(self.history, best, reason, by_validation=self.problem.has_validation, settings=self._facts)
        self._check_rounding()
        self._went_back = best is not self.history[-1]
        self._plan.shard.gather_into(self._whole)
        self._remember_weights()
        if self._folder is not None:
            self._folder.release()
        rate = self._solver.learning_rate
        if reason is StopReason.DIVERGED:
            first = self.history[0].loss
            message = (
                f"the loss grew beyond all bounds at learning_rate={rate:.4g}; the network is that of iteration "
                f"{best.iteration}. Use learning_rate='auto' or a smaller number"
                if isfinite(first)
                else f"the loss is {first} at the start: the predictions overflow. Use smaller weights"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=4)
        return TrainingResult(
            history=self.history,
            stop_reason=reason,
            engine=self.engine.name,
            solver=self._solver.name,
            details=self._solver.details(),
            learning_rate=rate,
            loss=best.loss,
            best_iteration=best.iteration,
            start_seconds=self.start_seconds,
            compile_seconds=self._plan.compile_seconds,
            blocks=self.engine.blocks,
            resumed_at=self.resumed_at,
        )

    def _is_above_zero_weights(self) -> bool:
        """Whether weights of 0 have a lower objective than any iteration, which then is no minimum.

        With a threshold of at least 0 they have outputs of 0. A loss that is flat in floating point, as one with an
        exponential link at e^200, looks converged to every rule that compares iterations with each other.
        """
        if self._network.threshold < 0:
            return False
        problem = self.problem
        (loss,) = problem.total(self._loss.value(np.zeros_like(problem.targets), problem.targets, problem.weight))
        at_zero = problem.weight_unit * (loss + self._solver.penalty_at_zero())
        return float(np.nanmin(self.history.column("loss"))) > (1.0 + self._stopping.tol) * at_zero


def _checksum(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
