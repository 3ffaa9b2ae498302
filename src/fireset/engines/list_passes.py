"""Forward and backward passes over candidate lists, chunk by chunk of the rows, neuron by neuron, on all cores."""

from typing import Any, NamedTuple

import numpy as np

from fireset._util.aligned import aligned_bytes, aligned_outputs, aligned_rows
from fireset._util.parallel import parallel_map, ranges, thread_count
from fireset.engines.candidate_lists import CandidateLists
from fireset.engines.cost import BYTES_PER_LISTED_NEURON
from fireset.engines.step_rule import NeuronGradients, StepRule
from fireset.engines.tangent import ActiveByNeuron, TangentOperator
from fireset.fire_sets import list_offsets, transpose_lists
from fireset.hsr.scan import SPARSE_TILE_PAIRS
from fireset.kernels.candidates import (
    Certificates,
    add_gradients,
    add_output_gradients,
    backward,
    copy_active,
    forward,
    spread_linear,
    take_steps,
    tangent,
)
from fireset.network import ShiftedReLUNetwork
from fireset.sparse_rows import Rows, SparseRows, kernel_rows

_CHUNK_BYTES = 4 << 20  # of rows, so that they stay in the cache while all neurons of a range are processed


def chunk_ranges(n_bytes: int, n: int) -> list[tuple[int, int]]:
    """Divide n rows of ``n_bytes`` in total into chunks; one chunk unless they exceed the caches.

    Measured at 784 coordinates: a pair costs 46 ns forward and 51 ns backward from a chunk of 9 MB, 47 and 59 from one
    of 3 MB, 112 and 225 if its row comes from memory. Smaller chunks have shorter lists, and the weights of a neuron
    are read again for each of them.
    """
    count = 1 if n_bytes <= 2 * _CHUNK_BYTES else -(-n_bytes // _CHUNK_BYTES)
    return [(n * k // count, n * (k + 1) // count) for k in range(count)]


def aligned_row_bytes(network: ShiftedReLUNetwork, n_samples: int) -> float:
    """Return the bytes of the rows in the layout of ``aligned_rows``."""
    return float(n_samples * aligned_bytes(network.n_features, network.dtype.itemsize))


def pass_bytes(network: ShiftedReLUNetwork, n_samples: int, *, sparse: bool) -> float:
    """Return the bytes of a pass besides the lists: aligned rows, sums of every range, numbers of every neuron.

    Sparse rows are not copied, but multiplied in larger tiles.
    """
    item, outputs = network.dtype.itemsize, network.n_outputs
    tiles = thread_count() * item * min(SPARSE_TILE_PAIRS, float(n_samples * network.width))
    rows = tiles if sparse else aligned_row_bytes(network, n_samples)
    sum_bytes = item if outputs == 1 else aligned_bytes(outputs, item)
    sums = n_samples * (sum_bytes * (len(ranges(network.width)) + 1) + 24 * outputs)
    return rows + sums + BYTES_PER_LISTED_NEURON * network.width


class RowChunk(NamedTuple):
    """Some rows, and the candidate lists of all neurons over them."""

    samples: slice
    rows: Any  # in the layout of ``aligned_rows``, or ``RowArrays``
    lists: CandidateLists


class PassCounts(NamedTuple):
    """Counts of a forward pass."""

    tested_pairs: int
    active_pairs: int
    violated: int  # a neuron whose drift exceeds its radius, or −1


class ListPasses:
    """The passes of a network over the candidate lists of ``chunks``.

    All methods but ``forward`` use the active pairs of the last forward pass.
    """

    def __init__(self, network: ShiftedReLUNetwork, X: Rows, *, chunked: bool):
        rows = X if isinstance(X, SparseRows) else aligned_rows(X)
        self._network, self._n_samples = network, len(X)
        self.chunks = [
            RowChunk(slice(lo, hi), kernel_rows(rows[lo:hi]), CandidateLists(network.width, network.dtype))
            for lo, hi in (chunk_ranges(rows.nbytes, len(X)) if chunked else [(0, len(X))])
        ]
        self._sums: dict[tuple[int, int], np.ndarray] = {}

    def release(self) -> None:
        """Free the memory of lists and sums."""
        self.chunks, self._sums = [], {}

    def use_complete_lists(self, indptr: np.ndarray, neurons: np.ndarray) -> None:
        """Replace all lists by the pairs (i, ``neurons[indptr[i]:indptr[i+1]]``); passes test all of them."""
        for k, chunk in enumerate(self.chunks):
            own = indptr[chunk.samples.start : chunk.samples.stop + 1]
            by_neuron = transpose_lists(own - own[0], neurons[own[0] : own[-1]], self._network.width)
            self.chunks[k] = chunk._replace(lists=CandidateLists.without_references(*by_neuron, self._network.dtype))

    def use_empty_lists(self) -> None:
        """Replace all lists by empty ones and free their memory."""
        self.use_complete_lists(np.zeros(self._n_samples + 1, np.int64), np.empty(0, np.int32))

    def forward(self, certificates: Certificates) -> tuple[np.ndarray, PassCounts]:
        """Return the predictions, (n, c), float64, and what the pass counted; record the active pairs."""
        network = self._network
        neurons = network.weights, network.output_weights, network.dtype.type(network.threshold)

        def span_sum(span: tuple[int, int]):
            sums = self._zero_sums(span)
            counted = [
                forward(rows, *neurons, lists.arrays(), certificates, lists.active_buffer(span), sums[samples], *span)
                for samples, rows, lists in self.chunks
            ]
            return sums, np.array(counted)

        parts = parallel_map(span_sum, ranges(network.width))
        tested, active = (sum(int(counted[:, k].sum()) for _, counted in parts) for k in (0, 1))
        violated = next((int(counted[:, 2].max()) for _, counted in parts if counted[:, 2].max() >= 0), -1)
        return self._total([sums for sums, _ in parts]) / network.divisor, PassCounts(tested, active, violated)

    def _zero_sums(self, span: tuple[int, int]) -> np.ndarray:
        """Return zeros that the neurons of a range add to, in the network's precision.

        The memory is reused in every pass: fresh pages would take longer than writing the zeros.
        """
        if span not in self._sums:
            self._sums[span] = aligned_outputs(
                np.zeros((self._n_samples, self._network.n_outputs), self._network.dtype)
            )
        else:
            self._sums[span].fill(0)
        return self._sums[span]

    def _total(self, sums: list[np.ndarray]) -> np.ndarray:
        """Add the sums of all ranges in float64; (n, c)."""
        total = np.asarray(sum(part.astype(np.float64) for part in sums))
        return total.reshape(self._n_samples, -1)[:, : self._network.n_outputs]

    def _scaled(self, residual: np.ndarray) -> np.ndarray:
        return aligned_outputs((residual / self._network.divisor).astype(self._network.dtype))

    def near_misses(self) -> np.ndarray:
        """Return for every neuron how many pairs were tested and not active, (m,)."""
        return np.sum([lists.prefix_lengths - lists.active_counts for _, _, lists in self.chunks], axis=0)

    def gradient(self, residual: np.ndarray) -> NeuronGradients:
        """Return ∂L/∂W of the neurons that are active for any row."""
        network = self._network
        rows = np.zeros_like(network.weights)
        active_counts, uncounted = np.zeros(network.width, np.int64), np.zeros(network.width, np.int32)
        residual = self._scaled(residual)

        def span_gradient(span: tuple[int, int]) -> None:
            gradients = self._span_gradients(span, residual, active_counts, uncounted)
            rows[slice(*span)] = gradients[:, : network.n_features]

        parallel_map(span_gradient, ranges(network.width))
        neurons = np.flatnonzero(active_counts)
        return NeuronGradients(neurons, rows[neurons])

    def _span_gradients(
        self, span: tuple[int, int], residual: np.ndarray, active_counts: np.ndarray, near_misses: np.ndarray
    ) -> np.ndarray:
        """Return ∂L/∂w_r of the neurons of a range, aligned as the rows are.

        The number of active rows and of near misses of each neuron is added to the last two arguments.
        """
        gradients = np.zeros((span[1] - span[0], self.chunks[0].rows.shape[1]), self._network.dtype)
        output_weights = self._network.output_weights
        for samples, rows, lists in self.chunks:
            own = lists.arrays(), lists.active(span)
            add_gradients(rows, output_weights, residual[samples], *own, near_misses, gradients, *span)
            active_counts[slice(*span)] += lists.active_counts[slice(*span)]
        return gradients

    def step(self, residual: np.ndarray, rule: StepRule, speeds: np.ndarray, near_misses: np.ndarray) -> None:
        """Update the weights. Write upper bounds on ‖Δw_r‖ to ``speeds`` and add near misses to ``near_misses``."""
        network = self._network
        residual = self._scaled(residual)
        moving = network.weights, rule.velocity_of(network.weights)
        arguments = rule.kernel_arguments(network.dtype)

        def step_span(span: tuple[int, int]) -> None:
            _, rows, lists = self.chunks[0]
            own = lists.arrays(), lists.active(span)
            backward(rows, *moving, network.output_weights, residual, *own, arguments, speeds, near_misses, *span)

        def step_span_in_chunks(span: tuple[int, int]) -> None:
            active_counts = np.zeros(network.width, np.int64)
            gradients = self._span_gradients(span, residual, active_counts, near_misses)
            take_steps(*moving, gradients, active_counts[slice(*span)], arguments, speeds, *span)

        parallel_map(step_span if len(self.chunks) == 1 else step_span_in_chunks, ranges(network.width))

    def output_gradient(self, residual: np.ndarray) -> np.ndarray:
        """Return ∂L/∂A, (m, c)."""
        network = self._network
        gradient = np.zeros_like(network.output_weights)
        scaled = (residual / network.divisor).astype(network.dtype)
        neurons = network.weights, network.dtype.type(network.threshold)

        def add(span: tuple[int, int]) -> None:
            for samples, rows, lists in self.chunks:
                own = lists.arrays(), lists.active(span)
                add_output_gradients(rows, *neurons, scaled[samples], *own, gradient, *span)

        parallel_map(add, ranges(network.width))
        return gradient

    def tangent_operator(self) -> TangentOperator:
        """Return the map v ↦ H v; valid until the next forward pass."""
        network = self._network
        spans, factor = ranges(network.width), 1.0
        if self._has_twins():
            # Neuron r + m/2 contributes the same as neuron r: its sign enters twice and cancels.
            spans, factor = spans[: len(spans) // 2], 2.0

        def product(direction: np.ndarray) -> np.ndarray:
            direction = aligned_outputs(direction.astype(network.dtype))
            uncounted = np.zeros(network.width, np.int32)  # only steps count near misses

            def span_product(span: tuple[int, int]) -> np.ndarray:
                if len(self.chunks) > 1:
                    linear = self._span_gradients(span, direction, np.zeros(network.width, np.int64), uncounted)
                    return self._spread(span, linear)
                sums = self._zero_sums(span)
                _, rows, lists = self.chunks[0]
                tangent(rows, network.output_weights, direction, lists.arrays(), lists.active(span), sums, *span)
                return sums

            return self._total(parallel_map(span_product, spans)) * (factor / network.squared_divisor)

        return product

    def _has_twins(self) -> bool:
        """Return whether the second half of the neurons is the first half with opposite output weights."""
        network, half = self._network, self._network.width // 2
        spans = ranges(network.width)
        if network.width % 2 or len(spans) % 2 or spans[len(spans) // 2][0] != half:
            return False
        opposite = np.array_equal(network.output_weights[:half], -network.output_weights[half:])
        return opposite and np.array_equal(network.weights[:half], network.weights[half:])

    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        """Return ∂u/∂W V for V (m, d); (n, c), float64."""
        network = self._network

        def span_product(span: tuple[int, int]) -> np.ndarray:
            linear = np.zeros((span[1] - span[0], self.chunks[0].rows.shape[1]), network.dtype)
            linear[:, : network.n_features] = directions[slice(*span)]
            return self._spread(span, linear)

        return self._total(parallel_map(span_product, ranges(network.width))) / network.divisor

    def _spread(self, span: tuple[int, int], linear: np.ndarray) -> np.ndarray:
        """Return Σ_r a_r ⟨linear_r, x_i⟩ over the active pairs of a range."""
        sums = self._zero_sums(span)
        for samples, rows, lists in self.chunks:
            own = lists.arrays(), lists.active(span)
            spread_linear(rows, self._network.output_weights, linear, *own, sums[samples], *span)
        return sums

    def active_by_neuron(self) -> ActiveByNeuron:
        """Return the active pairs as one list of rows per neuron."""
        indptr = list_offsets(np.sum([chunk.lists.active_counts for chunk in self.chunks], axis=0))
        active, offsets = np.empty(indptr[-1], np.int32), indptr[:-1].copy()

        def copy_span(span: tuple[int, int]) -> None:
            for samples, _, lists in self.chunks:
                copy_active(lists.arrays(), lists.active(span), samples.start, offsets, active, *span)

        parallel_map(copy_span, ranges(self._network.width))
        return ActiveByNeuron(indptr, active, self._n_samples)

    def active_pairs_of(self, neurons: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the active pairs of some neurons, ascending: positions in ``neurons``, and rows."""
        positions = np.arange(len(neurons))
        owners = [np.repeat(positions, lists.active_counts[neurons]) for _, _, lists in self.chunks]
        samples = [samples.start + lists.active_samples(neurons) for samples, _, lists in self.chunks]
        return np.concatenate(owners), np.concatenate(samples)
