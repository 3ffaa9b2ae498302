"""Work done within an iteration, and the time that the rest of it will take at the measured rate."""

import time
from collections.abc import Callable


class WorkMeter:
    """Units of work of one part of an iteration: rows of a pass, or tangent products of a linear system.

    Attributes
    ----------
    name : str
        Name of the part, such as "pass"; empty before the first one.
    done, expected : float
        Units done, and the expected number of all.
    listener : callable or None
        Called with the meter after each report.
    """

    def __init__(self) -> None:
        self.name, self.done, self.expected = "", 0.0, 0.0
        self.listener: Callable[[WorkMeter], None] | None = None
        self._first, self._started = 0.0, 0.0

    def begin(self, name: str, done: float = 0.0) -> None:
        """Begin a part, of which ``done`` units need not be done again."""
        self.name, self.done, self._first = name, done, done
        self._started = time.monotonic()

    def report(self, done: float, expected: float) -> None:
        self.done, self.expected = done, max(done, expected)
        if self.listener is not None:
            self.listener(self)

    @property
    def seconds_left(self) -> float:
        """Seconds that the rest of the part takes at the rate so far; infinite before the first report."""
        made = self.done - self._first
        return (self.expected - self.done) * (time.monotonic() - self._started) / made if made > 0 else float("inf")
