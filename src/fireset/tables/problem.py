"""A table and its target column, encoded for the estimators."""

import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.cells import cli_option, column_names, quoted, require_column
from fireset.tables.column_notes import describe_columns, warn_of_columns
from fireset.tables.encoded import EncodedTable
from fireset.tables.encoder import TableEncoder, refuse_missing_cells
from fireset.tables.holdout import SplitHint, hold_out, hold_out_by, suggest_splits
from fireset.tables.reader import read_with_formats
from fireset.tables.target import (
    ClassLabels,
    TaskChoice,
    class_labels,
    detect_task,
    no_features,
    regression_values,
    split_target,
)
from fireset.tables.text_formats import (
    BooleanFormat,
    DateFormat,
    NumberFormat,
    TextFormat,
    detect_mixed_cells,
    parse_dates,
)

if TYPE_CHECKING:
    import polars as pl

_TASKS = ("auto", "classification", "regression")


@dataclass(frozen=True)
class TableProblem:
    """A table and its target column: numbers, or for classification codes of ``classes``.

    ``features`` are the columns as read. ``dropped`` are the columns that the user excluded; they may still define the
    split into training and hold-out rows.
    """

    features: "pl.DataFrame"
    dropped: "pl.DataFrame"
    categorical: list[str]
    formats: dict[str, TextFormat]  # of the columns of the file, the target included
    impute: bool
    task: str
    choice: TaskChoice | None  # how the task was found; None if it was given
    target: str
    y: np.ndarray  # (n,)
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
        impute: bool = True,
        drop_missing_target: bool = False,
    ) -> "TableProblem":
        """Read a file; "auto" finds the task from the target column."""
        check_task_name(task)
        table, formats, doubts = read_with_formats(file)
        for doubt in doubts:
            warnings.warn(doubt, UserWarning, stacklevel=3)
        drop, categorical = check_names(table.columns, target, drop, categorical)
        columns, targets = split_target(table, target, drop_missing=drop_missing_target)
        found = FeatureColumns.of(columns, formats, drop, categorical, impute)
        if not impute:
            refuse_missing_cells(found.features)
        return cls(*found, impute=impute, **target_fields(targets, task))

    def encode(self, training_rows: np.ndarray | None = None) -> EncodedTable:
        """Learn the encoder on the training rows (all by default) and encode all rows.

        Later tables may hold text cells in the formats of this file: the encoder stores these formats.
        """
        rows = self.features if training_rows is None else self.features[training_rows]
        encoder = TableEncoder.learn(rows, categorical=self.categorical, impute=self.impute)
        encoder = encoder.with_formats(self.formats)
        return EncodedTable(encoder, encoder.encode(self.features), self.features.columns)

    def split(self, share: float, seed: int, by: str | None = None) -> tuple[np.ndarray, np.ndarray, EncodedTable]:
        """Hold out rows and encode the table: row numbers to train on, row numbers to score on, all rows encoded."""
        try:
            kept, held = self.hold_out(share, seed, by)
            return kept, held, self.encode(kept)
        except InputError:
            self.encode()  # a cell that cannot be encoded is the better message, with its row in the file
            raise

    @cached_property
    def X(self) -> np.ndarray:  # noqa: N802 - scikit-learn's name for it
        """All rows as numbers, (n, p), by an encoder learned on all rows."""
        return self.encode().matrix

    def targets(self, rows: np.ndarray) -> np.ndarray | ClassLabels:
        """Return the targets of some rows, in the form that estimators accept."""
        return self.y[rows] if self.classes is None else ClassLabels(self.y[rows], self.classes)

    @property
    def target_format(self) -> NumberFormat | BooleanFormat | None:
        """Text format of the target column, if the file stores its numbers or booleans as text."""
        text_format = self.formats.get(self.target)
        return None if isinstance(text_format, DateFormat) else text_format

    def hold_out(self, share: float, seed: int, by: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Split the rows; returns the row numbers to train on and those to score on.

        The split is random and stratified by class. ``by`` names a column, possibly a dropped one: if it holds dates,
        the latest rows are held out, else whole groups of rows with equal cells.
        """
        codes = None if self.classes is None else self.y
        if by is None:
            return hold_out(len(self.y), share, seed=seed, option="--holdout", codes=codes, classes=self.classes)
        if by == self.target:
            raise InputError(f"{cli_option('--holdout-by', by)} names the target; give another column")
        require_column(by, [*self.features.columns, *self.dropped.columns], "--holdout-by")
        option = cli_option("--holdout-by", by)
        return hold_out_by(self._split_column(by), share, seed=seed, option=option, codes=codes, classes=self.classes)

    def _split_column(self, name: str) -> "pl.Series":
        """Return a column by which rows are held out."""
        return (self.features if name in self.features.columns else self.dropped)[name]

    def describe_columns(self, encoder: TableEncoder, training_rows: np.ndarray) -> list[dict[str, Any]]:
        """Describe the columns of the training rows for users; warn of columns that look wrong."""
        rows = self.features[training_rows]
        described = describe_columns(encoder, rows)
        warn_of_columns(encoder, rows, self.y[training_rows])
        return described

    @cached_property
    def split_hints(self) -> list[SplitHint]:
        """Columns by which rows should be held out, since a random split may leak."""
        return suggest_splits(self.features.hstack(self.dropped))


class FeatureColumns(NamedTuple):
    """The columns of a table without its target."""

    features: "pl.DataFrame"
    dropped: "pl.DataFrame"
    categorical: list[str]
    formats: dict[str, TextFormat]

    @classmethod
    def of(
        cls,
        columns: "pl.DataFrame",
        formats: dict[str, TextFormat],
        drop: list[str],
        categorical: list[str],
        impute: bool,
    ) -> "FeatureColumns":
        """Parse dates, and decide on columns with a few words among numbers."""
        columns = _with_dates(columns, formats, categorical)
        features, dropped = columns.drop(drop), columns.select(drop)
        features, categorical, formats = _without_words(features, categorical, formats, impute)
        return cls(features, dropped, categorical, formats)


def target_fields(targets: "pl.Series", task: str) -> dict[str, Any]:
    """Return the fields of a ``TableProblem`` that describe its target; "auto" finds the task."""
    choice = detect_task(targets) if task == "auto" else None
    task = task if choice is None else choice.task
    if targets.len() < 2:
        raise InputError(f"the table must have at least 2 rows, got {targets.len()}")
    fields = {"task": task, "choice": choice, "target": targets.name}
    if task == "classification":
        labels = class_labels(targets)
        return fields | {"y": labels.codes, "classes": labels.classes}
    return fields | {"y": regression_values(targets), "classes": None}


def check_task_name(task: str) -> None:
    if task not in _TASKS:
        raise InputError(f"task must be one of {', '.join(_TASKS)}; got {task!r}")


def check_names(
    columns: list[str], target: str, drop: list[str] | None, categorical: list[str] | None
) -> tuple[list[str], list[str]]:
    """Return the names of columns to drop and of categorical columns, after checking that all columns exist."""
    drop = column_names(drop or [], columns, "--drop")
    used = [name for name in columns if name not in (target, *drop)]
    categorical = column_names(categorical or [], used, "categorical")
    if target in drop:
        raise InputError(f"{cli_option('--drop', target)} would drop the target; drop other columns")
    require_column(target, columns, "--target")
    if not used:
        raise no_features(target)
    return drop, categorical


def _without_words(
    features: "pl.DataFrame", categorical: list[str], formats: dict[str, TextFormat], impute: bool
) -> tuple["pl.DataFrame", list[str], dict[str, TextFormat]]:
    """Decide on columns with a few words among numbers, by all rows of the file and not only those trained on.

    Returns the columns with numbers where these are used, the categorical columns, and the formats.
    """
    import polars as pl

    for series in features:
        undecided = series.dtype == pl.String and series.name not in categorical and series.name not in formats
        mixed = detect_mixed_cells(series) if undecided else None
        if mixed is None or (mixed.number_format is not None and not impute):  # the encoder refuses the latter
            continue
        warnings.warn(str(mixed), UserWarning, stacklevel=5)
        if mixed.number_format is None or mixed.numbers is None:
            categorical = [*categorical, series.name]
        else:
            formats = {**formats, series.name: mixed.number_format}
            features = features.with_columns(mixed.numbers)
    return features, categorical, formats


def _with_dates(columns: "pl.DataFrame", formats: dict[str, TextFormat], categorical: list[str]) -> "pl.DataFrame":
    """Texts that spell dates as dates, by the format that fits all rows of the file and not only those trained on."""
    dates = {name: text_format.pattern for name, text_format in formats.items() if isinstance(text_format, DateFormat)}
    names = [name for name in columns.columns if name in dates and name not in categorical]
    return columns.with_columns(parse_dates(columns[name], dates[name], f"column {quoted(name)}") for name in names)
