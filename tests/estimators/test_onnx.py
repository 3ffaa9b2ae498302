"""Exported graphs, run by onnxruntime, give the predictions of the estimator."""

import builtins
import datetime
import json

import numpy as np
import onnx
import onnxruntime
import polars as pl
import pytest
from scipy.sparse import csr_array

import fireset
from fireset import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset._util import onnx_graph
from fireset.distributed.shard import NetworkShard
from fireset.distributed.worker_grid import current_grid
from fireset.training.losses import Quantile, SquaredError
from support.fixed_settings import FIXED

# Tolerance relative to the spread of the outputs. A float32 network rounds each neuron, and outputs are κ/√m times
# their sum. With κ = 1000, the default, graph and estimator each differ from the exact sum by 1e-4.
CLOSE = {"float32": 3e-4, "float64": 1e-9}


def run_graph(model, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Check a graph with inference of shapes, and return its outputs."""
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # spinning threads would slow down the next fit
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, inputs)]


def inputs_of(estimator, table: pl.DataFrame) -> dict[str, np.ndarray]:
    """Return the inputs that docs/export.md specifies."""
    found = {}
    for column in estimator.encoder_.columns:
        cells = table[column.name]
        if cells.dtype == pl.String:
            cells = cells.fill_null("").to_numpy().astype(object)
        elif cells.dtype.is_temporal():
            cells = (cells.dt.timestamp("us") / 86_400e6).fill_null(np.nan).to_numpy()
        else:
            cells = cells.cast(pl.Float64).fill_null(np.nan).to_numpy()
        found[column.name] = cells[:, None].copy()
    return found


def assert_same(estimator, X, inputs: dict[str, np.ndarray], dtype: str = "float64") -> None:
    """Compare all numbers, and labels where the two largest probabilities differ."""
    found = run_graph(estimator.to_onnx(), inputs)
    if isinstance(estimator, ShiftedReLURegressor):
        expected = estimator.predict(X)
        assert found[0].shape == expected.shape
        assert found[0].dtype == np.float64
        np.testing.assert_allclose(found[0], expected, rtol=0, atol=CLOSE[dtype] * expected.std())
        return
    expected = estimator.predict_proba(X)
    label, p = found
    np.testing.assert_allclose(p, expected, rtol=0, atol=10 * CLOSE[dtype])  # the logistic slope
    apart = np.diff(np.sort(expected, axis=1)[:, -2:])[:, 0] > 20 * CLOSE[dtype]
    assert apart.mean() > 0.9
    assert label[apart].tolist() == estimator.predict(X)[apart].tolist()


def an_array(n: int = 300) -> np.ndarray:
    """Return features that are skewed, have missing cells, have few values, and are constant."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 5))
    X[:, 1] = np.exp(2 * X[:, 1])
    X[rng.random((n, 5)) < 0.05] = np.nan
    X[:, 3] = rng.integers(0, 4, n)
    X[:, 4] = 2.0
    return X


def a_table(n: int = 240) -> pl.DataFrame:
    rng = np.random.default_rng(1)
    hours = rng.integers(-100_000, 400_000, n).tolist()  # from 1958 on
    towns = ["Rome", "Oslo", "7", "true", "Bône"]
    return pl.DataFrame(
        {
            "built": [
                None if h % 19 == 0 else datetime.datetime(1970, 1, 1) + datetime.timedelta(hours=h) for h in hours
            ],
            "town": [None if i % 11 == 0 else towns[i % 5] for i in range(n)],
            "code": [f"c{i % 7 if i % 3 else i}" for i in range(n)],  # many of them rare
            "rooms": [None if i % 13 == 0 else i % 7 for i in range(n)],
            "sold": [i % 3 == 0 for i in range(n)],
            "an income, €": np.exp(rng.standard_normal(n)),
        }
    )


def target_of(table: pl.DataFrame) -> np.ndarray:
    """Return a target that depends on the table."""
    return table["an income, €"].to_numpy() + 2.0 * (table["town"] == "Rome").fill_null(False).to_numpy()


# Arrays


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("solver", ["gauss-newton", "gradient"])
@pytest.mark.filterwarnings("ignore:training stopped")
def test_regression_on_an_array_with_missing_cells(dtype, solver):
    X = an_array()
    estimator = ShiftedReLURegressor(width=1000, solver=solver, max_iter=20, dtype=dtype, random_state=0)
    estimator.fit(X, np.nan_to_num(X[:, 0]) + X[:, 3])
    assert estimator.sphere_.columns.quantile_maps
    rng = np.random.default_rng(2)
    new = np.vstack([X, X * 100, X + rng.standard_normal(X.shape), [[np.nan] * 5]])
    assert_same(estimator, new, {"X": new}, dtype)


def test_the_column_map_is_bitwise_equal_at_the_knots():
    """At, between and beyond the knots of quantile maps."""
    X = an_array()
    estimator = ShiftedReLURegressor(width=20, random_state=0, dtype="float64", **FIXED).fit(X, X[:, 3])
    first = estimator.sphere_.columns.quantile_maps[0]
    middles = (first.knots[1:] + first.knots[:-1]) / 2
    points = np.concatenate([first.knots, middles, np.nextafter(first.knots, 1e9), np.nextafter(first.knots, -1e9)])
    points = np.concatenate([points, [-1e100, 1e100]])
    new = np.tile(np.nan_to_num(X[0]), (len(points), 1))
    new[:, first.column] = points
    model = estimator.to_onnx()
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.DOUBLE, ["rows", None]))
    z = run_graph(model, {"X": new})[-1]
    np.testing.assert_array_equal(z, estimator.sphere_.columns(estimator._rows(new)))


def test_several_targets():
    X = an_array()
    y = np.stack([X[:, 3], 1e6 * X[:, 3] - np.nan_to_num(X[:, 0])], axis=1)
    estimator = ShiftedReLURegressor(width=300, random_state=0, dtype="float64", **FIXED).fit(X, y)
    assert_same(estimator, X, {"X": X})
    one = ShiftedReLURegressor(width=300, random_state=0, dtype="float64", **FIXED).fit(X, y[:, :1])
    assert run_graph(one.to_onnx(), {"X": X})[0].shape == (len(X), 1)


@pytest.mark.parametrize(
    "loss", ["absolute_error", "huber", "poisson", pytest.param("quantile", marks=pytest.mark.slow), Quantile(0.7)]
)
def test_other_losses(loss):
    X = an_array()
    estimator = ShiftedReLURegressor(width=1000, loss=loss, random_state=0, dtype="float64", **FIXED).fit(X, X[:, 3])
    assert_same(estimator, X, {"X": X})
    X[0, 0] = np.inf
    assert np.isnan(run_graph(estimator.to_onnx(), {"X": X[:1]})[0]).all()


@pytest.mark.slow
def test_crossing_quantiles_are_sorted():
    X = an_array()
    estimator = ShiftedReLURegressor(width=300, loss="quantile", random_state=0, dtype="float64", **FIXED).fit(
        X, X[:, 3]
    )
    estimator.network_.output_weights[:] = estimator.network_.output_weights[:, ::-1].copy()
    crossing = estimator._outputs(X)
    assert (np.diff(crossing, axis=1) < 0).any()
    assert_same(estimator, X, {"X": X})


def test_more_columns_than_rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 600)) + rng.normal(0, 0.3, (40, 600))
    estimator = ShiftedReLURegressor(width=200, random_state=0, dtype="float64", **FIXED).fit(X[:20], X[:20, 0])
    assert estimator.network_.n_features == 22
    assert_same(estimator, X, {"X": X})


def test_a_fit_on_sparse_rows_takes_arrays():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 6)) * (rng.random((200, 6)) < 0.3)
    estimator = ShiftedReLURegressor(width=300, random_state=0, dtype="float64", **FIXED).fit(csr_array(X), X[:, 0])
    assert_same(estimator, X, {"X": X})


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("loss", ["squared_error", "log_loss"])
@pytest.mark.parametrize("kind", [str, int])
def test_classification(classes, loss, kind):
    X = an_array()
    labels = np.array([kind(3 * k - 1) for k in range(classes)])
    y = labels[(np.nan_to_num(X[:, 0]) > 0) + X[:, 3].astype(int) if classes == 5 else (X[:, 3] > 1).astype(int)]
    estimator = ShiftedReLUClassifier(width=2000, loss=loss, dtype="float64", random_state=0).fit(X, y)
    assert_same(estimator, X, {"X": X})
    label, p = run_graph(estimator.to_onnx(), {"X": X})
    assert label.dtype == (object if kind is str else np.int64)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)


@pytest.mark.parametrize("labels", [[False, True], [1.0, 2.0], np.array(["no", "yes"], object)])
def test_labels_keep_their_type(labels):
    X = an_array()
    y = np.asarray(labels)[(X[:, 3] > 1).astype(int)]
    estimator = ShiftedReLUClassifier(width=100, random_state=0, **FIXED).fit(X, y)
    label, _ = run_graph(estimator.to_onnx(), {"X": X})
    assert label.dtype == y.dtype
    assert np.mean(label == estimator.predict(X)) > 0.99


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows):
    X = an_array()
    estimator = ShiftedReLURegressor(width=50, random_state=0, **FIXED).fit(X, X[:, 3])
    assert run_graph(estimator.to_onnx(), {"X": X[:rows]})[0].shape == (rows,)


def test_an_output_layer_of_real_numbers():
    X = an_array()
    estimator = ShiftedReLURegressor(width=50, random_state=0, dtype="float64", **FIXED).fit(X, X[:, 3])
    estimator.network_.output_weights[:] *= np.linspace(0.5, 2.0, 50)[:, None]
    assert_same(estimator, X, {"X": X})


# Tables


@pytest.mark.parametrize("estimator_class", [ShiftedReLURegressor, ShiftedReLUClassifier])
def test_a_table_with_all_types_of_columns(estimator_class):
    """Missing and unknown cells, rare categories, dates before 1970."""
    table = a_table()
    y = target_of(table)
    y = y if estimator_class is ShiftedReLURegressor else np.digitize(y, [0.5, 1.0, 2.0])
    estimator = estimator_class(width=400, random_state=0, dtype="float64").fit(table, y)
    kinds = {type(column).__name__ for column in estimator.encoder_.columns}
    assert kinds == {"NumberColumn", "DateColumn", "CategoryColumn"}
    assert any(getattr(column, "other", False) for column in estimator.encoder_.columns)
    assert_same(estimator, table, inputs_of(estimator, table))
    new = table.with_columns(
        pl.lit("nowhere").alias("town"),
        pl.lit("c999").alias("code"),
        pl.lit(None, pl.Float64).alias("an income, €"),
    )
    with pytest.warns(UserWarning, match="not seen in training|missing cells in columns"):
        assert_same(estimator, new, inputs_of(estimator, new))


def test_categories_that_are_numbers_or_booleans_have_two_texts():
    table = a_table()
    estimator = ShiftedReLURegressor(width=50, random_state=0).fit(table, target_of(table))
    model, one = estimator.to_onnx(), inputs_of(estimator, table[:1])
    results = {}
    for text in ("7", "7.0", "true", "True", "", "(missing)", "unheard of", "Unheard of"):
        results[text] = float(run_graph(model, one | {"town": np.array([[text]], object)})[0][0])
    assert results["7"] == results["7.0"]
    assert results["true"] == results["True"]
    assert results[""] == results["(missing)"]
    assert results["unheard of"] == results["Unheard of"]
    assert len(set(results.values())) == 4


def test_the_empty_text_may_be_a_category():
    table = pl.DataFrame({"word": ["", "a", None, "b"] * 20, "x": np.random.default_rng(0).standard_normal(80)})
    y = (table["word"] == "").fill_null(False).cast(pl.Float64).to_numpy()
    estimator = ShiftedReLURegressor(width=200, random_state=0, dtype="float64", **FIXED).fit(table, y)
    assert estimator.encoder_.columns[0].categories == ("", "(missing)", "a", "b")
    given = {"word": table["word"].fill_null("(missing)").to_numpy().astype(object)[:, None]}
    assert_same(estimator, table, inputs_of(estimator, table) | given)


def test_columns_named_like_values_of_the_graph():
    """A column named like an output, one named like an inner value, and one without a name."""
    rng = np.random.default_rng(0)
    table = pl.DataFrame(rng.standard_normal((60, 4)), ["prediction", "z", "", "weights"])
    estimator = ShiftedReLURegressor(width=50, random_state=0, dtype="float64", **FIXED).fit(
        table, rng.standard_normal(60)
    )
    model = estimator.to_onnx()
    inputs = {name or "unnamed": table[name].to_numpy()[:, None] for name in table.columns}
    found = run_graph(model, inputs)[0]
    np.testing.assert_allclose(found, estimator.predict(table), rtol=0, atol=1e-9)
    assert [value.name for value in model.graph.output] == ["prediction_"]


def test_refused_cells_give_nan():
    """Cells for which the estimator raises an error."""
    table = a_table().drop_nulls()
    estimator = ShiftedReLURegressor(width=50, missing="error", random_state=0, **FIXED).fit(table, target_of(table))
    inputs = inputs_of(estimator, table[:6])
    inputs["town"][0], inputs["built"][1], inputs["rooms"][2], inputs["rooms"][3] = "", np.nan, np.nan, np.inf
    found = run_graph(estimator.to_onnx(), inputs)[0]
    assert np.isnan(found).tolist() == [True, True, True, True, False, False]
    np.testing.assert_allclose(found[4:], estimator.predict(table[4:6]), atol=1e-3)


def test_metadata():
    table = a_table()
    estimator = ShiftedReLURegressor(width=50, random_state=0, **FIXED).fit(table, target_of(table))
    model = estimator.to_onnx(target="price")
    assert (model.producer_name, model.producer_version) == ("fireset", fireset.__version__)
    metadata = {prop.key: prop.value for prop in model.metadata_props}
    assert (metadata["task"], metadata["target"]) == ("regression", "price")
    assert json.loads(metadata["feature_names"]) == estimator.encoder_.feature_names
    kinds = {one["input"]: one["kind"] for one in json.loads(metadata["inputs"])}
    assert kinds["built"] == "date"
    assert kinds["town"] == "category"
    assert kinds["rooms"] == kinds["sold"] == "number"
    assert {opset.domain: opset.version for opset in model.opset_import} == {"": 17, "ai.onnx.ml": 3}
    assert model.ir_version == 8


def test_weights_are_stored_once_in_their_precision():
    X = an_array()
    estimator = ShiftedReLURegressor(width=4000, random_state=0, **FIXED).fit(X, X[:, 3])
    network = estimator.network_
    size = len(estimator.to_onnx().SerializeToString())
    assert size < network.weights.nbytes + network.output_weights.nbytes + 40_000


# Errors


def test_unfitted_estimators_are_refused():
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        ShiftedReLURegressor().to_onnx()


def test_networks_that_are_too_large_are_refused(monkeypatch):
    X = an_array()
    estimator = ShiftedReLURegressor(width=1000, random_state=0, **FIXED).fit(X, X[:, 3])
    monkeypatch.setattr(onnx_graph, "MAX_CONSTANT_BYTES", 10_000)
    with pytest.raises(ValueError, match=r"GB.*width"):
        estimator.to_onnx()


def test_a_shard_of_a_network_is_refused():
    X = an_array()
    estimator = ShiftedReLURegressor(width=50, random_state=0, **FIXED).fit(X, X[:, 3])
    estimator.network_ = NetworkShard.of(estimator.network_, current_grid())
    with pytest.raises(ValueError, match="network"):
        estimator.to_onnx()


@pytest.mark.parametrize("labels", [[2**63, 2**63 + 1], [b"a", b"b"]])
def test_labels_of_unsupported_types_are_refused(labels):
    X = an_array()
    estimator = ShiftedReLUClassifier(width=50, random_state=0, **FIXED).fit(X, X[:, 3] > 1)
    estimator.classes_ = np.array(labels)
    with pytest.raises(ValueError, match="classes"):
        estimator.to_onnx()


def test_links_that_export_does_not_know_are_refused():
    class SquaresError(SquaredError):
        def predictions(self, u):
            return u**2

    X = an_array()
    estimator = ShiftedReLURegressor(width=50, loss=SquaresError(), random_state=0, **FIXED).fit(X, X[:, 3])
    with pytest.raises(ValueError, match=r"`loss`.*got squared_error"):
        estimator.to_onnx()


def test_export_without_onnx_names_the_package(monkeypatch):
    X = an_array()
    estimator = ShiftedReLURegressor(width=50, random_state=0, **FIXED).fit(X, X[:, 3])
    imported = builtins.__import__

    def without_onnx(name, *rest):
        if name.partition(".")[0] == "onnx":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_onnx)
    with pytest.raises(ValueError, match=r"pip install 'fireset\[onnx\]'"):
        estimator.to_onnx()


# The command


def test_from_a_csv_file_to_predictions(run, tmp_path):
    table = a_table().with_columns(price=pl.Series(target_of(a_table())))
    table.write_csv(tmp_path / "houses.csv")
    model, out = tmp_path / "houses.safetensors", tmp_path / "houses.onnx"
    settings = ("--width", 300, "--dtype", "float64", "--quiet", "--holdout", 0)
    assert run("train", tmp_path / "houses.csv", "--target", "price", "--out", model, *settings)[0] == 0
    code, shown, error = run("export", model, out)
    assert (code, error) == (0, "")
    assert "prediction" in shown
    assert run("predict", model, tmp_path / "houses.csv", "--out", tmp_path / "p.csv")[0] == 0
    expected = pl.read_csv(tmp_path / "p.csv")["prediction"].to_numpy()
    found = run_graph(onnx.load(out), inputs_of(fireset.load(model), table))[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def refused(run, *arguments) -> str:
    code, shown, error = run("export", *arguments)
    assert code == 2
    assert shown == ""
    assert len(error.splitlines()) == 1
    return error


def test_unsuitable_files_are_refused_with_one_line(run, tmp_path):
    good, plain, out = tmp_path / "good", tmp_path / "plain", tmp_path / "model.onnx"
    estimator = ShiftedReLURegressor(width=300, random_state=0, **FIXED).fit(np.eye(5), np.arange(5.0))
    fireset.save(estimator, good)
    estimator.network_.save(plain)
    assert "model.pb" in refused(run, good, tmp_path / "model.pb")
    assert "none.safetensors" in refused(run, tmp_path / "none.safetensors", out)
    assert "plain" in refused(run, plain, out)
    assert "nowhere" in refused(run, good, tmp_path / "nowhere" / "model.onnx")
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(good.read_bytes()[:-100])
    assert "damaged.safetensors" in refused(run, damaged, out)
    same = tmp_path / "same.onnx"
    same.write_bytes(good.read_bytes())
    assert "would overwrite" in refused(run, same, same)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "damaged.safetensors",
        "good",
        "plain",
        "same.onnx",
    ]


class TestOrderedCategories:
    """Positions of levels, with and without missing cells in training."""

    levels = ("low", "medium", "high", "never seen")

    def table(self, missing: bool) -> pl.DataFrame:
        rng = np.random.default_rng(3)
        cells = [self.levels[k] for k in rng.integers(0, 3, 200)]
        cells = [None if missing and k % 9 == 0 else cell for k, cell in enumerate(cells)]
        sizes = [str(k) for k in rng.integers(0, 4, 200)]
        return pl.DataFrame(
            {
                "risk": pl.Series(cells, dtype=pl.Enum(self.levels)),
                "size": pl.Series(sizes, dtype=pl.Enum(["0", "1", "2", "3"])),
                "x": rng.standard_normal(200),
            }
        )

    @pytest.mark.parametrize("missing", [False, True])
    @pytest.mark.parametrize("estimator_class", [ShiftedReLURegressor, ShiftedReLUClassifier])
    def test_predictions(self, estimator_class, missing):
        table = self.table(missing)
        y = table["risk"].to_physical().fill_null(1).to_numpy() + table["x"].to_numpy()
        y = y if estimator_class is ShiftedReLURegressor else np.digitize(y, [0.0, 1.0])
        estimator = estimator_class(width=300, random_state=0, dtype="float64", **FIXED).fit(table, y)
        assert [type(column).__name__ for column in estimator.encoder_.columns[:2]] == ["OrderedColumn"] * 2
        texts = table.with_columns(pl.col("risk", "size").cast(pl.String))
        assert_same(estimator, table, inputs_of(estimator, texts))

    def test_unexpected_missing_cells_and_levels_without_rows(self):
        table = self.table(False)
        estimator = ShiftedReLURegressor(width=300, random_state=0, dtype="float64", **FIXED).fit(
            table, table["x"].to_numpy()
        )
        new = table[:3].with_columns(pl.Series("risk", [None, "never seen", "low"], dtype=pl.Enum(self.levels)))
        texts = new.with_columns(pl.col("risk", "size").cast(pl.String))
        with pytest.warns(UserWarning, match="missing cells"):
            assert_same(estimator, new, inputs_of(estimator, texts))

    def test_whole_numbers_have_two_texts_and_unknown_levels_give_nan(self):
        table = self.table(True)
        estimator = ShiftedReLURegressor(width=50, random_state=0, **FIXED).fit(table, table["x"].to_numpy())
        model = estimator.to_onnx()
        one = inputs_of(estimator, table[1:2].with_columns(pl.col("risk", "size").cast(pl.String)))

        def predicted(column: str, text: str) -> float:
            return float(run_graph(model, one | {column: np.array([[text]], object)})[0][0])

        assert predicted("size", "2") == predicted("size", "2.0")
        assert np.isfinite(predicted("risk", ""))
        assert np.isnan(predicted("risk", "enormous"))  # the estimator refuses it
