"""Settings chosen in closed form: the kernel as a series, leave-one-out, columns, scales, and the estimators' use."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import make_friedman1

from fireset import InputError, ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.estimators.width import choose_width
from fireset.tables.column_map import ColumnMap
from fireset.tables.settings import MIN_ROWS, choose_settings
from fireset.tables.sphere import to_sphere
from fireset.theory import shifted_ntk
from fireset.theory.kernel_function import KernelFunction
from fireset.theory.leave_one_out import RELATIVE_RIDGES, KernelSystem, best_ridge, leave_one_out
from support.checks import sphere

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("threshold", [-1.0, 0.0, 0.5, 1.5, 2.1, 4.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_series_is_the_kernel(threshold, dtype):
    X = np.vstack([sphere(RNG, 60, 3), -sphere(RNG, 3, 3)])
    X = np.vstack([X, -X[:2], X[:2]])  # antipodes and equal rows
    found = KernelFunction(threshold).values((X @ X.T).astype(dtype))
    exact = shifted_ntk(X, threshold)
    assert np.abs(found - exact).max() <= 2e-5 * exact.max()


@pytest.mark.parametrize("threshold", [1.0, 1.5, 2.1])
def test_slopes_are_derivatives(threshold):
    kernel = KernelFunction(threshold)
    cosines = np.linspace(-0.99, 0.99, 300).reshape(3, 100)
    rise = kernel.values(cosines + 1e-6) - kernel.values(cosines - 1e-6)
    slopes = kernel.slopes(cosines.copy())
    np.testing.assert_allclose(slopes, rise / 2e-6, rtol=0, atol=1e-4 * np.abs(slopes).max())
    assert (kernel.slopes(np.ones((2, 2))) == 0).all()  # equal rows: one point


def test_leaving_a_row_out_is_fitting_without_it():
    X, T, weight = sphere(RNG, 30, 4), RNG.standard_normal((30, 2)), RNG.uniform(0.5, 2.0, 30)
    K = shifted_ntk(X, 1.0)
    found = leave_one_out(K, T, weight, 0.01)
    for i in (0, 7, 29):
        k = np.delete(np.arange(30), i)
        R = np.sqrt(weight[k])
        A = R[:, None] * K[np.ix_(k, k)] * R + 0.01 * np.eye(29)
        guess = K[i, k] @ (R[:, None] * np.linalg.solve(A, R[:, None] * T[k]))
        np.testing.assert_allclose(T[i] - guess, found.errors[i], rtol=1e-9)


def test_single_precision_chooses_alike():
    X = sphere(RNG, 200, 4)
    T = np.sin(5 * X[:, :1]) + 0.1 * RNG.standard_normal((200, 1))
    K, ones = shifted_ntk(X, 1.5), np.ones(200)
    double, single = best_ridge(K, T, ones), best_ridge(K.astype(np.float32), T, ones)
    assert double.ridge_index == single.ridge_index
    assert single.error == pytest.approx(double.error, rel=1e-3)
    assert (
        best_ridge(K, T, ones, start=0).ridge_index
        == best_ridge(K, T, ones, start=11).ridge_index
        == double.ridge_index
    )


def _noisy_problem(n, outputs=1):
    X = sphere(RNG, n, 4)
    T = np.sin(5 * X[:, :outputs]) + 0.3 * RNG.standard_normal((n, outputs))
    return shifted_ntk(X, 1.5), T, RNG.uniform(0.5, 2.0, n)


def test_searches_use_the_errors_of_the_last_rows():
    K, T, weight = _noisy_problem(500, 2)
    system = KernelSystem(K, T, weight)
    found = system.search(5)
    exact = leave_one_out(K, T, weight, found.ridge)
    assert found.errors.shape == (250, 2)
    np.testing.assert_allclose(found.errors, exact.errors[250:], rtol=1e-9)
    np.testing.assert_allclose(found.coefficients, exact.coefficients, rtol=1e-9)
    np.testing.assert_allclose(system.leave_one_out_at(found.ridge_index).errors, exact.errors, rtol=1e-9)


@pytest.mark.parametrize("start", [0, 4, 8])
def test_searches_by_derivatives_find_the_least_error(start):
    K, T, weight = _noisy_problem(500)
    system = KernelSystem(K, T, weight)
    least = min(system._look(k).fit.error for k in range(len(RELATIVE_RIDGES)))
    assert KernelSystem(K, T, weight).search(start).error <= 1.02 * least


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_derivative_of_leave_one_out_is_that_of_differences(outputs):
    K, T, weight = _noisy_problem(180, outputs)  # searches use the errors of all rows
    system = KernelSystem(K, T, weight)
    for k in (2, 6):
        ridge, step = system.ridge(k), 1e-4
        rise = np.log(system.leave_one_out(ridge * (1 + step)).error / system.leave_one_out(ridge * (1 - step)).error)
        assert system._slope(k) == pytest.approx(rise / (2 * step), abs=0.05)


@given(st.integers(0, 10_000), st.integers(2, 200), st.sampled_from(["normal", "lognormal", "few", "constant", "huge"]))
def test_columns_keep_their_order(seed, n, kind):
    rng = np.random.default_rng(seed)
    x = {
        "normal": rng.standard_normal(n),
        "lognormal": np.exp(3 * rng.standard_normal(n)),
        "few": rng.integers(0, 4, n).astype(float),
        "constant": np.full(n, 5.0),
        "huge": 1e12 + 1e9 * rng.standard_normal(n),
    }[kind]
    columns = ColumnMap.learn(x[:, None], np.ones(n))
    seen = np.sort(np.concatenate([x, x.mean() + x.std() * np.linspace(-9, 9, 50)]))
    z = columns(seen[:, None])[:, 0]
    assert np.isfinite(z).all()
    assert np.abs(z).max() <= 3.0 + 1e-12
    assert (np.diff(z) >= -1e-12).all()


def test_weights_are_rows():
    X = np.exp(RNG.standard_normal((60, 2)))
    weight = RNG.integers(0, 4, 60)
    once, many = (
        ColumnMap.learn(X, weight.astype(float)),
        ColumnMap.learn(np.repeat(X, weight, 0), np.ones(weight.sum())),
    )
    np.testing.assert_allclose(once(X), many(X), rtol=0, atol=1e-9)


def test_columns_that_do_not_matter_are_shrunk():
    X, y = make_friedman1(600, 10, noise=1.0, random_state=0)  # five columns matter, five do not
    model = ShiftedReLURegressor(width=4000, random_state=0).fit(X, y)
    scales = model.settings_.metric
    assert model.settings_.rounds >= 1
    assert scales.max() == 1.0
    assert scales[:5].min() > 2 * scales[5:].max()
    plain = ShiftedReLURegressor(width=4000, random_state=0, column_scales=None).fit(X, y)
    assert (plain.settings_.metric == 1).all()
    fresh, truth = make_friedman1(1000, 10, random_state=1)
    assert model.score(fresh, truth) > plain.score(fresh, truth) + 0.02


def test_gradients_are_those_of_the_fit():
    """Squared derivatives through the map to the sphere, against differences."""
    from fireset.tables.kernel_fit import FitRows, KernelFit

    Z, T = RNG.standard_normal((80, 3)), RNG.standard_normal((80, 2))
    scales = np.array([1.0, 0.5, 0.2])
    fit = KernelFit(FitRows(Z.astype(np.float32), T, np.ones(80)), scales, 1.0, KernelFunction(1.5)).solve(6)
    rows, _ = to_sphere(Z * scales, fit.typical, fit.bias)

    def predictions(at: np.ndarray) -> np.ndarray:
        # Each row's own term has a cusp there: it is left out, as the gradients leave it out.
        moved, _ = to_sphere(at * scales, fit.typical, fit.bias)
        K = KernelFunction(1.5).values(moved @ rows.T)
        return (K * (1 - np.eye(80))) @ fit.coefficients

    step = 1e-4
    expected = [
        np.mean(((predictions(Z + step * one) - predictions(Z - step * one)) / (2 * step)) ** 2) for one in np.eye(3)
    ]
    np.testing.assert_allclose(fit.outer_product(full=False) / 2, expected, rtol=0.02)


def test_what_is_given_is_not_chosen():
    X, y = make_friedman1(200, 5, random_state=0)
    scales = np.array([1.0, 0.5, 0.5, 0.25, 0.1])
    model = ShiftedReLURegressor(width=500, bias=2.0, column_scales=scales, random_state=0).fit(X, y)
    assert model.sphere_.bias == 2.0
    assert (model.sphere_.metric == scales).all()
    for wrong in (np.ones(4), -np.ones(5), np.full(5, np.nan), "wide"):
        with pytest.raises(InputError, match="column_scales"):
            ShiftedReLURegressor(width=500, column_scales=wrong).fit(X, y)


def test_few_rows_are_said():
    X, y = make_friedman1(MIN_ROWS - 1, 5, random_state=0)
    settings = ShiftedReLURegressor(width=500, random_state=0).fit(X, y).settings_
    assert settings.ridge is None
    assert "too few" in settings.notes[0]


def test_deterministic():
    X, y = make_friedman1(1500, 8, noise=1.0, random_state=0)
    Z, T, ones = X - X.mean(axis=0), (y - y.mean())[:, None], np.ones(len(y))
    one, other = (choose_settings(Z, T, ones, threshold=1.5) for _ in range(2))
    for name, value in vars(one).items():
        assert np.array_equal(value, getattr(other, name)), name
    assert one.error is not None
    assert 0 < one.error < 1
    assert one.left_out is not None
    assert one.left_out.shape == (1000, 1)


def test_many_classes():
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((20, 6))
    y = rng.integers(0, 20, 400)
    X = centres[y] + 0.3 * rng.standard_normal((400, 6))
    model = ShiftedReLUClassifier(random_state=0, width=4000).fit(X, y)
    assert model.score(X, y) > 0.9


def test_width_by_the_size_of_the_table():
    assert choose_width(1000, 20, 1) == 40_000
    assert choose_width(6000, 20, 1) == 20_000
    assert choose_width(2500, 20, 1) > choose_width(3500, 20, 1) > choose_width(5000, 20, 1)  # as many active pairs
    assert choose_width(10_000, 17, 26) > 25_000  # 260,000 numbers to learn
    assert choose_width(1_000_000, 9, 1) == 2_000
    assert choose_width(100_000, 9, 1) % 2 == 0


def test_the_choice_in_words():
    X, y = make_friedman1(300, 6, random_state=0)
    model = ShiftedReLURegressor(width=500, random_state=0).fit(X, y)
    words = model.settings_.in_words("R²")
    assert f"expected R² {model.settings_.forecast:.3f} (cross-fitted, 300 rows)" in words
    few = ShiftedReLURegressor(width=500, random_state=0).fit(X[:20], y[:20])
    assert "too few" in few.settings_.in_words()


@pytest.mark.parametrize(
    "kind", ["constant", "duplicated", "one column", "steps", "sparse", "tiny", "many columns", "three classes"]
)
def test_settings_of_odd_tables_are_finite(kind):
    from scipy.sparse import csr_array

    rng = np.random.default_rng(0)
    n, p = {"tiny": (MIN_ROWS, 3), "one column": (90, 1), "many columns": (60, 1000)}.get(kind, (120, 4))
    Z = rng.standard_normal((n, p))
    y = np.sin(2 * Z[:, :1])
    if kind == "constant":
        Z[:, 1:] = 0.0
    if kind == "duplicated":
        Z[:, 1:] = Z[:, :1]
    if kind == "steps":
        Z = np.rint(Z)
    classes = kind == "three classes"
    targets = 2.0 * (np.digitize(y, [-0.5, 0.5]) == np.arange(3)) - 1.0 if classes else y
    table = csr_array(np.where(np.abs(Z) > 1, Z, 0.0)) if kind == "sparse" else Z
    found = choose_settings(table, targets - targets.mean(axis=0), np.ones(n), threshold=1.5, classes=classes)
    columns = p + sum(len(one.mean) for one in found.pieces) + (found.squared_norm is not None)
    assert found.metric.shape in ((columns,), (columns, columns))
    if kind in ("sparse", "many columns"):
        assert found.metric.shape == (p,)
        assert not found.pieces
    whole = found.metric if found.metric.ndim == 2 else np.diag(found.metric)
    eigenvalues = np.linalg.eigvalsh(whole)
    assert eigenvalues[-1] == pytest.approx(1)
    assert eigenvalues[0] > 0.01
    assert np.isfinite(found.importances).all()
    assert found.importances.sum() == pytest.approx(1)
    assert found.forecast is not None
    assert found.forecast <= 1


def test_a_rotated_function_has_a_full_metric():
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((500, 8))
    direction = np.ones(8) / 8**0.5
    found = choose_settings(Z, np.sin(2 * Z @ direction)[:, None], np.ones(500), threshold=1.5)
    assert found.metric_kind == "full"
    assert direction @ found.metric @ direction > 0.9
    across = np.array([1.0, -1.0, 0, 0, 0, 0, 0, 0]) / 2**0.5
    assert across @ found.metric @ across < 0.3


def test_steps_are_cut_into_pieces():
    from fireset.tables.pieces import append_pieces, learn_pieces, through_pieces

    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (500, 4))
    y = np.sign(X[:, 0] - 0.3) + np.sign(X[:, 1]) + np.sign(X[:, 2] + 0.4)
    model = ShiftedReLURegressor(width=2000, random_state=0).fit(X[:400], y[:400])
    assert model.settings_.pieces
    assert model.network_.n_features == model.sphere_.columns.n_outputs + 1
    assert model.feature_importances_.argmin() == 3
    plain = ShiftedReLURegressor(width=2000, random_state=0, column_scales=None).fit(X[:400], y[:400])
    assert model.score(X[400:], y[400:]) > plain.score(X[400:], y[400:])
    pieces = learn_pieces(X, np.ones(500))
    wide, step = append_pieces(X, pieces), 1e-7
    np.testing.assert_allclose(wide[:, 4:].mean(axis=0), 0, atol=1e-9)
    slope = rng.standard_normal((1, wide.shape[1])).repeat(500, axis=0)
    found = through_pieces(slope, X, pieces)
    for j in range(4):
        move = step * (np.arange(4) == j)
        rise = (append_pieces(X + move, pieces) - append_pieces(X - move, pieces)) @ slope[0] / (2 * step)
        away = np.abs(X[:, j, None] - pieces[j].edges).min(axis=1) > 1e-6  # derivatives jump at edges
        np.testing.assert_allclose(found[away, j], rise[away], rtol=1e-5, atol=1e-5)


def test_rounds_go_on_while_the_loss_falls():
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((900, 40))
    f = np.sin(2 * Z[:, 0]) * Z[:, 1]
    y = f + 0.2 * rng.standard_normal(900)
    found = choose_settings(Z, (y - y.mean())[:, None], np.ones(900), threshold=1.5)
    assert found.rounds > 5
    assert np.argsort(found.importances)[-2:].tolist() in ([0, 1], [1, 0])
    plain = choose_settings(Z[:, :2], (y - y.mean())[:, None], np.ones(900), threshold=1.5)
    assert plain.rounds <= 5


def test_means_of_metrics():
    from fireset.tables.metric import geometric_mean

    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    one, other = np.array([1.0, 0.5, 0.1, 0.02]), np.array([1.0, 0.2, 0.4, 0.08])
    mean = geometric_mean([one, other], [0.5, 0.5])
    np.testing.assert_allclose(mean, np.sqrt(one * other))
    rotated = geometric_mean([(Q * one) @ Q.T, (Q * other) @ Q.T], [0.5, 0.5])
    np.testing.assert_allclose(rotated, (Q * mean) @ Q.T, atol=1e-12)


def test_pieces_need_the_required_gain():
    X = np.random.default_rng(0).uniform(-1, 1, (500, 4))
    y = np.sign(X[:, 0] - 0.3) + np.sign(X[:, 1]) + np.sign(X[:, 2] + 0.4)
    Z, weight = ColumnMap.learn(X, np.ones(500))(X), np.ones(500)
    found = [
        choose_settings(Z, y[:, None] - y.mean(), weight, threshold=1.5, output_layer_scale=0.0, min_pieces_gain=gain)
        for gain in (0.0, 0.999)
    ]
    assert [bool(one.pieces) for one in found] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "least"), [("auto", 0.998), (20_000, 0.996)])
def test_a_robot_arm_is_learned(width, least):
    """Smooth and without noise: the error that is left is that of the finite width."""
    X = np.random.default_rng(1).uniform(-np.pi, np.pi, (5000, 8))
    angles, lengths = np.cumsum(X[:, :4] / 2, axis=1), 0.5 + (X[:, 4:] / np.pi + 1) / 4
    y = np.hypot((lengths * np.cos(angles)).sum(axis=1), (lengths * np.sin(angles)).sum(axis=1))
    model = ShiftedReLURegressor(width=width, random_state=0).fit(X[:2500], y[:2500])
    assert model.score(X[2500:], y[2500:]) >= least


@pytest.mark.slow
def test_a_rotated_function_is_learned_by_a_full_metric():
    rng = np.random.default_rng(1)
    X, Q = rng.standard_normal((5000, 10)), np.linalg.qr(rng.standard_normal((10, 10)))[0]
    R = X @ Q
    y = np.sin(2 * R[:, 0]) + R[:, 1] * R[:, 2] + 0.1 * rng.standard_normal(5000)
    model = ShiftedReLURegressor(random_state=0).fit(X[:2500], y[:2500])
    assert model.settings_.metric_kind == "full"
    assert model.score(X[2500:], y[2500:]) >= 0.98
