"""Half-space reporting beside its peers, in one process, alternating, two threads each.

    python benchmarks/bench_index.py [--quick] [--only PART]

Parts: queries (faiss, NumPy, BallTree), one (one normal beside NumPy), top (faiss, usearch), builds (scipy's cKDTree),
changes, static (work beyond the output), families (exponents on points that are hard for an index), space (space and
query time of cell trees), exact (10⁶ queries against brute force). Results go to benchmarks/results/ as JSON and
Markdown.
"""

import json
import os
import sys
import time
from functools import partial

THREADS = "2"
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, THREADS)

import faiss  # noqa: E402 - after the thread counts
import numpy as np  # noqa: E402
import usearch  # noqa: E402
from index_tools import alternating, gaussian, paper_threshold, sphere, table, timed  # noqa: E402
from one_and_top import one_table, run_one, run_top, top_table  # noqa: E402
from parts import run_parts  # noqa: E402
from point_families import FAMILIES, exponent, family, few_above  # noqa: E402
from scipy.spatial import cKDTree  # noqa: E402
from sklearn.neighbors import BallTree  # noqa: E402
from space_and_time import run_space, space_table  # noqa: E402

from fireset import InputError  # noqa: E402
from fireset.hsr import build  # noqa: E402
from fireset.kernels.firing import deciding_dot  # noqa: E402

QUERIES = 500
ROUNDS = 5
CASES = {  # (points, dimensions): goal, as a multiple of faiss's speed
    (1_000_000, 3): 60.0,
    (100_000, 3): 20.0,
    (10_000, 3): None,
    (100_000, 5): None,
    (100_000, 8): 2.5,
    (100_000, 16): 1.0,
    (100_000, 64): 1.0,
    (100_000, 256): 1.0,
    (1_000_000, 16): 1.0,
}
MAX_FOR_A_BALL_TREE = 4_000_000  # coordinates: beyond, it takes minutes


def numpy_scan(points: np.ndarray, normals: np.ndarray, threshold: float) -> list[np.ndarray]:
    found = []
    for lo in range(0, len(normals), 64):
        above = normals[lo : lo + 64] @ points.T > points.dtype.type(threshold)
        found += [np.flatnonzero(row) for row in above]
    return found


def run_queries(quick: bool) -> list[dict]:
    return [one_case(n, d, target, quick) for (n, d), target in CASES.items() if not quick or n * d <= 1e6]


def one_case(n: int, d: int, target: float | None, quick: bool) -> dict:
    points, normals, threshold = gaussian(n, d), sphere(QUERIES, d), paper_threshold(n)
    thresholds = np.full(QUERIES, threshold)
    flat = faiss.IndexFlatIP(d)
    flat.add(points)
    indexes = {"auto": build(points), "scan": build(points, "scan")}
    if d <= 16:
        indexes["partition-tree"] = build(points, "partition-tree")
    contenders = {name: lambda i=index: i.query_batch(normals, thresholds) for name, index in indexes.items()}
    contenders["auto, any order"] = lambda: indexes["auto"].query_batch(normals, thresholds, ordered=False)
    contenders["faiss range_search"] = lambda: flat.range_search(normals, threshold)
    contenders["NumPy scan"] = lambda: numpy_scan(points, normals, threshold)
    seconds = alternating(contenders, 2 if quick else ROUNDS)
    expected = np.concatenate(numpy_scan(points, normals, threshold))
    work = {}
    for name, index in indexes.items():
        before = index.work.nodes_visited, index.work.points_tested, index.work.points_in_bulk
        ids = index.query_batch(normals, thresholds)[1]
        # In float32 a point within rounding distance of the threshold may fall on either side.
        assert abs(len(ids) - len(expected)) <= 1e-4 * len(expected) + 2, name
        after = index.work.nodes_visited, index.work.points_tested, index.work.points_in_bulk
        work[name] = [(b - a) / QUERIES for a, b in zip(before, after, strict=True)]
    case = {
        "n": n,
        "d": d,
        "auto": indexes["auto"].kind,
        "target": target,
        "found": len(expected) / QUERIES,
        "microseconds": {name: 1e6 * s / QUERIES for name, s in seconds.items()},
        "faiss_over_auto": seconds["faiss range_search"] / seconds["auto"],
        "faiss_over_any_order": seconds["faiss range_search"] / seconds["auto, any order"],
        "numpy_over_auto": seconds["NumPy scan"] / seconds["auto"],
        "work": work,
    }
    if n * d <= MAX_FOR_A_BALL_TREE and d <= 16:
        case["on the sphere"] = beside_ball_tree(n, d, len(expected) / QUERIES / n)
    print(json.dumps(case), file=sys.stderr, flush=True)
    return case


def beside_ball_tree(n: int, d: int, share: float) -> dict:
    """On unit vectors ⟨x, p⟩ > t is ‖x − p‖² < 2 − 2t, which scikit-learn's BallTree can answer."""
    points, normals = sphere(n, d, seed=2), sphere(QUERIES, d, seed=3)
    threshold = float(np.quantile(normals[:50] @ points.T, 1 - share))
    ball, index = BallTree(points), build(points)
    thresholds = np.full(QUERIES, threshold)
    radius = np.sqrt(2 - 2 * threshold)
    seconds = alternating(
        {
            "auto": lambda: index.query_batch(normals, thresholds),
            "BallTree": lambda: ball.query_radius(normals, radius),
        },
        2,
    )
    return {name: 1e6 * s / QUERIES for name, s in seconds.items()}


def run_builds(quick: bool) -> list[dict]:
    rows = []
    for n, d in ((10_000, 3), (100_000, 3), (100_000, 8), *(() if quick else ((1_000_000, 3), (1_000_000, 8)))):
        points = gaussian(n, d)
        contenders = {
            "partition-tree": lambda p=points: build(p, "partition-tree"),
            "cKDTree": lambda p=points: cKDTree(p),
        }
        seconds = alternating(contenders, 3)
        rows.append({"n": n, "d": d, **seconds, "ratio": seconds["partition-tree"] / seconds["cKDTree"]})
    return rows


def run_changes(quick: bool) -> list[dict]:
    """Replace 1 % of the points, again and again: every point is replaced once, on average, in 100 rounds."""
    rows = []
    for n, d in ((10_000, 3), (100_000, 3), (100_000, 8), *(() if quick else ((1_000_000, 3),))):
        points, rng = gaussian(n, d), np.random.default_rng(0)
        making = float(np.median([timed(lambda p=points: build(p, "partition-tree")) for _ in range(5)]))
        index, ids, seconds, moving = build(points, "partition-tree"), np.arange(n), [], []
        normals, thresholds = sphere(QUERIES, d), np.full(QUERIES, paper_threshold(n))
        tested = work_of(index, normals, thresholds)
        for _ in range(100):
            some = rng.choice(n, n // 100, replace=False)
            new = rng.standard_normal((len(some), d)).astype(np.float32)
            started = time.perf_counter()
            index.delete(ids[some])
            added = index.add(new)
            seconds.append(time.perf_counter() - started)
            ids[some] = added
            near = rng.choice(n, n // 100, replace=False)
            rows_near = rng.standard_normal((len(near), d)).astype(np.float32)
            moving.append(timed(lambda x=index, i=ids[near], r=rows_near: x.move(i, r)))
        rows.append(
            {
                "n": n,
                "d": d,
                "build_seconds": making,
                "replacing_share_of_build": float(np.mean(seconds[1:])) / making,
                "largest_share_of_build": float(np.max(seconds[1:])) / making,
                "moving_share_of_build": float(np.mean(moving[1:])) / making,
                "tests_after_over_before": work_of(index, normals, thresholds) / tested,
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def run_growth(quick: bool) -> list[dict]:
    """Microseconds to add a point while an index grows from nothing, batch by batch: amortized O(log² n)."""
    index, rows, seconds, since = build(np.empty((0, 3), np.float32), "partition-tree"), [], 0.0, 0
    batch = gaussian(1000, 3)
    for k in range(100 if quick else 1000):
        new = batch + gaussian(1, 3, seed=k)
        seconds += timed(lambda n=new: index.add(n))
        if len(index) in (10_000, 100_000, 1_000_000):
            rows.append({"n": len(index), "microseconds_per_point": 1e6 * seconds / (len(index) - since)})
            seconds, since = 0.0, len(index)
    return rows


def work_of(index, normals, thresholds) -> int:
    before = index.work.points_tested
    index.query_batch(normals, thresholds)
    return index.work.points_tested - before


def run_static(quick: bool) -> list[dict]:
    """Work beyond the output of the static kinds, for outputs of about 20 points whatever their number."""
    cases = [("convex-layers", 2, n) for n in (1_000, 10_000, 100_000, *(() if quick else (1_000_000,)))]
    cases += [("hull-hierarchy", 3, n) for n in (1_000, 10_000, *(() if quick else (100_000,)))]
    rows = []
    for kind, d, n in cases:
        points, normals = gaussian(n, d, "float64"), sphere(QUERIES, d, "float64")
        thresholds = np.sort(normals @ points.T, axis=1)[:, -21]  # 20 points lie above
        started = time.perf_counter()
        index = build(points, kind)
        making = time.perf_counter() - started
        index.query_batch(normals, thresholds)
        ask = partial(index.query_batch, normals, thresholds)
        seconds = min(timed(ask) for _ in range(3))
        work = index.work
        beyond = (work.nodes_visited + work.points_tested - work.points_reported) / work.queries
        rows.append(
            {
                "kind": kind,
                "n": n,
                "d": d,
                "found": work.points_reported / work.queries,
                "beyond": beyond,
                "beyond_over_log2_n": beyond / np.log2(n),
                "microseconds": 1e6 * seconds / QUERIES,
                "build_seconds": making,
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def run_families(quick: bool) -> list[dict]:
    """Growth of the work with n where about 20 points are found, on points and normals that are hard for an index."""
    sizes = (1_000, 10_000) if quick else (1_000, 10_000, 100_000)
    kinds = {2: ("convex-layers",), 3: ("hull-hierarchy",)}
    rows = []
    for d in (2, 3, 4, 6):
        for name in FAMILIES:
            for kind in ("partition-tree", "cell-tree", *kinds.get(d, ())):
                rows.append({"d": d, "family": name, "kind": kind, **family_work(name, kind, d, sizes)})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def family_work(name: str, kind: str, d: int, sizes: tuple[int, ...]) -> dict:
    """Points tested, nodes and processor time of a query for each size, and their exponents; or the refusal."""
    tested, nodes, seconds, making = [], [], [], []
    for n in sizes:
        points, normals = family(name, n, d)
        thresholds = few_above(points, normals)
        started = time.perf_counter()
        try:
            index = build(points, kind)
        except InputError as error:
            return {"refused": str(error)}
        making.append(time.perf_counter() - started)
        index.query_batch(normals, thresholds)
        tested.append(index.work.points_tested / len(normals))
        nodes.append(index.work.nodes_visited / len(normals))
        seconds.append(min(processor_seconds(index, normals, thresholds) for _ in range(5)) / len(normals))
    exponents = [exponent(sizes, work) for work in (tested, nodes, 1e6 * np.array(seconds))]
    microseconds = [1e6 * each for each in seconds]
    return {
        "tested": tested,
        "nodes": nodes,
        "microseconds": microseconds,
        "build_seconds": making,
        "exponents": exponents,
    }


def processor_seconds(index, normals: np.ndarray, thresholds: np.ndarray) -> float:
    started = time.process_time()
    index.query_batch(normals, thresholds)
    return time.process_time() - started


def run_exact(quick: bool) -> list[dict]:
    """Random queries of every kind against brute force in float64, thresholds on points and between them."""
    from numba import njit

    @njit
    def differences(points, normals, thresholds, indptr, ids):
        wrong = 0
        for q in range(len(normals)):
            p = indptr[q]
            for i in range(len(points)):
                reported = p < indptr[q + 1] and ids[p] == i
                p += reported
                wrong += reported != (deciding_dot(normals[q], points[i]) > thresholds[q])
            wrong += p != indptr[q + 1]
        return wrong

    rows = []
    for kind, dimensions in (
        ("scan", (2, 3, 8, 20)),
        ("partition-tree", (2, 3, 8, 20)),
        ("cell-tree", (2, 3, 4, 8)),
        ("convex-layers", (2,)),
        ("hull-hierarchy", (3, 4)),
    ):
        total, wrong, found = 0, 0, 0
        while total < (10_000 if quick else 1_000_000):
            rng = np.random.default_rng(total)
            d = dimensions[total // 20_000 % len(dimensions)]
            points = rng.standard_normal((int(rng.integers(1, 3000)), d))
            if total % 40_000 == 0:
                points = np.round(points * 2) / 2  # duplicates, and many points on a plane
            index = build(points, kind)
            normals = rng.standard_normal((20_000 if not quick else 2_000, d))
            thresholds = rng.standard_normal(len(normals)) * 2
            on = rng.random(len(normals)) < 0.3  # exactly on a point, up to rounding
            thresholds[on] = np.einsum("ij,ij->i", normals[on], points[rng.integers(0, len(points), on.sum())])
            indptr, ids = index.query_batch(normals, thresholds)
            wrong += differences(points, normals, thresholds, indptr, ids)
            total += len(normals)
            found += len(ids)
        rows.append({"kind": kind, "queries": total, "found": found, "differences": wrong})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def to_markdown(results: dict) -> str:
    lines = [f"# Half-space reporting, {results['date']}", "", results["machine"], ""]
    if results.get("queries"):
        lines += [
            f"{QUERIES} queries at a time, b = √(0.4 ln n), Gaussian points, unit normals, float32; µs per query. "
            "faiss is IndexFlatIP.range_search, NumPy a scan in blocks of 64 queries.",
            *queries_table(results["queries"]),
            "Work of the partition tree for each query, and unit vectors beside scikit-learn's BallTree (µs):",
            *work_table(results["queries"]),
        ]
    if results.get("one"):
        lines += ["One normal at a time beside `np.flatnonzero(points @ normal > b)`, µs:", *one_table(results["one"])]
    if results.get("top"):
        lines += [
            f"The k points of largest inner product, {QUERIES} normals at a time, µs per normal; usearch's graph is "
            "not exact, and its recall is given:",
            *top_table(results["top"]),
        ]
    if results.get("builds"):
        lines += ["Building, seconds:", *builds_table(results["builds"])]
    if results.get("changes"):
        lines += [
            "Changes of 1 % of the points, 100 times over, as a share of a build (mean, and the dearest of them), and "
            "points tested by the same queries afterwards:",
            *changes_table(results["changes"]),
        ]
    for row in results.get("growth", []):
        each = row["microseconds_per_point"]
        lines.append(f"Growing to {row['n']:,} points by batches of 1,000: {each:.2f} µs per point.")
    if results.get("static"):
        lines += [
            "",
            "Static kinds, 20 points above: work (nodes, list entries and points looked at) beyond the output.",
            *static_table(results["static"]),
        ]
    if results.get("families"):
        lines += [
            "Points and normals that are hard for an index (`benchmarks/point_families.py`), about 20 points above: "
            "points tested, nodes visited and µs of processor time of a query at the largest n, and exponents in n. "
            "The bound is the exponent of shallow half-spaces in linear space, 1 − 1/⌊d/2⌋ (Matoušek 1992).",
            *families_table(results["families"]),
        ]
    if results.get("space"):
        lines += [
            "Cell trees of 100,000 points by the number of directions that bound a cell: bytes per point, and points "
            "tested, nodes and µs of processor time of a query that finds about 20 points; exponents of all three in "
            "the space. The theorem of Agarwal, Eppstein and Matoušek has −1/2 for d = 4.",
            *space_table(results["space"]),
        ]
    if results.get("exact"):
        rows = [[r["kind"], f"{r['queries']:,}", f"{r['found']:,}", str(r["differences"])] for r in results["exact"]]
        lines += ["Against brute force, float64:", *table("kind", "queries", "found", "differences", rows=rows)]
    return "\n".join(lines) + "\n"


def queries_table(cases: list[dict]) -> list[str]:
    names = ("auto", "auto, any order", "partition-tree", "scan", "faiss range_search", "NumPy scan")
    rows = []
    for case in cases:
        us = [f"{case['microseconds'][name]:.1f}" if name in case["microseconds"] else "" for name in names]
        ratios = [f"{case[name]:.1f}" for name in ("faiss_over_auto", "faiss_over_any_order", "numpy_over_auto")]
        ratios.append(f"{case['target'] or ''}")
        rows.append([f"{case['n']:,}", str(case["d"]), f"{case['found']:.0f}", case["auto"], *us, *ratios])
    ratios = ("faiss / auto", "faiss / any order", "NumPy / auto", "goal, faiss / auto")
    return table("n", "d", "found", "auto is", *names, *ratios, rows=rows)


def work_table(cases: list[dict]) -> list[str]:
    rows = []
    for case in cases:
        if "partition-tree" in case["work"]:
            counts = [f"{count:.0f}" for count in (*case["work"]["partition-tree"], case["found"])]
            ball = case.get("on the sphere", {})
            beside = [f"{ball[name]:.1f}" if ball else "" for name in ("auto", "BallTree")]
            rows.append([f"{case['n']:,}", str(case["d"]), *counts, *beside])
    return table("n", "d", "nodes", "tested", "in bulk", "found", "auto, sphere", "BallTree, sphere", rows=rows)


def builds_table(builds: list[dict]) -> list[str]:
    names = ("partition-tree", "cKDTree")
    rows = [[f"{r['n']:,}", str(r["d"]), *(f"{r[name]:.4f}" for name in names), f"{r['ratio']:.2f}"] for r in builds]
    return table("n", "d", *names, "ratio", rows=rows)


def changes_table(changes: list[dict]) -> list[str]:
    names = ("replacing_share_of_build", "largest_share_of_build", "moving_share_of_build")
    rows = [
        [f"{r['n']:,}", str(r["d"]), *(f"{r[name]:.1%}" for name in names), f"{r['tests_after_over_before']:.2f}"]
        for r in changes
    ]
    return table("n", "d", "delete and add", "dearest", "move anywhere", "tests after / before", rows=rows)


def static_table(static: list[dict]) -> list[str]:
    names = ("found", "beyond", "beyond_over_log2_n", "microseconds", "build_seconds")
    rows = [[r["kind"], f"{r['n']:,}", str(r["d"]), *(f"{r[name]:.2f}" for name in names)] for r in static]
    return table("kind", "n", "d", "found", "beyond", "beyond / log₂ n", "µs per query", "build, s", rows=rows)


def families_table(families: list[dict]) -> list[str]:
    rows = []
    for r in families:
        named = [str(r["d"]), r["family"], r["kind"]]
        if "refused" in r:
            rows.append([*named, "refused", *[""] * 6])
            continue
        largest = [f"{r[name][-1]:.0f}" for name in ("tested", "nodes", "microseconds")]
        rows.append([*named, *largest, *(f"{e:.2f}" for e in r["exponents"]), f"{1 - 1 / (r['d'] // 2):.2f}"])
    names = ("tested", "nodes", "µs")
    return table("d", "family", "kind", *names, *(f"{name}, exponent" for name in names), "bound", rows=rows)


PARTS = {
    "queries": run_queries,
    "one": run_one,
    "top": run_top,
    "builds": run_builds,
    "changes": run_changes,
    "growth": run_growth,
    "static": run_static,
    "families": run_families,
    "space": run_space,
    "exact": run_exact,
}


if __name__ == "__main__":
    faiss.omp_set_num_threads(int(THREADS))
    run_parts("index", PARTS, to_markdown, f"faiss {faiss.__version__}", f"usearch {usearch.__version__}")
