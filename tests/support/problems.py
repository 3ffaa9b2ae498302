"""The table of hard cases, and a Hypothesis strategy for random problems; every engine is run on both."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from fireset import ShiftedReLUNetwork
from support.checks import sphere


@dataclass
class Problem:
    X: np.ndarray
    y: np.ndarray
    width: int
    threshold: float
    seed: int = 0
    plant: bool = False  # put samples exactly on the threshold of some neurons

    def network(self, dtype="float64") -> ShiftedReLUNetwork:
        network = ShiftedReLUNetwork.initialize(
            self.width,
            self.X.shape[1],
            self.y.shape[1],
            threshold=self.threshold,
            seed=self.seed,
            dtype=dtype,
        )
        if self.plant:
            plant_on_threshold(network, self.X)
        return network


def plant_on_threshold(network: ShiftedReLUNetwork, X: np.ndarray) -> None:
    """Move every third neuron so that ⟨w_r, x⟩ is b or a neighbouring float for some sample."""
    from fireset.kernels.firing import deciding_dot

    for r in range(0, network.width, 3):
        x = X[r % len(X)].astype(network.dtype)
        for _ in range(3):
            network.weights[r] += (network.threshold - deciding_dot(network.weights[r], x)) * x / (x @ x)


def _make(rng, n, d, width, threshold, outputs=1, **options) -> Problem:
    return Problem(sphere(rng, n, d), rng.standard_normal((n, outputs)), width, threshold, **options)


def hard_cases() -> dict[str, Problem]:
    rng = np.random.default_rng(0)
    cases = {
        "random": _make(rng, 60, 8, 300, 1.2),
        "several outputs": _make(rng, 50, 6, 200, 1.0, outputs=3),
        "plain ReLU": _make(rng, 40, 5, 200, 0.0),
        "everything fires": _make(rng, 20, 3, 50, -30.0),
        "nothing fires": _make(rng, 20, 3, 50, 30.0),
        "one dimension": _make(rng, 30, 1, 40, 0.5),
        "one sample": _make(rng, 1, 4, 100, 0.8),
        "two neurons": _make(rng, 30, 4, 2, 0.3),
        "on the threshold": _make(rng, 40, 4, 150, 0.7, plant=True),
        "wider than one span": _make(rng, 30, 3, 1500, 1.5, outputs=2),
    }
    X = np.repeat(sphere(rng, 10, 4), 5, axis=0)
    cases["duplicates"] = Problem(X, rng.standard_normal((50, 1)), 200, 1.0)
    cases["antipodes"] = Problem(np.concatenate([X[:10], -X[:10]]), rng.standard_normal((20, 1)), 200, 0.5)
    cases["axes"] = Problem(np.concatenate([np.eye(5), -np.eye(5)]), rng.standard_normal((10, 1)), 200, 0.4)
    return cases


@st.composite
def problems(draw, most_features: int = 30) -> Problem:
    n, d = draw(st.integers(1, 200)), draw(st.integers(1, most_features))
    width = draw(st.integers(2, 2000))
    threshold = draw(st.one_of(st.just(0.0), st.floats(-2.0, 3.0, allow_subnormal=False)))
    outputs = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    X = sphere(rng, n, d)
    if draw(st.booleans()):
        X = X[rng.integers(0, n, n)]  # duplicates
    return Problem(
        X,
        rng.standard_normal((n, outputs)),
        width,
        threshold,
        draw(st.integers(0, 2**32)),
        draw(st.booleans()),
    )
