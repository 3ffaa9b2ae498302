"""The inner loops of Algorithm 2 with a certificate radius: passes over candidate lists, neuron by neuron.

Layout. The candidates of neuron r lie in ``samples[s : s + counts[r]]``, ``s = starts[r]``, sorted by descending
``references`` (the inner product when the list was made). ``excess`` has the same layout: the forward pass leaves
⟨w_r, x_i⟩ − b there, positive exactly where r fires for i, and the backward pass reads it. ``looked[r]`` is the length
of the prefix that the forward pass looked at. Inner loops have no branch per pair that is not a compare-and-select,
but for scattering what fired.

All functions work on neurons ``lo … hi−1`` and touch nothing of other neurons, so that lanes run side by side.
"""

import numpy as np

from fireset.kernels.compiling import vector
from fireset.kernels.firing import deciding_dot

_SHORT = 64  # lists up to here are sorted by insertion, in place


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
    excess,
    sums,
    lo,
    hi,
):
    """Add a_r σ_b(⟨w_r, x_i⟩) of neurons lo … hi−1 to ``sums`` (n, c) in float64.

    ``reaches[r]`` bounds how far any ⟨w_r, x_i⟩ may have risen since the list was made, rounding included: candidates
    with reference ≤ b − reach cannot fire and, the list being sorted, are a suffix. A reach beyond ``radii[r]`` means
    that the list no longer certifies anything. Returns (looked at, fired, first such neuron or −1). Cost
    O(d · looked at).
    """
    d = W.shape[1]
    outputs = signs.shape[1]
    zero = threshold - threshold
    looked_at = 0
    fired = 0
    violated = -1
    for r in range(lo, hi):
        start = starts[r]
        count = counts[r]
        if reaches[r] > radii[r] and violated < 0:
            violated = r
        lowest = threshold - reaches[r]
        k = min(looked[r], count)
        while k < count and references[start + k] > lowest:
            k += 1
        looked[r] = k
        looked_at += k
        for p in range(start, start + k):
            i = samples[p]
            total = zero
            for j in range(d):
                total += W[r, j] * X[i, j]
            excess[p] = total - threshold
        band = bands[r]
        if band >= zero:
            for p in range(start, start + k):
                if abs(excess[p]) <= band:
                    excess[p] = deciding_dot(W[r], X[samples[p]]) - threshold
        for p in range(start, start + k):
            value = excess[p]
            if not value <= 0:  # this way round a NaN is passed on
                fired += 1
                i = samples[p]
                for c in range(outputs):
                    sums[i, c] += np.float64(signs[r, c] * value)
    return looked_at, fired, violated


@vector
def backward(
    X,
    W,
    V,
    signs,
    residual,
    starts,
    samples,
    looked,
    excess,
    rate,
    momentum,
    nesterov,
    speeds,
    misses,
    lo,
    hi,
):
    """One gradient step on neurons lo … hi−1, on the fired pairs that ``forward`` left in ``excess``.

    ``G_r = Σ_i fired (Σ_c a_rc residual_ic) x_i``; then ``V ← βV + G`` and ``W ← W − rate·V``, or, for Nesterov,
    ``W ← W − rate·(G + βV)``. ``V`` has no rows when momentum is off. ``speeds[r]`` receives a bound on ‖Δw_r‖, measured
    on the stored weights (a difference of two floats is correctly rounded, so the bound is safe however the update
    itself was rounded); ``misses[r]`` grows by the near misses looked at. Cost O(d · fired).
    """
    d = W.shape[1]
    outputs = signs.shape[1]
    gradient = np.empty(d, W.dtype)
    zero = rate - rate
    rolling = V.shape[0] > 0
    vanished = zero + 1e-30
    for r in range(lo, hi):
        start = starts[r]
        for j in range(d):
            gradient[j] = zero
        fired = 0
        for p in range(start, start + looked[r]):
            if excess[p] > 0:
                fired += 1
                i = samples[p]
                push = zero
                for c in range(outputs):
                    push += signs[r, c] * residual[i, c]
                x = X[i]
                for j in range(d):
                    gradient[j] += push * x[j]
        misses[r] += looked[r] - fired
        w = W[r]
        squares = 0.0
        if rolling:
            v = V[r]
            largest = zero
            for j in range(d):
                v[j] = momentum * v[j] + gradient[j]
                largest = max(largest, abs(v[j]))
            if largest < vanished:  # let a neuron at rest be at rest: subnormal numbers are slow
                for j in range(d):
                    v[j] = zero
            if nesterov:
                for j in range(d):
                    gradient[j] += momentum * v[j]
            else:
                for j in range(d):
                    gradient[j] = v[j]
        elif fired == 0:
            speeds[r] = 0.0
            continue
        for j in range(d):
            before = w[j]
            w[j] = before - rate * gradient[j]
            change = np.float64(w[j]) - np.float64(before)
            squares += change * change
        speeds[r] = np.sqrt(squares) * (1.0 + (d + 8) * 2.3e-16)


@vector
def fill(neurons, indptr, ids, values, threshold, radii, room, starts, counts, samples, references):
    """Store freshly reported candidates, sorted by descending value, as the lists of ``neurons``.

    Neuron ``neurons[k]`` gets ``ids[indptr[k]:indptr[k+1]]``. Where there are more than ``room[k]``, the list is cut to
    that many of the largest and ``radii[k]`` shrinks to what the cut list still certifies: every sample left out has a
    value of at most b − radius. The caller looks at ``radii``, which may fall below what is worth having.
    """
    for k in range(neurons.shape[0]):
        lo = indptr[k]
        hi = indptr[k + 1]
        r = neurons[k]
        start = starts[r]
        kept = min(hi - lo, room[k])
        if hi - lo <= _SHORT and kept == hi - lo:
            for p in range(lo, hi):
                value = values[p]
                place = start + p - lo
                while place > start and references[place - 1] < value:
                    references[place] = references[place - 1]
                    samples[place] = samples[place - 1]
                    place -= 1
                references[place] = value
                samples[place] = ids[p]
        else:
            order = np.argsort(-values[lo:hi])
            if kept < hi - lo:
                radii[k] = np.float64(threshold) - np.float64(values[lo + order[kept]])
            for p in range(kept):
                samples[start + p] = ids[lo + order[p]]
                references[start + p] = values[lo + order[p]]
        counts[r] = kept
