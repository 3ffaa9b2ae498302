"""Every engine of the registry fulfils the contract of ``fireset.engines.base``."""

from math import sqrt

import numpy as np
import pytest

from fireset.distributed.engine import NeuronShardEngine, RowShardEngine
from fireset.engines import Engine, StepRule, create
from fireset.engines.base import BatchEngine
from fireset.engines.blocks import BlockEngine
from fireset.engines.registry import ENGINES, engine_class
from support.problems import Problem, hard_cases
from support.side_by_side import STEPS, run_side_by_side

CASES = ["random", "several outputs", "plain ReLU", "nothing fires", "on the threshold", "duplicates"]
MAKERS = {**{name: (lambda name=name: create(name)) for name in ENGINES}, "data in blocks": lambda: BlockEngine(3)}


def started(name: str, case: str, output_scale: float = 1.0) -> tuple[Problem, Engine]:
    problem = hard_cases()[case]
    engine = MAKERS[name]()
    network = problem.network()
    network.output_scale = output_scale
    engine.start(network, problem.X)
    return problem, engine


def jacobian(engine: Engine) -> np.ndarray:
    """Return J of the engine's fire sets, (n·c, m·d), by its definition."""
    fires, network = engine.fire_sets().toarray(), engine.network
    J = np.einsum("ir,rc,ij->icrj", fires, network.output_weights, engine.X)
    return J.reshape(len(engine.X) * network.n_outputs, -1)


@pytest.mark.parametrize("name", [name for name in ENGINES if engine_class(name).exact])
def test_exact_engines_agree_with_dense(name):
    run_side_by_side(hard_cases()["several outputs"], create(name), 30, STEPS["Nesterov"])


@pytest.mark.parametrize("output_scale", [1.0, 7.0])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", MAKERS)
def test_gradient_and_tangent_product_are_those_of_the_fire_sets(name, case, output_scale):
    problem, engine = started(name, case, output_scale)
    if engine.exact:
        np.testing.assert_allclose(engine.forward(), engine.network.predict(problem.X), rtol=0, atol=1e-10)
    v = np.random.default_rng(0).standard_normal(problem.y.shape)
    J, m = jacobian(engine), engine.network.width
    neurons, rows = engine.gradient(v)
    found = np.zeros_like(engine.network.weights)
    found[neurons] = rows
    expected = output_scale * (J.T @ v.ravel()).reshape(found.shape) / sqrt(m)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    product = output_scale**2 * (J @ (J.T @ v.ravel())).reshape(v.shape) / m
    np.testing.assert_allclose(engine.tangent_product(v), product, rtol=0, atol=1e-12 * max(1, np.abs(product).max()))
    directions = np.random.default_rng(1).standard_normal(found.shape)
    moved = output_scale * (J @ directions.ravel()).reshape(v.shape) / sqrt(m)
    np.testing.assert_allclose(engine.jacobian_product(directions), moved, rtol=0, atol=1e-11)
    operator = engine.tangent_operator()
    np.testing.assert_array_equal(operator(v), operator(v))


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [name for name in ENGINES if engine_class(name).exact] + ["data in blocks"])
def test_steps_outside_of_the_engine(name, case, momentum):
    """``gradient``, ``StepRule.apply`` and ``weights_moved`` give the weights of ``step``."""
    problem, inside = started(name, case)
    _, outside = started(name, case)
    rules = [StepRule(0.3, momentum, nesterov=momentum > 0) for _ in range(2)]
    for k in range(8):
        u = inside.forward()
        np.testing.assert_allclose(outside.forward(), u, rtol=0, atol=1e-10)
        assert outside.work.active_pairs == inside.work.active_pairs
        residual = u - problem.y
        inside.step(residual, rules[0])
        if k == 5:  # both may be mixed
            outside.step(residual, rules[1])
        else:
            outside.weights_moved(*rules[1].apply(outside.network.weights, outside.gradient(residual)))
    np.testing.assert_allclose(outside.network.weights, inside.network.weights, rtol=0, atol=1e-10)
    expected = inside.network.fire_sets(problem.X)
    for engine in (inside, outside):
        assert np.array_equal(engine.fire_sets().indices, expected.indices)


@pytest.mark.parametrize("name", [name for name in ENGINES if engine_class(name).exact] + ["data in blocks"])
def test_weights_moved_by_large_distances(name):
    """Fire sets and predictions are those of the new weights."""
    problem, engine = started(name, "random")
    network, rng = engine.network, np.random.default_rng(1)
    for _ in range(5):
        engine.forward()
        neurons = np.sort(rng.permutation(network.width)[:40])
        before = network.weights[neurons].copy()
        network.weights[neurons] += rng.standard_normal(before.shape)
        engine.weights_moved(neurons, np.linalg.norm(network.weights[neurons] - before, axis=1) * (1 + 1e-12))
        expected = network.fire_sets(problem.X)
        assert np.array_equal(engine.fire_sets().indices, expected.indices)
        np.testing.assert_allclose(engine.forward(), network.predict(problem.X), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", MAKERS)
def test_two_steps_without_a_forward_pass_between_them(name):
    """The second step uses the gradient at the weights after the first one."""
    problem, engine = started(name, "random")
    _, reference = started(name, "random")
    residual = np.random.default_rng(0).standard_normal(problem.y.shape)
    for _ in range(3):
        engine.step(residual, StepRule(2.0))
        reference.forward()
        reference.step(residual, StepRule(2.0))
    np.testing.assert_allclose(engine.network.weights, reference.network.weights, rtol=0, atol=1e-12)


def jump(engine: Engine) -> None:
    engine.network.weights[:40] += 0.5
    engine.weights_moved(np.arange(40), np.full(40, 2.0))


MOVES = {
    "a step on the batch": lambda engine, rule: engine.step_rows(np.linspace(-9, 9, 20)[:, None], rule),
    "a step on all rows": lambda engine, rule: engine.step(np.linspace(-9, 9, 60)[:, None], rule),
    "a change from outside": lambda engine, _: jump(engine),
}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("name", [name for name in ENGINES if engine_class(name).supports_batches])
def test_a_step_on_a_batch_uses_the_current_weights(name, move, momentum):
    """Also if they have moved since the forward pass of the batch."""
    _, engine = started(name, "random")
    _, reference = started(name, "random")
    rows = np.random.default_rng(0).permutation(60)[:20]
    residual = np.linspace(5, -7, 20)[:, None]
    rules = [StepRule(2.0, momentum) for _ in range(2)]
    for each, rule in zip((engine, reference), rules, strict=True):
        each.forward_rows(rows)
        MOVES[move](each, rule)
    reference.end_batches(rules[1])
    reference.start(reference.network, reference.X)
    reference.forward_rows(rows)
    for each, rule in zip((engine, reference), rules, strict=True):
        each.step_rows(residual, rule)
        each.end_batches(rule)
    np.testing.assert_allclose(engine.network.weights, reference.network.weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in ENGINES if engine_class(name).supports_batches])
def test_a_batch_of_all_rows_in_another_order(name):
    problem, engine = started(name, "random")
    _, plain = started(name, "random")
    residual = np.linspace(-3, 4, 60)[:, None]
    engine.forward_rows(np.arange(60)[::-1].copy())
    assert (engine.fire_sets() != engine.network.fire_sets(problem.X)).nnz == 0
    engine.forward_rows(np.arange(60)[::-1].copy())
    for each in (engine, plain):
        each.step(residual, StepRule(2.0))
    np.testing.assert_allclose(engine.network.weights, plain.network.weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MAKERS)
def test_capabilities(name):
    problem, engine = started(name, "random")
    assert engine.name in ENGINES
    assert engine.summary
    assert engine.supports_batches == isinstance(engine, BatchEngine)
    assert engine.within_memory(engine.network, len(problem.X), 1e12) is engine
    if engine.exact:
        assert engine.recall(np.arange(10)) == 1.0


def activations(engine: Engine) -> np.ndarray:
    """Return σ_b of the pairs that the engine finds, (n, m)."""
    network = engine.network
    return engine.fire_sets().toarray() * (engine.X @ network.weights.T - network.threshold)


@pytest.mark.parametrize("name", MAKERS)
def test_output_gradient_and_changed_output_weights(name):
    problem, engine = started(name, "several outputs", output_scale=3.0)
    network, v = engine.network, np.random.default_rng(0).standard_normal(problem.y.shape)
    engine.forward()
    expected = activations(engine).T @ v / network.divisor
    np.testing.assert_allclose(engine.output_gradient(v), expected, rtol=0, atol=1e-10)
    network.output_weights *= 1.5
    engine.outputs_moved()
    expected = activations(engine) @ network.output_weights / network.divisor
    np.testing.assert_allclose(engine.forward(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", MAKERS)
def test_output_layer_is_that_of_the_activations(name, case):
    problem, engine = started(name, case, output_scale=3.0)
    network, rng = engine.network, np.random.default_rng(0)
    J, v = activations(engine) / network.divisor, rng.standard_normal(problem.y.shape)
    directions = rng.standard_normal(network.output_weights.shape)
    layer, close = engine.output_layer(), {"rtol": 0, "atol": 1e-10}
    np.testing.assert_allclose(layer.gradient(v), J.T @ v, **close)
    np.testing.assert_allclose(layer.jacobian_product(directions), J @ directions, **close)
    np.testing.assert_allclose(layer.tangent_product(v), J @ (J.T @ v), **close)
    np.testing.assert_allclose(layer.diagonal(), np.square(J).sum(axis=1), **close)
    if engine.exact:  # else columns also count pairs that the engine does not find
        some = np.arange(0, len(problem.X), 2)
        np.testing.assert_allclose(layer.columns(engine.X[some]), J[some] @ J.T, **close)
        np.testing.assert_allclose(np.tril(layer.whole_kernel()), np.tril(J @ J.T), **close)
        np.testing.assert_allclose(layer.kernel(engine.X[some]), J[some] @ J[some].T, **close)


SAFE_DEFAULTS = {"start", "check_input", "tangent_product", "recall", "within_memory"}  # independent of width and rows


def test_engines_that_wrap_another_inherit_nothing_that_depends_on_width_or_rows():
    """A method that a wrapper forgets would compute with the divisor of one shard."""
    public = {name for name, value in vars(Engine).items() if callable(value) or isinstance(value, property)}
    concrete = {name for name in public if not name.startswith("_")} - Engine.__abstractmethods__
    assert concrete == SAFE_DEFAULTS
    for wrapper in (NeuronShardEngine, RowShardEngine):
        assert not wrapper.__abstractmethods__
        for name in Engine.__abstractmethods__:
            assert getattr(wrapper, name) is not getattr(Engine, name)


def test_recall_of_hashing():
    problem, engine = started("hashing", "random")
    found, active = engine.fire_sets(), engine.network.fire_sets(problem.X)
    assert engine.recall() == pytest.approx(found.nnz / active.nnz)
    rows = np.array([3, 5])
    assert engine.recall(rows) == pytest.approx(found[rows].nnz / active[rows].nnz)
