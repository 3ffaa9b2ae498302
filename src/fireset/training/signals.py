"""Ctrl-C and SIGTERM as events that the training loop tests between two iterations."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

# Seconds after SIGTERM in which a run may reach its next checkpoint. Schedulers kill after 10 to 30.
GRACE_SECONDS = 5.0


class Received(threading.Event):
    """An event that a signal sets, with the time of the signal."""

    _since = 0.0

    def set(self) -> None:
        self._since = time.monotonic()
        super().set()

    @property
    def overdue(self) -> bool:
        """Whether ``GRACE_SECONDS`` have passed since the signal."""
        return self.is_set() and time.monotonic() > self._since + GRACE_SECONDS


def interruptible() -> AbstractContextManager[Received]:
    """Yield an event that the first Ctrl-C sets. A second one raises KeyboardInterrupt as usual."""
    return _event_for(signal.SIGINT, signal.default_int_handler)


def terminable() -> AbstractContextManager[Received]:
    """Yield an event that the first SIGTERM sets. A second one ends the process."""
    return _event_for(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _event_for(number: int, default) -> Iterator[Received]:
    """Install a handler, but only in the main thread and only in place of the default handler."""
    received = Received()
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) is not default:
        yield received
        return

    def first_time(*_) -> None:
        received.set()
        signal.signal(number, default)

    signal.signal(number, first_time)
    try:
        yield received
    finally:
        signal.signal(number, default)
