"""Printing of results: aligned text, or one JSON object."""

import json
import sys
from collections.abc import Sequence
from typing import Any
from unicodedata import combining

from fireset._util.errors import OutputError
from fireset._util.text import duration, percent, significant

_MAX_LISTED = 12  # items of a list on one line
_MAX_LISTED_SHARES = 6


def show(summary: dict[str, Any], as_json: bool) -> None:
    """Print a summary as JSON, or as lines of labels and values."""
    if as_json:
        print(json.dumps(summary), flush=True)
        return
    lines = [tuple(map(printable, readable(key, value))) for key, value in summary.items()]
    widest = max(len(label) for label, _ in lines)
    for label, text in lines:
        print(f"{label:{widest}}  {text}")
    sys.stdout.flush()  # here, where a closed pipe (`head`) is handled


def require_written(summary: dict[str, Any]) -> None:
    """Raise OutputError if an output of the command could not be written. Call it after everything else is shown."""
    if "not_written" in summary:
        where = f"the model is in {summary['model']}, but " if "model" in summary else ""
        raise OutputError(f"{where}not all output was written: {'; '.join(summary['not_written'])}")


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False) -> None:
    """Print a table with aligned columns; with ``numbers`` all but the first column are aligned to the right."""
    lines = [list(columns), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(_display_width(line[k]) for line in lines) for k in range(len(columns))]
    for line in lines:
        spaces = [" " * (width - _display_width(cell)) for cell, width in zip(line, widths, strict=True)]
        cells = [
            space + cell if numbers and k > 0 else cell + space
            for k, (cell, space) in enumerate(zip(line, spaces, strict=True))
        ]
        print("  ".join(cells).rstrip())
    sys.stdout.flush()


def printable(text: str) -> str:
    """Escape control characters, which could come from a file and change the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _display_width(text: str) -> int:
    """Return the number of columns of a text, without combining characters such as the bar of S̄."""
    return sum(not combining(character) for character in text)


_STOP_REASONS = {
    "max_iter": "all iterations done; --max-iter allows more",
    "tol": "the loss no longer improves; see --tol",
    "stalled": "no step decreases the loss; try --solver gradient, or another --output-scale",
    "patience": "the loss on the validation rows no longer improves",
    "callback": "a callback stopped training; the best network so far was kept",
    "time_limit": "the time given by --time is over; the best network so far was kept",
    "interrupted": "interrupted; the best network so far was kept",
    "terminated": "ended by SIGTERM; --resume continues from the checkpoint",
    "diverged": "the loss grew without bound; give a smaller --learning-rate, or auto",
}
_NAMES = {
    f"{where}{key}": f"{where.replace('_', ' ')}{name}"
    for where in ("", "held_out_", "eval_", "forecast_")
    for key, name in {
        "r2": "R²",
        "rmse": "RMSE",
        "mae": "MAE",
        "pinball": "pinball loss",
        "coverage": "share below each quantile",
        "poisson_deviance": "Poisson deviance",
        "majority_accuracy": "share of the most frequent class",
        "low_recall_classes": "recall below one half",
        "auc": "AUC",
        "f1": "F1",
        "r2_interval": "R², 95 % interval",
        "accuracy_interval": "accuracy, 95 % interval",
        "majority_class": "most frequent class",
        "constant_prediction": "mean of the training rows",
        "constant_rmse": "RMSE of predicting that mean",
    }.items()
}


def readable(key: str, value: Any) -> tuple[str, str]:
    """Return the label and the rounded value of a fact; ``--json`` has exact values."""
    label = _NAMES.get(key, key.replace("_", " "))
    if key == "stop_reason":
        return label, _STOP_REASONS.get(str(value), str(value))
    if key == "bytes":
        return "size", f"{value / 1e6:,.1f} MB" if value >= 1e6 else f"{value / 1e3:.1f} kB"
    if isinstance(value, dict) and all(isinstance(share, int | float) for share in value.values()):
        most = [f"{name} {percent(share, 0)}" for name, share in list(value.items())[:_MAX_LISTED_SHARES]]
        return label, ", ".join(most) + (f", … ({len(value)} in all)" if len(value) > len(most) else "")
    if isinstance(value, bool) or not isinstance(value, int | float | list):
        return label, str(value)
    if isinstance(value, list):
        more = f", … ({len(value)} in all)" if len(value) > _MAX_LISTED else ""
        form = percent if key.endswith("accuracy_interval") else significant
        shown = [form(one) if isinstance(one, float) else str(one) for one in value[:_MAX_LISTED]]
        return label, ", ".join(shown) + more
    if isinstance(value, int):
        return label, f"{value:,}"
    if key.endswith(("fraction", "accuracy", "precision", "recall", "f1")):
        return label, percent(value)
    if "seconds" in key:
        return label.replace("seconds", "time"), duration(value)
    return label, significant(value) + (" times" if key == "speed_up_over_dense" else "")
