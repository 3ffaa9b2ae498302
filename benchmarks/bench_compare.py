"""Does preprocessing help on digits? The comparison of all engines, and what hashing pays for its recall.

    python benchmarks/bench_compare.py [--quick] [--only PART]

Parts: float32 and float64 (``fireset compare`` on scikit-learn's digits), hashing (hashes, tables and family against
recall, work and the loss after fifty steps). Results go to benchmarks/results/, the float32 run's page to out/.
"""

import os
import tempfile
import time
from pathlib import Path

THREADS = "2"
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, THREADS)
os.environ.setdefault("XLA_FLAGS", f"--xla_cpu_multi_thread_eigen=true intra_op_parallelism_threads={THREADS}")

import datasets  # noqa: E402 - after the thread counts
import numpy as np  # noqa: E402
from parts import run_parts  # noqa: E402

from fireset import ShiftedReLUNetwork, Trainer  # noqa: E402
from fireset.commands.compare import EngineOptions, compare_table  # noqa: E402
from fireset.commands.compare.report import engine_table  # noqa: E402
from fireset.engines import create  # noqa: E402
from fireset.theory import largest_eigenvalue  # noqa: E402
from fireset.training.precompile import compile_kernels  # noqa: E402

PAGE = Path(__file__).parent.parent / "out" / "compare-digits.html"
SETTINGS = [
    ("simhash", 4, 50),
    ("simhash", 6, 50),
    ("simhash", 8, 50),
    ("simhash", 8, 200),
    ("simhash", 10, 50),
    ("winner-take-all", 2, 50),
    ("winner-take-all", 3, 50),
    ("winner-take-all", 3, 200),
]


def comparison(dtype: str, quick: bool, page: Path | None) -> list[dict]:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digits.npz"
        np.savez(file, X=X, y=y)
        width, iterations = (1000, 5) if quick else (10_000, 30)
        options = EngineOptions(width=width, iterations=iterations, dtype=dtype)
        found = compare_table(file, "y", options, budget=600.0, seed=0, report=page, verbose=True)
        return [{name: value for name, value in found.items() if name != "report"}]  # a path of this machine


def float32(quick: bool) -> list[dict]:
    PAGE.parent.mkdir(exist_ok=True)
    return comparison("float32", quick, PAGE)


def float64(quick: bool) -> list[dict]:
    return comparison("float64", quick, None)


def hashing(quick: bool) -> list[dict]:
    """The exact engine first, then hashing with each setting, from the same network at the same rate."""
    X, y = datasets.digits()
    width, steps = (500, 5) if quick else (10_000, 50)
    for engine in ("data", "hashing"):
        compile_kernels(engine, X.dtype)
    first = ShiftedReLUNetwork.initialize(width, X.shape[1], y.shape[1])
    rate = 0.5 / largest_eigenvalue(X, first.output_weights, first.fire_sets(X))
    contenders = [("data", None, None, create("data"))]
    contenders += [(f, k, n, create("hashing", family=f, hashes=k, tables=n)) for f, k, n in SETTINGS]
    rows = []
    for family, hashes, tables, engine in contenders:
        network = ShiftedReLUNetwork(first.weights.copy(), first.output_weights, first.threshold)
        trainer = Trainer(network, X, y, engine=engine, learning_rate=rate, tol=0)
        products, measuring, recalls = engine.work.inner_products, 0.0, []

        def measure(progress) -> None:
            """Between the passes, off the clock."""
            nonlocal measuring
            begun = time.perf_counter()
            recalls.append(progress.engine.recall(np.arange(0, len(X), 10)))  # noqa: B023
            measuring += time.perf_counter() - begun

        begun = time.perf_counter()
        for _ in range(steps):
            trainer.step([measure])
        seconds = time.perf_counter() - begun - measuring
        believed = trainer.evaluate().record.loss
        rows.append(
            {
                "family": family,
                "hashes": hashes,
                "tables": tables,
                "recall": float(np.mean(recalls)),
                "looked": (engine.work.inner_products - products) / steps / (len(X) * width),
                "seconds": seconds / steps,
                "preprocessing_seconds": trainer.start_seconds,
                "loss": believed,
                "true_loss": 0.5 * float(np.sum((network.predict(X) - y) ** 2)),
                "accuracy": float(np.mean(network.predict(X).argmax(axis=1) == y.argmax(axis=1))),
                "width": width,
                "steps": steps,
            }
        )
    return rows


def to_markdown(results: dict) -> str:
    lines = [f"# All engines on digits, {results['date']}", "", results["machine"], ""]
    for part in ("float32", "float64"):
        for found in results.get(part, []):
            table = engine_table(found["contenders"])
            lines += [
                f"## {found['width']:,} neurons, {found['iterations']} iterations, {part}",
                "",
                f"{found['verdict']}",
                "",
                "| " + " | ".join(table.columns) + " |",
                "| --- | --- |" + " ---: |" * (len(table.columns) - 2),
                *("| " + " | ".join(row) + " |" for row in table.rows),
                "",
                "Time grows as "
                + ", ".join(f"m^{curve['exponent']:.2f} ({curve['name']})" for curve in found["scaling"])
                + ".",
                "",
            ]
            lines += [f"{row['name']}: {row['reason']}\n" for row in found["contenders"] if row["reason"]]
    if "hashing" in results:
        first = results["hashing"][0]
        lines += [
            f"## What hashing misses: {first['width']:,} neurons, {first['steps']} steps, float32",
            "",
            "Loss of the outputs as the engine computes them, and of the whole network that it has trained.",
            "",
            "| engine | K | L | recall | pairs looked at | ms per iteration | loss | whole network's loss | accuracy |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for row in results["hashing"]:
            lines.append(
                f"| {row['family']} | {row['hashes'] or ''} | {row['tables'] or ''} | {row['recall']:.1%} | "
                f"{row['looked']:.1%} | {1000 * row['seconds']:.1f} | {row['loss']:.1f} | {row['true_loss']:.1f} | "
                f"{row['accuracy']:.1%} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_parts("compare", {"float32": float32, "float64": float64, "hashing": hashing}, to_markdown)
