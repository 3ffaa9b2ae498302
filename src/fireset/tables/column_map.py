"""The column map: features are standardized, and those with many values moved halfway to a normal distribution.

A feature with many values, such as an income, may be skewed or have outliers. Its normal scores Φ⁻¹(rank) are not, but
ranks lose distances. The mean of both, z = ½ (x − mean)/scale + ½ Φ⁻¹(rank), is better than either on most tables
(docs/accuracy.md has the figures). It is stored as a piecewise linear quantile map. Features with few values are
standardized only.

The squared norm (``squared_norm.py``) and pieces of features (``pieces.py``) may follow as further columns.

The map of sparse rows keeps 0, so that rows stay sparse: features are divided by the root mean square of their nonzero
values and clipped, but neither centred nor quantile-mapped.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.parallel import parallel_map
from fireset.sparse_rows import is_sparse
from fireset.tables.pieces import Pieces, append_pieces, count_pieces
from fireset.tables.squared_norm import SquaredNorm

if TYPE_CHECKING:
    from scipy.sparse import csr_array

CLIP = 3.0  # standard deviations; rows are normalized, so that an outlier in one feature would shrink all others
_MAX_LINEAR_VALUES = 10  # different values; features with more have a quantile map
_MAX_KNOTS = 128
_MIN_PARALLEL_ROWS = 10_000  # to map columns on several cores
_MAX_RANK_ROWS = 20_000  # from which ranks are learned
_MIN_MAGNITUDE = 1e-300  # features of smaller numbers are constant
_MAX_CONSTANT_SPREAD = 1e-12  # relative to the mean; a smaller spread is rounding
_MIN_RANK = 1e-3  # of the smallest value; its normal score is finite


@dataclass(frozen=True)
class QuantileMap:
    """A piecewise linear map of one feature, given by its values at knots."""

    column: int
    knots: np.ndarray  # (k,), ascending
    values: np.ndarray  # (k,), ascending

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.interp(x, self.knots, self.values)


@dataclass(frozen=True)
class ColumnMap:
    """Map x ↦ z, feature by feature: clip((x − mean)/scale, ±3), or a ``QuantileMap``. Pieces of z are appended."""

    mean: np.ndarray
    scale: np.ndarray
    quantile_maps: list[QuantileMap] = field(default_factory=list)
    pieces: list[Pieces] = field(default_factory=list)
    squared_norm: SquaredNorm | None = None

    @classmethod
    def learn(cls, X: Any, weight: np.ndarray) -> "ColumnMap":
        """Learn from (n, p) rows, dense or sparse, with weights (n,): a row of weight 2 counts as two rows."""
        if is_sparse(X):
            return cls._learn_sparse(canonical_csr(X), weight)
        unit = _units(np.abs(X).max(axis=0))
        mean = np.average(X / unit, axis=0, weights=weight)
        scale = np.sqrt(np.average((X / unit - mean) ** 2, axis=0, weights=weight))
        # Dividing by a scale that is rounding would amplify the rounding.
        constant = scale <= _MAX_CONSTANT_SPREAD * np.abs(mean)
        mean, scale = unit * mean, np.where(constant, 1.0, unit * scale)
        counted = np.flatnonzero(weight > 0)
        rows = counted[:: -(-len(counted) // _MAX_RANK_ROWS)]
        maps = [
            _quantile_map(column, *_ranked(X[rows, column], weight[rows]), mean[column], scale[column])
            for column in range(X.shape[1])
        ]
        return cls(mean, scale, [one for one in maps if one is not None])

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
        """Whether 0 is mapped to 0, so that rows stay sparse."""
        return not self.quantile_maps and not self.mean.any() and not self.pieces and self.squared_norm is None

    @property
    def n_outputs(self) -> int:
        """Number of columns of z: features, squared norm and pieces."""
        return len(self.mean) + (self.squared_norm is not None) + count_pieces(self.pieces)

    def __call__(self, X: Any) -> Any:
        """Map (n, p) rows to (n, ``n_outputs``); float64, and sparse if X is."""
        if is_sparse(X):
            if not self.keeps_zero:
                raise InputError(
                    "X is sparse, but the model was fitted on dense rows, whose columns it centres; pass X.toarray(), "
                    "or fit on sparse rows"
                )
            X = canonical_csr(X)
            return _with_data(X, np.clip(X.data / self.scale[X.indices], -CLIP, CLIP))
        Z = np.clip((X - self.mean) / self.scale, -CLIP, CLIP)

        def fill(quantile_map: QuantileMap) -> None:
            Z[:, quantile_map.column] = quantile_map(X[:, quantile_map.column])

        if len(X) < _MIN_PARALLEL_ROWS:
            for quantile_map in self.quantile_maps:
                fill(quantile_map)
        else:
            parallel_map(fill, self.quantile_maps)
        return self.extend(Z)

    def extend(self, Z: Any) -> Any:
        """Append squared norm and pieces to standardized features."""
        return append_pieces(Z if self.squared_norm is None else self.squared_norm.append_to(Z), self.pieces)


def _units(sizes: np.ndarray) -> np.ndarray:
    """Return powers of two near ``sizes``, and 1 for sizes near 0.

    Squares of numbers do not overflow after division by these.
    """
    return np.where(sizes > _MIN_MAGNITUDE, np.exp2(np.clip(np.frexp(sizes)[1], -1000, 1000)), 1.0)


def canonical_csr(X: Any) -> "csr_array":
    """Convert a sparse matrix to CSR without duplicate entries and stored zeros. X itself is unchanged."""
    from scipy.sparse import csr_array

    X = csr_array(X)  # shares memory
    if not X.has_canonical_format or not X.data.all():
        X = X.copy()
        X.sum_duplicates()
        X.eliminate_zeros()
    return X


def scaled_columns(Z: Any, scales: np.ndarray) -> Any:
    """Multiply column j of Z, dense or CSR, by ``scales[j]``."""
    return _with_data(Z, Z.data * scales[Z.indices]) if is_sparse(Z) else Z * scales


def _with_data(X: "csr_array", data: np.ndarray) -> "csr_array":
    """Replace the stored numbers of a CSR array."""
    from scipy.sparse import csr_array

    return csr_array((data, X.indices, X.indptr), shape=X.shape)


def _ranked(x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the different values, ascending, their fractions of the weight, and their ranks.

    The rank of a value is the fraction below it plus half of its own.
    """
    values, codes = np.unique(x, return_inverse=True)
    shares = np.bincount(codes, weight) / weight.sum()
    return values, shares, np.cumsum(shares) - shares / 2


def _quantile_map(
    column: int, values: np.ndarray, shares: np.ndarray, ranks: np.ndarray, mean: float, scale: float
) -> QuantileMap | None:
    """Learn the mean of standardized value and normal score; None for features with few values."""
    from scipy.special import ndtri

    if len(values) <= _MAX_LINEAR_VALUES:
        return None
    linear = np.clip((values - mean) / scale, -CLIP, CLIP)
    mapped = 0.5 * (linear + ndtri(np.clip(ranks, _MIN_RANK, 1 - _MIN_RANK)))
    centre = float(shares @ mapped)
    spread = float(np.sqrt(shares @ (mapped - centre) ** 2))
    chosen = np.unique(np.searchsorted(ranks, np.linspace(ranks[0], ranks[-1], _MAX_KNOTS)).clip(0, len(values) - 1))
    knots, z = values[chosen], (mapped[chosen] - centre) / spread
    # Beyond the training values the linear half continues up to its clipping.
    ends = mean - CLIP * scale, mean + CLIP * scale
    slope = 0.5 / (scale * spread)
    if ends[0] < knots[0]:
        z, knots = np.append(z[0] - slope * (knots[0] - ends[0]), z), np.append(ends[0], knots)
    if ends[1] > knots[-1]:
        z, knots = np.append(z, z[-1] + slope * (ends[1] - knots[-1])), np.append(knots, ends[1])
    return QuantileMap(column, knots, np.clip(z, -CLIP, CLIP))
