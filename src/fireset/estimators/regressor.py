"""Regression."""

from dataclasses import replace

import numpy as np
from sklearn.base import RegressorMixin

from fireset._util.errors import InputError
from fireset.estimators.base import PreparedRows, ShiftedReLUEstimator
from fireset.tables.settings import TableSettings
from fireset.training.losses import Loss, Quantile, check_task, get_loss


class ShiftedReLURegressor(RegressorMixin, ShiftedReLUEstimator):
    """Regression by a very wide shifted-ReLU network, trained exactly on the neurons that fire.

    Columns are standardized and rows mapped to the unit sphere (``SphereMap``); targets are standardized too, as suits
    the loss (``Loss.standardization``). Columns of a sparse table are scaled and not centred, and its rows stay sparse.

    Parameters
    ----------
    width : "auto" or int
        Number of neurons m. "auto" is 20,000, more for many targets, fewer for very many rows (``choose_width``).
    loss : str or Loss
        "squared_error", "absolute_error", "huber", "quantile" or "poisson"; or an object, ``Huber(delta=0.5)`` or
        ``Quantile((0.05, 0.95))`` of ``fireset.training.losses``, say, or one of your own (docs/losses.md).
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
    missing : "impute" or "error"
        Missing cells, NaN or null: numbers become the median of the column, and one more column says where; texts are a
        category of their own. "error" refuses them.
    categorical : list of str, optional
        Columns of a DataFrame whose numbers name categories, or whose texts shall all have a column of their own.
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
        loss: str | Loss = "squared_error",
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
        """Predicted targets, (n,) or (n, c). Several quantiles are (n, levels), sorted in each row.

        Sorting keeps them from crossing, and never makes the pinball loss larger (Chernozhukov, Fernández-Val and
        Galichon, "Quantile and Probability Curves Without Crossing", 2010).
        """
        loss = get_loss(self.loss)
        predictions = loss.predictions(self._outputs(X)) * self.target_scale_ + self.target_mean_
        if loss.shares_target:
            return np.sort(predictions, axis=1)
        return predictions if self._many_targets else predictions[:, 0]

    def score(self, X, y, sample_weight=None) -> float:
        """R²; for quantiles D², 1 less the pinball loss beside that of the quantiles of y, the mean of all levels."""
        loss = get_loss(self.loss)
        if not isinstance(loss, Quantile):
            return super().score(X, y, sample_weight)
        from sklearn.metrics import d2_pinball_score

        predictions = self.predict(X)
        columns = predictions.T if loss.shares_target else [predictions]
        scores = [
            d2_pinball_score(y, column, sample_weight=sample_weight, alpha=level)
            for level, column in zip(loss.levels, columns, strict=True)
        ]
        return float(np.mean(scores))

    def _checked(self, X, y, sample_weight, *, reset: bool):
        check_task(self.loss, "regression")
        X, y = self._encoded(X, y, reset=reset, multi_output=True, y_numeric=True)
        return X, np.asarray(y, np.float64), self._check_weight(sample_weight, X)

    def _begin_regression(self, X, y, weight, *, whole: bool = True) -> None:
        self._many_targets = y.ndim == 2
        loss, columns = get_loss(self.loss), y.reshape(len(y), -1)
        self.target_mean_, self.target_scale_ = loss.standardization(columns, weight)
        targets = self._to_targets(y)
        loss.check_targets(targets)  # before settings are chosen by them
        self._begin(X, loss.screening(columns, weight), weight, choose=whole, outputs=targets.shape[1])

    def _choose_settings(self, Z, targets, weight, **given) -> TableSettings:
        """For quantiles once more, with the sizes of the errors beside the targets: a column may matter for the spread
        of y alone, and least squares on y would leave it out.
        """
        found = super()._choose_settings(Z, targets, weight, **given)
        if not isinstance(get_loss(self.loss), Quantile) or found.left_out is None:
            return found
        rows = found.chosen_rows
        sizes = np.abs(targets[rows] - found.left_out)
        sizes -= np.average(sizes, axis=0, weights=weight[rows])
        both = np.hstack([targets[rows], sizes / max(float(sizes.std()), 1e-12)])
        again = super()._choose_settings(Z[rows], both, weight[rows], **given)
        return replace(again, chosen_rows=rows)

    def _to_targets(self, y) -> np.ndarray:
        columns = y.reshape(len(y), -1)
        expected = 1 if get_loss(self.loss).shares_target else len(self.target_mean_)
        if columns.shape[1] != expected:
            raise InputError(f"y must have {expected} columns as before, got {columns.shape[1]}")
        return (columns - self.target_mean_) / self.target_scale_
