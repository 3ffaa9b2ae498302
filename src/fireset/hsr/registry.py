"""Building an index of a given kind, or of the kind that is cheapest by the cost model."""

from inspect import signature

import numpy as np

from fireset._util.errors import InputError
from fireset._util.registry import Registry
from fireset.hsr import cost
from fireset.hsr.base import HalfSpaceIndex

# Where each class is, to be imported when it is needed; everything else about a kind is in its class.
_BUILT_IN = {
    "scan": "fireset.hsr.scan:ScanIndex",
    "partition-tree": "fireset.hsr.partition_tree:PartitionTreeIndex",
    "cell-tree": "fireset.hsr.cell_tree:CellTreeIndex",
    "convex-layers": "fireset.hsr.convex_layers:ConvexLayersIndex",
    "hull-hierarchy": "fireset.hsr.hull_hierarchy:HullHierarchyIndex",
}
KINDS = Registry("fireset.indexes", _BUILT_IN, name_attribute="kind")

_SAMPLE = 2048  # points of the probe of ``boxes_suit``
_MAX_PROBED = 4  # coordinates; in more dimensions random points, too, have most boxes cut
_MAX_TESTED = 0.7  # of the sample
_FLAT = 1e-18  # variances below this may be rounding, across which all points tie


def index_class(kind: str) -> type[HalfSpaceIndex]:
    """The class of a kind other than "auto"."""
    return KINDS.load(check_kind(kind), HalfSpaceIndex)


def build(
    points,
    kind: str = "auto",
    *,
    ids=None,
    dynamic: bool = True,
    output: float | None = None,
    queries: float | None = None,
    **options,
) -> HalfSpaceIndex:
    """An index over the rows of ``points``, (n, d), in float32 if they are in that or in float16, else in float64.

    Parameters
    ----------
    kind : str
        "auto", "scan", "partition-tree", "cell-tree", "convex-layers" (d = 2, static) or "hull-hierarchy" (d ≥ 3,
        static).
        "auto" takes the cheapest by ``choose``, and "cell-tree" in place of "partition-tree" for points along whose
        principal axes a box tree would test nearly all of them.
    ids : list of whole numbers, optional
        Ids for the points, any 64-bit integers; by default 0, 1, 2, … in their order.
    dynamic : bool
        Whether points will be added, deleted or moved; matters to "auto" only.
    output, queries : float, optional
        How many points a query is expected to report, and how many queries will be asked; for "auto".
    options
        For the kind: "cell-tree" takes ``directions``, the number of directions that bound a cell; "hull-hierarchy"
        takes ``memory_limit``, in bytes; "scan" takes ``copy=False`` if nobody will change ``points``, and then keeps
        the array itself where it can; of an array mapped from a file that is the default. It keeps float16 as it is
        (``fireset.hsr.scan``).
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
        if kind == "partition-tree" and not boxes_suit(points):
            kind = "cell-tree"
    cls = index_class(kind)
    unknown = [option for option in options if option not in signature(cls).parameters]
    if unknown:
        raise InputError(f"an index of kind {kind!r} does not take {', '.join(unknown)}")
    if kind == "scan":
        options = {"copy": not is_mapped, **options}
    elif points.dtype == np.float16:
        points = points.astype(np.float32)
    index = cls(points, **options)
    if ids is not None:
        index.set_ids(ids)
    return index


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


def boxes_suit(points) -> bool:
    """Whether boxes separate the points of a sample along its principal axes; for up to 4 coordinates.

    Along each axis, both ways, a tree over the sample is searched for 1 % of it. Across a thin set that is oblique to
    the coordinate axes every box is cut.
    """
    n, d = points.shape
    sample = np.asarray(points[:: max(1, n // _SAMPLE)], np.float64)
    if d > _MAX_PROBED or not np.isfinite(sample).all():
        return True
    largest = np.abs(sample).max(initial=0.0)
    sample = (sample - sample.mean(axis=0)) / (largest if largest > 0 else 1.0)
    variances, vectors = np.linalg.eigh(np.cov(sample.T).reshape(d, d))
    axes = vectors.T[variances > _FLAT]
    tree = index_class("partition-tree")(sample)
    for normal in np.concatenate([axes, -axes]):
        before = tree.work.points_tested
        tree.query(normal, float(np.quantile(sample @ normal, 0.99)))
        if tree.work.points_tested - before > _MAX_TESTED * len(sample):
            return False
    return True


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
