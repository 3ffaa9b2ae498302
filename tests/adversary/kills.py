"""``fireset train --checkpoint`` killed at random moments, and resumed: the model has the bits of a run left alone.

A case is one run that is killed one to three times, by SIGKILL or SIGTERM, from its first moment on or shortly after it
wrote a checkpoint, and then goes on to its end. What is compared is the whole model, the times that it took apart.
Where SIGTERM found no checkpoint due for five seconds, which takes a slow machine, weights are compared to rounding.
"""

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl

from fireset._util.errors import TERMINATED
from fireset._util.files import read_model

LONGEST = 300.0  # seconds of one run
RUNS = (  # each is long enough to be killed in the middle, and has checkpoints often enough to be killed in one
    "--engine data --solver gradient --max-iter 1500 --every 20",
    "--engine data --solver gradient --max-iter 900 --every 3 --momentum 0",
    "--engine dense --solver gradient --max-iter 1200 --every 20 --dtype float64",
    "--engine weights --solver gradient --max-iter 300 --every 10 --dtype float64",
    "--engine sums --solver gradient --max-iter 400 --every 25 --early-stopping",
    "--engine rows --solver gradient --batch-size 32 --max-iter 60 --every 4 --dtype float64",
    "--engine data --solver gauss-newton --max-iter 12 --every 1 --ridge 0.001 --output-scale 1",
    "--engine auto --solver gradient --loss log_loss --target kind --max-iter 800 --every 15",
)
COMMON = "--width 600 --bias 1 --tol 0 --holdout 0 --quiet --json --seed 3 --out model.safetensors --checkpoint ck"
# Parts of names that a description has of the run, and not of the model: what it took since it was started last.
CHANGING = ("seconds", "resumed_at", "products")


def attack(seed: int, counts: Counter) -> None:
    rng = random.Random(seed)
    number = rng.randrange(len(RUNS))
    expected = undisturbed(number)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(folder)
        off_beat = False
        for _ in range(rng.choice((1, 1, 2, 3))):
            off_beat |= newest(folder) % every(number) > 0
            if not _killed(folder, number, rng, counts):
                break  # it came to its end before the signal
        else:
            off_beat |= newest(folder) % every(number) > 0
            _finish(folder, number, "--resume")
        found = model_in(folder)
        assert not list((folder / "ck").glob("*.part")), f"run {number} left parts of files"
    if off_beat:
        weights = [np.frombuffer(arrays["weights"], dtype_of(number)) for arrays, _ in (found, expected)]
        np.testing.assert_allclose(*weights, rtol=0, atol=1e-3)
        counts["runs compared, to rounding"] += 1
        return
    assert found == expected, f"run {number} ended with other bits after it was killed"
    counts["runs compared, bit-identical"] += 1


def dtype_of(number: int) -> str:
    return "float64" if "float64" in RUNS[number] else "float32"


def _killed(folder: Path, number: int, rng: random.Random, counts: Counter) -> bool:
    """Start it, or go on, and kill it; False if it came to its end first."""
    process = subprocess.Popen(
        command(number, "--resume"), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        until, before = time.monotonic() + LONGEST, newest(folder)
        if rng.random() < 0.8:  # what happens before it trains is the same again and again
            while newest(folder) == before and process.poll() is None and time.monotonic() < until:
                time.sleep(0.002)
            time.sleep(rng.uniform(0.0, rng.choice((0.02, 0.5, 2.0))))
        else:
            time.sleep(rng.uniform(0.0, 4.0))
        how = rng.choice((signal.SIGKILL, signal.SIGTERM))
        process.send_signal(how)
        out, err = process.communicate(timeout=LONGEST)
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in err, err
    if process.returncode == 0:
        counts["ended before the signal"] += 1
        return False
    assert process.returncode in (-how, TERMINATED), f"exit code {process.returncode} after {how.name}: {err}"
    moment = "in training" if newest(folder) else "before a checkpoint"
    counts[f"{how.name} {moment}"] += 1
    if process.returncode == TERMINATED:
        assert json.loads(out)["stop_reason"] == "terminated"
    return True


def _finish(folder: Path, number: int, *more: str) -> None:
    done = subprocess.run(
        command(number, *more), cwd=folder, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"


@cache
def undisturbed(number: int) -> tuple[dict[str, bytes], dict]:
    with tempfile.TemporaryDirectory() as name:
        write_table(Path(name))
        _finish(Path(name), number)
        return model_in(Path(name))


def command(number: int, *more: str) -> list[str]:
    target = () if "--target" in RUNS[number] else ("--target", "y")
    words = ["train", "table.csv", *target, *COMMON.split(), *RUNS[number].split(), *more]
    return [sys.executable, "-m", "fireset", *words]


def every(number: int) -> int:
    words = RUNS[number].split()
    return int(words[words.index("--every") + 1])


def write_table(folder: Path) -> None:
    X = np.random.default_rng(1).standard_normal((150, 3))
    columns = {"y": np.sin(2 * X[:, 0]) + X[:, 1], "kind": (X[:, 2] > X[:, 0]).astype(int)}
    pl.DataFrame(X, schema=["a", "b", "c"]).with_columns(**columns).write_csv(folder / "table.csv")


def newest(folder: Path) -> int:
    """The iteration of the newest checkpoint; 0 if there is none."""
    found = (path.name for path in (folder / "ck").glob("checkpoint-????????.safetensors"))
    return max((int(name[11:19]) for name in found), default=0)


def model_in(folder: Path) -> tuple[dict[str, bytes], dict]:
    """All arrays and the description of the model that a run has left, without what is about time."""
    arrays, description = read_model(folder / "model.safetensors")

    def lasting(part):
        if isinstance(part, dict):
            kept = {key: value for key, value in part.items() if not any(word in key for word in CHANGING)}
            return {key: lasting(value) for key, value in kept.items()}
        return part

    return {name: array.tobytes() for name, array in arrays.items()}, lasting(description)
