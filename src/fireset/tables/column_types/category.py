"""Categories, one-hot encoded."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fireset.tables.cells import category_text, checked_numbers, is_text, is_unicode, listed, quoted
from fireset.tables.column_types.base import (
    MISSING_CATEGORY,
    ColumnType,
    TrainingColumn,
    UnusableColumn,
    check_keys,
    check_stored,
)
from fireset.tables.text_formats import NumberFormat, TextFormat, is_missing_number, restore_format

if TYPE_CHECKING:
    import polars as pl

    from fireset._util.onnx_graph import Graph

OTHER_CATEGORY = "(other)"
_MAX_UNLIMITED = 30  # up to this number of categories, each has a feature
_MAX_CATEGORIES = 200
_MIN_FREQUENCY = 1e-3  # of the rows, for a feature if there are more than _MAX_UNLIMITED categories
_MIN_ROWS_TO_REFUSE = 10  # in fewer rows, texts that all differ may be categories
_MIN_SHARED_FRACTION = 0.1  # of the rows that share their text with another row; below, the column is left out
_MIN_WORDS_OF_FREE_TEXT = 3  # per cell on average, in the reason for leaving a column out
_UNKNOWN_CODE, _REFUSED_CODE = -1, -2  # of ONNX cells that are not categories


@dataclass(frozen=True)
class CategoryColumn(ColumnType):
    """One feature of 0 and 1 for each category.

    Attributes
    ----------
    categories : tuple of str
        Sorted.
    fill : str or None
        Category of missing cells; None refuses them.
    other : bool
        Whether rare and unknown categories are the category "(other)". If not, all features of unknown ones are 0.
    text_format : NumberFormat or None
        Format of text cells if the categories are numbers: 1,5 and 1.50 are then one category.
    """

    name: str
    categories: tuple[str, ...]
    fill: str | None
    other: bool = False
    text_format: NumberFormat | None = None

    kind = "category"
    onnx_dtype = object

    @classmethod
    def learn(cls, column: TrainingColumn) -> Self | None:
        import polars as pl

        cells = column.cells
        if cells is None or not (column.categorical or is_text(cells)):
            return None
        if not column.categorical and cells.dtype == pl.String:
            if column.mixed_cells:
                column.warnings.append(str(column.mixed_cells))
            else:
                _refuse_unique_texts(cells)
        if cells.dtype.is_float():
            checked_numbers(cells, column.label)
        text = category_text(cells)
        counts = Counter(text.drop_nulls().to_list())
        if column.impute and text.null_count():
            counts[MISSING_CATEGORY] = text.null_count()
        kept = set(counts) if column.categorical else _frequent(counts)
        other = kept < set(counts)
        if not column.impute:
            fill = None
        elif text.null_count():
            fill = MISSING_CATEGORY if MISSING_CATEGORY in kept else OTHER_CATEGORY
        else:
            fill = min(kept or {OTHER_CATEGORY}, key=lambda category: (-counts[category], category))
        return cls(column.name, tuple(sorted(kept | {OTHER_CATEGORY} if other else kept)), fill, other)

    @property
    def feature_names(self) -> list[str]:
        return [f"{self.name}={category}" for category in self.categories]

    @property
    def accepts_missing(self) -> bool:
        return self.fill is not None

    def encode(self, series: pl.Series) -> tuple[np.ndarray, list[str]]:
        import polars as pl

        series = self._supported(series)
        if series.dtype.is_float():
            checked_numbers(series, self.label)
        if self.text_format is not None and is_text(series):
            cells = series.cast(pl.String)
            numbers = self.text_format.normalized(cells)
            series = numbers.zip_with(numbers.is_not_null(), cells.set(is_missing_number(cells), None))
        text = category_text(series)
        if self.fill is not None:
            text = text.fill_null(self.fill)
        codes = text.replace_strict(
            list(self.categories), range(len(self.categories)), default=-1, return_dtype=pl.Int64
        ).to_numpy()
        if self.other:
            codes = np.where(codes < 0, self.categories.index(OTHER_CATEGORY), codes)
        features = np.zeros((len(codes), len(self.categories)))
        known = np.flatnonzero(codes >= 0)
        features[known, codes[known]] = 1.0
        if len(known) == len(codes):
            return features, []
        unknown = len(codes) - len(known)
        values = text.filter(pl.Series(codes < 0)).unique(maintain_order=True).to_list()
        held = "1 cell holds a category" if unknown == 1 else f"{unknown} cells hold categories"
        return features, [f"{self.label}: {held} not seen in training ({listed(values, 3)}); encoded as all zeros"]

    def describe(self, series: pl.Series) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name, "kind": self.kind, "levels": len(self.categories)}
        if self.other:
            found["levels_in_table"] = series.drop_nulls().n_unique()
        if missing := series.null_count():
            found |= {"missing": missing, "filled_with": self.fill}
        return found

    @property
    def unexpected_missing(self) -> str | None:
        return None if self.fill in (MISSING_CATEGORY, OTHER_CATEGORY) else f"counted as {quoted(self.fill)}"

    def with_format(self, text_format: TextFormat | None) -> Self:
        return replace(self, text_format=text_format) if isinstance(text_format, NumberFormat) else self

    def to_dict(self) -> dict[str, Any]:
        stored = {"kind": self.kind, "name": self.name, "categories": list(self.categories), "fill": self.fill}
        stored |= {"other": True} if self.other else {}
        return stored | ({} if self.text_format is None else {"format": self.text_format.to_dict()})

    @classmethod
    def restore(cls, stored: dict[str, Any]) -> Self:
        check_keys(stored, ["categories", "fill"], ["other", "format"])
        categories, fill, other = stored["categories"], stored["fill"], stored.get("other", False)
        texts = isinstance(categories, list) and len(categories) > 0 and all(map(is_unicode, categories))
        in_order = texts and categories == sorted(set(categories))
        check_stored(in_order, "'categories' must be sorted, different texts", categories)
        in_categories = fill is None or (is_unicode(fill) and fill in categories)
        check_stored(in_categories, "the 'fill' of a category column must be one of its categories or null", fill)
        valid = isinstance(other, bool) and (not other or OTHER_CATEGORY in categories)
        check_stored(valid, f"'other' requires the category {OTHER_CATEGORY}", other)
        text_format = restore_format(stored["format"]) if "format" in stored else None
        valid = "format" not in stored or isinstance(text_format, NumberFormat)
        check_stored(valid, "the 'format' of a category column must be a number format", stored.get("format"))
        return cls(stored["name"], tuple(categories), fill, other).with_format(text_format)

    def to_onnx(self, graph: Graph, cells: str) -> str:
        name, number = self.name, {category: code for code, category in enumerate(self.categories)}
        missing = _REFUSED_CODE if self.fill is None else number[self.fill]
        unknown = number[OTHER_CATEGORY] if self.other else _UNKNOWN_CODE
        codes = graph.category_codes(cells, number, missing=missing, unknown=unknown, name=f"{name}/code")
        all_codes = graph.constant(f"{name}/codes", [list(number.values())], np.int64)
        same = graph.add("Equal", codes, all_codes, name=f"{name}/is")
        one_hot = graph.cast(same, np.float64, f"{name}/features")
        if self.fill is not None:
            return one_hot
        refused = graph.constant(f"{name}/refused_code", _REFUSED_CODE, np.int64)
        refused = graph.add("Equal", codes, refused, name=f"{name}/refused")
        return graph.add("Where", refused, graph.constant("nan", np.nan), one_hot, name=f"{name}/checked")


def _frequent(counts: Counter[str]) -> set[str]:
    """Select the categories that have a feature."""
    if len(counts) <= _MAX_UNLIMITED:
        return set(counts)
    least = max(2, _MIN_FREQUENCY * counts.total())
    order = sorted(counts, key=lambda category: (-counts[category], category))[:_MAX_CATEGORIES]
    return {category for category in order if counts[category] >= least}


def _refuse_unique_texts(cells: pl.Series) -> None:
    """Raise UnusableColumn for text in which few rows share a value."""
    present = cells.drop_nulls()
    counts = present.str.strip_chars().rename("text").value_counts()["count"]
    shared = int(counts.filter(counts > 1).sum())
    if present.len() >= _MIN_ROWS_TO_REFUSE and shared < _MIN_SHARED_FRACTION * present.len():
        words = float(present.str.count_matches(r"\S+").mean() or 0)  # pyright: ignore
        like = "free text" if words >= _MIN_WORDS_OF_FREE_TEXT else "an identifier"
        raise UnusableColumn(f"holds {len(counts):,} different texts in {present.len():,} rows, like {like}")
