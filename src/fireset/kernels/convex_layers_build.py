"""Building convex layers of points in the plane: exact peeling, and the slopes that queries search.

Peeling. The points, sorted by x and then y, are the leaves of a binary tree of bridges (Overmars and van Leeuwen 1981,
without the stored hulls: points are only removed). A node stores the two edges, bridges, of the upper and lower hull of
its points that join a point of its left half to one of its right half; the rest of these hulls is found further down. A
layer is read off the tree and its points are removed; a bridge is searched again only if it lost an end. O(n log² n).

A point on an edge of its layer belongs to that layer: layers are convex, not strictly convex, and fewer. Sorting ties
in x by y tilts the plane a little: a vertical edge on the left is part of the upper hull, one on the right of the
lower.

Every branch is taken on the exact sign of a determinant, or on a certificate from rounded numbers with their error
bound, so layers are convex and nested without exception. The caller ensures that coordinates are multiples of
2⁻⁵⁰⁰ below 2³²⁰: then products of differences, two for a determinant and three for a certificate, do not overflow, and
those of two lose nothing to underflow.

Layout of the tree. The children of node v are 2v and 2v + 1, the root is 1, and point i is leaf ``leaves`` + i, where
``leaves`` is a power of two. ``live[v]`` is the lowest node that has all points left below v: v itself, or one further
down where the other half is empty, or 0 where no point is left. ``nodes[v]`` = (``live`` of its left child, of its
right child, ends of the lower bridge, ends of the upper bridge). ``side`` is 1 for the upper hull and −1 for the lower:
``nodes[v, 3 + side]`` is the left end of a bridge and ``nodes[v, 4 + side]`` the right end. Comments say "above" for
the upper hull; for the lower hull it means below.
"""

import numpy as np

from fireset.kernels.compiling import strict
from fireset.kernels.firing import fma

_UNIT = 2.0**-53
_DETERMINANT = (3 + 16 * _UNIT) * _UNIT  # Shewchuk 1997: error of a rounded determinant, over the sum of its products
_UNDERFLOW = 1e-300  # more than products of three can lose to underflow
_MAX_DEPTH = 64  # more nodes than there are above any leaf


# Signs of determinants


@strict
def _rounded_sign(x1, y1, x2, y2):
    """The determinant (x1, y1) × (x2, y2) of rounded differences; 0 if its error bound leaves the sign open."""
    left, right = x1 * y2, y1 * x2
    determinant = left - right
    return determinant if abs(determinant) > _DETERMINANT * (abs(left) + abs(right)) else 0.0


@strict
def _exact_sign(points, a, b, c, d):
    """A number with the sign of the determinant (p_b − p_a) × (p_d − p_c), without rounding; 0 if it is 0."""
    x1, x1_error = _difference(points[b, 0], points[a, 0])
    y1, y1_error = _difference(points[b, 1], points[a, 1])
    x2, x2_error = _difference(points[d, 0], points[c, 0])
    y2, y2_error = _difference(points[d, 1], points[c, 1])
    if x1_error == 0.0 and y1_error == 0.0 and x2_error == 0.0 and y2_error == 0.0:
        left, left_error = _product(x1, y2)
        right, right_error = _product(y1, x2)
        # Rounding keeps the order: where the rounded products differ, the exact ones differ the same way.
        return left - right if left != right else left_error - right_error
    parts = np.empty(16)  # numbers without common bits, ascending, whose sum is the determinant: Shewchuk's expansion
    count = 0
    for p, q in ((x1, y2), (x1_error, y2), (x1, y2_error), (x1_error, y2_error)):
        count = _add_product(parts, count, p, q)
    for p, q in ((y1, x2), (y1_error, x2), (y1, x2_error), (y1_error, x2_error)):
        count = _add_product(parts, count, -p, q)
    while count > 1 and parts[count - 1] == 0.0:
        count -= 1
    return parts[count - 1]  # larger than all others together


@strict
def cross_sign(points, a, b, c, d):
    """The sign of (p_b − p_a) × (p_d − p_c), exact as ``_exact_sign``, but from rounded numbers where they suffice."""
    x1, y1 = points[b, 0] - points[a, 0], points[b, 1] - points[a, 1]
    x2, y2 = points[d, 0] - points[c, 0], points[d, 1] - points[c, 1]
    rounded = _rounded_sign(x1, y1, x2, y2)
    return rounded if rounded != 0.0 else _exact_sign(points, a, b, c, d)


@strict
def _difference(p, q):
    """p − q rounded, and the rounding error (Knuth)."""
    rounded = p - q
    part = rounded - p
    return rounded, (p - (rounded - part)) - (q + part)


@strict
def _product(p, q) -> tuple[float, float]:
    """p·q rounded, and the rounding error."""
    rounded = p * q
    return rounded, fma(p, q, -rounded)  # pyright: ignore[reportCallIssue]


@strict
def _add_product(parts, count, p, q):
    """Add p·q to the first ``count`` parts of an expansion; returns how many parts it has then."""
    rounded, error = _product(p, q)
    for term in (error, rounded):
        total = term
        for k in range(count):
            total, parts[k] = _difference(total, -parts[k])
        parts[count] = total
        count += 1
    return count


# The tree of bridges


@strict
def _stays_below(x1, y1, x2, y2, x, y, gap):
    """Whether a line certainly does not run above a line of direction (x1, y1) from ``gap`` before a point of it on.

    The point is (x, y) from a point of the upper line, and not above it; from there on the lower line has direction
    (x2, y2) and falls away. So the question is whether the depth of the point below the upper line,
    |(x1, y1) × (x, y)| / |x1|, is more than what the lower line gains over the gap,
    |(x1, y1) × (x2, y2)| gap / |x1 x2|.
    """
    if gap == 0.0:
        return x2 != 0.0  # other points on a vertical line may be above the point
    left, right = x1 * y, y1 * x
    depth = abs(left - right) - _DETERMINANT * (abs(left) + abs(right))
    left, right = x1 * y2, y1 * x2
    gain = abs(left - right) + _DETERMINANT * (abs(left) + abs(right))
    return depth * abs(x2) > gain * gap * (1 + 16 * _UNIT) + _UNDERFLOW  # seven more roundings, 1 unit each


@strict
def _rises_above(points, nodes, leaves, node, side, a, b):
    """Whether some point under ``node``, all of them right of a and b, is strictly above line ab. O(log n)."""
    while node < leaves:  # towards the point of the hull that is farthest up from the line
        steeper = side * cross_sign(points, a, b, nodes[node, 3 + side], nodes[node, 4 + side]) > 0
        node = nodes[node, 1] if steeper else nodes[node, 0]
    return side * cross_sign(points, a, b, a, node - leaves) > 0


@strict
def _bridge(points, nodes, leaves, node, span, side, floor, ceiling):
    """Find a bridge of a node whose children, of ``span`` leaves each, are up to date. O(log n), but for the deviation.

    Where more than two points lie on the line of the bridge the inner ones are its ends, so that all are on the hull.
    Then, for an edge ab of the left hull, the left end is a or before it exactly if some point of the right half is
    strictly above ab; else it is b or beyond. The same holds on the right. Two descents at once: l is the node that the
    left end is under, with bridge ab (a = b at a leaf), and r, with bridge cd, that for the right end. What is known of
    the ends of the bridge between all points holds for the points under l and r, too, whose bridge is the same.

    The left end is known to be ``floor`` or beyond, the right end ``ceiling`` or before: the old ends, if they are
    still there. For no point is above the line of the old bridge. If it has lost its left end, the new left end is on
    or below that line, and so is its whole left half; seen from there, what lies beyond the old right end is below it.
    """
    l, r = nodes[node, 0], nodes[node, 1]  # noqa: E741
    right_half = r
    middle = (2 * node + 1) * span - leaves  # the first point of the right half
    left_end_x, right_start_x = points[middle - 1, 0], points[middle, 0]
    a = b = c = d = np.int32(0)
    ax = ay = bx = by = cx = cy = dx = dy = 0.0
    l_moved = r_moved = True
    while True:
        if l_moved:
            while l < leaves and nodes[l, 4 + side] <= floor:
                l = nodes[l, 1]  # noqa: E741
            a, b = (nodes[l, 3 + side], nodes[l, 4 + side]) if l < leaves else (l - leaves, l - leaves)
            ax, ay, bx, by = points[a, 0], points[a, 1], points[b, 0], points[b, 1]
        if r_moved:
            while r < leaves and nodes[r, 3 + side] >= ceiling:
                r = nodes[r, 0]
            c, d = (nodes[r, 3 + side], nodes[r, 4 + side]) if r < leaves else (r - leaves, r - leaves)
            cx, cy, dx, dy = points[c, 0], points[c, 1], points[d, 0], points[d, 1]
        if a == b and c == d:
            nodes[node, 3 + side], nodes[node, 4 + side] = a, c
            return
        l_moved, child = True, 0  # if c is above ab
        orientation = _rounded_sign(bx - ax, by - ay, cx - ax, cy - ay)
        if orientation == 0.0 and a != b:
            orientation = _exact_sign(points, a, b, a, c)
        if side * orientation <= 0.0:
            orientation = _rounded_sign(dx - cx, dy - cy, bx - cx, by - cy)
            if orientation == 0.0 and c != d:
                orientation = _exact_sign(points, c, d, c, b)
            if side * orientation > 0.0:
                l_moved, child = False, 1
            elif a == b:
                l_moved, child = False, 0
            # If c ≠ d, the lines meet between b and c, for c is not above ab, nor b above cd. If they meet before the
            # right half begins, all points under r, being below cd, are below ab; if they meet after the left half
            # ends, all points under l are below cd. Deviation: where rounding leaves that open (the exact determinant
            # would be of degree three), the whole right half is searched, which takes O(log n) for this one step.
            elif c == d or _stays_below(bx - ax, by - ay, dx - cx, dy - cy, cx - ax, cy - ay, cx - right_start_x):
                l_moved, child = True, 1
            elif _stays_below(dx - cx, dy - cy, bx - ax, by - ay, bx - cx, by - cy, left_end_x - bx):
                l_moved, child = False, 0
            elif not _rises_above(points, nodes, leaves, right_half, side, a, b):
                l_moved, child = True, 1
        r_moved = not l_moved
        if l_moved:
            l = nodes[l, child]  # noqa: E741
        else:
            r = nodes[r, child]


@strict
def _update_node(points, nodes, live, leaves, node, span):
    """Bring a node up to date whose children, of ``span`` leaves each, are."""
    left, right = live[2 * node], live[2 * node + 1]
    if left == 0 or right == 0:
        live[node] = left + right
        return
    live[node] = node
    nodes[node, 0], nodes[node, 1] = left, right
    for side in (1, -1):
        floor, ceiling = nodes[node, 3 + side], nodes[node, 4 + side]
        left_gone, right_gone = live[leaves + floor] == 0, live[leaves + ceiling] == 0
        if left_gone or right_gone:
            floor = np.int32(-1) if left_gone else floor
            ceiling = np.int32(leaves) if right_gone else ceiling
            _bridge(points, nodes, leaves, node, span, side, floor, ceiling)


@strict
def _update_ancestors(points, nodes, live, leaves, changed):
    """Bring the nodes above these leaves, which ascend, up to date, each after its children.

    From leaf to leaf rather than level by level, so that what was just read is read again while it is in cache.
    """
    for k in range(changed.shape[0]):
        node = changed[k] >> 1
        next_node = changed[k + 1] >> 1 if k + 1 < changed.shape[0] else 0
        span = 1
        while node != next_node:  # else the node is above the next leaf too, and is updated after that one
            _update_node(points, nodes, live, leaves, node, span)
            node >>= 1
            next_node >>= 1
            span *= 2


@strict
def _read_hull(nodes, leaves, root, side, hull):
    """Write the points of a hull from left to right, and return how many. O(log n) for each."""
    waiting = np.empty((_MAX_DEPTH, 3), np.int32)
    top = 0
    count = 0
    node, low, high = root, 0, leaves  # wanted: of the hull of the node, the points low … high
    while True:
        while node < leaves:
            left, right = nodes[node, 3 + side], nodes[node, 4 + side]
            if high <= left:
                node = nodes[node, 0]
            elif low >= right:
                node = nodes[node, 1]
            else:
                waiting[top, 0], waiting[top, 1], waiting[top, 2] = nodes[node, 1], right, high
                top += 1
                node, high = nodes[node, 0], left
        hull[count] = node - leaves
        count += 1
        if top == 0:
            return count
        top -= 1
        node, low, high = waiting[top, 0], waiting[top, 1], waiting[top, 2]


@strict
def peel(points, nodes, live, order, starts, rightmost):
    """Convex layers of (n, 2) points, sorted by x and then y, none twice.

    ``order`` (n) receives the points layer after layer, each clockwise from the first point; ``starts`` and
    ``rightmost`` (n) where in it each layer starts and where its last point in sorted order is. Returns the number of
    layers. ``nodes`` (leaves, 6), filled with ``leaves``, and ``live`` (2·leaves + 1), filled with 0, are scratch, for
    ``leaves`` at least 2 and n. The caller allocates them, because NumPy gets larger pages than a kernel does, and they
    are accessed at random. O(n log² n).
    """
    n, leaves = points.shape[0], nodes.shape[0]
    hull = np.empty(n, np.int32)
    changed = np.empty(n, np.int32)
    for k in range(n):
        changed[k] = leaves + k
        live[leaves + k] = leaves + k
    _update_ancestors(points, nodes, live, leaves, changed)  # there are no bridges yet: all are searched
    end = 0
    layers = 0
    while end < n:
        start = end
        for k in range(_read_hull(nodes, leaves, live[1], 1, hull)):
            order[end] = hull[k]
            live[leaves + hull[k]] = 0
            end += 1
        last = end - 1
        for k in range(_read_hull(nodes, leaves, live[1], -1, hull) - 1, -1, -1):
            if live[leaves + hull[k]] != 0:  # else it is on the upper hull, as all are if they are on a line
                order[end] = hull[k]
                live[leaves + hull[k]] = 0
                end += 1
        starts[layers], rightmost[layers] = start, last
        layers += 1
        up, down = start, end - 1  # the upper hull ascends up to ``last``, and the lower descends from there
        for k in range(end - start):
            if down == last or (up <= last and order[up] < order[down]):
                changed[k] = leaves + order[up]
                up += 1
            else:
                changed[k] = leaves + order[down]
                down -= 1
        _update_ancestors(points, nodes, live, leaves, changed[: end - start])
    return layers


# Fractional cascading


@strict
def cascade(points, starts, rightmost, chain):
    """(slopes, own_counts, chain_starts) of ``LayerArrays`` for the upper (0) or the lower (1) chain, from 0 on. O(n).

    ``points`` (n, 2) are by position, and scaled as for ``peel``.

    A slope is that of an edge as computed, with a relative error of 3 units (a unit is 2⁻⁵³), or the one before it if
    that is less: true slopes decrease, so the error stays as small. Between duplicates any slope will do.
    """
    layers = rightmost.shape[0]
    chain_starts = np.zeros(layers + 1, np.int64)
    for i in range(layers - 1, -1, -1):  # numbers of entries first, with that at the end
        samples = (chain_starts[i + 1] - 1) // 2 if i + 1 < layers else 0
        edges = rightmost[i] - starts[i] if chain == 0 else starts[i + 1] - rightmost[i]
        chain_starts[i] = edges + samples + 1
    total = 0
    for i in range(layers + 1):
        total, chain_starts[i] = total + chain_starts[i], total
    slopes = np.empty(total, np.float64)
    own_counts = np.empty(total, np.int32)
    for i in range(layers - 1, -1, -1):
        position, end = (starts[i], rightmost[i]) if chain == 0 else (rightmost[i], starts[i + 1])
        slope = _edge_slope(points, starts, i, position, np.inf)
        sample = chain_starts[i + 1] + 1
        samples_end = chain_starts[i + 2] - 1 if i + 1 < layers else 0
        own = 0
        for entry in range(chain_starts[i], chain_starts[i + 1] - 1):
            own_counts[entry] = own
            if position == end or (sample < samples_end and slopes[sample] > slope):
                slopes[entry] = slopes[sample]
                sample += 2
            else:
                slopes[entry] = slope
                own += 1
                position += 1
                if position < end:
                    slope = _edge_slope(points, starts, i, position, slope)
        slopes[chain_starts[i + 1] - 1] = -np.inf
        own_counts[chain_starts[i + 1] - 1] = own
    return slopes, own_counts, chain_starts


@strict
def _edge_slope(points, starts, layer, position, previous):
    """The slope of the edge from ``position`` on, at most that of the ``previous`` edge."""
    after = position + 1 if position + 1 < starts[layer + 1] else starts[layer]
    x, y = points[after, 0] - points[position, 0], points[after, 1] - points[position, 1]
    if x == 0.0:
        return previous if y == 0.0 else np.inf  # a vertical edge is the first of its chain
    return min(previous, y / x)
