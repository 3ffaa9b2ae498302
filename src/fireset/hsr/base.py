"""Base class of all half-space indexes (the paper's "half space report data structure").

``HalfSpaceIndex`` checks all arguments, divides queries into blocks, distributes the blocks over the cores, translates
ids and locks the index. A kind implements hooks, whose arguments are already checked.

A static kind must define

- ``kind``: its name in the registry (``fireset.hsr.registry``);
- ``__init__(points, **options)``: call ``super().__init__(points)``, check the points with ``_checked_rows``, call
  ``_update_largest_norm``, and set ``_next_id`` to the number of points;
- ``__len__``: the number of points, which may be read at any time;
- ``_answer``: answer a block of queries;
- ``_live_rows``: ids and coordinates of all points.

A kind that can be changed derives from ``fireset.hsr.dynamic.DynamicIndex`` and defines ``_add``, ``_delete``,
``_move``, ``_renumber`` and ``_contains`` as well.

It may override

- ``suits``: which dimensions it supports;
- ``_fill_heaps``: the k largest inner products, by default from half-space queries (``fireset.hsr.top_k``);
- ``_block_size``: queries in a block;
- ``points_by_number``: faster access to some points;
- ``_release``: reuse the buffers of answers;
- ``_uses_blas``, ``bytes_per_id``.

Points have a *number*: their position in the order of adding, from 0 on, in 32 bits. Hooks use numbers only, and call
them ids. The ids that users see are the numbers, or ids that the caller chose (``fireset.hsr.id_map``).

This module and the registry do not import numba. Modules of kinds import their kernels at the top; they are loaded when
an index is built.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import hypot, sqrt
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fireset._util.checks import whole_number
from fireset._util.errors import InputError
from fireset._util.files import write_model
from fireset._util.parallel import parallel_map
from fireset._util.readers_writer_lock import ReadersWriterLock
from fireset._util.rounding import deciding_band, dot_slack, epsilon, one_dot_slack, row_norms
from fireset.hsr.id_map import IdMap, check_ids, check_new_ids
from fireset.sparse_rows import Rows

if TYPE_CHECKING:
    from fireset.kernels.top_k import Heaps

_PARALLEL_COPY_IDS = 1 << 18  # with more ids than this it is faster to copy them on several cores
_MIN_BLOCKS = 8  # to use several cores; a constant, so that results do not depend on the number of cores
_MAX_BLOCK_QUERIES = 256
_SAFE_NORMS = 1e-10, 1e15  # the squares of norms between these neither overflow nor underflow, in float32 either
FEW_COORDINATES = 32  # for which ``hypot`` is faster than ``np.vdot``
_SAFE_THRESHOLD = 1e38  # smaller thresholds do not overflow in float32
WORK_LOCK = Lock()  # for the work counts of all indexes


class Report(NamedTuple):
    """Results of a batch of queries: query k found ``ids[indptr[k]:indptr[k+1]]`` with these values.

    Ids are int32, or int64 if the caller chose them. A value is the computed ⟨normal, point⟩, within
    ``fireset._util.rounding.dot_slack`` of the true one.
    """

    indptr: np.ndarray
    ids: np.ndarray
    values: np.ndarray


class TopK(NamedTuple):
    """The best points, best first: ``ids`` int64 and ``values`` float64, with one row for each of several normals."""

    ids: np.ndarray
    values: np.ndarray


@dataclass
class IndexWork:
    """Work counts of an index since it was built."""

    queries: int = 0
    nodes_visited: int = 0  # nodes, layers or vertices whose bounds were compared
    points_tested: int = 0  # points whose inner product was computed to decide whether they are above
    points_in_bulk: int = 0  # points reported without a test, because a bound covers their subtree
    points_reported: int = 0

    def add(self, **more: int) -> None:
        """Add to the counts; safe with several threads."""
        with WORK_LOCK:
            for name, count in more.items():
                setattr(self, name, getattr(self, name) + count)


class Queries(NamedTuple):
    """A block of checked queries.

    ``slacks`` bound the rounding error of the inner product with any corner of a box around points: a bound may discard
    a subtree, or report it whole, only beyond the slack. ``bands`` are the half-widths around the thresholds in which
    ``deciding_dot`` decides. For float32 points they are negative, so that the computed value decides, or infinite if
    that may overflow.
    """

    normals: np.ndarray  # (q, d)
    thresholds: np.ndarray  # (q,)
    slacks: np.ndarray  # (q,)
    bands: np.ndarray  # (q,)


class Answers(NamedTuple):
    """Results of a block of queries, one query after another, and the work they took."""

    counts: np.ndarray  # (q,) points found by each query
    ids: np.ndarray  # int32
    values: np.ndarray  # empty unless they were requested
    nodes_visited: int
    points_tested: int
    points_in_bulk: int = 0


class HalfSpaceIndex(ABC):
    """A set of points that reports which of them are strictly above a hyperplane.

    Ids are given by the caller (``ids`` of ``build`` and ``add``) or are assigned in the order of adding, from 0 on;
    assigned ids never change and are never reused.

    In float64 every kind reports exactly the points with ``deciding_dot(normal, point) > threshold``
    (``fireset.kernels.firing``). In float32 points within rounding distance of the threshold may be on either side; if
    a float32 sum may overflow, ``deciding_dot`` decides. Thresholds are rounded down to the precision of the points.

    Several threads may query and change an index at once. Queries run in parallel; a change waits for running queries
    and blocks new ones until it is complete, so that all answers of a call belong to one state of the index. The lock
    takes less than a microsecond without contention. ``pickle`` does not lock.
    """

    kind: str
    dynamic: bool = False  # whether it is a ``DynamicIndex``
    bytes_per_id = 0  # memory for every id ever assigned, those of deleted points included
    _uses_blas = False

    def __init__(self, points: Rows):
        self.dtype = points.dtype
        self.n_features = points.shape[1]
        self.work = IndexWork()
        self.changes = 0  # number of calls that changed the points, so that other code can detect a change
        self._lock = ReadersWriterLock()
        self._next_id = 0
        self._id_map: IdMap | None = None  # None: ids are numbers
        self._largest_norm = 0.0  # of all points that ever were in the index

    @classmethod
    def suits(cls, n_features: int) -> bool:  # noqa: ARG003
        """Return whether the kind supports points with ``n_features`` coordinates."""
        return True

    @abstractmethod
    def __len__(self) -> int: ...

    def __repr__(self) -> str:
        changes = "dynamic" if self.dynamic else "static"
        return f"<{self.kind} index: {len(self):,} points, {self.n_features} features, {self.dtype}, {changes}>"

    # Queries

    def query(self, normal, threshold: float) -> np.ndarray:
        """Return the sorted int64 ids of all points with ⟨normal, point⟩ > threshold."""
        with self._lock.reading:  # in this thread, so that BLAS may use all of its threads
            answers = self._answer(self._checked_query(normal, threshold), False, True)
            ids = self._ids_of(answers.ids)
        ids = np.sort(ids) if self._id_map else ids
        self._release(answers)
        work = self.work
        with WORK_LOCK:  # ``add`` takes half a microsecond more
            work.queries += 1
            work.nodes_visited += answers.nodes_visited
            work.points_tested += answers.points_tested
            work.points_in_bulk += answers.points_in_bulk
            work.points_reported += len(ids)
        return ids

    def query_batch(self, normals, thresholds, *, ordered: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Answer many queries on all cores; returns (indptr, ids): query k found ``ids[indptr[k]:indptr[k+1]]``.

        Parameters
        ----------
        normals : array (m, d)
        thresholds : array (m,), or one number for all queries
        ordered : bool
            Whether the ids of a query ascend. ``False`` saves up to 40 % of the time if a tree finds many points.
        """
        found = self.with_ids(self.search_numbers(normals, thresholds, False, ordered), ordered)
        return found.indptr, found.ids

    def report(self, normals, thresholds, *, ordered: bool = True) -> Report:
        """Answer many queries like ``query_batch``, and return the values ⟨normal, point⟩ as well."""
        return self.with_ids(self.search_numbers(normals, thresholds, True, ordered), ordered)

    def top(self, normals, k: int) -> TopK:
        """Find the k points of largest inner product with each normal, best first.

        Points are ranked by ``deciding_dot`` in float64, so the result is exact for float32 points, too. Of equal
        values the point that was added first comes first.

        Parameters
        ----------
        normals : array (d,) or (m, d)
        k : int, at least 0
            If there are fewer points, all of them are returned.

        Returns
        -------
        TopK
            ``ids`` and ``values``, (min(k, n),) for one normal, (m, min(k, n)) for several.
        """
        from fireset.hsr.top_k import empty_heaps, sort_heaps  # needs numba, which this module does not import

        k = whole_number("k", k, 0)
        try:
            is_one = np.ndim(normals) == 1
        except ValueError:  # rows of different lengths, which are refused below
            is_one = False
        normals = self._checked_rows(np.reshape(normals, (1, -1)) if is_one else normals, "normals")

        def fill(start: int) -> tuple[int, int]:
            block = slice(start, start + size)
            block_heaps = type(heaps)(*(array[block] for array in heaps))
            work = self._fill_heaps(Queries(*(array[block] for array in queries)), block_heaps)
            sort_heaps(block_heaps)
            return work

        with self._lock.reading:
            heaps = empty_heaps(len(normals), min(k, len(self)))
            queries = self._checked_queries(normals, np.zeros(len(normals)))
            size = self._block_size(len(normals))
            starts = range(0, len(normals) if heaps.ids.size else 0, size)
            work = parallel_map(fill, starts, uses_blas=self._uses_blas) if len(starts) != 1 else [fill(0)]
            found = TopK(self._ids_of(heaps.ids), heaps.values)
        self.work.add(
            queries=len(normals),
            nodes_visited=sum(nodes for nodes, _ in work),
            points_tested=sum(tested for _, tested in work),
            points_reported=heaps.ids.size,
        )
        return TopK(found.ids[0], found.values[0]) if is_one else found

    # Points

    @property
    def ids(self) -> np.ndarray:
        """The ids of the points in the index, ascending, int64. Cost O(n log n)."""
        with self._lock.reading:
            ids = self._ids_of(self._live_rows()[0])
        return np.sort(ids) if self._id_map else ids

    def get(self, ids) -> np.ndarray:
        """Return the points with these ids, (k, d), in the order of the ids; (d,) for one id."""
        with self._lock.reading:
            points = self.points_by_number(self._checked_ids(np.reshape(ids, 1) if np.ndim(ids) == 0 else ids))
        return points[0] if np.ndim(ids) == 0 else points

    @property
    def largest_norm(self) -> float:
        """An upper bound on the norms of all points that ever were in the index."""
        return self._largest_norm

    # Changes, which only a ``DynamicIndex`` supports

    def add(self, points, ids=None) -> np.ndarray:  # noqa: ARG002
        """Add rows (k, d), and return their ids.

        ``ids`` are any 64-bit integers that are not in the index; those of deleted points may be used again. Without
        ``ids``, new ids continue after the largest id so far.
        """
        raise self._static_error()

    def delete(self, ids) -> None:  # noqa: ARG002
        """Delete points by id. If an id is not in the index, raise an InputError and delete nothing."""
        raise self._static_error()

    def move(self, ids, points) -> None:  # noqa: ARG002
        """Replace the coordinates of the points with these ids. Faster than ``delete`` and ``add``."""
        raise self._static_error()

    def _static_error(self) -> InputError:
        return InputError(
            f"an index of kind {self.kind!r} cannot be changed; build one of kind 'partition-tree' or 'scan'"
        )

    # Files

    def save(self, path) -> None:
        """Write points and ids to a safetensors file, atomically; ``fireset.hsr.load`` reads it.

        Deleted points are not written, but their assigned ids stay in use. Queries may run meanwhile. Takes memory for
        one copy of the points.
        """
        self.write(path, {})

    def write(self, path, entries: dict[str, Any]) -> None:
        """Write the file of ``save`` with further ``entries`` of the description."""
        with self._lock.reading:
            ids, points = self._live_rows()
            description = {"kind": self.kind, "next_id": self._next_id, **entries}
            arrays = {"points": points, "ids": ids}
            if self._id_map is not None:
                arrays["user_ids"], description["next_user_id"] = self._id_map.ids_of(ids), self._id_map.next_id
            write_model(path, arrays, {"index": description})

    # Hooks

    @abstractmethod
    def _answer(self, queries: Queries, with_values: bool, ordered: bool) -> Answers:
        """Answer a block of queries without changing the index: other blocks are answered at the same time.

        The index is not changed meanwhile. Unless ``ordered``, the ids of a query may be in any order.
        """

    @abstractmethod
    def _live_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all points, int32 and ascending, and their coordinates (n, d); both read-only."""

    def _fill_heaps(self, queries: Queries, heaps: "Heaps") -> tuple[int, int]:
        """Push to the heaps of a block of queries all points that may be among the best.

        Thresholds are not used. There is at least one point, and the capacity of a heap is at most the number of
        points. Returns the numbers of nodes visited and of points tested.
        """
        from fireset.hsr.top_k import fill_by_queries  # needs numba

        return fill_by_queries(self._answer, *self._live_rows(), queries, heaps)

    def _block_size(self, n_queries: int) -> int:
        """Return the number of queries in a block."""
        return max(1, min(_MAX_BLOCK_QUERIES, -(-n_queries // _MIN_BLOCKS)))

    def _contains(self, numbers: np.ndarray) -> np.ndarray:
        """Return which of these numbers are in the index, as booleans."""
        return (numbers >= 0) & (numbers < self._next_id)

    def _release(self, answers: Answers) -> None:
        """Reuse the buffers of answers that have been copied."""

    # For other modules of the package

    def points_by_number(self, numbers: np.ndarray) -> np.ndarray:
        """Return a copy of the points with these numbers, which are in the index. The caller holds the lock."""
        live, points = self._live_rows()
        return points[np.searchsorted(live, numbers)].astype(self.dtype)

    def search_numbers(
        self, normals, thresholds, with_values: bool, ordered: bool = True, work: IndexWork | None = None
    ) -> Report:
        """Answer queries like ``report``, with numbers in place of ids.

        The counts of this call are added to ``work``, too: ``self.work`` contains those of other threads.
        """

        def answer(start: int) -> Answers:
            return self._answer(Queries(*(array[start : start + size] for array in queries)), with_values, ordered)

        with self._lock.reading:
            queries = self._checked_queries(normals, thresholds)
            size = self._block_size(len(queries.normals))
            blocks = parallel_map(answer, range(0, len(queries.normals), size), uses_blas=self._uses_blas)
        for total in (self.work,) if work is None else (self.work, work):
            total.add(
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

    def with_ids(self, found: Report, ordered: bool = True) -> Report:
        """Replace the numbers of a report by ids. Numbers stay valid, even if points are deleted meanwhile."""
        if self._id_map is None:
            return found
        ids, values = self._id_map.ids_of(found.ids), found.values
        if ordered:
            order = np.lexsort((ids, np.repeat(np.arange(len(found.indptr) - 1), np.diff(found.indptr))))
            ids, values = ids[order], values[order] if len(values) else values
        return found._replace(ids=ids, values=values)

    def set_ids(self, ids) -> None:
        """Set the ids of the points of a new index, in the order of the points."""
        with self._lock.writing:
            self._id_map = IdMap(check_new_ids(ids, len(self)), np.arange(len(self)))

    def restore_ids(self, ids: np.ndarray, numbers: np.ndarray, next_id: int) -> None:
        """Set the ids of the points with these numbers, which are all points of the index, to those of a saved one."""
        with self._lock.writing:
            by_number = np.zeros(self._next_id, np.int64)
            by_number[numbers] = ids
            self._id_map = IdMap(by_number, numbers, next_id)

    # Checks and translation of arguments

    def _ids_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return the ids, int64, of the points with these numbers."""
        return numbers.astype(np.int64) if self._id_map is None else self._id_map.ids_of(numbers)

    def _checked_ids(self, ids) -> np.ndarray:
        """Return the numbers of the points with these ids, or raise an InputError."""
        ids = check_ids(ids)
        numbers = ids if self._id_map is None else self._id_map.numbers_of(ids)
        present = self._contains(numbers)
        if not present.all():
            raise InputError(f"ids must be in the index; {ids[~present].min()} is not")
        return numbers

    def _checked_queries(self, normals, thresholds) -> Queries:
        normals = self._checked_rows(normals, "normals")
        # Rounding down to float32 can only report more points, not fewer.
        thresholds = _rounded_down(np.asarray(thresholds, np.float64), self.dtype)
        if thresholds.ndim == 0:
            thresholds = np.full(len(normals), thresholds[()])
        if thresholds.shape != (len(normals),):
            raise InputError(f"thresholds must have shape ({len(normals)},), got {thresholds.shape}")
        if np.isnan(thresholds).any():
            raise InputError("thresholds must be numbers, got nan")
        norms = row_norms(normals)
        # The norm of a corner of a box around points is at most √d times the largest norm of a point.
        slacks = dot_slack(self.n_features, self.dtype, norms, sqrt(self.n_features) * self._largest_norm)
        bands = deciding_band(self.n_features, self.dtype, norms, self._largest_norm)
        return Queries(normals, thresholds, slacks, bands)

    def _checked_query(self, normal, threshold) -> Queries:
        """Check one query. Arrays of the right type and ordinary size take a few microseconds."""
        if not isinstance(threshold, float | int) and np.ndim(threshold) != 0:
            raise InputError(f"threshold must be one number, got shape {np.shape(threshold)}")
        d, dtype = self.n_features, self.dtype
        if isinstance(normal, np.ndarray) and normal.shape == (d,) and normal.dtype == dtype and normal.flags.carray:
            # Neither function warns of an overflow. No coordinate of a row with such a norm is infinite or NaN, and the
            # norm has lost nothing to underflow.
            norm = hypot(*normal.tolist()) if d <= FEW_COORDINATES else sqrt(np.vdot(normal, normal))
            if (
                _SAFE_NORMS[0] < norm < _SAFE_NORMS[1]
                and isinstance(threshold, float)
                and -_SAFE_THRESHOLD < threshold < _SAFE_THRESHOLD
            ):
                slack = one_dot_slack(d, dtype, norm * (1 + d * epsilon(dtype)), sqrt(d) * self._largest_norm)
                band = np.array([-1.0 if dtype == np.float32 else slack], dtype)
                if slack < np.inf:
                    return Queries(normal[None], _one_rounded_down(threshold, dtype), np.array([slack]), band)
        return self._checked_queries(np.reshape(normal, (1, -1)), np.reshape(threshold, 1))

    def _checked_rows(self, rows, name: str) -> np.ndarray:
        """Return rows with the dimension and precision of the index, or raise an InputError."""
        try:
            with np.errstate(over="ignore"):  # infinite results are refused below
                rows = native_rows(rows, self.dtype)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} must be a matrix of numbers: {error}") from None
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise InputError(f"{name} must have shape (n, {self.n_features}), got {rows.shape}")
        if not np.isfinite(rows).all():
            raise InputError(f"{name} must be finite; row {np.argwhere(~np.isfinite(rows))[0][0]} is not")
        return rows

    def _update_largest_norm(self, points: np.ndarray) -> None:
        self._largest_norm = max(self._largest_norm, float(row_norms(points).max(initial=0.0)))


def native_rows(rows, dtype) -> np.ndarray:
    """Return rows as an aligned, writable C array, a copy if necessary: kernels are compiled for such arrays only."""
    return np.require(rows, dtype, ["C", "A", "W"])


def _one_rounded_down(value: float, dtype) -> np.ndarray:
    """Return ``_rounded_down`` of one finite value that does not overflow, (1,), without the cost of ``nextafter``."""
    rounded = np.array([value], dtype)
    if rounded.itemsize == 4 and (above := rounded.item()) > value:
        rounded.view(np.int32)[0] -= 1 if above > 0 else -1  # the magnitude of a negative number, or of −0, grows
    return rounded


def _rounded_down(values: np.ndarray, dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        rounded = values.astype(dtype)
        return np.where(rounded > values, np.nextafter(rounded, dtype.type(-np.inf)), rounded)
