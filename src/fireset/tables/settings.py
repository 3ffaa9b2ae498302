"""Settings that nobody has to choose: bias coordinate, column scales and ridge of a table, before any network is drawn.

The kernel of the infinitely wide network has a closed form (``theory/kernel_function.py``), and leave-one-out with it
costs one factorization (``theory/leave_one_out.py``). On up to 1,000 rows it answers which settings suit a table.

**Bias and ridge** are those with the least leave-one-out error. The ridge is that of the forecast: the solver chooses
the network's own by the network's own kernel.

**Column scales**: column j is scaled by √(mean (∂f/∂z_j)²), f being the fit so far, and the fit is made again, up to
three times (the diagonal of the average gradient outer product; Radhakrishnan, Beaglehole, Pandit and Belkin,
"Mechanism for feature learning in neural networks and backpropagation-free machine learning models", Science 2024).
This is the feature learning that a lazily trained network lacks. It uses the targets, so that leave-one-out on the same
rows flatters it. The rows are therefore cut in halves, each half makes its own scales, and a round counts only if each
half's scales help *the other half*.

Rows of a sparse table stay sparse: the kernel needs their inner products alone, and gradients, which are not sparse,
are made for some rows at a time. A column of which the rows looked at hold nothing is scaled as the others are in the
mean: that nothing was seen of it does not say that it does not matter.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from fireset._util.parallel import one_blas_thread
from fireset.sparse_rows import is_sparse
from fireset.tables.column_map import scaled_columns
from fireset.tables.sphere import to_sphere, typical_norm
from fireset.theory.kernel_function import KernelFunction
from fireset.theory.leave_one_out import LeaveOneOutFit, best_ridge, leave_one_out_at

BIASES = (0.3, 1.0, 3.0)
DEFAULT_BIAS = 1.0
MAX_ROWS = 1000
MIN_ROWS = 40  # below, leave-one-out is too noisy to choose by
_ROUNDS = 3
_MIN_SCALE = 0.02  # beside the largest
_MAX_OUTPUTS = 16  # whose gradients are looked at one by one
_MIN_KERNEL = 1e-12  # at so high a threshold nobody fires
_NUMBERS_AT_ONCE = 5_000_000  # of gradients of sparse rows: 20 MB
_NAMED = 3  # columns that `in_words` names
_FIRST_RIDGE = 6  # place in RELATIVE_RIDGES to begin at


@dataclass(frozen=True)
class TableSettings:
    """What was chosen for a table, and by what."""

    bias: float
    column_scales: np.ndarray  # (p,), the largest 1
    ridge: float | None  # λ beside the mean diagonal of the kernel; None where it was not looked for
    error: float | None  # leave-one-out: mean square beside that of the targets
    rows: int  # that were looked at
    rounds: int  # of column scales that helped
    importances: np.ndarray  # (p,), √(mean (∂f/∂z_j)²), adding up to 1
    forecast: float | None = None  # expected accuracy, or R²
    notes: list[str] = field(default_factory=list)
    left_out: np.ndarray | None = None  # predictions for ``chosen_rows``, each without itself; (rows, c)
    chosen_rows: np.ndarray | None = None

    def in_words(self, score: str = "score", names: list[str] | None = None) -> str:
        """Describe what was chosen, and the score to expect, in a line.

        ``names`` are the columns of the table, one for each encoded column; importances of one name are added up.
        """
        if self.forecast is None:
            return "; ".join(self.notes)
        totals: Counter[str] = Counter()
        for name, share in zip(names or map("column {}".format, count(1)), self.importances, strict=names is not None):
            totals[name] += share
        named = ", ".join(name for name, _ in totals.most_common(_NAMED))
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        scales = f"column scales learned in {rounds}" if self.rounds else "all columns alike"
        return (
            f"bias {self.bias:g}, {scales}; {named} matter most; expected {score} {self.forecast:.3f} "
            f"(leave-one-out, {self.rows:,} rows)"
        )


@dataclass(frozen=True)
class _Fit:
    """Kernel regression on some rows with some settings."""

    bias: float
    scales: np.ndarray
    typical: float
    left_out: LeaveOneOutFit

    @property
    def error(self) -> float:
        return self.left_out.error


class _Sample:
    """Some standardized rows, and how well settings do on them."""

    def __init__(self, Z: Any, targets: np.ndarray, weight: np.ndarray, kernel: KernelFunction):
        self.Z, self.targets, self.weight, self.kernel = Z.astype(np.float32), targets, weight, kernel
        self.middle = (targets.max(axis=0, initial=0.0) + targets.min(axis=0, initial=0.0)) / 2  # between two codes

    def fit(self, bias: float, scales: np.ndarray, start: int, *, search: bool = True) -> _Fit:
        """With the best ridge, looked for from place ``start`` of the grid on, or with the one that is there."""
        Z = scaled_columns(self.Z, scales.astype(np.float32))
        typical = typical_norm(Z, self.weight)
        mapped, _ = to_sphere(Z, typical, bias)
        K = self.kernel.values(_dense(mapped @ mapped.T))
        look = best_ridge if search else leave_one_out_at
        return _Fit(bias, scales, typical, look(K, self.targets, self.weight, start))

    def squared_gradients(self, fit: _Fit) -> np.ndarray:
        """Mean over rows and outputs of (∂f/∂z_j)², (p,), through the map to the sphere."""
        mapped, norms = to_sphere(scaled_columns(self.Z, fit.scales.astype(np.float32)), fit.typical, fit.bias)
        slopes = self.kernel.slopes(_dense(mapped @ mapped.T))
        coefficients = _few_columns(fit.left_out.coefficients).astype(np.float32)
        total = np.zeros(self.Z.shape[1])
        for column in coefficients.T:
            pulled = mapped.multiply(column[:, None]).tocsr() if is_sparse(mapped) else column[:, None] * mapped
            for some in self._row_blocks():
                own = _dense(mapped[some])
                gradient = slopes[some] @ pulled
                along = np.einsum("ij,ij->i", gradient, own)  # normalizing takes this part away
                gradient = (gradient - along[:, None] * own)[:, :-1] / (norms[some] * fit.typical)[:, None]
                total += self.weight[some] @ gradient.astype(np.float64) ** 2
        return fit.scales**2 * total / (self.weight.sum() * coefficients.shape[1])

    def _row_blocks(self) -> list[slice]:
        """All rows at once; of sparse rows, so many as have gradients of a few megabytes."""
        n, p = self.Z.shape
        at_once = max(1, _NUMBERS_AT_ONCE // max(1, p)) if is_sparse(self.Z) else max(1, n)
        return [slice(lo, lo + at_once) for lo in range(0, n, at_once)]

    def learned_scales(self, fit: _Fit) -> np.ndarray:
        """Column scales out of the gradients of a fit, (p,), the largest 1."""
        roots = np.sqrt(np.maximum(self.squared_gradients(fit), 0.0))
        if is_sparse(self.Z):
            seen = np.zeros(len(roots), bool)
            seen[self.Z.indices] = True
            roots[~seen] = roots[seen].mean() if seen.any() else 1.0
        scales = roots / max(roots.max(), 1e-300) + _MIN_SCALE
        return scales / scales.max()


def choose_settings(
    Z: Any,
    targets: np.ndarray,
    weight: np.ndarray,
    *,
    threshold: float,
    bias: float | str = "auto",
    column_scales: np.ndarray | str | None = "auto",
    classes: bool = False,
    fewest_rows: float = MIN_ROWS,
) -> TableSettings:
    """For standardized rows Z (n, p), dense or CSR, targets (n, c) and weights (n,); what is given is not looked for.

    ``column_scales`` may be "auto", numbers, or None for none. With ``classes`` the targets are codes of classes, and
    column scales must not make more mistakes, either. Deterministic. Cost: about 60 factorizations of up to
    500 rows, whatever n is.
    """
    counted = np.flatnonzero(weight > 0)
    rows = np.random.default_rng(0).permutation(counted)[:MAX_ROWS]
    ones = np.ones(Z.shape[1])
    given = ones if column_scales is None else column_scales
    kernel = KernelFunction(threshold)
    if len(rows) < fewest_rows or not np.ptp(targets[rows], axis=0).any() or not kernel.at_one > _MIN_KERNEL:
        few = "1 row is too few" if len(rows) == 1 else f"{len(rows)} rows are too few"
        word = f"{few} to choose settings by; bias and column scales are the defaults"
        if len(rows) >= fewest_rows:
            word = "targets or kernel do not vary: there is nothing to choose settings by"
        fallback = ones if isinstance(given, str) else given
        chosen = DEFAULT_BIAS if isinstance(bias, str) else bias
        return TableSettings(chosen, fallback, None, None, len(rows), 0, ones / max(len(ones), 1), notes=[word])
    with one_blas_thread():
        halves = [_Sample(Z[part], targets[part], weight[part], kernel) for part in np.array_split(rows, 2)]
        biases = BIASES if isinstance(bias, str) else (float(bias),)
        first = ones if isinstance(given, str) else given
        fits = _best_bias(halves, biases, [first, first])
        rounds = 0
        if isinstance(given, str):
            fits, rounds = _learn_scales(halves, fits, biases, classes)
        scales = np.mean([fit.scales for fit in fits], axis=0)
        whole = _Sample(Z[rows], targets[rows], weight[rows], kernel)
        final = whole.fit(fits[0].bias, scales / max(scales.max(), 1e-300), _start(fits))
        sizes = np.sqrt(whole.squared_gradients(final))
    return TableSettings(
        bias=final.bias,
        column_scales=final.scales,
        ridge=final.left_out.ridge / kernel.at_one,
        error=final.error,
        rows=len(rows),
        rounds=rounds,
        importances=sizes / sizes.sum() if sizes.any() else ones / len(ones),
        forecast=1.0 - (_mistakes([whole], [final]) / len(rows) if classes else final.error),
        left_out=targets[rows] - final.left_out.errors,
        chosen_rows=rows,
    )


def _best_bias(halves: list[_Sample], biases, scales: list[np.ndarray], start: int | None = None) -> list[_Fit]:
    """The fits of both halves with the bias that has the least error on the first.

    Biases are compared with the ridge at place ``start``, or else each with its own best one. The second half has
    the ridge of the first.
    """
    half, place = halves[0], _FIRST_RIDGE if start is None else start
    tried = []
    for bias in biases if start is None or len(biases) > 1 else ():
        tried.append(half.fit(bias, scales[0], place, search=start is None))
        place = _start(tried[-1:])
    best = min(tried, key=lambda fit: fit.error, default=None)
    if best is None or start is not None:
        best = half.fit(best.bias if best else biases[0], scales[0], place if start is None else start)
    return [best, halves[1].fit(best.bias, scales[1], _start([best]), search=False)]


def _learn_scales(halves: list[_Sample], fits: list[_Fit], biases, classes: bool) -> tuple[list[_Fit], int]:
    """Rounds of column scales, as long as those of one half help the other; the fits, and how many helped."""
    judged = fits  # each half with the scales of the other
    for k in range(_ROUNDS):
        made = [half.learned_scales(fit) for half, fit in zip(halves, fits, strict=True)]
        crossed = _best_bias(halves, biases if k == 0 else (judged[0].bias,), made[::-1], _start(fits))
        if not _error(crossed) < _error(judged) or (classes and _more_mistakes(halves, judged, crossed)):
            return fits, k
        judged, start = crossed, _start(crossed)
        bias = crossed[0].bias
        fits = [half.fit(bias, own, start, search=False) for half, own in zip(halves, made, strict=True)]
    return fits, _ROUNDS


def _dense(matrix: Any) -> np.ndarray:
    return matrix.toarray() if is_sparse(matrix) else matrix


def _error(fits: list[_Fit]) -> float:
    return sum(fit.error for fit in fits) / len(fits)


def _more_mistakes(halves: list[_Sample], before: list[_Fit], after: list[_Fit]) -> bool:
    """By more than half of what chance alone would make of it."""
    mistakes = _mistakes(halves, before)
    return _mistakes(halves, after) > mistakes + 0.5 * mistakes**0.5


def _mistakes(halves: list[_Sample], fits: list[_Fit]) -> float:
    """Rows of both halves, by their weight, whose class is not the one predicted."""
    total = 0.0
    for half, fit in zip(halves, fits, strict=True):
        guesses = half.targets - fit.left_out.errors
        wrong = (guesses > half.middle) != (half.targets > half.middle)
        if guesses.shape[1] > 1:
            wrong = (guesses.argmax(axis=1) != half.targets.argmax(axis=1))[:, None]
        total += float(half.weight @ wrong[:, 0]) / float(half.weight.mean())
    return total


def _start(fits: list[_Fit]) -> int:
    """Where to begin looking for a ridge: where it was found last."""
    return max(0, round(np.mean([fit.left_out.ridge_index for fit in fits])))


def _few_columns(coefficients: np.ndarray) -> np.ndarray:
    """At most ``_MAX_OUTPUTS`` columns whose squares add up to the same in the mean: random sums of them."""
    outputs = coefficients.shape[1]
    if outputs <= _MAX_OUTPUTS:
        return coefficients
    output_weights = np.random.default_rng(0).choice([-1.0, 1.0], (outputs, _MAX_OUTPUTS))
    return coefficients @ output_weights / np.sqrt(outputs)
