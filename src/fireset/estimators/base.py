"""What both estimators share: the map to the sphere, the network and its training."""

import warnings
from contextlib import ExitStack
from dataclasses import replace
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, check_X_y, validate_data

from fireset._util.checks import is_number, whole_number
from fireset._util.errors import InputError
from fireset._util.messages import tell
from fireset._util.parallel import one_blas_thread
from fireset.distributed.process_group import current_group
from fireset.distributed.shard import initialize
from fireset.distributed.worker_grid import current_grid
from fireset.engines.registry import create, engine_class
from fireset.estimators.width import THRESHOLD, choose_width
from fireset.network import ShiftedReLUNetwork, choose_threshold
from fireset.sparse_rows import is_sparse
from fireset.tables.column_notes import warn_of_columns
from fireset.tables.columns import ColumnMap
from fireset.tables.encoder import TableEncoder
from fireset.tables.frames import as_table, frame_of_objects, is_frame
from fireset.tables.holdout import hold_out
from fireset.tables.settings import FEWEST_ROWS, TableSettings, choose_settings
from fireset.tables.sphere import SphereMap
from fireset.training.loop import Trainer, train
from fireset.training.losses import Loss, get_loss
from fireset.training.progress import ProgressBar
from fireset.training.solvers import SOLVERS, GradientDescent
from fireset.training.stopping import StopReason

# κ where it is "auto". For Gauss–Newton: one or two rounds, and a fit that is nearly that of the kernel.
_OUTPUT_SCALES = {"gauss-newton": 1000.0, "gradient": 10.0}
_GRADIENT_TOLERANCE = 1e-4  # where tol is "auto"; Gauss–Newton has the loss's
_FAR_FROM_CONVERGED = 0.01  # of the loss, over the last 10 iterations


class PreparedRows(NamedTuple):
    """A table as ``train`` wants it."""

    rows: Any  # (n, d), norm 1; CSR rows of a sparse table
    targets: np.ndarray  # (n, c)
    weight: np.ndarray  # (n,)
    codes: np.ndarray | None  # of the classes, to split by


class ShiftedReLUEstimator(BaseEstimator):
    """What both estimators share: the map to the sphere, the network and its training."""

    # Set by the subclasses' __init__, which scikit-learn wants spelled out.
    width: int | str
    threshold: float | str
    loss: str | Loss
    engine: str
    solver: str
    ridge: float | str
    start: str
    output_scale: float | str
    learning_rate: float | str
    momentum: float
    nesterov: bool
    batch_size: int | None
    max_iter: int
    tol: float | str
    early_stopping: bool
    validation_fraction: float
    patience: int
    bias: float | str
    column_scales: Any
    missing: str
    categorical: Any
    dtype: str
    warm_start: bool
    random_state: Any
    verbose: bool
    n_features_in_: int
    feature_names_in_: np.ndarray
    encoder_: TableEncoder
    _by_name: bool  # whether the rows of fit came in a table whose columns have names
    network_: ShiftedReLUNetwork  # on several workers a NetworkShard, which predicts and saves alike

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        tags.input_tags.sparse = True
        return tags

    def _check_settings(self) -> None:
        if self.bias != "auto" and not (is_number(self.bias) and float(self.bias) > 0):
            raise InputError(f"bias must be 'auto' or a positive number, got {self.bias!r}")
        if self.missing not in ("impute", "error"):
            raise InputError(f"missing must be 'impute' or 'error', got {self.missing!r}")
        whole_number("max_iter", self.max_iter, 1)
        if not is_number(self.validation_fraction) or not 0 < self.validation_fraction < 1:
            raise InputError(f"validation_fraction must lie between 0 and 1, got {self.validation_fraction!r}")
        GradientDescent(self.learning_rate, self.momentum, self.nesterov)  # refuses what it cannot use
        if self.solver != "auto" and self.solver not in SOLVERS:
            raise InputError(f"solver must be one of auto, {', '.join(SOLVERS)}; got {self.solver!r}")
        if self.start not in ("auto", "paper", "antisymmetric"):
            raise InputError(f"start must be 'auto', 'paper' or 'antisymmetric', got {self.start!r}")

    def _choose_solver(self) -> str:
        """ "auto" is Gauss–Newton, but where a rate or batches are asked for, pairs are missed, or rows are shared."""
        if self.solver != "auto":
            return self.solver
        misses = self.engine != "auto" and not engine_class(self.engine).exact
        descends = self.learning_rate != "auto" or self.batch_size is not None or misses
        descends = descends or current_grid().same_neurons.size > 1
        return "gradient" if descends else "gauss-newton"

    def _begin(self, X, targets: np.ndarray, weight: np.ndarray, *, choose: bool = True, outputs: int = 0) -> None:
        """A new map and a new network; settings are chosen by these rows, or are the defaults.

        ``outputs`` are those of the network, where they are not as many as columns of these ``targets``.
        """
        outputs = outputs or targets.shape[1]
        self.solver_ = self._choose_solver()
        # A learning rate that was given is meant for the network of the paper.
        auto = _OUTPUT_SCALES[self.solver_] if self.learning_rate == "auto" else 1.0
        threshold = THRESHOLD if self.threshold == "auto" else self.threshold
        width = self.width_for(X.shape[0], X.shape[1], outputs)
        # Half of an odd number of neurons has no twin.
        even = isinstance(width, Integral) and width % 2 == 0
        start = ("antisymmetric" if even else "paper") if self.start == "auto" else self.start
        columns = ColumnMap.learn(X, weight)
        Z = columns(X)
        self.settings_ = self._choose_settings(
            Z,
            targets,
            weight,
            threshold=choose_threshold(width, threshold),
            bias=self.bias,
            column_scales=self._given_scales(X.shape[1]),
            classes=is_classifier(self),
            fewest_rows=FEWEST_ROWS if choose else np.inf,
        )
        if self.verbose and choose and current_group().rank == 0:
            names = self.encoder_.feature_names
            score = "accuracy" if is_classifier(self) else "R²"
            words = self.settings_.in_words(names if self._by_name else None, score)
            tell(f"chosen: {words}")
        self.sphere_ = SphereMap.learn(columns, Z, weight, self.settings_.bias, self.settings_.column_scales)
        self.network_ = initialize(  # pyright: ignore[reportAttributeAccessIssue]
            width,
            X.shape[1] + 1,
            outputs,
            threshold=threshold,
            start=start,
            output_scale=auto if self.output_scale == "auto" else self.output_scale,
            seed=int(check_random_state(self.random_state).randint(2**31)),
            dtype=self.dtype,
        )
        self.n_iter_ = 0

    def _choose_settings(self, Z: np.ndarray, targets: np.ndarray, weight: np.ndarray, **given) -> TableSettings:
        return choose_settings(Z, targets, weight, **given)

    def width_for(self, rows: int, columns: int, outputs: int) -> int:
        """The number of neurons for a table of this size."""
        if self.width != "auto":
            return self.width  # pyright: ignore[reportReturnType] - anything odd is refused by whoever draws the network
        threshold = THRESHOLD if isinstance(self.threshold, str) else self.threshold
        return choose_width(rows, columns + 1, outputs, threshold)

    @property
    def feature_importances_(self) -> np.ndarray:
        """How much the fit depends on each column, (p,), adding up to 1: √(mean (∂f/∂z_j)²) of kernel regression.

        Those of what a column has become, categories say, are added up; columns that are left out have 0.
        """
        check_is_fitted(self)
        encoder = self.encoder_
        starts = np.cumsum(encoder.features_per_column) - encoder.features_per_column
        sums = np.add.reduceat(self.settings_.importances, starts)
        by_name = dict(zip((column.name for column in encoder.columns), sums, strict=True))
        names = self.feature_names_in_ if self._by_name else by_name
        return np.array([by_name.get(name, 0.0) for name in names])

    def _given_scales(self, columns: int) -> np.ndarray | str | None:
        """``column_scales`` as the user gave them."""
        given = self.column_scales
        if given is None or isinstance(given, str):
            if given not in (None, "auto"):
                raise InputError(f"column_scales must be 'auto', None or an array of positive numbers, got {given!r}")
            return given
        scales = np.asarray(given, np.float64)
        if scales.shape == (len(self.encoder_.columns),) != (columns,):  # one for all that a column has become
            scales = np.repeat(scales, self.encoder_.features_per_column)
        if scales.shape != (columns,) or not ((scales > 0) & np.isfinite(scales)).all():
            raise InputError(
                f"column_scales must be {columns} positive numbers, one for each column of X; got shape {scales.shape}"
                + (f" with smallest {scales.min():g}" if scales.size else "")
            )
        return scales

    def _train(self, prepared: PreparedRows, callbacks, **limits) -> None:
        """Train the network on mapped rows, with early stopping if asked for; ``limits`` go to ``train``."""
        checkpoint = limits.get("checkpoint")
        if checkpoint is not None and not checkpoint.options:  # whoever is nearer to the user has better names for them
            limits["checkpoint"] = replace(checkpoint, options=self._plain_settings())
        rows, targets, weight, codes = prepared
        validation = None
        self.training_rows_ = np.arange(rows.shape[0])
        if self.early_stopping:
            seed = check_random_state(self.random_state).randint(2**31)
            share, asked = self.validation_fraction, "early_stopping with validation_fraction"
            kept, held = hold_out(rows.shape[0], share, seed=seed, option=asked, codes=codes)
            self.training_rows_ = kept
            validation = rows[held], targets[held]
            rows, targets, weight = rows[kept], targets[kept], weight[kept]
        shuffle_seed = 0 if self.batch_size is None else check_random_state(self.random_state).randint(2**31)
        with ExitStack() as stack:
            shown = [stack.enter_context(ProgressBar())] if self.verbose and current_group().rank == 0 else []
            self.result_ = train(
                self.network_,
                rows,
                targets,
                engine=self.engine,
                solver=self.solver_,
                loss=self.loss,
                learning_rate=self.learning_rate,
                momentum=self.momentum,
                nesterov=self.nesterov,
                batch_size=self.batch_size,
                shuffle_seed=shuffle_seed,
                ridge=self.ridge,
                max_iter=self.max_iter,
                tol=self._tolerance(),
                sample_weight=weight,
                validation=validation,
                patience=self.patience,
                callbacks=[*callbacks, *shown],
                **limits,
            )
        self.n_iter_ += len(self.result_.history) - 1
        if self.result_.stop_reason is StopReason.INTERRUPTED:
            warnings.warn(f"interrupted after {self.n_iter_} iterations; the best network is kept", stacklevel=3)
        if self.result_.stop_reason is StopReason.MAX_ITER and self._tolerance() > 0:
            self._warn_not_converged()

    def _plain_settings(self) -> dict[str, Any]:
        """The settings that a text can tell apart, without those that may change when a run is resumed."""
        plain = {
            name: value for name, value in self.get_params().items() if isinstance(value, str | int | float | Loss)
        }
        return {name: value for name, value in plain.items() if name not in ("max_iter", "verbose", "warm_start")}

    def _tolerance(self) -> Any:
        if self.tol != "auto":
            return self.tol
        return _GRADIENT_TOLERANCE if self.solver_ == "gradient" else get_loss(self.loss).round_tolerance

    def _warn_not_converged(self) -> None:
        """At max_iter the loss was still falling by more than tol asks for."""
        losses = self.result_.history.column("loss")
        earlier = losses[-min(len(losses), 11)]
        fell = 1.0 - float(losses[-1] / earlier) if earlier > 0 else 0.0
        if fell > max(_FAR_FROM_CONVERGED, self._tolerance()):
            remedy = "raise max_iter" + ("" if self.solver_ == "gauss-newton" else ", or use solver='gauss-newton'")
            warnings.warn(
                f"training stopped at max_iter={self.max_iter} while the loss still fell, by {fell:.1%} in the last "
                f"{min(len(losses), 11) - 1} iterations; {remedy}",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _step(self, X: Any, targets: np.ndarray, weight: np.ndarray) -> None:
        """One plain gradient step on one batch; the trainer is kept for the next one."""
        with one_blas_thread():  # entered once, not in each part of a step
            self._step_with_kept_trainer(X, targets, weight)

    def _step_with_kept_trainer(self, X: Any, targets: np.ndarray, weight: np.ndarray) -> None:
        rows = self.sphere_(X)
        sparse = is_sparse(rows)
        engine = "dense" if sparse and self.engine == "auto" else self.engine
        settings = (self.network_, engine, self.loss, self.learning_rate, sparse)
        kept, trainer = getattr(self, "_batches", (None, None))
        if trainer is None or kept != settings:
            trainer = Trainer(
                self.network_,
                rows,
                targets,
                engine=create("rows", remembers=True) if engine in ("auto", "rows") else engine,
                loss=self.loss,
                learning_rate=self.learning_rate,
                max_iter=1,
                tol=0,
                sample_weight=weight,
            )
            self._batches = settings, trainer
        else:
            trainer.use_rows(rows, targets, sample_weight=weight)
        self.result_ = trainer.run()
        self.n_iter_ += 1

    def __getstate__(self):
        """Without what ``partial_fit`` keeps for the next batch: it can be made again."""
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_batches"}

    def _encoded(self, X, y, *, reset: bool, **checks) -> tuple[Any, np.ndarray]:
        """Rows and targets to train on as numbers, none missing; ``reset`` learns what columns become."""
        if not is_frame(X):
            if not reset and self._by_name:
                return self._with_targets(self._rows_of_array(X), y, checks)
            impute = self.missing == "impute"
            numbers, y = validate_data(self, X, y, reset=reset, **_accepted(X, impute), **checks)
            if reset:
                if self.categorical is not None and len(self.categorical):
                    raise InputError("categorical names columns of a DataFrame, and X is an array; give a DataFrame")
                self._by_name = False
                self.encoder_ = TableEncoder.of_numbers(numbers, impute)
            return self.encoder_.encode_numbers(numbers), np.asarray(y)
        table = as_table(X)
        if reset:
            self._learn_columns(table, y)
        if not self._by_name:
            return self._encoded(table.to_numpy(), y, reset=reset, **checks)
        return self._with_targets(self.encoder_.encode(table), y, checks)

    def _with_targets(self, rows: np.ndarray, y, checks: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Rows that are numbers already, and targets as scikit-learn checks them."""
        rows, y = check_X_y(rows, y, dtype="float64", estimator=self, **checks)
        return np.asarray(rows), np.asarray(y)

    def _learn_columns(self, table, y) -> None:
        """What the columns of a frame become; those that look wrong are warned about."""
        impute = self.missing == "impute"
        self.encoder_ = TableEncoder.learn(table, categorical=self.categorical or (), impute=impute)
        self._by_name = True
        self.n_features_in_ = table.width
        self.feature_names_in_ = np.array(table.columns, object)
        warn_of_columns(self.encoder_, table, y)

    def _rows(self, X) -> Any:
        """Rows to predict for, as numbers: frames by the names of their columns, arrays by their order."""
        if is_frame(X) and self._by_name:
            return self.encoder_.encode(as_table(X))
        return self._rows_of_array(X)

    def _rows_of_array(self, X) -> Any:
        accepted = _accepted(X, self.encoder_.columns[0].fill is not None)
        if self.encoder_.takes_arrays and not self.encoder_.left_out:
            return self.encoder_.encode_numbers(validate_data(self, X, reset=False, **accepted))
        X = validate_data(self, X, reset=False, **{**accepted, "dtype": None, "accept_sparse": False})
        return self.encoder_.encode(frame_of_objects(np.asarray(X), list(self.feature_names_in_)))

    def rows_on_sphere(self, X) -> Any:
        """Rows as the network sees them, (n, p + 1) of norm 1."""
        return self.sphere_(self._rows(X))

    def _outputs(self, X) -> np.ndarray:
        check_is_fitted(self)
        return self.network_.predict(self.rows_on_sphere(X))

    def _check_weight(self, sample_weight, X) -> np.ndarray:
        if sample_weight is None:
            return np.ones(X.shape[0])
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise InputError("sample_weight must not be 0 everywhere")
        return weight


def _accepted(X: Any, impute: bool) -> dict[str, Any]:
    """What scikit-learn lets pass: NaN where it is imputed, which a sparse table has no place for."""
    finite = "allow-nan" if impute and not is_sparse(X) else True
    return {"dtype": np.float64, "ensure_all_finite": finite, "accept_sparse": "csr"}
