"""The command line: every refusal by its exact words, every kind of file there and back, Ctrl-C, start-up time."""

import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file, save_file

from fireset import ShiftedReLUClassifier, ShiftedReLUNetwork, ShiftedReLURegressor, __version__
from fireset.__main__ import main
from fireset._util.errors import BROKEN_PIPE, NOT_WRITTEN
from fireset._util.text import percent
from fireset.cli.output import readable
from fireset.commands.scores import scores
from fireset.engines import describe
from fireset.model import Model
from fireset.tables.reader import read_table
from fireset.training.losses import LOSSES
from support.checks import mentions
from support.command_tables import contents, labels, numbers, table, write_table, written

ENGINES = ", ".join(str(engine["name"]) for engine in describe())
SMALL = ("--width", "60", "--max-iter", "5")


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class TestRefusedTables:
    @pytest.mark.parametrize(
        ("text", "parts"),
        [
            ("", ["table.csv"]),
            ("a,y\n", ["table.csv"]),
            ("a,y\n1,u\ninf,v\n", ["'a'", "inf", "2"]),
            (
                "a,y\n1,u\n2,\n",
                ["'y'", "1", "2", "--drop-missing-target"],
            ),
            (
                "a,y\n1,u\n2,u\n",
                ["'y'", "'u'"],
            ),
            ("a,y\n1,2.5\n", ["table", "2", "1"]),
            ("a,y\n1,u\n", ["table", "2", "1"]),
            ("y\n1\n2\n", ["'y'"]),
            ("a,Y\n1,u\n2,v\n", ["--target", "'y'", "'a'", "'Y'"]),
        ],
    )
    def test_contents(self, refused, text, parts):
        assert mentions(refused("train", written(text), "--target", "y", *SMALL), *parts)

    def test_missing_cells_where_that_is_asked_for(self, refused):
        text = "a,b,y\n1,,u\nNaN,2,v\n,3,u\n"
        assert mentions(
            refused("train", written(text), "--target", "y", *SMALL, "--no-impute"),
            "'a'",
            "2",
            "2",
            "'b'",
            "1",
            "--impute",
            "'impute'",
        )

    def test_files(self, refused):
        Path("folder.csv").mkdir()
        assert mentions(refused("train", "nowhere.csv", "--target", "y"), "nowhere.csv")
        assert mentions(refused("theory", "folder.csv", "--target", "y"), "folder.csv")
        assert mentions(refused("train", "folder.csv", "--target", "y"), "folder.csv")
        assert mentions(refused("train", written("x", "table.doc"), "--target", "y"), "table.doc", "'.doc'")

    def test_names_that_are_too_long(self, refused):
        write_table(table())
        long = "n" * 300
        assert mentions(refused("train", f"{long}.csv", "--target", "y"), long)
        for command in (("train", "table.csv", "--target", "y"), ("predict", "nowhere", "table.csv")):
            assert mentions(refused(*command, "--out", long), long)
        assert "(File name too long)" in refused("info", long)

    def test_one_line_even_if_the_name_has_two(self, refused):
        assert refused("info", "two\nlines") == r"no such model file: two\nlines"

    def test_a_row_of_zeros_is_fine(self, works):
        frame = table()
        frame[0, "a"] = frame[0, "b"] = frame[0, "c"] = 0.0
        works("train", write_table(frame), "--target", "y", *SMALL)
        assert works("predict", "table.safetensors", "table.csv").count("\n") == 41


class TestRefusedSettings:
    @pytest.mark.parametrize(
        ("options", "parts"),
        [
            ("--target yy", ["--target", "'yy'", "'y'"]),
            ("--engine fast", ["engine", ENGINES, "'fast'"]),
            ("--width 1", ["width", "2", "1"]),
            ("--learning-rate -0.5", ["learning_rate", "'auto'", "'theory'", "-0.5"]),
            ("--learning-rate fast", ["learning_rate", "'fast'"]),
            ("--threshold high", ["threshold", "'high'"]),
            ("--task guess", ["task", "'guess'"]),
            (
                "--task regression --target a --loss log_loss",
                ["`loss`", "squared_error", "absolute_error", "'log_loss'"],
            ),
            (
                "--task regression",
                ["'y'", "'right'", "1"],
            ),
            ("--loss hinge", ["`loss`", ", ".join(LOSSES), "'hinge'"]),
            ("--quantiles 0.1", ["--quantiles", "--loss", "--loss", "squared_error"]),
            (
                "--loss quantile --quantiles low",
                ["--quantiles", "0.1,0.5,0.9", "'low'"],
            ),
            ("--huber-delta 1", ["--huber-delta", "--loss", "--loss", "squared_error"]),
            (
                "--task classification --loss poisson",
                ["`loss`", "squared_error", "log_loss", "'poisson'"],
            ),
            ("--holdout 1.5", ["holdout", "0", "1", "1.5"]),
            ("--holdout nan", ["holdout", "0", "1", "nan"]),
            ("--holdout 0.99", ["--holdout", "0.99", "40"]),
            ("--width many", ["width", "'many'"]),
            ("--max-iter 0", ["max_iter", "1", "0"]),
            ("--tol -1", ["tol", "0", "-1.0"]),
            ("--momentum 1", ["momentum", "0", "1", "1.0"]),
            ("--bias 0", ["bias", "'auto'", "0.0"]),
            ("--dtype float16", ["dtype", "'float32'", "'float64'", "'float16'"]),
            ("--dtype 1_000", ["dtype", "'float32'", "'float64'", "'1_000'"]),
            ("--dtype nan", ["dtype", "'float32'", "'float64'", "'nan'"]),
            ("--seed -1", ["seed", "0", "2", "32", "-1"]),
            ("--drop y", ["--drop"]),
            ("--drop aa", ["--drop", "'aa'", "'a'"]),
            ("--categorical z", ["'z'", "'a'", "'b'", "'c'"]),
            (
                "--out missing/m.safetensors",
                ["missing/m.safetensors"],
            ),
            ("--out folder", ["folder"]),
            ("--out pipe", ["pipe"]),
            ("--out circle", ["circle"]),
            ("--out table.csv", ["--out", "table.csv", "table.csv"]),
        ],
    )
    def test_train(self, refused, options, parts):
        write_table(table())
        Path("folder").mkdir()
        os.mkfifo("pipe")
        Path("circle").symlink_to("circle")
        said = refused("train", "table.csv", "--target", "y", *SMALL, "--quiet", *options.split())
        assert mentions(said, *parts)

    def test_a_link_that_hides_the_table(self, refused):
        write_table(table())
        Path("link").symlink_to("table.csv")
        assert mentions(refused("train", "table.csv", "--target", "y", "--out", "link"), "--out", "table.csv")

    @pytest.mark.parametrize(
        ("options", "parts"),
        [
            ("--seed -1", ["seed", "0", "2", "32", "-1"]),
            ("--width 1", ["width", "2", "1"]),
            ("--out no/d", ["no/d"]),
        ],
    )
    @pytest.mark.usefixtures("few_digits")
    def test_demo(self, refused, options, parts):
        assert mentions(refused("demo", "--quiet", *options.split()), *parts)

    def test_more_than_memory(self, refused, monkeypatch):
        def fail(*_, **__):
            raise MemoryError("Unable to allocate 9 TiB")

        monkeypatch.setattr("fireset.commands.train.train_table", fail)
        said = refused("train", write_table(table()), "--target", "y", "--quiet")
        assert mentions(said, "9", "--width")

    @pytest.mark.parametrize(
        ("command", "message"),
        [
            ("train table.csv", "Missing option '--target'."),
            ("train --target y", "Missing argument "),
            ("train table.csv --target y --wide 3", "No such option: --wide"),
            ("teach", "No such command 'teach'."),
        ],
    )
    def test_usage(self, run, command, message):
        code, out, err = run(*command.split())
        assert (code, out) == (2, "")
        assert message in err
        assert "Traceback" not in err
        assert contents() == {}


@pytest.fixture
def model(works) -> str:
    write_table(table())
    works("train", "table.csv", "--target", "y", *SMALL, "--out", "model")
    return "model"


class TestRefusedPredictions:
    def test_columns_of_csv(self, refused, model):
        write_table(table().drop("b", "c"), "less.csv")
        assert mentions(refused("predict", model, "less.csv"), "2", "'b'", "'c'", "3", "2")

    def test_columns_of_npz(self, refused, run, works):
        X = numbers()
        np.savez("table.npz", X=X, y=labels(X))
        works("train", "table.npz", "--target", "y", *SMALL)
        np.savez("less.npz", X=X[:, :2])
        assert mentions(refused("predict", "table.safetensors", "less.npz"), "1", "'x2'", "3", "2")
        np.savez("more.npz", X=np.hstack([X, X]))
        code, _, err = run("predict", "table.safetensors", "more.npz")
        assert code == 0
        assert mentions(err, "'x3'", "'x4'", "'x5'")

    @pytest.mark.parametrize(
        ("cells", "parts"),
        [
            ("1,2,-inf", ["'c'", "-inf", "1"]),
            (
                "1,2,x",
                ["'c'", "'x'", "1"],
            ),
        ],
    )
    def test_cells(self, refused, model, cells, parts):
        assert mentions(refused("predict", model, written(f"a,b,c\n{cells}\n", "new.csv")), *parts)

    def test_places(self, refused, model):
        assert mentions(refused("predict", model, "nowhere.csv"), "nowhere.csv")
        assert refused("predict", "nowhere", "table.csv") == "no such model file: nowhere"
        assert mentions(refused("predict", model, "table.csv", "--out", "no/p.csv"), "no/p.csv")
        for file in (model, "table.csv"):
            assert mentions(refused("predict", model, "table.csv", "--out", file), "--out", file, file)

    def test_probabilities(self, works, model):
        lines = works("predict", model, "table.csv", "--proba").splitlines()
        assert lines[0] == "prediction,p(left),p(right),p(up)"
        assert sum(map(float, lines[1].split(",")[1:])) == pytest.approx(1)

    def test_probabilities_of_a_regression(self, refused, works):
        works("train", write_table(table()), "--target", "a", "--out", "numbers", *SMALL)
        assert mentions(refused("predict", "numbers", "table.csv", "--proba"), "--proba")

    def test_damaged_and_foreign_models(self, refused, model):
        whole = Path(model).read_bytes()
        for name, content in {
            "truncated": whole[:-7],
            "half a header": whole[:50],
            "empty": b"",
            "text": b"the quick brown fox jumps over the lazy dog\n",
            "binary": bytes(range(256)) * 20,
        }.items():
            Path(name).write_bytes(content)
            for command in (("info", name), ("predict", name, "table.csv")):
                assert mentions(refused(*command), name)

    def test_other_safetensors_files(self, refused, model):
        arrays = load_file(model)
        save_file(arrays, "foreign")
        save_file(arrays, "newer", {"fireset": json.dumps({"version": 2, "threshold": 1.0})})
        save_file(arrays, "broken", {"fireset": "{"})
        ShiftedReLUNetwork.initialize(10, 4).save("bare")
        for command in (("info",), ("predict", "table.csv")):
            for parts in (("foreign", "header"), ("newer", "2", "1"), ("broken", "damaged")):
                assert mentions(refused(command[0], parts[0], *command[1:]), *parts)
        assert mentions(refused("predict", "bare", "table.csv"), "bare", "fireset.ShiftedReLUNetwork.load")

    def test_what_is_no_file(self, refused):
        write_table(table())
        os.mkfifo("pipe")  # opening it would wait for a writer
        Path("folder").mkdir()
        for name in ("pipe", "folder"):
            assert mentions(refused("predict", name, "table.csv"), name)


def save_as(frame: pl.DataFrame, kind: str) -> str:
    """The table in one of the file formats; names and target are those that the format gives."""
    X, y = frame.select("a", "b", "c").to_numpy(), frame["y"].to_numpy()
    name = f"table.{kind}"
    if kind == "parquet":
        frame.write_parquet(name)
    elif kind == "npz":
        np.savez(name, X=X, y=y.astype(str) if y.dtype == object else y)
    elif kind == "svm":
        from sklearn.datasets import dump_svmlight_file

        dump_svmlight_file(X, y, name)
    else:
        write_table(frame, name)
    return name


TARGETS = {
    "text": lambda X: labels(X),
    "integers": lambda X: (X[:, 0] > 0).astype(int) + 3,
    "booleans": lambda X: X[:, 0] > 0,
    "halves": lambda X: np.where(X[:, 0] > 0, 0.5, 1.5),
    "numbers": lambda X: X @ [1.0, -2.0, 0.5] + 10,
}
# svmlight files hold numbers only.
FILES_AND_TARGETS = [(kind, target) for kind in ("csv", "tsv", "parquet", "npz") for target in TARGETS]
FILES_AND_TARGETS += [("svm", target) for target in ("integers", "halves", "numbers")]


class TestThereAndBack:
    @pytest.mark.sweep(every=12)
    @pytest.mark.parametrize(("kind", "target"), FILES_AND_TARGETS)
    def test_every_file_and_target(self, works, kind, target):
        X = numbers()
        answers = TARGETS[target](X)
        file = save_as(pl.DataFrame(X, schema=["a", "b", "c"]).with_columns(y=pl.Series(answers)), kind)
        column = "target" if kind == "svm" else "y"
        more = ("--task", "classification") if target == "halves" else ()
        options = ("--target", column, "--holdout", "0", *SMALL, *more)
        shown = json.loads(works("train", file, *options, "--json"))
        assert shown["task"] == ("regression" if target == "numbers" else "classification")
        assert shown["model"] == "table.safetensors"
        assert (shown["rows"], shown["columns"], shown["width"]) == (40, 3, 60)

        said = json.loads(works("predict", "table.safetensors", file, "--json"))
        predicted = said["prediction"]
        settings = {"width": 60, "max_iter": 5, "random_state": 0}
        X = read_table(file).drop(column).to_numpy()  # text formats round
        if target == "numbers":
            ours = ShiftedReLURegressor(**settings).fit(X, read_table(file)[column].to_numpy())
            assert predicted == ours.predict(X).tolist()
            assert said["r2"] == pytest.approx(ours.score(X, answers), abs=1e-6)
        else:
            classes, codes = np.unique(answers, return_inverse=True)
            ours = ShiftedReLUClassifier(**settings).fit(X, codes)
            assert predicted == classes[ours.predict(X)].tolist()
            assert said["accuracy"] == ours.score(X, codes)
            assert {type(p) for p in predicted} == {type(c) for c in classes.tolist()}
        facts = json.loads(works("info", "table.safetensors", "--json"))
        assert facts["task"] == shown["task"]
        assert facts["target"] == column
        assert facts["bytes"] == Path("table.safetensors").stat().st_size

    def test_csv_of_predictions_equals_the_python_objects(self, works, model, run):
        loaded = Model.load(model)
        expected = loaded.estimator.predict(read_table("table.csv")).tolist()
        code, out, err = run("predict", model, "table.csv")
        accuracy = np.mean(np.array(expected) == table()["y"].to_numpy())
        assert code == 0
        assert out.split() == ["prediction", *expected]
        assert err.startswith(f"accuracy {percent(accuracy)}, ")
        assert err.count("\n") == 1
        code, out, err = run("predict", model, "table.csv", "--out", "p.csv")
        assert (code, out) == (0, "")
        assert mentions(err, "40", "p.csv")
        assert pl.read_csv("p.csv")["prediction"].to_list() == expected
        told = json.loads(works("predict", model, "table.csv", "--out", "p.csv", "--json"))
        assert (told["rows"], told["accuracy"], told["out"]) == (40, accuracy, "p.csv")

    def test_same_seed_same_bytes(self, works):
        write_table(table())
        predictions, networks = [], []
        for seed in (1, 1, 2):
            works("train", "table.csv", "--target", "y", *SMALL, "--loss", "log_loss", "--seed", seed)
            predictions.append(works("predict", "table.safetensors", "table.csv", "--proba"))
            networks.append(load_file("table.safetensors")["weights"].tobytes())
        assert predictions[0] == predictions[1] != predictions[2]
        assert networks[0] == networks[1] != networks[2]

    def test_probabilities(self, works):
        write_table(table())
        works("train", "table.csv", "--target", "y", *SMALL, "--loss", "log_loss")
        works("predict", "table.safetensors", "table.csv", "--proba", "--out", "p.csv")
        frame = pl.read_csv("p.csv")
        assert frame.columns == ["prediction", "p(left)", "p(right)", "p(up)"]
        p = frame.drop("prediction").to_numpy()
        np.testing.assert_allclose(p.sum(axis=1), 1)
        assert np.array(["left", "right", "up"])[p.argmax(axis=1)].tolist() == frame["prediction"].to_list()

    def test_categories_drop_and_impute(self, works, run):
        X = numbers()
        city = pl.Series("city", np.where(X[:, 0] > 0, "Bern", "Rome"))
        zone = pl.Series("zone", np.where(X[:, 1] > 0, 7, 9))
        frame = table().with_columns(city, zone, pl.Series("id", range(40)))
        frame = frame.with_columns(a=pl.when(pl.col("id") % 9 == 0).then(None).otherwise("a"))
        write_table(frame)
        works(
            *("train", "table.csv", "--target", "y", *SMALL),
            *("--drop", "id", "--drop", "b", "--categorical", "zone", "--impute"),
        )
        facts = json.loads(works("info", "table.safetensors", "--json"))
        assert facts["columns"] == ["a", "c", "city", "zone"]
        assert facts["inputs"] == 8  # a and where it is missing, c, two for each category, and the constant
        code, out, err = run("predict", "table.safetensors", "table.csv")  # dropped columns are no surprise
        assert code == 0
        assert out.count("\n") == 41
        assert err.startswith("accuracy ")
        code, _, err = run("predict", "table.safetensors", written("a,c,city,zone\n,1,Paris,7\n", "new.csv"))
        assert code == 0
        assert mentions(err, "'city'", "1", "'Paris'")

    def test_all_options_of_training(self, works):
        write_table(table())
        shown = works(
            *("train", "table.csv", "--target", "y", "--width", "50", "--max-iter", "4", "--engine", "dense"),
            *("--dtype", "float64", "--learning-rate", "0.1", "--momentum", "0", "--threshold", "0.5"),
            *("--bias", "2", "--holdout", "0.3", "--tol", "0", "--early-stopping", "--json"),
        )
        facts = json.loads(shown)
        assert (facts["engine"], facts["learning_rate"], facts["threshold"]) == ("dense", 0.1, 0.5)
        assert (facts["rows"], facts["held_out_rows"], facts["iterations"]) == (28, 12, 4)
        assert json.loads(works("info", "table.safetensors", "--json"))["dtype"] == "float64"

    @pytest.mark.parametrize(("file", "out"), [("my.digits.csv", "my.digits"), ("x.csv.gz", "x"), ("deep/y.csv", "y")])
    def test_default_name_of_the_model(self, works, file, out):
        import gzip

        Path("deep").mkdir()
        text = table().write_csv().encode()
        Path(file).write_bytes(gzip.compress(text) if file.endswith("gz") else text)
        works("train", file, "--target", "y", *SMALL)
        assert Path(f"{out}.safetensors").is_file()


class TestScores:
    """The target in the table to predict for is a bonus: it must never stand in the way of predictions."""

    @pytest.mark.parametrize(
        ("column", "note"),
        [
            ([None] * 40, "target column 'y' has 40 missing values, first in row 1; remove those rows for a score"),
            (["?"] * 40, "target column 'y' holds none of the model's classes, 'left', 'right', 'up'"),
        ],
    )
    def test_answers_that_cannot_be_compared(self, run, model, column, note):
        write_table(table().with_columns(pl.Series("y", column, dtype=pl.String)), "new.csv")
        code, out, err = run("predict", model, "new.csv")
        assert (code, out.count("\n")) == (0, 41)
        assert mentions(err, note)

    def test_regression_answers_that_are_text(self, run, works):
        write_table(table().drop("y"))
        works("train", "table.csv", "--target", "c", *SMALL)
        code, out, err = run("predict", "table.safetensors", written("a,b,c\n1,2,?\n", "new.csv"))
        assert (code, out.count("\n")) == (0, 2)
        assert mentions(err, "'c'", "1", "1")

    def test_labels_read_as_another_type(self, works):
        """Labels 1, true and x are text; a table with only the first two must still be compared by meaning."""
        X = numbers(60)
        names = np.array(["1", "true", "x"])[np.digitize(X[:, 0], [-0.5, 0.5])]
        frame = pl.DataFrame(X, schema=["a", "b", "c"]).with_columns(pl.Series("y", names))
        works("train", write_table(frame), "--target", "y", "--width", "200", "--max-iter", "60", "--holdout", "0")
        for label in names:
            write_table(frame.filter(pl.col("y") == label), "part.csv")
            said = json.loads(works("predict", "table.safetensors", "part.csv", "--json"))
            assert said["accuracy"] == np.mean([p == label for p in said["prediction"]]) > 0.5

    def test_a_class_that_training_did_not_have_counts_as_wrong(self, works, model):
        frame = table()
        predicted = json.loads(works("predict", model, "table.csv", "--json"))["prediction"]
        frame = frame.with_columns(y=pl.Series(["new", *predicted[1:]]))
        assert json.loads(works("predict", model, write_table(frame, "new.csv"), "--json"))["accuracy"] == 39 / 40


class TestOutput:
    def test_json_is_alone_on_standard_output(self, run):
        write_table(table())
        code, out, err = run("train", "table.csv", "--target", "y", *SMALL, "--json")
        assert code == 0
        assert out.count("\n") == 1
        assert json.loads(out)["stop_reason"] in ("max_iter", "tol")
        assert err.startswith("columns: 3 numbers\nchosen: ")
        assert "\ntraining: round 0  loss " in err

    def test_quiet(self, run):
        code, _, err = run("train", write_table(table()), "--target", "y", *SMALL, "-q", "--tol", "0")
        assert (code, err) == (0, "")

    def test_text_for_people(self, works, model):
        shown = dict(line.split("  ", 1) for line in works("train", "table.csv", "--target", "y", *SMALL).splitlines())
        assert next(iter(shown)) == "accuracy"
        assert "8 rows held out" in shown["accuracy"]
        assert re.search(r"s in all(, [\d.]+ GB of memory)?$", shown["trained"])
        facts = works("info", model)
        assert re.search(r"^columns +a, b, c$", facts, re.MULTILINE)
        assert re.search(r"^classes +left, right, up$", facts, re.MULTILINE)
        assert " kB\n" in facts

    def test_many_classes_are_cut_short(self, works):
        rows = "".join(f"{i},class{i % 20:02}\n" for i in range(200))
        works("train", written("a,y\n" + rows), "--target", "y", *SMALL)
        assert "class11, … (20 in all)\n" in works("info", "table.safetensors")

    def test_bare_network(self, works):
        ShiftedReLUNetwork.initialize(10, 4).save("bare")
        assert json.loads(works("info", "bare", "--json"))["width"] == 10

    @pytest.mark.slow
    def test_warmup(self, works):
        assert json.loads(works("warmup", "--json"))["compile_seconds"] >= 0

    def test_engines_explained_for_a_table(self, works, refused):
        rng = np.random.default_rng(0)
        pl.DataFrame({"x": rng.random(30_000), "y": rng.random(30_000), "z": rng.random(30_000)}).write_csv("plane.csv")
        told = json.loads(works("engines", "--explain", "plane.csv", "--target", "z", "--json"))
        assert (told["rows"], told["coordinates"], told["outputs"], told["width"]) == (30_000, 3, 1, 10_000)
        costs = {name: told[f"{name}_seconds_per_iteration"] for name in ("dense", "data", "sums")}
        # Times are measured: on a busy machine `data` and `sums` are within noise of each other, `dense` never is.
        assert told["auto"] in ("data", "sums")
        assert costs["dense"] > 2 * min(costs["data"], costs["sums"])
        text = works("engines", "--explain", "plane.csv", "--target", "z", "--drop", "x")
        assert all(name in text for name in costs)
        message = "--explain needs --target COLUMN, the column to predict"
        assert refused("engines", "--explain", "plane.csv") == message

    def test_version_and_engines(self, works):
        assert works("--version") == f"fireset {__version__}\n"
        listed = {entry["name"]: entry["exact"] for entry in json.loads(works("engines", "--json"))}
        assert listed["dense"] is listed["data"] is True
        text = works("engines")
        assert all(f"\n{name} " in f"\n{text}" for name in [*listed, "auto"])

    @pytest.mark.filterwarnings("default::RuntimeWarning")
    def test_a_diverging_run_says_so_and_keeps_its_best_network(self, run):
        write_table(table())
        code, out, err = run("train", "table.csv", "--target", "y", *SMALL, "-q", "--learning-rate", "1e30")
        assert code == 0
        assert "loss grew" in out
        assert mentions(err, "learning_rate", "1e+30")


class TestFailures:
    def test_full_disk_leaves_the_old_model(self, run, model, monkeypatch):
        old = contents()

        def fails(arrays, path, metadata):  # noqa: ARG001
            Path(path).write_bytes(b"half a file")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("safetensors.numpy.save_file", fails)
        code, out, err = run("train", "table.csv", "--target", "y", *SMALL, "-q", "--tol", "0", "--out", model)
        assert (code, out) == (NOT_WRITTEN, "")
        assert err.count("\n") == 1
        assert mentions(err, "model", "No space left on device")
        assert contents() == old

    def test_interrupt_outside_training(self, run, monkeypatch):
        write_table(table())
        before = contents()

        def interrupted(_):
            raise KeyboardInterrupt

        monkeypatch.setattr("fireset.tables.problem.read_with_formats", interrupted)
        code, out, _ = run("train", "table.csv", "--target", "y")
        assert (code, out) == (130, "")
        assert contents() == before

    @pytest.mark.slow
    def test_interrupt_keeps_the_best_network(self, works):
        write_table(table())
        command = [sys.executable, "-m", "fireset", "train", "table.csv", "--target", "y", "--json"]
        process = subprocess.Popen(
            [*command, "--width", "60", "--solver", "gradient", "--max-iter", "100000000", "--tol", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Whoever runs the tests in the background has made its children deaf to Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("columns: ")
            assert process.stderr.readline().startswith("chosen: ")
            assert process.stderr.readline().startswith("training: 0/100000000  loss ")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 130
        facts = json.loads(out)
        assert facts["stop_reason"] == "interrupted"
        assert "fireset: warning: interrupted after " in err
        assert "Traceback" not in err
        assert works("predict", "table.safetensors", "table.csv").count("\n") == 41
        assert json.loads(works("info", "table.safetensors", "--json"))["stop_reason"] == "interrupted"

    @pytest.mark.slow
    def test_reader_that_goes_away(self, model):
        """`fireset predict … | head -0`, with output small enough to be written only at the end."""
        write_table(table())
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [sys.executable, "-m", "fireset", "info", model], stdout=write, stderr=subprocess.PIPE, check=False
        )
        os.close(write)
        assert (done.returncode, done.stderr) == (BROKEN_PIPE, b"")


class TestAsciiTerminal:
    @pytest.fixture
    def ascii_output(self, monkeypatch):
        """Standard output and standard error of a terminal that knows ASCII alone; gives what was written to both."""
        streams = [io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2)]

        def command(*arguments) -> list[str]:
            monkeypatch.setattr(sys, "argv", ["fireset", *map(str, arguments)])
            monkeypatch.setattr(sys, "stdout", streams[0])
            monkeypatch.setattr(sys, "stderr", streams[1])
            with pytest.raises(SystemExit):
                main()
            for stream in streams:
                stream.flush()
            return [stream.buffer.getvalue().decode("ascii") for stream in streams]

        return command

    def test_letters_it_has_not_are_replaced(self, ascii_output):
        write_table(table().rename({"a": "größe"}).with_columns(pl.col("y") + "ä"))
        out, err = ascii_output("train", "table.csv", "--target", "y", *SMALL)
        assert "Traceback" not in err
        assert "gr??e" in out
        out, _ = ascii_output("predict", "table.safetensors", "table.csv")
        assert out.count("?\n") == 40

    def test_errors_are_one_line(self, ascii_output):
        write_table(table())
        out, err = ascii_output("train", "table.csv", "--target", "größe", *SMALL)
        assert out == ""
        assert mentions(err, "--target", "'gr??e'")
        assert err.count("\n") == 1


class TestCheckpoints:
    @pytest.mark.parametrize(
        ("options", "parts"),
        [
            (("--resume",), ["--resume", "--checkpoint"]),
            (("--checkpoint", "ck", "--every", "0"), ["every", "1", "0"]),
            (("--memory", "plenty"), ["memory", "'plenty'"]),
            (
                ("--checkpoint", "table.csv"),
                ["table.csv"],
            ),
        ],
    )
    def test_refused(self, refused, options, parts):
        write_table(table())
        assert mentions(refused("train", "table.csv", "--target", "y", *SMALL, "-q", *options), *parts)

    def test_too_little_memory(self, refused):
        write_table(table())
        told = refused("train", "table.csv", "--target", "y", "-q", "--width", "2000000000", "--memory", "4G")
        assert mentions(told, "2,000,000,000", "4", "89.4")
        assert re.search(r"width .* \d[\d,]*,", told.partition(";")[2])

    def test_a_smaller_width_is_not_advised_where_it_does_not_help(self, refused):
        write_table(table())
        told = refused("train", "table.csv", "--target", "y", "-q", "--width", "2000", "--memory", "20M")
        assert "width of at most" not in told
        assert re.search(r"memory .* [\d.]+ [MG]iB$", told)

    def test_go_on_and_refuse_another_run(self, works, refused):
        write_table(table())
        command = ("train", "table.csv", "--target", "y", "--width", "60", "--tol", "0", "--solver", "gradient")
        command += ("-q", "--json")
        whole = json.loads(works(*command, "--max-iter", "20", "--out", "whole"))
        folder = ("--checkpoint", "ck", "--every", "5")
        works(*command, "--max-iter", "10", *folder)
        rest = json.loads(works(*command, "--max-iter", "20", *folder, "--resume"))
        assert rest["resumed_at_iteration"] == 10
        assert rest["loss"] == pytest.approx(whole["loss"], rel=1e-3)
        message = "ck holds a checkpoint of iteration 20; resume from it (--resume), or give another folder"
        assert refused(*command, "--max-iter", "20", *folder) == message
        told = refused(*command, "--max-iter", "20", *folder, "--resume", "--momentum", "0.5")
        assert mentions(told, "ck/checkpoint-00000020.safetensors", "--momentum", "'0.9'", "'0.5'")

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ("--width 50", "--width ('60' there, '50' here)"),
            (
                "--width 70 --dtype float64",
                "--width ('60' there, '70' here), --dtype ('float32' there, 'float64' here)",
            ),
            ("--dtype float64", "--dtype ('float32' there, 'float64' here)"),
            ("--drop c", "--drop ('none' there, 'c' here)"),
            ("--seed 1", "--seed ('0' there, '1' here)"),
            ("--holdout 0.5", "--holdout ('0.2' there, '0.5' here)"),
            ("--bias 3", "--bias ('auto' there, '3.0' here)"),
            ("--loss log_loss", "--loss ('squared_error' there, 'log_loss' here)"),
            ("--output-scale 2", "--output-scale ('auto' there, '2.0' here)"),
        ],
    )
    def test_the_option_that_differs_is_named_with_both_values(self, works, refused, options, told):
        write_table(table())
        command = ("train", "table.csv", "--target", "y", "--width", "60", "--tol", "0", "--solver", "gradient", "-q")
        command += ("--checkpoint", "ck", "--every", "5", "--max-iter", "5")
        works(*command)
        said = refused(*command, "--resume", *options.split())
        assert mentions(said, "ck/checkpoint-00000005.safetensors", told)

    def test_another_table_is_named(self, works, refused):
        write_table(table())
        rest = ("--target", "y", "--width", "60", "--tol", "0", "--solver", "gradient", "-q", "--max-iter", "5")
        rest += ("--checkpoint", "ck", "--every", "5")
        works("train", "table.csv", *rest)
        write_table(table(a=pl.Series(numbers()[:, 0] + 1 * (np.arange(40) == 3))), "other.csv")
        said = refused("train", "other.csv", *rest, "--resume")
        assert mentions(said, "'table.csv'", "'other.csv'")
        os.replace("other.csv", "table.csv")
        said = refused("train", "table.csv", *rest, "--resume")
        assert mentions(said, "X")

    @pytest.mark.slow
    def test_sigterm_leaves_a_checkpoint(self, works):
        write_table(table())
        command = ["train", "table.csv", "--target", "y", "--json", "--width", "60", "--tol", "0", "--checkpoint", "ck"]
        command += ["--solver", "gradient"]
        process = subprocess.Popen(
            [sys.executable, "-m", "fireset", *command, "--max-iter", "100000000"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("columns: ")
            assert process.stderr.readline().startswith("chosen: ")
            assert process.stderr.readline().startswith("training: 0/100000000  loss ")
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 143
        facts = json.loads(out)
        assert (facts["stop_reason"], facts["checkpoint"]) == ("terminated", "ck")
        assert "Traceback" not in err
        assert not Path("table.safetensors").exists()
        done = facts["iterations"] + 1
        rest = json.loads(works(*command, "-q", "--resume", "--max-iter", done + 5))
        assert (rest["resumed_at_iteration"], rest["iterations"]) == (done, done + 5)


class TestStart:
    @pytest.mark.parametrize("arguments", [("-m", "fireset", "--help"), ("-c", "import fireset")])
    def test_is_quick(self, arguments):
        """In seconds of the processor: those on the clock depend on what else the machine is doing."""
        seconds = []
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert min(seconds) < 0.5

    @pytest.mark.parametrize("code", ["import fireset", "import fireset.cli, fireset.__main__ as m; m.main()"])
    def test_imports_nothing_heavy(self, code):
        heavy = "{'numba', 'torch', 'sklearn', 'polars', 'scipy'}"
        program = (
            f"import sys; sys.argv = ['fireset', '--help']\ntry:\n  {code}\nexcept SystemExit as end:\n"
            f"  assert end.code == 0\nloaded = {heavy} & set(sys.modules)\nassert not loaded, loaded"
        )
        subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)

    def test_module_runs(self):
        shown = subprocess.run([sys.executable, "-m", "fireset", "--version"], check=True, capture_output=True)
        assert shown.stdout.decode().strip() == f"fireset {__version__}"


class TestNamesFromFiles:
    """Column names and labels come from whoever wrote the table."""

    @pytest.fixture
    def model(self, works):
        rows = [f"{k},{'=cmd|1' if k < 20 else '@b'}" for k in range(40)]
        Path("t.csv").write_text("\n".join(["a\x1b[31mred,y", *rows]) + "\n", encoding="utf-8")
        works("train", "t.csv", "--target", "y", "--width", 200, "--out", "m.safetensors", "--json")
        return "m.safetensors"

    def test_do_not_steer_the_terminal(self, model, works):
        shown = works("info", model)
        assert "\x1b" not in shown
        assert "\\x1b[31mred" in shown
        assert json.loads(works("info", model, "--json"))["columns"] == ["a\x1b[31mred"]

    def test_are_no_formulas_where_asked(self, model, works):
        assert set(works("predict", model, "t.csv").splitlines()[1:]) == {"=cmd|1", "@b"}
        works("predict", model, "t.csv", "--safe-csv", "--proba", "--out", "p.csv")
        table = pl.read_csv("p.csv")
        assert set(table["prediction"]) == {"'=cmd|1", "'@b"}
        assert table.columns == ["prediction", "p(=cmd|1)", "p(@b)"]


def test_a_high_accuracy_does_not_hide_classes_that_are_never_found():
    answers = np.array(["a"] * 95 + ["b"] * 5)
    found = scores("classification", answers, np.full(100, "a"))
    assert found["accuracy"] == found["majority_accuracy"] == 0.95
    assert found["majority_class"] == "a"
    assert found["balanced_accuracy"] == 0.5
    assert found["low_recall_classes"] == {"b": 0.0}
    assert "low_recall_classes" not in scores("classification", answers, answers)
    assert scores("classification", np.array([None, None], object), np.array(["a", "b"])) == {"accuracy": 0.0}
    assert readable("held_out_low_recall_classes", {"b": 0.0}) == ("held out recall below one half", "b 0 %")
    assert readable("rmse", 29893.2) == ("RMSE", "29,900")


class TestForPrograms:
    def test_an_error_is_an_object_too(self, run):
        code, out, err = run("info", "absent.safetensors", "--json")
        assert code == 2
        assert json.loads(out) == {"error": "no such model file: absent.safetensors", "exit_code": 2}
        assert mentions(err, "absent.safetensors")

    def test_ctrl_c_before_the_first_iteration(self, run, monkeypatch):
        def interrupt(*_):
            raise KeyboardInterrupt

        write_table(table())
        monkeypatch.setattr("fireset.tables.problem.read_with_formats", interrupt)
        code, out, err = run("train", "table.csv", "--target", "y")
        assert (code, out, err.count("\n")) == (130, "", 1)


def test_balanced_classes_find_the_rare_one(works, refused):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 2))
    rare = (x[:, 0] + 0.8 * rng.standard_normal(400) > 1.8).astype(int)
    pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": rare}).write_csv("rare.csv")
    options = ("rare.csv", "--target", "y", "--width", 1000, "--json")
    plain = json.loads(works("train", *options))
    balanced = json.loads(works("train", *options, "--balance"))
    assert balanced["held_out_balanced_accuracy"] > plain["held_out_balanced_accuracy"]
    told = refused("train", "rare.csv", "--target", "a", "--balance", "--width", 100)
    assert mentions(told, "class_weight", "--balance", "--task")


class TestTaskThatWasTaken:
    @pytest.mark.parametrize("explain", [(), ("--explain",)])
    def test_counts(self, works, explain):
        X = numbers(80)
        visits = np.random.default_rng(0).poisson(2.0, 80)
        frame = pl.DataFrame(X, schema=["a", "b", "c"]).with_columns(visits=pl.Series(visits))
        found = json.loads(works("train", write_table(frame), "--target", "visits", *SMALL, *explain, "--json"))
        assert found["task"] == "regression"
        assert "--task classification" in found["task_reason"]
        assert "--loss poisson" in found["task_reason"]

    def test_a_task_that_was_given_needs_no_reason(self, works):
        options = ("--target", "y", "--task", "classification", *SMALL, "--json")
        assert "task_reason" not in json.loads(works("train", write_table(table()), *options))
