"""Batches of rows: candidate lists by row, and the passes over the pairs that fire.

The ``data`` engine keeps a list of samples for each neuron, which is best where every step looks at all samples. A
batch wants the opposite: for each of its rows the neurons that may fire. ``RowLists`` keeps those for a table, from the
weights as they were when the lists were begun, and measures in every pass how far each neuron has moved since: a
neuron within its reach fires for nobody outside the lists, one beyond it is looked at for every row of the batch. It
does not matter who moves the weights, or how.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fireset._util.aligned import aligned_empty, aligned_rows, aligned_zeros, is_aligned
from fireset._util.errors import CertificateError
from fireset._util.gaussian import upper_tail
from fireset._util.parallel import parallel_map
from fireset._util.rounding import dot_slack, row_norms
from fireset.engines.step_rule import StepRule
from fireset.fire_sets import fire_sets_of_pairs
from fireset.hsr import build
from fireset.kernels.row_lists import (
    LEVELS,
    Batch,
    Fired,
    Lists,
    Neurons,
    add_output_gradients,
    add_row_gradients,
    add_weight_gradients,
    cut_rows,
    forward_rows,
    measure,
    step_blocks,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_BLOCK_BYTES = 1 << 19  # of weights that stay in a core's cache while all rows of a batch look at them
_PARTS = 4  # that a pass is shared out in; a constant, so that sums do not depend on the number of cores
_FIRST_RADIUS, _LEAST_RADIUS = 0.3, 0.1
LARGEST_RADIUS = 0.8
_FEW_FAR = 0.003  # of all neurons, that are rather looked at for all rows than one level more of all lists
_MOST_FAR = 0.02  # beyond their last reach: then the lists are begun anew
_OFTEN_USED = 32  # times, on average, after which lists that end might have been shorter
_SELDOM_USED = 8  # before which they should have been longer
_AUDITS = 4096  # every neuron is held against a batch once in about so many passes
_AUDITED_PAIRS = 1 << 16
_SEARCHED_AT_ONCE = 1 << 24  # candidates reported at a time, about

_NOBODY_FAR = np.empty(0, np.uint8)


def neurons_of(weights: np.ndarray, outputs: np.ndarray, threshold: float) -> Neurons:
    """A network as the passes read it: its own memory where rows are whole cache lines, else a copy."""
    aligned = weights if is_aligned(weights) else aligned_rows(weights)
    fitting = int(np.clip(_BLOCK_BYTES // max(1, aligned.shape[1] * aligned.itemsize), 64, 1 << 15))
    blocks = -(-len(weights) // (_PARTS * fitting)) * _PARTS  # as many for each part
    return Neurons(aligned, outputs, weights.dtype.type(threshold), max(1, -(-len(weights) // blocks)))


class FiredRows(NamedTuple):
    """The pairs of a batch that fire, at the weights of one forward pass."""

    batch: Batch
    block: int
    parts: list[tuple[tuple[int, int], Fired]]  # ranges of blocks, and who fires there
    pairs: int
    looked_at: int  # pairs, to find them

    def fire_sets(self, width: int) -> "csr_array":
        """k × m, rows sorted."""
        neurons, samples = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for (lo, _), fired in self.parts:
            for q, ends in enumerate(fired.ends):
                neurons.append((lo + q) * self.block + fired.ids[ends[0] : ends[-1]].astype(np.int64))
                samples.append(np.repeat(np.arange(len(ends) - 1), np.diff(ends)))
        return fire_sets_of_pairs(np.concatenate(samples), np.concatenate(neurons), (len(self.batch.rows), width))

    def neurons(self, width: int) -> np.ndarray:
        """Those that fire for any row, ascending."""
        fires = np.zeros(width, bool)
        for (lo, _), fired in self.parts:
            for q, ends in enumerate(fired.ends):
                fires[(lo + q) * self.block + fired.ids[ends[0] : ends[-1]].astype(np.int64)] = True
        return np.flatnonzero(fires)

    def count(self, neuron: int) -> int:
        """For how many rows this neuron fires."""
        q, place = divmod(neuron, self.block)
        for (lo, hi), fired in self.parts:
            if lo <= q < hi:
                return int(np.count_nonzero(fired.ids[fired.ends[q - lo, 0] : fired.ends[q - lo, -1]] == place))
        return 0

    def weight_gradients(self, outputs: np.ndarray, residual: np.ndarray, width: int) -> np.ndarray:
        """Σ_i fired (Σ_c a_rc residual_ic) x_i for all neurons, (m, d), aligned as the samples are."""
        columns, dtype = self.batch.samples.shape[1], self.batch.samples.dtype
        if not self.parts:
            return aligned_zeros(width, columns, dtype)
        gradients = aligned_empty(width, columns, dtype)

        def add(part: tuple[tuple[int, int], Fired]) -> None:
            add_weight_gradients(self.batch, outputs, residual, part[1], gradients, self.block, *part[0])

        parallel_map(add, self.parts)
        return gradients

    def output_gradients(self, residual: np.ndarray, width: int) -> np.ndarray:
        """Σ_i fired (⟨w_r, x_i⟩ − b) residual_ic for all neurons, (m, c); the pass must have kept values."""
        gradients = np.zeros((width, residual.shape[1]), residual.dtype)
        parallel_map(lambda part: add_output_gradients(residual, part[1], gradients, self.block, *part[0]), self.parts)
        return gradients

    def row_gradients(self, neurons: Neurons, residual: np.ndarray) -> np.ndarray:
        """Σ_r fired (Σ_c a_rc residual_ic) w_r for all rows of the batch, (k, d), aligned as the weights are."""

        def add(part: tuple[tuple[int, int], Fired]) -> np.ndarray:
            gradients = aligned_zeros(len(residual), neurons.weights.shape[1], residual.dtype)
            add_row_gradients(neurons, residual, part[1], gradients, *part[0])
            return gradients

        nothing = np.zeros((len(residual), neurons.weights.shape[1]), residual.dtype)
        return sum(parallel_map(add, self.parts), nothing)

    def step(
        self, neurons: Neurons, velocity: np.ndarray, residual: np.ndarray, rule: StepRule, lists: "RowLists"
    ) -> None:
        """``W ← W − rule(∂L/∂W)`` in place, and tell ``lists``, which this pass was made with.

        ``velocity`` is aligned as the weights are, or has no rows.
        """
        arguments = rule.arguments(neurons.weights.dtype)
        followed = lists.references, lists.moved

        def step_part(part: tuple[tuple[int, int], Fired]) -> None:
            step_blocks(neurons, velocity, self.batch, residual, part[1], arguments, *followed, *part[0])

        parallel_map(step_part, self.parts)


def fire_rows(neurons: Neurons, X: np.ndarray, *, with_values: bool = False) -> tuple[np.ndarray, FiredRows]:
    """One pass over rows X (k, d) that nothing is known of: every pair is looked at. Returns Σ_r a_rc σ_b, who fires.

    Cost O(k · m · d), by matrix products; what follows from it is paid for by fired pair.
    """
    samples = aligned_rows(X)
    slack = _slack(neurons, samples, 0.0)
    if not np.isfinite(slack):
        return np.full((len(X), neurons.outputs.shape[1]), np.nan), _nobody(samples, neurons)
    lists = _search(neurons, samples, 2 * slack)
    batch = Batch(samples, np.arange(len(samples)))
    return _pass(neurons, batch, lists, LEVELS - 1, _NOBODY_FAR, slack, with_values)


def _nobody(samples: np.ndarray, neurons: Neurons) -> FiredRows:
    return FiredRows(Batch(samples, np.arange(len(samples))), neurons.block, [], 0, 0)


def _slack(neurons: Neurons, samples: np.ndarray, reach: float) -> float:
    """Bound on the rounding of inner products; not finite where weights are not, or where they may overflow.

    The norm of all weights together stands for the largest of a neuron's: it takes one pass, and being rather too
    careful costs a few more candidates.
    """
    flat = neurons.weights.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.sqrt(np.dot(flat, flat))) + reach
    norms = row_norms(samples)
    slack = dot_slack(samples.shape[1], samples.dtype, norm, norms.max(initial=0.0))
    return float(slack) if np.isfinite(norm) else np.inf


def _blocks(neurons: Neurons) -> int:
    return -(-len(neurons.weights) // neurons.block)


def _search(neurons: Neurons, samples: np.ndarray, margin: float) -> Lists:
    """The lists of these samples: whoever may be above b − ``margin``. Cost O(samples · m · d)."""
    cuts = np.zeros((len(samples), LEVELS * _blocks(neurons) + 1), np.int32)
    if len(samples) == 0:
        return Lists(np.empty(0, np.int16), np.empty(0, np.int64), cuts)
    index = build(neurons.weights, "scan", copy=False)
    threshold = float(neurons.threshold)
    found = index.report(samples, np.full(len(samples), threshold - margin))
    ids = np.empty(len(found.ids), np.int16)
    height = max(margin, 1e-300) / LEVELS
    parallel_map(
        lambda span: cut_rows(*found, threshold, height, neurons.block, ids, cuts, *span), _parts(len(samples))
    )
    return Lists(ids, found.indptr[:-1], cuts)


def _parts(count: int) -> list[tuple[int, int]]:
    parts = max(1, min(_PARTS, count))
    return [(count * k // parts, count * (k + 1) // parts) for k in range(parts)]


def _pass(
    neurons: Neurons,
    batch: Batch,
    lists: Lists,
    level: int,
    far_off: np.ndarray,
    slack: float,
    with_values: bool,
) -> tuple[np.ndarray, FiredRows]:
    """Sums (k, c), float64, and who fires."""
    dtype, rows, spans = neurons.weights.dtype, batch.rows, _parts(_blocks(neurons))
    band = dtype.type(slack if dtype == np.float64 else -1.0)
    edges = LEVELS * np.array([span[0] for span in spans] + [spans[-1][1]])
    candidates = np.diff(lists.cuts[rows[:, None], edges].sum(axis=0, dtype=np.int64))

    def run(k: int) -> tuple[np.ndarray, Fired, tuple[int, int]]:
        lo, hi = spans[k]
        room = candidates[k] + len(rows) * np.count_nonzero(far_off[lo * neurons.block : hi * neurons.block]) + 1
        fired = Fired(
            np.empty(room, np.int16),
            np.zeros((hi - lo, len(rows) + 1), np.int64),
            np.empty(room if with_values else 0, dtype),
        )
        sums = np.zeros((len(rows), neurons.outputs.shape[1]))
        looked_at, pairs = forward_rows(neurons, batch, lists, level, far_off, band, fired, sums, lo, hi)
        return sums, fired, (int(looked_at), int(pairs))

    done = parallel_map(run, range(len(spans)))
    parts = [(span, fired) for span, (_, fired, _) in zip(spans, done, strict=True)]
    looked_at, pairs = (sum(counted[k] for _, _, counted in done) for k in range(2))
    fired_rows = FiredRows(batch, neurons.block, parts, pairs, looked_at)
    return sum((sums for sums, _, _ in done[1:]), done[0][0]), fired_rows


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
        How far from them each neuron is, as ``follow`` or ``FiredRows.step`` found.
    """

    def __init__(self, X: np.ndarray):
        self.samples = aligned_rows(X)
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
                lambda span: measure(neurons.weights, self.references, self.moved, *span), _parts(len(self.moved))
            )

    def fire(self, neurons: Neurons, rows: np.ndarray, *, with_values: bool = False) -> tuple[np.ndarray, FiredRows]:
        """One pass over some rows of the table, at weights that were followed; as ``fire_rows``.

        Cost O(d) for each candidate of these rows, and for rows without a list O(m · d).
        """
        found = self._level(neurons)
        if found is None:
            if not self._begin(neurons):
                nowhere = np.full((len(rows), neurons.outputs.shape[1]), np.nan)
                return nowhere, _nobody(self.samples[rows], neurons)
            found = 0, _NOBODY_FAR
        self._list(neurons, rows)
        self._uses += len(rows)
        batch = Batch(self.samples, rows)
        sums, fired = _pass(neurons, batch, self._lists, *found, self._slack, with_values)
        self._audit(neurons, fired)
        return sums, fired

    def _level(self, neurons: Neurons) -> tuple[int, np.ndarray] | None:
        """Levels of the lists that have to be looked at, and neurons that are too far off; None where too many are."""
        if self.references.shape != neurons.weights.shape or self._threshold != neurons.threshold:
            return None
        for level, reach in enumerate(self._reaches):
            far = ~(self.moved <= reach)
            count = np.count_nonzero(far)
            if count <= (_FEW_FAR if level < LEVELS - 1 else _MOST_FAR) * len(far):
                return level, far.view(np.uint8) if count else _NOBODY_FAR
        return None

    def _begin(self, neurons: Neurons) -> bool:
        """Take the weights as they are for reference, and forget all lists; False where weights are not finite."""
        n = len(self.samples)
        if self.listed:
            uses = self._uses / self.listed
            factor = 1.5 if uses < _SELDOM_USED else 0.8 if uses > _OFTEN_USED else 1.0
            self._radius = min(max(self._radius * factor, _LEAST_RADIUS), LARGEST_RADIUS)
        self._slack = _slack(neurons, self.samples, self._radius / max(self._norm, 1e-300))
        if not np.isfinite(self._slack):
            return False
        self._margin = self._radius + 2 * self._slack
        # What a level certifies, as a distance; less a little for the rounding of its edge.
        heights = self._margin * np.arange(1, LEVELS + 1) / LEVELS - 2 * self._slack
        rounding = 4 * float(np.finfo(self.samples.dtype).eps) * (abs(float(neurons.threshold)) + self._margin)
        self._reaches = (heights - rounding) / max(self._norm, 1e-300)
        self.references, self.moved = aligned_rows(neurons.weights), np.zeros(len(neurons.weights))
        self._threshold = neurons.threshold
        room = int(1.1 * n * len(neurons.weights) * upper_tail(float(neurons.threshold) - self._radius)) + 1
        cuts = np.zeros((n, LEVELS * _blocks(neurons) + 1), np.int32)
        self._lists = Lists(np.empty(room, np.int16), np.full(n, -1, np.int64), cuts)
        self._used = self._uses = self.listed = 0
        self.begun += 1
        return True

    def _list(self, neurons: Neurons, rows: np.ndarray) -> None:
        """Make the lists of those of these rows that have none."""
        missing = np.unique(rows[self._lists.starts[rows] < 0])
        expected = len(self.references) * upper_tail(float(self._threshold) - self._radius)
        at_once = max(64, int(_SEARCHED_AT_ONCE / max(expected, 1.0)))
        reference = neurons._replace(weights=self.references)
        for lo in range(0, len(missing), at_once):
            some = missing[lo : lo + at_once]
            self._store(some, _search(reference, self.samples[some], self._margin))

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

    def _audit(self, neurons: Neurons, fired: FiredRows) -> None:
        """Hold some neurons against every row of the batch; raises CertificateError where the lists missed one."""
        m, rows = len(neurons.weights), fired.batch.rows
        share = max(1, min(m // _AUDITS, _AUDITED_PAIRS // max(1, len(rows))))
        first = self._next_audit
        some = slice(first, min(first + share, m))
        self._next_audit = some.stop % m
        with np.errstate(over="ignore", invalid="ignore"):
            fires = self.samples[rows] @ neurons.weights[some].T > neurons.threshold + 2 * self._slack
        for r, expected in zip(range(first, some.stop), fires.sum(axis=0), strict=True):
            if expected and fired.count(r) < expected:
                raise CertificateError(
                    f"neuron {r} fires for {expected} rows, of which its lists know {fired.count(r)}; was the table "
                    f"changed? Attach it again"
                )
