"""The layer for PyTorch beside the same function made of ``torch.nn.Linear``, and training by batches beside full ones.

    make bench-nn

Every contender trains in a process of its own, one after the other, the same problem from the same start: Adam at its
defaults (that of PyTorch, unless a case says "fused Adam"), squared error, float32. Seconds are of whole steps
(forward, backward, optimizer), everything included but the compiling of kernels, which a first step on a tiny layer has
done. Memory is the peak above what was there before the model.
"""

import json
import math
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from parts import run_parts

FEATURES, WIDTH = 64, 100_000
CASES = {  # rows, batch, steps of ours, steps of the plain one
    "full batch of 1,000, attached, fused Adam": (1_000, 1_000, 100, 20),
    "full batch of 1,000, attached": (1_000, 1_000, 100, 20),
    "full batch of 1,000, layer(x)": (1_000, 1_000, 30, 20),
    "batches of 256 of 10,000, attached, fused Adam": (10_000, 256, 390, 40),  # ten epochs
    "batches of 256 of 10,000, attached": (10_000, 256, 390, 40),
    "batches of 256 of 10,000, layer(x)": (10_000, 256, 40, 40),
}


def layers(quick: bool) -> list[dict]:
    """All cases, each contender in turn, twice; the faster run counts."""
    found = []
    for case in CASES:
        row: dict = {"case": case}
        for who in ("fireset", "plain") * (1 if quick else 2):
            done = subprocess.run([sys.executable, __file__, who, case], capture_output=True, text=True, check=True)
            result = json.loads(done.stdout.splitlines()[-1])
            if who not in row or result["step"] < row[who]["step"]:
                row[who] = result
        print(json.dumps(row), file=sys.stderr, flush=True)
        found.append(row)
    return found


def train_one(who: str, case: str) -> dict:
    """A process of its own: steps of one contender."""
    import torch
    from torch import nn

    from fireset.nn import ShiftedReLU
    from fireset.nn.optim import Adam

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    n, batch, own_steps, plain_steps = CASES[case]
    attached = "attached" in case
    generator = torch.Generator().manual_seed(0)
    X = nn.functional.normalize(torch.randn(n, FEATURES, generator=generator))
    y = torch.sin(3 * X[:, :1])
    warm = ShiftedReLU(FEATURES, 100)  # compiles the kernels, or reads them
    for predict in (lambda: warm(X[:8]), lambda: warm.attach(X[:8])(rows=range(8))):
        predict().sum().backward()
    fused = Adam(warm.parameters())
    warm(X[:8]).sum().backward()
    fused.step()
    del fused

    class Plain(nn.Module):
        def __init__(self, layer: ShiftedReLU):
            super().__init__()
            self.hidden, self.out = nn.Linear(FEATURES, WIDTH, bias=False), nn.Linear(WIDTH, 1, bias=False)
            self.hidden.weight = nn.Parameter(layer.weight.detach().clone())
            self.out.weight = nn.Parameter(layer.outputs.T.clone(), requires_grad=False)
            self.threshold = layer.threshold

        def forward(self, x):
            return self.out(torch.relu(self.hidden(x) - self.threshold)) / math.sqrt(WIDTH)

    before = _memory()
    model: nn.Module = ShiftedReLU(FEATURES, WIDTH)
    if who == "plain":
        model = Plain(model)
    elif attached:
        model.attach(X)
    kind = Adam if who == "fireset" and "fused" in case else torch.optim.Adam
    optimizer = kind([p for p in model.parameters() if p.requires_grad])
    order = np.random.default_rng(0)
    steps = own_steps if who == "fireset" else plain_steps
    seconds, losses, epoch = [], [], np.empty(0, int)
    for _ in range(steps):
        if len(epoch) < batch:
            epoch = order.permutation(n)
        index, epoch = torch.from_numpy(epoch[:batch]), epoch[batch:]
        begun = time.perf_counter()
        optimizer.zero_grad()
        predicted = model(rows=index) if who == "fireset" and attached else model(X[index])
        loss = (predicted - y[index]).square().sum()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
        losses.append(loss.item() / batch)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return {"step": sum(seconds) / steps, "steps": steps, "memory": peak, "loss": losses[min(steps, 20) - 1]}


def _memory() -> int:
    """Bytes that this process has at most taken so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def batches(quick: bool) -> list[dict]:
    """An epoch of batches beside an iteration with all rows, and how far each gets."""
    from fireset import ShiftedReLUNetwork, train

    n, d, m = (5_000, 32, 2_000) if quick else (50_000, 32, 20_000)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.sin(3 * X[:, 0].astype(np.float64)) + 5 * X[:, 1] * X[:, 2]

    def run(**settings) -> tuple[np.ndarray, list[float], float]:
        network = ShiftedReLUNetwork.initialize(m, d, seed=0)
        result = train(network, X, y, tol=0, **settings)
        seconds = np.diff([record.seconds for record in result.history])
        return seconds, [record.loss / n for record in result.history], result.learning_rate

    found = []
    full, full_losses, rate = run(engine="data", max_iter=60)
    by_row, _, _ = run(engine="rows", max_iter=12, learning_rate=rate)
    goal = full_losses[-1]
    found.append(
        {"kind": "all rows, lists by neuron (data)", "rate": rate, "losses": full_losses, "seconds": full.tolist()}
    )
    found.append({"kind": "all rows, lists by row (rows)", "rate": rate, "losses": [], "seconds": by_row.tolist()})
    for batch, factor in ((256, 1.0), (256, 0.1), (2048, 1.0)):
        auto = run(engine="rows", batch_size=batch, max_iter=0)[2]
        settings = {"batch_size": batch, "learning_rate": factor * auto if factor != 1 else "auto"}
        seconds, losses, rate = run(engine="rows", max_iter=12, **settings)
        reached = next((k for k, loss in enumerate(losses) if loss <= goal), None)
        note = "" if factor == 1 else f", {factor:g} of the automatic rate"
        found.append(
            {
                "kind": f"batches of {batch:,}{note}",
                "rate": rate,
                "losses": losses,
                "seconds": seconds.tolist(),
                "epochs_to_goal": reached,
            }
        )
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def to_markdown(results: dict) -> str:
    lines = [f"# The layer inside PyTorch, and batches, {results['date']}", "", results["machine"], ""]
    if "layers" in results:
        lines += [
            f"{WIDTH:,} neurons, {FEATURES} columns, the paper's threshold, Adam, float32: time of a step, and memory.",
            "Fused Adam is `fireset.nn.optim.Adam`.",
            "",
            "| case | fireset | plain PyTorch | times faster | fireset | plain PyTorch | share of the memory |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for row in results["layers"]:
            ours, plain = row["fireset"], row["plain"]
            times = f"{1e3 * ours['step']:.0f} ms | {1e3 * plain['step']:.0f} ms | {plain['step'] / ours['step']:.1f}"
            sizes = f"{ours['memory'] / 1e6:.0f} MB | {plain['memory'] / 1e6:.0f} MB"
            lines.append(f"| {row['case']} | {times} | {sizes} | {ours['memory'] / plain['memory']:.2f} |")
    if "batches" in results:
        lines += [
            "",
            "50,000 rows, 32 columns, 20,000 neurons: an iteration with all rows, and an epoch of batches.",
            "",
            "| | seconds, median after two | the first two | loss after 1, 4, 12 | epochs to the loss of 60 full |",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        for row in results["batches"]:
            seconds, losses = row["seconds"], row["losses"]
            reached = [f"{losses[k]:.2g}" for k in (1, 4, 12) if k < len(losses)]
            lines.append(
                f"| {row['kind']} | {np.median(seconds[2:]):.3f} | {seconds[0]:.2f}, {seconds[1]:.2f} | "
                f"{', '.join(reached)} | {row.get('epochs_to_goal') or ''} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("fireset", "plain"):
        print(json.dumps(train_one(*sys.argv[1:])))
    else:
        run_parts("nn", {"layers": layers, "batches": batches}, to_markdown)
