"""Sparse rows: fire sets and weights equal those of dense rows in every iteration, without a dense table."""

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from fireset import InputError, ShiftedReLUClassifier, ShiftedReLUNetwork, ShiftedReLURegressor, train
from fireset.engines import create, describe, expected_costs
from fireset.engines.blocks import BlockEngine
from fireset.engines.step_rule import StepRule
from fireset.estimators.stored_fit import _sphere_arrays, _sphere_map
from fireset.kernels.firing import refine_near_threshold
from fireset.sparse_rows import SparseRows, equal_rows, kernel_rows
from fireset.tables.column_map import ColumnMap
from fireset.tables.kernel_fit import FitRows, KernelFit
from fireset.tables.settings import choose_settings
from fireset.tables.sphere import SphereMap
from fireset.theory.certificate import Certificate
from fireset.theory.kernel_function import KernelFunction
from fireset.training.loop import Trainer
from fireset.training.problem import fingerprint
from support.checks import sphere
from support.fixed_settings import FIXED
from support.problems import Problem, hard_cases

CASES = hard_cases()
SOLVERS = {
    "gradient": {"learning_rate": 0.05},
    "momentum": {"learning_rate": 0.02, "momentum": 0.9, "nesterov": True},
    "gauss-newton": {"solver": "gauss-newton", "ridge": 0.1},
}


def untidy(X: np.ndarray, rng) -> sp.csr_array:
    """Return X as CSR rows with unsorted columns, explicit zeros, and each entry as the sum of three."""
    found = sp.coo_array(X)
    zeros = rng.integers(0, X.shape[0], 5), rng.integers(0, X.shape[1], 5)
    rows = np.concatenate([*[found.row] * 3, zeros[0]])
    columns = np.concatenate([*[found.col] * 3, zeros[1]])
    first, second = found.data * 0.3, found.data * 0.5
    numbers = np.concatenate([first, second, found.data - first - second, np.zeros(5)])
    order = rng.permutation(len(rows))
    order = order[np.argsort(rows[order], kind="stable")]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=X.shape[0]))])
    return sp.csr_array((numbers[order], columns[order], indptr), shape=X.shape)


@st.composite
def sparse_problems(draw) -> tuple[sp.csr_array, Problem]:
    n, d, width = draw(st.integers(1, 80)), draw(st.integers(1, 60)), draw(st.integers(2, 400))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    X = np.where(rng.random((n, d)) < draw(st.floats(0, 1)), rng.standard_normal((n, d)), 0.0)
    if draw(st.booleans()):
        X = X[rng.integers(0, n, n)]  # the same row several times
    X = np.hstack([X, np.ones((n, 1))])  # so that no row is empty
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    sparse = untidy(X, rng) if draw(st.booleans()) else sp.csr_array(X)
    outputs, threshold = draw(st.integers(1, 3)), draw(st.floats(-1.0, 2.5, allow_subnormal=False))
    dense = sparse.toarray()
    problem = Problem(dense, rng.standard_normal((n, outputs)), width, threshold, plant=draw(st.booleans()))
    return sparse, problem


def assert_same_runs(problem: Problem, sparse, engine, iterations=6, **options) -> None:
    runs = [
        Trainer(problem.network(), rows, problem.y, engine=create(engine), max_iter=iterations, tol=0, **options)
        for rows in (problem.X, sparse)
    ]
    close = 1e-12
    if options.get("solver") == "gauss-newton":
        # Linear solves multiply rounding errors by their condition number; and at the minimum, rounding decides
        # whether a round is accepted.
        close, iterations = 1e-7, 2
    for _ in range(iterations):
        weights = [run.engine.network.weights for run in runs]
        np.testing.assert_allclose(weights[1], weights[0], rtol=0, atol=close * max(1.0, np.abs(weights[0]).max()))
        active = [run.engine.fire_sets() for run in runs]
        samples, neurons = (active[0] != active[1]).nonzero()
        margins = np.abs(np.einsum("ij,ij->i", problem.X[samples], weights[0][neurons]) - problem.threshold)
        assert (margins <= (close if (weights[0] != weights[1]).any() else 0.0)).all()
        if len(samples):
            return  # a pair within rounding of the threshold: from here on the runs differ
        losses = [run.step().loss for run in runs]
        assert losses[1] == pytest.approx(losses[0], rel=close)
    assert runs[0].engine.work.active_pairs == runs[1].engine.work.active_pairs


# Rows


@given(sparse_problems())
def test_rows_equal_those_of_the_matrix(found):
    sparse, problem = found
    before = sparse.copy()
    rows, X = SparseRows.from_scipy(sparse, np.float64), problem.X
    assert (rows.indices.dtype, rows.indptr.dtype) == (np.int32, np.int64)
    assert rows.values.all()
    for name in ("data", "indices", "indptr"):
        assert np.array_equal(getattr(sparse, name), getattr(before, name))
    rng = np.random.default_rng(0)
    W, V = rng.standard_normal((19, X.shape[1])), rng.standard_normal((X.shape[1], 2))
    P = rng.standard_normal((5, len(X)))
    mask, some = rng.random(len(X)) < 0.5, rng.integers(0, len(X), 7)
    for key in (slice(None), slice(1, 9), slice(None, None, 2), mask, some, slice(3, 1)):
        part = rows[key]
        assert part.shape == X[key].shape
        np.testing.assert_allclose(W @ part.T, W @ X[key].T, rtol=0, atol=1e-13)
        np.testing.assert_allclose(part @ V, X[key] @ V, rtol=0, atol=1e-13)
        np.testing.assert_allclose(part @ rows.T, X[key] @ X.T, rtol=0, atol=1e-13)
        np.testing.assert_allclose(part.norms(), np.linalg.norm(X[key], axis=1), rtol=1e-14)
    np.testing.assert_allclose(P @ rows, P @ X, rtol=0, atol=1e-12)


@given(sparse_problems())
def test_the_deciding_dot_has_the_same_bits(found):
    sparse, problem = found
    W = problem.network().weights
    decided = []
    for rows in (problem.X, kernel_rows(SparseRows.from_scipy(sparse, np.float64))):
        H = np.zeros((len(W), len(problem.X)))
        refine_near_threshold(H, W, rows, np.zeros(len(W)), np.full(len(W), np.inf))  # all are near
        decided.append(H)
    assert np.array_equal(*decided)


# Training


@settings(max_examples=60)
@given(sparse_problems(), st.sampled_from(["dense", "data"]), st.sampled_from(sorted(SOLVERS)))
def test_runs_equal_those_on_the_matrix(found, engine, solver):
    sparse, problem = found
    assert_same_runs(problem, sparse, engine, **SOLVERS[solver])


@pytest.mark.parametrize("engine", ["dense", "data"])
@pytest.mark.parametrize("case", sorted(CASES))
def test_hard_cases(case, engine):
    assert_same_runs(CASES[case], sp.coo_matrix(CASES[case].X), engine, iterations=4, learning_rate=0.05)


def wide_problem(rng, n=300, d=2000, stored=12, width=400) -> tuple[sp.csr_array, Problem]:
    X = sp.random_array((n, d), density=stored / d, rng=rng, data_sampler=rng.standard_normal).tolil()
    X[:, -1] = 1.0
    X = sp.csr_array(X)
    X = sp.csr_array(X.multiply(1 / np.sqrt(X.multiply(X).sum(axis=1))[:, None]))
    return X, Problem(X.toarray(), rng.standard_normal((n, 2)), width, 1.2)


@pytest.mark.sweep(every=12)
@pytest.mark.parametrize("solver", sorted(SOLVERS))
@pytest.mark.parametrize("engine", ["dense", "data"])
def test_wide_rows_on_the_threshold(engine, solver):
    rng = np.random.default_rng(0)
    sparse, problem = wide_problem(rng, n=120, width=200)
    problem.plant = True
    options = {**SOLVERS[solver], "learning_rate": "auto", "ridge": "auto"}
    assert_same_runs(problem, sparse, engine, iterations=12, **options)


def test_engine_in_blocks_and_trained_outputs():
    rng = np.random.default_rng(1)
    sparse, problem = wide_problem(rng, d=300)
    networks = []
    for rows in (problem.X, sparse):
        network = problem.network()
        engine = BlockEngine(3)
        engine.start(network, network.check_rows(rows))
        for _ in range(3):
            engine.step(engine.forward() - problem.y, StepRule(0.05))
        train(network, rows, problem.y, engine="data", trained_outputs=True, max_iter=3, tol=0)
        networks.append(network)
    np.testing.assert_allclose(networks[1].weights, networks[0].weights, rtol=0, atol=1e-12)
    np.testing.assert_allclose(networks[1].output_weights, networks[0].output_weights, rtol=0, atol=1e-12)


def test_float32_validation_and_batches():
    rng = np.random.default_rng(2)
    sparse, problem = wide_problem(rng)
    for engine, options in (("data", {}), ("dense", {}), ("auto", {"batch_size": 64})):
        found = []
        for rows in (problem.X, sparse):
            network = problem.network("float32")
            held = (rows[200:], problem.y[200:])
            result = train(network, rows[:200], problem.y[:200], engine=engine, validation=held, max_iter=8, **options)
            found.append((result.loss, network.predict(rows)))
        assert found[1][0] == pytest.approx(found[0][0], rel=1e-3)
        np.testing.assert_allclose(found[1][1], found[0][1], atol=1e-3)
    assert result.engine == "dense"  # the engine "rows" does not support sparse rows


def test_many_predictions_at_once():
    rng = np.random.default_rng(3)
    network = ShiftedReLUNetwork.initialize(3000, 4, threshold=0.5, dtype="float64")  # a tree would search dense rows
    X = np.where(rng.random((900, 4)) < 0.5, sphere(rng, 900, 4), 0.0)
    np.testing.assert_allclose(network.predict(sp.csc_array(X)), network.predict(X), rtol=0, atol=1e-12)
    assert (network.fire_sets(sp.csr_matrix(X)) != network.fire_sets(X)).nnz == 0


def test_auto_chooses_between_dense_and_data():
    rng = np.random.default_rng(4)
    X = sp.csr_array(sphere(rng, 50, 2))
    network = ShiftedReLUNetwork.initialize(500, 2, threshold=0.0)
    assert set(expected_costs(network, 50, 10)) == {"dense", "data", "sums"}
    assert set(expected_costs(network, 50, 10, entries_per_row=2)) == {"dense", "data"}
    assert train(network, X, rng.standard_normal(50), max_iter=2).engine in ("dense", "data")


def test_memory_does_not_count_zeros():
    network = ShiftedReLUNetwork.initialize(10, 5000)
    dense, sparse = create("data"), create("data")
    sparse.check_input(SparseRows.from_scipy(sp.csr_array((1000, 5000)), np.float32))
    assert sparse.memory_bytes(network, 1000) < 1e6
    assert dense.memory_bytes(network, 1000) > 1000 * 5000 * 4


def test_equal_rows_and_fingerprints():
    rows = SparseRows.from_scipy(sp.csr_array(np.eye(3)), np.float64)
    other = SparseRows.from_scipy(sp.csr_array(np.eye(3)[::-1]), np.float64)
    assert equal_rows(rows, rows[np.arange(3)])
    assert not equal_rows(rows, other)
    assert not equal_rows(rows, np.eye(3))
    assert fingerprint(rows) == fingerprint(rows[np.arange(3)]) != fingerprint(other)


# Errors

OTHERS = [str(engine["name"]) for engine in describe() if engine["name"] not in ("dense", "data")]


@pytest.mark.parametrize("engine", OTHERS)
def test_other_engines_raise(engine):
    network = ShiftedReLUNetwork.initialize(10, 3)
    with pytest.raises(InputError, match=f"engine.*got '{engine}'"):
        train(network, sp.csr_array(np.eye(3)), np.ones(3), engine=engine)


def test_wrong_arguments_raise():
    network, X = ShiftedReLUNetwork.initialize(10, 3), sp.csr_array(np.eye(3))
    with_nan = sp.csr_array(np.array([[0, 1.0, 0], [0, 0, np.nan]]))
    out_of_range = sp.csr_array((np.ones(1), [0], [0, 1]), shape=(1, 3))
    out_of_range.indices[0] = 7
    wrong = [
        ((with_nan, [0, 1]), {}, "X holds nan in row 1, column 2"),
        ((sp.csr_array((2, 5)), [0, 1]), {}, r"X must have shape \(n, 3\), got \(2, 5\)"),
        ((sp.csr_array(np.eye(3) * 1j), [0, 1, 2]), {}, "X must be a matrix of numbers, got complex128"),
        ((out_of_range, [0]), {}, "X must be a valid CSR matrix"),
        ((sp.csr_array((2, 3)), [0, 1]), {}, "rows of X must have norm 1, row 0 has 0"),
        ((X, np.ones(3)), {"validation": (np.eye(3), np.ones(3))}, "must both be sparse, or both be dense"),
        ((X, np.ones(3)), {"engine": create("data", index="partition-tree")}, "index must be 'auto' or 'scan'"),
        ((X, np.ones(3)), {"learning_rate": "theory"}, "X must be dense"),
        ((X, np.ones(3)), {"callbacks": [Certificate()]}, "X must be dense"),
    ]
    for arguments, options, message in wrong:
        with pytest.raises(InputError, match=message):
            train(network, *arguments, **options)


# Tables


def sparse_table(rng, n=300, p=40, density=0.2) -> tuple[Any, np.ndarray]:
    X = sp.random_array((n, p), density=density, rng=rng, data_sampler=lambda size: rng.lognormal(0, 1, size)).tocsr()
    return X, np.asarray(X @ np.concatenate([np.ones(3), np.zeros(p - 3)])).ravel() + 0.1 * rng.standard_normal(n)


def test_the_map_to_the_sphere_keeps_zeros():
    rng = np.random.default_rng(5)
    table, _ = sparse_table(rng)
    X: Any = sp.csr_array(np.where(np.arange(300)[:, None] == 7, 0.0, table.toarray()))
    weight = rng.integers(0, 3, X.shape[0]).astype(float)
    columns = ColumnMap.learn(untidy(X.toarray(), rng), weight)
    j = 3
    present = X.toarray()[:, j] != 0
    squares = np.average(X.toarray()[present, j] ** 2, weights=weight[present])
    assert columns.scale[j] == pytest.approx(np.sqrt(squares))
    sphere_map = SphereMap.learn(columns, columns(X), weight, 0.7, rng.uniform(0.1, 1, X.shape[1]))
    mapped = sphere_map(X)
    assert mapped.format == "csr"
    assert mapped.nnz == np.count_nonzero(X.toarray()) + X.shape[0]
    assert mapped.has_canonical_format
    np.testing.assert_allclose(mapped.toarray(), sphere_map(X.toarray()), rtol=1e-13)
    np.testing.assert_allclose(np.sqrt(mapped.multiply(mapped).sum(axis=1)), 1.0, rtol=1e-14)
    assert mapped.toarray()[7, -1] == 1.0
    again = _sphere_map(_sphere_arrays(sphere_map), {"typical": sphere_map.typical, "bias": 0.7}, X.shape[1])
    assert np.array_equal(again(X).data, mapped.data)


def test_fits_equal_those_of_the_matrix():
    rng = np.random.default_rng(6)
    X, y = sparse_table(rng)
    weight = np.ones(len(y))
    Z = ColumnMap.learn(X, weight)(X).astype(np.float32)
    targets = ((y - y.mean()) / y.std())[:, None]
    scales = rng.uniform(0.1, 1.0, Z.shape[1])
    kernel = KernelFunction(1.5)
    fits = [KernelFit(FitRows(rows, targets, weight), scales, 1.0, kernel).solve(6) for rows in (Z.toarray(), Z)]
    # Fits are computed in float32.
    products = [fit.outer_product(full=False) for fit in fits]
    np.testing.assert_allclose(products[1], products[0], rtol=0, atol=1e-3 * products[0].max())
    np.testing.assert_allclose(fits[1].predict(Z[:9]), fits[0].predict(Z[:9].toarray()), atol=1e-3)


def test_settings_of_a_sparse_table():
    rng = np.random.default_rng(6)
    X, y = sparse_table(rng)
    weight = np.ones(len(y))
    Z = ColumnMap.learn(X, weight)(X)
    found = choose_settings(Z, ((y - y.mean()) / y.std())[:, None], weight, threshold=1.5)
    assert found.metric_kind == "diagonal"
    assert not found.pieces
    assert set(np.argsort(found.importances)[-3:]) == {0, 1, 2}


def test_scales_of_columns_without_entries():
    rng = np.random.default_rng(7)
    X, y = sparse_table(rng)
    wide = sp.csr_array(sp.hstack([X, sp.csr_array((X.shape[0], 60))]))
    Z = ColumnMap.learn(wide, np.ones(len(y)))(wide)
    found = choose_settings(Z, ((y - y.mean()) / y.std())[:, None], np.ones(len(y)), threshold=1.5)
    assert found.metric_kind == "diagonal"
    assert found.metric[40:].min() > found.metric[3:40].min()


@pytest.mark.parametrize("container", [sp.csr_matrix, sp.csc_array, sp.coo_matrix, sp.lil_array])
def test_estimators_take_any_format(container):
    rng = np.random.default_rng(8)
    X, y = sparse_table(rng)
    labels = np.where(y > np.median(y), "yes", "no")
    options = {"width": 300, "random_state": 0, "dtype": "float64", **FIXED}
    model = ShiftedReLURegressor(**options).fit(container(X), y)
    plain = ShiftedReLURegressor(**options).fit(X, y)
    np.testing.assert_allclose(model.predict(container(X)), plain.predict(X), rtol=0, atol=1e-10)
    np.testing.assert_allclose(model.predict(X.toarray()), plain.predict(X), rtol=0, atol=1e-10)
    assert model.score(X, y) > 0.9
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))
    classifier = ShiftedReLUClassifier(early_stopping=True, **options).fit(container(X), labels)
    assert classifier.score(container(X), labels) > 0.85


def test_estimators_and_batches_of_sparse_rows():
    rng = np.random.default_rng(9)
    X, y = sparse_table(rng)
    model = ShiftedReLURegressor(width=300, random_state=0, dtype="float64")
    for lo in range(0, 300, 100):
        model.partial_fit(X[lo : lo + 100], y[lo : lo + 100])
    before = np.square(model.predict(X) - y).mean()
    model.partial_fit(X.toarray(), y)  # the estimator continues with dense rows
    assert np.square(model.predict(X) - y).mean() < before
    fitted = ShiftedReLURegressor(width=300, batch_size=50, max_iter=30, random_state=0).fit(X, y)
    assert fitted.result_.engine == "dense"
    assert fitted.score(X, y) > 0.5


def test_estimators_raise():
    rng = np.random.default_rng(10)
    X, y = sparse_table(rng)
    dense = ShiftedReLURegressor(width=300, random_state=0).fit(X.toarray(), y)
    with pytest.raises(InputError, match=r"sparse.*fitted on dense rows.*X\.toarray"):
        dense.predict(X)
    with pytest.raises(InputError, match=r"engine.*got 'sums'"):
        ShiftedReLURegressor(width=300, engine="sums").fit(X, y)
    X.data[3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        dense.predict(X)


_LARGE_FIT = """
import numpy as np, scipy.sparse as sp
from fireset import ShiftedReLURegressor
from fireset._util.system_memory import PeakMemory
rng = np.random.default_rng(0)
X = sp.random_array((20_000, 50_000), density=0.001, rng=rng, dtype=np.float64).tocsr()
y = np.asarray(X[:, :2000].sum(axis=1)).ravel()
model = ShiftedReLURegressor(width=400, engine="{engine}", solver="{solver}", max_iter=5, random_state=0).fit(X, y)
model.predict(X)
print(PeakMemory().read())
"""
_MAX_PEAK = 1.6e9  # the table with its zeros takes 4 GB in float32, 8 GB in float64


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "solver"), [("data", "gauss-newton"), ("dense", "gradient")])
def test_a_table_that_would_not_fit_as_dense_rows(engine, solver):
    script = _LARGE_FIT.format(engine=engine, solver=solver)
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    assert int(found.stdout) < _MAX_PEAK
