"""``fireset predict``: predictions for a table, and how good they are if it has the answers."""

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.files import atomic_path
from fireset.commands.scores import scores
from fireset.estimators import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.model import Model
from fireset.tables.cells import (
    category_text,
    cli_option,
    column_names,
    is_text,
    listed,
    named_rows,
    nan_as_null,
    quoted,
    refuse_missing,
    refuse_type,
)
from fireset.tables.encoded_blocks import warn_of_blocks
from fireset.tables.large_problem import needs_blocks
from fireset.tables.reader import read_cells
from fireset.tables.row_source import RowSource
from fireset.tables.target import regression_values
from fireset.tables.text_formats import PLAIN_FORMAT, NumberFormat
from fireset.training.losses import get_loss

if TYPE_CHECKING:
    import polars as pl


def predict_table(
    path: Path, file: Path, *, proba: bool, keep: list[str] | None = None
) -> tuple[dict[str, list], dict[str, list], dict[str, Any]]:
    """Predict for a table, in blocks of rows if it does not fit into memory.

    Returns the columns ``keep`` of the table, the columns of predictions, and the scores if the table has the target.
    """
    model = Model.load(path)
    estimator = model.estimator
    if proba and not isinstance(estimator, ShiftedReLUClassifier):
        raise InputError(f"{path} is a regression model, which gives no probabilities; leave --proba out")
    names = output_names(estimator, proba=proba)
    if needs_blocks(file, None):
        source = RowSource.open(file)
        columns = list(source.columns)
        kept = _kept_columns(keep or [], columns, names)
        table, predictions, chances = _predict_blocks(model, source, [*kept, model.target], proba=proba)
    else:
        table = read_cells(file, [column.name for column in model.encoder.columns])
        columns = table.columns
        kept = _kept_columns(keep or [], columns, names)
        predictions, chances = _predict_rows(model, table, proba=proba)
    _warn_of_unused_columns(model, [name for name in columns if name not in kept])
    values = [*predictions.reshape(len(predictions), -1).T.tolist(), *chances.T.tolist()]
    outputs: dict[str, list] = dict(zip(names, values, strict=True))
    summary: dict[str, Any] = {"rows": len(predictions)}
    if model.target in table.columns:
        summary |= score_table(model, table, predictions)
    return {name: table[name].to_list() for name in kept}, outputs, summary


def _predict_rows(model: Model, table: "pl.DataFrame", *, proba: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions, and with ``proba`` the probabilities (rows, classes), else (rows, 0)."""
    estimator = model.estimator
    if proba and isinstance(estimator, ShiftedReLUClassifier):
        return estimator.predict_with_proba(table)
    return estimator.predict(table), np.empty((table.height, 0))


def _predict_blocks(
    model: Model, source: RowSource, names: list[str], *, proba: bool
) -> tuple["pl.DataFrame", np.ndarray, np.ndarray]:
    """Predict block by block; return the columns ``names``, as far as the table has them, and the predictions."""
    import polars as pl

    others = [name for name in dict.fromkeys(names) if name in source.columns]
    frames, predictions, chances, messages = [], [], [], []
    for block in source.blocks():
        with (
            named_rows(lambda position, block=block: source.row_name(block.start + position)),
            warnings.catch_warnings(record=True, action="always") as given,
        ):
            found = _predict_rows(model, block.frame, proba=proba)
        messages += [f"from row {source.row_name(block.start)}: {warning.message}" for warning in given]
        frames.append(block.frame.select(others))
        predictions.append(found[0])
        chances.append(found[1])
    warn_of_blocks(messages)
    return pl.concat(frames, how="vertical_relaxed"), np.concatenate(predictions), np.concatenate(chances)


def output_names(estimator: ShiftedReLUClassifier | ShiftedReLURegressor, *, proba: bool = False) -> list[str]:
    """Names of the columns that are predicted: prediction and p(CLASS), or q0.1 for each quantile."""
    if proba and isinstance(estimator, ShiftedReLUClassifier):
        return ["prediction", *(f"p({label})" for label in estimator.classes_.tolist())]
    return get_loss(estimator.loss).output_names()


def _kept_columns(keep: list[str], columns: list[str], outputs: list[str]) -> list[str]:
    """Return the columns of the table that are copied to the predictions (``--keep``).

    Raises InputError for a column that is named twice, or has the name of an output.
    """
    kept: list[str] = []
    for text in keep:
        for name in column_names([text], columns, "--keep"):
            if name in kept:
                raise InputError(f"{cli_option('--keep', name)} is given twice; give each column once")
            if name in outputs:
                raise InputError(
                    f"{cli_option('--keep', name)} has the name of an output; rename that column of the table, or "
                    "leave it out"
                )
            kept.append(name)
    return kept


def score_table(model: Model, table: "pl.DataFrame", predictions: np.ndarray) -> dict[str, Any]:
    """How good predictions for a table are that has the answers, too; a warning where they cannot be used."""
    try:
        answers = _comparable(model, table[model.target])
        classes = model.estimator.classes_.tolist() if isinstance(model.estimator, ShiftedReLUClassifier) else None
        return scores(model.task, answers, predictions, model.estimator.loss, classes=classes)
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
        names = list(map(_defused, columns))
        if len(set(names)) < len(names):
            raise InputError("--safe-csv gives two of the --keep columns one name; rename one of them in the table")
        columns = {name: list(map(_defused, cells)) for name, cells in zip(names, columns.values(), strict=True)}
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

    label = f"target column {quoted(answers.name)}"
    if not isinstance(model.estimator, ShiftedReLUClassifier):
        if answers.dtype == pl.String:
            answers = (model.target_format or PLAIN_FORMAT).parse(answers, label)
        return regression_values(answers)
    classes = model.estimator.classes_
    refuse_type(answers, label, "store it as in the training table")
    refuse_missing(nan_as_null(answers.to_frame()).to_series(), label, "remove those rows for a score")
    # A column may have another type than in training, or spell its classes otherwise: 1, 1.0 and 01.
    spelling = model.target_format
    if answers.dtype == pl.String and isinstance(spelling, NumberFormat):
        numbers = spelling.normalized(answers)
        answers = numbers.zip_with(numbers.is_not_null(), answers)
    known = pl.Series(classes.tolist())
    place = {value: number for number, value in enumerate(category_text(known).to_list())}
    exact = {str(value): number for number, value in enumerate(known.to_list())} if is_text(known) else {}
    texts = zip(answers.cast(pl.String).to_list(), category_text(answers).to_list(), strict=True)
    codes = np.array([exact.get(raw, place.get(value, -1)) for raw, value in texts])
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
