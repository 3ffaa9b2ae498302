"""Several threads on one object: each must get the result of a single thread.

``predict`` of networks and estimators, fits of separate estimators side by side, and ``fireset.nn`` layers where torch
is installed. (``indexes`` does so for the half-space index.)
"""

import os
import threading
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from fireset import ShiftedReLUClassifier, ShiftedReLUNetwork, ShiftedReLURegressor

CALLS = 6


def run_case(seed: int, counts: Counter) -> None:
    rng = np.random.default_rng(seed)
    os.environ["OMP_NUM_THREADS"] = str(rng.choice((1, 2, 3)))
    kinds: list[Callable] = [check_network, check_estimator, check_fits]
    if find_spec("torch"):
        kinds.append(check_layer)
    kind = kinds[int(rng.integers(len(kinds)))]
    kind(rng)
    counts[kind.__name__.removeprefix("check_")] += 1


def side_by_side(works: list[Callable[[], Any]]) -> list[Any]:
    """Return the results of all functions, started at the same moment."""
    barrier, results, errors = threading.Barrier(len(works)), [None] * len(works), []

    def begin(k: int) -> None:
        try:
            barrier.wait(60)
            results[k] = works[k]()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=begin, args=(k,)) for k in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    assert not errors, f"{type(errors[0]).__name__}: {errors[0]}"
    return results


def draw_rows(rng: np.random.Generator, d: int) -> np.ndarray:
    rows = rng.standard_normal((int(rng.choice((1, 5, 200))), d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def check_network(rng: np.random.Generator) -> None:
    d = int(rng.integers(1, 9))
    dtype = str(rng.choice(("float32", "float64")))
    network = ShiftedReLUNetwork.initialize(int(rng.choice((50, 3000))), d, dtype=dtype, seed=int(rng.integers(99)))
    _compare([(network.predict, draw_rows(rng, d)) for _ in range(int(rng.integers(2, 6)))])


def check_estimator(rng: np.random.Generator) -> None:
    X = rng.standard_normal((80, 4))
    if rng.random() < 0.5:
        fitted: Any = ShiftedReLURegressor(300, random_state=0).fit(X, np.sin(X[:, 0]))
        calls = [fitted.predict]
    else:
        fitted = ShiftedReLUClassifier(300, random_state=0, loss="log_loss").fit(X, X[:, 0] > 0)
        calls = [fitted.predict, fitted.predict_proba, fitted.decision_function]
    _compare(
        [(calls[int(rng.integers(len(calls)))], rng.standard_normal((int(rng.choice((1, 60))), 4))) for _ in range(4)]
    )


def _compare(calls: list[tuple[Callable, np.ndarray]]) -> None:
    expected = [call(rows) for call, rows in calls]
    found = side_by_side([lambda call=call, rows=rows: [call(rows) for _ in range(CALLS)] for call, rows in calls])
    for (call, _), several, one in zip(calls, found, expected, strict=True):
        assert all(np.array_equal(each, one) for each in several), f"{call} gives other numbers beside other threads"


def check_fits(rng: np.random.Generator) -> None:
    """Fit separate estimators at the same time, as joblib's threading backend and grid searches do."""
    X = rng.standard_normal((60, 3))
    settings = [
        {
            "width": int(rng.choice((40, 500))),
            "random_state": k,
            "solver": str(rng.choice(("gradient", "gauss-newton"))),
        }
        for k in range(3)
    ]

    def fit(given: dict[str, Any]) -> np.ndarray:
        return ShiftedReLURegressor(**given, max_iter=10, dtype="float64").fit(X, X[:, 0]).predict(X)

    expected = [fit(given) for given in settings]
    found = side_by_side([lambda given=given: fit(given) for given in settings])
    for given, one, other in zip(settings, expected, found, strict=True):
        assert np.array_equal(one, other), f"a fit beside others differs by {np.abs(one - other).max():.3g}: {given}"


def check_layer(rng: np.random.Generator) -> None:
    """Run forward passes of a layer, with its lists and without."""
    import torch

    from fireset.nn import ShiftedReLU

    d, width = 6, int(rng.choice((64, 2000)))
    layer = ShiftedReLU(d, width, 3)
    rows = torch.tensor(rng.standard_normal((200, d)), dtype=torch.float32)
    rows /= rows.norm(dim=1, keepdim=True)
    attached = rng.random() < 0.6
    if attached:
        layer.attach(rows)
    parts = [torch.tensor(np.sort(rng.choice(200, 50, replace=False))) for _ in range(3)]

    def pass_forward(ids: Any) -> list[np.ndarray]:
        with torch.no_grad():
            return [(layer(rows=ids) if attached else layer(rows[ids])).numpy() for _ in range(CALLS)]

    pass_forward(parts[0])
    with torch.no_grad():  # as an optimizer's step: lists are brought up to date by the passes that follow
        moved = torch.tensor(rng.standard_normal(tuple(layer.weight.shape)), dtype=torch.float32)
        layer.weight += float(rng.choice((0.01, 0.3))) * moved
    found = side_by_side([lambda ids=ids: pass_forward(ids) for ids in parts])
    with torch.no_grad():
        expected = [layer(rows[ids]).numpy() for ids in parts]
    after = [pass_forward(ids)[0] for ids in parts]
    for one, several, later in zip(expected, found, after, strict=True):
        for other in [*several, later]:
            assert np.allclose(one, other, rtol=1e-5, atol=1e-6), f"a layer (attached: {attached}) gives other outputs"
