"""``fireset compare --models``: is fireset the model for this table, or is another one better?

All models learn from the same rows and are scored on the same rows held out, within a budget of seconds. A model that
would take more than its share learns from fewer rows; one that takes longer than expected is stopped. While time is
left, the table is split anew, for all models.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.files import file_name
from fireset._util.text import duration
from fireset.commands.budget import Budget
from fireset.commands.model_contenders import MODELS, Fit
from fireset.commands.model_verdict import Scored, advice
from fireset.commands.model_worker import FailedFit, ModelWorker, Stopped
from fireset.commands.overwrite_check import check_outputs_differ_from_inputs
from fireset.commands.rescue import write_or_report
from fireset.commands.stages import StageBar
from fireset.reporting import check_report
from fireset.tables.problem import TableProblem
from fireset.training.signals import interruptible

_HOLDOUT = 0.2
_SPLITS = 5
_FIRST_ROWS = 500  # of a large table, to see how long a fit takes
_STEP_UP, _MIN_STEP_UP = 4, 1.5  # times as many rows in the next fit
_CAUTION = 0.8  # of the time left that the next fit is expected to take at most; what is expected may be wrong
SCORES = {"classification": ("accuracy", "balanced_accuracy", "log_loss"), "regression": ("r2", "rmse")}

Say = Callable[[str], None]


@dataclass
class ModelComparison:
    """All that a comparison of models found."""

    task: str
    models: list[Scored]
    train_rows: int
    test_rows: int
    splits: int = 0
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def scores(self) -> tuple[str, ...]:
        return SCORES[self.task]

    def sentence(self) -> str:
        return advice(self.models, self.task)


def compare_models_table(
    file: Path,
    target: str,
    *,
    budget: float,
    seed: int,
    report: Path | None,
    verbose: bool,
    command: str | None = None,
    **reading: Any,
) -> dict[str, Any]:
    """Read a table, fit and score the models, write the report if asked for; returns what to show."""
    clock = Budget(budget)
    if report is not None:
        check_outputs_differ_from_inputs(report, file, flag="--report")
        check_report(report)
    table = TableProblem.read(file, target, **reading)
    with interruptible() as interrupted, StageBar("comparing", shown=verbose, left=clock.expected) as bar:
        found = compare_models(table, clock, seed=seed, interrupted=interrupted, say=bar.say)
    summary: dict[str, Any] = {
        "task": found.task,
        **({} if table.choice is None else {"task_reason": str(table.choice)}),
        "rows": found.train_rows,
        "held_out_rows": found.test_rows,
        "columns": table.X.shape[1],
        "splits": found.splits,
        "budget_seconds": budget,
        "interrupted": found.interrupted,
        "models": [model.to_dict(found.scores) for model in found.models],
        "notes": found.notes,
        "verdict": found.sentence(),
    }
    if report is not None:
        from fireset.commands.compare_models_report import write_model_comparison

        settings = {
            "command": command,
            "file": file_name(file),
            "target": target,
            "seed": seed,
            "budget": budget,
            **reading,
        }
        summary |= write_or_report("report", report, lambda: write_model_comparison(report, found, settings))
    return summary


def compare_models(
    table: TableProblem,
    budget: Budget,
    *,
    seed: int = 0,
    interrupted: threading.Event,
    say: Say = lambda _: None,
) -> ModelComparison:
    """Fit and score all models; when ``interrupted`` is set, what there is until then is returned."""
    train_rows, test_rows = table.hold_out(_HOLDOUT, seed)
    found = ModelComparison(table.task, [Scored(name) for name in MODELS], len(train_rows), len(test_rows))
    with ModelWorker(table.task, table.X, table.y, interrupted) as worker:
        say("compiling what fireset needs")
        compiled = _compile(found, worker, budget, interrupted)
        entered = [model for model in found.models if compiled or model.name != "fireset"]
        split = (train_rows, test_rows)

        def fit(model: Scored, share: float) -> None:
            _first_fit(model, worker, split, seed, share, say)

        _share_out(entered, budget, interrupted, fit)
        short = [model for model in entered if model.stopped or (model.fits and model.fits[0].rows < len(train_rows))]
        _share_out(short, budget, interrupted, fit)
        if not interrupted.is_set():
            _more_splits(found, table, worker, budget, seed, interrupted, say)
    found.interrupted = interrupted.is_set()
    found.splits = max((len(model.fits) for model in found.models), default=0)
    for model in found.models:
        if not model.fits and model.note is None:
            model.note = "interrupted before it was fitted"
    return found


def _share_out(
    models: list[Scored], budget: Budget, interrupted: threading.Event, fit: Callable[[Scored, float], None]
) -> None:
    """Each its share of the time left; what one does not use, those after it have."""
    for k, model in enumerate(models):
        if interrupted.is_set():
            return
        fit(model, budget.left() / (len(models) - k))


def _compile(found: ModelComparison, worker: ModelWorker, budget: Budget, interrupted: threading.Event) -> bool:
    ours = next(model for model in found.models if model.name == "fireset")
    try:
        worker.warm_up(0.5 * budget.left())
    except Stopped:
        if not interrupted.is_set():
            ours.note = (
                f"not started: half of the budget of {duration(budget.seconds)} went by while it was being "
                "compiled, which is done once on a machine; run 'fireset warmup', or give a larger --budget"
            )
        return False
    except FailedFit as failure:
        ours.note = str(failure)
        return False
    return True


def _first_fit(
    model: Scored, worker: ModelWorker, split: tuple[np.ndarray, np.ndarray], seed: int, share: float, say: Say
) -> None:
    """The fit on the first split, within ``share`` seconds: on more and more rows, until one more would take too long.

    The fits on fewer rows cost a third of the last one, and there is a score when that one has to be stopped. A second
    call goes on where the first one ended.
    """
    train_rows, test_rows = split
    n, budget = len(train_rows), Budget(share)
    rows = n if n <= 2 * _FIRST_ROWS else _FIRST_ROWS
    if model.fits:
        rows = _more_rows(model, n, budget.left())
    try:
        while rows is not None:
            say(f"{model.label}, split 1" + (f", {rows:,} of {n:,} rows" if rows < n else ""))
            model.fits = [worker.fit(model.name, train_rows[:rows], test_rows, seed, budget.left())]
            rows = _more_rows(model, n, budget.left())
    except FailedFit as failure:
        model.fits, model.note = [], str(failure)
        return
    except Stopped:
        if not model.fits:
            model.stopped = not worker.interrupted
            if model.stopped:
                model.note = f"stopped: its share of the budget, {duration(share)}, was over"
            return
    done = model.fits[0]
    model.note = None
    if done.rows < n:
        expected = _seconds(done) * (n / done.rows) ** MODELS[model.name].growth
        model.note = f"learned from {done.rows:,} of {n:,} rows: all of them would take about {duration(expected)}"


def _more_rows(model: Scored, n: int, seconds: float) -> int | None:
    """How many rows the next fit is to have, so that it is expected to fit into the seconds; None for no more."""
    last, growth = model.fits[-1], MODELS[model.name].growth
    most = last.rows * (_CAUTION * seconds / _seconds(last)) ** (1 / growth)
    rows = int(min(n, _STEP_UP * last.rows, most))
    return rows if rows >= min(n, _MIN_STEP_UP * last.rows) and rows > last.rows else None


def _seconds(fit: Fit) -> float:
    return fit.fit_seconds + fit.predict_seconds


def _more_splits(
    found: ModelComparison,
    table: TableProblem,
    worker: ModelWorker,
    budget: Budget,
    seed: int,
    interrupted: threading.Event,
    say: Say,
) -> None:
    """Further splits, each for all models or for none: their scores are held against one another split by split."""
    ran = [model for model in found.models if model.fits]
    for split in range(1, _SPLITS):
        needed = sum(_seconds(model.fits[-1]) for model in ran)
        if 1.2 * needed > budget.left():
            found.notes.append(
                f"{split} of {_SPLITS} splits: the next one would take about {duration(needed)}, and "
                f"{duration(budget.left())} of the budget of {duration(budget.seconds)} were left"
            )
            return
        train_rows, test_rows = table.hold_out(_HOLDOUT, (seed + split) % 2**32)
        fits = []
        for k, model in enumerate(ran):
            later = sum(_seconds(other.fits[-1]) for other in ran[k:])
            budget.expect(later + (_SPLITS - 1 - split) * needed)
            say(f"{model.label}, split {split + 1} of {_SPLITS}")
            rows = train_rows[: model.fits[0].rows]
            try:
                fits.append(worker.fit(model.name, rows, test_rows, seed + split, budget.left()))
            except (Stopped, FailedFit) as end:
                if not interrupted.is_set():
                    why = "took longer than the one before" if isinstance(end, Stopped) else f"failed ({end})"
                    found.notes.append(f"split {split + 1} is left out: {model.label} {why}")
                return
        for model, fit in zip(ran, fits, strict=True):
            model.fits.append(fit)
