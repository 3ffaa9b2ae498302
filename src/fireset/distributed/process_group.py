"""The processes that train together: a single one, or the workers of an initialized process group of torch.distributed.

Whoever trains asks ``current_group`` and need not know which of the two it is.

Sums over workers are exact, so that they do not depend on the order in which a network of machines adds: all workers
agree on a power of two, round their shares to whole multiples of it, and add integers. With P workers a share is
rounded to 2^−(61 − log₂ P) of the largest one, finer than float64 has it for all P up to 256. Decisions (when to stop,
what rate) are functions of these sums, and therefore the same everywhere.
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

# How long workers wait for each other in one exchange unless asked otherwise, and to begin with. A worker that died is
# noticed at once, by its closed connection; only a machine that vanished without a word is waited for.
TIMEOUT = timedelta(minutes=10)
_exchange_timeout = TIMEOUT  # of the workers that were joined, who have one group in a process, as torch has


_BITS = 62  # of an int64, less the sign and one for rounding


class ProcessGroup(ABC):
    """Some processes and what they can tell each other. Every method must be called by all of them.

    Attributes
    ----------
    rank : int
        Number of this process, from 0.
    size : int
        How many there are.
    """

    rank: int
    size: int

    @abstractmethod
    def all_reduce_max(self, number: int) -> int:
        """The largest number that a worker has."""

    @abstractmethod
    def all_reduce_sum(self, number: int) -> int:
        """The sum of all workers' numbers."""

    @abstractmethod
    def all_gather(self, block: bytes) -> list[bytes]:
        """The bytes of every worker, as many from each, in the order of their ranks."""

    @abstractmethod
    def all_reduce_exact(self, shares: np.ndarray, counts: Sequence[int] = ()) -> tuple[np.ndarray, list[int]]:
        """Sum of the float64 ``shares`` of all workers, and of some counts that travel with them."""

    @abstractmethod
    def broadcast(self, array: np.ndarray, source: int) -> None:
        """Write what worker ``source`` has in ``array`` into everybody's."""

    def all_true(self, flag: bool) -> bool:
        """Whether the flag is set on all workers."""
        return self.all_reduce_max(int(not flag)) == 0

    def neurons_of(self, rank: int, width: int) -> tuple[int, int]:
        """The neurons of a worker: contiguous, and as many as any other has, or one more."""
        if self.size > 1 and width < 2 * self.size:
            raise InputError(f"width must be at least 2 for each of the {self.size} workers, got {width}")
        return width * rank // self.size, width * (rank + 1) // self.size


class SingleProcess(ProcessGroup):
    """One process without others."""

    rank = 0
    size = 1

    def all_reduce_max(self, number: int) -> int:
        return number

    def all_reduce_sum(self, number: int) -> int:
        return number

    def all_gather(self, block: bytes) -> list[bytes]:
        return [block]

    def all_reduce_exact(self, shares: np.ndarray, counts: Sequence[int] = ()) -> tuple[np.ndarray, list[int]]:
        return shares, list(counts)

    def broadcast(self, array: np.ndarray, source: int) -> None:
        """There is nobody to hear it."""


class TorchProcessGroup(ProcessGroup):
    """The workers of torch.distributed's default group, any backend that adds integers (gloo does)."""

    def __init__(self, distributed: Any):
        self._distributed = distributed
        self.rank: int = distributed.get_rank()
        self.size: int = distributed.get_world_size()
        self.bytes_exchanged = 0  # what this worker handed over to be added or compared; see docs/distributed.md

    def all_reduce_max(self, number: int) -> int:
        return int(self._all_reduce(np.array([number], np.int64), self._distributed.ReduceOp.MAX)[0])

    def all_reduce_sum(self, number: int) -> int:
        return int(self._all_reduce(np.array([number], np.int64), self._distributed.ReduceOp.SUM)[0])

    def all_gather(self, block: bytes) -> list[bytes]:
        from torch import empty, frombuffer, uint8

        theirs = [empty(len(block), dtype=uint8) for _ in range(self.size)]
        with _worker_lost_in_one_line():
            self._distributed.all_gather(theirs, frombuffer(bytearray(block), dtype=uint8))
        return [bytes(tensor.numpy()) for tensor in theirs]

    def all_reduce_exact(self, shares: np.ndarray, counts: Sequence[int] = ()) -> tuple[np.ndarray, list[int]]:
        """Two exchanges: 8 bytes to agree on the power of two, 8 bytes for each number to add.

        What is not finite anywhere is NaN everywhere.
        """
        operations = self._distributed.ReduceOp
        peak = float(np.abs(shares).max(initial=0.0))
        peak = float(self._all_reduce(np.array([peak if isfinite(peak) else np.inf]), operations.MAX)[0])
        scale = _BITS - frexp(peak)[1] - (self.size - 1).bit_length() if isfinite(peak) else 0
        whole = np.zeros(shares.size + len(counts), np.int64)
        if isfinite(peak):
            whole[: shares.size] = np.rint(np.ldexp(shares.ravel(), scale))
        whole[shares.size :] = counts
        whole = self._all_reduce(whole, operations.SUM)
        if not isfinite(peak):
            return np.full(shares.shape, np.nan), whole[shares.size :].tolist()
        added = np.ldexp(whole[: shares.size].astype(np.float64), -scale).reshape(shares.shape)
        return added, whole[shares.size :].tolist()

    def broadcast(self, array: np.ndarray, source: int) -> None:
        from torch import from_numpy

        with _worker_lost_in_one_line():
            self._distributed.broadcast(from_numpy(array), src=source)

    def _all_reduce(self, array: np.ndarray, operation: Any) -> np.ndarray:
        from torch import from_numpy

        with _worker_lost_in_one_line():
            self._distributed.all_reduce(from_numpy(array), op=operation)  # in place, on the array's own memory
        self.bytes_exchanged += array.nbytes
        return array

    def subgroup(self, ranks: range) -> "TorchProcessGroup | None":
        """A group of these workers, for them; None for the others, who must call this, too."""
        with _worker_lost_in_one_line():
            group = self._distributed.new_group(ranks, timeout=_exchange_timeout)
        return TorchProcessGroup(_Subgroup(self._distributed, group)) if self.rank in ranks else None

    def leave(self) -> None:
        """Give a group that ``subgroup`` made back."""
        self._distributed.destroy_process_group()


class _Subgroup:
    """``torch.distributed`` as some of the workers see it: with numbers of their own, and among themselves."""

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
    """That of this process: the default group of torch.distributed if one is initialized. Imports nothing."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return SINGLE_PROCESS
    return TorchProcessGroup(distributed)


def launched() -> bool:
    """Whether this process was started by torchrun, or by something that speaks as it does."""
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ


def restarted() -> bool:
    """Whether torchrun has started this process again, after a worker was lost."""
    return _attempt() != "0"


def _attempt() -> str:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def _check_environment() -> None:
    """Refuse an environment that is not torchrun's in one line: some systems set RANK and WORLD_SIZE for themselves."""
    problem = _environment_problem()
    if problem:
        raise InputError(f"{problem}; start the workers with torchrun, or unset RANK and WORLD_SIZE")


def _environment_problem() -> str:
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
    """Join the workers that torchrun started, if it did, and leave them at the end of the block.

    Until all have come they are waited for ten minutes, or ``timeout`` if that is longer; from then on a worker that
    does not answer for ``timeout`` in an exchange is given up.
    """
    if not launched():
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
    with _worker_lost_in_one_line(), _ending_after(longest + timedelta(seconds=30)):
        store, rank, size = next(rendezvous("env://", timeout=longest))
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            # torchrun keeps its store through a restart, and with it the addresses of workers that are gone.
            # (Documented as torch.distributed.PrefixStore, and not declared.)
            store = distributed.PrefixStore(f"attempt {_attempt()}", store)  # pyright: ignore[reportPrivateImportUsage]
        store.set(f"worker {rank} is here", "")
        store.wait([f"worker {other} is here" for other in range(size)], longest)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    try:
        yield current_group()
    finally:
        distributed.destroy_process_group()


@contextmanager
def _worker_lost_in_one_line() -> Iterator[None]:
    """What torch says when a worker is gone, in one line."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise WorkerLostError(f"another worker is gone or does not answer ({reason[0][:200]})") from error


@contextmanager
def _ending_after(limit: timedelta) -> Iterator[None]:
    """End the process if the block takes longer: gloo waits for ever for a worker that dies while they connect."""

    def give_up() -> None:
        print(f"fireset: error: the workers did not find each other within {limit}", file=sys.stderr, flush=True)
        os._exit(WORKER_LOST)

    timer = threading.Timer(limit.total_seconds(), give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
