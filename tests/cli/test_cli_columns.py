"""Columns named on the command line: several at once, kept beside predictions, and numbers as people write them."""

import json

import numpy as np
import polars as pl
import pytest


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def refused(run):
    def command(*arguments) -> str:
        code, out, err = run(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        return err

    return command


def write_table(name="table.csv", **columns) -> str:
    X = np.random.default_rng(0).standard_normal((40, 3))
    y = np.where(X[:, 0] > 0, "up", "down")
    frame = pl.DataFrame(X, schema=["a", "b", "c"]).with_columns(**columns).with_columns(pl.Series("y", y))
    frame.write_csv(name)
    return name


SMALL = ("--target", "y", "--width", "60", "--quiet")


class TestSeveralColumnsInOneOption:
    def used(self, works, *options) -> list[str]:
        works("train", "table.csv", *SMALL, *options)
        return json.loads(works("info", "table.safetensors", "--json"))["columns"]

    def test_drop(self, works):
        write_table()
        assert self.used(works, "--drop", "a,b") == ["c"]
        assert self.used(works, "--drop", "a, b") == ["c"]
        assert self.used(works, "--drop", "a", "--drop", "b") == ["c"]
        assert self.used(works, "--drop", "a,b", "--drop", "b") == ["c"]

    def test_a_name_with_a_comma_is_one_column(self, works):
        write_table(**{"a,b": pl.col("a") + pl.col("b"), "d": pl.col("c") ** 2})
        assert self.used(works, "--drop", "a,b") == ["a", "b", "c", "d"]
        assert self.used(works, "--drop", "a,b", "--drop", "a") == ["b", "c", "d"]
        assert self.used(works, "--drop", "c, d") == ["a", "b", "a,b"]

    def test_categorical(self, works):
        write_table(zone=pl.Series([1, 2] * 20), floor=pl.Series([1, 2, 3, 4] * 10))
        works("train", "table.csv", *SMALL, "--categorical", "zone,floor")
        assert json.loads(works("info", "table.safetensors", "--json"))["inputs"] == 3 + 2 + 4 + 1

    @pytest.mark.parametrize("command", ["train", "compare", "theory", "quantum"])
    def test_a_part_that_is_no_column(self, refused, command):
        write_table()
        said = refused(command, "table.csv", "--target", "y", "--width", "64", "--drop", "a,bb", "--quiet")
        assert "--drop" in said
        assert "'bb'" in said


class TestKeep:
    @pytest.fixture
    def model(self, works):
        write_table()
        works("train", "table.csv", *SMALL, "--out", "model")
        return "model"

    @pytest.mark.parametrize(
        ("kept", "options"),
        [("prediction", []), ("p(up)", ["--proba"]), ("p(down)", ["--proba"])],
    )
    def test_an_outputs_name_is_refused(self, refused, works, model, kept, options):
        write_table("new.csv", **{kept: pl.Series(range(40))})
        said = refused("predict", model, "new.csv", "--keep", kept, *options)
        assert f"--keep {kept}" in said.replace("'", "")
        if options:  # without --proba the name is free
            lines = works("predict", model, "new.csv", "--keep", kept).splitlines()
            assert lines[0] == f"{kept},prediction"
            assert lines[3].startswith("2,")

    def test_a_quantiles_name_is_refused(self, refused, works):
        write_table(q=pl.Series(range(40)))
        works("train", "table.csv", "--target", "b", "--width", "60", "--loss", "quantile", "--quiet", "--out", "q")
        write_table("new.csv", **{"q": pl.Series(range(40)), "q0.5": pl.Series(range(40))})
        assert "q0.5" in refused("predict", "q", "new.csv", "--keep", "q0.5")

    def test_twice(self, refused, model):
        assert "--keep" in refused("predict", model, "table.csv", "--keep", "a", "--keep", "a")
        assert "--keep" in refused("predict", model, "table.csv", "--keep", "a,b", "--keep", "b")

    def test_several(self, works, model):
        assert works("predict", model, "table.csv", "--keep", "c,a").splitlines()[0] == "c,a,prediction"

    def test_json_keeps_them_apart(self, works, model):
        """A column may be called rows, accuracy or prediction."""
        write_table("new.csv", rows=pl.Series(range(40)), accuracy=pl.Series(["x"] * 40))
        found = json.loads(works("predict", model, "new.csv", "--keep", "rows,accuracy", "--json"))
        assert (found["rows"], len(found["prediction"])) == (40, 40)
        assert 0 <= found["accuracy"] <= 1
        assert found["kept"] == {"rows": [str(k) for k in range(40)], "accuracy": ["x"] * 40}  # as the file spells them

    def test_names_that_become_one_when_quoted(self, refused, model):
        write_table("new.csv", **{"=a": pl.Series(range(40)), "'=a": pl.Series(range(40))})
        refused("predict", model, "new.csv", "--keep", "=a", "--keep", "'=a", "--safe-csv")


@pytest.mark.parametrize(("text", "width"), [("1e2", 100), ("1_00", 100), ("1,000", 1000), ("1.2e2", 120)])
def test_width_as_people_write_it(works, text, width):
    write_table()
    assert json.loads(works("train", "table.csv", "--target", "y", "--width", text, "--json", "-q"))["width"] == width
    shown = works("theory", "table.csv", "--target", "y", "--width", text, "--json", "-q")
    assert json.loads(shown)["width"] == width


@pytest.mark.parametrize("text", ["1e-3", "1.5", "1e400", "nan", "inf", "", "1e2x", "0x10"])
@pytest.mark.parametrize("command", ["train", "theory", "compare", "quantum"])
def test_width_that_is_no_whole_number(refused, command, text):
    write_table()
    assert "width" in refused(command, "table.csv", "--target", "y", "--quiet", "--width", text)
