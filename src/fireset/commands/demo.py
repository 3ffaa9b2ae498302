"""The demonstration: handwritten digits, trained on the neurons that fire, timed against all of them."""

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fireset._util.files import check_writable
from fireset.estimators import ShiftedReLUClassifier
from fireset.model import Model
from fireset.tables.encoder import TableEncoder
from fireset.training.loop import train
from fireset.training.result import TrainingResult

_DENSE_ITERATIONS = 8


def run_demo(*, width: int, out: Path, seed: int, verbose: bool) -> dict[str, Any]:
    """Train with the ``data`` engine, then time the first steps of the same run with the dense engine."""
    import polars as pl

    check_writable(out)
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    estimator = ShiftedReLUClassifier(width=width, engine="data", max_iter=250, random_state=seed, verbose=verbose)
    estimator.fit(X_train, y_train)
    result = _complete(estimator.result_)
    iterations = max(1, len(result.history) - 1)
    sparse = result.history[-1].seconds / iterations

    dense, difference = _time_dense(estimator, X_train, y_train)
    names = [f"pixel_{row}_{column}" for row in range(8) for column in range(8)]
    encoder = TableEncoder.learn(pl.DataFrame(X_train, schema=names))
    summary: dict[str, Any] = {
        "data": f"handwritten digits: {len(X_train)} images to learn from, {len(X_test)} to test on",
        "width": width,
        "test_accuracy": float(estimator.score(X_test, y_test)),
        "loss": result.loss,
        "iterations": iterations,
        "fired_fraction": result.history[-1].fired_fraction,
        "seconds": result.history[-1].seconds,
        "seconds_per_iteration": sparse,
        "dense_seconds_per_iteration": dense,
        "speed_up_over_dense": dense / sparse,
        "largest_relative_difference_of_loss": difference,
        "compile_seconds": result.compile_seconds,
    }
    Model("classification", "digit", estimator, encoder, summary).save(out)
    return {**summary, "model": str(out.resolve())}


def _time_dense(estimator: ShiftedReLUClassifier, X, y) -> tuple[float, float]:
    """Seconds per iteration of the dense engine from the same start, and how far its losses are from ours."""
    again = ShiftedReLUClassifier(**estimator.get_params())  # draws the same network
    rows, targets, *_ = again.prepare(X, y)
    result = _complete(
        train(
            again.network_,
            rows,
            targets,
            engine="dense",
            momentum=estimator.momentum,
            nesterov=estimator.nesterov,
            max_iter=_DENSE_ITERATIONS,
            tol=0,
        )
    )
    losses = result.history.column("loss")
    ours = estimator.result_.history.column("loss")[: len(losses)]
    seconds = result.history.column("seconds")
    return float(seconds[-1] / _DENSE_ITERATIONS), float(np.max(np.abs(losses[: len(ours)] / ours - 1)))


def _complete(result: TrainingResult) -> TrainingResult:
    """Half a run shows nothing: Ctrl-C ends the demonstration, where elsewhere it only ends the training."""
    if result.stop_reason == "interrupted":
        raise KeyboardInterrupt
    return result
