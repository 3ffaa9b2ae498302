"""Space and query time of a cell tree by its number of directions: part ``space`` of ``bench_index.py``.

The theorem of Agarwal, Eppstein and Matoušek has a parameter t between n and n^⌊d/2⌋: space t^(1+ε), query time
n/t^(1/⌊d/2⌋) log n + k. For d = 2 and 3 the only value is t = n. For d = 4 the query time falls as t^(−1/2).
"""

import json
import sys
import time

import numpy as np
from index_tools import table
from point_families import exponent, family, few_above

from fireset.hsr.cell_tree import CellTreeIndex

POINTS = 100_000
FAMILIES = ("random", "sphere", "moment curve")
DIRECTIONS = {2: (0, 64), 3: (0, 8, 16, 32, 64, 128, 256), 4: (0, 8, 16, 32, 64, 128, 256)}


def run_space(quick: bool) -> list[dict]:
    """Bytes of a point, and points tested, nodes and processor time of a query that finds about 20 points."""
    rows = []
    for d, counts in DIRECTIONS.items():
        for name in FAMILIES:
            points, normals = family(name, POINTS // 10 if quick else POINTS, d)
            thresholds = few_above(points, normals)
            for count in counts:
                rows.append({"d": d, "family": name, "directions": count, **cost(points, normals, thresholds, count)})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def cost(points: np.ndarray, normals: np.ndarray, thresholds: np.ndarray, directions: int) -> dict:
    started = time.process_time()
    index = CellTreeIndex(points, directions)
    build_seconds = time.process_time() - started
    (tree,) = index._trees.values()
    n_bytes = sum(array.nbytes for array in tree if isinstance(array, np.ndarray))
    index.query_batch(normals, thresholds)
    work, seconds = index.work, []
    found = {"tested": work.points_tested / len(normals), "nodes": work.nodes_visited / len(normals)}
    for _ in range(9):
        started = time.process_time()
        index.query_batch(normals, thresholds)
        seconds.append(time.process_time() - started)
    return {
        "bytes": n_bytes / len(points),
        **found,
        "microseconds": 1e6 * min(seconds) / len(normals),
        "build_seconds": build_seconds,
    }


def space_table(rows: list[dict]) -> list[str]:
    """One row for each d and number of directions, and the exponents of tests and time in the space."""
    cells = {(r["d"], r["directions"], r["family"]): r for r in rows}
    lines = []
    for d, counts in DIRECTIONS.items():
        for count in counts:
            own = [cells[d, count, name] for name in FAMILIES]
            shown = [f"{r['tested']:,.0f}; {r['nodes']:,.0f}; {r['microseconds']:.0f}" for r in own]
            space, seconds = (float(np.mean([r[key] for r in own])) for key in ("bytes", "build_seconds"))
            lines.append([str(d), str(count), f"{space:.0f}", *shown, f"{seconds:.2f}"])
        if len(counts) > 2:
            lines.append([str(d), "exponent", "", *(space_exponents(cells, d, name) for name in FAMILIES), ""])
    return table("d", "directions", "bytes per point", *FAMILIES, "build, s", rows=lines)


def space_exponents(cells: dict, d: int, name: str) -> str:
    """Exponents of points tested, nodes and time in the space."""
    own = [cells[d, count, name] for count in DIRECTIONS[d]]
    space = [r["bytes"] for r in own]
    return "; ".join(f"{exponent(space, [r[key] for r in own]):.2f}" for key in ("tested", "nodes", "microseconds"))
