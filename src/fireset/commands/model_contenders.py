"""Models that a table may be given to: scikit-learn's at sensible defaults, and fireset's at its own.

``fit_and_score`` runs in a process of its own (``model_worker``), where it can be stopped.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fireset._util.parallel import thread_count
from fireset.commands.scores import scores
from fireset.estimators import estimator_for

_WARM_ROWS = 60


@dataclass(frozen=True)
class Fit:
    """What one fit gave. ``row_errors`` (test rows,): 1 for a wrong class; squared error over the target's variance."""

    rows: int
    fit_seconds: float
    predict_seconds: float
    scores: dict[str, float]
    row_errors: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class ModelKind:
    """A model by its name on the command line; ``growth`` p: n times the rows take about n^p times as long."""

    label: str
    growth: float
    make: Callable[[str, int], Any]


def _linear(task: str, seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge

    return _standardized(LogisticRegression(max_iter=1000, random_state=seed) if task == "classification" else Ridge())


def _svm(task: str, seed: int) -> Any:
    from sklearn.svm import SVC, SVR

    return _standardized(SVC(random_state=seed)) if task == "classification" else _scaled_target(SVR())


def _mlp(task: str, seed: int) -> Any:
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    if task == "classification":
        return _standardized(MLPClassifier(max_iter=300, random_state=seed))
    return _scaled_target(MLPRegressor(max_iter=300, random_state=seed))


def _boosting(task: str, seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    cls = HistGradientBoostingClassifier if task == "classification" else HistGradientBoostingRegressor
    return cls(random_state=seed)


def _forest(task: str, seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    cls = RandomForestClassifier if task == "classification" else RandomForestRegressor
    return cls(random_state=seed, n_jobs=thread_count())


def _standardized(model: Any) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), model)


def _scaled_target(model: Any) -> Any:
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import StandardScaler

    return TransformedTargetRegressor(_standardized(model), transformer=StandardScaler())


# What the first ones leave of their share of the time, the others have: most of all fireset, which is the question.
MODELS = {
    "linear": ModelKind("linear model", 1.0, _linear),
    "svm": ModelKind("support vector machine", 2.0, _svm),
    "boosting": ModelKind("gradient boosting", 1.0, _boosting),
    "forest": ModelKind("random forest", 1.1, _forest),
    "mlp": ModelKind("MLP", 1.0, _mlp),
    "fireset": ModelKind("fireset", 1.5, lambda task, seed: estimator_for(task, random_state=seed)),
}


def warm_up(task: str, X: np.ndarray, y: np.ndarray) -> None:
    """Have fireset's kernels compiled, which belongs to no fit: a fit on a few rows, all classes among them."""
    first = np.unique(y, return_index=True)[1] if task == "classification" else np.empty(0, np.int64)
    rows = np.union1d(first, np.arange(min(_WARM_ROWS, len(y))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator_for(task, random_state=0).fit(X[rows], y[rows]).predict(X[:2])


def fit_and_score(
    name: str, task: str, X: np.ndarray, y: np.ndarray, train_rows: np.ndarray, test_rows: np.ndarray, seed: int
) -> Fit:
    """Fit a model on some rows and score it on others."""
    model = MODELS[name].make(task, seed)
    with warnings.catch_warnings():  # that a model has not converged shows in its score
        warnings.simplefilter("ignore")
        started = time.perf_counter()
        model.fit(X[train_rows], y[train_rows])
        fitted = time.perf_counter()
        predictions = model.predict(X[test_rows])
        predicted = time.perf_counter()
        answers = y[test_rows]
        found = {k: v for k, v in scores(task, answers, predictions).items() if isinstance(v, float)}
        if task == "classification":
            errors = (answers != predictions).astype(float)
            if hasattr(model, "predict_proba"):
                found["log_loss"] = _log_loss(model, X[test_rows], answers)
        else:
            spread = float(np.mean((answers - answers.mean()) ** 2))
            errors = (answers - predictions) ** 2 / (spread if spread > 0 else 1.0)
    return Fit(len(train_rows), fitted - started, predicted - fitted, found, errors)


def _log_loss(model: Any, X: np.ndarray, answers: np.ndarray) -> float:
    """−mean ln p(answer); a class that the rows trained on did not have is given the smallest probability there is."""
    probabilities = np.asarray(model.predict_proba(X), np.float64)
    columns = np.searchsorted(model.classes_, answers)
    known = columns < len(model.classes_)
    known[known] = model.classes_[columns[known]] == answers[known]
    given = np.zeros(len(answers))
    given[known] = probabilities[known, columns[known]]
    return float(-np.mean(np.log(np.maximum(given, np.finfo(np.float64).eps))))
