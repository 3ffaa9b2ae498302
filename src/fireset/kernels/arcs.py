"""Half-spaces over samples on a circle: arcs, which are ranges of the samples sorted by angle.

All numbers are float64. Sorted samples have the positions 0 … n−1 around the circle; position n + p is sample p again.
Neuron r is certainly active for positions ``arcs[r, 1]`` … ``arcs[r, 2] − 1``. Positions ``arcs[r, 0]`` … ``arcs[r, 1]
− 1`` and ``arcs[r, 2]`` … ``arcs[r, 3] − 1`` are uncertain, because of rounding and because the norms of the rows may
differ a little: ``deciding_dot`` tests each of them. An arc has at most n positions.

Sums over an arc are differences of prefix sums. A prefix sum in one float would carry the rounding error of its
largest term, 10⁻¹⁶ of it, past the place where that term is subtracted again; the error may exceed all that is left. So
sums are kept in two floats (``_add_to``), with an error of 10⁻³² of the largest term.
"""

from typing import NamedTuple

import numpy as np

from fireset.kernels.compiling import inlined, strict_inlined, vectorized
from fireset.kernels.extrema import larger, smaller
from fireset.kernels.firing import fused_dot

_FULL_CIRCLE = 2 * np.pi
_ANGLE_SLACK = 1e-14  # several roundings of angles up to 2π


class CircleArrays(NamedTuple):
    """Samples sorted by angle, and a table that narrows the binary search for an angle."""

    rows: np.ndarray  # (n, 2)
    samples: np.ndarray  # (n,) int64: position p holds sample ``samples[p]``
    angles: np.ndarray  # (n,), ascending from −π
    table: np.ndarray  # (cells + 1,) int64: entry k is the number of angles below −π + 2πk/cells
    min_norm: float  # bounds on the norms of the rows
    max_norm: float


@strict_inlined
def _add_to(high, low, term):
    """Add ``term`` to the sum ``high + low``; returns the new (high, low), of which high alone is close to the sum.

    The rounding error of the addition is computed exactly (Knuth 1969, The Art of Computer Programming, volume 2,
    section 4.2.2, theorem B) and accumulated in ``low`` (Neumaier 1974).
    """
    total = high + term
    taken = total - high
    return total, low + ((high - (total - taken)) + (term - taken))


@inlined
def _rank(angles, table, angle):
    """Count the sorted angles below ``angle``, plus n for each full circle. Cost O(1) expected with the table."""
    n = angles.shape[0]
    circles = np.floor((angle + np.pi) / _FULL_CIRCLE)
    angle -= circles * _FULL_CIRCLE
    cells = table.shape[0] - 1
    cell = int((angle + np.pi) * (cells / _FULL_CIRCLE))
    # One more cell on both sides: rounding may put the angle into the next one.
    low, high = table[larger(0, smaller(cell - 1, cells))], table[larger(0, smaller(cell + 2, cells))]
    while low < high:
        middle = (low + high) >> 1
        if angles[middle] < angle:
            low = middle + 1
        else:
            high = middle
    return np.int64(circles) * n + low


@inlined
def _half_width(level, norm_above, norm_below):
    """Return arccos(level / norm), with ``norm_below`` as norm if level < 0; −1 if level exceeds the norm."""
    norm = norm_above if level >= 0 else norm_below
    if norm == 0.0:
        return -1.0 if level >= 0 else np.pi
    cosine = level / norm
    return -1.0 if cosine >= 1 else np.pi if cosine <= -1 else np.arccos(cosine)


@vectorized
def locate(circle, W, threshold, slacks, arcs, lo, hi):
    """Compute ``arcs`` (m, 4) of neurons lo … hi−1; returns the number of active pairs and of pairs tested.

    ``circle`` is a ``CircleArrays``, W is (m, 2), and ``slacks[r]`` bounds the rounding of inner products. Cost O(1)
    expected for each neuron, and O(1) for each uncertain pair.
    """
    rows, _, angles, table, min_norm, max_norm = circle
    n = angles.shape[0]
    active, tested = 0, 0
    for r in range(lo, hi):
        x, y = np.float64(W[r, 0]), np.float64(W[r, 1])
        norm, middle = np.hypot(x, y), np.arctan2(y, x)
        outer = _half_width(threshold - slacks[r], norm * max_norm, norm * min_norm)
        inner = _half_width(threshold + slacks[r], norm * min_norm, norm * max_norm)
        if outer < 0:
            arcs[r] = 0
            continue
        outer += _ANGLE_SLACK
        inner -= _ANGLE_SLACK
        if outer >= np.pi:
            first = _rank(angles, table, middle - np.pi)
            last = first + n
        else:
            first = _rank(angles, table, middle - outer)
            last = smaller(_rank(angles, table, middle + outer), first + n)
        if inner <= 0:
            begin, end = first, first
        else:
            begin = smaller(larger(_rank(angles, table, middle - inner), first), last)
            end = smaller(larger(_rank(angles, table, middle + inner), begin), last)
        before = first - first % n  # makes the first position less than n
        arcs[r, 0], arcs[r, 1], arcs[r, 2], arcs[r, 3] = first - before, begin - before, end - before, last - before
        active += end - begin
        for side in range(0, 3, 2):
            for p in range(arcs[r, side], arcs[r, side + 1]):
                active += fused_dot(W[r], rows[p % n]) > threshold
                tested += 1
    return active, tested


@vectorized
def scatter(circle, W, output_weights, threshold, arcs, order, linear, constant, steps, extra, lo, hi):
    """Add a_rc (⟨linear_r, x⟩ + constant) of neurons ``order[lo:hi]`` to all samples for which they are active.

    ``linear`` is (m, 2). ``steps`` (n + 1, c, 3, 2) receives the two coefficients and the constant of the functions
    that begin at a position, less those that end there; ``extra`` (n, c) the values for uncertain pairs. Cost O(c) for
    each neuron and each uncertain pair.
    """
    rows = circle.rows
    n = rows.shape[0]
    outputs = output_weights.shape[1]
    for k in range(lo, hi):
        r = order[k]
        x, y = np.float64(linear[r, 0]), np.float64(linear[r, 1])
        begin, end = arcs[r, 1], arcs[r, 2]
        whole = end - begin == n
        begins = 0 if whole else begin % n
        ends = n if whole else end % n
        for c in range(outputs):
            a_rc = np.float64(output_weights[r, c])
            if begin < end:
                _add_step(steps, begins, c, a_rc, x, y, constant)
                _add_step(steps, ends, c, -a_rc, x, y, constant)
                if ends <= begins:  # the arc continues from position n − 1 to position 0
                    _add_step(steps, 0, c, a_rc, x, y, constant)
        for side in range(0, 3, 2):
            for p in range(arcs[r, side], arcs[r, side + 1]):
                i = p % n
                if fused_dot(W[r], rows[i]) > threshold:
                    value = x * rows[i, 0] + y * rows[i, 1] + constant
                    for c in range(outputs):
                        extra[i, c] += np.float64(output_weights[r, c]) * value


@inlined
def _add_step(steps, p, c, a_rc, x, y, constant):
    """Let a_rc (x, y, constant) begin at position p; a call with −a_rc cancels it exactly."""
    for k, term in enumerate((a_rc * x, a_rc * y, a_rc * constant)):
        steps[p, c, k, 0], steps[p, c, k, 1] = _add_to(steps[p, c, k, 0], steps[p, c, k, 1], term)


@vectorized
def sum_scattered(circle, steps, extra, scale, result):
    """Sum what ``scatter`` added to every sample, times ``scale``, into ``result`` (n, c), indexed by sample.

    ``steps`` (ranges, n + 1, c, 3, 2) and ``extra`` (ranges, n, c) come from ``scatter``, one for each range of
    neurons. Cost O(n · c · ranges).
    """
    rows, samples = circle.rows, circle.samples
    outputs = extra.shape[2]
    for c in range(outputs):
        x, y, constant = 0.0, 0.0, 0.0
        x_low, y_low, constant_low = 0.0, 0.0, 0.0
        for p in range(rows.shape[0]):
            extra_sum = 0.0
            for k in range(steps.shape[0]):
                x, x_low = _add_to(x, x_low + steps[k, p, c, 0, 1], steps[k, p, c, 0, 0])
                y, y_low = _add_to(y, y_low + steps[k, p, c, 1, 1], steps[k, p, c, 1, 0])
                constant, constant_low = _add_to(constant, constant_low + steps[k, p, c, 2, 1], steps[k, p, c, 2, 0])
                extra_sum += extra[k, p, c]
            value = (x + x_low) * rows[p, 0] + (y + y_low) * rows[p, 1] + (constant + constant_low)
            result[samples[p], c] = scale * (value + extra_sum)


@vectorized
def prefix_sums(circle, residual, sums):
    """Compute ``sums[p] = Σ_{q < p} residual_q x_q`` over positions q.

    ``residual`` is (n, c) by sample; ``sums`` is (n + 1, c, 2, 2): two coordinates in two floats each. Cost O(n · c).
    """
    rows, samples = circle.rows, circle.samples
    sums[0] = 0.0
    for c in range(residual.shape[1]):
        for p in range(rows.shape[0]):
            factor = np.float64(residual[samples[p], c])
            for j in range(2):
                before = sums[p, c, j]
                sums[p + 1, c, j, 0], sums[p + 1, c, j, 1] = _add_to(before[0], before[1], factor * rows[p, j])


@inlined
def _arc_sum(sums, begin, end, c, j):
    """Return the sum over positions begin … end−1 from prefix ``sums``; if end ≤ begin, the arc wraps around."""
    n = sums.shape[0] - 1
    high, low = _add_to(sums[end, c, j, 0], sums[end, c, j, 1] - sums[begin, c, j, 1], -sums[begin, c, j, 0])
    if end <= begin:
        high, low = _add_to(high, low + sums[n, c, j, 1], sums[n, c, j, 0])
    return high + low


@vectorized
def gather(circle, W, output_weights, threshold, arcs, order, sums, residual, gradients, lo, hi):
    """Compute ``gradients[r] = Σ_i active (Σ_c a_rc residual_ic) x_i`` for neurons ``order[lo:hi]``.

    ``sums`` are the ``prefix_sums`` of ``residual`` (n, c); ``gradients`` is (m, 2). Cost O(c) for each neuron and each
    uncertain pair.
    """
    rows, samples = circle.rows, circle.samples
    n = rows.shape[0]
    outputs = output_weights.shape[1]
    for k in range(lo, hi):
        r = order[k]
        begin, end = arcs[r, 1], arcs[r, 2]
        whole = end - begin == n
        begins = 0 if whole else begin % n
        ends = n if whole else end % n
        x, y = 0.0, 0.0
        if begin < end:
            for c in range(outputs):
                a_rc = np.float64(output_weights[r, c])
                x += a_rc * _arc_sum(sums, begins, ends, c, 0)
                y += a_rc * _arc_sum(sums, begins, ends, c, 1)
        for side in range(0, 3, 2):
            for p in range(arcs[r, side], arcs[r, side + 1]):
                i = p % n
                if fused_dot(W[r], rows[i]) > threshold:
                    for c in range(outputs):
                        factor = np.float64(output_weights[r, c]) * np.float64(residual[samples[i], c])
                        x += factor * rows[i, 0]
                        y += factor * rows[i, 1]
        gradients[r, 0], gradients[r, 1] = x, y


@vectorized
def list_samples(circle, W, threshold, arcs, ends, samples, lo, hi):
    """Write the fire sets of neurons lo … hi−1 to ``samples``.

    The list of neuron r starts at ``ends[r]``, which is advanced to its end. Cost O(active pairs).
    """
    rows, sorted_samples = circle.rows, circle.samples
    n = rows.shape[0]
    for r in range(lo, hi):
        end = ends[r]
        for p in range(arcs[r, 0], arcs[r, 3]):
            i = p % n
            if arcs[r, 1] <= p < arcs[r, 2] or fused_dot(W[r], rows[i]) > threshold:
                samples[end] = sorted_samples[i]
                end += 1
        ends[r] = end
