"""Rows of files that are read in blocks are those of the whole file, and what cannot be read is refused."""

import gzip
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fireset._util.errors import InputError
from fireset.tables.reader import read_cells
from fireset.tables.row_source import RowSource


def table(rows: int = 3000, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    texts = np.array(["red", "light, blue", 'say "hello"', "two\nlines", ""])
    return pl.DataFrame({"a": rng.normal(size=rows), "text": texts[rng.integers(0, 5, rows)], "k": np.arange(rows)})


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    folder = tmp_path / "parts"
    folder.mkdir()
    table(seed=0).write_parquet(folder / "a.parquet", row_group_size=700)
    table(seed=1).write_parquet(folder / "b.pq")
    return folder


def joined(source: RowSource, *which) -> pl.DataFrame:
    return pl.concat([block.frame for block in source.blocks(*which)])


def test_blocks_of_parquet_files_are_their_rows(parquet):
    source = RowSource.open(parquet, block_cells=0)
    whole = pl.concat([table(seed=0), table(seed=1)])
    assert source.n_rows == 6000
    assert source.columns == dict(whole.schema)
    assert not source.all_text
    assert joined(source).equals(whole)
    assert joined(source, 2500, 3700, ["k", "a"]).equals(whole[2500:3700].select("k", "a"))
    starts = [block.start for block in source.blocks(100, 5999)]
    assert starts[0] == 100
    assert starts == sorted(starts)
    assert all(block.frame.height <= 1024 for block in source.blocks())
    assert source.row_name(0) == "1 of a.parquet"
    assert source.row_name(3001) == "2 of b.pq"


@pytest.mark.parametrize("block_bytes", [300, 5000, 1 << 24])
def test_blocks_of_csv_files_are_the_cells_that_are_read_at_once(tmp_path, block_bytes):
    file = tmp_path / "cells.csv"
    table().write_csv(file)
    source = RowSource.open(file, block_bytes=block_bytes)
    whole = read_cells(file)
    assert source.all_text
    assert joined(source).equals(whole)
    assert joined(source, 700, 901, ["text"]).equals(whole[700:901].select("text"))
    assert (len(list(source.blocks())) > 1) == (block_bytes < 1 << 20)


@pytest.mark.parametrize(
    "text",
    [
        "a;b\n1,5;2\n\n3;4\n" * 1 + "5;6\n" * 50,
        "\n\na,b\r\n" + "1,x\r\n\r\n" * 40,
        "\ufeffa,b\n" + "1,\n" * 60,
        "a\tb\n1\t2",
    ],
)
def test_spellings_of_csv_files(tmp_path, text):
    file = tmp_path / "cells.csv"
    file.write_bytes(text.encode())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # blank lines
        whole = read_cells(file)
        source = RowSource.open(file, block_bytes=32)
        assert joined(source).equals(whole)
    assert source.n_rows == whole.height
    assert source.decimal_comma == (";" in text)


def test_a_wrong_line_of_a_late_block_is_named(tmp_path):
    file = tmp_path / "cells.csv"
    file.write_text("a,b\n" + "1,2\n" * 500 + "1,2,3\n" + "1,2\n" * 500)
    with pytest.raises(InputError, match=r"\b502\b"):
        RowSource.open(file, block_bytes=64)
    file.write_bytes(b"a,b\n" + b"1,2\n" * 500 + b"1,\xff\n")
    with pytest.raises(InputError, match=r"\b502\b"):
        RowSource.open(file, block_bytes=64)


def test_what_cannot_be_read_in_blocks_is_refused(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    with pytest.raises(InputError, match="compressed"):
        RowSource.open(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        RowSource.open(tmp_path / "absent")
    (tmp_path / "x.npz").touch()
    with pytest.raises(InputError, match=r"x\.npz"):
        RowSource.open(tmp_path / "x.npz")
    (tmp_path / "utf16.csv").write_bytes("a,b\n1,2\n".encode("utf-16"))
    with pytest.raises(InputError, match="UTF-16"):
        RowSource.open(tmp_path / "utf16.csv")
    (tmp_path / "quote.csv").write_text('a,b\n1,"2\n' + "3,4\n" * 1000)
    with pytest.raises(InputError, match="quote"):
        RowSource.open(tmp_path / "quote.csv", block_bytes=32)
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(InputError, match="damaged"):
        RowSource.open(tmp_path / "damaged.parquet")


def test_folders_of_unlike_files_are_refused(tmp_path):
    for name in ("empty", "nested", "columns", "kinds", "types"):
        (tmp_path / name).mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    (tmp_path / "nested" / "year=2020").mkdir()
    table().write_parquet(tmp_path / "columns" / "a.parquet")
    table().drop("text").write_parquet(tmp_path / "columns" / "b.parquet")
    table().write_parquet(tmp_path / "kinds" / "a.parquet")
    table().write_csv(tmp_path / "kinds" / "b.csv")
    table().write_parquet(tmp_path / "types" / "a.parquet")
    table().with_columns(pl.col("a").cast(pl.String)).write_parquet(tmp_path / "types" / "b.parquet")
    for name in ("empty", "nested", "columns", "kinds", "types"):
        with pytest.raises(InputError, match=r"give a folder|equal"):
            RowSource.open(tmp_path / name)


def test_parts_without_rows_are_left_out(tmp_path):
    for kind in ("csv", "parquet"):
        folder = tmp_path / kind
        folder.mkdir()
        for name, part in {"a": table().head(0), "b": table(), "c": table().head(0)}.items():
            getattr(part, f"write_{kind}")(folder / f"{name}.{kind}")
        (folder / f"d.{kind}").touch()
        assert RowSource.open(folder).n_rows == table().height
    (tmp_path / "csv" / "b.csv").unlink()
    with pytest.raises(InputError, match="no rows"):
        RowSource.open(tmp_path / "csv")


@pytest.mark.parametrize("empty", [0, 1])
def test_a_column_without_a_cell_in_one_file_has_the_type_of_the_others(tmp_path, empty):
    parts = [table(seed=0), table(seed=1), table(seed=2)]
    parts[empty] = parts[empty].with_columns(a=pl.lit(None))
    for number, part in enumerate(parts):
        part.write_parquet(tmp_path / f"{number}.parquet")
    source = RowSource.open(tmp_path)
    assert source.columns == dict(table().schema)
    cells = pl.concat([block.frame for block in source.blocks()], how="vertical_relaxed")
    assert cells.equals(pl.concat(parts, how="vertical_relaxed"))
    table().with_columns(pl.col("a").cast(pl.String)).write_parquet(tmp_path / "3.parquet")
    with pytest.raises(InputError, match=rf"'a' .* String in .*3.parquet and Float64 in .*{1 - empty}.parquet"):
        RowSource.open(tmp_path)


def test_a_file_that_changes_is_refused(parquet):
    source = RowSource.open(parquet)
    table(rows=10).write_parquet(parquet / "a.parquet")
    with pytest.raises(InputError, match="changed"):
        next(source.blocks())


def test_files_that_are_no_utf8_text_are_refused(tmp_path):
    file = tmp_path / "table.csv"
    for data in (b"a,b\n1,2\n3,x\0y\n", "a,b\n1,2\n".encode("utf-16-le")):
        file.write_bytes(data)
        with pytest.raises(InputError, match=r"line \d is not UTF-8 text"):
            RowSource.open(file)
