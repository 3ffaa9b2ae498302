"""A table and its target column as a problem for the estimators: what training, comparing and explaining start from."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fireset.data import TableEncoder, class_labels, detect_task, read_table, regression_values, split_target
from fireset.errors import InputError
from fireset.estimators import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.table_encoder import option, require_column

if TYPE_CHECKING:
    import polars as pl

_TASKS = ("auto", "classification", "regression")


@dataclass(frozen=True)
class TableProblem:
    """Encoded rows X (n, p) and answers y (n,): numbers, or for classification the codes of ``classes``."""

    task: str
    encoder: TableEncoder
    X: np.ndarray
    y: np.ndarray
    classes: list | None

    @classmethod
    def read(
        cls,
        file: Path,
        target: str,
        *,
        task: str = "auto",
        drop: list[str] | None = None,
        categorical: list[str] | None = None,
        impute: bool = False,
    ) -> "TableProblem":
        """Read and encode a file; "auto" finds the task from the target column."""
        if task not in _TASKS:
            raise InputError(f"task must be one of {', '.join(_TASKS)}; got {task!r}")
        features, answers = _columns(file, target, drop or [])
        if task == "auto":
            task = detect_task(answers)
        encoder = TableEncoder.learn(features, categorical=categorical or [], impute=impute)
        X = encoder.encode(features)
        if len(X) < 2:
            raise InputError(f"the table must have at least 2 rows, got {len(X)}")
        if task == "classification":
            y, classes = class_labels(answers)  # codes: scikit-learn refuses some labels, such as 0.5
        else:
            y, classes = regression_values(answers), None
        return cls(task, encoder, X, y, classes)

    def estimator(self, loss: str = "squared_error", **settings) -> ShiftedReLUClassifier | ShiftedReLURegressor:
        """The estimator for this task, not fitted yet."""
        if self.task == "classification":
            return ShiftedReLUClassifier(loss=loss, **settings)
        if loss != "squared_error":
            raise InputError(f"loss must be squared_error for regression, got {loss!r}; or give --task classification")
        return ShiftedReLURegressor(**settings)


def _columns(file: Path, target: str, drop: list[str]) -> tuple["pl.DataFrame", "pl.Series"]:
    table = read_table(file)
    for name in drop:
        require_column(name, table.columns, "--drop")
        if name == target:
            raise InputError(f"{option('--drop', name)} would drop the target; drop other columns")
    require_column(target, table.columns, "--target")
    return split_target(table.drop(drop), target)
