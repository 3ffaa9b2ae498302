"""Numbers near the limits of float32 and float64, for every index and for the network's fire sets.

The reference decides each pair in exact arithmetic (``fractions``). An index or network may raise an
``InputError``. A pair whose exact product lies within the rounding error of the threshold may decide either way.
"""

import warnings
from collections import Counter
from fractions import Fraction

import numpy as np

from fireset import InputError, ShiftedReLUNetwork
from fireset.engines import create
from fireset.engines.registry import ENGINES
from fireset.hsr import build, kinds
from fireset.hsr.registry import index_class


def run_case(seed: int, counts: Counter) -> None:
    rng = np.random.default_rng(seed)
    dtype = np.dtype(str(rng.choice(("float32", "float64"))))
    d, n = int(rng.integers(1, 5)), int(rng.integers(1, 40))
    points, normals = (draw_numbers(rng, (size, d), dtype) for size in (n, 6))
    thresholds = np.where(rng.random(6) < 0.3, 0.0, draw_numbers(rng, (6,), dtype))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for kind in kinds():
            if index_class(kind).suits(d):
                check_index(kind, points, normals, thresholds, counts)
        check_network(rng, points, normals, float(thresholds[0]), counts)


def draw_numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Draw numbers of all sizes of the precision, with zeros, equal numbers and numbers next to its limits."""
    limits = np.finfo(dtype)
    low, high = int(np.log10(float(limits.tiny))), int(np.log10(float(limits.max)))
    spread = ((-2, 2), (low, high), (high - 12, high), (low - 5, low + 5))[int(rng.integers(4))]
    sizes = rng.integers(*spread, shape).astype(float)
    with np.errstate(all="ignore"):
        numbers = (rng.choice((-1.0, 1.0), shape) * rng.choice((1.0, 2.5, 9.0), shape) * 10.0**sizes).astype(dtype)
    numbers = np.clip(np.nan_to_num(numbers, posinf=limits.max, neginf=-limits.max), -limits.max, limits.max)
    numbers[rng.random(shape) < 0.1] = 0
    return numbers.astype(dtype)


def decided(points: np.ndarray, normal: np.ndarray, threshold: float) -> tuple[set[int], set[int]]:
    """Return points that are certainly above and points that may be, by exact sums and their rounding error."""
    above, open_ = set(), set()
    precision = Fraction(float(np.finfo(points.dtype).eps)) * 4 * len(normal)
    for k, point in enumerate(points):
        products = [Fraction(float(a)) * Fraction(float(b)) for a, b in zip(normal, point, strict=True)]
        excess = sum(products) - Fraction(float(threshold))
        slack = precision * (sum(map(abs, products)) + abs(Fraction(float(threshold))))
        slack += Fraction(float(np.finfo(points.dtype).tiny)) * len(normal)
        if abs(excess) <= slack:
            open_.add(k)
        elif excess > 0:
            above.add(k)
    return above, open_


def check_index(kind: str, points: np.ndarray, normals: np.ndarray, thresholds: np.ndarray, counts: Counter) -> None:
    try:
        index = build(points, kind)
    except InputError:
        counts[f"{kind}, refused"] += 1
        return
    for normal, threshold in zip(normals, thresholds, strict=True):
        above, open_ = decided(points, normal, threshold)
        case = f"{kind}, {points.dtype}, points {points.tolist()}, normal {normal.tolist()}, threshold {threshold!r}"
        try:
            found = set(index.query(normal, threshold).tolist())
        except InputError:
            counts[f"{kind}, query refused"] += 1
            continue
        missed, wrong = above - found, found - above - open_
        assert not missed, f"missed {sorted(missed)}: {case}"
        assert not wrong, f"not above {sorted(wrong)}: {case}"
        counts[f"{kind}, queries"] += 1


def check_network(rng, points: np.ndarray, normals: np.ndarray, threshold: float, counts: Counter) -> None:
    """Check the fire sets of an engine, and finite predictions where the exact ones are representable."""
    try:
        network = ShiftedReLUNetwork(normals.copy(), rng.choice((-1, 1), (len(normals), 1)), threshold)
        name = str(rng.choice([name for name in ENGINES if not name.startswith(("quantum", "hashing"))]))
        engine = create(name)
        engine.start(network, network.check_rows(points, "X"))
        active = engine.fire_sets().toarray().astype(bool)
    except InputError:
        counts["network refused"] += 1
        return
    for r, normal in enumerate(normals):
        above, open_ = decided(points, normal, network.threshold)
        found = set(np.flatnonzero(active[:, r]).tolist())
        case = f"engine {name}, {points.dtype}, X {points.tolist()}, w {normal.tolist()}, b {network.threshold!r}"
        assert not above - found, f"missed {sorted(above - found)}: {case}"
        assert not found - above - open_, f"does not fire {sorted(found - above - open_)}: {case}"
    counts[f"engine {name}, fire sets"] += 1
