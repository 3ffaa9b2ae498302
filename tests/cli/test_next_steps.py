"""The command that each command suggests next keeps the options that were given, and works."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import polars as pl
import pytest


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_table(tmp_path, monkeypatch):
    """A table that needs options: a constant text target column, a column of broken numbers, a name with a space."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    frame = pl.DataFrame(X, schema=["a", "b b", "c"]).with_columns(
        broken=pl.Series([*map(str, range(59)), "three"]),
        zone=pl.Series([7, 9] * 30),
        y=pl.Series(np.where(X[:, 0] > 0, "up", "down")),
    )
    frame.write_csv("my table.csv")


def suggested(text: str) -> list[list[str]]:
    """The words of all commands that stand behind ``next`` or ``or``."""
    lines = re.findall(r"^(?:next|or):? +(fireset .*)$", text, re.MULTILINE)
    return [shlex.split(line, comments=True)[1:] for line in lines]


FILE = ("my table.csv", "--target", "y", "--drop", "broken", "--categorical", "zone", "--seed", "3", "-q")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("train", *FILE, "--explain", "--width", "80", "--holdout", "0.3"),
        ("theory", *FILE, "--width", "80"),
        ("quantum", *FILE, "--width", "80", "--iterations", "1"),
        ("compare", *FILE, "--width", "80", "--iterations", "2", "--engines", "data"),
        ("engines", "--explain", *FILE[:-3], "--width", "80"),
        ("train", *FILE, "--width", "80", "--out", "my model"),
    ],
    ids=lambda words: words[0],
)
def test_what_is_suggested_works(run, command):
    code, out, err = run(*command)
    assert code == 0, err
    found = suggested(out)
    assert found
    for words in found:
        words = ["my table.csv" if word == "NEW_TABLE" else word for word in words]
        quick = ["--iterations", "2", "--engines", "data", "--width", "80"] if words[0] == "compare" else []
        if "--models" in words:
            quick = ["--budget", "10s"]
        code, _, err = run(*words, *quick)
        assert code == 0, (words, err)


def test_explain_keeps_every_option(run):
    options = ["--width=80", "--holdout=0.3", "--loss=log_loss", "--balance", "--no-impute", "--seed=3"]
    code, out, _ = run("train", *FILE[:-3], *options, "--explain")
    assert code == 0
    [words] = suggested(out)
    assert set(options) < set(words)
    assert "--explain" not in words


def test_resume_keeps_every_option(run, monkeypatch):
    def terminated(*_, **__):
        size = {"rows": 2, "columns": 1, "width": 80, "iterations": 3}
        return {"stop_reason": "terminated", "checkpoint": "ck", "task": "regression", **size}

    monkeypatch.setattr("fireset.commands.train.train_table", terminated)
    code, out, _ = run("train", *FILE[:-1], "--width", "80", "--checkpoint", "ck")
    assert code == 143
    [words] = suggested(out)
    assert {"--drop=broken", "--width=80", "--checkpoint=ck", "--resume"} <= set(words)


@pytest.mark.usefixtures("few_digits")
def test_what_was_chosen_is_said_once(run):
    _, _, err = run("train", *FILE[:-1], "--width", "80")
    assert err.count("chosen: ") == 1
    _, _, err = run("demo", "--width", "100")
    assert err.count("chosen: ") == 1


def test_missing_cells_are_filled_as_the_model_fills_them(run):
    rng = np.random.default_rng(1)
    x = rng.lognormal(size=101)
    pl.DataFrame({"x": [None, *x[1:]], "y": x}).write_csv("gaps.csv")
    code, _, err = run("train", "gaps.csv", "--target", "y", "--width", "80", "--holdout", "0.5")
    assert code == 0
    _, out, _ = run("info", "gaps.safetensors", "--json")
    from fireset.model import Model

    model = Model.load("gaps.safetensors")
    [column] = [one for one in model.training["table_columns"] if one["name"] == "x"]
    assert column["filled_with"] == model.encoder.columns[0].fill
    assert f"{column['filled_with']:.6g}" in err
    assert json.loads(out)["columns"] == ["x"]
    assert Path("gaps.safetensors").exists()
