"""The target column of a table: the task, and its labels or values."""

from __future__ import annotations

from dataclasses import dataclass
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
from fireset.tables.text_formats import parse_numbers

if TYPE_CHECKING:
    import polars as pl

MAX_DETECTED_CLASSES = 20
_FEW_CODES = 4
_WIDEST_SPAN = 1000


def split_target(frame: pl.DataFrame, target: str, *, drop_missing: bool = False) -> tuple[pl.DataFrame, pl.Series]:
    """The feature columns and the target column, which must be complete; ``drop_missing`` drops rows without it.

    Numbers that are spelled as text, such as 12,345.67, become numbers.
    """
    require_column(target, frame.columns, "target")
    if frame.width == 1:
        raise no_features(target)
    column = nan_as_null(frame.select(target)).to_series()
    if is_text(column) and (numbers := parse_numbers(column)) is not None:
        column = numbers
    if drop_missing:
        known = column.is_not_null()
        frame, column = frame.filter(known), column.filter(known)
        if column.is_empty():
            raise InputError(f"{_label(column)} has no value in any row; give rows that have one")
    refuse_missing(column, _label(column), "remove those rows, or pass --drop-missing-target")
    return frame.drop(target), column


def no_features(target: str) -> InputError:
    """Return the error for a table that has no other column than the target."""
    return InputError(f"the table has no feature column besides the target {quoted(target)}; add one")


@dataclass(frozen=True)
class TaskChoice:
    """The task that a target column was taken for.

    Attributes
    ----------
    task : "classification" or "regression"
    reason : str
        What decided, in words.
    suggestion : str
        What to pass for another task, or for a better loss; may be empty.
    """

    task: Literal["classification", "regression"]
    reason: str
    suggestion: str = ""

    def __str__(self) -> str:
        return f"{self.task} ({self.reason}{'; ' + self.suggestion if self.suggestion else ''})"


def detect_task(target: pl.Series) -> TaskChoice:
    """The task of a target column, and why.

    Text and booleans are classes; numbers that are not whole are regression. Whole numbers are either codes of classes
    or a quantity, such as an age or a count. They are taken for

    1. a quantity if there are fewer than two rows a level,
    2. a quantity if there are more than 20 levels,
    3. classes if there are at most four levels,
    4. a quantity if the levels are consecutive and do not begin at -1, 0 or 1, where codes begin (ages, years),
    5. classes if the levels are about equally frequent: the most frequent has at most twice the rows of the least
       frequent, or a χ² test does not find a difference of the frequencies at the 1 % level (digits),
    6. a quantity if the frequencies rise to one peak and fall after it, within twice the standard error of the
       difference of two counts (counts, grades), and classes otherwise.

    Text with more than 20 different values in which at least half of the rows spell numbers is refused: it is a numeric
    target with a typing mistake in it.
    """
    import polars as pl

    refuse_type(target, _label(target), "convert it to numbers or text in the file")
    if target.dtype.is_temporal():
        return TaskChoice("regression", "dates")  # which says that dates are no numbers
    named = f"target {quoted(target.name)}"
    distinct = target.n_unique()
    if is_text(target):
        numeric = holds_number(target)
        if distinct > MAX_DETECTED_CLASSES and target.len() > int(numeric.sum()) >= target.len() / 2:
            value, row = first_text(target)
            raise InputError(
                f"{_label(target)} is mostly numbers but holds the text {quoted(value)} in row {row}; "
                "fix that cell, leave it empty and pass --drop-missing-target, or pass --task classification"
            )
        return TaskChoice("classification", f"{named} holds text with {_levels(distinct)}")
    if target.dtype == pl.Boolean:
        return TaskChoice("classification", f"{named} is true or false")
    numbers = target.cast(pl.Float64)
    if not (numbers == numbers.round(0)).all():
        return TaskChoice("regression", f"{named} holds numbers that are not whole")
    return _task_of_whole_numbers(numbers.to_numpy(), named)


def _task_of_whole_numbers(numbers: np.ndarray, named: str) -> TaskChoice:
    levels, counts = np.unique(numbers, return_counts=True)
    held = f"{named} holds whole numbers with {_levels(len(levels))}"
    as_numbers = "pass --task regression to treat them as numbers"
    as_classes = "pass --task classification to treat them as classes"
    if len(levels) > MAX_DETECTED_CLASSES:
        return TaskChoice("regression", held, _suggested_loss(numbers))
    if 2 * len(levels) > len(numbers):
        quantity = "in fewer than two rows a level"
    elif len(levels) <= _FEW_CODES:
        return TaskChoice("classification", held, as_numbers if len(levels) > 2 else "")
    elif levels[0] not in (-1, 0, 1) and np.ptp(levels) == len(levels) - 1:
        quantity = f"in order, from {levels[0]:g} to {levels[-1]:g}"
    elif _is_balanced(counts):
        return TaskChoice("classification", f"{held} that are about equally frequent", as_numbers)
    elif _has_one_peak(levels, counts):
        quantity = "in order, whose frequencies have one peak"
    else:
        return TaskChoice("classification", f"{held} whose frequencies have several peaks", as_numbers)
    suggestions = [as_classes, _suggested_loss(numbers)]
    return TaskChoice("regression", f"{held} {quantity}", "; ".join(filter(None, suggestions)))


def _is_balanced(counts: np.ndarray) -> bool:
    """Return whether counts of values differ by at most a factor of 2, or as little as equal shares would by chance."""
    from scipy.stats import chisquare

    return bool(counts.max() <= 2 * counts.min() or chisquare(counts).pvalue > 0.01)


def _has_one_peak(levels: np.ndarray, counts: np.ndarray) -> bool:
    """Whether frequencies rise to their maximum and fall after it; levels between that no row has count 0."""
    span = np.ptp(levels)
    if span > _WIDEST_SPAN:
        return False
    places = (levels - levels[0]).astype(np.int64)
    filled = np.zeros(int(span) + 1)
    filled[places] = counts
    peak = int(filled.argmax())
    return all(
        # 2 more, since the square root of the smallest counts is too small an error for them.
        bool((side >= (top := np.maximum.accumulate(side)) - 2 * np.sqrt(top + side + 2)).all())
        for side in (filled[: peak + 1], filled[: peak - 1 : -1] if peak else filled[::-1])
    )


def _suggested_loss(numbers: np.ndarray) -> str:
    """Counts begin at 0 or 1 and have a long upper tail."""
    if numbers.min() not in (0, 1) or not numbers.mean() > np.median(numbers):
        return ""
    return "--loss poisson suits counts"


def _levels(count: int) -> str:
    return "1 level" if count == 1 else f"{count:,} levels"


@dataclass(frozen=True)
class ClassLabels:
    """Labels of rows, coded once: ``classes[codes[i]]`` is the label of row i.

    Classifiers accept it in place of an array of labels. It may hold numbers that are not whole, which scikit-learn
    refuses as labels.

    Attributes
    ----------
    codes : ndarray of shape (rows,), int64
    classes : list
        Sorted.
    """

    codes: np.ndarray
    classes: list[Any]

    def __len__(self) -> int:
        return len(self.codes)


def class_labels(target: pl.Series) -> ClassLabels:
    """Code the labels of a target column.

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
    return ClassLabels(np.array([code[value] for value in values], dtype=np.int64), classes)


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
