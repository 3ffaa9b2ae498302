"""``fireset engines --explain``: what each engine is expected to cost on a table."""

from pathlib import Path
from typing import Any

from fireset._util.gaussian import upper_tail
from fireset.engines import choose, expected_costs
from fireset.network import ShiftedReLUNetwork
from fireset.tables.problem import TableProblem


def explain_engines(file: Path, target: str, *, width: int, max_iter: int) -> dict[str, Any]:
    """What ``engine="auto"`` weighs on this table: the expected cost of an iteration with each engine."""
    problem = TableProblem.read(file, target, impute=True)
    rows, columns = problem.X.shape
    classes = len(problem.classes or [])
    outputs = classes if classes > 2 else 1
    network = ShiftedReLUNetwork.initialize(width, columns + 1, outputs)
    costs = expected_costs(network, rows, max_iter)
    return {
        "rows": rows,
        "coordinates": columns + 1,
        "outputs": outputs,
        "width": width,
        "threshold": network.threshold,
        "fired_fraction": upper_tail(network.threshold),
        **{f"{engine}_seconds": 1e-9 * cost for engine, cost in costs.items()},
        "auto": choose(network, rows, max_iter),
    }
