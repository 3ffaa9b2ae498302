"""What the engines that keep candidate lists have in common: both passes, the fire sets, and the audit.

For each neuron there is a list of samples outside of which it cannot fire. How the lists are made and kept true is what
the engines differ in: ``data_search.py`` searches the data for a neuron, ``weight_search.py`` the weights for a sample.
"""

from abc import ABC, abstractmethod
from math import erfc, sqrt
from numbers import Real
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fireset.engines.base import EngineWork, Step
from fireset.engines.candidate_lists import CandidateLists, aligned_outputs, aligned_rows, sample_blocks
from fireset.errors import CertificateError, InputError
from fireset.hsr import HalfSpaceIndex, Report
from fireset.parallel import lanes, run
from fireset.rounding import deciding_band, dot_slack, row_norms

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_AUDITS = 4096  # every neuron is audited once in about so many passes
_AUDITED_PAIRS = 1 << 20


def check_radius(radius: float | str) -> float | str:
    """ "auto" or a number of at least 0."""
    number = isinstance(radius, Real) and not isinstance(radius, bool)
    if radius != "auto" and not (number and 0 <= float(radius) < np.inf):
        raise InputError(f"radius must be 'auto' or a number of at least 0, got {radius!r}")
    return radius


def fired_share(threshold: float) -> float:
    """P(z > threshold), the share of the pairs that are above it at initialization."""
    return 0.5 * erfc(threshold / sqrt(2.0))


class SampleBlock(NamedTuple):
    """Samples that are looked at together, and for each neuron the list of those outside of which it cannot fire."""

    samples: slice
    rows: np.ndarray  # as ``aligned_rows`` lays them out
    lists: CandidateLists


class ListEngine(ABC):
    """Runs both passes over the candidate lists, block by block, neuron by neuron, on all cores."""

    name: str
    exact = True
    _blocks: list[SampleBlock]

    def __init__(self) -> None:
        self.work = EngineWork()

    def _in_blocks(self) -> bool:
        """Whether the samples may be cut into blocks."""
        return True

    @abstractmethod
    def _first_lists(self) -> None:
        """The preprocessing, at the end of ``start``."""

    @abstractmethod
    def _renew_lists(self) -> None:
        """Make the lists hold for the weights as they are now; called after every step."""

    def start(self, network, X: np.ndarray) -> None:
        self._network, self._X = network, X
        rows = aligned_rows(X)
        self._blocks = [
            SampleBlock(slice(lo, hi), rows[lo:hi], CandidateLists(network.width, network.dtype))
            for lo, hi in (sample_blocks(rows.nbytes, len(X)) if self._in_blocks() else [(0, len(X))])
        ]
        self._sample_norm = float(row_norms(X).max(initial=0.0)) * (1 + 1e-12)
        self._next_audit = 0
        m = network.width
        self._radii = np.zeros(m)  # what the list certifies, in units of inner products
        self._reaches = np.zeros(m)  # what of it is used up
        self._speeds = np.full(m, np.inf)  # bound on the last ‖Δw_r‖; not known yet, so nobody is at rest
        self._misses = np.zeros(m, np.int32)  # near misses looked at since the list was made
        self._bands = np.zeros(m, network.dtype)
        self._forward_done = False
        self._diverged = False  # a weight is not finite any more: nothing can be found, and nothing needs to be
        self._first_lists()

    def forward(self) -> np.ndarray:
        from fireset.kernels.candidates import forward

        network = self._network
        if self._diverged:
            return np.full((len(self._X), network.n_outputs), np.nan)
        threshold = network.dtype.type(network.threshold)

        def lane_sum(lane: tuple[int, int]):
            # A lane adds up in the network's precision, lanes are added up in float64.
            sums = aligned_outputs(np.zeros((len(self._X), network.n_outputs), network.dtype))
            counted = [
                forward(
                    rows,
                    network.weights,
                    network.signs,
                    threshold,
                    lists.starts,
                    lists.counts,
                    lists.samples,
                    lists.references,
                    self._radii,
                    self._reaches,
                    self._bands,
                    lists.looked,
                    lists.pending,
                    lists.fired(lane, void=True),
                    lists.fired_starts,
                    lists.fired_counts,
                    sums[samples],
                    *lane,
                )
                for samples, rows, lists in self._blocks
            ]
            return sums.reshape(len(sums), -1)[:, : network.n_outputs], np.array(counted)

        parts = run(lane_sum, lanes(network.width))
        for _, counted in parts:
            violated = counted[:, 2].max()
            if violated >= 0:
                raise CertificateError(
                    f"neuron {violated} has used {self._reaches[violated]:.3g} of its radius "
                    f"{self._radii[violated]:.3g} and was not refreshed"
                )
        self.work.inner_products += sum(int(counted[:, 0].sum()) for _, counted in parts)
        self.work.fired_pairs = sum(int(counted[:, 1].sum()) for _, counted in parts)
        self._forward_done = True
        self._audit_some()
        return np.asarray(sum(sums.astype(np.float64) for sums, _ in parts)) / sqrt(network.width)

    def descend(self, residual: np.ndarray, step: Step) -> None:
        from fireset.kernels.candidates import add_gradients, backward, take_steps

        if not self._forward_done:
            self.forward()
        network = self._network
        dtype = network.dtype.type
        residual = aligned_outputs((residual / sqrt(network.width)).astype(network.dtype))
        velocity = step.velocity_for(network.weights)
        rule = dtype(step.rate), dtype(step.momentum), step.nesterov

        def descend_lane(lane: tuple[int, int]) -> None:
            if len(self._blocks) > 1:
                descend_lane_in_blocks(lane)
                return
            _, rows, lists = self._blocks[0]
            backward(
                rows,
                network.weights,
                velocity,
                network.signs,
                residual,
                lists.looked,
                lists.fired(lane),
                lists.fired_starts,
                lists.fired_counts,
                *rule,
                self._speeds,
                self._misses,
                *lane,
            )

        def descend_lane_in_blocks(lane: tuple[int, int]) -> None:
            some = slice(*lane)
            gradients = np.zeros((lane[1] - lane[0], self._blocks[0].rows.shape[1]), network.dtype)
            fired_counts = np.zeros(lane[1] - lane[0], np.int64)
            for samples, rows, lists in self._blocks:
                add_gradients(
                    rows,
                    network.signs,
                    residual[samples],
                    lists.looked,
                    lists.fired(lane),
                    lists.fired_starts,
                    lists.fired_counts,
                    self._misses,
                    gradients,
                    *lane,
                )
                fired_counts += lists.fired_counts[some]
            take_steps(network.weights, velocity, gradients, fired_counts, *rule, self._speeds, *lane)

        run(descend_lane, lanes(network.width))
        self._forward_done = False
        if not np.isfinite(self._speeds).all():
            self._diverged = True
            return
        # The surplus pays for the rounding of the product and of the sum, however small the step is beside it.
        self._reaches += self._speeds * (self._sample_norm * (1 + 1e-9))
        self._reaches *= 1 + 4.5e-16 * (self._speeds > 0)
        self._renew_lists()

    def _look_at_all(self, by_sample: "csr_array") -> None:
        """Lists that are looked at whole: of these pairs, n × m."""
        for k, block in enumerate(self._blocks):
            by_neuron = by_sample[block.samples].tocsc()
            lists = CandidateLists.complete(by_neuron.indptr, by_neuron.indices, self._network.dtype)
            self._blocks[k] = block._replace(lists=lists)

    def fire_sets(self):
        """n × m, from the lists; looks at nothing outside them."""
        from scipy.sparse import csc_array, csr_array, vstack

        if self._diverged:
            return self._network.fire_sets(self._X)
        if not self._forward_done:
            self.forward()
        everyone = np.arange(self._network.width)
        columns = []
        for samples, _, lists in self._blocks:
            indptr = np.concatenate([[0], np.cumsum(lists.fired_counts, dtype=np.int64)])
            ids = lists.fired_samples(everyone)
            shape = samples.stop - samples.start, self._network.width
            columns.append(csc_array((np.ones(len(ids), bool), ids, indptr), shape=shape))
        fired = csr_array(vstack(columns))
        fired.sort_indices()
        return fired

    def _searched(self, index: HalfSpaceIndex, normals: np.ndarray, thresholds: np.ndarray) -> Report:
        """Ask the index, and count its work as ours."""
        nodes, tested = index.work.nodes_visited, index.work.points_tested
        report = index.report(normals, thresholds, ordered=False)
        self.work.nodes_visited += index.work.nodes_visited - nodes
        self.work.inner_products += index.work.points_tested - tested
        return report

    def audit(self, neurons: np.ndarray | None = None) -> None:
        """Hold the lists of these neurons, ascending (all by default), against every sample; raises CertificateError.

        Costs O(d·n) for each neuron. In float32 samples within rounding distance of the threshold are let pass.
        """
        if not self._forward_done:
            self.forward()
        neurons = np.arange(self._network.width) if neurons is None else np.asarray(neurons)
        at_once = max(1, _AUDITED_PAIRS // max(1, len(self._X)))
        # In ``run`` so that BLAS keeps to one thread: its workers go on spinning on cores that the kernels need.
        run(self._audit, [neurons[lo : lo + at_once] for lo in range(0, len(neurons), at_once)], uses_blas=True)
        self.work.audited += len(neurons)

    def _audit(self, neurons: np.ndarray) -> None:
        from fireset.kernels.firing import activate

        network = self._network
        W = network.weights[neurons]
        norms = row_norms(W)
        excess = W @ self._X.T
        bands = deciding_band(network.n_features, network.dtype, norms, self._sample_norm)
        activate(excess, W, self._X, network.dtype.type(network.threshold), bands)
        excess[self._listed_pairs(neurons)] = 0  # what is left are fired pairs that the lists do not have
        doubt = np.zeros(len(neurons), network.dtype)
        if network.dtype == np.float32:
            doubt += 2 * dot_slack(network.n_features, network.dtype, norms, self._sample_norm)
        missed = excess > doubt[:, None]
        if missed.any():
            k, sample = np.argwhere(missed)[0]
            raise CertificateError(
                f"neuron {neurons[k]} fires for sample {sample}, ⟨w, x⟩ − b = {excess[k, sample]:.3g}, which its "
                f"candidate list does not know; were the weights changed from outside? Then call start() again"
            )

    def _audit_some(self) -> None:
        m = self._network.width
        share = max(1, min(-(-m // _AUDITS), _AUDITED_PAIRS // max(1, len(self._X))))
        self.audit(np.sort((self._next_audit + np.arange(min(share, m))) % m))
        self._next_audit = (self._next_audit + share) % m

    def _listed_pairs(self, neurons: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fired pairs of the last forward pass: position in ``neurons`` (ascending) and sample."""
        places = np.arange(len(neurons))
        owners = [np.repeat(places, lists.fired_counts[neurons]) for _, _, lists in self._blocks]
        ids = [samples.start + lists.fired_samples(neurons) for samples, _, lists in self._blocks]
        return np.concatenate(owners), np.concatenate(ids)
