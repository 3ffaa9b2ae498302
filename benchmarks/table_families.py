"""Tables to be judged on: scikit-learn's own, and families drawn by rules that real tables follow in part.

Additive effects, interactions, thresholds, clusters, irrelevant columns, heavy tails, rare classes, categories, few
rows, many rows. None of them was looked at when the estimators' defaults were chosen, but for digits, wine, breast
cancer, diabetes and Friedman's three.
"""

from collections.abc import Callable

import numpy as np
from sklearn import datasets

Drawn = tuple[np.ndarray, np.ndarray]


def _rng(name: str) -> np.random.Generator:
    return np.random.default_rng(list(name.encode()))


def _labels(score: np.ndarray, rng: np.random.Generator, classes: int = 2, noise: float = 0.3) -> np.ndarray:
    """Classes of equal size by a noisy score."""
    noisy = score / score.std() + noise * rng.standard_normal(len(score))
    return np.searchsorted(np.quantile(noisy, np.arange(1, classes) / classes), noisy)


def _additive(rng, n=1500, p=10) -> Drawn:
    X = rng.uniform(-1, 1, (n, p))
    return X, np.sin(4 * X[:, 0]) + np.abs(X[:, 1]) * 2 + X[:, 2] ** 3 + np.exp(X[:, 3]) - 2 * X[:, 4]


def _interactions(rng, n=2000, p=8) -> Drawn:
    X = rng.standard_normal((n, p))
    return X, X[:, 0] * X[:, 1] + X[:, 2] * X[:, 3] * (X[:, 4] > 0) + 0.5 * X[:, 5]


def _thresholds(rng, n=2000, p=8) -> Drawn:
    X = rng.uniform(0, 1, (n, p))
    rules = (X[:, 0] > 0.6) * 2.0 + (X[:, 1] < 0.3) * (X[:, 2] > 0.5) * 3.0 - (X[:, 3] > 0.8) * (X[:, 0] < 0.4) * 2.0
    return X, rules + (X[:, 4] > 0.5)


def _irrelevant(rng, n=1500, p=50) -> Drawn:
    X = rng.standard_normal((n, p))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + np.maximum(X[:, 3], 0) + 0.5 * X[:, 4]


def _heavy_tails(rng, n=2000, p=8) -> Drawn:
    X = np.exp(1.5 * rng.standard_normal((n, p))) * rng.choice([-1, 1], p)
    return X, np.log1p(np.abs(X[:, 0])) - np.sqrt(np.abs(X[:, 1])) * (X[:, 2] > np.median(X[:, 2])) + 0.2 * np.log(
        np.abs(X[:, 3])
    )


def _categories(rng, n=2500) -> Drawn:
    kinds = [rng.choice(k, n, p=rng.dirichlet(np.ones(k))) for k in (3, 8, 20)]
    numbers = rng.standard_normal((n, 3))
    effects = [rng.standard_normal(k) for k in (3, 8, 20)]
    y = sum(effect[kind] for effect, kind in zip(effects, kinds, strict=True)) + numbers[:, 0] * (kinds[0] == 1)
    hot = [np.eye(k)[kind] for k, kind in zip((3, 8, 20), kinds, strict=True)]
    return np.hstack([*hot, numbers]), y + np.abs(numbers[:, 1])


def _few_rows(rng, n=90, p=12) -> Drawn:
    X = rng.standard_normal((n, p))
    return X, X[:, 0] - 0.7 * X[:, 1] + 0.5 * X[:, 2] * X[:, 0]


def _many_rows(rng, n=12_000, p=10) -> Drawn:
    X = rng.uniform(-2, 2, (n, p))
    return X, np.sin(2 * X[:, 0] * X[:, 1]) + np.abs(X[:, 2]) + 0.5 * X[:, 3] * (X[:, 4] > 0)


def _periodic(rng, n=1200) -> Drawn:
    X = rng.uniform(-3, 3, (n, 2))
    return X, np.sin(3 * X[:, 0]) * np.cos(2 * X[:, 1])


def _counts(rng, n=2000, p=9) -> Drawn:
    X = rng.poisson(rng.uniform(0.3, 6, p), (n, p)).astype(float)
    return X, np.sqrt(X[:, 0] + 1) * (X[:, 1] > 2) - np.log1p(X[:, 2]) + 0.3 * X[:, 3]


_RULES: dict[str, Callable[..., Drawn]] = {
    "additive": _additive,
    "interactions": _interactions,
    "thresholds": _thresholds,
    "irrelevant columns": _irrelevant,
    "heavy tails": _heavy_tails,
    "categories": _categories,
    "few rows": _few_rows,
    "many rows": _many_rows,
    "periodic": _periodic,
    "counts": _counts,
}


def _regression(name: str, noise: float) -> Callable[[], Drawn]:
    def draw() -> Drawn:
        rng = _rng(name)
        X, y = _RULES[name](rng)
        return X, y + noise * y.std() * rng.standard_normal(len(y))

    return draw


def _classification(name: str, classes: int) -> Callable[[], Drawn]:
    def draw() -> Drawn:
        rng = _rng(name + " classes")
        X, y = _RULES[name](rng)
        return X, _labels(y, rng, classes)

    return draw


def _imbalanced(share: float) -> Callable[[], Drawn]:
    return lambda: datasets.make_classification(
        3000, 12, n_informative=6, weights=[1 - share], flip_y=0.01, class_sep=0.8, random_state=4
    )


REGRESSION: dict[str, Callable[[], Drawn]] = {
    "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
    "friedman1": lambda: datasets.make_friedman1(1000, 10, noise=1.0, random_state=5),
    "friedman2": lambda: datasets.make_friedman2(1000, noise=100.0, random_state=5),
    "friedman3": lambda: datasets.make_friedman3(1000, noise=0.2, random_state=5),
    "linear": lambda: datasets.make_regression(500, 20, n_informative=8, noise=60.0, random_state=5),
    "sparse uncorrelated": lambda: datasets.make_sparse_uncorrelated(800, 12, random_state=5),
    **{name: _regression(name, 0.4) for name in _RULES},
}

CLASSIFICATION: dict[str, Callable[[], Drawn]] = {
    "digits": lambda: datasets.load_digits(return_X_y=True),
    "wine": lambda: datasets.load_wine(return_X_y=True),
    "breast cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "iris": lambda: datasets.load_iris(return_X_y=True),
    "moons": lambda: datasets.make_moons(600, noise=0.3, random_state=5),
    "circles": lambda: datasets.make_circles(600, noise=0.2, factor=0.5, random_state=5),
    "quantiles": lambda: datasets.make_gaussian_quantiles(n_samples=2000, n_features=8, n_classes=3, random_state=5),
    "hastie": lambda: datasets.make_hastie_10_2(3000, random_state=5),
    "clusters": lambda: datasets.make_classification(
        2000, 15, n_informative=8, n_classes=4, n_clusters_per_class=3, random_state=5
    ),
    "rare class": _imbalanced(0.05),
    "rarer class": _imbalanced(0.02),
    **{name: _classification(name, 3 if k % 3 == 0 else 2) for k, name in enumerate(_RULES)},
}
