"""Grids of workers: of N × R workers, worker (i, j) has part i of N of the neurons and part j of R of the rows.

The prediction of a row is a sum over neurons, computed by the N workers with this row; the gradient of a neuron is a
sum over rows, computed by the R workers with this neuron. The worker of rank r is (r mod N, r div N), so that the first
N workers together have all neurons; they write model files.

Without a grid all workers have all rows: N is their number, and R = 1.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fireset._util.checks import whole_number
from fireset._util.errors import InputError
from fireset.distributed.agreement import check_same
from fireset.distributed.process_group import SINGLE_PROCESS, ProcessGroup, current_group


@dataclass(frozen=True)
class WorkerGrid:
    """The groups of a worker.

    Attributes
    ----------
    all_workers : ProcessGroup
        All N · R workers.
    same_rows : ProcessGroup
        The N workers with the rows of this worker, in the order of their neurons.
    same_neurons : ProcessGroup
        The R workers with the neurons of this worker, in the order of their rows.
    """

    all_workers: ProcessGroup
    same_rows: ProcessGroup
    same_neurons: ProcessGroup

    @classmethod
    def neurons_only(cls, group: ProcessGroup) -> "WorkerGrid":
        """Return the grid N × 1 of a group: all workers have all rows."""
        return cls(group, group, SINGLE_PROCESS)

    @property
    def writes(self) -> bool:
        """Whether this worker writes its neurons to files: the first of those with the same neurons."""
        return self.same_neurons.rank == 0

    def __str__(self) -> str:
        return f"{self.same_rows.size}x{self.same_neurons.size}"


_grid: WorkerGrid | None = None  # of the ``with grid(…)`` block that this process is in


def current_grid() -> WorkerGrid:
    """Return the grid of the enclosing ``with grid(…)`` block; without one, the current group as an N × 1 grid."""
    return _grid or WorkerGrid.neurons_only(current_group())


@contextmanager
def grid(*, neurons: int, rows: int) -> Iterator[WorkerGrid]:
    """Arrange the workers of the current group as a grid ``neurons`` × ``rows``, for all training inside the block.

    All workers must enter and leave the block. Networks trained inside must predict and be saved inside.
    """
    global _grid  # as the default process group of torch.distributed
    workers = current_group()
    check_same(workers, {"neurons": neurons, "rows": rows})
    neurons, rows = whole_number("neurons", neurons, 1), whole_number("rows", rows, 1)
    if _grid is not None:
        raise InputError(f"grids cannot be nested: this process is in a grid of {_grid}; leave it first")
    if neurons * rows != workers.size:
        raise InputError(
            f"a grid of {neurons}x{rows} is for {neurons * rows} workers, got {workers.size}; start as many with "
            "torchrun, or give another grid"
        )
    with _subgroups(neurons, rows, workers) as (same_rows, same_neurons):
        _grid = WorkerGrid(workers, same_rows, same_neurons)
        try:
            yield _grid
        finally:
            _grid = None


def parse_grid(text: str) -> dict[str, int]:
    """Return the arguments of ``grid`` for a text: 4x2 divides the neurons into four parts and the rows into two."""
    matched = re.fullmatch(r"\s*([1-9]\d*)\s*[x×]\s*([1-9]\d*)\s*", text)
    if not matched:
        raise InputError(f"grid must be parts of the neurons x parts of the rows, such as 4x2, got {text!r}")
    return {"neurons": int(matched[1]), "rows": int(matched[2])}


@contextmanager
def _subgroups(neurons: int, rows: int, workers: ProcessGroup) -> Iterator[tuple[ProcessGroup, ProcessGroup]]:
    """Create the groups of workers with this worker's rows and with its neurons."""
    if rows == 1 or neurons == 1:
        yield (workers, SINGLE_PROCESS) if rows == 1 else (SINGLE_PROCESS, workers)
        return
    # All workers create all groups, in the same order, as torch requires.
    by_rows = [workers.subgroup(range(part * neurons, (part + 1) * neurons)) for part in range(rows)]
    by_neurons = [workers.subgroup(range(part, workers.size, neurons)) for part in range(neurons)]
    row_part, neuron_part = divmod(workers.rank, neurons)
    same_rows, same_neurons = by_rows[row_part], by_neurons[neuron_part]
    assert same_rows is not None
    assert same_neurons is not None
    try:
        yield same_rows, same_neurons
    finally:
        same_rows.leave()
        same_neurons.leave()
