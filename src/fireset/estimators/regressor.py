"""Regression."""

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from fireset._util.errors import InputError
from fireset.estimators.base import PreparedRows, ShiftedReLUEstimator


class ShiftedReLURegressor(RegressorMixin, ShiftedReLUEstimator):
    """Regression by a very wide shifted-ReLU network, trained exactly on the neurons that fire.

    Columns are standardized and rows mapped to the unit sphere (``SphereMap``); targets are standardized too. Columns
    of a sparse table are scaled and not centred, and its rows stay sparse.

    Parameters
    ----------
    width : "auto" or int
        Number of neurons m. "auto" is 20,000, more for many targets, fewer for very many rows (``choose_width``).
    threshold : "auto", "paper" or float
        b of σ_b(z) = max(z − b, 0); "auto" is 1.5, "paper" √(0.4 ln m).
    engine : str
        How the fire sets are found: "auto", or a name that ``fireset engines`` lists. Changes the time, not the result.
    solver : "auto", "gauss-newton" or "gradient"
        Rounds of regularized least squares, which converge in a handful, or gradient descent, the paper's. "auto" is
        the first, unless a learning rate or an approximate engine asks for the second; ``solver_`` says which.
    ridge : "auto" or float
        λ of "gauss-newton": the objective has (λ/2) ‖W − W₀‖² besides the loss. "auto" chooses it by leave-one-out.
    start : "auto", "antisymmetric" or "paper"
        Whether neurons come in pairs of opposite signs, so that the network is 0 before training ("auto": yes).
    output_scale : "auto" or float
        κ; predictions are multiplied by it, and weights move 1/κ as far. "auto" is 1000 for "gauss-newton" and 10 for
        "gradient", but 1, the paper's, where a learning rate is given.
    learning_rate : "auto", "theory" or float
    momentum, nesterov
        Of "gradient"; 0 and False are the paper's plain gradient descent.
    batch_size : int, optional
        Steps of "gradient" on batches of so many rows, drawn by ``random_state``; an iteration is then an epoch.
    max_iter, tol
        Iterations, each over all rows. "gradient" stops when the loss gains less than tol of itself in 10 iterations,
        "gauss-newton" when a round promises less than tol of it; "auto" is 1e-4 for the first and 0.03 for the second.
    early_stopping, validation_fraction, patience
        Hold out a share of the rows and stop when the loss there has not improved for ``patience`` iterations.
    bias : "auto" or float
        Size of the constant coordinate beside a typical row of size 1. Larger is smoother. "auto" chooses it by
        leave-one-out with the kernel of infinite width (``fireset.tables.settings``).
    column_scales : "auto", None or (p,) array
        How much each column counts beside the others. "auto" learns it from the gradients of the fit, where that helps
        on rows that had no part in it; None leaves all at 1.
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
    settings_ : TableSettings
        Bias, column scales and ridge as they were chosen, by how many rows, and with what leave-one-out error.
    sphere_ : SphereMap
    """

    def __init__(
        self,
        width: int | str = "auto",
        *,
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
        dtype="float32",
        warm_start=False,
        random_state=None,
        verbose=False,
    ):
        self.width = width
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
        """Train on rows X (n, p), dense or sparse, and targets y (n,) or (n, c), with keywords of ``fireset.train``."""
        self._train(self.prepare(X, y, sample_weight), callbacks, checkpoint=checkpoint, memory=memory)
        return self

    def prepare(self, X, y, sample_weight=None) -> PreparedRows:
        """What ``fit`` does before it trains ``network_``, for whoever wants to train, time or explain it otherwise."""
        self._check_settings()
        again = self.warm_start and hasattr(self, "network_")
        X, y, weight = self._checked(X, y, sample_weight, reset=not again)
        if not again:
            self._begin_regression(X, y, weight)
        return PreparedRows(self.sphere_(X), self._to_targets(y), weight, None)

    def partial_fit(self, X, y, sample_weight=None):
        """One plain gradient step on one batch, if it makes the batch's loss fall. The first batch sets the scales."""
        self._check_settings()
        first = not hasattr(self, "network_")
        X, y, weight = self._checked(X, y, sample_weight, reset=first)
        if first:
            self._begin_regression(X, y, weight, whole=False)
        self._step(X, self._to_targets(y), weight)
        return self

    def predict(self, X) -> np.ndarray:
        """Predicted targets, (n,) or (n, c)."""
        predictions = self._outputs(X) * self.target_scale_ + self.target_mean_
        return predictions if self._many_targets else predictions[:, 0]

    def _checked(self, X, y, sample_weight, *, reset: bool):
        options = {"dtype": np.float64, "multi_output": True, "y_numeric": True, "accept_sparse": "csr"}
        X, y = validate_data(self, X, y, reset=reset, **options)
        return X, np.asarray(y, np.float64), self._check_weight(sample_weight, X)

    def _begin_regression(self, X, y, weight, *, whole: bool = True) -> None:
        self._many_targets = y.ndim == 2
        columns = y.reshape(len(y), -1)
        self.target_mean_ = np.average(columns, axis=0, weights=weight)
        scale = np.sqrt(np.average((columns - self.target_mean_) ** 2, axis=0, weights=weight))
        self.target_scale_ = np.where(scale > 1e-12 * np.abs(self.target_mean_), scale, 1.0)
        self._begin(X, self._to_targets(y), weight, choose=whole)

    def _to_targets(self, y) -> np.ndarray:
        columns = y.reshape(len(y), -1)
        if columns.shape[1] != len(self.target_mean_):
            raise InputError(f"y must have {len(self.target_mean_)} columns as before, got {columns.shape[1]}")
        return (columns - self.target_mean_) / self.target_scale_
