"""What a run will be made of: which engine, on whose neurons, within which memory."""

import time
from dataclasses import dataclass

from fireset._util.errors import InputError
from fireset.distributed.engine import DistributedEngine
from fireset.distributed.process_group import SINGLE_PROCESS, ProcessGroup, current_group
from fireset.distributed.shard import NetworkShard
from fireset.engines.base import BatchEngine, Engine
from fireset.engines.registry import choose, create
from fireset.network import ShiftedReLUNetwork
from fireset.sparse_rows import Rows, SparseRows, entries_per_row
from fireset.training.memory import within_memory
from fireset.training.precompile import compile_kernels
from fireset.training.solvers.base import Solver


@dataclass(frozen=True)
class Plan:
    """A network's part on this worker, and the engine that will train it, compiled and not started yet."""

    shard: NetworkShard
    engine: Engine
    compile_seconds: float

    @classmethod
    def make(
        cls,
        shard: NetworkShard,
        X: Rows,
        *,
        engine: str | Engine,
        solver: Solver,
        max_iter: int,
        memory: int | str | None,
    ) -> "Plan":
        """Choose the engine, fit it to the memory, and have its kernels compiled."""
        started = time.perf_counter()
        network, n_samples, sparse = shard.local, len(X), isinstance(X, SparseRows)
        if isinstance(engine, str):
            if engine == "auto":
                stored = entries_per_row(X) if sparse else None
                engine = choose(network, n_samples, max_iter, shard.width, stored=stored)
                if solver.batch_size and engine != "dense":
                    engine = "dense" if sparse else "rows"
                engine = "data" if solver.trains_outputs and engine != "dense" else engine
            engine = create(engine)
        _check_engine(engine, solver, shard)
        engine.expect(X)
        engine = within_memory(
            engine, network, n_samples, solver_bytes=solver.extra_bytes(network, n_samples), asked=memory
        )
        if shard.group is not SINGLE_PROCESS:
            engine = DistributedEngine(engine, shard)
        index = engine.index_kind(network, n_samples)
        compile_kernels(engine.name, network.dtype, index, several_outputs=network.n_outputs > 1, sparse=sparse)
        return cls(shard, engine, time.perf_counter() - started)

    @property
    def group(self) -> ProcessGroup:
        return self.shard.group


def shard_of(network: ShiftedReLUNetwork | NetworkShard) -> NetworkShard:
    """The neurons of a network that this process trains."""
    return NetworkShard.of(network, current_group())


def _check_engine(engine: Engine, solver: Solver, shard: NetworkShard) -> None:
    """Refuse what does not go together."""
    if solver.batch_size and not isinstance(engine, BatchEngine):
        raise InputError(
            f"engine {engine.name!r} looks at all rows at once; with batch_size use 'rows', 'dense' or 'auto'"
        )
    for name, asked in (("batch_size", solver.batch_size), ("trained_outputs", solver.trains_outputs)):
        if asked and shard.group.size > 1:
            raise InputError(f"{name} is for one process, got {shard.group.size} workers")
