"""What a run will be made of: which engine, on whose neurons, within which memory."""

import time
from dataclasses import dataclass

from fireset._util.errors import InputError
from fireset.distributed.engine import NeuronShardEngine, RowShardEngine
from fireset.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from fireset.distributed.shard import NetworkShard
from fireset.distributed.worker_grid import current_grid
from fireset.engines.base import Engine
from fireset.engines.registry import choose, create
from fireset.network import ShiftedReLUNetwork
from fireset.sparse_rows import SparseRows, entries_per_row
from fireset.training.memory import within_memory
from fireset.training.precompile import compile_kernels
from fireset.training.problem import TrainingProblem
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
        problem: TrainingProblem,
        *,
        engine: str | Engine,
        solver: Solver,
        max_iter: int,
        memory: int | str | None,
    ) -> "Plan":
        """Choose the engine, fit it to the memory, and have its kernels compiled."""
        started = time.perf_counter()
        network, X, n_samples = shard.local, problem.X, len(problem.X)
        sparse = isinstance(X, SparseRows)
        if isinstance(engine, str):
            if engine == "auto":
                engine = choose(
                    network,
                    problem.n_rows,
                    max_iter,
                    shard.width,  # of the whole network, so that all workers choose the same engine
                    entries_per_row=entries_per_row(X) if sparse else None,
                    batches=bool(solver.batch_size),
                    trained_outputs=solver.trains_outputs,
                )
            engine = create(engine)
        _check_engine(engine, solver, shard)
        engine.check_input(X)
        # The gradient of this worker's rows, and that of all rows.
        gradients = 2.0 if problem.row_group.size > 1 else 0.0
        engine = within_memory(
            engine,
            network,
            n_samples,
            solver_bytes=lambda part: solver.extra_bytes(part, n_samples) + gradients * part.weights.nbytes,
            asked=memory,
        )
        if shard.group is not SINGLE_PROCESS and not solver.batch_size:  # batches are for one process
            engine = NeuronShardEngine(engine, shard)
        if problem.row_group.size > 1:
            engine = RowShardEngine(engine, problem.row_group)
        index = engine.index_kind(network, n_samples)
        compile_kernels(engine.name, network.dtype, index, several_outputs=network.n_outputs > 1, sparse=sparse)
        return cls(shard, engine, time.perf_counter() - started)

    @property
    def group(self) -> ProcessGroup:
        """All workers that train together."""
        return self.shard.grid.all_workers


def shard_of(network: ShiftedReLUNetwork | NetworkShard) -> NetworkShard:
    """The neurons of a network that this process trains."""
    return NetworkShard.of(network, current_grid())


def _check_engine(engine: Engine, solver: Solver, shard: NetworkShard) -> None:
    """Refuse what does not go together."""
    if solver.batch_size and not engine.supports_batches:
        raise InputError(
            f"engine {engine.name!r} looks at all rows at once; with batch_size use 'rows', 'dense' or 'auto'"
        )
    for name, asked in (("batch_size", solver.batch_size), ("trained_outputs", solver.trains_outputs)):
        if asked and shard.grid.all_workers.size > 1:
            raise InputError(f"{name} is for one process, got {shard.grid.all_workers.size} workers")
    if shard.grid.same_neurons.size > 1 and not solver.shares_rows:
        raise InputError(
            f"solver {solver.name!r} needs all rows on every worker, got a grid of {shard.grid}; use "
            f"solver='gradient', or a grid of {shard.grid.all_workers.size}x1"
        )
