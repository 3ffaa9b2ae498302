"""Half-space sums for rows on a circle (d = 2): a half-space is an arc, a range of the rows sorted by angle.

Two searches find the arc of a neuron. Its linear function is added where the arc begins and subtracted where it ends;
a prefix sum over the rows gives the predictions, and the difference of two prefix sums of e_i x_i the gradient. An
iteration costs O(n + m) apart from the searches, which take O(log n) only where rows are dense.

Neurons are processed in the order of their angle at the start, so that consecutive neurons access nearby memory. Each
sum is a pair of float64, independent of the network's precision: differences of prefix sums lose digits.
"""

import numpy as np

from fireset._util.parallel import parallel_map, ranges
from fireset._util.rounding import dot_slack, row_norms
from fireset.engines.base import EngineWork
from fireset.engines.step_rule import NeuronGradients, StepRule
from fireset.fire_sets import fire_sets_by_neuron, list_offsets
from fireset.kernels.arcs import CircleArrays, gather, list_samples, locate, prefix_sums, scatter, sum_scattered

_MAX_CELLS = 1 << 20  # of the table of angles that searches begin from
_MIN_NORM_RATIO = 0.999  # smallest divided by largest norm: a larger spread leaves too many rows undecided by angle


def on_a_circle(X: np.ndarray) -> bool:
    """Return whether the rows have two coordinates and nearly equal norms."""
    if X.shape[1] != 2 or not len(X):
        return False
    norms = row_norms(X)
    return bool(0 < norms.min() and _MIN_NORM_RATIO * norms.max() <= norms.min() and norms.max() < 1e100)


def count_ranges(width: int, n_samples: int) -> int:
    """Return the number of ranges of neurons. Each has arrays over all rows, so with many rows fewer are faster."""
    return max(2, min(len(ranges(width)), width // max(1, n_samples)))


class CircleSums:
    """The passes of ``HalfSpaceSumsEngine`` for rows on a circle (``on_a_circle``).

    Memory: 32 bytes per neuron, 40 per row, 40 per row and output, and 56 per row, output and range of neurons.
    """

    def __init__(self, network, X: np.ndarray, work: EngineWork):
        self._network, self._X, self._work = network, X, work
        angles = np.arctan2(X[:, 1].astype(np.float64), X[:, 0].astype(np.float64))
        order = np.argsort(angles, kind="stable")
        cells = min(_MAX_CELLS, len(X))
        edges = -np.pi + 2 * np.pi * np.arange(cells + 1) / cells
        table = np.searchsorted(angles[order], edges).astype(np.int64)
        table[-1] = len(X)
        norms = row_norms(X)
        self._circle = CircleArrays(
            rows=X[order].astype(np.float64),
            samples=order,
            angles=angles[order],
            table=table,
            min_norm=norms.min() * (1 - 1e-12),
            max_norm=norms.max() * (1 + 1e-12),
        )
        self._order = np.argsort(np.arctan2(network.weights[:, 1], network.weights[:, 0]), kind="stable")
        self._arcs = np.zeros((network.width, 4), np.int64)
        self._located = False
        parts = count_ranges(network.width, len(X))
        self._ranges = [(network.width * k // parts, network.width * (k + 1) // parts) for k in range(parts)]
        self._steps = np.zeros((parts, len(X) + 1, network.n_outputs, 3, 2))
        self._extra = np.zeros((parts, len(X), network.n_outputs))

    def forward(self) -> np.ndarray:
        if not self._locate():
            return np.full((len(self._X), self._network.n_outputs), np.nan)
        network = self._network
        return self._spread(network.weights, -network.threshold, 1.0 / network.divisor)

    def gradient_rows(self, residual: np.ndarray) -> np.ndarray:
        """Return ∂L/∂w_r of all neurons, (m, 2)."""
        network = self._network
        if not self._locate():
            return np.full_like(network.weights, np.nan)
        return self._gather(residual / network.divisor).astype(network.dtype)

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        rule.apply(self._network.weights, NeuronGradients(np.arange(self._network.width), self.gradient_rows(residual)))
        self.weights_moved()

    def weights_moved(self) -> None:
        self._located = False

    def tangent_product(self, direction: np.ndarray) -> np.ndarray:
        self._locate()
        return self._spread(self._gather(direction), 0.0, 1.0 / self._network.squared_divisor)

    def fire_sets(self):
        """Return the active pairs as a boolean CSR array of shape (n, m)."""
        network = self._network
        if not self._locate():
            return network.fire_sets(self._X)
        lengths = self._arcs[:, 3] - self._arcs[:, 0]
        ends = np.cumsum(lengths)
        starts = ends - lengths
        stops, samples = starts.copy(), np.empty(ends[-1], np.int32)
        neurons = network.weights, self._threshold, self._arcs
        parallel_map(lambda span: list_samples(self._circle, *neurons, stops, samples, *span), ranges(network.width))
        counts = stops - starts
        kept = np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        return fire_sets_by_neuron(list_offsets(counts), samples[kept], len(self._X))

    @property
    def _threshold(self) -> float:
        """The threshold b, rounded to the network's precision, in which all engines compare with it."""
        return float(self._network.dtype.type(self._network.threshold))

    def _locate(self) -> bool:
        """Find the arcs of the current weights. Return False if a weight is not finite."""
        network = self._network
        norms = row_norms(network.weights)
        if not np.isfinite(norms).all():
            return False
        if self._located:
            return True
        slacks = dot_slack(2, np.float64, norms, self._circle.max_norm) + 1e-15 * abs(self._threshold)
        neurons = network.weights, self._threshold, slacks, self._arcs
        counted = parallel_map(lambda span: locate(self._circle, *neurons, *span), ranges(network.width))
        self._work.active_pairs = sum(active for active, _ in counted)
        self._work.inner_products += sum(tested for _, tested in counted)
        self._work.nodes_visited += 4 * network.width  # cells of the table
        self._located = True
        return True

    def _spread(self, linear: np.ndarray, constant: float, scale: float) -> np.ndarray:
        """Return ``scale`` · Σ_r a_rc (⟨linear_r, x_i⟩ + constant) over the active pairs, (n, c)."""
        network = self._network
        neurons = network.weights, network.output_weights, self._threshold, self._arcs, self._order

        def spread_span(span: int) -> None:
            self._steps[span] = 0
            self._extra[span] = 0
            arrays = linear, constant, self._steps[span], self._extra[span]
            scatter(self._circle, *neurons, *arrays, *self._ranges[span])

        parallel_map(spread_span, range(len(self._ranges)))
        result = np.empty((len(self._X), network.n_outputs))
        sum_scattered(self._circle, self._steps, self._extra, scale, result)
        return result

    def _gather(self, residual: np.ndarray) -> np.ndarray:
        """Return Σ_{i active} (Σ_c a_rc residual_ic) x_i for all neurons, (m, 2)."""
        network = self._network
        sums = np.empty((len(self._X) + 1, network.n_outputs, 2, 2))
        prefix_sums(self._circle, residual, sums)
        gradients = np.empty((network.width, 2))
        neurons = network.weights, network.output_weights, self._threshold, self._arcs, self._order

        def gather_span(span: tuple[int, int]) -> None:
            gather(self._circle, *neurons, sums, residual, gradients, *span)

        parallel_map(gather_span, ranges(network.width))
        return gradients
