"""What the passes ask of rows, dense or sparse: inner products with the rows of a list, and weighted sums of them.

Dense rows are a matrix as ``fireset._util.aligned.aligned_rows`` lays it out; sparse rows are ``RowArrays``. The
functions under ``overload`` are compiled for either kind, so that a pass over lists is written once. Called without
being compiled they do nothing but raise.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from fireset.kernels.compiling import INLINED, vectorized
from fireset.kernels.firing import difference
from fireset.kernels.rows import add_rows, dots, lanes_of

SUMMED_AT_ONCE = 1024
_TOGETHER = 16  # neurons whose weights of one column lie side by side: a cache line in float32


class RowArrays(NamedTuple):
    """Row i holds ``numbers[q]`` in column ``indices[q]``, ascending, for ``indptr[i]`` ≤ q < ``indptr[i+1]``."""

    indptr: np.ndarray  # (n + 1,) int64
    indices: np.ndarray  # int32
    numbers: np.ndarray
    shape: tuple[int, int]  # (n, d)


def _is_dense(rows) -> bool:
    return isinstance(rows, types.Array)


def neuron_weights(rows, W, r, padded):  # noqa: ARG001 - compiled through the overload below
    """w_r as ``list_dots`` takes it: filled up as dense rows are, in ``padded``; as it is for sparse ones."""
    raise TypeError("neuron_weights is for compiled kernels")


@overload(neuron_weights, jit_options=INLINED)
def _neuron_weights(rows, W, r, padded):  # noqa: ARG001
    def copied(rows, W, r, padded):  # noqa: ARG001
        for j in range(W.shape[1]):
            padded[j] = W[r, j]
        return padded

    return copied if _is_dense(rows) else lambda rows, W, r, padded: W[r]  # noqa: ARG005


def list_dots(rows, ids, start, count, w, threshold, excess, few):  # noqa: ARG001
    """``excess[k] = ⟨w, x_i⟩ − threshold`` with i = ``ids[start + k]``, for k below ``count``.

    ``excess`` has room for ``lanes_of(w)`` numbers more, ``few`` for so many. Cost O(count · d), or stored entries.
    """
    raise TypeError("list_dots is for compiled kernels")


@overload(list_dots, jit_options=INLINED)
def _list_dots(rows, ids, start, count, w, threshold, excess, few):  # noqa: ARG001
    def dense(rows, ids, start, count, w, threshold, excess, few):
        lanes = lanes_of(w)
        if count >= lanes:
            for p in range(0, count - lanes + 1, lanes):
                dots(rows, ids, start + p, w, threshold, excess, p)
            # the last ones, some of them again
            dots(rows, ids, start + count - lanes, w, threshold, excess, count - lanes)
        elif count > 0:
            for p in range(lanes):
                few[p] = ids[start + min(p, count - 1)]
            dots(rows, few, 0, w, threshold, excess, 0)

    def sparse(rows, ids, start, count, w, threshold, excess, few):  # noqa: ARG001
        indptr, indices, numbers, _ = rows
        for p in range(count):
            i = np.uint64(ids[start + p])  # a signed index would be asked whether it is negative
            total = threshold - threshold
            for q in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
                total += w[np.uint64(indices[q])] * numbers[q]
            excess[p] = difference(total, threshold)  # after the sum: a sum that began at −b would round otherwise

    return dense if _is_dense(rows) else sparse


def add_listed_rows(rows, ids, start, count, factors, total):  # noqa: ARG001
    """``total += Σ_k factors[k] x_i`` with i = ``ids[start + k]``, for k below ``count``. Cost as ``list_dots``."""
    raise TypeError("add_listed_rows is for compiled kernels")


@overload(add_listed_rows, jit_options=INLINED)
def _add_listed_rows(rows, ids, start, count, factors, total):  # noqa: ARG001
    def dense(rows, ids, start, count, factors, total):
        # Some samples at a time: what many samples add up to in float32 keeps its digits when it is added up in parts.
        for p in range(0, count, SUMMED_AT_ONCE):
            add_rows(rows, ids, start + p, min(SUMMED_AT_ONCE, count - p), factors, p, total)

    def sparse(rows, ids, start, count, factors, total):
        indptr, indices, numbers, _ = rows
        for p in range(count):
            i = np.uint64(ids[start + p])
            factor = factors[p]
            for q in range(np.uint64(indptr[i]), np.uint64(indptr[i + np.uint64(1)])):
                total[np.uint64(indices[q])] += factor * numbers[q]

    return dense if _is_dense(rows) else sparse


def row_dot(w, rows, i, zero):  # noqa: ARG001
    """⟨w, x_i⟩, added to ``zero``, which says in which precision; w is as long as a row, unpadded."""
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
    """``total += factor · x_i``; ``total`` is as long as a row, unpadded."""
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


# Sparse rows alone


@vectorized
def multiply_rows(W, rows, H):
    """``H[r, i] = ⟨w_r, x_i⟩`` for all rows w_r of W, a matrix (k, d) or sparse itself, and all sparse rows x_i.

    The weights of 16 neurons are laid side by side, so that a stored entry of a row meets a cache line of them. Cost
    O(k · stored entries) multiplications in wide registers, and k·d numbers copied.
    """
    indptr, indices, numbers, shape = rows
    columns = np.zeros((shape[1], _TOGETHER), H.dtype)
    sums = np.zeros(_TOGETHER, H.dtype)
    zero = H.dtype.type(0)
    for first in range(0, H.shape[0], _TOGETHER):
        count = min(_TOGETHER, H.shape[0] - first)
        _lay_out(W, first, count, columns)
        for i in range(H.shape[1]):
            for k in range(_TOGETHER):
                sums[k] = zero
            for q in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
                x, line = numbers[q], columns[np.uint64(indices[q])]
                for k in range(_TOGETHER):
                    sums[k] += x * line[k]
            for k in range(count):
                H[first + k, i] = sums[k]


@vectorized
def add_weighted_rows(factors, rows, totals):
    """``totals[r] += Σ_i factors[r, i] x_i`` over sparse rows x_i; factors of 0, which most are, are skipped.

    Cost: a look at all factors, and the stored entries of the rows whose factors are not 0.
    """
    for r in range(factors.shape[0]):
        for i in range(factors.shape[1]):
            if factors[r, i] != 0:
                add_row(factors[r, i], rows, i, totals[r])


def _lay_out(W, first, count, columns):  # noqa: ARG001
    """``columns[j, k] = W[first + k, j]`` for k below ``count``; what is beyond it does not matter."""
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
