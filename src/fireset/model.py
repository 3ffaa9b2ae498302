"""A trained model in one file: the network, the map of rows, the table's columns and the target's meaning."""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset.estimators import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.estimators.calibration import Calibration
from fireset.network import ShiftedReLUNetwork
from fireset.tables.cells import one_line, quoted
from fireset.tables.columns import BentColumn, ColumnMap
from fireset.tables.encoder import TableEncoder
from fireset.tables.sphere import SphereMap
from fireset.training.losses import Quantile, check_task, describe_loss, get_loss, restore_loss

_TASKS = ("classification", "regression")


@dataclass
class Model:
    """What ``fireset train`` makes and ``fireset predict`` uses."""

    task: str  # "classification" or "regression"
    target: str
    estimator: ShiftedReLUClassifier | ShiftedReLURegressor
    training: dict[str, Any]  # how it was made: settings and results, for people to read

    @property
    def encoder(self) -> TableEncoder:
        """What the columns of the table become."""
        return self.estimator.encoder_

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
        description |= _columns_in_order(estimator)
        arrays = _sphere_arrays(estimator.sphere_)
        if isinstance(estimator, ShiftedReLUClassifier):
            description["classes"] = estimator.classes_.tolist()
            description["loss"] = describe_loss(get_loss(estimator.loss))["name"]
            description["calibration"] = estimator.calibration_.to_dict()
            arrays["offset"] = estimator.offset_
        else:
            description["loss"] = describe_loss(get_loss(estimator.loss))
            arrays |= {"target_mean": estimator.target_mean_, "target_scale": estimator.target_scale_}
            if estimator._many_targets:
                description["targets"] = len(estimator.target_mean_)
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
        if task == "classification":
            check_task(description["loss"], task)
            estimator = ShiftedReLUClassifier(loss=description["loss"])
            classes = description["classes"]
            estimator.classes_ = _labels(classes)
            estimator.calibration_ = _calibration(description.get("calibration", {}))
            outputs = 1 if len(classes) == 2 else len(classes)
        else:
            # Files of earlier versions do not name it.
            loss = check_task(restore_loss(description.get("loss", "squared_error")), task)
            estimator = ShiftedReLURegressor(loss=loss.name if loss == get_loss(loss.name) else loss)
            outputs = len(loss.levels) if isinstance(loss, Quantile) else description.get("targets", 1)
            estimator.target_mean_ = _numbers(arrays["target_mean"], outputs)
            estimator.target_scale_ = _numbers(arrays["target_scale"], outputs)
            estimator._many_targets = "targets" in description
        if network.n_outputs != outputs:
            raise InputError(f"a network of {network.n_outputs} outputs does not go with {outputs} targets")
        if isinstance(estimator, ShiftedReLUClassifier):
            # Files of earlier versions have none: their codes were not centred.
            estimator.offset_ = _numbers(arrays["offset"], outputs) if "offset" in arrays else np.zeros(outputs)
        estimator.network_ = network
        estimator.sphere_ = _sphere_map(arrays, description["sphere"], columns)
        estimator.encoder_ = encoder
        _restore_columns(estimator, description)
        return cls(task, target, estimator, training)


def save(estimator: ShiftedReLUClassifier | ShiftedReLURegressor, path: str | os.PathLike, target: str = "y") -> None:
    """Write a fitted estimator to a model file, which ``load`` and the command line read.

    Columns and their categories, the map of rows, the network and the meaning of its outputs are in it; the data are
    not. ``target`` is what the file calls the column that it predicts.
    """
    from sklearn.utils.validation import check_is_fitted

    if not isinstance(estimator, ShiftedReLUClassifier | ShiftedReLURegressor):
        raise InputError(
            f"estimator must be a fitted ShiftedReLUClassifier or -Regressor, got {type(estimator).__name__}"
        )
    check_is_fitted(estimator)
    task = "classification" if isinstance(estimator, ShiftedReLUClassifier) else "regression"
    settings = {
        name: value for name, value in estimator.get_params().items() if isinstance(value, str | int | float | None)
    }
    result = estimator.result_
    training = {"iterations": estimator.n_iter_, "stop_reason": result.stop_reason.value, "settings": settings}
    Model(task, target, estimator, training).save(path)


def load(path: str | os.PathLike) -> ShiftedReLUClassifier | ShiftedReLURegressor:
    """The estimator in a model file: its ``predict`` takes the table that it was trained on, or one like it.

    What ``fireset train`` writes is read alike. Settings of the fit are not restored, but what it found is.
    """
    return Model.load(path).estimator


def _columns_in_order(estimator: ShiftedReLUClassifier | ShiftedReLURegressor) -> dict[str, Any]:
    """What a file says of columns beside the encoder: whether they have names; their order where some are unused."""
    if not estimator._by_name:
        return {"named_columns": False}
    return {"feature_names": list(estimator.feature_names_in_)} if estimator.encoder_.left_out else {}


def _restore_columns(estimator: ShiftedReLUClassifier | ShiftedReLURegressor, description: dict) -> None:
    encoder = estimator.encoder_
    names = [*(column.name for column in encoder.columns), *encoder.left_out]
    estimator._by_name = bool(description.get("named_columns", True))
    ordered = description.get("feature_names", names)
    if not isinstance(ordered, list) or not all(isinstance(name, str) for name in ordered):
        raise InputError(f"feature_names must be a list of texts, got {quoted(ordered)}")
    if sorted(ordered) != sorted(names):
        raise InputError(f"feature_names must be the names of the columns, got {quoted(ordered)}")
    estimator.n_features_in_ = len(names)
    if estimator._by_name:
        estimator.feature_names_in_ = np.array(ordered, object)


def _sphere_arrays(sphere: SphereMap) -> dict[str, np.ndarray]:
    """The map of a model as arrays; the bent columns' knots one after the other."""
    bent = sphere.columns.bent
    none = np.zeros(0)
    return {
        "sphere_mean": sphere.columns.mean,
        "sphere_scale": sphere.columns.scale,
        "column_scales": sphere.column_scales,
        "bent_columns": np.array([[one.column, len(one.knots)] for one in bent], np.float64).reshape(-1, 2),
        "bent_knots": np.concatenate([none, *(one.knots for one in bent)]),
        "bent_values": np.concatenate([none, *(one.values for one in bent)]),
    }


def _sphere_map(arrays: dict[str, np.ndarray], description: dict, columns: int) -> SphereMap:
    mean, scale = (_numbers(arrays[name], columns) for name in ("sphere_mean", "sphere_scale"))
    typical, bias = float(description["typical"]), float(description["bias"])
    # Files of earlier versions have neither scales nor bent columns.
    scales = _numbers(arrays["column_scales"], columns) if "column_scales" in arrays else np.ones(columns)
    if not (min(scale.min(initial=1.0), scales.min(initial=1.0)) > 0 and 0 < typical < np.inf and 0 < bias < np.inf):
        raise InputError("the scales of the columns must be positive")
    return SphereMap(ColumnMap(mean, scale, _bent_columns(arrays, columns)), scales, typical, bias)


def _bent_columns(arrays: dict[str, np.ndarray], columns: int) -> list[BentColumn]:
    if "bent_columns" not in arrays:
        return []
    listed = arrays["bent_columns"]
    if listed.ndim != 2 or listed.shape[1] != 2 or listed.dtype != np.float64 or (listed != np.rint(listed)).any():
        raise InputError("bent_columns must be pairs of whole numbers")
    numbers, lengths = listed.astype(np.int64).T
    known = ((numbers >= 0) & (numbers < columns) & (lengths >= 2)).all()
    if not known or len(np.unique(numbers)) < len(numbers):
        raise InputError("bent_columns names columns that are not there")
    knots, values = (_numbers(arrays[name], int(lengths.sum())) for name in ("bent_knots", "bent_values"))
    cuts = np.cumsum(lengths)[:-1]
    parts = zip(numbers.tolist(), np.split(knots, cuts), np.split(values, cuts), strict=False)
    bent = [BentColumn(column, own, to) for column, own, to in parts]
    if not all((np.diff(one.knots) > 0).all() for one in bent):
        raise InputError("the knots of a column must ascend")
    return bent


def _calibration(numbers: dict) -> Calibration:
    """Files of earlier versions have none: the defaults."""
    found = Calibration(**{name: float(value) for name, value in numbers.items()})
    if not (0 < found.slope < np.inf and 0 <= found.power < np.inf and 0 < found.floor < 1 and 0 <= found.doubt < 1):
        raise InputError(f"calibration must be positive numbers, got {quoted(numbers)}")
    return found


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
