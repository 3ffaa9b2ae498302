"""Build the convex layers of points in the plane: exact peeling, and the slopes for fractional cascading.

Peeling. The points, sorted by x and then y, are the leaves of a binary tree of bridges (Overmars and van Leeuwen 1981,
without stored hulls, because points are only removed). A bridge is the edge of the upper or lower hull of the points
of a node that joins a point of its left half to one of its right half. A node stores both bridges; the other edges of
these hulls are stored further down. The outer layer is read from the tree and its points are removed; a bridge is
searched again only if it lost an end. Cost O(n log² n).

A point on an edge of its layer belongs to that layer: layers are convex, not strictly convex. Ties in x are sorted by
y, as if the plane was tilted a little: a vertical edge on the left belongs to the upper hull, one on the right to the
lower.

Every branch depends on the exact sign of a determinant, or on rounded numbers with a proven error bound, so layers are
always convex and nested. The caller ensures that coordinates are multiples of 2⁻⁵⁰⁰ below 2³²⁰: then products of two
or three differences do not overflow, and products of two lose nothing to underflow.

Layout of the tree. The children of node v are 2v and 2v + 1, the root is 1, and point i is leaf ``leaves`` + i, where
``leaves`` is a power of two. ``live[v]`` is the lowest node that contains all remaining points below v: v itself, or a
descendant if one half is empty, or 0 if no point is left. ``nodes[v]`` = (``live`` of its left child, of its right
child, ends of the lower bridge, ends of the upper bridge). ``side`` is 1 for the upper hull and −1 for the lower:
``nodes[v, 3 + side]`` is the left end of a bridge and ``nodes[v, 4 + side]`` the right end. Comments say "above" for
the upper hull; for the lower hull read "below".
"""

import numpy as np

from fireset.kernels.compiling import strict, strict_internal
from fireset.kernels.firing import fma

_UNIT = 2.0**-53
_DETERMINANT_ERROR = (3 + 16 * _UNIT) * _UNIT  # Shewchuk 1997: error of a rounded determinant / sum of its products
_UNDERFLOW = 1e-300  # upper bound on the loss of a product of three to underflow
_MAX_DEPTH = 64  # greater than the depth of any leaf


# Signs of determinants


@strict_internal
def _rounded_sign(x1, y1, x2, y2):
    """Return the determinant (x1, y1) × (x2, y2) of rounded differences; 0 if its sign is uncertain."""
    left, right = x1 * y2, y1 * x2
    determinant = left - right
    return determinant if abs(determinant) > _DETERMINANT_ERROR * (abs(left) + abs(right)) else 0.0


@strict_internal
def _exact_sign(points, a, b, c, d):
    """Return a number with the exact sign of the determinant (p_b − p_a) × (p_d − p_c)."""
    x1, x1_error = _difference(points[b, 0], points[a, 0])
    y1, y1_error = _difference(points[b, 1], points[a, 1])
    x2, x2_error = _difference(points[d, 0], points[c, 0])
    y2, y2_error = _difference(points[d, 1], points[c, 1])
    if x1_error == 0.0 and y1_error == 0.0 and x2_error == 0.0 and y2_error == 0.0:
        left, left_error = _product(x1, y2)
        right, right_error = _product(y1, x2)
        # Rounding is monotone: if the rounded products differ, the exact ones differ in the same direction.
        return left - right if left != right else left_error - right_error
    parts = np.empty(16)  # Shewchuk's expansion: ascending numbers without common bits whose sum is the determinant
    count = 0
    for p, q in ((x1, y2), (x1_error, y2), (x1, y2_error), (x1_error, y2_error)):
        count = _add_product(parts, count, p, q)
    for p, q in ((y1, x2), (y1_error, x2), (y1, x2_error), (y1_error, x2_error)):
        count = _add_product(parts, count, -p, q)
    while count > 1 and parts[count - 1] == 0.0:
        count -= 1
    return parts[count - 1]  # exceeds the sum of all others


@strict
def cross_sign(points, a, b, c, d):
    """Return the sign of ``_exact_sign``, from rounded numbers if they suffice."""
    x1, y1 = points[b, 0] - points[a, 0], points[b, 1] - points[a, 1]
    x2, y2 = points[d, 0] - points[c, 0], points[d, 1] - points[c, 1]
    rounded = _rounded_sign(x1, y1, x2, y2)
    return rounded if rounded != 0.0 else _exact_sign(points, a, b, c, d)


@strict_internal
def _difference(p, q):
    """Return p − q rounded, and the rounding error (Knuth)."""
    rounded = p - q
    part = rounded - p
    return rounded, (p - (rounded - part)) - (q + part)


@strict_internal
def _product(p, q) -> tuple[float, float]:
    """Return p·q rounded, and the rounding error."""
    rounded = p * q
    return rounded, fma(p, q, -rounded)  # pyright: ignore[reportCallIssue]


@strict_internal
def _add_product(parts, count, p, q):
    """Add p·q to an expansion of ``count`` parts; returns the new number of parts."""
    rounded, error = _product(p, q)
    for term in (error, rounded):
        total = term
        for k in range(count):
            total, parts[k] = _difference(total, -parts[k])
        parts[count] = total
        count += 1
    return count


# The tree of bridges


@strict_internal
def _stays_below(x1, y1, x2, y2, x, y, gap):
    """Return whether the lower line is certainly below the upper one from ``gap`` before a point of it on.

    The upper line has direction (x1, y1), the lower one (x2, y2). The point on the lower line has the offset (x, y)
    from a point of the upper line and is not above that line; beyond it the lines diverge. So the depth of the point
    below the upper line, |(x1, y1) × (x, y)| / |x1|, must exceed the gain of the lower line over the gap, |(x1, y1) ×
    (x2, y2)| gap / |x1 x2|. False if rounding leaves this open.
    """
    if gap == 0.0:
        return x2 != 0.0  # other points on a vertical line may be above the point
    left, right = x1 * y, y1 * x
    depth = abs(left - right) - _DETERMINANT_ERROR * (abs(left) + abs(right))
    left, right = x1 * y2, y1 * x2
    gain = abs(left - right) + _DETERMINANT_ERROR * (abs(left) + abs(right))
    return depth * abs(x2) > gain * gap * (1 + 16 * _UNIT) + _UNDERFLOW  # seven more roundings of 1 unit each


@strict_internal
def _rises_above(points, nodes, leaves, node, side, a, b):
    """Return whether a point under ``node`` is strictly above line ab; all are right of a and b. Cost O(log n)."""
    while node < leaves:  # descend to the point of the hull that is farthest above the line
        steeper = side * cross_sign(points, a, b, nodes[node, 3 + side], nodes[node, 4 + side]) > 0
        node = nodes[node, 1] if steeper else nodes[node, 0]
    return side * cross_sign(points, a, b, a, node - leaves) > 0


@strict_internal
def _bridge(points, nodes, leaves, node, span, side, floor, ceiling):
    """Find a bridge of a node whose children, of ``span`` leaves each, are up to date.

    If more than two points lie on the line of the bridge, the inner ones are its ends, so that all are on the hull. For
    an edge ab of the left hull, the left end is a or before it if and only if some point of the right half is strictly
    above ab; otherwise it is b or after it. The right hull is symmetric. Two descents run together: the left end is
    under node l, with bridge ab (a = b at a leaf), and the right end under node r, with bridge cd. The bridge of the
    points under l and r is the bridge of all points.

    The left end is ``floor`` or after it, the right end ``ceiling`` or before it: the ends of the old bridge, if they
    still exist. No point is above the line of the old bridge. If the left end was removed, the left half is on or below
    that line; seen from the new left end, the points after the old right end are below it.

    Cost O(log n), except for the deviation marked below.
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
            # If c ≠ d, the lines meet between b and c, since c is not above ab and b is not above cd. If they meet
            # before the right half begins, all points under r are below cd and so below ab; if they meet after the left
            # half ends, all points under l are below cd. Deviation: if rounding leaves this open (the exact determinant
            # has degree three), the whole right half is searched, at O(log n) for this one step.
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


@strict_internal
def _update_node(points, nodes, live, leaves, node, span):
    """Update a node whose children, of ``span`` leaves each, are up to date."""
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


@strict_internal
def _update_ancestors(points, nodes, live, leaves, changed):
    """Update the ancestors of the leaves ``changed`` (ascending), each after its children.

    Leaf by leaf, not level by level, so that nodes are still in the cache when they are read again.
    """
    for k in range(changed.shape[0]):
        node = changed[k] >> 1
        next_node = changed[k + 1] >> 1 if k + 1 < changed.shape[0] else 0
        span = 1
        while node != next_node:  # else the node is an ancestor of the next leaf, too, and is updated after that leaf
            _update_node(points, nodes, live, leaves, node, span)
            node >>= 1
            next_node >>= 1
            span *= 2


@strict_internal
def _read_hull(nodes, leaves, root, side, hull):
    """Write the points of a hull from left to right; returns their number. Cost O(log n) for each."""
    waiting = np.empty((_MAX_DEPTH, 3), np.int32)
    top = 0
    count = 0
    node, low, high = root, 0, leaves  # read the points low … high of the hull of the node
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
    """Compute the convex layers of distinct ``points`` (n, 2), sorted by x and then y; returns their number.

    ``order`` (n,) receives the points layer after layer, each clockwise from its first point. ``starts`` and
    ``rightmost`` (n,) receive the positions in ``order`` of the start of each layer and of its last point in sorted
    order. ``nodes`` (leaves, 6), filled with ``leaves``, and ``live`` (2·leaves + 1), filled with 0, are scratch;
    ``leaves`` is at least 2 and n. They are allocated by NumPy, which gets larger pages than a kernel does, because
    they are accessed at random. Cost O(n log² n).
    """
    n, leaves = points.shape[0], nodes.shape[0]
    hull = np.empty(n, np.int32)
    changed = np.empty(n, np.int32)
    for k in range(n):
        changed[k] = leaves + k
        live[leaves + k] = leaves + k
    _update_ancestors(points, nodes, live, leaves, changed)  # searches all bridges, as there are none yet
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
            if live[leaves + hull[k]] != 0:  # else it is on the upper hull, like all points on a line
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
    """Return (slopes, own_counts, chain_starts) of ``LayerArrays`` for the upper (0) or the lower (1) chain. Cost O(n).

    ``points`` (n, 2) are by position, and scaled as for ``peel``. A slope is the computed slope of an edge, with a
    relative error of 3 units of 2⁻⁵³, or the previous slope if that is less: true slopes decrease, so the error bound
    still holds. Between duplicates any slope is correct.
    """
    layers = rightmost.shape[0]
    chain_starts = np.zeros(layers + 1, np.int64)
    for i in range(layers - 1, -1, -1):  # first the numbers of entries, −∞ included
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


@strict_internal
def _edge_slope(points, starts, layer, position, previous):
    """Return the slope of the edge that begins at ``position``, at most that of the ``previous`` edge."""
    after = position + 1 if position + 1 < starts[layer + 1] else starts[layer]
    x, y = points[after, 0] - points[position, 0], points[after, 1] - points[position, 1]
    if x == 0.0:
        return previous if y == 0.0 else np.inf  # a vertical edge is the first of its chain
    return min(previous, y / x)
