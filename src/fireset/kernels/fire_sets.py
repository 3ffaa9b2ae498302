"""Kernels over the fire sets of neurons in compressed columns: products with J and J Jᵀ, counts of common neurons.

Neuron r is active for the rows ``samples[indptr[r]:indptr[r+1]]``, in any order. X is a matrix (n, d) or sparse rows
(``kernels/sparse_rows.py``); for sparse rows, d in a cost stands for the stored entries of a row.
"""

import numpy as np

from fireset.kernels.allocation import new_array
from fireset.kernels.compiling import inlined, vectorized
from fireset.kernels.extrema import larger, smaller
from fireset.kernels.masks import LANES, above_bits, count_bits
from fireset.kernels.sparse_rows import add_row, row_dot

WORDS_AT_ONCE = 8  # rows of bits have a multiple of this many words, so that unrolled loops have no remainder
_TILE_ROWS = 32  # rows whose bits stay in the cache
_UNROLLED_ROWS = 4  # rows that are compared with another row in one loop


@inlined
def _sum_active_rows(X, output_weights, indptr, samples, residual, r, t):
    """Compute ``t = Σ_i active (Σ_c a_rc residual_ic) x_i`` for neuron r; residual (n, c), t (d,)."""
    zero = output_weights.dtype.type(0)
    t[:] = zero
    for p in range(indptr[r], indptr[r + 1]):
        i = samples[p]
        coefficient = zero
        for c in range(output_weights.shape[1]):
            coefficient += output_weights[r, c] * residual[i, c]
        add_row(coefficient, X, i, t)


@vectorized
def tangent_product(X, output_weights, indptr, samples, direction, product, lo, hi):
    """Add the part of neurons lo … hi−1 in ``J Jᵀ direction`` to ``product`` (n, c), float64.

    With v = ``direction`` (n, c) and ``t_r = Σ_i active (Σ_c a_rc v_ic) x_i`` the product is
    ``Σ_r active a_rc ⟨t_r, x_i⟩``, without the factor 1/m. Cost O(d · active pairs); t_r stays in the cache.
    """
    outputs = output_weights.shape[1]
    t = new_array(X.shape[1], output_weights.dtype)
    zero = output_weights.dtype.type(0)
    for r in range(lo, hi):
        _sum_active_rows(X, output_weights, indptr, samples, direction, r, t)
        for p in range(indptr[r], indptr[r + 1]):
            i = samples[p]
            total = row_dot(t, X, i, zero)
            for c in range(outputs):
                product[i, c] += np.float64(output_weights[r, c] * total)


@vectorized
def row_gradients(X, output_weights, indptr, samples, residual, gradients, lo, hi):
    """Compute ``gradients[r] = Σ_i active (Σ_c a_rc residual_ic) x_i`` = √m ∂L/∂w_r for neurons lo … hi−1.

    ``residual`` is (n, c), ``gradients`` (m, d). Cost O(d · active pairs).
    """
    for r in range(lo, hi):
        _sum_active_rows(X, output_weights, indptr, samples, residual, r, gradients[r])


@vectorized
def jacobian_product(X, output_weights, indptr, samples, directions, product, lo, hi):
    """Add Σ_r a_rc ⟨directions_r, x_i⟩ over the active neurons of lo … hi−1 to ``product`` (n, c), float64.

    ``directions`` is (m, d). Cost O(d · active pairs).
    """
    for r in range(lo, hi):
        for p in range(indptr[r], indptr[r + 1]):
            i = samples[p]
            total = row_dot(directions[r], X, i, output_weights.dtype.type(0))
            for c in range(output_weights.shape[1]):
                product[i, c] += np.float64(output_weights[r, c] * total)


@vectorized
def gradient_squares(X, output_weights, indptr, samples, residual, squares, lo, hi):
    """Compute ``squares[r] = ‖Σ_i active (Σ_c a_rc residual_ic) x_i‖²`` = m ‖∂L/∂w_r‖² for neurons lo … hi−1.

    ``residual`` is (n, c), ``squares`` (m,). Cost O(d · active pairs).
    """
    d = X.shape[1]
    t = new_array(d, X.dtype)
    for r in range(lo, hi):
        _sum_active_rows(X, output_weights, indptr, samples, residual, r, t)
        total = X.dtype.type(0)
        for j in range(d):
            total += t[j] * t[j]
        squares[r] = total


@vectorized
def count_shared(left_indptr, left_samples, right_indptr, right_samples, counts, lo, hi):
    """Add the number of neurons lo … hi−1 with i in their left list and j in their right list to ``counts[i, j]``.

    Cost Σ_r (length of the left list · length of the right list).
    """
    for r in range(lo, hi):
        for p in range(left_indptr[r], left_indptr[r + 1]):
            row = counts[left_samples[p]]
            for q in range(right_indptr[r], right_indptr[r + 1]):
                row[right_samples[q]] += 1


# The output layer: ``values[p]`` is the activation σ_b(⟨w_r, x_i⟩) of the active pair (r, ``samples[p]``)


@vectorized
def listed_activations(X, W, threshold, indptr, samples, values, lo, hi):
    """Compute ``values[p] = ⟨w_r, x_i⟩ − threshold`` for the active pairs of neurons lo … hi−1.

    Cost O(d · active pairs).
    """
    for r in range(lo, hi):
        for p in range(indptr[r], indptr[r + 1]):
            values[p] = row_dot(W[r], X, samples[p], -threshold)


@inlined
def _gather_activations(indptr, samples, values, residual, r, totals):
    """Compute ``totals[c] = Σ_i active values_ri residual_ic`` for neuron r; residual (n, c)."""
    zero = values.dtype.type(0)
    if residual.shape[1] == 1:  # a loop without memory accesses but the gathered ones
        total = zero
        for p in range(indptr[r], indptr[r + 1]):
            total += values[p] * residual[np.uint64(samples[p]), 0]
        totals[0] = total
        return
    totals[:] = zero
    for p in range(indptr[r], indptr[r + 1]):
        row = residual[np.uint64(samples[p])]
        for c in range(row.size):
            totals[c] += values[p] * row[c]


@inlined
def _spread_activations(indptr, samples, values, factors, r, product):
    """Add ``factors[c] values_ri`` to ``product[i, c]`` for the active rows i of neuron r; product (n, c)."""
    if product.shape[1] == 1:
        factor = factors[0]
        for p in range(indptr[r], indptr[r + 1]):
            product[np.uint64(samples[p]), 0] += factor * values[p]
        return
    for p in range(indptr[r], indptr[r + 1]):
        row = product[np.uint64(samples[p])]
        for c in range(row.size):
            row[c] += factors[c] * values[p]


@vectorized
def output_tangent_product(indptr, samples, values, direction, gradients, product, lo, hi):
    """Add Σ_r σ_ri Σ_j σ_rj direction_jc over neurons lo … hi−1 to ``product`` (n, c). Cost O(c · active pairs).

    Arrays of length 0 leave out a half, so that one function is compiled for three products. Without ``product``,
    ``gradients[r, c] = Σ_j active σ_rj direction_jc`` is written. Without ``direction``, ``gradients`` is read. With
    both, it is not used.
    """
    has_direction, has_product = direction.shape[0] > 0, product.shape[0] > 0
    totals = new_array(direction.shape[1], values.dtype)
    for r in range(lo, hi):
        if has_direction:
            _gather_activations(indptr, samples, values, direction, r, totals)
        else:
            for c in range(totals.size):
                totals[c] = gradients[r, c]
        if has_product:
            _spread_activations(indptr, samples, values, totals, r, product)
        else:
            for c in range(totals.size):
                gradients[r, c] = totals[c]


@vectorized
def add_weighted_lists(indptr, samples, values, neurons, coefficients, table):
    """Add Σ_q ``coefficients[q, k]`` σ_ri, r = ``neurons[q]``, to ``table[k, i]``; coefficients (q, k), table (k, n).

    Coefficients of 0 cost little: for activations of k rows the cost is Σ_r (active ones of them) · (active rows).
    """
    for q in range(neurons.shape[0]):
        begin, end = indptr[neurons[q]], indptr[neurons[q] + 1]
        for k in range(coefficients.shape[1]):
            factor = coefficients[q, k]
            if factor != 0 and end > begin:
                row = table[k]
                for p in range(begin, end):
                    row[np.uint64(samples[p])] += factor * values[p]


# Lists by row and lists by neuron


@vectorized
def count_ids(ids, counts):
    """Add the number of occurrences of each id to ``counts``. Cost O(ids)."""
    for p in range(ids.shape[0]):
        counts[ids[p]] += 1


@vectorized
def transpose(indptr, ids, places, out):
    """Transpose lists: write k to ``out[places[i]]`` for every i in ``ids[indptr[k]:indptr[k+1]]``; advance places[i].

    At first ``places[i]`` is the start of the list of i in ``out``. Cost O(ids).
    """
    for k in range(indptr.shape[0] - 1):
        for p in range(indptr[k], indptr[k + 1]):
            place = places[ids[p]]
            out[place] = k
            places[ids[p]] = place + 1


# Neurons that are active for two rows. A neuron that is active for k rows adds 1 to k² entries of the table. If k is
# small, ``count_common_pairs`` visits these entries. Otherwise a bit for every row and neuron is cheaper: two rows are
# compared 64 neurons at a time, or 512 with AVX-512.


@vectorized
def pack_bits(indptr, samples, neurons, bits, lo, hi):
    """Set bit k of row i of ``bits`` (n, words) where neuron ``neurons[k]`` is active for i, for lo ≤ k < hi.

    Ranges that begin at multiples of 64 write to different words. Cost O(active pairs).
    """
    for k in range(lo, hi):
        r = neurons[k]
        word, bit = np.uint64(k >> 6), np.uint64(1) << np.uint64(k & 63)
        for p in range(indptr[r], indptr[r + 1]):
            bits[np.uint64(samples[p]), word] |= bit


@vectorized
def count_common_bits(bits, table, lo, hi):
    """Add the number of bits that rows i and j of ``bits`` share to ``table[i, j]``, for lo ≤ i < hi and j ≤ i.

    Cost n² words / 2 over all rows.
    """
    words = bits.shape[1]
    for first in range(0, hi, _TILE_ROWS):
        last = smaller(first + _TILE_ROWS, hi)
        for i in range(larger(lo, first), hi):
            stop = smaller(last, i + 1)
            j = first
            while j + _UNROLLED_ROWS <= stop:
                a = b = c = d = np.int64(0)
                for w in range(words):
                    own = bits[i, w]
                    a += count_bits(np.int64(own & bits[j, w]))
                    b += count_bits(np.int64(own & bits[j + 1, w]))
                    c += count_bits(np.int64(own & bits[j + 2, w]))
                    d += count_bits(np.int64(own & bits[j + 3, w]))
                table[i, j] += a
                table[i, j + 1] += b
                table[i, j + 2] += c
                table[i, j + 3] += d
                j += _UNROLLED_ROWS
            while j < stop:
                a = np.int64(0)
                for w in range(words):
                    a += count_bits(np.int64(bits[i, w] & bits[j, w]))
                table[i, j] += a
                j += 1


@vectorized
def count_common_pairs(indptr, samples, neurons, table, lo, hi):
    """Add the number of ``neurons`` that are active for i and j to ``table[i, j]``, for lo ≤ i < hi and all j.

    Tasks divide the rows, not the neurons, so that no two write to the same entry. Cost Σ_r k̃_r² over all rows.
    """
    for r in neurons:
        begin, end = indptr[r], indptr[r + 1]
        for p in range(begin, end):
            i = np.int64(samples[p])
            if lo <= i < hi:
                row = table[i]
                for q in range(begin, end):
                    row[np.uint64(samples[q])] += 1


@vectorized
def count_shared_bits(left, right, factor, table, lo, hi):
    """Set ``table[i, j]`` to ``factor`` · (bits that ``left[i]`` and ``right[j]`` share), for all i and lo ≤ j < hi.

    Blocks of 2 × 4 rows are compared in one loop, so that six loads serve eight counts; ``_TILE_ROWS`` rows of
    ``right`` stay in the cache. Cost len(left) · (hi − lo) · words; 3.5e9 vectors of 512 bits per second and core with
    AVX-512.
    """
    words = left.shape[1]
    paired = left.shape[0] - left.shape[0] % 2
    for first in range(lo, hi, _TILE_ROWS):
        last = smaller(first + _TILE_ROWS, hi)
        whole = last - (last - first) % _UNROLLED_ROWS
        for i in range(0, paired, 2):
            for j in range(first, whole, _UNROLLED_ROWS):
                a = b = c = d = e = f = g = h = np.int64(0)
                for w in range(words):
                    x, y = left[i, w], left[i + 1, w]
                    p, q, r, s = right[j, w], right[j + 1, w], right[j + 2, w], right[j + 3, w]
                    a += count_bits(np.int64(x & p))
                    b += count_bits(np.int64(x & q))
                    c += count_bits(np.int64(x & r))
                    d += count_bits(np.int64(x & s))
                    e += count_bits(np.int64(y & p))
                    f += count_bits(np.int64(y & q))
                    g += count_bits(np.int64(y & r))
                    h += count_bits(np.int64(y & s))
                table[i, j], table[i, j + 1], table[i, j + 2], table[i, j + 3] = (
                    a * factor,
                    b * factor,
                    c * factor,
                    d * factor,
                )
                table[i + 1, j], table[i + 1, j + 1], table[i + 1, j + 2], table[i + 1, j + 3] = (
                    e * factor,
                    f * factor,
                    g * factor,
                    h * factor,
                )
        for i in range(left.shape[0]):
            for j in range(whole if i < paired else first, last):
                a = np.int64(0)
                for w in range(words):
                    a += count_bits(np.int64(left[i, w] & right[j, w]))
                table[i, j] = a * factor


@vectorized
def pack_above(values, threshold, bits, first_word):
    """Set bit k of row i of ``bits`` (n, words), from ``first_word`` on, where ``values[i, k] > threshold``.

    ``values`` is (n, k) with k a multiple of 64. Cost n · k comparisons, 64 at a time.
    """
    for i in range(values.shape[0]):
        row = values[i]
        for w in range(values.shape[1] // LANES):
            bits[i, first_word + w] = np.uint64(above_bits(row, w * LANES, threshold))
