"""Losses: the residual is the derivative of the value, and the curvature bounds the second derivative."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset import InputError
from fireset.training import losses
from fireset.training.losses import (
    AbsoluteError,
    Huber,
    LogLoss,
    Poisson,
    Quantile,
    SquaredError,
    check_task,
    describe_loss,
    get_loss,
    probabilities,
    restore_loss,
)
from fireset.training.losses.spread import quantiles, spreads

# One level of the pinball loss works with any number of outputs. The smoothing is wider than the difference quotients.
LOSSES = [get_loss(name) for name in losses.LOSSES if name not in ("quantile", "absolute_error")]
LOSSES += [Quantile(0.3, smoothing=0.1), AbsoluteError(smoothing=0.1)]


@st.composite
def situations(draw) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw outputs, targets that are valid for all losses, and sample weights, zeros included."""
    n, c = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    u = rng.standard_normal((n, c)) * draw(st.sampled_from([0.1, 1.0, 5.0]))
    soft = rng.dirichlet(np.ones(c), n) if c > 1 else rng.random((n, 1))
    hard = np.eye(c)[rng.integers(0, c, n)] if c > 1 else rng.integers(0, 2, (n, 1)).astype(float)
    return u, soft if draw(st.booleans()) else hard, rng.random(n) * rng.integers(0, 3, n)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@settings(max_examples=60)
@given(situation=situations())
def test_residual_is_the_derivative_of_the_value(loss, situation):
    u, targets, weight = situation
    h = 1e-5
    numerical = np.empty_like(u)
    for place in np.ndindex(u.shape):
        bump = np.zeros_like(u)
        bump[place] = h
        rise = loss.value(u + bump, targets, weight) - loss.value(u - bump, targets, weight)
        numerical[place] = rise / (2 * h)
    # Where the second derivative jumps within h, the difference quotient is off by up to h times the curvature.
    jump = 0.0 if isinstance(loss, Poisson) else h * loss.max_curvature(1) * weight.max()
    rounding = 1e-15 * abs(loss.value(u, targets, weight)) / h
    np.testing.assert_allclose(loss.residual(u, targets, weight), numerical, rtol=1e-5, atol=1e-7 + jump + rounding)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@settings(max_examples=60)
@given(situation=situations())
def test_max_curvature_bounds_the_hessian_of_a_row(loss, situation):
    u, targets, _ = situation
    outputs, h = u.shape[1], 1e-5
    row, target, one = u[:1], targets[:1], np.ones(1)
    hessian = np.empty((outputs, outputs))
    for c in range(outputs):
        bump = h * np.eye(outputs)[c : c + 1]
        rise = loss.residual(row + bump, target, one) - loss.residual(row - bump, target, one)
        hessian[c] = rise[0] / (2 * h)
    assert np.linalg.eigvalsh(hessian).max() <= loss.max_curvature(outputs) + 1e-8


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_max_curvature_of_log_loss_is_attained(outputs):
    """Equal probabilities of two outputs reach the bound."""
    if outputs == 1:
        assert probabilities(np.zeros((1, 1)))[0, 0] * 0.5 == LogLoss().max_curvature(1)
        return
    u = np.full((1, outputs), -50.0)
    u[0, :2] = 0.0
    p = probabilities(u)[0]
    top = np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)).max()
    assert top == pytest.approx(LogLoss().max_curvature(outputs), abs=1e-12)


def test_squared_error_by_hand():
    u, y = np.array([[1.0], [4.0]]), np.array([[0.0], [2.0]])
    assert SquaredError().value(u, y, np.ones(2)) == 0.5 * (1 + 4)
    assert SquaredError().value(u, y, np.array([3.0, 0.0])) == 0.5 * 3
    assert SquaredError().max_curvature(1) == SquaredError().max_curvature(7) == 1.0


def test_log_loss_by_hand():
    one = LogLoss().value(np.array([[np.log(3.0)]]), np.array([[1.0]]), np.ones(1))
    assert one == pytest.approx(-np.log(0.75))
    two = LogLoss().value(np.log([[1.0, 2.0, 5.0]]), np.array([[0.0, 1.0, 0.0]]), np.ones(1))
    assert two == pytest.approx(-np.log(0.25))


@pytest.mark.parametrize("size", [1e3, 1e8, 1e300])
def test_log_loss_is_stable_at_huge_logits(size):
    loss, one = LogLoss(), np.ones(1)
    for u, right, wrong in (
        (np.array([[size]]), np.array([[1.0]]), np.array([[0.0]])),
        (np.array([[size, 0.0, -size]]), np.array([[1.0, 0, 0]]), np.array([[0, 1.0, 0]])),
    ):
        assert loss.value(u, right, one) == 0.0
        assert loss.value(u, wrong, one) == pytest.approx(size)
        assert np.array_equal(loss.residual(u, right, one), np.zeros_like(u))
        assert np.array_equal(loss.residual(u, wrong, one), right - wrong)
        assert np.isfinite(probabilities(u)).all()


@given(situations())
def test_probabilities_sum_to_one_and_increase_with_the_logit(situation):
    u = situation[0]
    p = probabilities(u)
    assert p.shape == u.shape
    assert ((p >= 0) & (p <= 1)).all()
    if u.shape[1] > 1:
        np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)
        assert np.array_equal(p.argmax(axis=1), u.argmax(axis=1))
    else:
        assert np.array_equal(p > 0.5, u > 0)


@pytest.mark.parametrize("low_high", [(-1.0, 1.0), (0.0, 2.0)])
def test_log_loss_refuses_targets_outside_0_and_1(low_high):
    low, high = low_high
    with pytest.raises(InputError, match=rf"`y`.*log_loss.*got.*{low:g} to {high:g}"):
        LogLoss().check_targets(np.array([[low], [high]]))


def test_log_loss_refuses_rows_that_do_not_sum_to_1():
    with pytest.raises(InputError, match=r"`y`.*got 2 in row 1"):
        LogLoss().check_targets(np.array([[1.0, 0.0], [1.0, 1.0]]))


def test_valid_targets_pass():
    LogLoss().check_targets(np.array([[0.0], [1.0], [0.3]]))
    LogLoss().check_targets(np.array([[0.25, 0.75], [1.0, 0.0]]))
    SquaredError().check_targets(np.array([[-1e9], [1e9]]))
    assert get_loss("squared_error").name == "squared_error"
    assert get_loss("log_loss").name == "log_loss"


def test_unknown_loss():
    with pytest.raises(InputError, match=rf"`loss`.*{', '.join(losses.LOSSES)}.*got 'hinge'"):
        get_loss("hinge")


MAJORIZED = [SquaredError(), Huber(0.7), AbsoluteError(0.05), Quantile(0.2, smoothing=0.05), Quantile((0.1, 0.5, 0.9))]


@pytest.mark.parametrize("loss", MAJORIZED, ids=str)
@settings(max_examples=80)
@given(seed=st.integers(0, 2**32), size=st.sampled_from([0.01, 1.0, 30.0]))
def test_curvatures_give_a_parabola_above_the_loss(loss, seed, size):
    rng = np.random.default_rng(seed)
    u, v, targets = rng.standard_normal((3, 4, 3)) * size
    weight = rng.random(4) * rng.integers(0, 3, 4)
    above = loss.value(u, targets, weight) + np.sum(loss.residual(u, targets, weight) * (v - u))
    above += 0.5 * np.sum(loss.curvatures(u, targets, weight) * (v - u) ** 2)
    assert loss.value(v, targets, weight) <= above + 1e-9 * max(1.0, abs(above))


@settings(max_examples=80)
@given(seed=st.integers(0, 2**32))
def test_the_parabola_of_poisson_is_above_the_loss_up_to_the_target(seed):
    """Beyond the larger of output and log target no parabola is above e^v."""
    rng = np.random.default_rng(seed)
    loss, one = Poisson(), np.ones(1)
    u, targets = 2 * rng.standard_normal((1, 1)), rng.poisson(3.0, (1, 1)) * 1.0
    largest = max(u.item(), np.log(max(targets.item(), 1e-300)))
    v = largest - rng.exponential(2.0, (1, 1))
    above = loss.value(u, targets, one) + np.sum(loss.residual(u, targets, one) * (v - u))
    above += 0.5 * np.sum(loss.curvatures(u, targets, one) * (v - u) ** 2)
    assert loss.value(v, targets, one) <= above + 1e-9 * max(1.0, abs(above))


def test_robust_losses_by_hand():
    y, one = np.zeros((1, 1)), np.ones(1)
    for r, size in ((2.0, 2.0), (-2.0, 2.0), (0.0, 0.005), (0.01, 0.01)):
        assert AbsoluteError().value(y + r, y, one) == pytest.approx(size)
    assert Huber(1.0).value(y + 3, y, one) == 2.5
    assert Huber(5.0).value(y + 3, y, one) == 4.5
    assert Quantile(0.9).value(y - 2, y, one) == pytest.approx(1.8)
    assert Quantile(0.9).value(y + 2, y, one) == pytest.approx(0.2)
    metrics = Quantile((0.1, 0.9)).metrics(np.array([2.0]), np.array([[0.0, 4.0]]))
    assert metrics == {"pinball": pytest.approx(0.2), "coverage": {"q0.1": 0.0, "q0.9": 1.0}}


def test_poisson_is_half_of_the_deviance():
    from sklearn.metrics import mean_poisson_deviance

    rng = np.random.default_rng(0)
    u, y, weight = rng.standard_normal((9, 1)), rng.poisson(1.0, (9, 1)) * 1.0, rng.random(9)
    deviance = mean_poisson_deviance(y[:, 0], np.exp(u[:, 0]), sample_weight=weight) * weight.sum()
    assert Poisson().value(u, y, weight) == pytest.approx(0.5 * deviance)
    assert np.isfinite(Poisson().residual(np.full((1, 1), 1e4), np.ones((1, 1)), np.zeros(1))).all()


def test_invalid_targets_and_parameters():
    for wrong, message in (
        (
            lambda: Poisson().check_targets(np.array([[1.0], [-2.0]])),
            r"`y`.*got -2",
        ),
        (lambda: Quantile((0.1, 0.9)).check_targets(np.ones((3, 1))), r"2 outputs.*got 1"),
        (lambda: Quantile((0.9, 0.1)), r"`levels`.*got \(0.9, 0.1\)"),
        (lambda: Quantile(1.0), r"`levels`.*got 1.0"),
        (lambda: Quantile("0.5"), r"`levels`.*got '0.5'"),
        (lambda: Quantile(()), r"`levels`.*got \(\)"),
        (lambda: Quantile((0.1, 0.9)).standardization(np.ones((3, 2)), np.ones(3)), r"`y`.*got 2 columns"),
        (lambda: Huber(0), r"`delta`.*got 0"),
        (lambda: AbsoluteError(-1.0), r"`smoothing`.*got -1.0"),
        (
            lambda: check_task("poisson", "classification"),
            r"`loss`.*got 'poisson'",
        ),
    ):
        with pytest.raises(InputError, match=message):
            wrong()


@pytest.mark.parametrize("loss", [*MAJORIZED, LogLoss(), Poisson()], ids=str)
def test_losses_with_equal_parameters_are_equal(loss):
    assert pickle.loads(pickle.dumps(loss)) == loss == replace(loss)
    assert restore_loss(describe_loss(loss)) == loss
    assert eval(repr(loss), vars(losses)) == loss
    assert hash(loss) == hash(replace(loss))
    assert loss != object()


def test_a_model_file_refuses_unregistered_losses_and_parameters():
    class OwnError(SquaredError):
        name = "own"

    with pytest.raises(InputError, match=r"`loss`.*squared_error.*got OwnError"):
        describe_loss(OwnError())
    with pytest.raises(InputError, match=r"'huber'.*'beta'"):
        restore_loss({"name": "huber", "beta": 1.0})
    with pytest.raises(InputError, match=r"mapping.*'huber'"):
        restore_loss("huber")  # pyright: ignore[reportArgumentType]


@given(seed=st.integers(0, 2**32), level=st.floats(0.01, 0.99))
def test_weighted_quantiles_are_those_of_repeated_rows(seed, level):
    rng = np.random.default_rng(seed)
    y, copies = rng.integers(0, 6, (7, 2)) * 1.0, rng.integers(0, 4, 7)
    copies[0] += 1
    found = quantiles(y, copies * 1.0, level)
    assert np.array_equal(found, np.quantile(np.repeat(y, copies, axis=0), level, axis=0, method="inverted_cdf"))


def test_smoothing_is_relative_to_a_robust_spread():
    y = np.random.default_rng(0).standard_normal((1000, 1))
    contaminated = y.copy()
    contaminated[:50] = 1e6
    assert spreads(y, np.ones(1000))[0] == pytest.approx(1.0, abs=0.1)
    assert spreads(contaminated, np.ones(1000))[0] == pytest.approx(1.0, abs=0.15)
    assert spreads(np.zeros((5, 1)), np.ones(5)) == [1.0]
    assert AbsoluteError().for_targets(100 * y, np.ones(1000)).smoothing == pytest.approx(1.0, abs=0.1)
    assert Quantile().for_targets(100 * y, np.ones(1000)).smoothing == pytest.approx(1.0, abs=0.1)
