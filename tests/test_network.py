"""The network: thresholds, wrong arguments, predictions and fire sets compared with the formulas, files."""

import tracemalloc
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings

from fireset import InputError, ShiftedReLUNetwork
from fireset.kernels.firing import deciding_dot
from support.checks import sphere
from support.problems import Problem, hard_cases, problems


def small(dtype="float64", **options) -> ShiftedReLUNetwork:
    return ShiftedReLUNetwork.initialize(**{"width": 40, "n_features": 3, "dtype": dtype, **options})


def direct(network: ShiftedReLUNetwork, X: np.ndarray) -> np.ndarray:
    """Return f(x) by the formula of the paper, with an (n, m) array."""
    pre = X @ network.weights.T - network.threshold
    return np.maximum(pre, 0.0) @ network.output_weights / sqrt(network.width)


# Thresholds


def test_threshold_is_the_papers_by_default():
    assert small(width=1000).threshold == sqrt(0.4 * log(1000))
    assert small(width=1000, alpha=0.2).threshold == pytest.approx(sqrt(0.4 * log(1000)), rel=1e-15)


@pytest.mark.parametrize("alpha", [0, 0.5, 0.9, 1.0])
def test_threshold_from_alpha(alpha):
    assert small(width=500, alpha=alpha).threshold == pytest.approx(sqrt(0.5 * (1 - alpha) * log(500)))


def test_a_given_threshold_is_rounded_to_the_precision_of_the_weights():
    assert small(threshold=-0.3).threshold == -0.3
    assert small("float32", threshold=0.1).threshold == float(np.float32(0.1))
    assert small(threshold=2).threshold == 2.0


# Wrong arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 1}, "width.*2, got 1"),
        ({"width": "a"}, "width.*2, got 'a'"),
        ({"width": 10.0}, "width.*2, got 10.0"),
        ({"width": True}, "width.*2, got True"),
        ({"n_features": 0}, "n_features.*1, got 0"),
        ({"n_features": None}, "n_features.*1, got None"),
        ({"n_outputs": 0}, "n_outputs.*1, got 0"),
        ({"seed": -1}, "seed.*0, got -1"),
        ({"seed": 0.5}, "seed.*0, got 0.5"),
        ({"seed": 2**64}, "seed.*got 18446744073709551616"),
        ({"dtype": "int8"}, "dtype.*got 'int8'"),
        ({"dtype": "float16"}, "dtype.*got 'float16'"),
        ({"dtype": "1_000"}, "dtype.*got '1_000'"),
        ({"dtype": "double-ish"}, "dtype.*got 'double-ish'"),
        ({"alpha": 2}, "alpha.*got 2"),
        ({"alpha": -0.1}, "alpha.*got -0.1"),
        ({"alpha": float("nan")}, "alpha.*got nan"),
        (
            {"alpha": 0.2, "threshold": 1.0},
            "threshold=1.0.*alpha=0.2",
        ),
        ({"threshold": "high"}, "threshold.*got 'high'"),
        ({"threshold": float("nan")}, "threshold.*got nan"),
        ({"threshold": float("inf")}, "threshold.*got inf"),
        (
            {"threshold": -1e155, "dtype": "float64"},
            r"threshold.*1e\+150.*got -1e\+155",
        ),
    ],
    ids=str,
)
def test_initialize_raises(options, message):
    with pytest.raises(InputError, match=message):
        small(**options)


@pytest.mark.parametrize(
    ("weights", "output_weights", "threshold", "message"),
    [
        (
            np.ones((3, 2), int),
            np.ones((3, 1)),
            0.0,
            "weights.*got int64",
        ),
        (np.ones(3), np.ones((3, 1)), 0.0, r"weights.*got \(3,\)"),
        (
            np.ones((1, 2)),
            np.ones((1, 1)),
            0.0,
            r"weights.*got \(1, 2\)",
        ),
        (
            np.ones((3, 0)),
            np.ones((3, 1)),
            0.0,
            r"weights.*got \(3, 0\)",
        ),
        (np.ones((3, 2)), np.ones(3), 0.0, r"output_weights.*got \(3,\)"),
        (np.ones((3, 2)), np.ones((4, 1)), 0.0, r"output_weights.*got \(4, 1\)"),
        (np.ones((3, 2)), np.ones((3, 0)), 0.0, r"output_weights.*got \(3, 0\)"),
        (np.ones((3, 2)), np.ones((3, 1)), np.nan, "threshold.*got nan"),
        (np.ones((3, 2)), np.ones((3, 1)), -np.inf, "threshold.*got -inf"),
    ],
)
def test_constructor_raises(weights, output_weights, threshold, message):
    with pytest.raises(InputError, match=message):
        ShiftedReLUNetwork(weights, output_weights, threshold)


def test_weights_must_be_finite():
    with pytest.raises(InputError, match=r"^weights .*finite"):
        ShiftedReLUNetwork(np.full((3, 2), np.nan), np.ones((3, 1)), 0.0)


def test_output_weights_must_be_finite():
    with pytest.raises(InputError, match=r"^output_weights .*finite"):
        ShiftedReLUNetwork(np.ones((3, 2)), np.full((3, 1), np.inf), 0.0)


def test_threshold_must_be_finite_in_float32():
    with pytest.raises(InputError, match=r"threshold.*float32, got 1e\+300"):
        small("float32", threshold=1e300)


@pytest.mark.parametrize("options", [{"threshold": None}, {"alpha": "a"}], ids=str)
def test_errors_name_the_argument(options):
    with pytest.raises(InputError, match=next(iter(options))):
        small(**options)


def test_wrong_rows():
    network = small()
    rows = np.ones((4, 3))
    with pytest.raises(InputError, match=r"^X .*got \(4, 2\)"):
        network.predict(rows[:, :2])
    with pytest.raises(InputError, match=r"^X .*got \(3,\)"):
        network.predict(rows[0])
    with pytest.raises(InputError, match=r"^X "):
        network.predict([["a", "b", "c"]])
    with pytest.raises(InputError, match=r"^X "):
        network.predict([[1.0, 2.0, 3.0], [1.0]])
    rows[2, 1] = np.nan
    with pytest.raises(InputError, match=r"X.* nan .*row 2, column 1"):
        network.predict(rows)
    rows[2, 1] = -np.inf
    with pytest.raises(InputError, match=r"X.* -inf .*row 2, column 1"):
        network.fire_sets(rows)


# Predictions and fire sets


@pytest.mark.parametrize("case", hard_cases())
def test_predict_equals_the_formula(case):
    problem = hard_cases()[case]
    network = problem.network()
    found = network.predict(problem.X)
    assert found.dtype == np.float64
    assert found.shape == problem.y.shape
    np.testing.assert_allclose(found, direct(network, problem.X), rtol=1e-12, atol=1e-12)


@settings(max_examples=30)
@given(problems())
def test_predict_equals_the_formula_on_random_problems(problem: Problem):
    network = problem.network()
    np.testing.assert_allclose(network.predict(problem.X), direct(network, problem.X), rtol=1e-12, atol=1e-12)


def test_predict_in_float32_equals_the_formula_up_to_rounding():
    problem = hard_cases()["several outputs"]
    network = problem.network("float32")
    exact = direct(problem.network(), problem.X)
    np.testing.assert_allclose(network.predict(problem.X), exact, rtol=0, atol=1e-5)


def test_small_tiles_change_nothing(monkeypatch):
    """Several tiles in both directions, with remainders."""
    problem = hard_cases()["wider than one span"]
    network = problem.network()
    whole, active = network.predict(problem.X), network.fire_sets(problem.X)
    monkeypatch.setattr("fireset.network.TILE_PAIRS", 100)
    monkeypatch.setattr("fireset.network._MAX_ROWS_PER_TILE", 7)
    np.testing.assert_allclose(network.predict(problem.X), whole, rtol=0, atol=1e-13)
    assert np.array_equal(network.fire_sets(problem.X).indices, active.indices)
    seen = np.zeros((network.width, len(problem.X)), int)
    for tile in network.tiles(problem.X, 0, network.width):
        assert tile.activations.size <= 100
        seen[tile.neurons, tile.samples] += 1
    assert (seen == 1).all()


def test_predict_allocates_no_array_of_all_pairs():
    n, width = 2000, 20_000
    network = ShiftedReLUNetwork.initialize(width, 4)
    X = sphere(np.random.default_rng(0), n, 4)
    network.predict(X[:2])  # compile, and load lazy imports
    tracemalloc.start()
    try:
        network.predict(X)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < n * width * 4 / 4


@pytest.mark.parametrize("case", hard_cases())
def test_fire_sets_equal_brute_force(case):
    problem = hard_cases()[case]
    network = problem.network()
    found = network.fire_sets(problem.X)
    expected = [[deciding_dot(w, x) > network.threshold for w in network.weights] for x in problem.X]
    assert found.dtype == bool
    assert found.has_sorted_indices
    assert np.array_equal(found.toarray(), np.array(expected))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_pair_exactly_on_the_threshold_is_not_active(dtype):
    b = 0.5
    above = np.nextafter(np.dtype(dtype).type(b), np.dtype(dtype).type(1))
    below = np.nextafter(np.dtype(dtype).type(b), np.dtype(dtype).type(0))
    weights = np.array([[b, 9], [above, 9], [below, 9], [0.25, 0.25]], dtype)
    network = ShiftedReLUNetwork(weights, np.ones((4, 1)), b)
    X = np.array([[1.0, 0.0], [1.0, 1.0]])
    assert np.array_equal(network.fire_sets(X).toarray(), [[0, 1, 0, 0], [1, 1, 1, 0]])
    assert network.predict(X[:1])[0, 0] == (float(above) - b) / 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_several_outputs_share_the_weights(dtype):
    network = small(dtype, width=300, n_outputs=4, threshold=0.3)
    X = sphere(np.random.default_rng(0), 20, 3)
    together = network.predict(X)
    assert together.shape == (20, 4)
    for c in range(4):
        alone = ShiftedReLUNetwork(network.weights, network.output_weights[:, c : c + 1], network.threshold)
        np.testing.assert_allclose(together[:, c : c + 1], alone.predict(X), rtol=0, atol=1e-6)


def test_predict_of_no_rows():
    assert small(n_outputs=2).predict(np.empty((0, 3))).shape == (0, 2)


def test_fire_sets_of_no_rows():
    assert small().fire_sets(np.empty((0, 3))).shape == (0, 40)


def test_memory_layouts_of_the_input():
    """Read-only arrays, Fortran order, slices, lists, whole numbers and the other precision."""
    network = small(threshold=0.2)
    X = np.round(4 * sphere(np.random.default_rng(0), 12, 3))
    expected = network.predict(X)
    frozen = X.copy()
    frozen.flags.writeable = False
    wide = np.zeros((24, 6))
    wide[::2, ::2] = X
    for same in (frozen, np.asfortranarray(X), wide[::2, ::2], X.tolist(), X.astype(int), X.astype(np.float32)):
        assert np.array_equal(network.predict(same), expected)
        assert (network.fire_sets(same) != network.fire_sets(X)).nnz == 0


def test_read_only_weights_are_copied():
    weights = small().weights
    weights.flags.writeable = False
    output_weights = np.ones((40, 1))
    output_weights.flags.writeable = False
    network = ShiftedReLUNetwork(weights, output_weights, 0.1)
    before = weights.copy()
    network.weights += 1.0
    assert np.array_equal(weights, before)
    assert np.isfinite(network.predict(np.eye(3))).all()


def test_properties_and_repr():
    network = small("float32", width=50, n_features=4, n_outputs=3, threshold=0.25)
    assert (network.width, network.n_features, network.n_outputs) == (50, 4, 3)
    assert network.dtype == np.float32
    assert repr(network) == ("ShiftedReLUNetwork(width=50, n_features=4, n_outputs=3, threshold=0.25, dtype=float32)")


# Files


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_save_and_load(tmp_path, dtype):
    network = small(dtype, n_outputs=3, seed=5)
    path = tmp_path / "network.safetensors"
    network.save(path)
    loaded = ShiftedReLUNetwork.load(path)
    assert loaded.dtype == network.dtype
    assert loaded.threshold == network.threshold
    assert np.array_equal(loaded.weights, network.weights)
    assert np.array_equal(loaded.output_weights, network.output_weights)
    X = sphere(np.random.default_rng(0), 10, 3)
    assert np.array_equal(loaded.predict(X), network.predict(X))
    loaded.weights[0] += 1  # the loaded weights are writable
    assert [p.name for p in tmp_path.iterdir()] == ["network.safetensors"]


def test_further_arrays_and_description(tmp_path):
    path = tmp_path / "network.safetensors"
    small().save(path, {"task": "demo"}, mean=np.arange(3.0))
    network, arrays, description = ShiftedReLUNetwork.from_file(path)
    assert network.width == 40
    assert np.array_equal(arrays["mean"], np.arange(3.0))
    assert description["task"] == "demo"


@pytest.mark.parametrize(("spoil", "message"), [("weights", " weights "), ("output_weights", " output_weights ")])
def test_load_raises_for_values_that_are_not_finite(tmp_path, spoil, message):
    network = small()
    path = tmp_path / "network.safetensors"
    getattr(network, spoil)[0, 0] = np.nan
    network.save(path)
    with pytest.raises(InputError, match=f"network.safetensors.*{message}"):
        ShiftedReLUNetwork.load(path)


def test_load_raises_for_missing_and_foreign_files(tmp_path):
    with pytest.raises(InputError, match="nothing"):
        ShiftedReLUNetwork.load(tmp_path / "nothing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InputError, match="text "):
        ShiftedReLUNetwork.load(tmp_path / "text")


@pytest.mark.parametrize("case", hard_cases())
def test_prediction_by_search(case, monkeypatch):
    """Predictions with a half-space index over the weights are equal up to the order of the sums."""
    problem = hard_cases()[case]
    network = problem.network()
    expected = network.predict(problem.X)
    monkeypatch.setattr("fireset.network.pays_to_search", lambda *_: True)
    monkeypatch.setattr("fireset.network.TILE_PAIRS", 1000)  # several chunks of rows
    np.testing.assert_allclose(
        network.predict(problem.X), expected, rtol=0, atol=1e-12 * max(1, np.abs(expected).max())
    )


def test_search_is_chosen_where_it_pays():
    from fireset.hsr.cost import pays_to_search

    assert pays_to_search(100_000, 3, 5_000, 1600)
    assert not pays_to_search(100_000, 3, 10, 1600)  # too few rows to build an index for
    assert not pays_to_search(100_000, 64, 5_000, 1600)
    assert not pays_to_search(100_000, 3, 5_000, 50_000)  # half of the pairs are active
