"""The train summary: the score first, with a baseline and an interval, then what matters and what was done."""

import json

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import (
    f1_score,
    log_loss,
    mean_absolute_error,
    precision_score,
    r2_score,
    recall_score,
    roc_auc_score,
)

from fireset._util.text import counted, duration, percent, significant
from fireset.commands.run_summary import train_summary
from fireset.commands.scores import r2_interval, scores


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def customers(rows=300) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    tenure, contract = rng.integers(0, 72, rows), rng.choice(["month", "year", "two years"], rows)
    leaves = tenure + 30 * (contract != "month") + 10 * rng.standard_normal(rows) < 35
    return pl.DataFrame(
        {
            "customer": rng.integers(0, 40, rows),
            "day": pl.date_range(pl.date(2024, 1, 1), pl.date(2024, 1, 1) + pl.duration(days=rows - 1), eager=True),
            "tenure": tenure,
            "contract": contract,
            "churn": np.where(leaves, "Yes", "No"),
            "spent": 100.0 * tenure + rng.standard_normal(rows),
        }
    )


def lines(text: str) -> dict[str, str]:
    return {label.strip(): value.strip() for label, _, value in (line.partition("  ") for line in text.splitlines())}


class TestForPeople:
    def test_classification(self, works):
        customers().write_csv("churn.csv")
        shown = lines(works("train", "churn.csv", "--target", "churn", "--drop", "spent", "--width", 200, "-q"))
        assert list(shown)[:2] == ["accuracy", "compared with"]
        assert "interval" in shown["accuracy"]
        assert {"AUC", "log loss", "class Yes", "what matters", "trained", "model", "next"} <= set(shown)
        assert not {"products", "ridge", "learning rate", "bias", "engine"} & set(shown)
        assert "4 columns" in shown["trained"]  # not what they are encoded as
        assert "converged after 1 round;" in shown["trained"]

    def test_regression(self, works):
        customers().write_csv("churn.csv")
        shown = lines(works("train", "churn.csv", "--target", "spent", "--width", 200, "-q"))
        assert list(shown)[:3] == ["R²", "errors", "compared with"]
        assert "interval" in shown["R²"]

    def test_verbose_has_the_internals(self, works):
        customers().write_csv("churn.csv")
        shown = lines(works("train", "churn.csv", "--target", "spent", "--width", 200, "-q", "--verbose"))
        assert {"ridge", "products", "learning rate", "total time"} <= set(shown)

    def test_no_rows_held_out(self, works):
        customers().write_csv("churn.csv")
        shown = lines(works("train", "churn.csv", "--target", "spent", "--width", 200, "-q", "--holdout", 0))
        assert next(iter(shown)) == "score"


class TestJson:
    def test_scores_are_those_of_scikit_learn(self, works):
        customers().write_csv("churn.csv")
        options = ("--target", "churn", "--drop", "spent", "--width", 200, "-q", "--json", "--holdout-by", "day")
        found = json.loads(works("train", "churn.csv", *options))
        held = customers().tail(60)  # the last days
        held.write_csv("held.csv")
        said = json.loads(works("predict", "churn.safetensors", "held.csv", "--proba", "--json"))
        truth, yes = (held["churn"] == "Yes").to_numpy(), np.array(said["prediction"]) == "Yes"
        chance = np.array(said["p(Yes)"])
        assert found["held_out_rows"] == 60
        assert found["held_out_accuracy"] == pytest.approx(np.mean(truth == yes))
        assert found["held_out_auc"] == pytest.approx(roc_auc_score(truth, chance))
        assert found["held_out_log_loss"] == pytest.approx(log_loss(truth, chance), rel=1e-5)
        for name, score in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
            assert found[f"held_out_{name}"] == pytest.approx(score(truth, yes)) == said[name]
        low, high = found["held_out_accuracy_interval"]
        assert low < found["held_out_accuracy"] < high
        assert found["total_seconds"] > found["training_seconds"]
        assert found["peak_memory_bytes"] > 10**8
        assert found["columns"] == 4 < found["encoded_columns"]

    def test_numbers(self):
        rng = np.random.default_rng(0)
        y = rng.standard_normal(3000)
        predicted = y + 0.3 * rng.standard_normal(3000)
        found = scores("regression", y, predicted)
        assert found["r2"] == pytest.approx(r2_score(y, predicted))
        assert found["mae"] == pytest.approx(mean_absolute_error(y, predicted))
        low, high = found["r2_interval"]
        # The standard error of R², from the squared errors alone, is about sd(e²)/(√n var(y)).
        error = np.std((y - predicted) ** 2) / np.sqrt(3000) / y.var()
        assert 2 * error < high - low < 6 * error
        assert low < found["r2"] < high
        assert r2_interval(np.ones(5), np.zeros(5)) is None


class TestHoldOutBy:
    def test_groups(self, works):
        customers().write_csv("churn.csv")
        options = ("--target", "churn", "--drop", "customer,spent", "--width", 200, "-q", "--json")
        found = json.loads(works("train", "churn.csv", *options, "--holdout-by", "customer"))
        assert 30 <= found["held_out_rows"] <= 90
        assert "hints" not in found

    def test_hint(self, works):
        customers().write_csv("churn.csv")
        found = json.loads(works("train", "churn.csv", "--target", "churn", "--width", 200, "-q", "--json"))
        [hint] = found["hints"]
        assert "--holdout-by customer" in hint

    def test_no_such_column(self, run):
        customers().write_csv("churn.csv")
        code, _, err = run("train", "churn.csv", "--target", "churn", "--holdout-by", "custmer", "-q")
        assert code == 2
        assert "--holdout-by" in err


@pytest.mark.parametrize(
    ("value", "text"),
    [(29893.2, "29,900"), (0.5, "0.500"), (11.77, "11.8"), (0.00123456, "0.00123"), (1.2345e-7, "1.23e-07"), (0, "0")],
)
def test_three_significant_digits(value, text):
    assert significant(value) == text


def test_other_words():
    assert (percent(0.8063), percent(1, 0)) == ("80.6 %", "100 %")
    assert (counted(1, "round"), counted(0, "round"), counted(1200, "row")) == ("1 round", "0 rounds", "1,200 rows")
    assert (duration(0.0054), duration(0.85), duration(4.21), duration(200)) == ("5.4 ms", "850 ms", "4.2 s", "3 min")


class TestTask:
    """Which task was taken, and why, in every command that reads a target or a model."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "command",
        [
            ("train",),
            ("train", "--explain"),
            ("compare", "--width", 100, "--iterations", 2, "--engines", "data"),
        ],
        ids=["train", "explain", "compare"],
    )
    def test_is_said(self, works, command):
        customers().write_csv("churn.csv")
        name, *options = command
        arguments = (name, "churn.csv", "--target", "churn", "--drop", "spent", "-q", *options)
        reason = json.loads(works(*arguments, "--json"))["task_reason"]
        assert reason.startswith("classification")
        assert reason in works(*arguments)

    def test_is_kept_with_the_model(self, works):
        customers().write_csv("churn.csv")
        found = json.loads(works("train", "churn.csv", "--target", "spent", "--width", 200, "-q", "--json"))
        assert json.loads(works("info", "churn.safetensors", "--json"))["task_reason"] == found["task_reason"]
        given = ("--task", "regression")
        found = json.loads(works("train", "churn.csv", "--target", "spent", "--width", 200, "-q", "--json", *given))
        assert "task_reason" not in found


def test_an_interval_of_few_rows_has_no_absurd_bounds():
    facts = {
        "held_out_rows": 3,
        "held_out_r2": -0.0001,
        "held_out_r2_interval": [-9e11, 0.999],
        "held_out_rmse": 1.0,
        "held_out_mae": 1.0,
        "held_out_constant_rmse": 1.0,
        "held_out_constant_prediction": 0.0,
        "rows": 12,
        "columns": 2,
        "width": 100,
        "iterations": 1,
        "stop_reason": "tol",
        "solver": "gauss-newton",
        "importances": {"a": 0.9999, "b": 0.0001},
    }
    shown = train_summary(facts)
    assert shown["R²"].startswith("0.000 (95 % interval below -1 to 0.999)")
    assert shown["what matters"] == "a 100 %"  # a share of 0 % is left out
