"""Memory: what training will need, told before it is taken; and lists in blocks where they would not fit."""

import os
import re
from copy import copy
from math import ceil
from pathlib import Path

import numpy as np

from fireset.engines.base import Engine
from fireset.engines.blocks import RADIUS, BlockEngine
from fireset.engines.candidate_lists import sample_blocks
from fireset.engines.data_search import FIRST_RADIUS, DataSearchEngine
from fireset.engines.list_engine import fired_share
from fireset.errors import InputError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SCRATCH = 200e6  # matrix products in tiles, compiled code, what the allocator keeps
_ROOM = 1.25 * 1.1  # slots have a quarter to spare, their arrays a tenth
_FIRE_SETS = 24  # bytes for each fired pair while the first learning rate is being chosen
_FEWEST = 512  # neurons of a block


def parse_memory(text: int | str | None) -> int | None:
    """Bytes from the user's words: 12G, 800M, or a number of bytes; K, M, G and T are powers of 1024."""
    if text is None:
        return None
    spelled = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", str(text).upper())
    number = int(float(spelled[1]) * _UNITS[spelled[2]]) if spelled else 0
    if number < 1:
        raise InputError(f"memory must be a size such as 12G or 800M, got {text!r}")
    return number


def room(asked: int | None) -> float:
    """Bytes that this process may still take: up to ``asked`` in all, else its part of what the system has left."""
    if asked is not None:
        return asked - _resident()
    here = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))  # torchrun's workers on this machine
    return min(_system_free(), _group_free()) / here


def check_weights(width: int, n_features: int, dtype: str, *, momentum: bool, asked: int | str | None) -> None:
    """Refuse a network whose weights alone, their safe copy and their velocity will not fit; before they are drawn."""
    free = room(parse_memory(asked))
    item = 8 if dtype == "float64" else 4  # what is neither of the two is refused by whoever draws them
    needed = width * n_features * item * (2 + int(momentum))
    if needed > free:
        raise InputError(
            f"width {width:,} with {n_features:,} inputs needs {_size(needed)} for the weights, their safe copy"
            f"{' and their velocity' if momentum else ''}, {_said(asked)} {_size(max(free, 0))}; give a smaller width, "
            "or more workers or memory"
        )


def within_memory(engine: Engine, network, n_samples: int, *, momentum: bool, asked: int | str | None) -> Engine:
    """The engine; the data engine with smaller radii, or in blocks, if its lists would be too large; or a refusal."""
    free = room(parse_memory(asked))
    m, d, item = network.width, network.n_features, network.dtype.itemsize
    weights = m * d * item * (1 + int(momentum))
    base = weights + n_samples * network.n_outputs * 8 * 16 + _SCRATCH
    needed = base + _engine_bytes(engine, network, n_samples)
    if needed <= free:
        return engine
    if isinstance(engine, DataSearchEngine) and engine.adapts:
        frugal = copy(engine)  # the caller's own may be used again
        while needed > free and frugal.largest_radius > RADIUS:
            frugal.largest_radius *= 0.8  # more refreshes, smaller lists
            needed = base + _engine_bytes(frugal, network, n_samples)
        if needed <= free:
            return frugal
    if isinstance(engine, DataSearchEngine):
        one = _blocked_bytes(network, n_samples)  # for each neuron of a block
        left = free - base - n_samples * d * item
        blocks = max(1, ceil(m * one / left)) if left > 0 else m
        if blocks <= max(1, m // _FEWEST):
            return BlockEngine(blocks)
        needed = base + n_samples * d * item + _FEWEST * one
    raise InputError(
        f"training needs about {_size(needed)} more with engine {engine.name!r} ({_size(weights)} of it for copies of "
        f"the weights), {_said(asked)} {_size(max(free, 0))}; give a smaller width{_REMEDIES.get(engine.name, '')}, or "
        "more workers or memory"
    )


def _said(asked: int | str | None) -> str:
    return f"and memory={asked} leaves" if asked is not None else "and this machine has"


_REMEDIES = {
    "correlation": ", engine 'data', which can work in blocks",
    "sums": ", engine 'data', which can work in blocks",
    "weights": ", engine 'data', which can work in blocks",
}


def _engine_bytes(engine: Engine, network, n: int) -> float:
    """What an engine takes at its peak, besides weights and samples; a guess within a third or so."""
    name = engine.name
    m, d, item = network.width, network.n_features, network.dtype.itemsize
    fired = n * m * fired_share(network.threshold)
    if name == "dense":
        return min(n * m / 8, 2**30)
    if isinstance(engine, DataSearchEngine):
        return _list_bytes(network, n, engine.largest_radius)
    if name == "weights":
        return 2 * m * d * item + _FIRE_SETS * fired
    if name == "sums":
        return 3 * n * (d + 8 * network.n_outputs) * item + 12 * 100 * m
    return 3.0 * n * m * item if name == "correlation" else 0.0


def _list_bytes(network, n: int, radius: float) -> float:
    """The data engine's aligned samples and, at most, its lists: with the first radius, or once radii have grown.

    While slots grow, half of the lists of one block of samples are there twice.
    """
    item, fired = network.dtype.itemsize, n * network.width * fired_share(network.threshold)
    rows = n * ceil(network.n_features * item / 64) * 64.0

    def lists(radius: float) -> float:
        return n * network.width * fired_share(network.threshold - radius) * _ROOM * (4 + item)

    twice = 0.6 if len(sample_blocks(int(rows), n)) == 1 else 0.1
    return rows + max(lists(min(radius, FIRST_RADIUS)) + _FIRE_SETS * fired, (1 + twice) * lists(radius) + 4 * fired)


def _blocked_bytes(network, n: int) -> float:
    """For each neuron of a block: its list, and its fire set while the first learning rate is being chosen."""
    lists = fired_share(network.threshold - RADIUS) * _ROOM * (4 + network.dtype.itemsize) + 4 * fired_share(
        network.threshold
    )
    return n * (1.5 * lists + _FIRE_SETS * fired_share(network.threshold))


def _resident() -> int:
    """Bytes of memory that this process has."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _system_free() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return np.inf


def _group_free() -> float:
    """What the control group (a container, say) has left; infinite without one."""
    free = np.inf
    root = Path("/sys/fs/cgroup")
    for folder, most, used, cached in (
        (root, "memory.max", "memory.current", "inactive_file"),
        (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit, taken = (float((folder / name).read_text()) for name in (most, used))
            lines = map(str.split, (folder / "memory.stat").read_text().splitlines())
            free = min(free, limit - taken + next(float(number) for name, number in lines if name == cached))
        except (OSError, ValueError, StopIteration):  # no such group, or "max": no limit
            continue
    return free


def _size(number: float) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"
