"""How far apart the samples are: δ of the paper's convergence theorem, and the closest pair."""

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from fireset._util.parallel import parallel_map
from fireset.theory.kernel import correlations, unit_rows

_BLOCK = 1024
_MAX_TREE_COLUMNS = 10  # with more columns a k-d tree visits most of the points anyway
_MIN_TREE_ROWS = 500


@dataclass(frozen=True)
class Separation:
    """δ = min over pairs of ‖x_i − x_j‖ and ‖x_i + x_j‖, and where it is reached; no pair for a single row."""

    distance: float
    pair: tuple[int, int] | None
    opposite: bool  # whether it is ‖x_i + x_j‖

    def with_row_numbers(self, numbers: np.ndarray) -> "Separation":
        """The same with ``numbers[i]`` in place of row i."""
        if self.pair is None:
            return self
        first, second = self.pair
        return replace(self, pair=(int(numbers[first]), int(numbers[second])))

    def __str__(self) -> str:
        if self.pair is None:
            return "one row: no pair"
        first, second = self.pair
        if self.distance == 0:
            return f"rows {first} and {second} are {'opposite' if self.opposite else 'the same'}"
        sign = "+" if self.opposite else "−"
        return f"‖x_{first} {sign} x_{second}‖ = {self.distance:.4g}"


def measure_separation(X: np.ndarray) -> Separation:
    """δ of the rows of X (n, d), each scaled to norm 1.

    In up to 10 dimensions by k-d trees, about n log n; beyond by tiles of inner products, n² d operations. Memory O(n)
    and a tile for each core, never n². Distances come from differences, not from 1 − ρ, which would lose half the
    digits; equal rows give exactly 0.
    """
    X = unit_rows(X, "X")
    if len(X) == 1:
        return Separation(inf, None, opposite=False)
    if X.shape[1] <= _MAX_TREE_COLUMNS and len(X) >= _MIN_TREE_ROWS:
        return min(_by_tree(X, opposite=False), _by_tree(X, opposite=True), key=lambda found: found.distance)
    starts = range(0, len(X), _BLOCK)
    tiles = [(i, j) for i in starts for j in starts if i <= j]
    return min(parallel_map(lambda tile: _in_tile(X, *tile), tiles, uses_blas=True), key=lambda found: found.distance)


def _by_tree(X: np.ndarray, *, opposite: bool) -> Separation:
    from scipy.spatial import KDTree

    distances, found = (np.asarray(part) for part in KDTree(X).query(-X if opposite else X, k=2))
    own = found == np.arange(len(X))[:, None]  # not always the first: equal rows come in any order
    distances[own] = inf
    i, k = np.unravel_index(int(np.argmin(distances)), distances.shape)
    j = int(found[i, k])
    return Separation(float(distances[i, k]), (min(int(i), j), max(int(i), j)), opposite)


def _in_tile(X: np.ndarray, row: int, column: int) -> Separation:
    correlation, gap = correlations(X[row : row + _BLOCK], X[column : column + _BLOCK])
    if row == column:
        gap[np.tril_indices(len(gap))] = inf  # a row with itself, and each pair a second time
    i, j = np.unravel_index(int(np.argmin(gap)), gap.shape)
    if gap[i, j] == inf:
        return Separation(inf, None, opposite=False)
    opposite = bool(correlation[i, j] < 0)
    # ‖x − x'‖² = 2(1 − ρ), and the gap is accurate where it is small.
    return Separation(float(np.sqrt(2.0 * gap[i, j])), (row + int(i), column + int(j)), opposite)
