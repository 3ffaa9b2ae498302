"""Commands that make and use models: train, predict, info."""

import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fireset._util.durations import parse_seconds
from fireset._util.errors import INTERRUPTED, TERMINATED, InputError, OutputError
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
    number_or_word,
    whole_number_or_word,
)
from fireset.cli.output import readable, show, show_table
from fireset.cli.theory import show_certificate

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
    width: Annotated[str, typer.Option(help="Number of neurons; auto by the size of the table.")] = "auto",
    engine: Engine = "auto",
    loss: Annotated[
        str,
        typer.Option(
            help="squared_error; log_loss for probabilities; absolute_error or huber where targets have outliers; "
            "quantile; poisson for counts."
        ),
    ] = "squared_error",
    quantiles: Annotated[
        str | None, typer.Option(metavar="LEVELS", help="Of quantile: levels such as 0.1,0.5,0.9, the default.")
    ] = None,
    huber_delta: Annotated[
        float | None, typer.Option(help="Of huber: errors from which on it is linear, in spreads of the target; 1.35.")
    ] = None,
    max_iter: Annotated[int, typer.Option(help="Iterations at most, each over all rows.")] = 300,
    tol: Annotated[str, typer.Option(help="auto, or stop when the loss gains less than this; 0 never.")] = "auto",
    solver: Annotated[str, typer.Option(help="auto, gauss-newton or gradient.")] = "auto",
    ridge: Annotated[str, typer.Option(help="Of gauss-newton: auto (by leave-one-out) or a number.")] = "auto",
    output_scale: Annotated[str, typer.Option(help="auto or a number; 1 is the paper's.")] = "auto",
    learning_rate: Annotated[str, typer.Option(help="Of gradient: auto, theory or a number.")] = "auto",
    momentum: Annotated[float, typer.Option(help="Nesterov momentum; 0 is the paper's plain descent.")] = 0.9,
    batch_size: Annotated[int | None, typer.Option(help="Of gradient: step on batches of so many rows.")] = None,
    threshold: Annotated[str, typer.Option(help="auto, paper or a number.")] = "auto",
    bias: Bias = None,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    early_stopping: Annotated[bool, typer.Option(help="Stop by a validation split of a tenth.")] = False,
    holdout: Annotated[float, typer.Option(help="Share of the rows kept back for the score; 0 for none.")] = 0.2,
    drop: Drop = None,
    categorical: Categorical = None,
    impute: Impute = True,
    drop_missing_target: DropMissingTarget = False,
    eval_file: Annotated[
        Path | None, typer.Option("--eval", metavar="FILE", help="Another table to score on after training.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what was found out and what to expect; train nothing.")
    ] = False,
    time: Annotated[str | None, typer.Option(metavar="TIME", help="Stop training after 60s, 5m or 2h.")] = None,
    balance: Annotated[bool, typer.Option(help="Let all classes count alike, however rare they are.")] = False,
    certify: Annotated[
        bool, typer.Option("--certify", help="Hold the run against the paper's claims; see also --momentum 0.")
    ] = False,
    report: Annotated[Path | None, typer.Option(metavar="PAGE.html", help="Write a page with figures.")] = None,
    history: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every iteration's numbers, .csv or .json.")
    ] = None,
    tensorboard: Annotated[Path | None, typer.Option(metavar="DIR", help="Log to TensorBoard.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(metavar="DIR", help="Write checkpoints into this folder.")] = None,
    every: Annotated[int, typer.Option(help="Iterations between two checkpoints.")] = 50,
    resume: Annotated[bool, typer.Option(help="Go on from the newest checkpoint, if there is one.")] = False,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory to stay within, such as 12G; by default what is free.")
    ] = None,
    grid: Annotated[
        str | None, typer.Option(metavar="NxR", help="With torchrun: N shares of the neurons, R shares of the rows.")
    ] = None,
    worker_timeout: Annotated[
        str,
        typer.Option(
            metavar="TIME", envvar="FIRESET_WORKER_TIMEOUT", help="With torchrun: give up a worker silent for so long."
        ),
    ] = "10m",
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train on a table and write a model file; with torchrun, on several workers."""
    from fireset.commands.train import train_table
    from fireset.distributed.process_group import joined_group, restarted
    from fireset.distributed.worker_grid import grid as laid_out
    from fireset.distributed.worker_grid import parse_grid
    from fireset.training.checkpoint import Checkpoints
    from fireset.training.memory import parse_memory

    if resume and checkpoint is None:
        raise InputError("--resume needs --checkpoint DIR, the folder of the checkpoints")
    parse_memory(memory)  # a misspelled size is refused before the table is read
    shape = parse_grid(grid) if grid is not None else None

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
    if explain:
        _explain(file, target, holdout, loss, settings, as_json, reading)
        return
    with (
        joined_group(timedelta(seconds=parse_seconds("worker_timeout", worker_timeout, 1.0))) as group,
        laid_out(**shape) if shape else nullcontext(),
    ):
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
            told_apart = () if as_json else ("certificate", "not_written")
            show({key: value for key, value in summary.items() if key not in told_apart}, as_json)
            if "certificate" in summary and not as_json:
                show_certificate(summary["certificate"])
    if "not_written" in summary:
        missing = "; ".join(summary["not_written"])
        raise OutputError(
            f"the model is in {summary['model']}, but not all else that was asked for was written: {missing}"
        )
    ends = {"interrupted": INTERRUPTED, "terminated": TERMINATED}
    if summary["stop_reason"] in ends:
        raise typer.Exit(ends[summary["stop_reason"]])


def _explain(
    file: Path,
    target: str,
    holdout: float,
    loss: "str | Loss",
    settings: dict[str, Any],
    as_json: bool,
    reading: dict[str, Any],
) -> None:
    from fireset.commands.explain_training import explain_training

    found = explain_training(file, target, holdout=holdout, loss=loss, settings=settings, reading=reading)
    if as_json:
        show({**found.summary, "table_columns": found.columns}, as_json)
        return
    show_table(["column", "kind", "missing", "importance", ""], found.column_rows())
    print()
    show({key: value for key, value in found.summary.items() if key != "importances"}, as_json)


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
                f"--quantiles must be numbers with commas between them, such as 0.1,0.5,0.9; got {quantiles!r}"
            ) from None
        return Quantile(levels)
    if huber_delta is not None:
        if name != "huber":
            raise InputError(f"--huber-delta is for --loss huber, got --loss {name}")
        return Huber(huber_delta)
    return name


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="A file that `fireset train` wrote.")],
    file: Annotated[Path, typer.Argument(help="A table with the columns that the model was trained on.")],
    out: Annotated[Path | None, typer.Option(help="CSV file for the predictions; standard output by default.")] = None,
    proba: Annotated[bool, typer.Option(help="Probability of each class too (classification).")] = False,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Carry it along, an id say; may be repeated.")
    ] = None,
    safe_csv: Annotated[
        bool, typer.Option(help="Quote labels that a spreadsheet would take for formulas, such as =1+1.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Predict the target for every row of a table."""
    from fireset._util.files import check_writable
    from fireset.commands.overwrite_check import spare_inputs
    from fireset.commands.predict import predict_table, write_csv

    spare_inputs(out, model, file)
    if out is not None:
        check_writable(out)
    columns, summary = predict_table(model, file, proba=proba, keep=keep)
    if as_json:
        if out is not None:
            write_csv(columns, out, safe=safe_csv)
        show({**summary, **({"out": str(out)} if out else columns)}, as_json)
        return
    write_csv(columns, out, safe=safe_csv)
    notes = [" ".join(readable(key, value)) for key, value in summary.items() if key != "rows"]
    if out is not None:
        notes.append(f"{summary['rows']:,} predictions in {out}")
    if notes:
        print(", ".join(notes), file=sys.stderr)


@app.command()
def info(
    model: Annotated[Path, typer.Argument(help="A file that `fireset train` or `ShiftedReLUNetwork.save` wrote.")],
    as_json: Json = False,
) -> None:
    """Say what is in a model file."""
    from fireset.commands.info import describe_model

    show(describe_model(model), as_json)
