"""An engine on this worker's neurons and rows, and the sums that make it one of the whole network and all rows.

``DistributedEngine`` adds up over the workers with the same rows, ``RowSharesEngine`` over those with the same neurons;
on a grid the one is inside the other, and inside both is the engine that finds the fire sets.
"""

from dataclasses import asdict

import numpy as np

from fireset.distributed.process_group import ProcessGroup
from fireset.distributed.shard import NetworkShard
from fireset.engines.base import Engine
from fireset.engines.step_rule import RowGradients, StepRule
from fireset.engines.tangent import FireSetColumns, TangentOperator

_NUMBERS_AT_ONCE = 1 << 22


class _WrappingEngine(Engine):
    """What is the same whatever is added up: it prepares, speaks of fire sets and takes memory as the inner one does.

    ``work`` is that of all workers of the group together.
    """

    summary = "any other engine, on several workers"
    takes_sparse = True  # the inner engine says whether it does

    def __init__(self, inner: Engine, group: ProcessGroup):
        super().__init__()
        self.name = inner.name
        self.exact = inner.exact
        self.blocks = inner.blocks
        self.inner = inner
        self._group = group
        self._started = False

    def _prepare(self) -> None:
        self.inner.start(self.network, self.X)
        if not self._started:  # for the counts: preprocessing is work, too
            self._added(np.empty(0))
        self._started = True

    def _added(self, share: np.ndarray) -> np.ndarray:
        """The sum of all workers' shares; what they have done so far is added up on the way."""
        done = {name: count for name, count in asdict(self.inner.work).items() if count is not None}
        total, counts = self._group.all_reduce_exact(share, tuple(done.values()))
        for name, count in zip(done, counts, strict=True):
            setattr(self.work, name, count)
        return total

    def weights_moved(self, neurons: np.ndarray, distances: np.ndarray) -> None:
        self.inner.weights_moved(neurons, distances)

    def fire_sets(self):
        return self.inner.fire_sets()

    def recall_counts(self, rows: np.ndarray) -> tuple[int, int]:
        found, active = self.inner.recall_counts(rows)
        return self._group.all_reduce_sum(found), self._group.all_reduce_sum(active)

    def index_kind(self, network, n_samples: int) -> str | None:
        return self.inner.index_kind(network, n_samples)

    def memory_bytes(self, network, n_samples: int) -> float:
        return self.inner.memory_bytes(network, n_samples)


class DistributedEngine(_WrappingEngine):
    """Adds up over all workers what the inner engine finds on this worker's neurons.

    The inner engine divides by the √width of its shard; here shares and residuals are scaled to √m of the whole.
    ``gradient``, ``weights_moved`` and ``fire_sets`` speak of this worker's neurons.
    """

    def __init__(self, inner: Engine, shard: NetworkShard):
        super().__init__(inner, shard.group)
        self.shard = shard

    def forward(self) -> np.ndarray:
        return self._added(self.inner.forward() * self.shard.scale)

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        self.inner.step(residual * self.shard.scale, rule)

    def gradient(self, residual: np.ndarray) -> RowGradients:
        return self.inner.gradient(residual * self.shard.scale)

    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        return self._added(self.inner.jacobian_product(directions) * self.shard.scale)

    def tangent_operator(self) -> TangentOperator:
        return self._scaled(self.inner.tangent_operator())

    def approximate_tangent_operator(self) -> TangentOperator:
        return self._scaled(self.inner.approximate_tangent_operator())

    def _scaled(self, product: TangentOperator) -> TangentOperator:
        return lambda direction: self._added(product(direction) * self.shard.scale**2)

    def common_counts(self, dtype=np.float64) -> np.ndarray:
        """Of all workers' neurons: one exchange of n² counts, some rows at a time."""
        table = self.inner.common_counts(dtype)
        return _summed(table, self.shard.group)

    def count_columns(self) -> "DistributedColumns":
        return DistributedColumns(self.inner.count_columns(), self.shard.group)

    @property
    def tangent_scale(self) -> float:
        return self.inner.tangent_scale * self.shard.scale**2


class RowSharesEngine(_WrappingEngine):
    """Adds up over the workers with the same neurons what the inner engine finds on this worker's rows.

    Predictions, residuals and directions, (n_j, c), are those of this worker's rows, as are ``X`` and ``fire_sets``;
    ``gradient`` is that of all rows. A step exchanges the gradient, m_i · d numbers, and all workers with these neurons
    take it alike.
    """

    def forward(self) -> np.ndarray:
        predictions = self.inner.forward()
        self._added(np.empty(0))
        return predictions

    def gradient(self, residual: np.ndarray) -> RowGradients:
        total = self._all_gradients(residual)
        neurons = np.flatnonzero(total.any(axis=1))
        return RowGradients(neurons, total[neurons])

    def _all_gradients(self, residual: np.ndarray) -> np.ndarray:
        """Of all neurons, (m_i, d), whether they fire or not: with many rows to a worker hardly one does not."""
        neurons, rows = self.inner.gradient(residual)
        total = np.zeros_like(self.network.weights)
        total[neurons] = rows
        return _summed(total, self._group)

    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        return self.inner.jacobian_product(directions)

    def tangent_operator(self) -> TangentOperator:
        """J (Jᵀ v): the sum over rows comes between the two."""
        return lambda direction: self.jacobian_product(self._all_gradients(direction))


class DistributedColumns(FireSetColumns):
    """Counts of some columns, summed over all workers, who must ask for the same ones."""

    def __init__(self, inner: FireSetColumns, group: ProcessGroup):
        self._inner, self._group = inner, group

    def diagonal(self) -> np.ndarray:
        return _summed(self._inner.diagonal(), self._group)

    def table(self, samples: np.ndarray) -> np.ndarray:
        return _summed(self._inner.table(samples), self._group)

    def counts(self, samples: np.ndarray) -> np.ndarray:
        return _summed(self._inner.counts(samples), self._group)


def _summed(table: np.ndarray, group: ProcessGroup) -> np.ndarray:
    """Numbers of all workers added up, in place, some at a time: what travels may be four times as long."""
    flat = table.reshape(-1)
    for lo in range(0, len(flat), _NUMBERS_AT_ONCE):
        some = slice(lo, lo + _NUMBERS_AT_ONCE)
        flat[some] = group.all_reduce_exact(flat[some].astype(np.float64))[0]
    return table
