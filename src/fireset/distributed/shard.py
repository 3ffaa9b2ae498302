"""A worker's shard of a network: its neurons, and how they are drawn, predict and are saved."""

import os
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.files import file_digest, write_model, write_target
from fireset._util.shard_files import own_shards, remove_shards, shard_path
from fireset.distributed.agreement import check_same, raise_on_all_workers
from fireset.distributed.process_group import ProcessGroup
from fireset.distributed.worker_grid import WorkerGrid, current_grid
from fireset.network import ShiftedReLUNetwork


class NetworkShard:
    """The neurons of a network that this worker trains.

    With a single process these are all neurons, without a copy. ``predict`` and ``save`` are those of the whole
    network: call them on all workers.

    Attributes
    ----------
    local : ShiftedReLUNetwork
        The network of neurons ``first … first + local.width − 1``. It divides by the root of its own width.
    scale : float
        √(local.width / width), the factor of ``local``'s predictions in those of the whole network.
    first : int
    width : int
        m, the width of the whole network.
    grid : WorkerGrid
    group : ProcessGroup
        The workers with the same rows: together they have the whole network.
    """

    def __init__(self, local: ShiftedReLUNetwork, first: int, width: int, grid: WorkerGrid):
        self.local = local
        self.first = first
        self.width = width
        self.grid = grid

    @classmethod
    def of(cls, network: "ShiftedReLUNetwork | NetworkShard", grid: WorkerGrid) -> "NetworkShard":
        """Return this worker's shard of a network, a view of its memory."""
        if isinstance(network, NetworkShard):
            return network
        group = grid.same_rows
        if group.size == 1:
            return cls(network, 0, network.width, grid)
        lo, hi = group.neuron_range(group.rank, network.width)
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
        """Return f(x_i) of the whole network, (n, c), float64. All workers must pass the same rows."""
        return self.group.all_reduce_exact(self.local.predict(X) * self.scale)[0]

    def gather_into(self, network: "ShiftedReLUNetwork | NetworkShard") -> None:
        """Copy the weights and output weights of all neurons into ``network``, of which ``local`` is a view."""
        if not isinstance(network, NetworkShard):
            self._gather(network.weights, network.output_weights)

    def _gather(self, *arrays: np.ndarray) -> None:
        """Complete arrays with one row for each neuron, (m, …), which contain those of this worker."""
        for rank in range(self.group.size) if self.group.size > 1 else ():
            lo, hi = self.group.neuron_range(rank, self.width)
            for array in arrays:
                self.group.broadcast(array[lo:hi], source=rank)

    def whole(self) -> ShiftedReLUNetwork:
        """Return the network of the neurons of all workers with the same rows: a copy, of m·(d + c) numbers."""
        if self.group.size == 1:
            return self.local
        local, own = self.local, slice(self.first, self.first + self.local.width)
        weights = np.empty((self.width, local.n_features), local.dtype)
        outputs = np.empty((self.width, local.n_outputs), local.output_weights.dtype)
        weights[own], outputs[own] = local.weights, local.output_weights
        self._gather(weights, outputs)
        return ShiftedReLUNetwork(weights, outputs, local.threshold, local.output_scale)

    def save(self, path: str | os.PathLike, description: dict[str, Any] | None = None, **arrays: np.ndarray) -> None:
        """Write a model of several files: each worker writes its shard next to ``path``; ``path`` lists them.

        ``path`` is written last. Of several workers with the same neurons the first writes them. If ``path`` is a link,
        the shards are next to its target. At the end the shards of the previous model at ``path`` are removed.
        """
        group, workers = self.group, self.grid.all_workers
        if workers.size == 1:
            self.local.save(path, description, **arrays)
            return
        # New file names each time, so that the previous model stays complete until ``path`` is replaced.
        suffix = workers.all_gather(os.urandom(16))[0][:4].hex()
        parts = [f"{rank + 1}-of-{group.size}.{suffix}" for rank in range(group.size)]
        target, own_file, old = Path(path), None, []
        try:
            with raise_on_all_workers(workers):
                target = write_target(path)
                if self.grid.writes:
                    own_file = shard_path(target, parts[group.rank])
                    write_model(
                        own_file,
                        {"weights": self.local.weights, "output_weights": self.local.stored_output_weights()},
                        {},
                    )
            digests = workers.all_gather(file_digest(own_file) if own_file else bytes(16))[: group.size]
            with raise_on_all_workers(workers):
                if workers.rank == 0:
                    old = own_shards(target)
                    shards = [
                        {"file": shard_path(target, part).name, "checksum": digest.hex()}
                        for part, digest in zip(parts, digests, strict=True)
                    ]
                    write_model(path, arrays, {**(description or {}), **self.local.scalars(), "shards": shards})
        except InputError:
            # ``path`` may have been replaced before the error: it then needs its shards.
            if own_file is not None and own_file not in own_shards(target):
                own_file.unlink(missing_ok=True)
            raise
        remove_shards(old)


def check_same_run(network: "ShiftedReLUNetwork | NetworkShard", settings: Mapping[str, Any]) -> ProcessGroup:
    """Raise ``InputError`` on all workers unless network and settings are equal on all; return the group of all.

    Weights are compared if each worker has all of them. Those of shards follow from the arguments of ``initialize``.
    """
    group = network.grid.all_workers if isinstance(network, NetworkShard) else current_grid().all_workers
    names = ("width", "n_features", "n_outputs", "threshold", "output_scale", "dtype")
    described = {name: getattr(network, name) for name in names}
    if group.size > 1 and isinstance(network, ShiftedReLUNetwork):
        described |= {"weights": network.weights, "output_weights": network.output_weights}
    check_same(group, {**settings, **described})
    return group


def initialize(width: int, n_features: int, n_outputs: int = 1, **options) -> "ShiftedReLUNetwork | NetworkShard":
    """Draw a network as ``ShiftedReLUNetwork.initialize`` does; each of several workers draws its own neurons only."""
    grid = current_grid()
    if grid.all_workers.size == 1:
        return ShiftedReLUNetwork.initialize(width, n_features, n_outputs, **options)
    group = grid.same_rows
    arguments = {"width": width, "n_features": n_features, "n_outputs": n_outputs, **options}
    check_same(grid.all_workers, arguments)
    lo, hi = group.neuron_range(group.rank, width)
    local = ShiftedReLUNetwork.initialize(width, n_features, n_outputs, neurons=(lo, hi), **options)
    return NetworkShard(local, lo, width, grid)
