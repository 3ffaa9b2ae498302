"""The theory on a table, and what a certificate found: theory, and the claims that ``train --certify`` prints."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fireset.cli.app import (
    PROBLEM,
    Bias,
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
    number_or_word,
    whole_number,
)
from fireset.cli.output import require_written, show, show_table


@app.command()
def theory(
    context: typer.Context,
    file: Table,
    target: Target,
    task: Task = "auto",
    width: Width = "10000",
    threshold: Annotated[str, typer.Option(help="Activation threshold: paper or a number.")] = "paper",
    bias: Bias = None,
    holdout: Annotated[float, typer.Option(help="Share of the rows held out for the score; 0 for none.")] = 0.2,
    drop: Drop = None,
    categorical: Categorical = None,
    impute: Impute = True,
    report: Annotated[Path | None, typer.Option(metavar="PAGE.html", help="Write a report with figures.")] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compute what the convergence theorem requires on a table, and what practice needs."""
    from fireset.commands.theory import theory_table, theory_tables, write_theory_page

    settings: dict[str, Any] = {
        "width": whole_number("width", width),
        "threshold": number_or_word("threshold", threshold, ("paper",)),
        "random_state": checked_seed(seed),
    }
    if bias is not None:
        settings["bias"] = bias
    found = theory_table(
        file,
        target,
        task=task,
        holdout=holdout,
        drop=drop or [],
        categorical=categorical or [],
        impute=impute,
        settings=settings,
        report=report,
        progress=None if quiet else lambda text: print(text, file=sys.stderr, flush=True),
    )
    written: dict[str, Any] = {}
    if report is not None:
        from fireset.commands.rescue import write_or_report

        shown = {"command": command_line(context), **settings}
        written = write_or_report("report", report, lambda: write_theory_page(report, file, found, shown))
    if as_json:
        show({**found.summary, **written}, as_json)
        require_written(written)
        return
    for heading, table in theory_tables(found):
        print(heading)
        show_table([f"  {table.columns[0]}", *table.columns[1:]], [[f"  {row[0]}", *row[1:]] for row in table.rows])
        print()
    shared = PROBLEM | {"width", "threshold", "bias", "holdout", "quiet"}
    print(
        f"next: {command_line(context, '--certify', command='train', only=shared)}  # check a run against these claims"
    )
    require_written(written)


def show_certificate(certificate: dict[str, Any]) -> None:
    """The claims as a table; why assumptions are not met, below it."""
    from fireset.commands.certificate_report import claims_table, unmet_reasons

    table = claims_table(certificate)
    print()
    show_table(list(table.columns), [list(row) for row in table.rows])
    for line in [*unmet_reasons(certificate), *certificate["notes"]]:
        print(line)
