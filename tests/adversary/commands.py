"""Random tables and options for ``fireset train`` and ``fireset predict``.

A table has numbers, dates, categories and booleans, spelled by a convention that is drawn once for each column, in a
random encoding, with odd names of columns and files. A command ends with a documented exit code and prints no
traceback. Where a model was trained, the prediction of a row alone is its prediction within the whole file.
"""

import csv
import io
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from adversary.estimators import limited
from fireset.__main__ import main

EXIT_CODES = (0, 2, 73)  # success, invalid input, an output that could not be written
SECONDS = 240  # compiling kernels included
NAMES = ["a", "y2", "Größe", "prediction", "x y", "c,d", 'quo"te', "1", "=1+1", " b", "TRUE", "日本", "e" * 200]
FILES = ["table.csv", "ta ble.csv", "täble.csv", "-table.csv", "table", "table.csv.csv", "a" * 60 + ".csv", "t;b.csv"]
ENCODINGS = ["utf-8", "utf-8", "utf-8", "utf-8-sig", "latin-1", "utf-16"]
DATES = ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y%m%d", "%Y-%m-%d %H:%M:%S"]


def run_case(seed: int, counts: Counter) -> None:
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            _run_case(rng, Path(folder), counts)
        finally:
            os.chdir(before)


def _run_case(rng: np.random.Generator, folder: Path, counts: Counter) -> None:
    header, rows, separator = draw_table(rng)
    encoding = str(rng.choice(ENCODINGS))
    name = str(rng.choice(FILES))
    write(folder / name, header, rows, separator, encoding)
    options = draw_options(rng, header)
    case = f"{options}; {name!r}, {encoding}, separator {separator!r}, header {header}, first row {rows[0]}"
    file = f"./{name}"
    code, _ = run(["train", file, "--target", header[-1], *options, "--out", "model.safetensors", "-q", "--json"], case)
    if code:
        counts[f"train, exit code {code}"] += 1
        return
    counts["trained"] += 1
    classes = json.loads(run(["info", "model.safetensors", "--json"], case)[1]).get("task") == "classification"
    predict = ["predict", "model.safetensors", *(["--proba"] if classes else []), "--json"]
    code, out = run([*predict, file], case)
    assert code == 0, f"a table that was trained on is refused: {out}; {case}"
    whole = predictions_of(out)
    for k in rng.choice(len(rows), min(4, len(rows)), replace=False).tolist():
        write(folder / "one.csv", header, rows[k : k + 1], separator, encoding)
        code, out = run([*predict, "one.csv"], case)
        assert code == 0, f"row {k} alone is refused: {out}; {rows[k]}; {case}"
        alone = predictions_of(out)
        assert same(alone[0], whole[k]), f"row {k} alone is {alone[0]}, in the file {whole[k]}: {rows[k]}; {case}"
        counts["rows alone compared"] += 1
    for command in (["info", "model.safetensors"], ["predict", "model.safetensors", file, "--keep", header[0]]):
        code, out = run(command, case)
        counts[f"{command[0]}, exit code {code}"] += 1


def draw_table(rng: np.random.Generator) -> tuple[list[str], list[list[str]], str]:
    """Draw column names, cells and the separator."""
    n, separator = int(rng.choice((8, 30, 80))), str(rng.choice((",", ",", ";", "\t", "|")))
    names = [str(name) for name in rng.choice(NAMES, int(rng.integers(2, 5)), replace=False)]
    columns = []
    for k in range(len(names)):
        kind = "number" if k == 0 else str(rng.choice(("number", "number", "date", "category", "boolean")))
        columns.append(draw_column(rng, kind, n))
    if rng.random() < 0.3:
        for column in columns:
            for row in np.flatnonzero(rng.random(n) < 0.1):
                column[row] = str(rng.choice(("", "NA", "-")))
    target = [f"{value:.3f}" for value in rng.standard_normal(n)]
    if rng.random() < 0.4:
        target = [("yes", "no", "maybe")[value] for value in rng.integers(0, int(rng.choice((2, 3))), n)]
    return [*names, "target"], [list(row) for row in zip(*columns, target, strict=True)], separator


def draw_column(rng: np.random.Generator, kind: str, n: int) -> list[str]:
    if kind == "date":
        spelling = str(rng.choice(DATES))
        days = rng.integers(0, int(rng.choice((9, 400, 9000))), n)
        return [(date(2001, 1, 1) + timedelta(days=int(day))).strftime(spelling) for day in days]
    if kind == "category":
        return [("red", "green", "Blue", "0")[value] for value in rng.integers(0, 4, n)]
    if kind == "boolean":
        spelled = (("true", "false"), ("yes", "no"), ("T", "F"), ("1", "0"), ("Ja", "Nein"))[int(rng.integers(5))]
        return [spelled[value] for value in rng.integers(0, 2, n)]
    numbers = rng.standard_normal(n) * 10.0 ** float(rng.choice((0, 1, 4, 7)))
    spelling = int(rng.integers(6))
    digits = int(rng.choice((0, 2, 3)))
    if spelling == 0:  # 1.234,5 of much of Europe
        return [f"{x:,.{digits}f}".translate(str.maketrans(",.", ".,")) for x in numbers]
    if spelling == 1:  # a decimal comma
        return [f"{x:.{digits}f}".replace(".", ",") for x in numbers]
    if spelling == 2:  # 1,234.5
        return [f"{x:,.{digits}f}" for x in numbers]
    if spelling == 3:
        return [f"{x:.{digits}f}%" for x in numbers]
    if spelling == 4:
        return [f"{x:.{digits}e}" for x in numbers]
    return [f"{x:.{digits}f}" for x in numbers]


def draw_options(rng: np.random.Generator, header: list[str]) -> list[str]:
    options = ["--width", str(rng.choice((2, 7, 40, 101))), "--max-iter", str(rng.choice((1, 5)))]
    odd = ["", "0", "-1", "nan", "inf", "1e400", "abc", "1_000", "９", "0.5", "2"]
    for option, usual in (
        ("--loss", ["squared_error", "huber", "log_loss", "quantile", "poisson"]),
        ("--task", ["regression", "classification"]),
        ("--solver", ["gradient", "gauss-newton"]),
        ("--dtype", ["float64"]),
        ("--holdout", ["0", "0.5"]),
        ("--threshold", ["0", "paper", "40"]),
        ("--output-scale", ["1", "1e200"]),
        ("--momentum", ["0"]),
        ("--ridge", ["1"]),
        ("--tol", ["0"]),
        ("--drop", [header[0]]),
        ("--categorical", [header[0]]),
        ("--time", ["1s"]),
        ("--seed", ["3"]),
    ):
        if rng.random() < 0.15:
            values = odd if rng.random() < 0.15 else usual
            options.append(f"{option}={values[int(rng.integers(len(values)))]}")
    return options


def write(path: Path, header: list[str], rows: list[list[str]], separator: str, encoding: str) -> None:
    with path.open("w", encoding=encoding, errors="replace", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([header, *rows])


def run(arguments: list[str], case: str) -> tuple[int, str]:
    """Run a command in this process; return exit code and output."""
    before, out, err = sys.argv, io.StringIO(), io.StringIO()
    sys.argv = ["fireset", *arguments]
    code: Any = 0
    try:
        with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings(), limited(SECONDS, case):
            main()
    except SystemExit as end:
        code = end.code or 0
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        raise AssertionError(f"{arguments[0]}: {type(error).__name__}: {error} at {where}; {case}") from error
    finally:
        sys.argv = before
    said = err.getvalue()
    assert code in EXIT_CODES, f"{arguments[0]}: exit code {code}: {said}; {case}"
    assert "Traceback" not in said, f"{said}; {case}"
    return code, out.getvalue() if code == 0 else said


def predictions_of(out: str) -> list[list[float]]:
    """Return the numbers of each row: the prediction, its quantiles, or the probabilities of all classes."""
    found = json.loads(out)
    names = [name for name in found if name.startswith("p(")] or (["prediction"] if "prediction" in found else [])
    names = names or sorted(name for name in found if name.startswith("q"))
    return [list(row) for row in zip(*(found[name] for name in names), strict=True)]


def same(first: list[float], second: list[float]) -> bool:
    """Compare predictions up to rounding: a row alone is a matrix product of another shape than a row among others.

    Outputs are κ f with κ = 1000. A pre-activation of float32 is rounded by about 1e-6, and κ/√m times the root of the
    number of active neurons is at most κ: an output is rounded by up to 1e-3 in units of the target, whose standard
    deviation is 1 here. Labels are not compared: they differ where two probabilities tie to rounding.
    """
    return bool(np.allclose(first, second, rtol=1e-3, atol=1e-3))
