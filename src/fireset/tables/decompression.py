"""Reading of compressed files and archives, with a limit on the decompressed size.

A few megabytes of a gzip file can be gigabytes of text. The limit is a hundred times the size of the file, but at least
256 MB. The environment variable ``FIRESET_MAX_DECOMPRESSED``, such as 8G, sets another limit.
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
from fireset.tables.file_formats import COMPRESSION_SUFFIXES
from fireset.training.memory import parse_memory

LIMIT_VARIABLE = "FIRESET_MAX_DECOMPRESSED"
_MIN_LIMIT_BYTES = 256 << 20
_MAX_RATIO = 100
_READ_BYTES = 1 << 24
_ZSTANDARD_READ_BYTES = 1 << 10  # compressed; zstandard may decompress them to ten thousand times the size


class ArrayHeader(NamedTuple):
    """Shape and type of an array in an archive."""

    shape: tuple[int, ...]
    dtype: np.dtype


def read_bytes(file: Path) -> bytes:
    """Read a file, decompressed if its suffix says that it is compressed."""
    suffix = file.suffix.lower()
    if suffix not in COMPRESSION_SUFFIXES:
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
        while part := stream.read(_READ_BYTES):
            yield part


def _zstandard_parts(file: Path) -> Iterator[bytes]:
    """Decompress frame by frame: the streams of the library end at the first frame and accept truncated files."""
    import zstandard

    frame = zstandard.ZstdDecompressor().decompressobj()
    try:
        with open(file, "rb") as stream:
            while data := stream.read(_ZSTANDARD_READ_BYTES):
                while data:
                    yield frame.decompress(data)
                    data = frame.unused_data if frame.eof else b""
                    if data:
                        frame = zstandard.ZstdDecompressor().decompressobj()
    except zstandard.ZstdError as error:
        raise OSError(str(error)) from error
    if not frame.eof:
        raise EOFError("the compressed file is cut short")


def read_array_headers(file: Path) -> dict[str, ArrayHeader]:
    """Read the headers of all arrays of an NPZ archive, by name. Raises InputError if it is too large."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        claimed = sum(member.file_size for member in members)
        if claimed > _limit(file):
            raise _size_error(file, _size(claimed))
        return {member.filename.removesuffix(".npy"): _header(archive, member, file) for member in members}


def check_archive(file: Path) -> None:
    """Raise InputError for a zip archive, such as an Excel file, that is too large. Other files pass."""
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
        # A header is a Python literal: its tokens, nesting and keys may be invalid.
        except (ValueError, KeyError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError) as error:
            named = quoted(member.filename.removesuffix(".npy"))
            raise InputError(f"{one_line(file)}: {named} is not an array; write the file with numpy.savez") from error
    return ArrayHeader(shape, dtype)


def _limit(file: Path) -> int:
    given = os.environ.get(LIMIT_VARIABLE)
    if given:
        try:
            return parse_memory(given) or 0
        except InputError:
            raise InputError(f"{LIMIT_VARIABLE} must be a size such as 8G, got {quoted(given)}") from None
    return max(_MIN_LIMIT_BYTES, _MAX_RATIO * file.stat().st_size)


def _size_error(file: Path, decompressed: str) -> InputError:
    own = _size(file.stat().st_size)
    return InputError(
        f"{one_line(file)} has {own} and decompresses to {decompressed}; if this is intended, set {LIMIT_VARIABLE} to "
        "a size such as 8G in the environment, or decompress it"
    )


def _size(count: float) -> str:
    return f"{count / 2**30:.1f} GB" if count >= 2**30 else f"{count / 2**20:.1f} MB"
