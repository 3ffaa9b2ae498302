"""Half-space reporting by looking at every point: blocked GEMM and a comparison.

Ground truth for every other kind, and in high dimension the right answer: BLAS tests points faster than any tree prunes
them. Query O(n·d); add and delete O(n·d) for the whole batch.
"""

import numpy as np

from fireset.errors import InputError
from fireset.hsr.base import HalfSpaceIndex, IndexWork, Report
from fireset.parallel import run
from fireset.rounding import deciding_band, row_norms

_BLOCK_PAIRS = 1 << 20
_FEWEST_BLOCKS = 4  # so that several cores have something to do; a constant, so that results do not depend on them
_FEWEST_QUERIES = 16
_ENOUGH_QUERIES = 128  # with fewer at a time, many points are read from memory too often for the work done on them
_LARGEST_BLOCK = 1 << 23  # pairs: 32 MB in float32


class ScanIndex(HalfSpaceIndex):
    """Live points in one array, ascending by id."""

    kind = "scan"

    def __init__(self, points: np.ndarray):
        self.dtype = points.dtype
        self.n_features = points.shape[1]
        self.work = IndexWork()
        self._points = self.check_points(points).copy()  # what the caller does with his array is not our concern
        self._ids = np.arange(len(points))
        self._next_id = len(points)
        self._largest_norm = _largest(self._points)

    def __len__(self) -> int:
        return len(self._points)

    def add(self, points) -> np.ndarray:
        points = self.check_points(points)
        ids = np.arange(self._next_id, self._next_id + len(points))
        self._points = np.concatenate([self._points, points])
        self._ids = np.concatenate([self._ids, ids])
        self._next_id += len(points)
        self._largest_norm = max(self._largest_norm, _largest(points))
        return ids

    def delete(self, ids) -> None:
        ids = np.asarray(ids)
        if ids.size and ids.dtype.kind not in "iu":
            raise InputError(f"ids must be whole numbers, got {ids.dtype}")
        ids = np.unique(ids.astype(np.int64))
        places = np.searchsorted(self._ids, ids)
        present = places < len(self._ids)
        present[present] = self._ids[places[present]] == ids[present]
        if not present.all():
            raise InputError(f"ids must be in the index; {ids[~present][0]} is not")
        self._points = np.delete(self._points, places, axis=0)
        self._ids = np.delete(self._ids, places)

    def report(self, normals, thresholds) -> Report:
        from fireset.kernels.firing import settle
        from fireset.kernels.scanning import collect_above, count_above

        normals = self.check_points(normals, "normals")
        # A float64 threshold is rounded down for float32 points: then at worst too much is reported, never too little.
        thresholds = _rounded_down(np.asarray(thresholds, np.float64), self.dtype)
        if thresholds.shape != (len(normals),):
            raise InputError(f"thresholds must have shape ({len(normals)},), got {thresholds.shape}")
        if np.isnan(thresholds).any():
            raise InputError("thresholds must be numbers, got nan")
        bands = deciding_band(self.n_features, self.dtype, row_norms(normals), self._largest_norm)
        decides = self.dtype == np.float64
        contiguous = len(self) == self._next_id  # nothing was ever deleted: ids are places
        points = max(1, len(self))
        per_block = max(_BLOCK_PAIRS // points, min(_ENOUGH_QUERIES, _LARGEST_BLOCK // points))
        per_block = max(_FEWEST_QUERIES, min(per_block, -(-len(normals) // _FEWEST_BLOCKS)))

        def scan(start: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            block = slice(start, min(start + per_block, len(normals)))
            H = normals[block] @ self._points.T
            if decides:
                settle(H, normals[block], self._points, thresholds[block], bands[block])
            counts = np.empty(len(H), np.int64)
            count_above(H, thresholds[block], counts)
            offsets = np.concatenate([[0], np.cumsum(counts)])
            places = np.empty(offsets[-1], np.int32)
            values = np.empty(offsets[-1], self.dtype)
            collect_above(H, thresholds[block], offsets, places, values)
            return counts, places if contiguous else self._ids[places], values

        found = run(scan, range(0, len(normals), per_block), uses_blas=True) if len(normals) else []
        counts = np.concatenate([f[0] for f in found]) if found else np.empty(0, np.int64)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        ids = np.concatenate([f[1] for f in found]) if found else np.empty(0, np.int32)
        values = np.concatenate([f[2] for f in found]) if found else np.empty(0, self.dtype)
        self.work.queries += len(normals)
        self.work.points_tested += len(normals) * len(self)
        self.work.points_reported += len(ids)
        return Report(indptr, ids, values)


def _largest(points: np.ndarray) -> float:
    return float(row_norms(points).max(initial=0.0))


def _rounded_down(values: np.ndarray, dtype) -> np.ndarray:
    rounded = values.astype(dtype)
    return np.where(rounded > values, np.nextafter(rounded, dtype.type(-np.inf)), rounded)
