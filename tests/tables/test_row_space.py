"""Tables with many more columns than rows: the network has one input per training row."""

import warnings

import numpy as np
import polars as pl
import pytest

import fireset
from fireset import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.commands.train import train_table
from fireset.tables.column_map import ColumnMap
from fireset.tables.sphere import SphereMap, count_inputs, suits_row_space
from fireset.theory import KernelRegression

ROWS, COLUMNS = 24, 600
rng = np.random.default_rng(3)
X = rng.standard_normal((2 * ROWS, COLUMNS)) / np.sqrt(1 + np.arange(COLUMNS))
y = X[:, 0] - 2 * X[:, 1] * X[:, 2]
SETTINGS = {"width": 400, "random_state": 0}


def sphere_maps(train: np.ndarray) -> tuple[SphereMap, SphereMap]:
    """Return the map without and with a basis of the row space."""
    weight = np.ones(len(train))
    columns = ColumnMap.learn(train, weight)
    Z = columns(train)
    plain = SphereMap.learn(columns, Z, weight, 0.7, rng.uniform(0.1, 1.0, train.shape[1]))
    return plain, plain.in_row_space(Z)


@pytest.mark.parametrize("duplicated", [False, True])
def test_inner_products_with_training_rows_stay(duplicated):
    train = np.repeat(X[: ROWS // 2], 2, axis=0) if duplicated else X[:ROWS]
    plain, reduced = sphere_maps(train)
    assert reduced.n_outputs == ROWS + 2 == reduced(X).shape[1]
    np.testing.assert_allclose(reduced(X) @ reduced(train).T, plain(X) @ plain(train).T, rtol=0, atol=1e-14)
    np.testing.assert_allclose(np.linalg.norm(reduced(X), axis=1), 1.0, rtol=1e-14)
    assert np.abs(reduced(train)[:, -2]).max() < 1e-13  # training rows are in the space


def test_kernel_regression_is_unchanged():
    plain, reduced = sphere_maps(X[:ROWS])
    found = [KernelRegression(1.0).fit(one(X[:ROWS]), y[:ROWS, None]).predict(one(X)) for one in (plain, reduced)]
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("model", [ShiftedReLURegressor, ShiftedReLUClassifier])
def test_fit_save_and_load(model, tmp_path):
    target = y if model is ShiftedReLURegressor else y > 0
    fitted = model(**SETTINGS).fit(X[:ROWS], target[:ROWS])
    assert fitted.network_.n_features == ROWS + 2
    assert fitted.feature_importances_.shape == (COLUMNS,)
    fireset.save(fitted, tmp_path / "model.safetensors")
    loaded = fireset.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    fireset.save(loaded, tmp_path / "again.safetensors")
    np.testing.assert_array_equal(fireset.load(tmp_path / "again.safetensors").predict(X), fitted.predict(X))


def test_predictions_agree_with_all_columns(monkeypatch):
    reduced = ShiftedReLURegressor(width=20_000, random_state=0).fit(X[:ROWS], y[:ROWS])
    monkeypatch.setattr("fireset.tables.sphere._MIN_COLUMNS_FOR_ROW_SPACE", COLUMNS + 1)
    whole = ShiftedReLURegressor(width=20_000, random_state=0).fit(X[:ROWS], y[:ROWS])
    assert whole.network_.n_features == COLUMNS + 1
    assert np.corrcoef(reduced.predict(X), whole.predict(X))[0, 1] > 0.99


@pytest.mark.parametrize("settings", [{"warm_start": True}, {}])
def test_networks_that_see_other_rows_later_have_all_columns(settings):
    model = ShiftedReLURegressor(**SETTINGS, **settings)
    fitted = model.fit(X[:ROWS], y[:ROWS]) if settings else model.partial_fit(X[:ROWS], y[:ROWS])
    assert fitted.network_.n_features == COLUMNS + 1
    assert fitted.sphere_.row_space is None


def test_training_on_other_rows_after_fit_warns():
    fitted = ShiftedReLURegressor(**SETTINGS).fit(X[:ROWS], y[:ROWS])
    with pytest.warns(UserWarning, match="warm_start"):
        fitted.partial_fit(X[ROWS:], y[ROWS:])
    assert np.isfinite(fitted.predict(X)).all()
    with pytest.warns(UserWarning, match="warm_start"):
        fitted.set_params(warm_start=True).fit(X[ROWS:], y[ROWS:])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fitted.partial_fit(X[:ROWS], y[:ROWS])


def test_a_folder_of_a_wide_table_trains(tmp_path):
    """It is read in blocks, whose rows are mapped one block after the other."""
    (tmp_path / "parts").mkdir()
    columns = {f"x{j}": X[:, j] for j in range(COLUMNS)} | {"y": y}
    for k, part in enumerate((slice(0, ROWS), slice(ROWS, None))):
        pl.DataFrame({name: values[part] for name, values in columns.items()}).write_parquet(
            tmp_path / "parts" / f"{k}.parquet"
        )
    out = tmp_path / "model.safetensors"
    train_table(tmp_path / "parts", "y", out=out, settings=SETTINGS, loss="squared_error", holdout=0.25)
    assert fireset.load(out).network_.n_features == 36 + 2


def test_sparse_rows_have_all_columns():
    sparse = pytest.importorskip("scipy.sparse").csr_array(np.where(np.abs(X) > 0.1, X, 0.0))
    fitted = ShiftedReLURegressor(**SETTINGS).fit(sparse[:ROWS], y[:ROWS])
    assert fitted.network_.n_features == COLUMNS + 1


def test_sizes():
    assert [suits_row_space(250, 500), suits_row_space(251, 500), suits_row_space(10, 499)] == [True, False, False]
    assert [count_inputs(250, 500), count_inputs(251, 500)] == [252, 501]
