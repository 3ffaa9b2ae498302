"""Check of the footer of a Parquet file before polars reads it.

The footer is a structure in Thrift's compact protocol. polars allocates memory for the number of elements that a list
claims to have, and ends the process if there is not as much. Each element takes at least one byte of the footer, so
that a damaged number is found by reading the lengths alone. Damaged pages are not found here; polars refuses nearly
all of them.
"""

from pathlib import Path

from fireset._util.errors import InputError
from fireset.tables.cells import one_line

_MAGIC = b"PAR1"
_MAX_DEPTH = 32  # of nested structures; those of Parquet have less than ten
_BOOLEANS, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCTURE, _UUID = (1, 2), (4, 5, 6), 7, 8, (9, 10), 11, 12, 13
_BYTE = 3


class _DamagedError(Exception):
    """A length that exceeds the footer, or an unknown type."""


def check_footer(file: Path) -> None:
    """Raise ``InputError`` if the footer claims more elements than it has bytes. Cost: one pass over the footer."""
    with file.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 8))
        end = stream.read(8)
        length = int.from_bytes(end[:4], "little")
        if len(end) < 8 or end[4:] != _MAGIC or length > size - 8:
            return  # polars refuses a file without a footer
        stream.seek(size - 8 - length)
        footer = stream.read(length)
    try:
        _Footer(footer).skip_structure(0)
    except _DamagedError as error:
        raise InputError(f"{one_line(file)} cannot be read as Parquet, it may be damaged: {error}") from None


class _Footer:
    """Reads over values of Thrift's compact protocol."""

    def __init__(self, content: bytes):
        self._content, self._place = content, 0

    def skip_structure(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise _DamagedError("the footer is nested too deeply")
        while header := self._byte():
            if not header >> 4:  # the number of the field follows
                self._number()
            self._skip(header & 15, depth, in_list=False)

    def _skip(self, kind: int, depth: int, *, in_list: bool) -> None:
        if kind in _BOOLEANS:
            self._advance(1 if in_list else 0)  # the value of a field is its type
        elif kind == _BYTE:
            self._advance(1)
        elif kind in _INTEGERS:
            self._number()
        elif kind == _DOUBLE:
            self._advance(8)
        elif kind == _BINARY:
            self._advance(self._number())
        elif kind == _UUID:
            self._advance(16)
        elif kind == _STRUCTURE:
            self.skip_structure(depth + 1)
        elif kind in _LISTS:
            header = self._byte()
            count = header >> 4
            self._skip_elements(self._number() if count == 15 else count, (header & 15,), depth)
        elif kind == _MAP:
            count = self._number()
            kinds = self._byte() if count else 0
            self._skip_elements(count, (kinds >> 4, kinds & 15), depth)
        else:
            raise _DamagedError(f"the footer has a field of type {kind}")

    def _skip_elements(self, count: int, kinds: tuple[int, ...], depth: int) -> None:
        left = len(self._content) - self._place
        if count > left:
            raise _DamagedError(f"the footer claims a list of {count:,} elements in {left:,} bytes")
        for _ in range(count):
            for kind in kinds:
                self._skip(kind, depth + 1, in_list=True)

    def _byte(self) -> int:
        self._advance(1)
        return self._content[self._place - 1]

    def _number(self) -> int:
        """Read a variable-length integer: seven bits per byte, the lowest first."""
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise _DamagedError("the footer has a number of more than 64 bits")
        return value | byte << shift

    def _advance(self, count: int) -> None:
        self._place += count
        if self._place > len(self._content):
            raise _DamagedError("the footer ends within a value")
