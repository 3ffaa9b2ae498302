"""Base class of both estimators: the map to the sphere, the network and its training."""

import warnings
from abc import abstractmethod
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from fireset._util.checks import is_number, is_whole_number, refuse_masked, whole_number
from fireset._util.errors import InputError
from fireset._util.gaussian import upper_tail
from fireset._util.parallel import one_blas_thread
from fireset._util.text import percent, print_status
from fireset.distributed.agreement import check_same, raise_on_all_workers
from fireset.distributed.process_group import SINGLE_PROCESS, current_group
from fireset.distributed.row_shares import RowShares
from fireset.distributed.shard import NetworkShard, initialize
from fireset.distributed.worker_grid import current_grid
from fireset.engines.base import Engine
from fireset.engines.registry import batch_engine, create, engine_class
from fireset.estimators.batch_steps import BatchDescent, BatchRate
from fireset.estimators.fit_checks import check_finite, warn_if_inactive, warn_if_worse_than_constant
from fireset.estimators.network_bias import choose_bias
from fireset.estimators.table_input import TableInput
from fireset.estimators.width import (
    PAPER_WIDTH,
    THRESHOLD,
    THRESHOLD_FOR_CENTRES,
    check_theory_settings,
    choose_width,
    choose_width_for_centres,
    theory_width,
)
from fireset.initialization import copy_signs
from fireset.network import ShiftedReLUNetwork, check_dtype, choose_threshold
from fireset.sparse_rows import is_sparse
from fireset.tables.column_map import ColumnMap
from fireset.tables.encoded_blocks import EncodedBlocks
from fireset.tables.encoder import TableEncoder
from fireset.tables.holdout import hold_out
from fireset.tables.metric import MIN_EIGENVALUE, MIN_EIGENVALUE_FOR_MANY_ROWS
from fireset.tables.settings import MIN_ROWS, TableSettings, choose_settings
from fireset.tables.sphere import SphereMap, count_inputs, suits_row_space
from fireset.training.loop import Trainer, train
from fireset.training.losses import Loss, get_loss
from fireset.training.memory import check_weights
from fireset.training.precompile import compile_in_background
from fireset.training.problem import share_of_rows
from fireset.training.progress import ProgressBar
from fireset.training.solvers import SOLVERS, Solver, solver_class
from fireset.training.solvers.registry import CENTRES, DESCENT, LEAST_SQUARES, make_solver
from fireset.training.stopping import StopReason

if TYPE_CHECKING:
    from onnx import ModelProto

_OUTPUT_SCALES = 1e-12, 1e12  # limits of the network; solvers have narrower ones, by precision
_MAX_THRESHOLD = 10.0  # P(z > 10) = 8e-24: no neuron is active; below −10 all are
_MIN_WEIGHTS_PER_TARGET = 2  # for Gauss–Newton; figures in docs/solvers.md
_MIN_OUTPUT_WEIGHTS_PER_ROW = 2.0  # below, the output layer is not trained by default,
_MIN_ACTIVE_FOR_OUTPUTS = 500  # nor with fewer active neurons for a row; 1,000 neurons have 67 and lose 0.1 of R²
_MIN_ROWS_FOR_CENTRES = 20_000  # for "nystrom"; figures in docs/solvers.md
_MIN_TARGETS_FOR_CENTRES = 1_500_000  # rows times outputs, for "nystrom" with several outputs
_MAX_OUTPUTS_FOR_CENTRES = 31  # 32 copies of each neuron
_MAX_COLUMNS_FOR_CENTRES = 200  # beyond, the pre-activations of all pairs cost more than products of the active ones
_MAX_OUTSIDE_ROW_SPACE = 1e-6  # of a row of norm 1; less is rounding
_MIN_PIECES_GAIN = 0.1  # of the loss, for "nystrom", whose cost is proportional to the number of columns
_NOT_CONVERGED_DECREASE = 0.01  # relative decrease of the loss over the last 10 iterations that gives a warning


class PreparedRows(NamedTuple):
    """Rows, targets and weights as ``fireset.train`` takes them.

    On a grid with several parts of the rows, those of a table that is read in blocks are this worker's only.
    """

    rows: Any  # (n, d), norm 1; CSR rows of a sparse table
    targets: np.ndarray  # (n, c)
    weight: np.ndarray  # (n,)
    codes: np.ndarray | None  # class codes, to stratify a validation split
    training_rows: np.ndarray | None = None  # numbers of the training rows of all workers; None if each has all rows
    validation: tuple[np.ndarray, np.ndarray] | None = None  # this worker's, if they are held out already


class ShiftedReLUEstimator(TableInput, BaseEstimator):
    """Base class of both estimators: the map to the sphere, the network and its training."""

    # Set by the subclasses' __init__, whose signatures scikit-learn inspects.
    width: int | str
    threshold: float | str
    loss: str | Loss
    engine: str | Engine
    solver: str | Solver
    ridge: float | str
    start: str
    output_scale: float | str
    trained_outputs: bool | float | str
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
    _by_name: bool  # whether fit received a table with column names
    _batch_rate: BatchRate | None
    _fitted_with: str | Loss  # the parameter ``loss`` of the last fit
    network_: ShiftedReLUNetwork  # on several workers a NetworkShard with the same methods

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        tags.input_tags.sparse = True
        return tags

    def _check_settings(self) -> None:
        self._check_workers()
        if self.bias != "auto" and not (is_number(self.bias) and float(self.bias) > 0):
            raise InputError(f"bias must be 'auto' or a positive number, got {self.bias!r}")
        if self.missing not in ("impute", "error"):
            raise InputError(f"missing must be 'impute' or 'error', got {self.missing!r}")
        whole_number("max_iter", self.max_iter, 1)
        check_dtype(self.dtype)
        if not is_number(self.validation_fraction) or not 0 < self.validation_fraction < 1:
            raise InputError(f"validation_fraction must lie between 0 and 1, got {self.validation_fraction!r}")
        descent = {"learning_rate": self.learning_rate, "momentum": self.momentum, "nesterov": self.nesterov}
        make_solver(DESCENT, descent)  # checks these three
        given = self.trained_outputs
        if given != "auto" and not (isinstance(given, bool) or (is_number(given) and float(given) >= 0)):
            raise InputError(f"`trained_outputs` must be 'auto', a bool or a number of at least 0, got {given!r}.")
        self._check_solver()
        if not isinstance(self.engine, str | Engine):
            raise InputError(f"`engine` must be a name or an Engine, got {self.engine!r}.")
        starts = ("auto", "paper", "antisymmetric", "orthogonal")
        if self.start not in starts:
            raise InputError(f"start must be one of {', '.join(starts)}, got {self.start!r}")
        threshold, scale = self.threshold, self.output_scale
        if not isinstance(threshold, str) and not (is_number(threshold) and abs(threshold) <= _MAX_THRESHOLD):
            raise InputError(
                f"`threshold` must be 'auto', 'paper' or a number between −{_MAX_THRESHOLD:g} and "
                f"{_MAX_THRESHOLD:g}, got {threshold!r}: beyond, no neuron or every neuron is active."
            )
        low, high = _OUTPUT_SCALES
        if scale != "auto" and not (is_number(scale) and low <= float(scale) <= high):
            raise InputError(f"`output_scale` must be 'auto' or a number between {low:g} and {high:g}, got {scale!r}.")

    def _check_solver(self) -> None:
        if not isinstance(self.solver, Solver):
            if not isinstance(self.solver, str) or (self.solver != "auto" and self.solver not in SOLVERS):
                raise InputError(f"solver must be one of auto, {', '.join(SOLVERS)}; got {self.solver!r}")
            return
        for name in ("learning_rate", "ridge", "batch_size", "trained_outputs"):
            if getattr(self, name) not in ("auto", None):
                raise InputError(
                    f"`{name}` must be left at its default with a solver object, got {getattr(self, name)!r}; "
                    f"set it in {type(self.solver).__name__}(...)."
                )

    def _check_workers(self) -> None:
        """Refuse settings that differ between workers, which could otherwise deadlock."""
        workers = current_group()
        if workers.size == 1:
            return
        check_same(workers, {name: value for name, value in self.get_params().items() if name != "verbose"})
        if self.random_state is None:
            raise InputError(
                f"random_state must be given on {workers.size} workers, which draw one network together; got None"
            )

    def solver_for(self, rows: int, columns: int, outputs: int, *, sparse: bool = False) -> str:
        """Return the name of the solver for a table of this size.

        "auto" is "gauss-newton", except with a given learning rate or batch size, or with an engine that may miss
        pairs. A given width with fewer than ``_MIN_WEIGHTS_PER_TARGET`` weights for a target
        also selects "gradient": the ridge towards the start keeps such a network from learning. For many dense rows
        "auto" is "nystrom" (``_suits_centres``).
        """
        if isinstance(self.solver, Solver):
            return self.solver.name
        if self.solver != "auto":
            return self.solver
        engine = engine_class(self.engine) if isinstance(self.engine, str) and self.engine != "auto" else self.engine
        misses = not isinstance(engine, str) and not engine.exact
        inputs = self._count_inputs(rows, columns, sparse=sparse)
        narrow = is_number(self.width) and float(self.width) * inputs < _MIN_WEIGHTS_PER_TARGET * rows * outputs
        descends = self.learning_rate != "auto" or self.batch_size is not None or misses or narrow
        if descends:
            return DESCENT
        return CENTRES if not sparse and self._suits_centres(rows, columns, outputs) else LEAST_SQUARES

    def _suits_centres(self, rows: int, columns: int, outputs: int) -> bool:
        """Return whether "nystrom" is faster and as accurate as "gauss-newton" for this many dense rows.

        It needs the default engine, a loss that one round minimizes, and a nearly linear network. Several outputs need
        an orthogonal start, with as many copies of each neuron.
        """
        return (
            rows >= _MIN_ROWS_FOR_CENTRES
            and (outputs == 1 or rows * outputs >= _MIN_TARGETS_FOR_CENTRES)
            and outputs <= _MAX_OUTPUTS_FOR_CENTRES
            and columns <= _MAX_COLUMNS_FOR_CENTRES
            and self.engine == "auto"
            and self.start != "paper"
            and self.output_scale == "auto"
            and not self.warm_start
            and get_loss(self.loss).is_squared_error
        )

    @one_blas_thread()
    def _begin(
        self,
        X,
        targets: np.ndarray,
        weight: np.ndarray,
        *,
        choose: bool = True,
        outputs: int = 0,
        memory: int | str | None = None,
        rows: int = 0,
    ) -> Any:
        """Learn the map to the sphere and initialize the network; return the mapped rows.

        Settings are chosen on these rows, or are the defaults without ``choose``. ``outputs`` is the number of network
        outputs where it differs from the number of columns of ``targets``, ``rows`` the number of rows to train on
        where X is a sample of them.
        """
        outputs, n_rows = outputs or targets.shape[1], rows or X.shape[0]
        self.solver_ = self.solver_for(n_rows, X.shape[1], outputs, sparse=is_sparse(X))
        on_centres = self._solver_class().uses_centres
        whole = n_rows == X.shape[0]  # a basis of a sample would not hold the other rows
        in_row_space = choose and whole and self._uses_row_space(*X.shape, sparse=is_sparse(X))
        if (
            self._solver_class().uses_tangent_products
            and not on_centres
            and isinstance(self.engine, str)
            and not is_sparse(X)
        ):
            inputs = X.shape[1] + 1
            compile_in_background(self.dtype, several_outputs=outputs > 1, engine=self.engine, n_features=inputs)
        default_threshold = THRESHOLD_FOR_CENTRES if on_centres else THRESHOLD
        threshold = default_threshold if self.threshold == "auto" else self.threshold
        default_start = "orthogonal" if on_centres and outputs > 1 else "antisymmetric"
        start = default_start if self.start == "auto" else self.start
        by_theory = self.width == "theory"
        if by_theory:
            check_theory_settings(start, self._scale_for_start(start), self.loss, outputs, X)
        # The settings are chosen before the width of the theorem is known, which depends on them.
        width = PAPER_WIDTH
        if not by_theory:
            width = self.width_for(n_rows, X.shape[1], outputs, sparse=is_sparse(X))
        width = self._width_for_start(width, start, outputs)
        if is_whole_number(width):  # other values are refused by the network
            shard = -(-width // current_grid().same_rows.size)
            inputs = count_inputs(*X.shape) if in_row_space else X.shape[1] + 1
            check_weights(shard, inputs, self.dtype, momentum=self.momentum > 0, limit=memory)
        columns = ColumnMap.learn(X, weight)
        Z = columns(X)
        self.settings_ = self._choose_settings(
            Z,
            targets,
            weight,
            threshold=choose_threshold(width, threshold),
            bias=self.bias,
            column_scales=self._given_scales(X.shape[1]),
            output_layer_scale=self._output_layer_scale(width, n_rows, choose_threshold(width, threshold)),
            classes=is_classifier(self),
            fewest_rows=MIN_ROWS if choose else np.inf,
            min_pieces_gain=_MIN_PIECES_GAIN if on_centres else 0.0,
            min_eigenvalue=MIN_EIGENVALUE_FOR_MANY_ROWS if on_centres else MIN_EIGENVALUE,
        )
        chosen = self.settings_
        columns = replace(columns, pieces=chosen.pieces, squared_norm=chosen.squared_norm)
        Z = columns.extend(Z)
        self.sphere_ = SphereMap.learn(columns, Z, weight, chosen.bias, chosen.metric)
        if in_row_space:
            self.sphere_ = self.sphere_.in_row_space(Z)
        if by_theory:
            width = theory_width(self.sphere_.map_standardized(Z), targets, threshold)
        self.network_ = initialize(  # pyright: ignore[reportAttributeAccessIssue]
            width,
            self.sphere_.n_outputs,
            outputs,
            threshold=threshold,
            start=start,
            output_scale=self._scale_for_start(start),
            seed=int(check_random_state(self.random_state).randint(2**31)),
            dtype=self.dtype,
        )
        self.n_iter_ = 0
        self._batch_rate = None
        self._fitted_with = self.loss
        if on_centres and choose and self.bias == "auto" and not is_sparse(Z):
            bias = self._choose_bias_on_first_worker(Z, targets, weight)
            self.settings_, self.sphere_ = replace(self.settings_, bias=bias), replace(self.sphere_, bias=bias)
        return self.sphere_.map_standardized(Z)

    def _choose_bias_on_first_worker(self, Z: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> float:
        """Return ``choose_bias`` of the network of all neurons, which the first worker computes."""
        workers, network = current_group(), self.network_
        whole = network.whole() if isinstance(network, NetworkShard) else network
        shared = np.zeros(1)
        with raise_on_all_workers(workers):
            if workers.rank == 0:
                shared[0] = choose_bias(whole, self.sphere_, Z, targets, weight)
        workers.broadcast(shared, source=0)
        return float(shared[0])

    def _further_rows(self, X: Any) -> Any:
        """Map rows of a further fit as those of the first; warn if they are outside the row space of these."""
        rows = self.sphere_(X)
        if self.sphere_.row_space is not None and rows[:, -2].max(initial=0.0) > _MAX_OUTSIDE_ROW_SPACE:
            warnings.warn(
                "the input of the network is the space of the rows of its first fit, where differences between other "
                "rows are lost; use warm_start=True or partial_fit from the first fit on",
                UserWarning,
                stacklevel=3,
            )
        return rows

    def _prepared_blocks(
        self, X: EncodedBlocks, y: np.ndarray, weight: np.ndarray, codes: np.ndarray | None
    ) -> PreparedRows:
        """Map the rows that this worker trains on, after ``_begin`` has learned from the sample.

        ``y``, ``weight`` and ``codes`` have one entry for each row of all workers.
        """
        group = current_grid().same_neurons
        if group.size == 1:
            return PreparedRows(self._mapped_blocks(X), self._to_targets(y), weight, codes)
        kept, held = np.arange(len(X)), np.empty(0, np.int64)
        if self.early_stopping:
            kept, held = self._hold_out(len(X), codes)
        trained = kept[share_of_rows(group, len(kept), self._solver_class().row_unit, trained=True)]
        validated = held[share_of_rows(group, len(held))]
        own = np.union1d(trained, validated)
        rows, validation = self._mapped_blocks(replace(X, own=own)), None
        if self.early_stopping:
            validation = rows[np.searchsorted(own, validated)], self._to_targets(y[validated])
            rows = rows[np.searchsorted(own, trained)]
        return PreparedRows(rows, self._to_targets(y[trained]), weight[trained], None, kept, validation)

    def _hold_out(self, n_rows: int, codes: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of training rows and of rows that ``early_stopping`` holds out."""
        seed = check_random_state(self.random_state).randint(2**31)
        option = "early_stopping with validation_fraction"
        return hold_out(n_rows, self.validation_fraction, seed=seed, option=option, codes=codes)

    def _mapped_blocks(self, X: EncodedBlocks) -> np.ndarray:
        """Map all rows, or with ``X.own`` those of this worker."""
        with raise_on_all_workers(current_group()):
            self._check_mapped_size(X)
            rows = self.rows_on_sphere(X)
        if self.settings_.chosen_rows is not None:  # as numbers of training rows
            self.settings_ = replace(self.settings_, chosen_rows=X.sample_positions[self.settings_.chosen_rows])
        return rows

    def _check_mapped_size(self, X: EncodedBlocks) -> None:
        """Raise InputError for settings that need all rows in memory, if they do not fit."""
        if not X.fits_memory(self.network_.n_features, self.dtype):
            if not self._solver_class().uses_centres:
                raise InputError(
                    f"solver must be 'nystrom' for {len(X):,} rows that do not fit into memory, got {self.solver_!r}; "
                    "use solver='nystrom', with loss='squared_error' and at most "
                    f"{_MAX_OUTPUTS_FOR_CENTRES} outputs, or fewer rows"
                )
            if self.early_stopping:
                raise InputError(
                    f"early_stopping copies the rows, and {len(X):,} rows do not fit into memory; leave it out"
                )

    def _show_settings(self) -> None:
        """Print the chosen settings and the expected score."""
        names = [column.name for column in self.encoder_.columns for _ in column.feature_names]
        score = "accuracy" if is_classifier(self) else "R²"
        words = self.settings_.in_words(score, None if not self._by_name and self._of_numbers else names)
        print_status(f"chosen: {words}")

    def _width_for_start(self, width: int, start: str, outputs: int) -> int:
        """Return ``width``, or the next multiple of the number of copies that the start has of each neuron."""
        copies = len(copy_signs(start, outputs))
        if not is_whole_number(width) or width < 2 or width % copies == 0:
            return width
        rounded = -(-width // copies) * copies
        number = "in pairs" if copies == 2 else f"{copies} at a time"
        warnings.warn(
            f"`width`={width} is rounded up to {rounded}: neurons come {number} unless start='paper'.",
            UserWarning,
            stacklevel=2,
        )
        return rounded

    def _scale_for_start(self, start: str) -> float:
        """Return κ. A fixed learning rate is meant for the network of the paper, whose κ is 1."""
        if self.output_scale != "auto":
            return self.output_scale  # pyright: ignore[reportReturnType] - checked to be a number
        fixed_rate = self.learning_rate != "auto" or (isinstance(self.solver, Solver) and not self.solver.adaptive)
        if start == "paper" or fixed_rate:
            return 1.0
        return self._solver_class().default_output_scale

    def _output_layer_scale(self, width: int, rows: int, threshold: float) -> float | str:
        """Return the scale s of the output layer, or "auto" where it is to be chosen.

        Infinite width is a bad model of the output layer of a narrow network, whose kernel has at most rank m/2 and the
        noise of the neurons that are active for a row.
        """
        if self.trained_outputs != "auto":
            return float(self.trained_outputs)
        enough_active = is_number(width) and width * upper_tail(threshold) >= _MIN_ACTIVE_FOR_OUTPUTS
        chooses = self._solver_class().chooses_output_scale and not isinstance(self.solver, Solver)
        chooses = chooses and get_loss(self.loss).suits_output_layer
        centres = self._solver_class().uses_centres  # which restrict the output layer, too
        enough = enough_active and (centres or width >= _MIN_OUTPUT_WEIGHTS_PER_ROW * rows)
        return "auto" if chooses and enough else 0.0

    def _choose_settings(self, Z: np.ndarray, targets: np.ndarray, weight: np.ndarray, **given) -> TableSettings:
        return choose_settings(Z, targets, weight, **given)

    def width_for(self, rows: int, columns: int, outputs: int, *, sparse: bool = False) -> int:
        """Return the number of neurons for a table of this size."""
        if self.width != "auto":
            return self.width  # pyright: ignore[reportReturnType] - the network checks it
        if solver_class(self.solver_for(rows, columns, outputs, sparse=sparse)).uses_centres:
            return choose_width_for_centres(columns + 1, outputs)
        threshold = THRESHOLD if isinstance(self.threshold, str) else self.threshold
        return choose_width(rows, self._count_inputs(rows, columns, sparse=sparse), outputs, threshold)

    def _count_inputs(self, rows: int, columns: int, *, sparse: bool) -> int:
        return count_inputs(rows, columns) if self._uses_row_space(rows, columns, sparse=sparse) else columns + 1

    def _uses_row_space(self, rows: int, columns: int, *, sparse: bool) -> bool:
        """Return whether the network has one input per row: not if it is to be trained on other rows later."""
        return suits_row_space(rows, columns) and not sparse and not self.warm_start

    @property
    def feature_importances_(self) -> np.ndarray:
        """Dependence of the fit on each column of X, (p,), with sum 1: √(mean (∂f/∂z_j)²) of kernel regression.

        Importances of all features of a column, such as its categories, are added. Unused columns have importance 0.
        """
        check_is_fitted(self)
        encoder = self.encoder_
        starts = np.cumsum(encoder.features_per_column) - encoder.features_per_column
        sums = np.add.reduceat(self.settings_.importances, starts)
        by_name = dict(zip((column.name for column in encoder.columns), sums, strict=True))
        return np.array([by_name.get(name, 0.0) for name in self._array_names])

    def _given_scales(self, columns: int) -> np.ndarray | str | None:
        """Return the parameter ``column_scales``, checked, with one number for each feature."""
        given = self.column_scales
        if given is None or isinstance(given, str):
            if given not in (None, "auto"):
                raise InputError(f"column_scales must be 'auto', None or an array of positive numbers, got {given!r}")
            return given
        scales = np.asarray(given, np.float64)
        if scales.shape == (len(self.encoder_.columns),) != (columns,):  # one for all features of a column
            scales = np.repeat(scales, self.encoder_.features_per_column)
        if scales.shape != (columns,) or not ((scales > 0) & np.isfinite(scales)).all():
            raise InputError(
                f"column_scales must be {columns} positive numbers, one for each column of X; got shape {scales.shape}"
                + (f" with smallest {scales.min():g}" if scales.size else "")
            )
        return scales

    @one_blas_thread()
    def fit_prepared(
        self, prepared: PreparedRows, *, callbacks=(), validation: tuple[Any, np.ndarray] | None = None, **limits
    ) -> Self:
        """Train the network on the result of ``prepare``.

        Parameters
        ----------
        prepared : PreparedRows
        callbacks
            As in ``fireset.train``.
        validation : (rows, targets), optional
            Mapped rows and targets for early stopping; without them ``early_stopping`` holds out a share of the rows.
        limits
            ``checkpoint`` and ``memory``, as in ``fireset.train``.

        Returns
        -------
        self
        """
        if self.verbose and self.n_iter_ == 0 and current_group().rank == 0:
            self._show_settings()
        checkpoint = limits.get("checkpoint")
        if checkpoint is not None and not checkpoint.options:  # the command line sets its own names
            limits["checkpoint"] = replace(checkpoint, options=self._plain_settings())
        rows, targets, weight, codes, kept, own_validation = prepared
        own_rows, validation = kept is not None, validation or own_validation
        self.training_rows_ = np.arange(rows.shape[0]) if kept is None else kept
        self._batch_rate = None
        self.__dict__.pop("_batches", None)  # its engine is not informed of the weights that this fit changes
        if self.early_stopping and validation is None:
            kept, held = self._hold_out(rows.shape[0], codes)
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
                engine=deepcopy(self.engine),  # training changes an engine or a solver, and parameters stay as given
                solver=deepcopy(self.solver) if isinstance(self.solver, Solver) else self.solver_,
                loss=self.loss,
                learning_rate=self.learning_rate,
                momentum=self.momentum,
                nesterov=self.nesterov,
                batch_size=self.batch_size,
                shuffle_seed=shuffle_seed,
                ridge=self.ridge,
                trained_outputs=self.settings_.output_layer_scale,
                max_iter=self.max_iter,
                tol=self._tolerance(),
                sample_weight=weight,
                validation=validation,
                patience=self.patience,
                callbacks=[*callbacks, *shown],
                own_rows=own_rows,
                **limits,
            )
        self._fitted_with = self.loss
        self.n_iter_ += len(self.result_.history) - 1
        if self.result_.stop_reason is StopReason.INTERRUPTED:
            warnings.warn(f"interrupted after {self.n_iter_} iterations; the best network is kept", stacklevel=3)
        left = self.result_.details.get("predicted_reduction") or 0.0
        if self.result_.stop_reason is StopReason.STALLED and left > max(_NOT_CONVERGED_DECREASE, self._tolerance()):
            warnings.warn(
                f"training stalled after {self.n_iter_} iterations: no step decreases the loss, though a linear "
                f"network would decrease it by {percent(left)}; use solver='gradient', a smaller output_scale or "
                f"dtype='float64'",
                ConvergenceWarning,
                stacklevel=3,
            )
        if self.result_.stop_reason is StopReason.MAX_ITER and self._tolerance() > 0:
            self._warn_not_converged()
        check_finite(self)
        warn_if_inactive(self)
        group = current_grid().same_neurons if own_rows else SINGLE_PROCESS
        warn_if_worse_than_constant(self, rows, targets, weight, RowShares(group, rows.shape[0]))
        return self

    def _constant_outputs(self, targets: np.ndarray, weight: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """Outputs of the best constant prediction, in the shape of ``targets``: standardized targets have it at 0."""
        return np.zeros_like(targets)

    @property
    def _fitted_loss(self) -> Loss:
        """The loss of the last fit, by which outputs become predictions, whatever ``set_params`` has changed since."""
        return get_loss(self._fitted_with)

    def _plain_settings(self) -> dict[str, Any]:
        """Return the settings that must be the same when a run is resumed, as numbers and text."""
        plain = {
            name: value.name if isinstance(value, Engine | Solver) else value
            for name, value in self.get_params().items()
            if isinstance(value, str | int | float | Loss | Engine | Solver)
        }
        return {name: value for name, value in plain.items() if name not in ("max_iter", "verbose", "warm_start")}

    def _tolerance(self) -> Any:
        if self.tol != "auto":
            return self.tol
        return self._solver_class().default_tol(get_loss(self.loss))

    def _solver_class(self) -> type[Solver]:
        return solver_class(self.solver if isinstance(self.solver, Solver) else self.solver_)

    def _warn_not_converged(self) -> None:
        """Warn that the loss still decreased by more than ``tol`` at ``max_iter``."""
        losses = self.result_.history.column("loss")
        earlier = losses[-min(len(losses), 11)]
        fell = 1.0 - float(losses[-1] / earlier) if earlier > 0 else 0.0
        if fell > max(_NOT_CONVERGED_DECREASE, self._tolerance()):
            remedy = "raise max_iter" + (
                f", or use solver={LEAST_SQUARES!r}" if self._solver_class().is_descent else ""
            )
            warnings.warn(
                f"training stopped at max_iter={self.max_iter} while the loss still fell, by {percent(fell)} in the "
                f"last {min(len(losses), 11) - 1} iterations; {remedy}",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _step(self, rows: Any, targets: np.ndarray, weight: np.ndarray) -> None:
        """Make one plain gradient step on one batch of mapped rows; the trainer is kept for the next one."""
        first = self.n_iter_ == 0
        with one_blas_thread():  # entered once, not in each part of a step
            self._step_with_kept_trainer(rows, targets, weight)
        check_finite(self)
        if first:
            warn_if_inactive(self)

    def _step_with_kept_trainer(self, rows: Any, targets: np.ndarray, weight: np.ndarray) -> None:
        sparse = is_sparse(rows)
        engine = batch_engine(sparse=sparse) if self.engine == "auto" else self.engine
        used = self.network_, engine, self.loss, self.learning_rate, sparse
        kept, trainer = getattr(self, "_batches", (None, None))
        name = engine if isinstance(engine, str) else engine.name
        settings = name, str(get_loss(self.loss)), str(self.learning_rate), str(sparse)
        if trainer is None or kept != used:
            previous = self._batch_rate if self._batch_rate and self._batch_rate.settings == settings else None
            trainer = Trainer(
                self.network_,
                rows,
                targets,
                engine=create(name, keep_rows=True) if engine == batch_engine(sparse=False) else deepcopy(engine),
                solver=BatchDescent(self.learning_rate, previous),
                loss=self.loss,
                max_iter=1,
                tol=0,
                sample_weight=weight,
            )
            self._batches = used, trainer
        else:
            trainer.use_rows(rows, targets, sample_weight=weight)
        self.result_ = result = trainer.run()
        self._fitted_with = self.loss
        self.n_iter_ += 1
        self.training_rows_ = np.arange(rows.shape[0])
        # After a step that was taken back the step size is chosen again.
        went_back = result.best_iteration != result.history[-1].iteration
        self._batch_rate = None if went_back else BatchRate(result.learning_rate, float(weight.sum()), settings)

    def __getstate__(self):
        """Return the state without the trainer of ``partial_fit``, which is made again from ``_batch_rate``."""
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_batches"}

    @one_blas_thread()
    def _outputs(self, X) -> np.ndarray:
        if not hasattr(self, "network_"):  # check_is_fitted takes as long as the prediction of one row
            check_is_fitted(self)
        if not isinstance(X, EncodedBlocks):
            return self.network_.predict(self.rows_on_sphere(X))
        group = current_grid().same_neurons
        own = share_of_rows(group, len(X))
        with raise_on_all_workers(current_group()):
            rows = self.rows_on_sphere(X if group.size == 1 else replace(X, own=own))
        return RowShares(group, len(own)).gather(self.network_.predict(rows))

    def to_onnx(self, target: str = "y") -> "ModelProto":
        """Return the fitted estimator as one ONNX graph, from columns to predictions (extra ``onnx``).

        After a fit on an array the input is X (rows, columns), float64; after a fit on a table there is one, (rows, 1),
        for each used column, by its name: numbers as float64, categories as text, dates as float64 days since
        1970-01-01 UTC. NaN and "" are missing. Outputs are "prediction", or "label" and "probabilities". ``target`` is
        for the metadata. The graph looks at all m neurons: 2·n·m·d operations and n·m numbers of memory for n rows.
        """
        from fireset.estimators.onnx_export import to_model

        check_is_fitted(self)
        return to_model(self, target)

    def _check_weight(self, sample_weight, X) -> np.ndarray:
        if sample_weight is None:
            return np.ones(X.shape[0])
        refuse_masked("sample_weight", sample_weight)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise InputError("sample_weight must not be 0 everywhere")
        return weight

    def _prepare_validation(self, X_val, y_val) -> tuple[Any, np.ndarray] | None:
        """Map validation rows as those of training, and their targets; None if none are given."""
        if (X_val is None) != (y_val is None):
            given, absent = ("X_val", "y_val") if y_val is None else ("y_val", "X_val")
            raise InputError(f"`{absent}` must be given with `{given}`, got None.")
        return None if X_val is None else self._mapped_pair(X_val, y_val)

    @abstractmethod
    def _to_targets(self, y: np.ndarray, /) -> np.ndarray:
        """Return the targets of the network, (n, c), for targets or class codes (n,) or (n, c)."""

    @abstractmethod
    def _mapped_pair(self, X, y) -> tuple[Any, np.ndarray]:
        """Map rows and targets with the fitted encoder, map and scales."""
