"""How long training has taken, without what happens between its iterations."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds spent inside ``running`` blocks, one inside another counted once."""

    def __init__(self, before: float = 0.0):
        self._before = before
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        return self._before + (time.perf_counter() - self._since if self._since is not None else 0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        if self._since is not None:
            yield
            return
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self._before, self._since = self.seconds, None
