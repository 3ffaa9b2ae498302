"""Column types by kind, in the order in which they are tried on a training column."""

from typing import Any

from fireset._util.registry import Registry
from fireset.tables.cells import cli_option, is_unicode, refuse_type
from fireset.tables.column_types.base import ColumnType, TrainingColumn, UnusableColumn, check_stored

# The first type that accepts a column is used, so that special types come before general ones.
_BUILT_IN = {
    "ordered": "fireset.tables.column_types.ordered:OrderedColumn",
    "date": "fireset.tables.column_types.date:DateColumn",
    "number": "fireset.tables.column_types.number:NumberColumn",
    "category": "fireset.tables.column_types.category:CategoryColumn",
}
COLUMN_TYPES = Registry("fireset.column_types", _BUILT_IN, name_attribute="kind")


def learn_column(column: TrainingColumn) -> ColumnType:
    """Learn a training column with the first type that accepts it. Types of other packages are tried first.

    Raises UnusableColumn if the column should be left out, and InputError if no type accepts it.
    """
    if column.series.null_count() == column.series.len():
        raise UnusableColumn("has no value in any row")
    for kind in sorted(COLUMN_TYPES, key=_BUILT_IN.__contains__):
        found = COLUMN_TYPES.load(kind, ColumnType).learn(column)
        if found is not None:
            return found
    refuse_type(column.series, column.label, f"convert it, or pass {cli_option('--drop', column.name)}")
    raise UnusableColumn(f"has the type {column.series.dtype}, which no column type accepts")


def restore_column(stored: Any) -> ColumnType:
    """Restore a column from an untrusted model file."""
    check_stored(isinstance(stored, dict), "each column must be a dict", stored)
    kind, name = stored.get("kind"), stored.get("name")
    check_stored(is_unicode(name), "a column's 'name' must be text", name)
    if not isinstance(kind, str) or kind not in COLUMN_TYPES:
        check_stored(False, f"a column's 'kind' must be one of {', '.join(COLUMN_TYPES)}", kind)
    return COLUMN_TYPES.load(kind, ColumnType).restore(stored)
