"""Simulation of the paper's two quantum-classical algorithms: Grover's search instead of half-space reporting.

- ``quantum-weights`` (Version 1) searches the m neurons for every row, in every iteration.
- ``quantum-data`` (Version 2) searches the n rows for every neuron once, and again for each neuron that moved.

Both train on the measured pairs only: if a search ends too early, the pairs it missed are missing from the prediction
and from the gradient. The simulation counts them in ``work.missed_pairs``. The oracle is the predicate that every
engine uses, so that without a miss the fire sets equal those of the dense engine at equal weights.

``work`` counts the operations of the algorithms, not those of the simulation, which computes every pair.

Deviations from the listings:

1. The gradient has the sign of u − y; the listings' M = X diag(y − u) ascends.
2. In Version 2 the loops of Del and Add run for all moved neurons at once: S is computed as the transpose of S̃, at
   the same cost O(Σ_r k̃_r), since an active neuron moves.
3. Version 2 searches for the neurons that moved; the listing searches for those that were active. With momentum other
   neurons move as well, and a neuron whose step was 0 needs no search.
"""

from typing import TYPE_CHECKING

import numpy as np

from fireset._util.checks import whole_number
from fireset._util.rounding import deciding_band, row_norms
from fireset.engines.base import EngineWork
from fireset.engines.list_engine import ListEngine
from fireset.fire_sets import fire_sets_by_neuron, fire_sets_by_sample, list_offsets
from fireset.quantum.search import SearchResults, find_all_batch, make_schedule

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class GroverEngine(ListEngine):
    """Passes over lists of the measured pairs. Subclasses define the searches.

    Parameters
    ----------
    failure_probability : float
        δ of each single search (``fireset.quantum.search`` has the proof). A pass of Version 1 makes n searches.
    seed : int
        Seed of the measurements.
    """

    exact = False  # a search fails with a small probability
    simulated = True

    def __init__(self, failure_probability: float = 1e-6, seed: int = 0):
        super().__init__()
        make_schedule(1, failure_probability)  # checks the probability before a long start
        whole_number("seed", seed, 0)
        self._failure_probability = failure_probability
        self._generator = np.random.default_rng(seed)
        self.work = EngineWork(oracle_queries=0, missed_pairs=0)

    def forward(self) -> np.ndarray:
        network = self.network
        if not self._diverged:
            active = self.fire_sets()
            self._passes.use_complete_lists(active.indptr, active.indices)
            norms = row_norms(network.weights)
            self._bands[:] = deciding_band(network.n_features, network.dtype, norms, self._sample_norm)
            self._drifts[:] = 0.0  # the lists belong to the current weights
        return super().forward()

    def _audit_pass(self) -> None:
        """Do nothing: a missed pair is not an error. ``work.missed_pairs`` counts them."""

    def _search(self, indptr: np.ndarray, marked: np.ndarray, n_items: int) -> SearchResults:
        """Search, and count the work: every check is an inner product that is computed."""
        searches = find_all_batch(
            indptr, marked, n_items, failure_probability=self._failure_probability, seed=self._generator
        )
        assert self.work.oracle_queries is not None
        self.work.oracle_queries += int(searches.oracle_calls.sum())
        self.work.inner_products += int(searches.checks.sum())
        return searches


class QuantumWeightsEngine(GroverEngine):
    """Version 1: search the m neurons for every row, in every iteration; Õ(Σ_i √(m k_i)) oracle calls."""

    name = "quantum-weights"
    summary = "a simulation: a quantum computer searches the neurons for each row (Version 1)"

    def _first_lists(self) -> None:
        self._found: csr_array | None = None

    def _update_lists(self) -> None:
        self._found = None

    def fire_sets(self) -> "csr_array":
        """Return S, (n, m): the pairs measured at the current weights. The first call runs the searches."""
        if self._found is None:
            oracle = self.network.fire_sets(self.X)
            searches = self._search(oracle.indptr, oracle.indices, self.network.width)
            self.work.missed_pairs = oracle.nnz - len(searches.found)
            self._found = fire_sets_by_sample(searches.indptr, searches.found, self.network.width)
        return self._found


class QuantumDataEngine(GroverEngine):
    """Version 2: search the n rows for every neuron, and after a step again for the neurons that moved.

    Õ(Σ_r √(n k̃_r)) oracle calls, and at least √n ln(1/δ) for each neuron searched, active or not.
    """

    name = "quantum-data"
    summary = "a simulation: a quantum computer searches the rows for each neuron that moved (Version 2)"

    def _first_lists(self) -> None:
        m = self.network.width
        self._of_neuron = np.zeros(m + 1, np.int64), np.empty(0, np.int32)
        self._missed = np.zeros(m, np.int64)
        self._search_for(np.arange(m))

    def _update_lists(self) -> None:
        self._search_for(self._moved)

    def _search_for(self, moved: np.ndarray) -> None:
        """Search S̃_r for the neurons that moved, keep all others, and transpose to S."""
        network, n = self.network, len(self.X)
        self.work.refreshes += len(moved)
        if len(moved):
            # A network has at least two neurons: a single one is given twice, and its second column dropped.
            chosen = moved if len(moved) > 1 else np.repeat(moved, 2)
            some = network.part(chosen)
            oracle = some.fire_sets(self.X).tocsc()[:, : len(moved)]
            searches = self._search(oracle.indptr, oracle.indices, n)
            self._missed[moved] = np.diff(oracle.indptr) - np.diff(searches.indptr)
            self._of_neuron = _replaced(*self._of_neuron, moved, searches.indptr, searches.found.astype(np.int32))
        self.work.missed_pairs = int(self._missed.sum())
        indptr, samples = self._of_neuron
        self._of_sample = fire_sets_by_neuron(indptr, samples, n)

    def fire_sets(self) -> "csr_array":
        """Return S, (n, m): the measured pairs."""
        return self._of_sample


def _replaced(indptr, samples, rows: np.ndarray, new_indptr, new_samples) -> tuple[np.ndarray, np.ndarray]:
    """Replace the lists of ``rows``, ascending, in a flat array of lists; O(all entries)."""
    counts = np.diff(indptr)
    counts[rows] = np.diff(new_indptr)
    ends = list_offsets(counts)
    is_new = np.zeros(len(counts), bool)
    is_new[rows] = True
    entry_is_new = np.repeat(is_new, counts)
    result = np.empty(ends[-1], np.int32)
    result[entry_is_new] = new_samples
    result[~entry_is_new] = samples[np.repeat(~is_new, np.diff(indptr))]
    return ends, result
