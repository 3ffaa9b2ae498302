"""Hold-out splits: stratified, by group and by time."""

import warnings
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fireset import ShiftedReLUClassifier
from fireset._util.errors import InputError
from fireset.tables.holdout import SplitHint, hold_out, hold_out_groups, hold_out_latest, suggest_splits
from fireset.tables.problem import TableProblem
from support.checks import refusal

OPTION = {"option": "--holdout"}


def is_partition(kept: np.ndarray, held: np.ndarray, rows: int) -> bool:
    return sorted([*kept.tolist(), *held.tolist()]) == list(range(rows))


# Classes


@given(
    codes=st.lists(st.integers(0, 6), min_size=2, max_size=60),
    share=st.floats(0.01, 0.6),
    seed=st.integers(0, 5),
)
def test_every_class_keeps_a_training_row(codes, share, seed):
    numbered = np.unique(codes, return_inverse=True)[1]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            kept, held = hold_out(len(codes), share, seed=seed, **OPTION, codes=numbered)
    except InputError as error:
        assert "give a smaller share" in str(error) or "single row" in str(error)  # noqa: PT017
        return
    assert is_partition(kept, held, len(codes))
    assert set(numbered[kept]) == set(numbered)
    assert 1 <= len(held) <= np.ceil(share * len(codes))


def test_a_class_with_one_row_stays_in_training():
    codes = np.array([0] * 20 + [1] * 20 + [2])
    with pytest.warns(UserWarning, match="'rare'"):
        kept, held = hold_out(41, 0.2, seed=0, **OPTION, codes=codes, classes=["a", "b", "rare"])
    assert 40 in kept
    assert np.bincount(codes[held]).tolist() == [5, 4] or np.bincount(codes[held]).tolist() == [4, 5]


def test_more_classes_than_rows_to_hold_out():
    codes = np.repeat(np.arange(10), 3)
    kept, held = hold_out(30, 0.2, seed=0, **OPTION, codes=codes)
    assert len(held) == 6
    assert set(codes[kept]) == set(range(10))


def test_classes_of_one_row_each_cannot_be_held_out():
    assert "single row" in refusal(hold_out, 3, 0.2, seed=0, **OPTION, codes=np.arange(3))


def test_the_default_split_is_that_of_scikit_learn():
    from sklearn.model_selection import train_test_split

    codes = np.array([0, 1, 2] * 20)
    kept, held = hold_out(60, 0.2, seed=3, **OPTION, codes=codes)
    expected = train_test_split(np.arange(60), test_size=12, random_state=3, stratify=codes)
    np.testing.assert_array_equal(kept, np.sort(expected[0]))
    np.testing.assert_array_equal(held, np.sort(expected[1]))


def test_early_stopping_with_a_class_of_one_row():
    X = np.random.default_rng(0).standard_normal((60, 2))
    y = np.where(X[:, 0] > 0, "a", "b").astype(object)
    y[7] = "rare"
    settings = {"width": 200, "random_state": 0, "solver": "gradient", "max_iter": 5, "tol": 0.0}
    with pytest.warns(UserWarning, match="'2'|2"):
        model = ShiftedReLUClassifier(**settings, early_stopping=True).fit(X, y)
    assert 7 in model.training_rows_
    assert model.classes_.tolist() == ["a", "b", "rare"]


# Groups


@given(
    groups=st.lists(st.integers(0, 9), min_size=2, max_size=60),
    share=st.floats(0.01, 0.9),
    seed=st.integers(0, 3),
    data=st.data(),
)
def test_groups_stay_together(groups, share, seed, data):
    values = np.array(groups)
    codes = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(groups), max_size=len(groups))))
    codes = np.unique(codes, return_inverse=True)[1]
    try:
        kept, held = hold_out_groups(values, share, seed=seed, option="--holdout-by g", codes=codes)
    except InputError:
        counts = [len(set(values[codes == code])) for code in set(codes)]
        assert len(set(groups)) == 1 or min(counts) == 1
        return
    assert is_partition(kept, held, len(groups))
    assert len(kept)
    assert len(held)
    assert not set(values[kept]) & set(values[held])
    assert set(codes[kept]) == set(codes)


def test_group_splits_approximate_the_share_and_depend_on_the_seed():
    groups = np.repeat(np.arange(50), 4)
    splits = [hold_out_groups(groups, 0.2, seed=seed, option="--holdout-by g")[1] for seed in (0, 0, 1)]
    assert [len(held) for held in splits] == [40, 40, 40]
    assert splits[0].tolist() == splits[1].tolist() != splits[2].tolist()


def test_one_group_cannot_be_split():
    message = refusal(hold_out_groups, np.zeros(9), 0.2, seed=0, option="--holdout-by g")
    assert message.startswith("--holdout-by g")


def test_a_share_of_zero():
    kept, held = hold_out_groups(np.arange(4), 0.0, seed=0, option="--holdout-by g")
    assert (kept.tolist(), held.tolist()) == ([0, 1, 2, 3], [])
    kept, held = hold_out_latest(np.arange(4.0), 0.0, option="--holdout-by day")
    assert (kept.tolist(), held.tolist()) == ([0, 1, 2, 3], [])


# Time


@given(days=st.lists(st.integers(0, 20) | st.none(), min_size=2, max_size=50), share=st.floats(0.01, 0.9))
def test_hold_out_rows_are_later_than_training_rows(days, share):
    times = np.array([np.nan if day is None else float(day) for day in days])
    known = {day for day in days if day is not None}
    if len(known) < 2 and (len(known) == 0 or None not in days):
        assert refusal(hold_out_latest, times, share, option="--holdout-by day").startswith("--holdout-by day")
        return
    kept, held = hold_out_latest(times, share, option="--holdout-by day")
    assert is_partition(kept, held, len(days))
    assert len(held)
    assert len(kept)
    assert not np.isnan(times[held]).any()
    earlier = times[kept][~np.isnan(times[kept])]
    assert len(earlier) == 0 or earlier.max() < times[held].min()


def test_the_last_fifth():
    order = np.random.default_rng(0).permutation(100)
    kept, held = hold_out_latest(order.astype(float), 0.2, option="--holdout-by day")
    assert sorted(order[held]) == list(range(80, 100))
    assert len(kept) == 80


def test_a_class_that_begins_late_is_refused():
    codes = np.array([0] * 8 + [1] * 2)
    message = refusal(
        hold_out_latest, np.arange(10.0), 0.2, option="--holdout-by day", codes=codes, classes=["old", "new"]
    )
    assert "'new'" in message


@pytest.mark.parametrize("rows", ["1,u\n2,u\n3,v\n4,v\n5,rare\n", "1,u\n2,u\n3,v\n4,v\n"])
def test_rare_classes_do_not_reject_a_table(tmp_path, rows):
    file = tmp_path / "t.csv"
    file.write_text("a,y\n" + rows)
    problem = TableProblem.read(file, "y")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        kept, held = problem.hold_out(0.2, 0)
    assert is_partition(kept, held, len(problem.y))
    assert len(held) == 1
    assert set(problem.y[kept]) == set(problem.y)


# A column of the table


@pytest.fixture
def visits(tmp_path) -> Path:
    """Rows of 12 customers on 60 days; the target is a number."""
    rng = np.random.default_rng(0)
    rows = 60
    pl.DataFrame(
        {
            "customer_id": rng.integers(100, 112, rows),
            "name": [f"c{k}" for k in rng.integers(0, 12, rows)],
            "day": [f"{d.day}.{d.month}.{d.year}" for d in (date(2024, 1, 1) + timedelta(days=k) for k in range(rows))],
            "price": rng.standard_normal(rows),
            "kind": rng.choice(["x", "y"], rows),
            "y": rng.standard_normal(rows),
        }
    ).write_csv(tmp_path / "visits.csv")
    return tmp_path / "visits.csv"


@pytest.mark.parametrize("drop", [[], ["customer_id", "name", "day"]])
def test_splits_by_used_and_dropped_columns(visits, drop):
    problem = TableProblem.read(visits, "y", drop=drop)
    table = pl.read_csv(visits)
    for by in ("customer_id", "name"):
        kept, held = problem.hold_out(0.25, 0, by=by)
        assert is_partition(kept, held, 60)
        assert not set(table[by][kept]) & set(table[by][held])
        assert 8 <= len(held) <= 22
    _, held = problem.hold_out(0.25, 0, by="day")
    assert sorted(held.tolist()) == list(range(45, 60))


def test_columns_that_cannot_split(visits):
    problem = TableProblem.read(visits, "y")
    assert "did you mean 'customer_id'" in refusal(problem.hold_out, 0.2, 0, by="customer")
    assert "target" in refusal(problem.hold_out, 0.2, 0, by="y")
    assert "'price'" in refusal(problem.hold_out, 0.2, 0, by="price")


def test_columns_that_suggest_another_split(visits):
    problem = TableProblem.read(visits, "y")
    hints = problem.split_hints
    assert [(hint.column, hint.kind) for hint in hints] == [("customer_id", "groups"), ("day", "time")]
    assert all(isinstance(hint, SplitHint) and "\n" not in hint.reason for hint in hints)


def test_tables_without_suggestions():
    table = pl.DataFrame(
        {
            "id": np.arange(40),  # differs in every row: no entity
            "width": np.arange(40) % 3,  # ends like "id" but is none
            "paid": [0, 1] * 20,
            "born": [date(2024, 1, 1)] * 40,
        }
    )
    assert suggest_splits(table) == []
