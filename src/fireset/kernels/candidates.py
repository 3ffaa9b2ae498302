"""The inner loops of Algorithm 2 with a certificate radius: passes over candidate lists, neuron by neuron.

Layout (``ListArrays``). Neuron r owns the slot from ``starts[r]`` on. ``samples`` holds its ``counts[r]`` candidates
there by descending ``references``, upper bounds of the inner products when the list was made. The forward pass looks
at a prefix of ``prefix_lengths[r]`` candidates (``next_references[r]`` is the reference of the next one, −∞ at the end)
and writes those that fire to ``fired``, one array for the neurons of a call, packed: ``active_counts[r]`` of them from
``active_starts[r]`` on. The backward pass reads nothing else of the lists. The loops over pairs have no branch that
cannot be foreseen.

All functions work on some of the neurons and touch nothing of the others, so that ranges of them run side by side.
Arrays that always travel together come as named tuples, which are unpacked once at the entry: that costs 0.7 µs a call
(a tuple handed on to an inner function would count references for every neuron).
"""

from typing import NamedTuple

import numpy as np

from fireset.kernels.compiling import inlined, vectorized
from fireset.kernels.firing import decide
from fireset.kernels.rows import add_to_rows, lanes_of
from fireset.kernels.sparse_rows import add_listed_rows, list_dots, neuron_weights, row_dot
from fireset.kernels.steps import take_step


class ListArrays(NamedTuple):
    """The candidate lists of all neurons over some samples, as the head of this file lays them out."""

    starts: np.ndarray  # (m,) int64
    counts: np.ndarray  # (m,) int32
    samples: np.ndarray  # (places,) int32
    references: np.ndarray  # (places,)
    prefix_lengths: np.ndarray  # (m,) int32
    next_references: np.ndarray  # (m,)
    active_starts: np.ndarray  # (m,) int64
    active_counts: np.ndarray  # (m,) int32


class Certificates(NamedTuple):
    """What the list of each neuron certifies, in units of inner products; (m,) each."""

    radii: np.ndarray  # while the drift is at most this, nobody outside the list can fire
    drifts: np.ndarray  # bound on how far any ⟨w_r, x_i⟩ may have risen since the list was made
    bands: np.ndarray  # half-widths around b in which ``deciding_dot`` has the last word; negative for none


LEVELS = 32  # steps of the reference values between b − radius and b


@vectorized
def forward(rows, W, output_weights, threshold, lists, certificates, active, sums, lo, hi):
    """Add a_r σ_b(⟨w_r, x_i⟩) of neurons lo … hi−1 to ``sums``, and note who fired.

    ``rows`` are the samples as ``aligned_rows`` lays them out, or ``RowArrays`` of sparse ones; ``sums`` is (n,), or
    with c > 1 outputs (n, c), filled up as ``aligned_rows`` does: each has code of its own. Candidates with reference
    ≤ b − drift cannot fire and, the list being sorted, are a suffix. A drift beyond the radius means that the list no
    longer certifies anything. ``fired`` needs room for all candidates and one more. Returns (looked at, fired, first
    neuron beyond its radius or −1). Cost O(d · looked at); of sparse rows, d stands for the stored entries of a row.
    """
    starts, counts, samples, references, prefix_lengths, next_references, active_starts, active_counts = lists
    radii, drifts, bands = certificates
    lanes = lanes_of(W)
    zero = threshold - threshold
    padded = np.zeros(rows.shape[1], W.dtype)
    output_row = np.zeros(1 if sums.ndim == 1 else sums.shape[1], W.dtype)
    excess = np.empty(rows.shape[0] + lanes, W.dtype)
    few = np.empty(lanes, np.int32)
    looked_total = 0
    place = np.uint64(0)  # in ``fired``; a signed index would be asked whether it is negative
    violated = -1
    for r in range(lo, hi):
        count = counts[r]
        if not drifts[r] <= radii[r] and violated < 0:
            violated = r
        start = starts[r]
        k = prefix_lengths[r]
        if count > 0:
            lowest = threshold - drifts[r]
            if next_references[r] > lowest:
                while k < count and references[start + k] > lowest:
                    k += 1
                prefix_lengths[r] = k
                next_references[r] = references[start + k] if k < count else -np.inf
        if k == 0:  # most neurons, where rows are few: their weights are not read, and nothing is written
            if active_counts[r] != 0:
                active_counts[r] = 0
            continue
        w = neuron_weights(rows, W, r, padded)
        list_dots(rows, samples, start, k, w, threshold, excess, few)
        band = bands[r]
        if band >= zero:
            for p in range(k):
                if not abs(excess[p]) > band:  # true for the NaN of a sum that overflowed, too
                    excess[p] = decide(W[r], rows, samples[start + p]) - threshold
        first, begin = np.uint64(start), place
        if sums.ndim == 1:
            sign = output_weights[r, 0]
            for p in range(k):
                i = np.uint32(samples[first + np.uint64(p)])
                value = excess[p]
                fires = not value <= zero  # true for a NaN, which must not vanish
                sums[i] += sign * (value if fires else zero)
                active[place] = i
                place += np.uint64(fires)
        else:
            for p in range(k):
                value = excess[p]
                active[place] = samples[first + np.uint64(p)]
                excess[place - begin] = value
                place += np.uint64(not value <= zero)
            for c in range(output_weights.shape[1]):
                output_row[c] = output_weights[r, c]
            add_to_rows(sums, active, begin, place - begin, excess, output_row)
        active_starts[r] = begin
        active_counts[r] = place - begin
        looked_total += k
    return looked_total, np.int64(place), violated


@vectorized
def backward(rows, W, V, output_weights, residual, lists, active, rule, speeds, near_misses, lo, hi):
    """One gradient step on neurons lo … hi−1, on the fired pairs that ``forward`` noted.

    ``G_r = Σ_i fired (Σ_c a_rc residual_ic) x_i``; then ``take_step``. ``V`` has no rows when momentum is off.
    ``rows`` and ``residual`` are laid out as the rows and the sums of ``forward``. ``speeds[r]`` receives a bound on
    ‖Δw_r‖; ``near_misses[r]`` grows by the near misses looked at. A neuron at rest (speed 0) that does not fire is
    left alone. ``rule`` is (rate, momentum, nesterov). Cost O(d · fired).
    """
    prefix_lengths, active_starts, active_counts = lists.prefix_lengths, lists.active_starts, lists.active_counts
    rate, momentum, nesterov = rule
    gradient = np.empty(rows.shape[1], W.dtype)
    output_row = np.zeros(1 if residual.ndim == 1 else residual.shape[1], W.dtype)
    pushes = np.empty(rows.shape[0] + lanes_of(output_weights), W.dtype)
    few = np.empty(lanes_of(output_weights), np.int32)
    rolling = V.shape[0] > 0
    for r in range(lo, hi):
        count = active_counts[r]
        looked_at = prefix_lengths[r]
        if looked_at > count:
            near_misses[r] += looked_at - count
        if count == 0 and (not rolling or speeds[r] == 0.0):
            if speeds[r] != 0.0:
                speeds[r] = 0.0
            continue
        gradient[:] = rate - rate
        _add_gradient(
            rows, output_weights, residual, r, active, active_starts[r], count, output_row, pushes, few, gradient
        )
        speeds[r] = take_step(W, V, r, gradient, rate, momentum, nesterov)


@vectorized
def add_gradients(rows, output_weights, residual, lists, active, near_misses, gradients, lo, hi):
    """The first half of ``backward``, for one of several blocks of samples: adds its share of G_r to row r − lo."""
    prefix_lengths, active_starts, active_counts = lists.prefix_lengths, lists.active_starts, lists.active_counts
    output_row = np.zeros(1 if residual.ndim == 1 else residual.shape[1], output_weights.dtype)
    pushes = np.empty(rows.shape[0] + lanes_of(output_weights), output_weights.dtype)
    few = np.empty(lanes_of(output_weights), np.int32)
    for r in range(lo, hi):
        count = active_counts[r]
        near_misses[r] += prefix_lengths[r] - count
        if count > 0:
            gradient = gradients[r - lo]
            _add_gradient(
                rows, output_weights, residual, r, active, active_starts[r], count, output_row, pushes, few, gradient
            )


@vectorized
def take_steps(W, V, gradients, active_counts, rule, speeds, lo, hi):
    """The second half of ``backward``; ``active_counts[r − lo]`` is the number of samples of all blocks."""
    rate, momentum, nesterov = rule
    rolling = V.shape[0] > 0
    for r in range(lo, hi):
        if active_counts[r - lo] == 0 and (not rolling or speeds[r] == 0.0):
            speeds[r] = 0.0
        else:
            speeds[r] = take_step(W, V, r, gradients[r - lo], rate, momentum, nesterov)


@vectorized
def tangent(rows, output_weights, direction, lists, active, sums, lo, hi):
    """Add the share of neurons lo … hi−1 in J Jᵀ ``direction`` to ``sums``, on the fired pairs that ``forward`` noted.

    For each neuron t = Σ_i fired (Σ_c a_rc v_ic) x_i, then a_rc ⟨t, x_i⟩ for the same samples, whose rows are still in
    the cache; the weights are never read. Layouts as in ``forward``; the factor 1/m is the caller's. Cost O(d · fired).
    """
    active_starts, active_counts = lists.active_starts, lists.active_counts
    linear = np.empty(rows.shape[1], output_weights.dtype)
    output_row = np.zeros(1 if sums.ndim == 1 else sums.shape[1], output_weights.dtype)
    values = np.empty(rows.shape[0] + lanes_of(output_weights), output_weights.dtype)
    few = np.empty(lanes_of(output_weights), np.int32)
    for r in range(lo, hi):
        count = active_counts[r]
        if count > 0:
            linear[:] = 0
            start = active_starts[r]
            _add_gradient(rows, output_weights, direction, r, active, start, count, output_row, values, few, linear)
            _spread_linear(rows, output_weights, r, linear, active, start, count, output_row, values, few, sums)


@vectorized
def spread_linear(rows, output_weights, linear, lists, active, sums, lo, hi):
    """The second half of ``tangent``, for one of several blocks of samples; row r − lo of ``linear`` is that of r."""
    active_starts, active_counts = lists.active_starts, lists.active_counts
    one = np.empty(rows.shape[1], output_weights.dtype)
    output_row = np.zeros(1 if sums.ndim == 1 else sums.shape[1], output_weights.dtype)
    values = np.empty(rows.shape[0] + lanes_of(output_weights), output_weights.dtype)
    few = np.empty(lanes_of(output_weights), np.int32)
    for r in range(lo, hi):
        count = active_counts[r]
        if count > 0:
            for j in range(rows.shape[1]):
                one[j] = linear[r - lo, j]
            _spread_linear(rows, output_weights, r, one, active, active_starts[r], count, output_row, values, few, sums)


@inlined
def _spread_linear(rows, output_weights, r, linear, active, start, count, output_row, values, few, sums):
    """Add a_rc ⟨linear, x_i⟩ to ``sums`` for i in ``fired[start : start + count]``; the rest is scratch."""
    list_dots(rows, active, start, count, linear, linear.dtype.type(0), values, few)
    if sums.ndim == 1:
        sign = output_weights[r, 0]
        first = np.uint64(start)
        for p in range(count):
            sums[np.uint32(active[first + np.uint64(p)])] += sign * values[p]
    else:
        for c in range(output_weights.shape[1]):
            output_row[c] = output_weights[r, c]
        add_to_rows(sums, active, start, count, values, output_row)


@inlined
def _add_gradient(rows, output_weights, residual, r, active, start, count, output_row, pushes, few, gradient):
    """Add Σ_i (Σ_c a_rc residual_ic) x_i over ``fired[start : start + count]`` to ``gradient``; the rest is scratch."""
    if residual.ndim == 1:
        sign = output_weights[r, 0]
        first = np.uint64(start)  # a signed index would be asked whether it is negative
        for p in range(count):
            pushes[p] = sign * residual[np.uint32(active[first + np.uint64(p)])]
    else:
        for c in range(output_weights.shape[1]):
            output_row[c] = output_weights[r, c]
        list_dots(residual, active, start, count, output_row, output_weights.dtype.type(0), pushes, few)
    add_listed_rows(rows, active, start, count, pushes, gradient)


@vectorized
def fill(neurons, indptr, ids, values, threshold, slacks, radii, capacities, starts, counts, samples, references):
    """Store freshly reported candidates as the lists of ``neurons``, sorted into levels of descending value.

    Neuron ``neurons[k]`` gets ``ids[indptr[k]:indptr[k+1]]``. What fires already comes first, with reference ∞; the
    near misses follow in ``LEVELS`` steps of equal height, each with the upper edge of its level as reference, so that
    a counting sort suffices. Where a list exceeds its capacity, its lowest levels are left out and ``radii[k]``
    shrinks to what the rest still certifies: every sample left out has a value of at most b − radius. ``slacks`` cover
    the rounding of the edges. The caller looks at ``radii``, which may fall below what is worth having.
    Cost O(candidates).
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
            if places[level + 1] > capacities[k] and kept > level:
                kept = level
            edges[level] = np.inf if level == 0 else threshold - (level - 1) * height + slack
        counts[r] = places[kept]
        if kept == 0:  # too small even for what fires: nothing is certified
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


@vectorized
def _level(threshold, value, scale):
    """0 for what fires, else 1 + the number of whole heights below b, at most LEVELS."""
    below = np.float64(threshold) - np.float64(value)
    return np.uint8(0) if below < 0 else np.uint8(min(1.0 + below * scale, 1.0 * LEVELS))


@vectorized
def copy_lists(starts, counts, source, new_starts, target, lo, hi):
    """Copy what neurons lo … hi−1 have in ``source`` to their new slots in ``target``. Cost O(candidates)."""
    for r in range(lo, hi):
        start, new = np.uint64(starts[r]), np.uint64(new_starts[r])
        for p in range(np.uint64(counts[r])):
            target[new + np.uint64(p)] = source[start + np.uint64(p)]


@vectorized
def copy_active(lists, active, first, places, out, lo, hi):
    """Copy who fired for neurons lo … hi−1, counted from ``first`` on, to ``places`` of ``out``, which move on."""
    for r in range(lo, hi):
        begin, end = lists.active_starts[r], places[r]
        for p in range(lists.active_counts[r]):
            out[end + p] = active[begin + p] + first
        places[r] = end + lists.active_counts[r]


@vectorized
def add_output_gradients(rows, W, threshold, residual, lists, active, gradients, lo, hi):
    """Add Σ_i fired (⟨w_r, x_i⟩ − b) residual_ic to row r of ``gradients`` (m, c), for neurons lo … hi−1."""
    for r in range(lo, hi):
        start = lists.active_starts[r]
        for p in range(lists.active_counts[r]):
            i = active[start + p]
            excess = row_dot(W[r], rows, i, -threshold)
            for c in range(residual.shape[1]):
                gradients[r, c] += excess * residual[i, c]
