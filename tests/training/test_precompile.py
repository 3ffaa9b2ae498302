"""Compilation of kernels: which are compiled for a solver, and in which process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fireset.kernels import compiling
from fireset.training import precompile

_FIRST_FIT = """
import numpy as np
from numba.core import event

class Listener(event.Listener):
    compiled = set()
    def on_start(self, started):
        self.compiled.add(started.data["dispatcher"].py_func.__name__)
    def on_end(self, ended):
        pass

event.register("numba:compile", Listener())
from fireset import ShiftedReLURegressor
from fireset.training import precompile
precompile._MAX_WAIT_SECONDS = 250  # of a busy machine
X = np.random.default_rng(0).standard_normal((60, 5))
ShiftedReLURegressor(width=200, engine="data", random_state=0).fit(X, X[:, 0] ** 2)
print(*sorted(Listener.compiled))
"""


@pytest.mark.slow
def test_a_second_process_compiles_the_kernels_of_tangent_products(tmp_path: Path):
    """The process that fits loads these kernels, and compiles neither them nor those of gradient steps."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "2"}
    run = subprocess.run(
        [sys.executable, "-c", _FIRST_FIT], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    compiled = set(run.stdout.split())
    assert {"forward", "fill"} <= compiled
    assert not {"backward", "take_step"} & compiled
    if len(os.sched_getaffinity(0)) > 1:
        assert not {"tangent", "count_common_bits", "count_common_pairs", "add_drifts", "mark_neurons"} & compiled
        assert not {"output_tangent_product", "listed_activations", "add_weighted_lists"} & compiled
        assert list(tmp_path.rglob("products-lists-float32-one.*.mark"))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands of the processes that would have been started."""
    commands: list[list[str]] = []

    class Process:
        def __init__(self, command: list[str], **_):
            commands.append(command)

        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None and len(commands) > 1:
                raise subprocess.TimeoutExpired("compile", timeout)
            return 0

        def kill(self) -> None:
            commands.append(["killed"])

    monkeypatch.setattr(precompile.subprocess, "Popen", Process)
    monkeypatch.setattr(precompile, "_BACKGROUND", {})
    monkeypatch.setattr(precompile, "thread_count", lambda: 2)
    return commands


def test_a_process_is_started_once_and_only_for_kernels_that_are_not_cached(started, monkeypatch):
    monkeypatch.setattr(compiling, "is_marked", lambda _: True)
    precompile.compile_in_background("float32", several_outputs=False)
    assert not started
    monkeypatch.setattr(compiling, "is_marked", lambda _: False)
    for _ in range(2):
        precompile.compile_in_background(np.float32, several_outputs=False)
    assert len(started) == 1
    assert "'float32', False" in started[0][-1]


@pytest.mark.parametrize(
    ("engine", "n_features", "kernels"),
    [("data", 2, "'lists'"), ("sums", 3, "'sums'"), ("sums", 2, None), ("dense", 3, None)],
)
def test_a_process_compiles_the_lists_or_an_engine_that_compiles_slowly(
    started, monkeypatch, engine, n_features, kernels
):
    monkeypatch.setattr(compiling, "is_marked", lambda _: False)
    precompile.compile_in_background("float32", several_outputs=True, engine=engine, n_features=n_features)
    assert [command[-1].endswith(f"c('float32', True, {kernels})") for command in started] == [True] * bool(kernels)


@pytest.mark.parametrize("condition", ["one core", "no cache", "frozen", "no process"])
def test_no_process_is_started_where_it_cannot_help(started, monkeypatch, condition):
    monkeypatch.setattr(compiling, "is_marked", lambda _: False)
    if condition == "one core":
        monkeypatch.setattr(precompile, "thread_count", lambda: 1)
    elif condition == "no cache":
        monkeypatch.setattr(compiling, "cache_is_shared", lambda: False)
    elif condition == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    else:

        def refuse(*_, **__):
            raise OSError("no more processes")

        monkeypatch.setattr(precompile.subprocess, "Popen", refuse)
    precompile.compile_in_background("float32", several_outputs=True)
    assert not started
    precompile._finish_background(np.dtype("float32"), several_outputs=True)  # nothing to wait for


def test_a_process_that_takes_too_long_is_ended(started, monkeypatch):
    monkeypatch.setattr(compiling, "is_marked", lambda _: False)
    precompile.compile_in_background("float32", several_outputs=False)
    precompile.compile_in_background("float32", several_outputs=True)
    precompile._finish_background(np.dtype("float32"), several_outputs=True)
    assert started[-1] == ["killed"]


INDEX_CALLS = {"sums": [], "data": [("report",)], "weights": [("report", "move")]}


@pytest.mark.parametrize("engine", INDEX_CALLS)
def test_methods_of_the_index(monkeypatch, engine):
    found = []
    monkeypatch.setattr(precompile, "compile_index", lambda _kind, _dtype, calls: found.append(calls))
    precompile.compile_kernels(engine, "float64", "partition-tree")
    assert found == INDEX_CALLS[engine]
    assert precompile.has_compiled()


@pytest.mark.parametrize(("n_features", "dimensions"), [(None, (1, 2)), (2, (2,)), (3, (1,)), (1, (1,))])
def test_dimensions_with_kernels_of_their_own(monkeypatch, n_features, dimensions):
    found = []
    monkeypatch.setattr(precompile, "_compile_engine", lambda _engine, _dtype, dimensions, *_: found.append(dimensions))
    precompile.compile_kernels("sums", "float64", n_features=n_features)
    assert found == [dimensions]
