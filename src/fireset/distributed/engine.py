"""Engines on one worker's neurons and rows that sum their results over all workers.

``NeuronShardEngine`` sums over the workers with the same rows, ``RowShardEngine`` over those with the same neurons. On
a grid the second wraps the first, which wraps the engine that finds the active pairs.
"""

from dataclasses import asdict

import numpy as np

from fireset._util.errors import InputError
from fireset.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from fireset.distributed.row_shares import RowShares
from fireset.distributed.shard import NetworkShard
from fireset.engines.base import Engine
from fireset.engines.step_rule import NeuronGradients, StepRule
from fireset.engines.tangent import ActiveByNeuron, CommonCountColumns, OutputLayer, TangentOperator
from fireset.sparse_rows import Rows

_NUMBERS_PER_EXCHANGE = 1 << 22
_CAPABILITIES = (
    "exact",
    "preprocesses",
    "simulated",
    "supports_sparse",
    "can_reduce_memory",
    "compiled_dimensions",
    "index_calls",
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
        self.neuron_group = shard.group

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

    def output_layer(self) -> OutputLayer:
        return _SummedOutputLayer(self.inner.output_layer(), self.shard)

    def common_counts(self, dtype=np.float64) -> np.ndarray:
        """Exchanges n² counts, some rows at a time; otherwise as ``Engine.common_counts``."""
        return sum_in_place(self.inner.common_counts(dtype), self._group)

    def common_count_columns(self) -> "ShardedCountColumns":
        return ShardedCountColumns(self.inner.common_count_columns(), self._group)

    @property
    def tangent_scale(self) -> float:
        return self.inner.tangent_scale * self.shard.scale**2


class RowShardEngine(_ShardedEngine):
    """Sum the gradients of the inner engine on this worker's rows over the workers with the same neurons.

    Predictions, residuals and directions, (n_j, c), are those of this worker's rows, as are ``X`` and ``fire_sets``;
    ``gradient`` is that of all rows. A step exchanges the gradient, m_i · d numbers, and all workers with these neurons
    take the same step. Columns of the tangent kernel are computed for rows of any worker, given by their number in
    ``RowShares``, and contain this worker's rows.
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
        return sum_in_place(self.inner.output_gradient(residual), self._group)

    def _summed_gradients(self, residual: np.ndarray) -> np.ndarray:
        """Return the gradients of all neurons, (m_i, d). With many rows per worker almost all neurons are active."""
        neurons, rows = self.inner.gradient(residual)
        total = np.zeros_like(self.network.weights)
        total[neurons] = rows
        return sum_in_place(total, self._group)

    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        return self.inner.jacobian_product(directions)

    def tangent_operator(self) -> TangentOperator:
        """Return v ↦ J (Jᵀ v), with the sum over rows between the two products."""
        return lambda direction: self.jacobian_product(self._summed_gradients(direction))

    def approximate_tangent_operator(self) -> TangentOperator:
        return self.tangent_operator()

    def output_layer(self) -> OutputLayer:
        return _RowShardOutputLayer(self.inner.output_layer(), self._group)

    def common_counts(self, dtype=np.float64) -> np.ndarray:  # noqa: ARG002
        raise _needs_all_rows("common_counts", "common_count_columns", self._group)

    def common_count_columns(self) -> "RowShardCountColumns":
        neuron_group = self.inner.neuron_group if isinstance(self.inner, NeuronShardEngine) else SINGLE_PROCESS
        return RowShardCountColumns(self.active_by_neuron(), RowShares(self._group, len(self.X)), neuron_group)

    @property
    def tangent_scale(self) -> float:
        return self.inner.tangent_scale


class ShardedCountColumns(CommonCountColumns):
    """Columns of ``common_counts``, summed over all workers. All workers must request the same columns."""

    def __init__(self, inner: CommonCountColumns, group: ProcessGroup):
        self._inner, self._group = inner, group

    def diagonal(self) -> np.ndarray:
        return sum_in_place(self._inner.diagonal(), self._group)

    def table(self, samples: np.ndarray) -> np.ndarray:
        return sum_in_place(self._inner.table(samples), self._group)

    def counts(self, samples: np.ndarray) -> np.ndarray:
        return sum_in_place(self._inner.counts(samples), self._group)


class _SummedOutputLayer(OutputLayer):
    """The output layer of one worker's neurons, with sums over those of all workers.

    ``gradient`` and the directions of ``jacobian_product`` are those of this worker's neurons. The inner layer divides
    by the √width of its shard.
    """

    def __init__(self, inner: OutputLayer, shard: NetworkShard):
        self._inner, self._group, self._scale = inner, shard.group, shard.scale

    def gradient(self, residual: np.ndarray) -> np.ndarray:
        return self._inner.gradient(residual * self._scale)

    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        return sum_in_place(self._inner.jacobian_product(directions) * self._scale, self._group)

    def tangent_product(self, direction: np.ndarray) -> np.ndarray:
        return self._summed(self._inner.tangent_product(direction))

    def diagonal(self) -> np.ndarray:
        return self._summed(self._inner.diagonal())

    def columns(self, rows: Rows) -> np.ndarray:
        return self._summed(self._inner.columns(rows))

    def whole_kernel(self) -> np.ndarray:
        return self._summed(self._inner.whole_kernel())

    def kernel(self, rows: Rows) -> np.ndarray:
        return self._summed(self._inner.kernel(rows))

    def _summed(self, table: np.ndarray) -> np.ndarray:
        table *= table.dtype.type(self._scale**2)
        return sum_in_place(table, self._group)


class _RowShardOutputLayer(OutputLayer):
    """The output layer for one worker's rows, with gradients that are sums over the rows of all workers.

    All arrays with one entry for each row contain this worker's rows.
    """

    def __init__(self, inner: OutputLayer, group: ProcessGroup):
        self._inner, self._group = inner, group

    def gradient(self, residual: np.ndarray) -> np.ndarray:
        return sum_in_place(self._inner.gradient(residual), self._group)

    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        return self._inner.jacobian_product(directions)

    def tangent_product(self, direction: np.ndarray) -> np.ndarray:
        return self.jacobian_product(self.gradient(direction))

    def diagonal(self) -> np.ndarray:
        return self._inner.diagonal()

    def columns(self, rows: Rows) -> np.ndarray:
        return self._inner.columns(rows)

    def whole_kernel(self) -> np.ndarray:
        raise _needs_all_rows("whole_kernel", "columns", self._group)

    def kernel(self, rows: Rows) -> np.ndarray:
        return self._inner.kernel(rows)


class RowShardCountColumns(CommonCountColumns):
    """Columns of ``common_counts`` for rows of any worker, by number in ``shares``, with this worker's rows.

    The bits of the chosen rows, k · m_i / 8 bytes, are exchanged among the workers with the same neurons. Each counts
    them against its own rows, and the workers with the same rows add their counts. All workers must request the same
    columns.
    """

    def __init__(self, active: ActiveByNeuron, shares: RowShares, neuron_group: ProcessGroup):
        from fireset.engines.common_counts import BitCountColumns, has_twins

        twins = shares.group.all_true(has_twins(active))
        self._columns = BitCountColumns(active, all_neurons=True, twins=twins)
        self._shares, self._neuron_group = shares, neuron_group

    def diagonal(self) -> np.ndarray:
        """Return the number of active neurons of every row of this worker, (n_j,)."""
        return sum_in_place(self._columns.diagonal(), self._neuron_group)

    def table(self, samples: np.ndarray) -> np.ndarray:
        return sum_in_place(self._columns.table_of(self._bits(samples)), self._neuron_group)

    def counts(self, samples: np.ndarray) -> np.ndarray:
        """Return (len(samples), n_j)."""
        return sum_in_place(self._columns.counts_with(self._bits(samples)), self._neuron_group)

    def _bits(self, samples: np.ndarray) -> np.ndarray:
        return self._shares.select(self._columns.bits, samples)


def _needs_all_rows(method: str, instead: str, group: ProcessGroup) -> InputError:
    return InputError(
        f"{method} needs all rows on every worker, got a grid with {group.size} parts of the rows; use {instead}, or a "
        "grid with one part."
    )


def sum_over_workers(engine: Engine, shard: NetworkShard, row_group: ProcessGroup = SINGLE_PROCESS) -> Engine:
    """Return the engine of this worker's neurons and rows with the sums over all workers that it needs."""
    if shard.group is not SINGLE_PROCESS:
        engine = NeuronShardEngine(engine, shard)
    return RowShardEngine(engine, row_group) if row_group.size > 1 else engine


def sum_in_place(table: np.ndarray, group: ProcessGroup) -> np.ndarray:
    """Replace ``table`` by its sum over all workers, in parts: the exchanged numbers may take four times its memory."""
    if group.size == 1:
        return table
    flat = table.reshape(-1)
    for lo in range(0, len(flat), _NUMBERS_PER_EXCHANGE):
        some = slice(lo, lo + _NUMBERS_PER_EXCHANGE)
        flat[some] = group.all_reduce_exact(flat[some].astype(np.float64))[0]
    return table
