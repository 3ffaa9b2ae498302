"""Checks of the targets before a fit, and of the network after it."""

import warnings
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from fireset._util.errors import InputError
from fireset.distributed.row_shares import RowShares
from fireset.training.losses import get_loss
from fireset.training.problem import loss_for_targets
from fireset.training.stopping import StopReason

if TYPE_CHECKING:
    from fireset.estimators.base import ShiftedReLUEstimator

_TARGET_SIZES = 1e-100, 1e100  # squares of others overflow or underflow
_MIN_ACTIVE = 1.0  # neurons for a row, on average; with fewer, most rows have the same prediction
_ROUNDING = 1e-6  # of the loss of the constant prediction, and for each row of weight 1


def check_target_sizes(y: np.ndarray) -> None:
    """Refuse targets (n, c) whose squares overflow, or underflow in a whole column."""
    low, high = _TARGET_SIZES
    sizes = np.abs(y).max(axis=0)
    for column in np.flatnonzero((sizes > high) | ((sizes < low) & (sizes > 0))):
        row = int(np.abs(y[:, column]).argmax())
        raise InputError(
            f"the largest value of `y` must be between {low:g} and {high:g} in size, got {y[row, column]:g} in row "
            f"{row}; {'divide' if sizes[column] > high else 'multiply'} `y` by a constant."
        )


def check_finite(estimator: "ShiftedReLUEstimator") -> None:
    """Refuse a network whose loss on the training rows is not a number."""
    loss = estimator.result_.loss
    if not isfinite(loss):
        raise InputError(
            f"the loss on the training rows is {loss}: predictions overflow; use smaller values of `output_scale`, got "
            f"{estimator.network_.output_scale:g}, and of `sample_weight`, or another `loss`."
        )


def warn_if_inactive(estimator: "ShiftedReLUEstimator") -> None:
    """Warn if so few neurons are active that predictions hardly depend on the row."""
    network, result = estimator.network_, estimator.result_
    active = result.history[result.best_iteration].active_fraction * network.width
    if active < _MIN_ACTIVE:
        warnings.warn(
            f"with threshold={network.threshold:g} and width={network.width}, {active:.2g} neurons are active for a "
            "row on average; rows without one have the same prediction. Lower `threshold` or raise `width`.",
            UserWarning,
            stacklevel=4,
        )


def warn_if_worse_than_constant(
    estimator: "ShiftedReLUEstimator", rows: Any, targets: np.ndarray, weight: np.ndarray, shares: RowShares
) -> None:
    """Warn if a constant prediction has a lower loss on the training rows than the fit has.

    All arrays have this worker's rows in ``shares``.
    """
    result, network = estimator.result_, estimator.network_
    loss = loss_for_targets(get_loss(estimator.loss), targets, weight, shares)
    *sums, total = shares.totals(*(weight @ targets), float(weight.sum()))
    outputs = estimator._constant_outputs(np.array([sums]) / total, np.ones(1))
    (constant,) = shares.totals(loss.value(np.broadcast_to(outputs, targets.shape), targets, weight))
    most = constant + _ROUNDING * (abs(constant) + total)
    own = result.loss  # includes the ridge, so that the network is evaluated only in case of doubt
    if own > most:
        (own,) = shares.totals(loss.value(network.predict(rows), targets, weight))
    if own <= most:
        return
    remedies = ["raise `max_iter`"] if result.stop_reason is StopReason.MAX_ITER else []
    if estimator.start == "paper" and network.output_scale > 1.0:
        remedies.append(f"use `output_scale`=1 with start='paper', got {network.output_scale:g}")
    for name in ("learning_rate", "ridge"):
        given = getattr(estimator, name)
        if given != "auto":
            remedies.append(f"use {name}='auto', got {given!r}")
    if not loss.zero_is_best_constant:
        remedies.append(f"use loss='squared_error', got {loss.name!r}")
    warnings.warn(
        f"the loss on the training rows, {own:.4g}, is above that of a constant prediction, {constant:.4g}; "
        f"{' or '.join(remedies or ['use the default settings'])}.",
        ConvergenceWarning,
        stacklevel=4,
    )
