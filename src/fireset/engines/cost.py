"""What an iteration costs, engine by engine: the model behind ``engine="auto"``.

Nanoseconds on one core, float32, samples on the sphere. The constants were measured by ``benchmarks/bench_sums.py`` on
2026-11-16; what counts is their ratios.
"""

from math import exp

from fireset._util.gaussian import upper_tail
from fireset.hsr import cost as search

_DENSE_PAIR, _DENSE_COORDINATE = 2.2, 0.05  # for each pair, forward and backward
_FIRED_PAIR, _FIRED_COORDINATE = 3.8, 0.07  # for each pair that fires; near misses and refreshes included
_LISTED_NEURON = 150.0  # for each neuron of the data engine, whether it fires or not
_SUMMED_LEAF, _SUMMED_COORDINATE = 58.0, 4.5  # for each leaf on the boundary of a neuron, boxes above it included
_SUMMED_NEURON = 300.0
_SUMMED_SAMPLE = 75.0  # for each sample and output: clearing, handing out shares, gathering sums
_FILL = 24.0  # samples in a leaf
_ARC, _ARC_SAMPLE = 250.0, 30.0  # for each neuron and each sample on a circle, and output
_MAX_LISTED = 2 << 27  # pairs: 12 bytes each, three gigabytes


def step_costs(n: int, d: int, m: int, threshold: float, outputs: int, iterations: int) -> dict[str, float]:
    """Cost of one of ``iterations`` iterations with each engine that "auto" chooses from, preprocessing shared out.

    Where half of the pairs fire, lists of them are still faster than looking at all, but take memory: "data" is left
    out where it would want too much.
    """
    active = n * m * upper_tail(threshold)
    queries = m * search.scan_query(n, d) / max(1, iterations)
    each = _SUMMED_LEAF + _SUMMED_COORDINATE * d * outputs
    if d == 2:
        sums = outputs * (m * _ARC + n * _ARC_SAMPLE)
    else:
        sums = m * (_SUMMED_NEURON + each * boundary_leaves(n, d, threshold)) + n * outputs * _SUMMED_SAMPLE
    costs = {
        "dense": n * m * (_DENSE_PAIR + _DENSE_COORDINATE * d),
        "data": active * (_FIRED_PAIR + _FIRED_COORDINATE * d) + m * _LISTED_NEURON + queries,
        "sums": sums,
    }
    if active > _MAX_LISTED:
        del costs["data"]
    return costs


def boundary_leaves(n: int, d: int, threshold: float) -> float:
    """Leaves that the boundary of a neuron cuts, of n samples on the sphere in d dimensions.

    A great sphere cuts about (1.25 + 0.32 d) L^(1 − 1/(d−1)) of L leaves, and one further out fewer of them: within 5 %
    of what was counted for d = 2 … 6, n = 10⁴ … 10⁶ and b = 0, within a fifth for b = 2.
    """
    leaves = max(1.0, n / _FILL)
    great = (1.25 + 0.32 * d) * leaves ** (1 - 1 / max(1, d - 1))
    return min(leaves, great * exp(-0.375 * threshold * threshold))
