"""``fireset engines --explain``: the expected time per iteration of each engine on a table."""

from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.gaussian import upper_tail
from fireset.commands.compare.engine_contenders import EngineContender, EngineProblem, fixed_learning_rate
from fireset.engines import choose, expected_costs
from fireset.network import ShiftedReLUNetwork
from fireset.tables.problem import TableProblem
from fireset.tables.sphere import to_sphere, typical_norm

# Each engine is timed on two problems of these sizes, in seconds per iteration by the cost model
_SMALL_SECONDS, _LARGE_SECONDS = 1.5e-3, 1.5e-2
_TIMED_STEPS = 5
_MIN_ROWS, _MIN_NEURONS = 50, 100
_MAX_ROWS, _MAX_NEURONS = 3000, 4000
_MIN_SLOPE_FRACTION = 0.2  # of measured/model time of the large problem; noise can make the measured slope negative


def explain_engines(file: Path, target: str, *, width: int, max_iter: int, **reading: Any) -> dict[str, Any]:
    """Return the size of the problem, the expected seconds per iteration of each engine, and the choice of "auto".

    The cost model behind "auto" was calibrated on another machine. Each engine is therefore timed on two parts of the
    problem, of a few milliseconds each; the time on the whole problem is extrapolated linearly in the model's cost.
    """
    problem = TableProblem.read(file, target, **reading)
    rows, columns = problem.X.shape
    classes = len(problem.classes or [])
    outputs = classes if classes > 2 else 1
    network = ShiftedReLUNetwork.initialize(width, columns + 1, outputs)
    costs = expected_costs(network, rows, max_iter)
    seconds = {engine: _expected_seconds(engine, problem, network, max_iter) for engine in costs}
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


def _expected_seconds(engine: str, table: TableProblem, network: ShiftedReLUNetwork, max_iter: int) -> float:
    """Return the expected seconds per iteration of an engine on this machine."""
    n = len(table.X)
    models, measured = [], []
    for most in (_SMALL_SECONDS, _LARGE_SECONDS):
        part = _part(engine, table, network, max_iter, most)
        models.append(_model_seconds(engine, part.network, len(part.X), max_iter))
        measured.append(_measured_seconds(engine, part))
    whole = _model_seconds(engine, network, n, max_iter)
    if models[1] <= models[0]:  # the whole problem is small
        return measured[1] * whole / models[1]
    slope = max((measured[1] - measured[0]) / (models[1] - models[0]), _MIN_SLOPE_FRACTION * measured[1] / models[1])
    return max(measured[1] + slope * (whole - models[1]), 0.5 * measured[0])


def _model_seconds(engine: str, network: ShiftedReLUNetwork, n: int, max_iter: int) -> float:
    """Return the seconds per iteration by the cost model; infinite if the engine would need too much memory."""
    return 1e-9 * expected_costs(network, n, max_iter).get(engine, np.inf)


def _part(engine: str, table: TableProblem, network: ShiftedReLUNetwork, max_iter: int, most: float) -> EngineProblem:
    """Return some rows and a narrower network with the same threshold, at most ``most`` seconds by the model."""
    n, m = min(len(table.X), _MAX_ROWS), min(network.width, _MAX_NEURONS)
    part = _narrowed(network, m)
    while _model_seconds(engine, part, n, max_iter) > most and (n > _MIN_ROWS or m > _MIN_NEURONS):
        n, m = max(min(n, _MIN_ROWS), n * 3 // 4), max(min(m, _MIN_NEURONS), m * 3 // 4)
        part = _narrowed(network, m)
    some = np.random.default_rng(0).permutation(len(table.X))[:n]
    Z = table.X[some] - table.X[some].mean(axis=0)
    Z /= np.maximum(Z.std(axis=0), 1e-12)
    rows = part.check_rows(to_sphere(Z, typical_norm(Z, np.ones(n)), 1.0)[0])
    targets = np.random.default_rng(1).standard_normal((n, network.n_outputs))
    return EngineProblem(rows, targets, part, fixed_learning_rate(part, rows))


def _narrowed(network: ShiftedReLUNetwork, width: int) -> ShiftedReLUNetwork:
    return ShiftedReLUNetwork.initialize(
        width, network.n_features, network.n_outputs, threshold=network.threshold, dtype=str(network.dtype)
    )


def _measured_seconds(engine: str, part: EngineProblem) -> float:
    contender = EngineContender(engine)
    contender.compile(part)
    contender.start(part)
    contender.step()  # touches memory for the first time
    return float(np.median([contender.step().seconds for _ in range(_TIMED_STEPS)]))
