"""Copies of the weights to return to after overshoot, divergence, errors and Ctrl-C."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fireset.network import ShiftedReLUNetwork
from fireset.training.history import Iteration

_COPY_LOSS_RATIO = 0.5  # without validation rows the copy is renewed when the loss has halved: log₂ many copies
_ROLLBACK_LOSS_RATIO = 2.0  # of the loss to that of the copy


class Snapshot:
    """A copy of the trained arrays of a network, and the iteration they belong to.

    ``BestWeights`` keeps the best iteration in one, Gauss–Newton the weights before a trial step in another.
    """

    def __init__(self, network: ShiftedReLUNetwork, record: Iteration | None = None, *, with_outputs: bool = False):
        self._network = network
        self.record = record
        self.weights = network.weights.copy()
        self.output_weights = network.output_weights.copy() if with_outputs else None

    def take(self, record: Iteration) -> None:
        """Overwrite the copy with the current arrays of the network."""
        np.copyto(self.weights, self._network.weights)
        if self.output_weights is not None:
            np.copyto(self.output_weights, self._network.output_weights)
        self.record = record

    def restore(self) -> None:
        """Write the copy into the network."""
        np.copyto(self._network.weights, self.weights)
        if self.output_weights is not None:
            np.copyto(self._network.output_weights, self.output_weights)

    def changed_neurons(self) -> np.ndarray:
        """Return the indices of neurons whose weights in the copy differ from those of the network, as bits."""
        return _different_rows(self.weights, self._network.weights)

    def changed_outputs(self) -> np.ndarray:
        """Return the indices of neurons whose output weights in the copy differ, as bits."""
        if self.output_weights is None:
            return np.empty(0, np.int64)
        return _different_rows(self.output_weights, self._network.output_weights)


def _different_rows(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    bits = f"u{first.itemsize}"  # −0 differs from 0, and NaN equals itself
    return np.flatnonzero((first.view(bits) != second.view(bits)).any(axis=1))


class BestWeights:
    """A copy of the best weights, and the rule for returning to it.

    With validation rows the copy has the lowest validation loss. Without, the current weights are the best except after
    overshoot and divergence; the loss of the copy is at most twice the lowest one.
    """

    def __init__(self, network: ShiftedReLUNetwork, *, by_validation: bool, with_outputs: bool = False):
        self._network = network
        self._by_validation = by_validation
        self._copy = Snapshot(network, with_outputs=with_outputs)
        self._current: Iteration | None = None

    @property
    def best(self) -> Iteration:
        """The iteration of the copy."""
        assert self._copy.record is not None, "no iteration was recorded yet"
        return self._copy.record

    def update(self, record: Iteration) -> None:
        """Record that the network has the weights of ``record``; copy them if they are better than the copy."""
        self._current = record
        ratio = 1.0 if self._by_validation else _COPY_LOSS_RATIO
        if self._copy.record is None or self._score(record) < self._score(self._copy.record) * ratio:
            self._copy.take(record)

    def needs_rollback(self, record: Iteration) -> bool:
        """Return whether the loss of ``record`` is NaN or more than twice that of the copy."""
        return not record.loss <= _ROLLBACK_LOSS_RATIO * self.best.loss

    def restore(self) -> None:
        """Return to the copy."""
        self._copy.restore()
        self._current = self._copy.record

    def finish(self) -> Iteration:
        """Leave the better of the copy and the current weights in the network; return their iteration."""
        assert self._current is not None, "no iteration was recorded yet"
        if not self._score(self._current) <= self._score(self.best):
            self.restore()
        return self._current

    def difference(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the neurons whose weights in the copy differ from those of the network, and these weights."""
        neurons = self._copy.changed_neurons()
        return neurons, self._copy.weights[neurons]

    def output_difference(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the neurons whose output weights in the copy differ from those of the network, and these weights."""
        neurons, outputs = self._copy.changed_outputs(), self._copy.output_weights
        return neurons, self._network.output_weights[:0] if outputs is None else outputs[neurons]

    def resume(
        self, best: Iteration, weights: tuple[np.ndarray, np.ndarray], outputs: tuple[np.ndarray, np.ndarray]
    ) -> None:
        """Set the copy to iteration ``best``: the network, except for the given neurons and their rows."""
        self._copy.take(best)
        self._copy.weights[weights[0]] = weights[1]
        if self._copy.output_weights is not None:
            self._copy.output_weights[outputs[0]] = outputs[1]

    @contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """Return to the copy if the block raises, so that no half-finished step stays in the network."""
        try:
            yield
        except BaseException:
            self.restore()
            raise

    def _score(self, record: Iteration) -> float:
        loss = record.validation_loss if self._by_validation else record.loss
        return np.inf if loss is None or np.isnan(loss) else loss
