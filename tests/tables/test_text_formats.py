"""Formats of text cells: learned from the training file, used for all later files."""

import io
import json
import os
import threading
import warnings
import zipfile
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fireset import InputError
from fireset.cli import app
from fireset.tables.encoder import TableEncoder
from fireset.tables.problem import TableProblem
from fireset.tables.reader import read_cells, read_table, read_with_formats
from fireset.tables.text_formats import BooleanFormat, DateFormat, NumberFormat, learn_formats
from support.checks import refusal


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(text: str, name: str = "table.csv") -> Path:
    Path(name).write_text(text, encoding="utf-8")
    return Path(name)


def later(encoder: TableEncoder, text: str, name: str = "later.csv") -> np.ndarray:
    return encoder.encode(read_cells(written(text, name), [column.name for column in encoder.columns]))


def trained(text: str, **reading) -> TableEncoder:
    return TableProblem.read(written(text), "y", **reading).encode().encoder


# Learning


@pytest.mark.parametrize(
    ("columns", "formats", "ambiguities"),
    [
        ({"a": ["3,5", "1.234,75"]}, {"a": NumberFormat(",", ".")}, 0),
        ({"a": ["3,5", "7"]}, {"a": NumberFormat(",", "")}, 0),
        ({"a": ["1,234.5", "7"]}, {"a": NumberFormat(".", ",")}, 0),
        ({"a": ["1.5", "7"]}, {"a": NumberFormat(".", "")}, 0),
        ({"a": ["1,234", "5,678"]}, {"a": NumberFormat(".", ",")}, 1),
        ({"a": ["1,234,567", "5,678"]}, {"a": NumberFormat(".", ",")}, 0),
        ({"a": ["0,123", "1,500"]}, {"a": NumberFormat(",", "")}, 0),  # no group begins with 0
        ({"a": ["10.188,19", "46.901"]}, {"a": NumberFormat(",", ".")}, 0),
        ({"a": ["3,5", "46.901"]}, {"a": NumberFormat(",", ".")}, 1),
        ({"a": ["46.901", "2.000"]}, {"a": NumberFormat(".", "")}, 0),
        # One column decides for another.
        ({"a": ["10.188,19"], "b": ["46.901"]}, {"a": NumberFormat(",", "."), "b": NumberFormat(",", ".")}, 0),
        ({"a": ["3,5"], "b": ["46.901"]}, {"a": NumberFormat(",", ""), "b": NumberFormat(".", "")}, 1),
        ({"a": ["3,5"], "b": ["1,234"]}, {"a": NumberFormat(",", ""), "b": NumberFormat(",", "")}, 0),
        ({"a": ["3.5"], "b": ["1,234"]}, {"a": NumberFormat(".", ""), "b": NumberFormat(".", ",")}, 0),
        ({"a": ["3,5"], "b": ["12"]}, {"a": NumberFormat(",", ""), "b": NumberFormat(",", "")}, 0),
        ({"a": ["3,5", "2.5"]}, {}, 0),  # two decimal marks: no numbers
        ({"a": ["$1,234.50", "-$7", "8"]}, {"a": NumberFormat(".", ",", "$")}, 0),
        ({"a": ["€ 1.234,50", "7 €"]}, {"a": NumberFormat(",", ".", "€")}, 0),
        ({"a": ["12.5%", "3 %"]}, {"a": NumberFormat(".", "", "%")}, 0),
        ({"a": ["12.5%", "0.3"]}, {}, 0),
        ({"a": ["$5", "€3"]}, {}, 0),
        ({"a": ["True", "false", "?"]}, {"a": BooleanFormat()}, 0),
        ({"a": ["31/01/2024", "01/02/2024"]}, {"a": DateFormat("%d/%m/%Y")}, 0),
        ({"a": ["03/01/2024", "01/02/2024"]}, {"a": DateFormat("%m/%d/%Y")}, 1),
        ({"a": ["01/01/2024"]}, {"a": DateFormat("%m/%d/%Y")}, 0),
    ],
)
def test_learned_formats(columns, formats, ambiguities):
    found = learn_formats([pl.Series(name, cells) for name, cells in columns.items()])
    assert found.columns == formats
    assert len(found.ambiguities) == ambiguities


def test_semicolons_make_commas_decimal_in_ambiguous_columns():
    assert read_table(written("a;b\n1,234;5\n")).rows() == [(1.234, 5)]
    assert read_table(written('a,b\n"1,234",5\n')).rows() == [(1234, 5)]
    assert len(read_with_formats("table.csv").ambiguities) == 1


# Later files


COMMAS = "a;b;y\n3,5;x;1,5\n1,25;z;2,5\n2;x;3\n4,75;z;1,25\n"


def test_one_row_with_a_decimal_comma():
    encoder = trained(COMMAS)
    assert later(encoder, "a;b\n3,125;x\n")[0, 0] == 3.125
    assert later(encoder, 'a,b\n"3,125",x\n')[0, 0] == 3.125


@pytest.mark.parametrize(
    ("training", "cell", "number"),
    [
        (["3,5", "1,25"], "3,125", 3.125),
        (["3,5", "1,25"], "46.901", None),
        (["3,5", "1,25"], "10.188,19", 10188.19),
        (["3,5", "1.000,25"], "46.901", 46901),
        (["3.5", "1.25"], "3,125", None),
        (["3.5", "1.25"], "1,234.5", 1234.5),
        (["3.5", "1,000.25"], "3,125", 3125),
        (["1", "2"], "3,125", None),
        (["1", "2"], "3.125", 3.125),
        (["$3.5", "$1.25"], "$7", 7),
        (["$3.5", "$1.25"], "7", 7),
        (["$3.5", "$1.25"], "€7", None),
        (["3.5%", "1.25%"], "7%", 7),
        (["3.5%", "1.25%"], "7", None),
        (["3.5", "1.25"], "7%", None),
        (["3.5", "1.25"], "seven", None),
        (["true", "false"], "TRUE", 1),
        (["true", "false"], "1", None),
        (["true", "false"], "yes", None),
        (["0", "1"], "true", None),
        (["31/12/2024", "01/02/2024"], "03/04/2024", (date(2024, 4, 3) - date(1970, 1, 1)).days),
        (["12/31/2024", "01/02/2024"], "03/04/2024", (date(2024, 3, 4) - date(1970, 1, 1)).days),
        (["12/31/2024", "01/02/2024"], "31/03/2024", None),
        (["2024-12-31", "2024-01-02"], "31.12.2024", None),
    ],
)
def test_later_cells_that_do_not_fit_the_format_are_refused(training, cell, number):
    table = pl.DataFrame({"a": training * 3, "b": ["u", "v"] * 3})
    encoder = TableEncoder.learn(table)
    encoder = TableEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    row = pl.DataFrame({"a": [cell], "b": ["u"]})
    if number is not None:
        assert encoder.encode(row)[0, 0] == number
        return
    message = refusal(encoder.encode, pl.DataFrame({"a": [training[0], cell], "b": ["u", "v"]}))
    assert message.startswith("column 'a' ")
    assert repr(cell) in message
    assert "in row 2" in message


def test_columns_of_numbers_need_no_format():
    encoder = TableEncoder.learn(pl.DataFrame({"a": ["3,5", "1,25"], "b": ["true", "false"]}))
    np.testing.assert_array_equal(encoder.encode(pl.DataFrame({"a": [3.125], "b": [1]})), [[3.125, 1]])


def test_categories_that_look_like_numbers_stay_text():
    encoder = trained("a;b;y\n1,5;1;1\nx;2;2\n01;true;3\n1,5;x;1\nz;x;4\n")
    names = encoder.feature_names
    assert names == ["a=1", "a=1,5", "a=x", "a=z", "b=1", "b=2", "b=true", "b=x"]
    for cells, expected in (("1,5;1.0", ["a=1,5", "b=1"]), (" 1 ;02", ["a=1", "b=2"]), ("01;TRUE", ["a=1", "b=true"])):
        matrix = later(encoder, f"a;b\n{cells}\n")
        assert [names[k] for k in np.flatnonzero(matrix[0])] == expected


def test_categories_that_are_numbers():
    encoder = trained("a;b;y\n1,5;7;1,5\n2;8;2\n1,5;7;3\n", categorical=["a", "b"])
    assert encoder.feature_names == ["a=1.5", "a=2", "b=7", "b=8"]
    np.testing.assert_array_equal(later(encoder, "a;b\n1,5;07\n2,0;8,0\n"), [[1, 0, 1, 0], [0, 1, 0, 1]])
    with pytest.warns(UserWarning, match="categor"):
        assert later(encoder, "a;b\nnew;7\n").tolist() == [[0, 0, 1, 0]]


def test_all_rows_of_the_file_determine_the_format():
    """Also hold-out rows: 13/02 distinguishes days from months."""
    days = "\n".join(f"{day:02}/02/2024,{day}" for day in (*range(1, 13), 13))
    problem = TableProblem.read(written(f"day,y\n{days}\n"), "y", task="regression")
    assert problem.features["day"].dtype == pl.Datetime
    assert np.ptp(TableEncoder.learn(problem.features[:12]).encode(problem.features)[:, 0]) == 12
    assert problem.encode().encoder.columns[0].text_format.pattern == "%d/%m/%Y"


def test_the_command_line_stores_the_format_of_the_target():
    rows = "\n".join(f"{k % 7},{k % 10};u{k % 3};{k % 5},{k % 10}" for k in range(60))
    written("a;b;y\n" + rows + "\n")
    train = ["train", "table.csv", "--target", "y", "--width", "200", "--quiet", "--out", "m"]
    assert CliRunner().invoke(app, train).exit_code == 0
    written("a;b;y\n3,125;u1;1,250\n2,500;u2;2,750\n", "later.csv")
    summary = json.loads(CliRunner().invoke(app, ["predict", "m", "later.csv", "--out", "p.csv", "--json"]).stdout)
    predictions = pl.read_csv("p.csv")["prediction"].to_numpy()
    rmse = float(np.sqrt(np.mean((predictions - [1.25, 2.75]) ** 2)))
    assert summary["rmse"] == pytest.approx(rmse)


# Excel


CELL = '<c r="{}" t="inlineStr"><is><t>{}</t></is></c>'.format


def workbook(rows: list[list[object]]) -> bytes:
    """The smallest Excel file with one sheet."""

    def cell(place: str, value: object) -> str:
        return CELL(place, value) if isinstance(value, str) else f'<c r="{place}"><v>{value}</v></c>'

    lines = "".join(
        f'<row r="{k}">' + "".join(cell(f"{chr(65 + j)}{k}", value) for j, value in enumerate(row)) + "</row>"
        for k, row in enumerate(rows, 1)
    )
    main, office = "http://schemas.openxmlformats.org/spreadsheetml/2006/main", "http://schemas.openxmlformats.org"
    related = f"{office}/officeDocument/2006/relationships"
    types = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    rels = f'<Relationships xmlns="{office}/package/2006/relationships">'
    rels += f'<Relationship Id="r1" Type="{related}/{{}}" Target="{{}}"/></Relationships>'
    files = {
        "[Content_Types].xml": f'<Types xmlns="{office}/package/2006/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{types}.sheet.main+xml"/>'
        f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{types}.worksheet+xml"/></Types>',
        "_rels/.rels": rels.format("officeDocument", "xl/workbook.xml"),
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{related}"><sheets>'
        '<sheet name="one" sheetId="1" r:id="r1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": rels.format("worksheet", "worksheets/sheet1.xml"),
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{lines}</sheetData></worksheet>',
    }
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, f'<?xml version="1.0" encoding="UTF-8"?>{text}')
    return stream.getvalue()


def test_excel_files():
    Path("t.xlsx").write_bytes(workbook([[" size ", "town"], [1.5, "Rome"], [2, "Oslo"]]))
    assert read_table("t.xlsx").to_dict(as_series=False) == {"size": [1.5, 2.0], "town": ["Rome", "Oslo"]}


@pytest.mark.parametrize("content", [b"PK", b"x", workbook([["a"], [1]])[:-40]])
@pytest.mark.parametrize("name", ["t.xlsx", "t.xls"])
def test_damaged_excel_files(name, content):
    Path(name).write_bytes(content)
    assert refusal(read_table, name).startswith(f"{name} cannot be read as Excel")


def test_excel_files_without_the_package(monkeypatch):
    Path("t.xlsx").write_bytes(b"PK")
    monkeypatch.setattr("fireset.tables.reader.find_spec", lambda _: None)
    assert "fireset[excel]" in refusal(read_table, "t.xlsx")


# Splits of a table into files


def number_texts(decimal: str, grouped: bool, unit: str):
    other = "," if decimal == "." else "."

    def text_of(value: int, digits: int) -> str:
        whole, part = divmod(abs(value), 10**digits)
        text = f"{whole:,}".replace(",", other) if grouped else str(whole)
        text += decimal + str(part).zfill(digits) if digits else ""
        sign = "-" if value < 0 else ""
        return sign + text + unit if unit == "%" else sign + unit + text

    return st.builds(text_of, st.integers(-(10**8), 10**8), st.integers(0, 4))


@st.composite
def text_columns(draw):
    """Cells of one column in one convention, some of them missing."""
    formats = ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y"]
    kind = draw(st.sampled_from(["number", "boolean", "category", "date"]))
    if kind == "number":
        cells = number_texts(draw(st.sampled_from(".,")), draw(st.booleans()), draw(st.sampled_from(["", "$", "%"])))
    elif kind == "boolean":
        cells = st.sampled_from(draw(st.sampled_from([["true", "FALSE"], ["yes", "no"], ["0", "1"], ["T", "F"]])))
    elif kind == "category":
        cells = st.sampled_from(["1", "01", "1.0", "x", "1,5", "true", "2024-01-31", " x ", "1e3"])
    else:
        pattern = draw(st.sampled_from(formats))
        days = st.integers(0, 900)
        cells = days.map(lambda day: (date(2023, 1, 1) + timedelta(days=day)).strftime(pattern))
    return draw(st.lists(cells | st.sampled_from(["", "NA"]), min_size=4, max_size=8))


@given(
    columns=st.lists(text_columns(), min_size=1, max_size=3),
    separators=st.tuples(st.sampled_from(",;\t|"), st.sampled_from(",;\t|")),
    data=st.data(),
)
def test_files_of_any_rows_are_encoded_as_the_whole_table(columns, separators, data):
    rows = min(map(len, columns))
    table = pl.DataFrame({f"c{j}": cells[:rows] for j, cells in enumerate(columns)}).with_columns(
        z=pl.Series([str(k % 2) for k in range(rows)])
    )

    def file_of(part: pl.DataFrame, name: str, separator: str) -> str:
        part.write_csv(name, separator=separator, quote_style="always")
        return name

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        answered = table.with_columns(y=pl.Series([f"{k}.5" for k in range(rows)]))
        try:
            problem = TableProblem.read(Path(file_of(answered, "all.csv", separators[0])), "y", task="regression")
            whole = problem.X
        except InputError:
            return  # a table that cannot be learned
        encoder = TableEncoder.from_dict(json.loads(json.dumps(problem.encode().encoder.to_dict())))
        cuts = sorted(data.draw(st.sets(st.integers(1, rows - 1))))
        parts = [
            encoder.encode(read_cells(file_of(table[start:stop], "part.csv", separators[1])))
            for start, stop in zip([0, *cuts], [*cuts, rows], strict=True)
        ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


# Files


def test_svmlight_files_without_the_last_features():
    Path("a.svm").write_text("1 1:2 3:4\n2 2:5\n3 3:1\n")
    encoder = TableProblem.read(Path("a.svm"), "target", task="regression").encode().encoder
    Path("b.svm").write_text("1 1:7\n")
    with pytest.warns(UserWarning, match="'x2', 'x3'"):
        table = read_cells("b.svm", [column.name for column in encoder.columns])
    assert encoder.encode(table)[0].tolist() == [0, 7, 0, 0]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_lines_that_end_with_carriage_returns(name):
    mark = "\t" if name == "t.tsv" else ","
    Path(name).write_bytes(f"a{mark}b\r1{mark}x\r2{mark}y\r".encode())
    assert read_table(name).rows() == [(1, "x"), (2, "y")]


def test_svmlight_lines_that_end_with_carriage_returns():
    Path("t.svm").write_bytes(b"1 0:2\r2 0:3\r")
    assert read_table("t.svm").rows() == [(2.0, 1.0), (3.0, 2.0)]


@pytest.mark.parametrize("name", ["pipe", "pipe.csv"])
def test_pipes(name):
    os.mkfifo(name)
    writer = threading.Thread(target=Path(name).write_text, args=("a,b\n1,x\n2,y\n",))
    writer.start()
    assert read_table(name).rows() == [(1, "x"), (2, "y")]
    writer.join()


def test_a_pipe_of_a_format_that_needs_a_file():
    os.mkfifo("pipe.parquet")
    assert "pipe" in refusal(read_table, "pipe.parquet")


@pytest.mark.parametrize("text", ["a,b\n1,x\n2\n3,z\n", "a,b\n1,x\n2\n\n3,z\n"])
def test_short_lines_are_refused_with_their_number(text):
    assert "line 3 has 1 field " in refusal(read_table, written(text))


@pytest.mark.parametrize("text", ["a,b\n1,x\n\n3,\n", 'a,b\n"1\n\n",x\n  \n3,NA\n', "a,b\r\n1,x\r\n\r\n3,\r\n\r\n"])
def test_blank_lines_are_skipped_with_a_warning(text):
    Path("t.csv").write_bytes(text.encode())
    with pytest.warns(UserWarning, match=r"line (3|5)$"):
        assert read_table("t.csv").rows() == [(1, "x"), (3, None)]


def test_blank_lines_of_a_table_of_one_column_are_missing_cells():
    assert read_table(written("a\n1\n\n3\n")).rows() == [(1,), (None,), (3,)]


@pytest.mark.parametrize(
    ("encoding", "assumed"),
    [
        ("utf-8", None),
        ("utf-8-sig", None),
        ("utf-16", None),
        ("utf-32", None),
        ("utf-16-le", "UTF-16"),
        ("utf-16-be", "UTF-16"),
        ("latin-1", "Windows-1252"),
        ("cp1252", "Windows-1252"),
    ],
)
def test_encodings(encoding, assumed):
    price = "€" if encoding == "cp1252" else "£"
    Path("t.csv").write_bytes(f"größe,preis\n1,{price}5\n2,{price}6.5\n".encode(encoding))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        frame = read_table("t.csv")
    assert frame.to_dict(as_series=False) == {"größe": [1, 2], "preis": [5.0, 6.5]}
    assert len(caught) == (assumed is not None)
    assert assumed is None or assumed in str(caught[0].message)


def test_damaged_utf8_is_refused():
    Path("t.csv").write_bytes("a,b\n1,größe\n2,".encode() + b"\xe9\n")
    assert "line 3" in refusal(read_table, "t.csv")


@pytest.mark.parametrize("text", ["a b\n1  x\n2 y\n", "a\tb\n1\tx\n2\ty\n", "a;b\n1;x\n2;y\n", "a,b\n1,x\n2,y\n"])
def test_separators_of_txt_files(text):
    assert read_table(written(text, "t.txt")).rows() == [(1, "x"), (2, "y")]
