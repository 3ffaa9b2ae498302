"""Losses: the residual is the derivative of the value, and the curvature bounds the second derivative."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset import InputError
from fireset.training import losses
from fireset.training.losses import LogLoss, SquaredError, get_loss, probabilities

LOSSES = [get_loss(name) for name in losses.LOSSES]


@st.composite
def situations(draw) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions, targets that suit all losses, and sample weights, zeros included."""
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
    np.testing.assert_allclose(loss.residual(u, targets, weight), numerical, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@settings(max_examples=60)
@given(situation=situations())
def test_curvature_bounds_the_hessian_of_a_row(loss, situation):
    u, targets, _ = situation
    outputs, h = u.shape[1], 1e-5
    row, target, one = u[:1], targets[:1], np.ones(1)
    hessian = np.empty((outputs, outputs))
    for c in range(outputs):
        bump = h * np.eye(outputs)[c : c + 1]
        rise = loss.residual(row + bump, target, one) - loss.residual(row - bump, target, one)
        hessian[c] = rise[0] / (2 * h)
    assert np.linalg.eigvalsh(hessian).max() <= loss.curvature(outputs) + 1e-8


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_curvature_of_log_loss_is_attained_to_the_limit(outputs):
    """The bound is no larger than it must be: an even split between two outputs reaches it."""
    if outputs == 1:
        assert probabilities(np.zeros((1, 1)))[0, 0] * 0.5 == LogLoss().curvature(1)
        return
    u = np.full((1, outputs), -50.0)
    u[0, :2] = 0.0
    p = probabilities(u)[0]
    top = np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)).max()
    assert top == pytest.approx(LogLoss().curvature(outputs), abs=1e-12)


def test_squared_error_is_the_papers():
    u, y = np.array([[1.0], [4.0]]), np.array([[0.0], [2.0]])
    assert SquaredError().value(u, y, np.ones(2)) == 0.5 * (1 + 4)
    assert SquaredError().value(u, y, np.array([3.0, 0.0])) == 0.5 * 3
    assert SquaredError().curvature(1) == SquaredError().curvature(7) == 1.0


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
def test_probabilities_sum_to_one_and_rise_with_the_logit(situation):
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
def test_log_loss_refuses_targets_that_are_no_probabilities(low_high):
    low, high = low_high
    with pytest.raises(InputError) as caught:
        LogLoss().check_targets(np.array([[low], [high]]))
    assert str(caught.value) == (
        f"y must hold probabilities between 0 and 1 for loss='log_loss', got {low:g} … {high:g}; "
        "code classes as 0/1 or one-hot"
    )


def test_log_loss_refuses_rows_that_are_no_distributions():
    with pytest.raises(InputError) as caught:
        LogLoss().check_targets(np.array([[1.0, 0.0], [1.0, 1.0]]))
    assert str(caught.value) == (
        "every row of y must sum to 1 for loss='log_loss' with several outputs (one-hot codes)"
    )


def test_good_targets_pass():
    LogLoss().check_targets(np.array([[0.0], [1.0], [0.3]]))
    LogLoss().check_targets(np.array([[0.25, 0.75], [1.0, 0.0]]))
    SquaredError().check_targets(np.array([[-1e9], [1e9]]))
    assert get_loss("squared_error").name == "squared_error"
    assert get_loss("log_loss").name == "log_loss"


def test_unknown_loss():
    with pytest.raises(InputError, match=rf"^loss must be one of {', '.join(losses.LOSSES)}; got 'hinge'$"):
        get_loss("hinge")
