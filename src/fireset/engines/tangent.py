"""The tangent kernel of given fire sets as an operator v ↦ (1/m) J Jᵀ v, and its largest eigenvalue."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fireset._util.parallel import parallel_map, ranges
from fireset.sparse_rows import Rows, kernel_rows

if TYPE_CHECKING:
    from scipy.sparse import csr_array

TangentOperator = Callable[[np.ndarray], np.ndarray]


class ActiveByNeuron(NamedTuple):
    """Fire sets by neuron: neuron r is active for ``samples[indptr[r]:indptr[r+1]]``, in any order."""

    indptr: np.ndarray  # (m + 1,), int64
    samples: np.ndarray  # int32
    n_samples: int

    @classmethod
    def from_fire_sets(cls, fire_sets: "csr_array") -> "ActiveByNeuron":
        columns = fire_sets.tocsc()
        # In the types of lists, so that kernels are compiled once.
        indptr, samples = columns.indptr.astype(np.int64), columns.indices.astype(np.int32, copy=False)
        return cls(indptr, samples, len(fire_sets.indptr) - 1)


class CommonCountColumns(ABC):
    """Some columns at a time of the matrix of common counts: the number of neurons active for both rows i and j."""

    @abstractmethod
    def diagonal(self) -> np.ndarray:
        """Return the number of active neurons of every row, (n,)."""

    @abstractmethod
    def table(self, samples: np.ndarray) -> np.ndarray:
        """Return the counts between these rows, (k, k), float32; only the lower triangle is set."""

    @abstractmethod
    def counts(self, samples: np.ndarray) -> np.ndarray:
        """Return the columns of these rows, transposed: (len(samples), n), float32."""


class OutputLayer(ABC):
    """The Jacobian of the output layer, J_A = ∂u/∂A, at fixed weights of the first layer.

    ∂u_ik/∂a_rk = (κ/√m) σ_b(⟨w_r, x_i⟩), and 0 for the output weights of other outputs. The tangent kernel J_A J_Aᵀ is
    thus block diagonal, with the block H_A = (κ²/m) Σ_r σ_b(⟨w_r, x_i⟩) σ_b(⟨w_r, x_j⟩) for every output.
    """

    @abstractmethod
    def gradient(self, residual: np.ndarray) -> np.ndarray:
        """Return J_Aᵀ v for v (n, c); (m, c), in the network's precision."""

    @abstractmethod
    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        """Return J_A V for V (m, c); (n, c), float64."""

    @abstractmethod
    def tangent_product(self, direction: np.ndarray) -> np.ndarray:
        """Return J_A J_Aᵀ v for v (n, c); (n, c), float64."""

    @abstractmethod
    def diagonal(self) -> np.ndarray:
        """Return the diagonal of H_A, (n,)."""

    @abstractmethod
    def columns(self, rows: Rows) -> np.ndarray:
        """Return the kernel H_A between given rows (k, d) and the rows of the engine: (k, n), in their precision."""

    @abstractmethod
    def whole_kernel(self) -> np.ndarray:
        """Return H_A, (n, n), in the network's precision; only the lower triangle is valid."""

    @abstractmethod
    def kernel(self, rows: Rows) -> np.ndarray:
        """Return the kernel H_A between given rows (k, d) and themselves: (k, k), in their precision."""


def fire_set_product(X: Rows, output_weights: np.ndarray, fire_sets: "csr_array") -> TangentOperator:
    """Return the map v ↦ (1/m) J Jᵀ v for v (n, c), in float64, with J given by the fire sets.

    A product costs two passes over the active pairs, O(d · active pairs).
    """
    from fireset.kernels.fire_sets import tangent_product

    n, m, dtype, rows = len(X), len(output_weights), X.dtype, kernel_rows(X)
    columns = fire_sets.tocsc()

    def product(direction: np.ndarray) -> np.ndarray:
        direction = direction.astype(dtype)

        def span_product(span: tuple[int, int]) -> np.ndarray:
            total = np.zeros((n, output_weights.shape[1]))
            tangent_product(rows, output_weights, columns.indptr, columns.indices, direction, total, *span)
            return total

        return np.sum(parallel_map(span_product, ranges(m)), axis=0) / m

    return product


def largest_eigenvalue(
    X: Rows, output_weights: np.ndarray, fire_sets: "csr_array", sample_weight: np.ndarray | None = None, **limits
) -> float:
    """Estimate λ_max of the tangent kernel (1/m) J Jᵀ over all outputs by power iteration from a fixed start.

    With one output and no weights the kernel is H(t). With sample weights D it is D^½ H D^½. ``limits`` are passed to
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
    """Estimate λ_max of D^½ H D^½, D the sample weights, from products with H. The result is a lower bound.

    Stop when the relative change of the estimate is at most ``tolerance``. If X and the vectors are one worker's part
    of the rows, ``norm`` must return the norm over all workers.
    """
    root = np.ones(len(X)) if sample_weight is None else np.sqrt(sample_weight)
    # The start depends on the rows but not on their order or number, so a row of weight 2 acts as two rows. The
    # constant is near the top eigenvector where all inner products are positive, as in most real data. The random part
    # has a component along the other eigenvectors.
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
