"""Add, delete and move points of a partition tree. Boxes stay tight: changes are propagated to the ancestors."""

import numpy as np

from fireset.kernels.compiling import inlined, internal, vectorized
from fireset.kernels.extrema import larger, smaller
from fireset.kernels.masks import first_bit, row_above_16
from fireset.kernels.partition_tree import (
    BUCKETS,
    FAN,
    LEAF,
    LEAF_PARENT,
    N_BUILT,
    N_CHILDREN,
    N_FILLED,
    N_POINTS,
    NODES,
    PARENT,
)
from fireset.kernels.partition_tree_build import FILL, build_subtree, find_box, make_leaf, partition_rows, set_box

GROWTH = 1.5  # a subtree is rebuilt when it has this many times the points that it was built with
DONE, NEEDS_CAPACITY, NEEDS_NEW_TREE = 0, 1, 2  # outcomes of an insertion


@vectorized
def insert(tree, ids, points, first, rows, row_ids):
    """Insert points first, first + 1, …; returns (the first point that was not inserted, DONE or the reason).

    ``tree`` is a ``TreeArrays``, ``points`` (k, d). ``rows`` and ``row_ids`` are scratch for all old and new points.
    Cost O(log n) nodes of FAN boxes for each point, and O(log² n) amortized for rebuilding
    (``fireset.hsr.partition_tree``).
    """
    growth = np.empty(FAN, points.dtype)
    for p in range(first, ids.shape[0]):
        outcome = _insert_one(tree, ids[p], points[p], rows, row_ids, growth)
        if outcome != DONE:
            return p, outcome
    return ids.shape[0], DONE


@vectorized
def delete(tree, ids):
    """Delete points, all of which are in the tree. Cost O(LEAF · d) and O(log n) boxes for each point."""
    for p in range(ids.shape[0]):
        _delete_one(tree, ids[p])


@vectorized
def move(tree, ids, points, first, rows, row_ids):
    """Move points first, first + 1, …; returns the first point that was deleted but could not be inserted again.

    A point that stays in its leaf is overwritten, and the boxes of its ancestors are updated.
    """
    boxes, nodes, coordinates, buckets, locations = tree[:5]
    growth = np.empty(FAN, points.dtype)
    for p in range(first, ids.shape[0]):
        location = locations[ids[p]]
        leaf, column = location // LEAF, location % LEAF
        if _choose_leaf(boxes, nodes, points[p], growth) == leaf:
            for j in range(points.shape[1]):
                coordinates[leaf, j, column] = points[p, j]
            _tighten_leaf(boxes, nodes, coordinates, buckets, leaf)
        else:
            _delete_one(tree, ids[p])
            if _insert_one(tree, ids[p], points[p], rows, row_ids, growth) != DONE:
                return p
    return ids.shape[0]


# Inlined, so that passing the tuple does not count references for every point.
@inlined
def _insert_one(tree, point_id, point, rows, row_ids, growth):
    boxes, nodes, coordinates, buckets, locations = tree[:5]
    leaf = _choose_leaf(boxes, nodes, point, growth)
    if leaf < 0:
        return NEEDS_NEW_TREE
    column = buckets[leaf, N_FILLED]
    if column == LEAF:
        return _insert_by_rebuilding(tree, leaf, point_id, point, rows, row_ids)
    buckets[leaf, N_FILLED] += 1
    buckets[leaf, column] = point_id
    locations[point_id] = LEAF * leaf + column
    for j in range(point.shape[0]):
        coordinates[leaf, j, column] = point[j]
    _extend_ancestors(boxes, nodes, buckets[leaf, LEAF_PARENT], point)
    return DONE


@internal
def _choose_leaf(boxes, nodes, point, growth):
    """Return the leaf whose boxes, from the root down, grow least by the point; −1 if the tree is empty.

    ``growth`` (FAN,) is scratch. Cost O(FAN · d) for each level.
    """
    d = point.shape[0]
    node = np.int64(0)
    if nodes[node, N_CHILDREN] == 0:
        return np.int64(-1)
    while True:
        children = nodes[node, N_CHILDREN]
        holding = (np.int64(1) << children) - 1  # boxes that contain the point do not grow
        for j in range(d):
            holding &= row_above_16(boxes, node, j, point[j]) & ~row_above_16(boxes, node, d + j, point[j])
        best = first_bit(holding) if holding != 0 else _least_growth(boxes, children, node, point, growth)
        child = nodes[node, best]
        if child < 0:
            return np.int64(~child)
        node = np.int64(child)


@internal
def _least_growth(boxes, children, node, point, growth):
    """Return the child whose box grows least, in the sum of its sides, when the point is added."""
    d = point.shape[0]
    zero = point.dtype.type(0)
    growth[:] = zero
    for j in range(d):
        for c in range(FAN):
            beyond = larger(point[j] - boxes[node, j, c], boxes[node, d + j, c] - point[j])
            growth[c] += larger(beyond, zero)
    best = 0
    for c in range(1, children):
        if growth[c] < growth[best]:
            best = c
    return best


@internal
def _extend_ancestors(boxes, nodes, parent, point):
    """Add a point to the counts and boxes of ``parent`` and all its ancestors."""
    d = point.shape[0]
    while parent >= 0:
        node, column = parent // FAN, parent % FAN
        for j in range(d):
            boxes[node, j, column] = larger(boxes[node, j, column], point[j])
            boxes[node, d + j, column] = smaller(boxes[node, d + j, column], point[j])
        nodes[node, N_POINTS] += 1
        parent = nodes[node, PARENT]


@internal
def _insert_by_rebuilding(tree, leaf, point_id, point, rows, row_ids):
    """Insert a point into a full leaf: rebuild the highest ancestor that has grown by GROWTH, or split the leaf."""
    boxes, nodes, _, buckets, _, _, _, free_counts = tree
    parent = buckets[leaf, LEAF_PARENT]
    top, top_parent, count = ~leaf, parent, np.int64(LEAF)
    while parent >= 0:
        node = parent // FAN
        if nodes[node, N_POINTS] > GROWTH * nodes[node, N_BUILT]:
            if node == 0:
                return NEEDS_NEW_TREE
            top, top_parent, count = node, nodes[node, PARENT], np.int64(nodes[node, N_POINTS])
        parent = nodes[node, PARENT]
    if top < 0 and nodes[top_parent // FAN, N_CHILDREN] < FAN and free_counts[BUCKETS] > 0:
        _split_leaf(tree, leaf, point_id, point, rows, row_ids)
        return DONE
    leaves = larger(2, (count + FILL) // FILL)
    # The old subtree frees at least count/LEAF leaves; the nodes of a new one, except its top, have ≥ 8 children.
    if free_counts[BUCKETS] + count // LEAF < leaves or free_counts[NODES] < leaves // 4 + 2:
        return NEEDS_CAPACITY
    count = _free_subtree(tree, top, rows, row_ids)
    row_ids[count] = point_id
    for j in range(point.shape[0]):
        rows[count, j] = point[j]
    build_subtree(tree, rows, row_ids, top_parent, 0, count + 1, leaves)
    _extend_ancestors(boxes, nodes, top_parent, point)
    return DONE


@internal
def _split_leaf(tree, leaf, point_id, point, rows, row_ids):
    """Replace a full leaf, whose parent has a free column, by two leaves, and add the new point to one of them."""
    boxes, nodes, coordinates, buckets, locations, _, free_buckets, free_counts = tree
    d = point.shape[0]
    for column in range(LEAF):
        row_ids[column] = buckets[leaf, column]
        for j in range(d):
            rows[column, j] = coordinates[leaf, j, column]
    row_ids[LEAF] = point_id
    for j in range(d):
        rows[LEAF, j] = point[j]
    first = np.int64(buckets[leaf, LEAF_PARENT])
    node = first // FAN
    second = FAN * node + nodes[node, N_CHILDREN]
    nodes[node, N_CHILDREN] += 1
    free_buckets[free_counts[BUCKETS]] = leaf
    free_counts[BUCKETS] += 1
    ends = np.empty(3, np.int64)
    partition_rows(rows, row_ids, 0, LEAF + 1, 2, 2, ends)
    lowest = np.empty(d, rows.dtype)
    highest = np.empty(d, rows.dtype)
    for half in range(2):
        parent, begin, end = second if half == 1 else first, ends[half], ends[half + 1]
        find_box(rows, begin, end, lowest, highest)
        set_box(boxes, parent, lowest, highest)
        make_leaf(nodes, coordinates, buckets, locations, free_buckets, free_counts, rows, row_ids, parent, begin, end)
    nodes[node, N_POINTS] += 1
    _extend_ancestors(boxes, nodes, nodes[node, PARENT], point)


@internal
def _free_subtree(tree, top, rows, row_ids):
    """Copy all points below ``top`` to ``rows`` and free its nodes and leaves; returns the number of points."""
    _, nodes, coordinates, buckets, _, free_nodes, free_buckets, free_counts = tree
    count = 0
    stack = [top]
    while len(stack) > 0:
        child = stack.pop()
        if child >= 0:
            for c in range(nodes[child, N_CHILDREN]):
                stack.append(np.int64(nodes[child, c]))  # noqa: PERF401 - numba needs the loop
            free_nodes[free_counts[NODES]] = child
            free_counts[NODES] += 1
        else:
            leaf = ~child
            for column in range(buckets[leaf, N_FILLED]):
                row_ids[count] = buckets[leaf, column]
                for j in range(rows.shape[1]):
                    rows[count, j] = coordinates[leaf, j, column]
                count += 1
            free_buckets[free_counts[BUCKETS]] = leaf
            free_counts[BUCKETS] += 1
    return count


@inlined
def _delete_one(tree, point_id):
    boxes, nodes, coordinates, buckets, locations, free_nodes, free_buckets, free_counts = tree
    location = locations[point_id]
    locations[point_id] = -1
    leaf, column = location // LEAF, location % LEAF
    buckets[leaf, N_FILLED] -= 1
    last = buckets[leaf, N_FILLED]
    parent = buckets[leaf, LEAF_PARENT]
    on_box = False  # whether the point is on a side of the leaf's box, which may then shrink
    d = coordinates.shape[1]
    for j in range(d):
        value = coordinates[leaf, j, column]
        highest, lowest = boxes[parent // FAN, j, parent % FAN], boxes[parent // FAN, d + j, parent % FAN]
        on_box |= (value >= highest) | (value <= lowest)
    if column < last:  # the last point moves to the free column
        buckets[leaf, column] = buckets[leaf, last]
        locations[buckets[leaf, last]] = location
        for j in range(d):
            coordinates[leaf, j, column] = coordinates[leaf, j, last]
    while parent >= 0:
        nodes[parent // FAN, N_POINTS] -= 1
        parent = nodes[parent // FAN, PARENT]
    if last == 0:
        _remove_leaf(boxes, nodes, buckets, free_nodes, free_buckets, free_counts, leaf)
    elif on_box:
        _tighten_leaf(boxes, nodes, coordinates, buckets, leaf)


@internal
def _remove_leaf(boxes, nodes, buckets, free_nodes, free_buckets, free_counts, leaf):
    """Remove an empty leaf, and every node that loses its last child, except the root."""
    free_buckets[free_counts[BUCKETS]] = leaf
    free_counts[BUCKETS] += 1
    parent = buckets[leaf, LEAF_PARENT]
    while True:
        node, column = parent // FAN, parent % FAN
        nodes[node, N_CHILDREN] -= 1
        last = nodes[node, N_CHILDREN]
        if column < last:
            child = nodes[node, last]
            nodes[node, column] = child
            boxes[node, :, column] = boxes[node, :, last]
            if child >= 0:
                nodes[child, PARENT] = FAN * node + column
            else:
                buckets[~child, LEAF_PARENT] = FAN * node + column
        if last > 0 or node == 0:
            _tighten_ancestors(boxes, nodes, node)
            return
        free_nodes[free_counts[NODES]] = node
        free_counts[NODES] += 1
        parent = nodes[node, PARENT]


@internal
def _tighten_leaf(boxes, nodes, coordinates, buckets, leaf):
    """Fit the box of a nonempty leaf to its points, and update the boxes of its ancestors."""
    points = coordinates[leaf]
    node, column = buckets[leaf, LEAF_PARENT] // FAN, buckets[leaf, LEAF_PARENT] % FAN
    d = points.shape[0]
    changed = False
    for j in range(d):
        lowest = highest = points[j, 0]
        for p in range(1, buckets[leaf, N_FILLED]):
            lowest = smaller(lowest, points[j, p])
            highest = larger(highest, points[j, p])
        changed |= boxes[node, j, column] != highest or boxes[node, d + j, column] != lowest
        boxes[node, j, column] = highest
        boxes[node, d + j, column] = lowest
    if changed:
        _tighten_ancestors(boxes, nodes, node)


@internal
def _tighten_ancestors(boxes, nodes, node):
    """Fit the box around ``node`` to the boxes of its children, and continue upwards while boxes change."""
    d = boxes.shape[1] // 2
    while nodes[node, PARENT] >= 0:
        parent, column = nodes[node, PARENT] // FAN, nodes[node, PARENT] % FAN
        changed = False
        for j in range(d):
            highest, lowest = boxes[node, j, 0], boxes[node, d + j, 0]
            for c in range(1, nodes[node, N_CHILDREN]):
                highest = larger(highest, boxes[node, j, c])
                lowest = smaller(lowest, boxes[node, d + j, c])
            changed |= boxes[parent, j, column] != highest or boxes[parent, d + j, column] != lowest
            boxes[parent, j, column] = highest
            boxes[parent, d + j, column] = lowest
        if not changed:
            return
        node = parent
