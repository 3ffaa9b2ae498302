"""The contract of a column type.

A column type decides whether it applies to a training column (``learn``), converts the cells of later columns to
features (``encode``), and defines its stored form (``to_dict``, ``restore``) and its ONNX nodes (``to_onnx``).
``NumericColumn`` implements most of this for types that convert each cell to one number.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.cells import is_supported, is_text, numeric_durations, quoted, refuse_type, row_name
from fireset.tables.text_formats import MixedCells, TextFormat, detect_mixed_cells

if TYPE_CHECKING:
    import polars as pl

    from fireset._util.onnx_graph import Graph

MISSING_CATEGORY = "(missing)"
FILL_REMEDY = "fill them in, or train with --impute (missing='impute')"


class UnusableColumn(Exception):  # noqa: N818 - not an error: the column is left out
    """Raised by ``ColumnType.learn`` for a column that no type can use; the message is the reason."""


@dataclass(frozen=True)
class TrainingColumn:
    """A column of the training table with the options that apply to it.

    Attributes
    ----------
    series : polars.Series
        Missing cells are null; at least one cell is present.
    impute : bool
        Whether missing cells are accepted.
    categorical : bool
        Whether the user requested one category per value.
    text_format : TextFormat or None
        Format of text cells that are numbers, booleans or dates.
    warnings : list of str
        Messages for the user, appended by ``ColumnType.learn``.
    """

    series: pl.Series
    impute: bool = True
    categorical: bool = False
    text_format: TextFormat | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.series.name

    @property
    def label(self) -> str:
        """The column in messages."""
        return f"column {quoted(self.name)}"

    @cached_property
    def cells(self) -> pl.Series | None:
        """Numbers, text or dates, with durations as numbers of days; None for columns of other types."""
        return numeric_durations(self.series) if is_supported(self.series) else None

    @cached_property
    def mixed_cells(self) -> MixedCells | None:
        """Words among numbers in a text column; None if there are none."""
        return detect_mixed_cells(self.series)


class NumberEncoding(NamedTuple):
    """Encoding of a number column: numbers unchanged, ``fill`` for missing ones, and an indicator of missing ones."""

    fill: float | None  # None: missing numbers are refused
    indicator: bool


class ColumnType(ABC):
    """A column of a table as one or several features.

    Subclasses are frozen dataclasses, so that encoders can be compared.

    Attributes
    ----------
    kind : str
        Name in the registry and in model files.
    name : str
        Name of the column.
    onnx_dtype : type
        Type of the input of the ONNX graph: ``numpy.float64`` with NaN for missing cells, or ``object`` for text with
        "" for missing cells.
    """

    kind: ClassVar[str]
    onnx_dtype: ClassVar[type] = np.float64
    name: str

    @property
    def label(self) -> str:
        """The column in messages."""
        return f"column {quoted(self.name)}"

    @classmethod
    @abstractmethod
    def learn(cls, column: TrainingColumn) -> Self | None:
        """Learn from a training column, or return None if this type does not apply to it.

        Raises UnusableColumn if the column should be left out, and InputError if it must be corrected.
        """

    @property
    @abstractmethod
    def feature_names(self) -> list[str]:
        """Names of the features, such as ``age`` or ``color=red``."""

    @property
    @abstractmethod
    def accepts_missing(self) -> bool:
        """Whether ``encode`` accepts missing cells."""

    @abstractmethod
    def encode(self, series: pl.Series) -> tuple[np.ndarray, list[str]]:
        """Convert cells to features, and return messages about cells unlike those of training.

        ``series`` has null for missing cells and may have another type than in training. The matrix has shape
        (rows, len(feature_names)) and is finite. Raises InputError for cells that cannot be encoded.
        """

    @abstractmethod
    def describe(self, series: pl.Series) -> dict[str, Any]:
        """Describe the column and its missing cells for users.

        Keys are ``name`` and ``kind``, optional are ``missing`` and ``filled_with``, ``levels`` (number of categories),
        ``read_as`` (format of text cells), ``note`` and others.
        """

    @property
    def unexpected_missing(self) -> str | None:
        """How missing cells are treated, for a warning; None if there were missing cells in training."""
        return None

    def with_format(self, text_format: TextFormat | None) -> Self:  # noqa: ARG002
        """Return the type for text cells of this format; by default formats have no effect."""
        return self

    @property
    def number_encoding(self) -> NumberEncoding | None:
        """The encoding, if it is that of a number column.

        Such columns can be given in an array, and are encoded all at once. None for other types.
        """
        return None

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return a form for JSON, with the keys ``kind`` and ``name``."""

    @classmethod
    @abstractmethod
    def restore(cls, stored: dict[str, Any]) -> Self:
        """Restore the result of ``to_dict`` from an untrusted file. ``kind`` and ``name`` are checked already."""

    @abstractmethod
    def to_onnx(self, graph: Graph, cells: str) -> str:
        """Add nodes that compute the features, float64 of shape (rows, len(feature_names)).

        ``cells`` is the input, of shape (rows, 1) and type ``onnx_dtype``. Cells that ``encode`` refuses become NaN or
        infinite.
        """

    def _supported(self, series: pl.Series) -> pl.Series:
        """Return cells that are numbers, text or dates, with durations as numbers of days."""
        refuse_type(series, self.label, "store it as in the training table")
        return numeric_durations(series)


@dataclass(frozen=True)
class NumericColumn(ColumnType):
    """Base of types that convert each cell to one number, and this number to features.

    Subclasses implement ``learn``, ``numbers`` and ``restore``. They may override ``transform`` with
    ``transformed_names`` and ``transform_onnx`` if features are functions of the number.

    Attributes
    ----------
    fill : float or None
        Number for missing cells, the median of training; None refuses missing cells.
    indicator : bool
        Whether a last feature is 1 where a cell is missing and else 0. True if cells were missing in training.
    """

    name: str
    fill: float | None
    indicator: bool = False

    @abstractmethod
    def numbers(self, series: pl.Series) -> np.ndarray:
        """Convert cells to float64 of shape (rows,), NaN where a cell is missing."""

    def transform(self, numbers: np.ndarray) -> np.ndarray:
        """Compute the features of numbers without NaN, (rows, len(transformed_names)); by default the numbers."""
        return numbers[:, None]

    @property
    def transformed_names(self) -> list[str]:
        """Names of the columns of ``transform``."""
        return [self.name]

    def onnx_numbers(self, graph: Graph, cells: str) -> str:  # noqa: ARG002
        """Add nodes for ``numbers``, (rows, 1); by default the input."""
        return cells

    def transform_onnx(self, graph: Graph, numbers: str) -> list[str]:  # noqa: ARG002
        """Add nodes for ``transform``, one value of shape (rows, 1) for each feature; by default the numbers."""
        return [numbers]

    @property
    def feature_names(self) -> list[str]:
        return [*self.transformed_names, *([f"{self.name} {MISSING_CATEGORY}"] if self.indicator else [])]

    @property
    def accepts_missing(self) -> bool:
        return self.fill is not None

    def encode(self, series: pl.Series) -> tuple[np.ndarray, list[str]]:
        numbers = self.numbers(series)
        missing = np.isnan(numbers)
        if missing.any():
            if self.fill is None:  # a word for a missing number; null cells are refused before
                row = row_name(int(missing.argmax()))
                raise InputError(f"{self.label} has no number in row {row}; {FILL_REMEDY}")
            numbers = np.where(missing, self.fill, numbers)
        features = self.transform(numbers)
        return (np.column_stack([features, missing]) if self.indicator else features), []

    def describe(self, series: pl.Series) -> dict[str, Any]:
        missing = int(np.isnan(self.numbers(series)).sum()) if is_text(series) else series.null_count()
        found: dict[str, Any] = {"name": self.name, "kind": self.kind}
        return found | ({"missing": missing, "filled_with": self.fill} if missing else {})

    @property
    def unexpected_missing(self) -> str | None:
        return None if self.indicator else "filled with the median"

    def to_dict(self) -> dict[str, Any]:
        stored = {"kind": self.kind, "name": self.name, "fill": self.fill}
        return stored | ({"indicator": True} if self.indicator else {})

    def to_onnx(self, graph: Graph, cells: str) -> str:
        numbers = self.onnx_numbers(graph, cells)
        missing = graph.add("IsNaN", numbers, name=f"{self.name}/missing")
        if self.fill is not None:
            fill = graph.constant(f"{self.name}/fill", self.fill)
            numbers = graph.add("Where", missing, fill, numbers, name=f"{self.name}/filled")
        features = self.transform_onnx(graph, numbers)
        if self.indicator:
            features = [*features, graph.cast(missing, np.float64, f"{self.name}/indicator")]
        return graph.joined(features, f"{self.name}/features")


# Helpers for learn and restore


def learn_fill(numbers: np.ndarray, impute: bool) -> tuple[float | None, bool]:
    """Return ``fill`` and ``indicator`` of a NumericColumn: the median, and whether any number is missing (NaN)."""
    if not impute:
        return None, False
    missing = np.isnan(numbers)
    return float(np.median(numbers[~missing])), bool(missing.any())


def restore_fill(stored: dict[str, Any]) -> tuple[float | None, bool]:
    """Check and return ``fill`` and ``indicator`` of a stored NumericColumn."""
    fill, indicator = stored["fill"], stored.get("indicator", False)
    numeric = isinstance(fill, int | float) and not isinstance(fill, bool) and abs(fill) <= sys.float_info.max
    check_stored(fill is None or numeric, "the 'fill' of a number column must be a finite number or null", fill)
    valid = isinstance(indicator, bool) and (fill is not None or not indicator)
    check_stored(valid, "the 'indicator' of a column requires a 'fill'", indicator)
    return None if fill is None else float(fill), indicator


def check_keys(stored: dict[str, Any], required: Sequence[str], optional: Sequence[str] = ()) -> None:
    """Check the keys of a stored column besides ``kind`` and ``name``."""
    keys = ["kind", "name", *required]
    valid = set(stored) - set(optional) == set(keys)
    check_stored(valid, f"a column of kind {stored['kind']!r} must have the keys {', '.join(keys)}", stored)


def check_stored(valid: bool, rule: str, value: object) -> None:
    """Raise InputError for a damaged encoder."""
    if not valid:
        raise InputError(f"the model's table encoder is damaged: {rule}, got {quoted(value)}; train the model again")
