"""The state of a training run, shared by the loop, the solver and the checkpoints."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fireset.distributed.process_group import ProcessGroup
from fireset.distributed.shard import NetworkShard
from fireset.engines.base import Engine
from fireset.network import ShiftedReLUNetwork
from fireset.training.best_weights import BestWeights
from fireset.training.history import History
from fireset.training.losses import Loss
from fireset.training.problem import TrainingProblem
from fireset.training.work_meter import WorkMeter

if TYPE_CHECKING:
    from fireset.training.solvers.base import Solver


@dataclass(frozen=True)
class Run:
    """Everything that a run consists of, on this worker.

    Attributes
    ----------
    shard : NetworkShard
        The neurons of this worker.
    memory : int or None
        Bytes that this process may use, if the user has set a limit.
    meter : WorkMeter
        Work within an iteration, for progress displays.
    history : History
    best : BestWeights
        The weights to return to.
    """

    shard: NetworkShard
    engine: Engine
    problem: TrainingProblem
    loss: Loss
    solver: "Solver"
    max_iter: int
    memory: int | None = None
    meter: WorkMeter = field(default_factory=WorkMeter)
    history: History = field(default_factory=History)
    best: BestWeights = field(init=False)

    def __post_init__(self) -> None:
        best = BestWeights(
            self.network, by_validation=self.problem.has_validation, with_outputs=self.solver.trains_outputs
        )
        object.__setattr__(self, "best", best)

    @property
    def network(self) -> ShiftedReLUNetwork:
        """The network of this worker's neurons."""
        return self.shard.local

    @property
    def group(self) -> ProcessGroup:
        """All workers that train together."""
        return self.shard.grid.all_workers

    def on(self, problem: TrainingProblem) -> "Run":
        """Return a run on other rows with an empty history, from the current weights."""
        return replace(self, problem=problem, history=History())

    def start_engine(self) -> None:
        """Do the preprocessing of the engine at the current weights."""
        self.engine.start(self.network, self.problem.X)

    def roll_back(self) -> None:
        """Return to the best weights, and start the engine there."""
        self.best.restore()
        self.start_engine()
