"""``fireset info``: describe a model file."""

import os
from pathlib import Path
from typing import Any

from fireset._util.shard_files import shard_files
from fireset.estimators import ShiftedReLUClassifier
from fireset.model import Model
from fireset.network import ShiftedReLUNetwork
from fireset.training.losses import get_loss


def describe_model(path: Path) -> dict[str, Any]:
    """Describe a model file."""
    network, arrays, description = ShiftedReLUNetwork.from_file(path)
    known: dict[str, Any] = {
        "file": str(path),
        "bytes": sum(os.path.getsize(file) for file in (path, *shard_files(path, description))),
        "width": network.width,
        "inputs": network.n_features,
        "outputs": network.n_outputs,
        "threshold": network.threshold,
        "output_scale": network.output_scale,
        "dtype": str(network.dtype),
    }
    if "task" in description:
        model = Model.restore(path, network, arrays, description)
        known |= {
            "task": model.task,
            "target": model.target,
            "columns": [column.name for column in model.encoder.columns],
        }
        if isinstance(model.estimator, ShiftedReLUClassifier):
            known["classes"] = model.estimator.classes_.tolist()
        known["trained_for"] = str(get_loss(model.estimator.loss))
        shown = (
            "task_reason",
            "solver",
            "bias",
            "metric",
            "metric_rounds",
            "columns_with_pieces",
            "importances",
            "forecast_accuracy",
            "forecast_r2",
            "ridge",
            "leave_one_out_error",
            "loss",
            "iterations",
            "stop_reason",
            "held_out_accuracy",
            "held_out_accuracy_interval",
            "held_out_majority_accuracy",
            "held_out_balanced_accuracy",
            "held_out_auc",
            "held_out_log_loss",
            "held_out_precision",
            "held_out_recall",
            "held_out_f1",
            "held_out_low_recall_classes",
            "held_out_r2",
            "held_out_r2_interval",
            "held_out_rmse",
            "held_out_constant_rmse",
            "held_out_mae",
            "held_out_pinball",
            "held_out_coverage",
            "held_out_poisson_deviance",
        )
        known |= {name: model.training[name] for name in shown if name in model.training}
    return known
