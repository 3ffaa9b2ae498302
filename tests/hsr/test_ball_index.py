"""Points within a distance, by the lifting map, against brute force."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset import InputError, hsr
from fireset._util.files import write_model
from fireset.hsr import BallIndex
from support.indexes import KINDS, grid


def within(points: dict[int, np.ndarray], center, radius: float) -> list[int]:
    """Apply the definition to one point at a time."""
    found = []
    for i, point in sorted(points.items()):
        total = 0.0
        for p, c in zip(point.tolist(), np.asarray(center, float).tolist(), strict=True):
            total += (p - c) * (p - c)
        if total <= float(radius) * float(radius):
            found.append(i)
    return found


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(data=st.data(), d=st.integers(1, 4))
def test_ties_through_changes(kind, data, d):
    """Coordinates in quarters: many points exactly on a sphere, at the radius and at 0."""
    first, more = (data.draw(st.integers(0, 30).flatmap(lambda n: grid(n, d))) for _ in range(2))
    index = BallIndex(first, kind)
    points = dict(enumerate(first))
    ids = np.arange(len(more))[::-1] + 1000
    index.add(more, ids=ids)
    points.update(zip(ids.tolist(), more, strict=True))
    gone = data.draw(st.lists(st.sampled_from(sorted(points)), unique=True, max_size=20)) if points else []
    index.delete(gone)
    points = {i: p for i, p in points.items() if i not in gone}
    if points:
        moved = data.draw(st.sampled_from(sorted(points)))
        points[moved] = np.full(d, 0.25)
        index.move([moved], points[moved][None])
    centers = data.draw(grid(6, d))
    radii = np.array([0.0, 0.25, 0.5, 1.25, 2.0, np.inf])
    indptr, found = index.query_batch(centers, radii)
    report = index.report(centers, radii)
    for k in range(6):
        expected = within(points, centers[k], radii[k])
        assert found[indptr[k] : indptr[k + 1]].tolist() == expected
        assert index.query(centers[k], radii[k]).tolist() == expected
        squares = report.values[report.indptr[k] : report.indptr[k + 1]]
        assert squares.tolist() == [float(((points[i] - centers[k]) ** 2).sum()) for i in expected]
    assert index.ids.tolist() == sorted(points)
    assert len(index) == len(points)


@pytest.mark.parametrize("kind", [*KINDS, "hull-hierarchy"])
@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1.0), (1e6, 1.0), (0.0, 1e-140), (0.0, 1e140), (3e8, 1e-3)])
def test_radii_that_are_distances(kind, offset, scale):
    """Radii are distances to points and their neighbours in float64; offsets make ‖p‖² cancel in the lifted product."""
    rng = np.random.default_rng(0)
    points = offset + scale * rng.standard_normal((300, 3))
    index = BallIndex(points, kind)
    for center in (points[3], offset + scale * rng.standard_normal(3), points[7]):
        distances = np.sqrt(((points - center) ** 2).sum(axis=1))
        for radius in rng.choice(distances, 5):
            for r in (radius, np.nextafter(radius, np.inf), np.nextafter(radius, 0.0)):
                assert index.query(center, r).tolist() == within(dict(enumerate(points)), center, r)


def test_trees_test_few_points():
    """Check the work counts: a tree does not test every point."""
    rng = np.random.default_rng(0)
    index = BallIndex(rng.random((20_000, 2)), "partition-tree")
    index.query_batch(rng.random((50, 2)), 0.02)
    assert index.work.points_tested < 0.2 * 50 * 20_000


def test_points_by_id_and_static_kinds():
    points = np.random.default_rng(0).standard_normal((50, 2))
    index = BallIndex(points, "hull-hierarchy", ids=np.arange(50) * 3)
    assert np.array_equal(index.get([6, 0]), points[[2, 0]])
    assert np.array_equal(index.get(6), points[2])
    for part in ("50 points", "2 features", "hull-hierarchy"):
        assert part in repr(index)
    with pytest.raises(InputError, match="kind"):
        index.add(points)


def test_threads_see_states_between_changes():
    """A query during changes finds all points of a pair or none."""
    index = BallIndex(np.zeros((0, 2)), "partition-tree")

    def change(k: int) -> None:
        for step in range(30):
            ids = [1000 * k + 2 * step, 1000 * k + 2 * step + 1]
            index.add(np.zeros((2, 2)), ids=ids)
            index.delete(ids)

    def ask(_: int) -> None:
        for _ in range(60):
            assert len(index.query([0.0, 0.0], 1.0)) % 2 == 0

    with ThreadPoolExecutor(4) as pool:
        done = [*pool.map(lambda task: task[0](task[1]), [(change, 1), (ask, 0), (change, 2), (ask, 0)])]
    assert len(done) == 4
    assert len(index) == 0


class TestMistakes:
    index = BallIndex(np.zeros((3, 2)))

    @pytest.mark.parametrize(
        ("center", "radius", "message"),
        [
            ([0.0, 0.0], -1.0, "radii.*got -1"),
            ([0.0, 0.0], np.nan, "radii.*got nan"),
            ([0.0], 1.0, r"centers.*\(n, 2\)"),
            ([0.0, np.inf], 1.0, "centers.*finite"),
            ([0.0, 1e200], 1.0, "rescale"),
        ],
    )
    def test_queries(self, center, radius, message):
        with pytest.raises(InputError, match=message):
            self.index.query(center, radius)

    def test_points(self):
        with pytest.raises(InputError, match="rescale"):
            BallIndex([[1e200]])
        with pytest.raises(InputError, match="shape"):
            self.index.query_batch(np.zeros((2, 2)), [1.0, 1.0, 1.0])


class TestSaving:
    @pytest.mark.parametrize("kind", [*KINDS, "hull-hierarchy"])
    @pytest.mark.parametrize("own", [False, True])
    def test_a_loaded_index_answers_as_before(self, kind, own, tmp_path):
        points = np.random.default_rng(0).standard_normal((300, 3))
        index = BallIndex(points, kind, ids=np.arange(300)[::-1] * 7 - 50 if own else None)
        if kind != "hull-hierarchy":
            index.delete(index.ids[:20])
            index.add(points[:2] + 1, ids=[10**12, -9] if own else None)
            index.move(index.ids[-1:], points[:1] - 1)
            index.delete(index.ids[-1:])
        index.save(tmp_path / "balls")
        loaded = hsr.load(tmp_path / "balls")
        assert isinstance(loaded, BallIndex)
        assert (loaded.kind, loaded.n_features, len(loaded)) == (index.kind, 3, len(index))
        assert np.array_equal(loaded.ids, index.ids)
        assert np.array_equal(loaded.get(index.ids), index.get(index.ids))
        for found, expected in zip(
            loaded.report(points[:50], np.linspace(0, 2, 50)),
            index.report(points[:50], np.linspace(0, 2, 50)),
            strict=True,
        ):
            assert np.array_equal(found, expected)
        if kind != "hull-hierarchy":
            assert np.array_equal(loaded.add(points[:3]), index.add(points[:3]))
            loaded.delete(loaded.ids[:5])
            assert len(loaded) == len(index) - 5

    def test_an_empty_index(self, tmp_path):
        index = BallIndex(np.eye(3))
        index.delete([0, 1, 2])
        index.save(tmp_path / "balls")
        loaded = hsr.load(tmp_path / "balls")
        assert len(loaded) == 0
        assert loaded.add(np.eye(3)[:1]).tolist() == [3]
        assert loaded.query(np.eye(3)[0], 0.5).tolist() == [3]

    @pytest.mark.parametrize(
        "points", [np.eye(3), np.ones((3, 1)), np.ones((3, 2), np.float32), np.full((3, 2), 1e200)]
    )
    def test_points_that_are_not_lifted_are_refused(self, points, tmp_path):
        about = {"kind": "scan", "next_id": 3, "balls": True}
        write_model(tmp_path / "balls", {"points": points, "ids": np.arange(3, dtype=np.int32)}, {"index": about})
        with pytest.raises(InputError, match="damaged"):
            hsr.load(tmp_path / "balls")
