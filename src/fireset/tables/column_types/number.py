"""Numbers and booleans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.cells import checked_numbers, cli_option, is_number, is_text, listed, quoted, refuse_missing
from fireset.tables.column_types.base import (
    FILL_REMEDY,
    NumberEncoding,
    NumericColumn,
    TrainingColumn,
    check_keys,
    check_stored,
    learn_fill,
    restore_fill,
)
from fireset.tables.text_formats import (
    BOOLEAN_FORMAT,
    PLAIN_FORMAT,
    BooleanFormat,
    NumberFormat,
    TextFormat,
    restore_format,
)

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class NumberColumn(NumericColumn):
    """Numbers, unchanged, and booleans as 0 and 1. Text cells must have ``text_format``."""

    text_format: NumberFormat | BooleanFormat = PLAIN_FORMAT

    kind = "number"

    @classmethod
    def learn(cls, column: TrainingColumn) -> Self | None:
        import polars as pl

        cells, text_format = column.cells, column.text_format
        if cells is None or column.categorical or cells.dtype in (pl.Categorical, pl.Enum):
            return None
        if is_number(cells):
            return cls._of_numbers(cells, column, BOOLEAN_FORMAT if cells.dtype == pl.Boolean else PLAIN_FORMAT)
        if not is_text(cells):
            return None
        if isinstance(text_format, NumberFormat | BooleanFormat):
            numbers = text_format.parse(cells, column.label)
            if not column.impute:
                refuse_missing(numbers, column.label, FILL_REMEDY)
            return cls._of_numbers(numbers, column, text_format)
        mixed = column.mixed_cells
        if mixed is None or mixed.number_format is None or mixed.numbers is None:
            return None
        if not column.impute:
            raise InputError(
                f"{column.label} holds the text {quoted(mixed.words[0])} in row {mixed.row} among numbers; fix that "
                f"cell, pass {cli_option('--categorical', column.name)} (categorical=) to treat it as categories, or "
                f"{FILL_REMEDY}"
            )
        column.warnings.append(str(mixed))
        return cls._of_numbers(mixed.numbers, column, mixed.number_format)

    @classmethod
    def _of_numbers(cls, numbers: pl.Series, column: TrainingColumn, text_format: NumberFormat | BooleanFormat) -> Self:
        fill, indicator = learn_fill(checked_numbers(numbers, column.label), column.impute)
        return cls(column.name, fill, indicator, text_format)

    def numbers(self, series: pl.Series) -> np.ndarray:
        import polars as pl

        series = self._supported(series)
        if is_text(series):
            text = series.cast(pl.String)
            series = self.text_format.parse(text.set(self._ignored_words(text), None), self.label)
        elif series.dtype.is_temporal():
            raise InputError(f"{self.label} was numeric in training but holds dates; store numbers in that column")
        return checked_numbers(series, self.label)

    def encode(self, series: pl.Series) -> tuple[np.ndarray, list[str]]:
        import polars as pl

        features, notes = super().encode(series)
        if is_text(series):
            text = series.cast(pl.String)
            words = text.filter(self._ignored_words(text)).str.strip_chars().unique(maintain_order=True).to_list()
            if words:
                notes.append(f"{self.label}: {listed(words, 3)} is no number and counts as missing")
        return features, notes

    def _ignored_words(self, text: pl.Series) -> pl.Series:
        """Mark words that were not in training and count as missing.

        No cell is marked if missing cells are refused. If training had no words and half of the cells or more are
        words, the column is another one than in training: no cell is marked, and the column is refused.
        """
        import polars as pl

        if self.fill is not None and isinstance(self.text_format, NumberFormat):
            words = self.text_format.unknown_words(text)
            if self.text_format.words or 2 * int(words.sum()) < text.len():
                return words
        return pl.Series([False]).new_from_index(0, text.len())

    def describe(self, series: pl.Series) -> dict[str, Any]:
        found = super().describe(series)
        words = self.text_format.words if isinstance(self.text_format, NumberFormat) else ()
        if words:
            found["note"] = f"{listed(words, 3)} counted as missing"
        elif self.text_format not in (PLAIN_FORMAT, BOOLEAN_FORMAT):
            found["read_as"] = str(self.text_format)
        return found

    def with_format(self, text_format: TextFormat | None) -> Self:
        return replace(self, text_format=text_format) if isinstance(text_format, NumberFormat | BooleanFormat) else self

    @property
    def number_encoding(self) -> NumberEncoding:
        return NumberEncoding(self.fill, self.indicator)

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | ({} if self.text_format == PLAIN_FORMAT else {"format": self.text_format.to_dict()})

    @classmethod
    def restore(cls, stored: dict[str, Any]) -> Self:
        check_keys(stored, ["fill"], ["indicator", "format"])
        text_format = restore_format(stored["format"]) if "format" in stored else PLAIN_FORMAT
        check_stored(
            text_format is not None, "the 'format' of a number column must be a known one", stored.get("format")
        )
        return cls(stored["name"], *restore_fill(stored), text_format or PLAIN_FORMAT)
