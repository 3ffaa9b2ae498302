"""Algorithm 2 of the paper (preprocess the data), run with a certificate radius.

The paper queries the half-space structure over the samples for every neuron that moved, in every iteration. Here
neuron r keeps C_r = { i : ⟨w_r^ref, x_i⟩ > b − R_r }, made by one query, and is queried again only when it may have
left its radius: while ‖w_r − w_r^ref‖·max‖x‖ ≤ R_r no sample outside C_r can fire (the paper's Claim on noflip sets,
which it uses in a proof only). ``radius=0`` queries every moved neuron every iteration: Algorithm 2 to the letter.

Deviations from the listing:

1. The sets S_i are not kept. They are the transpose of the S̃_r, and both passes can run over S̃_r alone.
2. The gradient has the sign of u − y; the listing's M = X diag(y − u) climbs.
3. The distance to w_r^ref is bounded by the path length Σ‖Δw_r‖: it costs nothing and needs no second copy of W.
4. A neuron is also queried again once the near misses it looked at have cost about as much as a query (rent or buy).
5. Every pass checks all certificates, and audits some neurons, in turn, against all samples. What they find raises.
"""

from math import exp, pi, sqrt
from numbers import Real

import numpy as np

from fireset.engines.base import EngineWork, Step
from fireset.engines.candidate_lists import CandidateLists
from fireset.errors import CertificateError, InputError
from fireset.hsr import Report, build
from fireset.parallel import lanes, run
from fireset.rounding import deciding_band, dot_slack, row_norms

_FIRST_RADIUS = 0.3  # doubles the list at the paper's thresholds; the speeds that set later radii are not known yet
_SMALLEST_RADIUS, _LARGEST_RADIUS = 0.005, 1.5
_REFRESHED_PAIR = 0.25  # of a pair looked at in a list; measured: a refresh is a GEMM
_REPORTED_PAIRS = 1 << 26  # pairs whose queries are answered at a time
_AUDITS = 4096  # every neuron is audited once in about so many passes
_AUDITED_PAIRS = 1 << 20


class DataSearchEngine:
    """Algorithm 2 with certificate radii. Memory: 12 bytes per candidate in float32, 16 in float64.

    Parameters
    ----------
    radius : "auto" or float
        R of every neuron. "auto" balances refreshes against near misses for each neuron by its own speed v: moving v
        per iteration it pays n·v/R pairs for refreshes and n·φ(b)·R/2 for near misses, φ the normal density, so that
        R = √(2 c v / φ(b)), where c is the cost of a pair in a refresh beside one in a list.
    """

    name = "data"
    exact = True

    def __init__(self, radius: float | str = "auto"):
        number = isinstance(radius, Real) and not isinstance(radius, bool)
        if radius != "auto" and not (number and 0 <= float(radius) < np.inf):
            raise InputError(f"radius must be 'auto' or a number of at least 0, got {radius!r}")
        self._radius = radius
        self.work = EngineWork()

    def start(self, network, X: np.ndarray) -> None:
        self._network, self._X = network, X
        self._index = build(X, "scan")
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
        self._first_lists(_FIRST_RADIUS if self._radius == "auto" else float(self._radius))

    def forward(self) -> np.ndarray:
        from fireset.kernels.candidates import forward

        network, lists = self._network, self._lists
        if self._diverged:
            return np.full((len(self._X), network.n_outputs), np.nan)
        threshold = network.dtype.type(network.threshold)

        def lane_sum(lane: tuple[int, int]):
            # A lane adds up in the network's precision, lanes are added up in float64.
            sums = np.zeros((len(self._X), network.n_outputs), network.dtype)
            counted = forward(
                self._X,
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
                lists.fired,
                lists.fired_counts,
                np.empty(len(self._X), network.dtype),
                sums,
                *lane,
            )
            return sums, counted

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
        residual = (residual / sqrt(network.width)).astype(network.dtype)
        velocity = step.velocity_for(network.weights)

        def descend_lane(lane: tuple[int, int]) -> None:
            backward(
                self._X,
                network.weights,
                velocity,
                network.signs,
                residual,
                lists.starts,
                lists.looked,
                lists.fired,
                lists.fired_counts,
                np.empty(len(self._X), network.dtype),
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
        due = self._reaches > self._radii
        if self._radius == "auto":
            due |= self._misses > len(self._X) // 2
        neurons = np.flatnonzero(due)
        self._refresh(neurons, self._wanted_radii(neurons))

    def fire_sets(self):
        """n × m, from the lists; looks at nothing outside them."""
        from scipy.sparse import csc_array

        if self._diverged:
            return self._network.fire_sets(self._X)
        if not self._forward_done:
            self.forward()
        counts = self._lists.fired_counts
        samples = self._lists.fired[self._lists.places(np.arange(len(counts)), counts)]
        indptr = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        fired = csc_array(
            (np.ones(len(samples), bool), samples, indptr), shape=(len(self._X), self._network.width)
        ).tocsr()
        fired.sort_indices()
        return fired

    def audit(self, neurons: np.ndarray | None = None) -> None:
        """Hold the lists of these neurons (all by default) against every sample; raises CertificateError.

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
        self.audit((self._next_audit + np.arange(min(share, m))) % m)
        self._next_audit = (self._next_audit + share) % m

    def _listed_pairs(self, neurons: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fired pairs of the last forward pass: position in ``neurons`` (ascending) and sample."""
        lengths = self._lists.fired_counts[neurons]
        owners = np.repeat(np.arange(len(neurons)), lengths)
        return owners, self._lists.fired[self._lists.places(neurons, lengths)]

    def _wanted_radii(self, neurons: np.ndarray) -> np.ndarray:
        if self._radius != "auto":
            return np.full(len(neurons), float(self._radius))
        density = exp(-(self._network.threshold**2) / 2) / sqrt(2 * pi)
        speeds = self._speeds[neurons] * self._sample_norm
        balanced = np.sqrt(2 * _REFRESHED_PAIR * speeds / max(density, 1e-6))
        return np.clip(balanced, _SMALLEST_RADIUS, _LARGEST_RADIUS)

    def _first_lists(self, radius: float) -> None:
        """Query all neurons, batch by batch, each batch's slots behind the last one's."""
        self._lists = CandidateLists(self._network.width, self._network.dtype)
        for batch in self._batches(np.arange(self._network.width)):
            report, aim = self._query(batch, np.full(len(batch), radius))
            self._lists.lay_out_next(slice(batch[0], batch[-1] + 1), np.diff(report.indptr))
            self._fill(batch, report, aim)

    def _refresh(self, neurons: np.ndarray, radii: np.ndarray) -> None:
        """Make new lists for these neurons, from where they are now, in batches that feed a GEMM."""
        position = 0
        for batch in self._batches(neurons):
            report, aim = self._query(batch, radii[position : position + len(batch)])
            position += len(batch)
            self._fill(batch, report, aim)
            # A list may have been cut to its slot. That is fine while the radius left is worth having: a slot that
            # grows moves, and scattered slots slow every pass. Else the slot must grow.
            short = self._radii[batch] < np.maximum(aim / 8, self._reaches[batch])
            if short.any():
                self._lists.grow(batch[short], np.diff(report.indptr)[short])
                self._fill(batch[short], _selected(report, short), aim[short])

    def _batches(self, neurons: np.ndarray):
        size = max(32, min(4096, _REPORTED_PAIRS // max(1, len(self._X))))
        for lo in range(0, len(neurons), size):
            yield neurons[lo : lo + size]

    def _query(self, neurons: np.ndarray, radii: np.ndarray) -> tuple[Report, np.ndarray]:
        """Candidates of these neurons, and what they certify, once ``_fill`` has stored them; until then nothing."""
        network = self._network
        W = network.weights[neurons]
        # Within its radius the neuron's norm grows by at most radius/‖x‖: slack for wherever it may go.
        norms = row_norms(W) + radii / max(self._sample_norm, 1e-300)
        if not np.isfinite(norms).all():
            raise InputError("weights must be small enough for their squares to be finite")
        slack = dot_slack(network.n_features, network.dtype, norms, self._sample_norm)
        self._bands[neurons] = deciding_band(network.n_features, network.dtype, norms, self._sample_norm)
        self._reaches[neurons] = 2 * slack  # the rounding of the reference value and of the value to be compared
        self._radii[neurons] = -np.inf
        self._misses[neurons] = 0
        self.work.refreshes += len(neurons)
        self.work.inner_products += len(neurons) * len(self._X)
        aim = radii + 2 * slack
        return self._index.report(W, network.threshold - aim), aim

    def _fill(self, neurons: np.ndarray, report: Report, aim: np.ndarray) -> None:
        """Store the candidates; the radius becomes ``aim``, or what is left of it where the slot is too small."""
        from fireset.kernels.candidates import fill

        lists = self._lists
        radii = aim.copy()
        threshold = self._network.dtype.type(self._network.threshold)
        slacks = 4 * float(np.finfo(self._network.dtype).eps) * (abs(self._network.threshold) + aim)

        def fill_some(part: tuple[int, int]) -> None:
            some = slice(*part)
            fill(
                neurons[some],
                report.indptr[part[0] : part[1] + 1],
                report.ids,
                report.values,
                threshold,
                slacks[some],
                radii[some],
                lists.room[neurons[some]],
                lists.starts,
                lists.counts,
                lists.samples,
                lists.references,
            )

        run(fill_some, lanes(len(neurons)))
        lists.looked[neurons] = 0
        self._radii[neurons] = radii


def _selected(report: Report, chosen: np.ndarray) -> Report:
    lengths = np.diff(report.indptr)
    keep = np.repeat(chosen, lengths)
    indptr = np.concatenate([[0], np.cumsum(lengths[chosen])])
    return Report(indptr, report.ids[keep], report.values[keep])
