"""The contract of a half-space index (the paper's Algorithm "half space report data structure")."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fireset.errors import InputError


class Report(NamedTuple):
    """Answers to a batch of queries: query k found ``ids[indptr[k]:indptr[k+1]]``, ascending, with these values.

    Ids may come as 32-bit integers, which take half the room. A value is the computed ⟨normal, point⟩: within
    ``fireset.rounding.dot_slack`` of the true one.
    """

    indptr: np.ndarray
    ids: np.ndarray
    values: np.ndarray


@dataclass
class IndexWork:
    """What an index did so far."""

    queries: int = 0
    points_tested: int = 0
    points_reported: int = 0


class HalfSpaceIndex(ABC):
    """A set of points that reports which of them lie strictly above a hyperplane.

    Ids are given out in the order of adding, from 0 on, and never change or return. In float64 every kind reports
    exactly the points with ``deciding_dot(normal, point) > threshold`` (``fireset.kernels.firing``); in float32 points
    within rounding distance of the threshold may fall on either side.
    """

    kind: str
    n_features: int
    dtype: np.dtype
    work: IndexWork

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def report(self, normals, thresholds) -> Report:
        """Ids and values of the points above each (normals[k], thresholds[k])."""

    @abstractmethod
    def add(self, points) -> np.ndarray:
        """Add rows; returns their ids."""

    @abstractmethod
    def delete(self, ids) -> None:
        """Remove points by id. An id that is not there is refused and nothing is removed."""

    def query(self, normal, threshold: float) -> np.ndarray:
        """Sorted int64 ids with ⟨normal, point⟩ > threshold."""
        if np.ndim(threshold) != 0:
            raise InputError(f"threshold must be one number, got shape {np.shape(threshold)}")
        return self.report(np.reshape(normal, (1, -1)), np.reshape(threshold, 1)).ids.astype(np.int64)

    def query_batch(self, normals, thresholds) -> tuple[np.ndarray, np.ndarray]:
        """(indptr, ids): query k found ``ids[indptr[k]:indptr[k+1]]``, ascending."""
        found = self.report(normals, thresholds)
        return found.indptr, found.ids.astype(np.int64)

    def check_points(self, points, name: str = "points") -> np.ndarray:
        """Rows of the index's dimension and precision, or an InputError."""
        try:
            points = np.ascontiguousarray(points, self.dtype)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} must be a matrix of numbers: {error}") from None
        if points.ndim != 2 or points.shape[1] != self.n_features:
            raise InputError(f"{name} must have shape (n, {self.n_features}), got {points.shape}")
        if not np.isfinite(points).all():
            raise InputError(f"{name} must be finite; row {np.argwhere(~np.isfinite(points))[0][0]} is not")
        return points


def build(points, kind: str = "auto") -> HalfSpaceIndex:
    """An index over the rows of ``points``; "auto" is "scan", the right kind in high dimension and the ground truth."""
    from fireset.hsr.scan import ScanIndex

    kinds = {"auto": ScanIndex, "scan": ScanIndex}
    if kind not in kinds:
        raise InputError(f"kind must be one of {', '.join(kinds)}; got {kind!r}")
    try:
        points = np.asarray(points)
        if points.dtype != np.float32:
            points = points.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"points must be a matrix of numbers: {error}") from None
    if points.ndim != 2:
        raise InputError(f"points must have shape (n, d), got {points.shape}")
    return kinds[kind](points)
