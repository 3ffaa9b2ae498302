"""Storage of the candidate lists: one slot for each neuron, in neuron order, with capacity to spare.

Slots in neuron order keep a pass over all lists a pass over memory in order; scattered lists made it three times
slower. A neuron whose list outgrows its slot moves to the end, with an eighth to spare. When the end is used up there
are two ways. Without a fixed radius all lists are queried again, into the same memory, with smaller radii if need be.
With a fixed radius ``grow_by_copying`` copies them to larger arrays, in neuron order: nothing is queried that did not
move, at the price of the larger of the two arrays a second time while it is copied.
"""

from typing import TYPE_CHECKING

import numpy as np

from fireset._util.aligned import aligned_bytes
from fireset._util.parallel import parallel_map, ranges, thread_count
from fireset.hsr.scan import SPARSE_TILE_PAIRS

if TYPE_CHECKING:
    from fireset.kernels.candidates import ListArrays

SPARE = 8  # places that every slot has to spare, and
SPARE_SHARE = 8  # one for so many that are used
_END = 16  # for so many places in slots there is one at the end
_SLOT_BYTES = 40  # where it is, how long, how much of it was looked at
_NEURON_BYTES = 160  # of certificates, and what is computed of them
_BLOCK = 4 << 20  # bytes of samples that stay in the cache while all neurons of a range look at them


def with_spare_capacity(counts: np.ndarray) -> np.ndarray:
    """Slot sizes for lists of these lengths: an eighth more, and a few."""
    return counts + counts // SPARE_SHARE + SPARE


def places_for(candidates: float, slots: int) -> float:
    """Places for so many candidates in so many slots, and at the end."""
    return (candidates * (1 + 1 / SPARE_SHARE) + slots * SPARE) * (1 + 1 / _END)


def list_bytes(candidates: float, slots: int, dtype: np.dtype) -> float:
    """What so many candidates in so many slots take."""
    return places_for(candidates, slots) * (4 + dtype.itemsize) + _SLOT_BYTES * slots


def sample_blocks(size: int, n: int) -> list[tuple[int, int]]:
    """Ranges of n samples to be looked at together; one, unless their ``size`` in bytes is too much for the caches.

    Measured at 784 coordinates: a pair costs 46 ns forward and 51 ns backward from a block of 9 MB, 47 and 59 from one
    of 3 MB, 112 and 225 when its row comes from memory. Smaller blocks have shorter lists, and a neuron's weights are
    read again for each of them.
    """
    parts = 1 if size <= 2 * _BLOCK else -(-size // _BLOCK)
    return [(n * k // parts, n * (k + 1) // parts) for k in range(parts)]


def row_bytes(network, n_samples: int) -> float:
    """The samples as ``aligned_rows`` lays them out."""
    return float(n_samples * aligned_bytes(network.n_features, network.dtype.itemsize))


def pass_bytes(network, n_samples: int, *, sparse: bool) -> float:
    """What passes over lists take besides them: the aligned samples, sums of every range, numbers of every neuron.

    Sparse samples stay where they are, but are multiplied in larger tiles.
    """
    item, outputs = network.dtype.itemsize, network.n_outputs
    tiles = thread_count() * item * min(SPARSE_TILE_PAIRS, float(n_samples * network.width))
    rows = tiles if sparse else row_bytes(network, n_samples)
    line = item if outputs == 1 else aligned_bytes(outputs, item)
    sums = n_samples * (line * (len(ranges(network.width)) + 1) + 24 * outputs)
    return rows + sums + _NEURON_BYTES * network.width


class CandidateLists:
    """The lists of all neurons over some of the samples, as ``fireset.kernels.candidates`` reads them.

    8 bytes per place in float32, 12 in float64, and 4 for each pair that fires.
    """

    def __init__(self, width: int, dtype):
        self.starts = np.zeros(width, np.int64)
        self.capacities = np.zeros(width, np.int32)
        self.counts = np.zeros(width, np.int32)
        self.prefix_lengths = np.zeros(width, np.int32)
        self.next_references = np.full(width, np.inf, dtype)
        self.active_starts = np.zeros(width, np.int64)
        self.active_counts = np.zeros(width, np.int32)
        self._fired: dict[tuple[int, int], np.ndarray] = {}
        self.used = 0
        self._allocate(0, dtype)

    @classmethod
    def complete(cls, indptr: np.ndarray, samples: np.ndarray, dtype) -> "CandidateLists":
        """Lists that are looked at whole: neuron r has ``samples[indptr[r]:indptr[r+1]]``. They cannot grow."""
        lists = cls(len(indptr) - 1, dtype)
        lists.starts[:] = indptr[:-1]
        lists.counts[:] = np.diff(indptr)
        lists.prefix_lengths[:] = lists.counts
        lists.next_references[:] = -np.inf
        lists.samples = samples.astype(np.int32, copy=False)
        return lists

    def _allocate(self, places: int, dtype) -> None:
        self.samples = np.empty(places, np.int32)
        self.references = np.empty(places, dtype)

    def reserve(self, places: float) -> None:
        """Memory for so many candidates and what slots have to spare; lists that were there are lost first."""
        self.clear()
        for wanted in (0, int(places) + 1):  # one after the other: two of them might not fit
            self._allocate(wanted, self.references.dtype)

    def reserve_more(self, neurons: int) -> None:
        """The same, for as much as all neurons will need to judge by so many that were laid out."""
        needed = self.used / neurons * len(self.capacities) * (1 + 1 / _END)
        self.reserve(max(needed, 1.2 * len(self.samples)))

    def lay_out_next(self, neurons: slice, counts: np.ndarray, times: int = 1) -> bool:
        """Slots for the next neurons in order, for lists of these lengths.

        ``times`` is 2 where as much again will follow (``repeat_first_half``). False where there is no place for them:
        then call ``reserve_more``, and begin anew.
        """
        self.capacities[neurons] = with_spare_capacity(counts)
        self._append_list(neurons)
        return times * self.used <= len(self.samples)

    def repeat_first_half(self) -> None:
        """The neurons of the second half, laid out next, have the lists of those of the first."""
        half, used = len(self.starts) // 2, self.used
        self.capacities[half:] = self.capacities[:half]
        self._append_list(slice(half, 2 * half))
        self.counts[half:] = self.counts[:half]
        for places in (self.samples, self.references):
            places[used : 2 * used] = places[:used]

    def grow(self, neurons: np.ndarray, needed: np.ndarray) -> bool:
        """Give these neurons slots for at least ``needed`` candidates; False where the end is used up.

        Their lists are lost, all others are kept. Where the end is used up their capacities have grown all the same:
        ``grow_by_copying`` then gives them their slots.
        """
        self.counts[neurons] = 0
        self.capacities[neurons] = with_spare_capacity(needed)
        if self.used + int(self.capacities[neurons].sum(dtype=np.int64)) > len(self.samples):
            return False
        self._append_list(neurons)
        return True

    def grow_by_copying(self) -> None:
        """Copy all lists to larger arrays, slots of the present capacities in neuron order, and a new end.

        One array after the other, so that at most one of them is there twice.
        """
        from fireset.kernels.candidates import copy_lists

        ends = np.cumsum(self.capacities, dtype=np.int64)
        new_starts = ends - self.capacities
        self.used = int(ends[-1])
        places = int(self.used * (1 + 1 / _END)) + 1

        def copied(source: np.ndarray) -> np.ndarray:
            target = np.empty(places, source.dtype)
            own = self.starts, self.counts, source, new_starts, target
            parallel_map(lambda span: copy_lists(*own, *span), ranges(len(self.starts)))
            return target

        self.samples = copied(self.samples)
        self.references = copied(self.references)
        self.starts = new_starts

    def clear(self) -> None:
        """No lists, as at the start; the memory stays for the next ones, which need about as much."""
        self.used = 0
        self.counts[:] = 0

    def _append_list(self, neurons) -> None:
        ends = self.used + np.cumsum(self.capacities[neurons], dtype=np.int64)
        self.starts[neurons] = ends - self.capacities[neurons]
        self.used = int(ends[-1])

    def arrays(self) -> "ListArrays":
        """The lists as the kernels take them."""
        from fireset.kernels.candidates import ListArrays

        return ListArrays(
            self.starts,
            self.counts,
            self.samples,
            self.references,
            self.prefix_lengths,
            self.next_references,
            self.active_starts,
            self.active_counts,
        )

    def active(self, span: tuple[int, int]) -> np.ndarray:
        """Who fired for the neurons of a range, packed, as the forward pass wrote it."""
        return self._fired[span]

    def scratch(self, span: tuple[int, int]) -> np.ndarray:
        """Where the forward pass writes it: space for all candidates of the range, and one more."""
        needed = int(self.counts[slice(*span)].sum(dtype=np.int64)) + 1
        if span not in self._fired or len(self._fired[span]) < needed:
            self._fired[span] = np.empty(needed + needed // 4, np.int32)  # takes memory only where written
        return self._fired[span]

    def active_samples(self, neurons: np.ndarray) -> np.ndarray:
        """The samples that each of these neurons, ascending, fired for, one neuron's after the other's."""
        parts = []
        for lo, hi in ranges(len(self.counts)):
            some = neurons[np.searchsorted(neurons, lo) : np.searchsorted(neurons, hi)]
            lengths = self.active_counts[some]
            ends = np.cumsum(lengths, dtype=np.int64)
            firsts = np.repeat(self.active_starts[some] - (ends - lengths), lengths)
            parts.append(self._fired[lo, hi][firsts + np.arange(len(firsts))])
        return np.concatenate(parts)
