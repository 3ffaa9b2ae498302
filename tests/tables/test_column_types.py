"""Column types: a table for each, and one from another package."""

import datetime
import json
import textwrap

import numpy as np
import onnxruntime
import polars as pl
import pytest

import fireset
from fireset import ShiftedReLURegressor
from fireset._util.onnx_graph import Graph
from fireset._util.registry import Registry
from fireset.tables.column_types import registry
from fireset.tables.column_types.base import ColumnType, TrainingColumn
from fireset.tables.column_types.registry import COLUMN_TYPES, learn_column, restore_column
from fireset.tables.reader import read_cells

DAYS = [datetime.date(2020, 1, 1) + datetime.timedelta(days=17 * k) for k in range(60)]
COLUMNS = {
    "ordered": [pl.Series("a", ["low", "high", "mid"] * 20, dtype=pl.Enum(["low", "mid", "high"]))],
    "date": [pl.Series("a", DAYS), pl.Series("a", [f"{day:%d.%m.%Y}" for day in DAYS])],
    "number": [
        pl.Series("a", np.arange(60.0) ** 2),
        pl.Series("a", [True, False] * 30),
        pl.Series("a", [f"{k},5 €" for k in range(60)]),
        pl.Series("a", [datetime.timedelta(hours=k) for k in range(60)]),
    ],
    "category": [pl.Series("a", ["x", "y", "7"] * 20), pl.Series("a", [f"c{k % 50}" for k in range(60)])],
}
CASES = [(kind, series) for kind, found in COLUMNS.items() for series in found]


def learn(series: pl.Series, **options) -> ColumnType:
    from fireset.tables.text_formats import learn_formats

    formats = learn_formats([series] if series.dtype == pl.String else []).columns
    return learn_column(TrainingColumn(series, text_format=formats.get("a"), **options))


def test_every_type_of_the_package_has_a_case():
    assert set(COLUMNS) == set(COLUMN_TYPES)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(("kind", "series"), CASES)
def test_contract(kind, series, missing):
    """Features, stored form and description of a column agree, with and without missing cells."""
    if missing:
        series = series.set(pl.Series(np.arange(60) % 7 == 0), None)
    column = learn(series)
    assert column.kind == kind
    assert column.accepts_missing
    features, notes = column.encode(series)
    assert features.shape == (60, len(column.feature_names))
    assert np.isfinite(features).all()
    assert not notes
    assert restore_column(json.loads(json.dumps(column.to_dict()))) == column
    assert column.describe(series).get("missing", 0) == series.null_count()
    assert (column.unexpected_missing is None) == missing


@pytest.mark.parametrize(("kind", "series"), CASES)
def test_columns_without_imputation_refuse_missing_cells(kind, series):
    column = learn(series, impute=False)
    assert column.kind == kind
    assert not column.accepts_missing
    assert restore_column(column.to_dict()) == column


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(("kind", "series"), CASES)
def test_onnx_nodes_compute_the_features(kind, series, missing):
    if missing:
        series = series.set(pl.Series(np.arange(60) % 7 == 0), None)
    column = learn(series)
    if column.onnx_dtype is object:
        cells = series.cast(pl.String).fill_null("").to_numpy().astype(object)
    else:
        cells = column.numbers(series)  # pyright: ignore[reportAttributeAccessIssue]
    graph = Graph()
    value = column.to_onnx(graph, graph.input("a", column.onnx_dtype, 1))
    graph.output(value, "features", np.float64, len(column.feature_names))
    session = onnxruntime.InferenceSession(graph.model(kind, {}).SerializeToString())
    found = np.asarray(session.run(None, {"a": cells[:, None]})[0])
    np.testing.assert_array_equal(found, column.encode(series)[0])


def test_durations_as_categories():
    series = pl.Series("a", [datetime.timedelta(hours=12), datetime.timedelta(0)] * 5)
    assert learn(series, categorical=True).feature_names == ["a=0", "a=0.5"]


SOURCE = '''
"""IPv4 addresses as the bits of their first octet."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from fireset.tables.column_types.base import ColumnType, check_keys, check_stored

_PATTERN = r"^(\\d{1,3})\\.\\d{1,3}\\.\\d{1,3}\\.\\d{1,3}$"


@dataclass(frozen=True)
class AddressColumn(ColumnType):
    name: str
    fill: int

    kind = "address"

    @classmethod
    def learn(cls, column):
        series = column.series
        if series.dtype != pl.String or not series.drop_nulls().str.contains(_PATTERN).all():
            return None
        return cls(column.name, int(_octets(series).drop_nulls().median()))

    @property
    def feature_names(self):
        return [f"{self.name} bit {k}" for k in range(8)]

    @property
    def accepts_missing(self):
        return True

    def encode(self, series):
        octets = _octets(series.cast(pl.String)).fill_null(self.fill).to_numpy()
        return (octets[:, None] >> np.arange(8) & 1).astype(np.float64), []

    def describe(self, series):
        return {"name": self.name, "kind": self.kind, "missing": series.null_count(), "filled_with": self.fill}

    def to_dict(self):
        return {"kind": self.kind, "name": self.name, "fill": self.fill}

    @classmethod
    def restore(cls, stored):
        check_keys(stored, ["fill"])
        fill = stored["fill"]
        check_stored(type(fill) is int and 0 <= fill < 256, "'fill' must be an octet", fill)
        return cls(stored["name"], fill)

    def to_onnx(self, graph, cells):
        missing = graph.add("IsNaN", cells, name="missing")
        cells = graph.add("Where", missing, graph.constant("fill", self.fill), cells, name="octets")
        powers = graph.constant("powers", [2.0**k for k in range(8)])
        shifted = graph.add("Floor", graph.add("Div", cells, powers, name="shifted"), name="whole")
        return graph.add("Mod", shifted, graph.constant("two", 2.0), name="bits", fmod=1)


def _octets(text):
    return text.str.extract(_PATTERN, 1).cast(pl.Int64)
'''


@pytest.fixture
def address_type(tmp_path, monkeypatch) -> None:
    """Install a package with a column type and its entry point."""
    folder = tmp_path / "site"
    about = folder / "addresses-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "addresses.py").write_text(textwrap.dedent(SOURCE), encoding="utf-8")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: addresses\nVersion: 1.0\n", encoding="utf-8")
    entry_points = "[fireset.column_types]\naddress = addresses:AddressColumn\n"
    (about / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    fresh = Registry("fireset.column_types", registry._BUILT_IN, name_attribute="kind")
    monkeypatch.setattr(registry, "COLUMN_TYPES", fresh)


@pytest.mark.usefixtures("address_type")
def test_a_type_of_another_package(run, tmp_path):
    """One file: train, save, load, predict and export with it, in Python and on the command line."""
    rng = np.random.default_rng(0)
    octets = rng.integers(0, 256, 200)
    addresses = [None if k % 25 == 0 else f"{octet}.0.0.{k % 9}" for k, octet in enumerate(octets)]
    table = pl.DataFrame({"from": addresses, "size": rng.standard_normal(200), "y": (octets >> 7) + 0.5})
    features, y = table.drop("y"), table["y"].to_numpy()
    model = ShiftedReLURegressor(width=300, dtype="float64", random_state=0).fit(features, y)
    assert [column.kind for column in model.encoder_.columns] == ["address", "number"]
    assert len(model.encoder_.feature_names) == 9

    fireset.save(model, tmp_path / "model")
    predictions = fireset.load(tmp_path / "model").predict(features)
    np.testing.assert_array_equal(predictions, model.predict(features))
    session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString())
    cells = np.where([address is None for address in addresses], np.nan, octets)[:, None]
    exported = np.asarray(session.run(None, {"from": cells, "size": table["size"].to_numpy()[:, None]})[0])
    np.testing.assert_allclose(exported, predictions, rtol=0, atol=1e-8)

    csv, saved = tmp_path / "table.csv", tmp_path / "saved"
    table.write_csv(csv)
    code, _, error = run("train", csv, "--target", "y", "--out", saved, "--width", 300)
    assert code == 0
    assert "1 address, 1 number" in error
    assert run("predict", saved, csv, "--out", tmp_path / "p.csv")[0] == 0
    expected = fireset.load(saved).predict(read_cells(csv).drop("y"))
    np.testing.assert_allclose(pl.read_csv(tmp_path / "p.csv")["prediction"].to_numpy(), expected, rtol=1e-6)
    assert run("export", saved, tmp_path / "model.onnx")[0] == 0
