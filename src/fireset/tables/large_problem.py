"""A table that does not fit into memory, and its target column.

The target is kept whole. Everything that is learned from the other columns, which are text formats, the encoder, the
column map and the settings, is learned from a random sample of the rows. If the sample has no missing cell of a column
that has some, one such row is added, so that the encoder knows of them. All other cells are treated as in prediction.

The file is read three times: for the sample and the target, for the training rows, and for the rows held out. Several
workers divide the first pass by blocks of rows, and exchange targets, sample and counts of missing cells, so that each
has the sample of one process; in the other passes each reads the blocks with its own rows (``EncodedBlocks.own``).
"""

from __future__ import annotations

import io
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fireset._util.errors import InputError
from fireset.distributed.agreement import all_gather_texts, check_same, raise_on_all_workers
from fireset.distributed.process_group import ProcessGroup, current_group
from fireset.distributed.row_shares import RowShares
from fireset.tables.cells import named_rows, nan_as_null, quoted
from fireset.tables.column_notes import describe_columns, warn_of_columns
from fireset.tables.encoded import EncodedTable
from fireset.tables.encoded_blocks import EncodedBlocks
from fireset.tables.encoder import TableEncoder
from fireset.tables.file_formats import COMPRESSION_SUFFIXES, TEXT_FORMATS
from fireset.tables.problem import FeatureColumns, TableProblem, check_names, check_task_name, target_fields
from fireset.tables.reader import parse_texts
from fireset.tables.row_source import RowSource, check_kind, is_parquet, is_text_file, parquet_shape
from fireset.tables.target import split_target
from fireset.tables.text_formats import BooleanFormat, NumberFormat, TextFormat
from fireset.training.memory import free_bytes, parse_memory

if TYPE_CHECKING:
    import polars as pl

SAMPLE_ROWS = 250_000
_SAMPLE_CELLS = 1 << 25  # fewer rows of tables with many columns, but at least
_MIN_USABLE_ROWS = 1_000  # of the sample, with a target, if there are as many
_MIN_SAMPLE_ROWS = 20_000
_MISSING_ROWS = 20  # noted for each column; all may be held out, with probability 0.2²⁰
_BYTES_PER_CELL = 60.0  # of a Parquet file that is read at once: the peak until training
_BYTES_PER_BYTE = 14.0  # of a text file
_ALWAYS_AT_ONCE = 64e6  # bytes: with less memory than this, blocks would not help either


def needs_blocks(file: Path, memory: int | str | None) -> bool:
    """Return whether a table is read in blocks: a folder, or a file that would not fit into memory at once.

    Raise InputError for a file that would not fit, of a kind that cannot be read in blocks.
    """
    if os.path.isdir(file):
        return True
    if not os.path.isfile(file):  # the reader of whole files has the message
        return False
    free = max(free_bytes(parse_memory(memory)), _ALWAYS_AT_ONCE)
    if file.suffix.lower() in COMPRESSION_SUFFIXES:
        if Path(file.stem).suffix.lower() in TEXT_FORMATS and file.stat().st_size * _BYTES_PER_BYTE > free:
            check_kind(file)
        return False
    if is_text_file(file):
        return file.stat().st_size * _BYTES_PER_BYTE > free
    if not is_parquet(file):
        return False
    try:
        rows, columns = parquet_shape(file)
    except InputError:
        return False
    return rows * columns * _BYTES_PER_CELL > free


def read_problem(file: Path, target: str, *, memory: int | str | None = None, **reading: Any) -> TableProblem:
    """Read a table at once, or in blocks if it is a folder or does not fit into memory.

    Several workers read in blocks whatever they can. ``reading`` are options of ``TableProblem.read``.
    """
    if current_group().size > 1:
        source = _opened_by_workers(file)
    else:
        source = RowSource.open(file) if needs_blocks(file, memory) else None
    if source is None:
        return TableProblem.read(file, target, **reading)
    return LargeTableProblem.read_blocks(source, target, **reading, memory=memory)


def _opened_by_workers(file: Path) -> RowSource | None:
    """Open a file or a folder for several workers; None for a file that cannot be read in blocks, or is damaged."""
    if not os.path.isdir(file) and not (os.path.isfile(file) and (is_parquet(file) or is_text_file(file))):
        return None
    try:
        return RowSource.open(file)
    except InputError:
        if os.path.isdir(file):
            raise
        return None  # text in another encoding than UTF-8, say


class _Scan(NamedTuple):
    """What the first pass over the rows finds."""

    target: pl.Series  # whole, as in the file
    frame: pl.DataFrame  # cells of the sample, and of rows with missing cells
    rows: np.ndarray  # their numbers in the source, ascending
    drawn: np.ndarray  # mask of those that were drawn at random
    missing: dict[str, int]  # number of missing cells of each column that has some


class _PartOfScan(NamedTuple):
    """What one worker finds in its blocks."""

    target: pl.DataFrame
    frame: pl.DataFrame
    rows: np.ndarray
    missing: dict[str, int]
    noted: dict[str, list[int]]  # the first rows with a missing cell of each column


@dataclass(frozen=True)
class LargeTableProblem(TableProblem):
    """A table that is read in blocks. ``features`` and ``dropped`` have the rows ``sample_rows`` of the source only.

    Attributes
    ----------
    source : RowSource
    rows : (n,) array
        Numbers in the source of the rows that have a target, ascending.
    sample_rows : (k,) array
        Numbers in the source of the rows of ``features``, ascending; all have a target.
    drawn : (k,) array
        Whether a row was drawn at random, and not added for its missing cells.
    missing : dict of int
        Number of missing cells of each column that has some.
    memory : int, str or None
        Memory limit, as in ``fireset.train``.
    """

    source: RowSource
    rows: np.ndarray
    sample_rows: np.ndarray
    drawn: np.ndarray
    missing: dict[str, int]
    memory: int | str | None

    @classmethod
    def read_blocks(
        cls,
        source: RowSource,
        target: str,
        *,
        task: str = "auto",
        drop: list[str] | None = None,
        categorical: list[str] | None = None,
        impute: bool = True,
        drop_missing_target: bool = False,
        memory: int | str | None = None,
        sample_rows: int = SAMPLE_ROWS,
    ) -> LargeTableProblem:
        """Read the target and a sample; "auto" finds the task from the target column."""
        import polars as pl

        check_task_name(task)
        drop, categorical = check_names(list(source.columns), target, drop, categorical)
        scan = _scan(source, target, sample_rows)
        with named_rows(lambda position: source.row_name(int(scan.rows[position]))):
            table, formats, doubts = parse_texts(scan.frame, source.decimal_comma, source.all_text)
        for doubt in doubts:
            warnings.warn(doubt, UserWarning, stacklevel=3)
        numbers = f"number of {target}"  # another name than that of the target
        whole = pl.DataFrame([_parsed(scan.target, formats, source), pl.Series(numbers, np.arange(source.n_rows))])
        with named_rows(source.row_name):
            known, targets = split_target(whole, target, drop_missing=drop_missing_target)
        rows = known[numbers].to_numpy()
        with named_rows(lambda position: source.row_name(int(rows[position]))):
            fields = target_fields(targets, task)
        kept = np.isin(scan.rows, rows)
        sampled, drawn = scan.rows[kept], int(scan.drawn.sum())
        usable = int((kept & scan.drawn).sum())
        if usable < min(len(rows), _MIN_USABLE_ROWS, drawn // 10):
            raise InputError(
                f"only {usable:,} of the {drawn:,} rows of the sample have a target, and {len(rows):,} of all rows; "
                "remove the rows without a target from the file"
            )
        with named_rows(lambda position: source.row_name(int(sampled[position]))):
            found = FeatureColumns.of(table.drop(target).filter(kept), formats, drop, categorical, impute)
        return cls(
            *found,
            impute=impute,
            **fields,
            source=source,
            rows=rows,
            sample_rows=sampled,
            drawn=scan.drawn[kept],
            missing=scan.missing,
            memory=memory,
        )

    def split(self, share: float, seed: int, by: str | None = None) -> tuple[np.ndarray, np.ndarray, EncodedBlocks]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Hold out rows as ``TableProblem.split``, both parts in the order of the source; encode nothing yet."""
        kept, held = (np.sort(part) for part in self.hold_out(share, seed, by))
        chosen = self._training_sample(kept)
        rows, features = self.sample_rows[chosen], self.features[chosen]
        with named_rows(lambda position: self.source.row_name(int(rows[position]))):
            encoder = TableEncoder.learn(features, categorical=self.categorical, impute=self.impute)
            encoder = encoder.with_formats(self.formats)
            sample = EncodedTable(encoder, encoder.encode(features), features.columns)
        columns = self.features.columns
        return kept, held, EncodedBlocks(encoder, columns, self.source, self.rows, sample, rows, self.memory)

    def describe_columns(self, encoder: TableEncoder, training_rows: np.ndarray) -> list[dict[str, Any]]:
        """Describe the columns by the sample, with the missing cells of all rows; warn of columns that look wrong."""
        chosen = self._training_sample(training_rows)
        features = self.features[chosen]
        warn_of_columns(encoder, features, self.y[np.searchsorted(self.rows, self.sample_rows[chosen])])
        described = describe_columns(encoder, features)
        return [
            one | {"missing": self.missing[one["name"]]} if "missing" in one and one["name"] in self.missing else one
            for one in described
        ]

    def _training_sample(self, kept: np.ndarray) -> np.ndarray:
        """Return the positions in ``features`` of the training rows to learn from.

        ``kept`` are the positions of all training rows, ascending.
        """
        training = np.isin(self.sample_rows, self.rows[kept])
        chosen = training & self.drawn
        table = nan_as_null(self.features)
        for name in self.missing:
            if name in table.columns:
                null = table[name].is_null().to_numpy()
                if not (null & chosen).any() and (null & training).any():
                    chosen[np.argmax(null & training)] = True
        return np.flatnonzero(chosen)

    def _split_column(self, name: str) -> pl.Series:
        """Return a column of all rows that have a target, by which rows are held out."""
        import polars as pl

        workers, source = current_group(), self.source
        with raise_on_all_workers(workers):
            own = source.blocks_of_worker(workers.rank, workers.size)
            part = _concatenated([block.frame for block in source.blocks(*own, [name])], source, [name])
        whole = pl.concat(_gathered(part, workers), how="vertical_relaxed")
        return _parsed(whole[name], self.formats, source)[self.rows]


def _scan(source: RowSource, target: str, size: int) -> _Scan:
    """Read all rows once: keep the target, a random sample, and rows with missing cells."""
    import polars as pl

    size = min(size, max(_MIN_SAMPLE_ROWS, _SAMPLE_CELLS // len(source.columns)), source.n_rows)
    drawn = np.arange(source.n_rows)
    if size < source.n_rows:
        drawn = np.sort(np.random.default_rng(0).choice(source.n_rows, size, replace=False, shuffle=False))
    workers = current_group()
    check_same(workers, {"number of rows": source.n_rows, "columns": source.columns})
    with raise_on_all_workers(workers):
        own = _scan_part(source, target, drawn, *source.blocks_of_worker(workers.rank, workers.size))
    parts = _exchanged(own, workers)
    missing: dict[str, int] = {}
    noted: dict[str, list[int]] = {}
    for part in parts:
        for name, count in part.missing.items():
            missing[name] = missing.get(name, 0) + count
            noted[name] = [*noted.get(name, []), *part.noted[name]][:_MISSING_ROWS]
    rows = np.concatenate([part.rows for part in parts])
    is_drawn = np.isin(rows, drawn)
    kept = is_drawn | np.isin(rows, [row for some in noted.values() for row in some])
    return _Scan(
        pl.concat([part.target for part in parts], how="vertical_relaxed")[target].rechunk(),
        pl.concat([part.frame for part in parts], how="vertical_relaxed").filter(kept).rechunk(),
        rows[kept],
        is_drawn[kept],
        missing,
    )


def _scan_part(source: RowSource, target: str, drawn: np.ndarray, start: int, stop: int) -> _PartOfScan:
    """Read rows ``start`` … ``stop`` − 1, whole blocks; ``drawn`` are the row numbers of the sample, ascending."""
    missing: dict[str, int] = {}
    noted: dict[str, list[int]] = {}
    targets, frames, rows = [], [], [np.empty(0, np.int64)]
    for block in source.blocks(start, stop) if start < stop else ():
        frame = block.frame
        targets.append(frame.select(target))
        lo, hi = np.searchsorted(drawn, [block.start, block.stop])
        wanted = [drawn[lo:hi] - block.start]
        table = nan_as_null(frame)
        for series in table:
            count = series.null_count()
            if count and series.name != target:
                missing[series.name] = missing.get(series.name, 0) + count
                known = noted.setdefault(series.name, [])
                more = series.is_null().arg_true()[: max(0, _MISSING_ROWS - len(known))].to_numpy().astype(np.int64)
                wanted.append(more)
                known += (more + block.start).tolist()
        own = np.unique(np.concatenate(wanted))
        frames.append(frame[own])
        rows.append(own + block.start)
    return _PartOfScan(
        _concatenated(targets, source, [target]),
        _concatenated(frames, source, list(source.columns)),
        np.concatenate(rows),
        missing,
        noted,
    )


def _concatenated(frames: list[pl.DataFrame], source: RowSource, names: list[str]) -> pl.DataFrame:
    """Concatenate frames with columns ``names`` of the source; there may be none."""
    import polars as pl

    if not frames:
        return pl.DataFrame(schema={name: source.columns[name] for name in names})
    return pl.concat(frames, how="vertical_relaxed")


def _exchanged(own: _PartOfScan, workers: ProcessGroup) -> list[_PartOfScan]:
    """Return what all workers have found, in the order of their blocks."""
    if workers.size == 1:
        return [own]
    counts = RowShares(workers, len(own.rows))
    rows = np.split(counts.gather(own.rows), counts.bounds[1:-1])
    texts = map(json.loads, all_gather_texts(workers, json.dumps([own.missing, own.noted])))
    frames = zip(_gathered(own.target, workers), _gathered(own.frame, workers), strict=True)
    return [_PartOfScan(*both, numbers, *words) for both, numbers, words in zip(frames, rows, texts, strict=True)]


def _gathered(frame: pl.DataFrame, workers: ProcessGroup) -> list[pl.DataFrame]:
    """Return the frames of all workers, on all workers."""
    import polars as pl

    if workers.size == 1:
        return [frame]
    stream = io.BytesIO()
    frame.write_ipc(stream)
    shares = RowShares(workers, stream.tell())
    content = shares.gather(np.frombuffer(stream.getvalue(), np.uint8))
    return [pl.read_ipc(one.tobytes()) for one in np.split(content, shares.bounds[1:-1])]


def _parsed(series: pl.Series, formats: dict[str, TextFormat], source: RowSource) -> pl.Series:
    """Parse a column of text cells in its format, if these are numbers or booleans."""
    import polars as pl

    text_format = formats.get(series.name)
    if series.dtype != pl.String or not isinstance(text_format, NumberFormat | BooleanFormat):
        return series
    with named_rows(source.row_name):
        return text_format.parse(series, f"column {quoted(series.name)}")
