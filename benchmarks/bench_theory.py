"""The theory beside practice: wide networks against kernel regression, λ of 20,000 rows, what a certificate costs.

    python benchmarks/bench_theory.py [--quick] [--only PART]

Parts: costs (an iteration of Algorithms 1 and 2 beside the running-time lemmas), widths (what α costs in width),
covered (a run that the theorem covers at the paper's threshold), limit (distance of trained networks from H^cts
regression, by width), large (δ, H^cts, λ and kernel regression of 20,000 rows: seconds and memory), certificate (its
processor time beside that of the training it watches). Results and a figure go to benchmarks/results/.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

THREADS = "2"
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, THREADS)

import datasets  # noqa: E402 - after the thread counts
import numpy as np  # noqa: E402
from bench_step import exponent  # noqa: E402
from paper_costs import (  # noqa: E402
    costs_markdown,
    covered_markdown,
    draw_costs,
    run_costs,
    run_covered,
    run_widths,
    widths_markdown,
)
from parts import RESULTS, run_parts  # noqa: E402

from fireset import ShiftedReLUNetwork, train  # noqa: E402
from fireset.theory import Certificate, KernelRegression, measure_separation, shifted_ntk  # noqa: E402
from fireset.theory.spectrum import ShiftedCholesky, extreme_eigenvalues  # noqa: E402

ROWS, NEW_ROWS, COLUMNS, THRESHOLD, STEPS = 30, 200, 10, 1.0, 400


def run_limit(quick: bool) -> list[dict]:
    """The trained network minus f_0 + H(z, X) H⁻¹ (y − f_0(X)), at rows that it was not trained on."""
    rng = np.random.default_rng(0)
    X, Z = (rng.standard_normal((n, COLUMNS)) for n in (ROWS, NEW_ROWS))
    X, Z = (A / np.linalg.norm(A, axis=1, keepdims=True) for A in (X, Z))
    y = np.sin(3 * X[:, :1]) + X[:, 1:2] * X[:, 2:3]
    spectrum = extreme_eigenvalues(shifted_ntk(X, THRESHOLD))
    rate = 1.0 / spectrum.largest
    rows = []
    for m, seeds in ((1_000, 5), (10_000, 5), (100_000, 5), *(() if quick else ((1_000_000, 3),))):
        gaps, sizes, errors = [], [], []
        for seed in range(seeds):
            network = ShiftedReLUNetwork.initialize(m, COLUMNS, threshold=THRESHOLD, seed=seed, dtype="float64")
            first_X, first_Z = network.predict(X), network.predict(Z)
            result = train(network, X, y, learning_rate=rate, max_iter=STEPS, tol=0, engine="data")
            limit = first_Z + KernelRegression(THRESHOLD).fit(X, y - first_X).predict(Z)
            gaps.append(float(np.sqrt(np.mean((network.predict(Z) - limit) ** 2))))
            sizes.append(float(np.sqrt(np.mean(limit**2))))
            errors.append(float(np.sqrt(2 * result.loss)))
        row = {"m": m, "seeds": seeds, "distance": float(np.mean(gaps)), "largest": max(gaps)}
        row |= {"size": float(np.mean(sizes)), "training_error": max(errors)}
        row |= {"rate": rate, "lambda": spectrum.smallest, "lambda_max": spectrum.largest, "gaps": gaps}
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def run_large(quick: bool) -> list[dict]:
    """Seconds and the process's peak memory, part by part."""
    rows = []
    for n, d in ((2_000, 20), *(() if quick else ((20_000, 20),))):
        X, y = datasets.random_sphere(n, d)
        clock = [time.perf_counter()]

        def lap(clock=clock) -> float:
            clock.append(time.perf_counter())
            return clock[-1] - clock[-2]

        delta = measure_separation(X).distance
        row: dict = {"n": n, "d": d, "delta": delta, "separation_seconds": lap()}
        kernel = shifted_ntk(X, 2.0)
        row["kernel_seconds"] = lap()
        factor = ShiftedCholesky(kernel, overwrite=True)
        row["factor_seconds"] = lap()
        row |= {"lambda": factor.smallest(), "lambda_max": factor.largest, "krylov_seconds": lap()}
        regression = KernelRegression(2.0).fit(X, y, factor=factor)
        regression.predict(X[:100])
        row["regression_seconds"] = lap()
        row["peak_gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def run_certificate(quick: bool) -> list[dict]:
    """Processor seconds, which do not depend on who else uses the machine: alone, and with a certificate."""
    rows = []
    for n, d, m in ((500, 20, 20_000), *(() if quick else ((1_000, 64, 100_000),))):
        X, y = datasets.random_sphere(n, d)
        row: dict = {"n": n, "d": d, "m": m, "iterations": 300}
        for warm in (True, False):
            for name, callbacks in (("alone", []), ("certified", [Certificate()])):
                network = ShiftedReLUNetwork.initialize(m, d)
                started = time.process_time()
                steps = 2 if warm else row["iterations"]
                train(network, X, y, max_iter=steps, tol=0, engine="data", callbacks=callbacks)
                row[name] = time.process_time() - started
        row["share"] = row["certified"] / row["alone"] - 1.0
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def to_markdown(results: dict) -> str:
    lines = [f"# Theory beside practice, {results['date']}", "", results["machine"], ""]
    for part, write in (("costs", costs_markdown), ("widths", widths_markdown), ("covered", covered_markdown)):
        if results.get(part):
            lines += write(results[part])
    if results.get("limit"):
        limit = results["limit"]
        lines += [
            f"Trained networks and kernel regression with H^cts: {ROWS} random rows in {COLUMNS} dimensions, b = "
            f"{THRESHOLD:g}, {STEPS} steps of η = 1/λ_max, float64; root mean square over {NEW_ROWS} new rows of the "
            f"difference, where predictions have {limit[-1]['size']:.2f}. λ = {limit[0]['lambda']:.3g}, λ_max = "
            f"{limit[0]['lambda_max']:.3g}.",
            "",
            "| m | networks | mean distance | largest | ‖err‖ after training, at most |",
            "| ---: | ---: | ---: | ---: | ---: |",
        ]
        lines += [
            f"| {r['m']:,} | {r['seeds']} | {r['distance']:.5f} | {r['largest']:.5f} | {r['training_error']:.1e} |"
            for r in limit
        ]
        fit = exponent("m", [r["m"] for r in limit], [r["distance"] for r in limit])
        lines += ["", f"The distance falls as m^{fit['exponent']:.2f} (± {fit['half_interval']:.2f}, 95 %).", ""]
    if results.get("large"):
        lines += ["Random rows, b = 2; seconds, and the peak memory of the process:", ""]
        lines += ["| n | d | δ | H^cts | factor | λ by Krylov | regression | λ | λ_max | peak GB |"]
        lines += ["| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
        for r in results["large"]:
            seconds = " | ".join(
                f"{r[f'{part}_seconds']:.1f}" for part in ("separation", "kernel", "factor", "krylov", "regression")
            )
            lines.append(
                f"| {r['n']:,} | {r['d']} | {seconds} | {r['lambda']:.4g} | {r['lambda_max']:.4g} | "
                f"{r['peak_gigabytes']:.1f} |"
            )
        lines.append("")
    if results.get("certificate"):
        lines += ["Processor seconds of 300 iterations, engine `data`, alone and with a certificate:", ""]
        lines += ["| n | d | m | alone | certified | more |", "| ---: | ---: | ---: | ---: | ---: | ---: |"]
        lines += [
            f"| {r['n']:,} | {r['d']} | {r['m']:,} | {r['alone']:.1f} | {r['certified']:.1f} | {r['share']:.0%} |"
            for r in results["certificate"]
        ]
    return "\n".join(lines) + "\n"


def draw(results: dict, path: Path) -> None:
    import matplotlib.pyplot as plt

    limit = results["limit"]
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for row in limit:
        axes.plot([row["m"]] * len(row["gaps"]), row["gaps"], "o", color="#2a6f97", alpha=0.5)
    widths = np.array([row["m"] for row in limit])
    axes.plot(widths, [row["distance"] for row in limit], color="#2a6f97", label="mean distance")
    axes.plot(widths, limit[0]["distance"] * np.sqrt(widths[0] / widths), "--", color="#b5651d", label="m^(−1/2)")
    axes.set(xscale="log", yscale="log", xlabel="neurons m", ylabel="distance from kernel regression (RMS)")
    axes.set_title("Trained networks approach regression with H^cts")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    run_parts(
        "theory",
        {
            "costs": run_costs,
            "widths": run_widths,
            "covered": run_covered,
            "limit": run_limit,
            "large": run_large,
            "certificate": run_certificate,
        },
        to_markdown,
    )
    written = RESULTS / "theory.json"
    if written.exists() and "--quick" not in sys.argv:
        draw_costs(json.loads(written.read_text())["costs"], RESULTS.parent.parent / "docs" / "costs.png")
    if written.exists() and not {"--quick", "--only"} & set(sys.argv):
        draw(json.loads(written.read_text()), RESULTS.parent.parent / "docs" / "theory.png")
