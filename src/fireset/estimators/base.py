"""What both estimators share: the map to the sphere, the network and its training."""

import warnings
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from fireset._util.checks import is_number, whole_number
from fireset._util.errors import InputError
from fireset.distributed.process_group import current_group
from fireset.distributed.shard import initialize
from fireset.network import ShiftedReLUNetwork
from fireset.tables.holdout import hold_out
from fireset.tables.sphere import SphereMap
from fireset.training.loop import Trainer, train
from fireset.training.progress import ProgressBar


class PreparedRows(NamedTuple):
    """A table as ``train`` wants it."""

    rows: np.ndarray  # (n, d), norm 1
    targets: np.ndarray  # (n, c)
    weight: np.ndarray  # (n,)
    codes: np.ndarray | None  # of the classes, to split by


class ShiftedReLUEstimator(BaseEstimator):
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
    network_: ShiftedReLUNetwork  # on several workers a NetworkShard, which predicts and saves alike

    def _check_settings(self) -> None:
        if not is_number(self.bias) or self.bias <= 0:
            raise InputError(f"bias must be a positive number, got {self.bias!r}")
        whole_number("max_iter", self.max_iter, 1)
        if not is_number(self.validation_fraction) or not 0 < self.validation_fraction < 1:
            raise InputError(f"validation_fraction must lie between 0 and 1, got {self.validation_fraction!r}")

    def _begin(self, X: np.ndarray, weight: np.ndarray, n_outputs: int) -> None:
        """A new map and a new network."""
        self.sphere_ = SphereMap.learn(X, weight, self.bias)
        self.network_ = initialize(  # pyright: ignore[reportAttributeAccessIssue]
            self.width,
            X.shape[1] + 1,
            n_outputs,
            threshold=self.threshold,
            seed=int(check_random_state(self.random_state).randint(2**31)),
            dtype=self.dtype,
        )
        self.n_iter_ = 0

    def _train(self, prepared: PreparedRows, callbacks, **limits) -> None:
        """Train the network on mapped rows, with early stopping if asked for; ``limits`` go to ``train``."""
        rows, targets, weight, codes = prepared
        validation = None
        self.training_rows_ = np.arange(len(rows))
        if self.early_stopping:
            seed = check_random_state(self.random_state).randint(2**31)
            share, asked = self.validation_fraction, "early_stopping with validation_fraction"
            kept, held = hold_out(len(rows), share, seed=seed, option=asked, codes=codes)
            self.training_rows_ = kept
            validation = rows[held], targets[held]
            rows, targets, weight = rows[kept], targets[kept], weight[kept]
        with ExitStack() as stack:
            shown = [stack.enter_context(ProgressBar())] if self.verbose and current_group().rank == 0 else []
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

    def _step(self, X: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> None:
        """One plain gradient step on one batch; the trainer is kept for the next one."""
        rows = self.sphere_(X)
        settings = (self.network_, self.engine, self.loss, self.learning_rate)
        kept, trainer = getattr(self, "_batches", (None, None))
        if trainer is None or kept != settings:
            trainer = Trainer(
                self.network_,
                rows,
                targets,
                # Every batch is looked at twice, which pays for no preprocessing.
                engine="dense" if self.engine == "auto" else self.engine,
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

    def _outputs(self, X) -> np.ndarray:
        check_is_fitted(self)
        X = np.asarray(validate_data(self, X, dtype=np.float64, reset=False))
        return self.network_.predict(self.sphere_(X))

    def _check_weight(self, sample_weight, X) -> np.ndarray:
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise InputError("sample_weight must not be 0 everywhere")
        return weight
