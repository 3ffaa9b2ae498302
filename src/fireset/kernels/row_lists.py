"""Forward and backward passes over candidate lists by row, for a batch of rows.

Neurons are divided into blocks whose weights fit into the cache of a core. For each block all rows of the batch are
processed, so that the weights are read from memory once a batch. The list of a row is cut at the blocks, and an id is
the position of a neuron in its block, in 16 bits.

Weights, samples and gradients have the layout of ``fireset._util.aligned.aligned_rows``.
"""

from typing import NamedTuple

import numpy as np

from fireset.kernels.allocation import new_array
from fireset.kernels.compiling import inlined, strict_internal, vectorized
from fireset.kernels.extrema import larger, smaller
from fireset.kernels.firing import fused_dot
from fireset.kernels.rows import ROWS_AT_ONCE, add_rows, add_to_rows
from fireset.kernels.sparse_rows import list_dots
from fireset.kernels.steps import take_step

LEVELS = 4  # distances below the threshold that lists distinguish


class Neurons(NamedTuple):
    """The network."""

    weights: np.ndarray  # (m, d), aligned
    outputs: np.ndarray  # (m, c), a_rc
    threshold: float
    block: int  # neurons in a block


class Batch(NamedTuple):
    """A batch of rows."""

    samples: np.ndarray  # (n, d), aligned
    rows: np.ndarray  # (k,), indices of the rows in the batch


class Lists(NamedTuple):
    """Candidate lists by row and block, sorted into ``LEVELS`` levels by the distance of ⟨w_r, x_i⟩ below b.

    Row i has the candidates ``ids[starts[i] + cuts[i, LEVELS·q] : starts[i] + cuts[i, LEVELS·q + l + 1]]`` in block q
    up to level l.
    """

    ids: np.ndarray  # int16
    starts: np.ndarray  # (n,), −1 for a row without lists
    cuts: np.ndarray  # (n, LEVELS · blocks + 1), int32


class ActiveLists(NamedTuple):
    """Active pairs of a range of blocks.

    In block q of the range, row k of the batch has the neurons ``ids[ends[q, k] : ends[q, k + 1]]``.
    """

    ids: np.ndarray  # int16, positions in the block; space for all candidates and all neurons that are far off
    ends: np.ndarray  # (blocks of the range, rows + 1)
    values: np.ndarray  # ⟨w_r, x_i⟩ − b, or empty if not needed


@vectorized
def cut_rows(indptr, neurons, values, threshold, height, block, ids, cuts, lo, hi):
    """Sort the reported neurons of rows lo … hi−1 into blocks and levels.

    Row k has ``neurons[indptr[k]:indptr[k+1]]``, ascending, with ``values`` ⟨w_r, x_k⟩; its candidates are written to
    the same range of ``ids``, and its cuts to ``cuts[k]``. Level l has values above b − (l + 1)·``height``. Cost
    O(candidates).
    """
    places, counts = new_array(LEVELS + 1, np.int64), new_array(LEVELS, np.int64)
    longest = np.int64(0)
    for k in range(lo, hi):
        longest = max(longest, indptr[k + 1] - indptr[k])
    levels = new_array(longest, np.uint8)
    scale = 1.0 / height
    for k in range(lo, hi):
        first, p, end = indptr[k], indptr[k], indptr[k + 1]
        for t in range(end - first):  # a loop of its own, which LLVM vectorizes
            levels[t] = _level(threshold, values[first + t], scale)
        cuts[k, 0] = 0
        for q in range((cuts.shape[1] - 1) // LEVELS):
            begin, stop = p, (q + 1) * block
            counts[:] = 0
            while p < end and neurons[p] < stop:
                counts[np.uint64(levels[np.uint64(p - first)])] += 1
                p += 1
            places[0] = begin
            for level in range(LEVELS):
                places[level + 1] = places[level] + counts[level]
                cuts[k, LEVELS * q + level + 1] = places[level + 1] - first
            for t in range(begin, p):
                level = np.uint64(levels[np.uint64(t - first)])
                place = places[level]
                ids[np.uint64(place)] = neurons[t] - q * block
                places[level] = place + 1


@inlined
def _level(threshold, value, scale):
    """Return the number of whole heights by which a value is below b, at most LEVELS − 1; 0 for active pairs."""
    below = (np.float64(threshold) - np.float64(value)) * scale
    return smaller(larger(np.int64(below), 0), LEVELS - 1)


@vectorized
def forward_rows(neurons, batch, lists, level, far_off, band, active, sums, lo, hi):
    """Add a_rc σ_b(⟨w_r, x_i⟩) of the neurons of blocks lo … hi−1 to ``sums`` (k, c), and write the active pairs.

    The lists are tested up to ``level``. Neurons with nonzero ``far_off[r]`` are tested for all rows instead: the lists
    do not cover them. ``far_off`` is empty if there are none. ``band`` is the half-width around b in which
    ``deciding_dot`` decides, negative for none. Returns (pairs tested, active pairs). Cost O(d · pairs tested).
    """
    W, outputs, threshold, block = neurons
    X, rows = batch
    ids, starts, cuts = lists
    active_ids, ends, values = active
    zero = threshold - threshold
    excess = np.empty(block + ROWS_AT_ONCE, W.dtype)
    far, skipped = np.empty(block, np.int16), np.zeros(block, np.uint8)
    tested, place = 0, np.uint64(0)  # for a signed index numba adds a check whether it is negative
    for q in range(lo, hi):
        first, stop = q * block, smaller((q + 1) * block, W.shape[0])
        Wq, own_outputs = W[first:stop], outputs[first:stop]
        n_far = 0
        if far_off.shape[0] > 0:
            for r in range(stop - first):
                far[n_far] = r
                skipped[r] = far_off[first + r]
                n_far += far_off[first + r] != 0
        ends[q - lo, 0] = place
        for k in range(rows.shape[0]):
            x = X[rows[k]]
            begin = starts[rows[k]] + cuts[rows[k], LEVELS * q]
            count = starts[rows[k]] + cuts[rows[k], LEVELS * q + level + 1] - begin
            _excesses(Wq, ids, begin, count, x, threshold, band, excess)
            if n_far > 0:
                for p in range(count):
                    if skipped[ids[begin + p]] != 0:
                        excess[p] = zero
            place = _collect(ids, begin, count, excess, own_outputs, active_ids, values, place, sums, k)
            tested += count
            if n_far > 0:
                _excesses(Wq, far, 0, n_far, x, threshold, band, excess)
                place = _collect(far, 0, n_far, excess, own_outputs, active_ids, values, place, sums, k)
                tested += n_far
            ends[q - lo, k + 1] = place
    return tested, np.int64(place)


@inlined
def _excesses(W, ids, begin, count, x, threshold, band, excess):
    """Compute ``excess[p] = ⟨w, x⟩ − b`` for the neurons ``ids[begin + p]``, p < ``count``, decided within the band."""
    list_dots(W, ids, begin, count, x, threshold, excess)
    if band >= threshold - threshold:
        for p in range(count):
            if not abs(excess[p]) > band:  # also true for the NaN of a sum that overflowed
                excess[p] = fused_dot(W[ids[begin + p]], x) - threshold


@inlined
def _collect(ids, begin, count, excess, outputs, active, values, place, sums, k):
    """Append the active ones of these neurons to ``active``, and add a_rc · excess to row k of ``sums``.

    Returns the next free place of ``active``.
    """
    zero = excess.dtype.type(0)
    start, first = np.uint64(begin), place
    for p in range(count):
        value = excess[p]
        active[place] = ids[start + np.uint64(p)]
        excess[place - first] = value
        place += np.uint64(not value <= zero)  # true for a NaN, which must stay visible
    found = np.int64(place - first)
    if values.shape[0] > 0:
        for p in range(found):
            values[first + np.uint64(p)] = excess[p]
    if outputs.shape[1] == 1:
        total = zero
        for p in range(found):
            total += outputs[np.uint64(active[first + np.uint64(p)]), np.uint64(0)] * excess[p]
        sums[k, 0] += total
    else:
        for p in range(found):
            r = np.uint64(active[first + np.uint64(p)])
            for c in range(outputs.shape[1]):
                sums[k, c] += outputs[r, np.uint64(c)] * excess[p]
    return place


@vectorized
def measure(W, references, moved, lo, hi):
    """Set ``moved[r]`` to ‖w_r − reference_r‖, rounded up, for lo ≤ r < hi. Cost O(d) for each neuron."""
    for r in range(lo, hi):
        moved[r] = _distance(W[r], references[r])


@inlined
def _distance(w, reference):
    squares = w.dtype.type(0)
    for j in range(w.shape[0]):
        change = _change(w[j], reference[j])
        squares += change * change
    eps = 1.2e-7 if w.itemsize == 4 else 2.3e-16
    return np.sqrt(np.float64(squares)) * (1.0 + (w.shape[0] + 8) * eps) + 1e-18  # covers squares lost to underflow


@strict_internal
def _change(a, b):
    """Return a − b. In a ``vectorized`` kernel LLVM would cancel the rounding of the step that was just taken."""
    return a - b


@vectorized
def add_weight_gradients(batch, outputs, residual, active, gradients, block, lo, hi):
    """Set row r of ``gradients``, aligned, to Σ_i active (Σ_c a_rc residual_ic) x_i, for blocks lo … hi−1.

    Cost O(d · active pairs).
    """
    coefficients = np.empty(block, gradients.dtype)
    for q in range(lo, hi):
        first = q * block
        own = gradients[first : first + block]
        own[:] = 0
        add_block(batch, outputs[first:], residual, active, q - lo, coefficients, own)


@inlined
def add_block(batch, outputs, residual, active, q, coefficients, gradients):
    """Add the gradients of the neurons of block q of the range to ``gradients``; ``coefficients`` is scratch."""
    X, rows = batch
    for k in range(rows.shape[0]):
        begin, end = active.ends[q, k], active.ends[q, k + 1]
        _row_coefficients(outputs, residual, k, active.ids, begin, end, coefficients)
        add_to_rows(gradients, active.ids, begin, end - begin, coefficients, X[rows[k]])


@inlined
def _row_coefficients(outputs, residual, k, ids, begin, end, coefficients):
    """Compute ``coefficients[p] = Σ_c a_rc residual_kc`` for the active neurons r = ``ids[begin + p]`` of row k."""
    start = np.uint64(begin)
    for p in range(end - begin):
        r = np.uint64(ids[start + np.uint64(p)])
        total = outputs[r, np.uint64(0)] * residual[k, 0]
        for c in range(1, outputs.shape[1]):
            total += outputs[r, np.uint64(c)] * residual[k, c]
        coefficients[p] = total


@vectorized
def add_output_gradients(residual, active, gradients, block, lo, hi):
    """Add Σ_i active (⟨w_r, x_i⟩ − b) residual_ic to row r of ``gradients`` (m, c), for blocks lo … hi−1.

    Needs ``active.values``. Cost O(c · active pairs).
    """
    for q in range(lo, hi):
        for k in range(residual.shape[0]):
            for p in range(active.ends[q - lo, k], active.ends[q - lo, k + 1]):
                r = q * block + active.ids[p]
                for c in range(residual.shape[1]):
                    gradients[r, c] += active.values[p] * residual[k, c]


@vectorized
def add_row_gradients(neurons, residual, active, gradients, lo, hi):
    """Add Σ_r active (Σ_c a_rc residual_kc) w_r to row k of ``gradients``, aligned, for blocks lo … hi−1.

    Cost O(d · active pairs).
    """
    W, outputs, _, block = neurons
    coefficients = np.empty(block, W.dtype)
    for q in range(lo, hi):
        first = q * block
        for k in range(residual.shape[0]):
            begin, end = active.ends[q - lo, k], active.ends[q - lo, k + 1]
            _row_coefficients(outputs[first:], residual, k, active.ids, begin, end, coefficients)
            add_rows(W[first:], active.ids, begin, end - begin, coefficients, 0, gradients[k])


@vectorized
def step_blocks(neurons, velocity, batch, residual, active, rule, references, moved, lo, hi):
    """Take one gradient step with the neurons of blocks lo … hi−1 on the active pairs of ``forward_rows``.

    ``velocity`` is aligned like the weights, or has no rows; ``rule`` is (rate, momentum, nesterov). ``moved`` receives
    the distances of ``measure``. Cost O(d · (active pairs + neurons)).
    """
    W, outputs, _, block = neurons
    rate, momentum, nesterov = rule
    coefficients = np.empty(block, W.dtype)
    gradients = np.empty((block, W.shape[1]), W.dtype)
    for q in range(lo, hi):
        first, stop = q * block, smaller((q + 1) * block, W.shape[0])
        gradients[: stop - first] = 0
        add_block(batch, outputs[first:], residual, active, q - lo, coefficients, gradients)
        for r in range(first, stop):
            if velocity.shape[0] > 0:
                take_step(W, velocity, r, gradients[r - first], rate, momentum, nesterov)
            else:
                for j in range(W.shape[1]):
                    W[r, j] -= rate * gradients[r - first, j]
            moved[r] = _distance(W[r], references[r])


@vectorized
def add_products(weights, batch, active, block, values, lo, hi):
    """Add ⟨w_r, x_i⟩ of every active pair of blocks lo … hi−1 to its entry of ``values``.

    ``weights`` and ``batch`` may hold other vectors than those of the forward pass, for second derivatives. Cost O(d)
    for each pair.
    """
    X, rows = batch
    for q in range(lo, hi):
        for k in range(rows.shape[0]):
            x = X[rows[k]]
            for p in range(active.ends[q - lo, k], active.ends[q - lo, k + 1]):
                w = weights[q * block + active.ids[p]]
                total = values.dtype.type(0)
                for j in range(w.shape[0]):
                    total += w[j] * x[j]
                values[p] += total


@vectorized
def add_sums(outputs, active, block, values, sums, lo, hi):
    """Add Σ_r active values_ri a_rc to ``sums`` (k, c), float64, for blocks lo … hi−1. Cost O(c) for each pair."""
    for q in range(lo, hi):
        for k in range(sums.shape[0]):
            for p in range(active.ends[q - lo, k], active.ends[q - lo, k + 1]):
                r = q * block + active.ids[p]
                for c in range(sums.shape[1]):
                    sums[k, c] += values[p] * outputs[r, c]
