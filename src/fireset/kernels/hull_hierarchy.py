"""Queries on a hull hierarchy: walk through the samples, choose a list with a proof that it is complete, and test it.

Layout (``HierarchyArrays`` and ``Frame`` of ``fireset.hsr.hull_hierarchy_build``). A *node* is a vertex of the hull of
one sample, that is, a sample and a point of it. Row v of ``nodes`` has the number of the point and the bounds of three
ranges:

- ``steps[STEP_START:STEP_END]``: the nodes of the family's next sample from which the walk chooses, and in
  ``step_points`` their points;
- ``incident[FACET_START:FACET_END]``: the hull facets at the node. Row f of ``facets`` has the outer unit normal of a
  facet, and two offsets, near and beyond, a little less and a little more than that of the facet's hyperplane;
- ``members[LIST_START:LIST_END]``: all points with ⟨normal_f, x̂⟩ > near_f for some facet f at the node. Those with
  ⟨normal_f, x̂⟩ > beyond_f for some f come first, up to ``LIST_SPLIT``. Both parts ascend.

Nodes are numbered from coarse samples to fine ones. The first ``FAMILIES`` of them are roots, one for each family of
samples: the list of a root has all points, and a root has no facets.

Facets are in reduced coordinates x̂ of dimension ρ ≤ d: x = center + axes x̂ + δ with ‖x̂‖ ≤ radius and
‖δ‖ ≤ error_bound for every point x.
"""

import numpy as np

from fireset.kernels.compiling import internal, vectorized
from fireset.kernels.firing import fused_dot, store_decided
from fireset.kernels.hull_certificate import EPS, INCOMPLETE, STRICTLY_COMPLETE, certify
from fireset.kernels.masks import LANES, above_bits, first_bit

FAMILIES = 2
HUGE = 1e300  # larger limits come from overflow
MAX_LEVELS = 64  # of all families together, roots included
POINT, STEP_START, STEP_END, FACET_START, FACET_END, LIST_START, LIST_SPLIT, LIST_END = range(8)  # columns of ``nodes``


@vectorized
def inner_products(points, members, lo, hi, normal, values):
    """Compute ``values[i] = ⟨normal, points[members[lo + i]]⟩`` for i < hi − lo. Cost O(d · (hi − lo))."""
    d = normal.shape[0]
    zero = normal[0] - normal[0]
    fours = hi - (hi - lo) % 4
    # Four points at a time: the normal is read once for four independent sums.
    for p in range(lo, fours, 4):
        i0, i1, i2, i3 = members[p], members[p + 1], members[p + 2], members[p + 3]
        s0, s1, s2, s3 = zero, zero, zero, zero
        for j in range(d):
            w = normal[j]
            s0 += w * points[i0, j]
            s1 += w * points[i1, j]
            s2 += w * points[i2, j]
            s3 += w * points[i3, j]
        q = p - lo
        values[q] = s0
        values[q + 1] = s1
        values[q + 2] = s2
        values[q + 3] = s3
    for p in range(fours, hi):
        i = members[p]
        total = zero
        for j in range(d):
            total += normal[j] * points[i, j]
        values[p - lo] = total


@vectorized
def walk(points, normal, threshold, nodes, steps, step_points, path, values):
    """Follow the extreme vertices in direction ``normal`` through every family, while they do not exceed ``threshold``.

    Writes the visited nodes to ``path``, ascending; returns (their number, levels and entries visited). A wrong node,
    due to rounding or to a vertex that Qhull dropped, costs time only: ``certify`` is valid for any node. ``values`` (n
    + 1,) is scratch. Expected cost O(log n) for fixed d.
    """
    count = 0
    visited = 0
    for family in range(FAMILIES):
        node = family
        while True:
            place = count
            while place > 0 and path[place - 1] > node:
                path[place] = path[place - 1]
                place -= 1
            path[place] = node
            count += 1
            lo, hi = nodes[node, STEP_START], nodes[node, STEP_END]
            visited += 1 + hi - lo
            if lo == hi:
                break
            inner_products(points, step_points, lo, hi, normal, values)
            best = 0
            for s in range(1, hi - lo):
                if values[s] > values[best]:
                    best = s
            node = steps[lo + best]
            if not values[best] <= threshold:
                break
    return count, visited


@internal
def choose_list(direction, limit, radius, nodes, incident, facets, path, length, chosen, scratch):
    """Return the finest list on the path that is proven complete up to ``limit``: (start, split, end, facets visited).

    If the first part of the list suffices, the end is the split. The list of a root needs no proof.
    """
    visited = 0
    for place in range(length - 1, -1, -1):
        node = path[place]
        if node < FAMILIES:
            break
        lo, hi = nodes[node, FACET_START], nodes[node, FACET_END]
        status, facets_visited = certify(direction, limit, radius, facets, incident, lo, hi, chosen, scratch)
        visited += facets_visited
        if status != INCOMPLETE:
            end = nodes[node, LIST_SPLIT if status == STRICTLY_COMPLETE else LIST_END]
            return nodes[node, LIST_START], nodes[node, LIST_SPLIT], end, visited
    return nodes[0, LIST_START], nodes[0, LIST_SPLIT], nodes[0, LIST_END], visited


@internal
def refine_members(points, members, lo, hi, normal, threshold, band, values):
    """Replace every value within ``band`` of the threshold, or NaN, by ``deciding_dot``."""
    undecided = 0
    for p in range(hi - lo):
        undecided += not abs(values[p] - threshold) > band
    if undecided > 0:
        for p in range(hi - lo):
            if not abs(values[p] - threshold) > band:
                store_decided(values, p, fused_dot(normal, points[members[lo + p]]), threshold)


@vectorized
def collect(members, start, lo, hi, tested, threshold, ids, values, used):
    """Append the members lo … hi−1 whose value ``tested[p − start]`` is above the threshold; returns the new ``used``.

    ``tested`` has space for ``LANES`` numbers after its values, because ``LANES`` numbers are compared at once.
    """
    with_values = values.shape[0] > 0
    for begin in range(lo, hi, LANES):
        bits = above_bits(tested, begin - start, threshold)
        if hi - begin < LANES:
            bits &= (np.int64(1) << (hi - begin)) - 1
        while bits != 0:
            p = begin + first_bit(bits)
            bits &= bits - 1
            ids[used] = members[p]
            if with_values:
                values[used] = tested[p - start]
            used += 1
    return used


@vectorized
def merge(ids, values, middle):
    """Merge two ascending runs of ``ids``, the second from ``middle`` on, together with ``values`` if there are any."""
    with_values = values.shape[0] > 0
    first_ids = ids[:middle].copy()
    first_values = values[:middle].copy()
    a, b = 0, middle
    for p in range(ids.shape[0]):
        if a == middle:
            break
        if b < ids.shape[0] and ids[b] < first_ids[a]:
            ids[p] = ids[b]
            if with_values:
                values[p] = values[b]
            b += 1
        else:
            ids[p] = first_ids[a]
            if with_values:
                values[p] = first_values[a]
            a += 1


@vectorized
def search(points, queries, frame, levels, ordered, first, ids, values, counts, work):
    """Answer queries first, first + 1, … while their lists fit into ``ids``; returns (next query, ids written).

    ``queries`` is (normals, thresholds, slacks, bands), ``frame`` a ``Frame`` and ``levels`` a ``HierarchyArrays``.
    The ``counts[k]`` ids of query k are appended to ``ids``, and their values to ``values`` unless that is empty.
    Levels, entries and facets visited, and points tested, are added to ``work``. With q̂ = axesᵀ normal a point has

        ⟨normal, x⟩ = ⟨normal, center⟩ + ⟨q̂, x̂⟩ + ⟨normal, δ⟩,

    and the list must contain all points whose ⟨normal, x⟩ exceeds threshold − slack. ``error_bound`` bounds ‖δ‖ and,
    for each unit of ‖normal‖, the rounding of ⟨normal, center⟩ and ⟨q̂, x̂⟩; ‖normal‖ ≤ √d max |normal_j|, which
    neither overflows nor underflows. Expected cost O(d (log n + found)) a query, for fixed d.
    """
    normals, thresholds, slacks, bands = queries
    center, axes, radius, error_bound = frame
    nodes, steps, step_points, incident, facets, members = levels
    d, rho = axes.shape
    path = np.empty(MAX_LEVELS, np.int64)
    chosen = np.empty(rho, np.int64)
    scratch = np.empty((2 * rho + 3, rho))
    direction = np.empty(rho)
    tested = np.empty(points.shape[0] + LANES, points.dtype)
    used = 0
    for k in range(first, normals.shape[0]):
        normal = normals[k]
        threshold = thresholds[k]
        counts[k] = 0
        largest = 0.0
        for j in range(d):
            largest = max(largest, abs(np.float64(normal[j])))
        if threshold == np.inf or (largest == 0.0 and threshold >= 0):
            continue
        limit = threshold - 4 * EPS * abs(threshold) - slacks[k] - np.sqrt(d) * largest * error_bound
        for j in range(d):
            limit -= normal[j] * center[j]
        if not limit < HUGE:
            limit = -np.inf  # overflow: nothing can be proven, and all points are tested
        norm = 0.0
        for i in range(rho):
            direction[i] = 0.0
            for j in range(d):
                direction[i] += normal[j] * axes[j, i]
            norm += direction[i] * direction[i]
        norm = np.sqrt(norm)
        if norm > 0.0:
            limit /= norm
            for i in range(rho):
                direction[i] /= norm
        length, visited = walk(points, normal, threshold, nodes, steps, step_points, path, tested)
        work[0] += visited
        start, split, end, visited = choose_list(
            direction, limit, radius, nodes, incident, facets, path, length, chosen, scratch
        )
        work[0] += visited
        if end - start > ids.shape[0] - used:
            return k, used
        work[1] += end - start
        inner_products(points, members, start, end, normal, tested)
        if bands[k] >= 0:
            # If partial sums may overflow, ``deciding_dot`` decides for all points.
            band = bands[k] if bands[k] < HUGE * EPS else np.inf
            refine_members(points, members, start, end, normal, threshold, band, tested)
        begin = used
        used = middle = collect(members, start, start, min(split, end), tested, threshold, ids, values, used)
        if end > split:
            used = collect(members, start, split, end, tested, threshold, ids, values, used)
        if ordered and begin < middle < used:
            merge(ids[begin:used], values[begin:used], middle - begin)
        counts[k] = used - begin
    return normals.shape[0], used
