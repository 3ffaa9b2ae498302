"""Gradient descent on batches of rows: an iteration of training is an epoch, in which every row is seen once.

"Efficient SGD Neural Network Training via Sublinear Activated Neuron Identification" (Qin, Song, Yang 2023) has the
theory: only the neurons that fire for a batch are read or moved. Steps are exact: the weights are those that looking at
every pair would give.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fireset._util.checks import whole_number
from fireset._util.errors import InputError
from fireset.engines.base import BatchEngine
from fireset.engines.tangent import largest_eigenvalue
from fireset.training.solvers.base import Evaluation, SolverContext
from fireset.training.solvers.gradient import GradientDescent

_LOOKED_AT = 3  # batches, for a step size that is safe on most


class MiniBatchDescent(GradientDescent):
    """``W ← W − η ∂L_B/∂W`` for batches B of rows, in an order that is drawn anew for each epoch.

    L_B is the sum over the batch, as L is over all rows. The loss that the history has of an epoch is what its batches
    saw, each before its step: no pass over all rows is spent on it.

    Parameters
    ----------
    batch_size : int
    shuffle_seed : int
        Decides the order of the rows; the same seed gives the same batches, on any machine.
    learning_rate : "auto" or float
        "auto" is (1 − momentum)/λ_max of the fire-set kernel of a batch, halved when an epoch makes the loss grow.
    momentum, nesterov
        As for full batches; the velocity goes on from batch to batch.
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
        self._seen: np.ndarray | None = None

    def start(self, context: SolverContext) -> None:
        self.context = context
        self._seen = None
        unit = context.problem.weight_unit
        self._rule.rate = self._batch_rate() if self.adaptive else float(self._step_size.asked) * unit

    def _batch_rate(self) -> float:
        network, problem = self.context.network, self.context.problem
        tops = []
        for rows in list(self._batches(0))[:_LOOKED_AT]:
            X, weight = problem.X[rows], problem.weight[rows]
            top = largest_eigenvalue(X, network.output_weights, network.fire_sets(X), weight)
            tops.append(top * network.output_scale**2)
        top = self.context.loss.step_curvature(network.n_outputs) * max(tops, default=0.0)
        return (1.0 - self.momentum) / top if top > 0 else 1.0  # momentum goes on with what batches gave before

    def _batches(self, epoch: int) -> Iterator[np.ndarray]:
        rows = np.flatnonzero(self.context.problem.weight > 0)
        order = np.random.default_rng([self._seed, epoch]).permutation(rows)
        for lo in range(0, len(order), self._size):
            yield order[lo : lo + self._size]

    def _descend(self, evaluation: Evaluation) -> None:
        engine, problem, loss = self.context.engine, self.context.problem, self.context.loss
        assert isinstance(engine, BatchEngine), "the plan gives no other"
        seen, active = np.empty_like(evaluation.predictions), 0
        for rows in self._batches(evaluation.record.iteration):
            seen[rows] = engine.forward_rows(rows)
            active += engine.work.active_pairs
            engine.step_rows(loss.residual(seen[rows], problem.targets[rows], problem.weight[rows]), self._rule)
        others = np.flatnonzero(problem.weight == 0)
        if len(others):
            seen[others] = engine.forward_rows(others)
            active += engine.work.active_pairs
        engine.end_batches(self._rule)
        engine.work.active_pairs = active
        self._seen = seen

    def predictions(self) -> np.ndarray | None:
        return self._seen

    def drop_caches(self) -> None:
        self._seen = None  # the next iteration is evaluated, as after a crash

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "batch_size": self.batch_size, "shuffle_seed": self._seed}
