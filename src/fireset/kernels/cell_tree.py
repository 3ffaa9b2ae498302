"""Queries on a cell tree: bounds on the inner products of a cell, and tests of the points in the remaining leaves.

Layout (``CellArrays``). Cell v is a set of points with an orthonormal frame, the rows u_1, …, u_d of ``frames[v]`` (the
coordinate axes if there are no frames), and its extent in it, ``lowest[v, j]`` ≤ ⟨u_j, p⟩ ≤ ``highest[v, j]``. Its
children are the cells ``children[v, FIRST]`` … ``children[v, LAST] − 1``, its points those of the leaves ``children[v,
FIRST_LEAF]`` … ``children[v, LAST_LEAF] − 1``; a cell without children is a leaf. Cell 0 contains all points.

A leaf has a block of points, ``coordinates[leaf, j, column]``, and ``buckets[leaf, column]`` is the index p of the
point. Equal points are one point with several ids: ``ids[starts[p]]`` … ``ids[starts[p] + sizes[p] − 1]``.

The bound. Let q = Σ λ_s g_s with λ ≥ 0 and generators g_s, initially the frame's axes with the signs of q, and let h_s
be the largest ⟨g_s, p⟩ over the cell. Then ⟨q, p⟩ ≤ Σ λ_s h_s. A *split* has two slots i, j, and weights a + b = 1. It
replaces g_i or g_j by w = a g_i + b g_j, whichever leaves all λ at least 0: with t = min(λ_i/a, λ_j/b), λ_i and λ_j
fall by t a and t b, and the one that becomes 0 is replaced by t, the coefficient of w. With δ = a h_i + b h_j − h_w the
bound falls by t δ ≥ 0. Split r has slots ``split_slots[r, 0]`` and ``split_slots[r, 1]``, and the next splits, −1 if
there is none, are ``split_slots[r, 2]`` where w takes the place of g_i, and ``split_slots[r, 3]`` where it takes that
of g_j. ``split_weights[r]`` is (a, δ). The first split of each orthant of a frame is ``orthants[v, o]``, where bit j of
o is set if the sign of λ_j is negative. If slots are split until every cone of generators has a common extreme point,
the bound is the largest inner product itself: the cell is the hull of its points.

Rounding. Σ λ is constant, and generators are convex combinations of unit vectors. With points of norm at most 1 the
error of every h is the depth of the splits times a few units of rounding, and the error of the bound is Σ λ ≤ √d ‖q‖
times as much.
"""

from typing import NamedTuple

import numpy as np

from fireset.kernels.compiling import internal, vectorized
from fireset.kernels.masks import first_bit
from fireset.kernels.partition_tree import LEAF, N_FILLED, leaf_bits

FIRST, LAST, FIRST_LEAF, LAST_LEAF = range(4)  # columns of ``children``


class CellArrays(NamedTuple):
    """The arrays of a tree; the layout is at the head of this file. Cells and splits are those of scale · points."""

    frames: np.ndarray  # (cells, d, d), or (0, d, d)
    lowest: np.ndarray  # (cells, d)
    highest: np.ndarray  # (cells, d)
    children: np.ndarray  # (cells, 4) int32
    orthants: np.ndarray  # (cells, 2**d) int32, or (cells, 0)
    split_slots: np.ndarray  # (splits, 4) int32
    split_weights: np.ndarray  # (splits, 2)
    coordinates: np.ndarray  # (leaves, d, LEAF), in the precision of the points
    buckets: np.ndarray  # (leaves, LEAF + 2) int32, N_FILLED at LEAF
    places: np.ndarray  # (points,) int32, LEAF · leaf + column
    starts: np.ndarray  # (points,) int32
    sizes: np.ndarray  # (points,) int32
    ids: np.ndarray  # int32
    scale: float  # a power of two
    margin: float  # error of the bounds for a normal of norm 1


@vectorized
def upper_bound(tree_cells, v, q, coefficients, limit):
    """Return an upper and a lower bound on ⟨q, p⟩ over cell v; the upper one is refined until it is at most ``limit``.

    ``coefficients`` (d,) is scratch. Cost O(d²), and O(1) for each split.
    """
    frames, lowest, highest, orthants, split_slots, split_weights = tree_cells
    d = q.shape[0]
    upper, lower = 0.0, 0.0
    orthant = 0
    for j in range(d):
        value = q[j]
        if frames.shape[0] > 0:
            value = 0.0
            for k in range(d):
                value += frames[v, j, k] * q[k]
        if value >= 0.0:
            upper += value * highest[v, j]
            lower += value * lowest[v, j]
            coefficients[j] = value
        else:
            upper += value * lowest[v, j]
            lower += value * highest[v, j]
            coefficients[j] = -value
            orthant += 1 << j
    if orthants.shape[1] > 0:
        r = orthants[v, orthant]
        while r >= 0 and upper > limit:
            i, j = split_slots[r, 0], split_slots[r, 1]
            a, gain = split_weights[r, 0], split_weights[r, 1]
            b = 1.0 - a
            by_i, by_j = coefficients[i] / a, coefficients[j] / b
            if by_i <= by_j:
                upper -= by_i * gain
                coefficients[j] = max(coefficients[j] - by_i * b, 0.0)
                coefficients[i] = by_i
                r = split_slots[r, 2]
            else:
                upper -= by_j * gain
                coefficients[i] = max(coefficients[i] - by_j * a, 0.0)
                coefficients[j] = by_j
                r = split_slots[r, 3]
    return upper, lower


@vectorized
def search(tree, queries, first, found, stack, counts, work):
    """Answer queries first, first + 1, … while ``found`` has space for all ids; returns the next query.

    ``tree`` is a ``CellArrays``, ``queries`` is (normals, thresholds, slacks, bands). Ids of the points above are
    written to ``found``, query after query, in any order, and their numbers to ``counts``. Cells visited, points tested
    and ids reported without a test are added to ``work``. Cost O(cells visited · cost of ``upper_bound`` + points
    tested + ids found).
    """
    children, coordinates, buckets = tree.children, tree.coordinates, tree.buckets
    starts, sizes, ids = tree.starts, tree.sizes, tree.ids
    cells = (tree.frames, tree.lowest, tree.highest, tree.orthants, tree.split_slots, tree.split_weights)
    normals, thresholds, slacks, bands = queries
    d = normals.shape[1]
    q = np.empty(d)
    coefficients = np.empty(d)
    begin = 0
    for k in range(first, normals.shape[0]):
        if begin + ids.shape[0] > found.shape[0]:
            return k
        x, threshold, band, slack = normals[k], thresholds[k], bands[k], slacks[k]
        norm = 0.0
        for j in range(d):
            q[j] = x[j]
            norm += abs(q[j])
        margin = slack * tree.scale + norm * tree.margin
        below, above = threshold * tree.scale - margin, threshold * tree.scale + margin
        end = begin
        bounded = margin < np.inf and children.shape[0] > 0  # else sums may overflow, and bounds prove nothing
        if not bounded:
            for leaf in range(buckets.shape[0]):
                work[1] += buckets[leaf, N_FILLED]
                end = _test_leaf(coordinates, buckets, starts, sizes, ids, leaf, x, threshold, band, found, end)
        depth = 0
        if bounded:
            stack[0], depth = 0, 1
        while depth > 0:
            depth -= 1
            v = stack[depth]
            work[0] += 1
            upper, lower = upper_bound(cells, v, q, coefficients, below)
            if upper <= below:
                continue
            if lower > above:
                before = end
                for leaf in range(children[v, FIRST_LEAF], children[v, LAST_LEAF]):
                    for column in range(buckets[leaf, N_FILLED]):
                        end = _append(starts, sizes, ids, buckets[leaf, column], found, end)
                work[2] += end - before
            elif children[v, FIRST] == children[v, LAST]:
                leaf = children[v, FIRST_LEAF]
                work[1] += buckets[leaf, N_FILLED]
                end = _test_leaf(coordinates, buckets, starts, sizes, ids, leaf, x, threshold, band, found, end)
            else:
                for child in range(children[v, FIRST], children[v, LAST]):
                    stack[depth] = child
                    depth += 1
        counts[k] = end - begin
        begin = end
    return normals.shape[0]


@internal
def _test_leaf(coordinates, buckets, starts, sizes, ids, leaf, x, threshold, band, found, end):
    """Append the ids of the points of a leaf that are above; returns the new end."""
    above = leaf_bits(coordinates, buckets, leaf, x, threshold, band)
    while above != 0:
        end = _append(starts, sizes, ids, buckets[leaf, first_bit(above)], found, end)
        above &= above - 1
    return end


@internal
def _append(starts, sizes, ids, point, found, end):
    for place in range(starts[point], starts[point] + sizes[point]):
        found[end] = ids[place]
        end += 1
    return end


@vectorized
def put_answers(found, counts, begins, target):
    """Copy the ids of query k in one tree to ``target[begins[k]:]``, and advance ``begins[k]``, for all k."""
    p = 0
    for k in range(counts.shape[0]):
        for _ in range(counts[k]):
            target[begins[k]] = found[p]
            begins[k] += 1
            p += 1


@vectorized
def values_of(coordinates, places, owners, points, tree, normals, counts, ids, values):
    """Compute ``values[p] = ⟨normal, point ids[p]⟩`` for the ids of one tree (``owners[id] == tree``)."""
    begin = 0
    for k in range(normals.shape[0]):
        for p in range(begin, begin + counts[k]):
            if owners[ids[p]] == tree:
                place = places[points[ids[p]]]
                leaf, column = place // LEAF, place % LEAF
                total = normals.dtype.type(0)
                for j in range(normals.shape[1]):
                    total += normals[k, j] * coordinates[leaf, j, column]
                values[p] = total
        begin += counts[k]


@vectorized
def remove(tree, removed, points):
    """Remove ids from a tree; ``points[id]`` is the index of their point. Cells are not changed, and stay valid."""
    coordinates, buckets, places = tree.coordinates, tree.buckets, tree.places
    starts, sizes, ids = tree.starts, tree.sizes, tree.ids
    for number in removed:
        point = points[number]
        last = starts[point] + sizes[point] - 1
        for place in range(starts[point], last):
            if ids[place] == number:
                ids[place] = ids[last]
        sizes[point] -= 1
        if sizes[point] > 0:
            continue
        leaf, column = places[point] // LEAF, places[point] % LEAF
        buckets[leaf, N_FILLED] -= 1
        end = buckets[leaf, N_FILLED]
        if column < end:
            moved = buckets[leaf, end]
            buckets[leaf, column] = moved
            places[moved] = LEAF * leaf + column
            for j in range(coordinates.shape[1]):
                coordinates[leaf, j, column] = coordinates[leaf, j, end]
