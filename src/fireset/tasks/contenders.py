"""Who takes part in a comparison: engines of fireset and dense peers, behind one face, timed alike."""

import ctypes
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fireset.engines import Step, create
from fireset.errors import InputError
from fireset.network import ShiftedReLUNetwork
from fireset.parallel import one_blas_thread
from fireset.peers import PEERS
from fireset.tasks.verdict import Kind
from fireset.warmup import compile_kernels

RECALL_ROWS = 200  # on which recall is measured, at most; looking at every pair would cost a dense forward pass each
_PEER_ARRAYS = 4  # n × m arrays that autograd has at a time: pre-activations, activations, and a gradient for each
_WARM_STEPS = 2


@dataclass(frozen=True)
class Problem:
    """What all contenders are given: unit rows X (n, d), targets y (n, c), the first network and the step size."""

    X: np.ndarray
    y: np.ndarray
    network: ShiftedReLUNetwork
    rate: float

    def copy_of_network(self) -> ShiftedReLUNetwork:
        return ShiftedReLUNetwork(self.network.weights.copy(), self.network.signs, self.network.threshold)


@dataclass(frozen=True)
class Taken:
    """What one step saw and took."""

    loss: float  # before the step
    seconds: float
    fired_pairs: int | None
    inner_products: int
    recall: float | None


class EngineContender:
    """An engine of fireset, stepped as ``train`` would step it."""

    preprocesses = True

    def __init__(self, name: str):
        self.name = name
        self._engine = create(name)
        self.kind: Kind = _kind(name, self._engine.exact)

    def compile(self, problem: Problem) -> None:
        compile_kernels(self.name, problem.network.dtype, self._engine.index_for(problem.network, len(problem.X)))

    def start(self, problem: Problem) -> None:
        """The preprocessing, on a network of its own."""
        self._problem = problem
        self._network = problem.copy_of_network()
        self._engine = create(self.name)
        measures = not self._engine.exact and hasattr(self._engine, "recall")
        rows = np.random.default_rng(0).permutation(len(problem.X))[:RECALL_ROWS]
        self._recall: Callable[[], float] | None = (
            (lambda: self._engine.recall(np.sort(rows))) if measures else None  # pyright: ignore[reportAttributeAccessIssue]
        )
        with one_blas_thread():
            self._engine.start(self._network, problem.X)

    def step(self) -> Taken:
        engine = self._engine
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
            work = replace(engine.work)
            started = time.perf_counter()
            residual = engine.forward() - self._problem.y
            seconds = time.perf_counter() - started
            fired = engine.work.fired_pairs
            recall = self._recall() if self._recall else None  # between the passes, off the clock
            started = time.perf_counter()
            engine.descend(residual, Step(self._problem.rate))
            seconds += time.perf_counter() - started
            loss = 0.5 * float(np.sum(residual**2))
        return Taken(loss, seconds, fired, engine.work.inner_products - work.inner_products, recall)

    def weights(self) -> np.ndarray:
        return self._network.weights


class PeerContender:
    """The dense step of another library. What it does before the first step is compiling, not preprocessing."""

    kind: Kind = "dense"
    preprocesses = False

    def __init__(self, name: str):
        self.name = name
        self._peer: Any = None

    def compile(self, problem: Problem) -> None:
        needed = _PEER_ARRAYS * len(problem.X) * problem.network.width * problem.network.dtype.itemsize
        available = available_memory()
        if available is not None and needed > available:
            raise InputError(f"needs about {needed / 1e9:.1f} GB for all pairs; {available / 1e9:.1f} GB are free")
        self.start(problem)
        self._peer.step()

    def start(self, problem: Problem) -> None:
        self._pairs = len(problem.X) * problem.network.width
        self._peer = None  # of two at a time, one would be waste
        self._peer = PEERS[self.name](problem.network, problem.X, problem.y, problem.rate)

    def step(self) -> Taken:
        started = time.perf_counter()
        loss = self._peer.step()
        return Taken(loss, time.perf_counter() - started, None, self._pairs, None)

    def weights(self) -> np.ndarray:
        return self._peer.weights()


Contender = EngineContender | PeerContender


def _kind(name: str, exact: bool) -> Kind:
    if name.startswith("quantum"):  # what a simulation takes on this machine says nothing about the algorithm
        return "simulated"
    if not exact:
        return "approximate"
    return "dense" if name == "dense" else "preprocessed"


def make_contender(name: str) -> Contender:
    return PeerContender(name) if name in PEERS else EngineContender(name)


def peak_memory(contender: Contender, problem: Problem) -> float | None:
    """Megabytes that starting and two steps add to the process at most, a copy of W included; None where unknown.

    From the kernel's high-water mark of resident memory, reset before. Only Linux has it.
    """
    _give_back_memory()
    before = _resident("VmRSS")
    if before is None or not _reset_high_water():
        return None
    contender.start(problem)
    for _ in range(_WARM_STEPS):
        contender.step()
    peak = _resident("VmHWM")
    return None if peak is None else max(0.0, (peak - before) / 1e6)


def available_memory() -> int | None:
    """Bytes that can be had without swapping, where the system says so."""
    return _proc("/proc/meminfo", "MemAvailable")


def _resident(name: str) -> int | None:
    return _proc("/proc/self/status", name)


def _proc(path: str, name: str) -> int | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:")), None)
    except OSError:
        return None


def _reset_high_water() -> bool:
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return False
    return True


def _give_back_memory() -> None:
    """What earlier contenders have freed, the allocator may still hold, and would hand out uncounted."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)
