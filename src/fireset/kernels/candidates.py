"""The inner loops of Algorithm 2 with a certificate radius: passes over candidate lists, neuron by neuron.

Layout. Neuron r owns the slot from ``starts[r]`` on. ``samples`` holds its ``counts[r]`` candidates there by descending
``references``, upper bounds of the inner products when the list was made. The forward pass looks at a prefix of
``looked[r]`` candidates and leaves the ``fired_counts[r]`` samples that fire at the front of the slot in ``fired``; the
backward pass reads nothing else of the lists. The loops over pairs have no branch that cannot be foreseen.

All functions work on some of the neurons and touch nothing of the others, so that lanes run side by side.
"""

import numpy as np

from fireset.kernels.compiling import vector
from fireset.kernels.firing import deciding_dot
from fireset.kernels.steps import take_step

LEVELS = 32  # steps of the reference values between b − radius and b


@vector
def forward(
    X,
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
    fired,
    fired_counts,
    excess,
    sums,
    lo,
    hi,
):
    """Add a_r σ_b(⟨w_r, x_i⟩) of neurons lo … hi−1 to ``sums`` (n, c), and note who fired.

    ``reaches[r]`` bounds how far any ⟨w_r, x_i⟩ may have risen since the list was made, rounding included: candidates
    with reference ≤ b − reach cannot fire and, the list being sorted, are a suffix. A reach beyond ``radii[r]`` means
    that the list no longer certifies anything. ``excess`` is scratch for the longest list. Returns (looked at, fired,
    first neuron beyond its radius or −1). Cost O(d · looked at).
    """
    d = W.shape[1]
    outputs = signs.shape[1]
    zero = threshold - threshold
    looked_total = 0
    fired_total = 0
    violated = -1
    for r in range(lo, hi):
        start = starts[r]
        count = counts[r]
        if not reaches[r] <= radii[r] and violated < 0:
            violated = r
        lowest = threshold - reaches[r]
        k = min(looked[r], count)
        while k < count and references[start + k] > lowest:
            k += 1
        looked[r] = k
        # Four samples at a time: the weights are read once, and four sums are under way at once.
        fours = k - k % 4
        for p in range(start, start + fours, 4):
            i0, i1, i2, i3 = samples[p], samples[p + 1], samples[p + 2], samples[p + 3]
            s0, s1, s2, s3 = zero, zero, zero, zero
            for j in range(d):
                w = W[r, j]
                s0 += w * X[i0, j]
                s1 += w * X[i1, j]
                s2 += w * X[i2, j]
                s3 += w * X[i3, j]
            q = p - start
            excess[q] = s0 - threshold
            excess[q + 1] = s1 - threshold
            excess[q + 2] = s2 - threshold
            excess[q + 3] = s3 - threshold
        for p in range(fours, k):
            i = samples[start + p]
            total = zero
            for j in range(d):
                total += W[r, j] * X[i, j]
            excess[p] = total - threshold
        band = bands[r]
        if band >= zero:
            for p in range(k):
                if abs(excess[p]) <= band:
                    excess[p] = deciding_dot(W[r], X[samples[start + p]]) - threshold
        q = 0
        for p in range(k):
            value = excess[p]
            fired[start + q] = samples[start + p]
            excess[q] = value
            q += not value <= zero  # this way round a NaN is passed on
        fired_counts[r] = q
        looked_total += k
        fired_total += q
        if outputs == 1:
            sign = signs[r, 0]
            for p in range(q):
                sums[fired[start + p], 0] += sign * excess[p]
        else:
            for p in range(q):
                i = fired[start + p]
                value = excess[p]
                for c in range(outputs):
                    sums[i, c] += signs[r, c] * value
    return looked_total, fired_total, violated


@vector
def backward(
    X,
    W,
    V,
    signs,
    residual,
    starts,
    looked,
    fired,
    fired_counts,
    pushes,
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
    ``speeds[r]`` receives a bound on ‖Δw_r‖; ``misses[r]`` grows by the near misses looked at. ``pushes`` is scratch
    for the longest list. A neuron that did not move last time and does not fire stays at rest, and so does what
    velocity it may have that is too small to move it. Cost O(d · fired).
    """
    d = W.shape[1]
    outputs = signs.shape[1]
    gradient = np.empty(d, W.dtype)
    zero = rate - rate
    rolling = V.shape[0] > 0
    for r in range(lo, hi):
        start = starts[r]
        count = fired_counts[r]
        misses[r] += looked[r] - count
        if count == 0 and (not rolling or speeds[r] == 0.0):
            speeds[r] = 0.0
            continue
        if outputs == 1:
            sign = signs[r, 0]
            for p in range(count):
                pushes[p] = sign * residual[fired[start + p], 0]
        else:
            for p in range(count):
                i = fired[start + p]
                push = zero
                for c in range(outputs):
                    push += signs[r, c] * residual[i, c]
                pushes[p] = push
        for j in range(d):
            gradient[j] = zero
        # Four samples at a time: the gradient is read and written once for all of them.
        fours = count - count % 4
        for p in range(0, fours, 4):
            i0, i1, i2, i3 = fired[start + p], fired[start + p + 1], fired[start + p + 2], fired[start + p + 3]
            p0, p1, p2, p3 = pushes[p], pushes[p + 1], pushes[p + 2], pushes[p + 3]
            for j in range(d):
                gradient[j] += (p0 * X[i0, j] + p1 * X[i1, j]) + (p2 * X[i2, j] + p3 * X[i3, j])
        for p in range(fours, count):
            i = fired[start + p]
            push = pushes[p]
            for j in range(d):
                gradient[j] += push * X[i, j]
        speeds[r] = take_step(W, V, r, gradient, rate, momentum, nesterov)


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
    for k in range(neurons.shape[0]):
        r = neurons[k]
        start = starts[r]
        slack = slacks[k]
        height = max(radii[k], slack) / LEVELS
        scale = 1.0 / height
        places[:] = 0
        for p in range(indptr[k], indptr[k + 1]):
            places[_level(threshold, values[p], scale) + 1] += 1
        kept = LEVELS + 1
        for level in range(LEVELS + 1):
            places[level + 1] += places[level]
            if places[level + 1] > room[k] and kept > level:
                kept = level
        counts[r] = places[kept]
        if kept == 0:  # no room even for what fires: nothing is certified
            radii[k] = -np.inf
        elif kept <= LEVELS:  # the upper edge of the highest level left out
            radii[k] = (kept - 1) * height - slack
        for p in range(indptr[k], indptr[k + 1]):
            level = _level(threshold, values[p], scale)
            if level < kept:
                place = start + places[level]
                places[level] += 1
                samples[place] = ids[p]
                references[place] = np.inf if level == 0 else threshold - (level - 1) * height + slack


@vector
def _level(threshold, value, scale):
    """0 for what fires, else 1 + the number of whole heights below b, at most LEVELS."""
    below = np.float64(threshold) - np.float64(value)
    return 0 if below < 0 else min(1 + int(below * scale), LEVELS)
