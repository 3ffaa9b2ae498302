"""Mini-batches and trained output weights: comparison with NumPy on all pairs."""

import numpy as np
import pytest

from fireset import Checkpoints, InputError, ShiftedReLUNetwork, ShiftedReLURegressor, train
from fireset.training.solvers import GaussNewton, MiniBatchDescent

RNG = np.random.default_rng(11)
N, D = 90, 6
X = RNG.standard_normal((N, D))
X /= np.linalg.norm(X, axis=1, keepdims=True)
Y = np.stack([np.sin(3 * X[:, 0]), X[:, 1] * X[:, 2]], axis=1)


def network(outputs: int = 2, **options) -> ShiftedReLUNetwork:
    return ShiftedReLUNetwork.initialize(400, D, outputs, threshold=1.0, seed=4, dtype="float64", **options)


def plain_predictions(one: ShiftedReLUNetwork, rows: np.ndarray) -> np.ndarray:
    return np.maximum(rows @ one.weights.T - one.threshold, 0) @ one.output_weights / one.divisor


def plain_gradients(one: ShiftedReLUNetwork, rows: np.ndarray, residual: np.ndarray):
    """Return ∂L/∂W and ∂L/∂A, computed by NumPy."""
    excess = rows @ one.weights.T - one.threshold
    scaled = residual @ one.output_weights.T * (excess > 0) / one.divisor
    return scaled.T @ rows, np.maximum(excess, 0).T @ residual / one.divisor


@pytest.mark.parametrize("engine", ["rows", "dense"])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.8, True)])
def test_weights_are_those_of_a_dense_reference(engine, momentum, nesterov):
    rate, size, epochs = 0.4, 16, 12
    one, reference = network(), network()
    weight = RNG.uniform(0.5, 2.0, N)
    settings = {"momentum": momentum, "nesterov": nesterov, "sample_weight": weight, "learning_rate": rate}
    result = train(one, X, Y, engine=engine, batch_size=size, shuffle_seed=5, max_iter=epochs, tol=0, **settings)
    assert result.engine == engine
    velocity, losses = np.zeros_like(reference.weights), []
    for epoch in range(epochs):
        order, loss = np.random.default_rng([5, epoch]).permutation(N), 0.0
        for lo in range(0, N, size):
            rows = order[lo : lo + size]
            off = plain_predictions(reference, X[rows]) - Y[rows]
            loss += 0.5 * float((weight[rows, None] * off**2).sum())
            gradient, _ = plain_gradients(reference, X[rows], weight[rows, None] * off)
            velocity = momentum * velocity + gradient
            reference.weights -= rate * (gradient + momentum * velocity if nesterov else velocity)
        losses.append(loss)
    assert np.abs(one.weights - network().weights).max() > 0.05
    np.testing.assert_allclose(one.weights, reference.weights, rtol=0, atol=1e-9)
    np.testing.assert_allclose(result.history.column("loss")[1:], losses, rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_mini_batches_reach_the_loss_of_full_batches(dtype):
    one, other = (ShiftedReLUNetwork.initialize(600, D, 1, threshold=1.0, seed=4, dtype=dtype) for _ in range(2))
    full = train(one, X, Y[:, 0], engine="data", max_iter=60, tol=0)
    batches = train(other, X, Y[:, 0], batch_size=16, max_iter=60, tol=0)
    assert batches.loss < full.loss
    assert batches.history[-1].active_fraction == pytest.approx(full.history[-1].active_fraction, rel=0.1)


def test_validation_rows_are_not_trained_on():
    one, other = network(), network()
    settings = {"batch_size": 20, "max_iter": 4, "tol": 0, "learning_rate": 0.3}
    result = train(one, X[:60], Y[:60], validation=(X[60:], Y[60:]), **settings)
    assert result.best_iteration > 0
    train(other, X[:60], Y[:60], **{**settings, "max_iter": result.best_iteration})
    best = min(record.validation_loss for record in result.history)
    expected = 0.5 * float(((plain_predictions(one, X[60:]) - Y[60:]) ** 2).sum())
    assert best == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(one.weights, other.weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, momentum):
    settings = {"batch_size": 16, "max_iter": 9, "tol": 0, "momentum": momentum}
    whole, cut = network(), network()
    train(whole, X, Y, checkpoint=Checkpoints(tmp_path / "whole", every=2), **settings)
    stop = [lambda progress: progress.record.iteration == 5]
    train(network(), X, Y, checkpoint=Checkpoints(tmp_path / "cut", every=2), callbacks=stop, **settings)
    resumed = train(cut, X, Y, checkpoint=Checkpoints(tmp_path / "cut", every=2, resume=True), **settings)
    assert resumed.resumed_at == 4
    assert np.array_equal(cut.weights, whole.weights)


def test_a_rate_that_is_too_large_is_lowered():
    one = network()
    solver = MiniBatchDescent(16)
    result = train(one, X, Y, solver=solver, max_iter=1, tol=0)
    chosen = result.learning_rate
    again = MiniBatchDescent(16)
    again._batch_rate = lambda: 50 * chosen
    result = train(network(), X, Y, solver=again, max_iter=40, tol=0)
    assert result.learning_rate < 50 * chosen
    assert result.loss < 0.5 * result.history[0].loss


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size must be"),
        ({"batch_size": 8, "shuffle_seed": -1}, "shuffle_seed must be"),
        ({"batch_size": 8, "engine": "data"}, "`engine`.*batch_size, got 'data'"),
        ({"batch_size": 8, "solver": "gauss-newton"}, "batch_size.*solver='gradient'"),
        ({"batch_size": 8, "learning_rate": "theory"}, "batches"),
        ({"batch_size": 8, "trained_outputs": True}, "trained_outputs.*batches"),
        ({"trained_outputs": 0.5}, "trained_outputs.*solver='gradient'.*got 0.5"),
    ],
)
def test_mistakes(settings, message):
    with pytest.raises(InputError, match=message):
        train(network(), X, Y, **settings)


class TestTrainedOutputs:
    @pytest.mark.parametrize("engine", ["data", "dense"])
    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_both_layers_are_those_of_a_dense_reference(self, engine, momentum):
        rate = 0.05
        one, reference = network(), network()
        train(one, X, Y, engine=engine, trained_outputs=True, learning_rate=rate, momentum=momentum, max_iter=40, tol=0)
        velocities = [np.zeros_like(reference.weights), np.zeros_like(reference.output_weights)]
        for _ in range(40):
            gradients = plain_gradients(reference, X, plain_predictions(reference, X) - Y)
            velocities = [momentum * v + g for v, g in zip(velocities, gradients, strict=True)]
            reference.weights -= rate * velocities[0]
            reference.output_weights -= rate * velocities[1]
        assert np.abs(one.output_weights - network().output_weights).max() > 0.01
        np.testing.assert_allclose(one.weights, reference.weights, rtol=0, atol=1e-9)
        np.testing.assert_allclose(one.output_weights, reference.output_weights, rtol=0, atol=1e-9)

    def test_the_automatic_rate_descends(self):
        """Also if the output layer dominates the kernel."""
        one = ShiftedReLUNetwork.initialize(300, D, 2, threshold=-1.0, seed=1, dtype="float64")
        result = train(one, X, Y, trained_outputs=True, max_iter=100, tol=0)
        losses = result.history.column("loss")
        assert losses[-1] < 0.2 * losses[0]
        assert result.engine in ("data", "dense")

    def test_saved_and_loaded(self, tmp_path):
        one = network()
        train(one, X, Y, trained_outputs=True, max_iter=5, tol=0)
        one.save(tmp_path / "model.safetensors")
        again = ShiftedReLUNetwork.load(tmp_path / "model.safetensors")
        assert not again.has_sign_outputs
        assert np.array_equal(again.output_weights, one.output_weights)
        np.testing.assert_array_equal(again.predict(X), one.predict(X))
        with pytest.raises(InputError, match="outputs"):
            train(again, X, Y, solver=GaussNewton())

    def test_a_diverged_run_is_rolled_back(self):
        one = network()
        before = one.copy()
        with pytest.warns(RuntimeWarning, match="grew beyond all bounds"):
            train(one, X, Y, trained_outputs=True, learning_rate=50.0, max_iter=60, tol=0)
        assert np.array_equal(one.output_weights, before.output_weights)
        assert np.array_equal(one.weights, before.weights)

    @pytest.mark.parametrize(
        "settings",
        [
            {"momentum": 0.9},
            {"momentum": 0.0, "validation": (X[:5], Y[:5] + 3.0)},
            {"solver": "gauss-newton", "ridge": 1e-3},
            {"solver": "gauss-newton", "ridge": 1e-6, "loss": "absolute_error"},
        ],
    )
    def test_a_resumed_run_ends_with_the_same_bits(self, tmp_path, settings):
        options = {"engine": "data", "trained_outputs": True, "tol": 0, **settings}
        whole, parts = network(), network()
        every = Checkpoints(tmp_path / "whole", every=2)
        expected = train(whole, X, Y, max_iter=9, checkpoint=every, **options)
        train(parts, X, Y, max_iter=4, checkpoint=Checkpoints(tmp_path / "parts", every=2), **options)
        again = network()
        resume = Checkpoints(tmp_path / "parts", every=2, resume=True)
        found = train(again, X, Y, max_iter=9, checkpoint=resume, **options)
        assert len(found.history) == len(expected.history)
        assert found.history.column("loss").tolist() == expected.history.column("loss").tolist()
        assert np.array_equal(again.output_weights, whole.output_weights)
        assert np.array_equal(again.weights, whole.weights)
        assert not again.has_sign_outputs

    def test_a_checkpoint_of_another_scale_is_refused(self, tmp_path):
        options = {"solver": "gauss-newton", "ridge": 1e-3, "max_iter": 3, "tol": 0}
        train(network(), X, Y, trained_outputs=0.5, checkpoint=Checkpoints(tmp_path, every=1), **options)
        resume = Checkpoints(tmp_path, every=1, resume=True)
        with pytest.raises(InputError, match=r"trained_outputs"):
            train(network(), X, Y, trained_outputs=2.0, checkpoint=resume, **options)


def test_partial_fit_reuses_the_lists_of_known_rows():
    """Rows are recognized in any order."""
    model = ShiftedReLURegressor(500, random_state=0, dtype="float64", solver="gradient", bias=1.0, column_scales=None)
    table, y = RNG.standard_normal((60, 4)), RNG.standard_normal(60)
    for epoch in range(6):
        order = np.random.default_rng(epoch).permutation(60)
        for lo in range(0, 60, 20):
            rows = order[lo : lo + 20]
            model.partial_fit(table[rows], y[rows])
    assert model.n_iter_ == 18
    _, trainer = model._batches
    assert trainer.engine.kept_rows == 60
    assert trainer.engine._lists.n_listed == 60
    assert model.score(table, y) > 0.3


def test_estimators_with_batch_size():
    table = RNG.standard_normal((300, 4))
    y = np.sin(2 * table[:, 0])
    model = ShiftedReLURegressor(2000, random_state=0, batch_size=32, max_iter=40, bias=1.0, column_scales=None)
    model.fit(table, y)
    assert (model.solver_, model.result_.engine) == ("gradient", "rows")
    assert model.score(table, y) > 0.9
    with pytest.raises(InputError, match=r"batch_size.*solver='gradient'"):
        ShiftedReLURegressor(100, batch_size=32, solver="gauss-newton").fit(table, y)
