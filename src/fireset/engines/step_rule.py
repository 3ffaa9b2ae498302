"""Update rules of the weights: gradient descent, with heavy-ball or Nesterov momentum."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fireset._util.errors import InputError
from fireset._util.parallel import parallel_map, ranges


class NeuronGradients(NamedTuple):
    """∂L/∂w_r of some neurons: ``rows[k]`` belongs to ``neurons[k]``. The gradients of all other neurons are 0."""

    neurons: np.ndarray  # (k,) int64, ascending
    rows: np.ndarray  # (k, d), in the network's precision


@dataclass
class StepRule:
    """``V ← momentum·V + G``, G = ∂L/∂W; then ``W ← W − rate·V``, or for Nesterov ``W ← W − rate·(G + momentum·V)``.

    Without momentum this is the paper's ``W ← W − rate·G``. The velocity V, (m, d), is state of the rule, as in a
    PyTorch optimizer; it starts at 0. All engines use the arithmetic of ``kernels.steps.take_step``.
    """

    rate: float
    momentum: float = 0.0
    nesterov: bool = False
    velocity: np.ndarray | None = field(default=None, repr=False)

    def velocity_of(self, weights: np.ndarray) -> np.ndarray:
        """Return V for the kernels: zeros the first time, an array without rows if there is no momentum."""
        if not self.momentum:
            return np.empty((0, weights.shape[1]), weights.dtype)
        if self.velocity is None:
            self.velocity = np.zeros_like(weights)
        if self.velocity.shape != weights.shape or self.velocity.dtype != weights.dtype:
            raise InputError(
                f"velocity must be {weights.dtype} of shape {weights.shape} with momentum, got {self.velocity.dtype} "
                f"of shape {self.velocity.shape}; leave it out to start with velocity 0"
            )
        return self.velocity

    def reset_velocity(self) -> None:
        """Set the velocity to 0."""
        if self.velocity is not None:
            self.velocity[:] = 0.0

    def for_neurons(self, weights: np.ndarray, lo: int, hi: int) -> "StepRule":
        """Return the rule of neurons lo … hi−1 of ``weights``; its velocity is a view."""
        velocity = self.velocity_of(weights)[lo:hi] if self.momentum else None
        return StepRule(self.rate, self.momentum, self.nesterov, velocity)

    def kernel_arguments(self, dtype: np.dtype) -> tuple[Any, Any, bool]:
        """Return (rate, momentum, nesterov) in the types that ``take_step`` is compiled for."""
        return dtype.type(self.rate), dtype.type(self.momentum), self.nesterov

    def apply(self, weights: np.ndarray, gradients: NeuronGradients) -> tuple[np.ndarray, np.ndarray]:
        """Update the weights. Return the neurons that may have moved and upper bounds on their distances.

        With momentum, neurons without a gradient may move. ``gradients.rows`` is overwritten. Cost O(d) per neuron that
        moves.
        """
        from fireset.kernels.steps import step_rows

        velocity = self.velocity_of(weights)
        neurons, rows = gradients
        if self.momentum and len(neurons) < len(weights):
            all_neurons = np.union1d(np.flatnonzero(velocity.any(axis=1)), neurons)
            all_rows = np.zeros((len(all_neurons), weights.shape[1]), weights.dtype)
            all_rows[np.searchsorted(all_neurons, neurons)] = rows
            neurons, rows = all_neurons, all_rows
        rows = np.ascontiguousarray(rows, weights.dtype)
        distances = np.empty(len(neurons))
        rule = self.kernel_arguments(weights.dtype)

        def step_span(span: tuple[int, int]) -> None:
            step_rows(weights, velocity, neurons, rows, *rule, distances, *span)

        parallel_map(step_span, ranges(len(neurons)))
        return neurons, distances
