"""Mini-batch gradient descent. An iteration is an epoch: one pass over all rows, in batches.

Only the neurons that are active for a batch are read or moved (Qin, Song and Yang, "Efficient SGD Neural Network
Training via Sublinear Activated Neuron Identification", 2023). Steps are exact.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fireset._util.checks import whole_number
from fireset._util.errors import InputError
from fireset.engines.base import BatchEngine
from fireset.engines.tangent import largest_eigenvalue
from fireset.training.progress import Progress
from fireset.training.run import Run
from fireset.training.solvers.gradient import GradientDescent

_RATE_BATCHES = 3  # whose largest eigenvalue determines the learning rate


class MiniBatchDescent(GradientDescent):
    """``W ← W − η ∂L_B/∂W`` for batches B of rows, in a new random order for each epoch.

    L_B is the sum over the batch, as L is over all rows. The loss of an epoch in the history is that of its batches,
    each before its step, so that no additional pass over all rows is needed.

    Parameters
    ----------
    batch_size : int
    shuffle_seed : int
        Determines the order of the rows on all machines.
    learning_rate : "auto" or float
        "auto" is (1 − momentum)/λ_max of the tangent kernel of a batch, halved when the loss of an epoch grows.
    momentum, nesterov
        As for full batches; the velocity is kept from batch to batch.
    """

    def __init__(
        self,
        batch_size: int,
        shuffle_seed: int = 0,
        learning_rate: float | str = "auto",
        momentum: float = 0.0,
        nesterov: bool = False,
    ):
        if learning_rate == "theory":
            raise InputError("learning_rate='theory' is proved for full batches; use 'auto' or a number")
        super().__init__(learning_rate, momentum, nesterov)
        self.batch_size = self._size = whole_number("batch_size", batch_size, 1)
        self._seed = whole_number("shuffle_seed", shuffle_seed, 0)
        self._epoch_predictions: np.ndarray | None = None

    def start(self, run: Run) -> None:
        self.run = run
        self._epoch_predictions = None
        unit = run.problem.weight_unit
        self._rule.rate = self._batch_rate() if self.adaptive else float(self._step_size.requested) * unit

    def _batch_rate(self) -> float:
        network, problem = self.run.network, self.run.problem
        tops = []
        for rows in list(self._batches(0))[:_RATE_BATCHES]:
            X, weight = problem.X[rows], problem.weight[rows]
            top = largest_eigenvalue(X, network.output_weights, network.fire_sets(X), weight)
            tops.append(top * network.output_scale**2)
        top = self.run.loss.step_curvature(network.n_outputs) * max(tops, default=0.0)
        return (1.0 - self.momentum) / top if top > 0 else 1.0  # momentum repeats the steps of earlier batches

    def _batches(self, epoch: int) -> Iterator[np.ndarray]:
        rows = np.flatnonzero(self.run.problem.weight > 0)
        order = np.random.default_rng([self._seed, epoch]).permutation(rows)
        for lo in range(0, len(order), self._size):
            yield order[lo : lo + self._size]

    def _descend(self, progress: Progress) -> None:
        engine, problem, loss = self.run.engine, self.run.problem, self.run.loss
        assert isinstance(engine, BatchEngine), "checked in engine_setup.py"
        u, active = np.empty_like(progress.predictions), 0
        for rows in self._batches(progress.record.iteration):
            u[rows] = engine.forward_rows(rows)
            active += engine.work.active_pairs
            engine.step_rows(loss.residual(u[rows], problem.targets[rows], problem.weight[rows]), self._rule)
        others = np.flatnonzero(problem.weight == 0)
        if len(others):
            u[others] = engine.forward_rows(others)
            active += engine.work.active_pairs
        engine.end_batches(self._rule)
        engine.work.active_pairs = active
        self._epoch_predictions = u

    def predictions(self) -> np.ndarray | None:
        return self._epoch_predictions

    def drop_caches(self) -> None:
        self._epoch_predictions = None  # the next iteration makes a forward pass, as a resumed run does

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "batch_size": self.batch_size, "shuffle_seed": self._seed}
