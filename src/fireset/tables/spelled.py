"""Numbers and dates that a table spells as text: 12,345.67, 3,5, 2024-01-31, 31.01.2024."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

# What people write into a column of numbers where there is none. Beside words, "None" is a word.
NO_NUMBER = ("", "?", "-", "--", ".", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "missing", "unknown")

_PLAIN = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_GROUPED = r"^[+-]?\d{1,3}(,\d{3})+(\.\d*)?$"  # 12,345.67
_DECIMAL_COMMA = r"^[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+$"  # 12345,67 and 12.345,67

# Each is tried on all cells of a column. Where days and months could be taken for each other the first that fits is.
DATE_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M",
    "%Y/%m/%d",
    "%Y/%m/%d %H:%M:%S",
    "%Y/%m/%d %H:%M",
    "%d.%m.%Y",
    "%d.%m.%Y %H:%M:%S",
    "%d.%m.%Y %H:%M",
    "%m/%d/%Y",
    "%m/%d/%Y %H:%M:%S",
    "%m/%d/%Y %H:%M",
    "%d/%m/%Y",
    "%d/%m/%Y %H:%M:%S",
    "%d/%m/%Y %H:%M",
)
_LIKE_A_DATE = r"^(\d{4}[-/]\d{1,2}[-/]\d{1,2}|\d{1,2}[/.]\d{1,2}[/.]\d{4})"


def numbers_in_text(text: pl.Series, *, decimal_comma: bool = False) -> pl.Series | None:
    """The numbers that a text column spells, null where it says that there is none; None if some cell is no number.

    Commas group thousands where all cells allow it, else they are decimal; with ``decimal_comma`` they are decimal
    first. A column without any number has none.
    """
    import polars as pl

    bare = text.cast(pl.String).str.strip_chars()
    bare = bare.set(bare.str.to_lowercase().is_in(NO_NUMBER), None)
    present = bare.drop_nulls()
    if present.is_empty():
        return None
    plain = present.str.contains(_PLAIN)
    grouped = (_GROUPED, lambda cells: cells.str.replace_all(",", "", literal=True))
    decimal = (
        _DECIMAL_COMMA,
        lambda cells: cells.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True),
    )
    ways = [decimal, grouped] if decimal_comma else [grouped, decimal]
    for pattern, rewritten in ways:
        written = bare.str.contains(pattern)
        if not (plain | written.drop_nulls()).all():
            continue
        cells = rewritten(bare).zip_with(written.fill_null(False), bare)
        numbers = cells.cast(pl.Float64, strict=False)
        return numbers if numbers.null_count() == bare.null_count() and numbers.is_finite().all() else None
    return None


def dates_in_text(text: pl.Series, first: str | None = None) -> tuple[pl.Series, str] | None:
    """The times that a text column spells, in UTC, and their format; None if some cell is no date.

    The format ``first`` is tried before the others.
    """
    import polars as pl

    bare = text.cast(pl.String).str.strip_chars()
    present = bare.drop_nulls()
    if present.is_empty() or not present.str.contains(_LIKE_A_DATE).all():
        return None
    for tried in (*([first] if first else ()), *DATE_FORMATS):
        try:
            times = bare.str.to_datetime(tried, strict=False, time_unit="us")
        except pl.exceptions.PolarsError:  # a format with offsets on cells without any
            continue
        if times.null_count() == bare.null_count():
            return as_times(times), tried
    return None


def as_times(series: pl.Series) -> pl.Series:
    """Dates and times with or without a zone as times in UTC that have none."""
    import polars as pl

    if series.dtype == pl.Date:
        return series.cast(pl.Datetime("us"))
    if getattr(series.dtype, "time_zone", None) is not None:
        series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return series.cast(pl.Datetime("us"))
