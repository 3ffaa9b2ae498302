"""The ends of a kernel's spectrum: all of it for small n, a Krylov method on a Cholesky factor for large n."""

from dataclasses import dataclass

import numpy as np

from fireset._util.errors import InputError
from fireset._util.system_memory import available_bytes

_MAX_DENSE_ROWS = 1500  # a dense solver takes about a second for them
_TOLERANCE = 1e-10  # of the Krylov method, relative
_RELATIVE_SHIFT = 1e-10
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Spectrum:
    """λ_min and λ_max of a symmetric positive kernel, and how far rounding may have moved λ_min."""

    smallest: float
    largest: float
    rounding: float  # n · eps · λ_max: a λ_min below this cannot be told from 0

    @property
    def singular(self) -> bool:
        return self.smallest <= self.rounding


class ShiftedCholesky:
    """Cholesky factor of ``kernel + shift·I`` for a symmetric positive semi-definite kernel (n, n).

    The shift is 1e-10 λ_max, or n·eps·λ_max if that is more, and ten times as much as long as rounding prevents the
    factorization: a smaller one would amplify rounding in the solutions where the kernel is singular. ``smallest``
    subtracts it again. Cost n³/3; memory 8 n² bytes, none of it with ``overwrite`` (the kernel is lost then).
    """

    def __init__(self, kernel: np.ndarray, *, overwrite: bool = False):
        from scipy.linalg import LinAlgError, cho_factor

        n = len(kernel)
        if not np.isfinite(kernel.sum()):
            raise FloatingPointError("the kernel to be factored has entries that are not finite")
        self.largest = _largest_eigenvalue(kernel)
        self.shift = max(_RELATIVE_SHIFT, n * _EPS) * self.largest or 1.0  # for a kernel that is 0, any will do
        kernel = kernel if overwrite else kernel.copy()
        diagonal = np.diagonal(kernel).copy()
        while True:  # ends where the shift makes the kernel diagonally dominant
            kernel[np.diag_indices(n)] = diagonal + self.shift
            try:
                # The transposed view is what LAPACK calls column-major: factored in place, in one triangle.
                self._factor = cho_factor(kernel.T, lower=True, overwrite_a=True, check_finite=False)
                return
            except LinAlgError:  # restore that triangle from the other one, and shift more
                self.shift *= 10.0
                for i in range(n):
                    kernel[i, i + 1 :] = kernel[i + 1 :, i]

    def solve(self, y: np.ndarray) -> np.ndarray:
        """(kernel + shift·I)⁻¹ y."""
        from scipy.linalg import cho_solve

        return cho_solve(self._factor, y, check_finite=False)

    def smallest(self) -> float:
        """λ_min of the kernel, by Lanczos on the inverse: some twenty solves of 2 n² operations.

        Plain Lanczos hardly converges at the lower end of an ill-conditioned matrix; the inverse has it on top.
        """
        from scipy.sparse.linalg import LinearOperator, eigsh

        n = len(self._factor[0])
        inverse = LinearOperator((n, n), matvec=self.solve, dtype=np.float64)  # pyright: ignore[reportCallIssue]
        start = np.random.default_rng(0).standard_normal(n)
        largest_inverse = eigsh(inverse, k=1, which="LA", v0=start, tol=_TOLERANCE, return_eigenvectors=False)[0]  # pyright: ignore[reportArgumentType]
        return 1.0 / float(largest_inverse) - self.shift

    def spectrum(self) -> Spectrum:
        return Spectrum(self.smallest(), self.largest, len(self._factor[0]) * _EPS * self.largest)


def extreme_eigenvalues(kernel: np.ndarray, *, overwrite: bool = False) -> Spectrum:
    """Both ends of the spectrum of a symmetric positive semi-definite matrix (n, n), n ≥ 1.

    Up to 1,500 rows by LAPACK's dense solver. Beyond, λ_max by Lanczos and λ_min by Lanczos on the inverse, through a
    Cholesky factor (``ShiftedCholesky`` has cost and memory). Accuracy of λ_min: 1e-9 relative and, absolute, about
    ``Spectrum.rounding``, which no method in float64 goes below.
    """
    from scipy.linalg import eigvalsh

    n = len(kernel)
    if n > _MAX_DENSE_ROWS:
        return ShiftedCholesky(kernel, overwrite=overwrite).spectrum()
    values = eigvalsh(kernel, check_finite=False)
    return Spectrum(float(values[0]), float(values[-1]), n * _EPS * abs(float(values[-1])))


def smallest_eigenvalue(kernel: np.ndarray) -> float:
    """λ = λ_min of a symmetric positive semi-definite matrix; see ``extreme_eigenvalues``."""
    from scipy.linalg import eigvalsh

    if len(kernel) <= _MAX_DENSE_ROWS:
        return float(eigvalsh(kernel, subset_by_index=(0, 0))[0])
    return ShiftedCholesky(kernel).smallest()


def check_memory(n: int) -> None:
    """Raise an InputError if a kernel of n rows, 8 n² bytes, does not fit into memory."""
    needed = 8.0 * n * n
    free = available_bytes()
    if needed > 0.9 * free:
        raise InputError(
            f"the kernel of {n:,} rows takes {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free; "
            f"give fewer rows"
        )


def _largest_eigenvalue(kernel: np.ndarray) -> float:
    from scipy.sparse.linalg import eigsh

    if np.diagonal(kernel).max() <= 0:  # then a positive kernel is 0
        return 0.0
    if len(kernel) < 3:  # too small for Lanczos
        return float(np.linalg.eigvalsh(kernel)[-1])
    start = np.ones(len(kernel))  # near the top vector where all entries are positive
    return float(eigsh(kernel, k=1, which="LA", v0=start, tol=_TOLERANCE, return_eigenvectors=False)[0])  # pyright: ignore[reportArgumentType]
