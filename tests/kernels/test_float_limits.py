"""Inner products whose float32 sums overflow: decided in float64, in the same way everywhere."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset import InputError, ShiftedReLUNetwork
from fireset._util.rounding import dot_slack, row_norms
from fireset.engines import create
from fireset.engines.correlation_trees import CorrelationEngine
from fireset.hsr import build
from fireset.kernels.firing import deciding_dot
from support.indexes import check_top, kinds_for

SIZES = [0.0, 1e-38, 1e-3, 1.0, 3.0, 1e10, 1e19, 2e19, 1e30, 1e38, 3.4e38]
LARGEST = float(np.finfo(np.float32).max)


def numbers(n: int, d: int):
    """(n, d) float32 near the limits of the type; repeated magnitudes, so that sums cancel."""
    one = st.builds(lambda size, sign: size * sign, st.sampled_from(SIZES), st.sampled_from([-1.0, 1.0]))
    rows = st.lists(st.lists(one, min_size=d, max_size=d), min_size=n, max_size=n)
    return rows.map(lambda r: np.array(r, np.float32).reshape(n, d))


@st.composite
def problems(draw):
    d = draw(st.integers(1, 4))
    points, normals = draw(st.integers(1, 12).flatmap(lambda n: numbers(n, d))), draw(numbers(6, d))
    dots = [float(deciding_dot(w, x)) for w in normals for x in points]
    thresholds = st.sampled_from([-np.inf, np.inf, 0.0, -1.0, 1.0, 1e39, -1e39, LARGEST, -LARGEST, *dots])
    return points, normals, np.array(draw(st.lists(thresholds, min_size=6, max_size=6)))


def rounded_down(threshold: float) -> float:
    with np.errstate(over="ignore"):
        rounded = np.float32(threshold)
    return float(np.nextafter(rounded, np.float32(-np.inf))) if rounded > threshold else float(rounded)


def allowed(points, normal, threshold) -> tuple[set[int], set[int]]:
    """Ids that must be reported, and ids that may be: equal where a float32 sum may overflow."""
    dots = [deciding_dot(normal, x) for x in points]
    norms = row_norms(np.stack([normal, points[np.argmax(row_norms(points))]]))
    slack = float(dot_slack(points.shape[1], points.dtype, norms[0], norms[1]))
    slack = slack if points.dtype == np.float32 and slack < np.inf else 0.0
    must = {i for i, dot in enumerate(dots) if dot > threshold + 2 * slack}
    return must, {i for i, dot in enumerate(dots) if dot > threshold - 2 * slack}


@settings(max_examples=200)
@given(case=problems())
def test_every_kind_decides_as_float64_does(case):
    points, normals, thresholds = case
    expected = [allowed(points, w, rounded_down(t)) for w, t in zip(normals, thresholds, strict=True)]
    for kind in kinds_for(points.shape[1]):
        index = build(points, kind)
        indptr, ids = index.query_batch(normals, thresholds)
        reported = index.report(normals, thresholds)
        assert not np.isnan(reported.values).any()
        for k, (must, may) in enumerate(expected):
            batch = set(ids[indptr[k] : indptr[k + 1]].tolist())
            one = set(index.query(normals[k], float(thresholds[k])).tolist())
            values = set(reported.ids[reported.indptr[k] : reported.indptr[k + 1]].tolist())
            for found in (batch, one, values):
                assert must <= found <= may, (kind, normals[k], thresholds[k])
        for k in (1, 5):
            check_top(index, dict(enumerate(points)), normals, k)


@pytest.mark.parametrize("kind", kinds_for(2))
def test_sums_that_cancel_at_the_limit(kind):
    """1e40 − 1e40: infinity minus infinity in float32, 0 in float64, which is above −1."""
    index = build(np.array([[1e30, -1e30], [-1e30, -1e30], [1.0, 1.0]], np.float32), kind)
    normal = np.array([1e10, 1e10], np.float32)
    assert index.query(normal, -1.0).tolist() == [0, 2]
    assert index.query_batch(normal[None], [-1.0])[1].tolist() == [0, 2]
    assert index.query(normal, -np.inf).tolist() == [0, 1, 2]
    assert index.query(normal, np.inf).tolist() == []


def exact_dot(w, x) -> Fraction:
    return sum((Fraction(float(a)) * Fraction(float(b)) for a, b in zip(w, x, strict=True)), Fraction(0))


def test_a_float64_sum_that_overflows_on_the_way_is_decided():
    """2¹⁴⁰⁰ − 2¹⁴⁰⁰ is 0, 2¹⁴⁰¹ − 2¹⁴⁰⁰ above every float64, 2¹⁴⁰⁰ − 2¹⁴⁰¹ below: none is NaN, each sign is right."""
    large = 2.0**700
    points = large * np.array([[1, -1], [2, -1], [1, -2], [-2, 1], [-1, 2], [1, 1 / large], [-1, 1 / large], [0, 0]])
    normal = np.array([large, large])
    for threshold in (-1e300, 0.0, 1e300, float(np.finfo(float).max)):
        expected = [i for i, x in enumerate(points) if exact_dot(normal, x) > threshold]
        for kind in kinds_for(2):
            index = build(points, kind)
            assert index.query(normal, threshold).tolist() == expected, (kind, threshold)
            assert index.query_batch(normal[None], [threshold])[1].tolist() == expected, (kind, threshold)
    sparse = scipy.sparse.csr_array(points)
    network = ShiftedReLUNetwork(np.stack([normal, normal]), np.ones((2, 1)), 0.0)
    for rows in (points, sparse):
        assert network.fire_sets(rows).toarray()[:, 0].tolist() == [exact_dot(normal, x) > 0 for x in points]


@settings(max_examples=60)
@given(case=problems(), threshold=st.sampled_from([-1.0, 0.0, 1.0, 1e20]))
def test_the_network_decides_as_float64_does(case, threshold):
    samples, weights, _ = case
    network = ShiftedReLUNetwork(weights, np.ones((len(weights), 1)), threshold)
    fires = network.fire_sets(samples).toarray()
    for r, w in enumerate(weights):
        must, may = allowed(samples, w, float(np.float32(threshold)))
        assert must <= set(np.flatnonzero(fires[:, r]).tolist()) <= may


@pytest.mark.parametrize(
    ("engine", "options"),
    [(name, {}) for name in ("dense", "weights", "rows", "sums")]
    + [("correlation", {"layout": layout}) for layout in ("data", "weights")],
)
@pytest.mark.filterwarnings("error")
def test_engines_decide_overflowing_pairs_in_float64(engine, options):
    """Each engine's active pairs where float32 sums are infinity minus infinity."""
    weights = np.array([[1e30, -1e30], [1e30, 1e30], [-1e30, 1e30], [2.0, 0.0]], np.float32)
    X = np.array([[1e10, 1e10], [1e10, -1e10]], np.float32)
    network = ShiftedReLUNetwork(weights, np.ones((4, 1)), -1.0)
    chosen = create(engine, **options)
    chosen.start(network, X)
    chosen.forward()
    expected = [[deciding_dot(w, x) > -1.0 for w in weights] for x in X]
    assert chosen.fire_sets().toarray().tolist() == expected


@pytest.mark.parametrize("layout", ["data", "weights"])
def test_the_correlation_engine_ignores_overflowing_sums_below_the_threshold(layout):
    """inf − inf in float32 is no active pair if the sum in float64 is below the threshold."""
    weights = np.array([[1e30, 1e30], [-1e30, 2e30]], np.float32)
    X = np.array([[1e10, -2e10], [3e10, 1e10], [-1e10, -1e10]], np.float32)
    engine = CorrelationEngine(layout)
    engine.start(ShiftedReLUNetwork(weights, np.ones((2, 1)), 0.0), X)
    assert engine.fire_sets().toarray().tolist() == [[exact_dot(w, x) > 0 for w in weights] for x in X]


def test_the_data_engine_refuses_them():
    network = ShiftedReLUNetwork(np.full((2, 2), 1e30, np.float32), np.ones((2, 1)), -1.0)
    with pytest.raises(InputError, match="inner products"):
        create("data").start(network, np.full((1, 2), 1e10, np.float32))


def test_predictions_near_the_limit_are_those_of_float64():
    weights = np.array([[1e30, -1e30], [1e30, 1e30], [-1e30, 1e30], [2.0, 0.0]], np.float32)
    X = np.array([[1e10, 1e10], [1e8, -1e7]], np.float32)
    output_weights = np.array([[1.0], [0.0], [0.0], [-1.0]])
    found = ShiftedReLUNetwork(weights, output_weights.astype(np.float32), -1.0).predict(X)
    true = ShiftedReLUNetwork(weights.astype(np.float64), output_weights, -1.0).predict(X.astype(np.float64))
    np.testing.assert_allclose(found, true, rtol=1e-6)
