"""The page: everything escaped, everything inside, readable without its script; and the records of a training run."""

import json
import re
import signal
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fireset import InputError, ShiftedReLUNetwork, TensorBoardLog, train
from fireset.commands.outputs import RunOutputs
from fireset.commands.train import train_table
from fireset.reporting import check_report, write_page
from fireset.reporting.figures import Figure, HeatMap, Section, Series, Table
from fireset.training.history import History, Iteration
from support.report_pages import EVIL, Page


def sections(text="plain") -> list[Section]:
    """One of everything."""
    lines = Figure(
        f"{text} title",
        f"{text} x",
        f"{text} y",
        [
            Series(f"{text} line", list(range(100)), [float(k) for k in range(100)]),
            Series(f"{text} points", [1, 2], [3.0, float("nan")], "points"),
            Series(f"{text} fit", [1, 2], [3.0, 4.0], "dashed"),
        ],
        f"{text} alt",
        log_y=True,
    )
    bars = Figure("Bars", "word", "count", [Series("bars", [f"{text} word", "2024-01-01"], [1, 2], "bars")], "alt")
    maps = [
        HeatMap("Small", "x", "y", [[0, 1], [1, 0]], f"{text} alt"),
        HeatMap("Large", "x", "y", np.zeros((50, 60)).tolist(), "alt"),
    ]
    table = Table([f"{text} a", "b"], [[f"{text} cell", "1.5"], ["c", "2.5"]])
    return [Section(f"{text} heading", [f"{text} paragraph"], [table, Table(["empty"], [])], [lines, bars, *maps])]


@pytest.fixture
def page(tmp_path) -> Path:
    return tmp_path / "page.html"


def test_everything_is_there(page):
    write_page(page, "A title", sections(), settings={"width": 10_000, "rate": 1e-7, "none": None, "list": [1, 2]})
    read = Page(page)
    for text in ("A title", "plain heading", "plain paragraph", "plain cell", "plain alt", "10,000", "1e-07", "1, 2"):
        assert text in read.text
    assert "fireset 0" in read.text  # versions
    assert read.count("html", lang="en") == 1
    assert read.count("a", **{"class": "skip"}) == 1
    assert read.count("th", scope="col") > 10
    assert read.count("th", scope="row") > 10
    assert read.count("div", role="img") == 4
    assert read.count("details") == 4
    assert (read.count("h1"), read.count("h2"), read.count("h3")) == (1, 2, 4)
    assert page.read_text(encoding="utf-8").count("plotly.js v") == 1


def test_long_series_are_thinned_in_their_table(page):
    write_page(page, "t", sections())
    text = Page(page).text
    assert "plain line (40 of 100 points)" in text
    assert "50 × 60 values, summary" in text
    assert "2 × 2 values" in text


def test_untrusted_text_stays_text(page):
    write_page(page, EVIL, sections(EVIL), settings={EVIL: EVIL})
    read = Page(page)
    assert read.count("img") == 0
    assert read.count("script") == 3  # the data, Plotly, the drawing
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "{{ 7 * 7 }}" in read.text
    drawn = re.search(r'<script type="application/json" id="drawn">(.*?)</script>', text, re.DOTALL)
    assert drawn is not None
    figures = json.loads(drawn[1])
    assert "<" not in json.dumps(figures)  # Plotly reads tags in its labels
    assert figures[0]["series"][1]["y"] == [3.0, None]
    assert figures[1]["x_type"] == "category"


def test_a_fit_has_the_colour_of_its_points(page):
    write_page(page, "t", sections())
    drawn = re.search(r'id="drawn">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert drawn is not None
    assert [series["color"] for series in json.loads(drawn[1])[0]["series"]] == [0, 1, 1]


def test_nothing_is_fetched_from_anywhere(page):
    write_page(page, "t", sections())
    read = Page(page)
    policy = next(a["content"] for tag, a in read.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert all("src" not in a for _, a in read.tags)
    assert all(a.get("href", "").startswith(("#", "data:,")) for tag, a in read.tags if tag in ("a", "link"))


def test_a_page_of_words_is_small(page):
    write_page(page, "t", [Section("h", ["p"])])
    assert page.stat().st_size < 20_000
    assert Page(page).count("script") == 0


def test_replaced_whole_or_not_at_all(page, monkeypatch):
    page.write_text("old")
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(InputError, match=r"page\.html: No space left$"):
        write_page(page, "t", sections())
    assert page.read_text() == "old"
    assert list(page.parent.iterdir()) == [page]


@pytest.mark.parametrize("missing", ["plotly", "jinja2"])
def test_a_missing_extra_says_what_to_install(page, monkeypatch, missing):
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    if missing == "plotly":
        monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(InputError, match=r"pip install 'fireset\[report\]'$"):
        check_report(page)


# Outputs of a training run


def table(tmp_path, rows=60) -> Path:
    X = np.random.default_rng(0).standard_normal((rows, 3))
    file = tmp_path / "table.csv"
    pl.DataFrame(X, schema=["a<b", "c", "d"]).with_columns(y=pl.Series(X[:, 0] > 0)).write_csv(file)
    return file


def settings(**changes) -> dict:
    """By gradient descent: the network returned is that of the last iteration."""
    fixed = {"width": 80, "max_iter": 6, "tol": 0, "random_state": 0, "verbose": False}
    return {**fixed, "engine": "auto", "solver": "gradient", **changes}


def run(file, **changes):
    places = {"out": file.with_name("m"), "report": None, "history": None, "tensorboard": None}
    asked = {"loss": "squared_error", "holdout": 0.2}
    return train_table(file, "y", settings=settings(), **{**asked, **places, **changes})


def test_train_leaves_a_page(tmp_path):
    page = tmp_path / "page.html"
    shown = run(table(tmp_path), report=page)
    assert shown["report"] == str(page)
    read = Page(page)
    for text in ("Training on table.csv", "Loss against time", "Active fraction", "before training", "after training"):
        assert text in read.text


@pytest.mark.filterwarnings("ignore:interrupted after")
def test_interrupted_training_leaves_its_page(tmp_path, monkeypatch):
    see = RunOutputs._record

    def interrupt(self, progress):
        see(self, progress)
        if progress.record.iteration == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunOutputs, "_record", interrupt)
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)  # whoever runs the tests
    page = tmp_path / "page.html"
    shown = run(table(tmp_path), report=page)
    assert (shown["stop_reason"], shown["iterations"]) == ("interrupted", 3)
    assert "interrupted" in Page(page).text


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_train_leaves_its_history(tmp_path, suffix):
    file = tmp_path / f"history.{suffix}"
    shown = run(table(tmp_path), history=file)
    assert shown["history"] == str(file)
    frame = pl.read_csv(file) if suffix == "csv" else pl.DataFrame(json.loads(file.read_text()))
    assert frame["iteration"].to_list() == list(range(7))
    assert frame["loss"][-1] == pytest.approx(shown["loss"])
    assert frame["validation_loss"].null_count() == 7


def test_history_of_a_diverged_run_is_valid_json():
    record = Iteration(0, float("inf"), float("nan"), 1, 0.5, 2, 3, 0.1, 0.0)
    parsed = json.loads(History([record]).to_json(), parse_constant=pytest.fail)
    assert parsed[0]["loss"] is parsed[0]["validation_loss"] is None
    assert History([record]).to_csv().splitlines()[1] == "0,inf,nan,1,0.5,2,3,0.1,0.0,,"


def test_an_approximate_engine_says_what_it_missed(tmp_path):
    shown = train_table(
        table(tmp_path),
        "y",
        out=tmp_path / "m",
        loss="squared_error",
        holdout=0,
        settings=settings(engine="hashing"),
    )
    assert 0 < shown["recall"] <= 1


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"history": "h.txt"}, r"--history .*h\.txt .*\.csv .*\.json"),
        ({"history": "table.csv"}, r"--history .*table\.csv .*table\.csv"),
        ({"report": "table.csv"}, r"--report .*table\.csv .*table\.csv"),
        ({"report": "no/p.html"}, r".*p\.html: .*/no;"),
        ({"tensorboard": "table.csv"}, r".*table\.csv: "),
    ],
)
def test_places_are_checked_before_training(tmp_path, places, message):
    file = table(tmp_path)
    with pytest.raises(InputError, match=f"^{message}"):
        run(file, **{name: tmp_path / place for name, place in places.items()})
    assert list(tmp_path.iterdir()) == [file]


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_tensorboard(tmp_path):
    shown = run(table(tmp_path), tensorboard=tmp_path / "runs" / "first")
    assert shown["tensorboard"] == str(tmp_path / "runs" / "first")
    found = events(tmp_path / "runs" / "first")
    assert [step for step, _ in found["fireset/loss"]] == list(range(7))
    assert found["fireset/loss"][-1][1] == pytest.approx(shown["loss"], rel=1e-6)
    assert "fireset/validation_loss" not in found


def test_tensorboard_as_a_callback(tmp_path):
    X = np.eye(4)
    network = ShiftedReLUNetwork.initialize(50, 4)
    with TensorBoardLog(tmp_path) as log:
        result = train(network, X, X[:, 0], validation=(X, X[:, 1]), max_iter=3, callbacks=[log])
    found = events(tmp_path)
    written = [value for _, value in found["fireset/validation_loss"]]
    assert written == pytest.approx(result.history.column("validation_loss"), rel=1e-6)


def test_tensorboard_missing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(InputError, match=r"pip install 'fireset\[tensorboard\]'$"):
        TensorBoardLog(tmp_path)
