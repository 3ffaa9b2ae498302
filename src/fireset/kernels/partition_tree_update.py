"""Points that come, go and move in a partition tree. Boxes stay tight: every change is carried up as far as it matters."""

import numpy as np

from fireset.kernels.compiling import vector
from fireset.kernels.partition_tree import FAN, LEAF, LEAVES, NODES
from fireset.kernels.partition_tree_build import FILL, build_subtree

GROWTH = 1.5  # a subtree that has grown by this factor since it was made may be made anew
DONE, NEEDS_ROOM, NEEDS_NEW_TREE = 0, 1, 2  # what becomes of an insertion


@vector
def insert(tree, ids, points, first, rows, row_ids):
    """Insert points first, first + 1, …; returns (the first one that was not, DONE or what it needs).

    ``rows`` and ``row_ids`` are scratch for all points of the tree and those to come. Cost O(log n) amortized boxes of
    FAN children each, and O(log² n) for rebuilding; see ``fireset.hsr.partition_tree``.
    """
    for p in range(first, ids.shape[0]):
        outcome = _insert_one(tree, ids[p], points[p], rows, row_ids)
        if outcome != DONE:
            return p, outcome
    return ids.shape[0], DONE


@vector
def delete(tree, ids):
    """Delete points that are there. Cost O(LEAF · d + log n) boxes each."""
    for p in range(ids.shape[0]):
        _delete_one(tree, ids[p])


@vector
def move(tree, ids, points, first, rows, row_ids):
    """Move points first, first + 1, …; returns the first one that was deleted and could not be inserted again.

    A point that stays in its leaf is written in place and the boxes above are fitted to it.
    """
    for p in range(first, ids.shape[0]):
        place = tree.places[ids[p]]
        leaf, column = place // LEAF, place % LEAF
        if _leaf_for(tree, points[p]) == leaf:
            for j in range(points.shape[1]):
                tree.leaf_points[leaf, j, column] = points[p, j]
            _fit_boxes(tree, leaf)
        else:
            _delete_one(tree, ids[p])
            if _insert_one(tree, ids[p], points[p], rows, row_ids) != DONE:
                return p
    return ids.shape[0]


@vector
def _insert_one(tree, identity, point, rows, row_ids):
    leaf = _leaf_for(tree, point)
    if leaf < 0:
        return NEEDS_NEW_TREE
    if tree.leaf_sizes[leaf] == LEAF:
        return _insert_by_rebuilding(tree, leaf, identity, point, rows, row_ids)
    column = tree.leaf_sizes[leaf]
    tree.leaf_sizes[leaf] += 1
    tree.leaf_ids[leaf, column] = identity
    tree.places[identity] = LEAF * leaf + column
    for j in range(point.shape[0]):
        tree.leaf_points[leaf, j, column] = point[j]
    _add_above(tree, tree.leaf_parents[leaf], point)
    return DONE


@vector
def _leaf_for(tree, point):
    """The leaf whose boxes, from the root on, have to grow least to take the point; −1 if there is none."""
    d = point.shape[0]
    growth = np.empty(FAN, point.dtype)
    zero = point.dtype.type(0)
    node = np.int64(0)
    if tree.sizes[node] == 0:
        return np.int64(-1)
    while True:
        growth[:] = 0
        for j in range(d):
            for c in range(FAN):
                beyond = max(point[j] - tree.boxes[node, j, c], tree.boxes[node, d + j, c] - point[j])
                growth[c] += max(beyond, zero)
        best = 0
        for c in range(1, tree.sizes[node]):
            if growth[c] < growth[best]:
                best = c
        child = tree.children[node, best]
        if child < 0:
            return np.int64(~child)
        node = np.int64(child)


@vector
def _add_above(tree, parent, point):
    """One point more below ``parent`` and all above it, and boxes that hold it."""
    d = point.shape[0]
    while parent >= 0:
        node, column = parent // FAN, parent % FAN
        for j in range(d):
            tree.boxes[node, j, column] = max(tree.boxes[node, j, column], point[j])
            tree.boxes[node, d + j, column] = min(tree.boxes[node, d + j, column], point[j])
        tree.counts[node] += 1
        parent = tree.parents[node]


@vector
def _insert_by_rebuilding(tree, leaf, identity, point, rows, row_ids):
    """The leaf is full: make anew the highest subtree above it that has grown by GROWTH, or else the leaf alone."""
    parent = tree.leaf_parents[leaf]
    top, place, count = ~leaf, parent, np.int64(LEAF)
    while parent >= 0:
        node = parent // FAN
        if tree.counts[node] > GROWTH * tree.built[node]:
            if node == 0:
                return NEEDS_NEW_TREE
            top, place, count = node, tree.parents[node], np.int64(tree.counts[node])
        parent = tree.parents[node]
    leaves = max(2, (count + FILL) // FILL)
    # The old subtree gives back at least count/LEAF leaves; nodes of a new one have at least 8 children, save the top.
    if tree.tops[LEAVES] + count // LEAF < leaves or tree.tops[NODES] < leaves // 4 + 2:
        return NEEDS_ROOM
    count = _take_apart(tree, top, rows, row_ids)
    row_ids[count] = identity
    for j in range(point.shape[0]):
        rows[count, j] = point[j]
    build_subtree(tree, rows, row_ids, place, 0, count + 1, leaves)
    _add_above(tree, place, point)
    return DONE


@vector
def _take_apart(tree, top, rows, row_ids):
    """Copy all points below ``top`` to ``rows`` and give its nodes and leaves back; returns how many points."""
    count = 0
    stack = [top]
    while len(stack) > 0:
        child = stack.pop()
        if child >= 0:
            for c in range(tree.sizes[child]):
                stack.append(np.int64(tree.children[child, c]))
            tree.free_nodes[tree.tops[NODES]] = child
            tree.tops[NODES] += 1
        else:
            leaf = ~child
            for column in range(tree.leaf_sizes[leaf]):
                row_ids[count] = tree.leaf_ids[leaf, column]
                for j in range(rows.shape[1]):
                    rows[count, j] = tree.leaf_points[leaf, j, column]
                count += 1
            tree.free_leaves[tree.tops[LEAVES]] = leaf
            tree.tops[LEAVES] += 1
    return count


@vector
def _delete_one(tree, identity):
    place = tree.places[identity]
    tree.places[identity] = -1
    leaf, column = place // LEAF, place % LEAF
    tree.leaf_sizes[leaf] -= 1
    last = tree.leaf_sizes[leaf]
    if column < last:  # the last point takes the place
        tree.leaf_ids[leaf, column] = tree.leaf_ids[leaf, last]
        tree.places[tree.leaf_ids[leaf, last]] = place
        for j in range(tree.leaf_points.shape[1]):
            tree.leaf_points[leaf, j, column] = tree.leaf_points[leaf, j, last]
    parent = tree.leaf_parents[leaf]
    while parent >= 0:
        tree.counts[parent // FAN] -= 1
        parent = tree.parents[parent // FAN]
    if last == 0:
        _remove_leaf(tree, leaf)
    else:
        _fit_boxes(tree, leaf)


@vector
def _remove_leaf(tree, leaf):
    """Take an empty leaf out, and every node that loses its last child by that, except the root."""
    tree.free_leaves[tree.tops[LEAVES]] = leaf
    tree.tops[LEAVES] += 1
    parent = tree.leaf_parents[leaf]
    while True:
        node, column = parent // FAN, parent % FAN
        tree.sizes[node] -= 1
        last = tree.sizes[node]
        if column < last:
            child = tree.children[node, last]
            tree.children[node, column] = child
            tree.boxes[node, :, column] = tree.boxes[node, :, last]
            if child >= 0:
                tree.parents[child] = FAN * node + column
            else:
                tree.leaf_parents[~child] = FAN * node + column
        if last > 0 or node == 0:
            _fit_above(tree, node)
            return
        tree.free_nodes[tree.tops[NODES]] = node
        tree.tops[NODES] += 1
        parent = tree.parents[node]


@vector
def _fit_boxes(tree, leaf):
    """Fit the boxes of a leaf that is not empty, and of all above it, to its points."""
    points = tree.leaf_points[leaf]
    node, column = tree.leaf_parents[leaf] // FAN, tree.leaf_parents[leaf] % FAN
    d = points.shape[0]
    changed = False
    for j in range(d):
        lowest = highest = points[j, 0]
        for p in range(1, tree.leaf_sizes[leaf]):
            lowest = min(lowest, points[j, p])
            highest = max(highest, points[j, p])
        changed |= tree.boxes[node, j, column] != highest or tree.boxes[node, d + j, column] != lowest
        tree.boxes[node, j, column] = highest
        tree.boxes[node, d + j, column] = lowest
    if changed:
        _fit_above(tree, node)


@vector
def _fit_above(tree, node):
    """Fit the box around ``node`` to the boxes of its children, and so on upwards while anything changes."""
    d = tree.boxes.shape[1] // 2
    while tree.parents[node] >= 0:
        above, column = tree.parents[node] // FAN, tree.parents[node] % FAN
        changed = False
        for j in range(d):
            highest, lowest = tree.boxes[node, j, 0], tree.boxes[node, d + j, 0]
            for c in range(1, tree.sizes[node]):
                highest = max(highest, tree.boxes[node, j, c])
                lowest = min(lowest, tree.boxes[node, d + j, c])
            changed |= tree.boxes[above, j, column] != highest or tree.boxes[above, d + j, column] != lowest
            tree.boxes[above, j, column] = highest
            tree.boxes[above, d + j, column] = lowest
        if not changed:
            return
        node = above
