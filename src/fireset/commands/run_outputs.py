"""What a training run leaves besides its model: a page, a history file, TensorBoard events."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.files import atomic_path, check_writable
from fireset.commands.overwrite_check import spare_inputs
from fireset.commands.report_parts import fire_maps, fired_section, part_of, shown_neurons
from fireset.engines import Engine
from fireset.estimators import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.network import ShiftedReLUNetwork
from fireset.reporting import check_report, write_page
from fireset.reporting.figures import Figure, Section, Series, Table
from fireset.training.progress import Progress
from fireset.training.result import TrainingResult
from fireset.training.tensorboard import TensorBoardLog

_SHOWN_COLUMNS = 20
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
        spare_inputs(report, file, flag="--report")
        spare_inputs(history, file, flag="--history")
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
        X: np.ndarray,
        training: dict[str, Any],
        more: Sequence[Section] = (),
    ) -> dict[str, Any]:
        """Write what was asked for, with ``more`` at the end of the page; returns what to show of it."""
        shown: dict[str, Any] = {}
        engine = self._engine
        if engine is not None and not engine.exact and not engine.simulated:  # say what it missed
            engine.forward()
            shown["recall"] = engine.recall(np.arange(min(_RECALL_ROWS, len(X))))
        missing: list[str] = []
        for name, place, write in (
            ("history", self._history, lambda: self._write_history(estimator.result_)),
            ("tensorboard", self._tensorboard, self._check_log),
            ("report", self._report, lambda: self._write_report(estimator, X, {**training, **shown}, more)),
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
        X: np.ndarray,
        facts: dict[str, Any],
        more: Sequence[Section],
    ) -> None:
        assert self._before is not None
        assert self._report is not None
        result, network = estimator.result_, estimator.network_
        after = part_of(network, shown_neurons(network.width))
        maps = fire_maps(self._before, after, network.check_rows(estimator.sphere_(X)))
        fired = fired_section(network, [(result.engine, result.history.column("fired_fraction").tolist())])
        sections = [
            _summary({name: value for name, value in facts.items() if name != "settings"}),
            _importances(facts.get("importances", {})),
            _losses(result),
            Section(fired.heading, fired.paragraphs, figures=[*fired.figures, *maps]),
            _work(result, len(X) * network.width),
            *more,
        ]
        settings = {"command": self._command, "file": self._file.name, "target": self._target, **facts["settings"]}
        write_page(self._report, f"Training on {self._file.name}", sections, settings=settings)


def _summary(facts: dict[str, Any]) -> Section:
    rows = [[key.replace("_", " "), _fact(key, value)] for key, value in facts.items() if key != "importances"]
    return Section("How it went", tables=[Table(["what", "value"], rows)], figures=_promised_and_kept(facts))


def _promised_and_kept(facts: dict[str, Any]) -> list[Figure]:
    """The score that leave-one-out had promised beside that on rows held out."""
    for score, name in (("accuracy", "accuracy"), ("r2", "R²")):
        found = {
            "expected before training": facts.get(f"forecast_{score}"),
            "on rows held out": facts.get(f"held_out_{score}"),
            "always the most frequent class": facts.get(f"held_out_majority_{score}"),
        }
        shown = {label: value for label, value in found.items() if isinstance(value, float)}
        if len(shown) > 1:
            said = ", ".join(f"{label} {value:.3f}" for label, value in shown.items())
            bars = Series(name, list(shown), list(shown.values()), "bars")
            return [Figure("Forecast and outcome", "", name, [bars], f"The {name}: {said}.")]
    return []


def _fact(key: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, float):
        if key.endswith(("fraction", "accuracy", "recall")):
            return f"{value:.2%}"
        return f"{value:.3f} s" if key.endswith("seconds") else f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _importances(importances: dict[str, float]) -> Section:
    """The columns that the fit depends on most."""
    most = list(importances.items())[:_SHOWN_COLUMNS]
    rows = [[name, f"{share:.1%}"] for name, share in most]
    left = (
        f" The other {len(importances) - len(most)} columns come after these." if len(importances) > len(most) else ""
    )
    return Section(
        "Columns",
        [
            "How much predictions change with each column, from the gradients of the fit; all columns add up to 100 %."
            + left
        ],
        tables=[Table(["column", "importance"], rows)],
        figures=[
            Figure(
                "Columns by importance",
                "column",
                "share",
                [Series("importance", [name for name, _ in most], [share for _, share in most], "bars")],
                f"{most[0][0]} matters most, with {most[0][1]:.1%}.",
            )
        ]
        if most
        else [],
    )


def _losses(result: TrainingResult) -> Section:
    history = result.history
    losses = {"training": history.column("loss").tolist()}
    if history[0].validation_loss is not None:
        losses["validation"] = history.column("validation_loss").tolist()
    alt = f"The loss goes from {history[0].loss:.4g} to {history[-1].loss:.4g} in {len(history) - 1} iterations."
    figures = [
        Figure(
            f"Loss against {what}", label, "loss", [Series(name, x, y) for name, y in losses.items()], alt, log_y=True
        )
        for what, label, x in (
            ("iteration", "iteration", list(range(len(history)))),
            ("time", "seconds since training began", history.column("seconds").tolist()),
        )
    ]
    return Section("Loss", figures=figures)


def _work(result: TrainingResult, pairs: int) -> Section:
    history = result.history
    looked = history.column("inner_products") / pairs
    refreshed = history.column("refreshes")
    iterations = list(range(len(history)))
    return Section(
        "Work",
        [
            f"Inner products that the engine {result.engine} computed in each iteration, beside those of a dense "
            "program, which computes all of them; and neurons whose candidates were searched for anew."
        ],
        figures=[
            Figure(
                "Inner products computed",
                "iteration",
                "share of all pairs",
                [
                    Series(result.engine, iterations, looked.tolist()),
                    Series("dense", [0, max(1, len(history) - 1)], [1.0, 1.0], "dashed"),
                ],
                f"In the mean {looked.mean():.2%} of all pairs are looked at, where a dense program looks at all.",
                log_y=True,
            ),
            Figure(
                "Neurons refreshed",
                "iteration",
                "neurons",
                [Series(result.engine, iterations, refreshed.tolist())],
                f"In the mean {refreshed.mean():,.0f} neurons are searched for anew in an iteration.",
            ),
        ],
    )
