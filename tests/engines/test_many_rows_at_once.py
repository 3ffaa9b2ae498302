"""Forward passes over more rows than are processed at once."""

import numpy as np
import pytest

from fireset import ShiftedReLUNetwork, network
from fireset.engines import dense
from fireset.engines.registry import create


@pytest.mark.parametrize(("columns", "outputs"), [(5, 1), (5, 3), (80, 1)])
def test_forward_passes_in_blocks_of_rows(monkeypatch, columns, outputs):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, columns)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    net = ShiftedReLUNetwork.initialize(300, columns, outputs, threshold=0.5, seed=0, dtype="float32")
    engine = create("dense", forward_only=True)
    engine.start(net, X)
    whole, active, predicted = engine.forward(), engine.work.active_pairs, net.predict(X)
    for module in (network, dense):
        monkeypatch.setattr(module, "MAX_ROWS_AT_ONCE", 1024)
    engine.start(net, X)
    np.testing.assert_allclose(engine.forward(), whole, rtol=0, atol=1e-5 * np.abs(whole).max())
    assert engine.work.active_pairs == active
    np.testing.assert_allclose(net.predict(X), predicted, rtol=0, atol=1e-5 * np.abs(whole).max())
    assert engine.memory_bytes(net, 10**7) < 10**7 * outputs * 8.0 * 3


def test_a_number_that_is_not_finite_is_found_in_a_late_row():
    net = ShiftedReLUNetwork.initialize(4, 2, 1, threshold=0.5, seed=0)
    X = np.ones((200_000, 2))
    X[170_000, 1] = np.nan
    with pytest.raises(ValueError, match="row 170000, column 1"):
        net.check_rows(X)
