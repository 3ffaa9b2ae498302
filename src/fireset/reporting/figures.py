"""The parts of a report page: sections with text, tables and figures, as plain data.

Commands (a training run, the theory, the quantum algorithms) describe their results with these classes; only
``fireset.reporting.page`` knows how they are drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

SeriesStyle = Literal["line", "dashed", "points", "bars"]  # dashed is for bounds and predictions


@dataclass(frozen=True)
class Series:
    """One line, set of points or set of bars: y over x, of equal length."""

    name: str
    x: Sequence[Any]
    y: Sequence[float]
    style: SeriesStyle = "line"


@dataclass(frozen=True)
class Figure:
    """Series over common axes. ``alt`` describes the figure in a sentence or two for readers who cannot see it."""

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
class Table:
    """Rows of cells, formatted as they are shown."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """A part of a page: a heading, paragraphs of plain text, tables, figures, in this order."""

    heading: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure | HeatMap] = field(default=())
