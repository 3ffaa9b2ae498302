"""The time budget of a comparison: the deadline, the expected times of engines, and the progress display."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fireset._util.text import duration, print_status
from fireset.commands.compare.engine_contenders import (
    MEMORY_STEPS,
    EngineProblem,
    Kind,
    fixed_learning_rate,
    make_contender,
)
from fireset.engines.registry import REFERENCE
from fireset.network import ShiftedReLUNetwork

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_PILOT_ROWS, _PILOT_WIDTH = 2000, 2000
_PILOT_STEPS = 2
_MIN_ITERATIONS = 10  # of every engine, if at least as many were requested
_MAIN_RUN_FRACTION = 0.6  # of the remaining time for these iterations; the rest is for the runs at other widths
_SECONDS_BETWEEN_LINES = 5.0


class Budget:
    """A deadline, and the time at which the work is expected to end."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._expected_end = self._end

    def remaining(self) -> float:
        """Return the seconds until the deadline, 0 after it."""
        return max(0.0, self._end - time.monotonic())

    def set_expected(self, seconds: float) -> None:
        """Set the expected duration of the remaining work."""
        self._expected_end = time.monotonic() + seconds

    def expected(self) -> float:
        """Return the seconds until the expected end, at most until the deadline."""
        return min(self.remaining(), max(0.0, self._expected_end - time.monotonic()))


@dataclass(frozen=True)
class ExpectedTimes:
    """Expected seconds of an engine's preprocessing and of one step."""

    start: float
    step: float
    pilot_seconds: float = 0.0  # duration of the measurement itself, without compilation

    def run(self, iterations: int) -> float:
        """Return the seconds of the memory measurement, ``iterations`` steps and a final loss."""
        return 2 * self.start + (MEMORY_STEPS + iterations + 1) * self.step

    def short_run(self, steps: int) -> float:
        """Return the seconds of a run of ``steps`` timed steps and one warm-up step."""
        return self.start + (1 + steps) * self.step


def pilot_problem(problem: EngineProblem, seed: int) -> EngineProblem:
    """Return the first rows with a narrower network, or the problem itself if it is small."""
    given = problem.network
    if len(problem.X) <= _PILOT_ROWS and given.width <= _PILOT_WIDTH:
        return problem
    X, y = problem.X[:_PILOT_ROWS], problem.y[:_PILOT_ROWS]
    width = min(given.width, _PILOT_WIDTH)
    network = ShiftedReLUNetwork.initialize(width, given.n_features, given.n_outputs, seed=seed, dtype=str(given.dtype))
    return EngineProblem(X, y, network, fixed_learning_rate(network, X))


def measure_expected_times(name: str, pilot: EngineProblem, problem: EngineProblem) -> ExpectedTimes:
    """Time a few steps on the pilot problem and scale them by the number of pairs (row, neuron).

    Compilation is not included. Engines that compute only some pairs will take less time than expected.
    """
    contender = make_contender(name)
    contender.compile(pilot)
    started = time.perf_counter()
    contender.start(pilot)
    start = time.perf_counter() - started
    contender.step()
    step = min(contender.step().seconds for _ in range(_PILOT_STEPS))
    pairs = len(problem.X) * problem.network.width / (len(pilot.X) * pilot.network.width)
    spent = time.perf_counter() - started
    return ExpectedTimes(start * pairs if contender.preprocesses else start, step * pairs, spent)


def engines_over_budget(
    expected: Mapping[str, ExpectedTimes], kinds: Mapping[str, Kind], iterations: int, seconds: float
) -> dict[str, str]:
    """Return the engines to leave out, slowest first, with the reason, so that all others fit into ``seconds``.

    The dense engine and the fastest exact engine with preprocessing always stay, since the verdict compares them.
    """
    fewest = min(iterations, _MIN_ITERATIONS)
    needed = {name: each.run(fewest) for name, each in expected.items()}
    exact = [name for name in needed if kinds[name] == "preprocessed"]
    stay = {REFERENCE, *sorted(exact, key=needed.__getitem__)[:1]}
    reasons: dict[str, str] = {}
    while not stay.issuperset(needed) and sum(needed.values()) > _MAIN_RUN_FRACTION * seconds:
        slowest = max(needed.keys() - stay, key=needed.__getitem__)
        steps = f"{fewest} iterations" if fewest > 1 else "one iteration"
        reasons[slowest] = (
            f"not started: {steps} would take about {duration(needed.pop(slowest))}, too long for the "
            f"{duration(seconds)} left of the budget; give a larger --budget, or fewer --engines"
        )
    return reasons


class StageBar:
    """Show the current stage on standard error; a context manager. Without a terminal, print a line now and then.

    ``remaining`` returns the seconds that remain. They precede the stage, which a narrow terminal may cut off.
    """

    def __init__(
        self,
        title: str,
        *,
        shown: bool = True,
        remaining: Callable[[], float] | None = None,
        console: "Console | None" = None,
    ):
        from rich.console import Console

        self._console = console or Console(stderr=True, quiet=not shown)
        self._shown, self._title, self._remaining, self._stage = shown, title, remaining, ""
        self._status = self._console.status(self)  # redrawn several times a second, with the remaining seconds
        self._next_line = 0.0

    def __enter__(self) -> "StageBar":
        if self._shown and self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_) -> None:
        self._status.stop()

    def __rich__(self) -> "Text":
        from rich.text import Text

        return Text(self._line(), no_wrap=True, overflow="ellipsis")

    def show(self, stage: str) -> None:
        """Show ``stage`` as the current one."""
        self._stage = stage
        if self._shown and not self._console.is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            print_status(self._line())

    def _line(self) -> str:
        remaining = "" if self._remaining is None else f", {self._remaining():.0f} s left"
        return f"{self._title}{remaining}: {self._stage}" if self._stage else f"{self._title}{remaining}"
