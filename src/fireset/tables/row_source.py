"""Tables that do not fit into memory: the rows of Parquet and CSV files, read in blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.cells import listed, one_line, quoted
from fireset.tables.csv_blocks import BLOCK_BYTES, CsvBlocks
from fireset.tables.file_formats import COMPRESSION_SUFFIXES
from fireset.tables.parquet_footer import check_footer
from fireset.tables.reader import MAX_COLUMNS, refused_if_damaged, suppressed_panic_messages

if TYPE_CHECKING:
    import polars as pl

BLOCK_CELLS = 1 << 21  # 16 MB of float64; does not depend on the memory, so that a resumed run has the same blocks
_MIN_BLOCK_ROWS = 1024
_PARQUET, _TEXT = (".parquet", ".pq"), (".csv", ".tsv")


@dataclass(frozen=True)
class RowBlock:
    """Consecutive rows of one file.

    Attributes
    ----------
    start : int
        Number of the first row among the rows of the source, counted from 0.
    frame : polars.DataFrame
        The cells, of text files as text with null where one is missing.
    """

    start: int
    frame: pl.DataFrame

    @property
    def stop(self) -> int:
        return self.start + self.frame.height


class RowSource:
    """The rows of a Parquet or CSV file, or of all such files of a folder in the order of their names.

    Nothing is kept in memory but the places of the blocks in text files. Blocks are the same for every reader and for
    any memory. Rows are counted from 0 over all files.

    >>> source = RowSource.open(Path("tables"))
    >>> source.n_rows, list(source.columns)
    >>> for block in source.blocks(1_000_000, 2_000_000, ["age", "price"]):
    ...     block.start, block.frame

    Attributes
    ----------
    n_rows : int
    columns : dict of str
        The polars type of each column by its name, in the order of the first file; text of all columns of text files.
    all_text : bool
        Whether the files have no types, so that cells are text.
    decimal_comma : bool
        Whether commas in ambiguous columns of numbers are decimal.
    """

    def __init__(self, parts: Sequence[_Part]):
        self._parts = parts
        self.columns: dict[str, pl.DataType] = _common_columns(parts)
        self.all_text = isinstance(parts[0], _TextPart)
        self.decimal_comma = parts[0].decimal_comma
        self._firsts = np.cumsum([0, *(part.n_rows for part in parts)]).tolist()
        self.n_rows: int = self._firsts[-1]
        self._states = [_state(part.file) for part in parts]

    @classmethod
    def open(cls, path: Path, *, block_cells: int = BLOCK_CELLS, block_bytes: int = BLOCK_BYTES) -> RowSource:
        """Open a file or a folder. Of Parquet files only the footers are read; text files are read once.

        ``block_cells`` is the number of cells of a block of a Parquet file, ``block_bytes`` the size of one of a text
        file.
        """
        files = _files(path)
        with_bytes = [file for file in files if file.stat().st_size]  # parts without rows are left out
        opened = [_open_part(file, block_cells, block_bytes) for file in with_bytes or files]
        parts = [part for part in opened if part.n_rows]
        if not parts:
            raise InputError(f"{one_line(path)} has no rows; give a table with at least one row")
        if len({isinstance(part, _TextPart) for part in parts}) > 1:
            raise InputError(f"{one_line(path)} holds text files and Parquet files; give a folder of one kind")
        return cls(parts)

    def blocks(
        self, start: int = 0, stop: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[RowBlock]:
        """Yield the rows from ``start`` to ``stop`` in blocks, each of rows of one file.

        ``columns`` are the names of the columns to read, by default all.
        """
        self._check_unchanged()
        stop = self.n_rows if stop is None else min(stop, self.n_rows)
        names = list(self.columns if columns is None else columns)
        for first, part in zip(self._firsts, self._parts, strict=False):
            for begin, end in part.ranges:
                lo, hi = max(start, first + begin), min(stop, first + end)
                if lo < hi:
                    with refused_if_damaged(part.file, part.kind):
                        frame = part.read(begin, lo - first, hi - first, names)
                    yield RowBlock(lo, frame)

    @cached_property
    def _block_starts(self) -> np.ndarray:
        """First row of each block, and the number of rows."""
        starts = [first + lo for first, part in zip(self._firsts, self._parts, strict=False) for lo, _ in part.ranges]
        return np.array([*starts, self.n_rows])

    def enclosing_blocks(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of rows of the blocks that contain rows ``start`` … ``stop`` − 1."""
        starts = self._block_starts
        return int(starts[np.searchsorted(starts, start, "right") - 1]), int(starts[np.searchsorted(starts, stop)])

    def blocks_of_worker(self, rank: int, size: int) -> tuple[int, int]:
        """Return the range of rows of the blocks that begin in part ``rank`` of ``size`` equal parts of the rows."""
        edges = [self.n_rows * part // size for part in (rank, rank + 1)]
        first, stop = self._block_starts[np.searchsorted(self._block_starts, edges)]
        return int(first), int(stop)

    def row_name(self, row: int) -> str:
        """Return what messages call a row: its number in its file, counted from 1, and the file."""
        part = bisect_right(self._firsts, row) - 1
        return f"{row - self._firsts[part] + 1} of {one_line(self._parts[part].file.name)}"

    def _check_unchanged(self) -> None:
        for part, state in zip(self._parts, self._states, strict=True):
            if _state(part.file) != state:
                raise InputError(f"{one_line(part.file)} changed while it was read; run the command again")


def is_parquet(file: Path) -> bool:
    return file.suffix.lower() in _PARQUET


def is_text_file(file: Path) -> bool:
    """Return whether a file is text that can be read in blocks."""
    return file.suffix.lower() in _TEXT


def parquet_shape(file: Path) -> tuple[int, int]:
    """Return the numbers of rows and columns of a Parquet file."""
    with refused_if_damaged(file, _ParquetPart.kind):
        part = _ParquetPart(file, BLOCK_CELLS)
    return part.n_rows, len(part.columns)


def check_kind(path: Path) -> None:
    """Raise InputError for a file that cannot be read in blocks."""
    suffix, shown = path.suffix.lower(), one_line(path)
    if suffix in COMPRESSION_SUFFIXES:
        raise InputError(f"{shown} is compressed, and cannot be read in blocks; decompress it, or use Parquet")
    if suffix not in _PARQUET + _TEXT:
        raise InputError(
            f"{shown} is not of a kind that can be read in blocks, {', '.join(_PARQUET + _TEXT)}; convert it"
        )


class _Part(ABC):
    """One file."""

    kind: str
    file: Path
    n_rows: int
    columns: dict[str, pl.DataType]
    decimal_comma = False
    ranges: list[tuple[int, int]]  # rows of each block

    @abstractmethod
    def read(self, begin: int, start: int, stop: int, columns: list[str]) -> pl.DataFrame:
        """Return rows of the block that begins with row ``begin``."""


class _ParquetPart(_Part):
    kind = "Parquet"

    def __init__(self, file: Path, block_cells: int):
        import polars as pl

        self.file = file
        check_footer(file)
        with suppressed_panic_messages():
            rows = pl.scan_parquet(file, glob=False)
            self.columns = dict(rows.collect_schema())
            self.n_rows = int(rows.select(pl.len()).collect().item())
        size = max(_MIN_BLOCK_ROWS, block_cells // max(len(self.columns), 1))
        self.ranges = [(lo, min(lo + size, self.n_rows)) for lo in range(0, self.n_rows, size)]

    def read(self, begin: int, start: int, stop: int, columns: list[str]) -> pl.DataFrame:  # noqa: ARG002
        import polars as pl

        with suppressed_panic_messages():
            return pl.scan_parquet(self.file, glob=False).slice(start, stop - start).select(columns).collect()


class _TextPart(_Part):
    kind = "CSV"

    def __init__(self, file: Path, block_bytes: int):
        import polars as pl

        self.file = file
        self._blocks = CsvBlocks(file, block_bytes)
        self.n_rows = self._blocks.n_rows
        self.columns = dict.fromkeys(self._blocks.read(0).columns if self.n_rows else (), pl.String())
        self.decimal_comma = self._blocks.separator == ";"
        ends = np.cumsum([0, *(block.rows for block in self._blocks.blocks)]).tolist()
        self.ranges = list(pairwise(ends))

    @cached_property
    def _numbers(self) -> dict[int, int]:
        """Number of each block that has rows, by its first row."""
        return {begin: number for number, (begin, end) in enumerate(self.ranges) if begin < end}

    def read(self, begin: int, start: int, stop: int, columns: list[str]) -> pl.DataFrame:
        return self._blocks.read(self._numbers[begin]).select(columns).slice(start - begin, stop - start)


def _open_part(file: Path, block_cells: int, block_bytes: int) -> _Part:
    check_kind(file)
    kind = _ParquetPart.kind if is_parquet(file) else _TextPart.kind
    if file.stat().st_size == 0:
        raise InputError(f"{one_line(file)} is empty; give a table with at least one row")
    with refused_if_damaged(file, kind):
        part = _ParquetPart(file, block_cells) if kind == _ParquetPart.kind else _TextPart(file, block_bytes)
    if len(part.columns) > MAX_COLUMNS:
        raise InputError(f"{one_line(file)} is too big, {len(part.columns)} columns; at most {MAX_COLUMNS} are read")
    return part


def _files(path: Path) -> list[Path]:
    """Return the file, or the files of a folder; those whose names begin with a dot or an underscore are left out."""
    try:
        if not path.exists():
            raise InputError(f"no such file: {one_line(path)}")
        if not path.is_dir():
            return [path]
        found = sorted(file for file in path.iterdir() if not file.name.startswith((".", "_")))
        folders = [file.name for file in found if file.is_dir()]
    except OSError as failure:
        raise InputError(f"cannot open {one_line(path)}: {failure.strerror}") from failure
    if folders:
        raise InputError(
            f"{one_line(path)} holds the folders {listed(folders, 3)}; give a folder that holds the files only"
        )
    if not found:
        raise InputError(f"{one_line(path)} holds no files; give a folder of Parquet or CSV files")
    return found


def _common_columns(parts: Sequence[_Part]) -> dict[str, pl.DataType]:
    """Return the type of each column in the first file that has cells in it.

    Raise InputError unless all files have columns of the same names, of types that fit together. A column without a
    cell, which pandas writes without a type, fits any.
    """
    import polars as pl

    first = parts[0]
    typed = dict.fromkeys(first.columns, first)  # the file that determines the type of a column
    for other in parts[1:]:
        lacking = [name for name in first.columns if name not in other.columns]
        more = [name for name in other.columns if name not in first.columns]
        if lacking or more:
            what = (
                f"lacks the column {quoted(lacking[0])} of" if lacking else f"has the column {quoted(more[0])}, unlike"
            )
            raise InputError(f"{one_line(other.file)} {what} {one_line(first.file)}; give files with equal columns")
        for name, part in typed.items():
            dtype, own = part.columns[name], other.columns[name]
            if dtype == pl.Null:
                typed[name] = other
            elif own not in (dtype, pl.Null) and not (own.is_numeric() and dtype.is_numeric()):
                raise InputError(
                    f"column {quoted(name)} has the type {own} in {one_line(other.file)} and {dtype} in "
                    f"{one_line(part.file)}; give files with equal types"
                )
    return {name: part.columns[name] for name, part in typed.items()}


def _state(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError as failure:
        raise InputError(f"cannot open {one_line(file)}: {failure.strerror}") from failure
    return found.st_size, found.st_mtime_ns
