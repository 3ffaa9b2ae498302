"""Generated tables that no default was tuned on. Seeds are fixed: do not look at single tables to choose a setting.

Each rule draws the function itself as well as the rows from its seed, so that a family holds several functions of one
kind. Real tables are in ``real_tables.py``, the families that were seen during development in ``table_families.py``.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from sklearn import datasets

Rng = np.random.Generator
Table = tuple[pd.DataFrame, np.ndarray]
Rule = Callable[[Rng], tuple[np.ndarray | pd.DataFrame, np.ndarray]]


def _waves(Z: np.ndarray, rng: Rng, frequency: float, count: int = 40) -> np.ndarray:
    """Evaluate a random smooth function: a sum of ``count`` cosines with normal frequencies, of unit variance."""
    W = frequency * rng.standard_normal((count, Z.shape[1]))
    f = (rng.standard_normal(count) * np.cos(Z @ W.T + rng.uniform(0, 2 * np.pi, count))).sum(axis=1)
    return f / f.std()


def _with_noise(f: np.ndarray, rng: Rng, share: float) -> np.ndarray:
    """Add normal noise so that it makes up ``share`` of the variance."""
    return f / f.std() * np.sqrt(1 - share) + np.sqrt(share) * rng.standard_normal(len(f))


def _rotation(rng: Rng, p: int) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((p, p)))[0]


def smooth(rng: Rng, n: int, p: int, frequency: float, noise: float):
    X = rng.standard_normal((n, p))
    return X, _with_noise(_waves(X, rng, frequency), rng, noise)


def rotated(rng: Rng, n: int, p: int, directions: int, noise: float):
    """Few orthogonal directions matter, none of them a column; the columns have unequal variances."""
    X = (rng.standard_normal((n, p)) * np.exp(0.4 * rng.standard_normal(p))) @ _rotation(rng, p)
    Z = X @ _rotation(rng, p)[:, :directions]
    Z /= Z.std(axis=0)
    return X, _with_noise(_waves(Z, rng, 1.0) + 0.5 * Z[:, 0], rng, noise)


def sparse_relevance(rng: Rng, n: int, p: int, relevant: int, noise: float):
    X = rng.uniform(-1.7, 1.7, (n, p))
    chosen = rng.permutation(p)[:relevant]
    return X, _with_noise(_waves(X[:, chosen], rng, 1.0), rng, noise)


def additive_steps(rng: Rng, n: int, p: int, noise: float):
    """A sum over columns of piecewise constant functions with 1 to 4 jumps, and a slope in some of them."""
    X = rng.uniform(0, 1, (n, p))
    f = np.zeros(n)
    for j in range(p):
        jumps = np.sort(rng.uniform(0.1, 0.9, rng.integers(1, 5)))
        heights = rng.standard_normal(len(jumps) + 1)
        f += heights[np.searchsorted(jumps, X[:, j])] + (rng.random() < 0.3) * rng.standard_normal() * 2 * X[:, j]
    return X, _with_noise(f, rng, noise)


def trees(rng: Rng, n: int, p: int, count: int, depth: int, noise: float):
    """A sum of ``count`` random decision trees, each split at a random quantile of a random column."""
    X = rng.standard_normal((n, p))
    f = np.zeros(n)
    for _ in range(count):
        leaf = np.zeros(n, dtype=int)
        for level in range(depth):
            columns = rng.integers(0, p, 2**level)
            cuts = 0.7 * rng.standard_normal(2**level)
            leaf = 2 * leaf + (X[np.arange(n), columns[leaf]] > cuts[leaf])
        f += rng.standard_normal(2**depth)[leaf]
    return X, _with_noise(f, rng, noise)


def mixed(rng: Rng, n: int, levels: tuple[int, ...], numbers: int, noise: float):
    """Categories with unequal frequencies: effects of their own, pairs, and slopes of numbers that depend on them."""
    X = rng.standard_normal((n, numbers))
    codes = [rng.choice(k, n, p=rng.dirichlet(np.full(k, 2.0))) for k in levels]
    f = _waves(X, rng, 0.6)
    for k, code in zip(levels, codes, strict=True):
        f = f + rng.standard_normal(k)[code]
    f = f + rng.standard_normal((levels[0], levels[1]))[codes[0], codes[1]]
    f = f + rng.standard_normal(levels[-1])[codes[-1]] * X[:, 0]
    frame = pd.DataFrame({f"x{j}": X[:, j] for j in range(numbers)})
    for j, code in enumerate(codes):
        frame[f"c{j}"] = pd.Categorical([f"v{each}" for each in code])
    return frame, _with_noise(f, rng, noise)


def heavy_noise(rng: Rng, n: int, p: int):
    """A smooth function with Student noise of 2.5 degrees of freedom, whose scale depends on a column."""
    X = rng.standard_normal((n, p))
    return X, _waves(X, rng, 0.5) + 0.4 * np.exp(0.5 * X[:, -1]) * rng.standard_t(2.5, n)


def linear(rng: Rng, n: int, p: int, noise: float):
    X = rng.standard_normal((n, p)) @ (0.5 * _rotation(rng, p) + np.eye(p))
    return X, _with_noise(X @ rng.standard_normal(p), rng, noise)


def quantized(rule: Rule, classes: int, shares: tuple[float, ...] | None = None) -> Rule:
    """Make classes of the target of a rule: intervals that hold the given shares of the rows, else equal ones."""

    def draw(rng: Rng):
        X, y = rule(rng)
        edges = np.arange(1, classes) / classes if shares is None else np.cumsum(shares)[:-1]
        return X, np.searchsorted(np.quantile(y, edges), y)

    return draw


def _seed(rng: Rng) -> int:
    return int(rng.integers(2**31))


def clusters(rng: Rng, n: int, p: int, informative: int, classes: int, per_class: int, **others):
    return datasets.make_classification(
        n,
        p,
        n_informative=informative,
        n_classes=classes,
        n_clusters_per_class=per_class,
        random_state=_seed(rng),
        **others,
    )


def gaussian_quantiles(rng: Rng, n: int, p: int, classes: int):
    return datasets.make_gaussian_quantiles(n_samples=n, n_features=p, n_classes=classes, random_state=_seed(rng))


def hastie(rng: Rng, n: int):
    X, y = datasets.make_hastie_10_2(n, random_state=_seed(rng))
    return X, y > 0


def moons(rng: Rng, n: int, p: int, noise: float):
    """Two interleaved half circles in a random plane of p dimensions, with noise in all of them."""
    X, y = datasets.make_moons(n, random_state=_seed(rng))
    X = np.hstack([X, np.zeros((n, p - 2))]) + noise * rng.standard_normal((n, p))
    return X @ _rotation(rng, p), y


def blobs(rng: Rng, n: int, p: int, classes: int):
    """Normal clusters with unequal covariances and frequencies, two for each class."""
    centres, code = 1.2 * rng.standard_normal((2 * classes, p)), rng.choice(2 * classes, n)
    spread = np.exp(0.5 * rng.standard_normal((2 * classes, p)))
    return centres[code] + spread[code] * rng.standard_normal((n, p)), code % classes


def _table(seed: int, rule: Rule) -> Callable[[], Table]:
    def load() -> Table:
        X, y = rule(np.random.default_rng([2027, seed]))
        return (X if isinstance(X, pd.DataFrame) else pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])), y

    return load


_REGRESSION: dict[str, dict[str, Rule]] = {
    "smooth": {
        "smooth, 3 columns": partial(smooth, n=800, p=3, frequency=1.0, noise=0.05),
        "smooth, 6 columns": partial(smooth, n=2000, p=6, frequency=0.5, noise=0.1),
        "smooth, 12 columns": partial(smooth, n=2400, p=12, frequency=0.25, noise=0.1),
    },
    "rotated": {
        "rotated, 2 of 8": partial(rotated, n=1500, p=8, directions=2, noise=0.05),
        "rotated, 3 of 20": partial(rotated, n=2500, p=20, directions=3, noise=0.1),
    },
    "high noise": {
        "noisy smooth": partial(smooth, n=1500, p=4, frequency=0.5, noise=0.75),
        "noisy linear": partial(linear, n=600, p=10, noise=0.8),
        "heavy noise": partial(heavy_noise, n=1500, p=5),
    },
    "many rows": {
        "many rows, smooth": partial(smooth, n=6600, p=8, frequency=0.6, noise=0.05),
        "many rows, rotated": partial(rotated, n=6600, p=15, directions=3, noise=0.1),
    },
    "sparse relevance": {
        "3 of 30 columns": partial(sparse_relevance, n=1500, p=30, relevant=3, noise=0.1),
        "2 of 80 columns": partial(sparse_relevance, n=1000, p=80, relevant=2, noise=0.1),
    },
    "additive steps": {
        "steps, 6 columns": partial(additive_steps, n=1500, p=6, noise=0.1),
        "steps, 15 columns": partial(additive_steps, n=3000, p=15, noise=0.2),
    },
    "trees": {
        "one tree": partial(trees, n=2000, p=8, count=1, depth=5, noise=0.1),
        "ten trees": partial(trees, n=3000, p=10, count=10, depth=4, noise=0.1),
    },
    "mixed": {
        "mixed, 3 categories": partial(mixed, n=1500, levels=(4, 7, 12), numbers=4, noise=0.1),
        "mixed, many levels": partial(mixed, n=2500, levels=(3, 60, 5), numbers=3, noise=0.2),
    },
}

_CLASSIFICATION: dict[str, dict[str, Rule]] = {
    "clusters": {
        "6 classes of 2 clusters": partial(clusters, n=2000, p=12, informative=8, classes=6, per_class=2),
        "2 classes of 6 clusters": partial(clusters, n=1500, p=15, informative=7, classes=2, per_class=6),
    },
    "gaussian quantiles": {
        "quantiles, 5 columns": partial(gaussian_quantiles, n=1200, p=5, classes=3),
        "quantiles, 12 columns": partial(gaussian_quantiles, n=2500, p=12, classes=4),
        "hastie": partial(hastie, n=2500),
    },
    "moons": {
        "moons, 6 columns": partial(moons, n=800, p=6, noise=0.25),
        "moons, 20 columns": partial(moons, n=1500, p=20, noise=0.2),
    },
    "imbalanced": {
        "rare class, clusters": partial(
            clusters, n=2500, p=10, informative=6, classes=2, per_class=2, weights=[0.94], class_sep=0.9
        ),
        "rare class, smooth": quantized(partial(smooth, n=2500, p=6, frequency=0.5, noise=0.1), 2, (0.92, 0.08)),
    },
    "many classes": {"20 classes": partial(blobs, n=3000, p=10, classes=20)},
    "smooth": {"smooth, 3 classes": quantized(partial(smooth, n=1500, p=5, frequency=0.6, noise=0.1), 3)},
    "rotated": {"rotated, 2 classes": quantized(partial(rotated, n=1500, p=12, directions=2, noise=0.1), 2)},
    "sparse relevance": {
        "3 of 40 columns, 2 classes": quantized(partial(sparse_relevance, n=1500, p=40, relevant=3, noise=0.1), 2)
    },
    "trees": {"ten trees, 3 classes": quantized(partial(trees, n=2000, p=8, count=10, depth=3, noise=0.1), 3)},
    "mixed": {"mixed, 2 classes": quantized(partial(mixed, n=2000, levels=(4, 30, 6), numbers=4, noise=0.15), 2)},
}


def _seeded(kinds: dict[str, dict[str, Rule]], start: int) -> dict[str, tuple[str, Callable[[], Table]]]:
    flat = [(family, name, rule) for family, rules in kinds.items() for name, rule in rules.items()]
    return {name: (family, _table(start + k, rule)) for k, (family, name, rule) in enumerate(flat)}


# Name of the table: (family, function that draws it).
UNTUNED_REGRESSION = _seeded(_REGRESSION, 100)
UNTUNED_CLASSIFICATION = _seeded(_CLASSIFICATION, 200)
UNTUNED = {**UNTUNED_REGRESSION, **UNTUNED_CLASSIFICATION}
