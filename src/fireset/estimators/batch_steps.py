"""Gradient steps of ``partial_fit``, with a step size that survives pickling, copying and saving."""

from dataclasses import dataclass

from fireset.training.run import Run
from fireset.training.solvers import GradientDescent


@dataclass(frozen=True)
class BatchRate:
    """The step size after a batch, and what it is valid for."""

    rate: float
    weight: float  # total sample weight of the batch; the step size is inversely proportional to it
    settings: tuple[str, ...]  # engine, loss, learning rate and kind of rows: others need another step size


class BatchDescent(GradientDescent):
    """Plain gradient descent that starts from the step size of the previous batch, if there is one."""

    def __init__(self, learning_rate: float | str, previous: BatchRate | None):
        super().__init__(learning_rate)
        self._previous = previous

    def start(self, run: Run) -> None:
        previous, self._previous = self._previous, None
        if previous is None or not self.adaptive:
            super().start(run)
            return
        self.run = run
        self._rule.rate = previous.rate * previous.weight / run.problem.total(run.problem.weight.sum())[0]
