"""The command train."""

from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fireset._util.errors import INTERRUPTED, TERMINATED, InputError
from fireset._util.text import parse_seconds
from fireset.cli import options
from fireset.cli.app import app, command_line, given_options
from fireset.cli.options import Reading, checked_seed, number_or_word, whole_number_or_word
from fireset.cli.output import require_written, show, show_table

if TYPE_CHECKING:
    from fireset.commands.explain_training import Explained
    from fireset.training.losses import Loss


@app.command()
def train(
    context: typer.Context,
    file: options.TrainingTable,
    target: options.Target,
    out: Annotated[
        Path | None, typer.Option(help="Model file; by default FILE's name with .safetensors, here.")
    ] = None,
    task: options.Task = "auto",
    width: Annotated[
        str,
        typer.Option(
            help="Number of neurons, such as 10000 or 1e4; auto chooses by the size of the table; theory, with "
            "--certify, is the least width that the theorem covers."
        ),
    ] = "auto",
    engine: options.Engine = "auto",
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
    solver: Annotated[str, typer.Option(help="auto, gauss-newton, nystrom or gradient.")] = "auto",
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
    bias: options.Bias = None,
    dtype: options.Dtype = "float32",
    early_stopping: Annotated[
        bool, typer.Option(help="Stop when a validation split, a tenth of the rows, no longer improves.")
    ] = False,
    holdout: options.Holdout = 0.2,
    holdout_by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Hold out whole groups of this column, or the last rows if it has dates."),
    ] = None,
    drop: options.Drop = None,
    categorical: options.Categorical = None,
    impute: options.Impute = True,
    drop_missing_target: options.DropMissingTarget = False,
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
    report: options.Report = None,
    history: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the figures of every iteration, as .csv or .json.")
    ] = None,
    tensorboard: Annotated[Path | None, typer.Option(metavar="DIR", help="Log to TensorBoard.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for checkpoints.")] = None,
    every: Annotated[int, typer.Option(help="Iterations between two checkpoints.")] = 50,
    resume: Annotated[bool, typer.Option(help="Continue from the newest checkpoint, if there is one.")] = False,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory limit, such as 12G; by default the free memory. Larger tables are read in blocks.",
        ),
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
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every figure of the run.")] = False,
    as_json: options.Json = False,
) -> None:
    """Train on a table and write a model file; with torchrun, on several workers."""
    from fireset.commands.explain_training import explain_training
    from fireset.commands.run_summary import train_summary
    from fireset.commands.train import train_table
    from fireset.distributed.agreement import check_same
    from fireset.distributed.process_group import joined_group, restarted_by_torchrun
    from fireset.distributed.worker_grid import grid as worker_grid
    from fireset.distributed.worker_grid import parse_grid
    from fireset.training.checkpoint import Checkpoints
    from fireset.training.memory import parse_memory

    if resume and checkpoint is None:
        raise InputError("--resume needs --checkpoint DIR, the folder of the checkpoints")
    parse_memory(memory)  # refuses a misspelled size before the table is read
    shape = parse_grid(grid) if grid is not None else None

    if width == "theory" and not certify:
        raise InputError("--width theory needs --certify, which trains the network that the theorem is about")
    if certify and "momentum" not in given_options(context):
        momentum = 0.0  # the claims are about plain gradient descent
    settings: dict[str, Any] = {
        "width": whole_number_or_word("width", width, ("auto", "theory")),
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
    reading = Reading(task, drop, categorical, impute, drop_missing_target).arguments()
    with ExitStack() as stack:
        timeout = timedelta(seconds=parse_seconds("worker_timeout", worker_timeout, 1.0))
        group = stack.enter_context(joined_group(timeout))
        check_same(group, _common_options(context))
        if explain:
            if group.size > 1:
                raise InputError(f"--explain runs in one process, got {group.size} workers; leave torchrun out")
            step = command_line(context, without=["explain"])
            found = explain_training(
                file,
                target,
                holdout=holdout,
                loss=_loss(loss, quantiles, huber_delta),
                settings=settings,
                reading=reading,
                memory=memory,
            )
            _show_explanation(found, as_json, step)
            return
        if shape:
            stack.enter_context(worker_grid(**shape))
        # torchrun counts restarts on each machine separately
        resumes = resume or group.all_reduce_max(int(restarted_by_torchrun())) > 0
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
            checkpoint=Checkpoints(checkpoint, every, resume=resumes) if checkpoint else None,
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
                show(train_summary(summary) | _next_step(summary, context), as_json)
                if verbose:
                    _show_all_figures(summary)
            if "certificate" in summary and not as_json:
                _show_certificate(summary["certificate"])
    require_written(summary)
    ends = {"interrupted": INTERRUPTED, "terminated": TERMINATED}
    if summary["stop_reason"] in ends:
        raise typer.Exit(ends[summary["stop_reason"]])


# Options that may differ between workers: what rank 0 shows and writes, the memory, the timeout
_OPTIONS_PER_WORKER = ("quiet", "as_json", "history", "tensorboard", "report", "memory", "worker_timeout")


def _common_options(context: typer.Context) -> dict[str, Any]:
    """Return the options that must be equal on all workers; of tables only the name, since each may have a copy."""
    shared = {}
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in ("file", "eval_file") and value is not None:
            value = Path(value).name
        if parameter.name not in _OPTIONS_PER_WORKER:
            shared[max(parameter.opts, key=len)] = str(value) if isinstance(value, Path) else value
    return shared


def _show_all_figures(summary: dict[str, Any]) -> None:
    """Print all figures of the run."""
    omitted = ("certificate", "not_written", "advice", "hints", "notes", "importances")
    print()
    show({key: value for key, value in summary.items() if key not in omitted}, False)


def _next_step(summary: dict[str, Any], context: typer.Context) -> dict[str, str]:
    """Return the command that predicts, or the one that resumes an unfinished run."""
    if "model" in summary:
        return {"next": f"fireset predict {quote(summary['model'])} NEW_TABLE --out predictions.csv"}
    return {"next": command_line(context, "--resume", without=["resume"])}


def _show_explanation(found: "Explained", as_json: bool, step: str) -> None:
    if as_json:
        show({**found.summary, "table_columns": found.columns}, as_json)
        return
    show_table(["column", "kind", "missing", "importance", ""], found.column_rows())
    print()
    shown = {key: value for key, value in found.summary.items() if key not in ("importances", "task_reason")}
    shown["task"] = found.summary.get("task_reason", shown["task"])
    show({**shown, "next": step}, as_json)


def _show_certificate(certificate: dict[str, Any]) -> None:
    """Print the claims as a table, then why assumptions are not met."""
    from fireset.commands.certificate import claims_table, unmet_reasons

    table = claims_table(certificate)
    print()
    show_table(table.columns, table.rows)
    for line in [*unmet_reasons(certificate), *certificate["notes"]]:
        print(line)


def _loss(name: str, quantiles: str | None, huber_delta: float | None) -> "str | Loss":
    """Return the loss that the options describe."""
    from fireset.training.losses.registry import get_loss, losses_with

    if quantiles is None and huber_delta is None:
        return name
    try:
        levels = None if quantiles is None else tuple(float(level) for level in quantiles.split(","))
    except ValueError:
        raise InputError(
            f"--quantiles must be numbers separated by commas, such as 0.1,0.5,0.9; got {quantiles!r}"
        ) from None
    parameters = {}
    for parameter, option, value in (("levels", "--quantiles", levels), ("delta", "--huber-delta", huber_delta)):
        if value is not None:
            owners = losses_with(parameter)
            if name not in owners:
                raise InputError(f"{option} is for --loss {' or '.join(owners)}, got --loss {name}")
            parameters[parameter] = value
    return type(get_loss(name))(**parameters)
