"""The result of a training run, and the invariants that are checked before it is returned."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from fireset._util.errors import InvariantError
from fireset.training.history import History, Iteration
from fireset.training.stopping import StopReason


@dataclass
class TrainingResult:
    """Result of training. The network itself is trained in place."""

    history: History
    stop_reason: StopReason
    engine: str
    solver: str
    learning_rate: float
    loss: float  # of the returned weights
    best_iteration: int  # the iteration of the returned weights
    start_seconds: float  # preprocessing and the choice of η, without compilation
    compile_seconds: float
    details: dict[str, Any] = field(default_factory=dict)  # reported by the solver, for example its ridge
    blocks: int = 1  # blocks of neurons that the engine processed one after the other to save memory
    resumed_at: int | None = None  # iteration of the checkpoint that the run was resumed from


def check_result(
    history: History,
    best: Iteration,
    reason: StopReason,
    *,
    by_validation: bool,
    settings: Callable[[], dict[str, Any]],
) -> None:
    """Raise InvariantError, with the ``settings`` of the run, if the returned weights violate an invariant.

    The loss of ``best``, the iteration of the returned weights, is finite and at most the first loss; with validation
    rows, the validation loss is compared. A run whose first loss is not finite must end as diverged.
    """
    first = history[0]
    if not isfinite(first.loss):
        if reason in (StopReason.TOL, StopReason.STALLED):
            raise _violated(f"a run with a first loss of {first.loss:g} stopped as {reason.value!r}", settings)
        return
    if not isfinite(best.loss):
        raise _violated(f"the loss of the returned weights is {best.loss:g}", settings)
    loss, start = (best.validation_loss, first.validation_loss) if by_validation else (best.loss, first.loss)
    if loss is not None and start is not None and not (loss <= start or not isfinite(start)):
        raise _violated(f"the returned weights have a loss of {loss:.6g}, above the first loss {start:.6g}", settings)


def _violated(what: str, settings: Callable[[], dict[str, Any]]) -> InvariantError:
    listed = ", ".join(f"{name}={value!r}" for name, value in settings().items())
    return InvariantError(
        f"Internal error: {what}. Please report this message, the output of `fireset --version` and the seed. "
        f"Settings: {listed}"
    )
