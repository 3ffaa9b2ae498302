"""Sums over half-spaces, and their adjoint, from a partition tree, without reporting which points lie above.

A subtree whose box is inside a half-space has its sum computed once for all queries; only the points of leaves on the
boundary are tested. A query costs O(boxes on the boundary) instead of O(points above).
"""

import numpy as np

from fireset._util.errors import InputError
from fireset._util.parallel import parallel_map, ranges
from fireset.hsr.base import Queries
from fireset.kernels.partition_tree import FAN, TreeArrays
from fireset.kernels.partition_tree_sums import (
    EntryArrays,
    add_shares_to_points,
    leaf_totals,
    push_down,
    split_half_spaces,
    spread_entries,
    sum_entries,
    sum_up,
    top_down_order,
)

_ENTRIES = 1 << 16  # of the half-spaces worked on at a time, besides space for one of any size


def checked_numbers(numbers, count: int, name: str, of: str) -> np.ndarray:
    """Numbers as float64 of shape (count, c), or an InputError."""
    try:
        numbers = np.ascontiguousarray(numbers, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers: {error}") from None
    if numbers.ndim not in (1, 2) or len(numbers) != count:
        raise InputError(f"{name} must have one row for each of the {count} {of}, got shape {numbers.shape}")
    return numbers if numbers.ndim == 2 else numbers[:, None]


def sums_above(tree: TreeArrays, queries: Queries, values: np.ndarray, work: np.ndarray) -> np.ndarray:
    """``Σ values[i]`` over the points i above each query; (queries, c)."""
    order = _node_order(tree)
    totals = np.zeros((len(tree.nodes) * FAN, values.shape[1]))
    leaf_totals(tree.nodes, tree.buckets, order, values, totals)
    sum_up(tree.nodes, order, totals)
    sums = np.zeros((len(queries.normals), values.shape[1]))

    def sum_span(span: tuple[int, int]) -> np.ndarray:
        span_work = np.zeros(2, np.int64)
        span_sums = sums[slice(*span)]
        for first, stop, entries in _split(tree, queries, span, span_work):
            sum_entries(tree.buckets, entries, first, stop, values, totals, span_sums)
        return span_work

    work += np.sum(parallel_map(sum_span, ranges(len(sums))), axis=0)
    return sums


def spread_above(tree: TreeArrays, queries: Queries, rows: np.ndarray, ids: int, work: np.ndarray) -> np.ndarray:
    """For every id the sum of the rows of the queries that its point is above of; (ids, c)."""
    order = _node_order(tree)

    def spread_span(span: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        span_work = np.zeros(2, np.int64)
        span_rows = rows[slice(*span)]
        shares, spread = np.zeros((len(tree.nodes) * FAN, rows.shape[1])), np.zeros((ids, rows.shape[1]))
        for first, stop, entries in _split(tree, queries, span, span_work):
            spread_entries(tree.buckets, entries, first, stop, span_rows, shares, spread)
        return shares, spread, span_work

    parts = parallel_map(spread_span, ranges(len(rows)))
    shares, spread = (np.sum([part[k] for part in parts], axis=0) for k in range(2))
    push_down(tree.nodes, order, shares)
    add_shares_to_points(tree.nodes, tree.buckets, order, shares, spread)
    work += np.sum([part[2] for part in parts], axis=0)
    return spread


def _node_order(tree: TreeArrays) -> np.ndarray:
    """The nodes of the tree, parents before their children."""
    order = np.empty(len(tree.nodes), np.int32)
    return order[: top_down_order(tree.nodes, order)]


def _split(tree: TreeArrays, queries: Queries, span: tuple[int, int], work: np.ndarray):
    """(first, stop, entries) of the queries of a span, numbered from its first, as many at a time as fit."""
    span_queries = Queries(*(array[slice(*span)] for array in queries))
    n_queries = len(span_queries.normals)
    capacity = len(tree.nodes) + len(tree.buckets) + _ENTRIES
    entries = EntryArrays(np.empty(capacity, np.int32), np.empty(capacity, np.int64), np.empty(n_queries, np.int64))
    first = 0
    while first < n_queries:
        stop = split_half_spaces(tree, span_queries, first, entries, work)
        yield first, stop, entries
        first = stop
