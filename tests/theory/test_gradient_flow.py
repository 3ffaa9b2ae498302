"""Gradient flow against small Euler steps, its closed form without events, and the lemma of the paper."""

import numpy as np
import pytest

from fireset import InputError, ShiftedReLUNetwork
from fireset.theory import bounds, shifted_ntk, smallest_eigenvalue
from fireset.theory.gradient_flow import follow_flow
from support.checks import sphere


def euler(network, X, y, end, steps):
    """Gradient descent with small steps, from the definitions."""
    W, b, a = network.weights.copy(), network.threshold, network.output_weights[:, 0]
    for _ in range(steps):
        H = W @ X.T
        err = y - a @ np.maximum(H - b, 0) / np.sqrt(len(W))
        W += end / steps * (a[:, None] / np.sqrt(len(W))) * (((H > b) * err) @ X)
    return W


def problem(seed, m=30, n=8, d=3, scale=2.0):
    rng = np.random.default_rng(seed)
    X = sphere(rng, n, d)
    network = ShiftedReLUNetwork.initialize(m, d, threshold=0.3, dtype="float64", seed=seed)
    return network, X, scale * rng.standard_normal(n)


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("seed", range(6))
def test_small_euler_steps_converge_to_the_flow(seed):
    network, X, y = problem(seed)
    before = network.weights.copy()
    path = follow_flow(network, X, y, np.array([3.0]))
    distances = [np.abs(euler(network, X, y, 3.0, steps) - path.weights).max() for steps in (2_000, 16_000)]
    assert path.events > 3
    assert distances[1] < 2e-3
    assert distances[1] < 0.5 * distances[0]
    np.testing.assert_array_equal(network.weights, before)
    u = network.output_weights[:, 0] @ np.maximum(path.weights @ X.T - network.threshold, 0) / np.sqrt(30)
    assert path.squared_errors[-1] == pytest.approx(np.sum((y - u) ** 2), rel=1e-8)
    assert (np.diff(path.squared_errors) <= 1e-12).all()  # the loss never increases


def test_without_events_the_error_decays_exponentially():
    network, X, _ = problem(0, m=400)
    y = network.predict(X)[:, 0] + 1e-6
    path = follow_flow(network, X, y, np.linspace(0.0, 2.0, 5))
    assert path.events == 0
    H = (X @ X.T) * (network.fire_sets(X) @ network.fire_sets(X).T.astype(float)).toarray() / 400
    values, vectors = np.linalg.eigh(H)
    expected = [np.sum((np.exp(-values * t) * (vectors.T @ np.full(8, 1e-6))) ** 2) for t in path.times]
    np.testing.assert_allclose(path.squared_errors, expected, rtol=1e-6)
    np.testing.assert_allclose(path.smallest_eigenvalues, values[0], atol=1e-10)


def test_the_flow_lemma_holds_under_its_assumption():
    """D_cts < R: λ_min(H(t)) ≥ λ/2, movement ≤ D_cts and ‖err(t)‖² ≤ e^(−λt) ‖err(0)‖², at every event and time."""
    X = np.eye(2)
    network = ShiftedReLUNetwork.initialize(2_000, 2, threshold=0.05, dtype="float64")
    y = network.predict(X)[:, 0] + np.array([0.1, -0.1])
    smallest = smallest_eigenvalue(shifted_ntk(X, 0.05))
    limit = bounds.flow_movement_bound(2, 2_000, smallest, np.sqrt(0.02))
    assert limit < bounds.paper_radius(2, smallest)
    path = follow_flow(network, X, y, np.linspace(0, 8, 9))
    assert path.events > 0
    assert (path.smallest_eigenvalues >= smallest / 2).all()
    assert 0 < path.movement.max() <= limit
    assert (path.squared_errors <= np.exp(-smallest * path.times) * 0.02 * (1 + 1e-9)).all()


@pytest.mark.parametrize("seed", range(8))
def test_the_movement_of_the_flow_lemma_lacks_a_factor_of_two(seed):
    """‖err(t)‖ ≤ e^(−λt/2) ‖err(0)‖ integrates to 2 D_cts. With one row the movement is D_cts λ/H(0)."""
    X = np.array([[1.0, 0.0]])
    network = ShiftedReLUNetwork.initialize(400, 2, threshold=0.0, dtype="float64", seed=seed)
    y = network.predict(X)[:, 0] + 0.01
    smallest = smallest_eigenvalue(shifted_ntk(X, 0.0))
    limit = bounds.flow_movement_bound(1, 400, smallest, 0.01)
    assert limit < bounds.paper_radius(1, smallest)
    path = follow_flow(network, X, y, np.array([40.0]))
    start = path.smallest_eigenvalues[0]
    assert path.movement.max() == pytest.approx(limit * smallest / start, rel=1e-4)
    assert path.movement.max() <= 2 * limit
    if start < 0.999 * smallest:
        assert path.movement.max() > limit


def test_networks_with_several_outputs_raise():
    network = ShiftedReLUNetwork.initialize(10, 2, 2, dtype="float64")
    with pytest.raises(InputError, match="2 outputs"):
        follow_flow(network, np.eye(2), np.zeros(2), np.array([1.0]))
