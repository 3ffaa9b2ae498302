"""A table and its target column, encoded for the estimators."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.encoder import TableEncoder, cli_option, require_column
from fireset.tables.holdout import hold_out
from fireset.tables.reader import class_labels, detect_task, read_table, regression_values, split_target

if TYPE_CHECKING:
    import polars as pl

_TASKS = ("auto", "classification", "regression")


@dataclass(frozen=True)
class TableProblem:
    """Encoded rows X (n, p) and targets y (n,): numbers, or for classification the codes of ``classes``."""

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
        features, targets = _columns(file, target, drop or [])
        if task == "auto":
            task = detect_task(targets)
        encoder = TableEncoder.learn(features, categorical=categorical or [], impute=impute)
        X = encoder.encode(features)
        if len(X) < 2:
            raise InputError(f"the table must have at least 2 rows, got {len(X)}")
        if task == "classification":
            y, classes = class_labels(targets)  # codes: scikit-learn refuses some labels, such as 0.5
        else:
            y, classes = regression_values(targets), None
        return cls(task, encoder, X, y, classes)

    def hold_out(self, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers to train on and to score on, as ``--holdout`` asks; each class is split alike."""
        codes = None if self.classes is None else self.y
        return hold_out(len(self.y), share, seed=seed, option="--holdout", codes=codes, classes=self.classes)


def _columns(file: Path, target: str, drop: list[str]) -> tuple["pl.DataFrame", "pl.Series"]:
    table = read_table(file)
    for name in drop:
        require_column(name, table.columns, "--drop")
        if name == target:
            raise InputError(f"{cli_option('--drop', name)} would drop the target; drop other columns")
    require_column(target, table.columns, "--target")
    return split_target(table.drop(drop), target)
