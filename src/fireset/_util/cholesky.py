"""Cholesky factorization on the threads of ``parallel.py``, with one BLAS thread each.

OpenBLAS threads wait for each other by spinning: on a busy machine a factorization of 1,000 rows takes a second instead
of 13 ms. SciPy's LAPACK functions hold the GIL, so that Python threads cannot share the work. The functions below call
the routines that SciPy exports for Cython through ``ctypes``, which releases the GIL, and divide one factorization into
blocks. The blocks depend on the size only, so the result has the same bits for any number of threads.

All matrices are C-contiguous float32 or float64. Only the lower triangle is read; parts of the upper one are
overwritten.
"""

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from fireset._util.parallel import one_blas_thread, parallel_map

_BLOCK = 256  # rows of a diagonal block; blocks of 128 to 512 take the same time within 10 % at 2,500 rows
_MAX_ONE_BLOCK = 1024  # matrices of up to this size are one block: 30 % less processor time, on one thread
_JITTER_GROWTH = 10.0
_INVERSE_BLOCK = 96  # columns of the inverse that one task computes
_PREFIX = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}


@cache
def _routine(module: str, name: str, arguments: int) -> Any:
    """Return a BLAS or LAPACK routine of SciPy as a function of ``arguments`` pointers."""
    from importlib import import_module

    capsule = import_module(f"scipy.linalg.cython_{module}").__pyx_capi__[name]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    pointer = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(pointer)


def _letter(text: bytes) -> Any:
    return ctypes.byref(ctypes.c_char(text))


def _integer(value: int) -> Any:
    return ctypes.byref(ctypes.c_int(value))


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _leading(array: np.ndarray) -> int:
    return array.strides[0] // array.itemsize


def _factor_block(block: np.ndarray) -> bool:
    """Replace the lower triangle of ``block`` (k, k) by its Cholesky factor; False if it is not positive definite."""
    failed = ctypes.c_int(0)
    # Fortran stores columns: the lower triangle of a C array is the upper triangle of Fortran's.
    potrf = _routine("lapack", _PREFIX[block.dtype] + "potrf", 5)
    potrf(_letter(b"U"), _integer(len(block)), _pointer(block), _integer(_leading(block)), ctypes.byref(failed))
    return failed.value == 0


def _solve_triangle(side: bytes, transposed: bytes, factor: np.ndarray, right: np.ndarray, shape: tuple) -> None:
    """Call BLAS' trsm, in place in ``right``; ``shape`` is that of ``right`` for Fortran."""
    trsm = _routine("blas", _PREFIX[factor.dtype] + "trsm", 11)
    one = np.ones(1, factor.dtype)
    trsm(
        _letter(side),
        _letter(b"U"),
        _letter(transposed),
        _letter(b"N"),
        _integer(shape[0]),
        _integer(shape[1]),
        _pointer(one),
        _pointer(factor),
        _integer(_leading(factor)),
        _pointer(right),
        _integer(_leading(right)),
    )


def _subtract_product(target: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """Subtract left rightᵀ from ``target`` in place, without a temporary array."""
    gemm = _routine("blas", _PREFIX[target.dtype] + "gemm", 13)
    scales = np.array([-1, 1], target.dtype)
    gemm(
        _letter(b"T"),
        _letter(b"N"),
        _integer(len(right)),
        _integer(len(left)),
        _integer(left.shape[1]),
        _pointer(scales[:1]),
        _pointer(right),
        _integer(_leading(right)),
        _pointer(left),
        _integer(_leading(left)),
        _pointer(scales[1:]),
        _pointer(target),
        _integer(_leading(target)),
    )


def cholesky(A: np.ndarray) -> bool:
    """Replace the lower triangle of a symmetric A (n, n) by L with L Lᵀ = A.

    Returns
    -------
    bool
        False if A is not positive definite within rounding, or not finite; A is then destroyed.

    Notes
    -----
    Cost n³/3. Beyond ``_MAX_ONE_BLOCK`` rows on all threads: block columns one after the other, each followed by an
    update of the rest.
    """
    n = len(A)
    with one_blas_thread():
        if n <= _MAX_ONE_BLOCK:
            return n == 0 or (_factor_block(A) and bool(np.isfinite(A.diagonal()).all()))
        for lo in range(0, n, _BLOCK):
            hi = min(lo + _BLOCK, n)
            corner = A[lo:hi, lo:hi]
            if not _factor_block(corner):
                return False
            rows = [(first, min(first + _BLOCK, n)) for first in range(hi, n, _BLOCK)]

            def solve(span: tuple[int, int], lo: int = lo, hi: int = hi, corner: np.ndarray = corner) -> None:
                # P Lᵀ = A for the rows below the corner; for Fortran L Pᵀ = Aᵀ with L the transpose of what is stored.
                _solve_triangle(b"L", b"T", corner, A[slice(*span), lo:hi], (hi - lo, span[1] - span[0]))

            def update(span: tuple[int, int], lo: int = lo, hi: int = hi) -> None:
                first, last = span
                _subtract_product(A[first:last, hi:last], A[first:last, lo:hi], A[hi:last, lo:hi])

            parallel_map(solve, rows)
            parallel_map(update, rows[::-1])  # the longest first
    return bool(np.isfinite(A.diagonal()).all())


def cholesky_with_jitter(make: Callable[[], np.ndarray]) -> tuple[np.ndarray, float]:
    """Factor a matrix that is positive semi-definite but for rounding.

    Parameters
    ----------
    make : callable
        Returns the matrix as a new array. It is called for each attempt, since a factorization overwrites its input.

    Returns
    -------
    L, jitter
        L Lᵀ = make() + jitter·I. The jitter is 0, or the first of a growing sequence for which the factor exists.

    Raises
    ------
    FloatingPointError
        If entries are not finite.

    Notes
    -----
    Cost n³/3 for each attempt. A matrix that is indefinite due to rounding takes two or three.
    """
    for jitter in _jitters(make):
        matrix = make()
        matrix[np.diag_indices(len(matrix))] += matrix.dtype.type(jitter)
        if cholesky(matrix):
            return matrix, jitter
    raise FloatingPointError("a diagonally dominant matrix has no Cholesky factor")


def _jitters(make: Callable[[], np.ndarray]) -> Iterator[float]:
    """Yield 0, then jitters from rounding level on, each ten times larger, until the matrix is diagonally dominant."""
    yield 0.0
    matrix = make()
    sizes = np.abs(np.tril(matrix)).astype(np.float64, copy=False)
    largest = 2.0 * float((sizes.sum(axis=0) + sizes.sum(axis=1) - sizes.diagonal()).max())
    if not np.isfinite(largest):
        raise FloatingPointError("matrix must be finite to be factored")
    jitter = float(np.finfo(matrix.dtype).eps) * max(float(sizes.diagonal().mean()), largest / len(matrix))
    del matrix, sizes  # the caller makes the matrix again
    while 0.0 < jitter < largest:
        yield jitter
        jitter *= _JITTER_GROWTH
    yield largest or 1.0


def cholesky_solve(L: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve L Lᵀ Z = right for right (n, c). Cost 2 n² c."""
    n = len(L)
    # Rows of the transpose are right-hand sides in Fortran's order, and are independent of each other.
    columns = np.array(right.T, L.dtype, order="C")
    potrs = _routine("lapack", _PREFIX[L.dtype] + "potrs", 8)

    def solve(span: tuple[int, int]) -> None:
        some, failed = columns[slice(*span)], ctypes.c_int(0)
        potrs(
            _letter(b"U"),
            _integer(n),
            _integer(len(some)),
            _pointer(L),
            _integer(_leading(L)),
            _pointer(some),
            _integer(n),
            ctypes.byref(failed),
        )

    if not columns.size:
        return columns.T
    half = -(-len(columns) // 2) if len(columns) > 8 else len(columns)
    spans = [(lo, min(lo + half, len(columns))) for lo in range(0, len(columns), half)]
    parallel_map(solve, spans, uses_blas=True)
    return columns.T


def inverse_diagonal(L: np.ndarray, first: int = 0) -> np.ndarray:
    """Compute the diagonal of (L Lᵀ)⁻¹ from row ``first`` on, (k,), float64: squared norms of the columns of L⁻¹.

    Column i of L⁻¹ is 0 above row i, so that the cost is k³/3 for the last k rows.
    """
    L = L[first:, first:]
    n = len(L)
    found = np.empty(n)

    def columns(lo: int) -> None:
        hi = min(lo + _INVERSE_BLOCK, n)
        inverse = np.zeros((n - lo, hi - lo), L.dtype)  # rows above lo are 0
        inverse[np.arange(hi - lo), np.arange(hi - lo)] = 1
        # L X = E; for Fortran Xᵀ Lᵀ = Eᵀ, with Lᵀ as stored.
        _solve_triangle(b"R", b"N", L[lo:, lo:], inverse, (hi - lo, n - lo))
        found[lo:hi] = np.einsum("ij,ij->j", inverse, inverse, dtype=np.float64)

    parallel_map(columns, range(0, n, _INVERSE_BLOCK), uses_blas=True)
    return found
