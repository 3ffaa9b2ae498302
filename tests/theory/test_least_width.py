"""``theory.least_width`` and ``width="theory"``: the least width that the convergence lemma covers."""

from math import log

import numpy as np
import pytest

from fireset import InputError, ShiftedReLUClassifier, ShiftedReLUNetwork, ShiftedReLURegressor, train
from fireset.network import choose_threshold
from fireset.theory import Certificate, bounds, least_width, shifted_ntk, smallest_eigenvalue
from fireset.theory.required_width import shortfall
from support.checks import sphere


def requirement(X, b, error, failure=0.01) -> float:
    return bounds.sufficient_width(len(X), smallest_eigenvalue(shifted_ntk(X, b)), b, error, failure)


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.5])
def test_at_a_fixed_threshold_it_is_the_sufficient_width(threshold):
    X = sphere(np.random.default_rng(0), 3, 4)
    found = least_width(X, np.ones(3), threshold=threshold)
    assert found.error == bounds.initial_error_limit(np.ones(3), 0.01)
    assert found.width - 1 < requirement(X, threshold, found.error) <= found.width
    assert found.threshold == threshold


@pytest.mark.parametrize(("alpha", "error"), [(0.2, 1e-4), (0.2, 1e-3), (0.6, 0.01), (1.0, 1.0)])
def test_no_smaller_width_suffices_where_the_threshold_rises_with_it(alpha, error):
    X = sphere(np.random.default_rng(1), 2, 3)
    found = least_width(X, np.zeros(2), alpha=alpha, error=error)
    assert found.threshold == choose_threshold(int(found.width), alpha=alpha)
    assert found.width >= requirement(X, found.threshold, error)
    for smaller in np.unique(np.concatenate([found.width - np.arange(1, 20), np.geomspace(2, found.width - 1, 40)])):
        assert smaller < requirement(X, choose_threshold(smaller, alpha=alpha), error)


def test_the_exponent_is_one_over_alpha():
    """Halving the error lowers the requirement at b = 0 by 4 and that at α by about 4^(1/α)."""
    X = np.eye(3)[:2]
    at_half, at_one = (log(least_width(X, np.zeros(2), alpha=0.5, error=error).width) for error in (50.0, 100.0))
    assert (at_one - at_half) / log(4.0) == pytest.approx(2.0, abs=0.5)


def test_a_run_of_the_least_width_meets_every_assumption_and_claim_at_the_paper_s_threshold():
    X = np.eye(3)[:2]
    found = least_width(X, np.zeros(2), error=1.5e-4)
    m = int(found.width)
    assert m < 300_000
    network = ShiftedReLUNetwork.initialize(m, 3, seed=0, dtype="float64")
    assert network.threshold == found.threshold == choose_threshold(m)
    y = network.predict(X) + np.array([[1e-4], [-1e-4]])
    certificate = Certificate()
    train(network, X, y, learning_rate="theory", momentum=0, max_iter=40, tol=0, callbacks=[certificate])
    report = certificate.report()
    assert [assumption.key for assumption in report.assumptions if not assumption.met] == []
    assert report.failed == []
    assert sum(claim.holds is True for claim in report.claims) >= 20


@pytest.mark.parametrize("sign", [1, -1])
def test_equal_and_opposite_rows_raise(sign):
    X = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, sign]])
    with pytest.raises(InputError, match="rows 1 and 2"):
        least_width(X, np.ones(3))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"failure": 0.0}, "failure"),
        ({"failure": 1.0}, "failure"),
        ({"alpha": 2.0}, "alpha"),
        ({"threshold": "x"}, "threshold"),
    ],
)
def test_invalid_arguments_raise(options, name):
    with pytest.raises(InputError, match=name):
        least_width(np.eye(2), np.ones(2), **options)


def test_several_outputs_and_many_rows_raise():
    with pytest.raises(InputError, match=r"y .*got 2"):
        least_width(np.eye(2), np.ones((2, 2)))
    with pytest.raises(InputError, match=r"^X "):
        least_width(sphere(np.random.default_rng(0), 2001, 3), np.ones(2001))


def test_the_shortfall_names_targets_and_threshold_that_suffice():
    X, y = np.eye(3)[:2], np.ones(2)
    m = 20_000_000
    assert least_width(X, y).width > m >= least_width(X, y, threshold=0.0).width
    text = shortfall(X, y, m)
    nearer = bounds.sufficient_error(2, m, smallest_eigenvalue(shifted_ntk(X, choose_threshold(m))))
    assert f"below {nearer:.3g}" in text
    threshold = float(text.split("threshold=")[1].split(",")[0])
    assert least_width(X, y, threshold=0.95 * threshold).width <= m < least_width(X, y, threshold=1.1 * threshold).width


def test_an_estimator_uses_the_least_width():
    X, y = np.array([[0.7]]), np.array([3.0])
    settings = {"start": "paper", "solver": "gradient", "learning_rate": "auto", "max_iter": 2, "tol": 0}
    fitted = ShiftedReLURegressor(width="theory", threshold=0.0, dtype="float64", **settings).fit(X, y)
    rows = fitted.sphere_(X)
    assert fitted.network_.width == least_width(rows, np.zeros(1), threshold=0.0).width
    assert 1e5 < fitted.network_.width < 1e6


def test_an_estimator_refuses_with_the_number_and_the_remedies():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 4)), rng.standard_normal(30)
    with pytest.raises(InputError, match=r"width='theory' needs .*e\+\d+ neurons") as raised:
        ShiftedReLURegressor(width="theory", threshold="paper", start="paper", solver="gradient").fit(X, y)
    assert "‖y − f_0(X)‖" in str(raised.value) or "for no targets" in str(raised.value)
    assert "threshold=0" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "name"),
    [({"start": "antisymmetric"}, "start"), ({"output_scale": 2.0}, "output_scale"), ({"loss": "huber"}, "loss")],
)
def test_an_estimator_refuses_other_networks(options, name):
    settings = {"width": "theory", "start": "paper", "solver": "gradient"} | options
    with pytest.raises(InputError, match=name):
        ShiftedReLURegressor(**settings).fit(np.eye(3), np.arange(3.0))


def test_a_classifier_with_several_outputs_is_refused():
    with pytest.raises(InputError, match="one output"):
        ShiftedReLUClassifier(width="theory", start="paper", solver="gradient").fit(np.eye(6), [0, 1, 2, 0, 1, 2])
