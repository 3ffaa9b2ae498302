"""Solvers beside each other: narrow networks, and Gauss–Newton on all rows or on centres.

    make bench-solvers

Parts: narrow (accuracy by weights per target), centres (fits of 20,000 and 50,000 rows, each in a process of its own).
Together some minutes. Results go to benchmarks/results/.
"""

import json
import os
import subprocess
import sys

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))

import numpy as np
from parts import run_parts

WEIGHTS_PER_TARGET = (0.5, 1.0, 2.0, 4.0)
SEEDS = 5
TRAINED, SCORED = 500, 200  # rows
SOLVERS = ("gauss-newton", "gradient")
FITS = {"regression": (20_000, 50_000), "classes": (50_000,)}

WORKER = """
import json, sys, time
from sklearn.datasets import make_classification, make_friedman1
from fireset import ShiftedReLUClassifier, ShiftedReLURegressor

task, solver, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
if task == "regression":
    X, y = make_friedman1(n + 20_000, 20, noise=1.0, random_state=0)
    kind = ShiftedReLURegressor
else:
    X, y = make_classification(n + 20_000, 50, n_informative=20, n_classes=10, random_state=0)
    kind = ShiftedReLUClassifier
kind(solver=solver, random_state=0).fit(X[:2000], y[:2000])
started = time.process_time()
model = kind(solver=solver, random_state=0).fit(X[:n], y[:n])
seconds = time.process_time() - started
print(json.dumps({"processor_seconds": seconds, "score": model.score(X[n:], y[n:]), "width": model.network_.width}))
"""


def run_narrow(quick: bool) -> list[dict]:
    """Mean accuracy on digits by the number of weights per target."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    from fireset import ShiftedReLUClassifier

    X, y = load_digits(return_X_y=True)
    rows = []
    for ratio in WEIGHTS_PER_TARGET:
        width = 2 * round(ratio * TRAINED * len(np.unique(y)) / (X.shape[1] + 1) / 2)  # a neuron has p + 1 weights
        row = {"weights_per_target": ratio, "width": width}
        for solver in SOLVERS:
            scores = []
            for seed in range(1 if quick else SEEDS):
                split = train_test_split(X, y, train_size=TRAINED, test_size=SCORED, random_state=seed)
                model = ShiftedReLUClassifier(width=width, solver=solver, random_state=seed)
                scores.append(model.fit(split[0], split[2]).score(split[1], split[3]))
            row[solver] = float(np.mean(scores))
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def run_centres(quick: bool) -> list[dict]:
    """Processor seconds and score of Gauss–Newton on all rows and on centres."""
    rows = []
    for task, sizes in FITS.items():
        for n in sizes[: 1 if quick else None]:
            row: dict = {"task": task, "rows": n}
            for solver in ("gauss-newton", "nystrom"):
                command = [sys.executable, "-W", "ignore", "-c", WORKER, task, solver, str(n)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                row[solver] = json.loads(done.stdout.splitlines()[-1])
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def to_markdown(results: dict) -> str:
    lines = [f"# Solvers, {results['date']}", "", results["machine"], ""]
    if "narrow" in results:
        lines += [
            f"Accuracy on digits, {TRAINED} rows for training and {SCORED} for the score, mean of {SEEDS} splits.",
            "",
            "| weights per target | width | Gauss–Newton | gradient |",
            "| ---: | ---: | ---: | ---: |",
        ]
        for row in results["narrow"]:
            cells = " | ".join(f"{row[solver]:.3f}" for solver in SOLVERS)
            lines.append(f"| {row['weights_per_target']:g} | {row['width']} | {cells} |")
        lines.append("")
    if "centres" in results:
        lines += [
            "`make_friedman1(n, 20, noise=1)` and `make_classification(n, 50, n_informative=20, n_classes=10)`:",
            "processor seconds of a fit, score on 20,000 other rows, width.",
            "",
            "| problem | rows | Gauss–Newton | centres |",
            "| --- | ---: | ---: | ---: |",
        ]
        for row in results["centres"]:
            cells = " | ".join(
                f"{one['processor_seconds']:.1f} s, {one['score']:.4f}, {one['width']:,}"
                for one in (row["gauss-newton"], row["nystrom"])
            )
            lines.append(f"| {row['task']} | {row['rows']:,} | {cells} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    run_parts("solvers", {"narrow": run_narrow, "centres": run_centres}, to_markdown)
