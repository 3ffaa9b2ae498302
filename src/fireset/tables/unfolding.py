"""Files that unfold to more than they are: compressed tables and archives, whose size is looked at before it is taken.

A few megabytes of zeros in a gzip file are gigabytes of text. What a compressed file may unfold to is a hundred times
its own size, or 256 MB where that is more; ``FIRESET_MAX_UNFOLDED`` in the environment, such as 8G, is another limit.
"""

import bz2
import gzip
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tokenize import TokenError
from typing import NamedTuple

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.cells import one_line, quoted
from fireset.tables.file_formats import COMPRESSED
from fireset.training.memory import parse_memory

LIMIT = "FIRESET_MAX_UNFOLDED"
_AT_LEAST = 256 << 20
_TIMES = 100
_AT_ONCE = 1 << 24
_PACKED_AT_ONCE = 1 << 10  # of zstandard, which may unfold it ten thousandfold


class ArrayHeader(NamedTuple):
    """What an archive says of an array before its numbers are read."""

    shape: tuple[int, ...]
    dtype: np.dtype


def read_bytes(file: Path) -> bytes:
    """The contents of a file, unfolded where its name says that it is compressed."""
    suffix = file.suffix.lower()
    if suffix not in COMPRESSED:
        return file.read_bytes()
    limit, parts, total = _limit(file), [], 0
    for part in _zstandard_parts(file) if suffix == ".zst" else _parts(file, suffix):
        parts.append(part)
        total += len(part)
        if total > limit:
            raise _size_error(file, f"more than {_size(limit)}")
    return b"".join(parts)


def _parts(file: Path, suffix: str) -> Iterator[bytes]:
    with {".gz": gzip.open, ".bz2": bz2.open}[suffix](file, "rb") as stream:
        while part := stream.read(_AT_ONCE):
            yield part


def _zstandard_parts(file: Path) -> Iterator[bytes]:
    """Frame by frame, since the library's own streams end at the first frame, and take a file cut short for whole."""
    import zstandard

    frame = zstandard.ZstdDecompressor().decompressobj()
    try:
        with open(file, "rb") as stream:
            while packed := stream.read(_PACKED_AT_ONCE):
                while packed:
                    yield frame.decompress(packed)
                    packed = frame.unused_data if frame.eof else b""
                    if packed:
                        frame = zstandard.ZstdDecompressor().decompressobj()
    except zstandard.ZstdError as error:
        raise OSError(str(error)) from error
    if not frame.eof:
        raise EOFError("the compressed file is cut short")


def array_headers(file: Path) -> dict[str, ArrayHeader]:
    """Name, shape and type of all arrays of an NPZ archive; refuses what would unfold to too much."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        claimed = sum(member.file_size for member in members)
        if claimed > _limit(file):
            raise _size_error(file, _size(claimed))
        return {member.filename.removesuffix(".npy"): _header(archive, member, file) for member in members}


def check_archive(file: Path) -> None:
    """Refuse an archive, such as an Excel file, that would unfold to too much; other files are let pass."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            claimed = sum(member.file_size for member in archive.infolist())
        if claimed > _limit(file):
            raise _size_error(file, _size(claimed))


def _header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: Path) -> ArrayHeader:
    from numpy.lib import format as npy

    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    with archive.open(member) as stream:
        try:
            version = npy.read_magic(stream)
            shape, _, dtype = readers[version](stream)
        # A header is a Python literal: tokens, nesting and keys may each be none.
        except (ValueError, KeyError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError) as error:
            named = quoted(member.filename.removesuffix(".npy"))
            raise InputError(f"{one_line(file)}: {named} is not an array; write the file with numpy.savez") from error
    return ArrayHeader(shape, dtype)


def _limit(file: Path) -> int:
    asked = os.environ.get(LIMIT)
    if asked:
        try:
            return parse_memory(asked) or 0
        except InputError:
            raise InputError(f"{LIMIT} must be a size such as 8G, got {quoted(asked)}") from None
    return max(_AT_LEAST, _TIMES * file.stat().st_size)


def _size_error(file: Path, unfolded: str) -> InputError:
    own = _size(file.stat().st_size)
    return InputError(
        f"{one_line(file)} has {own} and unfolds to {unfolded}; if that is what it should be, set {LIMIT} to a size "
        "such as 8G in the environment, or unpack it"
    )


def _size(count: float) -> str:
    return f"{count / 2**30:.1f} GB" if count >= 2**30 else f"{count / 2**20:.1f} MB"
