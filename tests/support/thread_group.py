"""Workers that are threads of this process: a group, and a grid of them, without torch."""

import threading
from collections.abc import Callable

import numpy as np

from fireset.distributed.process_group import ProcessGroup
from fireset.distributed.worker_grid import SINGLE_PROCESS, WorkerGrid


class ThreadGroup(ProcessGroup):
    """One of the threads that exchange by a board, and wait for each other at a barrier."""

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

    def all_reduce_exact(self, shares, counts=()):
        self.numbers_exchanged += shares.size
        gathered = self.all_gather((shares.copy(), tuple(counts)))
        total = np.sum([theirs for theirs, _ in gathered], axis=0)
        return total, [sum(column) for column in zip(*(counts for _, counts in gathered), strict=True)]

    def broadcast(self, array, source):
        array[...] = self.all_gather(array.copy())[source]


def groups(size: int) -> list[ThreadGroup]:
    barrier, board = threading.Barrier(size), [None] * size
    return [ThreadGroup(rank, size, barrier, board) for rank in range(size)]


def grids(neurons: int, rows: int) -> list[WorkerGrid]:
    """As ``fireset.distributed.worker_grid.grid`` lays workers out."""
    by_rows = [groups(neurons) if neurons > 1 else [SINGLE_PROCESS] for _ in range(rows)]
    by_neurons = [groups(rows) if rows > 1 else [SINGLE_PROCESS] for _ in range(neurons)]
    return [
        WorkerGrid(group, by_rows[k // neurons][k % neurons], by_neurons[k % neurons][k // neurons])
        for k, group in enumerate(groups(neurons * rows))
    ]


def run_all(work: Callable[[int], None], size: int) -> None:
    """``work(rank)`` on all threads at once."""
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
