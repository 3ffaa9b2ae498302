"""Building a partition tree, or any subtree of it, from rows of points: medians along the widest coordinate.

A subtree of s points has ⌈s / FILL⌉ leaves, equally filled, with room for a third more points in each. A node's leaves
are dealt to as few children as possible, evenly, so that the nodes below are nearly full.
"""

import numpy as np

from fireset.kernels.compiling import vectorized
from fireset.kernels.partition_tree import BUCKETS, BUILT, COUNT, FAN, FILLED, LEAF, NODES, PARENT, PLACE, SIZE

FILL = 24


@vectorized
def plant(nodes, free_nodes, tops, rows, ids, leaves, tasks):
    """Make the root, node 0, of a new tree of all ``rows``, which are reordered with their ``ids``.

    The subtrees to be hung below it are written to ``tasks`` (FAN, 4), as arguments of ``build_subtree``; returns their
    number.
    """
    return _make_node(nodes, free_nodes, tops, rows, ids, -1, 0, rows.shape[0], leaves, tasks, 0)


@vectorized
def build_subtree(
    boxes, nodes, coordinates, buckets, places, free_nodes, free_buckets, tops, rows, ids, parent, begin, end, leaves
):
    """Make a subtree of ``rows[begin:end]``, which are reordered with their ``ids``, and hang it below ``parent``.

    ``parent`` is ``FAN · node + column``. There must be enough free nodes and leaves. Cost O(s log s · d).
    """
    lowest = np.empty(rows.shape[1], rows.dtype)
    highest = np.empty(rows.shape[1], rows.dtype)
    # Every node in work leaves at most FAN − 1 siblings waiting, and each level has a FANth of the leaves.
    tasks = np.empty((16 * FAN, 4), np.int64)
    tasks[0, 0], tasks[0, 1], tasks[0, 2], tasks[0, 3] = parent, begin, end, leaves
    waiting = 1
    while waiting > 0:
        waiting -= 1
        parent, begin, end, leaves = tasks[waiting, 0], tasks[waiting, 1], tasks[waiting, 2], tasks[waiting, 3]
        find_box(rows, begin, end, lowest, highest)
        set_box(boxes, parent, lowest, highest)
        if leaves == 1:
            make_leaf(nodes, coordinates, buckets, places, free_buckets, tops, rows, ids, parent, begin, end)
        else:
            waiting = _make_node(nodes, free_nodes, tops, rows, ids, parent, begin, end, leaves, tasks, waiting)


@vectorized
def _make_node(nodes, free_nodes, tops, rows, ids, parent, begin, end, leaves, tasks, waiting):
    """Make an inner node and append its children to ``tasks``; returns how many are waiting there then."""
    tops[NODES] -= 1
    node = free_nodes[tops[NODES]]
    nodes[node, PARENT] = parent
    if parent >= 0:
        nodes[parent // FAN, parent % FAN] = node
    nodes[node, COUNT] = nodes[node, BUILT] = end - begin
    parts = part_count(leaves)
    nodes[node, SIZE] = parts
    ends = np.empty(FAN + 1, np.int64)
    cut_into(rows, ids, begin, end, leaves, parts, ends)
    for part in range(parts):
        tasks[waiting, 0] = FAN * node + part
        tasks[waiting, 1] = ends[part]
        tasks[waiting, 2] = ends[part + 1]
        tasks[waiting, 3] = leaves * (part + 1) // parts - leaves * part // parts
        waiting += 1
    return waiting


@vectorized
def part_count(leaves):
    """Children of a node above so many leaves: as few as can hold them when all nodes below are full."""
    unit = 1
    while unit * FAN < leaves:
        unit *= FAN
    return (leaves + unit - 1) // unit


@vectorized
def cut_into(rows, ids, begin, end, leaves, parts, ends):
    """Cut ``rows[begin:end]`` into parts, ``ends[k] … ends[k+1]−1``, by halving along the widest coordinate."""
    lowest = np.empty(rows.shape[1], rows.dtype)
    highest = np.empty(rows.shape[1], rows.dtype)
    for part in range(parts + 1):
        first_leaf = leaves * part // parts
        ends[part] = begin + (end - begin) * first_leaf // leaves
    ranges = np.empty((FAN, 2), np.int64)
    ranges[0, 0], ranges[0, 1] = 0, parts
    waiting = 1
    while waiting > 0:
        waiting -= 1
        first, last = ranges[waiting, 0], ranges[waiting, 1]
        if last - first < 2:
            continue
        middle = (first + last + 1) // 2
        find_box(rows, ends[first], ends[last], lowest, highest)
        widest = 0
        for j in range(1, rows.shape[1]):
            if highest[j] - lowest[j] > highest[widest] - lowest[widest]:
                widest = j
        _select(rows, ids, ends[first], ends[last], ends[middle], widest)
        ranges[waiting, 0], ranges[waiting, 1] = first, middle
        ranges[waiting + 1, 0], ranges[waiting + 1, 1] = middle, last
        waiting += 2


@vectorized
def _select(rows, ids, begin, end, middle, j):
    """Reorder so that coordinate j is ≤ that of ``rows[middle]`` before ``middle`` and ≥ after (Hoare's FIND)."""
    low, high = begin, end - 1
    while low < high:
        pivot = _median(rows[low, j], rows[(low + high) // 2, j], rows[high, j])
        a, b = low, high
        while a <= b:
            while rows[a, j] < pivot:
                a += 1
            while rows[b, j] > pivot:
                b -= 1
            if a <= b:
                for k in range(rows.shape[1]):
                    rows[a, k], rows[b, k] = rows[b, k], rows[a, k]
                ids[a], ids[b] = ids[b], ids[a]
                a += 1
                b -= 1
        if middle <= b:
            high = b
        elif middle >= a:
            low = a
        else:
            return


@vectorized
def _median(a, b, c):
    return max(min(a, b), min(max(a, b), c))


@vectorized
def find_box(rows, begin, end, lowest, highest):
    """Smallest and largest coordinates of ``rows[begin:end]``, which is not empty."""
    for j in range(rows.shape[1]):
        lowest[j] = highest[j] = rows[begin, j]
    for i in range(begin + 1, end):
        for j in range(rows.shape[1]):
            value = rows[i, j]
            lowest[j] = value if value < lowest[j] else lowest[j]
            highest[j] = value if value > highest[j] else highest[j]


@vectorized
def set_box(boxes, parent, lowest, highest):
    box = boxes[parent // FAN]
    d = lowest.shape[0]
    for j in range(d):
        box[j, parent % FAN] = highest[j]
        box[d + j, parent % FAN] = lowest[j]


@vectorized
def make_leaf(nodes, coordinates, buckets, places, free_buckets, tops, rows, ids, parent, begin, end):
    tops[BUCKETS] -= 1
    leaf = free_buckets[tops[BUCKETS]]
    nodes[parent // FAN, parent % FAN] = ~leaf
    buckets[leaf, PLACE] = parent
    buckets[leaf, FILLED] = end - begin
    for column in range(end - begin):
        buckets[leaf, column] = ids[begin + column]
        places[ids[begin + column]] = LEAF * leaf + column
        for j in range(rows.shape[1]):
            coordinates[leaf, j, column] = rows[begin + column, j]
