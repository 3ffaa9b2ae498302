"""The squared norm as a further feature: its derivatives, when it is used, and that models with it are stored."""

import numpy as np
import onnxruntime
import pytest
from sklearn.datasets import make_gaussian_quantiles
from sklearn.svm import SVC

import fireset
from fireset import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.tables.squared_norm import SquaredNorm


@pytest.fixture(scope="module")
def shells():
    """Return rows of three concentric shells in 10 dimensions, their classes, and a classifier of the first 600."""
    X, y = make_gaussian_quantiles(n_samples=2100, n_features=10, n_classes=3, random_state=0)
    return X, y, ShiftedReLUClassifier(width=4000, random_state=0).fit(X[:600], y[:600])


def test_shells_are_learned_by_the_squared_norm(shells):
    X, y, model = shells
    assert model.settings_.squared_norm is not None
    assert model.network_.n_features == model.sphere_.columns.n_outputs + 1
    assert model.score(X[600:], y[600:]) > SVC().fit(X[:600], y[:600]).score(X[600:], y[600:]) + 0.05
    assert model.feature_importances_ == pytest.approx(np.full(10, 0.1), abs=0.03)


def test_saved_and_exported_models_predict_the_same(shells, tmp_path):
    X, _, model = shells
    fireset.save(model, tmp_path / "model.safetensors")
    again = fireset.load(tmp_path / "model.safetensors")
    assert again.settings_.squared_norm == model.settings_.squared_norm
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    p = np.asarray(session.run(None, {session.get_inputs()[0].name: X})[1])
    np.testing.assert_allclose(p, model.predict_proba(X), atol=1e-2)  # of a float32 network with κ = 1000


@pytest.mark.parametrize("kind", ["linear", "sine", "noise"])
def test_the_squared_norm_is_not_used_where_it_does_not_matter(kind):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 5))
    y = {"linear": X[:, 0] - X[:, 1], "sine": np.sin(2 * X[:, 0]), "noise": np.zeros(400)}[kind]
    model = ShiftedReLURegressor(width=1000, random_state=0).fit(X, y + 0.3 * rng.standard_normal(400))
    assert model.settings_.squared_norm is None


def test_derivatives_are_those_of_differences():
    rng = np.random.default_rng(0)
    Z, weight = rng.standard_normal((50, 4)), rng.integers(1, 4, 50).astype(float)
    squared_norm = SquaredNorm.learn(Z, weight)
    assert squared_norm is not None
    column = squared_norm.append_to(Z)[:, -1]
    assert np.average(column, weights=weight) == pytest.approx(0, abs=1e-12)
    assert np.average(column**2, weights=weight) == pytest.approx(1)
    slope = rng.standard_normal(5)
    found = squared_norm.through(np.tile(slope, (50, 1)), Z)
    for j, move in enumerate(1e-5 * np.eye(4)):
        rise = (squared_norm.append_to(Z + move) - squared_norm.append_to(Z - move)) @ slope / 2e-5
        np.testing.assert_allclose(found[:, j], rise, rtol=1e-6, atol=1e-8)


def test_rows_of_equal_norm_have_no_column():
    Z = np.random.default_rng(0).standard_normal((30, 3))
    assert SquaredNorm.learn(Z / np.linalg.norm(Z, axis=1, keepdims=True), np.ones(30)) is None
