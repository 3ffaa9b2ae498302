"""Half-space reporting by testing every point: blocked GEMM and a comparison.

The reference for all other kinds, and the fastest in high dimension: BLAS tests points faster than a tree prunes them.
"""

from itertools import pairwise
from math import hypot, sqrt
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.rounding import row_norms
from fireset.hsr.base import FEW_COORDINATES, WORK_LOCK, Answers, Queries, native_rows
from fireset.hsr.dynamic import DynamicIndex
from fireset.kernels.firing import refine_near_threshold
from fireset.kernels.scanning import collect_above, count_above, ids_above, join_tiles, positions_above
from fireset.kernels.top_k import Heaps, push_tile
from fireset.sparse_rows import Rows, SparseRows, kernel_rows

_MAX_BLOCK_QUERIES = 256  # smaller blocks read the points from memory too often
_MIN_BLOCKS = 4  # to use several cores; a constant, so that results do not depend on the number of cores
_MIN_BLOCK_QUERIES = 16
_TILE_COORDINATES = 1 << 22  # coordinates read at a time
_NO_VALUES = np.empty(0)
# With smaller norms and thresholds nothing overflows in float32.
_MAX_NORM, _SAFE_THRESHOLD = 1e15, 1e37
_TILE_PAIRS = 1 << 18  # inner products computed at a time, so that they stay in the L2 cache until they are compared
SPARSE_TILE_PAIRS = 1 << 22  # for sparse points: each tile copies all coordinates of all queries


class ScanIndex(DynamicIndex):
    """All points in one array, ascending by id.

    Proved for any points and any d: a query computes n inner products, O(n·d). Adding and deleting take O(n·d) for a
    whole batch, moving O(d) for each point. Measured: the fastest kind from about d = 8 on.

    A float16 array is not converted, and an array that is mapped from a file (``np.memmap``, ``np.load(...,
    mmap_mode="r")``) is not loaded: blocks of up to 2²² coordinates (16 MB) for each core are converted to float32, or
    copied, when they are read. Answers are those of a float32 copy of the points. ``add`` and ``move`` convert all
    points to float32, and every change loads them into memory.

    Parameters
    ----------
    points : array (n, d), or SparseRows
    copy : bool
        Whether to copy the points. Sparse points are not copied and need ``copy=False``.
    largest_norm : float, optional
        The largest norm of a point, if the caller has checked that all points are finite. Required for sparse points.
    """

    kind = "scan"
    _uses_blas = True

    def __init__(self, points: Rows, copy: bool = True, largest_norm: float | None = None):
        super().__init__(points)
        self._ids = np.arange(len(points), dtype=np.int32)
        self._next_id = len(points)
        if isinstance(points, SparseRows):
            assert not copy
            assert largest_norm is not None
            self._points: Any = points
            self._is_borrowed, self._largest_norm, self._is_plain = True, largest_norm, False
            return
        if points.dtype == np.float16:
            self.dtype = np.dtype(np.float32)
        is_mapped, points = isinstance(points, np.memmap), points.view(np.ndarray)
        # A borrowed array is the caller's, until the first change. An array that kernels cannot read is copied: a
        # mapped file block by block in every query, an array in memory once.
        is_borrowed = not copy and (is_mapped or points.flags.carray)
        self._set_points(points if is_borrowed else points.copy(order="C"), is_borrowed)
        self._largest_norm = self._checked_norm() if largest_norm is None else largest_norm

    def _set_points(self, points: np.ndarray, is_borrowed: bool = False) -> None:
        self._points, self._is_borrowed = points, is_borrowed
        self._is_plain = points.dtype == self.dtype and points.flags.carray  # once True, it remains True

    def _checked_norm(self) -> float:
        """Return the largest norm of a point; raise an InputError if a point is not finite. Reads block by block."""
        largest = 0.0
        for lo in range(0, len(self), self._rows_at_a_time):
            rows = self._rows(lo, lo + self._rows_at_a_time)
            if not np.isfinite(rows).all():
                row = lo + np.argwhere(~np.isfinite(rows))[0][0]
                raise InputError(f"points must be finite; row {row} is not")
            largest = max(largest, float(row_norms(rows).max()))
        return largest

    @property
    def _rows_at_a_time(self) -> int:
        return max(1, _TILE_COORDINATES // self.n_features)

    def _rows(self, lo: int, hi: int) -> Any:
        """Return points lo … hi−1 for kernels: a copy if they are float16 or in a file."""
        rows = self._points[lo:hi]
        if isinstance(rows, SparseRows):
            return rows
        return rows if rows.dtype == self.dtype and rows.flags.carray else native_rows(rows, self.dtype)

    def _live_rows(self) -> tuple[np.ndarray, np.ndarray]:
        return self._ids, self._points

    def __len__(self) -> int:
        return len(self._points)

    def _add(self, points: np.ndarray, ids: np.ndarray) -> None:
        self._set_points(np.concatenate([self._points, points], dtype=self.dtype))
        self._ids = np.concatenate([self._ids, ids.astype(np.int32)])

    def _delete(self, ids: np.ndarray) -> None:
        positions = np.searchsorted(self._ids, ids)
        self._set_points(np.delete(self._points, positions, axis=0))
        self._ids = np.delete(self._ids, positions)

    def _move(self, ids: np.ndarray, points: np.ndarray) -> None:
        if self._is_borrowed or self._points.dtype != self.dtype:
            self._set_points(self._points.astype(self.dtype))
        # If no point was ever deleted, ids are positions.
        self._points[ids if len(self) == self._next_id else np.searchsorted(self._ids, ids)] = points

    def _renumber(self, ids: np.ndarray, next_id: int) -> None:  # noqa: ARG002
        self._ids = ids

    def _contains(self, numbers: np.ndarray) -> np.ndarray:
        positions = np.searchsorted(self._ids, numbers)
        present = positions < len(self._ids)
        present[present] = self._ids[positions[present]] == numbers[present]
        return present

    def _block_size(self, n_queries: int) -> int:
        return max(_MIN_BLOCK_QUERIES, min(_MAX_BLOCK_QUERIES, -(-n_queries // _MIN_BLOCKS)))

    def query(self, normal, threshold: float) -> np.ndarray:
        """Return the sorted int64 ids of all points with ⟨normal, point⟩ > threshold.

        A query whose arguments need no conversion, and whose inner products cannot overflow, takes about as long as
        ``np.flatnonzero(points @ normal > threshold)``, or less. It does not wait for a lock, but is repeated if the
        index was changed meanwhile.
        """
        writing = self._lock.writing
        count = writing.count  # read before anything that a change may replace
        if (
            type(normal) is np.ndarray
            and isinstance(threshold, float)
            and -_SAFE_THRESHOLD < threshold < _SAFE_THRESHOLD
            and normal.shape == ((d := self.n_features),)
            and normal.dtype == self.dtype
            and normal.flags.carray
            # Neither function warns of an overflow. False for NaN.
            and 1e-15 < (hypot(*normal.tolist()) if d <= FEW_COORDINATES else sqrt(np.vdot(normal, normal))) < 1e15
            and (norm := self._largest_norm) < _MAX_NORM
            and self._is_plain  # read before the points, which another thread may make plain
        ):
            points, work = self._points, self.work
            if count & 1 or self._id_map is not None or len(points) < self._next_id:
                return self._query_by_id(normal, threshold)
            if points.size <= _TILE_COORDINATES:
                ids = ids_above(points.dot(normal), normal, points, threshold, norm, 0)
            else:
                ids = self._positions_above(points, normal, threshold, norm)
            with WORK_LOCK:  # not by a method: a call takes as long as ten of these lines
                if writing.count == count:
                    work.queries += 1
                    work.points_tested += len(points)
                    work.points_reported += len(ids)
                    return ids
        return super().query(normal, threshold)

    def _query_by_id(self, normal: np.ndarray, threshold: float) -> np.ndarray:
        """Answer ``query`` under the lock, for ids that may differ from positions."""
        with self._lock.reading:
            points, norm, ids = self._points, self._largest_norm, None
            if norm < _MAX_NORM:
                ids = self._ids_of(self._ids[self._positions_above(points, normal, threshold, norm)])
        if ids is None:  # another thread has added large points
            return super().query(normal, threshold)
        self.work.add(queries=1, points_tested=len(points), points_reported=len(ids))
        return np.sort(ids) if self._id_map else ids

    def _positions_above(self, points: np.ndarray, normal: np.ndarray, threshold: float, norm: float) -> np.ndarray:
        """Return the positions of the points above; all in one precision, in which nothing overflows."""
        rows = self._rows_at_a_time
        tiles = [(points[lo : lo + rows], lo) for lo in range(0, len(points), rows)]
        parts = [ids_above(tile.dot(normal), normal, tile, threshold, norm, lo) for tile, lo in tiles]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _answer(self, queries: Queries, with_values: bool, ordered: bool) -> Answers:  # noqa: ARG002 - always ordered
        if len(queries.normals) == 1 and not with_values and not isinstance(self._points, SparseRows):
            return self._answer_one(queries)
        tiles = [self._answer_tile(queries, with_values, *tile) for tile in self._tiles(len(queries.normals))]
        counts = np.array([t[0] for t in tiles], np.int64).reshape(len(tiles), len(queries.normals))
        if len(tiles) == 1:
            _, ids, values = tiles[0]
        else:
            ids = np.empty(counts.sum(), np.int32)
            values = np.empty(len(ids) if with_values else 0, self.dtype)
            starts = np.cumsum(counts.T).reshape(counts.T.shape).T - counts  # by query, then by tile
            for (count, positions, found), start in zip(tiles, starts, strict=True):
                join_tiles(start, count, positions, found, ids, values)
        if len(self) < self._next_id:  # otherwise no point was ever deleted, and ids are positions
            ids = self._ids[ids]
        return Answers(counts.sum(axis=0), ids, values, 0, len(queries.normals) * len(self))

    def _answer_one(self, queries: Queries) -> Answers:
        """Answer one query: ``points @ normal`` and one kernel."""
        n, rows = len(self._points), self._rows_at_a_time
        parts = []
        for lo in range(0, n or 1, rows):
            points = self._rows(lo, lo + rows)
            with np.errstate(over="ignore", invalid="ignore"):  # overflowed values are computed again
                H = (points @ queries.normals[0])[None]
            parts.append(positions_above(H, queries.normals, points, queries.thresholds, queries.bands, lo))
        ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if n < self._next_id:
            ids = self._ids[ids]
        return Answers(np.array([len(ids)]), ids, _NO_VALUES, 0, n)

    def _fill_heaps(self, queries: Queries, heaps: Heaps) -> tuple[int, int]:
        for lo, hi in self._tiles(len(queries.normals)):
            points = self._rows(lo, hi)
            with np.errstate(over="ignore", invalid="ignore"):
                H = queries.normals @ points.T
            push_tile(H, queries.normals, points, queries.slacks, lo, heaps)
        if len(self) < self._next_id:
            heaps.ids[:] = self._ids[heaps.ids]  # from positions to ids; both ascend, so that heaps stay heaps
        return 0, len(queries.normals) * len(self)

    def _tiles(self, n_queries: int) -> list[tuple[int, int]]:
        """Return ranges of points whose inner products with ``n_queries`` normals are computed at a time."""
        tile_points = min(_TILE_PAIRS // n_queries, self._rows_at_a_time)
        if isinstance(self._points, SparseRows):
            tile_points = SPARSE_TILE_PAIRS // n_queries
        tile_points = max(_MIN_BLOCK_QUERIES, tile_points)
        n_tiles = max(1, -(-len(self) // tile_points))
        cuts = [
            len(self) * k // n_tiles for k in range(n_tiles + 1)
        ]  # equal tiles, because a small last one costs as much
        return list(pairwise(cuts))

    def _answer_tile(self, queries: Queries, with_values: bool, lo: int, hi: int):
        """Return counts by query, positions and values of the points above among lo … hi−1, query after query."""
        points = self._rows(lo, hi)
        with np.errstate(over="ignore", invalid="ignore"):  # overflowed values are computed again below
            H = queries.normals @ points.T
        if (queries.bands >= 0).any():
            refine_near_threshold(H, queries.normals, kernel_rows(points), queries.thresholds, queries.bands)
        counts = np.empty(len(H), np.int64)
        count_above(H, queries.thresholds, counts)
        positions = np.empty(counts.sum(), np.int32)
        values = np.empty(len(positions) if with_values else 0, self.dtype)
        collect_above(H, queries.thresholds, lo, positions, values)
        return counts, positions, values
