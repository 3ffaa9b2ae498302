"""Shared by all tests: what is slow, Hypothesis profiles, threads, and problem makers."""

import functools
import gc
import os
import re
import sys
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

from fireset.__main__ import main
from fireset._util import parallel
from support.checks import CI

# Tests set the number of examples for `make test-slow` and `make test-all`; `make test` runs an eighth of them. Outside
# of CI they are drawn anew in every run, and failures are kept in .hypothesis and replayed.
_COMMON = settings(
    deadline=None,  # kernels compile on first use
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("all", _COMMON, derandomize=CI, max_examples=100)
settings.register_profile("few", _COMMON, derandomize=CI, max_examples=12)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or "few"
settings.load_profile(PROFILE)

# Tests that run side by side have a core each: two threads in each of two processes mostly wait for one another.
# ``test_parallel.py`` asks for several threads itself, and run without ``-n`` all tests use all cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

# torch is a large package, which not every Python has: `make test-python TORCH=` does without.
collect_ignore = [] if find_spec("torch") else ["distributed/test_distributed.py"]


def pytest_report_header() -> str:
    left_out = "; without torch, the tests of several workers are left out" if collect_ignore else ""
    return f"Hypothesis profile: {PROFILE}{left_out}"


def pytest_collection_finish() -> None:
    # Modules and test items live until the end. Without this each full garbage collection visits them.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = [item for item in items if isinstance(item, pytest.Function)]
    if PROFILE == "few":
        for function in {test.function for test in tests}:
            _ask_for_fewer_examples(function)
    sweeps: dict[str, list[pytest.Function]] = {}
    for test in tests:
        if test.get_closest_marker("sweep"):
            sweeps.setdefault(test.nodeid.partition("[")[0], []).append(test)
    for cases in sweeps.values():
        _thin(cases)


def _thin(cases: list[pytest.Function]) -> None:
    """Mark all as slow but one in ``every``, and those that it takes for each value of each parameter to occur.

    Values count only where there are several parameters: the cases of one are all different.
    """
    marker = cases[0].get_closest_marker("sweep")
    assert marker is not None
    every, seen = marker.kwargs["every"], set()
    # Without addresses, which differ between the processes that collect the tests.
    values = [
        {(name, re.sub(r"0x[0-9a-f]+", "", repr(value))) for name, value in case.callspec.params.items()}
        for case in cases
    ]
    several = len(values[0]) > 1
    for each in values[::every]:
        seen |= each
    for number, (case, each) in enumerate(zip(cases, values, strict=True)):
        if number % every == 0:
            continue
        if several and not each <= seen:
            seen |= each
        else:
            case.add_marker(pytest.mark.slow)


def _ask_for_fewer_examples(function) -> None:
    """Run an eighth of the examples of the test's own ``@settings``, which go before those of a profile."""
    # Not a public name, but the one that Hypothesis' pytest plugin reads; should it go, all examples are run.
    own = getattr(function, "_hypothesis_internal_use_settings", None)
    if own is not None and own.max_examples > 3:
        function._hypothesis_internal_use_settings = settings(own, max_examples=max(3, own.max_examples // 8))


@pytest.fixture(scope="session", autouse=True)
def _files_wait_for_no_disk():
    """Leave files to the operating system: no test cuts the power, and each wait takes milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session")
def _one_tree_of_commands():
    """Build the tree of commands once instead of for every command line."""
    import typer.main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture
def run(monkeypatch, capsys, _one_tree_of_commands):
    """Run a command in this process; gives exit code, standard output and standard error."""

    def command(*arguments) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fireset", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        shown = capsys.readouterr()
        code = end.value.code
        assert isinstance(code, int)
        return code, shown.out, shown.err

    return command


@pytest.fixture
def few_digits(monkeypatch):
    """Let the demonstration use 300 images instead of 1,797."""
    from sklearn.datasets import load_digits

    def load_some(**options):
        return tuple(array[:300] for array in load_digits(**options))

    monkeypatch.setattr("fireset.commands.demo.load_digits", load_some)


@pytest.fixture
def works(run):
    """Run a command that must succeed; gives standard output."""

    def command(*arguments) -> str:
        code, out, err = run(*arguments)
        assert code == 0, err
        return out

    return command


@pytest.fixture
def two_blas_threads():
    """Let BLAS use two threads, as at the start of a process on two cores."""
    before = [(library, library.get_num_threads()) for library in parallel._blas_libraries()]
    for library, _ in before:
        parallel._set_threads(library, 2)
    yield
    for library, threads in before:
        parallel._set_threads(library, threads)
