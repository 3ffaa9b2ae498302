"""Searching convex layers: the extreme point of each by fractional cascading, and the walk from there."""

import math
from typing import NamedTuple

import numpy as np

from fireset.kernels.compiling import strict
from fireset.kernels.firing import fma

_SLACK = 16 * 2.0**-53  # 10 units are needed, see ``search``; the others pay for the rounding of the bound itself
_UNDERFLOW = 1e-300  # more than an inner product loses to it
_OVERFLOW = 1e307  # no inner product that is bounded by this overflows
_STEEPEST = 900  # exponent; slopes that are neither 0 nor ∞ have exponents from −822 to 822


class Layers(NamedTuple):
    """Convex layers, from outside in.

    Layer i has the places ``starts[i]`` … ``starts[i + 1] − 1``, clockwise: the upper chain from the leftmost point
    (the lowest of them) to the rightmost (the highest of them), which is at place ``turns[i]``, and from there the
    lower chain back to the start. Duplicates are neighbours.

    The slopes of the edges decrease along both chains. Chain s (0 upper, 1 lower) of layer i has them in ``keys`` from
    ``firsts[s, i]`` on: its own together with every second entry of the same chain of layer i + 1 (the second, the
    fourth, …), descending, and −∞ at the end. ``owns`` says for each entry how many of the entries before it, in this
    chain and layer, are the layer's own. A half of a half of a half …: all entries together are fewer than twice the
    edges, but for those at the ends.
    """

    points: np.ndarray  # (n, 2), by place
    ids: np.ndarray  # (n,), by place
    starts: np.ndarray  # (layers + 1,)
    turns: np.ndarray  # (layers,)
    keys: np.ndarray
    owns: np.ndarray
    firsts: np.ndarray  # (2, layers + 1)
    largest: np.ndarray  # (2,), max |x| and max |y|
    stretch: int  # slopes are those of points whose y was multiplied by 2**stretch


@strict
def search(
    points,
    ids,
    starts,
    turns,
    keys,
    owns,
    firsts,
    largest,
    stretch,
    normals,
    thresholds,
    done,
    found,
    counts,
    work,
):
    """Answer queries from number ``done`` on while ``found`` has room for n ids; returns the number answered by then.

    The first nine arguments are ``Layers``, one by one: a tuple of arrays would count references at every use. Query k
    finds ``counts[k]`` ids, written after those of the queries before it, in no order. ``work`` (2) grows by (layers
    looked at and steps of binary searches, inner products). O(log n + k) for k ids, if no more than O(k) points are
    within rounding distance of the line: each of those is tested.

    Why nothing is missed. Let M = |w_0| max|x| + |w_1| max|y| and u = 2⁻⁵³. Computed inner products err by at most 2uM.
    Along a layer, being exactly convex, the true ones rise to a maximum and fall again. The walk starts where slopes,
    rounded, fall to the slope across w, rounded. Between this point and the true maximum are only edges (x, y) on which
    rounding (3u of one slope, u of the other) decides: |⟨w, (x, y)⟩| ≤ 3u |w_1 y| + u |w_0 x|. Their y have one sign,
    as these slopes have, so that all this adds up to at most 6uM: the start has a true value of at least the maximum −
    6uM. A point that counts has a true value above threshold − 2uM; so the start, and all points between, have one
    above threshold − 8uM, and a computed one above threshold − 10uM. If not even the start has, no point of this layer
    counts, nor, since layers are nested, any inside.
    """
    n = ids.shape[0]
    filled = 0
    for k in range(done, normals.shape[0]):
        if filled + n > found.shape[0]:
            return k
        begin = filled
        threshold = thresholds[k]
        w0, w1 = np.float64(normals[k, 0]), np.float64(normals[k, 1])
        is_zero = w0 == 0.0 and w1 == 0.0
        bound = abs(w0) * largest[0] + abs(w1) * largest[1]
        if not is_zero and bound < _OVERFLOW:
            chain = 0 if w1 >= 0.0 else 1
            across = _slope_across(w0, w1, stretch)
            lowest = np.float64(threshold) - (_SLACK * bound + _UNDERFLOW)
            given = (chain, across, w0, w1, lowest, threshold)
            filled, looked, tested = _walk(points, ids, starts, turns, keys, owns, firsts, given, found, filled)
            work[0] += looked
            work[1] += tested
        elif threshold < 0.0 or not is_zero:  # all values are 0, or some may be infinite: all points are asked
            for place in range(n):
                if thresholds.dtype.type(_inner_product(w0, w1, points, place)) > threshold:
                    found[filled] = ids[place]
                    filled += 1
            work[1] += n
        counts[k] = filled - begin
    return normals.shape[0]


@strict
def _walk(points, ids, starts, turns, keys, owns, firsts, given, found, filled):
    """Write the ids that one query finds from ``found[filled]`` on.

    Returns where they end, the layers looked at and steps of the binary search, and the inner products.
    """
    chain, across, w0, w1, lowest, threshold = given
    looked = 0
    tested = 0
    own = 0
    rank = 0  # the number of entries of a layer that are steeper
    for i in range(turns.shape[0]):
        first, start, end = firsts[chain, i], starts[i], starts[i + 1]
        looked += 1
        if i == 0:
            high = firsts[chain, 1] - 1 - first
            while rank < high:
                looked += 1
                middle = (rank + high) // 2
                if keys[first + middle] > across:
                    rank = middle + 1
                else:
                    high = middle
        else:
            # Of the entries 1, 3, 5, … of this layer rank − own are steeper, as the layer before has said; the entry
            # after the last of them is in question.
            rank = 2 * (rank - own)
            rank += keys[first + rank] > across
        own = owns[first + rank]
        extreme = own + (start if chain == 0 else turns[i])
        rest = end - start
        for direction in (1, -1):
            place = extreme if direction == 1 else extreme - 1
            while rest > 0:
                if place >= end:
                    place = start
                elif place < start:
                    place = end - 1
                value = _inner_product(w0, w1, points, place)
                tested += 1
                if not value > lowest:
                    break
                # In float32 it is the rounded value, the one that is reported, that decides.
                if points.dtype.type(value) > threshold:
                    found[filled] = ids[place]
                    filled += 1
                rest -= 1
                place += direction
            if rest == end - start:
                return filled, looked, tested
    return filled, looked, tested


@strict
def _slope_across(w0, w1, stretch):
    """−w_0/w_1 · 2**stretch, the slope at right angles to w; far outside of all other slopes only its side is right.

    So it is 0 only if w_0 = 0, and infinite only if w_1 = 0, when the extreme point is at an end of the chain.
    """
    if w1 == 0.0:
        return -np.inf if w0 > 0.0 else np.inf
    mantissa_0, exponent_0 = math.frexp(w0)
    mantissa_1, exponent_1 = math.frexp(w1)
    exponent = min(max(exponent_0 - exponent_1 + stretch, -_STEEPEST), _STEEPEST)
    return -math.ldexp(mantissa_0 / mantissa_1, exponent)


@strict
def _inner_product(w0, w1, points, place):
    """The bits of ``deciding_dot``, without the views of the points it would have to be handed."""
    x, y = np.float64(points[place, 0]), np.float64(points[place, 1])
    return fma(w1, y, fma(w0, x, 0.0))  # pyright: ignore[reportCallIssue]


@strict
def values_of(points, normals, counts, ids, values):
    """⟨normal, point⟩ for the ids found by each query, ``counts[k]`` for query k; ``points`` (n, 2) by id."""
    p = 0
    for k in range(counts.shape[0]):
        w0, w1 = np.float64(normals[k, 0]), np.float64(normals[k, 1])
        for _ in range(counts[k]):
            values[p] = _inner_product(w0, w1, points, ids[p])
            p += 1
