"""Sparse rows, with the operations of a NumPy matrix that training uses.

Dense rows are a NumPy matrix. ``SparseRows`` supports ``len``, ``shape``, ``X[some]``, ``W @ X.T``, ``X @ V`` and
``P @ X``. No operation allocates an n × d matrix.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fireset._util.errors import InputError

if TYPE_CHECKING:
    from fireset.kernels.sparse_rows import RowArrays

_MAX_COLUMNS = 2**31 - 1  # column indices are int32
_CHECKED_ROWS = 1 << 16  # of a dense matrix at a time


class SparseRows:
    """Rows (n, d) in CSR layout: row i has ``values[q]`` in column ``indices[q]`` for indptr[i] ≤ q < indptr[i+1].

    Columns are distinct and ascend within a row. This is the order in which ``deciding_dot`` adds, so that sparse rows
    have exactly the fire sets of the equal dense rows.
    """

    __array_ufunc__ = None  # so that NumPy calls ``__rmatmul__`` for ``W @ X.T`` and ``P @ X``

    def __init__(self, indptr: np.ndarray, indices: np.ndarray, values: np.ndarray, columns: int):
        self.indptr, self.indices, self.values = indptr, indices, values
        self.shape = (len(indptr) - 1, columns)

    @classmethod
    def from_scipy(cls, X: Any, dtype, name: str = "X") -> "SparseRows":
        """Convert a sparse matrix or array of SciPy, which is not changed. Duplicate entries are added."""
        if X.ndim != 2 or X.shape[1] > _MAX_COLUMNS:
            raise InputError(f"{name} must be a matrix of at most {_MAX_COLUMNS:,} columns, got shape {X.shape}")
        if X.dtype.kind not in "biuf":
            raise InputError(f"{name} must be a matrix of numbers, got {X.dtype}")
        X = X.tocsr()
        try:
            X.check_format(full_check=True)
        except ValueError as error:
            raise InputError(f"{name} must be a valid CSR matrix: {error}") from None
        indptr, indices, values = _canonical(X.indptr, X.indices, X.data)
        return cls(_writable(indptr, np.int64), _writable(indices, np.int32), _writable(values, dtype), X.shape[1])

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return int(self.indptr[-1] - self.indptr[0])

    @property
    def nbytes(self) -> int:
        return self.nnz * (4 + self.dtype.itemsize) + self.indptr.nbytes

    @property
    def max_row_nnz(self) -> int:
        """Largest number of stored entries of a row."""
        return int(np.diff(self.indptr).max(initial=0))

    @property
    def arrays(self) -> "RowArrays":
        """The rows in the form that the kernels take."""
        from fireset.kernels.sparse_rows import RowArrays

        return RowArrays(self.indptr, self.indices, self.values, self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key) -> "SparseRows":
        """Select rows by slice, numbers or mask. A slice is a view."""
        if isinstance(key, slice):
            lo, hi, step = key.indices(len(self))
            if step == 1:
                return SparseRows(self.indptr[lo : max(lo, hi) + 1], self.indices, self.values, self.shape[1])
        rows = np.arange(len(self))[key]
        lengths = np.diff(self.indptr)[rows]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        positions = np.repeat(self.indptr[rows] - indptr[:-1], lengths) + np.arange(indptr[-1])
        return SparseRows(indptr, self.indices[positions], self.values[positions], self.shape[1])

    def __array__(self, dtype=None, copy=None):
        raise InputError("X must be dense here, got sparse rows; pass X.toarray() if it fits into memory")

    def astype(self, dtype, copy: bool = True) -> "SparseRows":
        """Convert to another precision."""
        return SparseRows(self.indptr, self.indices, self.values.astype(dtype, copy=copy), self.shape[1])

    def norms(self) -> np.ndarray:
        """Euclidean norms of the rows, in float64."""
        some = slice(self.indptr[0], self.indptr[-1])
        sizes = np.abs(self.values[some].astype(np.float64))
        largest = sizes.max(initial=0.0) or 1.0  # scaled, so that squares do not overflow and only tiny ones underflow
        rows = np.repeat(np.arange(len(self)), np.diff(self.indptr))
        return largest * np.sqrt(np.bincount(rows, (sizes / largest) ** 2, len(self)))

    @property
    def T(self) -> "TransposedRows":  # noqa: N802 - NumPy's name
        return TransposedRows(self)

    def __matmul__(self, other: "np.ndarray | TransposedRows") -> np.ndarray:
        """Return X @ V for V (d, k), or X @ Y.T for sparse rows Y, as a dense matrix."""
        if isinstance(other, TransposedRows):
            return self._multiplied(self.arrays, other.rows)
        return (other.T @ self.T).T

    def __rmatmul__(self, factors: np.ndarray) -> np.ndarray:
        """Return P @ X for P (k, n), a dense matrix (k, d). Zeros of P are skipped."""
        from fireset.kernels.sparse_rows import add_weighted_rows

        totals = np.zeros((len(factors), self.shape[1]), self.dtype)
        add_weighted_rows(np.ascontiguousarray(factors, self.dtype), self.arrays, totals)
        return totals

    @staticmethod
    def _multiplied(left, rows: "SparseRows") -> np.ndarray:
        """Return left @ rowsᵀ for a matrix or ``RowArrays``."""
        from fireset.kernels.sparse_rows import RowArrays, multiply_rows

        count = left.shape[0]
        products = np.empty((count, len(rows)), rows.dtype)
        if not isinstance(left, RowArrays):
            left = np.ascontiguousarray(left, rows.dtype)
        multiply_rows(left, rows.arrays, products)
        return products


class TransposedRows:
    """Xᵀ as a factor of ``W @ X.T`` (k, n)."""

    __array_ufunc__ = None

    def __init__(self, rows: SparseRows):
        self.rows = rows

    def __rmatmul__(self, W: np.ndarray) -> np.ndarray:
        return SparseRows._multiplied(W, self.rows)


Rows: TypeAlias = np.ndarray | SparseRows


def is_sparse(X: Any) -> bool:
    """Return whether X is ``SparseRows`` or a sparse matrix of SciPy, without importing SciPy."""
    return isinstance(X, SparseRows) or hasattr(X, "tocsr")


def kernel_rows(X: Rows) -> "np.ndarray | RowArrays":
    """Return rows in the form of kernels that are compiled for dense and sparse rows."""
    return X.arrays if isinstance(X, SparseRows) else X


def max_terms(X: Rows) -> int:
    """Return the largest number of terms of an inner product with a row. Terms that are 0 have no rounding error."""
    return X.max_row_nnz if isinstance(X, SparseRows) else X.shape[1]


def entries_per_row(X: Rows) -> int:
    """Return the average number of entries of a row, rounded up: the cost of an inner product."""
    return -(-X.nnz // max(1, len(X))) if isinstance(X, SparseRows) else X.shape[1]


def stack_rows(above: Rows, below: Rows) -> Rows:
    """Concatenate rows; both must be sparse or both dense."""
    if isinstance(above, np.ndarray) and isinstance(below, np.ndarray):
        return np.concatenate([above, below])
    if not (isinstance(above, SparseRows) and isinstance(below, SparseRows)):
        raise InputError("training rows and validation rows must both be sparse, or both be dense")
    parts = above[np.arange(len(above))], below[np.arange(len(below))]  # copies without entries of other rows
    indptr = np.concatenate([parts[0].indptr, parts[0].nnz + parts[1].indptr[1:]])
    indices, values = (np.concatenate([getattr(part, name) for part in parts]) for name in ("indices", "values"))
    return SparseRows(indptr, indices, values, above.shape[1])


def equal_rows(first: Rows, second: Rows) -> bool:
    """Return whether both have equal values, and both are sparse or both dense."""
    if isinstance(first, SparseRows) and isinstance(second, SparseRows):
        pairs = zip(first.arrays[:3], second.arrays[:3], strict=True)
        return first.shape == second.shape and all(np.array_equal(*pair) for pair in pairs)
    return isinstance(first, np.ndarray) and isinstance(second, np.ndarray) and np.array_equal(first, second)


def first_nonfinite(X: Rows) -> tuple[int, int, float] | None:
    """Return row, column and value of the first entry that is not finite, or None."""
    if isinstance(X, np.ndarray):
        blocks = range(0, len(X), _CHECKED_ROWS)
        if all(np.isfinite(X[lo : lo + _CHECKED_ROWS]).all() for lo in blocks):
            return None
        row, column = np.argwhere(~np.isfinite(X))[0]
        return int(row), int(column), float(X[row, column])
    wrong = X.indptr[0] + np.flatnonzero(~np.isfinite(X.values[X.indptr[0] : X.indptr[-1]]))
    if not len(wrong):
        return None
    row = int(np.searchsorted(X.indptr, wrong[0], side="right")) - 1
    return row, int(X.indices[wrong[0]]), float(X.values[wrong[0]])


def _writable(array: np.ndarray, dtype) -> np.ndarray:
    return np.require(array, dtype, ["C", "A", "W"])  # a read-only array has another type in numba


def _canonical(indptr: np.ndarray, indices: np.ndarray, values: np.ndarray):
    """Return CSR arrays with distinct ascending columns and no zeros; the arguments themselves if they are such.

    Duplicates are added in the given order, as ``toarray`` does.
    """
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    indices, values = indices[: len(rows)], values[: len(rows)]  # SciPy allows longer arrays
    ascends = (np.diff(rows) > 0) | (np.diff(indices) > 0)
    if ascends.all() and values.all():
        return indptr, indices, values
    order = np.lexsort((indices, rows))  # stable
    rows, indices, values = rows[order], indices[order], values[order]
    is_first = np.concatenate([[True], (np.diff(rows) > 0) | (np.diff(indices) > 0)])[: len(rows)]
    totals = np.zeros(np.count_nonzero(is_first), values.dtype)
    np.add.at(totals, np.cumsum(is_first) - 1, values)
    kept = totals != 0
    lengths = np.bincount(rows[is_first][kept], minlength=len(indptr) - 1)
    return np.concatenate([[0], np.cumsum(lengths)]), indices[is_first][kept], totals[kept]
