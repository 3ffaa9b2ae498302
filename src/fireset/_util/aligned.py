"""Matrices whose rows are padded to whole cache lines and aligned to them, for the kernels."""

import numpy as np

_CACHE_LINE = 64  # bytes
_LONG_ROW_BYTES = 2048  # longer rows need not be aligned: of many cache lines they straddle one more


def aligned_rows(rows: np.ndarray) -> np.ndarray:
    """Return ``rows`` (n, d) padded with zeros to whole cache lines; a copy, except for long rows of whole lines."""
    length = rows.shape[1] * rows.itemsize
    if length % _CACHE_LINE == 0 and length >= _LONG_ROW_BYTES:
        return np.ascontiguousarray(rows)
    return aligned_copy(rows)


def aligned_bytes(columns: int, itemsize: int) -> int:
    """Return the bytes of a row in the layout of ``aligned_rows``."""
    return -(-columns * itemsize // _CACHE_LINE) * _CACHE_LINE


def aligned_copy(rows: np.ndarray) -> np.ndarray:
    """Return ``rows`` (n, d) padded to whole cache lines, always as a copy."""
    aligned = aligned_zeros(len(rows), rows.shape[1], rows.dtype)
    aligned[:, : rows.shape[1]] = rows
    return aligned


def aligned_outputs(outputs: np.ndarray) -> np.ndarray:
    """Return sums or residuals (n, c) in the layout of ``aligned_rows``; a single column as a vector (n,)."""
    return outputs[:, 0].copy() if outputs.shape[1] == 1 else aligned_rows(outputs)


def aligned_zeros(n: int, columns: int, dtype) -> np.ndarray:
    """Allocate zeros (n, at least ``columns``) in the layout of ``aligned_rows``."""
    return _aligned_array(np.zeros, n, columns, np.dtype(dtype))


def aligned_empty(n: int, columns: int, dtype) -> np.ndarray:
    """Allocate an uninitialized array (n, at least ``columns``) in the layout of ``aligned_rows``."""
    return _aligned_array(np.empty, n, columns, np.dtype(dtype))


def _aligned_array(allocate, n: int, columns: int, dtype: np.dtype) -> np.ndarray:
    """Return ``allocate``d rows, (n, at least ``columns``), each of whole cache lines and at the start of one."""
    per_line = _CACHE_LINE // dtype.itemsize
    length = -(-columns // per_line) * per_line
    memory = allocate(n * length + per_line, dtype)
    skipped = -memory.ctypes.data % _CACHE_LINE // memory.itemsize
    return memory[skipped : skipped + n * length].reshape(n, length)


def is_aligned(rows: np.ndarray) -> bool:
    """Return whether rows have the layout of ``aligned_rows``."""
    return (
        rows.flags.c_contiguous
        and rows.shape[1] * rows.itemsize % _CACHE_LINE == 0
        and rows.ctypes.data % _CACHE_LINE == 0
    )
