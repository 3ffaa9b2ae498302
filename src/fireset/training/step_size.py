"""The step size η: a number, the theorem's, or one that is known to descend."""

from typing import Any

import numpy as np

from fireset._util.checks import is_number
from fireset._util.errors import InputError
from fireset._util.rounding import row_norms
from fireset.engines.base import Engine
from fireset.engines.tangent import power_iteration
from fireset.network import ShiftedReLUNetwork
from fireset.training.history import History
from fireset.training.losses import Loss
from fireset.training.problem import TrainingProblem

_MAX_ROWS_FOR_THEORY = 5000
_NOISE = 1e-5  # a loss must grow by this much of itself, and
_FLOOR = 1e-10  # this much of the first loss, to count as grown: float32 predictions wobble


class StepSize:
    """η from the user's words.

    ``"auto"``: 1/(κ λ_max), with λ_max of the fire-set kernel at the current weights and κ the loss's curvature: half
    of where descent turns unstable. ``"theory"``: the paper's λ/(4 n²), which is safe, proved, and far too small to be
    practical. A number is itself.
    """

    def __init__(self, asked: float | str):
        if asked not in ("auto", "theory") and not (is_number(asked) and float(asked) > 0):
            shown = repr(asked) if isinstance(asked, str) else asked
            raise InputError(f"learning_rate must be 'auto', 'theory' or a positive number, got {shown}")
        self.asked = asked

    @property
    def adaptive(self) -> bool:
        """Whether it may be lowered when the loss grows."""
        return self.asked == "auto"

    def choose(self, network: ShiftedReLUNetwork, engine: Engine, loss: Loss, problem: TrainingProblem) -> float:
        """η at the current weights, for losses in units of ``problem.weight_unit``."""
        if self.asked == "auto":
            return _from_fire_sets(network, engine, loss, problem)
        if self.asked == "theory":
            if problem.row_group.size > 1:
                raise InputError("learning_rate='theory' needs all rows on every worker; use 'auto' or a number")
            return _from_theory(network, problem.X[problem.weight > 0]) * problem.weight_unit
        return float(self.asked) * problem.weight_unit


def loss_grew(history: History) -> bool:
    """Whether the last step made the loss grow by more than rounding does, or NaN."""
    if len(history) < 2:
        return False
    before, now = history[-2].loss, history[-1].loss
    return not now <= before * (1.0 + _NOISE) + _FLOOR * history[0].loss


def _from_fire_sets(network, engine: Engine, loss: Loss, problem: TrainingProblem) -> float:
    # Rows without weight (a validation split) neither push nor count.
    product = engine.approximate_tangent_operator()
    top = power_iteration(product, problem.X, network.n_outputs, problem.weight, norm=problem.norm)
    # Where nothing fires there is nothing to descend on, and any step is as good as another.
    return 1.0 / (loss.step_curvature(network.n_outputs) * top) if top > 0 else 1.0


def _from_theory(network, X: Any) -> float:
    from fireset.theory.kernel import shifted_ntk
    from fireset.theory.spectrum import smallest_eigenvalue

    n = len(X)
    if n > _MAX_ROWS_FOR_THEORY:
        raise InputError(
            f"learning_rate='theory' needs all eigenvalues of an n × n matrix and is limited to "
            f"{_MAX_ROWS_FOR_THEORY} rows, got {n}; use 'auto'"
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
