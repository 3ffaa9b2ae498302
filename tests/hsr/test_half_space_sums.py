"""Sums over half-spaces and their adjoint, against brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset import InputError
from fireset.hsr import build
from support.checks import sphere
from support.indexes import above, grid, hard_cases, numbered


def assert_sums_are_brute_force(points, normals, thresholds, rng) -> None:
    tree = build(points, "partition-tree")
    values, rows = rng.standard_normal((len(points), 3)), rng.standard_normal((len(normals), 2))
    inside = np.zeros((len(normals), len(points)))
    for q, (normal, threshold) in enumerate(zip(normals, thresholds, strict=True)):
        inside[q, above(numbered(points), normal, threshold)] = 1
    np.testing.assert_allclose(tree.sum_batch(normals, thresholds, values), inside @ values, rtol=0, atol=1e-10)
    np.testing.assert_allclose(tree.spread(normals, thresholds, rows), inside.T @ rows, rtol=0, atol=1e-10)
    counts = tree.sum_batch(normals, thresholds, np.ones(len(points)))
    assert np.array_equal(counts[:, 0], inside.sum(axis=1))


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("case", hard_cases())
def test_hard_cases_are_brute_force(case):
    assert_sums_are_brute_force(*hard_cases()[case], np.random.default_rng(0))


@settings(max_examples=60)
@given(st.data(), st.integers(1, 4), st.integers(0, 2**32))
def test_sums_are_brute_force(data, d, seed):
    points = data.draw(st.integers(0, 80).flatmap(lambda n: grid(n, d)))
    normals = data.draw(st.integers(0, 8).flatmap(lambda n: grid(n, d)))
    thresholds = data.draw(st.lists(st.integers(-4, 4), min_size=len(normals), max_size=len(normals)))
    assert_sums_are_brute_force(points, normals, np.array(thresholds, float) / 4, np.random.default_rng(seed))


def test_sums_follow_changes():
    """After adds, deletes and moves, values belong to ids, and what was deleted counts no more."""
    rng = np.random.default_rng(0)
    tree = build(rng.standard_normal((3000, 3)), "partition-tree")
    tree.delete(rng.choice(3000, 1200, replace=False))
    added = tree.add(rng.standard_normal((500, 3)) * 2)
    tree.move(added[:100], rng.standard_normal((100, 3)))
    values = rng.standard_normal((3500, 2))
    normals, thresholds = rng.standard_normal((50, 3)), rng.standard_normal(50)
    indptr, ids = tree.query_batch(normals, thresholds)
    expected = np.array([values[ids[a:b]].sum(axis=0) for a, b in itertools.pairwise(indptr)])
    np.testing.assert_allclose(tree.sum_batch(normals, thresholds, values), expected, rtol=0, atol=1e-10)
    rows = rng.standard_normal((50, 2))
    spread = np.zeros((3500, 2))
    for q in range(50):
        spread[ids[indptr[q] : indptr[q + 1]]] += rows[q]
    np.testing.assert_allclose(tree.spread(normals, thresholds, rows), spread, rtol=0, atol=1e-10)


def test_sum_and_spread_are_adjoint_and_cost_the_boundary():
    rng = np.random.default_rng(1)
    points = sphere(rng, 40_000, 3).astype(np.float32)
    tree = build(points, "partition-tree")
    normals, thresholds = rng.standard_normal((300, 3)), np.zeros(300)
    values, rows = rng.standard_normal((40_000, 2)), rng.standard_normal((300, 2))
    left = float((tree.sum_batch(normals, thresholds, values) * rows).sum())
    assert tree.work.points_tested < 0.06 * 300 * 40_000  # half of all pairs are above
    right = float((tree.spread(normals, thresholds, rows) * values).sum())
    assert left == pytest.approx(right, rel=1e-9)


def test_one_query_is_a_batch_of_one(monkeypatch):
    monkeypatch.setattr("fireset.hsr.partition_tree_sums._ENTRIES", 5)  # several rounds
    points = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]])
    tree = build(points, "partition-tree")
    assert tree.sum([1.0, 0.0], 1.5, [10.0, 20.0, 30.0]).tolist() == [50.0]
    assert tree.sum([1.0, 0.0], 1.5, np.eye(3)).tolist() == [0.0, 1.0, 1.0]
    many = tree.sum_batch(np.tile([1.0, 0.0], (400, 1)), np.full(400, 1.5), [10.0, 20.0, 30.0])
    assert (many == 50.0).all()
    assert tree.work.queries == 402


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (
            lambda t: t.sum([1.0, 0.0], 0.0, [1.0]),
            "values must have one row for each of the 3 ids given out, got shape (1,)",
        ),
        (
            lambda t: t.sum([1.0, 0.0], 0.0, ["a", "b", "c"]),
            "values must be numbers: could not convert string to float: 'a'",
        ),
        (
            lambda t: t.spread(np.eye(2), np.zeros(2), np.ones((3, 2))),
            "rows must have one row for each of the 2 queries, got shape (3, 2)",
        ),
        (lambda t: t.sum([1.0], 0.0, np.ones(3)), "normals must have shape (n, 2), got (1, 1)"),
    ],
)
def test_refused_input(action, message):
    tree = build(np.ones((3, 2)), "partition-tree")
    with pytest.raises(InputError) as caught:
        action(tree)
    assert str(caught.value) == message
