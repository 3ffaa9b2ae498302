"""Files that commands write: checks before the work, and what happens if a file cannot be written after it."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.errors import InputError, OutputError
from fireset._util.files import atomic_path, check_writable
from fireset._util.shard_files import own_shards
from fireset.commands.held_out import HeldOut, held_out_sections
from fireset.commands.run_report import (
    active_pairs_section,
    active_section,
    columns_section,
    facts_section,
    fire_maps,
    learning_curve,
    learning_section,
    shown_neurons,
    work_section,
)
from fireset.commands.run_summary import summary_section
from fireset.distributed.agreement import all_gather_texts
from fireset.distributed.process_group import ProcessGroup, current_group
from fireset.engines import Engine
from fireset.estimators import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.network import ShiftedReLUNetwork
from fireset.reporting import check_report, write_page
from fireset.reporting.figures import Section
from fireset.tables.problem import TableProblem
from fireset.training.progress import Progress
from fireset.training.result import TrainingResult
from fireset.training.tensorboard import TensorBoardLog

_MAX_RECALL_ROWS = 200
_MAX_RESCUE_NAME_BYTES = 80  # longer names may be the reason why the file cannot be written


def check_outputs_differ_from_inputs(out: Path | None, *inputs: Path, flag: str = "--out") -> None:
    """Raise InputError if the output ``out`` is one of the input files, or in an input folder."""
    for file in inputs:
        if out is None:
            continue
        if os.path.realpath(out) == os.path.realpath(file):
            raise InputError(f"{flag} {out} would overwrite the input {file}; choose another name")
        if os.path.isdir(file) and os.path.dirname(os.path.realpath(out)) == os.path.realpath(file):
            raise InputError(f"{flag} {out} is in {file}, whose files are parts of the table; give another folder")


def check_outputs_differ(files: Mapping[str, Path | None], folders: Mapping[str, Path | None]) -> None:
    """Raise InputError if one output would replace another, after links are resolved.

    Parameters
    ----------
    files, folders : mapping of options to paths
        Options that write a file, and options that write into a folder. A folder may contain such files, and several
        options may share a folder.
    """
    given = {option: path for option, path in {**files, **folders}.items() if path is not None}
    real = {option: Path(os.path.realpath(path)) for option, path in given.items()}
    for file, other in permutations(given, 2):
        if file not in files:
            continue
        if real[other] == real[file]:
            conflict = f"{file} {given[file]} and {other} {given[other]} are one place"
        elif real[file] in real[other].parents:
            conflict = f"{other} {given[other]} is inside {file} {given[file]}, which is to be a file"
        else:
            continue
        raise InputError(f"{conflict}; give each a place of its own")


def save_or_rescue(
    save: Callable[[Path], None], out: Path, group: ProcessGroup | None = None
) -> tuple[Path, str | None]:
    """Save a model to ``out``; if that fails, to the working, the temporary or the home folder.

    Returns the path and, if it is not ``out``, the reason. Existing files are never replaced there. With several
    workers ``save`` must fail on all of them if it fails on one; all use the paths of the first worker.
    """
    group = group or current_group()
    try:
        save(out)
    except InputError as error:
        problem = str(error)
    else:
        return out, None
    for own_path in _rescue_paths(out):
        path = own_path
        if group.size > 1:
            path = Path(json.loads(all_gather_texts(group, json.dumps(str(own_path.absolute())))[0]))
        try:
            save(path)
        except InputError:
            continue
        if group.size > 1 and not group.all_true(group.rank > 0 or all(file.exists() for file in own_shards(path))):
            problem += (
                "; workers on other hosts wrote their shards to the same folder there: copy them beside the model"
            )
        return path, problem
    raise OutputError(f"the model was trained and could be written nowhere: {problem}; make room and train again")


def _rescue_paths(out: Path) -> Iterator[Path]:
    name = out.name if len(os.fsencode(out.name)) <= _MAX_RESCUE_NAME_BYTES else "fireset-model.safetensors"
    for folder in (Path(), Path(tempfile.gettempdir()), Path.home()):
        path = folder / name
        number = 2
        while path.exists() or path.is_symlink():
            path = folder / f"{Path(name).stem}-{number}{Path(name).suffix}"
            number += 1
        yield path


def write_or_report(option: str, path: Path, write: Callable[[], None]) -> dict[str, Any]:
    """Write an output; return its path for the summary, or under "not_written" why it could not be written."""
    try:
        write()
    except InputError as error:
        return {"not_written": [f"--{option}: {error}"]}
    return {option: str(path)}


class RunOutputs:
    """Outputs of a training run besides the model: the report, the history file, TensorBoard events.

    The constructor checks all paths. ``callbacks`` record the run, and ``write`` writes the files. A file that cannot
    be written does not prevent the others; it is listed under "not_written".
    """

    def __init__(
        self,
        file: Path,
        target: str,
        *,
        report: Path | None,
        history: Path | None,
        tensorboard: Path | None,
        command: str | None = None,
    ):
        self._file, self._target, self._command = file, target, command
        self._report, self._history, self._tensorboard = report, history, tensorboard
        check_outputs_differ_from_inputs(report, file, flag="--report")
        check_outputs_differ_from_inputs(history, file, flag="--history")
        if report is not None:
            check_report(report)
        if history is not None:
            if history.suffix not in (".csv", ".json"):
                raise InputError(f"--history {history} must end in .csv or .json")
            check_writable(history)
        self._stack = ExitStack()
        self._log: TensorBoardLog | None = None
        self._initial_part: ShiftedReLUNetwork | None = None  # of the neurons that the heat maps show
        self._engine: Engine | None = None
        self.callbacks: list[Any] = [self._record]

    def __enter__(self) -> "RunOutputs":
        if self._tensorboard is not None:
            self._log = self._stack.enter_context(TensorBoardLog(self._tensorboard))
            self.callbacks.append(self._log)
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def _record(self, progress: Progress) -> None:
        self._engine = progress.engine
        if self._initial_part is None:
            self._initial_part = progress.network.part(shown_neurons(progress.network.width))

    def write(
        self,
        estimator: ShiftedReLUClassifier | ShiftedReLURegressor,
        problem: TableProblem,
        rows: np.ndarray,
        targets: np.ndarray,
        held_out: HeldOut | None,
        facts: dict[str, Any],
        sections: Sequence[Section] = (),
    ) -> dict[str, Any]:
        """Write all outputs, with ``sections`` at the end of the report; return what to add to the summary.

        ``rows`` are the training rows on the sphere, ``targets`` their targets or class codes.
        """
        shown: dict[str, Any] = {}
        engine = self._engine
        if engine is not None and not engine.exact and not engine.simulated:
            engine.forward()
            shown["recall"] = engine.recall(np.arange(min(_MAX_RECALL_ROWS, len(rows))))
        facts = {**facts, **shown}
        not_written: list[str] = []
        for name, path, write in (
            ("history", self._history, lambda: self._write_history(estimator.result_)),
            ("tensorboard", self._tensorboard, self._check_log),
            (
                "report",
                self._report,
                lambda: self._write_report(estimator, problem, rows, targets, held_out, facts, sections),
            ),
        ):
            if path is not None:
                written = write_or_report(name, path, write)
                not_written += written.pop("not_written", [])
                shown |= written
        return {**shown, "not_written": not_written} if not_written else shown

    def _check_log(self) -> None:
        """Raise InputError if the events, which are written during training, are incomplete."""
        assert self._log is not None
        if self._log.failure:
            raise InputError(self._log.failure)

    def _write_history(self, result: TrainingResult) -> None:
        assert self._history is not None
        with atomic_path(self._history) as temporary:
            text = result.history.to_csv() if self._history.suffix == ".csv" else result.history.to_json()
            temporary.write_text(text, encoding="utf-8")

    def _write_report(
        self,
        estimator: ShiftedReLUClassifier | ShiftedReLURegressor,
        problem: TableProblem,
        rows: np.ndarray,
        targets: np.ndarray,
        held_out: HeldOut | None,
        facts: dict[str, Any],
        more_sections: Sequence[Section],
    ) -> None:
        assert self._initial_part is not None
        assert self._report is not None
        result, network = estimator.result_, estimator.network_
        final_part = network.part(shown_neurons(network.width))
        maps = fire_maps(self._initial_part, final_part, network.check_rows(rows))
        active = active_section(network, [(result.engine, result.history.column("active_fraction").tolist())])
        curve = learning_curve(estimator, rows, targets)
        sections = [
            summary_section(facts, held_out, curve),
            *held_out_sections(held_out, problem.task),
            columns_section(facts["importances"]),
            learning_section(result, curve, "accuracy" if problem.task == "classification" else "R²"),
            active_pairs_section(active, maps, result),
            work_section(result, len(rows) * network.width),
            *more_sections,
            facts_section(facts),
        ]
        settings = {"command": self._command, "file": self._file.name, "target": self._target, **facts["settings"]}
        write_page(self._report, f"Training on {self._file.name}", sections, settings=settings)
