"""The kernels of candidate lists against plain NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fireset._util.aligned import aligned_outputs, aligned_rows
from fireset.kernels.candidates import LEVELS, Certificates, ListArrays, backward, fill, forward, tangent
from fireset.kernels.firing import deciding_dot
from support.checks import sphere

M, N, D, C = 7, 40, 5, 3
THRESHOLD = 0.6


def make_lists(dtype, radius=0.5, outputs=C, seed=0):
    """Candidates of every neuron in its slot, by descending reference, and the other arguments of the kernels."""
    rng = np.random.default_rng(seed)
    X, W = sphere(rng, N, D).astype(dtype), rng.standard_normal((M, D)).astype(dtype)
    output_weights = rng.choice([-1, 1], (M, outputs)).astype(dtype)
    H = W @ X.T
    order = np.argsort(-H, axis=1)
    counts = (H > THRESHOLD - radius).sum(axis=1).astype(np.int32)
    return {
        "X": X,
        "W": W,
        "output_weights": output_weights,
        "starts": np.arange(M) * N,
        "counts": counts,
        "samples": order.astype(np.int32).ravel(),
        "references": np.take_along_axis(H, order, axis=1).ravel(),
        "radii": np.full(M, radius),
        "drifts": np.full(M, 0.2),
        "bands": np.full(M, 1e-14 if dtype == "float64" else -1.0, dtype),
        "prefix_lengths": np.zeros(M, np.int32),
        "next_references": np.full(M, np.inf, dtype),
        "active": np.full(M * N + 1, -1, np.int32),
        "active_starts": np.zeros(M, np.int64),
        "active_counts": np.zeros(M, np.int32),
    }


def list_arrays(lists) -> ListArrays:
    return ListArrays(**{name: lists[name] for name in ListArrays._fields})


def run_forward(lists, lo=0, hi=M):
    dtype = lists["X"].dtype
    outputs = lists["output_weights"].shape[1]
    sums = aligned_outputs(np.zeros((N, outputs), dtype))
    neurons = lists["W"], lists["output_weights"], dtype.type(THRESHOLD)
    certificates = Certificates(**{name: lists[name] for name in Certificates._fields})
    counted = forward(
        aligned_rows(lists["X"]), *neurons, list_arrays(lists), certificates, lists["active"], sums, np.arange(lo, hi)
    )
    return sums.reshape(N, -1)[:, :outputs], counted


def active_samples(lists, r) -> list[int]:
    first = lists["active_starts"][r]
    return lists["active"][first : first + lists["active_counts"][r]].tolist()


@pytest.mark.parametrize("outputs", [1, C])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_forward_equals_numpy(dtype, outputs):
    lists = make_lists(dtype, outputs=outputs)
    sums, (looked, active, violated) = run_forward(lists)
    H = lists["W"].astype(float) @ lists["X"].astype(float).T - THRESHOLD
    expected = np.maximum(H, 0).T @ lists["output_weights"]
    np.testing.assert_allclose(sums, expected, rtol=0, atol=1e-5 if dtype == "float32" else 1e-13)
    assert active == (H > 0).sum()
    assert violated == -1
    assert looked == (lists["W"] @ lists["X"].T > THRESHOLD - 0.2).sum()
    for r in range(M):
        assert sorted(active_samples(lists, r)) == np.flatnonzero(H[r] > 0).tolist()


def test_forward_changes_only_its_neurons():
    lists = make_lists("float64")
    first, _ = run_forward(lists, 0, 3)
    second, _ = run_forward(lists, 3, M)
    whole, _ = run_forward(make_lists("float64"))
    np.testing.assert_allclose(first + second, whole, rtol=0, atol=1e-14)


def test_forward_returns_the_neuron_beyond_its_radius():
    lists = make_lists("float64")
    lists["drifts"][4] = 0.51
    assert run_forward(lists)[1][2] == 4


def test_forward_uses_deciding_dot_within_the_band():
    lists = make_lists("float64")
    lists["bands"][:] = 10.0  # deciding_dot decides every pair
    run_forward(lists)
    for r in range(M):
        mine = set(active_samples(lists, r))
        looked = lists["samples"][r * N : r * N + lists["prefix_lengths"][r]]
        assert mine == {int(i) for i in looked if deciding_dot(lists["W"][r], lists["X"][i]) > THRESHOLD}


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("outputs", [1, C])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_backward_equals_numpy(dtype, outputs, momentum, nesterov):
    lists = make_lists(dtype, outputs=outputs)
    run_forward(lists)
    rng = np.random.default_rng(1)
    X, W, output_weights = lists["X"], lists["W"], lists["output_weights"]
    residual = rng.standard_normal((N, outputs)).astype(dtype)
    V = rng.standard_normal((M, D) if momentum else (0, D)).astype(dtype)
    before, velocity = W.astype(float), V.astype(float)
    mask = before @ X.T.astype(float) > THRESHOLD
    gradient = ((output_weights.astype(float) @ residual.T) * mask) @ X
    direction = gradient
    if momentum:
        velocity = momentum * velocity + gradient
        direction = gradient + momentum * velocity if nesterov else velocity
    speeds, misses = np.full(M, np.inf), np.zeros(M, np.int32)
    kind = np.dtype(dtype).type
    backward(
        aligned_rows(X), W, V, output_weights, aligned_outputs(residual), list_arrays(lists), lists["active"],
        (kind(0.1), kind(momentum), nesterov), speeds, misses, np.arange(M),
    )  # fmt: skip
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(W, before - 0.1 * direction, rtol=0, atol=tolerance)
    np.testing.assert_allclose(V, velocity, rtol=0, atol=tolerance)
    moved = np.linalg.norm(W.astype(float) - before, axis=1)
    assert (speeds >= moved).all()
    np.testing.assert_allclose(speeds, moved, rtol=1e-9, atol=1e-300)
    assert np.array_equal(misses, lists["prefix_lengths"] - lists["active_counts"])


@given(
    values=st.lists(st.floats(-1.0, 3.0, width=32), max_size=30),
    radius=st.floats(0.01, 2.0),
    capacity=st.integers(0, 40),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_fill_sorts_and_certifies(values, radius, capacity, dtype):
    """References are upper bounds and descend; dropped samples are below b − the remaining radius."""
    slack = 1e-5 if dtype == "float32" else 1e-14
    values = np.array([v for v in values if v > THRESHOLD - radius], dtype)
    ids = np.arange(100, 100 + len(values))
    radii, counts = np.array([radius]), np.zeros(1, np.int32)
    samples, references = np.zeros(50, np.int32), np.zeros(50, dtype)
    fill(
        np.array([0]), np.array([0, len(values)]), ids, values, np.dtype(dtype).type(THRESHOLD), np.array([slack]),
        radii, np.array([capacity], np.int32), np.array([5]), counts, samples, references,
    )  # fmt: skip
    count = counts[0]
    kept, bounds = samples[5 : 5 + count] - 100, references[5 : 5 + count].astype(float)
    assert count <= capacity
    assert len(set(kept.tolist())) == count
    assert (np.diff(bounds) <= 0).all() if np.isfinite(bounds).all() else True
    assert (bounds >= values[kept]).all()
    left_out = np.setdiff1d(np.arange(len(values)), kept)
    assert (values[left_out].astype(float) <= THRESHOLD - radii[0] + 1e-6).all()
    if capacity >= len(values):
        assert count == len(values)
        assert radii[0] == radius
    near = np.isfinite(bounds)
    assert (bounds[near] - values[kept][near] <= radius / LEVELS + 3 * slack + 1e-6).all()


@pytest.mark.parametrize("outputs", [1, C])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tangent_equals_numpy(dtype, outputs):
    """J Jᵀ v from the active pairs; computed in two halves, as for several blocks of samples, it is equal."""
    lists = make_lists(dtype, outputs=outputs)
    run_forward(lists)
    X, output_weights = lists["X"].astype(float), lists["output_weights"].astype(float)
    v = np.random.default_rng(1).standard_normal((N, outputs)).astype(dtype)
    mask = lists["W"].astype(float) @ X.T > THRESHOLD
    linear = ((output_weights @ v.T) * mask) @ X  # (M, D)
    expected = (mask * (linear @ X.T)).T @ output_weights
    rows, arrays = aligned_rows(lists["X"]), (list_arrays(lists), lists["active"])
    fused, halves = (aligned_outputs(np.zeros((N, outputs), dtype)) for _ in range(2))
    direction, none, neurons = aligned_outputs(v), np.empty((0, 0), np.dtype(dtype)), np.arange(M)
    tangent(rows, lists["output_weights"], direction, *arrays, none, fused, neurons)
    gradients = np.ones((M, rows.shape[1]), dtype)
    tangent(rows, lists["output_weights"], direction, *arrays, gradients, fused[:0], neurons)
    np.testing.assert_allclose(gradients[:, :D] - 1, linear, rtol=0, atol=1e-4 if dtype == "float32" else 1e-12)
    tangent(rows, lists["output_weights"], fused[:0], *arrays, gradients - 1, halves, neurons)
    for found in (fused, halves):
        found = found.reshape(N, -1)[:, :outputs]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 if dtype == "float32" else 1e-12)


def test_speed_is_measured_on_the_stored_weights():
    """An update of 0.6 units in the last place moves a weight by one unit; the bound must cover it."""
    lists = make_lists("float64", outputs=1)
    run_forward(lists)
    X, W = lists["X"], lists["W"]
    before = W.copy()
    residual = np.full((N, 1), 1.0)
    for rate in (2e-17, 5e-17, 1e-16, 2e-16):
        W[:] = before
        speeds = np.full(M, np.inf)
        backward(
            aligned_rows(X),
            W,
            np.empty((0, D)),
            lists["output_weights"],
            residual[:, 0],
            list_arrays(lists),
            lists["active"],
            (rate, 0.0, False),
            speeds,
            np.zeros(M, np.int32),
            np.arange(M),
        )
        assert (speeds >= np.linalg.norm(W - before, axis=1)).all()
