"""All points within a distance of a center, exactly, by half-space reporting one dimension higher.

Lifting map: ‖p − c‖² ≤ r² is 2⟨c, p⟩ − ‖p‖² ≥ ‖c‖² − r², so a ball is a half-space for the lifted points (p, ‖p‖²). The
half-space is widened by the rounding of everything in that inequality. What it reports is decided by the squared
distance itself, computed in float64 as written:

    total = 0;  for each coordinate j, in order:  difference = p_j − c_j;  total = total + difference · difference

A point is within the radius if total ≤ r · r. Plain additions and multiplications, without fused ones, so that NumPy
computes the same bits.
"""

import numpy as np

from fireset._util.errors import InputError
from fireset._util.readers_writer_lock import ReadersWriterLock
from fireset.hsr.base import HalfSpaceIndex, IndexWork, Report
from fireset.hsr.registry import build

_MAX_COORDINATE = 1e150  # squares of larger ones may overflow
_CANDIDATES_AT_ONCE = 1 << 18
_EPS = float(np.finfo(np.float64).eps)
_UNDERFLOW = 1e-290


class BallIndex:
    """A set of points that reports which of them lie within a distance of a center.

    Points are kept in float64. Points can be added, deleted and moved unless ``kind`` is a static one; several threads
    may use an index at once. Where all points are far from the origin, subtract a constant from points and centers:
    the half-spaces are widened by the rounding of ‖p‖², which costs time.

    Parameters
    ----------
    points : array (n, d)
    kind : "auto" or a kind of ``fireset.hsr.build``
        Of the half-space index over the lifted points, which have d + 1 coordinates.
    ids : list of whole numbers, optional
        Ids for the points; by default 0, 1, 2, … in their order.
    options
        ``dynamic``, ``output`` and ``queries`` of ``fireset.hsr.build``, and what the kind takes.

    Examples
    --------
    >>> import numpy as np
    >>> from fireset.hsr import BallIndex
    >>> index = BallIndex(np.array([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]]))
    >>> index.query([0.0, 0.0], 5.0).tolist()
    [0, 1]
    """

    def __init__(self, points, kind: str = "auto", *, ids=None, **options):
        points = _checked_points(points, "points", None)
        self.n_features = points.shape[1]
        self._lock = ReadersWriterLock()
        self._index = build(_lifted(points), kind, ids=ids, **options)

    def __len__(self) -> int:
        return len(self._index)

    def __repr__(self) -> str:
        changes = "dynamic" if self._index.dynamic else "static"
        return f"<ball index ({self.kind}): {len(self):,} points, {self.n_features} features, {changes}>"

    @property
    def kind(self) -> str:
        """The kind of the half-space index."""
        return self._index.kind

    @property
    def work(self) -> IndexWork:
        """Work counts of the half-space index; points reported are those of the widened half-spaces."""
        return self._index.work

    @property
    def ids(self) -> np.ndarray:
        """The ids of the points in the index, ascending, int64."""
        return self._index.ids

    def get(self, ids) -> np.ndarray:
        """The points with these ids, (k, d), in the order of the ids; of one id, (d,)."""
        return self._index.get(ids)[..., : self.n_features].copy()

    def save(self, path) -> None:
        """Write points and ids to a safetensors file, atomically; ``fireset.hsr.load`` reads it. Queries go on.

        Deleted points are not written, but their ids stay taken.
        """
        with self._lock.reading:
            self._index.write(path, {"balls": True})

    @classmethod
    def over_lifted(cls, index: HalfSpaceIndex) -> "BallIndex":
        """Wrap an index over lifted points; a ValueError if its points are not lifted ones."""
        points = index.get(index.ids)[:, :-1]
        if index.n_features < 2 or index.dtype != np.float64:
            raise ValueError(f"lifted points have {index.n_features} coordinates and are {index.dtype}")
        if not np.array_equal(_lifted(_checked_points(points, "points", None)), index.get(index.ids)):
            raise ValueError("the last coordinate of its points is not the squared norm of the others")
        balls = cls.__new__(cls)
        balls.n_features = points.shape[1]
        balls._lock = ReadersWriterLock()
        balls._index = index
        return balls

    # Queries

    def query(self, center, radius: float) -> np.ndarray:
        """Sorted int64 ids of the points with ‖point − center‖ ≤ radius."""
        return self.report(np.reshape(center, (1, -1)), radius).ids.astype(np.int64)

    def query_batch(self, centers, radii) -> tuple[np.ndarray, np.ndarray]:
        """(indptr, ids): query k found ``ids[indptr[k]:indptr[k+1]]``, ascending; ``radii`` may be one number."""
        found = self.report(centers, radii)
        return found.indptr, found.ids

    def report(self, centers, radii) -> Report:
        """As ``query_batch``, with the squared distances as ``values``, float64."""
        centers = _checked_points(centers, "centers", self.n_features)
        radii = _checked_radii(radii, len(centers))
        with self._lock.reading:
            normals = np.column_stack([2 * centers, np.full(len(centers), -1.0)])
            found = self._index.search_numbers(normals, self._widened(centers, radii), False)
            squares, inside = self._decided(centers, radii, found)
            ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(inside, dtype=np.int64)])
            kept = Report(ends[found.indptr], found.ids[inside], squares[inside])
            return self._index.with_ids(kept)

    def _widened(self, centers: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """Thresholds below the lifted values of all points within the radii, whatever is rounded on the way."""
        with np.errstate(over="ignore", invalid="ignore"):
            norms, squares = (centers**2).sum(axis=1), radii**2
            largest = self._index.largest_norm  # of a lifted point, so that it also bounds ‖p‖²
            sizes = norms + squares + largest + np.sqrt(4 * norms + 1) * largest
            thresholds = norms - squares - (self.n_features + 16) * _EPS * sizes - _UNDERFLOW
        return np.where(np.isnan(thresholds), -np.inf, thresholds)

    def _decided(self, centers: np.ndarray, radii: np.ndarray, found: Report) -> tuple[np.ndarray, np.ndarray]:
        """Squared distances of all candidates, and which of them are within the radius."""
        owners = np.repeat(np.arange(len(centers)), np.diff(found.indptr))
        squares = np.empty(len(found.ids))
        for lo in range(0, len(squares), _CANDIDATES_AT_ONCE):
            some = slice(lo, lo + _CANDIDATES_AT_ONCE)
            points = self._index.points_by_number(found.ids[some])
            squares[some] = squared_distances(points[:, : self.n_features], centers[owners[some]])
        with np.errstate(over="ignore"):
            return squares, squares <= (radii * radii)[owners]

    # Changes

    def add(self, points, ids=None) -> np.ndarray:
        """Add rows; returns their ids, which are ``ids`` if they are given."""
        lifted = _lifted(_checked_points(points, "points", self.n_features))
        with self._lock.writing:
            return self._index.add(lifted, ids)

    def delete(self, ids) -> None:
        """Remove points by id. If an id is not in the index, an InputError is raised and nothing is removed."""
        with self._lock.writing:
            self._index.delete(ids)

    def move(self, ids, points) -> None:
        """Give the points of these ids new coordinates; they keep their ids."""
        lifted = _lifted(_checked_points(points, "points", self.n_features))
        with self._lock.writing:
            self._index.move(ids, lifted)


def squared_distances(points: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """‖p − c‖² row by row, float64: the definition at the head of this file. The centers may be one, (d,)."""
    total = np.zeros(len(points))
    for p, c in zip(points.T, np.broadcast_to(centers, points.shape).T, strict=True):
        difference = p - c
        total = total + difference * difference
    return total


def _lifted(points: np.ndarray) -> np.ndarray:
    return np.column_stack([points, (points**2).sum(axis=1)])


def _checked_points(points, name: str, n_features: int | None) -> np.ndarray:
    try:
        points = np.ascontiguousarray(points, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a matrix of numbers: {error}") from None
    shape = f"(n, {'d' if n_features is None else n_features})"
    if points.ndim != 2 or points.shape[1] == 0 or (n_features is not None and points.shape[1] != n_features):
        raise InputError(f"{name} must have shape {shape}, got {points.shape}")
    small = np.abs(points) <= _MAX_COORDINATE  # False for NaN
    if not small.all():
        row, column = np.argwhere(~small)[0]
        raise InputError(
            f"{name} must be finite and at most {_MAX_COORDINATE:g} in size, got {points[row, column]:g} "
            f"in row {row}; rescale them"
        )
    return points


def _checked_radii(radii, n: int) -> np.ndarray:
    try:
        radii = np.asarray(radii, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"radii must be numbers: {error}") from None
    if radii.ndim == 0:
        radii = np.full(n, radii[()])
    if radii.shape != (n,):
        raise InputError(f"radii must have shape ({n},) or be one number, got {radii.shape}")
    if not (radii >= 0).all():
        raise InputError(f"radii must be at least 0, got {radii[~(radii >= 0)][0]:g}")
    return radii
