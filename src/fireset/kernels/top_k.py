"""Heaps of the k largest inner products of each query, with ties broken by the smaller id.

Row q of ``Heaps`` has the best points so far of query q, the worst of them at the root, position 0. Points are ranked
by ``deciding_dot``, which is computed only if a fast inner product does not exclude the point. Fast values lie within
``slack`` of it; comparisons allow twice the slack, which covers the rounding of the compared numbers. If slack is
infinite, sums may overflow, and no point is excluded. NaN ranks as −∞.
"""

from typing import NamedTuple

import numpy as np

from fireset.kernels.compiling import internal, vectorized
from fireset.kernels.firing import fused_dot
from fireset.kernels.masks import LANES, above_bits, columns_above_32, first_bit
from fireset.kernels.partition_tree import FAN, N_CHILDREN, N_FILLED


class Heaps(NamedTuple):
    """The best points of several queries; the heap of query q has ``sizes[q]`` entries."""

    values: np.ndarray  # (queries, k) float64
    ids: np.ndarray  # (queries, k) int32
    sizes: np.ndarray  # (queries,) int64


@internal
def _push(values, ids, sizes, q, value, point_id):
    """Push a point to the heap of query q if it is among the best k so far. Cost O(log k)."""
    if value != value:
        value = -np.inf
    k, size = values.shape[1], sizes[q]
    if size < k:
        sizes[q] += 1
        hole = size
        while hole > 0:
            parent = (hole - 1) // 2
            if not (value < values[q, parent] or (value == values[q, parent] and point_id > ids[q, parent])):
                break
            values[q, hole], ids[q, hole] = values[q, parent], ids[q, parent]
            hole = parent
        values[q, hole], ids[q, hole] = value, point_id
    elif k > 0 and (value > values[q, 0] or (value == values[q, 0] and point_id < ids[q, 0])):
        _replace_root(values, ids, q, k, value, point_id)


@internal
def _replace_root(values, ids, q, size, value, point_id):
    """Replace the root of the heap of query q, which has ``size`` entries, and sift it down. Cost O(log size)."""
    hole = 0
    while 2 * hole + 1 < size:
        child = 2 * hole + 1
        if child + 1 < size:
            a, b = values[q, child], values[q, child + 1]
            if b < a or (b == a and ids[q, child + 1] > ids[q, child]):
                child += 1
        if not (values[q, child] < value or (values[q, child] == value and ids[q, child] > point_id)):
            break
        values[q, hole], ids[q, hole] = values[q, child], ids[q, child]
        hole = child
    values[q, hole], ids[q, hole] = value, point_id


@internal
def _required_value(values, sizes, q, slack):
    """Return the value that a fast inner product must exceed to be tested; −∞ until the heap is full."""
    return values[q, 0] - 2 * slack if sizes[q] == values.shape[1] and slack < np.inf else -np.inf


@vectorized
def sort_heaps(heaps):
    """Sort every heap in place, best first. Cost O(k log k) for each query."""
    values, ids, sizes = heaps
    for q in range(values.shape[0]):
        for last in range(sizes[q] - 1, 0, -1):
            value, point_id = values[q, last], ids[q, last]
            values[q, last], ids[q, last] = values[q, 0], ids[q, 0]
            _replace_root(values, ids, q, last, value, point_id)


@vectorized
def push_tile(H, normals, points, slacks, first, heaps):
    """Push the points of a tile, whose ids start at ``first``; H ≈ normals @ points.T. Cost O(H.size)."""
    values, ids, sizes = heaps
    for q in range(H.shape[0]):
        row, slack = H[q], slacks[q]
        lowest = _required_value(values, sizes, q, slack)
        whole = row.shape[0] - row.shape[0] % LANES
        for start in range(0, row.shape[0], LANES):
            bits = np.int64(-1) if start < whole else (np.int64(1) << (row.shape[0] - start)) - 1
            if lowest > -np.inf and start < whole:
                bits = above_bits(row, start, row.dtype.type(lowest))
            while bits != 0:
                i = start + first_bit(bits)
                bits &= bits - 1
                if row[i] > lowest or lowest == -np.inf:
                    _push(values, ids, sizes, q, fused_dot(normals[q], points[i]), first + i)
                    lowest = _required_value(values, sizes, q, slack)


@vectorized
def push_listed(points, normals, which, counts, listed, heaps):
    """Push the next ``counts[p]`` of the ``listed`` points to the heap of query ``which[p]``, p = 0, 1, …"""
    values, ids, sizes = heaps
    begin = 0
    for p in range(which.shape[0]):
        q = which[p]
        for i in listed[begin : begin + counts[p]]:
            _push(values, ids, sizes, q, fused_dot(normals[q], points[i]), i)
        begin += counts[p]


@vectorized
def push_tree(tree, normals, slacks, stack, bounds, heaps, work):
    """Push the points of a partition tree, boxes with the largest bound first; boxes below the kth best are skipped.

    ``stack`` and ``bounds`` have space for 16 children of every level. Nodes visited and points tested are added to
    ``work``. Cost O(boxes whose bound exceeds the kth best value).
    """
    boxes, nodes, coordinates, buckets = tree.boxes, tree.nodes, tree.coordinates, tree.buckets
    values, ids, sizes = heaps
    d = normals.shape[1]
    farthest = np.empty(2 * d, normals.dtype)
    reach = np.empty(FAN, normals.dtype)
    for q in range(normals.shape[0]):
        x, slack = normals[q], slacks[q]
        for j in range(d):
            farthest[j], farthest[d + j] = max(x[j], 0), min(x[j], 0)
        stack[0], bounds[0] = 0, np.inf
        depth = 1
        while depth > 0:
            depth -= 1
            child = stack[depth]
            lowest = _required_value(values, sizes, q, slack)
            if lowest > -np.inf and bounds[depth] < lowest:
                continue
            if child < 0:
                leaf = ~child
                work[1] += buckets[leaf, N_FILLED]
                bits = (np.int64(1) << buckets[leaf, N_FILLED]) - 1
                if lowest > -np.inf:
                    bits &= columns_above_32(coordinates, leaf, x, normals.dtype.type(lowest))
                while bits != 0:
                    column = first_bit(bits)
                    bits &= bits - 1
                    _push(values, ids, sizes, q, fused_dot(x, coordinates[leaf, :, column]), buckets[leaf, column])
                continue
            work[0] += 1
            for c in range(FAN):
                reach[c] = 0
            for j in range(2 * d):
                for c in range(FAN):
                    reach[c] += farthest[j] * boxes[child, j, c]
            bottom = depth
            for c in range(nodes[child, N_CHILDREN]):  # insertion sort: the largest bound on top, to be visited next
                bound = np.float64(reach[c])
                if lowest > -np.inf and bound < lowest:
                    continue
                place = depth
                while place > bottom and bounds[place - 1] > bound:
                    stack[place], bounds[place] = stack[place - 1], bounds[place - 1]
                    place -= 1
                stack[place], bounds[place] = nodes[child, c], bound
                depth += 1
