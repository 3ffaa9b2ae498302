"""Fits with each loss: optimality, coverage of quantiles, robustness to outliers, and losses of a user."""

import json
import pickle
import sys
from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import d2_pinball_score, mean_pinball_loss, mean_poisson_deviance
from sklearn.model_selection import GridSearchCV

from fireset import InputError, ShiftedReLUClassifier, ShiftedReLUNetwork, ShiftedReLURegressor, train
from fireset.__main__ import main
from fireset.commands.scores import scores
from fireset.model import Model
from fireset.theory import fire_set_kernel
from fireset.training.losses import AbsoluteError, Huber, LogLoss, Loss, Poisson, Quantile, SquaredError, get_loss
from fireset.training.solvers import GaussNewton
from support.checks import sphere

RNG = np.random.default_rng(0)
ROWS = sphere(RNG, 40, 5)
SIGNAL = np.sin(3 * ROWS[:, 0]) + ROWS[:, 1]
TARGETS = SIGNAL + 0.3 * RNG.standard_normal(40)
COUNTS = RNG.poisson(np.exp(SIGNAL)) * 1.0
LEVELS = (0.1, 0.5, 0.9)


def nearly_linear(outputs: int = 1) -> tuple[ShiftedReLUNetwork, np.ndarray]:
    """Return a network whose fire sets hardly change, and its tangent kernel."""
    network = ShiftedReLUNetwork.initialize(
        600, 5, outputs, start="antisymmetric", output_scale=1000.0, threshold=0.8, seed=3, dtype="float64"
    )
    return network, fire_set_kernel(ROWS, network.fire_sets(ROWS)) * 1000.0**2


@pytest.mark.parametrize("engine", ["dense", "data"])
@pytest.mark.parametrize("loss", [AbsoluteError(), Huber(0.3), Quantile(0.8), Poisson()], ids=lambda loss: loss.name)
def test_the_solution_is_that_of_the_kernel_problem(loss, engine):
    """The loss is within 1 % of SciPy's L-BFGS on u = K α with penalty (λ/2) αᵀ K α."""
    network, kernel = nearly_linear()
    targets = COUNTS if isinstance(loss, Poisson) else TARGETS
    ridge = 0.3 * float(kernel.diagonal().mean())
    weight = np.linspace(0.5, 2.0, 40)
    used = loss.for_targets(targets[:, None], weight)

    def objective(dual: np.ndarray) -> tuple[float, np.ndarray]:
        u = (kernel @ dual / ridge)[:, None]
        pull = kernel @ dual / ridge
        value = used.value(u, targets[:, None], weight) + 0.5 * float(dual @ pull)
        return value, kernel @ used.residual(u, targets[:, None], weight)[:, 0] / ridge + pull

    found = minimize(objective, np.zeros(40), jac=True, method="L-BFGS-B", options={"maxiter": 20000, "maxfun": 40000})
    solver = GaussNewton(ridge=ridge, tol=1e-6)
    result = train(
        network, ROWS, targets, loss=loss, sample_weight=weight, engine=engine, solver=solver, max_iter=200, tol=0
    )
    assert result.loss == pytest.approx(found.fun, rel=0.01)
    losses = result.history.column("loss")
    assert (np.diff(losses) <= 1e-9 * losses[0]).all()


def test_pinball_loss_reaches_its_dual_optimum():
    """Without smoothing, the optimum is the maximum of yᵀδ − δᵀKδ/(2λ) with τ − 1 ≤ δ ≤ τ."""
    network, kernel = nearly_linear(3)
    ridge = 0.3 * float(kernel.diagonal().mean())
    first = network.weights.copy()
    train(network, ROWS, TARGETS, loss=Quantile(LEVELS), solver=GaussNewton(ridge=ridge, tol=1e-6), max_iter=200, tol=0)
    penalty = 0.5 * ridge * float(((network.weights - first) ** 2).sum())

    def mean_loss(level: float, quantile: np.ndarray) -> float:
        return float(mean_pinball_loss(TARGETS, quantile, alpha=level))

    primal = 40 * sum(map(mean_loss, LEVELS, network.predict(ROWS).T)) + penalty

    def dual(level: float) -> float:
        def function(delta: np.ndarray) -> tuple[float, np.ndarray]:
            pull = kernel @ delta / ridge
            return 0.5 * float(delta @ pull) - float(TARGETS @ delta), pull - TARGETS

        bounds = [(level - 1.0, level)] * 40
        return -float(minimize(function, np.zeros(40), jac=True, method="L-BFGS-B", bounds=bounds).fun)

    best = sum(map(dual, LEVELS))
    assert best * (1 - 1e-3) <= primal <= best * 1.02


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize("batch_size", [None, 16])
@pytest.mark.parametrize("loss", [AbsoluteError(), Huber(0.3), Quantile(LEVELS), Poisson()], ids=lambda loss: loss.name)
def test_gradient_descent_halves_the_loss(loss, batch_size):
    network = ShiftedReLUNetwork.initialize(400, 5, loss.outputs_per_target, output_scale=10.0, seed=0)
    y = COUNTS if isinstance(loss, Poisson) else TARGETS
    result = train(network, ROWS, y, loss=loss, momentum=0.9, nesterov=True, max_iter=150, tol=0, batch_size=batch_size)
    assert result.loss < 0.5 * result.history[0].loss


def test_several_levels_need_as_many_outputs():
    network, _ = nearly_linear(2)
    with pytest.raises(InputError, match=r"3 outputs.*got 2"):
        train(network, ROWS, TARGETS, loss=Quantile(LEVELS))
    with pytest.raises(InputError, match=r"`y`.* 0.*got -"):
        train(nearly_linear()[0], ROWS, TARGETS, loss="poisson")


# The estimators

X = RNG.uniform(-1, 1, (2400, 3))
MEAN = np.sin(3 * X[:, 0]) + X[:, 1]
TRAINED, HELD = slice(600), slice(600, None)
SETTINGS = {"width": 1000, "random_state": 0, "engine": "data"}
FIXED = {**SETTINGS, "bias": 1.0, "column_scales": None}


def heteroscedastic() -> np.ndarray:
    """Return targets whose third column determines the spread only."""
    return MEAN + (0.3 + 0.25 * (X[:, 2] + 1)) * np.random.default_rng(1).standard_normal(len(X))


def test_coverage_of_quantiles():
    y = heteroscedastic()
    model = ShiftedReLURegressor(loss=Quantile(LEVELS), **SETTINGS).fit(X[TRAINED], y[TRAINED])
    found = model.predict(X[HELD])
    assert found.shape == (1800, 3)
    assert (np.diff(found, axis=1) >= 0).all()
    np.testing.assert_allclose(np.mean(y[HELD, None] <= found, axis=0), LEVELS, atol=0.04)
    # The true range doubles with the spread. Least squares on y alone would not detect it.
    width = found[:, 2] - found[:, 0]
    wide, narrow = X[HELD, 2] > 0.5, X[HELD, 2] < -0.5
    assert width[wide].mean() > 1.3 * width[narrow].mean()
    assert model.settings_.importances[2] > 0.1
    expected = np.mean([d2_pinball_score(y[HELD], found[:, k], alpha=LEVELS[k]) for k in range(3)])
    assert model.score(X[HELD], y[HELD]) == pytest.approx(expected)
    assert expected > 0.3


@pytest.mark.slow
def test_robust_losses_resist_outliers():
    rng = np.random.default_rng(2)
    clean = MEAN + 0.1 * rng.standard_normal(len(X))
    noisy = clean + (rng.random(len(X)) < 0.1) * rng.normal(0, 15.0, len(X))
    errors = {
        loss: np.abs(
            ShiftedReLURegressor(loss=loss, **SETTINGS).fit(X[TRAINED], noisy[TRAINED]).predict(X[HELD]) - clean[HELD]
        ).mean()
        for loss in ("squared_error", "absolute_error", "huber")
    }
    assert errors["absolute_error"] < 0.3 * errors["squared_error"]
    assert errors["huber"] < 0.5 * errors["squared_error"]


@pytest.mark.slow
def test_poisson_on_log_linear_data_matches_a_linear_model():
    rng = np.random.default_rng(3)
    exposure = rng.uniform(0.5, 3.0, len(X))
    rate = np.exp(1.0 + X @ [0.8, -0.5, 0.0])
    y = rng.poisson(rate * exposure) / exposure
    network = ShiftedReLURegressor(loss="poisson", **SETTINGS).fit(X[TRAINED], y[TRAINED], exposure[TRAINED])
    linear = PoissonRegressor(alpha=1e-4).fit(X[TRAINED], y[TRAINED], exposure[TRAINED])
    deviances = [
        mean_poisson_deviance(y[HELD], model.predict(X[HELD]), sample_weight=exposure[HELD])
        for model in (network, linear)
    ]
    assert deviances[0] <= 1.05 * deviances[1]
    assert (network.predict(X[HELD]) > 0).all()
    assert network.predict(X[TRAINED]).mean() == pytest.approx(y[TRAINED].mean(), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [AbsoluteError(), Quantile(LEVELS), Poisson()], ids=lambda loss: loss.name)
def test_the_chosen_ridge_is_nearly_optimal(loss):
    """Its hold-out loss is at most 3 % above that of a ridge ten times as large or as small."""
    rng = np.random.default_rng(4)
    y = rng.poisson(np.exp(MEAN)) * 1.0 if isinstance(loss, Poisson) else heteroscedastic()
    scored = get_loss(loss)

    def held_out(ridge: float | str) -> tuple[float, float]:
        model = ShiftedReLURegressor(loss=loss, ridge=ridge, **FIXED).fit(X[:400], y[:400])
        found = model.predict(X[HELD]).reshape(1800, -1)
        u = np.log(found) if isinstance(loss, Poisson) else found
        answers = np.repeat(y[HELD, None], u.shape[1], axis=1)
        return scored.value(u, answers, np.ones(1800)), model.result_.details["ridge"]

    error, ridge = held_out("auto")
    assert error <= 1.03 * min(held_out(10 * ridge)[0], held_out(0.1 * ridge)[0])


@dataclass(frozen=True)
class LogCosh(Loss):
    """A loss defined by a user."""

    name = "log_cosh"

    def value(self, u, targets, sample_weight) -> float:
        r = np.abs(u - targets)
        return float(sample_weight @ (r + np.log1p(np.exp(-2 * r)) - np.log(2)).sum(axis=1))

    def residual(self, u, targets, sample_weight) -> np.ndarray:
        return np.tanh(u - targets) * sample_weight[:, None]

    def max_curvature(self, n_outputs: int) -> float:  # noqa: ARG002
        return 1.0


@dataclass(frozen=True)
class LogError(SquaredError):
    """Squared error of logarithms: the link, its ONNX nodes and the metrics come from the class alone."""

    name = "log_link"

    def standardization(self, y, sample_weight) -> tuple[np.ndarray, np.ndarray]:  # noqa: ARG002
        return np.zeros(y.shape[1]), np.ones(y.shape[1])

    def predictions(self, u) -> np.ndarray:
        return np.exp(u)

    def metrics(self, y, predictions) -> dict[str, float]:
        return {"log_error": float(np.mean((np.log(y) - np.log(predictions)) ** 2))}


class ExportedLogError(LogError):
    def add_predictions(self, graph, u: str) -> str:
        return graph.add("Exp", u, name="exponential")


def test_a_loss_defines_its_link_metrics_and_onnx_nodes():
    ort = pytest.importorskip("onnxruntime")
    model = ShiftedReLURegressor(loss=LogError(), **{**FIXED, "width": 200}).fit(X[:60], MEAN[:60])
    assert (model.predict(X[:9]) > 0).all()
    assert scores("regression", np.ones(9), model.predict(X[:9]), model.loss).keys() == {"log_error"}
    with pytest.raises(InputError, match=r"`loss`.*log_link"):
        model.to_onnx()
    exported = model.set_params(loss=ExportedLogError()).to_onnx()
    session = ort.InferenceSession(exported.SerializeToString())
    found = session.run(["prediction"], {session.get_inputs()[0].name: X[:9]})[0]
    np.testing.assert_allclose(found, model.predict(X[:9]), rtol=1e-4)  # float32 with κ = 1000


@pytest.mark.parametrize("loss", [Huber(0.5), Quantile((0.2, 0.8)), LogCosh()], ids=lambda loss: loss.name)
def test_loss_objects_work_like_names(loss):
    small = {**FIXED, "width": 200}
    model = ShiftedReLURegressor(loss=loss, **small)
    assert clone(model).get_params()["loss"] == loss
    model.fit(X[:60], MEAN[:60])
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(X[:9]), model.predict(X[:9]))
    search = GridSearchCV(ShiftedReLURegressor(**small), {"loss": [loss, "absolute_error"]}, cv=2)
    search.fit(X[:60], MEAN[:60])
    assert search.best_params_["loss"] in (loss, "absolute_error")
    stepped = ShiftedReLURegressor(loss=loss, **small).partial_fit(X[:60], MEAN[:60]).partial_fit(X[:60], MEAN[:60])
    assert stepped.n_iter_ == 2
    for cls, other in ((ShiftedReLURegressor, LogLoss()), (ShiftedReLUClassifier, Huber())):
        with pytest.raises(InputError, match=r"`loss`.*squared_error.*got '"):
            cls(loss=other).fit(X[:60], MEAN[:60] > 0)
    labels = ShiftedReLUClassifier(loss=LogLoss(), **small).fit(X[:60], MEAN[:60] > 0)
    named = ShiftedReLUClassifier(loss="log_loss", **small).fit(X[:60], MEAN[:60] > 0)
    assert np.array_equal(labels.predict_proba(X), named.predict_proba(X))


def test_several_targets_of_different_scales():
    y = np.stack([MEAN, 1000 * X[:, 2] + 5000], axis=1)
    for loss in ("absolute_error", "huber", Quantile(0.5)):
        model = ShiftedReLURegressor(loss=loss, **FIXED).fit(X[:150], y[:150])
        assert model.predict(X[:7]).shape == (7, 2)
        assert model.score(X[HELD], y[HELD]) > 0.7
    with pytest.raises(InputError, match=r"`y`.*got 2 columns"):
        ShiftedReLURegressor(loss=Quantile(LEVELS), **FIXED).fit(X[:300], y[:300])


# On the command line


@pytest.mark.parametrize(
    ("options", "loss", "columns", "scored"),
    [
        (["absolute_error"], "absolute_error", ["prediction"], {"mae", "rmse", "r2"}),
        (["huber", "--huber-delta", "0.5"], Huber(0.5), ["prediction"], {"mae", "rmse", "r2"}),
        (["quantile", "--quantiles", "0.05,0.95"], Quantile((0.05, 0.95)), ["q0.05", "q0.95"], {"pinball", "coverage"}),
        (["poisson"], "poisson", ["prediction"], {"poisson_deviance", "rmse", "r2"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_train_predict_and_info(options, loss, columns, scored, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    counts = np.random.default_rng(5).poisson(np.exp(MEAN[:80]))
    pl.DataFrame({"a": X[:80, 0], "b": X[:80, 1], "y": counts}).write_csv("table.csv")

    def works(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["fireset", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert end.value.code == 0, err
        return out

    told = json.loads(works("train", "table.csv", "--target", "y", "--width", "200", "--json", "--loss", *options))
    assert scored < {name.removeprefix("held_out_") for name in told if name.startswith("held_out_")}
    assert told["task"] == "regression"
    model = Model.load("table.safetensors")
    assert model.estimator.loss == loss
    works("predict", "table.safetensors", "table.csv", "--out", "found.csv")
    found = pl.read_csv("found.csv")
    assert found.columns == columns
    direct = model.estimator.predict(X[:80, :2]).reshape(80, -1)
    np.testing.assert_allclose(found.to_numpy(), direct, rtol=1e-5, atol=1e-6)
    assert get_loss(loss).name in works("info", "table.safetensors")


def test_unregistered_losses_cannot_be_saved(tmp_path):
    model = ShiftedReLURegressor(width=50, loss=LogCosh()).fit(X[:60, :1], MEAN[:60])
    with pytest.raises(InputError, match=r"`loss`.*got LogCosh"):
        Model("regression", "y", model, {}).save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_squared_error_object_fits_like_its_name():
    by_name, by_object = (ShiftedReLURegressor(loss=loss, **FIXED) for loss in ("squared_error", SquaredError()))
    expected = by_name.fit(X[:100], MEAN[:100]).predict(X[HELD])
    assert np.array_equal(by_object.fit(X[:100], MEAN[:100]).predict(X[HELD]), expected)


@pytest.mark.parametrize("levels", [(0.1,), (0.9,), (0.1, 0.9)])
def test_tail_quantiles_use_the_ridge_of_the_median(levels):
    """With the ridge of its own pinball loss, half of the new rows were beyond a tail quantile."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((1400, 6))
    y = 2 * rows[:, 0] + 0.5 * rng.standard_normal(len(rows))
    model = ShiftedReLURegressor(width=2000, loss=Quantile(levels), random_state=0).fit(rows[:400], y[:400])
    below = (y[400:, None] < model.predict(rows[400:]).reshape(1000, -1)).mean(axis=0)
    np.testing.assert_allclose(below, levels, atol=0.06)


def test_a_negative_count_is_named_in_the_units_of_y():
    y = np.full(20, 4.0)
    y[7] = -3.0
    with pytest.raises(InputError, match=r"`y`.*'poisson'.*got -3[;,]"):
        ShiftedReLURegressor(width=20, loss="poisson").fit(ROWS[:20], y)
