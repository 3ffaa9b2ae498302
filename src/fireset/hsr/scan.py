"""Half-space reporting by looking at every point: blocked GEMM and a comparison.

Ground truth for every other kind, and in high dimension the right answer: BLAS tests points faster than any tree prunes
them. Query O(n·d); add and delete O(n·d) for the whole batch, move O(d) for each point.
"""

from itertools import pairwise

import numpy as np

from fireset.hsr.base import Answers, DynamicIndex, Queries

_BLOCK_QUERIES = 256  # at a time; with fewer, many points are read from memory too often for the work done on them
_FEWEST_BLOCKS = 4  # so that several cores have something to do; a constant, so that results do not depend on them
_FEWEST_QUERIES = 16
_TILE_PAIRS = 1 << 18  # inner products computed at a time: they are read again at once, and should still be in L2


class ScanIndex(DynamicIndex):
    """Live points in one array, ascending by id."""

    kind = "scan"
    _uses_blas = True

    def __init__(self, points: np.ndarray, copy: bool = True):
        super().__init__(points)
        self._borrows = not copy  # the caller's array, until the first change
        self._points = np.empty((0, self.n_features), self.dtype)
        self._ids = np.empty(0, np.int32)
        self.add(points)

    def __len__(self) -> int:
        return len(self._points)

    def _add(self, points: np.ndarray, ids: np.ndarray) -> None:
        if self._borrows and len(self._points) == 0 and len(points):
            self._points = points
        else:
            self._points = np.concatenate([self._points, points])
            self._borrows = False
        self._ids = np.concatenate([self._ids, ids.astype(np.int32)])

    def _delete(self, ids: np.ndarray) -> None:
        places = np.searchsorted(self._ids, ids)
        self._points, self._borrows = np.delete(self._points, places, axis=0), False
        self._ids = np.delete(self._ids, places)

    def _move(self, ids: np.ndarray, points: np.ndarray) -> None:
        if self._borrows:
            self._points, self._borrows = self._points.copy(), False
        self._points[np.searchsorted(self._ids, ids)] = points

    def _contains(self, ids: np.ndarray) -> np.ndarray:
        places = np.searchsorted(self._ids, ids)
        present = places < len(self._ids)
        present[present] = self._ids[places[present]] == ids[present]
        return present

    def _block_size(self, n_queries: int) -> int:
        return max(_FEWEST_QUERIES, min(_BLOCK_QUERIES, -(-n_queries // _FEWEST_BLOCKS)))

    def _answer(self, queries: Queries, with_values: bool, ordered: bool) -> Answers:  # noqa: ARG002 - always is
        from fireset.kernels.scanning import join

        most = max(_FEWEST_QUERIES, _TILE_PAIRS // len(queries.normals))
        parts = max(1, -(-len(self) // most))
        cuts = [len(self) * k // parts for k in range(parts + 1)]  # tiles of one size: a small last one is dear
        tiles = [self._answer_tile(queries, with_values, lo, hi) for lo, hi in pairwise(cuts)]
        counts = np.array([t[0] for t in tiles], np.int64).reshape(len(tiles), len(queries.normals))
        if len(tiles) == 1:
            _, ids, values = tiles[0]
        else:
            ids = np.empty(counts.sum(), np.int32)
            values = np.empty(len(ids) if with_values else 0, self.dtype)
            starts = np.cumsum(counts.T).reshape(counts.T.shape).T - counts  # by query, then by tile
            for (count, places, found), start in zip(tiles, starts, strict=True):
                join(start, count, places, found, ids, values)
        if len(self) < self._next_id:  # else nothing was ever deleted: ids are places
            ids = self._ids[ids]
        return Answers(counts.sum(axis=0), ids, values, 0, len(queries.normals) * len(self))

    def _answer_tile(self, queries: Queries, with_values: bool, lo: int, hi: int):
        """Of the points lo … hi−1: for each query the number above, their places and values, query after query."""
        from fireset.kernels.firing import settle
        from fireset.kernels.scanning import collect_above, count_above

        points = self._points[lo:hi]
        with np.errstate(over="ignore", invalid="ignore"):  # ``settle`` looks at what overflows
            H = queries.normals @ points.T
        if self.dtype == np.float64:
            settle(H, queries.normals, points, queries.thresholds, queries.bands)
        counts = np.empty(len(H), np.int64)
        count_above(H, queries.thresholds, counts)
        places = np.empty(counts.sum(), np.int32)
        values = np.empty(len(places) if with_values else 0, self.dtype)
        collect_above(H, queries.thresholds, lo, places, values)
        return counts, places, values
