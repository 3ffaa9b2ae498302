"""Full-batch gradient descent, the paper's; with momentum where asked for, and a step size that gives way."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from fireset._util.checks import is_number
from fireset._util.errors import InputError
from fireset._util.rounding import row_norms
from fireset.engines.step_rule import NeuronGradients, StepRule
from fireset.network import ShiftedReLUNetwork
from fireset.training.solvers.base import Evaluation, Solver, SolverContext
from fireset.training.step_size import StepSize, loss_grew


class GradientDescent(Solver):
    """``W ← W − η ∂L/∂W`` on the fired pairs, or its heavy-ball or Nesterov variant.

    Parameters
    ----------
    learning_rate : "auto", "theory" or float
        See ``StepSize``. With "auto" a growing loss first stops the momentum, then halves the rate.
    momentum, nesterov
        0 and False are the paper's plain descent.
    trained_outputs : bool
        Whether the output layer follows its gradient, too, with the same rate.
    """

    name = "gradient"
    shares_rows = True

    def __init__(
        self,
        learning_rate: float | str = "auto",
        momentum: float = 0.0,
        nesterov: bool = False,
        trained_outputs: bool = False,
    ):
        if not is_number(momentum) or not 0.0 <= float(momentum) < 1.0:
            raise InputError(f"momentum must be at least 0 and below 1, got {momentum!r}")
        self._step_size = StepSize(learning_rate)
        self._rule = StepRule(0.0, float(momentum), bool(nesterov))
        self._output_rule = StepRule(0.0, float(momentum), bool(nesterov))
        self.trains_outputs = bool(trained_outputs)

    def start(self, context: SolverContext) -> None:
        super().start(context)
        network, engine = context.network, context.engine
        if self.trains_outputs and not engine.supports_output_training:
            raise InputError(f"trained_outputs needs engine 'dense' or 'data', got {engine.name!r}")
        self._rule.rate = self._step_size.choose(network, engine, context.loss, context.problem)
        if self.trains_outputs and self.adaptive:
            self._rule.rate *= self._share_of_weights()

    def _share_of_weights(self) -> float:
        """λ_max of the kernel of the weights beside that and the output layer's, whose traces stand for them."""
        network, X = self.context.network, self.context.problem.X
        own = rest = 0.0
        for tile in network.tiles(X, 0, network.width):
            rest += float(np.square(tile.activations, dtype=np.float64).sum())
            squares = np.square(network.output_weights[tile.neurons], dtype=np.float64).mean(axis=1)
            own += float(squares @ (tile.activations > 0) @ np.square(row_norms(X[tile.samples])))
        return own / (own + rest) if own > 0 else 1.0

    def step(self, evaluation: Evaluation) -> None:
        engine, best = self.context.engine, self.context.best
        if self.adaptive and loss_grew(self.context.history):
            record = evaluation.record
            lost = best.beyond_repair(record)
            self._back_off(from_rest=lost or record.iteration == (self.steady_since or 0) + 1)
            self.steady_since = record.iteration + lost
            if lost:
                best.restore()
                engine.start(engine.network, engine.X)
                return
        self._descend(evaluation)

    def _descend(self, evaluation: Evaluation) -> None:
        engine, residual = self.context.engine, evaluation.residual
        outputs = engine.output_gradient(residual) if self.trains_outputs else None
        engine.step(residual, self._rule)
        if outputs is not None:
            self._output_rule.rate = self._rule.rate
            self._output_rule.apply(engine.network.output_weights, NeuronGradients(np.arange(len(outputs)), outputs))
            engine.outputs_moved()

    def use_rows(self, context: SolverContext, *, went_back: bool) -> None:
        """λ_max is that of the rows before, by their weight, as long as steps of that size make the loss fall."""
        before, now = (problem.total(problem.weight.sum())[0] for problem in (self.context.problem, context.problem))
        if not self.adaptive or went_back:
            self.start(context)
        else:
            self.context = context
            self._rule.rate *= before / now
        self.steady_since = 0
        self._rule.reset_velocity()
        self._output_rule.reset_velocity()

    def _back_off(self, *, from_rest: bool) -> None:
        """After the loss has grown: let momentum start anew; if there was none to blame, halve the rate.

        Stopping the velocity when the objective grows is adaptive restart (O'Donoghue and Candès 2015): growth under
        momentum is mostly overshoot. Growth from rest, or beyond repair, is the rate's fault.
        """
        if not self._rule.momentum or from_rest:
            self._rule.rate *= 0.5
        self._rule.reset_velocity()
        self._output_rule.reset_velocity()

    @property
    def adaptive(self) -> bool:
        return self._step_size.adaptive

    @property
    def learning_rate(self) -> float:
        return self._rule.rate / self.context.problem.weight_unit

    @property
    def momentum(self) -> float:
        return self._rule.momentum

    def settings(self) -> dict[str, Any]:
        return {
            "learning_rate": self._step_size.asked,
            "momentum": self._rule.momentum,
            "nesterov": self._rule.nesterov,
        }

    def extra_bytes(self, network: ShiftedReLUNetwork, n_samples: int) -> float:  # noqa: ARG002
        return float(network.weights.nbytes) if self._rule.momentum else 0.0

    @property
    def velocity(self) -> np.ndarray | None:
        return self._rule.velocity

    def state(self) -> dict[str, float]:
        return {"rate": self._rule.rate, "settled": self.steady_since or 0}

    def check_state(self, state: Mapping[str, Any], iteration: int) -> None:
        rate, steady_since = state.get("rate"), state.get("settled")
        if not (isinstance(rate, float) and isfinite(rate) and rate > 0):
            raise InputError(f"its learning rate is {str(rate)[:40]!r}")
        if type(steady_since) is not int or not 0 <= steady_since <= iteration:
            raise InputError(f"its rate was changed last in iteration {str(steady_since)[:40]!r}")

    def resume(self, context: SolverContext, state: Mapping[str, Any], velocity: np.ndarray | None) -> None:
        super().resume(context, state, velocity)
        self._rule.rate, self.steady_since = state["rate"], state["settled"]
        self._rule.velocity = velocity if self._rule.momentum else None
