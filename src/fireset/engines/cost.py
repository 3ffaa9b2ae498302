"""The cost model of the engines: constants, the time of an iteration (``engine="auto"``) and the best radius.

Times are nanoseconds on one core, float32, rows on the unit sphere, measured by ``benchmarks/bench_sums.py`` on
2026-11-16 unless stated otherwise. Choices depend on their ratios only. "Per coordinate" constants are multiplied by
the number of features. Bytes were measured by ``benchmarks/bench_memory.py``.
"""

from math import exp

import numpy as np

from fireset._util.gaussian import upper_tail
from fireset.hsr import cost as search

# Time of an iteration: forward and backward pass
_NS_PER_DENSE_PAIR, _NS_PER_DENSE_COORDINATE = 2.2, 0.05
_NS_PER_ACTIVE_PAIR, _NS_PER_ACTIVE_COORDINATE = 3.8, 0.07  # engine "data"; near misses and refreshes included
_NS_PER_LISTED_NEURON = 150.0  # engine "data", whether the neuron is active or not
_NS_PER_BOUNDARY_LEAF, _NS_PER_LEAF_COORDINATE = 58.0, 4.5  # engine "sums"; the boxes above the leaf included
_NS_PER_SUMMED_NEURON = 300.0
_NS_PER_SUMMED_ROW = 75.0  # per row and output: clear, push sums down, collect
_ROWS_PER_LEAF = 24.0
_NS_PER_ARC, _NS_PER_CIRCLE_ROW = 250.0, 30.0  # engine "sums" on a circle; per neuron or row, and output
_MAX_CANDIDATES = 2 << 27  # 12 bytes each: 3 GB. "auto" does not choose "data" for more

# Time of a candidate list, to choose a radius
_NS_PER_REFRESHED_PAIR, _NS_PER_REFRESHED_COORDINATE = 0.3, 0.013  # a refresh is a matrix product
_NS_PER_TESTED_PAIR, _NS_PER_TESTED_COORDINATE = 3.0, 0.055  # a candidate in a pass
_NS_PER_STORED_CANDIDATE = 8.0
NS_PER_INDEX_MOVE, NS_PER_NEAR_MISS = 2000.0, 10.0  # engine "weights"

# Time to count a neuron for a pair of rows: from its list, from its bit
NS_PER_COMMON_PAIR, NS_PER_COMMON_BIT = 1.0, 0.1 / 64

# Memory
BYTES_PER_SLOT = 76  # the record of a neuron in one chunk (its list, and its certificate) and the capacity of its slot
BYTES_PER_LISTED_NEURON = 130  # temporaries of a pass
MAX_TREE_BUFFER_BYTES = 128e6  # kept by a partition tree for its answers
RETAINED_REPORT_BYTES = 8e6  # reported pairs that the allocator retains
BYTES_PER_BOUNDARY_ENTRY = 12  # engine "sums": a node or leaf that the boundary of a neuron cuts
BYTES_PER_SUMMED_NEURON = 200
BYTES_PER_CIRCLE_ROW, BYTES_PER_CIRCLE_NEURON = 96, 160

MAX_RADIUS = 1.5
_RADII = np.geomspace(0.005, MAX_RADIUS, 48)  # candidates of ``best_radii``


def step_costs(n: int, d: int, m: int, threshold: float, outputs: int, iterations: int) -> dict[str, float]:
    """Estimate the time of one of ``iterations`` iterations, preprocessing included, by engine.

    Contains the engines that "auto" chooses from. "data" is left out if its candidate lists would exceed 3 GB: with
    half of the pairs active, lists are still faster than computing all pairs, but take more memory.
    """
    active = n * m * upper_tail(threshold)
    queries = m * search.scan_query(n, d) / max(1, iterations)
    if d == 2:
        sums = outputs * (m * _NS_PER_ARC + n * _NS_PER_CIRCLE_ROW)
    else:
        ns_per_leaf = _NS_PER_BOUNDARY_LEAF + _NS_PER_LEAF_COORDINATE * d * outputs
        ns_per_neuron = _NS_PER_SUMMED_NEURON + ns_per_leaf * boundary_leaves(n, d, threshold)
        sums = m * ns_per_neuron + n * outputs * _NS_PER_SUMMED_ROW
    costs = {
        "dense": n * m * (_NS_PER_DENSE_PAIR + _NS_PER_DENSE_COORDINATE * d),
        "data": active * (_NS_PER_ACTIVE_PAIR + _NS_PER_ACTIVE_COORDINATE * d) + m * _NS_PER_LISTED_NEURON + queries,
        "sums": sums,
    }
    if active > _MAX_CANDIDATES:
        del costs["data"]
    return costs


def boundary_leaves(n: int, d: int, threshold: float) -> float:
    """Estimate how many leaves of a partition tree the boundary of a neuron cuts, for n rows on the unit sphere.

    A great sphere cuts about (1.25 + 0.32 d) L^(1 − 1/(d−1)) of L leaves; a sphere further out cuts fewer. Within 5 %
    of the counts for d = 2 … 6, n = 10⁴ … 10⁶ and b = 0, within a fifth for b = 2.
    """
    leaves = max(1.0, n / _ROWS_PER_LEAF)
    great = (1.25 + 0.32 * d) * leaves ** (1 - 1 / max(1, d - 1))
    return min(leaves, great * exp(-0.375 * threshold * threshold))


def best_radii(speeds: np.ndarray, threshold: float, n_features: int) -> np.ndarray:
    """Return for each speed the certificate radius with the smallest expected cost of an iteration.

    With radius R a neuron of speed v is refreshed every max(1, R/v) iterations. A refresh computes n pairs in a matrix
    product and stores n·P(z > b − R) candidates; a pass tests n·P(z > b − R/2) pairs on average. A neuron that is
    refreshed in every iteration tests only its active pairs. For small v the minimum is R = √(2 c v / φ(b)), φ the
    normal density and c the cost of a pair in a refresh divided by that of a pair in a list; for large v it is the
    smallest radius.
    """
    from scipy.special import ndtr

    ns_per_tested_pair = _NS_PER_TESTED_PAIR + _NS_PER_TESTED_COORDINATE * n_features
    refresh = _NS_PER_REFRESHED_PAIR + _NS_PER_REFRESHED_COORDINATE * n_features
    refresh = refresh + _NS_PER_STORED_CANDIDATE * ndtr(_RADII - threshold)
    costs = np.where(
        speeds[:, None] >= _RADII,
        refresh + ns_per_tested_pair * ndtr(-threshold),
        speeds[:, None] / _RADII * refresh + ns_per_tested_pair * ndtr(_RADII / 2 - threshold),
    )
    return _RADII[costs.argmin(axis=1)]
