"""Compilation of the kernels on a tiny problem, so that training times exclude it.

It takes seconds the first time on a machine. Later the compiled code is read from disk.
"""

from functools import cache

import numpy as np

from fireset.engines.registry import ENGINES, create, engine_class
from fireset.engines.step_rule import StepRule
from fireset.hsr import build
from fireset.hsr.registry import index_class
from fireset.sparse_rows import SparseRows


@cache
def compile_kernels(
    engine: str, dtype, index: str | None = None, *, several_outputs: bool = False, sparse: bool = False
) -> None:
    """Compile and load all kernels of an engine, precision and kind of index.

    One and several outputs, and dense and sparse rows, use different kernels. Repeated calls cost nothing.
    """
    from fireset.network import ShiftedReLUNetwork

    if engine not in ENGINES:
        return  # not registered: its kernels are unknown
    if index:
        compile_index(index, dtype)
    for d in engine_class(engine).compiled_dimensions:
        network = ShiftedReLUNetwork.initialize(2, d, 1 + several_outputs, threshold=0.0, dtype=dtype)
        X = np.eye(1, d, dtype=network.dtype).repeat(3, axis=0)
        tiny = create(engine)
        tiny.start(network, _sparse(X) if sparse else X)
        residual = tiny.forward()
        tiny.approximate_tangent_operator()(residual)
        tiny.step(residual, StepRule(0.1))
        tiny.forward()
        tiny.step(residual, StepRule(0.1, 0.9, True))


def _sparse(X: np.ndarray) -> SparseRows:
    from scipy.sparse import csr_array

    return SparseRows.of(csr_array(X), X.dtype)


@cache
def compile_index(kind: str, dtype) -> None:
    """Compile and load the kernels of an index: its construction, queries and, for a dynamic one, updates."""
    d = next(d for d in (3, 2, 1, 4, 5, 6, 7, 8) if index_class(kind).suits(d))
    points = np.random.default_rng(0).standard_normal((1000, d)).astype(dtype)  # enough for a tree of each kind
    index = build(points, kind)
    index.report(points[:2], np.ones(2))
    if index.dynamic:
        index.move([1], points[:1])
        index.delete([0])
        index.add(points[:1])
