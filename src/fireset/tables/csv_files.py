"""Reading of text files whose cells are separated by commas, semicolons, tabs or bars."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fireset._util.errors import InputError
from fireset.tables.cells import one_line, quoted
from fireset.tables.decompression import read_bytes

if TYPE_CHECKING:
    import polars as pl

# "None" is not among them: in a text column it is a category ("no alley"). In a number column it is missing
# (``text_formats.py``).
MISSING_CELLS = ("", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL")
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
BYTE_ORDER_MARKS = {  # long ones first: the mark of UTF-32 begins with that of UTF-16
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")


class TextCells(NamedTuple):
    """Cells of a text file, null where one is missing."""

    frame: pl.DataFrame
    decimal_comma: bool  # whether commas are decimal in ambiguous columns


def read_csv(file: Path) -> TextCells:
    """Read the cells of a text file, without surrounding spaces. ``read_table`` documents the format."""
    shown = one_line(file)
    text = decode_text(read_bytes(file), shown)
    if not text.strip():
        raise InputError(f"{shown} is empty; give a table with at least one row")
    suffixes = [suffix.lower() for suffix in file.suffixes[-2:]]
    if ".txt" in suffixes:
        text = _spaces_as_tabs(text)
    separator = detect_separator(text, "\t" if ".tsv" in suffixes else ",")
    cells = parse_cells(text, separator, shown)
    if cells.height == 0:
        raise InputError(f"{shown} has a header but no rows; give a table with at least one row")
    return TextCells(cells, separator == ";")


def parse_cells(text: str, separator: str, shown: str, *, lines_before: int = 0, warns: bool = True) -> pl.DataFrame:
    """Parse the cells of a text that begins with the header. Blank lines are skipped, if ``warns`` with a warning.

    ``lines_before`` is added to the numbers of lines in messages, for a text that is a part of a file.
    """
    import polars as pl

    try:
        # Everything as text, including the header: polars would rename duplicate names, and keep spaces, which
        # make a number column text.
        data = text.strip(" \r\n").encode()
        cells = pl.read_csv(data, has_header=False, infer_schema=False, separator=separator, glob=False)
    except pl.exceptions.PolarsError as failure:
        # Raise an error with the line number, which polars does not give.
        _blank_rows(text, separator, shown, lines_before, warns=warns)
        _refuse_odd_lines(text, separator, shown, lines_before)
        raise InputError(f"{shown} cannot be read as a table: {one_line(failure)[:200]}") from failure
    names = [(name or "").strip() for name in cells.row(0)]
    check_names(names, shown)
    # polars pads short and blank lines with nulls, so that the last column has one.
    if cells.width > 1 and cells[:, -1].null_count():
        blank = _blank_rows(text, separator, shown, lines_before, warns=warns)
        cells = cells.with_row_index("").filter(~pl.col("").is_in(blank)).drop("") if blank else cells
    cells.columns = names
    bare = pl.all().str.strip_chars()
    return cells[1:].select(pl.when(~bare.is_in(MISSING_CELLS)).then(bare))


def decode_text(data: bytes, shown: str) -> str:
    """Decode a file in UTF-8, UTF-16, UTF-32 or Windows-1252, with a warning if the encoding is guessed.

    A file without a byte order mark is UTF-8 if it is valid UTF-8. If not, it is UTF-16 if every second byte is zero,
    and else Windows-1252, which contains Latin-1. Lines may end with a carriage return only.
    """
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            return _decode(data, encoding, shown)
    try:
        text, assumed = data.decode("utf-8"), None
    except UnicodeDecodeError as failure:
        text, assumed = "", "windows-1252"
        # Invalid bytes beside valid non-ASCII characters: a damaged UTF-8 file.
        known = data.decode("utf-8", errors="ignore")
        if not known.isascii():
            raise _not_text(data, failure.start, shown, "UTF-8 text") from failure
    if (zero := data.find(b"\0")) >= 0:
        even, odd = data[::2].count(b"\0"), data[1::2].count(b"\0")
        if 3 * max(even, odd) < len(data) / 2 or 10 * min(even, odd) > max(even, odd):
            raise _not_text(data, zero, shown, "UTF-8 text")
        assumed = "utf-16-le" if odd > even else "utf-16-be"
    if assumed is not None:
        text = _decode(data, assumed, shown)
        if control := _CONTROL_CHARACTERS.search(text):
            raise _not_text(data, len(text[: control.start()].encode(assumed)), shown, "UTF-8 text")
        named = {"utf-16-le": "UTF-16", "utf-16-be": "UTF-16", "windows-1252": "Windows-1252"}[assumed]
        warnings.warn(f"{shown} is not UTF-8; it is read as {named}", UserWarning, stacklevel=2)
    return _with_line_feeds(text)


def _decode(data: bytes, encoding: str, shown: str) -> str:
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as failure:
        raise _not_text(data, failure.start, shown, f"{encoding.removesuffix('-sig').upper()} text") from failure
    if "\0" in text:
        raise _not_text(data, data.find(b"\0"), shown, "text")
    return _with_line_feeds(text.removeprefix("\ufeff"))


def _with_line_feeds(text: str) -> str:
    return text if "\n" in text else text.replace("\r", "\n")


def _not_text(data: bytes, place: int, shown: str, kind: str) -> InputError:
    line = data.count(b"\n", 0, place) + 1
    return InputError(f"{shown}: line {line} is not {kind}; save the table as a UTF-8 text file")


def detect_separator(text: str, usual: str) -> str:
    """Detect the separator: ``usual``, unless another gives more columns in the header, and as many in all lines."""
    lines = [line for line, _ in zip(io.StringIO(text), range(20), strict=False) if line.strip()]
    widths = {}
    for separator in SEPARATORS:
        try:
            widths[separator] = [len(cells) for cells in csv.reader(lines, delimiter=separator)]
        except csv.Error:
            continue  # an open quote, which is refused later
    usual_width = widths.get(usual, [1])[0]
    others = [
        separator
        for separator, found in widths.items()
        if separator != usual and found[0] > usual_width and len(set(found)) == 1
    ]
    return max(others, key=lambda separator: widths[separator][0], default=usual)


def _spaces_as_tabs(text: str) -> str:
    """Replace spaces by tabs if columns are separated by spaces only; return other text unchanged."""
    lines = [line for line in text.splitlines() if line.strip()]
    if any(mark in text for mark in (*SEPARATORS, '"')) or len({len(line.split()) for line in lines}) != 1:
        return text
    return "\n".join("\t".join(line.split()) for line in text.splitlines())


def _blank_rows(text: str, separator: str, shown: str, lines_before: int, *, warns: bool) -> list[int]:
    """Return the row numbers of blank lines, if ``warns`` with a warning; the header is row 0.

    Raises InputError for the first line whose number of fields differs from the header, or whose quote does not end.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    line, width, row, blank, blank_line = 1, 0, 0, [], 0
    last = len(text.rstrip().splitlines())
    try:
        for cells in reader:
            if len(cells) <= 1 and not "".join(cells).strip():
                if width and line <= last:
                    blank.append(row)
                    blank_line = blank_line or line
                    row += 1
            else:
                width = width or len(cells)
                if len(cells) != width:
                    fields = "1 field" if len(cells) == 1 else f"{len(cells)} fields"
                    found = f"line {line + lines_before} has {fields} separated by {SEPARATORS[separator]}"
                    raise InputError(f"{shown}: {found} but the header has {width}; make them equal")
                row += 1
            line = reader.line_num + 1
    except csv.Error as failure:
        problem = f"the line or quote that starts in line {line + lines_before} cannot be parsed ({failure})"
        raise InputError(f"{shown}: {problem}; check its quotes") from failure
    if blank and warns:
        lines = "1 blank line is" if len(blank) == 1 else f"{len(blank)} blank lines are"
        warnings.warn(f"{shown}: {lines} skipped, first line {blank_line + lines_before}", UserWarning, stacklevel=5)
    return blank


def _refuse_odd_lines(text: str, separator: str, shown: str, lines_before: int) -> None:
    """Raise InputError for the first line with a carriage return within, or with a quote in a cell without quotes."""
    mark = re.escape(separator)
    quoted_cell = re.compile(rf'(^|{mark})"(?:[^"]|"")*"(?={mark}|$)')
    lines = text.split("\n")
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=separator)
    first = 1
    try:
        for _ in reader:
            row = "\n".join(lines[first - 1 : reader.line_num]).removesuffix("\r")
            if '"' in quoted_cell.sub(r"\1", row):
                problem = "has a quote in a cell without quotes; enclose the cell in quotes and double the one within"
                raise InputError(f"{shown}: line {first + lines_before} {problem}")
            first = reader.line_num + 1
    except csv.Error as failure:
        problem = "has a carriage return within; end all lines alike"
        raise InputError(f"{shown}: line {first + lines_before} {problem}") from failure


def check_names(names: list[str], shown: str) -> None:
    """Raise InputError for empty and duplicate names, and for a first line of data."""
    if "" in names:
        place = f"column {names.index('') + 1} has no name in the header"
        raise InputError(f"{shown}: {place}; name it, or save without the row index (pandas: index=False)")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InputError(f"{shown}: the column name {quoted(name)} appears {count} times; make the names differ")
    # pandas names the columns of a matrix 0, 1, 2, …
    if all(map(_is_number, names)) and names != [str(i) for i in range(len(names))]:
        raise InputError(f"{shown}: the first line holds numbers, not column names; add a header line")


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
