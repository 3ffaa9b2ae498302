"""Half-space reporting by a dynamic partition tree: Part 1 of the paper's corollary (Agarwal, Eppstein, Matoušek).

Points are halved again and again along the widest coordinate of their box. A query skips a subtree whose box lies
outside the half-space, reports one whose box lies inside without testing its points, and looks into the others. Boxes
take the place of the theory's simplices: about n^(1−1/d) + k for points and planes in general position, with far
smaller constants and without its bound for the worst case. Across a thin set that is oblique to the axes every box is
cut, and all points are tested (``fireset.hsr.cell_tree`` is for such sets). The cost grows exponentially with d; beyond
eight coordinates or so a scan is faster.

Sixteen children to a node, at most thirty-two points in a leaf: what a processor compares at once. Flat arrays; the
layout is in ``fireset.kernels.partition_tree``.

Changes by partial rebuilding. Added points go down to the leaf whose boxes grow least. When a leaf is full, the highest
subtree above it that has grown by half since it was built is rebuilt, or the leaf alone. A subtree of s points is built
in O(s log s), after at least s/3 additions to it: O(log s) for each of them. One that is not rebuilt holds at most
1.5 s points, s of them in one child (which had s/2 and gained s/2): every level down has at most two thirds of the
points, so there are O(log n) levels, and an addition costs O(log² n), amortized. A deletion costs O(log n) boxes; when
half of the points are gone, the whole tree is rebuilt. Boxes are fitted at every change, so queries do not get slower
with the number of changes. ``benchmarks/bench_index.py`` shows both.
"""

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from fireset._util.parallel import parallel_map
from fireset.hsr.base import Answers, Queries
from fireset.hsr.dynamic import DynamicIndex

if TYPE_CHECKING:
    from fireset.kernels.largest import Heaps
    from fireset.kernels.partition_tree import TreeArrays

_BUFFER_IDS = 1 << 16  # space for the answers of a block, besides one of any length; more if answers were longer so far
_MAX_SPARE_BUFFERS, _MAX_SPARE_BYTES = 8, 16 << 20  # buffers kept for reuse, and bytes of one
_REBUILD_SHARE = 0.3  # changes of more than this share of the points cost more than a new tree
_STACK = 2048  # children waiting in a search: 16 for each level, of which there are at most log(2³¹)/log(1.5) = 53


class PartitionTreeIndex(DynamicIndex):
    """A partition tree. Memory: about 1.4 times the points and 14 bytes for each of them."""

    kind = "partition-tree"
    bytes_per_id = 8

    def __init__(self, points: np.ndarray):
        super().__init__(points)
        points = self._checked_rows(points, "points")
        self._update_largest_norm(points)
        self._next_id = len(points)
        self._build(points.copy(), np.arange(len(points), dtype=np.int32), len(points))
        self._length = len(points)  # after the last change that is complete

    def __len__(self) -> int:
        return self._length

    def _live_points(self) -> int:
        """In the tree as it is now, in the middle of a change."""
        from fireset.kernels.partition_tree import N_POINTS

        return int(self._tree.nodes[0, N_POINTS])

    def trimmed_arrays(self) -> "TreeArrays":
        """The arrays of a tree that was never changed, without spare capacity; only to be read."""
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
        """A new tree; ``rows`` and ``ids`` are reordered. The subtrees of the root are built on all cores."""
        from fireset.kernels.partition_tree import FAN, NODES, PARENT
        from fireset.kernels.partition_tree_build import FILL, build_root, build_subtree

        leaves = max(1, -(-len(rows) // FILL))
        nodes = _nodes_needed(leaves)
        # Space for half as many again, which costs nothing until it is used: to get more later is to copy everything.
        self._tree = tree = self._empty_tree(nodes + nodes // 2 + 8, leaves + leaves // 2 + 8, max_ids)
        if not len(rows):
            tree.free_counts[NODES] -= 1  # the root is there, without children
            tree.nodes[0, PARENT] = -1
            return
        tasks = np.empty((FAN, 4), np.int64)
        count = build_root(tree, rows, ids, leaves, tasks)
        needed = np.array([[_nodes_needed(share) if share > 1 else 0, share] for share in tasks[:count, 3].tolist()])
        # Each task takes its nodes and leaves from the stacks below an end of its own.
        ends = tree.free_counts - np.cumsum(needed, axis=0) + needed

        def build(task: int) -> None:
            build_subtree(tree._replace(free_counts=ends[task].copy()), rows, ids, *tasks[task])

        parallel_map(build, range(count))
        tree.free_counts[:] -= needed.sum(axis=0)

    def _empty_tree(self, nodes: int, leaves: int, max_ids: int) -> "TreeArrays":
        from fireset.kernels.partition_tree import FAN, LEAF, TreeArrays

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
        from fireset.kernels.partition_tree import LEAF, search, values_of
        from fireset.kernels.sorting import sort_answers

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
            parts.append(found[: counts[before:done].sum()])
        ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if ordered:
            sort_answers(ids, counts, self._next_id)
        values = np.empty(len(ids) if with_values else 0, self.dtype)
        if with_values:
            values_of(self._tree.coordinates, self._tree.locations, normals, counts, ids, values)
        return Answers(counts, ids, values, int(work[0]), int(work[1]), int(work[2]))

    def _offer_points(self, queries: Queries, heaps: "Heaps") -> tuple[int, int]:
        from fireset.kernels.largest import offer_tree

        work = np.zeros(2, np.int64)
        stack, bounds = np.empty(_STACK, np.int32), np.empty(_STACK)
        offer_tree(self._tree, queries.normals, queries.slacks, stack, bounds, heaps, work)
        return int(work[0]), int(work[1])

    def _release(self, answers: Answers) -> None:
        if answers.ids.base is not None:
            _give_back(answers.ids.base)

    # Sums

    def sum(self, normal, threshold: float, values) -> np.ndarray:
        """``Σ values[i]`` over the points i with ⟨normal, point⟩ > threshold; see ``sum_batch``."""
        return self.sum_batch(np.reshape(normal, (1, -1)), np.reshape(threshold, 1), values)[0]

    def sum_batch(self, normals, thresholds, values) -> np.ndarray:
        """``Σ values[i]`` over the points i above each (normals[q], thresholds[q]); (queries, c), float64.

        ``values`` has one row (or number) for each id that was ever given out; where ids are the caller's own, one for
        each point, in the order of ``index.ids``. Ones count the points.
        """
        from fireset.hsr.partition_tree_sums import sums_above

        work = np.zeros(2, np.int64)
        with self._lock.reading:
            queries = self._checked_queries(normals, thresholds)
            values = self._by_number(values)
            sums = sums_above(self._tree, queries, values, work)
        self._count_work(len(sums), work)
        return sums

    def spread(self, normals, thresholds, rows) -> np.ndarray:
        """The adjoint of ``sum_batch``: add ``rows[q]`` to every point above (normals[q], thresholds[q]).

        Returns an array with one row for each id ever given out, float64; what was deleted has zeros. Where ids are the
        caller's own, one row for each point, in the order of ``index.ids``.
        """
        from fireset.hsr.partition_tree_sums import checked_numbers, spread_above

        work = np.zeros(2, np.int64)
        with self._lock.reading:
            queries = self._checked_queries(normals, thresholds)
            rows = checked_numbers(rows, len(queries.normals), "rows", "queries")
            spread = spread_above(self._tree, queries, rows, self._next_id, work)
            spread = spread if self._own_ids is None else spread[self._numbers_by_own_id()]
        self._count_work(len(rows), work)
        return spread

    def _by_number(self, values) -> np.ndarray:
        from fireset.hsr.partition_tree_sums import checked_numbers

        if self._own_ids is None:
            return checked_numbers(values, self._next_id, "values", "ids given out")
        numbers = self._numbers_by_own_id()
        values = checked_numbers(values, len(numbers), "values", "points")
        by_number = np.zeros((self._next_id, values.shape[1]))
        by_number[numbers] = values
        return by_number

    def _numbers_by_own_id(self) -> np.ndarray:
        """The numbers of the points in the index, in the order of ``ids``."""
        assert self._own_ids is not None
        numbers = self._live_numbers(self._next_id)
        return numbers[np.argsort(self._own_ids.of(numbers))]

    def _count_work(self, queries: int, work: np.ndarray) -> None:
        self.work.add(queries=queries, nodes_visited=int(work[0]), points_tested=int(work[1]))

    # Changes

    def _renumber(self, ids: np.ndarray, next_id: int) -> None:
        from fireset.kernels.partition_tree import LEAF

        locations = np.full(next_id, -1, np.int64)
        locations[ids] = self._tree.locations
        if len(ids):
            self._tree.buckets[:, :LEAF] = ids[self._tree.buckets[:, :LEAF]]
        self._tree = self._tree._replace(locations=locations)

    def points_by_number(self, numbers: np.ndarray) -> np.ndarray:
        from fireset.kernels.partition_tree import LEAF

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
        from fireset.kernels.partition_tree_update import NEEDS_CAPACITY, NEEDS_NEW_TREE, insert

        done, outcome = 0, NEEDS_NEW_TREE if len(points) > _REBUILD_SHARE * self._live_points() else 0
        while done < len(points):
            if outcome == NEEDS_CAPACITY:
                self._add_capacity()
            elif outcome == NEEDS_NEW_TREE:
                self._rebuild(points[done:], ids[done:])
                return
            done, outcome = insert(self._tree, ids, points, done, *self._scratch(len(points)))

    def _delete(self, ids: np.ndarray) -> None:
        from fireset.kernels.partition_tree import N_BUILT
        from fireset.kernels.partition_tree_update import delete

        delete(self._tree, ids)
        if self._live_points() < self._tree.nodes[0, N_BUILT] // 2:
            self._rebuild(np.empty((0, self.n_features), self.dtype), ids[:0])
        self._length -= len(ids)

    def _move(self, ids: np.ndarray, points: np.ndarray) -> None:
        from fireset.kernels.partition_tree_update import delete, move

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
        """A new tree of the points in this one and the given ones."""
        own_ids, own_rows = self._rows_by_leaf()
        self._build(
            np.concatenate([own_rows, points]),
            np.concatenate([own_ids, ids.astype(np.int32)]),
            len(self._tree.locations),
        )

    def _rows_by_leaf(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids and points, leaf after leaf."""
        from fireset.kernels.partition_tree import BUCKETS, LEAF, N_FILLED

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
        """Space for a quarter more nodes and leaves."""
        old = self._tree
        nodes, leaves = (len(stack) // 4 + 16 for stack in (old.free_nodes, old.free_buckets))
        new = self._empty_tree(nodes, leaves, 0)
        arrays = {name: np.concatenate([getattr(old, name), getattr(new, name)]) for name in old._fields}
        arrays["free_counts"] = old.free_counts + new.free_counts
        for name, more in (("free_nodes", nodes), ("free_buckets", leaves)):
            stack = getattr(old, name)  # the free ones are at its front: put the new ones before them
            arrays[name] = np.concatenate([np.arange(len(stack), len(stack) + more, dtype=np.int32), stack])
        self._tree = old._replace(**arrays)

    def _scratch(self, n_new: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and ids for all points of the tree, ``n_new`` more and one."""
        size = self._live_points() + n_new + 1
        return np.empty((size, self.n_features), self.dtype), np.empty(size, np.int32)


# Memory fresh from the system is cleared page by page as it is touched, which costs more than finding the ids written
# to it. So buffers are reused by the next search; ``append`` and ``pop`` of a list are safe between threads.
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
def _nodes_needed(leaves: int) -> int:
    """Inner nodes of a tree with so many leaves, as ``build_subtree`` makes it."""
    from fireset.kernels.partition_tree_build import child_count

    children = child_count(leaves)
    shares = [leaves * (child + 1) // children - leaves * child // children for child in range(children)]
    return 1 + sum(_nodes_needed(share) for share in shares if share > 1)
