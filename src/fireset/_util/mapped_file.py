"""Arrays in a temporary file that is mapped into memory, for arrays larger than the memory."""

import math
import mmap
import os
import tempfile

import numpy as np

from fireset._util.errors import InputError


def mapped_empty(shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
    """Return an array in a temporary file, which the system keeps in memory as far as there is room.

    The file has no name and disappears with the array. Its space is reserved first, because writing to a mapped file on
    a full disk ends the process.
    """
    folder = _folder()
    dtype = np.dtype(dtype)
    size = max(1, math.prod(shape) * dtype.itemsize)
    with tempfile.TemporaryFile(prefix="fireset-", dir=folder) as file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
        except OSError as error:
            raise InputError(
                f"a temporary file of {size / 2**30:.1f} GiB cannot be made in {folder}: "
                f"{error.strerror}; set the environment variable TMPDIR to a folder with enough space"
            ) from error
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype, math.prod(shape)).reshape(shape)


def _folder() -> str:
    """Return the folder in ``TMPDIR``, or the one for large temporary files: ``/tmp`` is in memory on many systems."""
    large = "/var/tmp"
    if not os.environ.get("TMPDIR") and os.access(large, os.W_OK):
        return large
    return tempfile.gettempdir()


def release_pages(array: np.ndarray) -> None:
    """Remove the pages of an array of ``mapped_empty`` from the memory of the process; other arrays are unchanged.

    The system keeps them in its cache while there is room. They return when the array is read.
    """
    base = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)
