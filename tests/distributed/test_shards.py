"""Models in shards: files of other models are not changed, and index and shards stay together."""

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fireset import InputError, ShiftedReLUNetwork
from fireset._util.errors import OutputError
from fireset._util.files import write_model
from fireset.commands.info import describe_model
from fireset.commands.outputs import save_or_rescue
from fireset.distributed.shard import NetworkShard
from fireset.distributed.worker_grid import WorkerGrid
from support.thread_group import groups, run_all


def network(seed: int = 0) -> ShiftedReLUNetwork:
    return ShiftedReLUNetwork.initialize(20, 3, seed=seed, dtype="float64")


def save(path, one: ShiftedReLUNetwork, workers: int = 2) -> list[str]:
    """Save from several workers at once; return the error message of each."""
    errors, team = [""] * workers, groups(workers)

    def work(rank: int) -> None:
        try:
            NetworkShard.of(one, WorkerGrid.neurons_only(team[rank])).save(path)
        except InputError as error:
            errors[rank] = str(error)

    run_all(work, workers)
    return errors


def contains(path, one: ShiftedReLUNetwork) -> bool:
    return np.array_equal(ShiftedReLUNetwork.load(path).weights, one.weights)


def shards(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if "-of-" in name)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("houses.v2.safetensors", "houses.safetensors"),
        ("m1.safetensors", "m[1].safetensors"),
        ("m.1-of-2.safetensors", "m.safetensors"),
        ("plain", "*"),
    ],
)
def test_another_model_keeps_its_shards(tmp_path, first, second):
    one, other = network(0), network(1)
    save(tmp_path / first, one)
    for _ in range(2):
        assert save(tmp_path / second, other) == ["", ""]
    assert contains(tmp_path / first, one)
    assert contains(tmp_path / second, other)
    assert len(os.listdir(tmp_path)) == 6  # the index and two shards of each model


@pytest.mark.parametrize("name", ["m.safetensors", "m[1].safetensors"])
def test_the_shards_of_the_previous_model_are_removed(tmp_path, name):
    save(tmp_path / name, network(0), workers=3)
    old = shards(tmp_path)
    assert save(tmp_path / name, network(1)) == ["", ""]
    assert contains(tmp_path / name, network(1))
    assert len(shards(tmp_path)) == 2
    assert not set(old) & set(shards(tmp_path))


@pytest.mark.parametrize("through", ["itself", "a link"])
def test_a_model_of_one_file_replaces_one_of_several(tmp_path, through):
    model, other = tmp_path / "m.safetensors", tmp_path / "other.safetensors"
    save(model, network(0), workers=3)
    save(other, network(2))
    path = model
    if through == "a link":
        (tmp_path / "links").mkdir()
        path = tmp_path / "links" / "m.safetensors"
        path.symlink_to(model)
    network(1).save(path)
    assert contains(model, network(1))
    assert contains(other, network(2))
    assert len(shards(tmp_path)) == 2  # those of the other model


@pytest.mark.parametrize("link", ["absolute", "relative", "dangling"])
def test_through_a_link_index_and_shards_are_together(tmp_path, link):
    real, here = tmp_path / "store" / "real.safetensors", tmp_path / "here"
    real.parent.mkdir()
    here.mkdir()
    if link != "dangling":
        save(real, network(0))
    path = here / "link.safetensors"
    path.symlink_to("../store/real.safetensors" if link == "relative" else real)
    assert save(path, network(1)) == ["", ""]
    assert os.listdir(here) == ["link.safetensors"]
    assert path.is_symlink()
    assert len(shards(real.parent)) == 2
    assert contains(real, network(1))
    assert contains(path, network(1))
    files = [path, *(real.parent / name for name in shards(real.parent))]
    assert describe_model(path)["bytes"] == sum(file.stat().st_size for file in files)


def test_links_to_index_and_shards_in_one_folder_are_read(tmp_path):
    """As in a store that names files by their contents."""
    blobs, names = tmp_path / "blobs", tmp_path / "names"
    blobs.mkdir()
    names.mkdir()
    save(blobs / "m.safetensors", network())
    for number, file in enumerate(sorted(blobs.iterdir())):
        file.rename(blobs / str(number))
        (names / file.name).symlink_to(blobs / str(number))
    assert contains(names / "m.safetensors", network())


class TestPreviousFile:
    """A previous file at the path that is not a valid index: no other file may be removed."""

    def check(self, path: Path) -> None:
        before = set(os.listdir(path.parent))
        assert save(path, network(1)) == ["", ""]
        assert contains(path, network(1))
        assert before <= set(os.listdir(path.parent))

    @pytest.mark.parametrize("content", [b"", b"not a model", b"\xff" * 100])
    def test_damaged(self, tmp_path, content):
        path = tmp_path / "m.safetensors"
        save(path, network())
        path.write_bytes(content)
        self.check(path)

    def test_cut_short(self, tmp_path):
        path = tmp_path / "m.safetensors"
        save(path, network())
        path.write_bytes(path.read_bytes()[:-1])
        self.check(path)

    def test_foreign(self, tmp_path):
        path = tmp_path / "m.safetensors"
        save_file({"a": np.zeros(3)}, path, {"shards": "all"})
        self.check(path)

    @pytest.mark.parametrize("listed", ["other.safetensors", "../other", "m.safetensors", "m.1-of-2.txt", 3, None])
    def test_an_index_with_other_file_names(self, tmp_path, listed):
        (tmp_path / "other").write_text("mine")
        folder = tmp_path / "folder"
        folder.mkdir()
        save(folder / "m.safetensors", network())
        for name in ("other.safetensors", "m.1-of-2.txt"):
            (folder / name).write_text("mine")
        entries = [{"file": name} for name in shards(folder)]
        write_model(folder / "m.safetensors", {}, {"shards": [{"file": listed}, *(entries if listed is None else [])]})
        self.check(folder / "m.safetensors")
        assert (tmp_path / "other").exists()

    def test_a_copy_of_the_index_of_another_model(self, tmp_path):
        save(tmp_path / "m.safetensors", network())
        (tmp_path / "copy.safetensors").write_bytes((tmp_path / "m.safetensors").read_bytes())
        self.check(tmp_path / "copy.safetensors")
        assert contains(tmp_path / "m.safetensors", network())


class TestFailure:
    @pytest.mark.parametrize("fails", ["shard", "index"])
    def test_the_previous_model_is_kept_and_no_files_are_left(self, tmp_path, monkeypatch, fails):
        path = tmp_path / "m.safetensors"
        save(path, network())
        before = sorted(os.listdir(tmp_path))
        save_as = write_model

        def full(place, arrays, description):
            if ("-of-" in Path(place).name) == (fails == "shard") and "1-of-2" not in Path(place).name:
                raise InputError(f"cannot write {place}: No space left on device")
            save_as(place, arrays, description)

        monkeypatch.setattr("fireset.distributed.shard.write_model", full)
        errors = save(path, network(1))
        assert all("cannot write" in error for error in errors)
        assert all("No space left on device" in error for error in errors)
        assert sorted(os.listdir(tmp_path)) == before
        assert contains(path, network())

    def test_an_error_after_the_index_was_replaced(self, tmp_path, monkeypatch):
        """The error is raised, and the new model is complete."""
        path = tmp_path / "m.safetensors"
        save(path, network())
        save_as = write_model

        def fails_late(place, arrays, description):
            save_as(place, arrays, description)
            if Path(place) == path:
                raise InputError(f"cannot write {place}: Input/output error")

        monkeypatch.setattr("fireset.distributed.shard.write_model", fails_late)
        assert save(path, network(1))[0] == f"cannot write {path}: Input/output error"
        assert contains(path, network(1))

    def test_a_previous_shard_that_cannot_be_removed_warns(self, tmp_path, monkeypatch):
        path = tmp_path / "m.safetensors"
        save(path, network())
        old = shards(tmp_path)

        def refuse(self, missing_ok=False):
            if self.name in old:
                raise PermissionError(1, "Operation not permitted")
            os.unlink(self) if self.exists() or not missing_ok else None

        monkeypatch.setattr(Path, "unlink", refuse)
        with pytest.warns(UserWarning, match=r"cannot remove .*-of-2.*Operation not permitted"):
            assert save(path, network(1)) == ["", ""]
        assert contains(path, network(1))

    def test_a_path_that_cannot_be_written_raises_on_all_workers(self, tmp_path):
        (tmp_path / "circle").symlink_to("circle")
        assert all(error.startswith("cannot write ") for error in save(tmp_path / "circle", network()))


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_rescue_their_model_together(tmp_path, monkeypatch, workers):
    """A folder that is gone for one worker: all write their shards to another one, over no other file."""
    monkeypatch.chdir(tmp_path)
    Path("m.safetensors").write_text("precious")
    one, team = network(0), groups(workers)
    found: list[tuple[Path, str | None]] = [(Path(), None)] * workers

    def work(rank: int) -> None:
        shard = NetworkShard.of(one, WorkerGrid.neurons_only(team[rank]))
        found[rank] = save_or_rescue(shard.save, tmp_path / "gone" / "m.safetensors", team[rank])

    run_all(work, workers)
    assert {place for place, _ in found} == {tmp_path / "m-2.safetensors"}
    assert all(problem and "gone" in problem for _, problem in found)
    assert contains(tmp_path / "m-2.safetensors", one)
    assert Path("m.safetensors").read_text() == "precious"
    assert len(os.listdir()) == 2 + workers


def test_workers_who_can_write_nowhere_all_fail(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fireset.commands.outputs._rescue_paths", lambda _: [tmp_path / "no" / "m", tmp_path / "nor" / "m"]
    )
    one, team, refused = network(0), groups(2), []

    def work(rank: int) -> None:
        shard = NetworkShard.of(one, WorkerGrid.neurons_only(team[rank]))
        with pytest.raises(OutputError):
            save_or_rescue(shard.save, tmp_path / "gone" / "m.safetensors", team[rank])
        refused.append(rank)

    run_all(work, 2)
    assert sorted(refused) == [0, 1]
    assert not os.listdir(tmp_path)
