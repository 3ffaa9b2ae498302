"""The base class of engines: everything that follows from the fire sets.

A subclass implements ``_prepare``, ``forward`` and ``fire_sets``, and overrides other methods where it is faster.
"""

from typing import TYPE_CHECKING

import numpy as np

from fireset._util.parallel import parallel_map, ranges
from fireset.engines.base import Engine
from fireset.engines.common_counts import BitCountColumns, common_counts
from fireset.engines.output_layer import ListedOutputLayer
from fireset.engines.step_rule import NeuronGradients, StepRule
from fireset.engines.tangent import ActiveByNeuron, CommonCountColumns, OutputLayer, TangentOperator, fire_set_product
from fireset.kernels.fire_sets import jacobian_product, row_gradients
from fireset.sparse_rows import kernel_rows

if TYPE_CHECKING:
    from fireset.network import ShiftedReLUNetwork


class FireSetEngine(Engine):
    """An engine on the whole of its network and rows, with methods derived from ``fire_sets``."""

    def active_by_neuron(self) -> ActiveByNeuron:
        return ActiveByNeuron.from_fire_sets(self.fire_sets())

    def gradient(self, residual: np.ndarray) -> NeuronGradients:
        network = self.network
        active = self.fire_sets().tocsc()
        scaled = (residual / network.divisor).astype(network.dtype)
        rows, X = np.empty_like(network.weights), kernel_rows(self.X)
        parallel_map(
            lambda span: row_gradients(X, network.output_weights, active.indptr, active.indices, scaled, rows, *span),
            ranges(network.width),
        )
        neurons = np.flatnonzero(np.diff(active.indptr))
        return NeuronGradients(neurons, rows[neurons])

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        self.weights_moved(*rule.apply(self.network.weights, self.gradient(residual)))

    def output_gradient(self, residual: np.ndarray) -> np.ndarray:
        return self.output_layer().gradient(residual)

    def weights_moved(self, neurons: np.ndarray, distances: np.ndarray) -> None:  # noqa: ARG002 - for subclasses
        self.start(self.network, self.X)

    def outputs_moved(self) -> None:
        """Do nothing: only subclasses that cache predictions have anything to discard."""

    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        network, X = self.network, kernel_rows(self.X)
        active = self.fire_sets().tocsc()

        def span_product(span: tuple[int, int]) -> np.ndarray:
            product = np.zeros((len(self.X), network.n_outputs))
            jacobian_product(X, network.output_weights, active.indptr, active.indices, directions, product, *span)
            return product

        return np.sum(parallel_map(span_product, ranges(network.width)), axis=0) / network.divisor

    def tangent_operator(self) -> TangentOperator:
        squared_scale = self.network.output_scale**2
        product = fire_set_product(self.X, self.network.output_weights, self.fire_sets())
        return product if squared_scale == 1.0 else lambda direction: product(direction) * squared_scale

    def approximate_tangent_operator(self) -> TangentOperator:
        return self.tangent_operator()

    def output_layer(self) -> OutputLayer:
        return ListedOutputLayer(self.network, self.X, self.active_by_neuron())

    def common_counts(self, dtype=np.float64) -> np.ndarray:
        return common_counts(self.active_by_neuron(), dtype)

    def common_count_columns(self) -> CommonCountColumns:
        return BitCountColumns(self.active_by_neuron())

    @property
    def tangent_scale(self) -> float:
        return 1.0 / self.network.squared_divisor

    def recall_counts(self, rows: np.ndarray) -> tuple[int, int]:
        if self.exact:
            return 1, 1
        found = np.diff(self.fire_sets().indptr)[rows]
        return int(found.sum()), self.network.fire_sets(self.X[rows]).nnz

    def index_kind(self, network: "ShiftedReLUNetwork", n_samples: int) -> str | None:  # noqa: ARG002
        return None

    def memory_bytes(self, network: "ShiftedReLUNetwork", n_samples: int) -> float:  # noqa: ARG002
        return 0.0
