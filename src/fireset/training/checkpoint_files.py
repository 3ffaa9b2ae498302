"""The files of checkpoints: names, locking, clean-up, and reading of untrusted content.

Each worker writes the state of its neurons as ``checkpoint-00000050.1-of-4.safetensors``; of several workers with the
same neurons, the first does. Then the first worker of all writes the index, ``checkpoint-00000050.safetensors``, with
the rest of the state and the checksums of the other files. Only the index makes them a checkpoint. Each file is written
under a temporary name, synced and renamed, so that a checkpoint is complete or absent after a power failure.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.files import check_writable, file_digest, read_model, write_model
from fireset._util.folder_lock import FolderLock
from fireset._util.shard_files import shard_path
from fireset.network import ShiftedReLUNetwork
from fireset.training.history import History, Iteration
from fireset.training.problem import fingerprint

_INDEX_NAME = re.compile(r"checkpoint-(\d{8})\.safetensors")
_FILE_NAME = re.compile(r"\.?checkpoint-(\d{8})\..*(safetensors|part)")  # also shards and unfinished files
_INTEGER_FIELDS = [f.name for f in fields(Iteration) if f.type in (int, int | None)]
_OPTIONAL_FIELDS = [f.name for f in fields(Iteration) if f.type in (int | None, float | None)]

# Arrays of a shard: indices of neurons in the whole network, and a row for each of them, of weights or output weights.
WEIGHT_ARRAYS = {"moved": "weights", "with_state": "neuron_state", "best_differs": "best_weights"}
OUTPUT_ARRAYS = {
    "outputs_moved": "output_weights",
    "with_output_state": "output_state",
    "best_outputs_differ": "best_output_weights",
}


class CheckpointFolder:
    """A folder of checkpoints, locked by the first worker of a run."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = FolderLock(path)

    def prepare(self, *, resume: bool) -> None:
        """Create and lock the folder, and delete unfinished files. Raise InputError if it is not usable."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the checkpoint folder {self.path}: {error.strerror}") from error
        check_writable(self.path / "checkpoint")
        for entry in self.path.iterdir():
            if _FILE_NAME.fullmatch(entry.name) and entry.is_dir():
                raise InputError(
                    f"{entry} is a folder with the name of a checkpoint file; rename it, or give another checkpoint "
                    "folder"
                )
        self.lock()
        found = self.iterations()
        if found and not resume:
            raise InputError(
                f"{self.path} holds a checkpoint of iteration {found[-1]}; resume from it (--resume), or give "
                "another folder"
            )
        self.keep_only(found)

    def lock(self) -> None:
        """Lock the folder; no effect if this run has locked it."""
        self._lock.acquire()

    def release(self) -> None:
        """Let other runs use the folder."""
        self._lock.release()

    def iterations(self) -> list[int]:
        """Return the iterations of all checkpoints, readable or not, ascending."""
        names = (_INDEX_NAME.fullmatch(entry.name) for entry in self.path.iterdir())
        return sorted(int(name[1]) for name in names if name)

    def keep_only(self, iterations: list[int]) -> None:
        """Delete the files of all other checkpoints, indexes first, and unfinished files."""
        files = [(entry, _FILE_NAME.fullmatch(entry.name)) for entry in self.path.iterdir()]
        old = [entry for entry, name in files if name and (int(name[1]) not in iterations or entry.suffix == ".part")]
        for entry in sorted(old, key=lambda entry: _INDEX_NAME.fullmatch(entry.name) is None):
            entry.unlink(missing_ok=True)

    def index(self, iteration: int) -> Path:
        return self.path / f"checkpoint-{iteration:08d}.safetensors"

    def shard(self, iteration: int, rank: int, size: int) -> Path:
        return shard_path(self.index(iteration), f"{rank + 1}-of-{size}")


def write_index(path: Path, history: History, description: dict[str, Any]) -> None:
    measured = [f.name for f in fields(Iteration) if not history or getattr(history[0], f.name) is not None]
    arrays = {name: history.column(name).astype(_column_type(name)) for name in measured}
    write_model(path, arrays, {**description, "checksum": checksum(arrays, description)})


def read_index(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the columns of the history and the description of an index."""
    columns, description = read_model(path)
    if "checkpoint" not in description:
        raise InputError(f"{path} is not a checkpoint")
    try:
        expected = checksum(columns, description)
    except RecursionError:
        expected = ""
    if description.get("checksum") != expected:
        raise InputError(f"{path} is damaged: its checksum differs")
    if not all(isinstance(description.get(name), dict) for name in ("identity", "notes")):
        raise InputError(f"{path} is damaged: it does not hold the state of a run")
    return columns, description


def read_history(columns: dict[str, np.ndarray], iteration: int) -> History:
    """Return the history of a checkpoint. Raise ValueError unless it has one record for each iteration, in order."""
    names = {f.name for f in fields(Iteration)}
    if set(columns) | set(_OPTIONAL_FIELDS) != names:
        raise ValueError("its history lacks columns")
    for name, column in columns.items():
        if column.shape != (iteration,) or column.dtype != _column_type(name):
            raise ValueError(f"its history has no {iteration} entries of {name}")
    if not np.array_equal(columns["iteration"], np.arange(iteration)):
        raise ValueError("its history is not in order")
    lists = {name: column.tolist() for name, column in columns.items()}
    lists |= {name: [None] * iteration for name in _OPTIONAL_FIELDS if name not in columns}
    return History(Iteration(**{name: lists[name][k] for name in names}) for k in range(iteration))


def read_shard(path: Path, digest: Any, lo: int, hi: int, network: ShiftedReLUNetwork) -> dict[str, np.ndarray]:
    """Return the arrays of neurons lo to hi − 1, checked against the digest and the shape of the network."""
    arrays, _ = read_model(path)
    if file_digest(path).hex() != digest:
        raise InputError(f"{path} is damaged: its checksum differs")
    columns = dict.fromkeys(WEIGHT_ARRAYS, network.n_features) | dict.fromkeys(OUTPUT_ARRAYS, network.n_outputs)
    for numbers, rows in {**WEIGHT_ARRAYS, **OUTPUT_ARRAYS}.items():
        ids, values = arrays.get(numbers), arrays.get(rows)
        if (
            ids is None
            or values is None
            or ids.dtype != np.int64
            or ids.ndim != 1
            or (np.diff(ids) <= 0).any()
            or (len(ids) and not (lo <= ids[0] and ids[-1] < hi))
            or values.dtype != network.dtype
            or values.shape != (len(ids), columns[numbers])
            or not np.isfinite(values).all()
        ):
            raise InputError(f"{path} is damaged: {rows} are not those of neurons {lo} to {hi - 1}")
    return arrays


def checksum(arrays: Mapping[str, np.ndarray], description: Mapping[str, Any]) -> str:
    """Return a hash of the content of an index, without the checksum itself and the version of the format."""
    hashed = {name: value for name, value in description.items() if name not in ("checksum", "version")}
    total = hashlib.blake2b(json.dumps(hashed, sort_keys=True).encode(), digest_size=16)
    for name in sorted(arrays):
        total.update(name.encode() + fingerprint(arrays[name]).encode())
    return total.hexdigest()


def _column_type(name: str) -> type:
    return np.int64 if name in _INTEGER_FIELDS else np.float64
