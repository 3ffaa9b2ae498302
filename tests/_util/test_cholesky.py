"""Blocked Cholesky factorization against NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset._util.cholesky import cholesky, cholesky_solve, inverse_diagonal


def positive_definite(rng, n, dtype):
    A = rng.standard_normal((n, n + 5))
    return (A @ A.T / (n + 5) + 0.5 * np.eye(n)).astype(dtype)


@settings(max_examples=40)
@given(
    st.integers(1, 700) | st.integers(1025, 1300),
    st.integers(0, 12),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 2**31),
)
def test_factor_solution_and_inverse_equal_numpy(n, outputs, dtype, seed):
    rng = np.random.default_rng(seed)
    A = positive_definite(rng, n, dtype)
    exact, right = A.astype(np.float64), rng.standard_normal((n, outputs))
    L = A.copy()
    L[np.triu_indices(n, 1)] = np.nan  # must not be read
    assert cholesky(L)
    tolerance = 2e-4 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(np.tril(L), np.linalg.cholesky(exact), atol=tolerance)
    np.testing.assert_allclose(cholesky_solve(L, right), np.linalg.solve(exact, right), atol=10 * tolerance)
    inverse = np.diag(np.linalg.inv(exact))
    np.testing.assert_allclose(inverse_diagonal(L), inverse, rtol=10 * tolerance)
    np.testing.assert_allclose(inverse_diagonal(L, n // 2), inverse[n // 2 :], rtol=10 * tolerance)


@pytest.mark.parametrize("n", [1, 3, 300, 1100])
@pytest.mark.parametrize("broken", ["indefinite", "singular", "nan", "inf"])
def test_indefinite_matrices_are_reported(n, broken):
    A = positive_definite(np.random.default_rng(0), n, np.float64)
    value = {"indefinite": -1.0, "singular": 0.0, "nan": np.nan, "inf": np.inf}[broken]
    A[n - 1, :] = A[:, n - 1] = 0.0
    A[n - 1, n - 1] = value
    assert not cholesky(A)


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch):
    A = positive_definite(np.random.default_rng(0), 1200, np.float32)
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        L = A.copy()
        assert cholesky(L)
        found.append((np.tril(L), inverse_diagonal(L), cholesky_solve(L, A[:, :20])))
    for one, several in zip(*found, strict=True):
        np.testing.assert_array_equal(one, several)
