"""One gradient step: the data engine beside dense peers, in one process, alternating, two threads each.

    python benchmarks/bench_step.py [--only NAME] [--quick]

The data engine's seconds are amortized over all its iterations from initialization at learning_rate "auto", refreshes
included; preprocessing and compiling are listed apart. Peak memory comes from a process of its own for each contender.
Results go to benchmarks/results/ as JSON, Markdown and a picture.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

THREADS = "2"
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, THREADS)
os.environ.setdefault("XLA_FLAGS", f"--xla_cpu_multi_thread_eigen=true intra_op_parallelism_threads={THREADS}")

import datasets  # noqa: E402 - after the thread counts
import numpy as np  # noqa: E402
import peers  # noqa: E402
from parts import RESULTS, machine  # noqa: E402

from fireset import ShiftedReLUNetwork, Trainer  # noqa: E402
from fireset._util.gaussian import upper_tail  # noqa: E402
from fireset._util.parallel import one_blas_thread  # noqa: E402
from fireset.engines import create  # noqa: E402
from fireset.network import choose_threshold  # noqa: E402
from fireset.theory import largest_eigenvalue  # noqa: E402
from fireset.training.precompile import compile_kernels  # noqa: E402

CASES = {
    "random n=1000 d=64 m=100,000": {
        "data": lambda: datasets.random_sphere(1000, 64),
        "width": 100_000,
        "iterations": 200,
        "peers": ["PyTorch", "Jax", "BlockedNumPy", "ScikitLearn"],
        "targets": {"PyTorch": 40, "Jax": 20, "BlockedNumPy": 12},
    },
    "random n=1000 d=256 m=50,000": {
        "data": lambda: datasets.random_sphere(1000, 256),
        "width": 50_000,
        "iterations": 200,
        "peers": ["PyTorch", "Jax", "BlockedNumPy"],
        "targets": {},
    },
    "random n=1000 d=16 m=1,000,000": {
        "data": lambda: datasets.random_sphere(1000, 16),
        "width": 1_000_000,
        "iterations": 200,
        "peers": ["BlockedNumPy"],
        "targets": {"BlockedNumPy": 20},
    },
    "random n=60,000 d=784 m=10,000": {
        "data": lambda: datasets.random_sphere(60_000, 784),
        "width": 10_000,
        "iterations": 200,
        "peers": ["BlockedNumPy"],
        "targets": {"BlockedNumPy": 6},
    },
    "digits, 10 outputs, m=100,000": {
        "data": datasets.digits,
        "width": 100_000,
        "iterations": 300,
        "peers": ["PyTorch", "Jax", "BlockedNumPy"],
        "targets": {"PyTorch": 20},
        "whole_curve": "PyTorch",  # all its losses are compared, not only those of the timed steps
    },
    "one-hot table n=5000 d=121 m=30,000": {
        "data": datasets.one_hot_table,
        "width": 30_000,
        "iterations": 200,
        "peers": ["PyTorch", "Jax", "BlockedNumPy"],
        "targets": {},
    },
}
ROUNDS = 5


class DataEngine:
    """The contender: training with the data engine, an iteration at a time."""

    name = "fireset, engine data"

    def __init__(self, network, X, y, rate):
        self.trainer = Trainer(network, X, y, engine="data", learning_rate=rate, tol=0)

    def step(self) -> float:
        return self.trainer.step().loss


def rate_for(network, X) -> float:
    """What learning_rate="auto" starts with: 1/λ_max of the fire-set kernel."""
    return 1.0 / largest_eigenvalue(X, network.output_weights, network.fire_sets(X))


def sgemm_rate(size: int = 3072) -> float:
    """Floating-point operations a second of a square float32 product."""
    A = np.random.default_rng(0).random((size, size), np.float32)
    A @ A
    best = min(_timed(lambda: A @ A) for _ in range(3))
    return 2.0 * size**3 / best


def _timed(function) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def run_case(name: str, case: dict, quick: bool) -> dict:
    X, y = case["data"]()
    network = ShiftedReLUNetwork.initialize(case["width"], X.shape[1], y.shape[1])
    iterations = max(ROUNDS, case["iterations"] // (10 if quick else 1))
    rate = rate_for(network, X)
    started = time.perf_counter()
    compile_kernels("data", network.dtype, several_outputs=network.n_outputs > 1)
    compiling = time.perf_counter() - started
    contenders = {peer: getattr(peers, peer)(network, X, y, rate) for peer in case["peers"]}
    for contender in contenders.values():
        contender.step()  # the first access to memory is not part of a step
    contenders = {peer: getattr(peers, peer)(network, X, y, rate) for peer in case["peers"]}
    dense = create("dense")  # not network.predict, which may search an index in low dimension
    dense.start(network, X)
    blocked_forward = min(_timed(dense.forward) for _ in range(2))
    mine = ShiftedReLUNetwork(network.weights.copy(), network.output_weights, network.threshold)
    ours = DataEngine(mine, X, y, rate)
    preprocessing = ours.trainer.start_seconds
    seconds: dict[str, list[float]] = {peer: [] for peer in contenders}
    losses: dict[str, list[float]] = {peer: [] for peer in contenders}
    our_seconds, our_losses = [], []
    gemm = []
    for _ in range(ROUNDS):
        gemm.append(sgemm_rate())
        for peer, contender in contenders.items():
            for _ in range(1 if len(X) * network.width > 3e8 else 3):
                seconds[peer].append(_timed(lambda c=contender, p=peer: losses[p].append(c.step())))
        with one_blas_thread():  # as train() does
            our_seconds += [_timed(lambda: our_losses.append(ours.step())) for _ in range(iterations // ROUNDS)]
    active, refreshed = (ours.trainer.history.column(name) for name in ("active_pairs", "refreshes"))
    follower = case.get("whole_curve")
    while follower and len(losses[follower]) < len(our_losses):
        losses[follower].append(contenders[follower].step())
    off_double = {}
    if follower:
        exact = losses_in_double(network, X, y, rate, len(our_losses))
        off_double = {"ours": difference(our_losses, exact), follower: difference(losses[follower], exact)}
    per_step = float(np.mean(our_seconds))
    d = X.shape[1]
    active_flops = 4.0 * d * float(np.mean(active))  # a multiplication and an addition, forward and backward
    rows = {
        peer: {
            "name": getattr(peers, peer).name,
            "seconds": float(np.mean(seconds[peer])),
            "ratio": float(np.mean(seconds[peer])) / per_step,
            "target": case["targets"].get(peer),
            "largest_loss_difference": None if peer == "ScikitLearn" else difference(losses[peer], our_losses),
            "steps_compared": min(len(losses[peer]), len(our_losses)),
            "peak_megabytes": peak_memory(name, peer),
        }
        for peer in contenders
    }
    return {
        "case": name,
        "n": len(X),
        "d": d,
        "outputs": y.shape[1],
        "width": network.width,
        "iterations": len(our_seconds),
        "seconds": per_step,
        "seconds_without_refreshes": float(np.median(our_seconds)),
        "preprocessing_seconds": preprocessing,
        "preprocessing_in_forward_passes": preprocessing / blocked_forward,
        "compile_seconds": compiling,
        "active_fraction": float(np.mean(active)) / (len(X) * network.width),
        "refreshed_per_iteration": float(np.mean(refreshed)),
        "active_rate_of_sgemm": active_flops / per_step / float(np.median(gemm)),
        "active_rate_of_sgemm_without_refreshes": active_flops / float(np.median(our_seconds)) / float(np.median(gemm)),
        "sgemm_gigaflops": float(np.median(gemm)) / 1e9,
        "losses_off_double_precision": off_double,
        "first_loss": our_losses[0],
        "last_loss": our_losses[-1],
        "peak_megabytes": peak_memory(name, "DataEngine"),
        "memory_allowed_megabytes": allowed_memory(network, X, ours),
        "peers": rows,
    }


def difference(losses: list[float], others: list[float]) -> float:
    """The largest relative difference of two loss curves, as far as both go."""
    return float(max(abs(a / b - 1) for a, b in zip(losses, others, strict=False)))


def losses_in_double(network, X, y, rate: float, steps: int) -> list[float]:
    """The curve that both float32 curves are roundings of, by the data engine in float64."""
    double = ShiftedReLUNetwork(
        network.weights.astype(np.float64), network.output_weights.astype(np.float64), network.threshold
    )
    ours = DataEngine(double, X.astype(np.float64), y, rate)
    with one_blas_thread():
        return [ours.step() for _ in range(steps)]


def allowed_memory(network, X, ours) -> float:
    """The budget: 3 × W + 12 bytes per candidate pair + 1.2 × the input + 300 MB."""
    candidates = sum(int(chunk.lists.counts.sum()) for chunk in ours.trainer.engine._passes.chunks)
    return (3 * network.weights.nbytes + 12 * candidates + 1.2 * X.nbytes) / 1e6 + 300


def peak_memory(case: str, contender: str) -> float:
    """Peak resident megabytes of three steps of one contender in a process of its own."""
    command = [sys.executable, __file__, "--measure-memory", case, contender]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure_memory(case: str, contender: str) -> None:
    X, y = CASES[case]["data"]()
    network = ShiftedReLUNetwork.initialize(CASES[case]["width"], X.shape[1], y.shape[1])
    one = DataEngine(network, X, y, 0.1) if contender == "DataEngine" else getattr(peers, contender)(network, X, y, 0.1)
    for _ in range(3):
        one.step()
    # Not getrusage: its maximum is inherited from the parent process.
    status = Path("/proc/self/status").read_text()
    print(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1e3)


def exponent(name: str, sizes: list[int], seconds: list[float]) -> dict:
    """Slope of log time over log size, with its 95 % interval."""
    from scipy.stats import linregress, t

    fit = linregress(np.log(sizes), np.log(seconds))
    half = float(t.ppf(0.975, len(sizes) - 2)) * fit.stderr
    return {"of": name, "sizes": sizes, "seconds": seconds, "exponent": fit.slope, "half_interval": half}


def run_scaling(quick: bool) -> list[dict]:
    iterations = 10 if quick else 60
    widths = [10_000, 30_000, 100_000] if quick else [10_000, 30_000, 100_000, 300_000, 1_000_000]
    counts = [300, 1000, 3000] if quick else [300, 1000, 3000, 10_000, 30_000]
    by_width = [_one_run(1000, 16, m, iterations) for m in widths]
    by_count = [_one_run(n, 16, 30_000, iterations) for n in counts]
    return [exponent("m", widths, by_width), exponent("n", counts, by_count)]


def _one_run(n: int, d: int, m: int, iterations: int) -> float:
    X, y = datasets.random_sphere(n, d)
    network = ShiftedReLUNetwork.initialize(m, d)
    engine = DataEngine(network, X, y, rate_for(network, X))
    with one_blas_thread():
        return float(np.mean([_timed(engine.step) for _ in range(iterations)]))


def to_markdown(results: dict) -> str:
    lines = ["# One gradient step", ""]
    for case in results["cases"]:
        lines += [
            f"## {case['case']}",
            "",
            f"{case['date']}, {case['machine']} {case['iterations']} iterations, "
            f"{case['active_fraction']:.2%} of the pairs fire, "
            f"{case['refreshed_per_iteration']:.0f} neurons refreshed an iteration; "
            f"preprocessing {case['preprocessing_seconds']:.2f} s, {case['preprocessing_in_forward_passes']:.1f} dense "
            f"forward passes; "
            f"rate on fired pairs {case['active_rate_of_sgemm']:.1%} of sgemm's {case['sgemm_gigaflops']:.0f} GFlop/s "
            f"({case['active_rate_of_sgemm_without_refreshes']:.1%} in the median iteration).",
            "",
            "| contender | seconds per iteration | times that of fireset | target | peak MB | losses differ by |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
            f"| fireset, engine data | {case['seconds']:.4f} | 1 | | {case['peak_megabytes']:.0f} "
            f"(allowed {case['memory_allowed_megabytes']:.0f}) | |",
        ]
        for row in case["peers"].values():
            target = f"{row['target']}" if row["target"] else ""
            difference = ""
            if row["largest_loss_difference"] is not None:
                difference = f"{row['largest_loss_difference']:.1e} in {row['steps_compared']} steps"
            lines.append(
                f"| {row['name']} | {row['seconds']:.4f} | {row['ratio']:.1f} | {target} | "
                f"{row['peak_megabytes']:.0f} | {difference} |"
            )
        off = case.get("losses_off_double_precision")
        if off:
            said = [f"{'fireset' if who == 'ours' else who} {value:.1e}" for who, value in off.items()]
            lines += ["", f"Off the loss curve in float64, over all steps, relatively: {', '.join(said)}."]
        lines.append("")
    for fit in results["scaling"]:
        lines.append(growth(fit))
    return "\n".join(lines) + "\n"


def growth(fit: dict) -> str:
    """State the fitted exponent, for m beside that of the active pairs at the same widths."""
    text = f"Time grows as {fit['of']}^{fit['exponent']:.2f} (± {fit['half_interval']:.2f}, 95 %)"
    if fit["of"] != "m":
        return f"{text} at m = 30,000, d = 16."
    pairs = [m * upper_tail(choose_threshold(m)) for m in fit["sizes"]]
    active = exponent("m", fit["sizes"], pairs)["exponent"]
    return (
        f"{text} at n = 1,000, d = 16, where the active pairs grow as m^{active:.2f}: small widths are "
        "dominated by costs that do not grow. `make bench-theory` has the terms of the paper's running-time lemmas."
    )


def draw(results: dict, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, both = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for axes, fit in zip(both, results["scaling"], strict=True):
        sizes, seconds = np.array(fit["sizes"], float), np.array(fit["seconds"])
        axes.loglog(sizes, seconds, "o-", color="#d1495b", label=f"measured: {fit['of']}^{fit['exponent']:.2f}")
        axes.loglog(sizes, seconds[0] * sizes / sizes[0], ":", color="#30363d", label="linear, as a dense step")
        if fit["of"] == "m":
            axes.loglog(
                sizes, seconds[0] * (sizes / sizes[0]) ** 0.8, "--", color="#00798c", label="the paper's m^(4/5)"
            )
        axes.set(xlabel=fit["of"], ylabel="seconds per iteration")
        axes.legend(frameon=False)
        axes.grid(alpha=0.25, which="both", lw=0.5)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true", help="with --only: replace these cases of the written results")
    parser.add_argument("--measure-memory", nargs=2)
    options = parser.parse_args()
    if options.measure_memory:
        measure_memory(*options.measure_memory)
        return
    results = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "cases": [], "scaling": []}
    for name, case in CASES.items():
        if options.only in name:
            print(name, file=sys.stderr, flush=True)
            measured = {"date": results["date"], "machine": results["machine"]}
            results["cases"].append({**run_case(name, case, options.quick), **measured})
            print(to_markdown({**results, "cases": results["cases"][-1:]}), flush=True)
    if not options.only:
        results["scaling"] = run_scaling(options.quick)
        print(to_markdown({**results, "cases": []}))
    if options.quick or (options.only and not options.write):
        return
    RESULTS.mkdir(exist_ok=True)
    written = RESULTS / "step.json"
    if options.only:
        earlier, own = json.loads(written.read_text()), {case["case"]: case for case in results["cases"]}
        results = {**earlier, "cases": [own.get(case["case"], case) for case in earlier["cases"]]}
    written.write_text(json.dumps(results, indent=1))
    (RESULTS / "step.md").write_text(to_markdown(results))
    draw(results, RESULTS / "step.png")


if __name__ == "__main__":
    main()
