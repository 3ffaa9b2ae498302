"""Indexes on disk: saved and loaded, points mapped from a file, points in float16."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fireset import InputError, hsr
from fireset._util.files import write_model
from fireset.hsr.registry import index_class
from support.indexes import KINDS, STATIC


def cloud(n: int = 2000, d: int = 3, dtype="float64", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)


def same_answers(a, b, d: int) -> None:
    normals, thresholds = cloud(40, d, seed=1), np.linspace(-1.5, 2.5, 40)
    for one, other in zip(a.report(normals, thresholds)[:2], b.report(normals, thresholds)[:2], strict=True):
        assert np.array_equal(one, other)
    assert len(a.query_batch(normals, thresholds)[1]) > 1000
    for one, other in zip(a.top(normals, 9), b.top(normals, 9), strict=True):
        assert np.array_equal(one, other)
    for normal, threshold in zip(normals, thresholds.tolist(), strict=True):
        assert np.array_equal(a.query(normal.astype(a.dtype), threshold), b.query(normal.astype(b.dtype), threshold))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_load_restores_dynamic_indexes(kind, dtype, tmp_path):
    index = hsr.build(cloud(dtype=dtype), kind)
    index.delete(np.arange(0, 2000, 3))
    index.add(cloud(100, seed=2))
    index.delete([2099, 5])
    index.save(tmp_path / "index.safetensors")
    loaded = hsr.load(tmp_path / "index.safetensors")
    assert (loaded.kind, loaded.dtype, len(loaded)) == (kind, np.dtype(dtype), len(index))
    same_answers(index, loaded, 3)
    with pytest.raises(InputError, match=r"^ids.* 5 "):
        loaded.delete([5])
    for each in (index, loaded):
        assert each.add(cloud(500, seed=3)).tolist() == list(range(2100, 2600))
        each.delete([1, 2100])
        each.move([4], cloud(1, seed=4))
    same_answers(index, loaded, 3)


@pytest.mark.parametrize("kind", STATIC)
def test_load_restores_static_indexes(kind, tmp_path):
    d = 3 if index_class(kind).suits(3) else 2
    index = hsr.build(cloud(d=d), kind)
    index.save(tmp_path / "index.safetensors")
    same_answers(index, hsr.load(tmp_path / "index.safetensors"), d)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_empty_index_keeps_assigned_ids(kind, tmp_path):
    index = hsr.build(np.eye(3), kind)
    index.delete([0, 1, 2])
    index.save(tmp_path / "index.safetensors")
    loaded = hsr.load(tmp_path / "index.safetensors")
    assert len(loaded) == 0
    assert loaded.add(np.eye(3)[:1]).tolist() == [3]
    assert loaded.query(np.ones(3), 0.5).tolist() == [3]


POINTS, IDS = np.eye(3), np.arange(3, dtype=np.int32)
ABOUT = {"kind": "scan", "next_id": 3}
TREE = {"kind": "partition-tree", "next_id": 3}


@pytest.mark.parametrize(
    ("arrays", "about", "reason"),
    [
        ({"points": POINTS}, ABOUT, "points, ids or their description are missing"),
        ({"points": POINTS, "ids": IDS}, None, "points, ids or their description are missing"),
        ({"points": POINTS, "ids": IDS}, {**ABOUT, "kind": ["scan"]}, "kind is"),
        ({"points": POINTS, "ids": IDS}, {**ABOUT, "kind": "convex-layers"}, "points of a convex-layers have shape"),
        ({"points": POINTS[0], "ids": IDS}, ABOUT, r"points of a scan have shape \(3,\)"),
        ({"points": POINTS[:, :0], "ids": IDS}, ABOUT, r"points of a scan have shape \(3, 0\)"),
        ({"points": POINTS.astype(np.int64), "ids": IDS}, ABOUT, "points of a scan are int64"),
        ({"points": POINTS.astype(np.float16), "ids": IDS}, TREE, "points of a partition-tree are float16"),
        ({"points": np.full((3, 3), np.inf), "ids": IDS}, TREE, "points are not finite"),
        ({"points": POINTS, "ids": IDS}, {**ABOUT, "next_id": 2}, "next_id is 2"),
        ({"points": POINTS, "ids": IDS}, {**ABOUT, "next_id": 2**40}, "next_id is"),
        ({"points": POINTS, "ids": IDS}, {**ABOUT, "next_id": "3"}, "next_id is '3'"),
        ({"points": POINTS, "ids": IDS[:2]}, TREE, r"ids are int32 of shape \(2,\), for 3 points"),
        ({"points": POINTS, "ids": IDS.astype(float)}, TREE, "ids are float64"),
        ({"points": POINTS, "ids": IDS[::-1].copy()}, TREE, "ids must ascend"),
        ({"points": POINTS, "ids": IDS - 1}, TREE, "ids must ascend"),
        ({"points": POINTS, "ids": IDS * 2}, TREE, "ids must ascend"),
        ({"points": POINTS, "ids": IDS}, {"kind": "hull-hierarchy", "next_id": 4}, "cannot have assigned 4 ids"),
    ],
)
def test_damaged_files_are_refused(arrays, about, reason, tmp_path):
    path = tmp_path / "index.safetensors"
    write_model(path, arrays, {} if about is None else {"index": about})
    with pytest.raises(InputError, match=rf"^{path} is damaged, or not an index: .*{reason}.*$"):
        hsr.load(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="no such"):
        hsr.load(tmp_path / "nothing")
    (tmp_path / "text").write_text("points")
    with pytest.raises(InputError, match="damaged"):
        hsr.load(tmp_path / "text")
    hsr.build(POINTS).save(tmp_path / "index")
    (tmp_path / "half").write_bytes((tmp_path / "index").read_bytes()[:-8])
    with pytest.raises(InputError, match="is damaged"):
        hsr.load(tmp_path / "half")
    save_file(load_file(tmp_path / "index"), tmp_path / "bare")
    with pytest.raises(InputError, match="header"):
        hsr.load(tmp_path / "bare")


def test_ids_that_exceed_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fireset.hsr.saving.available_bytes", lambda: 1000.0)
    write_model(tmp_path / "index", {"points": POINTS, "ids": IDS}, {"index": {**TREE, "next_id": 2**30}})
    with pytest.raises(InputError, match="1,073,741,824 ids"):
        hsr.load(tmp_path / "index")


@pytest.mark.parametrize("kind", KINDS)
def test_float16_equals_a_float32_copy(kind, tmp_path):
    points = cloud(3000, 20, "float16")
    index, copy = hsr.build(points, kind), hsr.build(points.astype(np.float32), kind)
    assert index.dtype == np.float32
    same_answers(index, copy, 20)
    index.save(tmp_path / "index")
    same_answers(hsr.load(tmp_path / "index"), copy, 20)
    for each in (index, copy):
        each.delete([7, 8])
        each.move([9], np.full((1, 20), 1 / 3))
        each.add(cloud(5, 20, seed=5))
    same_answers(index, copy, 20)


def test_float16_is_copied_without_conversion():
    points = cloud(100, 4, "float16")
    index = hsr.build(points, "scan")
    assert index._points.nbytes == points.nbytes
    before = index.query(np.ones(4, np.float32), 1.0)
    points[:] = 0
    assert np.array_equal(index.query(np.ones(4, np.float32), 1.0), before)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_mapped_points_are_not_loaded(dtype, order, tmp_path, monkeypatch):
    monkeypatch.setattr("fireset.hsr.scan._TILE_COORDINATES", 5000)  # many blocks
    points = np.asarray(cloud(3000, 20, dtype), order=order)
    np.save(tmp_path / "points.npy", points)
    mapped = np.load(tmp_path / "points.npy", mmap_mode="r")
    index, copy = hsr.build(mapped, "scan"), hsr.build(np.ascontiguousarray(points), "scan")
    assert np.shares_memory(index._points, mapped)
    same_answers(index, copy, 20)
    index.save(tmp_path / "index")
    same_answers(hsr.load(tmp_path / "index"), copy, 20)
    for each in (index, copy):
        each.move([0], np.ones((1, 20)))
        each.delete([5])
        each.add(np.zeros((1, 20)))
    same_answers(index, copy, 20)
    assert np.array_equal(mapped, points)


def test_non_finite_mapped_points_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fireset.hsr.scan._TILE_COORDINATES", 50)
    points = cloud(100, 4)
    points[70, 2] = np.nan
    np.save(tmp_path / "points.npy", points)
    with pytest.raises(InputError, match=r"^points.*finite.*row 70 "):
        hsr.build(np.load(tmp_path / "points.npy", mmap_mode="r"), "scan")
