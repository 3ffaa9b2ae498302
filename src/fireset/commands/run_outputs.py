"""What a training run leaves besides its model: a page, a history file, TensorBoard events."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.files import atomic_path, check_writable
from fireset.commands.held_out_report import HeldOut, held_out_sections
from fireset.commands.learning_curve import learning_curve
from fireset.commands.overwrite_check import check_outputs_differ_from_inputs
from fireset.commands.report_parts import active_section, fire_maps, part_of, shown_neurons
from fireset.commands.run_in_words import run_in_words
from fireset.commands.run_report import columns_section, facts_section, firing_section, learning_section, work_section
from fireset.engines import Engine
from fireset.estimators import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.network import ShiftedReLUNetwork
from fireset.reporting import check_report, write_page
from fireset.reporting.figures import Section
from fireset.tables.problem import TableProblem
from fireset.training.progress import Progress
from fireset.training.result import TrainingResult
from fireset.training.tensorboard import TensorBoardLog

_RECALL_ROWS = 200


class Records:
    """Checks all places before training, listens in on it through ``callbacks``, and writes afterwards.

    What cannot be written then keeps nothing else from being written: it is told under "not_written".
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
        self._before: ShiftedReLUNetwork | None = None
        self._engine: Engine | None = None
        self.callbacks: list[Any] = [self._see]

    def __enter__(self) -> "Records":
        if self._tensorboard is not None:
            self._log = self._stack.enter_context(TensorBoardLog(self._tensorboard))
            self.callbacks.append(self._log)
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def _see(self, progress: Progress) -> None:
        self._engine = progress.engine
        if self._before is None:
            self._before = part_of(progress.network, shown_neurons(progress.network.width))

    def written(
        self,
        estimator: ShiftedReLUClassifier | ShiftedReLURegressor,
        problem: TableProblem,
        rows: np.ndarray,
        targets: np.ndarray,
        held: HeldOut | None,
        facts: dict[str, Any],
        more: Sequence[Section] = (),
    ) -> dict[str, Any]:
        """Write the requested outputs, with ``more`` at the end of the page; return what to show of them.

        ``rows`` are the training rows on the sphere, ``targets`` their targets or class codes, ``held`` the hold-out
        rows with their scores.
        """
        shown: dict[str, Any] = {}
        engine = self._engine
        if engine is not None and not engine.exact and not engine.simulated:  # say what it missed
            engine.forward()
            shown["recall"] = engine.recall(np.arange(min(_RECALL_ROWS, len(rows))))
        missing: list[str] = []
        told = {**facts, **shown}
        for name, place, write in (
            ("history", self._history, lambda: self._write_history(estimator.result_)),
            ("tensorboard", self._tensorboard, self._check_log),
            ("report", self._report, lambda: self._write_report(estimator, problem, rows, targets, held, told, more)),
        ):
            if place is None:
                continue
            try:
                write()
            except InputError as error:
                missing.append(f"--{name}: {error}")
            else:
                shown[name] = str(place)
        return {**shown, "not_written": missing} if missing else shown

    def _check_log(self) -> None:
        """Written during training, all of it or not."""
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
        held: HeldOut | None,
        facts: dict[str, Any],
        more: Sequence[Section],
    ) -> None:
        assert self._before is not None
        assert self._report is not None
        result, network = estimator.result_, estimator.network_
        after = part_of(network, shown_neurons(network.width))
        maps = fire_maps(self._before, after, network.check_rows(rows))
        active = active_section(network, [(result.engine, result.history.column("active_fraction").tolist())])
        curve = learning_curve(estimator, rows, targets)
        sections = [
            run_in_words(facts, held, curve),
            *held_out_sections(held, problem.task),
            columns_section(facts["importances"]),
            learning_section(result, curve, "accuracy" if problem.task == "classification" else "R²"),
            firing_section(active, maps, result),
            work_section(result, len(rows) * network.width),
            *more,
            facts_section(facts),
        ]
        settings = {"command": self._command, "file": self._file.name, "target": self._target, **facts["settings"]}
        write_page(self._report, f"Training on {self._file.name}", sections, settings=settings)
