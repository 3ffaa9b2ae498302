"""Forward and backward passes over candidate lists, chunk by chunk of the rows, neuron by neuron, on all cores.

A pass processes the live neurons only. Most neurons of a wide network have nothing to test if there are few rows; a
pass over all of them would cost O(m), whatever the lists save.
"""

from typing import Any, NamedTuple

import numpy as np

from fireset._util.aligned import aligned_bytes, aligned_outputs, aligned_rows
from fireset._util.parallel import parallel_map, ranges, thread_count
from fireset.engines.candidate_lists import CandidateLists
from fireset.engines.cost import BYTES_PER_LISTED_NEURON
from fireset.engines.step_rule import NeuronGradients, StepRule
from fireset.engines.tangent import ActiveByNeuron, TangentOperator
from fireset.fire_sets import list_offsets
from fireset.hsr.scan import SPARSE_TILE_PAIRS
from fireset.kernels.candidates import (
    Certificates,
    add_drifts,
    add_output_gradients,
    backward,
    copy_active,
    forward,
    mark_neurons,
    take_steps,
    tangent,
)
from fireset.kernels.sorting import merge_ascending
from fireset.network import ShiftedReLUNetwork
from fireset.sparse_rows import Rows, SparseRows, kernel_rows

_MAX_BYTES_OF_ONE_CHUNK = 4 << 20
_CHUNK_BYTES = 3 << 18  # of rows, so that they stay in the L2 cache while all neurons of a range are processed,
_MIN_CHUNK_ROWS = 1000  # but not so few that lists are short


def chunk_ranges(n_bytes: int, n: int) -> list[tuple[int, int]]:
    """Divide n rows of ``n_bytes`` in total into chunks; one chunk unless they exceed the caches.

    Measured with 30,000 rows of 51 coordinates, 20,000 neurons and 10 outputs: a tangent product takes 0.23 s from one
    chunk, 0.20 from chunks of 4 MB, 0.14 from 0.5 MB; with 200 coordinates 0.44 s from chunks of 6 MB and 0.30 from
    0.8 MB. At 784 coordinates a pair costs four times as much if its row comes from memory. Smaller chunks have shorter
    lists, and the weights of a neuron are read again for each of them.
    """
    rows = max(_MIN_CHUNK_ROWS, _CHUNK_BYTES * n // max(n_bytes, 1))
    count = 1 if n_bytes <= _MAX_BYTES_OF_ONE_CHUNK else -(-n // rows)
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


def union_ascending(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the union of two ascending arrays of distinct neurons, ascending. Cost O(neurons)."""
    merged = np.empty(len(left) + len(right), np.int64)
    return merged[: merge_ascending(left, right, merged)]


class RowChunk(NamedTuple):
    """Some rows, and the candidate lists of all neurons over them."""

    samples: slice
    rows: Any  # in the layout of ``aligned_rows``, or ``RowArrays``
    lists: CandidateLists


class LiveRange(NamedTuple):
    """A range of neurons, which one task processes, and the live neurons in it, ascending."""

    span: tuple[int, int]
    neurons: np.ndarray


class PassCounts(NamedTuple):
    """Counts of a forward pass."""

    tested_pairs: int
    active_pairs: int
    violated: int  # a neuron whose drift exceeds its radius, or −1


class ListPasses:
    """The passes of a network over the candidate lists of ``chunks``.

    All methods but ``forward`` use the active pairs of the last forward pass. Sums do not depend on which neurons are
    live: ranges are those of all neurons, and a neuron that is not live adds nothing.
    """

    def __init__(self, network: ShiftedReLUNetwork, X: Rows, *, chunked: bool):
        rows = X if isinstance(X, SparseRows) else aligned_rows(X)
        self._network, self._n_samples = network, len(X)
        self.chunks = [
            RowChunk(slice(lo, hi), kernel_rows(rows[lo:hi]), CandidateLists(network.width, network.dtype))
            for lo, hi in (chunk_ranges(rows.nbytes, len(X)) if chunked else [(0, len(X))])
        ]
        self._sums: dict[tuple[int, int], np.ndarray] = {}
        self.make_all_live()

    @property
    def live(self) -> np.ndarray:
        """The neurons that the passes process, ascending. All others have nothing to test and no active pairs."""
        return self._live

    @live.setter
    def live(self, neurons: np.ndarray) -> None:
        self._live = neurons
        spans = ranges(self._network.width)
        cuts = np.searchsorted(neurons, [span[1] for span in spans])
        self._ranges = [LiveRange(span, part) for span, part in zip(spans, np.split(neurons, cuts[:-1]), strict=True)]

    def make_all_live(self) -> None:
        """Let the passes process all neurons."""
        self.live = np.arange(self._network.width)

    def add_drifts(self, speeds: np.ndarray, factor: float, drifts: np.ndarray) -> np.ndarray | None:
        """Add ``factor`` · speed to the drifts, and return the neurons with a speed; None if a speed is not finite."""

        def range_drifts(part: LiveRange) -> np.ndarray | None:
            moved = np.empty(len(part.neurons), np.int64)
            count = add_drifts(part.neurons, speeds, factor, drifts, moved)
            return moved[:count] if count >= 0 else None

        parts = parallel_map(range_drifts, self._ranges)
        finite = [part for part in parts if part is not None]
        return np.concatenate(finite) if len(finite) == len(parts) else None

    def prune_live(self, certificates: Certificates, speeds, near_misses, max_near_misses: int) -> np.ndarray:
        """Remove neurons that have nothing to test and are at rest; return the neurons that need a new list.

        These are still live: their drift exceeds the radius, or they had more than ``max_near_misses``.
        """
        threshold = self._network.dtype.type(self._network.threshold)

        def mark(part: LiveRange) -> tuple[np.ndarray, np.ndarray]:
            is_due, is_live = np.zeros((2, len(part.neurons)), bool)
            counts = speeds, near_misses, max_near_misses
            for chunk in self.chunks:
                arrays = chunk.lists.arrays(), certificates
                mark_neurons(part.neurons, threshold, *arrays, *counts, is_due, is_live)
            return part.neurons[is_due], part.neurons[is_live]

        due, live = (np.concatenate(parts) for parts in zip(*parallel_map(mark, self._ranges), strict=True))
        if len(live) < len(self._live):
            self.live = live
        return due

    def release(self) -> None:
        """Free the memory of lists and sums."""
        self.chunks, self._sums = [], {}

    def use_complete_lists(self, indptr: np.ndarray, neurons: np.ndarray) -> np.ndarray:
        """Replace all lists by the pairs (i, ``neurons[indptr[i]:indptr[i+1]]``); passes test all of them.

        Return the neurons with a list, ascending. They are not made live.
        """
        listed = np.empty(0, np.int64)
        for chunk in self.chunks:
            own = indptr[chunk.samples.start : chunk.samples.stop + 1]
            more = chunk.lists.list_completely(own - own[0], neurons[own[0] : own[-1]])
            listed = union_ascending(listed, more) if len(listed) else more
        return listed

    def clear_complete_lists(self) -> None:
        """Remove all lists and free their memory."""
        for chunk in self.chunks:
            chunk.lists.clear_complete_lists()

    def forward(self, certificates: Certificates) -> tuple[np.ndarray, PassCounts]:
        """Return the predictions, (n, c), float64, and what the pass counted; record the active pairs."""
        network = self._network
        weights = network.weights, network.output_weights, network.dtype.type(network.threshold)

        def range_sum(part: LiveRange):
            sums = self._zero_sums(part.span)
            counted = []
            for samples, rows, lists in self.chunks:
                written = lists.active_buffer(*part), sums[samples]
                counted.append(forward(rows, *weights, lists.arrays(), certificates, *written, part.neurons))
            return sums, np.array(counted)

        parts = parallel_map(range_sum, self._ranges)
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
        """Return for every live neuron how many pairs were tested and not active."""
        live = self._live
        return np.sum([lists.prefix_lengths[live] - lists.active_counts[live] for _, _, lists in self.chunks], axis=0)

    def gradient(self, residual: np.ndarray) -> NeuronGradients:
        """Return ∂L/∂W of the neurons that are active for any row."""
        network = self._network
        residual = self._scaled(residual)

        def range_gradient(part: LiveRange) -> NeuronGradients:
            gradients, active_counts = self._range_gradients(part, residual)
            active = active_counts > 0
            return NeuronGradients(part.neurons[active], gradients[active, : network.n_features])

        parts = parallel_map(range_gradient, self._ranges)
        return NeuronGradients(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def _range_gradients(self, part: LiveRange, residual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ∂L/∂w_r of the live neurons of a range, aligned as the rows are, and their numbers of active rows."""
        neurons = part.neurons
        gradients = np.zeros((len(neurons), self.chunks[0].rows.shape[1]), self._network.dtype)
        active_counts = np.zeros(len(neurons), np.int64)
        output_weights = self._network.output_weights
        for samples, rows, lists in self.chunks:
            own = lists.arrays(), lists.active(part.span)
            tangent(rows, output_weights, residual[samples], *own, gradients, residual[:0], neurons)
            active_counts += lists.active_counts[neurons]
        return gradients, active_counts

    def step(self, residual: np.ndarray, rule: StepRule, speeds: np.ndarray, near_misses: np.ndarray) -> None:
        """Update the weights. Write upper bounds on ‖Δw_r‖ to ``speeds`` and add near misses to ``near_misses``."""
        network = self._network
        residual = self._scaled(residual)
        moving = network.weights, rule.velocity_of(network.weights)
        arguments = rule.kernel_arguments(network.dtype)

        def step_range(part: LiveRange) -> None:
            _, rows, lists = self.chunks[0]
            own = lists.arrays(), lists.active(part.span)
            written = speeds, near_misses, part.neurons
            backward(rows, *moving, network.output_weights, residual, *own, arguments, *written)

        def step_range_in_chunks(part: LiveRange) -> None:
            gradients, active_counts = self._range_gradients(part, residual)
            for _, _, lists in self.chunks:
                near_misses[part.neurons] += lists.prefix_lengths[part.neurons] - lists.active_counts[part.neurons]
            take_steps(*moving, gradients, active_counts, arguments, speeds, part.neurons)

        parallel_map(step_range if len(self.chunks) == 1 else step_range_in_chunks, self._ranges)

    def output_gradient(self, residual: np.ndarray) -> np.ndarray:
        """Return ∂L/∂A, (m, c)."""
        network = self._network
        gradient = np.zeros_like(network.output_weights)
        scaled = (residual / network.divisor).astype(network.dtype)
        weights = network.weights, network.dtype.type(network.threshold)

        def add(part: LiveRange) -> None:
            for samples, rows, lists in self.chunks:
                own = lists.arrays(), lists.active(part.span)
                add_output_gradients(rows, *weights, scaled[samples], *own, gradient, part.neurons)

        parallel_map(add, self._ranges)
        return gradient

    def tangent_operator(self) -> TangentOperator:
        """Return the map v ↦ H v; valid until the next forward pass."""
        network = self._network
        parts, factor = self._ranges, 1.0
        no_gradients = np.empty((0, 0), network.dtype)
        if self._has_twins():
            # Neuron r + m/2 contributes the same as neuron r: its sign enters twice and cancels.
            parts, factor = parts[: len(parts) // 2], 2.0

        def product(direction: np.ndarray) -> np.ndarray:
            direction = aligned_outputs(direction.astype(network.dtype))

            def range_product(part: LiveRange) -> np.ndarray:
                if len(self.chunks) > 1:
                    return self._spread(part, self._range_gradients(part, direction)[0])
                sums = self._zero_sums(part.span)
                _, rows, lists = self.chunks[0]
                own = lists.arrays(), lists.active(part.span)
                tangent(rows, network.output_weights, direction, *own, no_gradients, sums, part.neurons)
                return sums

            return self._total(parallel_map(range_product, parts)) * (factor / network.squared_divisor)

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

        def range_product(part: LiveRange) -> np.ndarray:
            linear = np.zeros((len(part.neurons), self.chunks[0].rows.shape[1]), network.dtype)
            linear[:, : network.n_features] = directions[part.neurons]
            return self._spread(part, linear)

        return self._total(parallel_map(range_product, self._ranges)) / network.divisor

    def _spread(self, part: LiveRange, linear: np.ndarray) -> np.ndarray:
        """Return Σ_r a_r ⟨linear_r, x_i⟩ over the active pairs of a range; ``linear`` has its live neurons."""
        sums = self._zero_sums(part.span)
        for samples, rows, lists in self.chunks:
            own = lists.arrays(), lists.active(part.span)
            tangent(rows, self._network.output_weights, sums[:0], *own, linear, sums[samples], part.neurons)
        return sums

    def active_by_neuron(self) -> ActiveByNeuron:
        """Return the active pairs as one list of rows per neuron."""
        indptr = list_offsets(np.sum([chunk.lists.active_counts for chunk in self.chunks], axis=0))
        active, offsets = np.empty(indptr[-1], np.int32), indptr[:-1].copy()

        def copy_range(part: LiveRange) -> None:
            for samples, _, lists in self.chunks:
                copy_active(lists.arrays(), lists.active(part.span), samples.start, offsets, active, part.neurons)

        parallel_map(copy_range, self._ranges)
        return ActiveByNeuron(indptr, active, self._n_samples)

    def active_pairs_of(self, neurons: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the active pairs of some neurons, ascending: positions in ``neurons``, and rows."""
        positions = np.arange(len(neurons))
        owners = [np.repeat(positions, lists.active_counts[neurons]) for _, _, lists in self.chunks]
        samples = [samples.start + lists.active_samples(neurons) for samples, _, lists in self.chunks]
        return np.concatenate(owners), np.concatenate(samples)
