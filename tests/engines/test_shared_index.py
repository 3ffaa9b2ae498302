"""An index over the rows that several engines share."""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numpy as np
import pytest
from sklearn.base import clone

import fireset
from fireset import InputError, hsr
from fireset.engines import create
from fireset.engines.blocks import BlockEngine


def rows(n: int = 80, d: int = 3, dtype="float64", seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)).astype(dtype)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, np.sin(3 * X[:, 0])


def trained(X, y, engine, seed: int = 0, rate: float = 0.5) -> np.ndarray:
    network = fireset.ShiftedReLUNetwork.initialize(600, X.shape[1], threshold=1.0, seed=seed, dtype=X.dtype.name)
    fireset.train(network, X, y, engine=engine, learning_rate=rate, max_iter=12, tol=0)
    return network.weights


@pytest.mark.parametrize("kind", ["scan", "partition-tree", "cell-tree", "hull-hierarchy"])
@pytest.mark.parametrize("radius", [0.0, "auto"])
def test_second_training_does_no_preprocessing(kind, radius):
    X, y = rows()
    own = create("data", radius=radius, index=kind)
    expected = trained(X, y, own)
    assert own.work.points_indexed == len(X)
    index = hsr.build(X, kind)
    for _ in range(2):
        shared = create("data", radius=radius, index=index)
        np.testing.assert_array_equal(trained(X, y, shared), expected)
        assert shared.work.points_indexed == 0
        assert shared.work.inner_products == own.work.inner_products
        assert shared.work.nodes_visited == own.work.nodes_visited
    assert len(index) == len(X)
    assert index.changes == 0


def test_threads_share_an_index_and_count_their_own_work():
    X, y = rows(300)
    index = hsr.build(X, "partition-tree")
    settings = [(seed, rate) for seed in range(3) for rate in (0.02, 0.1)]

    def run(setting):
        engine = create("data", index=index)
        weights = trained(X, y, engine, *setting)
        return weights, engine.work

    alone = [run(setting) for setting in settings]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, settings))
    for (expected, expected_work), (weights, work) in zip(alone, together, strict=True):
        np.testing.assert_array_equal(weights, expected)
        assert work == expected_work


def test_ids_given_in_another_order_name_the_rows():
    X, y = rows()
    order = np.random.default_rng(1).permutation(len(X))
    index = hsr.build(X[order], "scan", ids=order)
    np.testing.assert_allclose(trained(X, y, create("data", index=index)), trained(X, y, "dense"), atol=1e-12)


@pytest.mark.parametrize("radius", [0.0, "auto"])
def test_change_during_training_is_refused(radius):
    X, y = rows()
    index = hsr.build(X, "partition-tree")
    network = fireset.ShiftedReLUNetwork.initialize(600, 3, threshold=1.0, seed=0, dtype="float64")
    engine = create("data", radius=radius, index=index)
    trainer = fireset.Trainer(network, X, y, engine=engine, learning_rate=0.5, max_iter=50, tol=0)
    trainer.step()
    index.move([0], X[1:2])
    with pytest.raises(InputError, match="changed"):
        trainer.run()
    with pytest.raises(InputError, match="another row 0"):
        trained(X, y, create("data", index=index))


def test_other_rows_are_refused():
    X, y = rows()
    flipped = X.copy()
    flipped[7] = -flipped[7]
    deleted = hsr.build(np.concatenate([X, X[:1]]), "scan")
    deleted.delete([3])
    for index, words in (
        (hsr.build(X.astype("float32")), "precision"),
        (hsr.build(X[:-1]), r"\(80, 3\)"),
        (hsr.build(X[:, :2]), r"\(80, 3\)"),
        (hsr.build(X, "scan", ids=np.arange(len(X)) + 5), "ids"),
        (deleted, "ids"),
        (hsr.build(flipped), "row 7"),
    ):
        with pytest.raises(InputError, match=words):
            trained(X, y, create("data", index=index))
    with pytest.raises(InputError, match="kind"):
        create("data", index="no such kind")


def test_sparse_rows_are_refused():
    from scipy.sparse import csr_array

    X, y = rows()
    network = fireset.ShiftedReLUNetwork.initialize(100, 3, threshold=1.0, seed=0, dtype="float64")
    for kind in ("scan", "partition-tree"):
        with pytest.raises(InputError, match="sparse"):
            fireset.train(network, csr_array(X), y, engine=create("data", index=hsr.build(X, kind)), max_iter=2)


def test_copies_of_an_engine_share_the_index():
    X, y = rows()
    index = hsr.build(X, "partition-tree")
    engine = create("data", index=index)
    copied = deepcopy(engine)
    np.testing.assert_allclose(trained(X, y, copied), trained(X, y, "dense"), atol=1e-12)
    assert index.work.queries > 0  # of this very index
    model = clone(fireset.ShiftedReLURegressor(engine=engine))
    assert model.engine is not engine
    with pytest.raises(InputError, match="must have the"):  # estimators map their rows
        model.set_params(width=100, dtype="float64").fit(X, y)


def test_blocks_use_the_index():
    X, y = rows(400)
    index = hsr.build(X, "partition-tree")
    network = fireset.ShiftedReLUNetwork.initialize(2048, 3, threshold=1.0, seed=0, dtype="float64")
    engine = create("data", index=index)
    whole = engine.memory_bytes(network, len(X))
    smaller = engine.within_memory(network, len(X), 0.4 * whole)
    assert isinstance(smaller, BlockEngine)
    assert smaller.index_kind(network, len(X)) == "partition-tree"
    other = fireset.ShiftedReLUNetwork.initialize(2048, 3, threshold=1.0, seed=0, dtype="float64")
    for net, each in ((network, smaller), (other, "dense")):
        fireset.train(net, X, y, engine=each, learning_rate=0.5, max_iter=3, tol=0)
    np.testing.assert_allclose(network.weights, other.weights, atol=1e-10)
    assert smaller.work.points_indexed == 0
    assert index.work.queries > 0
