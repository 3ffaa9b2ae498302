"""Half-space reporting by testing every point: blocked GEMM and a comparison.

Ground truth for every other kind, and in high dimension the fastest: BLAS tests points faster than any tree prunes
them. Query O(n·d); add and delete O(n·d) for the whole batch, move O(d) for each point.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from fireset.hsr.base import Answers, DynamicIndex, Queries
from fireset.sparse_rows import Rows, SparseRows, kernel_rows

_MAX_BLOCK_QUERIES = 256  # with fewer, many points are read from memory too often for the work done on them
_MIN_BLOCKS = 4  # so that several cores have work; a constant, so that results do not depend on their number
_MIN_BLOCK_QUERIES = 16
_TILE_PAIRS = 1 << 18  # inner products computed at a time: they are read again at once, and should still be in L2
_SPARSE_TILE_PAIRS = 1 << 22  # of sparse points: each tile lays all coordinates of all queries out anew


class ScanIndex(DynamicIndex):
    """Live points in one array, ascending by id."""

    kind = "scan"
    _uses_blas = True

    def __init__(self, points: Rows, copy: bool = True, largest_norm: float | None = None):
        """``largest_norm``, of a caller who has looked: all points are finite, and none is longer than that.

        Sparse points need it, and ``copy=False``; they stay as they are.
        """
        super().__init__(points)
        self._is_borrowed = not copy  # ``_points`` is the caller's array, until the first change
        if largest_norm is not None:
            self._points: Any = points.copy() if copy and isinstance(points, np.ndarray) else points
            self._ids = np.arange(len(points), dtype=np.int32)
            self._next_id, self._largest_norm = len(points), largest_norm
            return
        self._points = np.empty((0, self.n_features), self.dtype)
        self._ids = np.empty(0, np.int32)
        self.add(points)

    def __len__(self) -> int:
        return len(self._points)

    def _add(self, points: np.ndarray, ids: np.ndarray) -> None:
        if self._is_borrowed and len(self._points) == 0 and len(points):
            self._points = points
        else:
            self._points = np.concatenate([self._points, points])
            self._is_borrowed = False
        self._ids = np.concatenate([self._ids, ids.astype(np.int32)])

    def _delete(self, ids: np.ndarray) -> None:
        positions = np.searchsorted(self._ids, ids)
        self._points, self._is_borrowed = np.delete(self._points, positions, axis=0), False
        self._ids = np.delete(self._ids, positions)

    def _move(self, ids: np.ndarray, points: np.ndarray) -> None:
        if self._is_borrowed:
            self._points, self._is_borrowed = self._points.copy(), False
        self._points[np.searchsorted(self._ids, ids)] = points

    def _contains(self, ids: np.ndarray) -> np.ndarray:
        positions = np.searchsorted(self._ids, ids)
        present = positions < len(self._ids)
        present[present] = self._ids[positions[present]] == ids[present]
        return present

    def _block_size(self, n_queries: int) -> int:
        return max(_MIN_BLOCK_QUERIES, min(_MAX_BLOCK_QUERIES, -(-n_queries // _MIN_BLOCKS)))

    def _answer(self, queries: Queries, with_values: bool, ordered: bool) -> Answers:  # noqa: ARG002 - always is
        from fireset.kernels.scanning import join_tiles

        pairs = _SPARSE_TILE_PAIRS if isinstance(self._points, SparseRows) else _TILE_PAIRS
        tile_points = max(_MIN_BLOCK_QUERIES, pairs // len(queries.normals))
        n_tiles = max(1, -(-len(self) // tile_points))
        cuts = [len(self) * k // n_tiles for k in range(n_tiles + 1)]  # equal tiles: a small last one costs as much
        tiles = [self._answer_tile(queries, with_values, lo, hi) for lo, hi in pairwise(cuts)]
        counts = np.array([t[0] for t in tiles], np.int64).reshape(len(tiles), len(queries.normals))
        if len(tiles) == 1:
            _, ids, values = tiles[0]
        else:
            ids = np.empty(counts.sum(), np.int32)
            values = np.empty(len(ids) if with_values else 0, self.dtype)
            starts = np.cumsum(counts.T).reshape(counts.T.shape).T - counts  # by query, then by tile
            for (count, positions, found), start in zip(tiles, starts, strict=True):
                join_tiles(start, count, positions, found, ids, values)
        if len(self) < self._next_id:  # else nothing was ever deleted, and ids are positions
            ids = self._ids[ids]
        return Answers(counts.sum(axis=0), ids, values, 0, len(queries.normals) * len(self))

    def _answer_tile(self, queries: Queries, with_values: bool, lo: int, hi: int):
        """Of the points lo … hi−1: for each query the number above, their positions and values, query after query."""
        from fireset.kernels.firing import refine_near_threshold
        from fireset.kernels.scanning import collect_above, count_above

        points = self._points[lo:hi]
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is computed again below
            H = queries.normals @ points.T
        if self.dtype == np.float64:
            refine_near_threshold(H, queries.normals, kernel_rows(points), queries.thresholds, queries.bands)
        counts = np.empty(len(H), np.int64)
        count_above(H, queries.thresholds, counts)
        positions = np.empty(counts.sum(), np.int32)
        values = np.empty(len(positions) if with_values else 0, self.dtype)
        collect_above(H, queries.thresholds, lo, positions, values)
        return counts, positions, values
