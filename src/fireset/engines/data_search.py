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

import numpy as np

from fireset.engines.candidate_lists import CandidateLists
from fireset.engines.list_engine import ListEngine, check_radius, fired_share
from fireset.errors import InputError
from fireset.hsr import Report, build, check_kind, choose
from fireset.parallel import lanes, run
from fireset.rounding import deciding_band, dot_slack, row_norms

_FIRST_RADIUS = 0.3  # doubles the list at the paper's thresholds; the speeds that set later radii are not known yet
_SMALLEST_RADIUS, _LARGEST_RADIUS = 0.005, 1.5
_REFRESHED_PAIR = 0.25  # of a pair looked at in a list; measured: a refresh is a GEMM
_REFRESHES = 5  # of a neuron in a run, to choose an index by
_REPORTED_PAIRS = 1 << 26  # pairs whose queries are answered at a time


class DataSearchEngine(ListEngine):
    """Algorithm 2 with certificate radii. Memory: 12 bytes per candidate in float32, 16 in float64.

    Parameters
    ----------
    radius : "auto" or float
        R of every neuron. "auto" balances refreshes against near misses for each neuron by its own speed v: moving v
        per iteration it pays n·v/R pairs for refreshes and n·φ(b)·R/2 for near misses, φ the normal density, so that
        R = √(2 c v / φ(b)), where c is the cost of a pair in a refresh beside one in a list.
    index : str
        Kind of the half-space index over the samples; see ``fireset.hsr.build``.
    """

    name = "data"

    def __init__(self, radius: float | str = "auto", index: str = "auto"):
        super().__init__()
        self._radius = check_radius(radius)
        self._kind = check_kind(index)

    def index_for(self, network, n_samples: int) -> str:
        """The kind of index that ``start`` builds."""
        if self._kind != "auto":
            return self._kind
        output = n_samples * fired_share(network.threshold - self._first_radius)
        queries = _REFRESHES * network.width
        return choose(n_samples, network.n_features, dynamic=False, output=output, queries=queries)

    @property
    def _first_radius(self) -> float:
        return _FIRST_RADIUS if self._radius == "auto" else float(self._radius)

    def _first_lists(self) -> None:
        """Query all neurons, batch by batch, each batch's slots behind the last one's."""
        self._index = build(self._X, self.index_for(self._network, len(self._X)))
        self._lists = CandidateLists(self._network.width, self._network.dtype)
        for batch in self._batches(np.arange(self._network.width)):
            report, aim = self._query(batch, np.full(len(batch), self._first_radius))
            self._lists.lay_out_next(slice(batch[0], batch[-1] + 1), np.diff(report.indptr))
            self._fill(batch, report, aim)

    def _renew_lists(self) -> None:
        due = self._reaches > self._radii
        if self._radius == "auto":
            due |= self._misses > len(self._X) // 2
        neurons = np.flatnonzero(due)
        self._refresh(neurons, self._wanted_radii(neurons))

    def _wanted_radii(self, neurons: np.ndarray) -> np.ndarray:
        if self._radius != "auto":
            return np.full(len(neurons), float(self._radius))
        density = exp(-(self._network.threshold**2) / 2) / sqrt(2 * pi)
        speeds = self._speeds[neurons] * self._sample_norm
        balanced = np.sqrt(2 * _REFRESHED_PAIR * speeds / max(density, 1e-6))
        return np.clip(balanced, _SMALLEST_RADIUS, _LARGEST_RADIUS)

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
        aim = radii + 2 * slack
        return self._searched(self._index, W, network.threshold - aim), aim

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
        lists.pending[neurons] = np.inf
        self._radii[neurons] = radii


def _selected(report: Report, chosen: np.ndarray) -> Report:
    lengths = np.diff(report.indptr)
    keep = np.repeat(chosen, lengths)
    indptr = np.concatenate([[0], np.cumsum(lengths[chosen])])
    return Report(indptr, report.ids[keep], report.values[keep])
