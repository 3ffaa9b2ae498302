"""Holding a run against the paper, claim by claim: a callback for ``fireset.train``.

    certificate = fireset.theory.Certificate()
    fireset.train(network, X, y, momentum=0, learning_rate="theory", callbacks=[certificate])
    for claim in certificate.report().claims:
        print(claim.text, claim.verdict)

‖err(t)‖ is followed in every iteration. Fire sets, flips, movement and the split into B₁ … B₄ are exact, but looked at
in some iterations only (about 10 of a run, ``every=1`` for all); λ_min(H(t)) in the first two of these and in the
sixth. Before training, H^cts and its λ_min cost n³ and 8 n² bytes, the doubtful pairs one dense pass. Memory:
the initial W, the W of the step that is looked at, and their fire sets.
"""

import time
from dataclasses import replace
from itertools import pairwise
from math import ceil, isfinite
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_array

from fireset._util.checks import whole_number
from fireset._util.errors import InputError
from fireset.theory.claims import CertificateReport
from fireset.theory.kernel import fire_set_kernel, shifted_ntk
from fireset.theory.run_claims import Measured, report
from fireset.theory.separation import measure_separation
from fireset.theory.spectrum import check_memory, extreme_eigenvalues, smallest_eigenvalue
from fireset.theory.step_split import (
    doubtful_pairs,
    flipped_pairs,
    gradient_norms,
    split_step,
)

_LOOKS = 10  # in a run, by default
_SPECTRA = (0, 1, 5)  # looks at which λ_min(H(t)) is found
_MOST_ROWS_FOR_SPECTRA = 2000
_BARS = 40  # of the movement histogram


class _Progress(Protocol):
    """What of ``fireset.training.progress.Progress`` is used; theory lies below training and cannot import it."""

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


class Certificate:
    """A callback that measures a run; ``report()`` then says which of the paper's claims hold.

    Parameters
    ----------
    every : int, optional
        Look closely at every so many iterations; by default at about 10 of ``max_iter``.
    failure : float
        ρ: claims that hold with high probability are asked to hold with probability 1 − ρ.
    """

    def __init__(self, *, every: int | None = None, failure: float = 0.01):
        if every is not None:
            whole_number("every", every, 1)
        if not 0.0 < failure < 1.0:
            raise InputError(f"failure must lie between 0 and 1, got {failure!r}")
        self._every, self._failure = every, failure
        self._measured: Measured | None = None
        self.seconds = 0.0  # spent here, the preparation included
        self.start_seconds = 0.0  # of these, on the preparation

    def __call__(self, progress: _Progress) -> None:
        started = time.perf_counter()
        if self._measured is None:
            self._start(progress)
            self.start_seconds = time.perf_counter() - started
        self._see(progress)
        self.seconds += time.perf_counter() - started

    def report(self, row_numbers: np.ndarray | None = None) -> CertificateReport:
        """What was found. Call it after training.

        ``row_numbers`` are what messages call the rows given to ``train``; by default their places, from 0.
        """
        if self._measured is None:
            raise InputError("the certificate has seen no iteration; pass it to train(..., callbacks=[certificate])")
        numbers = self._rows if row_numbers is None else np.asarray(row_numbers)[self._rows]
        measured = replace(self._measured, separation=self._measured.separation.called(numbers))
        return report(measured, self._failure, self.seconds, self.start_seconds)

    def _start(self, progress: _Progress) -> None:
        """Everything about the data and the initial network."""
        self._rows = np.flatnonzero(progress.weight > 0)  # validation rows ride along without weight
        network = progress.network
        n = len(self._rows)
        check_memory(n)
        self._X = np.ascontiguousarray(progress.X[self._rows], np.float64)
        self._y = progress.targets[self._rows]
        every = self._every or max(1, ceil(progress.max_iter / _LOOKS))
        spectrum = extreme_eigenvalues(shifted_ntk(self._X, network.threshold), overwrite=True)
        measured = Measured(
            n=n,
            d=network.n_features,
            m=network.width,
            threshold=network.threshold,
            precision=float(np.finfo(network.dtype).eps),
            separation=measure_separation(self._X),
            spectrum=spectrum,
            every=every,
            not_descent=_why_not_descent(progress, self._rows),
        )
        self._first_weights = network.weights.copy()
        self._doubtful = doubtful_pairs(self._first_weights, self._X, network.threshold, measured.radius)
        measured.doubtful = np.diff(self._doubtful.indptr)
        self._before: _Step | None = None
        self._looks = 0
        self._first_fired: np.ndarray | None = None
        self._first_kernel: np.ndarray | None = None
        self._measured = measured

    def _see(self, progress: _Progress) -> None:
        measured = self._measured
        assert measured is not None
        t, rate = progress.record.iteration, progress.record.learning_rate
        err = self._y - progress.predictions[self._rows]
        square = float(np.sum(err**2))
        if measured.rates and rate != measured.rates[-1] and not measured.not_descent:
            measured.not_descent = f"the learning rate was changed in iteration {t}: the claims are for a fixed one"
        measured.rates.append(rate)
        measured.errors.append(square)
        if not isfinite(square):
            measured.not_finite = t
            self._before = None
            return
        fired = None
        if self._before is not None:
            fired = progress.engine.fire_sets()[self._rows]
            self._finish_step(progress, fired, err)
        if t % measured.every == 0 or t == progress.max_iter:
            self._look(progress, progress.engine.fire_sets()[self._rows] if fired is None else fired, err)

    def _look(self, progress: _Progress, fired, err: np.ndarray) -> None:
        """Counts, movement and gradient at the current weights; the step that follows is split afterwards."""
        measured, network = self._measured, progress.network
        assert measured is not None
        t = progress.record.iteration
        counts = np.diff(fired.indptr)
        if self._first_fired is None:
            self._first_fired = counts
        movement = _movement(network.weights, self._first_weights)
        measured.looks.append(t)
        measured.most_fired.append(int(counts.max()))
        measured.mean_fired.append(float(counts.mean()))
        measured.alive.append(int(np.count_nonzero(np.bincount(fired.indices, minlength=measured.m))))
        measured.more_fired.append(int((counts - self._first_fired).max()))
        measured.movement.append(float(movement.max()))
        measured.histogram = _histogram(movement)
        if self._looks in _SPECTRA and measured.n <= _MOST_ROWS_FOR_SPECTRA:
            kernel = fire_set_kernel(self._X, fired)
            if self._first_kernel is None:
                self._first_kernel = kernel
            changed = float(np.linalg.norm(kernel - self._first_kernel))
            smallest = smallest_eigenvalue(kernel)
            measured.spectra.append((t, smallest, changed))
        self._looks += 1
        gradient = gradient_norms(self._X, network.signs, fired, -err)
        measured.gradients.append((t, float(gradient.max()), float(np.sqrt(np.sum(err**2)))))
        self._before = None
        if t < progress.max_iter:
            self._before = _Step(t, fired, err, network.weights.copy(), float(gradient @ gradient))

    def _finish_step(self, progress: _Progress, fired, err: np.ndarray) -> None:
        """The step after a look: who flipped, and B₁ … B₄."""
        measured, step, network = self._measured, self._before, progress.network
        assert measured is not None
        assert step is not None
        self._before = None
        if progress.record.iteration != step.iteration + 1:
            return
        flips = flipped_pairs(step.fired, fired)
        outside = csr_array(flips.astype(np.int8) - flips.multiply(self._doubtful).astype(np.int8))
        outside.eliminate_zeros()
        neurons = np.unique(outside.indices)  # which, by the claim, must have moved by R or more
        moved = _movement(network.weights[neurons], self._first_weights[neurons])
        measured.flips.append((step.iteration + 1, flips.nnz, outside.nnz, float(moved.max(initial=0.0))))
        if measured.not_descent:
            return
        split = split_step(
            self._X,
            network.signs,
            network.threshold,
            measured.rates[-2],
            step.fired,
            csr_array(self._doubtful + flips),
            step.squared_gradient,
            (step.weights, network.weights),
            (step.err[:, 0], err[:, 0]),
        )
        measured.splits.append((step.iteration, split))


class _Step:
    """What is kept of the weights before a step that is to be split."""

    def __init__(self, iteration: int, fired, err: np.ndarray, weights: np.ndarray, squared_gradient: float):
        self.iteration, self.fired, self.err = iteration, fired, err
        self.weights, self.squared_gradient = weights, squared_gradient


def _movement(weights: np.ndarray, first: np.ndarray) -> np.ndarray:
    """‖w_r − w_r(0)‖ for every neuron, in blocks."""
    movement = np.empty(len(weights))
    for lo in range(0, len(weights), 1 << 14):
        rows = slice(lo, lo + (1 << 14))
        change = weights[rows] - first[rows]
        movement[rows] = np.sqrt(np.einsum("ij,ij->i", change, change, dtype=np.float64))
    return movement


def _histogram(movement: np.ndarray) -> tuple[list[float], list[int]]:
    """Neurons by how far they have moved, in bars that grow by equal factors; those at rest apart."""
    moved = movement[movement > 0]
    if not len(moved):
        return [0.0], [len(movement)]
    lo, hi = np.log10(moved.min()), np.log10(moved.max())
    counts, edges = np.histogram(np.log10(moved), bins=_BARS, range=(lo - 1e-9, hi + 1e-9))
    return [float(10 ** ((a + b) / 2)) for a, b in pairwise(edges)], counts.tolist()


def _why_not_descent(progress: _Progress, rows: np.ndarray) -> str:
    """Why the claims about descent say nothing about this run; empty if they do."""
    if progress.network.n_outputs > 1:
        return f"the network has {progress.network.n_outputs} outputs: the paper's has one"
    if progress.momentum:
        return f"momentum is {progress.momentum:g}: the claims are for plain descent, momentum 0"
    if not np.array_equal(progress.weight[rows], np.ones(len(rows))):
        return "the rows are weighted: the paper's count alike"
    err = progress.targets[rows] - progress.predictions[rows]
    if not np.allclose(progress.residual[rows], -err, rtol=1e-6, atol=1e-9):
        return "the loss is not ½ Σ (u − y)²"
    return ""
