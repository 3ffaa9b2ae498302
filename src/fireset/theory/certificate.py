"""Checking a run against the paper, claim by claim: a callback for ``fireset.train``.

    certificate = fireset.theory.Certificate()
    fireset.train(network, X, y, momentum=0, learning_rate="theory", callbacks=[certificate])
    for claim in certificate.report().claims:
        print(claim.text, claim.verdict)

‖err(t)‖ is followed in every iteration. Fire sets, flips, movement and the split into B₁ … B₄ are exact, but measured
in some iterations only (about 10 of a run and the last one; ``every=1`` for all). λ_min(H(t)), which costs n³, is
computed in each of these while that takes 2·10¹⁰ operations in total (every iteration of 200 at n = 464), in evenly
spaced ones and the last beyond, and not at all beyond 2,000 rows. Each claim has the iterations it was measured in.
Before training, H^cts and its λ_min cost n³ and 8 n² bytes, the doubtful pairs one dense pass. Memory: the initial W,
the W before the step that is measured, and their fire sets.
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
from fireset.theory.step_split import doubtful_pairs, flipped_pairs, gradient_norms, split_step

_SAMPLED_ITERATIONS = 10  # of a run, by default
_SPECTRUM_OPERATIONS = 2e10  # for λ_min(H(t)) in all iterations together, at n³ each
_MIN_SPECTRA = 4  # of a run, whatever they cost
_HISTOGRAM_BINS = 40


class _Progress(Protocol):
    """The part of ``fireset.training.progress.Progress`` used here; theory lies below training and cannot import it."""

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


class Certificate:
    """A callback that measures a run; ``report()`` then tells which of the paper's claims hold.

    Parameters
    ----------
    every : int, optional
        Take all measurements in every so many iterations; by default in about 10 of ``max_iter``.
    failure : float
        ρ: claims that hold with high probability are taken as proved if that is at least 1 − ρ.
    """

    def __init__(self, *, every: int | None = None, failure: float = 0.01):
        if every is not None:
            whole_number("every", every, 1)
        if not 0.0 < failure < 1.0:
            raise InputError(f"failure must lie between 0 and 1, got {failure!r}")
        self._every, self._failure = every, failure
        self._run: RunMeasurements | None = None
        self.seconds = 0.0  # spent here, the preparation included
        self.start_seconds = 0.0  # of these, on the preparation

    def __call__(self, progress: _Progress) -> None:
        started = time.perf_counter()
        if self._run is None:
            self._start(progress)
            self.start_seconds = time.perf_counter() - started
        self._record(progress)
        self.seconds += time.perf_counter() - started

    def end(self, progress: _Progress) -> None:
        """Measure the last iteration, whatever ended the run; ``train`` calls it before it restores other weights."""
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
        """Every claim with its verdict. Call it after training.

        ``row_numbers`` number the rows given to ``train`` in messages; by default they count from 0.
        """
        if self._run is None:
            raise InputError("the certificate has seen no iteration; pass it to train(..., callbacks=[certificate])")
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
        affordable = max(_MIN_SPECTRA, int(_SPECTRUM_OPERATIONS / n**3))
        self._spectrum_stride = ceil((progress.max_iter // self._stride + 1) / affordable)
        spectrum = extreme_eigenvalues(shifted_ntk(self._X, network.threshold), overwrite=True)
        run = RunMeasurements(
            n=n,
            m=network.width,
            threshold=network.threshold,
            precision=float(np.finfo(network.dtype).eps),
            separation=measure_separation(self._X),
            spectrum=spectrum,
            why_not_descent=_descent_mismatch(progress, self._rows),
            why_not_start=_paper_network_mismatch(progress),
            max_target=float(np.abs(self._y).max()),
        )
        self._initial_weights = network.weights.copy()
        self._doubtful = doubtful_pairs(self._initial_weights, self._X, network.threshold, run.radius)
        run.doubtful = np.diff(self._doubtful.indptr)
        self._step_start: _StepStart | None = None
        self._initial_counts: np.ndarray | None = None
        self._initial_kernel: np.ndarray | None = None
        self._run = run

    def _record(self, progress: _Progress) -> None:
        """Note the error of an iteration, finish the step that was being measured, and sample if it is time."""
        run = self._run
        assert run is not None
        t, rate = progress.record.iteration, progress.record.learning_rate
        err = self._y - progress.predictions[self._rows]
        squared_error = float(np.sum(err**2))
        if run.rates and rate != run.rates[-1] and not run.why_not_descent:
            run.why_not_descent = f"the learning rate was changed in iteration {t}: the claims are for a fixed one"
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
        """Counts, movement and gradient at the current weights; the step that follows is split afterwards."""
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
        """λ_min(H(t)) and ‖H(t) − H(0)‖_F."""
        kernel = fire_set_kernel(self._X, active)
        if self._initial_kernel is None:
            self._initial_kernel = kernel
        change = float(np.linalg.norm(kernel - self._initial_kernel))
        run.spectra.append((t, smallest_eigenvalue(kernel), change))

    def _finish_step(self, progress: _Progress, active, err: np.ndarray) -> None:
        """After the step that follows a sampled iteration: which pairs flipped, and B₁ … B₄."""
        run, step, network = self._run, self._step_start, progress.network
        assert run is not None
        assert step is not None
        self._step_start = None
        if progress.record.iteration != step.iteration + 1:
            return
        flips = flipped_pairs(step.active, active)
        outside = csr_array(flips.astype(np.int8) - flips.multiply(self._doubtful).astype(np.int8))
        outside.eliminate_zeros()
        neurons = np.unique(outside.indices)  # which, by the claim, must have moved by R or more
        moved = _movement(network.weights[neurons], self._initial_weights[neurons])
        run.flips.append((step.iteration + 1, flips.nnz, outside.nnz, float(moved.max(initial=0.0))))
        if run.why_not_descent:
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
            csr_array(self._doubtful + flips),
            float(step.gradient @ step.gradient),
            (step.weights, network.weights),
            (step.err[:, 0], err[:, 0]),
        )
        run.splits.append((step.iteration, split))


@dataclass(frozen=True)
class _StepStart:
    """The state before a step that is to be split."""

    iteration: int
    active: csr_array
    err: np.ndarray
    weights: np.ndarray
    gradient: np.ndarray  # ‖∂L/∂w_r‖


def _movement(weights: np.ndarray, initial_weights: np.ndarray) -> np.ndarray:
    """‖w_r − w_r(0)‖ for every neuron, in blocks."""
    movement = np.empty(len(weights))
    for lo in range(0, len(weights), 1 << 14):
        rows = slice(lo, lo + (1 << 14))
        change = weights[rows] - initial_weights[rows]
        movement[rows] = np.sqrt(np.einsum("ij,ij->i", change, change, dtype=np.float64))
    return movement


def _histogram(movement: np.ndarray) -> tuple[list[float], list[int]]:
    """Middles and counts of logarithmic bins of the movement, without neurons that did not move unless none did."""
    moved = movement[movement > 0]
    if not len(moved):
        return [0.0], [len(movement)]
    lo, hi = np.log10(moved.min()), np.log10(moved.max())
    counts, edges = np.histogram(np.log10(moved), bins=_HISTOGRAM_BINS, range=(lo - 1e-9, hi + 1e-9))
    return [float(10 ** ((a + b) / 2)) for a, b in pairwise(edges)], counts.tolist()


def _descent_mismatch(progress: _Progress, rows: np.ndarray) -> str:
    """Why the claims about descent do not apply to this run; empty if they do."""
    if progress.solver != "gradient":
        return f"the solver is {progress.solver}: the claims are for gradient descent"
    if why_not := _paper_network_mismatch(progress):
        return why_not
    if progress.momentum:
        return f"momentum is {progress.momentum:g}: the claims are for plain descent, momentum 0"
    if not np.array_equal(progress.weight[rows], np.ones(len(rows))):
        return "the rows are weighted: the paper's count alike"
    err = progress.targets[rows] - progress.predictions[rows]
    if not np.allclose(progress.residual[rows], -err, rtol=1e-6, atol=1e-9):
        return "the loss is not ½ Σ (u − y)²"
    return ""


def _paper_network_mismatch(progress: _Progress) -> str:
    """Why the claim about the predictions before training does not apply to this network; empty if it does."""
    if progress.network.n_outputs > 1:
        return f"the network has {progress.network.n_outputs} outputs: the paper's has one"
    if progress.network.output_scale != 1.0:
        return f"the output scale is {progress.network.output_scale:g}: the paper's is 1"
    return ""
