"""How the columns of a table become numbers: learned on the training table, stored in the model file.

A number or boolean column becomes one float column; a text column becomes one 0/1 column per category.
Nothing is guessed silently: a cell that holds no number is refused by column and row, with the remedy.
"""

from __future__ import annotations

import difflib
import math
import shlex
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError

if TYPE_CHECKING:
    import polars as pl

MISSING_CATEGORY = "(missing)"
# A column with more categories is almost always an identifier or free text that was not meant to be a feature.
MAX_CATEGORIES = 1000
# Norms are computed from squares, and a sum of squares of larger numbers may overflow.
MAX_MAGNITUDE = 1e150


def one_line(value: object) -> str:
    """Text for an error message: line breaks and control characters of a file's contents are escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))


def quoted(value: object) -> str:
    """``repr`` on one line, cut to 60 characters because a cell of an untrusted file may be very long."""
    try:
        text = one_line(repr(value))
    except (RecursionError, ValueError):  # a deeply nested list, an integer of thousands of digits
        text = f"something of type {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def listed(values: Sequence[object], limit: int) -> str:
    """The first ``limit`` values in quotes, followed by how many more there are."""
    more = f" and {len(values) - limit} more" if len(values) > limit else ""
    return ", ".join(quoted(value) for value in values[:limit]) + more


def cli_option(flag: str, column: str) -> str:
    """A command-line option for one column, quoted so that it can be pasted into a shell."""
    return f"{flag} {shlex.quote(one_line(column))}"


def require_column(name: str, columns: Sequence[str], role: str) -> None:
    """Refuse a column name that the table does not have, suggesting the nearest one it has."""
    if name in columns:
        return
    nearest = difflib.get_close_matches(str(name), columns, n=1)
    hint = f"did you mean {quoted(nearest[0])}?" if nearest else f"its columns are {listed(columns, 10)}"
    raise InputError(f"{role} {quoted(name)} is not a column of the table; {hint}")


def is_text(series: pl.Series) -> bool:
    """Whether the cells are text: a String, Categorical or Enum column."""
    import polars as pl

    return series.dtype in (pl.String, pl.Categorical, pl.Enum)


def is_number(series: pl.Series) -> bool:
    """Whether the cells are numbers or booleans."""
    import polars as pl

    return series.dtype.is_numeric() or series.dtype == pl.Boolean


def nan_as_null(table: pl.DataFrame) -> pl.DataFrame:
    """Null in place of NaN, so that all missing cells are null; all columns at once, since one by one is slow."""
    from polars import selectors

    return table.with_columns(selectors.float().fill_nan(None))


def first_row(mask: pl.Series) -> int:
    """The 1-based number of the first data row where ``mask`` holds."""
    return int(mask.arg_true()[0]) + 1


def holds_number(text: pl.Series) -> pl.Series:
    """Which cells of a text column spell a finite number; null where the cell is missing."""
    import polars as pl

    text = text.cast(pl.String)
    numbers = text.str.strip_chars().cast(pl.Float64, strict=False)
    return numbers.is_finite().fill_null(False).set(text.is_null(), None)


def first_text(text: pl.Series) -> tuple[str, int]:
    """The cell of a text column that best shows it is not numeric, and its 1-based row.

    That is the first cell that spells no number; if all do, the first cell that is not missing.
    """
    import polars as pl

    not_numbers = ~holds_number(text)
    row = first_row(not_numbers if not_numbers.any() else text.is_not_null())
    return text.cast(pl.String)[row - 1], row


def checked_numbers(series: pl.Series, label: str) -> np.ndarray:
    """The cells as float64 with NaN for missing; infinite and overflowing ones are refused."""
    import polars as pl

    numbers = series.cast(pl.Float64).to_numpy()
    beyond = np.abs(numbers) > MAX_MAGNITUDE
    if beyond.any():
        row = int(beyond.argmax()) + 1
        value = float(numbers[row - 1])
        if math.isinf(value):
            raise InputError(f"{label} holds {value} in row {row}; put a finite number there")
        limit = f"magnitudes above {MAX_MAGNITUDE:g} overflow when squared"
        raise InputError(f"{label} holds {value} in row {row}, but {limit}; rescale the column")
    return numbers


def refuse_type(series: pl.Series, label: str, remedy: str) -> None:
    """Refuse a column that is neither numbers, booleans, text nor entirely missing."""
    import polars as pl

    if not (is_number(series) or is_text(series) or series.dtype == pl.Null):
        raise InputError(f"{label} has the type {quoted(series.dtype)}, which is neither number nor text; {remedy}")


def refuse_missing(series: pl.Series, label: str, remedy: str) -> None:
    """Refuse null cells, saying how many there are and where the first one is."""
    if count := series.null_count():
        values, row = "value" if count == 1 else "values", first_row(series.is_null())
        raise InputError(f"{label} has {count} missing {values}, first in row {row}; {remedy}")


def category_text(series: pl.Series) -> pl.Series:
    """The cells as category names, the same whatever type the column was read as.

    A column read as text in one file may be read as integers, floats or booleans in the next, because types
    are inferred from the cells at hand. So 7, 7.0, "7" and "07" are one category, as are True and "true".
    """
    import polars as pl

    bare = pl.col("bare")
    integer, number = bare.cast(pl.Int64, strict=False), bare.cast(pl.Float64, strict=False)
    whole = (number == number.round(0)) & (number.abs() < 2.0**53)
    lowered = bare.str.to_lowercase()
    spelled = pl.coalesce(
        integer.cast(pl.String),
        pl.when(whole).then(number.cast(pl.Int64, strict=False).cast(pl.String)),
        pl.when(number.is_finite()).then(number.cast(pl.String)),
        pl.when(lowered.is_in(["true", "false"])).then(lowered),
        bare,
    )
    text = series.cast(pl.String).str.strip_chars()
    return text.to_frame("bare").select(spelled.alias(series.name)).to_series()


@dataclass(frozen=True)
class NumberColumn:
    """A column used as it is. ``fill`` replaces missing cells: the training median; None refuses them."""

    name: str
    fill: float | None

    @property
    def feature_names(self) -> list[str]:
        return [self.name]

    def encode_into(self, series: pl.Series, out: np.ndarray) -> None:
        label = f"column {quoted(self.name)}"
        if is_text(series) and series.null_count() < series.len():
            value, row = first_text(series)
            raise InputError(
                f"{label} was numeric in training but holds the text {quoted(value)} in row {row}; "
                "store numbers in that column"
            )
        numbers = checked_numbers(series, label)
        out[:, 0] = numbers if self.fill is None else np.where(np.isnan(numbers), self.fill, numbers)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "number", "name": self.name, "fill": self.fill}


@dataclass(frozen=True)
class CategoryColumn:
    """A one-hot column. ``fill`` is the category of missing cells; None refuses them."""

    name: str
    categories: tuple[str, ...]
    fill: str | None

    @property
    def feature_names(self) -> list[str]:
        return [f"{self.name}={category}" for category in self.categories]

    @classmethod
    def learn(cls, series: pl.Series, impute: bool) -> CategoryColumn:
        text = category_text(series)
        counts = Counter(text.drop_nulls().to_list())
        if not impute:
            return cls(series.name, tuple(sorted(counts)), None)
        most_frequent = min(counts, key=lambda category: (-counts[category], category))
        fill = MISSING_CATEGORY if text.null_count() else most_frequent
        return cls(series.name, tuple(sorted({*counts, fill})), fill)

    def encode_into(self, series: pl.Series, out: np.ndarray) -> None:
        import polars as pl

        if series.dtype.is_float():
            checked_numbers(series, f"column {quoted(self.name)}")
        text = category_text(series)
        if self.fill is not None:
            text = text.fill_null(self.fill)
        codes = text.replace_strict(
            list(self.categories), range(len(self.categories)), default=-1, return_dtype=pl.Int64
        ).to_numpy()
        known = np.flatnonzero(codes >= 0)
        out[:] = 0.0
        out[known, codes[known]] = 1.0
        if unseen := len(codes) - len(known):
            values = text.filter(pl.Series(codes < 0)).unique(maintain_order=True).to_list()
            cells = "1 cell holds a category" if unseen == 1 else f"{unseen} cells hold categories"
            message = f"{cells} not seen in training ({listed(values, 3)}); encoded as all zeros"
            # The level of the caller of TableEncoder.encode.
            warnings.warn(f"column {quoted(self.name)}: {message}", UserWarning, stacklevel=3)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "category", "name": self.name, "categories": list(self.categories), "fill": self.fill}


@dataclass(frozen=True)
class TableEncoder:
    """How the columns of a table become the columns of a matrix.

    Attributes
    ----------
    columns : tuple of NumberColumn or CategoryColumn
        In the order of the training table. Use :meth:`learn` or :meth:`from_dict` to make one.
    """

    columns: tuple[NumberColumn | CategoryColumn, ...]

    @classmethod
    def learn(cls, features: pl.DataFrame, *, categorical: Sequence[str] = (), impute: bool = False) -> TableEncoder:
        """Decide from the training table what each column becomes.

        Parameters
        ----------
        features : polars.DataFrame
            The training table without its target column.
        categorical : sequence of str
            Columns to one-hot encode even if they hold numbers or more than 1000 different texts.
        impute : bool
            Accept missing cells, now and in later tables. In a number column they become the training median;
            in a text column the category "(missing)" if training had missing cells there, else the most
            frequent category (the first in sorted order among equals).
        """
        if isinstance(categorical, str):
            raise InputError(f"categorical must be a list of column names, got {quoted(categorical)}")
        for name in categorical:
            require_column(name, features.columns, "categorical")
        if features.width == 0:
            raise InputError("the table has no feature column; give at least one besides the target")
        if features.height == 0:
            raise InputError("the table has no rows to learn from")
        columns = nan_as_null(features).iter_columns()
        return cls(tuple(_learn_column(series, series.name in categorical, impute) for series in columns))

    def encode(self, table: pl.DataFrame) -> np.ndarray:
        """The matrix of a table, shape (rows, len(feature_names)), float64, C-contiguous and finite.

        Columns are found by name and further columns are ignored. A category not seen in training becomes
        zeros and is reported by a UserWarning.
        """
        present = set(table.columns)
        lacking = [column.name for column in self.columns if column.name not in present]
        if lacking:
            counts = f"the model was trained on {len(self.columns)} columns, the table has {table.width}"
            raise InputError(
                f"the table lacks {len(lacking)} of the model's columns: {listed(lacking, 5)}; {counts}; "
                "name the columns as in the training table"
            )
        table = nan_as_null(table.select(column.name for column in self.columns))
        matrix = np.empty((table.height, len(self.feature_names)))
        start = 0
        for column, series in zip(self.columns, table.iter_columns(), strict=True):
            stop = start + len(column.feature_names)
            label = f"column {quoted(column.name)}"
            refuse_type(series, label, "store it as in the training table")
            if column.fill is None:
                refuse_missing(series, label, "fill them in, or train the model with --impute")
            column.encode_into(series, matrix[:, start:stop])
            start = stop
        return matrix

    @property
    def feature_names(self) -> list[str]:
        """One name per column of the matrix, such as ``age`` or ``color=red``."""
        return [name for column in self.columns for name in column.feature_names]

    def to_dict(self) -> dict[str, Any]:
        """A form that JSON can hold; :meth:`from_dict` restores it."""
        return {"columns": [column.to_dict() for column in self.columns]}

    @classmethod
    def from_dict(cls, stored: Any) -> TableEncoder:
        """Restore what :meth:`to_dict` gave. The model file is untrusted, so every part is checked."""
        _expect(isinstance(stored, dict) and set(stored) == {"columns"}, "it must hold exactly 'columns'", stored)
        columns = stored["columns"]
        _expect(isinstance(columns, list) and len(columns) > 0, "'columns' must be a list, not empty", columns)
        restored = tuple(_restore_column(column) for column in columns)
        names = [column.name for column in restored]
        _expect(len(set(names)) == len(names), "its column names must differ", names)
        return cls(restored)


def _learn_column(series: pl.Series, force_categorical: bool, impute: bool) -> NumberColumn | CategoryColumn:
    """Check one training column and learn it; ``force_categorical`` one-hot encodes it even if it holds numbers."""
    label = f"column {quoted(series.name)}"
    drop = f"pass {cli_option('--drop', series.name)}"
    as_categories = f"pass {cli_option('--categorical', series.name)} to treat it as categories"
    refuse_type(series, label, f"convert it in the file, or {drop}")
    if series.null_count() == series.len():
        raise InputError(f"{label} has no value in any row; {drop}")
    if not impute:
        refuse_missing(series, label, "fill them in, remove those rows, or pass --impute")
    if is_number(series):
        numbers = checked_numbers(series, label)
        if not force_categorical:
            return NumberColumn(series.name, float(np.nanmedian(numbers)) if impute else None)
    elif not force_categorical:
        numeric = holds_number(series)
        if 2 * int(numeric.sum()) >= series.len() - series.null_count():
            value, row = first_text(series)
            cell = f"{quoted(value)} in row {row}"
            problem = f"{label} is mostly numbers but holds the text {cell}; fix that cell"
            if numeric.all():
                problem = f"{label} holds numbers stored as text, {cell}; store them as numbers"
            raise InputError(f"{problem}, {as_categories}, or {drop}")
        if (distinct := series.drop_nulls().n_unique()) > MAX_CATEGORIES:
            problem = f"{label} holds {distinct} different texts, more than {MAX_CATEGORIES}"
            raise InputError(f"{problem}; {drop}, or {as_categories}")
    return CategoryColumn.learn(series, impute)


def _restore_column(stored: Any) -> NumberColumn | CategoryColumn:
    """One column out of a model file."""
    _expect(isinstance(stored, dict), "each column must be a dict", stored)
    kind, name, fill = stored.get("kind"), stored.get("name"), stored.get("fill")
    _expect(_is_unicode(name), "a column's 'name' must be text", name)
    if kind == "number":
        _expect(set(stored) == {"kind", "name", "fill"}, "a number column has 'kind', 'name' and 'fill'", stored)
        numeric = isinstance(fill, int | float) and not isinstance(fill, bool) and abs(fill) <= MAX_MAGNITUDE
        _expect(fill is None or numeric, "the 'fill' of a number column must be a finite number or null", fill)
        return NumberColumn(name, None if fill is None else float(fill))
    _expect(kind == "category", "a column's 'kind' must be 'number' or 'category'", kind)
    parts = {"kind", "name", "categories", "fill"}
    _expect(set(stored) == parts, "a category column has 'kind', 'name', 'categories' and 'fill'", stored)
    categories = stored["categories"]
    texts = isinstance(categories, list) and len(categories) > 0 and all(map(_is_unicode, categories))
    in_order = texts and categories == sorted(set(categories))
    _expect(in_order, "'categories' must be sorted, different texts", categories)
    in_categories = fill is None or (_is_unicode(fill) and fill in categories)
    _expect(in_categories, "the 'fill' of a category column must be one of its categories or null", fill)
    return CategoryColumn(name, tuple(categories), fill)


def _is_unicode(value: Any) -> bool:
    # JSON can spell lone surrogates, which no table can hold and polars refuses with an error of its own.
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _expect(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise InputError(f"the model's table encoder is damaged: {rule}, got {quoted(value)}; train the model again")
