"""Search a grid of thresholds and learning rates with one index over the rows, in several threads.

    python examples/shared_index.py [--width 20000] [--iterations 50] [--threads 2]

The engine "data" (the paper's Algorithm 2) preprocesses the rows, not the weights. One index therefore serves every
network that is trained on these rows.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np

import fireset
from fireset import hsr
from fireset.engines import create

THRESHOLDS, RATES = (1.0, 1.5, 2.0), (0.005, 0.02)


def make_rows(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=20_000)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    X, y = make_rows(2_000, 3)
    index = hsr.build(X)  # once, for all six trainings
    print(index)

    def loss_of(setting: tuple[float, float]) -> tuple[float, int]:
        threshold, rate = setting
        network = fireset.ShiftedReLUNetwork.initialize(options.width, X.shape[1], threshold=threshold, seed=0)
        engine = create("data", index=index)  # an engine belongs to one training, the index to all of them
        result = fireset.train(network, X, y, engine=engine, learning_rate=rate, max_iter=options.iterations, tol=0)
        return result.loss, engine.work.points_indexed

    settings = list(product(THRESHOLDS, RATES))
    with ThreadPoolExecutor(options.threads) as pool:
        found = list(pool.map(loss_of, settings))
    for (threshold, rate), (loss, indexed) in zip(settings, found, strict=True):
        print(f"threshold {threshold:g}, learning rate {rate:g}: loss {loss:.4g}, {indexed} rows preprocessed")
    best = min(range(len(found)), key=lambda k: found[k][0])
    print("best:", "threshold {:g}, learning rate {:g}".format(*settings[best]))


if __name__ == "__main__":
    main()
