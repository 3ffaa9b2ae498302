"""Dense peers of the data engine: the same full-batch gradient step on the same network, every pair computed.

Each peer is made from (network, X, y, rate) and has ``step()``, which descends once and returns the loss before it.
"""

import numpy as np

from fireset.commands.compare.engine_contenders import Jax, PyTorch

__all__ = ["BlockedNumPy", "Jax", "PyTorch", "ScikitLearn"]


class BlockedNumPy:
    """The best dense NumPy: blocks of 1024 neurons, so that pre-activations stay near the cores."""

    name = "NumPy, in blocks"
    block = 1024

    def __init__(self, network, X, y, rate):
        self.W, self.output_weights, self.b = (
            network.weights.copy(),
            network.output_weights,
            network.dtype.type(network.threshold),
        )
        self.X, self.y, self.rate = X, y.astype(X.dtype), X.dtype.type(rate)
        self.root = X.dtype.type(np.sqrt(len(self.W)))

    def step(self) -> float:
        X, blocks = self.X, range(0, len(self.W), self.block)
        u = np.zeros_like(self.y)
        masks = []
        for lo in blocks:
            H = X @ self.W[lo : lo + self.block].T
            H -= self.b
            np.maximum(H, 0, out=H)
            u += H @ self.output_weights[lo : lo + self.block]
            masks.append(H > 0)
        residual = u / self.root - self.y
        for lo, mask in zip(blocks, masks, strict=True):
            push = residual @ self.output_weights[lo : lo + self.block].T
            push *= mask
            self.W[lo : lo + self.block] -= (self.rate / self.root) * (push.T @ X)
        return 0.5 * float(np.sum(residual.astype(np.float64) ** 2))


class ScikitLearn:
    """MLPRegressor: one full-batch pass of plain SGD on a ReLU layer of the same width. It has no threshold and trains
    both layers, so it is a yardstick for time only."""

    name = "scikit-learn MLPRegressor"

    def __init__(self, network, X, y, rate):  # noqa: ARG002
        from sklearn.neural_network import MLPRegressor

        self.model = MLPRegressor(
            hidden_layer_sizes=(network.width,),
            solver="sgd",
            learning_rate_init=1e-6,
            momentum=0.0,
            alpha=0.0,
            batch_size=len(X),
        )
        self.X, self.y = X, y[:, 0] if y.shape[1] == 1 else y
        self.model.partial_fit(self.X, self.y)

    def step(self) -> float:
        self.model.partial_fit(self.X, self.y)
        return float(self.model.loss_) * len(self.X)
