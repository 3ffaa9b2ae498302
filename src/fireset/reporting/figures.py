"""The parts of a report page: sections with text, tables and figures, as plain data.

Commands describe their results with these classes; ``fireset.reporting.page`` draws them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

_MAX_LABEL_LETTERS = 24  # beside a bar or a row; a table below the figure has the full names

SeriesStyle = Literal["line", "dashed", "points", "bars"]  # dashed is for bounds and predictions


@dataclass(frozen=True)
class Series:
    """One line, set of points or set of bars: y over x, of equal length.

    ``spans`` are confidence intervals of y, one for each point.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[float]
    style: SeriesStyle = "line"
    spans: Sequence[tuple[float, float]] | None = None


@dataclass(frozen=True)
class Figure:
    """Series over common axes. ``alt`` describes the figure in a sentence or two for readers who cannot see it.

    If x are words, bars are horizontal, one below the other.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    alt: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class HeatMap:
    """A matrix of numbers as colours; ``values[row][column]``, the first row on top."""

    title: str
    x_label: str
    y_label: str
    values: Sequence[Sequence[float]]
    alt: str


@dataclass(frozen=True)
class CountMatrix:
    """Counts of pairs of classes as a shaded table: ``counts[row][column]``, with the share that each has of its row.

    The first columns are the classes of the rows in the same order, so that matches are on the diagonal; others may
    follow. ``totals`` are the row sums, which include columns that are not shown.
    """

    title: str
    x_label: str
    y_label: str
    row_names: Sequence[str]
    column_names: Sequence[str]
    counts: Sequence[Sequence[int]]
    totals: Sequence[int]
    alt: str
    full_names: Sequence[tuple[str, str]] = ()  # pairs (shortened name, full name)


@dataclass(frozen=True)
class Table:
    """Rows of formatted cells."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """A part of a page: a heading, paragraphs of plain text, a list, tables and figures."""

    heading: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure | HeatMap | CountMatrix] = ()
    points: Sequence[str] = ()  # a list, after the paragraphs


def short_names(names: Sequence[str]) -> list[str]:
    """Replace the middle of long names by an ellipsis; names that become equal are numbered."""
    short: list[str] = []
    for name in names:
        name = " ".join(name.split())
        head, tail = _MAX_LABEL_LETTERS * 2 // 3, _MAX_LABEL_LETTERS // 3 - 1
        short.append(name if len(name) <= _MAX_LABEL_LETTERS else f"{name[:head]}…{name[-tail:]}")
    alike = {name for name in short if short.count(name) > 1}
    return [f"{name} ({k + 1})" if name in alike else name for k, name in enumerate(short)]
