"""The engine ``sums`` on a circle: arcs instead of trees, compared with the dense engine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset.engines import StepRule, create
from fireset.engines.circle_sums import CircleSums, on_a_circle
from fireset.engines.half_space_sums import TreeSums
from support.problems import Problem
from support.side_by_side import STEPS, run_side_by_side


def circle(angles) -> np.ndarray:
    return np.column_stack([np.cos(angles), np.sin(angles)])


def targets(n: int, outputs: int = 1) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((n, outputs))


EVEN = np.arange(64) * (np.pi / 32)
CASES = {
    "random": Problem(circle(np.random.default_rng(0).uniform(-np.pi, np.pi, 80)), targets(80), 300, 0.7),
    "plain ReLU": Problem(circle(EVEN), targets(64), 300, 0.0),
    "below zero": Problem(circle(EVEN), targets(64), 300, -0.8),
    "several outputs": Problem(circle(EVEN), targets(64, 3), 300, 0.4),
    "everything fires": Problem(circle(EVEN), targets(64), 50, -30.0),
    "nothing fires": Problem(circle(EVEN), targets(64), 50, 30.0),
    "one sample": Problem(circle([0.3]), targets(1), 100, 0.5),
    "duplicates": Problem(circle(np.repeat([0.1, 2.0, -3.0], 15)), targets(45), 200, 0.6),
    "where the circle is cut": Problem(
        np.array([[-1.0, 0.0], [-1.0, -0.0], [-1.0, 1e-17], [-1.0, -1e-17], [1.0, 0.0]]), targets(5), 200, 0.3
    ),
    "crowded": Problem(circle(np.linspace(0.5, 0.5 + 1e-9, 50)), targets(50), 200, 0.5),
    "norms that differ a little": Problem(
        circle(EVEN) * (1 - 1e-4 * np.random.default_rng(2).random((64, 1))), targets(64), 300, 0.9
    ),
}


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("case", CASES)
def test_arcs_agree_with_dense(case, step):
    engine = create("sums")
    run_side_by_side(CASES[case], engine, 60, STEPS[step])
    assert isinstance(engine._sums, CircleSums)


@settings(max_examples=40)
@given(
    angles=st.lists(st.floats(-3.2, 3.2), min_size=1, max_size=40),
    threshold=st.floats(-2.0, 2.0),
    width=st.integers(2, 60),
    twice=st.booleans(),
)
def test_arcs_agree_with_dense_on_random_problems(angles, threshold, width, twice):
    X = circle(np.repeat(angles, 2) if twice else np.array(angles))
    run_side_by_side(Problem(X, targets(len(X)), width, threshold), create("sums"), 20, {})


def test_rows_on_the_boundary():
    """Weights with ⟨w, x⟩ equal to the threshold, or to the next number, for some row."""
    X = circle(EVEN)
    rng = np.random.default_rng(3)
    network = Problem(X, targets(64), 128, 0.75).network()
    for r in range(network.width):
        w = rng.standard_normal(2)
        w *= network.threshold / (w @ X[r % 64])
        network.weights[r] = np.nextafter(w, w * rng.choice([-1.0, 1.0, 2.0]))
    engine, dense = create("sums"), create("dense")
    for each in (engine, dense):
        each.start(network, X)
    np.testing.assert_allclose(engine.forward(), dense.forward(), rtol=0, atol=1e-12)
    assert engine.work.inner_products >= 64
    assert (engine.fire_sets() != dense.fire_sets()).nnz == 0


def unequal(exponent: float, outputs: int = 1, threshold: float = 0.6):
    """Return a problem on the circle with eight neurons of norms up to 10^exponent times those of the others."""
    problem = Problem(
        circle(np.random.default_rng(5).uniform(-np.pi, np.pi, 200)), targets(200, outputs), 300, threshold
    )
    network = problem.network()
    network.weights[:8] = circle(np.linspace(-0.5, 0.5, 8)) * 10.0 ** np.resize([exponent, exponent / 2], (8, 1))
    return problem, network


def active_scales(network, X: np.ndarray) -> np.ndarray:
    """Return Σ_{r active} |⟨w_r, x_i⟩ − b|/√m, the scale of the rounding errors of a prediction, for every row."""
    return np.maximum(X @ network.weights.T - network.threshold, 0).sum(axis=1)[:, None] / network.divisor


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("threshold", [0.6, 0.0, -0.4])
@pytest.mark.parametrize("exponent", [3, 9, 15])
def test_large_neurons_cause_no_errors_in_rows_that_they_are_not_active_for(exponent, threshold, outputs):
    problem, network = unequal(exponent, outputs, threshold)
    engine, dense = create("sums"), create("dense")
    for each in (engine, dense):
        each.start(network, problem.X)
    u, v = dense.forward(), engine.forward()
    scales = active_scales(network, problem.X)
    assert scales.min() < 10.0 ** (2 - exponent) * scales.max()
    assert (np.abs(v - u) <= 1e-12 * scales).all()
    # Residuals have different scales as well: the errors of a gradient depend on its own rows only.
    rows, expected = engine.gradient(u - problem.y).rows, dense.gradient(u - problem.y).rows
    scales = network.fire_sets(problem.X).T @ np.abs(u - problem.y).sum(axis=1) / network.divisor
    assert (np.abs(rows - expected) <= 1e-12 * scales[:, None]).all()
    direction = (u - problem.y) * 1e-3
    J = [network.fire_sets(problem.X).toarray() * network.output_weights[:, c] for c in range(outputs)]
    pulled = sum(J[c].T @ (direction[:, [c]] * problem.X) for c in range(outputs)) / network.divisor
    product = np.column_stack([((problem.X @ pulled.T) * J[c]).sum(axis=1) for c in range(outputs)]) / network.divisor
    parts = (np.abs(problem.X) @ np.abs(pulled).T * np.abs(J[0])).sum(axis=1)[:, None] / network.divisor
    assert (np.abs(engine.tangent_product(direction) - product) <= 1e-12 * parts).all()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("exponent", [9, 15])
def test_fire_sets_equal_those_of_dense_after_steps_with_large_neurons(exponent, step):
    """Uses rows without active large neurons: the predictions of the others have rounding errors of about 0.1."""
    fire_sets, weights = [], []
    for name in ("dense", "sums"):
        problem, network = unequal(exponent)
        apart = network.fire_sets(problem.X)[:, :8].sum(axis=1) == 0
        assert 20 < apart.sum() < 180
        engine, rule = create(name), StepRule(0.1, **STEPS[step])
        engine.start(network, problem.X)
        for _ in range(20):
            engine.step((engine.forward() - problem.y) * apart[:, None], rule)
        fire_sets.append(engine.fire_sets())
        weights.append(network.weights)
    assert (fire_sets[0] != fire_sets[1]).nnz == 0
    lengths = np.linalg.norm(weights[0], axis=1, keepdims=True)
    assert (np.abs(weights[1] - weights[0]) <= 1e-11 * lengths).all()


def test_on_a_circle():
    assert on_a_circle(circle(EVEN))
    assert on_a_circle(7.0 * circle(EVEN).astype(np.float32))
    assert not on_a_circle(circle(EVEN) * np.linspace(0.5, 1.0, 64)[:, None])
    assert not on_a_circle(np.zeros((3, 2)))
    assert not on_a_circle(np.eye(3))
    assert not on_a_circle(np.empty((0, 2)))


def test_rows_of_different_norms_use_the_tree():
    X = circle(EVEN) * np.linspace(0.5, 1.0, 64)[:, None]
    engine = create("sums")
    run_side_by_side(Problem(X, targets(64), 200, 0.4), engine, 30, {})
    assert isinstance(engine._sums, TreeSums)


def test_tangent_product_equals_that_of_the_fire_sets():
    problem = CASES["several outputs"]
    network, engine = problem.network(), create("sums")
    engine.start(network, problem.X)
    v = np.random.default_rng(4).standard_normal((64, 3))
    fires = engine.fire_sets().toarray()
    expected = np.zeros_like(v)
    for r in range(network.width):
        t = ((v @ network.output_weights[r]) * fires[:, r]) @ problem.X
        expected += np.outer(fires[:, r] * (problem.X @ t), network.output_weights[r])
    np.testing.assert_allclose(engine.tangent_product(v), expected / network.width, rtol=0, atol=1e-12)


def test_weights_that_overflow_give_nan_without_an_error():
    problem = CASES["random"]
    network, engine = problem.network("float32"), create("sums")
    engine.start(network, problem.X.astype(np.float32))
    with np.errstate(all="ignore"):
        engine.step(problem.y, StepRule(1e39))
        assert np.isnan(engine.forward()).all()
