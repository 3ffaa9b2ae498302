"""What is said of the columns of a table: what they became, what was filled in, and which look wrong."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset.tables.cells import cli_option, is_number, is_text, listed, nan_as_null, one_line, quoted
from fireset.tables.column_kinds import CategoryColumn, DateColumn, NumberColumn, OrderedColumn
from fireset.tables.encoder import TableEncoder
from fireset.tables.spelled import PLAIN, TRUTH, NumberSpelling, numbers_in_text

if TYPE_CHECKING:
    import polars as pl

_ENOUGH_ROWS = 20  # in fewer, a column may follow the target or number the rows by chance
_FIRST_ROWS = 1000  # looked at before all are
_NAMES_OF_NUMBERS = re.compile(
    r"(^|[\s_.-])(id|uuid|guid|index|row|no|nr)$|^unnamed: 0$|^row[\s_.-]?(names?|num(ber)?|id|index)$|^level_0$",
    re.IGNORECASE,
)
_SHOWN = 6


def describe_columns(encoder: TableEncoder, table: pl.DataFrame) -> list[dict[str, Any]]:
    """One entry a column of the training table: its name, kind, categories, missing cells, and what filled them."""
    known = {column.name: column for column in encoder.columns}
    described = []
    for series in nan_as_null(table):
        if series.name in encoder.left_out:
            described.append({"name": series.name, "kind": "left out", "why": encoder.left_out[series.name]})
        elif series.name in known:
            described.append(_describe(known[series.name], series))
    return described


def _describe(column: NumberColumn | CategoryColumn | DateColumn | OrderedColumn, series: pl.Series) -> dict[str, Any]:
    import polars as pl

    found: dict[str, Any] = {"name": column.name}
    if isinstance(column, CategoryColumn):
        found |= {"kind": "category", "levels": len(column.categories)}
        if column.other:
            found["levels_in_table"] = series.drop_nulls().n_unique()
    elif isinstance(column, DateColumn):
        found |= {"kind": "date", "phases": list(column.periods)}
        if column.format:
            found["read_as"] = column.format
    elif isinstance(column, OrderedColumn):
        found |= {"kind": "number", "note": f"{len(column.levels)} levels in order"}
    else:
        found["kind"] = "number"
        words = column.spelling.words if isinstance(column.spelling, NumberSpelling) else ()
        if words:
            found["note"] = f"{listed(words, 3)} counted as missing"
        elif column.spelling not in (PLAIN, TRUTH):
            found["read_as"] = str(column.spelling)
        if is_text(series):
            series = pl.Series(column.numbers(series)[:, 0]).fill_nan(None)
    if missing := series.null_count():
        filled_with = column.fill if isinstance(column, CategoryColumn | NumberColumn | OrderedColumn) else "median"
        found |= {"missing": missing, "filled_with": filled_with}
    return found


def columns_in_words(described: list[dict[str, Any]]) -> list[str]:
    """The same in a few lines for people, without what is left out, which ``warn_of_columns`` says."""
    by_kind = {kind: [one for one in described if one["kind"] == kind] for kind in ("number", "category", "date")}
    parts = [_count(len(by_kind["number"]), "number")] if by_kind["number"] else []
    if texts := by_kind["category"]:
        parts.append(f"{_count(len(texts), 'text')} as {sum(one['levels'] for one in texts):,} categories")
    parts += [_count(len(by_kind["date"]), "date")] if by_kind["date"] else []
    lines = [f"columns: {', '.join(parts)}"]
    if filled := [one for one in described if one.get("missing")]:
        lines.append(f"filled in: {_some([_filled(one) for one in filled])}")
    if limited := [one for one in described if "levels_in_table" in one]:
        said = [
            f"{one_line(one['name'])} (the {one['levels'] - 1:,} most frequent of {one['levels_in_table']:,})"
            for one in limited
        ]
        lines.append(f"categories of their own: {_some(said)}; the others are one, (other)")
    return lines


def warn_of_columns(encoder: TableEncoder, table: pl.DataFrame, target: Any) -> None:
    """Warn of columns that are left out, that number the rows, and that are copies of the target."""
    found = [f"column {quoted(name)} is left out: it {reason}" for name, reason in encoder.left_out.items()]
    used = [column.name for column in encoder.columns]
    if table.height >= _ENOUGH_ROWS:
        if numbering := [name for name in used if _numbers_rows(table[name])]:
            option = cli_option("--drop", ",".join(numbering))
            numbers = "numbers" if len(numbering) == 1 else "number"
            found.append(f"{listed(numbering, 5)} {numbers} the rows, like an identifier; if so, pass {option}")
        answers = np.asarray(target)
        if answers.shape == (table.height,) and (copies := [name for name in used if _copies(table[name], answers)]):
            found.append(
                f"{listed(copies, 5)} says the target of every row; if it is not known before the target is, drop it"
            )
    for message in found:
        # The level of whoever called fit.
        warnings.warn(message, UserWarning, stacklevel=7)


def _numbers_rows(series: pl.Series) -> bool:
    """Whether whole numbers that all differ are consecutive, or called an id."""
    if not series.dtype.is_integer() or series.null_count() or series.n_unique() < series.len():
        return False
    lowest, highest = series.min(), series.max()
    consecutive = highest - lowest == series.len() - 1  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]
    return bool(consecutive or _NAMES_OF_NUMBERS.search(series.name))


def _copies(series: pl.Series, target: np.ndarray) -> bool:
    """Whether column and target are the same but for a change of names, or of unit."""
    return all(_same(series[:rows], target[:rows]) for rows in (_FIRST_ROWS, len(target)))


def _same(series: pl.Series, target: np.ndarray) -> bool:
    if series.null_count() or target.dtype.kind not in "biufUSO":
        return False
    if target.dtype.kind == "f":
        numbers = numbers_in_text(series) if is_text(series) else series
        if numbers is None or not is_number(numbers):
            return False
        x, y = numbers.to_numpy().astype(np.float64), target
        if not (x.std() > 0 and y.std() > 0 and np.isfinite(x).all()):
            return False
        standard = (x - x.mean()) / x.std()
        slope = standard @ (y - y.mean()) / len(y)
        return bool(np.abs(y - y.mean() - slope * standard).max() <= 1e-9 * y.std())
    labels = np.unique(target.astype(str), return_inverse=True)[1]
    codes = series.rank("dense").to_numpy().astype(np.int64) if is_number(series) or is_text(series) else None
    if codes is None or labels.max() == 0 or 2 * labels.max() > len(labels):
        return False
    pairs = len(np.unique(codes * (labels.max() + 1) + labels))
    return pairs == labels.max() + 1 == len(np.unique(codes))


def _filled(one: dict[str, Any]) -> str:
    cells = "1 cell" if one["missing"] == 1 else f"{one['missing']:,} cells"
    by = f"category {one['filled_with']}" if one["kind"] == "category" else "by the median"
    by += f" {one['filled_with']:.6g}" if one["kind"] == "number" else ""
    return f"{one_line(one['name'])} ({cells}, {by})"


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def _count(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
