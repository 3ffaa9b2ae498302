"""Commands that make and use models: train, predict, info, export."""

import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fireset._util.durations import parse_seconds
from fireset._util.errors import INTERRUPTED, TERMINATED, InputError
from fireset.cli.app import (
    Bias,
    Categorical,
    Drop,
    DropMissingTarget,
    Engine,
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
    given_options,
    number_or_word,
    whole_number_or_word,
)
from fireset.cli.output import readable, require_written, show, show_table
from fireset.cli.theory import show_certificate
from fireset.cli.train_summary import train_summary

if TYPE_CHECKING:
    from fireset.training.losses import Loss


@app.command()
def train(
    context: typer.Context,
    file: Table,
    target: Target,
    out: Annotated[
        Path | None, typer.Option(help="Model file; by default FILE's name with .safetensors, here.")
    ] = None,
    task: Task = "auto",
    width: Annotated[
        str, typer.Option(help="Number of neurons, such as 10000 or 1e4; auto chooses by the size of the table.")
    ] = "auto",
    engine: Engine = "auto",
    loss: Annotated[
        str,
        typer.Option(
            help="squared_error; log_loss for probabilities; absolute_error or huber where targets have outliers; "
            "quantile; poisson for counts."
        ),
    ] = "squared_error",
    quantiles: Annotated[
        str | None,
        typer.Option(metavar="LEVELS", help="With --loss quantile: levels, separated by commas; default 0.1,0.5,0.9."),
    ] = None,
    huber_delta: Annotated[
        float | None,
        typer.Option(help="With --loss huber: error beyond which it is linear, in standard deviations; default 1.35."),
    ] = None,
    max_iter: Annotated[int, typer.Option(help="Maximum number of iterations, each over all rows.")] = 300,
    tol: Annotated[
        str,
        typer.Option(help="Stop when the loss improves by less than this; auto or a number, 0 to use all iterations."),
    ] = "auto",
    solver: Annotated[str, typer.Option(help="auto, gauss-newton or gradient.")] = "auto",
    ridge: Annotated[
        str, typer.Option(help="With gauss-newton: strength of the ridge penalty; auto (by leave-one-out) or a number.")
    ] = "auto",
    output_scale: Annotated[
        str, typer.Option(help="Scale of the network's outputs: auto or a number; the paper's is 1.")
    ] = "auto",
    learning_rate: Annotated[str, typer.Option(help="With gradient: auto, theory or a number.")] = "auto",
    momentum: Annotated[
        float, typer.Option(help="Nesterov momentum; 0 is plain gradient descent, the default with --certify.")
    ] = 0.9,
    batch_size: Annotated[
        int | None, typer.Option(help="With gradient: rows per mini-batch; all rows by default.")
    ] = None,
    threshold: Annotated[str, typer.Option(help="Activation threshold: auto, paper or a number.")] = "auto",
    bias: Bias = None,
    dtype: Annotated[str, typer.Option(help="Precision: float32 or float64.")] = "float32",
    early_stopping: Annotated[
        bool, typer.Option(help="Stop when a validation split, a tenth of the rows, no longer improves.")
    ] = False,
    holdout: Annotated[float, typer.Option(help="Share of the rows held out for the score; 0 for none.")] = 0.2,
    holdout_by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Hold out whole groups of this column, or the last rows if it has dates."),
    ] = None,
    drop: Drop = None,
    categorical: Categorical = None,
    impute: Impute = True,
    drop_missing_target: DropMissingTarget = False,
    eval_file: Annotated[
        Path | None, typer.Option("--eval", metavar="FILE", help="Another table to score on after training.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Describe the columns and the expected score without training.")
    ] = False,
    time: Annotated[str | None, typer.Option(metavar="TIME", help="Stop training after 60s, 5m or 2h.")] = None,
    balance: Annotated[bool, typer.Option(help="Weight all classes equally, however rare they are.")] = False,
    certify: Annotated[
        bool,
        typer.Option(
            "--certify",
            help="Check the run against the paper's claims. Changes defaults: momentum 0, tol 0, the paper's network.",
        ),
    ] = False,
    report: Annotated[Path | None, typer.Option(metavar="PAGE.html", help="Write a report with figures.")] = None,
    history: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the figures of every iteration, as .csv or .json.")
    ] = None,
    tensorboard: Annotated[Path | None, typer.Option(metavar="DIR", help="Log to TensorBoard.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for checkpoints.")] = None,
    every: Annotated[int, typer.Option(help="Iterations between two checkpoints.")] = 50,
    resume: Annotated[bool, typer.Option(help="Continue from the newest checkpoint, if there is one.")] = False,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory limit, such as 12G; by default the free memory.")
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(metavar="NxR", help="With torchrun: split the neurons into N parts and the rows into R."),
    ] = None,
    worker_timeout: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            envvar="FIRESET_WORKER_TIMEOUT",
            help="With torchrun: stop if a worker does not respond for this long.",
        ),
    ] = "10m",
    seed: Seed = 0,
    quiet: Quiet = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every figure of the run.")] = False,
    as_json: Json = False,
) -> None:
    """Train on a table and write a model file; with torchrun, on several workers."""
    from fireset.commands.train import train_table
    from fireset.distributed.agreement import check_same
    from fireset.distributed.process_group import joined_group, restarted
    from fireset.distributed.worker_grid import grid as laid_out
    from fireset.distributed.worker_grid import parse_grid
    from fireset.training.checkpoint import Checkpoints
    from fireset.training.memory import parse_memory

    if resume and checkpoint is None:
        raise InputError("--resume needs --checkpoint DIR, the folder of the checkpoints")
    parse_memory(memory)  # a misspelled size is refused before the table is read
    shape = parse_grid(grid) if grid is not None else None

    if certify and "momentum" not in given_options(context):
        momentum = 0.0  # the claims are about plain descent
    settings: dict[str, Any] = {
        "width": whole_number_or_word("width", width, ("auto",)),
        "engine": engine,
        "max_iter": max_iter,
        "tol": number_or_word("tol", tol, ("auto",)),
        "solver": solver,
        "ridge": number_or_word("ridge", ridge, ("auto",)),
        "output_scale": number_or_word("output_scale", output_scale, ("auto",)),
        "learning_rate": number_or_word("learning_rate", learning_rate, ("auto", "theory")),
        "momentum": momentum,
        "nesterov": momentum > 0,
        "batch_size": batch_size,
        "threshold": number_or_word("threshold", threshold, ("auto", "paper")),
        "dtype": dtype,
        "early_stopping": early_stopping,
        "random_state": checked_seed(seed),
        "verbose": not quiet,
    }
    if bias is not None:
        settings["bias"] = bias
    if balance:
        settings["class_weight"] = "balanced"
    reading: dict[str, Any] = {"task": task, "drop": drop or [], "categorical": categorical or [], "impute": impute}
    reading["drop_missing_target"] = drop_missing_target
    with ExitStack() as stack:
        timeout = timedelta(seconds=parse_seconds("worker_timeout", worker_timeout, 1.0))
        group = stack.enter_context(joined_group(timeout))
        check_same(group, _options_of_all_workers(context))
        if explain:
            if group.size > 1:
                raise InputError(f"--explain runs in one process, got {group.size} workers; leave torchrun out")
            step = command_line(context, without=["explain"])
            _explain(file, target, holdout, _loss(loss, quantiles, huber_delta), settings, as_json, reading, step)
            return
        if shape:
            stack.enter_context(laid_out(**shape))
        again = (
            resume or group.all_reduce_max(int(restarted())) > 0
        )  # torchrun counts restarts on each machine by itself
        summary = train_table(
            file,
            target,
            out=out,
            reading=reading,
            loss=_loss(loss, quantiles, huber_delta),
            holdout=holdout,
            holdout_by=holdout_by,
            settings=settings,
            eval_file=eval_file,
            seconds=None if time is None else parse_seconds("time", time),
            checkpoint=Checkpoints(checkpoint, every, resume=again) if checkpoint else None,
            memory=memory,
            certify=certify,
            report=report,
            history=history,
            tensorboard=tensorboard,
            command=command_line(context),
        )
        if group.rank == 0:
            if as_json:
                show(summary, as_json)
            else:
                show(train_summary(summary) | _after_training(summary, context), as_json)
                if verbose:
                    _show_internals(summary)
            if "certificate" in summary and not as_json:
                show_certificate(summary["certificate"])
    require_written(summary)
    ends = {"interrupted": INTERRUPTED, "terminated": TERMINATED}
    if summary["stop_reason"] in ends:
        raise typer.Exit(ends[summary["stop_reason"]])


# Options of `train` that may differ between workers: where each one reads, how much memory it has, what worker 0 shows.
_OPTIONS_OF_ONE_WORKER = ("quiet", "as_json", "history", "tensorboard", "report", "memory", "worker_timeout")


def _options_of_all_workers(context: typer.Context) -> dict[str, Any]:
    """The options that must be the same on all workers; of tables the name, since each may have a copy of its own."""
    shared = {}
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in ("file", "eval_file") and value is not None:
            value = Path(value).name
        if parameter.name not in _OPTIONS_OF_ONE_WORKER:
            shared[max(parameter.opts, key=len)] = str(value) if isinstance(value, Path) else value
    return shared


def _show_internals(summary: dict[str, Any]) -> None:
    """Every figure of the run that is a number or a word."""
    left_out = ("certificate", "not_written", "advice", "hints", "notes", "importances")
    print()
    show({key: value for key, value in summary.items() if key not in left_out}, False)


def _after_training(summary: dict[str, Any], context: typer.Context) -> dict[str, str]:
    """What to do next."""
    if "model" in summary:
        return {"next": f"fireset predict {quote(summary['model'])} NEW_TABLE --out predictions.csv"}
    return {"next": command_line(context, "--resume", without=["resume"])}


def _explain(
    file: Path,
    target: str,
    holdout: float,
    loss: "str | Loss",
    settings: dict[str, Any],
    as_json: bool,
    reading: dict[str, Any],
    step: str,
) -> None:
    from fireset.commands.explain_training import explain_training

    found = explain_training(file, target, holdout=holdout, loss=loss, settings=settings, reading=reading)
    if as_json:
        show({**found.summary, "table_columns": found.columns}, as_json)
        return
    show_table(["column", "kind", "missing", "importance", ""], found.column_rows())
    print()
    told = {key: value for key, value in found.summary.items() if key not in ("importances", "task_reason")}
    told["task"] = found.summary.get("task_reason", told["task"])
    show({**told, "next": step}, as_json)


def _loss(name: str, quantiles: str | None, huber_delta: float | None) -> "str | Loss":
    """The loss that the options describe."""
    from fireset.training.losses import Huber, Quantile

    if quantiles is not None:
        if name != "quantile":
            raise InputError(f"--quantiles is for --loss quantile, got --loss {name}")
        try:
            levels = tuple(float(level) for level in quantiles.split(","))
        except ValueError:
            raise InputError(
                f"--quantiles must be numbers separated by commas, such as 0.1,0.5,0.9; got {quantiles!r}"
            ) from None
        return Quantile(levels)
    if huber_delta is not None:
        if name != "huber":
            raise InputError(f"--huber-delta is for --loss huber, got --loss {name}")
        return Huber(huber_delta)
    return name


# What ``predict`` says of a table that has the answers; ``--json`` has all scores.
_SCORES = ("accuracy", "majority_accuracy", "balanced_accuracy", "f1", "low_recall_classes")
_SCORES += ("r2", "rmse", "mae", "poisson_deviance", "pinball", "coverage")


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="A file that `fireset train` wrote.")],
    file: Annotated[Path, typer.Argument(help="A table with the columns that the model was trained on.")],
    out: Annotated[Path | None, typer.Option(help="CSV file for the predictions; standard output by default.")] = None,
    proba: Annotated[bool, typer.Option(help="Add the probability of each class (classification).")] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMNS", help="Columns to copy, such as an id, separated by commas; may be repeated."),
    ] = None,
    safe_csv: Annotated[
        bool, typer.Option(help="Quote labels that a spreadsheet would take for formulas, such as =1+1.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Predict the target for every row of a table."""
    from fireset._util.files import check_writable
    from fireset.commands.overwrite_check import check_outputs_differ_from_inputs
    from fireset.commands.predict import predict_table, write_csv

    check_outputs_differ_from_inputs(out, model, file)
    if out is not None:
        check_writable(out)
    kept, predicted, summary = predict_table(model, file, proba=proba, keep=keep)
    if out is not None or not as_json:
        write_csv({**kept, **predicted}, out, safe=safe_csv)
    if as_json:
        columns = {"out": str(out)} if out else {**({"kept": kept} if kept else {}), **predicted}
        show({**summary, **columns}, as_json)
        return
    notes = [" ".join(readable(key, summary[key])) for key in _SCORES if key in summary]
    if out is not None:
        notes.append(f"{summary['rows']:,} predictions in {out}")
    if notes:
        print(", ".join(notes), file=sys.stderr)
    if out is not None:
        print(f"next: fireset info {quote(str(model))}  # what the model depends on", file=sys.stderr)


@app.command()
def info(
    model: Annotated[Path, typer.Argument(help="A file that `fireset train` or `ShiftedReLUNetwork.save` wrote.")],
    as_json: Json = False,
) -> None:
    """Describe a model file."""
    from fireset.commands.info import describe_model

    known = describe_model(model)
    usable = {"next": f"fireset predict {quote(str(model))} TABLE --out predictions.csv"} if "task" in known else {}
    show(known if as_json else known | usable, as_json)


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="A file that `fireset train` wrote.")],
    out: Annotated[Path, typer.Argument(help="The file to write, named .onnx.")],
    as_json: Json = False,
) -> None:
    """Write a model as an ONNX graph, which runs without fireset."""
    from fireset.commands.export import export_model

    found = export_model(model, out)
    step = f"onnxruntime.InferenceSession({str(out)!r}) in Python; docs/export.md has the rest"
    show(found if as_json else {**found, "next": step}, as_json)
