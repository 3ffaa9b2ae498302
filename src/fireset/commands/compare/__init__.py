"""``fireset compare``: compare the engines of fireset, or with ``--models`` fireset with other models, on a table."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fireset._util.checks import whole_number
from fireset._util.files import file_name
from fireset.commands.compare.budget import Budget, StageBar
from fireset.commands.compare.engine_contenders import EngineProblem, fixed_learning_rate
from fireset.commands.compare.engines import compare_engines, selected_engines
from fireset.commands.compare.models import compare_models
from fireset.commands.outputs import check_outputs_differ_from_inputs, write_or_report
from fireset.estimators import PAPER, estimator_for
from fireset.reporting import check_report
from fireset.tables.problem import TableProblem
from fireset.training.signals import interruptible


@dataclass(frozen=True)
class EngineOptions:
    """Options of a comparison of engines; ``engines`` is a comma-separated list, None for the default."""

    engines: str | None = None
    width: int = 10_000
    iterations: int = 30
    dtype: str = "float32"


def compare_table(
    file: Path,
    target: str,
    engine_options: EngineOptions | None,
    *,
    budget: float,
    seed: int,
    report: Path | None,
    verbose: bool,
    command: str | None = None,
    **reading: Any,
) -> dict[str, Any]:
    """Compare engines, or models if ``engine_options`` is None; write the report; return the summary.

    ``budget`` is in seconds. ``reading`` goes to ``TableProblem.read``; ``command`` is shown in the report.
    """
    clock = Budget(budget)
    names = [] if engine_options is None else selected_engines(engine_options.engines)
    if engine_options is not None:
        whole_number("iterations", engine_options.iterations, 1)
    if report is not None:
        check_outputs_differ_from_inputs(report, file, flag="--report")
        check_report(report)
    with interruptible() as interrupted, StageBar("comparing", shown=verbose, remaining=clock.expected) as bar:
        bar.show("reading the table")
        table = TableProblem.read(file, target, **reading)
        if engine_options is None:
            found = compare_models(table, clock, seed=seed, interrupted=interrupted, show_stage=bar.show)
        else:
            problem = _engine_problem(table, engine_options, seed, bar)
            found = compare_engines(
                problem,
                names,
                engine_options.iterations,
                clock,
                seed=seed,
                interrupted=interrupted,
                show_stage=bar.show,
            )
    summary: dict[str, Any] = {
        "task": table.task,
        **({} if table.choice is None else {"task_reason": str(table.choice)}),
        "columns": table.X.shape[1],
        "budget_seconds": budget,
        **found.to_dict(),
    }
    if report is not None:
        from fireset.commands.compare.report import write_comparison

        settings = {"command": command, "file": file_name(file), "target": target, "seed": seed, **reading}
        settings |= {"engines": names} if names else {}
        settings |= {k: v for k, v in summary.items() if isinstance(v, str | int | float) and k != "verdict"}
        summary |= write_or_report("report", report, lambda: write_comparison(report, found, settings))
    return summary


def _engine_problem(table: TableProblem, options: EngineOptions, seed: int, bar: StageBar) -> EngineProblem:
    """Return the rows on the sphere, the targets and the network of the paper's setting."""
    settings = {**PAPER, "width": options.width, "dtype": options.dtype, "random_state": seed}
    estimator = estimator_for(table.task, **settings)
    prepared = estimator.prepare(table.X, table.y)
    network = estimator.network_
    X = network.check_rows(prepared.rows)
    bar.show("choosing the learning rate")
    return EngineProblem(X, prepared.targets, network, fixed_learning_rate(network, X))
