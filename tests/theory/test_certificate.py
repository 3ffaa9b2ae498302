"""Certificate: claims hold if their assumptions are met; runs that break an assumption are reported with the reason."""

import json

import numpy as np
import pytest
from scipy.sparse import csr_array

from fireset import InputError, ShiftedReLUNetwork, train
from fireset.commands.certificate import certificate_sections, claims_table, unmet_reasons
from fireset.engines import create
from fireset.theory import Certificate, bounds, dual_kernel, fire_set_kernel
from fireset.theory.step_split import flipped_pairs, gradient_norms, pairs_near_threshold
from support.checks import mentions, sphere
from support.problems import hard_cases

DETERMINISTIC = {"gradient", "B4", "identity", "active neurons"}
AT_THE_START = {"λ below", "λ above", "initial error", "sparsity", "near threshold", "H(0)"}


def certified(network, X, y, *, every=1, **options):
    """Train by plain gradient descent with a certificate and return its report."""
    certificate = Certificate(every=every)
    settings = {"learning_rate": "theory", "max_iter": 12, "tol": 0, "engine": "dense", **options}
    train(network, X, y, callbacks=[certificate], **settings)
    return certificate.report()


def in_the_regime(m: int, *, gap: float):
    """Two orthogonal samples, a low threshold, targets within ``gap`` of the first predictions: λ is large."""
    X = np.eye(2)
    network = ShiftedReLUNetwork.initialize(m, 2, threshold=0.05, dtype="float64")
    return network, X, network.predict(X)[:, 0] + np.array([gap, -gap])


def unmet(report) -> set[str]:
    return {assumption.key for assumption in report.assumptions if not assumption.met}


# All assumptions met


@pytest.mark.slow
def test_a_million_neurons_meet_every_assumption_and_every_claim():
    X, y = np.eye(2), np.array([0.3, -0.2])
    network = ShiftedReLUNetwork.initialize(1_000_000, 2, threshold=0.05, dtype="float64")
    report = certified(network, X, y, every=6)
    assert unmet(report) == set()
    assert [claim.key for claim in report.claims if not (claim.holds and claim.proved)] == []
    assert len(report.claims) == 22
    assert {claim.key for claim in report.claims if claim.complete} == {*AT_THE_START, "rate"}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["dense", "data", "weights", "sums"])
def test_every_claim_holds_in_every_iteration_with_every_engine(engine):
    report = certified(*in_the_regime(20_000, gap=0.1), engine=engine)
    assert unmet(report) == set()
    assert all(claim.holds and claim.proved and claim.complete for claim in report.claims)
    assert report.curves["sampled_iteration"] == list(range(13))


# Measured iterations


def far_from_the_regime(rows=12, width=60, dtype="float64"):
    """Few neurons with large movement: λ_min(H(t)) decreases."""
    rng = np.random.default_rng(3)
    X = sphere(rng, rows, 4)
    return ShiftedReLUNetwork.initialize(width, 4, threshold=0.3, dtype=dtype, seed=3), X, 3 * rng.standard_normal(rows)


class Spectra:
    """Callback that computes λ_min(H(t)) and max_i k_{i,t} of every iteration from their definitions."""

    def __init__(self, X):
        self.X, self.smallest, self.most = X, [], []

    def __call__(self, progress):
        active = progress.network.fire_sets(self.X)
        self.smallest.append(np.linalg.eigvalsh(fire_set_kernel(self.X, active))[0])
        self.most.append(np.diff(active.indptr).max())


def test_with_every_1_the_spectrum_of_every_iteration_is_measured():
    network, X, y = far_from_the_regime()
    truth, certificate = Spectra(X), Certificate(every=1)
    train(network, X, y, learning_rate=0.5, max_iter=100, tol=0, engine="dense", callbacks=[truth, certificate])
    report = certificate.report()
    assert report.curves["spectrum_iteration"] == list(range(101))
    worst = int(np.argmin(truth.smallest))
    claim = report.claim("H(t)")
    assert worst > 5
    assert (claim.iteration, claim.measured_iterations, claim.complete) == (worst, tuple(range(101)), True)
    assert claim.measured == pytest.approx(truth.smallest[worst], abs=1e-12)
    assert claim.holds == bool(truth.smallest[worst] >= claim.bound)
    sparsity = report.claim("sparsity, all t")
    assert (sparsity.measured, sparsity.measured_iterations) == (max(truth.most), tuple(range(101)))


@pytest.mark.parametrize("ended_by", ["max_iter", "tol", "callback"])
def test_the_last_iteration_is_measured_whatever_ended_the_run(ended_by):
    network, X, y = far_from_the_regime()
    truth, certificate = Spectra(X), Certificate(every=40)
    stop = [lambda progress: progress.record.iteration == 57] if ended_by == "callback" else []
    options = {"max_iter": 90 if ended_by == "max_iter" else 400, "tol": 0.05 if ended_by == "tol" else 0}
    result = train(network, X, y, learning_rate=0.1, engine="data", callbacks=[certificate, truth, *stop], **options)
    last = len(result.history) - 1
    report = certificate.report()
    sampled = sorted({*range(0, last + 1, 40), last})
    assert report.curves["sampled_iteration"] == report.curves["spectrum_iteration"] == sampled
    assert report.curves["smallest_eigenvalue"][-1] == pytest.approx(truth.smallest[-1], abs=1e-12)
    for key in ("H(t)", "H change", "active increase", "sparsity, all t", "active neurons", "gradient", "movement"):
        claim = report.claim(key)
        assert claim.measured_iterations == tuple(sampled), key
        assert not claim.complete
        assert f"{len(sampled)} measured of {last + 1} iterations" in claim.verdict or not claim.holds
        assert claim.to_dict()["measured_iterations"] == sampled
    assert all(report.claim(key).measured_iterations == (0,) and report.claim(key).complete for key in AT_THE_START)
    assert str(last) in report.notes[0]
    measured_iterations = {row[0]: row[4] for row in claims_table(report.to_dict()).rows}
    assert measured_iterations[report.claim("H(t)").text] == f"{len(sampled)} of {last + 1}"
    assert measured_iterations[report.claim("rate").text] == "all"


def test_with_many_rows_few_spectra_and_the_last_are_measured(monkeypatch):
    monkeypatch.setattr("fireset.theory.certificate._MAX_SPECTRUM_OPERATIONS", 0)
    network, X, y = far_from_the_regime()
    report = certified(network, X, y, every=1, learning_rate=0.1, max_iter=30)
    assert report.curves["spectrum_iteration"] == [0, 8, 16, 24, 30]
    assert report.claim("H(t)").measured_iterations == (0, 8, 16, 24, 30)
    assert report.claim("active increase").complete


# The initial error, and steps lost to rounding


@pytest.mark.parametrize(("n", "failure"), [(1, 0.5), (3, 0.2), (2, 0.01), (50, 0.01)])
def test_the_initial_error_is_within_its_bound(n, failure):
    """Constant C of the bound: ‖err(0)‖² of 200 networks with targets ±1 of the worst sign."""
    rng = np.random.default_rng(0)
    X = sphere(rng, n, 3)
    bound = bounds.initial_error_bound(n, 0.2, failure)
    above = 0
    for seed in range(200):
        u = ShiftedReLUNetwork.initialize(64, 3, threshold=0.2, dtype="float64", seed=seed).predict(X)[:, 0]
        above += np.sum((np.abs(u) + 1) ** 2) > bound
    assert above <= 200 * failure


def test_the_initial_error_is_judged():
    network, X, y = far_from_the_regime()
    claim = certified(network, X, y, learning_rate=0.1, max_iter=2).claim("initial error")
    start, _, _ = far_from_the_regime()
    assert claim.measured == pytest.approx(np.sum((y - start.predict(X)[:, 0]) ** 2), rel=1e-12)
    assert claim.bound == bounds.initial_error_bound(12, 0.3, 0.01, np.abs(y).max())
    assert claim.proved
    assert not certified(start, X, 1e3 * np.sign(y), learning_rate=0.1, max_iter=1).claim("initial error").unmet


MOVING = (
    "noflip",
    "active increase",
    "sparsity, all t",
    "H change",
    "H(t)",
    "movement",
    "within R",
    "B1",
    "one step",
    "rate",
)


def test_steps_that_float32_rounds_to_zero_are_reported():
    network, X, y = far_from_the_regime(dtype="float32")
    report = certified(network, X, y, learning_rate=1e-12, max_iter=20)
    for key in MOVING:
        assert report.claim(key).holds is None, key
        assert mentions(report.claim(key).reason, "20"), key
    assert any("float64" in note for note in report.notes)
    moving = certified(*far_from_the_regime(), learning_rate=1e-12, max_iter=20)
    assert all(moving.claim(key).holds is not None for key in MOVING)
    assert moving.assumption("rounding").met


def test_steps_that_float32_rounds_in_part_are_an_unmet_assumption():
    network, X, y = far_from_the_regime(dtype="float32")
    report = certified(network, X, y, learning_rate=2e-7, max_iter=10)
    assert not report.assumption("rounding").met
    assert report.assumption("rounding").actual > 0.1
    assert [assumption.key for assumption in report.claim("rate").unmet].count("rounding") == 1  # it was listed twice


# Unmet assumptions


def test_a_step_that_is_too_large_breaks_the_rate_and_is_reported():
    report = certified(*in_the_regime(20_000, gap=0.1), learning_rate=6.0)
    assert unmet(report) == {"step", "within_radius", "rate_so_far"}
    rate = report.claim("rate")
    assert rate.holds is False
    assert [assumption.key for assumption in rate.unmet] == ["step"]
    assert "η = 6 is above" in rate.verdict
    movement = report.claim("movement")
    assert not movement.proved
    assert [assumption.key for assumption in movement.unmet] == ["rate_so_far"]
    for key in ("λ below", "λ above", "sparsity", "near threshold", "H(0)", *DETERMINISTIC):
        assert report.claim(key).verdict == "holds", key
    assert all(report.claim(key).unmet for key in report.failed)  # no claim fails with all assumptions met


def test_a_run_that_overflows_is_judged():
    with pytest.warns(RuntimeWarning, match="loss"):
        report = certified(*in_the_regime(20_000, gap=0.1), learning_rate=1e200, max_iter=30)
    assert report.claim("rate").holds is False
    assert report.claim("movement").holds is False
    assert "within_radius" in unmet(report)
    assert json.dumps(report.to_dict(), allow_nan=False)


def test_rows_are_numbered_as_in_the_training_data_or_as_given():
    X = np.array([[0.6, 0.8], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    network = ShiftedReLUNetwork.initialize(500, 2, threshold=0.3, dtype="float64")
    certificate = Certificate()
    weight = np.array([0.0, 1.0, 1.0, 1.0])  # the certificate ignores rows of weight 0
    train(
        network, X, np.arange(4.0), sample_weight=weight, learning_rate=0.1, max_iter=2, tol=0, callbacks=[certificate]
    )
    assert "rows 1 and 3" in certificate.report().assumption("separation").reason
    numbered = certificate.report(np.array([11, 12, 13, 14]))
    assert "rows 12 and 14" in numbered.assumption("separation").reason


@pytest.mark.parametrize(("side", "word"), [(1.0, "the same"), (-1.0, "opposite")])
def test_claims_about_lambda_do_not_apply_to_equal_rows(side, word):
    """Opposite rows are both active for negative thresholds only: H^cts is regular, but the theorem assumes δ > 0."""
    X = np.array([[1.0, 0.0], [0.0, 1.0], [side, 0.0]])
    network = ShiftedReLUNetwork.initialize(5000, 2, threshold=0.3, dtype="float64")
    report = certified(network, X, np.array([1.0, 0.5, -1.0]), learning_rate=0.5)
    separation = report.assumption("separation")
    assert not separation.met
    assert f"rows 0 and 2 are {word}" in separation.reason
    if side > 0:
        not_applicable = {claim.key for claim in report.claims if claim.holds is None}
        assert not_applicable == {claim.key for claim in report.claims} - {"sparsity", "initial error", *DETERMINISTIC}
        assert mentions(report.claim("rate").verdict, "0", "2")
    assert all(report.claim(key).verdict == "holds" for key in ("sparsity", *DETERMINISTIC))


def test_too_few_neurons_are_reported():
    report = certified(*in_the_regime(40, gap=0.1))
    assert unmet(report) == {"width", "kernel_width", "near_threshold_probability"}
    assert all("m = 40" in report.assumption(key).reason for key in ("width", "kernel_width"))
    assert report.assumption("kernel_width").needed == pytest.approx(706, abs=0.5)
    assert {a.key for a in report.claim("H(0)").unmet} == {"kernel_width"}
    assert not report.claim("rate").proved
    assert all(report.claim(key).unmet for key in report.failed)


def test_the_kernel_of_few_neurons_can_violate_its_bound():
    """Neurons that are active for no row: λ_min(H(0)) = 0 < 3λ/4, because m is too small."""
    network, X, y = in_the_regime(40, gap=0.1)
    network.weights[:] = -np.abs(network.weights)
    claim = certified(network, X, y, learning_rate=0.01).claim("H(0)")
    assert (claim.holds, claim.measured) == (False, 0.0)
    assert [assumption.key for assumption in claim.unmet] == ["kernel_width"]


# Claims that do not apply


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"momentum": 0.9}, "momentum is 0.9"),
        ({"sample_weight": np.r_[2.0, np.ones(29)]}, "sample weights"),
        ({"loss": "log_loss"}, "the loss"),
    ],
)
def test_claims_about_descent_do_not_apply_to_other_methods(options, reason):
    rng = np.random.default_rng(0)
    X, y = sphere(rng, 30, 4), rng.integers(0, 2, 30).astype(float)
    network = ShiftedReLUNetwork.initialize(500, 4, dtype="float64")
    report = certified(network, X, y, learning_rate=0.01, max_iter=3, **options)
    for key in ("gradient", "movement", "within R", "B1", "B2", "B3", "B4", "identity", "one step", "rate"):
        assert report.claim(key).holds is None
        assert reason in report.claim(key).reason
    for key in ("sparsity", "near threshold", "H(0)", "noflip"):
        assert report.claim(key).holds is not None


def test_counts_are_judged_for_several_outputs_and_descent_is_not():
    problem = hard_cases()["several outputs"]
    report = certified(problem.network(), problem.X, problem.y, learning_rate=0.1, max_iter=3)
    assert "3 outputs" in report.claim("rate").reason
    assert report.claim("sparsity").holds
    plain = report.to_dict()
    assert "does not apply [a]" in {row[3] for row in claims_table(plain).rows}
    assert unmet_reasons(plain)[-1] == f"[a] {report.claim('rate').reason}"


def test_claims_do_not_apply_to_a_changed_learning_rate():
    problem = hard_cases()["everything fires"]
    certificate = Certificate(every=1)
    result = train(problem.network(), problem.X, problem.y, learning_rate="auto", max_iter=20, callbacks=[certificate])
    changed = len(set(result.history.column("learning_rate"))) > 1
    assert ("learning rate" in certificate.report().claim("rate").reason) == changed


def test_validation_rows_are_ignored():
    rng = np.random.default_rng(0)
    X, y = sphere(rng, 40, 4), rng.standard_normal(40)
    reports = []
    for validation in (None, (X[30:], y[30:])):
        certificate = Certificate(every=1)
        network = ShiftedReLUNetwork.initialize(400, 4, dtype="float64")
        train(
            network,
            X[:30],
            y[:30],
            learning_rate=0.05,
            max_iter=4,
            tol=0,
            engine="data",
            validation=validation,
            callbacks=[certificate],
        )
        reports.append(certificate.report())
    for first, second in zip(reports[0].claims, reports[1].claims, strict=True):
        assert (first.key, first.holds) == (second.key, second.holds)
        assert first.measured == pytest.approx(second.measured, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("case", hard_cases())
def test_hard_cases_are_judged(case):
    """No active pair, all pairs active, one sample, one dimension …: no claim fails with all assumptions met."""
    problem = hard_cases()[case]
    report = certified(problem.network(), problem.X, problem.y, learning_rate=0.01, max_iter=3)
    assert all(report.claim(key).unmet for key in report.failed)
    assert json.dumps(report.to_dict(), allow_nan=False)
    assert certificate_sections(report.to_dict())


def test_a_certificate_without_a_run_has_no_report():
    with pytest.raises(InputError, match="callbacks"):
        Certificate().report()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every.*got 0"),
        ({"every": 2.5}, "every.*got 2.5"),
        ({"failure": 1.0}, "failure.*got 1.0"),
    ],
)
def test_invalid_arguments_raise(options, message):
    with pytest.raises(InputError, match=message):
        Certificate(**options)


def test_a_run_without_steps_is_judged_at_the_start():
    report = certified(*in_the_regime(20_000, gap=0.1), max_iter=0)
    assert report.claim("sparsity").holds
    assert report.claim("rate").holds is None


# The terms B₁ … B₄


@pytest.mark.parametrize("rate", [0.02, 0.2])
@pytest.mark.parametrize("case", ["random", "plain ReLU", "duplicates", "antipodes", "on the threshold", "one sample"])
def test_the_four_terms_add_up_in_every_iteration(case, rate):
    """‖err(t+1)‖² = ‖err(t)‖² + B₁ + B₂ + B₃ + B₄ to 1e-9, whether neurons flip or not."""
    problem = hard_cases()[case]
    network, certificate = problem.network(), Certificate(every=1)
    train(network, problem.X, problem.y, learning_rate=rate, max_iter=40, tol=0, engine="data", callbacks=[certificate])
    assert certificate._run is not None
    splits = certificate._run.splits
    assert [t for t, _ in splits] == list(range(40))
    assert max(abs(split.gap) for _, split in splits) < 1e-9
    if rate == 0.2 and case == "random":
        assert sum(count for _, count, _, _ in certificate._run.flips) > 0


def test_the_terms_are_their_definitions():
    """B₁ and B₂ against the matrices H(t) and H(t)^⊥, ‖∂L/∂w_r‖ against the gradient written out."""
    problem = hard_cases()["random"]
    network, certificate = problem.network(), Certificate(every=1)
    before = network.weights.copy()
    train(network, problem.X, problem.y, learning_rate=0.5, max_iter=1, tol=0, engine="dense", callbacks=[certificate])
    start = problem.network()
    err = problem.y[:, 0] - start.predict(problem.X)[:, 0]
    active, later = start.fire_sets(problem.X), network.fire_sets(problem.X)
    run = certificate._run
    assert run is not None
    near_threshold = csr_array(
        pairs_near_threshold(before, problem.X, start.threshold, run.radius) + flipped_pairs(active, later)
    )
    b1, b2, _, _ = run.splits[0][1].terms
    assert b1 == pytest.approx(-2 * 0.5 * err @ fire_set_kernel(problem.X, active) @ err, rel=1e-10)
    assert b2 == pytest.approx(2 * 0.5 * err @ dual_kernel(problem.X, active, near_threshold) @ err, rel=1e-10)
    gradient = (before - network.weights) / 0.5
    found = gradient_norms(problem.X, start.output_weights, active, -err[:, None])
    np.testing.assert_allclose(found, np.linalg.norm(gradient, axis=1), atol=1e-12)


def test_pairs_near_threshold_are_their_definition():
    problem = hard_cases()["random"]
    network = problem.network()
    found = pairs_near_threshold(network.weights, problem.X, network.threshold, 0.2).toarray()
    np.testing.assert_array_equal(found, np.abs(problem.X @ network.weights.T - network.threshold) < 0.2)


def test_iterations_with_an_error_of_rounding_only_are_not_judged():
    """In float32 the error stops decreasing at 1e-7 of the predictions."""
    network = ShiftedReLUNetwork.initialize(4000, 2, threshold=0.05)
    report = certified(network, np.eye(2), np.array([0.5, -0.5]), learning_rate=1.0, max_iter=80, every=5)
    assert report.claim("rate").holds
    assert report.claim("one step").holds
    assert report.claim("identity").holds
    assert "rounding" in report.notes[-1]
    assert report.claim("rate").measured_iterations[-1] < 80


# Output


def test_a_report_becomes_tables_figures_and_json():
    problem = hard_cases()["random"]
    report = certified(problem.network(), problem.X, problem.y, learning_rate=1.0, max_iter=9, every=3)
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    table = claims_table(plain)
    assert len(table.rows) == len(report.claims)
    assert all(len(row) == len(table.columns) for row in table.rows)
    reasons = unmet_reasons(plain)
    assert len(reasons) == len(unmet(report))  # numbered only: all claims apply
    marked = [row[3] for row in table.rows if "[" in row[3]]
    assert marked
    assert all(int(number) <= len(reasons) for text in marked for number in text.split("[")[1].strip("]").split(", "))
    (section,) = certificate_sections(plain)
    assert [len(figure.series) for figure in section.figures] == [2, 3, 3]
    for figure in section.figures:
        for series in figure.series:
            assert len(series.x) == len(series.y) > 0
            assert np.isfinite(series.y).all()
    assert "4 of 10 iterations (0, 3, 6, 9)" in section.paragraphs[-2]


def test_a_certificate_does_not_change_the_weights():
    problem = hard_cases()["random"]
    results = []
    for callbacks in ([], [Certificate(every=1)]):
        network = problem.network()
        train(network, problem.X, problem.y, learning_rate=0.3, max_iter=15, engine=create("data"), callbacks=callbacks)
        results.append(network.weights)
    np.testing.assert_array_equal(*results)
