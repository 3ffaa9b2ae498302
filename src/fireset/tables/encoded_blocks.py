"""Rows of a table that does not fit into memory, encoded and mapped to the sphere a block at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fireset._util.mapped_file import mapped_empty, release_pages
from fireset._util.parallel import one_blas_thread
from fireset.tables.cells import named_rows
from fireset.tables.encoded import EncodedTable
from fireset.tables.encoder import TableEncoder
from fireset.tables.row_source import RowSource
from fireset.tables.sphere import SphereMap
from fireset.training.memory import free_bytes, parse_memory

_SHARE_OF_MEMORY = 0.25  # of the free memory, beyond which mapped rows are in a temporary file
_MAX_WARNINGS = 3


@dataclass(frozen=True)
class EncodedBlocks:
    """Rows of a large table, which estimators accept in place of a DataFrame.

    The encoder, and all that an estimator learns before training, is learned from a sample of the training rows.

    Attributes
    ----------
    encoder : TableEncoder
    columns : list of str
        All feature columns of the training table, unused ones included.
    source : RowSource
    rows : (n,) array
        Numbers of the rows in the source, ascending.
    sample : EncodedTable
        The encoded rows of the sample.
    sample_rows : (k,) array
        Their numbers in the source, ascending.
    memory : int, str or None
        Memory limit, as in ``fireset.train``.
    own : array, optional
        Positions of the rows to encode, ascending; by default all. Other rows of their blocks are read and mapped, too,
        and discarded, so that the bits of a row do not depend on which are encoded: those of a matrix product may
        depend on the number of rows.
    """

    encoder: TableEncoder
    columns: list[str]
    source: RowSource
    rows: np.ndarray
    sample: EncodedTable
    sample_rows: np.ndarray
    memory: int | str | None = None
    own: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows) if self.own is None else len(self.own)

    def __getitem__(self, positions: np.ndarray) -> EncodedBlocks:
        """Select rows by their positions; the order stays that of the source."""
        return replace(self, rows=self.rows[np.sort(positions)])

    @cached_property
    def sample_positions(self) -> np.ndarray:
        """Positions of the sample among the rows, which must contain it."""
        return np.searchsorted(self.rows, self.sample_rows)

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the positions of a block of rows, and its features, (k, p) float64.

        Cells are treated as in prediction. Errors name the row and the file.
        """
        if not len(self):
            return
        names = [column.name for column in self.encoder.columns]
        messages: list[str] = []
        first, last = self.rows[[0, -1] if self.own is None else self.own[[0, -1]]].tolist()
        for block in self.source.blocks(*self.source.enclosing_blocks(first, last + 1), names):
            lo, hi = np.searchsorted(self.rows, [block.start, block.stop])
            if lo == hi:
                continue
            own = self.rows[lo:hi]
            frame = block.frame if hi - lo == block.frame.height else block.frame[own - block.start]
            with named_rows(lambda position, own=own: self.source.row_name(int(own[position]))):
                features, found = self.encoder.encode_with_notes(frame)
            messages += [f"from row {self.source.row_name(int(own[0]))}: {message}" for message in found]
            yield slice(lo, hi), features
        warn_of_blocks(messages)

    def fits_memory(self, columns: int, dtype: np.typing.DTypeLike) -> bool:
        """Return whether mapped rows of this many columns are kept in memory, and not in a temporary file."""
        size = len(self) * columns * np.dtype(dtype).itemsize
        return size <= _SHARE_OF_MEMORY * free_bytes(parse_memory(self.memory))

    @one_blas_thread()  # equal bits for any number of threads
    def mapped(self, sphere: SphereMap, dtype: np.typing.DTypeLike) -> np.ndarray:
        """Return the rows on the sphere, (n, d) in ``dtype``, in a temporary file if they do not fit into memory."""
        columns = sphere.n_outputs
        shape = len(self), columns
        rows = np.empty(shape, dtype) if self.fits_memory(columns, dtype) else mapped_empty(shape, dtype)
        for some, features in self.blocks():
            mapped = sphere(features)
            if self.own is None:
                rows[some] = mapped
            else:
                lo, hi = np.searchsorted(self.own, [some.start, some.stop])
                rows[lo:hi] = mapped[self.own[lo:hi] - some.start]
        release_pages(rows)
        return rows


def warn_of_blocks(messages: list[str]) -> None:
    """Give the first warnings about blocks of a table, and the number of the others."""
    for message in messages[:_MAX_WARNINGS]:
        warnings.warn(message, UserWarning, stacklevel=3)
    if len(messages) > _MAX_WARNINGS:
        warnings.warn(f"{len(messages) - _MAX_WARNINGS} such warnings of further rows", UserWarning, stacklevel=3)
