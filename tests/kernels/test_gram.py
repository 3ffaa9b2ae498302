"""Products of columns in panels against NumPy."""

import numpy as np
import pytest

from fireset.kernels.gram import LANES, add_gram_strip
from fireset.training.solvers import nystrom
from fireset.training.solvers.nystrom import _GramSum


@pytest.mark.parametrize("rows", [1, 127, 128, 300])
@pytest.mark.parametrize("panels", [1, 3])
def test_strips_are_products_of_columns(rows, panels):
    K = np.random.default_rng(0).standard_normal((rows, panels * LANES)).astype(np.float32)
    packed = np.ascontiguousarray(K.reshape(rows, panels, LANES).transpose(1, 0, 2))
    expected = K.astype(float).T @ K
    for k in range(panels):
        strip = np.ones((LANES, (k + 1) * LANES), np.float32)
        add_gram_strip(packed, k, strip)
        own = slice(k * LANES, (k + 1) * LANES)
        assert np.abs(strip - 1 - expected[own, : own.stop]).max() <= 1e-5 * rows**0.5 * max(
            1.0, np.abs(expected).max()
        )


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("weighted", [True, False])
def test_sums_over_blocks(monkeypatch, wide, count, weighted):
    monkeypatch.setattr("fireset.kernels.gram.HAS_WIDE_REGISTERS", wide)
    rng = np.random.default_rng(count)
    U = np.linalg.qr(rng.standard_normal((count, min(4, count))))[0]
    gram, total, panels = _GramSum(U, 0.0, 0.0, 0.0), np.zeros((count, count)), None
    for rows in (150, 150, 37):
        K = (3.0 + rng.standard_normal((rows, count))).astype(np.float32)
        roots = rng.uniform(0.5, 2.0, rows) if weighted else np.ones(rows)
        total += K.astype(float).T @ (roots[:, None] ** 2 * K)
        R = K.copy()
        P = nystrom._split(R, U)
        panels = gram.add(R, P, roots, panels)
    found = np.tril(gram.total())
    assert np.abs(found - np.tril(total)).max() <= 1e-5 * np.abs(total).max()
