"""Reading of a CSV file in blocks, for files that do not fit into memory.

One pass over the file finds where blocks begin: after a line feed with an even number of quotes before it, since a
quoted cell may hold line feeds. A block is then parsed like a file that has only its lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from fireset._util.errors import InputError
from fireset.tables.cells import one_line
from fireset.tables.csv_files import BYTE_ORDER_MARKS, detect_separator, parse_cells

if TYPE_CHECKING:
    import polars as pl

BLOCK_BYTES = 1 << 24
_MAX_BLOCKS_OF_A_CELL = 16  # a quoted cell that is longer is a quote without an end
_UTF8_MARK = b"\xef\xbb\xbf"


class _Block(NamedTuple):
    start: int  # in bytes
    stop: int
    rows: int
    lines_before: int  # in the file, besides the header


@dataclass
class CsvBlocks:
    """The blocks of a CSV file, in UTF-8 and not compressed.

    Attributes
    ----------
    file : Path
    separator : str
    n_rows : int
    blocks : list of blocks with their numbers of ``rows``
    """

    file: Path
    block_bytes: int = BLOCK_BYTES
    separator: str = ","
    n_rows: int = 0
    blocks: list[_Block] = field(default_factory=list)
    _header: str = ""

    def __post_init__(self) -> None:
        with self.file.open("rb") as stream:
            mark = self._check_mark(stream.read(4))
            stream.seek(mark)
            header_stop = mark + self._header_bytes(stream)
            lines_before, start = 0, header_stop
            while (stop := self._block_stop(stream, start)) > start:
                text = self._text(stream, start, stop, lines_before)
                if not self.blocks:
                    usual = "\t" if self.file.suffix.lower() == ".tsv" else ","
                    self.separator = detect_separator(self._header + text, usual)
                rows = self._parse(text, lines_before, warns=True).height
                self.blocks.append(_Block(start, stop, rows, lines_before))
                self.n_rows += rows
                lines_before += text.count("\n")
                start = stop

    @property
    def shown(self) -> str:
        """The file in messages."""
        return one_line(self.file)

    def read(self, block: int) -> pl.DataFrame:
        """Return the cells of a block as text, null where one is missing."""
        start, stop, _, lines_before = self.blocks[block]
        with self.file.open("rb") as stream:
            return self._parse(self._text(stream, start, stop, lines_before), lines_before, warns=False)

    def _parse(self, text: str, lines_before: int, *, warns: bool) -> pl.DataFrame:
        return parse_cells(self._header + text, self.separator, self.shown, lines_before=lines_before, warns=warns)

    def _check_mark(self, first: bytes) -> int:
        """Return the size of the byte order mark, which must be that of UTF-8."""
        if first.startswith(_UTF8_MARK):
            return len(_UTF8_MARK)
        for mark, encoding in BYTE_ORDER_MARKS.items():
            if first.startswith(mark):
                raise InputError(f"{self.shown} is {encoding.upper()}, and large tables must be UTF-8; convert it")
        return 0

    def _header_bytes(self, stream: BinaryIO) -> int:
        """Read the header, which is the first line that is not blank; return the number of bytes up to its end."""
        data = stream.read(self.block_bytes)
        if not data.strip():
            raise InputError(f"{self.shown} is empty; give a table with at least one row")
        stop = len(data) - len(data.lstrip(b" \r\n"))
        while True:
            line_feed = data.find(b"\n", stop)
            if line_feed < 0:
                raise InputError(
                    f"{self.shown} has no line feed after the header; give a table with at least one row, and with "
                    "line feeds between its lines"
                )
            stop = line_feed + 1
            if data.count(b'"', 0, stop) % 2 == 0:
                self._header = self._decoded(data[:stop], 1).lstrip(" \r\n")
                return stop

    def _block_stop(self, stream: BinaryIO, start: int) -> int:
        """Return the end of the block from ``start`` on, which is the end of a line."""
        stream.seek(start)
        data = b""
        for _ in range(_MAX_BLOCKS_OF_A_CELL):
            more = stream.read(self.block_bytes)
            data += more
            if len(more) < self.block_bytes:
                return start + len(data)
            stop, quotes = len(data), data.count(b'"')
            while (line_feed := data.rfind(b"\n", 0, stop)) >= 0:
                quotes -= data.count(b'"', line_feed, stop)
                if quotes % 2 == 0:
                    return start + line_feed + 1
                stop = line_feed
        where = f"after byte {start:,}" if self.blocks else "after the header"
        raise InputError(f"{self.shown} has a line or a quote without an end {where}; check its quotes")

    def _text(self, stream: BinaryIO, start: int, stop: int, lines_before: int) -> str:
        stream.seek(start)
        return self._decoded(stream.read(stop - start), lines_before + 2)  # the first line is the header

    def _decoded(self, data: bytes, first_line: int) -> str:
        place = data.find(b"\0")  # valid in UTF-8, but no text: UTF-16 without a byte order mark, or damage
        if place < 0:
            try:
                return data.decode("utf-8")
            except UnicodeDecodeError as failure:
                place = failure.start
        line = first_line + data.count(b"\n", 0, place)
        raise InputError(
            f"{self.shown}: line {line} is not UTF-8 text; save the table as a UTF-8 text file or as Parquet"
        )
