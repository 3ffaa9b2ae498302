"""What a report is made of: sections with text, tables and figures, as plain data.

Whoever has something to show (a training run, the theory, the quantum algorithms) describes it in these words;
``fireset.reporting`` alone knows how it is drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Look = Literal["line", "dashed", "points", "bars"]  # dashed is for bounds and predictions, beside what was measured


@dataclass(frozen=True)
class Series:
    """One line, set of points or set of bars: y over x, of equal length."""

    name: str
    x: Sequence[Any]
    y: Sequence[float]
    look: Look = "line"


@dataclass(frozen=True)
class Figure:
    """Series over common axes. ``alt`` says in a sentence or two what is to be seen, for whoever does not see it."""

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
    """Rows of cells, already in the form that people read."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """A part of a page: a heading, paragraphs of plain text, tables, figures, in this order."""

    heading: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure | HeatMap] = field(default=())
