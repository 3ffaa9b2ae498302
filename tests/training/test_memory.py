"""Memory limits: parsing, errors before allocation, and blocks of candidate lists with equal results."""

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import fireset.training.memory
from fireset import InputError, ShiftedReLUNetwork, train
from fireset._util import control_groups
from fireset._util.system_memory import available_bytes, resident_bytes
from fireset.engines import StepRule, create
from fireset.engines.base import Engine
from fireset.engines.blocks import BlockEngine
from fireset.engines.cost import BYTES_PER_BOUNDARY_ENTRY, RETAINED_REPORT_BYTES
from fireset.engines.data_search import DataSearchEngine
from fireset.training.memory import check_weights, parse_memory, within_memory
from fireset.training.solvers import make_solver
from support.checks import sphere
from support.problems import hard_cases
from support.side_by_side import STEPS, run_side_by_side


class TestBlocks:
    @pytest.mark.sweep(every=8)
    @pytest.mark.parametrize("step", STEPS)
    @pytest.mark.parametrize("case", [name for name, one in hard_cases().items() if one.width >= 50])
    def test_as_the_dense_engine(self, case, step):
        run_side_by_side(hard_cases()[case], BlockEngine(7), 12, STEPS[step])

    def test_one_pass_over_all_pairs_in_an_iteration(self):
        rng = np.random.default_rng(0)
        X = sphere(rng, 200, 6)
        network = ShiftedReLUNetwork.initialize(500, 6, dtype="float64")
        seen = []
        train(
            network,
            X,
            X[:, 0],
            engine=BlockEngine(4),
            learning_rate=0.01,
            max_iter=6,
            tol=0,
            callbacks=[lambda progress: seen.append(progress.record.inner_products)],
        )
        assert all(200 * 500 <= products <= 1.5 * 200 * 500 for products in seen[1:])

    def test_the_first_rate_is_close_to_that_of_all_neurons(self):
        X = sphere(np.random.default_rng(0), 300, 10)
        rates = [
            train(ShiftedReLUNetwork.initialize(4000, 10), X, X[:, 0], engine=engine, max_iter=0).learning_rate
            for engine in ("data", BlockEngine(4))
        ]
        assert rates[1] == pytest.approx(rates[0], rel=0.2)


class TestListsThatOutgrowTheirSlots:
    """All lists are rebuilt when their buffer is full, and no active pair is lost."""

    @pytest.fixture(autouse=True)
    def made(self, monkeypatch) -> list[int]:
        """Remove all spare capacity, and count how often all lists are rebuilt."""
        monkeypatch.setattr("fireset.engines.candidate_lists.SPARE_PER_SLOT", 0)
        monkeypatch.setattr("fireset.engines.candidate_lists.USED_PER_SPARE", 10**9)
        monkeypatch.setattr("fireset.engines.candidate_lists._USED_PER_TAIL", 10**9)
        times, make = [], DataSearchEngine._rebuild_lists_in_place

        def counting(engine):
            times.append(len(times))
            return make(engine)

        monkeypatch.setattr(DataSearchEngine, "_rebuild_lists_in_place", counting)
        return times

    @pytest.mark.sweep(every=8)
    @pytest.mark.parametrize("step", STEPS)
    @pytest.mark.parametrize("case", hard_cases())
    def test_as_the_dense_engine(self, case, step):
        run_side_by_side(hard_cases()[case], create("data"), 12, STEPS[step])

    def test_lists_are_rebuilt(self, made):
        X = sphere(np.random.default_rng(0), 300, 6)
        network = ShiftedReLUNetwork.initialize(500, 6, threshold=1.0, dtype="float64")
        engine = create("data")
        engine.start(network, X)
        for _ in range(6):
            engine.step(engine.forward() - 30 * X[:, :1], StepRule(0.5))
        assert made
        engine.audit()


class TestWithin:
    @pytest.fixture
    def problem(self, monkeypatch):
        """Return a network and samples whose lists take about 60 MB, in a process that counts as empty."""
        monkeypatch.setattr(fireset.training.memory, "resident_bytes", lambda: 0)
        monkeypatch.setattr(Engine, "scratch_bytes", 0.0)
        monkeypatch.setattr(fireset.training.memory, "_compiler_bytes", lambda: 0.0)
        X = sphere(np.random.default_rng(0), 2000, 20).astype(np.float32)
        return ShiftedReLUNetwork.initialize(20_000, 20), X

    def test_enough_memory_changes_nothing(self, problem):
        network, X = problem
        engine = create("data")
        assert within_memory(engine, network, len(X), solver_bytes=lambda _: 1.6e6, limit="2G") is engine

    def test_less_memory_makes_blocks_and_the_same_network(self, problem):
        network, X = problem
        y = X[:, 0]
        other = ShiftedReLUNetwork.initialize(20_000, 20)
        results = [
            train(one, X, y, engine="data", max_iter=4, tol=0, learning_rate=0.05, memory=memory)
            for one, memory in ((network, "2G"), (other, "14M"))
        ]
        assert results[0].blocks == 1
        assert results[1].blocks > 2
        np.testing.assert_allclose(other.weights, network.weights, rtol=0, atol=2e-6)

    @pytest.mark.parametrize(
        ("engine", "memory", "message"),
        [
            ("data", "4M", r"engine 'data' .*memory=4M leaves 4 MiB; "),
            ("correlation", "100M", r"engine 'correlation' .* engine 'data'"),
            ("weights", "10M", r"engine 'weights' .* engine 'data'"),
        ],
    )
    def test_too_little_memory_is_refused(self, problem, engine, memory, message):
        network, X = problem
        with pytest.raises(InputError, match=rf"training needs about \d.* more with {message}"):
            train(network, X, X[:, 0], engine=engine, memory=memory, momentum=0.9)

    def test_weights_are_refused_before_they_are_drawn(self):
        with pytest.raises(InputError, match=r"width 1,000,000,000 with 100 inputs needs 1117.6 GiB"):
            check_weights(10**9, 100, "float32", momentum=True, limit=None)

    def test_free_memory_is_shared_by_the_workers_of_a_machine(self, monkeypatch):
        monkeypatch.setattr("fireset._util.system_memory.available_bytes", lambda: 8e9)
        assert fireset.training.memory.free_bytes(None) == 8e9
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
        assert fireset.training.memory.free_bytes(None) == 2e9
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "abc")
        assert fireset.training.memory.free_bytes(None) == 8e9

    def test_system_memory(self):
        assert available_bytes() > 0
        assert 10e6 < resident_bytes() < 100e9

    def test_the_limit_of_a_control_group_applies(self, monkeypatch, tmp_path):
        monkeypatch.setattr(control_groups, "ROOT", tmp_path)
        (tmp_path / "membership").write_text("0::/\n")
        monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "membership")
        for name, text in (("max", "3000"), ("current", "1000"), ("stat", "anon 5\ninactive_file 200\n")):
            (tmp_path / f"memory.{name}").write_text(text)
        assert available_bytes() == 2200
        (tmp_path / "memory.max").write_text("max")
        assert available_bytes() > 1e6

    def test_radii_shrink_before_there_are_blocks(self, problem, monkeypatch):
        network, X = problem
        engine, small = create("data"), create("data")
        small.max_radius = 0.2
        enough = 1.1 * (small.memory_bytes(network, len(X)) + network.weights.nbytes)
        monkeypatch.setattr(fireset.training.memory, "free_bytes", lambda limit: enough)  # noqa: ARG005
        engine = within_memory(engine, network, len(X), solver_bytes=lambda _: 0.0, limit=None)
        assert isinstance(engine, DataSearchEngine)
        assert 0.15 < engine.max_radius < 0.3
        engine.start(network, X)
        for _ in range(4):
            engine.step(5.0 * (engine.forward() - X[:, :1]), StepRule(5.0))
        assert engine._radii.max() <= engine.max_radius + 1e-4

    def test_the_engine_of_the_caller_is_not_changed(self, problem, monkeypatch):
        network, X = problem
        engine = create("data")
        monkeypatch.setattr(fireset.training.memory, "free_bytes", lambda limit: 40e6)  # noqa: ARG005
        assert within_memory(engine, network, len(X), solver_bytes=lambda _: 0.0, limit=None) is not engine
        assert engine.max_radius == 1.5

    def test_too_little_memory_without_active_pairs(self, problem):
        _, X = problem
        network = ShiftedReLUNetwork.initialize(20_000, 20, threshold=50.0)
        with pytest.raises(InputError, match="training needs about"):
            within_memory(create("data"), network, len(X), solver_bytes=lambda _: 0.0, limit="1M")

    def test_a_given_radius_is_kept(self, problem, monkeypatch):
        network, X = problem
        engine = create("data", radius=0.7)
        monkeypatch.setattr(fireset.training.memory, "free_bytes", lambda limit: 40e6)  # noqa: ARG005
        assert within_memory(engine, network, len(X), solver_bytes=lambda _: 0.0, limit=None) is not engine
        assert engine.max_radius == 0.7


class TestCounted:
    """Estimates against arrays that are counted: never below them, and not far above."""

    @pytest.mark.parametrize(("d", "outputs", "dtype"), [(3, 1, "float32"), (4, 3, "float64")])
    def test_sums(self, d, outputs, dtype):
        X = sphere(np.random.default_rng(0), 20_000, d).astype(dtype)
        network = ShiftedReLUNetwork.initialize(300, d, outputs, threshold=1.0, dtype=dtype)
        engine = create("sums")
        engine.start(network, X)
        engine.forward()
        sums = engine._sums
        tree = sums._tree._replace(free_nodes=X[:0], free_buckets=X[:0])
        arrays = [*tree, sums._shares, sums._totals, sums._visits, sums._weights, sums._sums]
        boundaries = BYTES_PER_BOUNDARY_ENTRY * sum(int(sums._ends[order].max()) for order in _orders(sums))
        held = sum(array.nbytes for array in arrays) + boundaries
        assert held < engine.memory_bytes(network, len(X)) < 1.5 * held

    def test_gauss_newton_of_a_wide_network(self):
        def fit(width):
            network = ShiftedReLUNetwork.initialize(width, 100, threshold=1.0, output_scale=1000.0)
            X = sphere(np.random.default_rng(0), 40, 100).astype(np.float32)
            tracemalloc.start()
            train(network, X, X[:, 0], max_iter=2, tol=0, solver="gauss-newton", engine="data")
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            solver = make_solver("gauss-newton", {}).extra_bytes(network, len(X))
            return peak, network.weights.nbytes + solver + create("data").memory_bytes(network, len(X))

        fit(100)  # compiles
        peak, estimate = fit(30_000)
        assert peak < estimate < 1.15 * peak

    def test_moved_neurons_of_weights(self):
        """All neurons move at once: their rows are copied twice while the index has a copy."""

        def step(width):
            network = ShiftedReLUNetwork.initialize(width, 200, threshold=3.0, dtype="float64")
            X = sphere(np.random.default_rng(0), 30, 200)
            engine = create("weights")
            tracemalloc.start()
            engine.start(network, X)
            engine.weights_moved(np.arange(width), np.full(width, 1e6))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return peak, engine.memory_bytes(network, len(X)) - RETAINED_REPORT_BYTES

        step(100)
        peak, estimate = step(20_000)
        assert peak < estimate < 1.5 * peak


def _orders(sums) -> list[np.ndarray]:
    return [sums._neuron_order[slice(*span)] for span in sums._ranges]


class TestParseMemory:
    @pytest.mark.parametrize(
        ("text", "number"),
        [
            ("12G", 12 * 2**30),
            ("800M", 800 * 2**20),
            ("1.5 GiB", 1.5 * 2**30),
            ("64k", 2**16),
            (4096, 4096),
            (None, None),
        ],
    )
    def test_sizes(self, text, number):
        assert parse_memory(text) == number

    @pytest.mark.parametrize("text", ["", "G", "-1G", "12X", "0", "1e9", "nan", "12G extra"])
    def test_refused(self, text):
        with pytest.raises(InputError, match=r"^memory .*got "):
            parse_memory(text)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [300, 308, 311, 319, 321, 323, 330, 351])
def test_training_stays_within_the_estimate(seed):
    """Problems of ``make bench-memory``: all engines, both solvers, each in a separate process."""
    program = Path(__file__).parents[2] / "benchmarks" / "bench_memory.py"
    done = subprocess.run(
        [sys.executable, program, "--one", str(seed)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["peak"] <= found["estimate"] < 3 * found["peak"], found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "least"), [("data", 250), ("data", 340), ("data", 400), ("weights", 200), ("dense", 200)]
)
def test_the_whole_process_stays_within_memory(engine, least):
    """Including all imports, with the smallest accepted limit of at least ``least`` megabytes."""
    script = f"""
import numpy as np
from fireset import InputError, ShiftedReLUNetwork, train
from fireset._util.system_memory import PeakMemory
rng = np.random.default_rng(0)
X = rng.standard_normal((4000, 20)).astype(np.float32)
X /= np.linalg.norm(X, axis=1, keepdims=True)
for megabytes in range({least}, 2000, 20):
    network = ShiftedReLUNetwork.initialize(10_000, 20, threshold=1.0)
    try:
        train(network, X, X[:, 0], engine={engine!r}, memory=f"{{megabytes}}M", max_iter=10, tol=0, momentum=0.9)
    except InputError:
        continue
    break
print(megabytes * 2**20, PeakMemory().read())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    limit, peak = map(int, done.stdout.split())
    assert 0.5 * limit < peak <= limit
