"""Products with the Jacobian of the output layer, from the activations of the active pairs."""

from typing import TYPE_CHECKING

import numpy as np

from fireset._util.parallel import parallel_map, ranges
from fireset.engines.common_counts import first_of_twins
from fireset.engines.tangent import ActiveByNeuron, OutputLayer
from fireset.kernels.fire_sets import (
    add_weighted_lists,
    listed_activations,
    output_tangent_product,
)
from fireset.sparse_rows import Rows, kernel_rows

if TYPE_CHECKING:
    from fireset.network import ShiftedReLUNetwork

_KERNEL_TASKS = 4  # with a (k, k) matrix each; a fixed number, so that sums do not depend on the threads
_NEURONS_PER_TILE = 1024  # whose activations for k rows are multiplied at a time
_ROWS_PER_BLOCK = 512  # of a matrix product that one task computes
_DENSE_SHARE = 0.12  # of the rows; whole kernels of 750 to 2,000 rows take 6 to 17 % less time than with 0.08
_COLUMNS_PER_TASK = 32  # the lists are read once for these columns of the kernel


def output_layer_bytes(network: "ShiftedReLUNetwork", active_pairs: float) -> float:
    """Return the memory of a ``ListedOutputLayer``: a row and an activation for each active pair."""
    return (4.0 + network.dtype.itemsize) * active_pairs


class ListedOutputLayer(OutputLayer):
    """Store the activation of each active pair. A product costs two passes over them, O(c · active pairs).

    Neurons with equal weights, which an antisymmetric start has, are stored once.

    Parameters
    ----------
    active : ActiveByNeuron
        The active pairs at the current weights.
    """

    def __init__(self, network: "ShiftedReLUNetwork", X: Rows, active: ActiveByNeuron):
        self._network, self._X = network, X
        half = network.width // 2
        self._copies = 1  # of every stored neuron
        if np.array_equal(network.weights[:half], network.weights[half:]):
            active, self._copies = first_of_twins(active)
        self._weights = network.weights[: network.width // self._copies]
        values = np.empty(len(active.samples), network.dtype)
        self._lists = active.indptr, active.samples, values
        self._lengths = np.diff(active.indptr)
        self._spans = ranges(len(self._weights))
        rows, threshold = kernel_rows(X), network.dtype.type(network.threshold)
        parallel_map(lambda span: listed_activations(rows, self._weights, threshold, *self._lists, *span), self._spans)

    def gradient(self, residual: np.ndarray) -> np.ndarray:
        scaled = (residual / self._network.divisor).astype(self._network.dtype)
        gradients = np.empty((len(self._weights), residual.shape[1]), self._network.dtype)
        arrays = *self._lists, scaled, gradients, scaled[:0]
        parallel_map(lambda span: output_tangent_product(*arrays, *span), self._spans)
        return np.concatenate([gradients] * self._copies)

    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        own = directions.reshape(self._copies, len(self._weights), -1).sum(axis=0, dtype=self._network.dtype)
        return self._summed(own[:0], own) / self._network.divisor

    def tangent_product(self, direction: np.ndarray) -> np.ndarray:
        direction = direction.astype(self._network.dtype)
        return self._summed(direction, direction[:0]) * (self._copies / self._network.squared_divisor)

    def _summed(self, direction: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        """Return the sum over all ranges of neurons of what ``output_tangent_product`` adds; (n, c), float64."""

        def span_product(span: tuple[int, int]) -> np.ndarray:
            product = np.zeros((len(self._X), direction.shape[1]), self._network.dtype)
            output_tangent_product(*self._lists, direction, gradients, product, *span)
            return product

        return np.asarray(np.sum(parallel_map(span_product, self._spans), axis=0, dtype=np.float64))

    def diagonal(self) -> np.ndarray:
        _, samples, values = self._lists
        squares = np.bincount(samples, np.square(values, dtype=np.float64), minlength=len(self._X))
        return squares * (self._copies / self._network.squared_divisor)

    def columns(self, rows: Rows) -> np.ndarray:
        """Cost: for each given row, the active pairs of the neurons that are active for it, or less (``_columns``)."""
        return self._columns(rows, lower=False)

    def whole_kernel(self) -> np.ndarray:
        return self._columns(self._X, lower=True)

    def _columns(self, rows: Rows, *, lower: bool) -> np.ndarray:
        """Return the kernel between given rows and all rows, or with ``lower`` its lower triangle.

        Neurons that are active for a small share of the rows add products of their active pairs. The others use matrix
        products over all rows, which cost ``_DENSE_SHARE``² of a product of active pairs for each pair of rows.
        """
        n, dtype = len(self._X), self._network.dtype
        found = np.zeros((len(rows), n), dtype)
        short = np.flatnonzero(self._lengths <= _DENSE_SHARE * n)
        long = np.flatnonzero(self._lengths > _DENSE_SHARE * n)

        def add_lists(lo: int) -> None:
            chosen = slice(lo, lo + _COLUMNS_PER_TASK)
            add_weighted_lists(*self._lists, short, self._activations(short, rows[chosen]), found[chosen])

        if len(short):
            parallel_map(add_lists, range(0, len(rows), _COLUMNS_PER_TASK), uses_blas=True)
        blocks = [slice(lo, lo + _ROWS_PER_BLOCK) for lo in range(0, len(rows), _ROWS_PER_BLOCK)]
        for lo in range(0, len(long), _NEURONS_PER_TILE):
            neurons = long[lo : lo + _NEURONS_PER_TILE]
            own = self._stored_activations(neurons)
            given = own if lower else self._activations(neurons, rows)

            def add_product(block: slice, own: np.ndarray = own, given: np.ndarray = given) -> None:
                last = block.stop if lower else n
                found[block, :last] += given[:, block].T @ own[:, :last]

            parallel_map(add_product, blocks, uses_blas=True)
        return self._scaled(found)

    def kernel(self, rows: Rows) -> np.ndarray:
        """Cost m k² for k rows, by matrix products of the activations of all pairs, a tile of neurons at a time."""

        def add(first: int) -> np.ndarray:
            total = np.zeros((len(rows), len(rows)), self._network.dtype)
            for lo in range(first * _NEURONS_PER_TILE, len(self._weights), _KERNEL_TASKS * _NEURONS_PER_TILE):
                activations = self._activations(slice(lo, lo + _NEURONS_PER_TILE), rows)
                total += activations.T @ activations
            return total

        return self._scaled(np.sum(parallel_map(add, range(_KERNEL_TASKS), uses_blas=True), axis=0))

    def _activations(self, neurons: slice | np.ndarray, rows: Rows) -> np.ndarray:
        """Return the activations of some neurons for given rows, (m, k)."""
        activations = self._weights[neurons] @ rows.T
        activations -= self._network.dtype.type(self._network.threshold)
        return np.maximum(activations, 0, out=activations)

    def _stored_activations(self, neurons: np.ndarray) -> np.ndarray:
        """Return the activations of some neurons for all rows, (m, n), from their lists.

        A sum with coefficients 1 and 0, some neurons at a time, needs no kernel of its own.
        """
        found = np.zeros((len(neurons), len(self._X)), self._network.dtype)
        for lo in range(0, len(neurons), _COLUMNS_PER_TASK):
            some = neurons[lo : lo + _COLUMNS_PER_TASK]
            single = np.eye(len(some), dtype=self._network.dtype)
            add_weighted_lists(*self._lists, some, single, found[lo : lo + len(some)])
        return found

    def _scaled(self, table: np.ndarray) -> np.ndarray:
        table *= table.dtype.type(self._copies / self._network.squared_divisor)
        return table
