"""Training by batches: lists of neurons by row (``row_lists.py``), so that a batch costs the pairs that fire in it.

It is an engine like the others, but slower than ``data`` where every step looks at all rows.
"""

from typing import TYPE_CHECKING

import numpy as np

from fireset._util.aligned import aligned_bytes, aligned_rows
from fireset._util.gaussian import upper_tail
from fireset.engines.base import BatchEngine
from fireset.engines.step_rule import RowGradients, StepRule
from fireset.fire_sets import PAIR_BYTES

if TYPE_CHECKING:
    from fireset.engines.active_rows import ActiveRows
    from fireset.engines.row_lists import RowLists

_MAX_REMEMBERED = 256 << 20  # bytes of rows and lists, beyond which everything is forgotten


class RowSearchEngine(BatchEngine):
    """Keeps for each row the neurons that may fire, made when the row is first asked for.

    Parameters
    ----------
    remembers : bool
        Whether rows stay known when the engine is started with other ones, for batches that come one after the other.
    """

    name = "rows"
    summary = "keeps a list of neurons for each row; also for training on batches of rows"

    def __init__(self, remembers: bool = False):
        super().__init__()
        self._remembers = remembers
        self._lists: RowLists | None = None

    @property
    def known_rows(self) -> int:
        return len(self._known())

    def _known(self) -> "RowLists":
        assert self._lists is not None, "start comes first"
        return self._lists

    def _prepare(self) -> None:
        from fireset.engines.active_rows import neurons_of
        from fireset.engines.row_lists import RowLists

        network, lists = self.network, self._lists
        self._neurons = neurons_of(network.weights, network.output_weights, network.threshold)
        if lists is None or not (self._remembers and lists.suits(self.X) and lists.nbytes < _MAX_REMEMBERED):
            lists = RowLists(self.X[:0] if self._remembers else self.X)
        self._rows = lists.numbers_of(self.X) if self._remembers else np.arange(len(self.X))
        lists.follow(self._neurons)
        self._lists = lists
        self._velocity: np.ndarray | None = None
        self._batch = np.arange(0)  # rows of the last ``forward_rows``
        self._fired: ActiveRows | None = None  # in ``_active_rows``, at the current weights
        self._active_rows = self._batch

    def memory_bytes(self, network, n_samples: int) -> float:
        """The aligned samples, weights and references, 2 bytes for each pair that may fire, and again where it does.

        With all rows at once; batches take less. Above it there is either what is reported while lists are made, or the
        fire sets, which a step size is chosen by.
        """
        from fireset.engines.row_lists import MAX_RADIUS, SEARCHED_AT_ONCE

        row, pairs = aligned_bytes(network.n_features, network.dtype.itemsize), float(n_samples * network.width)
        listed, active = (pairs * upper_tail(network.threshold - radius) for radius in (MAX_RADIUS, 0.0))
        searched = (12 + 2.5 * network.dtype.itemsize) * min(listed, 1.2 * SEARCHED_AT_ONCE)
        lists = row * (n_samples + 3 * network.width) + 2.2 * listed + 2 * active + 0.01 * pairs
        return lists + max(searched, PAIR_BYTES * active) + 64.0 * n_samples * network.n_outputs

    def forward(self) -> np.ndarray:
        return self._pass(np.arange(len(self.X)))

    def forward_rows(self, rows: np.ndarray) -> np.ndarray:
        self._batch = np.array(rows)
        return self._pass(self._batch)

    def _pass(self, rows: np.ndarray) -> np.ndarray:
        """Predictions for these rows; who fires is kept until the weights move."""
        self._active_rows = rows
        lists = self._known()
        refreshed = lists.listed
        sums, self._fired = lists.fire(self._neurons, self._rows[rows])
        searched = max(0, lists.listed - refreshed)  # less, where all lists were begun anew
        self.work.refreshes += searched
        self.work.inner_products += self._fired.looked_at + searched * self.network.width
        self.work.active_pairs = self._fired.pairs
        return sums / self.network.divisor

    def _active_in(self, rows: np.ndarray) -> "ActiveRows":
        if self._fired is None or not np.array_equal(self._active_rows, rows):
            self._pass(rows)
        assert self._fired is not None
        return self._fired

    def _all_active(self) -> "ActiveRows":
        return self._active_in(np.arange(len(self.X)))

    def fire_sets(self):
        active = self._all_active()
        return active.fire_sets(self.network.width) if active.parts else self.network.fire_sets(self.X)

    def gradient(self, residual: np.ndarray) -> RowGradients:
        network = self.network
        pushes = (residual / network.divisor).astype(network.dtype)
        rows = self._all_active().weight_gradients(network.output_weights, pushes, network.width)
        return RowGradients(np.arange(network.width), rows[:, : network.n_features])

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        self._step_on(self._all_active(), residual, rule)
        self.end_batches(rule)

    def step_rows(self, residual: np.ndarray, rule: StepRule) -> None:
        self._step_on(self._active_in(self._batch), residual, rule)

    def _step_on(self, active: "ActiveRows", residual: np.ndarray, rule: StepRule) -> None:
        network = self.network
        if self._velocity is None:
            velocity = rule.velocity_of(network.weights)
            own = self._neurons.weights is network.weights or not rule.momentum
            self._velocity = velocity if own else aligned_rows(velocity)
            if not rule.momentum:
                self._velocity = np.empty((0, self._neurons.weights.shape[1]), network.dtype)
        pushes = (residual / network.divisor).astype(network.dtype)
        lists = self._known()
        active.step(self._neurons, self._velocity, pushes, rule, (lists.references, lists.moved))
        self._fired = None

    def end_batches(self, rule: StepRule) -> None:
        network = self.network
        if self._neurons.weights is not network.weights:
            network.weights[:] = self._neurons.weights[:, : network.n_features]
            if rule.momentum and self._velocity is not None:
                rule.velocity_of(network.weights)[:] = self._velocity[:, : network.n_features]
        self._velocity = self._fired = None

    def weights_moved(self, neurons: np.ndarray, distances: np.ndarray) -> None:  # noqa: ARG002 - it measures itself
        from fireset.engines.active_rows import neurons_of

        self._neurons = neurons_of(self.network.weights, self.network.output_weights, self.network.threshold)
        self._known().follow(self._neurons)
        self._fired = None
