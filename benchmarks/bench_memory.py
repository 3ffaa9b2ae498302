"""Does training stay within the memory that it says it needs? Random problems, each in a process of its own.

    make bench-memory

For each: the estimate that ``--memory`` limits, and the peak above what was there before training. No estimate
may be below its peak; how far above it is, is the price. The second figure is of the whole process, which is what
``--memory`` counts: what was there before, the program and the table, and the estimate, beside the peak of all.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))

import numpy as np

RESULTS = Path(__file__).parent / "results"
ENGINES = ("data", "data", "data", "weights", "dense", "rows", "sums", "correlation")
ITERATIONS = {"data": 20}
SOLVERS = ("gradient", "gradient", "gauss-newton")
PAIRS = {
    "dense": (6.9, 7.6),
    "correlation": (6.9, 7.4),
    "sums": (7.5, 9.3),
}  # powers of ten; what every pair costs time for gets fewer


def problem(seed: int) -> dict:
    """A random problem of some tens of megabytes to some gigabytes."""
    rng = np.random.default_rng(seed)
    engine = str(rng.choice(ENGINES))
    rows = int(10 ** (rng.uniform(2.5, 4.3) if engine != "sums" else rng.uniform(4, 5.3)))
    features = int(rng.choice([2, 2, 3, 4, 5])) if engine == "sums" else int(10 ** rng.uniform(0.5, 2.3))
    pairs = 10 ** rng.uniform(*PAIRS.get(engine, (6.9, 8.2)))
    return {
        "seed": seed,
        "engine": engine,
        "rows": rows,
        "features": features,
        "width": max(50, min(200_000, int(pairs / rows))),
        "outputs": int(rng.choice([1, 1, 3, 10])),
        "threshold": float(rng.choice([0.0, 1.0, 1.5, 2.0])) if features != 2 else 0.0,
        "momentum": float(rng.choice([0.0, 0.9])),
        "solver": str(rng.choice(SOLVERS)) if engine == "data" or (engine == "dense" and pairs < 2e7) else "gradient",
        "dtype": str(rng.choice(["float32", "float64"])),
        "clusters": int(rng.choice([0, 0, 10])),
    }


def estimated(case: dict, network) -> float:
    """Return the estimate, and what Gauss-Newton takes in addition if it is free."""
    from fireset.engines import create
    from fireset.training.memory import expected_bytes, free_bytes
    from fireset.training.solvers import make_solver
    from fireset.training.solvers.linear_solver import (
        FULL_CHOLESKY_ROWS,
        kernel_bytes,
        kernel_fits,
        partial_factor_bytes,
    )

    n = case["rows"]
    solver = make_solver(case["solver"], {"momentum": case["momentum"]})
    estimate = expected_bytes(create(case["engine"]), network, n, solver.extra_bytes(network, n))
    factors = network.n_outputs if n <= FULL_CHOLESKY_ROWS else 1  # few rows may have one for each output
    if case["solver"] == "gauss-newton" and kernel_fits(n, network, free_bytes(None) - estimate, factors):
        estimate += max(0.0, kernel_bytes(n, network, factors) - partial_factor_bytes(n))  # replaces the partial factor
    return estimate


def measure(case: dict) -> dict:
    """Train, and compare."""
    from fireset import ShiftedReLUNetwork, train
    from fireset._util.system_memory import PeakMemory, resident_bytes

    rng = np.random.default_rng(case["seed"])
    X = rng.standard_normal((case["rows"], case["features"])).astype(case["dtype"])
    if case["clusters"]:
        centres = rng.standard_normal((case["clusters"], case["features"])).astype(case["dtype"])
        X = 0.3 * X + centres[rng.integers(len(centres), size=len(X))]
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.stack([np.sin((2 + k) * X[:, 0].astype(np.float64)) for k in range(case["outputs"])], axis=1)
    scale = 1000.0 if case["solver"] == "gauss-newton" else 1.0  # as the estimators have it
    shape = {"threshold": case["threshold"], "dtype": case["dtype"], "output_scale": scale}
    settings = {"solver": case["solver"], "momentum": case["momentum"], "engine": case["engine"], "tol": 0}
    tiny = ShiftedReLUNetwork.initialize(64, case["features"], case["outputs"], **shape)
    train(tiny, X[:64], y[:64], max_iter=2, **settings)  # kernels are compiled or read
    network = ShiftedReLUNetwork.initialize(case["width"], case["features"], case["outputs"], **shape)
    estimate = estimated(case, network)
    before, highest = resident_bytes(), PeakMemory()
    assert highest.reset(), "only Linux tells the peak since a moment"
    result = train(
        network,
        X,
        y,
        max_iter=2 if case["solver"] == "gauss-newton" else ITERATIONS.get(case["engine"], 10),
        **settings,
    )
    peak = (highest.read() or 0) - before  # of this program: ``getrusage`` includes the parent process
    return {**case, "estimate": estimate, "peak": peak, "before": before, "blocks": result.blocks}


def _line(name: str, ratios: list[float]) -> str:
    return f"| {name} | {len(ratios)} | {np.median(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f} |"


def _table(found: list[dict]) -> list[str]:
    ratios = np.array([one["estimate"] / one["peak"] for one in found])
    whole = np.array([(one["before"] + one["estimate"]) / (one["before"] + one["peak"]) for one in found])
    below = [one for one, ratio in zip(found, ratios, strict=True) if ratio < 1]
    names = sorted({one["engine"] for one in found})
    return [
        "# Memory: estimate and peak",
        "",
        f"{len(found)} random problems; below the peak: {len(below)}; the estimate is {np.median(ratios):.2f} times "
        f"the peak in the median, at least {ratios.min():.2f}, at most {ratios.max():.2f}. Of the whole process: "
        f"{np.median(whole):.2f}, {whole.min():.2f} to {whole.max():.2f}.",
        "",
        "| engine | problems | median | least | most |",
        "|---|---|---|---|---|",
        *(_line(name, [r for one, r in zip(found, ratios, strict=True) if one["engine"] == name]) for name in names),
        "",
        *(f"- {json.dumps(one)}" for one in below),
    ]


def _measured(seed: int) -> dict | None:
    """Measure a problem in a process of its own; None if it fails."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", str(seed)], capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        print(problem(seed), done.stderr.splitlines()[-1:], file=sys.stderr, flush=True)
        return None
    found = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1, help="problems that are measured at a time")
    parser.add_argument("--engine", help="only problems of this one")
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(problem(options.one))))
        return
    seeds = range(options.first, options.first + options.count)
    chosen = [seed for seed in seeds if not options.engine or problem(seed)["engine"] == options.engine]
    with ThreadPoolExecutor(options.jobs) as pool:
        found = [one for one in pool.map(_measured, chosen) if one is not None]
    lines = _table(found)
    print("\n".join(lines))
    if options.count >= 100 and not options.engine:
        (RESULTS / "memory.md").write_text("\n".join(lines) + "\n")
        (RESULTS / "memory.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
