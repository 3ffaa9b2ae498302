"""The hull hierarchy against brute force, on sets that are hard for hulls, and its work counts."""

import pickle
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset import InputError
from fireset.hsr import hull_hierarchy_build as building
from fireset.hsr.hull_hierarchy import HullHierarchyIndex
from fireset.kernels.firing import deciding_dot
from fireset.kernels.hull_certificate import COMPLETE, certify
from fireset.kernels.hull_hierarchy import (
    FACET_END,
    FACET_START,
    FAMILIES,
    LIST_END,
    LIST_SPLIT,
    LIST_START,
    POINT,
)
from support.checks import sphere


def many_levels(points, **options) -> HullHierarchyIndex:
    """An index with samples so small that a few dozen points make several levels."""
    with mock.patch.multiple(building, _FIRST_SAMPLE=4, _POINTS_PER_SAMPLED=2):
        return HullHierarchyIndex(np.asarray(points), **options)


def n_levels(index) -> int:
    """Levels that have hulls."""
    firsts = index._levels.nodes[FAMILIES:, POINT]
    return 0 if len(firsts) == 0 else 1 + int((np.diff(firsts) < 0).sum())  # points ascend within a level


def above(points, normal, threshold) -> list[int]:
    return [i for i, point in enumerate(points) if deciding_dot(normal, point) > threshold]


def assert_is_brute_force(index, points, normals, thresholds):
    found = index.report(normals, thresholds)
    for k, (normal, threshold) in enumerate(zip(normals, thresholds, strict=True)):
        own = slice(found.indptr[k], found.indptr[k + 1])
        assert found.ids[own].tolist() == above(points, normal, threshold)
        assert (found.values[own] > threshold).all()


def hard_queries(rng, points, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Directions in which many points tie or nearly tie, with thresholds on inner products and their neighbours."""
    n, d = points.shape
    normals = rng.standard_normal((count, d))
    normals[::4] = rng.integers(-2, 3, (len(normals[::4]), d))
    for k in range(1, count, 4):
        normals[k] = points[rng.integers(n)] - points[rng.integers(n)]
    for k in range(2, count, 4):  # the normal of a hyperplane through d points
        corners = points[rng.integers(0, n, d)]
        normals[k] = np.linalg.svd(corners[1:] - corners[0])[2][-1]
    thresholds = np.empty(count)
    for k, normal in enumerate(normals):
        order = np.argsort(points @ normal)
        rank = int(rng.choice([0, 0, 1, 2, 5, n // 10, n // 2, n - 1]))
        exact = deciding_dot(normal, points[order[max(0, n - 1 - rank)]])
        thresholds[k] = rng.choice([exact, np.nextafter(exact, np.inf), np.nextafter(exact, -np.inf), exact * 1.001])
    return normals, thresholds


# Exactness


@st.composite
def grids(draw):
    """Points, normals and thresholds in quarters: many ties, duplicates and coplanar points, no rounding."""
    d = draw(st.sampled_from([3, 4]))
    reach = draw(st.sampled_from([1, 2, 8]))
    n, k = draw(st.integers(0, 70)), draw(st.integers(1, 12))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    points = rng.integers(-reach, reach + 1, (n, d)) / 4
    normals = np.array(draw(st.lists(st.lists(st.integers(-3, 3), min_size=d, max_size=d), min_size=k, max_size=k))) / 4
    thresholds = np.array(draw(st.lists(st.integers(-4 * reach, 4 * reach), min_size=k, max_size=k))) / 16
    return points, normals, thresholds


@settings(max_examples=150)
@given(case=grids())
def test_grids(case):
    points, normals, thresholds = case
    assert_is_brute_force(many_levels(points), points, normals, thresholds)


@settings(max_examples=60)
@given(
    rows=st.integers(3, 4).flatmap(
        lambda d: st.lists(st.lists(st.integers(-2, 2), min_size=d, max_size=d), min_size=8, max_size=40)
    )
)
def test_grids_that_can_be_shrunk(rows):
    points = np.array(rows, float)
    normals, thresholds = hard_queries(np.random.default_rng(0), points, 12)
    assert_is_brute_force(many_levels(points), points, normals, thresholds)


@pytest.mark.parametrize("d", [3, 4, 5])
@pytest.mark.parametrize("shape", ["sphere", "normal", "cube surface"])
def test_thresholds_at_inner_products(shape, d):
    rng = np.random.default_rng(d)
    points = sphere(rng, 500, d) if shape == "sphere" else rng.standard_normal((500, d))
    if shape == "cube surface":
        points /= np.abs(points).max(axis=1, keepdims=True)
    index = many_levels(points)
    assert n_levels(index) >= 4
    assert_is_brute_force(index, points, *hard_queries(rng, points, 120))


@pytest.mark.parametrize("d", [6, 7])
def test_higher_dimensions(d):
    rng = np.random.default_rng(d)
    points = np.vstack([sphere(rng, 100, d), rng.integers(-1, 2, (100, d)) / 2])
    index = many_levels(points)
    assert n_levels(index) >= 1
    assert_is_brute_force(index, points, *hard_queries(rng, points, 60))


@pytest.mark.parametrize(("d", "rank"), [(d, rank) for d in (3, 4, 5) for rank in range(d)])
def test_flat_sets(d, rank):
    rng = np.random.default_rng(10 * d + rank)
    turned = rng.standard_normal((200, rank)) @ rng.standard_normal((rank, d)) + rng.standard_normal(d)
    on_axes = np.zeros((200, d))
    on_axes[:, :rank] = rng.integers(-3, 4, (200, rank))
    for points in (turned, on_axes + rng.integers(-3, 4, d), on_axes[:, ::-1] * 1e-3 + 1.0):
        index = many_levels(points)
        assert n_levels(index) >= 3 if rank >= 2 else n_levels(index) == 0
        if rank >= 2:
            assert index._frame.axes.shape == (d, rank)
        assert_is_brute_force(index, points, *hard_queries(rng, points, 40))


def spread(rng, n: int, d: int) -> dict[str, np.ndarray]:
    points = rng.standard_normal((n, d))
    few = rng.standard_normal((6, d))
    cone = points.copy()
    cone[:, 0] = np.linalg.norm(points[:, 1:], axis=1)
    cone[0] = 0.0
    curve = rng.uniform(-1, 1, n)
    return {
        "tiny": points * 1e-25,
        "vanishing": points * 1e-170,
        "large": points * 1e140,
        "overflowing": points * 1e160,
        "far away": points + 1e5,
        "too far away": points * 1e-9 + 1e5,
        "thin": points * 10.0 ** -np.arange(0, 3 * d, 3),
        "thinner": points * np.array([1.0] * (d - 1) + [1e-12]),
        "clusters": few[rng.integers(0, 6, n)] + points * 1e-7,
        "tight clusters": few[rng.integers(0, 6, n)] + points * 1e-12,
        "clusters at rounding": few[rng.integers(0, 6, n)] + points * 1e-16,
        "duplicates": few[rng.integers(0, 6, n)],
        "corners of a cube": rng.integers(0, 2, (n, d)).astype(float),
        "nearly a sphere": sphere(rng, n, d) + points * 1e-14,
        "cone": cone,
        "moment curve": np.stack([curve ** (j + 1) for j in range(d)], axis=1)[:60],
        "on a line but for one": np.vstack([np.outer(curve, few[0]), few[1]]),
    }


@pytest.mark.parametrize("d", [3, 4])
@pytest.mark.parametrize("name", spread(np.random.default_rng(0), 1, 3))
def test_coordinates_of_all_sizes(name, d):
    rng = np.random.default_rng(d)
    points = spread(rng, 300, d)[name]
    with np.errstate(all="ignore"):
        normals, thresholds = hard_queries(rng, points, 60)
        usable = np.isfinite(normals).all(axis=1) & np.isfinite(thresholds)
        assert usable.sum() >= 40
        assert_is_brute_force(many_levels(points), points, normals[usable], thresholds[usable])


@pytest.mark.parametrize("d", [3, 4])
@pytest.mark.parametrize("n", range(8))
def test_few_points(n, d):
    rng = np.random.default_rng(n)
    points = rng.integers(-1, 2, (n, d)).astype(float)
    index = many_levels(points)
    assert len(index) == n
    normals = rng.integers(-1, 2, (20, d)).astype(float)
    assert_is_brute_force(index, points, normals, rng.integers(-2, 3, 20).astype(float))


def test_zero_normals_and_infinite_thresholds():
    points = sphere(np.random.default_rng(0), 200, 3)
    index, everyone = many_levels(points), list(range(200))
    assert index.query([0.0, 0.0, 0.0], 0.0).tolist() == []
    assert index.query([0.0, -0.0, 0.0], -1e-300).tolist() == everyone
    assert index.query([0.0, 0.0, 0.0], 1e-300).tolist() == []
    assert index.query([1.0, 1.0, 0.0], -np.inf).tolist() == everyone
    assert index.query([1.0, 1.0, 0.0], np.inf).tolist() == []
    assert index.query([1.0, 1.0, 0.0], 1e300).tolist() == []
    assert index.query([1e-300, 0.0, 0.0], 1e-301).tolist() == above(points, np.array([1e-300, 0.0, 0.0]), 1e-301)
    assert index.query([1e300, 0.0, 0.0], 5e299).tolist() == above(points, np.array([1e300, 0.0, 0.0]), 5e299)


def test_inner_products_that_overflow():
    """Sums overflow in some orders only; the inner product with the center may overflow as well."""
    rng = np.random.default_rng(0)
    around_zero = rng.standard_normal((300, 5)) * 1e154
    far_away = (1 + 0.1 * rng.standard_normal((300, 3))) * 1e154
    any_direction = rng.standard_normal((60, 5)) * 1e154
    inwards = -(1 + 0.05 * rng.random((60, 3))) * 5.9e153
    for points, normals in ((around_zero, any_direction), (far_away, inwards)):
        values = np.array([[deciding_dot(normal, point) for point in points] for normal in normals])
        finite = np.isfinite(values)
        assert 0.1 < finite.mean() < 0.9
        thresholds = [np.sort(row[which])[-5] for row, which in zip(values, finite, strict=True)]
        assert_is_brute_force(many_levels(points), points, normals, np.array(thresholds))


def test_outputs_of_all_sizes():
    rng = np.random.default_rng(1)
    points, normals = sphere(rng, 3000, 3), rng.standard_normal((25, 3))
    products = np.sort(normals @ points.T, axis=1)
    index = HullHierarchyIndex(points)
    assert n_levels(index) >= 4
    for k in (0, 1, 10, 100, 1000, 2999, 3000):
        thresholds = products[:, 2999 - k] if k < 3000 else np.full(25, -10.0)
        indptr, ids = index.query_batch(normals, thresholds)
        near = np.abs(np.diff(indptr) - k) <= 1  # thresholds come from BLAS, not from deciding_dot
        assert near.all()
        for q in range(25):
            own = ids[indptr[q] : indptr[q + 1]]
            assert own.tolist() == above(points, normals[q], thresholds[q])
    unordered = index.report(normals, np.zeros(25), ordered=False)
    products = np.einsum("ij,ij->i", np.repeat(normals, np.diff(unordered.indptr), axis=0), points[unordered.ids])
    np.testing.assert_allclose(unordered.values, products, rtol=0, atol=1e-14)


def test_ids_ascend_if_both_parts_of_a_list_are_reported():
    """The top face of a cube, from just below and from far below: both parts of a list report something."""
    rng = np.random.default_rng(2)
    points = rng.integers(-4, 5, (2000, 3)) / 4
    index = many_levels(points)
    normals = np.array([[0.0, 0.0, 1.0], [0.0, 1e-13, 1.0], [1e-12, 1e-13, 1.0]])
    for threshold in (np.nextafter(1.0, 0), 1.0, 1 - 1e-12, 1 - 1e-11, 0.9):
        assert_is_brute_force(index, points, normals, np.full(3, threshold))


@pytest.mark.slow
def test_float32_is_correct_up_to_rounding():
    rng = np.random.default_rng(0)
    points, normals = sphere(rng, 800, 4).astype(np.float32), rng.standard_normal((60, 4))
    index = many_levels(points)
    assert index.dtype == np.float32
    exact = normals.astype(np.float32).astype(float) @ points.astype(float).T
    found = index.report(normals, np.full(60, 1.2))
    assert found.values.dtype == np.float32
    for k in range(60):
        reported = np.zeros(800, bool)
        reported[found.ids[found.indptr[k] : found.indptr[k + 1]]] = True
        clear = np.abs(exact[k] - 1.2) > 1e-5
        assert np.array_equal(reported[clear], (exact[k] > 1.2)[clear])


# Invariants


@pytest.mark.parametrize("d", [3, 4])
def test_the_lemma(d):
    """Points above a hull vertex, in a direction in which it is extreme, are beyond a facet at it."""
    rng = np.random.default_rng(d)
    points = rng.standard_normal((600, d))
    index = many_levels(points)
    nodes, members = index._levels.nodes, index._levels.members
    starts = np.flatnonzero(np.diff(nodes[FAMILIES:, POINT], prepend=nodes[FAMILIES, POINT] + 1) < 0) + FAMILIES
    for level in np.split(nodes, starts)[1:]:
        for direction in rng.standard_normal((20, d)):
            products = points @ direction
            vertex = level[np.argmax(products[level[:, POINT]])]
            above_it = np.flatnonzero(products > products[vertex[POINT]])
            assert set(above_it) <= set(members[vertex[LIST_START] : vertex[LIST_SPLIT]].tolist())


@pytest.mark.parametrize("shape", ["sphere", "grid"])
def test_lists_are_those_of_brute_force(shape):
    rng = np.random.default_rng(0)
    points = sphere(rng, 300, 3) if shape == "sphere" else rng.integers(-3, 4, (300, 3)).astype(float)
    index = many_levels(points)
    reduced = (points - index._frame.center) @ np.linalg.inv(index._frame.axes).T
    nodes, _, _, incident, facets, members = index._levels
    for node in nodes[FAMILIES:]:
        own = facets[incident[node[FACET_START] : node[FACET_END]]]
        products = reduced @ own[:, :3].T
        near, beyond = (products > own[:, 3]).any(axis=1), (products > own[:, 4]).any(axis=1)
        first = members[node[LIST_START] : node[LIST_SPLIT]]
        second = members[node[LIST_SPLIT] : node[LIST_END]]
        assert first.tolist() == np.flatnonzero(beyond).tolist()
        assert second.tolist() == np.flatnonzero(near & ~beyond).tolist()


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("shape", ["normal", "grid", "clusters"])
def test_a_certificate_holds_in_exact_arithmetic(shape):
    """The smallest limit that is certified still bounds every point outside the list, computed with fractions."""
    rng = np.random.default_rng(0)
    points = {
        "normal": rng.standard_normal((120, 3)),
        "grid": rng.integers(-2, 3, (120, 3)) / 2,
        "clusters": rng.standard_normal((5, 3))[rng.integers(0, 5, 120)] + 1e-9 * rng.standard_normal((120, 3)),
    }[shape]
    index = many_levels(points)
    reduced = (points - index._frame.center) / index._frame.axes[0, 0]
    assert np.array_equal(reduced * index._frame.axes[0, 0], points - index._frame.center)
    exact = [[Fraction(x) for x in row] for row in reduced]
    nodes, _, _, incident, facets, members = index._levels
    scratch = np.empty(3, np.int64), np.empty((9, 3))
    close = 0
    for direction in sphere(rng, 60, 3):
        best = max(sum(Fraction(a) * b for a, b in zip(direction, row, strict=True)) for row in exact)
        for node in nodes[rng.integers(FAMILIES, len(nodes), 5)]:
            low, high = -4.0, 4.0
            for _ in range(60):
                middle = (low + high) / 2
                own = node[FACET_START], node[FACET_END]
                status, _ = certify(direction, middle, index._frame.radius, facets, incident, *own, *scratch)
                low, high = (low, middle) if status >= COMPLETE else (middle, high)
            listed = set(members[node[LIST_START] : node[LIST_END]].tolist())
            for i in set(range(120)) - listed:
                assert sum(Fraction(a) * b for a, b in zip(direction, exact[i], strict=True)) <= Fraction(high)
            close += high < best
    assert close > 20  # the bound is often tight, not only valid


@pytest.mark.parametrize("rho", [2, 3, 5])
def test_a_certificate_survives_rounding(rho):
    """A point on all facets up to rounding: only the rounding term of the bound is left."""
    rng = np.random.default_rng(rho)
    scratch = np.empty(rho, np.int64), np.empty((2 * rho + 3, rho))
    for _ in range(300):
        point = sphere(rng, 1, rho)[0]
        normals = sphere(rng, 2 * rho, rho) * 10.0 ** -rng.integers(0, 4) + point
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)
        offsets = normals @ point
        facets = np.column_stack([normals, offsets, offsets])
        direction = rng.random(2 * rho) @ normals
        direction /= np.linalg.norm(direction)
        low, high = 0.0, 2.0
        for _ in range(60):
            middle = (low + high) / 2
            status, _ = certify(direction, middle, 1.0 + 1e-6, facets, np.arange(2 * rho), 0, 2 * rho, *scratch)
            low, high = (low, middle) if status >= COMPLETE else (middle, high)
        exact = sum(Fraction(a) * Fraction(b) for a, b in zip(direction, point, strict=True))
        assert 0 <= Fraction(high) - exact < 1e-12


@pytest.mark.parametrize("trouble", ["no hull", "noise", "wrong corners", "inside out"])
def test_answers_do_not_depend_on_qhull(trouble, monkeypatch):
    rng = np.random.default_rng(3)
    original = building._hull

    def spoiled(points, radius):
        hull = original(points, radius)
        if hull is None or trouble == "no hull":
            return None
        corners, normals, offsets = hull
        if trouble == "noise":
            return (
                corners,
                normals + 1e-7 * rng.standard_normal(normals.shape),
                offsets - 1e-3 * rng.random(len(offsets)),
            )
        if trouble == "wrong corners":
            return rng.permutation(corners.ravel()).reshape(corners.shape), normals, offsets
        return corners, -normals, -offsets

    monkeypatch.setattr(building, "_hull", spoiled)
    points = sphere(rng, 400, 3)
    index = many_levels(points)
    assert (n_levels(index) == 0) == (trouble == "no hull")
    assert_is_brute_force(index, points, *hard_queries(rng, points, 80))


def test_lists_do_not_depend_on_groups(monkeypatch):
    points = sphere(np.random.default_rng(0), 500, 4)
    whole = many_levels(points)
    monkeypatch.setattr(building, "_MAX_ENTRIES", 1000)
    for a, b in zip(whole._levels, many_levels(points)._levels, strict=True):
        assert np.array_equal(a, b)


def test_answers_larger_than_the_buffer():
    points = sphere(np.random.default_rng(0), 300, 3)
    indptr, ids = many_levels(points).query_batch(np.ones((500, 3)), np.full(500, -2.0))
    assert np.diff(indptr).tolist() == [300] * 500
    assert np.array_equal(ids.reshape(500, 300), np.tile(np.arange(300), (500, 1)))


def test_pickling():
    rng = np.random.default_rng(0)
    points, normals = sphere(rng, 300, 3), rng.standard_normal((20, 3))
    index = many_levels(points)
    again = pickle.loads(pickle.dumps(index))
    for a, b in zip(index.report(normals, np.ones(20)), again.report(normals, np.ones(20)), strict=True):
        assert np.array_equal(a, b)
    assert again.work == index.work


def test_points_are_copied():
    points = sphere(np.random.default_rng(0), 100, 3)
    index, expected = many_levels(points), above(points, np.ones(3), 0.5)
    points[:] = 0.0
    assert index.query(np.ones(3), 0.5).tolist() == expected


# Work and memory


def work_for(n: int, k: int, n_queries: int = 300) -> tuple[float, float]:
    """Mean (levels, entries and facets visited, points tested) of queries that report k of n points on a sphere."""
    rng = np.random.default_rng(n)
    points, normals = sphere(rng, n, 3), sphere(rng, n_queries, 3)
    thresholds = np.partition(normals @ points.T, n - 1 - k, axis=1)[:, n - 1 - k]
    index = HullHierarchyIndex(points)
    index.query_batch(normals, thresholds)
    assert index.work.points_reported == pytest.approx(k * n_queries, rel=0.01)
    return index.work.nodes_visited / n_queries, index.work.points_tested / n_queries


def test_work_beyond_the_output_is_logarithmic():
    sizes = (1000, 10_000, 30_000)
    visited, tested = zip(*(work_for(n, 20) for n in sizes), strict=True)
    assert all(v < 30 * np.log2(n) for v, n in zip(visited, sizes, strict=True))
    assert all(t < 40 * 20 for t in tested)
    # Thirty times the points: a few levels more to walk, and lists that are no longer than before.
    assert visited[2] - visited[0] < 30 * np.log2(sizes[2] / sizes[0])
    assert tested[2] < 1.3 * tested[1]


def test_thresholds_at_the_extreme_point_use_short_lists():
    assert work_for(10_000, 0)[1] < 150


def test_work_is_proportional_to_the_output():
    ratios = [work_for(10_000, k)[1] / k for k in (10, 100, 1000)]
    assert max(ratios) < 40


def test_memory_limit_is_checked_before_building():
    points = np.random.default_rng(0).standard_normal((100_000, 8))
    with pytest.raises(InputError, match=r"100,000.* 8 .* \d[\d,]* GB.*memory_limit = 2\.0 GB.*'cell-tree'.*'scan'"):
        HullHierarchyIndex(points)


@pytest.mark.parametrize(("n", "d"), [(5000, 12), (8000, 400)])
def test_high_dimensions_are_refused(n, d):
    points = np.random.default_rng(0).standard_normal((n, d), np.float32)
    with pytest.raises(InputError, match=rf"{n:,} points.* {d} .* GB"):
        HullHierarchyIndex(points)


def test_flat_sets_in_high_dimension_are_accepted():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((1000, 3)) @ rng.standard_normal((3, 40))
    index = HullHierarchyIndex(points)
    assert n_levels(index) >= 3
    assert_is_brute_force(index, points, *hard_queries(rng, points, 20))


def test_memory_is_estimated_from_the_first_levels():
    points = sphere(np.random.default_rng(0), 20_000, 4)
    with pytest.raises(InputError, match=r" \d+ MB.*memory_limit = 5\.0 MB"):
        HullHierarchyIndex(points, memory_limit=5 << 20)
    index = HullHierarchyIndex(points, memory_limit=100 << 20)
    assert sum(array.nbytes for array in index._levels) < 20 << 20


@pytest.mark.parametrize(("n", "d"), [(20_000, 3), (5000, 4), (3000, 5)])
def test_the_estimate_after_two_levels_is_within_a_factor_of_three(n, d):
    points = sphere(np.random.default_rng(0), n, d)
    estimates = []
    original = building.MemoryBudget._estimate

    def recording(self, levels, sizes):
        estimates.append((len(self.measured), original(self, levels, sizes)))
        return estimates[-1][1]

    with mock.patch.object(building.MemoryBudget, "_estimate", recording):
        HullHierarchyIndex(points)
    early = next(estimate for measured, estimate in estimates if measured == 2)
    assert estimates[-1][1] / 3 < early < estimates[-1][1] * 3


def test_refused_input():
    with pytest.raises(
        InputError,
        match=r"got d = 2; use 'convex-layers'",
    ):
        HullHierarchyIndex(np.zeros((5, 2)))
    with pytest.raises(InputError, match=r"^points.*finite.*row 1 "):
        HullHierarchyIndex(np.array([[0.0, 0, 0], [np.nan, 0, 0]]))
    with pytest.raises(InputError, match=r"^memory_limit.*got 0"):
        HullHierarchyIndex(np.eye(3), memory_limit=0)
    with pytest.raises(InputError, match=r"kind 'hull-hierarchy'"):
        HullHierarchyIndex(np.eye(3)).add(np.eye(3))


def test_building_is_reproducible():
    points = sphere(np.random.default_rng(0), 2000, 3)
    for a, b in zip(HullHierarchyIndex(points)._levels, HullHierarchyIndex(points)._levels, strict=True):
        assert np.array_equal(a, b)
