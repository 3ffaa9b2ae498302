"""A worker's part of a network: which neurons it trains, how they are drawn, predicted with and saved."""

import os
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.files import file_digest, write_model, write_target
from fireset._util.shard_files import own_shards, remove_shards, shard_path
from fireset.distributed.agreement import check_same, failing_together
from fireset.distributed.process_group import ProcessGroup
from fireset.distributed.worker_grid import WorkerGrid, current_grid
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
    grid : WorkerGrid
    group : ProcessGroup
        Of the grid, the workers that have the whole network between them: those with the same rows.
    """

    def __init__(self, local: ShiftedReLUNetwork, first: int, width: int, grid: WorkerGrid):
        self.local = local
        self.first = first
        self.width = width
        self.grid = grid

    @classmethod
    def of(cls, network: "ShiftedReLUNetwork | NetworkShard", grid: WorkerGrid) -> "NetworkShard":
        """This worker's part of a network, on the same memory."""
        if isinstance(network, NetworkShard):
            return network
        group = grid.same_rows
        if group.size == 1:
            return cls(network, 0, network.width, grid)
        lo, hi = group.neurons_of(group.rank, network.width)
        return cls(network.part(slice(lo, hi)), lo, network.width, grid)

    @property
    def group(self) -> ProcessGroup:
        return self.grid.same_rows

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
        """Every worker writes its neurons beside ``path``; ``path`` itself names them, and is written last.

        Of several workers with the same neurons the first writes them. Where ``path`` is a link, shards are beside the
        file that it leads to. At the end, the shards are removed that the file named which ``path`` was before, and no
        others.
        """
        group, everybody = self.group, self.grid.everybody
        if everybody.size == 1:
            self.local.save(path, description, **arrays)
            return
        # Shards get a name of their own each time, so that the model that was there stays whole until the last moment.
        mark = everybody.all_gather(os.urandom(16))[0][:4].hex()
        parts = [f"{rank + 1}-of-{group.size}.{mark}" for rank in range(group.size)]
        target, place, old = Path(path), None, []
        try:
            with failing_together(everybody):
                target = write_target(path)
                if self.grid.writes:
                    place = shard_path(target, parts[group.rank])
                    write_model(
                        place, {"weights": self.local.weights, "output_weights": self.local.stored_outputs()}, {}
                    )
            digests = everybody.all_gather(file_digest(place) if place else bytes(16))[: group.size]
            with failing_together(everybody):
                if everybody.rank == 0:
                    old = own_shards(target)
                    shards = [
                        {"file": shard_path(target, part).name, "checksum": digest.hex()}
                        for part, digest in zip(parts, digests, strict=True)
                    ]
                    write_model(path, arrays, {**(description or {}), **self.local.scalars(), "shards": shards})
        except InputError:
            # The file may be in its place all the same, if the system failed after that: its shards are needed then.
            if place is not None and place not in own_shards(target):
                place.unlink(missing_ok=True)
            raise
        remove_shards(old)


def check_same_run(network: "ShiftedReLUNetwork | NetworkShard", settings: Mapping[str, Any]) -> ProcessGroup:
    """Raise ``InputError`` on all workers unless network and settings are the same on all; returns all workers.

    Weights are compared where each worker has all of them. Those of shards follow from the arguments of ``initialize``.
    """
    group = network.grid.everybody if isinstance(network, NetworkShard) else current_grid().everybody
    names = ("width", "n_features", "n_outputs", "threshold", "output_scale", "dtype")
    facts = {name: getattr(network, name) for name in names}
    if group.size > 1 and isinstance(network, ShiftedReLUNetwork):
        facts |= {"weights": network.weights, "output_weights": network.output_weights}
    check_same(group, {**settings, **facts})
    return group


def initialize(width: int, n_features: int, n_outputs: int = 1, **options) -> "ShiftedReLUNetwork | NetworkShard":
    """``ShiftedReLUNetwork.initialize``; of several workers, each draws its own neurons only."""
    grid = current_grid()
    if grid.everybody.size == 1:
        return ShiftedReLUNetwork.initialize(width, n_features, n_outputs, **options)
    group = grid.same_rows
    asked = {"width": width, "n_features": n_features, "n_outputs": n_outputs, **options}
    check_same(grid.everybody, asked)
    lo, hi = group.neurons_of(group.rank, width)
    local = ShiftedReLUNetwork.initialize(width, n_features, n_outputs, neurons=(lo, hi), **options)
    return NetworkShard(local, lo, width, grid)
