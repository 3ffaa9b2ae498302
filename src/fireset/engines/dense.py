"""The reference engine: every pair, in tiles. Every other exact engine is held against it.

One iteration costs 4·n·m·d operations. Between forward and backward it keeps one bit per pair (who fired); beyond
``_MAX_BITS`` it keeps nothing and computes the pre-activations again.
"""

import numpy as np

from fireset._util.gaussian import upper_tail
from fireset._util.parallel import parallel_map, ranges, thread_count
from fireset.engines.base import BatchEngine
from fireset.engines.step_rule import RowGradients, StepRule
from fireset.fire_sets import PAIR_BYTES
from fireset.network import TILE_PAIRS

_MAX_BITS = 1 << 33  # 1 GiB
_MAX_BYTES = 1 << 25  # pairs up to which who fired is kept in a byte each, which saves packing and unpacking bits


class DenseEngine(BatchEngine):
    """Looks at every pair. Memory: one bit for each, at most 1 GiB, and a gradient as large as the weights."""

    name = "dense"
    summary = "computes every pair of row and neuron: what all others are held against"
    preprocesses = False
    takes_sparse = True

    def _prepare(self) -> None:
        self._fired: dict[tuple[int, int], np.ndarray] = {}
        self._batch: DenseEngine | None = None  # on the rows of the last ``forward_rows``
        pairs = len(self.X) * self.network.width
        self._keeps_bits, self._packs = pairs <= _MAX_BITS, pairs > _MAX_BYTES

    def memory_bytes(self, network, n_samples: int) -> float:
        """A bit or a byte for each pair and the gradient's rows; or, before, the fire sets, for a step size."""
        pairs = n_samples * network.width
        active = pairs * upper_tail(network.threshold)
        kept = pairs if pairs <= _MAX_BYTES else min(pairs, _MAX_BITS) / 8
        tiles = thread_count() * min(pairs, TILE_PAIRS) * (2.0 * network.dtype.itemsize + 10)
        return tiles + max(kept + 1.5 * network.weights.nbytes, PAIR_BYTES * active)

    def forward(self) -> np.ndarray:
        network, X = self.network, self.X

        def span_sum(span: tuple[int, int]) -> tuple[np.ndarray, int]:
            total, active = np.zeros((len(X), network.n_outputs)), 0
            for tile in network.tiles(X, *span):
                total[tile.samples] += tile.activations.T @ network.output_weights[tile.neurons]
                mask = tile.activations > 0
                active += int(np.count_nonzero(mask))
                if self._keeps_bits:
                    place = tile.neurons.start, tile.samples.start
                    self._fired[place] = np.packbits(mask) if self._packs else mask
            return total, active

        parts = parallel_map(span_sum, ranges(network.width), uses_blas=True)
        self.work.inner_products += len(X) * network.width
        self.work.active_pairs = sum(active for _, active in parts)
        return np.sum([total for total, _ in parts], axis=0) / network.divisor

    def gradient(self, residual: np.ndarray) -> RowGradients:
        network, X = self.network, self.X
        if self._keeps_bits and not self._fired:
            self.forward()
        residual = (residual / network.divisor).astype(network.dtype)
        rows = np.zeros_like(network.weights)

        def span_gradient(span: tuple[int, int]) -> None:
            for neurons, samples, mask in self._masks(span):
                push = network.output_weights[neurons] @ residual[samples].T
                push *= mask
                rows[neurons] += push @ X[samples]

        parallel_map(span_gradient, ranges(network.width), uses_blas=True)
        if not self._keeps_bits:
            self.work.inner_products += len(X) * network.width
        return RowGradients(np.arange(network.width), rows)

    def forward_rows(self, rows: np.ndarray) -> np.ndarray:
        self._batch = DenseEngine()
        self._batch.start(self.network, self.X[rows])
        predictions = self._batch.forward()
        self.work.inner_products += self._batch.work.inner_products
        self.work.active_pairs = self._batch.work.active_pairs
        return predictions

    def step_rows(self, residual: np.ndarray, rule: StepRule) -> None:
        assert self._batch is not None
        self._batch.step(residual, rule)
        self._fired.clear()

    def end_batches(self, rule: StepRule) -> None:
        """Weights and velocity are there already."""

    def weights_moved(self, neurons: np.ndarray, distances: np.ndarray) -> None:
        self._fired.clear()
        if self._batch is not None:
            self._batch.weights_moved(neurons, distances)

    def fire_sets(self):
        return self.network.fire_sets(self.X)

    def _masks(self, span: tuple[int, int]):
        """Who fired, tile by tile, as the last forward pass found."""
        if not self._keeps_bits:
            for tile in self.network.tiles(self.X, *span):
                yield tile.neurons, tile.samples, tile.activations > 0
            return
        for neurons, samples in self.network.tile_slices(len(self.X), *span):
            shape = (neurons.stop - neurons.start, samples.stop - samples.start)
            mask = self._fired[neurons.start, samples.start]
            if self._packs:
                mask = np.unpackbits(mask, count=shape[0] * shape[1]).reshape(shape).view(bool)
            yield neurons, samples, mask
