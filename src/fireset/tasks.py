"""What the command line does: train on a file, predict for a file, describe a model."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset.data import (
    TableEncoder,
    class_labels,
    detect_task,
    read_table,
    regression_values,
    split_target,
)
from fireset.errors import InputError
from fireset.estimators import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.files import atomic_path
from fireset.model import Model
from fireset.network import ShiftedReLUNetwork
from fireset.table_encoder import require_column

if TYPE_CHECKING:
    import polars as pl

_TASKS = ("auto", "classification", "regression")


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
) -> dict[str, Any]:
    """Read, encode, train, score on the rows held out, save; returns what to show. Checks all it can before training."""
    if task not in _TASKS:
        raise InputError(f"task must be one of {', '.join(_TASKS)}; got {task!r}")
    if not 0 <= holdout < 1:
        raise InputError(f"holdout must be at least 0 and below 1, got {holdout}")
    out = out or Path(file.name.split(".")[0] + ".safetensors")
    with atomic_path(out) as probe:  # a place that cannot be written is better known before the training than after
        if out.exists():
            probe.write_bytes(out.read_bytes())
    if not out.stat().st_size:
        out.unlink()

    features, answers = _features(file, target, drop)
    if task == "auto":
        task = detect_task(answers)
    encoder = TableEncoder.learn(features, categorical=categorical, impute=impute)
    X = encoder.encode(features)
    if task == "classification":
        codes, classes = class_labels(answers)
        y = np.array(classes)[codes]
        estimator = ShiftedReLUClassifier(loss=loss, **settings)
        stratify = codes
    else:
        if loss != "squared_error":
            raise InputError(f"loss must be squared_error for regression, got {loss!r}; or give --task classification")
        y = regression_values(answers)
        estimator = ShiftedReLURegressor(**settings)
        stratify = None
    kept, held = _hold_out(len(y), holdout, stratify, settings["random_state"])
    estimator.fit(X[kept], y[kept])

    result = estimator.result_
    last = result.history[-1]
    summary: dict[str, Any] = {
        "task": task,
        "rows": len(kept),
        "columns": X.shape[1],
        "width": estimator.network_.width,
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
    if len(held):
        summary["held_out_rows"] = len(held)
        scores = _scores(task, y[held], estimator.predict(X[held]))
        summary |= {f"held_out_{name}": value for name, value in scores.items()}
    training = {**summary, "file": file.name, "settings": {"loss": loss, **settings}}
    Model(task, target, estimator, encoder, training).save(out)
    return {**summary, "model": str(out)}


def predict_table(path: Path, file: Path, *, proba: bool) -> tuple[dict[str, list], dict[str, Any]]:
    """Columns of predictions for a table, and the scores if the table has the target."""
    model = Model.load(path)
    table = read_table(file)
    X = model.encoder.encode(table)
    predictions = model.estimator.predict(X)
    columns: dict[str, list] = {"prediction": predictions.tolist()}
    if proba:
        estimator = model.estimator
        if not isinstance(estimator, ShiftedReLUClassifier) or estimator.loss != "log_loss":
            raise InputError(f"{path} gives no probabilities; train a classifier with --loss log_loss for them")
        for label, column in zip(estimator.classes_.tolist(), estimator.predict_proba(X).T, strict=True):
            columns[f"p({label})"] = column.tolist()
    summary: dict[str, Any] = {"rows": len(X)}
    if model.target in table.columns:
        answers = table[model.target]
        if answers.null_count() == 0:
            summary |= _scores(model.task, _comparable(model, answers), predictions)
    return columns, summary


def describe_model(path: Path) -> dict[str, Any]:
    """What there is to know about a model file."""
    network, _, description = ShiftedReLUNetwork.from_file(path)
    known: dict[str, Any] = {
        "file": str(path),
        "bytes": path.stat().st_size,
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
        return
    with atomic_path(out) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _features(file: Path, target: str, drop: list[str]) -> tuple["pl.DataFrame", "pl.Series"]:
    table = read_table(file)
    for name in drop:
        require_column(name, table.columns, "--drop")
        if name == target:
            raise InputError(f"--drop {name} would drop the target")
    return split_target(table.drop(drop), target)


def _hold_out(n: int, share: float, stratify, seed: int) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.model_selection import train_test_split

    if n < 2:
        raise InputError(f"the table must have at least 2 rows, got {n}")
    if share == 0:
        return np.arange(n), np.empty(0, np.int64)
    try:
        kept, held = train_test_split(np.arange(n), test_size=share, random_state=seed, stratify=stratify)
    except ValueError as error:
        raise InputError(f"cannot hold out {share:g} of {n} rows ({error}); give --holdout 0 or more rows") from None
    return kept, held


def _scores(task: str, answers: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    if task == "classification":
        return {"accuracy": float(np.mean(answers == predictions))}
    error = answers - predictions
    spread = float(np.sum((answers - answers.mean()) ** 2))
    scores = {"rmse": float(np.sqrt(np.mean(error**2)))}
    if spread > 0:
        scores["r2"] = 1.0 - float(np.sum(error**2)) / spread
    return scores


def _comparable(model: Model, answers: "pl.Series") -> np.ndarray:
    """The target column in the form of the predictions."""
    if model.task == "regression":
        return regression_values(answers)
    kind = model.estimator.classes_.dtype.kind
    values = answers.to_numpy()
    return values.astype(str) if kind == "U" else values
