"""Candidate lists by row, for batches of rows.

The engine ``data`` keeps a list of rows for each neuron, which is fastest if every step uses all rows. A batch needs
the transpose: for each of its rows the neurons that can be active. ``RowLists`` keeps these lists for a table, made at
reference weights, and measures in every pass how far each neuron has drifted from them. A neuron within the reach of
its lists cannot be active outside of them; one beyond the reach is tested for every row of the batch. The weights may
be changed by any code, in any way.
"""

import numpy as np

from fireset._util.aligned import aligned_copy, aligned_rows
from fireset._util.errors import CertificateError
from fireset._util.gaussian import upper_tail
from fireset._util.parallel import parallel_map
from fireset._util.rounding import row_norms
from fireset.engines.batch_pairs import (
    NO_NEURONS,
    BatchPairs,
    count_cache_blocks,
    evaluate_candidates,
    find_active_pairs,
    rounding_slack,
    search_candidates,
    task_ranges,
    weight_index,
    weight_norm_bound,
)
from fireset.kernels.row_lists import LEVELS, Batch, Lists, Neurons, measure

_FIRST_RADIUS, _MIN_RADIUS = 0.3, 0.1
MAX_RADIUS = 0.8
_MAX_BEYOND_LEVEL = 0.003  # fraction of neurons tested for all rows before another level of all lists is tested
_MAX_BEYOND_LISTS = 0.02  # fraction of neurons beyond their last level; with more, the lists are rebuilt
_MANY_USES = 32  # of a list on average, when it is rebuilt: then the radius could have been smaller
_FEW_USES = 8  # then the radius should have been larger
_PASSES_PER_AUDIT_ROUND = 4096  # every neuron is audited about once in this number of passes
_MAX_AUDITED_PAIRS = 1 << 16
MAX_CANDIDATES_AT_ONCE = 1 << 22  # expected number of candidates reported by one search


def _largest_norm(X: np.ndarray) -> float:
    return float(row_norms(X).max(initial=0.0)) * (1 + 1e-9)


def _appended(array: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Append ``more`` to ``array``, in the free memory after it if there is enough; else allocate twice as much."""
    n, total = len(array), len(array) + len(more)
    memory = array.base
    if memory is None or memory.ndim != array.ndim or len(memory) < total or memory.shape[1:] != array.shape[1:]:
        memory = np.empty((2 * total, *array.shape[1:]), array.dtype)
        memory[:n] = array
    memory[n:total] = more
    return memory[:total]


class RowLists:
    """Candidate lists by row for a table, for weights that are changed by other code.

    Parameters
    ----------
    X : (n, d) array
        The rows; copied.

    Attributes
    ----------
    rebuilds : int
        Number of times the lists were discarded and new reference weights taken.
    n_listed : int
        Number of rows that have lists. A list is made when its row is first used.
    references : (m, d) array, aligned
        The weights at which the lists were made.
    drifts : (m,) array
        Distance of each neuron from its reference, measured by ``measure_drifts`` or ``BatchPairs.step``.
    """

    def __init__(self, X: np.ndarray):
        self.samples = aligned_copy(X)
        self._features = X.shape[1]
        self._numbers: dict[bytes, int] = {}
        self._norm = _largest_norm(X)
        self._radius = _FIRST_RADIUS
        self.references = np.empty((0, self.samples.shape[1]), X.dtype)
        self.drifts = np.empty(0)
        self._threshold = np.nan
        self._lists = Lists(np.empty(0, np.int16), np.empty(0, np.int64), np.empty((0, 1), np.int32))
        self._used = self._uses = self._next_audit = 0
        self.n_listed = self.rebuilds = 0

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def nbytes(self) -> int:
        """Bytes of rows and lists."""
        return self.samples.nbytes + self._lists.cuts.nbytes + 2 * self._used

    def accepts(self, X: np.ndarray) -> bool:
        """Return whether X has the number of columns and the precision of the table."""
        return X.shape[1] == self._features and X.dtype == self.samples.dtype

    def numbers_of(self, X: np.ndarray) -> np.ndarray:
        """Return the numbers of these rows in the table, compared by bits; rows that are missing are appended."""
        if len(self._numbers) < len(self):
            self._numbers = {row.tobytes(): k for k, row in enumerate(self.samples[:, : self._features])}
        before, new = len(self._numbers), []
        numbers = np.empty(len(X), np.int64)
        for k, row in enumerate(X):
            numbers[k] = self._numbers.setdefault(row.tobytes(), len(self._numbers))
            if numbers[k] == before + len(new):
                new.append(k)
        if new:
            self._append_rows(X[new])
        return numbers

    def _append_rows(self, X: np.ndarray) -> None:
        self.samples = _appended(self.samples, aligned_rows(X))
        if len(self.references):
            cuts = np.zeros((len(X), self._lists.cuts.shape[1]), np.int32)
            starts = np.full(len(X), -1, np.int64)
            self._lists = Lists(
                self._lists.ids, _appended(self._lists.starts, starts), _appended(self._lists.cuts, cuts)
            )
        norm = _largest_norm(X)
        if norm > self._norm:  # the lists assume smaller norms: rebuild them
            self._norm, self._threshold = norm, np.nan

    def measure_drifts(self, neurons: Neurons) -> None:
        """Measure the distances of the current weights from the references."""
        if self.references.shape == neurons.weights.shape:
            parallel_map(
                lambda span: measure(neurons.weights, self.references, self.drifts, *span),
                task_ranges(len(self.drifts)),
            )

    def find_active_pairs(
        self, neurons: Neurons, rows: np.ndarray, *, with_values: bool = False
    ) -> tuple[np.ndarray, BatchPairs]:
        """Return sums and active pairs of some rows of the table, as ``batch_pairs.find_active_pairs`` does.

        The drifts must be those of the current weights. Cost O(d) per candidate of these rows, and O(m · d) per row
        without a list.
        """
        found = self._choose_level(neurons)
        if found is None:
            if not self._rebuild(neurons):
                return find_active_pairs(neurons, self.samples[rows], with_values=with_values)
            # The first level that certifies anything; all levels if rounding exceeds the radius.
            certified = np.flatnonzero(self._reaches >= 0)
            found = (int(certified[0]) if len(certified) else LEVELS - 1), NO_NEURONS
        self._add_lists(neurons, rows)
        self._uses += len(rows)
        batch = Batch(self.samples, rows)
        sums, active = evaluate_candidates(neurons, batch, self._lists, *found, self._slack, with_values)
        self._audit(neurons, active)
        return sums, active

    def _choose_level(self, neurons: Neurons) -> tuple[int, np.ndarray] | None:
        """Return the level up to which lists must be tested, and the mask of neurons beyond it.

        None if the lists belong to another network or too many neurons are beyond the last level.
        """
        if self.references.shape != neurons.weights.shape or self._threshold != neurons.threshold:
            return None
        for level, reach in enumerate(self._reaches):
            beyond = ~(self.drifts <= reach)
            count = np.count_nonzero(beyond)
            if count <= (_MAX_BEYOND_LEVEL if level < LEVELS - 1 else _MAX_BEYOND_LISTS) * len(beyond):
                return level, beyond.view(np.uint8) if count else NO_NEURONS
        return None

    def _rebuild(self, neurons: Neurons) -> bool:
        """Take the current weights as references and discard all lists. Return False if inner products may overflow."""
        n = len(self.samples)
        if self.n_listed:
            uses = self._uses / self.n_listed
            factor = 1.5 if uses < _FEW_USES else 0.8 if uses > _MANY_USES else 1.0
            self._radius = min(max(self._radius * factor, _MIN_RADIUS), MAX_RADIUS)
        norm = weight_norm_bound(neurons.weights)
        slack = rounding_slack(norm + self._radius / max(self._norm, 1e-300), self.samples)
        if not np.isfinite(slack):
            return False
        self._slack = slack
        self._margin = self._radius + 2 * self._slack
        # The distance that each level certifies, minus the rounding of its edge.
        heights = self._margin * np.arange(1, LEVELS + 1) / LEVELS - 2 * self._slack
        rounding = 4 * float(np.finfo(self.samples.dtype).eps) * (abs(float(neurons.threshold)) + self._margin)
        self._reaches = (heights - rounding) / max(self._norm, 1e-300)
        self.references, self.drifts = aligned_copy(neurons.weights), np.zeros(len(neurons.weights))
        self._index = weight_index(self.references, norm)
        self._threshold = neurons.threshold
        capacity = int(1.1 * n * len(neurons.weights) * upper_tail(float(neurons.threshold) - self._radius)) + 1
        cuts = np.zeros((n, LEVELS * count_cache_blocks(neurons) + 1), np.int32)
        self._lists = Lists(np.empty(capacity, np.int16), np.full(n, -1, np.int64), cuts)
        self._used = self._uses = self.n_listed = 0
        self.rebuilds += 1
        return True

    def _add_lists(self, neurons: Neurons, rows: np.ndarray) -> None:
        """Make the lists of those of these rows that have none."""
        missing = np.unique(rows[self._lists.starts[rows] < 0])
        expected = len(self.references) * upper_tail(float(self._threshold) - self._radius)
        at_once = max(64, int(MAX_CANDIDATES_AT_ONCE / max(expected, 1.0)))
        for lo in range(0, len(missing), at_once):
            some = missing[lo : lo + at_once]
            self._store(some, search_candidates(neurons, self._index, self.samples[some], self._margin))

    def _store(self, rows: np.ndarray, made: Lists) -> None:
        end = self._used + len(made.ids)
        if end > len(self._lists.ids):
            ids = np.empty(end + end // 4, np.int16)
            ids[: self._used] = self._lists.ids[: self._used]
            self._lists = self._lists._replace(ids=ids)
        self._lists.ids[self._used : end] = made.ids
        self._lists.starts[rows] = made.starts + self._used
        self._lists.cuts[rows] = made.cuts
        self._used, self.n_listed = end, self.n_listed + len(rows)

    def _audit(self, neurons: Neurons, active: BatchPairs) -> None:
        """Compare some neurons with every row of the batch; raise ``CertificateError`` if the lists missed a pair."""
        m, rows = len(neurons.weights), active.batch.rows
        count = max(1, min(m // _PASSES_PER_AUDIT_ROUND, _MAX_AUDITED_PAIRS // max(1, len(rows))))
        first = self._next_audit
        some = slice(first, min(first + count, m))
        self._next_audit = some.stop % m
        with np.errstate(over="ignore", invalid="ignore"):
            fires = self.samples[rows] @ neurons.weights[some].T > neurons.threshold + 2 * self._slack
        for r, expected in zip(range(first, some.stop), fires.sum(axis=0), strict=True):
            if expected and active.count(r) < expected:
                raise CertificateError(
                    f"neuron {r} fires for {expected} rows, but its candidate lists contain {active.count(r)} of them; "
                    "attach the table again if it was changed"
                )
