"""scikit-learn estimators: any table of numbers in, rows mapped to the unit sphere inside."""

import warnings
from contextlib import ExitStack
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from fireset.distributed import find_team, initialize
from fireset.errors import InputError
from fireset.losses import probabilities
from fireset.progress import ProgressBar
from fireset.sphere import SphereMap
from fireset.training import Prepared, train


class _ShiftedReLUEstimator(BaseEstimator):
    """What both estimators share: the map to the sphere, the network and its training."""

    # Set by the subclasses' __init__, which scikit-learn wants spelled out.
    width: int
    threshold: float | str
    loss: str
    engine: str
    learning_rate: float | str
    momentum: float
    nesterov: bool
    max_iter: int
    tol: float
    early_stopping: bool
    validation_fraction: float
    patience: int
    bias: float
    dtype: str
    warm_start: bool
    random_state: Any
    verbose: bool
    n_features_in_: int

    def _more_checks(self) -> None:
        if isinstance(self.bias, bool) or not isinstance(self.bias, Real) or not 0 < self.bias < np.inf:
            raise InputError(f"bias must be a positive number, got {self.bias!r}")
        if not isinstance(self.max_iter, Integral) or self.max_iter < 1:
            raise InputError(f"max_iter must be a whole number of at least 1, got {self.max_iter!r}")
        if not 0 < self.validation_fraction < 1:
            raise InputError(f"validation_fraction must lie between 0 and 1, got {self.validation_fraction!r}")

    def _begin(self, X: np.ndarray, weight: np.ndarray, n_outputs: int) -> None:
        """A new map and a new network."""
        self.sphere_ = SphereMap.learn(X, weight, self.bias)
        self.network_ = initialize(
            self.width,
            X.shape[1] + 1,
            n_outputs,
            threshold=self.threshold,
            seed=int(check_random_state(self.random_state).randint(2**31)),
            dtype=self.dtype,
        )
        self.n_iter_ = 0

    def _descend(self, prepared: Prepared, callbacks, **limits) -> None:
        """Train the network on mapped rows, with early stopping if asked for; ``limits`` go to ``train``."""
        rows, targets, weight, codes = prepared
        validation = None
        self.training_rows_ = np.arange(len(rows))
        if self.early_stopping:
            kept, held = self._split(len(rows), codes)
            self.training_rows_ = kept
            validation = rows[held], targets[held]
            rows, targets, weight = rows[kept], targets[kept], weight[kept]
        with ExitStack() as stack:
            shown = [stack.enter_context(ProgressBar())] if self.verbose and find_team().rank == 0 else []
            self.result_ = train(
                self.network_,
                rows,
                targets,
                engine=self.engine,
                loss=self.loss,
                learning_rate=self.learning_rate,
                momentum=self.momentum,
                nesterov=self.nesterov,
                max_iter=self.max_iter,
                tol=self.tol,
                sample_weight=weight,
                validation=validation,
                patience=self.patience,
                callbacks=[*callbacks, *shown],
                **limits,
            )
        self.n_iter_ += len(self.result_.history) - 1
        if self.result_.stop_reason == "interrupted":
            warnings.warn(f"interrupted after {self.n_iter_} iterations; the best network is kept", stacklevel=3)

    def _split(self, n: int, stratify) -> tuple[np.ndarray, np.ndarray]:
        try:
            kept, held = train_test_split(
                np.arange(n),
                test_size=self.validation_fraction,
                random_state=check_random_state(self.random_state).randint(2**31),
                stratify=stratify,
            )
        except ValueError as error:
            raise InputError(
                f"early_stopping cannot hold out {self.validation_fraction:g} of {n} rows: {error}"
            ) from None
        return np.asarray(kept), np.asarray(held)

    def _step(self, X: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> None:
        """One plain gradient step on one batch."""
        self.result_ = train(
            self.network_,
            self.sphere_(X),
            targets,
            engine=self.engine,
            loss=self.loss,
            learning_rate=self.learning_rate,
            max_iter=1,
            tol=0,
            sample_weight=weight,
        )
        self.n_iter_ += 1

    def _outputs(self, X) -> np.ndarray:
        check_is_fitted(self)
        X = np.asarray(validate_data(self, X, dtype=np.float64, reset=False))
        return self.network_.predict(self.sphere_(X))

    def _check_weight(self, sample_weight, X) -> np.ndarray:
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise InputError("sample_weight must not be 0 everywhere")
        return weight


class ShiftedReLURegressor(RegressorMixin, _ShiftedReLUEstimator):
    """Regression by a very wide shifted-ReLU network, trained exactly on the neurons that fire.

    Columns are standardized and rows mapped to the unit sphere (``SphereMap``); targets are standardized too.

    Parameters
    ----------
    width : int
        Number of neurons m.
    threshold : "paper" or float
        b of σ_b(z) = max(z − b, 0); "paper" is √(0.4 ln m).
    engine : str
        How the fire sets are found: "auto", or a name that ``fireset engines`` lists. Changes the time, not the result.
    learning_rate : "auto", "theory" or float
    momentum, nesterov
        0 and False are the paper's plain gradient descent.
    max_iter, tol
        Iterations, each over all rows; stop when the loss gains less than tol of itself in 10 iterations.
    early_stopping, validation_fraction, patience
        Hold out a share of the rows and stop when the loss there has not improved for ``patience`` iterations.
    bias : float
        Size of the constant coordinate beside a typical row of size 1. Larger is smoother.
    dtype : "float32" or "float64"
    warm_start : bool
        ``fit`` goes on from the network of the fit before.
    random_state : int, RandomState or None
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    network_ : ShiftedReLUNetwork
    result_ : TrainingResult
        History, stop reason and times of the last fit.
    n_iter_ : int
    training_rows_ : array of int
        Rows of X that the last fit trained on: all, but for those that ``early_stopping`` holds out.
    sphere_ : SphereMap
    """

    def __init__(
        self,
        width=10_000,
        *,
        threshold="paper",
        engine="auto",
        learning_rate="auto",
        momentum=0.9,
        nesterov=True,
        max_iter=300,
        tol=1e-4,
        early_stopping=False,
        validation_fraction=0.1,
        patience=20,
        bias=3.0,
        dtype="float32",
        warm_start=False,
        random_state=None,
        verbose=False,
    ):
        self.width = width
        self.threshold = threshold
        self.engine = engine
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.nesterov = nesterov
        self.max_iter = max_iter
        self.tol = tol
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.bias = bias
        self.dtype = dtype
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    loss = "squared_error"

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X, y, sample_weight=None, *, callbacks=(), checkpoint=None, memory=None):
        """Train on rows X (n, p) and targets y (n,) or (n, c); the keywords are those of ``fireset.train``."""
        self._descend(self.prepare(X, y, sample_weight), callbacks, checkpoint=checkpoint, memory=memory)
        return self

    def prepare(self, X, y, sample_weight=None) -> Prepared:
        """What ``fit`` does before it trains ``network_``, for whoever wants to train, time or explain it otherwise."""
        self._more_checks()
        again = self.warm_start and hasattr(self, "network_")
        X, y, weight = self._checked(X, y, sample_weight, reset=not again)
        if not again:
            self._begin_regression(X, y, weight)
        return Prepared(self.sphere_(X), self._to_targets(y), weight, None)

    def partial_fit(self, X, y, sample_weight=None):
        """One plain gradient step on one batch, if it makes the batch's loss fall. The first batch sets the scales."""
        self._more_checks()
        first = not hasattr(self, "network_")
        X, y, weight = self._checked(X, y, sample_weight, reset=first)
        if first:
            self._begin_regression(X, y, weight)
        self._step(X, self._to_targets(y), weight)
        return self

    def predict(self, X) -> np.ndarray:
        """Predicted targets, (n,) or (n, c)."""
        predictions = self._outputs(X) * self.target_scale_ + self.target_mean_
        return predictions if self._many_targets else predictions[:, 0]

    def _checked(self, X, y, sample_weight, *, reset: bool):
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, reset=reset)
        return np.asarray(X), np.asarray(y, np.float64), self._check_weight(sample_weight, X)

    def _begin_regression(self, X, y, weight) -> None:
        self._many_targets = y.ndim == 2
        columns = y.reshape(len(y), -1)
        self.target_mean_ = np.average(columns, axis=0, weights=weight)
        scale = np.sqrt(np.average((columns - self.target_mean_) ** 2, axis=0, weights=weight))
        self.target_scale_ = np.where(scale > 1e-12 * np.abs(self.target_mean_), scale, 1.0)
        self._begin(X, weight, columns.shape[1])

    def _to_targets(self, y) -> np.ndarray:
        columns = y.reshape(len(y), -1)
        if columns.shape[1] != len(self.target_mean_):
            raise InputError(f"y must have {len(self.target_mean_)} columns as before, got {columns.shape[1]}")
        return (columns - self.target_mean_) / self.target_scale_


def _has_probabilities(self) -> bool:
    if self.loss != "log_loss":
        raise AttributeError(f"predict_proba needs loss='log_loss', got loss={self.loss!r}")
    return True


class ShiftedReLUClassifier(ClassifierMixin, _ShiftedReLUEstimator):
    """Classification by a very wide shifted-ReLU network, trained exactly on the neurons that fire.

    Parameters
    ----------
    loss : "squared_error" or "log_loss"
        Squared error on codes ±1 (one output for two classes, else one for each class), as in the paper; or log loss,
        which gives ``predict_proba``.

    The other parameters and the attributes are those of ``ShiftedReLURegressor``; ``classes_`` holds the labels.
    """

    def __init__(
        self,
        width=10_000,
        *,
        loss="squared_error",
        threshold="paper",
        engine="auto",
        learning_rate="auto",
        momentum=0.9,
        nesterov=True,
        max_iter=300,
        tol=1e-4,
        early_stopping=False,
        validation_fraction=0.1,
        patience=20,
        bias=1.0,
        dtype="float32",
        warm_start=False,
        random_state=None,
        verbose=False,
    ):
        self.width = width
        self.loss = loss
        self.threshold = threshold
        self.engine = engine
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.nesterov = nesterov
        self.max_iter = max_iter
        self.tol = tol
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.bias = bias
        self.dtype = dtype
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X, y, sample_weight=None, *, callbacks=(), checkpoint=None, memory=None):
        """Train on rows X (n, p) and labels y (n,); the keywords are those of ``fireset.train``."""
        self._descend(self.prepare(X, y, sample_weight), callbacks, checkpoint=checkpoint, memory=memory)
        return self

    def prepare(self, X, y, sample_weight=None) -> Prepared:
        """What ``fit`` does before it trains ``network_``, as the regressor's."""
        self._more_checks()
        again = self.warm_start and hasattr(self, "network_")
        X, y, weight = self._checked(X, y, sample_weight, reset=not again)
        if not again:
            self._begin_classification(X, np.unique(y), weight)
        codes = self._codes(y)
        return Prepared(self.sphere_(X), self._to_targets(codes), weight, codes)

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        """One plain gradient step on one batch, as the regressor's. The first call needs all ``classes``."""
        self._more_checks()
        first = not hasattr(self, "network_")
        X, y, weight = self._checked(X, y, sample_weight, reset=first)
        if first:
            if classes is None:
                raise InputError("classes must be given in the first call of partial_fit")
            self._begin_classification(X, np.unique(classes), weight)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise InputError(f"classes must be those of the first call, {self.classes_}; got {np.unique(classes)}")
        self._step(X, self._to_targets(self._codes(y)), weight)
        return self

    def decision_function(self, X) -> np.ndarray:
        """The network's outputs: (n,) for two classes, else (n, classes)."""
        outputs = self._outputs(X)
        return outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self, X) -> np.ndarray:
        """The label with the largest output."""
        scores = self.decision_function(X)
        codes = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[codes]

    @available_if(_has_probabilities)
    def predict_proba(self, X) -> np.ndarray:
        """Probability of each class, (n, classes). Only with ``loss="log_loss"``."""
        p = probabilities(self._outputs(X))
        return np.hstack([1 - p, p]) if p.shape[1] == 1 else p

    def _checked(self, X, y, sample_weight, *, reset: bool):
        X, y = validate_data(self, X, y, dtype=np.float64, reset=reset)
        check_classification_targets(y)
        return np.asarray(X), np.asarray(y), self._check_weight(sample_weight, X)

    def _begin_classification(self, X, classes, weight) -> None:
        if len(classes) < 2:
            raise InputError(f"y must hold at least 2 classes, got 1 class: {classes.tolist()[0]!r}")
        self.classes_ = classes
        self._begin(X, weight, 1 if len(classes) == 2 else len(classes))

    def _codes(self, y) -> np.ndarray:
        codes = np.searchsorted(self.classes_, y)
        known = self.classes_[np.minimum(codes, len(self.classes_) - 1)] == y
        if not known.all():
            raise InputError(
                f"y holds the class {y[~known].tolist()[0]!r}, which is not among the classes of the first fit"
            )
        return codes

    def _to_targets(self, codes) -> np.ndarray:
        one_hot = codes[:, None] == (np.ones(1) if len(self.classes_) == 2 else np.arange(len(self.classes_)))
        return one_hot.astype(np.float64) if self.loss == "log_loss" else 2.0 * one_hot - 1.0
