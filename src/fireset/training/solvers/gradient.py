"""Full-batch gradient descent, as in the paper, with optional momentum and an adaptive step size."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from fireset._util.checks import is_number
from fireset._util.errors import InputError
from fireset._util.rounding import row_norms
from fireset.engines.step_rule import NeuronGradients, StepRule
from fireset.network import ShiftedReLUNetwork
from fireset.training.progress import Progress
from fireset.training.run import Run
from fireset.training.solvers.base import Solver
from fireset.training.step_size import StepSize, loss_grew


class GradientDescent(Solver):
    """``W ← W − η ∂L/∂W`` on the active pairs, or its heavy-ball or Nesterov variant.

    Parameters
    ----------
    learning_rate : "auto", "theory" or float
        See ``StepSize``. With "auto", a loss that grows first resets the momentum, then halves the rate.
    momentum, nesterov
        0 and False are the plain descent of the paper.
    trained_outputs : bool
        Whether the output weights are trained, too, at the same rate.
    """

    name = "gradient"
    is_descent = True
    label = "gradient descent"
    shares_rows = True

    def __init__(
        self,
        learning_rate: float | str = "auto",
        momentum: float = 0.0,
        nesterov: bool = False,
        trained_outputs: bool | float = False,
    ):
        if not is_number(momentum) or not 0.0 <= float(momentum) < 1.0:
            raise InputError(f"momentum must be at least 0 and below 1, got {momentum!r}")
        self._step_size = StepSize(learning_rate)
        self._rule = StepRule(0.0, float(momentum), bool(nesterov))
        self._output_rule = StepRule(0.0, float(momentum), bool(nesterov))
        if trained_outputs not in (0, 1):
            raise InputError(
                f"trained_outputs must be True or False for solver='gradient', got {trained_outputs!r}; a scale of the "
                f"output layer needs solver='gauss-newton'"
            )
        self.trains_outputs = bool(trained_outputs)

    def start(self, run: Run) -> None:
        super().start(run)
        self._rule.rate = self._step_size.choose(run.network, run.engine, run.loss, run.problem)
        if self.trains_outputs and self.adaptive:
            self._rule.rate *= self._hidden_layer_share()

    def _hidden_layer_share(self) -> float:
        """Return the trace of the hidden layer's kernel divided by that of both layers.

        The ratio of the traces approximates that of the largest eigenvalues.
        """
        network, X = self.run.network, self.run.problem.X
        hidden = output = 0.0
        for tile in network.tiles(X, 0, network.width):
            output += float(np.square(tile.activations, dtype=np.float64).sum())
            squares = np.square(network.output_weights[tile.neurons], dtype=np.float64).mean(axis=1)
            hidden += float(squares @ (tile.activations > 0) @ np.square(row_norms(X[tile.samples])))
        sums = self.run.shard.group.all_reduce_exact(np.array(self.run.problem.total(hidden, output)))[0]
        return float(sums[0] / sums.sum()) if sums[0] > 0 else 1.0

    def step(self, progress: Progress) -> None:
        if self.adaptive and loss_grew(self.run.history):
            record = progress.record
            roll_back = self.run.best.needs_rollback(record)
            self._back_off(from_rest=roll_back or record.iteration == (self.steady_since or 0) + 1)
            self.steady_since = record.iteration + roll_back
            if roll_back:
                self.run.roll_back()
                return
        self._descend(progress)

    def _descend(self, progress: Progress) -> None:
        engine, residual = self.run.engine, progress.scaled_residual
        outputs = engine.output_gradient(residual) if self.trains_outputs else None
        engine.step(residual, self._rule)
        if outputs is not None:
            self._output_rule.rate = self._rule.rate
            self._output_rule.apply(engine.network.output_weights, NeuronGradients(np.arange(len(outputs)), outputs))
            engine.outputs_moved()

    def use_rows(self, run: Run, *, rolled_back: bool) -> None:
        """Keep the rate, relative to the total weight of the rows, unless the last run was rolled back."""
        before, now = (problem.total(problem.weight.sum())[0] for problem in (self.run.problem, run.problem))
        if not self.adaptive or rolled_back:
            self.start(run)
        else:
            self.run = run
            self._rule.rate *= before / now
        self.steady_since = 0
        self._reset_velocity()

    def _back_off(self, *, from_rest: bool) -> None:
        """Reset the velocity after the loss has grown; halve the rate if there was no velocity.

        This is the adaptive restart of O'Donoghue and Candès (2015): growth under momentum is mostly overshoot. Growth
        from rest, or large growth, needs a smaller rate.
        """
        if not self._rule.momentum or from_rest:
            self._rule.rate *= 0.5
        self._reset_velocity()

    def _reset_velocity(self) -> None:
        self._rule.reset_velocity()
        self._output_rule.reset_velocity()

    @property
    def adaptive(self) -> bool:
        return self._step_size.adaptive

    @property
    def learning_rate(self) -> float:
        return self._rule.rate / self.run.problem.weight_unit

    @property
    def momentum(self) -> float:
        return self._rule.momentum

    def settings(self) -> dict[str, Any]:
        return {
            "solver": self.name,
            "learning_rate": self._step_size.requested,
            "momentum": self._rule.momentum,
            "nesterov": self._rule.nesterov,
            **({"trained_outputs": True} if self.trains_outputs else {}),
        }

    def extra_bytes(self, network: ShiftedReLUNetwork, n_samples: int) -> float:  # noqa: ARG002
        return float(network.weights.nbytes) if self._rule.momentum else 0.0

    # Checkpoints

    @property
    def neuron_state(self) -> np.ndarray | None:
        """The velocity."""
        return self._rule.velocity

    @property
    def output_state(self) -> np.ndarray | None:
        """The velocity of the output weights."""
        return self._output_rule.velocity

    def resume_outputs(self, output_state: np.ndarray | None) -> None:
        self._output_rule.velocity = output_state if self._output_rule.momentum else None

    def state(self) -> dict[str, float]:
        return {"rate": self._rule.rate, "steady_since": self.steady_since or 0}

    def check_state(self, state: Mapping[str, Any], iteration: int) -> None:
        rate, steady_since = state.get("rate"), state.get("steady_since")
        if not (isinstance(rate, float) and isfinite(rate) and rate > 0):
            raise InputError(f"`rate` is {str(rate)[:40]!r}")
        if type(steady_since) is not int or not 0 <= steady_since <= iteration:
            raise InputError(f"`steady_since` is {str(steady_since)[:40]!r}")

    def resume(self, run: Run, state: Mapping[str, Any], neuron_state: np.ndarray | None) -> None:
        super().resume(run, state, neuron_state)
        self._rule.rate, self.steady_since = state["rate"], state["steady_since"]
        self._rule.velocity = neuron_state if self._rule.momentum else None
