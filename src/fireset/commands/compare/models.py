"""Compare fireset with other models on the same training and test rows, within a time budget.

A model that would exceed its share of the budget is fitted on fewer rows; a fit that takes longer than expected is
stopped. While time remains, the table is split again, for all models.
"""

import threading
from collections.abc import Callable

import numpy as np

from fireset._util.text import duration
from fireset.commands.compare.budget import Budget
from fireset.commands.compare.model_contenders import MODELS, FitFailed, FitStopped, ModelWorker
from fireset.commands.compare.result import ModelComparison, ModelResult
from fireset.commands.compare.verdict import model_verdict
from fireset.tables.problem import TableProblem

_HOLDOUT = 0.2
_MAX_SPLITS = 5
_FIRST_ROWS = 500  # of a large table, to measure how long a fit takes
_MAX_ROW_FACTOR, _MIN_ROW_FACTOR = 4, 1.5  # rows of the next fit, relative to the last one
_SAFETY_FACTOR = 0.8  # of the remaining time that the next fit may be expected to take
_SPLIT_SAFETY_FACTOR = 1.2  # times the expected time of a split that must remain

ShowStage = Callable[[str], None]


def compare_models(
    table: TableProblem,
    budget: Budget,
    *,
    seed: int = 0,
    interrupted: threading.Event,
    show_stage: ShowStage = lambda _: None,
) -> ModelComparison:
    """Fit and score all models; when ``interrupted`` is set, the results so far are returned."""
    train_rows, test_rows = split = table.hold_out(_HOLDOUT, seed)
    found = ModelComparison(
        [ModelResult(name) for name in MODELS],
        task=table.task,
        train_rows=len(train_rows),
        test_rows=len(test_rows),
    )
    with ModelWorker(table.task, table.X, table.y, interrupted) as worker:
        show_stage("compiling what fireset needs")
        compiled = _compile_fireset(found, worker, budget, interrupted)
        models = [model for model in found.results if compiled or model.name != "fireset"]

        def fit_in_shares(models: list[ModelResult]) -> None:
            """Give each model an equal share of the remaining time; later models get what earlier ones leave."""
            for k, model in enumerate(models):
                if interrupted.is_set():
                    return
                _fit_first_split(model, worker, split, seed, budget.remaining() / (len(models) - k), show_stage)

        fit_in_shares(models)
        fit_in_shares([each for each in models if each.stopped or (each.fits and each.fits[0].rows < len(train_rows))])
        if not interrupted.is_set():
            _fit_more_splits(found, table, worker, budget, seed, show_stage)
    found.interrupted = interrupted.is_set()
    for model in found.results:
        if not model.fits and model.note is None:
            model.note = "interrupted before it was fitted"
    found.verdict = model_verdict(found.results, found.task)
    return found


def _compile_fireset(found: ModelComparison, worker: ModelWorker, budget: Budget, interrupted: threading.Event) -> bool:
    """Compile fireset's kernels in at most half of the remaining time; return whether that succeeded."""
    fireset = next(model for model in found.results if model.name == "fireset")
    try:
        worker.compile_fireset(0.5 * budget.remaining())
    except FitStopped:
        if not interrupted.is_set():
            fireset.note = (
                f"not started: half of the budget of {duration(budget.seconds)} went by while it was being "
                "compiled, which is done once on a machine; run 'fireset warmup', or give a larger --budget"
            )
        return False
    except FitFailed as failure:
        fireset.note = str(failure)
        return False
    return True


def _fit_first_split(
    model: ModelResult,
    worker: ModelWorker,
    split: tuple[np.ndarray, np.ndarray],
    seed: int,
    seconds: float,
    show_stage: ShowStage,
) -> None:
    """Fit on more and more rows of the first split, until the next fit would not end within ``seconds``.

    Fits on fewer rows cost a third of the last one, and leave a score if the last one has to be stopped. A second call
    continues with the row count at which the first one ended.
    """
    train_rows, test_rows = split
    n, budget = len(train_rows), Budget(seconds)
    rows = n if n <= 2 * _FIRST_ROWS else _FIRST_ROWS
    if model.fits:
        rows = _next_row_count(model, n, budget.remaining())
    try:
        while rows is not None:
            show_stage(f"{model.label}, split 1" + (f", {rows:,} of {n:,} rows" if rows < n else ""))
            model.fits = [worker.fit(model.name, train_rows[:rows], test_rows, seed, budget.remaining())]
            rows = _next_row_count(model, n, budget.remaining())
    except FitFailed as failure:
        model.fits, model.note = [], str(failure)
        return
    except FitStopped:
        if not model.fits:
            model.stopped = not worker.interrupted
            if model.stopped:
                model.note = f"stopped: its share of the budget, {duration(seconds)}, was over"
            return
    done = model.fits[0]
    model.note = None
    if done.rows < n:
        expected = done.seconds * (n / done.rows) ** MODELS[model.name].cost_exponent
        model.note = f"learned from {done.rows:,} of {n:,} rows: all of them would take about {duration(expected)}"


def _next_row_count(model: ModelResult, n: int, seconds: float) -> int | None:
    """Return the number of rows of the next fit so that it is expected to end within ``seconds``; None for no fit."""
    last, exponent = model.fits[-1], MODELS[model.name].cost_exponent
    most = last.rows * (_SAFETY_FACTOR * seconds / last.seconds) ** (1 / exponent)
    rows = int(min(n, _MAX_ROW_FACTOR * last.rows, most))
    return rows if rows >= min(n, _MIN_ROW_FACTOR * last.rows) and rows > last.rows else None


def _fit_more_splits(
    found: ModelComparison,
    table: TableProblem,
    worker: ModelWorker,
    budget: Budget,
    seed: int,
    show_stage: ShowStage,
) -> None:
    """Fit further splits. A split counts only if all models are fitted, since scores are compared split by split."""
    models = [model for model in found.results if model.fits]
    for split in range(1, _MAX_SPLITS):
        needed = sum(model.fits[-1].seconds for model in models)
        if _SPLIT_SAFETY_FACTOR * needed > budget.remaining():
            found.notes.append(
                f"{split} of {_MAX_SPLITS} splits: the next one would take about {duration(needed)}, and "
                f"{duration(budget.remaining())} of the budget of {duration(budget.seconds)} were left"
            )
            return
        split_seed = (seed + split) % 2**32
        train_rows, test_rows = table.hold_out(_HOLDOUT, split_seed)
        fits = []
        for k, model in enumerate(models):
            later = sum(other.fits[-1].seconds for other in models[k:])
            budget.set_expected(later + (_MAX_SPLITS - 1 - split) * needed)
            show_stage(f"{model.label}, split {split + 1} of {_MAX_SPLITS}")
            rows = train_rows[: model.fits[0].rows]
            try:
                fits.append(worker.fit(model.name, rows, test_rows, split_seed, budget.remaining()))
            except (FitStopped, FitFailed) as end:
                if not worker.interrupted:
                    why = "took longer than the one before" if isinstance(end, FitStopped) else f"failed ({end})"
                    found.notes.append(f"split {split + 1} is left out: {model.label} {why}")
                return
        for model, fit in zip(models, fits, strict=True):
            model.fits.append(fit)
