"""The page of a training run: its figures hold what scikit-learn finds, and it says what is missing and why."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import confusion_matrix

from fireset import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset._util.text import percent, significant
from fireset.commands.held_out import HeldOut, calibration, held_out_sections
from fireset.commands.run_report import LearningCurve, columns_section, learning_curve, learning_section
from fireset.commands.run_summary import summary_section
from fireset.commands.scores import wilson_interval
from fireset.commands.train import train_table
from fireset.reporting import write_page
from fireset.reporting.figures import CountMatrix, Figure, Section, Series, short_names
from fireset.training.history import History, Iteration
from support.checks import mentions
from support.report_pages import EVIL, Page


def of_classes(rows=500, classes=3, seed=0, names=None) -> HeldOut:
    """Probabilities that are right about as often as they say."""
    rng = np.random.default_rng(seed)
    chances = rng.dirichlet(np.full(classes, 0.5), rows)
    answers = (chances.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1)
    return HeldOut(answers, chances.argmax(axis=1), chances, names or [f"c{k}" for k in range(classes)], 0.0)


def of_numbers(rows=500) -> HeldOut:
    rng = np.random.default_rng(0)
    answers = rng.standard_normal(rows)
    return HeldOut(answers, answers + 0.1 * rng.standard_normal(rows), None, None, 0.0)


def parts(sections: list[Section]) -> dict[str, Any]:
    return {figure.title: figure for section in sections for figure in section.figures}


def text(sections: list[Section]) -> str:
    return " ".join(line for section in sections for line in (*section.paragraphs, *section.points))


@pytest.mark.parametrize("classes", [2, 3, 20])
def test_confusion_matrix_is_scikit_learns(classes):
    held = of_classes(classes=classes)
    expected = confusion_matrix(held.y_true, held.y_pred, labels=range(classes))
    shown = parts(held_out_sections(held, "classification"))["Confusion matrix"]
    assert isinstance(shown, CountMatrix)
    assert shown.counts == expected.tolist()
    assert shown.totals == expected.sum(axis=1).tolist()
    assert shown.row_names == shown.column_names == held.class_names


def test_of_many_classes_the_most_confused_are_shown():
    held = of_classes(rows=2000, classes=30)
    held.y_pred[held.y_true < 10] = held.y_true[held.y_true < 10]  # found every time
    held.y_pred[(held.y_true >= 10) & (held.y_pred < 10)] = 29
    shown = parts(held_out_sections(held, "classification"))["Confusion matrix"]
    whole = confusion_matrix(held.y_true, held.y_pred, labels=range(30))
    assert shown.row_names == [f"c{k}" for k in range(10, 30)]
    assert shown.column_names == [*shown.row_names, "all others"]
    np.testing.assert_array_equal(np.array(shown.counts)[:, :-1], whole[10:, 10:])
    assert np.sum(shown.counts, axis=1).tolist() == shown.totals == whole[10:].sum(axis=1).tolist()


def test_pairs_are_listed_by_how_often_they_are_confused():
    section = held_out_sections(of_classes(), "classification")[0]
    counts = [int(row[2]) for row in section.tables[0].rows]
    assert counts == sorted(counts, reverse=True)
    assert len(counts) == 6


@pytest.mark.parametrize("classes", [2, 4])
def test_calibration_curve_is_scikit_learns(classes):
    held = of_classes(classes=classes)
    assert held.probabilities is not None
    chances, true = held.probabilities[:, 1], held.y_true == 1
    if classes > 2:
        chances, true = held.probabilities.max(axis=1), held.y_true == held.y_pred
    expected_true, expected_said = calibration_curve(true, chances, n_bins=10)
    found = parts(held_out_sections(held, "classification"))
    curve = found["Calibration curve"].series[1]
    np.testing.assert_allclose(curve.x, expected_said)
    np.testing.assert_allclose(curve.y, expected_true)
    assert all(low <= y <= high for y, (low, high) in zip(curve.y, curve.spans, strict=True))
    bars = found["Rows in each bin"].series[0]
    assert bars.y == np.histogram(chances, np.linspace(0, 1, 11))[0].tolist()
    assert "percentage points apart" in text(held_out_sections(held, "classification"))


def test_calibration_error_and_edges():
    found = calibration(np.array([0.0, 1.0, 1.0, 0.95]), np.array([0, 1, 1, 0]))
    assert found.rows.tolist() == [1, *[0] * 8, 3]
    assert found.error == pytest.approx(0.75 * abs(2.95 / 3 - 2 / 3))


def test_interval_of_a_share():
    from scipy.stats import binomtest

    for right, rows in ((0, 1), (1, 1), (0, 50), (45, 50), (50, 50)):
        expected = binomtest(right, rows).proportion_ci(method="wilson")
        assert wilson_interval(right, rows) == pytest.approx((expected.low, expected.high), abs=1e-4)


def test_residuals():
    held = of_numbers()
    figures = parts(held_out_sections(held, "regression"))
    assert list(figures) == ["Predicted against actual", "Residual against predicted", "Distribution of residuals"]
    points = figures["Residual against predicted"].series[1]
    np.testing.assert_array_equal(points.x, held.y_pred)
    np.testing.assert_array_equal(points.y, held.y_true - held.y_pred)
    assert sum(figures["Distribution of residuals"].series[0].y) == 500


def test_many_points_are_thinned_and_outliers_do_not_multiply_bars():
    held = of_numbers(30_000)
    held.y_pred[0] += 1e6
    figures = parts(held_out_sections(held, "regression"))
    assert len(figures["Predicted against actual"].series[1].x) == 2000
    assert "2,000 of the 30,000 rows" in figures["Predicted against actual"].alt
    assert len(figures["Distribution of residuals"].series[0].y) <= 40


def test_one_row_held_out():
    for held, task in ((of_numbers(1), "regression"), (of_classes(1), "classification")):
        sections = held_out_sections(held, task)
        assert mentions(text(sections), "1 row")
        assert not {"Distribution of residuals", "Calibration curve"} & set(parts(sections))


@pytest.mark.parametrize(("task", "missing"), [("classification", "confusion matrix"), ("regression", "residuals")])
def test_nothing_held_out_says_what_is_missing(task, missing):
    sections = held_out_sections(None, task)
    assert not parts(sections)
    assert f"{missing} and " in text(sections)
    assert "--holdout" in text(sections)


# In short


def facts(**changes) -> dict[str, Any]:
    usual = {"task": "classification", "rows": 400, "columns": 2, "width": 100, "iterations": 1, "file": "t.csv"}
    usual |= {"solver": "gauss-newton", "stop_reason": "tol", "training_seconds": 0.1, "target": "y", "model": "m x"}
    return {**usual, "importances": {"a": 0.6, "b": 0.4}, "settings": {}, **changes}


def words(held: HeldOut | None, curve=None, **changes) -> str:
    return text([summary_section(facts(**changes), held, curve)])


def test_in_short():
    said = words(of_classes(), held_out_majority_accuracy=0.34, forecast_accuracy=0.7)
    assert mentions(said, "400", "t.csv", "y", "2", "1", "Gauss–Newton")
    assert mentions(said, "34.0 %")
    assert mentions(said, "70.0 %")
    assert "fireset predict 'm x' new.csv" in said


def test_in_short_for_numbers():
    held = of_numbers()
    said = words(held, task="regression", held_out_r2=0.99)
    error, plain = (np.sqrt(np.mean((held.y_true - other) ** 2)) for other in (held.y_pred, 0.0))
    assert (
        f"RMSE) is {significant(error)}, {percent(1 - error / plain, 0)} less than the {significant(plain)} of always"
        in said
    )
    assert "R² is 0.990" in said


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"stop_reason": "max_iter"}, "allow more with --max-iter"),
        ({"iterations": 0}, "Training left the network unchanged"),
        ({"held_out_majority_accuracy": 0.9}, "explain little of the target"),
        ({"forecast_accuracy": 0.99}, "below the forecast"),
        ({"held_out_low_recall_classes": {"c1": 0.1}}, "Train with --balance: recall is below one half for c1."),
        ({"importances": {"a": 0.95, "b": 0.05}, "held_out_accuracy": 1.0}, "The column a determines nearly all"),
    ],
)
def test_next_steps(changes, advice):
    assert advice not in words(of_classes(), held_out_majority_accuracy=0.3)
    assert advice in words(of_classes(), **{"held_out_majority_accuracy": 0.3, **changes})


def test_next_steps_without_a_score():
    assert "--holdout 0" in words(None)
    assert mentions(words(of_classes(5)), "5", "--holdout")


@pytest.mark.parametrize(
    ("scores", "rows", "advice"),
    [([0.8, 0.9], 400, "likely to help"), ([0.9, 0.902], 400, "hardly help"), ([0.8, 0.9], 1000, None)],
)
def test_are_more_rows_worth_it(scores, rows, advice):
    curve = LearningCurve([200, rows], scores, [(0.0, 0.0), (0.0, 0.08)])  # standard error 0.02
    said = words(None, curve)
    assert ("of the same kind" in said or "Collect more rows" in said) == (advice is not None)
    assert advice is None or advice in said


# Learning


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_learning_curve(task):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4))
    y = X[:, 0] * X[:, 1]
    if task == "classification":
        y = (y > 0).astype(int)
    kind = ShiftedReLUClassifier if task == "classification" else ShiftedReLURegressor
    estimator = kind(width=50, random_state=0)
    estimator.prepare(X, y)
    curve = learning_curve(estimator, estimator.rows_on_sphere(X), y)
    assert curve is not None
    assert curve.rows == [37, 75, 150, 300]
    assert curve.scores[-1] == estimator.settings_.forecast
    assert curve.scores[0] < curve.scores[-1]
    assert (curve.intervals is not None) == (task == "classification")
    estimator.prepare(X[:30], y[:30])
    assert learning_curve(estimator, estimator.rows_on_sphere(X[:30]), y[:30]) is None


def test_two_points_of_loss_are_said_in_words():
    def section(solver, count):
        history = History([Iteration(k, 8.0 / 2**k, None, 1, 0.5, 2, 3, 0.1, 0.1 * k) for k in range(count)])
        result: Any = SimpleNamespace(history=history, solver=solver)
        return learning_section(result, None, "accuracy")

    one = section("gauss-newton", 2)
    assert not one.figures
    assert len(one.paragraphs) == 1
    assert mentions(one.paragraphs[0], "8", "4", "1", "Gauss–Newton")
    assert [figure.title for figure in section("gradient", 9).figures] == [
        "Loss against iteration",
        "Loss against time",
    ]


def test_columns_by_importance():
    section = columns_section({f"x{k:02}": 2.0**-k for k in range(1, 31)})
    bars = section.figures[0]
    assert isinstance(bars, Figure)
    assert len(bars.series[0].y) == 20
    assert bars.series[0].y[0] == 50.0
    assert mentions(section.paragraphs[0], "10")


# On the page


def drawn(page: Path) -> list[dict[str, Any]]:
    found = re.search(r'id="drawn">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_long_names_are_shortened_and_stay_apart():
    names = ["a" * 200 + "1", "a" * 200 + "2", "b" * 100, "b" * 101, "short", "two\nlines"]
    short = short_names(names)
    assert len(set(short)) == 6
    assert max(map(len, short)) <= 28
    assert short[4:] == ["short", "two lines"]


def test_hostile_and_long_labels_stay_text(tmp_path):
    page = tmp_path / "page.html"
    names = [EVIL * 3, "x" * 200, "y"]
    bars = Figure("Bars", "x", "y", [Series("bars", names, [1, 2, 3], "bars")], "alt")
    write_page(page, "t", [*held_out_sections(of_classes(names=names), "classification"), Section("s", figures=[bars])])
    read = Page(page)
    assert (read.count("img"), read.count("script")) == (0, 3)
    assert EVIL * 3 in read.text.replace("\r", "")  # the names in full
    figure = drawn(page)[-1]
    assert "<" not in json.dumps(figure)
    assert figure["full_names"][1] == "x" * 200
    assert len(figure["names"][1]) == 24
    assert figure["series"][0]["x"] == [0, 1, 2]


@pytest.mark.parametrize("holdout", [0.3, 0])
def test_train_leaves_all_of_it(tmp_path, holdout):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3))
    file, page = tmp_path / "table.csv", tmp_path / "page.html"
    pl.DataFrame(X, schema=["a<b", "c", "d"]).with_columns(y=pl.Series(X[:, 0] + X[:, 1] > 0)).write_csv(file)
    shown = train_table(
        file,
        "y",
        out=tmp_path / "m.safetensors",
        loss="squared_error",
        holdout=holdout,
        settings={"width": 80, "max_iter": 5, "random_state": 0, "verbose": False},
        report=page,
    )
    read = Page(page)
    assert "fireset predict m.safetensors new.csv" in read.text
    assert "Learning curve" in read.text
    assert ("--holdout 0" in read.text) == (holdout == 0)
    assert read.count("table", **{"class": "matrix"}) == (holdout > 0)
    if holdout:
        cells = [int(count) for count in re.findall(r'<td class="(?:match|mismatch)"[^>]*>(\d+)<', page.read_text())]
        assert sum(cells) == shown["held_out_rows"] == 60
        assert f" {round(60 * shown['held_out_accuracy'])} of 60 rows" in read.text
