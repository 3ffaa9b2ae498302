"""Gauss–Newton on centres against the restricted problem solved densely in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.sparse import csr_array

from fireset import ShiftedReLUNetwork, train
from fireset._util.errors import InputError
from fireset.engines.centre_kernel import CentreKernel
from fireset.engines.registry import create
from fireset.training.checkpoint import Checkpoints
from fireset.training.losses import get_loss
from fireset.training.solvers import GaussNewton, NystromGaussNewton
from fireset.training.solvers.held_out_ridge import choose_held_out_ridge
from fireset.training.stopping import StopReason


def _rows(n, d=5, seed=0, dtype=np.float64):
    X = np.random.default_rng(seed).standard_normal((n, d))
    return (X / np.linalg.norm(X, axis=1)[:, None]).astype(dtype)


def _network(outputs=1, width=400, d=5, dtype="float64", start="antisymmetric", scale=1000.0):
    return ShiftedReLUNetwork.initialize(
        width, d, outputs, threshold=0.5, start=start, output_scale=scale, dtype=dtype, seed=3
    )


def _jacobian(network, X):
    """∂u/∂W of one output as a dense matrix, (n, m·d)."""
    active = network.fire_sets(X).toarray() * network.output_weights[:, 0] / network.divisor
    return (active[:, :, None] * np.asarray(X)[:, None, :]).reshape(len(X), -1)


def _reference(network, X, centres, y, weight, ridge, loss):
    """Outputs of the linearized network at the minimum over the span of the centres' gradients."""
    J = _jacobian(network, X)
    basis = np.linalg.qr(J[centres].T)[0]
    A = J @ basis
    if loss == "squared_error":
        return A @ np.linalg.solve(A.T @ (weight[:, None] * A) + ridge * np.eye(A.shape[1]), A.T @ (weight * y))
    loss = get_loss(loss)
    size = np.linalg.norm(A, 2)  # L-BFGS needs coordinates of order 1
    A, ridge = A / size, ridge / size**2

    def objective(theta):
        u = (A @ theta)[:, None]
        value = loss.value(u, y[:, None], weight) + 0.5 * ridge * theta @ theta
        return value, A.T @ loss.residual(u, y[:, None], weight)[:, 0] + ridge * theta

    found = minimize(
        objective, np.zeros(A.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 5000, "gtol": 1e-9}
    )
    return A @ found.x


@pytest.mark.parametrize("start", ["antisymmetric", "paper"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("sparse", [False, True])
def test_kernel_is_that_of_the_network(start, dtype, sparse):
    network, X = _network(start=start, dtype=dtype, width=402), _rows(4500, dtype=dtype)
    fires = network.fire_sets(X).toarray().astype(float)
    expected = (fires @ fires[:37].T) * (X.astype(float) @ X[:37].T.astype(float)) / network.squared_divisor
    rows = network.check_rows(csr_array(X)) if sparse else X
    kernel = CentreKernel(network, rows[:37])
    found = np.vstack([K.copy() for _, K in kernel.blocks(rows)]) * kernel.unit
    assert np.abs(found - expected).max() <= 1e-6 * expected.max()
    assert np.abs(kernel.matrix * kernel.unit - expected[:37]).max() <= 1e-6 * expected.max()
    assert kernel.copies == (2 if start == "antisymmetric" else 1)


@pytest.mark.parametrize(("outputs", "copies"), [(1, 2), (2, 4), (3, 4), (4, 8), (9, 16)])
def test_outputs_of_an_orthogonal_start_share_no_gradient(outputs, copies):
    network, X = _network(outputs=outputs, width=480, start="orthogonal"), _rows(30)
    fires = network.fire_sets(X).toarray().astype(float)
    assert np.abs(network.predict(X)).max() <= 1e-11
    for k in range(outputs):
        for other in range(outputs):
            signs = network.output_weights[:, k] * network.output_weights[:, other]
            counts = (fires * signs) @ fires.T
            assert np.array_equal(counts, fires @ fires.T if k == other else np.zeros_like(counts))
    assert CentreKernel(network, X).copies % copies == 0


@pytest.mark.parametrize("outputs", [2, 5])
def test_one_round_solves_all_outputs_of_an_orthogonal_start(outputs):
    """Each output is that of a network of its own; one pass over the rows suffices."""
    X, rng = _rows(300), np.random.default_rng(1)
    Y = np.column_stack([np.sin((k + 1) * X[:, 0]) + X[:, 1] ** 2 for k in range(outputs)])
    weight = rng.uniform(0.5, 2.0, len(X))
    network = _network(outputs=outputs, width=3200, start="orthogonal")
    start = network.copy()
    solver = NystromGaussNewton(ridge=3e3, tol=1e-3, centres=60)
    result = train(network, X, Y, solver=solver, sample_weight=weight, max_iter=5)
    assert (result.stop_reason, solver.passes) == (StopReason.TOL, 1)
    for k in range(outputs):
        one = ShiftedReLUNetwork(start.weights, start.output_weights[:, k : k + 1], start.threshold, 1000.0)
        expected = _reference(one, X, solver._centres, Y[:, k], weight, 3e3, "squared_error")
        difference = np.abs(network.predict(X)[:, k] - expected)
        assert np.median(difference) <= 1e-10  # exact unless a pair changes state
        assert difference.max() <= 0.05


@pytest.mark.parametrize("width", [2, 63, 64, 65, 402])
@pytest.mark.parametrize("columns", [1, 21, 64, 65])
@pytest.mark.parametrize("threshold", [-0.5, 0.0, 1.0])
def test_passes_in_registers_agree_with_matrix_products(width, columns, threshold):
    network = ShiftedReLUNetwork.initialize(width, columns, threshold=threshold, seed=1, dtype="float32")
    X = _rows(700, columns, dtype=np.float32)
    engine, reference = create("dense", forward_only=True), create("dense")
    outputs = []
    for one in (engine, reference):
        one.start(network, X)
        outputs.append(one.forward())
    assert np.abs(outputs[0] - outputs[1]).max() <= 1e-5 * max(1.0, np.abs(outputs[1]).max())
    # In float32 the computed value decides pairs within rounding distance of the threshold.
    near = int((np.abs(X.astype(float) @ network.weights.T.astype(float) - threshold) < 1e-5).sum())
    assert abs(engine.work.active_pairs - reference.work.active_pairs) <= near
    kernel = CentreKernel(network, X)
    counts = network.fire_sets(X).toarray().sum(axis=1)
    assert abs(kernel.active_per_centre - counts.mean()) <= near / len(X)


def test_forward_in_registers_keeps_nan_and_overflow():
    network = ShiftedReLUNetwork.initialize(70, 3, threshold=0.5, seed=1, dtype="float32")
    X = _rows(5, 3, dtype=np.float32)
    for value in (np.float32(np.nan), np.float32(3e38)):
        network.weights[3] = value
        engine, reference = create("dense", forward_only=True), create("dense")
        with np.errstate(all="ignore"):
            for one in (engine, reference):
                one.start(network, X)
            assert np.array_equal(np.isfinite(engine.forward()), np.isfinite(reference.forward()))


@pytest.mark.parametrize("threshold", [-1.0, 0.5])
def test_bits_beyond_the_last_neuron_are_not_counted(threshold):
    network = ShiftedReLUNetwork.initialize(70, 3, threshold=threshold, seed=1, dtype="float64")
    X = _rows(9, 3)
    kernel = CentreKernel(network, X)
    counts = network.fire_sets(X).toarray().sum(axis=1)
    assert np.allclose(kernel.matrix.diagonal() * kernel.unit * network.squared_divisor, counts)


@pytest.mark.parametrize("loss", ["squared_error", "log_loss", "poisson"])
def test_fit_is_the_optimum_over_the_span(loss):
    X, network, ridge = _rows(300), _network(scale=1e5), 1e9  # a tenth of the diagonal of the kernel
    rng = np.random.default_rng(0)
    signal = np.sin(3 * X[:, 0]) + X[:, 1]
    y = {"squared_error": signal, "log_loss": (signal > 0) * 1.0, "poisson": rng.poisson(np.exp(signal))}[loss] * 1.0
    weight = rng.integers(0, 3, len(X)) * 1.0
    solver = NystromGaussNewton(ridge=ridge, tol=1e-9, centres=40)
    initial = network.copy()
    result = train(network, X, y, solver=solver, loss=loss, sample_weight=weight, tol=1e-9)
    expected = _reference(initial, X, solver._centres, y, weight, ridge, loss)
    assert result.stop_reason in (StopReason.TOL, StopReason.STALLED)
    assert solver.n_centres == 40
    assert (weight[solver._centres] > 0).all()
    assert np.abs(network.predict(X)[:, 0] - expected).max() <= 1e-3 * np.abs(expected).max()
    displacement = (network.weights - initial.weights).reshape(-1)
    span = _jacobian(initial, X[solver._centres])
    outside = displacement - span.T @ np.linalg.lstsq(span.T, displacement, rcond=None)[0]
    assert np.linalg.norm(outside) <= 1e-8 * np.linalg.norm(displacement)


def _output_columns(network, X, solver, scale):
    """Derivatives by the trained output weights, in coordinates with the penalty λ/2 ‖θ‖²; (n, q)."""
    q = solver._kernel.n_trained
    H = np.asarray(X, float) @ network.weights[:q].T.astype(float) - network.threshold
    return scale * network.output_scale / q**0.5 * np.maximum(H, 0.0)


@pytest.mark.parametrize(("start", "outputs"), [("antisymmetric", 1), ("orthogonal", 3), ("paper", 1)])
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_trained_outputs_give_the_optimum_over_both_spans(start, outputs, scale):
    X, rng, ridge = _rows(300), np.random.default_rng(1), 3e8
    Y = np.column_stack([np.sin((k + 2) * X[:, 0]) + X[:, 1] ** 2 for k in range(outputs)])
    weight = rng.uniform(0.5, 2.0, len(X))
    network = _network(outputs=outputs, width=1600, start=start, scale=1e5)
    initial = network.copy()
    Y += initial.predict(X)  # far from them, active pairs would change
    solver = NystromGaussNewton(ridge=ridge, tol=1e-9, centres=30, trained_outputs=scale)
    result = train(network, X, Y, solver=solver, sample_weight=weight, tol=1e-9)
    assert (result.details["centres"], result.details["trained_output_neurons"]) == (30, 30)
    Phi = _output_columns(initial, X, solver, scale)
    offset = initial.predict(X)
    for k in range(outputs):
        signs = initial.output_weights[:, k : k + 1]
        one = ShiftedReLUNetwork(initial.weights, signs, initial.threshold, initial.output_scale)
        J = _jacobian(one, X)
        A = np.hstack([J @ np.linalg.qr(J[solver._centres].T)[0], Phi])
        matrix = A.T @ (weight[:, None] * A) + ridge * np.eye(A.shape[1])
        expected = offset[:, k] + A @ np.linalg.solve(matrix, A.T @ (weight * (Y[:, k] - offset[:, k])))
        assert np.abs(network.predict(X)[:, k] - expected).max() <= 2e-3 * np.abs(expected - offset[:, k]).max()
    moved = np.flatnonzero((network.output_weights != initial.output_weights).any(axis=1))
    assert set(moved % (1600 // solver._kernel.copies)) == set(range(30))


def test_reported_loss_includes_the_penalty_of_output_weights():
    X, network = _rows(500, dtype=np.float32), _network(dtype="float32")
    initial, y = network.copy(), np.sin(3 * X[:, 0])
    solver = NystromGaussNewton(tol=3e-2, centres=60, trained_outputs=2.0)
    result = train(network, X, y, solver=solver, tol=3e-2)
    error = 0.5 * ((network.predict(X)[:, 0] - y) ** 2).sum()
    squares = float(((network.weights - initial.weights).astype(float) ** 2).sum())
    outputs = float(((network.output_weights - initial.output_weights).astype(float) ** 2).sum())
    factor = 2.0**2 * network.width / (60 * 2)
    penalty = 0.5 * result.details["ridge"] * (squares + outputs / factor)
    assert outputs > 0
    assert result.loss == pytest.approx(error + penalty, rel=1e-4)
    assert result.details["passes"] == 1


def test_more_trained_outputs_than_neurons():
    X, network = _rows(200), _network(width=20)
    result = train(network, X, X[:, 0], solver=NystromGaussNewton(centres=50, trained_outputs=True), tol=1e-3)
    assert result.details["trained_output_neurons"] == 10  # the other ten are copies
    assert result.loss < result.history[0].loss


def test_several_coupled_outputs_with_trained_outputs_converge():
    """At the paper's start outputs are coupled: the gradient is summed over all pairs, and rounds go on."""
    X = _rows(300)
    Y = np.column_stack([np.sin(3 * X[:, 0]), X[:, 1] * X[:, 2]])
    network = _network(outputs=2, width=2000, start="paper")
    solver = NystromGaussNewton(ridge=1e5, tol=1e-5, centres=50, trained_outputs=1.0)
    result = train(network, X, Y, solver=solver, tol=1e-5, max_iter=60)
    assert result.stop_reason in (StopReason.TOL, StopReason.STALLED)
    assert result.loss < 0.2 * result.history[0].loss


def test_ridge_of_many_rows_is_that_of_held_out_rows():
    """Few centres ask for a large ridge where rows are noisy; with many rows a smaller one predicts better."""
    rng = np.random.default_rng(0)
    X = _rows(18_000, dtype=np.float32)
    y = np.sin(6 * X[:, 0]) + X[:, 1] + rng.standard_normal(len(X))
    fitted, ridges = X[:16_400], []
    errors = []
    for ridge in ("auto", None):
        network = _network(width=2000, dtype="float32")
        if ridge is None:
            solver = NystromGaussNewton(tol=1e-2, centres=80)
            # 16,000 rows are too few to hold some out: the ridge of leave-one-out
            ridge = train(network.copy(), fitted[:16_000], y[:16_000], solver=solver, tol=1e-2).details["ridge"]
        solver = NystromGaussNewton(ridge=ridge, tol=1e-2, centres=80)
        ridges.append(train(network, fitted, y[:16_400], solver=solver, tol=1e-2).details["ridge"])
        errors.append(float(((network.predict(X[16_400:])[:, 0] - y[16_400:]) ** 2).mean()))
    assert ridges[0] < ridges[1]
    assert errors[0] <= errors[1] * 1.001


def test_held_out_ridge_is_that_of_fits_without_these_rows():
    rng = np.random.default_rng(0)
    Z, weight = rng.standard_normal((400, 30)), rng.integers(1, 3, 400).astype(float)
    target = Z[:, :3].sum(axis=1, keepdims=True) + 3 * rng.standard_normal((400, 1))
    held = np.arange(0, 400, 4)
    kept = np.setdiff1d(np.arange(400), held)
    residual = -weight[:, None] * target
    found = choose_held_out_ridge(
        Z.T @ (weight[:, None] * Z), Z.T @ residual, Z[held], residual[held], weight[held], 1.0
    )

    def error(ridge):
        inverse = np.linalg.inv(Z[kept].T @ (weight[kept, None] * Z[kept]) + ridge * np.eye(30))
        return float(((Z[held] @ inverse @ Z[kept].T @ (weight[kept, None] * target[kept]) - target[held]) ** 2).sum())

    assert error(found) <= min(error(found * 10**0.5), 1.0006 * error(found / 10**0.5))
    assert 10 < found < 1e4


def test_all_rows_as_centres_give_the_fit_of_gauss_newton():
    X = _rows(150)
    y = np.stack([np.sin(3 * X[:, 0]), X[:, 1] * X[:, 2]], axis=1)
    outputs = []
    for solver in (NystromGaussNewton(ridge=1e5, tol=1e-6), GaussNewton(ridge=1e5, tol=1e-6)):
        network = _network(outputs=2, width=2000)
        result = train(network, X, y, solver=solver, tol=1e-6)
        assert result.stop_reason is StopReason.TOL
        outputs.append((network.predict(X), result.loss))
    assert outputs[0][1] == pytest.approx(outputs[1][1], rel=1e-4)
    assert np.abs(outputs[0][0] - outputs[1][0]).max() <= 0.02


def test_reported_loss_is_that_of_the_returned_weights():
    X, network = _rows(500, dtype=np.float32), _network(dtype="float32")
    initial, y = network.weights.copy(), np.sin(3 * X[:, 0])
    result = train(network, X, y, solver="nystrom", tol=3e-2)
    error = 0.5 * ((network.predict(X)[:, 0] - y) ** 2).sum()
    penalty = 0.5 * result.details["ridge"] * float(((network.weights - initial).astype(float) ** 2).sum())
    assert result.loss == pytest.approx(error + penalty, rel=1e-4)
    assert result.stop_reason is StopReason.TOL
    assert result.details["passes"] == 1  # the estimate at the centres replaces a second pass
    assert result.history[0].loss == pytest.approx(0.5 * float(y @ y))


@pytest.mark.parametrize("bias", [1.0, 3.0])
def test_float32_solves_the_system_of_similar_rows(bias):
    """With a large bias coordinate all entries of the kernel are similar: float32 must not lose their differences."""
    rng = np.random.default_rng(0)
    X = np.hstack([rng.standard_normal((2000, 8)) / 8**0.5, np.full((2000, 1), bias)])
    X = (X / np.linalg.norm(X, axis=1)[:, None]).astype(np.float32)
    y = np.sin(6 * X[:, 0]) + 4 * X[:, 1] * X[:, 2]
    losses = []
    for dtype in ("float32", "float64"):
        network = _network(width=1500, d=9, dtype="float32", scale=1000.0)
        if dtype == "float64":
            network = ShiftedReLUNetwork(
                network.weights.astype(dtype), network.output_weights.astype(dtype), network.threshold, 1000.0
            )
        solver = NystromGaussNewton(ridge=5e3, tol=1e-2, centres=400)
        losses.append(train(network, X.astype(dtype), y, solver=solver, tol=1e-2, max_iter=1).loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 60),
    copies=st.integers(1, 4),
    constant=st.booleans(),
    outputs=st.integers(1, 3),
    centres=st.integers(1, 40),
    trained=st.sampled_from([0.0, 1.0, 100.0]),
    loss=st.sampled_from(["squared_error", "log_loss", "huber", "absolute_error"]),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 5),
)
def test_hard_rows(n, copies, constant, outputs, centres, trained, loss, dtype, seed):
    """Copies of rows, constant columns, zero weights, several outputs: the loss does not grow."""
    rng = np.random.default_rng(seed)
    X = np.repeat(_rows(n, seed=seed), copies, axis=0)
    if constant:
        X[:, 1:3] = 0.0
        X[:, 0] = np.where(X[:, 0] == 0, 1.0, X[:, 0])
        X /= np.linalg.norm(X, axis=1)[:, None]
    y = (
        rng.standard_normal((len(X), outputs))
        if loss != "log_loss"
        else np.eye(max(outputs, 2))[rng.integers(0, max(outputs, 2), len(X))][:, -outputs:]
    )
    weight = rng.integers(0, 2, len(X)) * 1.0
    weight[0] = 1.0
    network = _network(outputs=outputs, width=64, dtype=dtype)
    solver = NystromGaussNewton(tol=1e-3, centres=centres, trained_outputs=trained)
    result = train(network, X, y, solver=solver, loss=loss, sample_weight=weight, tol=1e-3, max_iter=60)
    assert solver.n_centres <= min(centres, n, np.count_nonzero(weight))
    assert result.loss <= result.history[0].loss * (1 + 1e-6)
    assert np.isfinite(network.weights).all()


def test_no_active_neuron():
    network = ShiftedReLUNetwork.initialize(10, 3, threshold=8.0, start="antisymmetric", output_scale=1000.0)
    result = train(network, _rows(20, 3), np.ones(20), solver="nystrom", tol=1e-3)
    assert result.details["centres"] == 0
    assert result.loss == pytest.approx(10.0)


def test_fit_does_not_depend_on_threads(monkeypatch):
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        network, X = _network(dtype="float32"), _rows(5000, dtype=np.float32)
        train(network, X, X[:, 0], solver=NystromGaussNewton(centres=100), tol=1e-3)
        found.append(network.weights)
    assert np.array_equal(*found)


@pytest.mark.parametrize("trained", [False, 2.0])
def test_resumed_run_ends_with_the_same_weights(tmp_path, trained):
    X = _rows(400)
    y = (X[:, 0] + 0.3 * X[:, 1] > 0) * 1.0

    def fit(folder, max_iter, resume=False):
        network = _network()
        solver = NystromGaussNewton(ridge=1e4, tol=1e-7, centres=50, trained_outputs=trained)
        checkpoint = Checkpoints(folder, every=1, resume=resume)
        result = train(
            network, X, y, solver=solver, loss="log_loss", tol=1e-7, max_iter=max_iter, checkpoint=checkpoint
        )
        return network, result

    whole, result = fit(tmp_path / "whole", 50)
    assert len(result.history) > 3
    fit(tmp_path / "cut", 2)
    resumed, again = fit(tmp_path / "cut", 50, resume=True)
    assert again.resumed_at is not None
    assert np.array_equal(whole.weights, resumed.weights)
    assert np.array_equal(whole.output_weights, resumed.output_weights)


def test_memory_limit_is_an_error_with_a_remedy():
    with pytest.raises(InputError, match="memory"):
        train(_network(), _rows(100), np.ones(100), solver="nystrom", memory="1M")


def test_memory_does_not_depend_on_active_pairs():
    solver, network = NystromGaussNewton(), _network(width=20_000)
    assert solver.extra_bytes(network, 10**7) == solver.extra_bytes(network, 10**6) < 1e9


def test_callback_keeps_the_best_network():
    X, network = _rows(300), _network()
    result = train(network, X, X[:, 0], solver="nystrom", callbacks=[lambda progress: progress.record.iteration == 1])
    assert result.stop_reason is StopReason.CALLBACK
    assert result.loss < 0.2 * result.history[0].loss


def test_centres_must_be_a_positive_number():
    with pytest.raises(InputError, match="centres"):
        NystromGaussNewton(centres=0)
