"""Bounds of the paper's lemmas: sparsity, λ, step size, movement, widths, iterations, costs.

Letters are the paper's: n samples in d dimensions, m neurons, threshold b, λ = λ_min(H^cts), separation δ, learning
rate η, failure probability ρ, and the radius R: a neuron that moves by less than R flips only for samples within R of
its threshold. A constant that a lemma hides (Ω, O) is an argument, or is derived where the proof allows it. Deviations
from the printed text:

1. The bound on λ has n² in its denominator: λ⁻⁴ n⁴ with λ⁻¹ ≤ 100 e^(b²/2) n²/δ is n¹², not the corollary's n¹⁰.
2. ‖err(0)‖² has the factor 1 + b². The convergence lemma shortens it to b², which gives width 0 at b = 0.
3. Lemma "perturbed w": P[A_i] + P[A_j] is twice the bound of one of them, so c is 4 e^(1 − R²/2).
4. |S̄_i| ≤ mR does not follow from a Bernstein bound on the excess over a mean of mR. It follows with the true mean,
   which is below 0.8 mR; ``near_threshold_failure`` uses the true mean.
5. With η = λ/(4n²) and R = λ/(12n) the last step of the convergence proof, 4ηnR + η²n² ≤ ηλ/2, has 7/12 ηλ on its left.
   ``safe_radius``, λ/(16n), repairs it. Runs are still compared with the printed claim.
6. The Fact on H(t)^⊥ bounds the square of the norm; its printed left side lacks the square.
7. ‖err(t)‖ ≤ e^(−λt/2) ‖err(0)‖ integrates to a movement of 2 D_cts. The lemma on gradient flow has D_cts.
"""

from math import exp, inf, log, log1p, pi, sqrt

import numpy as np

from fireset._util.gaussian import upper_tail
from fireset.theory.joint_firing import interval_probability

_MAX_HERMITE_TERMS = 1_000_000  # takes 0.3 s

# Probabilities used in the proofs


def bernstein(deviation: float, variance: float) -> float:
    """Lemma "Bernstein inequality": P(Z > t) ≤ exp(−(t²/2)/(ΣE[Z_j²] + t/3)) for a sum of centred |Z_j| ≤ 1."""
    if deviation <= 0:
        return 1.0
    return exp(-(deviation**2) / 2.0 / (variance + deviation / 3.0))


def tail_bound(threshold: float) -> float:
    """e^(−b²/2), the paper's bound on P(z > b) for b ≥ 0."""
    return exp(-max(threshold, 0.0) * max(threshold, 0.0) / 2.0)


# Sparsity


def expected_active(m: int, threshold: float) -> float:
    """Return m Φ(−b), the expected number of neurons active for a row at initialization."""
    return m * upper_tail(threshold)


def sparsity_bound(m: int, threshold: float) -> float:
    """Lemma "sparsity after initialization": k_{i,0} ≤ 2m e^(−b²/2)."""
    return 2.0 * m * tail_bound(threshold)


def sparsity_failure(n: int, m: int, threshold: float) -> float:
    """Upper bound on the probability that some row exceeds ``sparsity_bound``, by Bernstein about the true mean."""
    mean = expected_active(m, threshold)
    return min(1.0, n * bernstein(sparsity_bound(m, threshold) - mean, mean))


def near_threshold_share(threshold: float, radius: float) -> float:
    """P(|⟨w, x⟩ − b| < R): expected share of neurons that can flip for a row while they move by less than R."""
    return interval_probability(threshold, radius)


def near_threshold_bound(m: int, threshold: float, radius: float) -> float:
    """|S̄_i| ≤ m min{R, e^(−b²/2)} (Claim "bound on noflip probability" and the lemma before it)."""
    return m * min(radius, tail_bound(threshold))


def near_threshold_failure(n: int, m: int, threshold: float, radius: float) -> float:
    """Upper bound on the probability that some row exceeds ``near_threshold_bound``."""
    mean = m * near_threshold_share(threshold, radius)
    return min(1.0, n * bernstein(near_threshold_bound(m, threshold, radius) - mean, mean))


# λ


def eigenvalue_bounds(n: int, threshold: float, separation: float) -> tuple[float, float]:
    """Theorem "spectral gap with data separation": e^(−b²/2) δ/(100 n²) ≤ λ ≤ e^(−b²/2), for b ≥ 0."""
    tail = tail_bound(threshold)
    return tail * min(separation, sqrt(2.0)) / (100.0 * n * n), tail


def hermite_bound(n: int, threshold: float, separation: float) -> float:
    """Sharper lower bound on λ, without the factor 1/n².

    P(Z₁ > b, Z₂ > b) = Σ_k c_k² ρ^k with c_0 = Φ(−b) and c_k = φ(b) He_{k−1}(b)/√k!, so H^cts is the sum of
    c_k² (X Xᵀ)^{∘(k+1)}. Each Hadamard power is positive semi-definite with ones on the diagonal and, off it, entries
    of at most q^(k+1), q = 1 − δ²/2; so by Gershgorin λ ≥ Σ_k c_k² max(0, 1 − (n − 1) q^(k+1)). Terms with
    k > 2 ln(n)/δ² are positive; they are about e^(−b²/2) δ/√ln n of the sum. Returns 0 where that needs more than a
    million terms.
    """
    if n == 1:
        return upper_tail(threshold)
    q = max(0.0, 1.0 - min(separation, sqrt(2.0)) ** 2 / 2.0)
    if q > 0 and log(n) > -log(q) * _MAX_HERMITE_TERMS:
        return 0.0
    total = upper_tail(threshold) ** 2 * max(0.0, 1.0 - (n - 1) * q)
    remaining = upper_tail(threshold) - upper_tail(threshold) ** 2  # Σ c_k² over k ≥ 1
    scale = exp(-threshold * threshold) / (2.0 * pi)
    previous, current, power, k = 0.0, 1.0, q * q, 1  # He_{k−2}/√(k−2)!, He_{k−1}/√(k−1)!, q^(k+1)
    while k <= _MAX_HERMITE_TERMS and remaining > 0.0:
        weight = scale * current * current / k
        remaining -= weight
        lost = (n - 1) * power
        if lost < 1.0:
            total += weight * (1.0 - lost)
            if lost < 1e-9:  # the rest of the series is not reduced any more
                return total + max(remaining, 0.0) * (1.0 - lost)
        previous, current = current, (threshold * current - sqrt(k - 1.0) * previous) / sqrt(k)
        power *= q
        k += 1
    return total


def discrete_width(n: int, smallest: float, failure: float) -> float:
    """Lemma "continuous and discrete kernel": the width m from which λ_min(H^dis) ≥ 3λ/4 with probability 1 − ρ.

    By the matrix Chernoff bound (Tropp, Theorem 5.1.1) it fails with probability at most n exp(−λ m/(32 n)).
    """
    return 32.0 * n / smallest * log(n / failure) if smallest > 0 else inf


def perturbation_bound(n: int, threshold: float, radius: float) -> float:
    """Lemma "perturbed w": ‖H(W) − H(W(0))‖_F ≤ n min{c e^(−b²/2), 3R} for ‖w_r − w_r(0)‖ ≤ R ≤ 1/b (deviation 3)."""
    return n * min(4.0 * exp(1.0 - radius**2 / 2.0) * tail_bound(threshold), 3.0 * radius)


def dual_bound(m: int, near_threshold: np.ndarray) -> float:
    """Fact "norm of dual Hessian": ‖H(t)^⊥‖_F ≤ (√n/m) (Σ_i |S̄_i|²)^½ (deviation 6).

    ``near_threshold`` (n,) are the counts |S̄_i|.
    """
    return sqrt(len(near_threshold) * float(np.sum(near_threshold.astype(np.float64) ** 2))) / m


# Descent


def learning_rate(n: int, smallest: float) -> float:
    """Lemma "convergence": learning rate η = λ/(4n²)."""
    return smallest / (4.0 * n * n)


def sparse_learning_rate(n: int, smallest: float, active_share: float) -> float:
    """η = λ/(16 p² n²): rate that the proof allows if at most p·m neurons are active for a row in every iteration.

    Only neurons that are active before or after the step change a prediction, so |Δu_i| ≤ 2pη√n ‖err‖ and
    B₄ ≤ 4p²η²n² ‖err‖². This is ηλ/4 ‖err‖² at the returned η, which is 1/(4p²) times the paper's: sparsity does not
    slow down descent, as Yang, Jiang, Zhang, Wang and Liang (JMLR 2024) found for networks with trained biases.
    """
    return max(1.0, 1.0 / (4.0 * active_share**2)) * learning_rate(n, smallest)


def paper_radius(n: int, smallest: float) -> float:
    """Lemma "convergence": radius R = λ/(12n)."""
    return smallest / (12.0 * n)


def safe_radius(n: int, smallest: float) -> float:
    """R = λ/(16n), with which the convergence proof is correct (deviation 5)."""
    return smallest / (16.0 * n)


def movement_bound(n: int, m: int, smallest: float, error: float) -> float:
    """Claim "movement per iteration": D = 4√n ‖err(0)‖/(√m λ)."""
    return 4.0 * flow_movement_bound(n, m, smallest, error)


def flow_movement_bound(n: int, m: int, smallest: float, error: float) -> float:
    """Definition D_cts = √n ‖err(0)‖/(√m λ). Gradient flow moves a neuron by at most 2 D_cts (deviation 7)."""
    return sqrt(n) * error / (sqrt(m) * smallest) if smallest > 0 else inf


def gradient_bound(n: int, m: int, error: float) -> float:
    """Claim "bounded gradient": ‖∂L/∂w_r‖ ≤ √(n/m) ‖err‖."""
    return sqrt(n / m) * error


def split_bounds(
    n: int, rate: float, smallest: float, threshold: float, radius: float, error: float
) -> tuple[float, float, float, float]:
    """Claims on B₁ … B₄: upper bounds −ηλ, 2ηn min{R, e^(−b²/2)} (twice) and η²n², all times ‖err‖²."""
    flip_bound = 2.0 * rate * n * min(radius, tail_bound(threshold))
    square = error * error
    return -rate * smallest * square, flip_bound * square, flip_bound * square, rate * n * (rate * n) * square


def step_factor(n: int, rate: float, smallest: float, threshold: float, radius: float) -> float:
    """Lemma "progress per iteration": upper bound on ‖err(t+1)‖²/‖err(t)‖²."""
    return 1.0 + sum(split_bounds(n, rate, smallest, threshold, radius, 1.0))


def initial_error_bound(n: int, threshold: float, failure: float, max_target: float = 1.0) -> float:
    """Claim "upper bound the initialization": ‖err(0)‖² ≤ C n (1 + b²) ln²(n/ρ) with probability 1 − ρ.

    The paper does not give C. With a random sign a_r, a_r σ_b(z_r) is symmetric and at most |z_r| in size for b ≥ 0, so
    E exp(θ a_r σ_b(z_r)) ≤ E cosh(θ z_r) = exp(θ²/2): f(x_i) is sub-Gaussian with variance 1, and all |f(x_i)| are at
    most s = √(2 ln(2n/ρ)) with probability 1 − ρ. Then ‖err(0)‖² ≤ n (y + s)², y = max |y_i|. For y ≤ 1 that is below
    n ln²(n/ρ), so C = 1, from n/ρ = 74 on; otherwise C = (y + s)²/ln²(n/ρ). The y_i must
    not depend on the weights.
    """
    size = (max_target + sqrt(2.0 * log(2.0 * n / failure))) ** 2
    return n * (1.0 + threshold * threshold) * max(size, log(n / failure) ** 2)


def initial_error_limit(targets: np.ndarray, failure: float) -> float:
    """‖err(0)‖ ≤ (Σ_i (|y_i| + s)²)^½ with probability 1 − ρ, s = √(2 ln(2n/ρ)), for one output and b ≥ 0.

    ``initial_error_bound`` has the proof and the paper's form, which is larger: it bounds all |y_i| by the largest one
    and has the factor 1 + b².
    """
    sizes = np.abs(np.asarray(targets, np.float64)).ravel() + sqrt(2.0 * log(2.0 * targets.size / failure))
    return float(np.sqrt(np.sum(sizes * sizes)))


def iterations(n: int, smallest: float, accuracy: float) -> float:
    """Lemma "convergence": number of iterations T = λ⁻² n² ln(n/ε)."""
    return n / smallest * (n / smallest) * log(n / accuracy) if smallest > 0 else inf


def iterations_at_rate(rate: float, smallest: float, reduction: float) -> float:
    """Number of steps t until (1 − ηλ/2)^t, the proved bound on ‖err(t)‖²/‖err(0)‖², equals ``reduction``."""
    if smallest <= 0:
        return inf
    return log(reduction) / log1p(-rate * smallest / 2.0) if rate * smallest < 2.0 else 1.0


# Widths


def width_lemma(n: int, smallest: float, threshold: float, failure: float, constant: float = 1.0) -> float:
    """Lemma "convergence": m ≥ C λ⁻⁴ n⁴ b² ln²(n/ρ); here with 1 + b² for b² (deviation 2)."""
    if smallest <= 0:
        return inf
    square = n / smallest * (n / smallest)
    return constant * square * square * (1.0 + threshold * threshold) * log(n / failure) ** 2


def width_for_movement(n: int, smallest: float, error: float) -> float:
    """Width from which D < R, which the convergence lemma needs, without hidden constant: 2304 λ⁻⁴ n³ ‖err(0)‖²."""
    if smallest <= 0:
        return inf
    ratio = error / smallest / smallest
    return 2304.0 * n**3 * ratio * ratio  # products overflow to ∞, powers raise an error


def width_corollary(n: int, separation: float, failure: float, alpha: float, constant: float = 1.0) -> float:
    """Corollary "sublinear cost": m ≥ (C δ⁻⁴ n¹² ln⁴(n/ρ))^(1/α), b = √(0.5 (1 − α) ln m) (deviation 1)."""
    if separation <= 0:
        return inf
    exponent = (log(constant) - 4 * log(separation) + 12 * log(n) + 4 * log(log(n / failure))) / alpha
    return exp(exponent) if exponent < 700 else inf


def sufficient_width(n: int, smallest: float, threshold: float, error: float, failure: float) -> float:
    """Smallest m that meets all width assumptions of the claims about descent at a fixed threshold; ∞ where λ is 0.

    The assumptions are D < R (``width_for_movement``), λ_min(H^dis) ≥ 3λ/4 (``discrete_width``), and the bounds on the
    numbers of active neurons and of neurons near the threshold, with probability 1 − ρ each. Both failure probabilities
    decrease with m.
    """
    if smallest <= 0:
        return inf
    radius = paper_radius(n, smallest)

    def counts_fail(m: float) -> bool:
        # m is a float: for tiny λ it exceeds 2^63.
        sparsity, near = sparsity_failure(n, m, threshold), near_threshold_failure(n, m, threshold, radius)  # pyright: ignore[reportArgumentType]
        return max(sparsity, near) > failure

    low, high = 1.0, 2.0
    while counts_fail(high):
        low, high = high, 2.0 * high
        if high > 1e300:
            return inf
    while high - low > max(0.5, 1e-12 * high):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if counts_fail(middle) else (low, middle)
    # D < R is strict, so one neuron is added to the width at which they are equal.
    return max(high, discrete_width(n, smallest, failure), (1.0 + 1e-12) * width_for_movement(n, smallest, error) + 1.0)


def sufficient_error(n: int, m: int, smallest: float) -> float:
    """Largest ‖err(0)‖ with D ≤ R at width m: √m λ²/(48 n^(3/2))."""
    return sqrt(m) * smallest * smallest / (48.0 * n**1.5)


# Costs


def iteration_terms(n: int, m: int, d: int, threshold: float) -> dict[str, dict[str, float]]:
    """Lemmas on the running time of Algorithms 1 and 2: the three terms of an iteration, k = m e^(−b²/2), constants 1.

    "weights" (Algorithm 1): queries n (m^(1 − 1/⌊d/2⌋) + k), updates of the index n k log² m, gradient n k d. "data"
    (Algorithm 2): queries n k log n, updates of the sets S_i n k, gradient n k d.
    """
    active = m * tail_bound(threshold)
    half = max(1, d // 2)
    gradient = n * active * d
    return {
        "weights": {
            "queries": n * (m ** (1.0 - 1.0 / half) + active),
            "updates": n * active * log(m) ** 2,
            "gradient": gradient,
        },
        "data": {"queries": n * active * log(max(n, 2)), "updates": n * active, "gradient": gradient},
    }


def iteration_costs(n: int, m: int, d: int, threshold: float) -> dict[str, float]:
    """Theorems I and II, quantum corollary: operations of one iteration with k = m e^(−b²/2) active neurons per row.

    Constants that O hides are taken as 1. "dense": n m d. "weights" (Algorithm 1) and "data" (Algorithm 2): the sums of
    ``iteration_terms``, for "data" without the updates, which are less than the queries. The quantum algorithms:
    n d √(m k).
    """
    terms = iteration_terms(n, m, d, threshold)
    return {
        "dense": float(n) * m * d,
        "weights": sum(terms["weights"].values()),
        "data": terms["data"]["queries"] + terms["data"]["gradient"],
        "quantum": n * d * sqrt(m * (m * tail_bound(threshold))),
    }


def decay(rate: float, smallest: float, steps: int) -> float:
    """(1 − ηλ/2)^t, the proved bound on ‖err(t)‖²/‖err(0)‖² after t steps; 0 for ηλ ≥ 2, where nothing is proved."""
    if steps == 0:
        return 1.0
    return exp(steps * log1p(-rate * smallest / 2.0)) if rate * smallest < 2.0 else 0.0
