"""Passes process live neurons only: those with candidates to test, and those that may move. Fire sets stay exact."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset import ShiftedReLUNetwork
from fireset.engines import StepRule, create
from fireset.kernels.sorting import merge_ascending
from support.checks import sphere
from support.problems import Problem
from support.side_by_side import STEPS, run_side_by_side

ENGINES = [
    ("data", {}),
    ("data", {"radius": 0}),
    ("data", {"radius": 0.1}),
    ("data", {"radius": 0, "index": "partition-tree"}),
    ("weights", {}),
    ("weights", {"radius": 0}),
    ("weights", {"radius": 0.1, "index": "partition-tree"}),
]


@st.composite
def few_rows(draw) -> Problem:
    """Few rows and high thresholds: most neurons are active for no row."""
    n, d = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    y = draw(st.sampled_from([1.0, 30.0])) * rng.standard_normal((n, draw(st.integers(1, 2))))
    width = draw(st.integers(2, 1500))
    threshold = draw(st.floats(0.5, 3.0, allow_subnormal=False))
    return Problem(sphere(rng, n, d), y, width, threshold, draw(st.integers(0, 2**32)), draw(st.booleans()))


@pytest.mark.parametrize(("engine", "options"), ENGINES, ids=str)
@settings(max_examples=12)
@given(problem=few_rows(), step=st.sampled_from(sorted(STEPS)))
def test_few_rows_agree_with_dense(engine, options, problem, step):
    run_side_by_side(problem, create(engine, **options), 40, STEPS[step])


def started(engine: str, options: dict, *, n=4, d=3, width=5000, threshold=2.0, scale=1.0):
    rng = np.random.default_rng(0)
    X = sphere(rng, n, d)
    network = ShiftedReLUNetwork.initialize(width, d, threshold=threshold, dtype="float64", seed=1)
    each = create(engine, **options)
    each.start(network, X)
    return network, X, scale * rng.standard_normal((n, 1)), each


def assert_exact(engine) -> None:
    found, true = engine.fire_sets(), engine.network.fire_sets(engine.X)
    assert np.array_equal(found.indptr, true.indptr)
    assert np.array_equal(found.indices, true.indices)


def candidates_by_neuron(engine) -> np.ndarray:
    """Return the number of candidates that the last forward pass tested, (m,)."""
    return np.sum([lists.prefix_lengths for _, _, lists in engine._passes.chunks], axis=0)


@pytest.mark.parametrize(("engine", "options"), ENGINES, ids=str)
def test_other_neurons_are_at_rest_and_have_nothing_to_test(engine, options):
    network, X, y, each = started(engine, options, scale=5.0)
    rule = StepRule(0.5, momentum=0.5)
    for _ in range(30):
        each.step(each.forward() - y, rule)
        each.forward()
        others = np.setdiff1d(np.arange(network.width), each.live_neurons)
        assert not each._speeds[others].any()
        assert not candidates_by_neuron(each)[others].any()
        assert rule.velocity is not None
        assert not rule.velocity[others].any()
        assert np.isin(network.fire_sets(X).indices, each.live_neurons).all()
    assert len(each.live_neurons) < 0.4 * network.width


@pytest.mark.parametrize(("engine", "options"), ENGINES, ids=str)
def test_without_momentum_live_neurons_are_those_with_candidates_or_that_moved(engine, options):
    _, X, y, each = started(engine, options, width=20_000, threshold=2.5)
    for _ in range(10):
        each.step(each.forward() - y, StepRule(0.5))
    each.forward()
    expected = np.union1d(np.flatnonzero(candidates_by_neuron(each)), np.flatnonzero(each._speeds))
    if options.get("radius") == 0:
        assert np.array_equal(each.live_neurons, expected)
    assert np.isin(expected, each.live_neurons).all()
    assert len(each.live_neurons) < 2.0 * each.network.fire_sets(X).nnz


@pytest.mark.parametrize(("engine", "options"), ENGINES, ids=str)
def test_a_neuron_without_active_rows_stays_live_while_it_has_velocity(engine, options):
    """Large targets push neurons off all rows; momentum keeps them moving, until the velocity has decayed to 0."""
    network, X, y, each = started(engine, options, n=2, width=400, threshold=1.0, scale=20.0)
    rule = StepRule(0.05, momentum=0.4)
    without_rows = 0
    for _ in range(60):
        each.step(each.forward() - y, rule)
        assert_exact(each)
        active = np.diff(network.fire_sets(X).tocsc().indptr) > 0
        assert rule.velocity is not None
        moving = rule.velocity.any(axis=1)
        without_rows += int((moving & ~active).sum())
        assert np.isin(np.flatnonzero(moving), each.live_neurons).all()
    assert without_rows > 20
    rule.momentum = 0.01
    for _ in range(180):  # 0.01^180 is 0, even as a subnormal number
        each.step(np.zeros_like(y), rule)
    assert rule.velocity is not None
    assert not rule.velocity.any()
    each.step(np.zeros_like(y), rule)
    assert not each._speeds.any()
    assert_exact(each)


@pytest.mark.parametrize(("engine", "options"), ENGINES, ids=str)
def test_a_velocity_from_elsewhere_moves_all_its_neurons(engine, options):
    """A velocity that the engine has not seen, as after a checkpoint, may belong to any neuron."""
    network, X, y, each = started(engine, options)
    other, same = ShiftedReLUNetwork(network.weights.copy(), network.output_weights, network.threshold), create("dense")
    same.start(other, X)
    for _ in range(3):
        for one in (each, same):
            one.step(one.forward() - y, StepRule(0.5))
    velocity = np.random.default_rng(3).standard_normal(network.weights.shape)
    rules = [StepRule(0.1, momentum=0.9, velocity=velocity.copy()) for _ in range(2)]
    for _ in range(5):
        for one, rule in zip((each, same), rules, strict=True):
            one.step(one.forward() - y, rule)
        assert_exact(each)
        np.testing.assert_allclose(network.weights, other.weights, rtol=0, atol=1e-9)
    each.step(each.forward() - y, StepRule(0.5))
    each.step(each.forward() - y, StepRule(0.5))
    assert len(each.live_neurons) < network.width
    each.step(each.forward() - y, rules[0])  # after steps without momentum
    assert_exact(each)


@pytest.mark.parametrize(("engine", "options"), ENGINES, ids=str)
def test_neurons_moved_from_outside_become_live(engine, options):
    network, X, y, each = started(engine, options)
    for _ in range(3):
        each.step(each.forward() - y, StepRule(0.5))
    each.forward()
    at_rest = np.setdiff1d(np.arange(network.width), each.live_neurons)[:50]
    before = network.weights[at_rest].copy()
    network.weights[at_rest] = 4.0 * X[np.arange(50) % len(X)]
    distances = np.linalg.norm(network.weights[at_rest] - before, axis=1) * (1 + 1e-12)
    each.weights_moved(at_rest, distances)
    each.forward()
    assert_exact(each)
    assert np.isin(at_rest, each.live_neurons).all()
    for _ in range(3):
        each.step(each.forward() - y, StepRule(0.5, momentum=0.9))
        assert_exact(each)
    each.audit()


@pytest.mark.parametrize(("engine", "options"), ENGINES, ids=str)
def test_neurons_moved_twice_before_a_pass_are_tested(engine, options):
    """Neurons that moved first, and not the second time, have candidates that no pass has tested yet."""
    network, X, y, each = started(engine, options)
    for _ in range(3):
        each.step(each.forward() - y, StepRule(0.5))
    at_rest = np.setdiff1d(np.arange(network.width), each.live_neurons)
    first, second = at_rest[:300], at_rest[300:600]
    for neurons, length in ((first, 0.05), (second, 0.05), (first, 1.5), (second, 1.5)):
        network.weights[neurons] += length * X[np.arange(300) % len(X)]
        each.weights_moved(neurons, np.full(300, length * (1 + 1e-9)))
    each.forward()
    assert_exact(each)
    assert np.isin(network.fire_sets(X).indices, first).any()


def test_products_and_gradients_of_live_neurons_equal_those_of_dense():
    network, X, y, each = started("data", {}, n=6)
    dense = create("dense")
    for _ in range(5):
        each.step(each.forward() - y, StepRule(0.5))
    dense.start(network, X)
    residual, directions = np.ones_like(y), np.random.default_rng(1).standard_normal(network.weights.shape)
    each.forward()
    assert len(each.live_neurons) < network.width
    mine, true = each.gradient(residual), dense.gradient(residual)
    assert np.array_equal(mine.neurons, np.unique(network.fire_sets(X).indices))
    assert np.array_equal(true.neurons, np.arange(network.width))
    np.testing.assert_allclose(mine.rows, true.rows[mine.neurons], rtol=0, atol=1e-13)
    np.testing.assert_allclose(each.jacobian_product(directions), dense.jacobian_product(directions), atol=1e-12)
    np.testing.assert_allclose(each.tangent_product(residual), dense.tangent_product(residual), atol=1e-12)
    np.testing.assert_allclose(each.output_gradient(residual), dense.output_gradient(residual), atol=1e-12)


@pytest.mark.parametrize("engine", ["data", "weights"])
def test_storage_outside_live_neurons_is_not_written(engine):
    """A step at rest, repeated, changes no state of a neuron that is not live."""
    network, _, y, each = started(engine, {"radius": 0})
    rule = StepRule(0.5)
    each.step(each.forward() - y, rule)
    each.forward()
    others = np.setdiff1d(np.arange(network.width), each.live_neurons)
    state = [each._drifts, each._radii, each._bands, each._near_misses, network.weights]
    before = [array[others].copy() for array in state]
    each.step(each.forward() - y, rule)
    assert all(np.array_equal(array[others], old) for array, old in zip(state, before, strict=True))


@given(st.lists(st.integers(0, 60)), st.lists(st.integers(0, 60)))
def test_merge_ascending_is_the_union(left, right):
    a, b = np.unique(np.array(left, np.int64)), np.unique(np.array(right, np.int64))
    merged = np.empty(len(a) + len(b), np.int64)
    count = merge_ascending(a, b, merged)
    assert np.array_equal(merged[:count], np.union1d(a, b))


@pytest.mark.parametrize("options", [{}, {"radius": 0}, {"index": "partition-tree"}], ids=str)
def test_neurons_without_candidates_take_no_place_in_the_lists(options):
    network, _, y, each = started("data", options, width=20_000, threshold=2.5)
    (lists,) = (chunk.lists for chunk in each._passes.chunks)
    listed = lists.counts > 0
    assert 0 < listed.mean() < 0.2
    assert np.array_equal(each.live_neurons, np.flatnonzero(listed))  # before the first pass
    assert not lists.capacities[~listed].any()
    assert lists.used < 12 * listed.sum()
    velocity = np.zeros_like(network.weights)
    velocity[np.flatnonzero(~listed)[:500]] = 30.0  # as after a checkpoint: neurons without a place move to the rows
    rule = StepRule(0.1, momentum=0.5)
    rule.velocity = velocity
    for _ in range(5):
        each.step(each.forward() - y, rule)
        assert_exact(each)
    assert (lists.capacities[~listed] > 0).any()
