"""Cells of a table: types, checks, and how messages name them."""

from __future__ import annotations

import difflib
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import numpy as np

from fireset._util.errors import InputError

if TYPE_CHECKING:
    import polars as pl

# Norms are computed from squares, and a sum of squares of larger numbers may overflow.
MAX_MAGNITUDE = 1e150
_ROW_NAMES: ContextVar[Callable[[int], str] | None] = ContextVar("names of rows in messages", default=None)


def one_line(value: object) -> str:
    """Convert to text for a message, with line breaks and control characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def quoted(value: object) -> str:
    """Return ``repr`` on one line, cut to 60 characters because a cell of an untrusted file may be very long."""
    try:
        text = one_line(repr(value))
    except (RecursionError, ValueError):  # a deeply nested list, an integer of thousands of digits
        text = f"something of type {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def is_unicode(value: object) -> bool:
    """Return whether the value is text without lone surrogates, which JSON can contain but polars cannot."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def listed(values: Sequence[object], limit: int) -> str:
    """List the first ``limit`` values in quotes, followed by the number of others."""
    return shortened([quoted(value) for value in values[:limit]], limit, len(values))


def shortened(texts: Sequence[str], limit: int, count: int | None = None) -> str:
    """Join the first ``limit`` texts, followed by the number of others. ``count`` is the number of all texts."""
    count = len(texts) if count is None else count
    more = f" and {count - limit} more" if count > limit else ""
    return ", ".join(texts[:limit]) + more


def cli_option(flag: str, column: str) -> str:
    """Return a command-line option for a column, quoted for a shell."""
    return f"{flag} {shlex.quote(one_line(column))}"


def require_column(name: str, columns: Sequence[str], role: str) -> None:
    """Raise InputError for an unknown column name, with the most similar known name."""
    if name in columns:
        return
    nearest = difflib.get_close_matches(str(name), columns, n=1)
    hint = f"did you mean {quoted(nearest[0])}?" if nearest else f"its columns are {listed(columns, 10)}"
    raise InputError(f"{role} {quoted(name)} is not a column of the table; {hint}")


def column_names(given: Sequence[str], columns: Sequence[str], option: str) -> list[str]:
    """Return the columns that an option names, without duplicates.

    Each text is the name of a column, which may contain commas, or several names separated by commas.
    """
    found: dict[str, None] = {}
    for text in given:
        names = [text] if text in columns or "," not in text else [name.strip() for name in text.split(",")]
        for name in names:
            require_column(name, columns, option)
            found[name] = None
    return list(found)


def is_text(series: pl.Series) -> bool:
    """Return whether the cells are text: a String, Categorical or Enum column."""
    import polars as pl

    return series.dtype in (pl.String, pl.Categorical, pl.Enum)


def is_number(series: pl.Series) -> bool:
    """Return whether the cells are numbers or booleans."""
    import polars as pl

    return series.dtype.is_numeric() or series.dtype == pl.Boolean


def nan_as_null(table: pl.DataFrame) -> pl.DataFrame:
    """Replace NaN by null, so that all missing cells are null. All columns at once: one by one is slow."""
    from polars import selectors

    return table.with_columns(selectors.float().fill_nan(None))


@contextmanager
def named_rows(name: Callable[[int], str]) -> Iterator[None]:
    """Within the context, tables have some of the rows of a file; ``name`` returns what messages call a position."""
    token = _ROW_NAMES.set(name)
    try:
        yield
    finally:
        _ROW_NAMES.reset(token)


def row_name(position: int) -> int | str:
    """Return what messages call the row at a position: its number, counted from 1, unless ``named_rows`` applies."""
    name = _ROW_NAMES.get()
    return position + 1 if name is None else name(position)


def first_position(mask: pl.Series) -> int:
    """Return the position of the first row where ``mask`` is true, counted from 0."""
    return int(mask.arg_true()[0])


def holds_number(text: pl.Series) -> pl.Series:
    """Mark the cells of a text column that are a finite number; null where a cell is missing."""
    import polars as pl

    text = text.cast(pl.String)
    numbers = text.str.strip_chars().cast(pl.Float64, strict=False)
    return numbers.is_finite().fill_null(False).set(text.is_null(), None)


def first_text(text: pl.Series) -> tuple[str, int | str]:
    """Return an example of a text cell, for a message, and the name of its row.

    The example is the first cell that is not a number. If all cells are numbers, it is the first that is not missing.
    """
    import polars as pl

    not_numbers = ~holds_number(text)
    position = first_position(not_numbers if not_numbers.any() else text.is_not_null())
    return text.cast(pl.String)[position], row_name(position)


def checked_numbers(series: pl.Series, label: str) -> np.ndarray:
    """Convert cells to float64 with NaN for missing ones. Raises InputError for infinite and too large numbers."""
    import polars as pl

    numbers = series.cast(pl.Float64).to_numpy()
    beyond = np.abs(numbers) > MAX_MAGNITUDE
    if beyond.any():
        position = int(beyond.argmax())
        row, value = row_name(position), float(numbers[position])
        if math.isinf(value):
            raise InputError(f"{label} holds {value} in row {row}; put a finite number there")
        limit = f"magnitudes above {MAX_MAGNITUDE:g} overflow when squared"
        raise InputError(f"{label} holds {value} in row {row}, but {limit}; rescale the column")
    return numbers


def is_supported(series: pl.Series) -> bool:
    """Return whether the cells are numbers, booleans, text, dates, or all missing."""
    import polars as pl

    return is_number(series) or is_text(series) or series.dtype.is_temporal() or series.dtype == pl.Null


def refuse_type(series: pl.Series, label: str, remedy: str) -> None:
    """Raise InputError for a column that is neither numbers, booleans, text, dates nor entirely missing."""
    if not is_supported(series):
        kind = f"the type {quoted(series.dtype)}, which is neither number, text nor date"
        raise InputError(f"{label} has {kind}; {remedy}")


def numeric_durations(series: pl.Series) -> pl.Series:
    """Convert durations and times of day to numbers of days; return other columns unchanged."""
    import polars as pl

    if series.dtype == pl.Duration:
        return series.cast(pl.Duration("us")).to_physical().cast(pl.Float64) / 86_400e6
    if series.dtype == pl.Time:
        return series.to_physical().cast(pl.Float64) / 86_400e9
    return series


def refuse_missing(series: pl.Series, label: str, remedy: str) -> None:
    """Raise InputError for null cells, with their number and the first row."""
    if count := series.null_count():
        values, row = "value" if count == 1 else "values", row_name(first_position(series.is_null()))
        raise InputError(f"{label} has {count} missing {values}, first in row {row}; {remedy}")


def category_text(series: pl.Series) -> pl.Series:
    """Convert cells to category names that do not depend on the type of the column.

    A column that is text in one file may be integers, floats or booleans in the next, because types are inferred from
    the cells of each file. So 7, 7.0, "7" and "07" are one category, and so are True and "true".
    """
    import polars as pl

    bare = pl.col("bare")
    integer, number = bare.cast(pl.Int64, strict=False), bare.cast(pl.Float64, strict=False)
    whole = (number == number.round(0)) & (number.abs() < 2.0**53)
    lowered = bare.str.to_lowercase()
    names = pl.coalesce(
        integer.cast(pl.String),
        pl.when(whole).then(number.cast(pl.Int64, strict=False).cast(pl.String)),
        pl.when(number.is_finite()).then(number.cast(pl.String)),
        pl.when(lowered.is_in(["true", "false"])).then(lowered),
        bare,
    )
    text = series.cast(pl.String).str.strip_chars()
    return text.to_frame("bare").select(names.alias(series.name)).to_series()
