"""Counts of the neurons that are active for both of two rows: the tangent kernel as a matrix, or some columns."""

from itertools import pairwise

import numpy as np

from fireset._util.parallel import parallel_map, ranges
from fireset.engines.cost import NS_PER_COMMON_BIT, NS_PER_COMMON_PAIR
from fireset.engines.tangent import ActiveByNeuron, CommonCountColumns
from fireset.kernels.fire_sets import (
    WORDS_AT_ONCE,
    count_common_bits,
    count_common_pairs,
    count_shared_bits,
    pack_bits,
)

_TASKS_PER_TABLE = 16  # enough to keep all cores busy, although later rows are longer


def common_counts(columns: ActiveByNeuron, dtype=np.float64) -> np.ndarray:
    """Count the neurons that are active for both rows i and j, for all pairs of rows; (n, n).

    Only the lower triangle is set. Cost on all cores: for a neuron that is active for k̃ of the n rows k̃², or n²/1000
    where that is less (``kernels/common_firing.py``). Memory: n² numbers, and a bit for each row and each neuron of the
    second kind.
    """
    columns, factor = first_of_twins(columns)
    indptr, active, n = columns
    lengths = np.diff(indptr)
    use_bits = lengths.astype(np.float64) ** 2 * NS_PER_COMMON_PAIR > 0.5 * n * n * NS_PER_COMMON_BIT
    by_bits, by_pairs = np.flatnonzero(use_bits), np.flatnonzero(~use_bits & (lengths > 0))
    table = np.zeros((n, n), dtype)
    _add_common_bits(_packed(columns, by_bits), table)
    parallel_map(lambda rows: count_common_pairs(indptr, active, by_pairs, table, *rows), _triangle_ranges(n))
    if factor != 1:
        table *= dtype(factor)
    return table


class BitCountColumns(CommonCountColumns):
    """Compute columns of ``common_counts`` from one bit per row and neuron; n · m / 8 bytes.

    With ``all_neurons`` every neuron has a bit, also one that is active for no row, and twins have one each unless
    ``twins`` is true. The bits of other rows with the same neurons can then be passed to ``counts_with``.

    Attributes
    ----------
    bits : (n, words) array of uint64
    """

    def __init__(self, columns: ActiveByNeuron, *, all_neurons: bool = False, twins: bool = False):
        self._factor = 1
        if twins or not all_neurons:
            columns, self._factor = first_of_twins(columns)
        neurons = np.arange(len(columns.indptr) - 1) if all_neurons else np.flatnonzero(np.diff(columns.indptr))
        self.bits = _packed(columns, neurons)
        self._diagonal = np.bitwise_count(self.bits).sum(axis=1) * float(self._factor)

    def diagonal(self) -> np.ndarray:
        return self._diagonal.copy()

    def table(self, samples: np.ndarray) -> np.ndarray:
        return self.table_of(self.bits[samples])

    def table_of(self, bits: np.ndarray) -> np.ndarray:
        """Return the counts between rows that are given by their bits, as ``table`` does."""
        table = np.zeros((len(bits), len(bits)), np.float32)
        _add_common_bits(bits, table)
        table *= np.float32(self._factor)
        return table

    def counts(self, samples: np.ndarray) -> np.ndarray:
        return self.counts_with(self.bits[samples])

    def counts_with(self, bits: np.ndarray) -> np.ndarray:
        """Return the counts of other rows, given by their bits, with all rows: (len(bits), n), float32."""
        table = np.empty((len(bits), len(self.bits)), np.float32)
        spans = ranges(len(self.bits))
        parallel_map(lambda span: count_shared_bits(bits, self.bits, self._factor, table, *span), spans)
        return table


def _add_common_bits(bits: np.ndarray, table: np.ndarray) -> None:
    """Add the number of common bits of two rows to the lower triangle of ``table``."""
    parallel_map(lambda rows: count_common_bits(bits, table, *rows), _triangle_ranges(len(bits)))


def _triangle_ranges(n: int) -> list[tuple[int, int]]:
    """Divide the rows of a lower triangle into ranges of equal area, the longest rows first."""
    cuts = np.rint(n * np.sqrt(np.arange(_TASKS_PER_TABLE + 1) / _TASKS_PER_TABLE)).astype(int)[::-1]
    return [(int(lo), int(hi)) for hi, lo in pairwise(cuts) if hi > lo]


def has_twins(columns: ActiveByNeuron) -> bool:
    """Return whether both halves of the neurons have equal fire sets."""
    return first_of_twins(columns)[1] == 2


def first_of_twins(columns: ActiveByNeuron) -> tuple[ActiveByNeuron, int]:
    """Return the first half of the neurons and 2 if both halves have equal fire sets, else all neurons and 1.

    Equal halves are those of an antisymmetric start.
    """
    indptr, active, n = columns
    half, odd = divmod(len(indptr) - 1, 2)
    middle = indptr[half]
    if odd or 2 * middle != indptr[-1] or not np.array_equal(indptr[: half + 1] + middle, indptr[half:]):
        return columns, 1
    if not np.array_equal(active[:middle], active[middle:]):
        return columns, 1
    return ActiveByNeuron(indptr[: half + 1], active[:middle], n), 2


def _packed(columns: ActiveByNeuron, neurons: np.ndarray) -> np.ndarray:
    """Pack one bit for each row and each of these neurons: (n, words), uint64."""
    indptr, active, n = columns
    bits = np.zeros((n, -(-len(neurons) // (64 * WORDS_AT_ONCE)) * WORDS_AT_ONCE), np.uint64)
    # Ranges of whole words, so that no two tasks write to one word.
    spans = [(64 * lo, min(64 * hi, len(neurons))) for lo, hi in ranges(-(-len(neurons) // 64))]
    parallel_map(lambda span: pack_bits(indptr, active, neurons, bits, *span), spans)
    return bits
