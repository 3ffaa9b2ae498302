"""The linear map of class scores finds masked classes, is used only where it helps, and is stored and exported."""

import numpy as np
import onnxruntime
import pytest
from sklearn.datasets import make_gaussian_quantiles

import fireset
from fireset import ShiftedReLUClassifier
from fireset.estimators.calibration import Calibration
from fireset.estimators.class_mixing import ClassMixing


@pytest.fixture(scope="module")
def shells():
    """Return rows of three concentric shells of equal size, their classes, and a fitted classifier."""
    X, y = make_gaussian_quantiles(n_samples=900, n_features=4, n_classes=3, random_state=0)
    model = ShiftedReLUClassifier(width=3000, random_state=0, column_scales=None).fit(X[:600], y[:600])
    return X, y, model


def test_a_class_between_two_others_is_found(shells):
    X, y, model = shells
    assert model.mixing_ is not None
    plain = (model._outputs(X[600:]) + model.offset_).argmax(axis=1)
    assert model.score(X[600:], y[600:]) > (plain == y[600:]).mean() + 0.03


def test_labels_scores_and_probabilities_agree(shells):
    X, _, model = shells
    labels, p = model.predict_with_proba(X)
    np.testing.assert_array_equal(model.classes_[model.decision_function(X).argmax(axis=1)], labels)
    np.testing.assert_array_equal(model.classes_[p.argmax(axis=1)], labels)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)


def test_saved_and_exported_models_predict_the_same(shells, tmp_path):
    X, _, model = shells
    fireset.save(model, tmp_path / "model.safetensors")
    again = fireset.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    graph = model.to_onnx().SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    p = np.asarray(session.run(None, {session.get_inputs()[0].name: X})[1])
    np.testing.assert_allclose(p, model.predict_proba(X), atol=1e-2)  # of a float32 network with κ = 1000


def masked_scores(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores whose second class has never the largest one, and class codes."""
    rng = np.random.default_rng(0)
    t = rng.uniform(-1, 1, n)
    codes = np.digitize(t, [-0.33, 0.33])
    scores = np.stack([-t, 0.3 - t**2 - 1.0, t], axis=1) + 0.02 * rng.standard_normal((n, 3))
    return scores, codes


def test_learned_from_masked_scores():
    scores, codes = masked_scores(300)
    found = ClassMixing.learn(scores, codes, np.ones(300), Calibration.learn(scores, codes, np.ones(300)))
    assert found is not None
    mixing, gain = found
    before, after = (values.argmax(axis=1) == codes for values in (scores, mixing(scores)))
    assert gain == pytest.approx(after.mean() - before.mean(), abs=0.03)
    assert gain > 0.2


@pytest.mark.parametrize("case", ["two classes", "few rows", "right already", "noise"])
def test_not_used_without_a_clear_gain(case):
    scores, codes = masked_scores(300)
    if case == "two classes":
        scores, codes = scores[:, :1], (codes > 0).astype(int)
    elif case == "few rows":
        scores, codes = scores[:20], codes[:20]
    elif case == "right already":
        scores = 2.0 * np.eye(3)[codes] - 1.0
    else:
        scores = np.random.default_rng(1).standard_normal((300, 3)) * 0.3
    weight = np.ones(len(codes))
    assert ClassMixing.learn(scores, codes, weight, Calibration.learn(scores, codes, weight)) is None


def test_rows_without_weight_do_not_count():
    scores, codes = masked_scores(300)
    weight = np.ones(600)
    weight[300:] = 0.0
    doubled, both = np.vstack([scores, -scores]), np.tile(codes, 2)
    calibration = Calibration.learn(scores, codes, np.ones(300))
    with_zeros = ClassMixing.learn(doubled, both, weight, calibration)
    assert with_zeros is not None
    assert (with_zeros[0](scores).argmax(axis=1) == codes).mean() > 0.9
