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

import numpy as np

from fireset.engines.candidate_lists import CandidateLists
from fireset.engines.list_engine import ListEngine, check_radius, fired_share
from fireset.errors import InputError
from fireset.hsr import HalfSpaceIndex, Report, build, check_kind, choose
from fireset.parallel import lanes, run
from fireset.rounding import deciding_band, dot_slack, row_norms

FIRST_RADIUS = 0.3  # doubles the list at the paper's thresholds; the speeds that set later radii are not known yet
LARGEST_RADIUS = 1.5
_RADII = np.geomspace(0.005, LARGEST_RADIUS, 48)  # to choose from
_REFRESHED_PAIR = (0.3, 0.013)  # nanoseconds on a core, and so many more for each coordinate: a refresh is a GEMM
_LOOKED_AT_PAIR = (3.0, 0.055)
_STORED_CANDIDATE = 8.0
_WORTH_HAVING = 0.5  # of the radius wanted
_REFRESHES = 5  # of a neuron in a run, to choose an index by
_REPORTED_PAIRS = 1 << 26  # pairs whose queries are answered at a time


class DataSearchEngine(ListEngine):
    """Algorithm 2 with certificate radii. Memory: 8 bytes per candidate in float32, 12 in float64, and 4
    for each pair that fires.

    Parameters
    ----------
    radius : "auto" or float
        R of every neuron. "auto" balances refreshes against near misses for each neuron by its own speed; see
        ``best_radii``.
    index : str
        Kind of the half-space index over the samples; see ``fireset.hsr.build``.
    """

    name = "data"

    def __init__(self, radius: float | str = "auto", index: str = "auto"):
        super().__init__()
        check_radius(radius)
        self._kind = check_kind(index)
        self.adapts = radius == "auto"
        self.largest_radius = LARGEST_RADIUS if radius == "auto" else float(radius)  # ``fireset.memory`` may lower it

    def index_for(self, network, n_samples: int) -> str:
        """The kind of index that ``start`` builds."""
        if self._kind != "auto":
            return self._kind
        output = n_samples * fired_share(network.threshold - self._first_radius)
        queries = _REFRESHES * network.width
        return choose(n_samples, network.n_features, dynamic=False, output=output, queries=queries)

    @property
    def _first_radius(self) -> float:
        return min(FIRST_RADIUS, self.largest_radius) if self.adapts else self.largest_radius

    def _in_blocks(self) -> bool:
        # A tree over all samples is worth more than blocks, and where trees are chosen, rows are short.
        return self.index_for(self._network, len(self._X)) == "scan"

    def _first_lists(self) -> None:
        """Query all neurons, batch by batch, each batch's slots behind the last one's."""
        kind = self.index_for(self._network, len(self._X))
        options = {"copy": False} if kind == "scan" else {}
        self._indexes = [build(self._X[samples], kind, **options) for samples, _, _ in self._blocks]
        for batch in self._batches(np.arange(self._network.width)):
            aim = self._expect(batch, np.full(len(batch), self._first_radius))
            for index, block in zip(self._indexes, self._blocks, strict=True):
                report = self._query(index, batch, aim)
                block.lists.lay_out_next(slice(batch[0], batch[-1] + 1), np.diff(report.indptr))
                self._fill(block.lists, batch, report, aim)
            self._radii[batch] = aim

    def _renew_lists(self) -> None:
        due = ~(self._reaches <= self._radii)
        if self.adapts:
            due |= self._misses > len(self._X) // 2
        neurons = np.flatnonzero(due)
        radii = self._wanted_radii(neurons)
        # Weights so large that inner products may overflow: nothing can be certified, and nothing will come of it.
        self._diverged = not np.isfinite(self._slacks(self._norms(neurons, radii))).all()
        if not self._diverged:
            self._refresh(neurons, radii)

    def _wanted_radii(self, neurons: np.ndarray) -> np.ndarray:
        if not self.adapts:
            return np.full(len(neurons), self.largest_radius)
        speeds = self._speeds[neurons] * self._sample_norm
        best = best_radii(speeds, self._network.threshold, self._network.n_features)
        return np.minimum(best, self.largest_radius)

    def _refresh(self, neurons: np.ndarray, radii: np.ndarray) -> None:
        """Make new lists for these neurons, from where they are now, in batches that feed a GEMM."""
        position = 0
        for batch in self._batches(neurons):
            aim = self._expect(batch, radii[position : position + len(batch)])
            position += len(batch)
            left = [
                self._refresh_block(index, block.lists, batch, aim)
                for index, block in zip(self._indexes, self._blocks, strict=True)
            ]
            self._radii[batch] = np.min(left, axis=0)

    def _refresh_block(
        self, index: HalfSpaceIndex, lists: CandidateLists, batch: np.ndarray, aim: np.ndarray
    ) -> np.ndarray:
        """Make new lists of the samples of one block; returns what they certify."""
        report = self._query(index, batch, aim)
        radii = self._fill(lists, batch, report, aim)
        # A list may have been cut to its slot. That is fine while the radius left is worth having: a slot that grows
        # moves, and scattered slots slow every pass. Else the slot must grow.
        short = radii < np.maximum(_WORTH_HAVING * aim, self._reaches[batch])
        if short.any():
            lists.grow(batch[short], np.diff(report.indptr)[short])
            radii[short] = self._fill(lists, batch[short], _selected(report, short), aim[short])
        return radii

    def _batches(self, neurons: np.ndarray):
        size = max(32, min(4096, _REPORTED_PAIRS // max(1, len(self._X))))
        for lo in range(0, len(neurons), size):
            yield neurons[lo : lo + size]

    def _expect(self, neurons: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """What new lists of these neurons are to certify, rounding included. Until they are made, nothing is."""
        network = self._network
        norms = self._norms(neurons, radii)
        slack = self._slacks(norms)
        if not np.isfinite(slack).all():
            raise InputError("weights and rows must be small enough for their inner products to be finite")
        self._bands[neurons] = deciding_band(network.n_features, network.dtype, norms, self._sample_norm)
        self._reaches[neurons] = 2 * slack  # the rounding of the reference value and of the value to be compared
        self._radii[neurons] = -np.inf
        self._misses[neurons] = 0
        self.work.refreshes += len(neurons)
        return radii + 2 * slack

    def _norms(self, neurons: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """Within its radius a neuron's norm grows by at most radius/‖x‖: bounds for wherever it may go."""
        return row_norms(self._network.weights[neurons]) + radii / max(self._sample_norm, 1e-300)

    def _slacks(self, norms: np.ndarray) -> np.ndarray:
        """Bounds on the rounding of inner products of neurons up to these norms; not finite where they may overflow."""
        return dot_slack(self._network.n_features, self._network.dtype, norms, self._sample_norm)

    def _query(self, index: HalfSpaceIndex, neurons: np.ndarray, aim: np.ndarray) -> Report:
        return self._searched(index, self._network.weights[neurons], self._network.threshold - aim)

    def _fill(self, lists: CandidateLists, neurons: np.ndarray, report: Report, aim: np.ndarray) -> np.ndarray:
        """Store the candidates; returns the radii: ``aim``, or what is left of it where a slot is too small."""
        from fireset.kernels.candidates import fill

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
        return radii


def best_radii(speeds: np.ndarray, threshold: float, n_features: int) -> np.ndarray:
    """For each speed the radius at which an iteration is expected to cost least.

    With radius R a neuron of speed v is refreshed every max(1, R/v) iterations, for all n pairs in a GEMM and for the
    n·P(z > b − R) candidates to be stored, and looks at n·P(z > b − R/2) pairs on average; a neuron that is refreshed
    in every iteration looks only at those that fire. For small v this is the balance R = √(2 c v / φ(b)), φ the normal
    density, c the cost of a pair in a refresh beside one in a list; for large v it is the smallest radius.
    """
    from scipy.special import ndtr

    refreshed, looked_at = (fixed + slope * n_features for fixed, slope in (_REFRESHED_PAIR, _LOOKED_AT_PAIR))
    refresh = refreshed + _STORED_CANDIDATE * ndtr(_RADII - threshold)
    every = speeds[:, None] >= _RADII
    costs = np.where(
        every,
        refresh + looked_at * ndtr(-threshold),
        speeds[:, None] / _RADII * refresh + looked_at * ndtr(_RADII / 2 - threshold),
    )
    return _RADII[costs.argmin(axis=1)]


def _selected(report: Report, chosen: np.ndarray) -> Report:
    lengths = np.diff(report.indptr)
    keep = np.repeat(chosen, lengths)
    indptr = np.concatenate([[0], np.cumsum(lengths[chosen])])
    return Report(indptr, report.ids[keep], report.values[keep])
