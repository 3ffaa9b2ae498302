"""Columns out of a model file, which is untrusted: every part is checked."""

import sys
from typing import Any

from fireset._util.errors import InputError
from fireset.tables.cells import quoted
from fireset.tables.column_kinds import OTHER_CATEGORY, PERIODS, CategoryColumn, DateColumn, NumberColumn, OrderedColumn
from fireset.tables.spelled import DATE_FORMATS, PLAIN, TruthSpelling, restore_spelling


def restore_column(stored: Any) -> NumberColumn | CategoryColumn | DateColumn | OrderedColumn:
    """One column."""
    expect(isinstance(stored, dict), "each column must be a dict", stored)
    kind, name = stored.get("kind"), stored.get("name")
    expect(is_unicode(name), "a column's 'name' must be text", name)
    kinds = {"number": _number, "category": _category, "date": _date, "ordered": _ordered}
    known = isinstance(kind, str) and kind in kinds
    expect(known, "a column's 'kind' must be 'number', 'category', 'date' or 'ordered'", kind)
    return kinds[kind](stored)


def is_unicode(value: Any) -> bool:
    """Whether it is text. JSON can spell lone surrogates, which no table can hold and polars refuses with an error."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def expect(holds: bool, rule: str, value: object) -> None:
    """Refuse a damaged encoder."""
    if not holds:
        raise InputError(f"the model's table encoder is damaged: {rule}, got {quoted(value)}; train the model again")


def _number(stored: dict) -> NumberColumn:
    parts = set(stored) - {"indicator", "spelling"}
    expect(parts == {"kind", "name", "fill"}, "a number column has 'kind', 'name' and 'fill'", stored)
    return NumberColumn(stored["name"], *_fill_and_indicator(stored), _spelling(stored) or PLAIN)


def _date(stored: dict) -> DateColumn:
    parts = set(stored) - {"indicator"}
    known = parts == {"kind", "name", "fill", "periods", "format"}
    expect(known, "a date column has 'kind', 'name', 'fill', 'periods' and 'format'", stored)
    periods, spelled = stored["periods"], stored["format"]
    in_order = isinstance(periods, list) and periods == [name for name in PERIODS if name in periods]
    expect(in_order, f"the 'periods' of a date column must be among {', '.join(PERIODS)}, in this order", periods)
    expect(spelled is None or spelled in DATE_FORMATS, "the 'format' of a date column must be a known one", spelled)
    return DateColumn(stored["name"], *_fill_and_indicator(stored), tuple(periods), spelled)


def _ordered(stored: dict) -> OrderedColumn:
    parts = set(stored) - {"indicator"}
    expect(
        parts == {"kind", "name", "levels", "fill"}, "an ordered column has 'kind', 'name', 'levels', 'fill'", stored
    )
    levels = stored["levels"]
    texts = isinstance(levels, list) and len(levels) > 0 and all(map(is_unicode, levels))
    expect(texts and len(set(levels)) == len(levels), "'levels' must be different texts", levels)
    return OrderedColumn(stored["name"], tuple(levels), *_fill_and_indicator(stored))


def _category(stored: dict) -> CategoryColumn:
    parts = set(stored) - {"other", "spelling"}
    known = parts == {"kind", "name", "categories", "fill"}
    expect(known, "a category column has 'kind', 'name', 'categories' and 'fill'", stored)
    categories, fill, other = stored["categories"], stored["fill"], stored.get("other", False)
    texts = isinstance(categories, list) and len(categories) > 0 and all(map(is_unicode, categories))
    in_order = texts and categories == sorted(set(categories))
    expect(in_order, "'categories' must be sorted, different texts", categories)
    in_categories = fill is None or (is_unicode(fill) and fill in categories)
    expect(in_categories, "the 'fill' of a category column must be one of its categories or null", fill)
    allowed = isinstance(other, bool) and (not other or OTHER_CATEGORY in categories)
    expect(allowed, f"'other' of a category column is for those with the category {OTHER_CATEGORY}", other)
    spelling = _spelling(stored)
    expect(not isinstance(spelling, TruthSpelling), "the 'spelling' of a category column must be of numbers", spelling)
    return CategoryColumn(stored["name"], tuple(categories), fill, other, spelling)


def _spelling(stored: dict) -> Any:
    """The spelling of a column, None if it has none of its own."""
    if "spelling" not in stored:
        return None
    spelling = restore_spelling(stored["spelling"])
    expect(spelling is not None, "the 'spelling' of a column must be a known one", stored["spelling"])
    return spelling


def _fill_and_indicator(stored: dict) -> tuple[float | None, bool]:
    fill, indicator = stored["fill"], stored.get("indicator", False)
    numeric = isinstance(fill, int | float) and not isinstance(fill, bool) and abs(fill) <= sys.float_info.max
    what = "the 'fill' of a number column must be a finite number or null"
    expect(fill is None or numeric, what, fill)
    allowed = isinstance(indicator, bool) and (fill is not None or not indicator)
    expect(allowed, "the 'indicator' of a column is for one with a 'fill'", indicator)
    return None if fill is None else float(fill), indicator
