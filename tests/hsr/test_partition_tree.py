"""The partition tree after thousands of changes: the answers of a scan, and a valid structure."""

from types import FunctionType

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset.hsr import build
from fireset.hsr.partition_tree import PartitionTreeIndex, _nodes_needed, new_tree_size, tree_bytes
from fireset.kernels.partition_tree import FAN, LEAF, LEAF_PARENT, N_CHILDREN, N_FILLED, N_POINTS, PARENT, search
from fireset.kernels.sorting import sort_answers
from support.checks import sphere


def check(index) -> None:
    """Check that boxes are tight, counts, parents and locations are correct, and no entry is both used and free."""
    tree = index._tree
    d = index.n_features
    nodes, leaves, ids = [], [], []

    def visit(child: int, parent: int) -> tuple[int, np.ndarray, np.ndarray]:
        if child < 0:
            leaf = ~child
            leaves.append(leaf)
            size = tree.buckets[leaf, N_FILLED]
            assert 0 < size <= LEAF
            assert tree.buckets[leaf, LEAF_PARENT] == parent
            points = tree.coordinates[leaf, :, :size]
            for column, point_id in enumerate(tree.buckets[leaf, :size]):
                assert tree.locations[point_id] == LEAF * leaf + column
                ids.append(point_id)
            return size, points.min(axis=1), points.max(axis=1)
        nodes.append(child)
        assert tree.nodes[child, PARENT] == parent
        assert tree.nodes[child, N_CHILDREN] > 0 or child == 0
        count, lows, highs = 0, [], []
        for column in range(tree.nodes[child, N_CHILDREN]):
            below, low, high = visit(int(tree.nodes[child, column]), FAN * child + column)
            assert np.array_equal(tree.boxes[child, :d, column], high)
            assert np.array_equal(tree.boxes[child, d:, column], low)
            count += below
            lows.append(low)
            highs.append(high)
        assert tree.nodes[child, N_POINTS] == count
        return count, np.min(lows, axis=0) if lows else np.zeros(d), np.max(highs, axis=0) if highs else np.zeros(d)

    visit(0, -1)
    assert len(index) == len(ids) == len(set(ids)) == (tree.locations >= 0).sum()
    for used, free, count in zip((nodes, leaves), (tree.free_nodes, tree.free_buckets), tree.free_counts, strict=True):
        assert sorted([*used, *free[:count].tolist()]) == list(range(len(free)))


def depth(index, node: int = 0) -> int:
    children = index._tree.nodes[node, : index._tree.nodes[node, N_CHILDREN]]
    return 1 + max((depth(index, int(c)) for c in children if c >= 0), default=0)


def assert_same_answers(tree, scan, rng, n_queries: int = 20) -> None:
    normals = rng.standard_normal((n_queries, tree.n_features))
    thresholds = rng.standard_normal(n_queries) * 2
    expected, found = scan.report(normals, thresholds), tree.report(normals, thresholds)
    assert np.array_equal(found.indptr, expected.indptr)
    assert np.array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.values, expected.values, rtol=0, atol=1e-12)


POINTS = {
    "Gaussian": lambda rng, n, d: rng.standard_normal((n, d)),
    "sphere": sphere,
    "all equal": lambda rng, n, d: np.tile(rng.standard_normal(d), (n, 1)),
    "few values": lambda rng, n, d: rng.integers(-1, 2, (n, d)).astype(float),
    "far corner": lambda rng, n, d: 5 + rng.random((n, d)) ** 8,
    "on a line": lambda rng, n, d: np.outer(rng.standard_normal(n), np.ones(d)),
}


@pytest.mark.parametrize("kind", POINTS)
@pytest.mark.parametrize(("n", "d"), [(1, 3), (24, 2), (25, 1), (400, 3), (5000, 2), (3000, 7)])
def test_new_tree_is_valid_and_exact(kind, n, d):
    rng = np.random.default_rng(n + d)
    points = POINTS[kind](rng, n, d)
    tree = build(points, "partition-tree")
    check(tree)
    assert_same_answers(tree, build(points, "scan"), rng)


@pytest.mark.parametrize("kind", POINTS)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_any_sequence_of_changes(kind, seed):
    """Add, delete and move one to thousands of points, so that the tree grows and shrinks many times."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 6))
    points = POINTS[kind](rng, int(rng.integers(0, 300)), d)
    tree, scan = build(points, "partition-tree"), build(points, "scan")
    for _ in range(25):
        live = scan._ids
        change = rng.choice(["add", "delete", "move"], p=[0.45, 0.25, 0.3])
        count = int(rng.integers(0, 1 + rng.choice([3, 60, 400])))
        some = rng.choice(live, min(count, len(live)), replace=False) if len(live) else np.empty(0, np.int64)
        if change == "add":
            new = POINTS[kind](rng, count, d)
            assert np.array_equal(tree.add(new), scan.add(new))
        elif change == "delete":
            tree.delete(some)
            scan.delete(some)
        else:
            near = rng.random() < 0.5
            new = scan._points[np.searchsorted(live, some)] + rng.standard_normal((len(some), d)) * (
                1e-3 if near else 1
            )
            tree.move(some, new)
            scan.move(some, new)
        check(tree)
        assert_same_answers(tree, scan, rng, 5)


def test_sorted_additions_keep_the_tree_shallow_and_the_work_small():
    """Points in the order of a coordinate are always added to the same leaf, the worst case for balance."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((20_000, 2))
    points = points[np.argsort(points[:, 0])]
    tree = build(points[:10], "partition-tree")
    for lo in range(10, len(points), 500):
        tree.add(points[lo : lo + 500])
    check(tree)
    fresh = build(points, "partition-tree")
    assert depth(tree) <= depth(fresh) + 3
    normals, thresholds = rng.standard_normal((100, 2)), np.full(100, 1.5)
    assert np.array_equal(tree.query_batch(normals, thresholds)[1], fresh.query_batch(normals, thresholds)[1])
    assert tree.work.points_tested < 1.5 * fresh.work.points_tested


def test_bulk_and_boundary_are_counted():
    rng = np.random.default_rng(0)
    tree = build(rng.standard_normal((20_000, 2)), "partition-tree")
    found = len(tree.query([1.0, 0.0], 0.0))
    assert tree.work.points_in_bulk > 0.8 * found
    assert tree.work.points_tested < 2_000
    assert tree.work.nodes_visited < 200
    assert tree.work.points_reported == found


def test_boxes_of_far_points_do_not_cut_off_by_rounding():
    """Points at 1e8 with differences of 1e-8: bounds without slack would discard points above the threshold."""
    rng = np.random.default_rng(0)
    points = 1e8 + rng.integers(0, 2, (500, 3)) * 1.5e-8
    tree, scan = build(points, "partition-tree"), build(points, "scan")
    normals = rng.standard_normal((200, 3))
    thresholds = (normals @ points.T)[np.arange(200), rng.integers(0, 500, 200)]
    for found, expected in zip(
        tree.query_batch(normals, thresholds), scan.query_batch(normals, thresholds), strict=True
    ):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_answers_larger_than_the_buffer(dtype, monkeypatch):
    monkeypatch.setattr("fireset.hsr.partition_tree._BUFFER_IDS", 10)
    rng = np.random.default_rng(0)
    points = rng.standard_normal((2000, 3)).astype(dtype)
    tree, scan = build(points, "partition-tree"), build(points, "scan")
    normals, thresholds = rng.standard_normal((300, 3)), rng.standard_normal(300)
    for found, expected in zip(
        tree.query_batch(normals, thresholds), scan.query_batch(normals, thresholds), strict=True
    ):
        assert np.array_equal(found, expected)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 400), max_size=30), st.integers(1, 2**31 - 1), st.integers(0, 2**32))
def test_answers_are_sorted_one_by_one(counts, n_ids, seed):
    counts = np.array(counts, np.int64)
    ids = np.random.default_rng(seed).integers(0, n_ids, counts.sum()).astype(np.int32)
    expected = [np.sort(part) for part in np.split(ids, np.cumsum(counts))[:-1]]
    sort_answers(ids, counts, n_ids)
    assert np.array_equal(ids, np.concatenate([np.empty(0, np.int32), *expected]))


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 3000), max_size=8),
    st.integers(1, 1000),
    st.sampled_from([0, 1, 100, 65_535, 10**6, 2**31 - 4_000_000]),
    st.integers(0, 2**32),
)
def test_clustered_ids_are_sorted(counts, spread, first, seed):
    """Distinct ids of a range, near the limits of 16 and 31 bits; a bucket may overflow."""
    rng = np.random.default_rng(seed)
    lists = [first + rng.choice(max(count * spread, 1), count, replace=False) for count in counts]
    ids = np.concatenate([np.empty(0, np.int32), *lists]).astype(np.int32)
    sort_answers(ids, np.array(counts, np.int64), first + max(counts, default=0) * spread + 1)
    assert np.array_equal(ids, np.concatenate([np.empty(0, np.int32), *map(np.sort, lists)]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_search_without_avx512_finds_the_same(dtype):
    rng = np.random.default_rng(0)
    tree = build(rng.standard_normal((3000, 3)).astype(dtype), "partition-tree")
    queries = tree._checked_queries(rng.standard_normal((40, 3)), rng.standard_normal(40))
    plain = FunctionType(search.py_func.__code__, {**search.py_func.__globals__, "HAS_COMPRESS": False})
    found = []
    for function in (search, numba.njit(fastmath={"contract"}, error_model="numpy")(plain)):
        ids, counts = np.zeros(40 * 4000, np.int32), np.zeros(40, np.int64)
        function(tree._tree, queries, 0, ids, np.empty(2048, np.int32), counts, np.zeros(3, np.int64))
        found.append((counts.tolist(), ids[: counts.sum()].tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("leaves", [1, 2, 16, 17, 257, 4097, 70_000])
def test_nodes_are_well_filled(leaves):
    assert _nodes_needed(leaves) <= leaves // 7 + 8


@pytest.mark.parametrize("n", [1, 24, 25, 400, 9_000, 50_000])
@pytest.mark.parametrize(("d", "dtype"), [(3, np.float32), (5, np.float64)])
def test_memory_of_a_new_tree(n, d, dtype):
    tree = PartitionTreeIndex(sphere(np.random.default_rng(0), n, d).astype(dtype)).trimmed_arrays()
    nodes, leaves = new_tree_size(n)
    assert len(tree.nodes) == pytest.approx(nodes, rel=0.02, abs=2)
    assert len(tree.buckets) == pytest.approx(leaves, rel=0.02, abs=2)
    used = sum(array.nbytes for array in tree) - tree.free_nodes.nbytes - tree.free_buckets.nbytes
    assert tree_bytes(n, d, np.dtype(dtype).itemsize) == pytest.approx(used, rel=0.03, abs=2500)


def test_moving_one_percent_touches_little():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((20_000, 3))
    tree = build(points, "partition-tree")
    before = tree._tree.boxes.copy()
    some = rng.choice(20_000, 200, replace=False)
    tree.move(some, points[some] + 1e-6)
    check(tree)
    assert (tree._tree.boxes != before).any(axis=(1, 2)).mean() < 0.6
