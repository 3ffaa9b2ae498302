"""The inner loops of Algorithm 2 with a certificate radius: passes over candidate lists, neuron by neuron.

Layout. Neuron r owns the slot from ``starts[r]`` on. ``samples`` holds its ``counts[r]`` candidates there by descending
``references``, upper bounds of the inner products when the list was made. The forward pass looks at a prefix of
``looked[r]`` candidates (``pending[r]`` is the reference of the next one, −∞ at the end) and writes those that fire to
``fired``, one array for the neurons of a call, packed: ``fired_counts[r]`` of them from ``fired_starts[r]`` on. The
backward pass reads nothing else of the lists. The loops over pairs have no branch that cannot be foreseen.

All functions work on some of the neurons and touch nothing of the others, so that lanes run side by side.
"""

import numpy as np

from fireset.kernels.compiling import part, vector
from fireset.kernels.firing import deciding_dot
from fireset.kernels.rows import add_rows, add_to_rows, dots, lanes_of
from fireset.kernels.steps import take_step

LEVELS = 32  # steps of the reference values between b − radius and b
SUMMED_AT_ONCE = 1024


@vector
def forward(
    rows,
    W,
    signs,
    threshold,
    starts,
    counts,
    samples,
    references,
    radii,
    reaches,
    bands,
    looked,
    pending,
    fired,
    fired_starts,
    fired_counts,
    sums,
    lo,
    hi,
):
    """Add a_r σ_b(⟨w_r, x_i⟩) of neurons lo … hi−1 to ``sums``, and note who fired.

    ``rows`` are the samples as ``aligned_rows`` lays them out; ``sums`` is (n,), or with c > 1 outputs (n, c), filled
    up likewise: each has code of its own. ``reaches[r]`` bounds how far any ⟨w_r, x_i⟩ may have risen since the list
    was made, rounding included: candidates with reference ≤ b − reach cannot fire and, the list being sorted, are a
    suffix. A reach beyond ``radii[r]`` means that the list no longer certifies anything. ``fired`` needs room for all
    candidates and one more. Returns (looked at, fired, first neuron beyond its radius or −1). Cost O(d · looked at).
    """
    d = W.shape[1]
    lanes = lanes_of(rows)
    zero = threshold - threshold
    w = np.zeros(rows.shape[1], W.dtype)
    sign_row = np.zeros(1 if sums.ndim == 1 else sums.shape[1], W.dtype)
    excess = np.empty(rows.shape[0] + lanes, W.dtype)
    few = np.empty(lanes, np.int32)
    looked_total = 0
    place = np.uint64(0)  # in ``fired``; a signed index would be asked whether it is negative
    violated = -1
    for r in range(lo, hi):
        start = starts[r]
        count = counts[r]
        if not reaches[r] <= radii[r] and violated < 0:
            violated = r
        lowest = threshold - reaches[r]
        k = looked[r]
        if pending[r] > lowest:
            while k < count and references[start + k] > lowest:
                k += 1
            looked[r] = k
            pending[r] = references[start + k] if k < count else -np.inf
        for j in range(d):
            w[j] = W[r, j]
        if k >= lanes:
            for p in range(0, k - lanes + 1, lanes):
                dots(rows, samples, start + p, w, threshold, excess, p)
            dots(rows, samples, start + k - lanes, w, threshold, excess, k - lanes)  # the last ones, some of them again
        elif k > 0:
            for p in range(lanes):
                few[p] = samples[start + min(p, k - 1)]
            dots(rows, few, 0, w, threshold, excess, 0)
        band = bands[r]
        if band >= zero:
            for p in range(k):
                if not abs(excess[p]) > band:  # this way round sums that overflowed are asked, too
                    excess[p] = deciding_dot(W[r], rows[samples[start + p]]) - threshold
        first, begin = np.uint64(start), place
        if sums.ndim == 1:
            sign = signs[r, 0]
            for p in range(k):
                i = np.uint32(samples[first + np.uint64(p)])
                value = excess[p]
                fires = not value <= zero  # this way round a NaN is passed on
                sums[i] += sign * (value if fires else zero)
                fired[place] = i
                place += np.uint64(fires)
        else:
            for p in range(k):
                value = excess[p]
                fired[place] = samples[first + np.uint64(p)]
                excess[place - begin] = value
                place += np.uint64(not value <= zero)
            for c in range(signs.shape[1]):
                sign_row[c] = signs[r, c]
            add_to_rows(sums, fired, begin, place - begin, excess, sign_row)
        fired_starts[r] = begin
        fired_counts[r] = place - begin
        looked_total += k
    return looked_total, np.int64(place), violated


@vector
def backward(
    rows,
    W,
    V,
    signs,
    residual,
    looked,
    fired,
    fired_starts,
    fired_counts,
    rate,
    momentum,
    nesterov,
    speeds,
    misses,
    lo,
    hi,
):
    """One gradient step on neurons lo … hi−1, on the fired pairs that ``forward`` noted.

    ``G_r = Σ_i fired (Σ_c a_rc residual_ic) x_i``; then ``take_step``. ``V`` has no rows when momentum is off.
    ``rows`` and ``residual`` are laid out as the rows and the sums of ``forward``. ``speeds[r]`` receives a bound on
    ‖Δw_r‖; ``misses[r]`` grows by the near misses looked at. A neuron at rest (speed 0) that does not fire is
    left alone. Cost O(d · fired).
    """
    gradient = np.empty(rows.shape[1], W.dtype)
    sign_row = np.zeros(1 if residual.ndim == 1 else residual.shape[1], W.dtype)
    pushes = np.empty(rows.shape[0] + lanes_of(rows), W.dtype)
    few = np.empty(lanes_of(rows), np.int32)
    rolling = V.shape[0] > 0
    for r in range(lo, hi):
        count = fired_counts[r]
        misses[r] += looked[r] - count
        if count == 0 and (not rolling or speeds[r] == 0.0):
            speeds[r] = 0.0
            continue
        gradient[:] = rate - rate
        _add_gradient(rows, signs, residual, r, fired, fired_starts[r], count, sign_row, pushes, few, gradient)
        speeds[r] = take_step(W, V, r, gradient, rate, momentum, nesterov)


@vector
def add_gradients(rows, signs, residual, looked, fired, fired_starts, fired_counts, misses, gradients, lo, hi):
    """The first half of ``backward``, for one of several blocks of samples: adds its share of G_r to row r − lo."""
    sign_row = np.zeros(1 if residual.ndim == 1 else residual.shape[1], rows.dtype)
    pushes = np.empty(rows.shape[0] + lanes_of(rows), rows.dtype)
    few = np.empty(lanes_of(rows), np.int32)
    for r in range(lo, hi):
        count = fired_counts[r]
        misses[r] += looked[r] - count
        if count > 0:
            gradient = gradients[r - lo]
            _add_gradient(rows, signs, residual, r, fired, fired_starts[r], count, sign_row, pushes, few, gradient)


@vector
def take_steps(W, V, gradients, fired_counts, rate, momentum, nesterov, speeds, lo, hi):
    """The second half of ``backward``; ``fired_counts[r − lo]`` is the number of samples of all blocks."""
    rolling = V.shape[0] > 0
    for r in range(lo, hi):
        if fired_counts[r - lo] == 0 and (not rolling or speeds[r] == 0.0):
            speeds[r] = 0.0
        else:
            speeds[r] = take_step(W, V, r, gradients[r - lo], rate, momentum, nesterov)


@part
def _add_gradient(rows, signs, residual, r, fired, start, count, sign_row, pushes, few, gradient):
    """Add Σ_i (Σ_c a_rc residual_ic) x_i over ``fired[start : start + count]`` to ``gradient``; the rest is scratch."""
    lanes = lanes_of(rows)
    zero = rows.dtype.type(0)
    if residual.ndim == 1:
        sign = signs[r, 0]
        first = np.uint64(start)  # a signed index would be asked whether it is negative
        for p in range(count):
            pushes[p] = sign * residual[np.uint32(fired[first + np.uint64(p)])]
    else:
        for c in range(signs.shape[1]):
            sign_row[c] = signs[r, c]
        if count >= lanes:
            for p in range(0, count - lanes + 1, lanes):
                dots(residual, fired, start + p, sign_row, zero, pushes, p)
            dots(residual, fired, start + count - lanes, sign_row, zero, pushes, count - lanes)
        elif count > 0:
            for p in range(lanes):
                few[p] = fired[start + min(p, count - 1)]
            dots(residual, few, 0, sign_row, zero, pushes, 0)
    # Some samples at a time: what many samples add up to in float32 keeps its digits when it is added up in parts.
    for p in range(0, count, SUMMED_AT_ONCE):
        add_rows(rows, fired, start + p, min(SUMMED_AT_ONCE, count - p), pushes, p, gradient)


@vector
def fill(neurons, indptr, ids, values, threshold, slacks, radii, room, starts, counts, samples, references):
    """Store freshly reported candidates as the lists of ``neurons``, sorted into levels of descending value.

    Neuron ``neurons[k]`` gets ``ids[indptr[k]:indptr[k+1]]``. What fires already comes first, with reference ∞; the
    near misses follow in ``LEVELS`` steps of equal height, each with the upper edge of its level as reference, so that
    a counting sort suffices. Where a list has no room, its lowest levels are left out and ``radii[k]`` shrinks to what
    the rest still certifies: every sample left out has a value of at most b − radius. ``slacks`` cover the rounding of
    the edges. The caller looks at ``radii``, which may fall below what is worth having. Cost O(candidates).
    """
    places = np.empty(LEVELS + 2, np.int64)
    edges = np.empty(LEVELS + 1, references.dtype)
    longest = 0
    for k in range(neurons.shape[0]):
        longest = max(longest, indptr[k + 1] - indptr[k])
    levels = np.empty(longest, np.uint8)
    for k in range(neurons.shape[0]):
        r = neurons[k]
        start = starts[r]
        slack = slacks[k]
        height = max(radii[k], slack) / LEVELS
        scale = 1.0 / height
        first = indptr[k]
        length = indptr[k + 1] - first
        for p in range(length):
            levels[p] = _level(threshold, values[first + p], scale)
        places[:] = 0
        for p in range(length):
            places[np.uint64(levels[p]) + np.uint64(1)] += 1
        kept = LEVELS + 1
        for level in range(LEVELS + 1):
            places[level + 1] += places[level]
            if places[level + 1] > room[k] and kept > level:
                kept = level
            edges[level] = np.inf if level == 0 else threshold - (level - 1) * height + slack
        counts[r] = places[kept]
        if kept == 0:  # no room even for what fires: nothing is certified
            radii[k] = -np.inf
        elif kept <= LEVELS:  # the upper edge of the highest level left out
            radii[k] = (kept - 1) * height - slack
        for p in range(length):
            level = np.uint64(levels[p])
            if level < kept:
                place = np.uint64(start + places[level])
                samples[place] = ids[first + p]
                references[place] = edges[level]
                places[level] += 1


@vector
def _level(threshold, value, scale):
    """0 for what fires, else 1 + the number of whole heights below b, at most LEVELS."""
    below = np.float64(threshold) - np.float64(value)
    return np.uint8(0) if below < 0 else np.uint8(min(1.0 + below * scale, 1.0 * LEVELS))


@vector
def relocate(old_starts, counts, old, new_starts, new, lo, hi):
    """Copy what ``old`` holds of the lists of neurons lo … hi−1 to their new slots in ``new``."""
    for r in range(lo, hi):
        begin, end = old_starts[r], new_starts[r]
        for p in range(counts[r]):
            new[end + p] = old[begin + p]
