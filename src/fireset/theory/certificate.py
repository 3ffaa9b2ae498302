"""Certificate of a run: a callback for ``fireset.train`` that compares the run with the claims of the paper.

    certificate = fireset.theory.Certificate()
    fireset.train(network, X, y, momentum=0, learning_rate="theory", callbacks=[certificate])
    for claim in certificate.report().claims:
        print(claim.text, claim.verdict)

‖err(t)‖ is measured in every iteration. Fire sets, flips, movement and the split into B₁ … B₄ are exact, but measured
in a sample of iterations: about 10 and the last one; all with ``every=1``. λ_min(H(t)) costs n³. It is computed in
every sampled iteration while that takes at most 2·10¹⁰ operations in total (200 iterations at n = 464), otherwise in
evenly spaced ones and the last, and not above 2,000 rows. Each claim lists the iterations in which it was measured.

Cost before training: n³ operations and 8 n² bytes for H^cts and its λ_min, one dense pass for the pairs near the
threshold. Memory: the initial W, the W before the measured step, and their fire sets.
"""

import time
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, isfinite
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_array

from fireset._util.checks import whole_number
from fireset._util.errors import InputError
from fireset.theory.claims import CertificateReport
from fireset.theory.kernel import fire_set_kernel, shifted_ntk
from fireset.theory.run_claims import MAX_SPECTRUM_ROWS, RunMeasurements, make_report
from fireset.theory.separation import measure_separation
from fireset.theory.spectrum import check_memory, extreme_eigenvalues, smallest_eigenvalue
from fireset.theory.step_split import flipped_pairs, gradient_norms, pairs_near_threshold, split_step

_SAMPLED_ITERATIONS = 10  # per run, unless ``every`` is given
_MAX_SPECTRUM_OPERATIONS = 2e10  # per run, for λ_min(H(t)) at n³ each
_MIN_SPECTRA = 4  # per run, even if they exceed that cost
_HISTOGRAM_BINS = 40


class _Progress(Protocol):
    """Part of ``fireset.training.progress.Progress`` used here; theory is below training and cannot import it."""

    @property
    def record(self) -> Any: ...
    @property
    def network(self) -> Any: ...
    @property
    def engine(self) -> Any: ...
    @property
    def predictions(self) -> np.ndarray: ...
    @property
    def residual(self) -> np.ndarray: ...
    @property
    def max_iter(self) -> int: ...
    @property
    def X(self) -> np.ndarray: ...  # noqa: N802 - a matrix
    @property
    def targets(self) -> np.ndarray: ...
    @property
    def weight(self) -> np.ndarray: ...
    @property
    def momentum(self) -> float: ...
    @property
    def solver(self) -> str: ...
    @property
    def is_descent(self) -> bool: ...


class Certificate:
    """Callback that measures a run; ``report()`` compares the measurements with the paper's claims.

    Parameters
    ----------
    every : int, optional
        Take all measurements every ``every`` iterations; by default in about 10 of ``max_iter``.
    failure : float
        ρ: a claim with high probability counts as proved if its probability is at least 1 − ρ.
    """

    def __init__(self, *, every: int | None = None, failure: float = 0.01):
        if every is not None:
            whole_number("every", every, 1)
        if not 0.0 < failure < 1.0:
            raise InputError(f"failure must lie between 0 and 1, got {failure!r}")
        self._every, self._failure = every, failure
        self._run: RunMeasurements | None = None
        self.seconds = 0.0  # spent in this callback, including its start
        self.start_seconds = 0.0  # the part of them spent at the start

    def __call__(self, progress: _Progress) -> None:
        started = time.perf_counter()
        if self._run is None:
            self._start(progress)
            self.start_seconds = time.perf_counter() - started
        self._record(progress)
        self.seconds += time.perf_counter() - started

    def end(self, progress: _Progress) -> None:
        """Measure the last iteration; ``train`` calls this before it restores the best weights."""
        run = self._run
        if run is None or run.overflow_iteration is not None:
            return
        started = time.perf_counter()
        t = progress.record.iteration
        active = progress.engine.fire_sets()[self._rows]
        if t != run.sampled_iterations[-1]:
            self._sample(progress, active, self._y - progress.predictions[self._rows])
        if run.n <= MAX_SPECTRUM_ROWS and run.spectra[-1][0] != t:
            self._add_spectrum(run, t, active)
        self._step_start = None
        self.seconds += time.perf_counter() - started

    def report(self, row_numbers: np.ndarray | None = None) -> CertificateReport:
        """Judge every claim. Call this after training.

        ``row_numbers`` are the numbers by which messages name the rows given to ``train``; by default from 0.
        """
        if self._run is None:
            raise InputError("the certificate has no measurements; pass it to train(..., callbacks=[certificate])")
        numbers = self._rows if row_numbers is None else np.asarray(row_numbers)[self._rows]
        run = replace(self._run, separation=self._run.separation.with_row_numbers(numbers))
        return make_report(run, self._failure, self.seconds, self.start_seconds)

    def _start(self, progress: _Progress) -> None:
        """Measure the data and the initial network."""
        self._rows = np.flatnonzero(progress.weight > 0)  # validation rows have weight 0
        network = progress.network
        n = len(self._rows)
        check_memory(n)
        self._X = np.ascontiguousarray(progress.X[self._rows], np.float64)
        self._y = progress.targets[self._rows]
        self._stride = self._every or max(1, ceil(progress.max_iter / _SAMPLED_ITERATIONS))
        affordable = max(_MIN_SPECTRA, int(_MAX_SPECTRUM_OPERATIONS / n**3))
        self._spectrum_stride = ceil((progress.max_iter // self._stride + 1) / affordable)
        spectrum = extreme_eigenvalues(shifted_ntk(self._X, network.threshold), overwrite=True)
        run = RunMeasurements(
            n=n,
            m=network.width,
            threshold=network.threshold,
            precision=float(np.finfo(network.dtype).eps),
            separation=measure_separation(self._X),
            spectrum=spectrum,
            no_descent_reason=_descent_mismatch(progress, self._rows),
            no_start_reason=_paper_network_mismatch(progress),
            max_target=float(np.abs(self._y).max()),
        )
        self._initial_weights = network.weights.copy()
        self._near_threshold = pairs_near_threshold(self._initial_weights, self._X, network.threshold, run.radius)
        run.near_threshold = np.diff(self._near_threshold.indptr)
        self._step_start: _StepStart | None = None
        self._initial_counts: np.ndarray | None = None
        self._initial_kernel: np.ndarray | None = None
        self._run = run

    def _record(self, progress: _Progress) -> None:
        """Record the error of an iteration, finish the measured step, and sample this iteration if it is due."""
        run = self._run
        assert run is not None
        t, rate = progress.record.iteration, progress.record.learning_rate
        err = self._y - progress.predictions[self._rows]
        squared_error = float(np.sum(err**2))
        if run.rates and rate != run.rates[-1] and not run.no_descent_reason:
            run.no_descent_reason = f"the learning rate was changed in iteration {t}: the claims are for a fixed one"
        run.rates.append(rate)
        run.squared_errors.append(squared_error)
        if not isfinite(squared_error):
            run.overflow_iteration = t
            self._step_start = None
            return
        active = None
        if self._step_start is not None:
            active = progress.engine.fire_sets()[self._rows]
            self._finish_step(progress, active, err)
        if t % self._stride == 0 or t == progress.max_iter:
            self._sample(progress, progress.engine.fire_sets()[self._rows] if active is None else active, err)

    def _sample(self, progress: _Progress, active, err: np.ndarray) -> None:
        """Measure counts, movement and gradient at the current weights, and save the state for the split."""
        run, network = self._run, progress.network
        assert run is not None
        t = progress.record.iteration
        counts = np.diff(active.indptr)
        if self._initial_counts is None:
            self._initial_counts = counts
        movement = _movement(network.weights, self._initial_weights)
        if len(run.sampled_iterations) % self._spectrum_stride == 0 and run.n <= MAX_SPECTRUM_ROWS:
            self._add_spectrum(run, t, active)
        run.sampled_iterations.append(t)
        run.max_active.append(int(counts.max()))
        run.mean_active.append(float(counts.mean()))
        run.active_neurons.append(int(np.count_nonzero(np.bincount(active.indices, minlength=run.m))))
        run.max_active_increase.append(int((counts - self._initial_counts).max()))
        run.movement.append(float(movement.max()))
        run.histogram = _histogram(movement)
        gradient = gradient_norms(self._X, network.output_weights, active, -err)
        run.gradients.append((t, float(gradient.max()), float(np.sqrt(np.sum(err**2)))))
        self._step_start = None
        if t < progress.max_iter:
            self._step_start = _StepStart(t, active, err, network.weights.copy(), gradient)

    def _add_spectrum(self, run: RunMeasurements, t: int, active) -> None:
        """Measure λ_min(H(t)) and ‖H(t) − H(0)‖_F."""
        kernel = fire_set_kernel(self._X, active)
        if self._initial_kernel is None:
            self._initial_kernel = kernel
        change = float(np.linalg.norm(kernel - self._initial_kernel))
        run.spectra.append((t, smallest_eigenvalue(kernel), change))

    def _finish_step(self, progress: _Progress, active, err: np.ndarray) -> None:
        """Count the flipped pairs of the step after a sampled iteration, and split it into B₁ … B₄."""
        run, step, network = self._run, self._step_start, progress.network
        assert run is not None
        assert step is not None
        self._step_start = None
        if progress.record.iteration != step.iteration + 1:
            return
        flips = flipped_pairs(step.active, active)
        outside = csr_array(flips.astype(np.int8) - flips.multiply(self._near_threshold).astype(np.int8))
        outside.eliminate_zeros()
        neurons = np.unique(outside.indices)  # by the claim these have moved by R or more
        moved = _movement(network.weights[neurons], self._initial_weights[neurons])
        run.flips.append((step.iteration + 1, flips.nnz, outside.nnz, float(moved.max(initial=0.0))))
        if run.no_descent_reason:
            return
        exact = run.rates[-2] * step.gradient
        if exact.any():
            lost = np.linalg.norm(_movement(network.weights, step.weights) - exact) / np.linalg.norm(exact)
            run.step_rounding.append((step.iteration, float(lost)))
        split = split_step(
            self._X,
            network.output_weights,
            network.threshold,
            run.rates[-2],
            step.active,
            csr_array(self._near_threshold + flips),
            float(step.gradient @ step.gradient),
            (step.weights, network.weights),
            (step.err[:, 0], err[:, 0]),
        )
        run.splits.append((step.iteration, split))


@dataclass(frozen=True)
class _StepStart:
    """State before a step that will be split."""

    iteration: int
    active: csr_array
    err: np.ndarray
    weights: np.ndarray
    gradient: np.ndarray  # ‖∂L/∂w_r‖


def _movement(weights: np.ndarray, initial_weights: np.ndarray) -> np.ndarray:
    """Return ‖w_r − w_r(0)‖ for every neuron, computed in chunks."""
    movement = np.empty(len(weights))
    for lo in range(0, len(weights), 1 << 14):
        rows = slice(lo, lo + (1 << 14))
        change = weights[rows] - initial_weights[rows]
        movement[rows] = np.sqrt(np.einsum("ij,ij->i", change, change, dtype=np.float64))
    return movement


def _histogram(movement: np.ndarray) -> tuple[list[float], list[int]]:
    """Return centres and counts of logarithmic bins of the movement, without neurons that did not move.

    If no neuron moved, the result is one bin at 0.
    """
    moved = movement[movement > 0]
    if not len(moved):
        return [0.0], [len(movement)]
    lo, hi = np.log10(moved.min()), np.log10(moved.max())
    counts, edges = np.histogram(np.log10(moved), bins=_HISTOGRAM_BINS, range=(lo - 1e-9, hi + 1e-9))
    return [float(10 ** ((a + b) / 2)) for a, b in pairwise(edges)], counts.tolist()


def _descent_mismatch(progress: _Progress, rows: np.ndarray) -> str:
    """Return why the claims about descent do not apply to this run; empty if they do."""
    if not progress.is_descent:
        return f"the solver is {progress.solver}: the claims are for gradient descent"
    if reason := _paper_network_mismatch(progress):
        return reason
    if progress.momentum:
        return f"momentum is {progress.momentum:g}: the claims are for plain descent, momentum 0"
    if not np.array_equal(progress.weight[rows], np.ones(len(rows))):
        return "the rows have sample weights: the claims are for equal weights"
    err = progress.targets[rows] - progress.predictions[rows]
    if not np.allclose(progress.residual[rows], -err, rtol=1e-6, atol=1e-9):
        return "the loss is not ½ Σ (u − y)²"
    return ""


def _paper_network_mismatch(progress: _Progress) -> str:
    """Return why the claim about the predictions before training does not apply to this network; empty if it does."""
    if progress.network.n_outputs > 1:
        return f"the network has {progress.network.n_outputs} outputs: the claims are for one"
    if progress.network.output_scale != 1.0:
        return f"the output scale is {progress.network.output_scale:g}: the claims are for 1"
    return ""
