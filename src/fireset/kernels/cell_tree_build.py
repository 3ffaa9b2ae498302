"""Build a cell tree: fit a frame to each cell, and halve its points along the axes of the frame.

The frame of a cell is made of the principal axes of its points. The points are halved twice, each time along the axis
with the largest extent relative to the standard deviation of the cell. So the tree of an affine image of the points is
the image of the tree: a thin set is cut across its width as often as along its length.
"""

from typing import NamedTuple

import numpy as np

from fireset.kernels.cell_tree import FIRST, LAST
from fireset.kernels.cell_tree_splits import best_splits, hull_splits, project, sort_by
from fireset.kernels.compiling import internal, strict_internal, vectorized
from fireset.kernels.partition_tree import LEAF

_FLAT = 1e-12  # standard deviations below this are rounding: all points have norm at most about 1
_SAMPLE = 256  # points that are used to choose an axis
_MAX_WEIGHED = 6  # largest dimension in which volumes are compared
_EVENNESS = 0.5  # weight of the relative extent in the score of an axis; the weight of the volumes is 1


class BuildArrays(NamedTuple):
    """Arrays for the cells of a tree (``fireset.kernels.cell_tree``); ``ranges`` has the range of rows of each cell."""

    frames: np.ndarray
    lowest: np.ndarray
    highest: np.ndarray
    children: np.ndarray
    orthants: np.ndarray
    split_slots: np.ndarray
    split_weights: np.ndarray
    ranges: np.ndarray  # (cells, 2) int64


def space_for_cells(n: int, d: int, rotated: bool, budget: int) -> BuildArrays:
    """Allocate arrays for the cells of n points; unused parts are not touched, and take no memory."""
    most = n // (LEAF // 4) + 8
    levels = max(n, 2).bit_length()
    splits = most * budget if d != 2 else (n + 8 * most) * levels
    return BuildArrays(
        frames=np.empty((most if rotated else 0, d, d)),
        lowest=np.empty((most, d)),
        highest=np.empty((most, d)),
        children=np.empty((most, 4), np.int32),
        orthants=np.empty((most, 1 << d if budget > 0 else 0), np.int32),
        split_slots=np.empty((splits if budget > 0 else 0, 4), np.int32),
        split_weights=np.empty((splits if budget > 0 else 0, 2)),
        ranges=np.empty((most, 2), np.int64),
    )


@vectorized
def build_cells(rows, order, space, budget):
    """Build cells over ``rows`` (n, d), of norm at most about √d, which are reordered together with ``order``.

    ``budget`` is the maximal number of splits of a cell. In two dimensions any positive budget splits every cell until
    it is the hull of its points. Returns the numbers of cells and of splits written to ``space``, and the largest error
    of a frame or hull, which must be added to every bound. Cost O(n (d² + budget · d) log n).
    """
    n, d = rows.shape
    frames, lowest, highest, children, orthants, slots, weights, ranges = space
    rotated = frames.shape[0] > 0
    scratch = np.empty((5, d, d))
    deviations, extremes = np.empty(d), np.empty((2, d), np.int64)
    ranges[0, 0], ranges[0, 1] = 0, n
    parents = np.zeros(ranges.shape[0], np.int64)
    frame = scratch[0]
    for j in range(d):
        for k in range(d):
            frame[j, k] = 1.0 if j == k else 0.0
    n_cells, n_splits, error = 1, 0, 0.0
    v = 0
    while v < n_cells:  # level by level: children come after all cells of the levels above
        begin, end = ranges[v, 0], ranges[v, 1]
        if rotated:
            error = max(error, _fit_frame(rows, begin, end, frames, parents[v], v, scratch))
        _fit_extent(rows, begin, end, frame, lowest, highest, v, extremes)
        for o in range(orthants.shape[1]):
            orthants[v, o] = -1
        if budget > 0 and d == 2:
            n_splits, lost = hull_splits(
                rows, begin, end, frame, lowest[v], highest[v], orthants[v], slots, weights, n_splits
            )
            error = max(error, lost)
        elif budget > 0 and d > 2:
            n_splits = best_splits(
                rows, begin, end, frame, lowest[v], highest[v], extremes, budget, orthants[v], slots, weights, n_splits
            )
        children[v, FIRST] = n_cells
        if end - begin > LEAF:
            _deviations(rows, begin, end, frame, deviations)
            middle = (begin + end + 1) // 2
            _halve(rows, order, begin, end, middle, frame, deviations)
            for half in range(2):
                low, high = (begin, middle) if half == 0 else (middle, end)
                cut = high
                if high - low > LEAF:
                    cut = (low + high + 1) // 2
                    _halve(rows, order, low, high, cut, frame, deviations)
                ranges[n_cells, 0], ranges[n_cells, 1], parents[n_cells] = low, cut, v
                n_cells += 1
                if cut < high:
                    ranges[n_cells, 0], ranges[n_cells, 1], parents[n_cells] = cut, high, v
                    n_cells += 1
        children[v, LAST] = n_cells
        v += 1
    return n_cells, n_splits, error


@internal
def _fit_frame(rows, begin, end, frames, parent, v, scratch):
    """Write the frame of a cell to ``frames[v]`` and ``scratch[0]``: the candidate with the smallest box.

    Candidates are the coordinate axes, the frame of the parent and the principal axes. Returns the error of the frame,
    its largest deviation from orthonormality.
    """
    d = rows.shape[1]
    frame, candidate, covariance, axes = scratch[0], scratch[1], scratch[2], scratch[3]
    _principal_axes(rows, begin, end, covariance, axes)
    smallest = np.inf
    for which in range(3):
        for j in range(d):
            for k in range(d):
                if which == 0:
                    candidate[j, k] = 1.0 if j == k else 0.0
                elif which == 1:
                    candidate[j, k] = frames[parent, j, k] if v > 0 else candidate[j, k]
                else:
                    candidate[j, k] = axes[j, k]
        size = 0.0
        for j in range(d):
            low, high = np.inf, -np.inf
            for i in range(begin, end):
                value = project(rows, i, candidate, j)
                low, high = min(low, value), max(high, value)
            size += np.log(max(high - low, _FLAT))
        if size < smallest - 1e-3:
            smallest = size
            for j in range(d):
                for k in range(d):
                    frame[j, k] = candidate[j, k]
    error = 0.0
    for j in range(d):
        for k in range(d):
            frames[v, j, k] = frame[j, k]
            product = -1.0 if j == k else 0.0
            for i in range(d):
                product += frame[j, i] * frame[k, i]
            error = max(error, abs(product))
    return error


@internal
def _principal_axes(rows, begin, end, covariance, axes):
    """Compute the eigenvectors of the covariance by Jacobi rotations: rows of ``axes``, orthonormal up to rounding."""
    d = rows.shape[1]
    mean = np.zeros(d)
    for i in range(begin, end):
        for j in range(d):
            mean[j] += rows[i, j] / (end - begin)
    for j in range(d):
        for k in range(d):
            covariance[j, k] = 0.0
            axes[j, k] = 1.0 if j == k else 0.0
    for i in range(begin, end):
        for j in range(d):
            for k in range(d):
                covariance[j, k] += (rows[i, j] - mean[j]) * (rows[i, k] - mean[k])
    for _ in range(12):
        off, total = 0.0, 0.0
        for j in range(d):
            total += abs(covariance[j, j])
            for k in range(j):
                off = max(off, abs(covariance[j, k]))
        if not off > 1e-15 * total:
            break
        for p in range(d):
            for q in range(p):
                if abs(covariance[p, q]) > 1e-290:
                    _rotate(covariance, axes, p, q)
    _orthonormalize(axes)


@internal
def _rotate(covariance, axes, p, q):
    """Apply the Jacobi rotation that makes entry (p, q) zero."""
    theta = (covariance[q, q] - covariance[p, p]) / (2.0 * covariance[p, q])
    t = (1.0 if theta >= 0.0 else -1.0) / (abs(theta) + np.sqrt(theta * theta + 1.0))
    if abs(theta) > 1e150:
        t = 0.5 / theta
    c = 1.0 / np.sqrt(t * t + 1.0)
    s = t * c
    for k in range(axes.shape[0]):
        x, y = covariance[k, p], covariance[k, q]
        covariance[k, p], covariance[k, q] = c * x - s * y, s * x + c * y
    for k in range(axes.shape[0]):
        x, y = covariance[p, k], covariance[q, k]
        covariance[p, k], covariance[q, k] = c * x - s * y, s * x + c * y
        x, y = axes[p, k], axes[q, k]
        axes[p, k], axes[q, k] = c * x - s * y, s * x + c * y


@strict_internal
def _orthonormalize(frame):
    """Orthonormalize the rows of ``frame`` by Gram–Schmidt, up to a few units of rounding."""
    d = frame.shape[0]
    for j in range(d):
        for k in range(j):
            product = 0.0
            for i in range(d):
                product += frame[j, i] * frame[k, i]
            for i in range(d):
                frame[j, i] -= product * frame[k, i]
        norm = 0.0
        for i in range(d):
            norm += frame[j, i] * frame[j, i]
        norm = np.sqrt(norm)
        for i in range(d):
            frame[j, i] /= norm


@internal
def _deviations(rows, begin, end, frame, deviations):
    """Compute the standard deviations along the axes of a frame."""
    for j in range(rows.shape[1]):
        mean = 0.0
        for i in range(begin, end):
            mean += project(rows, i, frame, j)
        mean /= end - begin
        total = 0.0
        for i in range(begin, end):
            total += (project(rows, i, frame, j) - mean) ** 2
        deviations[j] = np.sqrt(total / (end - begin))


@internal
def _fit_extent(rows, begin, end, frame, lowest, highest, v, extremes):
    """Compute the extent of cell v along the axes of a frame; its largest and smallest points go to ``extremes``."""
    for j in range(rows.shape[1]):
        low, high = np.inf, -np.inf
        for i in range(begin, end):
            value = project(rows, i, frame, j)
            if value > high:
                high, extremes[0, j] = value, i
            if value < low:
                low, extremes[1, j] = value, i
        lowest[v, j], highest[v, j] = low, high


@internal
def _halve(rows, order, begin, end, middle, frame, deviations):
    """Reorder rows so that those before ``middle`` are on one side of a hyperplane, the others on the other side."""
    d = rows.shape[1]
    widest = _choose_axis(rows, begin, end, frame, deviations)
    keys = np.empty(end - begin)
    for i in range(begin, end):
        keys[i - begin] = project(rows, i, frame, widest)
    low, high, target = 0, end - begin - 1, middle - begin
    while low < high:  # Hoare's FIND
        x, y, z = keys[low], keys[(low + high) // 2], keys[high]
        pivot = max(min(x, y), min(max(x, y), z))
        a, b = low, high
        while a <= b:
            while keys[a] < pivot:
                a += 1
            while keys[b] > pivot:
                b -= 1
            if a <= b:
                keys[a], keys[b] = keys[b], keys[a]
                for k in range(d):
                    rows[begin + a, k], rows[begin + b, k] = rows[begin + b, k], rows[begin + a, k]
                order[begin + a], order[begin + b] = order[begin + b], order[begin + a]
                a += 1
                b -= 1
        if target <= b:
            high = b
        elif target >= a:
            low = a
        else:
            return


@internal
def _choose_axis(rows, begin, end, frame, deviations):
    """Choose the axis to halve along from a sample of the points.

    It is the axis whose halves have boxes of the smallest volumes: halving a piece of a surface along its longest side
    also makes it flatter. Between axes of similar volumes the extent relative to the standard deviation of the cell
    decides, so that a solid set is halved in all directions in turn, however thin it is.
    """
    d = rows.shape[1]
    count = min(end - begin, _SAMPLE)
    values = np.empty((count, d))
    for p in range(count):
        i = begin + p * (end - begin) // count
        for j in range(d):
            values[p, j] = project(rows, i, frame, j)
    best, best_score = 0, np.inf
    keys, order = np.empty(count), np.empty(count, np.int64)
    for axis in range(d):
        low, high = np.inf, -np.inf
        for p in range(count):
            keys[p], order[p] = values[p, axis], p
            low, high = min(low, keys[p]), max(high, keys[p])
        relative = (high - low) / max(deviations[axis], _FLAT)
        score = -_EVENNESS * np.log(max(relative, 1e-3))
        if d <= _MAX_WEIGHED:
            sort_by(keys, order)
            for half in range(2):
                first, last = (0, (count + 1) // 2) if half == 0 else ((count + 1) // 2, count)
                for j in range(d):
                    low, high = np.inf, -np.inf
                    for p in range(first, last):
                        low, high = min(low, values[order[p], j]), max(high, values[order[p], j])
                    score += 0.5 * np.log(max(high - low, _FLAT))
        if score < best_score:
            best, best_score = axis, score
    return best
