"""Ctrl-C and SIGTERM as events that the training loop looks at between two iterations."""

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


def interruptible() -> AbstractContextManager[threading.Event]:
    """Yield an event that the first Ctrl-C sets; a second one raises KeyboardInterrupt as usual."""
    return _event_for(signal.SIGINT, signal.default_int_handler)


def terminable() -> AbstractContextManager[threading.Event]:
    """The same for SIGTERM, whose second one ends the process."""
    return _event_for(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _event_for(number: int, usual) -> Iterator[threading.Event]:
    """Only in the main thread, where the usual handler is in place: elsewhere it is somebody else's business."""
    received = threading.Event()
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
