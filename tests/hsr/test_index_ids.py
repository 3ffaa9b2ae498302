"""Ids of the caller, points by id, and one threshold for all queries, for every kind of index."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset import InputError, hsr
from fireset.hsr.registry import index_class
from support.indexes import KINDS, STATIC, above


def cloud(n: int, d: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def dimension(kind: str) -> int:
    return 2 if kind == "convex-layers" else 3


@pytest.mark.parametrize("kind", [*KINDS, *STATIC])
def test_user_ids_in_all_answers(kind):
    d = dimension(kind)
    points, ids = cloud(300, d), np.random.default_rng(1).permutation(10**12 + np.arange(300)) - 150
    named, plain = hsr.build(points, kind, ids=ids), hsr.build(points, kind)
    normals, thresholds = cloud(20, d, 2), np.linspace(-1, 1, 20)
    (indptr, found), (same, numbers) = named.query_batch(normals, thresholds), plain.query_batch(normals, thresholds)
    assert np.array_equal(indptr, same)
    assert found.dtype == np.int64
    report, expected = named.report(normals, thresholds), plain.report(normals, thresholds)
    for k in range(20):
        part = slice(indptr[k], indptr[k + 1])
        assert found[part].tolist() == sorted(ids[numbers[part]].tolist())
        assert named.query(normals[k], float(thresholds[k])).tolist() == found[part].tolist()
        values = dict(zip(ids[expected.ids[part]].tolist(), expected.values[part].tolist(), strict=True))
        assert dict(zip(report.ids[part].tolist(), report.values[part].tolist(), strict=True)) == values
    assert np.array_equal(named.top(normals, 7).ids, ids[plain.top(normals, 7).ids])
    assert named.ids.tolist() == sorted(ids.tolist())
    assert np.array_equal(named.get(ids), points)
    assert np.array_equal(named.get(int(ids[5])), points[5])
    assert np.array_equal(plain.get([7, 0, 7]), points[[7, 0, 7]])
    assert plain.ids.tolist() == list(range(300))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_any_sequence_of_changes_with_user_ids(kind, data):
    """Against a dict: adds with and without ids, ids used again after deletion, moves."""
    points: dict[int, np.ndarray] = {}
    index = hsr.build(np.empty((0, 2)), kind)
    rows = st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=1, max_size=8)
    largest = -1
    for _ in range(data.draw(st.integers(1, 10))):
        action = data.draw(st.sampled_from(["add", "name", "delete", "move"]))
        if action in ("add", "name"):
            new = np.array(data.draw(rows), float) / 4
            ids = None
            if action == "name":
                free = st.integers(-50, 50).filter(lambda i: i not in points)
                ids = data.draw(st.lists(free, min_size=len(new), max_size=len(new), unique=True))
            given_ids = index.add(new, ids=ids).tolist()
            assert given_ids == (ids or list(range(largest + 1, largest + 1 + len(new))))
            largest = max(largest, *given_ids)
            points.update(zip(given_ids, new, strict=True))
        elif points:
            some = data.draw(st.lists(st.sampled_from(sorted(points)), max_size=5, unique=True))
            if action == "delete":
                index.delete(some)
                for i in some:
                    del points[i]
            else:
                new = np.array(data.draw(rows), float).repeat(5, axis=0)[: len(some)]
                index.move(some, new)
                points.update(zip(some, new, strict=True))
        assert len(index) == len(points)
        assert index.ids.tolist() == sorted(points)
        for copied in (index, pickle.loads(pickle.dumps(index))):
            for normal in ((1.0, 0.5), (0.0, -1.0)):
                assert copied.query(normal, 0.25).tolist() == above(points, np.array(normal), 0.25)
        assert np.array_equal(index.get(sorted(points)), np.array([points[i] for i in sorted(points)]).reshape(-1, 2))


@pytest.mark.parametrize("kind", [*KINDS[1:], *STATIC])
def test_user_ids_are_saved(kind, tmp_path):
    d = dimension(kind)
    index = hsr.build(cloud(100, d), kind, ids=np.arange(100)[::-1] * 7)
    if index_class(kind).dynamic:
        index.delete([7, 14])
        index.add(cloud(2, d, 1), ids=[7, 10**15])
        index.delete([10**15])
    index.save(tmp_path / "index")
    loaded = hsr.load(tmp_path / "index")
    assert loaded.ids.tolist() == index.ids.tolist()
    assert np.array_equal(loaded.get(index.ids), index.get(index.ids))
    assert np.array_equal(loaded.query(np.ones(d), 0.5), index.query(np.ones(d), 0.5))
    if index_class(kind).dynamic:
        assert loaded.add(cloud(1, d)).tolist() == index.add(cloud(1, d)).tolist() == [10**15 + 1]


@pytest.mark.parametrize("kind", [*KINDS, *STATIC])
def test_one_threshold_for_all_queries(kind):
    d = dimension(kind)
    index, normals = hsr.build(cloud(200, d), kind), cloud(9, d, 1)
    for found, expected in zip(
        index.query_batch(normals, 0.5), index.query_batch(normals, np.full(9, 0.5)), strict=True
    ):
        assert np.array_equal(found, expected)
    for found, expected in zip(index.report(normals, 1), index.report(normals, np.ones(9)), strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("kind", [*KINDS[1:], *STATIC])
def test_repr(kind):
    d = dimension(kind)
    shown = repr(hsr.build(cloud(1200, d).astype(np.float32), kind))
    for part in (kind, "1,200 points", f"{d} features", "float32"):
        assert part in shown


class TestMistakes:
    @pytest.mark.parametrize(
        ("ids", "message"),
        [([1, 2], "one number for each"), ([1, 2, 2], "got 2 2 times"), ([1.0, 2.0, 3.0], "whole numbers")],
    )
    def test_invalid_ids_are_refused(self, ids, message):
        with pytest.raises(InputError, match=message):
            hsr.build(cloud(3), ids=ids)
        index = hsr.build(cloud(3))
        with pytest.raises(InputError, match=message):
            index.add(cloud(3), ids=ids)
        assert len(index) == 3

    @pytest.mark.parametrize("named", [False, True])
    def test_ids_in_use(self, named):
        index = hsr.build(cloud(3), ids=[5, 6, 7] if named else None)
        with pytest.raises(InputError, match="already"):
            index.add(cloud(2), ids=[90, 6 if named else 2])
        assert len(index) == 3
        with pytest.raises(InputError, match="90 is not"):
            index.get([90])


def test_messages_of_load_mention_an_index(tmp_path):
    (tmp_path / "junk").write_bytes(b"junk")
    hsr.build(cloud(3)).save(tmp_path / "index")
    for path in (tmp_path / "junk", tmp_path / "absent", tmp_path):
        with pytest.raises(InputError) as refused:
            hsr.load(path)
        assert "index" in str(refused.value).removeprefix(str(path))
        assert "fireset train" not in str(refused.value)
        assert "model" not in str(refused.value)
