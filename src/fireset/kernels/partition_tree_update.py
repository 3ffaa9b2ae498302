"""Points that come, go and move in a partition tree. Boxes stay tight: a change is carried up as far as it matters."""

import numpy as np

from fireset.kernels.compiling import vectorized
from fireset.kernels.masks import first_bit, row_above_16
from fireset.kernels.partition_tree import BUCKETS, BUILT, COUNT, FAN, FILLED, LEAF, NODES, PARENT, PLACE, SIZE
from fireset.kernels.partition_tree_build import FILL, build_subtree, cut_into, find_box, make_leaf, set_box

GROWTH = 1.5  # a subtree that has grown by this factor since it was made may be made anew
DONE, NEEDS_ROOM, NEEDS_NEW_TREE = 0, 1, 2  # what becomes of an insertion


@vectorized
def insert(
    boxes, nodes, coordinates, buckets, places, free_nodes, free_buckets, tops, ids, points, first, rows, row_ids
):
    """Insert points first, first + 1, …; returns (the first one that was not, DONE or what it needs).

    ``rows`` and ``row_ids`` are scratch for all points of the tree and those to come. Cost O(log n) amortized boxes of
    FAN children each, and O(log² n) for rebuilding; see ``fireset.hsr.partition_tree``.
    """
    growth = np.empty(FAN, points.dtype)
    for p in range(first, ids.shape[0]):
        outcome = _insert_one(
            boxes,
            nodes,
            coordinates,
            buckets,
            places,
            free_nodes,
            free_buckets,
            tops,
            ids[p],
            points[p],
            rows,
            row_ids,
            growth,
        )
        if outcome != DONE:
            return p, outcome
    return ids.shape[0], DONE


@vectorized
def delete(boxes, nodes, coordinates, buckets, places, free_nodes, free_buckets, tops, ids):
    """Delete points that are there. Cost O(LEAF · d + log n) boxes each."""
    for p in range(ids.shape[0]):
        _delete_one(boxes, nodes, coordinates, buckets, places, free_nodes, free_buckets, tops, ids[p])


@vectorized
def move(boxes, nodes, coordinates, buckets, places, free_nodes, free_buckets, tops, ids, points, first, rows, row_ids):
    """Move points first, first + 1, …; returns the first one that was deleted and could not be inserted again.

    A point that stays in its leaf is written in place and the boxes above are fitted to it.
    """
    growth = np.empty(FAN, points.dtype)
    for p in range(first, ids.shape[0]):
        place = places[ids[p]]
        leaf, column = place // LEAF, place % LEAF
        if _leaf_for(boxes, nodes, points[p], growth) == leaf:
            for j in range(points.shape[1]):
                coordinates[leaf, j, column] = points[p, j]
            _fit_boxes(boxes, nodes, coordinates, buckets, leaf)
        else:
            _delete_one(boxes, nodes, coordinates, buckets, places, free_nodes, free_buckets, tops, ids[p])
            if (
                _insert_one(
                    boxes,
                    nodes,
                    coordinates,
                    buckets,
                    places,
                    free_nodes,
                    free_buckets,
                    tops,
                    ids[p],
                    points[p],
                    rows,
                    row_ids,
                    growth,
                )
                != DONE
            ):
                return p
    return ids.shape[0]


@vectorized
def _insert_one(
    boxes, nodes, coordinates, buckets, places, free_nodes, free_buckets, tops, identity, point, rows, row_ids, growth
):
    leaf = _leaf_for(boxes, nodes, point, growth)
    if leaf < 0:
        return NEEDS_NEW_TREE
    if buckets[leaf, FILLED] == LEAF:
        return _insert_by_rebuilding(
            boxes,
            nodes,
            coordinates,
            buckets,
            places,
            free_nodes,
            free_buckets,
            tops,
            leaf,
            identity,
            point,
            rows,
            row_ids,
        )
    column = buckets[leaf, FILLED]
    buckets[leaf, FILLED] += 1
    buckets[leaf, column] = identity
    places[identity] = LEAF * leaf + column
    for j in range(point.shape[0]):
        coordinates[leaf, j, column] = point[j]
    _add_above(boxes, nodes, buckets[leaf, PLACE], point)
    return DONE


@vectorized
def _leaf_for(boxes, nodes, point, growth):
    """The leaf whose boxes, from the root on, have to grow least to take the point; −1 if there is none.

    ``growth`` is scratch, (FAN,).
    """
    d = point.shape[0]
    node = np.int64(0)
    if nodes[node, SIZE] == 0:
        return np.int64(-1)
    while True:
        within = (np.int64(1) << nodes[node, SIZE]) - 1  # boxes that have the point inside need not grow at all
        for j in range(d):
            within &= row_above_16(boxes, node, j, point[j]) & ~row_above_16(boxes, node, d + j, point[j])
        best = first_bit(within) if within != 0 else _least_growth(boxes, nodes[node, SIZE], node, point, growth)
        child = nodes[node, best]
        if child < 0:
            return np.int64(~child)
        node = np.int64(child)


@vectorized
def _least_growth(boxes, size, node, point, growth):
    d = point.shape[0]
    zero = point.dtype.type(0)
    growth[:] = zero
    for j in range(d):
        for c in range(FAN):
            beyond = max(point[j] - boxes[node, j, c], boxes[node, d + j, c] - point[j])
            growth[c] += max(beyond, zero)
    best = 0
    for c in range(1, size):
        if growth[c] < growth[best]:
            best = c
    return best


@vectorized
def _add_above(boxes, nodes, parent, point):
    """One point more below ``parent`` and all above it, and boxes that hold it."""
    d = point.shape[0]
    while parent >= 0:
        node, column = parent // FAN, parent % FAN
        for j in range(d):
            boxes[node, j, column] = max(boxes[node, j, column], point[j])
            boxes[node, d + j, column] = min(boxes[node, d + j, column], point[j])
        nodes[node, COUNT] += 1
        parent = nodes[node, PARENT]


@vectorized
def _insert_by_rebuilding(
    boxes, nodes, coordinates, buckets, places, free_nodes, free_buckets, tops, leaf, identity, point, rows, row_ids
):
    """The leaf is full: make anew the highest subtree above it that has grown by GROWTH, or else split the leaf."""
    parent = buckets[leaf, PLACE]
    top, place, count = ~leaf, parent, np.int64(LEAF)
    while parent >= 0:
        node = parent // FAN
        if nodes[node, COUNT] > GROWTH * nodes[node, BUILT]:
            if node == 0:
                return NEEDS_NEW_TREE
            top, place, count = node, nodes[node, PARENT], np.int64(nodes[node, COUNT])
        parent = nodes[node, PARENT]
    if top < 0 and nodes[place // FAN, SIZE] < FAN and tops[BUCKETS] > 0:
        return _split_leaf(
            boxes, nodes, coordinates, buckets, places, free_buckets, tops, leaf, identity, point, rows, row_ids
        )
    leaves = max(2, (count + FILL) // FILL)
    # The old subtree gives back at least count/LEAF leaves; nodes of a new one have at least 8 children, save the top.
    if tops[BUCKETS] + count // LEAF < leaves or tops[NODES] < leaves // 4 + 2:
        return NEEDS_ROOM
    count = _take_apart(nodes, coordinates, buckets, free_nodes, free_buckets, tops, top, rows, row_ids)
    row_ids[count] = identity
    for j in range(point.shape[0]):
        rows[count, j] = point[j]
    build_subtree(
        boxes,
        nodes,
        coordinates,
        buckets,
        places,
        free_nodes,
        free_buckets,
        tops,
        rows,
        row_ids,
        place,
        0,
        count + 1,
        leaves,
    )
    _add_above(boxes, nodes, place, point)
    return DONE


@vectorized
def _split_leaf(boxes, nodes, coordinates, buckets, places, free_buckets, tops, leaf, identity, point, rows, row_ids):
    """The parent has a column left: two leaves in place of one that is full, and the new point in one of them."""
    d = point.shape[0]
    for column in range(LEAF):
        row_ids[column] = buckets[leaf, column]
        for j in range(d):
            rows[column, j] = coordinates[leaf, j, column]
    row_ids[LEAF] = identity
    for j in range(d):
        rows[LEAF, j] = point[j]
    first = np.int64(buckets[leaf, PLACE])
    node = first // FAN
    second = FAN * node + nodes[node, SIZE]
    nodes[node, SIZE] += 1
    free_buckets[tops[BUCKETS]] = leaf
    tops[BUCKETS] += 1
    ends = np.empty(3, np.int64)
    cut_into(rows, row_ids, 0, LEAF + 1, 2, 2, ends)
    lowest = np.empty(d, rows.dtype)
    highest = np.empty(d, rows.dtype)
    for part in range(2):
        place = second if part == 1 else first
        find_box(rows, ends[part], ends[part + 1], lowest, highest)
        set_box(boxes, place, lowest, highest)
        make_leaf(
            nodes, coordinates, buckets, places, free_buckets, tops, rows, row_ids, place, ends[part], ends[part + 1]
        )
    nodes[node, COUNT] += 1
    _add_above(boxes, nodes, nodes[node, PARENT], point)
    return DONE


@vectorized
def _take_apart(nodes, coordinates, buckets, free_nodes, free_buckets, tops, top, rows, row_ids):
    """Copy all points below ``top`` to ``rows`` and give its nodes and leaves back; returns how many points."""
    count = 0
    stack = [top]
    while len(stack) > 0:
        child = stack.pop()
        if child >= 0:
            for c in range(nodes[child, SIZE]):
                stack.append(np.int64(nodes[child, c]))  # noqa: PERF401 - numba has no other way
            free_nodes[tops[NODES]] = child
            tops[NODES] += 1
        else:
            leaf = ~child
            for column in range(buckets[leaf, FILLED]):
                row_ids[count] = buckets[leaf, column]
                for j in range(rows.shape[1]):
                    rows[count, j] = coordinates[leaf, j, column]
                count += 1
            free_buckets[tops[BUCKETS]] = leaf
            tops[BUCKETS] += 1
    return count


@vectorized
def _delete_one(boxes, nodes, coordinates, buckets, places, free_nodes, free_buckets, tops, identity):
    place = places[identity]
    places[identity] = -1
    leaf, column = place // LEAF, place % LEAF
    buckets[leaf, FILLED] -= 1
    last = buckets[leaf, FILLED]
    above = buckets[leaf, PLACE]
    touches = False  # whether the point holds the box of the leaf open
    d = coordinates.shape[1]
    for j in range(d):
        value = coordinates[leaf, j, column]
        highest, lowest = boxes[above // FAN, j, above % FAN], boxes[above // FAN, d + j, above % FAN]
        touches |= (value >= highest) | (value <= lowest)
    if column < last:  # the last point takes the place
        buckets[leaf, column] = buckets[leaf, last]
        places[buckets[leaf, last]] = place
        for j in range(d):
            coordinates[leaf, j, column] = coordinates[leaf, j, last]
    while above >= 0:
        nodes[above // FAN, COUNT] -= 1
        above = nodes[above // FAN, PARENT]
    if last == 0:
        _remove_leaf(boxes, nodes, buckets, free_nodes, free_buckets, tops, leaf)
    elif touches:
        _fit_boxes(boxes, nodes, coordinates, buckets, leaf)


@vectorized
def _remove_leaf(boxes, nodes, buckets, free_nodes, free_buckets, tops, leaf):
    """Take an empty leaf out, and every node that loses its last child by that, except the root."""
    free_buckets[tops[BUCKETS]] = leaf
    tops[BUCKETS] += 1
    parent = buckets[leaf, PLACE]
    while True:
        node, column = parent // FAN, parent % FAN
        nodes[node, SIZE] -= 1
        last = nodes[node, SIZE]
        if column < last:
            child = nodes[node, last]
            nodes[node, column] = child
            boxes[node, :, column] = boxes[node, :, last]
            if child >= 0:
                nodes[child, PARENT] = FAN * node + column
            else:
                buckets[~child, PLACE] = FAN * node + column
        if last > 0 or node == 0:
            _fit_above(boxes, nodes, node)
            return
        free_nodes[tops[NODES]] = node
        tops[NODES] += 1
        parent = nodes[node, PARENT]


@vectorized
def _fit_boxes(boxes, nodes, coordinates, buckets, leaf):
    """Fit the boxes of a leaf that is not empty, and of all above it, to its points."""
    points = coordinates[leaf]
    node, column = buckets[leaf, PLACE] // FAN, buckets[leaf, PLACE] % FAN
    d = points.shape[0]
    changed = False
    for j in range(d):
        lowest = highest = points[j, 0]
        for p in range(1, buckets[leaf, FILLED]):
            lowest = min(lowest, points[j, p])
            highest = max(highest, points[j, p])
        changed |= boxes[node, j, column] != highest or boxes[node, d + j, column] != lowest
        boxes[node, j, column] = highest
        boxes[node, d + j, column] = lowest
    if changed:
        _fit_above(boxes, nodes, node)


@vectorized
def _fit_above(boxes, nodes, node):
    """Fit the box around ``node`` to the boxes of its children, and so on upwards while anything changes."""
    d = boxes.shape[1] // 2
    while nodes[node, PARENT] >= 0:
        above, column = nodes[node, PARENT] // FAN, nodes[node, PARENT] % FAN
        changed = False
        for j in range(d):
            highest, lowest = boxes[node, j, 0], boxes[node, d + j, 0]
            for c in range(1, nodes[node, SIZE]):
                highest = max(highest, boxes[node, j, c])
                lowest = min(lowest, boxes[node, d + j, c])
            changed |= boxes[above, j, column] != highest or boxes[above, d + j, column] != lowest
            boxes[above, j, column] = highest
            boxes[above, d + j, column] = lowest
        if not changed:
            return
        node = above
