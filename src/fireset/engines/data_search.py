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

from collections.abc import Callable
from copy import copy

import numpy as np

from fireset._util.errors import InputError
from fireset._util.gaussian import threshold_for, upper_tail
from fireset._util.parallel import parallel_map, ranges
from fireset._util.rounding import deciding_band, dot_slack, row_norms
from fireset.engines.base import Engine
from fireset.engines.candidate_lists import (
    SPARE,
    CandidateLists,
    list_bytes,
    pass_bytes,
    places_for,
    row_bytes,
    sample_blocks,
)
from fireset.engines.list_engine import ListEngine, check_radius
from fireset.fire_sets import list_offsets
from fireset.hsr import HalfSpaceIndex, Report, build, check_kind, choose
from fireset.hsr.scan import ScanIndex
from fireset.sparse_rows import Rows, SparseRows, entries_per_row

_FIRST_RADIUS = 0.3  # doubles the list at the paper's thresholds; the speeds that set later radii are not known yet
_SCALED_RADIUS = 10.0  # over κ, likewise: no neuron of any table tried has gone further to the end of training
MAX_RADIUS = 1.5
_RADII = np.geomspace(0.005, MAX_RADIUS, 48)  # to choose from
_REFRESHED_PAIR = (0.3, 0.013)  # nanoseconds on a core, and so many more for each coordinate: a refresh is a GEMM
_LOOKED_AT_PAIR = (3.0, 0.055)
_STORED_CANDIDATE = 8.0
_WORTH_HAVING = 0.5  # of the radius wanted
_REFRESHES = 5  # of a neuron in a run, to choose an index by
_MIN_RADIUS_CAP = 0.1  # where memory is short; below it, blocks of neurons cost less than refreshes
_LISTS_GROW = 1.1  # at most so many times as long, on average, as with the first radius, and by half of what is spare
_RADIUS_FALLBACKS = (1.0, 0.5, 0.2)  # of the first radius, where lists are to be made anew in the places that they had
_ASKED_PAIRS = 1 << 26  # pairs whose queries are answered at a time
_REPORTED_PAIRS = 1 << 21  # of them that are expected to be reported, there twice


class DataSearchEngine(ListEngine):
    """Algorithm 2 with certificate radii. Memory: 8 bytes per candidate in float32, 12 in float64, and 4 for
    each pair that fires. Radii grow as far as lists stay within a tenth of the length of the first ones, on average.

    Parameters
    ----------
    radius : "auto" or float
        R of every neuron. "auto" balances refreshes against near misses for each neuron by its own speed; see
        ``best_radii``.
    index : str
        Kind of the half-space index over the samples; see ``fireset.hsr.build``.
    """

    name = "data"
    takes_sparse = True
    can_shrink = True
    summary = "keeps a list of rows for each neuron, searched anew only when it has moved far (Algorithm 2)"

    def __init__(self, radius: float | str = "auto", index: str = "auto"):
        super().__init__()
        check_radius(radius)
        self._kind = check_kind(index)
        self._adapts = radius == "auto"
        self.largest_radius = MAX_RADIUS if radius == "auto" else float(radius)

    def expect(self, X: Rows) -> None:
        super().expect(X)
        if self.sparse and self._kind not in ("auto", "scan"):
            raise InputError(f"index must be 'auto' or 'scan' for sparse rows, got {self._kind!r}")

    def index_kind(self, network, n_samples: int) -> str:
        if self._kind != "auto" or self.sparse:
            return "scan" if self.sparse else self._kind
        output = n_samples * upper_tail(network.threshold - self._first_radius(network))
        queries = _REFRESHES * network.width
        return choose(n_samples, network.n_features, dynamic=False, output=output, queries=queries)

    def memory_bytes(self, network, n_samples: int) -> float:
        """The lists, who of them fires, and what is reported at a time while they are made."""
        item, pairs = network.dtype.itemsize, float(n_samples * network.width)
        listed, active = (
            pairs * upper_tail(network.threshold - radius) for radius in (self._first_radius(network), 0.0)
        )
        slots = network.width * self._count_blocks(network, n_samples)
        batch = self._batch_size(network, n_samples)
        more = min(2.0, max(0.0, network.threshold))  # where few pairs fire, training may make more of them
        # Reported pairs are there twice, and the allocator keeps some of the memory of earlier ones.
        reported = (2.5 + 0.6 * more) * (4 + item) * listed * min(1.0, batch / network.width)
        asked = 2 * min(batch, network.width) * network.n_features * item
        lists = list_bytes(listed, slots, network.dtype) + 4 * active * (1 + 0.7 * more)
        if not self._adapts:  # lists grow by copying
            lists += max(4, item) * places_for(listed, slots)
        return lists + reported + asked + pass_bytes(network, n_samples, sparse=self.sparse)

    def within_memory(self, network, n_samples: int, budget: float) -> Engine | None:
        """Itself, or with smaller radii, or with the neurons in blocks."""
        from fireset.engines.blocks import BlockEngine

        thrifty = copy(self)  # the caller's own may be used again
        while self._adapts and thrifty.memory_bytes(network, n_samples) > budget:
            thrifty.largest_radius *= 0.8  # more refreshes, smaller lists
            if thrifty.largest_radius < _MIN_RADIUS_CAP:
                break
        if thrifty.memory_bytes(network, n_samples) <= budget:
            return self if thrifty.largest_radius == self.largest_radius else thrifty
        return BlockEngine.within_budget(network, n_samples, budget, sparse=self.sparse)

    def _first_radius(self, network) -> float:
        if not self._adapts:
            return self.largest_radius
        return min(_FIRST_RADIUS, _SCALED_RADIUS / network.output_scale, self.largest_radius)

    def _radius_of_slots(self, network, n_samples: int) -> float:
        """With this radius lists have the length, on average, that their slots were made for."""
        n, first = max(1, n_samples), self._first_radius(network)
        share = _LISTS_GROW * upper_tail(network.threshold - first) + 0.5 * SPARE / n
        return min(max(first, network.threshold - threshold_for(share)), self.largest_radius)

    def _in_blocks(self) -> bool:
        # A tree over all samples is worth more than blocks, and where trees are chosen, rows are short.
        return self.index_kind(self.network, len(self.X)) == "scan"

    def _count_blocks(self, network, n_samples: int) -> int:
        """Of samples."""
        in_blocks = not self.sparse and self.index_kind(network, n_samples) == "scan"
        return len(sample_blocks(int(row_bytes(network, n_samples)), n_samples)) if in_blocks else 1

    def _first_lists(self) -> None:
        self._indexes = [self._index_over(self.X[samples]) for samples, _, _ in self._blocks]
        self._most = self._radius_of_slots(self.network, len(self.X))
        W, half = self.network.weights, self.network.width // 2
        twins = self.network.width % 2 == 0 and np.array_equal(W[:half], W[half:])  # as an antisymmetric start has them
        first = self._first_radius(self.network)
        listed = self.network.width * upper_tail(self.network.threshold - first)
        for samples, _, lists in self._blocks:
            lists.reserve(places_for((samples.stop - samples.start) * listed, self.network.width))
        if not self._make_lists(lambda batch: np.full(len(batch), first), twins=twins):
            raise InputError("weights and rows must be small enough for their inner products to be finite")
        if twins:
            for block in self._blocks:
                block.lists.repeat_first_half()
            for each in (self._radii, self._drifts, self._bands):
                each[half:] = each[:half]
            self.work.refreshes *= 2

    def _make_lists(self, radii_of: Callable[[np.ndarray], np.ndarray], *, twins: bool = False) -> bool:
        """Lists of all neurons, in as much memory as it takes; False where nothing can be certified."""
        while (made := self._try_lists(radii_of, 2 if twins else 1)) is None:
            lists, neurons = self._without_slot
            lists.reserve_more(neurons)
        return made

    def _rebuild_lists_in_place(self) -> bool:
        """The same after training has used up their places: in these, with smaller radii if need be; else in more."""
        first = self._first_radius(self.network)
        for thrift in _RADIUS_FALLBACKS:
            made = self._try_lists(lambda batch, most=thrift * first: np.minimum(self._wanted_radii(batch), most))
            if made is not None:
                return made
        return self._make_lists(lambda batch: np.minimum(self._wanted_radii(batch), _RADIUS_FALLBACKS[-1] * first))

    def _try_lists(self, radii_of: Callable[[np.ndarray], np.ndarray], times: int = 1) -> bool | None:
        """Query all neurons, or the first half, batch by batch, each batch's slots behind the last one's.

        False where nothing can be certified, None where some lists have no place.
        """
        for block in self._blocks:
            block.lists.clear()
        for batch in self._batches(np.arange(self.network.width // times)):
            aim, done = self._expect(batch, radii_of(batch)), batch[-1] + 1
            if aim is None:
                return False
            for index, block in zip(self._indexes, self._blocks, strict=True):
                report = self._query(index, batch, aim)
                if not block.lists.lay_out_next(slice(batch[0], done), np.diff(report.indptr), times):
                    self._without_slot = block.lists, int(done)
                    return None
                self._fill(block.lists, batch, report, aim)
            self._radii[batch] = aim
        return True

    def _index_over(self, X: Rows) -> HalfSpaceIndex:
        if isinstance(X, SparseRows):
            return ScanIndex(X, copy=False, largest_norm=self._sample_norm)
        kind = self.index_kind(self.network, len(self.X))
        return build(X, kind, **({"copy": False} if kind == "scan" else {}))

    def _renew_lists(self) -> None:
        due = self._moved[~(self._drifts[self._moved] <= self._radii[self._moved])]
        if self._adapts:
            missed = np.flatnonzero(self._near_misses > len(self.X) // 2)
            due = np.union1d(due, missed) if len(missed) else due
        self._refresh(due)

    def _wanted_radii(self, neurons: np.ndarray) -> np.ndarray:
        if not self._adapts:
            return np.full(len(neurons), self.largest_radius)
        speeds = self._speeds[neurons] * self._sample_norm
        best = best_radii(speeds, self.network.threshold, entries_per_row(self.X))
        return np.minimum(best, self._most)

    def _refresh(self, neurons: np.ndarray) -> None:
        """Make new lists for these neurons, from where they are now, in batches that feed a GEMM."""
        for batch in self._batches(neurons):
            aim = self._expect(batch, self._wanted_radii(batch))
            if aim is None:
                self._diverged = True
                return
            left = []
            for index, block in zip(self._indexes, self._blocks, strict=True):
                certified = self._refresh_block(index, block.lists, batch, aim)
                if certified is None:
                    self._diverged = not self._rebuild_lists_in_place()
                    return
                left.append(certified)
            self._radii[batch] = np.min(left, axis=0)

    def _refresh_block(
        self, index: HalfSpaceIndex, lists: CandidateLists, batch: np.ndarray, aim: np.ndarray
    ) -> np.ndarray | None:
        """Make new lists of the samples of one block; returns what they certify, or None if there is no place left."""
        report = self._query(index, batch, aim)
        radii = self._fill(lists, batch, report, aim)
        # A list may have been cut to its slot. That is fine while the radius left is worth having: a slot that grows
        # moves, and scattered slots slow every pass. Else the slot must grow.
        short = radii < np.maximum(_WORTH_HAVING * aim, self._drifts[batch])
        if short.any():
            if not lists.grow(batch[short], np.diff(report.indptr)[short]):
                if self._adapts:
                    return None
                lists.grow_by_copying()
            radii[short] = self._fill(lists, batch[short], _selected(report, short), aim[short])
        return radii

    def _batches(self, neurons: np.ndarray):
        size = self._batch_size(self.network, len(self.X))
        for lo in range(0, len(neurons), size):
            yield neurons[lo : lo + size]

    def _batch_size(self, network, n_samples: int) -> int:
        listed = upper_tail(network.threshold - self._radius_of_slots(network, n_samples))
        fitting = min(_ASKED_PAIRS, int(_REPORTED_PAIRS / max(listed, 1e-9))) // max(1, n_samples)
        return max(32, min(4096, fitting))

    def _expect(self, neurons: np.ndarray, radii: np.ndarray) -> np.ndarray | None:
        """What new lists of these neurons are to certify, rounding included. Until they are made, nothing is.

        None where weights are so large that inner products may overflow: nothing can be certified.
        """
        network = self.network
        norms = self._norms(neurons, radii)
        slack = self._slacks(norms)
        if not np.isfinite(slack).all():
            return None
        self._bands[neurons] = deciding_band(self._terms, network.dtype, norms, self._sample_norm)
        self._drifts[neurons] = 2 * slack  # the rounding of the reference value and of the value to be compared
        self._radii[neurons] = -np.inf
        self._near_misses[neurons] = 0
        self.work.refreshes += len(neurons)
        return radii + 2 * slack

    def _norms(self, neurons: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """Within its radius a neuron's norm grows by at most radius/‖x‖: bounds for wherever it may go."""
        return row_norms(self.network.weights[neurons]) + radii / max(self._sample_norm, 1e-300)

    def _slacks(self, norms: np.ndarray) -> np.ndarray:
        """Bounds on the rounding of inner products of neurons up to these norms; not finite where they may overflow."""
        return dot_slack(self._terms, self.network.dtype, norms, self._sample_norm)

    def _query(self, index: HalfSpaceIndex, neurons: np.ndarray, aim: np.ndarray) -> Report:
        with self._counting(index):
            return index.report(self.network.weights[neurons], self.network.threshold - aim, ordered=False)

    def _fill(self, lists: CandidateLists, neurons: np.ndarray, report: Report, aim: np.ndarray) -> np.ndarray:
        """Store the candidates; returns the radii: ``aim``, or what is left of it where a slot is too small."""
        from fireset.kernels.candidates import fill

        radii = aim.copy()
        threshold = self.network.dtype.type(self.network.threshold)
        slacks = 4 * float(np.finfo(self.network.dtype).eps) * (abs(self.network.threshold) + aim)

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
                lists.capacities[neurons[some]],
                lists.starts,
                lists.counts,
                lists.samples,
                lists.references,
            )

        parallel_map(fill_some, ranges(len(neurons)))
        lists.prefix_lengths[neurons] = 0
        lists.next_references[neurons] = np.inf
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
    return Report(list_offsets(lengths[chosen]), report.ids[keep], report.values[keep])
