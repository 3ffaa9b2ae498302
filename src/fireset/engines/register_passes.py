"""Passes over all pairs of few columns, without writing pre-activations to memory (``kernels/column_blocks.py``)."""

import numpy as np

from fireset._util.parallel import parallel_map
from fireset._util.rounding import deciding_band, row_norms
from fireset.network import ShiftedReLUNetwork
from fireset.sparse_rows import Rows, SparseRows

_MAX_COLUMNS = 64  # beyond, a block of weights does not stay in the L1 cache, and a matrix product is faster
_TASK_ROWS = 512


def register_blocks(network: ShiftedReLUNetwork, weights: np.ndarray, X: Rows) -> np.ndarray | None:
    """Return ``weights`` in blocks for passes over rows like X, or None if matrix products suit these rows better.

    In float64 pairs near the threshold are decided one by one, which these passes do not do. A negative threshold would
    count neurons that only fill the last block.
    """
    from fireset.kernels.column_blocks import column_blocks

    few = weights.shape[1] <= _MAX_COLUMNS
    suits = few and weights.dtype == np.float32 and network.threshold >= 0 and not isinstance(X, SparseRows)
    return column_blocks(weights) if suits else None


def register_forward(network: ShiftedReLUNetwork, X: Rows) -> tuple[np.ndarray, int] | None:
    """Return the outputs of a network with one output, (n, 1), and the number of active pairs; None if not suited.

    Cost 2·n·m·d operations; 160 GFlop/s per core for 20 columns with AVX-512.
    """
    from fireset.kernels.column_blocks import LANES, add_outputs

    blocks = register_blocks(network, network.weights, X) if network.n_outputs == 1 else None
    if blocks is None or isinstance(X, SparseRows):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        norms = row_norms(network.weights)
        bands = deciding_band(network.n_features, network.dtype, norms, float(row_norms(X).max(initial=0.0)))
    if not bands.max(initial=-1.0) < 0:  # sums may overflow
        return None
    outputs = np.zeros(len(blocks) * LANES, network.dtype)
    outputs[: network.width] = network.output_weights[:, 0]
    totals = np.zeros(len(X))
    threshold = network.dtype.type(network.threshold)

    def add(lo: int) -> int:
        rows = slice(lo, lo + _TASK_ROWS)
        return add_outputs(blocks, X[rows], threshold, outputs, totals[rows])

    active = sum(parallel_map(add, range(0, len(X), _TASK_ROWS)))
    return totals[:, None] / network.divisor, active
