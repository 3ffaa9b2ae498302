"""Threads: results do not depend on their number, errors are raised, and settings are restored."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import scipy.linalg  # noqa: F401 - brings the BLAS whose threads are counted
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from fireset import ShiftedReLUNetwork
from fireset._util import parallel
from fireset._util.parallel import MAX_RANGES, parallel_map, ranges, thread_count
from fireset.engines import StepRule, create
from support.checks import sphere


def problem(dtype="float32"):
    network = ShiftedReLUNetwork.initialize(3000, 6, 2, seed=1, dtype=dtype)
    X = sphere(np.random.default_rng(0), 120, 6).astype(dtype)
    return network, X


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


# Ranges


@given(st.integers(0, 10**7))
def test_ranges_cover_everything_once(count):
    cut = ranges(count)
    assert 1 <= len(cut) <= MAX_RANGES
    assert cut[0][0] == 0
    assert cut[-1][1] == count
    assert all(a[1] == b[0] for a, b in pairwise(cut))
    sizes = [hi - lo for lo, hi in cut]
    assert max(sizes) - min(sizes) <= 1
    assert len(cut) == 1 or min(sizes) >= 128


def test_ranges_depend_on_the_count_only(monkeypatch):
    cuts = []
    for threads in ("1", "2", "64"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        cuts.append([ranges(count) for count in (0, 1, 127, 1000, 10**6)])
    assert cuts[0] == cuts[1] == cuts[2]


def test_thread_count_follows_the_environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert thread_count() == 3
    for several in ("3,1", " 3 , 2,1"):  # for nested parallel regions: the first number is used
        monkeypatch.setenv("OMP_NUM_THREADS", several)
        assert thread_count() == 3
    for nonsense in ("", "0", "-2", "many", ",", "²", "1.5"):
        monkeypatch.setenv("OMP_NUM_THREADS", nonsense)
        assert thread_count() >= 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert thread_count() >= 1


# Results


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_predictions_have_the_same_bits_for_any_number_of_threads(monkeypatch, dtype):
    network, X = problem(dtype)
    found = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        found.append(network.predict(X))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["dense", "data"])
def test_training_has_the_same_bits_for_any_number_of_threads(monkeypatch, name, dtype):
    found = []
    for threads in ("1", "2"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        network, X = problem(dtype)
        engine = create(name)
        engine.start(network, X)
        predictions = []
        for _ in range(5):
            predictions.append(engine.forward())
            engine.step(predictions[-1] - 1.0, StepRule(0.2))
        found.append((predictions, network.weights))
    assert not np.array_equal(found[0][0][0], found[0][0][4])
    assert np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1], found[1][1])


# parallel_map


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_results_are_in_the_order_of_the_tasks(monkeypatch, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)

    def late(task: int) -> int:
        time.sleep(0.002 * (10 - task))
        return task * task

    assert parallel_map(late, range(10)) == [k * k for k in range(10)]
    assert parallel_map(late, iter([3])) == [9]
    assert parallel_map(late, []) == []


def test_tasks_run_in_parallel(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    meeting = threading.Barrier(2, timeout=20)  # breaks, and so fails, unless two tasks are inside at once
    assert sorted(parallel_map(lambda _: meeting.wait(), range(2))) == [0, 1]


@pytest.mark.parametrize("threads", ["1", "2"])
def test_exceptions_are_raised(monkeypatch, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    error = LookupError("task 3")

    def fail(task: int) -> int:
        if task == 3:
            raise error
        return task

    before = blas_threads()
    with pytest.raises(LookupError) as caught:
        parallel_map(fail, range(6), uses_blas=True)
    assert caught.value is error
    assert blas_threads() == before
    assert parallel_map(lambda task: task, range(6)) == list(range(6))


def test_several_threads_may_train_and_predict_at_once(monkeypatch):
    """Like a grid search with threads; some threads share a network."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    network, X = problem()
    expected = network.predict(X)

    def work(seed: int) -> np.ndarray:
        own = ShiftedReLUNetwork.initialize(1500, 6, seed=seed)
        engine = create("data")
        engine.start(own, X)
        for _ in range(5):
            engine.step(engine.forward() - 1.0, StepRule(0.2))
        assert np.array_equal(network.predict(X), expected)
        return own.weights

    alone = [work(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, range(4)))
    for a, b in zip(alone, together, strict=True):
        assert np.array_equal(a, b)


def _predict_in_child(queue) -> None:
    network, X = problem()
    queue.put(network.predict(X))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_works_after_fork(monkeypatch):
    """The child inherits the parent's pool object but not its threads."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    network, X = problem()
    expected = network.predict(X)  # starts the parent's pool
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_predict_in_child, args=(queue,), daemon=True)
    child.start()
    child.join(60)
    stuck = child.is_alive()
    if stuck:
        child.kill()
        child.join()
    assert not stuck
    assert child.exitcode == 0
    assert np.array_equal(queue.get(), expected)


# BLAS


needs_threads = pytest.mark.skipif(max(blas_threads()) == 1, reason="BLAS has one thread anyway")


@needs_threads
@pytest.mark.parametrize("threads", ["1", "2"])
def test_blas_is_limited_to_one_thread_and_restored(monkeypatch, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    before = blas_threads()
    inside = parallel_map(lambda _: blas_threads(), range(4), uses_blas=True)
    assert all(set(seen) == {1} for seen in inside)
    assert blas_threads() == before


@needs_threads
def test_blas_is_not_limited_for_tasks_without_blas():
    before = blas_threads()
    assert parallel_map(lambda _: blas_threads(), range(4)) == [before] * 4


OVERLAP = """
import sys, threading
import scipy.linalg
from threadpoolctl import threadpool_info
from fireset._util.parallel import parallel_map

def blas_threads():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

class Caller:
    def __init__(self):
        self.inside, self.leave, self.left, self.end = (threading.Event() for _ in range(4))
        threading.Thread(target=self.work, daemon=True).start()
        assert self.inside.wait(20)

    def work(self):
        parallel_map(self.stay, [0], uses_blas=True)
        self.left.set()
        self.end.wait(20)  # the thread stays alive, like those of a pool

    def stay(self, _):
        self.inside.set()
        self.leave.wait(20)

    def go(self):
        self.leave.set()
        assert self.left.wait(20)

before = blas_threads()
callers = {"first": Caller(), "second": Caller()}
for name in sys.argv[1:]:
    assert set(blas_threads()) == {1}
    callers[name].go()
assert blas_threads() == before, f"{before} before, {blas_threads()} afterwards"
"""


@pytest.mark.parametrize("order", [("second", "first"), ("first", "second")], ids=str)
def test_blas_is_restored_after_the_last_caller(order):
    """In a separate process: a limit that is not removed would outlive the test."""
    environment = os.environ | {"OMP_NUM_THREADS": "2"}  # with 1, as in parallel tests, there is nothing to limit
    done = subprocess.run(
        [sys.executable, "-c", OVERLAP, *order], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_no_task_runs_after_a_failure():
    """After the error the caller may restore what tasks have written, so no task may still write."""
    finished = []

    def task(k: int) -> None:
        if k == 0:
            raise KeyError("span 0")
        time.sleep(0.05)
        finished.append(k)

    with pytest.raises(KeyError, match="span 0"):
        parallel_map(task, range(6))
    seen = len(finished)
    time.sleep(0.2)
    assert len(finished) == seen


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_fork_while_another_thread_changes_the_limit():
    """The thread that holds the lock does not exist in the child: fork must wait until the lock is free."""
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with parallel._CREATION_LOCK:
            held.set()
            free.wait(0.3)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    with warnings.catch_warnings():  # newer Pythons warn about fork with several threads
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends a child that waits forever
        with parallel.one_blas_thread():
            os._exit(0)
    free.set()
    holder.join(10)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
