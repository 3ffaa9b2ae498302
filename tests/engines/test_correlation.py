"""Correlation trees: the kernels compared with plain implementations, the engine with the dense one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset import InputError, ShiftedReLUNetwork
from fireset._util.rounding import deciding_band, row_norms
from fireset.engines import StepRule
from fireset.engines.correlation_trees import CorrelationEngine
from fireset.kernels.firing import deciding_dot
from fireset.kernels.max_trees import FAN, forward, leaves_above, level_starts, lists_by_leaf, nodes_above, set_leaves
from support.checks import sphere
from support.problems import Problem, hard_cases, plant_on_threshold, problems
from support.side_by_side import STEPS, run_side_by_side

LAYOUTS = ["data", "weights"]
DTYPES = ["float32", "float64"]


# Plain implementations


def plain_tree(leaves: np.ndarray) -> np.ndarray:
    """Return all nodes of a tree over these leaves, level by level."""
    levels = [leaves]
    while len(levels[-1]) > 1:
        padding = np.full(-len(levels[-1]) % FAN, -np.inf, leaves.dtype)
        levels[-1] = np.concatenate([levels[-1], padding])
        levels.append(levels[-1].reshape(-1, FAN).max(axis=1))  # NumPy's max propagates NaN
    return np.concatenate(levels)


def plain_above(leaves: np.ndarray, threshold) -> list[int]:
    return [k for k, value in enumerate(leaves.tolist()) if not value <= threshold]


def plain_forward(H, output_weights, threshold) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return sums (n, c) and the active rows of each neuron, for H[r, i]."""
    excess = H.astype(float) - threshold
    excess[excess <= 0] = 0.0
    return excess.T @ output_weights.astype(float), [np.flatnonzero(row > 0) for row in excess]


# Kernels


def make_forest(H: np.ndarray) -> np.ndarray:
    """Return the forest whose tree t has the leaves H[t]."""
    levels = level_starts(H.shape[1])
    forest = np.full((len(H), levels[-1]), -np.inf, H.dtype)
    leaves = np.arange(H.shape[1])
    set_leaves(forest, np.arange(len(H)), leaves, H, *nodes_above(leaves, levels))
    return forest


@st.composite
def leaf_values(draw, trees=1) -> np.ndarray:
    """Draw rows of small whole numbers, so that ties are common, and some infinities and NaN."""
    count = draw(st.one_of(st.integers(1, 3 * FAN), st.integers(1, 700)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = rng.integers(-9, 9, (trees, count)).astype(draw(st.sampled_from(DTYPES)))
    odd = draw(st.lists(st.sampled_from([np.inf, -np.inf, np.nan]), max_size=3))
    values[rng.integers(0, trees, len(odd)), rng.integers(0, count, len(odd))] = odd
    return values


@given(leaf_values(trees=2))
def test_trees_equal_the_plain_ones(H):
    forest = make_forest(H)
    for tree, leaves in zip(forest, H, strict=True):
        assert np.array_equal(tree, plain_tree(leaves), equal_nan=True)


@given(leaf_values(trees=3), st.integers(0, 2**32))
def test_changed_leaves(H, seed):
    """After any sequence of changes the trees equal new ones."""
    rng = np.random.default_rng(seed)
    forest, levels = make_forest(H), level_starts(H.shape[1])
    for _ in range(4):
        leaves = np.flatnonzero(rng.random(H.shape[1]) < rng.choice([0.02, 0.5, 1.0]))
        trees = np.flatnonzero(rng.random(3) < 0.7)
        values = rng.integers(-9, 9, (len(trees), len(leaves))).astype(H.dtype)
        set_leaves(forest, trees, leaves, values, *nodes_above(leaves, levels))
        H[np.ix_(trees, leaves)] = values
        assert np.array_equal(forest, [plain_tree(row) for row in H], equal_nan=True)


@given(st.integers(1, 5000), st.integers(0, 2**32))
def test_nodes_above_are_the_ancestors(count, seed):
    leaves = np.flatnonzero(np.random.default_rng(seed).random(count) < 0.05)
    levels = level_starts(count)
    nodes, children = nodes_above(leaves, levels)
    expected = {
        (int(levels[h] + leaf // FAN**h), int(levels[h - 1] + leaf // FAN**h * FAN))
        for leaf in leaves.tolist()
        for h in range(1, len(levels) - 1)
    }
    assert list(zip(nodes.tolist(), children.tolist(), strict=True)) == sorted(expected)
    assert levels[-1] <= count * FAN / (FAN - 1) + FAN * len(levels)


@given(leaf_values(), st.integers(-10, 9))
def test_a_walk_finds_all_leaves_above(H, threshold):
    levels = level_starts(H.shape[1])
    buffers = np.empty((2, levels[-1]), np.int32)
    found, count, visited = leaves_above(make_forest(H)[0], levels, H.dtype.type(threshold), *buffers)
    assert found[:count].tolist() == plain_above(H[0], threshold)
    inner = plain_tree(H[0])[levels[1] :] if H.shape[1] > 1 else np.empty(0)
    assert visited == 1 + FAN * len(plain_above(inner, threshold))


def test_a_walk_reads_only_below_nodes_above_the_threshold():
    """Wrong values below other nodes have no effect."""
    leaves = np.zeros(FAN**3)
    leaves[100] = 2.0
    tree, levels = make_forest(leaves[None])[0], level_starts(len(leaves))
    start = 100 - 100 % FAN
    tree[:start] = tree[start + FAN : levels[1]] = 5.0
    found, count, visited = leaves_above(tree, levels, 1.0, *np.empty((2, levels[-1]), np.int32))
    assert found[:count].tolist() == [100]
    assert visited == 1 + 3 * FAN


@settings(max_examples=60)
@given(leaf_values(trees=5), st.integers(1, 3), st.integers(-10, 9), st.booleans(), st.integers(0, 20))
def test_forward_equals_the_plain_one(H, outputs, threshold, trees_are_neurons, capacity):
    """Also if the lists need more memory in between, and for some of the trees only."""
    kind = H.dtype.type
    rng = np.random.default_rng(0)
    output_weights = rng.choice([-1, 1], (len(H) if trees_are_neurons else H.shape[1], outputs)).astype(H.dtype)
    sums = np.zeros((H.shape[1] if trees_are_neurons else len(H), outputs))
    starts, counts = np.full(len(H), -1), np.full(len(H), -1, np.int32)
    memory = np.full(6 * H.shape[1] + 100, -7, np.int32)
    tree, used, visited = 1, 0, 0
    while tree < 4:
        tree, used, more = forward(
            make_forest(H),
            level_starts(H.shape[1]),
            output_weights,
            kind(threshold),
            trees_are_neurons,
            memory[:capacity],
            starts,
            counts,
            sums,
            used,
            tree,
            4,
        )
        visited += more
        assert (memory[capacity:] == -7).all()  # nothing is written beyond the capacity
        capacity += 1 + H.shape[1] // 2
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        if trees_are_neurons:
            expected, lists = plain_forward(H[1:4], output_weights[1:4], threshold)
            assert np.array_equal(sums, expected, equal_nan=True)
        else:
            expected, _ = plain_forward(np.ascontiguousarray(H[1:4].T), output_weights, threshold)
            lists = [np.flatnonzero(row > threshold) for row in H[1:4]]
            assert np.array_equal(np.isfinite(sums[1:4]), np.isfinite(expected))
            finite = np.isfinite(expected)
            assert np.array_equal(sums[1:4][finite], expected[finite])
    assert used == sum(map(len, lists))
    inner = [plain_tree(row)[level_starts(len(row))[1] :] if len(row) > 1 else row[:0] for row in H[1:4]]
    assert visited == sum(1 + FAN * len(plain_above(nodes, threshold)) for nodes in inner)
    assert counts.tolist() == [-1, *map(len, lists), -1]
    for t, expected in zip(range(1, 4), lists, strict=True):
        assert np.array_equal(memory[starts[t] : starts[t] + counts[t]], expected)


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0, 1), st.integers(0, 2**32))
def test_lists_by_leaf_equals_the_plain_transpose(trees, leaves, share, seed):
    rng = np.random.default_rng(seed)
    mask = rng.random((trees, leaves)) < share
    counts, active = mask.sum(axis=1).astype(np.int32), np.nonzero(mask)[1].astype(np.int32)
    starts = np.cumsum(counts) - counts
    places = np.cumsum(mask.sum(axis=0)) - mask.sum(axis=0)
    transposed = np.full(len(active), -1, np.int32)
    middle = trees // 2
    lists_by_leaf(active, starts, counts, places, transposed, 0, middle)
    lists_by_leaf(active, starts, counts, places, transposed, middle, trees)
    assert np.array_equal(transposed, np.nonzero(mask.T)[1])
    assert np.array_equal(places, np.cumsum(mask.sum(axis=0)))


# The engine compared with the dense one


@pytest.mark.sweep(every=10)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", hard_cases())
def test_hard_cases_agree_with_dense(case, layout, step):
    run_side_by_side(hard_cases()[case], CorrelationEngine(layout), 30, STEPS[step])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_agree_after_200_iterations(layout):
    run_side_by_side(hard_cases()["random"], CorrelationEngine(layout), 200, {})


@settings(max_examples=30)
@given(problems(), st.sampled_from(LAYOUTS), st.sampled_from(sorted(STEPS)))
def test_random_problems_agree_with_dense(problem, layout, step):
    run_side_by_side(problem, CorrelationEngine(layout), 10, STEPS[step])


def test_several_ranges_and_tiles(monkeypatch):
    monkeypatch.setattr("fireset.engines.correlation_trees._TILE_PAIRS", 5000)
    rng = np.random.default_rng(0)
    problem = Problem(sphere(rng, 700, 4), rng.standard_normal((700, 2)), 400, 1.0)
    for layout in LAYOUTS:
        run_side_by_side(problem, CorrelationEngine(layout), 5, {"momentum": 0.5})


def inner_products(engine: CorrelationEngine) -> np.ndarray:
    """Return the leaves as an (m, n) array."""
    forest = engine._forest
    leaves = forest.trees[:, : forest.n_leaves]
    return leaves if engine._layout == "data" else leaves.T


@pytest.mark.parametrize("layout", LAYOUTS)
def test_trees_after_many_steps(layout):
    """Every leaf is the inner product at the current weights, and every tree that of its leaves."""
    problem = hard_cases()["several outputs"]
    network, engine = problem.network(), CorrelationEngine(layout)
    engine.start(network, problem.X)
    velocity = np.zeros_like(network.weights)
    for _ in range(20):
        engine.step(engine.forward() - problem.y, StepRule(0.1, 0.9, velocity=velocity))
    np.testing.assert_allclose(inner_products(engine), network.weights @ problem.X.T, rtol=0, atol=1e-13)
    for tree in engine._forest.trees:
        assert np.array_equal(tree, plain_tree(tree[: engine._forest.n_leaves]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_leaves_near_the_threshold_are_the_deciding_values(layout):
    """Equal to the last bit, for neurons that start or move there.

    In few dimensions BLAS happens to add in the order of ``deciding_dot``; in 1000 it does not.
    """
    rng = np.random.default_rng(0)
    problem = Problem(sphere(rng, 40, 1000), rng.standard_normal((40, 1)), 300, 1.3)
    network, X = problem.network(), problem.X
    first, second = CorrelationEngine(layout), CorrelationEngine(layout)
    second.start(network, X)
    plant_on_threshold(network, X)
    first.start(network, X)
    second._recompute(np.arange(0, 300, 3))
    exact = np.array([[deciding_dot(w, x) for x in X] for w in network.weights])
    bands = deciding_band(1000, network.dtype, row_norms(network.weights), row_norms(X).max())
    near = np.abs(exact - network.threshold) <= bands[:, None] / 2
    assert near.sum() >= 100
    for engine in (first, second):
        assert np.array_equal(inner_products(engine)[near], exact[near])
        assert np.array_equal(engine.fire_sets().toarray(), exact.T > network.threshold)


# Work


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_neurons_that_moved_are_recomputed(layout, step):
    """A residual on two rows moves their active neurons, and with momentum all that have a velocity."""
    problem = hard_cases()["random"]
    network, engine = problem.network(), CorrelationEngine(layout)
    engine.start(network, problem.X)
    n, m = len(problem.X), network.width
    assert (engine.work.refreshes, engine.work.inner_products) == (m, n * m)
    options = {**STEPS[step], "velocity": np.zeros_like(network.weights)}
    moving = np.zeros(m, bool)
    for i in range(6):
        residual = np.zeros((n, 1))
        residual[[i, i + 1]] = 0.5
        engine.forward()
        active = engine.fire_sets().toarray()[[i, i + 1]].any(axis=0)
        moving = active | moving if "momentum" in options else active
        before, leaves = network.weights.copy(), inner_products(engine).copy()
        recomputed, computed = engine.work.refreshes, engine.work.inner_products
        engine.step(residual, StepRule(0.1, **options))
        moved = (network.weights != before).any(axis=1)
        assert 0 < moved.sum() < m
        assert np.array_equal(moved, moving)
        assert engine.work.refreshes - recomputed == moved.sum()
        assert engine.work.inner_products - computed == n * moved.sum()
        assert np.array_equal((inner_products(engine) != leaves).any(axis=1), moved)
    assert engine.work.refreshes < 6 * m


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_move_nothing_is_recomputed(layout):
    problem = hard_cases()["random"]
    engine = CorrelationEngine(layout)
    engine.start(problem.network(), problem.X)
    done = engine.work.inner_products
    for _ in range(3):
        engine.forward()
        engine.fire_sets()
        engine.step(np.zeros_like(problem.y), StepRule(0.1))
    assert engine.work.inner_products == done
    assert engine.work.refreshes == 300


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pass_visits_what_is_above_the_threshold(layout):
    """The root of trees without active leaves; of all others, the paths to the active leaves."""
    for case, problem in hard_cases().items():
        engine = CorrelationEngine(layout)
        engine.start(problem.network(), problem.X)
        engine.forward()
        inner = engine._forest.trees[:, engine._forest.levels[1] :] if engine._forest.n_leaves > 1 else np.empty(0)
        expected = len(engine._forest.trees) + FAN * np.count_nonzero(inner > problem.threshold)
        assert engine.work.nodes_visited == expected, case


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_do_not_depend_on_the_number_of_threads(layout, monkeypatch):
    rng = np.random.default_rng(0)
    problem = Problem(sphere(rng, 300, 5), rng.standard_normal((300, 1)), 600, 0.9)
    weights = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        network, engine = problem.network(), CorrelationEngine(layout)
        engine.start(network, problem.X)
        for _ in range(10):
            engine.step(engine.forward() - problem.y, StepRule(0.2))
        weights.append(network.weights)
    assert np.array_equal(weights[0], weights[1])
    assert np.array_equal(weights[0], weights[2])


# Edges


@pytest.mark.parametrize("layout", LAYOUTS)
def test_float32_is_exact_up_to_rounding(layout):
    problem = hard_cases()["random"]
    network, X = problem.network("float32"), problem.X.astype(np.float32)
    engine = CorrelationEngine(layout)
    engine.start(network, X)
    for _ in range(20):
        engine.step(engine.forward() - problem.y, StepRule(0.1))
    margin = X.astype(np.float64) @ network.weights.astype(np.float64).T - network.threshold
    clear = np.abs(margin) > 1e-5
    assert np.array_equal(engine.fire_sets().toarray()[clear], margin[clear] > 0)
    np.testing.assert_allclose(engine.forward(), network.predict(X), rtol=0, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_runs_a_missing_forward_pass(layout):
    problem = hard_cases()["several outputs"]
    networks = [problem.network(), problem.network()]
    for network, calls_forward in zip(networks, (True, False), strict=True):
        engine = CorrelationEngine(layout)
        engine.start(network, problem.X)
        if calls_forward:
            engine.forward()
        for _ in range(2):
            engine.step(problem.y, StepRule(0.1))
    assert np.array_equal(networks[0].weights, networks[1].weights)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_velocity_must_match_the_weights(layout):
    problem = hard_cases()["random"]
    engine = CorrelationEngine(layout)
    engine.start(problem.network(), problem.X)
    with pytest.raises(InputError, match=r"velocity.*float64.*\(300, 8\)"):
        engine.step(problem.y, StepRule(0.1, 0.9, velocity=np.zeros((300, 8), np.float32)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_that_overflows_gives_nan_without_an_error(layout, dtype):
    problem = hard_cases()["random"]
    network, X = problem.network(dtype), problem.X.astype(dtype)
    engine = CorrelationEngine(layout)
    engine.start(network, X)
    first = engine.forward()
    with np.errstate(all="ignore"):
        for rate in (1e39, np.inf):  # large in float64, and then infinite
            engine.step(problem.y, StepRule(rate))
            predictions = engine.forward()
            assert np.array_equal(engine.fire_sets().toarray(), network.fire_sets(X).toarray())
        assert not np.isfinite(predictions).all()
    network.weights[:] = problem.network(dtype).weights
    engine.start(network, X)
    assert np.array_equal(engine.forward(), first)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_neuron_with_nan(layout):
    """Every prediction is NaN, the neuron is not active, and the others are not affected."""
    problem = hard_cases()["random"]
    network, engine = problem.network(), CorrelationEngine(layout)
    network.weights[17] = np.nan
    with np.errstate(invalid="ignore"):
        engine.start(network, problem.X)
        assert np.isnan(engine.forward()).all()
    expected = problem.network().fire_sets(problem.X).toarray()
    expected[:, 17] = False
    assert np.array_equal(engine.fire_sets().toarray(), expected)


def test_trees_beyond_the_limit_raise():
    X = np.ones((60_000, 1), np.float32)
    network = ShiftedReLUNetwork.initialize(33_000, 1)
    for layout in LAYOUTS:
        with pytest.raises(InputError, match=r"9\.1 GB.*60,000.*33,000.*memory_limit = 4\.3 GB"):
            CorrelationEngine(layout).start(network, X)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_limit_is_the_size_of_the_trees(layout):
    problem = hard_cases()["random"]
    engine = CorrelationEngine(layout)
    engine.start(problem.network(), problem.X)
    taken = engine._forest.trees.nbytes
    assert taken < 1.25 * problem.X.shape[0] * 300 * 8
    CorrelationEngine(layout, memory_limit=taken).start(problem.network(), problem.X)
    with pytest.raises(InputError, match=r"0\.1\d+ MB.*memory_limit = "):
        CorrelationEngine(layout, memory_limit=taken - 1).start(problem.network(), problem.X)


def test_wrong_options_raise():
    with pytest.raises(InputError, match=r"layout.*got 'rows'"):
        CorrelationEngine("rows")
    for limit in (0, -1, np.nan, True, "4 GB"):
        with pytest.raises(InputError, match=f"memory_limit.*got {limit!r}"):
            CorrelationEngine(memory_limit=limit)
