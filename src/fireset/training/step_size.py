"""The step size η of gradient descent: a number, that of the theorem, or one from the tangent kernel."""

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
# A loss has grown if it exceeds the last one by this fraction of it plus this fraction of the first loss. Rounding of
# float32 predictions stays below.
_GROWTH_TOLERANCE = 1e-5
_GROWTH_FLOOR = 1e-10


class StepSize:
    """The rule for η.

    "auto": 1/(β λ_max), with λ_max of the tangent kernel at the current weights and β the curvature of the loss. It is
    half of the stability limit. "theory": the paper's λ/(4 n²), which is proved and too small in practice. A number is
    used as it is.
    """

    def __init__(self, requested: float | str):
        if requested not in ("auto", "theory") and not (is_number(requested) and float(requested) > 0):
            shown = repr(requested) if isinstance(requested, str) else requested
            raise InputError(f"learning_rate must be 'auto', 'theory' or a positive number, got {shown}")
        self.requested = requested

    @property
    def adaptive(self) -> bool:
        """Whether the rate may be lowered when the loss grows."""
        return self.requested == "auto"

    def choose(self, network: ShiftedReLUNetwork, engine: Engine, loss: Loss, problem: TrainingProblem) -> float:
        """Return η at the current weights, for losses in units of ``problem.weight_unit``."""
        if self.requested == "auto":
            return _from_tangent_kernel(network, engine, loss, problem)
        if self.requested == "theory":
            if problem.row_group.size > 1:
                raise InputError("learning_rate='theory' needs all rows on every worker; use 'auto' or a number")
            return _from_theory(network, problem.X[problem.weight > 0]) * problem.weight_unit
        return float(self.requested) * problem.weight_unit


def loss_grew(history: History) -> bool:
    """Return whether the last step increased the loss by more than rounding, or to NaN."""
    if len(history) < 2:
        return False
    before, now = history[-2].loss, history[-1].loss
    return not now <= before * (1.0 + _GROWTH_TOLERANCE) + _GROWTH_FLOOR * history[0].loss


def _from_tangent_kernel(network, engine: Engine, loss: Loss, problem: TrainingProblem) -> float:
    product = engine.approximate_tangent_operator()
    top = power_iteration(product, problem.X, network.n_outputs, problem.weight, norm=problem.norm)
    # Without active pairs the gradient is 0 and the rate is arbitrary.
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
            f"learning_rate='theory' needs λ_min(H^cts) > 0, got {smallest:.2g}: two rows are equal, or the threshold "
            f"{network.threshold:.3g} is too high to distinguish them; use 'auto'"
        )
    return smallest / (4.0 * n * n)
