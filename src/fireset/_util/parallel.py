"""Run tasks on all cores: one pool of Python threads, with BLAS limited to one thread while tasks use it.

Kernels release the GIL and process a range of neurons, so Python threads suffice. Compared with ``parallel=True`` of
numba this compiles several times faster, survives ``fork``, may be called from several threads at once (as in grid
searches), and leaves no OpenBLAS thread spinning on a core that a kernel needs.

Neurons are divided into the same *ranges* for any number of threads, and the sums of ranges are added in the order of
the ranges: results do not depend on the number of cores.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from functools import cache
from math import ceil, isfinite
from typing import Any, TypeVar

from fireset._util.control_groups import processor_limit

Task = TypeVar("Task")
Result = TypeVar("Result")

MAX_RANGES = 8
_MIN_RANGE = 128


def thread_count() -> int:
    """Return the number of threads: ``OMP_NUM_THREADS`` if set (joblib sets it in its workers), else the processors.

    Processors are limited by the affinity mask and by the quota of the control group: the system suspends threads
    beyond the quota while others wait for them. Of a list such as "4,2", which OpenMP uses for nested parallel regions,
    the first number is used.
    """
    setting = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if setting.isdecimal() and int(setting) > 0:
        return int(setting)
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(processors, _quota(os.getpid())))


@cache
def _quota(process: int) -> int:  # noqa: ARG001 - a child may be moved to another control group
    limit = processor_limit()
    return ceil(limit) if isfinite(limit) else sys.maxsize


def ranges(count: int) -> list[tuple[int, int]]:
    """Divide ``range(count)`` into at most ``MAX_RANGES`` contiguous ranges, which depend on ``count`` only."""
    parts = max(1, min(MAX_RANGES, count // _MIN_RANGE))
    return [(count * k // parts, count * (k + 1) // parts) for k in range(parts)]


def parallel_map(function: Callable[[Task], Result], tasks: Iterable[Task], *, uses_blas: bool = False) -> list[Result]:
    """Call ``function`` on every task, on all cores, and return the results in the order of the tasks.

    With ``uses_blas`` each task uses one BLAS thread, since the other cores run other tasks.
    """
    tasks = list(tasks)
    with one_blas_thread() if uses_blas else nullcontext():
        helpers = min(thread_count(), len(tasks)) - 1
        if helpers < 1:
            return [function(task) for task in tasks]
        results: list[Any] = [None] * len(tasks)
        remaining, lock = iter(range(len(tasks))), threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    k = next(remaining, None)
                if k is None:
                    return
                results[k] = function(tasks[k])

        # The calling thread runs tasks, too: it has a core already. If it only started helpers, they would often share
        # that core for milliseconds before the system moves them. Each helper runs in the caller's context, which has
        # the error settings of NumPy (``np.errstate``).
        pool = _pool(os.getpid(), thread_count())
        helpers_at_work = [pool.submit(copy_context().run, work) for _ in range(helpers)]
        try:
            work()
        finally:  # after an error or Ctrl-C no task may write while the caller cleans up
            with lock:
                for _ in remaining:
                    pass
            helpers_at_work = [
                helper for helper in helpers_at_work if not helper.cancel()
            ]  # keep those that have started
            wait(helpers_at_work)
        for helper in helpers_at_work:
            helper.result()
        return results


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a forked child must not use its parent's pool
    return ThreadPoolExecutor(threads, thread_name_prefix="fireset")


@cache
def _blas_libraries() -> list[Any]:
    """Find the BLAS libraries. Setting their threads directly takes 1 µs; the limits of threadpoolctl take 20."""
    import scipy.linalg  # noqa: F401 - loads the BLAS of SciPy, which is not found otherwise
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas").lib_controllers


def _set_threads(library: Any, threads: int) -> None:
    """Set the number of threads of a BLAS library for the whole process.

    From version 3.8 on threadpoolctl silently ignores all threads but the first that has set a number for OpenBLAS. A
    fit in another thread would run without the limit, or would not restore it. ``_BlasLimit`` counts its callers and
    does not need this rule.
    """
    getattr(library, "_real_set_num_threads", library.set_num_threads)(threads)


class _BlasLimit:
    """Limit BLAS to one thread while at least one caller needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callers = 0
        self._before: list[tuple[Any, int]] = []  # limited libraries, and their threads before

    def enter(self) -> None:
        with self._lock:
            self._callers += 1
            if self._callers == 1:
                self._before = [(library, library.get_num_threads()) for library in _blas_libraries()]
                for library, _ in self._before:
                    _set_threads(library, 1)

    def leave(self) -> None:
        with self._lock:
            self._callers -= 1
            if self._callers == 0:
                for library, threads in self._before:
                    _set_threads(library, threads)


# If two limits were created at once, the second would restore the limit of the first.
_CREATION_LOCK = threading.Lock()
if hasattr(os, "register_at_fork"):  # a lock that another thread holds at a fork is never released in the child
    _RELEASE = {"after_in_parent": _CREATION_LOCK.release, "after_in_child": _CREATION_LOCK.release}
    os.register_at_fork(before=_CREATION_LOCK.acquire, **_RELEASE)


@cache
def _blas_limit(process: int) -> _BlasLimit:  # noqa: ARG001 - a forked child must not use its parent's thread
    return _BlasLimit()


@contextmanager
def one_blas_thread():
    """Limit BLAS to one thread within a block or, as a decorator, a function. Costs a few microseconds.

    The limit holds for the process. Without it, the same product has other bits beside a fit in another thread.

    Large factorizations use the threads of this module instead (``cholesky.py``): BLAS threads wait for each other by
    spinning, which is slow on a busy machine.
    """
    with _CREATION_LOCK:
        limit = _blas_limit(os.getpid())
    limit.enter()
    try:
        yield
    finally:
        limit.leave()
