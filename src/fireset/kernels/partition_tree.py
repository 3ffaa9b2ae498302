"""Searching a partition tree: many boxes at a time against a hyperplane, whole subtrees reported untested.

Layout. An inner node v has ``nodes[v, SIZE]`` children, at most ``FAN``: ``nodes[v, c]`` is a node, or ``~leaf``. Box
c of v, around that child, reaches from ``boxes[v, d + j, c]`` to ``boxes[v, j, c]`` in coordinate j: columns of one
block, so that all are compared with a hyperplane at once. A leaf has a bucket of ``buckets[leaf, FILLED]`` points, at
most ``LEAF``: their ids, ``buckets[leaf, column]``, and ``coordinates[leaf, j, column]``, columns of a block, too.
``nodes[v, PARENT]`` and ``buckets[leaf, PLACE]`` say ``FAN · parent + column``, −1 at the root, which is node 0.
``nodes[v, COUNT]`` is the number of points below a node, ``nodes[v, BUILT]`` what it was when the node was made.
``places[id]`` is ``LEAF · leaf + column``, or −1. Free nodes and buckets are the first ``tops`` entries of two stacks.

Kernels are handed the arrays they need, one by one: a tuple of arrays would count references at every use.
"""

from typing import NamedTuple

import numpy as np

from fireset.kernels.compiling import vectorized
from fireset.kernels.firing import deciding_dot
from fireset.kernels.masks import columns_above_16, columns_above_32, first_bit, prefetch

FAN = 16
LEAF = 32
SIZE, PARENT, COUNT, BUILT = FAN, FAN + 1, FAN + 2, FAN + 3  # columns of ``nodes`` after the children
FILLED, PLACE = LEAF, LEAF + 1  # columns of ``buckets`` after the ids
NODES, BUCKETS = 0, 1  # entries of ``tops``


_CACHED = 8 << 20  # bytes of coordinates from which on leaves are asked for before they are looked at


class Tree(NamedTuple):
    """The arrays of a tree; see the head of this file."""

    boxes: np.ndarray  # (nodes, 2d, FAN): upper corners, then lower corners
    nodes: np.ndarray  # (nodes, FAN + 4) int32
    coordinates: np.ndarray  # (leaves, d, LEAF)
    buckets: np.ndarray  # (leaves, LEAF + 2) int32
    places: np.ndarray  # (ids,) int64
    free_nodes: np.ndarray  # int32
    free_buckets: np.ndarray  # int32
    tops: np.ndarray  # (2,) int64


@vectorized
def search(boxes, nodes, coordinates, buckets, normals, thresholds, slacks, bands, first, found, stack, counts, work):
    """Answer queries first, first + 1, … while ``found`` has room for the largest answer; returns the next query.

    Ids of the points above go to ``found``, query after query, in any order; ``counts`` receives how many; ``work`` the
    boxes looked at, points tested and points reported without a test. A box is outside when even its farthest corner
    lies below the threshold by more than ``slacks``, inside when its nearest corner lies above by as much.
    Cost O(boxes on the boundary + points found).
    """
    d = normals.shape[1]
    zero = normals.dtype.type(0)
    farthest = np.empty(2 * d, normals.dtype)
    nearest = np.empty(2 * d, normals.dtype)
    everything = nodes[0, COUNT]
    large = coordinates.size * coordinates.itemsize > _CACHED
    begin = 0
    for q in range(first, normals.shape[0]):
        if begin + everything + LEAF > found.shape[0]:
            return q
        x = normals[q]
        threshold, band = thresholds[q], bands[q]
        for j in range(d):
            farthest[j] = nearest[d + j] = max(x[j], zero)
            farthest[d + j] = nearest[j] = min(x[j], zero)
        slack = slacks[q]
        outside = normals.dtype.type(threshold - slack)
        inside = normals.dtype.type(threshold + slack)
        end = begin
        stack[0] = 0
        depth = 1
        while depth > 0:
            depth -= 1
            v = stack[depth]
            work[0] += 1
            everyone = (np.int64(1) << nodes[v, SIZE]) - 1
            met, full = everyone, np.int64(0)
            if slack < np.inf:  # else sums may overflow on the way, and say nothing
                met &= columns_above_16(boxes, v, farthest, outside)
                full = columns_above_16(boxes, v, nearest, inside) & met
            cut = met & ~full
            bits = cut if large else 0
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
                    work[1] += buckets[leaf, FILLED]
                    above = leaf_bits(coordinates, buckets, leaf, x, threshold, band)
                    while above != 0:
                        found[end] = buckets[leaf, first_bit(above)]
                        end += 1
                        above &= above - 1
            before = end
            while full != 0:
                end = _report_all(nodes, buckets, nodes[v, first_bit(full)], found, end, stack, depth)
                full &= full - 1
            work[2] += end - before
        counts[q] = end - begin
        begin = end
    return normals.shape[0]


@vectorized
def leaf_bits(coordinates, buckets, leaf, x, threshold, band):
    """An int64 whose bit k says whether point k of a leaf lies above; the last word on it."""
    everyone = (np.int64(1) << buckets[leaf, FILLED]) - 1
    if band < 0:
        return columns_above_32(coordinates, leaf, x, threshold) & everyone
    above, unsure = np.int64(0), everyone
    if band < np.inf:  # else sums may overflow on the way, and say nothing
        above = columns_above_32(coordinates, leaf, x, threshold + band) & everyone
        unsure = columns_above_32(coordinates, leaf, x, threshold - band) & everyone & ~above
    while unsure != 0:
        column = first_bit(unsure)
        if deciding_dot(x, coordinates[leaf, :, column]) > threshold:
            above |= np.int64(1) << column
        unsure &= unsure - 1
    return above


@vectorized
def _report_all(nodes, buckets, child, found, end, stack, depth):
    """Append all ids below a child; the stack is free from ``depth`` on. Writes up to LEAF entries too many."""
    stack[depth] = child
    bottom = depth
    depth += 1
    while depth > bottom:
        depth -= 1
        child = stack[depth]
        if child >= 0:
            for c in range(nodes[child, SIZE]):
                stack[depth + c] = nodes[child, c]
            depth += nodes[child, SIZE]
        else:
            for column in range(LEAF):  # a fixed number of them is a few instructions
                found[end + column] = buckets[~child, column]
            end += buckets[~child, FILLED]
    return end


@vectorized
def values_of(coordinates, places, normals, counts, ids, values):
    """``values[p] = ⟨normal, point ids[p]⟩`` for the answers of all queries, query after query."""
    begin = 0
    for q in range(normals.shape[0]):
        for p in range(begin, begin + counts[q]):
            place = places[ids[p]]
            leaf, column = place // LEAF, place % LEAF
            total = normals.dtype.type(0)
            for j in range(normals.shape[1]):
                total += normals[q, j] * coordinates[leaf, j, column]
            values[p] = total
        begin += counts[q]
