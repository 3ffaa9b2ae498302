"""The command that compares on a table: engines, which is the paper's question, or models."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fireset._util.errors import INTERRUPTED, InputError
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
    given_options,
    whole_number,
)
from fireset.cli.output import require_written, show, show_table

_LEGEND = """\
Dense engines compute every pair of row and neuron; preprocessed ones compute only active pairs; approximate ones miss
some of these (recall is the share found). 'differs from dense': distance of the trained weights from those of the dense
engine, relative to their movement during training; 1e-6 is rounding."""
_OF_ENGINES = ("engines", "width", "iterations", "dtype")


@app.command()
def compare(
    context: typer.Context,
    file: Table,
    target: Target,
    models: Annotated[
        bool, typer.Option("--models", help="Compare fireset with other models instead of comparing its engines.")
    ] = False,
    engines: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Engines to compare, separated by commas, pytorch and jax included; by default all but simulations.",
        ),
    ] = None,
    width: Width = "10000",
    iterations: Annotated[int, typer.Option(help="Maximum number of iterations per engine.")] = 30,
    dtype: Annotated[str, typer.Option(help="Precision: float32 or float64.")] = "float32",
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time limit, such as 60s or 5m.")] = "60s",
    report: Annotated[Path | None, typer.Option(metavar="PAGE.html", help="Write a report with figures.")] = None,
    task: Task = "auto",
    drop: Drop = None,
    categorical: Categorical = None,
    impute: Impute = True,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run every engine on the same table and network: does preprocessing help here? Or, with --models, which model?"""
    from fireset._util.durations import parse_seconds

    shared: dict[str, Any] = {
        "budget": parse_seconds("budget", budget),
        "seed": checked_seed(seed),
        "report": report,
        "verbose": not quiet,
        "command": command_line(context),
        "task": task,
        "drop": drop or [],
        "categorical": categorical or [],
        "impute": impute,
    }
    if models:
        from fireset.commands.compare_models import compare_models_table

        wrong = [name for name in _OF_ENGINES if name in given_options(context)]
        if wrong:
            raise InputError(f"--{wrong[0]} is for the comparison of engines; leave it out, or leave --models out")
        found = compare_models_table(file, target, **shared)
    else:
        from fireset.commands.compare import compare_table

        found = compare_table(
            file,
            target,
            engines=engines,
            width=whole_number("width", width),
            iterations=iterations,
            dtype=dtype,
            **shared,
        )
    if as_json:
        show(found, as_json)
    else:
        (_show_models if models else _show_engines)(found)
        if "task_reason" in found:
            print(f"\ntask: {found['task_reason']}")
        print(f"\n{found['verdict']}")
        if "report" in found:
            print(f"\nreport  {found['report']}")
        about = "the engines of fireset" if models else "other models"
        other = command_line(context, *(() if models else ("--models",)), only=PROBLEM | {"quiet"})
        print(f"\nnext: {command_line(context, command='train', only=PROBLEM | {'quiet'})}")
        print(f"or: {other}  # {about}")
    require_written(found)
    if found["interrupted"]:
        raise typer.Exit(INTERRUPTED)


def _show_engines(found: dict[str, Any]) -> None:
    from fireset.commands.compare_report import COLUMNS, cells

    rows = found["contenders"]
    show_table([heading for heading, _, _ in COLUMNS], [cells(row) for row in rows], numbers=True)
    for row in rows:
        if row["reason"]:
            print(f"{row['name']}: {row['reason']}")
    for note in found["notes"]:
        print(note)
    print(f"\n{_LEGEND}")


def _show_models(found: dict[str, Any]) -> None:
    from fireset.commands.compare_models import SCORES
    from fireset.commands.compare_models_report import cells, headings
    from fireset.commands.model_contenders import MODELS

    scores = SCORES[found["task"]]
    show_table(headings(scores), [cells(model, scores) for model in found["models"]], numbers=True)
    for model in found["models"]:
        if model["note"]:
            print(f"{MODELS[model['name']].label}: {model['note']}")
    for note in found["notes"]:
        print(note)
