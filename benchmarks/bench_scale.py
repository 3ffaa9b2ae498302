"""Default fits of many rows beside gradient boosting: seconds, peak memory and score, and the exponent of time in n.

    make bench-scale

Every fit runs in a process of its own, which first fits 2,000 rows to load compiled code, fireset with both solvers.
Seconds are those of ``fit``; processor seconds are those of all its threads. Peak memory is that of the whole process,
with the table. CatBoost takes part with ``SCALE_CATBOOST=1``, LightGBM where it is installed.

Part ``file`` runs ``fireset train`` on a Parquet file within a memory limit; ``SCALE_ROWS=10000000`` sets its rows.
With ``SCALE_KILL=1`` the largest fit is made again, killed after six tenths of its time and resumed, and the weights
are compared with those of the first fit.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))

import numpy as np
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parent))
from parts import run_parts

ROWS = (10_000, 100_000, 200_000, 1_000_000)
QUICK_ROWS = (5_000, 10_000)
CLASS_ROWS, QUICK_CLASS_ROWS = 50_000, 3_000
FILE_ROWS = (1_000_000, int(os.environ.get("SCALE_ROWS", "0")) or 10_000_000)
SECONDS_AT_MOST = 3600

WORKER = """
import json, resource, sys, time
from sklearn.datasets import make_classification, make_friedman1

name, task, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
held = min(20_000, n)
if task == "regression":
    X, y = make_friedman1(n + held, 20, noise=1.0, random_state=0)
else:
    X, y = make_classification(n + held, 50, n_informative=20, n_classes=10, random_state=0)

def model():
    if name == "fireset":
        import fireset
        kind = fireset.ShiftedReLURegressor if task == "regression" else fireset.ShiftedReLUClassifier
        return kind(random_state=0)
    if name == "HistGradientBoosting":
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        kind = HistGradientBoostingRegressor if task == "regression" else HistGradientBoostingClassifier
        return kind(random_state=0)
    if name == "LightGBM":
        from lightgbm import LGBMClassifier, LGBMRegressor
        return (LGBMRegressor if task == "regression" else LGBMClassifier)(random_state=0, verbose=-1)
    if name == "CatBoost":
        from catboost import CatBoostClassifier, CatBoostRegressor
        return (CatBoostRegressor if task == "regression" else CatBoostClassifier)(random_state=0, verbose=False)
    from sklearn.neural_network import MLPClassifier
    return MLPClassifier(random_state=0)

model().fit(X[:2000], y[:2000])
if name == "fireset":  # the solver of many rows has kernels of its own
    model().set_params(solver="nystrom").fit(X[:2000], y[:2000])
fitted, wall, processor = model(), time.perf_counter(), time.process_time()
fitted.fit(X[:n], y[:n])
wall, processor = time.perf_counter() - wall, time.process_time() - processor
found = {"seconds": wall, "processor_seconds": processor, "score": float(fitted.score(X[n:], y[n:]))}
found["gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
if name == "fireset":
    found["solver"], found["width"] = fitted.solver_, fitted.network_.width
print(json.dumps(found))
"""


def peers(task: str) -> list[str]:
    """Names of the models to fit: those that are installed, and CatBoost if requested."""
    found = ["fireset", "HistGradientBoosting"]
    found += ["LightGBM"] if importlib.util.find_spec("lightgbm") else []
    found += ["CatBoost"] if os.environ.get("SCALE_CATBOOST") and importlib.util.find_spec("catboost") else []
    return [*found, "MLP"] if task == "classification" else found


def fit(name: str, task: str, rows: int) -> dict:
    """Fit one model in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WORKER, name, task, str(rows)],
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS_AT_MOST,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    print(name, rows, found, file=sys.stderr, flush=True)
    return {"model": name, "rows": rows, **found}


def regression(quick: bool) -> list[dict]:
    return [fit(name, "regression", rows) for rows in (QUICK_ROWS if quick else ROWS) for name in peers("regression")]


def classification(quick: bool) -> list[dict]:
    rows = QUICK_CLASS_ROWS if quick else CLASS_ROWS
    return [fit(name, "classification", rows) for name in peers("classification")]


def file(quick: bool) -> list[dict]:
    """Train on a Parquet file in a process of its own; peak memory includes what it maps and reads."""
    sizes, kills = QUICK_ROWS[:1] if quick else FILE_ROWS, bool(os.environ.get("SCALE_KILL"))
    limits = {1_000_000: "1500M", 4_000_000: "2G"}  # beyond, the targets of all rows need more
    memory = {rows: next((limit for most, limit in limits.items() if rows <= most), "8G") for rows in sizes}
    return [train_file(rows, memory[rows], kills=kills and rows == max(sizes)) for rows in sizes]


def train_file(rows: int, memory: str, *, kills: bool) -> dict:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_friedman(folder / "table.parquet", rows)
        found = run_train(folder, memory, "--out", "model.safetensors")
        if kills:
            checkpointed = ["--out", "again.safetensors", "--checkpoint", "states"]
            run_train(folder, memory, *checkpointed, killed_after=0.6 * found["seconds"])
            stored = sum(file.stat().st_size for file in (folder / "states").glob("pass-*"))
            resumed = run_train(folder, memory, *checkpointed, "--resume")
            first, again = (load_file(folder / f"{one}.safetensors") for one in ("model", "again"))
            same = all(np.array_equal(first[one], again[one]) for one in ("weights", "output_weights"))
            found |= {"resumed_seconds": resumed["seconds"], "stored_bytes": stored, "same_weights": same}
    found = {"rows": rows, "memory": memory, **found}
    print(found, file=sys.stderr, flush=True)
    return found


def run_train(folder: Path, memory: str, *options: str, killed_after: float | None = None) -> dict:
    command = ["fireset", "train", "table.parquet", "--target", "y", "--memory", memory, "--json", *options]
    started = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", *command], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    if killed_after is not None:
        time.sleep(killed_after)
        child.kill()
    out = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    if killed_after is not None:
        return {}
    if status:
        raise RuntimeError(f"fireset train ended with {os.waitstatus_to_exitcode(status)}")
    return {
        "seconds": time.perf_counter() - started,
        "processor_seconds": usage.ru_utime + usage.ru_stime,
        "gigabytes": usage.ru_maxrss * 1024 / 1e9,
        "score": json.loads(out)["held_out_r2"],
    }


def write_friedman(path: Path, rows: int) -> None:
    """Write ``make_friedman1(rows, 20, noise=1)`` in float32, a million rows at a time."""
    import polars as pl
    import pyarrow.parquet as pq
    from sklearn.datasets import make_friedman1

    writer = None
    for start in range(0, rows, 1_000_000):
        X, y = make_friedman1(min(1_000_000, rows - start), 20, noise=1.0, random_state=start)
        columns = {**{f"x{j}": X[:, j].astype(np.float32) for j in range(20)}, "y": y.astype(np.float32)}
        table = pl.DataFrame(columns).to_arrow()
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def resumed_in_words(one: dict) -> str:
    """Describe the run that was killed and resumed."""
    end = "has the same bits in all weights" if one["same_weights"] else "has OTHER weights"
    stored, seconds = one["stored_bytes"] / 1e6, one["resumed_seconds"]
    return (
        f"{one['rows']:,} rows: a run that is killed after 60 % of the time ({stored:.0f} MB of sums are stored) and "
        f"resumed takes {seconds:.0f} s more and {end}."
    )


def exponent(rows: list[int], seconds: list[float]) -> float:
    """Return the slope of log time over log n by least squares."""
    return float(np.polyfit(np.log(rows), np.log(seconds), 1)[0])


def to_markdown(results: dict) -> str:
    lines = [f"# Many rows, {results['date']}", "", results["machine"], ""]
    titles = {
        "regression": "`make_friedman1(n, 20, noise=1)`: defaults, R² on 20,000 other rows",
        "classification": "50,000 × 50 with 10 classes: defaults, accuracy on 20,000 other rows",
    }
    for part, title in titles.items():
        if part not in results:
            continue
        lines += [
            f"## {title}",
            "",
            "| rows | model | s | processor s | peak GB | score |",
            "| ---: | --- | ---: | ---: | ---: | ---: |",
        ]
        for one in results[part]:
            more = f" ({one['solver']}, {one['width']:,} neurons)" if "solver" in one else ""
            lines.append(
                f"| {one['rows']:,} | {one['model']}{more} | {one['seconds']:.1f} | {one['processor_seconds']:.1f} | "
                f"{one['gigabytes']:.2f} | {one['score']:.4f} |"
            )
        lines.append("")
    if "file" in results:
        lines += [
            "## `fireset train` from a Parquet file of such a table in float32, a fifth of the rows held out",
            "",
            "| rows | `--memory` | s | processor s | peak GB | R² |",
            "| ---: | --- | ---: | ---: | ---: | ---: |",
        ]
        for one in results["file"]:
            lines.append(
                f"| {one['rows']:,} | {one['memory']} | {one['seconds']:.0f} | {one['processor_seconds']:.0f} | "
                f"{one['gigabytes']:.2f} | {one['score']:.4f} |"
            )
        lines.append("")
        for one in results["file"]:
            if "same_weights" in one:
                lines += [resumed_in_words(one), ""]
    fits = [one for one in results.get("regression", []) if one["model"] == "fireset"]
    fits = [one for one in fits if one["solver"] == fits[-1]["solver"]]  # a change of solver is no property of either
    if len(fits) > 1:
        rows = [one["rows"] for one in fits]
        slopes = [exponent(rows, [one[key] for one in fits]) for key in ("seconds", "processor_seconds")]
        lines += [
            f"Exponent of fireset's time in n, for {fits[-1]['solver']}: {slopes[0]:.2f} by seconds, "
            f"{slopes[1]:.2f} by processor seconds.",
            "",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    run_parts("scale", {"regression": regression, "classification": classification, "file": file}, to_markdown)
