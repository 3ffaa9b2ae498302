"""Commands around training: engines, warmup, demo."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fireset._util.errors import InputError
from fireset.cli.app import (
    PROBLEM,
    Categorical,
    Drop,
    Impute,
    Json,
    Quiet,
    Seed,
    Task,
    Width,
    app,
    checked_seed,
    command_line,
    whole_number,
)
from fireset.cli.output import require_written, show


@app.command()
def engines(
    context: typer.Context,
    explain: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Show the cost estimates by which auto chooses on this table.")
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column to predict, with --explain.")] = None,
    width: Width = "10000",
    max_iter: Annotated[int, typer.Option(help="Iterations, with --explain.")] = 300,
    task: Task = "auto",
    drop: Drop = None,
    categorical: Categorical = None,
    impute: Impute = True,
    as_json: Json = False,
) -> None:
    """List the engines, the ways to find active neurons. With --explain, what an iteration of each will take."""
    from fireset.engines import describe

    if explain is not None:
        from fireset.commands.explain import explain_engines

        if target is None:
            raise InputError("--explain needs --target COLUMN, the column to predict")
        reading = {"task": task, "drop": drop or [], "categorical": categorical or [], "impute": impute}
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
def warmup(as_json: Json = False) -> None:
    """Compile all kernels now, so that the first training does not wait for it."""
    from itertools import product
    from time import perf_counter

    from fireset.engines import describe
    from fireset.hsr import kinds
    from fireset.training.precompile import compile_index, compile_kernels

    started = perf_counter()
    for engine in describe():
        for dtype, several in product(("float32", "float64"), (False, True)):
            compile_kernels(str(engine["name"]), dtype, several_outputs=several)
    for kind in kinds():
        for dtype in ("float32", "float64"):
            compile_index(kind, dtype)
    compiled = {"compile_seconds": perf_counter() - started}
    show(compiled if as_json else {**compiled, "next": "fireset train TABLE --target COLUMN"}, as_json)


@app.command()
def demo(
    width: Width = "20000",
    out: Annotated[Path, typer.Option(help="Where to write the model.")] = Path("fireset-demo.safetensors"),
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train on handwritten digits; compare with a dense run."""
    from fireset.commands.demo import run_demo

    found = run_demo(width=whole_number("width", width), out=out, seed=checked_seed(seed), verbose=not quiet)
    shown = {key: value for key, value in found.items() if key != "not_written"}
    step = "fireset train TABLE --target COLUMN, on a table of yours"
    show(found if as_json else {**shown, "next": step}, as_json)
    require_written(found)
