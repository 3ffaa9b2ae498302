"""``fireset engines --explain``: what each engine is expected to cost on a table."""

from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.gaussian import upper_tail
from fireset.commands.contenders import EngineContender, Problem, steady_rate
from fireset.engines import choose, expected_costs
from fireset.network import ShiftedReLUNetwork
from fireset.tables.problem import TableProblem
from fireset.tables.sphere import to_sphere, typical_norm

_NANOSECOND = 1e-9
_LARGE, _SMALL = 1.5e7, 1.5e6  # nanoseconds, by the model, of the two problems that each engine is timed on
_STEPS = 5
_MIN_ROWS, _MIN_NEURONS = 50, 100
_MAX_ROWS, _MAX_NEURONS = 3000, 4000


def explain_engines(file: Path, target: str, *, width: int, max_iter: int, **reading: Any) -> dict[str, Any]:
    """What ``engine="auto"`` weighs on this table, and what an iteration takes with each engine on this machine.

    The model behind "auto" has the right ratios, but its nanoseconds are another machine's. Each engine is timed on
    two parts of the problem, of a few milliseconds each, and seconds = start + slope · model is drawn through them.
    """
    problem = TableProblem.read(file, target, **reading)
    rows, columns = problem.X.shape
    classes = len(problem.classes or [])
    outputs = classes if classes > 2 else 1
    network = ShiftedReLUNetwork.initialize(width, columns + 1, outputs)
    costs = expected_costs(network, rows, max_iter)
    seconds = {engine: _on_this_machine(engine, problem, network, max_iter) for engine in costs}
    return {
        "rows": rows,
        "coordinates": columns + 1,
        "outputs": outputs,
        "width": width,
        "threshold": network.threshold,
        "active_fraction": upper_tail(network.threshold),
        **{f"{engine}_seconds_per_iteration": each for engine, each in seconds.items()},
        "auto": choose(network, rows, max_iter),
    }


def _on_this_machine(engine: str, table: TableProblem, network: ShiftedReLUNetwork, max_iter: int) -> float:
    """Seconds that an iteration of this engine is expected to take here."""
    n = len(table.X)
    models, measured = [], []
    for most in (_SMALL, _LARGE):
        part = _part(engine, table, network, max_iter, most)
        models.append(_model(engine, part.network, len(part.X), max_iter))
        measured.append(_seconds(engine, part))
    whole = _model(engine, network, n, max_iter)
    if models[1] <= models[0]:  # the whole problem is small
        return measured[1] * whole / models[1]
    slope = max((measured[1] - measured[0]) / (models[1] - models[0]), 0.2 * measured[1] / models[1])
    return max(measured[1] + slope * (whole - models[1]), 0.5 * measured[0])


def _model(engine: str, network: ShiftedReLUNetwork, n: int, max_iter: int) -> float:
    """Of the cost model; infinite where the engine would want too much memory, which parts of a problem do not."""
    return _NANOSECOND * expected_costs(network, n, max_iter).get(engine, np.inf)


def _part(engine: str, table: TableProblem, network: ShiftedReLUNetwork, max_iter: int, most: float) -> Problem:
    """Some rows and some neurons, the threshold as it is, that cost at most so many nanoseconds by the model."""
    n, m = min(len(table.X), _MAX_ROWS), min(network.width, _MAX_NEURONS)
    part = _narrowed(network, m)
    while _model(engine, part, n, max_iter) > _NANOSECOND * most and (n > _MIN_ROWS or m > _MIN_NEURONS):
        n, m = max(min(n, _MIN_ROWS), n * 3 // 4), max(min(m, _MIN_NEURONS), m * 3 // 4)
        part = _narrowed(network, m)
    some = np.random.default_rng(0).permutation(len(table.X))[:n]
    Z = table.X[some] - table.X[some].mean(axis=0)
    Z /= np.maximum(Z.std(axis=0), 1e-12)
    rows = part.check_rows(to_sphere(Z, typical_norm(Z, np.ones(n)), 1.0)[0])
    targets = np.random.default_rng(1).standard_normal((n, network.n_outputs))
    return Problem(rows, targets, part, steady_rate(part, rows))


def _narrowed(network: ShiftedReLUNetwork, width: int) -> ShiftedReLUNetwork:
    return ShiftedReLUNetwork.initialize(
        width, network.n_features, network.n_outputs, threshold=network.threshold, dtype=str(network.dtype)
    )


def _seconds(engine: str, part: Problem) -> float:
    contender = EngineContender(engine)
    contender.compile(part)
    contender.start(part)
    contender.step()  # first touches of memory are nobody's step
    return float(np.median([contender.step().seconds for _ in range(_STEPS)]))
