"""A checkpoint folder without a trainer around it, for tests that feed it odd files."""

from fireset import Checkpoints, ShiftedReLUNetwork
from fireset.distributed.process_group import SINGLE_PROCESS
from fireset.distributed.shard import NetworkShard
from fireset.distributed.worker_grid import WorkerGrid
from fireset.engines import create
from fireset.training.best_weights import BestWeights
from fireset.training.checkpoint import CheckpointFolder
from fireset.training.history import History
from fireset.training.losses import SquaredError
from fireset.training.problem import TrainingProblem
from fireset.training.solvers import Solver, SolverContext


def folder_for(
    asked: Checkpoints, network: ShiftedReLUNetwork, solver: Solver, settings: dict
) -> tuple[CheckpointFolder, History]:
    """The folder of a run of this network and solver, and the history that it would bring back."""
    rows = network.weights[:1] / (network.weights[:1] ** 2).sum() ** 0.5
    problem = TrainingProblem.check(network, rows, rows[:, : network.n_outputs], SquaredError())
    best = BestWeights(network, by_validation=False)
    context = SolverContext(network, create("dense"), problem, SquaredError(), best, History(), SINGLE_PROCESS)
    shard = NetworkShard.of(network, WorkerGrid.neurons_only(SINGLE_PROCESS))
    return CheckpointFolder(asked, shard, context, solver, settings), context.history
