"""Shared by all tests: Hypothesis settings, threads, and problem makers."""

import os

import numpy as np
from hypothesis import HealthCheck, settings

settings.register_profile(
    "fireset",
    deadline=None,  # kernels compile on first use
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=True,
)
settings.load_profile("fireset")

# Tests that run side by side have a core each: two threads in each of two processes mostly wait for one another.
# ``test_parallel.py`` asks for several threads itself, and run without ``-n`` all tests use all cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"


def sphere(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """n random unit rows."""
    X = rng.standard_normal((n, d))
    X[np.linalg.norm(X, axis=1) == 0] = 1.0
    return X / np.linalg.norm(X, axis=1, keepdims=True)
