"""A worker's part of a network: which neurons it trains, how they are drawn, predicted with and saved."""

import hashlib
import os
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.files import file_digest, write_model
from fireset.distributed.process_group import ProcessGroup, current_group
from fireset.network import ShiftedReLUNetwork


class NetworkShard:
    """The neurons that this worker trains, of a network that all workers have together.

    With a single process it holds the whole network, on its own memory. ``predict`` and ``save`` speak for the whole:
    call them on all workers.

    Attributes
    ----------
    local : ShiftedReLUNetwork
        The neurons ``first … first + local.width − 1``. It divides by the root of its own width; ``scale`` is what
        makes its predictions a share of the whole network's, √(local.width / width).
    first : int
    width : int
        m, of the whole network, as everywhere.
    group : ProcessGroup
    """

    def __init__(self, local: ShiftedReLUNetwork, first: int, width: int, group: ProcessGroup):
        self.local = local
        self.first = first
        self.width = width
        self.group = group

    @classmethod
    def of(cls, network: "ShiftedReLUNetwork | NetworkShard", group: ProcessGroup) -> "NetworkShard":
        """This worker's part of a network, on the same memory."""
        if isinstance(network, NetworkShard):
            return network
        if group.size == 1:
            return cls(network, 0, network.width, group)
        lo, hi = group.neurons_of(group.rank, network.width)
        return cls(network.part(slice(lo, hi)), lo, network.width, group)

    @property
    def scale(self) -> float:
        return sqrt(self.local.width / self.width)

    @property
    def threshold(self) -> float:
        return self.local.threshold

    @property
    def output_scale(self) -> float:
        return self.local.output_scale

    @property
    def n_features(self) -> int:
        return self.local.n_features

    @property
    def n_outputs(self) -> int:
        return self.local.n_outputs

    @property
    def dtype(self) -> np.dtype:
        return self.local.dtype

    def predict(self, X) -> np.ndarray:
        """f(x_i) of the whole network, (n, c), float64; all workers must give the same rows."""
        return self.group.all_reduce_exact(self.local.predict(X) * self.scale)[0]

    def gather_into(self, network: "ShiftedReLUNetwork | NetworkShard") -> None:
        """Bring what the others trained into the network that this is a part of."""
        if isinstance(network, NetworkShard) or self.group.size == 1:
            return
        for rank in range(self.group.size):
            lo, hi = self.group.neurons_of(rank, network.width)
            self.group.broadcast(network.weights[lo:hi], source=rank)

    def save(self, path: str | os.PathLike, description: dict[str, Any] | None = None, **arrays: np.ndarray) -> None:
        """Every worker writes its neurons beside ``path``; ``path`` itself names them, and is written last."""
        group = self.group
        if group.size == 1:
            self.local.save(path, description, **arrays)
            return
        # Shards get a name of their own each time, so that the model that was there stays whole until the last moment.
        mark = group.all_gather(os.urandom(16))[0][:4].hex()
        places = [shard_path(path, f"{rank + 1}-of-{group.size}.{mark}") for rank in range(group.size)]
        failure: InputError | None = None
        try:
            own = {"weights": self.local.weights, "signs": self.local.stored_outputs()}
            write_model(places[group.rank], own, {})
        except InputError as error:
            failure = error
        if not group.all_true(failure is None):
            places[group.rank].unlink(missing_ok=True)
            raise failure or InputError(f"cannot write {path}: another worker could not write its shard")
        digests = group.all_gather(file_digest(places[group.rank]))
        if group.rank == 0:
            shards = [
                {"file": place.name, "checksum": digest.hex()} for place, digest in zip(places, digests, strict=True)
            ]
            write_model(path, arrays, {**(description or {}), **self.local.scalars(), "shards": shards})
            for place in set(shard_path(path, "*").parent.glob(shard_path(path, "*-of-*.*").name)) - set(places):
                place.unlink()


def initialize(width: int, n_features: int, n_outputs: int = 1, **options) -> "ShiftedReLUNetwork | NetworkShard":
    """``ShiftedReLUNetwork.initialize``; of several workers, each draws its own neurons only."""
    group = current_group()
    if group.size == 1:
        return ShiftedReLUNetwork.initialize(width, n_features, n_outputs, **options)
    drawn = repr((width, n_features, n_outputs, sorted(options.items())))
    group.check_same("width, inputs, outputs and seed", hashlib.blake2b(drawn.encode(), digest_size=16).digest())
    lo, hi = group.neurons_of(group.rank, width)
    local = ShiftedReLUNetwork.initialize(width, n_features, n_outputs, neurons=(lo, hi), **options)
    return NetworkShard(local, lo, width, group)


def shard_path(path: str | os.PathLike, part: str) -> Path:
    """Where a shard of a file is: beside it, with the part before the suffix."""
    path = Path(path)
    return path.with_name(f"{path.name.removesuffix('.safetensors')}.{part}.safetensors")
