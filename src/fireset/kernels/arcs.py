"""Half-spaces over samples on a circle: arcs, which are ranges of the samples sorted by angle.

All in float64. Sorted samples are numbered 0 … n−1 around the circle, and on from n. Neuron r fires for certain for
those from ``arcs[r, 1]`` to ``arcs[r, 2]``, and possibly for those from ``arcs[r, 0]`` to ``arcs[r, 1]`` and from
``arcs[r, 2]`` to ``arcs[r, 3]``: those are tested one by one with ``deciding_dot``. (Ends excluded; at most n samples
in all.) The uncertain ranges are there for rounding and for rows whose norms differ a little.

Sums over an arc are differences of prefix sums, all of them in two floats (``two_float_sums.py``): in one, a neuron or
a residual 10⁹ times as large as the others would be felt far from where it belongs.
"""

from typing import NamedTuple

import numpy as np

from fireset.kernels.compiling import inlined, vectorized
from fireset.kernels.firing import deciding_dot
from fireset.kernels.two_float_sums import add_to

_FULL_CIRCLE = 2 * np.pi
_ANGLE_SLACK = 1e-14  # several roundings of angles up to 2π


class CircleArrays(NamedTuple):
    """Samples sorted by angle, and a table that narrows the search for an angle."""

    rows: np.ndarray  # (n, 2)
    samples: np.ndarray  # (n,) int64: sorted sample p is sample ``samples[p]``
    angles: np.ndarray  # (n,), ascending from −π
    table: np.ndarray  # (cells + 1,) int64: entry k is the number of angles below −π + 2πk/cells
    min_norm: float  # bounds on the norms of the rows
    max_norm: float


@inlined
def _rank(angles, table, angle):
    """How many sorted angles lie below ``angle``, plus n for each full circle."""
    n = angles.shape[0]
    circles = np.floor((angle + np.pi) / _FULL_CIRCLE)
    angle -= circles * _FULL_CIRCLE
    cells = table.shape[0] - 1
    cell = int((angle + np.pi) * (cells / _FULL_CIRCLE))
    # One cell more on both sides: rounding may put the angle into the next one.
    low, high = table[max(0, min(cell - 1, cells))], table[max(0, min(cell + 2, cells))]
    while low < high:
        middle = (low + high) >> 1
        if angles[middle] < angle:
            low = middle + 1
        else:
            high = middle
    return np.int64(circles) * n + low


@inlined
def _half_width(level, norm_above, norm_below):
    """The angle whose cosine is ``level / norm_above``, or for level < 0 ``level / norm_below``; −1 if none is."""
    norm = norm_above if level >= 0 else norm_below
    if norm == 0.0:
        return -1.0 if level >= 0 else np.pi
    cosine = level / norm
    return -1.0 if cosine >= 1 else np.pi if cosine <= -1 else np.arccos(cosine)


@vectorized
def locate(circle, W, threshold, slacks, arcs, lo, hi):
    """``arcs`` of neurons lo … hi−1; returns the number of pairs that fire and of those that were tested one by one.

    ``circle`` is a ``CircleArrays``. ``slacks[r]`` bounds the rounding of inner products.
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
            last = min(_rank(angles, table, middle + outer), first + n)
        if inner <= 0:
            begin, end = first, first
        else:
            begin = min(max(_rank(angles, table, middle - inner), first), last)
            end = min(max(_rank(angles, table, middle + inner), begin), last)
        before = first - first % n  # so that the first is below n
        arcs[r, 0], arcs[r, 1], arcs[r, 2], arcs[r, 3] = first - before, begin - before, end - before, last - before
        active += end - begin
        for side in range(0, 3, 2):
            for p in range(arcs[r, side], arcs[r, side + 1]):
                active += deciding_dot(W[r], rows[p % n]) > threshold
                tested += 1
    return active, tested


@vectorized
def spread(circle, W, output_weights, threshold, arcs, order, linear, constant, steps, extra, lo, hi):
    """Have neurons ``order[lo:hi]`` add a_rc (⟨linear_r, x⟩ + constant) to all samples that they fire for.

    ``steps`` (n + 1, c, 3, 2) receives what begins and ends at a sample, ``extra`` (n, c) what goes to one alone.
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
            sign = np.float64(output_weights[r, c])
            if begin < end:
                _add_step(steps, begins, c, sign, x, y, constant)
                _add_step(steps, ends, c, -sign, x, y, constant)
                if ends <= begins:  # the arc goes on past sample n − 1 from sample 0
                    _add_step(steps, 0, c, sign, x, y, constant)
        for side in range(0, 3, 2):
            for p in range(arcs[r, side], arcs[r, side + 1]):
                i = p % n
                if deciding_dot(W[r], rows[i]) > threshold:
                    value = x * rows[i, 0] + y * rows[i, 1] + constant
                    for c in range(outputs):
                        extra[i, c] += np.float64(output_weights[r, c]) * value


@inlined
def _add_step(steps, p, c, sign, x, y, constant):
    """Let a linear function begin at a sample; the same call with −sign takes back the same floats."""
    for k, term in enumerate((sign * x, sign * y, sign * constant)):
        steps[p, c, k, 0], steps[p, c, k, 1] = add_to(steps[p, c, k, 0], steps[p, c, k, 1], term)


@vectorized
def received(circle, steps, extra, scale, result):
    """What every sample received from all ranges of neurons, times ``scale``, by number of the sample; (n, c).

    ``steps`` (ranges, n + 1, c, 3, 2) and ``extra`` (ranges, n, c) are those of ``spread``.
    """
    rows, samples = circle.rows, circle.samples
    outputs = extra.shape[2]
    for c in range(outputs):
        x, y, constant = 0.0, 0.0, 0.0
        x_low, y_low, constant_low = 0.0, 0.0, 0.0
        for p in range(rows.shape[0]):
            alone = 0.0
            for k in range(steps.shape[0]):
                x, x_low = add_to(x, x_low + steps[k, p, c, 0, 1], steps[k, p, c, 0, 0])
                y, y_low = add_to(y, y_low + steps[k, p, c, 1, 1], steps[k, p, c, 1, 0])
                constant, constant_low = add_to(constant, constant_low + steps[k, p, c, 2, 1], steps[k, p, c, 2, 0])
                alone += extra[k, p, c]
            value = (x + x_low) * rows[p, 0] + (y + y_low) * rows[p, 1] + (constant + constant_low)
            result[samples[p], c] = scale * (value + alone)


@vectorized
def prefix_sums(circle, residual, sums):
    """``sums[p] = Σ_{q < p} residual_q x_q`` over sorted samples q, (n + 1, c, 2, 2): two coordinates, two floats."""
    rows, samples = circle.rows, circle.samples
    sums[0] = 0.0
    for c in range(residual.shape[1]):
        for p in range(rows.shape[0]):
            factor = np.float64(residual[samples[p], c])
            for j in range(2):
                before = sums[p, c, j]
                sums[p + 1, c, j, 0], sums[p + 1, c, j, 1] = add_to(before[0], before[1], factor * rows[p, j])


@inlined
def _arc_sum(sums, begin, end, c, j):
    """What ``sums`` grow by from sample ``begin`` to sample ``end``, on past the last one where that comes first."""
    n = sums.shape[0] - 1
    high, low = add_to(sums[end, c, j, 0], sums[end, c, j, 1] - sums[begin, c, j, 1], -sums[begin, c, j, 0])
    if end <= begin:
        high, low = add_to(high, low + sums[n, c, j, 1], sums[n, c, j, 0])
    return high + low


@vectorized
def gather(circle, W, output_weights, threshold, arcs, order, sums, residual, gradients, lo, hi):
    """``gradients[r] = Σ_i fired (Σ_c a_rc residual_ic) x_i`` for neurons ``order[lo:hi]``, from prefix sums."""
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
                sign = np.float64(output_weights[r, c])
                x += sign * _arc_sum(sums, begins, ends, c, 0)
                y += sign * _arc_sum(sums, begins, ends, c, 1)
        for side in range(0, 3, 2):
            for p in range(arcs[r, side], arcs[r, side + 1]):
                i = p % n
                if deciding_dot(W[r], rows[i]) > threshold:
                    for c in range(outputs):
                        factor = np.float64(output_weights[r, c]) * np.float64(residual[samples[i], c])
                        x += factor * rows[i, 0]
                        y += factor * rows[i, 1]
        gradients[r, 0], gradients[r, 1] = x, y


@vectorized
def list_samples(circle, W, threshold, arcs, ends, samples, lo, hi):
    """Write the samples that neurons lo … hi−1 fire for to ``samples``.

    Those of neuron r from ``ends[r]`` on, which at first is where its list starts and in the end where it ends.
    """
    rows, sorted_samples = circle.rows, circle.samples
    n = rows.shape[0]
    for r in range(lo, hi):
        end = ends[r]
        for p in range(arcs[r, 0], arcs[r, 3]):
            i = p % n
            if arcs[r, 1] <= p < arcs[r, 2] or deciding_dot(W[r], rows[i]) > threshold:
                samples[end] = sorted_samples[i]
                end += 1
        ends[r] = end
