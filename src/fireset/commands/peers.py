"""Dense peers: the same full-batch gradient step on the same network in other libraries, every pair computed.

Each peer is made from (network, X, y, rate) and has ``step()``, which descends once and returns the loss
½ Σ (u − y)² before it, and ``weights()``, a copy of W. The network is not touched.
"""

from importlib.util import find_spec

import numpy as np


class PyTorch:
    """Autograd, as one would write it."""

    name = "PyTorch autograd"
    package = "torch"

    def __init__(self, network, X, y, rate):
        import torch

        self.torch = torch
        self.W = torch.tensor(network.weights, requires_grad=True)
        self.X, self.y, self.output_weights = (torch.tensor(a) for a in (X, y.astype(X.dtype), network.output_weights))
        self.b, self.rate, self.root = network.threshold, rate, network.divisor

    def step(self) -> float:
        torch = self.torch
        u = torch.relu(self.X @ self.W.T - self.b) @ self.output_weights / self.root
        loss = 0.5 * ((u - self.y) ** 2).sum()
        loss.backward()
        with torch.no_grad():
            self.W -= self.rate * self.W.grad
            self.W.grad = None
        return loss.item()

    def weights(self) -> np.ndarray:
        return self.W.detach().numpy().copy()


class Jax:
    """jit of value_and_grad, compiled when it is made."""

    name = "JAX jit"
    package = "jax"

    def __init__(self, network, X, y, rate):
        import jax  # pyright: ignore[reportMissingImports] - a peer that need not be there
        import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

        if network.dtype == np.float64:
            jax.config.update("jax_enable_x64", True)  # float32 without it, whatever is passed in
        b, root = network.threshold, network.divisor
        X, y, output_weights = (jnp.asarray(a) for a in (X, y.astype(X.dtype), network.output_weights))

        def loss(W):
            return 0.5 * jnp.sum((jnp.maximum(X @ W.T - b, 0) @ output_weights / root - y) ** 2)

        @jax.jit
        def step(W):
            value, gradient = jax.value_and_grad(loss)(W)
            return W - rate * gradient, value

        self.W = jnp.asarray(network.weights)
        self._step = step.lower(self.W).compile()  # pyright: ignore[reportFunctionMemberAccess]

    def step(self) -> float:
        self.W, value = self._step(self.W)
        return float(value)

    def weights(self) -> np.ndarray:
        return np.array(self.W)


PEERS = {"pytorch": PyTorch, "jax": Jax}


def installed() -> list[str]:
    """Names of the peers that can be run here."""
    return [name for name, peer in PEERS.items() if find_spec(peer.package) is not None]
