"""Sums over half-spaces without reporting their points: what a partition tree can say of a whole subtree at once.

The boundary of a half-space cuts some leaves; all other points of it lie in subtrees whose box is inside. So a
half-space is a list of *entries*: ``FAN · node + column`` for a child that is wholly inside, and ``~leaf`` for a leaf
that is cut, with a mask of its columns above. Numbers that belong to points are laid out like their coordinates,
(leaves, rows, LEAF). Numbers that belong to children, ``FAN · node + column``, are rows of their own.
"""

import numpy as np

from fireset.kernels.compiling import vectorized
from fireset.kernels.leaf_vectors import add_excess, add_weighted
from fireset.kernels.masks import columns_above_16, count_bits, first_bit
from fireset.kernels.partition_tree import COUNT, FAN, FILLED, LEAF, PARENT, PLACE, SIZE, leaf_bits


@vectorized
def split(boxes, nodes, coordinates, buckets, x, threshold, slack, band, farthest, nearest, stack, entries, masks, end):
    """Write the entries of the half-space ⟨x, ·⟩ > threshold from ``end`` on; returns (new end, nodes, points tested).

    ``farthest`` and ``nearest`` (2d) and ``stack`` are scratch. Cost O(boxes on the boundary).
    """
    d = x.shape[0]
    zero = x.dtype.type(0)
    for j in range(d):
        farthest[j] = nearest[d + j] = max(x[j], zero)
        farthest[d + j] = nearest[j] = min(x[j], zero)
    outside = x.dtype.type(threshold - slack)
    inside = x.dtype.type(threshold + slack)
    visited, tested = 0, 0
    stack[0] = 0
    depth = 1
    while depth > 0:
        depth -= 1
        v = stack[depth]
        visited += 1
        everyone = (np.int64(1) << nodes[v, SIZE]) - 1
        # As in ``search``; written out in both, since a function for it, inlined or not, made both a tenth slower.
        met, full = everyone, np.int64(0)
        if slack < np.inf:  # else sums may overflow on the way, and say nothing
            met &= columns_above_16(boxes, v, farthest, outside)
            full = columns_above_16(boxes, v, nearest, inside) & met
        cut = met & ~full
        while full != 0:
            entries[end] = FAN * v + first_bit(full)
            end += 1
            full &= full - 1
        while cut != 0:
            child = nodes[v, first_bit(cut)]
            cut &= cut - 1
            if child >= 0:
                stack[depth] = child
                depth += 1
            else:
                bits = leaf_bits(coordinates, buckets, ~child, x, threshold, band)
                tested += buckets[~child, FILLED]
                if bits != 0:
                    entries[end] = child
                    masks[end] = bits
                    end += 1
    return end, visited, tested


@vectorized
def split_many(
    boxes, nodes, coordinates, buckets, normals, thresholds, slacks, bands, first, entries, masks, ends, work
):
    """Entries of half-spaces first, first + 1, … while there is room, of q up to ``ends[q]``; returns the next one."""
    d = normals.shape[1]
    farthest = np.empty(2 * d, normals.dtype)
    nearest = np.empty(2 * d, normals.dtype)
    stack = np.empty(2048, np.int32)
    end = 0
    for q in range(first, normals.shape[0]):
        if end + nodes.shape[0] + buckets.shape[0] > entries.shape[0]:
            return q
        end, visited, tested = split(
            boxes,
            nodes,
            coordinates,
            buckets,
            normals[q],
            thresholds[q],
            slacks[q],
            bands[q],
            farthest,
            nearest,
            stack,
            entries,
            masks,
            end,
        )
        ends[q] = end
        work[0] += visited
        work[1] += tested
    return normals.shape[0]


@vectorized
def forward(
    boxes,
    nodes,
    coordinates,
    buckets,
    W,
    signs,
    threshold,
    slacks,
    bands,
    turns,
    entries,
    masks,
    ends,
    shares,
    totals,
    visits,
    counted,
    lo,
    hi,
    end,
):
    """What some neurons add to all samples: linear functions to subtrees, numbers to the points of cut leaves.

    They are ``turns[lo], turns[lo + 1], …``. Neuron r's linear function a_rc (⟨w_r, x⟩ − b) is added to
    ``shares[child, c]``, (d + 1) numbers, for each child wholly inside; a_rc σ_b to ``totals`` (leaves, c, LEAF)
    elsewhere. Entries are kept for ``backward``, those of turn k up to ``ends[k]``, from ``end`` on. ``visits[child]``
    counts the neurons that have a child inside, ``counted`` grows by nodes visited, points tested and pairs fired in
    leaves that are cut. Returns (next turn, new end): stops at hi, or when the next neuron might not have room. Cost
    O(d) for each box on the boundary.
    """
    d = W.shape[1]
    farthest = np.empty(2 * d, W.dtype)
    nearest = np.empty(2 * d, W.dtype)
    stack = np.empty(2048, np.int32)
    most = nodes.shape[0] + buckets.shape[0]
    for k in range(lo, hi):
        if end + most > entries.shape[0]:
            return k, end
        begin = end
        r = turns[k]
        w = W[r]
        end, visited, tested = split(
            boxes,
            nodes,
            coordinates,
            buckets,
            w,
            threshold,
            slacks[r],
            bands[r],
            farthest,
            nearest,
            stack,
            entries,
            masks,
            end,
        )
        ends[k] = end
        counted[0] += visited
        counted[1] += tested
        counted[2] += _add_linear(
            coordinates, w, signs, threshold, r, entries, masks, begin, end, shares, totals, visits
        )
    return hi, end


@vectorized
def _add_linear(coordinates, w, signs, threshold, r, entries, masks, begin, end, shares, totals, visits):
    """Add a_rc (⟨w, x⟩ − b) to the entries of neuron r's half-space; returns the pairs that fire in leaves cut."""
    d = w.shape[0]
    fired = 0
    for p in range(begin, end):
        entry = entries[p]
        if entry >= 0:
            visits[entry] += 1
            for c in range(signs.shape[1]):
                sign = signs[r, c]
                for j in range(d):
                    shares[entry, c, j] += sign * w[j]
                shares[entry, c, d] -= sign * threshold
        else:
            fired += count_bits(masks[p])
            for c in range(signs.shape[1]):
                add_excess(coordinates, ~entry, w, threshold, masks[p], signs[r, c], totals, c)
    return fired


@vectorized
def gradients(coordinates, signs, turns, entries, masks, ends, sums, weights, rows, lo, hi):
    """``rows[r] = Σ_c a_rc Σ_{i fired} e_ic x_i`` for neurons ``turns[lo:hi]``, one range, whose entries start at 0.

    From ``sums[child, c]`` (d numbers) for a child wholly inside, from the residuals ``weights`` (leaves, c, LEAF) for
    the points above of a leaf that is cut. Cost O(d) for each entry.
    """
    gradient = np.empty(rows.shape[1], rows.dtype)
    begin = 0
    for k in range(lo, hi):
        r = turns[k]
        _gather(coordinates, signs, r, entries, masks, begin, ends[k], sums, weights, gradient)
        for j in range(rows.shape[1]):
            rows[r, j] = gradient[j]
        begin = ends[k]


@vectorized
def _gather(coordinates, signs, r, entries, masks, begin, end, sums, weights, gradient):
    """``gradient = Σ_c a_rc Σ_{i fired} weights_ic x_i`` from the entries of neuron r."""
    gradient[:] = 0
    for p in range(begin, end):
        entry = entries[p]
        for c in range(signs.shape[1]):
            sign = signs[r, c]
            if entry >= 0:
                for j in range(gradient.shape[0]):
                    gradient[j] += sign * sums[entry, c, j]
            else:
                add_weighted(coordinates, ~entry, weights, c, masks[p], sign, gradient)


@vectorized
def tangent(coordinates, signs, turns, entries, masks, ends, sums, weights, shares, totals, visits, lo, hi):
    """``J Jᵀ v`` of neurons ``turns[lo:hi]``, v in ``sums`` and ``weights``: gathered, and handed out again."""
    gradient = np.empty(coordinates.shape[1], coordinates.dtype)
    zero = coordinates.dtype.type(0)
    begin = 0
    for k in range(lo, hi):
        r = turns[k]
        _gather(coordinates, signs, r, entries, masks, begin, ends[k], sums, weights, gradient)
        _add_linear(coordinates, gradient, signs, zero, r, entries, masks, begin, ends[k], shares, totals, visits)
        begin = ends[k]


@vectorized
def descending(nodes, order):
    """Write the nodes of a tree to ``order``, parents before their children; returns how many there are."""
    order[0] = 0
    count = 1
    done = 0
    while done < count:
        v = order[done]
        done += 1
        for c in range(nodes[v, SIZE]):
            if nodes[v, c] >= 0:
                order[count] = nodes[v, c]
                count += 1
    return count


@vectorized
def push_down(nodes, order, shares):
    """Add what belongs to a child that is a node to all of its own children, from the root down."""
    for v in order:
        above = nodes[v, PARENT]
        if above >= 0:
            for c in range(nodes[v, SIZE]):
                shares[FAN * v + c] += shares[above]


@vectorized
def gather_up(nodes, order, sums):
    """The sums of a child that is a node are those of its own children together, from the leaves up."""
    for k in range(order.shape[0] - 1, -1, -1):
        v = order[k]
        above = nodes[v, PARENT]
        if above >= 0:
            sums[above] = 0
            for c in range(nodes[v, SIZE]):
                sums[above] += sums[FAN * v + c]


@vectorized
def pairs_inside(nodes, buckets, order, visits):
    """Σ visits[child] · points below it: the pairs that fire as parts of a child wholly inside."""
    pairs = 0
    for v in order:
        for c in range(nodes[v, SIZE]):
            child = nodes[v, c]
            pairs += visits[FAN * v + c] * (nodes[child, COUNT] if child >= 0 else buckets[~child, FILLED])
    return pairs


@vectorized
def predictions_of(coordinates, buckets, shares, totals, scale, predictions, lo, hi):
    """Predictions of the points in leaves lo … hi−1: their totals of all lanes, and the linear function of their leaf.

    ``totals`` is (lanes, leaves, c, LEAF), ``predictions`` (n, c) by id.
    """
    lanes, _, outputs, _ = totals.shape
    d = coordinates.shape[1]
    line = np.empty(LEAF, np.float64)
    for leaf in range(lo, hi):
        above = buckets[leaf, PLACE]
        for c in range(outputs):
            line[:] = shares[above, c, d]
            for lane in range(lanes):
                for p in range(LEAF):
                    line[p] += totals[lane, leaf, c, p]
            for j in range(d):
                slope = shares[above, c, j]
                for p in range(LEAF):
                    line[p] += slope * coordinates[leaf, j, p]
            for p in range(buckets[leaf, FILLED]):
                predictions[buckets[leaf, p], c] = line[p] * scale


@vectorized
def leaf_sums(coordinates, buckets, rows, weights, sums, lo, hi):
    """``weights[leaf, c, p]`` = row of the point's id, and ``sums[child, c, j] = Σ_p weights[leaf, c, p] x_pj``."""
    d = coordinates.shape[1]
    for leaf in range(lo, hi):
        above = buckets[leaf, PLACE]
        for c in range(rows.shape[1]):
            for p in range(buckets[leaf, FILLED]):
                weights[leaf, c, p] = rows[buckets[leaf, p], c]
            for j in range(d):
                total = rows.dtype.type(0)
                for p in range(LEAF):
                    total += weights[leaf, c, p] * coordinates[leaf, j, p]
                sums[above, c, j] = total


@vectorized
def totals_of_leaves(nodes, buckets, order, values, totals):
    """``totals[child, c]`` = Σ of the values (ids, c) of a leaf's points, for all children that are leaves."""
    for v in order:
        for column in range(nodes[v, SIZE]):
            leaf = ~nodes[v, column]
            if leaf >= 0:
                for c in range(values.shape[1]):
                    total = 0.0
                    for p in range(buckets[leaf, FILLED]):
                        total += values[buckets[leaf, p], c]
                    totals[FAN * v + column, c] = total


@vectorized
def sum_entries(buckets, entries, masks, ends, first, stop, values, totals, sums):
    """``sums[q] += Σ values[i]`` over half-spaces first … stop−1 of ``split_many``; ``totals`` has the children's."""
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
def spread_entries(buckets, entries, masks, ends, first, stop, rows, shares, spread):
    """The adjoint: add ``rows[q]`` to the points of half-space q, or to ``shares[child]`` where a child is inside."""
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
def hand_out(nodes, buckets, order, shares, spread):
    """Add the share of every leaf to its points."""
    for v in order:
        for column in range(nodes[v, SIZE]):
            leaf = ~nodes[v, column]
            if leaf >= 0:
                for p in range(buckets[leaf, FILLED]):
                    for c in range(spread.shape[1]):
                        spread[buckets[leaf, p], c] += shares[FAN * v + column, c]
