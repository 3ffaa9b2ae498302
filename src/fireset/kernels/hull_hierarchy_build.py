"""Build one level of a hull hierarchy with queries on the previous levels. Layout: ``hull_hierarchy``."""

import numpy as np

from fireset.kernels.compiling import vectorized
from fireset.kernels.hull_certificate import EPS
from fireset.kernels.hull_hierarchy import (
    FAMILIES,
    LIST_END,
    LIST_SPLIT,
    LIST_START,
    MAX_LEVELS,
    POINT,
    choose_list,
    inner_products,
    walk,
)

NEAR, BEYOND = 1, 2  # marks


@vectorized
def find_beyond(reduced, new_facets, first, last, radius, levels, found, counts):
    """Find the points with ⟨normal, x̂⟩ > near for new facets first, first + 1, … < ``last``, with the levels so far.

    ``levels`` is a ``HierarchyArrays``. Apart from rounding, such a half-space contains no point of the family's
    smaller samples, so that their lists answer the query. A point p with ⟨normal, x̂⟩ > beyond is written as p, others
    as ~p. Continues while the lists fit into ``found``; returns (next facet, entries written). Expected cost O(d · n/r)
    for each facet of a sample of r points.
    """
    nodes, steps, step_points, incident, facets, members = levels
    rho = reduced.shape[1]
    path = np.empty(MAX_LEVELS, np.int64)
    chosen = np.empty(rho, np.int64)
    scratch = np.empty((2 * rho + 3, rho))
    values = np.empty(reduced.shape[0] + 1)
    used = 0
    for f in range(first, last):
        normal = new_facets[f, :rho]
        near, beyond = new_facets[f, rho], new_facets[f, rho + 1]
        # Points outside the list must not exceed near in the inner products computed below either.
        limit = near - (rho + 4) * EPS * radius
        length, _ = walk(reduced, normal, beyond, nodes, steps, step_points, path, values)
        start, _, end, _ = choose_list(normal, limit, radius, nodes, incident, facets, path, length, chosen, scratch)
        if end - start > found.shape[0] - used:
            return f, used
        inner_products(reduced, members, start, end, normal, values)
        begin = used
        for p in range(end - start):
            i = members[start + p]
            found[used] = i if values[p] > beyond else ~i
            used += values[p] > near
        counts[f] = used - begin
    return last, used


@vectorized
def unite(facet_starts, facet_lists, incident_starts, incident, marks, bounds, members):
    """Compute the lists of nodes from those of facets: the points beyond, or near, some facet at the node.

    ``bounds[v]`` receives start, split and end of the list of node v; returns the number of members. Called twice,
    first with empty ``members`` to count them. ``marks`` (n,) is scratch, 0 before and after. Cost O(entries of facet
    lists).
    """
    writing = members.shape[0] > 0
    used = 0
    for v in range(bounds.shape[0]):
        n_beyond = n_near = 0
        for p in range(incident_starts[v], incident_starts[v + 1]):
            for q in range(facet_starts[incident[p]], facet_starts[incident[p] + 1]):
                i = max(facet_lists[q], ~facet_lists[q])
                side = BEYOND if facet_lists[q] >= 0 else NEAR
                if side > marks[i]:
                    n_near += (side == NEAR) - (marks[i] == NEAR)
                    n_beyond += side == BEYOND
                    marks[i] = side
        start = a = used
        split = b = start + n_beyond
        used = split + n_near
        bounds[v, 0], bounds[v, 1], bounds[v, 2] = start, split, used
        for p in range(incident_starts[v], incident_starts[v + 1]):
            for q in range(facet_starts[incident[p]], facet_starts[incident[p] + 1]):
                i = max(facet_lists[q], ~facet_lists[q])
                if writing and marks[i] == BEYOND:
                    members[a] = i
                    a += 1
                elif writing and marks[i] == NEAR:
                    members[b] = i
                    b += 1
                marks[i] = 0
        if writing:
            members[start:split].sort()
            members[split:used].sort()
    return used


@vectorized
def link(lo, hi, nodes, members, next_nodes, bounds, steps):
    """Compute the steps of nodes lo … hi−1 to nodes of the family's next sample.

    Point i is the vertex ``next_nodes[i]`` of that sample, or no vertex if this is −1.

    The next extreme vertex is the vertex itself or a point beyond a facet at it. If Qhull dropped the vertex as
    coplanar with others, it can also be a point near the facets. ``bounds[v − lo]`` receives start and end; returns the
    number of steps. Called twice, first with empty ``steps`` to count them. Cost O(members of the lists).
    """
    writing = steps.shape[0] > 0
    used = 0
    for v in range(lo, hi):
        bounds[v - lo, 0] = used
        own = next_nodes[nodes[v, POINT]] if v >= FAMILIES else -1
        if own >= 0:
            if writing:
                steps[used] = own
            used += 1
        for p in range(nodes[v, LIST_START], nodes[v, LIST_SPLIT if own >= 0 else LIST_END]):
            node = next_nodes[members[p]]
            if node >= 0:
                if writing:
                    steps[used] = node
                used += 1
        bounds[v - lo, 1] = used
    return used
