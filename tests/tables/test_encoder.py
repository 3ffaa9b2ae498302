"""Encoding of tables as matrices."""

import copy
import json
import warnings
from datetime import date, datetime, time, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset._util.errors import InputError
from fireset.tables.column_types.category import CategoryColumn
from fireset.tables.column_types.date import DateColumn
from fireset.tables.encoder import TableEncoder
from support.checks import mentions, refusal

MIXED = pl.DataFrame(
    {
        "age": [30, 40, 50],
        "smokes": [True, False, True],
        "color": ["red", "blue", "red"],
        "zip": [2139, 10115, 2139],
    }
)


def test_encode_equals_the_matrix_made_by_hand():
    encoder = TableEncoder.learn(MIXED, categorical=["zip"])
    assert encoder.feature_names == ["age", "smokes", "color=blue", "color=red", "zip=10115", "zip=2139"]
    matrix = encoder.encode(MIXED.select("zip", "color", "smokes", "age", extra=pl.lit("ignored")))
    assert matrix.dtype == np.float64
    assert matrix.flags.c_contiguous
    expected = [[30, 1, 0, 1, 0, 1], [40, 0, 1, 0, 1, 0], [50, 1, 0, 1, 0, 1]]
    np.testing.assert_array_equal(matrix, expected)
    assert encoder.encode(MIXED.clear()).shape == (0, 6)


@pytest.mark.parametrize(("dtype", "forced"), [(pl.Categorical, False), (pl.Enum(["red", "green", "blue"]), True)])
def test_categorical_types_are_text(dtype, forced):
    encoder = TableEncoder.learn(MIXED.select(pl.col("color").cast(dtype)), categorical=["color"] if forced else [])
    np.testing.assert_array_equal(encoder.encode(MIXED), [[0, 1], [1, 0], [0, 1]])


def test_ordered_categories_are_encoded_by_position():
    sizes = pl.Enum(["small", "medium", "large", "huge"])
    table = pl.DataFrame({"size": pl.Series(["large", None, "small", "medium"], dtype=sizes)})
    encoder = TableEncoder.learn(table)
    assert encoder.feature_names == ["size", "size (missing)"]
    assert encoder.encode(table).tolist() == [[2, 0], [1, 1], [0, 0], [1, 0]]
    assert encoder.encode(pl.DataFrame({"size": ["huge", " small "]})).tolist() == [[3, 0], [0, 0]]
    assert TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict()))) == encoder
    message = refusal(encoder.encode, pl.DataFrame({"size": ["small", "tiny"]}))
    assert "'tiny' in row 2" in message


def test_categories_do_not_depend_on_the_type_of_the_column():
    text = pl.DataFrame({"code": ["07", "2.5", " x ", "True", "12.0", "1e400"]})
    encoder = TableEncoder.learn(text, categorical=["code"])
    assert encoder.feature_names == [f"code={name}" for name in ("12", "1e400", "2.5", "7", "true", "x")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(encoder.encode(text).argmax(axis=1), [3, 2, 5, 4, 0, 1])
        assert encoder.encode(pl.DataFrame({"code": [7, 12]})).argmax(axis=1).tolist() == [3, 0]
        assert encoder.encode(pl.DataFrame({"code": [7.0, 2.5]})).argmax(axis=1).tolist() == [3, 2]
        assert encoder.encode(pl.DataFrame({"code": [True]})).argmax(axis=1).tolist() == [4]


def test_a_column_may_have_any_name():
    table = pl.DataFrame({"count": ["a", "b"], "bare": ["c", "d"], "": [1, 2]})
    encoder = TableEncoder.learn(table)
    assert encoder.feature_names == ["count=a", "count=b", "bare=c", "bare=d", ""]
    np.testing.assert_array_equal(encoder.encode(table), [[1, 0, 1, 0, 1], [0, 1, 0, 1, 2]])


def test_imputation():
    training = pl.DataFrame(
        {
            "age": [1.0, None, float("nan"), 3.0, 10.0],
            "height": [4, 6, 5, 5, 5],
            "color": ["red", None, "blue", "red", "red"],
            "shape": ["disc", "cube", "cube", "disc", "ball"],
            "day": [date(1970, 1, 2), None, date(1970, 1, 5), date(1970, 1, 2), date(1970, 1, 9)],
        }
    )
    encoder = TableEncoder.learn(training)
    assert encoder.to_dict() == {
        "columns": [
            {"kind": "number", "name": "age", "fill": 3.0, "indicator": True},
            {"kind": "number", "name": "height", "fill": 5.0},
            {"kind": "category", "name": "color", "categories": ["(missing)", "blue", "red"], "fill": "(missing)"},
            {"kind": "category", "name": "shape", "categories": ["ball", "cube", "disc"], "fill": "cube"},
            {"kind": "date", "name": "day", "fill": 2.5, "periods": [], "format": None, "indicator": True},
        ]
    }
    matrix = encoder.encode(training)
    assert matrix[:, :2].tolist() == [[1, 0], [3, 1], [3, 1], [3, 0], [10, 0]]
    assert matrix[:, 3].tolist() == [0, 1, 0, 0, 0]
    assert matrix[:, 9:].tolist() == [[1, 0], [2.5, 1], [4, 0], [1, 0], [8, 0]]
    # Wholly missing columns arrive with the type Null, or as text without any text.
    message = "missing cells in columns that had none in training: 'height' (1, filled with the median), "
    for dtype in (pl.Null, pl.String, pl.Float64, pl.Int64):
        empty = pl.DataFrame({name: pl.Series([None], dtype=dtype) for name in training.columns})
        with pytest.warns(UserWarning, match="missing") as caught:
            np.testing.assert_array_equal(encoder.encode(empty), [[3, 1, 5, 1, 0, 0, 0, 1, 0, 2.5, 1]])
        assert [str(w.message) for w in caught] == [message + "'shape' (1, counted as 'cube')"]


def test_none_is_a_category_in_text_and_missing_in_numbers():
    table = pl.DataFrame({"alley": ["None", "grvl", None, "None"], "size": ["1", "None", "?", "3"]})
    encoder = TableEncoder.learn(table)
    assert encoder.feature_names == ["alley=(missing)", "alley=None", "alley=grvl", "size", "size (missing)"]
    np.testing.assert_array_equal(
        encoder.encode(table), [[0, 1, 0, 1, 0], [0, 0, 1, 2, 1], [1, 0, 0, 2, 1], [0, 1, 0, 3, 0]]
    )


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        ([" 1", "2"], [1, 2]),
        (["12,345.67", "1", "-1,000"], [12345.67, 1, -1000]),
        (["1,234", "5,678"], [1234, 5678]),
        (["3,5", "1.234,75", "2"], [3.5, 1234.75, 2]),
        (["1e3", "-.5", "+2."], [1000.0, -0.5, 2.0]),
    ],
)
def test_numbers_in_text(cells, numbers):
    encoder = TableEncoder.learn(pl.DataFrame({"a": cells}))
    np.testing.assert_array_equal(encoder.encode(pl.DataFrame({"a": cells}))[:, 0], numbers)
    np.testing.assert_array_equal(encoder.encode(pl.DataFrame({"a": numbers}))[:, 0], numbers)


@pytest.mark.parametrize(
    "cells",
    [
        ["2024-01-31", "2023-12-01"],
        ["2024/01/31", "2023/12/1"],
        ["31.01.2024", "1.12.2023"],
        ["01/31/2024", "12/01/2023"],
        ["31/01/2024", "01/12/2023"],
        ["2024-01-31 00:00:00", "2023-12-01 00:00:00"],
        ["2024-01-31T00:00:00Z", "2023-12-01T02:00:00+02:00"],
        ["2024-01-31T00:00", "2023-12-01T00:00"],
    ],
)
def test_dates_in_text(cells):
    days = [date(2024, 1, 31), date(2023, 12, 1)]
    encoder = TableEncoder.learn(pl.DataFrame({"day": cells}))
    assert isinstance(encoder.columns[0], DateColumn)
    as_dates = pl.DataFrame({"day": days})
    matrix = encoder.encode(pl.DataFrame({"day": cells}))
    np.testing.assert_allclose(matrix, TableEncoder.learn(as_dates).encode(as_dates), rtol=1e-12)
    assert matrix[:, 0].tolist() == [(day - date(1970, 1, 1)).days for day in days]
    zoned = as_dates.select(pl.col("day").cast(pl.Datetime("ns")).dt.replace_time_zone("UTC"))
    np.testing.assert_array_equal(encoder.encode(zoned), matrix)


def test_periods_of_dates_depend_on_the_span_of_the_table():
    days = pl.datetime_range(datetime(2020, 1, 1), datetime(2022, 6, 1), "5h", eager=True)
    for stop, interval, periods in ((80, 1, ("day", "week")), (len(days), 1, ("day", "week", "year")), (5, 1, ())):
        column = TableEncoder.learn(pl.DataFrame({"at": days[:stop:interval]})).columns[0]
        assert column.periods == periods
    midnights = days.dt.truncate("1d")
    assert TableEncoder.learn(pl.DataFrame({"at": midnights})).columns[0].periods == ("week", "year")
    encoder = TableEncoder.learn(pl.DataFrame({"at": days}))
    assert encoder.feature_names[1:3] == ["at (sine of day)", "at (cosine of day)"]
    six = encoder.encode(pl.DataFrame({"at": [datetime(2021, 3, 1, 6)]}))[0]
    np.testing.assert_allclose(six[1:3], [1, 0], atol=1e-9)


def test_an_hour_has_one_sine_on_all_days():
    """Without rounding, the column map would give nearly equal values very different ranks."""
    hours = pl.datetime_range(datetime(1960, 1, 1), datetime(2020, 6, 1), "25h", eager=True)
    matrix = TableEncoder.learn(pl.DataFrame({"at": hours})).encode(pl.DataFrame({"at": hours}))
    assert [len(np.unique(column)) for column in matrix.T[1:3]] == [13, 13]


def test_durations_and_times_of_day_are_numbers_of_days():
    table = pl.DataFrame({"took": [timedelta(hours=36), timedelta(0)], "at": [time(12), time(0)]})
    np.testing.assert_allclose(TableEncoder.learn(table).encode(table), [[1.5, 0.5], [0, 0]])


def test_frequent_categories_have_features_if_there_are_many():
    texts = [f"town {k}" for k in range(60) for _ in range(max(1, 40 - k))]
    encoder = TableEncoder.learn(pl.DataFrame({"town": texts}))
    (column,) = encoder.columns
    assert isinstance(column, CategoryColumn)
    assert column.other
    assert len(column.categories) == 40  # 39 that two rows and more hold, and the others
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        matrix = encoder.encode(pl.DataFrame({"town": ["town 0", "town 59", "nowhere"]}))
    assert [column.categories[k] for k in matrix.argmax(axis=1)] == ["town 0", "(other)", "(other)"]
    assert (matrix.sum(axis=1) == 1).all()


def test_unusable_columns_are_left_out_with_the_reason():
    rows = 40
    table = pl.DataFrame(
        {
            "x": np.arange(rows) % 7,
            "id": [f"a{k}" for k in range(rows)],
            "note": [f"the {k} th of them" for k in range(rows)],
            "nothing": pl.Series([None] * rows, dtype=pl.Float64),
        }
    )
    encoder = TableEncoder.learn(table)
    assert list(encoder.left_out) == ["id", "note", "nothing"]
    assert len(set(encoder.left_out.values())) == 3
    np.testing.assert_array_equal(encoder.encode(table.select("x"))[:, 0], table["x"])
    assert TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict()))) == encoder


def test_arrays_are_encoded_as_their_tables_are():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 4))
    X[rng.random(X.shape) < 0.2] = np.nan
    X[:, 2] = 1.0
    encoder = TableEncoder.learn_numbers(X, True)
    table = pl.DataFrame(X, schema=["x0", "x1", "x2", "x3"])
    assert encoder == TableEncoder.learn(table)
    np.testing.assert_array_equal(encoder.encode_numbers(X), encoder.encode(table))
    strict = TableEncoder.learn_numbers(np.nan_to_num(X), False)
    assert "'x0'" in refusal(strict.encode_numbers, X)


def test_unseen_categories_become_zeros_with_a_warning():
    encoder = TableEncoder.learn(MIXED.select("color"))
    table = pl.DataFrame({"color": ["teal", "red", "pink", "teal", "grey", "plum"]})
    with pytest.warns(UserWarning, match="color") as caught:
        matrix = encoder.encode(table)
    assert len(caught) == 1
    assert mentions(str(caught[0].message), "'color'", "5", "'teal'", "'pink'", "'grey'", "1")
    assert caught[0].filename == __file__
    assert matrix.tolist() == [[0, 0], [0, 1], [0, 0], [0, 0], [0, 0], [0, 0]]
    with pytest.warns(UserWarning, match=r"1 .*\('x'\)"):
        encoder.encode(pl.DataFrame({"color": ["x"]}))


INF = float("inf")


@pytest.mark.parametrize(
    ("columns", "options", "parts"),
    [
        (
            {"my age": ["1", "2", "3", "4", "a\nb" + "c" * 99]},
            {"impute": False},
            ["'my age'", rf"'a\nb{'c' * 52}...", "5", "--categorical 'my age'", "--impute"],
        ),
        ({"a": [[1, 2]]}, {}, ["'a'", "List(Int64)", "--drop a"]),
        ({"a": [1.0, None, float("nan")]}, {"impute": False}, ["'a'", "2", "2", "--impute"]),
        ({"a": ["x", "y", None]}, {"impute": False}, ["'a'", "1", "3", "--impute"]),
        (
            {"a": [1, None], "b": [1, 2], "c": [None, 2], "d": [None, "x"]},
            {"impute": False},
            ["'a'", "1", "2", "'c'", "1", "'d'", "1", "--impute"],
        ),
        ({"a": ["1", "?", "3"]}, {"impute": False}, ["'a'", "1", "2", "--impute"]),
        ({"a": [None, None], "b": [float("nan")] * 2}, {}, ["'a'", "'b'"]),
        ({"a": [1.0, INF]}, {}, ["'a'", "inf", "2"]),
        ({"a": [-INF]}, {"categorical": ["a"]}, ["'a'", "-inf", "1"]),
        ({"a": [1.0, -2e150]}, {}, ["'a'", "-2e+150", "2", "1e+150"]),
        ({"color": ["x"]}, {"categorical": ["colour"]}, ["categorical", "'colour'", "'color'"]),
        ({"a": ["x"]}, {"categorical": "a"}, ["categorical", "'a'"]),
        ({"a": []}, {}, ["rows"]),
        ({}, {}, ["column"]),
    ],
)
def test_tables_that_cannot_be_learned_are_refused(columns, options, parts):
    assert mentions(refusal(TableEncoder.learn, pl.DataFrame(columns), **options), *parts)


def test_requested_categories():
    many = pl.DataFrame({"id": [f"id{i}" for i in range(1001)]})
    assert len(TableEncoder.learn(many, categorical=["id"]).feature_names) == 1001
    mostly = pl.DataFrame({"age": ["1", "2", "x"]})
    assert TableEncoder.learn(mostly, categorical=["age"]).feature_names == ["age=1", "age=2", "age=x"]
    assert TableEncoder.learn(pl.DataFrame({"size": ["S", "M", "4"]})).feature_names == [
        "size=4",
        "size=M",
        "size=S",
    ]


LEARNED = pl.DataFrame({"age": [1.0, 2.0], "color": ["a", "b"]})


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ({"age": ["1", "x"], "color": ["a", "b"]}, ["'age'", "'x'", "2"]),
        ({"age": ["1", "?"], "color": ["a", "b"]}, ["'age'", "2", "--impute"]),
        ({"age": [None], "color": ["a"]}, ["'age'", "1", "1", "--impute"]),
        ({"age": [1], "color": [None]}, ["'color'", "1", "1", "--impute"]),
        ({"age": [date(2020, 1, 1)], "color": ["a"]}, ["'age'", "dates"]),
        ({"age": [INF], "color": ["a"]}, ["'age'", "inf", "1"]),
        ({"age": [1], "color": [INF]}, ["'color'", "inf", "1"]),
        ({"age": [1e151], "color": ["a"]}, ["'age'", "1e+151", "1", "1e+150"]),
        ({"Age": [1], "color": ["a"]}, ["1", "'age'", "2", "2"]),
    ],
)
def test_tables_unlike_the_training_table_are_refused(columns, parts):
    encoder = TableEncoder.learn(LEARNED, impute=False)
    assert mentions(refusal(encoder.encode, pl.DataFrame(columns)), *parts)


def test_a_matrix_with_too_few_columns():
    encoder = TableEncoder.learn(pl.DataFrame({f"x{j}": [0.0] for j in range(10)}))
    message = refusal(encoder.encode, pl.DataFrame({f"x{j}": [0.0] for j in range(3)}))
    assert "lacks 7" in message
    assert "'x3', 'x4', 'x5', 'x6', 'x7' and 2 more" in message


# The stored form


STORED = {
    "columns": [
        {"kind": "number", "name": "age", "fill": 3.0},
        {"kind": "category", "name": "color", "categories": ["blue", "red"], "fill": "red"},
        {"kind": "number", "name": "height", "fill": None},
        {"kind": "number", "name": "weight", "fill": 2.0, "indicator": True},
        {"kind": "category", "name": "town", "categories": ["(other)", "Rome"], "fill": "(other)", "other": True},
        {
            "kind": "date",
            "name": "day",
            "fill": 1.5,
            "periods": ["week", "year"],
            "format": "%Y-%m-%d",
            "indicator": True,
        },
    ],
    "left_out": {"id": "like an identifier"},
}
STORED["columns"] += [
    {"kind": "number", "name": "price", "fill": 2.0, "format": {"decimal": ",", "grouping": ".", "unit": "€"}},
    {"kind": "number", "name": "paid", "fill": 0.0, "format": "boolean"},
    {"kind": "ordered", "name": "size", "levels": ["small", "large"], "fill": 0.5, "indicator": True},
]


def test_stored_form_survives_json():
    for impute in (False, True):
        encoder = TableEncoder.learn(MIXED, categorical=["zip"], impute=impute)
        assert TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict()))) == encoder
    assert TableEncoder.from_dict(STORED).to_dict() == STORED


EXTREMES = [
    None,
    True,
    7,
    -1.5,
    float("nan"),
    INF,
    10**400,
    "",
    "red",
    "\ud800",
    [],
    ["a"],
    [1],
    {},
    {"a": 1},
]


def places(node, path=()):
    """The paths to every part of a nested stored form, the whole included."""
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in items:
        yield from places(child, (*path, key))


@pytest.mark.parametrize("path", list(places(STORED)), ids=str)
def test_mutated_stored_forms_raise_nothing_but_input_errors(path):
    table = pl.DataFrame(
        {
            "age": [1.0, 2.0],
            "color": ["red", "blue"],
            "height": [1, 2],
            "weight": [None, 2],
            "town": ["Rome", None],
            "day": ["2024-01-31", None],
            "price": ["€ 1.234,5", None],
            "paid": ["true", "FALSE"],
            "size": ["large", None],
            "": [1, 2],
            "red": [1, 2],
        }
    )
    for value in [*EXTREMES, "remove", "add"]:
        holder: dict[str, Any] = {"whole": copy.deepcopy(STORED)}
        parent: Any = holder
        for key in ("whole", *path)[:-1]:
            parent = parent[key]
        last = ("whole", *path)[-1]
        if value == "remove":
            del parent[last]
            holder.setdefault("whole", {})
        elif value == "add" and isinstance(parent, dict):
            parent["further"] = 1
        else:
            parent[last] = value
        try:
            encoder = TableEncoder.from_dict(holder["whole"])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                matrix = encoder.encode(table)
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017 - an error is allowed, not required
        else:
            assert np.isfinite(matrix).all()


def number(**changes):
    return {"columns": [{"kind": "number", "name": "a", "fill": None} | changes]}


def category(**changes):
    return {"columns": [{"kind": "category", "name": "a", "categories": ["x", "y"], "fill": None} | changes]}


@pytest.mark.parametrize(
    ("stored", "part", "value"),
    [
        (None, "columns", None),
        ({"columns": {}}, "columns", {}),
        ({"columns": []}, "columns", []),
        ({"columns": [3]}, "column", 3),
        ({"columns": number()["columns"] * 2}, "names", ["a", "a"]),
        (number(kind="time"), "kind", "time"),
        (number(kind=["number"]), "kind", ["number"]),
        (number(name=3), "name", 3),
        (number(name="\ud800"), "name", "\ud800"),
        (number(fill="3"), "fill", "3"),
        (number(fill=True), "fill", True),
        (number(fill=float("nan")), "fill", float("nan")),
        (number(indicator=True), "indicator", True),
        (number(format="date"), "format", "date"),
        (number(categories=["x"]), "keys", None),
        (category(categories=[]), "categories", []),
        (category(categories=["y", "x"]), "categories", ["y", "x"]),
        (category(categories=["x", "x"]), "categories", ["x", "x"]),
        (category(categories=["x", 1]), "categories", ["x", 1]),
        (category(fill="z"), "fill", "z"),
        (category(other=True), "other", True),
        (category(format="boolean"), "format", "boolean"),
        ({"columns": [{"kind": "category", "name": "a"}]}, "keys", {"kind": "category", "name": "a"}),
    ],
)
def test_damaged_stored_forms_are_refused(stored, part, value):
    message = refusal(TableEncoder.from_dict, stored)
    assert message.startswith("the model's table encoder is damaged: ")
    assert part in message
    assert value is None or f"got {value!r};" in message


@pytest.mark.parametrize(("digits", "shown"), [(400, f"1{'0' * 56}..."), (5000, "something of type int")])
def test_huge_values_of_stored_forms_are_shortened(digits, shown):
    assert f"got {shown};" in refusal(TableEncoder.from_dict, number(fill=10**digits))


# Any table


WORDS = st.text(alphabet="abTé\n ,=(", max_size=4)
MAGNITUDES = st.floats(-1e150, 1e150)


@st.composite
def tables(draw):
    """Tables of number, boolean and text columns with missing cells, but never a column of nothing else."""
    rows = draw(st.integers(1, 8))
    columns = {}
    for j in range(draw(st.integers(1, 4))):
        cells = draw(st.sampled_from([MAGNITUDES, st.integers(-(2**63), 2**63 - 1), st.booleans(), WORDS]))
        first = draw(cells)
        columns[f"c{j}"] = [first, *draw(st.lists(st.none() | cells, min_size=rows - 1, max_size=rows - 1))]
    return pl.DataFrame(columns)


@settings(max_examples=40, deadline=None)
@given(table=tables(), data=st.data())
def test_encoding_is_finite_and_follows_row_permutations(table, data):
    encoder = TableEncoder.learn(table, categorical=table.columns[:1])
    matrix = encoder.encode(table)
    assert matrix.shape == (table.height, len(encoder.feature_names))
    assert matrix.flags.c_contiguous
    assert np.isfinite(matrix).all()
    order = data.draw(st.permutations(range(table.height)))
    np.testing.assert_array_equal(encoder.encode(table[order]), matrix[order])
    assert TableEncoder.learn(table[order], categorical=table.columns[:1]) == encoder
    assert TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict()))) == encoder
