"""Writes the sections of ``fireset.reporting.figures`` as one HTML file without external resources.

Plotly is inlined, and a content security policy forbids every request. Text of the caller (column names, file names) is
untrusted: Jinja escapes it in the page, ``_escaped`` for Plotly, which interprets some HTML. Styles are in
``page.css``, drawing is in ``page.js``; both follow the light or dark preference of the browser.
"""

import datetime
import html
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

from fireset._util.errors import InputError
from fireset._util.files import atomic_path, check_writable
from fireset._util.parallel import thread_count
from fireset.reporting.figures import CountMatrix, Figure, HeatMap, Section, Series, short_names

_FOLDER = Path(__file__).parent
_MAX_TABLE_ROWS = 40  # of the data of a figure; longer series are thinned evenly
_MAX_TABLE_CELLS = 400  # of a heat map's
_MAX_HORIZONTAL_COLUMNS, _MAX_HORIZONTAL_LETTERS = 4, 6  # of a matrix: above both, column names are vertical
_PACKAGES = ("fireset", "numpy", "scipy", "numba", "scikit-learn", "torch", "jax")
_NUMBER = re.compile(r"^[-−+]?[\d., ]+(e[-+]?\d+)?\s?(%|×|s|ms|MB|GB|kB|times)?$")


def check_report(path: str | PathLike) -> None:
    """Raise InputError if the page cannot be written or its libraries are missing. Call it before the work."""
    _libraries()
    check_writable(path)


def write_page(
    path: Path, title: str, sections: Sequence[Section], *, settings: Mapping[str, Any] | None = None
) -> None:
    """Write a page atomically: title, sections, and the settings and versions that reproduce the run.

    The file has about 5 MB, since it includes Plotly and can be opened offline.

    Parameters
    ----------
    path : Path
        The HTML file; replaced if it exists.
    title : str
        Heading and title of the page.
    sections : sequence of Section
        In the order of reading. All text is plain text.
    settings : mapping, optional
        Names and values for the last section, before the versions of the libraries.
    """
    jinja2, plotly_source = _libraries()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.globals["numeric_columns"] = _numeric_columns
    drawn, shown_sections = [], []
    for section in sections:
        figures = []
        for figure in section.figures:
            if isinstance(figure, CountMatrix):
                figures.append(_matrix_description(figure, f"matrix-{len(shown_sections)}-{len(figures)}"))
                continue
            figures.append(_figure_description(figure, len(drawn)))
            drawn.append(_heat_map_data(figure) if isinstance(figure, HeatMap) else _figure_data(figure))
        shown_sections.append({"section": section, "id": f"section-{len(shown_sections) + 1}", "figures": figures})
    text = environment.get_template("page.html").render(
        title=title,
        sections=shown_sections,
        drawn=drawn,
        repeat=[(str(name), _formatted(value)) for name, value in {**(settings or {}), **_versions()}.items()],
        style=(_FOLDER / "page.css").read_text(encoding="utf-8"),
        script=(_FOLDER / "page.js").read_text(encoding="utf-8"),
        plotly=plotly_source if drawn else "",
    )
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")


def _libraries():
    """Return Jinja and the source of Plotly, which are optional dependencies."""
    try:
        import jinja2
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise InputError(
            f"a report needs plotly and jinja2, and {error.name} is missing; install them with "
            "pip install 'fireset[report]'"
        ) from error
    return jinja2, get_plotlyjs()


def _colors(figure: Figure) -> list[int]:
    """Return a colour for each series; a dashed series after points is their fit and has their colour."""
    colors: list[int] = []
    for k, series in enumerate(figure.series):
        fit = k > 0 and series.style == "dashed" and figure.series[k - 1].style == "points"
        colors.append(colors[-1] if fit else max(colors, default=-1) + 1)
    return colors


def _categories(figure: Figure) -> list[str]:
    """Return the distinct x of all series as text if any is text; [] if all are numbers."""
    every = [x for series in figure.series for x in series.x]
    return list(dict.fromkeys(map(str, every))) if any(isinstance(x, str) for x in every) else []


def _figure_data(figure: Figure) -> dict[str, Any]:
    """Return the data of a figure for page.js."""
    names = _categories(figure)
    places = {name: k for k, name in enumerate(names)}
    return {
        "kind": "series",
        "x_label": _escaped(figure.x_label),
        "y_label": _escaped(figure.y_label),
        "x_type": "category" if names else "log" if figure.log_x else "linear",
        "y_type": "log" if figure.log_y else "linear",
        "names": [_escaped(name) for name in short_names(names)],
        "full_names": [_escaped(name) for name in names],
        "series": [
            {
                "name": _escaped(series.name),
                "x": [places[str(x)] if names else _finite_or_none(x) for x in series.x],
                "y": [_finite_or_none(y) for y in series.y],
                "spans": [[_finite_or_none(end) for end in span] for span in series.spans or ()],
                "style": series.style,
                "color": color,
            }
            for series, color in zip(figure.series, _colors(figure), strict=True)
        ],
    }


def _heat_map_data(figure: HeatMap) -> dict[str, Any]:
    return {
        "kind": "heat map",
        "x_label": _escaped(figure.x_label),
        "y_label": _escaped(figure.y_label),
        "values": [[_finite_or_none(value) for value in row] for row in figure.values],
    }


def _figure_description(figure: Figure | HeatMap, number: int) -> dict[str, Any]:
    """Return title, description, legend and data tables of a figure for the template."""
    if isinstance(figure, HeatMap):
        legend, tables = [], [_heat_map_table(figure)]
    else:
        legend = [(s.name, s.style, color) for s, color in zip(figure.series, _colors(figure), strict=True)]
        tables = [_series_table(figure, series) for series in figure.series]
    words = 0 if isinstance(figure, HeatMap) else len(_categories(figure))
    return {
        "id": f"figure-{number}",
        "number": number,
        "title": figure.title,
        "alt": figure.alt,
        "legend": legend,
        "tables": tables,
        "height": 5 + 1.7 * words if words else None,  # rem
    }


def _matrix_description(figure: CountMatrix, name: str) -> dict[str, Any]:
    """Return a count matrix for the template."""
    rows = [
        {
            "name": row_name,
            "total": f"{total:,}",
            "cells": [
                {"count": f"{count:,}", "share": count / total if total else 0.0, "match": j == k}
                for j, count in enumerate(counts)
            ],
        }
        for k, (row_name, counts, total) in enumerate(zip(figure.row_names, figure.counts, figure.totals, strict=True))
    ]
    names = figure.column_names
    vertical = len(names) > _MAX_HORIZONTAL_COLUMNS and max(map(len, names)) > _MAX_HORIZONTAL_LETTERS
    return {
        "id": name,
        "matrix": {"rows": rows, "columns": names, "vertical": vertical},
        "title": figure.title,
        "alt": figure.alt,
        "x_label": figure.x_label,
        "y_label": figure.y_label,
        "full_names": figure.full_names,
    }


def _series_table(figure: Figure, series: Series) -> dict[str, Any]:
    """Return the points of a series as a table, thinned if there are many."""
    count = len(series.y)
    last = _MAX_TABLE_ROWS - 1
    chosen = range(count) if count <= _MAX_TABLE_ROWS else [k * (count - 1) // last for k in range(_MAX_TABLE_ROWS)]
    return {
        "caption": series.name + ("" if len(chosen) == count else f" ({len(chosen)} of {count:,} points)"),
        "columns": [figure.x_label, figure.y_label, *(["from", "to"] if series.spans else [])],
        "rows": [
            [_formatted(value) for value in (series.x[k], series.y[k], *(series.spans[k] if series.spans else ()))]
            for k in chosen
        ],
    }


def _heat_map_table(figure: HeatMap) -> dict[str, Any]:
    """Return a small matrix itself, of a large one its size, extremes and mean."""
    values = [[float(value) for value in row] for row in figure.values]
    rows, columns = len(values), max(map(len, values), default=0)
    flat = [value for row in values for value in row]
    if rows * columns <= _MAX_TABLE_CELLS:
        return {
            "caption": f"{rows} × {columns} values",
            "columns": [f"{figure.y_label} \\ {figure.x_label}", *map(str, range(columns))],
            "rows": [[str(k), *map(_formatted, row)] for k, row in enumerate(values)],
        }
    mean = sum(flat) / len(flat)
    statistics = {"rows": rows, "columns": columns, "smallest": min(flat), "mean": mean, "largest": max(flat)}
    return {
        "caption": f"{rows} × {columns} values, summary",
        "columns": ["what", "value"],
        "rows": [[name, _formatted(value)] for name, value in statistics.items()],
    }


def _numeric_columns(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Return which columns contain only numbers and empty cells."""
    cells = [[row[k] for row in rows if row[k]] for k in range(len(columns))]
    return [bool(column) and all(_NUMBER.match(cell) for cell in column) for column in cells]


def _escaped(text: object) -> str:
    """Escape text for Plotly, which would otherwise interpret tags and entities."""
    return html.escape(str(text), quote=False)


def _finite_or_none(value: Any) -> float | None:
    """Return a number for JSON; None, a gap in the figure, if it is not finite."""
    number = float(value)
    return number if isfinite(number) else None


def _formatted(value: Any) -> str:
    """Return a value as text for the page."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not given"}[value]
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_formatted, value)) or "none"
    number = float(value)
    if number.is_integer() and abs(number) < 1e15:
        return f"{number:,.0f}"
    return f"{number:.6g}"


def _versions() -> dict[str, str]:
    """Return the versions of the libraries, the machine and the date."""
    versions = {"Python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):  # an optional package
            versions[name] = metadata.version(name)
    return {
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "machine": f"{platform.system()} {platform.machine()}, {thread_count()} threads",
        "date": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %z"),
    }
