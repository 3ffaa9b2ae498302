"""Reading tables, and splitting off the target."""

import bz2
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tracemalloc
import zipfile
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import zstandard
from typer.testing import CliRunner

from fireset._util.errors import InputError
from fireset.cli import app
from fireset.tables.file_formats import BINARY_FORMATS, COMPRESSION_SUFFIXES, TEXT_FORMATS
from fireset.tables.reader import read_table
from fireset.tables.target import class_labels, detect_task, regression_values, split_target
from support.checks import mentions, refusal

ONE_ROW = "give a table with at least one row"


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    """Relative paths keep the expected messages short."""
    monkeypatch.chdir(tmp_path)


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
        ("t.csv.zst", zstandard.compress(CSV)),
        ("tabs.csv", CSV.replace(b",", b"\t")),
        ("bars.csv", CSV.replace(b",", b"|")),
        ("semicolons.csv", CSV.replace(b",", b";")),
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
        (1000.0, "None", True, None),  # a text among texts
    ]


def test_decimal_commas_beside_semicolons():
    body = b"price;note;size\n1.234,5;a,b;3,25\n-2;c;1,234\n;d;7\n"
    frame = read_table(written("t.csv", body))
    assert frame.to_dict(as_series=False) == {
        "price": [1234.5, -2.0, None],
        "note": ["a,b", "c", "d"],
        "size": [3.25, 1.234, 7.0],
    }


@pytest.mark.parametrize("body", [b"a,b;c\n1,2\n", b'name,note\n"x;y;z",2\n', b"one;two,three,four\n1;2,3,4\n"])
def test_the_separator_with_most_columns_in_the_header_is_used(body):
    frame = read_table(written("t.csv", body))
    assert frame.columns == [name.decode() for name in body.splitlines()[0].split(b",")]


def test_zstandard_files_of_several_frames_and_truncated_ones():
    whole = zstandard.compress(b"a,b\n") + zstandard.compress(b"1,2\n" * 1000)
    assert read_table(written("t.csv.zst", whole)).height == 1000
    message = refusal(read_table, written("short.csv.zst", whole[:-3]))
    assert mentions(message, "short.csv.zst")
    assert "cannot be read as CSV" in refusal(read_table, written("junk.csv.zst", JUNK))


def test_csv_types_come_from_all_rows():
    body = b"a,b\n" + b"1,2\n" * 5000 + b"1.5,x\n"
    assert read_table(written("t.csv", body)).schema == {"a": pl.Float64, "b": pl.String}


def test_csv_quotes_and_long_integers():
    frame = read_table(written("t.csv", b'a,"b,c"\n' + b"9" * 60 + b',"x\ny"\n2,\n'))
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
PARQUET = parquet(pl.DataFrame({"a": list(range(500))}))
HUGE_HEADER = b"\x93NUMPY\x01\x00\x46\x00{'descr':'<f8','fortran_order':False,'shape':(1000000000,1000000)}".ljust(80)


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("t.ods", b"PK", ["'.ods'"]),
        ("table", b"a", ["''"]),
        ("t.npz.gz", b"a", ["'.npz.gz'"]),
        *((name, b"", []) for name in ("t.csv", "t.parquet", "t.npz", "t.svm")),
        ("t.csv", b"\n \r\n", []),
        ("t.csv.gz", gzip.compress(b"", mtime=0), []),
        ("t.csv", b"a,b\n", []),
        ("t.tsv", b"a\tb", []),
        ("t.parquet", parquet(pl.DataFrame({"a": []})), []),
        ("t.npz", npz(X=np.empty((0, 2))), []),
        ("t.svm", b"# only a comment\n", []),
        ("t.csv", b"a,b, a\n1,2,3\n", ["'a'", "2"]),
        ("t.npz", npz(X=np.eye(2), x1=[1, 2]), ["'x1'", "2"]),
        ("t.csv", b",a\n0,1\n", ["1"]),
        ("t.csv", b"1.5,2\n3,4\n", []),
        ("t.csv", b"a,b\n\n3,4,5\n", ["3", "3", "2"]),
        ("t.csv", b'a,b\n1,2\n3,"4\n5,6\n', ["3"]),
        ("t.csv", b"a,b\n1,\xc3\xa9\n3,caf\xe9\n", ["3"]),
        ("t.csv", b"a,b\n1,\x00\n", ["2"]),
        ("t.csv", "a,b\n1,2\n".encode("utf-16")[:-1], ["2"]),
        ("t.csv", JUNK, ["1"]),
        ("t.csv.gz", b"a,b\n1,2\n", ["b'a,'"]),
        ("t.tsv.bz2", b"a,b\n1,2\n", []),
        ("t.svm.gz", gzip.compress(b"1 1:2\n" * 99, mtime=0)[:-9], []),
        ("t.parquet", PARQUET[: len(PARQUET) // 2], ["PAR1"]),
        ("t.npz", JUNK, []),
        ("t.npz", npz(X=np.eye(9))[:300], []),
        (
            "t.npz",
            npz(X=np.eye(9)).replace(np.float64(1).tobytes(), np.float64(2).tobytes()),
            ["'X.npy'"],
        ),
        ("t.npz", npz(y=[1, 2]), ["'X'", "'y'"]),
        ("t.npz", npz(), ["'X'"]),
        ("t.npz", npz(X=[1.0, 2.0]), ["'X'", "(2,)", "float64"]),
        ("t.npz", npz(X=[["a"]]), ["'X'", "(1, 1)", "<U1"]),
        ("t.npz", npz(X=np.eye(2), y=[1, 2, 3]), ["'y'", "2", "3"]),
        (
            "t.npz",
            npz(X=np.eye(2), y=np.array([1, 2], "M8[D]")),
            ["'y'", "2", "2"],
        ),
        ("t.npz", npz(X=np.array([[1, "a"]], dtype=object)), ["'X'"]),
        ("t.npz", zipped("X.npy", b"hello"), ["'X'"]),
        *(
            (
                "t.npz",
                zipped("X.npy", npy_header(literal)),
                ["'X'"],
            )
            for literal in ("{'descr': '<f8', (", "{[]: 1}", "  {1:\n 2}\n3}", "-" * 9000 + "1", "(" * 9000)
        ),
        (
            "t.npz",
            npz(X=np.eye(2), name=np.array([65, 0x110000], np.uint32).view("U1")),
            ["'name'"],
        ),
        (
            "t.npz",
            npz(X=np.empty((1, 100001), np.int8)),
            ["1", "100001", "100000", "1073741824"],
        ),
        ("t.svm", b"1 999999999:2\n", ["1", "1000000000", "100000", "1073741824"]),
        ("t.svm", b"1 99999999999:2\n", []),
        ("t.svm", b"yes 1:2\n", ["b'yes'"]),
    ],
)
def test_unreadable_files_are_refused(name, content, parts):
    found = refusal(read_table, written(name, content))
    assert found.startswith(name)
    assert mentions(found, *parts)


@pytest.mark.parametrize(
    ("content", "line", "word"),
    [
        (b'a,b\n1,"x"\n2,5" pipe\n3,y\n', 3, "quote"),
        (b'a,b\n1,"x\n""y"\n2,5" pipe, 6" pipe\n3,7"\n', 4, "fields"),
        (b'a,b\n1,"x\n""y"\n"2",5" pipe\n3,7\n', 4, "quote"),
        (b"a,b\r\n1,2\r3,4\r\n", 2, "carriage return"),
    ],
)
def test_lines_that_cannot_be_parsed_are_named(content, line, word):
    with pytest.raises(InputError, match=rf"line {line} .*{word}"):
        read_table(written("t.csv", content))


def test_numpy_header_that_claims_petabytes():
    message = refusal(read_table, written("t.npz", zipped("X.npy", HUGE_HEADER)))
    assert mentions(message, "t.npz", "1000000000", "1000000")


# Decompressed sizes


def peak_of(call) -> int:
    """Return the peak of Python's memory in bytes."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("t.csv.gz", gzip.compress),
        pytest.param("t.svm.bz2", bz2.compress, marks=pytest.mark.slow),
        ("t.csv.zst", zstandard.compress),
    ],
)
def test_a_text_that_decompresses_to_gigabytes(monkeypatch, name, compress):
    import sklearn.datasets  # noqa: F401 - loading it takes memory, too

    monkeypatch.setattr("fireset.tables.decompression._MIN_LIMIT_BYTES", 1 << 20)
    monkeypatch.setattr("fireset.tables.decompression._READ_BYTES", 1 << 16)
    file = written(name, compress(b"1 1:2\n" * 10_000_000))
    messages = []
    assert peak_of(lambda: messages.append(refusal(read_table, file))) < 40 << 20
    expected = r"decompresses to more than \d+\.\d MB.* set FIRESET_MAX_DECOMPRESSED"
    assert re.match(rf"{name} has 0\.\d MB and {expected}", messages[0])


def test_the_limit_can_be_raised(monkeypatch):
    monkeypatch.setattr("fireset.tables.decompression._MIN_LIMIT_BYTES", 1 << 10)
    file = written("t.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * 100_000))
    assert "FIRESET_MAX_DECOMPRESSED" in refusal(read_table, file)
    monkeypatch.setenv("FIRESET_MAX_DECOMPRESSED", "1M")
    assert read_table(file).height == 100_000
    monkeypatch.setenv("FIRESET_MAX_DECOMPRESSED", "much")
    assert mentions(refusal(read_table, file), "FIRESET_MAX_DECOMPRESSED", "'much'")


def test_an_archive_with_an_additional_member():
    stream = io.BytesIO()
    np.savez_compressed(stream, X=np.eye(3), other=np.zeros(20_000_000))
    file, messages = written("t.npz", stream.getvalue()), []
    assert peak_of(lambda: messages.append(refusal(read_table, file))) < 10 << 20
    assert mentions(messages[0], "t.npz", "'other'", "3", "(20000000,)", "float64")


def test_an_archive_that_decompresses_to_too_much(monkeypatch):
    monkeypatch.setattr("fireset.tables.decompression._MIN_LIMIT_BYTES", 1 << 20)
    stream = io.BytesIO()
    np.savez_compressed(stream, X=np.zeros((2_000_000, 2)))
    assert "decompresses to 30.5 MB" in refusal(read_table, written("t.npz", stream.getvalue()))


def test_missing_files_and_directories():
    Path("folder.csv").mkdir()
    Path("plain").write_bytes(b"x")
    assert mentions(refusal(read_table, "absent.csv"), "absent.csv")
    assert mentions(refusal(read_table, Path("two\nlines.csv")), r"two\nlines.csv")
    assert mentions(refusal(read_table, "plain/t.csv"), "plain/t.csv")
    assert mentions(refusal(read_table, "folder.csv"), "folder.csv")
    assert mentions(refusal(read_table, "a" * 300 + ".csv"), "a" * 300)


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
def test_panic_messages_of_polars_are_suppressed(monkeypatch, capfd, panics):
    """Rust writes them to the file descriptor. Other output is shown."""

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
        assert mentions(refusal(read_table, path), "t.parquet", "`Option::unwrap()`", "`None`")
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
    ("frame", "target", "parts"),
    [
        (TABLE, "incom", ["'incom'", "'income'"]),
        (TABLE, "zzz", ["'zzz'", "'age'", "'income'", "'color'"]),
        (WIDE, "y", ["'y'", FIRST_TEN, "2"]),
        (
            TABLE.select("age"),
            "age",
            ["'age'"],
        ),
        (
            pl.DataFrame({"x": [1, 2, 3], "y": [1.0, None, float("nan")]}),
            "y",
            ["'y'", "2", "2", "--drop-missing-target"],
        ),
        (
            pl.DataFrame({"x": [1, 2], "y": [None, "a"]}),
            "y",
            ["'y'", "1", "1", "--drop-missing-target"],
        ),
    ],
)
def test_bad_targets_are_refused(frame, target, parts):
    assert mentions(refusal(split_target, frame, target), *parts)


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
    assert detect_task(pl.Series("y", values)).task == task


def drawn(seed: int, levels: list[int], weights: list[float], rows: int) -> list[int]:
    shares = np.array(weights) / sum(weights)
    return np.random.default_rng(seed).choice(levels, rows, p=shares).tolist()


TYPICAL = {
    "digits": (list(range(10)), [1] * 10, "classification"),
    "digits, as frequent as in MNIST": (list(range(10)), [59, 67, 60, 61, 58, 54, 59, 63, 59, 59], "classification"),
    "iris": ([0, 1, 2], [1] * 3, "classification"),
    "iris from 1": ([1, 2, 3], [1] * 3, "classification"),
    "binary": ([0, 1], [9, 1], "classification"),
    "output_weights": ([-1, 1], [2, 1], "classification"),
    "forest cover": (list(range(1, 8)), [212, 283, 36, 3, 9, 17, 21], "classification"),
    "glass": ([1, 2, 3, 5, 6, 7], [70, 76, 17, 13, 9, 29], "classification"),
    "months": (list(range(1, 13)), [1] * 12, "classification"),
    "wine quality": (list(range(3, 10)), [30, 216, 2138, 2836, 1079, 193, 5], "regression"),
    "ages": (list(range(25, 35)), [1] * 10, "regression"),
    "years": (list(range(2010, 2021)), [1] * 11, "regression"),
    "visits": (list(range(15)), [np.exp(-k / 3) for k in range(15)], "regression"),
    "articles": (list(range(8)), [275, 246, 178, 84, 67, 27, 17, 12], "regression"),
    "rings of abalones": (
        list(range(1, 21)),
        [1, 1, 9, 20, 40, 80, 130, 200, 240, 220, 170, 90, 70, 45, 35, 23, 20, 14, 11, 9],
        "regression",
    ),
    "ratings with one peak": ([1, 2, 3, 4, 5], [2, 5, 15, 40, 20], "regression"),
    "promoter score": (list(range(11)), [1, 1, 2, 2, 3, 8, 10, 20, 40, 30, 22], "regression"),
}


@pytest.mark.parametrize("rows", [300, 3000])
@pytest.mark.parametrize("name", TYPICAL)
def test_typical_targets(name, rows):
    levels, weights, task = TYPICAL[name]
    for seed in range(5):
        choice = detect_task(pl.Series("y", drawn(seed, levels, weights, rows)))
        assert choice.task == task, (seed, choice)
        assert choice.reason
        poisson = name in ("visits", "articles")
        assert ("poisson" in choice.suggestion) == poisson or not poisson
        other = {"classification": "--task regression", "regression": "--task classification"}[task]
        assert len(set(levels)) <= 2 or other in choice.suggestion


def test_detect_task_of_categorical_types():
    assert detect_task(pl.Series("y", ["a", "b"], dtype=pl.Categorical)).task == "classification"
    assert detect_task(pl.Series("y", ["a", "b"], dtype=pl.Enum(["a", "b"]))).task == "classification"


CONVERT = "which is neither number, text nor date; convert it to numbers or text in the file"


@pytest.mark.parametrize(
    ("call", "target", "parts"),
    [
        (
            detect_task,
            pl.Series("y", [*map(str, range(30)), "3O"]),
            ["'y'", "'3O'", "31", "--drop-missing-target", "--task"],
        ),
        (
            class_labels,
            pl.Series("y", [date(2020, 1, 1)]),
            ["'y'"],
        ),
        (
            regression_values,
            pl.Series("y", [date(2020, 1, 1)]),
            ["'y'"],
        ),
        (
            class_labels,
            pl.Series("y", ["a", "a"]),
            ["'y'", "'a'"],
        ),
        (
            class_labels,
            pl.Series("y", [1.0, 1.0]),
            ["'y'", "1"],
        ),
        (class_labels, pl.Series("y", []), ["'y'", ONE_ROW]),
        (
            class_labels,
            pl.Series("y", [1.0, float("inf")]),
            ["'y'", "inf", "2"],
        ),
        (
            class_labels,
            pl.Series("y", ["a", None]),
            ["'y'", "1", "2"],
        ),
        (class_labels, pl.Series("y", [[1], [2]]), ["'y'", CONVERT]),
        (
            regression_values,
            pl.Series("y", ["1", "2,5", "x"]),
            ["'y'", "'2,5'", "2"],
        ),
        (
            regression_values,
            pl.Series("y", ["1", "2"]),
            ["'y'", "'1'", "1"],
        ),
        (
            regression_values,
            pl.Series("y", [1.0, float("-inf")]),
            ["'y'", "-inf", "2"],
        ),
        (
            regression_values,
            pl.Series("y", [1.0, float("nan")]),
            ["'y'", "1", "2"],
        ),
        (
            regression_values,
            pl.Series("y", [-1e200]),
            ["'y'", "-1e+200", "1", "1e+150"],
        ),
    ],
)
def test_unusable_targets_are_refused(call, target, parts):
    assert mentions(refusal(call, target), *parts)


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
    labels = class_labels(pl.Series("y", values))
    got_codes, got_classes = labels.codes, labels.classes
    assert got_codes.dtype == np.int64
    assert got_codes.tolist() == codes
    assert json.loads(json.dumps(got_classes)) == classes
    assert [type(c) for c in got_classes] == [type(c) for c in classes]


def test_regression_values():
    for values in ([1, 2], [1.0, 2.0], pl.Series(["1.0", "2.0"]).cast(pl.Decimal(5, 1))):
        got = regression_values(pl.Series("y", values))
        assert got.dtype == np.float64
        assert got.tolist() == [1.0, 2.0]


def test_help_docs_and_refusal_list_the_same_formats(tmp_path):
    (tmp_path / "table.docx").write_text("a")
    refused = refusal(read_table, tmp_path / "table.docx")
    docs = (Path(__file__).parents[2] / "docs" / "tabular-data.md").read_text(encoding="utf-8")
    shown = [
        CliRunner().invoke(app, [command, "--help"]).stdout for command in ("train", "compare", "theory", "quantum")
    ]
    for text in (refused, docs, *shown):
        words = set(re.findall(r"\.\w+", text))
        assert words >= {*TEXT_FORMATS, *BINARY_FORMATS, *COMPRESSION_SUFFIXES}
