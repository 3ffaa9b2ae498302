"""Who can take part in a comparison of engines within a budget, as foretold by a few steps on a small problem."""

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

from fireset._util.text import duration
from fireset.commands.contenders import WARM_STEPS, Problem, make_contender, steady_rate
from fireset.commands.verdict import Kind
from fireset.network import ShiftedReLUNetwork

_PILOT_ROWS, _PILOT_WIDTH = 2000, 2000
_PILOT_STEPS = 2
_FEWEST = 10  # iterations that all who take part are to do, if so many were asked for
_RACE = 0.6  # of the time left for these; the rest is for the runs at other widths


@dataclass(frozen=True)
class Expected:
    """Seconds of a contender's preprocessing and of one of its steps."""

    start: float
    step: float
    pilot_seconds: float = 0.0  # that finding this out took, without compiling

    def run(self, iterations: int) -> float:
        """Measuring its memory, which starts it and does some steps, then the run itself and the step that ends it."""
        return 2 * self.start + (WARM_STEPS + iterations + 1) * self.step

    def short_run(self, steps: int) -> float:
        return self.start + (1 + steps) * self.step


def pilot_problem(problem: Problem, seed: int) -> Problem:
    """The first rows of a problem and a narrower network; the problem itself where it is small."""
    given = problem.network
    if len(problem.X) <= _PILOT_ROWS and given.width <= _PILOT_WIDTH:
        return problem
    X, y = problem.X[:_PILOT_ROWS], problem.y[:_PILOT_ROWS]
    width = min(given.width, _PILOT_WIDTH)
    network = ShiftedReLUNetwork.initialize(width, given.n_features, given.n_outputs, seed=seed, dtype=str(given.dtype))
    return Problem(X, y, network, steady_rate(network, X))


def expected_times(name: str, pilot: Problem, problem: Problem) -> Expected:
    """What a contender will take, from a few steps on the small problem: in proportion to the pairs (sample, neuron).

    Compiling, which is done once on a machine, is not part of it. Engines that look at part of the pairs take rather
    less than foretold.
    """
    contender = make_contender(name)
    contender.compile(pilot)
    started = perf_counter()
    contender.start(pilot)
    start = perf_counter() - started
    contender.step()
    step = min(contender.step().seconds for _ in range(_PILOT_STEPS))
    pairs = len(problem.X) * problem.network.width / (len(pilot.X) * pilot.network.width)
    spent = perf_counter() - started
    return Expected(start * pairs if contender.preprocesses else start, step * pairs, spent)


def left_out(
    expected: Mapping[str, Expected], kinds: Mapping[str, Kind], iterations: int, seconds: float
) -> dict[str, str]:
    """Names of those that would not let all do enough iterations within the seconds, the slowest first, and why.

    The dense engine and the fastest exact one with preprocessing stay, whatever they take: they are the question.
    """
    fewest = min(iterations, _FEWEST)
    needed = {name: each.run(fewest) for name, each in expected.items()}
    exact = [name for name in needed if kinds[name] == "preprocessed"]
    stay = {"dense", *sorted(exact, key=needed.__getitem__)[:1]}
    reasons: dict[str, str] = {}
    while not stay.issuperset(needed) and sum(needed.values()) > _RACE * seconds:
        slowest = max(needed.keys() - stay, key=needed.__getitem__)
        steps = f"{fewest} iterations" if fewest > 1 else "one iteration"
        reasons[slowest] = (
            f"not started: {steps} would take about {duration(needed.pop(slowest))}, too long for the "
            f"{duration(seconds)} left of the budget; give a larger --budget, or fewer --engines"
        )
    return reasons
