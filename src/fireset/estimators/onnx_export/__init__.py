"""Export of a fitted estimator as one ONNX graph, from columns to predictions (extra ``onnx``)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from fireset._util.errors import InputError
from fireset._util.onnx_graph import Graph
from fireset.estimators.classifier import ShiftedReLUClassifier
from fireset.estimators.onnx_export.outputs import add_classes, add_predictions
from fireset.estimators.onnx_export.rows import add_encoder, add_inputs, add_invalid_rows, add_sphere
from fireset.estimators.regressor import ShiftedReLURegressor
from fireset.network import ShiftedReLUNetwork

if TYPE_CHECKING:
    import onnx

    from fireset.estimators.base import ShiftedReLUEstimator

_DESCRIPTION = (
    "A shifted-ReLU network with the map of its inputs. Numbers: NaN is missing. Categories: text, the empty text is "
    "missing. Dates: days since 1970-01-01 UTC, NaN is missing."
)


def to_model(estimator: ShiftedReLUEstimator, target: str) -> onnx.ModelProto:
    """Return the graph of a fitted estimator. Running it needs memory for rows · m numbers."""
    network, encoder = estimator.network_, estimator.encoder_
    by_name = estimator._by_name or not estimator._of_numbers  # else one input for all columns
    if not isinstance(network, ShiftedReLUNetwork):
        raise InputError("to_onnx needs the whole network, and this worker has a shard; save the model and export that")
    graph = Graph()
    inputs = add_inputs(graph, encoder, by_name)
    features = add_encoder(graph, encoder, inputs, by_name)
    u = _add_network(graph, add_sphere(graph, features, estimator.sphere_), network)
    u = graph.add("Add", u, add_invalid_rows(graph, features), name="outputs")
    metadata = {"target": target, "feature_names": json.dumps(encoder.feature_names)}
    if isinstance(estimator, ShiftedReLUClassifier):
        add_classes(graph, u, estimator)
        metadata["task"] = "classification"
    elif isinstance(estimator, ShiftedReLURegressor):
        add_predictions(graph, u, estimator)
        metadata["task"] = "regression"
    if by_name:
        described = [
            {"input": name, "column": column.name, "kind": column.kind}
            for name, column in zip(inputs, encoder.columns, strict=True)
        ]
        metadata["inputs"] = json.dumps(described)
    return graph.model(_DESCRIPTION, metadata)


def _add_network(graph: Graph, rows: str, network: ShiftedReLUNetwork) -> str:
    """Add nodes for f(x) = (κ/√m) Σ_r a_r σ_b(⟨w_r, x⟩), (rows, c), in the precision of the network."""
    rows = graph.cast(rows, network.dtype, "network_rows")
    weights = graph.constant("weights", network.weights, network.dtype)
    shift = graph.constant("threshold", -network.threshold, network.dtype)
    excess = graph.add("Gemm", rows, weights, shift, name="excess", transB=1)
    active = graph.add("Relu", excess, name="activations")
    # Not MatMul: onnxruntime would fuse it with the division, whose divisor it then rounds to float32.
    sums = graph.add(
        "Gemm", active, graph.constant("output_weights", network.output_weights, network.dtype), name="sums"
    )
    divisor = graph.constant("divisor", network.divisor)
    return graph.add("Div", graph.cast(sums, np.float64, "wide_sums"), divisor, name="f")
