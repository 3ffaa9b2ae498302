"""Sums over half-spaces, and their adjoint, from a partition tree: how much lies above, without reporting what.

A subtree whose box is inside a half-space has its sum made once for all queries; only the points of leaves on the
boundary are looked at. A query costs O(boxes on the boundary) instead of O(points above).
"""

import numpy as np

from fireset._util.errors import InputError
from fireset._util.parallel import parallel_map, ranges
from fireset.hsr.base import Queries
from fireset.kernels.partition_tree import FAN, Tree
from fireset.kernels.partition_tree_sums import (
    descending,
    gather_up,
    hand_out,
    push_down,
    split_many,
    spread_entries,
    sum_entries,
    totals_of_leaves,
)

_ENTRIES = 1 << 16  # of the half-spaces worked on at a time, besides room for one of any size


def checked_numbers(numbers, count: int, name: str, of: str) -> np.ndarray:
    """Numbers as float64 of shape (count, c), or an InputError."""
    try:
        numbers = np.ascontiguousarray(numbers, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers: {error}") from None
    if numbers.ndim not in (1, 2) or len(numbers) != count:
        raise InputError(f"{name} must have one row for each of the {count} {of}, got shape {numbers.shape}")
    return numbers if numbers.ndim == 2 else numbers[:, None]


def sums_above(tree: Tree, queries: Queries, values: np.ndarray, work: np.ndarray) -> np.ndarray:
    """``Σ values[i]`` over the points i above each query; (queries, c)."""
    order = _order(tree)
    totals = np.zeros((len(tree.nodes) * FAN, values.shape[1]))
    totals_of_leaves(tree.nodes, tree.buckets, order, values, totals)
    gather_up(tree.nodes, order, totals)
    sums = np.zeros((len(queries.normals), values.shape[1]))

    def add(part: tuple[int, int]) -> np.ndarray:
        counted = np.zeros(2, np.int64)
        for first, stop, entries, masks, ends in _split(tree, queries, part, counted):
            mine = sums[part[0] : part[1]]
            sum_entries(tree.buckets, entries, masks, ends, first, stop, values, totals, mine)
        return counted

    work += np.sum(parallel_map(add, ranges(len(sums))), axis=0)
    return sums


def spread_above(tree: Tree, queries: Queries, rows: np.ndarray, ids: int, work: np.ndarray) -> np.ndarray:
    """For every id the sum of the rows of the queries that it is above of; (ids, c)."""
    order = _order(tree)

    def add(part: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        counted = np.zeros(2, np.int64)
        shares, spread = np.zeros((len(tree.nodes) * FAN, rows.shape[1])), np.zeros((ids, rows.shape[1]))
        for first, stop, entries, masks, ends in _split(tree, queries, part, counted):
            mine = rows[part[0] : part[1]]
            spread_entries(tree.buckets, entries, masks, ends, first, stop, mine, shares, spread)
        return shares, spread, counted

    parts = parallel_map(add, ranges(len(rows)))
    shares, spread = (np.sum([part[k] for part in parts], axis=0) for k in range(2))
    push_down(tree.nodes, order, shares)
    hand_out(tree.nodes, tree.buckets, order, shares, spread)
    work += np.sum([part[2] for part in parts], axis=0)
    return spread


def _order(tree: Tree) -> np.ndarray:
    order = np.empty(len(tree.nodes), np.int32)
    return order[: descending(tree.nodes, order)]


def _split(tree: Tree, queries: Queries, part: tuple[int, int], counted: np.ndarray):
    """(first, stop, entries, masks, ends) of the queries of a span, numbered from its first, some at a time."""
    mine = Queries(*(each[part[0] : part[1]] for each in queries))
    room = len(tree.nodes) + len(tree.buckets) + _ENTRIES
    entries, masks = np.empty(room, np.int32), np.empty(room, np.int64)
    ends = np.empty(len(mine.normals), np.int64)
    first = 0
    while first < len(mine.normals):
        stop = split_many(*tree[:4], *mine, first, entries, masks, ends, counted)
        yield first, stop, entries, masks, ends
        first = stop
