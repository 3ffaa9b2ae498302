"""Grids of workers, neurons × rows: threads of this process, and torchrun on loopback in the slow tests."""

import json
import os
import re
import signal
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_array

from fireset import Checkpoints, InputError, ShiftedReLUNetwork, train
from fireset.commands.train import train_table
from fireset.distributed.engine import RowShardEngine
from fireset.distributed.shard import NetworkShard
from fireset.distributed.worker_grid import current_grid, grid, parse_grid
from fireset.engines import create
from fireset.engines.blocks import BlockEngine
from fireset.model import Model
from fireset.training.losses import Huber, SquaredError
from fireset.training.problem import TrainingProblem
from fireset.training.solvers import GaussNewton, linear_solver
from support import grid_workers
from support.launching import ENVIRONMENT, torchrun, wait_for_checkpoint, worker_of
from support.thread_group import grids, groups, run_all

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

ROWS, WIDTH, FEATURES = 41, 301, 5  # all odd


def problem(seed: int = 5, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(seed).standard_normal((rows, FEATURES))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, np.stack([np.sin(3 * X[:, 0]), X[:, 1] * X[:, 2]], axis=1)


def network() -> ShiftedReLUNetwork:
    return ShiftedReLUNetwork.initialize(WIDTH, FEATURES, 2, seed=7, dtype="float64")


def on_grid(neurons: int, rows: int, engine=lambda: "data", **settings):
    """Train on a grid of threads; return the results and the shards in the order of the ranks."""
    laid_out = grids(neurons, rows)
    shards = [NetworkShard.of(network(), one) for one in laid_out]
    results: list = [None] * len(shards)

    def work(rank: int) -> None:
        results[rank] = train(shards[rank], *problem(), engine=engine(), **settings)

    run_all(work, len(shards))
    return results, shards


ENGINES = ["data", "dense", "rows", "sums", "weights"]
SLOW_ENGINES = [pytest.param(name, marks=pytest.mark.slow) for name in ("blocks", "correlation")]


@pytest.mark.parametrize("engine", [*ENGINES, *SLOW_ENGINES])
def test_weights_equal_those_of_one_process(engine):
    """Odd numbers of neurons and rows; momentum, several outputs, sample weights, validation rows."""
    make = (lambda: BlockEngine(3)) if engine == "blocks" else (lambda: create(engine))
    weight = np.random.default_rng(1).uniform(0, 2, ROWS)
    settings = {"momentum": 0.9, "nesterov": True, "max_iter": 30, "tol": 0, "sample_weight": weight}
    settings |= {"validation": problem(6, 7), "patience": 100}
    if engine == "blocks":  # "auto" uses some of the neurons only, unless the rows are divided
        settings["learning_rate"] = 0.05
    one = network()
    expected = train(one, *problem(), engine=make(), **settings)
    results, shards = on_grid(2, 3, make, **settings)
    for rank, (result, shard) in enumerate(zip(results, shards, strict=True)):
        found = shard.local.weights
        np.testing.assert_allclose(found, one.weights[shard.first :][: len(found)], rtol=0, atol=1e-12)
        np.testing.assert_allclose(result.history.column("loss"), expected.history.column("loss"), rtol=1e-12)
        for name in ("loss", "validation_loss", "active_pairs", "inner_products", "learning_rate"):
            assert np.array_equal(result.history.column(name), results[0].history.column(name))
        assert np.array_equal(found, shards[rank % 2].local.weights)
    assert np.array_equal(results[0].history.column("active_pairs"), expected.history.column("active_pairs"))


@pytest.mark.parametrize("shape", [(1, 2), (2, 1)])
def test_float32_weights_agree_up_to_rounding(shape):
    X, y = problem()
    settings = {"momentum": 0.9, "max_iter": 20, "tol": 0, "engine": "data", "learning_rate": 0.1}
    one = ShiftedReLUNetwork.initialize(WIDTH, FEATURES, 2, seed=7)
    train(one, X, y, **settings)
    shards = [NetworkShard.of(ShiftedReLUNetwork.initialize(WIDTH, FEATURES, 2, seed=7), k) for k in grids(*shape)]
    run_all(lambda rank: train(shards[rank], X, y, **settings) and None, 2)
    for shard in shards:
        assert shard.dtype == np.float32
        np.testing.assert_allclose(
            shard.local.weights, one.weights[shard.first :][: shard.local.width], rtol=0, atol=1e-5
        )


def checked(**more) -> TrainingProblem:
    return TrainingProblem.check(network(), *problem(), SquaredError(), **more)


class TestRows:
    """The part of a problem that a worker keeps."""

    def test_training_and_validation_rows_are_divided(self):
        X, y = problem()
        whole = TrainingProblem.check(network(), X, y, SquaredError(), validation=problem(6, 5))
        shares = [whole.share(group) for group in groups(3)]
        assert [len(share.X) for share in shares] == [13 + 1, 14 + 2, 14 + 2]
        assert [share.held_out.sum() for share in shares] == [1, 2, 2]
        for name in ("X", "targets", "weight", "held_out"):
            parts = [getattr(share, name) for share in shares]
            trained = [part[share.held_out == 0] for part, share in zip(parts, shares, strict=True)]
            held = [part[share.held_out == 1] for part, share in zip(parts, shares, strict=True)]
            assert np.array_equal(np.concatenate([*trained, *held]), getattr(whole, name))
            assert all(part.base is None for part in parts), "a view would keep the whole array in memory"
        assert all(share.n_rows == whole.n_rows == 46 and share.has_validation for share in shares)
        assert all(share.fingerprints() == whole.fingerprints() for share in shares)

    def test_has_validation_is_that_of_all_rows(self):
        shares = [checked(validation=problem(6, 1)).share(group) for group in groups(2)]
        assert not shares[0].held_out.any()
        assert shares[0].has_validation

    def test_sums_over_all_rows(self):
        whole = checked()
        shares, found = [whole.share(group) for group in groups(3)], {}

        def add(rank: int) -> None:
            share = shares[rank]
            found[rank] = (*share.total(float(share.targets.sum()), 1.0), share.norm(share.targets))

        run_all(add, 3)
        expected = (whole.targets.sum(), 3.0, np.linalg.norm(whole.targets))
        assert all(found[rank] == pytest.approx(expected, rel=1e-14) for rank in range(3))


class TestFiles:
    def test_one_group_of_rows_writes_the_model(self, tmp_path):
        one = network()
        shards = [NetworkShard.of(network(), k) for k in grids(2, 2)]
        run_all(lambda rank: shards[rank].save(tmp_path / "model.safetensors"), 4)
        assert len(list(tmp_path.iterdir())) == 1 + 2
        assert np.array_equal(ShiftedReLUNetwork.load(tmp_path / "model.safetensors").weights, one.weights)

    def test_a_write_error_raises_on_all_workers(self, tmp_path):
        shards, errors = [NetworkShard.of(network(), k) for k in grids(2, 2)], {}

        def save(rank: int) -> None:
            with pytest.raises(InputError) as caught:
                shards[rank].save(tmp_path / "no" / "model.safetensors")
            errors[rank] = str(caught.value)

        run_all(save, 4)
        assert len(errors) == 4

    def test_a_checkpoint_of_one_grid_is_resumed_by_another(self, tmp_path):
        settings = {"momentum": 0.9, "max_iter": 40, "tol": 0}
        one = network()
        train(one, *problem(), engine="data", **settings)
        begun = Checkpoints(tmp_path / "ck", every=10)
        on_grid(2, 2, **settings, checkpoint=begun, callbacks=[lambda progress: progress.record.iteration == 25])
        assert len(list((tmp_path / "ck").glob("checkpoint-00000020.*-of-2.safetensors"))) == 2
        results, shards = on_grid(3, 1, **settings, checkpoint=replace(begun, resume=True))
        assert {result.resumed_at for result in results} == {20}
        for shard in shards:
            expected = one.weights[shard.first :][: shard.local.width]
            np.testing.assert_allclose(shard.local.weights, expected, rtol=0, atol=1e-12)


class TestGrid:
    def test_parse_grid(self):
        assert parse_grid("4x2") == parse_grid(" 4 × 2 ") == {"neurons": 4, "rows": 2}

    @pytest.mark.parametrize("text", ["4", "x2", "0x4", "2x-2", "2x2x2", ""])
    def test_parse_grid_raises(self, text):
        with pytest.raises(InputError, match=rf"grid.*got {text!r}"):
            parse_grid(text)

    def test_a_grid_must_have_as_many_workers(self):
        with pytest.raises(InputError, match=r"2x3.*got 1"), grid(neurons=2, rows=3):
            pass

    def test_a_single_process_has_a_grid_of_1x1(self):
        with grid(neurons=1, rows=1) as one:
            assert str(one) == "1x1"
            assert current_grid() is one
            with (
                pytest.raises(InputError, match="grid of 1x1"),
                grid(neurons=1, rows=1),
            ):
                pass
        assert current_grid() is not one

    def test_on_the_command_line(self, run):
        code, _, err = run("train", "table.csv", "--target", "y", "--grid", "banana")
        assert code == 2
        assert re.search("grid.*got 'banana'", err)
        code, _, err = run("train", "table.csv", "--target", "y", "--grid", "2x2")
        assert code == 2
        assert re.search("2x2.*got 1", err)


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """Return the folder with the files of four workers."""
    out = tmp_path_factory.mktemp("grid")
    command = torchrun(Path(grid_workers.__file__), out, processes=4)
    finished = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False)
    assert finished.returncode == 0, finished.stderr
    return out


def facts(done: Path, name: str):
    return [json.loads((done / f"{name}.{rank}.json").read_text()) for rank in range(4)]


def weights(done: Path, name: str) -> list[np.ndarray]:
    return [np.load(done / f"{name}.{rank}.npy") for rank in range(4)]


@pytest.mark.slow
@needs_torch
class TestTorchrun:
    """Four processes; 121 rows, 7 validation rows and 2,001 neurons, all odd."""

    @pytest.mark.parametrize("name", ["2x2.plain", "2x2.momentum", "1x4.momentum"])
    def test_100_iterations_equal_those_of_one_process(self, done, name):
        one = grid_workers.network()
        settings = {**grid_workers.RUNS[name[4:]], **grid_workers.arguments()}
        expected = train(one, *grid_workers.problem(), **settings)
        found, histories = weights(done, name), facts(done, name)
        assert len(expected.history) == 101
        for rank in range(4):
            np.testing.assert_allclose(found[rank], one.weights, rtol=0, atol=1e-12)
            assert np.array_equal(found[rank], found[0])
            for column in grid_workers.COLUMNS:
                assert histories[rank][column] == histories[0][column]
            for column in ("loss", "validation_loss", "learning_rate", "active_pairs"):
                np.testing.assert_allclose(histories[rank][column], expected.history.column(column), rtol=1e-10)

    def test_a_worker_holds_its_rows_and_its_neurons(self, done):
        held = [one["held"] for one in facts(done, "2x2.momentum")]
        assert [one["neurons"] for one in held] == [1000, 1001, 1000, 1001]
        for name in ("rows", "targets", "predictions"):
            assert [one[name] for one in held] == [60 + 3, 60 + 3, 61 + 4, 61 + 4]
        assert [one["held"]["rows"] for one in facts(done, "1x4.momentum")] == [30 + 1, 30 + 2, 30 + 2, 31 + 2]

    def test_workers_have_equal_work(self, done):
        """Active pairs and inner products of the four add up to those of the history, about a quarter each."""
        found = facts(done, "2x2.momentum")
        assert sum(one["own_active_pairs"] for one in found) == found[0]["active_pairs"][-1]
        shares = [one["own_inner_products"] for one in found]
        assert max(shares) <= 1.1 * sum(shares) / 4
        one = train(
            grid_workers.network(), *grid_workers.problem(), **grid_workers.RUNS["momentum"], **grid_workers.arguments()
        )
        assert sum(found[0]["inner_products"]) <= 1.1 * one.history.column("inner_products").sum()

    def test_bytes_exchanged(self, done):
        """Predictions of the rows, gradients of the neurons, two losses, counts twice, 4 scales, the stop decision."""
        for name in ("2x2.plain", "2x2.momentum", "1x4.momentum"):
            for one in facts(done, name):
                rows, neurons = one["held"]["rows"], one["held"]["neurons"]
                predictions = rows * 2 + 6 + 1 if name.startswith("2x2") else 0
                numbers = predictions + neurons * grid_workers.FEATURES + 1 + (2 + 1) + (6 + 1) + 1
                assert one["bytes"] == [8 * numbers]

    def test_early_stopping_and_tol(self, done):
        for name, run in (("early", grid_workers.early), ("tol", grid_workers.by_tol)):
            one = grid_workers.network()
            expected = run(one)
            assert expected.stop_reason.value == {"early": "patience", "tol": "tol"}[name]
            assert name == "tol" or expected.best_iteration < len(expected.history) - 1
            for told, found in zip(facts(done, name), weights(done, name), strict=True):
                assert told == facts(done, name)[0]
                assert (told["reason"], told["best"]) == (expected.stop_reason.value, expected.best_iteration)
                np.testing.assert_allclose(told["losses"], expected.history.column("loss"), rtol=1e-10)
                np.testing.assert_allclose(found, one.weights, rtol=0, atol=1e-12)

    def test_checkpoints(self, done):
        assert facts(done, "resumed") == [40] * 4
        assert len(list((done / "checkpoints").glob("checkpoint-00000100*"))) == 1 + 2
        for found, expected in zip(weights(done, "resumed"), weights(done, "2x2.momentum"), strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)

    def test_estimators(self, done):
        X, y = grid_workers.problem()
        expected = grid_workers.fit(X, y)
        found = ShiftedReLUNetwork.load(done / "shards.safetensors")
        np.testing.assert_allclose(found.weights, expected.network_.weights, rtol=0, atol=1e-12)
        assert len(list(done.glob("shards.?-of-2.*.safetensors"))) == 2
        for predictions in weights(done, "predictions"):
            np.testing.assert_allclose(predictions, expected.predict(X), rtol=0, atol=1e-12)

    def test_the_command(self, done):
        """Every worker reads and trains on its rows; all compute the score of the hold-out rows."""
        told = facts(done, "command")
        assert {(one["workers"], one["grid"], one["rows"], one["solver"]) for one in told} == {
            (4, "2x2", 96, "gauss-newton")
        }
        file = grid_workers.table(done, 0)
        alone = train_table(file, "y", out=done / "alone.safetensors", **grid_workers.COMMAND)
        for one in told:
            assert one["ridge"] == pytest.approx(alone["ridge"], rel=1e-12)
            assert one["loss"] == pytest.approx(alone["loss"], rel=1e-8)
            assert one["held_out_r2"] == pytest.approx(alone["held_out_r2"], rel=1e-8)
        found, one = (
            Model.load(done / name).estimator.network_ for name in ("command.safetensors", "alone.safetensors")
        )
        np.testing.assert_allclose(found.weights, one.weights, rtol=0, atol=1e-6)

    def test_errors_are_raised_on_all_workers(self, done):
        messages = {
            "theory": "learning_rate='theory'",
            "few rows": "X must have.*got 1",
        }
        for name, message in messages.items():
            found = facts(done, name)
            assert found == [found[0]] * 4
            assert re.search(message, found[0])
        strangers = facts(done, "strangers")
        assert len(set(strangers)) == 1
        assert strangers[0].startswith("y ")


@pytest.mark.slow
@needs_torch
def test_a_killed_worker_ends_all(tmp_path, run):
    """After kill -9 on worker 3 of `fireset train --grid 2x2` all workers print an error and exit.

    Worker 0 shares no subgroup with worker 3. A single process resumes from the checkpoint.
    """
    X, y = problem(rows=61)
    file = tmp_path / "table.csv"
    pl.DataFrame(X, schema=list("abcde")).with_columns(y=pl.Series(y[:, 0])).write_csv(file)
    words = "--target y --width 401 --dtype float64 --tol 0 --holdout 0 --solver gradient --every 50 --json"
    command = ["train", file, *words.split(), "--out", tmp_path / "table.safetensors", "--checkpoint", tmp_path / "ck"]
    process = subprocess.Popen(
        torchrun(
            "--monitor-interval=2", "-m", "fireset", *command, "--grid", "2x2", "--max-iter", "100000", processes=4
        ),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for_checkpoint(process, tmp_path / "ck")
        os.kill(worker_of(process.pid, rank=3), signal.SIGKILL)
        _, err = process.communicate(timeout=100)
    finally:
        process.terminate()  # so that torchrun ends its workers
        process.wait(60)
    assert process.returncode == 1
    assert len(re.findall(r"fireset(?:, worker \d)?: error: another worker is gone or does not answer \(", err)) == 3
    newest = max(int(found.stem[-8:]) for found in (tmp_path / "ck").glob("checkpoint-????????.safetensors"))
    code, out, _ = run(*command, "--resume", "--max-iter", newest + 50)
    assert code == 0
    assert json.loads(out.splitlines()[-1])["resumed_at_iteration"] == newest


class TestSettingsThatDiffer:
    """Workers with different settings all raise an error that names the setting, both values and both ranks."""

    DIFFERENT = (
        ("engine", "data", "dense"),
        ("solver", "gradient", "gauss-newton"),
        ("loss", "squared_error", "huber"),
        ("learning_rate", 0.1, "auto"),
        ("momentum", 0.0, 0.9),
        ("nesterov", True, False),
        ("ridge", 0.5, "auto"),
        ("max_iter", 3, 4),
        ("tol", 0, 1e-3),
        ("patience", 20, 3),
        ("any_norm", True, False),
        ("batch_size", None, 7),
        ("trained_outputs", True, False),
    )

    @staticmethod
    def errors_of(shards: list, settings: list[dict], data: list) -> list[str]:
        found: list[str] = [""] * len(shards)

        def work(rank: int) -> None:
            given = {"engine": "data", "momentum": 0.5, "max_iter": 3, "tol": 0} | settings[rank]
            with pytest.raises(InputError) as caught:
                train(shards[rank], *data[rank], **given)
            found[rank] = str(caught.value)

        run_all(work, len(shards))
        return found

    @pytest.mark.parametrize(("name", "first", "other"), DIFFERENT)
    def test_a_setting_of_train(self, name, first, other):
        shards = [NetworkShard.of(network(), one) for one in grids(2, 1)]
        for message in self.errors_of(shards, [{name: first}, {name: other}], [problem()] * 2):
            assert name in message
            assert f"{first!r} on worker 0" in message
            assert f"{other!r} on worker 1" in message

    def test_objects(self):
        """Objects are compared by their classes and by the constructor arguments that they store."""
        objects = [
            ("engine", [create("data"), create("data"), create("dense")], ["DataSearchEngine(", "DenseEngine("]),
            ("solver", [GaussNewton(tol=tol) for tol in (0.5, 0.5, 0.25)], ["tol=0.5", "tol=0.25"]),
            ("loss", [Huber(delta) for delta in (1.5, 1.5, 2.5)], ["delta=1.5", "delta=2.5"]),
        ]
        for name, given, parts in objects:
            shards = [NetworkShard.of(network(), one) for one in grids(3, 1)]
            for message in self.errors_of(shards, [{name: one} for one in given], [problem()] * 3):
                assert message.startswith(f"{name} ")
                assert all(part in message for part in [*parts, "on worker 0", "on worker 2"])

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("width", {"width": WIDTH + 2}),
            ("n_features", {"n_features": FEATURES - 1}),
            ("n_outputs", {"n_outputs": 1}),
            ("threshold", {"threshold": 0.25}),
            ("output_scale", {"output_scale": 3.0}),
            ("dtype", {"dtype": "float32"}),
        ],
    )
    def test_a_property_of_the_network(self, name, options):
        drawn = {"width": WIDTH, "n_features": FEATURES, "n_outputs": 2, "seed": 7, "dtype": "float64"}
        laid_out = grids(1, 2)
        shards = [
            NetworkShard.of(ShiftedReLUNetwork.initialize(**drawn), laid_out[0]),
            NetworkShard.of(ShiftedReLUNetwork.initialize(**{**drawn, **options}), laid_out[1]),
        ]
        for message in self.errors_of(shards, [{}, {}], [problem()] * 2):
            assert name in message
            assert str(options[name]) in message

    def test_rows_and_targets(self):
        X, y = problem()
        for data, names in [((X, y + 1), ["y"]), ((X[:-1], y[:-1]), ["rows", "X", "y"]), ((-X, y), ["X"])]:
            shards = [NetworkShard.of(network(), one) for one in grids(1, 2)]
            for message in self.errors_of(shards, [{}, {}], [(X, y), data]):
                assert all(re.search(rf"\b{name}\b", message) for name in names)

    def test_wrong_data_on_one_worker(self):
        """All workers raise the error of that worker."""
        X, y = problem()
        shards = [NetworkShard.of(network(), one) for one in grids(2, 1)]
        messages = self.errors_of(shards, [{}, {}], [(X, y), (X, np.full_like(y, np.nan))])
        assert messages[1].startswith("y ")
        assert messages[0] == f"worker 1: {messages[1]}"


def test_common_counts_need_all_rows_on_every_worker():
    """The message names the method and the number of parts of the rows."""
    group = groups(2)[0]
    with pytest.raises(InputError, match=r"common_counts.*2 parts"):
        RowShardEngine(create("dense"), group).common_counts()


class TestGaussNewton:
    """Gauss–Newton where workers share the rows, compared with one process, in float64."""

    @staticmethod
    def data(rows: int, loss: str):
        rng = np.random.default_rng(3)
        X = rng.standard_normal((rows, FEATURES))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        y = np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(rows)
        return X, (y > 0).astype(float) if loss == "log_loss" else y

    @staticmethod
    def network() -> ShiftedReLUNetwork:
        options = {"threshold": 1.0, "start": "antisymmetric", "output_scale": 100.0, "seed": 7, "dtype": "float64"}
        return ShiftedReLUNetwork.initialize(402, FEATURES, 1, **options)

    def compare(
        self, shape, rows: int = 61, *, loss: str = "squared_error", sparse: bool = False, within: float, **more
    ):
        X, y = self.data(rows, loss)
        settings = {"solver": "gauss-newton", "loss": loss, "engine": "data", "max_iter": 12, "tol": 0.03, **more}
        given = csr_array(np.where(np.abs(X) > 0.3, X, 0.0)) if sparse else X
        settings |= {"any_norm": sparse}
        one = self.network()
        expected = train(one, given, y, **settings)
        shards = [NetworkShard.of(self.network(), k) for k in grids(*shape)]
        results: list = [None] * len(shards)

        def work(rank: int) -> None:
            results[rank] = train(shards[rank], given, y, **settings)

        run_all(work, len(shards))
        whole = self.network()
        for shard, result in zip(shards, results, strict=True):
            whole.weights[shard.first :][: shard.local.width] = shard.local.weights
            whole.output_weights[shard.first :][: shard.local.width] = shard.local.output_weights
            assert result.details["ridge"] == pytest.approx(expected.details["ridge"], rel=1e-12)
            assert more or result.details["products"] == expected.details["products"]
            assert np.array_equal(result.history.column("loss"), results[0].history.column("loss"))
        u = one.predict(X)
        assert np.abs(u - self.network().predict(X)).max() > 0.1, "training has changed the network"
        np.testing.assert_allclose(whole.predict(X), u, rtol=0, atol=within * np.abs(u).max())

    @pytest.mark.parametrize("shape", [(1, 2), (2, 2), (1, 3)])
    @pytest.mark.parametrize("loss", ["squared_error", "log_loss"])
    def test_predictions_equal_those_of_one_process(self, shape, loss):
        self.compare(shape, loss=loss, within=1e-7)

    def test_sample_weights_and_validation_rows(self):
        weight = np.random.default_rng(1).uniform(0, 2, 61)
        weight[:20] = 0.0  # one share has few rows of positive weight
        self.compare((2, 2), sample_weight=weight, validation=self.data(7, "squared_error"), within=1e-7)

    def test_sparse_rows(self):
        self.compare((2, 2), sparse=True, within=1e-7)

    @pytest.mark.parametrize("shape", [(2, 1), (1, 2), (2, 2)])
    @pytest.mark.parametrize("loss", ["squared_error", "log_loss"])
    def test_trained_outputs(self, shape, loss):
        self.compare(shape, loss=loss, trained_outputs=2.0, within=1e-7)

    def test_trained_outputs_with_a_partial_factor(self, monkeypatch):
        monkeypatch.setattr(linear_solver, "FULL_CHOLESKY_ROWS", 10)
        monkeypatch.setattr(linear_solver, "_MAX_CHOLESKY_ROWS", 10)
        self.compare((2, 2), rows=301, trained_outputs=2.0, tol=1e-9, within=1e-6)

    def test_shares_of_one_row(self):
        self.compare((1, 3), rows=4, within=1e-7)

    @pytest.mark.parametrize(("shape", "sparse"), [((2, 2), False), ((1, 3), True)])
    def test_partial_factor(self, monkeypatch, shape, sparse):
        """The factor of many rows is shared by rows; its float32 columns limit the agreement."""
        monkeypatch.setattr(linear_solver, "FULL_CHOLESKY_ROWS", 10)
        monkeypatch.setattr(linear_solver, "_MAX_CHOLESKY_ROWS", 10)
        self.compare(shape, rows=301, sparse=sparse, within=1e-4)

    def test_a_partial_factor_and_a_small_tolerance(self, monkeypatch):
        """Systems that are solved accurately do not depend on the rounding of the factor."""
        monkeypatch.setattr(linear_solver, "FULL_CHOLESKY_ROWS", 10)
        monkeypatch.setattr(linear_solver, "_MAX_CHOLESKY_ROWS", 10)
        self.compare((2, 2), rows=301, within=1e-6, tol=1e-9)
