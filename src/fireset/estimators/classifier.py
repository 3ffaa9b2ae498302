"""Classification."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets

from fireset._util.checks import is_number
from fireset._util.errors import InputError
from fireset._util.parallel import one_blas_thread
from fireset.estimators.base import PreparedRows, ShiftedReLUEstimator
from fireset.estimators.calibration import Calibration
from fireset.estimators.class_mixing import ClassMixing
from fireset.tables.encoded_blocks import EncodedBlocks
from fireset.tables.target import ClassLabels
from fireset.training.losses import Loss, check_task, get_loss


class ShiftedReLUClassifier(ClassifierMixin, ShiftedReLUEstimator):
    """Classification by a very wide shifted-ReLU network, trained exactly on the neurons that are active.

    Columns are standardized and rows mapped to the unit sphere. Columns of a sparse matrix are scaled and not centred,
    and its rows stay sparse.

    Parameters
    ----------
    width : "auto", "theory" or int, default="auto"
        Number of neurons m. "auto" is 40,000 for up to 2,500 rows and 20,000 from 5,000 rows on, more for many targets,
        fewer for very many rows. An odd number is rounded up unless ``start="paper"``. "theory" is the least width at
        which the paper's theorem covers the table (``fireset.theory.least_width``), with ``start="paper"``, one output
        and squared error. If it does not fit into memory, an ``InputError`` names it and what would make a smaller
        width sufficient.
    loss : "squared_error", "log_loss" or Loss, default="squared_error"
        Squared error on codes ±1, with one output for two classes, else one for each class; or log loss. Both give
        probabilities.
    class_weight : None, "balanced" or dict, default=None
        Weights of the classes, multiplied by ``sample_weight``. "balanced" gives every class the same total weight.
        Classes that are not in the dict have weight 1.
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
    classes_ : array
        The labels, sorted.
    offset_ : array
        Mean of the codes of the classes, which is added to the outputs.
    mixing_ : ClassMixing or None
        Linear map of the scores that finds classes which least squares masks, if it clearly helps.
    calibration_ : Calibration
        How outputs of squared error become probabilities; learned from leave-one-out outputs.
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
    >>> from sklearn.datasets import load_iris
    >>> from fireset import ShiftedReLUClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ShiftedReLUClassifier(width=1000, random_state=0).fit(X, y)
    >>> model.predict_proba(X).shape
    (150, 3)
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
        self.class_weight = class_weight
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

    def fit(self, X, y, sample_weight=None, *, X_val=None, y_val=None, callbacks=(), checkpoint=None, memory=None):
        """Train on rows X and labels y.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or DataFrame
        y : (n,) array of labels, or ClassLabels
        sample_weight : (n,) array, optional
        X_val, y_val : optional
            Validation rows and labels, used as they are: training stops when the loss there has not improved for
            ``patience`` iterations, the best weights are kept, and ``result_.history`` records ``validation_loss``.
            With them ``early_stopping`` holds out no rows of X. Class weights do not apply to them.
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
            Rows of norm 1, codes of the classes and weights, as ``fireset.train`` takes them.
        """
        self._check_settings()
        if isinstance(X, EncodedBlocks):
            return self._prepare_blocks(X, y, memory)
        again = self.warm_start and hasattr(self, "network_")
        X, codes, weight = self._checked(X, y, sample_weight, reset=not again)
        rows = self._further_rows(X) if again else self._begin_classification(X, codes, weight, memory=memory)
        return PreparedRows(rows, self._to_targets(codes), weight, codes)

    def _prepare_blocks(self, X: EncodedBlocks, y: ClassLabels, memory) -> PreparedRows:
        """Prepare rows of a large table: learn from the sample, with the class frequencies of all rows."""
        sample = X.sample_positions
        features, _, _ = self._checked(X.sample, ClassLabels(y.codes[sample], y.classes), None, reset=True)
        codes, weight = y.codes, self._weight_of_classes(y.codes)
        self._begin_classification(features, codes, weight, memory=memory, sample=sample)
        return self._prepared_blocks(X, codes, weight, codes)

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        """Make one plain gradient step on one batch, unless it raises the loss of the batch.

        The first batch sets the scales of the columns. The step size is kept from batch to batch.

        Parameters
        ----------
        X, y, sample_weight
            As in ``fit``.
        classes : array, optional
            All labels; required in the first call.

        Returns
        -------
        self
        """
        self._check_settings()
        first = not hasattr(self, "network_")
        if first and classes is None:
            raise InputError("`classes` must be given in the first call of partial_fit, got None.")
        if not first and classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise InputError(f"`classes` must be those of the first call, {self.classes_}; got {np.unique(classes)}.")
        X, codes, weight = self._checked(X, y, sample_weight, reset=first, classes=classes)
        rows = self._begin_classification(X, codes, weight, whole=False) if first else self._further_rows(X)
        self._step(rows, self._to_targets(codes), weight)
        return self

    def decision_function(self, X) -> np.ndarray:
        """Return the scores of the classes: the outputs of the network plus ``offset_``, mapped by ``mixing_``.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or DataFrame

        Returns
        -------
        array
            (n,) for two classes, positive for the second; else (n, classes).
        """
        scores = self._scores(self._outputs(X))
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X) -> np.ndarray:
        """Predict the label with the largest score.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or DataFrame

        Returns
        -------
        (n,) array
        """
        return self._labels(self._outputs(X))

    def predict_proba(self, X) -> np.ndarray:
        """Predict the probability of each class; the largest is that of the label that ``predict`` returns.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or DataFrame

        Returns
        -------
        (n, classes) array
        """
        return self._probabilities(self._outputs(X))

    def predict_with_proba(self, X) -> tuple[np.ndarray, np.ndarray]:
        """Return ``predict(X)`` and ``predict_proba(X)`` from one pass of the network.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or DataFrame

        Returns
        -------
        labels : (n,) array
        probabilities : (n, classes) array
        """
        outputs = self._outputs(X)
        return self._labels(outputs), self._probabilities(outputs)

    @one_blas_thread()
    def _scores(self, outputs: np.ndarray) -> np.ndarray:
        scores = outputs + self.offset_
        return scores if self.mixing_ is None else self.mixing_(scores)

    def _labels(self, outputs: np.ndarray) -> np.ndarray:
        scores = self._scores(outputs)
        return self.classes_[(scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(axis=1)]

    def _probabilities(self, outputs: np.ndarray) -> np.ndarray:
        loss = self._fitted_loss
        if loss.calibrates_classes:
            return self.calibration_(self._scores(outputs))
        p = loss.probabilities(outputs)
        return np.hstack([1 - p, p]) if p.shape[1] == 1 else p

    def _checked(self, X, y, sample_weight, *, reset: bool, classes=None) -> tuple[Any, np.ndarray, np.ndarray]:
        """Return features, class codes and weights; ``reset`` learns encoder and classes."""
        check_task(self.loss, "classification")
        labels = y if isinstance(y, ClassLabels) else None
        X, y = self._encoded(X, y if labels is None else labels.codes, reset=reset)
        weight = self._check_weight(sample_weight, X)
        if reset:
            if labels is None:
                check_classification_targets(y)
            found = np.array(labels.classes) if labels else np.unique(y if classes is None else classes)
            if len(found) < 2:
                raise InputError(f"y must hold at least 2 classes, got 1 class: {found.tolist()[0]!r}")
            self.classes_ = found
        if labels is None:
            codes = self._codes(y)
        elif self.classes_.tolist() == labels.classes:
            codes = np.asarray(y)
        else:
            raise InputError(f"`y` must have the classes of the first fit, {self.classes_}; got {labels.classes}.")
        return X, codes, weight * self._weight_of_classes(codes)

    def _weight_of_classes(self, codes: np.ndarray) -> np.ndarray:
        """Weight of each row by its class, (n,). Rows of a sample or a batch need not have all classes."""
        given = self.class_weight
        if given is None:
            return np.ones(len(codes))
        if given != "balanced" and not isinstance(given, Mapping):
            raise InputError(f"`class_weight` must be None, 'balanced' or a dict of class: weight, got {given!r}.")
        if isinstance(given, Mapping) and not all(is_number(value) and value >= 0 for value in given.values()):
            raise InputError(f"`class_weight` must hold finite numbers of at least 0, got {given!r}.")
        if isinstance(given, Mapping):
            labels = self.classes_.tolist()
            unknown = [label for label in given if label not in labels]
            if unknown and not all(label in given for label in labels):
                raise InputError(f"`class_weight` must name classes of `y`, {labels}; got {unknown[0]!r}.")
            weight = np.array([float(given.get(label, 1.0)) for label in labels])[codes]
        else:
            weight = compute_sample_weight(given, codes)
        if not weight.any():
            raise InputError(f"`class_weight` must be positive for a class of `y`, got {given!r}.")
        return weight

    def _mapped_pair(self, X, y):
        X, y = self._encoded(X, y, reset=False)
        return self.sphere_(X), self._to_targets(self._codes(y))

    def _constant_outputs(self, targets, weight):
        return get_loss(self.loss).constant_outputs(targets, weight)

    def _begin_classification(
        self, X, codes: np.ndarray, weight, *, whole: bool = True, memory=None, sample: np.ndarray | None = None
    ) -> Any:
        """Centre the targets, start a network and calibrate it; return the mapped rows.

        Without ``whole`` the rows are a first batch: targets are not centred and settings are the defaults. With
        ``sample``, X has only these rows of ``codes`` and ``weight``.
        """
        self.offset_ = np.zeros(1 if len(self.classes_) == 2 else len(self.classes_))
        targets = self._to_targets(codes)
        centre = np.average(targets, axis=0, weights=weight)
        if whole and get_loss(self.loss).calibrates_classes:
            self.offset_ = centre
        n_rows = len(codes)
        if sample is not None:
            targets, codes, weight = targets[sample], codes[sample], weight[sample]
        rows = self._begin(X, targets - centre, weight, choose=whole, memory=memory, rows=n_rows)
        self._calibrate(codes, weight)
        return rows

    @one_blas_thread()
    def _calibrate(self, codes: np.ndarray, weight: np.ndarray) -> None:
        """Learn ``calibration_`` and ``mixing_`` from the leave-one-out predictions of the settings."""
        settings = self.settings_
        self.mixing_: ClassMixing | None = None
        self.calibration_ = Calibration()
        if not get_loss(self.loss).calibrates_classes or settings.left_out is None or settings.chosen_rows is None:
            return
        rows = settings.chosen_rows
        out_of_sample = settings.left_out + self.offset_, codes[rows], weight[rows]
        self.calibration_ = Calibration.learn(*out_of_sample)
        found = ClassMixing.learn(*out_of_sample, self.calibration_)
        if found is not None:
            self.mixing_, gain = found
            self.calibration_ = Calibration(slope=1.0, power=0.0, doubt=self.calibration_.doubt)
            if settings.forecast is not None:
                self.settings_ = replace(settings, forecast=min(1.0, settings.forecast + gain))

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
        return get_loss(self.loss).class_targets(one_hot) - self.offset_
