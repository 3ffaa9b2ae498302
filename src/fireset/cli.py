"""The command line. Commands read their arguments and print; ``tasks.py`` does the work.

Nothing heavy is imported at the top: ``fireset --help`` has to answer at once.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fireset.errors import INTERRUPTED, InputError

_MOST_LISTED = 12  # columns or classes on one line

app = typer.Typer(
    name="fireset",
    help="Train very wide shifted-ReLU networks exactly, paying only for the neurons that fire.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
Seed = Annotated[int, typer.Option(help="Seed of the network and of the hold-out split.")]
Engine = Annotated[str, typer.Option(help="How the fire sets are found; `fireset engines` lists them.")]


def _version(wanted: bool) -> None:
    if wanted:
        from fireset import __version__

        print(f"fireset {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def train(
    file: Annotated[Path, typer.Argument(help="CSV, TSV, Parquet, NPZ or svmlight file.")],
    target: Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")],
    out: Annotated[
        Path | None, typer.Option(help="Model file; by default FILE's name with .safetensors, here.")
    ] = None,
    task: Annotated[str, typer.Option(help="auto, classification or regression.")] = "auto",
    width: Annotated[int, typer.Option(help="Number of neurons.")] = 10_000,
    engine: Engine = "auto",
    loss: Annotated[str, typer.Option(help="squared_error, or log_loss for probabilities.")] = "squared_error",
    max_iter: Annotated[int, typer.Option(help="Iterations at most, each over all rows.")] = 300,
    tol: Annotated[float, typer.Option(help="Stop when the loss gains less than this; 0 never.")] = 1e-4,
    learning_rate: Annotated[str, typer.Option(help="auto, theory or a number.")] = "auto",
    momentum: Annotated[float, typer.Option(help="Nesterov momentum; 0 is the paper's plain descent.")] = 0.9,
    threshold: Annotated[str, typer.Option(help="paper or a number.")] = "paper",
    bias: Annotated[float | None, typer.Option(help="Size of the constant coordinate; larger is smoother.")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    early_stopping: Annotated[bool, typer.Option(help="Stop by a validation split of a tenth.")] = False,
    holdout: Annotated[float, typer.Option(help="Share of the rows kept back for the score; 0 for none.")] = 0.2,
    drop: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Leave it out; may be repeated.")] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Numbers that name categories; may be repeated."),
    ] = None,
    impute: Annotated[bool, typer.Option(help="Fill missing values (median, or most frequent).")] = False,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train on a table and write a model file."""
    from fireset.tasks import train_table

    settings: dict[str, Any] = {
        "width": width,
        "engine": engine,
        "max_iter": max_iter,
        "tol": tol,
        "learning_rate": _number_or_word("learning_rate", learning_rate, ("auto", "theory")),
        "momentum": momentum,
        "nesterov": momentum > 0,
        "threshold": _number_or_word("threshold", threshold, ("paper",)),
        "dtype": dtype,
        "early_stopping": early_stopping,
        "random_state": _checked_seed(seed),
        "verbose": not quiet,
    }
    if bias is not None:
        settings["bias"] = bias
    summary = train_table(
        file,
        target,
        out=out,
        task=task,
        loss=loss,
        holdout=holdout,
        drop=drop or [],
        categorical=categorical or [],
        impute=impute,
        settings=settings,
    )
    _show(summary, as_json)
    if summary["stop_reason"] == "interrupted":
        raise typer.Exit(INTERRUPTED)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="A file that `fireset train` wrote.")],
    file: Annotated[Path, typer.Argument(help="A table with the columns that the model was trained on.")],
    out: Annotated[Path | None, typer.Option(help="CSV file for the predictions; standard output by default.")] = None,
    proba: Annotated[bool, typer.Option(help="Probability of each class too (models with log_loss).")] = False,
    as_json: Json = False,
) -> None:
    """Predict the target for every row of a table."""
    from fireset.files import check_writable
    from fireset.tasks import predict_table, spare_inputs, write_csv

    spare_inputs(out, model, file)
    if out is not None:
        check_writable(out)
    columns, summary = predict_table(model, file, proba=proba)
    if as_json:
        if out is not None:
            write_csv(columns, out)
        _show({**summary, **({"out": str(out)} if out else columns)}, as_json)
        return
    write_csv(columns, out)
    notes = [" ".join(_readable(key, value)) for key, value in summary.items() if key != "rows"]
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
    from fireset.tasks import describe_model

    _show(describe_model(model), as_json)


@app.command()
def engines(
    explain: Annotated[Path | None, typer.Option(metavar="FILE", help="Say what auto weighs on this table.")] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column to predict, with --explain.")] = None,
    width: Annotated[int, typer.Option(help="Number of neurons, with --explain.")] = 10_000,
    max_iter: Annotated[int, typer.Option(help="Iterations, with --explain.")] = 300,
    as_json: Json = False,
) -> None:
    """List the engines: the ways to find who fires. With --explain, what each is expected to cost on a table."""
    from fireset.engines import describe

    if explain is not None:
        from fireset.tasks import explain_engines

        if target is None:
            raise InputError("--explain needs --target COLUMN, the column to predict")
        _show(explain_engines(explain, target, width=width, max_iter=max_iter), as_json)
        return

    if as_json:
        print(json.dumps(describe()))
        return
    for engine in describe():
        kind = "exact" if engine["exact"] else "approximate"
        print(f"{engine['name']:12} {kind:12} {engine['summary']}")
    print(f"{'auto':12} {'':12} chooses among them by the size of the problem")


@app.command()
def warmup(as_json: Json = False) -> None:
    """Compile all kernels now, so that the first training does not wait for it."""
    from time import perf_counter

    from fireset.engines import describe
    from fireset.hsr import kinds
    from fireset.warmup import compile_index, compile_kernels

    started = perf_counter()
    for engine in describe():
        for dtype in ("float32", "float64"):
            compile_kernels(str(engine["name"]), dtype)
    for kind in kinds():
        for dtype in ("float32", "float64"):
            compile_index(kind, dtype)
    _show({"compile_seconds": perf_counter() - started}, as_json)


@app.command()
def demo(
    width: Annotated[int, typer.Option(help="Number of neurons.")] = 20_000,
    out: Annotated[Path, typer.Option(help="Where to write the model.")] = Path("fireset-demo.safetensors"),
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train on handwritten digits; compare with a dense run."""
    from fireset.demo import run_demo

    _show(run_demo(width=width, out=out, seed=_checked_seed(seed), verbose=not quiet), as_json)


def _checked_seed(seed: int) -> int:
    if not 0 <= seed < 2**32:
        raise InputError(f"seed must be at least 0 and below 2**32, got {seed}")
    return seed


def _number_or_word(name: str, text: str, words: tuple[str, ...]) -> float | str:
    if text in words:
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name} must be {', '.join(words)} or a number, got {text!r}") from None


def _show(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary), flush=True)
        return
    lines = [_readable(key, value) for key, value in summary.items()]
    widest = max(len(label) for label, _ in lines)
    for label, text in lines:
        print(f"{label:{widest}}  {text}")
    sys.stdout.flush()  # here, where a reader that has gone (`head`) is handled


_STOP_REASONS = {
    "max_iter": "all iterations done; --max-iter allows more",
    "tol": "the loss no longer improves; see --tol",
    "patience": "the loss on the validation rows no longer improves",
    "interrupted": "interrupted; the best network so far was kept",
    "diverged": "the loss grew without bound; give a smaller --learning-rate, or auto",
}
_NAMES = {"r2": "R²", "held_out_r2": "held out R²", "rmse": "RMSE", "held_out_rmse": "held out RMSE"}


def _readable(key: str, value: Any) -> tuple[str, str]:
    """A label and a value for people; ``--json`` has the exact ones."""
    label = _NAMES.get(key, key.replace("_", " "))
    if key == "stop_reason":
        return label, _STOP_REASONS.get(str(value), str(value))
    if key == "bytes":
        return "size", f"{value / 1e6:,.1f} MB" if value >= 1e6 else f"{value / 1e3:.1f} kB"
    if isinstance(value, bool) or not isinstance(value, int | float | list):
        return label, str(value)
    if isinstance(value, list):
        more = f", … ({len(value)} in all)" if len(value) > _MOST_LISTED else ""
        return label, ", ".join(map(str, value[:_MOST_LISTED])) + more
    if isinstance(value, int):
        return label, f"{value:,}"
    if key.endswith(("fraction", "accuracy")):
        return label, f"{value:.2%}"
    if "seconds" in key:
        return label.replace("seconds", "time"), f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"
    return label, f"{value:.4g}" + (" times" if key == "speed_up_over_dense" else "")
