"""Parts of bench_index: one normal beside NumPy, and the k largest inner products beside faiss and usearch."""

import json
import sys
from functools import partial

import faiss
import numpy as np
from index_tools import alternating, gaussian, paper_threshold, sphere, table
from usearch.index import Index, MetricKind, search

from fireset.hsr import build

ONE = ((1_000, 16), (10_000, 3), (10_000, 64), (100_000, 3), (100_000, 64), (1_000_000, 3), (1_000_000, 16))
TOP = ((10_000, 3), (100_000, 3), (100_000, 64), (1_000_000, 3))
MAX_FOR_A_GRAPH = 100_000  # points: beyond, usearch takes minutes to build
QUERIES = 500


def run_one(quick: bool) -> list[dict]:
    return [one_case(n, d, dtype, quick) for n, d in ONE[: 3 if quick else None] for dtype in ("float32", "float64")]


def one_case(n: int, d: int, dtype: str, quick: bool) -> dict:
    """Microseconds of one query."""
    points, normal, b = gaussian(n, d, dtype), sphere(1, d, dtype)[0], paper_threshold(n)
    scan, auto, rounded = build(points, "scan"), build(points), points.dtype.type(b)
    contenders = {
        "NumPy": lambda: np.flatnonzero(points @ normal > rounded),
        "scan": lambda: scan.query(normal, b),
        "auto": lambda: auto.query(normal, b),
    }
    seconds = alternating(contenders, 3 if quick else 7)
    row = {"n": n, "d": d, "dtype": dtype, "auto is": auto.kind, **{name: 1e6 * s for name, s in seconds.items()}}
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def run_top(quick: bool) -> list[dict]:
    return [row for n, d in TOP[: 1 if quick else None] for row in top_cases(n, d, quick)]


def top_cases(n: int, d: int, quick: bool) -> list[dict]:
    """Microseconds for each normal, for several k; what is exact is checked against faiss, up to rounding."""
    points, normals = gaussian(n, d), sphere(QUERIES, d)
    flat = faiss.IndexFlatIP(d)
    flat.add(points)
    graph = Index(ndim=d, metric=MetricKind.IP) if n <= MAX_FOR_A_GRAPH else None
    if graph is not None:
        graph.add(np.arange(n), points, threads=2)
    indexes = {kind: build(points, kind) for kind in (("scan", "partition-tree") if d < 8 else ("scan",))}
    rows = []
    for k in (1, 10, 100):
        contenders = {name: partial(index.top, normals, k) for name, index in indexes.items()}
        contenders["faiss"] = partial(flat.search, normals, k)
        contenders["usearch exact"] = partial(search, points, normals, k, MetricKind.IP, exact=True, threads=2)
        if graph is not None:
            contenders["usearch graph"] = partial(graph.search, normals, k, threads=2)
        seconds = alternating(contenders, 2 if quick else 5)
        best = flat.search(normals, k)[0]
        for name, index in indexes.items():
            np.testing.assert_allclose(index.top(normals, k).values, best, rtol=1e-4, err_msg=name)
        row = {"n": n, "d": d, "k": k, **{name: 1e6 * s / QUERIES for name, s in seconds.items()}}
        if graph is not None:
            exact, found = indexes["scan"].top(normals, k).ids, np.reshape(graph.search(normals, k).keys, (QUERIES, k))
            shared = [len(np.intersect1d(a, b)) for a, b in zip(exact, found, strict=True)]
            row["recall of the graph"] = float(np.mean(shared)) / k
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def one_table(rows: list[dict]) -> list[str]:
    lines = []
    for row in rows:
        times = [f"{row[name]:.1f}" for name in ("NumPy", "scan", "auto")]
        ratios = [f"{row['NumPy'] / row[name]:.2f}" for name in ("scan", "auto")]
        lines.append([f"{row['n']:,}", str(row["d"]), row["dtype"], row["auto is"], *times, *ratios])
    return table("n", "d", "", "auto is", "NumPy", "scan", "auto", "NumPy / scan", "NumPy / auto", rows=lines)


def top_table(rows: list[dict]) -> list[str]:
    names = ("partition-tree", "scan", "faiss", "usearch exact", "usearch graph")
    lines = []
    for row in rows:
        times = [f"{row[name]:.1f}" if name in row else "" for name in names]
        recall = f"{row['recall of the graph']:.3f}" if "recall of the graph" in row else ""
        lines.append([f"{row['n']:,}", str(row["d"]), str(row["k"]), *times, recall])
    return table("n", "d", "k", *names, "recall of the graph", rows=lines)
