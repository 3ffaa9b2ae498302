"""``fireset train``: read, encode, train, score on the hold-out rows, save."""

import os
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fireset._util.errors import InputError
from fireset._util.files import check_writable, file_name
from fireset._util.system_memory import PeakMemory
from fireset._util.text import print_status
from fireset.commands.certificate import certificate_sections, merge_equal_rows, merged_rows_text
from fireset.commands.held_out import HeldOut
from fireset.commands.outputs import RunOutputs, check_outputs_differ, check_outputs_differ_from_inputs, save_or_rescue
from fireset.commands.predict import score_table
from fireset.commands.run_summary import next_steps, split_advice
from fireset.distributed.agreement import raise_on_all_workers
from fireset.distributed.process_group import current_group
from fireset.distributed.worker_grid import current_grid
from fireset.estimators import PAPER, ShiftedReLUClassifier, ShiftedReLURegressor, estimator_for
from fireset.model import Model
from fireset.tables.cells import require_column
from fireset.tables.column_notes import columns_in_words
from fireset.tables.encoded import EncodedTable
from fireset.tables.file_formats import COMPRESSION_SUFFIXES
from fireset.tables.large_problem import LargeTableProblem, read_problem
from fireset.tables.problem import TableProblem
from fireset.tables.reader import read_cells
from fireset.tables.target import ClassLabels
from fireset.theory import Certificate
from fireset.training.checkpoint import Checkpoints
from fireset.training.losses import Loss, get_loss
from fireset.training.stopping import StopReason, TimeLimit

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
    holdout_by: str | None = None,
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
    """Read, encode, train, score on the hold-out rows, save; return the summary to show.

    The steps, each done once:

    1. ``read_problem``: columns, text formats, task, targets or class codes.
    2. ``TableProblem.split``: training and hold-out rows; the encoder is learned on the training rows and encodes all.
       Large tables (``LargeTableProblem``) are encoded in steps 3 and 5, block by block.
    3. ``estimator.prepare``: width, column map, settings, network, rows on the sphere.
    4. ``estimator.fit_prepared``: training.
    5. ``HeldOut.of``: scores on the encoded hold-out rows.
    6. ``Model.save``.

    Everything that can be checked before training is checked before. After SIGTERM there is a checkpoint and no model.

    Parameters
    ----------
    reading : dict
        Options of ``TableProblem.read``.
    settings : dict
        Parameters of the estimator.
    holdout_by : str, optional
        Column by whose groups or dates rows are held out.
    eval_file : Path, optional
        Another table to score on.
    seconds : float, optional
        Training stops after this time.
    certify : bool
        Compare the run with the paper's claims; the result is under "certificate".
    command : str, optional
        The command line, for the report.

    Returns
    -------
    dict
        Outputs besides the model that could not be written are under "not_written".
    """
    started = perf_counter()
    if not 0 <= holdout < 1:
        raise InputError(f"holdout must be at least 0 and below 1, got {holdout}")
    out = out or Path(_stem(file.resolve() if os.path.isdir(file) else file) + ".safetensors")
    check_outputs_differ_from_inputs(out, file)
    check_outputs_differ(
        {"--out": out, "--history": history, "--report": report},
        {"--tensorboard": tensorboard, "--checkpoint": Path(checkpoint.folder) if checkpoint else None},
    )
    if checkpoint is not None:
        checkpoint.check_free(current_group())
    reading = {"task": "auto", "drop": [], **(reading or {})}
    if reading["task"] == "auto" and "classification" not in get_loss(loss).tasks:
        reading["task"] = "regression"  # counts, say, which would be taken for classes
    table = read_problem(file, target, memory=memory, **reading)
    if certify and isinstance(table, LargeTableProblem):
        raise InputError(f"--certify keeps all rows in memory, and {file} is read in blocks; leave it out")
    further = None if eval_file is None else _answered(eval_file, table)
    _check_place(out)
    _check_whole_run(certify, report, checkpoint)
    first = current_group().rank == 0  # the others leave no records
    places = {"history": history, "tensorboard": tensorboard} if first else {"history": None, "tensorboard": None}
    records = RunOutputs(file, target, report=report, command=command, **places)
    if certify:  # by default the paper's setting and a whole run
        paper = {**PAPER, "tol": 0.0}
        settings = settings | {name: value for name, value in paper.items() if settings.get(name, "auto") == "auto"}
    estimator = estimator_for(table.task, loss, **settings)
    if checkpoint is not None:
        options = {
            "target": target,
            **reading,
            "holdout": holdout,
            "holdout_by": holdout_by or "none",
            "loss": str(loss),
            "bias": "auto",
            **settings,
        }
        reading_mode = "in blocks" if isinstance(table, LargeTableProblem) else "at once"
        notes = {"table": file_name(file), "reading": reading_mode}
        checkpoint = replace(checkpoint, options=notes | _options(options))
    kept, held, encoded = table.split(holdout, settings["random_state"], holdout_by)
    targets, merged = table.targets(kept), 0
    if certify:
        assert isinstance(encoded, EncodedTable)
        distinct = merge_equal_rows(
            encoded.matrix[kept], table.y[kept], classes=table.classes is not None, dtype=estimator.dtype
        )
        kept, merged = kept[distinct.rows], distinct.merged
        targets = distinct.y if table.classes is None else ClassLabels(distinct.y, table.classes)
    columns = table.describe_columns(encoded.encoder, kept)
    prepared = estimator.prepare(encoded[kept], targets, memory=memory)
    if first and settings.get("verbose"):
        print_status("\n".join(columns_in_words(columns)))
    certificate = Certificate() if certify else None
    limit = None if seconds is None else TimeLimit(seconds)
    with records:
        callbacks = [*records.callbacks, *filter(None, (certificate, limit))]
        estimator.fit_prepared(prepared, callbacks=callbacks, checkpoint=checkpoint, memory=memory)
    summary = _summary(table, estimator, len(kept))
    if estimator.result_.stop_reason is StopReason.TERMINATED and checkpoint:
        return {**summary, "checkpoint": str(checkpoint.folder)}
    scored = HeldOut.predict(table, estimator, kept, encoded[held], table.y[held])
    if scored is not None:
        summary |= {"held_out_rows": len(held), **{f"held_out_{name}": value for name, value in scored.scores.items()}}
    training = {
        **summary,
        "file": file_name(file),
        "dropped": table.dropped.columns,
        "settings": {"loss": str(loss), **settings},
    }
    trained = {**training, "table_columns": columns}
    model = Model(table.task, target, estimator, trained, table.target_format)
    place, problem = save_or_rescue(model.save, out)
    summary |= {} if further is None else _evaluated(model, further)
    row_numbers = kept[estimator.training_rows_] + 1  # in the table, counted from 1 as all messages about it count
    certified = {"certificate": certificate.report(row_numbers).to_dict()} if certificate else {}
    if merged:
        summary["merged_rows"] = merged
        words = merged_rows_text(merged, classes=table.classes is not None)
        certified["certificate"]["notes"].append(words)
    sections = certificate_sections(certified["certificate"]) if certified else []
    facts = {**training, "target": target, "model": place.name}
    if holdout_by is None and len(held) and table.split_hints:
        summary["hints"] = facts["hints"] = [split_advice(table.split_hints[0])]
    summary["advice"] = next_steps(facts, scored, None)[:-1]  # without the command that predicts
    written = records.write(estimator, table, prepared.rows, table.y[kept], scored, facts, sections)
    if problem is not None:
        written["not_written"] = [f"--out: {problem}", *written.get("not_written", [])]
    peaks = _peak_memory()
    if peaks:
        summary["peak_memory_bytes"] = max(peaks)
        if len(peaks) > 1:
            summary["peak_memory_of_workers"] = peaks
    summary["total_seconds"] = perf_counter() - started
    return {**summary, **written, "model": str(place), **certified}


def _answered(file: Path, problem: TableProblem) -> "pl.DataFrame":
    """Read another table to score on, which must have the target."""
    table = read_cells(file, problem.features.columns)
    require_column(problem.target, table.columns, f"--eval {file.name}: --target")
    return table


def _evaluated(model: Model, table: "pl.DataFrame") -> dict[str, Any]:
    found = score_table(model, table, model.estimator.predict(table))
    return {"eval_rows": table.height, **{f"eval_{name}": value for name, value in found.items()}}


def _peak_memory() -> list[int]:
    """Return the peak memory of each worker's process in bytes; empty where the system does not report it."""
    own = PeakMemory().read() or 0
    peaks = [int.from_bytes(block, "little") for block in current_group().all_gather(own.to_bytes(8, "little"))]
    return peaks if all(peaks) else []


def _options(settings: dict[str, Any]) -> dict[str, str]:
    """Return the options by their names on the command line, without those that may change in a resumed run."""
    left_out = ("max_iter", "verbose", "nesterov")
    texts = {
        name: ", ".join(value) or "none" if isinstance(value, list) else str(value) for name, value in settings.items()
    }
    return {
        "--seed" if name == "random_state" else "--" + name.replace("_", "-"): text
        for name, text in texts.items()
        if name not in left_out
    }


def _summary(
    problem: TableProblem, estimator: ShiftedReLUClassifier | ShiftedReLURegressor, rows: int
) -> dict[str, Any]:
    """Return the summary of the run, which is shown and stored with the model."""
    result = estimator.result_
    last = result.history[-1]
    summary: dict[str, Any] = {
        "task": problem.task,
        **({} if problem.choice is None else {"task_reason": str(problem.choice)}),
        "rows": rows,
        "columns": len(estimator.encoder_.columns),
        "encoded_columns": len(estimator.encoder_.feature_names),
        "width": estimator.network_.width,
        "threshold": estimator.network_.threshold,
        "engine": result.engine,
        "solver": result.solver,
        "iterations": len(result.history) - 1,
        "stop_reason": result.stop_reason.value,
        "learning_rate": result.learning_rate,
        "loss": result.loss,
        "active_fraction": last.active_fraction,
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
    """Return the chosen settings, the forecast and the importances."""
    settings = estimator.settings_
    chosen: dict[str, Any] = {
        "bias": settings.bias,
        "metric": settings.metric_kind,
        "metric_rounds": settings.rounds,
        "columns_with_pieces": len(settings.pieces),
    }
    # The forecast is that of least squares, and does not apply to fits with some losses.
    if settings.forecast is not None and get_loss(estimator.loss).forecasts_score:
        score = "accuracy" if isinstance(estimator, ShiftedReLUClassifier) else "r2"
        chosen[f"forecast_{score}"] = settings.forecast
    if settings.notes:
        chosen["notes"] = list(settings.notes)
    shares = zip(estimator.feature_names_in_.tolist(), estimator.feature_importances_.tolist(), strict=True)
    used = [(name, share) for name, share in shares if name not in estimator.encoder_.left_out]
    chosen["importances"] = dict(sorted(used, key=lambda item: -item[1]))
    return chosen


def _check_place(out: Path) -> None:
    """Raise InputError on all workers unless the first can write the model."""
    workers = current_group()
    with raise_on_all_workers(workers):
        if workers.rank == 0:  # creates the file: two workers would be in each other's way
            check_writable(out)


def _check_whole_run(certify: bool, report: Path | None, checkpoint: Checkpoints | None) -> None:
    """Raise InputError for outputs that need the whole network, or the whole run, in this process."""
    if current_group().size > 1 and (certify or report is not None):
        option = "--certify" if certify else f"--report {report}"
        raise InputError(f"{option} needs all neurons in one process; leave it out, or train without torchrun")
    if certify and checkpoint is not None and checkpoint.resume:
        raise InputError("--certify needs the run from its start; leave it out, or leave --resume out")


def _stem(file: Path) -> str:
    """Return a file's name without the suffixes of its format, such as my.digits for my.digits.csv.gz."""
    name = file.name
    for packed in COMPRESSION_SUFFIXES:
        name = name.removesuffix(packed)
    return Path(name).stem
