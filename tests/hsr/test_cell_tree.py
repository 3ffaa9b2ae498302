"""Cell trees: bounds of cells, changes, and the work on families of points that are hard for an index."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fireset import InputError
from fireset.hsr import build, kinds
from fireset.hsr.cell_tree import CellTreeIndex
from fireset.hsr.registry import index_class, suitable_kind
from fireset.kernels.cell_tree import FIRST, FIRST_LEAF, LAST, LAST_LEAF, upper_bound
from fireset.kernels.partition_tree import N_FILLED

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from point_families import FAMILIES, exponent, family, few_above  # pyright: ignore[reportMissingImports]

ALL = list(FAMILIES)
FEW_ABOVE = [name for name in ALL if name != "all equal"]


def work_on(kind: str, name: str, n: int, d: int, **options) -> tuple[float, float]:
    """Mean points tested and nodes visited by queries that find about 20 points."""
    points, normals = family(name, n, d)
    index = build(points, kind, **options)
    index.query_batch(normals, few_above(points, normals))
    return index.work.points_tested / len(normals), index.work.nodes_visited / len(normals)


# Answers


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("name", ALL)
def test_families_equal_a_scan(name, d, dtype):
    if name in ("spike and circle", "moment curve") and d == 1:
        pytest.skip("needs two coordinates")
    points, normals = family(name, 1500, d)
    points = points.astype(dtype)
    thresholds = np.concatenate(
        [few_above(points, w[None], k) for w, k in zip(normals, [0, 1, 20, 700] * 10, strict=True)]
    )
    scan = build(points, "scan").query_batch(normals, thresholds)
    products = normals.astype(dtype).astype(float) @ points.astype(float).T
    for kind in (k for k in kinds() if k != "scan" and index_class(k).suits(d)):
        if kind == "hull-hierarchy" and d > 4:
            continue
        indptr, ids = build(points, kind).query_batch(normals, thresholds)
        if dtype == "float64":
            assert np.array_equal(indptr, scan[0]), kind
            assert np.array_equal(ids, scan[1]), kind
            continue
        for k in range(len(normals)):
            reported = np.zeros(len(points), bool)
            reported[ids[indptr[k] : indptr[k + 1]]] = True
            clear = np.abs(products[k] - thresholds[k]) > 1e-5 * max(1.0, np.abs(points).max())
            assert np.array_equal(reported[clear], (products[k] > thresholds[k])[clear]), kind


@pytest.mark.parametrize("d", [1, 2, 3, 4, 8])
def test_any_sequence_of_changes_equals_a_scan(d):
    """Deletions affect several trees at once, and the rebuild of one merges another into it."""
    rng = np.random.default_rng(d)
    points = rng.standard_normal((3000, d))
    index, scan = build(points, "cell-tree"), build(points, "scan")
    alive = np.arange(3000)
    for step in range(25):
        size = int(rng.choice([1, 40, 700, 1500]))
        rows = rng.standard_normal((size, d)) + step / 10
        if step % 3 == 0:
            added = [each.add(rows) for each in (index, scan)]
            alive = np.concatenate([alive, added[0]])
        elif step % 3 == 1:
            gone = rng.permutation(alive)[:size]
            for each in (index, scan):
                each.delete(gone)
            alive = np.setdiff1d(alive, gone)
        else:
            some = rng.permutation(alive)[:size]
            for each in (index, scan):
                each.move(some, rows[: len(some)])
        assert len(index) == len(scan) == len(alive)
        normals = rng.standard_normal((10, d))
        for a, b in zip(index.report(normals, np.ones(10)), scan.report(normals, np.ones(10)), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def test_refused_options():
    with pytest.raises(InputError, match="directions"):
        build(np.eye(3), "cell-tree", directions=-1)
    with pytest.raises(InputError, match="directions"):
        build(np.eye(3), "scan", directions=5)


# Invariants


def bounds(index: CellTreeIndex, normal: np.ndarray) -> list[tuple[float, float, np.ndarray, int]]:
    """Yield the upper and lower bound of every cell, the inner products of its points, and its index."""
    (tree,) = index._trees.values()
    cells = tree.frames, tree.lowest, tree.highest, tree.orthants, tree.split_slots, tree.split_weights
    found = []
    for v, row in enumerate(tree.children):
        upper, lower = upper_bound(cells, v, normal, np.empty(len(normal)), -np.inf)
        leaves = range(row[FIRST_LEAF], row[LAST_LEAF])
        own = np.concatenate([tree.coordinates[leaf, :, : tree.buckets[leaf, N_FILLED]].T for leaf in leaves])
        found.append((upper / tree.scale, lower / tree.scale, own @ normal, v))
    return found


@pytest.mark.parametrize("d", [1, 2, 3, 4, 6, 8, 20])
@pytest.mark.parametrize("name", ["random", "diagonal", "sphere", "clusters", "two lines"])
def test_bounds_hold_for_all_points_of_a_cell(name, d):
    points, normals = family(name, 1200, d, queries=12)
    index = CellTreeIndex(points)
    (tree,) = index._trees.values()
    margin = tree.margin * np.sqrt(d) / tree.scale
    assert margin < 1e-10 * max(1.0, np.abs(points).max())
    for normal in normals:
        for upper, lower, values, _ in bounds(index, normal):
            assert values.max() <= upper + margin
            assert values.min() >= lower - margin


@pytest.mark.parametrize("name", FEW_ABOVE)
def test_cells_of_the_plane_are_hulls(name):
    points, normals = family(name, 3000, 2, queries=30)
    index = CellTreeIndex(points)
    for normal in normals:
        for upper, _, values, _ in bounds(index, normal):
            assert upper == pytest.approx(values.max(), abs=1e-10 * max(1.0, np.abs(points).max()))


def test_cells_contain_all_points_once():
    index = CellTreeIndex(np.random.default_rng(0).standard_normal((5000, 3)))
    (tree,) = index._trees.values()
    assert sorted(tree.ids.tolist()) == list(range(5000))
    inner = tree.children[:, FIRST] < tree.children[:, LAST]
    assert tree.buckets[:, N_FILLED].sum() == 5000
    for first, last, first_leaf, last_leaf in tree.children[inner]:
        own = tree.children[first:last]
        assert (own[0, FIRST_LEAF], own[-1, LAST_LEAF]) == (first_leaf, last_leaf)
        assert np.array_equal(own[1:, FIRST_LEAF], own[:-1, LAST_LEAF])


# Work and memory


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("name", ALL)
def test_points_tested_grow_slowly(name, d):
    sizes = (1000, 4000, 16_000)
    tested = [work_on("cell-tree", name, n, d)[0] for n in sizes]
    assert exponent(sizes, tested) <= 0.25
    assert max(tested) <= 600


@pytest.mark.slow
@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("name", ALL)
def test_exponents_up_to_a_hundred_thousand_points(name, d):
    sizes = (1000, 10_000, 100_000)
    assert exponent(sizes, [work_on("cell-tree", name, n, d)[0] for n in sizes]) <= 0.25


@pytest.mark.parametrize("name", ["diagonal", "sphere"])
def test_queries_stay_fast_after_changes(name):
    points, normals = family(name, 12_000, 3)
    thresholds = few_above(points, normals)
    fresh = build(points, "cell-tree")
    grown = build(np.concatenate([points[:4000], -2 * points[:2000]]), "cell-tree")
    grown.delete(np.arange(4000, 6000))
    for start in range(4000, 12_000, 500):
        grown.add(points[start : start + 500])
    for index in (fresh, grown):
        index.query_batch(normals, thresholds)
    assert grown.work.points_reported == fresh.work.points_reported
    assert grown.work.points_tested < 6 * fresh.work.points_tested + 600 * len(normals)


@pytest.mark.parametrize("sizes", [range(599, 499, -1), [1500 - 3 * k for k in range(20)], [1] * 700, [700, 400] * 20])
def test_there_are_few_trees_for_batches_of_any_sizes(sizes, monkeypatch):
    """Batches that were each smaller than the one before made a tree each; 51,558 of 100,500 points were tested."""
    rng, built = np.random.default_rng(0), []
    build_tree = CellTreeIndex._build
    monkeypatch.setattr(
        CellTreeIndex, "_build", lambda self, *rows: built.append(len(rows[1])) or build_tree(self, *rows)
    )
    index = CellTreeIndex(rng.standard_normal((600, 2)))
    for size in sizes:
        index.add(rng.standard_normal((size, 2)))
    assert len(index._trees) <= np.log2(len(index))
    assert sum(len(tree.children) == 0 for tree in index._trees.values()) <= 1
    assert sum(built) <= (1 + np.log(len(index)) / np.log(1.5)) * len(index) + 512 * len(sizes)
    _, normals = family("random", 10, 2, queries=40)
    index.query_batch(normals, np.full(40, 3.0))
    assert index.work.points_tested <= 32 * index.work.points_reported + 512 * 40


@pytest.mark.parametrize("name", FEW_ABOVE)
def test_a_query_in_the_plane_tests_at_most_a_leaf_for_each_point_found(name):
    points, normals = family(name, 6000, 2)
    for k in (0, 1, 20):
        index = CellTreeIndex(points)
        index.query_batch(normals, few_above(points, normals, k) if k else (normals @ points.T).max(axis=1) + 1e-6)
        work = index.work
        assert work.points_tested <= 32 * work.points_reported
        assert work.nodes_visited <= 40 + 4 * work.points_reported * np.log2(6000)


def test_equal_points_are_tested_once():
    index = build(np.tile([1.0, 2.0, 3.0], (5000, 1)), "cell-tree")
    assert len(index.query([1.0, 1.0, 1.0], np.nextafter(6.0, 0))) == 5000
    assert len(index.query([1.0, 1.0, 1.0], 6.0)) == 0
    assert index.work.points_tested == 2
    index.delete(np.arange(0, 5000, 2))
    assert np.array_equal(index.query([1.0, 1.0, 1.0], 5.0), np.arange(1, 5000, 2))


def test_more_directions_test_fewer_points():
    tested = [work_on("cell-tree", "sphere", 20_000, 3, directions=count)[0] for count in (0, 16, 128)]
    assert tested[0] > 1.5 * tested[1] > 1.5 * tested[2]


def test_a_spike_and_a_circle_take_little_memory():
    points, _ = family("spike and circle", 20_000, 3)
    (tree,) = CellTreeIndex(points)._trees.values()
    assert sum(array.nbytes for array in tree if isinstance(array, np.ndarray)) < 400 * len(points)


@pytest.mark.parametrize("d", [2, 3, 4, 6])
@pytest.mark.parametrize("name", ALL)
def test_auto_is_not_much_slower_than_a_scan(name, d):
    for dynamic in (True, False):
        tested, nodes = work_on("auto", name, 20_000, d, dynamic=dynamic)
        assert tested + nodes <= 1.5 * 20_000


@pytest.mark.parametrize("d", [2, 3, 4, 6])
def test_auto_uses_cells_if_they_separate_and_boxes_do_not(d):
    for dtype in ("float32", "float64"):
        for name in ("random", "cube", "sphere", "grid", "two lines"):
            assert suitable_kind(family(name, 50_000, d)[0].astype(dtype)) == "partition-tree", (name, dtype)
        for n, kind in ((20_000, "scan"), (50_000, "cell-tree")):  # cells cost more than a scan of few points
            equal = family("all equal", n, d)[0].astype(dtype)
            assert suitable_kind(equal) == suitable_kind(equal, "convex-layers") == kind, dtype
    assert suitable_kind(family("diagonal", 20_000, d)[0]) == "scan"
    points = family("diagonal", 50_000, d)[0]
    given = points.copy()
    assert build(points, queries=1e6).kind == "cell-tree"
    assert np.array_equal(points, given)


@pytest.mark.parametrize("d", [3, 4])
def test_auto_scans_points_that_differ_by_rounding_errors(d):
    """Values across the line are within rounding distance of the threshold: cells and points have to be tested."""
    points = family("diagonal", 50_000, d)[0].astype(np.float32)
    assert suitable_kind(points) == "scan"
    assert build(points).kind == "scan"


@pytest.mark.parametrize("change", ["add", "delete", "move"])
def test_a_change_that_fails_leaves_every_other_point(change, monkeypatch):
    """A tree was removed before the one that takes its place was built: its ids were left without a tree."""
    rng = np.random.default_rng(0)
    points, more = rng.standard_normal((1500, 3)), rng.standard_normal((2000, 3))
    index = build(points, "cell-tree")
    assert isinstance(index, CellTreeIndex)
    arguments = {"add": (more,), "delete": (np.arange(1000),), "move": (np.arange(1000), more[:1000])}[change]
    with monkeypatch.context() as patched:
        patched.setattr(CellTreeIndex, "_build", _no_memory)
        with pytest.raises(MemoryError):
            getattr(index, change)(*arguments)
    expected = np.arange(0 if change == "add" else 1000, 1500)
    normal = np.array([1.0, 0.0, 0.0])
    assert len(index) == len(expected)
    assert np.array_equal(index.query(normal, -np.inf), expected)
    assert np.array_equal(index.query(normal, 0.5), expected[points[expected, 0] > 0.5])
    new = index.add(more)
    index.delete(expected)
    assert np.array_equal(index.query(normal, 0.5), new[more[:, 0] > 0.5])


def _no_memory(*_):
    raise MemoryError
