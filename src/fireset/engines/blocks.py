"""The data engine on one block of neurons after the other, for lists that do not fit into memory all at once.

Lists are made for a block, used, and thrown away. A step and the forward pass after it are one pass over the blocks:
a block's lists are made, its neurons move, and while the lists are still there they say what the moved neurons predict.
So an iteration makes every list once: it looks at all n·m pairs in a matrix product, as the dense engine does twice,
where the data engine itself would look at candidates only. That is the price; memory is that of one block's lists.
"""

from math import sqrt

import numpy as np

from fireset.engines.base import EngineWork, Step
from fireset.engines.data_search import DataSearchEngine
from fireset.network import ShiftedReLUNetwork
from fireset.theory.kernel import fire_set_product

RADIUS = 0.1  # a list lives for one step, so that it need not reach far; a neuron that moves further is asked again


class BlockEngine:
    """Exact, as the data engine. Called by its name; ``fireset.memory`` chooses the number of blocks."""

    name = DataSearchEngine.name
    exact = True

    def __init__(self, blocks: int):
        self.blocks = blocks
        self.work = EngineWork()

    def index_for(self, network, n_samples: int) -> str:  # noqa: ARG002 - every list is made in every iteration
        return "scan"

    def start(self, network, X: np.ndarray) -> None:
        self._network, self._X = network, X
        m = network.width
        self._spans = [(m * k // self.blocks, m * (k + 1) // self.blocks) for k in range(self.blocks)]
        self._predictions: np.ndarray | None = None
        self._product = None

    def forward(self) -> np.ndarray:
        if self._predictions is None:
            self._pass()
        assert self._predictions is not None
        return self._predictions.copy()

    def descend(self, residual: np.ndarray, step: Step) -> None:
        self._product = None
        step.velocity_for(self._network.weights)
        self._pass(residual, step)

    def _pass(self, residual: np.ndarray | None = None, step: Step | None = None) -> None:
        """Predictions, block by block, after a step if there is one to take."""
        network = self._network
        total = np.zeros((len(self._X), network.n_outputs))
        fired = 0
        for lo, hi in self._spans:
            part, inner = self._started(lo, hi)
            scale = sqrt(part.width / network.width)  # the block divides by the root of its own width
            if residual is not None and step is not None:
                velocity = step.velocity[lo:hi] if step.momentum else step.velocity
                inner.forward()
                inner.descend(residual * scale, Step(step.rate, step.momentum, step.nesterov, velocity))
            total += inner.forward() * scale
            fired += inner.work.fired_pairs
            self._count(inner.work)
        self.work.fired_pairs = fired
        self._predictions = total

    def _started(self, lo: int, hi: int) -> tuple[ShiftedReLUNetwork, DataSearchEngine]:
        network = self._network
        part = ShiftedReLUNetwork(network.weights[lo:hi], network.signs[lo:hi], network.threshold)
        inner = DataSearchEngine(radius=RADIUS, index="scan")
        inner.start(part, self._X)
        return part, inner

    def _count(self, work: EngineWork) -> None:
        self.work.inner_products += work.inner_products
        self.work.nodes_visited += work.nodes_visited
        self.work.refreshes += work.refreshes
        self.work.audited += work.audited

    def tangent_product(self, direction: np.ndarray) -> np.ndarray:
        """H v of the fire-set kernel, for v (n, c), estimated from the first block alone.

        Neurons are drawn alike, so that a block of thousands has the kernel of all up to sampling error. Only the first
        learning rate is made from it.
        """
        if self._product is None:
            part, inner = self._started(*self._spans[0])
            self._product = fire_set_product(self._X, part.signs, inner.fire_sets())
        return self._product(direction)

    def fire_sets(self):
        """n × m, by looking at every pair."""
        return self._network.fire_sets(self._X)
