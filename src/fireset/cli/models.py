"""Commands that use models, and commands around training: predict, info, export, warmup, demo."""

import sys
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from fireset.cli import options
from fireset.cli.app import app
from fireset.cli.options import checked_seed, whole_number
from fireset.cli.output import readable, require_written, show

# Scores that ``predict`` prints for a table with the target; ``--json`` has all
_SCORES = ("accuracy", "majority_accuracy", "balanced_accuracy", "f1", "low_recall_classes")
_SCORES += ("r2", "rmse", "mae", "poisson_deviance", "pinball", "coverage")


@app.command()
def predict(
    model: options.Model,
    file: Annotated[
        Path, typer.Argument(help="A table, or a folder of its parts, with the columns of the training table.")
    ],
    out: Annotated[Path | None, typer.Option(help="CSV file for the predictions; standard output by default.")] = None,
    proba: Annotated[bool, typer.Option(help="Add the probability of each class (classification).")] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMNS", help="Columns to copy, such as an id, separated by commas; may be repeated."),
    ] = None,
    safe_csv: Annotated[
        bool, typer.Option(help="Quote labels that a spreadsheet would take for formulas, such as =1+1.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Predict the target for every row of a table."""
    from fireset._util.files import check_writable
    from fireset.commands.outputs import check_outputs_differ_from_inputs
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
    as_json: options.Json = False,
) -> None:
    """Describe a model file."""
    from fireset.commands.info import describe_model

    found = describe_model(model)
    step = {"next": f"fireset predict {quote(str(model))} TABLE --out predictions.csv"} if "task" in found else {}
    show(found if as_json else found | step, as_json)


@app.command()
def export(
    model: options.Model,
    out: Annotated[Path, typer.Argument(help="The file to write, named .onnx.")],
    as_json: options.Json = False,
) -> None:
    """Write a model as an ONNX graph, which runs without fireset."""
    from fireset.commands.export import export_model

    found = export_model(model, out)
    step = f"onnxruntime.InferenceSession({str(out)!r}) in Python; docs/export.md has the rest"
    show(found if as_json else {**found, "next": step}, as_json)


@app.command()
def warmup(as_json: options.Json = False) -> None:
    """Compile all kernels now, so that the first training does not wait for it."""
    from itertools import product
    from time import perf_counter

    from fireset.engines import describe
    from fireset.hsr import kinds
    from fireset.training.precompile import compile_index, compile_kernels

    started = perf_counter()
    for engine in describe():
        for dtype, several, products in product(("float32", "float64"), (False, True), (False, True)):
            compile_kernels(str(engine["name"]), dtype, several_outputs=several, products=products)
    for kind in kinds():
        for dtype in ("float32", "float64"):
            compile_index(kind, dtype)
    compiled = {"compile_seconds": perf_counter() - started}
    show(compiled if as_json else {**compiled, "next": "fireset train TABLE --target COLUMN"}, as_json)


@app.command()
def demo(
    width: options.Width = "20000",
    out: Annotated[Path, typer.Option(help="Where to write the model.")] = Path("fireset-demo.safetensors"),
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Train on handwritten digits; compare with a dense run."""
    from fireset.commands.demo import run_demo

    found = run_demo(width=whole_number("width", width), out=out, seed=checked_seed(seed), verbose=not quiet)
    shown = {key: value for key, value in found.items() if key != "not_written"}
    step = "fireset train TABLE --target COLUMN, on your own table"
    show(found if as_json else {**shown, "next": step}, as_json)
    require_written(found)
