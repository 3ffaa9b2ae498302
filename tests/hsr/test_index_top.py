"""The k largest inner products, of every kind of index, against brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset import InputError
from fireset.hsr import build, kinds
from fireset.hsr.registry import index_class
from support.checks import mentions
from support.indexes import KINDS, best, check_top, grid, hard_cases, kinds_for, numbered


@st.composite
def changed_points(draw):
    """Points to build from, points to add, ids to delete, normals and k."""
    d = draw(st.integers(1, 4))
    first, more = (draw(st.integers(0, 60).flatmap(lambda n: grid(n, d))) for _ in range(2))
    gone = draw(st.sets(st.integers(0, max(0, len(first) + len(more) - 1)), max_size=len(first) + len(more)))
    normals = draw(st.integers(0, 12).flatmap(lambda n: grid(n, d)))
    return first, more, sorted(gone), normals, draw(st.integers(0, 130))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(case=changed_points())
def test_top_equals_brute_force_after_adds_and_deletes(kind, dtype, case):
    first, more, gone, normals, k = case
    index = build(first.astype(dtype), kind)
    index.add(more)
    index.delete(gone)
    points = numbered(np.concatenate([first, more]))
    left = {i: point for i, point in points.items() if i not in gone}
    check_top(index, left, normals.astype(dtype), k)
    for normal in normals[:1].astype(dtype):
        found = index.top(normal, k)
        assert (found.ids.tolist(), found.values.tolist()) == best(left, normal, k)


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize("case", hard_cases())
def test_hard_cases_equal_brute_force(case):
    points, normals, _ = hard_cases()[case]
    for kind in kinds_for(points.shape[1]):
        index = build(points, kind)
        for k in (1, 5, 1000):
            check_top(index, numbered(points), normals[::3], k)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", kinds())
def test_duplicates_are_ranked_exactly_in_both_precisions(kind, dtype):
    """Inner products closer together than the rounding of float32: a fast value alone would rank some wrongly."""
    d = 3 if index_class(kind).suits(3) else 2
    rng = np.random.default_rng(0)
    points = (1 + 1e-6 * rng.standard_normal((2000, d))).astype(dtype)
    points[500:1000] = points[:500]
    normals = rng.standard_normal((20, d)).astype(dtype)
    for k in (1, 10, 700):
        check_top(build(points, kind), numbered(points), normals, k)


@pytest.mark.parametrize("kind", KINDS)
def test_overflowing_sums_are_ranked_exactly(kind):
    rng = np.random.default_rng(0)
    points, normals = rng.standard_normal((300, 3)) * 4e154, rng.standard_normal((10, 3)) * 4e153
    check_top(build(points, kind), numbered(points), normals, 7)


@pytest.mark.parametrize("kind", kinds())
def test_empty_queries_and_empty_index(kind):
    d = 3 if index_class(kind).suits(3) else 2
    index = build(np.eye(d), kind)
    assert index.top(np.ones(d), 0).ids.shape == (0,)
    assert index.top(np.ones((4, d)), 0).values.shape == (4, 0)
    assert index.top(np.empty((0, d)), 2).ids.shape == (0, 2)
    assert build(np.empty((0, d)), kind).top(np.ones((4, d)), 3).ids.shape == (4, 0)


@pytest.mark.parametrize(
    ("normals", "k", "parts"),
    [
        ([1.0, 2.0], 1, ["normals", "3", "1", "2"]),
        ([[1.0, 2.0, np.nan]], 1, ["normals", "0"]),
        ([1.0, 2.0, 3.0], -1, ["k", "0", "-1"]),
        ([1.0, 2.0, 3.0], 1.5, ["k", "0", "1.5"]),
        (5.0, 1, ["normals", "3"]),
    ],
)
def test_invalid_arguments_are_refused(normals, k, parts):
    with pytest.raises(InputError) as caught:
        build(np.eye(3)).top(normals, k)
    assert mentions(str(caught.value), *parts)


def test_work_is_counted():
    index = build(np.random.default_rng(0).standard_normal((100_000, 3)), "partition-tree")
    index.top(np.eye(3), 5)
    assert index.work.queries == 3
    assert index.work.points_reported == 15
    assert 15 <= index.work.points_tested < 3_000  # of 300,000
