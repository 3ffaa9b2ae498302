"""Half-space reporting by a dynamic partition tree: Part 1 of the paper's corollary (Agarwal, Eppstein, Matoušek).

Points are halved again and again along the widest coordinate of their box. A query skips a subtree whose box lies
outside the half-space, reports one whose box lies inside without testing its points, and looks into the others. Boxes
take the place of the theory's simplices: about n^(1−1/d) + k for points and planes in general position, without its
bound for the worst case, and far smaller constants. Both grow exponentially with d; beyond eight coordinates or so a
scan is faster.

Sixteen children to a node, thirty-two places to a leaf: what a processor compares at once. Flat arrays; the layout is
in ``fireset.kernels.partition_tree``.

Changes by partial rebuilding. Added points go down to the leaf whose boxes grow least. When a leaf is full, the highest
subtree above it that has grown by half since it was made is made anew, or the leaf alone. A subtree of s points is made
in O(s log s), after at least s/3 additions to it: O(log s) for each of them. One that is not made anew holds at most
1.5 s points, s of them in one child (which had s/2 and gained s/2): every level down has at most two thirds of the
points, so there are O(log n) levels, and an addition costs O(log² n), amortized. A deletion costs O(log n) boxes; when
half of the points are gone, the whole tree is made anew. Boxes are fitted at every change, so answers do not get
slower with the number of changes. ``benchmarks/bench_index.py`` shows both.
"""

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from fireset._util.parallel import parallel_map
from fireset.hsr.base import Answers, DynamicIndex, Queries, sort_answers

if TYPE_CHECKING:
    from fireset.kernels.partition_tree import Tree

_ANSWERS = 1 << 16  # ids that a block has room for, besides one answer of any length, unless answers were longer so far
_MOST_SPARE, _LARGEST_SPARE = 8, 16 << 20  # buffers kept, and bytes of one
_SHARE_FOR_A_NEW_TREE = 0.3  # changes of more than this share of the points cost more than a new tree
_STACK = 2048  # children waiting in a search: 16 for each level, of which there are at most log(2³¹)/log(1.5) = 53


class PartitionTreeIndex(DynamicIndex):
    """A partition tree. Memory: about 1.4 times the points and 14 bytes for each of them."""

    kind = "partition-tree"

    def __init__(self, points: np.ndarray):
        super().__init__(points)
        points = self._checked_rows(points, "points")
        self._note_norms(points)
        self._next_id = len(points)
        self._build(points.copy(), np.arange(len(points), dtype=np.int32), len(points))

    def __len__(self) -> int:
        from fireset.kernels.partition_tree import COUNT

        return int(self._tree.nodes[0, COUNT])

    def used_part(self) -> "Tree":
        """The arrays of a tree that was never changed, without room for more; only to be read."""
        nodes, leaves = (len(stack) - top for stack, top in zip(self._tree[5:7], self._tree.tops, strict=True))
        boxes, nodes_of, coordinates, buckets = self._tree[:4]
        return self._tree._replace(
            boxes=boxes[:nodes], nodes=nodes_of[:nodes], coordinates=coordinates[:leaves], buckets=buckets[:leaves]
        )

    def _build(self, rows: np.ndarray, ids: np.ndarray, most_ids: int) -> None:
        """A new tree; ``rows`` and ``ids`` are reordered. The subtrees of the root are built on all cores."""
        from fireset.kernels.partition_tree import FAN, NODES, PARENT
        from fireset.kernels.partition_tree_build import FILL, build_subtree, plant

        leaves = max(1, -(-len(rows) // FILL))
        nodes = _nodes_needed(leaves)
        # Room for half as many again, which costs nothing until it is used: to get more later means to copy everything.
        self._tree = tree = self._empty_tree(nodes + nodes // 2 + 8, leaves + leaves // 2 + 8, most_ids)
        if not len(rows):
            tree.tops[NODES] -= 1  # the root is there, without children
            tree.nodes[0, PARENT] = -1
            return
        tasks = np.empty((FAN, 4), np.int64)
        count = plant(tree.nodes, tree.free_nodes, tree.tops, rows, ids, leaves, tasks)
        needed = np.array([[_nodes_needed(share) if share > 1 else 0, share] for share in tasks[:count, 3].tolist()])
        ends = tree.tops - np.cumsum(needed, axis=0) + needed  # each takes its nodes and leaves from below its end

        def build(task: int) -> None:
            build_subtree(*tree._replace(tops=ends[task].copy()), rows, ids, *tasks[task])

        parallel_map(build, range(count))
        tree.tops[:] -= needed.sum(axis=0)

    def _empty_tree(self, nodes: int, leaves: int, most_ids: int) -> "Tree":
        from fireset.kernels.partition_tree import FAN, LEAF, Tree

        d = self.n_features
        return Tree(
            boxes=np.zeros((nodes, 2 * d, FAN), self.dtype),
            nodes=np.zeros((nodes, FAN + 4), np.int32),
            coordinates=np.zeros((leaves, d, LEAF), self.dtype),
            buckets=np.zeros((leaves, LEAF + 2), np.int32),
            places=np.full(most_ids, -1, np.int64),
            free_nodes=np.arange(nodes, dtype=np.int32)[::-1].copy(),
            free_buckets=np.arange(leaves, dtype=np.int32)[::-1].copy(),
            tops=np.array([nodes, leaves]),
        )

    def _answer(self, queries: Queries, with_values: bool, ordered: bool) -> Answers:
        from fireset.kernels.partition_tree import LEAF, search, values_of

        normals = queries.normals
        counts = np.zeros(len(normals), np.int64)
        work = np.zeros(3, np.int64)
        stack = np.empty(_STACK, np.int32)
        usual = self.work.points_reported / max(1, self.work.queries)
        room = len(self) + LEAF + max(_ANSWERS, int(1.3 * usual * len(normals)))
        parts, done = [], 0
        while done < len(normals):
            found = _buffer(room)
            before = done
            done = search(*self._tree[:4], *queries, done, found, stack, counts, work)
            parts.append(found[: counts[before:done].sum()])
        ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if ordered:
            sort_answers(ids, counts)
        values = np.empty(len(ids) if with_values else 0, self.dtype)
        if with_values:
            values_of(self._tree.coordinates, self._tree.places, normals, counts, ids, values)
        return Answers(counts, ids, values, int(work[0]), int(work[1]), int(work[2]))

    def _release(self, answers: Answers) -> None:
        if answers.ids.base is not None:
            _keep(answers.ids.base)

    # Sums

    def sum(self, normal, threshold: float, values) -> np.ndarray:
        """``Σ values[i]`` over the points i with ⟨normal, point⟩ > threshold; see ``sum_batch``."""
        return self.sum_batch(np.reshape(normal, (1, -1)), np.reshape(threshold, 1), values)[0]

    def sum_batch(self, normals, thresholds, values) -> np.ndarray:
        """``Σ values[i]`` over the points i above each (normals[q], thresholds[q]); (queries, c), float64.

        ``values`` has one row (or number) for each id that was ever given out. Ones count the points.
        """
        from fireset.hsr.half_space_sums import checked_numbers, sums_above

        queries = self._checked_queries(normals, thresholds)
        values = checked_numbers(values, self._next_id, "values", "ids given out")
        work = np.zeros(2, np.int64)
        sums = sums_above(self._tree, queries, values, work)
        self._count(len(sums), work)
        return sums

    def spread(self, normals, thresholds, rows) -> np.ndarray:
        """The adjoint of ``sum_batch``: add ``rows[q]`` to every point above (normals[q], thresholds[q]).

        Returns an array with one row for each id ever given out, float64; what was deleted has zeros.
        """
        from fireset.hsr.half_space_sums import checked_numbers, spread_above

        queries = self._checked_queries(normals, thresholds)
        rows = checked_numbers(rows, len(queries.normals), "rows", "queries")
        work = np.zeros(2, np.int64)
        spread = spread_above(self._tree, queries, rows, self._next_id, work)
        self._count(len(rows), work)
        return spread

    def _count(self, queries: int, work: np.ndarray) -> None:
        self.work.queries += queries
        self.work.nodes_visited += int(work[0])
        self.work.points_tested += int(work[1])

    # Changes

    def _present(self, ids: np.ndarray) -> np.ndarray:
        present = (ids >= 0) & (ids < len(self._tree.places))
        present[present] = self._tree.places[ids[present]] >= 0
        return present

    def _add(self, points: np.ndarray, ids: np.ndarray) -> None:
        missing = int(ids[-1]) + 1 - len(self._tree.places) if len(ids) else 0
        if missing > 0:
            more = np.full(max(missing, len(self._tree.places) // 4), -1, np.int64)
            self._tree = self._tree._replace(places=np.concatenate([self._tree.places, more]))
        self._insert(points, ids)

    def _insert(self, points: np.ndarray, ids: np.ndarray) -> None:
        from fireset.kernels.partition_tree_update import NEEDS_NEW_TREE, NEEDS_ROOM, insert

        done, outcome = 0, NEEDS_NEW_TREE if len(points) > _SHARE_FOR_A_NEW_TREE * len(self) else 0
        while done < len(points):
            if outcome == NEEDS_ROOM:
                self._make_room()
            elif outcome == NEEDS_NEW_TREE:
                self._rebuild(points[done:], ids[done:])
                return
            done, outcome = insert(*self._tree, ids, points, done, *self._scratch(len(points)))

    def _delete(self, ids: np.ndarray) -> None:
        from fireset.kernels.partition_tree import BUILT
        from fireset.kernels.partition_tree_update import delete

        delete(*self._tree, ids)
        if len(self) < self._tree.nodes[0, BUILT] // 2:
            self._rebuild(np.empty((0, self.n_features), self.dtype), ids[:0])

    def _move(self, ids: np.ndarray, points: np.ndarray) -> None:
        from fireset.kernels.partition_tree_update import delete, move

        if len(ids) > _SHARE_FOR_A_NEW_TREE * len(self):
            delete(*self._tree, ids)
            self._rebuild(points, ids)
            return
        done = 0
        while done < len(ids):
            done = move(*self._tree, ids, points, done, *self._scratch(0))
            self._insert(points[done : done + 1], ids[done : done + 1])
            done += 1

    def _rebuild(self, points: np.ndarray, ids: np.ndarray) -> None:
        """A new tree of the points in this one and these."""
        from fireset.kernels.partition_tree import BUCKETS, FILLED, LEAF

        tree = self._tree
        sizes = tree.buckets[:, FILLED].copy()
        sizes[tree.free_buckets[: tree.tops[BUCKETS]]] = 0
        filled = np.arange(LEAF) < sizes[:, None]
        rows = np.concatenate([tree.coordinates.transpose(0, 2, 1)[filled], points])
        row_ids = np.concatenate([tree.buckets[:, :LEAF][filled], ids.astype(np.int32)])
        self._build(rows, row_ids, len(tree.places))

    def _make_room(self) -> None:
        """A quarter more nodes and leaves."""
        old = self._tree
        nodes, leaves = (len(stack) // 4 + 16 for stack in (old.free_nodes, old.free_buckets))
        new = self._empty_tree(nodes, leaves, 0)
        arrays = {name: np.concatenate([getattr(old, name), getattr(new, name)]) for name in old._fields}
        arrays["tops"] = old.tops + new.tops
        for name, more in (("free_nodes", nodes), ("free_buckets", leaves)):
            stack = getattr(old, name)  # what is free is at its front: put the new ones before it
            arrays[name] = np.concatenate([np.arange(len(stack), len(stack) + more, dtype=np.int32), stack])
        self._tree = old._replace(**arrays)

    def _scratch(self, more: int) -> tuple[np.ndarray, np.ndarray]:
        room = len(self) + more + 1
        return np.empty((room, self.n_features), self.dtype), np.empty(room, np.int32)


# Memory fresh from the system is cleared page by page as it is touched, which costs more than finding what is written
# to it. So buffers are used again, by whoever needs one next; lists are safe to share between threads.
_SPARE: list[np.ndarray] = []


def _buffer(room: int) -> np.ndarray:
    try:
        spare = _SPARE.pop()
    except IndexError:
        return np.empty(room, np.int32)
    return spare if len(spare) >= room else np.empty(room, np.int32)


def _keep(buffer: np.ndarray) -> None:
    if len(_SPARE) < _MOST_SPARE and buffer.nbytes <= _LARGEST_SPARE:
        _SPARE.append(buffer)


@cache
def _nodes_needed(leaves: int) -> int:
    """Inner nodes of a tree with so many leaves, as ``build_subtree`` makes it."""
    from fireset.kernels.partition_tree_build import part_count

    parts = part_count(leaves)
    shares = [leaves * (part + 1) // parts - leaves * part // parts for part in range(parts)]
    return 1 + sum(_nodes_needed(share) for share in shares if share > 1)
