"""Participants of a comparison of engines: the engines of fireset, and dense gradient steps of other libraries.

All have the methods ``compile``, ``start``, ``step`` and ``weights``, so that they are timed in the same way.
"""

import ctypes
import gc
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from fireset._util.errors import InputError
from fireset._util.system_memory import PeakMemory, available_bytes, resident_bytes
from fireset.engines.base import Engine
from fireset.engines.registry import create, engine_class
from fireset.network import ShiftedReLUNetwork
from fireset.training.loop import Trainer
from fireset.training.precompile import compile_kernels
from fireset.training.progress import Progress

MAX_RECALL_ROWS = 200  # recall is measured on at most so many rows: all rows would cost a dense forward pass per step
MEMORY_STEPS = 2  # steps during which the peak memory is measured
_MAX_LEARNING_RATE_ROWS = 4000
_AUTOGRAD_ARRAYS = 4  # (n, m) arrays in memory at a time: pre-activations, activations, and a gradient of each

Kind = Literal["dense", "preprocessed", "approximate", "simulated"]


@dataclass(frozen=True)
class EngineProblem:
    """The input of all contenders: rows X (n, d) of norm 1, targets y (n, c), the initial network, the step size."""

    X: np.ndarray
    y: np.ndarray
    network: ShiftedReLUNetwork
    learning_rate: float


@dataclass(frozen=True)
class TimedStep:
    """Measurements of one gradient step."""

    loss: float  # before the step
    seconds: float
    active_pairs: int | None
    inner_products: int
    recall: float | None


class EngineContender:
    """An engine of fireset that runs plain gradient descent at a fixed learning rate, as ``train`` does."""

    is_engine = True

    def __init__(self, name: str):
        self.name = name
        self._class = engine_class(name)
        self.kind: Kind = _kind(self._class)
        self.preprocesses = self._class.preprocesses

    def compile(self, problem: EngineProblem) -> None:
        """Compile the kernels that the problem needs."""
        index = create(self.name).index_kind(problem.network, len(problem.X))
        several = problem.network.n_outputs > 1
        compile_kernels(self.name, problem.network.dtype, index, several_outputs=several)

    def start(self, problem: EngineProblem) -> None:
        """Run the preprocessing, on a copy of the network."""
        self._network = problem.network.copy()
        self._trainer = Trainer(
            self._network, problem.X, problem.y, engine=create(self.name), learning_rate=problem.learning_rate, tol=0
        )
        self._recall_rows = np.sort(np.random.default_rng(0).permutation(len(problem.X))[:MAX_RECALL_ROWS])

    def step(self) -> TimedStep:
        self._recall, self._recall_seconds = None, 0.0
        work = self._trainer.engine.work
        before, started = work.inner_products, time.perf_counter()
        record = self._trainer.step([self._measure_recall] if self.kind == "approximate" else [])
        seconds = time.perf_counter() - started - self._recall_seconds
        return TimedStep(record.loss, seconds, record.active_pairs, work.inner_products - before, self._recall)

    def _measure_recall(self, progress: Progress) -> None:
        """Measure recall between forward and backward pass; ``step`` subtracts the time."""
        started = time.perf_counter()
        self._recall = progress.engine.recall(self._recall_rows)
        self._recall_seconds = time.perf_counter() - started

    def weights(self) -> np.ndarray:
        return self._network.weights


class PeerContender:
    """The dense gradient step of another library. Its set-up counts as compilation, not as preprocessing."""

    is_engine = False
    kind: Kind = "dense"
    preprocesses = False

    def __init__(self, name: str):
        self.name = name
        self._peer: Any = None

    def compile(self, problem: EngineProblem) -> None:
        needed = _AUTOGRAD_ARRAYS * len(problem.X) * problem.network.width * problem.network.dtype.itemsize
        available = available_bytes()
        if needed > available:
            raise InputError(f"needs about {needed / 1e9:.1f} GB for all pairs; {available / 1e9:.1f} GB are free")
        self.start(problem)
        self._peer.step()

    def start(self, problem: EngineProblem) -> None:
        self._pairs = len(problem.X) * problem.network.width
        self._peer = None  # frees the previous one before the next is allocated
        self._peer = PEERS[self.name](problem.network, problem.X, problem.y, problem.learning_rate)

    def step(self) -> TimedStep:
        started = time.perf_counter()
        loss = self._peer.step()
        return TimedStep(loss, time.perf_counter() - started, None, self._pairs, None)

    def weights(self) -> np.ndarray:
        return self._peer.weights()


Contender = EngineContender | PeerContender


def make_contender(name: str) -> Contender:
    return PeerContender(name) if name in PEERS else EngineContender(name)


def _kind(engine: type[Engine]) -> Kind:
    if engine.simulated:  # the time of a simulation is not the time of the algorithm
        return "simulated"
    if not engine.exact:
        return "approximate"
    return "preprocessed" if engine.preprocesses else "dense"


class PyTorch:
    """Full-batch gradient descent with autograd over all pairs.

    ``step`` returns the loss ½ Σ (u − y)² before the step. The network is not changed; ``weights`` is a copy of W.
    """

    name = "PyTorch autograd"
    package = "torch"

    def __init__(self, network, X, y, learning_rate):
        import torch

        self.torch = torch
        self.W = torch.tensor(network.weights, requires_grad=True)
        self.X, self.y, self.output_weights = (torch.tensor(a) for a in (X, y.astype(X.dtype), network.output_weights))
        self.b, self.learning_rate, self.divisor = network.threshold, learning_rate, network.divisor

    def step(self) -> float:
        torch = self.torch
        u = torch.relu(self.X @ self.W.T - self.b) @ self.output_weights / self.divisor
        loss = 0.5 * ((u - self.y) ** 2).sum()
        loss.backward()
        with torch.no_grad():
            self.W -= self.learning_rate * self.W.grad
            self.W.grad = None
        return loss.item()

    def weights(self) -> np.ndarray:
        return self.W.detach().numpy().copy()


class Jax:
    """Full-batch gradient descent with ``jit(value_and_grad)`` over all pairs; compiled by the constructor.

    ``step`` and ``weights`` are those of ``PyTorch``.
    """

    name = "JAX jit"
    package = "jax"

    def __init__(self, network, X, y, learning_rate):
        import jax  # pyright: ignore[reportMissingImports] - an optional package
        import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

        if network.dtype == np.float64:
            jax.config.update("jax_enable_x64", True)  # otherwise JAX converts all arrays to float32
        b, divisor = network.threshold, network.divisor
        X, y, output_weights = (jnp.asarray(a) for a in (X, y.astype(X.dtype), network.output_weights))

        def loss(W):
            return 0.5 * jnp.sum((jnp.maximum(X @ W.T - b, 0) @ output_weights / divisor - y) ** 2)

        @jax.jit
        def step(W):
            value, gradient = jax.value_and_grad(loss)(W)
            return W - learning_rate * gradient, value

        self.W = jnp.asarray(network.weights)
        self._step = step.lower(self.W).compile()  # pyright: ignore[reportFunctionMemberAccess]

    def step(self) -> float:
        self.W, value = self._step(self.W)
        return float(value)

    def weights(self) -> np.ndarray:
        return np.array(self.W)


PEERS = {"pytorch": PyTorch, "jax": Jax}


def installed_peers() -> list[str]:
    """Return the names of the peers whose package is installed."""
    return [name for name, peer in PEERS.items() if find_spec(peer.package) is not None]


def peak_memory(contender: Contender, problem: EngineProblem) -> float | None:
    """Return the peak of resident memory that ``start`` and two steps add, in MB, a copy of W included.

    None where it cannot be measured: only Linux lets a process reset its high-water mark.
    """
    _release_free_memory()
    before, peak = resident_bytes(), PeakMemory()
    if not peak.reset():
        return None
    contender.start(problem)
    for _ in range(MEMORY_STEPS):
        contender.step()
    most = peak.read()
    return None if most is None else max(0.0, (most - before) / 1e6)


def _release_free_memory() -> None:
    """Return free memory to the system. The allocator would otherwise reuse it without a trace in the measurement."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
        if trim is not None:
            trim(0)


def fixed_learning_rate(network: ShiftedReLUNetwork, X: np.ndarray) -> float:
    """Return η = 1/(2 λ_max) of the tangent kernel, half of what ``learning_rate="auto"`` starts with.

    Training can reduce its learning rate when the loss grows. A comparison cannot, and λ_max grows with the number of
    active pairs; hence the factor 2. Of many rows a regular sample is used: λ_max of k of n rows is about k/n of that
    of all rows.
    """
    from fireset.engines.tangent import largest_eigenvalue

    sample = X[:: -(-len(X) // _MAX_LEARNING_RATE_ROWS)]
    top = largest_eigenvalue(sample, network.output_weights, network.fire_sets(sample)) * len(X) / len(sample)
    return 0.5 / top if top > 0 else 1.0
