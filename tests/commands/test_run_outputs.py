"""Whatever else fails, the model is written; and what would take its place is refused before training."""

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fireset import InputError, ShiftedReLUNetwork, TensorBoardLog, train
from fireset.model import Model
from support.checks import mentions

COMMAND = ("train", "table.csv", "--target", "y", "--width", "60", "--solver", "gradient", "--tol", "0", "-q")


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).standard_normal((40, 3))
    pl.DataFrame(X, schema=["a", "b", "c"]).with_columns(y=pl.Series(np.sin(X[:, 0]))).write_csv("table.csv")


@pytest.fixture
def large_files_fail(monkeypatch):
    """The system refuses to make a file longer than 30 kB, except for the model."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    save = Model.save

    def save_without_limit(model, path):
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        save(model, path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))

    monkeypatch.setattr(Model, "save", save_without_limit)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


class TestFullDisk:
    LEFT_OUT = "fireset: error: the model is in table.safetensors, but not all output was written: "

    @pytest.mark.usefixtures("large_files_fail")
    @pytest.mark.parametrize(
        ("option", "place", "parts"),
        [
            ("--tensorboard", "runs", ["--tensorboard"]),
            ("--history", "h.csv", ["--history", "h.csv"]),
            ("--report", "p.html", ["--report", "p.html"]),
        ],
    )
    def test_the_model_is_written_and_one_line_says_what_is_not(self, run, option, place, parts):
        code, out, err = run(*COMMAND, "--max-iter", "400", option, place, "--json")
        lines = err.splitlines()
        assert code == 73
        assert mentions(lines[-1], "table.safetensors", *parts)
        assert len(lines) == 1 + (option == "--tensorboard")  # which warns when it can no longer write
        facts = json.loads(out)
        assert len(facts["not_written"]) == 1
        assert mentions(facts["not_written"][0], *parts)
        assert facts["iterations"] == 400
        assert option[2:] not in facts
        assert Model.load("table.safetensors").estimator.network_.width == 60

    def test_one_that_fails_does_not_keep_the_others(self, run, monkeypatch):
        monkeypatch.setattr("fireset.training.history.History.to_csv", no_space)
        asked = ("--history", "h.csv", "--report", "p.html", "--tensorboard", "runs")
        code, out, err = run(*COMMAND, "--max-iter", "3", *asked)
        assert code == 73
        assert mentions(err, "table.safetensors", "--history", "h.csv")
        assert "not written" not in out
        assert Path("p.html").exists()
        assert not Path("h.csv").exists()
        assert len(list(Path("runs").iterdir())) == 1

    @pytest.mark.parametrize("when", ["write", "flush", "close"])
    def test_a_log_that_fails_at_any_moment(self, run, monkeypatch, when):
        monkeypatch.setattr(f"tensorboard.summary.writer.record_writer.RecordWriter.{when}", no_space)
        code, _, err = run(*COMMAND, "--max-iter", "3", "--tensorboard", "runs")
        assert code == 73
        assert "Traceback" not in err
        assert mentions(err, "--tensorboard")
        assert Path("table.safetensors").exists()

    @pytest.mark.slow
    def test_nobody_can_be_told(self):
        """Standard error goes to a full disk: lines of progress and warnings are lost, and the model is not."""
        command = [sys.executable, "-m", "fireset", *COMMAND[:-1], "--max-iter", "3", "--out", "m", "--learning-rate"]
        with open("/dev/full", "w") as full:
            done = subprocess.run([*command, "1e30"], stdout=subprocess.PIPE, stderr=full, check=False, timeout=100)
        assert b"model" in done.stdout
        assert Model.load("m").estimator.network_.width == 60

    @pytest.mark.slow
    @pytest.mark.parametrize("arguments", [(*COMMAND, "--max-iter", "3", "--out", "m"), ("engines",), ("--help",)])
    def test_results_go_to_a_full_disk(self, arguments):
        """One line says so, with an exit code of its own; the model is written."""
        command = [sys.executable, "-m", "fireset", *arguments]
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=100)
        assert done.returncode == 73
        assert done.stderr.endswith("fireset: error: standard output cannot be written: No space left on device\n")
        assert "Traceback" not in done.stderr
        assert Path("m").exists() == (arguments[0] == "train")


@pytest.mark.usefixtures("large_files_fail")
def test_a_log_warns_once_and_training_goes_on(tmp_path):
    X = np.eye(4)
    network = ShiftedReLUNetwork.initialize(50, 4)
    message = r"^cannot write to the folder .*: File too large; no more is logged$"
    with pytest.warns(UserWarning, match=message) as told, TensorBoardLog(tmp_path / "runs") as log:
        result = train(network, X, X[:, 0], max_iter=300, tol=0, callbacks=[log])
    assert sum("no more is logged" in str(one.message) for one in told) == 1  # others may come from elsewhere
    assert len(result.history) == 301
    assert log.failure.endswith(": File too large")


class TestOnePlaceForTwo:
    @pytest.mark.parametrize(
        ("asked", "parts"),
        [
            ("--out h.csv --history h.csv", ["--out", "h.csv", "--history", "h.csv"]),
            ("--out ./h.csv --history h.csv", ["--out", "h.csv", "--history", "h.csv"]),
            ("--out folder/../h.csv --history h.csv", ["--out", "folder/../h.csv", "--history", "h.csv"]),
            ("--out p.html --report link.html", ["--out", "p.html", "--report", "link.html"]),
            ("--out link.html --report p.html", ["--out", "link.html", "--report", "p.html"]),
            ("--report table.safetensors", ["--out", "table.safetensors", "--report", "table.safetensors"]),
            ("--history h.json --report h.json", ["--history", "--report"]),
            ("--out runs --tensorboard runs/", ["--out", "--tensorboard"]),
            ("--out ck --checkpoint ck", ["--out", "--checkpoint"]),
            ("--out m --tensorboard m/runs", ["--tensorboard", "--out"]),
            ("--out m --checkpoint through/m/ck", ["--checkpoint", "--out"]),
        ],
    )
    def test_is_refused_before_training(self, run, monkeypatch, asked, parts):
        Path("folder").mkdir()
        Path("through").symlink_to(".")
        Path("link.html").symlink_to("p.html")
        before = sorted(os.listdir())
        monkeypatch.setattr("fireset.commands.train.estimator_for", no_space)
        code, out, err = run(*COMMAND, *asked.split())
        assert (code, out) == (2, "")
        assert mentions(err, *parts)
        assert sorted(os.listdir()) == before

    def test_folders_may_be_shared_and_hold_files(self, run):
        asked = "--tensorboard all --checkpoint all --out all/m --history all/h.csv"
        Path("all").mkdir()
        code, _, err = run(*COMMAND, "--max-iter", "3", *asked.split())
        assert code == 0, err
        assert {"m", "h.csv"} <= set(os.listdir("all"))


def test_a_log_in_a_place_that_cannot_be_is_refused():
    with pytest.raises(InputError, match=r"^cannot write to the folder table.csv: "):
        TensorBoardLog("table.csv")
