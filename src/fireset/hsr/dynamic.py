"""The contract of an index that can be changed: adding, deleting and moving points."""

from abc import abstractmethod

import numpy as np

from fireset._util.errors import InputError
from fireset.hsr.base import HalfSpaceIndex
from fireset.hsr.own_ids import OwnIds, checked_new_ids

MAX_IDS = 2**31 - 1  # points are numbered in 32 bits
_MAX_ID = np.iinfo(np.int64).max


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
    def _renumber(self, ids: np.ndarray, next_id: int) -> None:
        """Give point k, of n that were never changed, the id ``ids[k]``."""

    def add(self, points, ids=None) -> np.ndarray:
        points = self._checked_rows(points, "points")
        own = None if ids is None else checked_new_ids(ids, len(points))
        with self._lock.writing:
            own = self._own_ids_for(own, len(points))
            if self._next_id + len(points) > MAX_IDS:
                raise InputError(f"an index gives out at most {MAX_IDS:,} ids in its life; build a new one")
            numbers = np.arange(self._next_id, self._next_id + len(points))
            self._update_largest_norm(points)
            self._add(points, numbers)
            self._next_id += len(points)
            if own is not None:
                if self._own_ids is None:
                    self._own_ids = OwnIds(np.arange(numbers[0]), self._live_numbers(numbers[0]))
                self._own_ids.add(own)
        return numbers if own is None else own

    def _own_ids_for(self, given: np.ndarray | None, n: int) -> np.ndarray | None:
        """Ids for n new points where they are not numbers in the order of adding; an InputError if one is in use."""
        if given is None:
            if self._own_ids is None:
                return None
            if self._own_ids.next_id + n > _MAX_ID:
                raise InputError(f"the largest id is {self._own_ids.next_id - 1}; give ids for the new points")
            return np.arange(self._own_ids.next_id, self._own_ids.next_id + n)
        numbers = given if self._own_ids is None else self._own_ids.numbers(given)
        taken = self._contains(numbers)
        if taken.any():
            raise InputError(f"ids must not be in the index already; {given[taken].min()} is")
        return given if n else None

    def _live_numbers(self, stop: int) -> np.ndarray:
        """The numbers below ``stop`` of the points in the index."""
        numbers = np.arange(stop)
        return numbers[self._contains(numbers)]

    def restore_numbers(self, ids: np.ndarray, next_id: int) -> None:
        """Give the points of a new index numbers of an old one: int32, ascending, and all below ``next_id``."""
        with self._lock.writing:
            self._renumber(ids, next_id)
            self._next_id = next_id

    def delete(self, ids) -> None:
        with self._lock.writing:
            numbers = np.unique(self._checked_ids(ids))
            self._delete(numbers)
            if self._own_ids is not None:
                self._own_ids.remove(numbers)

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
