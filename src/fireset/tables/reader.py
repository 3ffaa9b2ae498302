"""Reading a user's file as a table, and its target column as labels or values.

Files are untrusted: nothing is unpickled, and errors of a reader library become an InputError of one line.
"""

from __future__ import annotations

import csv
import io
import os
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.encoder import (
    checked_numbers,
    first_text,
    holds_number,
    is_text,
    listed,
    nan_as_null,
    one_line,
    quoted,
    refuse_missing,
    refuse_type,
    require_column,
)
from fireset.tables.rust_panics import without_panic_messages
from fireset.tables.unfolding import ArrayHeader, array_headers, read_bytes

if TYPE_CHECKING:
    import polars as pl

MISSING_SPELLINGS = ("", "NA", "N/A", "NaN", "nan", "null", "None")
# Tables are dense: a wrong svmlight index of a billion must not become a billion columns.
MAX_COLUMNS = 100_000
MAX_CELLS = 2**30
MAX_DETECTED_CLASSES = 20


def read_table(path: str | os.PathLike) -> pl.DataFrame:
    """Read a table, choosing the format by the suffix of the file.

    - ``.csv``, ``.tsv``: UTF-8 with a header. Cells and names are stripped of surrounding spaces, blank lines
      at the end are dropped, and a column is integers, floats, booleans or else text, judged from all rows.
    - ``.parquet``, ``.pq``.
    - ``.npz``: a 2-D array ``X``, which becomes the columns x0, x1, …, and 1-D arrays with one entry per row.
    - ``.svm``, ``.svmlight``, ``.libsvm``: index 7 becomes the column x7, and the label ``target``. Indices
      are never shifted, so that two files of one data set agree; if a file counts from 1, x0 is all zero.

    The text formats are also read compressed, with ``.gz`` or ``.bz2`` added to the name.
    """
    import polars as pl

    file = Path(path)
    shown = one_line(file)
    try:
        if not file.exists():
            raise InputError(f"no such file: {shown}")
        if file.is_dir():
            raise InputError(f"{shown} is a directory; give the file of the table")
        kind, reader = _reader(file)
        if file.stat().st_size == 0:
            raise InputError(f"{shown} is empty; give a table with at least one row")
    except OSError as failure:
        raise InputError(f"cannot open {shown}: {failure.strerror}") from failure
    try:
        frame = reader(file)
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
    if frame.height == 0:
        raise InputError(f"{shown} has no rows; give a table with at least one row")
    return frame


def split_target(frame: pl.DataFrame, target: str) -> tuple[pl.DataFrame, pl.Series]:
    """The feature columns and the target column, which must be complete."""
    require_column(target, frame.columns, "target")
    if frame.width == 1:
        raise InputError(f"the table has no feature column besides the target {quoted(target)}; add one")
    column = nan_as_null(frame.select(target)).to_series()
    refuse_missing(column, _label(column), "remove those rows")
    return frame.drop(target), column


def detect_task(target: pl.Series) -> Literal["classification", "regression"]:
    """What the target column asks for.

    Text and booleans are classes. So are whole numbers with at most 20 different values, each of them held by
    two rows on average; any other numbers are regression. Text with more than 20 different values in which at
    least half of the rows spell numbers is refused: it is a numeric target with a typing mistake in it.
    """
    import polars as pl

    refuse_type(target, _label(target), "convert it to numbers or text in the file")
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


def _reader(file: Path) -> tuple[str, Callable[[Path], pl.DataFrame]]:
    """The name of the file's format and its reader."""
    text_readers = {
        ".csv": ("CSV", _read_csv),
        ".tsv": ("TSV", _read_csv),
        ".svm": ("svmlight", _read_svmlight),
        ".svmlight": ("svmlight", _read_svmlight),
        ".libsvm": ("svmlight", _read_svmlight),
    }
    binary_readers = {
        ".parquet": ("parquet", _read_parquet),
        ".pq": ("parquet", _read_parquet),
        ".npz": ("NPZ", _read_npz),
    }
    suffix = file.suffix.lower()
    if suffix in (".gz", ".bz2"):
        inner = Path(file.stem).suffix.lower()
        if inner in text_readers:
            return text_readers[inner]
        suffix = inner + suffix
    readers = text_readers | binary_readers
    if suffix in readers:
        return readers[suffix]
    raise InputError(
        f"{one_line(file)} has the suffix {quoted(suffix)}; the suffixes understood are "
        f"{', '.join(text_readers)} (each also with .gz or .bz2), {', '.join(binary_readers)}"
    )


def _read_csv(file: Path) -> pl.DataFrame:
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
    separator = "\t" if ".tsv" in [suffix.lower() for suffix in file.suffixes[-2:]] else ","
    try:
        # Everything as text first, header included: polars would rename duplicate names, keep the spaces that
        # turn a number column into text, and fail on whole numbers of more than 38 digits.
        cells = pl.read_csv(data.strip(b" \r\n"), has_header=False, infer_schema=False, separator=separator, glob=False)
    except pl.exceptions.PolarsError as failure:
        if reason := _csv_problem(text, separator):
            raise InputError(f"{shown}: {reason}") from failure
        raise
    names = [(name or "").strip() for name in cells.row(0)]
    _check_names(names, shown)
    if cells.height == 1:
        raise InputError(f"{shown} has a header but no rows; give a table with at least one row")
    rows = cells[1:]
    return pl.DataFrame([_typed(column.rename(name)) for name, column in zip(names, rows.iter_columns(), strict=True)])


def _csv_problem(text: str, separator: str) -> str | None:
    """The first line that cannot be parsed, which polars does not tell; None if the csv module can parse all."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    line, width = 1, 0
    try:
        for cells in reader:
            width = width or len(cells)
            if len(cells) > width:
                return f"line {line} has {len(cells)} fields but the header has {width}; make them equal"
            line = reader.line_num + 1
    except csv.Error as failure:
        return f"the line or quote that starts in line {line} cannot be parsed ({failure}); check its quotes"
    return None


def _check_names(names: list[str], shown: str) -> None:
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


def _typed(cells: pl.Series) -> pl.Series:
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
    lowered = cells.str.to_lowercase()
    return lowered == "true" if lowered.drop_nulls().is_in(["true", "false"]).all() else cells


def _read_parquet(file: Path) -> pl.DataFrame:
    import polars as pl

    with without_panic_messages():
        return pl.read_parquet(file, glob=False)


def _read_npz(file: Path) -> pl.DataFrame:
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
    _check_names([*names, *arrays], shown)
    others = {name: _native(array) for name, array in arrays.items()}
    for name, array in others.items():
        if array.dtype.kind == "U" and array.nbytes and array.view(np.uint32).max() > sys.maxunicode:
            raise InputError(f"{shown}: the array {quoted(name)} holds what is no text; write it with numpy.savez")
    return pl.DataFrame(dict(zip(names, _native(X).T, strict=True)) | others)


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


def _read_svmlight(file: Path) -> pl.DataFrame:
    import polars as pl
    from sklearn.datasets import load_svmlight_file

    # scikit-learn documents zero_based as bool or "auto"; pyright infers str from the default.
    X, y = load_svmlight_file(io.BytesIO(read_bytes(file)), zero_based=True)[:2]  # pyright: ignore[reportArgumentType]
    _check_size(X.shape, one_line(file))
    columns = {f"x{j}": column for j, column in enumerate(X.toarray(order="F").T)}
    return pl.DataFrame(columns | {"target": y})


def _check_size(shape: tuple[int, ...], shown: str) -> None:
    """Raise an InputError if a dense table of this shape would be too big, before it is made."""
    rows, columns = shape
    if columns > MAX_COLUMNS or rows * columns > MAX_CELLS:
        size = f"{rows} rows × {columns} columns"
        limit = f"at most {MAX_COLUMNS} columns and {MAX_CELLS} cells"
        raise InputError(f"{shown} is too big, {size}; {limit} are read")
