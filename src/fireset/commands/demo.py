"""The demonstration: handwritten digits, trained on the neurons that fire, timed against all of them."""

import time
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fireset._util.files import check_writable
from fireset.commands.outputs import save_or_rescue
from fireset.estimators import ShiftedReLUClassifier
from fireset.model import Model
from fireset.network import ShiftedReLUNetwork
from fireset.training.loop import train
from fireset.training.result import TrainingResult

_ITERATIONS = 8


def run_demo(*, width: int, out: Path, seed: int, verbose: bool) -> dict[str, Any]:
    """Fit at the defaults; then time gradient steps with the ``data`` engine and with the dense one."""
    import polars as pl

    check_writable(out)
    X, y = load_digits(return_X_y=True)
    X = pl.DataFrame(X, schema=[f"pixel_{row}_{column}" for row in range(8) for column in range(8)])
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    estimator = ShiftedReLUClassifier(width=width, threshold="paper", engine="data", random_state=seed, verbose=verbose)
    started = time.perf_counter()
    estimator.fit(X_train, y_train)
    seconds = time.perf_counter() - started
    result = _complete(estimator.result_)
    sparse, dense, difference = _time_steps(estimator, X_train, y_train)
    summary: dict[str, Any] = {
        "data": f"handwritten digits: {len(X_train)} images to learn from, {len(X_test)} to test on",
        "width": width,
        "test_accuracy": float(estimator.score(X_test, y_test)),
        "loss": result.loss,
        "solver": result.solver,
        "iterations": max(1, len(result.history) - 1),
        "active_fraction": result.history[-1].active_fraction,
        "seconds": seconds - result.compile_seconds,
        "gradient_step_seconds": sparse,
        "dense_gradient_step_seconds": dense,
        "speed_up_over_dense": dense / sparse,
        "largest_relative_difference_of_loss": difference,
        "compile_seconds": result.compile_seconds,
    }
    place, problem = save_or_rescue(Model("classification", "digit", estimator, summary).save, out)
    summary["model"] = str(place.resolve())
    return summary if problem is None else {**summary, "not_written": [f"--out: {problem}"]}


def _time_steps(estimator: ShiftedReLUClassifier, X, y) -> tuple[float, float, float]:
    """Seconds of a gradient step with both engines from the same start, and how far their losses are apart."""
    fitted = copy(estimator).set_params(warm_start=True, verbose=False)  # maps rows with the settings that were chosen
    rows, targets, *_ = fitted.prepare(X, y)
    trained = estimator.network_
    start = ShiftedReLUNetwork.initialize(
        trained.width,
        trained.n_features,
        trained.n_outputs,
        threshold=trained.threshold,
        start="antisymmetric",
        output_scale=trained.output_scale,
        seed=estimator.random_state,
        dtype=trained.dtype.name,
    )
    settings: dict[str, Any] = {"max_iter": _ITERATIONS, "tol": 0}
    histories = [
        _complete(train(start.copy(), rows, targets, engine=engine, **settings)).history for engine in ("data", "dense")
    ]
    sparse, dense = (float(history[-1].seconds / _ITERATIONS) for history in histories)
    losses, expected = (history.column("loss") for history in histories)
    return sparse, dense, float(np.max(np.abs(expected / losses - 1)))


def _complete(result: TrainingResult) -> TrainingResult:
    """Half a run shows nothing: Ctrl-C ends the demonstration, where elsewhere it only ends the training."""
    if result.stop_reason == "interrupted":
        raise KeyboardInterrupt
    return result
