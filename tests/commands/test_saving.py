"""Saving: names of any length that the file system allows, and no model lost after training."""

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fireset import InputError
from fireset._util.errors import NOT_WRITTEN
from fireset._util.files import atomic_path, check_writable
from fireset.model import Model

COMMAND = ("train", "table.csv", "--target", "y", "--width", "60", "-q")
LONG_NAMES = ["ä" * 80, "ä" * 80 + ".safetensors", "語" * 80 + ".safetensors", "n" * 255, "😀" * 63, "ä" * 127]


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_table(tmp_path, monkeypatch):
    (tmp_path / "cwd").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    X = np.random.default_rng(0).standard_normal((40, 3))
    pl.DataFrame(X, schema=["a", "b", "c"]).with_columns(y=pl.Series(np.sin(X[:, 0]))).write_csv("table.csv")


@pytest.fixture
def works(run):
    def command(*arguments) -> str:
        code, out, err = run(*arguments)
        assert code == 0, err
        return out

    return command


class TestLongNames:
    @pytest.mark.parametrize("name", LONG_NAMES)
    def test_are_written(self, name):
        check_writable(name)
        assert not Path(name).exists()
        for text in ("first", "second"):
            with atomic_path(name) as temporary:
                temporary.write_text(text)
                assert len(os.fsencode(temporary.name)) <= max(len(os.fsencode(name)), 120)
            assert Path(name).read_text() == text
        check_writable(name)  # one that exists is left as it is
        assert Path(name).read_text() == "second"
        assert sorted(os.listdir()) == sorted(["table.csv", name])

    @pytest.mark.parametrize("name", ["ä" * 128, "語" * 86, "n" * 256])
    def test_too_long_for_the_system_is_found_out_at_once(self, name):
        with pytest.raises(InputError):
            check_writable(name)
        assert os.listdir() == ["table.csv"]

    def test_every_output_of_the_commands(self, works):
        name = "語" * 78
        outputs = ("--out", f"{name}.safetensors", "--history", f"{name}.csv", "--report", f"{name}.html")
        works(*COMMAND, *outputs, "--checkpoint", "ck")
        works("predict", f"{name}.safetensors", "table.csv", "--out", f"{name}-predicted.csv")
        works("export", f"{name}.safetensors", f"{name}.onnx")
        assert len(os.listdir()) == 7

    def test_too_long_is_refused_before_training(self, run, monkeypatch):
        monkeypatch.setattr("fireset.commands.train.estimator_for", no_space)
        code, _, err = run(*COMMAND, "--out", "ä" * 128)
        assert code == 2
        assert err.count("\n") == 1


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def fails_in(folder: Path, monkeypatch) -> None:
    """No file of this folder can be replaced any more."""
    replace = os.replace

    def replace_elsewhere(source, target):
        if Path(target).parent == folder.resolve():
            no_space()
        replace(source, target)

    monkeypatch.setattr("os.replace", replace_elsewhere)


class TestRescue:
    def rescued(self, run, *options) -> Path:
        code, out, err = run(*COMMAND, *options, "--json")
        facts = json.loads(out)
        assert code == NOT_WRITTEN
        assert "Traceback" not in err
        assert facts["model"] in err
        assert [line for line in facts["not_written"] if "--out" in line]
        assert Model.load(facts["model"]).estimator.network_.width == 60
        return Path(facts["model"])

    def test_to_the_working_folder(self, run, monkeypatch, tmp_path):
        (tmp_path / "full").mkdir()
        fails_in(tmp_path / "full", monkeypatch)
        place = self.rescued(run, "--out", str(tmp_path / "full" / "m.safetensors"))
        assert place.resolve() == tmp_path / "cwd" / "m.safetensors"

    def test_never_over_another_file(self, run, monkeypatch, tmp_path):
        (tmp_path / "full").mkdir()
        Path("m.safetensors").write_text("precious")
        fails_in(tmp_path / "full", monkeypatch)
        self.rescued(run, "--out", str(tmp_path / "full" / "m.safetensors"))
        assert Path("m.safetensors").read_text() == "precious"

    def test_to_the_temporary_folder(self, run, monkeypatch, tmp_path):
        fails_in(tmp_path / "cwd", monkeypatch)
        place = self.rescued(run)
        assert tmp_path / "temporary" in place.resolve().parents

    def test_folder_removed_during_training(self, run, monkeypatch, tmp_path):
        (tmp_path / "gone").mkdir()
        monkeypatch.setattr(
            "fireset.tables.problem.describe_columns", lambda *_: [shutil.rmtree(tmp_path / "gone"), []][1]
        )
        self.rescued(run, "--out", str(tmp_path / "gone" / "m.safetensors"))

    def test_nowhere_to_write(self, run, monkeypatch):
        monkeypatch.setattr("fireset._util.files.os.replace", no_space)
        code, out, err = run(*COMMAND)
        assert (code, out) == (NOT_WRITTEN, "")
        assert err.count("\n") == 1
        assert "No space left on device" in err

    @pytest.mark.usefixtures("few_digits")
    def test_of_the_demonstration(self, run, monkeypatch, tmp_path):
        (tmp_path / "full").mkdir()
        fails_in(tmp_path / "full", monkeypatch)
        code, out, _ = run("demo", "--width", "100", "-q", "--json", "--out", str(tmp_path / "full" / "m.safetensors"))
        facts = json.loads(out)
        assert (code, Path(facts["model"]).exists()) == (NOT_WRITTEN, True)
        assert facts["not_written"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("compare", "table.csv", "--target", "y", "--width", "100", "--iterations", "2", "--engines", "data", "-q"),
        ("compare", "table.csv", "--target", "y", "--models", "--budget", "20s", "-q"),
        ("quantum", "table.csv", "--target", "y", "--width", "100", "--iterations", "1", "-q"),
        ("theory", "table.csv", "--target", "y", "--width", "100", "-q"),
    ],
    ids=lambda words: " ".join(word for word in words if word in ("compare", "quantum", "theory", "--models")),
)
def test_results_are_shown_although_the_page_cannot_be_written(run, monkeypatch, command):
    monkeypatch.setattr("fireset._util.files.os.replace", no_space)
    code, out, err = run(*command, "--report", "page.html")
    assert code == NOT_WRITTEN
    assert len(out.splitlines()) > 3
    assert "page.html" in err.splitlines()[-1]
    code, out, _ = run(*command, "--report", "page.html", "--json")
    assert code == NOT_WRITTEN
    assert len(json.loads(out)["not_written"]) == 1


def test_a_file_name_that_is_no_text(works):
    """Such a name is part of what a model file says of its training."""
    name = os.fsdecode(b"t\xff.csv")
    os.rename("table.csv", name)
    works("train", name, "--target", "y", "--width", "60", "-q", "--out", "m", "--report", "p.html")
    assert Model.load("m").training["file"] == "t�.csv"
