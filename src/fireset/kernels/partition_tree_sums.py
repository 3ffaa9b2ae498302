"""Sums over half-spaces without reporting their points: what a partition tree knows of a whole subtree at once.

The boundary of a half-space cuts some leaves; all other points of it lie in subtrees whose box is inside. So a
half-space is a list of *entries*: ``FAN · node + column`` for a child that is wholly inside, and ``~leaf`` for a leaf
that is cut, with a mask of its columns above. Numbers that belong to points are laid out like their coordinates,
(leaves, rows, LEAF). Numbers that belong to children, ``FAN · node + column``, are rows of their own.
"""

from typing import NamedTuple

import numpy as np

from fireset.kernels.compiling import vectorized
from fireset.kernels.leaf_vectors import add_excess, add_weighted
from fireset.kernels.masks import columns_above_16, count_bits, first_bit
from fireset.kernels.partition_tree import FAN, LEAF, LEAF_PARENT, N_CHILDREN, N_FILLED, N_POINTS, PARENT, leaf_bits
from fireset.kernels.steps import take_step


class EntryArrays(NamedTuple):
    """Entries of several half-spaces, one after the other; those of half-space k end at ``ends[k]``."""

    entries: np.ndarray  # int32
    masks: np.ndarray  # int64
    ends: np.ndarray  # int64


class Contributions(NamedTuple):
    """What the neurons of one range add to the samples."""

    linear: np.ndarray  # (children, c, d + 1): to all points below a child, a linear function and its constant
    totals: np.ndarray  # (leaves, c, LEAF): to a point of a leaf that is cut
    visits: np.ndarray  # (children,) int64: for how many neurons a child is wholly inside


@vectorized
def _split_half_space(
    boxes, nodes, coordinates, buckets, x, threshold, slack, band, farthest, nearest, stack, entries, masks, end
):
    """Write the entries of the half-space ⟨x, ·⟩ > threshold from ``end`` on; returns (new end, nodes, points tested).

    ``farthest`` and ``nearest`` (2d) and ``stack`` are scratch. Cost O(boxes on the boundary).
    """
    d = x.shape[0]
    zero = x.dtype.type(0)
    for j in range(d):
        farthest[j] = nearest[d + j] = max(x[j], zero)
        farthest[d + j] = nearest[j] = min(x[j], zero)
    lower = x.dtype.type(threshold - slack)
    upper = x.dtype.type(threshold + slack)
    visited, tested = 0, 0
    stack[0] = 0
    depth = 1
    while depth > 0:
        depth -= 1
        v = stack[depth]
        visited += 1
        # As in ``search``; written out in both, since a function for it, inlined or not, made both a tenth slower.
        not_outside, inside = (np.int64(1) << nodes[v, N_CHILDREN]) - 1, np.int64(0)
        if slack < np.inf:  # else sums may overflow, and comparing them proves nothing: all children are cut
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
def split_half_spaces(tree, queries, first, entry_arrays, work):
    """Entries of half-spaces first, first + 1, … while they are sure to fit; returns the next one.

    ``tree`` is a ``TreeArrays``, ``queries`` is (normals, thresholds, slacks, bands). ``work`` grows by the nodes
    visited and the points tested.
    """
    boxes, nodes, coordinates, buckets = tree.boxes, tree.nodes, tree.coordinates, tree.buckets
    normals, thresholds, slacks, bands = queries
    entries, masks, ends = entry_arrays
    farthest = np.empty(2 * normals.shape[1], normals.dtype)
    nearest = np.empty(2 * normals.shape[1], normals.dtype)
    stack = np.empty(2048, np.int32)
    end = 0
    for q in range(first, normals.shape[0]):
        if end + nodes.shape[0] + buckets.shape[0] > entries.shape[0]:
            return q
        x, threshold, slack, band = normals[q], thresholds[q], slacks[q], bands[q]
        end, visited, tested = _split_half_space(
            boxes, nodes, coordinates, buckets, x, threshold, slack, band, farthest, nearest, stack, entries, masks, end
        )
        ends[q] = end
        work[0] += visited
        work[1] += tested
    return normals.shape[0]


@vectorized
def forward(tree, W, output_weights, threshold, slacks, bands, order, entry_arrays, contributions, work, lo, hi, end):
    """What some neurons add to all samples: linear functions to subtrees, numbers to the points of cut leaves.

    They are ``order[lo], order[lo + 1], …``. Neuron r's linear function a_rc (⟨w_r, x⟩ − b) is added to
    ``linear[child, c]`` for each child wholly inside; a_rc σ_b to ``totals`` elsewhere. Entries are kept for
    ``gradients`` and ``tangent``, those of neuron ``order[k]`` up to ``ends[k]``, from ``end`` on. ``work`` grows by
    nodes visited, points tested and pairs fired in leaves that are cut. Returns (next k, new end): stops at hi, or when
    the entries of the next neuron might not fit. Cost O(d) for each box on the boundary.
    """
    boxes, nodes, coordinates, buckets = tree.boxes, tree.nodes, tree.coordinates, tree.buckets
    entries, masks, ends = entry_arrays
    linear, totals, visits = contributions
    farthest = np.empty(2 * W.shape[1], W.dtype)
    nearest = np.empty(2 * W.shape[1], W.dtype)
    stack = np.empty(2048, np.int32)
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


@vectorized
def _add_linear(coordinates, w, output_weights, threshold, r, entries, masks, begin, end, linear, totals, visits):
    """Add a_rc (⟨w, x⟩ − b) to the entries of neuron r's half-space; returns the pairs that fire in leaves cut."""
    d = w.shape[0]
    active = 0
    for p in range(begin, end):
        entry = entries[p]
        if entry >= 0:
            visits[entry] += 1
            for c in range(output_weights.shape[1]):
                sign = output_weights[r, c]
                for j in range(d):
                    linear[entry, c, j] += sign * w[j]
                linear[entry, c, d] -= sign * threshold
        else:
            active += count_bits(masks[p])
            for c in range(output_weights.shape[1]):
                add_excess(coordinates, ~entry, w, threshold, masks[p], output_weights[r, c], totals, c)
    return active


@vectorized
def gradients(coordinates, output_weights, order, entry_arrays, sums, residuals, rows, lo, hi):
    """``rows[r] = Σ_c a_rc Σ_{i fired} e_ic x_i`` for neurons ``order[lo:hi]``, one range, whose entries start at 0.

    From ``sums[child, c]`` (d numbers) for a child wholly inside, from the ``residuals`` e (leaves, c, LEAF) for the
    points above of a leaf that is cut. Cost O(d) for each entry.
    """
    entries, masks, ends = entry_arrays
    gradient = np.empty(rows.shape[1], rows.dtype)
    begin = 0
    for k in range(lo, hi):
        r = order[k]
        _gather(coordinates, output_weights, r, entries, masks, begin, ends[k], sums, residuals, gradient)
        for j in range(rows.shape[1]):
            rows[r, j] = gradient[j]
        begin = ends[k]


@vectorized
def backward(coordinates, W, V, output_weights, order, entry_arrays, sums, residuals, rule, lo, hi):
    """One gradient step on neurons ``order[lo:hi]``: ``gradients`` and ``take_step`` in one pass, which saves 5 %.

    ``rule`` is (rate, momentum, nesterov); ``V`` has no rows when momentum is off.
    """
    entries, masks, ends = entry_arrays
    rate, momentum, nesterov = rule
    gradient = np.empty(W.shape[1], W.dtype)
    begin = 0
    for k in range(lo, hi):
        r = order[k]
        _gather(coordinates, output_weights, r, entries, masks, begin, ends[k], sums, residuals, gradient)
        if ends[k] > begin or V.shape[0] > 0:
            take_step(W, V, r, gradient, rate, momentum, nesterov)
        begin = ends[k]


@vectorized
def _gather(coordinates, output_weights, r, entries, masks, begin, end, sums, residuals, gradient):
    """``gradient = Σ_c a_rc Σ_{i fired} residuals_ic x_i`` from the entries of neuron r."""
    gradient[:] = 0
    for p in range(begin, end):
        entry = entries[p]
        for c in range(output_weights.shape[1]):
            sign = output_weights[r, c]
            if entry >= 0:
                for j in range(gradient.shape[0]):
                    gradient[j] += sign * sums[entry, c, j]
            else:
                add_weighted(coordinates, ~entry, residuals, c, masks[p], sign, gradient)


@vectorized
def tangent(coordinates, output_weights, order, entry_arrays, sums, residuals, contributions, lo, hi):
    """``J Jᵀ v`` of neurons ``order[lo:hi]``, with v in place of the residual in ``sums`` and ``residuals``.

    Each neuron's gradient is gathered as in ``gradients``, and its inner products added as in ``forward``.
    """
    entries, masks, ends = entry_arrays
    linear, totals, visits = contributions
    gradient = np.empty(coordinates.shape[1], coordinates.dtype)
    zero = coordinates.dtype.type(0)
    begin = 0
    for k in range(lo, hi):
        r = order[k]
        _gather(coordinates, output_weights, r, entries, masks, begin, ends[k], sums, residuals, gradient)
        _add_linear(
            coordinates, gradient, output_weights, zero, r, entries, masks, begin, ends[k], linear, totals, visits
        )
        begin = ends[k]


@vectorized
def top_down_order(nodes, order):
    """Write the nodes of a tree to ``order``, parents before their children; returns how many there are."""
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
def push_down(nodes, order, shares):
    """Add the row of a child that is a node to the rows of its own children, from the root down."""
    for v in order:
        parent = nodes[v, PARENT]
        if parent >= 0:
            for c in range(nodes[v, N_CHILDREN]):
                shares[FAN * v + c] += shares[parent]


@vectorized
def sum_up(nodes, order, sums):
    """Make the row of a child that is a node the sum of the rows of its own children, from the leaves up."""
    for k in range(order.shape[0] - 1, -1, -1):
        v = order[k]
        parent = nodes[v, PARENT]
        if parent >= 0:
            sums[parent] = 0
            for c in range(nodes[v, N_CHILDREN]):
                sums[parent] += sums[FAN * v + c]


@vectorized
def pairs_inside(nodes, buckets, order, visits):
    """Σ visits[child] · points below it: the pairs that fire as parts of a child wholly inside."""
    pairs = 0
    for v in order:
        for c in range(nodes[v, N_CHILDREN]):
            child = nodes[v, c]
            pairs += visits[FAN * v + c] * (nodes[child, N_POINTS] if child >= 0 else buckets[~child, N_FILLED])
    return pairs


@vectorized
def leaf_predictions(coordinates, buckets, linear, totals, scale, predictions, lo, hi):
    """Predictions of the points in leaves lo … hi−1: their totals of all ranges, and the linear function of their leaf.

    ``totals`` is (ranges, leaves, c, LEAF), ``predictions`` (n, c) by id.
    """
    ranges, _, outputs, _ = totals.shape
    d = coordinates.shape[1]
    values = np.empty(LEAF, np.float64)
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
    """``residuals[leaf, c, p]`` = row of the point's id, and ``sums[child, c, j] = Σ_p residuals[leaf, c, p] x_pj``."""
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


@vectorized
def leaf_totals(nodes, buckets, order, values, totals):
    """``totals[child, c]`` = Σ of the values (ids, c) of a leaf's points, for all children that are leaves."""
    for v in order:
        for column in range(nodes[v, N_CHILDREN]):
            leaf = ~nodes[v, column]
            if leaf >= 0:
                for c in range(values.shape[1]):
                    total = 0.0
                    for p in range(buckets[leaf, N_FILLED]):
                        total += values[buckets[leaf, p], c]
                    totals[FAN * v + column, c] = total


@vectorized
def sum_entries(buckets, entry_arrays, first, stop, values, totals, sums):
    """``sums[q] += Σ values[i]`` over half-spaces first … stop−1 of ``split_half_spaces``; ``totals`` is by child."""
    entries, masks, ends = entry_arrays
    begin = 0
    for q in range(first, stop):
        for p in range(begin, ends[q]):
            entry, bits = entries[p], masks[p]
            if entry >= 0:
                for c in range(values.shape[1]):
                    sums[q, c] += totals[entry, c]
                continue
            while bits != 0:
                i = buckets[~entry, first_bit(bits)]
                bits &= bits - 1
                for c in range(values.shape[1]):
                    sums[q, c] += values[i, c]
        begin = ends[q]


@vectorized
def spread_entries(buckets, entry_arrays, first, stop, rows, shares, spread):
    """The adjoint: add ``rows[q]`` to the points of half-space q, or to ``shares[child]`` where a child is inside."""
    entries, masks, ends = entry_arrays
    begin = 0
    for q in range(first, stop):
        for p in range(begin, ends[q]):
            entry, bits = entries[p], masks[p]
            if entry >= 0:
                for c in range(rows.shape[1]):
                    shares[entry, c] += rows[q, c]
                continue
            while bits != 0:
                i = buckets[~entry, first_bit(bits)]
                bits &= bits - 1
                for c in range(rows.shape[1]):
                    spread[i, c] += rows[q, c]
        begin = ends[q]


@vectorized
def add_shares_to_points(nodes, buckets, order, shares, spread):
    """Add the share of every leaf to its points."""
    for v in order:
        for column in range(nodes[v, N_CHILDREN]):
            leaf = ~nodes[v, column]
            if leaf >= 0:
                for p in range(buckets[leaf, N_FILLED]):
                    for c in range(spread.shape[1]):
                        spread[buckets[leaf, p], c] += shares[FAN * v + column, c]
