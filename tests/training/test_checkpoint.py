"""Checkpoints: resumed runs end with the same bits; damaged files and files of other runs are refused."""

import os
import random
import re
import resource
import shutil
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fireset import Checkpoints, InputError, ShiftedReLUNetwork, ShiftedReLURegressor, train
from fireset._util.files import file_digest, read_model
from fireset.training import signals
from fireset.training.run_identity import row_hashes
from fireset.training.solvers import GradientDescent
from support.checkpoint_folder import folder_for
from support.checks import mentions, sphere

ROWS = sphere(np.random.default_rng(3), 50, 5)
TARGETS = np.sin(3 * ROWS[:, :1]) + ROWS[:, 1:2]
HELD_OUT = sphere(np.random.default_rng(4), 20, 5)
SETTINGS: dict[str, Any] = {"momentum": 0.9, "nesterov": True, "tol": 0, "max_iter": 40, "engine": "data"}


def network(width: int = 300, dtype="float64") -> ShiftedReLUNetwork:
    return ShiftedReLUNetwork.initialize(width, 5, threshold=1.2, seed=1, dtype=dtype)


def run(folder, *, resume=False, every=7, stop_at=None, keep=3, of=None, **changes):
    """Train a new network with checkpoints; return the network and the result."""
    one = of or network()
    callbacks = [lambda progress: progress.record.iteration == stop_at]
    checkpoints = Checkpoints(folder, every=every, keep=keep, resume=resume)
    settings = {"X": ROWS, "y": TARGETS, **SETTINGS, **changes}
    return one, train(
        one, settings.pop("X"), settings.pop("y"), callbacks=callbacks, checkpoint=checkpoints, **settings
    )


@pytest.mark.parametrize(
    ("changes", "measured"),
    [
        ({}, []),
        ({"validation": (HELD_OUT, HELD_OUT[:, :1])}, ["validation_loss"]),
        ({"engine": "quantum-weights", "momentum": 0.0, "nesterov": False}, ["oracle_queries", "missed_pairs"]),
    ],
)
def test_a_resumed_history_has_the_same_values_and_types(tmp_path, changes, measured):
    """Values that were not measured stay None, and counts stay integers."""
    one = {"of": network(60), "every": 3, "max_iter": 6}
    _, whole_run = run(tmp_path / "whole", **one, **changes)
    run(tmp_path / "cut", **one | {"of": network(60)}, stop_at=4, **changes)
    _, resumed = run(tmp_path / "cut", resume=True, **one | {"of": network(60)}, **changes)
    assert resumed.resumed_at == 3
    for record, expected in zip(resumed.history, whole_run.history, strict=True):
        for name in ("validation_loss", "oracle_queries", "missed_pairs"):
            value = getattr(record, name)
            assert type(value) is type(getattr(expected, name))
            assert (value is not None) == (name in measured)
    assert "nan" not in resumed.history.to_csv().lower()


def test_a_resumed_run_keeps_its_engine_where_more_iterations_favour_another(tmp_path, monkeypatch):
    monkeypatch.setattr("fireset.training.engine_setup.choose", lambda *of, **_: "data" if of[2] > 5 else "dense")
    first, longer = (run(tmp_path / f"{k}", engine="auto", every=2, max_iter=k)[1] for k in (4, 12))
    assert (first.engine, longer.engine) == ("dense", "data")
    _, whole = run(tmp_path / "whole", engine="dense", every=2, max_iter=12)
    _, resumed = run(tmp_path / "4", engine="auto", every=2, max_iter=12, resume=True)
    assert resumed.engine == "dense"
    assert resumed.resumed_at
    assert [record.loss for record in resumed.history] == [record.loss for record in whole.history]


def test_the_engine_of_a_run_with_another_solver_is_not_kept(tmp_path):
    run(tmp_path, of=network(500), max_iter=2, every=1, engine="dense")
    with pytest.raises(InputError, match="batch_size"):
        run(tmp_path, of=network(500), max_iter=12, every=1, engine="auto", batch_size=10, resume=True)


def same_bits(first: ShiftedReLUNetwork, second: ShiftedReLUNetwork) -> bool:
    return first.weights.tobytes() == second.weights.tobytes()


def iterations_in(folder: Path) -> list[int]:
    """Return the iterations of the checkpoints in a folder, and check their checksums."""
    found = []
    for index in sorted(folder.glob("checkpoint-????????.safetensors")):
        _, description = read_model(index)
        digests = description["shards"]
        for k, digest in enumerate(digests):
            shard = index.with_name(f"{index.stem}.{k + 1}-of-{len(digests)}.safetensors")
            assert file_digest(shard).hex() == digest
        found.append(description["checkpoint"])
    return found


class TestResuming:
    @pytest.mark.parametrize("engine", ["dense", "data", "weights", "sums", "correlation"])
    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_a_resumed_run_ends_with_the_same_bits(self, tmp_path, engine, momentum):
        options = {"engine": engine, "momentum": momentum, "nesterov": False}
        expected, of_all = run(tmp_path / "a", **options)
        run(tmp_path / "b", stop_at=25, **options)
        found, rest = run(tmp_path / "b", resume=True, **options)
        assert rest.resumed_at == 21
        assert same_bits(found, expected)
        for name in ("iteration", "loss", "active_pairs", "learning_rate"):
            assert np.array_equal(rest.history.column(name), of_all.history.column(name)), name
        assert (np.diff(rest.history.column("seconds")) > 0).all()

    @pytest.mark.parametrize("best", ["last", "earlier"])
    def test_the_best_weights_of_validation_are_stored(self, tmp_path, best):
        # Targets of another function are fitted best early, training rows in the last iteration.
        held_out = (HELD_OUT, HELD_OUT[:, 3:4]) if best == "earlier" else (ROWS[:20], TARGETS[:20])
        options = {"validation": held_out, "patience": 1000}
        expected, of_all = run(tmp_path / "a", **options)
        run(tmp_path / "b", stop_at=30, **options)
        found, rest = run(tmp_path / "b", resume=True, **options)
        assert same_bits(found, expected)
        assert (rest.best_iteration, rest.loss) == (of_all.best_iteration, of_all.loss)
        assert (of_all.best_iteration < 28) == (best == "earlier")

    def test_a_lowered_rate_is_stored(self, tmp_path, monkeypatch):
        monkeypatch.setattr("fireset.training.step_size.StepSize.choose", lambda *_: 30.0)
        expected, of_all = run(tmp_path / "a")
        assert of_all.history[14].learning_rate < 30.0
        run(tmp_path / "b", stop_at=18)
        found, _ = run(tmp_path / "b", resume=True)
        assert same_bits(found, expected)

    def test_max_iter_may_be_raised_but_not_below_the_checkpoint(self, tmp_path):
        expected, _ = run(tmp_path / "a", max_iter=60)
        run(tmp_path / "b", max_iter=30)
        found, result = run(tmp_path / "b", max_iter=60, resume=True)
        assert same_bits(found, expected)
        assert result.resumed_at == 28
        with pytest.raises(InputError, match=r"max_iter.* 56.*got 10"):
            run(tmp_path / "b", max_iter=10, resume=True)

    def test_resume_without_a_checkpoint_starts_a_run(self, tmp_path):
        _, result = run(tmp_path / "new", resume=True, max_iter=3)
        assert result.resumed_at is None
        assert len(result.history) == 4

    def test_float32(self, tmp_path):
        expected, _ = run(tmp_path / "a", of=network(dtype="float32"))
        run(tmp_path / "b", of=network(dtype="float32"), stop_at=25)
        found, _ = run(tmp_path / "b", of=network(dtype="float32"), resume=True)
        assert same_bits(found, expected)


@pytest.mark.slow
class TestKilled:
    def test_at_twenty_random_moments(self, tmp_path):
        """SIGKILL at any time leaves no incomplete checkpoint."""
        expected, _ = run(tmp_path / "uninterrupted", every=3, max_iter=300)
        moments = random.Random(0)
        folder = tmp_path / "killed"
        kills, reached = 0, set()
        while kills < 20:
            child = os.fork()
            if child == 0:
                run(folder, every=3, max_iter=300, resume=True)
                os._exit(0)
            time.sleep(moments.uniform(0.0, 0.15))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            if os.WIFEXITED(status):  # the run had ended: start a new one
                assert os.WEXITSTATUS(status) == 0
                shutil.rmtree(folder)
                continue
            kills += 1
            found = iterations_in(folder) if folder.is_dir() else []
            assert len(found) <= 4  # one more than ``keep`` before the oldest is deleted
            reached |= set(found)
        assert len(reached) >= 5  # few on a loaded machine
        ended, _ = run(folder, every=3, max_iter=300, resume=True)
        assert same_bits(ended, expected)
        assert not [name for name in os.listdir(folder) if name.endswith(".part")]


class TestFaults:
    def damage(self, file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)

    @pytest.mark.parametrize("part", ["checkpoint-00000035.safetensors", "checkpoint-00000035.1-of-1.safetensors"])
    @pytest.mark.parametrize("kind", ["changed", "cut", "empty"])
    def test_a_damaged_file_falls_back_to_the_previous_checkpoint(self, tmp_path, part, kind):
        expected, _ = run(tmp_path)
        file = tmp_path / part
        if kind == "changed":
            self.damage(file)
        else:
            file.write_bytes(file.read_bytes()[: 0 if kind == "empty" else -100])
        with pytest.warns(UserWarning, match=rf"{part}.*damaged.*falling back"):
            found, result = run(tmp_path, resume=True)
        assert result.resumed_at == 28
        assert same_bits(found, expected)
        assert iterations_in(tmp_path) == [21, 28, 35]

    def test_a_missing_shard(self, tmp_path):
        run(tmp_path)
        (tmp_path / "checkpoint-00000035.1-of-1.safetensors").unlink()
        with pytest.warns(UserWarning, match="checkpoint"):
            assert run(tmp_path, resume=True)[1].resumed_at == 28

    def test_no_readable_checkpoint(self, tmp_path):
        run(tmp_path)
        for file in tmp_path.glob("checkpoint-????????.safetensors"):
            self.damage(file)
        warnings.simplefilter("ignore")
        with pytest.raises(InputError, match=r" 3 checkpoints"):
            run(tmp_path, resume=True)

    def test_disk_full(self, tmp_path):
        """Training continues, and earlier checkpoints stay complete."""
        run(tmp_path / "a", stop_at=10)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        try:
            with pytest.warns(UserWarning, match=r"iteration 14.*File too large"):
                found, result = run(tmp_path / "a", resume=True, max_iter=20)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert result.stop_reason == "max_iter"
        assert iterations_in(tmp_path / "a") == [7]
        assert same_bits(found, run(tmp_path / "b", max_iter=20)[0])

    @pytest.mark.parametrize(("grace", "last"), [(600.0, 20), (0.0, 17)])
    def test_sigterm_writes_a_checkpoint_and_ends(self, tmp_path, monkeypatch, grace, last):
        """At the next checkpoint that is due, or after the grace period at the current iteration."""
        monkeypatch.setattr(signals, "GRACE_SECONDS", grace)

        def terminate(progress):
            if progress.record.iteration == 16:
                os.kill(os.getpid(), signal.SIGTERM)

        checkpoints = Checkpoints(tmp_path, every=10)
        result = train(network(), ROWS, TARGETS, checkpoint=checkpoints, callbacks=[terminate], **SETTINGS)
        assert result.stop_reason == "terminated"
        assert iterations_in(tmp_path) == [10, last]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        found, rest = run(tmp_path, resume=True, every=10)
        assert rest.resumed_at == last
        expected, _ = run(tmp_path / "b", every=10)
        assert same_bits(found, expected) or not grace
        np.testing.assert_allclose(found.weights, expected.weights, rtol=0, atol=1e-12)

    def test_sigterm_in_the_last_iteration_changes_nothing(self, tmp_path):
        def terminate(progress):
            if progress.record.iteration == 5:
                os.kill(os.getpid(), signal.SIGTERM)

        settings = SETTINGS | {"max_iter": 5}
        result = train(network(), ROWS, TARGETS, checkpoint=Checkpoints(tmp_path), callbacks=[terminate], **settings)
        assert result.stop_reason == "max_iter"
        assert iterations_in(tmp_path) == []


OTHER_TARGETS = TARGETS + 1e-9 * (np.arange(len(TARGETS)) == 3)[:, None]
FOUR = ROWS[:, :4] / np.linalg.norm(ROWS[:, :4], axis=1, keepdims=True)
CLASSES = (TARGETS > 0).astype(float)


def of_four_inputs() -> ShiftedReLUNetwork:
    return ShiftedReLUNetwork.initialize(300, 4, threshold=1.2, seed=1, dtype="float64")


def refusal(folder, **changes) -> str:
    """Return the differences in the error of a run that is resumed with other data or settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match="differs in ") as refused:
            run(folder, resume=True, **changes)
    message = str(refused.value)
    assert "damaged" not in message
    assert not re.search(r"[0-9a-f]{16}", message)
    return message.split("differs in ")[1].split("; ")[0]


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "difference"),
        [
            ({"momentum": 0.8}, "momentum ('0.9' there, '0.8' here)"),
            ({"learning_rate": 0.1}, "learning_rate ('auto' there, '0.1' here)"),
            ({"engine": "dense"}, "engine ('data' there, 'dense' here)"),
            ({"tol": 0.1, "nesterov": False}, "nesterov ('True' there, 'False' here), tol ('0' there, '0.1' here)"),
            ({"y": OTHER_TARGETS}, "y (another target)"),
            ({"X": ROWS[::-1].copy()}, "X (another table)"),
            ({"X": ROWS[:40], "y": TARGETS[:40]}, "rows ('50' there, '40' here)"),
            ({"X": FOUR, "of": of_four_inputs()}, "inputs ('5' there, '4' here)"),
            ({"sample_weight": np.arange(1.0, 51.0)}, "sample_weight (other weights)"),
            ({"validation": (HELD_OUT, HELD_OUT[:, 3:4])}, "rows ('50' there, '70' here)"),
            ({"of": network(width=200)}, "width ('300' there, '200' here)"),
            ({"of": network(width=400)}, "width ('300' there, '400' here)"),
            ({"of": network(width=2)}, "width ('300' there, '2' here)"),
            ({"of": network(dtype="float32")}, "dtype ('float64' there, 'float32' here)"),
            (
                {"of": network(dtype="float32"), "y": OTHER_TARGETS},
                "dtype ('float64' there, 'float32' here), y (another target)",
            ),
            (
                {"of": ShiftedReLUNetwork.initialize(300, 5, threshold=1.2, seed=2, dtype="float64")},
                "initial weights (another seed or start)",
            ),
            (
                {"of": ShiftedReLUNetwork.initialize(300, 5, 2, threshold=1.2, seed=1, dtype="float64")}
                | {"y": np.hstack([TARGETS, TARGETS])},
                "outputs ('1' there, '2' here)",
            ),
            ({"solver": "gauss-newton"}, "solver ('gradient' there, 'gauss-newton' here)"),
        ],
    )
    def test_other_data_and_settings_are_named(self, tmp_path, changes, difference):
        run(tmp_path, max_iter=8)
        assert refusal(tmp_path, **changes) == difference

    def test_another_loss(self, tmp_path):
        run(tmp_path, max_iter=8, y=CLASSES)
        assert mentions(refusal(tmp_path, y=CLASSES, loss="log_loss"), "'squared_error'", "'log_loss'")

    def test_another_solver_than_gauss_newton(self, tmp_path):
        run(tmp_path, max_iter=3, every=1, solver="gauss-newton")
        assert mentions(refusal(tmp_path), "'gauss-newton'", "'gradient'")

    def test_options_explain_differing_fingerprints(self, tmp_path):
        def checkpoints(**options) -> Checkpoints:
            return Checkpoints(tmp_path, every=7, resume=True, options=options)

        train(network(), ROWS, TARGETS, checkpoint=checkpoints(seed=1, bias="auto"), **SETTINGS)
        with pytest.raises(InputError, match=r"differs in seed \('1' there, '2' here\)"):
            train(network(), ROWS[::-1].copy(), TARGETS, checkpoint=checkpoints(seed=2, bias="auto"), **SETTINGS)
        again = train(network(), ROWS, TARGETS, checkpoint=checkpoints(seed=3), **SETTINGS)
        assert again.resumed_at == 35  # options alone do not prevent resuming

    @pytest.mark.parametrize(
        ("changes", "difference"),
        [
            ({"random_state": 1}, "random_state ('0' there, '1' here)"),
            ({"bias": 3.0}, "bias ('2.0' there, '3.0' here)"),
            ({"width": 80}, "width ('60' there, '80' here)"),
        ],
    )
    def test_an_estimators_settings_are_named(self, tmp_path, changes, difference):
        def fit(resume: bool, **changes):
            settings = {"width": 60, "bias": 2.0, "random_state": 0, "max_iter": 8, "solver": "gradient", **changes}
            checkpoints = Checkpoints(tmp_path, every=5, resume=resume)
            return ShiftedReLURegressor(**settings, tol=0).fit(ROWS, TARGETS[:, 0], checkpoint=checkpoints)

        fit(resume=False)
        with pytest.raises(InputError, match=rf"differs in {re.escape(difference)}"):
            fit(resume=True, **changes)

    def test_a_folder_in_use(self, tmp_path):
        run(tmp_path)
        with pytest.raises(InputError, match=r"checkpoint of iteration 35"):
            run(tmp_path)

    @pytest.mark.parametrize("resume", [False, True])
    @pytest.mark.parametrize(
        "name",
        ["checkpoint-00000007.1-of-1.safetensors", "checkpoint-00000007.safetensors", ".checkpoint-00000007.x.part"],
    )
    def test_a_folder_named_like_a_checkpoint_file(self, tmp_path, name, resume):
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious").write_text("data")
        with pytest.raises(InputError, match=re.escape(str(tmp_path / name))):
            run(tmp_path, resume=resume)
        assert (tmp_path / name / "precious").exists()

    @pytest.mark.parametrize("name", ["every", "keep"])
    @pytest.mark.parametrize("value", [0, -1, 2.5, True, "3"])
    def test_invalid_numbers(self, name, value):
        with pytest.raises(InputError, match=rf"{name}.*at least 1, got {value!r}"):
            Checkpoints("folder", **{name: value})

    def test_a_file_in_place_of_the_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match=r"checkpoint folder .*file: File exists"):
            run(tmp_path / "file")

    def test_other_files_are_not_deleted(self, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / ".checkpoint-00000007.safetensors.abc.part").write_text("unfinished")
        run(tmp_path, keep=1)
        assert sorted(os.listdir(tmp_path)) == [
            "checkpoint-00000035.1-of-1.safetensors",
            "checkpoint-00000035.safetensors",
            "checkpoint.lock",
            "notes.txt",
        ]


class TestContents:
    def test_only_moved_neurons_are_stored(self, tmp_path):
        few = ShiftedReLUNetwork.initialize(300, 5, threshold=3.5, seed=1, dtype="float64")
        start = few.weights.copy()
        run(tmp_path, of=few, stop_at=7)
        arrays, _ = read_model(tmp_path / "checkpoint-00000007.1-of-1.safetensors")
        moved = np.flatnonzero((few.weights != start).any(axis=1))
        assert 0 < len(moved) < 100
        assert np.array_equal(arrays["moved"], moved)
        assert set(arrays["with_state"]) <= set(moved)
        assert len(arrays["best_differs"]) <= len(moved)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_row_hashes_detect_single_bits(self, dtype):
        rng = np.random.default_rng(0)
        weights = rng.standard_normal((2000, 7)).astype(dtype)
        hashes = row_hashes(weights)
        assert len(np.unique(hashes)) == 2000
        changed = weights.copy()
        rows, columns = np.arange(2000), rng.integers(0, 7, 2000)
        bits = changed.view(f"u{changed.itemsize}")
        bits[rows, columns] ^= np.left_shift(bits.dtype.type(1), rng.integers(0, 8 * bits.itemsize, 2000, bits.dtype))
        assert (row_hashes(changed) != hashes).all()
        swapped = weights[:, ::-1].copy()
        assert (row_hashes(swapped) != hashes).all()

    def test_files_of_other_kinds_are_refused(self, tmp_path):
        """A model file in place of a checkpoint, and a checkpoint of a wider network."""
        run(tmp_path)
        network().save(tmp_path / "checkpoint-00000042.safetensors")
        with pytest.warns(UserWarning, match=r"checkpoint-00000042.safetensors"):
            assert run(tmp_path, resume=True)[1].resumed_at == 35
        narrow = network(width=200)
        checkpoints = Checkpoints(tmp_path, resume=True)
        (tmp_path / "checkpoint-00000042.safetensors").unlink()
        with pytest.raises(InputError, match=r"differs in .*width \('300' there, '200' here\)"):
            folder_for(checkpoints, narrow, GradientDescent(), {"width": 200})[0].load()


@pytest.mark.parametrize("engine", ["data", "weights", "dense"])
def test_a_diverged_run_leaves_a_readable_checkpoint(tmp_path, engine):
    settings = {"engine": engine, "momentum": 0.0, "nesterov": False, "max_iter": 5, "every": 1, "keep": 1}
    with pytest.warns(RuntimeWarning, match="loss"):
        _, result = run(tmp_path, of=network(dtype="float32"), learning_rate=1e200, **settings)
    assert result.stop_reason == "diverged"
    with pytest.warns(RuntimeWarning, match="loss"):
        _, again = run(tmp_path, of=network(dtype="float32"), learning_rate=1e200, resume=True, **settings)
    assert again.stop_reason == "diverged"
