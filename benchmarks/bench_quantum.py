"""Grover's search for all marked items: oracle calls over N and k, failures at a given δ, and both engines.

    python benchmarks/bench_quantum.py [--quick] [--only PART]

Parts: calls (mean oracle calls over N and k, with both constants fitted), price (what δ costs), failures (10⁴ searches
at δ = 0.05), engines (oracle calls per iteration, n = 1000, d = 64), oracle (what the arithmetic circuit needs). Counts
do not depend on the machine, only the seconds of the simulation do. Results go to benchmarks/results/.
"""

import json
import os
import sys
import time
from importlib.metadata import version

os.environ.setdefault("OMP_NUM_THREADS", "2")

import datasets
import numpy as np
from bench_step import exponent
from parts import run_parts
from scipy.stats import binom

from fireset import ShiftedReLUNetwork, train
from fireset.quantum import find_all_batch, make_schedule, phase_success

DELTA = 1e-6


def searches(n_items: int, k: int, count: int, delta: float = DELTA):
    """``count`` searches, each for other k of N items."""
    rng = np.random.default_rng([n_items, k])
    marked = np.concatenate([rng.choice(n_items, k, replace=False) for _ in range(count)]) if k else np.empty(0, int)
    return find_all_batch(np.arange(count + 1) * k, marked, n_items, failure_probability=delta, seed=rng)


def say(row) -> None:
    print(json.dumps(row), file=sys.stderr, flush=True)


def run_calls(quick: bool) -> list[dict]:
    rows = []
    for power in range(6, 17 if quick else 21):
        n_items = 2**power
        for k in sorted({0, n_items, *(2**p for p in range(power - 2))}):
            count = max(20, min(20_000, 1_000_000 // (k + 50)))
            started = time.perf_counter()
            found = searches(n_items, k, count)
            rows.append(
                {
                    "N": n_items,
                    "k": k,
                    "searches": count,
                    "calls": found.oracle_calls.mean(),
                    "standard_error": found.oracle_calls.std() / np.sqrt(count),
                    "iterations": found.iterations.mean(),
                    "measurements": found.measurements.mean(),
                    "verdict": found.verdict_calls.mean(),
                    "missed_items": int(count * k - len(found.found)),
                    "seconds_per_search": (time.perf_counter() - started) / count,
                }
            )
            say(rows[-1])
    return rows


def fitted(rows: list[dict]) -> dict:
    """c₁ and c₂ of c₁√(N·k) + c₂√N·ln(1/δ), by least squares of relative residuals; k = 0 and k = N left out."""
    grid = [row for row in rows if 1 <= row["k"] <= row["N"] // 8]
    N, k, calls = (np.array([row[name] for row in grid], float) for name in ("N", "k", "calls"))
    terms = np.stack([np.sqrt(N * k), np.sqrt(N) * np.log(1 / DELTA)], axis=1)
    constants, *_ = np.linalg.lstsq(terms / calls[:, None], np.ones(len(calls)), rcond=None)
    residuals = terms @ constants / calls - 1
    worst = grid[int(np.argmax(np.abs(residuals)))]
    return {
        "c1": constants[0],
        "c2": constants[1],
        "rms": float(np.sqrt(np.mean(residuals**2))),
        "largest": float(np.abs(residuals).max()),
        "where": (worst["N"], worst["k"]),
        "settings": len(grid),
    }


def exponents(rows: list[dict]) -> list[dict]:
    """Slopes of logarithms: over N at fixed k; over N·k at fixed k/N, for the calls before the verdict and for all.

    At fixed k/N the square root of N·k is N times a constant: 0.5 in N·k is 1 in N. From k = 16 on, too: finding k
    items costs as Σ_{j ≤ k} 1/√j = 2√k − 1.46 …, whose slope is above that of √k while k is small.
    """
    table = []
    for k in (1, 8):
        part = [row for row in rows if row["k"] == k and row["N"] >= 8 * k]
        table.append(exponent(f"N at k = {k}, all calls", [r["N"] for r in part], [r["calls"] for r in part]))
    for share in (64, 8):
        part = [row for row in rows if row["k"] * share == row["N"]]
        sizes = [row["N"] * row["k"] for row in part]
        finding = [row["calls"] - row["verdict"] for row in part]
        many = [place for place, row in enumerate(part) if row["k"] >= 16]
        table.append(exponent(f"N·k at k = N/{share}, calls that find", sizes, finding))
        table.append(
            exponent(
                f"N·k at k = N/{share} from k = 16 on, calls that find",
                [sizes[place] for place in many],
                [finding[place] for place in many],
            )
        )
        table.append(exponent(f"N·k at k = N/{share}, all calls", sizes, [row["calls"] for row in part]))
    return table


def run_price(quick: bool) -> list[dict]:
    """What it costs to know that nothing is left, by δ."""
    rows = []
    for power in (10, 20):
        for digits in (1, 2, 6) if quick else (1, 2, 3, 4, 6, 8, 10, 12):
            schedule = make_schedule(2**power, 10.0**-digits)
            cost = schedule.verdict_calls / 2 ** (power / 2)
            rows.append({"N": 2**power, "delta": 10.0**-digits, "phases": len(schedule.sizes), "over_root_n": cost})
    return rows


def run_failures(quick: bool) -> list[dict]:
    rows = []
    for n_items, k in ((64, 1), (64, 8), (1000, 16), (4096, 100), (2**20, 1000)):
        count = 1000 if quick else 10_000
        found = searches(n_items, k, count, 0.05)
        missed = k - np.diff(found.indptr)
        sizes = make_schedule(n_items, 0.05).sizes
        rounds = np.prod([1 - phase_success(size, n_items, np.arange(1, k + 1)) for size in sizes], axis=0)
        proved = 1 - np.prod(1 - rounds)
        failed = int(np.count_nonzero(missed))
        rows.append(
            {
                "N": n_items,
                "k": k,
                "searches": count,
                "failed": failed,
                "rate": failed / count,
                "rate_by_the_formula": float(proved),
                "p_value": float(
                    min(1.0, 2 * min(binom.cdf(failed, count, proved), binom.sf(failed - 1, count, proved)))
                ),
                "missed_0_1_2_3": np.bincount(missed, minlength=4)[:4].tolist(),
            }
        )
        say(rows[-1])
    return rows


def run_engines(quick: bool) -> list[dict]:
    X, y = datasets.random_sphere(1000, 64)
    rows = []
    for width in (1_000, 4_000) if quick else (2_000, 10_000, 50_000, 100_000):
        for name in ("quantum-weights", "quantum-data", "data"):
            network = ShiftedReLUNetwork.initialize(width, 64)
            started = time.perf_counter()
            result = train(network, X, y, engine=name, max_iter=3, tol=0)
            seconds = time.perf_counter() - started - result.compile_seconds
            first, *_, last = result.history
            rows.append(
                {
                    "engine": name,
                    "width": width,
                    "pairs": 1000 * width,
                    "active_pairs": last.active_pairs,
                    "first": first.oracle_queries if name != "data" else first.inner_products + 1000 * width,
                    "later": last.oracle_queries if name != "data" else last.inner_products,
                    "missed_pairs": None if name == "data" else int(sum(result.history.column("missed_pairs"))),
                    "seconds_simulating_a_step": seconds / 4,
                }
            )
            say(rows[-1])
    return rows


def run_oracle(quick: bool) -> list[dict]:  # noqa: ARG001 - it is quick
    from fireset.quantum.arithmetic import FixedPoint, count_resources

    rows = []
    for n_items, d, bits in ((16, 4, 4), (1000, 64, 8), (1000, 64, 16), (100_000, 64, 8)):
        points, _ = datasets.random_sphere(n_items, d)
        normal = np.random.default_rng(0).standard_normal(d)
        need = count_resources(FixedPoint.round(points, normal, 2.1, bits))
        rows.append(
            {
                "points": n_items,
                "d": d,
                "bits": bits,
                "qubits": need.qubits,
                "toffolis": need.toffolis,
                "without_lookups": need.toffolis - need.lookup_toffolis,
                "t_count": need.t_count,
                "depth_at_most": need.depth,
            }
        )
    return rows


def to_markdown(results: dict) -> str:
    lines = [f"# Grover's search for all marked items, {results['date']}", "", results["machine"], ""]
    if results.get("calls"):
        fit = fitted(results["calls"])
        lines += [
            f"Mean oracle calls (checks included) at δ = 10⁻⁶ over N = 2⁶ … 2²⁰ and k = 1 … N/8, {fit['settings']} "
            f"settings: **{fit['c1']:.3f} √(N k) + {fit['c2']:.3f} √N ln(1/δ)**. Relative residuals: root mean square "
            f"{fit['rms']:.2%}, largest {fit['largest']:.2%} at N = {fit['where'][0]:,}, k = {fit['where'][1]:,}.",
            "",
        ]
        lines += [
            f"- calls grow as {one['of']}: exponent {one['exponent']:.3f} (± {one['half_interval']:.3f}, 95 %)"
            for one in exponents(results["calls"])
        ]
        lines += ["", "| N | k | oracle calls | of these, verdict | measurements | missed | ms to simulate |"]
        lines += ["| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
        for r in results["calls"]:
            if r["N"] in (64, 1024, 16_384, 2**20) and r["k"] in (0, 1, r["N"] // 64, r["N"] // 8, r["N"]):
                lines.append(
                    f"| {r['N']:,} | {r['k']:,} | {r['calls']:,.1f} | {r['verdict']:,.1f} | {r['measurements']:,.1f} | "
                    f"{r['missed_items']} | {1000 * r['seconds_per_search']:.3g} |"
                )
        lines.append("")
    if results.get("price"):
        lines += ["What it costs to know that nothing is left, in units of √N:", ""]
        lines += ["| N | δ | phases | calls / √N |", "| ---: | ---: | ---: | ---: |"]
        lines += [f"| {r['N']:,} | {r['delta']:g} | {r['phases']} | {r['over_root_n']:.2f} |" for r in results["price"]]
        lines.append("")
    if results.get("failures"):
        lines += ["Searches at δ = 0.05 that missed something:", ""]
        lines += ["| N | k | searches | missed something | by the formula | p | none, one, two, three missed |"]
        lines += ["| ---: | ---: | ---: | ---: | ---: | ---: | --- |"]
        lines += [
            f"| {r['N']:,} | {r['k']:,} | {r['searches']:,} | {r['rate']:.4f} | {r['rate_by_the_formula']:.4f} | "
            f"{r['p_value']:.2f} | {', '.join(map(str, r['missed_0_1_2_3']))} |"
            for r in results["failures"]
        ]
        lines.append("")
    if results.get("engines"):
        lines += ["Training on 1000 random samples, d = 64, float32: oracle calls (`data`: inner products).", ""]
        lines += ["| engine | m | m·n | fired | first iteration | a later one | missed | s to simulate a step |"]
        lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
        lines += [
            f"| {r['engine']} | {r['width']:,} | {r['pairs']:,} | {r['active_pairs']:,} | "
            f"{r['first']:,} | {r['later']:,} | {'' if r['missed_pairs'] is None else r['missed_pairs']} | "
            f"{r['seconds_simulating_a_step']:.2f} |"
            for r in results["engines"]
        ]
        lines.append("")
    if results.get("oracle"):
        lines += ["One call of the arithmetic oracle:", ""]
        lines += ["| points | d | bits | qubits | Toffolis | without look-ups | T gates | depth at most |"]
        lines += ["| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
        lines += [
            f"| {r['points']:,} | {r['d']} | {r['bits']} | {r['qubits']} | {r['toffolis']:,} | "
            f"{r['without_lookups']:,} | {r['t_count']:,} | {r['depth_at_most']:,} |"
            for r in results["oracle"]
        ]
    return "\n".join(lines).rstrip() + "\n"


PARTS = {
    "calls": run_calls,
    "price": run_price,
    "failures": run_failures,
    "engines": run_engines,
    "oracle": run_oracle,
}


if __name__ == "__main__":
    run_parts("quantum", PARTS, to_markdown, f"numba {version('numba')}")
