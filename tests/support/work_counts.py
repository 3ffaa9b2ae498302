"""Work counts of kernels and fits, which do not depend on the load of the machine.

    make work-counts

writes them to ``tests/work_counts.json``, the baseline of ``tests/test_work_counts.py``. Run it after a change that is
meant to change the work, and give the reason in the commit.
"""

import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

BASELINE = Path(__file__).parents[1] / "work_counts.json"
_PASSES = ("forward", "step", "gradient", "jacobian_product", "common_counts")
Counts = dict[str, int]


def _unit_rows(n: int, d: int) -> np.ndarray:
    X = np.random.default_rng(0).standard_normal((n, d))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def index_counts(kind: str, n: int, d: int) -> Counts:
    """Return the work of 50 queries that report about 2 % of n Gaussian points, and of the 10 best of 20 normals."""
    from fireset.hsr import build

    points = np.random.default_rng(0).standard_normal((n, d))
    normals = _unit_rows(50, d)
    index = build(points, kind)
    index.query_batch(normals, np.full(50, 2.05))
    index.top(normals[:20], 10)
    work = vars(index.work)
    return {name: work[name] for name in ("nodes_visited", "points_tested", "points_in_bulk")}


def engine_counts(engine: str, d: int, batch_size: int | None = None) -> Counts:
    """Return the work of 15 gradient steps of 2,000 neurons on 300 rows."""
    from fireset import ShiftedReLUNetwork, train
    from fireset.engines import create

    X = _unit_rows(300, d)
    network = ShiftedReLUNetwork.initialize(2000, d, 1, threshold=1.5, dtype="float64", seed=0)
    one = create(engine)
    train(network, X, np.sin(3 * X[:, 0]), engine=one, learning_rate=0.1, max_iter=15, tol=0, batch_size=batch_size)
    work = one.work
    return {name: int(getattr(work, name)) for name in ("inner_products", "nodes_visited", "refreshes")}


@contextlib.contextmanager
def _replaced(owner: Any, name: str, function: Callable) -> Iterator[None]:
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, function)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def digits_counts() -> Counts:
    """Return the passes, tangent products and factorizations of a default fit of 600 digits."""
    from sklearn.datasets import load_digits

    from fireset import ShiftedReLUClassifier
    from fireset._util import cholesky as factorizations
    from fireset.engines.registry import engine_class

    X, y = load_digits(return_X_y=True)
    model = ShiftedReLUClassifier(width=4000, engine="data", random_state=0)
    model.fit(X[:100], y[:100])  # compiles the kernels on tiny problems
    found: Counter[str] = Counter()
    engine, factor = engine_class("data"), factorizations.cholesky

    def counted(name: str) -> Callable:
        method = getattr(engine, name)

        def call(self, *arguments, **options):
            found[name] += 1
            return method(self, *arguments, **options)

        return call

    make_operator = engine.tangent_operator

    def tangent_operator(self):
        product = make_operator(self)

        def multiply(direction, *arguments, **options):
            found["tangent_products"] += 1
            return product(direction, *arguments, **options)

        return multiply

    def cholesky(A: np.ndarray) -> bool:
        found["factorizations"] += 1
        found["factorized_cubes"] += len(A) ** 3 // 10**6
        return factor(A)

    modules = [
        m for name, m in sys.modules.items() if name.startswith("fireset.") and vars(m).get("cholesky") is factor
    ]
    with contextlib.ExitStack() as stack:
        for name in _PASSES:
            stack.enter_context(_replaced(engine, name, counted(name)))
        stack.enter_context(_replaced(engine, "tangent_operator", tangent_operator))
        for module in modules:
            stack.enter_context(_replaced(module, "cholesky", cholesky))
        result = model.fit(X[:600], y[:600]).result_
    found["iterations"] = len(result.history) - 1
    found["inner_products"] = int(sum(record.inner_products for record in result.history))
    return dict(sorted(found.items()))


_SPECIALIZATIONS = """
import sys
from sklearn.datasets import load_digits
from fireset import ShiftedReLUClassifier
X, y = load_digits(return_X_y=True)
ShiftedReLUClassifier(width=4000, random_state=0).fit(X[:600], y[:600])
kernels = {
    id(value): value
    for name, module in list(sys.modules.items()) if name.startswith("fireset.kernels")
    for value in vars(module).values() if hasattr(value, "nopython_signatures")
}.values()
print(sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels))
print(sum(len(kernel.nopython_signatures) for kernel in kernels))
"""


def specialization_counts() -> Counts:
    """Return the number of compiled functions that a process loads for a default fit of digits.

    A process that compiles has more: the functions that are part of others. So the second of two processes counts.
    """
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", _SPECIALIZATIONS], capture_output=True, text=True, check=True)
        misses, count = map(int, done.stdout.split())
        if misses == 0:
            return {"compiled_functions": count}
    raise AssertionError("each process compiles kernels that the cache should have")


# Eight kernels and more: name → work counts.
KERNELS: dict[str, Callable[[], Counts]] = {
    "index scan": lambda: index_counts("scan", 3000, 8),
    "index partition-tree": lambda: index_counts("partition-tree", 20_000, 3),
    "index cell-tree": lambda: index_counts("cell-tree", 5000, 3),
    "index convex-layers": lambda: index_counts("convex-layers", 5000, 2),
    "index hull-hierarchy": lambda: index_counts("hull-hierarchy", 1000, 3),
    "engine data": lambda: engine_counts("data", 16),
    "engine weights": lambda: engine_counts("weights", 4),
    "engine sums": lambda: engine_counts("sums", 3),
    "engine sums on a circle": lambda: engine_counts("sums", 2),
    "engine rows": lambda: engine_counts("rows", 16, batch_size=64),
    "engine correlation": lambda: engine_counts("correlation", 16),
}
FITS: dict[str, Callable[[], Counts]] = {"digits": digits_counts}
SLOW: dict[str, Callable[[], Counts]] = {"compiled functions": specialization_counts}


def main() -> None:
    """Write the baseline."""
    counts = {name: count() for name, count in {**KERNELS, **FITS, **SLOW}.items()}
    BASELINE.write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
