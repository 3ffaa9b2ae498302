"""Half-spaces over samples on a circle: arcs, which are ranges of the samples sorted by angle.

All in float64. Sorted samples are numbered 0 … n−1 around the circle, and on from n. Neuron r fires for certain for
those from ``arcs[r, 1]`` to ``arcs[r, 2]``, and possibly for those from ``arcs[r, 0]`` to ``arcs[r, 1]`` and from
``arcs[r, 2]`` to ``arcs[r, 3]``: those are asked one by one, with the last word of ``deciding_dot``. (Ends excluded; at
most n samples in all.) Rounding and rows whose norms differ a little are what the parts in doubt are for.
"""

import numpy as np

from fireset.kernels.compiling import inlined, vectorized
from fireset.kernels.firing import deciding_dot

TURN = 2 * np.pi
DOUBT = 1e-14  # in an angle: several roundings of numbers up to 2π


@inlined
def _rank(angles, table, angle):
    """How many sorted angles lie below ``angle``, n more for each turn."""
    n = angles.shape[0]
    turns = np.floor((angle + np.pi) / TURN)
    angle -= turns * TURN
    cells = table.shape[0] - 1
    cell = int((angle + np.pi) * (cells / TURN))
    # A cell more on both sides: where the angle is rounded into the next one.
    low, high = table[max(0, min(cell - 1, cells))], table[max(0, min(cell + 2, cells))]
    while low < high:
        middle = (low + high) >> 1
        if angles[middle] < angle:
            low = middle + 1
        else:
            high = middle
    return np.int64(turns) * n + low


@inlined
def _half_width(level, near, far):
    """The angle whose cosine is ``level / radius``, the radius being ``near``, or below 0 ``far``; −1 where none is."""
    radius = near if level >= 0 else far
    if radius == 0.0:
        return -1.0 if level >= 0 else np.pi
    cosine = level / radius
    return -1.0 if cosine >= 1 else np.pi if cosine <= -1 else np.arccos(cosine)


@vectorized
def locate(angles, table, rows, shortest, longest, W, threshold, slacks, arcs, lo, hi):
    """``arcs`` of neurons lo … hi−1; returns the number of pairs that fire and of those that were asked one by one.

    ``shortest`` and ``longest`` are bounds on the norms of ``rows`` (n, 2), which are sorted by ``angles``.
    ``table[k]`` is the number of angles below −π + 2πk/cells. ``slacks[r]`` bounds the rounding of inner products.
    """
    n = angles.shape[0]
    fired, asked = 0, 0
    for r in range(lo, hi):
        x, y = np.float64(W[r, 0]), np.float64(W[r, 1])
        norm, middle = np.hypot(x, y), np.arctan2(y, x)
        outer = _half_width(threshold - slacks[r], norm * longest, norm * shortest)
        inner = _half_width(threshold + slacks[r], norm * shortest, norm * longest)
        if outer < 0:
            arcs[r] = 0
            continue
        outer += DOUBT
        inner -= DOUBT
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
        fired += end - begin
        for part_of in range(0, 3, 2):
            for p in range(arcs[r, part_of], arcs[r, part_of + 1]):
                fired += deciding_dot(W[r], rows[p % n]) > threshold
                asked += 1
    return fired, asked


@vectorized
def spread(rows, W, signs, threshold, arcs, order, linear, constant, steps, extra, lo, hi):
    """Have neurons ``order[lo:hi]`` add a_rc (⟨linear_r, x⟩ + constant) to all samples that they fire for.

    ``steps`` (n + 1, c, 3) receives what begins and ends at a sample, ``extra`` (n, c) what goes to one alone.
    """
    n = rows.shape[0]
    outputs = signs.shape[1]
    for k in range(lo, hi):
        r = order[k]
        x, y = np.float64(linear[r, 0]), np.float64(linear[r, 1])
        begin, end = arcs[r, 1], arcs[r, 2]
        whole = end - begin == n
        begins = 0 if whole else begin % n
        ends = n if whole else end % n
        for c in range(outputs):
            sign = np.float64(signs[r, c])
            if begin < end:
                _add_step(steps, begins, c, sign, x, y, constant)
                _add_step(steps, ends, c, -sign, x, y, constant)
                if ends <= begins:  # round the end
                    _add_step(steps, 0, c, sign, x, y, constant)
        for part_of in range(0, 3, 2):
            for p in range(arcs[r, part_of], arcs[r, part_of + 1]):
                i = p % n
                if deciding_dot(W[r], rows[i]) > threshold:
                    value = x * rows[i, 0] + y * rows[i, 1] + constant
                    for c in range(outputs):
                        extra[i, c] += np.float64(signs[r, c]) * value


@inlined
def _add_step(steps, place, c, sign, x, y, constant):
    steps[place, c, 0] += sign * x
    steps[place, c, 1] += sign * y
    steps[place, c, 2] += sign * constant


@vectorized
def received(rows, places, steps, extra, scale, result):
    """What every sample received from all lanes, times ``scale``; sorted sample p is sample ``places[p]``."""
    outputs = extra.shape[2]
    for c in range(outputs):
        x, y, constant = 0.0, 0.0, 0.0
        for p in range(rows.shape[0]):
            alone = 0.0
            for lane in range(steps.shape[0]):
                x += steps[lane, p, c, 0]
                y += steps[lane, p, c, 1]
                constant += steps[lane, p, c, 2]
                alone += extra[lane, p, c]
            result[places[p], c] = scale * (x * rows[p, 0] + y * rows[p, 1] + constant + alone)


@vectorized
def prefix_sums(rows, places, pushes, sums):
    """``sums[p] = Σ_{q < p} pushes[places[q]] x_q``, (n + 1, c, 2)."""
    for c in range(pushes.shape[1]):
        x, y = 0.0, 0.0
        sums[0, c, 0], sums[0, c, 1] = 0.0, 0.0
        for p in range(rows.shape[0]):
            push = np.float64(pushes[places[p], c])
            x += push * rows[p, 0]
            y += push * rows[p, 1]
            sums[p + 1, c, 0], sums[p + 1, c, 1] = x, y


@vectorized
def gather(rows, places, W, signs, threshold, arcs, sums, pushes, order, gradients, lo, hi):
    """``gradients[r] = Σ_i fired (Σ_c a_rc pushes_ic) x_i`` for neurons ``order[lo:hi]``, from prefix sums."""
    n = rows.shape[0]
    outputs = signs.shape[1]
    for k in range(lo, hi):
        r = order[k]
        begin, end = arcs[r, 1], arcs[r, 2]
        whole = end - begin == n
        begins = 0 if whole else begin % n
        ends = n if whole else end % n
        x, y = 0.0, 0.0
        if begin < end:
            for c in range(outputs):
                sign = np.float64(signs[r, c])
                x += sign * (sums[ends, c, 0] - sums[begins, c, 0])
                y += sign * (sums[ends, c, 1] - sums[begins, c, 1])
                if ends <= begins:
                    x += sign * sums[n, c, 0]
                    y += sign * sums[n, c, 1]
        for part_of in range(0, 3, 2):
            for p in range(arcs[r, part_of], arcs[r, part_of + 1]):
                i = p % n
                if deciding_dot(W[r], rows[i]) > threshold:
                    for c in range(outputs):
                        push = np.float64(signs[r, c]) * np.float64(pushes[places[i], c])
                        x += push * rows[i, 0]
                        y += push * rows[i, 1]
        gradients[r, 0], gradients[r, 1] = x, y


@vectorized
def list_samples(rows, places, W, threshold, arcs, starts, samples, lo, hi):
    """Write the samples that neurons lo … hi−1 fire for, from ``starts[r]`` on, which becomes where they end."""
    n = rows.shape[0]
    for r in range(lo, hi):
        place = starts[r]
        for p in range(arcs[r, 0], arcs[r, 3]):
            i = p % n
            if arcs[r, 1] <= p < arcs[r, 2] or deciding_dot(W[r], rows[i]) > threshold:
                samples[place] = places[i]
                place += 1
        starts[r] = place
