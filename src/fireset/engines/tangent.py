"""The fire-set kernel as a map v ↦ H v = (1/m) J Jᵀ v, without an n × n matrix, and as the matrix that it is."""

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fireset._util.parallel import parallel_map, ranges
from fireset.sparse_rows import Rows, kernel_rows

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_ROW_BLOCKS = 16  # of a table of counts: enough to keep all cores busy, though later rows are longer
_PAIR, _BIT = 1.0, 0.1 / 64  # nanoseconds to count a neuron for a pair of samples, from its list and from its bit

TangentOperator = Callable[[np.ndarray], np.ndarray]


class ActiveByNeuron(NamedTuple):
    """The fire sets by neuron: r fires for ``samples[indptr[r]:indptr[r+1]]``, in any order."""

    indptr: np.ndarray  # (m + 1,)
    samples: np.ndarray
    n_samples: int

    @classmethod
    def of(cls, fire_sets: "csr_array") -> "ActiveByNeuron":
        columns = fire_sets.tocsc()
        return cls(columns.indptr, columns.indices, len(fire_sets.indptr) - 1)


def fire_set_product(X: Rows, output_weights: np.ndarray, fire_sets: "csr_array") -> TangentOperator:
    """The map v ↦ (1/m) J Jᵀ v for v (n, c), in float64; J as the fire sets have it.

    A product costs two passes over the fired pairs, O(d · fired).
    """
    from fireset.kernels.fire_sets import tangent_product

    n, m, dtype, rows = len(X), len(output_weights), X.dtype, kernel_rows(X)
    columns = fire_sets.tocsc()

    def product(direction: np.ndarray) -> np.ndarray:
        direction = direction.astype(dtype)

        def span_product(span: tuple[int, int]) -> np.ndarray:
            share = np.zeros((n, output_weights.shape[1]))
            tangent_product(rows, output_weights, columns.indptr, columns.indices, direction, share, *span)
            return share

        return np.sum(parallel_map(span_product, ranges(m)), axis=0) / m

    return product


def largest_eigenvalue(
    X: Rows, output_weights: np.ndarray, fire_sets: "csr_array", sample_weight: np.ndarray | None = None, **limits
) -> float:
    """λ_max of the fire-set kernel (1/m) J Jᵀ over all outputs, by power iteration from a fixed start.

    With one output and no weights this is H(t). With sample weights it is that of D^½ H D^½. ``limits`` are those of
    ``power_iteration``.
    """
    return power_iteration(
        fire_set_product(X, output_weights, fire_sets), X, output_weights.shape[1], sample_weight, **limits
    )


def power_iteration(
    product: TangentOperator,
    X: Rows,
    outputs: int,
    sample_weight: np.ndarray | None = None,
    *,
    tolerance: float = 1e-3,
    max_products: int = 60,
    norm: Callable[[np.ndarray], float | np.floating] = np.linalg.norm,
) -> float:
    """λ_max of D^½ H D^½, D the sample weights, from products with H; a lower bound.

    Ends when the estimate has stopped moving by more than ``tolerance``. Where X and the vectors are a part of the
    rows, ``norm`` is that of the whole.
    """
    root = np.ones(len(X)) if sample_weight is None else np.sqrt(sample_weight)
    # A start that depends on the rows, not on their order or number: a row of weight 2 acts as two rows. The constant
    # is near the top vector where all inner products are positive, as on most real data; the rest meets the others.
    spread = np.random.default_rng(0).standard_normal((X.shape[1], outputs))
    vector = root[:, None] * (1.0 + X.astype(np.float64) @ spread)
    estimate = 0.0
    for _ in range(max_products):
        size = float(norm(vector))
        if size == 0.0:
            return 0.0
        vector /= size
        vector = product(vector * root[:, None]) * root[:, None]
        previous, estimate = estimate, float(norm(vector))
        if abs(estimate - previous) <= tolerance * estimate:
            break
    return estimate


def common_counts(columns: ActiveByNeuron, dtype=np.float64) -> np.ndarray:
    """How many neurons fire for both of two samples, for all pairs.

    (n, n), of which only the lower triangle means anything. Cost on all cores: for a neuron that fires for k̃ of the n
    samples k̃², or n²/1000 where that is less (``kernels/fire_sets.py``); memory n² numbers, and a bit for each
    sample and each neuron of the second kind.
    """
    from fireset.kernels.fire_sets import count_common_pairs

    columns, factor = _one_of_each_pair(columns)
    indptr, active, n = columns
    lengths = np.diff(indptr)
    often = lengths.astype(np.float64) ** 2 * _PAIR > 0.5 * n * n * _BIT
    by_bits, by_pairs = np.flatnonzero(often), np.flatnonzero(~often & (lengths > 0))
    table = np.zeros((n, n), dtype)
    _count_bits(_packed(columns, by_bits), table)
    parallel_map(lambda rows: count_common_pairs(indptr, active, by_pairs, table, *rows), _row_blocks(n))
    if factor != 1:
        table *= dtype(factor)
    return table


def _count_bits(bits: np.ndarray, table: np.ndarray) -> None:
    """Add to the lower triangle of ``table`` the bits that two rows have in common."""
    from fireset.kernels.fire_sets import count_common_bits

    parallel_map(lambda rows: count_common_bits(bits, table, *rows), _row_blocks(len(bits)))


def _row_blocks(n: int) -> list[tuple[int, int]]:
    """Row i has i + 1 entries: ranges of equal area, the longest rows first."""
    cuts = np.rint(n * np.sqrt(np.arange(_ROW_BLOCKS + 1) / _ROW_BLOCKS)).astype(int)[::-1]
    return [(int(lo), int(hi)) for hi, lo in pairwise(cuts) if hi > lo]


def _one_of_each_pair(columns: ActiveByNeuron) -> tuple[ActiveByNeuron, int]:
    """At an antisymmetric start neurons r and r + m/2 fire for the same samples: half of them, to count twice."""
    indptr, active, n = columns
    half, odd = divmod(len(indptr) - 1, 2)
    middle = indptr[half]
    if odd or 2 * middle != indptr[-1] or not np.array_equal(indptr[: half + 1] + middle, indptr[half:]):
        return columns, 1
    if not np.array_equal(active[:middle], active[middle:]):
        return columns, 1
    return ActiveByNeuron(indptr[: half + 1], active[:middle], n), 2


def _packed(columns: ActiveByNeuron, neurons: np.ndarray) -> np.ndarray:
    """A bit for each sample and each of these neurons: (n, words), uint64."""
    from fireset.kernels.fire_sets import WORDS_AT_ONCE, pack_bits

    indptr, active, n = columns
    bits = np.zeros((n, -(-len(neurons) // (64 * WORDS_AT_ONCE)) * WORDS_AT_ONCE), np.uint64)
    # Ranges of whole words: nobody writes to another's.
    spans = [(64 * lo, min(64 * hi, len(neurons))) for lo, hi in ranges(-(-len(neurons) // 64))]
    parallel_map(lambda span: pack_bits(indptr, active, neurons, bits, *span), spans)
    return bits


class FireSetColumns:
    """Some rows of ``common_counts`` at a time, whole ones, without the table; n · m / 8 bytes."""

    def __init__(self, columns: ActiveByNeuron):
        columns, self._factor = _one_of_each_pair(columns)
        self._bits = _packed(columns, np.flatnonzero(np.diff(columns.indptr)))
        self._diagonal = np.bitwise_count(self._bits).sum(axis=1) * float(self._factor)

    def diagonal(self) -> np.ndarray:
        return self._diagonal

    def table(self, samples: np.ndarray) -> np.ndarray:
        """``common_counts`` of these samples, (k, k), float32, its lower triangle."""
        table = np.zeros((len(samples), len(samples)), np.float32)
        _count_bits(self._bits[samples], table)
        table *= np.float32(self._factor)
        return table

    def counts(self, samples: np.ndarray) -> np.ndarray:
        """(len(samples), n), float32."""
        from fireset.kernels.fire_sets import count_bits_of_rows

        table = np.empty((len(samples), len(self._bits)), np.float32)
        chosen, spans = self._bits[samples], ranges(len(self._bits))
        parallel_map(lambda span: count_bits_of_rows(self._bits, chosen, self._factor, table, *span), spans)
        return table
