"""Storage of the candidate lists: one slot per neuron, in neuron order, with spare capacity.

With slots in neuron order a pass over all lists reads memory in order; scattered lists made it three times slower. A
neuron with an empty list over all rows is at rest, and its slot is empty. A neuron whose list outgrows its slot gets a
new slot at the end, with an eighth of spare capacity. When the end is used
up there are two ways to go on. Without a fixed radius all lists are searched again into the same memory, with smaller
radii if necessary. With a fixed radius ``grow_by_copying`` copies them to larger arrays in neuron order: no neuron is
searched that did not move, and the larger of the two arrays exists twice while it is copied.
"""

from typing import NamedTuple

import numpy as np

from fireset._util.aligned import aligned_zeros
from fireset._util.parallel import parallel_map, ranges
from fireset.engines.cost import BYTES_PER_SLOT
from fireset.kernels.candidates import ListArrays, clear_lists, copy_lists, count_candidates, move_lists, place_lists
from fireset.kernels.fire_sets import transpose

SPARE_PER_SLOT = 8  # candidates that a slot can hold beyond its list, plus
USED_PER_SPARE = 8  # one more for every so many candidates of the list
_MAX_SORTED_SHARE = 8  # of the width: more neurons are found by reading all counts faster than by sorting
_USED_PER_FREE_END = 64  # slots are laid out anew in the same memory only if they leave this part of it free
_USED_PER_TAIL = 16  # one free place at the end of the array for every so many places in slots


def slot_capacities(counts: np.ndarray) -> np.ndarray:
    """Return the capacities of new slots for lists of these lengths."""
    return counts + counts // USED_PER_SPARE + SPARE_PER_SLOT


def total_capacity(candidates: float, slots: float) -> float:
    """Return the capacity of the arrays for this number of candidates in this number of slots that are not empty."""
    return (candidates * (1 + 1 / USED_PER_SPARE) + slots * SPARE_PER_SLOT) * (1 + 1 / _USED_PER_TAIL)


def list_bytes(candidates: float, slots: int, empty_slots: float, dtype: np.dtype) -> float:
    """Return the bytes of this number of candidates in this number of slots, of which ``empty_slots`` are empty."""
    return total_capacity(candidates, slots - empty_slots) * (4 + dtype.itemsize) + BYTES_PER_SLOT * slots


class NeuronState(NamedTuple):
    """Numbers of every neuron that do not depend on the chunk of rows, (m,) each; ``ListEngine`` explains them."""

    radii: np.ndarray
    drifts: np.ndarray
    speeds: np.ndarray
    near_misses: np.ndarray
    bands: np.ndarray


def _records(width: int, dtype: np.dtype) -> np.ndarray:
    """Allocate zeros for everything that passes read and write of a neuron besides its weights, one record per neuron.

    In float32 a record is one cache line. With an array for each field, a pass over live neurons that are far apart
    would load a cache line for each of them.
    """
    fields = dict.fromkeys(("radii", "drifts", "speeds"), np.float64)
    fields |= {"start": np.int64, "active_start": np.int64}
    fields |= dict.fromkeys(("count", "prefix_length", "active_count", "near_misses"), np.int32)
    fields |= {"next_reference": dtype, "bands": dtype}
    record = np.dtype(list(fields.items()))
    return aligned_zeros(1, width * record.itemsize, np.uint8)[0, : width * record.itemsize].view(record)


class CandidateLists:
    """The candidate lists of all neurons over some rows, in the layout of ``fireset.kernels.candidates``.

    Memory per place: 8 bytes in float32, 12 in float64, and 4 for each active pair.
    """

    def __init__(self, width: int, dtype):
        records = _records(width, np.dtype(dtype))
        self.starts, self.counts = records["start"], records["count"]
        self.prefix_lengths, self.next_references = records["prefix_length"], records["next_reference"]
        self.active_starts, self.active_counts = records["active_start"], records["active_count"]
        self.next_references[:] = np.inf
        self.neuron_state = NeuronState(*(records[name] for name in NeuronState._fields))
        self.capacities = np.zeros(width, np.int32)
        self._active: dict[tuple[int, int], np.ndarray] = {}
        self._listed: np.ndarray | None = None  # neurons with a list, after ``list_completely``
        self._scratch: tuple[np.ndarray, np.ndarray] | None = None
        self.used = 0
        self._in_order = 0  # slots that begin before are in neuron order
        self._allocate(0, dtype)

    def list_completely(self, indptr: np.ndarray, neurons: np.ndarray) -> np.ndarray:
        """Replace all lists by row i for every neuron in ``neurons[indptr[i]:indptr[i+1]]``; passes test all of them.

        Return the neurons with a list, ascending. They cannot grow. Cost O(candidates before and now), and O(m) once.
        """
        self.clear_complete_lists()
        width = len(self.counts)
        if self._scratch is None:  # contiguous: candidates are counted in any order, and records would fill the caches
            self._scratch = np.zeros(width, np.int32), np.empty(width, np.int64)
        counted, places = self._scratch
        listed = np.empty(min(len(neurons), width), np.int64)
        count = count_candidates(neurons, counted, listed)
        listed = np.sort(listed[:count]) if count * _MAX_SORTED_SHARE < width else np.flatnonzero(counted)
        place_lists(listed, counted, places, self.starts, self.counts, self.prefix_lengths)
        self.samples = np.empty(len(neurons), np.int32)
        transpose(indptr, neurons, places, self.samples)
        self._listed = listed
        return listed

    def clear_complete_lists(self) -> None:
        """Remove all lists and free their memory. Cost O(neurons with a list), and O(m) the first time."""
        if self._listed is None:
            self._listed = np.arange(len(self.counts))
            self.next_references[:] = -np.inf
        clear_lists(self._listed, self.counts, self.prefix_lengths, self.active_counts)
        self._listed = self._listed[:0]
        self._allocate(0, self.references.dtype)

    def _allocate(self, capacity: int, dtype) -> None:
        self.samples = np.empty(capacity, np.int32)
        self.references = np.empty(capacity, dtype)

    def reserve(self, capacity: float) -> None:
        """Discard all lists and allocate arrays of this capacity."""
        self.clear()
        for size in (0, int(capacity) + 1):  # free the old arrays first: both might not fit
            self._allocate(size, self.references.dtype)

    def reserve_for_all(self, laid_out: int) -> None:
        """Discard all lists and allocate enough for all neurons, extrapolated from the first ``laid_out`` ones."""
        needed = self.used / laid_out * len(self.capacities) * (1 + 1 / _USED_PER_TAIL)
        self.reserve(max(needed, 1.2 * len(self.samples)))

    def append_slots(self, neurons: slice, counts: np.ndarray, times: int = 1, *, has_all_rows: bool) -> bool:
        """Lay out slots for the next neurons in order, for lists of these lengths. Return whether they fit.

        With ``has_all_rows`` the slots of empty lists are empty: such a neuron is active for no row, and nothing moves
        it. ``times`` is 2 if ``repeat_first_half`` will follow. If the slots do not fit, call ``reserve_for_all`` and
        begin again.
        """
        capacities = slot_capacities(counts)
        if has_all_rows:
            capacities[counts == 0] = 0
        self.capacities[neurons] = capacities
        self._append(neurons)
        self._in_order = self.used
        return times * self.used <= len(self.samples)

    def repeat_first_half(self) -> None:
        """Lay out the neurons of the second half, with copies of the lists of the first half."""
        half, used = len(self.starts) // 2, self.used
        self.capacities[half:] = self.capacities[:half]
        self._append(slice(half, 2 * half))
        self._in_order = self.used
        self.counts[half:] = self.counts[:half]
        for array in (self.samples, self.references):
            array[used : 2 * used] = array[:used]

    def grow(self, neurons: np.ndarray, needed: np.ndarray) -> bool:
        """Give these neurons new slots, for at least ``needed`` candidates. Return whether they fit.

        The slots are at the end, or, where the end is used up, all slots are laid out anew in the same memory. The
        lists of these neurons are discarded, all others are kept. The capacities grow even if the slots do not fit:
        ``grow_by_copying`` then allocates them.
        """
        self.counts[neurons] = 0
        self.capacities[neurons] = slot_capacities(needed)
        if self.used + int(self.capacities[neurons].sum(dtype=np.int64)) > len(self.samples):
            return self._lay_out_anew()
        self._append(neurons)
        return True

    def _lay_out_anew(self) -> bool:
        """Move all lists to slots in neuron order, without the slots that were given up and with no more spare capacity
        than new slots have. Return whether they fit and leave a part of the end free.

        Cost O(m + candidates); copies only the slots that were not in neuron order.
        """
        capacities = np.minimum(self.capacities, slot_capacities(self.counts))
        capacities = np.where(self.counts == 0, self.capacities, capacities)
        ends = np.cumsum(capacities, dtype=np.int64)
        if ends[-1] * (1 + 1 / _USED_PER_FREE_END) > len(self.samples):
            return False
        new_starts, first_moved = ends - capacities, self._in_order

        def move(values: np.ndarray) -> None:
            moved = values[first_moved : self.used].copy()
            move_lists(self.starts, self.counts, new_starts, first_moved, moved, values)

        parallel_map(move, [self.samples, self.references])
        self.starts[:], self.capacities[:] = new_starts, capacities
        self.used = self._in_order = int(ends[-1])
        return True

    def grow_by_copying(self) -> None:
        """Copy all lists to larger arrays, with slots of the present capacities in neuron order and a new free end.

        The arrays are copied one after the other, so that only one of them exists twice at a time.
        """
        ends = np.cumsum(self.capacities, dtype=np.int64)
        new_starts = ends - self.capacities
        self.used = self._in_order = int(ends[-1])
        capacity = int(self.used * (1 + 1 / _USED_PER_TAIL)) + 1

        def copied(source: np.ndarray) -> np.ndarray:
            target = np.empty(capacity, source.dtype)
            arrays = self.starts, self.counts, source, new_starts, target
            parallel_map(lambda span: copy_lists(*arrays, *span), ranges(len(self.starts)))
            return target

        self.samples = copied(self.samples)
        self.references = copied(self.references)
        self.starts[:] = new_starts

    def clear(self) -> None:
        """Discard all lists; keep the memory for the next ones, which need about as much."""
        self.used = 0
        self.counts[:] = 0

    def _append(self, neurons) -> None:
        """Place the slots of these neurons, in this order, at the end of those in use."""
        ends = self.used + np.cumsum(self.capacities[neurons], dtype=np.int64)
        self.starts[neurons] = ends - self.capacities[neurons]
        self.used = int(ends[-1])

    def arrays(self) -> ListArrays:
        """Return the lists in the form that the kernels take."""
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
        """Return the active rows of the neurons of a range, packed, as the last forward pass wrote them."""
        return self._active[span]

    def active_buffer(self, span: tuple[int, int], neurons: np.ndarray) -> np.ndarray:
        """Return the buffer of a range that a forward pass over ``neurons`` writes active rows to.

        It has space for all their candidates and one more.
        """
        is_whole = len(neurons) == span[1] - span[0]
        # Capacities bound the lengths and are contiguous; lists that were made completely have no capacities.
        lengths = self.capacities if self._listed is None else self.counts
        needed = int(lengths[slice(*span) if is_whole else neurons].sum(dtype=np.int64)) + 1
        if span not in self._active or len(self._active[span]) < needed:
            self._active[span] = np.empty(needed + needed // 4, np.int32)  # pages take memory only once written
        return self._active[span]

    def active_samples(self, neurons: np.ndarray) -> np.ndarray:
        """Return the active rows of these neurons, ascending, concatenated."""
        parts = []
        for lo, hi in ranges(len(self.counts)):
            some = neurons[np.searchsorted(neurons, lo) : np.searchsorted(neurons, hi)]
            lengths = self.active_counts[some]
            ends = np.cumsum(lengths, dtype=np.int64)
            firsts = np.repeat(self.active_starts[some] - (ends - lengths), lengths)
            parts.append(self._active[lo, hi][firsts + np.arange(len(firsts))])
        return np.concatenate(parts)
