"""Forward, backward and tangent passes of the engine ``sums``: sums over half-spaces from a partition tree.

The boundary of a half-space cuts some leaves; its other points lie in subtrees whose box is inside. So a half-space is
a list of *entries*: ``FAN · node + column`` for a child that is inside, and ``~leaf`` for a leaf that is cut, with a
mask of its columns above. Arrays of points are (leaves, rows, LEAF), like the coordinates. Arrays of children are
indexed by ``FAN · node + column``.
"""

from typing import NamedTuple

import numpy as np

from fireset.kernels.allocation import new_array
from fireset.kernels.compiling import internal, vectorized
from fireset.kernels.extrema import larger, smaller
from fireset.kernels.leaf_vectors import add_excess, add_weighted
from fireset.kernels.masks import columns_above_16, count_bits, first_bit
from fireset.kernels.partition_tree import FAN, LEAF, LEAF_PARENT, N_CHILDREN, N_FILLED, N_POINTS, PARENT, leaf_bits
from fireset.kernels.steps import take_step


class EntryArrays(NamedTuple):
    """Entries of several half-spaces, one after another; those of half-space k end at ``ends[k]``."""

    entries: np.ndarray  # int32
    masks: np.ndarray  # int64
    ends: np.ndarray  # int64


class Contributions(NamedTuple):
    """Contributions of the neurons of one range to the samples."""

    linear: np.ndarray  # (children, c, d + 1): coefficients of a linear function for all points below a child
    totals: np.ndarray  # (leaves, c, LEAF): values for the points of leaves that are cut
    visits: np.ndarray  # (children,) int64: number of neurons whose half-space contains the child


@internal
def _split_half_space(
    boxes, nodes, coordinates, buckets, x, threshold, slack, band, farthest, nearest, stack, entries, masks, end
):
    """Write the entries of the half-space ⟨x, ·⟩ > threshold from ``end`` on.

    Returns (new end, nodes visited, points tested). ``farthest``, ``nearest`` (2d) and ``stack`` are scratch. Cost O(d)
    for each box on the boundary.
    """
    d = x.shape[0]
    zero = x.dtype.type(0)
    for j in range(d):
        farthest[j] = nearest[d + j] = larger(x[j], zero)
        farthest[d + j] = nearest[j] = smaller(x[j], zero)
    lower = x.dtype.type(threshold - slack)
    upper = x.dtype.type(threshold + slack)
    visited, tested = 0, 0
    stack[0] = 0
    depth = 1
    while depth > 0:
        depth -= 1
        v = stack[depth]
        visited += 1
        # Repeated from ``search``: a common function, inlined or not, made both a tenth slower.
        not_outside, inside = (np.int64(1) << nodes[v, N_CHILDREN]) - 1, np.int64(0)
        if slack < np.inf:  # else sums may overflow, bounds prove nothing, and all children are cut
            not_outside &= columns_above_16(boxes, v, farthest, lower)
            inside = columns_above_16(boxes, v, nearest, upper) & not_outside
        cut = not_outside & ~inside
        while inside != 0:
            entries[end] = FAN * v + first_bit(inside)
            end += 1
            inside &= inside - 1
        while cut != 0:
            child = nodes[v, first_bit(cut)]
            cut &= cut - 1
            if child >= 0:
                stack[depth] = child
                depth += 1
            else:
                bits = leaf_bits(coordinates, buckets, ~child, x, threshold, band)
                tested += buckets[~child, N_FILLED]
                if bits != 0:
                    entries[end] = child
                    masks[end] = bits
                    end += 1
    return end, visited, tested


@vectorized
def forward(tree, W, output_weights, threshold, slacks, bands, order, entry_arrays, contributions, work, lo, hi, end):
    """Add the contributions of neurons ``order[lo]``, ``order[lo + 1]``, … to ``contributions``.

    The function a_rc (⟨w_r, x⟩ − b) of neuron r is added to ``linear[child, c]`` for each child inside its half-space,
    and a_rc σ_b to ``totals`` for the points of cut leaves. The entries are kept for ``gradients`` and ``tangent``:
    from ``end`` on, those of neuron ``order[k]`` up to ``ends[k]``. Nodes visited, points tested and active pairs in
    cut leaves are added to ``work``. Returns (next k, new end); stops at ``hi``, or if the entries of the next neuron
    might not fit. Cost O(d) for each box on the boundary.
    """
    boxes, nodes, coordinates, buckets = tree.boxes, tree.nodes, tree.coordinates, tree.buckets
    entries, masks, ends = entry_arrays
    linear, totals, visits = contributions
    farthest = new_array(2 * W.shape[1], W.dtype)
    nearest = new_array(2 * W.shape[1], W.dtype)
    stack = new_array(2048, np.int32)
    most = nodes.shape[0] + buckets.shape[0]
    for k in range(lo, hi):
        if end + most > entries.shape[0]:
            return k, end
        begin = end
        r = order[k]
        w, slack, band = W[r], slacks[r], bands[r]
        end, visited, tested = _split_half_space(
            boxes, nodes, coordinates, buckets, w, threshold, slack, band, farthest, nearest, stack, entries, masks, end
        )
        ends[k] = end
        work[0] += visited
        work[1] += tested
        work[2] += _add_linear(
            coordinates, w, output_weights, threshold, r, entries, masks, begin, end, linear, totals, visits
        )
    return hi, end


@internal
def _add_linear(coordinates, w, output_weights, threshold, r, entries, masks, begin, end, linear, totals, visits):
    """Add a_rc (⟨w, x⟩ − b) to the entries of neuron r; returns the number of active pairs in cut leaves."""
    d = w.shape[0]
    active = 0
    for p in range(begin, end):
        entry = entries[p]
        if entry >= 0:
            visits[entry] += 1
            for c in range(output_weights.shape[1]):
                output_weight = output_weights[r, c]
                for j in range(d):
                    linear[entry, c, j] += output_weight * w[j]
                linear[entry, c, d] -= output_weight * threshold
        else:
            active += count_bits(masks[p])
            for c in range(output_weights.shape[1]):
                add_excess(coordinates, ~entry, w, threshold, masks[p], output_weights[r, c], totals, c)
    return active


@vectorized
def gradients(coordinates, output_weights, order, entry_arrays, sums, residuals, rows, lo, hi):
    """Compute ``rows[r] = Σ_c a_rc Σ_{i active} e_ic x_i`` for neurons ``order[lo:hi]``, whose entries start at 0.

    Uses ``sums[child, c]`` (children, c, d) for children inside, and the ``residuals`` e (leaves, c, LEAF) for the
    points of cut leaves. Cost O(c · d) for each entry.
    """
    entries, masks, ends = entry_arrays
    gradient = new_array(rows.shape[1], rows.dtype)
    begin = np.int64(0)
    for k in range(lo, hi):
        r = order[k]
        _gather(coordinates, output_weights, r, entries, masks, begin, ends[k], sums, residuals, gradient)
        for j in range(rows.shape[1]):
            rows[r, j] = gradient[j]
        begin = ends[k]


@vectorized
def backward(coordinates, W, V, output_weights, order, entry_arrays, sums, residuals, rule, lo, hi):
    """Take one gradient step with neurons ``order[lo:hi]``: ``gradients`` and ``take_step`` in one pass, 5 % faster.

    ``rule`` is (rate, momentum, nesterov); V has no rows if momentum is off.
    """
    entries, masks, ends = entry_arrays
    rate, momentum, nesterov = rule
    gradient = new_array(W.shape[1], W.dtype)
    begin = np.int64(0)
    for k in range(lo, hi):
        r = order[k]
        _gather(coordinates, output_weights, r, entries, masks, begin, ends[k], sums, residuals, gradient)
        if ends[k] > begin or V.shape[0] > 0:
            take_step(W, V, r, gradient, rate, momentum, nesterov)
        begin = ends[k]


@internal
def _gather(coordinates, output_weights, r, entries, masks, begin, end, sums, residuals, gradient):
    """Compute ``gradient = Σ_c a_rc Σ_{i active} residuals_ic x_i`` (d,) from the entries of neuron r."""
    gradient[:] = 0
    for p in range(begin, end):
        entry = entries[p]
        for c in range(output_weights.shape[1]):
            output_weight = output_weights[r, c]
            if entry >= 0:
                for j in range(gradient.shape[0]):
                    gradient[j] += output_weight * sums[entry, c, j]
            else:
                add_weighted(coordinates, ~entry, residuals, c, masks[p], output_weight, gradient)


@vectorized
def tangent(coordinates, output_weights, order, entry_arrays, sums, residuals, contributions, lo, hi):
    """Add the part of neurons ``order[lo:hi]`` in J Jᵀ v to ``contributions``.

    ``sums`` and ``residuals`` are computed from v in place of the residual. The gradient of each neuron is computed as
    in ``gradients``, and its inner products are added as in ``forward``.
    """
    entries, masks, ends = entry_arrays
    linear, totals, visits = contributions
    gradient = new_array(coordinates.shape[1], coordinates.dtype)
    zero = coordinates.dtype.type(0)
    begin = np.int64(0)
    for k in range(lo, hi):
        r = order[k]
        _gather(coordinates, output_weights, r, entries, masks, begin, ends[k], sums, residuals, gradient)
        _add_linear(
            coordinates, gradient, output_weights, zero, r, entries, masks, begin, ends[k], linear, totals, visits
        )
        begin = ends[k]


@vectorized
def top_down_order(nodes, order):
    """Write the nodes of a tree to ``order``, parents before their children; returns their number."""
    order[0] = 0
    count = 1
    done = 0
    while done < count:
        v = order[done]
        done += 1
        for c in range(nodes[v, N_CHILDREN]):
            if nodes[v, c] >= 0:
                order[count] = nodes[v, c]
                count += 1
    return count


@vectorized
def push_down(nodes, order, rows_by_child):
    """Add the matrix of every inner child to those of its own children, from the root down. Cost O(nodes)."""
    _, outputs, columns = rows_by_child.shape  # loops: an expression of arrays takes seconds to compile
    for v in order:
        parent = nodes[v, PARENT]
        if parent >= 0:
            for child in range(FAN * v, FAN * v + nodes[v, N_CHILDREN]):
                for c in range(outputs):
                    for j in range(columns):
                        rows_by_child[child, c, j] += rows_by_child[parent, c, j]


@vectorized
def sum_up(nodes, order, sums):
    """Set the matrix of every inner child to the sum of those of its own children, from the leaves up."""
    _, outputs, columns = sums.shape
    for k in range(order.shape[0] - 1, -1, -1):
        v = order[k]
        parent = nodes[v, PARENT]
        if parent >= 0:
            sums[parent] = 0
            for child in range(FAN * v, FAN * v + nodes[v, N_CHILDREN]):
                for c in range(outputs):
                    for j in range(columns):
                        sums[parent, c, j] += sums[child, c, j]


@vectorized
def pairs_inside(nodes, buckets, order, visits):
    """Return Σ visits[child] · points below the child: the active pairs in children inside a half-space."""
    pairs = 0
    for v in order:
        for c in range(nodes[v, N_CHILDREN]):
            child = nodes[v, c]
            pairs += visits[FAN * v + c] * (nodes[child, N_POINTS] if child >= 0 else buckets[~child, N_FILLED])
    return pairs


@vectorized
def leaf_predictions(coordinates, buckets, linear, totals, scale, predictions, lo, hi):
    """Compute the predictions of the points in leaves lo … hi−1 from ``totals`` and the linear function of their leaf.

    ``totals`` is (ranges, leaves, c, LEAF), ``linear`` (children, c, d + 1), ``predictions`` (n, c) by id. Cost
    O(c · (d + ranges)) for each point.
    """
    ranges, _, outputs, _ = totals.shape
    d = coordinates.shape[1]
    values = new_array(LEAF, np.float64)
    for leaf in range(lo, hi):
        parent = buckets[leaf, LEAF_PARENT]
        for c in range(outputs):
            values[:] = linear[parent, c, d]
            for k in range(ranges):
                for p in range(LEAF):
                    values[p] += totals[k, leaf, c, p]
            for j in range(d):
                slope = linear[parent, c, j]
                for p in range(LEAF):
                    values[p] += slope * coordinates[leaf, j, p]
            for p in range(buckets[leaf, N_FILLED]):
                predictions[buckets[leaf, p], c] = values[p] * scale


@vectorized
def leaf_sums(coordinates, buckets, rows, residuals, sums, lo, hi):
    """Copy ``rows`` (n, c) by id to ``residuals`` (leaves, c, LEAF), and sum ``Σ_p residuals[leaf, c, p] x_pj``.

    The sums of leaves lo … hi−1 go to ``sums[child, c, j]``. Cost O(c · d) for each point.
    """
    d = coordinates.shape[1]
    for leaf in range(lo, hi):
        parent = buckets[leaf, LEAF_PARENT]
        for c in range(rows.shape[1]):
            for p in range(buckets[leaf, N_FILLED]):
                residuals[leaf, c, p] = rows[buckets[leaf, p], c]
            for j in range(d):
                total = rows.dtype.type(0)
                for p in range(LEAF):
                    total += residuals[leaf, c, p] * coordinates[leaf, j, p]
                sums[parent, c, j] = total
