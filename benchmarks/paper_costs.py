"""What an iteration of Algorithms 1 and 2 costs, by counters and processor time, beside the running-time lemmas.

Parts of ``bench_theory.py``: ``costs`` (the three terms of the lemmas, fitted exponents, time beside a dense step),
``widths`` (what α costs in width) and ``covered`` (a run that meets all assumptions at the paper's threshold).
"""

import json
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np
from bench_step import exponent
from figures import ALGORITHMS, cost_cells

from fireset import ShiftedReLUNetwork, train
from fireset._util.parallel import one_blas_thread
from fireset.engines import StepRule, create
from fireset.theory import Certificate, bounds, largest_eigenvalue, least_width

WIDTHS = (1_000, 3_162, 10_000, 31_623, 100_000, 316_228, 1_000_000)
FITTED_FROM = {10: 10_000, 1000: 1_000}  # by the number of rows n
DIMENSIONS = (2, 3, 4, 16)
WARM_UP, ITERATIONS, SECONDS = 5, 20, 1.5  # per combination: iterations that are timed, at most, and their time
_SLOWEST_PAIRS = 3e8  # n·m beyond which a dense step and radius 0 are left out


def rows_and_network(n: int, d: int, m: int) -> tuple[np.ndarray, np.ndarray, ShiftedReLUNetwork]:
    """Random rows and targets, and the paper's network: b = √(0.4 ln m)."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, rng.standard_normal((n, 1)), ShiftedReLUNetwork.initialize(m, d, seed=0)


def measure(name: str, options: dict, n: int, d: int, m: int) -> dict:
    """Counts and processor time of an iteration, after some iterations at η = 1/λ_max."""
    X, y, network = rows_and_network(n, d, m)
    engine = create(name, **options)
    started = time.process_time()
    engine.start(network, X)
    start_ms = 1e3 * (time.process_time() - started)
    rule = StepRule(1.0 / largest_eigenvalue(X, network.output_weights, network.fire_sets(X)))
    counted: dict[str, list[float]] = {
        key: [] for key in ("processor_ms", "wall_ms", "tested", "queried", "updated", "active")
    }
    clock = time.perf_counter()
    with one_blas_thread():
        warm_up = 1 if name == "dense" else WARM_UP
        for t in range(warm_up + ITERATIONS):
            if t >= warm_up + 3 and time.perf_counter() - clock > SECONDS:
                break
            work = engine.work
            wall, processor, tests = time.perf_counter(), time.process_time(), work.inner_products
            residual = engine.forward() - y
            tested, active = work.inner_products - tests, work.active_pairs
            queried, updated = work.inner_products + work.nodes_visited, work.refreshes
            engine.step(residual, rule)
            if t >= warm_up:
                counted["processor_ms"].append(1e3 * (time.process_time() - processor))
                counted["wall_ms"].append(1e3 * (time.perf_counter() - wall))
                counted["tested"].append(tested)
                counted["active"].append(active)
                counted["queried"].append(work.inner_products + work.nodes_visited - queried)
                counted["updated"].append(work.refreshes - updated)
    found = {key: float(np.median(values)) for key, values in counted.items()}
    found["best_wall_ms"] = float(np.min(counted["wall_ms"]))
    live = len(getattr(engine, "live_neurons", ()))
    return {"m": m, **found, "start_ms": start_ms, "live": live, "index": engine.index_kind(network, n)}


def run_costs(quick: bool) -> list[dict]:
    """One row for each algorithm, radius, d and n; cells for each m."""
    rows = []
    for n, d in product(FITTED_FROM, (3, 16) if quick else DIMENSIONS):
        widths = [m for m in WIDTHS if not quick or m <= 100_000]
        for name in ("dense", *ALGORITHMS):
            for radius in (0, "auto") if name != "dense" else (None,):
                options = {} if radius is None else {"radius": radius}
                slow = radius != "auto"
                chosen = [m for m in widths if not (slow and n * m > _SLOWEST_PAIRS)]
                measure(name, options, n, d, 2_000)  # compiles the kernels
                cells = [measure(name, options, n, d, m) for m in chosen]
                row = {"n": n, "d": d, "engine": name, "radius": radius, "cells": cells}
                rows.append(row | fitted(row))
                shown = {key: row[key] for key in ("n", "d", "engine", "radius")}
                print(
                    json.dumps({**shown, "ms": [cell["processor_ms"] for cell in cells]}), file=sys.stderr, flush=True
                )
    return rows


def fitted(row: dict) -> dict:
    """Exponents in m of the counts and of the time, with 95 % intervals, and those of the terms of the lemma."""
    cells = [cell for cell in row["cells"] if cell["m"] >= FITTED_FROM[row["n"]]]
    sizes = [cell["m"] for cell in cells]
    if len(sizes) < 3:
        return {"fits": {}, "paper": {}}
    names = [
        "processor_ms",
        "start_ms",
        *(["tested", "queried", "updated", "active"] if row["engine"] != "dense" else []),
    ]
    fits = {}
    for name in names:
        values = [cell[name] for cell in cells]
        if min(values) > 0:
            fit = exponent("m", sizes, values)
            fits[name] = {"exponent": float(fit["exponent"]), "half_interval": float(fit["half_interval"])}
    paper = {}
    if row["engine"] in ALGORITHMS:
        thresholds = [np.sqrt(0.4 * np.log(m)) for m in sizes]
        terms = [
            bounds.iteration_terms(row["n"], m, row["d"], b)[row["engine"]]
            for m, b in zip(sizes, thresholds, strict=True)
        ]
        paper = {name: float(exponent("m", sizes, [each[name] for each in terms])["exponent"]) for name in terms[0]}
    return {"fits": fits, "paper": paper}


def run_widths(quick: bool) -> list[dict]:  # noqa: ARG001 - seconds
    """The least sufficient width by α for n orthogonal rows, ‖err(0)‖ = √n: what a higher threshold costs."""
    rows = []
    for n in (1, 2, 5, 10):
        X, y = np.eye(max(2, n))[:n], np.ones(n)
        least = {
            str(alpha): least_width(X, y, alpha=alpha, error=float(np.sqrt(n))).width
            for alpha in (1.0, 0.8, 0.6, 0.4, 0.2)
        }
        rows.append({"n": n, "least": least})
    return rows


def run_covered(quick: bool) -> list[dict]:
    """A run in which all assumptions and all claims hold at b = √(0.4 ln m): targets near the initial predictions."""
    X, distance = np.eye(3)[:2], 1e-4
    m = 200_000
    required = least_width(X, np.zeros(2), error=np.sqrt(2) * distance)
    network = ShiftedReLUNetwork.initialize(m, 3, seed=0, dtype="float64")
    y = network.predict(X) + distance * np.array([[1.0], [-1.0]])
    certificate = Certificate(every=1)
    started = time.process_time()
    steps = 20 if quick else 100
    result = train(
        network, X, y, engine="data", learning_rate="theory", momentum=0, max_iter=steps, tol=0, callbacks=[certificate]
    )
    seconds = time.process_time() - started
    report = certificate.report()
    return [
        {
            "n": 2,
            "m": m,
            "least_width": required.width,
            "threshold": network.threshold,
            "distance": distance,
            "steps": steps,
            "active_fraction": result.history[-1].active_fraction,
            "assumptions": len(report.assumptions),
            "unmet": [assumption.key for assumption in report.assumptions if not assumption.met],
            "claims": len(report.claims),
            "failed": report.failed,
            "not_judged": [claim.key for claim in report.claims if claim.holds is None],
            "processor_seconds": seconds,
        }
    ]


# Markdown


def costs_markdown(rows: list[dict]) -> list[str]:
    lines = [
        "## Cost of an iteration",
        "",
        "Random rows on the sphere, one output, the paper's network with b = √(0.4 ln m), float32, plain descent "
        "with η = 1/λ_max; medians of iterations 6 to 25 at most. Times are processor time of both threads, which "
        "other processes disturb less than the clock. Radius 0 is the algorithm to the letter. Counts of an "
        "iteration: *active* pairs, Σ_i k_i; pairs *tested* by the passes; *queried*: nodes and points visited by "
        "half-space queries; *updated*: moves in the index (Algorithm 1) or neurons queried again (Algorithm 2). "
        "Exponents in m with 95 % intervals, fitted from m = 10⁴ (n = 10) or 10³ (n = 1,000) on; in parentheses the "
        "exponent of the term of the running-time lemma at the same sizes. The gradient term is d · active. "
        "Combinations with radius 0 and dense steps are left out beyond n·m = 3·10⁸.",
        "",
    ]
    for n in FITTED_FROM:
        own = [row for row in rows if row["n"] == n]
        if not own:
            continue
        lines += [f"### n = {n:,}", ""]
        head = ["algorithm", "radius", "d", "index", "active", "tested", "queried", "updated", "time"]
        shown = [10_000, 100_000, 1_000_000]
        head += [f"ms, m = {m:,}" for m in shown] + ["live"]
        lines += ["| " + " | ".join(head) + " |", "| --- | --- |" + " ---: |" * (len(head) - 2)]
        for row in own:
            lines.append("| " + " | ".join(cost_cells(row, shown)) + " |")
        lines.append("")
    lines += _start_lines(rows)
    return lines


def draw_costs(rows: list[dict], path: Path) -> None:
    """Draw the processor time of an iteration by m for n = 10, d = 3, and the slope of the paper."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
    styles = {"dense": ("#888888", None, "dense"), "weights": ("#b5651d", "auto", "Algorithm 1")}
    styles["data"] = ("#2a6f97", "auto", "Algorithm 2")
    for engine, (color, radius, label) in styles.items():
        (row,) = (r for r in rows if (r["n"], r["d"], r["engine"], r["radius"]) == (10, 3, engine, radius))
        sizes = [cell["m"] for cell in row["cells"]]
        axes.plot(sizes, [cell["processor_ms"] for cell in row["cells"]], "o-", color=color, label=label, markersize=4)
    slope = np.array([1e4, 1e6])
    axes.plot(slope, 0.25 * (slope / 1e4) ** 0.8, "--", color="black", linewidth=1, label="slope m^0.8")
    axes.set(xscale="log", yscale="log", xlabel="neurons m", ylabel="ms per iteration")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _start_lines(rows: list[dict]) -> list[str]:
    """Initialization of Algorithm 2: m log n + m^(4/5) n."""
    own = [row for row in rows if row["engine"] == "data" and row["radius"] == 0 and "start_ms" in row["fits"]]
    parts = [
        f"n = {row['n']:,}, d = {row['d']}: {row['fits']['start_ms']['exponent']:.2f} ± "
        f"{row['fits']['start_ms']['half_interval']:.2f} ({row['cells'][-1]['start_ms']:,.0f} ms at m = "
        f"{row['cells'][-1]['m']:,})"
        for row in own
    ]
    text = "Initialization of Algorithm 2, which the lemma bounds by m log n + m^(4/5) n, exponent in m of the time: "
    return [text + "; ".join(parts) + ".", ""] if parts else []


def widths_markdown(rows: list[dict]) -> list[str]:
    alphas = list(rows[0]["least"])
    lines = [
        "## What α costs in width",
        "",
        "The least m that meets every assumption of the convergence lemma (`theory.least_width`), for n orthogonal "
        "rows with ‖err(0)‖ = √n, b = √(0.5 (1 − α) ln m) and m^((3+α)/4) active pairs per row. α = 1 is plain ReLU,"
        " α = 0.2 the headline's m^(4/5).",
        "",
        "| n | " + " | ".join(f"α = {alpha}" for alpha in alphas) + " |",
        "| ---: |" + " ---: |" * len(alphas),
    ]
    lines += [f"| {row['n']} | " + " | ".join(f"{width:.2g}" for width in row["least"].values()) + " |" for row in rows]
    return [*lines, ""]


def covered_markdown(rows: list[dict]) -> list[str]:
    (r,) = rows
    unmet = ", ".join(r["unmet"]) or "none"
    failed = ", ".join(r["failed"]) or "none"
    not_judged = ", ".join(r["not_judged"]) or "none"
    return [
        "## A run that the theorem covers, at the paper's threshold",
        "",
        f"n = {r['n']} orthogonal rows, m = {r['m']:,} (the least sufficient width is {r['least_width']:,.0f}), "
        f"b = √(0.4 ln m) = {r['threshold']:.3f}, targets within {r['distance']:g} of the initial predictions, "
        f"η = λ/(4n²), {r['steps']} steps, float64: {r['active_fraction']:.2%} of the pairs are active. "
        f"Of {r['assumptions']} assumptions not met: {unmet}. Of "
        f"{r['claims']} claims, judged in every iteration, failed: {failed}; not judged: {not_judged}. "
        f"{r['processor_seconds']:.1f} s of processor time, the certificate included.",
        "",
    ]
