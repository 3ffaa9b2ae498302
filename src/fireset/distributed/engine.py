"""An engine on this worker's neurons, and the sums that make it one of the whole network."""

from dataclasses import asdict

import numpy as np

from fireset.distributed.process_group import ProcessGroup
from fireset.distributed.shard import NetworkShard
from fireset.engines.base import Engine
from fireset.engines.step_rule import RowGradients, StepRule
from fireset.engines.tangent import FireSetColumns, TangentOperator

_COUNTS_AT_ONCE = 1 << 22


class DistributedEngine(Engine):
    """Adds up over all workers what the inner engine finds on this worker's neurons.

    The inner engine divides by the √width of its shard; here shares and residuals are scaled to √m of the whole.
    ``work`` is that of all workers together. ``gradient``, ``weights_moved`` and ``fire_sets`` speak of this worker's
    neurons.
    """

    name = "distributed"  # replaced by that of the inner engine
    summary = "any other engine, on several workers"
    takes_sparse = True  # the inner engine says whether it does

    def __init__(self, inner: Engine, shard: NetworkShard):
        super().__init__()
        self.name = inner.name
        self.exact = inner.exact
        self.blocks = inner.blocks
        self.inner = inner
        self.shard = shard
        self._started = False

    def _prepare(self) -> None:
        self.inner.start(self.network, self.X)
        if not self._started:  # for the counts: preprocessing is work, too
            self._added(np.empty(0))
        self._started = True

    def forward(self) -> np.ndarray:
        return self._added(self.inner.forward() * self.shard.scale)

    def _added(self, share: np.ndarray) -> np.ndarray:
        """The sum of all workers' shares; what they have done so far is added up on the way."""
        done = {name: count for name, count in asdict(self.inner.work).items() if count is not None}
        total, counts = self.shard.group.all_reduce_exact(share, tuple(done.values()))
        for name, count in zip(done, counts, strict=True):
            setattr(self.work, name, count)
        return total

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        self.inner.step(residual * self.shard.scale, rule)

    def gradient(self, residual: np.ndarray) -> RowGradients:
        return self.inner.gradient(residual * self.shard.scale)

    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        return self._added(self.inner.jacobian_product(directions) * self.shard.scale)

    def weights_moved(self, neurons: np.ndarray, distances: np.ndarray) -> None:
        self.inner.weights_moved(neurons, distances)

    def fire_sets(self):
        return self.inner.fire_sets()

    def tangent_operator(self) -> TangentOperator:
        return self._summed(self.inner.tangent_operator())

    def approximate_tangent_operator(self) -> TangentOperator:
        return self._summed(self.inner.approximate_tangent_operator())

    def _summed(self, product: TangentOperator) -> TangentOperator:
        return lambda direction: self._added(product(direction) * self.shard.scale**2)

    def common_counts(self, dtype=np.float64) -> np.ndarray:
        """Of all workers' neurons: one exchange of n² counts, some rows at a time."""
        table = self.inner.common_counts(dtype)
        return _summed_counts(table, self.shard.group)

    def count_columns(self) -> "DistributedColumns":
        return DistributedColumns(self.inner.count_columns(), self.shard.group)

    @property
    def tangent_scale(self) -> float:
        return self.inner.tangent_scale * self.shard.scale**2

    def recall_counts(self, rows: np.ndarray) -> tuple[int, int]:
        found, fired = self.inner.recall_counts(rows)
        group = self.shard.group
        return group.all_reduce_sum(found), group.all_reduce_sum(fired)

    def index_kind(self, network, n_samples: int) -> str | None:
        return self.inner.index_kind(network, n_samples)

    def memory_bytes(self, network, n_samples: int) -> float:
        return self.inner.memory_bytes(network, n_samples)


class DistributedColumns(FireSetColumns):
    """Counts of some columns, summed over all workers, who must ask for the same ones."""

    def __init__(self, inner: FireSetColumns, group: ProcessGroup):
        self._inner, self._group = inner, group

    def diagonal(self) -> np.ndarray:
        return _summed_counts(self._inner.diagonal(), self._group)

    def table(self, samples: np.ndarray) -> np.ndarray:
        return _summed_counts(self._inner.table(samples), self._group)

    def counts(self, samples: np.ndarray) -> np.ndarray:
        return _summed_counts(self._inner.counts(samples), self._group)


def _summed_counts(table: np.ndarray, group: ProcessGroup) -> np.ndarray:
    """Whole numbers of all workers added up, in place, some at a time: what travels is twice or four times as long."""
    flat = table.reshape(-1)
    for lo in range(0, len(flat), _COUNTS_AT_ONCE):
        some = slice(lo, lo + _COUNTS_AT_ONCE)
        flat[some] = group.all_reduce_exact(flat[some].astype(np.float64))[0]
    return table
