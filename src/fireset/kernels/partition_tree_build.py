"""Build a partition tree, or a subtree of it, by medians along the widest coordinate.

A subtree of s points has ⌈s / FILL⌉ equally filled leaves, each with free columns for a third more points. The leaves
below a node are divided evenly among as few children as possible, so that the nodes below are nearly full.
"""

import numpy as np

from fireset.kernels.allocation import new_array
from fireset.kernels.compiling import internal, vectorized
from fireset.kernels.extrema import larger, smaller
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

FILL = 24  # points of a new leaf, at most


@vectorized
def build_root(tree, rows, ids, leaves, tasks):
    """Create the root, node 0, of a new tree over ``rows`` (n, d), which are reordered with their ``ids``.

    Writes the last four arguments of ``build_subtree`` for every subtree to ``tasks`` (FAN, 4); returns their number.
    Cost O(n · d).
    """
    nodes, free_nodes, free_counts = tree.nodes, tree.free_nodes, tree.free_counts
    zero = np.int64(0)  # not a literal, for which numba would compile further functions
    return _make_node(nodes, free_nodes, free_counts, rows, ids, zero - 1, zero, rows.shape[0], leaves, tasks, zero)


@vectorized
def build_subtree(tree, rows, ids, parent, begin, end, leaves):
    """Build a subtree of ``rows[begin:end]``, which are reordered with their ``ids``, and attach it to ``parent``.

    ``parent`` is ``FAN · node + column``. There must be enough free nodes and leaves. Cost O(s log s · d) for s points.
    """
    boxes, nodes, coordinates, buckets, locations, free_nodes, free_buckets, free_counts = tree
    lowest = new_array(rows.shape[1], rows.dtype)
    highest = new_array(rows.shape[1], rows.dtype)
    # Every open node leaves at most FAN − 1 waiting siblings, and a level has 1/FAN of the leaves of the one above.
    tasks = new_array((16 * FAN, 4), np.int64)
    tasks[0, 0], tasks[0, 1], tasks[0, 2], tasks[0, 3] = parent, begin, end, leaves
    waiting = 1
    while waiting > 0:
        waiting -= 1
        parent, begin, end, leaves = tasks[waiting, 0], tasks[waiting, 1], tasks[waiting, 2], tasks[waiting, 3]
        find_box(rows, begin, end, lowest, highest)
        set_box(boxes, parent, lowest, highest)
        if leaves == 1:
            make_leaf(nodes, coordinates, buckets, locations, free_buckets, free_counts, rows, ids, parent, begin, end)
        else:
            waiting = _make_node(nodes, free_nodes, free_counts, rows, ids, parent, begin, end, leaves, tasks, waiting)


@internal
def _make_node(nodes, free_nodes, free_counts, rows, ids, parent, begin, end, leaves, tasks, waiting):
    """Create an inner node and append its children to ``tasks``; returns the new number of waiting tasks."""
    free_counts[NODES] -= 1
    node = free_nodes[free_counts[NODES]]
    nodes[node, PARENT] = parent
    if parent >= 0:
        nodes[parent // FAN, parent % FAN] = node
    nodes[node, N_POINTS] = nodes[node, N_BUILT] = end - begin
    children = child_count(leaves)
    nodes[node, N_CHILDREN] = children
    ends = new_array(FAN + 1, np.int64)
    partition_rows(rows, ids, begin, end, leaves, children, ends)
    for child in range(children):
        tasks[waiting, 0] = FAN * node + child
        tasks[waiting, 1] = ends[child]
        tasks[waiting, 2] = ends[child + 1]
        tasks[waiting, 3] = leaves * (child + 1) // children - leaves * child // children
        waiting += 1
    return waiting


@vectorized
def child_count(leaves):
    """Return the smallest number of children with which a node has space for ``leaves`` leaves below it."""
    unit = 1
    while unit * FAN < leaves:
        unit *= FAN
    return (leaves + unit - 1) // unit


@internal
def partition_rows(rows, ids, begin, end, leaves, parts, ends):
    """Partition ``rows[begin:end]`` into parts, ``ends[k] … ends[k+1]−1``, by halving along the widest coordinate."""
    lowest = new_array(rows.shape[1], rows.dtype)
    highest = new_array(rows.shape[1], rows.dtype)
    for part in range(parts + 1):
        first_leaf = leaves * part // parts
        ends[part] = begin + (end - begin) * first_leaf // leaves
    ranges = new_array((FAN, 2), np.int64)
    ranges[0, 0], ranges[0, 1] = 0, parts
    waiting = 1
    while waiting > 0:
        waiting -= 1
        first, last = ranges[waiting, 0], ranges[waiting, 1]
        if last - first < 2:
            continue
        middle = (first + last + 1) // 2
        find_box(rows, ends[first], ends[last], lowest, highest)
        widest = np.int64(0)
        for j in range(1, rows.shape[1]):
            if highest[j] - lowest[j] > highest[widest] - lowest[widest]:
                widest = j
        _select(rows, ids, ends[first], ends[last], ends[middle], widest)
        ranges[waiting, 0], ranges[waiting, 1] = first, middle
        ranges[waiting + 1, 0], ranges[waiting + 1, 1] = middle, last
        waiting += 2


@internal
def _select(rows, ids, begin, end, middle, j):
    """Reorder rows so that coordinate j is ≤ rows[middle, j] before ``middle`` and ≥ after it (Hoare's FIND)."""
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


@internal
def _median(a, b, c):
    return larger(smaller(a, b), smaller(larger(a, b), c))


@internal
def find_box(rows, begin, end, lowest, highest):
    """Compute the smallest and largest coordinates of ``rows[begin:end]``, which is not empty."""
    for j in range(rows.shape[1]):
        lowest[j] = highest[j] = rows[begin, j]
    for i in range(begin + 1, end):
        for j in range(rows.shape[1]):
            value = rows[i, j]
            lowest[j] = value if value < lowest[j] else lowest[j]
            highest[j] = value if value > highest[j] else highest[j]


@internal
def set_box(boxes, parent, lowest, highest):
    """Store the box around the child at ``parent`` = ``FAN · node + column``."""
    box = boxes[parent // FAN]
    d = lowest.shape[0]
    for j in range(d):
        box[j, parent % FAN] = highest[j]
        box[d + j, parent % FAN] = lowest[j]


@internal
def make_leaf(nodes, coordinates, buckets, locations, free_buckets, free_counts, rows, ids, parent, begin, end):
    """Create a leaf of ``rows[begin:end]``, at most ``LEAF`` rows, and attach it to ``parent``."""
    free_counts[BUCKETS] -= 1
    leaf = free_buckets[free_counts[BUCKETS]]
    nodes[parent // FAN, parent % FAN] = ~leaf
    buckets[leaf, LEAF_PARENT] = parent
    buckets[leaf, N_FILLED] = end - begin
    for column in range(end - begin):
        buckets[leaf, column] = ids[begin + column]
        locations[ids[begin + column]] = LEAF * leaf + column
        for j in range(rows.shape[1]):
            coordinates[leaf, j, column] = rows[begin + column, j]
