"""Descriptions of the columns of a table for users, and warnings about columns that look wrong."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset.tables.cells import cli_option, is_number, is_text, listed, nan_as_null, one_line, quoted, shortened
from fireset.tables.encoder import TableEncoder
from fireset.tables.text_formats import parse_numbers

if TYPE_CHECKING:
    import polars as pl

_MIN_ROWS = 20  # in fewer, a column may equal the target or number the rows by chance
_FIRST_ROWS = 1000  # compared before all rows are
_MAX_RELATIVE_ERROR = 1e-9  # of a linear function of a column that counts as a copy of the target
_ROW_NUMBER_NAMES = re.compile(
    r"(^|[\s_.-])(id|uuid|guid|index|row|no|nr)$|^unnamed: 0$|^row[\s_.-]?(names?|num(ber)?|id|index)$|^level_0$",
    re.IGNORECASE,
)
_MAX_LISTED = 6  # columns in a line


def describe_columns(encoder: TableEncoder, table: pl.DataFrame) -> list[dict[str, Any]]:
    """Describe each column of the training table: name, kind, categories, missing cells and what replaced them."""
    known = {column.name: column for column in encoder.columns}
    described = []
    for series in nan_as_null(table):
        if series.name in encoder.left_out:
            described.append({"name": series.name, "kind": "left out", "why": encoder.left_out[series.name]})
        elif series.name in known:
            described.append(known[series.name].describe(series))
    return described


def columns_in_words(described: list[dict[str, Any]]) -> list[str]:
    """Summarize ``describe_columns`` in a few lines, without columns that are left out (see ``warn_of_columns``)."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for one in described:
        if one["kind"] != "left out":
            by_kind.setdefault(one["kind"], []).append(one)
    parts = [_count_kind(kind, found) for kind, found in by_kind.items()]
    lines = [f"columns: {', '.join(parts)}"]
    if filled := [one for one in described if one.get("missing")]:
        lines.append(f"filled in: {shortened([_filled(one) for one in filled], _MAX_LISTED)}")
    if limited := [one for one in described if "levels_in_table" in one]:
        counts = [
            f"{one_line(one['name'])} (the {one['levels'] - 1:,} most frequent of {one['levels_in_table']:,})"
            for one in limited
        ]
        lines.append(f"categories of their own: {shortened(counts, _MAX_LISTED)}; the others are one, (other)")
    return lines


def warn_of_columns(encoder: TableEncoder, table: pl.DataFrame, target: Any) -> None:
    """Warn of columns that are left out, that number the rows, and that are copies of the target."""
    found = [f"column {quoted(name)} is left out: it {reason}" for name, reason in encoder.left_out.items()]
    used = [column.name for column in encoder.columns]
    if table.height >= _MIN_ROWS:
        if numbering := [name for name in used if _is_row_number(table[name])]:
            option = cli_option("--drop", ",".join(numbering))
            numbers = "numbers" if len(numbering) == 1 else "number"
            found.append(f"{listed(numbering, 5)} {numbers} the rows, like an identifier; if so, pass {option}")
        targets = np.asarray(target)
        if targets.shape == (table.height,) and (copies := [name for name in used if _is_copy(table[name], targets)]):
            equal = "equals" if len(copies) == 1 else "equal"
            found.append(
                f"{listed(copies, 5)} {equal} the target in every row, up to names or units; if it is not known before "
                "the target is, drop it"
            )
    for message in found:
        warnings.warn(message, UserWarning, stacklevel=7)  # the caller of fit


def _is_row_number(series: pl.Series) -> bool:
    """Return whether cells are distinct integers, without gaps (in any order) or in a column named like an id."""
    if not series.dtype.is_integer() or series.null_count() or series.n_unique() < series.len():
        return False
    lowest, highest = series.min(), series.max()
    consecutive = highest - lowest == series.len() - 1  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]
    return bool(consecutive or _ROW_NUMBER_NAMES.search(series.name))


def _is_copy(series: pl.Series, target: np.ndarray) -> bool:
    """Return whether column and target are equal up to other names of classes, or a linear function."""
    return all(_are_equivalent(series[:rows], target[:rows]) for rows in (_FIRST_ROWS, len(target)))


def _are_equivalent(series: pl.Series, target: np.ndarray) -> bool:
    if series.null_count() or target.dtype.kind not in "biufUSO":
        return False
    if target.dtype.kind == "f":
        numbers = parse_numbers(series) if is_text(series) else series
        if numbers is None or not is_number(numbers):
            return False
        x, y = numbers.to_numpy().astype(np.float64), target
        if not (x.std() > 0 and y.std() > 0 and np.isfinite(x).all()):
            return False
        standard = (x - x.mean()) / x.std()
        slope = standard @ (y - y.mean()) / len(y)
        return bool(np.abs(y - y.mean() - slope * standard).max() <= _MAX_RELATIVE_ERROR * y.std())
    labels = np.unique(target.astype(str), return_inverse=True)[1]
    codes = series.rank("dense").to_numpy().astype(np.int64) if is_number(series) or is_text(series) else None
    if codes is None or labels.max() == 0 or 2 * labels.max() > len(labels):
        return False
    pairs = len(np.unique(codes * (labels.max() + 1) + labels))
    return pairs == labels.max() + 1 == len(np.unique(codes))


def _count_kind(kind: str, found: list[dict[str, Any]]) -> str:
    """Return the number of columns of a kind; of columns with categories, also the number of these."""
    if "levels" in found[0]:
        return f"{_count(len(found), 'text')} as {sum(one['levels'] for one in found):,} categories"
    return _count(len(found), kind)


def _filled(one: dict[str, Any]) -> str:
    cells, value = "1 cell" if one["missing"] == 1 else f"{one['missing']:,} cells", one["filled_with"]
    if "levels" in one:
        by = f"category {value}"
    else:
        by = "by the median" if isinstance(value, str) else f"by the median {value:.6g}"
    return f"{one_line(one['name'])} ({cells}, {by})"


def _count(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
