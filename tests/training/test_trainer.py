"""``Trainer``: one iteration at a time, other rows, and ``partial_fit``."""

import copy
import pickle

import numpy as np
import pytest
from sklearn.datasets import make_classification, make_regression

from fireset import (
    Checkpoints,
    InputError,
    ShiftedReLUClassifier,
    ShiftedReLUNetwork,
    ShiftedReLURegressor,
    Trainer,
    train,
)
from fireset.engines.dense import DenseEngine
from fireset.training.solvers import GradientDescent
from fireset.training.stopping import StopReason
from support.checks import sphere

X = sphere(np.random.default_rng(0), 60, 6)
Y = np.sin(3 * X[:, 0]) + X[:, 1]
SETTINGS = [
    {},
    {"momentum": 0.9, "nesterov": True},
    {"learning_rate": 0.3, "engine": "data"},
    {"validation": (X[40:], Y[40:]), "patience": 1000},
]


def network() -> ShiftedReLUNetwork:
    return ShiftedReLUNetwork.initialize(200, 6, seed=1, threshold=1.0, dtype="float64")


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_single_steps_equal_those_of_train(settings):
    one, other = network(), network()
    expected = train(one, X[:40], Y[:40], max_iter=30, tol=0, **settings).history
    trainer = Trainer(other, X[:40], Y[:40], max_iter=30, tol=0, **settings)
    records = [trainer.step() for _ in range(31)]
    for name in ("iteration", "loss", "active_pairs", "inner_products", "refreshes", "learning_rate"):
        assert [getattr(record, name) for record in records] == expected.column(name).tolist()
    assert trainer.history == records
    result = trainer.finish()
    assert result.loss <= records[0].loss
    assert np.isfinite(other.weights).all()


def test_seconds_count_only_time_inside_steps():
    from time import sleep

    trainer = Trainer(network(), X, Y)
    trainer.step()
    sleep(0.3)
    assert trainer.step().seconds < 0.25


def test_callbacks_of_a_step_receive_the_weights_before_it():
    one = network()
    trainer, before = Trainer(one, X, Y), one.weights.copy()
    seen = []
    trainer.step([lambda progress: seen.append((progress.network.weights.copy(), progress.record))])
    assert np.array_equal(seen[0][0], before)
    assert not np.array_equal(one.weights, before)
    assert trainer.history == [seen[0][1]]


def test_steps_write_checkpoints(tmp_path):
    trainer = Trainer(network(), X, Y, checkpoint=Checkpoints(tmp_path, every=5))
    for _ in range(7):
        trainer.step()
    assert (tmp_path / "checkpoint-00000005.safetensors").exists()
    trainer.finish()
    again = Trainer(network(), X, Y, checkpoint=Checkpoints(tmp_path, every=5, resume=True))
    assert again.resumed_at == 5
    assert [again.step().loss for _ in range(2)] == [record.loss for record in trainer.history[5:]]


def test_a_failed_step_restores_the_best_weights():
    one = network()
    engine = DenseEngine()
    trainer = Trainer(one, X, Y, engine=engine)
    trainer.step()
    engine.step = lambda *_: one.weights.fill(np.nan) or 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.step()
    assert np.isfinite(one.weights).all()


def test_a_solver_can_be_passed():
    one, other = network(), network()
    expected = train(one, X, Y, learning_rate=0.2, momentum=0.5, max_iter=20)
    found = train(other, X, Y, solver=GradientDescent(0.2, 0.5), max_iter=20)
    assert np.array_equal(one.weights, other.weights)
    assert found.learning_rate == expected.learning_rate
    assert found.stop_reason is StopReason.MAX_ITER


class TestOtherRows:
    def test_the_engine_is_not_restarted_for_equal_rows(self):
        class Counting(DenseEngine):
            starts = 0

            def _prepare(self) -> None:
                self.starts += 1
                super()._prepare()

        engine = Counting()
        trainer = Trainer(network(), X, Y, engine=engine, max_iter=1, tol=0)
        trainer.run()
        for _ in range(3):
            trainer.use_rows(X, Y)
            trainer.run()
        assert engine.starts == 1
        trainer.use_rows(X[:30], Y[:30])
        trainer.run()
        assert engine.starts == 2

    def test_use_rows_equals_a_new_trainer_at_a_fixed_rate(self):
        one, other = network(), network()
        trainer = Trainer(one, X[:30], Y[:30], learning_rate=0.1, max_iter=5, tol=0)
        trainer.run()
        trainer.use_rows(X[30:], Y[30:], sample_weight=np.arange(1, 31))
        found = trainer.run()
        train(other, X[:30], Y[:30], learning_rate=0.1, max_iter=5, tol=0)
        expected = train(other, X[30:], Y[30:], learning_rate=0.1, max_iter=5, tol=0, sample_weight=np.arange(1, 31))
        assert np.array_equal(one.weights, other.weights)
        assert found.history.column("loss").tolist() == expected.history.column("loss").tolist()

    def test_other_rows_are_checked(self, tmp_path):
        trainer = Trainer(network(), X, Y, max_iter=1)
        with pytest.raises(InputError, match=r"X .*row 0 .*2"):
            trainer.use_rows(2 * X, Y)
        with pytest.raises(InputError, match=r"y .*got \(5,\)"):
            trainer.use_rows(X, Y[:5])
        kept = Trainer(network(), X, Y, checkpoint=Checkpoints(tmp_path))
        with pytest.raises(InputError, match="checkpoint"):
            kept.use_rows(X[:30], Y[:30])


class TestPartialFit:
    def test_batches_improve_the_score_on_all_rows(self):
        X, y = make_regression(600, 5, noise=1.0, random_state=0)[:2]
        model = ShiftedReLURegressor(width=500, random_state=0)
        scores = []
        for _ in range(3):
            for lo in range(0, 600, 100):
                model.partial_fit(X[lo : lo + 100], y[lo : lo + 100])
            scores.append(model.score(X, y))
        assert scores[0] < scores[1] < scores[2]
        assert scores[2] > 0.5
        assert model.n_iter_ == 18

    def test_no_batch_increases_its_loss(self):
        """A step at a rate that is too large for the batch is undone, and the next rate is chosen again."""
        X, y = make_classification(300, 5, random_state=0)
        model = ShiftedReLUClassifier(width=300, random_state=0)
        rng = np.random.default_rng(0)
        for k in range(30):
            rows = rng.permutation(300)[: rng.integers(2, 100)]
            weight = rng.uniform(0.1, 10.0 ** (k % 4), len(rows))
            model.partial_fit(X[rows], y[rows], classes=[0, 1], sample_weight=weight)
            before, after = (model.result_.history[k].loss for k in (0, -1))
            assert model.result_.loss <= before
            assert model.result_.loss == min(before, after)

    def test_continues_after_pickling_and_copying(self):
        X, y = make_regression(100, 4, random_state=0)[:2]
        model = ShiftedReLURegressor(width=200, random_state=0, dtype="float64", learning_rate=0.01).partial_fit(X, y)
        others = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
        expected = model.partial_fit(X, y).predict(X)
        for other in others:
            np.testing.assert_allclose(other.partial_fit(X, y).predict(X), expected, rtol=1e-9)

    def test_new_settings_and_a_new_fit_take_effect(self):
        X, y = make_regression(100, 4, random_state=0)[:2]
        model = ShiftedReLURegressor(width=200, random_state=0, max_iter=5)
        model.partial_fit(X, y)
        model.set_params(learning_rate=1e-6)
        model.partial_fit(X, y)
        assert model.result_.learning_rate == 1e-6
        model.fit(X, y)
        before = model.network_.weights.copy()
        model.partial_fit(X, y)
        assert not np.array_equal(model.network_.weights, before)
