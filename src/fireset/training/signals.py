"""Ctrl-C and SIGTERM as events that the training loop looks at between two iterations."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

# Seconds that a run may go on after SIGTERM, to end where a checkpoint is due. Schedulers kill after 10 to 30.
GRACE = 5.0


class Received(threading.Event):
    """Set by a signal, and aware of when that was."""

    _since = 0.0

    def set(self) -> None:
        self._since = time.monotonic()
        super().set()

    @property
    def overdue(self) -> bool:
        """Whether ``GRACE`` seconds have passed since it was set."""
        return self.is_set() and time.monotonic() > self._since + GRACE


def interruptible() -> AbstractContextManager[Received]:
    """Yield an event that the first Ctrl-C sets; a second one raises KeyboardInterrupt as usual."""
    return _event_for(signal.SIGINT, signal.default_int_handler)


def terminable() -> AbstractContextManager[Received]:
    """The same for SIGTERM, whose second one ends the process."""
    return _event_for(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _event_for(number: int, usual) -> Iterator[Received]:
    """Only in the main thread, where the usual handler is in place: elsewhere it is somebody else's business."""
    received = Received()
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) is not usual:
        yield received
        return

    def first_time(*_) -> None:
        received.set()
        signal.signal(number, usual)

    signal.signal(number, first_time)
    try:
        yield received
    finally:
        signal.signal(number, usual)
