"""The hashing engine: candidates are the members of buckets, and recall, predictions and gradients follow from them."""

from math import acos, pi

import numpy as np
import pytest

from fireset import InputError, ShiftedReLUNetwork, train
from fireset.engines import StepRule, create
from fireset.engines.hashing import HashingEngine
from support.checks import sphere
from support.problems import hard_cases

FAMILIES = ("simhash", "winner-take-all")


def started(problem, dtype="float64", **options) -> HashingEngine:
    engine = HashingEngine(**options)
    engine.start(problem.network(dtype), problem.X.astype(dtype))
    return engine


def bucket_mates(engine: HashingEngine, network, X) -> np.ndarray:
    """Return which pairs share a bucket, (n, m), by comparing every pair of codes."""
    neurons, samples = engine._hashed(network.weights), engine._hashed(X)
    return (neurons[:, None, :] == samples[:, :, None]).any(axis=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", hard_cases())
def test_active_pairs_are_those_in_common_buckets(case, family):
    problem = hard_cases()[case]
    network, engine = problem.network(), HashingEngine(family, 2, 3, rehash_every=2)
    engine.start(network, problem.X)
    bucketed = np.empty(0)
    for step in range(5):
        u = engine.forward()
        if step % 2 == 0:  # just hashed: the intervals are 2 and round(2.2)
            bucketed = bucket_mates(engine, network, problem.X)
        true = network.fire_sets(problem.X).toarray()
        active = engine.fire_sets().toarray()
        assert np.array_equal(active, true & bucketed)
        assert engine.work.active_pairs == active.sum()
        assert engine.recall() == (active.sum() / true.sum() if true.any() else 1.0)
        excess = np.where(active, problem.X @ network.weights.T - network.threshold, 0.0)
        np.testing.assert_allclose(u, excess @ network.output_weights / np.sqrt(network.width), rtol=0, atol=1e-10)
        engine.step(u - problem.y, StepRule(1e-3))


@pytest.mark.parametrize("family", FAMILIES)
def test_with_one_bucket_it_equals_the_dense_engine(family):
    """In one dimension all positive vectors have one code."""
    problem = hard_cases()["one dimension"]
    problem.X = np.abs(problem.X)
    network, twin = problem.network(), problem.network()
    network.weights[:] = np.abs(network.weights)
    twin.weights[:] = network.weights
    engine, dense = HashingEngine(family, 1, 1), create("dense")
    engine.start(network, problem.X)
    dense.start(twin, problem.X)
    for _ in range(15):
        for each in (engine, dense):
            each.step(each.forward() - problem.y, StepRule(0.01, 0.9, True, np.zeros_like(network.weights)))
        assert engine.recall() == 1.0
    np.testing.assert_allclose(network.weights, twin.weights, rtol=0, atol=1e-12)


def test_simhash_collision_probability():
    """(1 − θ/π)^K in one table: 20,000 tables of two hashes, angles from 30° to 120°."""
    x = np.zeros((1, 2))
    x[0, 0] = 1.0
    angles = np.radians([30, 60, 90, 120])
    network = ShiftedReLUNetwork.initialize(4, 2, dtype="float64")
    network.weights[:] = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    engine = HashingEngine("simhash", 2, 20_000)
    engine.start(network, x)
    same = (engine._hashed(network.weights) == engine._hashed(x)).mean(axis=0)
    np.testing.assert_allclose(same, [(1 - acos(np.cos(a)) / pi) ** 2 for a in angles], atol=0.02)


def test_winner_take_all_codes_are_argmax():
    problem = hard_cases()["random"]
    engine = started(problem, family="winner-take-all", hashes=2, tables=5)
    windows = engine._windows
    winners = problem.X[:, windows].argmax(axis=3)  # (n, tables, hashes)
    assert all(len(set(window)) == 8 for window in windows.reshape(-1, 8).tolist())
    assert np.array_equal(engine._hashed(problem.X), (8 * winners[:, :, 0] + winners[:, :, 1]).T)


def test_more_tables_find_more_and_more_hashes_find_less():
    problem = hard_cases()["random"]
    recalls = [started(problem, hashes=6, tables=tables).recall() for tables in (1, 8, 64)]
    assert recalls[0] < recalls[1] < recalls[2]
    assert started(problem, hashes=9, tables=8).recall() < started(problem, hashes=2, tables=8).recall()


def test_recall_on_some_rows():
    problem = hard_cases()["random"]
    engine = started(problem, hashes=6, tables=4)
    true = engine.network.fire_sets(problem.X).toarray()
    found = engine.fire_sets().toarray()
    rows = np.array([3, 17, 40])
    assert engine.recall(rows) == found[rows].sum() / true[rows].sum()


def test_rehashes_come_later_and_later():
    problem = hard_cases()["random"]
    engine = started(problem, rehash_every=3, rehash_growth=2.0)
    width, hashed = problem.width, []
    for step in range(1, 22):
        before = engine.work.refreshes
        engine.step(engine.forward() - problem.y, StepRule(1e-3))
        if engine.work.refreshes > before:
            assert engine.work.refreshes - before == width
            hashed.append(step)
    assert hashed == [3, 9, 21]


def test_float32_and_training():
    rng = np.random.default_rng(0)
    X = sphere(rng, 100, 10)
    network = ShiftedReLUNetwork.initialize(500, 10, seed=1)
    result = train(network, X, X[:, 0], engine="hashing", max_iter=30, tol=0)
    assert result.engine == "hashing"
    losses = result.history.column("loss")
    assert losses[-1] < 0.5 * losses[0]


def test_missed_pairs_change_the_predictions():
    problem = hard_cases()["random"]
    engine = started(problem, hashes=8, tables=2)
    assert engine.recall() < 0.5
    found = engine.forward()
    true = engine.network.predict(problem.X)
    assert np.abs(found - true).max() > 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "md5"}, "family.*got 'md5'"),
        ({"hashes": 0}, "hashes.*got 0"),
        ({"hashes": 63}, "hashes.*got 63"),
        ({"family": "winner-take-all", "hashes": 21}, "hashes.*got 21"),
        ({"tables": 1.5}, "tables.*got 1.5"),
        ({"rehash_every": True}, "rehash_every.*got True"),
        ({"rehash_growth": 0.5}, "rehash_growth.*got 0.5"),
    ],
)
def test_wrong_options_raise(options, message):
    with pytest.raises(InputError, match=message):
        create("hashing", **options)
