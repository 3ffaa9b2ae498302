"""Storage of the candidate lists: one slot for each neuron, in neuron order, with room to breathe.

Slots in neuron order keep a pass over all lists a pass over memory in order; scattered lists made it three times
slower. A neuron whose list outgrows its slot moves to the end, with a quarter to spare; when the end is used up, all
slots are laid out anew in neuron order. Both are amortized O(1) per candidate stored.
"""

import numpy as np

_SPARE = 8


def with_room(counts: np.ndarray) -> np.ndarray:
    """Slot sizes for lists of these lengths: a quarter more, and a few."""
    return counts + counts // 4 + _SPARE


class CandidateLists:
    """Arrays in the layout of ``fireset.kernels.candidates``. 12 bytes per place in float32, 16 in float64."""

    def __init__(self, width: int, dtype):
        self.starts = np.zeros(width, np.int64)
        self.room = np.zeros(width, np.int32)
        self.counts = np.zeros(width, np.int32)
        self.looked = np.zeros(width, np.int32)
        self.fired_counts = np.zeros(width, np.int32)
        self.used = 0
        self._allocate(0, dtype)

    @classmethod
    def complete(cls, indptr: np.ndarray, samples: np.ndarray, dtype) -> "CandidateLists":
        """Lists that are looked at whole: neuron r has ``samples[indptr[r]:indptr[r+1]]``. They cannot grow."""
        lists = cls(len(indptr) - 1, dtype)
        lists.starts[:] = indptr[:-1]
        lists.counts[:] = np.diff(indptr)
        lists.looked[:] = lists.counts  # so that no reference value is ever asked for
        lists.samples = samples.astype(np.int32, copy=False)
        lists.fired = np.empty(len(samples), np.int32)
        return lists

    def _allocate(self, places: int, dtype) -> None:
        self.samples = np.empty(places, np.int32)
        self.references = np.empty(places, dtype)
        self.fired = np.empty(places, np.int32)

    def lay_out_next(self, neurons: slice, counts: np.ndarray) -> None:
        """Slots for the next neurons in order, for lists of these lengths; used once, to make the first lists."""
        self.room[neurons] = with_room(counts)
        self._put_at_the_end(neurons)
        if self.used > len(self.samples):  # from what the neurons so far need, guess what all will
            places = int(1.1 * self.used * len(self.room) / neurons.stop) + 1
            for array in (self.samples, self.references, self.fired):
                array.resize(places, refcheck=False)

    def grow(self, neurons: np.ndarray, needed: np.ndarray) -> None:
        """Give these neurons slots for at least ``needed`` candidates.

        Their lists are lost, all others are kept; what ``fired`` holds is void.
        """
        self.counts[neurons] = 0
        self.room[neurons] = with_room(needed)
        if self.used + int(self.room[neurons].sum(dtype=np.int64)) <= len(self.samples):
            self._put_at_the_end(neurons)
            return
        everyone = np.arange(len(self.room))
        kept = self.places(everyone, self.counts)
        samples, references = self.samples[kept], self.references[kept]
        self.used = 0
        self._put_at_the_end(everyone)
        self._allocate(self.used + self.used // 16, references.dtype)
        kept = self.places(everyone, self.counts)
        self.samples[kept], self.references[kept] = samples, references

    def _put_at_the_end(self, neurons) -> None:
        ends = self.used + np.cumsum(self.room[neurons], dtype=np.int64)
        self.starts[neurons] = ends - self.room[neurons]
        self.used = int(ends[-1])

    def places(self, neurons: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Positions of the first ``lengths[k]`` candidates of every ``neurons[k]``, list after list."""
        ends = np.cumsum(lengths, dtype=np.int64)
        firsts = np.repeat(self.starts[neurons] - (ends - lengths), lengths)
        return firsts + np.arange(len(firsts))
