"""Training by batches: candidate lists by row (``row_lists.py``), so that a batch costs its active pairs.

The engine can also use all rows in every step, but the engine ``data`` is then faster.
"""

import numpy as np

from fireset._util.aligned import aligned_bytes, aligned_rows
from fireset._util.gaussian import upper_tail
from fireset.engines.base import BatchEngine
from fireset.engines.batch_pairs import BatchPairs, kernel_neurons
from fireset.engines.fire_set_engine import FireSetEngine
from fireset.engines.row_lists import MAX_CANDIDATES_AT_ONCE, MAX_RADIUS, RowLists
from fireset.engines.step_rule import NeuronGradients, StepRule
from fireset.fire_sets import BYTES_PER_ACTIVE_PAIR

_MAX_KEPT_BYTES = 256 << 20  # of rows and lists; beyond it ``start`` discards all of them


class RowSearchEngine(FireSetEngine, BatchEngine):
    """Keep for each row the neurons that can be active. The list of a row is made when the row is first used.

    Parameters
    ----------
    keep_rows : bool
        Whether ``start`` with other rows keeps earlier rows and their lists, for batches that arrive one by one.
    """

    name = "rows"
    compiles_fast = True
    summary = "keeps a list of neurons for each row; also for training on batches of rows"

    def __init__(self, keep_rows: bool = False):
        super().__init__()
        self._keep_rows = keep_rows
        self._lists: RowLists | None = None

    @property
    def kept_rows(self) -> int:
        """Number of rows that the engine keeps."""
        return len(self._row_lists())

    def _row_lists(self) -> RowLists:
        assert self._lists is not None, "call start first"
        return self._lists

    def _prepare(self) -> None:
        network, lists = self.network, self._lists
        self._neurons = kernel_neurons(network.weights, network.output_weights, network.threshold)
        if lists is None or not (self._keep_rows and lists.accepts(self.X) and lists.nbytes < _MAX_KEPT_BYTES):
            lists = RowLists(self.X[:0] if self._keep_rows else self.X)
        self._rows = lists.numbers_of(self.X) if self._keep_rows else np.arange(len(self.X))
        lists.measure_drifts(self._neurons)
        self._lists = lists
        self._velocity: np.ndarray | None = None
        self._batch = np.arange(0)  # rows of the last ``forward_rows``
        self._active: BatchPairs | None = None  # pairs of ``_active_rows`` at the current weights
        self._active_rows = self._batch

    def memory_bytes(self, network, n_samples: int) -> float:
        """Aligned rows, weights and references; 2 bytes per candidate, and 2 per active pair.

        For all rows at once; batches take less. In addition either the candidates reported while lists are made, or the
        fire sets, which the choice of a step size needs.
        """
        row, pairs = aligned_bytes(network.n_features, network.dtype.itemsize), float(n_samples * network.width)
        candidates, active = (pairs * upper_tail(network.threshold - radius) for radius in (MAX_RADIUS, 0.0))
        reported = (12 + 2.5 * network.dtype.itemsize) * min(candidates, 1.2 * MAX_CANDIDATES_AT_ONCE)
        lists = row * (n_samples + 3 * network.width) + 2.2 * candidates + 2 * active + 0.01 * pairs
        return lists + max(reported, BYTES_PER_ACTIVE_PAIR * active) + 64.0 * n_samples * network.n_outputs

    def forward(self) -> np.ndarray:
        return self._pass(np.arange(len(self.X)))

    def forward_rows(self, rows: np.ndarray) -> np.ndarray:
        self._batch = np.array(rows)
        return self._pass(self._batch)

    def _pass(self, rows: np.ndarray) -> np.ndarray:
        """Return the predictions for these rows; keep the active pairs until the weights move."""
        self._active_rows = rows
        lists = self._row_lists()
        listed_before = lists.n_listed
        sums, self._active = lists.find_active_pairs(self._neurons, self._rows[rows])
        searched = max(0, lists.n_listed - listed_before)  # fewer than before if all lists were rebuilt
        self.work.refreshes += searched
        self.work.inner_products += self._active.tested_pairs + searched * self.network.width
        self.work.active_pairs = self._active.active_pairs
        return sums / self.network.divisor

    def _active_pairs_of(self, rows: np.ndarray) -> BatchPairs:
        if self._active is None or not np.array_equal(self._active_rows, rows):
            self._pass(rows)
        assert self._active is not None
        return self._active

    def _all_active_pairs(self) -> BatchPairs:
        return self._active_pairs_of(np.arange(len(self.X)))

    def fire_sets(self):
        active = self._all_active_pairs()
        return active.fire_sets(self.network.width) if active.parts else self.network.fire_sets(self.X)

    def gradient(self, residual: np.ndarray) -> NeuronGradients:
        network = self.network
        scaled = (residual / network.divisor).astype(network.dtype)
        rows = self._all_active_pairs().weight_gradients(network.output_weights, scaled, network.width)
        return NeuronGradients(np.arange(network.width), rows[:, : network.n_features])

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        self._step_on(self._all_active_pairs(), residual, rule)
        self.end_batches(rule)

    def step_rows(self, residual: np.ndarray, rule: StepRule) -> None:
        self._step_on(self._active_pairs_of(self._batch), residual, rule)

    def _step_on(self, active: BatchPairs, residual: np.ndarray, rule: StepRule) -> None:
        network = self.network
        if self._velocity is None:
            velocity = rule.velocity_of(network.weights)
            own = self._neurons.weights is network.weights or not rule.momentum
            self._velocity = velocity if own else aligned_rows(velocity)
            if not rule.momentum:
                self._velocity = np.empty((0, self._neurons.weights.shape[1]), network.dtype)
        scaled = (residual / network.divisor).astype(network.dtype)
        lists = self._row_lists()
        active.step(self._neurons, self._velocity, scaled, rule, lists.references, lists.drifts)
        self._active = None

    def end_batches(self, rule: StepRule) -> None:
        network = self.network
        if self._neurons.weights is not network.weights:
            network.weights[:] = self._neurons.weights[:, : network.n_features]
            if rule.momentum and self._velocity is not None:
                rule.velocity_of(network.weights)[:] = self._velocity[:, : network.n_features]
        self._velocity = self._active = None

    def weights_moved(self, neurons: np.ndarray, distances: np.ndarray) -> None:  # noqa: ARG002 - drifts are measured
        self._neurons = kernel_neurons(self.network.weights, self.network.output_weights, self.network.threshold)
        self._row_lists().measure_drifts(self._neurons)
        self._active = None
