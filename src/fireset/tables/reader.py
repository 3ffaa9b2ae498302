"""Reading of files as tables.

Files are untrusted: nothing is unpickled, and errors of reader libraries become an InputError of one line.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.cells import listed, one_line, quoted
from fireset.tables.csv_files import check_names, read_csv
from fireset.tables.decompression import ArrayHeader, check_archive, read_array_headers, read_bytes
from fireset.tables.file_formats import BINARY_FORMATS, COMPRESSION_SUFFIXES, TEXT_FORMATS, formats_in_words
from fireset.tables.parquet_footer import check_footer
from fireset.tables.text_formats import BooleanFormat, NumberFormat, TextFormat, learn_formats

if TYPE_CHECKING:
    import polars as pl

# Tables are dense: a wrong svmlight index of a billion must not become a billion columns.
MAX_COLUMNS = 100_000
MAX_CELLS = 2**30
_STDERR_LOCK = Lock()


class FormattedTable(NamedTuple):
    """A training table, the formats of its text columns by name, and messages about ambiguous columns."""

    frame: pl.DataFrame
    formats: dict[str, TextFormat]
    ambiguities: list[str]


def read_table(path: str | os.PathLike) -> pl.DataFrame:
    """Read a table in the format that the suffix of the file names.

    - ``.csv``, ``.tsv``, ``.txt``: text with a header, in UTF-8, UTF-16 or Windows-1252. The separator of the cells,
      commas, semicolons, tabs or bars (in ``.txt`` also spaces), is detected from the header. Cells and names are
      stripped of surrounding spaces. Blank lines are skipped, with a warning unless they end the file. Lines whose
      number of cells differs from the header are refused. The cells of all rows determine whether a column is integers,
      floats, booleans or text. ``text_formats.py`` lists the formats of numbers; in files with semicolons, 3,5 is one.
    - ``.xlsx``, ``.xls``: the first sheet, with a header.
    - ``.parquet``, ``.pq``.
    - ``.npz``: a 2-D array ``X``, which becomes the columns x0, x1, …, and 1-D arrays with one entry per row.
    - ``.svm``, ``.svmlight``, ``.libsvm``: index 7 becomes the column x7, and the label ``target``. Indices
      are never shifted, so that two files of one data set agree; if a file counts from 1, x0 is all zero.

    Text formats may be compressed, with ``.gz``, ``.bz2`` or ``.zst`` added to the name, or come from a pipe. A pipe
    without a suffix, such as /dev/stdin, is read as CSV.
    """
    cells = _read(Path(path))
    return parse_texts(*cells[:3]).frame if cells.all_text else cells.frame


def read_with_formats(path: str | os.PathLike) -> FormattedTable:
    """Read a training table, with the formats of its text columns.

    Numbers and booleans in text columns are parsed, in files of all formats. Columns of dates stay text.
    """
    return parse_texts(*_read(Path(path))[:3])


def read_cells(path: str | os.PathLike, columns: Sequence[str] = ()) -> pl.DataFrame:
    """Read a table for a model. Cells of text files stay text, because the model stores their format.

    ``columns`` are those of the training table. In svmlight files, which omit zeros, the last columns may be absent.
    They are then 0, with a warning.
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


def parse_texts(frame: pl.DataFrame, decimal_comma: bool, all_text: bool) -> FormattedTable:
    """Parse text columns of numbers or booleans.

    ``decimal_comma`` is whether commas are decimal in ambiguous columns, ``all_text`` whether the file has no types.
    """
    import polars as pl

    texts = [series for series in frame if series.dtype == pl.String]
    formats, ambiguities = learn_formats(texts, decimal_comma=decimal_comma)
    columns = []
    for series in frame:
        text_format = formats.get(series.name)
        if isinstance(text_format, NumberFormat | BooleanFormat):
            series = text_format.parse(series, f"column {quoted(series.name)}")
        elif all_text and series.null_count() == series.len():
            series = series.cast(pl.Null)
        columns.append(series)
    return FormattedTable(pl.DataFrame(columns), formats, ambiguities)


def _read(file: Path) -> _Table:
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
    with refused_if_damaged(file, kind):
        table = reader(file)
    if table.frame.height == 0:
        raise InputError(f"{shown} has no rows; give a table with at least one row")
    return table


@contextmanager
def refused_if_damaged(file: Path, kind: str) -> Iterator[None]:
    """Raise InputError if a reader of the block fails. ``kind`` is the name of the format."""
    import polars as pl

    try:
        yield
    except InputError:  # is a ValueError, but has a complete message
        raise
    except (
        # OSError: also a bad gzip or bz2 stream. RuntimeError: an encrypted or exotic zip. MemoryError: a
        # header that claims an absurd size. PanicException: polars on a parquet file with altered bytes.
        *(OSError, EOFError, ValueError, OverflowError, RuntimeError, MemoryError),
        *(zlib.error, zipfile.BadZipFile, pl.exceptions.PolarsError, pl.exceptions.PanicException),
    ) as failure:
        reason = one_line(str(failure).partition("\n")[0] or type(failure).__name__)[:200]
        raise InputError(f"{one_line(file)} cannot be read as {kind}, it may be damaged: {reason}") from failure


def _reader(file: Path) -> tuple[str, Callable[[Path], _Table]]:
    """Return the name of the file's format and its reader."""
    suffix = file.suffix.lower()
    if suffix in COMPRESSION_SUFFIXES:
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

    check_footer(file)
    with suppressed_panic_messages():
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
        # Checked here because numpy would take any other file for a pickle.
        if stream.read(4) not in (b"PK\x03\x04", b"PK\x05\x06"):
            raise InputError(f"{shown} is not an NPZ archive; write one with numpy.savez(path, X=X, y=y)")
    _check_arrays(read_array_headers(file), shown)
    with np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    X = arrays.pop("X")
    names = [f"x{j}" for j in range(X.shape[1])]
    check_names([*names, *arrays], shown)
    others = {name: _native(array) for name, array in arrays.items()}
    for name, array in others.items():
        if array.dtype.kind == "U" and array.nbytes and array.view(np.uint32).max() > sys.maxunicode:
            raise InputError(f"{shown}: the array {quoted(name)} holds invalid text; write it with numpy.savez")
    return _Table(pl.DataFrame(dict(zip(names, _native(X).T, strict=True)) | others))


def _check_arrays(headers: dict[str, ArrayHeader], shown: str) -> None:
    """Raise InputError for arrays that are not a table, before their numbers are read."""
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
    """Convert to a dtype of polars: native byte order, and float64 for all floats."""
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # the encoder refuses infinities of a long double
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
    """Raise InputError if a dense table of this shape would be too big."""
    rows, columns = shape
    if columns > MAX_COLUMNS or rows * columns > MAX_CELLS:
        size = f"{rows} rows × {columns} columns"
        limit = f"at most {MAX_COLUMNS} columns and {MAX_CELLS} cells"
        raise InputError(f"{shown} is too big, {size}; {limit} are read")


@contextmanager
def suppressed_panic_messages() -> Iterator[None]:
    """Suppress the lines that Rust writes to standard error when polars panics; the exception is enough.

    Rust writes to the file descriptor, which is therefore redirected to a file. Without a panic, the contents of the
    file are then written to standard error.
    """
    import polars as pl

    with _STDERR_LOCK, tempfile.TemporaryFile() as written:
        try:
            stderr = os.dup(2)
        except OSError:  # standard error is closed
            yield
            return
        os.dup2(written.fileno(), 2)
        panicked = False
        try:
            yield
        except pl.exceptions.PanicException:
            panicked = True
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            if not panicked:
                written.seek(0)
                os.write(2, written.read())
