"""``fireset theory`` and ``fireset train --certify``: what they say, and what they refuse."""

import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fireset.commands import theory as theory_task
from fireset.commands import train as train_task
from fireset.commands.certificate import DistinctRows, merge_equal_rows
from fireset.commands.theory import theory_sections, theory_tables
from support.checks import mentions
from support.command_tables import table, write_table, written

THEORY = ("theory", "table.csv", "--target", "y", "--width", "2000")


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def numbers_table(rows: int = 60) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 3))
    return pl.DataFrame(X, schema=["a", "b", "c"]).with_columns(y=pl.Series(np.sin(X[:, 0]) + X[:, 1]))


def test_classification_as_a_table(works):
    write_table(table())
    out = works(*THEORY)
    for line in (
        "The data and their kernel",
        "What the theorem requires",
        "What practice needs",
        "n         32     ",
        "smallest eigenvalue of H^cts",
        "of kernel regression, the infinitely wide network, on 8 rows held out",
    ):
        assert line in out
    assert "accuracy" in out


def test_certifying_at_a_threshold_whose_square_overflows(run):
    write_table(numbers_table())
    options = ("--certify", "--dtype", "float64", "--threshold", "1e155", "--width", "60", "--max-iter", "3")
    code, out, err = run("train", "table.csv", "--target", "y", *options)
    assert (code, out) == (2, "")
    assert re.search(r"`threshold` .* got 1e\+155", err.splitlines()[-1])


def test_regression_as_json(works):
    write_table(numbers_table())
    found = json.loads(works(*THEORY, "--json"))
    assert (found["rows"], found["coordinates"], found["outputs"], found["width"]) == (48, 4, 1, 2000)
    assert found["lambda_lower_bound"] < found["lambda_hermite_bound"] < found["lambda"] < found["lambda_upper_bound"]
    assert found["lambda"] < found["lambda_trained_bias"]
    assert found["theorem_learning_rate"] == pytest.approx(found["lambda"] / (4 * 48**2))
    assert found["theorem_safe_radius"] == pytest.approx(0.75 * found["theorem_radius"])
    assert found["theorem_iterations_at_rate"] > found["theorem_iterations"]  # the printed T lacks a factor 8
    assert found["kernel_regression_r2"] > 0.5
    assert found["forecast_r2"] > 0.5
    assert found["operations"]["data"] < found["operations"]["dense"]
    assert json.loads(works(*THEORY, "--json", "--seed", "1"))["lambda"] != found["lambda"]  # another split
    assert "kernel_regression_r2" not in json.loads(works(*THEORY, "--json", "--holdout", "0"))


def unmerged(monkeypatch, module):
    """Let equal rows through to what follows."""
    same = lambda X, y, **_: DistinctRows(np.arange(len(X)), y, 0)  # noqa: E731
    monkeypatch.setattr(module, "merge_equal_rows", same)


def test_lambda_that_is_only_rounding_is_0_and_its_rows_are_named(works, monkeypatch):
    unmerged(monkeypatch, theory_task)
    frame = numbers_table(20)
    write_table(pl.concat([frame, frame[4:5]]))
    out = works(*THEORY, "--holdout", "0")
    assert mentions(out, "5", "21", "0")
    found = json.loads(works(*THEORY, "--holdout", "0", "--json"))
    assert found["closest_rows"] == [5, 21]
    assert found["lambda_is_zero"]
    assert found["lambda"] == found["lambda_trained_bias"] == 0.0
    assert found["theorem_width"] is None


def test_equal_rows_are_merged(works):
    frame = numbers_table(20)
    twice = frame[4:5].with_columns(y=pl.col("y") + 2.0)
    write_table(pl.concat([frame, twice, frame[7:8]]))
    found = json.loads(works(*THEORY, "--holdout", "0", "--json"))
    write_table(frame.with_columns(y=pl.when(pl.int_range(pl.len()) == 4).then(pl.col("y") + 1.0).otherwise("y")))
    alone = json.loads(works(*THEORY, "--holdout", "0", "--json"))
    assert (found["merged_rows"], alone["merged_rows"]) == (2, 0)
    for name in ("rows", "lambda", "separation", "initial_error", "theorem_width"):
        assert found[name] == pytest.approx(alone[name], rel=1e-9), name
    assert found["lambda"] > 0
    assert not found["lambda_is_zero"]


@pytest.mark.parametrize("split", [(), ("--early-stopping",)])
def test_a_certificate_names_the_rows_of_the_table(works, split, monkeypatch):
    """Rows 3 to 6 are the same, so whichever are held out, two of them are trained on, and no other two are alike."""
    unmerged(monkeypatch, train_task)
    frame = numbers_table(40)
    write_table(pl.concat([frame[:2], *[frame[2:3]] * 4, frame[3:]]))
    train = ("train", "table.csv", "--target", "y", "--width", "300", "--max-iter", "3", *split)
    found = json.loads(works(*train, "--certify", "--json", "--quiet"))["certificate"]
    (said,) = [one["reason"] for one in found["assumptions"] if one["reason"].startswith("δ = 0")]
    first, second = (int(word) for word in said.split() if word.isdigit() and word != "0")
    assert 3 <= first < 7
    assert 3 <= second < 7


def test_a_certificate_is_of_distinct_rows_and_of_a_whole_run_of_plain_descent(works):
    frame = numbers_table(40)
    write_table(pl.concat([frame, frame[:3]]))
    train = ("train", "table.csv", "--target", "y", "--width", "300", "--holdout", "0", "--json", "--quiet")
    found = json.loads(works(*train, "--certify", "--max-iter", "25", "--learning-rate", "1e-9"))
    assert (found["rows"], found["merged_rows"], found["iterations"]) == (40, 3, 25)
    assert found["stop_reason"] == "max_iter"
    claims = {claim["claim"]: claim for claim in found["certificate"]["claims"]}
    assert found["certificate"]["quantities"]["lambda"] > 0
    assert claims["gradient"]["holds"]
    assert claims["gradient"]["measured_iterations"][-1] == 25
    assert claims["movement"]["holds"] is None  # in float32 nothing moves at this rate
    assert any(note.startswith("Warning: no weight moved") for note in found["certificate"]["notes"])
    given = json.loads(works(*train, "--certify", "--max-iter", "200", "--tol", "0.1"))
    assert given["iterations"] < 200


def test_classes_of_equal_rows_are_the_most_frequent():
    X = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    rows, y, merged = merge_equal_rows(X, np.array([2, 1, 0, 2, 0]), classes=True, dtype="float32")
    assert (rows.tolist(), y.tolist(), merged) == ([0, 1], [2, 0], 3)


def test_the_large_way_agrees_with_the_small_one(works, monkeypatch, run):
    write_table(numbers_table())
    small = json.loads(works(*THEORY, "--json"))
    monkeypatch.setattr(theory_task, "_MAX_ROWS_ALL_EIGENVALUES", 10)
    code, out, err = run(*THEORY, "--json")
    assert code == 0
    large = json.loads(out)
    for name in ("lambda", "lambda_max", "kernel_regression_r2"):
        assert large[name] == pytest.approx(small[name], rel=1e-6)
    assert err.splitlines() == ["separation of 48 rows", "the kernel, 0.0 GB", "its eigenvalues", "kernel regression"]
    assert run(*THEORY, "--json", "--quiet")[2] == ""


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (("--width", "1"), ["width", "2", "1"]),
        (("--threshold", "high"), ["threshold", "'high'"]),
        (
            ("--threshold", "50"),
            ["`threshold`", "'auto'", "'paper'", "−10", "10", "50.0"],
        ),
        (("--holdout", "1.5"), ["holdout", "0", "1", "1.5"]),
        (("--seed", "-1"), ["seed", "0", "2", "32", "-1"]),
        (("--bias", "0"), ["bias", "'auto'", "0.0"]),
        (("--task", "sorting"), ["task", "'sorting'"]),
        (("--target", "z"), ["--target", "'z'", "'a'", "'b'", "'c'", "'y'"]),
    ],
)
def test_mistakes_are_one_line(refused, more, parts):
    write_table(numbers_table())
    assert mentions(refused(*THEORY, *more), *parts)


def test_one_row_is_refused(refused):
    written("a,y\n1,2.5\n")
    assert mentions(refused(*THEORY), "table", "2", "1")


def test_figures_are_data(works, monkeypatch):
    """The page is drawn elsewhere: here, what it is given."""
    write_table(numbers_table())
    pages = []
    monkeypatch.setattr(theory_task, "check_report", pages.append)
    monkeypatch.setattr(theory_task, "write_page", lambda *page, **settings: pages.append((page, settings)))
    works(*THEORY, "--report", "page.html")
    checked, ((path, title, sections), settings) = pages
    assert str(checked) == str(path) == "page.html"
    assert mentions(title, "table.csv")
    assert settings["settings"]["width"] == 2000
    assert [section.heading for section in sections][2] == "What the theorem requires"
    (figure,) = sections[1].figures
    assert len(figure.series) == 4
    assert figure.alt
    for series in figure.series:
        assert len(series.x) == len(series.y) >= 2
        assert min(series.y) > 0
    assert list(figure.series[0].y) == sorted(figure.series[0].y, reverse=True)


def test_tables_and_sections_have_the_same_words():
    operations = dict.fromkeys(("dense", "weights", "data", "quantum"), 1.0)
    names = (
        "rows coordinates separation lambda lambda_lower_bound lambda_hermite_bound lambda_upper_bound lambda_max "
        "theorem_learning_rate theorem_sparse_learning_rate theorem_radius theorem_safe_radius theorem_iterations "
        "theorem_iterations_at_rate theorem_width lemma_width theorem_kernel_width corollary_width width threshold "
        "active_fraction active_bound_fraction movement_bound sufficient_width sufficient_error initial_error "
        "practical_learning_rate practical_iterations"
    )
    summary = {
        **dict.fromkeys(names.split(), 1.0),
        "task": "regression",
        "merged_rows": 0,
        "closest_rows": None,
        "closest_rows_are_opposite": False,
        "lambda_is_zero": False,
        "operations": operations,
    }
    found = theory_task.Theory(summary, [])
    tables = theory_tables(found)
    assert "one row: no pair" in tables[0][1].rows[2][2]
    assert [section.heading for section in theory_sections(found)[1:]] == [heading for heading, _ in tables]


def test_the_least_widths_are_shown_where_the_threshold_rises_with_the_width(works):
    write_table(numbers_table(12))
    found = json.loads(works(*THEORY, "--json", "--quiet"))
    assert found["least_width_at_zero"] < found["sufficient_width"] < found["least_width"]
    assert "√(0.4 ln m)" in works(*THEORY)
    fixed = json.loads(works(*THEORY, "--json", "--quiet", "--threshold", "1"))
    assert "least_width" not in fixed


def test_training_with_the_width_of_the_theorem_is_refused_with_the_number(refused):
    write_table(numbers_table(20))
    train = ("train", "table.csv", "--target", "y", "-q", "--width", "theory")
    assert re.search(r"width='theory' needs \d.*e\+\d+ neurons", refused(*train, "--certify"))
    assert mentions(refused(*train), "--width theory", "--certify")


def test_train_with_a_certificate(works):
    write_table(numbers_table())
    train = ("train", "table.csv", "--target", "y", "--width", "300", "--max-iter", "8", "-q", "--certify")
    out = works(*train)
    assert "k_{i,0}" in out
    assert "[1] " in out
    assert "certificate  " not in out
    found = json.loads(works(*train, "--json", "--momentum", "0.9"))
    verdicts = {claim["claim"]: claim["verdict"] for claim in found["certificate"]["claims"]}
    assert mentions(verdicts["rate"], "does not apply", "momentum", "0.9")
    assert verdicts["sparsity"] == "holds"
    assert found["solver"] == "gradient"  # the paper's setting, where nothing else was asked for
    assert "certificate" not in json.loads(works(*train[:-1], "--json"))


def test_a_certificate_is_on_the_page_of_its_run(works):
    write_table(numbers_table())
    works(
        "train", "table.csv", "--target", "y", "--width", "500", "--max-iter", "5", "--momentum", "0",
        "--certify", "--report", "run.html", "--quiet",
    )  # fmt: skip
    page = Path("run.html").read_text(encoding="utf-8")
    assert "The run against the paper" in page
    assert "Squared error and the proved rate" in page


def test_a_certificate_needs_the_whole_run(refused):
    write_table(numbers_table())
    message = refused("train", "table.csv", "--target", "y", "--certify", "--checkpoint", "here", "--resume")
    assert mentions(message, "--certify", "--resume")


def test_pages_of_theory_and_quantum(works):
    write_table(numbers_table())
    works(*THEORY, "--report", "theory.html", "--quiet")
    works("quantum", "table.csv", "--target", "y", "--width", "200", "--iterations", "2", "--report", "quantum.html")
    for page in ("theory.html", "quantum.html"):
        assert "<html lang" in Path(page).read_text(encoding="utf-8")
