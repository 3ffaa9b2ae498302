"""Search for all marked items: dynamics against the full state vector, failure bound, counts of calls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from fireset import InputError
from fireset.kernels.grover import search
from fireset.quantum import (
    find_all,
    find_all_batch,
    make_schedule,
    phase_success,
    success_probability,
)


def state_after(n_items: int, marked: np.ndarray, iterations: int) -> np.ndarray:
    """Reference: all N amplitudes, reflected about the marked items and about the mean."""
    state = np.full(n_items, n_items**-0.5)
    for _ in range(iterations):
        state[marked] *= -1
        state = 2 * state.mean() - state
    return state


@pytest.mark.parametrize(("n_items", "k"), [(1, 1), (2, 1), (5, 2), (16, 1), (37, 5), (64, 48), (100, 100), (30, 0)])
def test_the_success_probability_agrees_with_the_state_vector(n_items, k):
    marked = np.random.default_rng(0).permutation(n_items)[:k]
    for j in range(12):
        chances = state_after(n_items, marked, j) ** 2
        assert chances[marked].sum() == pytest.approx(success_probability(n_items, k, j), abs=1e-12)
        assert chances.sum() == pytest.approx(1)
        if k:
            assert np.ptp(chances[marked]) < 1e-12  # equally likely


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40])
def test_phase_success_is_the_mean_over_its_iterations(size):
    for n_items in (1, 2, 9, 64, 1000):
        k = np.arange(n_items + 1)
        mean = np.mean([[success_probability(n_items, one, j) for one in k] for j in range(size)], axis=0)
        np.testing.assert_allclose(phase_success(size, n_items, k), mean, rtol=0, atol=1e-9)


def round_failures(n_items: int, sizes) -> np.ndarray:
    """F(k) for k = 1 … N, straight from its definition."""
    k = np.arange(1, n_items + 1)
    return np.prod([1 - phase_success(size, n_items, k) for size in sizes], axis=0)


@pytest.mark.parametrize("delta", [0.5, 0.05, 1e-6, 1e-12])
@pytest.mark.parametrize("n_items", [1, 2, 3, 4, 10, 64, 1000, 4097, 9000, 50_000])
def test_the_bound_holds_and_the_schedule_is_shortest(n_items, delta):
    schedule = make_schedule(n_items, delta)
    assert schedule.failure_bound <= delta
    assert round_failures(n_items, schedule.sizes).sum() <= schedule.failure_bound * (1 + 1e-9)
    fewer = round_failures(n_items, schedule.sizes[:-1]).sum() if len(schedule.sizes) > 1 else np.inf
    assert fewer > 0.99 * delta  # intervals make the bound slightly larger than the sum


def test_phase_success_is_above_a_third_if_half_of_the_items_are_marked():
    """The bound of the upper intervals relies on this for all k ≥ N/2 and all sizes."""
    k = np.linspace(0.5, 1, 4001) * 1_000_000
    lowest = [phase_success(size, 1_000_000, k).min() for size in [*range(1, 200), 500, 999]]
    assert min(lowest) > 0.36
    assert np.argmin(lowest) == 1


def test_the_schedule_of_a_huge_set_meets_its_bound():
    schedule = make_schedule(2**50)
    assert schedule.failure_bound <= 1e-6
    assert schedule.sizes.max() == 2**25 - 1
    few = np.arange(1, 2000)
    assert np.prod([1 - phase_success(s, 2**50, few) for s in schedule.sizes], axis=0).sum() <= 1e-6


@given(st.integers(1, 3000), st.data())
def test_exactly_the_marked_items_are_found(n_items, data):
    k = data.draw(st.integers(0, n_items))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    marked = rng.permutation(n_items)[:k]
    result = find_all(marked, n_items, failure_probability=1e-9, seed=rng)
    assert np.array_equal(result.found, np.sort(marked))
    assert result.checks[0] == result.measurements[0] >= k + 1
    assert result.oracle_calls[0] == result.iterations[0] + result.checks[0] >= result.verdict_calls[0]


@pytest.mark.parametrize("n_items", [1, 2, 7, 64, 10_000])
def test_nothing_marked_and_everything_marked(n_items):
    nothing = find_all([], n_items)
    assert len(nothing.found) == 0
    assert nothing.measurements[0] == len(make_schedule(n_items).sizes)
    assert nothing.verdict_calls == nothing.oracle_calls
    assert np.array_equal(find_all(np.arange(n_items), n_items).found, np.arange(n_items))


def test_a_million_items():
    marked = np.random.default_rng(0).permutation(10**6)[:20_000]
    result = find_all(marked, 10**6)
    assert np.array_equal(result.found, np.sort(marked))
    assert result.oracle_calls[0] < 3.5 * np.sqrt(10**6 * 20_000)


def test_the_kernel_agrees_with_plain_python():
    """With equal generators, compiled and plain functions give equal measurements."""
    rng = np.random.default_rng(5)
    counts = rng.integers(0, 20, 30)
    starts = np.cumsum(counts) - counts
    marked = np.concatenate([rng.permutation(50)[:k] for k in counts])
    sizes = make_schedule(50).sizes
    outcomes = []
    for function in (search, search.py_func):
        order, results = marked.copy(), [np.zeros(30, np.int64) for _ in range(4)]
        found, iterations, measurements, verdict = results
        generator = np.random.default_rng(1)
        function(50, sizes, starts, counts, order, generator, found, iterations, measurements, verdict, 0, 30)
        outcomes.append([order, *results])
    for compiled, plain in zip(*outcomes, strict=True):
        assert np.array_equal(compiled, plain)


def test_batches_do_not_depend_on_the_number_of_threads(monkeypatch):
    indptr, marked = np.arange(0, 3001, 3), np.tile([4, 7, 90], 1000)
    calls = []
    for threads in ("1", "2"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        calls.append(find_all_batch(indptr, marked, 100, seed=3).oracle_calls)
    assert np.array_equal(calls[0], calls[1])
    assert calls[0].std() > 0


def test_every_marked_item_is_found_equally_often():
    """With failure probability 0.9 searches end early; each item is found equally often."""
    searches = 20_000
    marked = np.tile(np.arange(8), searches)
    result = find_all_batch(np.arange(0, 8 * searches + 1, 8), marked, 4096, failure_probability=0.9, seed=0)
    assert len(result.found) < 0.99 * len(marked)
    assert chisquare(np.bincount(result.found, minlength=8)).pvalue > 0.01


# Failures


@pytest.mark.parametrize(("n_items", "k"), [(64, 1), (64, 8), (1000, 16), (4096, 50), (50, 49)])
def test_failure_rate_is_at_most_delta_and_not_zero(n_items, k):
    """10⁴ searches at δ = 0.05: the number with a missed item is 1 − Π (1 − F(k)) of them within 4 σ."""
    searches, delta = 10_000, 0.05
    rng = np.random.default_rng(n_items + k)
    marked = np.concatenate([rng.choice(n_items, k, replace=False, shuffle=False) for _ in range(searches)])
    result = find_all_batch(
        np.arange(0, searches * k + 1, k), marked, n_items, failure_probability=delta, seed=n_items + k
    )
    failed = np.count_nonzero(np.diff(result.indptr) < k)
    assert 0 < failed <= delta * searches
    expected = 1 - np.prod(1 - round_failures(n_items, make_schedule(n_items, delta).sizes)[:k])
    assert expected <= delta
    assert abs(failed - searches * expected) <= 4 * np.sqrt(searches * expected)


def test_the_distribution_of_the_number_of_missed_items():
    """At δ = 1/2 the numbers of searches that miss 0, 1, 2 or 3 of 3 items follow the products of F(k)."""
    searches, n_items, k = 20_000, 256, 3
    result = find_all_batch(
        np.arange(0, searches * k + 1, k), np.tile([3, 77, 200], searches), n_items, failure_probability=0.5, seed=0
    )
    missed = np.bincount(k - np.diff(result.indptr), minlength=k + 1)
    one, two, three = round_failures(n_items, make_schedule(n_items, 0.5).sizes)[:3]
    share = [(1 - three) * (1 - two) * (1 - one), (1 - three) * (1 - two) * one, (1 - three) * two, three]
    assert (missed > 0).all()
    assert missed[1:].sum() > 0.1 * searches
    assert chisquare(missed, searches * np.array(share)).pvalue > 0.01


# Counts


def mean_calls(n_items: int, k: int, searches: int) -> tuple[float, float]:
    """Return mean oracle calls and mean calls of the verdict."""
    marked = np.tile(np.arange(k), searches)
    result = find_all_batch(np.arange(searches + 1) * k, marked, n_items, seed=k)
    return result.oracle_calls.mean(), result.verdict_calls.mean()


def test_mean_calls_follow_the_two_terms():
    """Mean calls agree with the two terms that benchmarks/bench_quantum.py fitted."""
    for n_items in (64, 1024, 16_384):
        for k in (1, 8, n_items // 64, n_items // 8):
            calls, verdict = mean_calls(n_items, k, 4000 if k <= 16 else 200)
            model = 3.11 * np.sqrt(n_items * k) + 0.646 * np.sqrt(n_items) * np.log(1e6)
            assert calls == pytest.approx(model, rel=0.06)
            assert verdict == pytest.approx(make_schedule(n_items).verdict_calls, rel=0.03)


def test_verdict_costs_the_square_root_of_n_and_the_logarithm_of_delta():
    sizes = 2.0 ** np.arange(8, 31, 2)
    costs = [make_schedule(int(n)).verdict_calls for n in sizes]
    assert np.polyfit(np.log(sizes), np.log(costs), 1)[0] == pytest.approx(0.5, abs=0.01)
    deltas = 10.0 ** -np.arange(2, 15)
    costs = np.array([make_schedule(2**16, delta).verdict_calls for delta in deltas]) / 2**8
    slope, _ = np.polyfit(np.log(1 / deltas), costs, 1)
    assert np.corrcoef(np.log(1 / deltas), costs)[0, 1] > 0.999
    # With many phases k = 4 is missed most often: a phase of M = √N then succeeds with probability 0.44.
    lowest = phase_success(255, 2**16, np.arange(1, 20)).min()
    assert slope == pytest.approx(-0.5 / np.log(1 - lowest), rel=0.15)
    assert slope == pytest.approx(0.79, abs=0.01)


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1], 0), "n_items.*got 0"),
        (([1], 2.5), "n_items.*got 2.5"),
        (([1], 2**51), f"n_items.*got {2**51}"),
        (([5], 5), "marked.*got 5"),
        (([-1], 5), "marked.*got -1"),
        (([3, 1, 3], 5), "marked.*got 3 twice"),
        (([0.5], 5), "marked.*got float64"),
        (([[1]], 5), r"marked.*got int64 of shape \(1, 1\)"),
    ],
)
def test_invalid_searches_raise(arguments, message):
    with pytest.raises(InputError, match=message):
        find_all(*arguments)


def test_invalid_batches_and_probabilities_raise():
    with pytest.raises(InputError, match=r"indptr.*got \[0, 3, 2\]"):
        find_all_batch([0, 3, 2], [1, 2], 5)
    for delta in (0.0, 1.0, -1, float("nan"), "small"):
        with pytest.raises(InputError, match=r"failure_probability.*got"):
            find_all([1], 5, failure_probability=delta)
