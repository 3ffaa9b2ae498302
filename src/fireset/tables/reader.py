"""Reading a user's file as a table.

Files are untrusted: nothing is unpickled, and errors of a reader library become an InputError of one line.
"""

from __future__ import annotations

import io
import os
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.cells import listed, one_line, quoted
from fireset.tables.csv_files import check_names, read_csv
from fireset.tables.rust_panics import without_panic_messages
from fireset.tables.unfolding import COMPRESSED, ArrayHeader, array_headers, read_bytes

if TYPE_CHECKING:
    import polars as pl

# Tables are dense: a wrong svmlight index of a billion must not become a billion columns.
MAX_COLUMNS = 100_000
MAX_CELLS = 2**30


def read_table(path: str | os.PathLike) -> pl.DataFrame:
    """Read a table, choosing the format by the suffix of the file.

    - ``.csv``, ``.tsv``: UTF-8 with a header; whether cells are parted by commas, semicolons, tabs or bars is seen from
      the header, and beside semicolons 3,5 is a number. Cells and names are stripped of surrounding spaces, blank lines
      at the end are dropped, and a column is integers, floats, booleans or else text, judged from all rows.
    - ``.parquet``, ``.pq``.
    - ``.npz``: a 2-D array ``X``, which becomes the columns x0, x1, …, and 1-D arrays with one entry per row.
    - ``.svm``, ``.svmlight``, ``.libsvm``: index 7 becomes the column x7, and the label ``target``. Indices
      are never shifted, so that two files of one data set agree; if a file counts from 1, x0 is all zero.

    The text formats are also read compressed, with ``.gz``, ``.bz2`` or ``.zst`` added to the name.
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


def _reader(file: Path) -> tuple[str, Callable[[Path], pl.DataFrame]]:
    """The name of the file's format and its reader."""
    text_readers = {
        ".csv": ("CSV", read_csv),
        ".tsv": ("TSV", read_csv),
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
    if suffix in COMPRESSED:
        inner = Path(file.stem).suffix.lower()
        if inner in text_readers:
            return text_readers[inner]
        suffix = inner + suffix
    readers = text_readers | binary_readers
    if suffix in readers:
        return readers[suffix]
    raise InputError(
        f"{one_line(file)} has the suffix {quoted(suffix)}; the suffixes understood are "
        f"{', '.join(text_readers)} (each also with {', '.join(COMPRESSED)}), {', '.join(binary_readers)}"
    )


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
    check_names([*names, *arrays], shown)
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
