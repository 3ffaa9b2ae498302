"""Data sets for the benchmarks; all of them made here or shipped with scikit-learn."""

import numpy as np

from fireset.tables.column_map import ColumnMap
from fireset.tables.sphere import SphereMap


def random_sphere(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows, a target with a jump and a slope."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = 0.5 * np.sign(X[:, 0]) + X[:, min(1, d - 1)]
    return X, y[:, None].astype(np.float64)


def digits() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's handwritten digits: 1797 rows, 65 coordinates on the sphere, ten outputs ±1."""
    from sklearn.datasets import load_digits

    X, labels = load_digits(return_X_y=True)
    return _mapped(X), 2.0 * np.eye(10)[labels] - 1.0


def one_hot_table(n: int = 5000, columns: int = 12, categories: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """A table of categories, one-hot: 120 columns, 12 ones a row; the target depends on pairs of columns."""
    rng = np.random.default_rng(0)
    cells = rng.integers(0, categories, (n, columns))
    X = (cells[:, :, None] == np.arange(categories)).reshape(n, -1).astype(np.float64)
    effects = rng.standard_normal((columns // 2, categories, categories))
    y = sum(effects[k, cells[:, 2 * k], cells[:, 2 * k + 1]] for k in range(columns // 2))
    y = (y - y.mean()) / y.std()
    return _mapped(X), y[:, None]


def _mapped(X: np.ndarray) -> np.ndarray:
    """Onto the sphere as the estimators do, with all columns counting alike."""
    weight = np.ones(len(X))
    columns = ColumnMap.learn(X, weight)
    return SphereMap.learn(columns, columns(X), weight, 1.0, np.ones(X.shape[1]))(X).astype(np.float32)
