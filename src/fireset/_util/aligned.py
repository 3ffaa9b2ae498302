"""Matrices laid out as the kernels read them fastest: rows of whole cache lines, each beginning at one."""

import numpy as np

_CACHE_LINE = 64  # bytes
_LONG_ROW = 2048


def aligned_rows(rows: np.ndarray) -> np.ndarray:
    """``rows`` (n, d) as the kernels read them: whole cache lines each, filled up with zeros. A copy, in most cases.

    Long rows of whole lines may begin anywhere: they straddle one line more than they need, of many.
    """
    length = rows.shape[1] * rows.itemsize
    if length % _CACHE_LINE == 0 and length >= _LONG_ROW:
        return np.ascontiguousarray(rows)
    return aligned_copy(rows)


def aligned_bytes(columns: int, itemsize: int) -> int:
    """What a row takes as ``aligned_rows`` lays it out."""
    return -(-columns * itemsize // _CACHE_LINE) * _CACHE_LINE


def aligned_copy(rows: np.ndarray) -> np.ndarray:
    """The same on memory of its own, whatever becomes of ``rows``."""
    aligned = aligned_zeros(len(rows), rows.shape[1], rows.dtype)
    aligned[:, : rows.shape[1]] = rows
    return aligned


def aligned_outputs(outputs: np.ndarray) -> np.ndarray:
    """The same for sums or residuals (n, c); a single column becomes a vector."""
    return outputs[:, 0].copy() if outputs.shape[1] == 1 else aligned_rows(outputs)


def aligned_zeros(n: int, columns: int, dtype) -> np.ndarray:
    """Zeros (n, at least ``columns``), every row of whole cache lines."""
    return _lines(np.zeros, n, columns, np.dtype(dtype))


def aligned_empty(n: int, columns: int, dtype) -> np.ndarray:
    """The same, whatever is in it."""
    return _lines(np.empty, n, columns, np.dtype(dtype))


def _lines(make, n: int, columns: int, dtype: np.dtype) -> np.ndarray:
    per_line = _CACHE_LINE // dtype.itemsize
    length = -(-columns // per_line) * per_line
    memory = make(n * length + per_line, dtype)
    skipped = -memory.ctypes.data % _CACHE_LINE // memory.itemsize
    return memory[skipped : skipped + n * length].reshape(n, length)


def is_aligned(rows: np.ndarray) -> bool:
    """Whether rows are laid out so already."""
    return (
        rows.flags.c_contiguous
        and rows.shape[1] * rows.itemsize % _CACHE_LINE == 0
        and rows.ctypes.data % _CACHE_LINE == 0
    )
