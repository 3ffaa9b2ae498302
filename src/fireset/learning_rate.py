"""The step size η: a number, the theorem's, or one that is known to descend."""

from math import isfinite
from numbers import Real

import numpy as np

from fireset.engines.base import Engine, Step
from fireset.errors import InputError
from fireset.history import History
from fireset.losses import Loss
from fireset.network import ShiftedReLUNetwork
from fireset.rounding import row_norms

_MOST_ROWS_FOR_THEORY = 5000
_NOISE = 1e-5  # a loss must grow by this much of itself, and
_FLOOR = 1e-10  # this much of the first loss, to count as grown: float32 predictions wobble


def choose_learning_rate(
    asked: float | str,
    network: ShiftedReLUNetwork,
    X: np.ndarray,
    engine: Engine,
    loss: Loss,
    weight: np.ndarray,
) -> float:
    """η from the user's words.

    ``"auto"``: 1/(κ λ_max), with λ_max of the fire-set kernel at the current weights and κ the loss's curvature: half
    of where descent turns unstable. ``"theory"``: the paper's λ/(4 n²), which is safe, proved, and far too small to be
    practical. A number is itself.
    """
    if isinstance(asked, str):
        if asked == "auto":
            return _from_fire_sets(network, X, engine, loss, weight)
        if asked == "theory":
            return _from_theory(network, X[weight > 0])
        raise InputError(f"learning_rate must be 'auto', 'theory' or a positive number, got {asked!r}")
    if not isinstance(asked, Real) or not isfinite(asked) or asked <= 0:
        raise InputError(f"learning_rate must be 'auto', 'theory' or a positive number, got {asked}")
    return float(asked)


def _from_fire_sets(network, X, engine, loss, weight) -> float:
    from fireset.theory.kernel import largest_eigenvalue, power_iteration

    # Rows without weight (a validation split) neither push nor count.
    if hasattr(engine, "tangent_product"):  # knows the kernel without listing who fires
        top = power_iteration(engine.tangent_product, X, network.n_outputs, weight)
    else:
        top = largest_eigenvalue(X, network.signs, engine.fire_sets(), weight)
    # Where nothing fires there is nothing to descend on, and any step is as good as another.
    return 1.0 / (loss.curvature(network.n_outputs) * top) if top > 0 else 1.0


def _from_theory(network, X) -> float:
    from fireset.theory.kernel import shifted_ntk
    from fireset.theory.spectrum import smallest_eigenvalue

    n = len(X)
    if n > _MOST_ROWS_FOR_THEORY:
        raise InputError(
            f"learning_rate='theory' needs all eigenvalues of an n × n matrix and is limited to "
            f"{_MOST_ROWS_FOR_THEORY} rows, got {n}; use 'auto'"
        )
    if np.abs(row_norms(X) - 1.0).max() > 1e-3:
        raise InputError("learning_rate='theory' is proved for rows of norm 1 only; use 'auto' with any_norm=True")
    smallest = smallest_eigenvalue(shifted_ntk(X, network.threshold))
    if smallest <= 1e-14:
        raise InputError(
            f"learning_rate='theory' needs λ_min(H^cts) > 0, got {smallest:.2g}: two rows are the same, or the "
            f"threshold {network.threshold:.3g} is too high to tell them apart; use 'auto'"
        )
    return smallest / (4.0 * n * n)


def grown(history: History) -> bool:
    """Whether the last step made the loss grow by more than rounding does."""
    if len(history) < 2:
        return False
    before, now = history[-2].loss, history[-1].loss
    return not now <= before * (1.0 + _NOISE) + _FLOOR * history[0].loss  # this way round NaN has grown


def back_off(step: Step, *, from_rest: bool) -> None:
    """After the loss has grown: let momentum start anew; if there was none to blame, halve the rate.

    Stopping the velocity when the objective grows is adaptive restart (O'Donoghue and Candès 2015): growth under
    momentum is mostly overshoot. Growth from rest, or beyond repair, is the rate's fault.
    """
    if not step.momentum or from_rest:
        step.rate *= 0.5
    step.velocity[:] = 0.0
