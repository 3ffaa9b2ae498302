"""The paper's two quantum-classical algorithms, simulated: Grover's search in place of half-space reporting.

- ``quantum-weights`` (Version 1) searches the m neurons for every sample, in every iteration.
- ``quantum-data`` (Version 2) searches the n samples for every neuron once, and again for each neuron that moved.

Both train on what was measured and on nothing else: where a search ends too early, the pairs it missed are missing from
the prediction and from the gradient. A quantum computer would not know; the simulation does, and says so in
``work.missed_pairs``. The oracle is the predicate by which every engine decides who fires, so that without a miss the
fire sets are the dense engine's at equal weights.

``work`` counts what the algorithms do, not what it takes to simulate them, which is looking at every pair.

Deviations from the listings:

1. The gradient has the sign of u − y; the listings' M = X diag(y − u) climbs.
2. In Version 2 the loops of Del and Add run for all moved neurons at once: S is made anew as the transpose of S̃, at
   their price, O(Σ_r k̃_r), since a neuron that fires moves.
3. Version 2 searches for neurons that moved, where the listing has those that fired: with momentum others move, too,
   and a neuron whose step was 0 has no need of it.
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
    """Both passes over lists of the pairs that were measured; the subclasses say what is searched, and when.

    Parameters
    ----------
    failure_probability : float
        δ of each single search (``fireset.quantum.search`` has the proof). A pass of Version 1 has n of them.
    seed : int
        Of the measurements.
    """

    exact = False  # but for the failure probability it is
    simulated = True

    def __init__(self, failure_probability: float = 1e-6, seed: int = 0):
        super().__init__()
        make_schedule(1, failure_probability)  # refuses what is no probability, before a long start
        whole_number("seed", seed, 0)
        self._failure_probability = failure_probability
        self._generator = np.random.default_rng(seed)
        self.work = EngineWork(oracle_queries=0, missed_pairs=0)

    def forward(self) -> np.ndarray:
        network = self.network
        if not self._diverged:
            active = self.fire_sets()
            self._look_at_all(active.indptr, active.indices)
            norms = row_norms(network.weights)
            self._bands[:] = deciding_band(network.n_features, network.dtype, norms, self._sample_norm)
            self._drifts[:] = 0.0  # the lists are of the weights as they are
        return super().forward()

    def _audit_some(self) -> None:
        """Nothing is certain here: what was missed is counted in ``work.missed_pairs``, and is no error."""

    def _search(self, indptr: np.ndarray, marked: np.ndarray, n_items: int) -> SearchResults:
        """Search, and count it: every check is an inner product that is really computed."""
        searches = find_all_batch(
            indptr, marked, n_items, failure_probability=self._failure_probability, seed=self._generator
        )
        assert self.work.oracle_queries is not None
        self.work.oracle_queries += int(searches.oracle_calls.sum())
        self.work.inner_products += int(searches.checks.sum())
        return searches


class QuantumWeightsEngine(GroverEngine):
    """Version 1: for every sample a search over the m neurons, in every iteration; Õ(Σ_i √(m k_i)) oracle calls."""

    name = "quantum-weights"
    summary = "a simulation: a quantum computer searches the neurons for each row (Version 1)"

    def _first_lists(self) -> None:
        self._found: csr_array | None = None

    def _renew_lists(self) -> None:
        self._found = None

    def fire_sets(self) -> "csr_array":
        """S, n × m: the pairs that were measured at the current weights; the first to ask has them searched."""
        if self._found is None:
            oracle = self.network.fire_sets(self.X)
            searches = self._search(oracle.indptr, oracle.indices, self.network.width)
            self.work.missed_pairs = oracle.nnz - len(searches.found)
            self._found = fire_sets_by_sample(searches.indptr, searches.found, self.network.width)
        return self._found


class QuantumDataEngine(GroverEngine):
    """Version 2: for every neuron a search over the n samples, and after a step again for those that moved.

    Õ(Σ_r √(n k̃_r)) oracle calls, and at least √n ln(1/δ) for each neuron searched, whether it fires or not.
    """

    name = "quantum-data"
    summary = "a simulation: a quantum computer searches the rows for each neuron that moved (Version 2)"

    def _first_lists(self) -> None:
        m = self.network.width
        self._of_neuron = np.zeros(m + 1, np.int64), np.empty(0, np.int32)
        self._missed = np.zeros(m, np.int64)
        self._search_for(np.arange(m))

    def _renew_lists(self) -> None:
        self._search_for(np.flatnonzero(self._speeds > 0))

    def _search_for(self, moved: np.ndarray) -> None:
        """S̃_r anew for the neurons that moved, all others as they were; then S."""
        network, n = self.network, len(self.X)
        self.work.refreshes += len(moved)
        if len(moved):
            # A network has two neurons at least: one that moved alone is asked for twice and looked at once.
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
        """S, n × m: the pairs that were measured."""
        return self._of_sample


def _replaced(indptr, samples, rows: np.ndarray, new_indptr, new_samples) -> tuple[np.ndarray, np.ndarray]:
    """Lists in a flat array with those of ``rows``, ascending, replaced by new ones; O(all entries)."""
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
