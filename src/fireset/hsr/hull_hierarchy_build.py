"""Build a hull hierarchy: reduced coordinates, samples and their hulls, lists, and limits on their memory."""

from collections.abc import Iterator
from math import ceil, exp, frexp, lgamma, log, pi, sqrt
from typing import NamedTuple, NoReturn

import numpy as np

from fireset._util.errors import InputError
from fireset._util.parallel import one_blas_thread, parallel_map
from fireset._util.rounding import dot_slack, row_norms
from fireset.kernels.hull_hierarchy import (
    FACET_END,
    FACET_START,
    FAMILIES,
    LIST_END,
    LIST_SPLIT,
    LIST_START,
    MAX_LEVELS,
    POINT,
    STEP_END,
    STEP_START,
)
from fireset.kernels.hull_hierarchy_build import find_beyond, link, unite

_FIRST_SAMPLE = 16  # points in the first sample for ρ = 3; doubled for every further dimension, as lists get longer
_MAX_FIRST_SAMPLE = 512
_GROWTH = 2  # size of a sample relative to the previous sample of the other family
_POINTS_PER_SAMPLED = 8  # at the last level: finer lists would save less than the walk to them costs
_SEED = 0
_MIN_SLACK = 1e-11  # distance of near and beyond from a facet, at least, in coordinates of size 1
_MAX_SLACK = 1e-3  # with a larger slack lists would be too long
_WELL_CONDITIONED = 1e-3  # ratio of singular values from which on coordinates are only scaled
_BLOCKS = 16  # of facets, distributed over the cores
_MAX_ENTRIES = 1 << 25  # entries of lists of facets in memory at a time
_PROBED_POINTS = 1024  # sample to estimate the dimension before all points are processed


class Frame(NamedTuple):
    """Reduced coordinates x̂: x = center + axes x̂ + δ with ‖x̂‖ ≤ radius and ‖δ‖ ≤ error_bound for every point x."""

    center: np.ndarray  # (d,)
    axes: np.ndarray  # (d, ρ)
    radius: float
    error_bound: float


class HierarchyArrays(NamedTuple):
    """The arrays of all levels; the layout is in ``fireset.kernels.hull_hierarchy``."""

    nodes: np.ndarray  # (nodes, 8) int64
    steps: np.ndarray  # int32
    step_points: np.ndarray  # int32
    incident: np.ndarray  # int32
    facets: np.ndarray  # (facets, ρ + 2) float64
    members: np.ndarray  # int32


def build(points: np.ndarray, memory_limit: int) -> tuple[Frame, HierarchyArrays]:
    """Build the hierarchy over points (n, d); raise an InputError if it would take more than ``memory_limit`` bytes."""
    n, d = points.shape
    with one_blas_thread():
        if d > 8:  # in high dimension a sample shows at little cost that the hulls would be too large
            probe = reduce_points(points[:: n // _PROBED_POINTS + 1])
            if probe is not None:
                rho = probe[1].shape[1]
                MemoryBudget(n, rho, d, memory_limit).check(_root_level(0, rho), list(_sample_sizes(n, rho)))
        reduction = reduce_points(points)
    if reduction is None:
        # Equal points, points on a line, or too few points: every query tests all of them.
        return Frame(np.zeros(d), np.zeros((d, 1)), 0.0, np.inf), _root_level(n, 1)
    frame, reduced, slack = reduction
    return frame, _build_levels(reduced, slack, frame.radius, MemoryBudget(n, reduced.shape[1], d, memory_limit))


def _root_level(n: int, rho: int) -> HierarchyArrays:
    """Create a hierarchy without levels: the root nodes, whose lists have all points."""
    nodes = np.zeros((FAMILIES, 8), np.int64)
    nodes[:, [LIST_SPLIT, LIST_END]] = n
    nodes[:, POINT] = -1
    none = np.empty(0, np.int32)
    return HierarchyArrays(nodes, none, none, none, np.empty((0, rho + 2)), np.arange(n, dtype=np.int32))


def reduce_points(points: np.ndarray) -> tuple[Frame, np.ndarray, float] | None:
    """Compute coordinates of size 1 in the affine space that the points span: (frame, x̂ (n, ρ), slack), or None.

    ρ is where the singular values, increased by the rounding error of the data, fall most steeply: a flat set gets the
    dimension that it has, and its deviation from flat goes into ``error_bound``. Lists extend below the facets by
    ``slack``, so that for all normals in that space it exceeds error bound and rounding error together. Returns None if
    ρ < 2, or if the slack would be too large because the distances between points are close to rounding errors. Cost
    O(n d²).
    """
    X = points.astype(np.float64)
    n, d = X.shape
    if n < 4:
        return None
    with np.errstate(all="ignore"):  # non-finite results of overflow are checked at the end
        # The point nearest to the mean: it lies in the affine space, and differences on a grid are exact.
        center = X[np.argmin(row_norms(X - X.mean(axis=0)))]
        Y = X - center
        scale = _power_of_two(np.abs(Y).max())
        norms = row_norms(X).max() + np.linalg.norm(center)
        unit = 4 * (d + 8) * np.finfo(np.float64).eps
        if not (0 < scale < np.inf and np.isfinite(norms)):
            return None
        _, sizes, directions = np.linalg.svd(np.linalg.qr(Y / scale, mode="r"), full_matrices=False)
        falls = (unit * norms / scale * sqrt(n) + np.append(sizes[1:], 0.0)) / np.maximum(sizes, 1e-300)
        rho = int(np.argmin(falls)) + 1
        if rho < 2:
            return None
        if rho == d and sizes[-1] >= _WELL_CONDITIONED * sizes[0]:
            axes = np.eye(d) * scale  # a power of two, so that coplanar points on a grid stay coplanar
            reduced = Y / scale
        else:
            along = Y @ directions[:rho].T
            heights = np.array([_power_of_two(height) for height in np.abs(along).max(axis=0)])
            axes = directions[:rho].T * heights
            reduced = along / heights
        radius = row_norms(reduced).max() * (1 + 1e-6)
        # The last term covers the rounding of the first, and of ⟨q, center⟩ and axesᵀ q in a query.
        error_bound = row_norms(Y - reduced @ axes.T).max() * (1 + 1e-6) + unit * (
            norms + np.linalg.norm(axes) * radius
        )
        rounding = dot_slack(d, points.dtype, 1.0, sqrt(d) * norms) if points.dtype == np.float64 else 0.0
        slack = 2 * (sqrt(d) * error_bound + rounding) / np.linalg.norm(axes, axis=0).min()
    if not (np.isfinite(reduced).all() and slack <= _MAX_SLACK):
        return None
    return (
        Frame(center, np.ascontiguousarray(axes), float(radius), float(error_bound)),
        reduced,
        max(_MIN_SLACK, float(slack)),
    )


def _power_of_two(value: float) -> float:
    """Return the least power of two above value; 0 for 0, infinity on overflow."""
    return float(np.ldexp(1.0, frexp(value)[1])) if value > 0 else 0.0


def _build_levels(reduced: np.ndarray, slack: float, radius: float, memory: "MemoryBudget") -> HierarchyArrays:
    """Build all levels over the reduced points (n, ρ), from coarse to fine, alternating between the families."""
    n, rho = reduced.shape
    rng = np.random.default_rng(_SEED)
    orders = [rng.permutation(n) for _ in range(FAMILIES)]
    levels = _root_level(n, rho)
    last_levels = [(family, family + 1) for family in range(FAMILIES)]  # nodes of each family's last level
    sizes = list(_sample_sizes(n, rho))[: MAX_LEVELS - FAMILIES]
    for level, size in enumerate(sizes):
        memory.check(levels, sizes[level:])
        family = level % FAMILIES
        sample = np.sort(orders[family][:size])
        hull = _hull(reduced[sample], radius)
        if hull is None:
            continue  # a sample that is flat or too fine for Qhull; the next one is larger
        corners, normals, offsets = hull
        # Slack decreases from level to level, so that old lists are proved complete for a facet that existed before.
        margin = slack * (2 - level / MAX_LEVELS)
        facets = np.column_stack([normals, offsets - margin, offsets + margin])
        n_nodes, n_members = len(levels.nodes), len(levels.members)
        levels = _add_level(levels, reduced, radius, sample[corners], facets, last_levels[family], memory)
        last_levels[family] = n_nodes, len(levels.nodes)
        memory.measured.append((size, len(facets), len(levels.members) - n_members))
    return levels


def _add_level(
    levels: HierarchyArrays,
    reduced: np.ndarray,
    radius: float,
    corners: np.ndarray,
    facets: np.ndarray,
    last_level: tuple[int, int],
    memory: "MemoryBudget",
) -> HierarchyArrays:
    """Return the hierarchy with one more level: the hull with ``facets`` and ``corners`` (facets, ρ), point indices.

    ``last_level`` is the range of nodes of the family's last level, which receive their steps.
    """
    first_node, first_facet = len(levels.nodes), len(levels.facets)
    points, vertices = np.unique(corners, return_inverse=True)
    incident = (np.argsort(vertices.ravel(), kind="stable") // corners.shape[1]).astype(np.int32)
    ends = np.cumsum(np.bincount(vertices.ravel()))
    starts = np.concatenate([[0], ends])
    bounds, members = _lists(levels, reduced, radius, facets, starts, incident, memory)

    next_nodes = np.full(len(reduced), -1, np.int32)
    next_nodes[points] = np.arange(first_node, first_node + len(points))
    step_bounds = np.empty((last_level[1] - last_level[0], 2), np.int64)
    arrays = levels.nodes, levels.members, next_nodes, step_bounds
    steps = np.empty(link(*last_level, *arrays, np.empty(0, np.int32)), np.int32)
    link(*last_level, *arrays, steps)

    nodes = np.zeros((len(points), 8), np.int64)
    nodes[:, POINT] = points
    nodes[:, FACET_START] = starts[:-1] + len(levels.incident)
    nodes[:, FACET_END] = ends + len(levels.incident)
    nodes[:, LIST_START:] = bounds + len(levels.members)
    nodes = np.concatenate([levels.nodes, nodes])
    nodes[last_level[0] : last_level[1], [STEP_START, STEP_END]] = step_bounds + len(levels.steps)
    return HierarchyArrays(
        nodes,
        np.concatenate([levels.steps, steps]),
        np.concatenate([levels.step_points, points[steps - first_node].astype(np.int32)]),
        np.concatenate([levels.incident, incident + np.int32(first_facet)]),
        np.concatenate([levels.facets, facets]),
        np.concatenate([levels.members, members]),
    )


def _lists(
    levels: HierarchyArrays,
    reduced: np.ndarray,
    radius: float,
    facets: np.ndarray,
    starts: np.ndarray,
    incident: np.ndarray,
    memory: "MemoryBudget",
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the lists of nodes v with the facets ``incident[starts[v]:starts[v + 1]]``.

    Returns (start, split, end) of each list, and the members of all. The list of a facet is computed once for all its
    corners. If the lists of all facets would take too much memory, nodes are processed in several groups, and the list
    of a facet is computed again for each group with one of its corners.
    """
    n, rho = reduced.shape
    n_nodes = len(starts) - 1
    expected = len(facets) * min(n, 2 * rho * n // n_nodes)
    n_groups = min(n_nodes, -(-expected // _MAX_ENTRIES))
    groups = np.array_split(np.arange(n_nodes), n_groups)
    marks = np.zeros(n, np.int8)
    all_bounds, parts = [], [np.empty(0, np.int32)]
    for group in groups:
        own_starts = starts[group[0] : group[-1] + 2]
        used, own_incident = np.unique(incident[own_starts[0] : own_starts[-1]], return_inverse=True)
        facet_starts, facet_lists = _facet_lists(levels, reduced, radius, facets[used], memory)
        arrays = facet_starts, facet_lists, own_starts - own_starts[0], own_incident, marks
        bounds = np.empty((len(group), 3), np.int64)
        count = unite(*arrays, bounds, np.empty(0, np.int32))
        memory.check_bytes(levels, 4 * (facet_lists.size + count + sum(len(part) for part in parts)))
        members = np.empty(count, np.int32)
        unite(*arrays, bounds, members)
        all_bounds.append(bounds + sum(len(part) for part in parts))
        parts.append(members)
    return np.concatenate(all_bounds), np.concatenate(parts)


def _facet_lists(
    levels: HierarchyArrays, reduced: np.ndarray, radius: float, facets: np.ndarray, memory: "MemoryBudget"
) -> tuple[np.ndarray, np.ndarray]:
    """Return (starts, lists): ``lists[starts[f]:starts[f + 1]]`` are p for points beyond facet f, ~p near it."""
    counts = np.empty(len(facets), np.int64)
    written = []

    def search(block: np.ndarray) -> np.ndarray:
        parts, done = [], int(block[0])
        while done <= block[-1]:
            found = np.empty(2 * len(reduced), np.int32)
            done, used = find_beyond(reduced, facets, done, block[-1] + 1, radius, levels, found, counts)
            written.append(used)
            memory.check_bytes(levels, 4 * sum(written))
            parts.append(found[:used].copy())
        return np.concatenate(parts)

    blocks = np.array_split(np.arange(len(facets)), min(len(facets), _BLOCKS))
    lists = np.concatenate(parallel_map(search, blocks))
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]), lists


def _sample_sizes(n: int, rho: int) -> Iterator[int]:
    size = max(rho + 1, min(ceil(_FIRST_SAMPLE * 2.0 ** min(rho - 3, 9)), _MAX_FIRST_SAMPLE))
    while size * _POINTS_PER_SAMPLED <= n:
        yield size
        size *= _GROWTH


def _hull(points: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return corners (facets, ρ), outer unit normals and offsets of the convex hull, or None if Qhull fails.

    Only the length of the normals and the size of the offsets are checked (deviation 2 of ``hull_hierarchy``).
    """
    from scipy.spatial import ConvexHull, QhullError

    try:
        hull = ConvexHull(points)
    except (QhullError, ValueError):
        return None
    lengths = np.linalg.norm(hull.equations[:, :-1], axis=1)
    if not (np.abs(lengths - 1) < 1e-6).all() or not (np.abs(hull.equations[:, -1]) < 1.5 * radius).all():
        return None
    return hull.simplices, hull.equations[:, :-1], -hull.equations[:, -1]


class MemoryBudget:
    """Estimate the memory that building takes, and raise an InputError if it exceeds the limit."""

    def __init__(self, n: int, rho: int, n_features: int, limit: int):
        self.n, self.n_features, self.rho, self.limit = n, n_features, rho, limit
        self.measured: list[tuple[int, int, int]] = []  # for each level: points sampled, facets, members of lists

    def check(self, levels: HierarchyArrays, sizes: list[int]) -> None:
        """Check that levels of these sizes will fit; only the next one until two levels have been measured."""
        estimate = self._estimate(levels, sizes)
        if (estimate if len(self.measured) > 1 else self._estimate(levels, sizes[:1])) > self.limit:
            self._refuse(estimate)

    def check_bytes(self, levels: HierarchyArrays, more: int) -> None:
        """Check that the arrays so far and ``more`` bytes are within the limit."""
        used = sum(array.nbytes for array in levels) + more
        if used > self.limit:
            self._refuse(used)

    def _estimate(self, levels: HierarchyArrays, sizes: list[int]) -> float:
        """Estimate the bytes at the end of building levels of these sizes after those built already.

        Arrays are copied when a level is added, so that there are two copies for a moment. Qhull takes about 200 + 50 ρ
        bytes for each facet, and its result another 50 ρ.
        """
        n, rho = self.n, self.rho
        kept = float(sum(array.nbytes for array in levels))
        temporary = 0.0
        for size in sizes:
            facets = self._extrapolate(1, size, size * _facets_per_point(rho))
            members = self._extrapolate(2, size, n * min(size, 2.0 ** min(rho, 60)))
            kept += facets * (12 * rho + 16) + 4 * members + 64 * size
            temporary = facets * (200 + 100 * rho) + 8 * min(_MAX_ENTRIES, facets * rho * n / size)
        return 2 * kept + temporary + 3 * 8 * n * self.n_features

    def _extrapolate(self, column: int, size: int, on_a_sphere: float) -> float:
        """Extrapolate facets (column 1) or members (2) of a level from the last two levels.

        On a sphere they grow faster than the sample only at first. So faster growth is extrapolated for three more
        levels only, which overestimates them by less than a factor of two.
        """
        if len(self.measured) < 2:
            return on_a_sphere
        before, now = self.measured[-2:]
        power = log(max(1, now[column]) / max(1, before[column])) / log(now[0] / before[0])
        growth = size / now[0]
        return now[column] * growth ** min(power, 1.0) * min(growth, 8.0) ** max(power - 1.0, 0.0)

    def _refuse(self, estimate: float) -> NoReturn:
        raise InputError(
            f"a hull-hierarchy over {self.n:,} points in {self.n_features} dimensions would take about "
            f"{_bytes(estimate)}, more than memory_limit = {_bytes(self.limit)}; use 'cell-tree' or 'scan'"
        )


def _facets_per_point(rho: int) -> float:
    """Return the facets per point of the hull of many points on a sphere: 2 for ρ = 3, 6.8, 32, 187, 1296, 10262 for 8.

    Their number is that of the simplices of a Delaunay triangulation in e = ρ − 1 dimensions (Møller 1994): 1/(e + 1)
    of 2^(e+1) π^((e−1)/2) / e² · Γ((e²+1)/2) / Γ(e²/2) · (Γ(e/2+1) / Γ((e+1)/2))^e.
    """
    e = rho - 1
    corners = (e + 1) * log(2) + (e - 1) / 2 * log(pi) - 2 * log(e) - log(e + 1)
    corners += lgamma((e * e + 1) / 2) - lgamma(e * e / 2) + e * (lgamma(e / 2 + 1) - lgamma((e + 1) / 2))
    return exp(min(corners, 300.0))


def _bytes(count: float) -> str:
    size, unit = (count / 2**30, "GB") if count >= 2**30 else (count / 2**20, "MB")
    if size >= 1e6:
        return f"{size:.0e} {unit}"
    return f"{size:,.0f} {unit}" if size >= 10 else f"{size:.1f} {unit}"
