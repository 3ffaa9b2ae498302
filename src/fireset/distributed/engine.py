"""Engines on one worker's neurons and rows that sum their results over all workers.

``NeuronShardEngine`` sums over the workers with the same rows, ``RowShardEngine`` over those with the same neurons. On
a grid the second wraps the first, which wraps the engine that finds the active pairs.
"""

from dataclasses import asdict

import numpy as np

from fireset._util.errors import InputError
from fireset.distributed.process_group import ProcessGroup
from fireset.distributed.shard import NetworkShard
from fireset.engines.base import Engine
from fireset.engines.step_rule import NeuronGradients, StepRule
from fireset.engines.tangent import ActiveByNeuron, CommonCountColumns, TangentOperator

_NUMBERS_PER_EXCHANGE = 1 << 22
_CAPABILITIES = (
    "exact",
    "preprocesses",
    "simulated",
    "supports_sparse",
    "supports_output_training",
    "can_reduce_memory",
    "compiled_dimensions",
    "blocks",
)


class _ShardedEngine(Engine):
    """Delegate to an inner engine what needs no sum, or only a sum of counts.

    ``fire_sets`` and ``active_by_neuron`` are those of this worker's neurons and rows. ``work`` is the sum over the
    workers of the group. Methods whose result depends on the width of the network or on the number of rows are
    abstract in ``Engine``, so that each subclass has to define them.
    """

    summary = "any other engine, on several workers"

    def __init__(self, inner: Engine, group: ProcessGroup):
        super().__init__()
        self.name = inner.name
        for capability in _CAPABILITIES:
            setattr(self, capability, getattr(inner, capability))
        self.inner = inner
        self._group = group
        self._started = False

    def _prepare(self) -> None:
        self.inner.start(self.network, self.X)
        if not self._started:  # add the counts of the preprocessing
            self._sum(np.empty(0))
        self._started = True

    def _sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of ``values`` over all workers; add up the work counts in the same exchange."""
        done = {name: count for name, count in asdict(self.inner.work).items() if count is not None}
        total, counts = self._group.all_reduce_exact(values, tuple(done.values()))
        for name, count in zip(done, counts, strict=True):
            setattr(self.work, name, count)
        return total

    def weights_moved(self, neurons: np.ndarray, distances: np.ndarray) -> None:
        self.inner.weights_moved(neurons, distances)

    def outputs_moved(self) -> None:
        self.inner.outputs_moved()

    def fire_sets(self):
        return self.inner.fire_sets()

    def active_by_neuron(self) -> ActiveByNeuron:
        return self.inner.active_by_neuron()

    def recall_counts(self, rows: np.ndarray) -> tuple[int, int]:
        found, active = self.inner.recall_counts(rows)
        return self._group.all_reduce_sum(found), self._group.all_reduce_sum(active)

    def index_kind(self, network, n_samples: int) -> str | None:
        return self.inner.index_kind(network, n_samples)

    def memory_bytes(self, network, n_samples: int) -> float:
        return self.inner.memory_bytes(network, n_samples)


class NeuronShardEngine(_ShardedEngine):
    """Sum the results of the inner engine on this worker's neurons over all workers.

    The inner engine divides by the √width of its shard; here results and residuals are scaled to √m of the network.
    ``gradient``, ``output_gradient``, ``weights_moved`` and ``fire_sets`` refer to this worker's neurons.
    """

    def __init__(self, inner: Engine, shard: NetworkShard):
        super().__init__(inner, shard.group)
        self.shard = shard

    def forward(self) -> np.ndarray:
        return self._sum(self.inner.forward() * self.shard.scale)

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        self.inner.step(residual * self.shard.scale, rule)

    def gradient(self, residual: np.ndarray) -> NeuronGradients:
        return self.inner.gradient(residual * self.shard.scale)

    def output_gradient(self, residual: np.ndarray) -> np.ndarray:
        return self.inner.output_gradient(residual * self.shard.scale)

    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        return self._sum(self.inner.jacobian_product(directions) * self.shard.scale)

    def tangent_operator(self) -> TangentOperator:
        return self._summed_operator(self.inner.tangent_operator())

    def approximate_tangent_operator(self) -> TangentOperator:
        return self._summed_operator(self.inner.approximate_tangent_operator())

    def _summed_operator(self, product: TangentOperator) -> TangentOperator:
        return lambda direction: self._sum(product(direction) * self.shard.scale**2)

    def common_counts(self, dtype=np.float64) -> np.ndarray:
        """Exchanges n² counts, some rows at a time; otherwise as ``Engine.common_counts``."""
        return _sum_in_place(self.inner.common_counts(dtype), self._group)

    def common_count_columns(self) -> "ShardedCountColumns":
        return ShardedCountColumns(self.inner.common_count_columns(), self._group)

    @property
    def tangent_scale(self) -> float:
        return self.inner.tangent_scale * self.shard.scale**2


class RowShardEngine(_ShardedEngine):
    """Sum the gradients of the inner engine on this worker's rows over the workers with the same neurons.

    Predictions, residuals and directions, (n_j, c), are those of this worker's rows, as are ``X`` and ``fire_sets``;
    ``gradient`` is that of all rows. A step exchanges the gradient, m_i · d numbers, and all workers with these neurons
    take the same step. The tangent kernel is available as an operator only: its entries need pairs of rows that are on
    different workers.
    """

    def forward(self) -> np.ndarray:
        predictions = self.inner.forward()
        self._sum(np.empty(0))
        return predictions

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        self.weights_moved(*rule.apply(self.network.weights, self.gradient(residual)))

    def gradient(self, residual: np.ndarray) -> NeuronGradients:
        total = self._summed_gradients(residual)
        neurons = np.flatnonzero(total.any(axis=1))
        return NeuronGradients(neurons, total[neurons])

    def output_gradient(self, residual: np.ndarray) -> np.ndarray:
        return _sum_in_place(self.inner.output_gradient(residual), self._group)

    def _summed_gradients(self, residual: np.ndarray) -> np.ndarray:
        """Return the gradients of all neurons, (m_i, d). With many rows per worker almost all neurons are active."""
        neurons, rows = self.inner.gradient(residual)
        total = np.zeros_like(self.network.weights)
        total[neurons] = rows
        return _sum_in_place(total, self._group)

    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        return self.inner.jacobian_product(directions)

    def tangent_operator(self) -> TangentOperator:
        """Return v ↦ J (Jᵀ v), with the sum over rows between the two products."""
        return lambda direction: self.jacobian_product(self._summed_gradients(direction))

    def approximate_tangent_operator(self) -> TangentOperator:
        return self.tangent_operator()

    def common_counts(self, dtype=np.float64) -> np.ndarray:  # noqa: ARG002
        raise self._rows_error("common_counts")

    def common_count_columns(self) -> CommonCountColumns:
        raise self._rows_error("common_count_columns")

    def _rows_error(self, method: str) -> InputError:
        return InputError(
            f"{method} needs all rows on every worker, got a grid with {self._group.size} parts of the rows; use a "
            "grid with one part."
        )

    @property
    def tangent_scale(self) -> float:
        return self.inner.tangent_scale


class ShardedCountColumns(CommonCountColumns):
    """Columns of ``common_counts``, summed over all workers. All workers must request the same columns."""

    def __init__(self, inner: CommonCountColumns, group: ProcessGroup):
        self._inner, self._group = inner, group

    def diagonal(self) -> np.ndarray:
        return _sum_in_place(self._inner.diagonal(), self._group)

    def table(self, samples: np.ndarray) -> np.ndarray:
        return _sum_in_place(self._inner.table(samples), self._group)

    def counts(self, samples: np.ndarray) -> np.ndarray:
        return _sum_in_place(self._inner.counts(samples), self._group)


def _sum_in_place(table: np.ndarray, group: ProcessGroup) -> np.ndarray:
    """Replace ``table`` by its sum over all workers, in parts: the exchanged numbers may take four times its memory."""
    flat = table.reshape(-1)
    for lo in range(0, len(flat), _NUMBERS_PER_EXCHANGE):
        some = slice(lo, lo + _NUMBERS_PER_EXCHANGE)
        flat[some] = group.all_reduce_exact(flat[some].astype(np.float64))[0]
    return table
