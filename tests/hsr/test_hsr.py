"""Half-space indexes against brute force, and through any sequence of adds, deletes and queries."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fireset import InputError
from fireset.hsr import HalfSpaceIndex, build, choose, kinds
from fireset.hsr.base import _one_rounded_down, _rounded_down
from fireset.hsr.registry import index_class
from fireset.kernels.firing import deciding_dot
from support.checks import mentions, sphere
from support.indexes import KINDS, STATIC, above, grid, hard_cases, kinds_for, numbered


@pytest.mark.parametrize("kind", ["auto", *kinds()])
def test_points_without_coordinates_are_refused(kind):
    with pytest.raises(InputError, match=r"^points.*got shape \(3, 0\)"):
        build(np.zeros((3, 0)), kind)


@st.composite
def queries(draw):
    n, d, k = draw(st.integers(0, 30)), draw(st.integers(1, 4)), draw(st.integers(0, 20))
    thresholds = np.array(draw(st.lists(st.integers(-8, 8), min_size=k, max_size=k)), float) / 8
    return draw(grid(n, d)), draw(grid(k, d)), thresholds


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(case=queries())
def test_queries_equal_brute_force(kind, dtype, case):
    points, normals, thresholds = case
    index = build(points.astype(dtype), kind)
    indptr, ids = index.query_batch(normals, thresholds)
    assert indptr.dtype == np.int64
    assert ids.dtype == np.int32
    assert len(indptr) == len(normals) + 1
    for k, (normal, threshold) in enumerate(zip(normals, thresholds, strict=True)):
        expected = above(numbered(points), normal, threshold)
        assert ids[indptr[k] : indptr[k + 1]].tolist() == expected
        assert index.query(normal, threshold).tolist() == expected


@settings(max_examples=100)
@given(case=queries(), changed=st.booleans(), given_ids=st.booleans(), dtype=st.sampled_from([np.float32, np.float64]))
def test_scans_of_one_query_equal_brute_force(case, changed, given_ids, dtype):
    """Normals in the type of the points, for which ``query`` has a shorter path; coordinates are exact in float32."""
    points, normals, thresholds = case
    numbers = [7 * k - 3 if given_ids else k for k in range(len(points))]
    index = build(points.astype(dtype), "scan", ids=numbers if given_ids else None)
    live = dict(zip(numbers, points, strict=True))
    if changed and numbers:
        index.delete([numbers[0]])
        del live[numbers[0]]
        [new] = index.add(points[:1].astype(dtype) + dtype(0.5))
        live[int(new)] = points[0] + 0.5
    for normal, threshold in zip(normals.astype(dtype), thresholds.tolist(), strict=True):
        before = index.work.points_tested
        found = index.query(normal, threshold)
        assert found.dtype == np.int64
        assert found.tolist() == sorted(above(live, normal.astype(float), threshold))
        assert index.work.points_tested == before + len(live)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1.0, 1e10, 1e19, 1e21, 1e30])
def test_scans_of_one_query_do_not_overflow(size, dtype):
    points = np.array([[size, size], [size, -size], [-size, -size]], dtype)
    index = build(points, "scan")
    for factor in (1e-30, 1.0, 1e14, 1e16, 1e30, 1e38 if dtype == np.float32 else 1e300):
        normal = np.array([factor, factor], dtype)
        expected = [0] if dtype == np.float32 else above(numbered(points), normal, 0.0)
        assert index.query(normal, 0.0).tolist() == expected
    for bad in (np.nan, np.inf):
        with pytest.raises(InputError, match="finite"):
            index.query(np.array([bad, 1], dtype), 0.0)
        assert index.query(np.ones(2, dtype), -np.inf).tolist() == [0, 1, 2]


@pytest.mark.parametrize("coordinates", [1 << 22, 1 << 10])
def test_scans_of_one_query_decide_every_point_near_the_threshold(monkeypatch, coordinates):
    """The threshold is the inner product with some points, of which there are many, in one tile and in several."""
    monkeypatch.setattr("fireset.hsr.scan._TILE_COORDINATES", coordinates)
    rng = np.random.default_rng(0)
    points = rng.permutation(np.repeat(sphere(rng, 40, 7), 23, axis=0))
    index = build(points, "scan")
    for normal, point in zip(rng.standard_normal((20, 7)), points, strict=False):
        exact = deciding_dot(normal, point)
        counts = []
        for threshold in (np.nextafter(exact, -np.inf), exact):
            found = index.query(normal, float(threshold))
            assert found.tolist() == above(numbered(points), normal, threshold)
            counts.append(len(found))
        assert counts[0] >= counts[1] + 23


@pytest.mark.parametrize("kind", KINDS)
def test_one_threshold_is_that_of_all_queries(kind):
    rng = np.random.default_rng(0)
    index, normals = build(sphere(rng, 50, 3), kind), rng.standard_normal((6, 3))
    for threshold in (0.5, 1, np.float32(0.5), np.array(0.5)):
        found, expected = index.query_batch(normals, threshold), index.query_batch(normals, np.full(6, threshold))
        assert np.diff(expected[0]).sum() > 0
        assert all(map(np.array_equal, found, expected))


def test_thresholds_of_one_float32_query_are_rounded_down():
    index = build(np.array([[0.1], [0.2]], np.float32), "scan")
    normal, value = np.ones(1, np.float32), float(np.float32(0.1))
    for threshold in (value, np.nextafter(value, 1.0), np.nextafter(value, 0.0), 0.1):
        _, expected = index.query_batch(normal[None], threshold)
        assert index.query(normal, float(threshold)).tolist() == expected.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("d", [1, 2, 10, 60])
def test_thresholds_at_inner_products(kind, d):
    """Thresholds are inner products and the floats next to them; BLAS alone would decide some wrongly."""
    rng = np.random.default_rng(d)
    points, normals = sphere(rng, 150, d), rng.standard_normal((40, d))
    index = build(points, kind)
    for normal, point in zip(normals, points, strict=False):
        exact = deciding_dot(normal, point)
        for threshold in (exact, np.nextafter(exact, np.inf), np.nextafter(exact, -np.inf)):
            assert index.query(normal, threshold).tolist() == above(numbered(points), normal, threshold)


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize("case", hard_cases())
def test_hard_cases_equal_brute_force(case):
    points, normals, thresholds = hard_cases()[case]
    expected = [above(numbered(points), w, t) for w, t in zip(normals, thresholds, strict=True)]
    for kind in kinds_for(points.shape[1]):
        indptr, ids = build(points, kind).query_batch(normals, thresholds)
        found = [part.tolist() for part in np.split(ids, indptr[1:-1])]
        assert found == expected, kind


@pytest.mark.parametrize("kind", STATIC)
def test_static_kinds_refuse_changes(kind):
    points = np.random.default_rng(0).standard_normal((100, 3 if index_class(kind).suits(3) else 2))
    index = build(points, kind)
    before = index.query(points[0], 0.1)
    for change in (
        lambda: index.add(points[:1]),
        lambda: index.delete([0]),
        lambda: index.move([0], points[:1]),
    ):
        with pytest.raises(InputError, match=rf"kind '{kind}'.* kind "):
            change()
    assert np.array_equal(index.query(points[0], 0.1), before)
    assert np.array_equal(pickle.loads(pickle.dumps(index)).query(points[0], 0.1), before)
    assert len(index) == 100


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_the_inner_products(kind):
    rng = np.random.default_rng(0)
    points, normals = sphere(rng, 100, 5), rng.standard_normal((10, 5))
    found = build(points, kind).report(normals, np.full(10, 0.3))
    owners = np.repeat(np.arange(10), np.diff(found.indptr))
    products = np.einsum("ij,ij->i", normals[owners], points[found.ids])
    assert len(found.ids) > 50
    np.testing.assert_allclose(found.values, products, rtol=0, atol=1e-14)
    assert (found.values > 0.3).all()


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_correct_up_to_rounding(kind):
    rng = np.random.default_rng(0)
    points, normals = sphere(rng, 300, 20).astype(np.float32), rng.standard_normal((50, 20))
    index = build(points, kind)
    assert index.dtype == np.float32
    exact = normals.astype(np.float32).astype(float) @ points.astype(float).T
    indptr, ids = index.query_batch(normals, np.full(50, 0.7))
    for k in range(50):
        reported = np.zeros(300, bool)
        reported[ids[indptr[k] : indptr[k + 1]]] = True
        clear = np.abs(exact[k] - 0.7) > 1e-5
        assert np.array_equal(reported[clear], (exact[k] > 0.7)[clear])


def test_thresholds_are_rounded_down():
    """0.1 in float64 lies below the nearest float32; a float32 point just above 0.1 must be reported."""
    point = np.array([[np.float32(0.1)]])
    assert float(point[0, 0]) > 0.1
    assert build(point).query([1.0], 0.1).tolist() == [0]
    assert build(point).query([1.0], float(point[0, 0])).tolist() == []


def test_many_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    points, normals = sphere(rng, 50, 3), rng.standard_normal((100, 3))
    whole = build(points, "scan").report(normals, np.zeros(100))
    monkeypatch.setattr("fireset.hsr.scan._TILE_PAIRS", 10)
    parts = build(points, "scan").report(normals, np.zeros(100))
    for a, b in zip(whole[:2], parts[:2], strict=True):
        assert np.array_equal(a, b)
    np.testing.assert_allclose(parts.values, whole.values, rtol=0, atol=1e-15)


class AnySequence(RuleBasedStateMachine):
    """Apply the same adds, deletes, queries and invalid calls to an index and to a dict."""

    index: HalfSpaceIndex
    model: dict[int, np.ndarray]
    next_id: int

    @initialize(points=st.integers(0, 5).flatmap(lambda n: grid(n, 2)), kind=st.sampled_from(KINDS))
    def start(self, points, kind):
        self.index, self.model, self.next_id = build(points, kind), numbered(points), len(points)

    @rule(points=st.integers(0, 4).flatmap(lambda n: grid(n, 2)))
    def add(self, points):
        ids = self.index.add(points)
        assert ids.tolist() == list(range(self.next_id, self.next_id + len(points)))
        self.model.update(zip(ids.tolist(), points, strict=True))
        self.next_id += len(points)

    @rule(data=st.data())
    def delete(self, data):
        if self.model:
            ids = data.draw(st.lists(st.sampled_from(sorted(self.model)), max_size=4))
            self.index.delete(ids)
            for i in set(ids):
                del self.model[i]

    @rule(data=st.data())
    def delete_what_is_not_there(self, data):
        gone = data.draw(st.integers(-2, self.next_id + 2).filter(lambda i: i not in self.model), label="gone")
        with pytest.raises(InputError, match=f"^ids.* {gone} "):
            self.index.delete([gone, *sorted(self.model)])

    @rule()
    def add_what_does_not_fit(self):
        with pytest.raises(InputError, match=r"points.*shape"):
            self.index.add(np.ones((2, 3)))
        with pytest.raises(InputError, match=r"points.*finite.*row 1 "):
            self.index.add([[0.0, 1.0], [np.inf, 0.0]])

    @rule()
    def pickle(self):
        self.index = pickle.loads(pickle.dumps(self.index))

    @rule(normal=grid(1, 2), threshold=st.integers(-4, 4))
    def query(self, normal, threshold):
        expected = above(self.model, normal[0], threshold / 4)
        assert self.index.query(normal[0], threshold / 4).tolist() == expected

    @invariant()
    def sizes_agree(self):
        assert len(self.index) == len(self.model)


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=40, stateful_step_count=20)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_index(kind):
    index = build(np.empty((0, 3)), kind)
    assert len(index) == 0
    assert index.query([1.0, 0, 0], -np.inf).tolist() == []
    indptr, ids = index.query_batch(np.ones((4, 3)), np.zeros(4))
    assert indptr.tolist() == [0] * 5
    assert ids.tolist() == []
    assert index.add(np.eye(3)).tolist() == [0, 1, 2]
    index.delete([0, 1, 2])
    assert len(index) == 0
    assert index.add(np.eye(3)[:1]).tolist() == [3]
    assert index.query([1.0, 0, 0], 0.5).tolist() == [3]


@pytest.mark.parametrize("kind", KINDS)
def test_no_queries(kind):
    found = build(np.eye(3), kind).report(np.empty((0, 3)), np.empty(0))
    assert found.indptr.tolist() == [0]
    assert len(found.ids) == len(found.values) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_duplicates_zero_vectors_and_infinite_thresholds(kind):
    points = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [-1.0, 0.0], [1.0, 0.0]])
    index = build(points, kind)
    assert index.query([1.0, 0.0], 0.5).tolist() == [0, 1, 4]
    assert index.query([1.0, 0.0], 1.0).tolist() == []
    assert index.query([0.0, 0.0], -1e-300).tolist() == [0, 1, 2, 3, 4]
    assert index.query([0.0, 0.0], 0.0).tolist() == []
    assert index.query([1.0, 1.0], -np.inf).tolist() == [0, 1, 2, 3, 4]
    assert index.query([1.0, 1.0], np.inf).tolist() == []
    index.delete([1])
    assert index.query([1.0, 0.0], 0.5).tolist() == [0, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_one_dimension(kind):
    index = build(np.array([[2.0], [-1.0], [0.5], [1.0]]), kind)
    assert index.query([1.0], 0.5).tolist() == [0, 3]
    assert index.query([-1.0], 0.5).tolist() == [1]


def test_whole_numbers_and_lists_are_points():
    index = build([[1, 2], [3, 4]])
    assert index.dtype == np.float64
    assert index.query([0, 1], 3).tolist() == [1]


def test_work_is_counted():
    index = build(np.eye(4), "scan")
    index.query([1.0, 0, 0, 0], 0.5)
    index.query_batch(np.ones((3, 4)), np.array([0.5, 0.5, 2.0]))
    assert index.work.queries == 4
    assert index.work.points_tested == 16
    assert index.work.points_reported == 1 + 4 + 4
    index.delete([0])
    index.query([0.0, 1, 0, 0], 2.0)
    assert index.work.queries == 5
    assert index.work.points_tested == 19
    assert index.work.points_reported == 9


@pytest.mark.parametrize(
    ("action", "parts"),
    [
        (lambda i: i.query([1.0, 0.0], 0.0), ["normals", "3", "1", "2"]),
        (lambda i: i.query([1.0, np.nan, 0.0], 0.0), ["normals", "0"]),
        (
            lambda i: i.query_batch(np.eye(3), np.zeros(2)),
            ["thresholds", "3", "2"],
        ),
        (lambda i: i.add([1.0, 0.0, 0.0]), ["points", "3", "3"]),
        (lambda i: i.add(np.full((1, 3), np.inf)), ["points", "0"]),
        (lambda i: i.delete([0, 7]), ["ids", "7"]),
        (lambda i: i.delete([-1, 0]), ["ids", "-1"]),
    ],
)
def test_refused_input_does_not_change_the_index(action, parts):
    index = build(np.eye(3), "scan")
    work = pickle.dumps(index.work)
    with pytest.raises(InputError) as caught:
        action(index)
    assert mentions(str(caught.value), *parts)
    assert len(index) == 3
    assert pickle.dumps(index.work) == work
    assert index.query([1.0, 2.0, 3.0], 1.5).tolist() == [1, 2]
    assert index.add(np.eye(3)[:1]).tolist() == [3]


def test_build_refuses():
    with pytest.raises(InputError, match=r"^kind.*got 'tree'"):
        build(np.eye(2), "tree")
    with pytest.raises(InputError, match=r"^points.*shape.*got \(3,\)"):
        build([1.0, 2.0, 3.0])
    with pytest.raises(InputError, match=r"^points.*finite.*row 1 "):
        build([[1.0, 2.0], [np.nan, 0.0]])


@pytest.mark.parametrize("kind", KINDS)
def test_overflowing_sums_are_decided_exactly(kind):
    """Partial sums exceed 1e308: BLAS gives infinity or NaN in any order of summation."""
    rng = np.random.default_rng(0)
    points, normals = rng.standard_normal((500, 3)) * 4e154, rng.standard_normal((20, 3)) * 4e153
    thresholds = np.full(20, 1e306)
    indptr, ids = build(points, kind).query_batch(normals, thresholds)
    for k in range(20):
        assert ids[indptr[k] : indptr[k + 1]].tolist() == above(numbered(points), normals[k], 1e306)


def test_nan_thresholds_are_refused():
    with pytest.raises(InputError, match="thresholds must"):
        build(np.eye(2)).query([1.0, 0.0], np.nan)


@pytest.mark.parametrize("ids", [[1.5], [True, False]], ids=str)
def test_ids_must_be_integers(ids):
    with pytest.raises(InputError, match=r"^ids "):
        build(np.eye(3)).delete(ids)


def test_points_are_copied():
    points = np.eye(3)
    index = build(points)
    points[:] = 0.0
    assert index.query([1.0, 0.0, 0.0], 0.5).tolist() == [0]


@pytest.mark.parametrize(
    ("action", "name"),
    [
        (lambda: build([["a", "b"]]), "points"),
        (lambda: build(np.eye(2)).add([["a", "b"]]), "points"),
        (lambda: build(np.eye(2)).query([1.0, 0.0], [1.0, 2.0]), "threshold"),
    ],
)
def test_non_numeric_input_is_refused(action, name):
    with pytest.raises(InputError, match=name):
        action()


def test_auto_depends_on_dimension_size_changes_and_output():
    assert choose(100_000, 3) == "partition-tree"
    assert choose(100, 3) == "scan"
    assert choose(1_000_000, 8) == "scan"  # measured at 1.5 to 2.8 times the speed of a tree
    assert choose(1_000_000, 4) == "partition-tree"  # a sixth of the time of a scan
    for n, d in ((10_000, 4), (30_000, 5), (100_000, 6), (300_000, 6), (1_000_000, 6)):  # 0.4 to 0.85
        assert choose(n, d) == "partition-tree"
    for n, d in ((10_000, 8), (30_000, 8), (100_000, 8), (300_000, 10), (1_000_000, 7)):  # 1.15 to 3
        assert choose(n, d) == "scan"
    assert {choose(n, d) for n in (10, 1000, 100_000, 1_000_000) for d in (16, 64, 784)} == {"scan"}
    many = 10_000_000
    assert choose(100_000, 2, dynamic=False, output=10, queries=many) == "convex-layers"
    assert choose(100_000, 2, dynamic=True, output=10, queries=many) == "partition-tree"
    assert choose(100_000, 2, dynamic=False, output=10) == "partition-tree"  # too few queries for the peeling
    assert choose(100_000, 4, output=50_000) == "scan"
    assert build(np.ones((50, 3))).kind == "scan"


def test_unknown_options_are_refused():
    with pytest.raises(InputError, match=r"'scan'.*memory_limit"):
        build(np.eye(3), "scan", memory_limit=5)


def test_borrowed_arrays_are_not_written():
    points = np.eye(3)
    index = build(points, "scan", copy=False)
    index.move([0], -np.eye(3)[:1])
    assert np.array_equal(points, np.eye(3))
    assert index.query(np.ones(3), 0.5).tolist() == [1, 2]
    later = build(np.empty((0, 3)), "scan", copy=False)
    later.add(points)
    points *= -1
    assert later.query(np.ones(3), 0.5).tolist() == [0, 1, 2]


@given(st.floats(-1e38, 1e38) | st.floats(-1e-37, 1e-37, width=64))
def test_one_threshold_is_rounded_as_many_are(threshold):
    for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        one = _one_rounded_down(threshold, dtype)
        assert one.dtype == dtype
        assert one.tolist() == _rounded_down(np.array([threshold]), dtype).tolist()


@pytest.mark.parametrize("kind", ["scan", "partition-tree"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [1, 3, 40])
@pytest.mark.parametrize("scale", [0.0, 1e-300, 1e-30, 1.0, 1e14, 1e18, 1e30])
def test_one_query_answers_as_a_batch_does(kind, dtype, d, scale):
    """Including normals and points whose inner products may overflow; without warnings."""
    rng = np.random.default_rng(0)
    for size in (1.0, 1e16, 1e25):
        points = (size * rng.standard_normal((150, d))).astype(dtype)
        index = build(points, kind)
        normal = (scale * rng.standard_normal(d)).astype(dtype)
        # In float32 a point within rounding distance may be on either side.
        on_point = float(normal.astype(float) @ points[7].astype(float)) * (1 if dtype == "float64" else 1.001)
        for threshold in (0.0, 0.3, -1e-45, on_point, np.float64(on_point), -1e200, 1e36):
            found = index.query(normal, threshold)
            assert found.dtype == np.int64
            assert found.tolist() == index.query_batch(normal[None], [threshold])[1].tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_threshold_for_a_batch(kind, dtype):
    rng = np.random.default_rng(0)
    points, normals = rng.standard_normal((300, 3)).astype(dtype), rng.standard_normal((20, 3))
    index = build(points, kind)
    expected = index.report(normals, np.full(20, 0.3))
    for threshold in (0.3, np.float64(0.3), np.array(0.3)):
        for found, wanted in zip(index.report(normals, threshold), expected, strict=True):
            assert np.array_equal(found, wanted)
        assert np.array_equal(index.query_batch(normals, threshold)[1], expected.ids)
    with pytest.raises(InputError, match="thresholds"):
        index.query_batch(normals, [0.3, 0.4])
