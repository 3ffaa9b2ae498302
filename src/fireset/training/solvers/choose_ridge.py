"""The ridge for a loss: leave-one-out in closed form is for least squares, and a loss is a few rounds of those.

A round takes the predictions u as they are known, makes of residual e and curvatures b (of the loss, or of a broadened
one, ``Loss.broadened``) the working response u − e/b with weights b, as iteratively reweighted least squares does, and
predicts each row without itself for some λ (``theory/leave_one_out.py``). The λ that counts is the one at which *the
loss* of these predictions is least, and they are the u of the next round. With one round (``Loss.ridge_rounds``) it is
the λ with the least weighted square of the errors: for squared error that is the loss.

A loss may name another to stand for it (``Loss.for_ridge``): for quantiles it is the median.
"""

import numpy as np

from fireset.theory.leave_one_out import LeaveOneOutFit, best_ridge
from fireset.training.losses import Loss

_FIRST_PLACE = 6  # in RELATIVE_RIDGES, to begin at
_MUCH_WORSE = 10.0  # times the loss before a round: its predictions are not where to take curvatures


def ridge_for_loss(
    kernel: np.ndarray, loss: Loss, start: np.ndarray, targets: np.ndarray, weight: np.ndarray
) -> LeaveOneOutFit:
    """For a network that predicts ``start`` (n, c) before training; ``kernel`` (n, n), its lower triangle."""
    loss, targets = loss.for_ridge(targets, weight)
    first = start[:, : targets.shape[1]]
    # λ is in units of the curvatures. Those of an exponential link are e^u: at a start far from all targets they would
    # hide every row but one, and with them λ would hold the weights at that start.
    zero = np.zeros_like(first)
    u = zero if loss.value(zero, targets, weight) < loss.value(first, targets, weight) else first
    place, found = _FIRST_PLACE, None
    for _ in range(loss.ridge_rounds):
        rough = loss.broadened(targets - u, weight)
        # One weight for all outputs of a row, so that one factor serves them.
        curvatures = np.maximum(rough.curvatures(u, targets, weight).mean(axis=1), 1e-300)
        response = u - rough.residual(u, targets, weight) / curvatures[:, None] - first

        def score(errors: np.ndarray, response: np.ndarray = response) -> float:
            return loss.value(first + response - errors, targets, weight)

        found = best_ridge(kernel, response, curvatures, place, score if loss.ridge_rounds > 1 else None)
        before = loss.value(u, targets, weight)
        u, place = first + response - found.errors, max(found.ridge_index, 0)
        if not loss.value(u, targets, weight) <= _MUCH_WORSE * before:
            break
    assert found is not None
    return found
