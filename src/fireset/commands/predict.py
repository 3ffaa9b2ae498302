"""``fireset predict``: predictions for a table, and how good they are if it has the answers."""

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.files import atomic_path
from fireset.commands.scores import scores
from fireset.estimators import ShiftedReLUClassifier
from fireset.model import Model
from fireset.tables.cells import (
    category_text,
    is_text,
    listed,
    nan_as_null,
    quoted,
    refuse_missing,
    refuse_type,
    require_column,
)
from fireset.tables.reader import read_table
from fireset.tables.target import regression_values
from fireset.training.losses import Quantile, get_loss

if TYPE_CHECKING:
    import polars as pl


def predict_table(
    path: Path, file: Path, *, proba: bool, keep: list[str] | None = None
) -> tuple[dict[str, list], dict[str, Any]]:
    """Columns of predictions for a table, and the scores if the table has the target.

    The columns ``keep`` of the table are carried along, before the predictions.
    """
    model = Model.load(path)
    estimator = model.estimator
    if proba and not isinstance(estimator, ShiftedReLUClassifier):
        raise InputError(f"{path} is a regression model, which gives no probabilities; leave --proba out")
    table = read_table(file)
    for name in keep or []:
        require_column(name, table.columns, "--keep")
    _warn_of_unused_columns(model, [name for name in table.columns if name not in (keep or [])])
    predictions = estimator.predict(table)
    columns: dict[str, list] = {name: table[name].to_list() for name in keep or []}
    loss = get_loss(estimator.loss)
    if isinstance(loss, Quantile):
        named = zip(loss.levels, predictions.reshape(table.height, -1).T, strict=True)
        columns |= {f"q{level:g}": column.tolist() for level, column in named}
    else:
        columns["prediction"] = predictions.tolist()
    if proba and isinstance(estimator, ShiftedReLUClassifier):
        for label, column in zip(estimator.classes_.tolist(), estimator.predict_proba(table).T, strict=True):
            columns[f"p({label})"] = column.tolist()
    summary: dict[str, Any] = {"rows": table.height}
    if model.target in table.columns:
        summary |= score_table(model, table, predictions)
    return columns, summary


def score_table(model: Model, table: "pl.DataFrame", predictions: np.ndarray) -> dict[str, Any]:
    """How good predictions for a table are that has the answers, too; a warning where they cannot be used."""
    try:
        return scores(model.task, _comparable(model, table[model.target]), predictions, model.estimator.loss)
    except InputError as error:  # the predictions do not need the answers
        warnings.warn(f"no score: {error}", stacklevel=2)
        return {}


_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what makes a spreadsheet take a cell for a formula


def write_csv(columns: dict[str, list], out: Path | None, *, safe: bool = False) -> None:
    """Write columns as CSV to a file, atomically, or to standard output.

    ``safe`` puts an apostrophe before texts, labels and names that a spreadsheet would take for a formula.
    """
    import polars as pl

    if safe:
        columns = {_defused(name): list(map(_defused, cells)) for name, cells in columns.items()}
    text = pl.DataFrame(columns).write_csv()
    if out is None:
        sys.stdout.write(text)
        sys.stdout.flush()  # here, where a reader that has gone (`head`) is handled
        return
    with atomic_path(out) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _defused(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


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
    expected = {model.target, *(column.name for column in model.encoder.columns), *model.encoder.left_out}
    expected |= set(map(str, dropped)) if isinstance(dropped, list) else set()
    strange = [name for name in columns if name not in expected]
    if strange:
        warnings.warn(f"not used, because the model was trained without: {listed(strange, 5)}", stacklevel=3)
