"""The parts of a report page: sections with text, tables and figures, as plain data.

Commands (a training run, the theory, the quantum algorithms) describe their results with these classes; only
``fireset.reporting.page`` knows how they are drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

_NAME_LETTERS = 24  # of a label beside a bar or a row; a table below the figure has all of it

SeriesStyle = Literal["line", "dashed", "points", "bars"]  # dashed is for bounds and predictions


@dataclass(frozen=True)
class Series:
    """One line, set of points or set of bars: y over x, of equal length.

    ``spans`` are the intervals, one for each point, in which y lies with some confidence.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[float]
    style: SeriesStyle = "line"
    spans: Sequence[tuple[float, float]] | None = None


@dataclass(frozen=True)
class Figure:
    """Series over common axes. ``alt`` describes the figure in a sentence or two for readers who cannot see it.

    Where x are words, they stand below each other, and y grows to the right.
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

    The first columns are the classes of the rows, in the same order, so that the diagonal holds the matches; further
    columns may follow. ``totals`` are those of the rows, where not all of their columns are shown, too.
    """

    title: str
    x_label: str
    y_label: str
    row_names: Sequence[str]
    column_names: Sequence[str]
    counts: Sequence[Sequence[int]]
    totals: Sequence[int]
    alt: str
    full_names: Sequence[tuple[str, str]] = ()  # the names that were shortened, each with the whole of it


@dataclass(frozen=True)
class Table:
    """Rows of cells, formatted as they are shown."""

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
    """Names with their middles left out where they are long, so that beginning and end tell them apart; all differ."""
    short: list[str] = []
    for name in names:
        name = " ".join(name.split())
        head, tail = _NAME_LETTERS * 2 // 3, _NAME_LETTERS // 3 - 1
        short.append(name if len(name) <= _NAME_LETTERS else f"{name[:head]}…{name[-tail:]}")
    alike = {name for name in short if short.count(name) > 1}
    return [f"{name} ({k + 1})" if name in alike else name for k, name in enumerate(short)]
