"""The tangent kernel between all rows and a few centre rows, a block of rows at a time.

Between row x_i and centre c_j the kernel of one output is (κ²/m) ⟨x_i, c_j⟩ #{r active for x_i and c_j}. For a block of
rows the pre-activations are computed, their comparison with the threshold gives one bit per row and neuron, and common
bits are counted 512 neurons at a time. Nothing is kept but the bits of the centres: neither memory
nor preprocessing depends on the number of active pairs. The bits of a row cost 2·m·d operations, its counts M·m/512
instructions for M centres. Copies of a neuron, which antisymmetric and orthogonal starts have, are computed once.

Where output weights are trained, the derivatives by them are further columns: s σ_b(⟨w_r, x_i⟩) of some neurons r,
scaled so that their inner products estimate s² times the kernel of the whole output layer.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from fireset._util.parallel import parallel_map
from fireset._util.rounding import deciding_band, row_norms
from fireset.engines.register_passes import register_blocks
from fireset.network import ShiftedReLUNetwork
from fireset.sparse_rows import Rows, kernel_rows

_TASK_ROWS = 512  # rows whose bits and kernel one task computes; both stay in the cache
_TILE_NEURONS = 512  # neurons whose pre-activations are computed at a time
BLOCK_ROWS = 4096  # rows of a block


class CentreKernel:
    """Blocks of the tangent kernel between rows and centres, at fixed weights.

    Attributes
    ----------
    centres : (M, d) array or SparseRows
    copies : int
        Number of equal parts of the weights: 2 at an antisymmetric start.
    active_per_centre : float
        Number of active neurons of a centre, on average.
    unit : float
        The kernel is divided by this number, its mean diagonal at the centres, so that float32 neither over- nor
        underflows. The further columns are divided by its root.
    output_factor : float
        Factor of the activations in the further columns.

    Parameters
    ----------
    trained : int
        Number of different neurons whose output weights are trained: the first ones, at most all.
    output_layer_scale : float
        s, the scale of the steps of the output weights.
    """

    def __init__(self, network: ShiftedReLUNetwork, centres: Rows, trained: int = 0, output_layer_scale: float = 1.0):
        self.copies = _copies(network.weights)
        self._weights = network.weights[: network.width // self.copies]
        self._weight_norms = row_norms(self._weights)
        self._threshold = network.dtype.type(network.threshold)
        self._blocks = register_blocks(network, self._weights, centres)
        self.centres, self._bits = centres, self._firing_bits(centres)
        active = np.bitwise_count(self._bits).sum(axis=1)
        self.active_per_centre = self.copies * float(active.mean())
        mean = float(np.mean(active * row_norms(centres) ** 2)) or 1.0
        self.unit = mean * self.copies / network.squared_divisor
        self._factor = 1.0 / mean
        self._trained = self._weights[:trained]
        each = network.width / network.squared_divisor / max(len(self._trained), 1)
        self.output_factor = output_layer_scale * (each / self.unit) ** 0.5

    @property
    def n_trained(self) -> int:
        """Number of neurons whose output weights are trained."""
        return len(self._trained)

    def keep(self, centres: np.ndarray) -> None:
        """Keep only these centres, given by number."""
        self.centres, self._bits = self.centres[centres], np.ascontiguousarray(self._bits[centres])
        self.__dict__.pop("matrix", None)
        self.__dict__.pop("centre_rows", None)

    @cached_property
    def matrix(self) -> np.ndarray:
        """The kernel between the centres, (M, M), symmetric, float64."""
        K = np.empty((len(self.centres), len(self.centres)))
        centres = self.centres.astype(np.float64, copy=False)

        def fill(lo: int) -> None:
            self._set_kernel_rows(centres[lo : lo + _TASK_ROWS], centres, self._bits[lo : lo + _TASK_ROWS], K, lo)

        parallel_map(fill, range(0, len(K), _TASK_ROWS), uses_blas=True)
        return np.tril(K) + np.tril(K, -1).T

    @cached_property
    def centre_rows(self) -> np.ndarray:
        """The rows that ``blocks`` would yield for the centres, (M, M + n_trained), float64."""
        centres = self.centres.astype(np.float64, copy=False)
        return np.hstack([self.matrix, self._scaled_activations(centres, self._trained.astype(np.float64))])

    def blocks(self, X: Rows, start: int = 0) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield blocks of rows of X, (n, d), and their kernel with the centres and activations, (k, M + n_trained).

        ``start`` is the end of an earlier block, or 0.

        The array is in the precision of the weights, and is overwritten by the next block.
        """
        count = len(self.centres)
        K = np.empty((min(BLOCK_ROWS, len(X)), count + self.n_trained), self._weights.dtype)
        for first in range(start, len(X), BLOCK_ROWS):
            rows = X[first : first + BLOCK_ROWS]

            def fill(lo: int, rows: Rows = rows) -> None:
                some = rows[lo : lo + _TASK_ROWS]
                self._set_kernel_rows(some, self.centres, self._firing_bits(some), K, lo)
                if self.n_trained:
                    K[lo : lo + len(some), count:] = self._scaled_activations(some, self._trained)

            parallel_map(fill, range(0, len(rows), _TASK_ROWS), uses_blas=True)
            yield slice(first, first + len(rows)), K[: len(rows)]

    def _set_kernel_rows(self, rows: Rows, centres: Rows, bits: np.ndarray, K: np.ndarray, lo: int) -> None:
        """Set K[lo : lo + len(rows)] to inner products with the centres times scaled counts of shared bits."""
        from fireset.kernels.fire_sets import count_shared_bits

        own = K[lo : lo + len(rows)]
        count_shared_bits(bits, self._bits, own.dtype.type(self._factor), own, 0, len(self._bits))
        own[:, : len(self._bits)] *= rows @ centres.T

    def _scaled_activations(self, rows: Rows, weights: np.ndarray) -> np.ndarray:
        """Return σ_b(⟨w_r, x_i⟩) times ``output_factor`` for all rows and some neurons, in the precision of both."""
        with np.errstate(over="ignore", invalid="ignore"):
            activations = rows @ weights.T
            activations -= self._threshold
            np.maximum(activations, 0, out=activations)
            activations *= activations.dtype.type(self.output_factor)
        return activations

    def _firing_bits(self, rows: Rows) -> np.ndarray:
        """Return one bit for each row and neuron, (n, words), uint64: whether the neuron is active for the row."""
        from fireset.kernels.column_blocks import pack_active
        from fireset.kernels.fire_sets import WORDS_AT_ONCE, pack_above
        from fireset.kernels.firing import refine_near_threshold

        W, threshold = self._weights, self._threshold
        bits = np.zeros((len(rows), -(-len(W) // (64 * WORDS_AT_ONCE)) * WORDS_AT_ONCE), np.uint64)
        bands = deciding_band(W.shape[1], W.dtype, self._weight_norms, float(row_norms(rows).max(initial=0.0)))
        refines = bool(bands.max() >= 0)
        if self._blocks is not None and not refines:
            pack_active(self._blocks, np.ascontiguousarray(rows), threshold, bits)
            return bits
        for lo in range(0, len(W), _TILE_NEURONS):
            tile = slice(lo, min(lo + _TILE_NEURONS, len(W)))
            count = tile.stop - lo
            H = np.full((len(rows), -(-count // 64) * 64), -np.inf, W.dtype)
            with np.errstate(over="ignore", invalid="ignore"):  # what overflows is computed again
                H[:, :count] = rows @ W[tile].T
            if refines:
                by_neuron = np.ascontiguousarray(H[:, :count].T)
                refine_near_threshold(by_neuron, W[tile], kernel_rows(rows), np.full(count, threshold), bands[tile])
                H[:, :count] = by_neuron.T
            pack_above(H, threshold, bits, lo // 64)
        return bits


def _copies(W: np.ndarray) -> int:
    """Return the largest power of two Q for which the weights (m, d) are Q equal parts of m/Q neurons."""
    copies, size = 1, len(W)
    while size % 2 == 0 and size >= 2 and np.array_equal(W[: size // 2], W[size // 2 : size]):
        copies, size = 2 * copies, size // 2
    return copies
