"""One network on three hosts, and failures of hosts: network namespaces and torchrun.

``make test-hosts`` runs the tests that take long.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fireset import ShiftedReLUNetwork
from support import hosts
from support.hosts import Hosts, wait_until

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

takes_long = pytest.mark.skipif("FIRESET_TEST_HOSTS" not in os.environ, reason="takes long; make test-hosts runs it")

COUNT = 3
TRAIN = (
    "train table.csv --target y --width 300 --dtype float64 --tol 0 --holdout 0 --bias 1 --engine data --quiet --json"
)
TRAIN += " --solver gradient --max-iter 600 --every 20"
TIMEOUT_SECONDS = 240.0  # for operations that take seconds on an idle machine


@pytest.fixture(scope="module", autouse=True)
def needs_namespaces():
    if missing := hosts.why_not():
        pytest.skip(missing)


def write_table(folder: Path) -> None:
    X = np.random.default_rng(0).standard_normal((60, 3))
    pl.DataFrame(X, schema=["a", "b", "c"]).with_columns(y=pl.Series(np.sin(X[:, 0]))).write_csv(folder / "table.csv")


@pytest.fixture
def three(tmp_path):
    write_table(tmp_path)
    with Hosts(COUNT, tmp_path) as hosts_in_use:
        yield hosts_in_use


def start(three: Hosts, *more, which=range(1, COUNT + 1), **options) -> None:
    for k in which:
        three.launch(k, *TRAIN.split(), "--checkpoint", "ck", *more, **options)


def checkpoints(three: Hosts) -> list[int]:
    return sorted(int(path.name[11:19]) for path in (three.folder / "ck").glob("checkpoint-????????.safetensors"))


def wait_for_checkpoint(three: Hosts, after: int = 0) -> None:
    def is_there() -> bool:
        ended = [k for k, launcher in three.launchers.items() if launcher.poll() is not None]
        assert not ended, f"host {ended} ended\n{three.logs()}"
        return max(checkpoints(three), default=0) > after

    wait_until(is_there, TIMEOUT_SECONDS, "a checkpoint")


def alive(process: int) -> bool:
    """Return whether a process runs. An ended one may remain as a zombie while its torchrun waits for another host."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ended(three: Hosts, within: float = TIMEOUT_SECONDS) -> list[int]:
    until = time.monotonic() + within
    try:
        return [three.ends(k, max(0.1, until - time.monotonic())) for k in range(1, COUNT + 1)]
    except subprocess.TimeoutExpired:
        raise AssertionError(three.logs()) from None


def finish(three: Hosts) -> np.ndarray:
    """Wait for a successful end of the run; return its weights."""
    codes = ended(three)
    assert codes == [0] * COUNT, three.logs()
    return ShiftedReLUNetwork.load(three.folder / "table.safetensors").weights


def summary(three: Hosts) -> dict:
    """Return the summary of worker 0, on whichever host it ran."""
    lines = [line for k in range(1, COUNT + 1) for line in three.log(k).read_text().splitlines()]
    return json.loads(next(line for line in lines if line.startswith('{"task"')))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> np.ndarray:
    """Return the weights of a run on three hosts without failures."""
    folder = tmp_path_factory.mktemp("undisturbed")
    write_table(folder)
    with Hosts(COUNT, folder) as three:
        start(three)
        weights = finish(three)
        assert summary(three)["workers"] == COUNT
    return weights


def test_three_hosts_and_one_process(undisturbed, tmp_path):
    write_table(tmp_path)
    command = [sys.executable, "-m", "fireset", *TRAIN.split()]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=TIMEOUT_SECONDS, capture_output=True)
    alone = ShiftedReLUNetwork.load(tmp_path / "table.safetensors").weights
    np.testing.assert_allclose(undisturbed, alone, rtol=0, atol=1e-9)


@takes_long
def test_a_worker_is_killed(three, undisturbed):
    """The others exit at once, torchrun restarts all of them, and they resume from the last checkpoint."""
    start(three, restarts=2)
    wait_for_checkpoint(three)
    os.kill(three.worker(3), signal.SIGKILL)
    assert np.array_equal(finish(three), undisturbed)
    assert summary(three)["resumed_at_iteration"] >= 20


@takes_long
def test_a_partition(three, undisturbed):
    """A cable is pulled: all workers exit within the timeout with a one-line error, and can be resumed."""
    start(three, "--worker-timeout", "4s")
    wait_for_checkpoint(three)
    three.link(3, "down")
    pulled = time.monotonic()
    workers = [three.worker(k) for k in range(1, COUNT + 1)]
    wait_until(lambda: not any(map(alive, workers)), 60, "the end of all workers")
    assert time.monotonic() - pulled >= 3
    for k in range(1, COUNT + 1):
        wait_until(lambda k=k: "another worker is gone or does not answer" in three.log(k).read_text(), 30, "the error")
        # torchrun's own agent prints a traceback afterwards.
        assert "Traceback" not in three.log(k).read_text().partition("another worker is gone")[0]
    for k in range(1, COUNT + 1):
        three.signal(k, signal.SIGKILL)
    ended(three)
    three.link(3, "up")
    start(three, "--resume")
    assert np.array_equal(finish(three), undisturbed)
    assert summary(three)["resumed_at_iteration"] >= 20


@takes_long
def test_a_host_is_killed_and_comes_back(three, undisturbed):
    """As after a power failure: the others time out, and torchrun waits until the host is back."""
    start(three, "--worker-timeout", "10s", restarts=3, join_timeout=300)
    wait_for_checkpoint(three)
    three.link(3, "down")
    three.signal(3, signal.SIGKILL)
    three.ends(3, 60)
    workers = [three.worker(k) for k in (1, 2)]
    wait_until(lambda: not any(map(alive, workers)), 120, "the end of the workers")
    three.link(3, "up")
    start(three, "--worker-timeout", "10s", which=[3], restarts=3, join_timeout=300)
    assert np.array_equal(finish(three), undisturbed)
    assert summary(three)["resumed_at_iteration"] >= 20


@takes_long
@pytest.mark.parametrize("patience", ["60s", "8s"])
def test_a_host_is_paused_for_25_seconds(three, undisturbed, patience):
    """A suspended and resumed host: the others wait, or exit if the timeout is shorter."""
    start(three, "--worker-timeout", patience)
    wait_for_checkpoint(three)
    three.signal(3, signal.SIGSTOP)
    time.sleep(25)
    three.signal(3, signal.SIGCONT)
    if patience == "60s":
        assert np.array_equal(finish(three), undisturbed)
        assert "resumed_at_iteration" not in summary(three)
        return
    codes = ended(three)
    assert 0 not in codes, three.logs()
    assert "another worker is gone or does not answer" in three.log(1).read_text()
    start(three, "--resume")
    assert np.array_equal(finish(three), undisturbed)


@takes_long
def test_packets_are_late_and_lost(three, undisturbed):
    """50 ms delay and 5 % loss on one cable, each way: slower, with the same bits."""
    if not three.impair(3, loss=0.05, delay=0.05):
        pytest.skip("delayed and lost packets need /dev/net/tun")
    start(three, "--max-iter", "60")
    weights = finish(three)
    assert summary(three)["workers"] == COUNT
    assert not np.array_equal(weights, undisturbed)
    three.repair(3)
    start(three, "--resume")
    assert np.array_equal(finish(three), undisturbed)
