"""Choice of bias coordinate, column scales and ridge for a table, before a network is initialized.

The kernel of the infinitely wide network has a closed form (``theory/kernel_function.py``), and leave-one-out with it
costs one factorization (``theory/leave_one_out.py``). The settings are chosen on up to 1,000 rows.

**Bias and ridge** minimize the leave-one-out error. The ridge is used for the forecast only: the solver chooses the
ridge of the network with the network's own kernel.

**Column scales**: column j is scaled by √(mean (∂f/∂z_j)²) of the current fit f, and the fit is repeated, up to three
times (the diagonal of the average gradient outer product; Radhakrishnan, Beaglehole, Pandit and Belkin, "Mechanism for
feature learning in neural networks and backpropagation-free machine learning models", Science 2024). This replaces the
feature learning that a lazily trained network lacks. The scales depend on the targets, so that leave-one-out on the
same rows is optimistic. Therefore scales are learned on each half of the rows, and a round is accepted only if the
scales of each half reduce the error on the *other* half.

Rows of a sparse table stay sparse: the kernel needs inner products only, and gradients, which are dense, are computed
for some rows at a time. A column without entries in the sample gets the mean scale of the others.
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
_MIN_SCALE = 0.02  # relative to the largest
_MAX_OUTPUTS = 16  # gradients of more outputs are replaced by random combinations
_MIN_KERNEL = 1e-12  # below, the threshold is so high that no neuron is active
_CHUNK_NUMBERS = 5_000_000  # numbers of a chunk of gradients of sparse rows: 20 MB
_MAX_NAMED_COLUMNS = 3
_FIRST_RIDGE = 6  # index in RELATIVE_RIDGES where the search begins


@dataclass(frozen=True)
class TableSettings:
    """Settings chosen for a table."""

    bias: float
    column_scales: np.ndarray  # (p,), the largest is 1
    ridge: float | None  # λ divided by the mean diagonal of the kernel; None if it was not chosen
    error: float | None  # mean square of the leave-one-out errors divided by that of the targets
    rows: int  # size of the sample
    rounds: int  # accepted rounds of column scales
    importances: np.ndarray  # (p,), √(mean (∂f/∂z_j)²), with sum 1
    forecast: float | None = None  # expected accuracy, or R²
    notes: list[str] = field(default_factory=list)
    left_out: np.ndarray | None = None  # leave-one-out predictions for ``chosen_rows``, (rows, c)
    chosen_rows: np.ndarray | None = None

    def in_words(self, score: str = "score", names: list[str] | None = None) -> str:
        """Describe the settings and the expected score in one line.

        ``names`` has the table's column name of each feature; importances of equal names are added.
        """
        if self.forecast is None:
            return "; ".join(self.notes)
        totals: Counter[str] = Counter()
        for name, share in zip(names or map("column {}".format, count(1)), self.importances, strict=names is not None):
            totals[name] += share
        named = ", ".join(name for name, _ in totals.most_common(_MAX_NAMED_COLUMNS))
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        scales = f"column scales learned in {rounds}" if self.rounds else "all columns alike"
        return (
            f"bias {self.bias:g}, {scales}; {named} matter most; expected {score} {self.forecast:.3f} "
            f"(leave-one-out, {self.rows:,} rows)"
        )


@dataclass(frozen=True)
class _Fit:
    """Kernel regression on the rows of a sample."""

    bias: float
    scales: np.ndarray
    typical: float
    left_out: LeaveOneOutFit

    @property
    def error(self) -> float:
        return self.left_out.error


class _Sample:
    """Standardized rows with targets and weights, to compare settings on."""

    def __init__(self, Z: Any, targets: np.ndarray, weight: np.ndarray, kernel: KernelFunction):
        self.Z, self.targets, self.weight, self.kernel = Z.astype(np.float32), targets, weight, kernel
        self.middle = (targets.max(axis=0, initial=0.0) + targets.min(axis=0, initial=0.0)) / 2  # between two codes

    def fit(self, bias: float, scales: np.ndarray, start: int, *, search: bool = True) -> _Fit:
        """Fit with the best ridge, searched from index ``start`` of the grid, or with the ridge at that index."""
        Z = scaled_columns(self.Z, scales.astype(np.float32))
        typical = typical_norm(Z, self.weight)
        mapped, _ = to_sphere(Z, typical, bias)
        K = self.kernel.values(_dense(mapped @ mapped.T))
        look = best_ridge if search else leave_one_out_at
        return _Fit(bias, scales, typical, look(K, self.targets, self.weight, start))

    def squared_gradients(self, fit: _Fit) -> np.ndarray:
        """Return the mean over rows and outputs of (∂f/∂z_j)², (p,), through the map to the sphere."""
        mapped, norms = to_sphere(scaled_columns(self.Z, fit.scales.astype(np.float32)), fit.typical, fit.bias)
        slopes = self.kernel.slopes(_dense(mapped @ mapped.T))
        coefficients = _few_columns(fit.left_out.coefficients).astype(np.float32)
        total = np.zeros(self.Z.shape[1])
        for column in coefficients.T:
            pulled = mapped.multiply(column[:, None]).tocsr() if is_sparse(mapped) else column[:, None] * mapped
            for some in self._row_blocks():
                own = _dense(mapped[some])
                gradient = slopes[some] @ pulled
                along = np.einsum("ij,ij->i", gradient, own)  # the normalization removes this component
                gradient = (gradient - along[:, None] * own)[:, :-1] / (norms[some] * fit.typical)[:, None]
                total += self.weight[some] @ gradient.astype(np.float64) ** 2
        return fit.scales**2 * total / (self.weight.sum() * coefficients.shape[1])

    def _row_blocks(self) -> list[slice]:
        """Return chunks of rows: all rows, or for sparse rows as many as have gradients of a few megabytes."""
        n, p = self.Z.shape
        at_once = max(1, _CHUNK_NUMBERS // max(1, p)) if is_sparse(self.Z) else max(1, n)
        return [slice(lo, lo + at_once) for lo in range(0, n, at_once)]

    def learned_scales(self, fit: _Fit) -> np.ndarray:
        """Return column scales from the gradients of a fit, (p,), the largest is 1."""
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
    """Choose the settings that are not given.

    Parameters
    ----------
    Z : (n, p) array or CSR rows
        Standardized rows.
    targets : (n, c) array
    weight : (n,) array
    bias : "auto" or float
    column_scales : "auto", array or None
        None is one scale for all columns.
    classes : bool
        Targets are class codes; column scales must not increase the number of errors either.

    Notes
    -----
    Deterministic. The cost is about 60 factorizations of up to 500 rows, for any n.
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
    """Fit both halves with the bias that has the least error on the first half.

    Biases are compared at the ridge with index ``start``, or each at its best ridge. The second half uses the ridge of
    the first.
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
    """Learn column scales until those of one half do not help the other; return the fits and the accepted rounds."""
    judged = fits  # fits of each half with the scales of the other
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
    """Whether errors increase by more than half a standard error of their count."""
    mistakes = _mistakes(halves, before)
    return _mistakes(halves, after) > mistakes + 0.5 * mistakes**0.5


def _mistakes(halves: list[_Sample], fits: list[_Fit]) -> float:
    """Return the weighted number of misclassified rows."""
    total = 0.0
    for half, fit in zip(halves, fits, strict=True):
        guesses = half.targets - fit.left_out.errors
        wrong = (guesses > half.middle) != (half.targets > half.middle)
        if guesses.shape[1] > 1:
            wrong = (guesses.argmax(axis=1) != half.targets.argmax(axis=1))[:, None]
        total += float(half.weight @ wrong[:, 0]) / float(half.weight.mean())
    return total


def _start(fits: list[_Fit]) -> int:
    """Return the index in the ridge grid to start the search at: that of the last fits."""
    return max(0, round(np.mean([fit.left_out.ridge_index for fit in fits])))


def _few_columns(coefficients: np.ndarray) -> np.ndarray:
    """Return at most ``_MAX_OUTPUTS`` columns: random combinations with the same expected sum of squares."""
    outputs = coefficients.shape[1]
    if outputs <= _MAX_OUTPUTS:
        return coefficients
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (outputs, _MAX_OUTPUTS))
    return coefficients @ signs / np.sqrt(outputs)
