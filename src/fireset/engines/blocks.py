"""The data engine on one block of neurons after the other, if the candidate lists do not fit into memory.

The lists of a block are made, used and discarded. A step and the next forward pass are one pass over the blocks: make
the lists of a block, move its neurons, and predict with the moved neurons while the lists still exist. An iteration
thus makes every list once and computes all n·m pairs in a matrix product; the dense engine does so twice, and the data
engine tests candidates only. Memory is that of the lists of one block.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import fields
from math import ceil, sqrt

import numpy as np

from fireset.engines.base import EngineWork
from fireset.engines.data_search import DataSearchEngine
from fireset.engines.fire_set_engine import FireSetEngine
from fireset.engines.step_rule import NeuronGradients, StepRule
from fireset.engines.tangent import TangentOperator
from fireset.hsr import HalfSpaceIndex

_RADIUS = 0.1  # small, since a list is used for one step; a neuron that moves further is refreshed
_MIN_NEURONS_PER_BLOCK = 512


class BlockEngine(FireSetEngine):
    """The engine "data" for small memory: exact, with the same name, and slower.

    Parameters
    ----------
    blocks : int
        Number of blocks; ``within_budget`` finds one that fits.
    index : str or HalfSpaceIndex
        The index of the data engine of each block.
    """

    name = DataSearchEngine.name
    summary = DataSearchEngine.summary
    supports_sparse = True
    can_reduce_memory = True

    def __init__(self, blocks: int, index: str | HalfSpaceIndex = "scan"):
        super().__init__()
        self.blocks, self._index = blocks, index

    @classmethod
    def within_budget(
        cls, network, n_samples: int, budget: float, *, sparse: bool = False, index: str | HalfSpaceIndex = "scan"
    ) -> "BlockEngine | None":
        """Create an engine with the fewest blocks that fit into ``budget`` bytes; None if no number of blocks does."""
        most = max(1, network.width // _MIN_NEURONS_PER_BLOCK)
        engine = cls(most, index)
        engine.sparse = sparse
        if engine.memory_bytes(network, n_samples) > budget:
            return None
        candidates = range(1, most + 1)  # more blocks never take more memory
        engine.blocks = candidates[
            bisect_left(candidates, True, key=lambda blocks: engine._bytes(network, n_samples, blocks) <= budget)
        ]
        return engine

    def memory_bytes(self, network, n_samples: int) -> float:
        """Memory of the data engine on one block, and the predictions so far."""
        return self._bytes(network, n_samples, self.blocks)

    def _bytes(self, network, n_samples: int, blocks: int) -> float:
        inner = self._block_engine()
        inner.sparse = self.sparse
        block = network.part(slice(0, ceil(network.width / blocks)))
        return inner.memory_bytes(block, n_samples) + 16.0 * n_samples * network.n_outputs

    def _block_engine(self) -> DataSearchEngine:
        return DataSearchEngine(radius=_RADIUS, index=self._index)

    def index_kind(self, network, n_samples: int) -> str:
        return self._block_engine().index_kind(network, n_samples)

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
        """Discard the predictions of the last step, which used the previous output weights."""
        self._predictions = None

    def gradient(self, residual: np.ndarray) -> NeuronGradients:
        parts = [inner.gradient(residual * scale) for _, inner, scale in self._started_blocks()]
        firsts = [lo for lo, _ in self._spans]
        neurons = [part.neurons + lo for part, lo in zip(parts, firsts, strict=True)]
        return NeuronGradients(np.concatenate(neurons), np.concatenate([part.rows for part in parts]))

    def output_gradient(self, residual: np.ndarray) -> np.ndarray:
        return np.concatenate([inner.output_gradient(residual * scale) for _, inner, scale in self._started_blocks()])

    def tangent_operator(self) -> TangentOperator:
        """Each product makes all lists again; otherwise as ``Engine.tangent_operator``."""

        def product(direction: np.ndarray) -> np.ndarray:
            blocks = self._started_blocks()
            return np.sum([inner.tangent_product(direction) * scale**2 for _, inner, scale in blocks], axis=0)

        return product

    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        blocks = self._started_blocks()
        parts = [inner.jacobian_product(directions[slice(*span)]) * scale for span, inner, scale in blocks]
        return np.sum(parts, axis=0)

    def approximate_tangent_operator(self) -> TangentOperator:
        """Return the tangent operator of the first block: its neurons have the distribution of all neurons."""
        return self._start_block(*self._spans[0])[0].tangent_operator()

    def fire_sets(self):
        """Computes every pair; otherwise as ``Engine.fire_sets``."""
        return self.network.fire_sets(self.X)

    def _pass(self, residual: np.ndarray | None = None, rule: StepRule | None = None) -> None:
        """Compute the predictions block by block; if a residual is given, take a step in each block first."""
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
        """Yield for every block its range of neurons, an engine on them, and √(fraction of the width)."""
        for span in self._spans:
            inner, scale = self._start_block(*span)
            yield span, inner, scale
            self._add_work(inner.work)
            inner.release()  # the caller still refers to it while the next one is made

    def _start_block(self, lo: int, hi: int) -> tuple[DataSearchEngine, float]:
        network = self.network
        part = network.part(slice(lo, hi))
        inner = self._block_engine()
        inner.start(part, self.X)
        return inner, sqrt(part.width / network.width)  # the block divides by the root of its own width

    def _add_work(self, work: EngineWork) -> None:
        for f in fields(EngineWork):
            done = getattr(work, f.name)
            if done is not None and f.name != "active_pairs":
                setattr(self.work, f.name, getattr(self.work, f.name) + done)
