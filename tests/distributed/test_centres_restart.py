"""Gauss–Newton on centres under torchrun: after a worker was killed, all restart and end with the same model."""

import json
import os
import shutil
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fireset.model import Model
from support import reading_workers
from support.launching import ENVIRONMENT, torchrun, wait_for_checkpoint, worker_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")]

# With a small ``tol`` fits on different grids stop after the same iteration.
OPTIONS = "--loss log_loss --solver nystrom --width 600 --bias 1 --tol 0.001 --every 1"
TRAIN = f"train table.csv --target kind --drop y {OPTIONS} --json"
GRID = "2x2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("restart")
    reading_workers.table()[:9_000].write_csv(place / "table.csv")
    return place


def start(folder: Path, name: str, *more: str, restarts: int = 0, processes: int = 4) -> subprocess.Popen:
    command = ["-m", "fireset", *TRAIN.split(), "--checkpoint", name, "--out", f"{name}.safetensors", *more]
    return subprocess.Popen(
        torchrun(f"--max-restarts={restarts}", "--monitor-interval=0.5", *command, processes=processes),
        env=ENVIRONMENT,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> dict:
    try:
        out, err = process.communicate(timeout=250)
    finally:
        process.terminate()  # so that torchrun ends its workers
        process.wait(60)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def kill(process: subprocess.Popen, rank: int) -> None:
    os.kill(worker_of(process.pid, rank), signal.SIGKILL)


@pytest.fixture(scope="module")
def undisturbed(folder) -> tuple[Model, dict]:
    summary = finish(start(folder, "whole", "--grid", GRID))
    assert summary["iterations"] >= 4
    return Model.load(folder / "whole.safetensors"), summary


def compare(model: Model, summary: dict, undisturbed: tuple[Model, dict]) -> None:
    expected, told = undisturbed
    for name in ("loss", "iterations", "ridge", "centres", "stop_reason", "held_out_accuracy"):
        assert summary[name] == told[name], name
    for name in ("weights", "output_weights"):
        found, whole = (getattr(one.estimator.network_, name) for one in (model, expected))
        np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("rank", [0, 3])
def test_all_workers_restart_after_one_was_killed(folder, undisturbed, rank):
    name = f"killed-{rank}"
    process = start(folder, name, "--grid", GRID, restarts=1)
    try:
        wait_for_checkpoint(process, folder / name)
        kill(process, rank)
    finally:
        summary = finish(process)
    assert summary["resumed_at_iteration"] >= 1
    compare(Model.load(folder / f"{name}.safetensors"), summary, undisturbed)


def test_a_worker_killed_before_the_first_checkpoint(folder, undisturbed):
    process = start(folder, "early", "--grid", GRID, restarts=1)
    try:
        until = time.monotonic() + 100
        while not (folder / "early" / "checkpoint.lock").exists():
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.01)
        kill(process, 2)
    finally:
        summary = finish(process)
    compare(Model.load(folder / "early.safetensors"), summary, undisturbed)


@pytest.mark.parametrize("shape", ["1x2", "3x1"])
def test_a_checkpoint_is_resumed_on_another_grid(folder, undisturbed, shape):
    """The fingerprint of rows that workers share does not depend on how they share them."""
    name, expected = f"grid-{shape}", undisturbed[0]
    shutil.copytree(folder / "whole", folder / name)
    newest = sorted((folder / name).glob("checkpoint-????????.safetensors"))
    for later in newest[2:]:
        for file in (folder / name).glob(f"{later.stem}*"):
            file.unlink()
    first, _, second = shape.partition("x")
    summary = finish(start(folder, name, "--grid", shape, "--resume", processes=int(first) * int(second)))
    assert summary["resumed_at_iteration"] >= 1
    rows = pl.read_csv(folder / "table.csv")[:300]
    u = expected.estimator.predict_proba(rows)
    found = Model.load(folder / f"{name}.safetensors").estimator.predict_proba(rows)
    np.testing.assert_allclose(found, u, rtol=0, atol=1e-3)  # in float32
