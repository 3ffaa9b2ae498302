"""What an earlier version wrote is read, goes on and predicts as it did there.

``data/format-1`` was written before the package was divided into rooms. Whoever changes a format adds a folder beside
it and leaves this one alone.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fireset import Checkpoints, ShiftedReLUNetwork, train
from fireset.__main__ import main

WRITTEN = Path(__file__).parent / "data" / "format-1"
SETTINGS = {"plain": {}, "nesterov": {"momentum": 0.9, "nesterov": True}}
LAST_BITS = 1e-12  # another processor may add in another order


def problem() -> tuple[np.ndarray, np.ndarray]:
    """The rows that the checkpoints were trained on: 30, and 10 to validate the second of them with."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 4))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, rng.standard_normal((40, 1))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_checkpoint_goes_on_where_the_whole_run_ended(name, tmp_path):
    """20 of 30 iterations were done when the checkpoint was written; another run then did all 30 without a break."""
    shutil.copytree(WRITTEN / name, tmp_path / name)
    X, y = problem()
    network = ShiftedReLUNetwork.initialize(32, 4, 1, seed=1, dtype="float64", threshold=0.5)
    result = train(
        network,
        X[:30],
        y[:30],
        engine="data",
        max_iter=30,
        tol=0,
        validation=(X[30:], y[30:]) if name == "nesterov" else None,
        patience=1000,
        checkpoint=Checkpoints(tmp_path / name, every=10, keep=1, resume=True),
        **SETTINGS[name],
    )
    assert [record.iteration for record in result.history] == list(range(len(result.history)))
    assert len(result.history) >= 30  # the history of the first 20 was read, too
    expected = ShiftedReLUNetwork.load(WRITTEN / f"{name}-30.safetensors")
    assert np.array_equal(network.signs, expected.signs)
    assert network.threshold == expected.threshold
    np.testing.assert_allclose(network.weights, expected.weights, rtol=LAST_BITS, atol=LAST_BITS)


def test_a_checkpoint_was_read_at_all(tmp_path):
    """With another target it is refused, by name: the runs above did not just start anew."""
    shutil.copytree(WRITTEN / "plain", tmp_path / "plain")
    X, y = problem()
    network = ShiftedReLUNetwork.initialize(32, 4, 1, seed=1, dtype="float64", threshold=0.5)
    with pytest.raises(ValueError, match=r"\by\b"):
        train(
            network,
            X[:30],
            y[:30] + 1,
            engine="data",
            max_iter=30,
            tol=0,
            patience=1000,
            checkpoint=Checkpoints(tmp_path / "plain", every=10, keep=1, resume=True),
        )


@pytest.mark.parametrize(("name", "options"), [("regression", []), ("classification", ["--proba"])])
def test_a_model_predicts_what_it_did(name, options, tmp_path, monkeypatch):
    out = tmp_path / "predictions.csv"
    model, table = WRITTEN / f"{name}.safetensors", WRITTEN / "table.csv"
    monkeypatch.setattr(sys, "argv", ["fireset", "predict", str(model), str(table), "--out", str(out), *options])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    found, expected = pl.read_csv(out), pl.read_csv(WRITTEN / f"{name}.csv")
    assert found.columns == expected.columns
    numbers = [column for column in expected.columns if expected[column].dtype.is_numeric()]
    np.testing.assert_allclose(found[numbers], expected[numbers], rtol=0, atol=1e-6)
    if name == "classification":
        first, second = np.sort(expected[numbers].to_numpy(), axis=1)[:, :-3:-1].T
        clear = first - second > 1e-5  # a narrow network has many ties, which rounding may break otherwise
        assert clear.sum() > 30
        assert np.array_equal(found["prediction"].to_numpy()[clear], expected["prediction"].to_numpy()[clear])
