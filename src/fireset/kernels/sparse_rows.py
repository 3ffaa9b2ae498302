"""Inner products with listed rows and weighted sums of them, for dense and for sparse rows.

Dense rows are a matrix in the layout of ``fireset._util.aligned.aligned_rows``; sparse rows are ``RowArrays``.
Functions with an ``overload`` are compiled for both, so that passes over lists are written once. They raise if they are
called from Python.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from fireset.kernels.compiling import INLINED, vectorized
from fireset.kernels.extrema import smaller
from fireset.kernels.firing import difference
from fireset.kernels.rows import ROWS_AT_ONCE, add_rows, dots

_ROWS_PER_PARTIAL_SUM = 1024
_NEURONS_PER_LINE = 16  # neurons whose weights of one column are contiguous: a cache line in float32


class RowArrays(NamedTuple):
    """Sparse rows (CSR): row i has ``numbers[q]`` in column ``indices[q]``, ascending, indptr[i] ≤ q < indptr[i+1]."""

    indptr: np.ndarray  # (n + 1,) int64
    indices: np.ndarray  # int32
    numbers: np.ndarray
    shape: tuple[int, int]  # (n, d)


def _is_dense(rows) -> bool:
    return isinstance(rows, types.Array)


def neuron_weights(rows, W, r, padded):  # noqa: ARG001 - compiled through the overload below
    """Return w_r as an argument of ``list_dots``: copied to ``padded``, which is as long as a dense row, or W[r]."""
    raise TypeError("neuron_weights is for compiled kernels")


@overload(neuron_weights, jit_options=INLINED)
def _neuron_weights(rows, W, r, padded):  # noqa: ARG001
    def copied(rows, W, r, padded):  # noqa: ARG001
        for j in range(W.shape[1]):
            padded[j] = W[r, j]
        return padded

    return copied if _is_dense(rows) else lambda rows, W, r, padded: W[r]  # noqa: ARG005


def list_dots(rows, ids, start, count, w, threshold, excess):  # noqa: ARG001
    """Compute ``excess[k] = ⟨w, x_i⟩ − threshold`` with i = ``ids[start + k]``, for k < ``count``.

    ``excess`` has space for ``count + ROWS_AT_ONCE`` numbers. Cost O(count · d), or O(stored entries).
    """
    raise TypeError("list_dots is for compiled kernels")


@overload(list_dots, jit_options=INLINED)
def _list_dots(rows, ids, start, count, w, threshold, excess):  # noqa: ARG001
    def dense(rows, ids, start, count, w, threshold, excess):
        for p in range(0, count, ROWS_AT_ONCE):
            dots(rows, ids, start + p, count - 1 - p, w, threshold, excess, p)

    def sparse(rows, ids, start, count, w, threshold, excess):
        indptr, indices, numbers, _ = rows
        for p in range(count):
            i = np.uint64(ids[start + p])  # for a signed index numba adds a check whether it is negative
            total = threshold - threshold
            for q in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
                total += w[np.uint64(indices[q])] * numbers[q]
            excess[p] = difference(total, threshold)  # after the sum: a sum that began at −b would round differently

    return dense if _is_dense(rows) else sparse


def add_listed_rows(rows, ids, start, count, factors, total):  # noqa: ARG001
    """Compute ``total += Σ_k factors[k] x_i`` with i = ``ids[start + k]``, for k < ``count``. Cost O(count · d)."""
    raise TypeError("add_listed_rows is for compiled kernels")


@overload(add_listed_rows, jit_options=INLINED)
def _add_listed_rows(rows, ids, start, count, factors, total):  # noqa: ARG001
    def dense(rows, ids, start, count, factors, total):
        # Partial sums over parts of the rows keep the rounding error of long float32 sums small.
        for p in range(0, count, _ROWS_PER_PARTIAL_SUM):
            add_rows(rows, ids, start + p, smaller(_ROWS_PER_PARTIAL_SUM, count - p), factors, p, total)

    def sparse(rows, ids, start, count, factors, total):
        indptr, indices, numbers, _ = rows
        for p in range(count):
            i = np.uint64(ids[start + p])
            factor = factors[p]
            for q in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
                total[np.uint64(indices[q])] += factor * numbers[q]

    return dense if _is_dense(rows) else sparse


def row_dot(w, rows, i, zero):  # noqa: ARG001
    """Return ``zero`` + ⟨w, x_i⟩ in the precision of ``zero``; w (d,) is not padded. Cost O(d)."""
    raise TypeError("row_dot is for compiled kernels")


@overload(row_dot, jit_options=INLINED)
def _row_dot(w, rows, i, zero):  # noqa: ARG001
    def dense(w, rows, i, zero):
        total, x = zero, rows[i]
        for j in range(w.shape[0]):
            total += w[j] * x[j]
        return total

    def sparse(w, rows, i, zero):
        total = zero
        for q in range(np.uint64(rows.indptr[i]), np.uint64(rows.indptr[i + 1])):
            total += w[np.uint64(rows.indices[q])] * rows.numbers[q]
        return total

    return dense if _is_dense(rows) else sparse


def add_row(factor, rows, i, total):  # noqa: ARG001
    """Compute ``total += factor · x_i``; ``total`` (d,) is not padded. Cost O(d)."""
    raise TypeError("add_row is for compiled kernels")


@overload(add_row, jit_options=INLINED)
def _add_row(factor, rows, i, total):  # noqa: ARG001
    def dense(factor, rows, i, total):
        x = rows[i]
        for j in range(total.shape[0]):
            total[j] += factor * x[j]

    def sparse(factor, rows, i, total):
        for q in range(np.uint64(rows.indptr[i]), np.uint64(rows.indptr[i + 1])):
            total[np.uint64(rows.indices[q])] += factor * rows.numbers[q]

    return dense if _is_dense(rows) else sparse


# For sparse rows only


@vectorized
def multiply_rows(W, rows, H):
    """Compute ``H[r, i] = ⟨w_r, x_i⟩`` for all rows w_r of W, (k, d) dense or sparse, and all sparse rows x_i.

    Weights are copied so that those of 16 neurons for one column are contiguous: each stored entry is multiplied by a
    cache line. Cost O(k · stored entries) in wide registers, and O(k · d) for the copy.
    """
    indptr, indices, numbers, shape = rows
    columns = np.zeros((shape[1], _NEURONS_PER_LINE), H.dtype)
    sums = np.zeros(_NEURONS_PER_LINE, H.dtype)
    zero = H.dtype.type(0)
    for first in range(0, H.shape[0], _NEURONS_PER_LINE):
        count = smaller(_NEURONS_PER_LINE, H.shape[0] - first)
        _lay_out(W, first, count, columns)
        for i in range(H.shape[1]):
            for k in range(_NEURONS_PER_LINE):
                sums[k] = zero
            for q in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
                x, line = numbers[q], columns[np.uint64(indices[q])]
                for k in range(_NEURONS_PER_LINE):
                    sums[k] += x * line[k]
            for k in range(count):
                H[first + k, i] = sums[k]


@vectorized
def add_weighted_rows(factors, rows, totals):
    """Compute ``totals[r] += Σ_i factors[r, i] x_i`` over sparse rows x_i; factors of 0 are skipped.

    ``factors`` is (k, n), ``totals`` (k, d). Cost O(factors.size + stored entries of rows with a nonzero factor).
    """
    for r in range(factors.shape[0]):
        for i in range(factors.shape[1]):
            if factors[r, i] != 0:
                add_row(factors[r, i], rows, i, totals[r])


def _lay_out(W, first, count, columns):  # noqa: ARG001
    """Set ``columns[j, k] = W[first + k, j]`` for k < ``count``; other columns are arbitrary."""
    raise TypeError("_lay_out is for compiled kernels")


@overload(_lay_out, jit_options=INLINED)
def _lay_out_either(W, first, count, columns):  # noqa: ARG001
    def dense(W, first, count, columns):
        for j in range(columns.shape[0]):
            for k in range(count):
                columns[j, k] = W[first + k, j]

    def sparse(W, first, count, columns):
        columns[:] = 0
        for k in range(count):
            for q in range(np.uint64(W.indptr[first + k]), np.uint64(W.indptr[first + k + 1])):
                columns[np.uint64(W.indices[q]), k] = W.numbers[q]

    return dense if _is_dense(W) else sparse
