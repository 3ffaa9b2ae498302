"""Classification."""

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets

from fireset._util.errors import InputError
from fireset.estimators.base import PreparedRows, ShiftedReLUEstimator
from fireset.estimators.calibration import Calibration
from fireset.training.losses import Loss, check_task, get_loss, probabilities


class ShiftedReLUClassifier(ClassifierMixin, ShiftedReLUEstimator):
    """Classification by a very wide shifted-ReLU network, trained exactly on the neurons that fire.

    Parameters and attributes that are not listed here are those of ``ShiftedReLURegressor``.

    Parameters
    ----------
    loss : "squared_error", "log_loss" or Loss
        Squared error on codes ±1 (one output for two classes, else one for each class), as in the paper; or log loss.
        Both give probabilities; those of squared error are calibrated on leave-one-out scores (``calibration_``).
    class_weight : None, "balanced" or dict
        Weights of the classes, times those of the rows; "balanced" gives every class the same weight in all.

    Attributes
    ----------
    classes_ : array
        The labels.
    offset_ : array
        Mean of the codes, which is added to the outputs.
    calibration_ : Calibration
        How outputs become probabilities.
    """

    def __init__(
        self,
        width: int | str = "auto",
        *,
        loss: str | Loss = "squared_error",
        class_weight=None,
        threshold="auto",
        engine="auto",
        solver="auto",
        ridge="auto",
        start="auto",
        output_scale="auto",
        learning_rate="auto",
        momentum=0.9,
        nesterov=True,
        batch_size=None,
        max_iter=300,
        tol="auto",
        early_stopping=False,
        validation_fraction=0.1,
        patience=20,
        bias="auto",
        column_scales="auto",
        missing="impute",
        categorical=None,
        dtype="float32",
        warm_start=False,
        random_state=None,
        verbose=False,
    ):
        self.width = width
        self.loss = loss
        self.class_weight = class_weight
        self.threshold = threshold
        self.engine = engine
        self.solver = solver
        self.ridge = ridge
        self.start = start
        self.output_scale = output_scale
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.nesterov = nesterov
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.bias = bias
        self.column_scales = column_scales
        self.missing = missing
        self.categorical = categorical
        self.dtype = dtype
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X, y, sample_weight=None, *, callbacks=(), checkpoint=None, memory=None):
        """Train on rows X (n, p), dense or sparse, and labels y (n,); the keywords are those of ``fireset.train``."""
        self._train(self.prepare(X, y, sample_weight), callbacks, checkpoint=checkpoint, memory=memory)
        return self

    def prepare(self, X, y, sample_weight=None) -> PreparedRows:
        """What ``fit`` does before it trains ``network_``, as the regressor's."""
        self._check_settings()
        again = self.warm_start and hasattr(self, "network_")
        X, y, weight = self._checked(X, y, sample_weight, reset=not again)
        if not again:
            self._begin_classification(X, y, np.unique(y), weight)
        codes = self._codes(y)
        return PreparedRows(self.sphere_(X), self._to_targets(codes), weight, codes)

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        """One plain gradient step on one batch, as the regressor's. The first call needs all ``classes``."""
        self._check_settings()
        first = not hasattr(self, "network_")
        X, y, weight = self._checked(X, y, sample_weight, reset=first)
        if first:
            if classes is None:
                raise InputError("classes must be given in the first call of partial_fit")
            self._begin_classification(X, y, np.unique(classes), weight, whole=False)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise InputError(f"classes must be those of the first call, {self.classes_}; got {np.unique(classes)}")
        self._step(X, self._to_targets(self._codes(y)), weight)
        return self

    def decision_function(self, X) -> np.ndarray:
        """The network's outputs, with what they were centred by: (n,) for two classes, else (n, classes)."""
        outputs = self._outputs(X) + self.offset_
        return outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self, X) -> np.ndarray:
        """The label with the largest output."""
        scores = self.decision_function(X)
        codes = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[codes]

    def predict_proba(self, X) -> np.ndarray:
        """Probability of each class, (n, classes); the largest is that of the label that ``predict`` gives."""
        outputs = self._outputs(X)
        if self._loss_name == "squared_error":
            return self.calibration_(outputs + self.offset_)
        p = probabilities(outputs)
        return np.hstack([1 - p, p]) if p.shape[1] == 1 else p

    @property
    def _loss_name(self) -> str:
        return get_loss(self.loss).name

    def _checked(self, X, y, sample_weight, *, reset: bool):
        check_task(self.loss, "classification")
        X, y = self._encoded(X, y, reset=reset)
        if reset:  # later labels must be among the classes of the first ones, which ``_codes`` sees to
            check_classification_targets(y)
        weight = self._check_weight(sample_weight, X)
        if self.class_weight is not None:
            weight = weight * compute_sample_weight(self.class_weight, y)
        return X, np.asarray(y), weight

    def _begin_classification(self, X, y, classes, weight, *, whole: bool = True) -> None:
        """``whole`` says that these are all rows, by which to centre and to choose, and not the first batch."""
        if len(classes) < 2:
            raise InputError(f"y must hold at least 2 classes, got 1 class: {classes.tolist()[0]!r}")
        self.classes_ = classes
        self.offset_ = np.zeros(1 if len(classes) == 2 else len(classes))
        targets = self._to_targets(self._codes(y))
        centre = np.average(targets, axis=0, weights=weight)
        if whole and self._loss_name == "squared_error":
            self.offset_ = centre
        self._begin(X, targets - centre, weight, choose=whole)
        self.calibration_ = self._calibrate(self._codes(y), weight)

    def _calibrate(self, codes: np.ndarray, weight: np.ndarray) -> Calibration:
        settings = self.settings_
        if self._loss_name != "squared_error" or settings.left_out is None or settings.chosen_rows is None:
            return Calibration()
        rows = settings.chosen_rows
        return Calibration.learn(settings.left_out + self.offset_, codes[rows], weight[rows])

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
        return one_hot.astype(np.float64) if self._loss_name == "log_loss" else 2.0 * one_hot - 1.0 - self.offset_
