"""The k points of largest inner product by half-space queries, for kinds without a faster method.

A sample of √(n k) points gives a threshold with about k points above it. If the kth best of the points found exceeds
the threshold by more than rounding, the best k are among them, ties included. Otherwise the next threshold has four
times as many points above it. The sample affects the cost only, not the result.
"""

from collections.abc import Callable
from math import ceil, isqrt, sqrt

import numpy as np

from fireset.hsr.base import Answers, Queries
from fireset.kernels.top_k import Heaps, push_listed, sort_heaps

__all__ = ["empty_heaps", "fill_by_queries", "sort_heaps"]

_MIN_SAMPLE = 64


def empty_heaps(n_queries: int, k: int) -> Heaps:
    """Allocate heaps for the best k of each query."""
    return Heaps(np.empty((n_queries, k)), np.empty((n_queries, k), np.int32), np.zeros(n_queries, np.int64))


def fill_by_queries(
    answer: Callable[[Queries, bool, bool], Answers],
    ids: np.ndarray,
    points: np.ndarray,
    queries: Queries,
    heaps: Heaps,
) -> tuple[int, int]:
    """Fill empty heaps with the best points of each query by half-space queries.

    ``answer`` is ``HalfSpaceIndex._answer``; ``ids`` (n,), ascending, and ``points`` (n, d) are all points of the
    index. Returns the numbers of nodes visited and of points tested.
    """
    n, k = len(points), heaps.values.shape[1]
    sample = points[:: max(1, n // max(_MIN_SAMPLE, isqrt(n * k)))]
    with np.errstate(over="ignore", invalid="ignore"):
        guesses = -np.sort(-(queries.normals @ sample.T), axis=1)
    expected = k * len(sample) / n
    rank = ceil(expected + 3 * sqrt(expected) + 3)
    # In float64 exactly the points above are found; in float32 those above by more than rounding.
    margins = 2 * queries.slacks if points.dtype == np.float32 else np.zeros(len(guesses))
    open_queries, nodes, tested = np.arange(len(guesses)), 0, 0
    while len(open_queries) and rank < len(sample) // 2:
        thresholds = guesses[open_queries, rank]
        thresholds[np.isnan(thresholds)] = -np.inf
        remaining = type(queries)(*(array[open_queries] for array in queries))._replace(thresholds=thresholds)
        found = answer(remaining, False, False)
        nodes, tested = nodes + found.nodes_visited, tested + found.points_tested
        heaps.sizes[open_queries] = 0
        rows = np.searchsorted(ids, found.ids).astype(np.int32)
        push_listed(points, queries.normals, open_queries, found.counts, rows, heaps)
        full = heaps.sizes[open_queries] == k
        open_queries = open_queries[~(full & (heaps.values[open_queries, 0] > thresholds + margins[open_queries]))]
        rank *= 4
    heaps.sizes[open_queries] = 0
    everything = np.tile(np.arange(n, dtype=np.int32), len(open_queries))
    push_listed(points, queries.normals, open_queries, np.full(len(open_queries), n), everything, heaps)
    heaps.ids[:] = ids[heaps.ids]  # from rows to ids; both ascend, so that heaps stay heaps
    return nodes, tested + len(everything)
