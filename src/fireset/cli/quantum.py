"""The command that counts what a quantum computer would have to do: quantum."""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from fireset.cli.app import (
    Categorical,
    Drop,
    Impute,
    Json,
    Quiet,
    Seed,
    Table,
    Target,
    Task,
    app,
    checked_seed,
    command_line,
)
from fireset.cli.output import show


@app.command()
def quantum(
    context: typer.Context,
    file: Table,
    target: Target,
    task: Task = "auto",
    width: Annotated[int, typer.Option(help="Number of neurons.")] = 10_000,
    iterations: Annotated[int, typer.Option(help="Gradient steps to count.")] = 5,
    failure_probability: Annotated[float, typer.Option(help="Of each search, to miss something.")] = 1e-6,
    bits: Annotated[int, typer.Option(help="Of a number in the arithmetic oracle.")] = 8,
    report: Annotated[Path | None, typer.Option(metavar="PAGE.html", help="Write a page with figures.")] = None,
    drop: Drop = None,
    categorical: Categorical = None,
    impute: Impute = True,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Count the oracle calls of both quantum-classical algorithms on a table, and what circuits they need."""
    from fireset.commands.quantum import quantum_costs, quantum_summary

    page = None if report is None else import_module("fireset.reporting")
    if page is not None:
        page.check_report(report)
    costs = quantum_costs(
        file,
        target,
        width=width,
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
    if page is not None:
        from fireset.commands.quantum_report import quantum_sections

        title = f"Grover's search for the fire sets of {file.name}"
        page.write_page(report, title, quantum_sections(costs), settings={"command": command_line(context)})
    show(costs.to_dict() if as_json else quantum_summary(costs), as_json)
