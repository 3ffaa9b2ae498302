"""Tables in text files: cells parted by commas, semicolons, tabs or bars."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from fireset._util.errors import InputError
from fireset.tables.cells import one_line, quoted
from fireset.tables.spelled import numbers_in_text
from fireset.tables.unfolding import read_bytes

if TYPE_CHECKING:
    import polars as pl

# "None" is not among them: in a column of texts it is one more text ("no alley"), and ``spelled.py`` knows it as the
# lack of a number in a column of numbers.
MISSING_SPELLINGS = ("", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL")
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


def read_csv(file: Path) -> pl.DataFrame:
    """A text file as a table; ``read_table`` says how."""
    import polars as pl

    shown = one_line(file)
    data = read_bytes(file)
    try:
        text = data.decode("utf-8-sig")
        fault = data.find(b"\0")
    except UnicodeDecodeError as failure:
        text, fault = "", failure.start
    if fault >= 0:
        line = data.count(b"\n", 0, fault) + 1
        raise InputError(f"{shown}: line {line} is not UTF-8 text; save the table as a UTF-8 text file")
    if not text.strip():
        raise InputError(f"{shown} is empty; give a table with at least one row")
    separator = _separator(text, "\t" if ".tsv" in [suffix.lower() for suffix in file.suffixes[-2:]] else ",")
    try:
        # Everything as text first, header included: polars would rename duplicate names, keep the spaces that
        # turn a number column into text, and fail on whole numbers of more than 38 digits.
        cells = pl.read_csv(data.strip(b" \r\n"), has_header=False, infer_schema=False, separator=separator, glob=False)
    except pl.exceptions.PolarsError as failure:
        if reason := _csv_problem(text, separator):
            raise InputError(f"{shown}: {reason}") from failure
        raise
    names = [(name or "").strip() for name in cells.row(0)]
    check_names(names, shown)
    if cells.height == 1:
        raise InputError(f"{shown} has a header but no rows; give a table with at least one row")
    rows = zip(names, cells[1:].iter_columns(), strict=True)
    return pl.DataFrame([_typed(column.rename(name), decimal_comma=separator == ";") for name, column in rows])


def _separator(text: str, usual: str) -> str:
    """What parts the cells: ``usual``, unless another makes more columns of the header, and as many of each line."""
    lines = [line for line, _ in zip(io.StringIO(text), range(20), strict=False) if line.strip()]
    widths = {}
    for separator in SEPARATORS:
        try:
            widths[separator] = [len(cells) for cells in csv.reader(lines, delimiter=separator)]
        except csv.Error:
            continue  # a quote that a line leaves open; whoever reads the file says so
    usual_width = widths.get(usual, [1])[0]
    others = [
        separator
        for separator, found in widths.items()
        if separator != usual and found[0] > usual_width and len(set(found)) == 1
    ]
    return max(others, key=lambda separator: widths[separator][0], default=usual)


def _csv_problem(text: str, separator: str) -> str | None:
    """The first line that cannot be parsed, which polars does not tell; None if the csv module can parse all."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    line, width = 1, 0
    try:
        for cells in reader:
            width = width or len(cells)
            if len(cells) > width:
                parted = f"parted by {SEPARATORS[separator]}"
                return f"line {line} has {len(cells)} fields {parted} but the header has {width}; make them equal"
            line = reader.line_num + 1
    except csv.Error as failure:
        return f"the line or quote that starts in line {line} cannot be parsed ({failure}); check its quotes"
    return None


def check_names(names: list[str], shown: str) -> None:
    """Refuse names that cannot tell the columns apart, and a first line that is data."""
    if "" in names:
        place = f"column {names.index('') + 1} has no name in the header"
        raise InputError(f"{shown}: {place}; name it, or save without the row index (pandas: index=False)")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InputError(f"{shown}: the column name {quoted(name)} appears {count} times; make the names differ")
    # 0, 1, 2, … is how pandas names the columns of a plain matrix.
    if all(map(_spells_number, names)) and names != [str(i) for i in range(len(names))]:
        raise InputError(f"{shown}: the first line holds numbers, not column names; add a header line")


def _spells_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _typed(cells: pl.Series, *, decimal_comma: bool) -> pl.Series:
    """Text cells as integers, floats or booleans if every cell that is not missing can be that."""
    import polars as pl

    cells = cells.str.strip_chars()
    cells = cells.set(cells.is_in(MISSING_SPELLINGS), None)
    if cells.null_count() == cells.len():
        return cells.cast(pl.Null)
    for dtype in (pl.Int64, pl.Float64):
        numbers = cells.cast(dtype, strict=False)
        if numbers.null_count() == cells.null_count():
            return numbers
    if decimal_comma and (numbers := numbers_in_text(cells, decimal_comma=True)) is not None:
        return numbers
    lowered = cells.str.to_lowercase()
    return lowered == "true" if lowered.drop_nulls().is_in(["true", "false"]).all() else cells
