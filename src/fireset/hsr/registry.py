"""Building an index of a given kind, or of the kind that is cheapest by the cost model."""

from inspect import signature

import numpy as np

from fireset._util.errors import InputError
from fireset._util.registry import load
from fireset.hsr import cost
from fireset.hsr.base import HalfSpaceIndex

# Where each class is, to be imported when it is needed; everything else about a kind is in its class.
KINDS = {
    "scan": "fireset.hsr.scan:ScanIndex",
    "partition-tree": "fireset.hsr.partition_tree:PartitionTreeIndex",
    "convex-layers": "fireset.hsr.convex_layers:ConvexLayersIndex",
    "hull-hierarchy": "fireset.hsr.hull_hierarchy:HullHierarchyIndex",
}


def index_class(kind: str) -> type[HalfSpaceIndex]:
    """The class of a kind other than "auto"."""
    return load(KINDS[check_kind(kind)])


def build(
    points,
    kind: str = "auto",
    *,
    dynamic: bool = True,
    output: float | None = None,
    queries: float | None = None,
    **options,
) -> HalfSpaceIndex:
    """An index over the rows of ``points``, (n, d), in float32 if they are in that or in float16, else in float64.

    Parameters
    ----------
    kind : "auto", "scan", "partition-tree", "convex-layers" (d = 2, static) or "hull-hierarchy" (d ≥ 3, static)
        "auto" takes the cheapest by ``choose``.
    dynamic : bool
        Whether points will be added, deleted or moved; matters to "auto" only.
    output, queries : float, optional
        How many points a query is expected to report, and how many queries will be asked; for "auto".
    options
        For the kind: "hull-hierarchy" takes ``memory_limit``, in bytes; "scan" takes ``copy=False`` if nobody will
        change ``points``, and then keeps the array itself where it can; of an array mapped from a file that is the
        default. It keeps float16 as it is (``fireset.hsr.scan``).
    """
    check_kind(kind)
    is_mapped = isinstance(points, np.memmap)
    try:
        points = points if is_mapped else np.asarray(points)
        if points.dtype not in (np.float16, np.float32):
            points = points.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"points must be a matrix of numbers: {error}") from None
    if points.ndim != 2:
        raise InputError(f"points must have shape (n, d), got {points.shape}")
    if points.shape[1] == 0:
        raise InputError(f"points must have at least one column, got shape {points.shape}")
    if kind == "auto":
        kind = choose(*points.shape, dynamic=dynamic, output=output, queries=queries)
    cls = index_class(kind)
    unknown = [option for option in options if option not in signature(cls).parameters]
    if unknown:
        raise InputError(f"an index of kind {kind!r} does not take {', '.join(unknown)}")
    if kind == "scan":
        options = {"copy": not is_mapped, **options}
    elif points.dtype == np.float16:
        points = points.astype(np.float32)
    return cls(points, **options)


def choose(n: int, d: int, *, dynamic: bool = True, output: float | None = None, queries: float | None = None) -> str:
    """The kind that "auto" stands for: the cheapest of those that support what is asked (``fireset.hsr.cost``).

    Without ``output`` it is what the paper's threshold leaves, n·P(z > √(0.4 ln n)); without ``queries`` there are as
    many of them as points. "hull-hierarchy" is never the cheapest where it was measured, d = 3 … 5 and n up to 10⁵: its
    lists are 20 times as long as the answer and more, and a tree tests as few points.
    """
    output = cost.paper_output(n) if output is None else output
    queries = max(1.0, n if queries is None else queries)
    costs = {
        "scan": cost.scan_query(n, d),
        "partition-tree": cost.tree_query(n, d, output) + cost.tree_build(n, d) / queries,
    }
    if not dynamic and d == 2:
        costs["convex-layers"] = cost.layers_query(n, output) + cost.layers_build(n) / queries
    return min(costs, key=costs.__getitem__)


def kinds() -> list[str]:
    """The kinds of index that ``build`` can make, without "auto"."""
    return list(KINDS)


def check_kind(kind: str, *, dynamic: bool = False) -> str:
    """``kind`` if ``build`` knows it and, with ``dynamic``, it can be changed; otherwise an InputError."""
    if kind != "auto" and kind not in KINDS:
        raise InputError(f"kind must be one of auto, {', '.join(KINDS)}; got {kind!r}")
    if dynamic and kind != "auto" and not index_class(kind).dynamic:
        dynamic_kinds = ", ".join(name for name in KINDS if index_class(name).dynamic)
        raise InputError(f"kind must be one that can be changed, auto, {dynamic_kinds}; got {kind!r}")
    return kind
