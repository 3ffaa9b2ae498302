"""Reading tables, splitting off the target, and turning columns into numbers.

Every refusal is checked for its whole message, because the command line shows nothing else.
"""

import bz2
import copy
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tracemalloc
import warnings
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset._util.errors import InputError
from fireset.tables.encoder import TableEncoder
from fireset.tables.reader import class_labels, detect_task, read_table, regression_values, split_target

SUFFIXES = (
    "the suffixes understood are .csv, .tsv, .svm, .svmlight, .libsvm (each also with .gz or .bz2), .parquet, .pq, .npz"
)
ONE_ROW = "give a table with at least one row"
SAVEZ = "numpy.savez(path, X=X, y=y)"


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    """Relative paths keep the expected messages short."""
    monkeypatch.chdir(tmp_path)


def refusal(call, *arguments, **options) -> str:
    """The message of the InputError that a call raises, which must be one line."""
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def written(name: str, content: bytes) -> str:
    Path(name).write_bytes(content)
    return name


def npz(**arrays) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def npy_header(literal: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(literal).to_bytes(2, "little") + literal.encode()


def parquet(frame: pl.DataFrame) -> bytes:
    stream = io.BytesIO()
    frame.write_parquet(stream)
    return stream.getvalue()


def zipped(member: str, content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(member, content)
    return stream.getvalue()


# Reading


CSV = b" age ,color,smokes,note\n31, red,True,\n-4.5,N/A,false,NA\nnan, blue ,,null\n+1e3,None,TRUE,NaN\n\n\r\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", CSV),
        ("T.CSV", CSV),
        ("windows.csv", b"\xef\xbb\xbf" + CSV.replace(b"\n", b"\r\n")),
        ("t.tsv", CSV.replace(b",", b"\t")),
        ("t.csv.gz", gzip.compress(CSV, mtime=0)),
        ("t.tsv.bz2", bz2.compress(CSV.replace(b",", b"\t"))),
        ("glob[1]*.csv", CSV),
    ],
)
def test_csv_types_missing_values_and_spaces(name, content):
    frame = read_table(written(name, content))
    assert frame.schema == {"age": pl.Float64, "color": pl.String, "smokes": pl.Boolean, "note": pl.Null}
    assert frame.rows() == [
        (31.0, "red", True, None),
        (-4.5, None, False, None),
        (None, "blue", None, None),
        (1000.0, None, True, None),
    ]


def test_csv_types_come_from_all_rows():
    body = b"a,b\n" + b"1,2\n" * 5000 + b"1.5,x\n"
    assert read_table(written("t.csv", body)).schema == {"a": pl.Float64, "b": pl.String}


def test_csv_quotes_long_integers_and_short_lines():
    frame = read_table(written("t.csv", b'a,"b,c"\n' + b"9" * 60 + b',"x\ny"\n2\n'))
    assert frame.to_dict(as_series=False) == {"a": [1e60, 2.0], "b,c": ["x\ny", None]}


def test_csv_accepts_the_column_names_pandas_gives_a_matrix():
    assert read_table(written("t.csv", b"0,1\n5,6\n")).columns == ["0", "1"]


def test_parquet_round_trip():
    frame = pl.DataFrame({"a": [1, 2], "b": ["x", None]})
    for name in ("t.parquet", "t.pq"):
        assert read_table(written(name, parquet(frame))).equals(frame)


def test_npz_columns():
    X = np.arange(6.0).reshape(3, 2)
    content = npz(X=X.astype(">f4"), y=np.array([3, 1, 2], dtype=">i2"), name=np.array(["a", "b", "c"]))
    frame = read_table(written("t.npz", content))
    assert frame.to_dict(as_series=False) == {
        "x0": [0.0, 2.0, 4.0],
        "x1": [1.0, 3.0, 5.0],
        "y": [3, 1, 2],
        "name": ["a", "b", "c"],
    }


@pytest.mark.parametrize(
    ("name", "pack"),
    [("t.svm", bytes), ("t.svmlight", bytes), ("t.libsvm.gz", gzip.compress), ("t.svm.bz2", bz2.compress)],
)
def test_svmlight_indices_are_not_shifted(name, pack):
    frame = read_table(written(name, pack(b"1 1:2 3:4 # note\n-1 qid:3 2:5\n")))
    assert frame.columns == ["x0", "x1", "x2", "x3", "target"]
    assert frame.rows() == [(0.0, 2.0, 0.0, 4.0, 1.0), (0.0, 0.0, 5.0, 0.0, -1.0)]


JUNK = np.random.default_rng(0).bytes(4000)
DAMAGED = "cannot be read as {}, it may be damaged: {}".format
NOT_UTF8 = "is not UTF-8 text; save the table as a UTF-8 text file"
PARQUET = parquet(pl.DataFrame({"a": list(range(500))}))
HUGE_HEADER = b"\x93NUMPY\x01\x00\x46\x00{'descr':'<f8','fortran_order':False,'shape':(1000000000,1000000)}".ljust(80)
SIZES = "at most 100000 columns and 1073741824 cells are read"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.xlsx", b"PK", f"t.xlsx has the suffix '.xlsx'; {SUFFIXES}"),
        ("table", b"a", f"table has the suffix ''; {SUFFIXES}"),
        ("t.npz.gz", b"a", f"t.npz.gz has the suffix '.npz.gz'; {SUFFIXES}"),
        *((name, b"", f"{name} is empty; {ONE_ROW}") for name in ("t.csv", "t.parquet", "t.npz", "t.svm")),
        ("t.csv", b"\n \r\n", f"t.csv is empty; {ONE_ROW}"),
        ("t.csv.gz", gzip.compress(b"", mtime=0), f"t.csv.gz is empty; {ONE_ROW}"),
        ("t.csv", b"a,b\n", f"t.csv has a header but no rows; {ONE_ROW}"),
        ("t.tsv", b"a\tb", f"t.tsv has a header but no rows; {ONE_ROW}"),
        ("t.parquet", parquet(pl.DataFrame({"a": []})), f"t.parquet has no rows; {ONE_ROW}"),
        ("t.npz", npz(X=np.empty((0, 2))), f"t.npz has no rows; {ONE_ROW}"),
        ("t.svm", b"# only a comment\n", f"t.svm has no rows; {ONE_ROW}"),
        ("t.csv", b"a,b, a\n1,2,3\n", "t.csv: the column name 'a' appears 2 times; make the names differ"),
        (
            "t.npz",
            npz(X=np.eye(2), x1=[1, 2]),
            "t.npz: the column name 'x1' appears 2 times; make the names differ",
        ),
        (
            "t.csv",
            b",a\n0,1\n",
            "t.csv: column 1 has no name in the header; name it, or save without the row index (pandas: index=False)",
        ),
        (
            "t.csv",
            b"1.5,2\n3,4\n",
            "t.csv: the first line holds numbers, not column names; add a header line",
        ),
        ("t.csv", b"a,b\n\n3,4,5\n", "t.csv: line 3 has 3 fields but the header has 2; make them equal"),
        (
            "t.csv",
            b'a,b\n1,2\n3,"4\n5,6\n',
            "t.csv: the line or quote that starts in line 3 cannot be parsed (unexpected end of data); "
            "check its quotes",
        ),
        ("t.csv", b"a,b\n1,2\n3,caf\xe9\n", f"t.csv: line 3 {NOT_UTF8}"),
        ("t.csv", b"a,b\n1,\x00\n", f"t.csv: line 2 {NOT_UTF8}"),
        ("t.csv", "a,b\n1,2\n".encode("utf-16"), f"t.csv: line 1 {NOT_UTF8}"),
        ("t.csv", JUNK, f"t.csv: line 1 {NOT_UTF8}"),
        ("t.csv.gz", b"a,b\n1,2\n", "t.csv.gz " + DAMAGED("CSV", "Not a gzipped file (b'a,')")),
        ("t.tsv.bz2", b"a,b\n1,2\n", "t.tsv.bz2 " + DAMAGED("TSV", "Invalid data stream")),
        (
            "t.svm.gz",
            gzip.compress(b"1 1:2\n" * 99, mtime=0)[:-9],
            "t.svm.gz " + DAMAGED("svmlight", "Compressed file ended before the end-of-stream marker was reached"),
        ),
        (
            "t.parquet",
            PARQUET[: len(PARQUET) // 2],
            "t.parquet "
            + DAMAGED("parquet", "parquet: File out of specification: The file must end with PAR1 or PARE"),
        ),
        ("t.npz", JUNK, f"t.npz is not an NPZ archive; write one with {SAVEZ}"),
        ("t.npz", npz(X=np.eye(9))[:300], "t.npz " + DAMAGED("NPZ", "File is not a zip file")),
        (
            "t.npz",
            npz(X=np.eye(9)).replace(np.float64(1).tobytes(), np.float64(2).tobytes()),
            "t.npz " + DAMAGED("NPZ", "Bad CRC-32 for file 'X.npy'"),
        ),
        ("t.npz", npz(y=[1, 2]), f"t.npz holds no array 'X', only 'y'; write it with {SAVEZ}"),
        ("t.npz", npz(), f"t.npz holds no array 'X', and no other array; write it with {SAVEZ}"),
        (
            "t.npz",
            npz(X=[1.0, 2.0]),
            "t.npz: the array 'X' must be 2-D and numeric, (rows, columns), got shape (2,) and dtype float64",
        ),
        (
            "t.npz",
            npz(X=[["a"]]),
            "t.npz: the array 'X' must be 2-D and numeric, (rows, columns), got shape (1, 1) and dtype <U1",
        ),
        (
            "t.npz",
            npz(X=np.eye(2), y=[1, 2, 3]),
            "t.npz: the array 'y' must hold 2 numbers or texts, one per row of X, got shape (3,) and dtype int64",
        ),
        (
            "t.npz",
            npz(X=np.eye(2), y=np.array([1, 2], "M8[D]")),
            "t.npz: the array 'y' must hold 2 numbers or texts, one per row of X, "
            "got shape (2,) and dtype datetime64[D]",
        ),
        (
            "t.npz",
            npz(X=np.array([[1, "a"]], dtype=object)),
            "t.npz: the array 'X' holds Python objects, which are never loaded; store numbers or fixed-length text",
        ),
        (
            "t.npz",
            zipped("X.npy", b"hello"),
            "t.npz: 'X' is not an array; write the file with numpy.savez",
        ),
        *(
            (
                "t.npz",
                zipped("X.npy", npy_header(literal)),
                "t.npz: 'X' is not an array; write the file with numpy.savez",
            )
            for literal in ("{'descr': '<f8', (", "{[]: 1}", "  {1:\n 2}\n3}", "-" * 9000 + "1", "(" * 9000)
        ),
        (
            "t.npz",
            npz(X=np.eye(2), name=np.array([65, 0x110000], np.uint32).view("U1")),
            "t.npz: the array 'name' holds what is no text; write it with numpy.savez",
        ),
        (
            "t.npz",
            npz(X=np.empty((1, 100001), np.int8)),
            f"t.npz is too big, 1 rows × 100001 columns; {SIZES}",
        ),
        ("t.svm", b"1 999999999:2\n", f"t.svm is too big, 1 rows × 1000000000 columns; {SIZES}"),
        ("t.svm", b"1 99999999999:2\n", "t.svm " + DAMAGED("svmlight", "value too large to convert to int")),
        ("t.svm", b"yes 1:2\n", "t.svm " + DAMAGED("svmlight", "could not convert string to float: b'yes'")),
    ],
)
def test_unreadable_files_are_refused(name, content, message):
    assert refusal(read_table, written(name, content)) == message


def test_numpy_header_that_claims_petabytes():
    message = refusal(read_table, written("t.npz", zipped("X.npy", HUGE_HEADER)))
    assert message.startswith("t.npz is too big, 1000000000 rows × 1000000 columns; at most")


# What a small file unfolds to


def peak_of(call) -> int:
    """Bytes that Python took at most."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("name", "compress"), [("t.csv.gz", gzip.compress), ("t.svm.bz2", bz2.compress)])
def test_a_text_that_unfolds_to_gigabytes(monkeypatch, name, compress):
    monkeypatch.setattr("fireset.tables.unfolding._AT_LEAST", 1 << 20)
    monkeypatch.setattr("fireset.tables.unfolding._AT_ONCE", 1 << 16)
    file = written(name, compress(b"1 1:2\n" * 10_000_000))
    messages = []
    assert peak_of(lambda: messages.append(refusal(read_table, file))) < 40 << 20
    unfolded = r"unfolds to more than \d+\.\d MB; if that is what it should be, set FIRESET_MAX_UNFOLDED"
    assert re.match(rf"{name} has 0\.\d MB and {unfolded}", messages[0])


def test_the_limit_can_be_raised(monkeypatch):
    monkeypatch.setattr("fireset.tables.unfolding._AT_LEAST", 1 << 10)
    file = written("t.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * 100_000))
    assert "FIRESET_MAX_UNFOLDED" in refusal(read_table, file)
    monkeypatch.setenv("FIRESET_MAX_UNFOLDED", "1M")
    assert read_table(file).height == 100_000
    monkeypatch.setenv("FIRESET_MAX_UNFOLDED", "much")
    assert refusal(read_table, file) == "FIRESET_MAX_UNFOLDED must be a size such as 8G, got 'much'"


def test_an_archive_with_an_array_that_does_not_belong_to_it():
    stream = io.BytesIO()
    np.savez_compressed(stream, X=np.eye(3), other=np.zeros(20_000_000))
    file, messages = written("t.npz", stream.getvalue()), []
    assert peak_of(lambda: messages.append(refusal(read_table, file))) < 10 << 20
    must = "must hold 3 numbers or texts, one per row of X, got shape (20000000,) and dtype float64"
    assert messages == [f"t.npz: the array 'other' {must}"]


def test_an_archive_that_unfolds_to_too_much(monkeypatch):
    monkeypatch.setattr("fireset.tables.unfolding._AT_LEAST", 1 << 20)
    stream = io.BytesIO()
    np.savez_compressed(stream, X=np.zeros((2_000_000, 2)))
    assert "unfolds to 30.5 MB" in refusal(read_table, written("t.npz", stream.getvalue()))


def test_paths_that_are_no_files():
    Path("folder.csv").mkdir()
    Path("plain").write_bytes(b"x")
    assert refusal(read_table, "absent.csv") == "no such file: absent.csv"
    assert refusal(read_table, Path("two\nlines.csv")) == "no such file: two\\nlines.csv"
    assert refusal(read_table, "plain/t.csv") == "no such file: plain/t.csv"
    assert refusal(read_table, "folder.csv") == "folder.csv is a directory; give the file of the table"
    assert refusal(read_table, "a" * 300 + ".csv") == f"cannot open {'a' * 300}.csv: File name too long"


FUZZED = {
    "t.csv": CSV,
    "t.csv.gz": gzip.compress(CSV, mtime=0),
    "t.svm": b"1 1:2 3:4 # note\n-1 qid:3 2:5\n",
    "t.npz": npz(X=np.eye(3), y=np.array(["a", "b", "c"])),
}


@pytest.mark.parametrize("name", FUZZED)
def test_altered_bytes_raise_nothing_but_input_errors(name):
    # Not parquet: polars can abort the whole process on altered lengths, which no caller can catch.
    random = np.random.default_rng(1)
    for _ in range(100):
        content = bytearray(FUZZED[name])
        for position in random.integers(len(content), size=random.integers(1, 4)):
            content[position] = random.integers(256)
        try:
            read_table(written(name, bytes(content[: random.integers(1, 2 * len(content))])))
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017 - an error is allowed, not required


@pytest.mark.parametrize("panics", [True, False])
def test_what_polars_prints_when_it_panics_is_not_shown(monkeypatch, capfd, panics):
    """A dozen lines from each of its threads, written to the descriptor itself; a warning of a good file is shown."""

    def read_parquet(*_, **__):
        os.write(
            2, b"thread '<unnamed>' panicked at column_chunk_metadata.rs:301:37:\nnote: run with RUST_BACKTRACE=1\n"
        )
        if panics:
            raise pl.exceptions.PanicException("called `Option::unwrap()` on a `None` value")
        return pl.DataFrame({"a": [1]})

    monkeypatch.setattr("polars.read_parquet", read_parquet)
    path = written("t.parquet", b"PAR1")
    if panics:
        assert refusal(read_table, path) == (
            "t.parquet cannot be read as parquet, it may be damaged: called `Option::unwrap()` on a `None` value"
        )
    else:
        assert read_table(path).height == 1
    assert capfd.readouterr().err.count("\n") == (0 if panics else 2)
    os.write(2, b"heard\n")
    assert capfd.readouterr().err == "heard\n"


def test_import_loads_no_reader_library():
    code = "import sys, fireset.tables.reader; print(sorted({'polars', 'sklearn'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# The target


TABLE = pl.DataFrame({"age": [1, 2, 3], "income": [1.0, 2.0, 3.0], "color": ["a", "b", "a"]})


def test_split_target():
    features, target = split_target(TABLE, "income")
    assert features.columns == ["age", "color"]
    assert target.to_list() == [1.0, 2.0, 3.0]


WIDE = pl.DataFrame({f"column {j}": [0] for j in range(12)})
FIRST_TEN = ", ".join(f"'column {j}'" for j in range(10))


@pytest.mark.parametrize(
    ("frame", "target", "message"),
    [
        (TABLE, "incom", "target 'incom' is not a column of the table; did you mean 'income'?"),
        (TABLE, "zzz", "target 'zzz' is not a column of the table; its columns are 'age', 'income', 'color'"),
        (WIDE, "y", f"target 'y' is not a column of the table; its columns are {FIRST_TEN} and 2 more"),
        (
            TABLE.select("age"),
            "age",
            "the table has no feature column besides the target 'age'; add one",
        ),
        (
            pl.DataFrame({"x": [1, 2, 3], "y": [1.0, None, float("nan")]}),
            "y",
            "target column 'y' has 2 missing values, first in row 2; remove those rows",
        ),
        (
            pl.DataFrame({"x": [1, 2], "y": [None, "a"]}),
            "y",
            "target column 'y' has 1 missing value, first in row 1; remove those rows",
        ),
    ],
)
def test_bad_targets_are_refused(frame, target, message):
    assert refusal(split_target, frame, target) == message


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (["a", "b"], "classification"),
        ([True, False], "classification"),
        (["1", "2", "other"], "classification"),
        ([0, 1] * 5, "classification"),
        ([1.0, -1.0] * 5, "classification"),
        (list(range(20)) * 2, "classification"),
        (list(range(21)) * 5, "regression"),
        ([3, 1, 4, 2, 5], "regression"),
        ([0.5, 1.0] * 5, "regression"),
        ([1e300, 2.0], "regression"),
    ],
)
def test_detect_task(values, task):
    assert detect_task(pl.Series("y", values)) == task


def test_detect_task_of_categorical_types():
    assert detect_task(pl.Series("y", ["a", "b"], dtype=pl.Categorical)) == "classification"
    assert detect_task(pl.Series("y", ["a", "b"], dtype=pl.Enum(["a", "b"]))) == "classification"


CONVERT = "which is neither number nor text; convert it to numbers or text in the file"


@pytest.mark.parametrize(
    ("call", "target", "message"),
    [
        (
            detect_task,
            pl.Series("y", [*map(str, range(30)), "3O"]),
            "target column 'y' is mostly numbers but holds the text '3O' in row 31; "
            "fix that cell, or say that the task is classification",
        ),
        (
            detect_task,
            pl.Series("y", [date(2020, 1, 1)]),
            f"target column 'y' has the type Date, {CONVERT}",
        ),
        (
            class_labels,
            pl.Series("y", ["a", "a"]),
            "target column 'y' holds the single class 'a' in all rows; give rows of at least two classes",
        ),
        (
            class_labels,
            pl.Series("y", [1.0, 1.0]),
            "target column 'y' holds the single class 1 in all rows; give rows of at least two classes",
        ),
        (class_labels, pl.Series("y", []), f"target column 'y' has no rows; {ONE_ROW}"),
        (
            class_labels,
            pl.Series("y", [1.0, float("inf")]),
            "target column 'y' holds inf in row 2; put a finite number there",
        ),
        (
            class_labels,
            pl.Series("y", ["a", None]),
            "target column 'y' has 1 missing value, first in row 2; remove those rows",
        ),
        (class_labels, pl.Series("y", [[1], [2]]), f"target column 'y' has the type List(Int64), {CONVERT}"),
        (
            regression_values,
            pl.Series("y", ["1", "2,5", "x"]),
            "target column 'y' holds the text '2,5' in row 2; regression needs a number in every row",
        ),
        (
            regression_values,
            pl.Series("y", ["1", "2"]),
            "target column 'y' holds the text '1' in row 1; regression needs a number in every row",
        ),
        (
            regression_values,
            pl.Series("y", [1.0, float("-inf")]),
            "target column 'y' holds -inf in row 2; put a finite number there",
        ),
        (
            regression_values,
            pl.Series("y", [1.0, float("nan")]),
            "target column 'y' has 1 missing value, first in row 2; remove those rows",
        ),
        (
            regression_values,
            pl.Series("y", [-1e200]),
            "target column 'y' holds -1e+200 in row 1, but magnitudes above 1e+150 overflow when squared; "
            "rescale the column",
        ),
    ],
)
def test_unusable_targets_are_refused(call, target, message):
    assert refusal(call, target) == message


@pytest.mark.parametrize(
    ("values", "codes", "classes"),
    [
        (["b", "a", "b"], [1, 0, 1], ["a", "b"]),
        ([True, False, True], [1, 0, 1], [False, True]),
        ([10, -1, 2], [2, 0, 1], [-1, 2, 10]),
        ([1.0, -1.0], [1, 0], [-1, 1]),
        ([0.5, 2.0, 0.5], [0, 1, 0], [0.5, 2.0]),
    ],
)
def test_class_labels(values, codes, classes):
    got_codes, got_classes = class_labels(pl.Series("y", values))
    assert got_codes.dtype == np.int64
    assert got_codes.tolist() == codes
    assert json.loads(json.dumps(got_classes)) == classes
    assert [type(c) for c in got_classes] == [type(c) for c in classes]


def test_regression_values():
    for values in ([1, 2], [1.0, 2.0], pl.Series(["1.0", "2.0"]).cast(pl.Decimal(5, 1))):
        got = regression_values(pl.Series("y", values))
        assert got.dtype == np.float64
        assert got.tolist() == [1.0, 2.0]


# Columns to numbers


MIXED = pl.DataFrame(
    {
        "age": [30, 40, 50],
        "smokes": [True, False, True],
        "color": ["red", "blue", "red"],
        "zip": [2139, 10115, 2139],
    }
)


def test_encode_equals_the_matrix_made_by_hand():
    encoder = TableEncoder.learn(MIXED, categorical=["zip"])
    assert encoder.feature_names == ["age", "smokes", "color=blue", "color=red", "zip=10115", "zip=2139"]
    matrix = encoder.encode(MIXED.select("zip", "color", "smokes", "age", extra=pl.lit("ignored")))
    assert matrix.dtype == np.float64
    assert matrix.flags.c_contiguous
    expected = [[30, 1, 0, 1, 0, 1], [40, 0, 1, 0, 1, 0], [50, 1, 0, 1, 0, 1]]
    np.testing.assert_array_equal(matrix, expected)
    assert encoder.encode(MIXED.clear()).shape == (0, 6)


@pytest.mark.parametrize("dtype", [pl.Categorical, pl.Enum(["red", "green", "blue"])])
def test_categorical_types_are_text(dtype):
    encoder = TableEncoder.learn(MIXED.select(pl.col("color").cast(dtype)))
    np.testing.assert_array_equal(encoder.encode(MIXED), [[0, 1], [1, 0], [0, 1]])


def test_categories_match_whatever_type_the_column_is_read_as():
    text = pl.DataFrame({"code": ["07", "2.5", " x ", "True", "12.0", "1e400"]})
    encoder = TableEncoder.learn(text, categorical=["code"])
    assert encoder.feature_names == [f"code={name}" for name in ("12", "1e400", "2.5", "7", "true", "x")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(encoder.encode(text).argmax(axis=1), [3, 2, 5, 4, 0, 1])
        assert encoder.encode(pl.DataFrame({"code": [7, 12]})).argmax(axis=1).tolist() == [3, 0]
        assert encoder.encode(pl.DataFrame({"code": [7.0, 2.5]})).argmax(axis=1).tolist() == [3, 2]
        assert encoder.encode(pl.DataFrame({"code": [True]})).argmax(axis=1).tolist() == [4]


def test_a_column_may_have_any_name():
    table = pl.DataFrame({"count": ["a", "b"], "bare": ["c", "d"], "": [1, 2]})
    encoder = TableEncoder.learn(table, impute=True)
    assert encoder.feature_names == ["count=a", "count=b", "bare=c", "bare=d", ""]
    np.testing.assert_array_equal(encoder.encode(table), [[1, 0, 1, 0, 1], [0, 1, 0, 1, 2]])


def test_imputation():
    training = pl.DataFrame(
        {
            "age": [1.0, None, float("nan"), 3.0, 10.0],
            "color": ["red", None, "blue", "red", "red"],
            "shape": ["disc", "cube", "cube", "disc", "ball"],
        }
    )
    encoder = TableEncoder.learn(training, impute=True)
    assert encoder.to_dict() == {
        "columns": [
            {"kind": "number", "name": "age", "fill": 3.0},
            {
                "kind": "category",
                "name": "color",
                "categories": ["(missing)", "blue", "red"],
                "fill": "(missing)",
            },
            {"kind": "category", "name": "shape", "categories": ["ball", "cube", "disc"], "fill": "cube"},
        ]
    }
    assert encoder.encode(training)[:, 0].tolist() == [1, 3, 3, 3, 10]
    assert encoder.encode(training)[:, 1].tolist() == [0, 1, 0, 0, 0]
    # Wholly missing columns arrive with the type Null, or as text without any text.
    for dtype in (pl.Null, pl.String, pl.Float64, pl.Int64):
        empty = pl.DataFrame({name: pl.Series([None], dtype=dtype) for name in training.columns})
        np.testing.assert_array_equal(encoder.encode(empty), [[3, 1, 0, 0, 0, 1, 0]])


def test_unseen_categories_become_zeros_with_a_warning():
    encoder = TableEncoder.learn(MIXED.select("color"))
    table = pl.DataFrame({"color": ["teal", "red", "pink", "teal", "grey", "plum"]})
    with pytest.warns(UserWarning, match="not seen in training") as caught:
        matrix = encoder.encode(table)
    assert [str(w.message) for w in caught] == [
        "column 'color': 5 cells hold categories not seen in training ('teal', 'pink', 'grey' and 1 more); "
        "encoded as all zeros"
    ]
    assert caught[0].filename == __file__
    assert matrix.tolist() == [[0, 0], [0, 1], [0, 0], [0, 0], [0, 0], [0, 0]]
    with pytest.warns(UserWarning, match=r"1 cell holds a category not seen in training \('x'\)"):
        encoder.encode(pl.DataFrame({"color": ["x"]}))


INF = float("inf")
AGE_OPTIONS = "pass --categorical age to treat it as categories, or pass --drop age"
IMPUTE = "fill them in, remove those rows, or pass --impute"
OVERFLOW = "but magnitudes above 1e+150 overflow when squared; rescale the column"


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (
            {"age": ["1", "2", None, "x", "y"]},
            {"impute": True},
            f"column 'age' is mostly numbers but holds the text 'x' in row 4; fix that cell, {AGE_OPTIONS}",
        ),
        (
            {"age": [" 1", "2"]},
            {},
            f"column 'age' holds numbers stored as text, ' 1' in row 1; store them as numbers, {AGE_OPTIONS}",
        ),
        (
            {"my age": ["1", "a\nb" + "c" * 99]},
            {},
            f"column 'my age' is mostly numbers but holds the text 'a\\nb{'c' * 52}... in row 2; "
            "fix that cell, pass --categorical 'my age' to treat it as categories, or pass --drop 'my age'",
        ),
        (
            {"id": [f"id{i}" for i in range(1001)]},
            {},
            "column 'id' holds 1001 different texts, more than 1000; pass --drop id, "
            "or pass --categorical id to treat it as categories",
        ),
        (
            {"day": [date(2020, 1, 1)]},
            {"categorical": ["day"]},
            "column 'day' has the type Date, which is neither number nor text; "
            "convert it in the file, or pass --drop day",
        ),
        (
            {"a": [[1, 2]]},
            {},
            "column 'a' has the type List(Int64), which is neither number nor text; "
            "convert it in the file, or pass --drop a",
        ),
        ({"a": [1.0, None, float("nan")]}, {}, f"column 'a' has 2 missing values, first in row 2; {IMPUTE}"),
        ({"a": ["x", "y", None]}, {}, f"column 'a' has 1 missing value, first in row 3; {IMPUTE}"),
        ({"a": [None, None]}, {"impute": True}, "column 'a' has no value in any row; pass --drop a"),
        ({"a": [float("nan")]}, {"impute": True}, "column 'a' has no value in any row; pass --drop a"),
        ({"a": [1.0, INF]}, {"impute": True}, "column 'a' holds inf in row 2; put a finite number there"),
        ({"a": [-INF]}, {"categorical": ["a"]}, "column 'a' holds -inf in row 1; put a finite number there"),
        ({"a": [1.0, -2e150]}, {}, f"column 'a' holds -2e+150 in row 2, {OVERFLOW}"),
        (
            {"color": ["x"]},
            {"categorical": ["colour"]},
            "categorical 'colour' is not a column of the table; did you mean 'color'?",
        ),
        (
            {"a": ["x"]},
            {"categorical": "a"},
            "categorical must be a list of column names, got 'a'",
        ),
        ({"a": []}, {}, "the table has no rows to learn from"),
        ({}, {}, "the table has no feature column; give at least one besides the target"),
    ],
)
def test_tables_that_cannot_be_learned_are_refused(columns, options, message):
    assert refusal(TableEncoder.learn, pl.DataFrame(columns), **options) == message


def test_insisting_on_categories():
    many = pl.DataFrame({"id": [f"id{i}" for i in range(1001)]})
    assert len(TableEncoder.learn(many, categorical=["id"]).feature_names) == 1001
    mostly = pl.DataFrame({"age": ["1", "2", "x"]})
    assert TableEncoder.learn(mostly, categorical=["age"]).feature_names == ["age=1", "age=2", "age=x"]
    assert TableEncoder.learn(pl.DataFrame({"size": ["S", "M", "4"]})).feature_names == [
        "size=4",
        "size=M",
        "size=S",
    ]


LEARNED = pl.DataFrame({"age": [1.0, 2.0], "color": ["a", "b"]})
FILL = "fill them in, or train the model with --impute"
NUMERIC = "column 'age' was numeric in training but holds the text {} in row {}; store numbers in that column"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"age": ["1", "x"], "color": ["a", "b"]}, NUMERIC.format("'x'", 2)),
        ({"age": ["1", "2"], "color": ["a", "b"]}, NUMERIC.format("'1'", 1)),
        ({"age": [None], "color": ["a"]}, f"column 'age' has 1 missing value, first in row 1; {FILL}"),
        ({"age": [1], "color": [None]}, f"column 'color' has 1 missing value, first in row 1; {FILL}"),
        (
            {"age": [date(2020, 1, 1)], "color": ["a"]},
            "column 'age' has the type Date, which is neither number nor text; store it as in the training table",
        ),
        ({"age": [INF], "color": ["a"]}, "column 'age' holds inf in row 1; put a finite number there"),
        ({"age": [1], "color": [INF]}, "column 'color' holds inf in row 1; put a finite number there"),
        ({"age": [1e151], "color": ["a"]}, f"column 'age' holds 1e+151 in row 1, {OVERFLOW}"),
        (
            {"Age": [1], "color": ["a"]},
            "the table lacks 1 of the model's columns: 'age'; the model was trained on 2 columns, "
            "the table has 2; name the columns as in the training table",
        ),
    ],
)
def test_tables_unlike_the_training_table_are_refused(columns, message):
    encoder = TableEncoder.learn(LEARNED)
    assert refusal(encoder.encode, pl.DataFrame(columns)) == message


def test_a_matrix_with_too_few_columns():
    encoder = TableEncoder.learn(pl.DataFrame({f"x{j}": [0.0] for j in range(10)}))
    assert refusal(encoder.encode, pl.DataFrame({f"x{j}": [0.0] for j in range(3)})) == (
        "the table lacks 7 of the model's columns: 'x3', 'x4', 'x5', 'x6', 'x7' and 2 more; the model "
        "was trained on 10 columns, the table has 3; name the columns as in the training table"
    )


# The stored form


STORED = {
    "columns": [
        {"kind": "number", "name": "age", "fill": 3.0},
        {"kind": "category", "name": "color", "categories": ["blue", "red"], "fill": "red"},
        {"kind": "number", "name": "height", "fill": None},
    ]
}


def test_stored_form_survives_json():
    for impute in (False, True):
        encoder = TableEncoder.learn(MIXED, categorical=["zip"], impute=impute)
        assert TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict()))) == encoder
    assert TableEncoder.from_dict(STORED).to_dict() == STORED


EXTREMES = [
    None,
    True,
    7,
    -1.5,
    float("nan"),
    INF,
    10**400,
    "",
    "red",
    "\ud800",
    [],
    ["a"],
    [1],
    {},
    {"a": 1},
]


def places(node, path=()):
    """The paths to every part of a nested stored form, the whole included."""
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in items:
        yield from places(child, (*path, key))


@pytest.mark.parametrize("path", list(places(STORED)), ids=str)
def test_mutated_stored_forms_raise_nothing_but_input_errors(path):
    table = pl.DataFrame({"age": [1.0, 2.0], "color": ["red", "blue"], "height": [1, 2], "": [1, 2], "red": [1, 2]})
    for value in [*EXTREMES, "remove", "add"]:
        holder: dict[str, Any] = {"whole": copy.deepcopy(STORED)}
        parent: Any = holder
        for key in ("whole", *path)[:-1]:
            parent = parent[key]
        last = ("whole", *path)[-1]
        if value == "remove":
            del parent[last]
            holder.setdefault("whole", {})
        elif value == "add" and isinstance(parent, dict):
            parent["further"] = 1
        else:
            parent[last] = value
        try:
            encoder = TableEncoder.from_dict(holder["whole"])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                matrix = encoder.encode(table)
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017 - an error is allowed, not required
        else:
            assert np.isfinite(matrix).all()


def number(**changes):
    return {"columns": [{"kind": "number", "name": "a", "fill": None} | changes]}


def category(**changes):
    return {"columns": [{"kind": "category", "name": "a", "categories": ["x", "y"], "fill": None} | changes]}


NUMBER_FILL = "the 'fill' of a number column must be a finite number or null, got"
CATEGORIES = "'categories' must be sorted, different texts, got"


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        (None, "it must hold exactly 'columns', got None"),
        ({"columns": {}}, "'columns' must be a list, not empty, got {}"),
        ({"columns": []}, "'columns' must be a list, not empty, got []"),
        ({"columns": [3]}, "each column must be a dict, got 3"),
        ({"columns": number()["columns"] * 2}, "its column names must differ, got ['a', 'a']"),
        (number(kind="date"), "a column's 'kind' must be 'number' or 'category', got 'date'"),
        (number(name=3), "a column's 'name' must be text, got 3"),
        (number(name="\ud800"), "a column's 'name' must be text, got '\\ud800'"),
        (number(fill="3"), f"{NUMBER_FILL} '3'"),
        (number(fill=True), f"{NUMBER_FILL} True"),
        (number(fill=float("nan")), f"{NUMBER_FILL} nan"),
        (number(fill=10**400), f"{NUMBER_FILL} 1{'0' * 56}..."),
        (number(fill=10**5000), f"{NUMBER_FILL} something of type int"),
        (category(categories=[]), f"{CATEGORIES} []"),
        (category(categories=["y", "x"]), f"{CATEGORIES} ['y', 'x']"),
        (category(categories=["x", "x"]), f"{CATEGORIES} ['x', 'x']"),
        (category(categories=["x", 1]), f"{CATEGORIES} ['x', 1]"),
        (
            category(fill="z"),
            "the 'fill' of a category column must be one of its categories or null, got 'z'",
        ),
        (
            number(categories=["x"]),
            "a number column has 'kind', 'name' and 'fill', got "
            "{'kind': 'number', 'name': 'a', 'fill': None, 'categories...",
        ),
        (
            {"columns": [{"kind": "category", "name": "a"}]},
            "a category column has 'kind', 'name', 'categories' and 'fill', got {'kind': 'category', 'name': 'a'}",
        ),
    ],
)
def test_damaged_stored_forms_are_refused(stored, problem):
    message = refusal(TableEncoder.from_dict, stored)
    assert message == f"the model's table encoder is damaged: {problem}; train the model again"


# Any table


WORDS = st.text(alphabet="abTé\n ,=(", max_size=4)
MAGNITUDES = st.floats(-1e150, 1e150)


@st.composite
def tables(draw):
    """Tables of number, boolean and text columns with missing cells, but never a column of nothing else."""
    rows = draw(st.integers(1, 8))
    columns = {}
    for j in range(draw(st.integers(1, 4))):
        cells = draw(st.sampled_from([MAGNITUDES, st.integers(-(2**63), 2**63 - 1), st.booleans(), WORDS]))
        first = draw(cells)
        columns[f"c{j}"] = [first, *draw(st.lists(st.none() | cells, min_size=rows - 1, max_size=rows - 1))]
    return pl.DataFrame(columns)


@settings(max_examples=40, deadline=None)
@given(table=tables(), data=st.data())
def test_encoding_is_finite_and_follows_row_permutations(table, data):
    encoder = TableEncoder.learn(table, impute=True, categorical=table.columns[:1])
    matrix = encoder.encode(table)
    assert matrix.shape == (table.height, len(encoder.feature_names))
    assert matrix.flags.c_contiguous
    assert np.isfinite(matrix).all()
    order = data.draw(st.permutations(range(table.height)))
    np.testing.assert_array_equal(encoder.encode(table[order]), matrix[order])
    assert TableEncoder.learn(table[order], impute=True, categorical=table.columns[:1]) == encoder
    assert TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict()))) == encoder
