"""Seconds that a comparison may take, and how many of them are left."""

import time


class Budget:
    """A deadline, and when the work is expected to end before it."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._expected_end = self._end

    def left(self) -> float:
        """Seconds until the deadline, 0 after it."""
        return max(0.0, self._end - time.monotonic())

    def expect(self, seconds: float) -> None:
        """What is still to be done will take about so long."""
        self._expected_end = time.monotonic() + seconds

    def expected(self) -> float:
        """Seconds until the work is expected to end, at most until the deadline."""
        return min(self.left(), max(0.0, self._expected_end - time.monotonic()))
