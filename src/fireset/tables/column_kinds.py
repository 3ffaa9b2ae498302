"""What a column of a table becomes: a number, a date in numbers, or one 0/1 column for each category.

Each kind is learned from the training table, turns a column of any later table into numbers, and has a form that a
model file can hold. Cells that are missing come out as NaN; ``TableEncoder`` fills them in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.cells import category_text, checked_numbers, first_row, is_text, listed, quoted
from fireset.tables.spelled import (
    PLAIN,
    TRUTH,
    NumberSpelling,
    TruthSpelling,
    as_times,
    dates_by_format,
    is_missing,
)

if TYPE_CHECKING:
    import polars as pl

MISSING_CATEGORY = "(missing)"
OTHER_CATEGORY = "(other)"
# Up to so many categories each has a column of its own. Of more, those do that enough rows hold, and not too many.
_FEW_CATEGORIES = 30
_MAX_CATEGORIES = 200
_MIN_SHARE = 1e-3
# Names of periods, in days, and how much of one a table must span before its phase tells more than the date itself.
PERIODS = {"day": 1.0, "week": 7.0, "year": 365.2425}
# Sine and cosine are rounded to multiples of this, float32's precision: noon has one sine on all days, which the map of
# columns counts as one value, and the same one whatever library computes it.
PHASE_STEP = 2.0**-24
_DAY = 86_400e6  # in microseconds


@dataclass(frozen=True)
class NumberColumn:
    """Numbers, as they are. ``fill`` takes the place of missing cells: the training median; None refuses them.

    With ``indicator`` a second column, of 0 and 1, says where cells were missing: where they were in training.
    ``spelling`` is how text cells spell their numbers; cells that do not fit are refused.
    """

    name: str
    fill: float | None
    indicator: bool = False
    spelling: NumberSpelling | TruthSpelling = PLAIN

    @property
    def feature_names(self) -> list[str]:
        return [self.name, *([f"{self.name} {MISSING_CATEGORY}"] if self.indicator else [])]

    @classmethod
    def learn(
        cls, series: pl.Series, impute: bool, spelling: NumberSpelling | TruthSpelling | None = None
    ) -> NumberColumn:
        """From numbers or booleans, which were spelled so if they were text."""
        import polars as pl

        fill, indicator = _learn_fill(checked_numbers(series, f"column {quoted(series.name)}"), impute)
        return cls(series.name, fill, indicator, spelling or (TRUTH if series.dtype == pl.Boolean else PLAIN))

    def numbers(self, series: pl.Series) -> np.ndarray:
        """(rows, 1), NaN where a cell is missing."""
        import polars as pl

        label = f"column {quoted(self.name)}"
        if is_text(series):
            text = series.cast(pl.String)
            series = self.spelling.numbers(text.set(self._passed_over(text), None), label)
        elif series.dtype.is_temporal():
            raise InputError(f"{label} was numeric in training but holds dates; store numbers in that column")
        return checked_numbers(series, label)[:, None]

    def new_words(self, series: pl.Series) -> list[str]:
        """Texts that training did not have and that count as missing, each once."""
        import polars as pl

        if not is_text(series):
            return []
        text = series.cast(pl.String)
        return text.filter(self._passed_over(text)).str.strip_chars().unique(maintain_order=True).to_list()

    def _passed_over(self, text: pl.Series) -> pl.Series:
        """Which cells hold words that count as missing: none where missing cells are refused, or most cells are words.

        A column of words is another column than that of training, and is refused.
        """
        import polars as pl

        if self.fill is not None and isinstance(self.spelling, NumberSpelling):
            words = self.spelling.unknown_words(text)
            if 2 * int(words.sum()) < text.len():
                return words
        return pl.Series([False]).new_from_index(0, text.len())

    def to_dict(self) -> dict[str, Any]:
        stored = {"kind": "number", "name": self.name, "fill": self.fill} | _if_true("indicator", self.indicator)
        return stored | ({} if self.spelling == PLAIN else {"spelling": self.spelling.to_dict()})


@dataclass(frozen=True)
class DateColumn:
    """Dates as days since 1970, besides sine and cosine of the time of ``periods``: the day, the week, the year.

    A period has its place where the training table spans two of it at least. ``format`` is that of the training table's
    dates if it held text; later texts must have it. ``fill`` and ``indicator`` are those of a ``NumberColumn``.
    """

    name: str
    fill: float | None
    indicator: bool
    periods: tuple[str, ...]
    format: str | None

    @property
    def feature_names(self) -> list[str]:
        phases = [f"{self.name} ({wave} of {period})" for period in self.periods for wave in ("sine", "cosine")]
        return [self.name, *phases, *([f"{self.name} {MISSING_CATEGORY}"] if self.indicator else [])]

    @classmethod
    def learn(cls, times: pl.Series, impute: bool, format: str | None) -> DateColumn:
        days = _days(times)
        seen = days[~np.isnan(days)]
        spans = [name for name, days in PERIODS.items() if np.ptp(seen) >= 2 * days]
        if not (seen % 1.0).any():
            spans = [name for name in spans if name != "day"]  # all at midnight
        fill, indicator = _learn_fill(days, impute)
        return cls(times.name, fill, indicator, tuple(spans), format)

    def numbers(self, series: pl.Series) -> np.ndarray:
        """(rows, 1 + 2 periods), NaN where a cell is missing."""
        import polars as pl

        label = f"column {quoted(self.name)}"
        if series.null_count() == series.len():
            days = np.full(series.len(), np.nan)
        elif is_text(series):
            days = _days(dates_by_format(series.cast(pl.String), self.format, label))
        elif series.dtype == pl.Date or series.dtype == pl.Datetime:
            days = _days(as_times(series))
        else:
            raise InputError(f"{label} held dates in training but {series.dtype} here; store dates in that column")
        return self.phases(days)

    def phases(self, days: np.ndarray) -> np.ndarray:
        """The days and the phases of the periods."""
        angles = [2.0 * np.pi / PERIODS[name] * np.mod(days, PERIODS[name]) for name in self.periods]
        waves = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
        return np.stack([days, *(np.rint(wave / PHASE_STEP) * PHASE_STEP for wave in waves)], axis=1)

    def to_dict(self) -> dict[str, Any]:
        stored = {"kind": "date", "name": self.name, "fill": self.fill, "periods": list(self.periods)}
        return stored | {"format": self.format} | _if_true("indicator", self.indicator)


@dataclass(frozen=True)
class CategoryColumn:
    """One column of 0 and 1 for each category.

    ``fill`` is the category of missing cells; None refuses them. With ``other`` the rarer categories of the training
    table, and those it did not have, are one category, "(other)"; without, unknown ones are 0 everywhere.
    ``spelling`` is that of categories that are numbers: texts that fit it are the category of their number.
    """

    name: str
    categories: tuple[str, ...]
    fill: str | None
    other: bool = False
    spelling: NumberSpelling | None = None

    @property
    def feature_names(self) -> list[str]:
        return [f"{self.name}={category}" for category in self.categories]

    @classmethod
    def learn(cls, series: pl.Series, impute: bool, *, keep_all: bool) -> CategoryColumn:
        """``keep_all`` gives each category a column of its own, however many there are."""
        if series.dtype.is_float():
            checked_numbers(series, f"column {quoted(series.name)}")
        text = category_text(series)
        counts = Counter(text.drop_nulls().to_list())
        if impute and text.null_count():
            counts[MISSING_CATEGORY] = text.null_count()
        kept: set[str] = set(counts) if keep_all else _frequent(counts)
        other = kept < set(counts)
        categories = tuple(sorted(kept | {OTHER_CATEGORY} if other else kept))
        if not impute:
            return cls(series.name, categories, None, other)
        if text.null_count():
            fill = MISSING_CATEGORY if MISSING_CATEGORY in kept else OTHER_CATEGORY
        else:
            fill = min(kept or {OTHER_CATEGORY}, key=lambda category: (-counts[category], category))
        return cls(series.name, categories, fill, other)

    def numbers(self, series: pl.Series) -> tuple[np.ndarray, str | None]:
        """(rows, categories), and what there is to say of categories that training did not have."""
        import polars as pl

        if series.dtype.is_float():
            checked_numbers(series, f"column {quoted(self.name)}")
        if self.spelling is not None and is_text(series):
            cells = series.cast(pl.String)
            numbers = self.spelling.normalized(cells)
            series = numbers.zip_with(numbers.is_not_null(), cells.set(is_missing(cells), None))
        text = category_text(series)
        if self.fill is not None:
            text = text.fill_null(self.fill)
        codes = text.replace_strict(
            list(self.categories), range(len(self.categories)), default=-1, return_dtype=pl.Int64
        ).to_numpy()
        out = np.zeros((len(codes), len(self.categories)))
        if self.other:
            codes = np.where(codes < 0, self.categories.index(OTHER_CATEGORY), codes)
        known = np.flatnonzero(codes >= 0)
        out[known, codes[known]] = 1.0
        if unseen := len(codes) - len(known):
            values = text.filter(pl.Series(codes < 0)).unique(maintain_order=True).to_list()
            cells = "1 cell holds a category" if unseen == 1 else f"{unseen} cells hold categories"
            message = f"{cells} not seen in training ({listed(values, 3)}); encoded as all zeros"
            return out, f"column {quoted(self.name)}: {message}"
        return out, None

    def to_dict(self) -> dict[str, Any]:
        stored = {"kind": "category", "name": self.name, "categories": list(self.categories), "fill": self.fill}
        stored |= _if_true("other", self.other)
        return stored | ({} if self.spelling is None else {"spelling": self.spelling.to_dict()})


@dataclass(frozen=True)
class OrderedColumn:
    """Categories in an order, such as low, medium and high, as their place in it: 0, 1, 2.

    ``fill`` and ``indicator`` are those of a ``NumberColumn``. Texts that are none of ``levels`` are refused: they have
    no place in the order.
    """

    name: str
    levels: tuple[str, ...]
    fill: float | None
    indicator: bool = False

    @property
    def feature_names(self) -> list[str]:
        return [self.name, *([f"{self.name} {MISSING_CATEGORY}"] if self.indicator else [])]

    @classmethod
    def learn(cls, series: pl.Series, levels: tuple[str, ...], impute: bool) -> OrderedColumn:
        """``levels`` are all categories in their order, those that no row has included."""
        column = cls(series.name, levels, None)
        fill, indicator = _learn_fill(column.numbers(series)[:, 0], impute)
        return cls(series.name, levels, fill, indicator)

    def numbers(self, series: pl.Series) -> np.ndarray:
        """(rows, 1), NaN where a cell is missing."""
        import polars as pl

        text = category_text(series)
        places = text.replace_strict(list(self.levels), range(len(self.levels)), default=None, return_dtype=pl.Float64)
        strange = places.is_null() & text.is_not_null()
        if strange.any():
            row = first_row(strange)
            raise InputError(
                f"column {quoted(self.name)} holds {quoted(text[row - 1])} in row {row}, which is not in the order "
                f"of training, {listed(self.levels, 5)}; use one of these"
            )
        return places.to_numpy()[:, None]

    def to_dict(self) -> dict[str, Any]:
        stored = {"kind": "ordered", "name": self.name, "levels": list(self.levels), "fill": self.fill}
        return stored | _if_true("indicator", self.indicator)


def _learn_fill(numbers: np.ndarray, impute: bool) -> tuple[float | None, bool]:
    """The median, and whether any is missing."""
    if not impute:
        return None, False
    missing = np.isnan(numbers)
    return float(np.median(numbers[~missing])), bool(missing.any())


def _days(times: pl.Series) -> np.ndarray:
    """Days since 1970, NaN where a cell is missing."""
    import polars as pl

    days = times.to_physical().cast(pl.Float64) / _DAY
    return days.to_numpy()


def _frequent(counts: Counter[str]) -> set[str]:
    """The categories with a column of their own."""
    if len(counts) <= _FEW_CATEGORIES:
        return set(counts)
    least = max(2, _MIN_SHARE * counts.total())
    order = sorted(counts, key=lambda category: (-counts[category], category))[:_MAX_CATEGORIES]
    return {category for category in order if counts[category] >= least}


def _if_true(name: str, value: bool) -> dict[str, bool]:
    """Left out where it is False, as in the files of earlier versions."""
    return {name: True} if value else {}
