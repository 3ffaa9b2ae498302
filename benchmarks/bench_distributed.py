"""Several workers, crashes and a limit on memory, for real: torchrun on loopback, kill -9, peak of the process.

    python benchmarks/bench_distributed.py [--quick] [--only PART]

Parts: workers (1 to 4 of them: weights, work, bytes on the wire), grids (the same for four workers that share the rows,
too), centres (exchanges and sums of a round of Gauss–Newton on centres, with 1 to 8 workers), kills (20 times SIGKILL,
on one process and on a worker of two), blocks (what they cost), memory (n = 60,000, d = 784, m = 10⁵ within 12G). The
bytes on the wire are those of the loopback device in a network namespace of its own, which needs root. Results go to
benchmarks/results/.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

THREADS = "2"
os.environ.setdefault("OMP_NUM_THREADS", THREADS)

import datasets  # noqa: E402 - after the thread counts
import numpy as np  # noqa: E402
from parts import run_parts  # noqa: E402

from fireset import ShiftedReLUNetwork, train  # noqa: E402

PROBLEMS = {"random": (20_000, 1), "digits": (20_000, 10)}  # neurons and outputs
ITERATIONS = (20, 120)  # what 100 iterations cost is what the second has more


def load(problem: str) -> tuple[ShiftedReLUNetwork, np.ndarray, np.ndarray]:
    X, y = datasets.random_sphere(5_000, 32) if problem == "random" else datasets.digits()
    width, outputs = PROBLEMS[problem]
    return ShiftedReLUNetwork.initialize(width, X.shape[1], outputs, dtype="float64"), X.astype(np.float64), y


def work_as_one(problem: str, iterations: int, shape: str, out: Path) -> None:
    """A worker under torchrun: train, and write down what it had and did."""
    from fireset.distributed.process_group import joined_group
    from fireset.distributed.worker_grid import grid, parse_grid

    seen, held = [], {}
    with joined_group() as workers, grid(**parse_grid(shape)) as laid_out:
        groups = {id(group): group for group in (workers, *vars(laid_out).values())}
        network, X, y = load(problem)
        X /= np.linalg.norm(X, axis=1, keepdims=True)

        def look(progress) -> None:
            engine = progress.engine
            while hasattr(engine, "inner"):
                engine = engine.inner
            exchanged = sum(getattr(group, "bytes_exchanged", 0) for group in groups.values())
            seen.append((engine.work.inner_products, engine.work.refreshes, engine.work.active_pairs, exchanged))
            held.update(rows=len(engine.X), neurons=engine.network.width)

        result = train(network, X, y, engine="data", max_iter=iterations, tol=0, momentum=0.9, callbacks=[look])
        last = dict(zip(("work", "refreshes", "active_pairs"), seen[-1], strict=False))
        facts = {**held, **last, "seconds": result.history[-1].seconds}
        facts |= {"bytes": sorted({after[3] - before[3] for before, after in pairwise(seen)})}
        (out / f"{iterations}.{workers.rank}.json").write_text(json.dumps(facts))
        if workers.rank == 0:
            np.save(out / f"{iterations}.npy", network.weights)


def launch(processes: int, *arguments, **options) -> subprocess.Popen:
    """Torchrun in a network namespace of its own; prints the bytes that its loopback device has sent."""
    run = f"{sys.executable} -m torch.distributed.run --nnodes=1 --master-addr=127.0.0.1 --master-port=29511"
    command = f"{run} --nproc-per-node={processes} {' '.join(map(str, arguments))}"
    inside = f"ip link set lo up && {command} && awk '/lo:/ {{print $10}}' /proc/net/dev"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(["unshare", "-n", "sh", "-c", inside], env=environment, text=True, **options)


def run_workers(quick: bool) -> list[dict]:
    return run_shapes([(1, 1), (2, 1), (3, 1), (4, 1)], quick)


def run_grids(quick: bool) -> list[dict]:
    return run_shapes([(4, 1), (2, 2), (1, 4)], quick)


CENTRES = 300
CENTRE_PROBLEM = {"rows": 16 * 4096, "features": 16, "width": 4000}
CENTRE_SHAPES = [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4), (4, 2), (1, 8)]


def fit_on_centres(shape: str, out: Path) -> None:
    """A worker under torchrun: one round on centres; write down the rows of its sums and its exchanges."""
    from fireset.distributed.process_group import joined_group
    from fireset.distributed.worker_grid import grid, parse_grid
    from fireset.training.solvers import NystromGaussNewton

    X, y = datasets.random_sphere(CENTRE_PROBLEM["rows"], CENTRE_PROBLEM["features"])
    options = {"threshold": 1.0, "start": "antisymmetric", "output_scale": 1000.0}
    with joined_group() as workers, grid(**parse_grid(shape)) as laid_out:
        groups = {id(group): group for group in (workers, *vars(laid_out).values())}
        network = ShiftedReLUNetwork.initialize(CENTRE_PROBLEM["width"], X.shape[1], 1, **options)
        solver = NystromGaussNewton(tol=0.03, centres=CENTRES)
        before: list[int] = []

        def exchanged() -> int:
            return sum(getattr(group, "bytes_exchanged", 0) for group in groups.values())

        result = train(network, X, y, solver=solver, tol=0.03, callbacks=[lambda _: before.append(exchanged())])
        first, last = solver._own_blocks()
        facts = {"summed_rows": last - first, "rows": len(solver.run.problem.X), "passes": solver.passes}
        facts |= {"round_bytes": before[1] - before[0], "start_bytes": before[0], "loss": result.loss}
        (out / f"{workers.rank}.json").write_text(json.dumps(facts))


def planned_on_centres(shape: tuple[int, int], rows: int) -> dict:
    """Bytes by docs/distributed.md: a round exchanges sums, coefficients and predictions; the start the weights."""
    neurons, parts = shape
    sums = 8 * sum((hi - lo) * hi for lo, hi in pairwise([0, CENTRES]))  # one tile
    small = 8 * CENTRES * (16 + 1 + 2)  # Rᵀ B P, the gradient, coefficients with outputs at the centres
    arrays = 8 * CENTRES * 9 if parts > 1 else 0  # weights, residuals, curvatures, targets and outputs at the centres
    predictions = 8 * rows + 8 * CENTRES if neurons > 1 or parts == 1 else 0
    round_bytes = predictions + (sums + small + arrays if neurons * parts > 1 else 0)
    width, features = CENTRE_PROBLEM["width"], CENTRE_PROBLEM["features"]
    weights = 4 * width * (features + 1) if neurons > 1 else 0
    centres = 4 * CENTRES * features if parts > 1 else 0
    directions = 8 * (CENTRES * 16 + CENTRES + 1)  # with the numbers of the independent centres
    return {"planned_round_bytes": round_bytes, "planned_start_bytes": weights + centres + directions}


def run_centres(quick: bool) -> list[dict]:
    rows = []
    for shape in CENTRE_SHAPES[:4] if quick else CENTRE_SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            words = "--centres", f"{shape[0]}x{shape[1]}", folder
            one = launch(shape[0] * shape[1], Path(__file__), *words, stdout=subprocess.PIPE)
            out, _ = one.communicate(timeout=1200)
            assert one.returncode == 0
            found = [json.loads(Path(folder, f"{k}.json").read_text()) for k in range(shape[0] * shape[1])]
        most = {name: max(one[name] for one in found) for name in found[0]}
        row = {"grid": f"{shape[0]}x{shape[1]}", **most, "wire_bytes": int(out.split()[-1])}
        row |= {"largest_share_over_mean": most["summed_rows"] * len(found) / sum(one["summed_rows"] for one in found)}
        rows.append(row | planned_on_centres(shape, most["rows"]))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def run_shapes(shapes: list[tuple[int, int]], quick: bool) -> list[dict]:
    """Shares of the neurons and of the rows: weights beside those of the first shape, work and bytes."""
    rows = []
    for problem in ("random",) if quick else PROBLEMS:
        expected = None
        for shape in shapes:
            workers, weights, wire = trained(problem, shape)
            expected = weights if expected is None else expected
            rows.append({"problem": problem, "grid": f"{shape[0]}x{shape[1]}", **measured(workers, weights, expected)})
            rows[-1] |= {"wire_bytes": wire, **planned(problem, shape, max(workers, key=lambda one: one["bytes"][-1]))}
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def trained(problem: str, shape: tuple[int, int]) -> tuple[list[dict], np.ndarray, float]:
    """What each worker wrote down, the weights, and the bytes on the wire in an iteration."""
    processes, sent = shape[0] * shape[1], []
    with tempfile.TemporaryDirectory() as folder:
        for iterations in ITERATIONS:
            words = "--worker", problem, iterations, f"{shape[0]}x{shape[1]}", folder
            one = launch(processes, Path(__file__), *words, stdout=subprocess.PIPE)
            out, _ = one.communicate(timeout=1200)
            assert one.returncode == 0
            sent.append(int(out.split()[-1]))
        last = ITERATIONS[1]
        workers = [json.loads(Path(folder, f"{last}.{rank}.json").read_text()) for rank in range(processes)]
        return workers, np.load(Path(folder, f"{last}.npy")), (sent[1] - sent[0]) / (ITERATIONS[1] - ITERATIONS[0])


def measured(workers: list[dict], weights: np.ndarray, expected: np.ndarray) -> dict:
    held, work, refreshes = ([one[name] for one in workers] for name in ("rows", "work", "refreshes"))
    difference = np.linalg.norm(weights - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return {
        "workers": len(workers),
        "largest_difference": float(np.abs(weights - expected).max() / np.abs(expected).max()),
        "largest_difference_of_a_neuron": float(difference.max()),
        "rows": held,
        "neurons": [one["neurons"] for one in workers],
        "active_pairs": [one["active_pairs"] for one in workers],
        "inner_products": work,
        "largest_share_over_mean": max(work) * len(workers) / sum(work),
        "refreshes": refreshes,
        "largest_refreshes_over_mean": max(refreshes) * len(workers) / max(1, sum(refreshes)),
        "handed_over_bytes": sorted({number for one in workers for number in one["bytes"]}),
        "seconds_per_iteration": workers[0]["seconds"] / ITERATIONS[1],
    }


def planned(problem: str, shape: tuple[int, int], worker: dict) -> dict:
    """Bytes of an iteration by docs/distributed.md: handed over by this worker, and sent in rings by all."""
    network, X, _ = load(problem)
    neurons, rows = shape
    predictions = worker["rows"] * network.n_outputs + 6 if neurons > 1 or rows == 1 else 0
    numbers = worker["neurons"] * network.n_features
    gradients = numbers + -(-numbers // 2**22) + 2 + 6 if rows > 1 else 0
    wire = (neurons - 1) * (len(X) * network.n_outputs + 6 * rows)
    wire += (rows - 1) * (network.weights.size + neurons * (gradients - numbers)) + neurons * rows - 1
    return {"planned_bytes": 8 * (predictions + gradients + 1), "planned_wire_bytes": 2 * 8 * wire}


def run_kills(quick: bool) -> list[dict]:
    """20 kills at random moments, restarted each time; then the weights against those of a run that was left alone."""
    rows = []
    for workers in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            rows.append({"workers": workers, **_killed(Path(folder), workers, 3 if quick else 20)})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _killed(folder: Path, workers: int, kills: int) -> dict:
    import polars as pl

    X, y = datasets.random_sphere(500, 8)
    table = pl.DataFrame(X.astype(np.float64)).with_columns(y=pl.Series(y[:, 0]))
    table.write_csv(folder / "table.csv")
    words = "-m fireset train table.csv --target y --width 2000 --dtype float64 --engine data --tol 0 --holdout 0 -q"
    words += " --max-iter 2000 --every 20 --seed 1"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    launcher = [*launcher, "--max-restarts=100"] if workers > 1 else [sys.executable]
    options: dict = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    options["env"] = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    whole = [*launcher, *words.split(), "--out", "whole.safetensors", "--checkpoint", "whole"]
    subprocess.run(whole, check=True, timeout=600, **options)
    moments, killed, starts, half_written = random.Random(workers), 0, 0, 0
    command = [*launcher, *words.split(), "--out", "killed.safetensors", "--checkpoint", "killed", "--resume"]
    process = subprocess.Popen(command, **options)
    starts += 1
    reached = []
    while killed < kills:
        # From the moment on at which it trains: before, there is nothing to lose.
        begun, before = time.monotonic(), _newest(folder / "killed")
        while _newest(folder / "killed") == before and process.poll() is None and time.monotonic() < begun + 60:
            time.sleep(0.002)
        time.sleep(moments.uniform(0.0, 0.25))
        if process.poll() is not None:  # the run came to its end; begin another one to kill
            shutil.rmtree(folder / "killed")
            process = subprocess.Popen(command, **options)
            starts += 1
            continue
        victim = process.pid if workers == 1 else _worker(process.pid, moments.randrange(workers))
        if victim is None:
            continue
        os.kill(victim, signal.SIGKILL)
        killed += 1
        reached.append(_newest(folder / "killed"))
        half_written += _half_written(folder / "killed")
        if workers == 1:
            process.wait()
            process = subprocess.Popen(command, **options)
    process.wait(timeout=600)
    found, expected = (ShiftedReLUNetwork.load(folder / name) for name in ("killed.safetensors", "whole.safetensors"))
    return {
        "kills": killed,
        "runs_begun": starts,
        "checkpoints_at_the_kills": reached,
        "half_written": half_written,
        "exit_code": process.returncode,
        "same_bits": found.weights.tobytes() == expected.weights.tobytes(),
    }


def _newest(folder: Path) -> int:
    found = [int(file.stem.split("-")[1]) for file in folder.glob("checkpoint-????????.safetensors")]
    return max(found, default=0)


def _half_written(folder: Path) -> int:
    """Checkpoints whose parts are not what their index says."""
    from fireset._util.files import file_digest, read_model

    bad = 0
    for index in sorted(folder.glob("checkpoint-????????.safetensors")):
        try:
            digests = read_model(index)[1]["shards"]
            shards = [
                index.with_name(f"{index.stem}.{k + 1}-of-{len(digests)}.safetensors") for k in range(len(digests))
            ]
            bad += any(file_digest(shard).hex() != digest for shard, digest in zip(shards, digests, strict=True))
        except (ValueError, OSError):
            bad += index.exists()  # else it was an old one, removed while we looked
    return bad


def _worker(launcher: int, rank: int) -> int | None:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == launcher and f"RANK={rank}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    return int(entry.name)
            except (OSError, IndexError):
                continue
    return None


def run_memory(quick: bool) -> list[dict]:
    """A table of the shape of MNIST, generated: strokes on 28 × 28 pixels, ten classes."""
    rows = []
    n, m = (3_000, 5_000) if quick else (60_000, 100_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images, labels = strokes(n)
        np.savez(folder / "images.npz", X=images, y=labels)
        for limit in ("1G", "700M") if quick else ("12G",):
            words = f"-m fireset train images.npz --target y --width {m} --max-iter 5 --tol 0 --holdout 0 --json -q"
            # A rate is given: to choose one takes several products with the kernel, each as long as an iteration.
            words += f" --engine data --learning-rate 0.002 --memory {limit}"
            command = [sys.executable, *words.split()]
            before = time.monotonic()
            with open(folder / "facts.json", "w") as facts:
                process = subprocess.Popen(command, cwd=folder, stdout=facts)
                _, status, used = os.wait4(process.pid, 0)
            assert status == 0
            facts = json.loads((folder / "facts.json").read_text())
            peak = used.ru_maxrss * 1024
            rows.append({"limit": limit, "peak_bytes": peak, "seconds": time.monotonic() - before, **facts})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def run_blocks(quick: bool) -> list[dict]:
    """What lists in blocks cost beside lists that are kept, and beside looking at every pair."""
    from fireset.engines import create
    from fireset.engines.blocks import BlockEngine

    rows = []
    for n, d, m in ((2_000, 64, 20_000),) if quick else ((5_000, 64, 40_000), (5_000, 784, 20_000)):
        X, y = datasets.random_sphere(n, d)
        for name, engine in (("data", create("data")), ("8 blocks", BlockEngine(8)), ("dense", create("dense"))):
            seen = []

            def look(_, seen=seen) -> None:
                seen.append(time.process_time())

            train(
                ShiftedReLUNetwork.initialize(m, d),
                X,
                y,
                engine=engine,
                learning_rate=0.01,
                max_iter=6,
                tol=0,
                callbacks=[look],
            )
            rows.append({"n": n, "d": d, "m": m, "engine": name, "cpu_seconds": float(np.median(np.diff(seen)))})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def strokes(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Greyscale images of short thick strokes whose place and slope depend on the class; 0 … 255 as in MNIST."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, n)
    across, down = np.meshgrid(np.arange(28.0), np.arange(28.0))
    images = np.zeros((n, 28, 28), np.uint8)
    for start in range(0, n, 1000):
        some = labels[start : start + 1000]
        total = np.zeros((len(some), 28, 28))
        for stroke in range(3):
            angle = 0.63 * some * (stroke + 1) + 0.2 * rng.standard_normal(len(some))
            x = 14 + 5 * np.cos(2.1 * stroke + some) + rng.standard_normal(len(some))
            y = 14 + 5 * np.sin(2.1 * stroke + some) + rng.standard_normal(len(some))
            along = (across - x[:, None, None]) * np.cos(angle)[:, None, None]
            along = along + (down - y[:, None, None]) * np.sin(angle)[:, None, None]
            aside = (down - y[:, None, None]) * np.cos(angle)[:, None, None]
            aside = aside - (across - x[:, None, None]) * np.sin(angle)[:, None, None]
            total = np.maximum(total, np.exp(-((along / 5) ** 4) - (aside / 1.5) ** 2))
        images[start : start + 1000] = (255 * total).astype(np.uint8)
    return images.reshape(n, 784), labels


def to_markdown(results: dict) -> str:
    lines = [f"# Several workers, crashes, memory, {results['date']}", "", results["machine"], ""]
    for part, of in (("workers", "workers: shares of the neurons"), ("grids", "grids: shares of neurons x rows")):
        if not results.get(part):
            continue
        lines += [
            f"Workers on one machine (two cores), float64, 120 iterations, engine `data`, momentum 0.9; {of}:",
            "",
        ]
        lines += ["| problem | grid | rows, neurons of a worker | fired pairs of a worker | difference of a neuron | "]
        lines[-1] += "largest share / mean | refreshes, the same | bytes handed over, most (plan) | "
        lines[-1] += "bytes on the wire (plan) |"
        lines += ["| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
        for row in results[part]:
            lines.append(
                f"| {row['problem']} | {row['grid']} | {max(row['rows']):,}, {max(row['neurons']):,} | "
                f"{max(row['active_pairs']):,} | {row['largest_difference_of_a_neuron']:.1e} | "
                f"{row['largest_share_over_mean']:.3f} | {row['largest_refreshes_over_mean']:.3f} | "
                f"{row['handed_over_bytes'][-1]:,} ({row['planned_bytes']:,}) | "
                f"{row['wire_bytes']:,.0f} ({row['planned_wire_bytes']:,}) |"
            )
        lines.append("")
    if results.get("centres"):
        sizes = f"n = {CENTRE_PROBLEM['rows']:,}, d = {CENTRE_PROBLEM['features']}, m = {CENTRE_PROBLEM['width']:,}"
        lines += [f"A default fit of many rows: {sizes}, {CENTRES} centres, float32:", ""]
        lines += ["| grid | rows of a worker | rows of its sums, / mean | loss | bytes at the start (plan) | "]
        lines[-1] += "of a round (plan) |"
        lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
        for row in results["centres"]:
            lines.append(
                f"| {row['grid']} | {row['rows']:,} | {row['summed_rows']:,}, {row['largest_share_over_mean']:.2f} | "
                f"{row['loss']:.8g} | {row['start_bytes']:,} ({row['planned_start_bytes']:,}) | "
                f"{row['round_bytes']:,} ({row['planned_round_bytes']:,}) |"
            )
        lines.append("")
    for row in results.get("kills", []):
        lines.append(
            f"{row['workers']} workers, {row['kills']} times SIGKILL: {row['half_written']} checkpoints half written, "
            f"final weights {'the same bits' if row['same_bits'] else 'different'}."
        )
    if results.get("blocks"):
        lines += ["", "Processor seconds of an iteration, float32, random rows, the paper's threshold:", ""]
        lines += ["| n | d | m | engine | seconds |", "| ---: | ---: | ---: | --- | ---: |"]
        for row in results["blocks"]:
            lines.append(f"| {row['n']:,} | {row['d']} | {row['m']:,} | {row['engine']} | {row['cpu_seconds']:.2f} |")
    if results.get("memory"):
        lines += ["", "n = 60,000, d = 785, m = 100,000, ten outputs, float32, 5 iterations:", ""]
        lines += ["| limit | blocks | peak, GiB | preprocessing, s | 5 iterations, s | in all, s |"]
        lines += ["| ---: | ---: | ---: | ---: | ---: | ---: |"]
        for row in results["memory"]:
            lines.append(
                f"| {row['limit']} | {row.get('blocks', 1)} | {row['peak_bytes'] / 2**30:.2f} | "
                f"{row.get('preprocessing_seconds', 0):.0f} | {row.get('training_seconds', 0):.0f} | "
                f"{row['seconds']:.0f} |"
            )
    return "\n".join(lines) + "\n"


PARTS = {
    "workers": run_workers,
    "grids": run_grids,
    "centres": run_centres,
    "kills": run_kills,
    "blocks": run_blocks,
    "memory": run_memory,
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work_as_one(sys.argv[2], int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
    elif sys.argv[1:2] == ["--centres"]:
        fit_on_centres(sys.argv[2], Path(sys.argv[3]))
    else:
        run_parts("distributed", PARTS, to_markdown)
