"""The command that counts what a quantum computer would have to do: quantum."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fireset.cli.app import (
    PROBLEM,
    Categorical,
    Drop,
    Impute,
    Json,
    Quiet,
    Seed,
    Table,
    Target,
    Task,
    Width,
    app,
    checked_seed,
    command_line,
    whole_number,
)
from fireset.cli.output import require_written, show


@app.command()
def quantum(
    context: typer.Context,
    file: Table,
    target: Target,
    task: Task = "auto",
    width: Width = "10000",
    iterations: Annotated[int, typer.Option(help="Number of gradient steps to count.")] = 5,
    failure_probability: Annotated[float, typer.Option(help="Probability that a search misses an item.")] = 1e-6,
    bits: Annotated[int, typer.Option(help="Bits per number in the arithmetic oracle.")] = 8,
    report: Annotated[Path | None, typer.Option(metavar="PAGE.html", help="Write a report with figures.")] = None,
    drop: Drop = None,
    categorical: Categorical = None,
    impute: Impute = True,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Count the oracle calls of both quantum-classical algorithms on a table, and what circuits they need."""
    from fireset.commands.quantum import quantum_costs, quantum_summary

    if report is not None:
        from fireset.reporting import check_report

        check_report(report)
    costs = quantum_costs(
        file,
        target,
        width=whole_number("width", width),
        iterations=iterations,
        failure_probability=failure_probability,
        bits=bits,
        seed=checked_seed(seed),
        verbose=not quiet,
        task=task,
        drop=drop or [],
        categorical=categorical or [],
        impute=impute,
    )
    written: dict[str, Any] = {}
    if report is not None:
        from fireset.commands.quantum_report import write_quantum_page
        from fireset.commands.rescue import write_or_report

        command = command_line(context)
        written = write_or_report("report", report, lambda: write_quantum_page(report, file, costs, command))
    same = command_line(context, command="compare", only=PROBLEM | {"width", "quiet"})
    step = f"{same}  # which engine is fastest on this machine"
    if as_json:
        show({**costs.to_dict(), **written}, as_json)
    else:
        place = {"report": written["report"]} if "report" in written else {}
        show({**quantum_summary(costs), **place, "next": step}, as_json)
    require_written(written)
