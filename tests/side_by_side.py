"""An engine and the dense one on the same network: what every exact engine is held to."""

import numpy as np

from fireset._util.parallel import one_blas_thread
from fireset.engines import StepRule, create
from fireset.theory import largest_eigenvalue
from fireset.training.losses import SquaredError
from problems import Problem

STEPS = {
    "plain": {},
    "heavy ball": {"momentum": 0.9},
    "Nesterov": {"momentum": 0.9, "nesterov": True},
}


@one_blas_thread()  # as in training: entered for every pass, it would take most of the time
def run_side_by_side(problem: Problem, engine, iterations: int, step_options: dict, dtype="float64") -> None:
    """Train with ``engine`` and the dense engine from the same network; compare at every iteration."""
    networks = [problem.network(dtype), problem.network(dtype)]
    X = problem.X.astype(dtype)
    engines = [create("dense"), engine]
    loss, weight = SquaredError(), np.ones(len(X))
    for network, each in zip(networks, engines, strict=True):
        each.start(network, X)
    top = largest_eigenvalue(X, networks[0].signs, engines[0].fire_sets())
    rate = 0.7 / max(top, 1e-3)
    rules = [StepRule(rate, **step_options) for _ in networks]
    for _ in range(iterations):
        predictions = [each.forward() for each in engines]
        np.testing.assert_allclose(predictions[1], predictions[0], rtol=0, atol=1e-9)
        expected, found = (each.fire_sets() for each in engines)
        assert np.array_equal(found.indptr, expected.indptr)
        assert np.array_equal(found.indices, expected.indices)
        assert engines[0].work.fired_pairs == engines[1].work.fired_pairs == expected.nnz
        for u, each, rule in zip(predictions, engines, rules, strict=True):
            each.step(loss.residual(u, problem.y, weight), rule)
    scale = max(1.0, np.abs(networks[0].weights).max())
    assert np.abs(networks[1].weights - networks[0].weights).max() <= 1e-9 * scale
