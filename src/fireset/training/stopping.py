"""Stop reasons, the stopping rules that depend on the history, and a time limit.

``loop.py`` combines these rules with callbacks, signals and the convergence test of the solver.
"""

import time
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING

from fireset._util.checks import is_number, whole_number
from fireset._util.errors import InputError
from fireset.training.history import History, Iteration

if TYPE_CHECKING:
    from fireset.training.progress import Progress

_PLATEAU_ITERATIONS = 10  # within which the loss must improve by ``tol``
_DIVERGENCE_RATIO = 1e6  # of the loss to the first loss


class StopReason(StrEnum):
    """Why a run ended. If workers differ, the reason further down counts."""

    MAX_ITER = "max_iter"  # all iterations were done
    TOL = "tol"  # the loss is small enough or no longer decreases
    STALLED = "stalled"  # no step decreases the loss, without evidence of a minimum
    PATIENCE = "patience"  # the validation loss has not improved for ``patience`` iterations
    CALLBACK = "callback"  # a callback returned True
    TIME_LIMIT = "time_limit"  # the seconds of a ``TimeLimit`` have passed
    DIVERGED = "diverged"  # the loss exceeded all bounds at a fixed learning rate, or was infinite at the start
    INTERRUPTED = "interrupted"  # Ctrl-C
    TERMINATED = "terminated"  # SIGTERM, with checkpoints


_RANKS: tuple[StopReason | None, ...] = (None, *list(StopReason)[1:])


def stop_rank(reason: StopReason | None) -> int:
    """Return the precedence of a reason, so that workers can agree on the highest."""
    return _RANKS.index(reason)


def reason_of_rank(rank: int) -> StopReason | None:
    return _RANKS[rank]


@dataclass(frozen=True)
class Stopping:
    """The stopping rules that depend on the history of a run.

    Parameters
    ----------
    max_iter : int
        Maximal number of iterations.
    tol : float
        Stop when the loss is below tol times the first loss, or improves by less than tol of itself in 10 iterations. 0
        disables both rules.
    patience : int
        Stop when the validation loss has not improved for this number of iterations.
    """

    max_iter: int
    tol: float
    patience: int

    def __post_init__(self) -> None:
        whole_number("max_iter", self.max_iter, 0)
        if not is_number(self.tol) or self.tol < 0:
            raise InputError(f"tol must be at least 0, got {self.tol!r}")
        whole_number("patience", self.patience, 1)

    def reason(
        self, history: History, best: Iteration, *, steady_since: int | None, adaptive: bool
    ) -> StopReason | None:
        """Return why to stop after the last iteration of ``history``, or None.

        Parameters
        ----------
        best
            The iteration with the lowest validation loss.
        steady_since
            The iteration since which the settings of the solver are unchanged; None for a solver with a convergence
            test of its own.
        adaptive
            Whether the solver handles a loss that grows. If not, the run diverges.
        """
        first, last = history[0], history[-1]
        if not isfinite(first.loss):  # no loss can be compared with it
            return StopReason.DIVERGED
        if not adaptive and not (isfinite(last.loss) and last.loss <= _DIVERGENCE_RATIO * max(first.loss, 1e-300)):
            return StopReason.DIVERGED
        if last.validation_loss is not None and last.iteration - best.iteration >= self.patience:
            return StopReason.PATIENCE
        if steady_since is None or self.tol == 0:
            return None
        if last.loss <= self.tol * first.loss or self._on_plateau(history, steady_since):
            return StopReason.TOL
        return None

    def _on_plateau(self, history: History, steady_since: int) -> bool:
        if len(history) - steady_since <= _PLATEAU_ITERATIONS:
            return False
        earlier = history[max(steady_since, len(history) - 2 * _PLATEAU_ITERATIONS) : -_PLATEAU_ITERATIONS]
        before = min(record.loss for record in earlier)
        now = min(record.loss for record in history[-_PLATEAU_ITERATIONS:])
        return before - now <= self.tol * before


class TimeLimit:
    """A callback that stops training ``seconds`` after its construction, at the end of the current iteration."""

    def __init__(self, seconds: float):
        self._until = time.monotonic() + seconds

    def __call__(self, progress: "Progress") -> StopReason | None:  # noqa: ARG002
        return StopReason.TIME_LIMIT if time.monotonic() >= self._until else None
