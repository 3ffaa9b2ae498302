"""Damaged footers of Parquet files are refused before polars allocates memory for them."""

import io
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fireset import InputError
from fireset.tables.parquet_footer import check_footer
from fireset.tables.reader import read_table

FRAME = pl.DataFrame({"a": [1, 2], "b": ["x", None], "c": [True, False], "d": [[1, 2], [3]], "e": [0.5, None]})


def _content(**options) -> bytes:
    file = io.BytesIO()
    FRAME.write_parquet(file, **options)
    return file.getvalue()


def _with_footer(tmp_path: Path, footer: bytes) -> Path:
    path = tmp_path / "table.parquet"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return path


@pytest.mark.parametrize("compression", ["uncompressed", "zstd", "snappy"])
def test_sound_files_pass(tmp_path, compression):
    path = tmp_path / "table.parquet"
    path.write_bytes(_content(compression=compression))
    check_footer(path)


@pytest.mark.parametrize(
    ("footer", "reason"),
    [
        (bytes([0x29, 0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 0x07, 0]), "list of 2,147,483,647 elements"),
        (bytes([0x1B, 0xFF, 0xFF, 0x7F, 0x55, 0]), "elements in"),  # a map
        (bytes([0x18, 0xFF, 0x7F, 0]), "ends within a value"),  # a text
        (bytes([0x15] + [0xFF] * 12), "more than 64 bits"),
        (bytes([0x1C] * 100), "nested too deeply"),
        (bytes([0x1E, 0]), "type 14"),
        (b"", "ends within a value"),
    ],
)
def test_damage_is_named(tmp_path, footer, reason):
    with pytest.raises(InputError, match=reason):
        check_footer(_with_footer(tmp_path, footer))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1\xff\xff\xff\xffPAR1", b"PAR1\0\0\0\0PARX"])
def test_files_without_a_footer_are_refused_by_the_reader(tmp_path, content):
    path = tmp_path / "table.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"table\.parquet"):
        read_table(path)


@given(st.binary(max_size=200))
def test_any_bytes_raise_nothing_but_input_errors(tmp_path_factory, footer):
    with suppress(InputError):
        check_footer(_with_footer(tmp_path_factory.getbasetemp(), footer))
