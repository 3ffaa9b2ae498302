"""What an iteration costs, engine by engine: the model behind ``engine="auto"``.

Nanoseconds on one core, float32, samples on the sphere. The constants were measured by ``benchmarks/bench_sums.py`` on
2026-11-16; what counts is their ratios.
"""

from math import erfc, exp, log2, pi, sqrt

from fireset.hsr import cost as search

_DENSE_PAIR, _DENSE_COORDINATE = 3.4, 0.06  # for each pair, forward and backward
_FIRED_PAIR, _FIRED_COORDINATE = 22.0, 0.2  # for each pair that fires; near misses and refreshes included
_LISTED_NEURON = 60.0  # for each neuron of the data engine, whether it fires or not
_SUMMED_BOX, _SUMMED_COORDINATE = 22.0, 1.5  # for each box on the boundary of a neuron, forward and backward
_SUMMED_NEURON = 500.0
_SUMMED_SAMPLE = 12.0  # for each sample and output: handing out shares and gathering sums
_FEW_ITERATIONS = 4


def step_costs(n: int, d: int, m: int, threshold: float, outputs: int, iterations: int) -> dict[str, float]:
    """Cost of one of ``iterations`` iterations with each engine that "auto" chooses from, preprocessing shared out."""
    fired = n * m * 0.5 * erfc(threshold / sqrt(2.0))
    queries = m * search.scan_query(n, d) / max(1, iterations)
    boxes = boundary_boxes(n, d, threshold)
    each = _SUMMED_BOX + _SUMMED_COORDINATE * d * outputs
    return {
        "dense": n * m * (_DENSE_PAIR + _DENSE_COORDINATE * d),
        "data": fired * (_FIRED_PAIR + _FIRED_COORDINATE * d) + m * _LISTED_NEURON + queries,
        "sums": m * (_SUMMED_NEURON + each * boxes) + n * outputs * _SUMMED_SAMPLE * log2(max(2, d)),
    }


def boundary_boxes(n: int, d: int, threshold: float) -> float:
    """Leaves and subtrees on the boundary of a neuron, of n samples on the sphere in d dimensions."""
    leaves = max(1.0, n / 24)
    surface = max(1, d - 1)  # the sphere's own dimension
    density = exp(-(threshold**2) / 2) / sqrt(2 * pi)
    return min(leaves, 1.0 + 7.0 * density * surface * leaves ** (1 - 1 / surface))
