"""Estimators with a trained output layer: the choice of its scale, and what follows the fit."""

import pickle

import numpy as np
import pytest

import fireset
from fireset import InputError, ShiftedReLUClassifier, ShiftedReLURegressor

RNG = np.random.default_rng(0)
X = RNG.uniform(-1.5, 1.5, (240, 3))
Y = np.cos(X @ np.array([1.0, 0.6, -0.4])) + 0.3 * X[:, 0] * X[:, 1]  # smooth
WIDTH = 8000
SETTINGS = {"width": WIDTH, "bias": 1.0, "column_scales": None, "random_state": 0}


@pytest.fixture(scope="module")
def smooth() -> ShiftedReLURegressor:
    return ShiftedReLURegressor(**SETTINGS).fit(X[:160], Y[:160])


def test_a_smooth_target_trains_the_output_layer(smooth):
    first_layer = ShiftedReLURegressor(trained_outputs=False, **SETTINGS).fit(X[:160], Y[:160])
    assert smooth.settings_.output_layer_scale > 0
    assert not smooth.network_.has_sign_outputs
    assert first_layer.settings_.output_layer_scale == 0
    assert first_layer.network_.has_sign_outputs
    assert smooth.score(X[160:], Y[160:]) > first_layer.score(X[160:], Y[160:])


def test_copies_predict_the_same(smooth, tmp_path):
    fireset.save(smooth, tmp_path / "model.safetensors")
    expected = smooth.predict(X)
    for again in (fireset.load(tmp_path / "model.safetensors"), pickle.loads(pickle.dumps(smooth))):
        np.testing.assert_array_equal(again.predict(X), expected)
        assert again.settings_.output_layer_scale == smooth.settings_.output_layer_scale


def test_training_continues(tmp_path):
    """With ``warm_start``, ``partial_fit`` and after loading."""
    model = ShiftedReLURegressor(warm_start=True, **SETTINGS).fit(X[:160], Y[:160])
    first = model.result_.loss
    assert model.fit(X[:160], Y[:160]).result_.loss <= first * 1.001
    fireset.save(model, tmp_path / "model.safetensors")
    again = fireset.load(tmp_path / "model.safetensors")
    again.partial_fit(X[:160], Y[:160])
    assert np.isfinite(again.predict(X)).all()
    assert again.score(X[:160], Y[:160]) > 0.9


@pytest.mark.parametrize(("given", "scale"), [(True, 1.0), (0.5, 0.5), (False, 0.0), (0, 0.0)])
def test_a_given_scale_is_used(given, scale):
    model = ShiftedReLUClassifier(**{**SETTINGS, "width": 300}, trained_outputs=given).fit(X, Y > 0.5)
    assert model.settings_.output_layer_scale == scale
    assert model.network_.has_sign_outputs == (scale == 0)


@pytest.mark.parametrize(
    "settings",
    [{"width": 2000}, {"solver": "gradient", "max_iter": 2}, {"loss": "huber"}],
)
def test_auto_keeps_the_output_weights(settings):
    """Of narrow networks, for solvers without a scale of the output layer, and for losses that need many products."""
    model = ShiftedReLURegressor(**{**SETTINGS, **settings}).fit(X, Y)
    assert model.settings_.output_layer_scale == 0
    assert model.network_.has_sign_outputs


@pytest.mark.parametrize("given", ["always", -1.0, float("nan"), None])
def test_a_wrong_value_is_refused(given):
    with pytest.raises(InputError, match="trained_outputs"):
        ShiftedReLURegressor(trained_outputs=given).fit(X, Y)


def test_nystrom_trains_output_weights_and_continues(tmp_path):
    model = ShiftedReLURegressor(solver="nystrom", warm_start=True, **SETTINGS).fit(X[:160], Y[:160])
    assert model.settings_.output_layer_scale > 0
    assert not model.network_.has_sign_outputs
    assert model.score(X[160:], Y[160:]) > 0.9
    fireset.save(model, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(fireset.load(tmp_path / "model.safetensors").predict(X), model.predict(X))
    first = model.result_.loss
    assert model.fit(X[:160], Y[:160]).result_.loss <= first * 1.001
