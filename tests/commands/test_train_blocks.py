"""Tables that are read in blocks: the same fit as of tables read at once, and errors that name row and file."""

import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.utils.class_weight import compute_sample_weight

import fireset.commands.predict as predict_command
from fireset._util import mapped_file
from fireset._util.errors import InputError
from fireset._util.mapped_file import mapped_empty, release_pages
from fireset.commands.explain_training import explain_training
from fireset.commands.predict import predict_table
from fireset.commands.train import train_table
from fireset.estimators import ShiftedReLUClassifier
from fireset.model import Model
from fireset.tables import encoded_blocks, large_problem
from fireset.tables.large_problem import LargeTableProblem, needs_blocks
from fireset.tables.problem import TableProblem
from fireset.tables.row_source import RowSource
from fireset.training.checkpoint import Checkpoints
from fireset.training.solvers import nystrom

ROWS = 3000
CHOSEN = {"width": 600, "random_state": 0, "solver": "nystrom"}
SETTINGS = CHOSEN | {"bias": 1.0, "column_scales": None, "ridge": 0.1}  # saves seconds


def table(rows: int = ROWS, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4))
    color = rng.choice(["red", "green", "blue"], rows)
    y = x[:, 0] ** 2 + np.sin(2 * x[:, 1]) + (color == "red") + 0.1 * rng.normal(size=rows)
    days = pl.Series("day", rng.integers(0, 400, rows)).cast(pl.Int32).cast(pl.Date)
    gaps = pl.Series("gaps", np.where(rng.random(rows) < 0.1, np.nan, x[:, 3]))
    kinds = np.array(["low", "middle", "high"])[np.digitize(y, np.quantile(y, [0.3, 0.7]))]
    columns = {f"x{j}": x[:, j] for j in range(3)}
    return pl.DataFrame({**columns, "gaps": gaps, "color": color, "day": days, "y": y, "kind": kinds})


@pytest.fixture(autouse=True)
def few_centres(monkeypatch):
    monkeypatch.setattr(nystrom, "CENTRES", 300)  # saves seconds
    monkeypatch.setattr(nystrom, "SHARED_CENTRES", 300)


@pytest.fixture
def in_blocks(monkeypatch):
    """Read tables in small blocks, with mapped rows in a file."""
    monkeypatch.setattr(large_problem, "needs_blocks", lambda file, memory: True)  # noqa: ARG005
    monkeypatch.setattr(RowSource, "open", partial(RowSource.open, block_cells=0, block_bytes=20_000))
    monkeypatch.setattr(encoded_blocks, "_SHARE_OF_MEMORY", 0.0)


def train(file: Path, target: str = "y", *, drop: str = "kind", out: Path, **others: Any) -> tuple[dict, Model]:
    settings = {"loss": "squared_error", "holdout": 0.0, "settings": SETTINGS, "reading": {"drop": [drop]}} | others
    summary = train_table(file, target, out=out, **settings)
    return summary, Model.load(out)


def written(folder: Path, suffix: str, rows: pl.DataFrame) -> Path:
    file = folder / f"table{suffix}"
    rows.write_parquet(file) if suffix == ".parquet" else rows.write_csv(file)
    return file


@pytest.mark.parametrize(
    ("suffix", "target", "drop", "settings"),
    [
        (".parquet", "y", "kind", SETTINGS),
        (".csv", "kind", "y", SETTINGS),
        pytest.param(".csv", "y", "kind", CHOSEN, marks=pytest.mark.slow),
        pytest.param(".parquet", "kind", "y", CHOSEN, marks=pytest.mark.slow),
    ],
)
def test_a_sample_of_all_rows_gives_the_fit_of_the_table_read_at_once(
    tmp_path, request, suffix, target, drop, settings
):
    file, rows, given = written(tmp_path, suffix, table()), table(200, seed=1), {"drop": drop, "settings": settings}
    expected, whole = train(file, target, out=tmp_path / "whole.safetensors", **given)
    request.getfixturevalue("in_blocks")
    summary, model = train(file, target, out=tmp_path / "blocks.safetensors", **given)
    ignored = (
        "model",
        "peak_memory_bytes",
        "seconds",
        "total_seconds",
        "training_seconds",
        "preprocessing_seconds",
        "compile_seconds",
    )
    for name in set(expected) - {*ignored, "importances"}:
        value = expected[name]
        assert summary[name] == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value), name
    assert model.encoder == whole.encoder
    assert model.training["table_columns"] == whole.training["table_columns"]
    if target == "y":
        np.testing.assert_allclose(model.estimator.predict(rows), whole.estimator.predict(rows), rtol=0, atol=1e-6)
    else:
        found, given = (one.estimator.predict_proba(rows) for one in (model, whole))
        np.testing.assert_allclose(found, given, rtol=0, atol=1e-6)


def test_a_sample_of_some_rows_gives_nearly_the_same_model(tmp_path, monkeypatch, in_blocks):  # noqa: ARG001
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(4):
        table(seed=part).write_parquet(folder / f"{part}.parquet")
    few = partial(LargeTableProblem.read_blocks, sample_rows=2500)
    monkeypatch.setattr(LargeTableProblem, "read_blocks", few)
    monkeypatch.setattr(large_problem, "_MIN_SAMPLE_ROWS", 1)
    summary, model = train(folder, out=tmp_path / "m.safetensors", holdout=0.2, holdout_by=None)
    assert summary["rows"] == 4 * ROWS * 0.8
    assert summary["held_out_rows"] == 4 * ROWS * 0.2
    assert summary["held_out_r2"] > 0.7
    other = table(seed=9)
    assert np.corrcoef(model.estimator.predict(other), other["y"])[0, 1] > 0.85


def test_scores_of_rows_held_out_are_those_of_the_model(tmp_path, in_blocks):  # noqa: ARG001
    file = written(tmp_path, ".parquet", table())
    summary, model = train(file, "kind", drop="y", out=tmp_path / "m.safetensors", holdout=0.25)
    problem = TableProblem.read(file, "kind", drop=["y"])
    held = np.sort(problem.split(0.25, 0)[1])
    right = model.estimator.predict(table()[held]) == table()["kind"].to_numpy()[held]
    assert summary["held_out_accuracy"] == pytest.approx(right.mean())
    page = tmp_path / "page.html"
    by_day, _ = train(file, out=tmp_path / "d.safetensors", holdout=0.2, holdout_by="day", report=page)
    assert 500 < by_day["held_out_rows"] < 700
    assert "Predicted against actual" in page.read_text()


def test_predictions_in_blocks_are_those_of_the_table_read_at_once(tmp_path, in_blocks, monkeypatch):  # noqa: ARG001
    folder = tmp_path / "parts"
    folder.mkdir()
    table(seed=1).write_csv(folder / "a.csv")
    table(seed=2).write_csv(folder / "b.csv")
    together = tmp_path / "together.csv"
    pl.concat([table(seed=1), table(seed=2)]).write_csv(together)
    out = tmp_path / "m.safetensors"
    train(folder, "kind", drop="y", out=out)
    kept, columns, summary = predict_table(out, folder, proba=True, keep=["color"])
    monkeypatch.setattr(predict_command, "needs_blocks", lambda file, memory: False)  # noqa: ARG005
    expected = predict_table(out, together, proba=True, keep=["color"])
    assert kept == expected[0]
    # float32 sums of other tiles, times the output scale of 1000
    np.testing.assert_allclose(columns["p(low)"], expected[1]["p(low)"], rtol=0, atol=1e-3)
    assert summary["accuracy"] == pytest.approx(expected[2]["accuracy"], abs=1e-3)
    assert summary["rows"] == 2 * ROWS


def test_warnings_about_many_blocks_are_few_and_name_rows(tmp_path, in_blocks):  # noqa: ARG001
    out = tmp_path / "m.safetensors"
    train(written(tmp_path, ".parquet", table()), out=out)
    folder = tmp_path / "parts"
    folder.mkdir()
    for number in range(9):
        table(20).with_columns(color=pl.lit(f"new{number}")).write_csv(folder / f"{number}.csv")
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        predict_table(out, folder, proba=False)
    texts = [str(one.message) for one in given]
    assert len(texts) == 4
    assert "1 of 2.csv" in texts[2]
    assert "'new2'" in texts[2]
    assert "6 " in texts[3]


def test_a_bad_cell_to_predict_is_refused_with_row_and_file(tmp_path, in_blocks):  # noqa: ARG001
    out = tmp_path / "m.safetensors"
    train(written(tmp_path, ".parquet", table()), out=out)
    folder = tmp_path / "parts"
    folder.mkdir()
    is_late = pl.int_range(ROWS) == 2500
    bad = table().with_columns(pl.when(is_late).then(np.inf).otherwise(pl.col("x1")).alias("x1"))
    bad.drop("y").write_parquet(folder / "b.parquet")
    with pytest.raises(InputError, match=r"2501 of b\.parquet"):
        predict_table(out, folder, proba=False)
    table().select("x0", "x1", "x2", "gaps", "color", "day").write_parquet(folder / "b.parquet")
    kept, columns, summary = predict_table(out, folder, proba=False)
    assert (kept, list(columns), summary) == ({}, ["prediction"], {"rows": ROWS})


def test_a_rare_missing_cell_is_known_to_the_encoder(tmp_path, monkeypatch, in_blocks):  # noqa: ARG001
    rows = table().with_columns(pl.when(pl.int_range(ROWS) == 2222).then(None).otherwise(pl.col("x0")).alias("x0"))
    file = written(tmp_path, ".parquet", rows)
    monkeypatch.setattr(large_problem, "_MIN_SAMPLE_ROWS", 1)
    problem = LargeTableProblem.read_blocks(RowSource.open(file), "y", drop=["kind"], sample_rows=300)
    assert 2222 in problem.sample_rows
    kept, _, encoded = problem.split(0.0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no missing cell is unexpected
        matrix = np.vstack([features for _, features in encoded[kept].blocks()])
    indicator = encoded.encoder.feature_names.index("x0 (missing)")
    assert np.flatnonzero(matrix[:, indicator]).tolist() == [2222]
    described = {one["name"]: one for one in problem.describe_columns(encoded.encoder, kept)}
    assert described["x0"]["missing"] == 1
    assert described["gaps"]["missing"] == table()["gaps"].is_nan().sum()


@pytest.mark.parametrize("sampled", [5000, 300])
def test_a_bad_cell_of_a_late_block_is_refused_with_row_and_file(tmp_path, monkeypatch, in_blocks, sampled):  # noqa: ARG001
    monkeypatch.setattr(large_problem, "_MIN_SAMPLE_ROWS", 1)
    monkeypatch.setattr(LargeTableProblem, "read_blocks", partial(LargeTableProblem.read_blocks, sample_rows=sampled))
    folder = tmp_path / "parts"
    folder.mkdir()
    rows = table()
    rows.write_parquet(folder / "a.parquet")
    bad = rows.with_columns(pl.when(pl.int_range(ROWS) == 2500).then(np.inf).otherwise(pl.col("x1")).alias("x1"))
    bad.write_parquet(folder / "b.parquet")
    with pytest.raises(InputError, match=r"'x1'.* inf .*2501 of b\.parquet"):
        train(folder, out=tmp_path / "m.safetensors")
    bad = rows.with_columns(pl.when(pl.int_range(ROWS) == 2500).then(None).otherwise(pl.col("y")).alias("y"))
    bad.write_parquet(folder / "b.parquet")
    with pytest.raises(InputError, match=r"'y'.*2501 of b\.parquet"):
        train(folder, out=tmp_path / "m.safetensors")
    reading = {"drop": ["kind"], "drop_missing_target": True}
    summary, _ = train(folder, out=tmp_path / "m.safetensors", reading=reading)
    assert summary["rows"] == 2 * ROWS - 1


def test_a_cell_in_another_format_than_the_sample_is_refused_with_row_and_file(tmp_path, monkeypatch, in_blocks):  # noqa: ARG001
    monkeypatch.setattr(large_problem, "_MIN_SAMPLE_ROWS", 1)
    monkeypatch.setattr(LargeTableProblem, "read_blocks", partial(LargeTableProblem.read_blocks, sample_rows=300))
    late = pl.int_range(ROWS) == 2500
    text = pl.when(late).then(pl.lit("1.234.567")).otherwise(pl.col("x1").cast(pl.String))
    file = written(tmp_path, ".csv", table().with_columns(text.alias("x1")))
    with pytest.raises(InputError, match=r"'x1'.*1\.234\.567.*2501 of table\.csv"):
        train(file, out=tmp_path / "m.safetensors")


def test_new_categories_are_reported_with_their_rows(tmp_path, monkeypatch, in_blocks):  # noqa: ARG001
    rows = table().with_columns(
        pl.when(pl.int_range(ROWS) == 2500).then(pl.lit("new")).otherwise("color").alias("color")
    )
    file = written(tmp_path, ".parquet", rows)
    monkeypatch.setattr(large_problem, "_MIN_SAMPLE_ROWS", 1)
    monkeypatch.setattr(LargeTableProblem, "read_blocks", partial(LargeTableProblem.read_blocks, sample_rows=300))
    with pytest.warns(UserWarning, match=r"of table\.parquet: .*'new'"):
        train(file, out=tmp_path / "m.safetensors")


def test_what_needs_all_rows_in_memory_is_refused(tmp_path, in_blocks):  # noqa: ARG001
    file, out = written(tmp_path, ".parquet", table()), tmp_path / "m.safetensors"
    with pytest.raises(InputError, match="certify"):
        train(file, out=out, certify=True)
    with pytest.raises(InputError, match="early_stopping"):
        train(file, out=out, settings=SETTINGS | {"early_stopping": True})
    with pytest.raises(InputError, match="nystrom"):
        train(file, out=out, settings=SETTINGS | {"solver": "gauss-newton"})


def test_a_table_read_in_blocks_is_explained(tmp_path, in_blocks):  # noqa: ARG001
    file = written(tmp_path, ".parquet", table())
    settings = SETTINGS | {"verbose": False}
    found = explain_training(
        file, "y", holdout=0.2, loss="squared_error", settings=settings, reading={"drop": ["kind"]}
    )
    assert (found.summary["rows"], found.summary["held_out_rows"]) == (2400, 600)
    assert [one["name"] for one in found.columns] == ["x0", "x1", "x2", "gaps", "color", "day"]


def test_an_output_in_the_folder_of_the_table_is_refused(tmp_path):
    written(tmp_path, ".parquet", table(100))
    with pytest.raises(InputError, match="parts of the table"):
        train(tmp_path, out=tmp_path / "m.safetensors")


def test_a_resumed_run_that_learns_from_a_sample_is_refused_with_the_reason(tmp_path, monkeypatch, request):
    file, checkpoint = written(tmp_path, ".parquet", table()), Checkpoints(tmp_path / "checkpoints", every=1)
    train(file, out=tmp_path / "m.safetensors", holdout=0.2, checkpoint=checkpoint)
    request.getfixturevalue("in_blocks")
    train(file, out=tmp_path / "m.safetensors", holdout=0.2, checkpoint=replace(checkpoint, resume=True))
    monkeypatch.setattr(large_problem, "_MIN_SAMPLE_ROWS", 1)
    monkeypatch.setattr(LargeTableProblem, "read_blocks", partial(LargeTableProblem.read_blocks, sample_rows=300))
    with pytest.raises(InputError, match=r"at once.*in blocks"):
        train(file, out=tmp_path / "m.safetensors", holdout=0.2, checkpoint=replace(checkpoint, resume=True))


def test_the_memory_decides_how_a_file_is_read(tmp_path, monkeypatch):
    assert not needs_blocks(written(tmp_path, ".parquet", table()), "1M")  # too small for blocks
    monkeypatch.setattr(large_problem, "_ALWAYS_AT_ONCE", 0.0)
    for suffix in (".parquet", ".csv"):
        file = written(tmp_path, suffix, table())
        assert not needs_blocks(file, None)
        assert needs_blocks(file, "1M")
    assert needs_blocks(tmp_path, None)  # a folder
    assert not needs_blocks(tmp_path / "absent.csv", "1M")
    packed = tmp_path / "table.csv.gz"
    packed.write_bytes(bytes(100_000))
    with pytest.raises(InputError, match="decompress"):
        needs_blocks(packed, "1M")


@pytest.mark.parametrize("weights", [{"rare": 7.0}, {"low": 2.0, "rare": 0.5}, "balanced"])
def test_class_weights_of_a_class_outside_the_sample(tmp_path, monkeypatch, weights):
    monkeypatch.setattr(large_problem, "_MIN_SAMPLE_ROWS", 1)
    drawn = np.random.default_rng(0).choice(ROWS, 300, replace=False, shuffle=False)
    others = np.setdiff1d(np.arange(ROWS), drawn)[-40:]
    is_rare = pl.Series(np.isin(np.arange(ROWS), others))
    rows = table().with_columns(pl.when(is_rare).then(pl.lit("rare")).otherwise("kind").alias("kind"))
    file = written(tmp_path, ".parquet", rows)
    problem = LargeTableProblem.read_blocks(RowSource.open(file), "kind", drop=["y"], sample_rows=300)
    kept, _, encoded = problem.split(0.0, 0)
    assert "rare" in problem.classes
    assert not np.isin(others, problem.sample_rows).any()
    model = ShiftedReLUClassifier(600, random_state=0, solver="nystrom", class_weight=weights)
    prepared = model.prepare(encoded[kept], problem.targets(kept))
    labels = rows["kind"].to_numpy()
    expected = compute_sample_weight(weights, labels)
    np.testing.assert_allclose(prepared.weight, expected)
    model.fit_prepared(prepared)
    probabilities = model.predict_proba(encoded[kept])
    assert np.isfinite(probabilities).all()
    assert (labels == np.array(problem.classes)[probabilities.argmax(axis=1)]).mean() > 0.6


_KILLABLE = """
import sys, time
from pathlib import Path
from fireset.commands import train
from fireset.engines import centre_kernel
from fireset.tables import encoded_blocks, large_problem
from fireset.training import pass_state
from fireset.training.checkpoint import Checkpoints

large_problem.needs_blocks = lambda file, memory: True
encoded_blocks._SHARE_OF_MEMORY = 0.0
centre_kernel.BLOCK_ROWS = 256
pass_state._SECONDS = 0.0
folder, out, pause = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
save = pass_state.PassState.save
pass_state.PassState.save = lambda *arguments: (save(*arguments), time.sleep(pause))
train.train_table(
    folder / "table.parquet",
    "y",
    out=out,
    loss="squared_error",
    holdout=0.2,
    settings={"width": 600, "random_state": 0, "solver": "nystrom", "bias": 1.0, "column_scales": None},
    reading={"drop": ["kind"]},
    checkpoint=Checkpoints(folder / "checkpoints", every=1, resume=True),
)
"""


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bits(tmp_path):
    written(tmp_path, ".parquet", table())
    script, killed = tmp_path / "script.py", tmp_path / "killed.safetensors"
    script.write_text(_KILLABLE)

    def start(out: Path, pause: float) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, script, tmp_path, out, str(pause)], cwd=tmp_path)

    def count() -> int:
        return len(list((tmp_path / "checkpoints").glob("pass-*.safetensors")))

    process = start(killed, 0.5)
    while not count() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(1.0)  # some blocks later
    process.kill()
    assert process.wait() < 0
    assert count() == 1
    assert not killed.exists()
    assert start(killed, 0.0).wait() == 0
    assert count() == 0
    whole = tmp_path / "whole.safetensors"
    shutil.rmtree(tmp_path / "checkpoints")
    assert start(whole, 0.0).wait() == 0
    np.testing.assert_array_equal(
        Model.load(killed).estimator.network_.weights, Model.load(whole).estimator.network_.weights
    )


def test_a_target_that_is_nearly_always_missing_is_refused(tmp_path, monkeypatch, in_blocks):  # noqa: ARG001
    """The sample is drawn from all rows, and would hold next to no row with a target."""
    few = partial(LargeTableProblem.read_blocks, sample_rows=300)
    monkeypatch.setattr(LargeTableProblem, "read_blocks", few)
    rows = table().with_columns(pl.when(pl.int_range(pl.len()) % 60 == 0).then(pl.col("y")).alias("y"))
    file = written(tmp_path, ".parquet", rows)
    reading = {"drop": ["kind"], "drop_missing_target": True}
    with pytest.raises(InputError, match="target"):
        train(file, out=tmp_path / "model.safetensors", reading=reading)


def test_large_files_are_not_in_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert mapped_file._folder() == str(tmp_path)
    monkeypatch.delenv("TMPDIR")
    assert mapped_file._folder() in ("/var/tmp", tempfile.gettempdir())  # the second if the first is not writable


def test_an_array_in_a_file_keeps_its_numbers():
    array = mapped_empty((1000, 7), np.float32)
    assert array.flags.writeable
    assert array.flags.c_contiguous
    assert not array.any()
    array[:] = np.arange(7000).reshape(1000, 7)
    release_pages(array)
    np.testing.assert_array_equal(array, np.arange(7000).reshape(1000, 7))
    assert mapped_empty((0, 3), np.float64).shape == (0, 3)


def test_a_full_disk_is_an_error_before_anything_is_written():
    with pytest.raises(InputError, match="TMPDIR"):
        mapped_empty((1 << 50,), np.float64)
