"""Ids of the caller's choice for the points of an index.

An index numbers its points from 0 on, in the order of adding. ``OwnIds`` translates between these numbers and the ids
that a caller gave: any 64-bit integers, each at most once at a time.
"""

import numpy as np

from fireset._util.errors import InputError


class OwnIds:
    """The ids of points by number, and the numbers of the points that are in the index by id.

    Attributes
    ----------
    next_id : int
        One more than the largest id so far, and at least 0: the id of the next point that is added without one.
    """

    def __init__(self, ids: np.ndarray, live: np.ndarray, next_id: int = 0):
        """``ids[k]`` is the id of point k, int64; ``live`` are the numbers of the points in the index."""
        self._ids = ids
        self._numbers = dict(zip(ids[live].tolist(), live.tolist(), strict=True))
        self.next_id = max(next_id, int(ids.max(initial=-1)) + 1)

    def of(self, numbers: np.ndarray) -> np.ndarray:
        """The ids of these points, int64."""
        return self._ids[numbers]

    def numbers(self, ids: np.ndarray) -> np.ndarray:
        """The numbers of the points with these ids, −1 where there is none."""
        return np.fromiter((self._numbers.get(i, -1) for i in ids.tolist()), np.int64, len(ids))

    def add(self, ids: np.ndarray) -> None:
        """Give the next points these ids, which are not in use."""
        first = len(self._ids)
        self._ids = np.concatenate([self._ids, ids])
        self._numbers.update(zip(ids.tolist(), range(first, first + len(ids)), strict=True))
        self.next_id = max(self.next_id, int(ids.max(initial=-1)) + 1)

    def remove(self, numbers: np.ndarray) -> None:
        """The points of these numbers have been deleted; their ids may be given again."""
        for own in self._ids[numbers].tolist():
            del self._numbers[own]


def checked_new_ids(ids, n: int) -> np.ndarray:
    """n different whole numbers as int64, or an InputError."""
    ids = checked_whole_numbers(ids)
    if len(ids) != n:
        raise InputError(f"ids must have one number for each of the {n} points, got {len(ids)}")
    different, counts = np.unique(ids, return_counts=True)
    if len(different) < n:
        raise InputError(f"ids must be different; {different[counts > 1][0]} is given {counts.max()} times")
    return ids


def checked_whole_numbers(ids) -> np.ndarray:
    """A list of whole numbers as int64, or an InputError."""
    ids = np.asarray(ids)
    if ids.ndim != 1:
        raise InputError(f"ids must be a list of whole numbers, got shape {ids.shape}")
    if ids.size and ids.dtype.kind not in "iu":
        raise InputError(f"ids must be whole numbers, got {ids.dtype}")
    if ids.dtype == np.uint64 and ids.size and ids.max() > np.iinfo(np.int64).max:
        raise InputError(f"ids must be at most {np.iinfo(np.int64).max}, got {ids.max()}")
    return ids.astype(np.int64)
