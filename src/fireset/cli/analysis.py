"""Commands that analyse a table: compare, engines, theory, quantum."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fireset._util.errors import INTERRUPTED, InputError
from fireset.cli import options
from fireset.cli.app import app, command_line, given_options
from fireset.cli.options import PROBLEM, Reading, checked_seed, number_or_word, whole_number
from fireset.cli.output import require_written, show, show_table

_ENGINES_LEGEND = """\
Dense engines compute every pair of row and neuron; preprocessed ones compute only active pairs; approximate ones miss
some of these (recall is the share found). 'differs from dense': distance of the trained weights from those of the dense
engine, relative to their movement during training; 1e-6 is rounding."""
_ENGINE_OPTIONS = ("engines", "width", "iterations", "dtype")


@app.command()
def compare(
    context: typer.Context,
    file: options.Table,
    target: options.Target,
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
    width: options.Width = "10000",
    iterations: Annotated[int, typer.Option(help="Maximum number of iterations per engine.")] = 30,
    dtype: options.Dtype = "float32",
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time limit, such as 60s or 5m.")] = "60s",
    report: options.Report = None,
    task: options.Task = "auto",
    drop: options.Drop = None,
    categorical: options.Categorical = None,
    impute: options.Impute = True,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Run every engine on the same table and network: does preprocessing help here? Or, with --models, which model?"""
    from fireset._util.text import parse_seconds
    from fireset.commands.compare import EngineOptions, compare_table

    wrong = [name for name in _ENGINE_OPTIONS if name in given_options(context)] if models else []
    if wrong:
        raise InputError(f"--{wrong[0]} is for the comparison of engines; leave it out, or leave --models out")
    found = compare_table(
        file,
        target,
        None if models else EngineOptions(engines, whole_number("width", width), iterations, dtype),
        budget=parse_seconds("budget", budget),
        seed=checked_seed(seed),
        report=report,
        verbose=not quiet,
        command=command_line(context),
        **Reading(task, drop, categorical, impute).arguments(),
    )
    if as_json:
        show(found, as_json)
    else:
        _show_comparison(found, models=models)
        about = "the engines of fireset" if models else "other models"
        other = command_line(context, *(() if models else ("--models",)), only=PROBLEM | {"quiet"})
        print(f"\nnext: {command_line(context, command='train', only=PROBLEM | {'quiet'})}")
        print(f"or: {other}  # {about}")
    require_written(found)
    if found["interrupted"]:
        raise typer.Exit(INTERRUPTED)


def _show_comparison(found: dict[str, Any], *, models: bool) -> None:
    from fireset.commands.compare.model_contenders import MODELS
    from fireset.commands.compare.report import engine_table, model_table
    from fireset.commands.compare.result import SCORES

    if models:
        table = model_table(found["models"], SCORES[found["task"]])
        remarks = [f"{MODELS[each['name']].label}: {each['note']}" for each in found["models"] if each["note"]]
    else:
        table = engine_table(found["contenders"])
        remarks = [f"{each['name']}: {each['reason']}" for each in found["contenders"] if each["reason"]]
    show_table(table.columns, table.rows, numbers=True)
    for line in [*remarks, *found["notes"]]:
        print(line)
    if not models:
        print(f"\n{_ENGINES_LEGEND}")
    if "task_reason" in found:
        print(f"\ntask: {found['task_reason']}")
    print(f"\n{found['verdict']}")
    if "report" in found:
        print(f"\nreport  {found['report']}")


@app.command()
def engines(
    context: typer.Context,
    explain: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Show the cost estimates by which auto chooses on this table.")
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column to predict, with --explain.")] = None,
    width: options.Width = "10000",
    max_iter: Annotated[int, typer.Option(help="Iterations, with --explain.")] = 300,
    task: options.Task = "auto",
    drop: options.Drop = None,
    categorical: options.Categorical = None,
    impute: options.Impute = True,
    as_json: options.Json = False,
) -> None:
    """List the engines, the ways to find active neurons. With --explain, what an iteration of each will take."""
    from fireset.engines import describe

    if explain is not None:
        from fireset.commands.explain_engines import explain_engines

        if target is None:
            raise InputError("--explain needs --target COLUMN, the column to predict")
        reading = Reading(task, drop, categorical, impute).arguments()
        found = explain_engines(explain, target, width=whole_number("width", width), max_iter=max_iter, **reading)
        chosen = (f"--width={width}", f"--engine={found['auto']}")
        step = command_line(context, *chosen, command="train", only=PROBLEM, file=explain)
        show(found if as_json else {**found, "next": step}, as_json)
        return

    if as_json:
        print(json.dumps(describe()))
        return
    for engine in describe():
        kind = "exact" if engine["exact"] else "approximate"
        print(f"{engine['name']:15} {kind:12} {engine['summary']}")
    print(f"{'auto':15} {'':12} chooses among them by the size of the problem")
    print(
        "\nA neuron is active for a row if their inner product is above the threshold; only active pairs are trained."
    )
    print("exact: finds all active pairs and trains the same network as dense; approximate: misses some of them.")
    print("\nnext: fireset engines --explain TABLE --target COLUMN   # what an iteration of each takes there")


@app.command()
def theory(
    context: typer.Context,
    file: options.Table,
    target: options.Target,
    task: options.Task = "auto",
    width: options.Width = "10000",
    threshold: Annotated[str, typer.Option(help="Activation threshold: paper or a number.")] = "paper",
    bias: options.Bias = None,
    holdout: options.Holdout = 0.2,
    drop: options.Drop = None,
    categorical: options.Categorical = None,
    impute: options.Impute = True,
    report: options.Report = None,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Compute what the convergence theorem requires on a table, and what practice needs."""
    from fireset.commands.outputs import write_or_report
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
        holdout=holdout,
        settings=settings,
        report=report,
        progress=None if quiet else lambda text: print(text, file=sys.stderr, flush=True),
        **Reading(task, drop, categorical, impute).arguments(),
    )
    written: dict[str, Any] = {}
    if report is not None:
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


@app.command()
def quantum(
    context: typer.Context,
    file: options.Table,
    target: options.Target,
    task: options.Task = "auto",
    width: options.Width = "10000",
    iterations: Annotated[int, typer.Option(help="Number of gradient steps to count.")] = 5,
    failure_probability: Annotated[float, typer.Option(help="Probability that a search misses an item.")] = 1e-6,
    bits: Annotated[int, typer.Option(help="Bits per number in the arithmetic oracle.")] = 8,
    report: options.Report = None,
    drop: options.Drop = None,
    categorical: options.Categorical = None,
    impute: options.Impute = True,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Count the oracle calls of both quantum-classical algorithms on a table, and what circuits they need."""
    from fireset.commands.outputs import write_or_report
    from fireset.commands.quantum import quantum_costs, quantum_summary, write_quantum_page
    from fireset.reporting import check_report

    if report is not None:
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
        **Reading(task, drop, categorical, impute).arguments(),
    )
    written: dict[str, Any] = {}
    if report is not None:
        command = command_line(context)
        written = write_or_report("report", report, lambda: write_quantum_page(report, file, costs, command))
    compared = command_line(context, command="compare", only=PROBLEM | {"width", "quiet"})
    step = f"{compared}  # which engine is fastest on this machine"
    if as_json:
        show({**costs.to_dict(), **written}, as_json)
    else:
        place = {"report": written["report"]} if "report" in written else {}
        show({**quantum_summary(costs), **place, "next": step}, as_json)
    require_written(written)
