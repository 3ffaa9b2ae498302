"""Gauss–Newton with trained output weights: the minimum in both layers, convergence, and undone steps."""

import numpy as np
import pytest

from fireset import InputError, ShiftedReLUNetwork, train
from fireset.distributed.process_group import SINGLE_PROCESS
from fireset.distributed.row_shares import RowShares
from fireset.engines import create
from fireset.training.losses import get_loss
from fireset.training.solvers import GaussNewton, linear_solver, preconditioners
from fireset.training.stopping import StopReason
from support.checks import sphere

RNG = np.random.default_rng(0)
X = sphere(RNG, 40, 5)
Y = np.stack([np.sin(3 * X[:, 0]) + X[:, 1], np.cos(4 * X[:, 2])], axis=1)
CLASSES = np.eye(3)[np.argmax(X[:, :3] + 0.3 * RNG.standard_normal((40, 3)), axis=1)]
COUNTS = RNG.poisson(np.exp(1.0 + X[:, :1])).astype(float)
WEIGHT = RNG.uniform(0.2, 3.0, 40)
ONES = np.ones(40)
S = 1.7


def network(outputs: int = 1, scale: float = 1000.0, dtype: str = "float64", width: int = 300) -> ShiftedReLUNetwork:
    return ShiftedReLUNetwork.initialize(
        width, 5, outputs, start="antisymmetric", output_scale=scale, threshold=0.8, seed=3, dtype=dtype
    )


def layer_kernels(one: ShiftedReLUNetwork, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return J_W J_Wᵀ over all outputs, (n·c, n·c) with the output as the slow index, and H_A (n, n), by definition."""
    activations = np.maximum(rows @ one.weights.T - one.threshold, 0.0) / one.divisor
    fires, inner = (activations > 0) / one.divisor, rows @ rows.T
    a = one.output_weights
    blocks = [[inner * ((fires * (a[:, k] * a[:, j])) @ fires.T) for j in range(a.shape[1])] for k in range(a.shape[1])]
    return np.block(blocks), activations @ activations.T


def objective(one: ShiftedReLUNetwork, first: ShiftedReLUNetwork, y, loss: str, ridge: float, weight) -> float:
    squares = ((one.weights - first.weights) ** 2).sum()
    squares += ((one.output_weights - first.output_weights) ** 2).sum() / S**2
    return get_loss(loss).value(one.predict(X), y, weight) + 0.5 * ridge * float(squares)


def scaled_gradient(one: ShiftedReLUNetwork, first: ShiftedReLUNetwork, y, loss: str, ridge: float, weight) -> float:
    """Return the norm of the gradient of the objective in (W, A/s), by its definition."""
    e = get_loss(loss).residual(one.predict(X), y, weight)
    activations = np.maximum(X @ one.weights.T - one.threshold, 0.0)
    hidden = ((activations > 0) * (e @ one.output_weights.T)).T @ X / one.divisor
    hidden += ridge * (one.weights - first.weights)
    outputs = S * activations.T @ e / one.divisor + ridge / S * (one.output_weights - first.output_weights)
    return float(np.hypot(np.linalg.norm(hidden), np.linalg.norm(outputs)))


PROBLEMS = {
    "one output": (Y[:, :1], "squared_error", ONES),
    "two outputs": (Y, "squared_error", ONES),
    "weights": (Y, "squared_error", WEIGHT),
    "two classes": ((Y[:, :1] > 0.5) * 1.0, "log_loss", WEIGHT),
    "three classes": (CLASSES, "log_loss", ONES),
    "counts": (COUNTS, "poisson", WEIGHT),
}


@pytest.mark.parametrize("problem", ["one output", "two outputs", "weights"])
def test_the_predictions_are_those_of_kernel_ridge_regression(problem):
    y, loss, weight = PROBLEMS[problem]
    outputs = y.shape[1]
    one = network(outputs, scale=1e3)  # nearly linear
    hidden, output = layer_kernels(one, X)
    kernel = hidden + S**2 * np.kron(np.eye(outputs), output)
    ridge = 0.05 * kernel.diagonal().mean()
    right = y.T.ravel()
    dual = np.linalg.solve(kernel + ridge * np.diag(1.0 / np.tile(weight, outputs)), right)
    expected = (kernel @ dual).reshape(outputs, -1).T
    train(one, X, y, loss=loss, sample_weight=weight, solver="gauss-newton", trained_outputs=S, ridge=ridge, tol=1e-10)
    np.testing.assert_allclose(one.predict(X), expected, atol=2e-3 * np.abs(expected).max())
    without = hidden @ np.linalg.solve(hidden + ridge * np.diag(1.0 / np.tile(weight, outputs)), right)
    assert np.abs(without.reshape(outputs, -1).T - expected).max() > 0.02 * np.abs(expected).max()  # the layer matters


@pytest.mark.sweep(every=10)
@pytest.mark.parametrize("engine", ["dense", "data", "sums"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_gradient_of_the_objective_vanishes_in_both_layers(problem, engine):
    y, loss, weight = PROBLEMS[problem]
    scale = 10.0 if loss == "squared_error" else 1000.0
    ridge = 0.0005 * scale**2
    one = network(y.shape[1], scale)
    first = one.copy()
    before = scaled_gradient(one, first, y, loss, ridge, weight)
    solver = GaussNewton(ridge=ridge, tol=1e-6, trained_outputs=S)
    result = train(one, X, y, loss=loss, sample_weight=weight, engine=engine, solver=solver, max_iter=60, tol=0)
    assert scaled_gradient(one, first, y, loss, ridge, weight) <= 1e-3 * before
    assert result.loss == pytest.approx(objective(one, first, y, loss, ridge, weight), rel=1e-9)
    assert np.abs(one.output_weights - first.output_weights).max() > 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_run_with_a_chosen_ridge_converges(problem, dtype):
    y, loss, weight = PROBLEMS[problem]
    one = network(y.shape[1], dtype=dtype)
    result = train(one, X, y, loss=loss, sample_weight=weight, solver="gauss-newton", trained_outputs=True, tol=1e-3)
    assert result.stop_reason is StopReason.TOL
    assert result.loss < result.history[0].loss
    assert not one.has_sign_outputs


def test_a_partial_factor_gives_the_same_solution(monkeypatch):
    y, found = Y, []
    for rows in (2500, 10):
        monkeypatch.setattr(linear_solver, "FULL_CHOLESKY_ROWS", rows)
        monkeypatch.setattr(linear_solver, "_MAX_CHOLESKY_ROWS", rows)
        one = network(2)
        train(one, X, y, solver="gauss-newton", trained_outputs=S, ridge=2000.0, tol=1e-9)
        found.append(one.predict(X))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def test_the_kernels_are_those_of_both_layers():
    one = network()
    one.output_weights *= 1.5  # the mean square is exact where all squares are equal
    engine = create("data")
    engine.start(one, X)
    hidden, output = layer_kernels(one, X)
    expected = hidden + S**2 * output
    outputs = preconditioners.ScaledOutputLayer(engine.output_layer(), S**2, 1.5**2)
    np.testing.assert_allclose(
        np.tril(preconditioners.tangent_kernel(engine, outputs)), np.tril(expected), atol=1e-9 * expected.max()
    )
    columns = preconditioners.KernelColumns(engine, RowShares(SINGLE_PROCESS, len(X)), outputs)
    rows = np.array([3, 11, 17])
    tolerance = 1e-5 * expected.max()
    np.testing.assert_allclose(columns.diagonal(), expected.diagonal(), atol=tolerance)
    np.testing.assert_allclose(columns.of(rows), expected[rows], atol=tolerance)
    block = expected[np.ix_(rows, rows)]
    np.testing.assert_allclose(np.tril(columns.submatrix(rows)), np.tril(block), atol=tolerance)


@pytest.mark.parametrize("engine", ["dense", "data", "sums"])
def test_undone_steps_restore_both_layers(engine):
    """With a tiny output scale, steps are far from linear: some increase the objective."""
    one = network(2, scale=0.5)
    first = one.copy()
    undone = []

    def callback(progress) -> None:
        undone.append(progress.record.loss > min(r.loss for r in progress.run.history))

    solver = GaussNewton(ridge=1e-6, tol=1e-9, trained_outputs=S)
    result = train(one, X, 3 * Y, engine=engine, solver=solver, max_iter=15, tol=0, callbacks=[callback])
    assert any(undone)
    assert result.loss == pytest.approx(objective(one, first, 3 * Y, "squared_error", 1e-6, ONES), rel=1e-8)
    assert result.loss == pytest.approx(min(record.loss for record in result.history))


def test_the_best_validation_iteration_has_its_own_outputs():
    one = network()
    validation = (sphere(np.random.default_rng(5), 30, 5), np.random.default_rng(6).standard_normal(30))
    result = train(
        one, X, Y[:, :1], solver="gauss-newton", trained_outputs=S, ridge=1e-3, validation=validation, tol=1e-6
    )
    loss = 0.5 * float(((one.predict(validation[0])[:, 0] - validation[1]) ** 2).sum())
    assert result.history[result.best_iteration].validation_loss == pytest.approx(loss, rel=1e-6)


def test_a_network_with_trained_outputs_is_trained_further():
    one = network()
    train(one, X, Y[:, :1], solver="gauss-newton", trained_outputs=S, ridge=2000.0)
    with pytest.raises(InputError, match="outputs"):
        train(one, X, Y[:, 1:], solver="gauss-newton")
    result = train(one, X, Y[:, 1:], solver="gauss-newton", trained_outputs=S, ridge=2000.0)
    assert result.loss < 0.5 * result.history[0].loss


def test_the_penalty_at_zero_is_that_of_the_cheaper_layer():
    one = network()
    for s in (0.01, 100.0):
        solver = GaussNewton(ridge=2.0, trained_outputs=s)
        train(one.copy(), X, Y[:, :1], solver=solver, max_iter=1)
        ridge = solver.ridge / solver.run.problem.weight_unit
        smaller = min(float((one.weights**2).sum()), float((one.output_weights**2).sum()) / s**2)
        assert solver.penalty_at_zero() == pytest.approx(0.5 * ridge * smaller)


def test_memory_of_the_output_layer_is_counted():
    one = network(dtype="float32", width=4000)
    more = GaussNewton(trained_outputs=True).extra_bytes(one, 1000) - GaussNewton().extra_bytes(one, 1000)
    activations = np.maximum(sphere(np.random.default_rng(1), 1000, 5) @ one.weights.T - one.threshold, 0.0)
    assert more == pytest.approx(8 * np.count_nonzero(activations), rel=0.1)
