"""Compare the estimators with the strongest models for tables, all at their default settings.

    make bench-accuracy
    python benchmarks/bench_accuracy.py --models fireset,CatBoost --families smooth,real --quick

Three groups of tables: generated and real ones that no default was tuned on (``untuned_tables.py``,
``real_tables.py``), and those that were seen during development (``table_families.py``, reported apart).

A quarter of the rows is held out; at most 5,000 rows are for training. Peers have two splits for tables of up to 700
rows and one otherwise; fireset has three, of which the ranks use those that all models have. Regression targets are
standardized. Every fit has one thread, and ``--jobs`` of them run at a time. Times are process times: the sum over
threads and child processes, without a first fit of each model on few rows.

Each result is appended to ``results/accuracy/*.jsonl`` when it is there, so that a run can be interrupted. Results of
peers are kept (``peers.jsonl``); only fireset is run anew, unless ``--refresh`` is given. ``before.jsonl`` has the
results of the version before, which every table is compared with: to replace it, run with ``--label before``.
"""

import os

# One thread, before NumPy is imported, here and in the processes that fit.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", NUMBA_NUM_THREADS="1")

import argparse
import contextlib
import io
import json
import logging
import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

sys.path.insert(0, str(Path(__file__).parent))
import table_families
from accuracy_report import write_report
from parts import RESULTS
from real_tables import REAL_CLASSIFICATION, REAL_REGRESSION, UnavailableError
from tabular_peers import MAKERS, MODELS, OURS, PEERS, version
from untuned_tables import UNTUNED_CLASSIFICATION, UNTUNED_REGRESSION

FOLDER = RESULTS / "accuracy"
TRAINING_ROWS = 5_000
TEST_ROWS = 5_000
SPLITS_OF_OURS = 3
ROWS_FOR_TWO_SPLITS = 700
QUICK_ROWS = 1_000
BINS = 10  # of the calibration error


@dataclass(frozen=True)
class Table:
    """A table to be judged on. ``group`` is generated, real or tuned; ``load`` returns a DataFrame and the targets."""

    group: str
    family: str
    name: str
    classes: bool
    load: Callable[[], tuple]

    @property
    def key(self) -> str:
        return f"{self.group}/{'classification' if self.classes else 'regression'}/{self.name}"


def all_tables() -> dict[str, Table]:
    found = []
    for classes, generated, real, tuned in (
        (False, UNTUNED_REGRESSION, REAL_REGRESSION, table_families.REGRESSION),
        (True, UNTUNED_CLASSIFICATION, REAL_CLASSIFICATION, table_families.CLASSIFICATION),
    ):
        found += [Table("real", "real", name, classes, load) for name, load in real.items()]
        found += [Table("generated", family, name, classes, load) for name, (family, load) in generated.items()]
        found += [Table("tuned", "tuned", name, classes, load) for name, load in tuned.items()]
    return {table.key: table for table in found}


def load_table(table: Table) -> tuple[pd.DataFrame, np.ndarray]:
    """Load rows as a DataFrame, and targets as floats, or as class codes from 0."""
    X, y = table.load()
    if not isinstance(X, pd.DataFrame):
        X = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    return X, np.unique(y, return_inverse=True)[1] if table.classes else np.asarray(y, dtype=np.float64)


def split_table(X: pd.DataFrame, y: np.ndarray, classes: bool, split: int) -> tuple:
    """Divide rows into (X_train, X_test, y_train, y_test), stratified for classes."""
    train = min(TRAINING_ROWS, len(X) - len(X) // 4)
    test = min(TEST_ROWS, len(X) - train)
    parts = train_test_split(
        X, y, train_size=train, test_size=test, random_state=split, stratify=y if classes else None
    )
    X_train, X_test, y_train, y_test = parts
    X_train, X_test = X_train.reset_index(drop=True), X_test.reset_index(drop=True)
    if not classes:
        mean, spread = y_train.mean(), y_train.std()
        y_train, y_test = (y_train - mean) / spread, (y_test - mean) / spread
    return X_train, X_test, y_train, y_test


def probability_scores(p: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Log loss, Brier score and expected calibration error of probabilities p of shape (n, classes)."""
    p = np.clip(p, 1e-7, 1.0)
    p = p / p.sum(axis=1, keepdims=True)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [abs(confidence[bins == k].mean() - right[bins == k].mean()) * np.mean(bins == k) for k in np.unique(bins)]
    return {
        "log_loss": float(log_loss(y, p, labels=np.arange(p.shape[1]))),
        "brier": float(((p - np.eye(p.shape[1])[y]) ** 2).sum(axis=1).mean()),
        "calibration_error": float(sum(gaps)),
    }


def score_and_error(predicted: np.ndarray, y: np.ndarray, classes: bool) -> tuple[float, float]:
    """Accuracy or R², and its standard error over the test rows."""
    if classes:
        right = predicted == y
        return float(right.mean()), float(right.std() / np.sqrt(len(y)))
    squared = (predicted - y) ** 2
    return float(1 - squared.mean() / y.var()), float(squared.std() / y.var() / np.sqrt(len(y)))


def process_seconds() -> float:
    """Seconds of processor time of this process, all of its threads and its finished children."""
    return sum(os.times()[:4])


_warm: set[tuple[str, bool]] = set()


def run_one(key: str, split: int, model: str) -> dict:
    """Fit one model on one split of a table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    table = all_tables()[key]
    X, y = load_table(table)
    X_train, X_test, y_train, y_test = split_table(X, y, table.classes, split)
    categories = [name for name in X.columns if X[name].dtype == "category"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if (model, table.classes) not in _warm:  # imports, compiled kernels
            few = np.random.default_rng(0).standard_normal((60, 3))
            target = (few[:, 0] > 0).astype(int) if table.classes else few[:, 0]
            MAKERS[model](table.classes, []).fit(pd.DataFrame(few, columns=["a", "b", "c"]), target)
            _warm.add((model, table.classes))
        estimator = MAKERS[model](table.classes, categories)
        begun, clock = process_seconds(), time.perf_counter()
        estimator.fit(X_train, y_train)
        fitted, fitted_clock = process_seconds(), time.perf_counter()
        if table.classes and hasattr(estimator, "predict_proba"):
            p = np.asarray(estimator.predict_proba(X_test), dtype=np.float64)
            predicted, extra = p.argmax(axis=1), probability_scores(p, y_test)
        else:  # SVC has no probabilities at its defaults
            predicted, extra = np.asarray(estimator.predict(X_test)).reshape(len(y_test)), {}
        done = process_seconds()
    if model == OURS and estimator.settings_.forecast is not None:
        extra["forecast"] = float(estimator.settings_.forecast)
    score, error = score_and_error(predicted, y_test, table.classes)
    return {
        "table": key,
        "family": table.family,
        "split": split,
        "model": model,
        "rows": len(X),
        "columns": X.shape[1],
        "train_rows": len(X_train),
        "score": score,
        "score_error": error,
        **extra,
        "fit": fitted - begun,
        "predict": done - fitted,
        "fit_wall": fitted_clock - clock,
        "version": version(model),
        "date": time.strftime("%Y-%m-%d"),
    }


def read_results(file: Path) -> dict[tuple[str, int, str], dict]:
    """Results by (table, split, model); of repeated ones the last."""
    if not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text().splitlines() if line]
    return {(each["table"], each["split"], each["model"]): each for each in lines}


def write_results(file: Path, results: dict) -> None:
    """Write results in order, one line each, digits that matter only."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rounded = [
        {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in results[key].items()}
        for key in sorted(results)
    ]
    file.write_text("".join(json.dumps(each) + "\n" for each in rounded))


def splits_of(model: str, rows: int) -> int:
    if model == OURS:
        return SPLITS_OF_OURS
    return 2 if rows <= ROWS_FOR_TWO_SPLITS else 1


def tasks(tables: dict[str, Table], models: list[str], known: dict, *, quick: bool) -> Iterator[tuple[str, int, str]]:
    """What has to be run: untuned tables first, and all first splits before the second ones."""
    sizes = {}
    for key, table in list(tables.items()):
        try:
            X, _ = load_table(table)
        except UnavailableError as problem:
            print(f"{key} is left out: {problem}", file=sys.stderr, flush=True)
            continue
        if not quick or len(X) <= QUICK_ROWS:
            sizes[key] = X.shape
    for tuned in (False, True):
        for split in range(SPLITS_OF_OURS):
            for key, (rows, columns) in sizes.items():
                for model in models:
                    found = known.get((key, split, model))
                    done = found is not None and (found["rows"], found["columns"]) == (rows, columns)
                    wanted = split < (1 if quick else splits_of(model, rows))
                    if wanted and not done and (tables[key].group == "tuned") == tuned:
                        yield key, split, model


def chosen_tables(families: str) -> dict[str, Table]:
    """Tables of the given groups, families, or with the given text in their names."""
    names = [each.strip() for each in families.split(",") if each.strip()]
    tables = all_tables()
    if not names:
        return tables
    return {
        key: table
        for key, table in tables.items()
        if any(name in (table.group, table.family) or name in key for name in names)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="separated by commas; all by default")
    parser.add_argument("--families", default="", help="groups, families or parts of names, separated by commas")
    parser.add_argument("--quick", action="store_true", help=f"one split of tables with up to {QUICK_ROWS} rows")
    parser.add_argument("--refresh", action="store_true", help="run peers anew, too")
    parser.add_argument("--resume", action="store_true", help="keep the results of fireset that are there")
    parser.add_argument("--label", default="fireset", help="file for the results of fireset; 'before' for the baseline")
    parser.add_argument("--report", action="store_true", help="run nothing, only write the report")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="fits at a time")
    options = parser.parse_args()
    models = [each.strip() for each in options.models.split(",")]
    unknown = set(models) - set(MODELS)
    if unknown:
        parser.error(f"`--models` must be among {', '.join(MODELS)}, got {', '.join(sorted(unknown))}.")
    for model in [each for each in models if version(each) is None]:
        print(f"{model} is left out: its library is not installed; `pip install fireset[bench]`", file=sys.stderr)
        models.remove(model)
    files = {model: FOLDER / ("peers.jsonl" if model in PEERS else f"{options.label}.jsonl") for model in MODELS}
    if not options.report:
        run(chosen_tables(options.families), models, files, options)
    write_report(FOLDER, RESULTS, options.label)


def run(tables: dict[str, Table], models: list[str], files: dict[str, Path], options: argparse.Namespace) -> None:
    """Run what is missing, and append each result to its file."""
    results = {file: read_results(file) for file in set(files.values())}
    again = [model for model in models if (not options.resume if model == OURS else options.refresh)]
    known = {
        key: found
        for each in results.values()
        for key, found in each.items()
        if not (key[2] in again and key[0] in tables)
    }
    todo = list(tasks(tables, models, known, quick=options.quick))
    print(f"{len(todo)} fits", file=sys.stderr, flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        running = {pool.submit(run_one, *task): task for task in todo}
        for count, future in enumerate(as_completed(running), 1):
            key, split, model = running[future]
            problem = future.exception()
            if problem is not None:
                print(f"{key}, split {split}: {model} failed: {problem!r}"[:400], file=sys.stderr, flush=True)
                continue
            found = future.result()
            results[files[model]][key, split, model] = found
            with files[model].open("a") as file:
                file.write(json.dumps(found) + "\n")
            said = f"{count}/{len(todo)} {key} {split} {model} {found['score']:.4f} {found['fit']:.2f} s"
            print(said, file=sys.stderr, flush=True)
    for file, found in results.items():
        if found:
            write_results(file, found)


if __name__ == "__main__":
    main()
