"""Neurons in shards over several processes, joined by torch.distributed; or one process alone, with no torch at all.

A network is a sum over neurons. Every worker keeps the neurons ``first … first + width − 1``, their lists and their
index, sees all samples, and takes its own gradient steps; what joins them is one sum of n × c predictions in every
iteration. Whoever trains asks ``find_team`` and need not know whether it is alone.

The sum is exact, so that it does not depend on the order in which a network of machines adds: all workers agree on a
power of two, round their shares to whole multiples of it, and add integers. With P workers a share is rounded to
2^−(61 − log₂ P) of the largest one, finer than float64 has it for all P up to 256. Decisions (when to stop, what rate)
are functions of these sums, and therefore the same everywhere.
"""

import hashlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from math import frexp, isfinite, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from fireset.engines.base import Engine, EngineWork, Step
from fireset.errors import WORKER_LOST, InputError, WorkerLostError
from fireset.files import file_digest, write_model
from fireset.network import ShiftedReLUNetwork
from fireset.theory.kernel import fire_set_product

# How long a worker waits for the others in one exchange. A worker that died is noticed at once, by its closed
# connection; only a machine that vanished without a word is waited for.
TIMEOUT = timedelta(minutes=10)

_BITS = 62  # of an int64, less the sign and one for rounding


class Alone:
    """The team of a process without others."""

    rank = 0
    size = 1

    def share(self, network: ShiftedReLUNetwork) -> ShiftedReLUNetwork:
        """The neurons that this worker trains, as a network on the same memory."""
        return network

    def span(self, network: ShiftedReLUNetwork) -> tuple[int, int]:
        """Number of the first neuron of a share, and how many neurons all shares have together."""
        return 0, network.width

    def unite(self, network: ShiftedReLUNetwork, share: ShiftedReLUNetwork) -> None:
        """Bring what the others trained into the network that ``share`` is a part of."""

    def engine(self, engine: Engine) -> Engine:
        """The engine of a share as one of the whole network."""
        return engine

    def highest(self, number: int) -> int:
        """The largest number that a worker has."""
        return number

    def total(self, number: int) -> int:
        return number

    def gather(self, digest: bytes) -> list[bytes]:
        """Sixteen bytes from every worker, in the order of their ranks."""
        return [digest]

    def everyone(self, fine: bool) -> bool:
        """Whether all workers say so."""
        return -self.highest(-int(fine)) == 1

    def check_same(self, what: str, digest: bytes) -> None:
        """Refuse to train together on different problems."""
        digests = self.gather(digest)
        other = next((rank for rank, theirs in enumerate(digests) if theirs != digests[0]), None)
        if other is not None:
            raise InputError(f"{what} must be the same on all workers; worker {other} has other ones than worker 0")


class Team(Alone):
    """The workers of an initialized process group, default group, any backend that adds integers (gloo does)."""

    def __init__(self, group: Any):
        self._group = group
        self.rank: int = group.get_rank()
        self.size: int = group.get_world_size()
        self.bytes_exchanged = 0  # what this worker handed over to be added or compared; see docs/distributed.md

    def share(self, network: ShiftedReLUNetwork) -> "NetworkShard":
        if isinstance(network, NetworkShard):
            return network
        lo, hi = self.neurons_of(self.rank, network.width)
        own = ShiftedReLUNetwork(network.weights[lo:hi], network.signs[lo:hi], network.threshold)
        return NetworkShard(own, lo, network.width, self)

    def span(self, network: ShiftedReLUNetwork) -> tuple[int, int]:
        return (network.first, network.whole_width) if isinstance(network, NetworkShard) else (0, network.width)

    def neurons_of(self, rank: int, width: int) -> tuple[int, int]:
        """The neurons of a worker: contiguous, and as many as any other has, or one more."""
        if width < 2 * self.size:
            raise InputError(f"width must be at least 2 for each of the {self.size} workers, got {width}")
        return width * rank // self.size, width * (rank + 1) // self.size

    def unite(self, network: ShiftedReLUNetwork, share: ShiftedReLUNetwork) -> None:
        from torch import from_numpy

        if network is share:
            return
        for rank in range(self.size):
            lo, hi = self.neurons_of(rank, network.width)
            with _talking():
                self._group.broadcast(from_numpy(network.weights[lo:hi]), src=rank)

    def engine(self, engine: Engine) -> "DistributedEngine":
        return DistributedEngine(engine, self)

    def highest(self, number: int) -> int:
        return int(self._all_reduce(np.array([number], np.int64), self._group.ReduceOp.MAX)[0])

    def total(self, number: int) -> int:
        return int(self._all_reduce(np.array([number], np.int64), self._group.ReduceOp.SUM)[0])

    def gather(self, digest: bytes) -> list[bytes]:
        from torch import empty, frombuffer, uint8

        theirs = [empty(len(digest), dtype=uint8) for _ in range(self.size)]
        with _talking():
            self._group.all_gather(theirs, frombuffer(bytearray(digest), dtype=uint8))
        return [bytes(tensor.numpy()) for tensor in theirs]

    def add(self, shares: np.ndarray, counts: Sequence[int] = ()) -> tuple[np.ndarray, list[int]]:
        """Sum of the float64 ``shares`` of all workers, and of some counts that travel with them.

        Two exchanges: 8 bytes to agree on the power of two, 8 bytes for each number to add. What is not finite
        anywhere is NaN everywhere.
        """
        peak = float(np.abs(shares).max(initial=0.0))
        peak = float(self._all_reduce(np.array([peak if isfinite(peak) else np.inf]), self._group.ReduceOp.MAX)[0])
        scale = _BITS - frexp(peak)[1] - (self.size - 1).bit_length() if isfinite(peak) else 0
        whole = np.zeros(shares.size + len(counts), np.int64)
        if isfinite(peak):
            whole[: shares.size] = np.rint(np.ldexp(shares.ravel(), scale))
        whole[shares.size :] = counts
        whole = self._all_reduce(whole, self._group.ReduceOp.SUM)
        if not isfinite(peak):
            return np.full(shares.shape, np.nan), whole[shares.size :].tolist()
        added = np.ldexp(whole[: shares.size].astype(np.float64), -scale).reshape(shares.shape)
        return added, whole[shares.size :].tolist()

    def _all_reduce(self, array: np.ndarray, operation: Any) -> np.ndarray:
        from torch import from_numpy

        with _talking():
            self._group.all_reduce(from_numpy(array), op=operation)  # in place, on the array's own memory
        self.bytes_exchanged += array.nbytes
        return array


@contextmanager
def _talking() -> Iterator[None]:
    """What torch says when a worker is gone, in one line."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise WorkerLostError(f"another worker is gone or does not answer ({reason[0][:200]})") from error


ALONE = Alone()


def find_team() -> Alone:
    """The team of this process: the default process group if one is initialized. Imports nothing."""
    group = sys.modules.get("torch.distributed")
    if group is None or not group.is_available() or not group.is_initialized():
        return ALONE
    return Team(group)


def launched() -> bool:
    """Whether this process was started by torchrun, or by something that speaks as it does."""
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ


def restarted() -> bool:
    """Whether torchrun has started this process again, after a worker was lost."""
    return _attempt() != "0"


def _attempt() -> str:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


@contextmanager
def joined() -> Iterator[Alone]:
    """Join the workers that torchrun started, if it did; yields the team."""
    if not launched():
        yield find_team()
        return
    try:
        import torch.distributed as group
        from torch.distributed.rendezvous import rendezvous
    except ImportError:
        raise InputError("several workers need PyTorch: pip install 'fireset[torch]'") from None
    with _talking(), _ending_after(TIMEOUT + timedelta(seconds=30)):
        store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            # torchrun keeps its store through a restart, and with it the addresses of workers that are gone.
            # (Documented as torch.distributed.PrefixStore, and not declared.)
            store = group.PrefixStore(f"attempt {_attempt()}", store)  # pyright: ignore[reportPrivateImportUsage]
        group.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    try:
        yield find_team()
    finally:
        group.destroy_process_group()


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


class NetworkShard(ShiftedReLUNetwork):
    """Some neurons of a network, on a team. ``predict`` and ``save`` speak for the whole: call them on all workers.

    Attributes
    ----------
    first : int
        Number of its first neuron in the whole network.
    whole_width : int
        m; ``width`` is that of the shard.
    """

    def __init__(self, own: ShiftedReLUNetwork, first: int, whole_width: int, team: Team):
        super().__init__(own.weights, own.signs, own.threshold)
        self.first = first
        self.whole_width = whole_width
        self._team = team

    def predict(self, X) -> np.ndarray:
        """f(x_i) of the whole network, (n, c), float64; all workers must give the same rows."""
        return self._team.add(super().predict(X) * sqrt(self.width / self.whole_width))[0]

    def save(self, path: str | os.PathLike, description: dict[str, Any] | None = None, **arrays: np.ndarray) -> None:
        """Every worker writes its neurons beside ``path``; ``path`` itself names them, and is written last."""
        team = self._team
        if team.size == 1:
            return super().save(path, description, **arrays)
        # Shards get a name of their own each time, so that the model that was there stays whole until the last moment.
        mark = team.gather(os.urandom(16))[0][:4].hex()
        places = [shard_path(path, f"{rank + 1}-of-{team.size}.{mark}") for rank in range(team.size)]
        failure: InputError | None = None
        try:
            own = {"weights": self.weights, "signs": self.signs.astype(np.int8)}
            write_model(places[team.rank], own, {})
        except InputError as error:
            failure = error
        if not team.everyone(failure is None):
            places[team.rank].unlink(missing_ok=True)
            raise failure or InputError(f"cannot write {path}: another worker could not write its shard")
        digests = team.gather(file_digest(places[team.rank]))
        if team.rank == 0:
            shards = [
                {"file": place.name, "checksum": digest.hex()} for place, digest in zip(places, digests, strict=True)
            ]
            write_model(path, arrays, {**(description or {}), "threshold": self.threshold, "shards": shards})
            for place in set(shard_path(path, "*").parent.glob(shard_path(path, "*-of-*.*").name)) - set(places):
                place.unlink()
        return None


def shard_path(path: str | os.PathLike, part: str) -> Path:
    """Where a shard of a file is: beside it, with the part before the suffix."""
    path = Path(path)
    return path.with_name(f"{path.name.removesuffix('.safetensors')}.{part}.safetensors")


class DistributedEngine:
    """An engine on this worker's neurons, and the sums that make it one of the whole network.

    The inner engine divides by the √width of its shard; here shares and residuals are scaled to √m of the whole.
    """

    def __init__(self, inner: Engine, team: Team):
        self.name = inner.name
        self.exact = inner.exact
        self.inner = inner
        self.team = team
        self.work = EngineWork()  # of all workers together
        self._started = False

    def index_for(self, network, n_samples: int) -> str | None:
        return self.inner.index_for(network, n_samples)

    def start(self, network, X: np.ndarray) -> None:
        self._network, self._X = network, X
        self._part = network.width / self.team.span(network)[1]
        self._product = None
        self.inner.start(network, X)
        if not self._started:  # for the counts: preprocessing is work, too
            self._added(np.empty(0))
        self._started = True

    def forward(self) -> np.ndarray:
        return self._added(self.inner.forward() * sqrt(self._part))

    def _added(self, share: np.ndarray) -> np.ndarray:
        """The sum of all workers' shares; what they have done so far is added up on the way."""
        done = {name: count for name, count in asdict(self.inner.work).items() if count is not None}
        total, counts = self.team.add(share, tuple(done.values()))
        for name, count in zip(done, counts, strict=True):
            setattr(self.work, name, count)
        return total

    def descend(self, residual: np.ndarray, step: Step) -> None:
        self._product = None
        self.inner.descend(residual * sqrt(self._part), step)

    def fire_sets(self):
        """Boolean n × width sparse array of this worker's neurons."""
        return self.inner.fire_sets()

    def tangent_product(self, direction: np.ndarray) -> np.ndarray:
        """H v of the whole network's fire-set kernel: the sum of the shards' products."""
        if self._product is None:
            known = getattr(self.inner, "tangent_product", None)
            self._product = known or fire_set_product(self._X, self._network.signs, self.inner.fire_sets())
        return self._added(self._product(direction) * self._part)


def initialize(width: int, n_features: int, n_outputs: int = 1, **options) -> ShiftedReLUNetwork:
    """``ShiftedReLUNetwork.initialize``; on a team, only the neurons of this worker are drawn."""
    team = find_team()
    if not isinstance(team, Team):
        return ShiftedReLUNetwork.initialize(width, n_features, n_outputs, **options)
    drawn = repr((width, n_features, n_outputs, sorted(options.items())))
    team.check_same("width, inputs, outputs and seed", hashlib.blake2b(drawn.encode(), digest_size=16).digest())
    lo, hi = team.neurons_of(team.rank, width)
    own = ShiftedReLUNetwork.initialize(width, n_features, n_outputs, neurons=(lo, hi), **options)
    return NetworkShard(own, lo, width, team)
