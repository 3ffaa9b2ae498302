"""Rows of which only what is not 0 is stored, for all that training asks of a matrix of rows.

Wherever rows are dense they are a NumPy matrix. ``SparseRows`` can be asked the same: ``len``, ``shape``, ``X[some]``,
``W @ X.T``, ``X @ V``, ``P @ X``. Nothing here makes an n × d matrix.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fireset._util.errors import InputError

if TYPE_CHECKING:
    from fireset.kernels.sparse_rows import RowArrays

_MAX_COLUMNS = 2**31 - 1  # columns are kept in 32 bits


class SparseRows:
    """(n, d) rows in the CSR layout: row i holds ``numbers[q]`` in column ``indices[q]`` for q from ``indptr[i]`` on.

    Columns ascend within a row, and none comes twice: the order in which ``deciding_dot`` adds up, so that sparse rows
    have the fire sets of the same rows with their zeros, to the last bit.
    """

    __array_ufunc__ = None  # so that NumPy leaves ``W @ X.T`` and ``P @ X`` to us

    def __init__(self, indptr: np.ndarray, indices: np.ndarray, numbers: np.ndarray, columns: int):
        self.indptr, self.indices, self.numbers = indptr, indices, numbers
        self.shape = (len(indptr) - 1, columns)

    @classmethod
    def of(cls, X: Any, dtype, name: str = "X") -> "SparseRows":
        """From any sparse matrix or array of SciPy, which is left as it is; entries given twice are added up."""
        if X.ndim != 2 or X.shape[1] > _MAX_COLUMNS:
            raise InputError(f"{name} must be a matrix of at most {_MAX_COLUMNS:,} columns, got shape {X.shape}")
        if X.dtype.kind not in "biuf":
            raise InputError(f"{name} must be a matrix of numbers, got {X.dtype}")
        X = X.tocsr()
        try:
            X.check_format(full_check=True)
        except ValueError as error:
            raise InputError(f"{name} is no proper CSR matrix: {error}") from None
        indptr, indices, numbers = _canonical(X.indptr, X.indices, X.data)
        return cls(_owned(indptr, np.int64), _owned(indices, np.int32), _owned(numbers, dtype), X.shape[1])

    @property
    def dtype(self) -> np.dtype:
        return self.numbers.dtype

    @property
    def stored(self) -> int:
        """Entries that are stored, of all rows."""
        return int(self.indptr[-1] - self.indptr[0])

    @property
    def nbytes(self) -> int:
        return self.stored * (4 + self.dtype.itemsize) + self.indptr.nbytes

    @property
    def longest(self) -> int:
        """Stored entries of the row that has most."""
        return int(np.diff(self.indptr).max(initial=0))

    @property
    def arrays(self) -> "RowArrays":
        """The rows as the kernels take them."""
        from fireset.kernels.sparse_rows import RowArrays

        return RowArrays(self.indptr, self.indices, self.numbers, self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key) -> "SparseRows":
        """Some rows, by slice, numbers or mask; a slice is on the same memory."""
        if isinstance(key, slice):
            lo, hi, step = key.indices(len(self))
            if step == 1:
                return SparseRows(self.indptr[lo : max(lo, hi) + 1], self.indices, self.numbers, self.shape[1])
        rows = np.arange(len(self))[key]
        lengths = np.diff(self.indptr)[rows]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self.indptr[rows] - indptr[:-1], lengths) + np.arange(indptr[-1])
        return SparseRows(indptr, self.indices[places], self.numbers[places], self.shape[1])

    def __array__(self, dtype=None, copy=None):
        raise InputError("sparse rows cannot be used here; pass X.toarray() if it fits into memory")

    def astype(self, dtype, copy: bool = True) -> "SparseRows":
        """In another precision."""
        return SparseRows(self.indptr, self.indices, self.numbers.astype(dtype, copy=copy), self.shape[1])

    def norms(self) -> np.ndarray:
        """Euclidean norms of the rows, in float64."""
        some = slice(self.indptr[0], self.indptr[-1])
        sizes = np.abs(self.numbers[some].astype(np.float64))
        largest = sizes.max(initial=0.0) or 1.0  # so that squares neither overflow nor vanish, but for tiny ones
        rows = np.repeat(np.arange(len(self)), np.diff(self.indptr))
        return largest * np.sqrt(np.bincount(rows, (sizes / largest) ** 2, len(self)))

    @property
    def T(self) -> "TransposedRows":  # noqa: N802 - NumPy's name
        return TransposedRows(self)

    def __matmul__(self, other: "np.ndarray | TransposedRows") -> np.ndarray:
        """X @ V for V (d, k), or X @ Y.T for sparse rows Y; a dense matrix."""
        if isinstance(other, TransposedRows):
            return self._multiplied(self.arrays, other.rows)
        return (other.T @ self.T).T

    def __rmatmul__(self, factors: np.ndarray) -> np.ndarray:
        """P @ X for P (k, n), a dense matrix (k, d); zeros of P cost a look."""
        from fireset.kernels.sparse_rows import add_weighted_rows

        totals = np.zeros((len(factors), self.shape[1]), self.dtype)
        add_weighted_rows(np.ascontiguousarray(factors, self.dtype), self.arrays, totals)
        return totals

    @staticmethod
    def _multiplied(left, rows: "SparseRows") -> np.ndarray:
        from fireset.kernels.sparse_rows import RowArrays, multiply_rows

        count = left.shape[0]
        products = np.empty((count, len(rows)), rows.dtype)
        if not isinstance(left, RowArrays):
            left = np.ascontiguousarray(left, rows.dtype)
        multiply_rows(left, rows.arrays, products)
        return products


class TransposedRows:
    """Xᵀ, to be multiplied by a matrix: ``W @ X.T`` (k, n)."""

    __array_ufunc__ = None

    def __init__(self, rows: SparseRows):
        self.rows = rows

    def __rmatmul__(self, W: np.ndarray) -> np.ndarray:
        return SparseRows._multiplied(W, self.rows)


Rows: TypeAlias = np.ndarray | SparseRows


def is_sparse(X: Any) -> bool:
    """Whether this is a sparse matrix of SciPy, or rows that were one, without importing SciPy."""
    return isinstance(X, SparseRows) or hasattr(X, "tocsr")


def kernel_rows(X: Rows) -> "np.ndarray | RowArrays":
    """Rows as kernels take them that are compiled for both kinds."""
    return X.arrays if isinstance(X, SparseRows) else X


def longest_sum(X: Rows) -> int:
    """Terms that rounding can touch in an inner product with a row: a term that is 0 adds nothing, and no error."""
    return X.longest if isinstance(X, SparseRows) else X.shape[1]


def entries_per_row(X: Rows) -> int:
    """What an inner product with a row costs, in the mean."""
    return -(-X.stored // max(1, len(X))) if isinstance(X, SparseRows) else X.shape[1]


def stacked(above: Rows, below: Rows) -> Rows:
    """The rows of both, sparse if the first ones are."""
    if isinstance(above, np.ndarray) and isinstance(below, np.ndarray):
        return np.concatenate([above, below])
    if not (isinstance(above, SparseRows) and isinstance(below, SparseRows)):
        raise InputError("training rows and validation rows must both be sparse, or both be dense")
    parts = above[np.arange(len(above))], below[np.arange(len(below))]  # without what belongs to other rows
    indptr = np.concatenate([parts[0].indptr, parts[0].stored + parts[1].indptr[1:]])
    indices, numbers = (np.concatenate([getattr(part, name) for part in parts]) for name in ("indices", "numbers"))
    return SparseRows(indptr, indices, numbers, above.shape[1])


def same_rows(first: Rows, second: Rows) -> bool:
    """Whether both hold the same numbers, in the same form."""
    if isinstance(first, SparseRows) and isinstance(second, SparseRows):
        pairs = zip(first.arrays[:3], second.arrays[:3], strict=True)
        return first.shape == second.shape and all(np.array_equal(*pair) for pair in pairs)
    return isinstance(first, np.ndarray) and isinstance(second, np.ndarray) and np.array_equal(first, second)


def first_not_finite(X: Rows) -> tuple[int, int, float] | None:
    """Row, column and value of the first entry that is no number; None if all are."""
    if isinstance(X, np.ndarray):
        if np.isfinite(X).all():
            return None
        row, column = np.argwhere(~np.isfinite(X))[0]
        return int(row), int(column), float(X[row, column])
    wrong = X.indptr[0] + np.flatnonzero(~np.isfinite(X.numbers[X.indptr[0] : X.indptr[-1]]))
    if not len(wrong):
        return None
    row = int(np.searchsorted(X.indptr, wrong[0], side="right")) - 1
    return row, int(X.indices[wrong[0]]), float(X.numbers[wrong[0]])


def _owned(array: np.ndarray, dtype) -> np.ndarray:
    return np.require(array, dtype, ["C", "A", "W"])  # a read-only array would be another type to the kernels


def _canonical(indptr: np.ndarray, indices: np.ndarray, numbers: np.ndarray):
    """Columns ascending, each once, without zeros; the arrays themselves where they are so.

    What is given twice is added up in the order given, as ``toarray`` does.
    """
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    indices, numbers = indices[: len(rows)], numbers[: len(rows)]  # SciPy allows arrays to be longer
    ascends = (np.diff(rows) > 0) | (np.diff(indices) > 0)
    if ascends.all() and numbers.all():
        return indptr, indices, numbers
    order = np.lexsort((indices, rows))  # stable
    rows, indices, numbers = rows[order], indices[order], numbers[order]
    is_first = np.concatenate([[True], (np.diff(rows) > 0) | (np.diff(indices) > 0)])[: len(rows)]
    totals = np.zeros(np.count_nonzero(is_first), numbers.dtype)
    np.add.at(totals, np.cumsum(is_first) - 1, numbers)
    kept = totals != 0
    lengths = np.bincount(rows[is_first][kept], minlength=len(indptr) - 1)
    return np.concatenate([[0], np.cumsum(lengths)]), indices[is_first][kept], totals[kept]
