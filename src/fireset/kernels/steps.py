"""How the weights of one neuron follow their gradient."""

import numpy as np

from fireset.kernels.compiling import vector
from fireset.kernels.firing import difference


@vector
def take_step(W, V, r, gradient, rate, momentum, nesterov):
    """Move w_r along −``gradient``, which is overwritten; returns a bound on ‖Δw_r‖.

    ``V ← βV + G`` and ``W ← W − rate·V``, or, for Nesterov, ``W ← W − rate·(G + βV)``; ``V`` has no rows when momentum
    is off. The bound is measured on the stored weights: a difference of two floats is correctly rounded, so it is safe
    however the update itself was rounded.
    """
    d = W.shape[1]
    zero = rate - rate
    if V.shape[0] > 0:
        largest = zero
        for j in range(d):
            V[r, j] = momentum * V[r, j] + gradient[j]
            largest = max(largest, abs(V[r, j]))
        if largest < zero + 1e-30:  # let a neuron at rest be at rest: subnormal numbers are slow
            for j in range(d):
                V[r, j] = zero
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
    return np.sqrt(squares) * (1.0 + (d + 8) * 2.3e-16)
