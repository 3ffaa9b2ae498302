"""The data engine on one block of neurons after the other, for lists that do not fit into memory all at once.

Lists are made for a block, used, and thrown away. A step and the forward pass after it are one pass over the blocks:
a block's lists are made, its neurons move, and while the lists are still there they say what the moved neurons predict.
So an iteration makes every list once: it looks at all n·m pairs in a matrix product, as the dense engine does twice,
where the data engine itself would look at candidates only. That is the price; memory is that of one block's lists.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import fields
from math import ceil, sqrt

import numpy as np

from fireset.engines.base import Engine, EngineWork
from fireset.engines.data_search import DataSearchEngine
from fireset.engines.step_rule import RowGradients, StepRule
from fireset.engines.tangent import TangentOperator

_RADIUS = 0.1  # a list lives for one step, so that it need not reach far; a neuron that moves further is asked again
_MIN_NEURONS = 512  # of a block


class BlockEngine(Engine):
    """Exact, as the data engine, and called by its name: it is what becomes of it where memory is short.

    Parameters
    ----------
    blocks : int
        Number of blocks; ``within_budget`` finds one that fits.
    """

    name = DataSearchEngine.name
    summary = DataSearchEngine.summary
    takes_sparse = True
    can_shrink = True

    def __init__(self, blocks: int):
        super().__init__()
        self.blocks = blocks

    @classmethod
    def within_budget(cls, network, n_samples: int, budget: float, *, sparse: bool = False) -> "BlockEngine | None":
        """With as few blocks as fit ``budget`` bytes; None if even the smallest would not."""
        most = max(1, network.width // _MIN_NEURONS)
        engine = cls(most)
        engine.sparse = sparse
        if engine.memory_bytes(network, n_samples) > budget:
            return None
        candidates = range(1, most + 1)  # of which the first one that fits is wanted; more blocks never take more
        engine.blocks = candidates[
            bisect_left(candidates, True, key=lambda blocks: _bytes(network, n_samples, blocks, sparse) <= budget)
        ]
        return engine

    def memory_bytes(self, network, n_samples: int) -> float:
        """Those of the data engine on one block, and the predictions so far."""
        return _bytes(network, n_samples, self.blocks, self.sparse)

    def index_kind(self, network, n_samples: int) -> str:  # noqa: ARG002 - every list is made in every iteration
        return "scan"

    def _prepare(self) -> None:
        m = self.network.width
        self._spans = [(m * k // self.blocks, m * (k + 1) // self.blocks) for k in range(self.blocks)]
        self._predictions: np.ndarray | None = None

    def forward(self) -> np.ndarray:
        if self._predictions is None:
            self._pass()
        assert self._predictions is not None
        return self._predictions.copy()

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        self._pass(residual, rule)

    def weights_moved(self, neurons: np.ndarray, distances: np.ndarray) -> None:  # noqa: ARG002
        self._predictions = None

    def outputs_moved(self) -> None:
        """Discard the predictions of the last step: they were made with the outputs before."""
        self._predictions = None

    def gradient(self, residual: np.ndarray) -> RowGradients:
        parts = [inner.gradient(residual * scale) for _, inner, scale in self._started_blocks()]
        firsts = [lo for lo, _ in self._spans]
        neurons = [part.neurons + lo for part, lo in zip(parts, firsts, strict=True)]
        return RowGradients(np.concatenate(neurons), np.concatenate([part.rows for part in parts]))

    def tangent_operator(self) -> TangentOperator:
        """Each product makes all lists anew."""

        def product(direction: np.ndarray) -> np.ndarray:
            blocks = self._started_blocks()
            return np.sum([inner.tangent_product(direction) * scale**2 for _, inner, scale in blocks], axis=0)

        return product

    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        blocks = self._started_blocks()
        parts = [inner.jacobian_product(directions[slice(*span)]) * scale for span, inner, scale in blocks]
        return np.sum(parts, axis=0)

    def approximate_tangent_operator(self) -> TangentOperator:
        """From the first block alone: neurons are drawn alike, and some thousands have the kernel of all of them."""
        return self._started(*self._spans[0])[0].tangent_operator()

    def fire_sets(self):
        """n × m, by looking at every pair."""
        return self.network.fire_sets(self.X)

    def _pass(self, residual: np.ndarray | None = None, rule: StepRule | None = None) -> None:
        """Predictions, block by block, after a step if there is one to take."""
        total = np.zeros((len(self.X), self.network.n_outputs))
        active = 0
        for span, inner, scale in self._started_blocks():
            if residual is not None and rule is not None:
                inner.forward()
                inner.step(residual * scale, rule.for_neurons(self.network.weights, *span))
            total += inner.forward() * scale
            active += inner.work.active_pairs
        self.work.active_pairs = active
        self._predictions = total

    def _started_blocks(self) -> Iterator[tuple[tuple[int, int], DataSearchEngine, float]]:
        """One block after the other: its neurons, an engine on them, and √(its share of the width)."""
        for span in self._spans:
            inner, scale = self._started(*span)
            yield span, inner, scale
            self._count(inner.work)
            inner.forget()  # whoever asked still has it while the next one is made

    def _started(self, lo: int, hi: int) -> tuple[DataSearchEngine, float]:
        network = self.network
        part = network.part(slice(lo, hi))
        inner = _inner()
        inner.start(part, self.X)
        return inner, sqrt(part.width / network.width)  # the block divides by the root of its own width

    def _count(self, work: EngineWork) -> None:
        for f in fields(EngineWork):
            done = getattr(work, f.name)
            if done is not None and f.name != "active_pairs":
                setattr(self.work, f.name, getattr(self.work, f.name) + done)


def _bytes(network, n_samples: int, blocks: int, sparse: bool) -> float:
    inner = _inner()
    inner.sparse = sparse
    block = network.part(slice(0, ceil(network.width / blocks)))
    return inner.memory_bytes(block, n_samples) + 16.0 * n_samples * network.n_outputs


def _inner() -> DataSearchEngine:
    return DataSearchEngine(radius=_RADIUS, index="scan")
