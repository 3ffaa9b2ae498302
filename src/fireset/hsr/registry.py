"""Build an index of a given kind, or of the kind that is cheapest by the cost model."""

from inspect import signature

import numpy as np

from fireset._util.errors import InputError
from fireset._util.registry import Registry
from fireset.hsr import cost
from fireset.hsr.base import HalfSpaceIndex

# Classes are imported when an index is built: their modules import numba.
_BUILT_IN = {
    "scan": "fireset.hsr.scan:ScanIndex",
    "partition-tree": "fireset.hsr.partition_tree:PartitionTreeIndex",
    "cell-tree": "fireset.hsr.cell_tree:CellTreeIndex",
    "convex-layers": "fireset.hsr.convex_layers:ConvexLayersIndex",
    "hull-hierarchy": "fireset.hsr.hull_hierarchy:HullHierarchyIndex",
}
KINDS = Registry("fireset.indexes", _BUILT_IN, name_attribute="kind")

_PROBE_POINTS = 2048  # sample of ``suitable_kind``
_MAX_PROBE_DIMENSION = 6  # in more dimensions most boxes are cut for random points, too
_MAX_TESTED_BOXES, _MAX_TESTED_CELLS = 0.7, 0.5  # shares of the sample
_MIN_VARIANCE = 1e-18  # along axes with less variance all points are equal up to rounding


def index_class(kind: str) -> type[HalfSpaceIndex]:
    """Return the class of a kind other than "auto"."""
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
    """Build an index over the rows of ``points``.

    Parameters
    ----------
    points : array (n, d)
        Indexed in float32 if they are float32 or float16, otherwise in float64.
    kind : str
        "auto", "scan", "partition-tree", "cell-tree", "convex-layers" (d = 2, static) or "hull-hierarchy" (d ≥ 3,
        static). "auto" is the cheapest by ``choose``, or "cell-tree" or "scan" for points of which that kind would test
        nearly all (``suitable_kind``).
    ids : list of whole numbers, optional
        Ids for the points, any 64-bit integers; by default 0, 1, 2, … in their order.
    dynamic : bool
        Whether points will be added, deleted or moved; used by "auto" only.
    output, queries : float, optional
        Expected number of points that a query reports, and of queries; used by "auto" only.
    options
        Options of the kind. "cell-tree": ``directions``, the number of directions that bound a cell. "hull-hierarchy":
        ``memory_limit`` in bytes. "scan": ``copy=False`` to use the array ``points`` itself if possible, which must
        then not be changed; the default for an array that is mapped from a file. "scan" does not convert float16.
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
        if kind != "scan":
            kind = suitable_kind(points, kind)
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
    """Return the kind that "auto" stands for: the cheapest by ``fireset.hsr.cost`` that supports the arguments.

    By default ``output`` is the number of points above the paper's threshold, n·P(z > √(0.4 ln n)), and ``queries`` is
    n. "hull-hierarchy" was never the cheapest for d = 3 … 5 and n up to 10⁵: its lists are at least 20 times as long as
    the answer, and a tree tests as few points.
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


def suitable_kind(points, kind: str = "partition-tree") -> str:
    """Return ``kind``, or "cell-tree" or "scan" if all points are equal or boxes do not separate a sample of them.

    A tree over the sample is queried for 1 % of it along each principal axis, in both directions. Across a thin set
    that is oblique to the coordinate axes every box is cut. If cells do not separate the points either, because they
    differ by little more than rounding errors, or if there are too few points for the cells to pay, a scan is faster.
    Convex layers separate all points that are not equal. For more than 6 dimensions the result is always ``kind``.
    """
    n, d = points.shape
    sample = np.array(points[:: max(1, n // _PROBE_POINTS)], np.float64)  # a copy, which is scaled
    if d > _MAX_PROBE_DIMENSION or not np.isfinite(sample).all():
        return kind
    largest = np.abs(sample).max(initial=0.0)
    sample /= largest if largest > 0 else 1.0
    variances, vectors = np.linalg.eigh(np.cov(sample.T).reshape(d, d))
    axes = vectors.T[variances > _MIN_VARIANCE]
    normals = np.concatenate([axes, -axes])
    thresholds = np.quantile(normals @ sample.T, 0.99, axis=1) if len(axes) else np.empty(0)
    sample = sample.astype(np.float64 if points.dtype == np.float64 else np.float32)

    def largest_share(kind: str) -> float:
        """Return the share of the sample that a query tests, at most."""
        tree, tested = index_class(kind)(sample), [0]
        for normal, threshold in zip(normals, thresholds, strict=True):
            tree.query(normal, float(threshold))
            tested.append(tree.work.points_tested)
        return float(np.diff(tested).max()) / len(sample)

    if len(axes) and (kind == "convex-layers" or largest_share("partition-tree") <= _MAX_TESTED_BOXES):
        return kind
    if not cost.cells_pay(n, d):
        return "scan"
    return "cell-tree" if not len(axes) or largest_share("cell-tree") <= _MAX_TESTED_CELLS else "scan"


def kinds() -> list[str]:
    """List the kinds of index that ``build`` supports, without "auto"."""
    return list(KINDS)


def check_kind(kind: str, *, dynamic: bool = False) -> str:
    """Return ``kind`` if it exists and, with ``dynamic``, can be changed; otherwise raise an InputError."""
    if kind != "auto" and kind not in KINDS:
        raise InputError(f"kind must be one of auto, {', '.join(KINDS)}; got {kind!r}")
    if dynamic and kind != "auto" and not index_class(kind).dynamic:
        dynamic_kinds = ", ".join(name for name in KINDS if index_class(name).dynamic)
        raise InputError(f"kind must be one that can be changed, auto, {dynamic_kinds}; got {kind!r}")
    return kind
