"""When training ends, and why: all reasons, and the rules that the history decides.

What comes from outside (callbacks, Ctrl-C, SIGTERM) or from the solver (convergence) is put to them in ``loop.py``.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from fireset._util.checks import is_number, whole_number
from fireset._util.errors import InputError
from fireset.training.history import History, Iteration

_PLATEAU = 10  # iterations over which the loss must improve by tol
_DIVERGED = 1e6  # times the first loss


class StopReason(StrEnum):
    """Why a run ended. Of several reasons on several workers, the one further down counts."""

    MAX_ITER = "max_iter"  # all iterations were done
    TOL = "tol"  # the loss is small enough, or does not fall any more
    STALLED = "stalled"  # no step of the solver decreases the loss, and it is not known to be at its minimum
    PATIENCE = "patience"  # the validation loss has not improved for so long
    CALLBACK = "callback"  # a callback asked for it
    DIVERGED = "diverged"  # the loss grew beyond all bounds at a fixed learning rate, or was there from the start
    INTERRUPTED = "interrupted"  # Ctrl-C
    TERMINATED = "terminated"  # SIGTERM, with checkpoints


_RANKS: tuple[StopReason | None, ...] = (None, *list(StopReason)[1:])


def stop_rank(reason: StopReason | None) -> int:
    """A number for a reason, higher for what counts more, so that workers can agree on the highest."""
    return _RANKS.index(reason)


def reason_of_rank(rank: int) -> StopReason | None:
    return _RANKS[rank]


@dataclass(frozen=True)
class Stopping:
    """The rules that the history of a run decides.

    Parameters
    ----------
    max_iter : int
        Iterations at most.
    tol : float
        Stop when the loss is below tol times the first loss, or improves by less than tol of itself over 10 iterations;
        0 for neither.
    patience : int
        Stop when the validation loss has not improved for so many iterations.
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
        """Why to stop after the last iteration of ``history``, or None.

        ``best`` is the iteration with the lowest validation loss, ``steady_since`` the iteration since which the solver
        has left its settings alone, None for one that knows itself when it has converged. An ``adaptive`` solver deals
        with a loss that grows; else it has diverged.
        """
        first, last = history[0], history[-1]
        if not isfinite(first.loss):  # no loss can be compared with it
            return StopReason.DIVERGED
        if not adaptive and not (isfinite(last.loss) and last.loss <= _DIVERGED * max(first.loss, 1e-300)):
            return StopReason.DIVERGED
        if last.validation_loss is not None and last.iteration - best.iteration >= self.patience:
            return StopReason.PATIENCE
        if steady_since is None or self.tol == 0:
            return None
        if last.loss <= self.tol * first.loss or self._on_plateau(history, steady_since):
            return StopReason.TOL
        return None

    def _on_plateau(self, history: History, steady_since: int) -> bool:
        if len(history) - steady_since <= _PLATEAU:
            return False
        earlier = history[max(steady_since, len(history) - 2 * _PLATEAU) : -_PLATEAU]
        before = min(record.loss for record in earlier)
        now = min(record.loss for record in history[-_PLATEAU:])
        return before - now <= self.tol * before
