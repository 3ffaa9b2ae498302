"""Piecewise-linear pieces of features, which let a smooth kernel follow steps and bends of single columns.

A feature z with bin edges e_0 < … < e_k becomes k further features clip((z − e_i)/(e_{i+1} − e_i), 0, 1), centred and
divided by one scale, so that their total variance is 1 (Gorishniy, Rubachev and Babenko, "On embeddings for numerical
features in tabular deep learning", 2022). A linear function of the pieces is any continuous function of z that is
linear in each bin.
"""

from dataclasses import dataclass

import numpy as np

BINS = 8  # 4 and 16 are as good within noise
MAX_COLUMNS = 400  # of a table with its pieces
_MAX_FEW_VALUES = 10  # different values; features with no more have no pieces


@dataclass(frozen=True)
class Pieces:
    """Pieces of one feature."""

    column: int
    edges: np.ndarray  # (k + 1,), ascending
    mean: np.ndarray  # (k,)
    scale: float

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """Map values (n,) to pieces (n, k)."""
        return (_cut(z, self.edges) - self.mean) / self.scale

    def slopes(self, z: np.ndarray) -> np.ndarray:
        """Return the derivatives of the pieces by z, (n, k)."""
        lower, upper = self.edges[:-1], self.edges[1:]
        inside = (z[:, None] > lower) & (z[:, None] < upper)
        return inside / ((upper - lower) * self.scale)


def learn_pieces(Z: np.ndarray, weight: np.ndarray) -> list[Pieces]:
    """Cut each feature of rows Z (n, p) with weights (n,) at its quantiles into ``BINS`` bins.

    Features with few values have none, and there are none at all if the table would have more than ``MAX_COLUMNS``
    columns with them.
    """
    total = weight.sum()
    found = []
    for column in range(Z.shape[1]):
        values, codes = np.unique(Z[:, column].astype(np.float64), return_inverse=True)
        if len(values) <= _MAX_FEW_VALUES:
            continue
        shares = np.bincount(codes, weight) / total
        ranks = np.cumsum(shares) - shares / 2
        edges = np.interp(np.linspace(0, 1, BINS + 1), ranks, values)
        # Edges within rounding of each other would make a step of a piece.
        edges = edges[np.append(True, np.diff(edges) > 1e-6 * (edges[-1] - edges[0]))]
        cut = _cut(values, edges)
        mean = shares @ cut
        scale = float(np.sqrt(shares @ ((cut - mean) ** 2).sum(axis=1)))
        if len(edges) > 2 and scale > 0:
            found.append(Pieces(column, edges, mean, scale))
    return found if Z.shape[1] + count_pieces(found) <= MAX_COLUMNS else []


def count_pieces(pieces: list[Pieces]) -> int:
    """Return the number of features that ``append_pieces`` adds."""
    return sum(len(one.mean) for one in pieces)


def append_pieces(Z: np.ndarray, pieces: list[Pieces]) -> np.ndarray:
    """Append the pieces of features as further columns, in the precision of Z."""
    if not pieces:
        return Z
    return np.hstack([Z, *(one(Z[:, one.column]) for one in pieces)], dtype=Z.dtype, casting="same_kind")


def through_pieces(gradients: np.ndarray, Z: np.ndarray, pieces: list[Pieces]) -> np.ndarray:
    """Turn gradients by features and pieces, (n, p + k), into gradients by the features Z, (n, p)."""
    total = gradients[:, : Z.shape[1]].copy()
    start = Z.shape[1]
    for one in pieces:
        own = slice(start, start + len(one.mean))
        total[:, one.column] += np.einsum("ij,ij->i", gradients[:, own], one.slopes(Z[:, one.column]))
        start = own.stop
    return total


def _cut(z: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return np.clip((z[:, None] - edges[:-1]) / (edges[1:] - edges[:-1]), 0.0, 1.0)
