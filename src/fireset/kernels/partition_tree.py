"""Queries on a partition tree: all boxes of a node are compared with a hyperplane at once.

Layout (``TreeArrays``). Inner node v has ``nodes[v, N_CHILDREN]`` children, at most ``FAN``: ``nodes[v, c]`` is a node,
or ``~leaf``. Box c of v, around that child, extends from ``boxes[v, d + j, c]`` to ``boxes[v, j, c]`` in coordinate j.
The boxes of a node are columns of one block, so that all are compared at once. A leaf has ``buckets[leaf, N_FILLED]``
points, at most ``LEAF``, with ids ``buckets[leaf, column]`` and ``coordinates[leaf, j, column]``. ``nodes[v, PARENT]``
and ``buckets[leaf, LEAF_PARENT]`` are ``FAN · parent + column``, −1 at the root, which is node 0. ``nodes[v,
N_POINTS]`` is the number of points below a node now, ``nodes[v, N_BUILT]`` when the node was built. ``locations[id]``
is ``LEAF · leaf + column``, or −1. Free nodes and buckets are the first ``free_counts`` entries of two stacks.

Kernels that Python calls take the arrays as one named tuple and unpack it once. Functions that they call in a loop take
the arrays one by one, because passing a tuple would count references at every call.
"""

from typing import NamedTuple

import numpy as np

from fireset.kernels.allocation import new_array
from fireset.kernels.compiling import internal, vectorized
from fireset.kernels.extrema import larger, smaller
from fireset.kernels.firing import fused_dot
from fireset.kernels.masks import (
    HAS_COMPRESS,
    columns_above_16,
    columns_above_32,
    compress_32,
    count_bits,
    first_bit,
    prefetch,
)

FAN = 16  # children of a node, at most
LEAF = 32  # points of a leaf, at most
N_CHILDREN, PARENT, N_POINTS, N_BUILT = FAN, FAN + 1, FAN + 2, FAN + 3  # columns of ``nodes`` after the children
N_FILLED, LEAF_PARENT = LEAF, LEAF + 1  # columns of ``buckets`` after the ids
NODES, BUCKETS = 0, 1  # entries of ``free_counts``

_PREFETCH_BYTES = 8 << 20  # leaves are prefetched if the coordinates take more than this, and so exceed the cache


class TreeArrays(NamedTuple):
    """The arrays of a tree; the layout is at the head of this file."""

    boxes: np.ndarray  # (nodes, 2d, FAN): upper corners, then lower corners
    nodes: np.ndarray  # (nodes, FAN + 4) int32
    coordinates: np.ndarray  # (leaves, d, LEAF)
    buckets: np.ndarray  # (leaves, LEAF + 2) int32
    locations: np.ndarray  # (ids,) int64
    free_nodes: np.ndarray  # int32
    free_buckets: np.ndarray  # int32
    free_counts: np.ndarray  # (2,) int64


@vectorized
def search(tree, queries, first, found, stack, counts, work):
    """Answer queries first, first + 1, … while ``found`` has space for all points; returns the next query.

    ``tree`` is a ``TreeArrays``, ``queries`` is (normals, thresholds, slacks, bands). Ids of the points above are
    written to ``found``, query after query, in any order, and their numbers to ``counts``. Nodes visited, points tested
    and points reported without a test are added to ``work``. A box is outside if its largest inner product is below the
    threshold by more than the slack, and inside if its smallest is above by more than the slack. Cost O(boxes on the
    boundary + points found).
    """
    boxes, nodes, coordinates, buckets = tree.boxes, tree.nodes, tree.coordinates, tree.buckets
    normals, thresholds, slacks, bands = queries
    d = normals.shape[1]
    zero = normals.dtype.type(0)
    farthest = new_array(2 * d, normals.dtype)
    nearest = new_array(2 * d, normals.dtype)
    n_points = nodes[0, N_POINTS]
    prefetching = coordinates.size * coordinates.itemsize > _PREFETCH_BYTES
    begin = 0
    for q in range(first, normals.shape[0]):
        if begin + n_points + LEAF > found.shape[0]:
            return q
        x = normals[q]
        threshold, band = thresholds[q], bands[q]
        for j in range(d):
            farthest[j] = nearest[d + j] = larger(x[j], zero)
            farthest[d + j] = nearest[j] = smaller(x[j], zero)
        slack = slacks[q]
        lower = normals.dtype.type(threshold - slack)
        upper = normals.dtype.type(threshold + slack)
        end = begin
        stack[0] = 0
        depth = 1
        while depth > 0:
            depth -= 1
            v = stack[depth]
            work[0] += 1
            not_outside, inside = (np.int64(1) << nodes[v, N_CHILDREN]) - 1, np.int64(0)
            if slack < np.inf:  # else sums may overflow, bounds prove nothing, and all children are cut
                not_outside &= columns_above_16(boxes, v, farthest, lower)
                inside = columns_above_16(boxes, v, nearest, upper) & not_outside
            cut = not_outside & ~inside
            bits = cut if prefetching else 0
            while bits != 0:
                child = nodes[v, first_bit(bits)]
                bits &= bits - 1
                if child < 0:
                    prefetch(coordinates, ~child)
                    prefetch(buckets, ~child)
            while cut != 0:
                child = nodes[v, first_bit(cut)]
                cut &= cut - 1
                if child >= 0:
                    stack[depth] = child
                    depth += 1
                else:
                    leaf = ~child
                    work[1] += buckets[leaf, N_FILLED]
                    above = leaf_bits(coordinates, buckets, leaf, x, threshold, band)
                    if HAS_COMPRESS:  # a loop over few bits ends with a misprediction
                        compress_32(buckets, leaf, above, found, end)
                        end += count_bits(above)
                        continue
                    while above != 0:
                        found[end] = buckets[leaf, first_bit(above)]
                        end += 1
                        above &= above - 1
            before = end
            while inside != 0:
                end = _append_subtree(nodes, buckets, nodes[v, first_bit(inside)], found, end, stack, depth)
                inside &= inside - 1
            work[2] += end - before
        counts[q] = end - begin
        begin = end
    return normals.shape[0]


@internal
def leaf_bits(coordinates, buckets, leaf, x, threshold, band):
    """Return an int64 whose bit k is set if point k of a leaf is above; ``deciding_dot`` decides within the band."""
    filled = (np.int64(1) << buckets[leaf, N_FILLED]) - 1
    if band < 0:
        return columns_above_32(coordinates, leaf, x, threshold) & filled
    above, undecided = np.int64(0), filled
    if band < np.inf:  # else sums may overflow, and every point is undecided
        above = columns_above_32(coordinates, leaf, x, threshold + band) & filled
        undecided = columns_above_32(coordinates, leaf, x, threshold - band) & filled & ~above
    while undecided != 0:
        column = first_bit(undecided)
        if fused_dot(x, coordinates[leaf, :, column]) > threshold:
            above |= np.int64(1) << column
        undecided &= undecided - 1
    return above


@internal
def _append_subtree(nodes, buckets, child, found, end, stack, depth):
    """Append all ids below a child; the stack is free from ``depth`` on. Writes up to LEAF entries beyond the end."""
    stack[depth] = child
    bottom = depth
    depth += 1
    while depth > bottom:
        depth -= 1
        child = stack[depth]
        if child >= 0:
            for c in range(nodes[child, N_CHILDREN]):
                stack[depth + c] = nodes[child, c]
            depth += nodes[child, N_CHILDREN]
        else:
            for column in range(LEAF):  # a loop of fixed length compiles to a few vector instructions
                found[end + column] = buckets[~child, column]
            end += buckets[~child, N_FILLED]
    return end


@vectorized
def values_of(coordinates, locations, normals, counts, ids, values):
    """Compute ``values[p] = ⟨normal, point ids[p]⟩`` for the ids found by all queries. Cost O(d · ids)."""
    begin = 0
    for q in range(normals.shape[0]):
        for p in range(begin, begin + counts[q]):
            location = locations[ids[p]]
            leaf, column = location // LEAF, location % LEAF
            total = normals.dtype.type(0)
            for j in range(normals.shape[1]):
                total += normals[q, j] * coordinates[leaf, j, column]
            if not abs(total) < np.inf:  # the sum overflowed, at least in between
                total = normals.dtype.type(fused_dot(normals[q], coordinates[leaf, :, column]))
            values[p] = total
        begin += counts[q]
