"""Columns of numbers with a few words: categories, or numbers with missing cells."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest

import fireset
from fireset import InputError, ShiftedReLURegressor
from fireset.tables.column_types.category import CategoryColumn
from fireset.tables.column_types.number import NumberColumn
from fireset.tables.encoder import TableEncoder
from fireset.tables.problem import TableProblem

RNG = np.random.default_rng(0)
CYLINDERS = [["4", "6", "8", "5", "3"][k % 5] for k in range(92)] + ["rotary"]
MEASURED = [f"{value:.2f}" for value in RNG.normal(50, 10, 90)] + ["<5", "<5", ">100"]
COLUMNS = {"few": CYLINDERS, "many": MEASURED, "z": [float(k % 7) for k in range(93)]}
Y = np.arange(93) % 11 + 0.5


def frame_of(kind: str):
    if kind == "numpy":
        return np.array([[*row] for row in zip(*COLUMNS.values(), strict=True)], dtype=object)
    if kind == "pandas of objects":  # numbers as numbers beside words
        cells = {name: [_number(cell) for cell in column] for name, column in COLUMNS.items()}
        return pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in cells.items()})
    return pd.DataFrame(COLUMNS) if kind == "pandas" else pl.DataFrame(COLUMNS)


def _number(cell):
    try:
        return float(cell)
    except ValueError:
        return cell


@pytest.mark.parametrize("kind", ["pandas", "pandas of objects", "polars", "numpy"])
def test_few_values_are_categories_and_many_are_numbers(kind):
    model = ShiftedReLURegressor(width=64, max_iter=3)
    with pytest.warns(UserWarning, match="among numbers") as warned:
        model.fit(frame_of(kind), Y)
    few, many, _ = model.encoder_.columns
    assert isinstance(few, CategoryColumn)
    assert set(few.categories) == {"3", "4", "5", "6", "8", "rotary"}
    assert isinstance(many, NumberColumn)
    assert many.indicator
    assert many.fill == pytest.approx(np.median([float(cell) for cell in MEASURED[:90]]))
    said = [str(one.message) for one in warned]
    names = ("x0", "x1") if kind == "numpy" else ("few", "many")
    assert any(f"'{names[0]}'" in one and "'rotary'" in one for one in said)
    assert any(f"'{names[1]}'" in one and "'<5', '>100'" in one and "categorical" in one for one in said)
    assert np.isfinite(model.predict(frame_of(kind))).all()


@pytest.mark.parametrize("kind", ["pandas", "polars", "numpy"])
def test_words_at_prediction(kind, tmp_path):
    """Words of training are accepted silently; new words count as missing, with a warning."""
    model = ShiftedReLURegressor(width=64, max_iter=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(frame_of(kind), Y)
    fireset.save(model, tmp_path / "model")
    rows = {"few": ["4", "rotary", "4", "4"], "many": ["50.0", "<5", ">100", "12.5"], "z": [1.0, 2.0, 3.0, 4.0]}
    new = {**rows, "few": ["4", "hybrid", "4", "4"], "many": ["50.0", "n.d.", "<5", "12.5"]}
    for each in (model, fireset.load(tmp_path / "model")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            known = each.predict(_as(kind, rows))
        with pytest.warns(UserWarning, match="'n.d.'|'hybrid'") as warned:
            other = each.predict(_as(kind, new))
        said = " ".join(str(one.message) for one in warned)
        assert "'n.d.'" in said
        assert "'hybrid'" in said
        assert known[0] == other[0]
        assert known[3] == other[3]
        assert np.isfinite(other).all()


def _as(kind: str, columns: dict):
    if kind == "numpy":
        return np.array([[*row] for row in zip(*columns.values(), strict=True)], dtype=object)
    return pd.DataFrame(columns) if kind == "pandas" else pl.DataFrame(columns)


def test_all_rows_of_a_file_determine_the_type(tmp_path):
    """Also hold-out rows, so that a word that occurs only there is accepted."""
    path = tmp_path / "cars.csv"
    pl.DataFrame(COLUMNS).with_columns(y=pl.Series(Y)).write_csv(path)
    with pytest.warns(UserWarning, match="rotary"):
        problem = TableProblem.read(path, "y", drop=["z"])
    few, many = problem.encode(np.arange(80)).encoder.columns  # without any word
    assert isinstance(few, CategoryColumn)
    assert isinstance(many, NumberColumn)
    assert many.text_format.words == ("<5", ">100")
    stored = TableEncoder.from_dict(problem.encode(np.arange(80)).encoder.to_dict())
    assert stored.columns == (few, many)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        matrix = stored.encode(pl.DataFrame({"few": ["8", "4"], "many": ["<5", "7"]}))
    assert matrix[:, -1].tolist() == [many.fill, 7.0]


def test_requested_categories(tmp_path):
    path = tmp_path / "cars.csv"
    pl.DataFrame(COLUMNS).with_columns(y=pl.Series(Y)).write_csv(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem = TableProblem.read(path, "y", drop=["few"], categorical=["many"])
    assert "many=<5" in problem.encode().encoder.feature_names


@pytest.mark.parametrize("ordered", [False, True])
def test_a_pandas_categorical_with_numbers_and_a_word(ordered):
    cells = pd.Categorical(["0", "1", "2", "3+"] * 10, categories=["0", "1", "2", "3+"], ordered=ordered)
    table = pd.DataFrame({"dependents": cells, "z": np.arange(40.0) % 7})
    model = ShiftedReLURegressor(width=64, max_iter=3).fit(table, np.arange(40) % 4 + 0.5)
    texts = table.assign(dependents=table["dependents"].astype(str))
    assert np.array_equal(model.predict(table), model.predict(texts))


@pytest.mark.parametrize(
    "cells",
    [
        ["$1,200.50", "$3", "call us", "$7.25", "$1.10", "$9", "$8", "$9.99", "$2", "$4", "$5", "$6"],
        ["3,5", "4,5", "k.A.", "6,25", "7,5", "8,5", "9,5", "1,5", "2,5", "0,5", "1,75", "5,5"],
        ["12%", "13%", "14%", "tbd", "15%", "16%", "17%", "18%", "19%", "20%", "21%", "22%"],
    ],
)
def test_numbers_of_other_formats(cells):
    with pytest.warns(UserWarning, match=r"1 cell|1 word"):
        (column,) = TableEncoder.learn(pl.DataFrame({"a": cells})).columns
    assert isinstance(column, NumberColumn)
    assert len(column.text_format.words) == 1
    restored = TableEncoder.from_dict(TableEncoder((column,)).to_dict())
    assert restored.encode(pl.DataFrame({"a": cells}))[:, 1].sum() == 1  # the indicator


def test_many_different_words_are_text():
    """As in ticket numbers."""
    cells = [str(100 + k // 2) for k in range(70)] + [f"PC {k // 2}" for k in range(40)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (column,) = TableEncoder.learn(pl.DataFrame({"ticket": cells})).columns
    assert isinstance(column, CategoryColumn)


def test_words_are_refused_without_imputation():
    with pytest.raises(InputError, match=r"'many'.*'<5'.*row 91.*categorical"):
        TableEncoder.learn(pl.DataFrame({"many": MEASURED}), impute=False)


class TestNewWords:
    """A column that was all numbers in training."""

    encoder = TableEncoder.learn(pl.DataFrame({"age": [1.0, 2.0, 3.0]}))

    def test_a_few_are_missing(self):
        with pytest.warns(UserWarning, match=r"'age'.*'x'"):
            assert self.encoder.encode(pl.DataFrame({"age": ["1", "x", "3"]}))[:, 0].tolist() == [1, 2, 3]

    def test_a_column_of_words_is_refused(self):
        with pytest.raises(InputError, match=r"'age'.*'x'"):
            self.encoder.encode(pl.DataFrame({"age": ["1", "x", "y"]}))

    def test_a_number_of_another_format_is_refused(self):
        with pytest.raises(InputError, match=r"'age'.*'3,5'"):
            self.encoder.encode(pl.DataFrame({"age": ["1", "3,5", "3"]}))


def test_a_new_word_alone_counts_as_missing_as_within_a_table():
    """Training had words among the numbers of the column, so that another word does not mean another column."""
    frame = pl.DataFrame({"a": ["0", "1", "2", "green", "3", "1", "green", "2"], "b": np.arange(8.0)})
    with pytest.warns(UserWarning, match="green"):
        model = ShiftedReLURegressor(width=20, max_iter=2).fit(frame, np.arange(8.0))
    rows = pl.DataFrame({"a": ["red", "1", "2", "3"], "b": [1.0, 2.0, 3.0, 4.0]})
    with pytest.warns(UserWarning, match="red"):
        whole = model.predict(rows)
    with pytest.warns(UserWarning, match="red"):
        alone = model.predict(rows[:1])
    assert alone[0] == pytest.approx(whole[0], abs=1e-3)
