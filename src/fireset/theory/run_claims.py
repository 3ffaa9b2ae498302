"""From the measurements of a run to the paper's claims about it."""

from dataclasses import dataclass, field
from math import inf, isfinite, sqrt

import numpy as np

from fireset.theory import bounds
from fireset.theory.claims import Assumption, CertificateReport, Held
from fireset.theory.separation import Separation
from fireset.theory.spectrum import Spectrum
from fireset.theory.step_split import StepSplit

_EXACTNESS = 1e-9  # asked of the four-term identity, besides the rounding of the predictions


@dataclass
class Measured:
    """What a certificate has seen of a run. Lists that begin with an iteration are of sampled iterations."""

    n: int
    d: int
    m: int
    threshold: float
    precision: float  # of the network's numbers
    separation: Separation
    spectrum: Spectrum
    every: int
    not_descent: str  # why the claims about descent do not apply; empty if they do
    doubtful: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # |S̄_i|
    rates: list[float] = field(default_factory=list)  # of every iteration
    errors: list[float] = field(default_factory=list)  # ‖err(t)‖² of every iteration
    not_finite: int | None = None  # the iteration in which the run overflowed
    looks: list[int] = field(default_factory=list)  # sampled iterations
    most_fired: list[int] = field(default_factory=list)
    mean_fired: list[float] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)  # neurons that fire for some sample
    more_fired: list[int] = field(default_factory=list)  # max_i k_{i,t} − k_{i,0}
    movement: list[float] = field(default_factory=list)  # max_r ‖w_r(t) − w_r(0)‖
    histogram: tuple[list[float], list[int]] = field(default_factory=lambda: ([], []))  # movement, neurons
    gradients: list[tuple[int, float, float]] = field(default_factory=list)  # max_r ‖∂L/∂w_r‖, ‖err‖
    spectra: list[tuple[int, float, float]] = field(default_factory=list)  # λ_min(H(t)), ‖H(t) − H(0)‖_F
    flips: list[tuple[int, int, int, float]] = field(default_factory=list)  # all, outside S̄, how far
    splits: list[tuple[int, StepSplit]] = field(default_factory=list)

    @property
    def smallest(self) -> float:
        """λ, 0 where rounding does not tell it from 0."""
        return 0.0 if self.spectrum.singular else self.spectrum.smallest

    @property
    def radius(self) -> float:
        return bounds.paper_radius(self.n, self.smallest)

    @property
    def settled(self) -> int:
        """The first iteration whose error is nothing but the rounding of the predictions, or the number of them all."""
        floor = (100.0 * self.precision) ** 2 * self.errors[0]
        return next((t for t, square in enumerate(self.errors) if square <= floor), len(self.errors))

    @property
    def error(self) -> float:
        """‖err(0)‖."""
        return sqrt(self.errors[0])


def report(run: Measured, failure: float, seconds: float, start_seconds: float) -> CertificateReport:
    """Judge every claim."""
    n, m, b, smallest, radius = run.n, run.m, run.threshold, run.smallest, run.radius
    share = bounds.tail_share(b)
    assumptions = _assumptions(run, failure)
    lost = "" if smallest > 0 else f"λ_min(H^cts) is 0 up to rounding: {run.separation}"
    held = Held(assumptions, run.not_descent, lost)
    diverged = [(run.not_finite, inf)] if run.not_finite is not None else []

    low, high = bounds.eigenvalue_bounds(n, b, run.separation.distance)
    source = "Theorem: spectral gap with data separation"
    held.add("λ below", source, "λ ≤ e^(−b²/2)", [(0, smallest, high)], "threshold", of_lambda=True)
    text = "λ ≥ e^(−b²/2) δ/(100 n²)"
    held.add("λ above", source, text, [(0, smallest, low)], "threshold separation", of_lambda=True, below=False)

    source = "Lemma: sparsity after initialization"
    pairs = [(0, float(run.most_fired[0]), bounds.sparsity_bound(m, b))]
    held.add("sparsity", source, "max_i k_{i,0} ≤ 2m e^(−b²/2)", pairs, "threshold sparsity_odds")
    source, text = "Claim: bound on noflip probability", "max_i |S̄_i| ≤ m min{R, e^(−b²/2)}"
    pairs = [(0, float(run.doubtful.max()), bounds.doubtful_bound(m, b, radius))]
    held.add("doubtful", source, text, pairs, "radius doubtful_odds", of_lambda=True)
    text = "flips of pairs outside S̄_i: none while ‖w_r − w_r(0)‖ < R"
    held.add("noflip", source, text, [(t, float(out), 0.0) for t, _, out, _ in run.flips], "still", of_lambda=True)
    source, text = "Lemma: number of fired neurons per iteration", "max_i k_{i,t} − k_{i,0} ≤ m min{R, e^(−b²/2)}"
    limit = bounds.doubtful_bound(m, b, radius)
    pairs = [(t, float(more), limit) for t, more in zip(run.looks, run.more_fired, strict=True)]
    held.add("fired", source, text, pairs, "still radius doubtful_odds", of_lambda=True)

    source, text = "Lemma: running time of Algorithm 1", "|∪_i S_{i,fire}(t)| ≤ |∪_i S_{i,fire}(0)|"
    pairs = [(t, float(count), float(run.alive[0])) for t, count in zip(run.looks, run.alive, strict=True)]
    held.add("alive", source, text, pairs)  # who fires for nobody has no gradient, stays, and never fires

    missing = "λ_min(H(t)) is looked for up to 2,000 rows only"
    source, text = "Lemma: continuous and discrete kernel", "λ_min(H(0)) ≥ 3λ/4"
    pairs = [(t, value, 0.75 * smallest) for t, value, _ in run.spectra[:1]]
    held.add("H(0)", source, text, pairs, "kernel_width", of_lambda=True, below=False, missing=missing)
    source = "Lemma: perturbed w for shifted NTK"
    limit = bounds.perturbation_bound(n, b, radius)
    text = "‖H(t) − H(0)‖_F ≤ n min{c e^(−b²/2), 3R}"
    pairs = [(t, changed, limit) for t, _, changed in run.spectra]
    held.add("H change", source, text, pairs, "still radius doubtful_odds", of_lambda=True, missing=missing)
    pairs = [(t, value, 0.5 * smallest) for t, value, _ in run.spectra]
    text, needs = "λ_min(H(t)) ≥ λ/2", "still kernel_width"
    held.add("H(t)", source, text, pairs, needs, of_lambda=True, below=False, missing=missing)

    pairs = [(t, most, bounds.gradient_bound(n, m, error)) for t, most, error in run.gradients]
    text = "max_r ‖∂L/∂w_r‖ ≤ √(n/m) ‖err(t)‖"
    held.add("gradient", "Claim: bounded gradient", text, pairs, of_descent=True, slack=1e-6)
    moved = [*zip(run.looks, run.movement, strict=True), *diverged]
    source = "Claim: movement per iteration"
    limit = bounds.movement_bound(n, m, smallest, run.error)
    text = "max_r ‖w_r(t) − w_r(0)‖ ≤ D = 4√n ‖err(0)‖/(√m λ)"
    pairs = [(t, far, limit) for t, far in moved]
    held.add("movement", source, text, pairs, "rate_so_far", of_descent=True, of_lambda=True)
    pairs = [(t, far, radius) for t, far in moved]
    text = "max_r ‖w_r(t) − w_r(0)‖ < R = λ/(12n)"
    held.add("within R", source, text, pairs, "width rate_so_far", of_descent=True, of_lambda=True)

    _split_claims(run, held)
    pairs = [
        (t, square / run.errors[0] if isfinite(square) else inf, bounds.decay(run.rates[0], smallest, t))
        for t, square in enumerate(run.errors[: run.settled])
        if t > 0
    ]
    text = "‖err(t)‖²/‖err(0)‖² ≤ (1 − ηλ/2)^t"
    needs = "step width radius doubtful_odds kernel_width threshold separation"
    held.add("rate", "Lemma: convergence", text, pairs, needs, of_descent=True, of_lambda=True, slack=1e-9)
    quantities = {
        "rows": n,
        "neurons": m,
        "threshold": b,
        "separation": run.separation.distance,
        "lambda": run.spectrum.smallest,
        "lambda_rounding": run.spectrum.rounding,
        "lambda_max": run.spectrum.largest,
        "learning_rate": run.rates[0],
        "radius": radius,
        "movement_bound": bounds.movement_bound(n, m, smallest, run.error),
        "flow_movement_bound": bounds.flow_movement_bound(n, m, smallest, run.error),
        "initial_error": run.error,
        # what the O of the Claim "upper bound the initialization" would have to hide here
        "initial_error_constant": run.errors[0] / bounds.initial_error_bound(n, b, failure),
        "fired_bound": 2.0 * m * share,
        "failure": failure,
    }
    return CertificateReport(quantities, assumptions, held.claims, _curves(run), _notes(run, seconds, start_seconds))


def _assumptions(run: Measured, failure: float) -> list[Assumption]:
    n, m, b, smallest, radius = run.n, run.m, run.threshold, run.smallest, run.radius
    found: list[Assumption] = []

    def add(key: str, text: str, needed: float, actual: float, met: bool, reason: str) -> None:
        found.append(Assumption(key, text, needed, actual, bool(met), reason))

    delta = run.separation.distance
    add("separation", "δ > 0", 0.0, delta, delta > 0, f"δ = 0: {run.separation}")
    add("threshold", "0 ≤ b", 0.0, b, b >= 0, f"b = {b:.4g} is negative")
    odds = bounds.sparsity_failure(n, m, b)
    text = f"m e^(−b²/2) is too small for probability {1 - failure:g}: the bound on failing is {odds:.2g}"
    add("sparsity_odds", "P(sparsity fails) ≤ ρ", failure, odds, odds <= failure, text)
    edge = 1.0 / b if b > 0 else inf
    odds = bounds.doubtful_failure(n, m, b, radius)
    add("radius", "R < 1/b", edge, radius, radius < edge, f"R = {radius:.2g} is above 1/b = {edge:.2g}")
    text = f"m R = {m * radius:.2g} is too small to count on |S̄_i| ≤ mR with probability {1 - failure:g}"
    add("doubtful_odds", "P(|S̄_i| > mR) ≤ ρ", failure, odds, odds <= failure, text)
    width = bounds.discrete_width(n, smallest, failure)
    text = f"m = {m:,} is below 32 n ln(n/ρ)/λ = {width:.3g}"
    add("kernel_width", "m ≥ 32 λ⁻¹ n ln(n/ρ)", width, m, m >= width, text)
    rate = bounds.learning_rate(n, smallest)
    text = f"η = {run.rates[0]:.3g} is above λ/(4n²) = {rate:.3g}"
    add("step", "η ≤ λ/(4n²)", rate, run.rates[0], run.rates[0] <= rate * (1 + 1e-9), text)
    width = bounds.width_for_movement(n, smallest, run.error)
    text = f"m = {m:,} is below 2304 λ⁻⁴ n³ ‖err(0)‖² = {width:.3g}, where D < R"
    add("width", "D < R", width, m, m > width, text)
    far = max([*run.movement, *(moved for *_, moved in run.flips)], default=0.0)
    if run.not_finite is not None:
        far = inf
    add("still", "max movement < R", radius, far, far < radius, f"neurons moved by {far:.2g}, beyond R = {radius:.2g}")
    behind = [
        t
        for t, square in enumerate(run.errors[: run.settled])
        if not square <= run.errors[0] * bounds.decay(run.rates[0], smallest, t) * (1 + 1e-9)
    ]
    text = f"‖err(t)‖² was above (1 − ηλ/2)^t ‖err(0)‖² in iteration {behind[0] if behind else 0}"
    add("rate_so_far", "‖err(t)‖² ≤ (1 − ηλ/2)^t ‖err(0)‖²", 0, len(behind), not behind, text)
    return found


def _split_claims(run: Measured, held: Held) -> None:
    """B₁ … B₄ with their bounds, all over ‖err(t)‖²; the identity; and one step."""
    n, b, smallest, radius = run.n, run.threshold, run.smallest, run.radius
    rate = run.rates[0]
    limits = bounds.split_bounds(n, rate, smallest, b, radius, 1.0)
    names = ("gradient improvement", "dual Hessian", "flip-neurons", "prediction movement")
    texts = (
        "B₁/‖err‖² ≤ −ηλ",
        "B₂/‖err‖² ≤ 2ηn min{R, e^(−b²/2)}",
        "B₃/‖err‖² ≤ 2ηn min{R, e^(−b²/2)}",
        "B₄/‖err‖² ≤ η²n²",
    )
    needs = ("still kernel_width", "still radius doubtful_odds", "still radius doubtful_odds", "")
    steps = [(t, split) for t, split in run.splits if t + 1 < run.settled]
    for k in range(4):
        pairs = [(t, split.terms[k] / run.errors[t], limits[k]) for t, split in steps]
        source = f"Claim: bounding the {names[k]} term"
        lambda_free = k == 3
        held.add(f"B{k + 1}", source, texts[k], pairs, needs[k], of_descent=True, of_lambda=not lambda_free, slack=1e-9)
    pairs = [
        # Predictions are known to their precision only; beside a small error that shows.
        (t, abs(split.gap), _EXACTNESS + 1e3 * run.precision * sqrt(run.errors[0] / run.errors[t]))
        for t, split in steps
    ]
    text = "|‖err(t+1)‖² − ‖err(t)‖² − ΣB|/‖err(t)‖² ≤ 1e-9 and rounding"
    held.add("identity", "Claim: split into four terms", text, pairs, of_descent=True)
    factor = bounds.step_factor(n, rate, smallest, b, radius)
    pairs = [(t, run.errors[t + 1] / run.errors[t], factor) for t, _ in steps]
    text = "‖err(t+1)‖²/‖err(t)‖² ≤ 1 − ηλ + 4ηn min{R, e^(−b²/2)} + η²n²"
    needs_all = "still radius doubtful_odds kernel_width"
    source = "Lemma: progress per iteration"
    held.add("one step", source, text, pairs, needs_all, of_descent=True, of_lambda=True, slack=1e-9)


def _curves(run: Measured) -> dict[str, list[float]]:
    smallest = run.smallest
    return {
        "iteration": [float(t) for t in range(len(run.errors))],
        "squared_error": list(run.errors),
        "proved_squared_error": [
            run.errors[0] * bounds.decay(run.rates[0], smallest, t) for t in range(len(run.errors))
        ],
        "sampled_iteration": [float(t) for t in run.looks],
        "most_fired": [float(count) for count in run.most_fired],
        "mean_fired": list(run.mean_fired),
        "fired_bound": [bounds.sparsity_bound(run.m, run.threshold)] * len(run.looks),
        "movement": list(run.movement),
        "movement_bar": list(run.histogram[0]),
        "movement_count": [float(count) for count in run.histogram[1]],
        "flip_iteration": [float(t) for t, *_ in run.flips],
        "flips": [float(count) for _, count, _, _ in run.flips],
        "spectrum_iteration": [float(t) for t, *_ in run.spectra],
        "smallest_eigenvalue": [value for _, value, _ in run.spectra],
    }


def _notes(run: Measured, seconds: float, start_seconds: float) -> list[str]:
    last = len(run.errors) - 1
    looks = "every iteration" if run.every == 1 else f"{len(run.looks)} of {last + 1} iterations"
    notes = [
        f"‖err(t)‖ was followed in every iteration; fire sets, flips, movement, gradients and B₁ … B₄ are exact and "
        f"were looked at in {looks}, λ_min(H(t)) in {len(run.spectra)}.",
        f"The certificate took {seconds:.2f} s, {start_seconds:.2f} s of it before training; the training time "
        f"includes that.",
    ]
    if run.settled < len(run.errors):
        notes.append(f"From iteration {run.settled} on the error is only rounding; no claim is held against it.")
    if run.not_finite is not None:
        notes.append(f"The run overflowed in iteration {run.not_finite}.")
    return notes
