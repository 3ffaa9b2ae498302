"""The k largest inner products of each query, ties by the smaller id: heaps, and what offers points to them.

Row q of a ``Heaps`` keeps the best so far of query q, the worst of them at the root, position 0. A point that a fast
inner product does not rule out has ``deciding_dot`` computed, and that is what it is ranked by. A fast inner product
lies within slack of it; comparisons here allow twice that, which pays for rounding what is compared. Where slack is
infinite sums may overflow, and nothing is ruled out. A sum that is no number even so ranks as −∞.
"""

from typing import NamedTuple

import numpy as np

from fireset.kernels.compiling import vectorized
from fireset.kernels.firing import deciding_dot
from fireset.kernels.masks import LANES, above_bits, columns_above_32, first_bit
from fireset.kernels.partition_tree import FAN, N_CHILDREN, N_FILLED


class Heaps(NamedTuple):
    """The best points of several queries; of query q the first ``sizes[q]`` are in use."""

    values: np.ndarray  # (queries, k) float64
    ids: np.ndarray  # (queries, k) int32
    sizes: np.ndarray  # (queries,) int64


@vectorized
def _offer(values, ids, sizes, q, value, number):
    """Keep a point if it is among the best k of query q so far. O(log k)."""
    if value != value:
        value = -np.inf
    k, size = values.shape[1], sizes[q]
    if size < k:
        sizes[q] += 1
        hole = size
        while hole > 0:
            parent = (hole - 1) // 2
            if not (value < values[q, parent] or (value == values[q, parent] and number > ids[q, parent])):
                break
            values[q, hole], ids[q, hole] = values[q, parent], ids[q, parent]
            hole = parent
        values[q, hole], ids[q, hole] = value, number
    elif k > 0 and (value > values[q, 0] or (value == values[q, 0] and number < ids[q, 0])):
        _sink(values, ids, q, k, value, number)


@vectorized
def _sink(values, ids, q, size, value, number):
    """Put a point in place of the root of a heap of so many, and let it sink to where it belongs."""
    hole = 0
    while 2 * hole + 1 < size:
        child = 2 * hole + 1
        if child + 1 < size:
            a, b = values[q, child], values[q, child + 1]
            if b < a or (b == a and ids[q, child + 1] > ids[q, child]):
                child += 1
        if not (values[q, child] < value or (values[q, child] == value and ids[q, child] > number)):
            break
        values[q, hole], ids[q, hole] = values[q, child], ids[q, child]
        hole = child
    values[q, hole], ids[q, hole] = value, number


@vectorized
def _lowest(values, sizes, q, slack):
    """What a fast inner product must exceed to be looked at; −∞ while everything is."""
    return values[q, 0] - 2 * slack if sizes[q] == values.shape[1] and slack < np.inf else -np.inf


@vectorized
def sort_heaps(heaps):
    """Best first, in place. O(k log k) for each query."""
    values, ids, sizes = heaps
    for q in range(values.shape[0]):
        for last in range(sizes[q] - 1, 0, -1):
            value, number = values[q, last], ids[q, last]
            values[q, last], ids[q, last] = values[q, 0], ids[q, 0]
            _sink(values, ids, q, last, value, number)


@vectorized
def offer_columns(H, normals, points, slacks, first, heaps):
    """Offer every point of a tile, numbered from ``first`` on; ``H ≈ normals @ points.T``. O(H.size)."""
    values, ids, sizes = heaps
    for q in range(H.shape[0]):
        row, slack = H[q], slacks[q]
        lowest = _lowest(values, sizes, q, slack)
        whole = row.shape[0] - row.shape[0] % LANES
        for start in range(0, row.shape[0], LANES):
            bits = np.int64(-1) if start < whole else (np.int64(1) << (row.shape[0] - start)) - 1
            if lowest > -np.inf and start < whole:
                bits = above_bits(row, start, row.dtype.type(lowest))
            while bits != 0:
                i = start + first_bit(bits)
                bits &= bits - 1
                if row[i] > lowest or lowest == -np.inf:
                    _offer(values, ids, sizes, q, deciding_dot(normals[q], points[i]), first + i)
                    lowest = _lowest(values, sizes, q, slack)


@vectorized
def offer_listed(points, normals, which, counts, listed, heaps):
    """Offer the next ``counts[p]`` of the ``listed`` points to query ``which[p]``, p = 0, 1, …"""
    values, ids, sizes = heaps
    begin = 0
    for p in range(which.shape[0]):
        q = which[p]
        for i in listed[begin : begin + counts[p]]:
            _offer(values, ids, sizes, q, deciding_dot(normals[q], points[i]), i)
        begin += counts[p]


@vectorized
def offer_tree(tree, normals, slacks, stack, bounds, heaps, work):
    """Offer the points of a partition tree, nearest boxes first; a box whose farthest corner is too low is skipped.

    ``stack`` and ``bounds`` have space for 16 children of every level. ``work`` grows by the nodes visited and the
    points tested. Cost O(boxes that reach above the kth best point).
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
            lowest = _lowest(values, sizes, q, slack)
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
                    _offer(values, ids, sizes, q, deciding_dot(x, coordinates[leaf, :, column]), buckets[leaf, column])
                continue
            work[0] += 1
            for c in range(FAN):
                reach[c] = 0
            for j in range(2 * d):
                for c in range(FAN):
                    reach[c] += farthest[j] * boxes[child, j, c]
            bottom = depth
            for c in range(nodes[child, N_CHILDREN]):  # by insertion: the farthest on top, to be looked at next
                bound = np.float64(reach[c])
                if lowest > -np.inf and bound < lowest:
                    continue
                place = depth
                while place > bottom and bounds[place - 1] > bound:
                    stack[place], bounds[place] = stack[place - 1], bounds[place - 1]
                    place -= 1
                stack[place], bounds[place] = nodes[child, c], bound
                depth += 1
