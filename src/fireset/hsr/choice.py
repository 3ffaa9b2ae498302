"""Which kind of index to build."""

import numpy as np

from fireset.errors import InputError
from fireset.hsr.base import HalfSpaceIndex
from fireset.hsr.partition_tree import PartitionTreeIndex
from fireset.hsr.scan import ScanIndex

_KINDS: dict[str, type[HalfSpaceIndex]] = {kind.kind: kind for kind in (ScanIndex, PartitionTreeIndex)}


def build(points, kind: str = "auto", *, dynamic: bool = True) -> HalfSpaceIndex:
    """An index over the rows of ``points``; "auto" is "scan", the right kind in high dimension and the ground truth."""
    check_kind(kind)
    try:
        points = np.asarray(points)
        if points.dtype != np.float32:
            points = points.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"points must be a matrix of numbers: {error}") from None
    if points.ndim != 2:
        raise InputError(f"points must have shape (n, d), got {points.shape}")
    return _KINDS["scan" if kind == "auto" else kind](points)


def check_kind(kind: str, *, dynamic: bool = False) -> str:
    """A name that ``build`` knows; with ``dynamic`` of a kind that can be changed."""
    if kind != "auto" and kind not in _KINDS:
        raise InputError(f"kind must be one of auto, {', '.join(_KINDS)}; got {kind!r}")
    if dynamic and kind != "auto" and not _KINDS[kind].dynamic:
        able = ", ".join(name for name, each in _KINDS.items() if each.dynamic)
        raise InputError(f"kind must be one that can be changed, auto, {able}; got {kind!r}")
    return kind
