"""Map between the numbers of the points of an index and ids that the caller chose.

An index numbers its points from 0 on in the order of adding. Ids of the caller are any 64-bit integers, each of at most
one point at a time.
"""

import numpy as np

from fireset._util.errors import InputError


class IdMap:
    """Ids by number, and numbers by id.

    Parameters
    ----------
    ids : array (n,) int64
        ``ids[k]`` is the id of point k.
    live : array
        Numbers of the points in the index.
    next_id : int
        Lower bound for the attribute.

    Attributes
    ----------
    next_id : int
        One more than the largest id so far, at least 0: the id of the next point that is added without an id.
    """

    def __init__(self, ids: np.ndarray, live: np.ndarray, next_id: int = 0):
        self._ids = ids
        self._numbers = dict(zip(ids[live].tolist(), live.tolist(), strict=True))
        self.next_id = max(next_id, int(ids.max(initial=-1)) + 1)

    def ids_of(self, numbers: np.ndarray) -> np.ndarray:
        """Return the ids of these points, int64."""
        return self._ids[numbers]

    def numbers_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the numbers of the points with these ids, int64; −1 for ids that are not in the index."""
        return np.fromiter((self._numbers.get(i, -1) for i in ids.tolist()), np.int64, len(ids))

    def add(self, ids: np.ndarray) -> None:
        """Assign these ids, which are not in use, to the next points."""
        first = len(self._ids)
        self._ids = np.concatenate([self._ids, ids])
        self._numbers.update(zip(ids.tolist(), range(first, first + len(ids)), strict=True))
        self.next_id = max(self.next_id, int(ids.max(initial=-1)) + 1)

    def remove(self, numbers: np.ndarray) -> None:
        """Free the ids of deleted points."""
        for user_id in self._ids[numbers].tolist():
            del self._numbers[user_id]


def check_new_ids(ids, n: int) -> np.ndarray:
    """Return n different integers as int64, or raise an InputError."""
    ids = check_ids(ids)
    if len(ids) != n:
        raise InputError(f"ids must have one number for each of the {n} points, got {len(ids)}")
    different, counts = np.unique(ids, return_counts=True)
    if len(different) < n:
        raise InputError(f"ids must be different, got {different[counts > 1][0]} {counts.max()} times")
    return ids


def check_ids(ids) -> np.ndarray:
    """Return a list of integers as int64, or raise an InputError."""
    ids = np.asarray(ids)
    if ids.ndim != 1:
        raise InputError(f"ids must be a list of whole numbers, got shape {ids.shape}")
    if ids.size and ids.dtype.kind not in "iu":
        raise InputError(f"ids must be whole numbers, got {ids.dtype}")
    if ids.dtype == np.uint64 and ids.size and ids.max() > np.iinfo(np.int64).max:
        raise InputError(f"ids must be at most {np.iinfo(np.int64).max}, got {ids.max()}")
    return ids.astype(np.int64)
