"""The one training loop: full-batch gradient descent on W. Knows losses and steps; knows no engine."""

import threading
import time
import warnings
from collections.abc import Callable, Sequence, Sized
from contextlib import nullcontext
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple

import numpy as np

from fireset.checkpoint import CheckpointFolder, Checkpoints, TrainingState, fingerprint
from fireset.distributed import find_team
from fireset.engines.base import Engine, Step, choose, create
from fireset.engines.blocks import BlockEngine
from fireset.errors import InputError
from fireset.history import History, Iteration
from fireset.learning_rate import back_off, choose_learning_rate, grown
from fireset.losses import get_loss
from fireset.memory import within_memory
from fireset.network import ShiftedReLUNetwork
from fireset.parallel import one_blas_thread
from fireset.rounding import row_norms
from fireset.safety import BestWeights, interruptible, terminable
from fireset.warmup import compile_kernels

_PLATEAU = 10  # iterations over which the loss must improve by tol
_HOPELESS = 1e6  # times the first loss


class Prepared(NamedTuple):
    """A problem as ``train`` wants it."""

    rows: np.ndarray  # (n, d), norm 1
    targets: np.ndarray  # (n, c)
    weight: np.ndarray  # (n,)
    codes: np.ndarray | None  # of the classes, to split by


@dataclass(frozen=True)
class Progress:
    """What a callback is given. It may return True to stop."""

    record: Iteration
    network: ShiftedReLUNetwork
    engine: Engine
    predictions: np.ndarray
    residual: np.ndarray
    max_iter: int
    X: np.ndarray  # (n, d) as the engine has them, validation rows at the end
    targets: np.ndarray  # (n, c)
    weight: np.ndarray  # (n,); 0 for validation rows
    momentum: float


StopReason = Literal["max_iter", "tol", "patience", "interrupted", "callback", "diverged", "terminated"]
_REASONS: tuple[StopReason | None, ...] = (None, "tol", "patience", "callback", "diverged", "interrupted", "terminated")


@dataclass
class TrainingResult:
    """How training went. The network itself was trained in place."""

    history: History
    stop_reason: StopReason
    engine: str
    learning_rate: float
    loss: float  # of the network as it is returned
    best_iteration: int  # the iteration whose weights it has
    start_seconds: float  # preprocessing and choosing η; compiling apart
    compile_seconds: float
    blocks: int = 1  # of neurons, one after the other, for want of memory
    resumed_at: int | None = None  # the iteration of the checkpoint that training went on from


def train(
    network: ShiftedReLUNetwork,
    X,
    y,
    *,
    engine: str | Engine = "auto",
    loss: str = "squared_error",
    learning_rate: float | str = "auto",
    momentum: float = 0.0,
    nesterov: bool = False,
    max_iter: int = 500,
    tol: float = 1e-6,
    sample_weight=None,
    validation: tuple[Any, Any] | None = None,
    patience: int = 20,
    any_norm: bool = False,
    callbacks: Sequence[Callable[[Progress], bool | None]] = (),
    checkpoint: Checkpoints | None = None,
    memory: int | str | None = None,
) -> TrainingResult:
    """Train ``network`` in place by full-batch gradient descent.

    Parameters
    ----------
    X : (n, d) array
        Rows of norm 1. ``any_norm=True`` allows others: exactness is kept, but the paper's thresholds assume norm 1.
    y : (n,) or (n, c) array
    engine : str or Engine
        "auto", a name that ``fireset engines`` lists, or an engine object such as ``create("data", radius=0)``.
    loss : "squared_error" (the paper's ½ Σ (u − y)²) or "log_loss"
    learning_rate : "auto", "theory" or a number
        "auto" starts from 1/λ_max of the fire-set kernel, and halves when a step makes the loss grow.
    momentum, nesterov
        Heavy-ball or Nesterov momentum; 0 is the paper's plain descent. With learning_rate="auto" a growing loss
        first stops the momentum, then halves the rate.
    tol : float
        Stop when the loss is below tol times the first loss, or improves by less than tol of itself over 10
        iterations. 0 runs all ``max_iter`` iterations.
    validation : (X, y), optional
        Stop when the loss there has not improved for ``patience`` iterations; the weights of the best iteration are
        kept. The rows ride along in the engine with residual 0, at the price of their fired pairs.
    callbacks
        Called with a ``Progress`` after each forward pass.
    checkpoint : Checkpoints, optional
        Write checkpoints, and go on from one. SIGTERM then writes one more and ends training as "terminated".
    memory : int or str, optional
        Bytes that this process may take, such as "12G"; by default what the system has free. Where the lists of the
        data engine would take more they are made in blocks, at the price of a pass over all pairs in each iteration.

    Inside an initialized process group of torch.distributed all workers train this one network together, each some of
    its neurons (``fireset.distributed``). All must call ``train`` with the same arguments.

    Ctrl-C ends training after the current iteration and keeps the network (with validation, the best one; without, the
    current one unless a step has just made it worse than twice the best); a second Ctrl-C ends at once.
    """
    _check_settings(momentum, max_iter, tol, patience)
    team = find_team()
    whole, network = network, team.share(network)
    width = team.span(network)[1]
    loss_function = get_loss(loss)
    problem = _Problem.make(network, X, y, sample_weight, validation, any_norm)
    loss_function.check_targets(problem.targets)
    rows = problem.X

    compile_started = time.perf_counter()
    if isinstance(engine, str):
        engine = create(choose(network, len(rows), max_iter, width) if engine == "auto" else engine)
    engine = within_memory(engine, network, len(rows), momentum=momentum > 0, asked=memory)
    blocks = engine.blocks if isinstance(engine, BlockEngine) else 1
    engine = team.engine(engine)
    index = engine.index_for(network, len(rows))
    compile_kernels(engine.name, network.dtype, index, several_outputs=network.n_outputs > 1)
    started = time.perf_counter()
    queries = engine.work.oracle_queries or 0
    step = Step(0.0, momentum, nesterov)
    if momentum:
        step.velocity = np.zeros_like(network.weights)
    keeper = BestWeights(network, by_validation=validation is not None)
    history = History()
    state = TrainingState(network, step, keeper, history)
    fingerprints = problem.fingerprints() if checkpoint or team.size > 1 else {}
    for name, digest in fingerprints.items():
        team.check_same(name, bytes.fromhex(digest).ljust(16))
    folder = None
    if checkpoint:
        asked = {"loss": loss, "learning_rate": learning_rate, "momentum": momentum, "nesterov": nesterov, "tol": tol}
        asked |= {"patience": patience, "engine": engine.name, "dtype": str(network.dtype), "width": width}
        asked |= {"outputs": network.n_outputs, "threshold": network.threshold, **fingerprints}
        folder = CheckpointFolder(checkpoint, state, asked, team)
    resumed_at = state.iteration if folder and checkpoint and checkpoint.resume and folder.load() else None
    if resumed_at is not None and max_iter < resumed_at:
        raise InputError(f"max_iter must be at least {resumed_at}, the iteration of the checkpoint, got {max_iter}")
    products = refreshes = 0
    with one_blas_thread():  # for speed, and so that η does not depend on how BLAS shares its sums out
        engine.start(network, rows)
        if resumed_at is None:
            step.rate = choose_learning_rate(learning_rate, network, rows, engine, loss_function, problem.weight)
            products, refreshes = engine.work.inner_products, engine.work.refreshes
    ready = time.perf_counter()
    before = history[-1].seconds if history else 0.0  # the crash

    stop_reason: StopReason | None = None
    # A loss that overflows is a divergence, which is dealt with; NumPy need not warn of it too.
    with (
        interruptible() as interrupted,
        terminable() if folder else nullcontext(threading.Event()) as terminated,
        keeper.safe(),
        np.errstate(over="ignore", invalid="ignore"),
        one_blas_thread(),  # entered once, not in every pass
    ):
        for iteration in range(state.iteration, max_iter + 1):
            state.iteration = iteration
            if folder and (stop_reason or (folder.due(iteration) and iteration != resumed_at)):
                # Weights that are not finite any more are nothing to go on from; the next pass deals with them.
                sound = team.everyone(bool(np.isfinite(network.weights).all()))
                if sound:
                    folder.save()
                if stop_reason:
                    break
                if sound:
                    engine.start(network, rows)  # as after a crash: sums are added in the order that lists are in
            u = engine.forward()
            record = Iteration(
                iteration=iteration,
                loss=loss_function.value(u, problem.targets, problem.weight),
                validation_loss=None
                if validation is None
                else loss_function.value(u, problem.targets, problem.held_out),
                fired_pairs=engine.work.fired_pairs,
                fired_fraction=engine.work.fired_pairs / (len(rows) * width),
                inner_products=engine.work.inner_products - products,
                refreshes=engine.work.refreshes - refreshes,
                learning_rate=step.rate,
                seconds=before + time.perf_counter() - ready,
                oracle_queries=None if engine.work.oracle_queries is None else engine.work.oracle_queries - queries,
                missed_pairs=engine.work.missed_pairs,
            )
            products, refreshes = engine.work.inner_products, engine.work.refreshes
            queries = engine.work.oracle_queries or 0
            history.append(record)
            keeper.see(record)
            residual = loss_function.residual(u, problem.targets, problem.weight)
            seen = Progress(
                record, network, engine, u, residual, max_iter, rows, problem.targets, problem.weight, momentum
            )
            stop_reason = _call(callbacks, seen)
            stop_reason = stop_reason or _why_stop(
                history, keeper, state.settled, tol, patience, adaptive=learning_rate == "auto"
            )
            if interrupted.is_set():
                stop_reason = "interrupted"
            elif terminated.is_set() and not stop_reason:
                stop_reason = "terminated"
            stop_reason = _REASONS[team.highest(_REASONS.index(stop_reason))]
            if stop_reason == "terminated" and iteration == max_iter:
                stop_reason = None  # all was done anyway
            if (stop_reason and stop_reason != "terminated") or iteration == max_iter:
                break
            if learning_rate == "auto" and grown(history):
                lost = keeper.lost(record)
                back_off(step, from_rest=lost or iteration == state.settled + 1)
                state.settled = iteration + lost
                if lost:
                    keeper.restore()
                    engine.start(network, rows)
                    continue
            engine.descend(residual, step)
    best = keeper.finish()
    team.unite(whole, network)
    if stop_reason == "diverged":
        warnings.warn(
            f"the loss grew beyond all bounds at learning_rate={step.rate:.4g}; the network is that of iteration "
            f"{best.iteration}. Use learning_rate='auto' or a smaller number",
            RuntimeWarning,
            stacklevel=2,
        )
    return TrainingResult(
        history=history,
        stop_reason=stop_reason or "max_iter",
        engine=engine.name,
        learning_rate=step.rate,
        loss=best.loss,
        best_iteration=best.iteration,
        start_seconds=ready - started,
        compile_seconds=started - compile_started,
        blocks=blocks,
        resumed_at=resumed_at,
    )


@dataclass(frozen=True)
class _Problem:
    """Checked data; validation rows follow the training rows and have weight 0."""

    X: np.ndarray
    targets: np.ndarray
    weight: np.ndarray
    held_out: np.ndarray

    def fingerprints(self) -> dict[str, str]:
        """What tells this problem from another, by the names that users know."""
        return {
            "X": fingerprint(self.X),
            "y": fingerprint(self.targets),
            "sample_weight": fingerprint(self.weight),
            "validation": fingerprint(self.held_out),
        }

    @classmethod
    def make(cls, network, X, y, sample_weight, validation, any_norm) -> "_Problem":
        X, targets = _check_pair(network, X, y, "", any_norm)
        weight = _check_weight(sample_weight, len(X))
        if validation is None:
            return cls(X, targets, weight, np.zeros(len(X)))
        if not isinstance(validation, (tuple, list)) or len(validation) != 2:
            size = f" of {len(validation)}" if isinstance(validation, Sized) else ""
            raise InputError(f"validation must be a pair (X, y), got {type(validation).__name__}{size}")
        held_X, held_y = validation
        rows, held_targets = _check_pair(network, held_X, held_y, "validation ", any_norm)
        return cls(
            np.concatenate([X, rows]),
            np.concatenate([targets, held_targets]),
            np.concatenate([weight, np.zeros(len(rows))]),
            np.concatenate([np.zeros(len(X)), np.ones(len(rows))]),
        )


def _check_pair(network, X, y, what: str, any_norm: bool) -> tuple[np.ndarray, np.ndarray]:
    X = network.check_rows(X, f"{what}X")
    if len(X) == 0:
        raise InputError(f"{what}X has no rows")
    norms = row_norms(X)
    off = np.flatnonzero(np.abs(norms - 1.0) > 1e-4)
    if len(off) and not any_norm:
        raise InputError(
            f"rows of {what}X must have norm 1, row {off[0]} has {norms[off[0]]:.6g}; divide rows by their norm, use "
            f"the estimators (they do it), or pass any_norm=True"
        )
    try:
        targets = np.asarray(y, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{what}y must hold numbers; code classes as 0/1 or one-hot") from None
    if targets.ndim == 1:
        targets = targets[:, None]
    if targets.shape != (len(X), network.n_outputs):
        raise InputError(f"{what}y must have shape ({len(X)}, {network.n_outputs}), got {np.shape(y)}")
    if not np.isfinite(targets).all():
        raise InputError(f"{what}y must be finite, row {np.argwhere(~np.isfinite(targets))[0][0]} is not")
    return X, targets


def _check_weight(sample_weight, n: int) -> np.ndarray:
    if sample_weight is None:
        return np.ones(n)
    try:
        weight = np.asarray(sample_weight, np.float64)
    except (TypeError, ValueError):
        raise InputError("sample_weight must hold numbers") from None
    if weight.shape != (n,):
        raise InputError(f"sample_weight must have shape ({n},), got {weight.shape}")
    if not (np.isfinite(weight).all() and weight.min() >= 0 and weight.max() > 0):
        raise InputError("sample_weight must be finite, at least 0, and not 0 everywhere")
    return weight


def _check_settings(momentum, max_iter, tol, patience) -> None:
    if not isinstance(momentum, Real) or not 0.0 <= float(momentum) < 1.0:
        raise InputError(f"momentum must be at least 0 and below 1, got {momentum!r}")
    if not isinstance(max_iter, Integral) or max_iter < 0:
        raise InputError(f"max_iter must be a whole number of at least 0, got {max_iter!r}")
    if not isinstance(tol, Real) or not float(tol) >= 0.0:
        raise InputError(f"tol must be at least 0, got {tol!r}")
    if not isinstance(patience, Integral) or patience < 1:
        raise InputError(f"patience must be a whole number of at least 1, got {patience!r}")


def _call(callbacks, progress: Progress) -> StopReason | None:
    stop = [bool(callback(progress)) for callback in callbacks]  # all are called, whoever asks to stop
    return "callback" if any(stop) else None


def _why_stop(history: History, keeper: BestWeights, settled, tol, patience, *, adaptive: bool) -> StopReason | None:
    first, last = history[0], history[-1]
    if not adaptive and not (isfinite(last.loss) and last.loss <= _HOPELESS * max(first.loss, 1e-300)):
        return "diverged"
    if last.validation_loss is not None and last.iteration - keeper.best.iteration >= patience:
        return "patience"
    if tol > 0 and last.loss <= tol * first.loss:
        return "tol"
    if tol > 0 and len(history) - settled > _PLATEAU:
        before = min(record.loss for record in history[max(settled, len(history) - 2 * _PLATEAU) : -_PLATEAU])
        now = min(record.loss for record in history[-_PLATEAU:])
        if before - now <= tol * before:
            return "tol"
    return None
