"""Random training problems: every engine against ``reference.py``, iteration by iteration.

In each iteration the reference starts from the engine's own weights, so that a pair which lies on the threshold decides
the same for both: fire sets must be equal, and predictions and the next weights within ``TOLERANCE``. Where no pair
ever comes close to the threshold, a second reference that never receives the engine's weights must end at equal ones.
"""

import os
from collections import Counter
from typing import Any

import numpy as np

from adversary.reference import Descent
from fireset import ShiftedReLUNetwork, train
from fireset.engines import Engine, create
from fireset.engines.blocks import BlockEngine
from fireset.engines.registry import ENGINES
from fireset.hsr import kinds
from fireset.hsr.registry import index_class

TOLERANCE = 1e-9
CLOSE = 1e-7  # to the threshold: nearer pairs may decide otherwise for weights that differ by rounding
BATCH_ENGINES = ("rows", "dense")


def run_case(seed: int, counts: Counter) -> None:
    rng = np.random.default_rng(seed)
    os.environ["OMP_NUM_THREADS"] = str(rng.choice((1, 2, 3)))
    name = str(rng.choice([*ENGINES, "data in blocks"]))
    problem = draw_problem(rng)
    engine = draw_engine(name, len(problem.weights), problem.X.shape[1], rng)
    settings: dict[str, Any] = {"momentum": problem.momentum, "nesterov": problem.nesterov, "loss": problem.loss}
    if name in BATCH_ENGINES and rng.random() < 0.5:
        settings["batch_size"] = int(rng.integers(1, len(problem.X) + 2))
        settings["shuffle_seed"] = int(rng.integers(1000))
    network = ShiftedReLUNetwork(problem.weights.copy(), problem.outputs, problem.threshold, problem.scale)
    witness = Witness(problem, settings, counts, asks_fire_sets=rng.random() < 0.7)
    weighted = None if (problem.weight == 1).all() else problem.weight
    with np.errstate(all="ignore"):
        train(
            network,
            problem.X,
            problem.y,
            engine=engine,
            learning_rate=problem.rate,
            max_iter=int(rng.integers(1, 40)),
            tol=0,
            sample_weight=weighted,
            any_norm=True,
            callbacks=[witness],
            **settings,
        )
    witness.finish()
    counts[f"{name}, problems"] += 1


def draw_problem(rng: np.random.Generator) -> Descent:
    """Draw rows, targets and a network, some of them with ties, duplicates or zeros; the step size is a safe one."""
    n, d, m = int(rng.integers(1, 80)), int(rng.choice((1, 2, 2, 3, 3, 4, 6, 12))), int(rng.integers(2, 400))
    c = int(rng.choice((1, 1, 2, 4)))
    X, W = rng.standard_normal((n, d)), rng.standard_normal((m, d))
    threshold = float(rng.choice((0.0, rng.normal(), rng.uniform(0, 2), 30.0, -30.0), p=(0.2, 0.2, 0.5, 0.05, 0.05)))
    if rng.random() < 0.3:  # a lattice: many products are equal to the threshold to the last bit
        X, W, threshold = np.clip(np.rint(X), -1, 1), np.rint(4 * W) / 4, round(4 * threshold) / 4
    elif rng.random() < 0.7:
        X /= np.linalg.norm(X, axis=1, keepdims=True)
    for rows, share in ((X, 0.3), (W, 0.2)):
        if rng.random() < share:
            rows[:] = rows[rng.integers(0, len(rows), len(rows))]
        if rng.random() < share:
            rows[rng.random(len(rows)) < 0.2] = 0.0
    outputs = rng.choice((-1.0, 1.0), (m, c))
    loss = str(rng.choice(("squared_error", "squared_error", "log_loss")))
    if loss == "squared_error":
        y = rng.standard_normal((n, c))
    else:
        y = np.eye(c)[rng.integers(0, c, n)] if c > 1 else rng.integers(0, 2, (n, 1)).astype(float)
    weight = np.ones(n)
    if rng.random() < 0.4:
        weight = rng.uniform(0.1, 2.0, n) * (rng.random(n) < 0.8)
        weight[0] = 1.0
    momentum = float(rng.choice((0.0, 0.5, 0.9)))
    scale = float(rng.choice((1.0, 0.3, 7.0)))
    nesterov = bool(momentum and rng.random() < 0.5)
    one = Descent(W, outputs, threshold, scale, X, y, weight, loss, 1.0, momentum, nesterov)
    active = one.fires().astype(float)
    kernel = (X @ X.T) * (active @ active.T) * scale**2 * c / m
    top = float(np.linalg.eigvalsh(kernel * np.sqrt(np.outer(weight, weight)))[-1])
    one.rate = float(rng.uniform(0.05, 0.9)) / top if top > 1e-6 else 0.1
    return one


def draw_engine(name: str, m: int, d: int, rng: np.random.Generator) -> Engine:
    options: dict[str, Any] = {}
    if name == "data in blocks":
        return BlockEngine(int(rng.integers(1, min(5, m // 2 + 1))))  # of two neurons at least
    if name in ("data", "weights"):
        options["radius"] = ("auto", 0, 0.05, 1.0)[rng.integers(4)]
        suited = [kind for kind in kinds() if index_class(kind).suits(d)]
        if name == "weights":
            suited = [kind for kind in suited if index_class(kind).dynamic]
        options["index"] = str(rng.choice(["auto", *suited]))
    elif name == "rows":
        options["keep_rows"] = bool(rng.random() < 0.5)
    elif name == "correlation":
        options["layout"] = str(rng.choice(("data", "weights")))
    elif name == "hashing":
        options = {"tables": int(rng.integers(1, 20)), "hashes": int(rng.integers(1, 6)), "seed": int(rng.integers(99))}
        options |= {"rehash_every": int(rng.integers(1, 6)), "family": str(rng.choice(("simhash", "winner-take-all")))}
    elif name.startswith("quantum"):
        options["seed"] = int(rng.integers(99))
    return create(name, **options)


class Witness:
    """A callback that compares each iteration with the reference."""

    def __init__(self, problem: Descent, settings: dict[str, Any], counts: Counter, *, asks_fire_sets: bool):
        self._synced = problem  # is given the engine's weights in every iteration
        self._alone = Descent(**{name: getattr(problem, name) for name in Descent.__match_args__})
        self._batch_size, self._seed = settings.get("batch_size"), settings.get("shuffle_seed")
        self._counts, self._asks = counts, asks_fire_sets
        self._free = True  # whether the second reference must still agree
        self._comparable = True

    def __call__(self, progress) -> None:
        self._iteration, synced = progress.record.iteration, self._synced
        self._weights = progress.network.weights.copy()
        if self._comparable:
            self._agree("weights", self._weights, synced.weights)
        synced.weights = self._weights.copy()
        active = synced.fires()
        engine = progress.engine
        if self._asks or not engine.exact:
            found = engine.fire_sets().toarray().astype(bool)
            missed, wrong = int((active & ~found).sum()), int((found & ~active).sum())
            assert not wrong, f"{wrong} pairs that do not fire, iteration {self._iteration}, {engine.name}"
            assert not (engine.exact and missed), f"{missed} fired pairs missed, iteration {self._iteration}"
            active = found
            self._counts["fire sets compared"] += 1
        if not self._batch_size or not self._iteration:  # an epoch reports the losses of its batches
            self._agree("predictions", progress.predictions, synced.predictions(active))
            share = progress.record.active_fraction
            assert round(share * active.size) == active.sum(), f"fired fraction {share}, iteration {self._iteration}"
        self._step(active, engine.exact)
        self._counts["iterations compared"] += 1

    def _step(self, active: np.ndarray, exact: bool) -> None:
        alone = self._alone
        if self._batch_size:
            rows = np.flatnonzero(alone.weight > 0)
            order = np.random.default_rng([self._seed, self._iteration]).permutation(rows)
            # Once a batch may have decided otherwise, so may the velocity have: later epochs need not agree.
            self._comparable = self._synced.epoch(self._batch_size, order) > CLOSE and self._comparable
            self._last = alone.weights
            self._free = alone.epoch(self._batch_size, order) > CLOSE and self._free
            return
        self._synced.step(active)
        self._last = alone.weights
        self._free = self._free and exact and alone.closest() > CLOSE
        if self._free:
            alone.step(alone.fires())

    def finish(self) -> None:
        """Compare the weights of the last iteration with those of the second reference."""
        if self._free:
            self._agree("weights of the reference on its own", self._weights, self._last)
            self._counts["whole runs compared"] += 1

    def _agree(self, what: str, found: np.ndarray, expected: np.ndarray) -> None:
        off = float(np.abs(found - expected).max())
        scale = max(1.0, float(np.abs(expected).max()))
        assert off <= TOLERANCE * scale, f"{what} are off by {off:.3g}, iteration {self._iteration}"
