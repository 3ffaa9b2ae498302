"""Workers in a grid: of N × R workers, worker (i, j) has share i of N of the neurons and share j of R of the rows.

Predictions of some rows are a sum over neurons, added up by the N workers that have these rows; the gradient of some
neurons is a sum over rows, added up by the R workers that have these neurons. The worker with rank r is
(r mod N, r div N), so that the first N workers have all neurons between them, and write them where they are written.

Without a grid all workers have all rows: N is their number, and R = 1.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fireset._util.checks import whole_number
from fireset._util.errors import InputError
from fireset.distributed.agreement import check_same
from fireset.distributed.process_group import SINGLE_PROCESS, ProcessGroup, TorchProcessGroup, current_group


@dataclass(frozen=True)
class WorkerGrid:
    """The groups that a worker belongs to.

    Attributes
    ----------
    everybody : ProcessGroup
        All N · R workers.
    same_rows : ProcessGroup
        The N workers with this one's rows, by their share of the neurons.
    same_neurons : ProcessGroup
        The R workers with this one's neurons, by their share of the rows.
    """

    everybody: ProcessGroup
    same_rows: ProcessGroup
    same_neurons: ProcessGroup

    @classmethod
    def neurons_only(cls, group: ProcessGroup) -> "WorkerGrid":
        """N × 1: all of a group have all rows."""
        return cls(group, group, SINGLE_PROCESS)

    @property
    def writes(self) -> bool:
        """Whether this worker is the one of those with its neurons that writes them to files."""
        return self.same_neurons.rank == 0

    def __str__(self) -> str:
        return f"{self.same_rows.size}x{self.same_neurons.size}"


_grid: WorkerGrid | None = None  # of this process, while it is in a ``with grid(…)`` block


def current_grid() -> WorkerGrid:
    """That of the block ``with grid(…)`` which this process is in; else its group, in which all have all rows."""
    return _grid or WorkerGrid.neurons_only(current_group())


@contextmanager
def grid(*, neurons: int, rows: int) -> Iterator[WorkerGrid]:
    """Lay the workers of the current group out as ``neurons`` × ``rows``, for all training inside the block.

    All workers must enter and leave it. What was trained inside predicts and saves inside, too.
    """
    global _grid  # as torch.distributed keeps its process group
    everybody = current_group()
    check_same(everybody, {"neurons": neurons, "rows": rows})
    neurons, rows = whole_number("neurons", neurons, 1), whole_number("rows", rows, 1)
    if _grid is not None:
        raise InputError(f"this process is in a grid of {_grid} already; leave it first")
    if neurons * rows != everybody.size:
        raise InputError(
            f"a grid of {neurons}x{rows} is for {neurons * rows} workers, got {everybody.size}; start as many with "
            "torchrun, or give another grid"
        )
    with _subgroups(neurons, rows, everybody) as (same_rows, same_neurons):
        _grid = WorkerGrid(everybody, same_rows, same_neurons)
        try:
            yield _grid
        finally:
            _grid = None


def parse_grid(text: str) -> dict[str, int]:
    """The arguments of ``grid`` from the user's words: 4x2 is four shares of the neurons, two of the rows."""
    spelled = re.fullmatch(r"\s*([1-9]\d*)\s*[x×]\s*([1-9]\d*)\s*", text)
    if not spelled:
        raise InputError(f"grid must be shares of neurons x shares of rows, such as 4x2, got {text!r}")
    return {"neurons": int(spelled[1]), "rows": int(spelled[2])}


@contextmanager
def _subgroups(neurons: int, rows: int, everybody: ProcessGroup) -> Iterator[tuple[ProcessGroup, ProcessGroup]]:
    """Those with this worker's rows, and those with its neurons; everybody or nobody else where one number is 1."""
    if rows == 1 or neurons == 1:
        yield (everybody, SINGLE_PROCESS) if rows == 1 else (SINGLE_PROCESS, everybody)
        return
    assert isinstance(everybody, TorchProcessGroup), "several workers have no other"
    # Everybody makes all of them, in the same order, as torch asks for.
    by_rows = [everybody.subgroup(range(share * neurons, (share + 1) * neurons)) for share in range(rows)]
    by_neurons = [everybody.subgroup(range(share, everybody.size, neurons)) for share in range(neurons)]
    row_share, neuron_share = divmod(everybody.rank, neurons)
    same_rows, same_neurons = by_rows[row_share], by_neurons[neuron_share]
    assert same_rows is not None
    assert same_neurons is not None
    try:
        yield same_rows, same_neurons
    finally:
        same_rows.leave()
        same_neurons.leave()
