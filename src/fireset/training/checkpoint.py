"""Checkpoints: what a training run needs to go on after a crash, and nothing that can be made again.

A checkpoint of iteration t holds the weights that moved since training began, the velocity of the neurons that have
one, the safe copy where it is another, the learning rate, the history, and fingerprints of data and settings. Weights
that never moved are drawn again, indexes and lists are built again.

Every worker writes its neurons as ``checkpoint-00000050.1-of-4.safetensors``; of several with the same ones, the first
does. When all have, the first one of all writes ``checkpoint-00000050.safetensors`` with the rest of the state and the
checksums of the others. Only that file makes them a checkpoint; each file is written under another name, synced and
renamed. So a checkpoint is there whole or not at all, whenever the power goes. Reading treats all of it as untrusted
input, and does not care how many workers wrote it.
"""

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.checks import whole_number
from fireset._util.errors import InputError
from fireset._util.files import check_writable, file_digest, read_model, write_model
from fireset._util.folder_lock import FolderLock
from fireset._util.shard_files import shard_path
from fireset.distributed.process_group import ProcessGroup
from fireset.distributed.shard import NetworkShard
from fireset.training.history import History, Iteration
from fireset.training.problem import fingerprint
from fireset.training.run_identity import FIRST_WEIGHTS, RunIdentity, row_hashes, whole_fingerprint
from fireset.training.solvers.base import Solver, SolverContext

_NAME = re.compile(r"checkpoint-(\d{8})\.safetensors")
_OURS = re.compile(r"\.?checkpoint-(\d{8})\..*(safetensors|part)")  # shards and what an interrupted writer left, too
_COUNTS = [f.name for f in fields(Iteration) if f.type in (int, int | None)]
_OPTIONAL = [f.name for f in fields(Iteration) if f.type in (int | None, float | None)]  # None, or measured each time


@dataclass(frozen=True)
class Checkpoints:
    """When and where ``train`` writes checkpoints.

    Parameters
    ----------
    folder : path
        Made if it is not there. On several machines, a folder that all of them see.
    every : int
        Iterations between two checkpoints. After each the engine builds its lists anew, as it would after a crash, so
        that a run that was interrupted and one that was not take the same steps bit for bit.
    keep : int
        How many to keep; older ones are removed.
    resume : bool
        Go on from the newest one that can be read, if there is any.
    options : mapping, optional
        What else the run was asked for, by the names that the user knows, such as a table and dropped columns. Written
        along, to say what is different where another run's data are refused; it decides nothing.
    """

    folder: str | os.PathLike
    every: int = 50
    keep: int = 3
    resume: bool = False
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("every", "keep"):
            whole_number(name, getattr(self, name), 1)

    def shared_settings(self) -> dict[str, Any]:
        """Those that must be the same on all workers."""
        return {"folder": str(self.folder), "every": self.every, "keep": self.keep, "resume": self.resume}

    def check_free(self, group: ProcessGroup) -> None:
        """Refuse, on all workers, a folder that another run is writing to; for those who prepare long before it."""
        _raise_on_all_workers(
            group, _mismatch(FolderLock(Path(self.folder)).check_free) if group.rank == 0 else "", self
        )


class CheckpointFolder:
    """The checkpoints of one run. Made before training, while the network has its first weights."""

    def __init__(
        self,
        asked: Checkpoints,
        shard: NetworkShard,
        context: SolverContext,
        solver: Solver,
        settings: Mapping[str, Any],
    ):
        self._asked, self._shard, self._context, self._solver = asked, shard, context, solver
        self._group = group = shard.grid.all_workers
        self._folder = Path(asked.folder)
        self._first, self._width = shard.first, shard.width
        self._hashes = row_hashes(context.network.weights)
        rows, inputs = context.problem.n_rows, context.problem.X.shape[1]
        self._identity = RunIdentity(
            {**settings, FIRST_WEIGHTS: whole_fingerprint(self._hashes, self._first, shard.group)},
            {name: str(value) for name, value in {"rows": rows, "inputs": inputs, **asked.options}.items()},
        )
        self._lock = FolderLock(self._folder)  # of the first worker, for all of them
        with self.released_on_error():
            # Nobody looks before the folder has been tidied.
            _raise_on_all_workers(group, _mismatch(self._prepare) if group.rank == 0 else "", asked)

    def release(self) -> None:
        """Let other runs have the folder."""
        self._lock.release()

    @contextmanager
    def released_on_error(self) -> Iterator[None]:
        """A run that fails in the block leaves the folder to others."""
        try:
            yield
        except BaseException:
            self.release()
            raise

    def due(self, iteration: int) -> bool:
        return iteration > 0 and iteration % self._asked.every == 0

    def _prepare(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the checkpoint folder {self._folder}: {error.strerror}") from error
        check_writable(self._folder / "checkpoint")
        for entry in self._folder.iterdir():
            if _OURS.fullmatch(entry.name) and entry.is_dir():
                raise InputError(
                    f"{entry} is a folder with the name of a checkpoint's file; rename it, or give another checkpoint "
                    "folder"
                )
        self._lock.acquire()
        found = self._iterations()
        if found and not self._asked.resume:
            raise InputError(
                f"{self._folder} holds a checkpoint of iteration {found[-1]}; resume from it (--resume), or give "
                "another folder"
            )
        self._tidy(found)

    def _iterations(self) -> list[int]:
        """Of all checkpoints, readable or not, ascending."""
        names = (_NAME.fullmatch(entry.name) for entry in self._folder.iterdir())
        return sorted(int(name[1]) for name in names if name)

    def _index(self, iteration: int) -> Path:
        return self._folder / f"checkpoint-{iteration:08d}.safetensors"

    def _tidy(self, kept: list[int]) -> None:
        """Remove our files that belong to none of these checkpoints; those that make a checkpoint first."""
        files = [(entry, _OURS.fullmatch(entry.name)) for entry in self._folder.iterdir()]
        old = [entry for entry, name in files if name and (int(name[1]) not in kept or entry.suffix == ".part")]
        for entry in sorted(old, key=lambda entry: _NAME.fullmatch(entry.name) is None):
            entry.unlink(missing_ok=True)

    # Writing

    def save(self) -> bool:
        """Write a checkpoint of the state as it is; on a full disk warn and leave the older ones as they are."""
        group, own, writes = self._group, self._own_part(), self._shard.grid.writes
        failure = _mismatch(lambda: self._write_rows(own)) if writes else ""
        digest = file_digest(own) if writes and not failure else bytes(16)
        whole = group.all_true(not failure)
        digests = group.all_gather(digest)[: self._shard.group.size]
        if whole and group.rank == 0:
            failure = _mismatch(lambda: self._write_index(digests))
        whole = group.all_true(not failure)
        if group.rank == 0:
            if whole:
                self._tidy(self._iterations()[-self._asked.keep :])
            else:
                self._warn_not_written(failure or "another worker could not write its part")
        return whole

    def _warn_not_written(self, reason: str) -> None:
        older = self._iterations()
        left = f"the last one is of iteration {older[-1]}" if older else "there is none yet"
        warnings.warn(f"no checkpoint of iteration {len(self._context.history)}: {reason}; {left}", stacklevel=4)

    def _part(self, iteration: int, rank: int, size: int) -> Path:
        return shard_path(self._index(iteration), f"{rank + 1}-of-{size}")

    def _own_part(self) -> Path:
        group = self._shard.group
        return self._part(len(self._context.history), group.rank, group.size)

    def _write_rows(self, place: Path) -> None:
        if self._group.rank == 0:
            self._lock.acquire()  # again, if a run goes on that had ended
        write_model(place, self._rows(), {})

    def _rows(self) -> dict[str, np.ndarray]:
        """This worker's neurons, by their numbers in the whole network. The names are those of format 1."""
        network, best, velocity = self._context.network, self._context.best, self._solver.velocity
        if velocity is None:
            velocity = np.empty((0, network.n_features), network.dtype)
        moved = np.flatnonzero(row_hashes(network.weights) != self._hashes)
        rolling = np.flatnonzero(velocity.any(axis=1))
        behind = best.changed_neurons()
        return {
            "moved": moved + self._first,
            "weights": network.weights[moved],
            "rolling": rolling + self._first,
            "velocity": velocity[rolling],
            "behind": behind + self._first,
            "copy": best.rows(behind),
        }

    def _write_index(self, digests: list[bytes]) -> None:
        history = self._context.history
        measured = [f.name for f in fields(Iteration) if not history or getattr(history[0], f.name) is not None]
        arrays = {name: history.column(name).astype(np.int64 if name in _COUNTS else np.float64) for name in measured}
        description = {
            "checkpoint": len(history),
            **self._solver.state(),
            "best": self._context.best.best.iteration,
            "identity": self._identity.settings,
            "notes": self._identity.notes,
            "shards": [digest.hex() for digest in digests],
        }
        description["checksum"] = _checksum(arrays, description)
        write_model(self._index(len(history)), arrays, description)

    # Reading

    def load(self) -> bool:
        """Go on from the newest checkpoint that can be read, if that is asked for; False if there is none at all."""
        if not self._asked.resume:
            return False
        found = self._iterations()
        for iteration in reversed(found):
            parts, failure, refusal = None, "", ""
            try:
                columns, description = self._read_index(iteration)
                refusal = self._other_run(iteration, description)  # before its weights, which may have another shape
                if not refusal:
                    parts = self._read_state(iteration, columns, description)
            except InputError as error:
                failure = str(error)
            _raise_on_all_workers(self._group, refusal, self._asked)
            if self._group.all_true(not failure) and parts is not None:
                self._put(*parts)
                return True
            if self._group.rank == 0:
                reason = failure or f"another worker cannot read the checkpoint of iteration {iteration}"
                warnings.warn(f"{reason}; falling back to the checkpoint before it", stacklevel=3)
        if found:
            raise InputError(
                f"none of the {len(found)} checkpoints in {self._folder} can be read; give another folder, or "
                "remove them to begin anew"
            )
        return False

    def _read_index(self, iteration: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The history's columns and the description, as they were written."""
        path = self._index(iteration)
        columns, description = read_model(path)
        if "checkpoint" not in description:
            raise InputError(f"{path} is not a checkpoint")
        try:
            expected = _checksum(columns, description)
        except RecursionError:
            expected = ""
        if description.get("checksum") != expected:
            raise InputError(f"{path} is damaged: its checksum is another")
        if not isinstance(description.get("identity"), dict) or not isinstance(description.get("notes", {}), dict):
            raise InputError(f"{path} is damaged: it is not a checkpoint's state")
        return columns, description

    def _other_run(self, iteration: int, description: dict[str, Any]) -> str:
        """Every difference between the run that wrote a checkpoint and this one, or nothing."""
        there = RunIdentity(description["identity"], description.get("notes", {}))  # earlier versions had no notes
        differences = self._identity.differences(there)
        if not differences:
            return ""
        return (
            f"{self._index(iteration)} is of another run, which differs in {', '.join(differences)}; resume with the "
            "same data and settings, or give another folder"
        )

    def _read_state(
        self, iteration: int, columns: dict[str, np.ndarray], description: dict[str, Any]
    ) -> tuple[dict[str, Any], History, list[dict[str, np.ndarray]]]:
        """The description, the history, and the rows of the neurons that this worker has."""
        path = self._index(iteration)
        try:
            history = _history(columns, iteration)
            best, digests = (description[name] for name in ("best", "shards"))
            self._solver.check_state(description, iteration)
            sound = (
                type(best) is int
                and 0 <= best < len(history)
                and isinstance(digests, list)
                and 0 < len(digests) <= self._width
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} is damaged: it is not a checkpoint's state ({error})") from None
        if not sound:
            raise InputError(f"{path} is damaged: it is not a checkpoint's state")
        shards = []
        last = self._first + self._context.network.width
        for rank, digest in enumerate(digests):
            lo, hi = self._width * rank // len(digests), self._width * (rank + 1) // len(digests)
            if lo < last and hi > self._first:
                shards.append(self._read_shard(self._part(iteration, rank, len(digests)), digest, lo, hi))
        return description, history, shards

    def _read_shard(self, path: Path, digest: Any, lo: int, hi: int) -> dict[str, np.ndarray]:
        network = self._context.network
        arrays, _ = read_model(path)
        if file_digest(path).hex() != digest:
            raise InputError(f"{path} is damaged: its checksum is another")
        for numbers, rows in (("moved", "weights"), ("rolling", "velocity"), ("behind", "copy")):
            ids, values = arrays.get(numbers), arrays.get(rows)
            if (
                ids is None
                or values is None
                or ids.dtype != np.int64
                or ids.ndim != 1
                or (np.diff(ids) <= 0).any()
                or (len(ids) and not (lo <= ids[0] and ids[-1] < hi))
                or values.dtype != network.dtype
                or values.shape != (len(ids), network.n_features)
                or not np.isfinite(values).all()
            ):
                raise InputError(f"{path} is damaged: {rows} are not those of neurons {lo} to {hi - 1}")
        return arrays

    def _put(self, description: dict[str, Any], history: History, shards: list[dict[str, np.ndarray]]) -> None:
        """Make the state that of a checkpoint which was read whole."""
        network, history_here = self._context.network, self._context.history
        history_here[:] = history
        velocity = np.zeros_like(network.weights) if any(len(arrays["rolling"]) for arrays in shards) else None
        for arrays in shards:
            here, rows = self._own(arrays, "moved", "weights")
            network.weights[here] = rows
            if velocity is not None:
                here, rows = self._own(arrays, "rolling", "velocity")
                velocity[here] = rows
        behind = [self._own(arrays, "behind", "copy") for arrays in shards]
        self._context.best.resume(
            history[description["best"]],
            np.concatenate([here for here, _ in behind]),
            np.concatenate([rows for _, rows in behind]),
        )
        self._solver.resume(self._context, description, velocity)

    def _own(self, arrays: dict[str, np.ndarray], numbers: str, rows: str) -> tuple[np.ndarray, np.ndarray]:
        """Those of a shard's rows that belong to this worker, by their places here."""
        here = arrays[numbers] - self._first
        mine = (here >= 0) & (here < self._context.network.width)
        return here[mine], arrays[rows][mine]


def _mismatch(attempt: Callable[[], None]) -> str:
    """Why an attempt failed, or nothing: a worker may not leave the others waiting."""
    try:
        attempt()
    except InputError as error:
        return str(error)
    return ""


def _raise_on_all_workers(group: ProcessGroup, refusal: str, asked: Checkpoints) -> None:
    """What one worker refuses, if anything, is refused on all of them."""
    if not group.all_true(not refusal):
        raise InputError(refusal or f"another worker refuses the checkpoint folder {asked.folder}")


def _history(columns: dict[str, np.ndarray], iteration: int) -> History:
    """History out of a file: as many records as iterations, numbered from 0."""
    needed = {f.name for f in fields(Iteration)}
    if set(columns) | set(_OPTIONAL) != needed:
        raise ValueError("its history lacks columns")
    for name, column in columns.items():
        if column.shape != (iteration,) or column.dtype != (np.int64 if name in _COUNTS else np.float64):
            raise ValueError(f"its history has no {iteration} entries of {name}")
    if not np.array_equal(columns["iteration"], np.arange(iteration)):
        raise ValueError("its history is not in order")
    lists = {name: column.tolist() for name, column in columns.items()}
    lists |= {name: [None] * iteration for name in _OPTIONAL if name not in columns}
    return History(Iteration(**{name: lists[name][k] for name in needed}) for k in range(iteration))


def _checksum(arrays: Mapping[str, np.ndarray], description: Mapping[str, Any]) -> str:
    """Of everything in the file that joins a checkpoint, its own checksum and the format's version apart."""
    known = {name: value for name, value in description.items() if name not in ("checksum", "version")}
    total = hashlib.blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=16)
    for name in sorted(arrays):
        total.update(name.encode() + fingerprint(arrays[name]).encode())
    return total.hexdigest()
