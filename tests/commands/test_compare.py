"""Comparison of engines: verdicts follow the measurements, exact engines agree, failures and Ctrl-C are reported."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fireset import InputError, ShiftedReLUNetwork
from fireset.commands.compare import EngineOptions, compare_table
from fireset.commands.compare import engines as comparing
from fireset.commands.compare.budget import Budget, ExpectedTimes, engines_over_budget
from fireset.commands.compare.engine_contenders import (
    PEERS,
    EngineContender,
    EngineProblem,
    Kind,
    PeerContender,
    fixed_learning_rate,
    installed_peers,
)
from fireset.commands.compare.engines import compare_engines, selected_engines
from fireset.commands.compare.result import Crossover, EngineResult, Scaling
from fireset.commands.compare.verdict import crossover, engine_verdict, fastest_pair
from fireset.engines import describe
from support.checks import in_order, mentions, sphere


def result(name, kind, seconds, preprocessing=0.0) -> EngineResult:
    return EngineResult(name, kind, seconds_per_iteration=seconds, preprocessing_seconds=preprocessing)


DENSE, TORCH = result("dense", "dense", 0.4), result("pytorch", "dense", 0.2)
FAST, SLOW = result("data", "preprocessed", 0.02, 0.5), result("data", "preprocessed", 0.3)
BETWEEN = Crossover("between", 1234.0)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(comparing, "_PAUSE_SECONDS", 0.0)


class TestVerdict:
    def test_yes(self):
        said = engine_verdict([DENSE, TORCH, FAST], 10_000, 30, BETWEEN)
        assert mentions(said, "Yes", "10,000", "data", "20 ms", "pytorch", "200 ms", "10", "3", "1,200")

    def test_no(self):
        """The engine must be faster than the fastest dense program, not only than one of them."""
        said = engine_verdict([DENSE, TORCH, SLOW], 500, 30, Crossover("never", 500))
        assert mentions(said, "No", "500", "data", "300 ms", "pytorch", "200 ms", "1.50", "500")

    def test_no_but_wider(self):
        said = engine_verdict([TORCH, SLOW], 500, 30, Crossover("beyond", 4321.0))
        assert said.startswith("No: ")
        assert said.endswith("about 4,300 neurons on.")

    def test_no_by_a_hair(self):
        said = engine_verdict([TORCH, result("data", "preprocessed", 0.201)], 500, 30, Crossover("between", 400.0))
        assert said.startswith("No: ")
        assert said.endswith("about 400 neurons on.")

    def test_not_in_a_short_run(self):
        """Each iteration is faster, but the preprocessing costs more than all of them save."""
        said = engine_verdict([TORCH, result("data", "preprocessed", 0.1, 9.0)], 500, 30, Crossover("always", 62))
        assert said.startswith("Not within 30 iterations: ")
        assert mentions(said, "2", "90")
        assert said.endswith("from 62 neurons on.")

    def test_approximate_engines_do_not_count(self):
        said = engine_verdict([DENSE, result("hashing", "approximate", 0.001)], 500, 30, None)
        assert said.startswith("No answer: ")
        assert engine_verdict([DENSE, result("hashing", "approximate", 0.001), SLOW], 500, 30, None).startswith("Yes: ")

    @pytest.mark.parametrize(
        "rows", [[], [DENSE], [FAST], [DENSE, EngineResult("data", "preprocessed", reason="failed")]]
    )
    def test_nothing_measured(self, rows):
        assert fastest_pair(rows) is None
        assert engine_verdict(rows, 500, 30, None).startswith("No answer: ")

    def test_yes_without_a_crossover(self):
        assert engine_verdict([DENSE, FAST], 500, 30, None).endswith("was not measured.")
        said = engine_verdict([DENSE, FAST], 500, 30, Crossover("never", 500))
        assert mentions(said, "500")


def curve(kind, power, factor=1.0, widths=(100, 200, 400, 800)) -> Scaling:
    return Scaling("curve", kind, list(widths), [factor * m**power for m in widths])


class TestCrossover:
    def test_fit_is_the_power(self):
        fitted = curve("dense", 0.8, 3.0)
        assert fitted.exponent == pytest.approx(0.8)
        assert fitted.fitted(50) == pytest.approx(3.0 * 50**0.8)

    def test_between(self):
        """m and 17 √m cross at 289."""
        found = crossover(curve("dense", 1.0), curve("preprocessed", 0.5, 17.0))
        assert found is not None
        assert (found.how, found.width) == ("between", pytest.approx(289))

    def test_the_last_crossing_counts(self):
        engine = Scaling("data", "preprocessed", [100, 200, 400, 800], [50, 300, 300, 300])
        found = crossover(curve("dense", 1.0), engine)
        assert found is not None
        assert found.how == "between"
        assert 200 < found.width < 400

    def test_always_beyond_never(self):
        dense = curve("dense", 1.0)
        assert crossover(dense, curve("preprocessed", 0.5)) == Crossover("always", 100)
        found = crossover(dense, curve("preprocessed", 0.5, 40.0))
        assert found is not None
        assert (found.how, found.width) == ("beyond", pytest.approx(1600))
        assert crossover(dense, curve("preprocessed", 0.5, 400.0)) == Crossover("never", 800)  # 160,000 is too far off
        assert crossover(dense, curve("preprocessed", 1.2, 1.1)) == Crossover("never", 800)

    def test_needs_two_widths(self):
        assert crossover(curve("dense", 1.0), curve("preprocessed", 1.0, widths=(100,))) is None


def small_problem(dtype="float64", n=80, d=6, width=400) -> EngineProblem:
    rng = np.random.default_rng(0)
    X = sphere(rng, n, d).astype(dtype)
    network = ShiftedReLUNetwork.initialize(width, d, 2, dtype=dtype)
    return EngineProblem(X, rng.standard_normal((n, 2)), network, fixed_learning_rate(network, X))


def run_small(names, iterations=6, interrupted=None):
    return compare_engines(
        small_problem(), names, iterations, Budget(600), interrupted=interrupted or threading.Event()
    )


@pytest.mark.slow
def test_exact_engines_do_the_same_steps():
    found = run_small(["dense", "data", "weights", "sums", "correlation", "hashing", "pytorch"])
    results = {each.name: each for each in found.results}
    assert [each.reason for each in found.results] == [None] * 7
    for name in ("data", "weights", "sums", "correlation", "pytorch"):
        assert results[name].final_loss == pytest.approx(results["dense"].final_loss, rel=1e-9)
        off = results[name].distance_to_dense
        assert off is not None
        assert off < 1e-9
    for name in ("data", "weights", "sums", "correlation"):
        assert results[name].active_pairs == results["dense"].active_pairs
        assert results[name].recall == 1.0
    assert results["dense"].inner_products == results["pytorch"].inner_products == 80 * 400
    assert results["dense"].speed_up == 1.0
    assert results["hashing"].recall is not None
    assert 0 < results["hashing"].recall < 1
    assert results["hashing"].distance_to_dense is not None
    assert results["hashing"].distance_to_dense > 1e-3
    for each in found.results:
        assert len(each.steps) == 6
        assert len(each.losses()) == 7
        assert each.peak_megabytes is not None
    # The initial network is unchanged: each engine trains a copy.
    assert np.array_equal(found.problem.network.weights, small_problem().network.weights)
    assert {s.name for s in found.scaling} >= {"dense", "data", "sums"}
    assert found.crossover is not None
    assert found.verdict == engine_verdict(found.results, 400, 6, found.crossover)


def test_losses_are_those_of_training():
    from fireset import train

    problem = small_problem()
    found = run_small(["dense"])
    network = problem.network.copy()
    result = train(
        network, problem.X, problem.y, engine="dense", learning_rate=problem.learning_rate, max_iter=6, tol=0
    )
    np.testing.assert_allclose(found.results[0].losses(), result.history.column("loss"), rtol=1e-12)


def test_the_error_of_an_engine_is_its_reason(monkeypatch):
    def out_of_memory(self):  # noqa: ARG001
        raise MemoryError("9 TiB\nmore")

    def missing(self, problem):  # noqa: ARG001
        raise ImportError("no jax here")

    steps = EngineContender.step
    monkeypatch.setattr(EngineContender, "step", lambda self: (out_of_memory if self.name == "data" else steps)(self))
    monkeypatch.setattr(PeerContender, "compile", missing)
    found = run_small(["dense", "data", "weights", "jax"])
    reasons = {each.name: each.reason for each in found.results}
    assert reasons == {
        "dense": None,
        "data": r"MemoryError: 9 TiB\nmore",
        "weights": None,
        "jax": "ImportError: no jax here",
    }
    assert found.results[1].seconds_per_iteration is None
    assert found.results[2].seconds_per_iteration is not None
    assert mentions(found.verdict, "weights")


def test_a_width_that_fails_is_a_gap(monkeypatch):
    short = comparing._short_run

    def fails_at_100(name, problem):
        if name == "data" and problem.network.width == 100:
            raise MemoryError("too narrow")
        return short(name, problem)

    monkeypatch.setattr(comparing, "_short_run", fails_at_100)
    data = next(curve for curve in run_small(["dense", "data"]).scaling if curve.name == "data")
    assert data.widths == [200, 400]
    assert data.gaps == {100: "MemoryError: too narrow"}


def test_simulations_do_not_count():
    assert EngineContender("data").kind == "preprocessed"
    assert fastest_pair([DENSE, result("quantum-data", "simulated", 0.001)]) is None


def test_without_a_dense_run_there_is_no_reference(monkeypatch):
    steps = EngineContender.step
    monkeypatch.setattr(EngineContender, "step", lambda self: 1 / 0 if self.name == "dense" else steps(self))
    found = run_small(["dense", "data"])
    assert found.results[0].reason == "ZeroDivisionError: division by zero"
    assert found.results[1].speed_up is found.results[1].distance_to_dense is None
    assert found.verdict.startswith("No answer: ")


def test_a_run_that_diverges_says_when():
    problem = small_problem()
    wild = EngineProblem(problem.X, problem.y, problem.network, 1e6)
    found = compare_engines(wild, ["dense", "data"], 6, Budget(600), interrupted=threading.Event())
    for each in found.results:
        assert each.reason is not None
        assert mentions(each.reason, "iteration")
    json.dumps([each.to_dict() for each in found.results], allow_nan=False)


def test_interrupted_in_the_middle(monkeypatch):
    stop = threading.Event()
    steps = EngineContender.step

    def step(self):
        if self.name == "weights" and getattr(self, "count", 0) == 4:  # two that measure the memory, and two of the run
            stop.set()
        self.count = getattr(self, "count", 0) + 1
        return steps(self)

    monkeypatch.setattr(EngineContender, "step", step)
    found = run_small(["dense", "data", "weights"], iterations=30, interrupted=stop)
    assert found.interrupted
    assert [len(each.steps) for each in found.results] == [3, 3, 3]
    assert found.results[0].final_loss == pytest.approx(found.results[2].final_loss, rel=1e-9)
    assert found.scaling == []
    assert found.verdict.endswith("was not measured.")


def test_interrupted_at_once():
    stop = threading.Event()
    stop.set()
    found = run_small(["dense", "data"], interrupted=stop)
    assert all(each.reason and "interrupted" in each.reason for each in found.results)
    assert found.verdict.startswith("No answer: ")


def test_names():
    default = selected_engines(None)
    assert default[0] == "dense"
    assert not any(name.startswith("quantum") for name in default)
    exact = {str(engine["name"]) for engine in describe() if not str(engine["name"]).startswith("quantum")}
    assert set(default) - set(PEERS) == exact
    assert selected_engines("data, hashing,data") == ["dense", "data", "hashing"]
    with pytest.raises(InputError, match=r"engines.*got 'no'"):
        selected_engines("data,no")


def test_a_peer_that_would_not_fit_is_refused_before_it_tries(monkeypatch):
    monkeypatch.setattr("fireset.commands.compare.engine_contenders.available_bytes", lambda: 1000)
    found = run_small(["dense", "data", "pytorch"], iterations=1)
    assert mentions(found.results[2].reason or "", "0.0 GB", "0.0 GB")


@pytest.fixture
def digits(tmp_path) -> Path:
    """A tenth of the digits."""
    X, y = load_digits(return_X_y=True)
    np.savez(tmp_path / "digits.npz", X=X[:180], y=y[:180])
    return tmp_path / "digits.npz"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run ``fireset compare``; gives standard output."""
    from fireset.__main__ import main

    def command(*arguments) -> str:
        monkeypatch.setattr(sys, "argv", ["fireset", "compare", *map(str, arguments), "-q"])
        with pytest.raises(SystemExit) as end:
            main()
        shown = capsys.readouterr()
        assert end.value.code == 0, shown.err
        return shown.out

    return command


@pytest.mark.slow
def test_digits_whole_command(digits, run, monkeypatch):
    """The command of the README, on a tenth of the digits."""
    # JAX starts threads, after which other tests cannot fork; a test below runs it in another process.
    monkeypatch.setattr(comparing, "installed_peers", lambda: ["pytorch"])
    page = digits.with_name("page.html")
    more = ["--width", 400, "--iterations", 4, "--dtype", "float64", "--json", "--report", page]
    found = json.loads(run(digits, "--target", "y", *more))
    rows = {each["name"]: each for each in found["contenders"]}
    for name in ("data", "weights", "sums", "correlation"):
        assert rows[name]["final_loss"] == pytest.approx(rows["dense"]["final_loss"], rel=1e-6)
    assert rows["hashing"]["recall"] < 1
    assert found["report"] == str(page)
    text = page.read_text(encoding="utf-8")
    assert mentions(text, "digits.npz")
    assert "Recall of the true fire sets" in text


def test_table_for_people(digits, run, monkeypatch):
    monkeypatch.setattr("fireset.commands.compare.engine_contenders.available_bytes", lambda: 1000)
    lines = run(digits, "--target", "y", "--engines", "data,pytorch", "--width", 100, "--iterations", 2).splitlines()
    assert lines[0].startswith("engine ")
    assert [line.split()[0] for line in lines[1:4]] == ["dense", "data", "pytorch"]
    assert mentions(lines[4], "pytorch", "0.0 GB", "0.0 GB")
    assert lines[-4].split(":")[0] in ("Yes", "No", "Not within 2 iterations")
    assert lines[-2].startswith("next: fireset train ")
    assert lines[-1].startswith("or: fireset compare ")


@pytest.mark.slow
def test_ctrl_c_still_gives_table_and_report(digits):
    page = digits.with_name("page.html")
    command = [sys.executable, "-m", "fireset", "compare", digits, "--target", "y", "--engines", "data", "--json"]
    process = subprocess.Popen(
        [*command, "--width", "600", "--iterations", "100000000", "--budget", "1h", "--report", str(page)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell makes background jobs, perhaps these tests, ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "iterations, " in line:
                break
        time.sleep(1.0)  # some turns
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    found = json.loads(out)
    assert found["interrupted"] is True
    assert found["contenders"][0]["seconds_per_iteration"] > 0
    assert "was interrupted; this page shows" in page.read_text(encoding="utf-8")


PEER_STEPS = """
import sys
import numpy as np
from fireset import ShiftedReLUNetwork
from fireset.engines import StepRule, create
from fireset.commands.compare.engine_contenders import PEERS

rng = np.random.default_rng(0)
X = rng.standard_normal((30, 4))
X /= np.linalg.norm(X, axis=1, keepdims=True)
y = rng.standard_normal((30, 2))
network = ShiftedReLUNetwork.initialize(50, 4, 2, dtype="float64")
peer = PEERS[sys.argv[1]](network, X, y, 0.3)
dense = create("dense")
dense.start(network, X)
for _ in range(3):
    residual = dense.forward() - y
    np.testing.assert_allclose(peer.step(), 0.5 * np.sum(residual**2), rtol=1e-10)
    dense.step(residual, StepRule(0.3))
    np.testing.assert_allclose(peer.weights(), network.weights, rtol=0, atol=1e-10)
print("same")
"""


@pytest.mark.slow
@pytest.mark.parametrize("peer", installed_peers())
def test_peers_do_the_dense_step(peer):
    done = subprocess.run([sys.executable, "-c", PEER_STEPS, peer], check=True, capture_output=True, text=True)
    assert done.stdout == "same\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iterations": 0}, ["iterations", "1", "0"]),
        ({"width": 1}, ["width", "2", "1"]),
        ({"dtype": "float16"}, ["dtype", "'float16'"]),
        ({"target": "z"}, ["--target", "'z'"]),
    ],
)
def test_refusals(digits, change, message):
    target = change.pop("target", "y")
    options = EngineOptions(**{"width": 50, "iterations": 2, **change})
    with pytest.raises(InputError, match=in_order(*message)):
        compare_table(digits, target, options, budget=60.0, seed=0, report=None, verbose=False)


def test_a_report_does_not_overwrite_the_table(digits):
    with pytest.raises(InputError, match=r"^--report "):
        compare_table(
            digits, "y", EngineOptions(width=50, iterations=2), budget=60.0, seed=0, report=digits, verbose=False
        )


class TestBudget:
    def test_the_slowest_are_left_out_but_not_the_compared_pair(self):
        expected = {name: ExpectedTimes(0.0, step) for name, step in (("dense", 3.0), ("data", 2.0), ("rows", 0.3))}
        expected["pytorch"] = ExpectedTimes(0.0, 9.0)
        kinds: dict[str, Kind] = {"dense": "dense", "data": "preprocessed", "rows": "preprocessed", "pytorch": "dense"}
        assert engines_over_budget(expected, kinds, 30, 1000.0) == {}
        some = engines_over_budget(expected, kinds, 30, 130.0)  # 13 steps of each, in 60 % of it
        assert list(some) == ["pytorch"]
        assert mentions(some["pytorch"], "10", "117", "2")
        assert set(engines_over_budget(expected, kinds, 30, 1e-3)) == {"pytorch", "data"}

    @pytest.mark.slow
    def test_a_small_budget_ends_the_run_at_the_same_iteration_for_all(self, monkeypatch):
        steps = EngineContender.step

        def slow(self):
            time.sleep(0.02)
            return steps(self)

        run_small(["dense", "data"], iterations=1)  # compiled now
        monkeypatch.setattr(EngineContender, "step", slow)
        started = time.monotonic()
        found = compare_engines(small_problem(), ["dense", "data"], 10_000, Budget(3.0), interrupted=threading.Event())
        assert time.monotonic() - started < 30
        assert 0 < found.iterations_done < 10_000
        assert [len(each.steps) for each in found.results] == [found.iterations_done] * 2
        (note,) = found.notes
        assert mentions(note, str(found.iterations_done), "10000", "3.0")
        assert found.results[0].final_loss == pytest.approx(found.results[1].final_loss, rel=1e-6)

    def test_means_are_over_the_steps_that_all_engines_have_done(self, monkeypatch):
        """After Ctrl-C between the turns of two engines, further steps of the first one do not count."""
        stop, steps = threading.Event(), EngineContender.step

        def step(self):
            taken = steps(self)
            self.count = getattr(self, "count", 0) + 1
            if self.name == "dense" and self.count == 8:  # two for the memory; the third turn of three ends with 11
                stop.set()
            return taken

        monkeypatch.setattr(EngineContender, "step", step)
        found = run_small(["dense", "data"], iterations=30, interrupted=stop)
        assert found.interrupted
        assert [len(each.steps) for each in found.results] == [found.iterations_done] * 2
        assert found.results[0].active_pairs == found.results[1].active_pairs
        assert found.results[0].final_loss == pytest.approx(found.results[1].final_loss, rel=1e-9)

    def test_the_learning_rate_of_many_rows_is_estimated_from_some(self, monkeypatch):
        problem = small_problem(n=400)
        whole = fixed_learning_rate(problem.network, problem.X)
        monkeypatch.setattr("fireset.commands.compare.engine_contenders._MAX_LEARNING_RATE_ROWS", 100)
        assert fixed_learning_rate(problem.network, problem.X) == pytest.approx(whole, rel=0.3)
