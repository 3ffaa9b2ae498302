"""The contract of all engines: find the active pairs, and compute predictions, gradients and tangent products.

``Engine`` declares the methods that training calls. A new engine is a subclass of ``FireSetEngine``
(``fire_set_engine.py``), which derives all but three methods from the fire sets, in a file of its own, and a line in
``registry.py``. An engine that wraps another one (``fireset.distributed.engine``) is a subclass of ``Engine`` itself:
every method whose result depends on the network's width or rows is abstract there, so none can be left out.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError
from fireset.engines.step_rule import NeuronGradients, StepRule
from fireset.engines.tangent import ActiveByNeuron, CommonCountColumns, OutputLayer, TangentOperator
from fireset.sparse_rows import Rows, SparseRows

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from fireset.network import ShiftedReLUNetwork


@dataclass
class EngineWork:
    """Operation counts of an engine since it was constructed."""

    inner_products: int = 0  # pairs (neuron, row) whose inner product was computed
    nodes_visited: int = 0  # nodes of an index or of a tree of maxima
    active_pairs: int = 0  # active pairs of the last forward pass
    points_indexed: int = 0  # rows or neurons that ``start`` built an index over; 0 if an index was given
    refreshes: int = 0  # neurons whose candidates were searched again
    audited: int = 0  # neurons whose fire sets were compared with all rows
    oracle_queries: int | None = None  # quantum engines: evaluations of the predicate, checks included
    missed_pairs: int | None = None  # quantum engines: active pairs that the searches did not find


class Engine(ABC):
    """Compute predictions, gradients and steps of a network on a fixed set of rows.

    Order of calls: ``start``, then ``forward`` and ``step`` in turns. ``gradient``, ``tangent_operator`` and
    ``fire_sets`` refer to the current weights. Code that changes the weights without ``step`` must call
    ``weights_moved`` or ``start`` before any other method.

    Attributes
    ----------
    name : str
        Name in the registry.
    summary : str
        One line for ``fireset engines``.
    exact : bool
        Whether the fire sets equal those of the engine ``dense`` in every step.
    preprocesses : bool
        Whether the engine searches for active pairs instead of computing all pairs.
    simulated : bool
        Whether the engine simulates other hardware. Its running time is then not comparable.
    supports_sparse : bool
        Whether rows may be ``SparseRows``.
    supports_batches : bool
        Whether the engine is a ``BatchEngine``.
    suits_trained_outputs : bool
        Whether "auto" may choose the engine if the output weights are trained, which needs a list of the active pairs.
    uses_list_passes : bool
        Whether tangent products are those of candidate lists.
    compiles_fast : bool
        Whether compilation takes a small part of the time limit of a comparison.
    can_reduce_memory : bool
        Whether ``within_memory`` can return an engine that uses less memory and more time.
    scratch_bytes : float
        Memory besides ``memory_bytes``: what BLAS and the allocator take for matrix products in tiles.
    compiled_dimensions : tuple of int
        Numbers of features that have kernels of their own; the first stands for all others.
    index_calls : tuple of str
        Methods of its index that the engine calls, "report" and "move". Their kernels are compiled ahead.
    blocks : int
        Number of blocks of neurons that are processed one after the other to save memory.
    work : EngineWork
    """

    name: str
    summary: str
    exact: bool = True
    preprocesses: bool = True
    simulated: bool = False
    supports_sparse: bool = False
    supports_batches: bool = False
    suits_trained_outputs: bool = True
    uses_list_passes: bool = False
    compiles_fast: bool = False
    can_reduce_memory: bool = False
    scratch_bytes: float = 16e6
    compiled_dimensions: tuple[int, ...] = (1,)
    index_calls: tuple[str, ...] = ("report",)
    blocks: int = 1

    network: "ShiftedReLUNetwork"
    X: Any  # (n, d): a matrix, or ``SparseRows``
    sparse: bool = False  # whether X is ``SparseRows``

    def __init__(self) -> None:
        self.work = EngineWork()

    def start(self, network: "ShiftedReLUNetwork", X: Rows) -> None:
        """Preprocess. X (n, d) is C-contiguous, in the network's precision, and must not change afterwards."""
        self.check_input(X)
        self.network, self.X = network, X
        self._prepare()

    def check_input(self, X: Rows) -> None:
        """Check that the engine supports this kind of rows. Call it before ``memory_bytes``, which depends on it."""
        self.sparse = isinstance(X, SparseRows)
        if self.sparse and not self.supports_sparse:
            from fireset.engines.registry import names_with

            allowed = ", ".join(["auto", *names_with("supports_sparse")])
            raise InputError(f"engine must be one of {allowed} for sparse rows, got {self.name!r}")

    @abstractmethod
    def _prepare(self) -> None:
        """Preprocess ``self.network`` and ``self.X``. May be called again after either has changed."""

    # Passes

    @abstractmethod
    def forward(self) -> np.ndarray:
        """Return the predictions at the current weights, (n, c), float64."""

    @abstractmethod
    def fire_sets(self) -> "csr_array":
        """Return the active pairs at the current weights as a boolean CSR array of shape (n, m), rows sorted."""

    @abstractmethod
    def active_by_neuron(self) -> ActiveByNeuron:
        """Return the active pairs at the current weights as one list of rows per neuron."""

    @abstractmethod
    def gradient(self, residual: np.ndarray) -> NeuronGradients:
        """Return ∂L/∂W for residual e = ∂L/∂u, (n, c): ``∂L/∂w_r = (κ/√m) Σ_{i active} (Σ_c a_rc e_ic) x_i``."""

    @abstractmethod
    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        """Update ``W ← W − rule(∂L/∂W)`` for residual = ∂L/∂u, (n, c), at the weights of the last ``forward``."""

    @abstractmethod
    def output_gradient(self, residual: np.ndarray) -> np.ndarray:
        """Return ∂L/∂A, (m, c), for residual e = ∂L/∂u: ``∂L/∂a_rc = (κ/√m) Σ_{i active} (⟨w_r, x_i⟩ − b) e_ic``."""

    # Changes from outside

    @abstractmethod
    def weights_moved(self, neurons: np.ndarray, distances: np.ndarray) -> None:
        """Record that ``neurons`` moved by at most ``distances``; all others are unchanged."""

    @abstractmethod
    def outputs_moved(self) -> None:
        """Record that ``network.output_weights`` have changed; the weights are unchanged."""

    # Jacobian and tangent kernel

    @abstractmethod
    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        """Return ∂u/∂W V for V (m, d) on the current fire sets, (n, c), float64: the change of u for a small step V."""

    @abstractmethod
    def tangent_operator(self) -> TangentOperator:
        """Return the map v ↦ H v = ∂u/∂W (∂u/∂W)ᵀ v, v (n, c), on the current fire sets.

        The map is valid until the weights move. For κ = 1 and one output H is the paper's H(t) = (1/m) J Jᵀ.
        """

    @abstractmethod
    def approximate_tangent_operator(self) -> TangentOperator:
        """Return an approximate tangent operator, used to choose the step size."""

    def tangent_product(self, direction: np.ndarray) -> np.ndarray:
        """Return H v for one v. For several products ``tangent_operator`` prepares once."""
        return self.tangent_operator()(direction)

    @abstractmethod
    def output_layer(self) -> OutputLayer:
        """Return the Jacobian of the output layer, ∂u/∂A, at the current weights; valid until they move."""

    @abstractmethod
    def common_counts(self, dtype=np.float64) -> np.ndarray:
        """Return the number of neurons that are active for both rows i and j, (n, n); only the lower triangle is set.

        Multiplied by ⟨x_i, x_j⟩ · ``tangent_scale`` it is the block of the tangent kernel for each output.
        """

    @abstractmethod
    def common_count_columns(self) -> CommonCountColumns:
        """Return an object that computes some columns of ``common_counts`` at a time; valid until the weights move."""

    @property
    @abstractmethod
    def tangent_scale(self) -> float:
        """κ²/m of the whole network."""

    # Recall

    def recall(self, rows: np.ndarray | None = None) -> float:
        """Return the fraction of active pairs at the current weights, on these rows of X, that the engine finds.

        1 for exact engines, and if no pair is active. Other engines compute every pair of these rows, O(rows · m · d):
        call it to measure, not while training.
        """
        found, active = self.recall_counts(np.arange(len(self.X)) if rows is None else np.asarray(rows))
        return min(1.0, found / active) if active else 1.0  # in float32 rounding may find one more

    @abstractmethod
    def recall_counts(self, rows: np.ndarray) -> tuple[int, int]:
        """Return the number of active pairs that the engine finds and that there are, on these rows of X."""

    # Planning, before ``start``

    @abstractmethod
    def index_kind(self, network: "ShiftedReLUNetwork", n_samples: int) -> str | None:
        """Return the kind of half-space index that ``start`` builds for a problem of this size; None without one."""

    @abstractmethod
    def memory_bytes(self, network: "ShiftedReLUNetwork", n_samples: int) -> float:
        """Estimate the peak memory of the engine in bytes, without weights and rows."""

    def within_memory(self, network: "ShiftedReLUNetwork", n_samples: int, budget: float) -> "Engine | None":
        """Return an engine with equal results that uses at most ``budget`` bytes: itself, another one, or None."""
        return self if self.memory_bytes(network, n_samples) <= budget else None


class BatchEngine(Engine):
    """An engine that can also process some of the rows at a time, for training by batches.

    Order of calls: ``forward_rows`` and ``step_rows`` in turns, then ``end_batches`` before any other method.
    """

    supports_batches = True

    @abstractmethod
    def forward_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return the predictions for rows of X, given by number, at the current weights; (k, c), float64."""

    @abstractmethod
    def step_rows(self, residual: np.ndarray, rule: StepRule) -> None:
        """Take a step on the rows of the last ``forward_rows``; ``network.weights`` may lag until ``end_batches``."""

    @abstractmethod
    def end_batches(self, rule: StepRule) -> None:
        """Write the current weights to ``network.weights`` and the velocity to ``rule.velocity``."""
