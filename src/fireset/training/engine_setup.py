"""The choice of an engine for a run, within the available memory, with its kernels compiled."""

from fireset._util.errors import InputError
from fireset.distributed.engine import sum_over_workers
from fireset.distributed.shard import NetworkShard
from fireset.engines.base import Engine
from fireset.engines.registry import REFERENCE, choose, create, names_with
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
    resumed_engine: str | None = None,
) -> Engine:
    """Return an engine for this worker that fits into memory, compiled and not started yet.

    ``engine="auto"`` is ``resumed_engine``, that of the checkpoint to resume from; without one, the fastest.
    """
    network, X, n_samples = shard.local, problem.X, len(problem.X)
    sparse = isinstance(X, SparseRows)
    if isinstance(engine, str):
        if engine == "auto" and solver.forward_only:
            engine = create(REFERENCE, forward_only=True)
        elif engine == "auto":
            engine = resumed_engine or choose(
                network,
                problem.n_rows,
                max_iter,
                shard.width,  # of the whole network, so that all workers choose the same engine
                entries_per_row=entries_per_row(X) if sparse else None,
                batches=bool(solver.batch_size),
                trained_outputs=solver.trains_outputs,
            )
        engine = create(engine) if isinstance(engine, str) else engine
    _check_engine(engine, solver, shard)
    engine.check_input(X)
    # Where workers share the rows: the gradient of this worker's rows and that of all rows. Where they share the
    # neurons: those of all workers, for solvers on centres.
    copies = 2.0 if problem.row_group.size > 1 else 0.0
    copies += 2.0 * shard.group.size if solver.forward_only and shard.group.size > 1 else 0.0
    engine = within_memory(
        engine,
        network,
        n_samples,
        solver_bytes=lambda part: solver.extra_bytes(part, n_samples) + copies * part.weights.nbytes,
        limit=memory,
    )
    if not solver.batch_size:  # batches are for one process
        engine = sum_over_workers(engine, shard, problem.row_group)
    index = engine.index_kind(network, n_samples)
    compile_kernels(
        engine.name,
        network.dtype,
        index,
        several_outputs=network.n_outputs > 1,
        sparse=sparse,
        products=solver.uses_tangent_products,
        n_features=network.n_features,
    )
    return engine


def _check_engine(engine: Engine, solver: Solver, shard: NetworkShard) -> None:
    """Raise InputError for combinations of engine, solver and workers that are not supported."""
    workers = shard.grid.all_workers.size
    if solver.batch_size and not engine.supports_batches:
        allowed = ", ".join(["auto", *names_with("supports_batches")])
        raise InputError(f"`engine` must be one of {allowed} with batch_size, got {engine.name!r}.")
    if solver.batch_size and workers > 1:
        raise InputError(f"`batch_size` needs a single process, got {workers} workers.")
    if shard.grid.same_neurons.size > 1 and not solver.shares_rows:
        raise InputError(
            f"solver {solver.name!r} needs all rows on every worker, got a grid of {shard.grid}; use "
            f"solver='gradient', or a grid of {workers}x1"
        )
