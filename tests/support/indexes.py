"""Kinds of indexes, hard cases and brute-force answers for the tests of `fireset.hsr`."""

import numpy as np
from hypothesis import strategies as st

from fireset.hsr import kinds
from fireset.hsr.registry import index_class
from fireset.kernels.firing import deciding_dot
from support.checks import sphere

KINDS = ["auto", *(kind for kind in kinds() if index_class(kind).dynamic)]  # for any dimension, and to be changed
STATIC = [kind for kind in kinds() if not index_class(kind).dynamic]


def kinds_for(d: int) -> list[str]:
    return [*KINDS, *(kind for kind in STATIC if index_class(kind).suits(d))]


def above(points: dict[int, np.ndarray], normal, threshold: float) -> list[int]:
    return [i for i in sorted(points) if deciding_dot(normal, points[i]) > threshold]


def numbered(points) -> dict[int, np.ndarray]:
    return dict(enumerate(points))


def grid(n: int, d: int) -> st.SearchStrategy[np.ndarray]:
    """n points with coordinates in quarters: many ties, many points exactly on a threshold, no rounding."""
    rows = st.lists(st.lists(st.integers(-4, 4), min_size=d, max_size=d), min_size=n, max_size=n)
    return rows.map(lambda r: np.array(r, float).reshape(n, d) / 4)


def hard_cases() -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Points, normals and thresholds, by name: the cases that every kind is tested on."""
    cases = {}
    for d in (1, 2, 3, 4, 7):
        rng = np.random.default_rng(d)
        normals = np.concatenate([rng.standard_normal((30, d)), np.eye(d), np.zeros((1, d))])
        cloud = rng.standard_normal((400, d))
        point_sets = {
            "Gaussian": cloud,
            "sphere": sphere(rng, 400, d),
            "duplicates": np.repeat(cloud[:20], 20, axis=0),
            "grid": rng.integers(-2, 3, (400, d)) / 2,
            "all zero": np.zeros((50, d)),
            "on a line": np.outer(rng.standard_normal(100), normals[0]),
            "on a plane": cloud * (np.arange(d) > 0),
            "two clusters": cloud * 1e-9 + rng.choice([-1.0, 1.0], (400, 1)),
            "huge": cloud * 1e200,
            "tiny": cloud * 1e-200,
            "one point": cloud[:1],
            "d points": cloud[:d],
            "empty": cloud[:0],
        }
        for name, points in point_sets.items():
            size = float(np.abs(points).max(initial=0.0))
            thresholds = rng.standard_normal(len(normals)) * size
            if len(points):  # every other one exactly on a point
                on = points[rng.integers(0, len(points), len(normals))]
                exact = np.array([deciding_dot(w, x) for w, x in zip(normals, on, strict=True)])
                thresholds[::2] = exact[::2]
            thresholds[1], thresholds[3] = np.inf, -np.inf  # nothing fires, everything fires
            cases[f"{name}, d = {d}"] = points, normals, thresholds
    return cases


def best(points: dict[int, np.ndarray], normal, k: int) -> tuple[list[int], list[float]]:
    """Brute force: by the deciding inner product, and of equal ones the smaller id first."""
    values = {i: deciding_dot(normal, point) for i, point in points.items()}
    values = {i: value if value == value else -np.inf for i, value in values.items()}
    order = sorted(values, key=lambda i: (-values[i], i))[:k]
    return order, [values[i] for i in order]


def check_top(index, points: dict[int, np.ndarray], normals, k: int) -> None:
    found = index.top(normals, k)
    assert found.ids.shape == found.values.shape == (len(normals), min(k, len(points)))
    for normal, ids, values in zip(normals, found.ids.tolist(), found.values.tolist(), strict=True):
        assert (ids, values) == best(points, normal, k)
