"""Ordered categories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.cells import category_text, first_position, is_unicode, listed, quoted, row_name
from fireset.tables.column_types.base import (
    NumericColumn,
    TrainingColumn,
    check_keys,
    check_stored,
    learn_fill,
    restore_fill,
)

if TYPE_CHECKING:
    import polars as pl

    from fireset._util.onnx_graph import Graph

_MISSING_CODE, _UNKNOWN_CODE = -1, -2  # of ONNX cells that are not levels


@dataclass(frozen=True)
class OrderedColumn(NumericColumn):
    """Ordered categories, such as low, medium and high, as their positions 0, 1, 2. Other texts are refused.

    ``levels`` are all categories in order, including those without rows.
    """

    levels: tuple[str, ...] = ()

    kind = "ordered"
    onnx_dtype = object

    @classmethod
    def learn(cls, column: TrainingColumn) -> Self | None:
        import polars as pl

        dtype = column.series.dtype
        if column.categorical or not isinstance(dtype, pl.Enum):
            return None
        levels = tuple(category_text(dtype.categories).to_list())
        if len(set(levels)) < len(levels):  # such as 1 and 01, which are one category
            return None
        numbers = cls(column.name, None, levels=levels).numbers(column.series)
        return cls(column.name, *learn_fill(numbers, column.impute), levels)

    def numbers(self, series: pl.Series) -> np.ndarray:
        import polars as pl

        text = category_text(self._supported(series))
        levels = list(self.levels)
        positions = text.replace_strict(levels, range(len(levels)), default=None, return_dtype=pl.Float64)
        unknown = positions.is_null() & text.is_not_null()
        if unknown.any():
            position = first_position(unknown)
            raise InputError(
                f"{self.label} holds {quoted(text[position])} in row {row_name(position)}, which is not in the order "
                f"of training, {listed(self.levels, 5)}; use one of these"
            )
        return positions.to_numpy()

    def describe(self, series: pl.Series) -> dict[str, Any]:
        return super().describe(series) | {"kind": "number", "note": f"{len(self.levels)} levels in order"}

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"levels": list(self.levels)}

    @classmethod
    def restore(cls, stored: dict[str, Any]) -> Self:
        check_keys(stored, ["fill", "levels"], ["indicator"])
        levels = stored["levels"]
        texts = isinstance(levels, list) and len(levels) > 0 and all(map(is_unicode, levels))
        check_stored(texts and len(set(levels)) == len(levels), "'levels' must be different texts", levels)
        return cls(stored["name"], *restore_fill(stored), tuple(levels))

    def onnx_numbers(self, graph: Graph, cells: str) -> str:
        """Add nodes for positions: NaN for missing cells, infinite for unknown ones, which predict NaN."""
        name, positions = self.name, {level: position for position, level in enumerate(self.levels)}
        codes = graph.category_codes(
            cells, positions, missing=_MISSING_CODE, unknown=_UNKNOWN_CODE, name=f"{name}/code"
        )
        numbers = graph.cast(codes, np.float64, f"{name}/position")
        for code, value in ((_MISSING_CODE, np.nan), (_UNKNOWN_CODE, np.inf)):
            is_code = graph.constant(f"{name}/code_of_{value}", code, np.int64)
            is_code = graph.add("Equal", codes, is_code, name=f"{name}/is_{value}")
            numbers = graph.add("Where", is_code, graph.constant(f"{value}", value), numbers, name=f"{name}/or_{value}")
        return numbers
