"""Default fits of many rows: Gauss–Newton on centres, with a width that does not depend on the number of rows."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import make_classification, make_friedman1

import fireset
from fireset import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.estimators import base, network_bias
from fireset.estimators.network_bias import choose_bias
from fireset.network import ShiftedReLUNetwork
from fireset.tables.column_map import ColumnMap
from fireset.tables.sphere import SphereMap
from fireset.training.stopping import StopReason
from support.fixed_settings import FIXED


@pytest.fixture
def few_rows_suffice(monkeypatch):
    """Use centres from 1,000 rows on."""
    monkeypatch.setattr(base, "_MIN_ROWS_FOR_CENTRES", 1000)
    monkeypatch.setattr(base, "_MIN_TARGETS_FOR_CENTRES", 1000)
    monkeypatch.setattr(network_bias, "_FITTED_ROWS", 600)
    monkeypatch.setattr(network_bias, "_COMPARED_ROWS", 300)
    monkeypatch.setattr(network_bias, "_CENTRES", 100)


@pytest.mark.parametrize(
    ("settings", "size", "solver"),
    [
        ({}, (1000, 20, 1), "gauss-newton"),
        ({}, (10**6, 20, 1), "nystrom"),
        ({}, (100_000, 20, 10), "gauss-newton"),
        ({}, (200_000, 20, 10), "nystrom"),
        ({}, (10**6, 20, 10), "nystrom"),
        ({}, (10**6, 20, 32), "gauss-newton"),
        ({"width": 20_000}, (100_000, 20, 1), "nystrom"),
        ({"width": 2}, (100_000, 20, 1), "gradient"),
        ({"learning_rate": 0.1}, (10**6, 20, 1), "gradient"),
        ({"engine": "data"}, (10**6, 20, 1), "gauss-newton"),
        ({"start": "paper"}, (10**6, 20, 1), "gauss-newton"),
        ({"output_scale": 10.0}, (10**6, 20, 1), "gauss-newton"),
        ({"loss": "poisson"}, (10**6, 20, 1), "gauss-newton"),
        ({"solver": "gauss-newton"}, (10**6, 20, 1), "gauss-newton"),
        ({}, (10**6, 2000, 1), "gauss-newton"),
    ],
)
def test_solver_depends_on_size_and_settings(settings, size, solver):
    assert ShiftedReLURegressor(**settings).solver_for(*size) == solver


def test_sparse_rows_use_gauss_newton():
    assert ShiftedReLURegressor().solver_for(10**6, 20, 1, sparse=True) == "gauss-newton"


def test_width_does_not_depend_on_the_number_of_rows():
    widths = [ShiftedReLURegressor().width_for(rows, 20, 1) for rows in (10**5, 10**6, 10**7)]
    assert widths == [20_000] * 3
    assert ShiftedReLURegressor(solver="gauss-newton").width_for(10**6, 20, 1) < 20_000


@pytest.mark.parametrize(("outputs", "width"), [(1, 20_000), (3, 20_000), (7, 20_000), (10, 40_000), (31, 80_000)])
def test_width_has_a_copy_of_each_neuron_for_every_output(outputs, width):
    assert ShiftedReLURegressor().width_for(10**6, 20, outputs) == width


def test_width_for_very_many_columns_fits_into_memory():
    assert ShiftedReLURegressor(solver="nystrom").width_for(10**6, 10**8, 1) == 2000


@pytest.mark.usefixtures("few_rows_suffice")
def test_regression_is_as_good_as_with_gauss_newton(tmp_path):
    X, y = make_friedman1(3000, 8, noise=0.5, random_state=0)
    model = ShiftedReLURegressor(width=2000, random_state=0).fit(X[:1200], y[:1200])
    other = ShiftedReLURegressor(width=2000, random_state=0, solver="gauss-newton").fit(X[:1200], y[:1200])
    assert model.solver_ == model.result_.solver == "nystrom"
    assert model.score(X[1200:], y[1200:]) > other.score(X[1200:], y[1200:]) - 0.005
    fireset.save(model, tmp_path / "model.safetensors")
    again = fireset.load(tmp_path / "model.safetensors")
    assert np.array_equal(again.predict(X[:50]), model.predict(X[:50]))


@pytest.mark.usefixtures("few_rows_suffice")
def test_classification_is_as_good_as_with_gauss_newton():
    X, y = make_classification(3000, 12, n_informative=8, random_state=0)
    scores = {}
    for solver in ("auto", "gauss-newton"):
        model = ShiftedReLUClassifier(width=2000, random_state=0, solver=solver, **FIXED).fit(X[:1200], y[:1200])
        scores[model.solver_] = model.score(X[1200:], y[1200:])
    assert scores["nystrom"] > scores["gauss-newton"] - 0.01


@pytest.mark.usefixtures("few_rows_suffice")
def test_several_classes_are_as_good_as_with_gauss_newton(tmp_path):
    X, y = make_classification(3000, 12, n_informative=8, n_classes=3, random_state=0)
    scores = {}
    for solver in ("auto", "gauss-newton"):
        model = ShiftedReLUClassifier(width=3000, random_state=0, solver=solver, **FIXED).fit(X[:1200], y[:1200])
        scores[model.solver_] = model.score(X[1200:], y[1200:])
        assert model.result_.stop_reason is StopReason.TOL
        if model.solver_ == "nystrom":
            assert len(model.result_.history) <= 2  # outputs are not coupled: one round solves the system
            fireset.save(model, tmp_path / "model.safetensors")
            again = fireset.load(tmp_path / "model.safetensors")
            assert np.array_equal(again.predict_proba(X[:50]), model.predict_proba(X[:50]))
    assert scores["nystrom"] > scores["gauss-newton"] - 0.015


@pytest.mark.usefixtures("few_rows_suffice")
def test_a_width_is_rounded_up_to_the_copies_of_the_start():
    X, y = make_friedman1(1200, 5, random_state=0)
    model = ShiftedReLURegressor(width=2001, random_state=0, **FIXED)
    with pytest.warns(UserWarning, match="2004"):
        model.fit(X, np.column_stack([y, -y, y**2]))
    assert model.network_.width == 2004
    assert model.score(X, np.column_stack([y, -y, y**2])) > 0.9


@pytest.mark.usefixtures("few_rows_suffice")
def test_sparse_fit_uses_gauss_newton():
    X, y = make_friedman1(1100, 5, random_state=0)
    model = ShiftedReLURegressor(width=1000, random_state=0, **FIXED).fit(csr_array(X), y)
    assert model.solver_ == "gauss-newton"


@pytest.mark.usefixtures("few_rows_suffice")
def test_early_stopping_and_weights():
    X, y = make_friedman1(1500, 5, random_state=0)
    weight = (np.arange(1500) < 1250) * 1.0
    model = ShiftedReLURegressor(width=1000, random_state=0, early_stopping=True, **FIXED).fit(X, y, weight)
    assert model.solver_ == "nystrom"
    assert model.result_.history[-1].validation_loss is not None
    assert model.score(X[1250:], y[1250:]) > 0.9


@pytest.mark.usefixtures("few_rows_suffice")
@pytest.mark.parametrize(("bias", "others"), [(3.0, {1.0, 3.0}), (0.3, {0.3})])
def test_bias_is_kept_or_the_next_smaller_one(bias, others):
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((2000, 4))
    targets = np.sin(3 * Z[:, :1])
    network = ShiftedReLUNetwork.initialize(500, 5, threshold=1.5, start="antisymmetric", output_scale=1000.0, seed=0)
    sphere = SphereMap.learn(ColumnMap.learn(Z, np.ones(2000)), Z, np.ones(2000), bias, np.ones(4))
    found = [choose_bias(network, sphere, Z, targets, np.ones(2000)) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0] in others


@pytest.mark.usefixtures("few_rows_suffice")
def test_bias_for_a_rough_function_is_the_smaller_one():
    """With bias 3 a narrow network cannot follow a function that varies quickly."""
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((2000, 2))
    targets = np.sign(np.sin(6 * Z[:, :1]))
    network = ShiftedReLUNetwork.initialize(500, 3, threshold=1.5, start="antisymmetric", output_scale=1000.0, seed=0)
    sphere = SphereMap.learn(ColumnMap.learn(Z, np.ones(2000)), Z, np.ones(2000), 3.0, np.ones(2))
    assert choose_bias(network, sphere, Z, targets, np.ones(2000)) == 1.0
