"""Compare an engine with the dense one on equal networks."""

import numpy as np

from fireset import Trainer
from fireset._util.parallel import one_blas_thread
from fireset.engines import create
from fireset.theory import largest_eigenvalue
from support.problems import Problem

STEPS = {
    "plain": {},
    "heavy ball": {"momentum": 0.9},
    "Nesterov": {"momentum": 0.9, "nesterov": True},
}


@one_blas_thread()  # as in training: entered for every pass, it would take most of the time
def run_side_by_side(problem: Problem, engine, iterations: int, step_options: dict, dtype="float64") -> None:
    """Train with ``engine`` and the dense engine from equal networks, and compare them in every iteration."""
    networks = [problem.network(dtype), problem.network(dtype)]
    X = problem.X.astype(dtype)
    top = largest_eigenvalue(X, networks[0].output_weights, networks[0].fire_sets(X))
    settings = {"learning_rate": 0.7 / max(top, 1e-3), "tol": 0, "any_norm": True, **step_options}
    dense, other = (
        Trainer(network, X, problem.y, engine=each, **settings)
        for network, each in zip(networks, (create("dense"), engine), strict=True)
    )
    for _ in range(iterations):
        u, _, _ = _step(dense)
        v, found, expected = _step(other)
        np.testing.assert_allclose(v, u, rtol=0, atol=1e-9 * max(1.0, np.abs(u).max()))
        assert np.array_equal(found.indptr, expected.indptr)
        assert np.array_equal(found.indices, expected.indices)
        assert other.history[-1].active_pairs == expected.nnz
    scale = max(1.0, np.abs(networks[0].weights).max())
    assert np.abs(networks[1].weights - networks[0].weights).max() <= 1e-9 * scale


def _step(trainer: Trainer):
    """Run one iteration. Return the predictions, the engine's fire sets and the true ones before the step.

    The true ones are those of the engine's own weights: the weights of the dense run differ in the last bits, which
    decide for a neuron exactly at the threshold.
    """
    seen = []

    def look(progress) -> None:
        engine = progress.engine
        seen.append((progress.predictions, engine.fire_sets(), engine.network.fire_sets(engine.X)))

    trainer.step([look])
    return seen[0]
