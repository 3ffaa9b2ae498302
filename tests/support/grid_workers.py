"""What the workers of ``test_grid.py`` do, four of them under torchrun: train one network in grids of 2x2 and 1x4."""

import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

from fireset import Checkpoints, InputError, ShiftedReLUNetwork, ShiftedReLURegressor, train
from fireset.commands.train import train_table
from fireset.distributed.process_group import joined_group
from fireset.distributed.worker_grid import current_grid, grid

ROWS, HELD_OUT, WIDTH, FEATURES = 121, 7, 2001, 8  # none of them even
RUNS = {"plain": {"engine": "data"}, "momentum": {"engine": "data", "momentum": 0.9, "nesterov": True}}
COMMAND = {
    "loss": "squared_error",
    "holdout": 0.2,
    "settings": {"width": 501, "max_iter": 20, "tol": 0, "dtype": "float64", "random_state": 0},
}  # with the default solver
COLUMNS = ("loss", "validation_loss", "active_pairs", "inner_products", "learning_rate")


def problem(seed: int = 5, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(seed).standard_normal((rows, FEATURES))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, np.stack([np.sin(3 * X[:, 0]), X[:, 1] * X[:, 2]], axis=1)


def arguments() -> dict:
    """Sample weights, validation rows, and 100 iterations, whatever the loss does."""
    weight = np.random.default_rng(1).uniform(0, 2, ROWS)
    return {"sample_weight": weight, "validation": problem(6, HELD_OUT), "patience": 1000, "tol": 0, "max_iter": 100}


def network() -> ShiftedReLUNetwork:
    return ShiftedReLUNetwork.initialize(WIDTH, FEATURES, 2, seed=7, dtype="float64")


def early(one: ShiftedReLUNetwork):
    """A run that its validation rows end, and whose best weights are not the last."""
    X, y = problem()
    noisy = y + np.random.default_rng(2).standard_normal(y.shape)
    settings = {"engine": "data", "momentum": 0.9, "tol": 0, "max_iter": 300, "patience": 5}
    return train(one, X, noisy, validation=problem(6, HELD_OUT), **settings)


def by_tol(one: ShiftedReLUNetwork):
    return train(one, *problem(), engine="data", momentum=0.9, tol=1e-3, max_iter=300)


def fit(X, y) -> ShiftedReLURegressor:
    settings = {"max_iter": 20, "tol": 0, "random_state": 3, "dtype": "float64", "solver": "gradient"}
    return ShiftedReLURegressor(501, early_stopping=True, **settings).fit(X, y)


def table(out: Path, rank: int) -> Path:
    """Where a worker writes the table that it reads again."""
    (out / f"{rank}").mkdir(exist_ok=True)
    return out / f"{rank}" / "table.csv"


def main(out: Path) -> None:
    with joined_group() as workers:
        with grid(neurons=2, rows=2):
            for name, settings in RUNS.items():
                together(out, f"2x2.{name}", workers.rank, settings)
            in_a_square(out, workers.rank)
        with grid(neurons=1, rows=4):
            together(out, "1x4.momentum", workers.rank, RUNS["momentum"])


def in_a_square(out: Path, rank: int) -> None:
    for name, run in (("early", early), ("tol", by_tol)):
        one = network()
        result = run(one)
        facts = {"reason": result.stop_reason.value, "best": result.best_iteration}
        note(out, f"{name}.{rank}", {**facts, "losses": result.history.column("loss").tolist()})
        np.save(out / f"{name}.{rank}.npy", one.weights)
    for resume in (False, True):
        one, checkpoints = network(), Checkpoints(out / "checkpoints", every=10, resume=resume)
        stop = [] if resume else [lambda progress: progress.record.iteration == 45]
        result = train(one, *problem(), **RUNS["momentum"], **arguments(), checkpoint=checkpoints, callbacks=stop)
    note(out, f"resumed.{rank}", result.resumed_at)
    np.save(out / f"resumed.{rank}.npy", one.weights)
    model = fit(*problem())
    model.network_.save(out / "shards.safetensors")
    np.save(out / f"predictions.{rank}.npy", model.predict(problem()[0]))
    pl.DataFrame(problem()[0], schema=list("abcdefgh")).with_columns(y=problem()[1][:, 0]).write_csv(table(out, rank))
    note(out, f"command.{rank}", train_table(table(out, rank), "y", out=out / "command.safetensors", **COMMAND))
    refused = {
        "theory": lambda: train(network(), *problem(), learning_rate="theory"),
        "strangers": lambda: train(network(), problem()[0], problem()[1] + rank, **RUNS["plain"]),
        "few rows": lambda: train(network(), *problem(rows=1)),
    }
    for name, attempt in refused.items():
        try:
            attempt()
        except InputError as error:
            note(out, f"{name}.{rank}", str(error))


def together(out: Path, name: str, rank: int, settings: dict) -> None:
    """Train, and write down the whole network, the history, and what this worker held, did and exchanged."""
    laid_out, seen, held = current_grid(), [], {}
    groups = {id(group): group for group in (laid_out.all_workers, laid_out.same_rows, laid_out.same_neurons)}

    def look(progress) -> None:
        engine = progress.engine
        while hasattr(engine, "inner"):
            engine = engine.inner
        exchanged = sum(getattr(group, "bytes_exchanged", 0) for group in groups.values())
        seen.append((engine.work.inner_products, engine.work.active_pairs, exchanged))
        held.update(rows=len(engine.X), targets=len(progress.targets), predictions=len(progress.predictions))
        held.update(neurons=len(engine.network.weights))

    one = network()
    result = train(one, *problem(), callbacks=[look], **settings, **arguments())
    np.save(out / f"{name}.{rank}.npy", one.weights)
    facts = {"held": held, "own_inner_products": seen[-1][0], "own_active_pairs": seen[-1][1]}
    facts["bytes"] = sorted({after[2] - before[2] for before, after in pairwise(seen)})
    note(out, f"{name}.{rank}", {**facts, **{column: result.history.column(column).tolist() for column in COLUMNS}})


def note(out: Path, name: str, facts) -> None:
    (out / f"{name}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
