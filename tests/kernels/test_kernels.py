"""Compiled kernels against plain NumPy."""

from fractions import Fraction
from types import FunctionType

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csc_array

from fireset.fire_sets import fire_sets_by_neuron, list_offsets, transpose_lists
from fireset.kernels.column_sorting import COLUMNS, SLOTS, sort_columns, write_widened
from fireset.kernels.fire_sets import tangent_product
from fireset.kernels.firing import activate, deciding_dot, refine_near_threshold
from fireset.kernels.masks import HAS_COMPRESS, compress_32, compress_range
from fireset.kernels.scanning import collect_above, count_above, ids_above
from support.checks import sphere

DTYPES = ["float32", "float64"]


# Reference in NumPy


def plain_dot(w, x) -> float:
    """Fused multiply-adds, left to right: each is exact in fractions, and rounded once."""
    total = 0.0
    for a, b in zip(w.tolist(), x.tolist(), strict=True):
        total = float(Fraction(a) * Fraction(b) + Fraction(total))
    return total


def plain_refine(H, W, X, thresholds, bands) -> None:
    for r, i in np.argwhere(np.abs(H - thresholds[:, None]) <= bands[:, None]):
        value = plain_dot(W[r], X[i])
        H[r, i] = value
        if value > float(thresholds[r]) and H[r, i] == thresholds[r]:  # rounded onto the threshold
            H[r, i] = np.nextafter(H[r, i], H.dtype.type(np.inf))


def plain_activate(H, W, X, threshold, bands) -> None:
    plain_refine(H, W, X, np.full(len(H), threshold), bands)
    H -= threshold
    H[H <= 0] = 0.0


def plain_collect(H, thresholds):
    above = np.greater(H, thresholds[:, None])
    return above.sum(axis=1), np.nonzero(above)[1], H[above]


def plain_tangent_product(X, output_weights, active, direction, lo, hi) -> np.ndarray:
    product = np.zeros(direction.shape)
    for r in range(lo, hi):
        t = (active[:, r] * (direction @ output_weights[r])) @ X
        product += np.outer(active[:, r] * (X @ t), output_weights[r])
    return product


# Firing


@st.composite
def vectors(draw) -> tuple[np.ndarray, np.ndarray]:
    d = draw(st.integers(1, 70))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = 10.0 ** rng.integers(-8, 8, d)  # orders of magnitude apart, so that the order of summation matters
    dtype = draw(st.sampled_from(DTYPES))
    return (rng.standard_normal(d) * scale).astype(dtype), rng.standard_normal(d).astype(dtype)


@settings(max_examples=200)
@given(vectors())
def test_deciding_dot_is_a_chain_of_fused_operations(pair):
    w, x = pair
    assert deciding_dot(w, x) == plain_dot(w, x)


def test_deciding_dot_rounds_once_for_each_term():
    """If the square was rounded before it is added, the 2⁻⁶⁰ that is left here would be lost."""
    a = 1 + 2.0**-30
    assert deciding_dot(np.array([-(a * a), a]), np.array([1.0, a])) == 2.0**-60


def test_deciding_dot_goes_left_to_right():
    assert deciding_dot(np.array([1e16, 1.0, -1e16, 1.0]), np.ones(4)) == 1.0
    assert deciding_dot(np.array([1e16, -1e16, 1.0, 1.0]), np.ones(4)) == 2.0


def test_strict_kernels_disable_fastmath():
    assert deciding_dot.targetoptions.get("fastmath") is False


def blurred(dtype, seed=0):
    """Pre-activations with errors of up to 1e-3, and thresholds of which a tenth are hit exactly."""
    rng = np.random.default_rng(seed)
    W, X = rng.standard_normal((12, 9)).astype(dtype), sphere(rng, 80, 9).astype(dtype)
    exact = np.array([[plain_dot(w, x) for x in X] for w in W])
    H = (exact + rng.uniform(-1e-3, 1e-3, exact.shape)).astype(dtype)
    return W, X, H, exact, rng


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("band", [0.0, 2e-3, 0.1, 100.0, -1.0])
def test_refine_near_threshold_equals_numpy(dtype, band):
    W, X, H, exact, rng = blurred(dtype)
    thresholds = exact[np.arange(12), rng.integers(0, 80, 12)].astype(dtype)
    bands = np.full(12, band, dtype)
    found, expected = H.copy(), H.copy()
    refine_near_threshold(found, W, X, thresholds, bands)
    plain_refine(expected, W, X, thresholds, bands)
    assert np.array_equal(found, expected)
    if band == -1.0:
        assert np.array_equal(found, H)
    if band >= 2e-3 and dtype == "float64":
        assert np.array_equal(found > thresholds[:, None], exact > thresholds[:, None])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("band", [2e-3, -1.0])
@pytest.mark.parametrize("threshold", [-100.0, 0.0, 0.4, 100.0])
def test_activate_equals_numpy(dtype, band, threshold):
    W, X, H, exact, _ = blurred(dtype)
    threshold = np.dtype(dtype).type(exact[3, 5] if threshold == 0.4 else threshold)
    bands = np.full(12, band, dtype)
    found, expected = H.copy(), H.copy()
    activate(found, W, X, threshold, bands)
    plain_activate(expected, W, X, threshold, bands)
    assert np.array_equal(found, expected)
    if band > 0 and dtype == "float64":
        assert np.array_equal(found > 0, exact > threshold)
        assert found[3, 5] == 0.0 or exact[3, 5] != threshold


@pytest.mark.parametrize("dtype", DTYPES)
def test_activate_keeps_nan(dtype):
    W, X, H, _, _ = blurred(dtype)
    H[2, 3], H[4, 5] = np.nan, np.inf
    activate(H, W, X, np.dtype(dtype).type(0.1), np.full(12, 1e-3, dtype))
    assert np.isnan(H[2, 3])
    assert np.isposinf(H[4, 5])
    assert np.isnan(H).sum() == 1


# Scanning


@st.composite
def scans(draw):
    rows, columns = draw(st.integers(0, 6)), draw(st.integers(0, 200))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from(DTYPES))
    H = rng.integers(-3, 4, (rows, columns)).astype(dtype)  # whole numbers: ties everywhere
    return H, rng.integers(-4, 5, rows).astype(dtype)


@settings(max_examples=200)
@given(scans())
def test_count_and_collect_equal_numpy(scan):
    H, thresholds = scan
    counts = np.empty(len(H), np.int64)
    count_above(H, thresholds, counts)
    expected_counts, expected_ids, expected_values = plain_collect(H, thresholds)
    assert counts.tolist() == expected_counts.tolist()
    ids, values = np.empty(counts.sum(), np.int32), np.empty(counts.sum(), H.dtype)
    collect_above(H, thresholds, 3, ids, values)
    assert (ids - 3).tolist() == expected_ids.tolist()
    assert values.tolist() == expected_values.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_collect_writes_nothing_beyond_its_rows(dtype):
    rng = np.random.default_rng(0)
    H = rng.standard_normal((5, 30)).astype(dtype)
    thresholds = np.full(5, 0.2, dtype)
    counts, expected, _ = plain_collect(H, thresholds)
    guard = 7
    ids, values = np.full(counts.sum() + guard, -1, np.int32), np.zeros(counts.sum() + guard, dtype)
    collect_above(H, thresholds, 0, ids, values)
    assert ids[:-guard].tolist() == expected.tolist()
    assert (ids[-guard:] == -1).all()
    assert (values[-guard:] == 0).all()


def without_compression(kernel):
    """Compile a kernel as on a processor without AVX-512."""
    plain = FunctionType(kernel.py_func.__code__, {**kernel.py_func.__globals__, "HAS_COMPRESS": False})
    return numba.njit(error_model="numpy")(plain)


@pytest.mark.parametrize("compresses", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 63, 64, 500])
def test_positions_at_every_density(compresses, dtype, n):
    H = np.random.default_rng(n).standard_normal((7, n)).astype(dtype)
    collect, one = (f if compresses else without_compression(f) for f in (collect_above, ids_above))
    for threshold in (-9.0, -1.0, 0.0, 1.0, 2.5, 9.0):
        counts, expected, _ = plain_collect(H, np.full(7, threshold, dtype))
        ids = np.empty(counts.sum(), np.int32)
        collect(H, np.full(7, threshold, dtype), 3, ids, np.empty(0, dtype))
        assert (ids - 3).tolist() == expected.tolist()
        found = [one(row, np.ones(1, dtype), np.copy(row[:, None]), threshold, 9.0, 5) for row in H]
        assert [len(part) for part in found] == counts.tolist()
        assert np.array_equal(np.concatenate(found), expected + 5)


# Lists in the lanes of registers


@numba.njit
def sort_middle_block(slots, rows, target):
    sort_columns(slots, SLOTS * COLUMNS, rows)
    write_widened(rows, SLOTS, np.uint32(5 << 16), target, SLOTS)


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 2**16))
def test_columns_are_sorted_and_transposed(seed, largest):
    slots = np.random.default_rng(seed).integers(0, largest, 3 * SLOTS * COLUMNS).astype(np.uint16)
    before, rows, target = slots.copy(), np.zeros(SLOTS * COLUMNS, np.uint16), np.full(3 * SLOTS, 7, np.uint32)

    sort_middle_block(slots, rows, target)
    expected = np.sort(before.reshape(3, SLOTS, COLUMNS)[1], axis=0).T
    assert np.array_equal(rows.reshape(COLUMNS, SLOTS), expected)
    assert np.array_equal(target, np.concatenate([[7] * SLOTS, (5 << 16) + expected[1].astype(int), [7] * SLOTS]))
    assert np.array_equal(slots, before)


@pytest.mark.skipif(not HAS_COMPRESS, reason="needs AVX-512")
@pytest.mark.parametrize("bits", [0, 1, 1 << 15, 1 << 16, 1 << 31, 0x0F0F1234, 0xFFFFFFFF])
def test_compress_keeps_the_numbers_of_set_bits(bits):
    numbers, target = np.arange(3 * 40, dtype=np.int32).reshape(3, 40), np.full(50, -1, np.int32)

    numba.njit(lambda *arrays: compress_32(*arrays))(numbers, 1, bits, target, 4)
    expected = [40 + k for k in range(32) if bits >> k & 1]
    assert target[4 : 4 + len(expected)].tolist() == expected
    assert (target[:4] == -1).all()
    assert (target[36:] == -1).all()


@pytest.mark.skipif(not HAS_COMPRESS, reason="needs AVX-512")
@pytest.mark.parametrize("bits", [0, 1, -1, -(2**63), 0x0F0F1234 << 20])
def test_compress_writes_the_positions_of_set_bits(bits):
    target = np.full(80, -1, np.int32)
    numba.njit(lambda *arguments: compress_range(*arguments))(100, bits, target, 4)
    expected = [100 + k for k in range(64) if bits >> k & 1]
    assert target[4 : 4 + len(expected)].tolist() == expected
    assert (target[:4] == -1).all()
    assert (target[68:] == -1).all()


# Tangent


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(("lo", "hi"), [(0, 25), (4, 17), (6, 6)])
def test_tangent_product_equals_numpy(dtype, outputs, lo, hi):
    rng = np.random.default_rng(0)
    X = sphere(rng, 15, 6).astype(dtype)
    output_weights = rng.choice([-1.0, 1.0], (25, outputs)).astype(dtype)
    active = rng.random((15, 25)) < 0.3
    active[:, 5] = False
    direction = rng.standard_normal((15, outputs)).astype(dtype)
    columns = csc_array(active)
    start = rng.standard_normal((15, outputs))
    product = start.copy()
    tangent_product(X, output_weights, columns.indptr, columns.indices, direction, product, lo, hi)
    X, output_weights, direction = X.astype(float), output_weights.astype(float), direction.astype(float)
    expected = start + plain_tangent_product(X, output_weights, active, direction, lo, hi)
    np.testing.assert_allclose(product, expected, rtol=0, atol=1e-13 if dtype == "float64" else 1e-5)


# Lists by sample and by neuron


@given(lists=st.lists(st.sets(st.integers(0, 6)), max_size=8))
def test_transposed_lists(lists):
    """List k has id j if and only if the transposed list j has k; ascending, in 32 bits."""
    indptr = list_offsets(np.array([len(one) for one in lists], np.int64))
    ids = np.array([j for one in lists for j in sorted(one, reverse=True)], np.int32)
    turned = transpose_lists(indptr, ids, 7)
    expected = [[k for k, one in enumerate(lists) if j in one] for j in range(7)]
    assert [part.tolist() for part in np.split(turned[1], turned[0][1:-1])] == expected
    again = transpose_lists(*turned, len(lists))
    np.testing.assert_array_equal(again[0], indptr)
    assert again[1].tolist() == [j for one in lists for j in sorted(one)]
    active = fire_sets_by_neuron(*turned, len(lists))
    assert active.indices.dtype == np.int32
    np.testing.assert_array_equal(active.toarray(), [[j in one for j in range(7)] for one in lists] or np.zeros((0, 7)))
