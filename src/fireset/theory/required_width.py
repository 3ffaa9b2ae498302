"""The least width at which the convergence lemma covers a table, and what would make a smaller one sufficient."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, inf, isfinite, log, sqrt

import numpy as np

from fireset._util.checks import is_number
from fireset._util.errors import InputError
from fireset.network import choose_threshold
from fireset.theory import bounds
from fireset.theory.kernel import shifted_ntk
from fireset.theory.separation import measure_separation
from fireset.theory.spectrum import extreme_eigenvalues

MAX_ROWS = 2000  # an eigenvalue problem of this size is solved some forty times
_MAX_LOG_WIDTH = 690.0  # of the search; e^690 is near the largest float
_FAILURE = 0.01  # ρ of each assumption
_LOG_TOLERANCE = 1e-4  # of widths beyond 2^53, which are not whole numbers as floats


@dataclass(frozen=True)
class RequiredWidth:
    """The least width that meets every assumption, and the quantities it depends on.

    Attributes
    ----------
    width : float
        A whole number; ∞ if it exceeds 10^299.
    threshold : float
        b at this width.
    smallest : float
        λ_min(H^cts) at this threshold.
    error : float
        Bound on ‖err(0)‖ that was used.
    rows : int
    """

    width: float
    threshold: float
    smallest: float
    error: float
    rows: int


def least_width(
    X,
    y,
    *,
    threshold: float | str = "paper",
    alpha: float | None = None,
    failure: float = _FAILURE,
    error: float | None = None,
) -> RequiredWidth:
    """Find the least m that meets all width assumptions of the claims about descent, for rows X (n, d) of norm 1.

    These are the assumptions of ``bounds.sufficient_width``. With the paper's threshold b = √(0.5 (1 − α) ln m) rises
    with m, λ falls as about m^(−(1−α)/4), and the condition D < R, m > 2304 λ⁻⁴ n³ ‖err(0)‖², is solved for m: about
    C^(1/α), where C is the width that the condition asks for at b = 0.

    Parameters
    ----------
    X : array (n, d)
        At most 2,000 rows of norm 1, no two of them equal or opposite.
    y : array (n,) or (n, 1)
        Targets.
    threshold, alpha
        As in ``ShiftedReLUNetwork.initialize``.
    failure : float
        ρ, the failure probability of each assumption.
    error : float, optional
        ‖err(0)‖, if it is known. By default a bound that holds with probability 1 − ρ for targets that do not depend on
        the weights (``bounds.initial_error_limit``).
    """
    X, y = np.asarray(X, np.float64), np.asarray(y, np.float64).reshape(len(X), -1)
    n = len(X)
    if n > MAX_ROWS:
        raise InputError(f"X must have at most {MAX_ROWS:,} rows to find the least width, got {n:,}")
    if y.shape[1] != 1:
        raise InputError(f"y must have one column, got {y.shape[1]}: the theorem is about one output")
    if not is_number(failure) or not 0.0 < failure < 1.0:
        raise InputError(f"failure must lie between 0 and 1, got {failure!r}")
    separation = measure_separation(X)
    if separation.distance == 0:
        assert separation.pair is not None
        first, second = separation.pair
        raise InputError(
            f"X must have no equal or opposite rows, got rows {first} and {second}: λ is 0, and no width is sufficient"
        )
    error = bounds.initial_error_limit(y, failure) if error is None else float(error)

    def smallest_at(b: float) -> float:
        spectrum = extreme_eigenvalues(shifted_ntk(X, b))
        return 0.0 if spectrum.singular else spectrum.smallest

    def required(m: float) -> RequiredWidth:
        b = choose_threshold(m, threshold, alpha)  # pyright: ignore[reportArgumentType] - any number beyond 1
        smallest = smallest_at(b)
        return RequiredWidth(bounds.sufficient_width(n, smallest, b, error, failure), b, smallest, error, n)

    if threshold != "paper":  # the requirement does not depend on m
        return _rounded(required(2.0))
    return _least_fixed_point(required)


def _rounded(found: RequiredWidth) -> RequiredWidth:
    width = float(max(2, ceil(found.width))) if isfinite(found.width) else inf
    return RequiredWidth(width, found.threshold, found.smallest, found.error, found.rows)


def _least_fixed_point(required: Callable[[float], RequiredWidth]) -> RequiredWidth:
    """Return the least m ≥ 2 with m ≥ ``required(m).width``, by bisection over ln m and then over whole numbers."""

    def suffices(m: float) -> bool:
        return m >= required(m).width

    low, high = log(2.0), log(2.0)
    while not suffices(exp(high)):
        low, high = high, 1.5 * high + 1.0
        if high > _MAX_LOG_WIDTH:
            found = required(exp(low))
            return RequiredWidth(inf, found.threshold, found.smallest, found.error, found.rows)
    while high - low > _LOG_TOLERANCE:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if suffices(exp(middle)) else (middle, high)
    least, most = ceil(exp(low)), ceil(exp(high))
    while most < 2**53 and least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if suffices(float(middle)) else (middle + 1, most)
    found = required(float(most))
    return RequiredWidth(float(most), found.threshold, found.smallest, found.error, found.rows)


def shortfall(X, y, width: int, *, threshold: float | str = "paper") -> str:
    """Explain what would make ``width`` sufficient: targets nearer to the initial predictions, or another threshold."""
    n = len(X)
    b = choose_threshold(width, threshold)
    smallest = max(0.0, extreme_eigenvalues(shifted_ntk(np.asarray(X, np.float64), b)).smallest)
    nearer = bounds.sufficient_error(n, width, smallest)
    needed = bounds.sufficient_width(n, smallest, b, 0.0, _FAILURE)
    parts = []
    if needed <= width:
        parts.append(f"targets with ‖y − f_0(X)‖ below {nearer:.3g}, where f_0 are the initial predictions")
    zero = least_width(X, y, threshold=0.0)
    if zero.width <= width:
        best = _largest_threshold(X, y, width)
        parts.append(f"threshold={best:.3g}, which is alpha={max(0.0, 1.0 - 2.0 * best**2 / log(width)):.3g}")
    text = (
        f"{width:,} neurons are sufficient with " + ", or with ".join(parts)
        if parts
        else (f"{width:,} neurons are sufficient for no targets at b = {b:.3g}")
    )
    if zero.width > width:
        text += f"; at threshold=0 (alpha=1) the theorem needs {zero.width:.3g} neurons"
    return text


def _largest_threshold(X, y, width: int) -> float:
    """Return the largest b, to 1 %, at which ``width`` is sufficient; it is at 0."""
    low, high = 0.0, sqrt(log(width))
    while high - low > 0.01 * high:
        middle = 0.5 * (low + high)
        is_enough = least_width(X, y, threshold=middle).width <= width
        low, high = (middle, high) if is_enough else (low, middle)
    return low
