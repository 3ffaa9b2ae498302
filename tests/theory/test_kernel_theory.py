"""Shifted neural tangent kernel against simulation and limits; eigenvalues against dense matrices."""

from math import pi, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.special import ndtr

from fireset import ShiftedReLUNetwork
from fireset.engines import StepRule
from fireset.theory import largest_eigenvalue, shifted_ntk, smallest_eigenvalue
from support.checks import sphere
from support.problems import hard_cases, problems


def explicit(X, output_weights, active, weight=None) -> np.ndarray:
    """D^½ (1/m) J Jᵀ D^½ over all pairs (sample, output) as a dense matrix."""
    n, c = len(X), output_weights.shape[1]
    root = np.sqrt(np.ones(n) if weight is None else weight)
    both = np.einsum("ir,jr,rc,re->icje", active * 1.0, active * 1.0, output_weights, output_weights, optimize=True)
    kernel = both * (X @ X.T)[:, None, :, None] * np.outer(root, root)[:, None, :, None]
    return kernel.reshape(n * c, n * c) / output_weights.shape[0]


# H^cts


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 0.7, 1.5])
def test_shifted_ntk_agrees_with_simulation(threshold):
    rng = np.random.default_rng(0)
    X = sphere(rng, 6, 3)
    X = np.concatenate([X, -X[:1], X[:1] + 0.05 * X[1:2]])
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    count = 200_000
    fires = (rng.standard_normal((count, 3)) @ X.T > threshold).astype(float)
    seen = fires.T @ fires / count
    inner = X @ X.T
    probability = shifted_ntk(X, threshold) / inner
    error = np.sqrt(np.clip(probability * (1 - probability), 0, None) / count) + 1 / count
    assert (np.abs(seen - probability) <= 5 * error).all()


def test_shifted_ntk_at_threshold_zero_is_the_arc_cosine_kernel():
    X = sphere(np.random.default_rng(1), 20, 4)
    inner = np.clip(X @ X.T, -1, 1)
    np.testing.assert_allclose(shifted_ntk(X, 0.0), inner * (pi - np.arccos(inner)) / (2 * pi), atol=1e-8)


@pytest.mark.parametrize("threshold", [-1.0, 0.0, 0.8, 3.0])
def test_limits_of_correlation(threshold):
    """Activity is equal for equal rows, disjoint for opposite rows if b ≥ 0, independent for orthogonal rows."""
    X = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    kernel = shifted_ntk(X, threshold)
    one = ndtr(-threshold)
    assert kernel[0, 0] == pytest.approx(one, abs=1e-15)
    assert kernel[0, 1] == pytest.approx(one, abs=1e-15)
    assert kernel[0, 2] == pytest.approx(-max(0.0, 1 - 2 * ndtr(threshold)), abs=1e-15)
    assert kernel[0, 3] == 0.0


@pytest.mark.parametrize("threshold", [-1.0, 0.0, 1.2])
@pytest.mark.parametrize("side", [1.0, -1.0])
def test_the_limits_are_reached_continuously(threshold, side):
    values = []
    for angle in (1e-2, 1e-4, 1e-6):
        X = np.array([[1.0, 0.0], [side * np.cos(angle), np.sin(angle)]])
        values.append(shifted_ntk(X, threshold)[0, 1])
    limit = shifted_ntk(np.array([[1.0, 0.0], [side, 0.0]]), threshold)[0, 1]
    gaps = np.abs(np.array(values) - limit)
    assert (gaps <= np.array([1e-2, 1e-4, 1e-6])).all()


@settings(max_examples=30)
@given(problems())
def test_shifted_ntk_is_symmetric_and_positive(problem):
    kernel = shifted_ntk(problem.X, problem.threshold)
    np.testing.assert_allclose(kernel, kernel.T, rtol=0, atol=1e-15)
    assert np.isfinite(kernel).all()
    np.testing.assert_allclose(np.diag(kernel), ndtr(-problem.threshold), rtol=1e-12)
    # Rounding of a correlation near 1 changes the probability by its square root.
    assert smallest_eigenvalue(kernel) >= -1e-7 * len(kernel)


def test_kernel_of_the_network_tends_to_shifted_ntk():
    network = ShiftedReLUNetwork.initialize(100_000, 5, threshold=0.8, dtype="float64")
    X = sphere(np.random.default_rng(0), 8, 5)
    active = network.fire_sets(X).toarray() * 1.0
    kernel = (X @ X.T) * (active @ active.T) / network.width
    assert np.abs(kernel - shifted_ntk(X, 0.8)).max() < 5 * 0.5 / sqrt(network.width)


def test_smallest_eigenvalue_is_dense():
    A = np.random.default_rng(0).standard_normal((20, 20))
    assert smallest_eigenvalue(A @ A.T) == pytest.approx(np.linalg.eigvalsh(A @ A.T)[0], rel=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equal_rows_make_the_kernel_singular(dtype):
    for seed in range(30):
        X = sphere(np.random.default_rng(seed), 6, 5).astype(dtype)
        assert smallest_eigenvalue(shifted_ntk(np.concatenate([X[:2], X]), 1.0)) < 1e-14


# H(t)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("case", hard_cases())
def test_largest_eigenvalue_is_dense(case, weighted):
    problem = hard_cases()[case]
    network = problem.network()
    active = network.fire_sets(problem.X)
    weight = np.random.default_rng(0).integers(0, 4, len(problem.X)).astype(float) if weighted else None
    if weight is not None:
        weight[0] = 1.5
    top = np.linalg.eigvalsh(explicit(problem.X, network.output_weights, active.toarray(), weight))[-1]
    found = largest_eigenvalue(problem.X, network.output_weights, active, weight)
    assert found <= top * (1 + 1e-12) + 1e-15
    assert found >= 0.9 * top  # a lower bound; the learning rate has a margin of a factor 2
    sharp = largest_eigenvalue(problem.X, network.output_weights, active, weight, tolerance=1e-10, max_products=20_000)
    assert sharp == pytest.approx(top, rel=1e-4, abs=1e-12)


def test_largest_eigenvalue_without_active_pairs():
    problem = hard_cases()["nothing fires"]
    network = problem.network()
    active = network.fire_sets(problem.X)
    assert active.nnz == 0
    assert largest_eigenvalue(problem.X, network.output_weights, active) == 0.0


def test_largest_eigenvalue_with_weights_of_zero():
    problem = hard_cases()["random"]
    network = problem.network()
    active = network.fire_sets(problem.X)
    assert largest_eigenvalue(problem.X, network.output_weights, active, np.zeros(len(problem.X))) == 0.0


def test_a_sample_weight_of_two_equals_the_row_twice():
    problem = hard_cases()["several outputs"]
    network = problem.network()
    counts = np.arange(len(problem.X)) % 3
    often = np.repeat(problem.X, counts, axis=0)
    assert largest_eigenvalue(
        problem.X, network.output_weights, network.fire_sets(problem.X), counts.astype(float)
    ) == pytest.approx(largest_eigenvalue(often, network.output_weights, network.fire_sets(often)), rel=1e-10)


def test_float32_agrees_with_float64():
    problem = hard_cases()["several outputs"]
    wide, narrow = problem.network(), problem.network("float32")
    active = wide.fire_sets(problem.X)
    X = problem.X.astype(np.float32)
    assert largest_eigenvalue(X, narrow.output_weights, active) == pytest.approx(
        largest_eigenvalue(problem.X, wide.output_weights, active), rel=1e-4
    )


@pytest.mark.parametrize("case", ["random", "several outputs", "plain ReLU", "duplicates", "everything fires"])
def test_the_sums_engine_multiplies_by_the_kernel(case):
    """H v computed by the tree equals H v from the fire sets."""
    from fireset.engines import create
    from fireset.engines.tangent import power_iteration

    problem = hard_cases()[case]
    network, engine = problem.network(), create("sums")
    engine.start(network, problem.X)
    v = np.random.default_rng(0).standard_normal(problem.y.shape)
    fires = engine.fire_sets().toarray()
    J = np.einsum("ir,rc,ij->icrj", fires, network.output_weights, problem.X).reshape(v.size, -1)
    expected = (J @ (J.T @ v.ravel()) / network.width).reshape(v.shape)
    np.testing.assert_allclose(engine.tangent_product(v), expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    top = power_iteration(engine.tangent_product, problem.X, v.shape[1])
    assert top == pytest.approx(largest_eigenvalue(problem.X, network.output_weights, engine.fire_sets()), rel=1e-9)
    before = engine.forward()
    engine.tangent_product(v)
    engine.step(v, StepRule(0.1))  # the product does not change the step
    other = problem.network()
    one = create("dense")
    one.start(other, problem.X)
    np.testing.assert_allclose(one.forward(), before, rtol=0, atol=1e-9)
    one.step(v, StepRule(0.1))
    np.testing.assert_allclose(network.weights, other.weights, rtol=0, atol=1e-9)
