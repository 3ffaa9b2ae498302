"""fireset against other models: the advice is a function of the fits, the budget is kept, no process is left behind."""

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
from fireset._util.wording import duration
from fireset.commands import compare_models as comparing
from fireset.commands.budget import Budget
from fireset.commands.compare_models import SCORES, compare_models, compare_models_table
from fireset.commands.model_contenders import MODELS, Fit, _log_loss, fit_and_score
from fireset.commands.model_verdict import Scored, advice, standard_error
from fireset.commands.model_worker import FailedFit, ModelWorker, Stopped
from fireset.tables.problem import TableProblem

WRONG = np.zeros(1000)  # of 1000 rows held out


def errors(*wrong: tuple[int, int]) -> np.ndarray:
    found = WRONG.copy()
    for start, end in wrong:
        found[start:end] = 1.0
    return found


def scored(name: str, row_errors: np.ndarray, seconds: float, *, splits: int = 1, rows: int = 4000) -> Scored:
    accuracy = 1.0 - float(row_errors.mean())
    return Scored(name, [Fit(rows, seconds, 0.0, {"accuracy": accuracy}, row_errors)] * splits)


class TestAdvice:
    def test_use_boosting(self):
        told = advice(
            [scored("boosting", errors((0, 20)), 1.0), scored("fireset", errors((0, 120)), 5.0)], "classification"
        )
        assert told.startswith("Use gradient boosting: its accuracy is 0.980, ahead of fireset with 0.880.")
        for figure in ("0.100", "0.009", "1,000 rows held out", "fireset has accuracy 0.880"):
            assert figure in told

    def test_a_tie_is_called_one_and_the_fastest_is_advised(self):
        told = advice(
            [
                scored("linear", errors((0, 20)), 0.01),
                scored("fireset", errors((20, 38)), 0.2),
                scored("forest", errors((0, 300)), 0.001),
            ],
            "classification",
        )
        assert told.startswith("A tie: fireset and the linear model have accuracy from 0.980 to 0.982")
        for part in ("1,000 rows held out", "Use the linear model", "10 ms", "20 times as long"):
            assert part in told

    def test_of_those_as_fast_the_better_one(self):
        models = [scored("svm", errors((0, 22)), 0.01), scored("linear", errors((30, 50)), 0.015)]
        assert "Use the linear model, among the fastest" in advice(models, "classification")

    def test_fireset_may_win(self):
        told = advice([scored("fireset", WRONG, 5.0), scored("mlp", errors((0, 50)), 1.0)], "classification")
        assert told.startswith("Use fireset: its accuracy is 1.000, ahead of the MLP with 0.950.")
        assert told.endswith("(by one split of the table, 1,000 rows held out).")

    def test_fewer_rows_are_told(self):
        slow = scored("svm", errors((0, 100)), 1.0, rows=500)
        slow.note = "learned from 500 of 4,000 rows"
        told = advice([scored("fireset", WRONG, 5.0), slow], "classification")
        assert "larger --budget" in told
        assert "The support vector machine had fewer training rows" in told

    def test_nothing_to_compare(self):
        assert advice([scored("linear", WRONG, 1.0), Scored("fireset")], "regression").startswith("No answer: ")

    def test_splits_that_disagree_make_unsure(self):
        """The same mean difference: steady over the splits it counts, with splits that disagree it does not."""
        first, second = scored("linear", WRONG, 1.0, splits=4), Scored("boosting")
        second.fits = [Fit(4000, 1.0, 0.0, {}, errors((0, n))) for n in (0, 100, 0, 100)]
        unsure = standard_error(first, second)
        assert unsure == pytest.approx(np.std([0, 0.1, 0, 0.1], ddof=1) * np.sqrt(1 / 4 + 1000 / 4000))
        second.fits = [Fit(4000, 1.0, 0.0, {}, errors((0, 50)))] * 4
        assert standard_error(first, second) == pytest.approx(errors((0, 50)).std() / np.sqrt(4000))


def test_seconds_as_people_say_them():
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


def test_log_loss_with_a_class_that_was_not_there():
    X, y = load_wine(return_X_y=True)
    model = LogisticRegression(max_iter=5000).fit(X, y)
    assert _log_loss(model, X, y) == pytest.approx(log_loss(y, model.predict_proba(X)))
    fewer = LogisticRegression(max_iter=5000).fit(X[y < 2], y[y < 2])
    assert _log_loss(fewer, X[y == 2], y[y == 2]) == pytest.approx(-np.log(np.finfo(float).eps))


class FakeWorker:
    """Fits that take as long as they are said to, without taking it."""

    def __init__(self, seconds_per_row: float):
        self.seconds_per_row, self.interrupted, self.asked = seconds_per_row, False, []

    def fit(self, name, train_rows, test_rows, seed, seconds) -> Fit:  # noqa: ARG002
        self.asked.append(len(train_rows))
        taken = self.seconds_per_row * len(train_rows)
        if taken > seconds:
            raise Stopped
        return Fit(len(train_rows), taken, 0.0, {}, np.zeros(len(test_rows)))


@pytest.mark.parametrize(
    ("seconds_per_row", "asked", "note"),
    [
        (1e-6, [500, 2000, 8000, 16000], None),
        (1e-3, [500, 2000], "learned from 7,... of 16,000 rows: all of them would take about 16 s"),
        (1e-1, [500], "stopped: its share of the budget, 10 s, was over"),
    ],
)
def test_more_and_more_rows_within_a_share(seconds_per_row, asked, note):
    model, worker = Scored("linear"), FakeWorker(seconds_per_row)
    split = np.arange(16000), np.arange(4000)
    comparing._first_fit(model, worker, split, 0, 10.0, lambda _: None)  # pyright: ignore[reportArgumentType]
    assert worker.asked[: len(asked)] == asked
    assert model.note is note or (model.note and re.fullmatch(note, model.note))
    assert bool(model.fits) is not model.stopped


def test_a_second_share_goes_on_with_more_rows():
    model, worker = Scored("linear"), FakeWorker(1e-3)
    split = np.arange(16000), np.arange(4000)
    for share in (3.0, 60.0):
        comparing._first_fit(model, worker, split, 0, share, lambda _: None)  # pyright: ignore[reportArgumentType]
    assert worker.asked[:2] == [500, 2000]
    assert worker.asked == sorted(set(worker.asked))  # no rows twice
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
    assert "Which model for wine.npz?" in text
    assert "fireset compare" in text
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_a_fit_is_stopped_and_its_process_is_gone(wine):
    """The first fit of a fresh process takes longer than a tenth of a second: it loads scikit-learn."""
    table = TableProblem.read(wine, "y")
    rows = np.arange(len(table.y))
    with ModelWorker(table.task, table.X, table.y, threading.Event()) as worker:
        with pytest.raises(Stopped):
            worker.fit("linear", rows, rows, 0, 0.1)
        assert multiprocessing.active_children() == []
        with pytest.raises(FailedFit, match=r"^ValueError: "):
            worker.fit("linear", rows[:1], rows, 0, 100.0)
        assert worker.fit("linear", rows, rows, 0, 100.0).scores["accuracy"] > 0.95  # by a process of its own
    assert multiprocessing.active_children() == []
    assert "OMP_WAIT_POLICY" not in os.environ


def test_interrupted_at_once(wine):
    stop = threading.Event()
    stop.set()
    started = time.monotonic()
    found = compare_models(TableProblem.read(wine, "y"), Budget(60), interrupted=stop)
    assert time.monotonic() - started < 30
    assert found.interrupted
    assert {model.note for model in found.models} == {"interrupted before it was fitted"}
    assert found.sentence().startswith("No answer: ")
    json.dumps([model.to_dict(SCORES["classification"]) for model in found.models], allow_nan=False)


def test_a_report_does_not_overwrite_the_table(wine):
    asked: dict[str, Any] = {"budget": 60.0, "seed": 0, "verbose": False}
    with pytest.raises(InputError, match=r"^--report .* would overwrite the input"):
        compare_models_table(wine, "y", report=wine, **asked)


def test_options_of_engines_are_refused(wine, run):
    code, _, err = run("compare", wine, "--models", "--target", "y", "--width", "50")
    assert code == 2
    assert "--width is for the comparison of engines; leave it out, or leave --models out" in err
