"""The contract between the training loop and a solver.

The order of calls::

    solver.remember_start(network)
    solver.start(run)                        # once, after the preprocessing of the engine
    solver.resume(run, state, neuron_state)  # instead of start, from a checkpoint; then resume_outputs
    for each iteration:
        progress = …                         # the loop: forward pass, loss, residual, record, callbacks, stopping
        solver.step(progress)                # move the weights by way of the engine
    solver.finish()
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fireset.network import ShiftedReLUNetwork
from fireset.training.losses import Loss
from fireset.training.progress import Progress

if TYPE_CHECKING:
    from fireset.training.pass_state import PassState
    from fireset.training.run import Run


class Solver(ABC):
    """Moves the weights from one iteration to the next.

    Attributes
    ----------
    name : str
        Name in the registry, the value of ``solver=``.
    label : str
        Name in reports, such as "Gauss–Newton"; empty for ``name``.
    iteration_label : str
        Name of one iteration in reports and in the progress bar, in the singular.
    runs_to_max_iter : bool
        Whether runs usually take ``max_iter`` iterations, so that the progress bar shows the remaining time.
    default_output_scale : float
        Output scale κ that the estimators use for ``output_scale="auto"``.
    steady_since : int or None
        Iteration since which the settings of the solver are unchanged; a plateau of the loss is searched from there on.
        None for a solver that sets ``converged`` itself.
    batch_size : int or None
        Rows of a batch, for a solver that needs a ``BatchEngine``.
    trains_outputs : bool
        Whether it moves ``network.output_weights``, too.
    shares_rows : bool
        Whether workers may have different rows. All sums over rows must then be made by ``problem.total``.
    is_descent : bool
        Whether every step follows the gradient, as in the paper.
    uses_centres : bool
        Whether the weights move in the span of the gradients of some rows, the centres.
    row_unit : int
        Workers' shares of the training rows begin at multiples of this number, where there are enough rows.
    uses_tangent_products : bool
        Whether it multiplies by the tangent kernel instead of calling ``engine.step``; the kernels of the other kind
        are not compiled.
    chooses_output_scale : bool
        Whether ``trained_outputs`` may be any scale, which the estimators then choose by leave-one-out.
    forward_only : bool
        Whether it calls no method of the engine but ``forward``. "auto" is then an engine without preprocessing.
        The memory of the initial weights of all neurons, on every worker, is counted.
    converged : bool
        Set by ``step`` when no further step is worthwhile: training stops with ``StopReason.TOL``.
    stalled : bool
        Set by ``step`` when no step decreases the loss and convergence is not certain: training stops with
        ``StopReason.STALLED``.
    pass_state : PassState or None
        Where sums of long passes over the rows are stored, in a run with checkpoints. Set before ``start``.
    run : Run
        Set by ``start`` or ``resume``.
    """

    name: str
    label: ClassVar[str] = ""
    iteration_label: ClassVar[str] = "iteration"
    runs_to_max_iter: ClassVar[bool] = True
    default_output_scale: ClassVar[float] = 10.0
    steady_since: int | None = 0
    batch_size: int | None = None
    trains_outputs: bool = False
    shares_rows: bool = False
    is_descent: ClassVar[bool] = False
    uses_centres: ClassVar[bool] = False
    row_unit: ClassVar[int] = 1
    uses_tangent_products: ClassVar[bool] = False
    chooses_output_scale: ClassVar[bool] = False
    forward_only: ClassVar[bool] = False
    converged: bool = False
    stalled: bool = False
    pass_state: "PassState | None" = None

    run: "Run"

    @classmethod
    def default_tol(cls, loss: Loss) -> float:  # noqa: ARG003
        """Return the ``tol`` that the estimators use for ``tol="auto"``."""
        return 1e-4

    def remember_start(self, network: ShiftedReLUNetwork) -> None:
        """Store what is needed of the initial weights. Called before all other methods, also in a resumed run."""

    def start(self, run: "Run") -> None:
        """Prepare for the first iteration. The engine has been started."""
        self.run = run

    @abstractmethod
    def step(self, progress: Progress) -> None:
        """Move the weights by way of ``run.engine``. ``progress`` describes the current weights."""

    def predictions(self) -> np.ndarray | None:
        """Return outputs (n, c) of the last step that the loop can record instead of a forward pass, or None."""
        return None

    def use_rows(self, run: "Run", *, rolled_back: bool) -> None:  # noqa: ARG002
        """Continue on other rows. ``rolled_back`` is whether the last run ended with other than its last weights."""
        self.start(run)

    def finish(self) -> None:
        """Called after the last iteration, before the best weights are restored."""

    def penalty(self) -> float:
        """Return the part of the objective that is not the loss, at the current weights."""
        return 0.0

    def penalty_at_zero(self) -> float:
        """Return ``penalty`` of weights that are all 0."""
        return 0.0

    @property
    def adaptive(self) -> bool:
        """Whether ``step`` handles a loss that has grown. If not, a loss beyond all bounds ends the run."""
        return False

    @property
    def learning_rate(self) -> float:
        """The step size in the history."""
        return 1.0

    @property
    def momentum(self) -> float:
        """Momentum of the steps; 0 if they follow the gradient alone."""
        return 0.0

    def details(self) -> dict[str, Any]:
        """Return results besides the history, for ``TrainingResult.details``."""
        return {}

    def settings(self) -> dict[str, Any]:
        """Return the settings, by their public names, that must be equal when a checkpoint is resumed."""
        return {"solver": self.name}

    def extra_bytes(self, network: ShiftedReLUNetwork, n_samples: int) -> float:  # noqa: ARG002
        """Return the memory that the solver needs besides the weights."""
        return 0.0

    # Checkpoints

    @property
    def neuron_state(self) -> np.ndarray | None:
        """State with one row for each neuron, (m, d), or None. Rows of zeros are not stored."""
        return None

    def state(self) -> dict[str, float]:
        """Return the rest of the state."""
        return {}

    def drop_caches(self) -> None:
        """Delete what a resumed run does not have. Called after each checkpoint, so that both take the same steps."""

    def check_state(self, state: Mapping[str, Any], iteration: int) -> None:
        """Raise InputError if ``state``, read from an untrusted file, is invalid before this iteration."""

    @property
    def output_state(self) -> np.ndarray | None:
        """The state for each neuron's output weights, (m, c), or None."""
        return None

    def resume_outputs(self, output_state: np.ndarray | None) -> None:
        """Continue from a checked ``output_state``, after ``resume``."""

    def resume(self, run: "Run", state: Mapping[str, Any], neuron_state: np.ndarray | None) -> None:  # noqa: ARG002
        """Continue from a checked ``state`` and ``neuron_state``. The engine is started afterwards."""
        self.run = run
