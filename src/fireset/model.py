"""A trained model in one file: the network, the map of rows, the table's columns and the target's meaning."""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset.estimators import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.network import ShiftedReLUNetwork
from fireset.tables.encoder import TableEncoder, one_line, quoted
from fireset.tables.sphere import SphereMap
from fireset.training.losses import get_loss

_TASKS = ("classification", "regression")


@dataclass
class Model:
    """What ``fireset train`` makes and ``fireset predict`` uses."""

    task: str  # "classification" or "regression"
    target: str
    estimator: ShiftedReLUClassifier | ShiftedReLURegressor
    encoder: TableEncoder
    training: dict[str, Any]  # how it was made: settings and results, for people to read

    def save(self, path: str | os.PathLike) -> None:
        """Write one safetensors file, atomically."""
        estimator = self.estimator
        description: dict[str, Any] = {
            "task": self.task,
            "target": self.target,
            "encoder": self.encoder.to_dict(),
            "sphere": {"typical": estimator.sphere_.typical, "bias": estimator.sphere_.bias},
            "training": self.training,
        }
        arrays = {"sphere_mean": estimator.sphere_.mean, "sphere_scale": estimator.sphere_.scale}
        if isinstance(estimator, ShiftedReLUClassifier):
            description["classes"] = estimator.classes_.tolist()
            description["loss"] = estimator.loss
            arrays["offset"] = estimator.offset_
        else:
            arrays |= {"target_mean": estimator.target_mean_, "target_scale": estimator.target_scale_}
        estimator.network_.save(path, description, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Model":
        """Read a model file; anything odd in it is refused with one line."""
        network, arrays, description = ShiftedReLUNetwork.from_file(path)
        if "task" not in description:
            raise InputError(
                f"{path} holds a network without a table's columns; "
                "load it with fireset.ShiftedReLUNetwork.load, or make a model with fireset train"
            )
        try:
            return cls._restore(network, arrays, description)
        except InputError as error:
            raise InputError(f"{path} is damaged: {error}") from error
        except KeyError as error:
            raise InputError(f"{path} is damaged: it has no {quoted(error.args[0])}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path} is damaged: {one_line(error)[:200]}") from error

    @classmethod
    def _restore(cls, network: ShiftedReLUNetwork, arrays: dict, description: dict) -> "Model":
        task, target, training = description["task"], description["target"], description["training"]
        if task not in _TASKS or not isinstance(target, str) or not isinstance(training, dict):
            raise InputError("task, target or training is not what it should be")
        encoder = TableEncoder.from_dict(description["encoder"])
        columns = len(encoder.feature_names)
        if network.n_features != columns + 1:
            raise InputError(f"{columns} columns do not go with a network of {network.n_features} inputs")
        mean, scale = (_numbers(arrays[name], columns) for name in ("sphere_mean", "sphere_scale"))
        typical, bias = float(description["sphere"]["typical"]), float(description["sphere"]["bias"])
        if not (scale.min(initial=1.0) > 0 and 0 < typical < np.inf and 0 < bias < np.inf):
            raise InputError("the scales of the columns must be positive")
        if task == "classification":
            get_loss(description["loss"])  # refuses an unknown one
            estimator = ShiftedReLUClassifier(loss=description["loss"])
            classes = description["classes"]
            estimator.classes_ = _labels(classes)
            outputs = 1 if len(classes) == 2 else len(classes)
        else:
            estimator = ShiftedReLURegressor()
            outputs = 1
            estimator.target_mean_ = _numbers(arrays["target_mean"], 1)
            estimator.target_scale_ = _numbers(arrays["target_scale"], 1)
            estimator._many_targets = False
        if network.n_outputs != outputs:
            raise InputError(f"a network of {network.n_outputs} outputs does not go with {outputs} targets")
        if isinstance(estimator, ShiftedReLUClassifier):
            # Files of earlier versions have none: their codes were not centred.
            estimator.offset_ = _numbers(arrays["offset"], outputs) if "offset" in arrays else np.zeros(outputs)
        estimator.network_ = network
        estimator.sphere_ = SphereMap(mean, scale, typical, bias)
        # scikit-learn sets it in fit, and declares it nowhere
        estimator.n_features_in_ = columns  # pyright: ignore[reportAttributeAccessIssue]
        return cls(task, target, estimator, encoder, training)


def _labels(classes: Any) -> np.ndarray:
    """Labels out of a model file: all of one kind, so that the array of them holds what the list held."""
    kinds = {type(label) for label in classes} if isinstance(classes, list) else set()
    if len(kinds) != 1 or not kinds <= {str, int, float, bool} or len(classes) < 2 or classes != sorted(set(classes)):
        raise InputError(f"classes must be sorted, different labels of one kind, got {quoted(classes)}")
    return np.array(classes)


def _numbers(array: np.ndarray, length: int) -> np.ndarray:
    if array.shape != (length,) or array.dtype != np.float64 or not np.isfinite(array).all():
        raise InputError(f"expected {length} finite float64 numbers, found {array.dtype} of shape {array.shape}")
    return array
