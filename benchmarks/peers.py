"""Dense peers of the data engine: the same full-batch gradient step on the same network, every pair computed.

Each peer is made from (network, X, y, rate) and has ``step()``, which descends once and returns the loss before it.
"""

import numpy as np


class BlockedNumPy:
    """The best dense NumPy: blocks of 1024 neurons, so that pre-activations stay near the cores."""

    name = "NumPy, in blocks"
    block = 1024

    def __init__(self, network, X, y, rate):
        self.W, self.signs, self.b = network.weights.copy(), network.signs, network.dtype.type(network.threshold)
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
            u += H @ self.signs[lo : lo + self.block]
            masks.append(H > 0)
        residual = u / self.root - self.y
        for lo, mask in zip(blocks, masks, strict=True):
            push = residual @ self.signs[lo : lo + self.block].T
            push *= mask
            self.W[lo : lo + self.block] -= (self.rate / self.root) * (push.T @ X)
        return 0.5 * float(np.sum(residual.astype(np.float64) ** 2))


class PyTorch:
    """Autograd, as one would write it."""

    name = "PyTorch autograd"

    def __init__(self, network, X, y, rate):
        import torch

        self.torch = torch
        self.W = torch.tensor(network.weights, requires_grad=True)
        self.X, self.y, self.signs = (torch.tensor(a) for a in (X, y.astype(X.dtype), network.signs))
        self.b, self.rate, self.root = network.threshold, rate, float(np.sqrt(network.width))

    def step(self) -> float:
        torch = self.torch
        u = torch.relu(self.X @ self.W.T - self.b) @ self.signs / self.root
        loss = 0.5 * ((u - self.y) ** 2).sum()
        loss.backward()
        with torch.no_grad():
            self.W -= self.rate * self.W.grad
            self.W.grad = None
        return loss.item()


class Jax:
    """jit of value_and_grad. Compile before timing by calling ``compile``."""

    name = "JAX jit"

    def __init__(self, network, X, y, rate):
        import jax
        import jax.numpy as jnp

        b, root = network.threshold, float(np.sqrt(network.width))
        X, y, signs = (jnp.asarray(a) for a in (X, y.astype(X.dtype), network.signs))

        def loss(W):
            return 0.5 * jnp.sum((jnp.maximum(X @ W.T - b, 0) @ signs / root - y) ** 2)

        @jax.jit
        def step(W):
            value, gradient = jax.value_and_grad(loss)(W)
            return W - rate * gradient, value

        self.W = jnp.asarray(network.weights)
        self._step = step.lower(self.W).compile()

    def step(self) -> float:
        self.W, value = self._step(self.W)
        return float(value)


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
