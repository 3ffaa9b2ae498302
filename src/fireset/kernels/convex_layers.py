"""Queries on convex layers: find the extreme point of each layer by fractional cascading, and walk from there."""

import math
from typing import NamedTuple

import numpy as np

from fireset.kernels.compiling import strict, strict_internal
from fireset.kernels.firing import add_scaled_product, fma, unscaled

_SLACK = 16 * 2.0**-53  # 10 units are needed (``search``); the rest covers the rounding of the bound itself
_UNDERFLOW = 1e-300  # upper bound on the loss of an inner product to underflow
_OVERFLOW = 1e307  # inner products bounded by this do not overflow
_MAX_EXPONENT = 900  # of slopes; finite nonzero slopes of edges have exponents from −822 to 822


class LayerArrays(NamedTuple):
    """Convex layers, from the outside to the inside.

    Layer i has the positions ``starts[i]`` … ``starts[i + 1] − 1``, clockwise: the upper chain from the leftmost point
    (the lowest of those) to the rightmost (the highest of those), which is at position ``rightmost[i]``, and from there
    the lower chain back to the start. Duplicates are neighbours.

    The slopes of the edges decrease along both chains. Chain s (0 upper, 1 lower) of layer i has entries in ``slopes``
    from ``chain_starts[s, i]`` on: its own slopes together with every second entry of the same chain of layer i + 1
    (the second, the fourth, …), descending, and −∞ at the end. ``own_counts`` is, for each entry, the number of own
    slopes before it in its chain and layer. Apart from the −∞ at the ends, there are fewer than twice as many entries
    as edges.
    """

    points: np.ndarray  # (n, 2), by position
    ids: np.ndarray  # (n,), by position
    starts: np.ndarray  # (layers + 1,)
    rightmost: np.ndarray  # (layers,)
    slopes: np.ndarray
    own_counts: np.ndarray
    chain_starts: np.ndarray  # (2, layers + 1)
    max_abs: np.ndarray  # (2,), max |x| and max |y|
    slope_exponent: int  # slopes are those of points whose y was multiplied by 2**slope_exponent


@strict
def search(layers, normals, thresholds, first, found, counts, work):
    """Answer queries first, first + 1, … while ``found`` has space for n ids; returns the next query.

    ``layers`` is a ``LayerArrays``. Query k finds ``counts[k]`` ids, written in any order after those of the previous
    queries. Layers visited and steps of binary searches, and inner products, are added to ``work`` (2,). Cost
    O(log n + k) for k ids, if at most O(k) points are within rounding distance of the line: each of those is tested.

    Why no point is missed. Let M = |w_0| max|x| + |w_1| max|y| and u = 2⁻⁵³. Computed inner products have an error of
    at most 2uM. A layer is exactly convex, so along it the true values rise to a maximum and fall again. The walk
    starts where the rounded slopes fall to the rounded slope perpendicular to w. Between this point and the true
    maximum there are only edges (x, y) on which rounding (3u of one slope, u of the other) decides: |⟨w, (x, y)⟩| ≤ 3u
    |w_1 y| + u |w_0 x|. Their slopes, and so their y, have one sign, and these errors add up to at most 6uM: the true
    value at the start is at least the maximum − 6uM. A reported point has a true value above threshold − 2uM. So the
    start and all points between have a true value above threshold − 8uM and a computed value above threshold − 10uM. If
    the start does not, no point of this layer is reported, nor, since layers are nested, any point inside.
    """
    points, ids, starts, rightmost, slopes, own_counts, chain_starts, max_abs, slope_exponent = layers
    n = ids.shape[0]
    end = 0
    for k in range(first, normals.shape[0]):
        if end + n > found.shape[0]:
            return k
        begin = end
        threshold = thresholds[k]
        w0, w1 = np.float64(normals[k, 0]), np.float64(normals[k, 1])
        is_zero = w0 == 0.0 and w1 == 0.0
        bound = abs(w0) * max_abs[0] + abs(w1) * max_abs[1]
        if not is_zero and bound < _OVERFLOW:
            chain = 0 if w1 >= 0.0 else 1
            slope = _perpendicular_slope(w0, w1, slope_exponent)
            lowest = np.float64(threshold) - (_SLACK * bound + _UNDERFLOW)
            query = (chain, slope, w0, w1, lowest, threshold)
            end, visited, tested = _walk_layers(
                points, ids, starts, rightmost, slopes, own_counts, chain_starts, query, found, end
            )
            work[0] += visited
            work[1] += tested
        elif threshold < 0.0 or not is_zero:  # all values are 0, or some may be infinite: test all points
            for position in range(n):
                if _inner_product(w0, w1, points, position) > threshold:
                    found[end] = ids[position]
                    end += 1
            work[1] += n
        counts[k] = end - begin
    return normals.shape[0]


@strict_internal
def _walk_layers(points, ids, starts, rightmost, slopes, own_counts, chain_starts, query, found, end):
    """Write the ids that one query finds to ``found`` from ``end`` on.

    Returns the new end, the number of layers visited and steps of the binary search, and of inner products.
    """
    chain, slope, w0, w1, lowest, threshold = query
    visited = 0
    tested = 0
    own = 0
    rank = 0  # number of entries of the layer that are steeper than ``slope``
    for i in range(rightmost.shape[0]):
        chain_start, start, stop = chain_starts[chain, i], starts[i], starts[i + 1]
        visited += 1
        if i == 0:
            high = chain_starts[chain, 1] - 1 - chain_start
            while rank < high:
                visited += 1
                middle = (rank + high) // 2
                if slopes[chain_start + middle] > slope:
                    rank = middle + 1
                else:
                    high = middle
        else:
            # The previous layer shows that rank − own of the entries 1, 3, 5, … of this layer are steeper; only the
            # entry after the last of them is compared.
            rank = 2 * (rank - own)
            rank += slopes[chain_start + rank] > slope
        own = own_counts[chain_start + rank]
        extreme = own + (start if chain == 0 else rightmost[i])
        untested = stop - start
        for direction in (1, -1):
            position = extreme if direction == 1 else extreme - 1
            while untested > 0:
                if position >= stop:
                    position = start
                elif position < start:
                    position = stop - 1
                value = _inner_product(w0, w1, points, position)
                tested += 1
                if not value > lowest:
                    break
                if value > threshold:
                    found[end] = ids[position]
                    end += 1
                untested -= 1
                position += direction
            if untested == stop - start:
                return end, visited, tested
    return end, visited, tested


@strict_internal
def _perpendicular_slope(w0, w1, slope_exponent):
    """Return −w_0/w_1 · 2**slope_exponent, the slope perpendicular to w, clipped far beyond the slopes of all edges.

    It is clipped to a finite nonzero number: it is 0 only if w_0 = 0, and infinite only if w_1 = 0, when the extreme
    point is at an end of the chain.
    """
    if w1 == 0.0:
        return -np.inf if w0 > 0.0 else np.inf
    mantissa_0, exponent_0 = math.frexp(w0)
    mantissa_1, exponent_1 = math.frexp(w1)
    exponent = min(max(exponent_0 - exponent_1 + slope_exponent, -_MAX_EXPONENT), _MAX_EXPONENT)
    return -math.ldexp(mantissa_0 / mantissa_1, exponent)


@strict_internal
def _inner_product(w0, w1, points, i):
    """Return the bits of ``deciding_dot(w, points[i])`` without the cost of a view of the point."""
    x, y = np.float64(points[i, 0]), np.float64(points[i, 1])
    value = fma(w1, y, fma(w0, x, 0.0))  # pyright: ignore[reportCallIssue]
    if not abs(value) < np.inf:
        value = unscaled(add_scaled_product(w1, y, add_scaled_product(w0, x, 0.0)))
    return value


@strict
def values_of(points, normals, counts, ids, values):
    """Compute ⟨normal, point⟩ for the ``counts[k]`` ids found by each query k; ``points`` (n, 2) by id."""
    p = 0
    for k in range(counts.shape[0]):
        w0, w1 = np.float64(normals[k, 0]), np.float64(normals[k, 1])
        for _ in range(counts[k]):
            values[p] = _inner_product(w0, w1, points, ids[p])
            p += 1
