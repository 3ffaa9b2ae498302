"""A short run of ``make adversary``, and a test that each kind finds an error."""

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from adversary import commands, estimators, extremes, files, indexes, threads, training
from adversary.reference import Descent, above, fused_dot
from fireset.engines.dense import DenseEngine
from fireset.hsr.scan import ScanIndex
from fireset.kernels.firing import deciding_dot

TESTS = Path(__file__).parent


def run(*arguments) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "adversary", *map(str, arguments)]
    return subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count", "seed"), [("training", 6, 7), ("indexes", 6, 7), ("files", 300, 7), ("kills", 1, 7)]
)
def test_some_cases_of_each_kind(kind, count, seed):
    done = run("--only", kind, "--count", count, "--seed", seed)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, summary, last = done.stdout.splitlines()
    assert summary.startswith(f"{kind}: {count:,} cases (")
    assert last.startswith("0 findings in ")
    if kind == "files":  # none is refused for a reason that has nothing to do with it
        for name in ("model", "checkpoint", "csv", "npz", "parquet"):
            assert f"{name} read " in summary
            assert f"{name} refused " in summary
    if kind == "kills":
        assert "runs compared, " in summary


def test_the_reference_decides_as_the_package_does():
    rng = np.random.default_rng(0)
    W, X = rng.standard_normal((40, 5)), rng.standard_normal((30, 5))
    for w, x in zip(W, X, strict=False):
        assert fused_dot(w, x) == deciding_dot(w, x)
    ties = np.array([deciding_dot(w, X[0]) for w in W])
    assert not above(W, X[:1], ties).any()
    assert above(W, X[:1], np.nextafter(ties, -np.inf)).all()


def test_the_reference_follows_the_gradient():
    """Steps of the reference make its loss fall by what the derivative says."""
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((9, 3)), np.eye(2)[rng.integers(0, 2, 9)]
    weights, outputs = rng.standard_normal((20, 3)), rng.choice((-1.0, 1.0), (20, 2))
    one = Descent(weights, outputs, 0.3, 2.0, X, y, rng.uniform(0.5, 2, 9), "log_loss", 1e-6, 0.0, False)

    def loss() -> float:
        u = one.predictions(one.fires())
        return float(one.weight @ (np.logaddexp(u[:, 0], u[:, 1]) - (y * u).sum(axis=1)))

    before = loss()
    one.step(one.fires())
    gradient = (weights - one.weights) / one.rate
    assert before - loss() == pytest.approx(one.rate * np.square(gradient).sum(), rel=1e-3)


def first_finding(run_case, seeds: range) -> str:
    for seed in seeds:
        try:
            run_case(seed, Counter())
        except AssertionError as error:
            return str(error)
    return ""


def test_a_wrong_step_is_found(monkeypatch):
    right = DenseEngine.gradient

    def wrong(self, residual):
        found = right(self, residual)
        found.rows[0] *= 1 + 1e-5
        return found

    monkeypatch.setattr(training, "ENGINES", ["dense"])
    monkeypatch.setattr(DenseEngine, "gradient", wrong)
    assert "weights are off by" in first_finding(training.run_case, range(10))


def test_a_missed_pair_is_found(monkeypatch):
    right = DenseEngine.fire_sets

    def one_less(self):
        found = right(self)
        found.data[:1] = 0
        return found

    monkeypatch.setattr(training, "ENGINES", ["dense"])
    monkeypatch.setattr(DenseEngine, "fire_sets", one_less)
    assert "1 fired pairs missed" in first_finding(training.run_case, range(20))


def test_an_answer_of_no_state_is_found(monkeypatch):
    monkeypatch.setattr(indexes, "kinds", lambda: ["scan"])
    monkeypatch.setattr(ScanIndex, "_move", lambda self, ids, points: None)  # noqa: ARG005
    assert "an answer of no state" in first_finding(indexes.run_case, range(20))


def test_a_file_that_is_refused_in_two_lines_is_found(monkeypatch, tmp_path):
    class Two:
        def model(self, rng):  # noqa: ARG002
            def use() -> None:
                raise files.InputError("one\ntwo")

            return 10, use

        checkpoint = csv = npz = parquet = model

    monkeypatch.setattr(files, "victims", Two)
    assert "one\ntwo" in first_finding(files.run_case, range(1))
    with pytest.raises(files.InputError, match="no such file"):
        files.run_command("train", tmp_path / "none.csv", "--target", "y")


@pytest.mark.parametrize(
    ("method", "wrong", "finding"),
    [
        ("predict", lambda *_: np.full(40, np.nan), "not finite"),
        ("predict", lambda *_: np.full(40, 1e6), "of a constant"),
        ("fit", lambda *_, **__: [][1], "IndexError"),
    ],
)
def test_a_wrong_estimator_is_found(monkeypatch, method, wrong, finding):
    X = np.random.default_rng(0).standard_normal((40, 3))
    settings = {"width": 50, "max_iter": 2, "tol": 0, "random_state": 0, "learning_rate": 0.1}
    monkeypatch.setattr(estimators, "CLASSIFICATION_SHARE", 0.0)
    monkeypatch.setattr(estimators, "HARD_SHARE", 0.0)
    monkeypatch.setattr(estimators, "draw_table", lambda *_: (X, np.sin(X[:, 0]), None))
    monkeypatch.setattr(estimators, "draw_settings", lambda *_: settings)
    monkeypatch.setattr(estimators.ShiftedReLURegressor, method, wrong)
    monkeypatch.setattr(estimators, "EXCUSES", ())
    assert finding in first_finding(estimators.run_case, range(1))


def test_a_fit_that_does_not_end_is_found():
    with pytest.raises(AssertionError, match="not finished after 1 s"), estimators.limited(1, "a loop"):
        time.sleep(20)


def test_overflowing_products_are_decided_exactly():
    points = np.array([[1e30, -1e30], [1e30, -2e30]], np.float32)
    above, unsure = extremes.decided(points, np.array([1e10, 1e10], np.float32), -1.0)
    assert (above, unsure) == (set(), {0})
    assert extremes.decided(points, np.array([1e-10, 0], np.float32), 1.0) == ({0, 1}, set())


def test_a_missed_point_is_found(monkeypatch):
    monkeypatch.setattr(extremes, "kinds", lambda: ["scan"])
    monkeypatch.setattr(ScanIndex, "query", lambda *_: np.empty(0, np.int64))
    assert "missed" in first_finding(extremes.run_case, range(20))


def test_a_row_that_is_another_alone_is_found(monkeypatch):
    def run(arguments, case):  # noqa: ARG001
        found = [9.0] if "one.csv" in arguments else [1.0, 2.0]
        return 0, json.dumps({"rows": len(found), "prediction": found})

    monkeypatch.setattr(commands, "run", run)
    monkeypatch.setattr(commands, "draw_table", lambda *_: (["a", "y"], [["1", "2"], ["3", "4"]], ","))
    assert "alone is [9.0]" in first_finding(commands.run_case, range(1))


def test_a_command_with_a_traceback_is_found(monkeypatch):
    monkeypatch.setattr(commands, "main", lambda: 1 / 0)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        commands.run(["train"], "")


def test_answers_that_threads_change_are_found(monkeypatch):
    calls = iter(range(10**6))
    monkeypatch.setattr(threads.ShiftedReLUNetwork, "predict", lambda *_: np.full(3, next(calls)))
    with pytest.raises(AssertionError, match="beside other threads"):
        threads.check_network(np.random.default_rng(0))


@pytest.mark.slow
def test_what_is_found_ends_with_exit_code_1(tmp_path):
    """A kind that always finds something: the line names the seed and how to repeat it."""
    package = tmp_path / "adversary"
    package.mkdir()
    for name in ("__init__.py", "__main__.py"):
        (package / name).write_text((TESTS / "adversary" / name).read_text())
    (package / "files.py").write_text(
        "def run_case(seed, counts):\n    assert seed != 6, 'six'\n    counts['tried'] += 1\n"
    )
    (package / "kills.py").write_text("import os\n\ndef run_case(seed, counts):\n    os.abort()\n")
    command = [sys.executable, "-m", "adversary", "--count", "3", "--seed", "5", "--only"]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False, "timeout": 60}
    found = subprocess.run([*command, "files"], **options)
    assert found.returncode == 1
    assert "FOUND by files, seed 6: AssertionError: six" in found.stdout
    assert "make adversary ONLY=files SEED=6 COUNT=1" in found.stdout
    assert "files: 3 cases (tried 2)" in found.stdout
    crashed = subprocess.run([*command, "kills"], **options)
    assert crashed.returncode == 1
    assert crashed.stdout.count("the process ended with -6") == 3
