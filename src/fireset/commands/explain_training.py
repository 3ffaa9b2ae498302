"""``fireset train --explain``: describe the columns of a table and the expected fit, without training."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fireset._util.text import percent
from fireset.estimators import ShiftedReLUClassifier, estimator_for
from fireset.tables.cells import one_line
from fireset.tables.large_problem import read_problem
from fireset.tables.settings import MAX_ROWS
from fireset.training.losses import Loss
from fireset.training.solvers import solver_class

# Seconds of a fit at the defaults, from the fits that docs/benchmarks.md lists: they are within a factor of 2 of
#     a + b min(n, 1000) + c n (1 + k/8),   n rows, k outputs:
# drawing the network, choosing the settings on up to 1,000 rows, and the products. Compiling is not in it.
_SECONDS_AT_LEAST = 0.05
_SECONDS_A_CHOSEN_ROW = 1e-4
_SECONDS_A_ROW = 9e-5
_OUTPUTS_ALIKE = 8


@dataclass(frozen=True)
class Explained:
    """Facts to show, and a description of each column of the table."""

    summary: dict[str, Any]
    columns: list[dict[str, Any]]

    def column_rows(self) -> list[list[str]]:
        """Rows of a table for people: name, kind, missing cells, importance and remarks."""
        shares = self.summary["importances"]
        return [
            [
                one_line(one["name"]),
                one["kind"],
                f"{one['missing']:,}" if one.get("missing") else "",
                percent(shares[one["name"]]) if one["name"] in shares and one["kind"] != "left out" else "",
                _remark(one),
            ]
            for one in self.columns
        ]


def explain_training(
    file: Path,
    target: str,
    *,
    holdout: float,
    loss: str | Loss,
    settings: dict[str, Any],
    reading: dict[str, Any],
    memory: str | None = None,
) -> Explained:
    """Read the table, choose the settings, and estimate score and time of a fit."""
    problem = read_problem(file, target, memory=memory, **reading)
    kept, _, encoded = problem.split(holdout, settings["random_state"])
    estimator = estimator_for(problem.task, loss, **{**settings, "verbose": False})
    columns = problem.describe_columns(encoded.encoder, kept)
    prepared = estimator.prepare(encoded[kept], problem.targets(kept))
    outputs = prepared.targets.shape[1]
    chosen = estimator.settings_
    score = "accuracy" if isinstance(estimator, ShiftedReLUClassifier) else "r2"
    features = len(estimator.encoder_.feature_names)
    solver = estimator.solver_for(len(kept), features, outputs)
    summary: dict[str, Any] = {
        "task": problem.task,
        **({} if problem.choice is None else {"task_reason": str(problem.choice)}),
        "rows": len(kept),
        "held_out_rows": len(problem.y) - len(kept),
        "columns": len(estimator.encoder_.columns),
        "encoded_columns": features,
        **({"classes": problem.classes} if problem.classes else {}),
        "width": estimator.width_for(len(kept), features, outputs),
        "threshold": estimator.network_.threshold,
        "solver": solver,
        "bias": chosen.bias,
        "metric": chosen.metric_kind,
        "metric_rounds": chosen.rounds,
        "columns_with_pieces": len(chosen.pieces),
        "importances": dict(zip(problem.features.columns, estimator.feature_importances_.tolist(), strict=True)),
    }
    if chosen.forecast is not None:
        summary |= {f"forecast_{score}": chosen.forecast, "forecast_rows": chosen.rows}
    if chosen.notes:
        summary["notes"] = list(chosen.notes)
    if settings["width"] == "auto" and solver_class(solver).uses_tangent_products:
        work = len(kept) * (1.0 + outputs / _OUTPUTS_ALIKE)
        choosing = _SECONDS_A_CHOSEN_ROW * min(len(kept), MAX_ROWS)
        summary["expected_seconds"] = _SECONDS_AT_LEAST + choosing + _SECONDS_A_ROW * work
    return Explained(summary, columns)


def _remark(one: dict[str, Any]) -> str:
    if one["kind"] == "left out":
        return one["why"]
    remarks = []
    if "levels_in_table" in one:
        remarks.append(f"the {one['levels'] - 1:,} most frequent of {one['levels_in_table']:,} categories")
    elif "levels" in one:
        remarks.append(f"{one['levels']:,} categories")
    if one.get("phases"):
        remarks.append(f"phases of {', '.join(one['phases'])}")
    if "read_as" in one:
        remarks.append(f"read as {one['read_as']}")
    if "note" in one:
        remarks.append(one["note"])
    if one.get("missing"):
        filled = one["filled_with"]
        filled = f"{filled:.6g}" if isinstance(filled, float) else one_line(filled)
        remarks.append(f"missing cells become {filled}")
    return ", ".join(remarks)
