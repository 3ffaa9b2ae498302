"""scikit-learn estimators: any table of numbers in, rows mapped to the unit sphere inside."""

from fireset._util.errors import InputError
from fireset.estimators.base import PreparedRows
from fireset.estimators.classifier import ShiftedReLUClassifier
from fireset.estimators.regressor import ShiftedReLURegressor

__all__ = ["PreparedRows", "ShiftedReLUClassifier", "ShiftedReLURegressor", "estimator_for"]


def estimator_for(task: str, loss: str = "squared_error", **settings) -> ShiftedReLUClassifier | ShiftedReLURegressor:
    """The estimator for "classification" or "regression", not fitted yet."""
    if task == "classification":
        return ShiftedReLUClassifier(loss=loss, **settings)
    if loss != "squared_error":
        raise InputError(f"loss must be squared_error for regression, got {loss!r}; or give --task classification")
    return ShiftedReLURegressor(**settings)
