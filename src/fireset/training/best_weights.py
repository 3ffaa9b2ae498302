"""Keeping the best network: through overshoot, divergence and Ctrl-C."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fireset.network import ShiftedReLUNetwork
from fireset.training.history import Iteration

_COPY_LOSS_RATIO = 0.5  # without a validation set the safe copy is renewed when the loss has halved: log₂ many copies
_ROLLBACK_LOSS_RATIO = 2.0  # times the loss of the copy


class BestWeights:
    """A safe copy of the weights, and the judgement of when to go back to it.

    With a validation set the copy is that of the lowest validation loss. Without one the current weights are the best,
    save for overshoot and divergence, and the copy is there to fall back on: its loss is within twice the best seen.
    """

    def __init__(self, network: ShiftedReLUNetwork, *, by_validation: bool, with_outputs: bool = False):
        self._network = network
        self._by_validation = by_validation
        self._copy = network.weights.copy()
        self._outputs = network.output_weights.copy() if with_outputs else None
        self._current: Iteration | None = None
        self._best: Iteration | None = None

    @property
    def best(self) -> Iteration:
        """The iteration whose weights the copy holds."""
        assert self._best is not None, "no iteration was recorded yet"
        return self._best

    def update(self, record: Iteration) -> None:
        """The network's weights are those of ``record`` now; copy them if they are worth it."""
        self._current = record
        if self._best is None or self._score(record) < self._score(self._best) * (
            1.0 if self._by_validation else _COPY_LOSS_RATIO
        ):
            np.copyto(self._copy, self._network.weights)
            if self._outputs is not None:
                np.copyto(self._outputs, self._network.output_weights)
            self._best = record

    def beyond_repair(self, record: Iteration) -> bool:
        """Whether this iteration is so much worse than the copy, or NaN, that going on from it makes no sense."""
        return not record.loss <= _ROLLBACK_LOSS_RATIO * self.best.loss

    def restore(self) -> None:
        """Go back to the copy."""
        np.copyto(self._network.weights, self._copy)
        if self._outputs is not None:
            np.copyto(self._network.output_weights, self._outputs)
        self._current = self._best

    def finish(self) -> Iteration:
        """Leave the better of copy and current weights in the network; returns the iteration they are from."""
        assert self._current is not None, "no iteration was recorded yet"
        if not self._score(self._current) <= self._score(self.best):
            self.restore()
        return self._current

    def changed_neurons(self) -> np.ndarray:
        """Numbers of the neurons whose weights in the copy are not those of the network."""
        bits = f"u{self._copy.itemsize}"  # as bits: −0 is not 0, and NaN is NaN
        return np.flatnonzero((self._copy.view(bits) != self._network.weights.view(bits)).any(axis=1))

    def rows(self, neurons: np.ndarray) -> np.ndarray:
        """The copy's weights of some neurons."""
        return self._copy[neurons]

    def resume(self, best: Iteration, neurons: np.ndarray, rows: np.ndarray) -> None:
        """The copy is that of ``best``: the network's weights as they are, but for these neurons."""
        np.copyto(self._copy, self._network.weights)
        self._copy[neurons] = rows
        self._best = best

    @contextmanager
    def restored_on_error(self) -> Iterator[None]:
        """If the block is torn down in the middle of a step, leave the copy in the network, not half a step."""
        try:
            yield
        except BaseException:
            self.restore()
            raise

    def _score(self, record: Iteration) -> float:
        loss = record.validation_loss if self._by_validation else record.loss
        return np.inf if loss is None or np.isnan(loss) else loss
