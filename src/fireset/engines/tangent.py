"""The fire-set kernel as a map v ↦ H v = (1/m) J Jᵀ v, without an n × n matrix, and as the matrix that it is."""

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fireset._util.parallel import parallel_map, ranges

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_ROW_BLOCKS = 16  # of a table of counts: enough to keep all cores busy, though later rows are longer

TangentOperator = Callable[[np.ndarray], np.ndarray]


def fire_set_product(X: np.ndarray, signs: np.ndarray, fire_sets: "csr_array") -> TangentOperator:
    """The map v ↦ (1/m) J Jᵀ v for v (n, c), in float64; J as the fire sets have it.

    A product costs two passes over the fired pairs, O(d · fired).
    """
    from fireset.kernels.tangent import tangent_product

    n, m = len(X), len(signs)
    columns = fire_sets.tocsc()

    def product(direction: np.ndarray) -> np.ndarray:
        direction = direction.astype(X.dtype)

        def span_product(span: tuple[int, int]) -> np.ndarray:
            share = np.zeros((n, signs.shape[1]))
            tangent_product(X, signs, columns.indptr, columns.indices, direction, share, *span)
            return share

        return np.sum(parallel_map(span_product, ranges(m)), axis=0) / m

    return product


def largest_eigenvalue(
    X: np.ndarray, signs: np.ndarray, fire_sets: "csr_array", sample_weight: np.ndarray | None = None, **limits
) -> float:
    """λ_max of the fire-set kernel (1/m) J Jᵀ over all outputs, by power iteration from a fixed start.

    With one output and no weights this is H(t). With sample weights it is that of D^½ H D^½. ``limits`` are those of
    ``power_iteration``.
    """
    return power_iteration(fire_set_product(X, signs, fire_sets), X, signs.shape[1], sample_weight, **limits)


def power_iteration(
    product: TangentOperator,
    X: np.ndarray,
    outputs: int,
    sample_weight: np.ndarray | None = None,
    *,
    tolerance: float = 1e-3,
    max_products: int = 60,
) -> float:
    """λ_max of D^½ H D^½, D the sample weights, from products with H; a lower bound.

    Ends when the estimate has stopped moving by more than ``tolerance``.
    """
    root = np.ones(len(X)) if sample_weight is None else np.sqrt(sample_weight)
    # A start that depends on the rows, not on their order or number: a row of weight 2 acts as two rows. The constant
    # is near the top vector where all inner products are positive, as on most real data; the rest meets the others.
    spread = np.random.default_rng(0).standard_normal((X.shape[1], outputs))
    vector = root[:, None] * (1.0 + X.astype(np.float64) @ spread)
    estimate = 0.0
    for _ in range(max_products):
        size = float(np.linalg.norm(vector))
        if size == 0.0:
            return 0.0
        vector /= size
        vector = product(vector * root[:, None]) * root[:, None]
        previous, estimate = estimate, float(np.linalg.norm(vector))
        if abs(estimate - previous) <= tolerance * estimate:
            break
    return estimate


def common_counts(fire_sets: "csr_array", dtype=np.float64) -> np.ndarray:
    """How many neurons fire for both of two samples, for all pairs; (n, n), of which only the lower triangle is filled.

    Cost Σ_r k̃_r²/2 on all cores, with k̃_r the samples that neuron r fires for; memory n² numbers.
    """
    from fireset.kernels.tangent import count_common

    columns = fire_sets.tocsc()
    n, _ = fire_sets.shape  # pyright: ignore[reportGeneralTypeIssues]
    table = np.zeros((n, n), dtype)
    # Row i has i + 1 entries: ranges of equal area, the longest rows first.
    cuts = np.rint(n * np.sqrt(np.arange(_ROW_BLOCKS + 1) / _ROW_BLOCKS)).astype(int)[::-1]
    blocks = [(int(lo), int(hi)) for hi, lo in pairwise(cuts) if hi > lo]
    parallel_map(lambda block: count_common(columns.indptr, columns.indices, table, *block), blocks)
    return table


class FireSetColumns:
    """Some rows of ``common_counts`` at a time, whole ones, without the table."""

    def __init__(self, fire_sets: "csr_array"):
        self._by_sample, self._by_neuron = fire_sets, fire_sets.tocsc()

    def diagonal(self) -> np.ndarray:
        return np.diff(self._by_sample.indptr).astype(np.float64)

    def counts(self, samples: np.ndarray) -> np.ndarray:
        """(len(samples), n), float32."""
        from fireset.kernels.tangent import count_columns

        table = np.zeros((len(samples), len(self._by_sample.indptr) - 1), np.float32)
        sets = self._by_neuron.indptr, self._by_neuron.indices, self._by_sample.indptr, self._by_sample.indices
        parallel_map(lambda k: count_columns(*sets, samples, table, k, k + 1), range(len(samples)))
        return table
