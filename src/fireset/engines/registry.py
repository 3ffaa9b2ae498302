"""Engines by name, and the one that "auto" stands for."""

from inspect import signature
from typing import TYPE_CHECKING

from fireset._util.errors import InputError
from fireset._util.registry import Registry
from fireset.engines.base import Engine
from fireset.engines.cost import step_costs

if TYPE_CHECKING:
    from fireset.network import ShiftedReLUNetwork

# Where each class is; what there is to say about it, the class says itself.
_BUILT_IN = {
    "correlation": "fireset.engines.correlation_trees:CorrelationEngine",
    "data": "fireset.engines.data_search:DataSearchEngine",
    "dense": "fireset.engines.dense:DenseEngine",
    "hashing": "fireset.engines.hashing:HashingEngine",
    "quantum-data": "fireset.engines.grover:QuantumDataEngine",
    "quantum-weights": "fireset.engines.grover:QuantumWeightsEngine",
    "rows": "fireset.engines.row_search:RowSearchEngine",
    "sums": "fireset.engines.half_space_sums:HalfSpaceSumsEngine",
    "weights": "fireset.engines.weight_search:WeightSearchEngine",
}
ENGINES = Registry("fireset.engines", _BUILT_IN)


def engine_class(name: str) -> type[Engine]:
    """The class behind a name."""
    if name not in ENGINES:
        raise InputError(f"engine must be one of auto, {', '.join(sorted(ENGINES))}; got {name!r}")
    return ENGINES.load(name, Engine)


def create(name: str, **options) -> Engine:
    """A new engine by name, e.g. ``create("data", radius=0)`` for the paper's Algorithm 2 to the letter."""
    cls = engine_class(name)
    unknown = [option for option in options if option not in signature(cls).parameters]
    if unknown:
        raise InputError(f"engine {name!r} does not take {', '.join(unknown)}")
    return cls(**options)


def describe() -> list[dict[str, object]]:
    """Name, exactness and one line about each engine."""
    classes = [engine_class(name) for name in sorted(ENGINES)]
    return [{"name": cls.name, "exact": cls.exact, "summary": cls.summary} for cls in classes]


def choose(
    network: "ShiftedReLUNetwork",
    n_samples: int,
    max_iter: int,
    width: int | None = None,
    *,
    stored: int | None = None,
) -> str:
    """The engine that "auto" stands for: the cheapest of dense, data and sums by ``fireset.engines.cost``.

    ``width`` is that of the whole network where this one is a worker's part of it: all workers must choose alike. For
    sparse rows ``stored`` is how many entries a row has in the mean, and the choice is between dense and data.
    """
    costs = expected_costs(network, n_samples, max_iter, width, stored=stored)
    return min(costs, key=costs.__getitem__)


def expected_costs(
    network: "ShiftedReLUNetwork",
    n_samples: int,
    max_iter: int,
    width: int | None = None,
    *,
    stored: int | None = None,
) -> dict[str, float]:
    """Nanoseconds on one core that an iteration is expected to cost, by engine; for sparse rows, those that take them.

    What all engines pay alike, a pass over the weights, is left out.
    """
    m, d = width or network.width, network.n_features if stored is None else stored
    costs = step_costs(n_samples, d, m, network.threshold, network.n_outputs, max_iter)
    return {name: cost for name, cost in costs.items() if stored is None or engine_class(name).takes_sparse}
