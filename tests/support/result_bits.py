"""Train with every engine and query every kind of index; print digests of the results as JSON, for test_kernel_cache.

python -m support.result_bits [reversed]

The order of the cases decides which kernels are compiled or loaded first. No result may depend on it.
"""

import hashlib
import json
import sys
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np

from fireset import ShiftedReLUNetwork, train
from fireset.engines.registry import ENGINES
from fireset.hsr import build
from fireset.hsr.registry import KINDS, index_class


def digest(*arrays) -> str:
    total = hashlib.blake2b(digest_size=8)
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def training(engine: str, solver: str, dtype: str, d: int, outputs: int) -> dict[str, str]:
    """Return the digests of weights, losses and predictions of a short run."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((150, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.sin(2 * X @ rng.standard_normal((d, outputs)))
    network = ShiftedReLUNetwork.initialize(400, d, outputs, seed=3, threshold=0.8, dtype=dtype)
    iterations = {"gradient": 12, "gauss-newton": 3}[solver]
    result = train(network, X, y, engine=engine, solver=solver, max_iter=iterations, tol=0)
    losses = [iteration.loss for iteration in result.history]
    return {
        "learning rate": float(result.learning_rate).hex(),
        "weights": digest(network.weights),
        "losses": digest(losses),
        "predictions": digest(network.predict(X)),
    }


def searching(kind: str, dtype: str) -> dict[str, str]:
    """Return the digests of what an index reports, before and after changes."""
    rng = np.random.default_rng(2)
    d = next(d for d in (4, 2) if index_class(kind).suits(d))
    points = rng.standard_normal((3000, d)).astype(dtype)
    normals = rng.standard_normal((20, d)).astype(dtype)
    index = build(points, kind, dynamic=index_class(kind).dynamic)
    results = {"report": digest(*index.report(normals, np.full(20, 1.5))), "top": digest(*index.top(normals, 7))}
    if index.dynamic:
        index.move(np.arange(0, 900, 3), 0.5 * points[:300])
        index.delete(np.arange(1000, 1500))
        index.add(points[1:400] + points[:399])
        results["changed"] = digest(*index.report(normals, np.full(20, 1.5)))
    return results


def cases() -> dict[str, Callable[[], dict[str, str]]]:
    found: dict[str, Callable[[], dict[str, str]]] = {}
    for engine in sorted(ENGINES):
        for solver, dtype, d, outputs in [("gradient", "float32", 4, 1), ("gauss-newton", "float64", 4, 2)]:
            found[f"{engine} {solver}"] = partial(training, engine, solver, dtype, d, outputs)
    found["sums in the plane"] = partial(training, "sums", "gradient", "float32", 2, 1)
    for kind in KINDS:
        for dtype in ("float32", "float64"):
            found[f"{kind} {dtype}"] = partial(searching, kind, dtype)
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    listed = list(cases().items())
    if "reversed" in sys.argv[1:]:
        listed.reverse()
    print(json.dumps({name: case() for name, case in listed}))


if __name__ == "__main__":
    main()
