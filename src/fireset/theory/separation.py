"""Separation δ of the samples, as in the paper's convergence theorem, and the closest pair."""

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from fireset._util.parallel import parallel_map
from fireset.theory.kernel import correlations, unit_rows

_TILE_ROWS = 1024
_MAX_TREE_COLUMNS = 10  # with more columns a k-d tree visits most points
_MIN_TREE_ROWS = 500


@dataclass(frozen=True)
class Separation:
    """δ = min over pairs of ‖x_i − x_j‖ and ‖x_i + x_j‖, and the pair; a single row has no pair."""

    distance: float
    pair: tuple[int, int] | None
    opposite: bool  # whether δ is ‖x_i + x_j‖

    def with_row_numbers(self, numbers: np.ndarray) -> "Separation":
        """Copy with ``numbers[i]`` as the number of row i."""
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
    """Measure δ of the rows of X (n, d), each scaled to norm 1.

    Up to 10 dimensions k-d trees find the pair in about n log n; beyond, tiles of inner products cost n² d. Memory is
    O(n) and one tile per core. Distances are computed from differences, since 1 − ρ would lose half the digits; equal
    rows give exactly 0.
    """
    X = unit_rows(X, "X")
    if len(X) == 1:
        return Separation(inf, None, opposite=False)
    if X.shape[1] <= _MAX_TREE_COLUMNS and len(X) >= _MIN_TREE_ROWS:
        return min(_by_tree(X, opposite=False), _by_tree(X, opposite=True), key=lambda found: found.distance)
    starts = range(0, len(X), _TILE_ROWS)
    tiles = [(i, j) for i in starts for j in starts if i <= j]
    return min(parallel_map(lambda tile: _in_tile(X, *tile), tiles, uses_blas=True), key=lambda found: found.distance)


def _by_tree(X: np.ndarray, *, opposite: bool) -> Separation:
    from scipy.spatial import KDTree

    distances, found = (np.asarray(part) for part in KDTree(X).query(-X if opposite else X, k=2))
    own = found == np.arange(len(X))[:, None]  # not always the first column: the order of equal rows is arbitrary
    distances[own] = inf
    i, k = np.unravel_index(int(np.argmin(distances)), distances.shape)
    j = int(found[i, k])
    return Separation(float(distances[i, k]), (min(int(i), j), max(int(i), j)), opposite)


def _in_tile(X: np.ndarray, row: int, column: int) -> Separation:
    correlation, gap = correlations(X[row : row + _TILE_ROWS], X[column : column + _TILE_ROWS])
    if row == column:
        gap[np.tril_indices(len(gap))] = inf  # pairs of a row with itself, and duplicates of pairs
    i, j = np.unravel_index(int(np.argmin(gap)), gap.shape)
    if gap[i, j] == inf:
        return Separation(inf, None, opposite=False)
    opposite = bool(correlation[i, j] < 0)
    # ‖x − x'‖² = 2(1 − ρ); ``correlations`` computes small gaps without cancellation.
    return Separation(float(np.sqrt(2.0 * gap[i, j])), (row + int(i), column + int(j)), opposite)
