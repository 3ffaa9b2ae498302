"""Half-space reporting by a dynamic partition tree: Part 1 of the paper's corollary (Agarwal, Eppstein, Matoušek).

Points are halved repeatedly along the widest coordinate of their box. A query skips subtrees whose box is outside the
half-space, reports subtrees whose box is inside without testing their points, and descends into the others. Boxes
replace the simplices of the theory: constants are far smaller, but its bound for the worst case does not hold. A node
has 16 children and a leaf up to 32 points, which a processor compares at once. The layout of the arrays is in
``fireset.kernels.partition_tree``.

Changes use partial rebuilding. An added point descends to the leaf whose boxes grow least. If the leaf is full, the
highest ancestor that has grown by half since it was built is rebuilt, or the leaf is split. A subtree of s points is
built in O(s log s), after at least s/3 additions to it: O(log s) for each of them. A subtree that was built with s
points and is not rebuilt has at most 1.5 s points, of which at most s are in one child (which had s/2 and gained s/2).
So each level has at most two thirds of the points of the level above, there are O(log n) levels, and an addition costs
O(log² n), amortized. A deletion updates O(log n) boxes; the tree is rebuilt when half of its points are gone. Boxes are
tight after every change, so queries do not become slower with the number of changes.
"""

from functools import cache

import numpy as np

from fireset._util.parallel import parallel_map
from fireset.hsr.base import Answers, Queries
from fireset.hsr.dynamic import DynamicIndex
from fireset.kernels.partition_tree import (
    BUCKETS,
    FAN,
    LEAF,
    N_BUILT,
    N_FILLED,
    N_POINTS,
    NODES,
    PARENT,
    TreeArrays,
    search,
    values_of,
)
from fireset.kernels.partition_tree_build import FILL, build_root, build_subtree, child_count
from fireset.kernels.partition_tree_update import NEEDS_CAPACITY, NEEDS_NEW_TREE, delete, insert, move
from fireset.kernels.sorting import sort_answers
from fireset.kernels.top_k import Heaps, push_tree

_BUFFER_IDS = 1 << 16  # space for the ids of a block of queries, in addition to those of the largest answer
_MAX_SPARE_BUFFERS, _MAX_SPARE_BYTES = 8, 16 << 20  # buffers kept for reuse, and bytes of each
_NO_VALUES = np.empty(0)
_REBUILD_SHARE = 0.3  # changes of more than this share of the points cost more than a new tree
_STACK = 2048  # children waiting in a search: 16 for each level, of which there are at most log(2³¹)/log(1.5) = 53


class PartitionTreeIndex(DynamicIndex):
    """A partition tree of boxes.

    Proved for any points and any d: changes take O(log² n), amortized; there is no bound for queries below n. If a thin
    set is oblique to the axes, a query across it cuts every box and tests all points (``fireset.hsr.cell_tree`` is for
    such sets). Measured for random points and planes (d = 2 … 12, ``fireset.hsr.cost``): a query takes about n^(1−1/d)
    + k, and a scan is faster from about d = 8 on. Memory is about 1.4 times the points and 14 bytes for each of them.
    """

    kind = "partition-tree"
    bytes_per_id = 8

    def __init__(self, points: np.ndarray):
        super().__init__(points)
        points = self._checked_rows(points, "points")
        self._update_largest_norm(points)
        self._next_id = len(points)
        self._build(points.copy(), np.arange(len(points), dtype=np.int32), len(points))
        self._length = len(points)  # after the last complete change

    def __len__(self) -> int:
        return self._length

    def _live_points(self) -> int:
        """Return the number of points in the tree, even during a change."""
        return int(self._tree.nodes[0, N_POINTS])

    def trimmed_arrays(self) -> TreeArrays:
        """Return read-only views of the arrays of a tree that was never changed, without spare capacity."""
        tree = self._tree
        nodes = len(tree.free_nodes) - tree.free_counts[0]
        leaves = len(tree.free_buckets) - tree.free_counts[1]
        return tree._replace(
            boxes=tree.boxes[:nodes],
            nodes=tree.nodes[:nodes],
            coordinates=tree.coordinates[:leaves],
            buckets=tree.buckets[:leaves],
        )

    def _build(self, rows: np.ndarray, ids: np.ndarray, max_ids: int) -> None:
        """Build a new tree of ``rows``, which are reordered with ``ids``, on all cores."""
        leaves = max(1, -(-len(rows) // FILL))
        nodes = _nodes_needed(leaves)
        # Space for half as many again costs nothing until it is used; adding capacity later copies all arrays.
        self._tree = tree = self._empty_tree(nodes + nodes // 2 + 8, leaves + leaves // 2 + 8, max_ids)
        if not len(rows):
            tree.free_counts[NODES] -= 1  # a root without children
            tree.nodes[0, PARENT] = -1
            return
        tasks = np.empty((FAN, 4), np.int64)
        count = build_root(tree, rows, ids, leaves, tasks)
        needed = np.array([[_nodes_needed(share) if share > 1 else 0, share] for share in tasks[:count, 3].tolist()])
        # Each task takes its nodes and leaves from its own part of the stacks.
        ends = tree.free_counts - np.cumsum(needed, axis=0) + needed

        def build(task: int) -> None:
            build_subtree(tree._replace(free_counts=ends[task].copy()), rows, ids, *tasks[task])

        parallel_map(build, range(count))
        tree.free_counts[:] -= needed.sum(axis=0)

    def _empty_tree(self, nodes: int, leaves: int, max_ids: int) -> TreeArrays:
        d = self.n_features
        return TreeArrays(
            boxes=np.zeros((nodes, 2 * d, FAN), self.dtype),
            nodes=np.zeros((nodes, FAN + 4), np.int32),
            coordinates=np.zeros((leaves, d, LEAF), self.dtype),
            buckets=np.zeros((leaves, LEAF + 2), np.int32),
            locations=np.full(max_ids, -1, np.int64),
            free_nodes=np.arange(nodes, dtype=np.int32)[::-1].copy(),
            free_buckets=np.arange(leaves, dtype=np.int32)[::-1].copy(),
            free_counts=np.array([nodes, leaves]),
        )

    def _answer(self, queries: Queries, with_values: bool, ordered: bool) -> Answers:
        normals = queries.normals
        counts = np.zeros(len(normals), np.int64)
        work = np.zeros(3, np.int64)
        stack = np.empty(_STACK, np.int32)
        mean_found = self.work.points_reported / max(1, self.work.queries)
        capacity = len(self) + LEAF + max(_BUFFER_IDS, int(1.3 * mean_found * len(normals)))
        parts, done = [], 0
        while done < len(normals):
            found = _take_buffer(capacity)
            before = done
            done = search(self._tree, queries, done, found, stack, counts, work)
            # For one query ``sum`` would take longer than all else here.
            parts.append(found[: counts[0] if len(counts) == 1 else counts[before:done].sum()])
        ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if ordered:
            sort_answers(ids, counts, self._next_id)
        if not with_values:
            return Answers(counts, ids, _NO_VALUES, *work.tolist())
        values = np.empty(len(ids), self.dtype)
        values_of(self._tree.coordinates, self._tree.locations, normals, counts, ids, values)
        return Answers(counts, ids, values, *work.tolist())

    def _fill_heaps(self, queries: Queries, heaps: Heaps) -> tuple[int, int]:
        work = np.zeros(2, np.int64)
        stack, bounds = np.empty(_STACK, np.int32), np.empty(_STACK)
        push_tree(self._tree, queries.normals, queries.slacks, stack, bounds, heaps, work)
        return int(work[0]), int(work[1])

    def _release(self, answers: Answers) -> None:
        if answers.ids.base is not None:
            _give_back(answers.ids.base)

    # Changes

    def _renumber(self, ids: np.ndarray, next_id: int) -> None:
        locations = np.full(next_id, -1, np.int64)
        locations[ids] = self._tree.locations
        if len(ids):
            self._tree.buckets[:, :LEAF] = ids[self._tree.buckets[:, :LEAF]]
        self._tree = self._tree._replace(locations=locations)

    def points_by_number(self, numbers: np.ndarray) -> np.ndarray:
        leaves, columns = np.divmod(self._tree.locations[numbers], LEAF)
        return self._tree.coordinates[leaves, :, columns]

    def _contains(self, numbers: np.ndarray) -> np.ndarray:
        present = (numbers >= 0) & (numbers < len(self._tree.locations))
        present[present] = self._tree.locations[numbers[present]] >= 0
        return present

    def _add(self, points: np.ndarray, ids: np.ndarray) -> None:
        locations = self._tree.locations
        missing = int(ids[-1]) + 1 - len(locations) if len(ids) else 0
        if missing > 0:
            more = np.full(max(missing, len(locations) // 4), -1, np.int64)
            self._tree = self._tree._replace(locations=np.concatenate([locations, more]))
        self._insert(points, ids)
        self._length += len(ids)

    def _insert(self, points: np.ndarray, ids: np.ndarray) -> None:
        done, outcome = 0, NEEDS_NEW_TREE if len(points) > _REBUILD_SHARE * self._live_points() else 0
        while done < len(points):
            if outcome == NEEDS_CAPACITY:
                self._add_capacity()
            elif outcome == NEEDS_NEW_TREE:
                self._rebuild(points[done:], ids[done:])
                return
            done, outcome = insert(self._tree, ids, points, done, *self._scratch(len(points)))

    def _delete(self, ids: np.ndarray) -> None:
        delete(self._tree, ids)
        if self._live_points() < self._tree.nodes[0, N_BUILT] // 2:
            self._rebuild(np.empty((0, self.n_features), self.dtype), ids[:0])
        self._length -= len(ids)

    def _move(self, ids: np.ndarray, points: np.ndarray) -> None:
        if len(ids) > _REBUILD_SHARE * len(self):
            delete(self._tree, ids)
            self._rebuild(points, ids)
            return
        done = 0
        while done < len(ids):
            done = move(self._tree, ids, points, done, *self._scratch(0))
            self._insert(points[done : done + 1], ids[done : done + 1])
            done += 1

    def _rebuild(self, points: np.ndarray, ids: np.ndarray) -> None:
        """Build a new tree of the points in this one and the given ones."""
        own_ids, own_rows = self._rows_by_leaf()
        self._build(
            np.concatenate([own_rows, points]),
            np.concatenate([own_ids, ids.astype(np.int32)]),
            len(self._tree.locations),
        )

    def _rows_by_leaf(self) -> tuple[np.ndarray, np.ndarray]:
        """Return ids and points, leaf after leaf."""
        tree = self._tree
        sizes = tree.buckets[:, N_FILLED].copy()
        sizes[tree.free_buckets[: tree.free_counts[BUCKETS]]] = 0
        filled = np.arange(LEAF) < sizes[:, None]
        return tree.buckets[:, :LEAF][filled], tree.coordinates.transpose(0, 2, 1)[filled]

    def _live_rows(self) -> tuple[np.ndarray, np.ndarray]:
        ids, rows = self._rows_by_leaf()
        order = np.argsort(ids)
        return ids[order], rows[order]

    def _add_capacity(self) -> None:
        """Add space for a quarter more nodes and leaves."""
        old = self._tree
        nodes, leaves = (len(stack) // 4 + 16 for stack in (old.free_nodes, old.free_buckets))
        new = self._empty_tree(nodes, leaves, 0)
        arrays = {name: np.concatenate([getattr(old, name), getattr(new, name)]) for name in old._fields}
        arrays["free_counts"] = old.free_counts + new.free_counts
        for name, more in (("free_nodes", nodes), ("free_buckets", leaves)):
            stack = getattr(old, name)  # free entries are at its front: put the new ones before them
            arrays[name] = np.concatenate([np.arange(len(stack), len(stack) + more, dtype=np.int32), stack])
        self._tree = old._replace(**arrays)

    def _scratch(self, n_new: int) -> tuple[np.ndarray, np.ndarray]:
        """Allocate rows and ids for all points of the tree, ``n_new`` more and one."""
        size = self._live_points() + n_new + 1
        return np.empty((size, self.n_features), self.dtype), np.empty(size, np.int32)


# The system clears new memory page by page when it is first written, which costs more than the search. So buffers are
# reused by the next search. ``append`` and ``pop`` of a list are thread-safe.
_SPARE_BUFFERS: list[np.ndarray] = []


def _take_buffer(capacity: int) -> np.ndarray:
    try:
        spare = _SPARE_BUFFERS.pop()
    except IndexError:
        return np.empty(capacity, np.int32)
    return spare if len(spare) >= capacity else np.empty(capacity, np.int32)


def _give_back(buffer: np.ndarray) -> None:
    if len(_SPARE_BUFFERS) < _MAX_SPARE_BUFFERS and buffer.nbytes <= _MAX_SPARE_BYTES:
        _SPARE_BUFFERS.append(buffer)


@cache
def new_tree_size(n: int) -> tuple[int, int]:
    """Return the numbers of inner nodes and leaves of a tree that is built over n points."""
    leaves = max(1, -(-n // FILL))
    return max(1, _nodes_needed(leaves)), leaves


def tree_bytes(n: int, n_features: int, itemsize: int) -> float:
    """Return the memory of a tree that is built over n points, without the capacity that is not used."""
    nodes, leaves = new_tree_size(n)
    inner = nodes * (2 * n_features * FAN * itemsize + 4 * (FAN + 5))
    return inner + leaves * (n_features * LEAF * itemsize + 4 * (LEAF + 3)) + 8.0 * n


def _nodes_needed(leaves: int) -> int:
    """Return the number of inner nodes of a tree of ``build_subtree`` with this many leaves."""
    children = child_count(leaves)
    shares = [leaves * (child + 1) // children - leaves * child // children for child in range(children)]
    return 1 + sum(_nodes_needed(share) for share in shares if share > 1)
