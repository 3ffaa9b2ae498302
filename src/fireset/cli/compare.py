"""The command that answers the paper's question on a table: compare."""

from pathlib import Path
from typing import Annotated

import typer

from fireset._util.errors import INTERRUPTED
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
)
from fireset.cli.output import show, show_table


@app.command()
def compare(
    file: Table,
    target: Target,
    engines: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Engines, pytorch and jax; all but simulations by default."),
    ] = None,
    width: Annotated[int, typer.Option(help="Number of neurons.")] = 10_000,
    iterations: Annotated[int, typer.Option(help="Steps of each engine.")] = 30,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    report: Annotated[Path | None, typer.Option(metavar="PAGE.html", help="Write a page with figures.")] = None,
    task: Task = "auto",
    drop: Drop = None,
    categorical: Categorical = None,
    impute: Impute = True,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run every engine on the same table and network: does preprocessing help here?"""
    from fireset.commands.compare import compare_table

    found = compare_table(
        file,
        target,
        engines=engines,
        width=width,
        iterations=iterations,
        dtype=dtype,
        seed=checked_seed(seed),
        report=report,
        verbose=not quiet,
        task=task,
        drop=drop or [],
        categorical=categorical or [],
        impute=impute,
    )
    if as_json:
        show(found, as_json)
    else:
        from fireset.commands.compare_report import COLUMNS, cells

        rows = found["contenders"]
        show_table([heading for heading, _, _ in COLUMNS], [cells(row) for row in rows], numbers=True)
        for row in rows:
            if row["reason"]:
                print(f"{row['name']}: {row['reason']}")
        print(f"\n{found['verdict']}")
        if "report" in found:
            print(f"\nreport  {found['report']}")
    if found["interrupted"]:
        raise typer.Exit(INTERRUPTED)
