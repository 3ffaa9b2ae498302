"""Storage of the candidate lists: one slot for each neuron, in neuron order, with capacity to spare.

Slots in neuron order keep a pass over all lists a pass over memory in order; scattered lists made it three times
slower. A neuron whose list outgrows its slot moves to the end, with a quarter to spare; when the end is used up, all
slots are laid out anew in neuron order. Both are amortized O(1) per candidate stored.
"""

from typing import TYPE_CHECKING

import numpy as np

from fireset._util.parallel import parallel_map, ranges

if TYPE_CHECKING:
    from fireset.kernels.candidates import ListArrays

_SPARE = 8
_BLOCK = 4 << 20  # bytes of samples that stay in the cache while all neurons of a range look at them


def with_spare_capacity(counts: np.ndarray) -> np.ndarray:
    """Slot sizes for lists of these lengths: a quarter more, and a few."""
    return counts + counts // 4 + _SPARE


def sample_blocks(size: int, n: int) -> list[tuple[int, int]]:
    """Ranges of n samples to be looked at together; one, unless their ``size`` in bytes is too much for the caches.

    Measured at 784 coordinates: a pair costs 46 ns forward and 51 ns backward from a block of 9 MB, 47 and 59 from one
    of 3 MB, 112 and 225 when its row comes from memory. Smaller blocks have shorter lists, and a neuron's weights are
    read again for each of them.
    """
    parts = 1 if size <= 2 * _BLOCK else -(-size // _BLOCK)
    return [(n * k // parts, n * (k + 1) // parts) for k in range(parts)]


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
        self.fired_starts = np.zeros(width, np.int64)
        self.fired_counts = np.zeros(width, np.int32)
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

    def lay_out_next(self, neurons: slice, counts: np.ndarray) -> None:
        """Slots for the next neurons in order, for lists of these lengths; used once, to make the first lists."""
        self.capacities[neurons] = with_spare_capacity(counts)
        self._put_next(neurons)

    def repeat_first_half(self) -> None:
        """The neurons of the second half, laid out next, have the lists of those of the first."""
        half, used = len(self.starts) // 2, self.used
        self.capacities[half:] = self.capacities[:half]
        self._put_next(slice(half, 2 * half))
        self.counts[half:] = self.counts[:half]
        for places in (self.samples, self.references):
            places[used : 2 * used] = places[:used]

    def _put_next(self, neurons: slice) -> None:
        self._put_at_the_end(neurons)
        if self.used > len(self.samples):  # from what the neurons so far need, guess what all will
            places = int(1.1 * self.used * len(self.capacities) / neurons.stop) + 1
            old = self.samples, self.references
            self._allocate(places, self.references.dtype)
            self.samples[: len(old[0])], self.references[: len(old[1])] = old

    def grow(self, neurons: np.ndarray, needed: np.ndarray) -> None:
        """Give these neurons slots for at least ``needed`` candidates.

        Their lists are lost, all others are kept.
        """
        self.counts[neurons] = 0
        self.capacities[neurons] = with_spare_capacity(needed)
        if self.used + int(self.capacities[neurons].sum(dtype=np.int64)) <= len(self.samples):
            self._put_at_the_end(neurons)
            return
        self._lay_out_anew()

    def _lay_out_anew(self) -> None:
        from fireset.kernels.candidates import relocate

        old_starts, self.used = self.starts.copy(), 0
        self._put_at_the_end(slice(None))

        def moved(old: np.ndarray) -> np.ndarray:
            new = np.empty(self.used + self.used // 8, old.dtype)
            parallel_map(
                lambda span: relocate(old_starts, self.counts, old, self.starts, new, *span),
                ranges(len(self.capacities)),
            )
            return new

        self.samples = moved(self.samples)  # one array after the other: less memory at a time
        self.references = moved(self.references)

    def _put_at_the_end(self, neurons) -> None:
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
            self.fired_starts,
            self.fired_counts,
        )

    def fired(self, span: tuple[int, int]) -> np.ndarray:
        """Who fired for the neurons of a range, packed, as the forward pass wrote it."""
        return self._fired[span]

    def scratch(self, span: tuple[int, int]) -> np.ndarray:
        """Where the forward pass writes it: space for all candidates of the range, and one more."""
        needed = int(self.counts[slice(*span)].sum(dtype=np.int64)) + 1
        if span not in self._fired or len(self._fired[span]) < needed:
            self._fired[span] = np.empty(needed + needed // 4, np.int32)  # takes memory only where written
        return self._fired[span]

    def fired_samples(self, neurons: np.ndarray) -> np.ndarray:
        """The samples that each of these neurons, ascending, fired for, one neuron's after the other's."""
        parts = []
        for lo, hi in ranges(len(self.counts)):
            some = neurons[np.searchsorted(neurons, lo) : np.searchsorted(neurons, hi)]
            lengths = self.fired_counts[some]
            ends = np.cumsum(lengths, dtype=np.int64)
            firsts = np.repeat(self.fired_starts[some] - (ends - lengths), lengths)
            parts.append(self._fired[lo, hi][firsts + np.arange(len(firsts))])
        return np.concatenate(parts)
