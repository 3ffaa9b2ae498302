"""Failures of the command line: unexpected exceptions, closed streams, settings that overflow. Never a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fireset import InputError, ShiftedReLUNetwork
from fireset._util.errors import BROKEN_PIPE, INTERNAL, NOT_WRITTEN
from support.checks import mentions

SMALL = ("--width", "60", "--max-iter", "5")


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def write_table(rows=40) -> str:
    X = np.random.default_rng(0).standard_normal((rows, 3))
    y = np.where(X[:, 0] > 0, "up", "down")
    pl.DataFrame(X, schema=["a", "b", "c"]).with_columns(pl.Series("y", y)).write_csv("table.csv")
    return "table.csv"


def fail(*_, **__):
    raise ZeroDivisionError("division\nby zero")


class Panic(BaseException):
    """Rust extensions raise a class of their own, which is no Exception."""


def panic(*_, **__):
    raise Panic("panicked")


class TestUnexpectedExceptions:
    @pytest.mark.parametrize("raised", [fail, panic])
    def test_are_one_line_and_a_log(self, run, monkeypatch, tmp_path, raised):
        monkeypatch.setattr("fireset.commands.train.train_table", raised)
        code, out, err = run("train", write_table(), "--target", "y", "--quiet")
        assert (code, out) == (INTERNAL, "")
        assert err.startswith("fireset: error: ")
        assert err.count("\n") == 1
        [log] = (tmp_path / "state").rglob("*.log")
        assert str(log) in err
        text = log.read_text(encoding="utf-8")
        assert "Traceback (most recent call last)" in text
        assert mentions(text, "table.csv", "--target")
        assert raised.__name__ in text

    def test_are_an_object_where_json_was_asked_for(self, run, monkeypatch):
        monkeypatch.setattr("fireset.commands.info.describe_model", fail)
        code, out, err = run("info", "model", "--json")
        found = json.loads(out)
        assert code == found["exit_code"] == INTERNAL
        assert Path(found["log"]).is_file()
        assert found["error"] in err

    def test_keep_the_logs_of_others(self, run, monkeypatch, tmp_path):
        monkeypatch.setattr("fireset.commands.info.describe_model", fail)
        for _ in range(3):
            run("info", "model")
        assert len(list((tmp_path / "state").rglob("*.log"))) == 3

    def test_where_the_state_folder_cannot_be_written(self, run, monkeypatch, tmp_path):
        (tmp_path / "state").write_text("a file where the folder should be")
        monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
        monkeypatch.setattr("tempfile.tempdir", None)
        (tmp_path / "temporary").mkdir()
        monkeypatch.setattr("fireset.commands.info.describe_model", fail)
        code, _, err = run("info", "model")
        assert code == INTERNAL
        [log] = (tmp_path / "temporary").rglob("*.log")
        assert str(log) in err

    def test_where_no_log_can_be_written(self, run, monkeypatch):
        monkeypatch.setattr("fireset._util.crash_log._folders", list)
        monkeypatch.setattr("fireset.commands.info.describe_model", fail)
        code, _, err = run("info", "model")
        assert code == INTERNAL
        assert err.count("\n") == 1
        assert Path(__file__).name in err  # where it was raised

    def test_of_a_file_are_the_users(self, run, monkeypatch):
        def refuse(*_, **__):
            raise PermissionError(13, "Permission denied", "secret.bin")

        monkeypatch.setattr("fireset.commands.info.describe_model", refuse)
        code, _, err = run("info", "model")
        assert code == 2
        assert "secret.bin" in err
        assert "Permission denied" in err


def fireset(command: str) -> tuple[int, str, str]:
    """Run a shell command in which $fireset is the program."""
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "fireset": f"{sys.executable} -m fireset"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
class TestClosedStreams:
    @pytest.fixture(autouse=True)
    def _model(self, run):
        assert run("train", write_table(), "--target", "y", *SMALL, "--out", "model")[0] == 0

    @pytest.mark.parametrize(
        "command",
        [
            "info model",
            "info model --json",
            "predict model table.csv",
            "predict model table.csv --json",
            "engines",
            "--help",
            "train --help",
            "--version",
            "theory table.csv --target y --width 100",
        ],
    )
    def test_standard_output_closed(self, command):
        code, out, err = fireset(f"$fireset {command} >&-")
        assert (code, out) == (NOT_WRITTEN, "")
        assert err.splitlines()[-1].startswith("fireset: error: standard output")
        assert "Traceback" not in err

    def test_the_model_is_written_all_the_same(self):
        code, _, err = fireset("$fireset train table.csv --target y --width 60 --out second >&-")
        assert code == NOT_WRITTEN
        assert "Traceback" not in err
        assert fireset("$fireset info second")[0] == 0

    def test_predictions_into_a_file_need_no_standard_output(self):
        assert fireset("$fireset predict model table.csv --out p.csv >&-")[0] == 0
        assert pl.read_csv("p.csv").height == 40

    @pytest.mark.parametrize("streams", ["2>&-", "2>&- <&-", "<&-"])
    def test_other_streams_closed(self, streams):
        code, out, _ = fireset(f"$fireset train table.csv --target y --width 60 --json {streams}")
        assert code == 0
        assert json.loads(out)["rows"] == 32  # nothing else on standard output

    def test_all_streams_closed(self):
        assert fireset("$fireset info model <&- >&- 2>&-") == (NOT_WRITTEN, "", "")

    @pytest.mark.parametrize("command", ["info model", "predict model table.csv", "engines", "--help", "--version"])
    def test_reader_that_goes_away(self, command):
        code, out, err = fireset(f"$fireset {command} | true; exit ${{PIPESTATUS[0]}}")
        assert code in (BROKEN_PIPE, 0)  # 0: written before the reader was gone
        assert (out, err.count("Traceback")) == ("", 0)
        assert "Exception" not in err

    @pytest.mark.parametrize("unbuffered", ["", "1"])
    def test_reader_of_the_first_line(self, unbuffered, monkeypatch):
        monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
        X = np.random.default_rng(0).standard_normal((200_000, 3))
        pl.DataFrame(X, schema=["a", "b", "c"]).write_csv("many.csv")
        code, out, err = fireset("$fireset predict model many.csv | (read line; echo $line); exit ${PIPESTATUS[0]}")
        assert (code, out, err) == (BROKEN_PIPE, "prediction\n", "")


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e15, float("inf"), 0.0, -1.0])
def test_output_scale_out_of_range(scale, run):
    with pytest.raises(InputError, match="output_scale"):
        ShiftedReLUNetwork.initialize(10, 4, output_scale=scale)
    code, _, err = run("train", write_table(), "--target", "y", *SMALL, "--quiet", "--output-scale", str(scale))
    assert code == 2
    assert err.count("\n") == 1
    assert "output_scale" in err
