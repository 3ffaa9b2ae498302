"""Spreading work over the cores: one pool of Python threads, BLAS held to one thread while it works.

Kernels are compiled without the GIL and work on a range of neurons, so plain threads are enough. Compared with numba's
own ``parallel=True`` this compiles several times faster, survives ``fork``, may be called from several threads at once
(grid searches do), and leaves no OpenBLAS worker spinning on a core that a kernel needs.

Neurons are always cut into the same *ranges*, whatever the number of threads, and what ranges add up is summed in span
order: results do not depend on the number of cores.
"""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from functools import cache
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

MAX_RANGES = 8
_SMALLEST_RANGE = 128


def thread_count() -> int:
    """Threads to use: ``OMP_NUM_THREADS`` if set (joblib sets it in its workers), else the cores we may run on."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ranges(count: int) -> list[tuple[int, int]]:
    """Cut ``range(count)`` into at most ``MAX_RANGES`` contiguous ranges; a function of ``count`` alone."""
    parts = max(1, min(MAX_RANGES, count // _SMALLEST_RANGE))
    return [(count * k // parts, count * (k + 1) // parts) for k in range(parts)]


def parallel_map(function: Callable[[Task], Result], tasks: Iterable[Task], *, uses_blas: bool = False) -> list[Result]:
    """Call ``function`` on every task, on all cores, and return the results in the order of the tasks.

    With ``uses_blas`` each task gets one BLAS thread, the others being busy with the other tasks.
    """
    tasks = list(tasks)
    with one_blas_thread() if uses_blas else nullcontext():
        helpers = min(thread_count(), len(tasks)) - 1
        if helpers < 1:
            return [function(task) for task in tasks]
        results: list[Any] = [None] * len(tasks)
        waiting, lock = iter(range(len(tasks))), threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    k = next(waiting, None)
                if k is None:
                    return
                results[k] = function(tasks[k])

        # The caller works, too: it is awake and on a core already. Threads that only it wakes often start on one core
        # together, and wait milliseconds for each other before they are moved apart. Each helper has the caller's
        # context: NumPy keeps there which warnings it gives.
        pool = _pool(os.getpid(), thread_count())
        others = [pool.submit(copy_context().run, work) for _ in range(helpers)]
        try:
            work()
        finally:  # when one fails, or Ctrl-C comes, nobody may go on writing behind the caller's back
            with lock:
                for _ in waiting:
                    pass
            others = [other for other in others if not other.cancel()]  # no need for those that have not begun
            wait(others)
        for other in others:
            other.result()
        return results


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a forked child must not use its parent's pool
    return ThreadPoolExecutor(threads, thread_name_prefix="fireset")


@cache
def _controller():
    import scipy.linalg  # noqa: F401 - scipy brings its own BLAS; it must be loaded to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


class _BlasLimit:
    """Counts who is inside, so that the BLAS setting comes back when the last one leaves.

    The setting is made and taken back in one thread of its own: threadpoolctl heeds only the thread that made it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clerk = ThreadPoolExecutor(1, thread_name_prefix="fireset-blas")
        self.inside = 0
        self.limit: Any = None

    def enter(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                self.clerk.submit(self._make).result()

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self.clerk.submit(self._take_back).result()

    def _make(self) -> None:
        self.limit = _controller().limit(limits=1, user_api="blas")
        self.limit.__enter__()

    def _take_back(self) -> None:
        self.limit.__exit__(None, None, None)


_CREATION = threading.Lock()  # of two limits made at once, the second would take the first one's for the setting


@cache
def _blas_limit(process: int) -> _BlasLimit:  # noqa: ARG001 - as for the pool
    return _BlasLimit()


@contextmanager
def one_blas_thread():
    """Hold BLAS to one thread for a while. Cheap inside another such block, a third of a millisecond outside."""
    with _CREATION:
        limit = _blas_limit(os.getpid())
    limit.enter()
    try:
        yield
    finally:
        limit.leave()
