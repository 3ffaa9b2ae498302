"""scikit-learn estimators: any table of numbers in, rows mapped to the unit sphere inside."""

from typing import Any

from fireset._util.errors import InputError
from fireset.estimators.base import PreparedRows
from fireset.estimators.classifier import ShiftedReLUClassifier
from fireset.estimators.regressor import ShiftedReLURegressor
from fireset.training.losses import Loss, check_task

# The settings of the paper, to reproduce its claims rather than to get the best fit.
PAPER: dict[str, Any] = {
    "width": 10_000,
    "threshold": "paper",
    "solver": "gradient",
    "start": "paper",
    "output_scale": 1.0,
    "column_scales": None,
}

__all__ = ["PAPER", "PreparedRows", "ShiftedReLUClassifier", "ShiftedReLURegressor", "estimator_for"]


def estimator_for(
    task: str, loss: str | Loss = "squared_error", **settings
) -> ShiftedReLUClassifier | ShiftedReLURegressor:
    """Return an unfitted estimator for "classification" or "regression"."""
    check_task(loss, task)
    if task == "classification":
        return ShiftedReLUClassifier(loss=loss, **settings)
    if settings.get("class_weight") is not None:
        raise InputError("class_weight is for classification; leave --balance out, or give --task classification")
    return ShiftedReLURegressor(loss=loss, **settings)
