"""What the workers of ``test_centres_on_grid.py`` do, four of them under torchrun: default fits of many rows."""

import json
import sys
from pathlib import Path

import numpy as np
import polars as pl

from fireset.commands.train import train_table
from fireset.distributed.process_group import joined_group
from fireset.distributed.worker_grid import grid, parse_grid

ROWS, COLUMNS = 20_600, 3
RUNS = (("2x2", "float32"), ("1x4", "float64"))


def write_table(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, COLUMNS))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(ROWS)
    file = folder / "table.csv"
    pl.DataFrame(X, schema=list("abc")).with_columns(y=y).write_csv(file)
    return file


def fit(folder: Path, name: str, dtype: str) -> dict:
    """Train with the default settings of the command line."""
    settings = {"dtype": dtype, "random_state": 0}
    out = folder / f"{name}.{dtype}.safetensors"
    return train_table(folder / "table.csv", "y", out=out, loss="squared_error", holdout=0.0, settings=settings)


def main(folder: Path) -> None:
    with joined_group() as workers:
        for name, dtype in RUNS:
            with grid(**parse_grid(name)):
                summary = fit(folder, name, dtype)
                (folder / f"{name}.{workers.rank}.json").write_text(json.dumps(summary))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
