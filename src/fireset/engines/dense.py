"""The reference engine: compute every pair, in tiles. Tests compare every other exact engine with it.

One iteration costs 4·n·m·d operations. Between forward and backward pass one bit per pair stores whether it is active;
beyond ``_MAX_BITS`` nothing is stored and the pre-activations are computed again.
"""

import numpy as np

from fireset._util.gaussian import upper_tail
from fireset._util.parallel import MAX_RANGES, parallel_map, ranges, thread_count
from fireset.engines.base import BatchEngine
from fireset.engines.fire_set_engine import FireSetEngine
from fireset.engines.register_passes import register_forward
from fireset.engines.step_rule import NeuronGradients, StepRule
from fireset.fire_sets import BYTES_PER_ACTIVE_PAIR
from fireset.network import MAX_ROWS_AT_ONCE, TILE_PAIRS
from fireset.sparse_rows import Rows

_MAX_BITS = 1 << 33  # 1 GiB
_MAX_UNPACKED_PAIRS = 1 << 25  # stored in a byte each, which saves packing and unpacking bits


class DenseEngine(FireSetEngine, BatchEngine):
    """Compute every pair. Memory: one bit per pair, at most 1 GiB, and a gradient as large as the weights."""

    name = "dense"
    compiles_fast = True
    summary = "computes every pair of row and neuron: the reference for all others"
    preprocesses = False
    supports_sparse = True

    def __init__(self, forward_only: bool = False):
        """``forward_only`` stores no active pairs, for solvers that need predictions and no gradients."""
        super().__init__()
        self._forward_only = forward_only

    def _prepare(self) -> None:
        self._active: dict[tuple[int, int], np.ndarray] = {}
        self._batch: DenseEngine | None = None  # an engine on the rows of the last ``forward_rows``
        pairs = len(self.X) * self.network.width
        self._stores_active, self._packs = (
            pairs <= _MAX_BITS and not self._forward_only,
            pairs > _MAX_UNPACKED_PAIRS,
        )

    def memory_bytes(self, network, n_samples: int) -> float:
        """A bit or a byte per pair and the gradient; or the fire sets, which the choice of a step size needs before."""
        pairs = n_samples * network.width
        active = pairs * upper_tail(network.threshold)
        stored = pairs if pairs <= _MAX_UNPACKED_PAIRS else min(pairs, _MAX_BITS) / 8
        # The activations of a tile and of the next one, or the factors of a tile, and a mask for each.
        tiles = thread_count() * min(pairs, TILE_PAIRS) * 2.0 * (network.dtype.itemsize + 1)
        if self._forward_only:
            parts = MAX_RANGES * min(n_samples, MAX_ROWS_AT_ONCE) + n_samples
            return tiles + parts * network.n_outputs * 8.0
        return tiles + max(stored + 1.5 * network.weights.nbytes, BYTES_PER_ACTIVE_PAIR * active)

    def forward(self) -> np.ndarray:
        network, X = self.network, self.X
        found = register_forward(network, X) if self._forward_only else None
        if found is not None:
            self.work.inner_products += len(X) * network.width
            self.work.active_pairs = found[1]
            return found[0]
        if self._forward_only and len(X) > MAX_ROWS_AT_ONCE:
            blocks = range(0, len(X), MAX_ROWS_AT_ONCE)
            parts = [self._forward(X[lo : lo + MAX_ROWS_AT_ONCE]) for lo in blocks]
            outputs, active = np.concatenate([part for part, _ in parts]), sum(active for _, active in parts)
        else:
            outputs, active = self._forward(X)
        self.work.inner_products += len(X) * network.width
        self.work.active_pairs = active
        return outputs

    def _forward(self, X: Rows) -> tuple[np.ndarray, int]:
        """Return the outputs for rows X, all of them or some, and the number of active pairs."""
        network = self.network

        def span_sum(span: tuple[int, int]) -> tuple[np.ndarray, int]:
            total, active = np.zeros((len(X), network.n_outputs)), 0
            for tile in network.tiles(X, *span):
                total[tile.samples] += tile.activations.T @ network.output_weights[tile.neurons]
                mask = tile.activations > 0
                active += int(np.count_nonzero(mask))
                if self._stores_active:
                    corner = tile.neurons.start, tile.samples.start
                    self._active[corner] = np.packbits(mask) if self._packs else mask
            return total, active

        parts = parallel_map(span_sum, ranges(network.width), uses_blas=True)
        return np.sum([total for total, _ in parts], axis=0) / network.divisor, sum(active for _, active in parts)

    def gradient(self, residual: np.ndarray) -> NeuronGradients:
        network, X = self.network, self.X
        if self._stores_active and not self._active:
            self.forward()
        residual = (residual / network.divisor).astype(network.dtype)
        rows = np.zeros_like(network.weights)

        def span_gradient(span: tuple[int, int]) -> None:
            for neurons, samples, mask in self._masks(span):
                factors = network.output_weights[neurons] @ residual[samples].T
                factors *= mask
                rows[neurons] += factors @ X[samples]

        parallel_map(span_gradient, ranges(network.width), uses_blas=True)
        if not self._stores_active:
            self.work.inner_products += len(X) * network.width
        return NeuronGradients(np.arange(network.width), rows)

    def output_gradient(self, residual: np.ndarray) -> np.ndarray:
        network = self.network
        gradient = np.zeros_like(network.output_weights)
        scaled = (residual / network.divisor).astype(network.dtype)

        def add(span: tuple[int, int]) -> None:
            for tile in network.tiles(self.X, *span):
                gradient[tile.neurons] += tile.activations @ scaled[tile.samples]

        parallel_map(add, ranges(network.width), uses_blas=True)
        return gradient

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
        self._active.clear()

    def end_batches(self, rule: StepRule) -> None:
        """Do nothing: ``step_rows`` updates weights and velocity in place."""

    def weights_moved(self, neurons: np.ndarray, distances: np.ndarray) -> None:
        self._active.clear()
        if self._batch is not None:
            self._batch.weights_moved(neurons, distances)

    def fire_sets(self):
        return self.network.fire_sets(self.X)

    def _masks(self, span: tuple[int, int]):
        """Yield the active pairs of the last forward pass, tile by tile."""
        if not self._stores_active:
            for tile in self.network.tiles(self.X, *span):
                yield tile.neurons, tile.samples, tile.activations > 0
            return
        for neurons, samples in self.network.tile_slices(len(self.X), *span):
            shape = (neurons.stop - neurons.start, samples.stop - samples.start)
            mask = self._active[neurons.start, samples.start]
            if self._packs:
                mask = np.unpackbits(mask, count=shape[0] * shape[1]).reshape(shape).view(bool)
            yield neurons, samples, mask
