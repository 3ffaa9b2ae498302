"""How the weights follow their gradient: plain descent, heavy ball, Nesterov."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fireset._util.errors import InputError
from fireset._util.parallel import parallel_map, ranges


class RowGradients(NamedTuple):
    """∂L/∂w_r for the neurons that have one: ``rows[k]`` is that of ``neurons[k]``; all others are 0."""

    neurons: np.ndarray  # (k,) int64, ascending
    rows: np.ndarray  # (k, d), in the network's precision


@dataclass
class StepRule:
    """``V ← momentum·V + G``, G = ∂L/∂W; then ``W ← W − rate·V``, or for Nesterov ``W ← W − rate·(G + momentum·V)``.

    Without momentum this is the paper's ``W ← W − rate·G``. The velocity V, (m, d), is part of the rule, as the state
    of an optimizer is in PyTorch; it starts at 0. The arithmetic, for all engines, is ``kernels.steps.take_step``.
    """

    rate: float
    momentum: float = 0.0
    nesterov: bool = False
    velocity: np.ndarray | None = field(default=None, repr=False)

    def velocity_of(self, weights: np.ndarray) -> np.ndarray:
        """V as the kernels take it: zeros the first time; without momentum it has no rows."""
        if not self.momentum:
            return np.empty((0, weights.shape[1]), weights.dtype)
        if self.velocity is None:
            self.velocity = np.zeros_like(weights)
        if self.velocity.shape != weights.shape or self.velocity.dtype != weights.dtype:
            raise InputError(
                f"velocity must be {weights.dtype} of shape {weights.shape} with momentum, got {self.velocity.dtype} "
                f"of shape {self.velocity.shape}; leave it out to start from rest"
            )
        return self.velocity

    def reset_velocity(self) -> None:
        """Start from rest again."""
        if self.velocity is not None:
            self.velocity[:] = 0.0

    def for_neurons(self, weights: np.ndarray, lo: int, hi: int) -> "StepRule":
        """The rule of neurons lo … hi−1 of ``weights``, on the same memory."""
        velocity = self.velocity_of(weights)[lo:hi] if self.momentum else None
        return StepRule(self.rate, self.momentum, self.nesterov, velocity)

    def arguments(self, dtype: np.dtype) -> tuple[Any, Any, bool]:
        """(rate, momentum, nesterov) as ``take_step`` takes them."""
        return dtype.type(self.rate), dtype.type(self.momentum), self.nesterov

    def apply(self, weights: np.ndarray, gradients: RowGradients) -> tuple[np.ndarray, np.ndarray]:
        """Move the weights; returns the neurons that may have moved and bounds on how far each of them did.

        With momentum, neurons without a gradient move, too. ``gradients.rows`` are overwritten. Cost O(d) for each
        neuron that moves.
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
        speeds = np.empty(len(neurons))
        rule = self.arguments(weights.dtype)

        def step_span(span: tuple[int, int]) -> None:
            step_rows(weights, velocity, neurons, rows, *rule, speeds, *span)

        parallel_map(step_span, ranges(len(neurons)))
        return neurons, speeds
