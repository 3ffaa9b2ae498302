"""Half-space sums beside dense peers and the data engine: pictures, exponents, and the choice of ``engine="auto"``.

    python benchmarks/bench_sums.py [--quick] [--only PART]

Parts: pictures (PyTorch, JAX, NumPy, the data engine), exponents (time in n and m), choice (a grid of 30 settings).
Dense peers that would not fit the memory are timed on as many neurons as fit, and scaled. Results go to
benchmarks/results/.
"""

import json
import os
import sys
import time

THREADS = "2"
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, THREADS)
os.environ.setdefault("XLA_FLAGS", f"--xla_cpu_multi_thread_eigen=true intra_op_parallelism_threads={THREADS}")

import datasets  # noqa: E402 - after the thread counts
import numpy as np  # noqa: E402
import peers  # noqa: E402
from bench_step import exponent  # noqa: E402
from parts import run_parts  # noqa: E402

from fireset import ShiftedReLUNetwork, Trainer  # noqa: E402
from fireset._util.parallel import one_blas_thread  # noqa: E402
from fireset.engines import choose  # noqa: E402

RATE = 1e-10  # next to nothing: what is timed is a step, not a training, and no network may run away
ITERATIONS = 6
MAX_PAIRS = 2e8  # of a dense peer: 800 MB for each array of them


def picture(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels as unit vectors in three dimensions, and a wave to be fitted."""
    x, y = np.meshgrid(np.linspace(-1, 1, side), np.linspace(-1, 1, side))
    rows = np.stack([x.ravel(), y.ravel(), np.ones(side * side)], axis=1)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32), (np.sin(6 * x) * np.cos(5 * y)).reshape(-1, 1)


def step_seconds(engine: str, network, X, y) -> float:
    """Median seconds of a forward pass and a step, preprocessing apart."""
    one = started(engine, network, X, y)
    with one_blas_thread():
        return float(np.median([timed_step(one) for _ in range(ITERATIONS)][1:]))


def started(engine: str, network, X, y) -> Trainer:
    """A run that is about to take its first step, on a copy of the network."""
    copy = ShiftedReLUNetwork(network.weights.copy(), network.output_weights, network.threshold)
    return Trainer(copy, X, y, engine=engine, learning_rate=RATE, tol=0)


def timed_step(one: Trainer) -> float:
    begun = time.perf_counter()
    one.step()
    return time.perf_counter() - begun


def seconds_in_turns(engines, network, X, y, turns: int = 5, turn: float = 0.1) -> dict[str, float]:
    """Median seconds of a step of each engine, in turns of a tenth of a second or a step: noise hits all alike."""
    running = {engine: started(engine, network, X, y) for engine in engines}
    seconds: dict[str, list[float]] = {engine: [] for engine in engines}
    with one_blas_thread():
        for one in running.values():
            timed_step(one)
        for _ in range(turns):
            for engine, one in running.items():
                end = time.perf_counter() + turn
                seconds[engine].append(timed_step(one))
                while time.perf_counter() < end:
                    seconds[engine].append(timed_step(one))
    return {engine: float(np.median(found)) for engine, found in seconds.items()}


def peer_seconds(peer: str, network, X, y) -> float:
    """Seconds of a step of a dense peer, on as many neurons as fit, scaled to all of them."""
    width = int(min(network.width, max(2, MAX_PAIRS // len(X))))
    part = ShiftedReLUNetwork(network.weights[:width].copy(), network.output_weights[:width].copy(), network.threshold)
    one = getattr(peers, peer)(part, X, y, RATE)
    one.step()
    seconds = []
    for _ in range(2):
        begun = time.perf_counter()
        one.step()
        seconds.append(time.perf_counter() - begun)
    return min(seconds) * network.width / width


def run_pictures(quick: bool) -> list[dict]:
    rows = []
    for side, threshold, asked in (
        (256, 0.0, {"PyTorch": 130, "BlockedNumPy": 40}),
        (256, "paper", {"PyTorch": 400}),
        *(() if quick else ((1024, 0.0, {"PyTorch": 120}),)),
    ):
        X, y = picture(side)
        network = ShiftedReLUNetwork.initialize(10_000, 3, threshold=threshold)
        row = {"side": side, "threshold": network.threshold, "width": network.width, "asked": asked}
        row["sums"] = step_seconds("sums", network, X, y)
        if side <= 256 and threshold == "paper":
            row["data"] = step_seconds("data", network, X, y)
        for peer in ("PyTorch", "Jax", "BlockedNumPy"):
            row[peer] = peer_seconds(peer, network, X, y)
        row["sums again"] = step_seconds("sums", network, X, y)
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def run_exponents(quick: bool) -> list[dict]:
    """Time beyond the O(n) passes over the data: what some neurons more cost, at two widths with as many ranges."""
    rows = []
    sizes = [10_000, 30_000, 100_000] if quick else [10_000, 30_000, 100_000, 300_000, 1_000_000]
    for d, most in ((2, 262_144), (3, 36_864)):
        seconds, whole = [], []
        for n in sizes:
            X, y = datasets.random_sphere(n, d)
            both = [started("sums", ShiftedReLUNetwork.initialize(m, d, threshold=0.0), X, y) for m in (4_096, most)]
            with one_blas_thread():
                steps = [[timed_step(one) for one in both] for _ in range(12)]
            base, all_of_it = (min(times) for times in zip(*steps[1:], strict=True))
            whole.append(all_of_it)
            seconds.append(all_of_it - base)  # of the neurons that only the second one has
        rows.append({**exponent(f"n, d = {d}", sizes, seconds), "whole": whole})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    widths = [3_000, 10_000, 30_000] if quick else [3_000, 10_000, 30_000, 100_000]
    X, y = picture(256)
    by_width = [step_seconds("sums", ShiftedReLUNetwork.initialize(m, 3, threshold=0.0), X, y) for m in widths]
    rows.append(exponent("m, a picture of 256 × 256", widths, by_width))
    return rows


GRID = [
    (n, d, m, threshold)
    for n, d, m in (
        (500, 2, 5_000),
        (2_000, 2, 20_000),
        (50_000, 2, 5_000),
        (500, 3, 20_000),
        (5_000, 3, 5_000),
        (50_000, 3, 5_000),
        (2_000, 4, 20_000),
        (20_000, 4, 5_000),
        (5_000, 5, 10_000),
        (30_000, 5, 5_000),
        (5_000, 6, 10_000),
        (20_000, 8, 5_000),
        (2_000, 16, 20_000),
        (2_000, 64, 20_000),
        (1_000, 200, 10_000),
    )
    for threshold in (0.0, "paper")
]


def run_choice(quick: bool) -> list[dict]:
    rows = []
    for n, d, m, threshold in GRID[:: 5 if quick else 1]:
        X, y = datasets.random_sphere(n, d)
        network = ShiftedReLUNetwork.initialize(m, d, threshold=threshold)
        seconds = seconds_in_turns(("dense", "data", "sums"), network, X, y)
        chosen = choose(network, n, 200)
        fastest = min(seconds, key=seconds.__getitem__)
        rows.append(
            {
                "n": n,
                "d": d,
                "m": m,
                "threshold": network.threshold,
                **seconds,
                "chosen": chosen,
                "fastest": fastest,
                "chosen_over_fastest": seconds[chosen] / seconds[fastest],
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def to_markdown(results: dict) -> str:
    lines = [f"# Half-space sums, {results['date']}", "", results["machine"], ""]
    if results.get("pictures"):
        lines += ["Seconds per step, forward and backward, float32; in brackets: times the engine `sums`.", ""]
        lines += ["| picture | b | neurons | sums | data | PyTorch | JAX | NumPy, blocks | goals |"]
        lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"]
        for row in results["pictures"]:
            best = min(row["sums"], row["sums again"])
            cells = [
                f"{row[name]:.3f} ({row[name] / best:.0f})" if name in row else ""
                for name in ("data", "PyTorch", "Jax", "BlockedNumPy")
            ]
            asked = ", ".join(f"{name} {times}" for name, times in row["asked"].items())
            lines.append(
                f"| {row['side']} × {row['side']} | {row['threshold']:.2f} | {row['width']:,} | {best:.4f} | "
                f"{' | '.join(cells)} | {asked} |"
            )
        lines.append("")
    for fit in results.get("exponents", []):
        lines.append(f"Time grows as {fit['of']}: exponent {fit['exponent']:.2f} (± {fit['half_interval']:.2f}, 95 %).")
    if results.get("choice"):
        lines += [
            "",
            "Seconds per step of the exact engines, and what `auto` chooses for 200 iterations. Neurons hardly",
            "move: refreshes of `data` are not in it.",
            "",
        ]
        lines += ["| n | d | m | b | dense | data | sums | fastest | auto | auto / fastest |"]
        lines += ["| ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- | ---: |"]
        for r in results["choice"]:
            cells = " | ".join(f"{r[engine]:.4f}" for engine in ("dense", "data", "sums"))
            lines.append(
                f"| {r['n']:,} | {r['d']} | {r['m']:,} | {r['threshold']:.2f} | {cells} | {r['fastest']} | "
                f"{r['chosen']} | {r['chosen_over_fastest']:.2f} |"
            )
    return "\n".join(lines) + "\n"


PARTS = {"pictures": run_pictures, "exponents": run_exponents, "choice": run_choice}


if __name__ == "__main__":
    run_parts("sums", PARTS, to_markdown)
