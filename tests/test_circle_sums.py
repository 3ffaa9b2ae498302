"""The engine ``sums`` on a circle: arcs instead of trees, held against the dense engine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset.engines import StepRule, create
from fireset.engines.circle_sums import CircleSums, on_a_circle
from fireset.engines.half_space_sums import TreeSums
from problems import Problem
from side_by_side import STEPS, run_side_by_side


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


@pytest.mark.sweep(every=4)
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


def test_samples_on_the_boundary_are_asked_one_by_one():
    """Weights made so that ⟨w, x⟩ is the threshold or a neighbour of it for some sample."""
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


def test_which_samples_lie_on_a_circle():
    assert on_a_circle(circle(EVEN))
    assert on_a_circle(7.0 * circle(EVEN).astype(np.float32))
    assert not on_a_circle(circle(EVEN) * np.linspace(0.5, 1.0, 64)[:, None])
    assert not on_a_circle(np.zeros((3, 2)))
    assert not on_a_circle(np.eye(3))
    assert not on_a_circle(np.empty((0, 2)))


def test_rows_of_different_norms_are_left_to_the_tree():
    X = circle(EVEN) * np.linspace(0.5, 1.0, 64)[:, None]
    engine = create("sums")
    run_side_by_side(Problem(X, targets(64), 200, 0.4), engine, 30, {})
    assert isinstance(engine._sums, TreeSums)


def test_tangent_product_is_that_of_the_fire_sets():
    problem = CASES["several outputs"]
    network, engine = problem.network(), create("sums")
    engine.start(network, problem.X)
    v = np.random.default_rng(4).standard_normal((64, 3))
    fires = engine.fire_sets().toarray()
    expected = np.zeros_like(v)
    for r in range(network.width):
        t = ((v @ network.signs[r]) * fires[:, r]) @ problem.X
        expected += np.outer(fires[:, r] * (problem.X @ t), network.signs[r])
    np.testing.assert_allclose(engine.tangent_product(v), expected / network.width, rtol=0, atol=1e-12)


def test_weights_beyond_all_bounds_give_no_number_and_no_error():
    problem = CASES["random"]
    network, engine = problem.network("float32"), create("sums")
    engine.start(network, problem.X.astype(np.float32))
    with np.errstate(all="ignore"):
        engine.step(problem.y, StepRule(1e39))
        assert np.isnan(engine.forward()).all()
