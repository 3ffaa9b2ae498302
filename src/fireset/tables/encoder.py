"""Encoding of the columns of a table as a matrix: learned on the training table, stored in the model file.

``column_types`` defines what a column becomes. Columns that no type can use are left out, with the reason.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError
from fireset.sparse_rows import is_sparse
from fireset.tables.cells import (
    first_position,
    is_unicode,
    listed,
    nan_as_null,
    quoted,
    require_column,
    row_name,
    shortened,
)
from fireset.tables.column_types.base import FILL_REMEDY, ColumnType, TrainingColumn, UnusableColumn, check_stored
from fireset.tables.column_types.number import NumberColumn
from fireset.tables.column_types.registry import learn_column, restore_column
from fireset.tables.text_formats import TextFormat, learn_formats

if TYPE_CHECKING:
    import polars as pl

_OVERFLOW_MARGIN = 1e3  # column sums are refused within this factor of the largest float64
_MAX_MEDIAN_ROWS = 20_000  # of an array without missing cells
_MAX_LISTED = 5  # columns in a message


@dataclass(frozen=True)
class TableEncoder:
    """Encoding of the columns of a table as the columns of a matrix.

    Attributes
    ----------
    columns : tuple of ColumnType
        In the order of the training table. Use :meth:`learn`, :meth:`learn_numbers` or :meth:`from_dict` to make one.
    left_out : dict of str
        Columns that are not used, with the reason.
    """

    columns: tuple[ColumnType, ...]
    left_out: dict[str, str] = field(default_factory=dict)

    @classmethod
    def learn(cls, features: pl.DataFrame, *, categorical: Sequence[str] = (), impute: bool = True) -> TableEncoder:
        """Decide from the training table what each column becomes.

        Parameters
        ----------
        features : polars.DataFrame
            The training table without its target column.
        categorical : sequence of str
            Columns to one-hot encode even if they hold numbers, and with all of their categories.
        impute : bool
            Accept missing cells in this and in later tables. Missing numbers and dates become the training median; if
            training has missing cells in the column, an indicator feature marks them. Missing texts become the category
            "(missing)" if training has missing cells in the column, else the most frequent category (of several, the
            first in sorted order).
        """
        import polars as pl

        if isinstance(categorical, str):
            raise InputError(f"categorical must be a list of column names, got {quoted(categorical)}")
        for name in categorical:
            require_column(name, features.columns, "categorical")
        if features.width == 0:
            raise InputError("the table has no feature column; give at least one besides the target")
        if features.height == 0:
            raise InputError("the table has no rows to learn from")
        table = nan_as_null(features)
        if not impute:
            refuse_missing_cells(table)
        texts = [series for series in table if series.dtype == pl.String and series.name not in categorical]
        formats, messages = learn_formats(texts)
        columns: list[ColumnType] = []
        left_out: dict[str, str] = {}
        for series in table:
            name = series.name
            try:
                column = TrainingColumn(series, impute, name in categorical, formats.get(name), messages)
                columns.append(learn_column(column))
            except UnusableColumn as reason:
                left_out[name] = str(reason)
        for message in messages:
            warnings.warn(message, UserWarning, stacklevel=2)
        if not columns:
            reasons = "; ".join(f"{quoted(name)} {reason}" for name, reason in list(left_out.items())[:3])
            raise InputError(f"no column of the table can be used: {reasons}; give at least one that can")
        return cls(tuple(columns), left_out)

    @classmethod
    def learn_numbers(cls, X: Any, impute: bool) -> TableEncoder:
        """Learn from an array (rows, columns) with NaN for missing cells. Its columns are named x0, x1, …

        A sparse array has no missing cells. In later tables they become 0.
        """
        _refuse_huge(X)
        if is_sparse(X):
            return cls(tuple(NumberColumn(f"x{j}", 0.0 if impute else None) for j in range(X.shape[1])))
        missing = np.atleast_1d(np.isnan(X).any(axis=0))
        fill = np.median(X[:: -(-len(X) // _MAX_MEDIAN_ROWS)], axis=0)
        for j in np.flatnonzero(missing):
            present = X[~np.isnan(X[:, j]), j]
            fill[j] = np.median(present) if len(present) else 0.0
        return cls(
            tuple(
                NumberColumn(f"x{j}", float(fill[j]) if impute else None, impute and bool(missing[j]))
                for j in range(X.shape[1])
            )
        )

    def with_formats(self, formats: Mapping[str, TextFormat]) -> TableEncoder:
        """Return the encoder for text cells of these formats, by column name.

        For encoders learned from cells that had been parsed already.
        """
        return replace(self, columns=tuple(column.with_format(formats.get(column.name)) for column in self.columns))

    def encode(self, table: pl.DataFrame) -> np.ndarray:
        """Encode a table as a matrix of shape (rows, len(feature_names)), float64, C-contiguous and finite.

        Columns are found by name; additional columns are ignored. Categories and missing cells that did not occur in
        training are reported by a UserWarning.
        """
        matrix, messages = self.encode_with_notes(table)
        for message in messages:
            warnings.warn(message, UserWarning, stacklevel=2)
        return matrix

    def encode_with_notes(self, table: pl.DataFrame) -> tuple[np.ndarray, list[str]]:
        """Encode a table as ``encode``, and return the messages about unexpected cells instead of warning."""
        present = set(table.columns)
        lacking = [column.name for column in self.columns if column.name not in present]
        if lacking:
            counts = f"the model was trained on {len(self.columns)} columns, the table has {table.width}"
            raise InputError(
                f"the table lacks {len(lacking)} of the model's columns: {listed(lacking, _MAX_LISTED)}; {counts}; "
                "name the columns as in the training table"
            )
        table = nan_as_null(table.select(column.name for column in self.columns))
        _refuse_missing(table.select(c.name for c in self.columns if not c.accepts_missing), FILL_REMEDY)
        matrix = np.empty((table.height, len(self.feature_names)))
        start, messages = 0, []
        for column, series, count in zip(self.columns, table.iter_columns(), self.features_per_column, strict=True):
            matrix[:, start : start + count], notes = column.encode(series)
            messages += notes
            start += count
        return matrix, messages + _unexpected_missing(self.columns, table)

    def encode_numbers(self, X: Any) -> Any:
        """Encode an array (rows, columns) whose columns are those of training, all of them numbers.

        Sparse arrays are returned unchanged.
        """
        if is_sparse(X):
            if len(self.feature_names) > X.shape[1]:
                raise InputError("X must be an array, as in training, where cells were missing; got a sparse table")
            return X
        missing = np.isnan(X)
        if not missing.any():
            if X.shape[1] == len(self.feature_names):
                return X
        elif (refused := self._array_layout.refused & missing.any(axis=0)).any():
            column = quoted(self.columns[int(refused.argmax())].name)
            raise InputError(f"X misses cells (NaN) in column {column}; fill them in, or train with missing='impute'")
        layout = self._array_layout
        matrix = np.empty((len(X), len(self.feature_names)))
        matrix[:, layout.numbers] = np.where(missing, layout.fills, X)
        matrix[:, layout.indicators] = missing[:, layout.with_indicator]
        return matrix

    @cached_property
    def feature_names(self) -> list[str]:
        """Names of the columns of the matrix, such as ``age`` or ``color=red``."""
        return [name for column in self.columns for name in column.feature_names]

    @cached_property
    def features_per_column(self) -> np.ndarray:
        """Number of features of each column of the table."""
        return np.array([len(column.feature_names) for column in self.columns])

    @cached_property
    def takes_arrays(self) -> bool:
        """Whether all columns are numbers, so that an array can be encoded."""
        return all(column.number_encoding is not None for column in self.columns)

    @cached_property
    def _array_layout(self) -> _ArrayLayout:
        encodings = [column.number_encoding for column in self.columns]
        numbers = [encoding for encoding in encodings if encoding is not None]
        if len(numbers) < len(self.columns):
            other = self.columns[encodings.index(None)].name
            raise InputError(
                f"the model was trained on a table whose column {quoted(other)} is no number; give a DataFrame with "
                "the names of the training table"
            )
        starts = np.cumsum(self.features_per_column) - self.features_per_column
        with_indicator = np.flatnonzero([encoding.indicator for encoding in numbers])
        return _ArrayLayout(
            numbers=starts,
            with_indicator=with_indicator,
            indicators=starts[with_indicator] + 1,
            fills=np.array([np.nan if encoding.fill is None else encoding.fill for encoding in numbers]),
            refused=np.array([encoding.fill is None for encoding in numbers]),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a form for JSON; :meth:`from_dict` restores it."""
        columns = [column.to_dict() for column in self.columns]
        return {"columns": columns} | ({"left_out": self.left_out} if self.left_out else {})

    @classmethod
    def from_dict(cls, stored: Any) -> TableEncoder:
        """Restore the result of :meth:`to_dict` from an untrusted model file."""
        valid = isinstance(stored, dict) and set(stored) - {"left_out"} == {"columns"}
        check_stored(valid, "the keys must be 'columns' and optionally 'left_out'", stored)
        columns, left_out = stored["columns"], stored.get("left_out", {})
        check_stored(isinstance(columns, list) and len(columns) > 0, "'columns' must be a list, not empty", columns)
        restored = tuple(restore_column(column) for column in columns)
        texts = isinstance(left_out, dict) and all(is_unicode(text) for item in left_out.items() for text in item)
        check_stored(texts, "'left_out' must contain texts", left_out)
        names = [*(column.name for column in restored), *left_out]
        check_stored(len(set(names)) == len(names), "its column names must differ", names)
        return cls(restored, left_out)


@dataclass(frozen=True)
class _ArrayLayout:
    """Positions of the columns of an array in the matrix, and what replaces missing numbers."""

    numbers: np.ndarray  # position of each column in the matrix
    with_indicator: np.ndarray  # columns of the array that have an indicator
    indicators: np.ndarray  # positions of the indicators in the matrix
    fills: np.ndarray
    refused: np.ndarray  # mask of columns that must not have missing numbers


def _refuse_huge(X: Any) -> None:
    """Raise InputError for numbers so large that the sum of a column may overflow."""
    sizes = np.abs(X.data if is_sparse(X) else X)
    largest = float(np.fmax.reduce(sizes, axis=None, initial=0.0))
    limit = float(np.finfo(np.float64).max) / _OVERFLOW_MARGIN / max(1, X.shape[0])
    if largest > limit:
        where = "" if is_sparse(X) else f" in column {int(np.fmax.reduce(sizes, axis=0).argmax())}"
        raise InputError(
            f"numbers of `X` must be at most {limit:.1g} in size, got {largest:g}{where}; "
            "divide the column by a constant."
        )


def refuse_missing_cells(table: pl.DataFrame) -> None:
    """Raise InputError if a training table has missing cells, which are not to be imputed."""
    remedy = "fill them in, remove those rows, or let them be filled: --impute, missing='impute'"
    _refuse_missing(nan_as_null(table), remedy)


def _refuse_missing(table: pl.DataFrame, remedy: str) -> None:
    """Raise InputError for columns with missing cells, all of them in one message."""
    missing = [series for series in table if series.null_count()]
    if not missing:
        return
    first = missing[0]
    count = first.null_count()
    found = f"column {quoted(first.name)} has {count} missing {'value' if count == 1 else 'values'}"
    found += f", first in row {row_name(first_position(first.is_null()))}"
    if len(missing) > 1:
        others = [f"{quoted(series.name)} ({series.null_count()})" for series in missing[1:]]
        found += f"; so have {shortened(others, _MAX_LISTED)}"
    raise InputError(f"{found}; {remedy}")


def _unexpected_missing(columns: Sequence[ColumnType], table: pl.DataFrame) -> list[str]:
    """Return a message about columns with missing cells that had none in training."""
    found = [
        f"{quoted(column.name)} ({series.null_count()}, {column.unexpected_missing})"
        for column, series in zip(columns, table.iter_columns(), strict=True)
        if series.null_count() and column.unexpected_missing
    ]
    return [f"missing cells in columns that had none in training: {shortened(found, _MAX_LISTED)}"] if found else []
