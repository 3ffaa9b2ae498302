"""Forward, backward and tangent passes of Algorithm 2 over candidate lists, neuron by neuron.

Layout (``ListArrays``). The slot of neuron r begins at ``starts[r]``. There, ``samples`` has its ``counts[r]``
candidates by descending ``references``, which are upper bounds of the inner products when the list was made. The
forward pass tests a prefix of ``prefix_lengths[r]`` candidates; ``next_references[r]`` is the reference of the next
candidate, −∞ at the end. It writes the active ones to ``active``, one packed array for all neurons of a call:
``active_counts[r]`` of them from ``active_starts[r]`` on. The backward pass reads nothing else of the lists. The loops
over pairs have no unpredictable branches.

All functions read and write the data of the given ``neurons``, ascending int64, only, so that ranges of neurons run in
parallel and neurons that are not live cost nothing. Groups of arrays are passed as named tuples and unpacked once on
entry, which costs 0.7 µs a call. Passing a tuple on to an inner function would count references for every neuron.
"""

from typing import NamedTuple

import numpy as np

from fireset.kernels.allocation import new_array, zero_array
from fireset.kernels.compiling import inlined, internal, strict, vectorized
from fireset.kernels.extrema import larger, smaller
from fireset.kernels.firing import decide
from fireset.kernels.prefetching import AHEAD, prefetch, prefetch_end
from fireset.kernels.rows import ROWS_AT_ONCE, add_to_rows
from fireset.kernels.sparse_rows import add_listed_rows, list_dots, neuron_weights, row_dot
from fireset.kernels.steps import take_step


class ListArrays(NamedTuple):
    """Candidate lists of all neurons over a block of samples; the layout is at the head of this file."""

    starts: np.ndarray  # (m,) int64
    counts: np.ndarray  # (m,) int32
    samples: np.ndarray  # (slots,) int32
    references: np.ndarray  # (slots,)
    prefix_lengths: np.ndarray  # (m,) int32
    next_references: np.ndarray  # (m,)
    active_starts: np.ndarray  # (m,) int64
    active_counts: np.ndarray  # (m,) int32


class Certificates(NamedTuple):
    """Certificates of the candidate lists in units of inner products; (m,) each."""

    radii: np.ndarray  # while the drift is at most this, no sample outside the list can become active
    drifts: np.ndarray  # upper bound on the increase of any ⟨w_r, x_i⟩ since the list was made
    bands: np.ndarray  # half-widths around b in which ``deciding_dot`` decides; negative for none


LEVELS = 32  # distinct reference values between b − radius and b


@inlined
def _prefetch_neuron(neurons, k, state, W, output_weights):
    """Prefetch what passes read of the neuron ``AHEAD`` places after k: its ``state``, weights and output weights."""
    r = neurons[smaller(k + AHEAD, neurons.size - 1)]
    prefetch(state, r)
    prefetch(W, r)
    prefetch_end(W, r)  # a short row has at most two cache lines; the processor recognizes those of long ones
    prefetch(output_weights, r)


@vectorized
def forward(rows, W, output_weights, threshold, lists, certificates, active, sums, neurons):
    """Add a_rc σ_b(⟨w_r, x_i⟩) of ``neurons`` to ``sums``, and write the active pairs to ``active``.

    ``rows`` are samples in the layout of ``aligned_rows``, or ``RowArrays`` of sparse samples. ``sums`` is (n,), or for
    c > 1 outputs (n, c) padded as by ``aligned_rows``. Candidates with reference ≤ b − drift cannot be active; since
    lists are sorted, they are a suffix. If the drift exceeds the radius, the list certifies nothing. ``active`` needs
    space for all candidates and one more.

    Returns (pairs tested, active pairs, first neuron whose drift exceeds its radius or −1). Cost O(d · pairs tested);
    for sparse rows, d stands for the stored entries of a row.
    """
    starts, counts, samples, references, prefix_lengths, next_references, active_starts, active_counts = lists
    radii, drifts, bands = certificates
    zero = threshold - threshold
    padded = zero_array(rows.shape[1], W.dtype)
    output_row = zero_array(1 if sums.ndim == 1 else sums.shape[1], W.dtype)
    excess = new_array(rows.shape[0] + ROWS_AT_ONCE, W.dtype)
    tested = 0
    place = np.uint64(0)  # in ``active``; for a signed index numba adds a check whether it is negative
    violated = -1
    for position in range(neurons.size):
        _prefetch_neuron(neurons, position, starts, W, output_weights)
        prefetch(samples, starts[neurons[smaller(position + AHEAD // 2, neurons.size - 1)]])
        r = neurons[position]
        count = counts[r]
        if not drifts[r] <= radii[r] and violated < 0:
            violated = r
        start = starts[r]
        k = prefix_lengths[r]
        lowest = threshold - drifts[r]
        if next_references[r] > lowest:
            while k < count and references[start + k] > lowest:
                k += 1
            prefix_lengths[r] = k
            next_references[r] = references[start + k] if k < count else -np.inf
        if k == 0:  # nothing to test: the weights are not read, and nothing is written
            if active_counts[r] != 0:
                active_counts[r] = 0
            continue
        w = neuron_weights(rows, W, r, padded)
        list_dots(rows, samples, start, k, w, threshold, excess)
        band = bands[r]
        if band >= zero:
            for p in range(k):
                if not abs(excess[p]) > band:  # also true for the NaN of a sum that overflowed
                    excess[p] = decide(W[r], rows, samples[start + p]) - threshold
        first, begin = np.uint64(start), place
        if sums.ndim == 1:
            output_weight = output_weights[r, 0]
            for p in range(k):
                i = np.uint32(samples[first + np.uint64(p)])
                value = excess[p]
                is_active = not value <= zero  # true for a NaN, which must stay visible
                sums[i] += output_weight * (value if is_active else zero)
                active[place] = i
                place += np.uint64(is_active)
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
        tested += k
    return tested, np.int64(place), violated


@vectorized
def backward(rows, W, V, output_weights, residual, lists, active, rule, speeds, near_misses, neurons):
    """Take one gradient step with ``neurons`` on the active pairs of the last ``forward``.

    ``G_r = Σ_i active (Σ_c a_rc residual_ic) x_i``, then ``take_step``. ``rule`` is (rate, momentum, nesterov); V has
    no rows if momentum is off. ``rows`` and ``residual`` have the layouts of ``rows`` and ``sums`` in ``forward``.
    ``speeds[r]`` receives a bound on ‖Δw_r‖; the tested pairs that are not active are added to ``near_misses[r]``. A
    neuron with speed 0 and without active pairs is skipped. Cost O(d · active pairs).
    """
    prefix_lengths, active_starts, active_counts = lists.prefix_lengths, lists.active_starts, lists.active_counts
    rate, momentum, nesterov = rule
    gradient = new_array(rows.shape[1], W.dtype)
    output_row = zero_array(1 if residual.ndim == 1 else residual.shape[1], W.dtype)
    coefficients = new_array(rows.shape[0] + ROWS_AT_ONCE, W.dtype)
    has_velocity = V.shape[0] > 0
    for position in range(neurons.size):
        _prefetch_neuron(neurons, position, active_counts, W, output_weights)
        r = neurons[position]
        count = active_counts[r]
        tested = prefix_lengths[r]
        if tested > count:
            near_misses[r] += tested - count
        if count == 0 and (not has_velocity or speeds[r] == 0.0):
            if speeds[r] != 0.0:
                speeds[r] = 0.0
            continue
        gradient[:] = rate - rate
        _add_gradient(
            rows,
            output_weights,
            residual,
            r,
            active,
            active_starts[r],
            count,
            output_row,
            coefficients,
            gradient,
        )
        speeds[r] = take_step(W, V, r, gradient, rate, momentum, nesterov)


@vectorized
def take_steps(W, V, gradients, active_counts, rule, speeds, neurons):
    """Take the steps along ``gradients`` of all blocks: the second half of ``backward``.

    ``active_counts[k]`` is the number of active pairs of ``neurons[k]`` in all blocks of samples. Cost O(d) a neuron.
    """
    rate, momentum, nesterov = rule
    has_velocity = V.shape[0] > 0
    for k in range(neurons.size):
        r = neurons[k]
        if active_counts[k] == 0 and (not has_velocity or speeds[r] == 0.0):
            speeds[r] = 0.0
        else:
            speeds[r] = take_step(W, V, r, gradients[k], rate, momentum, nesterov)


@strict
def add_drifts(neurons, speeds, factor, drifts, moved):
    """Add ``factor`` · speed to the drifts of ``neurons``, and write those with a speed, in order, to ``moved``.

    The drift is rounded up. Returns the number of moved neurons, −1 if a speed is not finite. Cost O(neurons).
    """
    count = 0
    is_finite = True
    for position in range(neurons.size):
        prefetch(speeds, neurons[smaller(position + AHEAD, neurons.size - 1)])
        r = neurons[position]
        speed = speeds[r]
        if speed != 0.0:
            moved[count] = r
            count += 1
            is_finite &= speed < np.inf  # False for NaN
            # The factor covers the rounding of the product and of the sum, however small the step is relative to it.
            drifts[r] = (drifts[r] + speed * factor) * (1.0 + 4.5e-16)
    return count if is_finite else -1


@strict
def mark_neurons(neurons, threshold, lists, certificates, speeds, near_misses, max_near_misses, is_due, is_live):
    """Set ``is_due[k]`` if ``neurons[k]`` needs a new list, and ``is_live[k]`` if it must be processed by passes.

    A list is due if the drift exceeds the radius or there were more than ``max_near_misses``. A neuron at rest whose
    drift reaches none of its candidates has nothing to test until it moves. Flags that are set stay set. Cost
    O(neurons).
    """
    prefix_lengths, next_references = lists.prefix_lengths, lists.next_references
    radii, drifts = certificates.radii, certificates.drifts
    for k in range(neurons.size):
        prefetch(prefix_lengths, neurons[smaller(k + AHEAD, neurons.size - 1)])
        r = neurons[k]
        drift = drifts[r]
        due = not drift <= radii[r] or near_misses[r] > max_near_misses
        is_due[k] |= due
        is_live[k] |= due or speeds[r] != 0.0 or prefix_lengths[r] > 0 or next_references[r] > threshold - drift


@vectorized
def tangent(rows, output_weights, direction, lists, active, linear, sums, neurons):
    """Add the part of ``neurons`` in J Jᵀ ``direction`` to ``sums``, on the active pairs of the last ``forward``.

    For each neuron t = Σ_i active (Σ_c a_rc v_ic) x_i, then a_rc ⟨t, x_i⟩ for the same samples, whose rows are still in
    the cache. Weights are not read. Layouts as in ``forward``; the factor 1/m is not applied. Cost O(d · active pairs).

    Arrays of length 0 leave out a half, so that one function is compiled for three products. Without ``sums`` t is
    added to ``linear[k]`` for r = ``neurons[k]``: the gradient of ``backward`` for one block of samples. Without
    ``direction`` t is ``linear[k]``. With both, ``linear`` is not used.
    """
    active_starts, active_counts = lists.active_starts, lists.active_counts
    has_direction, has_sums = direction.shape[0] > 0, sums.shape[0] > 0
    has_linear = not (has_direction and has_sums)
    own = new_array(rows.shape[1], output_weights.dtype)
    output_row = zero_array(1 if sums.ndim == 1 else sums.shape[1], output_weights.dtype)
    values = new_array(rows.shape[0] + ROWS_AT_ONCE, output_weights.dtype)
    for k in range(neurons.size):
        r = neurons[k]
        count = active_counts[r]
        if count > 0:
            start = active_starts[r]
            if has_linear:
                for j in range(rows.shape[1]):
                    own[j] = linear[k, j]
            else:
                own[:] = 0
            if has_direction:
                _add_gradient(rows, output_weights, direction, r, active, start, count, output_row, values, own)
            if has_sums:
                _spread_linear(rows, output_weights, r, own, active, start, count, output_row, values, sums)
            else:
                for j in range(rows.shape[1]):
                    linear[k, j] = own[j]


@inlined
def _spread_linear(rows, output_weights, r, linear, active, start, count, output_row, values, sums):
    """Add a_rc ⟨linear, x_i⟩ to ``sums`` for i in ``active[start : start + count]``; other arguments are scratch."""
    list_dots(rows, active, start, count, linear, linear.dtype.type(0), values)
    if sums.ndim == 1:
        output_weight = output_weights[r, 0]
        first = np.uint64(start)
        for p in range(count):
            sums[np.uint32(active[first + np.uint64(p)])] += output_weight * values[p]
    else:
        for c in range(output_weights.shape[1]):
            output_row[c] = output_weights[r, c]
        add_to_rows(sums, active, start, count, values, output_row)


@inlined
def _add_gradient(rows, output_weights, residual, r, active, start, count, output_row, coefficients, gradient):
    """Add Σ_i (Σ_c a_rc residual_ic) x_i over i in ``active[start : start + count]`` to ``gradient``.

    ``output_row`` and ``coefficients`` are scratch.
    """
    if residual.ndim == 1:
        output_weight = output_weights[r, 0]
        first = np.uint64(start)  # for a signed index numba adds a check whether it is negative
        for p in range(count):
            coefficients[p] = output_weight * residual[np.uint32(active[first + np.uint64(p)])]
    else:
        for c in range(output_weights.shape[1]):
            output_row[c] = output_weights[r, c]
        list_dots(residual, active, start, count, output_row, output_weights.dtype.type(0), coefficients)
    add_listed_rows(rows, active, start, count, coefficients, gradient)


@vectorized
def fill(neurons, indptr, ids, values, threshold, slacks, radii, capacities, starts, counts, samples, references):
    """Store reported candidates as the lists of ``neurons``, sorted into levels of descending value.

    Neuron ``neurons[k]`` gets ``ids[indptr[k]:indptr[k+1]]`` with ``values`` ⟨w_r, x_i⟩. Active samples come first,
    with reference ∞. Near misses follow in ``LEVELS`` levels of equal height, each with the upper edge of its level as
    reference, so that a counting sort suffices. If a list exceeds ``capacities[k]``, its lowest levels are dropped and
    ``radii[k]`` is reduced to what the rest certifies: every dropped sample has a value of at most b − radius.
    ``slacks`` cover the rounding of the edges. Cost O(candidates).
    """
    places = new_array(LEVELS + 2, np.int64)
    edges = new_array(LEVELS + 1, references.dtype)
    longest = 0
    for k in range(neurons.shape[0]):
        longest = larger(longest, indptr[k + 1] - indptr[k])
    levels = new_array(longest, np.uint8)
    for k in range(neurons.shape[0]):
        r = neurons[k]
        start = starts[r]
        slack = slacks[k]
        height = larger(radii[k], slack) / LEVELS
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
        if kept == 0:  # the capacity is less than the number of active samples: nothing is certified
            radii[k] = -np.inf
        elif kept <= LEVELS:  # the upper edge of the highest level that is dropped
            radii[k] = (kept - 1) * height - slack
        for p in range(length):
            level = np.uint64(levels[p])
            if level < kept:
                place = np.uint64(start + places[level])
                samples[place] = ids[first + p]
                references[place] = edges[level]
                places[level] += 1


@internal
def _level(threshold, value, scale):
    """Return 0 for active samples, else 1 + the number of whole heights below b, at most LEVELS."""
    below = np.float64(threshold) - np.float64(value)
    return np.uint8(0) if below < 0 else np.uint8(smaller(1.0 + below * scale, 1.0 * LEVELS))


@vectorized
def count_candidates(ids, counts, listed):
    """Add the number of occurrences of each neuron in ``ids`` to ``counts``, 0 before; return the number of neurons.

    Each neuron is written to ``listed`` once, in the order of its first occurrence. Cost O(ids).
    """
    found = 0
    for p in range(ids.shape[0]):
        r = np.uint64(ids[p])
        if counts[r] == 0:
            listed[found] = ids[p]
            found += 1
        counts[r] += 1
    return found


@vectorized
def place_lists(neurons, counted, places, starts, counts, prefix_lengths):
    """Lay out lists of ``counted[r]`` candidates for ``neurons``, one after the other, to be tested completely.

    ``places[r]`` receives the start of the list as well, and ``counted[r]`` is set to 0. Cost O(neurons).
    """
    end = np.int64(0)
    for r in neurons:
        starts[r] = end
        places[r] = end
        counts[r] = counted[r]
        prefix_lengths[r] = counted[r]
        end += counted[r]
        counted[r] = 0


@vectorized
def clear_lists(neurons, counts, prefix_lengths, active_counts):
    """Remove all candidates and active samples of ``neurons``."""
    for r in neurons:
        counts[r] = 0
        prefix_lengths[r] = 0
        active_counts[r] = 0


@vectorized
def copy_lists(starts, counts, source, new_starts, target, lo, hi):
    """Copy the lists of neurons lo … hi−1 from ``source`` to their new slots in ``target``. Cost O(candidates)."""
    for r in range(lo, hi):
        start, new = np.uint64(starts[r]), np.uint64(new_starts[r])
        for p in range(np.uint64(counts[r])):
            target[new + np.uint64(p)] = source[start + np.uint64(p)]


@vectorized
def move_lists(starts, counts, new_starts, first_moved, moved, values):
    """Move all lists to their new slots within ``values``, in neuron order. Cost O(candidates).

    Lists whose slots begin before ``first_moved`` are in neuron order. ``moved`` is a copy of the values from there
    on. The lists in order are first moved to the end of ``values``. While the new slots are filled from the
    beginning, they cannot reach a list that is still to be moved, since all slots together fit into ``values``.
    """
    end = len(values)
    for r in range(len(starts) - 1, -1, -1):
        if starts[r] < first_moved:
            for p in range(starts[r] + counts[r] - 1, starts[r] - 1, -1):
                end -= 1
                values[end] = values[p]
    for r in range(len(starts)):
        if starts[r] < first_moved:
            for p in range(counts[r]):
                values[new_starts[r] + p] = values[end + p]
            end += counts[r]
        else:
            for p in range(counts[r]):
                values[new_starts[r] + p] = moved[starts[r] - first_moved + p]


@vectorized
def copy_active(lists, active, first, places, out, neurons):
    """Append ``first`` + i for the active samples i of ``neurons`` to ``out`` at ``places[r]``, and advance them.

    Cost O(active pairs).
    """
    for r in neurons:
        begin, end = lists.active_starts[r], places[r]
        for p in range(lists.active_counts[r]):
            out[end + p] = active[begin + p] + first
        places[r] = end + lists.active_counts[r]


@vectorized
def add_output_gradients(rows, W, threshold, residual, lists, active, gradients, neurons):
    """Add Σ_i active (⟨w_r, x_i⟩ − b) residual_ic to row r of ``gradients`` (m, c), for ``neurons``.

    Cost O((d + c) · active pairs).
    """
    for r in neurons:
        start = lists.active_starts[r]
        for p in range(lists.active_counts[r]):
            i = active[start + p]
            excess = row_dot(W[r], rows, i, -threshold)
            for c in range(residual.shape[1]):
                gradients[r, c] += excess * residual[i, c]
