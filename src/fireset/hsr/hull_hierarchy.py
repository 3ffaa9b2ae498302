"""Static half-space reporting by hulls of nested random samples, for d ≥ 3 (after Part 2 of the AEM92 corollary).

Take random samples R_1 ⊂ R_2 ⊂ … of the points and the convex hull of each. Lemma: let v be the vertex of hull(R_j)
extreme in direction q. Every point p with ⟨q, p⟩ > ⟨q, v⟩ lies beyond a hull facet at v. (q lies in the cone of the
facets' normals, q = Σ λ_f n_f with λ ≥ 0, so Σ λ_f ⟨n_f, p − v⟩ > 0, and some term is positive.) So every vertex has
the list of all points beyond some facet at it, O(n/r_j) of them expected for each facet. Two things follow:

- the extreme vertex of R_{j+1} is that of R_j or in its list: the walk down the samples takes O(1) expected a level,
  for vertices of bounded degree;
- if the half-space misses R_j, all its points are in the list of the extreme vertex of R_j.

A query walks through the samples, and tests the list of the finest sample that its half-space misses. If the
half-space contains a point of the first sample, it tests all n points; then it usually has a large share of them.
Building (``fireset.hsr.hull_hierarchy_build``) uses queries, too: the points beyond a facet of R_{j+1} are those of a
half-space that misses R_j.

1. Deviation: *two* families of samples, independent of each other, of sizes r, 4r, 16r, … and 2r, 8r, 32r, … With one
   family, a half-space of k points has R_j as the last sample that it misses with probability about k r_j/n, if that is
   small, and then costs O(n/r_j): O(k) for every level, O(k log n) in all. With two, the probability is the product of
   two such numbers (Chan 2000, "Random sampling, halfspace range reporting, and construction of (≤k)-levels in three
   dimensions"), the sum is geometric, and the list has expected length O(k): a third for n = 5·10⁴, d = 3, k = 20.
2. Deviation: every list is proved to be complete before it is used. The weights λ of the lemma are computed and bound
   ⟨q, p⟩ for every point outside the list, rounding included (``fireset.kernels.hull_certificate``). If the bound is
   not sufficient, the list of a coarser sample is tried, and finally all points. So the way in which Qhull treats
   duplicates, coplanar points and slivers affects the time only, not the answers.
"""

import numpy as np

from fireset._util.errors import InputError
from fireset.hsr.base import Answers, HalfSpaceIndex, Queries
from fireset.hsr.hull_hierarchy_build import build
from fireset.kernels.hull_hierarchy import search

_MEMORY_LIMIT = 2 << 30  # bytes


class HullHierarchyIndex(HalfSpaceIndex):
    """Hulls of nested random samples with conflict lists, static, for d ≥ 3.

    Proved if the vertices of all hulls have bounded degree, as for points in general position: a query that finds k
    points takes O(log n + k) expected time; for d = 3 building takes O(n log n) expected time and memory. In general
    hulls of r points have up to O(r^⌊d/2⌋) facets, and there is no bound for queries below n: a vertex with many
    neighbours has a long list.

    Measured, d = 3: on a moment curve, and with half of the points on a circle and half on a spike above it, queries
    test n^0.4 to n^0.99 points, and the lists take gigabytes at n = 10⁵ (``fireset.hsr.cell_tree`` has no such case in
    three dimensions). For points on a sphere the index takes about 24 bytes for each point and level in d = 3 and 60 in
    d = 4, with log₂(n/100) levels. If all points are on a line, or there are fewer than the first sample needs, queries
    test all of them.

    Parameters
    ----------
    points : array (n, d)
    memory_limit : int, default 2 GiB
        Bytes that building may take, temporary copies included. If it would take more, an ``InputError`` is raised.
    """

    kind = "hull-hierarchy"

    def __init__(self, points: np.ndarray, memory_limit: int | None = None):
        super().__init__(points)
        if not self.suits(self.n_features):
            raise InputError(
                f"hull-hierarchy is for d of at least 3, got d = {self.n_features}; "
                "use 'convex-layers' or 'partition-tree'"
            )
        limit = _MEMORY_LIMIT if memory_limit is None else memory_limit
        if not limit > 0:
            raise InputError(f"memory_limit must be a positive number of bytes, got {memory_limit}")
        self._points = self._checked_rows(points, "points").copy()
        self._next_id = len(self._points)
        self._update_largest_norm(self._points)
        self._frame, self._levels = build(self._points, limit)

    @classmethod
    def suits(cls, n_features: int) -> bool:
        return n_features >= 3

    def __len__(self) -> int:
        return len(self._points)

    def _live_rows(self) -> tuple[np.ndarray, np.ndarray]:
        return np.arange(len(self._points), dtype=np.int32), self._points

    def _answer(self, queries: Queries, with_values: bool, ordered: bool) -> Answers:
        if self.dtype == np.float32:
            # A point whose true value does not exceed the threshold need not be found.
            queries = queries._replace(slacks=np.full(len(queries.normals), 1e-30))
        counts = np.empty(len(queries.normals), np.int64)
        work = np.zeros(2, np.int64)
        arrays = self._frame, self._levels
        parts, done = [], 0
        while done < len(queries.normals):
            ids = np.empty(2 * len(self) + 1, np.int32)  # space for the largest answer; unused pages cost nothing
            values = np.empty(len(ids) if with_values else 0, self.dtype)
            done, used = search(self._points, queries, *arrays, ordered, done, ids, values, counts, work)
            parts.append((ids[:used].copy(), values[:used].copy()))
        ids, values = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Answers(counts, ids, values, int(work[0]), int(work[1]))
