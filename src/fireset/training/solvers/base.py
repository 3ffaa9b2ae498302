"""The contract between the training loop and a solver.

The order of calls::

    solver.remember_start(network)
    solver.start(context)             # once, after the engine's preprocessing; not when a checkpoint is resumed
    solver.resume(context, state, velocity)  # instead of start, from a checkpoint
    for each iteration:
        evaluation = …                # the loop: forward pass, loss, residual, record, callbacks, stopping
        solver.step(evaluation)       # moves the weights, and tells the engine

A solver has one job, to move the weights. A mini-batch solver chooses rows in ``step``; one with a preconditioner makes
it in ``start``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fireset.distributed.process_group import ProcessGroup
from fireset.engines.base import Engine
from fireset.network import ShiftedReLUNetwork
from fireset.training.best_weights import BestWeights
from fireset.training.history import History, Iteration
from fireset.training.losses import Loss
from fireset.training.problem import TrainingProblem


@dataclass(frozen=True)
class SolverContext:
    """What a solver works with, the same objects through a whole run."""

    network: ShiftedReLUNetwork  # this worker's neurons
    engine: Engine
    problem: TrainingProblem
    loss: Loss
    best: BestWeights
    history: History
    group: ProcessGroup  # the workers that train together
    memory: int | None = None  # bytes that this process may take, where the user has said


@dataclass(frozen=True)
class Evaluation:
    """The network at the current weights. ``residual`` is in units of ``problem.weight_unit``, the loss is not."""

    record: Iteration
    predictions: np.ndarray  # u, (n, c), of this worker's rows
    residual: np.ndarray  # ∂L/∂u, (n, c)


class Solver(ABC):
    """Moves the weights from one iteration to the next.

    Attributes
    ----------
    name : str
        What users type.
    steady_since : int or None
        Iteration since which the solver has left its own settings alone; plateaus are looked for from there on. None
        for a solver that says itself, by ``converged``, when to stop.
    batch_size : int or None
        Rows of a batch, for a solver that needs an engine that takes batches.
    trains_outputs : bool
        Whether it moves ``network.output_weights``, too.
    shares_rows : bool
        Whether workers may have some rows each: whatever it sums over rows, it sums by ``problem.total``.
    converged : bool
        Set by ``step`` when nothing worth a step is left: training stops with ``StopReason.TOL``.
    stalled : bool
        Set by ``step`` when no step decreases the loss, though the solver cannot say that it has converged: training
        stops with ``StopReason.STALLED``.
    """

    name: str
    steady_since: int | None = 0
    batch_size: int | None = None
    trains_outputs: bool = False
    shares_rows: bool = False
    converged: bool = False
    stalled: bool = False

    context: SolverContext

    def remember_start(self, network: ShiftedReLUNetwork) -> None:
        """Called first of all, while the network has the weights that training begins with."""

    def start(self, context: SolverContext) -> None:
        """Prepare for the first iteration. The engine has been started."""
        self.context = context

    @abstractmethod
    def step(self, evaluation: Evaluation) -> None:
        """Move the weights from where ``evaluation`` was made, by way of ``context.engine``."""

    def predictions(self) -> np.ndarray | None:
        """What the last step saw of the network's predictions, (n, c), to be recorded as the next iteration.

        None for a solver that leaves it to the loop, which makes a forward pass.
        """
        return None

    def use_rows(self, context: SolverContext, *, went_back: bool) -> None:  # noqa: ARG002
        """Go on with other rows. ``went_back`` says that the last step on the rows before made things worse."""
        self.start(context)

    def finish(self) -> None:
        """Called after the last iteration: leave the weights that the solver stands by in the network."""

    def penalty(self) -> float:
        """What the solver's objective has besides the loss, at the current weights."""
        return 0.0

    def penalty_at_zero(self) -> float:
        """Return ``penalty`` of weights that are all 0."""
        return 0.0

    @property
    def adaptive(self) -> bool:
        """Whether ``step`` deals with a loss that has grown. If not, a loss beyond all bounds ends the run."""
        return False

    @property
    def learning_rate(self) -> float:
        """What the history records as the step size."""
        return 1.0

    @property
    def momentum(self) -> float:
        """For whoever must know whether steps follow the gradient alone."""
        return 0.0

    def details(self) -> dict[str, Any]:
        """What a user may want to know of how it went, besides the history."""
        return {}

    def settings(self) -> dict[str, Any]:
        """What must be the same when a checkpoint is resumed, by the names that users know."""
        return {"solver": self.name}

    def extra_bytes(self, network: ShiftedReLUNetwork, n_samples: int) -> float:  # noqa: ARG002
        """Memory that it needs besides the weights."""
        return 0.0

    def spare_bytes(self, network: ShiftedReLUNetwork, n_samples: int, free: float) -> float:  # noqa: ARG002
        """Memory that it takes as well where ``free`` bytes, with all else in place, have room for it."""
        return 0.0

    # Checkpoints

    @property
    def velocity(self) -> np.ndarray | None:
        """State with a row for each neuron, (m, d), if there is any."""
        return None

    def state(self) -> dict[str, float]:
        """The rest of its state."""
        return {}

    def drop_caches(self) -> None:
        """Called after a checkpoint was written, so that a run that goes on does as one that is resumed from it."""

    def check_state(self, state: Mapping[str, Any], iteration: int) -> None:
        """Refuse what cannot be the ``state`` of a run before this iteration: they come from an untrusted file."""

    def resume(self, context: SolverContext, state: Mapping[str, Any], velocity: np.ndarray | None) -> None:  # noqa: ARG002
        """Go on as the solver did whose checked ``state`` and ``velocity`` these are; the engine starts after it."""
        self.context = context
