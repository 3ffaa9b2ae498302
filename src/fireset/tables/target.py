"""The target column of a table: what it asks for, and its labels or values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.cells import (
    checked_numbers,
    first_text,
    holds_number,
    is_text,
    nan_as_null,
    quoted,
    refuse_missing,
    refuse_type,
    require_column,
)
from fireset.tables.spelled import numbers_in_text

if TYPE_CHECKING:
    import polars as pl

MAX_DETECTED_CLASSES = 20


def split_target(frame: pl.DataFrame, target: str, *, drop_missing: bool = False) -> tuple[pl.DataFrame, pl.Series]:
    """The feature columns and the target column, which must be complete; ``drop_missing`` drops rows without it.

    Numbers that are spelled as text, such as 12,345.67, become numbers.
    """
    require_column(target, frame.columns, "target")
    if frame.width == 1:
        raise InputError(f"the table has no feature column besides the target {quoted(target)}; add one")
    column = nan_as_null(frame.select(target)).to_series()
    if is_text(column) and (numbers := numbers_in_text(column)) is not None:
        column = numbers
    if drop_missing:
        known = column.is_not_null()
        frame, column = frame.filter(known), column.filter(known)
        if column.is_empty():
            raise InputError(f"{_label(column)} has no value in any row; give rows that have one")
    refuse_missing(column, _label(column), "remove those rows, or pass --drop-missing-target")
    return frame.drop(target), column


def detect_task(target: pl.Series) -> Literal["classification", "regression"]:
    """What the target column asks for.

    Text and booleans are classes. So are whole numbers with at most 20 different values, each of them held by
    two rows on average; any other numbers are regression. Text with more than 20 different values in which at
    least half of the rows spell numbers is refused: it is a numeric target with a typing mistake in it.
    """
    import polars as pl

    refuse_type(target, _label(target), "convert it to numbers or text in the file")
    if target.dtype.is_temporal():
        return "regression"  # which says that dates are no numbers
    distinct = target.n_unique()
    if is_text(target):
        numeric = holds_number(target)
        if distinct > MAX_DETECTED_CLASSES and target.len() > int(numeric.sum()) >= target.len() / 2:
            value, row = first_text(target)
            raise InputError(
                f"{_label(target)} is mostly numbers but holds the text {quoted(value)} in row {row}; "
                "fix that cell, or say that the task is classification"
            )
        return "classification"
    if target.dtype == pl.Boolean:
        return "classification"
    numbers = target.cast(pl.Float64)
    whole = bool((numbers == numbers.round(0)).all())
    few = distinct <= MAX_DETECTED_CLASSES and 2 * distinct <= target.len()
    return "classification" if whole and few else "regression"


def class_labels(target: pl.Series) -> tuple[np.ndarray, list[str | int | bool | float]]:
    """Class codes, int64 of shape (rows,), and the sorted classes that they number.

    Floats that are all whole numbers become integers, so that the classes 1.0 and 2.0 of a file read 1 and 2.
    """
    import polars as pl

    label = _checked_label(target)
    if is_text(target):
        values = target.cast(pl.String).to_list()
    elif target.dtype == pl.Boolean or target.dtype.is_integer():
        values = target.to_list()
    elif target.dtype.is_temporal():
        raise InputError(f"{label} holds dates, which are no classes; store it as text or numbers")
    else:
        values = checked_numbers(target, label).tolist()
        if all(value.is_integer() and abs(value) < 2.0**53 for value in values):
            values = [int(value) for value in values]
    classes: list[Any] = sorted(set(values))
    if len(classes) == 1:
        problem = f"holds the single class {quoted(classes[0])} in all rows"
        raise InputError(f"{label} {problem}; give rows of at least two classes")
    code = {value: number for number, value in enumerate(classes)}
    return np.array([code[value] for value in values], dtype=np.int64), classes


def regression_values(target: pl.Series) -> np.ndarray:
    """The target as float64 of shape (rows,), all finite."""
    label = _checked_label(target)
    if target.dtype.is_temporal():
        raise InputError(f"{label} holds dates; store it as numbers, such as days from a first one")
    if is_text(target):
        value, row = first_text(target)
        raise InputError(f"{label} holds the text {quoted(value)} in row {row}; regression needs a number in every row")
    return np.array(checked_numbers(target, label))  # a copy, because polars hands out a read-only view


def _label(target: pl.Series) -> str:
    return f"target column {quoted(target.name)}"


def _checked_label(target: pl.Series) -> str:
    """The label of a target column that is known to have rows, a usable type and no missing cell."""
    label = _label(target)
    if target.len() == 0:
        raise InputError(f"{label} has no rows; give a table with at least one row")
    refuse_missing(nan_as_null(target.to_frame()).to_series(), label, "remove those rows")
    refuse_type(target, label, "convert it to numbers or text in the file")
    return label
