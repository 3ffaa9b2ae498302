"""The lock of a checkpoint folder: a second run is refused until the first has ended."""

import errno
import fcntl
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

from fireset import Checkpoints, InputError, ShiftedReLUNetwork, Trainer, train
from support.checks import sphere

ROWS = sphere(np.random.default_rng(3), 50, 5)
IN_USE = r"is in use by another run of this process; call finish\(\) of its Trainer, or give another folder$"


def network() -> ShiftedReLUNetwork:
    return ShiftedReLUNetwork.initialize(100, 5, seed=1, dtype="float64")


def trainer(folder, **changes) -> Trainer:
    checkpoints = Checkpoints(folder, every=2, resume=True)
    settings = {"tol": 0, "max_iter": 6, "engine": "dense", **changes}
    return Trainer(network(), ROWS, ROWS[:, 0], checkpoint=checkpoints, **settings)


class TestOneProcess:
    def test_the_second_is_refused_until_the_first_has_finished(self, tmp_path):
        first = trainer(tmp_path)
        for _ in range(5):
            first.step()
        before = sorted(os.listdir(tmp_path))
        with pytest.raises(InputError, match=IN_USE):
            trainer(tmp_path)
        assert sorted(os.listdir(tmp_path)) == before
        first.finish()
        assert trainer(tmp_path).resumed_at == 4

    def test_a_finished_run_releases_the_lock(self, tmp_path):
        for end in (6, 8):
            kept = trainer(tmp_path, max_iter=end)
            kept.run()
        assert kept.resumed_at == 6

    def test_a_failed_run_releases_the_lock(self, tmp_path):
        def fail(_):
            raise RuntimeError

        kept = trainer(tmp_path)
        with pytest.raises(RuntimeError):
            kept.run([fail])
        trainer(tmp_path).run()

    def test_a_refused_run_releases_the_lock(self, tmp_path):
        trainer(tmp_path).run()
        with pytest.raises(InputError, match=r"max_iter.* 6") as first:
            trainer(tmp_path, max_iter=2)
        with pytest.raises(InputError, match="differs in momentum") as second:
            trainer(tmp_path, momentum=0.5)
        with pytest.raises(InputError, match="iteration 6") as third:
            train(network(), ROWS, ROWS[:, 0], checkpoint=Checkpoints(tmp_path))
        assert all(str(one.value) for one in (first, second, third))  # the exceptions still exist
        trainer(tmp_path).run()

    def test_a_deleted_trainer_releases_the_lock(self, tmp_path):
        trainer(tmp_path).step()
        trainer(tmp_path).run()

    def test_a_run_continues_without_checkpoints_if_another_run_has_the_lock(self, tmp_path):
        def fail(_):
            raise RuntimeError

        first = trainer(tmp_path)
        for _ in range(2):
            first.step()
        with pytest.raises(RuntimeError):
            first.step([fail])
        second = trainer(tmp_path)
        first.step()
        with pytest.warns(UserWarning, match=r"iteration 4"):
            first.step()
        second.run()

    def test_a_file_system_without_locks_gives_a_warning(self, tmp_path, monkeypatch):
        def none(*_):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", none)
        with pytest.warns(UserWarning, match=r"No locks available"):
            trainer(tmp_path).run()

    def test_a_folder_in_place_of_the_lock(self, tmp_path):
        (tmp_path / "checkpoint.lock").mkdir()
        with pytest.raises(InputError, match=r"^cannot write .*checkpoint.lock: Is a directory$"):
            trainer(tmp_path)

    def test_a_child_process_does_not_hold_the_lock(self, tmp_path):
        first = trainer(tmp_path)
        first.step()
        read, write = os.pipe()
        begun, begin = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write)
            os.close(begin)
            os.read(read, 1)  # until the parent closes its end
            os._exit(0)
        os.close(begin)
        os.read(begun, 1)  # until the child has closed its end and its inherited files
        os.close(begun)
        try:
            with pytest.raises(InputError, match=IN_USE):  # the child has not released it
                trainer(tmp_path)
            first.finish()
            trainer(tmp_path).run()
        finally:
            os.close(write)
            os.waitpid(child, 0)
            os.close(read)


COMMAND = ("train", "table.csv", "--target", "y", "--width", "60", "--tol", "0", "--solver", "gradient", "-q")


def start(*options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "fireset", *COMMAND, "--checkpoint", "ck", "--every", "5", "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
class TestTwoProcesses:
    @pytest.fixture(autouse=True)
    def _in_a_folder_with_a_table(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        X = np.random.default_rng(0).standard_normal((40, 3))
        pl.DataFrame(X, schema=["a", "b", "c"]).with_columns(y=pl.Series(np.sin(X[:, 0]))).write_csv("table.csv")

    @pytest.mark.parametrize("resume", [(), ("--resume",)])
    def test_the_second_run_is_refused_and_a_killed_one_leaves_no_lock(self, resume):
        first = start("--max-iter", "100000000")
        try:
            until = time.monotonic() + 60
            while not list(Path("ck").glob("checkpoint-????????.safetensors")):
                assert first.poll() is None, first.communicate()
                assert time.monotonic() < until
                time.sleep(0.01)
            second = start("--max-iter", "100000000", *resume)
            out, err = second.communicate(timeout=60)
            assert second.returncode == 2
            assert "ck is in use by another run" in json.loads(out)["error"]
            assert err.count("\n") == 1
            assert first.poll() is None
        finally:
            first.send_signal(signal.SIGKILL)
            first.communicate()
        newest = max(int(file.name[11:19]) for file in Path("ck").glob("checkpoint-????????.safetensors"))
        last = start("--max-iter", str(newest + 3), "--resume")
        out, err = last.communicate(timeout=60)
        assert last.returncode == 0, err
        assert json.loads(out)["resumed_at_iteration"] == newest

    def test_of_two_simultaneous_runs_one_is_refused(self):
        for _ in range(7):
            pair = [start("--max-iter", "300", "--resume") for _ in range(2)]
            ended = sorted((process.wait(60), *process.communicate()) for process in pair)
            assert ended[0][0] == 0, ended
            assert "Traceback" not in ended[0][2] + ended[1][2]
            if ended[1][0]:  # otherwise the first had ended before the second started
                assert ended[1][0] == 2
                assert ended[1][2].count("\n") == 1
                assert "ck is in use by another run" in ended[1][2]
