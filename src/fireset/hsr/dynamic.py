"""The contract of an index that can be changed: adding, deleting and moving points."""

from abc import abstractmethod

import numpy as np

from fireset._util.errors import InputError
from fireset.hsr.base import HalfSpaceIndex

MAX_IDS = 2**31 - 1  # ids are kept in 32 bits


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

    @abstractmethod
    def _renumber(self, ids: np.ndarray, next_id: int) -> None:
        """Give point k, of n that were never changed, the id ``ids[k]``."""

    def add(self, points) -> np.ndarray:
        points = self._checked_rows(points, "points")
        with self._lock.writing:
            if self._next_id + len(points) > MAX_IDS:
                raise InputError(f"an index gives out at most {MAX_IDS:,} ids in its life; build a new one")
            ids = np.arange(self._next_id, self._next_id + len(points))
            self._update_largest_norm(points)
            self._add(points, ids)
            self._next_id += len(points)
        return ids

    def restore_ids(self, ids: np.ndarray, next_id: int) -> None:
        """Give the points of a new index ids of an old one: int32, ascending, and all below ``next_id``."""
        with self._lock.writing:
            self._renumber(ids, next_id)
            self._next_id = next_id

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
