"""Engines by name, and the choice of "auto"."""

from inspect import signature
from typing import TYPE_CHECKING

from fireset._util.errors import InputError
from fireset._util.registry import Registry
from fireset.engines.base import Engine
from fireset.engines.cost import step_costs

if TYPE_CHECKING:
    from fireset.network import ShiftedReLUNetwork

# A class is imported, with its kernels, when its name is first used.
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
REFERENCE = "dense"  # computes every pair: what all other engines are compared with


def engine_class(name: str) -> type[Engine]:
    """Return the class of a name."""
    if name not in ENGINES:
        raise InputError(f"engine must be one of auto, {', '.join(sorted(ENGINES))}; got {name!r}")
    return ENGINES.load(name, Engine)


def create(name: str, **options) -> Engine:
    """Create an engine by name, e.g. ``create("data", radius=0)`` for the paper's Algorithm 2 without radii."""
    cls = engine_class(name)
    unknown = [option for option in options if option not in signature(cls).parameters]
    if unknown:
        raise InputError(f"engine {name!r} does not take {', '.join(unknown)}")
    return cls(**options)


def names_with(attribute: str) -> list[str]:
    """Return the names of the engines whose class has a true ``attribute``, such as "supports_sparse"."""
    return [name for name in sorted(ENGINES) if getattr(engine_class(name), attribute)]


def batch_engine(*, sparse: bool) -> str:
    """Return the name of the engine that "auto" selects for batches of rows."""
    return REFERENCE if sparse else "rows"


def describe() -> list[dict[str, object]]:
    """Return name, exactness and summary of every engine."""
    classes = [engine_class(name) for name in sorted(ENGINES)]
    return [{"name": cls.name, "exact": cls.exact, "summary": cls.summary} for cls in classes]


def choose(
    network: "ShiftedReLUNetwork",
    n_samples: int,
    max_iter: int,
    width: int | None = None,
    *,
    entries_per_row: int | None = None,
    batches: bool = False,
    trained_outputs: bool = False,
) -> str:
    """Return the name of the engine that "auto" selects: the fastest by ``expected_costs``.

    Parameters
    ----------
    width : int, optional
        Width of the whole network if ``network`` is one worker's part. All workers must choose the same engine.
    entries_per_row : int, optional
        Average number of stored entries of a row, for sparse rows.
    batches, trained_outputs : bool
        Whether training uses batches of rows, or changes the output weights. If the fastest engine does not support
        batches, ``batch_engine`` does. For output weights, engines without ``suits_trained_outputs`` are left out.
    """
    costs = expected_costs(network, n_samples, max_iter, width, entries_per_row=entries_per_row)
    if trained_outputs:
        costs = {name: cost for name, cost in costs.items() if engine_class(name).suits_trained_outputs}
    name = min(costs, key=costs.__getitem__)
    if batches and not engine_class(name).supports_batches:
        return batch_engine(sparse=entries_per_row is not None)
    return name


def expected_costs(
    network: "ShiftedReLUNetwork",
    n_samples: int,
    max_iter: int,
    width: int | None = None,
    *,
    entries_per_row: int | None = None,
) -> dict[str, float]:
    """Estimate the nanoseconds of an iteration on one core, by engine; for sparse rows, of engines that support them.

    The cost of a pass over the weights is left out: it is the same for all engines.
    """
    m, d = width or network.width, network.n_features if entries_per_row is None else entries_per_row
    costs = step_costs(n_samples, d, m, network.threshold, network.n_outputs, max_iter)
    return {name: cost for name, cost in costs.items() if entries_per_row is None or engine_class(name).supports_sparse}
