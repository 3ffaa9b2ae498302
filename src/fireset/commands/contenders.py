"""Who takes part in a comparison: engines of fireset and dense peers, behind one face, timed alike."""

import ctypes
import gc
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.system_memory import PeakMemory, available_bytes, resident_bytes
from fireset.commands.peers import PEERS
from fireset.commands.verdict import Kind
from fireset.engines.base import Engine
from fireset.engines.registry import create, engine_class
from fireset.network import ShiftedReLUNetwork
from fireset.training.loop import Trainer
from fireset.training.precompile import compile_kernels
from fireset.training.progress import Progress

RECALL_ROWS = 200  # on which recall is measured, at most; looking at every pair would cost a dense forward pass each
_RATE_ROWS = 4000  # from which the step size is chosen, at most
_PEER_ARRAYS = 4  # n × m arrays that autograd has at a time: pre-activations, activations, and a gradient for each
WARM_STEPS = 2


@dataclass(frozen=True)
class Problem:
    """What all contenders are given: unit rows X (n, d), targets y (n, c), the first network and the step size."""

    X: np.ndarray
    y: np.ndarray
    network: ShiftedReLUNetwork
    rate: float


@dataclass(frozen=True)
class TimedStep:
    """What one step saw and took."""

    loss: float  # before the step
    seconds: float
    active_pairs: int | None
    inner_products: int
    recall: float | None


class EngineContender:
    """An engine of fireset, stepped as ``train`` steps it: plain descent at a fixed rate."""

    def __init__(self, name: str):
        self.name = name
        self._class = engine_class(name)
        self.kind: Kind = _kind(self._class)
        self.preprocesses = self._class.preprocesses

    def compile(self, problem: Problem) -> None:
        index = create(self.name).index_kind(problem.network, len(problem.X))
        several = problem.network.n_outputs > 1
        compile_kernels(self.name, problem.network.dtype, index, several_outputs=several)

    def start(self, problem: Problem) -> None:
        """The preprocessing, on a network of its own."""
        self._network = problem.network.copy()
        self._trainer = Trainer(
            self._network, problem.X, problem.y, engine=create(self.name), learning_rate=problem.rate, tol=0
        )
        self._recall_rows = np.sort(np.random.default_rng(0).permutation(len(problem.X))[:RECALL_ROWS])

    def step(self) -> TimedStep:
        self._recall, self._recall_seconds = None, 0.0
        work = self._trainer.engine.work
        before, started = work.inner_products, time.perf_counter()
        record = self._trainer.step([self._measure_recall] if self.kind == "approximate" else [])
        seconds = time.perf_counter() - started - self._recall_seconds
        return TimedStep(record.loss, seconds, record.active_pairs, work.inner_products - before, self._recall)

    def _measure_recall(self, progress: Progress) -> None:
        """Between the passes, off the clock."""
        started = time.perf_counter()
        self._recall = progress.engine.recall(self._recall_rows)
        self._recall_seconds = time.perf_counter() - started

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
        available = available_bytes()
        if needed > available:
            raise InputError(f"needs about {needed / 1e9:.1f} GB for all pairs; {available / 1e9:.1f} GB are free")
        self.start(problem)
        self._peer.step()

    def start(self, problem: Problem) -> None:
        self._pairs = len(problem.X) * problem.network.width
        self._peer = None  # of two at a time, one would be waste
        self._peer = PEERS[self.name](problem.network, problem.X, problem.y, problem.rate)

    def step(self) -> TimedStep:
        started = time.perf_counter()
        loss = self._peer.step()
        return TimedStep(loss, time.perf_counter() - started, None, self._pairs, None)

    def weights(self) -> np.ndarray:
        return self._peer.weights()


Contender = EngineContender | PeerContender


def _kind(engine: type[Engine]) -> Kind:
    if engine.simulated:  # what a simulation takes on this machine says nothing about the algorithm
        return "simulated"
    if not engine.exact:
        return "approximate"
    return "preprocessed" if engine.preprocesses else "dense"


def make_contender(name: str) -> Contender:
    return PeerContender(name) if name in PEERS else EngineContender(name)


def peak_memory(contender: Contender, problem: Problem) -> float | None:
    """Megabytes that starting and two steps add to the process at most, a copy of W included; None where unknown.

    From the kernel's high-water mark of resident memory, reset before. Only Linux has it.
    """
    _give_back_memory()
    before, peak = resident_bytes(), PeakMemory()
    if not peak.reset():
        return None
    contender.start(problem)
    for _ in range(WARM_STEPS):
        contender.step()
    most = peak.read()
    return None if most is None else max(0.0, (most - before) / 1e6)


def _give_back_memory() -> None:
    """What earlier contenders have freed, the allocator may still hold, and would hand out uncounted."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)


def steady_rate(network: ShiftedReLUNetwork, X: np.ndarray) -> float:
    """η = 1/(2 λ_max) of the fire-set kernel, half of what ``learning_rate="auto"`` starts with; the same for all.

    Training may turn back when the loss has grown; here everyone keeps to one rate, while λ_max grows with what fires.
    Of many rows some are looked at, spread over the table: λ_max of k of n rows is about k/n of that of all.
    """
    from fireset.engines.tangent import largest_eigenvalue

    some = X[:: -(-len(X) // _RATE_ROWS)]
    top = largest_eigenvalue(some, network.output_weights, network.fire_sets(some)) * len(X) / len(some)
    return 0.5 / top if top > 0 else 1.0
