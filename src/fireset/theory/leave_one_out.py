"""Leave-one-out errors of kernel regression in closed form, from one factorization.

With row weights R² = diag(weight), A = R K R + λ and z = A⁻¹ R t, the coefficients are α = R z. The error of row i in
the regression without row i is z_i / (√weight_i [A⁻¹]_ii).

The diagonal of A⁻¹ costs as much as the factorization. For the last half of the rows it costs an eighth of that, since
a column of the inverse factor is 0 above its diagonal: ``KernelSystem.search`` uses the errors of these rows only. With
e_i = z_i/[A⁻¹]_ii, the derivative of their sum of squares is

    d/dλ Σ e_i² = 2 Σ (e_i²/[A⁻¹]_ii ‖A⁻¹ ε_i‖² − e_i [A⁻¹ z]_i/[A⁻¹]_ii),

where ε_i is a unit vector. The first sum is the mean of ‖A⁻¹ D v‖² over random signs v, with D² = diag(e_i²/[A⁻¹]_ii).
One solve with a few random v shows on which side of λ the minimum is.
"""

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fireset._util.cholesky import cholesky, cholesky_solve, inverse_diagonal

# Candidates for λ relative to the mean diagonal of the kernel, from very smooth to interpolation.
RELATIVE_RIDGES = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-4, 1e-5)
_TIE_RATIO = 1.005  # errors within this ratio count as equal
_MIN_FLOAT32_RIDGE = 3e-3  # relative ridge; for smaller ones float32 has too few digits
_MIN_SEARCH_ROWS = 200  # whose errors a search uses, or half of the rows if that is more
_PROBES = 8  # random vectors for the derivative
_MIN_GAIN = 0.003  # relative reduction of the error, estimated from the derivative, for which the next λ is tried


class LeaveOneOutFit(NamedTuple):
    """Kernel regression on n rows with the leave-one-out errors of all rows, or in a search of the last k rows."""

    ridge: float  # λ
    ridge_index: int  # index of λ in RELATIVE_RIDGES, or −1
    coefficients: np.ndarray  # α, (n, c)
    errors: np.ndarray  # target minus leave-one-out prediction, (k, c)
    error: float  # score of the errors divided by the score of the targets


class _Look(NamedTuple):
    """One λ of a search, with the errors of the last k rows."""

    fit: LeaveOneOutFit
    factor: np.ndarray | None
    solved: np.ndarray  # z, (n, c)
    inverse: np.ndarray  # diagonal of A⁻¹, (k, 1)


class KernelSystem:
    """Regression with one kernel for several λ.

    Only the lower triangle of ``kernel`` (n, n) is read, and it is not changed; ``targets`` (n, c), ``weight`` (n,).
    R K R is formed once and divided by its mean diagonal, which changes neither coefficients nor errors, and prevents
    over- and underflow.
    """

    def __init__(self, kernel: np.ndarray, targets: np.ndarray, weight: np.ndarray):
        self._kernel, self.targets, self.weight, n = kernel, targets, weight, len(weight)
        self._first = n - max(min(n, _MIN_SEARCH_ROWS), n // 2)
        self.mean_diagonal = float(np.mean(kernel.diagonal() * weight))
        self._scale = max(self.mean_diagonal, 1e-300)
        self._roots = np.sqrt(weight / self._scale)[:, None]
        self._looks: dict[int, _Look] = {}

    @cached_property
    def _matrix(self) -> tuple[np.ndarray, np.floating]:
        """A matrix and a factor whose product is R K R/scale. Equal weights need no pass over the kernel."""
        dtype = self._kernel.dtype.type
        if (self.weight == self.weight[0]).all():
            return self._kernel, dtype(self.weight[0] / self._scale)
        roots = self._roots.astype(dtype)
        matrix = self._kernel * roots
        matrix *= roots[:, 0]
        del self._kernel
        return matrix, dtype(1.0)

    def ridge(self, index: int) -> float:
        """Return λ for an index in ``RELATIVE_RIDGES``."""
        return RELATIVE_RIDGES[index] * self.mean_diagonal

    def coefficients(self, ridge: float) -> np.ndarray:
        """Return α (n, c), or 0 if the matrix is not positive definite within rounding; cost 1/3 n³."""
        L = self._factor(ridge)
        return np.zeros_like(self.targets) if L is None else self._roots * _solve(L, self._roots * self.targets)

    def leave_one_out(
        self, ridge: float, index: int = -1, score: Callable[[np.ndarray], float] | None = None
    ) -> LeaveOneOutFit:
        """Fit with λ = ``ridge`` and compute the errors of all rows; cost 2/3 n³."""
        return self._fit(self._factor(ridge), ridge, index, 0, score)[0]

    def leave_one_out_at(self, index: int) -> LeaveOneOutFit:
        """Fit with the λ at ``index`` of ``RELATIVE_RIDGES``; cost 1/3 n³ after a search that has tried it."""
        look = self._looks.get(index)
        ridge = self.ridge(index)
        return self._fit(look.factor if look else self._factor(ridge), ridge, index, 0)[0]

    def search(self, start: int) -> LeaveOneOutFit:
        """Fit with a λ of small error of the last rows, found downhill by derivatives from index ``start``.

        The errors are those of the last half of the rows, or of 200 if that is more. Two fits of cost 3/8 n³ are usual.
        Of two equal errors the larger λ wins: the fit is smoother and faster to solve.
        """
        k = start
        fit, slope = self._look(k).fit, self._slope(k)
        step = -1 if slope < 0 else 1
        while 0 <= k + step < len(RELATIVE_RIDGES):
            # The error may have a plateau towards λ = 0: with increasing λ it is taken as linear in λ, else in log λ.
            ratio = RELATIVE_RIDGES[k + step] / RELATIVE_RIDGES[k]
            distance = ratio - 1.0 if step < 0 else -np.log(ratio)
            flat = abs(slope) * distance / 2 < _MIN_GAIN  # half: that of a parabola with its minimum at the next λ
            if flat and RELATIVE_RIDGES[k] >= _MIN_FLOAT32_RIDGE:
                break
            other = self._look(k + step).fit
            better = other.error <= _TIE_RATIO * fit.error if step < 0 else other.error * _TIE_RATIO < fit.error
            if not better:
                break
            k, fit, slope = k + step, other, self._slope(k + step)
            if slope * step < 0:  # the minimum is between the last two
                break
        return fit

    def _look(self, index: int) -> _Look:
        if index not in self._looks:
            ridge = self.ridge(index)
            L = self._factor(ridge)
            fit, solved, inverse = self._fit(L, ridge, index, self._first)
            self._looks[index] = _Look(fit, L, solved, inverse)
        return self._looks[index]

    def _fit(
        self,
        L: np.ndarray | None,
        ridge: float,
        index: int,
        first: int,
        score: Callable[[np.ndarray], float] | None = None,
    ) -> tuple[LeaveOneOutFit, np.ndarray, np.ndarray]:
        """Return a fit with the errors of the rows from ``first`` on, z (n, c), and the diagonal of A⁻¹ (k, 1)."""
        targets = self.targets
        if L is None:
            nothing = np.zeros_like(targets)
            return LeaveOneOutFit(ridge, index, nothing, targets[first:], np.inf), nothing, np.ones(1)
        solved = _solve(L, self._roots * targets)
        inverse = np.maximum(inverse_diagonal(L, first), 1e-300)[:, None]
        errors = solved[first:] / np.maximum(inverse * self._roots[first:], 1e-300)
        score = score or (lambda errors: float(self.weight[first:] @ (errors**2).sum(axis=1)))
        of_targets = score(targets[first:])
        error = score(errors) / of_targets if of_targets > 0 else 1.0
        return LeaveOneOutFit(ridge, index, self._roots * solved, errors, error), solved, inverse

    def _slope(self, index: int) -> float:
        """Estimate d log(Σ e_i²) / d log λ by the formula of the module; −∞ if the matrix is not positive definite."""
        _, L, solved, inverse = self._look(index)
        if L is None:
            return -np.inf
        rows, outputs = slice(len(L) - len(inverse), None), solved.shape[1]
        errors = solved[rows] / inverse
        squares = (errors**2).sum(axis=1, keepdims=True)
        probes = np.zeros((len(L), _PROBES))
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (len(inverse), _PROBES))
        probes[rows] = np.sqrt(squares / inverse) * signs
        found = _solve(L, np.hstack([solved, probes]))
        rise = (found[:, outputs:] ** 2).sum() / _PROBES - (errors * found[rows, :outputs] / inverse).sum()
        return 2.0 * RELATIVE_RIDGES[index] * float(rise) / max(float(squares.sum()), 1e-300)

    def _factor(self, ridge: float) -> np.ndarray | None:
        """Return the Cholesky factor of A/scale, or None if it is not positive definite within rounding."""
        relative = ridge / self._scale
        matrix, factor = self._matrix
        single = matrix.dtype == np.float32 and relative >= _MIN_FLOAT32_RIDGE
        A = np.multiply(matrix, factor, dtype=np.float32 if single else np.float64)
        A[np.diag_indices(len(A))] += A.dtype.type(relative)
        return A if cholesky(A) else None


def leave_one_out(kernel: np.ndarray, targets: np.ndarray, weight: np.ndarray, ridge: float) -> LeaveOneOutFit:
    """Fit with λ = ``ridge`` and compute all leave-one-out errors; see ``KernelSystem``."""
    return KernelSystem(kernel, targets, weight).leave_one_out(ridge)


def best_ridge(
    kernel: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    start: int = 6,
    score: Callable[[np.ndarray], float] | None = None,
) -> LeaveOneOutFit:
    """Fit with the λ of smallest error among ``RELATIVE_RIDGES``, found downhill from index ``start``.

    The error has a single valley in nearly all cases. Of two equal errors the larger λ wins: the fit is smoother and
    faster to solve. λ has the units of the kernel and can be used with more rows. ``score(errors)`` replaces the
    weighted sum of squares.
    """
    system = KernelSystem(kernel, targets, weight)
    scale = system.mean_diagonal
    if not (scale > 0 and (weight @ (targets**2).sum(axis=1)) > 0):
        return LeaveOneOutFit(max(scale, 1.0), -1, np.zeros_like(targets), targets, 1.0)
    fits: dict[int, LeaveOneOutFit] = {}

    def error(k: int) -> float:
        if not 0 <= k < len(RELATIVE_RIDGES):
            return np.inf
        if k not in fits:
            fits[k] = system.leave_one_out(system.ridge(k), k, score)
        return fits[k].error

    k = start
    while error(k - 1) <= _TIE_RATIO * error(k) and k > 0:
        k -= 1
    if k == start:
        while error(k + 1) * _TIE_RATIO < error(k):
            k += 1
    return fits[k]


def _solve(L: np.ndarray, right: np.ndarray) -> np.ndarray:
    return cholesky_solve(L, right).astype(np.float64)
