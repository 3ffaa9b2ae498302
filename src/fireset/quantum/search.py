"""Grover's search for all marked items when their number is unknown.

The schedule is that of Boyer, Brassard, Høyer and Tapp ("Tight bounds on quantum searching", 1998). A phase of size M
draws j uniformly below M, runs j Grover iterations, measures, and checks the measured item. After a failure M grows by
the factor 6/5. A found item is removed from the oracle, and the schedule starts again. When all phases fail in a row,
the search ends with the *verdict* that no marked item is left.

**Failure probability.** Every measured item is checked, so an unmarked item is never reported. The only possible error
is the verdict while k ≥ 1 items are left. For phases of sizes M_1 … M_T its probability is

    F(k) = Π_t (1 − P(M_t, k)),    P(M, k) = (1/M) Σ_{j<M} sin²((2j + 1)θ) = 1/2 − sin(4Mθ) / (4M sin 2θ),

sin²θ = k/N. This is exact, as the measurements of the phases are independent. A search passes through the states of k,
k − 1, …, 1 items left and misses an item only if the verdict comes too early in one of them: with probability at most
Σ_k F(k), whatever the number of marked items is. T is the smallest number of phases for which this sum over k = 1 … N
is at most ``failure_probability``. (The sum is about twice F(1).) The proof needs neither a lemma about M ≥ 1/sin 2θ
nor a separate case for k > 3N/4.

Deviations from the textbook:

1. M grows up to √N − 1 instead of √N: a phase then costs at most √N − 1 calls including the check, √N/2 on average.
2. The number of phases follows from the exact sum above instead of P ≥ 1/4, which would need three times as many.

N need not be a power of two: amplitudes are uniform over N items. (Circuits are padded to 2^q items.)
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, sqrt

import numpy as np

from fireset._util.checks import is_number, is_whole_number
from fireset._util.errors import InputError
from fireset._util.parallel import parallel_map, ranges

Seed = int | np.random.SeedSequence | np.random.Generator

PHASE_GROWTH = 1.2  # factor of M between two phases
_MAX_EXACT_COUNT = 4096  # F(k) is summed for each k up to here, and bounded for intervals of k beyond
_MAX_ITEMS = 2**50  # keeps squares of angles and sums of calls within 64 bits


def success_probability(n_items: int, n_marked: int, iterations: int) -> float:
    """Return sin²((2j + 1)θ), the probability to measure a marked item after j Grover iterations."""
    return float(np.sin((2 * iterations + 1) * _angles(n_items, n_marked)) ** 2)


def phase_success(size, n_items: int, n_marked) -> np.ndarray:
    """Return P(M, k), the probability that a phase of size M finds an item; shape of ``n_marked``."""
    marked = np.asarray(n_marked, np.float64)
    angles = _angles(n_items, marked)
    some = (marked > 0) & (marked < n_items)
    sines = np.where(some, np.sin(2 * angles), 1.0)
    return np.where(some, 0.5 - np.sin(4 * size * angles) / (4 * size * sines), marked / n_items)


def _angles(n_items, n_marked) -> np.ndarray:
    """Return θ by the arc tangent; the arc sine loses digits if nearly all items are marked."""
    marked = np.asarray(n_marked, np.float64)
    return np.arctan2(np.sqrt(marked), np.sqrt(n_items - marked))


@dataclass(frozen=True)
class Schedule:
    """Phases after the last found item, and their failure bound.

    Attributes
    ----------
    sizes : (T,) int64 array
        M_t.
    failure_bound : float
        Upper bound on Σ_k F(k), at most the requested failure probability.
    """

    sizes: np.ndarray
    failure_bound: float

    @property
    def verdict_calls(self) -> float:
        """Expected oracle calls of the verdict, checks included: Σ_t (M_t + 1)/2."""
        return float((self.sizes + 1).sum() / 2)


@lru_cache(maxsize=256)
def make_schedule(n_items: int, failure_probability: float = 1e-6) -> Schedule:
    """Compute the shortest schedule with the given failure probability. Cost O(4096·T), cached for N and δ."""
    n_items, failure_probability = _check(n_items, failure_probability)
    largest = max(2, round(sqrt(n_items)) - 1)
    counts = np.arange(1, min(n_items, _MAX_EXACT_COUNT) + 1)
    intervals = _CountIntervals(n_items)
    failures, interval_failures = np.ones(len(counts)), intervals.lengths.copy()
    sizes: list[int] = []
    unrounded, bound = 1.0, np.inf
    while bound > failure_probability:
        size = min(ceil(unrounded), largest)
        unrounded = min(unrounded * PHASE_GROWTH, 2.0 * largest)
        sizes.append(size)
        failures *= 1.0 - phase_success(size, n_items, counts)
        interval_failures *= intervals.phase_failure(size)
        bound = float(failures.sum() + interval_failures.sum()) * (1 + 1e-9)  # the factor covers rounding
    return Schedule(np.array(sizes, np.int64), bound)


class _CountIntervals:
    """Intervals of k = 4097 … N marked items, each with an upper bound on 1 − P(M, k).

    Up to N/2 an interval extends from k to 2k, beyond from N − 2u to N − u; in both sin 2θ = 2√(k(N − k))/N has its
    smallest value at an end. Three bounds: 1 − P ≤ 1/2 + 1/(4M sin 2θ) always; 1 − k/N for M = 1; and 0.64 for
    k ≥ N/2, where P = 1/2 + sin(2Mx) / (4M sin x) with x = π − 2θ ≤ π/2, whose lowest value, of M = 2, is 0.364.
    """

    def __init__(self, n_items: int):
        half = n_items // 2
        lower, upper = [], []
        k = _MAX_EXACT_COUNT + 1
        while k <= half:
            lower.append((k, min(2 * k - 1, half)))
            k *= 2
        u = 1
        top = n_items - max(
            half + 1, _MAX_EXACT_COUNT + 1
        )  # the largest N − k of the upper intervals; k = N cannot fail
        while u <= top:
            upper.append((n_items - min(2 * u - 1, top), n_items - u))
            u *= 2
        ends = np.array(lower + upper, np.float64).reshape(-1, 2)
        self.lengths = ends[:, 1] - ends[:, 0] + 1
        self._smallest_share = ends[:, 0] / n_items
        sines = 2 * np.sqrt(ends / n_items * (1 - ends / n_items))  # sin 2θ at both ends
        self._smallest_sine = sines.min(axis=1, initial=1.0)
        self._is_upper = np.arange(len(ends)) >= len(lower)

    def phase_failure(self, size: int) -> np.ndarray:
        """Return the bound on 1 − P(M, k) of each interval for M = ``size``."""
        if size == 1:
            return 1.0 - self._smallest_share
        always = np.minimum(1.0, 0.5 + 1.0 / (4 * size * self._smallest_sine))
        return np.where(self._is_upper, np.minimum(always, 0.64), always)


@dataclass(frozen=True)
class SearchResults:
    """Found items and costs of one or more searches.

    Attributes
    ----------
    indptr, found : arrays
        Search s found the items ``found[indptr[s]:indptr[s+1]]``, ascending.
    iterations, measurements : (searches,) int64 arrays
        Grover iterations, each one oracle call in superposition; and measurements, each followed by a check.
    verdict_calls : (searches,) int64 array
        Oracle calls after the last found item, up to the verdict that none is left.
    """

    indptr: np.ndarray
    found: np.ndarray
    iterations: np.ndarray
    measurements: np.ndarray
    verdict_calls: np.ndarray

    @property
    def checks(self) -> np.ndarray:
        """Classical evaluations of the predicate: one per measurement."""
        return self.measurements

    @property
    def oracle_calls(self) -> np.ndarray:
        """All evaluations of the predicate, in superposition and classical."""
        return self.iterations + self.checks


def find_all(marked, n_items: int, *, failure_probability: float = 1e-6, seed: Seed = 0) -> SearchResults:
    """Simulate one quantum search for all marked items among ``n_items``.

    Parameters
    ----------
    marked : array of ids
        The items that the oracle marks. The search uses them only through simulated measurements.
    n_items : int
        N.
    failure_probability : float
        δ, an upper bound on the probability that an item is missed.
    seed : int, SeedSequence or Generator
    """
    marked = np.asarray(marked)
    return find_all_batch(
        np.array([0, len(marked)]), marked, n_items, failure_probability=failure_probability, seed=seed
    )


def find_all_batch(indptr, marked, n_items: int, *, failure_probability: float = 1e-6, seed: Seed = 0) -> SearchResults:
    """Simulate independent searches over ``n_items`` items each; δ is the failure probability of each.

    Parameters
    ----------
    indptr, marked : arrays
        The oracle of search s marks ``marked[indptr[s]:indptr[s+1]]``, each item once.

    Notes
    -----
    Mean oracle calls of a search for k items: about 3.1 √(N k) + 0.65 √N ln(1/δ) at δ = 10⁻⁶. The simulation costs
    O(1) per measurement for every N.
    """
    from fireset.kernels.grover import search

    n_items, failure_probability = _check(n_items, failure_probability)
    indptr, marked = _check_marked(indptr, marked, n_items)
    sizes = make_schedule(n_items, failure_probability).sizes
    starts, counts = indptr[:-1].copy(), np.diff(indptr)
    order = marked.copy()
    found, iterations, measurements, verdict = (np.empty(len(counts), np.int64) for _ in range(4))
    parts = ranges(len(counts))
    generators = np.random.default_rng(seed).spawn(len(parts))

    def search_span(task) -> None:
        span, generator = task
        search(n_items, sizes, starts, counts, order, generator, found, iterations, measurements, verdict, *span)

    parallel_map(search_span, zip(parts, generators, strict=True))
    ends = np.concatenate([[0], np.cumsum(found)])
    owners = np.repeat(np.arange(len(counts)), found)
    measured = order[starts[owners] + np.arange(ends[-1]) - ends[owners]]
    return SearchResults(ends, measured[np.lexsort((measured, owners))], iterations, measurements, verdict)


def _check(n_items, failure_probability) -> tuple[int, float]:
    if not is_whole_number(n_items) or not 1 <= int(n_items) <= _MAX_ITEMS:
        raise InputError(f"n_items must be a whole number from 1 to 2**50, got {n_items!r}")
    if not is_number(failure_probability) or not 0.0 < float(failure_probability) < 1.0:
        raise InputError(f"failure_probability must lie between 0 and 1, got {failure_probability!r}")
    return int(n_items), float(failure_probability)


def _check_marked(indptr, marked, n_items: int) -> tuple[np.ndarray, np.ndarray]:
    indptr = np.asarray(indptr)
    marked = np.asarray(marked)
    if marked.size == 0:
        marked = marked.astype(np.int64)
    if marked.ndim != 1 or not np.issubdtype(marked.dtype, np.integer):
        raise InputError(f"marked must be a list of item numbers, got {marked.dtype} of shape {marked.shape}")
    indptr, marked = indptr.astype(np.int64), marked.astype(np.int64)
    if len(indptr) < 1 or indptr[0] != 0 or indptr[-1] != len(marked) or (np.diff(indptr) < 0).any():
        raise InputError(f"indptr must increase from 0 to {len(marked)} = len(marked), got {indptr.tolist()[:10]}")
    outside = np.flatnonzero((marked < 0) | (marked >= n_items))
    if len(outside):
        raise InputError(f"marked must contain numbers from 0 to {n_items - 1}, got {marked[outside[0]]}")
    owners = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    order = np.lexsort((marked, owners))
    twice = np.flatnonzero((np.diff(marked[order]) == 0) & (np.diff(owners[order]) == 0))
    if len(twice):
        raise InputError(f"marked must contain every item at most once, got {marked[order][twice[0]]} twice")
    return indptr, marked
