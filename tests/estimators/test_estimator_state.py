"""Everything that ``fit`` sets survives saving, pickling and copying, and training continues from it."""

import copy
import dataclasses
import pickle
import warnings

import numpy as np
import polars as pl
import pytest
from sklearn.base import BaseEstimator

import fireset
from fireset import InputError, ShiftedReLUClassifier, ShiftedReLUNetwork, ShiftedReLURegressor
from fireset.engines import create
from fireset.training.losses import Huber, LogLoss, Quantile
from fireset.training.solvers import GradientDescent
from support.fixed_settings import FIXED

rng = np.random.default_rng(0)
X = rng.standard_normal((90, 4))
Y = np.abs(X[:, 0] + np.sin(X[:, 1])) + 0.2
LABELS = np.where(X[:, 0] > 0.5, "high", np.where(X[:, 0] < -0.5, "low", "middle"))
FRAME = pl.DataFrame({"a": X[:, 0], "b": ["u", "v", "w"] * 30, "unused": [f"text {i}" for i in range(90)]})
CHOSEN = {"width": 100, "random_state": 0}
SMALL = {**CHOSEN, **FIXED}

FITTED = {
    "squared error": lambda: ShiftedReLURegressor(**CHOSEN).fit(X, Y),
    "absolute error": lambda: ShiftedReLURegressor(loss="absolute_error", **SMALL).fit(X, Y),
    "huber": lambda: ShiftedReLURegressor(loss=Huber(0.5), **SMALL).fit(X, Y),
    "quantile": lambda: ShiftedReLURegressor(loss="quantile", **SMALL).fit(X, Y),
    "one quantile": lambda: ShiftedReLURegressor(loss=Quantile(0.7), **SMALL).fit(X, np.c_[Y, -Y]),
    "poisson": lambda: ShiftedReLURegressor(loss="poisson", **SMALL).fit(X, Y),
    "several targets": lambda: ShiftedReLURegressor(**SMALL).fit(X, np.c_[Y, -Y]),
    "one column": lambda: ShiftedReLURegressor(**SMALL).fit(X, Y[:, None]),
    "frame": lambda: ShiftedReLURegressor(categorical=["b"], **SMALL).fit(FRAME, Y),
    "few rows": lambda: ShiftedReLURegressor(**SMALL).fit(X[:20], Y[:20]),
    "early stopping": lambda: ShiftedReLURegressor(
        solver="gradient", early_stopping=True, max_iter=20, learning_rate=0.1, dtype=np.float64, **SMALL
    ).fit(X, Y),
    "random state": lambda: ShiftedReLURegressor(50, random_state=np.random.RandomState(3)).fit(X, Y),
    "column scales": lambda: ShiftedReLURegressor(column_scales=np.arange(1.0, 5.0), **CHOSEN).fit(X, Y),
    "listed column scales": lambda: ShiftedReLURegressor(column_scales=[1.0, 2.0, 3.0, 4.0], **CHOSEN).fit(X, Y),
    "batches": lambda: ShiftedReLURegressor(dtype="float64", **SMALL).partial_fit(X, Y),
    "quantum": lambda: ShiftedReLURegressor(20, engine="quantum-data", max_iter=2, random_state=0).fit(X[:10], Y[:10]),
    "classes": lambda: ShiftedReLUClassifier(**CHOSEN).fit(X, LABELS),
    "two classes": lambda: ShiftedReLUClassifier(class_weight={False: 2.0, True: 1}, **SMALL).fit(X, X[:, 0] > 0),
    "log loss": lambda: ShiftedReLUClassifier(loss="log_loss", class_weight="balanced", **SMALL).fit(X, LABELS),
    "log loss of two classes": lambda: ShiftedReLUClassifier(loss=LogLoss(), **SMALL).fit(X, X[:, 0] > 0),
    "classes of a frame": lambda: ShiftedReLUClassifier(**SMALL).fit(FRAME, LABELS),
    "batches of classes": lambda: ShiftedReLUClassifier(**SMALL).partial_fit(X, LABELS, classes=np.unique(LABELS)),
}


def rows_of(model):
    if model.n_features_in_ == 4:
        return X
    return FRAME


def target_of(model):
    if not hasattr(model, "classes_"):
        return Y if not model._many_targets else np.c_[Y, -Y][:, : len(model.target_mean_)]
    return LABELS if len(model.classes_) == 3 else X[:, 0] > 0


def saved_and_loaded(model, folder):
    fireset.save(model, folder / "model.safetensors")
    return fireset.load(folder / "model.safetensors")


WAYS = {
    "saved": saved_and_loaded,
    "pickled": lambda model, folder: pickle.loads(pickle.dumps(model)),  # noqa: ARG005
    "copied": lambda model, folder: copy.copy(model),  # noqa: ARG005
    "deeply copied": lambda model, folder: copy.deepcopy(model),  # noqa: ARG005
    "pickled and saved": lambda model, folder: saved_and_loaded(pickle.loads(pickle.dumps(model)), folder),
    "saved twice": lambda model, folder: saved_and_loaded(saved_and_loaded(model, folder), folder),
}


def assert_same(one, other, place: str) -> None:
    """All parts of two objects are equal, and of the same type."""
    assert type(one) is type(other), place
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype, place
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), place
    elif isinstance(one, np.random.RandomState):
        assert_same(one.get_state(), other.get_state(), place)
    elif isinstance(one, ShiftedReLUNetwork):
        for name in ("weights", "output_weights", "threshold", "output_scale"):
            assert_same(getattr(one, name), getattr(other, name), f"{place}.{name}")
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name), f"{place}.{field.name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), place
        for k, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{place}[{k}]")
    elif isinstance(one, dict):
        assert list(one) == list(other), place
        for key in one:
            assert_same(one[key], other[key], f"{place}[{key!r}]")
    else:
        assert one == other or (one != one and other != other), place


def public_attributes(model) -> list[str]:
    """Names of attributes and properties that ``fit`` sets."""
    own = [name for name in vars(model) if name.endswith("_") and not name.startswith("_")]
    properties = [
        name for kind in type(model).__mro__ for name, value in vars(kind).items() if isinstance(value, property)
    ]
    return sorted({*own, *(name for name in properties if name.endswith("_") and not name.startswith("_"))})


@pytest.mark.sweep(every=16)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FITTED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_all_that_fit_sets(name, way, tmp_path):
    model = FITTED[name]()
    again = WAYS[way](model, tmp_path)
    assert isinstance(again, BaseEstimator)
    names = public_attributes(model)
    assert {"network_", "result_", "settings_", "n_iter_", "sphere_", "encoder_", "feature_importances_"} <= set(names)
    assert public_attributes(again) == names
    for attribute in names:
        assert_same(getattr(model, attribute), getattr(again, attribute), attribute)
    expected = model.get_params()
    if name == "early stopping" and "saved" in way:
        expected["dtype"] = "float64"
    assert_same(expected, again.get_params(), "get_params()")
    assert sorted(vars(again)) == sorted(set(vars(model)) - {"_batches"})
    rows = rows_of(model)
    assert np.array_equal(model.predict(rows), again.predict(rows))
    if hasattr(model, "classes_"):
        assert np.array_equal(model.predict_proba(rows), again.predict_proba(rows))
    if name not in ("early stopping", "random state"):  # whose repr has an address, or a type
        assert repr(again) == repr(model)


@pytest.mark.sweep(every=16)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FITTED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_training_continues(name, way, tmp_path):
    if name == "quantum":
        pytest.skip("the quantum engines draw at random and take no batches")
    model = FITTED[name]()
    again = WAYS[way](model, tmp_path)
    if way == "copied":
        again.network_ = model.network_.copy()
    rows, y = rows_of(model), target_of(model)
    for one in (model, again):
        one.set_params(warm_start=True, max_iter=3)
        one.partial_fit(rows[:30], y[:30])
        one.fit(rows, y)
        one.partial_fit(rows[30:60], y[30:60])
    assert again.n_iter_ == model.n_iter_
    np.testing.assert_allclose(
        again.network_.weights, model.network_.weights, atol=1e-9 if model.network_.dtype == np.float64 else 1e-4
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
def test_partial_fit_keeps_its_step_size(way, loss, tmp_path):
    """The batches differ, so that a step size chosen by the last of them is another one."""
    parts = [X[:40], 0.3 * X[40:60], 3 * X[60:]], [Y[:40], Y[40:60], Y[60:]]
    model = ShiftedReLURegressor(200, loss=loss, dtype="float64", random_state=0)
    for rows, y in list(zip(*parts, strict=True))[:2]:
        model.partial_fit(rows, y)
    again = WAYS[way](model, tmp_path)
    if way == "copied":
        again.network_ = model.network_.copy()
    for one in (model, again):
        one.partial_fit(parts[0][2], parts[1][2])
    assert again.result_.learning_rate == pytest.approx(model.result_.learning_rate, rel=1e-12)
    np.testing.assert_allclose(again.predict(X), model.predict(X), rtol=1e-9)


def test_fit_between_batches():
    """A fit moves the weights behind the back of the engine that batches keep."""
    model = ShiftedReLURegressor(200, dtype="float64", random_state=0, warm_start=True).partial_fit(X, Y)
    other = pickle.loads(pickle.dumps(model))
    for one in (model, other):
        one.fit(X, Y)
    other = pickle.loads(pickle.dumps(other))
    for one in (model, other):
        one.partial_fit(X, Y)
    np.testing.assert_allclose(model.predict(X), other.predict(X), rtol=1e-9)


@pytest.mark.parametrize("name", ["engine", "solver"])
def test_objects_are_refused_by_model_files(name, tmp_path):
    value = create("data", radius=0) if name == "engine" else GradientDescent()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ShiftedReLURegressor(max_iter=5, **SMALL, **{name: value}).fit(X, Y)
    with pytest.raises(InputError, match=f"`{name}`.*set_params"):
        fireset.save(model, tmp_path / "model")
    model.set_params(**{name: value.name})
    assert fireset.load(_saved(model, tmp_path)).get_params()[name] == value.name


def _saved(model, folder):
    fireset.save(model, folder / "model")
    return folder / "model"


def _outputs_of(model, folder) -> list[np.ndarray]:
    """Predictions of a model, of its copies and of its ONNX graph."""
    onnxruntime = pytest.importorskip("onnxruntime")
    fireset.save(model, folder / "model.safetensors")
    copies = [model, fireset.load(folder / "model.safetensors"), pickle.loads(pickle.dumps(model))]
    found = [each.predict_proba(X) if hasattr(each, "classes_") else each.predict(X) for each in copies]
    graph = onnxruntime.InferenceSession(model.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    return [*found, graph.run(None, {"X": X})[-1]]


@pytest.mark.parametrize(
    ("first", "then"), [("squared_error", "poisson"), ("poisson", "absolute_error"), ("squared_error", "log_loss")]
)
def test_a_loss_that_is_set_after_the_fit_applies_to_the_next_fit(tmp_path, first, then):
    classifies = "log_loss" in (first, then)
    estimator = (ShiftedReLUClassifier if classifies else ShiftedReLURegressor)(loss=first, **SMALL)
    y = LABELS if classifies else Y
    before = _outputs_of(estimator.fit(X, y), tmp_path)
    score = estimator.score(X, y)
    estimator.set_params(loss=then)
    for found, expected in zip(_outputs_of(estimator, tmp_path), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert estimator.score(X, y) == score
    again = (ShiftedReLUClassifier if classifies else ShiftedReLURegressor)(loss=then, **SMALL).fit(X, y)
    expected = _outputs_of(again, tmp_path)
    for found, other in zip(_outputs_of(estimator.fit(X, y), tmp_path), expected, strict=True):
        np.testing.assert_array_equal(found, other)
