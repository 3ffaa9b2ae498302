"""Convex layers against exact arithmetic and brute force."""

import pickle
from fractions import Fraction
from itertools import pairwise
from math import log2

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fireset import InputError
from fireset.hsr.base import IndexWork
from fireset.hsr.convex_layers import ConvexLayersIndex
from fireset.kernels.convex_layers_build import cross_sign
from fireset.kernels.firing import deciding_dot
from support.checks import mentions


def above(points, normal, threshold: float) -> list[int]:
    return [i for i, point in enumerate(points) if deciding_dot(normal, point) > threshold]


# Reference in exact arithmetic


def determinant(a, b, c, d) -> Fraction:
    """(b − a) × (d − c)."""
    ax, ay, bx, by, cx, cy, dx, dy = (Fraction(float(number)) for point in (a, b, c, d) for number in point)
    return (bx - ax) * (dy - cy) - (by - ay) * (dx - cx)


def chain(points, side: int) -> list:
    """Points of the upper (1) or lower (−1) hull of sorted points, those on edges included, by Andrew's method."""
    hull = []
    for point in points:
        while len(hull) > 1 and side * determinant(hull[-2], hull[-1], hull[-1], point) > 0:
            hull.pop()
        hull.append(point)
    return hull


def plain_layers(points) -> list[set]:
    left = {tuple(point) for point in (points + 0.0).tolist()}
    layers = []
    while left:
        ordered = sorted(left)
        layers.append({*chain(ordered, 1), *chain(ordered, -1)})
        left -= layers[-1]
    return layers


def layers_of(index: ConvexLayersIndex) -> list[np.ndarray]:
    layers = index._layers
    return [layers.points[a:b] + 0.0 for a, b in pairwise(layers.starts)]


def assert_exact(points) -> None:
    """Layers are those of exact arithmetic; each goes round clockwise once, and duplicates are neighbours."""
    index = ConvexLayersIndex(points)
    found = layers_of(index)
    assert np.array_equal(points[index._layers.ids] + 0.0, index._layers.points + 0.0)
    assert sorted(index._layers.ids.tolist()) == list(range(len(points)))
    assert [set(map(tuple, layer.tolist())) for layer in found] == plain_layers(points)
    for i, layer in enumerate(found):
        rightmost = index._layers.rightmost[i] - index._layers.starts[i]
        rows = list(map(tuple, layer.tolist()))
        upper, lower = rows[: rightmost + 1], [*rows[rightmost:], rows[0]]
        assert upper == sorted(upper)
        assert lower == sorted(lower, reverse=True)
        corners = [row for row, before in zip(rows, [None, *rows], strict=False) if row != before]
        assert len(corners) == len(set(corners))
        for side in (list(dict.fromkeys(upper)), list(dict.fromkeys(lower))):
            for a, b, c in zip(side, side[1:], side[2:], strict=False):
                assert determinant(a, b, b, c) <= 0


# Signs and layers

NUMBERS = st.one_of(
    st.integers(-3, 3).map(float),
    st.integers(-9, 9).map(lambda k: 0.1 * k),
    st.integers(-4, 4).map(lambda k: 1.0 + k * 2.0**-52),
    st.integers(-4, 4).map(lambda k: k * 2.0**-500),
    st.floats(-(2.0**319), 2.0**319).map(lambda x: x if abs(x) > 2.0**-440 else 0.0),
)
POINTS = st.tuples(NUMBERS, NUMBERS)


@settings(max_examples=400)
@given(four=st.lists(POINTS, min_size=4, max_size=4))
@example(four=[(0.0, 0.0), (0.1, 0.3), (0.2, 0.6), (0.4, 1.2)])
@example(four=[(2.0**-53, 2.0**-53), (1.0, 1.0 + 2.0**-52), (2.0**-500, 0.0), (1.0, 1.0 - 2.0**-53)])
def test_signs_of_determinants_are_exact(four):
    exact = determinant(*four)
    assert np.sign(cross_sign(np.array(four), 0, 1, 2, 3)) == (exact > 0) - (exact < 0)


def grid(n: int) -> st.SearchStrategy[np.ndarray]:
    """n points with coordinates in quarters: many ties, lines and duplicates."""
    rows = st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=n, max_size=n)
    return rows.map(lambda r: np.array(r, float).reshape(n, 2) / 4)


@settings(max_examples=150)
@given(points=st.integers(0, 40).flatmap(grid))
@example(points=np.empty((0, 2)))
@example(points=np.array([[-0.0, 1.0], [0.0, 1.0], [0.0, -0.0], [0.0, 0.0]]))
def test_layers_of_a_grid(points):
    assert_exact(points)


@settings(max_examples=100)
@given(points=st.lists(POINTS, min_size=0, max_size=25))
def test_layers_of_floats(points):
    """Coordinates within 2⁸¹⁹ of each other: nothing is rounded away."""
    points = np.array(points, float).reshape(len(points), 2)
    points[np.abs(points) < 2.0**-440] = 0.0
    assert_exact(points)


def around_a_line(rng, n: int) -> np.ndarray:
    """Points that are on a line except for their last bits."""
    t = rng.integers(0, 60, n)
    points = np.column_stack([0.1 * t, 0.3 * t + 1.0])
    return np.where(rng.random((n, 2)) < 0.3, np.nextafter(points, rng.choice([-9, 99], (n, 2))), points)


def clusters(rng, n: int) -> np.ndarray:
    return rng.standard_normal((max(1, n // 10), 2))[rng.integers(0, max(1, n // 10), n)]


def circle(rng, n: int) -> np.ndarray:
    angles = rng.uniform(0, 2 * np.pi, n)
    return np.column_stack([np.cos(angles), np.sin(angles)])


SETS = {
    "normal": lambda rng, n: rng.standard_normal((n, 2)),
    "circle": circle,
    "clusters": clusters,
    "around a line": around_a_line,
    "rounded line": lambda _, n: np.outer(np.arange(n), [0.1, 0.3]),
    "line to the right": lambda _, n: np.column_stack([np.arange(n), np.arange(n) * 1e-17]) + 1.0,
    "flat": lambda rng, n: rng.standard_normal((n, 2)) * [1.0, 1e-17] + [0.0, 1.0],
    "columns": lambda rng, n: np.column_stack([rng.integers(0, 4, n), rng.standard_normal(n)]),
    "rows": lambda rng, n: np.column_stack([rng.standard_normal(n), rng.integers(0, 4, n)]),
    "one column": lambda rng, n: np.column_stack([np.zeros(n), rng.standard_normal(n)]),
    "one row": lambda rng, n: np.column_stack([rng.standard_normal(n), np.zeros(n)]),
    "tenths": lambda rng, n: rng.integers(-9, 9, (n, 2)) * 0.1 + 0.7,
    "all equal": lambda _, n: np.full((n, 2), [0.1, 0.7]),
    "one": lambda *_: np.array([[0.1, 0.7]]),
    "two": lambda *_: np.array([[0.1, 0.7], [0.3, 0.2]]),
    "huge": lambda rng, n: rng.standard_normal((n, 2)) * 1e150,
    "tiny": lambda rng, n: rng.standard_normal((n, 2)) * 1e-200,
    "smallest": lambda rng, n: rng.integers(-3, 3, (n, 2)) * 5e-324,
    "tall": lambda rng, n: rng.standard_normal((n, 2)) * [1e-160, 1e100],
    "wide": lambda rng, n: rng.standard_normal((n, 2)) * [1e140, 1e-320],
    "many sizes": lambda rng, n: rng.standard_normal((n, 2)) * 10.0 ** rng.integers(-110, 110, (n, 2)),
    "triangles": lambda _, n: np.repeat(1 + np.arange(-(-n // 3)), 3)[:n, None] * np.resize(np.eye(3)[:, :2], (n, 2)),
}


@pytest.mark.parametrize("name", [name for name in SETS if name not in ("wide", "tall")])
@pytest.mark.parametrize("seed", range(3))
def test_layers_of_hard_sets(name, seed):
    assert_exact(SETS[name](np.random.default_rng(seed), 120).astype(float))


# Queries


@st.composite
def queries(draw):
    k = draw(st.integers(0, 15))
    thresholds = np.array(draw(st.lists(st.integers(-16, 16), min_size=k, max_size=k)), float) / 8
    return draw(st.integers(0, 40).flatmap(grid)), draw(grid(k)), thresholds


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(max_examples=150)
@given(case=queries())
def test_queries_equal_brute_force(dtype, case):
    points, normals, thresholds = case
    index = ConvexLayersIndex(points.astype(dtype))
    assert len(index) == len(points)
    found = index.report(normals, thresholds)
    assert found.ids.dtype == np.int32
    assert found.values.dtype == dtype
    for k, (normal, threshold) in enumerate(zip(normals, thresholds, strict=True)):
        ids = found.ids[found.indptr[k] : found.indptr[k + 1]]
        assert ids.tolist() == above(points, normal, threshold)
        assert found.values[found.indptr[k] : found.indptr[k + 1]].tolist() == (points[ids] @ normal).tolist()


def directions(rng, points) -> np.ndarray:
    """Axes, random directions of all sizes, and directions in which two points are equally far."""
    edges = points[rng.integers(0, len(points), 12)] - points[rng.integers(0, len(points), 12)]
    across = np.column_stack([edges[:, 1], -edges[:, 0]])
    across = across[(np.abs(across).max(axis=1) < 1e150) & across.any(axis=1)]
    axes = np.concatenate([np.eye(2), -np.eye(2)])
    lengths = 10.0 ** rng.integers(-3, 3, (12, 2))
    swapped = axes[[1, 0, 3, 2]]
    tilted = axes + swapped * 10.0 ** -rng.uniform(0, 300, (4, 1))
    hardly_tilted = np.concatenate([axes * 1e100 + swapped * 1e-250, axes * 1e100 - swapped * 1e-250])
    return np.concatenate([axes, tilted, hardly_tilted, rng.standard_normal((12, 2)) * lengths, across])


@pytest.mark.parametrize("name", SETS)
def test_thresholds_at_inner_products(name):
    """Thresholds are inner products and the floats next to them."""
    rng = np.random.default_rng(0)
    points = SETS[name](rng, 150).astype(float)
    index = ConvexLayersIndex(points)
    for normal in directions(rng, points):
        products = np.array([deciding_dot(normal, point) for point in points])
        exact = np.concatenate([rng.choice(products, 3), np.sort(products)[-2:]])
        thresholds = np.concatenate([exact, np.nextafter(exact, np.inf), np.nextafter(exact, -np.inf), [0.0]])
        indptr, ids = index.query_batch(np.tile(normal, (len(thresholds), 1)), thresholds)
        for k, threshold in enumerate(thresholds):
            assert ids[indptr[k] : indptr[k + 1]].tolist() == np.flatnonzero(products > threshold).tolist()


@pytest.mark.parametrize("name", SETS)
def test_zero_normals_and_infinite_thresholds(name):
    points = SETS[name](np.random.default_rng(0), 30).astype(float)
    index = ConvexLayersIndex(points)
    everything = list(range(len(points)))
    assert index.query([0.0, 0.0], -5e-324).tolist() == everything
    assert index.query([0.0, -0.0], -np.inf).tolist() == everything
    assert index.query([0.0, 0.0], 0.0).tolist() == []
    assert index.query([1.0, -2.0], -np.inf).tolist() == everything
    assert index.query([1.0, -2.0], np.inf).tolist() == []
    assert index.query([1.0, -2.0], 1e300).tolist() == []


def test_overflow_and_points_merged_by_rounding():
    """Largest and smallest floats in one set: points that are equal in the layers are still decided one by one."""
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.standard_normal((40, 2)) * size for size in (1e200, 1e-300, 1.0, 1e-320, 1e300)])
    index = ConvexLayersIndex(points)
    normals = [[1e200, -1e200], [1.0, 0.0], [-1e-300, 1.0], [1.0, 1e-300], [1e-300, -1e-300], [0.0, 0.0], [1e300, 1.0]]
    with np.errstate(invalid="ignore", over="ignore"):
        for normal in np.array(normals):
            for threshold in (0.0, -1e250, 1e250, 1e-100, 1e-301, -1e-301, -1e-310, np.inf, -np.inf):
                assert index.query(normal, threshold).tolist() == above(points, normal, threshold)


def test_large_weights_on_small_points():
    """The norm of such points underflows to 0, their inner products do not."""
    rng = np.random.default_rng(0)
    points, normals = rng.standard_normal((200, 2)) * 1e-163, rng.standard_normal((20, 2)) * 1e153
    index = ConvexLayersIndex(points)
    for normal, point in zip(normals, points, strict=False):
        threshold = deciding_dot(normal, point)
        assert index.query(normal, threshold).tolist() == above(points, normal, threshold)


def test_float32_is_correct_up_to_rounding():
    rng = np.random.default_rng(0)
    points, normals = rng.standard_normal((2000, 2)).astype(np.float32), rng.standard_normal((50, 2))
    index = ConvexLayersIndex(points)
    assert index.dtype == np.float32
    exact = normals.astype(np.float32).astype(float) @ points.astype(float).T
    found = index.report(normals, np.full(50, 0.7))
    assert (found.values > np.float32(0.7)).all()
    for k in range(50):
        reported = np.zeros(2000, bool)
        reported[found.ids[found.indptr[k] : found.indptr[k + 1]]] = True
        clear = np.abs(exact[k] - 0.7) > 1e-6
        assert np.array_equal(reported[clear], (exact[k] > 0.7)[clear])


def test_answers_larger_than_the_buffer(monkeypatch):
    rng = np.random.default_rng(0)
    points, normals = rng.standard_normal((300, 2)), rng.standard_normal((40, 2))
    whole = ConvexLayersIndex(points).report(normals, np.zeros(40))
    monkeypatch.setattr("fireset.hsr.convex_layers._BUFFER_IDS", 0)
    parts = ConvexLayersIndex(points).report(normals, np.zeros(40))
    for a, b in zip(whole, parts, strict=True):
        assert np.array_equal(a, b)


def test_answers_without_order():
    rng = np.random.default_rng(0)
    points, normals = rng.standard_normal((500, 2)), rng.standard_normal((30, 2))
    index = ConvexLayersIndex(points)
    ordered, found = index.report(normals, np.ones(30)), index.report(normals, np.ones(30), ordered=False)
    assert np.array_equal(ordered.indptr, found.indptr)
    for a, b in pairwise(found.indptr):
        order = np.argsort(found.ids[a:b])
        assert np.array_equal(found.ids[a:b][order], ordered.ids[a:b])
        assert np.array_equal(found.values[a:b][order], ordered.values[a:b])


# Work


def rings(rng, n: int) -> np.ndarray:
    """A circle inside many triangles: the extreme points of a triangle and of the circle are far apart."""
    points = circle(rng, n)
    corners = np.column_stack([np.cos([0.1, 2.2, 4.3]), np.sin([0.1, 2.2, 4.3])])
    points[: n // 30 * 3] = np.concatenate([corners * (3 + i) for i in range(n // 30)])
    return points


@pytest.mark.parametrize("n", [10**3, 10**4, 10**5])
@pytest.mark.parametrize("make", [SETS["normal"], circle, rings], ids=["normal", "circle", "rings"])
def test_work_beyond_the_output_is_logarithmic(make, n):
    """A binary search, the layers with points above and one more, and at most two points below the line on each."""
    rng = np.random.default_rng(1)
    points = make(rng, n)
    index = ConvexLayersIndex(points)
    layer_of = np.empty(n, int)
    layer_of[index._layers.ids] = np.repeat(np.arange(len(layers_of(index))), np.diff(index._layers.starts))
    for normal in rng.standard_normal((60, 2)):
        values = np.sort(points @ normal)
        for wanted in (0, 1, 30, n // 5):
            threshold = (values[-wanted] + values[-wanted - 1]) / 2 if wanted else values[-1] + 1.0
            index.work = IndexWork()
            ids = index.query(normal, threshold)
            met = len(np.unique(layer_of[ids]))
            assert len(ids) == wanted
            assert index.work.nodes_visited <= log2(n) + 2 + met + 1
            assert index.work.points_tested <= wanted + 2 * met + 1


def test_layers_met_are_few_for_one_layer():
    index = ConvexLayersIndex(circle(np.random.default_rng(0), 10_000))
    assert len(layers_of(index)) == 1
    index.query([1.0, 0.3], 0.0)
    assert index.work.nodes_visited <= log2(10_000) + 3
    assert index.work.points_tested <= index.work.points_reported + 2


# Other methods


def test_pickled_and_copied():
    points = np.random.default_rng(0).standard_normal((100, 2))
    kept = points.copy()
    index = ConvexLayersIndex(points)
    points[:] = 0.0
    for one in (index, pickle.loads(pickle.dumps(index))):
        assert len(one) == 100
        assert one.query([1.0, 2.0], 0.5).tolist() == above(kept, np.array([1.0, 2.0]), 0.5)


def test_empty_index():
    index = ConvexLayersIndex(np.empty((0, 2)))
    assert len(index) == 0
    assert index.query([1.0, 0.0], -np.inf).tolist() == []
    assert index.query([0.0, 0.0], -1.0).tolist() == []


def test_other_dimensions_are_refused():
    with pytest.raises(InputError) as caught:
        ConvexLayersIndex(np.eye(3))
    assert mentions(str(caught.value), "3", "'hull-hierarchy'", "'partition-tree'")


def test_non_numeric_points_and_changes_are_refused():
    with pytest.raises(InputError, match=r"points.*finite.*row 1 "):
        ConvexLayersIndex(np.array([[0.0, 1.0], [np.inf, 0.0]]))
    index = ConvexLayersIndex(np.eye(2))
    with pytest.raises(InputError, match="kind 'convex-layers'"):
        index.add(np.eye(2))
