"""Compute the paper's claims about a run from its measurements."""

from dataclasses import dataclass, field
from math import inf, isfinite, sqrt

import numpy as np

from fireset._util.text import percent
from fireset.theory import bounds
from fireset.theory.claims import Assumption, CertificateReport, ClaimCollector
from fireset.theory.separation import Separation
from fireset.theory.spectrum import Spectrum
from fireset.theory.step_split import StepSplit

_MAX_STEP_ROUNDING = 0.1  # relative error of a step up to which the claims about descent are judged
_IDENTITY_TOLERANCE = 1e-9  # relative, of the four-term identity, in addition to the rounding of the predictions
_MAX_LISTED_ITERATIONS = 14  # in a note
MAX_SPECTRUM_ROWS = 2000  # above, λ_min(H(t)) is not computed
# Assumptions under which only pairs in S̄ flip, and |S̄_i| ≤ mR.
_FLIP_ASSUMPTIONS = ("within_radius", "radius", "near_threshold_probability")


@dataclass
class RunMeasurements:
    """Measurements of a run. Tuples start with the number of a sampled iteration."""

    n: int
    m: int
    threshold: float
    precision: float  # machine epsilon of the network's weights
    separation: Separation
    spectrum: Spectrum
    no_descent_reason: str  # why the claims about descent do not apply; empty if they do
    no_start_reason: str  # why the claim about ‖err(0)‖ does not apply; empty if it does
    max_target: float  # max_i |y_i|
    near_threshold: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # |S̄_i|
    rates: list[float] = field(default_factory=list)  # learning rate of every iteration
    squared_errors: list[float] = field(default_factory=list)  # ‖err(t)‖² of every iteration
    overflow_iteration: int | None = None  # the iteration in which the run overflowed
    sampled_iterations: list[int] = field(default_factory=list)
    max_active: list[int] = field(default_factory=list)  # max_i k_{i,t}
    mean_active: list[float] = field(default_factory=list)
    active_neurons: list[int] = field(default_factory=list)  # neurons active for at least one sample
    max_active_increase: list[int] = field(default_factory=list)  # max_i k_{i,t} − k_{i,0}
    movement: list[float] = field(default_factory=list)  # max_r ‖w_r(t) − w_r(0)‖
    histogram: tuple[list[float], list[int]] = field(default_factory=lambda: ([], []))  # movement, neurons
    gradients: list[tuple[int, float, float]] = field(default_factory=list)  # max_r ‖∂L/∂w_r‖, ‖err‖
    spectra: list[tuple[int, float, float]] = field(default_factory=list)  # λ_min(H(t)), ‖H(t) − H(0)‖_F
    flips: list[tuple[int, int, int, float]] = field(default_factory=list)  # pairs; outside S̄: pairs, movement
    step_rounding: list[tuple[int, float]] = field(default_factory=list)  # relative error of ‖w_r(t+1) − w_r(t)‖
    splits: list[tuple[int, StepSplit]] = field(default_factory=list)

    @property
    def smallest(self) -> float:
        """λ, or 0 if it is below the rounding error."""
        return 0.0 if self.spectrum.singular else self.spectrum.smallest

    @property
    def radius(self) -> float:
        """The paper's R."""
        return bounds.paper_radius(self.n, self.smallest)

    @property
    def converged_iteration(self) -> int:
        """First iteration whose error is only rounding of the predictions; ``n_iterations`` if there is none."""
        rounding = (100.0 * self.precision) ** 2 * self.squared_errors[0]
        return next((t for t, square in enumerate(self.squared_errors) if square <= rounding), len(self.squared_errors))

    @property
    def initial_error(self) -> float:
        """‖err(0)‖."""
        return sqrt(self.squared_errors[0])

    @property
    def n_iterations(self) -> int:
        """Number of forward passes: one more than the number of steps."""
        return len(self.squared_errors)

    @property
    def n_judged_steps(self) -> int:
        """Number of steps before the error is only rounding."""
        return max(0, min(self.n_iterations, self.converged_iteration) - 1)

    @property
    def no_movement_reason(self) -> str:
        """Reason why claims about weights that moved do not apply; empty if a weight moved."""
        if (
            self.n_iterations == 1
            or self.overflow_iteration is not None
            or any(distance > 0 for distance in self.movement)
        ):
            return ""
        steps = self.n_iterations - 1
        if not any(norm > 0 for _, norm, _ in self.gradients):
            return f"no weight moved in {steps} iterations: the gradient is 0"
        return (
            f"no weight moved in {steps} iterations: steps at learning rate {self.rates[0]:.3g} are below the rounding "
            f"of the weights, relative {self.precision:.2g}; use dtype float64 or a larger learning rate"
        )


def make_report(run: RunMeasurements, failure: float, seconds: float, start_seconds: float) -> CertificateReport:
    """Judge every claim with failure probability ρ = ``failure``."""
    assumptions = _assumptions(run, failure)
    no_lambda_reason = "" if run.smallest > 0 else f"λ_min(H^cts) is 0 up to rounding: {run.separation}"
    claims = ClaimCollector(assumptions, run.no_descent_reason, no_lambda_reason, run.no_movement_reason)
    _eigenvalue_claims(run, claims)
    _initial_error_claim(run, failure, claims)
    _firing_claims(run, claims)
    _kernel_claims(run, claims)
    _movement_claims(run, claims)
    _split_claims(run, claims)
    _rate_claim(run, claims)
    notes = _notes(run, seconds, start_seconds)
    return CertificateReport(_quantities(run, failure), assumptions, claims.claims, _curves(run), notes)


def _assumptions(run: RunMeasurements, failure: float) -> list[Assumption]:
    n, m, b, smallest, radius = run.n, run.m, run.threshold, run.smallest, run.radius
    found: list[Assumption] = []

    def add(key: str, text: str, needed: float, actual: float, met: bool, reason: str) -> None:
        found.append(Assumption(key, text, needed, actual, bool(met), reason))

    delta = run.separation.distance
    add("separation", "δ > 0", 0.0, delta, delta > 0, f"δ = 0: {run.separation}")
    add("threshold", "0 ≤ b", 0.0, b, b >= 0, f"b = {b:.4g} is negative")
    failing = bounds.sparsity_failure(n, m, b)
    text = f"m e^(−b²/2) is too small for probability {1 - failure:g}: the failure bound is {failing:.2g}"
    add("sparsity_probability", "P(sparsity fails) ≤ ρ", failure, failing, failing <= failure, text)
    largest_radius = 1.0 / b if b > 0 else inf
    failing = bounds.near_threshold_failure(n, m, b, radius)
    text = f"R = {radius:.2g} is above 1/b = {largest_radius:.2g}"
    add("radius", "R < 1/b", largest_radius, radius, radius < largest_radius, text)
    text = f"m R = {m * radius:.2g} is too small for |S̄_i| ≤ mR with probability {1 - failure:g}"
    add("near_threshold_probability", "P(|S̄_i| > mR) ≤ ρ", failure, failing, failing <= failure, text)
    width = bounds.discrete_width(n, smallest, failure)
    text = f"m = {m:,} is below 32 n ln(n/ρ)/λ = {width:.3g}"
    add("kernel_width", "m ≥ 32 λ⁻¹ n ln(n/ρ)", width, m, m >= width, text)
    rate = bounds.learning_rate(n, smallest)
    text = f"η = {run.rates[0]:.3g} is above λ/(4n²) = {rate:.3g}"
    add("step", "η ≤ λ/(4n²)", rate, run.rates[0], run.rates[0] <= rate * (1 + 1e-9), text)
    width = bounds.width_for_movement(n, smallest, run.initial_error)
    text = f"m = {m:,} is below 2304 λ⁻⁴ n³ ‖err(0)‖² = {width:.3g}, where D < R"
    add("width", "D < R", width, m, m > width, text)
    moved = max([*run.movement, *(distance for *_, distance in run.flips)], default=0.0)
    if run.overflow_iteration is not None:
        moved = inf
    text = f"neurons moved by {moved:.2g}, more than R = {radius:.2g}"
    add("within_radius", "max movement < R", radius, moved, moved < radius, text)
    judged = [(t, lost) for t, lost in run.step_rounding if t < run.n_judged_steps]
    t, lost = max(judged, key=lambda item: item[1], default=(0, 0.0))
    text = (
        f"rounding of the weights, relative {run.precision:.2g}, changed the step of iteration {t} by "
        f"{percent(lost, 0)}; use dtype float64"
    )
    limit = _MAX_STEP_ROUNDING
    add("rounding", "‖w_r(t+1) − w_r(t)‖ = η ‖∂L/∂w_r‖", limit, lost, lost <= limit, text)
    above = [
        t
        for t, square in enumerate(run.squared_errors[: run.converged_iteration])
        if not square <= run.squared_errors[0] * bounds.decay(run.rates[0], smallest, t) * (1 + 1e-9)
    ]
    text = f"‖err(t)‖² was above (1 − ηλ/2)^t ‖err(0)‖² in iteration {above[0] if above else 0}"
    add("rate_so_far", "‖err(t)‖² ≤ (1 − ηλ/2)^t ‖err(0)‖²", 0, len(above), not above, text)
    return found


def _eigenvalue_claims(run: RunMeasurements, claims: ClaimCollector) -> None:
    """Judge both bounds on λ = λ_min(H^cts)."""
    low, high = bounds.eigenvalue_bounds(run.n, run.threshold, run.separation.distance)
    source = "Theorem: spectral gap with data separation"
    claims.add("λ below", source, "λ ≤ e^(−b²/2)", [(0, run.smallest, high)], ("threshold",), needs_lambda=True)
    claims.add(
        "λ above",
        source,
        "λ ≥ e^(−b²/2) δ/(100 n²)",
        [(0, run.smallest, low)],
        ("threshold", "separation"),
        needs_lambda=True,
        at_most=False,
    )


def _initial_error_claim(run: RunMeasurements, failure: float, claims: ClaimCollector) -> None:
    """Judge ‖err(0)‖²; ``bounds.initial_error_bound`` derives the constant C."""
    bound = bounds.initial_error_bound(run.n, run.threshold, failure, run.max_target)
    observed = [] if run.no_start_reason else [(0, run.squared_errors[0], bound)]
    source, text = "Claim: upper bound the initialization", "‖err(0)‖² ≤ C n (1 + b²) ln²(n/ρ)"
    claims.add("initial error", source, text, observed, ("threshold",), missing=run.no_start_reason)


def _firing_claims(run: RunMeasurements, claims: ClaimCollector) -> None:
    """Judge the numbers of active neurons, of neurons near the threshold, and of flips."""
    m, b = run.m, run.threshold
    source = "Lemma: sparsity after initialization"
    observed = [(0, float(run.max_active[0]), bounds.sparsity_bound(m, b))]
    claims.add("sparsity", source, "max_i k_{i,0} ≤ 2m e^(−b²/2)", observed, ("threshold", "sparsity_probability"))

    source, text = "Claim: bound on noflip probability", "max_i |S̄_i| ≤ m min{R, e^(−b²/2)}"
    limit = bounds.near_threshold_bound(m, b, run.radius)
    observed = [(0, float(run.near_threshold.max()), limit)]
    claims.add("near threshold", source, text, observed, ("radius", "near_threshold_probability"), needs_lambda=True)
    text = "flips of pairs outside S̄_i: none while ‖w_r − w_r(0)‖ < R"
    observed = [(t, float(outside), 0.0) for t, _, outside, _ in run.flips]
    steps = run.n_iterations - 1
    claims.add(
        "noflip", source, text, observed, ("within_radius",), needs_lambda=True, needs_movement=True, total=steps
    )

    source, text = "Lemma: number of active neurons per iteration", "max_i k_{i,t} − k_{i,0} ≤ m min{R, e^(−b²/2)}"
    observed = [(t, float(n), limit) for t, n in zip(run.sampled_iterations, run.max_active_increase, strict=True)]
    every = {"needs_movement": True, "total": run.n_iterations}
    claims.add("active increase", source, text, observed, _FLIP_ASSUMPTIONS, needs_lambda=True, **every)
    # The constant that O hides: k_{i,0} ≤ 2m e^(−b²/2), and at most |S̄_i| neurons are added.
    text = "max_i k_{i,t} ≤ 2m e^(−b²/2) + m min{R, e^(−b²/2)}"
    most = bounds.sparsity_bound(m, b) + limit
    observed = [(t, float(n), most) for t, n in zip(run.sampled_iterations, run.max_active, strict=True)]
    assumes = ("threshold", "sparsity_probability", *_FLIP_ASSUMPTIONS)
    claims.add("sparsity, all t", source, text, observed, assumes, needs_lambda=True, **every)

    # No assumptions: a neuron that is active for no sample has gradient 0 and does not move.
    source, text = "Lemma: running time of Algorithm 1", "|∪_i S_{i,fire}(t)| ≤ |∪_i S_{i,fire}(0)|"
    first = float(run.active_neurons[0])
    observed = [(t, float(n), first) for t, n in zip(run.sampled_iterations, run.active_neurons, strict=True)]
    claims.add("active neurons", source, text, observed, **every)


def _kernel_claims(run: RunMeasurements, claims: ClaimCollector) -> None:
    """Judge λ_min(H(t)) and ‖H(t) − H(0)‖_F."""
    missing = f"λ_min(H(t)) is computed for up to {MAX_SPECTRUM_ROWS:,} rows only"
    every = {"needs_lambda": True, "needs_movement": True, "missing": missing, "total": run.n_iterations}
    source, text = "Lemma: continuous and discrete kernel", "λ_min(H(0)) ≥ 3λ/4"
    observed = [(t, value, 0.75 * run.smallest) for t, value, _ in run.spectra[:1]]
    claims.add("H(0)", source, text, observed, ("kernel_width",), needs_lambda=True, at_most=False, missing=missing)

    source, text = "Lemma: perturbed w for shifted NTK", "‖H(t) − H(0)‖_F ≤ n min{c e^(−b²/2), 3R}"
    limit = bounds.perturbation_bound(run.n, run.threshold, run.radius)
    observed = [(t, change, limit) for t, _, change in run.spectra]
    claims.add("H change", source, text, observed, _FLIP_ASSUMPTIONS, **every)
    text, assumes = "λ_min(H(t)) ≥ λ/2", ("within_radius", "kernel_width")
    observed = [(t, value, 0.5 * run.smallest) for t, value, _ in run.spectra]
    claims.add("H(t)", source, text, observed, assumes, at_most=False, **every)


def _movement_claims(run: RunMeasurements, claims: ClaimCollector) -> None:
    """Judge the norm of the gradient and the movement of the neurons."""
    n, m, smallest = run.n, run.m, run.smallest
    observed = [(t, norm, bounds.gradient_bound(n, m, error)) for t, norm, error in run.gradients]
    text = "max_r ‖∂L/∂w_r‖ ≤ √(n/m) ‖err(t)‖"
    total = run.n_iterations
    claims.add("gradient", "Claim: bounded gradient", text, observed, needs_descent=True, slack=1e-6, total=total)
    descent = {"needs_descent": True, "needs_lambda": True, "needs_movement": True, "total": total}

    moved = list(zip(run.sampled_iterations, run.movement, strict=True))
    if run.overflow_iteration is not None:
        moved.append((run.overflow_iteration, inf))
    source, text = "Claim: movement per iteration", "max_r ‖w_r(t) − w_r(0)‖ ≤ D = 4√n ‖err(0)‖/(√m λ)"
    limit = bounds.movement_bound(n, m, smallest, run.initial_error)
    observed = [(t, distance, limit) for t, distance in moved]
    claims.add("movement", source, text, observed, ("rate_so_far", "rounding"), **descent)
    text, assumes = "max_r ‖w_r(t) − w_r(0)‖ < R = λ/(12n)", ("width", "rate_so_far", "rounding")
    observed = [(t, distance, run.radius) for t, distance in moved]
    claims.add("within R", source, text, observed, assumes, **descent)


def _split_claims(run: RunMeasurements, claims: ClaimCollector) -> None:
    """Judge B₁ … B₄ divided by ‖err(t)‖², the four-term identity, and the progress of a step."""
    n, b, smallest, radius, errors = run.n, run.threshold, run.smallest, run.radius, run.squared_errors
    rate = run.rates[0]
    limits = bounds.split_bounds(n, rate, smallest, b, radius, 1.0)
    names = ("gradient improvement", "dual Hessian", "flip-neurons", "prediction movement")
    texts = (
        "B₁/‖err‖² ≤ −ηλ",
        "B₂/‖err‖² ≤ 2ηn min{R, e^(−b²/2)}",
        "B₃/‖err‖² ≤ 2ηn min{R, e^(−b²/2)}",
        "B₄/‖err‖² ≤ η²n²",
    )
    assumes = (("within_radius", "kernel_width"), _FLIP_ASSUMPTIONS, _FLIP_ASSUMPTIONS, ())
    steps = [(t, split) for t, split in run.splits if t + 1 < run.converged_iteration]
    descent = {"needs_descent": True, "needs_movement": True, "total": run.n_judged_steps}
    for k in range(4):
        observed = [(t, split.terms[k] / errors[t], limits[k]) for t, split in steps]
        key, source = f"B{k + 1}", f"Claim: bounding the {names[k]} term"
        claims.add(key, source, texts[k], observed, assumes[k], needs_lambda=k < 3, slack=1e-9, **descent)
    observed = [
        # Rounding of the predictions is large relative to a small error.
        (t, abs(split.gap), _IDENTITY_TOLERANCE + 1e3 * run.precision * sqrt(errors[0] / errors[t]))
        for t, split in steps
    ]
    text = "|‖err(t+1)‖² − ‖err(t)‖² − ΣB|/‖err(t)‖² ≤ 1e-9 and rounding"
    claims.add("identity", "Claim: split into four terms", text, observed, **descent)
    factor = bounds.step_factor(n, rate, smallest, b, radius)
    observed = [(t, errors[t + 1] / errors[t], factor) for t, _ in steps]
    source = "Lemma: progress per iteration"
    text = "‖err(t+1)‖²/‖err(t)‖² ≤ 1 − ηλ + 4ηn min{R, e^(−b²/2)} + η²n²"
    assumed = (*_FLIP_ASSUMPTIONS, "kernel_width", "rounding")
    claims.add("one step", source, text, observed, assumed, needs_lambda=True, slack=1e-9, **descent)


def _rate_claim(run: RunMeasurements, claims: ClaimCollector) -> None:
    """Judge the convergence lemma."""
    first = run.squared_errors[0]
    observed = [
        (t, square / first if isfinite(square) else inf, bounds.decay(run.rates[0], run.smallest, t))
        for t, square in enumerate(run.squared_errors[: run.converged_iteration])
        if t > 0
    ]
    text = "‖err(t)‖²/‖err(0)‖² ≤ (1 − ηλ/2)^t"
    assumes = (
        "step",
        "width",
        "radius",
        "near_threshold_probability",
        "kernel_width",
        "threshold",
        "separation",
        "rounding",
    )
    source = "Lemma: convergence"
    descent = {"needs_descent": True, "needs_lambda": True, "needs_movement": True, "total": run.n_judged_steps}
    claims.add("rate", source, text, observed, assumes, slack=1e-9, **descent)


def _quantities(run: RunMeasurements, failure: float) -> dict[str, float]:
    n, m, b, smallest, error = run.n, run.m, run.threshold, run.smallest, run.initial_error
    return {
        "rows": n,
        "neurons": m,
        "threshold": b,
        "separation": run.separation.distance,
        "lambda": run.smallest,
        "lambda_rounding": run.spectrum.rounding,
        "lambda_max": run.spectrum.largest,
        "learning_rate": run.rates[0],
        "radius": run.radius,
        "movement_bound": bounds.movement_bound(n, m, smallest, error),
        "flow_movement_bound": bounds.flow_movement_bound(n, m, smallest, error),
        "initial_error": error,
        "initial_error_bound": bounds.initial_error_bound(n, b, failure, run.max_target),
        "active_bound": bounds.sparsity_bound(m, b),
        "failure": failure,
    }


def _curves(run: RunMeasurements) -> dict[str, list[float]]:
    iterations = range(len(run.squared_errors))
    proved = [run.squared_errors[0] * bounds.decay(run.rates[0], run.smallest, t) for t in iterations]
    return {
        "iteration": [float(t) for t in iterations],
        "squared_error": list(run.squared_errors),
        "proved_squared_error": proved,
        "sampled_iteration": [float(t) for t in run.sampled_iterations],
        "max_active": [float(count) for count in run.max_active],
        "mean_active": list(run.mean_active),
        "active_bound": [bounds.sparsity_bound(run.m, run.threshold)] * len(run.sampled_iterations),
        "movement": list(run.movement),
        "movement_bar": list(run.histogram[0]),
        "movement_count": [float(count) for count in run.histogram[1]],
        "flip_iteration": [float(t) for t, *_ in run.flips],
        "flips": [float(count) for _, count, _, _ in run.flips],
        "spectrum_iteration": [float(t) for t, *_ in run.spectra],
        "smallest_eigenvalue": [value for _, value, _ in run.spectra],
    }


def _notes(run: RunMeasurements, seconds: float, start_seconds: float) -> list[str]:
    n_iterations = run.n_iterations
    spectra = describe_iterations([t for t, *_ in run.spectra], n_iterations)
    notes = [
        f"‖err(t)‖ was measured in every iteration. Fire sets, flips, movement, gradients and B₁ … B₄ are exact, "
        f"measured in {describe_iterations(run.sampled_iterations, n_iterations)}; λ_min(H(t)) and ‖H(t) − H(0)‖ in "
        f"{spectra}.",
        f"The certificate took {seconds:.2f} s, {start_seconds:.2f} s of it before training; the training time "
        f"includes both.",
    ]
    if run.no_movement_reason:
        notes.append(f"Warning: {run.no_movement_reason}.")
    if run.converged_iteration < n_iterations:
        notes.append(
            f"From iteration {run.converged_iteration} on the error is only rounding; claims are not judged there."
        )
    if run.overflow_iteration is not None:
        notes.append(f"The run overflowed in iteration {run.overflow_iteration}.")
    return notes


def describe_iterations(iterations: list[int], total: int) -> str:
    """Name the listed ones of ``total`` iterations, counted from 0."""
    if not iterations:
        return "no iteration"
    if len(iterations) >= total:
        return "every iteration" if total > 1 else "iteration 0"
    shown = [str(t) for t in iterations]
    if len(shown) > _MAX_LISTED_ITERATIONS:
        shown = [*shown[: _MAX_LISTED_ITERATIONS - 2], "…", shown[-1]]
    return f"{len(iterations)} of {total} iterations ({', '.join(shown)})"
