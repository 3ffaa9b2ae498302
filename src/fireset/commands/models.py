"""Models from files: train on a table, predict for a table, describe a model."""

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.files import atomic_path, check_writable
from fireset._util.gaussian import upper_tail
from fireset.commands.certificate_report import certificate_sections
from fireset.commands.places import spare_inputs
from fireset.commands.records import Records
from fireset.distributed.process_group import current_group
from fireset.engines import choose, expected_costs
from fireset.estimators import ShiftedReLUClassifier, estimator_for
from fireset.model import Model
from fireset.network import ShiftedReLUNetwork, shard_files
from fireset.tables.encoder import (
    category_text,
    is_text,
    listed,
    nan_as_null,
    quoted,
    refuse_missing,
    refuse_type,
)
from fireset.tables.problem import TableProblem
from fireset.tables.reader import read_table, regression_values
from fireset.theory import Certificate
from fireset.training.checkpoint import Checkpoints
from fireset.training.memory import check_weights

if TYPE_CHECKING:
    import polars as pl


def train_table(
    file: Path,
    target: str,
    *,
    out: Path | None,
    task: str,
    loss: str,
    holdout: float,
    drop: list[str],
    categorical: list[str],
    impute: bool,
    settings: dict[str, Any],
    checkpoint: Checkpoints | None = None,
    memory: str | None = None,
    certify: bool = False,
    report: Path | None = None,
    history: Path | None = None,
    tensorboard: Path | None = None,
) -> dict[str, Any]:
    """Read, encode, train, score on the rows held out, save; returns what to show.

    Checks all it can before training. Ended by SIGTERM, it leaves a checkpoint and no model. With ``certify`` the run
    is held against the paper's claims; what was found is under "certificate".
    """
    if not 0 <= holdout < 1:
        raise InputError(f"holdout must be at least 0 and below 1, got {holdout}")
    out = out or Path(_stem(file) + ".safetensors")
    spare_inputs(out, file)
    problem = TableProblem.read(file, target, task=task, drop=drop, categorical=categorical, impute=impute)
    check_writable(out)
    _check_whole_run(certify, report, checkpoint)
    first = current_group().rank == 0  # the others leave no records
    records = Records(
        file,
        target,
        report=report,
        history=history if first else None,
        tensorboard=tensorboard if first else None,
    )
    X, y = problem.X, problem.y
    estimator = estimator_for(problem.task, loss, **settings)
    kept, held = problem.hold_out(holdout, settings["random_state"])
    share = -(-estimator.width // current_group().size)
    moving = estimator.momentum > 0
    check_weights(share, X.shape[1] + 1, estimator.dtype, momentum=moving, asked=memory)
    certificate = Certificate() if certify else None
    with records:
        certifying = [certificate] if certificate else []
        callbacks = [*records.callbacks, *certifying]
        estimator.fit(X[kept], y[kept], callbacks=callbacks, checkpoint=checkpoint, memory=memory)
    if isinstance(estimator, ShiftedReLUClassifier):
        estimator.classes_ = np.array(problem.classes)
        y = estimator.classes_[y]

    result = estimator.result_
    last = result.history[-1]
    summary: dict[str, Any] = {
        "task": problem.task,
        "rows": len(kept),
        "columns": X.shape[1],
        "width": estimator.width,
        "threshold": estimator.network_.threshold,
        "engine": result.engine,
        "iterations": len(result.history) - 1,
        "stop_reason": result.stop_reason,
        "learning_rate": result.learning_rate,
        "loss": result.loss,
        "fired_fraction": last.fired_fraction,
        "training_seconds": last.seconds,
        "preprocessing_seconds": result.start_seconds,
        "compile_seconds": result.compile_seconds,
    }
    if current_group().size > 1:
        summary["workers"] = current_group().size
    if result.blocks > 1:
        summary["blocks"] = result.blocks
    if result.resumed_at is not None:
        summary["resumed_at_iteration"] = result.resumed_at
    if result.stop_reason == "terminated" and checkpoint:
        return {**summary, "checkpoint": str(checkpoint.folder)}
    if len(held):
        summary["held_out_rows"] = len(held)
        scored = scores(problem.task, y[held], estimator.predict(X[held]))
        summary |= {f"held_out_{name}": value for name, value in scored.items()}
    training = {**summary, "file": file.name, "dropped": drop, "settings": {"loss": loss, **settings}}
    Model(problem.task, target, estimator, problem.encoder, training).save(out)
    row_numbers = kept[estimator.training_rows_] + 1  # in the table, counted from 1 as all messages about it count
    certified = {"certificate": certificate.report(row_numbers).to_dict()} if certificate else {}
    sections = certificate_sections(certified["certificate"]) if certified else []
    written = records.written(estimator, X[kept], training, sections)
    return {**summary, **written, "model": str(out), **certified}


def _check_whole_run(certify: bool, report: Path | None, checkpoint: Checkpoints | None) -> None:
    """Some records need the whole network, or the whole run, in this process."""
    if current_group().size > 1 and (certify or report is not None):
        asked = "--certify" if certify else f"--report {report}"
        raise InputError(f"{asked} needs all neurons in one process; leave it out, or train without torchrun")
    if certify and checkpoint is not None and checkpoint.resume:
        raise InputError("--certify needs the run from its start; leave it out, or leave --resume out")


def explain_engines(file: Path, target: str, *, width: int, max_iter: int) -> dict[str, Any]:
    """What ``engine="auto"`` weighs on this table: the expected cost of an iteration with each engine."""
    problem = TableProblem.read(file, target, impute=True)
    rows, columns = problem.X.shape
    classes = len(problem.classes or [])
    outputs = classes if classes > 2 else 1
    network = ShiftedReLUNetwork.initialize(width, columns + 1, outputs)
    costs = expected_costs(network, rows, max_iter)
    return {
        "rows": rows,
        "coordinates": columns + 1,
        "outputs": outputs,
        "width": width,
        "threshold": network.threshold,
        "fired_fraction": upper_tail(network.threshold),
        **{f"{engine}_seconds": 1e-9 * cost for engine, cost in costs.items()},
        "auto": choose(network, rows, max_iter),
    }


def predict_table(path: Path, file: Path, *, proba: bool) -> tuple[dict[str, list], dict[str, Any]]:
    """Columns of predictions for a table, and the scores if the table has the target."""
    model = Model.load(path)
    estimator = model.estimator
    if proba and not (isinstance(estimator, ShiftedReLUClassifier) and estimator.loss == "log_loss"):
        raise InputError(f"{path} gives no probabilities; train a classifier with --loss log_loss for them")
    table = read_table(file)
    X = model.encoder.encode(table)
    _warn_of_unused_columns(model, table.columns)
    predictions = estimator.predict(X)
    columns: dict[str, list] = {"prediction": predictions.tolist()}
    if proba and isinstance(estimator, ShiftedReLUClassifier):
        for label, column in zip(estimator.classes_.tolist(), estimator.predict_proba(X).T, strict=True):
            columns[f"p({label})"] = column.tolist()
    summary: dict[str, Any] = {"rows": len(X)}
    if model.target in table.columns:
        try:
            summary |= scores(model.task, _comparable(model, table[model.target]), predictions)
        except InputError as error:  # the predictions do not need the answers
            warnings.warn(f"no score: {error}", stacklevel=2)
    return columns, summary


def describe_model(path: Path) -> dict[str, Any]:
    """What there is to know about a model file."""
    network, _, description = ShiftedReLUNetwork.from_file(path)
    known: dict[str, Any] = {
        "file": str(path),
        "bytes": sum(os.path.getsize(file) for file in (path, *shard_files(path, description))),
        "width": network.width,
        "inputs": network.n_features,
        "outputs": network.n_outputs,
        "threshold": network.threshold,
        "dtype": str(network.dtype),
    }
    if "task" in description:
        model = Model.load(path)
        known |= {"task": model.task, "target": model.target, "columns": model.encoder.feature_names}
        if isinstance(model.estimator, ShiftedReLUClassifier):
            known["classes"] = model.estimator.classes_.tolist()
        shown = ("loss", "iterations", "stop_reason", "held_out_accuracy", "held_out_r2", "held_out_rmse")
        known |= {name: model.training[name] for name in shown if name in model.training}
    return known


def write_csv(columns: dict[str, list], out: Path | None) -> None:
    """Write columns as CSV to a file, atomically, or to standard output."""
    import polars as pl

    text = pl.DataFrame(columns).write_csv()
    if out is None:
        sys.stdout.write(text)
        sys.stdout.flush()  # here, where a reader that has gone (`head`) is handled
        return
    with atomic_path(out) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _stem(file: Path) -> str:
    """A file's name without the suffixes of its format: my.digits of my.digits.csv.gz."""
    name = file.name
    for packed in (".gz", ".bz2"):
        name = name.removesuffix(packed)
    return Path(name).stem


def scores(task: str, answers: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """Accuracy, or RMSE and R² (without spread in the answers there is no R²)."""
    if task == "classification":
        return {"accuracy": float(np.mean(answers == predictions))}
    error = answers - predictions
    spread = float(np.sum((answers - answers.mean()) ** 2))
    found = {"rmse": float(np.sqrt(np.mean(error**2)))}
    if spread > 0:
        found["r2"] = 1.0 - float(np.sum(error**2)) / spread
    return found


def _comparable(model: Model, answers: "pl.Series") -> np.ndarray:
    """The target column in the form of the predictions; refuses one that cannot be compared with them."""
    import polars as pl

    if not isinstance(model.estimator, ShiftedReLUClassifier):
        return regression_values(answers)
    classes = model.estimator.classes_
    label = f"target column {quoted(answers.name)}"
    refuse_type(answers, label, "store it as in the training table")
    refuse_missing(nan_as_null(answers.to_frame()).to_series(), label, "remove those rows for a score")
    # A column may be read as another type than in training: 1, 2 and "x" there, only 1 and 2 here.
    known = pl.Series(classes.tolist())
    if not (is_text(answers) and is_text(known)):
        answers, known = category_text(answers), category_text(known)
    place = {value: number for number, value in enumerate(known.to_list())}
    codes = np.array([place.get(value, -1) for value in answers.to_list()])
    if (codes < 0).all():
        raise InputError(f"{label} holds none of the model's classes, {listed(classes.tolist(), 5)}")
    # Whatever the model predicts for a class that training did not have is wrong: None equals no label.
    return np.array([classes[code] if code >= 0 else None for code in codes], object)


def _warn_of_unused_columns(model: Model, columns: list[str]) -> None:
    """Say which columns are not used, nor the target, nor dropped in training: often the wrong table."""
    dropped = model.training.get("dropped")
    expected = {model.target, *(column.name for column in model.encoder.columns)}
    expected |= set(map(str, dropped)) if isinstance(dropped, list) else set()
    strange = [name for name in columns if name not in expected]
    if strange:
        warnings.warn(f"not used, because the model was trained without: {listed(strange, 5)}", stacklevel=3)
