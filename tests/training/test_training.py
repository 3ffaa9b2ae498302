"""The training loop: comparison with NumPy, learning rates, stopping, errors, signals and invalid input."""

import os
import re
import signal
from math import sqrt

import numpy as np
import pytest
from scipy.special import expit, softmax

from fireset import InputError, ShiftedReLUNetwork, train
from fireset.engines import create
from fireset.theory import shifted_ntk, smallest_eigenvalue
from fireset.training.step_size import StepSize
from fireset.training.stopping import StopReason, TimeLimit
from support.checks import sphere
from support.problems import hard_cases

ENGINES = ["dense", "data"]
STEPS = {
    "plain": {},
    "heavy ball": {"momentum": 0.9},
    "Nesterov": {"momentum": 0.8, "nesterov": True},
}
LOSSES = {
    "squared_error": lambda u, y: u - y,
    "log_loss": lambda u, y: (expit(u) if u.shape[1] == 1 else softmax(u, axis=1)) - y,
}


def make(n=30, d=5, width=200, outputs=1, threshold=0.8, seed=0, dtype="float64"):
    """Return a network, unit rows and targets, which are one-hot for several outputs."""
    rng = np.random.default_rng(seed)
    X = sphere(rng, n, d)
    y = rng.standard_normal((n, 1)) if outputs == 1 else np.eye(outputs)[rng.integers(0, outputs, n)]
    network = ShiftedReLUNetwork.initialize(width, d, outputs, threshold=threshold, seed=seed, dtype=dtype)
    return network, X, y


def copied(network: ShiftedReLUNetwork) -> ShiftedReLUNetwork:
    return ShiftedReLUNetwork(network.weights.copy(), network.output_weights, network.threshold)


def reference(network, X, y, rate, iterations, residual, weight=1.0, momentum=0.0, nesterov=False):
    """Return the weights after full-batch descent, computed on all pairs."""
    W, output_weights, scale = network.weights.copy(), network.output_weights, sqrt(network.width)
    V = np.zeros_like(W)
    for _ in range(iterations):
        pre = X @ W.T - network.threshold
        e = residual(np.maximum(pre, 0.0) @ output_weights / scale, y) * np.reshape(weight, (-1, 1))
        G = ((e @ output_weights.T) * (pre > 0)).T @ X / scale
        V = momentum * V + G
        W -= rate * (G + momentum * V if nesterov else V)
    return W


def squared_error(network, X, y, weight=1.0) -> float:
    return 0.5 * float(np.sum(np.reshape(weight, (-1, 1)) * (network.predict(X) - y) ** 2))


# Gradient descent


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("engine", ENGINES)
def test_training_is_gradient_descent(engine, loss, outputs, step):
    network, X, y = make(outputs=outputs)
    if loss == "log_loss" and outputs == 1:
        y = (y > 0) * 1.0
    weight = np.random.default_rng(1).random(len(X)) + 0.5
    expected = reference(network, X, y, 0.05, 25, LOSSES[loss], weight, **STEPS[step])
    before = network.weights.copy()
    result = train(
        network,
        X,
        y,
        engine=engine,
        loss=loss,
        learning_rate=0.05,
        max_iter=25,
        tol=0,
        sample_weight=weight,
        **STEPS[step],
    )
    assert result.best_iteration == 25
    assert result.engine == engine
    assert result.learning_rate == 0.05
    assert np.abs(before - expected).max() > 1e-3
    np.testing.assert_allclose(network.weights, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rate", [0.05, "auto"])
@pytest.mark.parametrize("step", STEPS)
def test_integer_weights_are_repeated_rows(engine, rate, step):
    network, X, y = make(n=20)
    counts = np.arange(20) % 3
    other = copied(network)
    options = {"engine": engine, "learning_rate": rate, "max_iter": 20, "tol": 0, **STEPS[step]}
    weighted = train(network, X, y, sample_weight=counts, **options)
    repeated = train(other, np.repeat(X, counts, axis=0), np.repeat(y, counts, axis=0), **options)
    np.testing.assert_allclose(weighted.history.column("loss"), repeated.history.column("loss"), rtol=1e-9, atol=1e-12)
    assert weighted.learning_rate == pytest.approx(repeated.learning_rate, rel=1e-9)
    np.testing.assert_allclose(network.weights, other.weights, rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("step", STEPS)
def test_a_common_factor_of_all_weights_changes_only_the_rate(engine, step):
    first, X, y = make()
    runs = []
    for weight in (1.0, 1e-31):
        network = copied(first)
        runs.append(train(network, X, y, engine=engine, sample_weight=np.full(30, weight), max_iter=60, **STEPS[step]))
    expected, scaled = (result.history.column("loss") for result in runs)
    assert scaled[-1] < 0.1 * scaled[0]
    np.testing.assert_allclose(scaled / 1e-31, expected, rtol=1e-6)


def test_targets_may_be_flat_and_rows_may_be_read_only():
    network, X, y = make()
    other = copied(network)
    X.flags.writeable = False
    train(network, X, y, learning_rate=0.1, max_iter=3, tol=0)
    train(other, X.tolist(), y[:, 0].tolist(), learning_rate=0.1, max_iter=3, tol=0)
    assert np.array_equal(network.weights, other.weights)


def test_float32_follows_float64():
    exact, X, y = make()
    rough, _, _ = make(dtype="float32")
    for network in (exact, rough):
        train(network, X, y, learning_rate=0.1, max_iter=30, tol=0)
    np.testing.assert_allclose(rough.weights, exact.weights, rtol=0, atol=1e-4)


# The learning rate


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("case", hard_cases())
def test_auto_descends_monotonically(case, loss):
    problem = hard_cases()[case]
    y = problem.y if loss == "squared_error" else np.eye(problem.y.shape[1])[problem.y.argmax(axis=1)]
    if loss == "log_loss" and y.shape[1] == 1:
        y = (problem.y > 0) * 1.0
    network = problem.network()
    result = train(network, problem.X, y, loss=loss, max_iter=60, tol=0)
    losses, rates = result.history.column("loss"), result.history.column("learning_rate")
    grown = np.flatnonzero(np.diff(losses) > 1e-5 * losses[:-1] + 1e-10 * losses[0])
    if case == "two neurons":  # one more active pair changes the kernel: the loss may grow, and the rate is halved
        assert (rates[np.minimum(grown + 2, 60)] <= 0.5 * rates[grown]).all()
    else:
        assert len(grown) == 0
        assert len(set(rates)) == 1
    if case != "nothing fires":
        assert losses[-1] < losses[0]
    assert losses.min() <= result.loss <= losses.min() * (1 + 1e-4)


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("step", ["plain", "heavy ball", "Nesterov"])
@pytest.mark.parametrize("times", [10, 1e4])
def test_auto_halves_a_rate_that_is_too_large(monkeypatch, engine, step, times):
    network, X, y = make(threshold=0.2)
    choose = StepSize.choose
    monkeypatch.setattr(StepSize, "choose", lambda *arguments: times * choose(*arguments))
    result = train(network, X, y, engine=engine, max_iter=400, tol=0, **STEPS[step])
    rates = result.history.column("learning_rate")
    halvings = np.log2(rates[0] / result.learning_rate)
    assert halvings >= 1
    assert halvings == round(halvings)
    assert (np.diff(rates) <= 0).all()
    assert result.loss < 0.1 * result.history[0].loss
    assert squared_error(network, X, y) == pytest.approx(result.loss)
    assert np.isfinite(network.weights).all()


def test_auto_is_the_inverse_of_curvature_times_top_eigenvalue():
    network, X, y = make(n=12)
    y = (y > 0) * 1.0
    active = network.fire_sets(X).toarray() * 1.0
    top = np.linalg.eigvalsh((X @ X.T) * (active @ active.T) / network.width)[-1]
    for loss, curvature in (("squared_error", 1.0), ("log_loss", 0.25)):
        rate = train(copied(network), X, y, loss=loss, max_iter=0).learning_rate
        assert rate * curvature * top == pytest.approx(1.0, rel=0.02)


def test_auto_where_nothing_fires():
    problem = hard_cases()["nothing fires"]
    network = problem.network()
    before = network.weights.copy()
    result = train(network, problem.X, problem.y, max_iter=20)
    assert result.learning_rate == 1.0
    assert result.stop_reason == "tol"
    assert np.array_equal(network.weights, before)


def test_theory_is_the_rate_of_the_paper_and_descends():
    network, X, y = make(n=10)
    smallest = smallest_eigenvalue(shifted_ntk(X, network.threshold))
    result = train(network, X, y, learning_rate="theory", max_iter=30, tol=0)
    assert result.learning_rate == pytest.approx(smallest / (4 * 10**2), rel=1e-12)
    assert (np.diff(result.history.column("loss")) < 0).all()


def test_theory_refuses_equal_rows():
    network, _, y = make(n=10)
    X = np.concatenate([np.eye(5), np.eye(5)])
    with pytest.raises(InputError, match=r"learning_rate='theory'.*got .*two rows are equal.*'auto'"):
        train(network, X, y, learning_rate="theory")


def test_theory_refuses_equal_rows_whose_norm_is_rounded():
    for seed in range(30):
        network, X, y = make(n=6, seed=seed, dtype="float32")
        with pytest.raises(InputError, match="rows"):
            train(network, X[[0, *range(6)]], y[[0, *range(6)]], learning_rate="theory", max_iter=0)


def test_theory_refuses_many_rows(monkeypatch):
    monkeypatch.setattr("fireset.training.step_size._MAX_ROWS_FOR_THEORY", 9)
    network, X, y = make(n=10)
    with pytest.raises(InputError, match=r"learning_rate='theory'.*9 rows, got 10"):
        train(network, X, y, learning_rate="theory")


def test_theory_ignores_validation_rows():
    network, X, y = make(n=10)
    alone = train(copied(network), X[:6], y[:6], learning_rate="theory", max_iter=0)
    watched = train(network, X[:6], y[:6], learning_rate="theory", max_iter=0, validation=(X[6:], y[6:]))
    assert watched.learning_rate == pytest.approx(alone.learning_rate, rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rate", [50.0, 1e4, 1e30])
def test_divergence_warns_and_keeps_a_network_no_worse_than_the_first(engine, dtype, rate):
    network, X, y = make(threshold=0.2, dtype=dtype)
    first = squared_error(network, X, y)
    with pytest.warns(RuntimeWarning, match=r"the loss .* at learning_rate=") as caught:
        result = train(network, X, y, engine=engine, learning_rate=rate, max_iter=200)
    assert f"iteration {result.best_iteration}" in str(caught[-1].message)
    assert caught[-1].filename == __file__
    assert result.stop_reason == "diverged"
    assert len(result.history) < 200
    assert np.isfinite(network.weights).all()
    kept = squared_error(network, X, y)
    assert kept <= first * (1 + 1e-6)
    assert kept == pytest.approx(result.loss, rel=1e-5)


# Stopping


def test_tol_zero_runs_all_iterations():
    problem = hard_cases()["nothing fires"]
    result = train(problem.network(), problem.X, problem.y, max_iter=37, tol=0)
    assert result.stop_reason == "max_iter"
    assert result.history.column("iteration").tolist() == list(range(38))


def test_tol_stops_when_the_loss_is_small():
    network, X, y = make(n=10, width=1000)
    result = train(network, X, y, max_iter=5000, tol=1e-3)
    losses = result.history.column("loss")
    assert result.stop_reason == "tol"
    assert losses[-1] <= 1e-3 * losses[0] < losses[-2]
    assert result.best_iteration == len(losses) - 1


def test_tol_stops_on_a_plateau():
    network, X, _ = make(n=40, d=2, width=20)
    y = np.random.default_rng(0).standard_normal((40, 1))  # noise that 20 neurons cannot fit
    result = train(network, X, y, max_iter=50_000, tol=1e-4)
    losses = result.history.column("loss")
    assert result.stop_reason == "tol"
    assert losses[-1] > 1e-4 * losses[0]
    before, now = losses[:-10].min(), losses[-10:].min()
    assert before - now <= 1e-4 * before


@pytest.mark.parametrize("solver", ["gradient", "gauss-newton"])
def test_an_infinite_first_loss_ends_the_run_with_a_warning(solver):
    network, X, y = make()
    network.weights *= 1e200
    with pytest.warns(RuntimeWarning, match=r"loss.* inf "):
        result = train(network, X, y, solver=solver, max_iter=20)
    assert result.stop_reason == "diverged"
    assert len(result.history) == 1


def test_no_iterations_change_nothing():
    network, X, y = make()
    before = network.weights.copy()
    result = train(network, X, y, max_iter=0)
    assert (len(result.history), result.best_iteration, result.stop_reason) == (1, 0, "max_iter")
    assert result.loss == pytest.approx(squared_error(network, X, y), rel=1e-12)
    assert np.array_equal(network.weights, before)


# Validation


def train_with_validation(engine="dense", patience=1000, max_iter=60, **options):
    """Fit noise, with noise as validation rows; return the records and weights of each iteration, too."""
    network, X, y = make(n=40, width=400)
    seen = []

    def record(progress):
        seen.append((progress.record, progress.network.weights.copy()))

    result = train(
        network,
        X[:25],
        y[:25],
        engine=engine,
        learning_rate=0.5,
        max_iter=max_iter,
        tol=0,
        validation=(X[25:], y[25:]),
        patience=patience,
        callbacks=[record],
        **options,
    )
    return network, X, y, result, seen


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("step", STEPS)
def test_the_weights_of_the_best_validation_iteration_are_kept(engine, step):
    network, X, y, result, seen = train_with_validation(engine, **STEPS[step])
    held_out = result.history.column("validation_loss").astype(float)
    best = int(np.argmin(held_out))
    assert 0 < best < len(held_out) - 1
    assert result.best_iteration == best
    assert np.array_equal(network.weights, seen[best][1])
    assert result.loss == result.history[best].loss
    assert squared_error(network, X[25:], y[25:]) == pytest.approx(held_out[best], rel=1e-12)
    for record, weights in seen[::10]:
        then = ShiftedReLUNetwork(weights, network.output_weights, network.threshold)
        assert record.validation_loss == pytest.approx(squared_error(then, X[25:], y[25:]), rel=1e-12)
        assert record.loss == pytest.approx(squared_error(then, X[:25], y[:25]), rel=1e-12)


def test_patience_stops():
    *_, result, _ = train_with_validation(patience=5)
    assert result.stop_reason == "patience"
    assert result.history[-1].iteration == result.best_iteration + 5
    *_, longer, _ = train_with_validation(patience=6)
    assert longer.history[-1].iteration >= result.history[-1].iteration + 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rate", [0.5, "auto"])
@pytest.mark.parametrize("step", STEPS)
def test_validation_rows_do_not_affect_the_weights(engine, rate, step):
    network, X, y = make(n=40)
    trails = []
    for validation in (None, (X[25:], y[25:])):
        trail = []
        train(
            copied(network),
            X[:25],
            y[:25],
            engine=engine,
            learning_rate=rate,
            max_iter=30,
            tol=0,
            validation=validation,
            patience=1000,
            callbacks=[lambda p, trail=trail: trail.append(p.network.weights.copy())],
            **STEPS[step],
        )
        trails.append(trail)
    np.testing.assert_allclose(trails[1], trails[0], rtol=0, atol=1e-10)


# Callbacks, errors, Ctrl-C


def test_callbacks_are_called_in_every_iteration():
    network, X, y = make()
    seen = []
    result = train(network, X, y, max_iter=7, tol=0, callbacks=[seen.append])
    assert [p.record for p in seen] == list(result.history)
    assert all(p.network is network and p.max_iter == 7 for p in seen)
    assert seen[0].predictions.shape == seen[0].residual.shape == y.shape
    np.testing.assert_allclose(seen[3].residual, seen[3].predictions - y, rtol=0, atol=1e-12)
    assert seen[0].engine.name == result.engine


def test_a_callback_can_stop_training_and_all_are_called():
    network, X, y = make()
    calls = []
    result = train(
        network,
        X,
        y,
        max_iter=50,
        tol=0,
        callbacks=[lambda p: p.record.iteration == 4, lambda p: calls.append(p.record.iteration)],
    )
    assert result.stop_reason is StopReason.CALLBACK
    assert calls == [0, 1, 2, 3, 4]
    assert result.best_iteration == 4
    assert squared_error(network, X, y) == pytest.approx(result.history[4].loss)


def test_a_time_limit_is_a_stop_reason_of_its_own():
    network, X, y = make()
    for seconds, callbacks, reason in (
        (0.0, [], StopReason.TIME_LIMIT),
        (1e6, [lambda _: True], StopReason.CALLBACK),
        (0.0, [lambda _: True], StopReason.TIME_LIMIT),
    ):
        result = train(network, X, y, max_iter=50, tol=0, callbacks=[TimeLimit(seconds), *callbacks])
        assert result.stop_reason is reason
        assert len(result.history) == 1


@pytest.mark.parametrize("error", [RuntimeError("from a callback"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_exception_of_a_callback_leaves_the_weights_of_an_iteration(engine, error):
    network, X, y = make()
    seen = []

    def fail(progress):
        seen.append(progress.network.weights.copy())
        if progress.record.iteration == 12:
            raise error

    with pytest.raises(type(error)) as caught:
        train(network, X, y, engine=engine, max_iter=50, tol=0, callbacks=[fail])
    assert caught.value is error
    assert any(np.array_equal(network.weights, weights) for weights in seen)
    first = ShiftedReLUNetwork(seen[0], network.output_weights, network.threshold)
    assert squared_error(network, X, y) <= squared_error(first, X, y)


def test_a_failed_step_is_undone():
    network, X, y = make()
    engine = create("dense")
    whole, steps = engine.step, []

    def half(residual, step):
        whole(residual, step)
        steps.append(None)
        if len(steps) == 9:
            network.weights[::2] = np.nan
            raise MemoryError

    engine.step = half
    first = squared_error(network, X, y)
    with pytest.raises(MemoryError):
        train(network, X, y, engine=engine, max_iter=50, tol=0)
    assert np.isfinite(network.weights).all()
    assert squared_error(network, X, y) <= first


@pytest.fixture
def python_handles_ctrl_c():
    """Install the default handler of Python in place of that of the test runner."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("python_handles_ctrl_c")
@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_ends_after_the_iteration_and_keeps_the_best_network(engine):
    network, X, y = make()

    def interrupt(progress):
        if progress.record.iteration == 6:
            press_ctrl_c()

    result = train(network, X, y, engine=engine, max_iter=500, tol=0, callbacks=[interrupt])
    assert result.stop_reason == "interrupted"
    assert len(result.history) == 7
    assert result.best_iteration == 6
    assert squared_error(network, X, y) == pytest.approx(result.history[6].loss)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("python_handles_ctrl_c")
def test_a_second_ctrl_c_ends_at_once():
    network, X, y = make()
    calls = []

    def interrupt_twice(_):
        calls.append(None)
        if len(calls) == 3:
            press_ctrl_c()
            press_ctrl_c()

    with pytest.raises(KeyboardInterrupt):
        train(network, X, y, max_iter=500, tol=0, callbacks=[interrupt_twice])
    assert len(calls) == 3
    assert np.isfinite(network.weights).all()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("python_handles_ctrl_c")
def test_the_handler_is_restored_after_success_and_error():
    network, X, y = make()
    train(network, X, y, max_iter=1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(ZeroDivisionError):
        train(network, X, y, max_iter=1, callbacks=[lambda _: 1 // 0 == 0])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_custom_handler_is_not_replaced():
    network, X, y = make()
    caught = []
    before = signal.signal(signal.SIGINT, lambda *_: caught.append("custom"))
    custom = signal.getsignal(signal.SIGINT)
    try:
        result = train(
            network,
            X,
            y,
            max_iter=5,
            tol=0,
            callbacks=[lambda p: press_ctrl_c() if p.record.iteration == 2 else None],
        )
        assert signal.getsignal(signal.SIGINT) is custom
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught == ["custom"]
    assert result.stop_reason == "max_iter"


# History


@pytest.mark.parametrize("engine", ENGINES)
def test_history_columns(engine):
    network, X, y = make()
    active = []
    result = train(
        network,
        X,
        y,
        engine=engine,
        learning_rate=0.1,
        max_iter=10,
        tol=0,
        callbacks=[lambda p: active.append(p.network.fire_sets(X).nnz)],
    )
    history = result.history
    assert history.column("iteration").tolist() == list(range(11))
    assert history.column("active_pairs").tolist() == active
    np.testing.assert_allclose(history.column("active_fraction"), np.array(active) / (30 * 200))
    assert set(history.column("learning_rate")) == {0.1}
    assert (np.diff(history.column("seconds")) > 0).all()
    assert (history.column("inner_products") >= history.column("active_pairs")).all()
    assert history.column("validation_loss").tolist() == [None] * 11
    assert result.start_seconds > 0
    assert result.compile_seconds >= 0
    if engine == "dense":
        assert set(history.column("inner_products")) == {30 * 200}
        assert set(history.column("refreshes")) == {0}
    with pytest.raises(InputError, match=r"`name`.*missed_pairs, got 'accuracy'"):
        history.column("accuracy")


def test_history_as_dicts():
    network, X, y = make()
    history = train(network, X, y, max_iter=3, tol=0).history
    rows = history.to_dicts()
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3]
    assert [row["loss"] for row in rows] == history.column("loss").tolist()
    assert set(rows[0]) == {
        "iteration",
        "loss",
        "validation_loss",
        "active_pairs",
        "active_fraction",
        "inner_products",
        "refreshes",
        "learning_rate",
        "seconds",
        "oracle_queries",
        "missed_pairs",
    }


# Rows of any norm


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("zero_row", [False, True])
def test_any_norm_stays_exact(step, zero_row):
    network, X, y = make(n=40, threshold=1.0)
    X = X * np.geomspace(0.1, 10.0, 40)[:, None]
    if zero_row:
        X[7] = 0.0
    trails = {}
    for engine in ENGINES:
        trail = trails[engine] = []

        def record(progress, trail=trail):
            trail.append((progress.network.weights.copy(), progress.engine.fire_sets()))

        train(
            copied(network),
            X,
            y,
            engine=engine,
            max_iter=60,
            tol=0,
            any_norm=True,
            callbacks=[record],
            **STEPS[step],
        )
    for (dense, expected), (data, found) in zip(trails["dense"], trails["data"], strict=True):
        assert np.array_equal(found.indptr, expected.indptr)
        assert np.array_equal(found.indices, expected.indices)
        np.testing.assert_allclose(data, dense, rtol=0, atol=1e-9)


# Refused input


def test_rows_of_other_norms_are_refused():
    network, X, y = make()
    X[4] *= 2.5
    with pytest.raises(InputError, match=r"X .*norm 1, row 4 has 2.5; .*any_norm=True"):
        train(network, X, y)
    X[2] = 0.0
    with pytest.raises(InputError, match=r"X .*norm 1, row 2 has 0;"):
        train(network, X, y)
    with pytest.raises(InputError, match=r"validation X .*norm 1, row 4 has 2.5;"):
        train(network, X[5:], y[5:], validation=(X[[0, 1, 3, 5, 4]], y[:5]))


def refused(change) -> str:
    """Return the message for invalid arguments; the network must be unchanged."""
    network, X, y = make(n=6)
    before = network.weights.copy()
    arguments = {"X": X, "y": y}
    arguments.update(change(X, y))
    with pytest.raises(InputError) as caught:
        train(network, **arguments)
    assert np.array_equal(network.weights, before)
    return str(caught.value)


def replaced(array, value, row=2):
    array = array.copy()
    array[row, 0] = value
    return array


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, _: {"X": X[:, :4]}, r"X .*\(n, 5\), got \(6, 4\)"),
        (lambda X, _: {"X": X[:0]}, "^X .*no rows"),
        (lambda X, _: {"X": replaced(X, np.nan)}, "X holds nan in row 2, column 0"),
        (lambda _, y: {"y": y[:5]}, r"y .*\(6, 1\), got \(5, 1\)"),
        (lambda _, y: {"y": y[:5, 0]}, r"y .*\(6, 1\), got \(5,\)"),
        (lambda *_: {"y": np.ones((6, 2))}, r"y .*\(6, 1\), got \(6, 2\)"),
        (lambda _, y: {"y": replaced(y, np.nan)}, "^y .*row 2"),
        (lambda _, y: {"y": replaced(y, np.inf, 5)}, "^y .*row 5"),
        (lambda _, y: {"y": replaced(y, -1e308)}, r"y .*sum of sample_weight .*row 2 holds -1e\+308; divide y"),
        (
            lambda _, y: {"y": replaced(y, 1e100, 3), "sample_weight": np.array([1, 1, 1, 1e150, 1, 1])},
            r"y .*row 3 holds 1e\+100 at weight 1e\+150; divide y .*or sample_weight",
        ),
        (lambda X, y: {"validation": (X, replaced(y, 1e200, 4))}, r"validation y .*row 4 holds 1e\+200; divide y"),
        (lambda *_: {"y": list("abcdef")}, "^y .*numbers"),
        (lambda *_: {"y": [0, 1, 2, 0, 1, 2], "loss": "log_loss"}, "`y` .*log_loss.*got 0 to 2"),
        (lambda *_: {"sample_weight": np.ones(5)}, r"sample_weight .*\(6,\), got \(5,\)"),
        (lambda *_: {"sample_weight": [1, 1, 1, 1, 1, -1]}, "^sample_weight .*finite"),
        (lambda *_: {"sample_weight": [1, 1, 1, 1, 1, np.nan]}, "^sample_weight .*finite"),
        (lambda *_: {"sample_weight": np.zeros(6)}, "sample_weight .*not 0 everywhere"),
        (lambda *_: {"momentum": 1}, "momentum .*got 1$"),
        (lambda *_: {"momentum": -0.1}, "momentum .*got -0.1$"),
        (lambda *_: {"max_iter": -1}, "max_iter .*got -1$"),
        (lambda *_: {"tol": -1e-3}, "tol .*got -0.001$"),
        (lambda *_: {"tol": float("nan")}, "tol .*got nan$"),
        (lambda *_: {"patience": 0}, "patience .*got 0$"),
        (lambda *_: {"loss": "hinge"}, "`loss` .*squared_error, log_loss.*got 'hinge'"),
        (lambda *_: {"learning_rate": "fast"}, "learning_rate .*'auto', 'theory'.*got 'fast'$"),
        (lambda *_: {"learning_rate": 0}, "learning_rate .*got 0$"),
        (lambda *_: {"learning_rate": float("inf")}, "learning_rate .*got inf$"),
        (lambda X, _: {"validation": (X,)}, r"validation .*pair \(X, y\), got tuple of 1"),
        (lambda X, y: {"validation": (X[:0], y[:0])}, "^validation X .*no rows"),
        (lambda X, y: {"validation": (X, y[:3])}, r"validation y .*\(6, 1\), got \(3, 1\)"),
        (lambda X, y: {"validation": (replaced(X, np.nan), y)}, "validation X holds nan in row 2, column 0"),
    ],
)
def test_refused_arguments(change, message):
    assert re.match(message, refused(change))


def test_targets_too_large_for_float32_are_refused():
    network, X, y = make(n=6, dtype="float32")
    y[2] = 1e39
    with pytest.raises(InputError, match=r"y .*float32, row 2 holds 1e\+39; .*dtype='float64'"):
        train(network, X, y)


def test_a_weight_too_large_for_float32_is_scaled():
    network, X, y = make(n=6, dtype="float32")
    result = train(network, X, y, sample_weight=[1, 1, 1e40, 1, 1, 1], max_iter=5)
    assert result.loss < result.history[0].loss


def test_unknown_engine_is_refused():
    assert re.search(r"engine.*auto, correlation, data, dense.*got 'fast'", refused(lambda *_: {"engine": "fast"}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("momentum", "a"),
        ("max_iter", 1.5),
        ("learning_rate", None),
        ("tol", None),
        ("sample_weight", list("abcdef")),
        ("validation", 5),
    ],
)
def test_arguments_of_the_wrong_type_are_refused_by_name(name, value):
    assert refused(lambda *_: {name: value}).startswith(name)
