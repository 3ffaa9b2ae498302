"""Checkpoints of a run without a trainer, for tests of invalid files."""

from fireset import Checkpoints, ShiftedReLUNetwork
from fireset.distributed.process_group import SINGLE_PROCESS
from fireset.distributed.shard import NetworkShard
from fireset.distributed.worker_grid import WorkerGrid
from fireset.engines import create
from fireset.training.checkpoint import RunCheckpoints
from fireset.training.history import History
from fireset.training.losses import SquaredError
from fireset.training.problem import TrainingProblem
from fireset.training.run import Run
from fireset.training.solvers import Solver


def folder_for(
    checkpoints: Checkpoints, network: ShiftedReLUNetwork, solver: Solver, settings: dict
) -> tuple[RunCheckpoints, History]:
    """Return the checkpoints of a run of this network and solver, and its history."""
    rows = network.weights[:1] / (network.weights[:1] ** 2).sum() ** 0.5
    problem = TrainingProblem.check(network, rows, rows[:, : network.n_outputs], SquaredError())
    shard = NetworkShard.of(network, WorkerGrid.neurons_only(SINGLE_PROCESS))
    run = Run(shard, create("dense"), problem, SquaredError(), solver, max_iter=100)
    return RunCheckpoints(checkpoints, run, settings), run.history
