"""Dates and times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.cells import is_text
from fireset.tables.column_types.base import (
    NumericColumn,
    TrainingColumn,
    check_keys,
    check_stored,
    learn_fill,
    restore_fill,
)
from fireset.tables.text_formats import DATE_PATTERNS, DateFormat, TextFormat, parse_dates, to_utc

if TYPE_CHECKING:
    import polars as pl

    from fireset._util.onnx_graph import Graph

PERIOD_DAYS = {"day": 1.0, "week": 7.0, "year": 365.2425}
_MIN_PERIODS = 2  # in the training table; in a shorter one a phase adds little to the date
# Sine and cosine are multiples of this, the precision of float32. So noon has one sine on all days, which the column
# map counts as one value, and all libraries compute the same sine.
_PHASE_STEP = 2.0**-24
_MICROSECONDS_PER_DAY = 86_400e6


@dataclass(frozen=True)
class DateColumn(NumericColumn):
    """Days since 1970, and sine and cosine of the time within each of ``periods``.

    ``periods`` are those of day, week and year that the training table spans twice. Text cells must have
    ``text_format``; without one, the year must come first.
    """

    periods: tuple[str, ...] = ()
    text_format: DateFormat | None = None

    kind = "date"

    @classmethod
    def learn(cls, column: TrainingColumn) -> Self | None:
        cells, text_format = column.cells, None
        if cells is None or column.categorical:
            return None
        if cells.dtype.is_temporal():
            times = to_utc(cells)
        elif isinstance(column.text_format, DateFormat) and is_text(cells):
            text_format = column.text_format
            times = parse_dates(cells, text_format.pattern, column.label)
        else:
            return None
        days = _days(times)
        present = days[~np.isnan(days)]
        span, at_midnight = np.ptp(present), not (present % 1.0).any()
        periods = [name for name, length in PERIOD_DAYS.items() if span >= _MIN_PERIODS * length]
        periods = [name for name in periods if not (name == "day" and at_midnight)]
        return cls(column.name, *learn_fill(days, column.impute), tuple(periods), text_format)

    def numbers(self, series: pl.Series) -> np.ndarray:
        import polars as pl

        series = self._supported(series)
        if series.null_count() == series.len():
            return np.full(series.len(), np.nan)
        if is_text(series):
            pattern = None if self.text_format is None else self.text_format.pattern
            return _days(parse_dates(series.cast(pl.String), pattern, self.label))
        if series.dtype == pl.Date or series.dtype == pl.Datetime:
            return _days(to_utc(series))
        raise InputError(f"{self.label} held dates in training but {series.dtype} here; store dates in that column")

    def transform(self, numbers: np.ndarray) -> np.ndarray:
        features = [numbers]
        for length in (PERIOD_DAYS[name] for name in self.periods):
            features += sine_and_cosine(2.0 * np.pi / length * np.mod(numbers, length))
        return np.stack(features, axis=1)

    @property
    def transformed_names(self) -> list[str]:
        return [
            self.name,
            *(f"{self.name} ({wave} of {period})" for period in self.periods for wave in ("sine", "cosine")),
        ]

    def describe(self, series: pl.Series) -> dict[str, Any]:
        found = super().describe(series) | {"phases": list(self.periods)}
        if self.text_format:
            found["read_as"] = self.text_format.pattern
        return found | ({"filled_with": "median"} if "missing" in found else {})

    def with_format(self, text_format: TextFormat | None) -> Self:
        return replace(self, text_format=text_format) if isinstance(text_format, DateFormat) else self

    def to_dict(self) -> dict[str, Any]:
        pattern = None if self.text_format is None else self.text_format.pattern
        return super().to_dict() | {"periods": list(self.periods), "format": pattern}

    @classmethod
    def restore(cls, stored: dict[str, Any]) -> Self:
        check_keys(stored, ["fill", "periods", "format"], ["indicator"])
        periods, pattern = stored["periods"], stored["format"]
        in_order = isinstance(periods, list) and periods == [name for name in PERIOD_DAYS if name in periods]
        check_stored(in_order, f"'periods' must be some of {', '.join(PERIOD_DAYS)}, in this order", periods)
        known = pattern is None or pattern in DATE_PATTERNS
        check_stored(known, "the 'format' of a date column must be a known one", pattern)
        text_format = None if pattern is None else DateFormat(pattern)
        return cls(stored["name"], *restore_fill(stored), tuple(periods), text_format)

    def transform_onnx(self, graph: Graph, numbers: str) -> list[str]:
        features = [numbers]
        for period in self.periods:
            name, length = f"{self.name}/{period}", PERIOD_DAYS[period]
            # The remainder has the sign of the days, unlike in NumPy. Sine and cosine do not depend on this.
            since = graph.add("Mod", numbers, graph.constant(f"{name}/length", length), name=f"{name}/since", fmod=1)
            turn = graph.constant(f"{name}/turn", 2.0 * np.pi / length)
            features += sine_and_cosine_onnx(graph, graph.add("Mul", since, turn, name=f"{name}/angle"), name)
        return features


def sine_and_cosine(angles: np.ndarray) -> list[np.ndarray]:
    """Return sine and cosine, rounded to multiples of ``_PHASE_STEP``."""
    return [np.rint(wave(angles) / _PHASE_STEP) * _PHASE_STEP for wave in (np.sin, np.cos)]


def sine_and_cosine_onnx(graph: Graph, angle: str, name: str) -> list[str]:
    """Add nodes for ``sine_and_cosine``."""
    # The cosine is a shifted sine: early versions of onnxruntime have no cosine in float64.
    quarter = graph.constant(f"{name}/quarter", np.pi / 2)
    shifted = graph.add("Add", angle, quarter, name=f"{name}/shifted_angle")
    return [_rounded_sine(graph, angle, f"{name}/sine"), _rounded_sine(graph, shifted, f"{name}/cosine")]


def _days(times: pl.Series) -> np.ndarray:
    """Convert times to days since 1970, NaN where a cell is missing."""
    import polars as pl

    return (times.to_physical().cast(pl.Float64) / _MICROSECONDS_PER_DAY).to_numpy()


def _rounded_sine(graph: Graph, angle: str, name: str) -> str:
    """Add nodes for a sine rounded to multiples of ``_PHASE_STEP``."""
    step = graph.constant(f"{name}/step", _PHASE_STEP)
    steps = graph.add("Div", graph.add("Sin", angle, name=f"{name}/exact"), step, name=f"{name}/steps")
    return graph.add("Mul", graph.add("Round", steps, name=f"{name}/whole_steps"), step, name=name)
