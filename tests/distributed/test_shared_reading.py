"""Tables whose rows workers divide when they read them: the fit is that of one process."""

import json
import subprocess
import sys
import threading
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fireset import InputError, ShiftedReLUNetwork
from fireset.distributed.process_group import SINGLE_PROCESS
from fireset.model import Model
from fireset.tables import large_problem
from fireset.tables.encoded_blocks import EncodedBlocks
from fireset.tables.large_problem import LargeTableProblem, read_problem
from fireset.tables.row_source import RowSource
from fireset.training.losses import AbsoluteError, SquaredError
from fireset.training.problem import TrainingProblem, share_of_rows
from support import reading_workers
from support.launching import ENVIRONMENT, torchrun
from support.thread_group import groups, run_all

OPEN = partial(RowSource.open, block_cells=0, block_bytes=1 << 16)


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    reading_workers.write_tables(folder)
    return folder


@pytest.fixture
def threads(monkeypatch) -> threading.local:
    """The group of each thread, in the attribute ``group``."""
    place = threading.local()
    monkeypatch.setattr(large_problem, "current_group", lambda: getattr(place, "group", SINGLE_PROCESS))
    return place


@pytest.mark.parametrize("name", ["parts", "table.csv"])
@pytest.mark.parametrize("size", [3, 40])
def test_the_sample_of_workers_is_that_of_one_process(tables, threads, monkeypatch, name, size):
    """40 workers are more than there are blocks. The rare gaps are noted across workers."""
    monkeypatch.setattr(large_problem, "_MIN_SAMPLE_ROWS", 1)
    counts, found, read = [0] * size, {}, RowSource.blocks

    def counted(self, *which):
        for block in read(self, *which):
            if hasattr(threads, "group"):
                counts[threads.group.rank] += block.frame.height
            yield block

    monkeypatch.setattr(RowSource, "blocks", counted)
    one = LargeTableProblem.read_blocks(OPEN(tables / name), "y", drop=["kind"], sample_rows=500)
    workers = groups(size)

    def work(rank: int) -> None:
        threads.group = workers[rank]
        problem = LargeTableProblem.read_blocks(OPEN(tables / name), "y", drop=["kind"], sample_rows=500)
        found[rank] = problem, sum(counts[rank : rank + 1]), problem.hold_out(0.3, 0, "group")

    run_all(work, size)
    split = one.hold_out(0.3, 0, "group")
    for problem, _, other in found.values():
        assert problem.features.equals(one.features)
        assert problem.missing == one.missing == {"gaps": 40}
        assert len(one.sample_rows) > 500
        assert all(np.array_equal(getattr(problem, key), getattr(one, key)) for key in ("y", "sample_rows", "drawn"))
        assert np.array_equal(other[1], split[1])
    assert sum(rows for _, rows, _ in found.values()) == reading_workers.ROWS
    assert max(rows for _, rows, _ in found.values()) <= reading_workers.ROWS / size + 1500


def test_a_bad_part_is_refused_by_all_workers(tables, threads, monkeypatch):
    def damaged(*_):
        if threads.group.rank == 2:
            raise InputError("damaged")
        return iter([])

    monkeypatch.setattr(RowSource, "blocks", damaged)
    workers, found = groups(3), {}

    def work(rank: int) -> None:
        threads.group = workers[rank]
        with pytest.raises(InputError, match="damaged") as refused:
            LargeTableProblem.read_blocks(OPEN(tables / "parts"), "y")
        found[rank] = str(refused.value)

    run_all(work, 3)
    assert found == {0: "worker 2: damaged", 1: "worker 2: damaged", 2: "damaged"}


def test_workers_read_at_once_what_has_no_blocks(tmp_path, threads):
    file = tmp_path / "latin.csv"
    file.write_bytes("größe,y\n1,2\n3,4\n5,7\n".encode("windows-1252"))
    workers, kinds = groups(2), {}

    def work(rank: int) -> None:
        threads.group = workers[rank]
        kinds[rank] = type(read_problem(file, "y")).__name__

    run_all(work, 2)
    assert kinds == {0: "TableProblem", 1: "TableProblem"}


@pytest.mark.parametrize("own", [np.arange(5000, 9000), np.array([17, 4000, 4001, 16_000]), np.arange(0)])
def test_own_rows_have_the_bits_of_all(tables, monkeypatch, own):
    """Their blocks are read whole; a full metric is a matrix product, whose bits depend on the number of rows."""
    problem = LargeTableProblem.read_blocks(OPEN(tables / "parts"), "y", drop=["kind"])
    _, _, encoded = problem.split(0.2, 0)
    metric = np.random.default_rng(0).standard_normal((encoded.sample.matrix.shape[1],) * 2)
    read, blocks = [], RowSource.blocks

    def counted(self, *which):
        for block in blocks(self, *which):
            read.append(block.frame.height)
            yield block

    class Map:
        n_outputs = len(metric)

        def __call__(self, X):
            return X @ metric

    whole = encoded.mapped(Map(), "float64")
    monkeypatch.setattr(RowSource, "blocks", counted)
    part = EncodedBlocks(**{**vars(encoded), "own": own})
    assert len(part) == len(own)
    assert np.array_equal(part.mapped(Map(), "float64"), whole[own])
    assert sum(read) <= (own[-1] - own[0] if len(own) else 0) + 2 * reading_workers.BLOCK


class TestJoined:
    """Problems of own rows, joined, are the shares of the problem of all rows."""

    ROWS, HELD = 101, 7

    def data(self):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((self.ROWS + self.HELD, 4))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        weight = rng.uniform(0, 2, self.ROWS) * 1e-20
        weight[:40] = 0.0  # all of the first worker's
        return X, rng.standard_normal((len(X), 2)), weight

    def whole(self, weight):
        X, y, _ = self.data()
        n, network = self.ROWS, ShiftedReLUNetwork.initialize(20, 4, 2, dtype="float64")
        return network, TrainingProblem.check(network, X[:n], y[:n], SquaredError(), weight, validation=(X[n:], y[n:]))

    def joined(self, group, weight):
        X, y, _ = self.data()
        network = self.whole(np.ones(self.ROWS))[0]
        own, held = share_of_rows(group, self.ROWS), self.ROWS + share_of_rows(group, self.HELD)
        settings = {"validation": (X[held], y[held]), "is_share": True}
        given = None if weight is None else weight[own]
        return TrainingProblem.check(network, X[own], y[own], SquaredError(), given, **settings).joined(group)

    @pytest.mark.parametrize("size", [3, 9])  # with 9 some have no validation rows
    def test_arrays_and_fingerprints(self, size):
        weight, found, workers = self.data()[2], {}, groups(size)
        _, whole = self.whole(weight)
        run_all(lambda rank: found.update({rank: self.joined(workers[rank], weight)}), size)
        for rank, share in found.items():
            expected = whole.share(workers[rank])
            for name in ("X", "targets", "weight", "held_out"):
                assert np.array_equal(getattr(share, name), getattr(expected, name)), name
            assert share.whole == expected.whole
            assert share.weight_unit == whole.weight_unit != 1.0

    def test_weights_that_are_0_everywhere_are_refused_by_all(self):
        workers, refused = groups(2), []

        def work(rank: int) -> None:
            with pytest.raises(InputError, match="sample_weight"):
                self.joined(workers[rank], np.zeros(self.ROWS))
            refused.append(rank)

        run_all(work, 2)
        assert sorted(refused) == [0, 1]

    def test_a_loss_relative_to_the_targets_is_that_of_all_rows(self):
        workers, found = groups(3), {}
        run_all(lambda k: found.update({k: self.joined(workers[k], None).for_targets(AbsoluteError())}), 3)
        _, whole = self.whole(None)
        assert set(found.values()) == {whole.for_targets(AbsoluteError())}


@pytest.fixture(scope="module")
def done(tables) -> Path:
    """Return the folder with the files of four workers."""
    command = torchrun(Path(reading_workers.__file__), tables, processes=4)
    finished = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=500, check=False)
    assert finished.returncode == 0, finished.stderr
    return tables


_ALONE = """
import json, sys
from pathlib import Path
from support import reading_workers
reading_workers.small_blocks()
folder, name = Path(sys.argv[1]), sys.argv[2]
print(json.dumps(reading_workers.fit(folder, name, folder / f"alone.{name}.safetensors")))
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("name", list(reading_workers.RUNS))
class TestTorchrun:
    def test_predictions_are_those_of_one_process(self, done, name):
        command = [sys.executable, "-c", _ALONE, str(done), name]
        alone = json.loads(subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout)
        rows = reading_workers.table()[:500].with_columns(pl.col("gaps").fill_null(0.1))
        one, many = (Model.load(done / file) for file in (f"alone.{name}.safetensors", f"{name}.safetensors"))
        assert one.encoder == many.encoder
        method = "predict" if one.task == "regression" else "predict_proba"
        u = getattr(one.estimator, method)(rows)
        assert np.std(u) > 0.1
        np.testing.assert_allclose(getattr(many.estimator, method)(rows), u, rtol=0, atol=1e-6)
        score = "held_out_r2" if one.task == "regression" else "held_out_accuracy"
        for rank in range(4):
            told = json.loads((done / f"{name}.{rank}.json").read_text())
            assert told["workers"] == 4
            assert told["rows"] == alone["rows"]
            assert told["held_out_rows"] == alone["held_out_rows"]
            assert told[score] == pytest.approx(alone[score], abs=1e-6)

    def test_a_worker_reads_and_holds_its_share(self, done, name):
        """Three passes: a quarter of all rows, then this worker's training rows and hold-out rows, in whole blocks."""
        parts = int(reading_workers.GRIDS[name].partition("x")[2])
        n, block = reading_workers.ROWS, 1500
        read, held = zip(
            *(
                (told["read"], told["held"])
                for told in (json.loads((done / f"{name}.{rank}.json").read_text()) for rank in range(4))
            ),
            strict=True,
        )
        assert max(read) <= n / 4 + 2 * n / parts + 4 * 4096 + 6 * block
        assert max(read) < 3 * n
        assert max(held) <= n / parts + 4096
        assert sum(held) == 4 * n / parts
