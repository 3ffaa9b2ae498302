"""Memory: what training will need, told before it is taken; and engines that do with less where it would not fit."""

import re
import sys
from collections.abc import Callable

import numpy as np

from fireset._util.errors import InputError
from fireset._util.system_memory import bytes_for_this_process, resident_bytes
from fireset.engines.base import Engine
from fireset.network import ShiftedReLUNetwork
from fireset.training.precompile import compile_kernels

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SCRATCH = 16e6  # matrix products in tiles, compiled code
_KEPT = 0.08  # of all the rest, that the allocator keeps when it is given back
_LOADED_LATER = 140e6  # numba and the compiled kernels, if numba is not imported yet; else
_KERNEL_BYTES = 77e6  # the kernels only, if none has been compiled or loaded yet
_ARRAYS_PER_TARGET = 8  # float64 arrays (n, c) that are there at a time: targets, predictions, residuals


def parse_memory(text: int | str | None) -> int | None:
    """Bytes from the user's words: 12G, 800M, or a number of bytes; K, M, G and T are powers of 1024."""
    if text is None:
        return None
    spelled = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", str(text).upper())
    number = int(float(spelled[1]) * _UNITS[spelled[2]]) if spelled else 0
    if number < 1:
        raise InputError(f"memory must be a size such as 12G or 800M, got {text!r}")
    return number


def free_bytes(asked: int | None) -> float:
    """Bytes that this process may still take: up to ``asked`` in all, else its part of what the system has left."""
    return asked - resident_bytes() if asked is not None else bytes_for_this_process()


def check_weights(width: int, n_features: int, dtype: str, *, momentum: bool, asked: int | str | None) -> None:
    """Refuse a network whose weights alone, their safe copy and their velocity will not fit; before they are drawn."""
    free = free_bytes(parse_memory(asked))
    item = 8 if dtype == "float64" else 4  # what is neither of the two is refused by whoever draws them
    each = n_features * item * (2 + int(momentum))
    if width * each > free:
        least = _SCRATCH + _loaded_later()
        fitting = (free - least) / each
        raise InputError(
            f"width {width:,} with {n_features:,} inputs needs {_size(width * each)} for the weights, their safe copy"
            f"{' and their velocity' if momentum else ''}, {_said(asked)} {_size(max(free, 0))}; "
            + _remedy(fitting, least=least, asked=asked)
        )


def within_memory(
    engine: Engine,
    network: ShiftedReLUNetwork,
    n_samples: int,
    *,
    solver_bytes: Callable[[ShiftedReLUNetwork], float],
    asked: int | str | None,
) -> Engine:
    """The engine, or one that does the same with less memory if it would take too much; or a refusal.

    The refusal names what helps: the width that would fit, as bytes grow in proportion to it above those of the rows;
    or, where the rows alone are too much, that no width does.
    """
    free = free_bytes(parse_memory(asked))
    solver = solver_bytes(network)
    budget = (free - _besides_engine(network, n_samples, solver)) / (1 + _KEPT)
    fitting = engine.within_memory(network, n_samples, budget)
    if fitting is not None:
        return fitting
    needed, copies = expected_bytes(engine, network, n_samples, solver), network.weights.nbytes + solver
    narrow = network.part(np.arange(min(2, network.width)))
    least = expected_bytes(engine, narrow, n_samples, solver_bytes(narrow))
    width = network.width * (free - least) / max(needed - least, 1.0)
    other = "" if engine.can_reduce_memory else ", engine 'data', which can work in blocks"
    raise InputError(
        f"training needs about {_size(needed)} more with engine {engine.name!r} ({_size(copies)} of it for copies of "
        f"the weights), {_said(asked)} {_size(max(free, 0))}; {_remedy(width, least=least, asked=asked, other=other)}"
    )


def _remedy(width: float, *, least: float, asked: int | str | None, other: str = "") -> str:
    """What helps where ``width`` neurons would fit, and ``least`` bytes are needed whatever the width."""
    if width >= 2:
        place = 10 ** (len(str(int(width))) - 1)
        return f"give a width of at most about {int(width) // place * place:,}{other}, or more workers or memory"
    already = resident_bytes()
    rows = ", or fewer rows" if least > 2 * (_SCRATCH + _LOADED_LATER) else ""
    more = f"memory of at least {_size(1.1 * (already + least))}" if asked is not None else "more memory"
    return (
        f"a smaller width does not help: the program has {_size(already)} already, and the rows and the working space "
        f"need {_size(least)} more, whatever the width; give {more}{rows}"
    )


def expected_bytes(engine: Engine, network: ShiftedReLUNetwork, n_samples: int, solver_bytes: float) -> float:
    """What training is expected to take at most, besides the network and the samples."""
    return _besides_engine(network, n_samples, solver_bytes) + (1 + _KEPT) * engine.memory_bytes(network, n_samples)


def _besides_engine(network: ShiftedReLUNetwork, n_samples: int, solver_bytes: float) -> float:
    targets = n_samples * network.n_outputs * 8 * _ARRAYS_PER_TARGET
    return (1 + _KEPT) * (network.weights.nbytes + solver_bytes + targets) + _SCRATCH + _loaded_later()


def _loaded_later() -> float:
    if compile_kernels.cache_info().currsize:
        return 0.0
    return _KERNEL_BYTES if "fireset.kernels.compiling" in sys.modules else _LOADED_LATER


def _said(asked: int | str | None) -> str:
    return f"and memory={asked} leaves" if asked is not None else "and this machine has"


def _size(number: float) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"
