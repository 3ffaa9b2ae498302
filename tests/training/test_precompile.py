"""Kernels that are compiled ahead: those that the engine uses, and no others."""

import pytest

from fireset.training import precompile


@pytest.mark.parametrize(
    ("engine", "calls"), [("sums", []), ("data", [("report",)]), ("weights", [("report", "move")])]
)
def test_methods_of_the_index(monkeypatch, engine, calls):
    found = []
    monkeypatch.setattr(precompile, "compile_index", lambda _kind, _dtype, calls: found.append(calls))
    precompile.compile_kernels(engine, "float64", "partition-tree")
    assert found == calls
    assert precompile.has_compiled()


@pytest.mark.parametrize(("n_features", "dimensions"), [(None, (1, 2)), (2, (2,)), (3, (1,)), (1, (1,))])
def test_dimensions_with_kernels_of_their_own(monkeypatch, n_features, dimensions):
    found = []
    monkeypatch.setattr(precompile, "_compile_engine", lambda _engine, _dtype, dimensions, *_: found.append(dimensions))
    precompile.compile_kernels("sums", "float64", n_features=n_features)
    assert found == [dimensions]
