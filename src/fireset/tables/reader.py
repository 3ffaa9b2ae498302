"""Reading a user's file as a table.

Files are untrusted: nothing is unpickled, and errors of a reader library become an InputError of one line.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.cells import listed, one_line, quoted
from fireset.tables.csv_files import check_names, read_csv
from fireset.tables.file_formats import BINARY_FORMATS, COMPRESSED, TEXT_FORMATS, formats_in_words
from fireset.tables.rust_panics import without_panic_messages
from fireset.tables.spelled import NumberSpelling, Spelling, TruthSpelling, learn_spellings
from fireset.tables.unfolding import ArrayHeader, array_headers, check_archive, read_bytes

if TYPE_CHECKING:
    import polars as pl

# Tables are dense: a wrong svmlight index of a billion must not become a billion columns.
MAX_COLUMNS = 100_000
MAX_CELLS = 2**30


class SpelledTable(NamedTuple):
    """A training table, the spellings of its text cells by column, and what was ambiguous in them."""

    frame: pl.DataFrame
    spellings: dict[str, Spelling]
    doubts: list[str]


def read_table(path: str | os.PathLike) -> pl.DataFrame:
    """Read a table, choosing the format by the suffix of the file.

    - ``.csv``, ``.tsv``, ``.txt``: text with a header, in UTF-8, UTF-16 or Windows-1252. The separator of the cells,
      commas, semicolons, tabs or bars (in ``.txt`` also spaces), is found from the header. Cells and names are stripped
      of surrounding spaces. Blank lines are skipped, with a warning unless they end the file; lines with another number
      of cells than the header are refused. A column is integers, floats, booleans or else text, judged from all rows;
      ``spelled.py`` has the spellings of numbers, and beside semicolons 3,5 is one.
    - ``.xlsx``, ``.xls``: the first sheet, with a header.
    - ``.parquet``, ``.pq``.
    - ``.npz``: a 2-D array ``X``, which becomes the columns x0, x1, …, and 1-D arrays with one entry per row.
    - ``.svm``, ``.svmlight``, ``.libsvm``: index 7 becomes the column x7, and the label ``target``. Indices
      are never shifted, so that two files of one data set agree; if a file counts from 1, x0 is all zero.

    The text formats are also read compressed, with ``.gz``, ``.bz2`` or ``.zst`` added to the name, and from pipes. A
    pipe without a suffix, such as /dev/stdin, is read as CSV.
    """
    cells = _read(Path(path))
    return _typed(cells)[0] if cells.all_text else cells.frame


def read_spelled(path: str | os.PathLike) -> SpelledTable:
    """Read a training table as ``read_table`` does, with the spellings of its text columns, whatever the format.

    Columns that spell dates stay text.
    """
    return SpelledTable(*_typed(_read(Path(path))))


def read_cells(path: str | os.PathLike, columns: Sequence[str] = ()) -> pl.DataFrame:
    """Read a table for a model: cells of text files stay text, since the model knows how they are spelled.

    ``columns`` are those of the training table. In svmlight files, which leave zeros out, the last of them may be
    absent: they are 0, with a warning.
    """
    import polars as pl

    table = _read(Path(path))
    if not table.sparse:
        return table.frame
    width = table.frame.width - 1
    absent = [name for name in columns if name[:1] == "x" and name[1:].isdecimal() and int(name[1:]) >= width]
    if absent:
        warnings.warn(
            f"{one_line(path)} has no entry of {listed(absent, 3)}, the last of the model's columns; they are 0",
            UserWarning,
            stacklevel=2,
        )
    return table.frame.with_columns(pl.lit(0.0).alias(name) for name in absent)


class _Table(NamedTuple):
    frame: pl.DataFrame
    decimal_comma: bool = False
    all_text: bool = False
    sparse: bool = False


def _typed(table: _Table) -> tuple[pl.DataFrame, dict[str, Spelling], list[str]]:
    """Text columns that spell numbers or truth values as such, the spellings of all, and what was ambiguous."""
    import polars as pl

    texts = [series for series in table.frame if series.dtype == pl.String]
    spellings, doubts = learn_spellings(texts, decimal_comma=table.decimal_comma)
    columns = []
    for series in table.frame:
        spelling = spellings.get(series.name)
        if isinstance(spelling, NumberSpelling | TruthSpelling):
            series = spelling.numbers(series, f"column {quoted(series.name)}")
        elif table.all_text and series.null_count() == series.len():
            series = series.cast(pl.Null)
        columns.append(series)
    return pl.DataFrame(columns), spellings, doubts


def _read(file: Path) -> _Table:
    import polars as pl

    shown = one_line(file)
    try:
        if not file.exists():
            raise InputError(f"no such file: {shown}")
        if file.is_dir():
            raise InputError(f"{shown} is a directory; give the file of the table")
        kind, reader = _reader(file)
        if file.is_file() and file.stat().st_size == 0:
            raise InputError(f"{shown} is empty; give a table with at least one row")
    except OSError as failure:
        raise InputError(f"cannot open {shown}: {failure.strerror}") from failure
    try:
        table = reader(file)
    except InputError:  # a ValueError, too, but its message is complete
        raise
    except (
        # OSError: also a bad gzip or bz2 stream. RuntimeError: an encrypted or exotic zip. MemoryError: a
        # header that claims an absurd size. PanicException: polars on a parquet file with altered bytes.
        *(OSError, EOFError, ValueError, OverflowError, RuntimeError, MemoryError),
        *(zlib.error, zipfile.BadZipFile, pl.exceptions.PolarsError, pl.exceptions.PanicException),
    ) as failure:
        reason = one_line(str(failure).partition("\n")[0] or type(failure).__name__)[:200]
        raise InputError(f"{shown} cannot be read as {kind}, it may be damaged: {reason}") from failure
    if table.frame.height == 0:
        raise InputError(f"{shown} has no rows; give a table with at least one row")
    return table


def _reader(file: Path) -> tuple[str, Callable[[Path], _Table]]:
    """The name of the file's format and its reader."""
    suffix = file.suffix.lower()
    if suffix in COMPRESSED:
        inner = Path(file.stem).suffix.lower()
        suffix = inner if inner in TEXT_FORMATS else inner + suffix
    if suffix not in TEXT_FORMATS and not file.is_file():  # a pipe
        if suffix in BINARY_FORMATS:
            raise InputError(f"{one_line(file)} is a pipe, and {suffix} can only be read from a file; give the file")
        suffix = ".csv"
    kind = (TEXT_FORMATS | BINARY_FORMATS).get(suffix)
    if kind is None:
        raise InputError(
            f"{one_line(file)} has the suffix {quoted(suffix)}; the formats that can be read are {formats_in_words()}"
        )
    readers = {"svmlight": _read_svmlight, "Parquet": _read_parquet, "NPZ": _read_npz, "Excel": _read_excel}
    return kind, readers.get(kind, _read_text)


def _read_text(file: Path) -> _Table:
    return _Table(*read_csv(file), all_text=True)


def _read_parquet(file: Path) -> _Table:
    import polars as pl

    with without_panic_messages():
        return _Table(pl.read_parquet(file, glob=False))


def _read_excel(file: Path) -> _Table:
    import polars as pl

    if find_spec("fastexcel") is None:
        raise InputError(
            f"{one_line(file)} needs the package fastexcel; run pip install 'fireset[excel]', or save it as CSV"
        )
    from fastexcel import FastExcelError  # pyright: ignore[reportMissingImports]

    check_archive(file)
    try:
        sheet = pl.read_excel(file, engine="calamine", infer_schema_length=None, raise_if_empty=False)
    except FastExcelError as error:
        raise ValueError(str(error).removeprefix("calamine error: ")) from error
    if sheet.width == 0:
        raise InputError(f"{one_line(file)} is empty; give a table with at least one row")
    names = [name.strip() for name in sheet.columns]
    check_names(names, one_line(file))
    return _Table(sheet.rename(dict(zip(sheet.columns, names, strict=True))))


def _read_npz(file: Path) -> _Table:
    import polars as pl

    shown = one_line(file)
    with open(file, "rb") as stream:
        # Checked here because numpy takes anything that is no zip for a pickle and says so.
        if stream.read(4) not in (b"PK\x03\x04", b"PK\x05\x06"):
            raise InputError(f"{shown} is not an NPZ archive; write one with numpy.savez(path, X=X, y=y)")
    _check_arrays(array_headers(file), shown)
    with np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    X = arrays.pop("X")
    names = [f"x{j}" for j in range(X.shape[1])]
    check_names([*names, *arrays], shown)
    others = {name: _native(array) for name, array in arrays.items()}
    for name, array in others.items():
        if array.dtype.kind == "U" and array.nbytes and array.view(np.uint32).max() > sys.maxunicode:
            raise InputError(f"{shown}: the array {quoted(name)} holds what is no text; write it with numpy.savez")
    return _Table(pl.DataFrame(dict(zip(names, _native(X).T, strict=True)) | others))


def _check_arrays(headers: dict[str, ArrayHeader], shown: str) -> None:
    """Refuse arrays that make no table, before any of their numbers is read."""
    for name, (_, dtype) in headers.items():
        if dtype.hasobject:
            problem = f"the array {quoted(name)} holds Python objects, which are never loaded"
            raise InputError(f"{shown}: {problem}; store numbers or fixed-length text")
    if "X" not in headers:
        others = f"only {listed(list(headers), 10)}" if headers else "and no other array"
        raise InputError(f"{shown} holds no array 'X', {others}; write it with numpy.savez(path, X=X, y=y)")
    shape, dtype = headers["X"]
    if len(shape) != 2 or dtype.kind not in "biuf":
        found = f"shape {shape} and dtype {dtype}"
        raise InputError(f"{shown}: the array 'X' must be 2-D and numeric, (rows, columns), got {found}")
    for name, header in headers.items():
        if name != "X" and (header.shape != shape[:1] or header.dtype.kind not in "biufU"):
            must = f"must hold {shape[0]} numbers or texts, one per row of X"
            found = f"shape {header.shape} and dtype {header.dtype}"
            raise InputError(f"{shown}: the array {quoted(name)} {must}, got {found}")
    _check_size(shape, shown)


def _native(array: np.ndarray) -> np.ndarray:
    """A dtype that polars knows: native byte order, and float64 for every float."""
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # an infinity from a long double is refused by the encoder
            return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="))


def _read_svmlight(file: Path) -> _Table:
    import polars as pl
    from sklearn.datasets import load_svmlight_file

    data = read_bytes(file)
    if b"\n" not in data:
        data = data.replace(b"\r", b"\n")
    # scikit-learn documents zero_based as bool or "auto"; pyright infers str from the default.
    X, y = load_svmlight_file(io.BytesIO(data), zero_based=True)[:2]  # pyright: ignore[reportArgumentType]
    _check_size(X.shape, one_line(file))
    columns = {f"x{j}": column for j, column in enumerate(X.toarray(order="F").T)}
    return _Table(pl.DataFrame(columns | {"target": y}), sparse=True)


def _check_size(shape: tuple[int, ...], shown: str) -> None:
    """Raise an InputError if a dense table of this shape would be too big, before it is made."""
    rows, columns = shape
    if columns > MAX_COLUMNS or rows * columns > MAX_CELLS:
        size = f"{rows} rows × {columns} columns"
        limit = f"at most {MAX_COLUMNS} columns and {MAX_CELLS} cells"
        raise InputError(f"{shown} is too big, {size}; {limit} are read")
