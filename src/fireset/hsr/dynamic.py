"""Base class of indexes that can be changed: adding, deleting and moving points."""

from abc import abstractmethod

import numpy as np

from fireset._util.errors import InputError
from fireset.hsr.base import HalfSpaceIndex
from fireset.hsr.id_map import IdMap, check_new_ids

MAX_IDS = 2**31 - 1  # points are numbered in 32 bits
_MAX_ID = np.iinfo(np.int64).max


class DynamicIndex(HalfSpaceIndex):
    """An index whose points can be added, deleted and moved.

    In addition to the hooks of ``HalfSpaceIndex`` (``fireset.hsr.base``) a kind defines ``_add``, ``_delete``,
    ``_move``, ``_renumber`` and ``_contains``. The first four are called while no other thread changes or queries the
    index; only ``len`` may be called at any time. Their ``ids`` are numbers of points.
    """

    dynamic = True

    def add(self, points, ids=None) -> np.ndarray:
        points = self._checked_rows(points, "points")
        given = None if ids is None else check_new_ids(ids, len(points))
        with self._lock.writing:
            user_ids = self._user_ids_for(given, len(points))
            if self._next_id + len(points) > MAX_IDS:
                raise InputError(f"an index can assign at most {MAX_IDS:,} ids; build a new one")
            numbers = np.arange(self._next_id, self._next_id + len(points))
            self.changes += 1
            self._update_largest_norm(points)
            self._add(points, numbers)
            self._next_id += len(points)
            if user_ids is not None:
                if self._id_map is None:
                    earlier = np.arange(numbers[0])
                    self._id_map = IdMap(earlier, earlier[self._contains(earlier)])
                self._id_map.add(user_ids)
        return numbers if user_ids is None else user_ids

    def delete(self, ids) -> None:
        with self._lock.writing:
            numbers = np.unique(self._checked_ids(ids))
            self.changes += 1
            self._delete(numbers)
            if self._id_map is not None:
                self._id_map.remove(numbers)

    def move(self, ids, points) -> None:
        with self._lock.writing:
            ids = self._checked_ids(ids)
            points = self._checked_rows(points, "points")
            if len(ids) != len(points):
                raise InputError(f"points must have one row for each of the {len(ids)} ids, got {len(points)}")
            ids, first = np.unique(ids[::-1], return_index=True)  # of an id that is given twice, the last row counts
            points = points[len(points) - 1 - first]
            self.changes += 1
            self._update_largest_norm(points)
            self._move(ids, points)

    # Hooks

    @abstractmethod
    def _add(self, points: np.ndarray, ids: np.ndarray) -> None:
        """Add points under these ids, which follow the largest id so far."""

    @abstractmethod
    def _delete(self, ids: np.ndarray) -> None:
        """Delete the points with these ids, which are in the index, unique and ascending."""

    @abstractmethod
    def _move(self, ids: np.ndarray, points: np.ndarray) -> None:
        """Move the points with these ids, which are in the index, unique and ascending."""

    @abstractmethod
    def _renumber(self, ids: np.ndarray, next_id: int) -> None:
        """Change the id of point k of a new index to ``ids[k]``: int32, ascending, and less than ``next_id``."""

    # For other modules of the package

    def restore_numbers(self, numbers: np.ndarray, next_id: int) -> None:
        """Set the numbers of the points of a new index to those of a saved one (``_renumber``)."""
        with self._lock.writing:
            self._renumber(numbers, next_id)
            self._next_id = next_id

    def _user_ids_for(self, given: np.ndarray | None, n: int) -> np.ndarray | None:
        """Return the ids for n new points, None if they are numbers; raise an InputError if an id is in use."""
        if given is None:
            if self._id_map is None:
                return None
            if self._id_map.next_id + n > _MAX_ID:
                raise InputError(
                    f"ids must be given for new points, since the largest id is {self._id_map.next_id - 1}"
                )
            return np.arange(self._id_map.next_id, self._id_map.next_id + n)
        numbers = given if self._id_map is None else self._id_map.numbers_of(given)
        taken = self._contains(numbers)
        if taken.any():
            raise InputError(f"ids must not be in the index already; {given[taken].min()} is")
        return given if n else None
