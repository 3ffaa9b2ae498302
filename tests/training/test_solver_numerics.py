"""Numerical robustness of training: singular kernels, extreme scales, true stop reasons."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import make_friedman1

from fireset import InputError, ShiftedReLUClassifier, ShiftedReLUNetwork, ShiftedReLURegressor, Trainer, train
from fireset._util.cholesky import cholesky_with_jitter
from fireset._util.errors import InvariantError
from fireset.distributed.process_group import SINGLE_PROCESS
from fireset.distributed.row_shares import RowShares
from fireset.engines import create
from fireset.engines.blocks import BlockEngine
from fireset.engines.registry import ENGINES
from fireset.theory import fire_set_kernel
from fireset.theory.leave_one_out import best_ridge, leave_one_out
from fireset.theory.spectrum import ShiftedCholesky
from fireset.training.losses import get_loss
from fireset.training.solvers import GaussNewton, preconditioners
from fireset.training.solvers.base import Solver
from fireset.training.stopping import StopReason
from support.checks import sphere
from support.fixed_settings import FIXED

# Columns whose kernels are singular, or nearly so.
COLUMNS = {
    "one column": lambda rng, n: rng.uniform(0, 1, (n, 1)),
    "clusters": lambda rng, n: (
        np.repeat(rng.standard_normal((5, 2)), -(-n // 5), axis=0)[:n] + 1e-4 * rng.standard_normal((n, 2))
    ),
    "lognormal": lambda rng, n: rng.lognormal(0, 2, (n, 2)),
    "duplicates": lambda rng, n: rng.standard_normal((40, 3))[rng.integers(0, 40, n)],
    "constant": lambda _, n: np.full((n, 2), 3.0),
}
LOSSES = ("squared_error", "quantile", "log_loss")


def fit(kind: str, loss: str, n: int, seed: int):
    rng = np.random.default_rng(seed)
    X = COLUMNS[kind](rng, n)
    noisy = np.sin(6 * X[:, 0]) + 0.3 * rng.standard_normal(n)
    if loss == "log_loss":
        model = ShiftedReLUClassifier(random_state=seed)
        noisy = noisy > np.median(noisy)
    else:
        model = ShiftedReLURegressor(loss=loss, random_state=seed)
    return model.fit(X, noisy), X, noisy


def assert_learned(model, X) -> None:
    result = model.result_
    assert np.isfinite(model.predict(X)).all()
    assert np.isfinite(result.loss)
    assert result.loss <= result.history[0].loss


def test_a_noisy_column_of_2600_rows_is_fitted():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, 2600)
    model = ShiftedReLURegressor().fit(x[:, None], np.sin(6 * x) + 0.3 * rng.standard_normal(2600))
    assert model.score(x[:, None], np.sin(6 * x)) > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", COLUMNS)
@settings(max_examples=2, deadline=None)
@given(n=st.integers(2500, 4000), seed=st.integers(0, 1000))
def test_singular_kernels_are_fitted(kind, loss, n, seed):
    assert_learned(*fit(kind, loss, n, seed)[:2])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "loss"), list(zip(COLUMNS, [*LOSSES, *LOSSES], strict=False)))
def test_singular_kernels_of_2600_rows_are_fitted(kind, loss):
    assert_learned(*fit(kind, loss, 2600, 1)[:2])


class _Columns:
    """Columns of a matrix with the interface of ``KernelColumns``."""

    def __init__(self, matrix):
        self.matrix = matrix.astype(np.float32)

    def diagonal(self):
        return self.matrix.diagonal().astype(np.float64)

    def of(self, chosen):
        return self.matrix[chosen].copy()


def partial_factor(matrix, roots, shift, rank):
    return preconditioners.PartialCholeskyPreconditioner(
        _Columns(matrix), roots, shift, rank, SINGLE_PROCESS, RowShares(SINGLE_PROCESS, len(roots))
    )


@settings(max_examples=20, deadline=None)
@given(
    rank=st.integers(0, 12),
    size=st.sampled_from([1e-30, 1e-3, 1.0, 1e6, 1e30]),
    shift=st.sampled_from([1e-12, 1e-5, 0.1, 10.0, 1e50, 1e97]),  # the largest as damping of steps that fail
    seed=st.integers(0, 10_000),
)
def test_preconditioners_of_singular_matrices_are_positive(rank, size, shift, seed):
    """Also if float32 cannot represent the matrix: it is divided by its mean diagonal."""
    rng = np.random.default_rng(seed)
    F = np.repeat(rng.standard_normal((60, rank)), 3, axis=0)
    kernel = F @ F.T / max(rank, 1)
    roots = np.sqrt(size) * rng.uniform(0.5, 2.0, len(F))
    vectors = rng.standard_normal((len(F), 3))
    partial = partial_factor(kernel, roots, shift * size, 150)
    assert partial.rank <= rank + 2  # rounding may add a pivot or two
    whole = preconditioners.CholeskyPreconditioner(kernel.astype(np.float32), roots, shift * size)
    for made in (partial, whole):
        applied = made.apply(vectors)
        assert np.isfinite(applied).all()
        assert ((vectors * applied).sum(axis=0) > 0).all()


def test_a_partial_factor_of_a_singular_kernel_is_accurate():
    """Dependent pivots are dropped."""
    rng = np.random.default_rng(0)
    rows = np.repeat(sphere(rng, 25, 4), 12, axis=0)
    engine = create("data")
    engine.start(ShiftedReLUNetwork.initialize(400, 4, threshold=0.5, seed=0, dtype="float32"), rows.astype(np.float32))
    kernel = fire_set_kernel(rows, engine.fire_sets())
    shares = RowShares(SINGLE_PROCESS, 300)
    made = preconditioners.PartialCholeskyPreconditioner(
        preconditioners.KernelColumns(engine, shares), np.ones(300), 1e-4, 200, SINGLE_PROCESS, shares
    )
    assert made.rank <= 25
    v = rng.standard_normal((300, 2))
    expected = np.linalg.solve(kernel + made.shift * np.eye(300), v)
    np.testing.assert_allclose(made.apply(v), expected, rtol=0, atol=2e-3 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_indefinite_matrices_get_sufficient_jitter(dtype):
    matrix = np.array([[1.0, 0.0], [1.5, 1.0]], dtype)  # the lower triangle; eigenvalues −0.5 and 2.5
    factor, jitter = cholesky_with_jitter(matrix.copy)
    assert 0.5 < jitter <= 5.0
    lower = np.tril(factor)
    np.testing.assert_allclose(lower @ lower.T, [[1 + jitter, 1.5], [1.5, 1 + jitter]], rtol=1e-6)
    assert cholesky_with_jitter(lambda: np.eye(3, dtype=dtype))[1] == 0.0
    assert cholesky_with_jitter(lambda: np.zeros((3, 3), dtype))[1] == 1.0
    assert np.isfinite(cholesky_with_jitter(lambda: -np.ones((5, 5), dtype))[0].diagonal()).all()


def test_matrices_that_are_not_finite_are_refused():
    with pytest.raises(FloatingPointError):
        cholesky_with_jitter(lambda: np.full((3, 3), np.nan))
    with pytest.raises(FloatingPointError):
        ShiftedCholesky(np.array([[1.0, np.nan], [np.nan, 1.0]]))
    for roots in (np.full(3, np.inf), np.full(3, np.nan)):
        with pytest.raises(FloatingPointError):
            preconditioners.CholeskyPreconditioner(np.eye(3, dtype=np.float32), roots, 1.0)


def test_a_singular_kernel_is_shifted_until_it_can_be_factored():
    kernel = np.ones((40, 40))
    kernel[0, 0] = 0.99999999  # indefinite
    factor = ShiftedCholesky(kernel)
    assert factor.shift > 1e-8
    assert np.isfinite(factor.solve(np.ones(40))).all()


@pytest.mark.parametrize("size", [1e-200, 1e-60, 1e60, 1e200])
def test_leave_one_out_does_not_depend_on_the_scale_of_weights(size):
    rng = np.random.default_rng(0)
    F = rng.standard_normal((30, 12))
    kernel, targets, weight = (F @ F.T).astype(np.float32), rng.standard_normal((30, 2)), rng.uniform(0.5, 2, 30)
    expected = leave_one_out(kernel, targets, weight, 0.3)
    found = leave_one_out(kernel, targets, weight * size, 0.3 * size)
    np.testing.assert_allclose(found.errors, expected.errors, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-4, atol=1e-5)
    assert best_ridge(kernel, targets, weight * size).ridge_index == best_ridge(kernel, targets, weight).ridge_index


# Scales of sample weights

TABLE = np.random.default_rng(5).standard_normal((60, 3))
TARGET = TABLE[:, 0] + np.sin(TABLE[:, 1])
WEIGHT = np.random.default_rng(6).uniform(0.5, 2.0, 60)
UNIT_ROWS = sphere(np.random.default_rng(7), 60, 4)


@pytest.mark.parametrize("solver", ["gauss-newton", "gradient"])
@pytest.mark.parametrize("exponent", [-700, -333, -166, 166, 333])
def test_a_power_of_two_in_all_sample_weights_changes_nothing(solver, exponent):
    def fitted(weight):
        model = ShiftedReLURegressor(solver=solver, max_iter=20, width=500, random_state=0, **FIXED)
        return model.fit(TABLE, TARGET, sample_weight=weight)

    with pytest.warns() if solver == "gradient" else np.errstate():  # max_iter is too few for descent
        expected, found = fitted(WEIGHT), fitted(WEIGHT * 2.0**exponent)
    np.testing.assert_array_equal(found.predict(TABLE), expected.predict(TABLE))
    assert found.result_.loss == expected.result_.loss * 2.0**exponent
    assert found.score(TABLE, TARGET) > 0.9


@pytest.mark.parametrize("weight", [1e-100, 1e-50, 1e50])
def test_tiny_and_huge_sample_weights_learn(weight):
    weights = np.full(60, weight)
    assert ShiftedReLURegressor(random_state=0).fit(TABLE, TARGET, sample_weight=weights).score(TABLE, TARGET) > 0.99
    classes = TARGET > 0
    assert ShiftedReLUClassifier(random_state=0).fit(TABLE, classes, sample_weight=weights).score(TABLE, classes) > 0.9


@pytest.mark.parametrize(
    "options", [{"ridge": 3.0}, {"learning_rate": 0.01}, {"learning_rate": 0.01, "batch_size": 20}]
)
def test_ridge_and_learning_rate_scale_with_the_weights(options):
    """Weights times c need a ridge times c, or a rate divided by c."""
    solver = "gauss-newton" if "ridge" in options else "gradient"
    scale = 2.0**-200
    scaled = {name: value * scale if name == "ridge" else value for name, value in options.items()}
    scaled |= {"learning_rate": options["learning_rate"] / scale} if "learning_rate" in options else {}
    networks = [ShiftedReLUNetwork.initialize(200, 4, threshold=0.5, seed=0, start="antisymmetric") for _ in range(2)]
    results = [
        train(networks[k], UNIT_ROWS, UNIT_ROWS[:, 0], solver=solver, sample_weight=WEIGHT * (1.0, scale)[k], **given)
        for k, given in enumerate((options | {"max_iter": 5}, scaled | {"max_iter": 5}))
    ]
    np.testing.assert_array_equal(networks[0].weights, networks[1].weights)
    assert results[1].loss == results[0].loss * scale
    assert results[1].learning_rate == pytest.approx(results[0].learning_rate / (1.0 if "ridge" in options else scale))
    if "ridge" in options:
        assert results[1].details["ridge"] == results[0].details["ridge"] * scale


@pytest.mark.parametrize("ridge", [1e-50, 1e-300])
def test_a_ridge_next_to_zero_interpolates(ridge):
    assert ShiftedReLURegressor(ridge=ridge, random_state=0).fit(TABLE, TARGET).score(TABLE, TARGET) > 0.999


# Stop reasons


def several_outputs(rows: int, outputs: int, seed: int):
    rng = np.random.default_rng(seed)
    X = sphere(rng, rows, 6)
    return X, np.stack([np.sin(4 * X[:, k]) + 0.3 * rng.standard_normal(rows) for k in range(outputs)], axis=1)


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [10.0, 1000.0])
def test_absolute_error_of_several_outputs_ends_at_its_minimum(scale, seed):
    """Curvatures differ by a factor of 100 between the outputs of a row."""
    X, y = several_outputs(120, 3, seed)
    one = ShiftedReLUNetwork.initialize(
        600, 6, 3, start="antisymmetric", output_scale=scale, threshold=0.5, seed=seed, dtype="float64"
    )
    settings = {"loss": "absolute_error", "max_iter": 300, "tol": 0}
    found = train(one, X, y, solver=GaussNewton(ridge=1e-4 * scale**2, tol=1e-3), **settings)
    other = ShiftedReLUNetwork.initialize(
        600, 6, 3, start="antisymmetric", output_scale=scale, threshold=0.5, seed=seed, dtype="float64"
    )
    best = train(other, X, y, solver=GaussNewton(ridge=1e-4 * scale**2, tol=1e-6), **settings)
    assert found.stop_reason in (StopReason.TOL, StopReason.STALLED)
    assert found.loss <= 1.1 * best.loss


@pytest.mark.slow  # beside the test above
def test_systems_of_several_outputs_are_solved():
    """With one preconditioner for all outputs, training stopped 10 % above the minimum."""
    X, y = make_friedman1(400, noise=1, random_state=0)
    noise = 0.1 * np.random.default_rng(0).standard_normal(400)
    targets = np.stack([y, noise - X[:, 0], X[:, 3] ** 2], axis=1)
    model = ShiftedReLURegressor(loss="absolute_error", random_state=0, width=4000)
    least = clone(model).set_params(tol=1e-7, max_iter=1000).fit(X, targets).result_
    assert model.fit(X, targets).result_.loss < 1.02 * least.loss


def test_poisson_with_huge_first_outputs_does_not_converge_at_once():
    """The first outputs are ±1000. The loss is linear above e^300 and continues to decrease."""
    X = UNIT_ROWS
    one = ShiftedReLUNetwork.initialize(400, 4, output_scale=1000.0, threshold=0.5, seed=0, start="paper")
    result = train(one, X, np.exp(X[:, 0]), loss="poisson", solver=GaussNewton(ridge=100.0), max_iter=20, tol=0)
    assert result.stop_reason is not StopReason.TOL
    assert result.loss < result.history[0].loss


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("solver", ["gauss-newton", "gradient"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_poisson_from_a_start_far_from_all_targets_has_a_true_stop_reason(solver, dtype):
    """The first means are e^±230. A ridge in units of such curvatures kept the weights there."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3))
    y = rng.poisson(np.exp(0.5 * X[:, 0]))
    settings = {"start": "paper", "output_scale": 1000.0, "width": 200, "random_state": 0, **FIXED}
    result = ShiftedReLURegressor(loss="poisson", solver=solver, dtype=dtype, **settings).fit(X, y).result_
    assert result.stop_reason is not StopReason.TOL or result.loss < 1e-60 * result.history[0].loss


@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "huber"])
def test_a_plateau_above_zero_weights_does_not_count_as_converged(loss):
    """With tiny steps the loss is constant, and far above that of weights of 0."""
    X = UNIT_ROWS
    one = ShiftedReLUNetwork.initialize(400, 4, output_scale=1000.0, threshold=0.5, seed=0, start="paper")
    options = {"solver": "gradient", "learning_rate": 1e-250, "max_iter": 60, "tol": 1e-4}
    assert train(one, X, np.exp(X[:, 0]), loss=loss, **options).stop_reason is StopReason.STALLED


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_ridge_whose_square_overflows_is_used():
    """A ridge of 1e-3 at weights of 1e-200 is 1e197 in units of the weights."""
    X = np.random.default_rng(0).standard_normal((40, 2))
    model = ShiftedReLURegressor(width=200, ridge=1e-3, solver="gauss-newton", random_state=0)
    assert_learned(model.fit(X, X[:, 0], sample_weight=np.full(40, 1e-200)), X)


@pytest.mark.parametrize("case", ["zero", "negative", "not a number", "one"])
def test_zero_pivots_add_nothing(case):
    """LAPACK then returns no order of the pivots."""
    rows = {"zero": 0.0, "negative": -1.0, "not a number": np.nan, "one": 1.0}[case] * np.ones((3, 10), np.float32)
    new = np.zeros((3, 10), np.float32)
    shares = RowShares(SINGLE_PROCESS, 10)
    added = preconditioners._add_pivots(rows, np.ones(10), np.arange(3), np.zeros((0, 10), np.float32), new, shares)
    assert added == (case == "one")


@pytest.mark.parametrize("threshold", [0.0, 3.0, 6.0])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_two_neurons_and_2600_rows(threshold):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2600, 2))
    settings = {"width": 2, "solver": "gauss-newton", "threshold": threshold, "random_state": 0, **FIXED}
    assert_learned(ShiftedReLURegressor(**settings).fit(X, np.sin(X[:, 0])), X)


def test_poisson_is_convex_and_smooth_beyond_the_largest_mean():
    loss, one, nothing = get_loss("poisson"), np.ones(1), np.zeros((1, 1))
    u = np.linspace(290.0, 310.0, 201)
    values = np.array([loss.value(np.array([[v]]), nothing, one) for v in u])
    slopes = np.array([loss.residual(np.array([[v]]), nothing, one)[0, 0] for v in u])
    assert (np.diff(slopes) >= 0).all()
    assert (np.diff(values) >= slopes[:-1] * np.diff(u) * (1 - 1e-9)).all()
    assert (np.diff(values) <= slopes[1:] * np.diff(u) * (1 + 1e-9)).all()


@pytest.mark.parametrize("seed", range(3))
def test_rounding_never_returns_a_network_worse_than_the_start(seed):
    """float32 at an output scale of 1e6: steps are of the size of rounding."""
    X = UNIT_ROWS.astype(np.float32)
    y = 0.01 * np.sin(3 * X[:, :1])
    one = ShiftedReLUNetwork.initialize(
        2000, 4, start="antisymmetric", output_scale=1e6, threshold=0.5, seed=seed, dtype="float32"
    )
    first = 0.5 * float(((one.predict(X) - y) ** 2).sum())
    try:
        train(one, X, y, solver=GaussNewton(), max_iter=50, tol=0)
    except InputError:
        return
    assert 0.5 * float(((one.predict(X) - y) ** 2).sum()) <= first * 1.01


class Worsening(Solver):
    """Sets ``converged`` at weights that are worse than the initial ones."""

    name = "worsening"

    def step(self, progress):  # noqa: ARG002
        self.run.network.weights[:] = -5.0 * self.run.network.weights
        self.run.engine.start(self.run.network, self.run.engine.X)
        self.converged = len(self.run.history) > 1

    def finish(self):
        self.run.best._copy.record = self.run.best._current  # an error that hides the start


def test_a_violated_invariant_names_the_settings():
    one = ShiftedReLUNetwork.initialize(100, 4, threshold=0.5, seed=0)
    with pytest.raises(InvariantError) as raised:
        train(one, UNIT_ROWS, UNIT_ROWS[:, 0], solver=Worsening(), engine="dense", max_iter=5)
    for fact in ("engine='dense'", "width=100", "rows=60", "dtype='float32'", "sample_weight="):
        assert fact in str(raised.value)


# Weights changed by the caller


def test_trained_outputs_in_blocks_report_the_loss_of_the_returned_weights():
    networks = [ShiftedReLUNetwork.initialize(1200, 4, threshold=0.3, seed=0, dtype="float64") for _ in range(2)]
    y = np.sin(5 * UNIT_ROWS[:, 0])
    results = [
        train(one, UNIT_ROWS, y, engine=engine, trained_outputs=True, learning_rate=0.5, max_iter=6, tol=0)
        for one, engine in zip(networks, (BlockEngine(3), "data"), strict=True)
    ]
    actual = 0.5 * float(((networks[0].predict(UNIT_ROWS)[:, 0] - y) ** 2).sum())
    assert results[0].loss == pytest.approx(actual, rel=1e-9)
    np.testing.assert_allclose(results[0].history.column("loss"), results[1].history.column("loss"), rtol=1e-9)


@pytest.mark.parametrize("what", ["weights", "output_weights"])
@pytest.mark.parametrize("name", sorted(ENGINES))
def test_weights_edited_between_steps_are_refused_by_every_engine(name, what):
    X = UNIT_ROWS[:, :2] / np.linalg.norm(UNIT_ROWS[:, :2], axis=1, keepdims=True)
    one = ShiftedReLUNetwork.initialize(64, 2, threshold=0.5, seed=0, dtype="float64")
    trainer = Trainer(one, X, X[:, 0], engine=name, learning_rate=0.01, tol=0)
    trainer.step()
    trainer.step()
    getattr(one, what)[3] *= -2.0
    for proceed in (trainer.step, trainer.run, lambda: trainer.use_rows(X, X[:, 0])):
        with pytest.raises(InputError, match=what):
            proceed()
    getattr(one, what)[3] /= -2.0
    trainer.step()  # the original weights are accepted


def test_weights_edited_before_the_first_step_are_refused():
    one = ShiftedReLUNetwork.initialize(64, 4, threshold=0.5, seed=0)
    trainer = Trainer(one, UNIT_ROWS, UNIT_ROWS[:, 0])
    one.weights[[3, 5]] = one.weights[[5, 3]]
    with pytest.raises(InputError, match="weights"):
        trainer.run()


@pytest.mark.parametrize("solver", ["gauss-newton", "gradient"])
@pytest.mark.parametrize("output_scale", [1e-200, 1e-30, 1e10, 1e40, 1e200])
def test_extreme_output_scales_are_refused(output_scale, solver):
    with pytest.raises(InputError, match="output_scale"):
        ShiftedReLURegressor(output_scale=output_scale, solver=solver, width=200).fit(TABLE, TARGET)
