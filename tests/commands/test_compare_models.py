"""Comparison of models: the verdict follows the fits, the budget is kept, no process is left behind."""

import json
import multiprocessing
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from fireset import InputError
from fireset._util.text import duration
from fireset.commands.compare import compare_table
from fireset.commands.compare.budget import Budget
from fireset.commands.compare.model_contenders import (
    MODELS,
    Fit,
    FitFailed,
    FitStopped,
    ModelWorker,
    _log_loss,
    fit_and_score,
)
from fireset.commands.compare.models import _fit_first_split, compare_models
from fireset.commands.compare.result import ModelResult
from fireset.commands.compare.verdict import model_verdict, standard_error
from fireset.tables.problem import TableProblem
from support.checks import mentions

WRONG = np.zeros(1000)  # of 1000 rows held out


def errors(*wrong: tuple[int, int]) -> np.ndarray:
    found = WRONG.copy()
    for start, end in wrong:
        found[start:end] = 1.0
    return found


def fitted(name: str, row_errors: np.ndarray, seconds: float, *, splits: int = 1, rows: int = 4000) -> ModelResult:
    accuracy = 1.0 - float(row_errors.mean())
    return ModelResult(name, [Fit(rows, seconds, 0.0, {"accuracy": accuracy}, row_errors)] * splits)


class TestVerdict:
    def test_use_boosting(self):
        text = model_verdict(
            [fitted("boosting", errors((0, 20)), 1.0), fitted("fireset", errors((0, 120)), 5.0)], "classification"
        )
        assert mentions(text, "gradient boosting", "0.980", "fireset", "0.880")
        for figure in ("0.100", "0.009", "1,000 rows held out", "fireset has accuracy 0.880"):
            assert figure in text

    def test_of_a_tie_the_fastest_is_advised(self):
        text = model_verdict(
            [
                fitted("linear", errors((0, 20)), 0.01),
                fitted("fireset", errors((20, 38)), 0.2),
                fitted("forest", errors((0, 300)), 0.001),
            ],
            "classification",
        )
        assert mentions(text, "tie", "fireset", "linear model", "0.980", "0.982")
        for part in ("1,000 rows held out", "Use the linear model", "10 ms", "20 times as long"):
            assert part in text

    def test_of_models_as_fast_the_better_one_is_advised(self):
        models = [fitted("svm", errors((0, 22)), 0.01), fitted("linear", errors((30, 50)), 0.015)]
        assert "Use the linear model, among the fastest" in model_verdict(models, "classification")

    def test_fireset_may_win(self):
        text = model_verdict([fitted("fireset", WRONG, 5.0), fitted("mlp", errors((0, 50)), 1.0)], "classification")
        assert mentions(text, "fireset", "1.000", "MLP", "0.950")
        assert mentions(text, "1,000")

    def test_fewer_rows_are_reported(self):
        slow = fitted("svm", errors((0, 100)), 1.0, rows=500)
        slow.note = "learned from 500 of 4,000 rows"
        text = model_verdict([fitted("fireset", WRONG, 5.0), slow], "classification")
        assert "larger --budget" in text
        assert "The support vector machine had fewer training rows" in text

    def test_nothing_to_compare(self):
        assert model_verdict([fitted("linear", WRONG, 1.0), ModelResult("fireset")], "regression").startswith(
            "No answer: "
        )

    def test_splits_that_disagree_increase_the_standard_error(self):
        """With equal mean differences, the standard error is larger if the differences vary between splits."""
        first, second = fitted("linear", WRONG, 1.0, splits=4), ModelResult("boosting")
        second.fits = [Fit(4000, 1.0, 0.0, {}, errors((0, n))) for n in (0, 100, 0, 100)]
        unsure = standard_error(first, second)
        assert unsure == pytest.approx(np.std([0, 0.1, 0, 0.1], ddof=1) * np.sqrt(1 / 4 + 1000 / 4000))
        second.fits = [Fit(4000, 1.0, 0.0, {}, errors((0, 50)))] * 4
        assert standard_error(first, second) == pytest.approx(errors((0, 50)).std() / np.sqrt(4000))


def test_durations():
    shown = [duration(s) for s in (0.0004, 0.0123, 0.16, 1.04, 12.3, 150)]
    assert shown == ["0.4 ms", "12 ms", "160 ms", "1.0 s", "12 s", "2 min"]


@pytest.mark.parametrize("name", [name for name in MODELS if name != "fireset"])
def test_models_learn_both_tasks(name):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3)) * [1, 100, 0.01]
    number = 1000 + 50 * X[:, 0] + X[:, 1]
    split = np.arange(200), np.arange(200, 300)
    fit = fit_and_score(name, "regression", X, number, *split, 0)
    assert fit.scores["r2"] > 0.7
    assert fit.scores["r2"] == pytest.approx(1 - fit.row_errors.mean())
    fit = fit_and_score(name, "classification", X, (number > 1000).astype(int), *split, 0)
    assert fit.scores["accuracy"] == pytest.approx(1 - fit.row_errors.mean())
    assert fit.scores["accuracy"] > 0.85
    assert ("log_loss" in fit.scores) is (name != "svm")


def test_log_loss_of_a_class_without_training_rows():
    X, y = load_wine(return_X_y=True)
    model = LogisticRegression(max_iter=5000).fit(X, y)
    assert _log_loss(model, X, y) == pytest.approx(log_loss(y, model.predict_proba(X)))
    fewer = LogisticRegression(max_iter=5000).fit(X[y < 2], y[y < 2])
    assert _log_loss(fewer, X[y == 2], y[y == 2]) == pytest.approx(-np.log(np.finfo(float).eps))


class FakeWorker:
    """Pretends that fits take ``seconds_per_row`` times the number of rows."""

    def __init__(self, seconds_per_row: float):
        self.seconds_per_row, self.interrupted, self.requested = seconds_per_row, False, []

    def fit(self, name, train_rows, test_rows, seed, seconds) -> Fit:  # noqa: ARG002
        self.requested.append(len(train_rows))
        taken = self.seconds_per_row * len(train_rows)
        if taken > seconds:
            raise FitStopped
        return Fit(len(train_rows), taken, 0.0, {}, np.zeros(len(test_rows)))


@pytest.mark.parametrize(
    ("seconds_per_row", "requested", "note"),
    [
        (1e-6, [500, 2000, 8000, 16000], None),
        (1e-3, [500, 2000], "learned from 7,... of 16,000 rows: all of them would take about 16 s"),
        (1e-1, [500], "stopped: its share of the budget, 10 s, was over"),
    ],
)
def test_row_counts_grow_within_the_given_time(seconds_per_row, requested, note):
    model, worker = ModelResult("linear"), FakeWorker(seconds_per_row)
    split = np.arange(16000), np.arange(4000)
    _fit_first_split(model, worker, split, 0, 10.0, lambda _: None)  # pyright: ignore[reportArgumentType]
    assert worker.requested[: len(requested)] == requested
    assert model.note is note or (model.note and re.fullmatch(note, model.note))
    assert bool(model.fits) is not model.stopped


def test_a_second_call_continues_with_more_rows():
    model, worker = ModelResult("linear"), FakeWorker(1e-3)
    split = np.arange(16000), np.arange(4000)
    for share in (3.0, 60.0):
        _fit_first_split(model, worker, split, 0, share, lambda _: None)  # pyright: ignore[reportArgumentType]
    assert worker.requested[:2] == [500, 2000]
    assert worker.requested == sorted(set(worker.requested))  # no rows twice
    assert (model.fits[0].rows, model.note) == (16000, None)


@pytest.fixture
def wine(tmp_path) -> Path:
    X, y = load_wine(return_X_y=True)
    np.savez(tmp_path / "wine.npz", X=X, y=y)
    return tmp_path / "wine.npz"


@pytest.mark.slow
def test_whole_command(wine, run):
    page = wine.with_name("a page.html")
    options = ("--target", "y", "--json", "-q", "--budget", "5m", "--report", page)
    code, out, _ = run("compare", wine, "--models", *options)
    assert code == 0
    found = json.loads(out)
    assert {model["name"] for model in found["models"]} == set(MODELS)
    assert found["splits"] == 5
    for model in found["models"]:
        assert model["accuracy"] > 0.85, model
        assert model["note"] is None
    assert found["verdict"].startswith(("A tie: ", "Use "))
    text = page.read_text(encoding="utf-8")
    assert mentions(text, "wine.npz")
    assert "fireset compare" in text
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_a_fit_is_stopped_and_its_process_is_gone(wine):
    """The first fit of a new process takes longer than a tenth of a second, since it imports scikit-learn."""
    table = TableProblem.read(wine, "y")
    rows = np.arange(len(table.y))
    with ModelWorker(table.task, table.X, table.y, threading.Event()) as worker:
        with pytest.raises(FitStopped):
            worker.fit("linear", rows, rows, 0, 0.1)
        assert multiprocessing.active_children() == []
        with pytest.raises(FitFailed, match=r"^ValueError: "):
            worker.fit("linear", rows[:1], rows, 0, 100.0)
        assert worker.fit("linear", rows, rows, 0, 100.0).scores["accuracy"] > 0.95  # in a new process
    assert multiprocessing.active_children() == []
    assert "OMP_WAIT_POLICY" not in os.environ


def test_interrupted_at_once(wine):
    stop = threading.Event()
    stop.set()
    started = time.monotonic()
    found = compare_models(TableProblem.read(wine, "y"), Budget(60), interrupted=stop)
    assert time.monotonic() - started < 30
    assert found.interrupted
    assert {model.note for model in found.results} == {"interrupted before it was fitted"}
    assert found.verdict.startswith("No answer: ")
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_report_does_not_overwrite_the_table(wine):
    asked: dict[str, Any] = {"budget": 60.0, "seed": 0, "verbose": False}
    with pytest.raises(InputError, match=r"^--report "):
        compare_table(wine, "y", None, report=wine, **asked)


def test_options_of_engines_are_refused(wine, run):
    code, _, err = run("compare", wine, "--models", "--target", "y", "--width", "50")
    assert code == 2
    assert mentions(err, "--width", "--models")
