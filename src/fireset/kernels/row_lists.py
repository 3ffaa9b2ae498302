"""Passes over lists of neurons by row: for a batch of rows, which neurons fire, and what follows from it.

Neurons come in blocks whose weights fit into a core's cache, and for each block all rows of the batch are gone
through; their lists are cut at the blocks (``starts``), and name a neuron by its place in the block, in 16 bits. So
every row of weights is read from memory once a batch, however many rows fire it.

Weights, samples and gradients are laid out as ``fireset._util.aligned.aligned_rows`` has them.
"""

from typing import NamedTuple

import numpy as np

from fireset.kernels.compiling import inlined, strict, vectorized
from fireset.kernels.firing import deciding_dot
from fireset.kernels.rows import add_rows, add_to_rows, dots, lanes_of
from fireset.kernels.steps import take_step

LEVELS = 4


class Neurons(NamedTuple):
    """A network as the passes read it."""

    weights: np.ndarray  # (m, d), aligned
    outputs: np.ndarray  # (m, c), a_rc
    threshold: float
    block: int  # neurons of a block


class Batch(NamedTuple):
    """Rows of a table."""

    samples: np.ndarray  # (n, d), aligned
    rows: np.ndarray  # (k,), the numbers of those that are in the batch


class Lists(NamedTuple):
    """Who may fire, by row, by block, and by how far below b the inner product was: in ``LEVELS`` steps.

    Row i has ``ids[starts[i] + cuts[i, LEVELS·q] : starts[i] + cuts[i, LEVELS·q + l + 1]]`` of block q up to level l,
    by their places in the block.
    """

    ids: np.ndarray  # int16
    starts: np.ndarray  # (n,), −1 for a row without lists
    cuts: np.ndarray  # (n, LEVELS · blocks + 1), int32


class ActiveLists(NamedTuple):
    """Who fires, for the blocks of a range: row k of the batch has those from ``ends[q, k − 1]`` to ``ends[q, k]``."""

    ids: np.ndarray  # int16, by place in the block; room for all candidates and all neurons that are far off
    ends: np.ndarray  # (blocks of the range, rows + 1); the first of a block is the last of the one before
    values: np.ndarray  # ⟨w_r, x_i⟩ − b, or empty where nobody needs them


@vectorized
def cut_rows(indptr, neurons, values, threshold, height, block, ids, cuts, lo, hi):
    """Sort what was reported for rows lo … hi−1 into blocks and levels; row k has ``neurons[indptr[k]:indptr[k+1]]``.

    They are ascending, with ``values`` ⟨w_r, x_k⟩, and go to the same places of ``ids``. Level l is for values above
    b − (l + 1)·``height``. Cost O(candidates).
    """
    places = np.empty(LEVELS + 1, np.int64)
    scale = 1.0 / height
    for k in range(lo, hi):
        first, p, end = indptr[k], indptr[k], indptr[k + 1]
        cuts[k, 0] = 0
        for q in range((cuts.shape[1] - 1) // LEVELS):
            begin, stop = p, (q + 1) * block
            places[:] = 0
            while p < end and neurons[p] < stop:
                places[_level(threshold, values[p], scale) + 1] += 1
                p += 1
            for level in range(LEVELS):
                places[level + 1] += places[level]
                cuts[k, LEVELS * q + level + 1] = begin - first + places[level + 1]
            for t in range(begin, p):
                level = _level(threshold, values[t], scale)
                ids[begin + places[level]] = neurons[t] - q * block
                places[level] += 1


@inlined
def _level(threshold, value, scale):
    """How many whole heights a value lies below b; none for what fires."""
    below = (np.float64(threshold) - np.float64(value)) * scale
    return min(max(np.int64(below), 0), LEVELS - 1)


@vectorized
def forward_rows(neurons, batch, lists, level, far_off, band, active, sums, lo, hi):
    """Add a_rc σ_b(⟨w_r, x_i⟩) of the neurons of blocks lo … hi−1 to ``sums`` (k, c), and note who fired.

    Of the lists the levels up to ``level`` are looked at. Neurons with ``far_off[r]`` are looked at for all rows,
    whatever the lists say; it has no entries where there are none. ``band`` is the half-width around b in which
    ``deciding_dot`` has the last word, negative for none. Returns (pairs looked at, pairs that fired). Cost
    O(d · looked at).
    """
    W, outputs, threshold, block = neurons
    X, rows = batch
    ids, starts, cuts = lists
    active_ids, ends, values = active
    zero = threshold - threshold
    lanes = lanes_of(W)
    excess = np.empty(block + lanes, W.dtype)
    far, skipped = np.empty(block, np.int16), np.zeros(block, np.uint8)
    few = np.empty(lanes, np.int16)
    looked, place = 0, np.uint64(0)  # a signed index would be asked whether it is negative
    for q in range(lo, hi):
        first, stop = q * block, min((q + 1) * block, W.shape[0])
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
            _excesses(Wq, ids, begin, count, x, threshold, band, excess, few)
            if n_far > 0:
                for p in range(count):
                    if skipped[ids[begin + p]] != 0:
                        excess[p] = zero
            place = _collect(ids, begin, count, excess, own_outputs, active_ids, values, place, sums, k)
            looked += count
            if n_far > 0:
                _excesses(Wq, far, 0, n_far, x, threshold, band, excess, few)
                place = _collect(far, 0, n_far, excess, own_outputs, active_ids, values, place, sums, k)
                looked += n_far
            ends[q - lo, k + 1] = place
    return looked, np.int64(place)


@inlined
def _excesses(W, ids, begin, count, x, threshold, band, excess, few):
    """``excess[p] = ⟨w, x⟩ − b`` for the neurons ``ids[begin + p]``, p below ``count``."""
    _all_dots(W, ids, begin, count, x, threshold, excess, few)
    if band >= threshold - threshold:
        for p in range(count):
            if not abs(excess[p]) > band:  # true for the NaN of a sum that overflowed, too
                excess[p] = deciding_dot(W[ids[begin + p]], x) - threshold


@inlined
def _collect(ids, begin, count, excess, outputs, active, values, place, sums, k):
    """Note who of these neurons fires, and add what they say to row k of ``sums``; returns the next place."""
    zero = excess.dtype.type(0)
    start, first = np.uint64(begin), place
    for p in range(count):
        value = excess[p]
        active[place] = ids[start + np.uint64(p)]
        excess[place - first] = value
        place += np.uint64(not value <= zero)  # true for a NaN, which must not vanish
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


@inlined
def _all_dots(W, ids, begin, count, x, threshold, excess, few):
    """``excess[p] = ⟨w, x⟩ − b`` for the neurons ``ids[begin + p]``, p below ``count``."""
    lanes = lanes_of(W)
    if count >= lanes:
        for p in range(0, count - lanes + 1, lanes):
            dots(W, ids, begin + p, x, threshold, excess, p)
        dots(W, ids, begin + count - lanes, x, threshold, excess, count - lanes)  # the last ones, some of them again
    elif count > 0:
        for p in range(lanes):
            few[p] = ids[begin + min(p, count - 1)]
        dots(W, few, 0, x, threshold, excess, 0)


@vectorized
def measure(W, references, moved, lo, hi):
    """``moved[r]`` becomes the distance of w_r from its reference, rounded up, for lo ≤ r < hi."""
    for r in range(lo, hi):
        moved[r] = _distance(W[r], references[r])


@inlined
def _distance(w, reference):
    squares = w.dtype.type(0)
    for j in range(w.shape[0]):
        change = _change(w[j], reference[j])
        squares += change * change
    eps = 1.2e-7 if w.itemsize == 4 else 2.3e-16
    return np.sqrt(np.float64(squares)) * (1.0 + (w.shape[0] + 8) * eps) + 1e-18  # for squares lost to underflow


@strict
def _change(a, b):
    """a − b as it is stored. In a ``vectorized`` kernel the rounding of a step just taken would be simplified away."""
    return a - b


@vectorized
def add_weight_gradients(batch, outputs, residual, active, gradients, block, lo, hi):
    """Row r of ``gradients``, aligned, becomes Σ_i fired (Σ_c a_rc residual_ic) x_i, for blocks lo … hi−1."""
    pushes = np.empty(block, gradients.dtype)
    for q in range(lo, hi):
        first = q * block
        own = gradients[first : first + block]
        own[:] = 0
        _add_block(batch, outputs[first:], residual, active, q - lo, pushes, own)


@inlined
def _add_block(batch, outputs, residual, active, q, pushes, gradients):
    """The share of one block; ``pushes`` is scratch."""
    X, rows = batch
    for k in range(rows.shape[0]):
        begin, end = active.ends[q, k], active.ends[q, k + 1]
        _push(outputs, residual, k, active.ids, begin, end, pushes)
        add_to_rows(gradients, active.ids, begin, end - begin, pushes, X[rows[k]])


@inlined
def _push(outputs, residual, k, ids, begin, end, pushes):
    """``pushes[p] = Σ_c a_rc residual_kc`` for the neurons r that fire for row k."""
    start = np.uint64(begin)
    for p in range(end - begin):
        r = np.uint64(ids[start + np.uint64(p)])
        push = outputs[r, np.uint64(0)] * residual[k, 0]
        for c in range(1, outputs.shape[1]):
            push += outputs[r, np.uint64(c)] * residual[k, c]
        pushes[p] = push


@vectorized
def add_output_gradients(residual, active, gradients, block, lo, hi):
    """Add Σ_i fired (⟨w_r, x_i⟩ − b) residual_ic to row r of ``gradients`` (m, c), for blocks lo … hi−1."""
    for q in range(lo, hi):
        for k in range(residual.shape[0]):
            for p in range(active.ends[q - lo, k], active.ends[q - lo, k + 1]):
                r = q * block + active.ids[p]
                for c in range(residual.shape[1]):
                    gradients[r, c] += active.values[p] * residual[k, c]


@vectorized
def add_row_gradients(neurons, residual, active, gradients, lo, hi):
    """Add Σ_r fired (Σ_c a_rc residual_ic) w_r to row k of ``gradients``, aligned, for blocks lo … hi−1."""
    W, outputs, _, block = neurons
    pushes = np.empty(block, W.dtype)
    for q in range(lo, hi):
        first = q * block
        for k in range(residual.shape[0]):
            begin, end = active.ends[q - lo, k], active.ends[q - lo, k + 1]
            _push(outputs[first:], residual, k, active.ids, begin, end, pushes)
            add_rows(W[first:], active.ids, begin, end - begin, pushes, 0, gradients[k])


@vectorized
def step_blocks(neurons, velocity, batch, residual, active, rule, references, moved, lo, hi):
    """One gradient step on the neurons of blocks lo … hi−1, on the pairs that ``forward_rows`` noted.

    ``velocity`` is aligned as the weights are, or has no rows; ``rule`` is (rate, momentum, nesterov). ``moved`` is as
    ``measure`` makes it.
    """
    W, outputs, _, block = neurons
    rate, momentum, nesterov = rule
    pushes = np.empty(block, W.dtype)
    gradients = np.empty((block, W.shape[1]), W.dtype)
    for q in range(lo, hi):
        first, stop = q * block, min((q + 1) * block, W.shape[0])
        gradients[: stop - first] = 0
        _add_block(batch, outputs[first:], residual, active, q - lo, pushes, gradients)
        for r in range(first, stop):
            if velocity.shape[0] > 0:
                take_step(W, velocity, r, gradients[r - first], rate, momentum, nesterov)
            else:
                for j in range(W.shape[1]):
                    W[r, j] -= rate * gradients[r - first, j]
            moved[r] = _distance(W[r], references[r])
