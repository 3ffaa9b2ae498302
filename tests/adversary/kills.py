"""``fireset train --checkpoint`` killed at random moments, and resumed: the model has the bits of an undisturbed run.

A case is one run that is killed one to three times, by SIGKILL or SIGTERM, from its first moment on or shortly after it
wrote a checkpoint, and then goes on to its end. What is compared is the whole model, the times that it took apart.
Where SIGTERM found no checkpoint due for five seconds, which takes a slow machine, weights are compared to rounding.

Most runs are forked from this process, which has imported all that ``fireset`` does, and save the seconds that this
takes; one in eight is a ``python -m fireset`` of its own.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import polars  # noqa: F401 - for the forked runs, as the next ones

import fireset.cli
import fireset.commands.train
import fireset.estimators  # noqa: F401
from adversary.files import IN_MEMORY
from fireset.__main__ import main
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


def run_case(seed: int, counts: Counter) -> None:
    rng = random.Random(seed)
    number = rng.randrange(len(RUNS))
    expected = undisturbed(number)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as name:
        folder = Path(name)
        write_table(folder)
        off_beat = False
        for _ in range(rng.choice((1, 1, 2, 3))):
            off_beat |= newest(folder) % every(number) > 0
            if not _killed(folder, number, rng, counts):
                break  # it ended before the signal
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
    """Start or resume the run and kill it; return False if it ended first."""
    run = Run(folder, number, "--resume", forked=rng.random() < 0.875)
    try:
        until, before = time.monotonic() + LONGEST, newest(folder)
        if rng.random() < 0.8:  # all runs are alike before training starts
            while newest(folder) == before and run.exit_code is None and time.monotonic() < until:
                time.sleep(0.002)
            time.sleep(rng.uniform(0.0, rng.choice((0.02, 0.2, 1.0))))
        else:
            time.sleep(rng.uniform(0.0, 2.0))
        how = rng.choice((signal.SIGKILL, signal.SIGTERM))
        run.signal(how)
        code = run.wait()
    finally:
        run.signal(signal.SIGKILL)
    assert "Traceback" not in run.errors, run.errors
    if code == 0:
        counts["ended before the signal"] += 1
        return False
    assert code in (-how, TERMINATED), f"exit code {code} after {how.name}: {run.errors}"
    counts[f"{how.name} {'in training' if newest(folder) else 'before a checkpoint'}"] += 1
    if code == TERMINATED:
        assert json.loads(run.output)["stop_reason"] == "terminated"
    return True


def _finish(folder: Path, number: int, *more: str) -> None:
    run = Run(folder, number, *more, forked=True)
    code = run.wait()
    assert code == 0, f"exit code {code}: {run.errors}"


class Run:
    """A process that runs ``fireset train`` in a folder."""

    def __init__(self, folder: Path, number: int, *more: str, forked: bool):
        self._files = [folder / name for name in ("output.txt", "errors.txt")]
        words = [*command(number), *more]
        if forked:
            self._process = get_context("fork").Process(target=self._run, args=(folder, words), daemon=True)
            self._process.start()
        else:
            out, err = (file.open("w") for file in self._files)
            with out, err:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", *words], cwd=folder, stdout=out, stderr=err, stdin=subprocess.DEVNULL
                )

    def _run(self, folder: Path, words: list[str]) -> None:
        """Run the command in the forked process."""
        for file, number in zip(self._files, (1, 2), strict=True):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.chdir(folder)
        sys.argv = words
        main()

    @property
    def exit_code(self) -> int | None:
        return self._process.poll() if isinstance(self._process, subprocess.Popen) else self._process.exitcode

    def wait(self) -> int:
        until = time.monotonic() + LONGEST
        while self.exit_code is None:
            assert time.monotonic() < until, f"not at its end after {LONGEST} s: {self.errors}"
            time.sleep(0.005)
        assert self.exit_code is not None
        return self.exit_code

    def signal(self, number: int) -> None:
        if self.exit_code is None:
            assert self._process.pid is not None
            os.kill(self._process.pid, number)

    @property
    def output(self) -> str:
        return self._files[0].read_text()

    @property
    def errors(self) -> str:
        return self._files[1].read_text()


@cache
def undisturbed(number: int) -> tuple[dict[str, bytes], dict]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as name:
        write_table(Path(name))
        _finish(Path(name), number)
        return model_in(Path(name))


def command(number: int) -> list[str]:
    target = () if "--target" in RUNS[number] else ("--target", "y")
    return ["fireset", "train", "table.csv", *target, *COMMON.split(), *RUNS[number].split()]


def every(number: int) -> int:
    words = RUNS[number].split()
    return int(words[words.index("--every") + 1])


def write_table(folder: Path) -> None:
    """Without polars, whose threads do not survive a fork."""
    X = np.random.default_rng(1).standard_normal((150, 3))
    columns = np.column_stack([X, np.sin(2 * X[:, 0]) + X[:, 1], X[:, 2] > X[:, 0]])
    np.savetxt(folder / "table.csv", columns, "%.17g", ",", header="a,b,c,y,kind", comments="")


def newest(folder: Path) -> int:
    """Return the iteration of the newest checkpoint; 0 if there is none."""
    found = (path.name for path in (folder / "ck").glob("checkpoint-????????.safetensors"))
    return max((int(name[11:19]) for name in found), default=0)


def model_in(folder: Path) -> tuple[dict[str, bytes], dict]:
    """Return all arrays and the description of the model of a run, without times."""
    arrays, description = read_model(folder / "model.safetensors")

    def lasting(part):
        if isinstance(part, dict):
            kept = {key: value for key, value in part.items() if not any(word in key for word in CHANGING)}
            return {key: lasting(value) for key, value in kept.items()}
        return part

    arrays.pop("history")  # holds seconds and work, which differ after a resume
    return {name: array.tobytes() for name, array in arrays.items()}, lasting(description)
