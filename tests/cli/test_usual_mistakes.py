"""What people get wrong, each answered by one line that says what to do."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.exceptions import NotFittedError

import fireset
from fireset import InputError, ShiftedReLUClassifier, ShiftedReLURegressor

SMALL = ("--width", "60", "--max-iter", "3", "-q")


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    table = pl.DataFrame(X, schema=["rooms", "size", "age"]).with_columns(price=pl.Series(np.exp(X[:, 0])))
    table.write_csv("houses.csv")
    table.with_columns(sold=pl.Series(np.where(X[:, 1] > 0, "yes", "no"))).write_csv("sales.csv")


def wrong(name: str, text: str, encoding: str = "utf-8") -> str:
    Path(name).write_text(text, encoding=encoding)
    return name


TRAIN = ("train", "houses.csv", "--target", "price", *SMALL)

# The command line: what was typed, and what the answer has in it. A callable makes the file first.
TYPED: dict[str, tuple[Any, str]] = {
    "a column with another spelling": (
        ("train", "houses.csv", "--target", "Price"),
        "--target 'Price' is not a column of the table; did you mean 'price'?",
    ),
    "a file that is not there": (("train", "house.csv", "--target", "price"), "no such file: house.csv"),
    "no target": (("train", "houses.csv"), "Missing option '--target'"),
    "an option that is none": ((*TRAIN, "--widht", "10"), "No such option: --widht"),
    "a command that is none": (("fit", "houses.csv"), "No such command 'fit'"),
    "a spreadsheet": (
        lambda: ("train", wrong("houses.xlsx", "PK"), "--target", "price"),
        "houses.xlsx cannot be read as Excel",
    ),
    "an empty file": (
        lambda: ("train", wrong("empty.csv", ""), "--target", "price"),
        "empty.csv is empty; give a table with at least one row",
    ),
    "a table without names": (
        lambda: ("train", wrong("bare.csv", "1,2\n3,4\n"), "--target", "price"),
        "the first line holds numbers, not column names; add a header line",
    ),
    "the index that pandas writes": (
        lambda: ("train", wrong("index.csv", ",a,y\n0,1,2\n1,2,3\n"), "--target", "y"),
        "column 1 has no name in the header; name it, or save without the row index (pandas: index=False)",
    ),
    "damaged UTF-8": (
        lambda: ("train", wrong("latin.csv", "a,ort\n1,KÃ¶ln\n2,Köln\n", "latin-1"), "--target", "ort"),
        "line 3 is not UTF-8 text; save the table as a UTF-8 text file",
    ),
    "rows of unequal length": (
        lambda: ("train", wrong("ragged.csv", "a,y\n1,2\n1,2,3\n"), "--target", "y"),
        "line 3 has 3 fields separated by commas but the header has 2; make them equal",
    ),
    "a word among numbers": (
        lambda: ("train", wrong("typo.csv", "a,y\n1,2\n2,3\n3x,4\n4,5\n5,6\n"), "--target", "y", "--no-impute"),
        "column 'a' holds the text '3x' in row 3 among numbers; fix that cell",
    ),
    "a target with gaps": (
        lambda: ("train", wrong("gaps.csv", "a,y\n1,2.5\n2,\n3,4.5\n"), "--target", "y"),
        "target column 'y' has 1 missing value, first in row 2; remove those rows, or pass --drop-missing-target",
    ),
    "one class": (
        lambda: ("train", wrong("one.csv", "a,y\n1,yes\n2,yes\n3,yes\n"), "--target", "y"),
        "holds the single class 'yes' in all rows; give rows of at least two classes",
    ),
    "an engine that is none": ((*TRAIN, "--engine", "cuda"), "engine must be one of"),
    "a loss that is none": ((*TRAIN, "--loss", "mse"), "`loss` must be one of squared_error"),
    "a loss for classes": (
        (*TRAIN, "--loss", "log_loss"),
        "for regression, got 'log_loss', which is for classification",
    ),
    "a share above 1": ((*TRAIN, "--holdout", "20"), "holdout must be at least 0 and below 1, got 20"),
    "the table as output": ((*TRAIN, "--out", "houses.csv"), "--out houses.csv would overwrite the input houses.csv"),
    "a folder that is not there": ((*TRAIN, "--out", "models/m.safetensors"), "models"),
    "memory without a unit that is one": ((*TRAIN, "--memory", "2 gigs"), "memory must be a size such as"),
    "a time that is none": ((*TRAIN, "--time", "soon"), "time must be a time such as 90s, 5m or 2h, got 'soon'"),
    "the table where the model goes": (
        ("predict", "houses.csv", "houses.csv"),
        "houses.csv is not a fireset model, or is damaged",
    ),
    "another table for the model": (
        lambda: ("predict", "model.safetensors", wrong("other.csv", "rooms,garden\n1,2\n")),
        "the table lacks 2 of the model's columns: 'size', 'age'",
    ),
    "probabilities of a number": (
        ("predict", "model.safetensors", "houses.csv", "--proba"),
        "model.safetensors is a regression model, which gives no probabilities; leave --proba out",
    ),
    "no explanation without a target": (("engines", "--explain", "houses.csv"), "--explain needs --target COLUMN"),
}


@pytest.mark.parametrize("mistake", TYPED)
def test_typed(run, mistake):
    given, expected = TYPED[mistake]
    arguments: Any = given() if callable(given) else given
    if "model.safetensors" in arguments:
        assert run(*TRAIN, "--out", "model.safetensors")[0] == 0
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert expected in err
    assert "Traceback" not in err
    said = [line for line in err.splitlines() if line.strip() and not line.startswith(("Usage", "Try"))]
    assert len(said) == 1, said


X = np.random.default_rng(0).standard_normal((40, 3))

# Python: what was called, and what the answer says.
CALLED = {
    "one row": (lambda: ShiftedReLURegressor(width=50).fit(X[0], [1.0]), ValueError, "Reshape your data"),
    "unequal lengths": (lambda: ShiftedReLURegressor(width=50).fit(X, [1.0]), ValueError, "inconsistent numbers"),
    "numbers as classes": (
        lambda: ShiftedReLUClassifier(width=50).fit(X, X[:, 0]),
        ValueError,
        "Unknown label type: continuous",
    ),
    "predict before fit": (lambda: ShiftedReLURegressor().predict(X), NotFittedError, "not fitted yet"),
    "another number of columns": (
        lambda: ShiftedReLURegressor(width=50).fit(X, X[:, 0]).predict(X[:, :2]),
        ValueError,
        "X has 2 features, but ShiftedReLURegressor is expecting 3 features",
    ),
    "a width of text": (lambda: ShiftedReLURegressor(width="wide").fit(X, X[:, 0]), InputError, "width must be"),
    "a ridge below 0": (lambda: ShiftedReLURegressor(width=50, ridge=-1).fit(X, X[:, 0]), InputError, "ridge must be"),
    "rows that are not on the sphere": (
        lambda: fireset.train(fireset.ShiftedReLUNetwork.initialize(50, 3), X, X[:, 0]),
        InputError,
        "rows of X must have norm 1, row 0 has",
    ),
    "a model that is none": (
        lambda: fireset.load("houses.csv"),
        InputError,
        "houses.csv is not a fireset model, or is damaged",
    ),
    "a pickle as a model": (
        lambda: (Path("m.pkl").write_bytes(pickle.dumps({})), fireset.load("m.pkl")),
        InputError,
        "give a file that fireset train or fireset.save wrote",
    ),
}


@pytest.mark.parametrize("mistake", CALLED)
def test_called(mistake):
    call, kind, expected = CALLED[mistake]
    with pytest.raises(kind) as caught:
        call()
    assert expected in str(caught.value)
