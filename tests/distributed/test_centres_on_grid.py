"""Gauss–Newton on centres, on grids of threads and under torchrun: the fit is that of one process."""

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fireset import Checkpoints, ShiftedReLUNetwork, train
from fireset.distributed.row_shares import RowShares
from fireset.distributed.shard import NetworkShard
from fireset.engines import centre_kernel
from fireset.engines.centre_kernel import BLOCK_ROWS
from fireset.model import Model
from fireset.training import pass_state
from fireset.training.losses import SquaredError
from fireset.training.problem import TrainingProblem
from fireset.training.solvers import NystromGaussNewton
from support import centre_workers
from support.launching import ENVIRONMENT, torchrun
from support.thread_group import grids, groups, run_all

ROWS, WIDTH, FEATURES, CENTRES = 2 * BLOCK_ROWS + 711, 480, 6, 100
WITHIN = {"float64": 1e-9, "float32": 0.0}


def data(outputs: int = 1, dtype="float64", rows: int = ROWS):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((rows, FEATURES))
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(dtype)
    y = [np.sin(3 * X[:, k]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(rows) for k in range(outputs)]
    return X, np.stack(y, axis=1)


def network(outputs: int = 1, dtype="float64", start="antisymmetric") -> ShiftedReLUNetwork:
    options = {"threshold": 0.5, "start": start, "output_scale": 1000.0, "seed": 7, "dtype": dtype}
    return ShiftedReLUNetwork.initialize(WIDTH, FEATURES, outputs, **options)


def on_grid(shape, one: ShiftedReLUNetwork, X, y, *, trained=0.0, **settings):
    """Train copies of a network on a grid of threads; return the assembled network, the results and the solvers."""
    shards = [NetworkShard.of(one.copy(), place) for place in grids(*shape)]
    results: list = [None] * len(shards)
    solvers = [NystromGaussNewton(tol=1e-3, centres=CENTRES, trained_outputs=trained) for _ in shards]

    def work(rank: int) -> None:
        results[rank] = train(shards[rank], X, y, solver=solvers[rank], **settings)

    run_all(work, len(shards))
    whole = one.copy()
    for shard in shards:
        own = slice(shard.first, shard.first + shard.local.width)
        whole.weights[own], whole.output_weights[own] = shard.local.weights, shard.local.output_weights
    return whole, results, solvers


def compare(
    shape,
    *,
    outputs=1,
    dtype="float64",
    start="antisymmetric",
    rows=ROWS,
    loss="squared_error",
    trained=0.0,
    within,
    **more,
):
    X, y = data(outputs, dtype, rows)
    y = (y > 0).astype(float) if loss == "log_loss" else y
    more |= {"loss": loss, "tol": 1e-3, "engine": "auto"}
    one = network(outputs, dtype, start)
    solver = NystromGaussNewton(tol=1e-3, centres=CENTRES, trained_outputs=trained)
    whole, results, solvers = on_grid(shape, one, X, y, trained=trained, **more)
    expected = train(one, X, y, solver=solver, **more)
    for result, other in zip(results, solvers, strict=True):
        assert result.details["ridge"] == pytest.approx(expected.details["ridge"], rel=1e-12)
        assert result.stop_reason == expected.stop_reason
        assert within > 1e-4 or result.details["passes"] == expected.details["passes"]
        assert np.array_equal(result.history.column("loss"), results[0].history.column("loss"))
        np.testing.assert_allclose(result.history.column("loss"), expected.history.column("loss"), rtol=1e-3)
        assert result.history[0].active_fraction == pytest.approx(expected.history[0].active_fraction)
        assert other.n_centres == solver.n_centres
    u = one.predict(X)
    assert u.std() > 0.3, "training has changed the network"
    assert np.abs(whole.predict(X) - u).max() <= within * np.abs(u).max()


SHAPES = [(2, 2), *(pytest.param(shape, marks=pytest.mark.slow) for shape in [(2, 1), (1, 2), (3, 1)])]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_predictions_equal_those_of_one_process(shape, dtype):
    """In float32 the weights have equal bits: all sums over rows have, and each worker rounds its own neurons."""
    compare(shape, dtype=dtype, within=WITHIN[dtype])


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_several_outputs(dtype):
    compare((2, 2), outputs=3, start="orthogonal", dtype=dtype, within=WITHIN[dtype])


@pytest.mark.parametrize("rows", [ROWS, pytest.param(4 * BLOCK_ROWS + 9, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("outputs", "start"), [(1, "antisymmetric"), (3, "orthogonal")])
def test_trained_outputs(outputs, start, rows):
    """With 16,384 rows the ridge is chosen by held-out rows of all workers."""
    compare((2, 2), outputs=outputs, start=start, rows=rows, dtype="float32", trained=1.5, within=WITHIN["float32"])


@pytest.mark.slow
@pytest.mark.parametrize("trained", [0.0, 1.5])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_several_rounds(dtype, trained):
    """Later rounds depend on the rounding of predictions, which are sums over the workers' neurons."""
    within = {"float64": 1e-9, "float32": 3e-3}[dtype]
    compare((2, 2), loss="log_loss", dtype=dtype, trained=trained, within=within)


@pytest.mark.slow
def test_outputs_that_share_gradients():
    compare((2, 2), outputs=2, rows=1711, within=1e-9)


def test_sample_weights_and_validation_rows():
    weight = np.random.default_rng(1).integers(0, 3, ROWS) * 1.0
    compare((2, 2), sample_weight=weight, validation=data(rows=37), within=1e-9)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_fewer_rows_than_blocks(dtype):
    """Blocks differ from those of one process, so that sums in float32 are rounded differently."""
    compare((1, 3), dtype=dtype, rows=701, within={"float64": 1e-9, "float32": 1e-3}[dtype])


def test_a_checkpoint_is_resumed_on_another_grid(tmp_path):
    X, y = data(rows=1711)
    settings = {"loss": "log_loss", "tol": 1e-5}
    y, one, begun = (y > 0).astype(float), network(), Checkpoints(tmp_path, every=1)
    on_grid((2, 2), one, X, y, **settings, checkpoint=begun, max_iter=2)
    whole, results, _ = on_grid((3, 1), one, X, y, **settings, checkpoint=Checkpoints(tmp_path, resume=True))
    expected = one.copy()
    train(expected, X, y, solver=NystromGaussNewton(tol=1e-3, centres=CENTRES), **settings)
    assert {result.resumed_at for result in results} == {2}
    u = expected.predict(X)
    np.testing.assert_allclose(whole.predict(X), u, rtol=0, atol=1e-8 * np.abs(u).max())


class KilledError(Exception):
    pass


@pytest.mark.parametrize("shape", [(1, 2), (2, 2)])
def test_killed_passes_continue_with_the_same_bits(tmp_path, monkeypatch, shape):
    """Every worker has finished one block of its rows when all are killed."""
    X, y = data(dtype="float32", rows=8 * BLOCK_ROWS)
    size, blocks = shape[0] * shape[1], centre_kernel.CentreKernel.blocks
    expected, _, _ = on_grid(shape, network(dtype="float32"), X, y)
    monkeypatch.setattr(pass_state, "_SECONDS", 0.0)
    computed: list[int] = []

    def counted(self, X, start=0, *, last=1 << 30):
        for number, (rows, K) in enumerate(blocks(self, X, start)):
            if number == last:
                raise KilledError
            computed.append(rows.start)
            yield rows, K

    def killed(rank: int) -> None:
        with pytest.raises(KilledError):
            train(shards[rank], X, y, solver=NystromGaussNewton(tol=1e-3, centres=CENTRES), checkpoint=begun)

    shards, begun = [NetworkShard.of(network(dtype="float32"), one) for one in grids(*shape)], Checkpoints(tmp_path)
    with monkeypatch.context() as context:
        context.setattr(centre_kernel.CentreKernel, "blocks", lambda *given: counted(*given, last=1))
        run_all(killed, size)
    assert computed == [0] * size
    assert len(list(tmp_path.glob("pass-*.safetensors"))) == size
    computed.clear()
    monkeypatch.setattr(centre_kernel.CentreKernel, "blocks", counted)
    found, _, _ = on_grid(shape, network(dtype="float32"), X, y, checkpoint=Checkpoints(tmp_path, resume=True))
    assert len(computed) == 8 - size + 1  # the last for the rows by which the ridge is chosen
    assert not list(tmp_path.glob("pass-*"))
    np.testing.assert_array_equal(found.weights, expected.weights)


def test_shares_begin_at_blocks():
    X, y = data()
    whole = TrainingProblem.check(network(), X, y, SquaredError(), validation=data(rows=10))
    assert [len(whole.share(group, BLOCK_ROWS).X) for group in groups(2)] == [BLOCK_ROWS + 5, BLOCK_ROWS + 711 + 5]
    # Not as many blocks as workers: shares of equal size
    assert [len(whole.share(group, BLOCK_ROWS).X) for group in groups(3)] == [2967 + 3, 2968 + 3, 2968 + 4]


@pytest.mark.parametrize("count", [1, 30, 57])
def test_distinct_rows_are_those_of_numpy(count):
    """All workers draw the rows that ``Generator.choice`` draws from all weights."""
    weight = np.random.default_rng(0).integers(0, 4, 80) * 1.0
    count = min(count, np.count_nonzero(weight))
    expected = np.random.default_rng(5).choice(80, count, replace=False, p=weight / weight.sum())
    found, shares = {}, [RowShares(group, 20 + 10 * group.rank) for group in groups(3)]
    parts = np.split(np.r_[weight, np.zeros(10)], [20, 50])
    run_all(lambda k: found.update({k: shares[k].draw_distinct(parts[k], count, np.random.default_rng(5))}), 3)
    assert all(np.array_equal(one, np.sort(expected)) for one in found.values())


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_default_command_under_torchrun(tmp_path):
    """Four workers; predictions equal those of one process, and a worker trains on its rows and neurons only."""
    centre_workers.write_table(tmp_path)
    command = torchrun(Path(centre_workers.__file__), tmp_path, processes=4)
    finished = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=400, check=False)
    assert finished.returncode == 0, finished.stderr
    table = pl.read_csv(tmp_path / "table.csv").drop("y")
    for name, dtype in centre_workers.RUNS:
        alone = centre_workers.fit(tmp_path, "alone", dtype)
        u = Model.load(tmp_path / f"alone.{dtype}.safetensors").estimator.predict(table)
        found = Model.load(tmp_path / f"{name}.{dtype}.safetensors").estimator.predict(table)
        assert np.std(u) > 1.0
        np.testing.assert_allclose(found, u, rtol=0, atol=1e-6)
        told = [json.loads((tmp_path / f"{name}.{rank}.json").read_text()) for rank in range(4)]
        assert {(one["solver"], one["grid"], one["workers"]) for one in told} == {("nystrom", name, 4)}
        assert {(one["ridge"], one["bias"], one["centres"], one["width"]) for one in told} == {
            tuple(alone[key] for key in ("ridge", "bias", "centres", "width"))
        }
