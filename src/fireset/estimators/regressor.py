"""Regression."""

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from fireset._util.errors import InputError
from fireset.estimators.base import PreparedRows, ShiftedReLUEstimator
from fireset.estimators.fit_checks import check_target_sizes
from fireset.tables.encoded_blocks import EncodedBlocks
from fireset.tables.settings import TableSettings
from fireset.training.losses import Loss, check_task, get_loss


class ShiftedReLURegressor(RegressorMixin, ShiftedReLUEstimator):
    """Regression by a very wide shifted-ReLU network, trained exactly on the neurons that are active.

    Columns are standardized and rows mapped to the unit sphere; targets are standardized, as suits the loss. Columns of
    a sparse matrix are scaled and not centred, and its rows stay sparse.

    Parameters
    ----------
    width : "auto", "theory" or int, default="auto"
        Number of neurons m. "auto" is 40,000 for up to 2,500 rows and 20,000 from 5,000 rows on, more for many targets,
        fewer for very many rows. An odd number is rounded up unless ``start="paper"``. "theory" is the least width at
        which the paper's theorem covers the table (``fireset.theory.least_width``), with ``start="paper"``, one output
        and squared error. If it does not fit into memory, an ``InputError`` names it and what would make a smaller
        width sufficient.
    loss : str or Loss, default="squared_error"
        "squared_error", "absolute_error", "huber", "quantile" or "poisson", a name that an installed package adds, or
        an object such as ``Huber(delta=0.5)`` or ``Quantile((0.05, 0.95))`` of ``fireset.training.losses``.
    threshold : "auto", "paper" or float, default="auto"
        b of σ_b(z) = max(z − b, 0), between −10 and 10; "auto" is 1.5, "paper" √(0.4 ln m). A neuron is active for a
        row where z > b.
    engine : str or Engine, default="auto"
        How active neurons are found: "auto", a name that ``fireset engines`` lists, or an object such as
        ``create("data", radius=0)`` of ``fireset.engines``. Exact engines change the time, not the result.
    solver : "auto", "gauss-newton", "nystrom", "gradient" or Solver, default="auto"
        Rounds of regularized least squares, or the gradient descent of the paper. "auto" is the first, except with a
        learning rate, a batch size, an approximate engine or a width with fewer than two weights for a target. An
        object of ``fireset.training.solvers`` has its own learning rate, momentum and ridge.
    ridge : "auto" or float, default="auto"
        λ of "gauss-newton": the objective is the loss plus (λ/2) ‖W − W₀‖². "auto" chooses it by leave-one-out.
    start : "auto", "antisymmetric", "orthogonal" or "paper", default="auto"
        Initial weights. "antisymmetric" draws pairs of neurons with opposite signs: the network is 0 before training.
        "orthogonal" draws more copies, so that outputs do not share gradients. "paper" draws all neurons
        independently. "auto" is "orthogonal" for several outputs with "nystrom", else "antisymmetric".
    output_scale : "auto" or float, default="auto"
        κ, between 1e-6 and 1e6: outputs are multiplied by it, and weights move 1/κ as far. "auto" is 1000 for
        "gauss-newton" and 10 for "gradient", and 1 with ``start="paper"`` or a fixed learning rate.
    trained_outputs : "auto", bool or float, default="auto"
        Scale s of the training of the output weights, relative to that of the first layer; 0 or False keeps them at ±1,
        True is 1. The tangent kernel is H_W + s² H_A, and H_A is smoother. "auto" chooses by leave-one-out with the
        kernel of infinite width for squared error or log loss if 500 neurons are active for a row, and the solver is
        "nystrom" (which trains some output weights), or "gauss-newton" with two neurons for each row. Otherwise it is
        False.
    learning_rate : "auto", "theory" or float, default="auto"
        Step size of "gradient". "auto" starts from 1/λ_max of the kernel and halves it when the loss grows.
    momentum : float, default=0.9
        Momentum of "gradient", at least 0 and below 1. 0 is the plain descent of the paper.
    nesterov : bool, default=True
        Whether momentum is Nesterov's.
    batch_size : int or None, default=None
        Number of rows for one step of "gradient", drawn by ``random_state``; an iteration is then an epoch. None is all
        rows.
    max_iter : int, default=300
        Largest number of iterations.
    tol : "auto" or float, default="auto"
        "gradient" stops when the loss improves by less than tol of itself in 10 iterations, "gauss-newton" when a round
        is expected to improve it by less. "auto" is 1e-4 for the first; for the second it depends on the loss.
    early_stopping : bool, default=False
        Whether to hold out a share of the rows and stop by the loss there. Rows of your own are given to ``fit`` as
        ``X_val`` and ``y_val``.
    validation_fraction : float, default=0.1
        Share of the rows that ``early_stopping`` holds out.
    patience : int, default=20
        Iterations without a better validation loss after which training stops.
    bias : "auto" or float, default="auto"
        Size of the constant coordinate beside a typical row of size 1. Larger values give smoother functions. "auto"
        chooses by leave-one-out with the kernel of infinite width.
    column_scales : "auto", None or array of shape (p,), default="auto"
        Weights of the columns. "auto" learns a diagonal or full metric from the gradients of the fit, and cuts columns
        into pieces, where that helps on other rows; None leaves all at 1.
    missing : "impute" or "error", default="impute"
        Missing cells, NaN or null. "impute" replaces numbers by the median of the column and adds an indicator column;
        texts become a category of their own. "error" raises.
    categorical : list of str or int, or mask, default=None
        Columns whose values are categories: names for a DataFrame, positions or a boolean mask for an array.
    dtype : "float32" or "float64", default="float32"
        Precision of the network.
    warm_start : bool, default=False
        Whether ``fit`` continues from the network of the previous fit.
    random_state : int, RandomState or None, default=None
        Seed of the initial weights, of the rows held out and of the batches.
    verbose : bool, default=False
        Whether to show the chosen settings and a progress bar.

    Attributes
    ----------
    network_ : ShiftedReLUNetwork
        The trained network. Its rows are those of ``rows_on_sphere``.
    target_mean_ : array of shape (c,)
        Centre of each target, which predictions add.
    target_scale_ : array of shape (c,)
        Scale of each target, by which predictions are multiplied.
    encoder_ : TableEncoder
        How columns of a table become numbers.
    sphere_ : SphereMap
        How rows of numbers become rows of norm 1.
    settings_ : TableSettings
        Bias, metric and ridge that were chosen, by how many rows, and with what leave-one-out error.
    solver_ : str
        Name of the solver.
    result_ : TrainingResult
        History, stop reason, loss and times of the last fit.
    n_iter_ : int
        Number of iterations, of all fits with ``warm_start`` and calls of ``partial_fit``.
    training_rows_ : array of int
        Rows of X that the last fit trained on: all, except those that ``early_stopping`` holds out.
    feature_importances_ : array of shape (p,)
        How much the fit depends on each column of X; the sum is 1.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : array of str
        Names of the columns, after a fit on a DataFrame.

    Examples
    --------
    >>> import numpy as np
    >>> from fireset import ShiftedReLURegressor
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> model = ShiftedReLURegressor(width=1000, random_state=0).fit(X, X[:, 0] ** 2)
    >>> bool(model.score(X, X[:, 0] ** 2) > 0.99)
    True
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
        trained_outputs: bool | float | str = "auto",
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
        self.trained_outputs = trained_outputs
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

    def fit(self, X, y, sample_weight=None, *, X_val=None, y_val=None, callbacks=(), checkpoint=None, memory=None):
        """Train on rows X and targets y.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or DataFrame
        y : (n,) or (n, c) array
        sample_weight : (n,) array, optional
        X_val, y_val : optional
            Validation rows and targets, used as they are: training stops when the loss there has not improved for
            ``patience`` iterations, the best weights are kept, and ``result_.history`` records ``validation_loss``.
            With them ``early_stopping`` holds out no rows of X.
        callbacks, checkpoint, memory
            As in ``fireset.train``.

        Returns
        -------
        self
        """
        prepared = self.prepare(X, y, sample_weight, memory=memory)
        validation = self._prepare_validation(X_val, y_val)
        return self.fit_prepared(
            prepared, callbacks=callbacks, validation=validation, checkpoint=checkpoint, memory=memory
        )

    def prepare(self, X, y, sample_weight=None, *, memory=None) -> PreparedRows:
        """Do what ``fit`` does before training: choose settings, draw ``network_``, map the rows.

        Parameters
        ----------
        X, y, sample_weight, memory
            As in ``fit``.

        Returns
        -------
        PreparedRows
            Rows of norm 1, targets and weights, as ``fireset.train`` takes them.
        """
        self._check_settings()
        if isinstance(X, EncodedBlocks):
            return self._prepare_blocks(X, y, memory)
        again = self.warm_start and hasattr(self, "network_")
        X, y, weight = self._checked(X, y, sample_weight, reset=not again)
        rows = self._further_rows(X) if again else self._begin_regression(X, y, weight, memory=memory)
        return PreparedRows(rows, self._to_targets(y), weight, None)

    def _prepare_blocks(self, X: EncodedBlocks, y: np.ndarray, memory) -> PreparedRows:
        """Prepare rows of a large table: learn from the sample, standardize the targets of all rows."""
        sample = X.sample_positions
        features, _, _ = self._checked(X.sample, y[sample], None, reset=True)
        check_target_sizes(y.reshape(len(y), -1))
        weight = np.ones(len(y))
        self._begin_regression(features, y, weight, memory=memory, sample=sample)
        return self._prepared_blocks(X, y, weight, None)

    def partial_fit(self, X, y, sample_weight=None):
        """Make one plain gradient step on one batch, unless it raises the loss of the batch.

        The first batch sets the scales of columns and targets. The step size is kept from batch to batch.

        Parameters
        ----------
        X, y, sample_weight
            As in ``fit``.

        Returns
        -------
        self
        """
        self._check_settings()
        first = not hasattr(self, "network_")
        X, y, weight = self._checked(X, y, sample_weight, reset=first)
        rows = self._begin_regression(X, y, weight, whole=False) if first else self._further_rows(X)
        self._step(rows, self._to_targets(y), weight)
        return self

    def predict(self, X) -> np.ndarray:
        """Predict targets, (n,) or (n, c). Several quantiles are (n, levels), sorted in each row.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or DataFrame

        Returns
        -------
        array

        Notes
        -----
        Sorting keeps them from crossing, and never makes the pinball loss larger (Chernozhukov, Fernández-Val and
        Galichon, "Quantile and Probability Curves Without Crossing", 2010).
        """
        outputs = self._outputs(X)
        loss = self._fitted_loss
        predictions = loss.predictions(outputs) * self.target_scale_ + self.target_mean_
        if loss.sorts_outputs:
            return np.sort(predictions, axis=1)
        return predictions if self._many_targets or loss.outputs_per_target > 1 else predictions[:, 0]

    def score(self, X, y, sample_weight=None) -> float:
        """Return R²; for quantiles D², 1 − (pinball loss) / (that of the quantiles of y), averaged over levels.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or DataFrame
        y : (n,) or (n, c) array
        sample_weight : (n,) array, optional

        Returns
        -------
        float
        """
        predictions = self.predict(X)
        return self._fitted_loss.score(y, predictions, sample_weight)

    def _checked(self, X, y, sample_weight, *, reset: bool):
        check_task(self.loss, "regression")
        X, y = self._encoded(X, y, reset=reset, multi_output=True, y_numeric=True)
        y = np.asarray(y, np.float64)
        check_target_sizes(y.reshape(len(y), -1))
        return X, y, self._check_weight(sample_weight, X)

    def _mapped_pair(self, X, y):
        X, y, _ = self._checked(X, y, None, reset=False)
        return self.sphere_(X), self._to_targets(y)

    def _begin_regression(
        self, X, y, weight, *, whole: bool = True, memory=None, sample: np.ndarray | None = None
    ) -> Any:
        """Standardize the targets and start a network; return the mapped rows.

        Without ``whole`` the rows are a first batch: settings are the defaults. With ``sample``, X has only these rows
        of y and ``weight``.
        """
        self._many_targets = y.ndim == 2
        loss, columns = get_loss(self.loss), y.reshape(len(y), -1)
        self.target_mean_, self.target_scale_ = loss.standardization(columns, weight)
        targets = self._to_targets(y)
        # Before settings are chosen by the targets, and in their units, which messages name.
        loss.check_targets(np.broadcast_to(columns, targets.shape))
        outputs, rows = targets.shape[1], len(y)
        if sample is not None:
            columns, weight = columns[sample], weight[sample]
        selected = loss.selection_targets(columns, weight)
        return self._begin(X, selected, weight, choose=whole, outputs=outputs, memory=memory, rows=rows)

    def _choose_settings(self, Z, targets, weight, **given) -> TableSettings:
        """Choose the settings; for quantiles a second time with the absolute errors as further targets.

        A column may influence the spread of y only, which least squares on y does not detect.
        """
        found = super()._choose_settings(Z, targets, weight, **given)
        if not get_loss(self.loss).models_spread or found.left_out is None:
            return found
        rows = found.chosen_rows
        sizes = np.abs(targets[rows] - found.left_out)
        sizes -= np.average(sizes, axis=0, weights=weight[rows])
        both = np.hstack([targets[rows], sizes / max(float(sizes.std()), 1e-12)])
        again = super()._choose_settings(Z[rows], both, weight[rows], **given)
        return replace(again, chosen_rows=rows)

    def _to_targets(self, y) -> np.ndarray:
        columns = y.reshape(len(y), -1)
        expected = 1 if get_loss(self.loss).outputs_per_target > 1 else len(self.target_mean_)
        if columns.shape[1] != expected:
            raise InputError(f"y must have {expected} columns as before, got {columns.shape[1]}")
        return (columns - self.target_mean_) / self.target_scale_
