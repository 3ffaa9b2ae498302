"""How much of the kernel is factored, and what that takes."""

from fireset.network import ShiftedReLUNetwork

MAX_PIVOTS = 1200  # of a partial factor
_MAX_CHOLESKY_ROWS = 6000  # up to which all is factored where ν is small; beyond, n³/3 takes longer than it saves


def partial_bytes(n_samples: int) -> float:
    """A partial factor in float32, and what is computed on the way to it."""
    return 7.0 * n_samples * min(MAX_PIVOTS, n_samples)


def kernel_bytes(n_samples: int, network: ShiftedReLUNetwork, factors: int = 1) -> float:
    """The whole kernel, and its factor; where outputs share a target, each has a factor of its own."""
    return (1.1 + factors) * n_samples * n_samples * network.dtype.itemsize


def kernel_fits(n_samples: int, network: ShiftedReLUNetwork, free: float, factors: int = 1) -> bool:
    """Whether there is room for the whole kernel, and factoring it is worth while."""
    return n_samples <= _MAX_CHOLESKY_ROWS and kernel_bytes(n_samples, network, factors) < 0.5 * free
