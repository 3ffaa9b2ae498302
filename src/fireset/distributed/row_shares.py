"""The rows of one worker among those of all workers, and sums and selections over all of them.

Rows are numbered in the order of the workers: worker j of R has the rows ``bounds[j] … bounds[j + 1] − 1``. A single
process has all rows, and every method then works on its arrays without an exchange.
"""

from collections.abc import Sequence
from typing import overload

import numpy as np

from fireset.distributed.process_group import ProcessGroup
from fireset.sparse_rows import Rows, SparseRows


class RowShares:
    """This worker's share of the rows.

    Attributes
    ----------
    group : ProcessGroup
        The workers that share the rows.
    length : int
        Number of rows of this worker.
    """

    def __init__(self, group: ProcessGroup, length: int):
        self.group, self.length = group, length
        self._bounds: np.ndarray | None = None

    @property
    def bounds(self) -> np.ndarray:
        """First row of each worker, and the number of all rows; (R + 1,). The first access is an exchange."""
        bounds = self._bounds  # not a cached_property, whose lock in Python 3.11 is common to all threads
        if bounds is None:
            bounds = self._bounds = np.r_[0, np.cumsum(self.counts(self.length))]
        return bounds

    @property
    def first(self) -> int:
        """Number of this worker's first row."""
        return int(self.bounds[self.group.rank])

    def counts(self, number: int) -> list[int]:
        """Return the numbers of all workers, in the order of the workers."""
        if self.group.size == 1:
            return [number]
        return [int.from_bytes(block, "little") for block in self.group.all_gather(number.to_bytes(8, "little"))]

    # Sums over rows, with equal bits on all workers

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of float64 arrays over the workers."""
        return self.group.all_reduce_exact(values)[0]

    def totals(self, *sums: float) -> list[float]:
        """Return sums over all rows from those over this worker's rows, in one exchange.

        The error of each is at most 2⁻⁵⁴ of the largest for up to 100 workers.
        """
        return list(sums) if self.group.size == 1 else self.sum(np.array(sums)).tolist()

    def dot(self, first: np.ndarray, second: np.ndarray) -> float:
        """Return the inner product of two vectors over all rows from this worker's parts, (n_j, c)."""
        return self.totals(float((first * second).sum()))[0]

    # Selections of rows

    @overload
    def select(self, own: np.ndarray, rows: np.ndarray) -> np.ndarray: ...
    @overload
    def select(self, own: Rows, rows: np.ndarray) -> Rows: ...
    def select(self, own: Rows, rows: np.ndarray) -> Rows:
        """Return some rows of all workers, given by number in ascending order, from each worker's ``own`` rows.

        The result is the same on all workers. Every worker sends as many rows as the one with most of them.
        """
        if self.group.size == 1:
            return own[rows]
        edges = np.searchsorted(rows, self.bounds)
        chosen = own[rows[edges[self.group.rank] : edges[self.group.rank + 1]] - self.first]
        if not isinstance(chosen, SparseRows):
            return self.concatenate(chosen, np.diff(edges))
        lengths = self.concatenate(np.diff(chosen.indptr), np.diff(edges))
        indptr = np.r_[0, np.cumsum(lengths)]
        entries = np.diff(indptr[edges])
        return SparseRows(
            indptr, self.concatenate(chosen.indices, entries), self.concatenate(chosen.values, entries), chosen.shape[1]
        )

    def select_columns(self, own: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return some columns of a matrix with one column for each row of all workers; as ``select``."""
        return own[:, columns] if self.group.size == 1 else self.select(own.T, columns).T

    def own(self, rows: np.ndarray) -> np.ndarray:
        """Return the positions, among this worker's rows, of those of ``rows`` that it has."""
        return rows[(rows >= self.first) & (rows < self.first + self.length)] - self.first

    def gather(self, own: np.ndarray) -> np.ndarray:
        """Return the rows of all workers, on all workers."""
        return own if self.group.size == 1 else self.concatenate(own, np.diff(self.bounds))

    def concatenate(self, own: np.ndarray, counts: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the arrays of all workers, (counts[j], …) each, one after the other, on all workers."""
        row_bytes = own.dtype.itemsize * int(np.prod(own.shape[1:]))
        longest = int(max(counts)) * row_bytes
        if self.group.size == 1:
            return own
        if longest == 0:
            return np.empty((int(sum(counts)), *own.shape[1:]), own.dtype)
        blocks = self.group.all_gather(np.ascontiguousarray(own).tobytes().ljust(longest, b"\0"))
        used = [block[: int(count) * row_bytes] for block, count in zip(blocks, counts, strict=True)]
        return np.frombuffer(b"".join(used), own.dtype).reshape(-1, *own.shape[1:])

    # Random rows

    def draw(self, weight: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Return row numbers drawn with probability proportional to ``weight``, (n_j,), by inverse sampling.

        ``uniform`` are random numbers in [0, 1), the same on all workers. The rows are those that one process with all
        weights would draw, up to rounding.
        """
        cumulative = np.r_[0.0, np.cumsum(weight)]
        ends = np.cumsum(self.concatenate(cumulative[-1:], [1] * self.group.size))
        place = uniform * ends[-1]
        owner = _first_above(ends, place)
        own = owner == self.group.rank
        drawn = np.zeros(len(uniform), np.int64)
        drawn[own] = self.first + _first_above(cumulative[1:], (place - np.r_[0.0, ends][owner])[own])
        return np.array(self.group.all_reduce_exact(np.empty(0), drawn.tolist())[1], np.int64)

    def draw_distinct(self, weight: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return ``count`` different row numbers, ascending, drawn one after the other from the rows that are left.

        ``weight`` (n_j,) is positive for at least ``count`` rows. Otherwise as ``draw``; ``rng`` has the same state on
        all workers.
        """
        weight, found = weight.copy(), np.empty(0, np.int64)
        while len(found) < count:
            new = self.draw(weight, rng.random(count - len(found)))
            weight[self.own(new)] = 0.0
            found = np.union1d(found, new)
        return found


def _first_above(ends: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the first index of ascending ``ends`` that exceeds each place; for a place at the end, that of the end."""
    found = np.searchsorted(ends, places, side="right")
    return np.minimum(found, np.searchsorted(ends, ends[-1:], side="left")) if len(found) else found
