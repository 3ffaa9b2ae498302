"""Engines, solvers and losses as objects, and validation rows of the user's, in the estimators."""

import copy
import pickle

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from fireset import Checkpoints, InputError, ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.engines import create
from fireset.training.losses import Huber, SquaredError
from fireset.training.solvers import GaussNewton, GradientDescent
from support.fixed_settings import FIXED

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.standard_normal((120, 4))
Y = X[:, 0] + np.sin(X[:, 1])
LABELS = np.where(X[:, 0] > 0.5, "high", np.where(X[:, 0] < -0.5, "low", "middle"))
SMALL = {"width": 200, "random_state": 0, "dtype": "float64", "max_iter": 10, **FIXED}


class HalvingDescent(GradientDescent):
    """A solver of no registry: the step size falls by half in every iteration."""

    name = "halving"

    def step(self, progress):
        super().step(progress)
        self._rule.rate *= 0.5


OBJECTS = {
    "engine of a registry": {"engine": create("data", radius=0)},
    "dense engine": {"engine": create("dense")},
    "approximate engine": {"engine": create("hashing")},
    "gradient descent": {"solver": GradientDescent(0.1, momentum=0.5)},
    "gauss-newton": {"solver": GaussNewton(ridge=2.0)},
    "own solver": {"solver": HalvingDescent()},
    "engine and solver": {"engine": create("dense"), "solver": GradientDescent("auto", 0.9, True)},
    "loss": {"loss": Huber(0.7)},
}


def state_of(thing) -> dict:
    return {name: repr(value) for name, value in vars(thing).items()}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_are_parameters_like_any_other(name):
    given = copy.deepcopy(OBJECTS[name])
    before = {key: state_of(value) for key, value in given.items()}
    model = ShiftedReLURegressor(**SMALL, **given).fit(X, Y)
    for key, value in given.items():
        assert model.get_params()[key] is value
        assert state_of(value) == before[key]  # fit changes no parameter
    if "engine" in given:
        assert model.result_.engine == given["engine"].name
    if "solver" in given:
        assert model.solver_ == model.result_.solver == given["solver"].name
    expected = model.predict(X)
    for other in (clone(model), copy.deepcopy(clone(model)), pickle.loads(pickle.dumps(clone(model)))):
        assert np.array_equal(other.fit(X, Y).predict(X), expected)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert np.array_equal(other.predict(X), expected)
        assert np.array_equal(other.fit(X, Y).predict(X), expected)
    assert np.array_equal(model.fit(X, Y).predict(X), expected)


@pytest.mark.parametrize("name", OBJECTS)
def test_classifiers_and_batches(name):
    given = copy.deepcopy(OBJECTS[name])
    if "loss" in given:
        return
    model = ShiftedReLUClassifier(**SMALL, **given).fit(X, LABELS)
    assert model.score(X, LABELS) > 0.6
    if getattr(given.get("engine"), "name", "") != "hashing":
        before = model.result_.loss
        model.partial_fit(X, LABELS)
        assert np.isfinite(before)
    assert repr(model).startswith("ShiftedReLUClassifier(")


def test_objects_do_as_names_do():
    for names, objects in (
        ({"engine": "data"}, {"engine": create("data")}),
        (
            {"solver": "gauss-newton", "ridge": 2.0},
            {"solver": GaussNewton(ridge=2.0, tol=SquaredError.gauss_newton_tol)},
        ),
        ({"solver": "gradient"}, {"solver": GradientDescent("auto", 0.9, True)}),
    ):
        named = ShiftedReLURegressor(**SMALL, **names).fit(X, Y)
        given = ShiftedReLURegressor(**SMALL, **objects).fit(X, Y)
        assert named.network_.output_scale == given.network_.output_scale
        assert np.array_equal(named.predict(X), given.predict(X))


def test_grid_search_over_objects():
    choices = {
        "engine": ["dense", create("data", radius=0)],
        "solver": [GaussNewton(ridge=1e3), GradientDescent(), "gauss-newton"],
        "loss": ["squared_error", Huber(2.0)],
    }
    search = GridSearchCV(ShiftedReLURegressor(**SMALL), choices, cv=2, error_score="raise").fit(X, Y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    for name, values in choices.items():
        assert search.best_params_[name] in values


@pytest.mark.parametrize("given", [{"solver": GradientDescent(0.1)}, {"engine": create("data", radius=0)}])
def test_checkpoints_of_objects(given, tmp_path):
    settings = {**SMALL, "tol": 0, "solver": "gradient", **given}
    whole = ShiftedReLURegressor(**settings).fit(X, Y)
    ShiftedReLURegressor(**{**settings, "max_iter": 6}).fit(X, Y, checkpoint=Checkpoints(tmp_path, every=3))
    again = ShiftedReLURegressor(**settings).fit(X, Y, checkpoint=Checkpoints(tmp_path, every=3, resume=True))
    assert again.result_.resumed_at == 6
    np.testing.assert_allclose(again.predict(X), whole.predict(X), rtol=1e-9)
    other = {**settings, "solver": GradientDescent(0.05), "engine": "dense"}
    with pytest.raises(InputError):
        ShiftedReLURegressor(**other).fit(X, Y, checkpoint=Checkpoints(tmp_path, every=3, resume=True))


@pytest.mark.parametrize(("name", "value"), [("learning_rate", 0.1), ("ridge", 1.0), ("batch_size", 20)])
def test_a_solver_object_brings_its_own_settings(name, value):
    with pytest.raises(InputError, match=f"`{name}`.*got"):
        ShiftedReLURegressor(solver=GradientDescent(), **SMALL, **{name: value}).fit(X, Y)


@pytest.mark.parametrize("value", [3, None, ["dense"], GradientDescent])
def test_what_is_neither_name_nor_object(value):
    for name in ("engine", "solver"):
        with pytest.raises(InputError, match=name):
            ShiftedReLURegressor(**SMALL, **{name: value}).fit(X, Y)
    with pytest.raises(InputError, match="loss"):
        ShiftedReLURegressor(loss=value, **SMALL).fit(X, Y)


# Validation rows


@pytest.mark.parametrize("solver", ["gradient", "gauss-newton"])
def test_validation_rows(solver):
    settings = {**SMALL, "solver": solver, "tol": 0, "ridge": 1e-6, "max_iter": 40, "patience": 3}
    model = ShiftedReLURegressor(**settings).fit(X[:80], Y[:80], X_val=X[80:], y_val=-Y[80:])
    assert model.result_.stop_reason == "patience"
    losses = model.result_.history.column("validation_loss").astype(float)
    assert np.isfinite(losses).all()
    assert losses.argmin() == model.result_.best_iteration
    standardized = (-Y[80:] - model.target_mean_) / model.target_scale_
    errors = (model.predict(X[80:]) - model.target_mean_) / model.target_scale_ - standardized
    assert 0.5 * errors @ errors == pytest.approx(losses.min(), rel=1e-6)
    assert np.array_equal(model.training_rows_, np.arange(80))


def test_validation_rows_replace_those_held_out():
    settings = {**SMALL, "solver": "gradient", "early_stopping": True}
    model = ShiftedReLURegressor(**settings).fit(X[:80], Y[:80], X_val=X[80:], y_val=Y[80:])
    assert len(model.training_rows_) == 80
    plain = ShiftedReLURegressor(**{**settings, "early_stopping": False}).fit(
        X[:80], Y[:80], X_val=X[80:], y_val=Y[80:]
    )
    assert np.array_equal(model.predict(X), plain.predict(X))


@pytest.mark.parametrize("loss", ["squared_error", "log_loss"])
def test_validation_rows_of_a_classifier(loss):
    frame = pl.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": ["u", "v", "w"] * 40})
    model = ShiftedReLUClassifier(loss=loss, class_weight={"low": 5.0}, **SMALL)
    model.fit(frame[:80], LABELS[:80], X_val=frame[80:], y_val=LABELS[80:])
    assert np.isfinite(model.result_.history.column("validation_loss").astype(float)).all()
    with pytest.raises(InputError, match="'other'"):
        model.fit(frame[:80], LABELS[:80], X_val=frame[80:], y_val=["other"] * 40)


@pytest.mark.parametrize("loss", ["quantile", "poisson", "absolute_error"])
def test_validation_rows_of_other_losses(loss):
    y = np.abs(Y)
    model = ShiftedReLURegressor(loss=loss, **SMALL).fit(X[:80], y[:80], X_val=X[80:], y_val=y[80:])
    assert len(model.result_.history.column("validation_loss")) == len(model.result_.history)


def test_validation_rows_that_are_refused():
    model = ShiftedReLURegressor(**SMALL)
    with pytest.raises(InputError, match="`y_val`"):
        model.fit(X, Y, X_val=X)
    with pytest.raises(InputError, match="`X_val`"):
        model.fit(X, Y, y_val=Y)
    with pytest.raises(ValueError, match="features"):
        model.fit(X, Y, X_val=X[:, :3], y_val=Y)
    with pytest.raises(ValueError, match="inconsistent"):
        model.fit(X, Y, X_val=X, y_val=Y[:5])
    with pytest.raises(InputError, match="columns"):
        model.fit(X, Y, X_val=X, y_val=np.c_[Y, Y])
    with pytest.raises(InputError, match="`y`"):
        model.fit(X, Y, X_val=X, y_val=1e200 * Y)


def test_not_converging_still_warns():
    with pytest.warns(ConvergenceWarning):
        ShiftedReLURegressor(**{**SMALL, "solver": GradientDescent(), "max_iter": 3}).fit(X, Y)
