"""Gradient steps with momentum on the weights of single neurons."""

import numpy as np

from fireset.kernels.compiling import inlined, vectorized
from fireset.kernels.firing import difference

_MIN_FLOAT32 = float(np.finfo(np.float32).tiny)
_MIN_FLOAT64 = float(np.finfo(np.float64).tiny)
MIN_SPEED = 1e-300  # speed of a neuron with velocity whose weights did not change by a whole float


@inlined
def take_step(W, V, r, gradient, rate, momentum, nesterov):
    """Move w_r along −``gradient`` (d,), which is overwritten; returns a bound on ‖Δw_r‖. Cost O(d).

    With momentum β, ``V ← βV + G`` and ``W ← W − rate·V``; with Nesterov, ``W ← W − rate·(G + βV)``. W and V are (m,
    d); V has no rows if momentum is off. The bound is computed from the stored weights: a difference of two floats is
    correctly rounded, so the bound holds however the update was rounded. It is 0 only for a neuron without velocity:
    without a gradient such a neuron cannot move at any rate, and may be skipped.

    Subnormal velocities, in which a decaying velocity would end, are set to 0, because arithmetic on them is slow.
    Larger ones are kept: whether they are negligible depends on the rate, which may change.
    """
    d = W.shape[1]
    zero = rate - rate
    has_velocity = False
    if V.shape[0] > 0:
        smallest = _MIN_FLOAT32 if V.itemsize == 4 else _MIN_FLOAT64
        for j in range(d):
            velocity = momentum * V[r, j] + gradient[j]
            V[r, j] = zero if abs(velocity) < smallest else velocity  # a NaN is not smaller, and is kept
            has_velocity |= V[r, j] != zero
        if nesterov:
            for j in range(d):
                gradient[j] += momentum * V[r, j]
        else:
            for j in range(d):
                gradient[j] = V[r, j]
    squares = 0.0
    for j in range(d):
        before = W[r, j]
        W[r, j] = before - rate * gradient[j]
        change = difference(W[r, j], before)
        squares += change * change
    if squares == 0.0:
        return MIN_SPEED if has_velocity else 0.0
    return np.sqrt(squares) * (1.0 + (d + 8) * 2.3e-16)


@vectorized
def step_rows(W, V, neurons, gradients, rate, momentum, nesterov, speeds, lo, hi):
    """Apply ``take_step`` to ``neurons[k]`` with ``gradients[k]``, lo ≤ k < hi; ``speeds[k]`` receives its result.

    ``gradients`` (k, d) are overwritten. Cost O(d) for each neuron.
    """
    for k in range(lo, hi):
        speeds[k] = take_step(W, V, neurons[k], gradients[k], rate, momentum, nesterov)
