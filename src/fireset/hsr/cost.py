"""Cost model of queries and builds for each kind, used by ``build(points, "auto")``.

Costs are nanoseconds on one core for Gaussian points, such as the weights of a new network. The constants were measured
with ``benchmarks/bench_index.py`` on 2026-11-16 (AVX-512, float32); only their ratios matter. Those of scans and
searches were fitted to 48 cases (d = 2 … 10, n = 3,000 … 10⁶) on 2026-11-20, on a machine that is 1.6 times as fast.
"""

from math import exp, log, pi, sqrt
from statistics import NormalDist

from fireset._util.gaussian import upper_tail

_SCAN_POINT = 0.55  # for each point: comparing and collecting
_SCAN_COORDINATE = 0.022  # for each coordinate of a point: GEMM
_TREE_QUERY = 1500.0  # for each query, in excess of that of a scan
_TREE_POINT, _TREE_COORDINATE = 0.43, 0.145  # for each point tested and its coordinates, boxes included
_TREE_MISS = 2.35  # for each point tested that is not in the cache: leaves are read in no order, a scan reads in order
_CACHED_BYTES = 8e6  # of points in float32
_TREE_FOUND = 4.2  # for each point reported: writing and sorting its id
_TREE_BUILD, _TREE_BUILD_COORDINATE = 12.0, 1.0  # for each point and level of halving, and for its coordinates
_CELLS_QUERY = 25_000.0  # for each query that finds few points: cells are visited one after the other
_LAYERS_LEVEL, _LAYERS_FOUND = 10.0, 11.0  # for each step of the binary search, and for each point reported
_LAYERS_BUILD = 18.0  # for each point and log² n
_DENSE_PAIR, _DENSE_COORDINATE = 1.0, 0.03  # for each pair of a prediction without an index
_SUM_PAIR = 10.0  # for each active pair: its value and its part of the prediction
_LEAF = 24.0  # points of a new leaf


def paper_output(n: int) -> float:
    """Return the expected number of n Gaussian points above the paper's threshold b = √(0.4 ln n)."""
    return n * upper_tail(sqrt(0.4 * log(max(n, 2))))


def scan_query(n: int, d: int) -> float:
    """Cost of a query by ``scan``, which tests every point."""
    return n * (_SCAN_POINT + _SCAN_COORDINATE * d)


def tree_query(n: int, d: int, output: float) -> float:
    """Cost of a query on a partition tree, which tests the points of the leaves that the hyperplane cuts."""
    missed = max(0.0, 1.0 - _CACHED_BYTES / max(1, 4 * n * d))
    point = _TREE_POINT + _TREE_COORDINATE * d + _TREE_MISS * missed
    return _TREE_QUERY + point * tree_tests(n, d, output) + _TREE_FOUND * output


def tree_tests(n: int, d: int, output: float) -> float:
    """Return the expected number of points that a partition tree tests for a query that reports ``output`` of n.

    A leaf has a share of about 24/n of the points, and an extent of about κ √d (24/n)^(1/d) in the direction of the
    normal. About extent · √φ of the leaves are cut, where φ is the normal density at the threshold: further out there
    are fewer leaves, but they are larger. κ = 1.05 + 0.275 d fits 96 cases (d = 2 … 12, n = 10³ … 10⁶, outputs of 0.1 %
    to 20 %) within a factor of 2, most of them within 1.3.
    """
    share = min(max(output / max(n, 1), 1e-12), 0.5)
    density = exp(-(NormalDist().inv_cdf(share) ** 2) / 2) / sqrt(2 * pi)
    extent = (1.05 + 0.275 * d) * sqrt(d) * (_LEAF / max(n, _LEAF)) ** (1 / d)
    return n * (1 - exp(-extent * sqrt(density)))


def cells_pay(n: int, d: int) -> bool:
    """Return whether a cell tree, where it separates the points, is faster than a scan."""
    return scan_query(n, d) > _CELLS_QUERY


def tree_build(n: int, d: int) -> float:
    """Cost of building a partition tree by halving, level by level."""
    return n * (_TREE_BUILD + _TREE_BUILD_COORDINATE * d) * max(1.0, log(max(n, 2) / _LEAF, 2))


def layers_query(n: int, output: float) -> float:
    """Cost of a query on convex layers, which test the reported points and two more on each layer."""
    return _LAYERS_LEVEL * log(max(n, 2), 2) + _LAYERS_FOUND * output


def layers_build(n: int) -> float:
    """Cost of peeling all convex layers."""
    return n * _LAYERS_BUILD * log(max(n, 2), 2) ** 2


def pays_to_search(width: int, d: int, rows: int, output: float) -> bool:
    """Return whether a tree over the weights predicts ``rows`` rows faster than computing all inner products."""
    dense = rows * width * (_DENSE_PAIR + _DENSE_COORDINATE * d)
    return tree_build(width, d) + rows * (tree_query(width, d, output) + _SUM_PAIR * output) < dense
