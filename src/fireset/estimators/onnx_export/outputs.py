"""Nodes from the outputs of the network to predictions, classes and probabilities."""

from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.onnx_graph import Graph

if TYPE_CHECKING:
    from fireset.estimators.classifier import ShiftedReLUClassifier
    from fireset.estimators.regressor import ShiftedReLURegressor


def add_predictions(graph: Graph, u: str, estimator: "ShiftedReLURegressor") -> None:
    """Add the output "prediction" of ``predict`` of a regressor, (rows,) or (rows, targets or levels)."""
    loss, outputs = estimator._fitted_loss, estimator.network_.n_outputs
    y = loss.add_predictions(graph, u)
    y = graph.add("Mul", y, graph.constant("target_scale", estimator.target_scale_), name="scaled")
    y = graph.add("Add", y, graph.constant("target_mean", estimator.target_mean_), name="moved")
    if loss.sorts_outputs:
        y = graph.sorted_rows(y, outputs, "in_order")
    if loss.outputs_per_target > 1 or estimator._many_targets:
        graph.output(y, "prediction", np.float64, outputs)
    else:
        graph.output(graph.flat(y, "flat_prediction"), "prediction", np.float64, None)


def add_classes(graph: Graph, u: str, estimator: "ShiftedReLUClassifier") -> None:
    """Add the outputs "label", (rows,), and "probabilities", (rows, classes)."""
    labels, dtype = _labels(estimator.classes_)
    scores = _add_scores(graph, u, estimator)
    if len(labels) == 2:
        above = graph.add("Greater", scores, graph.constant("middle", 0.0), name="is_second")
        code = graph.cast(graph.flat(above, "flat_is_second"), np.int64, "code")
    else:
        code = graph.add("ArgMax", scores, name="code", axis=1, keepdims=0)
    label = graph.add("Gather", graph.constant("classes", labels, dtype), code, name="class")
    loss = estimator._fitted_loss
    calibrates = loss.calibrates_classes
    p = _calibrated(graph, scores, estimator) if calibrates else loss.add_probabilities(graph, u, len(labels))
    graph.output(label, "label", dtype, None)
    graph.output(p, "probabilities", np.float64, len(labels))


def _add_scores(graph: Graph, u: str, estimator: "ShiftedReLUClassifier") -> str:
    """Add nodes for the scores of the classes: outputs plus offset, mapped by ``ClassMixing``."""
    scores = graph.add("Add", u, graph.constant("offset", estimator.offset_), name="scores")
    mixing = estimator.mixing_
    if mixing is None:
        return scores
    matrix, intercept = graph.constant("mixing", mixing.matrix), graph.constant("intercept", mixing.intercept)
    return graph.add("Gemm", scores, matrix, intercept, name="mixed_scores")


def _calibrated(graph: Graph, s: str, estimator: "ShiftedReLUClassifier") -> str:
    """Add nodes for ``Calibration``: (1 − δ) softmax(α s + β log max((1 + s)/2, ε)) + δ/c."""
    calibration = estimator.calibration_
    if len(estimator.classes_) == 2:
        s = graph.joined([graph.add("Neg", s, name="s_of_first"), s], "s_of_both")
    one, half = graph.constant("one", 1.0), graph.constant("half", 0.5)
    share = graph.add("Mul", graph.add("Add", s, one, name="s_plus_one"), half, name="share")
    share = graph.add("Max", share, graph.constant("floor", calibration.floor), name="share_above_floor")
    power = graph.constant("power", calibration.power)
    logs = graph.add("Mul", graph.add("Log", share, name="log_share"), power, name="powers")
    slopes = graph.add("Mul", s, graph.constant("slope", calibration.slope), name="slopes")
    p = graph.add("Softmax", graph.add("Add", slopes, logs, name="logits"), name="softmax", axis=1)
    certain = graph.add("Mul", p, graph.constant("certainty", 1.0 - calibration.doubt), name="certain")
    shared = graph.constant("shared_doubt", calibration.doubt / len(estimator.classes_))
    return graph.add("Add", certain, shared, name="p")


def _labels(classes: np.ndarray) -> tuple[list, Any]:
    """Return labels and their type in the graph: text, 64-bit integers, float64 or booleans."""
    labels = classes.tolist()
    kinds = {type(label) for label in labels}
    types: dict[type, Any] = {str: object, int: np.int64, float: np.float64, bool: np.bool_}
    if len(kinds) != 1 or not kinds <= set(types):
        named = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"export needs classes that are texts, integers, floats or booleans, all alike; got {named}")
    kind = kinds.pop()
    if kind is int and max(map(abs, labels)) >= 2**63:
        raise InputError(f"export needs classes of 64-bit integers, got {max(labels, key=abs)}; name the classes anew")
    return labels, types[kind]
