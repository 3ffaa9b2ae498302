"""The choice of an engine for a run, within the available memory, with its kernels compiled."""

from fireset._util.errors import InputError
from fireset.distributed.engine import DistributedEngine, RowSharesEngine
from fireset.distributed.process_group import SINGLE_PROCESS
from fireset.distributed.shard import NetworkShard
from fireset.engines.base import BatchEngine, Engine
from fireset.engines.registry import choose, create
from fireset.sparse_rows import SparseRows, entries_per_row
from fireset.training.memory import within_memory
from fireset.training.precompile import compile_kernels
from fireset.training.problem import TrainingProblem
from fireset.training.solvers.base import Solver


def set_up_engine(
    engine: str | Engine,
    shard: NetworkShard,
    problem: TrainingProblem,
    solver: Solver,
    *,
    max_iter: int,
    memory: int | str | None,
) -> Engine:
    """Return an engine for this worker that fits into memory, compiled and not started yet."""
    network, X, n_samples = shard.local, problem.X, len(problem.X)
    sparse = isinstance(X, SparseRows)
    if isinstance(engine, str):
        if engine == "auto":
            stored = entries_per_row(X) if sparse else None
            engine = choose(network, problem.n_rows, max_iter, shard.width, stored=stored)  # equal on all workers
            if solver.batch_size and engine != "dense":
                engine = "dense" if sparse else "rows"
            engine = "data" if solver.trains_outputs and engine != "dense" else engine
        engine = create(engine)
    _check_engine(engine, solver, shard)
    engine.expect(X)
    # Where workers share the rows: the gradient of this worker's rows and that of all rows.
    gradients = 2.0 if problem.row_group.size > 1 else 0.0
    engine = within_memory(
        engine,
        network,
        n_samples,
        solver_bytes=lambda part: solver.extra_bytes(part, n_samples) + gradients * part.weights.nbytes,
        limit=memory,
    )
    if shard.group is not SINGLE_PROCESS:
        engine = DistributedEngine(engine, shard)
    if problem.row_group.size > 1:
        engine = RowSharesEngine(engine, problem.row_group)
    index = engine.index_kind(network, n_samples)
    compile_kernels(engine.name, network.dtype, index, several_outputs=network.n_outputs > 1, sparse=sparse)
    return engine


def _check_engine(engine: Engine, solver: Solver, shard: NetworkShard) -> None:
    """Raise InputError for combinations of engine, solver and workers that are not supported."""
    workers = shard.grid.everybody.size
    if solver.batch_size and not isinstance(engine, BatchEngine):
        raise InputError(f"`engine` must be 'rows', 'dense' or 'auto' with batch_size, got {engine.name!r}.")
    for name, used in (("batch_size", solver.batch_size), ("trained_outputs", solver.trains_outputs)):
        if used and workers > 1:
            raise InputError(f"`{name}` needs a single process, got {workers} workers.")
    if shard.grid.same_neurons.size > 1 and not solver.shares_rows:
        raise InputError(
            f"solver {solver.name!r} needs all rows on every worker, got a grid of {shard.grid}; use "
            f"solver='gradient', or a grid of {workers}x1"
        )
