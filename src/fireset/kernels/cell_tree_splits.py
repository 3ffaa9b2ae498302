"""Splits that fit a cell to the hull of its points (``fireset.kernels.cell_tree`` defines a split).

In the plane the hull is computed, and its edges make balanced trees of splits. In more dimensions the splits with the
largest predicted gain are made first, up to a given number.
"""

import numpy as np

from fireset.kernels.compiling import internal, strict_internal, vectorized

_MIN_GAIN = 1e-3  # relative to the extent of a cell; splits with a smaller predicted gain are not made
_MIN_WEIGHT = 1e-12  # of a generator in a split


@vectorized
def project(rows, i, frame, j):
    """Return ⟨axis j of the frame, row i⟩."""
    value = 0.0
    for k in range(rows.shape[1]):
        value += frame[j, k] * rows[i, k]
    return value


@internal
def _extreme(rows, begin, end, direction):
    """Return the largest ⟨direction, p⟩ and its point."""
    best, where = -np.inf, begin
    for i in range(begin, end):
        value = 0.0
        for k in range(rows.shape[1]):
            value += direction[k] * rows[i, k]
        if value > best:
            best, where = value, i
    return best, where


@internal
def _choose_split(rows, generators, heights, points, widths, cone, choices):
    """Choose the split of a cone with the largest predicted gain; returns the gain relative to the extent of the cell.

    ``points[cone, s]`` is extreme in the direction of generator s, with the inner product ``heights[cone, s]``, and
    ``widths[cone, s]`` is the extent in that direction. For generators g_i, g_j with extreme points p_i, p_j let
    δ_i = ⟨g_i, p_i − p_j⟩ and δ_j = ⟨g_j, p_j − p_i⟩. The predicted gain is δ_i δ_j / (δ_i + δ_j), at the direction
    between them in which both points have equal inner products: the actual gain if no other point is above them there.
    Slots and weight are written to ``choices``.
    """
    d = rows.shape[1]
    gaps = np.zeros((d, d))  # difference of the extreme points of s and t in the direction of s
    for s in range(d):
        for t in range(d):
            if points[cone, s] != points[cone, t]:
                value = 0.0
                for k in range(d):
                    value += generators[cone, s, k] * rows[points[cone, t], k]
                gaps[s, t] = max(heights[cone, s] - value, 0.0)
    best = 0.0
    for i in range(d):
        for j in range(i):
            total = gaps[i, j] + gaps[j, i]
            if gaps[i, j] > 0.0 and gaps[j, i] > 0.0:
                a = gaps[j, i] / total
                gain = gaps[i, j] * a / (a * widths[cone, i] + (1.0 - a) * widths[cone, j])
                if gain > best and _MIN_WEIGHT < a < 1.0 - _MIN_WEIGHT:
                    best = gain
                    choices[cone, 0], choices[cone, 1], choices[cone, 2] = i, j, a
    if best > _MIN_GAIN or d == 2:
        return best
    # No edge has a gain. If one point is extreme for all generators, the cone is done; otherwise halve an edge.
    least, edge_gap = np.inf, 0.0
    for t in range(d):
        worst = 0.0
        for s in range(d):
            worst = max(worst, gaps[s, t] / max(widths[cone, s], 1e-300))
        least = min(least, worst)
    for i in range(d):
        for j in range(i):
            gap = max(gaps[i, j] / max(widths[cone, i], 1e-300), gaps[j, i] / max(widths[cone, j], 1e-300))
            a = widths[cone, j] / max(widths[cone, i] + widths[cone, j], 1e-300)
            if gap > edge_gap and _MIN_WEIGHT < a < 1.0 - _MIN_WEIGHT:
                edge_gap = gap
                choices[cone, 0], choices[cone, 1], choices[cone, 2] = i, j, a
    return 0.25 * least if edge_gap > 0.0 else 0.0


@internal
def best_splits(rows, begin, end, frame, lowest, highest, extremes, budget, orthants, slots, weights, used):
    """Make splits in all orthants of a frame, those with the largest predicted gain first.

    Splits are written from ``slots[used]`` on; returns their end. Cost O(points · d) for each split.
    """
    d = rows.shape[1]
    last = used + min(budget, 2 * (end - begin))
    most = (1 << d) + budget
    generators, heights = np.empty((most, d, d)), np.empty((most, d))
    points, widths = np.empty((most, d), np.int64), np.empty((most, d))
    choices, gains = np.empty((most, 3)), np.empty(most)
    origins = np.empty((most, 2), np.int64)  # the split, or ~orthant, above a cone, and the side of it
    cones = 1 << d
    for cone in range(cones):
        for j in range(d):
            negative = (cone >> j) & 1
            for k in range(d):
                generators[cone, j, k] = -frame[j, k] if negative else frame[j, k]
            heights[cone, j] = -lowest[j] if negative else highest[j]
            points[cone, j] = extremes[negative, j]
            widths[cone, j] = highest[j] - lowest[j]
        origins[cone, 0], origins[cone, 1] = ~cone, 0
        gains[cone] = _choose_split(rows, generators, heights, points, widths, cone, choices)
    direction = np.empty(d)
    while used < last:
        cone = 0
        for other in range(cones):
            if gains[other] > gains[cone]:
                cone = other
        if not gains[cone] > _MIN_GAIN:
            break
        i, j, a = int(choices[cone, 0]), int(choices[cone, 1]), choices[cone, 2]
        for k in range(d):
            direction[k] = a * generators[cone, i, k] + (1.0 - a) * generators[cone, j, k]
        height, point = _extreme(rows, begin, end, direction)
        slots[used, 0], slots[used, 1], slots[used, 2], slots[used, 3] = i, j, -1, -1
        weights[used, 0] = a
        weights[used, 1] = max(a * heights[cone, i] + (1.0 - a) * heights[cone, j] - height, 0.0)
        if origins[cone, 0] < 0:
            orthants[~origins[cone, 0]] = used
        else:
            slots[origins[cone, 0], 2 + origins[cone, 1]] = used
        width = a * widths[cone, i] + (1.0 - a) * widths[cone, j]
        for s in range(d):
            heights[cones, s], points[cones, s] = heights[cone, s], points[cone, s]
            widths[cones, s] = widths[cone, s]
            for k in range(d):
                generators[cones, s, k] = generators[cone, s, k]
        for side in range(2):
            own, slot = (cone, i) if side == 0 else (cones, j)
            for k in range(d):
                generators[own, slot, k] = direction[k]
            heights[own, slot], points[own, slot], widths[own, slot] = height, point, width
            origins[own, 0], origins[own, 1] = used, side
            gains[own] = _choose_split(rows, generators, heights, points, widths, own, choices)
        cones += 1
        used += 1
    return used


@internal
def sort_by(keys, order):
    """Sort ``order`` by ``keys[order]`` (heapsort)."""
    count = order.shape[0]
    for start in range(count // 2 - 1, -1, -1):
        _sift(keys, order, start, count)
    for end in range(count - 1, 0, -1):
        order[0], order[end] = order[end], order[0]
        _sift(keys, order, 0, end)


@internal
def _sift(keys, order, hole, count):
    moved = order[hole]
    while 2 * hole + 1 < count:
        child = 2 * hole + 1
        if child + 1 < count and keys[order[child + 1]] > keys[order[child]]:
            child += 1
        if not keys[order[child]] > keys[moved]:
            break
        order[hole] = order[child]
        hole = child
    order[hole] = moved


@internal
def hull_splits(rows, begin, end, frame, lowest, highest, orthants, slots, weights, used):
    """Make the splits that turn a cell in the plane into the hull of its points: a balanced tree for each quadrant.

    Generators between two axes are normals of hull edges, in the order of their angles; a cone between two neighbours
    has one extreme point. Returns the end of the splits, and the largest distance of a point outside the computed hull,
    which is due to rounding. Cost O(s log s) for s points.
    """
    count = end - begin
    x, y = np.empty(count), np.empty(count)
    order, chain = np.empty(count, np.int64), np.empty(count, np.int64)
    for i in range(count):
        order[i] = i
        x[i], y[i] = project(rows, begin + i, frame, 0), project(rows, begin + i, frame, 1)
    sort_by(x, order)
    lost = 0.0
    for lower in range(2):  # the upper chain; the lower one is the upper one of the mirror image
        side = -1.0 if lower else 1.0
        length = 0
        for p in range(count):
            i = order[p]
            while length > 0 and x[chain[length - 1]] == x[i] and side * y[chain[length - 1]] <= side * y[i]:
                length -= 1
            if length > 0 and x[chain[length - 1]] == x[i]:
                continue
            while length > 1 and _turns_left(x, y, side, chain[length - 2], chain[length - 1], i):
                length -= 1
            chain[length] = i
            length += 1
        lost = max(lost, _largest_excess(x, y, side, order, chain, length))
        # From the left to the right end of the chain the normals turn from (−1, 0) over (0, side) to (1, 0).
        edge = 0
        while edge + 1 < length and side * (y[chain[edge + 1]] - y[chain[edge]]) > 0.0:
            edge += 1
        for half in range(2):
            first, last = (0, edge) if half == 0 else (edge, length - 1)
            orthants[1 - half + 2 * lower], used = _balanced_splits(
                x, y, side, chain, length, first, last, half, lowest, highest, slots, weights, used
            )
    return used, lost


@strict_internal
def _turns_left(x, y, side, p, q, r):
    return side * ((x[q] - x[p]) * (y[r] - y[p]) - (y[q] - y[p]) * (x[r] - x[p])) >= 0.0


@strict_internal
def _largest_excess(x, y, side, order, chain, length):
    """Return the largest distance of a point beyond the edge of the chain at its x."""
    worst, edge = 0.0, 0
    for p in range(order.shape[0]):
        i = order[p]
        while edge + 2 < length and x[chain[edge + 1]] < x[i]:
            edge += 1
        if length < 2:
            worst = max(worst, side * (y[i] - y[chain[0]]))
            continue
        u, v = chain[edge], chain[edge + 1]
        run, rise = x[v] - x[u], y[v] - y[u]
        excess = side * ((y[i] - y[u]) * run - (x[i] - x[u]) * rise) / np.sqrt(run * run + rise * rise)
        worst = max(worst, excess)
    return worst


@internal
def _balanced_splits(x, y, side, chain, length, first, last, half, lowest, highest, slots, weights, used):
    """Make the splits of one quadrant, normals of the edges first … last − 1 of a chain; returns (root, new ``used``).

    The directions of the left quadrant (``half`` 0) turn from −x to ±y, those of the right one from ±y to x.
    """
    if first >= last:
        return -1, used
    slot = 0 if half == 0 else 1  # slot of the direction at which a range of edges begins; 0 is x, 1 is y
    waiting = np.empty((64, 4), np.int64)  # first edge, last edge, the split above and the side of it
    ends = np.empty((64, 2, 3))  # directions at the begin and end of a range of edges, with their heights
    waiting[0, 0], waiting[0, 1], waiting[0, 2], waiting[0, 3] = first, last, -1, 0
    along_x, along_y = (0, 1) if half == 0 else (1, 0)
    ends[0, along_x, 0], ends[0, along_x, 1] = (-1.0 if half == 0 else 1.0), 0.0
    ends[0, along_x, 2] = -lowest[0] if half == 0 else highest[0]
    ends[0, along_y, 0], ends[0, along_y, 1] = 0.0, side
    ends[0, along_y, 2] = highest[1] if side > 0.0 else -lowest[1]
    depth, root = 1, -1
    while depth > 0:
        depth -= 1
        begin, end = waiting[depth, 0], waiting[depth, 1]
        before_x, before_y, before = ends[depth, 0, 0], ends[depth, 0, 1], ends[depth, 0, 2]
        after_x, after_y, after = ends[depth, 1, 0], ends[depth, 1, 1], ends[depth, 1, 2]
        middle = (begin + end) // 2
        run, rise = x[chain[middle + 1]] - x[chain[middle]], y[chain[middle + 1]] - y[chain[middle]]
        normal_x, normal_y = -side * rise, side * run
        alpha = abs(normal_x * after_y - normal_y * after_x)
        beta = abs(before_x * normal_y - before_y * normal_x)
        a = 0.5 if not alpha + beta > 0.0 else alpha / (alpha + beta)
        a = min(max(a, _MIN_WEIGHT), 1.0 - _MIN_WEIGHT)
        w_x, w_y = a * before_x + (1.0 - a) * after_x, a * before_y + (1.0 - a) * after_y
        best = middle  # any weight is valid with its true height: climb from the edge to the extreme point
        while best > 0 and _rise(x, y, chain, best, best - 1, w_x, w_y) > 0.0:
            best -= 1
        while best + 1 < length and _rise(x, y, chain, best, best + 1, w_x, w_y) > 0.0:
            best += 1
        height = w_x * x[chain[best]] + w_y * y[chain[best]]
        slots[used, 0], slots[used, 1], slots[used, 2], slots[used, 3] = slot, 1 - slot, -1, -1
        weights[used, 0] = a
        weights[used, 1] = max(a * before + (1.0 - a) * after - height, 0.0)
        if waiting[depth, 2] < 0:
            root = used
        else:
            slots[waiting[depth, 2], 2 + waiting[depth, 3]] = used
        split = used
        used += 1
        # Column 2 of a split: w replaces the first direction, for the edges after the middle one.
        for part in range(2):
            low, high = (middle + 1, end) if part == 0 else (begin, middle)
            if low >= high:
                continue
            waiting[depth, 0], waiting[depth, 1], waiting[depth, 2], waiting[depth, 3] = low, high, split, part
            ends[depth, 0, 0], ends[depth, 0, 1], ends[depth, 0, 2] = before_x, before_y, before
            ends[depth, 1, 0], ends[depth, 1, 1], ends[depth, 1, 2] = after_x, after_y, after
            ends[depth, part, 0], ends[depth, part, 1], ends[depth, part, 2] = w_x, w_y, height
            depth += 1
    return root, used


@internal
def _rise(x, y, chain, p, q, w_x, w_y):
    return w_x * (x[chain[q]] - x[chain[p]]) + w_y * (y[chain[q]] - y[chain[p]])
