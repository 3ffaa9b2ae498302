"""The models of ``fireset compare --models``, and the process that fits them.

Models are scikit-learn's with common defaults, and fireset's with its own. They are fitted in a separate process, which
can be killed when a fit takes too long. The process is spawned: a fork of a process with threads, which compiled
kernels have, may hang.
"""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_all_start_methods, get_context, set_start_method
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from fireset._util.parallel import thread_count
from fireset.commands.scores import scores
from fireset.estimators import estimator_for
from fireset.tables.cells import one_line

_COMPILE_ROWS = 60
_POLL_SECONDS = 0.05  # between two checks for Ctrl-C


@dataclass(frozen=True)
class Fit:
    """Times and scores of one fit.

    ``row_errors`` (test rows,) is 1 for a wrong class, or the squared error divided by the variance of the target.
    """

    rows: int
    fit_seconds: float
    predict_seconds: float
    scores: dict[str, float]
    row_errors: np.ndarray = field(repr=False)

    @property
    def seconds(self) -> float:
        return self.fit_seconds + self.predict_seconds


@dataclass(frozen=True)
class ModelKind:
    """A model: its label, and the exponent p of its cost n^p in the number of rows n."""

    label: str
    cost_exponent: float
    make: Callable[[str, int], Any]
    article: str = "the "


def _linear(task: str, seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge

    return _standardized(LogisticRegression(max_iter=1000, random_state=seed) if task == "classification" else Ridge())


def _svm(task: str, seed: int) -> Any:
    from sklearn.svm import SVC, SVR

    return _standardized(SVC(random_state=seed)) if task == "classification" else _scaled_target(SVR())


def _mlp(task: str, seed: int) -> Any:
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    if task == "classification":
        return _standardized(MLPClassifier(max_iter=300, random_state=seed))
    return _scaled_target(MLPRegressor(max_iter=300, random_state=seed))


def _boosting(task: str, seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    cls = HistGradientBoostingClassifier if task == "classification" else HistGradientBoostingRegressor
    return cls(random_state=seed)


def _forest(task: str, seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    cls = RandomForestClassifier if task == "classification" else RandomForestRegressor
    return cls(random_state=seed, n_jobs=thread_count())


def _standardized(model: Any) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), model)


def _scaled_target(model: Any) -> Any:
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import StandardScaler

    return TransformedTargetRegressor(_standardized(model), transformer=StandardScaler())


# In the order of fitting. Time that a model does not use is shared among the later ones; fireset is last.
MODELS = {
    "linear": ModelKind("linear model", 1.0, _linear),
    "svm": ModelKind("support vector machine", 2.0, _svm),
    "boosting": ModelKind("gradient boosting", 1.0, _boosting, article=""),
    "forest": ModelKind("random forest", 1.1, _forest),
    "mlp": ModelKind("MLP", 1.0, _mlp),
    "fireset": ModelKind("fireset", 1.5, lambda task, seed: estimator_for(task, random_state=seed), article=""),
}


def compile_fireset(task: str, X: np.ndarray, y: np.ndarray) -> None:
    """Compile fireset's kernels by a fit on a few rows that include all classes."""
    first = np.unique(y, return_index=True)[1] if task == "classification" else np.empty(0, np.int64)
    rows = np.union1d(first, np.arange(min(_COMPILE_ROWS, len(y))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator_for(task, random_state=0).fit(X[rows], y[rows]).predict(X[:2])


def fit_and_score(
    name: str, task: str, X: np.ndarray, y: np.ndarray, train_rows: np.ndarray, test_rows: np.ndarray, seed: int
) -> Fit:
    """Fit a model on ``train_rows`` and score it on ``test_rows``."""
    model = MODELS[name].make(task, seed)
    with warnings.catch_warnings():  # a model that has not converged has a lower score, which is warning enough
        warnings.simplefilter("ignore")
        started = time.perf_counter()
        model.fit(X[train_rows], y[train_rows])
        fitted = time.perf_counter()
        predictions = model.predict(X[test_rows])
        predicted = time.perf_counter()
        y_test = y[test_rows]
        found = {k: v for k, v in scores(task, y_test, predictions).items() if isinstance(v, float)}
        if task == "classification":
            errors = (y_test != predictions).astype(float)
            if hasattr(model, "predict_proba"):
                found["log_loss"] = _log_loss(model, X[test_rows], y_test)
        else:
            variance = float(np.var(y_test))
            errors = (y_test - predictions) ** 2 / (variance if variance > 0 else 1.0)
    return Fit(len(train_rows), fitted - started, predicted - fitted, found, errors)


def _log_loss(model: Any, X: np.ndarray, y: np.ndarray) -> float:
    """Return the log loss; a class that is not among the training rows has probability 0, which is clipped."""
    from sklearn.metrics import log_loss

    labels = np.unique([0, 1, *model.classes_, *y])
    probabilities = np.zeros((len(y), len(labels)))
    probabilities[:, np.searchsorted(labels, model.classes_)] = model.predict_proba(X)
    return float(log_loss(y, probabilities, labels=labels))


class FitStopped(Exception):  # noqa: N818 - not an error: the time is over, or Ctrl-C
    """The fit was stopped before it ended."""


class FitFailed(Exception):  # noqa: N818
    """The fit raised an error, or its process died; the text gives the cause."""


class ModelWorker:
    """Fits models of one table in another process; a context manager that kills the process at its end."""

    def __init__(self, task: str, X: np.ndarray, y: np.ndarray, interrupted: threading.Event):
        self._table = (task, X, y)
        self._interrupted = interrupted
        self._process: Any = None
        self._pipe: Connection | None = None

    def __enter__(self) -> "ModelWorker":
        return self

    def __exit__(self, *_) -> None:
        self._kill()

    @property
    def interrupted(self) -> bool:
        return self._interrupted.is_set()

    def compile_fireset(self, seconds: float) -> None:
        """Compile fireset's kernels; raises as ``fit`` does."""
        self._request(None, seconds)

    def fit(self, name: str, train_rows: np.ndarray, test_rows: np.ndarray, seed: int, seconds: float) -> Fit:
        """Fit and score a model; raises ``FitStopped`` after ``seconds``, ``FitFailed`` on an error."""
        return self._request((name, train_rows, test_rows, seed), seconds)

    def _request(self, request: tuple | None, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        if self._process is None:
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send(request)
            while not self._pipe.poll(_POLL_SECONDS):
                if self._interrupted.is_set() or time.monotonic() > deadline:
                    self._kill()
                    raise FitStopped
            response = self._pipe.recv()
        except (EOFError, OSError) as error:
            assert self._process is not None
            self._process.join(1.0)
            code = self._process.exitcode
            self._kill()
            raise FitFailed(f"its process ended by itself (exit code {code}), possibly out of memory") from error
        except BaseException:
            self._kill()
            raise
        if isinstance(response, str):
            raise FitFailed(response)
        return response

    def _start(self) -> None:
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, *self._table), daemon=True)
        blocked = hasattr(signal, "pthread_sigmask")
        if blocked:  # inherited by the child: Ctrl-C is handled by the parent alone
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            with _passive_openmp():
                self._process.start()
        finally:
            if blocked:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            other.close()

    def _kill(self) -> None:
        if self._process is None:
            return
        assert self._pipe is not None
        self._pipe.close()
        self._process.kill()
        self._process.join()
        self._process.close()
        self._process = self._pipe = None


@contextmanager
def _passive_openmp() -> Iterator[None]:
    """Make OpenMP threads of processes started in this context sleep while they wait.

    On a busy machine spinning threads make gradient boosting ten times slower. The variable is read at process start.
    """
    before = os.environ.get("OMP_WAIT_POLICY")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_WAIT_POLICY"]


def _serve(pipe: Connection, task: str, X: np.ndarray, y: np.ndarray) -> None:
    """Answer requests until the parent closes the pipe; runs in the worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "fork" in get_all_start_methods():
        # This process starts no others. Under "spawn", however, locks such as numba's have names in the system, which a
        # killed process leaves behind with a warning.
        set_start_method("fork", force=True)
    with suppress(EOFError, BrokenPipeError):
        while True:
            request = pipe.recv()
            try:
                if request is None:
                    response = compile_fireset(task, X, y)
                else:
                    name, train_rows, test_rows, seed = request
                    response = fit_and_score(name, task, X, y, train_rows, test_rows, seed)
            except Exception as error:
                response = f"{type(error).__name__}: {one_line(error)}"
            pipe.send(response)
