"""A table and its target column, encoded for the estimators."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.cells import cli_option, require_column
from fireset.tables.encoder import TableEncoder
from fireset.tables.holdout import hold_out
from fireset.tables.reader import read_table
from fireset.tables.target import class_labels, detect_task, regression_values, split_target

if TYPE_CHECKING:
    import polars as pl

_TASKS = ("auto", "classification", "regression")


@dataclass(frozen=True)
class TableProblem:
    """A table and its target column: numbers, or for classification the codes of ``classes``.

    ``features`` are the columns as they were read, which the estimators take; ``X`` is what all rows become, for
    whoever needs numbers.
    """

    task: str
    features: "pl.DataFrame"
    y: np.ndarray  # (n,)
    classes: list | None
    categorical: list[str]
    impute: bool

    @classmethod
    def read(
        cls,
        file: Path,
        target: str,
        *,
        task: str = "auto",
        drop: list[str] | None = None,
        categorical: list[str] | None = None,
        impute: bool = True,
        drop_missing_target: bool = False,
    ) -> "TableProblem":
        """Read a file; "auto" finds the task from the target column."""
        if task not in _TASKS:
            raise InputError(f"task must be one of {', '.join(_TASKS)}; got {task!r}")
        features, targets = _columns(file, target, drop or [], drop_missing_target)
        if task == "auto":
            task = detect_task(targets)
        if features.height < 2:
            raise InputError(f"the table must have at least 2 rows, got {features.height}")
        if task == "classification":
            y, classes = class_labels(targets)  # codes: scikit-learn refuses some labels, such as 0.5
        else:
            y, classes = regression_values(targets), None
        return cls(task, features, y, classes, categorical or [], impute)

    @property
    def encoding(self) -> dict[str, Any]:
        """The estimators' settings that make the same of the columns."""
        return {"missing": "impute" if self.impute else "error", "categorical": self.categorical}

    @cached_property
    def encoder(self) -> TableEncoder:
        """What the columns become, by all rows."""
        return TableEncoder.learn(self.features, categorical=self.categorical, impute=self.impute)

    @cached_property
    def X(self) -> np.ndarray:  # noqa: N802 - scikit-learn's name for it
        """All rows as numbers, (n, p)."""
        return self.encoder.encode(self.features)

    def hold_out(self, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers to train on and to score on, as ``--holdout`` asks; each class is split alike."""
        codes = None if self.classes is None else self.y
        return hold_out(len(self.y), share, seed=seed, option="--holdout", codes=codes, classes=self.classes)


def _columns(file: Path, target: str, drop: list[str], drop_missing_target: bool) -> tuple["pl.DataFrame", "pl.Series"]:
    table = read_table(file)
    for name in drop:
        require_column(name, table.columns, "--drop")
        if name == target:
            raise InputError(f"{cli_option('--drop', name)} would drop the target; drop other columns")
    require_column(target, table.columns, "--target")
    return split_target(table.drop(drop), target, drop_missing=drop_missing_target)
