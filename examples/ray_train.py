"""One network on several workers of Ray Train, compared with one process.

``TorchTrainer`` starts the workers and their process group, which fireset finds. Each worker has a part of the rows.
Needs PyTorch and ``pip install 'ray[train]'``::

    python examples/ray_train.py [--workers 2] [--rows 2000] [--width 1000]
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
from ray.train.torch import TorchConfig, TorchTrainer
from sklearn.datasets import make_friedman1

from fireset import ShiftedReLURegressor
from fireset.distributed.worker_grid import grid


def table(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return make_friedman1(rows, 10, noise=1.0, random_state=0)


def fit_on_workers(settings: dict[str, Any]) -> None:
    """Train and predict; every worker runs this. The first one writes the predictions."""
    X, y = table(settings["rows"])
    with grid(neurons=1, rows=settings["workers"]):
        model = ShiftedReLURegressor(settings["width"], random_state=0).fit(X, y)
        predicted = model.predict(X)
    if ray.train.get_context().get_world_rank() == 0:
        np.save(settings["out"], predicted)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--rows", type=int, default=2000)
    arguments.add_argument("--width", type=int, default=1000)
    given = vars(arguments.parse_args())
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "predicted.npy")
        TorchTrainer(
            fit_on_workers,
            train_loop_config={**given, "out": str(out)},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ray.train.ScalingConfig(num_workers=given["workers"]),
            run_config=ray.train.RunConfig(storage_path=folder),
        ).fit()
        predicted = np.load(out)
    X, y = table(given["rows"])
    alone = ShiftedReLURegressor(given["width"], random_state=0).fit(X, y).predict(X)
    print(f"R² {1 - np.mean((y - predicted) ** 2) / np.var(y):.4f} on {given['workers']} workers")
    print(f"largest difference from one process: {np.abs(predicted - alone).max():.1e}")


if __name__ == "__main__":
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    main()
