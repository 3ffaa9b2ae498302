"""Invariants of every fit: finite predictions, never silently worse than a constant, extreme settings refused."""

import warnings
from functools import cache

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split

import fireset
from fireset import InputError, ShiftedReLUClassifier, ShiftedReLURegressor
from fireset._util import parallel
from fireset.training.losses import LOSSES, SquaredError, check_task
from support.fixed_settings import FIXED

REGRESSION = [name for name in LOSSES if name != "log_loss"]
CLASSIFICATION = ["squared_error", "log_loss"]
rng = np.random.default_rng(0)
ROWS = rng.standard_normal((80, 3))
TARGETS = np.abs(ROWS[:, 0] + 0.5 * ROWS[:, 1]) + 0.1
LABELS = (ROWS[:, 0] + 0.5 * ROWS[:, 1] > 0).astype(int)
CHOSEN = {"bias": "auto", "column_scales": "auto"}


def fitted(loss: str, *, classification: bool = False, **settings):
    settings = {"width": 200, "random_state": 0, **FIXED, **settings}
    if classification:
        return ShiftedReLUClassifier(loss=loss, **settings).fit(ROWS, LABELS)
    return ShiftedReLURegressor(loss=loss, **settings).fit(ROWS, TARGETS)


def training_loss(model, X, y) -> tuple[float, float]:
    """Loss of the model on (X, y), and that of the constant prediction."""
    loss = check_task(model.loss, "classification" if hasattr(model, "classes_") else "regression")
    weight = np.ones(len(X))
    targets = np.asarray(model._to_targets(model._codes(y) if hasattr(model, "classes_") else np.asarray(y, float)))
    outputs = model._outputs(X)
    loss = loss.for_targets(np.broadcast_to(targets, outputs.shape), weight)
    constant = np.zeros_like(outputs)
    if loss.name == "log_loss":
        share = targets.mean(axis=0)
        constant += np.log(share / (1 - share)) if len(share) == 1 else np.log(share)
    return loss.value(outputs, targets, weight), loss.value(constant, targets, weight)


# Starts that are not zero


@pytest.mark.sweep(every=12)
@pytest.mark.parametrize("width", [3, 5, 25, 101, 333, 1001])
@pytest.mark.parametrize("loss", REGRESSION)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_odd_widths_of_the_regressor(loss, width):
    odd, even = (fitted(loss, width=m) for m in (width, width + 1))
    assert odd.network_.width == width + 1
    assert np.array_equal(odd.predict(ROWS), even.predict(ROWS))
    own, constant = training_loss(odd, ROWS, TARGETS)
    assert own <= constant * (1 + 1e-6)


@pytest.mark.parametrize("width", [3, 5, 25, 101, 333, 1001])
@pytest.mark.parametrize("loss", CLASSIFICATION)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_odd_widths_of_the_classifier(loss, width):
    # With the learned metric none of four neurons is active, and nothing can be trained.
    odd, even = (fitted(loss, classification=True, width=m, column_scales=None) for m in (width, width + 1))
    assert odd.network_.width == width + 1
    assert np.array_equal(odd.predict_proba(ROWS), even.predict_proba(ROWS))
    own, constant = training_loss(odd, ROWS, LABELS)
    assert own <= constant * (1 + 1e-6)


def test_an_odd_width_is_rounded_with_a_warning():
    with pytest.warns(UserWarning, match="`width`.*101.*102"):
        fitted("squared_error", width=101)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert fitted("squared_error", width=101, start="paper").network_.width == 101


@pytest.mark.parametrize("solver", ["auto", "gradient"])
def test_the_scale_of_the_outputs_follows_from_the_start(solver):
    assert fitted("squared_error", solver=solver).network_.output_scale > 1
    assert fitted("squared_error", solver=solver, start="paper").network_.output_scale == 1


@cache
def score_of_diabetes(loss: str, width: int, start: str = "auto") -> float:
    X, X_test, y, y_test = train_test_split(*load_diabetes(return_X_y=True), random_state=0)
    model = ShiftedReLURegressor(width, loss=loss, start=start, random_state=0, **FIXED)
    return model.fit(X, y).score(X_test, y_test)


@pytest.mark.parametrize("settings", [{"width": 1001}, {"width": 1000, "start": "paper"}])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_scores_do_not_depend_on_the_start(settings):
    for loss in ("squared_error", "poisson", "absolute_error"):
        even = score_of_diabetes(loss, 1000)
        other = score_of_diabetes(loss, **settings)
        assert abs(even - other) < 0.05  # scores of six seeds differ by up to 0.08 at this width
    X, X_test, y, y_test = train_test_split(*load_breast_cancer(return_X_y=True), random_state=0)
    for loss in CLASSIFICATION:
        model = ShiftedReLUClassifier(loss=loss, random_state=0, **settings, **FIXED).fit(X, y)
        assert model.score(X_test, y_test) > 0.93


# Never silently worse than a constant


@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "huber", "quantile"])
def test_a_fit_worse_than_a_constant_warns(loss):
    with pytest.warns(ConvergenceWarning, match="constant"):
        model = fitted(loss, start="paper", output_scale=1000.0, max_iter=1)
    assert np.isfinite(model.predict(ROWS)).all()
    own, constant = training_loss(model, ROWS, TARGETS)
    assert own > constant


@pytest.mark.parametrize("loss", CLASSIFICATION)
def test_a_classifier_worse_than_a_constant_warns(loss):
    with pytest.warns(ConvergenceWarning, match="constant"):
        fitted(loss, classification=True, start="paper", output_scale=1000.0, max_iter=1)


def test_a_classifier_slightly_worse_than_a_constant_warns():
    """With a huge ridge the outputs stay near 0: equal probabilities, less than 1 % worse than the class shares."""
    y = np.repeat([0, 1, 2], (32, 24, 24))
    with pytest.warns(ConvergenceWarning, match=r"constant.*loss='squared_error'"):
        model = ShiftedReLUClassifier(200, loss="log_loss", ridge=1e12, random_state=0).fit(ROWS, y)
    own, constant = training_loss(model, ROWS, y)
    assert constant < own < 1.01 * constant


@pytest.mark.parametrize("loss", REGRESSION)
def test_a_sound_fit_does_not_warn(loss):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(loss, **CHOSEN)
        fitted(loss, ridge=1e12)  # the constant itself


def test_a_rare_class_does_not_warn():
    y = (np.arange(80) % 20 == 0).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for loss in CLASSIFICATION:
            ShiftedReLUClassifier(200, loss=loss, random_state=0).fit(ROWS + 3 * y[:, None], y)


class OverflowingError(SquaredError):
    """Squared error whose value is not a number once outputs are away from 0."""

    name = "overflowing"

    def value(self, u, targets, sample_weight) -> float:
        return super().value(u, targets, sample_weight) if np.abs(u).max() < 0.01 else np.nan


class InfiniteError(SquaredError):
    """A loss that is infinite from the start."""

    name = "infinite"

    def value(self, u, targets, sample_weight) -> float:  # noqa: ARG002
        return np.inf


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_loss_that_is_not_finite():
    model = ShiftedReLURegressor(200, loss=OverflowingError(), solver="gradient", max_iter=5).fit(ROWS, TARGETS)
    assert np.isfinite(model.predict(ROWS)).all()
    with pytest.raises(InputError, match="loss"):
        ShiftedReLURegressor(200, loss=InfiniteError()).fit(ROWS, TARGETS)


# Extreme targets, rows, weights and settings


@pytest.mark.parametrize("loss", REGRESSION)
@pytest.mark.parametrize("size", [1e200, 1e307, 1e-200, 1e-310])
def test_targets_out_of_range_are_refused(loss, size):
    with pytest.raises(InputError, match=r"`y`.*1e-?100.*got"):
        ShiftedReLURegressor(200, loss=loss, random_state=0).fit(ROWS, TARGETS * size)


@pytest.mark.sweep(every=12)
@pytest.mark.parametrize("loss", REGRESSION)
@pytest.mark.parametrize("size", [1e-95, 1e-20, 1e20, 1e95])
def test_targets_of_any_other_size_are_scaled(loss, size):
    model = ShiftedReLURegressor(200, loss=loss, random_state=0, **FIXED).fit(ROWS, TARGETS * size)
    expected = fitted(loss).predict(ROWS)
    # Rounds of absolute error and quantiles end where a rule of progress is met, which rounding may shift by a round.
    tolerance = 0.1 if loss in ("absolute_error", "quantile") else 1e-3
    np.testing.assert_allclose(model.predict(ROWS) / size, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float16", "1_000", "nan", "", 7])
@pytest.mark.parametrize("engine", ["auto", "dense"])
def test_other_precisions_are_refused(dtype, engine):
    with pytest.raises(InputError, match=r"dtype.*got"):
        ShiftedReLURegressor(200, dtype=dtype, engine=engine, random_state=0).fit(ROWS, TARGETS)


def test_a_damping_that_overflows_ends_training():
    """Found by ``make adversary``: a large ridge relative to tiny weights, tol=0."""
    model = ShiftedReLURegressor(
        200, loss="huber", ridge=1e6, tol=0.0, max_iter=60, solver="gauss-newton", random_state=0, **FIXED
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(ROWS, TARGETS, sample_weight=np.full(len(ROWS), 1e-302))
    assert np.isfinite(model.predict(ROWS)).all()


def test_partial_fit_refuses_targets_out_of_range():
    model = ShiftedReLURegressor(200, random_state=0).partial_fit(ROWS, TARGETS)
    with pytest.raises(InputError, match=r"`y`"):
        model.partial_fit(ROWS, TARGETS * 1e200)


@pytest.mark.parametrize("size", [1e160, 1e300, 1e-160, 1e-300])
def test_columns_of_any_size(size):
    model = ShiftedReLURegressor(200, random_state=0, dtype="float64", **FIXED).fit(ROWS * size, TARGETS)
    np.testing.assert_allclose(model.predict(ROWS * size), fitted("squared_error", dtype="float64").predict(ROWS))


@pytest.mark.parametrize("size", [1e160, -1e230, 1e300])
@pytest.mark.parametrize("missing", [False, True])
def test_models_of_huge_columns_are_loaded(size, missing, tmp_path):
    X = np.column_stack([size * (1 + ROWS[:, 0] / 100), ROWS[:, 1:]])
    X[: 8 * missing, 0] = np.nan
    model = ShiftedReLURegressor(200, random_state=0).fit(X, TARGETS)
    fireset.save(model, tmp_path / "model.safetensors")
    assert np.array_equal(fireset.load(tmp_path / "model.safetensors").predict(X), model.predict(X))


@pytest.mark.parametrize("size", [1.7e308, -1.7e308])
@pytest.mark.parametrize("sparse", [False, True])
def test_columns_whose_sum_overflows_are_refused(size, sparse):
    X = np.column_stack([np.full(80, size), ROWS])
    with pytest.raises(InputError, match="divide"):
        ShiftedReLURegressor(200).fit(csr_array(X) if sparse else X, TARGETS)


@pytest.mark.parametrize("threshold", [11, 40, -11, 1e10, np.inf, np.nan])
@pytest.mark.parametrize("width", ["auto", 200])
def test_thresholds_out_of_range(threshold, width):
    with pytest.raises(InputError, match=r"`threshold`.*got"):
        fitted("squared_error", threshold=threshold, width=width)


@pytest.mark.parametrize("threshold", [4.5, 6.0])
def test_hardly_any_active_neuron_warns(threshold):
    with pytest.warns(UserWarning, match="threshold.*active"):
        fitted("squared_error", threshold=threshold)
    with pytest.warns(UserWarning, match="threshold.*active"):
        fitted("log_loss", classification=True, threshold=threshold)
    with pytest.warns(UserWarning, match="threshold.*active"):
        ShiftedReLURegressor(200, threshold=threshold).partial_fit(ROWS, TARGETS)


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e13, 1e-13, 0.0, -1.0, np.nan, "large", True])
def test_output_scales_out_of_range(scale):
    with pytest.raises(InputError, match=r"`output_scale`.*got"):
        fitted("squared_error", output_scale=scale)


@pytest.mark.parametrize(
    "weights", [{0: -1, 1: 1}, {0: np.nan, 1: 1}, {0: np.inf, 1: 1}, {0: 0, 1: 0}, {0: "a", 1: 1}, "uneven", 3, [1, 2]]
)
def test_class_weights_out_of_range(weights):
    with pytest.raises(InputError, match=r"`class_weight`.*got"):
        fitted("squared_error", classification=True, class_weight=weights)
    model = ShiftedReLUClassifier(200, class_weight=weights)
    with pytest.raises(InputError, match=r"`class_weight`.*got"):
        model.partial_fit(ROWS, LABELS, classes=[0, 1])


@pytest.mark.parametrize("loss", CLASSIFICATION)
def test_a_class_of_weight_zero(loss):
    model = fitted(loss, classification=True, class_weight={0: 0, 1: 1})
    assert np.isfinite(model.predict_proba(ROWS)).all()


@pytest.mark.usefixtures("two_blas_threads")
@pytest.mark.parametrize("kind", [ShiftedReLURegressor, ShiftedReLUClassifier])
def test_a_fit_beside_others_has_equal_bits(kind):
    """Found by ``make adversary``: a fit in another thread limits BLAS to one thread, which changes sums."""
    X = np.random.default_rng(0).standard_normal((1500, 40))
    y = X[:, 0] if kind is ShiftedReLURegressor else np.digitize(X[:, 0], [-0.5, 0.5])

    def outputs() -> np.ndarray:
        model = kind(500, random_state=2, dtype="float64", bias=1.0, column_scales=None).fit(X, y)
        small = model.network_.predict(model.rows_on_sphere(X[:60]))
        return np.column_stack([small.reshape(60, -1), model._outputs(X)[:60].reshape(60, -1)])

    alone = outputs()
    with parallel.one_blas_thread():
        assert np.array_equal(outputs(), alone)


def test_masked_entries_are_refused():
    masked_rows = np.ma.masked_greater(ROWS, 1.0)
    masked_targets = np.ma.masked_greater(TARGETS, 1.0)
    rows = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    estimator = ShiftedReLURegressor(width=20, random_state=0, **FIXED)
    model = fitted("squared_error")
    network = fireset.ShiftedReLUNetwork.initialize(20, 3)
    for name, attempt in (
        ("X", lambda: estimator.fit(masked_rows, TARGETS)),
        ("X", lambda: model.predict(masked_rows)),
        ("y", lambda: estimator.fit(ROWS, masked_targets)),
        ("sample_weight", lambda: estimator.fit(ROWS, TARGETS, sample_weight=masked_targets)),
        ("X", lambda: network.predict(np.ma.masked_greater(rows, 0.5))),
        ("y", lambda: fireset.train(network, rows, masked_targets)),
        ("sample_weight", lambda: fireset.train(network, rows, TARGETS, sample_weight=masked_targets)),
    ):
        with pytest.raises(InputError, match=rf"`{name}` must not be masked"):
            attempt()
    unmasked = np.ma.masked_array(ROWS, mask=False)
    np.testing.assert_array_equal(model.predict(unmasked), model.predict(ROWS))
