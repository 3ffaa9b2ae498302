"""Choice of the bias by the kernel of the network itself, for many rows.

``tables/settings.py`` chooses the bias with the kernel of infinite width on up to 1,000 rows. The kernel of a network
has noise that does not depend on the bias. A smaller bias spreads the rows over the sphere, so that the differences
between entries of the kernel are larger beside the noise. With many rows this matters more than the small differences
that 1,000 rows can measure. Therefore the chosen bias and the next smaller one are compared with the network's kernel:
kernel regression restricted to a few centres, with the loss on other rows.
"""

from dataclasses import replace

import numpy as np

from fireset._util.cholesky import cholesky_solve, cholesky_with_jitter
from fireset._util.parallel import one_blas_thread, parallel_map
from fireset.engines.centre_kernel import CentreKernel
from fireset.network import ShiftedReLUNetwork
from fireset.tables.settings import BIASES
from fireset.tables.sphere import SphereMap

_CENTRES = 600
_FITTED_ROWS = 8000
_COMPARED_ROWS = 4000  # at most a block of the kernel
_RIDGES = (0.03, 0.3, 3.0)  # divided by the mean diagonal of the kernel


def choose_bias(
    network: ShiftedReLUNetwork, sphere: SphereMap, Z: np.ndarray, targets: np.ndarray, weight: np.ndarray
) -> float:
    """Return the bias of ``sphere`` or the next smaller one of ``BIASES``, whichever has the smaller squared error.

    Parameters
    ----------
    network : ShiftedReLUNetwork
        Before training.
    Z : (n, p) array
        Standardized rows, with pieces.
    targets : (n, c) array
        Centred targets.
    weight : (n,) array

    Notes
    -----
    Deterministic. The cost is that of two passes of ``solver="nystrom"`` over 12,000 rows with 600 centres.
    """
    smaller = [bias for bias in BIASES if bias < sphere.bias]
    counted = np.flatnonzero(weight > 0)
    if not smaller or len(counted) < 2 * _COMPARED_ROWS:
        return sphere.bias
    rows = np.random.default_rng(1).permutation(counted)[: _FITTED_ROWS + _COMPARED_ROWS]

    def error(bias: float) -> float:
        mapped = replace(sphere, bias=bias).map_standardized(Z[rows])
        return _error(network, network.check_rows(mapped), targets[rows], weight[rows])

    biases = (sphere.bias, max(smaller))
    with one_blas_thread():
        errors = dict(zip(biases, parallel_map(error, biases, uses_blas=True), strict=True))
    return min(biases, key=lambda bias: errors[bias])


def _error(network: ShiftedReLUNetwork, X: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> float:
    """Return the least squared error on the last rows of X, of fits to the others with each of ``_RIDGES``."""
    kernel = CentreKernel(network, X[:_CENTRES])
    last = len(X) - _COMPARED_ROWS
    gram, right = np.zeros((len(kernel.centres),) * 2), np.zeros((len(kernel.centres), targets.shape[1]))
    for rows, block in kernel.blocks(X[:last]):
        scaled = block * np.sqrt(weight[rows, None])  # the product of an array with itself is computed by symmetry
        gram += scaled.T @ scaled
        right += scaled.T @ (np.sqrt(weight[rows, None]) * targets[rows])
    (_, held), found = next(kernel.blocks(X[last:])), []
    for ridge in _RIDGES:
        factor, _ = cholesky_with_jitter(lambda ridge=ridge: gram + ridge * kernel.matrix)
        errors = held @ cholesky_solve(factor, right) - targets[last:]
        found.append(float(weight[last:] @ (errors**2).sum(axis=1)))
    return min(found)
