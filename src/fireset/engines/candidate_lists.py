"""Storage of the candidate lists: one slot for each neuron, in neuron order, with room to breathe.

Slots in neuron order keep a pass over all lists a pass over memory in order; scattered lists made it three times
slower. A neuron whose list outgrows its slot moves to the end with half as much again; when the end is used up, all
slots are laid out anew in neuron order. Both are amortized O(1) per candidate stored.
"""

import numpy as np

_SPARE = 8


def with_room(counts: np.ndarray) -> np.ndarray:
    """Slot sizes for lists of these lengths: a quarter more, and a few."""
    return counts + counts // 4 + _SPARE


class CandidateLists:
    """Arrays in the layout of ``fireset.kernels.candidates``. 12 bytes per place in float32, 16 in float64."""

    def __init__(self, counts: np.ndarray, dtype):
        self.counts = np.zeros(len(counts), np.int64)
        self.looked = np.zeros(len(counts), np.int64)
        self.fired_counts = np.zeros(len(counts), np.int64)
        self.room = with_room(counts)
        self._dtype = dtype
        self._lay_out()

    def _lay_out(self) -> None:
        self.starts = np.cumsum(self.room) - self.room
        self.used = int(self.room.sum())
        places = self.used + self.used // 16
        self.samples = np.empty(places, np.int32)
        self.references = np.empty(places, self._dtype)
        self.fired = np.empty(places, np.int32)

    def grow(self, neurons: np.ndarray, needed: np.ndarray) -> None:
        """Give these neurons slots for at least ``needed`` candidates.

        Their lists are lost, all others are kept; what ``fired`` holds is void.
        """
        self.counts[neurons] = 0
        sizes = with_room(needed)
        self.room[neurons] = sizes
        if self.used + int(sizes.sum()) > len(self.samples):
            kept = self.places(np.arange(len(self.room)), self.counts)
            samples, references = self.samples[kept], self.references[kept]
            self._lay_out()
            kept = self.places(np.arange(len(self.room)), self.counts)
            self.samples[kept], self.references[kept] = samples, references
        else:
            self.starts[neurons] = self.used + np.cumsum(sizes) - sizes
            self.used += int(sizes.sum())

    def places(self, neurons: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Positions of the first ``lengths[k]`` candidates of every ``neurons[k]``, list after list."""
        firsts = np.repeat(self.starts[neurons] - (np.cumsum(lengths) - lengths), lengths)
        return firsts + np.arange(len(firsts))
