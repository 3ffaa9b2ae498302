"""A factorization that fails on the worker that makes it ends the run on all workers, without waiting for a timeout."""

import json
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from fireset import InputError, ShiftedReLUNetwork, train
from fireset._util.errors import WorkerLostError
from fireset.distributed.agreement import raise_on_all_workers
from fireset.distributed.shard import NetworkShard
from fireset.training.solvers import gauss_newton, linear_solver, nystrom, preconditioners
from support import failing_workers
from support.launching import ENVIRONMENT, torchrun
from support.thread_group import grids, groups, run_all

ROWS, WIDTH, FEATURES = 300, 64, 5


def fail(*_, **__):
    raise FloatingPointError("injected")


def refusals(shape: tuple[int, int], solver: str) -> list[str]:
    """Train on a grid of threads; return the message on each worker."""
    X = np.random.default_rng(0).standard_normal((ROWS, FEATURES))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.sin(3 * X[:, 0])
    one = ShiftedReLUNetwork.initialize(
        WIDTH, FEATURES, threshold=0.5, start="antisymmetric", output_scale=1000.0, seed=7, dtype="float64"
    )
    shards, found = [NetworkShard.of(one.copy(), place) for place in grids(*shape)], [""] * (shape[0] * shape[1])

    def work(rank: int) -> None:
        with pytest.raises(FloatingPointError) as refused:
            train(shards[rank], X, y, solver=solver)
        found[rank] = str(refused.value)

    run_all(work, len(shards))
    return found


INJECTED = {
    "ridge": ("gauss-newton", gauss_newton, "choose_ridge", None),
    "whole kernel": ("gauss-newton", preconditioners, "CholeskyPreconditioner", None),
    "partial factor": ("gauss-newton", preconditioners, "cholesky_with_jitter", 0),
    "independent centres": ("nystrom", nystrom, "_independent", None),
    "directions": ("nystrom", nystrom, "_large_directions", None),
    "system": ("nystrom", nystrom, "_System", None),
    "solution": ("nystrom", nystrom, "cholesky_with_jitter", None),
}


@pytest.mark.parametrize("shape", [(2, 2), (1, 3), (3, 1)])
@pytest.mark.parametrize("where", list(INJECTED))
def test_all_workers_raise(monkeypatch, shape, where):
    solver, module, name, rows = INJECTED[where]
    if rows is not None:
        monkeypatch.setattr(linear_solver, "FULL_CHOLESKY_ROWS", rows)
        monkeypatch.setattr(linear_solver, "_SMALL_SHIFT", 0.0)
    monkeypatch.setattr(module, name, fail)
    messages = refusals(shape, solver)
    assert messages[0] == "injected"
    assert all(message.endswith("injected") for message in messages)


@pytest.mark.parametrize("kind", [InputError, FloatingPointError, MemoryError, np.linalg.LinAlgError, KeyError])
def test_an_error_of_one_worker_is_raised_on_all(kind):
    workers, found = groups(3), {}

    def work(rank: int) -> None:
        try:
            with raise_on_all_workers(workers[rank]):
                if rank == 1:
                    raise kind("reason")
        except Exception as error:
            found[rank] = type(error), str(error)

    run_all(work, 3)
    assert found[1] == (kind, str(kind("reason")))
    other = RuntimeError if kind is KeyError else kind
    assert found[0] == found[2] == (other, f"worker 1: {kind('reason')}")


def test_a_lost_worker_is_not_asked():
    """The exchange would fail again."""
    with pytest.raises(WorkerLostError), raise_on_all_workers(groups(2)[0]):
        raise WorkerLostError("gone")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_workers_under_torchrun_end_at_once(tmp_path):
    """The script catches the error, so that no connection is closed."""
    begun = time.monotonic()
    command = torchrun(Path(failing_workers.__file__), tmp_path, processes=4)
    finished = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False)
    assert finished.returncode == 0, finished.stderr
    assert time.monotonic() - begun < failing_workers.TIMEOUT
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert told[0] == {"gauss-newton": "injected", "nystrom": "injected"}
    assert told[1:] == [{"gauss-newton": "worker 0: injected", "nystrom": "worker 0: injected"}] * 3
