"""Readers–writer lock."""

from threading import Lock
from typing import Any


class ReadersWriterLock:
    """Lock for many readers, ``with lock.reading:``, or one writer, ``with lock.writing:``.

    A waiting writer blocks new readers, so that it does not starve. Not reentrant. Acquiring and releasing takes less
    than a microsecond without contention. A copy, by ``pickle`` or ``copy``, is a new unlocked lock.

    A reader may also read without locking, and discard what it read if ``writing.count`` was odd before, or has changed
    after. It must acquire any other lock before it compares the counts, as a memory barrier.
    """

    def __init__(self) -> None:
        entrance = Lock()  # held by a writer, also while it waits
        self.reading = _Reading(entrance)
        self.writing = _Writing(entrance, self.reading)

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadersWriterLock, ()


class _Reading:
    def __init__(self, entrance: Any):
        self._entrance = entrance
        self._counting = Lock()
        self._inside = 0
        self._last_left: Any = None  # a lock that the last reader releases while a writer waits for it

    def __enter__(self) -> None:
        with self._entrance, self._counting:
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._counting:
            self._inside -= 1
            if not self._inside and self._last_left is not None:
                self._last_left.release()
                self._last_left = None

    def wait_until_empty(self) -> None:
        """Wait until there are no readers; the caller holds the entrance."""
        with self._counting:
            if not self._inside:
                return
            last_left = self._last_left = Lock()
            last_left.acquire()
        last_left.acquire()


class _Writing:
    def __init__(self, entrance: Any, readers: _Reading):
        self._entrance, self._readers = entrance, readers
        self.count = 0  # number of times that a writer has entered or left: odd while there is a writer

    def __enter__(self) -> None:
        self._entrance.acquire()
        try:
            self._readers.wait_until_empty()
        except BaseException:  # Ctrl-C while waiting: release the entrance
            self._entrance.release()
            raise
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count += 1
        self._entrance.release()
