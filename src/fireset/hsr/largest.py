"""The k points of largest inner product, by half-space queries: for kinds that can do nothing but answer those.

A sample of √(n k) points says how high a threshold has about k points above. If the kth best of the points found lies
above the threshold by more than rounding, no point that was not found can be among the best k, ties included. If not,
the next threshold has four times as many above. The sample decides what it costs, never what is answered.
"""

from collections.abc import Callable
from math import ceil, isqrt, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from fireset.hsr.base import Answers, Queries
    from fireset.kernels.largest import Heaps

_MIN_SAMPLE = 64


class Largest(NamedTuple):
    """The best points, best first: ``ids`` int64 and ``values`` float64, for several normals one row each."""

    ids: np.ndarray
    values: np.ndarray


def empty_heaps(n_queries: int, k: int) -> "Heaps":
    """Heaps for the best k of each query."""
    from fireset.kernels.largest import Heaps

    return Heaps(np.empty((n_queries, k)), np.empty((n_queries, k), np.int32), np.zeros(n_queries, np.int64))


def offer_above(
    answer: Callable[["Queries", bool, bool], "Answers"],
    ids: np.ndarray,
    points: np.ndarray,
    queries: "Queries",
    heaps: "Heaps",
) -> tuple[int, int]:
    """Fill the heaps, which are empty, by asking ``answer`` for ids; ``ids`` of ``points`` ascend.

    Returns nodes visited and points tested.
    """
    from fireset.kernels.largest import offer_listed

    n, k = len(points), heaps.values.shape[1]
    sample = points[:: max(1, n // max(_MIN_SAMPLE, isqrt(n * k)))]
    with np.errstate(over="ignore", invalid="ignore"):
        guesses = -np.sort(-(queries.normals @ sample.T), axis=1)
    expected = k * len(sample) / n
    rank = ceil(expected + 3 * sqrt(expected) + 3)
    # In float64 what is found is exactly what is above; in float32 what is above by more than rounding.
    margins = 2 * queries.slacks if points.dtype == np.float32 else np.zeros(len(guesses))
    open_queries, nodes, tested = np.arange(len(guesses)), 0, 0
    while len(open_queries) and rank < len(sample) // 2:
        thresholds = guesses[open_queries, rank]
        thresholds[np.isnan(thresholds)] = -np.inf
        asked = type(queries)(*(array[open_queries] for array in queries))._replace(thresholds=thresholds)
        found = answer(asked, False, False)
        nodes, tested = nodes + found.nodes_visited, tested + found.points_tested
        heaps.sizes[open_queries] = 0
        rows = np.searchsorted(ids, found.ids).astype(np.int32)
        offer_listed(points, queries.normals, open_queries, found.counts, rows, heaps)
        full = heaps.sizes[open_queries] == k
        open_queries = open_queries[~(full & (heaps.values[open_queries, 0] > thresholds + margins[open_queries]))]
        rank *= 4
    heaps.sizes[open_queries] = 0
    everything = np.tile(np.arange(n, dtype=np.int32), len(open_queries))
    offer_listed(points, queries.normals, open_queries, np.full(len(open_queries), n), everything, heaps)
    heaps.ids[:] = ids[heaps.ids]  # rows so far; both ascend, and heaps stay heaps
    return nodes, tested + len(everything)
