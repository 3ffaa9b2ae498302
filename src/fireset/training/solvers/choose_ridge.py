"""The ridge for a loss: leave-one-out in closed form is for least squares, and a loss is a few rounds of those.

A round takes the predictions u as they are known, makes of residual e and curvatures b (of the loss, or of a smoothed
one, ``Loss.smoothed``) the working response u − e/b with weights b, as iteratively reweighted least squares does, and
predicts each row without itself for some λ (``theory/leave_one_out.py``). The λ that counts is the one at which *the
loss* of these predictions is least, and they are the u of the next round. With one round (``ridge_iterations``) it is
the λ with the least weighted square of the errors: for squared error that is the loss.

A loss may name another to stand for it (``Loss.ridge_problem``): for quantiles it is the median.
"""

import numpy as np

from fireset.theory.leave_one_out import LeftOut, best_ridge
from fireset.training.losses import Loss

_FIRST_PLACE = 6  # in RIDGES, to begin at


def ridge_for_loss(
    kernel: np.ndarray, loss: Loss, start: np.ndarray, targets: np.ndarray, weight: np.ndarray
) -> LeftOut:
    """For a network that predicts ``start`` (n, c) before training; ``kernel`` (n, n), its lower triangle."""
    loss, targets = loss.ridge_problem(targets, weight)
    first = start[:, : targets.shape[1]]
    u, place, found = first, _FIRST_PLACE, None
    for _ in range(loss.ridge_iterations):
        rough = loss.smoothed(targets - u, weight)
        # One weight for all outputs of a row, so that one factor serves them.
        curvatures = np.maximum(rough.curvatures(u, targets, weight).mean(axis=1), 1e-300)
        response = u - rough.residual(u, targets, weight) / curvatures[:, None] - first

        def score(errors: np.ndarray, response: np.ndarray = response) -> float:
            return loss.value(first + response - errors, targets, weight)

        found = best_ridge(kernel, response, curvatures, place, score if loss.ridge_iterations > 1 else None)
        u, place = first + response - found.errors, max(found.place, 0)
    assert found is not None
    return found
