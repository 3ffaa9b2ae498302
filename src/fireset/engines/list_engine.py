"""What the engines that keep candidate lists have in common: both passes, the fire sets, and the audit.

For each neuron there is a list of samples outside of which it cannot fire. How the lists are made and kept true is what
the engines differ in: ``data_search.py`` searches the data for a neuron, ``weight_search.py`` the weights for a sample.
"""

from abc import ABC, abstractmethod
from math import erfc, sqrt
from numbers import Real

import numpy as np

from fireset.engines.base import EngineWork, Step
from fireset.engines.candidate_lists import CandidateLists, aligned_outputs, aligned_rows
from fireset.errors import CertificateError, InputError
from fireset.hsr import HalfSpaceIndex, Report
from fireset.parallel import lanes, run
from fireset.rounding import deciding_band, dot_slack, row_norms

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


class ListEngine(ABC):
    """Runs both passes over the candidate lists, neuron by neuron, on all cores."""

    name: str
    exact = True
    _lists: CandidateLists

    def __init__(self) -> None:
        self.work = EngineWork()

    @abstractmethod
    def _first_lists(self) -> None:
        """The preprocessing, at the end of ``start``."""

    @abstractmethod
    def _renew_lists(self) -> None:
        """Make the lists hold for the weights as they are now; called after every step."""

    def start(self, network, X: np.ndarray) -> None:
        self._network, self._X = network, X
        self._rows = aligned_rows(X)
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

        network, lists = self._network, self._lists
        if self._diverged:
            return np.full((len(self._X), network.n_outputs), np.nan)
        threshold = network.dtype.type(network.threshold)

        def lane_sum(lane: tuple[int, int]):
            # A lane adds up in the network's precision, lanes are added up in float64.
            sums = aligned_outputs(np.zeros((len(self._X), network.n_outputs), network.dtype))
            counted = forward(
                self._rows,
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
                sums,
                *lane,
            )
            return sums[:, : network.n_outputs], counted

        parts = run(lane_sum, lanes(network.width))
        for _, (_, _, violated) in parts:
            if violated >= 0:
                raise CertificateError(
                    f"neuron {violated} has used {self._reaches[violated]:.3g} of its radius "
                    f"{self._radii[violated]:.3g} and was not refreshed"
                )
        self.work.inner_products += sum(looked for _, (looked, _, _) in parts)
        self.work.fired_pairs = sum(fired for _, (_, fired, _) in parts)
        self._forward_done = True
        self._audit_some()
        return np.asarray(sum(sums.astype(np.float64) for sums, _ in parts)) / sqrt(network.width)

    def descend(self, residual: np.ndarray, step: Step) -> None:
        from fireset.kernels.candidates import backward

        if not self._forward_done:
            self.forward()
        network, lists = self._network, self._lists
        dtype = network.dtype.type
        residual = aligned_outputs((residual / sqrt(network.width)).astype(network.dtype))
        velocity = step.velocity_for(network.weights)

        def descend_lane(lane: tuple[int, int]) -> None:
            backward(
                self._rows,
                network.weights,
                velocity,
                network.signs,
                residual,
                lists.looked,
                lists.fired(lane),
                lists.fired_starts,
                lists.fired_counts,
                dtype(step.rate),
                dtype(step.momentum),
                step.nesterov,
                self._speeds,
                self._misses,
                *lane,
            )

        run(descend_lane, lanes(network.width))
        self._forward_done = False
        if not np.isfinite(self._speeds).all():
            self._diverged = True
            return
        # The surplus pays for the rounding of the product and of the sum, however small the step is beside it.
        self._reaches += self._speeds * (self._sample_norm * (1 + 1e-9))
        self._reaches *= 1 + 4.5e-16 * (self._speeds > 0)
        self._renew_lists()

    def fire_sets(self):
        """n × m, from the lists; looks at nothing outside them."""
        from scipy.sparse import csc_array

        if self._diverged:
            return self._network.fire_sets(self._X)
        if not self._forward_done:
            self.forward()
        counts = self._lists.fired_counts
        samples = self._lists.fired_samples(np.arange(len(counts)))
        indptr = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        fired = csc_array(
            (np.ones(len(samples), bool), samples, indptr), shape=(len(self._X), self._network.width)
        ).tocsr()
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
        lengths = self._lists.fired_counts[neurons]
        owners = np.repeat(np.arange(len(neurons)), lengths)
        return owners, self._lists.fired_samples(neurons)
