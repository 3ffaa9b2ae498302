"""Process groups and grids whose workers are threads of this process, without torch."""

import threading
from collections.abc import Callable

import numpy as np

from fireset.distributed.process_group import ProcessGroup
from fireset.distributed.worker_grid import SINGLE_PROCESS, WorkerGrid


class ThreadGroup(ProcessGroup):
    """A worker that is a thread; threads exchange data through a shared list and wait at a barrier."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, board: list):
        self.rank, self.size, self._barrier, self._board = rank, size, barrier, board
        self.numbers_exchanged = 0

    def all_gather(self, block):
        self._board[self.rank] = block
        self._barrier.wait(20)
        found = list(self._board)
        self._barrier.wait(20)
        return found

    def all_reduce_max(self, number):
        return max(self.all_gather(number))

    def all_reduce_sum(self, number):
        return sum(self.all_gather(number))

    def all_reduce_exact(self, values, counts=()):
        self.numbers_exchanged += values.size
        gathered = self.all_gather((values.copy(), tuple(counts)))
        total = np.sum([one for one, _ in gathered], axis=0)
        return total, [sum(column) for column in zip(*(counts for _, counts in gathered), strict=True)]

    def broadcast(self, array, source):
        array[...] = self.all_gather(array.copy())[source]

    def subgroup(self, ranks):
        made = groups(len(ranks)) if self.rank == ranks[0] else None
        found = self.all_gather(made)[ranks[0]]
        return found[ranks.index(self.rank)] if self.rank in ranks else None

    def leave(self):
        pass


def groups(size: int) -> list[ThreadGroup]:
    barrier, board = threading.Barrier(size), [None] * size
    return [ThreadGroup(rank, size, barrier, board) for rank in range(size)]


def grids(neurons: int, rows: int) -> list[WorkerGrid]:
    """Return the grids of all workers, arranged as by ``fireset.distributed.worker_grid.grid``."""
    by_rows = [groups(neurons) if neurons > 1 else [SINGLE_PROCESS] for _ in range(rows)]
    by_neurons = [groups(rows) if rows > 1 else [SINGLE_PROCESS] for _ in range(neurons)]
    return [
        WorkerGrid(group, by_rows[k // neurons][k % neurons], by_neurons[k % neurons][k // neurons])
        for k, group in enumerate(groups(neurons * rows))
    ]


def run_all(work: Callable[[int], None], size: int) -> None:
    """Run ``work(rank)`` on all threads at once."""
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
