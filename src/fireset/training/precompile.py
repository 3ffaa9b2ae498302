"""Compilation of the kernels on a tiny problem, so that training times exclude it.

It takes seconds the first time on a machine. Later the compiled code is read from disk. numba compiles on one core. At
the first fit with Gauss–Newton a second process therefore compiles a part of the kernels, while this process chooses
settings and compiles the others: with candidate lists those of tangent products and of the output layer, with another
engine those of the engine.
"""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fireset._util.parallel import ranges, thread_count
from fireset.engines.registry import ENGINES, create, engine_class
from fireset.engines.step_rule import StepRule
from fireset.hsr import build
from fireset.hsr.registry import index_class
from fireset.sparse_rows import SparseRows

if TYPE_CHECKING:
    from fireset.network import ShiftedReLUNetwork


def compile_kernels(
    engine: str,
    dtype,
    index: str | None = None,
    *,
    several_outputs: bool = False,
    sparse: bool = False,
    products: bool = False,
    n_features: int | None = None,
) -> None:
    """Compile and load the kernels of an engine, precision and kind of index.

    One and several outputs, and dense and sparse rows, use different kernels. With ``products`` the kernels of tangent
    products and common counts are compiled, otherwise those of gradient steps. With ``n_features``, only kernels for
    this number of features are compiled. Repeated calls cost nothing.
    """
    if engine not in ENGINES:
        return  # not registered: its kernels are unknown
    kind = engine_class(engine)
    dimensions = kind.compiled_dimensions
    if n_features is not None:
        dimensions = (n_features,) if n_features in dimensions else dimensions[:1]
    if index and kind.index_calls:
        compile_index(index, dtype, kind.index_calls)
    _compile_engine(engine, np.dtype(dtype), dimensions, several_outputs, sparse, products)


def has_compiled() -> bool:
    """Return whether ``compile_kernels`` was called in this process."""
    return _compile_engine.cache_info().currsize > 0


@cache
def _compile_engine(
    engine: str, dtype: np.dtype, dimensions: tuple[int, ...], several_outputs: bool, sparse: bool, products: bool
) -> None:
    from fireset.network import ShiftedReLUNetwork

    for d in dimensions:
        network = ShiftedReLUNetwork.initialize(2, d, 1 + several_outputs, threshold=0.0, dtype=dtype.name)
        X = np.eye(1, d, dtype=network.dtype).repeat(3, axis=0)
        if products and (dtype.name, several_outputs, engine) in _BACKGROUND:
            _compile_output_layer(network)  # needed later, and the process does not compile it
            _finish_background(dtype, several_outputs=several_outputs, kernels=engine)
        tiny = create(engine)
        tiny.start(network, _sparse(X) if sparse else X)
        residual = tiny.forward()
        if products:
            _finish_background(dtype, several_outputs=several_outputs)
            tiny.tangent_operator()(residual)
            tiny.jacobian_product(network.weights)
            tiny.gradient(residual)
            tiny.common_counts(network.dtype.type)
            continue
        tiny.approximate_tangent_operator()(residual)
        tiny.step(residual, StepRule(0.1))
        tiny.forward()
        tiny.step(residual, StepRule(0.1, 0.9, True))


# The processes of ``compile_in_background`` by precision, whether there are several outputs, and kernels.
_BACKGROUND: dict[tuple[str, bool, str], subprocess.Popen] = {}
_MAX_WAIT_SECONDS = 60.0  # for such a process; then the kernels are compiled in this one
_LISTS = "lists"  # kernels of tangent products over candidate lists; other kernels have the name of their engine
_COMMAND = "from fireset.training.precompile import compile_products as c; c({dtype!r}, {several!r}, {kernels!r})"


def compile_in_background(dtype, *, several_outputs: bool, engine: str = "auto", n_features: int = 1) -> None:
    """Start a process that compiles kernels for Gauss–Newton with this engine, unless they are cached.

    ``compile_kernels`` with ``products`` waits for it. There is none on a single core, if the cache of compiled code is
    not writable, or for an engine that compiles fast.
    """
    from fireset.kernels.compiling import cache_is_shared, is_marked

    kernels = _LISTS
    if engine != "auto" and not (kind := engine_class(engine)).uses_list_passes:
        if kind.compiles_fast or n_features in kind.compiled_dimensions[1:]:
            return
        kernels = engine
    name = np.dtype(dtype).name
    if (name, several_outputs, kernels) in _BACKGROUND or is_marked(_mark(name, several_outputs, kernels)):
        return
    if not cache_is_shared() or thread_count() < 2 or not sys.executable or getattr(sys, "frozen", False):
        return
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    command = _COMMAND.format(dtype=name, several=several_outputs, kernels=kernels)
    try:
        _BACKGROUND[name, several_outputs, kernels] = subprocess.Popen(
            [sys.executable, "-c", command],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C interrupts the fit only; the process ends by itself
        )
    except OSError:
        return  # no further process can be started: this one compiles all kernels


def _finish_background(dtype: np.dtype, *, several_outputs: bool, kernels: str = _LISTS) -> None:
    """Wait for the process of ``compile_in_background``, if there is one."""
    process = _BACKGROUND.get((dtype.name, several_outputs, kernels))
    if process is not None:
        try:
            process.wait(_MAX_WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def compile_products(dtype: str, several_outputs: bool, kernels: str) -> None:
    """Compile the kernels for which ``compile_in_background`` starts a process, and no others."""
    from fireset.kernels.compiling import mark

    if kernels == _LISTS:
        _compile_list_products(dtype, several_outputs)
    else:
        kind = engine_class(kernels)
        _compile_engine(kernels, np.dtype(dtype), kind.compiled_dimensions[:1], several_outputs, False, True)
    mark(_mark(dtype, several_outputs, kernels))


def _compile_list_products(dtype: str, several_outputs: bool) -> None:
    """Compile the kernels of tangent products, common counts, moved neurons and the output layer, all over lists."""
    from fireset.engines.common_counts import common_counts
    from fireset.engines.list_passes import ListPasses
    from fireset.kernels.candidates import Certificates
    from fireset.kernels.scanning import join_tiles
    from fireset.network import ShiftedReLUNetwork

    # First what the other process needs first. It compiles this kernel itself if it is faster.
    counts, positions, found = np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, dtype)
    join_tiles(counts, counts, positions, found, positions, found)
    # Random weights would import scipy.special, which takes as long as two kernels.
    network = ShiftedReLUNetwork(np.ones((2, 1), dtype), np.ones((2, 1 + several_outputs)), threshold=0.0)
    passes = ListPasses(network, np.ones((3, 1), network.dtype), chunked=False)
    lists = passes.chunks[0].lists
    for span in ranges(network.width):
        lists.active_buffer(span, np.arange(*span))
    direction = np.zeros((3, network.n_outputs))
    passes.tangent_operator()(direction)
    passes.jacobian_product(network.weights)
    passes.gradient(direction)
    common_counts(passes.active_by_neuron(), network.dtype.type)
    _compile_output_layer(network)
    radii, drifts, speeds, near_misses, bands = lists.neuron_state
    passes.add_drifts(speeds, 1.0, drifts)
    passes.prune_live(Certificates(radii, drifts, bands), speeds, near_misses, 0)


def _compile_output_layer(network: "ShiftedReLUNetwork") -> None:
    """Compile the kernels of the output layer; neurons with few and with many active rows use different ones."""
    from fireset.engines.output_layer import ListedOutputLayer
    from fireset.engines.tangent import ActiveByNeuron

    X = np.full((20, 1), -1.0, network.dtype)
    X[0] = 1
    network.weights[:] = [[1], [-1]]
    active = ActiveByNeuron(np.array([0, 1, len(X)]), np.arange(len(X), dtype=np.int32), len(X))
    layer = ListedOutputLayer(network, X, active)
    residual = np.zeros((len(X), network.n_outputs))
    layer.jacobian_product(layer.gradient(residual))
    layer.tangent_product(residual)
    layer.whole_kernel()


def _mark(dtype: str, several_outputs: bool, kernels: str) -> str:
    return f"products-{kernels}-{dtype}-{'several' if several_outputs else 'one'}"


def _sparse(X: np.ndarray) -> SparseRows:
    from scipy.sparse import csr_array

    return SparseRows.from_scipy(csr_array(X), X.dtype)


@cache
def compile_index(kind: str, dtype, calls: tuple[str, ...] = ("report", "move", "delete", "add")) -> None:
    """Compile and load the kernels of an index: its construction, queries and, for a dynamic one, the given updates.

    Most kernels of a tree are those of updates.
    """
    d = next(d for d in (3, 2, 1, 4, 5, 6, 7, 8) if index_class(kind).suits(d))
    points = np.random.default_rng(0).standard_normal((1000, d)).astype(dtype)  # enough for a tree of each kind
    index = build(points, kind)
    index.report(points[:2], np.ones(2))
    if index.dynamic and "move" in calls:
        index.move([1], points[:1])
    if index.dynamic and "delete" in calls:
        index.delete([0])
    if index.dynamic and "add" in calls:
        index.add(points[:1])
