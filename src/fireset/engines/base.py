"""The contract between the training loop and the engines, and the registry of engines."""

from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from fireset.engines.cost import step_costs
from fireset.errors import InputError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from fireset.network import ShiftedReLUNetwork


@dataclass
class Step:
    """How the weights follow the gradient G = ∂L/∂W.

    ``V ← momentum·V + G``; then ``W ← W − rate·V``, or with ``nesterov`` ``W ← W − rate·(G + momentum·V)``.
    Without momentum this is the paper's ``W ← W − rate·G``. ``velocity`` is V, (m, d); it has no rows without momentum.
    """

    rate: float
    momentum: float = 0.0
    nesterov: bool = False
    velocity: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))

    def velocity_for(self, weights: np.ndarray) -> np.ndarray:
        """V, checked against the weights that it moves; without momentum, no rows."""
        if not self.momentum:
            return np.empty((0, weights.shape[1]), weights.dtype)
        if self.velocity.shape != weights.shape or self.velocity.dtype != weights.dtype:
            raise InputError(
                f"velocity must be {weights.dtype} of shape {weights.shape} with momentum, got "
                f"{self.velocity.dtype} of shape {self.velocity.shape}; start with zeros"
            )
        return self.velocity


@dataclass
class EngineWork:
    """What an engine did since it was made."""

    inner_products: int = 0  # pairs (neuron, sample) whose inner product was computed
    nodes_visited: int = 0  # of an index, a max-tree and the like
    fired_pairs: int = 0  # of those, pairs that fired in the last forward pass
    refreshes: int = 0  # neurons whose candidates were searched for anew
    audited: int = 0  # neurons whose fire sets were checked against every sample
    oracle_queries: int | None = None  # of the quantum engines: evaluations of the predicate, checks included
    missed_pairs: int | None = None  # of the quantum engines: pairs that fire and are not among the fired pairs


class Engine(Protocol):
    """Runs gradient steps on a network. ``exact`` engines have the dense engine's fire sets at every step."""

    name: str
    exact: bool
    work: EngineWork

    def index_for(self, network: "ShiftedReLUNetwork", n_samples: int) -> str | None:
        """The kind of half-space index that ``start`` will build on a problem of this size; None without one."""
        ...

    def start(self, network: "ShiftedReLUNetwork", X: np.ndarray) -> None:
        """The preprocessing. X is C-contiguous, in the network's precision; call again if the weights were replaced."""
        ...

    def forward(self) -> np.ndarray:
        """Predictions at the current weights, (n, c), float64."""
        ...

    def descend(self, residual: np.ndarray, step: Step) -> None:
        """One step of W along −∂L/∂W for residual = ∂L/∂u, (n, c), at the weights of the last ``forward``."""
        ...

    def fire_sets(self) -> "csr_array":
        """Boolean n × m sparse array at the current weights."""
        ...


class _Entry(NamedTuple):
    module: str
    factory: str
    exact: bool
    summary: str


_ENGINES = {
    "correlation": _Entry(
        "fireset.engines.correlation",
        "CorrelationEngine",
        True,
        "every inner product kept in max-trees (Alman et al. 2023), for comparison: n x m numbers in memory",
    ),
    "dense": _Entry("fireset.engines.dense", "DenseEngine", True, "every pair, in tiles: the reference"),
    "data": _Entry(
        "fireset.engines.data_search",
        "DataSearchEngine",
        True,
        "Algorithm 2: search the data for each neuron that left its certificate radius",
    ),
    "hashing": _Entry(
        "fireset.engines.hashing",
        "HashingEngine",
        False,
        "active neurons from hash tables as in SLIDE, for comparison: misses some that fire",
    ),
    "quantum-data": _Entry(
        "fireset.engines.grover",
        "QuantumDataEngine",
        False,
        "Version 2, simulated: Grover's search of the data for each neuron that moved",
    ),
    "quantum-weights": _Entry(
        "fireset.engines.grover",
        "QuantumWeightsEngine",
        False,
        "Version 1, simulated: Grover's search of the weights for each sample",
    ),
    "sums": _Entry(
        "fireset.engines.data_sums",
        "DataSumsEngine",
        True,
        "few coordinates, any threshold: sums over half-spaces, for less than the pairs that fire",
    ),
    "weights": _Entry(
        "fireset.engines.weight_search",
        "WeightSearchEngine",
        True,
        "Algorithm 1: search the weights for each sample, in an index that follows them within a radius",
    ),
}


def create(name: str, **options) -> Engine:
    """A new engine by name, e.g. ``create("data", radius=0)`` for the paper's Algorithm 2 to the letter."""
    if name not in _ENGINES:
        raise InputError(f"engine must be one of auto, {', '.join(sorted(_ENGINES))}; got {name!r}")
    entry = _ENGINES[name]
    factory = getattr(import_module(entry.module), entry.factory)
    unknown = [option for option in options if option not in signature(factory).parameters]
    if unknown:
        raise InputError(f"engine {name!r} does not take {', '.join(unknown)}")
    return factory(**options)


def describe() -> list[dict[str, object]]:
    """Name, exactness and one line about each engine."""
    return [{"name": name, "exact": e.exact, "summary": e.summary} for name, e in sorted(_ENGINES.items())]


def choose(network: "ShiftedReLUNetwork", n_samples: int, max_iter: int, width: int | None = None) -> str:
    """The engine that "auto" stands for: the cheapest of dense, data and sums by ``fireset.engines.cost``.

    ``width`` is that of the whole network where this is a shard: all of its workers must choose alike.
    """
    costs = expected_costs(network, n_samples, max_iter, width)
    return min(costs, key=costs.__getitem__)


def expected_costs(
    network: "ShiftedReLUNetwork", n_samples: int, max_iter: int, width: int | None = None
) -> dict[str, float]:
    """Nanoseconds on one core that an iteration is expected to cost, by engine."""
    m = width or network.width
    return step_costs(n_samples, network.n_features, m, network.threshold, network.n_outputs, max_iter)
