"""What the network's outputs mean, in the nodes of a graph: one function for each loss, found by its name."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset._util.errors import InputError
from fireset.estimators.onnx_export.graph import Graph

if TYPE_CHECKING:
    from fireset.estimators.classifier import ShiftedReLUClassifier
    from fireset.estimators.regressor import ShiftedReLURegressor

# (graph, u, estimator) ↦ y, where u (rows, c) are the network's outputs, float64
Meaning = Callable[[Graph, str, Any], str]


def add_predictions(graph: Graph, u: str, estimator: "ShiftedReLURegressor") -> None:
    """The output "prediction", (rows,) or (rows, targets): what ``predict`` of a regressor gives."""
    y = _meaning(_PREDICTIONS, estimator.loss)(graph, u, estimator)
    if estimator._many_targets:
        graph.output(y, "prediction", np.float64, len(estimator.target_mean_))
    else:
        graph.output(graph.flat(y, "flat_prediction"), "prediction", np.float64, None)


def add_classes(graph: Graph, u: str, estimator: "ShiftedReLUClassifier") -> None:
    """The outputs "label", (rows,), and "probabilities", (rows, classes)."""
    labels, dtype = _labels(estimator.classes_)
    scores = graph.add("Add", u, graph.constant("offset", estimator.offset_), name="scores")
    if len(labels) == 2:
        above = graph.add("Greater", scores, graph.constant("middle", 0.0), name="is_second")
        code = graph.cast(graph.flat(above, "flat_is_second"), np.int64, "code")
    else:
        code = graph.add("ArgMax", scores, name="code", axis=1, keepdims=0)
    label = graph.add("Gather", graph.constant("classes", labels, dtype), code, name="class")
    p = _meaning(_PROBABILITIES, estimator.loss)(graph, u, estimator)
    graph.output(label, "label", dtype, None)
    graph.output(p, "probabilities", np.float64, len(labels))


def _scaled(graph: Graph, u: str, estimator: "ShiftedReLURegressor") -> str:
    """Targets were standardized."""
    y = graph.add("Mul", u, graph.constant("target_scale", estimator.target_scale_), name="scaled")
    return graph.add("Add", y, graph.constant("target_mean", estimator.target_mean_), name="moved")


def _calibrated(graph: Graph, u: str, estimator: "ShiftedReLUClassifier") -> str:
    """softmax of α s + β log max((1 + s)/2, ε): ``Calibration``."""
    calibration = estimator.calibration_
    s = graph.add("Add", u, graph.constant("score_offset", estimator.offset_), name="s")
    if len(estimator.classes_) == 2:
        s = graph.joined([graph.add("Neg", s, name="s_of_first"), s], "s_of_both")
    one, half = graph.constant("one", 1.0), graph.constant("half", 0.5)
    share = graph.add("Mul", graph.add("Add", s, one, name="s_plus_one"), half, name="share")
    share = graph.add("Max", share, graph.constant("floor", calibration.floor), name="share_above_floor")
    power = graph.constant("power", calibration.power)
    logs = graph.add("Mul", graph.add("Log", share, name="log_share"), power, name="powers")
    slopes = graph.add("Mul", s, graph.constant("slope", calibration.slope), name="slopes")
    return graph.add("Softmax", graph.add("Add", slopes, logs, name="logits"), name="softmax", axis=1)


def _logistic(graph: Graph, u: str, estimator: "ShiftedReLUClassifier") -> str:
    """``losses.probabilities``."""
    if len(estimator.classes_) > 2:
        return graph.add("Softmax", u, name="softmax", axis=1)
    p = graph.add("Sigmoid", u, name="p_of_second")
    first = graph.add("Sub", graph.constant("one", 1.0), p, name="p_of_first")
    return graph.joined([first, p], "p_of_both")


# By the name of the loss. A loss with a link of its own has its function here, and is exported.
_PREDICTIONS: dict[str, Meaning] = {"squared_error": _scaled}
_PROBABILITIES: dict[str, Meaning] = {"squared_error": _calibrated, "log_loss": _logistic}


def _meaning(known: dict[str, Meaning], loss: str) -> Meaning:
    if loss not in known:
        raise InputError(f"export knows the losses {', '.join(known)}; this model was trained with {loss!r}")
    return known[loss]


def _labels(classes: np.ndarray) -> tuple[list, Any]:
    """Labels and their type in the graph: texts, 64-bit integers, float64 or truth values."""
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
