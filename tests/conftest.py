"""Shared by all tests: Hypothesis settings and problem makers."""

import numpy as np
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fireset",
    deadline=None,  # kernels compile on first use
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=True,
)
settings.load_profile("fireset")


def sphere(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """n random unit rows."""
    X = rng.standard_normal((n, d))
    X[np.linalg.norm(X, axis=1) == 0] = 1.0
    return X / np.linalg.norm(X, axis=1, keepdims=True)
