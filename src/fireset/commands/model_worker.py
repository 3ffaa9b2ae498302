"""A process that fits models, so that one that takes too long can be stopped, whatever it is doing.

It is started afresh (spawned): a fork of a process with threads, which compiled kernels have, may hang. Ctrl-C is for
the parent alone, which stops its worker.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_all_start_methods, get_context, set_start_method
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from fireset.commands.model_contenders import Fit, fit_and_score, warm_up
from fireset.tables.cells import one_line

_LOOK = 0.05  # seconds between two looks at Ctrl-C


class Stopped(Exception):  # noqa: N818 - no error: time has run out, or Ctrl-C
    """The work was stopped before it ended."""


class FailedFit(Exception):  # noqa: N818
    """The model refused, or broke; the text says how."""


class ModelWorker:
    """Fits models of one table in another process; for a ``with`` block, at whose end the process has gone."""

    def __init__(self, task: str, X: np.ndarray, y: np.ndarray, interrupted: threading.Event):
        self._table = (task, X, y)
        self._interrupted = interrupted
        self._process: Any = None
        self._pipe: Connection | None = None

    def __enter__(self) -> "ModelWorker":
        return self

    def __exit__(self, *_) -> None:
        self._end()

    @property
    def interrupted(self) -> bool:
        return self._interrupted.is_set()

    def warm_up(self, seconds: float) -> None:
        """Have fireset's kernels compiled."""
        self._ask(("warm up",), seconds)

    def fit(self, name: str, train_rows: np.ndarray, test_rows: np.ndarray, seed: int, seconds: float) -> Fit:
        """One fit; raises ``Stopped`` when it takes longer than these seconds, ``FailedFit`` when it fails."""
        return self._ask((name, train_rows, test_rows, seed), seconds)

    def _ask(self, order: tuple, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        if self._process is None:
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send(order)
            while not self._pipe.poll(_LOOK):
                if self._interrupted.is_set() or time.monotonic() > deadline:
                    self._end()
                    raise Stopped
            answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            assert self._process is not None
            self._process.join(1.0)
            code = self._process.exitcode
            self._end()
            raise FailedFit(f"its process ended by itself (exit code {code}), perhaps for want of memory") from error
        except BaseException:
            self._end()
            raise
        if isinstance(answer, str):
            raise FailedFit(answer)
        return answer

    def _start(self) -> None:
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, *self._table), daemon=True)
        blocked = hasattr(signal, "pthread_sigmask")
        if blocked:  # the child inherits it: Ctrl-C reaches it at no moment
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            with _patient_threads():
                self._process.start()
        finally:
            if blocked:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            other.close()

    def _end(self) -> None:
        if self._process is None:
            return
        assert self._pipe is not None
        self._pipe.close()
        self._process.kill()
        self._process.join()
        self._process.close()
        self._process = self._pipe = None


@contextmanager
def _patient_threads() -> Iterator[None]:
    """Threads of OpenMP, in processes started meanwhile, do not spin while they wait.

    On a machine that has other work, spinning makes gradient boosting ten times slower and more. It is read when a
    process starts.
    """
    before = os.environ.get("OMP_WAIT_POLICY")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_WAIT_POLICY"]


def _serve(pipe: Connection, task: str, X: np.ndarray, y: np.ndarray) -> None:
    """The other process: an order, an answer, until the parent has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "fork" in get_all_start_methods():
        # Nothing is started here; but locks made for "spawn", such as numba's, have names, which a killed process
        # leaves behind, and of which Python then warns.
        set_start_method("fork", force=True)
    with suppress(EOFError, BrokenPipeError):
        while True:
            order = pipe.recv()
            try:
                answer = (
                    warm_up(task, X, y)
                    if order == ("warm up",)
                    else fit_and_score(order[0], task, X, y, *order[1:3], seed=order[3])
                )
            except Exception as error:
                answer = f"{type(error).__name__}: {one_line(error)}"
            pipe.send(answer)
