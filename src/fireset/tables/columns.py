"""Columns to numbers of size 1: standardized, and halfway to a normal distribution where a column takes many values.

A column of many values, such as an income, may be skewed, or have outliers that leave the rest of it in a corner.
Its ranks do not, but ranks alone lose distances. The mean of both, z = ½ (x − mean)/scale + ½ Φ⁻¹(rank), is better than
either on most tables (docs/accuracy.md has the figures). A column of few values is standardized alone.

Of a sparse table nothing may move 0, or all zeros would have to be stored: its columns are divided by the root mean
square of what is not 0 in them, clipped, and neither centred nor bent.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError
from fireset.sparse_rows import is_sparse

if TYPE_CHECKING:
    from scipy.sparse import csr_array

CLIP = 3.0  # standard deviations; after normalizing, an outlier in one column would make all others tiny
_FEW_VALUES = 10
_KNOTS = 128
_MAX_ROWS = 20_000  # that ranks are learned from
_MIN_SIZE = 1e-300  # a column of smaller numbers is constant
_OUTERMOST = 1e-3  # rank of the smallest value


@dataclass(frozen=True)
class BentColumn:
    """A column by number, and a map that is linear between knots."""

    column: int
    knots: np.ndarray  # (k,), ascending
    values: np.ndarray  # (k,), ascending

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.interp(x, self.knots, self.values)


@dataclass(frozen=True)
class ColumnMap:
    """x ↦ z, column by column: clip((x − mean)/scale, ±3), or the map of a ``BentColumn``."""

    mean: np.ndarray
    scale: np.ndarray
    bent: list[BentColumn] = field(default_factory=list)

    @classmethod
    def learn(cls, X: Any, weight: np.ndarray) -> "ColumnMap":
        """From (n, p) rows, dense or sparse, that count by ``weight``: rows of weight 2 count as two rows."""
        if is_sparse(X):
            return cls._learn_sparse(stored_once(X), weight)
        unit = _units(np.abs(X).max(axis=0))
        mean = np.average(X / unit, axis=0, weights=weight)
        scale = np.sqrt(np.average((X / unit - mean) ** 2, axis=0, weights=weight))
        # A column that varies by rounding only is constant; dividing by its scale would blow the rounding up.
        constant = scale <= 1e-12 * np.abs(mean)
        mean, scale = unit * mean, np.where(constant, 1.0, unit * scale)
        counted = np.flatnonzero(weight > 0)
        rows = counted[:: -(-len(counted) // _MAX_ROWS)]
        bent = [
            _bend(column, *_ranked(X[rows, column], weight[rows]), mean[column], scale[column])
            for column in range(X.shape[1])
        ]
        return cls(mean, scale, [one for one in bent if one is not None])

    @classmethod
    def _learn_sparse(cls, X: "csr_array", weight: np.ndarray) -> "ColumnMap":
        counts, (_, columns) = np.repeat(weight, np.diff(X.indptr)), X.shape  # pyright: ignore[reportGeneralTypeIssues]
        present = np.bincount(X.indices, counts, columns)
        largest = np.zeros(columns)
        np.maximum.at(largest, X.indices, np.abs(X.data))
        unit = _units(largest)
        squares = np.bincount(X.indices, counts * (X.data / unit[X.indices]) ** 2, columns)
        seen = (present > 0) & (squares > 0)
        return cls(np.zeros(columns), np.where(seen, unit * np.sqrt(squares / np.where(seen, present, 1.0)), 1.0))

    @property
    def keeps_zero(self) -> bool:
        """Whether a table may stay sparse."""
        return not self.bent and not self.mean.any()

    def __call__(self, X: Any) -> Any:
        """(n, p), float64; sparse if X is."""
        if is_sparse(X):
            if not self.keeps_zero:
                raise InputError(
                    "X is sparse, and the map was learned from dense rows, whose columns it centres; pass X.toarray(), "
                    "or fit on sparse rows"
                )
            X = stored_once(X)
            return _with_numbers(X, np.clip(X.data / self.scale[X.indices], -CLIP, CLIP))
        Z = np.clip((X - self.mean) / self.scale, -CLIP, CLIP)
        for bent in self.bent:
            Z[:, bent.column] = bent(X[:, bent.column])
        return Z


def _units(sizes: np.ndarray) -> np.ndarray:
    """Powers of two near ``sizes``, 1 for those that are next to 0: squares of what they divide do not overflow."""
    return np.where(sizes > _MIN_SIZE, np.exp2(np.clip(np.frexp(sizes)[1], -1000, 1000)), 1.0)


def stored_once(X: Any) -> "csr_array":
    """A sparse matrix as CSR rows in which no entry comes twice, and none is 0; X itself is left as it is."""
    from scipy.sparse import csr_array

    X = csr_array(X)  # on the same memory
    if not X.has_canonical_format or not X.data.all():
        X = X.copy()
        X.sum_duplicates()
        X.eliminate_zeros()
    return X


def scaled_columns(Z: Any, scales: np.ndarray) -> Any:
    """Z, dense or CSR rows, with column j times ``scales[j]``."""
    return _with_numbers(Z, Z.data * scales[Z.indices]) if is_sparse(Z) else Z * scales


def _with_numbers(X: "csr_array", numbers: np.ndarray) -> "csr_array":
    """Other numbers at the same places."""
    from scipy.sparse import csr_array

    return csr_array((numbers, X.indices, X.indptr), shape=X.shape)


def _ranked(x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The different values, ascending; what share of the weight each has; its rank, the share up to its middle."""
    values, codes = np.unique(x, return_inverse=True)
    shares = np.bincount(codes, weight) / weight.sum()
    return values, shares, np.cumsum(shares) - shares / 2


def _bend(
    column: int, values: np.ndarray, shares: np.ndarray, ranks: np.ndarray, mean: float, scale: float
) -> BentColumn | None:
    from scipy.special import ndtri

    if len(values) <= _FEW_VALUES:
        return None
    linear = np.clip((values - mean) / scale, -CLIP, CLIP)
    bent = 0.5 * (linear + ndtri(np.clip(ranks, _OUTERMOST, 1 - _OUTERMOST)))
    centre = float(shares @ bent)
    spread = float(np.sqrt(shares @ (bent - centre) ** 2))
    chosen = np.unique(np.searchsorted(ranks, np.linspace(ranks[0], ranks[-1], _KNOTS)).clip(0, len(values) - 1))
    knots, z = values[chosen], (bent[chosen] - centre) / spread
    # Beyond what was seen the linear half goes on, to where it is clipped.
    ends = mean - CLIP * scale, mean + CLIP * scale
    slope = 0.5 / (scale * spread)
    if ends[0] < knots[0]:
        z, knots = np.append(z[0] - slope * (knots[0] - ends[0]), z), np.append(ends[0], knots)
    if ends[1] > knots[-1]:
        z, knots = np.append(z, z[-1] + slope * (ends[1] - knots[-1])), np.append(knots, ends[1])
    return BentColumn(column, knots, np.clip(z, -CLIP, CLIP))
