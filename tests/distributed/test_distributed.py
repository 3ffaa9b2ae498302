"""One network on several workers started by torchrun on loopback; a single process does not import torch."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fireset import InputError, ShiftedReLUNetwork, train
from fireset._util.errors import WorkerLostError
from fireset._util.files import file_digest, write_model
from fireset.distributed.agreement import check_same, describe, raise_on_all_workers
from fireset.distributed.process_group import (
    SINGLE_PROCESS,
    TorchProcessGroup,
    current_group,
    joined_group,
    launched_by_torchrun,
    restarted_by_torchrun,
)
from fireset.distributed.shard import NetworkShard
from fireset.distributed.worker_grid import current_grid
from fireset.model import Model
from fireset.training.solvers import GaussNewton
from support import option_workers, workers
from support.checks import mentions
from support.launching import ENVIRONMENT, torchrun, wait_for_checkpoint, worker_of

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """Return the folder with the files of four workers, in groups of one to four."""
    out = tmp_path_factory.mktemp("workers")
    script = Path(workers.__file__)
    finished = subprocess.run(
        torchrun(script, out, processes=4), env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return out


def facts(done: Path, name: str):
    return json.loads((done / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def alone():
    """Return the network and result of the run in this process."""
    one = workers.network()
    X, y = workers.problem()
    return one, train(one, X, y, **workers.SETTINGS)


@pytest.mark.slow
class TestTogether:
    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    def test_weights_equal_those_of_one_process(self, done, alone, size):
        expected = alone[0].weights
        for rank in range(size):
            found = np.load(done / f"weights.{size}.{rank}.npy")
            assert np.abs(found - expected).max() <= 1e-12 * np.abs(expected).max()
            lengths = np.linalg.norm(expected, axis=1)
            assert (np.linalg.norm(found - expected, axis=1) <= 1e-12 * lengths).all()

    @pytest.mark.parametrize("size", [1, 3])
    def test_rounds_of_gauss_newton(self, done, size):
        """Weights equal those of one process up to rounding, and have the same bits on all workers."""
        one = workers.network()
        result = train(one, *workers.problem(), solver=GaussNewton(), max_iter=6, tol=0)
        found = [np.load(done / f"rounds.{size}.{rank}.npy") for rank in range(size)]
        assert all(np.array_equal(found[0], other) for other in found)
        np.testing.assert_allclose(facts(done, f"rounds.{size}.0"), result.history.column("loss"), rtol=1e-6)
        np.testing.assert_allclose(found[0], one.weights, rtol=0, atol=1e-6)

    def test_rounds_are_resumed(self, done):
        """Three workers that stop after three rounds and resume reach the weights of an uninterrupted run."""
        for rank in range(3):
            expected, begun, found = (np.load(done / f"rounds {k}.{rank}.npy") for k in ("whole", "begun", "resumed"))
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
            assert np.abs(begun - expected).max() > 1e-6 * np.abs(expected).max()

    @pytest.mark.parametrize("size", [2, 3, 4])
    def test_all_workers_have_the_same_bits(self, done, size):
        first = (done / f"weights.{size}.0.npy").read_bytes()
        assert all((done / f"weights.{size}.{rank}.npy").read_bytes() == first for rank in range(size))

    def test_workers_have_equal_work(self, done):
        shares = [facts(done, f"facts.4.{rank}")["work"] for rank in range(4)]
        assert max(shares) <= 1.1 * sum(shares) / 4
        assert min(shares) >= 0.9 * sum(shares) / 4

    @pytest.mark.parametrize("size", [1, 2, 3, 4])
    def test_bytes_exchanged(self, done, size):
        """n·c numbers and six counts to add, one number for the scale and one for the stop decision, 8 bytes each."""
        _, y = workers.problem()
        for rank in range(size):
            assert facts(done, f"facts.{size}.{rank}")["bytes"] == [8 * (y.size + 6 + 1 + 1)]

    def test_the_history_counts_all_workers(self, done, alone):
        result = alone[1]
        total = sum(result.history.column("inner_products").tolist())
        for size in (1, 2, 3, 4):
            found = facts(done, f"facts.{size}.0")
            assert found["loss"] == pytest.approx(result.loss, rel=1e-9)
            assert found["total"] == pytest.approx(total, rel=0.1)  # audits and slots depend on the shard

    def test_a_checkpoint_of_two_is_resumed_by_three(self, done, alone):
        for rank in range(3):
            assert facts(done, f"resumed.{rank}") == {"at": 40, "iterations": 101}
            found = np.load(done / f"resumed.{rank}.npy")
            assert np.abs(found - alone[0].weights).max() <= 1e-12 * np.abs(alone[0].weights).max()

    def test_different_data_raise(self, done):
        for rank in range(2):
            assert facts(done, f"strangers.{rank}").startswith("y ")

    def test_too_few_neurons(self, done):
        assert re.search("width.*got 7", facts(done, "narrow.3"))


@pytest.fixture(scope="module")
def refused(tmp_path_factory) -> Path:
    """Return the folder with the files of two workers with different settings."""
    out = tmp_path_factory.mktemp("options")
    X = np.random.default_rng(0).standard_normal((60, 2))
    pl.DataFrame(X, schema=["a", "b"]).with_columns(y=pl.Series(np.sin(X[:, 0]))).write_csv(out / "table.csv")
    finished = subprocess.run(
        torchrun(Path(option_workers.__file__), out, processes=2),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return out


@pytest.mark.slow
class TestDifferentSettings:
    """Each worker raises an error that names the setting, both values and both ranks."""

    @pytest.mark.parametrize("option", option_workers.OPTIONS)
    def test_options(self, refused, option):
        for rank in range(2):
            code, message = facts(refused, f"{option}.{rank}")
            assert (code, message.count("\n")) == (2, 1)
            assert mentions(message, option)
            for worker, value in enumerate(option_workers.OPTIONS[option]):
                found = message.partition(f" on worker {worker}")[0].split()[-1]
                assert found.strip("'").removesuffix(".0") == value.removesuffix(".0")

    def test_options_of_one_worker_only(self, refused):
        for rank in range(2):
            for option in ("--eval", "--explain"):
                code, message = facts(refused, f"{option}.{rank}")
                assert code == 2
                assert mentions(message, option)
            code, message = facts(refused, f"both explain.{rank}")
            assert code == 2
            assert "--explain" in message

    def test_options_that_may_differ(self, refused):
        assert facts(refused, "own.0")[0] == facts(refused, "own.1")[0] == 0
        assert Model.load(refused / "own.safetensors").task == "regression"

    @pytest.mark.parametrize("name", option_workers.SETTINGS)
    def test_settings_of_an_estimator(self, refused, name):
        for rank in range(2):
            assert facts(refused, f"estimator {name}.{rank}").startswith(f"{name} ")

    def test_weights_grids_and_seeds(self, refused):
        for rank in range(2):
            assert facts(refused, f"weights.{rank}").startswith("weights ")
            assert facts(refused, f"grid.{rank}").startswith("neurons ")
            assert facts(refused, f"no seed.{rank}").startswith("random_state ")
            assert facts(refused, f"same.{rank}") == ""


@pytest.mark.slow
class TestShards:
    def test_shards_are_read_as_one_model(self, done):
        X, y = workers.problem()
        expected = workers.fit(X, y)
        found = ShiftedReLUNetwork.load(done / "shards.safetensors")
        assert np.array_equal(found.output_weights, expected.network_.output_weights)
        np.testing.assert_allclose(found.weights, expected.network_.weights, rtol=0, atol=1e-12)
        for rank in range(4):
            np.testing.assert_allclose(
                np.load(done / f"predictions.{rank}.npy"), expected.predict(X), rtol=0, atol=1e-12
            )
        assert len(list(done.glob("shards.?-of-4.*.safetensors"))) == 4
        other = ShiftedReLUNetwork.load(done / "shards.v2.safetensors")
        assert np.array_equal(other.weights, found.weights)

    def test_a_shard_that_is_damaged_missing_or_elsewhere(self, done, tmp_path):
        for file in done.glob("shards*.safetensors"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
        path = tmp_path / "shards.safetensors"
        shard = next(tmp_path.glob("shards.2-of-4.*"))
        content = shard.read_bytes()
        shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(InputError, match=r"2-of-4.*checksum"):
            ShiftedReLUNetwork.load(path)
        shard.unlink()
        with pytest.raises(InputError, match="2-of-4"):
            ShiftedReLUNetwork.load(path)
        index = path.read_bytes()
        name = shard.name.encode()
        path.write_bytes(index.replace(name, b"../" + name[3:]))
        with pytest.raises(InputError, match=r"is damaged: .*shard"):
            ShiftedReLUNetwork.load(path)


def test_an_index_with_a_repeated_shard_raises(tmp_path):
    """150 times 20 MB would take 3 GB of memory. Hard links to one file are detected as well."""
    network = ShiftedReLUNetwork.initialize(4, 2)
    arrays = {"weights": network.weights, "output_weights": network.output_weights.astype(np.int8)}
    for copies in (["a", "a"], ["a", "b"]):
        write_model(tmp_path / "a", arrays, {})
        os.link(tmp_path / "a", tmp_path / "b")
        shards = [{"file": name, "checksum": file_digest(tmp_path / "a").hex()} for name in copies]
        write_model(tmp_path / "index", {}, {**network.scalars(), "shards": shards})
        with pytest.raises(InputError, match="index"):
            ShiftedReLUNetwork.load(tmp_path / "index")
        (tmp_path / "b").unlink()


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_training_resumes(tmp_path):
    """After kill -9 on one of two workers torchrun restarts both, and they resume from the last checkpoint."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    pl.DataFrame(X, schema=["a", "b", "c"]).with_columns(y=pl.Series(np.sin(X[:, 0]))).write_csv(tmp_path / "table.csv")
    command = ["train", "table.csv", "--target", "y", "--width", "400", "--dtype", "float64", "--tol", "0", "--json"]
    command += ["--holdout", "0", "--max-iter", "400", "--solver", "gradient"]
    process = subprocess.Popen(
        torchrun("--max-restarts=1", "-m", "fireset", *command, "--checkpoint", "ck", "--every", "50", processes=2),
        env=ENVIRONMENT,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for_checkpoint(process, tmp_path / "ck")
        os.kill(worker_of(process.pid, rank=1), signal.SIGKILL)
        out, err = process.communicate(timeout=100)
    finally:
        process.terminate()  # so that torchrun ends its workers
        process.wait(60)
    assert process.returncode == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert summary["resumed_at_iteration"] >= 50
    assert (summary["workers"], summary["iterations"]) == (2, 400)
    model = Model.load(tmp_path / "table.safetensors")
    one = model.estimator.__class__(400, dtype="float64", max_iter=400, tol=0, random_state=0, solver="gradient")
    one.fit(X, np.sin(X[:, 0]))
    assert summary["loss"] == pytest.approx(one.result_.loss, rel=1e-9)
    np.testing.assert_allclose(model.estimator.predict(X), one.predict(X), rtol=0, atol=1e-9)


class TestSingleProcess:
    def test_group_and_shard(self, monkeypatch):
        monkeypatch.delenv("RANK", raising=False)
        assert current_group() is SINGLE_PROCESS
        assert not launched_by_torchrun()
        assert not restarted_by_torchrun()
        one = ShiftedReLUNetwork.initialize(10, 3)
        shard = NetworkShard.of(one, current_grid())
        assert shard.local is one
        assert (shard.first, shard.width, shard.scale) == (0, 10, 1.0)
        assert SINGLE_PROCESS.all_true(True)
        assert not SINGLE_PROCESS.all_true(False)

    @pytest.mark.parametrize(
        ("environment", "message"),
        [
            ({}, "^MASTER_ADDR"),
            ({"MASTER_ADDR": "localhost"}, "^MASTER_PORT.*got ''"),
            ({"MASTER_ADDR": "localhost", "MASTER_PORT": "http"}, "^MASTER_PORT.*got 'http'"),
            ({"RANK": "first"}, "^RANK.*got 'first'"),
            ({"WORLD_SIZE": "²"}, "^WORLD_SIZE.*got '²'"),
            ({"LOCAL_WORLD_SIZE": "abc"}, "^LOCAL_WORLD_SIZE.*got 'abc'"),
            ({"RANK": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}, "^RANK.*WORLD_SIZE = 2, got 2"),
            ({"WORLD_SIZE": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}, "^RANK.*WORLD_SIZE = 0, got 0"),
        ],
    )
    def test_an_environment_that_is_not_that_of_torchrun_raises(self, monkeypatch, environment, message):
        for name in ("MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE", "LOCAL_RANK"):
            monkeypatch.delenv(name, raising=False)
        for name, value in ({"RANK": "0", "WORLD_SIZE": "2"} | environment).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(InputError, match=message), joined_group():
            pass

    def test_torch_is_not_imported(self):
        code = "import sys; from fireset.training import loop; loop.current_grid(); print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout == "False\n"


def test_batches_in_a_process_group_of_one(tmp_path):
    """torchrun with one process: the engine is not wrapped, since only single processes train on batches."""
    import torch.distributed

    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        found, expected = workers.network(), workers.network()
        train(found, *workers.problem(), batch_size=10, max_iter=3, tol=0)
    finally:
        torch.distributed.destroy_process_group()
    train(expected, *workers.problem(), batch_size=10, max_iter=3, tol=0)
    assert np.array_equal(found.weights, expected.weights)


class OneWorker:
    """A substitute for torch.distributed in which a reduction returns the values of this worker."""

    class ReduceOp:
        MAX = SUM = None

    def __init__(self, size: int = 1):
        self._size = size

    def get_rank(self) -> int:
        return 0

    def get_world_size(self) -> int:
        return self._size

    def all_reduce(self, tensor, op) -> None: ...


class TestSums:
    @pytest.mark.parametrize("scale", [5e-324, 1e-300, 1.0, 3e17, 1e308])
    @pytest.mark.parametrize("size", [1, 3, 1000])
    def test_values_are_rounded_to_multiples_of_a_power_of_two(self, scale, size):
        """If the others add 0, the sum is the values rounded to 2^−(61 − log₂ P) of the largest."""
        values = scale * np.random.default_rng(0).uniform(-1, 1, (50, 2))
        total, counts = TorchProcessGroup(OneWorker(size)).all_reduce_exact(values, [3, 2**60])
        assert counts == [3, 2**60]
        assert np.abs(total - values).max() <= np.abs(values).max() * 2.0 ** -(61 - (size - 1).bit_length())

    def test_empty_arrays_and_zeros(self):
        group = TorchProcessGroup(OneWorker())
        assert group.all_reduce_exact(np.empty((0, 2)))[0].shape == (0, 2)
        assert not group.all_reduce_exact(np.zeros((3, 1)))[0].any()

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_a_value_that_is_not_finite_makes_all_sums_nan(self, value):
        total, counts = TorchProcessGroup(OneWorker()).all_reduce_exact(np.array([[1.0], [value]]), [5])
        assert np.isnan(total).all()
        assert counts == [5]

    def test_a_lost_worker_raises_with_the_last_line_of_torch(self):
        class Gone(OneWorker):
            def all_reduce(self, tensor, op) -> None:  # noqa: ARG002
                raise RuntimeError("backtrace\nConnection closed by peer")

        with pytest.raises(WorkerLostError, match="Connection closed by peer"):
            TorchProcessGroup(Gone()).all_reduce_sum(1)


class TestAgreement:
    @pytest.mark.parametrize(
        ("value", "equal", "other"),
        [
            (0.1, np.float64(0.1), 0.2),
            (np.arange(3.0), np.arange(3.0), np.arange(3)),
            (np.array(["a", None]), np.array(["a", None]), np.array(["b", None])),
            (np.random.RandomState(1), np.random.RandomState(1), np.random.RandomState(2)),
            (np.random.default_rng(1), np.random.default_rng(1), np.random.default_rng(2)),
            ([1, "a"], (1, "a"), [1, "b"]),
            ({"x", "y", "z"}, {"z", "y", "x"}, {"x"}),
            ({0: 1.0}, {0: np.float64(1.0)}, {0: 2.0}),
            (GaussNewton(tol=0.5), GaussNewton(tol=0.5), GaussNewton(tol=0.25)),
        ],
    )
    def test_equal_texts_for_equal_values(self, value, equal, other):
        assert describe(value) == describe(equal) != describe(other)

    def test_one_process_always_agrees(self):
        check_same(SINGLE_PROCESS, {"learning_rate": 0.1})
        with pytest.raises(InputError, match="no"), raise_on_all_workers(SINGLE_PROCESS):
            raise InputError("no")
