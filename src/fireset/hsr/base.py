"""The contract of a half-space index (the paper's Algorithm "half space report data structure").

Every kind is a subclass of ``HalfSpaceIndex``, which checks all arguments, cuts queries into blocks and spreads the
blocks over the cores. A kind implements how to answer one block and, if it is dynamic, how to add, delete and move
points, and may rely on arguments that have been checked.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import sqrt
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fireset._util.checks import whole_number
from fireset._util.errors import InputError
from fireset._util.files import write_model
from fireset._util.parallel import parallel_map
from fireset._util.readers_writer_lock import ReadersWriterLock
from fireset._util.rounding import deciding_band, dot_slack, one_dot_slack, row_norms
from fireset.hsr.largest import Largest, empty_heaps, offer_above
from fireset.hsr.own_ids import OwnIds, checked_new_ids, checked_whole_numbers
from fireset.sparse_rows import Rows

if TYPE_CHECKING:
    from fireset.kernels.largest import Heaps

_PARALLEL_COPY_IDS = 1 << 18  # with more ids than this it is faster to copy them on several cores
_MIN_BLOCKS = 8  # so that several cores have work; a constant, so that results do not depend on their number
_MAX_BLOCK_QUERIES = 256
_SAFE_SQUARES = 1e-20, 1e30  # squared norms between these neither overflow nor vanish, in float32 either
_SAFE_THRESHOLD = 1e38  # smaller ones do not overflow in float32
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

    ``bands`` is the half-width of the band around each threshold in which ``deciding_dot`` decides. In float32 it is
    negative where the computed value decides, and infinite where that may overflow.
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

    Ids are the caller's (``ids`` of ``build`` and ``add``), or assigned in the order of adding, from 0 on; those never
    change or get reused. In float64 every kind reports
    exactly the points with ``deciding_dot(normal, point) > threshold`` (``fireset.kernels.firing``); in float32 points
    within rounding distance of the threshold may fall on either side, and where a float32 sum may overflow the same
    definition decides. Thresholds are rounded down to the precision of the points.

    Threads may ask and change an index at once. Queries run side by side; a change waits for those that have begun, and
    keeps the others waiting until it is complete. So all answers of one call are those of one state between changes.
    (``pickle`` does not wait.) The lock takes less than a microsecond where nobody waits.
    """

    kind: str
    dynamic: bool = False  # whether it is a ``DynamicIndex``
    bytes_per_id = 0  # taken for every id ever given out, of deleted points, too
    _uses_blas = False

    def __init__(self, points: Rows):
        self.dtype = points.dtype
        self.n_features = points.shape[1]
        self.work = IndexWork()
        self._lock = ReadersWriterLock()
        self._next_id = 0
        self._own_ids: OwnIds | None = None  # ids that the caller gave; else ids are numbers in the order of adding
        self._largest_norm = 0.0  # of any point that ever was in the index

    @classmethod
    def suits(cls, n_features: int) -> bool:  # noqa: ARG003
        """Whether the kind is for points with so many coordinates."""
        return True

    @abstractmethod
    def __len__(self) -> int: ...

    def __repr__(self) -> str:
        changes = "dynamic" if self.dynamic else "static"
        return f"<{self.kind} index: {len(self):,} points, {self.n_features} features, {self.dtype}, {changes}>"

    @abstractmethod
    def _answer(self, queries: Queries, with_values: bool, ordered: bool) -> Answers:
        """Answer a block of queries, without changing the index: other blocks are answered at the same time.

        Nobody changes the index meanwhile.
        Unless ``ordered``, the ids of an answer may come in any order.
        """

    def _offer_points(self, queries: Queries, heaps: "Heaps") -> tuple[int, int]:
        """Offer points to the heaps of a block of queries, all but those that cannot be among the best.

        Thresholds mean nothing here. There is at least one point, and no heap takes more than there are. Returns nodes
        visited and points tested. A kind may have a better way than asking itself with a threshold.
        """
        return offer_above(self._answer, *self._live_rows(), queries, heaps)

    @abstractmethod
    def _live_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids of the points, int32 and ascending, and the points as they are kept; only to be read."""

    def _block_size(self, n_queries: int) -> int:
        """Queries of one block."""
        return max(1, min(_MAX_BLOCK_QUERIES, -(-n_queries // _MIN_BLOCKS)))

    # Queries

    def query(self, normal, threshold: float) -> np.ndarray:
        """Sorted int64 ids with ⟨normal, point⟩ > threshold."""
        with self._lock.reading:  # nothing to share: no block, no thread, and BLAS may use its own
            answers = self._answer(self._checked_query(normal, threshold), False, True)
            ids = self._ids_of(answers.ids)
        ids = np.sort(ids) if self._own_ids else ids
        self._release(answers)
        self.work.add(
            queries=1,
            nodes_visited=answers.nodes_visited,
            points_tested=answers.points_tested,
            points_in_bulk=answers.points_in_bulk,
            points_reported=len(ids),
        )
        return ids

    def query_batch(self, normals, thresholds, *, ordered: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """(indptr, ids): query k found ``ids[indptr[k]:indptr[k+1]]``, ascending; on all cores.

        ``thresholds`` has one number for each normal, or is one number for all. Ids are in 32 bits; own ids are in 64.
        ``ordered=False`` saves the sorting, up to a third of the time where a tree finds many points.
        """
        found = self._report(normals, thresholds, False, ordered)
        return found.indptr, found.ids

    def report(self, normals, thresholds, *, ordered: bool = True) -> Report:
        """Ids and values of the points above each (normals[k], thresholds[k]); ``ordered=False`` saves the sorting."""
        return self._report(normals, thresholds, True, ordered)

    def top(self, normals, k: int) -> Largest:
        """The k points of largest inner product with each normal, best first, and of equal ones the smaller id first.

        Of own ids, the one that was added first comes first.
        Exact in float32, too: points are ranked by ``deciding_dot``, in float64, of what the index holds.

        Parameters
        ----------
        normals : array (d,) or (m, d)
        k : int, at least 0
            If there are fewer points, all of them are returned.

        Returns
        -------
        Largest
            ``ids`` and ``values``, (min(k, n),) for one normal, (m, min(k, n)) for several.
        """
        from fireset.kernels.largest import sort_heaps

        k = whole_number("k", k, 0)
        try:
            is_one = np.ndim(normals) == 1
        except ValueError:  # rows of different lengths, which are refused below
            is_one = False
        normals = self._checked_rows(np.reshape(normals, (1, -1)) if is_one else normals, "normals")

        def offer(start: int) -> tuple[int, int]:
            block = slice(start, start + size)
            own = type(heaps)(*(array[block] for array in heaps))
            work = self._offer_points(Queries(*(array[block] for array in queries)), own)
            sort_heaps(own)
            return work

        with self._lock.reading:
            heaps = empty_heaps(len(normals), min(k, len(self)))
            queries = self._checked_queries(normals, np.zeros(len(normals)))
            size = self._block_size(len(normals))
            starts = range(0, len(normals) if heaps.ids.size else 0, size)
            work = parallel_map(offer, starts, uses_blas=self._uses_blas) if len(starts) != 1 else [offer(0)]
            found = Largest(self._ids_of(heaps.ids), heaps.values)
        self.work.add(
            queries=len(normals),
            nodes_visited=sum(nodes for nodes, _ in work),
            points_tested=sum(tested for _, tested in work),
            points_reported=heaps.ids.size,
        )
        return Largest(found.ids[0], found.values[0]) if is_one else found

    def _report(self, normals, thresholds, with_values: bool, ordered: bool) -> Report:
        found = self.search_numbers(normals, thresholds, with_values, ordered)
        return self.with_ids(found, ordered)

    def with_ids(self, found: Report, ordered: bool = True) -> Report:
        """A report of points by number as one of points by id. Numbers stay valid, whatever is deleted meanwhile."""
        if self._own_ids is None:
            return found
        ids, values, indptr = self._own_ids.of(found.ids), found.values, found.indptr
        if ordered:
            order = np.lexsort((ids, np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))))
            ids, values = ids[order], values[order] if len(values) else values
        return Report(indptr, ids, values)

    def search_numbers(self, normals, thresholds, with_values: bool, ordered: bool = True) -> Report:
        """As ``report``, of points by number in the order of adding, in 32 bits."""

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

    # Points

    @property
    def ids(self) -> np.ndarray:
        """The ids of the points in the index, ascending, int64. Costs O(n log n)."""
        with self._lock.reading:
            ids = self._ids_of(self._live_rows()[0])
        return np.sort(ids) if self._own_ids else ids

    def get(self, ids) -> np.ndarray:
        """The points with these ids, (k, d), in the order of the ids; of one id, (d,)."""
        with self._lock.reading:
            points = self.points_by_number(self._checked_ids(np.reshape(ids, 1) if np.ndim(ids) == 0 else ids))
        return points[0] if np.ndim(ids) == 0 else points

    def set_ids(self, ids) -> None:
        """Give the points of a new index these ids, in the order of the points."""
        with self._lock.writing:
            self._own_ids = OwnIds(checked_new_ids(ids, len(self)), np.arange(len(self)))

    def restore_own_ids(self, ids: np.ndarray, numbers: np.ndarray, next_id: int) -> None:
        """Give the points of these numbers, which are all in the index, ids of an old one."""
        with self._lock.writing:
            by_number = np.zeros(self._next_id, np.int64)
            by_number[numbers] = ids
            self._own_ids = OwnIds(by_number, numbers, next_id)

    @property
    def largest_norm(self) -> float:
        """A bound on the norms of all points that ever were in the index."""
        return self._largest_norm

    def _ids_of(self, numbers: np.ndarray) -> np.ndarray:
        """Ids, int64, of points by number in the order of adding."""
        return numbers.astype(np.int64) if self._own_ids is None else self._own_ids.of(numbers)

    def points_by_number(self, numbers: np.ndarray) -> np.ndarray:
        """A copy of the points of these numbers, which are in the index; for callers that hold its lock."""
        live, points = self._live_rows()
        return points[np.searchsorted(live, numbers)].astype(self.dtype)

    def _contains(self, numbers: np.ndarray) -> np.ndarray:
        """Which of these numbers are in the index."""
        return (numbers >= 0) & (numbers < self._next_id)

    def _checked_ids(self, ids) -> np.ndarray:
        """The numbers of the points with these ids, or an InputError."""
        ids = checked_whole_numbers(ids)
        numbers = ids if self._own_ids is None else self._own_ids.numbers(ids)
        present = self._contains(numbers)
        if not present.all():
            raise InputError(f"ids must be in the index; {ids[~present].min()} is not")
        return numbers

    def _release(self, answers: Answers) -> None:
        """The answers of a block have been copied; a kind may reuse their buffers."""

    def _checked_queries(self, normals, thresholds) -> Queries:
        normals = self._checked_rows(normals, "normals")
        # A float64 threshold is rounded down for float32 points: rather a point too many is reported than one too few.
        thresholds = _rounded_down(np.asarray(thresholds, np.float64), self.dtype)
        if thresholds.ndim == 0:
            thresholds = np.full(len(normals), thresholds[()])
        if thresholds.shape != (len(normals),):
            raise InputError(f"thresholds must have shape ({len(normals)},), got {thresholds.shape}")
        if np.isnan(thresholds).any():
            raise InputError("thresholds must be numbers, got nan")
        norms = row_norms(normals)
        # Corners of boxes around points are bounded by √d times the largest norm of a point.
        slacks = dot_slack(self.n_features, self.dtype, norms, sqrt(self.n_features) * self._largest_norm)
        bands = deciding_band(self.n_features, self.dtype, norms, self._largest_norm)
        return Queries(normals, thresholds, slacks, bands)

    def _checked_query(self, normal, threshold) -> Queries:
        """The same for one query; an ordinary one is checked in a few microseconds."""
        if not isinstance(threshold, float | int) and np.ndim(threshold) != 0:
            raise InputError(f"threshold must be one number, got shape {np.shape(threshold)}")
        d, dtype = self.n_features, self.dtype
        if isinstance(normal, np.ndarray) and normal.shape == (d,) and normal.dtype == dtype and normal.flags.carray:
            with np.errstate(over="ignore"):
                squared = float(normal.dot(normal))
            # No coordinate of such a row is infinite or NaN, and its norm has lost nothing to underflow.
            if (
                _SAFE_SQUARES[0] < squared < _SAFE_SQUARES[1]
                and isinstance(threshold, float)
                and abs(threshold) < _SAFE_THRESHOLD
            ):
                rounded = dtype.type(threshold)
                if float(rounded) > threshold:
                    rounded = np.nextafter(rounded, dtype.type(-np.inf))
                norm = sqrt(squared) * (1 + d * float(np.finfo(dtype).eps))
                slack = one_dot_slack(d, dtype, norm, sqrt(d) * self._largest_norm)
                band = np.array([-1.0 if dtype == np.float32 else slack], dtype)
                if slack < np.inf:
                    return Queries(normal[None], np.array([rounded]), np.array([slack]), band)
        return self._checked_queries(np.reshape(normal, (1, -1)), np.reshape(threshold, 1))

    def save(self, path) -> None:
        """Write points and ids to a safetensors file, atomically; ``fireset.hsr.load`` reads it. Queries go on.

        What was deleted is not written, but its ids stay taken. Takes memory for one copy of the points.
        """
        self.write(path, {})

    def write(self, path, about: dict[str, Any]) -> None:
        """As ``save``, with further entries of the description."""
        with self._lock.reading:
            ids, points = self._live_rows()
            about = {"kind": self.kind, "next_id": self._next_id, **about}
            arrays = {"points": points, "ids": ids}
            if self._own_ids is not None:
                arrays["own_ids"], about["next_own_id"] = self._own_ids.of(ids), self._own_ids.next_id
            write_model(path, arrays, {"index": about})

    # Changes, which only a ``DynamicIndex`` supports

    def add(self, points, ids=None) -> np.ndarray:  # noqa: ARG002
        """Add rows; returns their ids, which are ``ids`` if they are given.

        Own ids are any 64-bit integers that are not in the index; those of deleted points may be given again. Without
        ``ids`` numbers go on from the largest id so far.
        """
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
            with np.errstate(over="ignore"):  # what is infinite then is refused below
                rows = native_rows(rows, self.dtype)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} must be a matrix of numbers: {error}") from None
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise InputError(f"{name} must have shape (n, {self.n_features}), got {rows.shape}")
        if not np.isfinite(rows).all():
            raise InputError(f"{name} must be finite; row {np.argwhere(~np.isfinite(rows))[0][0]} is not")
        return rows


def native_rows(rows, dtype) -> np.ndarray:
    """Rows as kernels read them, a copy if need be: for a read-only array they would be compiled again."""
    return np.require(rows, dtype, ["C", "A", "W"])


def _rounded_down(values: np.ndarray, dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        rounded = values.astype(dtype)
        return np.where(rounded > values, np.nextafter(rounded, dtype.type(-np.inf)), rounded)
