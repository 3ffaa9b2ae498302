"""The contract of a half-space index (the paper's Algorithm "half space report data structure").

Every kind is a subclass of ``HalfSpaceIndex``, which checks all arguments, cuts queries into blocks and spreads the
blocks over the cores. A kind implements how to answer one block and, if it is dynamic, how to add, delete and move
points, and may rely on arguments that have been checked.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import sqrt
from threading import Lock
from typing import NamedTuple

import numpy as np

from fireset._util.errors import InputError
from fireset._util.parallel import parallel_map
from fireset._util.readers_writer_lock import ReadersWriterLock
from fireset._util.rounding import deciding_band, dot_slack, row_norms
from fireset.sparse_rows import Rows

_MAX_IDS = 2**31 - 1  # ids are kept in 32 bits
_PARALLEL_COPY_IDS = 1 << 18  # with more ids than this it is faster to copy them on several cores
_MIN_BLOCKS = 8  # so that several cores have work; a constant, so that results do not depend on their number
_MAX_BLOCK_QUERIES = 256
_COUNTING = Lock()  # for the work counts of all indexes, which are added up in no time


class Report(NamedTuple):
    """Answers to a batch of queries: query k found ``ids[indptr[k]:indptr[k+1]]``, with these values.

    Ids are 32-bit integers, which take half the memory. A value is the computed ⟨normal, point⟩: within
    ``fireset._util.rounding.dot_slack`` of the true one.
    """

    indptr: np.ndarray
    ids: np.ndarray
    values: np.ndarray


@dataclass
class IndexWork:
    """Work counts of an index since it was built."""

    queries: int = 0
    nodes_visited: int = 0  # nodes, layers or vertices whose bounds were compared
    points_tested: int = 0  # points whose inner product was computed to decide whether they lie above
    points_in_bulk: int = 0  # points reported because a bound covers all of their subtree
    points_reported: int = 0

    def add(self, **more: int) -> None:
        """Count so much more; queries of several threads are all counted."""
        with _COUNTING:
            for name, count in more.items():
                setattr(self, name, getattr(self, name) + count)


class Queries(NamedTuple):
    """A block of queries, checked; ``slacks`` bounds the rounding of every inner product with a point of the index.

    ``bands`` is the half-width of the band around each threshold in which ``deciding_dot`` decides; negative in
    float32, where the computed value does.
    """

    normals: np.ndarray
    thresholds: np.ndarray
    slacks: np.ndarray
    bands: np.ndarray


class Answers(NamedTuple):
    """The answers to a block of queries: numbers found, ids (int32), values (empty unless asked for), work."""

    counts: np.ndarray
    ids: np.ndarray
    values: np.ndarray
    nodes_visited: int
    points_tested: int
    points_in_bulk: int = 0


class HalfSpaceIndex(ABC):
    """A set of points that reports which of them lie strictly above a hyperplane.

    Ids are assigned in the order of adding, from 0 on, and never change or get reused. In float64 every kind reports
    exactly the points with ``deciding_dot(normal, point) > threshold`` (``fireset.kernels.firing``); in float32 points
    within rounding distance of the threshold may fall on either side.

    Threads may ask and change an index at once. Queries run side by side; a change waits for those that have begun, and
    keeps the others waiting until it is complete. So all answers of one call are those of one state between changes.
    (``pickle`` does not wait.) The lock takes less than a microsecond where nobody waits.
    """

    kind: str
    dynamic: bool = False  # whether it is a ``DynamicIndex``
    _uses_blas = False

    def __init__(self, points: Rows):
        self.dtype = points.dtype
        self.n_features = points.shape[1]
        self.work = IndexWork()
        self._lock = ReadersWriterLock()
        self._next_id = 0
        self._largest_norm = 0.0  # of any point that ever was in the index

    @classmethod
    def suits(cls, n_features: int) -> bool:  # noqa: ARG003
        """Whether the kind is for points with so many coordinates."""
        return True

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _answer(self, queries: Queries, with_values: bool, ordered: bool) -> Answers:
        """Answer a block of queries, without changing the index: other blocks are answered at the same time.

        Nobody changes the index meanwhile.
        Unless ``ordered``, the ids of an answer may come in any order.
        """

    def _block_size(self, n_queries: int) -> int:
        """Queries of one block."""
        return max(1, min(_MAX_BLOCK_QUERIES, -(-n_queries // _MIN_BLOCKS)))

    # Queries

    def query(self, normal, threshold: float) -> np.ndarray:
        """Sorted int64 ids with ⟨normal, point⟩ > threshold."""
        if np.ndim(threshold) != 0:
            raise InputError(f"threshold must be one number, got shape {np.shape(threshold)}")
        return self._search(np.reshape(normal, (1, -1)), np.reshape(threshold, 1), False).ids.astype(np.int64)

    def query_batch(self, normals, thresholds, *, ordered: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """(indptr, ids): query k found ``ids[indptr[k]:indptr[k+1]]``, ascending, in 32 bits; on all cores.

        ``ordered=False`` saves the sorting, up to half of the time where a tree finds many points.
        """
        found = self._search(normals, thresholds, False, ordered)
        return found.indptr, found.ids

    def report(self, normals, thresholds, *, ordered: bool = True) -> Report:
        """Ids and values of the points above each (normals[k], thresholds[k]); ``ordered=False`` saves the sorting."""
        return self._search(normals, thresholds, True, ordered)

    def _search(self, normals, thresholds, with_values: bool, ordered: bool = True) -> Report:
        def answer(start: int) -> Answers:
            return self._answer(Queries(*(array[start : start + size] for array in queries)), with_values, ordered)

        with self._lock.reading:
            queries = self._checked_queries(normals, thresholds)
            size = self._block_size(len(queries.normals))
            blocks = parallel_map(answer, range(0, len(queries.normals), size), uses_blas=self._uses_blas)
        self.work.add(
            queries=len(queries.normals),
            nodes_visited=sum(block.nodes_visited for block in blocks),
            points_tested=sum(block.points_tested for block in blocks),
            points_in_bulk=sum(block.points_in_bulk for block in blocks),
            points_reported=sum(len(block.ids) for block in blocks),
        )
        indptr = np.cumsum(np.concatenate([np.zeros(1, np.int64), *(block.counts for block in blocks)]))
        starts = indptr[::size]
        ids = np.empty(indptr[-1], np.int32)
        values = np.empty(len(ids) if with_values else 0, self.dtype)

        def copy_block(k: int) -> None:
            target = slice(starts[k], starts[k] + len(blocks[k].ids))
            ids[target] = blocks[k].ids
            if with_values:
                values[target] = blocks[k].values
            self._release(blocks[k])

        if len(ids) > _PARALLEL_COPY_IDS:
            parallel_map(copy_block, range(len(blocks)))
        else:
            for k in range(len(blocks)):
                copy_block(k)
        return Report(indptr, ids, values)

    def _release(self, answers: Answers) -> None:
        """The answers of a block have been copied; a kind may reuse their buffers."""

    def _checked_queries(self, normals, thresholds) -> Queries:
        normals = self._checked_rows(normals, "normals")
        # A float64 threshold is rounded down for float32 points: rather a point too many is reported than one too few.
        thresholds = _rounded_down(np.asarray(thresholds, np.float64), self.dtype)
        if thresholds.shape != (len(normals),):
            raise InputError(f"thresholds must have shape ({len(normals)},), got {thresholds.shape}")
        if np.isnan(thresholds).any():
            raise InputError("thresholds must be numbers, got nan")
        norms = row_norms(normals)
        # Corners of boxes around points are bounded by √d times the largest norm of a point.
        slacks = dot_slack(self.n_features, self.dtype, norms, sqrt(self.n_features) * self._largest_norm)
        bands = deciding_band(self.n_features, self.dtype, norms, self._largest_norm)
        return Queries(normals, thresholds, slacks, bands)

    # Changes, which only a ``DynamicIndex`` supports

    def add(self, points) -> np.ndarray:  # noqa: ARG002
        """Add rows; returns their ids."""
        raise self._static_error()

    def delete(self, ids) -> None:  # noqa: ARG002
        """Remove points by id. If an id is not in the index, an InputError is raised and nothing is removed."""
        raise self._static_error()

    def move(self, ids, points) -> None:  # noqa: ARG002
        """Give the points of these ids new coordinates; they keep their ids. Cheaper than delete and add."""
        raise self._static_error()

    def _static_error(self) -> InputError:
        return InputError(
            f"an index of kind {self.kind!r} cannot be changed; build one of kind 'partition-tree' or 'scan'"
        )

    def _update_largest_norm(self, points: np.ndarray) -> None:
        self._largest_norm = max(self._largest_norm, float(row_norms(points).max(initial=0.0)))

    def _checked_rows(self, rows, name: str) -> np.ndarray:
        """Rows of the index's dimension and precision, or an InputError."""
        try:
            rows = np.require(
                rows, self.dtype, ["C", "A", "W"]
            )  # for a read-only array kernels would be compiled again
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} must be a matrix of numbers: {error}") from None
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise InputError(f"{name} must have shape (n, {self.n_features}), got {rows.shape}")
        if not np.isfinite(rows).all():
            raise InputError(f"{name} must be finite; row {np.argwhere(~np.isfinite(rows))[0][0]} is not")
        return rows


class DynamicIndex(HalfSpaceIndex):
    """An index whose points can be added, deleted and moved; it checks the arguments of all three.

    ``_add``, ``_delete`` and ``_move`` are called while nobody else changes the index or asks it. ``len`` alone may be
    asked at any time.
    """

    dynamic = True

    @abstractmethod
    def _add(self, points: np.ndarray, ids: np.ndarray) -> None:
        """Add points under these ids, which follow the largest id so far."""

    @abstractmethod
    def _delete(self, ids: np.ndarray) -> None:
        """Remove the points of these ids, which are in the index, unique and ascending."""

    @abstractmethod
    def _move(self, ids: np.ndarray, points: np.ndarray) -> None:
        """Move the points of these ids, which are in the index, unique and ascending."""

    @abstractmethod
    def _contains(self, ids: np.ndarray) -> np.ndarray:
        """Which of these ids are in the index."""

    def add(self, points) -> np.ndarray:
        points = self._checked_rows(points, "points")
        with self._lock.writing:
            if self._next_id + len(points) > _MAX_IDS:
                raise InputError(f"an index gives out at most {_MAX_IDS:,} ids in its life; build a new one")
            ids = np.arange(self._next_id, self._next_id + len(points))
            self._update_largest_norm(points)
            self._add(points, ids)
            self._next_id += len(points)
        return ids

    def delete(self, ids) -> None:
        with self._lock.writing:
            self._delete(np.unique(self._checked_ids(ids)))

    def move(self, ids, points) -> None:
        with self._lock.writing:
            ids = self._checked_ids(ids)
            points = self._checked_rows(points, "points")
            if len(ids) != len(points):
                raise InputError(f"points must have one row for each of the {len(ids)} ids, got {len(points)}")
            ids, first = np.unique(ids[::-1], return_index=True)  # if an id is given twice, the last position counts
            points = points[len(points) - 1 - first]
            self._update_largest_norm(points)
            self._move(ids, points)

    def _checked_ids(self, ids) -> np.ndarray:
        ids = np.asarray(ids)
        if ids.ndim != 1:
            raise InputError(f"ids must be a list of whole numbers, got shape {ids.shape}")
        if ids.size and ids.dtype.kind not in "iu":
            raise InputError(f"ids must be whole numbers, got {ids.dtype}")
        ids = ids.astype(np.int64)
        present = self._contains(ids)
        if not present.all():
            raise InputError(f"ids must be in the index; {ids[~present].min()} is not")
        return ids


def sort_answers(ids: np.ndarray, counts: np.ndarray) -> None:
    """Sort the answer of every query in place; query k has the next ``counts[k]`` ids.

    NumPy's sort is the fastest, but called for every answer it makes threads wait for the GIL. So answers of about the
    same length are sorted together, as rows of a matrix.
    """
    from fireset.kernels.sorting import SHORT, from_rows, sort_short, to_rows

    sort_short(ids, counts)
    ends = np.cumsum(counts)
    by_length = np.argsort(counts, kind="stable")
    start = int(np.searchsorted(counts, SHORT, side="right", sorter=by_length))
    while start < len(counts):
        longest = counts[by_length[start]] * 5 // 4
        stop = int(np.searchsorted(counts, longest, side="right", sorter=by_length))
        group = by_length[start:stop]
        rows = np.empty((len(group), counts[by_length[stop - 1]]), np.int32)
        to_rows(ids, ends, counts, group, rows)
        rows.sort(axis=1)
        from_rows(ids, ends, counts, group, rows)
        start = stop


def _rounded_down(values: np.ndarray, dtype) -> np.ndarray:
    rounded = values.astype(dtype)
    return np.where(rounded > values, np.nextafter(rounded, dtype.type(-np.inf)), rounded)
