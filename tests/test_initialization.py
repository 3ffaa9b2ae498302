"""Initial weights and output weights: they depend on the seed alone and have the stated distributions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fireset.initialization import draw_output_weights, draw_weights

SEEDS = st.integers(0, 2**64 - 1)


@st.composite
def neuron_ranges(draw) -> tuple[int, int, int]:
    """Draw (width, start, stop)."""
    width = draw(st.integers(1, 300))
    start = draw(st.integers(0, width))
    return width, start, draw(st.integers(start, width))


@settings(max_examples=100)
@given(SEEDS, neuron_ranges(), st.integers(1, 20))
def test_any_range_of_weights_equals_the_slice(seed, neurons, n_features):
    width, start, stop = neurons
    whole = draw_weights(seed, n_features, 0, width)
    assert whole.shape == (width, n_features)
    assert np.array_equal(draw_weights(seed, n_features, start, stop), whole[start:stop])


@settings(max_examples=100)
@given(SEEDS, neuron_ranges(), st.integers(1, 600))
def test_any_range_of_output_weights_equals_the_slice(seed, neurons, n_outputs):
    width, start, stop = neurons
    whole = draw_output_weights(seed, n_outputs, 0, width)
    assert whole.shape == (width, n_outputs)
    assert set(np.unique(whole)) <= {-1.0, 1.0}
    assert np.array_equal(draw_output_weights(seed, n_outputs, start, stop), whole[start:stop])


@pytest.mark.parametrize("threads", ["1", "2", "3"])
def test_weights_do_not_depend_on_the_number_of_threads(monkeypatch, threads):
    """Several tasks of 4096 neurons, compared with ranges of other sizes."""
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    whole = draw_weights(3, 5, 0, 9001)
    parts = [draw_weights(3, 5, lo, min(lo + 1234, 9001)) for lo in range(0, 9001, 1234)]
    assert np.array_equal(whole, np.concatenate(parts))


def test_float32_is_float64_rounded():
    exact, rounded = (draw_weights(7, 6, 0, 1000, dtype) for dtype in (np.float64, np.float32))
    assert rounded.dtype == np.float32
    assert np.array_equal(rounded, exact.astype(np.float32))
    assert np.array_equal(draw_output_weights(7, 3, 0, 100, np.float32), draw_output_weights(7, 3, 0, 100))


def test_seeds_differ():
    drawn = {seed: draw_weights(seed, 4, 0, 100) for seed in (0, 1, 2, 2**32, 2**63, 2**64 - 1)}
    output_weights = {seed: draw_output_weights(seed, 4, 0, 100) for seed in drawn}
    for a in drawn:
        for b in drawn:
            if a < b:
                assert not np.isin(drawn[a], drawn[b]).any()
                assert not np.array_equal(output_weights[a], output_weights[b])


def test_weights_and_output_weights_are_uncorrelated():
    weights, output_weights = draw_weights(0, 1, 0, 100_000)[:, 0], draw_output_weights(0, 1, 0, 100_000)[:, 0]
    assert abs(np.corrcoef(weights, output_weights)[0, 1]) < 4 / np.sqrt(len(weights))


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_weights_are_standard_normal(seed):
    weights = draw_weights(seed, 7, 0, 30_000).ravel()
    count = len(weights)
    assert stats.kstest(weights, "norm").pvalue > 1e-3
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        spread = np.sqrt(stats.norm.moment(2 * power) - moment**2)
        assert abs(np.mean(weights**power) - moment) < 4 * spread / np.sqrt(count)
    assert np.isfinite(weights).all()


@pytest.mark.parametrize("n_outputs", [1, 5, 300])
def test_output_weights_are_balanced(n_outputs):
    output_weights = draw_output_weights(0, n_outputs, 0, 20_000)
    columns = np.abs(output_weights.mean(axis=0))
    assert columns.max() < 5 / np.sqrt(len(output_weights))
    assert abs(output_weights.mean()) < 4 / np.sqrt(output_weights.size)


def test_more_than_256_outputs_do_not_repeat():
    """One counter value gives 256 signs; the next outputs use the next one."""
    output_weights = draw_output_weights(0, 1000, 0, 400)
    assert np.array_equal(np.abs(output_weights), np.ones((400, 1000)))
    correlation = np.abs(np.corrcoef(output_weights.T))
    np.fill_diagonal(correlation, 0.0)
    assert correlation.max() < 6 / np.sqrt(400)
    assert len(np.unique(output_weights, axis=0)) == 400


@pytest.mark.parametrize("n_features", [1, 3, 4, 5, 50])
def test_neurons_and_features_are_uncorrelated(n_features):
    """Also across the boundaries of the counter ranges of neurons: every number is drawn once."""
    weights = draw_weights(0, n_features, 0, 20_000)
    assert len(np.unique(weights)) == weights.size
    flat = weights.ravel()
    for lag in (1, n_features, 4, 4 * n_features):
        assert abs(np.corrcoef(flat[:-lag], flat[lag:])[0, 1]) < 4.5 / np.sqrt(len(flat) - lag)


def test_neighbouring_neurons_are_uncorrelated_as_vectors():
    correlation = np.abs(np.corrcoef(draw_weights(0, 2000, 0, 100)))
    np.fill_diagonal(correlation, 0.0)
    assert correlation.max() < 5 / np.sqrt(2000)
