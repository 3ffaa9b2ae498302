"""Process groups: a single process, or the workers of an initialized process group of torch.distributed.

``current_group`` returns one of the two; calling code treats both alike.

Sums over workers are exact, so that they do not depend on the order of the additions: all workers agree on a power of
two, round their values to multiples of it, and add integers. With P workers a value is rounded to 2^−(61 − log₂ P) of
the largest one, which is finer than float64 for P up to 256. Decisions, such as when to stop, depend on these sums
only, and are therefore the same on all workers.
"""

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from math import frexp, isfinite
from typing import Any

import numpy as np

from fireset._util.errors import WORKER_LOST, InputError, WorkerLostError

# Default timeout of an exchange, and of joining the group. A worker that died is detected at once by its closed
# connection; the timeout is for machines that lost their connection without closing it.
TIMEOUT = timedelta(minutes=10)
_exchange_timeout = TIMEOUT  # of the joined group; torch also has one default group per process

_SUM_BITS = 62  # of an int64, without the sign and one bit for rounding


class ProcessGroup(ABC):
    """Some processes and their exchanges. Every method but ``neuron_range`` must be called by all of them.

    Attributes
    ----------
    rank : int
        Rank of this process, from 0.
    size : int
        Number of processes.
    """

    rank: int
    size: int

    @abstractmethod
    def all_reduce_max(self, number: int) -> int:
        """Return the largest number of all workers."""

    @abstractmethod
    def all_reduce_sum(self, number: int) -> int:
        """Return the sum of the numbers of all workers."""

    @abstractmethod
    def all_gather(self, block: bytes) -> list[bytes]:
        """Return the bytes of all workers in the order of their ranks. Lengths must be equal."""

    @abstractmethod
    def all_reduce_exact(self, values: np.ndarray, counts: Sequence[int] = ()) -> tuple[np.ndarray, list[int]]:
        """Return the exact sum of float64 arrays over all workers, and of some counts in the same exchange."""

    @abstractmethod
    def broadcast(self, array: np.ndarray, source: int) -> None:
        """Overwrite ``array`` on all workers by that of worker ``source``."""

    @abstractmethod
    def subgroup(self, ranks: range) -> "ProcessGroup | None":
        """Create a group of the workers ``ranks``. Return it on these workers, and None on the others."""

    @abstractmethod
    def leave(self) -> None:
        """Release a group that ``subgroup`` created."""

    def all_true(self, flag: bool) -> bool:
        """Return whether the flag is set on all workers."""
        return self.all_reduce_max(int(not flag)) == 0

    def neuron_range(self, rank: int, width: int) -> tuple[int, int]:
        """Return the range of neurons of a worker. Sizes differ by at most one."""
        if self.size > 1 and width < 2 * self.size:
            raise InputError(f"width must be at least 2 for each of the {self.size} workers, got {width}")
        return width * rank // self.size, width * (rank + 1) // self.size


class SingleProcess(ProcessGroup):
    """A group of one process."""

    rank = 0
    size = 1

    def all_reduce_max(self, number: int) -> int:
        return number

    def all_reduce_sum(self, number: int) -> int:
        return number

    def all_gather(self, block: bytes) -> list[bytes]:
        return [block]

    def all_reduce_exact(self, values: np.ndarray, counts: Sequence[int] = ()) -> tuple[np.ndarray, list[int]]:
        return values, list(counts)

    def broadcast(self, array: np.ndarray, source: int) -> None:
        """Do nothing."""

    def subgroup(self, ranks: range) -> "SingleProcess | None":
        return self if 0 in ranks else None

    def leave(self) -> None:
        """Do nothing."""


class TorchProcessGroup(ProcessGroup):
    """The default group of torch.distributed, or a subgroup; any backend that adds integers, such as gloo."""

    def __init__(self, distributed: Any):
        self._distributed = distributed
        self.rank: int = distributed.get_rank()
        self.size: int = distributed.get_world_size()
        # Bytes of the results of this worker's exchanges: an array that was added or broadcast, all gathered blocks.
        self.bytes_exchanged = 0

    def all_reduce_max(self, number: int) -> int:
        return int(self._all_reduce(np.array([number], np.int64), self._distributed.ReduceOp.MAX)[0])

    def all_reduce_sum(self, number: int) -> int:
        return int(self._all_reduce(np.array([number], np.int64), self._distributed.ReduceOp.SUM)[0])

    def all_gather(self, block: bytes) -> list[bytes]:
        from torch import empty, frombuffer, uint8

        blocks = [empty(len(block), dtype=uint8) for _ in range(self.size)]
        with _raising_worker_lost():
            self._distributed.all_gather(blocks, frombuffer(bytearray(block), dtype=uint8))
        self.bytes_exchanged += self.size * len(block)
        return [bytes(tensor.numpy()) for tensor in blocks]

    def all_reduce_exact(self, values: np.ndarray, counts: Sequence[int] = ()) -> tuple[np.ndarray, list[int]]:
        """Return sums in two exchanges: 8 bytes to agree on the power of two, and 8 bytes per number.

        If a value is not finite on any worker, all sums are NaN on all workers.
        """
        operations = self._distributed.ReduceOp
        peak = float(np.abs(values).max(initial=0.0))
        peak = float(self._all_reduce(np.array([peak if isfinite(peak) else np.inf]), operations.MAX)[0])
        scale = _SUM_BITS - frexp(peak)[1] - (self.size - 1).bit_length() if isfinite(peak) else 0
        integers = np.zeros(values.size + len(counts), np.int64)
        if isfinite(peak):
            integers[: values.size] = np.rint(np.ldexp(values.ravel(), scale))
        integers[values.size :] = counts
        integers = self._all_reduce(integers, operations.SUM)
        if not isfinite(peak):
            return np.full(values.shape, np.nan), integers[values.size :].tolist()
        added = np.ldexp(integers[: values.size].astype(np.float64), -scale).reshape(values.shape)
        return added, integers[values.size :].tolist()

    def broadcast(self, array: np.ndarray, source: int) -> None:
        from torch import from_numpy

        with _raising_worker_lost():
            self._distributed.broadcast(from_numpy(array), src=source)
        self.bytes_exchanged += array.nbytes

    def _all_reduce(self, array: np.ndarray, operation: Any) -> np.ndarray:
        from torch import from_numpy

        with _raising_worker_lost():
            self._distributed.all_reduce(from_numpy(array), op=operation)  # in place: the tensor is a view of the array
        self.bytes_exchanged += array.nbytes
        return array

    def subgroup(self, ranks: range) -> "TorchProcessGroup | None":
        with _raising_worker_lost():
            group = self._distributed.new_group(ranks, timeout=_exchange_timeout)
        return TorchProcessGroup(_Subgroup(self._distributed, group)) if self.rank in ranks else None

    def leave(self) -> None:
        self._distributed.destroy_process_group()


class _Subgroup:
    """The functions of ``torch.distributed`` for a subgroup, with the ranks of the subgroup."""

    def __init__(self, distributed: Any, group: Any):
        self._distributed, self._group = distributed, group
        self.ReduceOp = distributed.ReduceOp

    def get_rank(self) -> int:
        return self._distributed.get_rank(self._group)

    def get_world_size(self) -> int:
        return self._distributed.get_world_size(self._group)

    def all_reduce(self, tensor: Any, op: Any) -> None:
        self._distributed.all_reduce(tensor, op=op, group=self._group)

    def all_gather(self, tensors: list[Any], tensor: Any) -> None:
        self._distributed.all_gather(tensors, tensor, group=self._group)

    def broadcast(self, tensor: Any, src: int) -> None:
        source = self._distributed.get_global_rank(self._group, src)
        self._distributed.broadcast(tensor, src=source, group=self._group)

    def destroy_process_group(self) -> None:
        self._distributed.destroy_process_group(self._group)


SINGLE_PROCESS = SingleProcess()


def current_group() -> ProcessGroup:
    """Return the default group of torch.distributed if one is initialized, else ``SINGLE_PROCESS``.

    Does not import torch.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return SINGLE_PROCESS
    return TorchProcessGroup(distributed)


def launched_by_torchrun() -> bool:
    """Return whether the environment variables of torchrun are set."""
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ


def restarted_by_torchrun() -> bool:
    """Return whether torchrun has started this process again after a worker was lost."""
    return _attempt() != "0"


def _attempt() -> str:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def _check_environment() -> None:
    """Raise ``InputError`` unless the variables are those of torchrun: some systems set RANK and WORLD_SIZE as well."""
    problem = _environment_problem()
    if problem:
        raise InputError(f"{problem}; start the workers with torchrun, or unset RANK and WORLD_SIZE")


def _environment_problem() -> str:
    """Return what is wrong with the environment, or an empty string."""
    values = {name: os.environ[name] for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE") if name in os.environ}
    values |= {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    wrong = {name: value for name, value in values.items() if not value.isdecimal()}
    if not os.environ.get("MASTER_ADDR") and wrong.keys() <= {"MASTER_PORT"}:
        return "MASTER_ADDR must be set where RANK and WORLD_SIZE are"
    for name, value in wrong.items():
        return f"{name} must be a whole number where RANK and WORLD_SIZE are set, got {value!r}"
    if int(values["RANK"]) >= int(values["WORLD_SIZE"]):
        return f"RANK must be below WORLD_SIZE = {values['WORLD_SIZE']}, got {values['RANK']}"
    return ""


@contextmanager
def joined_group(timeout: timedelta = TIMEOUT) -> Iterator[ProcessGroup]:
    """Join the workers that torchrun started, and leave the group at the end of the block.

    A group that exists, as in a worker of Ray Train, is used and not left. Without torchrun, and without its variables,
    the group is that of ``current_group``. All workers must join within ten minutes, or ``timeout`` if
    that is longer. Afterwards a worker that does not answer within ``timeout`` in an exchange is considered lost.
    """
    if current_group() is not SINGLE_PROCESS or not launched_by_torchrun():
        yield current_group()
        return
    _check_environment()
    try:
        import torch.distributed as distributed
        from torch.distributed.rendezvous import rendezvous
    except ImportError:
        raise InputError("several workers need PyTorch: pip install 'fireset[torch]'") from None
    global _exchange_timeout
    _exchange_timeout, longest = timeout, max(timeout, TIMEOUT)
    with _raising_worker_lost(), _exiting_after(longest + timedelta(seconds=30)):
        store, rank, size = next(rendezvous("env://", timeout=longest))
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            # torchrun keeps its store through a restart, with the addresses of lost workers. PrefixStore is documented
            # as torch.distributed.PrefixStore, but not declared.
            store = distributed.PrefixStore(f"attempt {_attempt()}", store)  # pyright: ignore[reportPrivateImportUsage]
        store.set(f"worker {rank} is here", "")
        store.wait([f"worker {other} is here" for other in range(size)], longest)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    try:
        yield current_group()
    finally:
        distributed.destroy_process_group()


@contextmanager
def _raising_worker_lost() -> Iterator[None]:
    """Raise ``WorkerLostError``, with the last line of torch's message, for a ``RuntimeError`` of this block."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise WorkerLostError(f"another worker is gone or does not answer ({reason[0][:200]})") from error


@contextmanager
def _exiting_after(limit: timedelta) -> Iterator[None]:
    """Exit the process if the block takes longer: gloo waits for ever for a worker that dies while it connects."""

    def exit_process() -> None:
        print(f"fireset: error: the workers did not connect within {limit}", file=sys.stderr, flush=True)
        os._exit(WORKER_LOST)

    timer = threading.Timer(limit.total_seconds(), exit_process)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
