"""Probabilities against 50-digit quadrature and sampling; kernels, spectra and bounds against brute force."""

from math import exp, inf, log, pi, sqrt

import mpmath
import numpy as np
import pytest
from scipy.stats import binom

from fireset import InputError, ShiftedReLUNetwork, train
from fireset._util.gaussian import upper_tail
from fireset.theory import (
    KernelRegression,
    both_above,
    bounds,
    dual_kernel,
    extreme_eigenvalues,
    fire_set_kernel,
    measure_separation,
    shifted_ntk,
    smallest_eigenvalue,
)
from fireset.theory import separation as separation_module
from fireset.theory import spectrum as spectrum_module
from fireset.theory.joint_firing import interval_probability
from fireset.theory.spectrum import ShiftedCholesky, check_memory
from fireset.theory.step_split import pairs_near_threshold
from support.checks import sphere
from support.problems import hard_cases

# P(Z₁ > b and Z₂ > b)


def by_quadrature(b: float, side: int, gap: float):
    """Plackett's integral in 50 digits, b > 0 and ρ = side·(1 − gap): (1/2π) ∫ e^(−b²/(1 + sin t)), −π/2 < t < asin ρ.

    With t = s − π/2; at s = 0 the correlation is −1, and both cannot be above b.
    """
    with mpmath.workdps(50):
        b, rho = mpmath.mpf(b), side * (1 - mpmath.mpf(gap))
        end = 2 * mpmath.asin(mpmath.sqrt((1 + rho) / 2))
        length = (1 + rho) ** 2 / (b * b * mpmath.sqrt(1 - rho * rho) + (1 + rho) ** 2)
        marks = [end - length * mpmath.mpf(4) ** k for k in range(-3, 12)]
        points = [mpmath.mpf(0), *sorted(mark for mark in marks if mark > 0), end]
        most = b * b / (1 + rho)  # factored out: the tolerance of quad is absolute

        def integrand(s):
            return mpmath.exp(most - b * b / (2 * mpmath.sin(s / 2) ** 2)) if s > 0 else mpmath.mpf(0)

        return mpmath.quad(integrand, points) * mpmath.exp(-most) / (2 * mpmath.pi)


@pytest.mark.sweep(every=14)
@pytest.mark.parametrize("b", [1e-3, 0.05, 0.4, 1.0, 2.3, 4.0, 9.0])
def test_both_above_in_50_digits(b):
    """Relative error below 1e-12, down to 1e-290, from nearly opposite to nearly equal rows."""
    cases = [(side, gap) for side in (-1, 1) for gap in (1e-12, 1e-7, 1e-3, 0.05, 0.4, 0.9, 1.0)]
    checked = 0
    for side, gap in cases:
        exact = by_quadrature(b, side, gap)
        if exact < 1e-290:
            continue
        found = both_above(b, np.array([side * (1 - gap)]), np.array([gap]))[0]
        assert abs(found / exact - 1) < 1e-12, (b, side, gap)
        checked += 1
    assert checked >= 9


@pytest.mark.parametrize("b", [-3.0, -1.0, -0.01])
def test_both_above_a_negative_threshold(b):
    for side, gap in [(-1, 1e-9), (-1, 0.3), (1, 1.0), (1, 0.2), (1, 1e-9)]:
        found = both_above(b, np.array([side * (1 - gap)]), np.array([gap]))[0]
        with mpmath.workdps(50):
            exact = by_quadrature(-b, side, gap) + 1 - 2 * mpmath.ncdf(b)
        assert abs(found / exact - 1) < 1e-12


def test_both_above_at_its_limits():
    assert both_above(30.0, np.array([-0.9]))[0] == 0.0
    assert both_above(1.0, np.array([-1.0]))[0] == 0.0
    assert both_above(1.0, np.array([1.0]))[0] == pytest.approx(upper_tail(1.0), rel=1e-15)
    assert both_above(1.0, np.array([0.0]))[0] == pytest.approx(upper_tail(1.0) ** 2, rel=1e-14)
    assert both_above(0.0, np.array([0.5]))[0] == pytest.approx(1 / 3, rel=1e-14)


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("b", [0.0, 1.0, 2.0])
def test_shifted_ntk_agrees_with_a_million_samples(b):
    """Random, nearly parallel and antipodal pairs, within four standard errors."""
    rng = np.random.default_rng(3)
    X = sphere(rng, 4, 3)
    X = np.concatenate([X, -X[:1], X[:1] + 1e-3 * X[1:2], -X[:1] + 1e-3 * X[1:2]])
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    seen, count, at_once = np.zeros((7, 7)), 1_000_000, 100_000
    for _ in range(count // at_once):
        fires = (rng.standard_normal((at_once, 3)) @ X.T > b).astype(np.float64)
        seen += fires.T @ fires
    probability = shifted_ntk(X, b) / (X @ X.T)
    error = np.sqrt(probability.clip(0, 1) * (1 - probability.clip(0, 1)) / count)
    assert (np.abs(seen / count - probability) <= 4 * error + 1e-12).all()


def test_nearly_equal_rows_keep_all_digits():
    """Two rows at distance 1e-9: 1 − ρ is 5e-19, below the precision of ρ."""
    angle = 1e-9
    X = np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    b = 1.0
    kernel = shifted_ntk(X, b)
    # To first order in the angle φ, P is Φ(−b) − (φ/2π) e^(−b²/2).
    assert kernel[0, 0] - kernel[0, 1] == pytest.approx(angle / (2 * np.pi) * exp(-0.5), rel=1e-5)


def test_the_cross_kernel_is_a_submatrix_of_the_kernel():
    X = sphere(np.random.default_rng(0), 700, 4)  # more than one tile
    whole = shifted_ntk(X, 0.9)
    np.testing.assert_allclose(shifted_ntk(X[:50], 0.9, X[20:]), whole[:50, 20:], rtol=1e-13)
    assert np.array_equal(whole, whole.T)
    plus = shifted_ntk(X[:9], 0.9, trained_bias=True) - whole[:9, :9]
    np.testing.assert_allclose(plus, both_above(0.9, (X @ X.T)[:9, :9]), rtol=1e-7)


def test_rows_of_norm_zero_raise():
    X = np.array([[1.0, 0.0], [0.0, 0.0]])
    for call in (lambda: shifted_ntk(X, 1.0), lambda: measure_separation(X)):
        with pytest.raises(InputError, match="row 1 of X has norm 0"):
            call()
    with pytest.raises(InputError, match=r"Z must have 2 columns.*got 3"):
        shifted_ntk(X[:1], 1.0, np.ones((1, 3)))
    with pytest.raises(InputError, match=r"got shape \(0, 2\)$"):
        shifted_ntk(X[:0], 1.0)


# H(t) and H(t)^⊥


@pytest.mark.parametrize("case", hard_cases())
def test_fire_set_kernels_are_their_definition(case):
    problem = hard_cases()[case]
    network = problem.network()
    active = network.fire_sets(problem.X)
    F = active.toarray() * 1.0
    inner = problem.X @ problem.X.T
    np.testing.assert_allclose(fire_set_kernel(problem.X, active), inner * (F @ F.T) / network.width, atol=1e-14)
    part = problem.network().fire_sets(problem.X)
    part.data = np.random.default_rng(0).random(part.nnz) < 0.5
    part.eliminate_zeros()
    D = part.toarray() * F
    np.testing.assert_allclose(dual_kernel(problem.X, active, part), inner * (D @ F.T) / network.width, atol=1e-14)


# Spectra


def test_krylov_and_dense_solvers_agree(monkeypatch):
    X = sphere(np.random.default_rng(0), 300, 6)
    kernel = shifted_ntk(X, 1.5)
    dense = extreme_eigenvalues(kernel)
    monkeypatch.setattr(spectrum_module, "_MAX_DENSE_ROWS", 0)
    krylov = extreme_eigenvalues(kernel)
    assert krylov.smallest == pytest.approx(dense.smallest, rel=1e-7)
    assert krylov.largest == pytest.approx(dense.largest, rel=1e-9)
    assert smallest_eigenvalue(kernel) == krylov.smallest
    assert extreme_eigenvalues(kernel.copy(), overwrite=True) == krylov
    np.testing.assert_array_equal(kernel, shifted_ntk(X, 1.5))  # not changed without overwrite


@pytest.mark.parametrize("rank", [1, 5])
def test_singular_kernels_have_smallest_eigenvalue_zero(monkeypatch, rank):
    monkeypatch.setattr(spectrum_module, "_MAX_DENSE_ROWS", 0)
    rows = sphere(np.random.default_rng(1), 40, rank)
    found = extreme_eigenvalues(rows @ rows.T)
    assert found.singular
    assert abs(found.smallest) <= 100 * found.rounding


def test_an_indefinite_kernel_is_shifted_until_it_can_be_factored():
    rows = sphere(np.random.default_rng(1), 30, 3)
    kernel = rows @ rows.T
    kernel[np.diag_indices(30)] -= 1e-11
    factor = ShiftedCholesky(kernel)
    assert factor.shift > 1e-11
    y = np.random.default_rng(0).standard_normal(30)
    np.testing.assert_allclose((kernel + factor.shift * np.eye(30)) @ factor.solve(y), y, atol=1e-3)


def test_a_kernel_of_zeros(monkeypatch):
    monkeypatch.setattr(spectrum_module, "_MAX_DENSE_ROWS", 0)
    found = extreme_eigenvalues(np.zeros((4, 4)))
    assert (found.smallest, found.largest, found.singular) == (0.0, 0.0, True)


def test_kernels_that_exceed_memory_raise():
    with pytest.raises(InputError, match=r"10,000,000 rows takes 800000\.0 GB"):
        check_memory(10_000_000)


# Separation


def by_brute_force(X) -> float:
    distances = [min(np.linalg.norm(X[i] - X[j]), np.linalg.norm(X[i] + X[j])) for i in range(len(X)) for j in range(i)]
    return float(min(distances))


@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("d", [2, 3, 12])
def test_separation_is_the_smallest_distance(monkeypatch, tree, d):
    monkeypatch.setattr(separation_module, "_MIN_TREE_ROWS", 2 if tree else 10**9)
    monkeypatch.setattr(separation_module, "_MAX_TREE_COLUMNS", 99)
    monkeypatch.setattr(separation_module, "_TILE_ROWS", 7)
    for seed in range(5):
        X = sphere(np.random.default_rng(seed), 30, d)
        found = measure_separation(X)
        assert found.distance == pytest.approx(by_brute_force(X), rel=1e-9)
        assert found.pair is not None
        i, j = found.pair
        assert i < j
        assert np.linalg.norm(X[i] + X[j] if found.opposite else X[i] - X[j]) == pytest.approx(found.distance)


@pytest.mark.parametrize("tree", [True, False])
def test_equal_opposite_and_nearly_equal_rows_are_found(monkeypatch, tree):
    monkeypatch.setattr(separation_module, "_MIN_TREE_ROWS", 2 if tree else 10**9)
    X = sphere(np.random.default_rng(0), 20, 4)
    same = measure_separation(np.concatenate([X, X[3:4], X[3:4]]))
    assert (same.distance, same.opposite) == (0.0, False)
    assert same.pair in {(3, 20), (3, 21), (20, 21)}
    assert "the same" in str(same)
    opposite = measure_separation(np.concatenate([X, -X[5:6]]))
    assert (opposite.distance, opposite.pair, opposite.opposite) == (0.0, (5, 20), True)
    assert "rows 5 and 20" in str(opposite)
    near = X[3] + 1e-10 * (X[4] - (X[3] @ X[4]) * X[3])
    found = measure_separation(np.concatenate([X, near[None]]))
    assert found.pair == (3, 20)
    assert found.distance == pytest.approx(np.linalg.norm(near - X[3]), rel=1e-5)


def test_one_row_has_no_pair():
    found = measure_separation(np.ones((1, 3)))
    assert (found.distance, found.pair) == (inf, None)
    assert smallest_eigenvalue(shifted_ntk(np.ones((1, 3)), 1.0)) == pytest.approx(upper_tail(1.0))


# Kernel regression


def test_kernel_regression_interpolates_and_is_the_limit_of_descent():
    rng = np.random.default_rng(0)
    X, Z, y = sphere(rng, 40, 5), sphere(rng, 10, 5), rng.standard_normal((40, 2))
    whole = KernelRegression(0.8).fit(X, y)
    np.testing.assert_allclose(whole.predict(X), y, atol=1e-7)
    rate = 1.0 / extreme_eigenvalues(shifted_ntk(X, 0.8)).largest
    steps = KernelRegression(0.8).fit_steps(X, y, rate=rate, steps=100_000)
    np.testing.assert_allclose(steps.predict(Z), whole.predict(Z), atol=1e-6)
    kernel, u = shifted_ntk(X, 0.8), np.zeros((40, 2))
    for _ in range(7):
        u += rate * kernel @ (y - u)
    np.testing.assert_allclose(KernelRegression(0.8).fit_steps(X, y, rate=rate, steps=7).predict(X), u, atol=1e-12)


def test_equal_rows_with_different_targets_give_their_mean():
    X = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    found = KernelRegression(0.5).fit(X, np.array([1.0, 3.0, 5.0])).predict(X)
    np.testing.assert_allclose(found, [2.0, 2.0, 5.0], atol=1e-4)


def test_a_wider_trained_network_is_nearer_to_kernel_regression():
    rng = np.random.default_rng(1)
    X, Z = sphere(rng, 15, 4), sphere(rng, 30, 4)
    y = np.sin(3 * X[:, :1])
    b, steps, gaps = 0.5, 60, []
    rate = 1.0 / extreme_eigenvalues(shifted_ntk(X, b)).largest
    for m in (500, 50_000):
        network = ShiftedReLUNetwork.initialize(m, 4, threshold=b, dtype="float64", seed=1)
        first_X, first_Z = network.predict(X), network.predict(Z)
        train(network, X, y, learning_rate=rate, max_iter=steps, tol=0, engine="data")
        limit = first_Z + KernelRegression(b).fit_steps(X, y - first_X, rate=rate, steps=steps).predict(Z)
        gaps.append(float(np.sqrt(np.mean((network.predict(Z) - limit) ** 2))))
    assert gaps[1] < 0.02
    assert gaps[1] < gaps[0] / 4


# Bounds


@pytest.mark.parametrize("b", [0.3, 1.0, 2.1])
def test_gaussian_bounds_hold(b):
    """Claim "shifted small ball" (Li, Shao), Lemma "anti-concentration", and the tail bound e^(−b²/2)."""
    for r in (1e-5, 0.01, 0.3, 1.0, 2.5):
        centred, shifted = interval_probability(0.0, r), interval_probability(b, r)
        assert exp(-(b**2) / 2) * centred <= shifted <= centred * (1 + 1e-12)
        assert centred <= 2 * r / sqrt(2 * pi)
        assert shifted == pytest.approx(upper_tail(b - r) - upper_tail(b + r), rel=1e-6)
        if r <= 0.5:
            assert centred >= 0.7 * r  # the small ball of the separation theorem
    assert upper_tail(b) <= bounds.tail_bound(b)


@pytest.mark.parametrize(("m", "b", "radius"), [(300, 1.0, 0.1), (5000, 2.0, 0.02), (100_000, 2.146, 0.01)])
def test_failure_bounds_are_above_the_binomial_probabilities(m, b, radius):
    n = 7
    truth = n * binom.sf(bounds.sparsity_bound(m, b), m, upper_tail(b))
    assert truth <= bounds.sparsity_failure(n, m, b)
    truth = n * binom.sf(bounds.near_threshold_bound(m, b, radius), m, bounds.near_threshold_share(b, radius))
    assert truth <= bounds.near_threshold_failure(n, m, b, radius) <= 1.0


def test_at_the_paper_s_threshold_m_to_the_four_fifths_are_active():
    for m in (10**4, 10**6):
        b = sqrt(0.4 * log(m))
        assert bounds.sparsity_bound(m, b) == pytest.approx(2 * m**0.8)
    few, many = (bounds.iteration_costs(100, m, 10, sqrt(0.4 * log(m)))["data"] for m in (10**4, 10**6))
    assert log(many / few) / log(100) == pytest.approx(0.8)


@pytest.mark.parametrize("d", [2, 4, 20])
@pytest.mark.parametrize("b", [0.0, 1.0, 2.0])
def test_lambda_lies_between_its_bounds(d, b):
    for seed, n in enumerate((2, 5, 40)):
        X = sphere(np.random.default_rng(seed), n, d)
        delta = measure_separation(X).distance
        smallest = smallest_eigenvalue(shifted_ntk(X, b))
        low, high = bounds.eigenvalue_bounds(n, b, delta)
        sharper = bounds.hermite_bound(n, b, delta)
        assert low <= smallest <= high
        assert sharper <= smallest * (1 + 1e-9)
        assert sharper > 20 * low or sharper == 0.0


def test_the_hermite_series_is_the_kernel():
    """For orthogonal rows (δ = √2) the bound equals λ; for one row it is Φ(−b); for tiny δ it is 0."""
    for b in (0.0, 1.3):
        assert bounds.hermite_bound(5, b, sqrt(2.0)) == pytest.approx(upper_tail(b), rel=1e-12)
        assert bounds.hermite_bound(1, b, inf) == upper_tail(b)
    assert bounds.hermite_bound(1000, 1.0, 1e-6) == 0.0


def test_the_last_step_of_the_convergence_proof_needs_a_smaller_radius():
    """Deviation 5: with η = λ/(4n²) the factor is 1 − 5/12 ηλ for R = λ/(12n), and 1 − ηλ/2 for R = λ/(16n)."""
    n, smallest, b = 10, 0.01, 1.0
    rate = bounds.learning_rate(n, smallest)
    printed = bounds.step_factor(n, rate, smallest, b, bounds.paper_radius(n, smallest))
    repaired = bounds.step_factor(n, rate, smallest, b, bounds.safe_radius(n, smallest))
    assert (1 - printed) / (rate * smallest) == pytest.approx(5 / 12, rel=1e-6)
    assert (1 - repaired) / (rate * smallest) == pytest.approx(1 / 2, rel=1e-6)


def test_widths_and_iterations_meet_their_definitions():
    n, smallest, error, b = 8, 0.03, 2.5, 1.2
    m = bounds.width_for_movement(n, smallest, error)
    assert bounds.movement_bound(n, m, smallest, error) == pytest.approx(bounds.paper_radius(n, smallest))
    assert bounds.flow_movement_bound(n, m, smallest, error) * 4 == bounds.movement_bound(n, m, smallest, error)
    width = bounds.discrete_width(n, smallest, 0.05)
    assert n * exp(-smallest * width / (32 * n)) == pytest.approx(0.05)  # the matrix Chernoff bound
    rate = bounds.learning_rate(n, smallest)
    steps = bounds.iterations_at_rate(rate, smallest, 1e-3)
    assert bounds.decay(rate, smallest, steps) == pytest.approx(1e-3)
    assert bounds.iterations(n, smallest, 0.1) == pytest.approx((n / smallest) ** 2 * log(n / 0.1))
    assert bounds.width_lemma(n, smallest, b, 0.1, 3.0) == pytest.approx(3 * bounds.width_lemma(n, smallest, b, 0.1))
    assert bounds.width_corollary(n, 0.5, 0.1, 0.5) == pytest.approx(
        (0.5**-4 * n**12 * log(n / 0.1) ** 4) ** 2, rel=1e-9
    )
    assert bounds.width_corollary(1000, 1e-3, 0.01, 1e-3) == inf
    assert bounds.initial_error_bound(n, b, 1e-3) == pytest.approx(n * (1 + b * b) * log(n / 1e-3) ** 2)
    for nothing in (bounds.iterations, bounds.discrete_width):
        assert nothing(n, 0.0, 0.1) == inf
    assert bounds.width_lemma(n, 0.0, b, 0.1) == bounds.width_for_movement(n, 0.0, 1.0) == inf
    assert bounds.iterations_at_rate(rate, 0.0, 0.1) == bounds.movement_bound(n, 9, 0.0, 1.0) == inf
    assert bounds.width_corollary(n, 0.0, 0.1, 0.5) == inf


def test_sparsity_allows_larger_steps():
    """At the sparse rate B₄ ≤ 4p²η²n² ‖err‖² equals ηλ/4 ‖err‖²."""
    n, smallest, p = 20, 0.01, 0.03
    rate = bounds.sparse_learning_rate(n, smallest, p)
    assert 4 * p**2 * rate**2 * n**2 == pytest.approx(rate * smallest / 4)
    assert bounds.sparse_learning_rate(n, smallest, 0.9) == bounds.learning_rate(n, smallest)


def test_the_dual_kernel_is_bounded_by_the_pairs_near_the_threshold():
    problem = hard_cases()["random"]
    network = problem.network()
    active = network.fire_sets(problem.X)
    for radius in (0.01, 0.1, 1.0):
        near_threshold = pairs_near_threshold(network.weights, problem.X, network.threshold, radius)
        norm = np.linalg.norm(dual_kernel(problem.X, active, near_threshold))
        assert norm <= bounds.dual_bound(network.width, np.diff(near_threshold.indptr))


def test_the_indicator_of_the_separation_proof_does_not_depend_on_g():
    """Claim: with |g₁ − b| ≤ γ and |z − (1 − τ)b| > |τ|γ, 1[τ g₁ + z > b] = 1[z > (1 − τ)b]."""
    rng = np.random.default_rng(0)
    b, gamma = 1.3, 0.2
    tau, g, z = rng.uniform(-1, 1, 100_000), rng.uniform(b - gamma, b + gamma, 100_000), rng.normal(0, 2, 100_000)
    counts = np.abs(z - (1 - tau) * b) > np.abs(tau) * gamma
    assert counts.sum() > 1000
    np.testing.assert_array_equal((tau * g + z > b)[counts], (z > (1 - tau) * b)[counts])


def test_the_halves_of_the_separation_proof_are_unequal_but_large_enough():
    """P(b < g < b + γ) is below half of P(|g − b| ≤ γ), but above what the proof needs while bγ + γ²/2 ≤ 0.13."""
    for b, gamma in ((0.5, 0.1), (2.0, 0.06), (3.0, 0.04)):
        upper = upper_tail(b) - upper_tail(b + gamma)
        assert b * gamma + gamma**2 / 2 <= 0.13
        assert upper < interval_probability(b, gamma) / 2
        assert upper >= exp(-(b**2) / 2) * 0.35 * gamma


def test_bounds_at_a_threshold_whose_square_overflows():
    assert bounds.tail_bound(1e200) == 0.0
    assert bounds.hermite_bound(5, 1e200, 0.1) == 0.0
    assert bounds.initial_error_bound(5, 1e200, 0.1) == np.inf
    assert bounds.width_lemma(5, 0.1, 1e200, 0.1) == np.inf


# Statements used by the proofs


def test_eigenvalues_of_a_hadamard_product():
    """Schur: λ_min(A ∘ B) ≥ min B_ii λ_min(A) and λ_max(A ∘ B) ≤ max B_ii λ_max(A), for positive semi-definite A, B."""
    rng = np.random.default_rng(0)
    for n, rank in ((2, 1), (5, 3), (8, 8), (20, 4)):
        A, B = (factor @ factor.T for factor in (rng.standard_normal((n, n)), rng.standard_normal((n, rank))))
        ends, product = np.linalg.eigvalsh(A)[[0, -1]], np.linalg.eigvalsh(A * B)[[0, -1]]
        assert product[0] >= np.diag(B).min() * ends[0] - 1e-9
        assert product[1] <= np.diag(B).max() * ends[1] + 1e-9


def test_the_matrix_chernoff_bound_holds():
    """λ_min(H^dis) < 3λ/4 in at most a share n exp(−λm/(32n)) of the networks, and in more of narrower ones."""
    X = np.eye(3)
    smallest = smallest_eigenvalue(shifted_ntk(X, 0.1))
    rng = np.random.default_rng(0)

    def share_below(m: int) -> float:
        below = 0
        for _ in range(200):
            active = rng.standard_normal((m, 3)) @ X.T > 0.1
            below += np.linalg.eigvalsh((X @ X.T) * (active.T.astype(float) @ active) / m)[0] <= 0.75 * smallest
        return below / 200

    m = int(np.ceil(bounds.discrete_width(3, smallest, 0.1)))
    assert share_below(m) <= 0.1
    assert 3 * exp(-smallest * m / (32 * 3)) <= 0.1
    assert share_below(20) > 0.1


@pytest.mark.parametrize(("n", "delta", "alpha"), [(10, 0.5, 0.2), (100, 0.5, 0.2), (10, 0.01, 0.2), (1000, 0.1, 0.3)])
def test_the_corollary_s_width_falls_short_of_the_lemma_s(n, delta, alpha):
    """With b = b(m) and λ at its lower bound, the lemma needs (1 + b²)/ln²(n/ρ) times the corollary's m."""
    failure, factor = 0.01, 100.0**4  # λ⁻⁴ ≤ (100 e^(b²/2) n²/δ)⁴: the constant hidden in the corollary's Ω
    m = (factor * delta**-4 * n**12 * log(n / failure) ** 4) ** (1 / alpha)
    b = sqrt(0.5 * (1 - alpha) * log(m))
    smallest = bounds.eigenvalue_bounds(n, b, delta)[0]
    ratio = bounds.width_lemma(n, smallest, b, failure) / m
    assert ratio == pytest.approx((1 + b * b) / log(n / failure) ** 2, rel=1e-6)
    assert ratio > 1


@pytest.mark.parametrize("b", [0.0, 0.5, 2.0, 5.0])
def test_the_second_alternative_of_b1_never_holds(b):
    """b ≥ √(2 ln(4cn/λ)) with c ≥ 1 holds for no λ ≤ e^(−b²/2), the upper bound on λ."""
    for n in (1, 2, 1000):
        assert b < sqrt(2 * log(4 * n / bounds.eigenvalue_bounds(n, b, 1.0)[1]))


@pytest.mark.parametrize(
    ("n", "smallest", "b", "error"), [(2, 0.48, 0.05, 0.1), (2, 0.48, 0.05, 1e-4), (20, 1e-3, 1.5, 3.0)]
)
def test_the_sufficient_width_meets_every_assumption_and_no_smaller_one_does(n, smallest, b, error):
    m = bounds.sufficient_width(n, smallest, b, error, 0.01)

    def met(m: float) -> bool:
        radius = bounds.paper_radius(n, smallest)
        return (
            bounds.sparsity_failure(n, m, b) <= 0.01
            and bounds.near_threshold_failure(n, m, b, radius) <= 0.01
            and m >= bounds.discrete_width(n, smallest, 0.01)
            and bounds.movement_bound(n, m, smallest, error) < radius
        )

    assert met(m)
    assert not met(0.99 * m - 2)
    assert bounds.sufficient_error(n, m, smallest) >= error
    assert bounds.movement_bound(n, 10**6, smallest, bounds.sufficient_error(n, 10**6, smallest)) == pytest.approx(
        bounds.paper_radius(n, smallest)
    )
    assert bounds.sufficient_width(n, 0.0, b, error, 0.01) == inf
