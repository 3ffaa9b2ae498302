"""What every run must satisfy, whatever engine, solver, loss and data it had; checked at the end of each run."""

from collections.abc import Callable
from math import isfinite
from typing import Any

from fireset._util.errors import InvariantError
from fireset.training.history import History, Iteration
from fireset.training.stopping import StopReason


def check_result(
    history: History,
    best: Iteration,
    reason: StopReason,
    *,
    by_validation: bool,
    settings: Callable[[], dict[str, Any]],
) -> None:
    """Check the iteration ``best`` whose weights a run returns. Raises InvariantError with the ``settings`` of the run.

    Its loss is finite, and not above the first one: the validation loss, where that decided. A run whose first loss is
    not finite has nothing to compare with; it ends as diverged.
    """
    first = history[0]
    if not isfinite(first.loss):
        if reason in (StopReason.TOL, StopReason.STALLED):
            raise _violated(f"a run that began with a loss of {first.loss:g} stopped as {reason.value!r}", settings)
        return
    if not isfinite(best.loss):
        raise _violated(f"the loss of the returned weights is {best.loss:g}", settings)
    loss, start = (best.validation_loss, first.validation_loss) if by_validation else (best.loss, first.loss)
    if loss is not None and start is not None and not (loss <= start or not isfinite(start)):
        raise _violated(f"the returned weights have a loss of {loss:.6g}, those of the start {start:.6g}", settings)


def _violated(what: str, settings: Callable[[], dict[str, Any]]) -> InvariantError:
    listed = ", ".join(f"{name}={value!r}" for name, value in settings().items())
    return InvariantError(
        f"{what}. This is a fault of fireset, not of your data: please report this message, the output of "
        f"`fireset --version` and the seed. Settings: {listed}"
    )
