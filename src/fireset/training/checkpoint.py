"""Checkpoints: writing the state of a run, and resuming from it with the same bits.

A checkpoint contains the weights and output weights that moved since training began, the state of the solver for each
neuron, the best weights where they differ, the rest of the solver's state, the history, and fingerprints of data and
settings. Weights that never moved are drawn again; indexes and candidate lists are built again. A run may be resumed by
another number of workers. The files are described in ``checkpoint_files.py``.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.checks import whole_number
from fireset._util.errors import InputError
from fireset._util.files import file_digest, write_model
from fireset._util.folder_lock import FolderLock
from fireset.distributed.process_group import ProcessGroup
from fireset.engines.registry import ENGINES
from fireset.training.checkpoint_files import (
    OUTPUT_ARRAYS,
    WEIGHT_ARRAYS,
    CheckpointFolder,
    read_history,
    read_index,
    read_shard,
    write_index,
)
from fireset.training.history import History
from fireset.training.pass_state import PassState
from fireset.training.run import Run
from fireset.training.run_identity import INITIAL_WEIGHTS, RunIdentity, combined_hash, row_hashes


@dataclass(frozen=True)
class Checkpoints:
    """When and where ``train`` writes checkpoints.

    Parameters
    ----------
    folder : path
        Created if necessary. On several machines, a folder that all of them share.
    every : int
        Iterations between two checkpoints. After each, the engine is started again, as in a resumed run, so that both
        runs take the same steps bit for bit.
    keep : int
        Number of checkpoints to keep.
    resume : bool
        Resume from the newest readable checkpoint, if there is one.
    options : mapping, optional
        Options of the user, such as a table and dropped columns. They are stored to explain why a checkpoint of another
        run is refused, and have no other effect.
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
        """Return the settings that must be equal on all workers."""
        return {"folder": str(self.folder), "every": self.every, "keep": self.keep, "resume": self.resume}

    def check_free(self, group: ProcessGroup) -> None:
        """Raise InputError on all workers if another run uses the folder, before long preparations."""
        free = FolderLock(Path(self.folder)).check_free
        _raise_on_all_workers(group, _error_message(free) if group.rank == 0 else "", self)

    def engine_to_resume(self, group: ProcessGroup, solver_settings: Mapping[str, Any]) -> str | None:
        """Return the engine of the newest readable checkpoint; None without one by a solver with these settings.

        A resumed run with ``engine="auto"`` continues with it, although a larger ``max_iter`` may favour another.
        """
        name = self._stored_engine(solver_settings) if self.resume and group.rank == 0 else ""
        known = sorted(ENGINES)
        number = group.all_reduce_max(known.index(name) + 1 if name in known else 0)
        return known[number - 1] if number else None

    def _stored_engine(self, solver_settings: Mapping[str, Any]) -> str:
        folder = CheckpointFolder(Path(self.folder))
        for iteration in reversed(folder.iterations() if folder.path.is_dir() else []):
            try:
                stored = read_index(folder.index(iteration))[1]["identity"]
            except InputError:
                continue  # ``RunCheckpoints.load`` warns of it
            same_solver = all(stored.get(setting) == value for setting, value in solver_settings.items())
            return str(stored.get("engine")) if same_solver else ""
        return ""


class RunCheckpoints:
    """The checkpoints of one run. Must be constructed while the network has its initial weights."""

    def __init__(self, requested: Checkpoints, run: Run, settings: Mapping[str, Any]):
        self._requested, self._run = requested, run
        self._group = group = run.group
        self._initial_hashes = row_hashes(run.network.weights)
        self._initial_output_hashes = row_hashes(run.network.output_weights)
        rows, inputs = run.problem.n_rows, run.problem.X.shape[1]
        neurons = np.arange(run.shard.first, run.shard.first + run.network.width)
        initial_weights = combined_hash(self._initial_hashes, neurons, run.shard.group)
        self._identity = RunIdentity(
            {**settings, INITIAL_WEIGHTS: initial_weights},
            {name: str(value) for name, value in {"rows": rows, "inputs": inputs, **requested.options}.items()},
        )
        self._folder = CheckpointFolder(Path(requested.folder))
        with self.released_on_error():
            # All workers wait until the first has deleted unfinished files.
            failure = _error_message(lambda: self._folder.prepare(resume=requested.resume)) if group.rank == 0 else ""
            _raise_on_all_workers(group, failure, requested)

    def pass_state(self) -> PassState | None:
        """Return where the solver stores unfinished sums over the rows; None with several workers."""
        return PassState(self._folder.path, self._identity.settings) if self._group.size == 1 else None

    def release(self) -> None:
        """Let other runs use the folder."""
        self._folder.release()

    @contextmanager
    def released_on_error(self) -> Iterator[None]:
        """Release the folder if the block raises."""
        try:
            yield
        except BaseException:
            self.release()
            raise

    def due(self, iteration: int) -> bool:
        return iteration > 0 and iteration % self._requested.every == 0

    # Writing

    def save(self) -> bool:
        """Write a checkpoint of the current state. If that fails, warn and keep the older ones."""
        group, shard, iteration = self._group, self._run.shard, len(self._run.history)
        own, writes = self._folder.shard(iteration, shard.group.rank, shard.group.size), shard.grid.writes
        failure = _error_message(lambda: self._write_shard(own)) if writes else ""
        digest = file_digest(own) if writes and not failure else bytes(16)
        complete = group.all_true(not failure)
        digests = group.all_gather(digest)[: shard.group.size]
        if complete and group.rank == 0:
            failure = _error_message(lambda: self._write_index(digests))
        complete = group.all_true(not failure)
        if group.rank == 0:
            iterations = self._folder.iterations()
            if complete:
                self._folder.keep_only(iterations[-self._requested.keep :])
            else:
                reason = failure or "another worker could not write its part"
                left = f"the last one is of iteration {iterations[-1]}" if iterations else "there is none yet"
                warnings.warn(f"no checkpoint of iteration {iteration}: {reason}; {left}", stacklevel=3)
        return complete

    def _write_shard(self, path: Path) -> None:
        if self._group.rank == 0:
            self._folder.lock()  # it was released if the run had ended and continues
        network, solver, best = self._run.network, self._run.solver, self._run.best
        parts = (
            (WEIGHT_ARRAYS, network.weights, self._initial_hashes, solver.neuron_state, best.difference()),
            (
                OUTPUT_ARRAYS,
                network.output_weights,
                self._initial_output_hashes,
                solver.output_state,
                best.output_difference(),
            ),
        )
        arrays: dict[str, np.ndarray] = {}
        for names, rows, hashes, state, best_rows in parts:
            moved = np.flatnonzero(row_hashes(rows) != hashes)
            state = np.empty((0, rows.shape[1]), rows.dtype) if state is None else state
            with_state = np.flatnonzero(state.any(axis=1))
            found = (moved, rows[moved]), (with_state, state[with_state]), best_rows
            for (numbers, values), (own, own_rows) in zip(names.items(), found, strict=True):
                arrays |= {numbers: own + self._run.shard.first, values: own_rows}
        write_model(path, arrays, {})

    def _write_index(self, digests: list[bytes]) -> None:
        history = self._run.history
        description = {
            "checkpoint": len(history),
            **self._run.solver.state(),
            "best": self._run.best.best.iteration,
            "identity": self._identity.settings,
            "notes": self._identity.notes,
            "shards": [digest.hex() for digest in digests],
        }
        write_index(self._folder.index(len(history)), history, description)

    # Reading

    def load(self) -> bool:
        """Resume from the newest readable checkpoint; return False if there is none or ``resume`` is False."""
        if not self._requested.resume:
            return False
        found = self._folder.iterations()
        for iteration in reversed(found):
            parts, failure, refusal = None, "", ""
            try:
                columns, description = read_index(self._folder.index(iteration))
                refusal = self._identity_mismatch(iteration, description)  # before weights of another shape are read
                if not refusal:
                    parts = self._read_state(iteration, columns, description)
            except InputError as error:
                failure = str(error)
            _raise_on_all_workers(self._group, refusal, self._requested)
            if self._group.all_true(not failure) and parts is not None:
                self._set_state(*parts)
                return True
            if self._group.rank == 0:
                reason = failure or f"another worker cannot read the checkpoint of iteration {iteration}"
                warnings.warn(f"{reason}; falling back to the checkpoint before it", stacklevel=3)
        if found:
            raise InputError(
                f"none of the {len(found)} checkpoints in {self._folder.path} can be read; give another folder, or "
                "remove them to start again"
            )
        return False

    def _identity_mismatch(self, iteration: int, description: dict[str, Any]) -> str:
        """Return how the run of a checkpoint differs from this one; empty if it does not."""
        differences = self._identity.differences(RunIdentity(description["identity"], description["notes"]))
        if not differences:
            return ""
        return (
            f"{self._folder.index(iteration)} is of another run, which differs in {', '.join(differences)}; resume "
            "with the same data and settings, or give another folder"
        )

    def _read_state(
        self, iteration: int, columns: dict[str, np.ndarray], description: dict[str, Any]
    ) -> tuple[dict[str, Any], History, list[dict[str, np.ndarray]]]:
        """Return the description, the history, and the shards that contain neurons of this worker."""
        path, network, width = self._folder.index(iteration), self._run.network, self._run.shard.width
        try:
            history = read_history(columns, iteration)
            best, digests = (description[name] for name in ("best", "shards"))
            self._run.solver.check_state(description, iteration)
            if type(best) is not int or not 0 <= best < len(history):
                raise ValueError("`best` is not an iteration")
            if not isinstance(digests, list) or not 0 < len(digests) <= width:
                raise ValueError("`shards` is not a list of digests")
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} is damaged: it does not hold the state of a run ({error})") from None
        shards = []
        first, size = self._run.shard.first, len(digests)
        for rank, digest in enumerate(digests):
            lo, hi = width * rank // size, width * (rank + 1) // size
            if lo < first + network.width and hi > first:
                shards.append(read_shard(self._folder.shard(iteration, rank, size), digest, lo, hi, network))
        return description, history, shards

    def _set_state(self, description: dict[str, Any], history: History, shards: list[dict[str, np.ndarray]]) -> None:
        """Set the state of the run to that of a checkpoint."""
        run, network = self._run, self._run.network
        run.history[:] = history
        states, best = [], []
        for names, target in ((WEIGHT_ARRAYS, network.weights), (OUTPUT_ARRAYS, network.output_weights)):
            moved, with_state, differ = (self._own_rows(shards, *pair) for pair in names.items())
            target[moved[0]] = moved[1]
            states.append(None)
            if any(len(arrays[list(names)[1]]) for arrays in shards):
                states[-1] = np.zeros_like(target)
                states[-1][with_state[0]] = with_state[1]
            best.append(differ)
        run.best.resume(history[description["best"]], *best)
        run.solver.resume(run, description, states[0])
        run.solver.resume_outputs(states[1])

    def _own_rows(self, shards: list[dict[str, np.ndarray]], numbers: str, rows: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the local indices of this worker's neurons in all shards, and their rows."""
        here = np.concatenate([arrays[numbers] for arrays in shards]) - self._run.shard.first
        mine = (here >= 0) & (here < self._run.network.width)
        return here[mine], np.concatenate([arrays[rows] for arrays in shards])[mine]


def _error_message(attempt: Callable[[], None]) -> str:
    """Return the message of an InputError, or "": a worker that raises would leave the others waiting."""
    try:
        attempt()
    except InputError as error:
        return str(error)
    return ""


def _raise_on_all_workers(group: ProcessGroup, failure: str, requested: Checkpoints) -> None:
    """Raise InputError on all workers if one of them has failed."""
    if not group.all_true(not failure):
        raise InputError(failure or f"another worker refuses the checkpoint folder {requested.folder}")
