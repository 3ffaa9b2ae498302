"""``fireset train``: read, encode, train, score on the rows held out, save."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.files import check_writable
from fireset._util.messages import tell
from fireset.commands.certificate_report import certificate_sections
from fireset.commands.overwrite_check import keep_apart, spare_inputs
from fireset.commands.predict import score_table
from fireset.commands.run_outputs import Records
from fireset.commands.scores import scores
from fireset.distributed.process_group import current_group
from fireset.distributed.worker_grid import current_grid
from fireset.estimators import PAPER, ShiftedReLUClassifier, ShiftedReLURegressor, estimator_for
from fireset.model import Model
from fireset.tables.cells import require_column
from fireset.tables.column_notes import columns_in_words, describe_columns
from fireset.tables.problem import TableProblem
from fireset.tables.reader import read_table
from fireset.tables.unfolding import COMPRESSED
from fireset.theory import Certificate
from fireset.training.checkpoint import Checkpoints
from fireset.training.losses import Loss, Quantile, get_loss
from fireset.training.memory import check_weights
from fireset.training.stopping import StopReason
from fireset.training.time_limit import TimeLimit

if TYPE_CHECKING:
    import polars as pl


def train_table(
    file: Path,
    target: str,
    *,
    out: Path | None,
    loss: str | Loss,
    holdout: float,
    settings: dict[str, Any],
    reading: dict[str, Any] | None = None,
    eval_file: Path | None = None,
    seconds: float | None = None,
    checkpoint: Checkpoints | None = None,
    memory: str | None = None,
    certify: bool = False,
    report: Path | None = None,
    history: Path | None = None,
    tensorboard: Path | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Read, encode, train, score on the rows held out, save; returns what to show.

    ``reading`` goes to ``TableProblem.read``, ``settings`` to the estimator.
    Checks all it can before training. Ended by SIGTERM, it leaves a checkpoint and no model. With ``certify`` the run
    is held against the paper's claims; what was found is under "certificate". What besides the model could not be
    written is under "not_written". ``eval_file`` is another table to score on; after ``seconds`` training stops;
    ``command`` is what the user has typed, for the page.
    """
    if not 0 <= holdout < 1:
        raise InputError(f"holdout must be at least 0 and below 1, got {holdout}")
    out = out or Path(_stem(file) + ".safetensors")
    spare_inputs(out, file)
    keep_apart(
        {"--out": out, "--history": history, "--report": report},
        {"--tensorboard": tensorboard, "--checkpoint": Path(checkpoint.folder) if checkpoint else None},
    )
    if checkpoint is not None:
        checkpoint.check_free(current_group())
    reading = {"task": "auto", "drop": [], **(reading or {})}
    if reading["task"] == "auto" and "classification" not in get_loss(loss).tasks:
        reading["task"] = "regression"  # counts, say, which would be taken for classes
    problem = TableProblem.read(file, target, **reading)
    further = None if eval_file is None else _answered(eval_file, target)
    check_writable(out)
    _check_whole_run(certify, report, checkpoint)
    first = current_group().rank == 0  # the others leave no records
    places = {"history": history, "tensorboard": tensorboard} if first else {"history": None, "tensorboard": None}
    records = Records(file, target, report=report, command=command, **places)
    if certify:  # what is held against the paper's claims is the paper's setting, where nothing else was asked for
        settings |= {name: value for name, value in PAPER.items() if settings.get(name, "auto") == "auto"}
    estimator = estimator_for(problem.task, loss, **settings, **problem.encoding)
    if checkpoint is not None:
        options = {"target": target, **reading, "holdout": holdout, "loss": str(loss), "bias": "auto", **settings}
        checkpoint = replace(checkpoint, options={"table": file.name, **_options(options)})
    columns = describe_columns(problem.encoder, problem.features)
    kept, held = problem.hold_out(holdout, settings["random_state"])
    _check_memory(estimator, problem, memory)
    if first and settings.get("verbose"):
        tell("\n".join(columns_in_words(columns)))
    certificate = Certificate() if certify else None
    limit = None if seconds is None else TimeLimit(seconds)
    rows = problem.features[kept]
    with records:
        callbacks = [*records.callbacks, *filter(None, (certificate, limit))]
        estimator.fit(rows, problem.y[kept], callbacks=callbacks, checkpoint=checkpoint, memory=memory)
    if isinstance(estimator, ShiftedReLUClassifier):
        estimator.classes_ = np.array(problem.classes)

    summary = _summary(problem, estimator, len(kept))
    if estimator.result_.stop_reason is StopReason.TERMINATED and checkpoint:
        return {**summary, "checkpoint": str(checkpoint.folder)}
    summary |= _held_out_scores(problem, estimator, held)
    training = {**summary, "file": file.name, "dropped": reading["drop"], "settings": {"loss": str(loss), **settings}}
    model = Model(problem.task, target, estimator, {**training, "table_columns": columns})
    model.save(out)
    summary |= {} if further is None else _evaluated(model, further)
    row_numbers = kept[estimator.training_rows_] + 1  # in the table, counted from 1 as all messages about it count
    certified = {"certificate": certificate.report(row_numbers).to_dict()} if certificate else {}
    sections = certificate_sections(certified["certificate"]) if certified else []
    written = records.written(estimator, problem, (kept, held), {**training, "model": out.name}, sections)
    return {**summary, **written, "model": str(out), **certified}


def _answered(file: Path, target: str) -> "pl.DataFrame":
    """Another table to score on, which must have the target."""
    table = read_table(file)
    require_column(target, table.columns, f"--eval {file.name}: --target")
    return table


def _evaluated(model: Model, table: "pl.DataFrame") -> dict[str, Any]:
    found = score_table(model, table, model.estimator.predict(table))
    return {"eval_rows": table.height, **{f"eval_{name}": value for name, value in found.items()}}


def _options(asked: dict[str, Any]) -> dict[str, str]:
    """Settings by the names of the command line, without those that may change when a run is resumed."""
    left_out = ("max_iter", "verbose", "nesterov")
    texts = {
        name: ", ".join(value) or "none" if isinstance(value, list) else str(value) for name, value in asked.items()
    }
    return {
        "--seed" if name == "random_state" else "--" + name.replace("_", "-"): text
        for name, text in texts.items()
        if name not in left_out
    }


def _check_memory(
    estimator: ShiftedReLUClassifier | ShiftedReLURegressor, problem: TableProblem, memory: str | None
) -> None:
    """Before the network is drawn: its weights must fit."""
    loss = get_loss(estimator.loss)
    outputs = len(loss.levels) if isinstance(loss, Quantile) else 1
    if problem.classes and len(problem.classes) > 2:
        outputs = len(problem.classes)
    columns = len(problem.encoder.feature_names)
    width = estimator.width_for(len(problem.y), columns, outputs)
    share = -(-width // current_grid().same_rows.size)
    check_weights(share, columns + 1, estimator.dtype, momentum=estimator.momentum > 0, asked=memory)


def _summary(
    problem: TableProblem, estimator: ShiftedReLUClassifier | ShiftedReLURegressor, rows: int
) -> dict[str, Any]:
    """What is shown, and stored with the model, of how it went."""
    result = estimator.result_
    last = result.history[-1]
    summary: dict[str, Any] = {
        "task": problem.task,
        "rows": rows,
        "columns": len(estimator.encoder_.feature_names),
        "width": estimator.network_.width,
        "threshold": estimator.network_.threshold,
        "engine": result.engine,
        "solver": result.solver,
        "iterations": len(result.history) - 1,
        "stop_reason": result.stop_reason.value,
        "learning_rate": result.learning_rate,
        "loss": result.loss,
        "fired_fraction": last.fired_fraction,
        "training_seconds": last.seconds,
        "preprocessing_seconds": result.start_seconds,
        "compile_seconds": result.compile_seconds,
    }
    summary |= _chosen(estimator)
    if current_group().size > 1:
        summary["workers"] = current_group().size
    if current_grid().same_neurons.size > 1:
        summary["grid"] = str(current_grid())
    if result.blocks > 1:
        summary["blocks"] = result.blocks
    summary |= {name: value for name, value in result.details.items() if value is not None}
    if result.resumed_at is not None:
        summary["resumed_at_iteration"] = result.resumed_at
    return summary


def _chosen(estimator: ShiftedReLUClassifier | ShiftedReLURegressor) -> dict[str, Any]:
    """The settings that were chosen for the table, and what they promised."""
    settings = estimator.settings_
    chosen: dict[str, Any] = {"bias": settings.bias, "column_scale_rounds": settings.rounds}
    # Of least squares: what it promises is no R² of another loss's fit.
    if settings.forecast is not None and get_loss(estimator.loss).name in ("squared_error", "log_loss"):
        score = "accuracy" if isinstance(estimator, ShiftedReLUClassifier) else "r2"
        chosen[f"forecast_{score}"] = settings.forecast
    if settings.notes:
        chosen["notes"] = list(settings.notes)
    shares = zip(estimator.feature_names_in_.tolist(), estimator.feature_importances_.tolist(), strict=True)
    used = [(name, share) for name, share in shares if name not in estimator.encoder_.left_out]
    chosen["importances"] = dict(sorted(used, key=lambda item: -item[1]))
    return chosen


def _held_out_scores(
    problem: TableProblem, estimator: ShiftedReLUClassifier | ShiftedReLURegressor, held: np.ndarray
) -> dict[str, Any]:
    if not len(held):
        return {}
    answers = problem.y[held]
    if isinstance(estimator, ShiftedReLUClassifier):
        answers = estimator.classes_[answers]
    scored = scores(problem.task, answers, estimator.predict(problem.features[held]), estimator.loss)
    return {"held_out_rows": len(held), **{f"held_out_{name}": value for name, value in scored.items()}}


def _check_whole_run(certify: bool, report: Path | None, checkpoint: Checkpoints | None) -> None:
    """Some records need the whole network, or the whole run, in this process."""
    if current_group().size > 1 and (certify or report is not None):
        asked = "--certify" if certify else f"--report {report}"
        raise InputError(f"{asked} needs all neurons in one process; leave it out, or train without torchrun")
    if certify and checkpoint is not None and checkpoint.resume:
        raise InputError("--certify needs the run from its start; leave it out, or leave --resume out")


def _stem(file: Path) -> str:
    """A file's name without the suffixes of its format: my.digits of my.digits.csv.gz."""
    name = file.name
    for packed in COMPRESSED:
        name = name.removesuffix(packed)
    return Path(name).stem
