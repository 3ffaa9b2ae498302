"""The quantum engines: the run of the dense engine if no pair is missed, and the counts of missed pairs."""

import numpy as np
import pytest

from fireset import InputError, ShiftedReLUNetwork, train
from fireset.engines import StepRule, create
from fireset.quantum import make_schedule
from support.checks import sphere
from support.problems import Problem, hard_cases
from support.side_by_side import STEPS, run_side_by_side

ENGINES = ["quantum-weights", "quantum-data"]


@pytest.mark.parametrize("step", ["plain", "Nesterov"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", hard_cases())
def test_hard_cases_agree_with_dense(case, engine, step):
    one = create(engine)
    run_side_by_side(hard_cases()[case], one, 6, STEPS[step])
    assert one.work.missed_pairs == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_50_iterations_of_training_equal_dense(engine):
    rng = np.random.default_rng(3)
    X, y = sphere(rng, 100, 12), rng.standard_normal(100)
    networks = [ShiftedReLUNetwork.initialize(1000, 12, seed=5, dtype="float64") for _ in range(2)]
    results = [
        train(network, X, y, engine=name, max_iter=50, tol=0)
        for network, name in zip(networks, ("dense", engine), strict=True)
    ]
    dense, quantum = (result.history for result in results)
    assert np.abs(networks[0].weights - networks[1].weights).max() <= 1e-9
    assert quantum.column("missed_pairs").tolist() == [0] * 51
    assert quantum.column("active_pairs").tolist() == dense.column("active_pairs").tolist()
    assert dense.column("missed_pairs").tolist() == dense.column("oracle_queries").tolist() == [None] * 51


def test_version_1_searches_all_neurons_for_every_sample_in_every_iteration():
    problem = hard_cases()["random"]
    n, m = len(problem.X), problem.width
    result = train(problem.network(), problem.X, problem.y, engine="quantum-weights", max_iter=20, tol=0)
    queries = result.history.column("oracle_queries").astype(float)
    active = result.history.column("active_pairs")
    # c₁ √(m k) plus the cost of the verdict, for each row; tolerance for chance and for the spread of the k_i.
    expected = n * (3.1 * np.sqrt(m * active / n) + make_schedule(m).verdict_calls)
    np.testing.assert_allclose(queries, expected, rtol=0.2)


def test_version_2_searches_again_for_neurons_that_moved_only():
    problem = hard_cases()["random"]
    network, engine = problem.network(), create("quantum-data")
    engine.start(network, problem.X)
    assert engine.work.refreshes == network.width
    for _ in range(5):
        u = engine.forward()
        active = np.unique(engine.fire_sets().indices)
        searched, before = engine.work.refreshes, network.weights.copy()
        engine.step(u - problem.y, StepRule(0.1))
        moved = np.flatnonzero((network.weights != before).any(axis=1))
        assert np.array_equal(moved, active)
        assert engine.work.refreshes - searched == len(moved) < network.width


def test_the_first_searches_of_version_2_are_linear_in_the_width():
    """A search costs √n calls if nothing is found; the paper's Õ(√(n k)) is 0 then, and its sum m^(9/10) n."""
    X = np.eye(8)[:4]
    calls = []
    for width in (1_000, 16_000):
        engine = create("quantum-data")
        engine.start(ShiftedReLUNetwork.initialize(width, 8, dtype="float64"), X)
        calls.append(engine.work.oracle_queries / width)
        assert engine.work.oracle_queries > 10 * width**0.9 * len(X)
    assert calls[1] == pytest.approx(calls[0], rel=0.05)
    assert calls[1] > 10 * np.sqrt(len(X))


def test_fire_sets_by_row_and_by_neuron_are_transposes():
    problem = hard_cases()["random"]
    network, engine = problem.network(), create("quantum-data")
    engine.start(network, problem.X)
    for _ in range(5):
        engine.step(engine.forward() - problem.y, StepRule(0.5))
        by_sample = engine.fire_sets()
        indptr, samples = engine._of_neuron
        transposed = by_sample.tocsc()
        assert np.array_equal(transposed.indptr, indptr)
        assert np.array_equal(transposed.indices, samples)


@pytest.mark.parametrize("engine", ENGINES)
def test_training_uses_measured_pairs_only(engine):
    """At δ = 1/2 pairs are missed; predictions and gradients use the others, and the missed ones are counted."""
    problem = hard_cases()["random"]
    network, one = problem.network(), create(engine, failure_probability=0.5, seed=1)
    one.start(network, problem.X)
    u = one.forward()
    true, found = network.fire_sets(problem.X).toarray(), one.fire_sets().toarray()
    missed = true & ~found
    assert not (found & ~true).any()
    assert missed.sum() > 10
    assert one.work.missed_pairs == missed.sum()
    assert one.work.active_pairs == found.sum()
    activations = np.maximum(problem.X @ network.weights.T - network.threshold, 0) * found
    np.testing.assert_allclose(u, activations @ network.output_weights / np.sqrt(network.width), rtol=0, atol=1e-12)
    before = network.weights.copy()
    one.step(u - problem.y, StepRule(0.1))
    gradient = network.output_weights * (found.T @ ((u - problem.y) * problem.X)) / np.sqrt(network.width)
    np.testing.assert_allclose(before - network.weights, 0.1 * gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_history_counts_missed_pairs(engine):
    problem = hard_cases()["random"]
    one = create(engine, failure_probability=0.5)
    history = train(problem.network(), problem.X, problem.y, engine=one, max_iter=10, tol=0).history
    assert history.column("missed_pairs").sum() > 20
    assert history.to_dicts()[0]["oracle_queries"] > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_preprocessing_is_counted_however_the_rate_is_chosen(engine):
    """With learning_rate="auto" the fire sets are computed before the first iteration."""
    problem = hard_cases()["random"]
    first = [
        train(problem.network(), problem.X, problem.y, engine=engine, learning_rate=rate, max_iter=1, tol=0).history[0]
        for rate in ("auto", 0.1)
    ]
    assert first[0].oracle_queries is not None
    assert first[0].oracle_queries > 0
    assert first[0].oracle_queries == first[1].oracle_queries


@pytest.mark.parametrize("engine", ENGINES)
def test_same_seed_same_measurements(engine):
    problem = hard_cases()["random"]
    queries = []
    for seed in (0, 0, 1):
        one = create(engine, seed=seed)
        one.start(problem.network(), problem.X)
        one.forward()
        queries.append(one.work.oracle_queries)
    assert queries[0] == queries[1] != queries[2]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_single_neuron_may_move(engine):
    X = np.array([[1.0, 0.0], [0.0, 1.0]])
    problem = Problem(X, np.ones((2, 1)), 4, 5.0)
    networks = [problem.network(), problem.network()]
    for network, name in zip(networks, ("dense", engine), strict=True):
        network.weights[2] = [6.0, 7.0]
        one = create(name)
        one.start(network, X)
        for _ in range(3):
            one.step(one.forward() - problem.y, StepRule(0.1))
    assert not np.array_equal(networks[0].weights[2], [6.0, 7.0])
    np.testing.assert_allclose(networks[1].weights, networks[0].weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_that_overflows_gives_nan_without_an_error(engine):
    problem = hard_cases()["random"]
    network = problem.network("float32")
    one = create(engine)
    one.start(network, problem.X.astype(np.float32))
    with np.errstate(all="ignore"):
        one.step(problem.y, StepRule(1e39))  # runs the forward pass
        assert np.isnan(one.forward()).all()
        one.step(problem.y, StepRule(1.0))
    network.weights[:] = problem.network("float32").weights
    one.start(network, problem.X.astype(np.float32))
    assert np.isfinite(one.forward()).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_wrong_options_raise(engine):
    with pytest.raises(InputError, match=r"failure_probability.*got 0"):
        create(engine, failure_probability=0)
    with pytest.raises(InputError, match=r"seed.*got -1"):
        create(engine, seed=-1)
