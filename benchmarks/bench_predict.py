"""Predictions: how long one row takes, and how long many do, beside SVC, MLP, PyTorch and onnxruntime.

    make bench-predict

One row: medians over many calls, contenders taking turns, through whole ``predict`` calls of fitted models. Many rows:
the fastest of several runs, contenders taking turns. All in one process, on all threads; fits are not timed.
"""

import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from parts import run_parts

WIDTH, COLUMNS = 10_000, 20
MANY_ROWS, MANY_COLUMNS, MANY_WIDTH, SUPPORT = 100_000, 50, 20_000, 5_000


def _turns(contenders: dict[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """Seconds of each call, one contender after the other, again and again."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        call()
    for _ in range(turns):
        for name, call in contenders.items():
            started = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def _onnx_session(model):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    return onnxruntime.InferenceSession(model.to_onnx().SerializeToString(), options, ["CPUExecutionProvider"])


def one_row(quick: bool) -> list[dict]:
    """One row at a time, as a server would."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import SVC

    from fireset import ShiftedReLUClassifier, ShiftedReLURegressor

    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, COLUMNS))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    ours = ShiftedReLUClassifier(width=WIDTH, random_state=0).fit(X, y)
    numbers = ShiftedReLURegressor(width=WIDTH, random_state=0).fit(X, X[:, 0])
    svc, mlp = SVC().fit(X, y), MLPClassifier(max_iter=20, random_state=0).fit(X, y)
    session, row = _onnx_session(ours), X[:1]
    mapped = ours.rows_on_sphere(row)
    seconds = _turns(
        {
            "fireset, classifier": lambda: ours.predict(row),
            "fireset, regressor": lambda: numbers.predict(row),
            "fireset, network.predict": lambda: ours.network_.predict(mapped),
            "fireset, exported, onnxruntime": lambda: session.run(None, {"X": row}),
            f"SVC, {len(svc.support_):,} support vectors": lambda: svc.predict(row),
            "MLP": lambda: mlp.predict(row),
        },
        100 if quick else 1000,
    )
    return [{"who": name, "microseconds": 1e6 * statistics.median(found)} for name, found in seconds.items()]


def many_rows(quick: bool) -> list[dict]:
    """100,000 rows of 50 columns at once."""
    import torch
    from sklearn.svm import SVC

    from fireset import ShiftedReLUClassifier

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    rng = np.random.default_rng(0)
    rows = MANY_ROWS // (20 if quick else 1)
    X = rng.standard_normal((rows, MANY_COLUMNS))
    some = rng.standard_normal((SUPPORT, MANY_COLUMNS))
    labels = rng.integers(0, 2, SUPPORT)  # nothing to be learned: all rows become support vectors
    svc = SVC().fit(some, labels)
    ours = ShiftedReLUClassifier(width=MANY_WIDTH, random_state=0).fit(some, labels)
    network, mapped = ours.network_, ours.rows_on_sphere(X).astype(np.float32)
    W, output_weights, points = (torch.from_numpy(array) for array in (network.weights, network.output_weights, mapped))

    def by_torch():
        parts = (
            torch.relu(points[k : k + 1000] @ W.T - network.threshold) @ output_weights for k in range(0, rows, 1000)
        )
        return torch.cat(list(parts))

    seconds = _turns(
        {
            "fireset, classifier": lambda: ours.predict(X),
            "fireset, network.predict": lambda: network.predict(mapped),
            "PyTorch, the same network": by_torch,
            f"SVC, {len(svc.support_):,} support vectors": lambda: svc.predict(X),
        },
        1 if quick else 2,
    )
    return [{"who": name, "seconds": min(found)} for name, found in seconds.items()]


def to_markdown(results: dict) -> str:
    lines = [f"# Predictions, {results['date']}", "", results["machine"], ""]
    if "one row" in results:
        lines += [f"One row, {WIDTH:,} neurons, {COLUMNS} columns; median.", "", "| who | µs |", "| --- | ---: |"]
        lines += [f"| {row['who']} | {row['microseconds']:.0f} |" for row in results["one row"]]
        lines.append("")
    if "many rows" in results:
        lines += [f"{MANY_ROWS:,} rows, {MANY_COLUMNS} columns, {MANY_WIDTH:,} neurons.", ""]
        lines += ["| who | s |", "| --- | ---: |"]
        lines += [f"| {row['who']} | {row['seconds']:.2f} |" for row in results["many rows"]]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # short fits of the peers
    run_parts("predict", {"one row": one_row, "many rows": many_rows}, to_markdown)
