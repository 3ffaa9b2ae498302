"""The contract between whoever trains and the engines: how the fire sets are found, and all that follows from them.

A new engine is a subclass in a file of its own and a line in ``registry.py``. It must say how it prepares, what the
network predicts and who fires; gradient, step, tangent product and recall then follow from the fire sets, and are
overridden where the engine has a faster way.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fireset._util.errors import InputError
from fireset._util.parallel import parallel_map, ranges
from fireset.engines.step_rule import RowGradients, StepRule
from fireset.engines.tangent import ActiveByNeuron, FireSetColumns, TangentOperator, common_counts, fire_set_product
from fireset.sparse_rows import Rows, SparseRows, kernel_rows

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from fireset.network import ShiftedReLUNetwork


@dataclass
class EngineWork:
    """What an engine did since it was made."""

    inner_products: int = 0  # pairs (neuron, sample) whose inner product was computed
    nodes_visited: int = 0  # of an index, a max-tree and the like
    active_pairs: int = 0  # of those, pairs that fired in the last forward pass
    refreshes: int = 0  # neurons whose candidates were searched for anew
    audited: int = 0  # neurons whose fire sets were checked against every sample
    oracle_queries: int | None = None  # of the quantum engines: evaluations of the predicate, checks included
    missed_pairs: int | None = None  # of the quantum engines: pairs that fire and are not among the fired pairs


class Engine(ABC):
    """Runs gradient steps on a network and a fixed set of samples.

    The order of calls: ``start``, then ``forward`` and ``step`` in turns. ``gradient``, ``tangent_operator`` and
    ``fire_sets`` speak of the current weights. Whoever moves the weights otherwise than by ``step`` calls
    ``weights_moved`` before anything else, or ``start`` again.

    Attributes
    ----------
    name : str
        What users type.
    summary : str
        One line about it, for ``fireset engines``.
    exact : bool
        Whether it has the dense engine's fire sets at every step.
    preprocesses : bool
        Whether it searches, in any way, instead of looking at every pair.
    simulated : bool
        Whether it imitates a machine that is not there: its seconds say nothing about the algorithm.
    takes_sparse : bool
        Whether rows may be ``SparseRows``.
    can_shrink : bool
        Whether it can do with less memory than it would like to have, for more time.
    compiled_dimensions : tuple of int
        Numbers of features whose samples have kernels of their own, which are compiled ahead for each.
    blocks : int
        Parts of the neurons that are worked on one after the other for want of memory.
    work : EngineWork
    """

    name: str
    summary: str
    exact: bool = True
    preprocesses: ClassVar[bool] = True
    simulated: ClassVar[bool] = False
    takes_sparse: ClassVar[bool] = False
    can_shrink: ClassVar[bool] = False
    compiled_dimensions: ClassVar[tuple[int, ...]] = (1,)
    blocks: int = 1

    network: "ShiftedReLUNetwork"
    X: Any  # (n, d): a matrix, or ``SparseRows`` where the engine takes them
    sparse: bool = False  # whether they are

    def __init__(self) -> None:
        self.work = EngineWork()

    def start(self, network: "ShiftedReLUNetwork", X: Rows) -> None:
        """The preprocessing. X (n, d) is C-contiguous, in the network's precision, and must not change afterwards."""
        self.expect(X)
        self.network, self.X = network, X
        self._prepare()

    def expect(self, X: Rows) -> None:
        """Be told what kind of rows will come, before anybody asks what they will take; refuses those it cannot use."""
        self.sparse = isinstance(X, SparseRows)
        if self.sparse and not self.takes_sparse:
            raise InputError(f"engine {self.name!r} needs dense rows; for sparse ones use 'dense', 'data' or 'auto'")

    @abstractmethod
    def _prepare(self) -> None:
        """Make ready for ``self.network`` and ``self.X``; may be called again, with other ones."""

    @abstractmethod
    def forward(self) -> np.ndarray:
        """Predictions at the current weights, (n, c), float64."""

    @abstractmethod
    def fire_sets(self) -> "csr_array":
        """Boolean n × m sparse array at the current weights, rows sorted."""

    def gradient(self, residual: np.ndarray) -> RowGradients:
        """∂L/∂W for residual e = ∂L/∂u, (n, c): ``∂L/∂w_r = (κ/√m) Σ_{i fired} (Σ_c a_rc e_ic) x_i``."""
        from fireset.kernels.fire_sets import row_gradients

        network = self.network
        active = self.fire_sets().tocsc()
        pushes = (residual / network.divisor).astype(network.dtype)
        rows, X = np.empty_like(network.weights), kernel_rows(self.X)
        parallel_map(
            lambda span: row_gradients(X, network.output_weights, active.indptr, active.indices, pushes, rows, *span),
            ranges(network.width),
        )
        neurons = np.flatnonzero(np.diff(active.indptr))
        return RowGradients(neurons, rows[neurons])

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        """``W ← W − rule(∂L/∂W)`` for residual = ∂L/∂u, (n, c), at the weights of the last ``forward``."""
        self.weights_moved(*rule.apply(self.network.weights, self.gradient(residual)))

    def output_gradient(self, residual: np.ndarray) -> np.ndarray:
        """∂L/∂A for residual e = ∂L/∂u, (n, c): ``∂L/∂a_rc = (κ/√m) Σ_{i fired} (⟨w_r, x_i⟩ − b) e_ic``, (m, c).

        Here by looking at every pair.
        """
        network = self.network
        gradient = np.zeros_like(network.output_weights)
        pushes = (residual / network.divisor).astype(network.dtype)

        def add(span: tuple[int, int]) -> None:
            for tile in network.tiles(self.X, *span):
                gradient[tile.neurons] += tile.activations @ pushes[tile.samples]

        parallel_map(add, ranges(network.width), uses_blas=True)
        return gradient

    def weights_moved(self, neurons: np.ndarray, distances: np.ndarray) -> None:  # noqa: ARG002 - for those that use it
        """Somebody else has moved these neurons, by at most these distances; nobody else has moved."""
        self.start(self.network, self.X)

    def outputs_moved(self) -> None:
        """Record that ``network.output_weights`` have changed; the weights have not."""

    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        """∂u/∂W V for V (m, d), on the fire sets as they are; (n, c), float64: what a small step V adds to u."""
        from fireset.kernels.fire_sets import jacobian_product

        network, X = self.network, kernel_rows(self.X)
        active = self.fire_sets().tocsc()

        def span_product(span: tuple[int, int]) -> np.ndarray:
            share = np.zeros((len(self.X), network.n_outputs))
            jacobian_product(X, network.output_weights, active.indptr, active.indices, directions, share, *span)
            return share

        return np.sum(parallel_map(span_product, ranges(network.width)), axis=0) / network.divisor

    def tangent_operator(self) -> TangentOperator:
        """The map v ↦ H v = ∂u/∂W (∂u/∂W)ᵀ v, v (n, c), on the fire sets as they are; valid until the weights move.

        For κ = 1 and one output H is the paper's H(t) = (1/m) J Jᵀ.
        """
        product, squared_scale = (
            fire_set_product(self.X, self.network.output_weights, self.fire_sets()),
            self._squared_scale,
        )
        return product if squared_scale == 1.0 else lambda direction: product(direction) * squared_scale

    @property
    def _squared_scale(self) -> float:
        return self.network.output_scale**2

    def approximate_tangent_operator(self) -> TangentOperator:
        """The same, near enough to choose a step size by."""
        return self.tangent_operator()

    def common_counts(self, dtype=np.float64) -> np.ndarray:
        """#{r fires for i and for j}, for all samples; (n, n), its lower triangle.

        Times ⟨x_i, x_j⟩ κ²/m it is the block that the tangent operator has for each output.
        """
        return common_counts(self.active_by_neuron(), dtype)

    def active_by_neuron(self) -> ActiveByNeuron:
        """The fire sets, by neuron."""
        return ActiveByNeuron.of(self.fire_sets())

    def count_columns(self) -> FireSetColumns:
        """The same, some columns at a time; valid until the weights move."""
        return FireSetColumns(self.active_by_neuron())

    @property
    def tangent_scale(self) -> float:
        """κ²/m of the whole network."""
        return 1.0 / self.network.squared_divisor

    def tangent_product(self, direction: np.ndarray) -> np.ndarray:
        """H v for one v. For several, ``tangent_operator`` prepares once."""
        return self.tangent_operator()(direction)

    def recall(self, rows: np.ndarray | None = None) -> float:
        """Share of the pairs that fire at the current weights, on these rows of X, that the engine knows of.

        1 for exact engines, by definition, and where nothing fires. Others look at every neuron, for O(rows · m · d): a
        measurement, no part of training.
        """
        found, active = self.recall_counts(np.arange(len(self.X)) if rows is None else np.asarray(rows))
        return min(1.0, found / active) if active else 1.0  # in float32 rounding may find one more

    def recall_counts(self, rows: np.ndarray) -> tuple[int, int]:
        """Pairs known to fire, and pairs that fire, on these rows of X."""
        if self.exact:
            return 1, 1
        found = np.diff(self.fire_sets().indptr)[rows]
        return int(found.sum()), self.network.fire_sets(self.X[rows]).nnz

    def index_kind(self, network: "ShiftedReLUNetwork", n_samples: int) -> str | None:  # noqa: ARG002
        """The kind of half-space index that ``start`` will build on a problem of this size; None without one."""
        return None

    def memory_bytes(self, network: "ShiftedReLUNetwork", n_samples: int) -> float:  # noqa: ARG002
        """Bytes that the engine takes at its peak, besides weights and samples."""
        return 0.0

    def within_memory(self, network: "ShiftedReLUNetwork", n_samples: int, budget: float) -> "Engine | None":
        """An engine that does the same and takes at most ``budget`` bytes: itself, a thriftier one, or None."""
        return self if self.memory_bytes(network, n_samples) <= budget else None


class BatchEngine(Engine):
    """An engine that can also look at some of the samples at a time, for training by batches.

    The order of calls: ``forward_rows`` and ``step_rows`` in turns, and ``end_batches`` before anything else.
    """

    @abstractmethod
    def forward_rows(self, rows: np.ndarray) -> np.ndarray:
        """Predictions for some rows of X by number, (k, c), float64, at the current weights."""

    @abstractmethod
    def step_rows(self, residual: np.ndarray, rule: StepRule) -> None:
        """``step`` on the rows of the last ``forward_rows``; the weights may lag behind until ``end_batches``."""

    @abstractmethod
    def end_batches(self, rule: StepRule) -> None:
        """Have the weights, and the velocity of the rule, where everybody looks for them."""
