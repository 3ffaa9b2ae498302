"""How the columns of a table become numbers: learned on the training table, stored in the model file.

Numbers and booleans become one column, dates one and their phases, texts one 0/1 column per category. Missing numbers
become the training median, and a column of 0 and 1 says where; missing texts are a category of their own. What cannot
be used is left out with the reason. Nothing is guessed silently: ``column_notes.py`` has the words for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError
from fireset.sparse_rows import is_sparse
from fireset.tables.cells import (
    as_cells,
    category_text,
    cli_option,
    first_row,
    is_number,
    is_text,
    listed,
    nan_as_null,
    quoted,
    refuse_type,
    require_column,
)
from fireset.tables.column_kinds import (
    MISSING_CATEGORY,
    OTHER_CATEGORY,
    CategoryColumn,
    DateColumn,
    NumberColumn,
    OrderedColumn,
)
from fireset.tables.mixed_cells import find_words
from fireset.tables.spelled import (
    DateSpelling,
    NumberSpelling,
    Spelling,
    TruthSpelling,
    as_times,
    dates_by_format,
    learn_spellings,
)
from fireset.tables.stored_columns import expect, is_unicode, restore_column

if TYPE_CHECKING:
    import polars as pl

Column = NumberColumn | CategoryColumn | DateColumn | OrderedColumn

_ENOUGH_TO_TELL = 10  # rows; in fewer, texts that all differ may be categories
_MIN_COVERAGE = 0.1  # of the rows: so few hold a category that another row holds, too
_OVERFLOW_MARGIN = 1e3  # column sums are refused within this factor of the largest float64
_FILL = "fill them in, or train with --impute (missing='impute')"
_MEDIAN_ROWS = 20_000  # that the medians of an array are taken from


@dataclass(frozen=True)
class TableEncoder:
    """How the columns of a table become the columns of a matrix.

    Attributes
    ----------
    columns : tuple of NumberColumn, CategoryColumn, DateColumn or OrderedColumn
        In the order of the training table. Use :meth:`learn` or :meth:`from_dict` to make one.
    left_out : dict of str
        Columns that are not used, and why.
    """

    columns: tuple[Column, ...]
    left_out: dict[str, str] = field(default_factory=dict)

    @classmethod
    def learn(cls, features: pl.DataFrame, *, categorical: Sequence[str] = (), impute: bool = True) -> TableEncoder:
        """Decide from the training table what each column becomes.

        Parameters
        ----------
        features : polars.DataFrame
            The training table without its target column.
        categorical : sequence of str
            Columns to one-hot encode even if they hold numbers, and with all of their categories.
        impute : bool
            Accept missing cells, now and in later tables: numbers and dates become the training median, with a column
            that says where if training had missing cells there; texts become the category "(missing)" if training had
            missing cells there, else the most frequent one (the first in sorted order among equals).
        """
        import polars as pl

        if isinstance(categorical, str):
            raise InputError(f"categorical must be a list of column names, got {quoted(categorical)}")
        for name in categorical:
            require_column(name, features.columns, "categorical")
        if features.width == 0:
            raise InputError("the table has no feature column; give at least one besides the target")
        if features.height == 0:
            raise InputError("the table has no rows to learn from")
        table = nan_as_null(features)
        if not impute:
            _refuse_missing(table, "fill them in, remove those rows, or let them be filled: --impute, missing='impute'")
        texts = [series for series in table if series.dtype == pl.String and series.name not in categorical]
        spellings, doubts = learn_spellings(texts)
        for doubt in doubts:
            warnings.warn(doubt, UserWarning, stacklevel=2)
        learned = {
            series.name: _learn_column(series, series.name in categorical, impute, spellings.get(series.name))
            for series in table
        }
        left_out = {name: found for name, found in learned.items() if isinstance(found, str)}
        columns = tuple(found for found in learned.values() if not isinstance(found, str))
        if not columns:
            reasons = "; ".join(f"{quoted(name)} {reason}" for name, reason in list(left_out.items())[:3])
            raise InputError(f"no column of the table can be used: {reasons}; give at least one that can")
        return cls(columns, left_out)

    @classmethod
    def of_numbers(cls, X: Any, impute: bool) -> TableEncoder:
        """Learn from an array (rows, columns) in which NaN is a missing cell; its columns are called x0, x1, …

        A sparse table has no missing cells; those of later tables become 0.
        """
        _refuse_huge(X)
        if is_sparse(X):
            return cls(tuple(NumberColumn(f"x{j}", 0.0 if impute else None) for j in range(X.shape[1])))
        missing = np.atleast_1d(np.isnan(X).any(axis=0))
        some = X[:: -(-len(X) // _MEDIAN_ROWS)]
        fill = np.median(some, axis=0)
        for j in np.flatnonzero(missing):
            seen = X[~np.isnan(X[:, j]), j]
            fill[j] = np.median(seen) if len(seen) else 0.0
        return cls(
            tuple(
                NumberColumn(f"x{j}", float(fill[j]) if impute else None, impute and bool(missing[j]))
                for j in range(X.shape[1])
            )
        )

    def with_spellings(self, spellings: Mapping[str, Spelling]) -> TableEncoder:
        """The same encoder for cells that are spelled as in the training file, whose cells it did not see itself."""
        return replace(self, columns=tuple(_spelled(column, spellings.get(column.name)) for column in self.columns))

    def encode(self, table: pl.DataFrame) -> np.ndarray:
        """The matrix of a table, shape (rows, len(feature_names)), float64, C-contiguous and finite.

        Columns are found by name and further columns are ignored. What training did not have, categories and missing
        cells, is reported by a UserWarning.
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
        strict = [column.name for column in self.columns if column.fill is None]
        _refuse_missing(table.select(strict), _FILL)
        matrix = np.empty((table.height, len(self.feature_names)))
        start, notes = 0, []
        for column, series in zip(self.columns, table.iter_columns(), strict=True):
            stop = start + len(column.feature_names)
            refuse_type(series, f"column {quoted(column.name)}", "store it as in the training table")
            if isinstance(column, CategoryColumn):
                matrix[:, start:stop], note = column.numbers(as_cells(series))
                notes += [note] if note else []
            else:
                self._fill(column, column.numbers(as_cells(series)), matrix[:, start:stop])
                notes += _new_words(column, series)
            start = stop
        notes += _warn_new_missing(self.columns, table)
        for note in notes:
            warnings.warn(note, UserWarning, stacklevel=2)
        return matrix

    def encode_numbers(self, X: Any) -> Any:
        """The matrix of an array (rows, columns) whose columns are those of training, all of them numbers.

        Sparse rows stay as they are.
        """
        if is_sparse(X):
            if len(self.feature_names) > X.shape[1]:
                raise InputError("X must be an array, as in training, where cells were missing; got a sparse table")
            return X
        missing = np.isnan(X)
        if not missing.any():
            if X.shape[1] == len(self.feature_names):
                return X
        elif (refused := self._number_layout.refused & missing.any(axis=0)).any():
            column = quoted(self.columns[int(refused.argmax())].name)
            raise InputError(f"X misses cells (NaN) in column {column}; fill them in, or train with missing='impute'")
        layout = self._number_layout
        matrix = np.empty((len(X), len(self.feature_names)))
        matrix[:, layout.places] = np.where(missing, layout.fills, X)
        matrix[:, layout.indicators] = missing[:, layout.indicated]
        return matrix

    def _fill(self, column: NumberColumn | DateColumn | OrderedColumn, numbers: np.ndarray, out: np.ndarray) -> None:
        """Numbers as they are, the median where cells are missing, and the column that says where."""
        width = numbers.shape[1]
        out[:, :width] = numbers
        missing = np.isnan(numbers[:, 0])
        if column.indicator:
            out[:, width] = missing
        if missing.any():
            if column.fill is None:  # text that says that there is no number
                row = int(missing.argmax()) + 1
                raise InputError(f"column {quoted(column.name)} has no number in row {row}; {_FILL}")
            fill = np.array([column.fill])
            out[missing, :width] = column.phases(fill) if isinstance(column, DateColumn) else fill

    @cached_property
    def feature_names(self) -> list[str]:
        """One name per column of the matrix, such as ``age`` or ``color=red``."""
        return [name for column in self.columns for name in column.feature_names]

    @cached_property
    def features_per_column(self) -> np.ndarray:
        """How many columns of the matrix each column of the table has become."""
        return np.array([len(column.feature_names) for column in self.columns])

    @cached_property
    def _number_layout(self) -> _NumberLayout:
        """Where numbers go that come as an array."""
        numbers = [column for column in self.columns if isinstance(column, NumberColumn)]
        if len(numbers) < len(self.columns):
            other = next(column.name for column in self.columns if not isinstance(column, NumberColumn))
            raise InputError(
                f"the model was trained on a table whose column {quoted(other)} is no number; give a DataFrame with "
                "the names of the training table"
            )
        starts = np.cumsum(self.features_per_column) - self.features_per_column
        indicated = np.array([column.indicator for column in numbers], bool)
        return _NumberLayout(
            places=starts,
            indicated=np.flatnonzero(indicated),
            indicators=starts[indicated] + 1,
            fills=np.array([np.nan if column.fill is None else column.fill for column in numbers]),
            refused=np.array([column.fill is None for column in numbers]),
        )

    @cached_property
    def takes_arrays(self) -> bool:
        """Whether all columns are numbers, so that an array says all there is to say."""
        return all(isinstance(column, NumberColumn) for column in self.columns)

    def to_dict(self) -> dict[str, Any]:
        """A form that JSON can hold; :meth:`from_dict` restores it."""
        columns = [column.to_dict() for column in self.columns]
        return {"columns": columns} | ({"left_out": self.left_out} if self.left_out else {})

    @classmethod
    def from_dict(cls, stored: Any) -> TableEncoder:
        """Restore what :meth:`to_dict` gave. The model file is untrusted, so every part is checked."""
        known = isinstance(stored, dict) and set(stored) - {"left_out"} == {"columns"}
        expect(known, "it must hold 'columns' and at most 'left_out' besides", stored)
        columns, left_out = stored["columns"], stored.get("left_out", {})
        expect(isinstance(columns, list) and len(columns) > 0, "'columns' must be a list, not empty", columns)
        restored = tuple(restore_column(column) for column in columns)
        texts = isinstance(left_out, dict) and all(is_unicode(text) for item in left_out.items() for text in item)
        expect(texts, "'left_out' must hold texts", left_out)
        names = [*(column.name for column in restored), *left_out]
        expect(len(set(names)) == len(names), "its column names must differ", names)
        return cls(restored, left_out)


@dataclass(frozen=True)
class _NumberLayout:
    """Columns of the matrix by the columns of an array."""

    places: np.ndarray  # where each column's numbers go
    indicated: np.ndarray  # the columns of the array that have an indicator,
    indicators: np.ndarray  # and where it goes
    fills: np.ndarray
    refused: np.ndarray  # which must not miss any


def _spelled(column: Column, spelling: Spelling | None) -> Column:
    """The column for cells of this spelling; the column itself if the spelling does not concern it."""
    if isinstance(column, NumberColumn) and isinstance(spelling, NumberSpelling | TruthSpelling):
        return replace(column, spelling=spelling)
    if isinstance(column, CategoryColumn) and isinstance(spelling, NumberSpelling):
        return replace(column, spelling=spelling)
    if isinstance(column, DateColumn) and isinstance(spelling, DateSpelling):
        return replace(column, format=spelling.format)
    return column


def _learn_column(series: pl.Series, force_categorical: bool, impute: bool, spelling: Spelling | None) -> Column | str:
    """One training column, or why it is left out; ``force_categorical`` one-hot encodes it even if it holds numbers."""
    import polars as pl

    label = f"column {quoted(series.name)}"
    refuse_type(series, label, f"convert it, or {_drop(series)}")
    if series.null_count() == series.len():
        return "has no value in any row"
    series = as_cells(series)
    if isinstance(series.dtype, pl.Enum) and not force_categorical:
        levels = tuple(category_text(series.dtype.categories).to_list())
        if len(set(levels)) == len(levels):  # else two of them, such as 1 and 01, are one category
            return OrderedColumn.learn(series, levels, impute)
    if force_categorical or series.dtype in (pl.Categorical, pl.Enum):
        return CategoryColumn.learn(series, impute, keep_all=force_categorical)
    if is_number(series):
        return NumberColumn.learn(series, impute)
    if not is_text(series):
        return DateColumn.learn(as_times(series), impute, None)
    if isinstance(spelling, NumberSpelling | TruthSpelling):
        numbers = spelling.numbers(series, label)
        if not impute and numbers.null_count():
            _refuse_missing(numbers.to_frame(), _FILL)
        return NumberColumn.learn(numbers, impute, spelling)
    if isinstance(spelling, DateSpelling):
        return DateColumn.learn(dates_by_format(series, spelling.format, label), impute, spelling.format)
    return _learn_text(series, label, impute)


def _learn_text(series: pl.Series, label: str, impute: bool) -> Column | str:
    """Text that spells neither numbers nor dates: categories, unless hardly any two rows share one."""
    import polars as pl

    rows = series.len() - series.null_count()
    if mixed := find_words(series):
        if mixed.spelling is not None and not impute:
            raise InputError(
                f"{label} holds the text {quoted(mixed.words[0])} in row {mixed.row} among numbers; fix that cell, "
                f"pass {cli_option('--categorical', series.name)} (categorical=) to treat it as categories, or {_FILL}"
            )
        warnings.warn(str(mixed), UserWarning, stacklevel=4)
        if mixed.numbers is not None:
            return NumberColumn.learn(mixed.numbers, impute, mixed.spelling)
        return CategoryColumn.learn(series, impute, keep_all=False)
    counts = series.drop_nulls().cast(pl.String).str.strip_chars().rename("text").value_counts()["count"]
    shared = int(counts.filter(counts > 1).sum())
    if rows >= _ENOUGH_TO_TELL and shared < _MIN_COVERAGE * rows:
        words = float(series.drop_nulls().cast(pl.String).str.count_matches(r"\S+").mean() or 0)  # pyright: ignore
        kind = "free text" if words >= 3 else "an identifier"
        return f"holds {len(counts):,} different texts in {rows:,} rows, like {kind}"
    return CategoryColumn.learn(series, impute, keep_all=False)


def _refuse_huge(X: Any) -> None:
    """Refuse numbers of which the sum of a column may overflow."""
    sizes = np.abs(X.data if is_sparse(X) else X)
    largest = float(np.fmax.reduce(sizes, axis=None, initial=0.0))
    limit = float(np.finfo(np.float64).max) / _OVERFLOW_MARGIN / max(1, X.shape[0])
    if largest > limit:
        where = "" if is_sparse(X) else f" in column {int(np.fmax.reduce(sizes, axis=0).argmax())}"
        raise InputError(
            f"numbers of `X` must be at most {limit:.1g} in size, got {largest:g}{where}; "
            "divide the column by a constant."
        )


def _refuse_missing(table: pl.DataFrame, remedy: str) -> None:
    """Refuse columns with missing cells, all of them in one message."""
    missing = [series for series in table if series.null_count()]
    if not missing:
        return
    first = missing[0]
    count = first.null_count()
    found = f"column {quoted(first.name)} has {count} missing {'value' if count == 1 else 'values'}"
    found += f", first in row {first_row(first.is_null())}"
    if len(missing) > 1:
        others = [f"{quoted(series.name)} ({series.null_count()})" for series in missing[1:6]]
        more = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
        found += f"; so have {', '.join(others)}{more}"
    raise InputError(f"{found}; {remedy}")


def _warn_new_missing(columns: Sequence[Column], table: pl.DataFrame) -> list[str]:
    """What there is to say of columns that miss cells here and missed none in training."""
    found = []
    for column, series in zip(columns, table.iter_columns(), strict=True):
        if isinstance(column, CategoryColumn):
            new, filled = column.fill not in (MISSING_CATEGORY, OTHER_CATEGORY), f"counted as {quoted(column.fill)}"
        else:
            new, filled = not column.indicator, "filled with the median"
        if new and series.null_count():
            found.append(f"{quoted(column.name)} ({series.null_count()}, {filled})")
    if not found:
        return []
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return [f"missing cells in columns that had none in training: {', '.join(found[:5])}{more}"]


def _new_words(column: Column, series: pl.Series) -> list[str]:
    """What there is to say of texts in a column of numbers that training did not have."""
    words = column.new_words(series) if isinstance(column, NumberColumn) else []
    if not words:
        return []
    return [f"column {quoted(column.name)}: {listed(words, 3)} is no number and counts as missing"]


def _drop(series: pl.Series) -> str:
    return f"pass {cli_option('--drop', series.name)}"
