"""Gauss–Newton: optimality of the solution, preconditioners, convergence and checkpoints."""

import numpy as np
import pytest
from scipy.optimize import minimize

from fireset import (
    Checkpoints,
    InputError,
    ShiftedReLUClassifier,
    ShiftedReLUNetwork,
    ShiftedReLURegressor,
    Trainer,
    train,
)
from fireset.distributed.process_group import SINGLE_PROCESS
from fireset.distributed.row_shares import RowShares
from fireset.engines import create
from fireset.theory import fire_set_kernel
from fireset.theory.leave_one_out import RELATIVE_RIDGES, best_ridge
from fireset.training.losses import get_loss
from fireset.training.solvers import GaussNewton, linear_solver, preconditioners
from fireset.training.stopping import StopReason
from support.checks import sphere

RNG = np.random.default_rng(0)
X = sphere(RNG, 40, 5)
Y = np.stack([np.sin(3 * X[:, 0]) + X[:, 1], np.cos(4 * X[:, 2])], axis=1)
CLASSES = np.eye(3)[np.argmax(X[:, :3] + 0.3 * RNG.standard_normal((40, 3)), axis=1)]
WEIGHT = RNG.uniform(0.2, 3.0, 40)


def network(outputs: int = 1, scale: float = 10.0, dtype: str = "float64", width: int = 300) -> ShiftedReLUNetwork:
    return ShiftedReLUNetwork.initialize(
        width, 5, outputs, start="antisymmetric", output_scale=scale, threshold=0.8, seed=3, dtype=dtype
    )


def objective(one: ShiftedReLUNetwork, first: np.ndarray, y, loss: str, ridge: float, weight) -> float:
    u = one.predict(X)
    return get_loss(loss).value(u, y, weight) + 0.5 * ridge * float(((one.weights - first) ** 2).sum())


def gradient(one: ShiftedReLUNetwork, first: np.ndarray, y, loss: str, ridge: float, weight) -> np.ndarray:
    """Return the gradient of the objective by its definition."""
    u, fires = one.predict(X), one.fire_sets(X).toarray()
    e = get_loss(loss).residual(u, y, weight)
    return (fires * (e @ one.output_weights.T)).T @ X / one.divisor + ridge * (one.weights - first)


PROBLEMS = {
    "one output": (Y[:, :1], "squared_error", np.ones(40)),
    "two outputs": (Y, "squared_error", np.ones(40)),
    "weights": (Y, "squared_error", WEIGHT),
    "two classes": ((Y[:, :1] > 0.5) * 1.0, "log_loss", WEIGHT),
    "three classes": (CLASSES, "log_loss", np.ones(40)),
}


@pytest.mark.sweep(every=10)
@pytest.mark.parametrize("engine", ["dense", "data", "sums"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_gradient_of_the_objective_vanishes(problem, engine):
    y, loss, weight = PROBLEMS[problem]
    # Log loss moves the weights far on 40 rows. A larger scale makes the network nearly linear.
    scale = 10.0 if loss == "squared_error" else 1000.0
    ridge = 0.0005 * scale**2
    one = network(y.shape[1], scale)
    first = one.weights.copy()
    before = np.linalg.norm(gradient(one, first, y, loss, ridge, weight))
    solver = GaussNewton(ridge=ridge, tol=1e-6)
    result = train(one, X, y, loss=loss, sample_weight=weight, engine=engine, solver=solver, max_iter=60, tol=0)
    assert np.linalg.norm(gradient(one, first, y, loss, ridge, weight)) <= 1e-3 * before
    assert result.loss == pytest.approx(objective(one, first, y, loss, ridge, weight), rel=1e-9)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_solution_is_that_of_l_bfgs(problem):
    """SciPy's L-BFGS on all weights and pairs. At κ = 1000 the objective is nearly convex."""
    y, loss, weight = PROBLEMS[problem]
    ridge = 500.0
    one, other = network(y.shape[1], scale=1000.0), network(y.shape[1], scale=1000.0)
    first = one.weights.copy()
    result = train(
        one, X, y, loss=loss, sample_weight=weight, solver=GaussNewton(ridge=ridge, tol=1e-10), max_iter=60, tol=0
    )

    def function(flat: np.ndarray) -> tuple[float, np.ndarray]:
        other.weights[:] = flat.reshape(first.shape)
        return (
            objective(other, first, y, loss, ridge, weight),
            gradient(other, first, y, loss, ridge, weight).ravel(),
        )

    found = minimize(
        function,
        first.ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 5000, "gtol": 1e-9, "ftol": 1e-15, "maxcor": 30},
    )
    exact = loss == "squared_error"  # log loss would need more iterations
    assert result.loss == pytest.approx(found.fun, rel=1e-5 if exact else 2e-3)
    other.weights[:] = found.x.reshape(first.shape)
    if exact:  # softmax is invariant to a shift of all outputs
        np.testing.assert_allclose(one.predict(X), other.predict(X), rtol=0, atol=2e-3 * np.abs(y).max())


def test_five_iterations_suffice_for_a_nearly_linear_network():
    """The loss is within 1 % of the optimum of the linearized problem."""
    for scale in (10.0, 100.0):
        one = network(2, scale, width=2000)
        active = one.fire_sets(X)
        H = fire_set_kernel(X, active) * scale**2
        ridge = 0.1 * float(H.diagonal().mean())
        J = np.einsum("ir,rc,ij->icrj", active.toarray(), one.output_weights, X).reshape(Y.size, -1) / one.divisor
        K = J @ J.T
        optimum = 0.5 * ridge * float(Y.ravel() @ np.linalg.solve(K + ridge * np.eye(len(K)), Y.ravel()))
        result = train(one, X, Y, solver=GaussNewton(ridge=ridge), max_iter=5, tol=0)
        assert result.loss <= 1.01 * optimum or scale < 100
        assert result.loss <= 1.1 * optimum


def test_steps_that_increase_the_objective_are_undone():
    """At κ = 1 the network is far from linear, and damping is needed."""
    one = network(2, scale=1.0, width=60)
    result = train(one, X, 5 * Y, solver=GaussNewton(ridge=1e-4, tol=1e-4), max_iter=60, tol=0)
    losses = result.history.column("loss")
    assert (np.diff(losses) > 0).any()
    assert result.loss <= losses.min() * (1 + 1e-9)
    assert result.loss < 0.05 * losses[0]


def test_closed_form_leave_one_out_equals_refitting():
    engine = create("dense")
    engine.start(network(width=1000), X)
    H = fire_set_kernel(X, engine.fire_sets())
    chosen = best_ridge(H, Y, WEIGHT)
    R = np.sqrt(WEIGHT)

    def error(ridge: float) -> float:
        total = 0.0
        for i in range(40):
            k = np.delete(np.arange(40), i)
            A = R[k, None] * H[np.ix_(k, k)] * R[k] + ridge * np.eye(39)
            guess = H[i, k] @ (R[k, None] * np.linalg.solve(A, R[k, None] * Y[k]))
            total += WEIGHT[i] * float(((Y[i] - guess) ** 2).sum())
        return total / float((WEIGHT[:, None] * Y**2).sum())

    size = float((WEIGHT * H.diagonal()).mean())
    errors = [error(share * size) for share in RELATIVE_RIDGES]
    assert chosen.error == pytest.approx(error(chosen.ridge))
    assert chosen.error <= 1.01 * min(errors)
    assert chosen.ridge_index == RELATIVE_RIDGES.index(pytest.approx(chosen.ridge / size))
    larger = errors[chosen.ridge_index - 1]
    assert larger > chosen.error


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tangent_kernel_is_exact(dtype):
    engine = create("data")
    one = network(2, scale=3.0, dtype=dtype)
    engine.start(one, X.astype(dtype))
    expected = 9.0 * fire_set_kernel(X.astype(dtype), engine.fire_sets())
    found = preconditioners.tangent_kernel(engine, dtype=np.dtype(dtype).type)
    np.testing.assert_allclose(np.tril(found), np.tril(expected), rtol=0, atol=1e-6 if dtype == "float32" else 1e-14)
    rows = np.array([3, 7, 20])
    shares = RowShares(SINGLE_PROCESS, len(engine.X))
    columns = preconditioners.KernelColumns(engine, shares).of(rows)
    np.testing.assert_allclose(columns, expected[rows], rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        np.tril(preconditioners.KernelColumns(engine, shares).submatrix(rows)),
        np.tril(expected[np.ix_(rows, rows)]),
        rtol=0,
        atol=1e-6,
    )


def test_partial_cholesky_of_full_rank_is_the_inverse(monkeypatch):
    monkeypatch.setattr(preconditioners, "_MIN_PIVOT_GAIN", 0.0)  # else eigenvalues near ν are omitted
    engine = create("data")
    engine.start(network(1, scale=2.0, width=1000), X)
    roots = np.sqrt(WEIGHT)
    A = roots[:, None] * 4.0 * fire_set_kernel(X, engine.fire_sets()) * roots + 0.05 * np.eye(40)
    v = RNG.standard_normal((40, 2))
    whole = preconditioners.CholeskyPreconditioner(preconditioners.tangent_kernel(engine), roots, 0.05)
    expected = np.linalg.solve(A, v)
    np.testing.assert_allclose(whole.apply(v), expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    shares = RowShares(SINGLE_PROCESS, len(roots))
    partial = preconditioners.PartialCholeskyPreconditioner(
        preconditioners.KernelColumns(engine, shares), roots, 0.05, 40, SINGLE_PROCESS, shares
    )
    assert partial.shift >= 0.05
    expected = np.linalg.solve(A + (partial.shift - 0.05) * np.eye(40), v)
    np.testing.assert_allclose(partial.apply(v), expected, rtol=0, atol=2e-3 * np.abs(expected).max())


def test_an_indefinite_preconditioner_is_detected():
    """An unsolved system must not count as convergence."""

    class Negative:
        def apply(self, vector):
            return -vector

    solved = linear_solver.conjugate_residuals(
        lambda v: 2 * v, Negative(), np.ones((3, 1)), start=None, enough=lambda *_: False, max_products=5
    )
    assert not solved.sound


def test_a_partial_factor_gives_the_same_solution(monkeypatch):
    one, other = network(2), network(2)
    expected = train(one, X, Y, solver=GaussNewton(ridge=0.05, tol=1e-8), max_iter=40, tol=0)
    monkeypatch.setattr(linear_solver, "_MAX_CHOLESKY_ROWS", 10)
    monkeypatch.setattr(linear_solver, "_MAX_PIVOTS", 15)
    found = train(other, X, Y, solver=GaussNewton(ridge=0.05, tol=1e-8), max_iter=40, tol=0)
    assert found.loss == pytest.approx(expected.loss, rel=3e-3)  # the paths and the active pairs at the end differ


def test_validation_rows_do_not_affect_the_solution():
    one, other = network(scale=1000.0), network(scale=1000.0)
    train(one, X[:30], Y[:30, :1], solver=GaussNewton(ridge=500.0), max_iter=5, tol=0)
    held = X[30:], Y[30:, :1]
    result = train(other, X[:30], Y[:30, :1], solver=GaussNewton(ridge=500.0), max_iter=5, tol=0, validation=held)
    assert result.history[0].validation_loss is not None
    np.testing.assert_allclose(other.predict(X), one.predict(X), rtol=0, atol=1e-3)


@pytest.mark.parametrize("stop_at", [1, 2, 3])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, stop_at):
    """Also directly after a step that will be undone."""

    def run(folder, resume=False, stop=None):
        one = network(2, scale=1.0, width=60)
        asked = Checkpoints(folder, every=1, resume=resume)
        callbacks = [lambda progress: progress.record.iteration == stop]
        result = train(
            one, X, 5 * Y, solver=GaussNewton(ridge=1e-3), max_iter=12, tol=0, checkpoint=asked, callbacks=callbacks
        )
        return one, result

    whole, expected = run(tmp_path / "whole")
    run(tmp_path / "broken", stop=stop_at)
    again, found = run(tmp_path / "broken", resume=True)
    assert found.resumed_at == stop_at
    assert np.array_equal(again.weights, whole.weights)
    assert found.history.column("loss").tolist() == expected.history.column("loss").tolist()


@pytest.mark.filterwarnings("ignore:.*falling back")
def test_checkpoints_of_another_solver_are_refused(tmp_path):
    train(network(), X, Y[:, :1], solver=GaussNewton(), max_iter=3, tol=0, checkpoint=Checkpoints(tmp_path, every=1))
    again = Checkpoints(tmp_path, every=1, resume=True)
    with pytest.raises(InputError, match=r"solver \('gauss-newton' there, 'gradient' here\)"):
        train(network(), X, Y[:, :1], max_iter=3, tol=0, checkpoint=again)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ridge": 0}, r"ridge.*got 0$"),
        ({"ridge": True}, r"ridge.*got True$"),
        ({"ridge": "big"}, r"ridge.*got 'big'$"),
        ({"tol": -1}, r"tol.*got -1$"),
        ({"trained_outputs": -1.0}, r"trained_outputs.*got -1.0$"),
        ({"trained_outputs": float("nan")}, r"trained_outputs.*got nan$"),
        ({"trained_outputs": "auto"}, r"trained_outputs.*got 'auto'$"),
        ({"trained_outputs": 1e-9}, r"trained_outputs.*got 1e-09$"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(InputError, match=message):
        GaussNewton(**options)


def test_no_active_pairs_and_zero_targets():
    one = ShiftedReLUNetwork.initialize(50, 5, threshold=50.0, dtype="float64")
    result = train(one, X, Y[:, :1], solver=GaussNewton(), max_iter=5)
    assert result.stop_reason is StopReason.TOL
    still = network()
    assert train(still, X, np.zeros(40), solver=GaussNewton(), max_iter=5).loss == 0.0


def test_single_steps():
    trainer = Trainer(network(2), X, Y, solver=GaussNewton(ridge=0.05), tol=0)
    losses = [trainer.step().loss for _ in range(4)]
    assert losses[-1] < 0.1 * losses[0]


def test_a_small_reduction_from_a_reused_start_is_not_convergence():
    """Far from linear the kernel changes, and the last δ may be a bad start for the next system."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((300, 5))
    y = np.sin(2 * rows[:, :1]) + rows[:, 1:2] * rows[:, 2:3]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    losses = []
    for without_caches in (False, True):
        solver = GaussNewton(ridge=0.01, tol=1e-3)

        def drop_caches(_, solver=solver, without_caches=without_caches) -> None:
            if without_caches:
                solver.drop_caches()

        one = network(1, 10.0, width=1000)
        losses.append(train(one, rows, y, solver=solver, max_iter=100, tol=0, callbacks=[drop_caches]).loss)
    assert losses[0] <= 1.2 * losses[1]


@pytest.mark.parametrize("loss", ["squared_error", "log_loss"])
def test_the_first_system_of_a_narrow_network_is_solved(loss):
    """With few neurons the blocks that the preconditioner omits are large, and the first products gain nothing."""
    rng = np.random.default_rng(36)
    n, d, c, width = (int(rng.integers(low, high)) for low, high in ((60, 400), (2, 12), (2, 8), (50, 51)))
    X = rng.standard_normal((n, d))
    sums = X[:, 0] + 0.5 * X[:, -1] ** 2
    y = np.digitize(sums, np.quantile(sums, np.linspace(0, 1, c + 1)[1:-1]))
    model = ShiftedReLUClassifier(width=2 * width, solver="gauss-newton", loss=loss, random_state=0).fit(X, y)
    assert model.result_.loss < 0.9 * model.result_.history[0].loss


def test_narrow_networks_use_gradient_descent():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 3))
    for width, solver in ((49, "gradient"), (50, "gauss-newton"), ("auto", "gauss-newton")):
        model = ShiftedReLURegressor(width=width, random_state=0)
        model.prepare(X, X[:, 0])
        assert model.solver_ == solver


def test_a_slow_system_renews_the_preconditioner_of_other_curvatures(monkeypatch):
    """A partial factor is made again only if curvatures have changed since; few changed rows can make it useless."""
    monkeypatch.setattr(linear_solver, "FULL_CHOLESKY_ROWS", 10)
    monkeypatch.setattr(linear_solver, "_MAX_CHOLESKY_ROWS", 10)
    monkeypatch.setattr(linear_solver, "_MAX_PIVOTS", 20)
    rows, solver = sphere(RNG, 300, 5), GaussNewton(ridge=1.0)
    Trainer(network(scale=100.0), rows, rows[:, 0], solver=solver, engine="data").evaluate()
    linear, right = solver._linear, RNG.standard_normal((300, 1))
    for changed, kept in ((0, True), (3, False)):
        roots = np.ones((300, 1))
        roots[:changed] = 5.0
        solution = linear.solve(linear.system(roots, 1e-3), right, lambda *_: False)
        assert solution.products == linear_solver.MAX_PRODUCTS
        assert (linear._preconditioner is not None) == kept
