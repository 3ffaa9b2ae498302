"""Algorithm 2 of the paper (preprocess the data), with certificate radii.

The paper queries the half-space index over the rows for every neuron that moved, in every iteration. Here neuron r
keeps the candidate list C_r = { i : ⟨w_r^ref, x_i⟩ > b − R_r }, made by one query, and is queried again only when it
may have left its radius: while ‖w_r − w_r^ref‖·max‖x‖ ≤ R_r no row outside C_r can be active (the paper's claim on
noflip sets, which it uses in a proof only). ``radius=0`` queries every moved neuron in every iteration, as Algorithm 2
is written.

Deviations from the listing:

1. The sets S_i are not kept. They are the transpose of the S̃_r, and both passes can run over S̃_r alone.
2. The gradient has the sign of u − y; the listing's M = X diag(y − u) ascends.
3. The distance to w_r^ref is bounded by the path length Σ‖Δw_r‖: it is free and needs no second copy of W.
4. A neuron is also queried again once its near misses have cost about as much as a query.
5. Every pass checks the certificates of all live neurons and audits some neurons, live or not, in turn, against all
   rows. Violations raise.
"""

from collections.abc import Callable, Iterator
from copy import copy, deepcopy

import numpy as np

from fireset._util.errors import InputError
from fireset._util.gaussian import threshold_for, upper_tail
from fireset._util.parallel import parallel_map, ranges
from fireset._util.rounding import deciding_band, dot_slack, row_norms
from fireset.engines.base import Engine
from fireset.engines.candidate_lists import SPARE_PER_SLOT, CandidateLists, list_bytes, total_capacity
from fireset.engines.cost import MAX_RADIUS, best_radii
from fireset.engines.list_engine import ListEngine, check_radius
from fireset.engines.list_passes import aligned_row_bytes, chunk_ranges, pass_bytes
from fireset.fire_sets import list_offsets
from fireset.hsr import HalfSpaceIndex, Report, build, check_kind, choose
from fireset.hsr.scan import ScanIndex
from fireset.kernels.candidates import Certificates, fill
from fireset.sparse_rows import Rows, SparseRows, entries_per_row

_FIRST_RADIUS = 0.3  # doubles the lists at the paper's thresholds; the speeds that determine later radii are unknown
_FIRST_RADIUS_TIMES_SCALE = 10.0  # divided by κ; no neuron of any table tried has moved further during training
_MIN_RADIUS_CAP = 0.1  # where memory is short; below it, blocks of neurons cost less than refreshes
_MIN_RADIUS_FRACTION = 0.5  # of the desired radius: a list that certifies less gets a larger slot
_RADIUS_REDUCTION = 0.7  # of the largest radius, when lists outgrow their memory
_RADIUS_REDUCTIONS = 4  # then lists get more memory
_MAX_LIST_GROWTH = 1.1  # of the average length beyond that of the first lists, and half of the spare capacity
_EXPECTED_REFRESHES = 5  # of a neuron in a run, to choose an index
_MAX_QUERIED_PAIRS = 1 << 26  # per batch of queries
_MAX_REPORTED_PAIRS = 1 << 21  # expected per batch of queries; in memory twice


class DataSearchEngine(ListEngine):
    """Algorithm 2 with certificate radii.

    Memory: 8 bytes per candidate in float32, 12 in float64, and 4 for each active pair. Radii are limited so that the
    average length of the lists grows by at most a tenth.

    Parameters
    ----------
    radius : "auto" or float
        R of every neuron. "auto" balances refreshes against near misses for each neuron by its speed; see
        ``fireset.engines.cost.best_radii``.
    index : str or HalfSpaceIndex
        Kind of the half-space index over the rows, or an index over them: ``fireset.hsr.build(X)``, in the precision of
        the network. Any number of engines, in any number of threads, may share an index. It must not be changed while
        they train; a change raises an InputError.
    """

    name = "data"
    compiles_fast = True
    supports_sparse = True
    can_reduce_memory = True
    summary = "keeps a list of rows for each neuron, searched again only when it has moved far (Algorithm 2)"

    def __init__(self, radius: float | str = "auto", index: str | HalfSpaceIndex = "auto"):
        super().__init__()
        check_radius(radius)
        self._given_index = index if isinstance(index, HalfSpaceIndex) else None
        self._kind = index.kind if isinstance(index, HalfSpaceIndex) else check_kind(index)
        self._adaptive = radius == "auto"
        self.max_radius = MAX_RADIUS if radius == "auto" else float(radius)

    def check_input(self, X: Rows) -> None:
        super().check_input(X)
        if self.sparse and self._kind not in ("auto", "scan"):
            raise InputError(f"index must be 'auto' or 'scan' for sparse rows, got {self._kind!r}")
        if self._given_index is not None:
            _check_index(self._given_index, X)
            self._changes_before = self._given_index.changes

    def __deepcopy__(self, memo: dict) -> "DataSearchEngine":
        """Copy the engine, as ``fit`` and ``sklearn.base.clone`` do, without copying an index that was given."""
        if self._given_index is not None:
            memo[id(self._given_index)] = self._given_index
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        vars(copied).update(deepcopy(self.__dict__, memo))
        return copied

    # Planning

    def index_kind(self, network, n_samples: int) -> str:
        if self._kind != "auto" or self.sparse:
            return "scan" if self.sparse else self._kind
        output = n_samples * upper_tail(network.threshold - self._first_radius(network))
        queries = _EXPECTED_REFRESHES * network.width
        return choose(n_samples, network.n_features, dynamic=False, output=output, queries=queries)

    def memory_bytes(self, network, n_samples: int) -> float:
        """Candidate lists, active pairs, and the pairs reported at a time while the lists are made."""
        item, pairs = network.dtype.itemsize, float(n_samples * network.width)
        candidates, active = (
            pairs * upper_tail(network.threshold - radius) for radius in (self._first_radius(network), 0.0)
        )
        chunks = self._count_chunks(network, n_samples)
        slots = network.width * chunks
        empty_slots = _empty_slots(candidates, slots, chunks)
        batch = self._batch_size(network, n_samples)
        growth = min(2.0, max(0.0, network.threshold))  # where few pairs are active, training may activate more
        # Reported pairs exist twice, and the allocator retains memory of earlier ones.
        reported = (2.5 + 0.6 * growth) * (4 + item) * candidates * min(1.0, batch / network.width)
        queries = 2 * min(batch, network.width) * network.n_features * item
        lists = list_bytes(candidates, slots, empty_slots, network.dtype) + 4 * active * (1 + 0.7 * growth)
        if not self._adaptive:  # lists grow by copying
            lists += max(4, item) * total_capacity(candidates, slots - empty_slots)
        return lists + reported + queries + pass_bytes(network, n_samples, sparse=self.sparse)

    def within_memory(self, network, n_samples: int, budget: float) -> Engine | None:
        """Return this engine, one with smaller radii, or one that processes the neurons in blocks."""
        from fireset.engines.blocks import BlockEngine  # which imports this module

        smaller = copy(self)  # this engine may be used again
        while self._adaptive and smaller.memory_bytes(network, n_samples) > budget:
            smaller.max_radius *= 0.8  # more refreshes, smaller lists
            if smaller.max_radius < _MIN_RADIUS_CAP:
                break
        if smaller.memory_bytes(network, n_samples) <= budget:
            return self if smaller.max_radius == self.max_radius else smaller
        index = "scan" if self._given_index is None else self._given_index
        return BlockEngine.within_budget(network, n_samples, budget, sparse=self.sparse, index=index)

    def _first_radius(self, network) -> float:
        if not self._adaptive:
            return self.max_radius
        return min(_FIRST_RADIUS, _FIRST_RADIUS_TIMES_SCALE / network.output_scale, self.max_radius)

    def _radius_for_slots(self, network, n_samples: int) -> float:
        """Return the radius with which lists fill their slots on average."""
        n, first = max(1, n_samples), self._first_radius(network)
        fraction = _MAX_LIST_GROWTH * upper_tail(network.threshold - first) + 0.5 * SPARE_PER_SLOT / n
        return min(max(first, network.threshold - threshold_for(fraction)), self.max_radius)

    def _uses_chunks(self) -> bool:
        # A tree over all rows saves more than chunks do, and trees are chosen where rows are short.
        return self._given_index is None and self.index_kind(self.network, len(self.X)) == "scan"

    def _count_chunks(self, network, n_samples: int) -> int:
        chunked = not self.sparse and self._given_index is None and self.index_kind(network, n_samples) == "scan"
        return len(chunk_ranges(int(aligned_row_bytes(network, n_samples)), n_samples)) if chunked else 1

    def _batch_size(self, network, n_samples: int) -> int:
        """Return the number of neurons to query at a time."""
        fraction = upper_tail(network.threshold - self._radius_for_slots(network, n_samples))
        neurons = min(_MAX_QUERIED_PAIRS, int(_MAX_REPORTED_PAIRS / max(fraction, 1e-9))) // max(1, n_samples)
        return max(32, min(4096, neurons))

    # Lists of all neurons

    def _first_lists(self) -> None:
        chunks = self._passes.chunks
        self._indexes = [self._index_over(self.X[chunk.samples]) for chunk in chunks]
        self._max_radius_for_slots = self._radius_for_slots(self.network, len(self.X))
        W, half = self.network.weights, self.network.width // 2
        # An antisymmetric start. One row is compared first: the comparison of all takes memory.
        twins = 2 * half == len(W) and np.array_equal(W[0], W[half]) and np.array_equal(W[:half], W[half:])
        first = self._first_radius(self.network)
        candidates_per_row = self.network.width * upper_tail(self.network.threshold - first)
        for samples, _, lists in chunks:
            candidates, slots = (samples.stop - samples.start) * candidates_per_row, self.network.width
            lists.reserve(total_capacity(candidates, slots - _empty_slots(candidates, slots, len(chunks))))
        if not self._make_lists(lambda batch: np.full(len(batch), first), twins=twins):
            raise InputError("weights and rows must be small enough for their inner products to be finite")
        if twins:
            for chunk in chunks:
                chunk.lists.repeat_first_half()
            for each in (self._radii, self._drifts, self._bands):
                each[half:] = each[:half]
            self.work.refreshes *= 2
        self._passes.live = np.flatnonzero(np.any([chunk.lists.counts > 0 for chunk in chunks], axis=0))

    def _index_over(self, X: Rows) -> HalfSpaceIndex:
        if self._given_index is not None:
            return self._given_index
        self.work.points_indexed += len(X)
        if isinstance(X, SparseRows):
            return ScanIndex(X, copy=False, largest_norm=self._sample_norm)
        kind = self.index_kind(self.network, len(self.X))
        return build(X, kind, **({"copy": False} if kind == "scan" else {}))

    def _make_lists(self, radii_of: Callable[[np.ndarray], np.ndarray], *, twins: bool = False) -> bool:
        """Query all neurons, or with ``twins`` the first half; enlarge the lists until they fit.

        ``radii_of`` maps an array of neurons to their radii. Return False if inner products may overflow.
        """
        while (made := self._try_lists(radii_of, 2 if twins else 1)) is None:
            lists, laid_out = self._overfull
            lists.reserve_for_all(laid_out)
        return made

    def _rebuild_lists_in_place(self) -> bool:
        """Make the lists of all neurons in the memory they have, with smaller radii, else in more memory.

        Later refreshes have no larger radii: their lists would soon outgrow the memory again. Return False if inner
        products may overflow.
        """
        for _ in range(_RADIUS_REDUCTIONS):
            self._max_radius_for_slots *= _RADIUS_REDUCTION
            made = self._try_lists(self._desired_radii)
            if made is not None:
                return made
        return self._make_lists(self._desired_radii)

    def _try_lists(self, radii_of: Callable[[np.ndarray], np.ndarray], times: int = 1) -> bool | None:
        """Query all neurons, or the first half if ``times`` is 2, batch by batch; append the slots of each batch.

        Return False if inner products may overflow, None if the lists do not fit; ``_overfull`` then has the lists
        and the number of neurons laid out.
        """
        chunks = self._passes.chunks
        self._passes.make_all_live()
        for chunk in chunks:
            chunk.lists.clear()
        for batch in self._batches(range(self.network.width // times)):
            margins, done = self._reset_certificates(batch, radii_of(batch)), batch[-1] + 1
            if margins is None:
                return False
            for index, chunk in zip(self._indexes, chunks, strict=True):
                report = self._query(index, batch, margins)
                laid_out = slice(batch[0], done), np.diff(report.indptr), times
                if not chunk.lists.append_slots(*laid_out, has_all_rows=len(chunks) == 1):
                    self._overfull = chunk.lists, int(done)
                    return None
                self._fill(chunk.lists, batch, report, margins)
            self._radii[batch] = margins
        return True

    # Refreshes

    def _update_lists(self) -> None:
        most = len(self.X) // 2 if self._adaptive else np.iinfo(np.int32).max
        certificates = Certificates(self._radii, self._drifts, self._bands)
        self._refresh(self._passes.prune_live(certificates, self._speeds, self._near_misses, most))

    def _desired_radii(self, neurons: np.ndarray) -> np.ndarray:
        if not self._adaptive:
            return np.full(len(neurons), self.max_radius)
        speeds = self._speeds[neurons] * self._sample_norm
        best = best_radii(speeds, self.network.threshold, entries_per_row(self.X))
        return np.minimum(best, self._max_radius_for_slots)

    def _refresh(self, neurons: np.ndarray) -> None:
        """Make new lists for these neurons at their current weights, in batches large enough for matrix products."""
        for batch in self._batches(neurons):
            margins = self._reset_certificates(batch, self._desired_radii(batch))
            if margins is None:
                self._diverged = True
                return
            certified = []
            for index, chunk in zip(self._indexes, self._passes.chunks, strict=True):
                radii = self._refresh_chunk(index, chunk.lists, batch, margins)
                if radii is None:
                    self._diverged = not self._rebuild_lists_in_place()
                    return
                certified.append(radii)
            self._radii[batch] = np.min(certified, axis=0)

    def _refresh_chunk(
        self, index: HalfSpaceIndex, lists: CandidateLists, batch: np.ndarray, margins: np.ndarray
    ) -> np.ndarray | None:
        """Make new lists over the rows of one chunk. Return the radii they certify, or None if they do not fit."""
        report = self._query(index, batch, margins)
        radii = self._fill(lists, batch, report, margins)
        # A list may have been truncated to its slot. That is acceptable while the remaining radius is large enough: a
        # slot that grows moves to the end, and scattered slots slow every pass.
        short = radii < np.maximum(_MIN_RADIUS_FRACTION * margins, self._drifts[batch])
        if short.any():
            if not lists.grow(batch[short], np.diff(report.indptr)[short]):
                if self._adaptive:
                    return None
                lists.grow_by_copying()
            radii[short] = self._fill(lists, batch[short], _select(report, short), margins[short])
        return radii

    def _batches(self, neurons: np.ndarray | range) -> Iterator[np.ndarray]:
        size = self._batch_size(self.network, len(self.X))
        for lo in range(0, len(neurons), size):
            yield np.asarray(neurons[lo : lo + size])

    def _reset_certificates(self, neurons: np.ndarray, radii: np.ndarray) -> np.ndarray | None:
        """Reset the certificates of neurons that are about to get new lists, and return the margins of the queries.

        A margin is the radius plus the slack for rounding: the list must contain all rows above b − margin. Until the
        list is made, the radius is −∞. Return None if the weights are so large that inner products may overflow.
        """
        network = self.network
        # Within its radius the norm of a neuron grows by at most radius/‖x‖.
        norms = row_norms(network.weights[neurons]) + radii / max(self._sample_norm, 1e-300)
        slack = dot_slack(self._terms, network.dtype, norms, self._sample_norm)
        if not np.isfinite(slack).all():
            return None
        self._bands[neurons] = deciding_band(self._terms, network.dtype, norms, self._sample_norm)
        self._drifts[neurons] = 2 * slack  # the rounding of the reference value and of the value compared with it
        self._radii[neurons] = -np.inf
        self._near_misses[neurons] = 0
        self.work.refreshes += len(neurons)
        return radii + 2 * slack

    def _query(self, index: HalfSpaceIndex, neurons: np.ndarray, margins: np.ndarray) -> Report:
        weights, thresholds = self.network.weights[neurons], self.network.threshold - margins
        report = self._search_index(index, weights, thresholds, with_values=True)
        if self._given_index is not None and index.changes != self._changes_before:
            raise InputError("index must not be changed while an engine uses it; give the engine an index of its own")
        return report

    def _fill(self, lists: CandidateLists, neurons: np.ndarray, report: Report, margins: np.ndarray) -> np.ndarray:
        """Store the reported candidates. Return the certified radii: ``margins``, or less where a slot is too small."""
        radii = margins.copy()
        threshold = self.network.dtype.type(self.network.threshold)
        slacks = 4 * float(np.finfo(self.network.dtype).eps) * (abs(self.network.threshold) + margins)

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


def _empty_slots(candidates: float, slots: int, chunks: int) -> float:
    """Return a lower bound on the expected number of empty slots for this number of candidates."""
    return max(0.0, slots - candidates) if chunks == 1 else 0.0


def _check_index(index: HalfSpaceIndex, X: Rows) -> None:
    """Check that the points of the index are the rows of X, in the same precision and order. Cost O(n·d)."""
    if isinstance(X, SparseRows):
        raise InputError("index must be 'auto' or 'scan' for sparse rows, got an index over dense points")
    if index.dtype != X.dtype:
        raise InputError(
            f"index must have the precision of the network, {X.dtype}, got {index.dtype}; build it over "
            f"X.astype({X.dtype.name!r})"
        )
    if (len(index), index.n_features) != X.shape:
        raise InputError(f"index must have the {X.shape} rows of X, got {len(index), index.n_features}")
    numbers = np.arange(len(X))
    if not np.array_equal(index.ids, numbers):
        raise InputError(f"index must have the ids 0 … {len(X) - 1} of the rows; build it over X without ids")
    differs = (index.get(numbers) != X).any(axis=1)
    if differs.any():
        raise InputError(
            f"index must have the rows of X, got another row {np.flatnonzero(differs)[0]}; build it over the rows that "
            "are trained on, mapped to norm 1"
        )


def _select(report: Report, chosen: np.ndarray) -> Report:
    """Return the answers of the chosen queries."""
    lengths = np.diff(report.indptr)
    keep = np.repeat(chosen, lengths)
    return Report(list_offsets(lengths[chosen]), report.ids[keep], report.values[keep])
