"""Conversion of DataFrames of pandas, polars and pyarrow to polars."""

from __future__ import annotations

import datetime
import decimal
import numbers
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.cells import category_text, quoted

if TYPE_CHECKING:
    import polars as pl


def is_frame(X: Any) -> bool:
    """Return whether X is a table with named columns: pandas, polars, pyarrow, or any with the Arrow interface."""
    if isinstance(X, np.ndarray | list | tuple):
        return False
    library, kind = type(X).__module__.partition(".")[0], type(X).__name__
    if library in ("pandas", "polars", "pyarrow"):
        return kind in ("DataFrame", "LazyFrame", "Table", "RecordBatch")
    return hasattr(X, "__arrow_c_stream__") and hasattr(X, "columns")


def as_table(X: Any) -> pl.DataFrame:
    """Convert a frame to polars. Column names become text and must differ."""
    import polars as pl

    library = type(X).__module__.partition(".")[0]
    if library == "pandas":
        names = [str(name) for name in X.columns]
        _check_names(names)
        columns = [_from_pandas(name, X.iloc[:, place]) for place, name in enumerate(names)]
        return pl.DataFrame(columns)
    if library == "polars":
        return X.collect() if isinstance(X, pl.LazyFrame) else X
    if library == "pyarrow":
        _check_names(list(X.schema.names))
    return pl.DataFrame(X)


def frame_of_objects(X: np.ndarray, names: list[str]) -> pl.DataFrame:
    """Convert an array of Python objects, (rows, columns), to a table."""
    import polars as pl

    return pl.DataFrame([_from_python_cells(name, X[:, place].tolist()) for place, name in enumerate(names)])


def _check_names(names: list[str]) -> None:
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise InputError(f"the column name {quoted(name)} appears {count} times in X; make the names differ")


def _from_pandas(name: str, column: Any) -> pl.Series:
    """Convert a column of a pandas frame, without pyarrow, which may not be installed."""
    import polars as pl

    kind = type(column.dtype).__name__
    if kind == "CategoricalDtype":
        texts = category_text(_from_python_cells(name, _python_cells(column.cat.categories.to_series())))
        codes = pl.Series(column.cat.codes.to_numpy(), dtype=pl.Int64)
        ordered = column.cat.ordered and texts.n_unique() == texts.len()
        kind = pl.Enum(texts) if ordered else pl.Categorical()
        return texts.gather(codes.set(codes < 0, None)).cast(kind).alias(name)
    if kind == "SparseDtype":
        return _from_pandas(name, column.sparse.to_dense())
    if kind == "DatetimeTZDtype":
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
        return pl.Series(name, column.to_numpy(np.float64) if column.dtype.kind == "f" else column.to_numpy())
    if isinstance(column.dtype, np.dtype) and column.dtype.kind == "c":
        raise _complex_error(name)
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "mM":
        return pl.Series(name, column.to_numpy().astype(f"{column.dtype.kind}8[us]"))
    return _from_python_cells(name, _python_cells(column))


def _python_cells(column: Any) -> list:
    """Return the cells of a pandas column, None where they are missing."""
    return column.astype(object).where(column.notna(), None).tolist()


def _from_python_cells(name: str, cells: list) -> pl.Series:
    """Convert Python objects: to booleans, numbers, dates or text if all cells are, else to the text of each cell."""
    import polars as pl

    cells = [None if isinstance(cell, float | np.floating) and cell != cell else cell for cell in cells]  # NaN
    kinds = {type(cell) for cell in cells if cell is not None}
    if not kinds:
        return pl.Series(name, cells, dtype=pl.Null)

    def all_are(*types: type) -> bool:
        return all(issubclass(kind, types) for kind in kinds)

    if all_are(bool, np.bool_):
        return pl.Series(name, [None if cell is None else bool(cell) for cell in cells], dtype=pl.Boolean)
    if all_are(numbers.Real, decimal.Decimal, np.bool_):
        return pl.Series(name, [None if cell is None else float(cell) for cell in cells], dtype=pl.Float64)
    if any(issubclass(kind, numbers.Complex) and not issubclass(kind, numbers.Real) for kind in kinds):
        raise _complex_error(name)
    if all_are(str):
        return pl.Series(name, cells, dtype=pl.String)
    if all_are(datetime.date):  # includes datetime and the Timestamp of pandas
        return pl.Series(name, [None if cell is None else _utc(cell) for cell in cells], dtype=pl.Datetime("us"))
    for row, cell in enumerate(cells, 1):
        if isinstance(cell, dict | list | tuple | set | bytes | np.ndarray):
            kind = type(cell).__name__
            raise InputError(
                f"column {quoted(name)} holds a {kind} in row {row}; give numbers, text or dates, or drop the column"
            )
    return pl.Series(name, [None if cell is None else str(cell) for cell in cells], dtype=pl.String)


def _complex_error(name: str) -> InputError:
    return InputError(
        f"column {quoted(name)} holds complex numbers; give real and imaginary parts as two columns, or drop the column"
    )


def _utc(cell: datetime.date) -> datetime.datetime:
    if not isinstance(cell, datetime.datetime):
        return datetime.datetime(cell.year, cell.month, cell.day)
    zone = cell.tzinfo
    # Field by field: a Timestamp of pandas is a datetime with nanoseconds.
    bare = datetime.datetime(cell.year, cell.month, cell.day, cell.hour, cell.minute, cell.second, cell.microsecond)
    return bare if zone is None else bare.replace(tzinfo=zone).astimezone(datetime.UTC).replace(tzinfo=None)
