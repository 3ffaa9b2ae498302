"""Fits and predictions on a busy machine: the worst of five runs beside other programs, and under limits.

    make bench-load

Each task runs in a process of its own, once to load compiled kernels and then up to five times on the clock: after
two runs it stops when they took more than ten seconds. So all tasks together take at most about eight minutes. Busy
programs are loops of arithmetic, one or two for each processor. A fair share of the machine would be 1/2 and 1/3 of
it. Limits are an affinity mask of one processor and, where a control group can be made (root, cgroup v1 or v2), half a
processor. Processor seconds are those of the whole process: more of them under load than alone are spent waiting
actively.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))

sys.path.insert(0, str(Path(__file__).parent))
from parts import run_parts

RUNS = 5
MIN_RUNS, SECONDS_OF_RUNS = 2, 10  # a case ends after five runs, or after two if they took longer
SECONDS_AT_MOST = 900
GOALS = {"1 loop per processor": 4.0, "2 loops per processor": 6.0}

WORKER = """
import json, sys, time
import numpy as np
from sklearn.datasets import load_digits, make_friedman1
from fireset import ShiftedReLUClassifier, ShiftedReLURegressor

def digits():
    return lambda: ShiftedReLUClassifier(random_state=0).fit(*load_digits(return_X_y=True))

def friedman():
    X, y = make_friedman1(2000, 20, noise=1.0, random_state=0)
    return lambda: ShiftedReLURegressor(random_state=0).fit(X, y)

def two_columns():
    X = np.random.default_rng(0).uniform(-1, 1, (4000, 2))
    y = np.sin(3 * X[:, 0]) * np.cos(2 * X[:, 1])
    return lambda: ShiftedReLURegressor(random_state=0).fit(X, y)

def demo():
    import tempfile
    from pathlib import Path
    from fireset.commands.demo import run_demo
    out = Path(tempfile.mkdtemp()) / "demo.safetensors"
    return lambda: run_demo(width=20_000, out=out, seed=0, verbose=False)

def predict():
    X, y = make_friedman1(20_000, 20, noise=1.0, random_state=0)
    model = ShiftedReLURegressor(random_state=0).fit(X[:2000], y[:2000])
    return lambda: model.predict(X)

tasks = {"digits": digits, "friedman1": friedman, "two columns": two_columns, "demo": demo, "predict": predict}
task = tasks[sys.argv[1]]()
task()
most, least, limit = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
begun = time.perf_counter()
for k in range(most):
    if k >= least and time.perf_counter() - begun > limit:
        break
    wall, processor = time.perf_counter(), time.process_time()
    task()
    print(json.dumps([time.perf_counter() - wall, time.process_time() - processor]), flush=True)
"""
TASKS = {
    "digits": "default fit of a classifier, 1,797 × 64",
    "friedman1": "default fit of a regressor, 2,000 × 20",
    "two columns": "default fit of a regressor, 4,000 × 2",
    "demo": "`fireset demo`: digits with 20,000 neurons, and the model file",
    "predict": "20,000 rows of friedman1",
}
BUSY = "x = 1.0\nwhile True:\n    x = x * 1.0000001 + 1e-9"


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        time.sleep(0.5 if count else 0.0)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextmanager
def half_a_processor() -> Iterator[Path | None]:
    """Make a control group of half a processor; gives the file that processes are added by, or None."""
    for root, limits in (
        (Path("/sys/fs/cgroup/cpu"), {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}),
        (Path("/sys/fs/cgroup"), {"cpu.max": "50000 100000"}),
    ):
        group = root / f"fireset-bench-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            for name, value in limits.items():
                (group / name).write_text(value)
        except OSError:
            group.rmdir()
            continue
        try:
            yield group / "cgroup.procs"
        finally:
            group.rmdir()
        return
    yield None


def run(task: str, runs: int, *, before: str = "") -> dict[str, float]:
    """Run a task in a process of its own; worst and median of its seconds, median of its processor seconds."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", before + WORKER, task, str(runs), str(MIN_RUNS), str(SECONDS_OF_RUNS)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS_AT_MOST,
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    walls = sorted(wall for wall, _ in found)
    processor = sorted(seconds for _, seconds in found)
    middle = len(found) // 2
    return {"runs": len(found), "worst": walls[-1], "median": walls[middle], "processor": processor[middle]}


def under_load(quick: bool) -> list[dict]:
    runs, processors, rows = (2 if quick else RUNS), os.cpu_count() or 1, []
    for task in TASKS:
        row: dict = {"task": task, "alone": run(task, runs)}
        for name, loops in (("1 loop per processor", processors), ("2 loops per processor", 2 * processors)):
            with busy_loops(loops):
                row[name] = run(task, runs)
        row["one processor"] = run(task, runs, before="import os; os.sched_setaffinity(0, {0})\n")
        with half_a_processor() as members:
            if members is not None:
                join = f"import os; open({str(members)!r}, 'w').write(str(os.getpid()))\n"
                row["half a processor"] = run(task, runs, before=join)
        print(json.dumps(row), file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def to_markdown(results: dict) -> str:
    rows = results["under_load"]
    cases = [name for name in rows[0] if name not in ("task", "alone")]
    lines = [
        f"# On a busy machine, {results['date']}",
        "",
        results["machine"],
        "",
        "Seconds of the slowest of up to five runs, as a multiple of the median alone, and processor seconds of the "
        "median run in parentheses. Beside one or two loops of arithmetic per processor, on one processor (affinity), "
        "and with half a processor (control group).",
        "Goals: " + ", ".join(f"{name} at most {most:g} times" for name, most in GOALS.items()) + ".",
        "",
        *(f"- {name}: {description}" for name, description in TASKS.items()),
        "",
        "| task | alone (median) | " + " | ".join(cases) + " |",
        "| --- | ---: | " + " | ".join("---:" for _ in cases) + " |",
    ]
    for row in rows:
        alone = row["alone"]
        cells = [f"{row['task']}", f"{alone['median']:.2f} ({alone['processor']:.2f})"]
        for case in cases:
            found = row.get(case)
            cells.append(
                f"{found['worst']:.2f}, {found['worst'] / alone['median']:.1f} × ({found['processor']:.2f})"
                if found
                else ""
            )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_parts("load", {"under_load": under_load}, to_markdown)
