"""Estimates of the memory of training, limits set by the user, and smaller engines for small limits."""

import re
import sys
from collections.abc import Callable

import numpy as np

from fireset._util.errors import InputError
from fireset._util.system_memory import bytes_for_this_process, resident_bytes
from fireset.engines.base import Engine
from fireset.engines.registry import names_with
from fireset.network import ShiftedReLUNetwork
from fireset.training.precompile import has_compiled

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Cost model, measured by ``make bench-memory``
_ALLOCATOR_OVERHEAD = 0.08  # fraction of all else that the allocator keeps after it was freed
_COMPILER_BYTES = 140e6  # numba and the compiled kernels, if numba is not imported yet; else
_KERNEL_BYTES = 77e6  # the kernels only, if none has been compiled or loaded yet
_ARRAYS_PER_TARGET = 8  # float64 arrays (n, c) at a time: targets, predictions, residuals


def parse_memory(text: int | str | None) -> int | None:
    """Return the bytes of a text such as "12G" or "800M", or of a number; K, M, G and T are powers of 1024."""
    if text is None:
        return None
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", str(text).upper())
    number = int(float(parts[1]) * _UNITS[parts[2]]) if parts else 0
    if number < 1:
        raise InputError(f"memory must be a size such as 12G or 800M, got {text!r}")
    return number


def free_bytes(limit: int | None) -> float:
    """Return the bytes that this process may still use: up to ``limit`` in total, or its share of the free memory."""
    return limit - resident_bytes() if limit is not None else bytes_for_this_process()


def check_weights(width: int, n_features: int, dtype: str, *, momentum: bool, limit: int | str | None) -> None:
    """Raise InputError, before the weights are drawn, if they, their copy and their velocity do not fit."""
    free = free_bytes(parse_memory(limit))
    item = 8 if dtype == "float64" else 4  # other types are refused when the weights are drawn
    each = n_features * item * (2 + int(momentum))
    if width * each > free:
        least = Engine.scratch_bytes + _compiler_bytes()
        fitting = (free - least) / each
        raise InputError(
            f"width {width:,} with {n_features:,} inputs needs {_size(width * each)} for the weights, their safe copy"
            f"{' and their velocity' if momentum else ''}, {_available(limit)} {_size(max(free, 0))}; "
            + _remedy(fitting, least=least, limit=limit)
        )


def within_memory(
    engine: Engine,
    network: ShiftedReLUNetwork,
    n_samples: int,
    *,
    solver_bytes: Callable[[ShiftedReLUNetwork], float],
    limit: int | str | None,
) -> Engine:
    """Return the engine, or an equivalent one that needs less memory, or raise InputError.

    The error names the remedy: the width that would fit (memory above that of the rows is proportional to the width),
    or more memory if the rows alone do not fit.
    """
    free = free_bytes(parse_memory(limit))
    solver = solver_bytes(network)
    budget = (free - _besides_engine(engine, network, n_samples, solver)) / (1 + _ALLOCATOR_OVERHEAD)
    fitting = engine.within_memory(network, n_samples, budget)
    if fitting is not None:
        return fitting
    needed, copies = expected_bytes(engine, network, n_samples, solver), network.weights.nbytes + solver
    narrow = network.part(np.arange(min(2, network.width)))
    least = expected_bytes(engine, narrow, n_samples, solver_bytes(narrow))
    width = network.width * (free - least) / max(needed - least, 1.0)
    in_blocks = " or ".join(map(repr, names_with("can_reduce_memory")))
    other = "" if engine.can_reduce_memory else f", engine {in_blocks}, which works in blocks"
    raise InputError(
        f"training needs about {_size(needed)} more with engine {engine.name!r} ({_size(copies)} of it for copies of "
        f"the weights), {_available(limit)} {_size(max(free, 0))}; "
        + _remedy(width, least=least, limit=limit, other=other)
    )


def _remedy(width: float, *, least: float, limit: int | str | None, other: str = "") -> str:
    """Return the remedy if ``width`` neurons would fit and ``least`` bytes are needed for any width."""
    if width >= 2:
        place = 10 ** (len(str(int(width))) - 1)
        return f"give a width of at most about {int(width) // place * place:,}{other}, or more workers or memory"
    already = resident_bytes()
    rows = ", or fewer rows" if least > 2 * (Engine.scratch_bytes + _COMPILER_BYTES) else ""
    more = f"memory of at least {_size(1.1 * (already + least))}" if limit is not None else "more memory"
    return (
        f"a smaller width does not help: the program has {_size(already)} already, and the rows and the working space "
        f"need {_size(least)} more for any width; give {more}{rows}"
    )


def expected_bytes(engine: Engine, network: ShiftedReLUNetwork, n_samples: int, solver_bytes: float) -> float:
    """Return an upper estimate of the memory of training, besides the network and the samples."""
    return _besides_engine(engine, network, n_samples, solver_bytes) + (1 + _ALLOCATOR_OVERHEAD) * engine.memory_bytes(
        network, n_samples
    )


def _besides_engine(engine: Engine, network: ShiftedReLUNetwork, n_samples: int, solver_bytes: float) -> float:
    targets = n_samples * network.n_outputs * 8 * _ARRAYS_PER_TARGET
    return (
        (1 + _ALLOCATOR_OVERHEAD) * (network.weights.nbytes + solver_bytes + targets)
        + engine.scratch_bytes
        + _compiler_bytes()
    )


def _compiler_bytes() -> float:
    if has_compiled():
        return 0.0
    return _KERNEL_BYTES if "fireset.kernels.compiling" in sys.modules else _COMPILER_BYTES


def _available(limit: int | str | None) -> str:
    return f"and memory={limit} leaves" if limit is not None else "and this machine has"


def _size(number: float) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"
