"""Random settings of the estimators on random tables: invariants of every fit.

A setting or table may raise an ``InputError`` of one line. Any other exception is a finding, and so is
a fit that lasts longer than ``SECONDS``. After a fit:

- predictions are finite;
- the loss on the training rows is at most that of the constant prediction, or a warning was given;
- ``stop_reason`` is "tol" only if further rounds do not lower the objective to half of it;
- predictions are the same after pickling, after saving and loading, and after fitting a clone;
- a loaded model has the parameters and attributes of the fitted one, and can be saved and trained further.
"""

import pickle
import signal
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

import fireset
from fireset import InputError, ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.training.losses import get_loss

SECONDS = 240  # compiling kernels included
REGRESSION_LOSSES = ("squared_error", "absolute_error", "huber", "quantile", "poisson")
SLACK = 1e-3  # of a loss: how much worse than a constant counts as worse
MORE_ROUNDS = 40
CLASSIFICATION_SHARE = 0.35
HARD_SHARE = 0.4  # of the cases: kinds with earlier findings
EXCUSES = (
    "constant prediction",
    "neurons are active",
    "stopped at max_iter",
    "training stalled",
)  # warnings of a bad fit


def run_case(seed: int, counts: Counter) -> None:
    rng = np.random.default_rng(seed)
    classes = rng.random() < CLASSIFICATION_SHARE
    X, y, weight = draw_table(rng, classes)
    settings = draw_settings(rng, classes, X.shape)
    if rng.random() < HARD_SHARE:
        X, y, weight, settings = draw_hard(rng, classes)
    estimator: Any = (ShiftedReLUClassifier if classes else ShiftedReLURegressor)(**settings)
    case = (
        f"{type(estimator).__name__}({settings}) on X {X.shape}, |y| up to {_size(y):.3g}, weights {weight is not None}"
    )
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            with limited(SECONDS, case), np.errstate(all="ignore"):
                estimator.fit(X, y, sample_weight=weight)
                predictions = estimator.predict(X)
        except InputError as error:
            if "\n" in str(error):
                raise AssertionError(f"refused in several lines: {error!r}; {case}") from error
            counts["refused"] += 1
            return
        except MemoryError:
            counts["out of memory"] += 1
            return
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}; {case}") from error
        warned = [text for text in map(str, (one.message for one in given)) if any(words in text for words in EXCUSES)]
        check_predictions(estimator, X, predictions, case)
        if not warned:
            check_not_worse_than_constant(estimator, y, weight, predictions, case)
        check_stop_reason(estimator, X, y, weight, case, counts)
        check_copies(estimator, X, y, weight, predictions, case)
    counts["fits with a warning" if warned else "fits"] += 1


def draw_table(rng: np.random.Generator, classes: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Draw rows with duplicated, constant, tiny and huge columns; targets and weights of any size."""
    n = int(
        rng.choice((2, 3, 10, 60, 300, 300, 1000, 2600, 4000), p=(0.03, 0.04, 0.1, 0.3, 0.2, 0.15, 0.06, 0.09, 0.03))
    )
    p = int(rng.choice((1, 1, 2, 3, 8, 30))) if n < 2000 else int(rng.choice((1, 1, 2, 5)))
    X = rng.standard_normal((n, p))
    for _ in range(int(rng.integers(0, 3))):
        column = int(rng.integers(p))
        kind = rng.integers(6)
        if kind == 0:
            X[:, column] = float(rng.choice((0.0, 7.0, 1e30)))
        elif kind == 1:
            X[:, column] = X[:, int(rng.integers(p))]
        elif kind == 2:
            X[:, column] *= 10.0 ** rng.integers(-300, 300)
        elif kind == 3:
            X[:, column] = rng.integers(0, 3, n)
        elif kind == 4:
            X[:, column] = np.exp(np.clip(3 * X[:, column], -600, 600))
        else:
            X[rng.random(n) < 0.1, column] = np.nan
    X = np.clip(X, -1e300, 1e300)
    if rng.random() < 0.15:
        X = X[rng.integers(0, n, n)]  # duplicated rows, with different targets
    signal_ = np.sin(2 * np.nan_to_num(np.clip(X[:, 0], -9, 9))) + 0.3 * rng.standard_normal(n)
    if classes:
        k = int(rng.choice((2, 2, 3, 6)))
        y = np.clip(np.digitize(signal_, np.linspace(-1, 1, k - 1)) if k > 2 else signal_ > 0, 0, k - 1).astype(int)
        y[: min(k, n)] = np.arange(min(k, n))
        y = np.array(["a", "b", "c", "d", "e", "f"])[y] if rng.random() < 0.3 else y
    else:
        outputs = int(rng.choice((1, 1, 1, 3)))
        y = signal_ if outputs == 1 else np.stack([signal_ * (c + 1) for c in range(outputs)], axis=1)
        kind = rng.integers(8)
        if kind == 0:
            y = y * 10.0 ** rng.integers(-200, 250)
        elif kind == 1:
            y = y + 10.0 ** rng.integers(0, 20)
        elif kind == 2:
            y = np.abs(np.rint(5 * y))
        elif kind == 3:
            y = np.full_like(y, 3.0)
    weight = None
    if rng.random() < 0.35:
        weight = rng.uniform(0.1, 2, n) * 10.0 ** float(rng.choice((0, 0, -5, -50, -100, -300, 30, 150)))
        if rng.random() < 0.3:
            weight[rng.random(n) < 0.5] = 0.0
            weight[0] = max(weight.max(), 1e-300)
    return X, y, weight


def draw_settings(rng: np.random.Generator, classes: bool, shape: tuple[int, int]) -> dict[str, Any]:
    small = 500 if shape[0] > 2000 else 3000
    width = int(rng.choice((2, 3, 17, 101, 500, 1001, small)))
    settings: dict[str, Any] = {"width": width, "random_state": int(rng.integers(1000))}

    def sometimes(name: str, *values: Any, share: float = 0.25) -> None:
        if rng.random() < share:
            settings[name] = values[int(rng.integers(len(values)))]

    sometimes("loss", *(("squared_error", "log_loss") if classes else REGRESSION_LOSSES), share=0.6)
    sometimes("threshold", "paper", 0.0, 0.5, 1.5, 3.0, 4.0, 6.0, 40.0, -1.0)
    sometimes("start", "paper", "antisymmetric", "orthogonal")
    sometimes("output_scale", 1.0, 10.0, 1000.0, 1e5, 1e-3, 1e200)
    sometimes("solver", "gradient", "gauss-newton", "nystrom", share=0.4)
    sometimes("ridge", 1e-50, 1e-12, 1e-3, 1.0, 1e6)
    sometimes("dtype", "float64", share=0.4)
    sometimes("tol", 0.0, 1e-6, 0.5)
    sometimes("learning_rate", 0.1, 1e-9, 1e9, "theory", share=0.1)
    sometimes("momentum", 0.0, share=0.3)
    sometimes("bias", 1e-6, 0.3, 3.0, 1e6)
    sometimes("column_scales", None)
    sometimes("early_stopping", True, share=0.15)
    sometimes("engine", "dense", "data", "weights", "sums", "rows", "correlation")
    sometimes("batch_size", 1, 7, 1000, share=0.08)
    if classes:
        sometimes("class_weight", "balanced")
    settings["max_iter"] = int(rng.choice((1, 5, 30, 30, 60)))
    if settings.get("momentum") == 0.0:
        settings["nesterov"] = False
    return settings


def draw_hard(
    rng: np.random.Generator, classes: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, dict[str, Any]]:
    """Draw singular kernels of many rows, losses with kinks and several outputs, extreme scales, weights and ridges."""
    settings: dict[str, Any] = {"random_state": int(rng.integers(1000)), "max_iter": int(rng.choice((10, 30, 60)))}
    kind = int(rng.integers(5))
    n = int(rng.choice((2600, 5000, 10000), p=(0.7, 0.2, 0.1))) if kind == 0 else int(rng.choice((40, 60, 150, 300)))
    X = draw_singular(rng, n) if kind == 0 or rng.random() < 0.3 else rng.standard_normal((n, 3))
    noisy = np.sin(3 * np.clip(X[:, 0], -9, 9)) + 0.3 * rng.standard_normal(n)
    weight = None
    settings["width"] = int(rng.choice((60, 400, 2000))) if kind == 0 else int(rng.choice((101, 400, 1001)))
    if kind == 1:
        settings["loss"] = str(rng.choice(("absolute_error", "quantile", "huber")))
    elif kind == 2:
        settings |= {"output_scale": float(rng.choice((1e4, 1e5, 1e6))), "dtype": "float32"}
    elif kind == 3:
        settings |= {"loss": "poisson", "output_scale": float(rng.choice((30.0, 1000.0)))}
        settings["start"] = str(rng.choice(("paper", "antisymmetric")))
        settings["solver"] = str(rng.choice(("gauss-newton", "gauss-newton", "gradient")))
    elif kind == 4:
        weight = rng.uniform(0.5, 1, n) * 10.0 ** float(rng.choice((-100, -50, -20, 100)))
        settings["ridge"] = (1e-50, 1e-12, "auto")[int(rng.integers(3))]
    if classes:
        settings["loss"] = str(rng.choice(("squared_error", "log_loss")))
        return X, np.digitize(noisy, np.quantile(noisy, (0.3, 0.6))[: int(rng.integers(1, 3))]), weight, settings
    if kind == 1 and (settings["loss"] != "quantile" or rng.random() < 0.5):
        return X, np.stack([noisy, 0.1 * rng.standard_normal(n) - noisy, X[:, -1] ** 2], axis=1), weight, settings
    return X, rng.poisson(np.exp(noisy)).astype(float) if kind == 3 else noisy, weight, settings


def draw_singular(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw rows whose kernel is singular, or nearly so."""
    kind = int(rng.integers(5))
    if kind == 0:
        return rng.uniform(0, 1, (n, 1))
    if kind == 1:
        return rng.standard_normal((5, 2))[rng.integers(0, 5, n)] + 1e-4 * rng.standard_normal((n, 2))
    if kind == 2:
        return rng.standard_normal((40, 3))[rng.integers(0, 40, n)]
    if kind == 3:
        return rng.lognormal(0, 2, (n, 2))
    return np.column_stack([rng.standard_normal(n), np.full(n, 3.0)])


@contextmanager
def limited(seconds: int, case: str) -> Iterator[None]:
    """Raise ``AssertionError`` in the block if it takes longer."""

    def too_long(*_: Any) -> None:
        raise AssertionError(f"not finished after {seconds} s: {case}")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check_predictions(estimator: Any, X: np.ndarray, predictions: np.ndarray, case: str) -> None:
    if isinstance(estimator, ShiftedReLUClassifier):
        assert np.isin(predictions, estimator.classes_).all(), f"labels that are no class; {case}"
        if hasattr(estimator, "predict_proba"):
            shares = estimator.predict_proba(X)
            assert np.isfinite(shares).all(), f"probabilities that are not finite; {case}"
            assert np.allclose(shares.sum(axis=1), 1), f"probabilities that do not add up to 1; {case}"
        return
    assert np.isfinite(predictions).all(), f"predictions that are not finite; {case}"


def check_not_worse_than_constant(
    estimator: Any, y: np.ndarray, weight: np.ndarray | None, predictions: np.ndarray, case: str
) -> None:
    """Compare the loss of the network's outputs with that of outputs of 0, in the units of the estimator."""
    rows = estimator.training_rows_
    shares: Any = np.ones(len(rows)) if weight is None else np.asarray(weight)[rows]
    shares = shares / (shares.max() or 1.0)
    if isinstance(estimator, ShiftedReLUClassifier):
        if estimator.class_weight is not None or shares.sum() == 0 or len(rows) < 20:
            return
        if estimator.loss == "log_loss":  # outputs of 0 are the constant; a smaller log loss may have a lower accuracy
            first, last = estimator.result_.history[0].loss, estimator.result_.loss
            assert last <= first * (1 + SLACK), f"log loss {last:.6g}, of a constant {first:.6g}; {case}"
            return
        right = np.average(predictions[rows] == y[rows], weights=shares)
        most = max(np.average(y[rows] == label, weights=shares) for label in estimator.classes_)
        assert right >= most - 0.05, f"accuracy {right:.3f} on the training rows, of a constant {most:.3f}; {case}"
        return
    loss = get_loss(estimator.loss)
    scale = np.where(estimator.target_scale_ > 0, estimator.target_scale_, 1.0)
    if (1e-6 * scale < np.finfo(np.float64).eps * np.abs(estimator.target_mean_)).any():
        return  # predictions are rounded to multiples that are not small beside the spread of the targets
    targets = (y.reshape(len(y), -1)[rows] - estimator.target_mean_) / scale
    outputs = (predictions.reshape(len(y), -1)[rows] - estimator.target_mean_) / scale
    if loss.name == "poisson":  # predictions are exp of the outputs
        outputs, targets = np.log(np.maximum(predictions.reshape(len(y), -1)[rows], 1e-300) / scale), targets
        # The start of the network: the mean of all rows, also of those that early stopping holds out.
        all_shares = np.ones(len(y)) if weight is None else np.asarray(weight) / np.max(weight)
        mean = np.average(y.reshape(len(y), -1) / scale, axis=0, weights=all_shares)
        constant = np.log(np.maximum(mean, 1e-300)) + 0 * outputs
    else:
        constant = np.zeros_like(outputs)
    if targets.shape != outputs.shape:  # levels of quantiles share one target
        targets = np.repeat(targets, outputs.shape[1], axis=1)
    loss = loss.for_targets(targets, shares)
    found, baseline = (loss.value(u, targets, shares) for u in (outputs, constant))
    limit = baseline * (1 + SLACK) + 1e-6 * max(float(shares.sum()), 1e-300)
    assert found <= limit, f"training loss {found:.6g}, of a constant {baseline:.6g}; {case}"


def check_stop_reason(estimator: Any, X: Any, y: Any, weight: Any, case: str, counts: Counter) -> None:
    """Compare a run that stopped as converged with one that continues."""
    result = estimator.result_
    if result.stop_reason.value != "tol" or result.solver != "gauss-newton" or X.shape[0] > 400:
        return
    further = clone(estimator).set_params(tol=0.0, max_iter=MORE_ROUNDS)
    with limited(SECONDS, case), np.errstate(all="ignore"):
        further.fit(X, y, sample_weight=weight)
    reached, first = further.result_.loss, result.history[0].loss
    counts["stop reasons compared"] += 1
    tolerance = estimator._tolerance() if hasattr(estimator, "_tolerance") else 0.03
    rounding = 1e-7 if estimator.dtype == "float32" else 1e-9  # of the squares of outputs that are rounded
    allowed = max(2.0 * reached, reached + 10 * tolerance * abs(result.loss)) + rounding * abs(first)
    assert not result.loss > allowed, f"stopped as converged at {result.loss:.6g}, {reached:.6g} is reached; {case}"
    ended, began = result.loss, first
    if result.history[0].validation_loss is not None:  # decides which iteration is kept
        ended, began = (result.history[k].validation_loss for k in (result.best_iteration, 0))
    assert not ended > began * (1 + 1e-6) + 1e-12, f"ended at {ended:.6g}, began at {began:.6g}; {case}"


def check_copies(estimator: Any, X: Any, y: Any, weight: Any, predictions: np.ndarray, case: str) -> None:
    def same(found: np.ndarray, how: str) -> None:
        assert np.array_equal(found, predictions, equal_nan=False), f"other predictions after {how}; {case}"

    same(pickle.loads(pickle.dumps(estimator)).predict(X), "pickling")
    with limited(SECONDS, case), np.errstate(all="ignore"):
        same(clone(estimator).fit(X, y, sample_weight=weight).predict(X), "fitting a clone")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        fireset.save(estimator, path)
        loaded: Any = fireset.load(path)
        same(loaded.predict(X), "saving and loading")
        _check_loaded(estimator, loaded, X, y, Path(folder, "again.safetensors"), case)


def _check_loaded(estimator: Any, loaded: Any, X: Any, y: Any, path: Path, case: str) -> None:
    """Check attributes and methods of a fitted estimator."""
    given, found = estimator.get_params(), loaded.get_params()
    other = [name for name in given if repr(given[name]) != repr(found[name]) and name not in ("verbose", "loss")]
    assert not other, f"parameters {other} are others after loading; {case}"
    attempts = {
        "feature_importances_": lambda: loaded.feature_importances_,
        "fireset.save": lambda: fireset.save(loaded, path),
        "partial_fit": lambda: loaded.partial_fit(X, y),
        "clone and fit": lambda: clone(loaded),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except InputError:
            continue
        except Exception as error:
            raise AssertionError(f"{name} after loading: {type(error).__name__}: {error}; {case}") from error


def _size(y: np.ndarray) -> float:
    return float(np.abs(y).max()) if y.dtype.kind in "fiu" else 0.0
