"""The reference engine: every pair, in tiles. Every other exact engine is held against it.

One iteration costs 4·n·m·d operations. Between forward and backward it keeps one bit per pair (who fired); beyond
``_MOST_BITS`` it keeps nothing and computes the pre-activations again.
"""

from math import sqrt

import numpy as np

from fireset.engines.base import EngineWork, Step
from fireset.parallel import lanes, run

_MOST_BITS = 1 << 33  # 1 GiB


class DenseEngine:
    name = "dense"
    exact = True

    def __init__(self):
        self.work = EngineWork()

    def index_for(self, network, n_samples: int) -> None:  # noqa: ARG002 - looks at every pair
        return None

    def start(self, network, X: np.ndarray) -> None:
        self._network = network
        self._X = X
        self._fired: dict[tuple[int, int], np.ndarray] = {}
        self._keeps_bits = len(X) * network.width <= _MOST_BITS

    def forward(self) -> np.ndarray:
        network, X = self._network, self._X

        def lane_sum(lane: tuple[int, int]) -> tuple[np.ndarray, int]:
            total, fired = np.zeros((len(X), network.n_outputs)), 0
            for tile in network.tiles(X, *lane):
                total[tile.samples] += tile.activations.T @ network.signs[tile.neurons]
                mask = tile.activations > 0
                fired += int(np.count_nonzero(mask))
                if self._keeps_bits:
                    self._fired[tile.neurons.start, tile.samples.start] = np.packbits(mask)
            return total, fired

        parts = run(lane_sum, lanes(network.width), uses_blas=True)
        self.work.inner_products += len(X) * network.width
        self.work.fired_pairs = sum(fired for _, fired in parts)
        return np.sum([total for total, _ in parts], axis=0) / sqrt(network.width)

    def descend(self, residual: np.ndarray, step: Step) -> None:
        network, X = self._network, self._X
        if self._keeps_bits and not self._fired:
            self.forward()
        velocity = step.velocity_for(network.weights)
        residual = (residual / sqrt(network.width)).astype(network.dtype)

        def descend_lane(lane: tuple[int, int]) -> None:
            gradient = np.zeros((lane[1] - lane[0], network.n_features), network.dtype)
            for neurons, samples, mask in self._masks(lane):
                push = network.signs[neurons] @ residual[samples].T
                push *= mask
                gradient[neurons.start - lane[0] : neurons.stop - lane[0]] += push @ X[samples]
            follow(network.weights[slice(*lane)], gradient, velocity[slice(*lane)], step)

        run(descend_lane, lanes(network.width), uses_blas=True)
        if not self._keeps_bits:
            self.work.inner_products += len(X) * network.width

    def fire_sets(self):
        return self._network.fire_sets(self._X)

    def _masks(self, lane: tuple[int, int]):
        """Who fired, tile by tile, as the last forward pass found."""
        if not self._keeps_bits:
            for tile in self._network.tiles(self._X, *lane):
                yield tile.neurons, tile.samples, tile.activations > 0
            return
        for neurons, samples in self._network.tile_slices(len(self._X), *lane):
            shape = (neurons.stop - neurons.start, samples.stop - samples.start)
            bits = self._fired[neurons.start, samples.start]
            yield neurons, samples, np.unpackbits(bits, count=shape[0] * shape[1]).reshape(shape).view(bool)


def follow(weights: np.ndarray, gradient: np.ndarray, velocity: np.ndarray, step: Step) -> None:
    """Move some rows of W by one step along their gradient (``Step`` has the formula)."""
    dtype = weights.dtype.type
    direction = gradient
    if step.momentum:
        velocity *= dtype(step.momentum)
        velocity += gradient
        direction = gradient + dtype(step.momentum) * velocity if step.nesterov else velocity
    weights -= dtype(step.rate) * direction
