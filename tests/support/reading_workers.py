"""What the workers of ``test_shared_reading.py`` do, four of them under torchrun: fits of tables read in blocks."""

import json
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fireset.commands.train import train_table
from fireset.distributed.process_group import joined_group
from fireset.distributed.worker_grid import grid, parse_grid
from fireset.tables import large_problem
from fireset.tables.encoded_blocks import EncodedBlocks
from fireset.tables.large_problem import LargeTableProblem
from fireset.tables.row_source import RowSource

ROWS, FILES, BLOCK = 25_800, 4, 1024
SAMPLE = 3000  # rows that encoder and settings are learned from
NYSTROM = {"width": 400, "random_state": 0, "solver": "nystrom", "dtype": "float64"}
RUNS: dict[str, dict[str, Any]] = {
    "default": {"file": "parts", "target": "y", "settings": {"random_state": 0}},
    "classes": {"file": "table.csv", "target": "kind", "settings": NYSTROM, "holdout_by": "group"},
    "log loss": {"file": "table.csv", "target": "kind", "settings": NYSTROM | {"class_weight": {"low": 3.0}}},
    "early": {"file": "parts", "target": "y", "settings": NYSTROM | {"early_stopping": True}},
    "descent": {
        "file": "parts",
        "target": "y",
        "settings": {"width": 64, "random_state": 0, "solver": "gradient", "max_iter": 5, "dtype": "float64"},
    },
}
RUNS["log loss"]["loss"] = "log_loss"
GRIDS = {"default": "2x2", "classes": "1x4", "log loss": "2x2", "early": "2x2", "descent": "4x1"}


def table() -> pl.DataFrame:
    """Return numbers with rare gaps, texts, two targets, and a column of groups."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 3))
    color = rng.choice(["red", "green", "blue"], ROWS)
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + (color == "red") + 0.1 * rng.standard_normal(ROWS)
    gaps = pl.Series("gaps", x[:, 2]).scatter(rng.choice(ROWS, 40, replace=False), None)
    kind = np.array(["low", "middle", "high"])[np.digitize(y, np.quantile(y, [0.3, 0.7]))]
    return pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "gaps": gaps, "color": color, "y": y, "kind": kind}).with_columns(
        group=pl.Series(np.arange(ROWS) // 7)
    )


def write_tables(folder: Path) -> None:
    whole, parts = table(), folder / "parts"
    parts.mkdir()
    edges = np.linspace(0, ROWS, FILES + 1).astype(int)
    for number, (first, stop) in enumerate(pairwise(edges)):
        whole[first:stop].write_parquet(parts / f"{number}.parquet", row_group_size=BLOCK)
    whole.write_csv(folder / "table.csv")


def small_blocks() -> None:
    """Read tables in blocks of 1,024 rows or 64 KB, and learn from a sample."""
    RowSource.open = partial(RowSource.open, block_cells=0, block_bytes=1 << 16)
    large_problem._MIN_SAMPLE_ROWS = 1
    large_problem.needs_blocks = lambda file, memory: True  # noqa: ARG005
    LargeTableProblem.read_blocks = partial(LargeTableProblem.read_blocks, sample_rows=SAMPLE)


def fit(folder: Path, name: str, out: Path) -> dict:
    run = RUNS[name]
    drop = [column for column in ("y", "kind", "group") if column != run["target"]]
    return train_table(
        folder / run["file"],
        run["target"],
        out=out,
        loss=run.get("loss", "squared_error"),
        holdout=0.2,
        holdout_by=run.get("holdout_by"),
        settings=run["settings"],
        reading={"drop": drop},
    )


def count_rows() -> dict[str, int]:
    """Return counts, of this process, of rows that are read in passes over all columns, and of mapped rows."""
    counts = {"read": 0, "held": 0}
    blocks, mapped = RowSource.blocks, EncodedBlocks.mapped

    def counted_blocks(self, start=0, stop=None, columns=None):
        for block in blocks(self, start, stop, columns):
            counts["read"] += block.frame.height if columns is None or len(columns) > 1 else 0
            yield block

    def counted_mapped(self, *arguments):
        rows = mapped(self, *arguments)
        counts["held"] += len(rows)
        return rows

    RowSource.blocks, EncodedBlocks.mapped = counted_blocks, counted_mapped
    return counts


def main(folder: Path) -> None:
    small_blocks()
    counts = count_rows()
    with joined_group() as workers:
        for name in RUNS:
            counts.update(read=0, held=0)
            with grid(**parse_grid(GRIDS[name])):
                summary = fit(folder, name, folder / f"{name}.safetensors")
            (folder / f"{name}.{workers.rank}.json").write_text(json.dumps(summary | counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
