"""Trees of maxima over inner products, to find all leaves above a threshold without visiting all leaves.

Layout. A forest is a matrix with one tree in each row. A tree over ``count`` leaves is stored level by level: leaf k is
entry k; then the maxima of ``FAN`` leaves each, then the maxima of ``FAN`` of those, up to the root, the only node of
the last level. ``levels[h]`` is the start of level h. Node k of a level has the children ``FAN·k … FAN·k + FAN − 1`` on
the level below. Below the root every level is padded with −∞ to a multiple of ``FAN``. A tree has about
count·FAN/(FAN − 1) entries, and at most FAN more for each level.

An inner node is the largest of its children, and NaN if one of them is NaN. A search descends into all nodes that are
not ≤ the threshold, so that it also finds every NaN.

All functions read and write trees lo … hi−1 only, so that ranges of trees run in parallel.
"""

from itertools import pairwise

import numpy as np

from fireset.kernels.compiling import vectorized

FAN = 8  # children of a node


def level_starts(count: int) -> np.ndarray:
    """Return ``levels`` of a tree over ``count`` ≥ 1 leaves, followed by the number of entries of the tree."""
    starts = [0]
    while count > 1:
        groups = -(-count // FAN)
        starts.append(starts[-1] + groups * FAN)
        count = groups
    return np.array([*starts, starts[-1] + 1], np.int64)


def nodes_above(leaves: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find all ancestors of ``leaves`` (ascending), each once, children before parents.

    Returns the positions of the nodes in the row, and the position of the first child of each. k leaves have at most
    k log count ancestors.
    """
    nodes, children = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    below = leaves.astype(np.int64)
    for start, start_above in pairwise(levels[:-1]):
        below //= FAN
        below = below[np.flatnonzero(np.diff(below, prepend=-1))]
        nodes.append(start_above + below)
        children.append(start + below * FAN)
    return np.concatenate(nodes), np.concatenate(children)


@vectorized
def set_leaves(forest, trees, leaves, values, nodes, children):
    """Set leaf ``leaves[j]`` of tree ``trees[k]`` to ``values[k, j]``, and update its ancestors.

    ``nodes`` and ``children`` come from ``nodes_above(leaves)``. Cost O(leaves + nodes) for each tree.
    """
    contiguous = leaves.shape[0] > 0 and leaves[-1] - leaves[0] == leaves.shape[0] - 1
    for k in range(trees.shape[0]):
        tree = forest[trees[k]]
        if contiguous:
            tree[leaves[0] : leaves[0] + leaves.shape[0]] = values[k]
        else:
            for j in range(leaves.shape[0]):
                tree[leaves[j]] = values[k, j]
        for q in range(nodes.shape[0]):
            child = children[q]
            largest = tree[child]
            for j in range(child + 1, child + FAN):
                other = tree[j]
                largest = other if other > largest or np.isnan(other) else largest
            tree[nodes[q]] = largest


@vectorized
def leaves_above(tree, levels, threshold, found, spare):
    """Find all leaves > threshold and all that are NaN, ascending.

    Returns (``found`` or ``spare``, whichever has the leaves; their number; nodes visited, leaves included). Both
    arrays are as long as the tree. Cost O(k log leaves) for k leaves found, and O(1) if there is none.
    """
    top = levels.shape[0] - 2
    if tree[levels[top]] <= threshold:
        return found, 0, 1
    found[0] = 0
    visited = 1
    count = 1
    for level in range(top - 1, -1, -1):
        start = levels[level]
        kept = 0
        visited += count * FAN
        for p in range(count):
            first = found[p] * FAN
            for j in range(first, first + FAN):
                spare[kept] = j
                kept += not tree[start + j] <= threshold
        found, spare = spare, found
        count = kept
    return found, count, visited


@vectorized
def forward(forest, levels, output_weights, threshold, trees_are_neurons, active, starts, counts, sums, used, lo, hi):
    """Add a_rc σ_b(⟨w_r, x_i⟩) of all pairs in trees lo … hi−1 to ``sums`` (n, c), and write the active pairs.

    With ``trees_are_neurons`` a tree belongs to a neuron and its leaves to the samples; otherwise the reverse. The
    active leaves of tree t are written to ``active``, ascending, ``counts[t]`` of them from ``starts[t]`` on; the first
    list begins at ``used``. A NaN is added to ``sums`` and is not active. Returns (next tree, entries of ``active``
    used, nodes visited); the next tree is less than ``hi`` if its list did not fit. Cost O((log leaves + c) · active
    pairs).
    """
    outputs = output_weights.shape[1]
    visited_total = 0
    first, second = np.empty(levels[-1], np.int32), np.empty(levels[-1], np.int32)
    for t in range(lo, hi):
        tree = forest[t]
        found, count, visited = leaves_above(tree, levels, threshold, first, second)
        if used + count > active.shape[0]:
            return t, used, visited_total
        visited_total += visited
        starts[t] = used
        for p in range(count):
            leaf = found[p]
            excess = tree[leaf] - threshold
            if trees_are_neurons:
                for c in range(outputs):
                    sums[leaf, c] += output_weights[t, c] * excess
            else:
                for c in range(outputs):
                    sums[t, c] += output_weights[leaf, c] * excess
            active[used] = leaf
            used += excess > 0
        counts[t] = used - starts[t]
    return hi, used, visited_total


@vectorized
def lists_by_leaf(active, starts, counts, positions, trees, lo, hi):
    """Transpose lists by tree: write t to ``trees[positions[leaf]]`` for every active leaf of tree t.

    Each entry advances its position by one, so that trees are written in ascending order. Cost O(active pairs).
    """
    for t in range(lo, hi):
        for p in range(starts[t], starts[t] + counts[t]):
            leaf = active[p]
            trees[positions[leaf]] = t
            positions[leaf] += 1
