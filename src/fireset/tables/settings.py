"""Choice of bias, metric, pieces, output layer and ridge for a table, before a network is initialized.

The kernel of the infinitely wide network has a closed form (``theory/kernel_function.py``), and leave-one-out with it
costs one factorization (``theory/leave_one_out.py``). Settings are chosen on up to ``MAX_ROWS`` rows:

1. Bias, share of the output layer and ridge by leave-one-out, all columns alike. The squared norm (``squared_norm.py``)
   becomes a further column if it reduces the squared leave-one-out errors by a tenth and by four standard errors.
2. Metrics (``metric.py``) depend on the targets, so that leave-one-out on the same rows is optimistic. Therefore rows
   are divided into folds. Without one fold, a diagonal and a full metric are learned in up to eight rounds each, and
   the rows of the fold measure the loss after each round. Rounds end early if they no longer reduce it. A second set of
   candidates has pieces of columns (``pieces.py``) with a diagonal metric.
3. Pieces are used if their best candidate is better by more than a standard error of the difference. Among the rest no
   winner is chosen, which would be noise on small tables: candidate j has weight exp(−d_j/(½ se_j)), where d_j is its
   mean loss minus the least, and se_j the standard error of d_j. The metric is the geometric mean of the metrics of all
   folds with these weights.
4. Bias, share of the output layer and ridge again, with this metric. The ridge is not used by the network, whose solver
   chooses its own.

The forecast is the score of the cross-fitted predictions: no row takes part in the metric that predicts it. Losses are
squared errors, or log losses of classes. Sparse rows stay sparse, with a diagonal metric and without pieces.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from fireset._util.gaussian import density, upper_tail
from fireset._util.parallel import one_blas_thread, parallel_map
from fireset.sparse_rows import is_sparse
from fireset.tables.class_map import apply_class_map, fit_class_map, log_probabilities
from fireset.tables.kernel_fit import FitRows, KernelFit
from fireset.tables.metric import MIN_EIGENVALUE, filled_outer_product, geometric_mean, learned_metric
from fireset.tables.pieces import Pieces, append_pieces, learn_pieces, through_pieces
from fireset.tables.squared_norm import SquaredNorm
from fireset.theory.kernel_function import KernelFunction
from fireset.theory.leave_one_out import RELATIVE_RIDGES, LeaveOneOutFit

BIASES = (0.3, 1.0, 3.0)
DEFAULT_BIAS = 1.0
OUTPUT_SHARES = (0.0, 0.7, 0.97)  # of the kernel's diagonal
MAX_ROWS = 2000
_MAX_WIDE_ROWS = 1000  # for sparse rows, or more columns than a full metric has
MIN_ROWS = 40  # below, leave-one-out is too noisy to choose by
_FIRST_ROWS = 500  # for bias and share before metrics are learned, and for the bias of the first metric of a path
_LAST_ROWS = 1000  # for bias and share afterwards
_MAX_FULL_COLUMNS = 300  # of a full metric
_ROUNDS = 8
_MIN_TWO_FOLD_ROWS = 1500  # fewer rows are divided into three folds
_SEARCH_ROUNDS = (0, 1, 2, 4)  # rounds after which the ridge is searched again
# By number of folds. Small tables need more candidates to average: with 2 rounds, five of them lost 0.001.
_MIN_ROUNDS = {2: 2, 3: 3}
_MIN_ROUNDS_GAIN = 0.01  # relative reduction of the loss by two rounds below which a path ends
_DROP_ERRORS = 2.5  # standard errors by which a candidate is worse than the best of the first fold
_PIECES_ERRORS = 1.0  # standard errors by which pieces must be better
_SQUARED_NORM_ERRORS = 4.0  # standard errors by which the squared norm must be better,
_MIN_SQUARED_NORM_GAIN = 0.1  # and relative reduction of the squared errors; 0.07 for circles in a plane, of no use
_TEMPERATURE = 0.5  # standard errors
_MIN_WEIGHT = 1e-3
_SLOPES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)  # of softmax, for the log loss of scores
_MIN_ROWS_PER_CLASS = 50  # on average, for a linear map of the scores of classes
_CLASS_MAP_STEPS = 10  # enough to compare candidates
_MIN_KERNEL = 1e-12  # below, the threshold is so high that no neuron is active
_MAX_NAMED_COLUMNS = 3
_FIRST_RIDGE = 6  # index in RELATIVE_RIDGES where the search begins


@dataclass(frozen=True)
class TableSettings:
    """Settings chosen for a table."""

    bias: float
    metric: np.ndarray  # (p,) or (p, p) with the largest eigenvalue 1; p includes squared norm and pieces
    output_layer_scale: float  # s of the kernel H_W + s² H_A; 0 if the output layer is not trained
    ridge: float | None  # λ divided by the mean diagonal of the kernel; None if it was not chosen
    error: float | None  # mean square of the leave-one-out errors divided by that of the targets
    rows: int  # size of the sample
    rounds: int  # of the metric with the least cross-fitted loss
    importances: np.ndarray  # √(mean (∂f/∂z_j)²) of each feature, with sum 1
    forecast: float | None = None  # expected accuracy, or R²
    pieces: list[Pieces] = field(default_factory=list)
    squared_norm: SquaredNorm | None = None
    notes: list[str] = field(default_factory=list)
    left_out: np.ndarray | None = field(default=None, repr=False)  # leave-one-out predictions, (chosen rows, c)
    chosen_rows: np.ndarray | None = field(default=None, repr=False)

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
        parts = [f"bias {self.bias:g}", self.metric_in_words]
        parts += ["squared norm as a further column"] if self.squared_norm else []
        parts += [f"{len(self.pieces)} columns cut into pieces"] if self.pieces else []
        parts += [f"output layer trained with scale {self.output_layer_scale:.2g}"] if self.output_layer_scale else []
        return (
            f"{', '.join(parts)}; {named} matter most; expected {score} {self.forecast:.3f} "
            f"(cross-fitted, {self.rows:,} rows)"
        )

    @property
    def metric_kind(self) -> str:
        """Return "none" if all columns are alike, "diagonal" or "full"."""
        if self.metric.ndim == 2:
            return "full"
        return "diagonal" if np.ptp(self.metric, axis=0) > 0 else "none"

    @property
    def metric_in_words(self) -> str:
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        kind = self.metric_kind
        return "all columns alike" if kind == "none" else f"{kind} metric ({rounds})"


class _Candidate(NamedTuple):
    """A metric: that of ``rounds`` rounds of one kind, for the table with or without pieces."""

    pieces: bool
    kind: str  # "none", "diagonal" or "full"
    rounds: int


class _Point(NamedTuple):
    """Settings of one fit beside its metric."""

    kernel: KernelFunction
    output_scale: float
    bias: float
    ridge_index: int


class _Crossed(NamedTuple):
    """One candidate in one fold."""

    candidate: _Candidate
    fold: int
    point: _Point
    metric: np.ndarray
    predictions: np.ndarray  # for the rows of the fold
    losses: np.ndarray | None  # of these rows, for the first fold


def choose_settings(
    Z: Any,
    targets: np.ndarray,
    weight: np.ndarray,
    *,
    threshold: float,
    bias: float | str = "auto",
    column_scales: np.ndarray | str | None = "auto",
    output_layer_scale: float | str = "auto",
    classes: bool = False,
    fewest_rows: float = MIN_ROWS,
    min_pieces_gain: float = 0.0,
    min_eigenvalue: float = MIN_EIGENVALUE,
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
        "auto" learns a metric and decides on pieces. An array is a diagonal metric, None one scale for all columns.
    output_layer_scale : "auto" or float
        s of the kernel H_W + s² H_A.
    classes : bool
        Targets are class codes.
    min_pieces_gain : float
        Relative reduction of the cross-fitted loss below which pieces are not used.
    min_eigenvalue : float
        Smallest eigenvalue of a learned metric, before it is scaled.

    Notes
    -----
    Deterministic. The cost is about 60 factorizations of up to 1,000 rows, for any n.
    """
    counted = np.flatnonzero(weight > 0)
    columns = Z.shape[1]
    most = _MAX_WIDE_ROWS if is_sparse(Z) or columns > _MAX_FULL_COLUMNS else MAX_ROWS
    rows = np.random.default_rng(0).permutation(counted)[:most]
    ones = np.ones(columns)
    given = ones if column_scales is None else column_scales
    scales = _output_scales(threshold) if isinstance(output_layer_scale, str) else (float(output_layer_scale),)
    varies = KernelFunction(threshold).at_one > _MIN_KERNEL and np.ptp(targets[rows], axis=0).any()
    if len(rows) < fewest_rows or not varies:
        few = "1 row is too few" if len(rows) == 1 else f"{len(rows)} rows are too few"
        word = f"{few} to choose settings by; bias and metric are the defaults"
        if len(rows) >= fewest_rows:
            word = "targets or kernel do not vary: there is nothing to choose settings by"
        fallback = ones if isinstance(given, str) else given
        chosen = DEFAULT_BIAS if isinstance(bias, str) else bias
        scale = scales[len(scales) // 2] if KernelFunction(threshold).at_one > _MIN_KERNEL else 0.0
        return TableSettings(chosen, fallback, scale, None, None, len(rows), 0, ones / max(columns, 1), notes=[word])
    biases = BIASES if isinstance(bias, str) else (float(bias),)
    sample = FitRows(Z[rows].astype(np.float32), targets[rows], weight[rows] / weight[rows].mean())
    kernels = [(KernelFunction(threshold, scale), scale) for scale in scales]
    with one_blas_thread():
        choice = _Choice(sample, kernels, biases, classes, min_pieces_gain, min_eigenvalue)
        if isinstance(given, str):
            choice.learn_metric()
        else:
            choice.use_metric(given)
        return choice.settings(rows)


def _output_scales(threshold: float) -> tuple[float, ...]:
    """Return s for each of ``OUTPUT_SHARES`` a: s² H_A(1)/(H_W(1) + s² H_A(1)) = a."""
    if not KernelFunction(threshold).at_one > _MIN_KERNEL:
        return (0.0,)
    first = upper_tail(threshold)
    output = (1 + threshold**2) * first - threshold * density(threshold)
    return tuple(float(np.sqrt(share / (1 - share) * first / output)) for share in OUTPUT_SHARES)


class _Losses:
    """Loss of each row, for predictions of centred targets: squared error, or for classes the log loss.

    The log loss is that of softmax(α·scores), with the best α of a few, or that of a linear map of the scores
    (``class_map.py``) if it is lower. Each half of the rows is mapped by the other half.
    """

    def __init__(self, sample: FitRows, classes: bool):
        self.targets, self.weight, self.classes = sample.targets, sample.weight, classes
        high, low = self.targets.max(axis=0), self.targets.min(axis=0)
        self.half = max(float((high - low).max()) / 2, 1e-300)  # codes are ±half around the middle
        self.middle = np.where(high > low, (high + low) / 2, high + self.half)  # a class that is absent has one code
        self.labels = self._scores(self.targets).argmax(axis=1)

    def _scores(self, predictions: np.ndarray) -> np.ndarray:
        scores = (predictions - self.middle) / self.half
        return np.hstack([-scores, scores]) if scores.shape[1] == 1 else scores

    def __call__(self, predictions: np.ndarray, rows: Any = slice(None)) -> np.ndarray:
        weight = self.weight[rows]
        if not self.classes:
            return weight * ((predictions - self.targets[rows]) ** 2).sum(axis=1)
        scores, labels = self._scores(predictions), self.labels[rows]
        each = np.arange(len(scores))
        scores = scores - scores.max(axis=1, keepdims=True)
        own = scores[each, labels]
        losses = (weight * (np.log(np.exp(slope * scores).sum(axis=1)) - slope * own) for slope in _SLOPES)
        best = min(losses, key=np.mean)
        if scores.shape[1] < 3 or len(scores) < _MIN_ROWS_PER_CLASS * scores.shape[1]:
            return best
        mapped = np.empty(len(scores))
        for half in (each % 2 == 0, each % 2 == 1):  # rows of the sample are in random order
            matrix = fit_class_map(scores[~half], labels[~half], weight[~half], steps=_CLASS_MAP_STEPS)
            logits = apply_class_map(matrix, scores[half])
            mapped[half] = -weight[half] * log_probabilities(logits)[np.arange(half.sum()), labels[half]]
        return min(best, mapped, key=np.mean)

    def score(self, predictions: np.ndarray) -> float:
        """Return accuracy or R²."""
        if self.classes:
            return float(np.average(self._scores(predictions).argmax(axis=1) == self.labels, weights=self.weight))
        spread = self.targets - np.average(self.targets, axis=0, weights=self.weight)
        errors = float(self.weight @ ((predictions - self.targets) ** 2).sum(axis=1))
        return 1.0 - errors / max(float(self.weight @ (spread**2).sum(axis=1)), 1e-300)


class _Choice:
    """The steps of the choice on one sample."""

    def __init__(
        self,
        sample: FitRows,
        kernels: list[tuple[KernelFunction, float]],
        biases,
        classes: bool,
        min_pieces_gain: float = 0.0,
        min_eigenvalue: float = MIN_EIGENVALUE,
    ):
        self.kernels, self.biases, self.min_pieces_gain = kernels, biases, min_pieces_gain
        self.min_eigenvalue = min_eigenvalue
        self.tables = {False: sample}  # by whether pieces are appended
        self.pieces: list[Pieces] = []
        self.squared_norm: SquaredNorm | None = None
        self.losses = _Losses(sample, classes)
        self.first: dict[bool, _Point] = {}
        self.forecast: float | None = None

    def use_metric(self, metric: np.ndarray) -> None:
        """Use a given metric; its forecast is that of leave-one-out."""
        self.metric, self.best = metric, _Candidate(False, "none", 0)
        self.last = _Point(*self.kernels[0], self.biases[len(self.biases) // 2], _FIRST_RIDGE)

    def learn_metric(self) -> None:
        """Cross-fit the candidates and form their geometric mean (steps 1 to 3 of the module)."""
        sample = self.tables[False]
        columns, sparse = sample.Z.shape[1], is_sparse(sample.Z)
        if not sparse and columns <= _MAX_FULL_COLUMNS:
            self.pieces = learn_pieces(sample.Z, sample.weight)
        if self.pieces:
            self.tables[True] = sample._replace(Z=append_pieces(sample.Z, self.pieces))
        firsts = parallel_map(self._first_point, self.tables, uses_blas=True)
        self.first = {pieces: first[0] for pieces, first in zip(self.tables, firsts, strict=True)}
        if 1 < columns <= _MAX_FULL_COLUMNS and not sparse:
            self._decide_on_squared_norm(*firsts[0])
            columns = self.tables[False].Z.shape[1]
        paths = [_Candidate(False, "diagonal", _ROUNDS if columns > 1 else 0)]
        paths += [_Candidate(False, "full", _ROUNDS)] if 1 < columns <= _MAX_FULL_COLUMNS and not sparse else []
        paths += [_Candidate(True, "diagonal", _ROUNDS)] if self.pieces else []
        crossed = self._cross_fit(paths)
        self._combine(crossed)

    def _decide_on_squared_norm(self, point: _Point, fit: KernelFit, found: LeaveOneOutFit) -> None:
        """Append the squared norm to the tables if a fit with it at the first point is clearly better."""
        sample = self.tables[False]
        squared_norm = SquaredNorm.learn(sample.Z, sample.weight)
        if squared_norm is None:
            return
        some = fit.rows._replace(Z=squared_norm.append_to(fit.rows.Z))
        other = KernelFit(some, np.ones(some.Z.shape[1]), point.bias, point.kernel)
        # Squared errors, which have less noise than log losses on few rows.
        losses = [
            some.weight * (each.errors**2).sum(axis=1) for each in (found, other.leave_one_out(point.ridge_index))
        ]
        enough = losses[1].mean() < (1.0 - _MIN_SQUARED_NORM_GAIN) * losses[0].mean()
        if not enough or not _gap(*losses) > _SQUARED_NORM_ERRORS:
            return
        self.squared_norm = squared_norm
        with_squared_norm = squared_norm.append_to(sample.Z)
        self.tables = {
            pieces: table._replace(Z=append_pieces(with_squared_norm, self.pieces if pieces else []))
            for pieces, table in self.tables.items()
        }
        self.first = {pieces: self._first_point(pieces)[0] for pieces in self.tables}

    def _first_point(self, pieces: bool) -> tuple[_Point, KernelFit, LeaveOneOutFit]:
        """Choose bias and output scale by leave-one-out on a few rows, all columns alike."""
        sample = self.tables[pieces]
        rows = np.arange(min(len(sample.weight), _FIRST_ROWS))
        ones = np.ones(sample.Z.shape[1])
        kernels = self.kernels if len(self.kernels) < 3 else [self.kernels[0], self.kernels[-1]]
        start = _Point(*kernels[0], self.biases[len(self.biases) // 2], _FIRST_RIDGE)
        return self._best_point(rows, pieces, ones, start, kernels)

    def _best_point(
        self, rows: np.ndarray, pieces: bool, metric: np.ndarray, start: _Point, kernels: list
    ) -> tuple[_Point, KernelFit, LeaveOneOutFit]:
        """Choose kernel, then bias, by leave-one-out on some rows of the sample, from ``start``."""
        some = self.tables[pieces].take(rows)
        tried = []

        def look(kernel: KernelFunction, scale: float, bias: float, ridge_index: int) -> int:
            fit = KernelFit(some, metric, bias, kernel)
            fit.search_ridge(ridge_index)
            found = fit.leave_one_out(fit.ridge_index)
            loss = float(self.losses(some.targets - found.errors, rows).mean())
            point = _Point(kernel, scale, bias, fit.ridge_index)
            tried.append((loss if np.isfinite(found.error) else np.inf, point, fit, found))
            return fit.ridge_index

        place = start.ridge_index
        for kernel, scale in kernels:
            place = max(0, look(kernel, scale, start.bias, place))
        best = min(tried, key=lambda one: one[0])[1]
        for bias in self.biases:
            if bias != start.bias:
                look(best.kernel, best.output_scale, bias, max(0, best.ridge_index))
        return min(tried, key=lambda one: one[0])[1:]

    def _cross_fit(self, paths: list[_Candidate]) -> list[_Crossed]:
        """Follow the paths in each fold; return the candidates that all folds have tried.

        The first fold chooses bias and ridge of each candidate, and drops candidates that are much worse than the best.
        """
        sample = self.tables[False]
        n = len(sample.weight)
        folds = 2 if n >= _MIN_TWO_FOLD_ROWS else 3
        fold = _folds(n, self.losses.labels if self.losses.classes else None, folds)
        self.held = [np.flatnonzero(fold == k) for k in range(folds)]
        self.kept = [np.flatnonzero(fold != k) for k in range(folds)]
        crossed = self._follow([0], paths, {})
        loss = {one.candidate: one.losses for one in crossed if one.losses is not None}
        best = min(loss.values(), key=np.mean)
        # A table without pieces may be preferred although its loss is larger by up to ``min_pieces_gain``.
        enough = best.mean() / (1.0 - self.min_pieces_gain) if self.min_pieces_gain else -np.inf
        close = {key for key, own in loss.items() if _gap(own, best) <= _DROP_ERRORS or own.mean() < enough}
        paths = [
            path._replace(rounds=max((key.rounds for key in close if key[:2] == path[:2]), default=0)) for path in paths
        ]
        paths = [path for path in paths if path.rounds or _Candidate(path.pieces, "none", 0) in close]
        plan = {one.candidate: one.point for one in crossed}
        crossed += self._follow(list(range(1, folds)), paths, plan)
        complete = Counter(one.candidate for one in crossed)
        return [one for one in crossed if complete[one.candidate] == folds]

    def _follow(self, folds: list[int], paths: list[_Candidate], plan: dict[_Candidate, _Point]) -> list[_Crossed]:
        """Fit all candidates of the paths without the rows of each fold, at the points of the plan if there is one."""
        jobs = [(k, pieces) for k in folds for pieces in sorted({path.pieces for path in paths})]
        firsts = parallel_map(lambda job: self._begin(*job, plan), jobs, uses_blas=True)
        start = dict(zip(jobs, firsts, strict=True))
        parts = parallel_map(
            lambda job: self._rounds(job[0], job[1], *start[job[0], job[1].pieces], plan),
            [(k, path) for k in folds for path in paths],
            uses_blas=True,
        )
        return [one for one, _ in firsts] + [one for part in parts for one in part]

    def _begin(self, k: int, pieces: bool, plan: dict[_Candidate, _Point]) -> tuple[_Crossed, KernelFit]:
        ones = np.ones(self.tables[pieces].Z.shape[1])
        return self._fit(_Candidate(pieces, "none", 0), k, ones, self.first[pieces], plan)

    def _rounds(
        self, k: int, path: _Candidate, first: _Crossed, fit: KernelFit, plan: dict[_Candidate, _Point]
    ) -> list[_Crossed]:
        """Learn a metric from the gradients of ``fit`` and fit again, ``path.rounds`` times, without fold k.

        ``first`` is the candidate of ``fit``, with all columns alike.
        """
        found: list[_Crossed] = []
        point = self.first[path.pieces]._replace(bias=fit.bias, ridge_index=fit.ridge_index)
        losses = [] if first.losses is None else [float(first.losses.mean())]
        for r in range(1, path.rounds + 1):
            full = path.kind == "full"
            product = fit.outer_product(full)
            product = product if full else filled_outer_product(product, fit.rows.Z)
            metric = learned_metric(product, self.min_eigenvalue)
            one, fit = self._fit(path._replace(rounds=r), k, metric, point, plan)
            point = one.point
            found.append(one)
            if one.losses is None:
                continue
            losses.append(float(one.losses.mean()))
            if r >= _MIN_ROUNDS[len(self.held)] and not losses[-1] < (1.0 - _MIN_ROUNDS_GAIN) * losses[-3]:
                break
        return found

    def _fit(
        self, candidate: _Candidate, k: int, metric: np.ndarray, point: _Point, plan: dict[_Candidate, _Point]
    ) -> tuple[_Crossed, KernelFit]:
        """Fit a candidate without fold k, at the point of the plan, or near ``point`` by leave-one-out."""
        table = self.tables[candidate.pieces]
        own, mean = table.take(self.kept[k]).centred()
        if candidate in plan:
            point = plan[candidate]
            fit = KernelFit(own, metric, point.bias, point.kernel).solve(point.ridge_index)
        else:
            if candidate.rounds == 1 and len(self.biases) > 1:
                point = self._with_best_bias(own.take(np.arange(min(len(own.weight), _FIRST_ROWS))), metric, point)
            fit = KernelFit(own, metric, point.bias, point.kernel)
            if candidate.rounds in _SEARCH_ROUNDS:
                fit.search_ridge(point.ridge_index)
            else:
                fit.solve(point.ridge_index)
            point = point._replace(bias=fit.bias, ridge_index=max(0, fit.ridge_index))
        predictions = fit.predict(table.Z[self.held[k]]) + mean
        losses = None if plan else self.losses(predictions, self.held[k])
        return _Crossed(candidate, k, point, metric, predictions, losses), fit

    def _with_best_bias(self, some: FitRows, metric: np.ndarray, point: _Point) -> _Point:
        """Choose the bias of a metric by leave-one-out on some rows, at the ridge of ``point``."""
        biases = sorted(self.biases, key=lambda bias: bias != point.bias)
        fits = [KernelFit(some, metric, bias, point.kernel) for bias in biases]
        errors = [fit.leave_one_out(point.ridge_index).error for fit in fits]
        return point._replace(bias=biases[int(np.argmin(errors))])

    def _combine(self, crossed: list[_Crossed]) -> None:
        """Weight the candidates, decide on pieces and form the metric."""
        predictions: dict[_Candidate, np.ndarray] = {}
        for one in crossed:
            whole = predictions.setdefault(one.candidate, np.empty_like(self.losses.targets))
            whole[self.held[one.fold]] = one.predictions
        losses = {candidate: self.losses(whole) for candidate, whole in predictions.items()}
        best: dict[bool, _Candidate] = {}
        for candidate, loss in losses.items():
            before = best.setdefault(candidate.pieces, candidate)
            if loss.mean() < losses[before].mean():
                best[candidate.pieces] = candidate
        pieces = True in best and (False not in best or self._pays(losses[best[True]], losses[best[False]]))
        self.best = best[pieces]
        candidates = [candidate for candidate in losses if candidate.pieces == pieces]
        gaps = np.array([_gap(losses[candidate], losses[self.best]) for candidate in candidates])
        weights = np.exp(-np.maximum(gaps, 0.0) / _TEMPERATURE)
        weights[weights < _MIN_WEIGHT * weights.sum()] = 0.0
        weights /= weights.sum()
        share = dict(zip(candidates, weights, strict=True))
        used = [one for one in crossed if share.get(one.candidate, 0.0) > 0]
        folds = len(self.held)
        self.metric = geometric_mean([one.metric for one in used], [share[one.candidate] / folds for one in used])
        self.forecast = self.losses.score(sum((share[key] * predictions[key] for key in candidates), np.zeros(1)))
        self.last = next(one.point for one in crossed if one.candidate == self.best)
        if not pieces:
            self.pieces = []

    def _pays(self, with_pieces: np.ndarray, without: np.ndarray) -> bool:
        """Return whether pieces reduce the losses of the rows by enough."""
        enough = with_pieces.mean() <= (1.0 - self.min_pieces_gain) * without.mean()
        return bool(enough) and _gap(without, with_pieces) > _PIECES_ERRORS

    def settings(self, rows: np.ndarray) -> TableSettings:
        """Choose bias, output scale and ridge with the metric; ``rows`` are those of the sample in the table."""
        some = np.arange(min(len(rows), _LAST_ROWS))
        point, fit, found = self._best_point(some, bool(self.pieces), self.metric, self.last, self.kernels)
        total = 0.0
        own = self.tables[False].take(some)
        for block, gradients in fit.gradients():
            if self.pieces:
                gradients = through_pieces(gradients, own.Z[block], self.pieces)
            if self.squared_norm is not None:
                gradients = self.squared_norm.through(gradients, own.Z[block, :-1])
            total = total + own.weight[block] @ gradients.astype(np.float64) ** 2
        sizes = np.sqrt(np.asarray(total, np.float64))
        left_out = own.targets - found.errors
        forecast = self.forecast
        if forecast is None:
            forecast = _Losses(own, self.losses.classes).score(left_out)
        return TableSettings(
            bias=point.bias,
            metric=self.metric,
            output_layer_scale=point.output_scale,
            ridge=RELATIVE_RIDGES[point.ridge_index] if point.ridge_index >= 0 else 1.0,
            error=found.error,
            rows=len(rows),
            rounds=self.best.rounds,
            importances=sizes / sizes.sum() if sizes.any() else np.full(len(sizes), 1.0 / max(len(sizes), 1)),
            forecast=forecast,
            pieces=self.pieces,
            squared_norm=self.squared_norm,
            left_out=left_out,
            chosen_rows=rows[some],
        )


def _folds(n: int, labels: np.ndarray | None, folds: int) -> np.ndarray:
    """Return the fold of each row, (n,), of equal sizes, with classes in equal shares."""
    order = np.random.default_rng(5).permutation(n)
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(n, np.int64)
    fold[order] = np.arange(n) % folds
    return fold


def _gap(loss: np.ndarray, best: np.ndarray) -> float:
    """Return the mean of ``loss`` − ``best`` in its standard errors."""
    difference = loss - best
    if not np.isfinite(difference).all():
        return np.inf
    return float(difference.mean() / max(difference.std() / len(difference) ** 0.5, 1e-300))
