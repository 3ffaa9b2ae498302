"""How the weights of one neuron follow their gradient."""

import numpy as np

from fireset.kernels.compiling import vectorized
from fireset.kernels.firing import difference

_MIN_FLOAT32 = float(np.finfo(np.float32).tiny)
_MIN_FLOAT64 = float(np.finfo(np.float64).tiny)
RESTLESS = 1e-300  # the speed of a neuron that has velocity but did not move by a whole float


@vectorized
def take_step(W, V, r, gradient, rate, momentum, nesterov):
    """Move w_r along −``gradient``, which is overwritten; returns a bound on ‖Δw_r‖.

    ``V ← βV + G`` and ``W ← W − rate·V``, or, for Nesterov, ``W ← W − rate·(G + βV)``; ``V`` has no rows when momentum
    is off. The bound is measured on the stored weights: a difference of two floats is correctly rounded, so it is safe
    however the update itself was rounded. It is 0 only for a neuron without velocity: without a gradient it will not
    move, whatever the rate, and need not be looked at.

    A velocity that decays for ever would end in subnormal numbers, which are slow: they count as 0. Nothing larger
    does, since what is small depends on the rate, which may be large and may change.
    """
    d = W.shape[1]
    zero = rate - rate
    rolling = False
    if V.shape[0] > 0:
        smallest = _MIN_FLOAT32 if V.itemsize == 4 else _MIN_FLOAT64
        for j in range(d):
            velocity = momentum * V[r, j] + gradient[j]
            V[r, j] = zero if abs(velocity) < smallest else velocity  # a NaN is not below it, and stays visible
            rolling |= V[r, j] != zero
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
        return RESTLESS if rolling else 0.0
    return np.sqrt(squares) * (1.0 + (d + 8) * 2.3e-16)


@vectorized
def step_rows(W, V, neurons, gradients, rate, momentum, nesterov, speeds, lo, hi):
    """``speeds[k]`` is that of ``take_step`` for ``neurons[k]``, lo ≤ k < hi; ``gradients`` are overwritten."""
    for k in range(lo, hi):
        speeds[k] = take_step(W, V, neurons[k], gradients[k], rate, momentum, nesterov)
