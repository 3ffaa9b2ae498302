"""Batches of rows: candidate lists by row, and the passes over the pairs that fire.

The ``data`` engine keeps a list of samples for each neuron, which is best where every step looks at all samples. A
batch wants the opposite: for each of its rows the neurons that may fire. ``RowLists`` keeps those for a table, from the
weights as they were when the lists were begun, and measures in every pass how far each neuron has moved since: a
neuron within its reach fires for nobody outside the lists, one beyond it is looked at for every row of the batch. It
does not matter who moves the weights, or how.
"""

import numpy as np

from fireset._util.aligned import aligned_copy, aligned_rows
from fireset._util.errors import CertificateError
from fireset._util.gaussian import upper_tail
from fireset._util.parallel import parallel_map
from fireset._util.rounding import row_norms
from fireset.engines.active_rows import (
    NO_DRIFTED_NEURONS,
    ActiveRows,
    count_blocks,
    fire_rows,
    index_of,
    parts_of,
    pass_over,
    rounding_slack,
    search_rows,
    weight_norm,
)
from fireset.kernels.row_lists import LEVELS, Batch, Lists, Neurons, measure

_FIRST_RADIUS, _MIN_RADIUS = 0.3, 0.1
MAX_RADIUS = 0.8
_FEW_FAR = 0.003  # of all neurons, that are rather looked at for all rows than one level more of all lists
_MAX_FAR = 0.02  # beyond their last reach: then the lists are begun anew
_OFTEN_USED = 32  # times, on average, after which lists that end might have been shorter
_SELDOM_USED = 8  # before which they should have been longer
_AUDITS = 4096  # every neuron is held against a batch once in about so many passes
_AUDITED_PAIRS = 1 << 16
SEARCHED_AT_ONCE = 1 << 22  # candidates reported at a time, about


def _largest_norm(X: np.ndarray) -> float:
    return float(row_norms(X).max(initial=0.0)) * (1 + 1e-9)


def _extended(array: np.ndarray, more: np.ndarray) -> np.ndarray:
    """Both, one after the other; in the memory behind ``array`` where there is enough."""
    n, total = len(array), len(array) + len(more)
    room = array.base
    if room is None or room.ndim != array.ndim or len(room) < total or room.shape[1:] != array.shape[1:]:
        room = np.empty((2 * total, *array.shape[1:]), array.dtype)
        room[:n] = array
    room[n:total] = more
    return room[:total]


class RowLists:
    """Candidates by row for a table, for weights that anybody may move.

    Parameters
    ----------
    X : (n, d) array
        Copied.

    Attributes
    ----------
    begun : int
        How often the lists were begun anew.
    listed : int
        Rows that have lists.
    references : (m, d) array, aligned
        The weights that the lists were made from.
    moved : (m,) array
        How far from them each neuron is, as ``follow`` or ``ActiveRows.step`` found.
    """

    def __init__(self, X: np.ndarray):
        self.samples = aligned_copy(X)
        self._features = X.shape[1]
        self._numbers: dict[bytes, int] = {}
        self._norm = _largest_norm(X)
        self._radius = _FIRST_RADIUS
        self.references = np.empty((0, self.samples.shape[1]), X.dtype)
        self.moved = np.empty(0)
        self._threshold = np.nan
        self._lists = Lists(np.empty(0, np.int16), np.empty(0, np.int64), np.empty((0, 1), np.int32))
        self._used = self._uses = self._next_audit = 0
        self.listed = self.begun = 0

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def nbytes(self) -> int:
        """Of rows and lists."""
        return self.samples.nbytes + self._lists.cuts.nbytes + 2 * self._used

    def suits(self, X: np.ndarray) -> bool:
        """Whether these could be rows of the table."""
        return X.shape[1] == self._features and X.dtype == self.samples.dtype

    def numbers_of(self, X: np.ndarray) -> np.ndarray:
        """The numbers of these rows, to the bit; those that are not known yet are added to the table."""
        if len(self._numbers) < len(self):
            self._numbers = {row.tobytes(): k for k, row in enumerate(self.samples[:, : self._features])}
        before, new = len(self._numbers), []
        numbers = np.empty(len(X), np.int64)
        for k, row in enumerate(X):
            numbers[k] = self._numbers.setdefault(row.tobytes(), len(self._numbers))
            if numbers[k] == before + len(new):
                new.append(k)
        if new:
            self._add(X[new])
        return numbers

    def _add(self, X: np.ndarray) -> None:
        # Amortized: memory doubles when it is used up.
        self.samples = _extended(self.samples, aligned_rows(X))
        if len(self.references):
            cuts = np.zeros((len(X), self._lists.cuts.shape[1]), np.int32)
            starts = np.full(len(X), -1, np.int64)
            self._lists = Lists(
                self._lists.ids, _extended(self._lists.starts, starts), _extended(self._lists.cuts, cuts)
            )
        norm = _largest_norm(X)
        if norm > self._norm:  # the lists were made for shorter rows
            self._norm, self._threshold = norm, np.nan

    def follow(self, neurons: Neurons) -> None:
        """Measure how far the weights have moved, whoever moved them."""
        if self.references.shape == neurons.weights.shape:
            parallel_map(
                lambda span: measure(neurons.weights, self.references, self.moved, *span), parts_of(len(self.moved))
            )

    def fire(self, neurons: Neurons, rows: np.ndarray, *, with_values: bool = False) -> tuple[np.ndarray, ActiveRows]:
        """One pass over some rows of the table, at weights that were followed; as ``fire_rows``.

        Cost O(d) for each candidate of these rows, and for rows without a list O(m · d).
        """
        found = self._level(neurons)
        if found is None:
            if not self._begin(neurons):
                return fire_rows(neurons, self.samples[rows], with_values=with_values)
            # The first level that certifies anything; all of them where rounding is larger than the radius.
            certified = np.flatnonzero(self._reaches >= 0)
            found = (int(certified[0]) if len(certified) else LEVELS - 1), NO_DRIFTED_NEURONS
        self._list(neurons, rows)
        self._uses += len(rows)
        batch = Batch(self.samples, rows)
        sums, active = pass_over(neurons, batch, self._lists, *found, self._slack, with_values)
        self._audit(neurons, active)
        return sums, active

    def _level(self, neurons: Neurons) -> tuple[int, np.ndarray] | None:
        """Levels of the lists that have to be looked at, and neurons that are too far off; None where too many are."""
        if self.references.shape != neurons.weights.shape or self._threshold != neurons.threshold:
            return None
        for level, reach in enumerate(self._reaches):
            far = ~(self.moved <= reach)
            count = np.count_nonzero(far)
            if count <= (_FEW_FAR if level < LEVELS - 1 else _MAX_FAR) * len(far):
                return level, far.view(np.uint8) if count else NO_DRIFTED_NEURONS
        return None

    def _begin(self, neurons: Neurons) -> bool:
        """Take the weights as they are for reference, and forget all lists; False where inner products may overflow."""
        n = len(self.samples)
        if self.listed:
            uses = self._uses / self.listed
            factor = 1.5 if uses < _SELDOM_USED else 0.8 if uses > _OFTEN_USED else 1.0
            self._radius = min(max(self._radius * factor, _MIN_RADIUS), MAX_RADIUS)
        norm = weight_norm(neurons.weights)
        slack = rounding_slack(norm + self._radius / max(self._norm, 1e-300), self.samples)
        if not np.isfinite(slack):
            return False
        self._slack = slack
        self._margin = self._radius + 2 * self._slack
        # What a level certifies, as a distance; less a little for the rounding of its edge.
        heights = self._margin * np.arange(1, LEVELS + 1) / LEVELS - 2 * self._slack
        rounding = 4 * float(np.finfo(self.samples.dtype).eps) * (abs(float(neurons.threshold)) + self._margin)
        self._reaches = (heights - rounding) / max(self._norm, 1e-300)
        self.references, self.moved = aligned_copy(neurons.weights), np.zeros(len(neurons.weights))
        self._index = index_of(self.references, norm)
        self._threshold = neurons.threshold
        room = int(1.1 * n * len(neurons.weights) * upper_tail(float(neurons.threshold) - self._radius)) + 1
        cuts = np.zeros((n, LEVELS * count_blocks(neurons) + 1), np.int32)
        self._lists = Lists(np.empty(room, np.int16), np.full(n, -1, np.int64), cuts)
        self._used = self._uses = self.listed = 0
        self.begun += 1
        return True

    def _list(self, neurons: Neurons, rows: np.ndarray) -> None:
        """Make the lists of those of these rows that have none."""
        missing = np.unique(rows[self._lists.starts[rows] < 0])
        expected = len(self.references) * upper_tail(float(self._threshold) - self._radius)
        at_once = max(64, int(SEARCHED_AT_ONCE / max(expected, 1.0)))
        for lo in range(0, len(missing), at_once):
            some = missing[lo : lo + at_once]
            self._store(some, search_rows(neurons, self._index, self.samples[some], self._margin))

    def _store(self, rows: np.ndarray, made: Lists) -> None:
        end = self._used + len(made.ids)
        if end > len(self._lists.ids):
            ids = np.empty(end + end // 4, np.int16)
            ids[: self._used] = self._lists.ids[: self._used]
            self._lists = self._lists._replace(ids=ids)
        self._lists.ids[self._used : end] = made.ids
        self._lists.starts[rows] = made.starts + self._used
        self._lists.cuts[rows] = made.cuts
        self._used, self.listed = end, self.listed + len(rows)

    def _audit(self, neurons: Neurons, active: ActiveRows) -> None:
        """Hold some neurons against every row of the batch; raises CertificateError where the lists missed one."""
        m, rows = len(neurons.weights), active.batch.rows
        share = max(1, min(m // _AUDITS, _AUDITED_PAIRS // max(1, len(rows))))
        first = self._next_audit
        some = slice(first, min(first + share, m))
        self._next_audit = some.stop % m
        with np.errstate(over="ignore", invalid="ignore"):
            fires = self.samples[rows] @ neurons.weights[some].T > neurons.threshold + 2 * self._slack
        for r, expected in zip(range(first, some.stop), fires.sum(axis=0), strict=True):
            if expected and active.count(r) < expected:
                raise CertificateError(
                    f"neuron {r} fires for {expected} rows, of which its lists know {active.count(r)}; was the table "
                    f"changed? Attach it again"
                )
