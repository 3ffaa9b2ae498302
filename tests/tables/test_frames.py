"""DataFrames of pandas, polars and pyarrow in the estimators: equal tables give equal predictions."""

import pickle
import re
import warnings
from datetime import date, timedelta

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import fireset
from fireset import InputError, ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.commands.train import train_table
from fireset.model import Model
from fireset.tables.column_notes import columns_in_words, describe_columns
from fireset.tables.reader import read_table
from support.checks import mentions
from support.fixed_settings import FIXED

ROWS = 240
SETTINGS = {"width": 400, "random_state": 0, **FIXED}


def mixed_table(rows: int = ROWS, seed: int = 0) -> tuple[pl.DataFrame, np.ndarray]:
    """Return numbers, booleans, texts and dates with missing cells, and a target that depends on most of them."""
    rng = np.random.default_rng(seed)
    day = [date(2021, 1, 1) + timedelta(days=int(k)) for k in rng.integers(0, 900, rows)]
    town = rng.choice(["Rome", "Oslo", "None", "Nice"], rows)
    age, smokes = rng.normal(40, 12, rows).round(2), rng.random(rows) < 0.3
    y = age / 12 + 2 * (town == "Rome") + smokes + np.array([d.weekday() > 4 for d in day])
    table = pl.DataFrame(
        {
            "age": age,
            "town": town.tolist(),
            "smokes": smokes,
            "seen": day,
            "income": [f"{value:,.2f}" for value in rng.lognormal(9, 1, rows)],
            "children": rng.integers(0, 5, rows),
        }
    )
    hidden = {name: pl.Series(rng.random(rows) < 0.1) for name in ("age", "town", "smokes", "seen")}
    return table.with_columns(pl.when(~mask).then(pl.col(name)).alias(name) for name, mask in hidden.items()), y


def forms(table: pl.DataFrame, tmp_path) -> dict:
    """Convert a table to all types of DataFrame."""
    table.write_csv(tmp_path / "table.csv")
    names, lists = table.columns, table.to_dict(as_series=False)
    objects = pd.DataFrame({name: pd.Series(lists[name], dtype=object) for name in names})
    usual = objects.assign(
        age=pd.Series(lists["age"], dtype="float64"),
        town=pd.Series(lists["town"], dtype="category"),
        seen=pd.to_datetime(objects["seen"]),
        children=pd.Series(lists["children"], dtype="float64"),
    )
    nullable = usual.astype({"age": "Float64", "smokes": "boolean", "income": "string", "children": "Int64"})
    return {
        "polars": table,
        "polars, lazy": table.lazy(),
        "polars, categorical": table.with_columns(pl.col("town").cast(pl.Categorical)),
        "pandas": usual,
        "pandas, nullable": nullable,
        "pandas, objects": objects,
        "pandas, another order": usual[names[::-1]].sample(frac=1.0, random_state=0).sort_index(),
        "pyarrow": pa.table(lists),
        "pyarrow, batch": pa.RecordBatch.from_pydict(lists),
        "CSV": read_table(tmp_path / "table.csv"),
    }


def test_one_table_in_every_form(tmp_path):
    table, y = mixed_table()
    later, _ = mixed_table(50, seed=1)
    unseen = later.with_columns(
        town=pl.when(pl.int_range(pl.len()) < 3).then(pl.lit("Bern")).otherwise(pl.col("town")),
        children=pl.when(pl.int_range(pl.len()) < 2).then(None).otherwise(pl.col("children")),
    )
    expected = None
    for name, form in forms(table, tmp_path).items():
        if name == "pandas, another order":
            continue  # neurons are drawn for columns as they come
        model = ShiftedReLURegressor(**SETTINGS).fit(form, y)
        assert model.score(form, y) > 0.8, name
        assert model.feature_names_in_.tolist() == table.columns
        for other, same in forms(unseen, tmp_path).items():
            with pytest.warns(UserWarning) as caught:  # noqa: PT030 - two different ones
                found = model.predict(same)
            said = sorted(str(warning.message) for warning in caught)
            assert len(said) == 2, (name, other)
            assert mentions(said[0], "'town'", "3", "'Bern'")
            assert mentions(said[1], "'children'", "2", "median")
            expected = found if expected is None else expected
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=f"{name}, then {other}")


def test_scikit_learn_tools_accept_frames():
    table, y = mixed_table()
    frame = table.to_pandas()
    labels = np.where(y > np.median(y), "high", "low")
    model = ShiftedReLUClassifier(**SETTINGS)
    search = GridSearchCV(model, {"bias": [1.0, 3.0]}, cv=2).fit(frame, labels)
    assert search.best_score_ > 0.7
    assert cross_val_predict(model, frame, labels, cv=3, method="predict_proba").shape == (ROWS, 2)
    calibrated = CalibratedClassifierCV(model, cv=2).fit(frame, labels)
    assert calibrated.score(frame, labels) > 0.7
    pipeline = make_pipeline(FunctionTransformer(lambda rows: rows.drop(columns="income")), model).fit(frame, labels)
    assert pipeline.score(frame, labels) > 0.7
    fitted = clone(model).fit(table, labels)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(frame), fitted.predict_proba(table))
    assert len(fitted.feature_importances_) == fitted.n_features_in_ == table.width
    assert fitted.feature_importances_.sum() == pytest.approx(1)


def test_arrays_with_missing_cells():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 4))
    y = X[:, 0] + X[:, 1] ** 2
    X[rng.random(X.shape) < 0.1] = np.nan
    X[:, 3] = rng.standard_normal(200)
    model = ShiftedReLURegressor(**SETTINGS).fit(X, y)
    assert model.score(X, y) > 0.5
    assert model.encoder_.feature_names == ["x0", "x0 (missing)", "x1", "x1 (missing)", "x2", "x2 (missing)", "x3"]
    median = X[:5].copy()
    median[:, 3] = np.nan
    by_hand = X[:5].copy()
    by_hand[:, 3] = np.median(X[:, 3])
    np.testing.assert_array_equal(model.predict(median), model.predict(by_hand))
    named = ShiftedReLURegressor(**SETTINGS).fit(pd.DataFrame(X, columns=list("abcd")), y)
    with pytest.warns(UserWarning, match="valid feature names"):
        np.testing.assert_array_equal(named.predict(X), model.predict(X))
    with pytest.raises(ValueError, match="contains NaN"):
        ShiftedReLURegressor(**SETTINGS, missing="error").fit(X, y)
    with pytest.raises(InputError, match=r"missing.*got 'mean'"):
        ShiftedReLURegressor(**SETTINGS, missing="mean").fit(X, y)


def test_missing_cells_are_refused_on_request():
    table, y = mixed_table()
    with pytest.raises(InputError, match=r"'age'.* \d+ .*'town'.*missing='impute'"):
        ShiftedReLURegressor(**SETTINGS, missing="error").fit(table, y)


def test_numbers_that_name_categories():
    table, y = mixed_table()
    model = ShiftedReLURegressor(**SETTINGS, categorical=["children"]).fit(table, y)
    assert "children=3" in model.encoder_.feature_names
    with pytest.raises(InputError, match="categorical 'kids'"):
        ShiftedReLURegressor(**SETTINGS, categorical=["kids"]).fit(table, y)


def test_ordered_categories_of_pandas_keep_their_order():
    sizes = pd.CategoricalDtype(["small", "medium", "large"], ordered=True)
    frame = pd.DataFrame({"size": pd.Series(["large", "small", "medium"] * 20, dtype=sizes)})
    model = ShiftedReLURegressor(**SETTINGS).fit(frame, [2.0, 0.0, 1.0] * 20)
    assert model.encoder_.feature_names == ["size"]
    np.testing.assert_allclose(model.predict(frame[:3]), [2, 0, 1], atol=0.1)


@pytest.mark.parametrize("dtype", [complex, object])
def test_complex_columns_are_refused(dtype):
    frame = pd.DataFrame({"a": pd.Series([1 + 2j, 2, 3], dtype=dtype)})
    with pytest.raises(InputError, match=r"'a'.*complex"):
        ShiftedReLURegressor(**SETTINGS).fit(frame, [1.0, 2.0, 3.0])


class TestCategoricalPositions:
    """Categorical columns of arrays, given by position."""

    codes = np.random.default_rng(0).integers(0, 4, 80)
    X = np.c_[np.random.default_rng(1).standard_normal(80), codes, np.arange(80) % 7]
    y = np.array([3.0, -1.0, 5.0, 0.0])[codes] + X[:, 0]

    def test_as_with_a_frame(self):
        frame = pl.DataFrame({name: self.X[:, j] for j, name in enumerate(("x0", "x1", "x2"))})
        expected = ShiftedReLURegressor(**SETTINGS, categorical=["x1"]).fit(frame, self.y)
        for categorical in ([1], (1,), np.array([1]), [-2], [False, True, False], np.array([False, True, False])):
            model = ShiftedReLURegressor(**SETTINGS, categorical=categorical).fit(self.X, self.y)
            assert model.encoder_.feature_names == expected.encoder_.feature_names
            assert np.array_equal(model.predict(self.X), expected.predict(frame))
            assert not hasattr(model, "feature_names_in_")
            assert model.n_features_in_ == 3
        assert np.array_equal(model.feature_importances_, expected.feature_importances_)

    @pytest.mark.parametrize("of_type", [np.float64, np.float32, np.int64, object])
    def test_arrays_of_other_types(self, of_type):
        X = self.X.round()
        model = ShiftedReLURegressor(**SETTINGS, categorical=[1, 2]).fit(X, self.y)
        assert len(model.encoder_.feature_names) == 1 + 4 + 7
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.array_equal(model.predict(X.astype(of_type)), model.predict(X))
        again = ShiftedReLURegressor(**SETTINGS, categorical=[1, 2]).fit(X.astype(of_type), self.y)
        np.testing.assert_allclose(again.predict(X), model.predict(X), rtol=1e-5)

    def test_texts_and_missing_cells(self):
        X = self.X.astype(object)
        X[:, 1] = np.array(["a", "b", "c", "d"])[self.codes]
        X[3, 1] = None
        model = ShiftedReLUClassifier(**SETTINGS, categorical=[1]).fit(X, self.y > 1)
        assert model.score(X, self.y > 1) > 0.9
        numbers = self.X.copy()
        numbers[5] = np.nan
        model = ShiftedReLURegressor(**SETTINGS, categorical=[1]).fit(numbers, self.y)
        assert "x1=(missing)" in model.encoder_.feature_names
        assert np.isfinite(model.predict(numbers)).all()
        with pytest.raises(ValueError, match="NaN"):
            ShiftedReLURegressor(**SETTINGS, categorical=[1], missing="error").fit(numbers, self.y)

    def test_afterwards(self, tmp_path):
        model = ShiftedReLURegressor(**SETTINGS, categorical=[1]).fit(self.X, self.y)
        expected = model.predict(self.X)
        fireset.save(model, tmp_path / "model")
        again = fireset.load(tmp_path / "model")
        assert again.get_params()["categorical"] == [1]
        for other in (again, pickle.loads(pickle.dumps(model)), clone(model).fit(self.X, self.y)):
            assert np.array_equal(other.predict(self.X), expected)
            assert np.array_equal(other.feature_importances_, model.feature_importances_)
            other.partial_fit(self.X, self.y)
        with pytest.raises(ValueError, match="3 features"):
            model.predict(self.X[:, :2])
        with pytest.warns(UserWarning, match="9"):
            model.predict([[0.0, 9.0, 1.0]])

    @pytest.mark.parametrize("categorical", [["x1"], [3], [-4], [0.5], [True, False], "x1", [None]])
    def test_what_is_refused(self, categorical):
        with pytest.raises(InputError, match=r"`categorical`.*got"):
            ShiftedReLURegressor(**SETTINGS, categorical=categorical).fit(self.X, self.y)

    def test_sparse_rows_are_refused(self):
        with pytest.raises(InputError, match=r"`categorical`.*sparse"):
            ShiftedReLURegressor(**SETTINGS, categorical=[1]).fit(csr_array(self.X), self.y)


@pytest.mark.parametrize("spoiled", [{"a": [{"b": 1}, {"b": 2}]}, {"a": [b"x", b"y"]}, {"a": [[1], [2]]}])
def test_cells_of_unsupported_types(spoiled):
    frame = pd.DataFrame(spoiled)
    with pytest.raises(InputError, match=r"'a'.* (dict|bytes|list) .*row 1"):
        ShiftedReLURegressor(**SETTINGS).fit(frame, [1.0, 2.0])


def test_duplicate_names():
    frame = pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], columns=["a", "a"])
    with pytest.raises(InputError, match=r"'a'.* 2 "):
        ShiftedReLURegressor(**SETTINGS).fit(frame, [1.0, 2.0])


def test_columns_that_look_wrong_are_warned_of():
    rng = np.random.default_rng(0)
    y = rng.standard_normal(60)
    labels = np.where(y > 0, "yes", "no")
    frame = pl.DataFrame(
        {
            "x": y + rng.standard_normal(60),
            "customer_id": rng.permutation(60) * 7,
            "number": np.arange(60),
            "email": [f"a{k}@b.org" for k in range(60)],
            "in_cents": 100 * y + 3,
            "answer": np.where(y > 0, 1, 0),
        }
    )
    for model, target, copied in (
        (ShiftedReLURegressor(**SETTINGS), y, "'in_cents'"),
        (ShiftedReLUClassifier(**SETTINGS), labels, "'answer'"),
    ):
        with pytest.warns(UserWarning) as caught:  # noqa: PT030 - three different ones
            model.fit(frame, target)
        left_out, row_numbers, copies = (str(warning.message) for warning in caught)
        assert mentions(left_out, "'email'")
        assert mentions(left_out, "60", "60")
        assert "--drop customer_id,number" in row_numbers
        assert mentions(copies, copied)
        assert all(warning.filename == __file__ for warning in caught)
        assert model.feature_importances_[3] == 0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.predict(frame.drop("email"))


def test_summary_of_columns():
    table, y = mixed_table()
    model = ShiftedReLURegressor(**SETTINGS).fit(table, y)
    described = describe_columns(model.encoder_, table)
    assert [one["kind"] for one in described] == ["number", "category", "number", "date", "number", "number"]
    missing = {name: int(table[name].null_count()) for name in ("age", "town", "smokes", "seen")}
    median = f"{table['age'].median():.6g}"
    assert columns_in_words(described) == [
        "columns: 4 numbers, 1 text as 5 categories, 1 date",
        f"filled in: age ({missing['age']} cells, by the median {median}), town ({missing['town']} cells, "
        f"category (missing)), smokes ({missing['smokes']} cells, by the median 0), "
        f"seen ({missing['seen']} cells, by the median)",
    ]


def test_the_median_in_the_summary_is_that_of_the_model(tmp_path):
    rng = np.random.default_rng(0)
    income = rng.lognormal(7, 1, 200)
    cells = [None if k % 9 == 0 else value for k, value in enumerate(income)]
    file = tmp_path / "t.csv"
    pl.DataFrame({"income": cells, "y": np.log(income)}).write_csv(file)
    out = tmp_path / "m.safetensors"
    settings = {"width": 200, "random_state": 0, "verbose": False}
    train_table(file, "y", out=out, loss="squared_error", holdout=0.3, settings=settings)
    model = Model.load(out)
    (described,) = model.training["table_columns"]
    (column,) = model.encoder.columns
    assert described["filled_with"] == column.fill
    assert 0 < described["missing"] < sum(cell is None for cell in cells)  # of the rows trained on


def test_importances_are_reported_by_column_of_the_table(capfd):
    rng = np.random.default_rng(0)
    town = rng.choice([f"t{k}" for k in range(6)], 300)
    table = pl.DataFrame({"town": town, "noise": rng.standard_normal(300), "other": rng.standard_normal(300)})
    y = np.array([int(name[1]) for name in town], float)
    model = ShiftedReLURegressor(**SETTINGS, verbose=True).fit(table, y)
    said = capfd.readouterr().err
    (most,) = re.findall(r"; ([^;]*) matter most", said)
    assert set(most.split(", ")) == {"town", "noise", "other"}
    assert most.startswith("town, ")
    assert model.feature_importances_.argmax() == 0


@pytest.mark.parametrize("kind", ["frame", "array", "two targets", "classes"])
def test_saved_and_loaded(kind, tmp_path):
    table, y = mixed_table()
    path = tmp_path / "model.safetensors"
    X = table.select("age", "children").to_numpy() if kind == "array" else table
    targets = {"two targets": np.stack([y, -y], axis=1), "classes": np.where(y > 4, "a", "b")}.get(kind, y)
    estimator = ShiftedReLUClassifier if kind == "classes" else ShiftedReLURegressor
    model = estimator(**SETTINGS).fit(X, targets)
    fireset.save(model, path, target="y")
    loaded = fireset.load(path)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.n_features_in_ == model.n_features_in_
    if kind != "array":
        np.testing.assert_array_equal(loaded.predict(table.to_pandas()), model.predict(X))
        assert loaded.feature_names_in_.tolist() == table.columns


def test_only_fitted_estimators_are_saved(tmp_path):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        fireset.save(ShiftedReLURegressor(), tmp_path / "m")
    with pytest.raises(InputError, match=r"estimator.*got dict"):
        fireset.save({}, tmp_path / "m")  # pyright: ignore[reportArgumentType]


def test_rows_with_fast_checks_are_checked():
    X = np.random.default_rng(0).standard_normal((60, 3))
    model = ShiftedReLURegressor(**SETTINGS).fit(X, X[:, 0])
    one = X[:1]
    for same in (one.tolist(), np.asfortranarray(one), one.astype(object), pd.DataFrame(one)):
        np.testing.assert_array_equal(model.predict(same), model.predict(one))
    bad = one.copy()
    bad[0, 1] = np.inf
    with pytest.raises(ValueError, match="contains infinity"):
        model.predict(bad)
    with pytest.raises(ValueError, match="X has 2 features, but ShiftedReLURegressor is expecting 3"):
        model.predict(one[:, :2])
    with pytest.raises(ValueError, match="minimum of 1 is required"):
        model.predict(X[:0])
    with pytest.raises(ValueError, match="Expected 2D array"):
        model.predict(X[0])


@pytest.mark.parametrize("name", ["rownames", "row_number", "Row ID", "Unnamed: 0", "level_0"])
def test_names_of_row_numbers(name):
    """Training rows are not consecutive, so that the name decides."""
    rng = np.random.default_rng(0)
    table = pl.DataFrame({name: np.arange(60)[rng.permutation(60)[:40]], "x": rng.standard_normal(40)})
    with pytest.warns(UserWarning, match="--drop"):
        ShiftedReLURegressor(width=50, max_iter=2).fit(table, rng.standard_normal(40))
