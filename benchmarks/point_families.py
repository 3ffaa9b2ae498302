"""Families of points and normals on which an index may fail, for tests and benchmarks.

A family gives n points in d dimensions and normals in two halves: random directions, and directions in which the family
is hard (across a thin set, along a face, tangent to a curve). ``few_above`` gives thresholds with a number of points
above. Normals along which many points tie within rounding are left out: there every one of them has to be tested.
"""

from collections.abc import Callable

import numpy as np


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _random(rng, n: int, d: int, m: int):
    return rng.standard_normal((n, d)), unit(rng.standard_normal((m, d)))


def _cube(rng, n: int, d: int, m: int):
    normals = np.eye(d)[rng.integers(0, d, m)] * rng.choice([-1.0, 1.0], (m, 1))
    return rng.random((n, d)), unit(normals + 1e-4 * rng.standard_normal((m, d)))


def _diagonal(rng, n: int, d: int, m: int):
    axis = np.ones(d) / np.sqrt(d)
    points = np.outer(rng.uniform(-1, 1, n), axis) + 1e-6 * rng.standard_normal((n, d))
    normals = rng.standard_normal((m, d))
    return points, unit(normals - np.outer(normals @ axis, axis) if d > 1 else normals)


def _spike_and_circle(rng, n: int, d: int, m: int):
    angles = rng.uniform(0, 2 * np.pi, n - n // 2)
    circle, spike = np.zeros((len(angles), d)), np.zeros((n // 2, d))
    circle[:, 0], circle[:, 1] = np.cos(angles), np.sin(angles)
    spike[:, -1] = rng.uniform(0, 3, n // 2)
    points = np.concatenate([circle, spike])
    normals = rng.standard_normal((m, d))
    normals[:, 2:] *= 0.01
    return points, unit(normals)


def _sphere(rng, n: int, d: int, m: int):
    points = unit(rng.standard_normal((n, d)))
    return points, unit(points[rng.integers(0, n, m)] + 1e-6 * rng.standard_normal((m, d)))


def _grid(rng, n: int, d: int, m: int):
    side = int(np.ceil(n ** (1 / d)))
    numbers = rng.permutation(side**d)[:n]
    points = np.stack(np.unravel_index(numbers, (side,) * d), axis=1) / side
    normals = np.eye(d)[rng.integers(0, d, m)] * rng.choice([-1.0, 1.0], (m, 1))
    return points, unit(normals + 1e-3 * rng.standard_normal((m, d)))


def _moment_curve(rng, n: int, d: int, m: int):
    t = np.sort(rng.uniform(-1, 1, n))
    normals = np.empty((m, d))
    for row in normals:  # −∏(t − a)² times, for odd d, (1 + t): a hyperplane that touches the curve at d/2 places
        roots = np.repeat(rng.uniform(-1, 1, d // 2), 2)
        row[:] = -np.poly(np.append(roots, -1.0) if d % 2 else roots)[::-1][1:]
    return np.stack([t**j for j in range(1, d + 1)], axis=1), unit(normals)


def _clusters(rng, n: int, d: int, m: int):
    points = np.zeros((n, d))
    for scale in (1.0, 1e-2, 1e-4, 1e-6):
        points += scale * rng.standard_normal((5, d))[rng.integers(0, 5, n)]
    points += 1e-8 * rng.standard_normal((n, d))
    return points, unit(rng.standard_normal((m, d)))


def _two_lines(rng, n: int, d: int, m: int):
    points = np.zeros((n, d))
    points[:, 0], points[:, -1] = rng.uniform(-1, 1, n), rng.choice([0.0, 1e-3], n)
    normals = rng.standard_normal((m, d))
    normals[:, 0] *= 1e-6
    return points, unit(normals)


def _all_equal(rng, n: int, d: int, m: int):
    return np.tile(rng.standard_normal(d), (n, 1)), unit(rng.standard_normal((m, d)))


FAMILIES: dict[str, Callable[..., tuple[np.ndarray, np.ndarray]]] = {
    "random": _random,
    "cube": _cube,
    "diagonal": _diagonal,
    "spike and circle": _spike_and_circle,
    "sphere": _sphere,
    "grid": _grid,
    "moment curve": _moment_curve,
    "clusters": _clusters,
    "two lines": _two_lines,
    "all equal": _all_equal,
}


def family(name: str, n: int, d: int, queries: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points (n, d) and unit normals (queries, d) of a family, float64; the second half of the normals is its own."""
    rng = np.random.default_rng([seed, n, d])
    points, hard = FAMILIES[name](rng, n, d, queries - queries // 2)
    return points, np.concatenate([unit(rng.standard_normal((queries // 2, d))), hard])


def few_above(points: np.ndarray, normals: np.ndarray, found: int = 20) -> np.ndarray:
    """Thresholds half-way between the values of ranks ``found`` and ``found`` + 1; ties may change the number."""
    thresholds = np.empty(len(normals))
    for row, normal in enumerate(normals):
        best = np.partition(points @ normal, len(points) - 1 - found)[-1 - found :]
        thresholds[row] = (best[0] + best[1:].min(initial=np.inf)) / 2
    return thresholds


def exponent(sizes, work) -> float:
    """Least-squares slope of log work over log n."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(work, 1.0)), 1)[0])
