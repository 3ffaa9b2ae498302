"""Extreme eigenvalues of a kernel: a dense solver for small n, a Krylov method on a Cholesky factor for large n."""

from dataclasses import dataclass

import numpy as np

from fireset._util.errors import InputError
from fireset._util.system_memory import available_bytes

_MAX_DENSE_ROWS = 1500  # for which the dense solver takes about a second
_KRYLOV_TOLERANCE = 1e-10  # relative
_RELATIVE_SHIFT = 1e-10  # of λ_max
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Spectrum:
    """λ_min and λ_max of a symmetric positive semi-definite kernel, and the rounding error of λ_min."""

    smallest: float
    largest: float
    rounding: float  # n · eps · λ_max

    @property
    def singular(self) -> bool:
        """Whether λ_min is 0 up to rounding."""
        return self.smallest <= self.rounding


class ShiftedCholesky:
    """Cholesky factor of ``kernel + shift·I`` for a symmetric positive semi-definite kernel (n, n).

    The shift is max(1e-10, n·eps) λ_max, and is multiplied by 10 while rounding makes the factorization fail. A smaller
    shift would amplify rounding in the solutions for a singular kernel. ``smallest`` subtracts the shift. Cost n³/3;
    memory 8 n² bytes, or 0 with ``overwrite``, which destroys the kernel.
    """

    def __init__(self, kernel: np.ndarray, *, overwrite: bool = False):
        from scipy.linalg import LinAlgError, cho_factor

        n = len(kernel)
        if not np.isfinite(kernel.sum()):
            raise FloatingPointError("the kernel has entries that are not finite")
        self.largest = _largest_eigenvalue(kernel)
        self.shift = max(_RELATIVE_SHIFT, n * _EPS) * self.largest or 1.0  # any shift is correct for a kernel of zeros
        kernel = kernel if overwrite else kernel.copy()
        diagonal = np.diagonal(kernel).copy()
        while True:  # ends at the latest when the shift makes the kernel diagonally dominant
            kernel[np.diag_indices(n)] = diagonal + self.shift
            try:
                # The transposed view is column-major, so that LAPACK factors one triangle in place.
                self._factor = cho_factor(kernel.T, lower=True, overwrite_a=True, check_finite=False)
                return
            except LinAlgError:  # restore the triangle from the other one and increase the shift
                self.shift *= 10.0
                for i in range(n):
                    kernel[i, i + 1 :] = kernel[i + 1 :, i]

    def solve(self, y: np.ndarray) -> np.ndarray:
        """Return (kernel + shift·I)⁻¹ y."""
        from scipy.linalg import cho_solve

        return cho_solve(self._factor, y, check_finite=False)

    def smallest(self) -> float:
        """Return λ_min of the kernel by Lanczos on the inverse: about twenty solves of 2 n² operations.

        Lanczos on an ill-conditioned kernel converges slowly to λ_min; λ_min is the largest eigenvalue of the inverse.
        """
        from scipy.sparse.linalg import LinearOperator, eigsh

        n = len(self._factor[0])
        inverse = LinearOperator((n, n), matvec=self.solve, dtype=np.float64)  # pyright: ignore[reportCallIssue]
        start = np.random.default_rng(0).standard_normal(n)
        largest_inverse = eigsh(inverse, k=1, which="LA", v0=start, tol=_KRYLOV_TOLERANCE, return_eigenvectors=False)[0]  # pyright: ignore[reportArgumentType]
        return 1.0 / float(largest_inverse) - self.shift

    def spectrum(self) -> Spectrum:
        return Spectrum(self.smallest(), self.largest, len(self._factor[0]) * _EPS * self.largest)


def extreme_eigenvalues(kernel: np.ndarray, *, overwrite: bool = False) -> Spectrum:
    """Return λ_min and λ_max of a symmetric positive semi-definite matrix (n, n), n ≥ 1.

    Up to 1,500 rows by LAPACK's dense solver; beyond, λ_max by Lanczos and λ_min by Lanczos on the inverse, with a
    Cholesky factor (cost and memory: ``ShiftedCholesky``). Error of λ_min: 1e-9 relative plus about
    ``Spectrum.rounding``, the limit of float64.
    """
    from scipy.linalg import eigvalsh

    n = len(kernel)
    if n > _MAX_DENSE_ROWS:
        return ShiftedCholesky(kernel, overwrite=overwrite).spectrum()
    values = eigvalsh(kernel, check_finite=False)
    return Spectrum(float(values[0]), float(values[-1]), n * _EPS * abs(float(values[-1])))


def smallest_eigenvalue(kernel: np.ndarray) -> float:
    """Return λ_min of a symmetric positive semi-definite matrix, as ``extreme_eigenvalues`` does."""
    from scipy.linalg import eigvalsh

    if len(kernel) <= _MAX_DENSE_ROWS:
        return float(eigvalsh(kernel, subset_by_index=(0, 0))[0])
    return ShiftedCholesky(kernel).smallest()


def check_memory(n: int) -> None:
    """Raise InputError if a kernel of n rows, 8 n² bytes, does not fit into memory."""
    needed = 8.0 * n * n
    free = available_bytes()
    if needed > 0.9 * free:
        raise InputError(
            f"the kernel of {n:,} rows takes {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free; "
            f"pass fewer rows"
        )


def _largest_eigenvalue(kernel: np.ndarray) -> float:
    from scipy.sparse.linalg import eigsh

    if np.diagonal(kernel).max() <= 0:  # a positive semi-definite kernel is then 0
        return 0.0
    if len(kernel) < 3:  # too small for Lanczos
        return float(np.linalg.eigvalsh(kernel)[-1])
    start = np.ones(len(kernel))  # near the top eigenvector if all entries are positive
    return float(eigsh(kernel, k=1, which="LA", v0=start, tol=_KRYLOV_TOLERANCE, return_eigenvectors=False)[0])  # pyright: ignore[reportArgumentType]
