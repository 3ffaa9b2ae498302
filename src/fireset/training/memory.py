"""Memory: what training will need, told before it is taken; and engines that do with less where it would not fit."""

import re

from fireset._util.errors import InputError
from fireset._util.system_memory import bytes_for_this_process, resident_bytes
from fireset.engines.base import Engine
from fireset.network import ShiftedReLUNetwork

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SCRATCH = 200e6  # matrix products in tiles, compiled code, what the allocator keeps
_ARRAYS_PER_TARGET = 16  # float64 arrays (n, c) that are there at a time: predictions, residuals, sums of each range


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
    needed = width * n_features * item * (2 + int(momentum))
    if needed > free:
        raise InputError(
            f"width {width:,} with {n_features:,} inputs needs {_size(needed)} for the weights, their safe copy"
            f"{' and their velocity' if momentum else ''}, {_said(asked)} {_size(max(free, 0))}; give a smaller width, "
            "or more workers or memory"
        )


def within_memory(
    engine: Engine, network: ShiftedReLUNetwork, n_samples: int, *, solver_bytes: float, asked: int | str | None
) -> Engine:
    """The engine, or one that does the same with less memory if it would take too much; or a refusal."""
    free = free_bytes(parse_memory(asked))
    base = _besides_engine(network, n_samples, solver_bytes)
    fitting = engine.within_memory(network, n_samples, free - base)
    if fitting is not None:
        return fitting
    needed, copies = expected_bytes(engine, network, n_samples, solver_bytes), network.weights.nbytes + solver_bytes
    remedy = "" if engine.can_shrink else ", engine 'data', which can work in blocks"
    raise InputError(
        f"training needs about {_size(needed)} more with engine {engine.name!r} ({_size(copies)} of it for copies of "
        f"the weights), {_said(asked)} {_size(max(free, 0))}; give a smaller width{remedy}, or more workers or memory"
    )


def expected_bytes(engine: Engine, network: ShiftedReLUNetwork, n_samples: int, solver_bytes: float) -> float:
    """What training is expected to take at most, besides the network and the samples."""
    return _besides_engine(network, n_samples, solver_bytes) + engine.memory_bytes(network, n_samples)


def _besides_engine(network: ShiftedReLUNetwork, n_samples: int, solver_bytes: float) -> float:
    targets = n_samples * network.n_outputs * 8 * _ARRAYS_PER_TARGET
    return network.weights.nbytes + solver_bytes + targets + _SCRATCH


def _said(asked: int | str | None) -> str:
    return f"and memory={asked} leaves" if asked is not None else "and this machine has"


def _size(number: float) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"
