"""What the engines that keep candidate lists have in common: both passes, the fire sets, and the audit.

For each neuron there is a list of samples outside of which it cannot fire. How the lists are made and kept true is what
the engines differ in: ``data_search.py`` searches the data for a neuron, ``weight_search.py`` the weights for a sample.
"""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fireset._util.aligned import aligned_outputs, aligned_rows
from fireset._util.checks import is_number
from fireset._util.errors import CertificateError, InputError
from fireset._util.parallel import parallel_map, ranges
from fireset._util.rounding import deciding_band, dot_slack, row_norms
from fireset.engines.base import Engine
from fireset.engines.candidate_lists import CandidateLists, sample_blocks
from fireset.engines.step_rule import RowGradients, StepRule
from fireset.engines.tangent import ActiveByNeuron, TangentOperator
from fireset.fire_sets import fire_sets_by_neuron, list_offsets, transposed
from fireset.hsr import HalfSpaceIndex
from fireset.sparse_rows import SparseRows, kernel_rows, longest_sum

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_AUDITS = 4096  # every neuron is audited once in about so many passes
_AUDITED_PAIRS = 1 << 20
_UNKNOWN_SPEED = 1e-300  # as good as 0, but not 0: ``backward`` skips neurons of speed 0 as having no velocity either


def check_radius(radius: float | str) -> float | str:
    """ "auto" or a number of at least 0."""
    if radius != "auto" and not (is_number(radius) and float(radius) >= 0):
        raise InputError(f"radius must be 'auto' or a number of at least 0, got {radius!r}")
    return radius


class SampleBlock(NamedTuple):
    """Samples that are looked at together, and for each neuron the list of those outside of which it cannot fire."""

    samples: slice
    rows: Any  # as ``aligned_rows`` lays them out, or ``RowArrays``
    lists: CandidateLists


class ListEngine(Engine):
    """Runs both passes over the candidate lists, block by block, neuron by neuron, on all cores."""

    _blocks: list[SampleBlock]

    def _in_blocks(self) -> bool:
        """Whether the samples may be cut into blocks."""
        return True

    @abstractmethod
    def _first_lists(self) -> None:
        """The preprocessing, at the end of ``start``."""

    @abstractmethod
    def _renew_lists(self) -> None:
        """Make the lists hold for the weights as they are now; called after every step."""

    def _prepare(self) -> None:
        network, X = self.network, self.X
        rows = X if isinstance(X, SparseRows) else aligned_rows(X)
        self._blocks = [
            SampleBlock(slice(lo, hi), kernel_rows(rows[lo:hi]), CandidateLists(network.width, network.dtype))
            for lo, hi in (sample_blocks(rows.nbytes, len(X)) if self._in_blocks() else [(0, len(X))])
        ]
        self._sample_norm = float(row_norms(X).max(initial=0.0)) * (1 + 1e-12)
        self._terms = longest_sum(X)  # of an inner product, which its rounding depends on
        self._next_audit = 0
        self._sums: dict[tuple[int, int], np.ndarray] = {}
        m = network.width
        self._radii = np.zeros(m)  # what the list certifies, in units of inner products
        self._drifts = np.zeros(m)  # what of it is used up
        self._speeds = np.full(m, np.inf)  # bound on the last ‖Δw_r‖; not known yet, so nobody is at rest
        self._moved = np.arange(m)  # neurons that the last step moved, ascending; all others need no attention
        self._near_misses = np.zeros(m, np.int32)  # looked at since the list was made
        self._bands = np.zeros(m, network.dtype)
        self._forward_done = False
        self._diverged = False  # a weight is not finite any more: nothing can be found, and nothing needs to be
        self._first_lists()

    def forget(self) -> None:
        """Give back the memory of lists and sums; ``start`` makes new ones."""
        self._blocks, self._sums = [], {}

    def forward(self) -> np.ndarray:
        from fireset.kernels.candidates import Certificates, forward

        network = self.network
        if self._diverged:
            return np.full((len(self.X), network.n_outputs), np.nan)
        threshold = network.dtype.type(network.threshold)
        certificates = Certificates(self._radii, self._drifts, self._bands)
        neurons = network.weights, network.output_weights, threshold

        def span_sum(span: tuple[int, int]):
            sums = self._zero_sums(span)
            counted = [
                forward(rows, *neurons, lists.arrays(), certificates, lists.scratch(span), sums[samples], *span)
                for samples, rows, lists in self._blocks
            ]
            return sums, np.array(counted)

        parts = parallel_map(span_sum, ranges(network.width))
        for _, counted in parts:
            violated = counted[:, 2].max()
            if violated >= 0:
                raise CertificateError(
                    f"neuron {violated} has used {self._drifts[violated]:.3g} of its radius "
                    f"{self._radii[violated]:.3g} and was not refreshed"
                )
        self.work.inner_products += sum(int(counted[:, 0].sum()) for _, counted in parts)
        self.work.active_pairs = sum(int(counted[:, 1].sum()) for _, counted in parts)
        self._forward_done = True
        self._audit_some()
        return self._total([sums for sums, _ in parts]) / network.divisor

    def _zero_sums(self, span: tuple[int, int]) -> np.ndarray:
        """For the neurons of one range, which add up in the network's precision.

        The same memory in every pass: fresh pages would take longer than the zeros.
        """
        if span not in self._sums:
            self._sums[span] = aligned_outputs(np.zeros((len(self.X), self.network.n_outputs), self.network.dtype))
        else:
            self._sums[span].fill(0)
        return self._sums[span]

    def _total(self, sums: list[np.ndarray]) -> np.ndarray:
        """What the ranges added up, added up in float64; (n, c)."""
        return np.asarray(sum(part.astype(np.float64) for part in sums)).reshape(len(self.X), -1)[
            :, : self.network.n_outputs
        ]

    def _ensure_forward(self) -> None:
        """Have the fired pairs of the current weights noted."""
        if not self._forward_done:
            self.forward()

    def _aligned_residual(self, residual: np.ndarray) -> np.ndarray:
        return aligned_outputs((residual / self.network.divisor).astype(self.network.dtype))

    def gradient(self, residual: np.ndarray) -> RowGradients:
        self._ensure_forward()
        network = self.network
        rows = np.full_like(network.weights, np.nan if self._diverged else 0.0)
        active, uncounted = np.zeros(network.width, np.int64), np.zeros(network.width, np.int32)
        if not self._diverged:
            residual = self._aligned_residual(residual)

            def span_gradient(span: tuple[int, int]) -> None:
                gradients = self._span_gradients(span, residual, active, uncounted)
                rows[slice(*span)] = gradients[:, : network.n_features]

            parallel_map(span_gradient, ranges(network.width))
        neurons = np.flatnonzero(active) if not self._diverged else np.arange(network.width)
        return RowGradients(neurons, rows[neurons])

    def output_gradient(self, residual: np.ndarray) -> np.ndarray:
        from fireset.kernels.candidates import add_output_gradients

        self._ensure_forward()
        network = self.network
        gradient = np.full_like(network.output_weights, np.nan if self._diverged else 0.0)
        if not self._diverged:
            pushes = (residual / network.divisor).astype(network.dtype)
            neurons = network.weights, network.dtype.type(network.threshold)

            def add(span: tuple[int, int]) -> None:
                for samples, rows, lists in self._blocks:
                    own = lists.arrays(), lists.active(span)
                    add_output_gradients(rows, *neurons, pushes[samples], *own, gradient, *span)

            parallel_map(add, ranges(network.width))
        return gradient

    def _span_gradients(
        self, span: tuple[int, int], residual: np.ndarray, active_counts: np.ndarray, near_misses: np.ndarray
    ) -> np.ndarray:
        """G_r for the neurons of a range, aligned as the rows are.

        How many samples each fires for, and how many near misses were looked at, is added to the last two.
        """
        from fireset.kernels.candidates import add_gradients

        gradients = np.zeros((span[1] - span[0], self._blocks[0].rows.shape[1]), self.network.dtype)
        output_weights = self.network.output_weights
        for samples, rows, lists in self._blocks:
            own = lists.arrays(), lists.active(span)
            add_gradients(rows, output_weights, residual[samples], *own, near_misses, gradients, *span)
            active_counts[slice(*span)] += lists.active_counts[slice(*span)]
        return gradients

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        from fireset.kernels.candidates import backward, take_steps

        self._ensure_forward()
        network = self.network
        residual = self._aligned_residual(residual)
        velocity, arguments = rule.velocity_of(network.weights), rule.arguments(network.dtype)
        moving = network.weights, velocity

        def step_span(span: tuple[int, int]) -> None:
            _, rows, lists = self._blocks[0]
            own = lists.arrays(), lists.active(span)
            backward(
                rows, *moving, network.output_weights, residual, *own, arguments, self._speeds, self._near_misses, *span
            )

        def step_span_in_blocks(span: tuple[int, int]) -> None:
            active_counts = np.zeros(network.width, np.int64)
            gradients = self._span_gradients(span, residual, active_counts, self._near_misses)
            take_steps(*moving, gradients, active_counts[slice(*span)], arguments, self._speeds, *span)

        parallel_map(step_span if len(self._blocks) == 1 else step_span_in_blocks, ranges(network.width))
        self._follow_weights()

    def weights_moved(self, neurons: np.ndarray, distances: np.ndarray) -> None:
        if self._forward_done:  # as our own step counts them
            for _, _, lists in self._blocks:
                self._near_misses += lists.prefix_lengths - lists.active_counts
        self._speeds[:] = _UNKNOWN_SPEED
        self._speeds[neurons] = np.maximum(distances, _UNKNOWN_SPEED)
        self._follow_weights()

    def _follow_weights(self) -> None:
        """After all weights have moved by at most ``_speeds``: the certificates and lists follow."""
        self._forward_done = False
        self._moved = np.flatnonzero(self._speeds)
        speeds = self._speeds[self._moved]
        if not np.isfinite(speeds).all():
            self._diverged = True
            return
        # The surplus pays for the rounding of the product and of the sum, however small the step is beside it.
        drifts = self._drifts[self._moved] + speeds * (self._sample_norm * (1 + 1e-9))
        self._drifts[self._moved] = drifts * (1 + 4.5e-16)
        self._renew_lists()

    def tangent_operator(self) -> TangentOperator:
        from fireset.kernels.candidates import spread_linear, tangent

        self._ensure_forward()
        network = self.network
        if self._diverged:
            return lambda direction: np.full(direction.shape, np.nan)

        spans, factor = ranges(network.width), 1.0
        if self._are_twins():
            # Neuron r + m/2 adds what neuron r adds: both signs are turned, and so are those of the way back.
            spans, factor = spans[: len(spans) // 2], 2.0

        def product(direction: np.ndarray) -> np.ndarray:
            direction = aligned_outputs(direction.astype(network.dtype))
            uncounted = np.zeros(network.width, np.int32)  # near misses are those of a step

            def span_product(span: tuple[int, int]) -> np.ndarray:
                sums = self._zero_sums(span)
                if len(self._blocks) == 1:
                    _, rows, lists = self._blocks[0]
                    tangent(rows, network.output_weights, direction, lists.arrays(), lists.active(span), sums, *span)
                    return sums
                linear = self._span_gradients(span, direction, np.zeros(network.width, np.int64), uncounted)
                for samples, rows, lists in self._blocks:
                    own = lists.arrays(), lists.active(span)
                    spread_linear(rows, network.output_weights, linear, *own, sums[samples], *span)
                return sums

            return self._total(parallel_map(span_product, spans)) * (factor / network.squared_divisor)

        return product

    def _are_twins(self) -> bool:
        """Whether the neurons of the second half are those of the first with opposite signs, as they start."""
        network, half = self.network, self.network.width // 2
        spans = ranges(network.width)
        if network.width % 2 or len(spans) % 2 or spans[len(spans) // 2][0] != half:
            return False
        mirrored = np.array_equal(network.output_weights[:half], -network.output_weights[half:])
        return mirrored and np.array_equal(network.weights[:half], network.weights[half:])

    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        from fireset.kernels.candidates import spread_linear

        self._ensure_forward()
        network = self.network
        if self._diverged:
            return np.full((len(self.X), network.n_outputs), np.nan)

        def span_product(span: tuple[int, int]) -> np.ndarray:
            sums = self._zero_sums(span)
            linear = np.zeros((span[1] - span[0], self._blocks[0].rows.shape[1]), network.dtype)
            linear[:, : network.n_features] = directions[slice(*span)]
            for samples, rows, lists in self._blocks:
                own = lists.arrays(), lists.active(span)
                spread_linear(rows, network.output_weights, linear, *own, sums[samples], *span)
            return sums

        return self._total(parallel_map(span_product, ranges(network.width))) / network.divisor

    def _look_at_all(self, indptr: np.ndarray, neurons: np.ndarray) -> None:
        """Lists that are looked at whole: of these pairs, given by sample."""
        for k, block in enumerate(self._blocks):
            own = indptr[block.samples.start : block.samples.stop + 1]
            by_neuron = transposed(own - own[0], neurons[own[0] : own[-1]], self.network.width)
            self._blocks[k] = block._replace(lists=CandidateLists.complete(*by_neuron, self.network.dtype))

    def _look_at_none(self) -> None:
        nothing = np.zeros(self.network.width + 1, np.int64), np.empty(0, np.int32), self.network.dtype
        self._blocks = [block._replace(lists=CandidateLists.complete(*nothing)) for block in self._blocks]

    def fire_sets(self) -> "csr_array":
        """n × m, from the lists; looks at nothing outside them."""
        if self._diverged:
            return self.network.fire_sets(self.X)
        return fire_sets_by_neuron(*self.active_by_neuron())

    def active_by_neuron(self) -> ActiveByNeuron:
        from fireset.kernels.candidates import copy_active

        if self._diverged:
            return super().active_by_neuron()
        self._ensure_forward()
        indptr = list_offsets(np.sum([block.lists.active_counts for block in self._blocks], axis=0))
        active, places = np.empty(indptr[-1], np.int32), indptr[:-1].copy()

        def copy_span(span: tuple[int, int]) -> None:
            for samples, _, lists in self._blocks:
                copy_active(lists.arrays(), lists.active(span), samples.start, places, active, *span)

        parallel_map(copy_span, ranges(self.network.width))
        return ActiveByNeuron(indptr, active, len(self.X))

    @contextmanager
    def _counting(self, index: HalfSpaceIndex) -> Iterator[None]:
        """Count what the index does as our work."""
        nodes, tested = index.work.nodes_visited, index.work.points_tested
        yield
        self.work.nodes_visited += index.work.nodes_visited - nodes
        self.work.inner_products += index.work.points_tested - tested

    def audit(self, neurons: np.ndarray | None = None) -> None:
        """Hold the lists of these neurons, ascending (all by default), against every sample; raises CertificateError.

        Costs O(d·n) for each neuron. In float32 samples within rounding distance of the threshold are let pass.
        """
        self._ensure_forward()
        neurons = np.arange(self.network.width) if neurons is None else np.asarray(neurons)
        at_once = max(1, _AUDITED_PAIRS // max(1, len(self.X)))
        parts = [neurons[lo : lo + at_once] for lo in range(0, len(neurons), at_once)]
        # With one BLAS thread each: BLAS workers would go on spinning on cores that the kernels need.
        parallel_map(self._audit, parts, uses_blas=True)
        self.work.audited += len(neurons)

    def _audit(self, neurons: np.ndarray) -> None:
        from fireset.kernels.firing import activate

        network = self.network
        W = network.weights[neurons]
        norms = row_norms(W)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is computed again
            excess = W @ self.X.T
        bands = deciding_band(self._terms, network.dtype, norms, self._sample_norm)
        activate(excess, W, kernel_rows(self.X), network.dtype.type(network.threshold), bands)
        excess[self._listed_pairs(neurons)] = 0  # what is left are fired pairs that the lists do not have
        doubt = np.zeros(len(neurons), network.dtype)
        if network.dtype == np.float32:
            doubt += 2 * dot_slack(self._terms, network.dtype, norms, self._sample_norm)
        missed = excess > doubt[:, None]
        if missed.any():
            k, sample = np.argwhere(missed)[0]
            raise CertificateError(
                f"neuron {neurons[k]} fires for sample {sample}, ⟨w, x⟩ − b = {excess[k, sample]:.3g}, which its "
                f"candidate list does not know; were the weights changed from outside? Then call start() again"
            )

    def _audit_some(self) -> None:
        m = self.network.width
        share = max(1, min(-(-m // _AUDITS), _AUDITED_PAIRS // max(1, len(self.X))))
        self.audit(np.sort((self._next_audit + np.arange(min(share, m))) % m))
        self._next_audit = (self._next_audit + share) % m

    def _listed_pairs(self, neurons: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fired pairs of the last forward pass: position in ``neurons`` (ascending) and sample."""
        places = np.arange(len(neurons))
        owners = [np.repeat(places, lists.active_counts[neurons]) for _, _, lists in self._blocks]
        ids = [samples.start + lists.active_samples(neurons) for samples, _, lists in self._blocks]
        return np.concatenate(owners), np.concatenate(ids)
