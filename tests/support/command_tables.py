"""Small tables for the tests of commands."""

from pathlib import Path

import numpy as np
import polars as pl


def contents() -> dict[str, bytes | None]:
    return {str(p): p.read_bytes() if p.is_file() else None for p in Path().rglob("*")}


def numbers(rows=40) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, 3))


def labels(X) -> np.ndarray:
    return np.where(X[:, 0] > 0.3, "up", np.where(X[:, 1] > 0, "left", "right"))


def table(**columns) -> pl.DataFrame:
    """Three number columns and a text target with three classes; more columns by keyword."""
    X = numbers()
    return pl.DataFrame(X, schema=["a", "b", "c"]).with_columns(pl.Series("y", labels(X)), **columns)


def written(text: str, name="table.csv") -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def write_table(frame: pl.DataFrame, name="table.csv") -> str:
    frame.write_csv(name, separator="\t" if name.endswith("tsv") else ",")
    return name
