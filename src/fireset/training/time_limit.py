"""Ending a run after a given time."""

import time

from fireset.training.progress import Progress


class TimeLimit:
    """A callback that asks to stop so many seconds after it was made; the iteration under way is finished first."""

    def __init__(self, seconds: float):
        self._until = time.monotonic() + seconds

    def __call__(self, progress: Progress) -> bool:  # noqa: ARG002
        return time.monotonic() >= self._until
