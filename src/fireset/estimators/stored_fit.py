"""Serialization of fitted estimators: a JSON description and arrays that hold everything ``fit`` sets.

Files are untrusted: every part that is read is checked.
"""

from dataclasses import asdict, fields
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset.estimators.batch_steps import BatchRate
from fireset.estimators.calibration import Calibration
from fireset.estimators.class_mixing import ClassMixing
from fireset.estimators.classifier import ShiftedReLUClassifier
from fireset.estimators.regressor import ShiftedReLURegressor
from fireset.estimators.stored_parameters import restored_parameters, stored_parameters
from fireset.network import ShiftedReLUNetwork
from fireset.tables.cells import quoted
from fireset.tables.column_map import ColumnMap, QuantileMap
from fireset.tables.encoder import TableEncoder
from fireset.tables.pieces import Pieces
from fireset.tables.settings import TableSettings
from fireset.tables.sphere import SphereMap
from fireset.tables.squared_norm import SquaredNorm
from fireset.training.history import History, Iteration
from fireset.training.losses import check_task
from fireset.training.result import TrainingResult
from fireset.training.stopping import StopReason

Estimator = ShiftedReLUClassifier | ShiftedReLURegressor

TASKS = {"classification": ShiftedReLUClassifier, "regression": ShiftedReLURegressor}
_WHOLE = [one.name for one in fields(Iteration) if one.type in (int, "int")]
_OPTIONAL_WHOLE = ("oracle_queries", "missed_pairs")


def store(estimator: Estimator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the description and the arrays of a fitted estimator, without its network."""
    rate = estimator._batch_rate
    description: dict[str, Any] = {
        "parameters": stored_parameters(estimator.get_params() | {"loss": estimator._fitted_with}),
        "encoder": estimator.encoder_.to_dict(),
        **_columns_in_order(estimator),
        "sphere": {"typical": estimator.sphere_.typical, "bias": estimator.sphere_.bias},
        "fit": {
            "solver": estimator.solver_,
            "iterations": estimator.n_iter_,
            "batch_rate": None if rate is None else {**asdict(rate), "settings": list(rate.settings)},
        },
    }
    arrays = _sphere_arrays(estimator.sphere_)
    for part in (_store_settings(estimator.settings_), _store_result(estimator)):
        description |= part[0]
        arrays |= part[1]
    if isinstance(estimator, ShiftedReLUClassifier):
        description |= {"classes": estimator.classes_.tolist(), "calibration": estimator.calibration_.to_dict()}
        arrays["offset"] = estimator.offset_
        if estimator.mixing_ is not None:
            arrays |= {"mixing": estimator.mixing_.matrix, "mixing_intercept": estimator.mixing_.intercept}
    else:
        description["targets"] = len(estimator.target_mean_) if estimator._many_targets else None
        arrays |= {"target_mean": estimator.target_mean_, "target_scale": estimator.target_scale_}
    return description, arrays


def restore(
    task: str, network: ShiftedReLUNetwork, description: dict[str, Any], arrays: dict[str, np.ndarray]
) -> Estimator:
    """Return the estimator of ``task`` that ``store`` stored."""
    kind = TASKS[task]
    estimator = kind(**restored_parameters(description["parameters"], set(kind().get_params())))
    estimator._check_settings()
    loss = check_task(estimator.loss, task)
    encoder = TableEncoder.from_dict(description["encoder"])
    columns = len(encoder.feature_names)
    sphere = _sphere_map(arrays, description["sphere"], columns)
    if network.n_features != sphere.n_outputs:
        raise InputError(f"{sphere.n_outputs} coordinates do not go with a network of {network.n_features} inputs")
    if isinstance(estimator, ShiftedReLUClassifier):
        estimator.classes_ = _labels(description["classes"])
        estimator.calibration_ = _calibration(description["calibration"])
        outputs = 1 if len(estimator.classes_) == 2 else len(estimator.classes_)
    else:
        targets = description["targets"]
        outputs = loss.outputs_per_target if targets is None else targets or 1
        estimator.target_mean_ = _numbers(arrays["target_mean"], outputs)
        estimator.target_scale_ = _numbers(arrays["target_scale"], outputs)
        estimator._many_targets = targets is not None
    if network.n_outputs != outputs:
        raise InputError(f"a network of {network.n_outputs} outputs does not go with {outputs} targets")
    if isinstance(estimator, ShiftedReLUClassifier):
        estimator.offset_ = _numbers(arrays["offset"], outputs)
        estimator.mixing_ = _mixing(arrays, outputs)
    estimator.network_ = network
    estimator._fitted_with = estimator.loss
    estimator.sphere_ = sphere
    estimator.encoder_ = encoder
    _restore_columns(estimator, description)
    estimator.settings_ = _restore_settings(description["settings"], arrays, estimator.sphere_)
    _restore_fit(estimator, description["fit"])
    estimator.training_rows_ = _whole_numbers(arrays["training_rows"])
    estimator.result_ = _restore_result(description["result"], arrays["history"])
    return estimator


def _columns_in_order(estimator: Estimator) -> dict[str, Any]:
    """Describe what the encoder does not: whether columns have names, and their order if some are unused."""
    if not estimator._by_name:
        return {"named_columns": False}
    return {"feature_names": list(estimator.feature_names_in_)} if estimator.encoder_.left_out else {}


def _restore_columns(estimator: Estimator, description: dict) -> None:
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


def _restore_fit(estimator: Estimator, stored: dict) -> None:
    rate = stored["batch_rate"]
    estimator.solver_ = str(stored["solver"])
    estimator.n_iter_ = int(stored["iterations"])
    estimator._batch_rate = None
    if rate is not None:
        settings = rate["settings"]
        if not isinstance(settings, list) or not all(isinstance(one, str) for one in settings):
            raise InputError(f"settings of batches must be texts, got {quoted(settings)}")
        estimator._batch_rate = BatchRate(_positive(rate["rate"]), _positive(rate["weight"]), tuple(settings))


# The map of the rows


def _sphere_arrays(sphere: SphereMap) -> dict[str, np.ndarray]:
    """Return the arrays of the map; knots, edges and means of all columns are concatenated."""
    maps, pieces, squared_norm = sphere.columns.quantile_maps, sphere.columns.pieces, sphere.columns.squared_norm
    none = np.zeros(0)
    return {
        **({} if sphere.row_space is None else {"row_space": sphere.row_space}),
        **({} if squared_norm is None else {"squared_norm": np.array([squared_norm.mean, squared_norm.scale])}),
        "sphere_mean": sphere.columns.mean,
        "sphere_scale": sphere.columns.scale,
        "metric": sphere.metric,
        "quantile_columns": np.array([[one.column, len(one.knots)] for one in maps], np.float64).reshape(-1, 2),
        "quantile_knots": np.concatenate([none, *(one.knots for one in maps)]),
        "quantile_values": np.concatenate([none, *(one.values for one in maps)]),
        "piece_columns": np.array([[one.column, len(one.mean)] for one in pieces], np.float64).reshape(-1, 2),
        "piece_edges": np.concatenate([none, *(one.edges for one in pieces)]),
        "piece_means": np.concatenate([none, *(one.mean for one in pieces)]),
        "piece_scales": np.array([one.scale for one in pieces], np.float64),
    }


def _sphere_map(arrays: dict[str, np.ndarray], description: dict, columns: int) -> SphereMap:
    mean, scale = (_numbers(arrays[name], columns) for name in ("sphere_mean", "sphere_scale"))
    typical, bias = float(description["typical"]), float(description["bias"])
    if not (scale.min(initial=1.0) > 0 and 0 < typical < np.inf and 0 < bias < np.inf):
        raise InputError("the scales of the columns must be positive")
    column_map = ColumnMap(
        mean, scale, _quantile_maps(arrays, columns), _pieces(arrays, columns), _squared_norm(arrays)
    )
    metric, basis = _metric(arrays["metric"], column_map.n_outputs), arrays.get("row_space")
    if basis is not None and not (
        basis.ndim == 2 and len(basis) == len(metric) and basis.dtype == np.float64 and np.isfinite(basis).all()
    ):
        raise InputError("row_space must have a row for each column")
    return SphereMap(column_map, metric, typical, bias, basis)


def _metric(metric: np.ndarray, columns: int) -> np.ndarray:
    if metric.shape == (columns, columns) and metric.dtype == np.float64 and np.isfinite(metric).all():
        return metric
    if not _numbers(metric, columns).min(initial=1.0) > 0:
        raise InputError("a diagonal metric must be positive")
    return metric


def _quantile_maps(arrays: dict[str, np.ndarray], columns: int) -> list[QuantileMap]:
    numbers, lengths = _listed_columns(arrays["quantile_columns"], "quantile_columns", columns, 2)
    knots, values = (_parts(arrays[name], lengths) for name in ("quantile_knots", "quantile_values"))
    maps = [QuantileMap(*one) for one in zip(numbers.tolist(), knots, values, strict=True)]
    if not all((np.diff(one.knots) > 0).all() for one in maps):
        raise InputError("the knots of a column must ascend")
    return maps


def _pieces(arrays: dict[str, np.ndarray], columns: int) -> list[Pieces]:
    numbers, lengths = _listed_columns(arrays["piece_columns"], "piece_columns", columns, 1)
    edges, means = _parts(arrays["piece_edges"], lengths + 1), _parts(arrays["piece_means"], lengths)
    scales = _numbers(arrays["piece_scales"], len(numbers))
    if not all((np.diff(own) > 0).all() for own in edges) or not (scales > 0).all():
        raise InputError("the edges of pieces must ascend, and their scales must be positive")
    return [Pieces(*one) for one in zip(numbers.tolist(), edges, means, scales.tolist(), strict=True)]


def _squared_norm(arrays: dict[str, np.ndarray]) -> SquaredNorm | None:
    if "squared_norm" not in arrays:
        return None
    mean, scale = _numbers(arrays["squared_norm"], 2).tolist()
    return SquaredNorm(mean, _positive(scale))


def _listed_columns(listed: np.ndarray, name: str, columns: int, shortest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return column numbers and lengths from pairs of both."""
    if listed.ndim != 2 or listed.shape[1] != 2 or listed.dtype != np.float64 or (listed != np.rint(listed)).any():
        raise InputError(f"{name} must be pairs of whole numbers")
    numbers, lengths = listed.astype(np.int64).T
    known = ((numbers >= 0) & (numbers < columns) & (lengths >= shortest)).all()
    if not known or len(np.unique(numbers)) < len(numbers):
        raise InputError(f"{name} names columns that are not there")
    return numbers, lengths


def _parts(array: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Split concatenated numbers into parts of these lengths."""
    return np.split(_numbers(array, int(lengths.sum())), np.cumsum(lengths)[:-1])[: len(lengths)]


# Chosen settings

_SETTINGS_ARRAYS = ("importances", "left_out", "chosen_rows")


def _store_settings(settings: TableSettings) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    arrays = {
        f"settings_{name}": np.asarray(value, np.int64 if name == "chosen_rows" else np.float64)
        for name in _SETTINGS_ARRAYS
        if (value := getattr(settings, name)) is not None
    }
    names = [
        one.name for one in fields(settings) if one.name not in (*_SETTINGS_ARRAYS, "metric", "pieces", "squared_norm")
    ]
    return {"settings": {name: getattr(settings, name) for name in names}}, arrays


def _restore_settings(stored: dict, arrays: dict[str, np.ndarray], sphere: SphereMap) -> TableSettings:
    left_out, chosen = arrays.get("settings_left_out"), arrays.get("settings_chosen_rows")
    if left_out is not None and (chosen is None or left_out.ndim != 2 or len(left_out) != len(chosen)):
        raise InputError("the predictions by which settings were chosen have another number of rows")
    notes = stored["notes"]
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise InputError(f"notes must be a list of texts, got {quoted(notes)}")
    return TableSettings(
        bias=_positive(stored["bias"]),
        metric=sphere.metric,
        output_layer_scale=_at_least_0(stored["output_layer_scale"]),
        ridge=_float_or_none(stored["ridge"]),
        error=_float_or_none(stored["error"]),
        rows=int(stored["rows"]),
        rounds=int(stored["rounds"]),
        importances=_numbers(arrays["settings_importances"], len(sphere.columns.mean)),
        forecast=_float_or_none(stored["forecast"]),
        pieces=sphere.columns.pieces,
        squared_norm=sphere.columns.squared_norm,
        notes=notes,
        left_out=left_out,
        chosen_rows=None if chosen is None else _whole_numbers(chosen),
    )


# Training result


def _store_result(estimator: Estimator) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    result = estimator.result_
    names = [one.name for one in fields(result) if one.name != "history"]
    columns = [one.name for one in fields(Iteration)]
    numbers = [[getattr(record, name) for name in columns] for record in result.history]
    history = np.array(numbers, np.float64).reshape(-1, len(columns))  # None becomes NaN
    rows = estimator.training_rows_.astype(np.int64)
    return {"result": {name: getattr(result, name) for name in names}}, {"history": history, "training_rows": rows}


def _restore_result(stored: dict, history: np.ndarray) -> TrainingResult:
    names = {one.name for one in fields(TrainingResult)} - {"history"}
    if not isinstance(stored, dict) or set(stored) != names:
        raise InputError(f"result must have {', '.join(sorted(names))}; got {quoted(stored)}")
    columns = [one.name for one in fields(Iteration)]
    if history.ndim != 2 or history.shape[1] != len(columns) or history.dtype != np.float64 or not len(history):
        raise InputError(f"history must have {len(columns)} columns of float64, got {history.dtype} {history.shape}")
    records = [dict(zip(columns, row, strict=True)) for row in history.tolist()]
    for record in records:
        for name in (*_OPTIONAL_WHOLE, "validation_loss"):
            record[name] = None if np.isnan(record[name]) else record[name]
        for name in (*_WHOLE, *_OPTIONAL_WHOLE):
            record[name] = None if record[name] is None else int(record[name])
    if not isinstance(stored["details"], dict) or not all(
        isinstance(stored[name], str) for name in ("engine", "solver")
    ):
        raise InputError(f"details, engine or solver of the result cannot be {quoted(stored)}")
    numbers = {name: float(stored[name]) for name in ("learning_rate", "loss", "start_seconds", "compile_seconds")}
    whole = {name: int(stored[name]) for name in ("best_iteration", "blocks")}
    return TrainingResult(
        **{
            **stored,
            **numbers,
            **whole,
            "resumed_at": None if stored["resumed_at"] is None else int(stored["resumed_at"]),
            "stop_reason": StopReason(stored["stop_reason"]),
            "history": History(Iteration(**record) for record in records),
        }
    )


# Checks


def _calibration(numbers: dict) -> Calibration:
    found = Calibration(**{one.name: float(numbers[one.name]) for one in fields(Calibration)})
    if not (0 < found.slope < np.inf and 0 <= found.power < np.inf and 0 < found.floor < 1 and 0 <= found.doubt < 1):
        raise InputError(f"calibration must be positive numbers, got {quoted(numbers)}")
    return found


def _mixing(arrays: dict[str, np.ndarray], outputs: int) -> ClassMixing | None:
    if "mixing" not in arrays:
        return None
    matrix, intercept = arrays["mixing"], arrays["mixing_intercept"]
    if outputs < 3 or matrix.shape != (outputs, outputs):
        raise InputError(f"mixing must have shape {(outputs, outputs)}, got {matrix.shape}")
    return ClassMixing(_numbers(matrix.ravel(), outputs**2).reshape(outputs, outputs), _numbers(intercept, outputs))


def _labels(classes: Any) -> np.ndarray:
    """Return class labels as an array; all must be of one type, which the array preserves."""
    kinds = {type(label) for label in classes} if isinstance(classes, list) else set()
    if len(kinds) != 1 or not kinds <= {str, int, float, bool} or len(classes) < 2 or classes != sorted(set(classes)):
        raise InputError(f"classes must be sorted, different labels of one kind, got {quoted(classes)}")
    return np.array(classes)


def _numbers(array: np.ndarray, length: int) -> np.ndarray:
    if array.shape != (length,) or array.dtype != np.float64 or not np.isfinite(array).all():
        raise InputError(f"expected {length} finite float64 numbers, found {array.dtype} of shape {array.shape}")
    return array


def _whole_numbers(array: np.ndarray) -> np.ndarray:
    if array.ndim != 1 or array.dtype != np.int64 or (array < 0).any():
        raise InputError(f"expected row numbers, found {array.dtype} of shape {array.shape}")
    return array


def _positive(number: Any) -> float:
    if not 0 < float(number) < np.inf:
        raise InputError(f"expected a positive number, got {quoted(number)}")
    return float(number)


def _at_least_0(number: Any) -> float:
    if not 0 <= float(number) < np.inf:
        raise InputError(f"expected a number of at least 0, got {quoted(number)}")
    return float(number)


def _float_or_none(number: Any) -> float | None:
    return None if number is None else float(number)
