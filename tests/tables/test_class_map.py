"""Logistic regression of classes on their scores, and candidates of the settings judged with it."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fireset.tables.class_map import apply_class_map, fit_class_map, log_probabilities
from fireset.tables.kernel_fit import FitRows
from fireset.tables.settings import _Losses


def masked_scores(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores whose second class has never the largest one, and class codes."""
    rng = np.random.default_rng(0)
    t = rng.uniform(-1, 1, n)
    scores = np.stack([-t, -0.7 - t**2, t], axis=1) + 0.02 * rng.standard_normal((n, 3))
    return scores, np.digitize(t + 0.1 * rng.standard_normal(n), [-0.33, 0.33])


def log_loss(logits: np.ndarray, codes: np.ndarray) -> float:
    return float(-log_probabilities(logits)[np.arange(len(codes)), codes].mean())


def test_many_steps_are_logistic_regression():
    scores, codes = masked_scores(600)
    least = LogisticRegression(C=1e6, max_iter=2000).fit(scores, codes).predict_log_proba(scores)
    found = apply_class_map(fit_class_map(scores, codes, np.ones(600), steps=3000), scores)
    assert log_loss(found, codes) == pytest.approx(log_loss(least, codes), rel=1e-3)


@pytest.mark.parametrize("shift", [0.0, 50.0])
def test_steps_reduce_the_log_loss(shift):
    scores, codes = masked_scores(600)
    scores = scores + shift  # the softmax does not depend on it
    maps = [fit_class_map(scores, codes, np.ones(600), steps=k) for k in (0, 10, 40)]
    losses = [log_loss(apply_class_map(one, scores), codes) for one in maps]
    assert losses[0] > 1.2 * losses[1] > 1.2 * losses[2]


def test_weights_are_repeated_rows():
    scores, codes = masked_scores(90)
    weight = np.random.default_rng(1).integers(0, 4, 90)
    once = fit_class_map(scores, codes, weight.astype(float), steps=20)
    many = fit_class_map(np.repeat(scores, weight, 0), np.repeat(codes, weight), np.ones(weight.sum()), steps=20)
    np.testing.assert_allclose(once, many, rtol=1e-6, atol=1e-9)


def test_candidates_are_judged_as_their_scores_will_be_used():
    """A candidate that masks a class and orders the rows is better than one of higher accuracy that does not."""
    ordered, codes = masked_scores(600)
    targets = 2.0 * np.eye(3)[codes] - 1.0
    rng = np.random.default_rng(2)
    guessed = np.where(rng.random(600) < 0.72, codes, rng.integers(0, 3, 600))
    noisy = 2.0 * np.eye(3)[guessed] - 1.0
    assert (noisy.argmax(axis=1) == codes).mean() > (ordered.argmax(axis=1) == codes).mean() + 0.05
    judge = _Losses(FitRows(np.zeros((600, 1), np.float32), targets, np.ones(600)), classes=True)
    assert judge(ordered).mean() < 0.8 * judge(noisy).mean()


def test_a_class_map_without_support_is_not_used():
    """Rows that do not determine a map judge it: with scores of noise, the loss is that of the scores."""
    rng = np.random.default_rng(3)
    codes, scores = rng.integers(0, 6, 600), 0.1 * rng.standard_normal((600, 6))
    judge = _Losses(FitRows(np.zeros((600, 1), np.float32), 2.0 * np.eye(6)[codes] - 1.0, np.ones(600)), classes=True)
    assert judge(scores).mean() == pytest.approx(log_loss(scores, codes), abs=1e-9)
