"""Half-space reporting in the plane by convex layers (Chazelle, Guibas and Lee 1985, "The power of geometric duality").

The convex hull of the points is the first layer, the hull of the other points the second, and so on. A line that misses
a layer misses all layers inside it. A query finds the extreme point of the first layer in the direction of the normal,
walks from it in both directions while points are above, continues with the next layer, and stops at the first layer
without a point above: all layers visited but the last report a point. The extreme point takes a binary search on the
first layer, O(log n), and one comparison on each other layer, by fractional cascading.

Layers are exactly convex and nested for any points (``fireset.kernels.convex_layers_build``). The walk continues a
little below the threshold, by the rounding error of an inner product (``fireset.kernels.convex_layers``), and tests all
points within that distance of the line.
"""

import numpy as np

from fireset._util.errors import InputError
from fireset.hsr.base import Answers, HalfSpaceIndex, Queries
from fireset.kernels.convex_layers import LayerArrays, search, values_of
from fireset.kernels.convex_layers_build import cascade, peel
from fireset.kernels.sorting import sort_answers

_BUFFER_IDS = 1 << 20  # space for the ids of a block of queries, in addition to those of the largest answer
_MAX_EXPONENT = 320  # of scaled coordinates: products of three differences do not overflow
_MIN_EXPONENT = -500  # of the grid of scaled coordinates: products of two differences lose nothing to underflow


class ConvexLayersIndex(HalfSpaceIndex):
    """Convex layers of points in the plane, static.

    Proved for any points, d = 2: a query that finds k points takes O(log n + k); building takes O(n log² n), memory is
    O(n). Points within rounding distance of the threshold count as found. Measured: about 28 bytes and two copies of
    the coordinates for each point.
    """

    kind = "convex-layers"

    def __init__(self, points: np.ndarray):
        super().__init__(points)
        if not self.suits(self.n_features):
            raise InputError(
                f"convex-layers is for points in the plane, got d = {self.n_features}; "
                "use 'hull-hierarchy' or 'partition-tree'"
            )
        self._points = self._checked_rows(points, "points").copy()
        self._update_largest_norm(self._points)
        self._next_id = len(self._points)
        self._build()

    @classmethod
    def suits(cls, n_features: int) -> bool:
        return n_features == 2

    def __len__(self) -> int:
        return len(self._points)

    def _build(self) -> None:
        n = len(self._points)
        (x, x_exponent), (y, y_exponent) = _scaled(self._points[:, 0]), _scaled(self._points[:, 1])
        ids = np.lexsort((y, x)).astype(np.int32)
        scaled = np.column_stack([x, y])[ids]
        # Duplicates are peeled as one point, and become neighbours afterwards.
        first = np.flatnonzero(np.concatenate([np.ones(min(n, 1), bool), (scaled[1:] != scaled[:-1]).any(axis=1)]))
        copies = np.diff(first, append=n)
        distinct = scaled[first]
        order, starts, rightmost = (np.empty(len(distinct), np.int32) for _ in range(3))
        leaves = max(2, 1 << (len(distinct) - 1).bit_length())
        nodes, live = np.full((leaves, 6), leaves, np.int32), np.zeros(2 * leaves + 1, np.int32)
        layers = peel(distinct, nodes, live, order, starts, rightmost)
        ends = np.cumsum(copies[order])
        positions = np.arange(n) + np.repeat(first[order] - (ends - copies[order]), copies[order])
        ids, scaled = ids[positions], scaled[positions]
        starts = np.append((ends - copies[order])[starts[:layers]], n)
        rightmost = ends[rightmost[:layers]] - 1
        (slopes, own_counts, chain_starts), (lower_slopes, lower_own_counts, lower_chain_starts) = (
            cascade(scaled, starts, rightmost, chain) for chain in (0, 1)
        )
        self._layers = LayerArrays(
            points=self._points[ids],
            ids=ids,
            starts=starts,
            rightmost=rightmost,
            slopes=np.concatenate([slopes, lower_slopes]),
            own_counts=np.concatenate([own_counts, lower_own_counts]),
            chain_starts=np.stack([chain_starts, len(slopes) + lower_chain_starts]),
            max_abs=np.abs(self._points).max(axis=0, initial=0.0).astype(np.float64),
            slope_exponent=y_exponent - x_exponent,
        )

    def _live_rows(self) -> tuple[np.ndarray, np.ndarray]:
        return np.arange(len(self._points), dtype=np.int32), self._points

    def _answer(self, queries: Queries, with_values: bool, ordered: bool) -> Answers:
        counts = np.zeros(len(queries.normals), np.int64)
        work = np.zeros(2, np.int64)
        parts, done = [], 0
        while done < len(counts):
            found = np.empty(len(self) + _BUFFER_IDS, np.int32)
            before = done
            done = search(self._layers, queries.normals, queries.thresholds, done, found, counts, work)
            parts.append(found[: counts[before:done].sum()])
        ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if ordered:
            sort_answers(ids, counts, self._next_id)
        values = np.empty(len(ids) if with_values else 0, self.dtype)
        if with_values:
            values_of(self._points, queries.normals, counts, ids, values)
        return Answers(counts, ids, values, int(work[0]), int(work[1]))


def _scaled(coordinates: np.ndarray) -> tuple[np.ndarray, int]:
    """Scale coordinates as ``fireset.kernels.convex_layers_build`` requires; returns the exponent of the factor, too.

    Multiples of less than 2⁻⁸¹⁹ of the largest coordinate are rounded away. That is far less than the rounding error of
    an inner product, which queries allow for. Points that become equal only become neighbours in the layers.
    """
    coordinates = coordinates.astype(np.float64)
    exponent = _MAX_EXPONENT - int(np.frexp(np.abs(coordinates).max(initial=0.0))[1])
    scaled = np.ldexp(coordinates, exponent)
    grid = 1.5 * 2.0 ** (_MIN_EXPONENT + 52)  # adding and subtracting it leaves multiples of 2⁻⁵⁰⁰
    return np.where(np.abs(scaled) < grid / 1.5, scaled + grid - grid, scaled), exponent
