"""What the workers of ``test_distributed.py`` do, under torchrun: train one network in groups of 1 to 4 of them."""

import json
import os
import sys
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from fireset import Checkpoints, InputError, ShiftedReLUNetwork, ShiftedReLURegressor, train
from fireset.training.solvers import GaussNewton

WIDTH, FEATURES = 2000, 8
SETTINGS = {"engine": "data", "momentum": 0.9, "nesterov": True, "tol": 0, "max_iter": 100}
RANK, OUT = int(os.environ.get("RANK", "0")), Path(sys.argv[-1])


def problem() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((120, FEATURES))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, np.stack([np.sin(3 * X[:, 0]), X[:, 1] * X[:, 2]], axis=1)


def network() -> ShiftedReLUNetwork:
    return ShiftedReLUNetwork.initialize(WIDTH, FEATURES, 2, seed=7, dtype="float64")


def fit(X, y) -> ShiftedReLURegressor:
    settings = {"max_iter": 20, "tol": 0, "random_state": 3, "dtype": "float64", "solver": "gradient"}
    return ShiftedReLURegressor(500, **settings).fit(X, y)


@contextmanager
def group(name: str, size: int):
    """A process group of the first ``size`` workers; the others pass by."""
    if RANK < size:
        store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        dist.init_process_group(
            "gloo",
            store=PrefixStore(name, store),
            rank=RANK,
            world_size=size,
            timeout=timedelta(seconds=60),
        )
    try:
        yield
    finally:
        if RANK < size:
            dist.destroy_process_group()


def main() -> None:
    X, y = problem()
    for size in (1, 2, 3, 4):
        with group(f"all {size}", size):
            if RANK < size:
                together(X, y, size)
    with group("checkpoint", 2):
        if RANK < 2:
            checkpoints = Checkpoints(OUT / "checkpoints", every=10)
            one = network()
            train(one, X, y, checkpoint=checkpoints, callbacks=[lambda p: p.record.iteration == 45], **SETTINGS)
    with group("resume", 3):
        if RANK < 3:
            one = network()
            checkpoints = Checkpoints(OUT / "checkpoints", every=10, resume=True)
            result = train(one, X, y, checkpoint=checkpoints, **SETTINGS)
            note(f"resumed.{RANK}", {"at": result.resumed_at, "iterations": len(result.history)})
            np.save(OUT / f"resumed.{RANK}.npy", one.weights)
    for size in (1, 3):
        with group(f"rounds {size}", size):
            if RANK < size:
                one = network()
                result = train(one, X, y, solver=GaussNewton(), max_iter=6, tol=0)
                note(f"rounds.{size}.{RANK}", result.history.column("loss").tolist())
                np.save(OUT / f"rounds.{size}.{RANK}.npy", one.weights)
    for name in ("rounds whole", "rounds begun", "rounds resumed"):
        with group(name, 3):
            if RANK < 3:
                one, folder = network(), OUT / ("whole" if name == "rounds whole" else "cut")
                checkpoints = Checkpoints(folder, every=1, resume=name == "rounds resumed")
                stop = [lambda p: p.record.iteration == 3] if name == "rounds begun" else []
                train(one, X, y, solver=GaussNewton(), max_iter=6, tol=0, checkpoint=checkpoints, callbacks=stop)
                np.save(OUT / f"{name}.{RANK}.npy", one.weights)
    with group("shards", 4):
        model = fit(X, y)
        model.network_.save(OUT / "shards.v2.safetensors")  # of another model, as far as the next one can detect
        model.network_.save(OUT / "shards.safetensors")
        model.network_.save(OUT / "shards.safetensors")  # over itself: the first ones are removed
        np.save(OUT / f"predictions.{RANK}.npy", model.predict(X))
    with group("strangers", 2):
        if RANK < 2:
            try:
                train(network(), X, y + RANK, **SETTINGS)
            except InputError as error:
                note(f"strangers.{RANK}", str(error))
    with group("too many", 4):
        try:
            train(ShiftedReLUNetwork.initialize(7, FEATURES, 2, dtype="float64"), X, y)
        except InputError as error:
            note(f"narrow.{RANK}", str(error))


def together(X: np.ndarray, y: np.ndarray, size: int) -> None:
    """Train, and write down the whole network, what this worker did, and what it exchanged in an iteration."""
    seen = []

    def look(progress) -> None:
        seen.append((progress.engine.inner.work.inner_products, progress.engine.shard.group.bytes_exchanged))

    one = network()
    result = train(one, X, y, callbacks=[look], **SETTINGS)
    np.save(OUT / f"weights.{size}.{RANK}.npy", one.weights)
    per_iteration = {after[1] - before[1] for before, after in pairwise(seen)}
    facts = {"work": seen[-1][0], "bytes": sorted(per_iteration), "loss": result.loss}
    note(f"facts.{size}.{RANK}", {**facts, "total": sum(result.history.column("inner_products").tolist())})


def note(name: str, facts) -> None:
    (OUT / f"{name}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
