"""Half-space reporting by a tree of cells that adapt to the points, dynamic by the logarithmic method.

The points of a cell are halved along its principal axes. Every cell is bounded by its oriented box and by further
directions between the axes, chosen where they cut off most (``fireset.kernels.cell_tree``). A query visits a cell only
if its bound in the direction of the normal exceeds the threshold. With more directions the bound is nearer to the
largest inner product of the points of the cell. A cell with an exact bound is visited only if it has a point above.

Changes use the logarithmic method (Bentley and Saxe 1980): trees of geometrically growing sizes. New points make a tree
together with all trees that are at most twice as large. The others are more than twice as large, so that there are
O(log n) trees. A point that is built again is in a tree 1.5 times as large as before, which takes O(log n) builds for
each point. A deleted point is removed from its leaf; the cells above it are not changed and stay valid bounds. A tree
is rebuilt when half of its points are gone. At most one tree has 512 points or fewer; it is stored without cells.
"""

from collections.abc import Sequence
from math import sqrt

import numpy as np

from fireset._util.checks import whole_number
from fireset.hsr.base import Answers, Queries
from fireset.hsr.dynamic import DynamicIndex
from fireset.kernels.cell_tree import (
    FIRST,
    FIRST_LEAF,
    LAST,
    LAST_LEAF,
    CellArrays,
    put_answers,
    remove,
    search,
    values_of,
)
from fireset.kernels.cell_tree_build import build_cells, space_for_cells
from fireset.kernels.partition_tree import LEAF, N_FILLED
from fireset.kernels.sorting import sort_answers

_FEW = 512  # points of a tree without cells
_BUFFER_IDS = 1 << 16  # space for the ids of a block of queries, in addition to those of the largest answer
_MAX_ROTATED = 16  # largest dimension in which cells have a frame of their own
_MAX_SPLIT = 6  # largest dimension in which cells have more directions than those of their box
_MAX_DEPTH = 32  # of the balanced splits of a hull in the plane


class CellTreeIndex(DynamicIndex):
    """A forest of cell trees.

    Proved for d ≤ 2 and any points: cells are hulls, so a query that finds k points visits O((k + 1) log n) cells, at
    O(log n) each, and tests at most 32 k points and those of the tree without cells. Points within rounding distance of
    the threshold count as found, and equal points as one. Memory is O(n log n).

    Measured for d ≥ 3, where no bound below n is known: ``docs/half-space-index.md`` has the exponents of the points
    tested for families of points that are hard for other trees, d = 2, 3, 4 and 6. Memory is linear in n. More
    directions take more memory and leave fewer cells and points to visit: a trade-off between space and query time as
    that of Agarwal, Eppstein and Matoušek, measured only. Also only measured, for all d: queries after deletions, since
    cells are not tightened.

    Beyond 6 dimensions cells are oriented boxes, beyond 16 axis-parallel boxes.

    Parameters
    ----------
    points : array (n, d)
    directions : int, default 64
        Number of directions that bound a cell in 3 to 6 dimensions, besides those of its box. In two dimensions 0 means
        boxes, any other number hulls.
    """

    kind = "cell-tree"
    bytes_per_id = 8

    def __init__(self, points: np.ndarray, directions: int = 64):
        super().__init__(points)
        points = self._checked_rows(points, "points")
        self._directions = whole_number("directions", directions, 0)
        self._update_largest_norm(points)
        self._next_id = self._length = len(points)
        self._owners = np.full(len(points), -1, np.int32)  # by id: the tree of the point, −1 if deleted
        self._points = np.zeros(len(points), np.int32)  # by id: the index of the point in its tree
        self._trees: dict[int, CellArrays] = {}
        self._sizes: dict[int, list[int]] = {}  # numbers of ids in a tree now, and when it was built
        self._plant(points, np.arange(len(points), dtype=np.int32))

    def __len__(self) -> int:
        return self._length

    # Trees

    def _plant(self, rows: np.ndarray, ids: np.ndarray, replaced: Sequence[int] = ()) -> None:
        """Build a tree of these points that replaces the trees ``replaced``, whose points are among them.

        The index changes only after the build is complete. A build that fails (memory, Ctrl-C) must not leave ids
        without a tree: the kernels that delete ids do not check positions.
        """
        if not len(rows):
            return
        tree, points = self._build(rows, ids)
        for other in replaced:
            del self._trees[other], self._sizes[other]
        number = next(k for k in range(len(self._trees) + 1) if k not in self._trees)
        self._trees[number], self._sizes[number] = tree, [len(ids), len(ids)]
        self._owners[ids], self._points[ids] = number, points

    def _build(self, rows: np.ndarray, ids: np.ndarray) -> tuple[CellArrays, np.ndarray]:
        """Return the arrays of a tree, and the index of the point of each id."""
        d = self.n_features
        order = np.lexsort(rows.T[::-1])
        is_new = np.concatenate([[True], (rows[order[1:]] != rows[order[:-1]]).any(axis=1)])
        starts = np.flatnonzero(is_new).astype(np.int32)
        distinct = rows[order[starts]]
        numbers = np.arange(len(distinct), dtype=np.int32)
        scale, margin, n_cells, n_splits = 1.0, 0.0, 0, 0
        budget = self._directions if d <= _MAX_SPLIT else 0
        space = space_for_cells(len(distinct), d, d <= _MAX_ROTATED, budget)
        ends = np.append(np.arange(LEAF, len(distinct), LEAF), len(distinct))
        if len(rows) > _FEW:
            # Scale by a power of two so that the largest coordinate is ½ to 1, and squares neither overflow nor
            # underflow.
            scale = 2.0 ** -int(np.frexp(max(float(np.abs(distinct).max()), 1e-300))[1])
            scaled = distinct.astype(np.float64) * scale
            n_cells, n_splits, error = build_cells(scaled, numbers, space, budget)
            ends = _number_leaves(space.ranges[:n_cells], space.children[:n_cells])
            units = 8 * (d + max(_MAX_DEPTH, budget)) * float(np.finfo(np.float64).eps)
            margin = sqrt(d) * (units * sqrt(d) + d * error)
        leaves = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        columns = np.arange(len(distinct)) - np.concatenate([[0], ends[:-1]])[leaves]
        coordinates = np.zeros((len(ends), d, LEAF), self.dtype)
        coordinates[leaves, :, columns] = distinct[numbers]
        buckets = np.zeros((len(ends), LEAF + 2), np.int32)
        buckets[leaves, columns] = numbers
        buckets[:, N_FILLED] = np.diff(ends, prepend=0)
        places = np.empty(len(distinct), np.int32)
        places[numbers] = LEAF * leaves + columns
        points = np.empty(len(ids), np.int32)
        points[order] = np.cumsum(is_new) - 1
        sizes = np.diff(starts, append=len(ids)).astype(np.int32)
        arrays = CellArrays(
            frames=space.frames[:n_cells].copy(),
            lowest=space.lowest[:n_cells].copy(),
            highest=space.highest[:n_cells].copy(),
            children=space.children[:n_cells].copy(),
            orthants=space.orthants[:n_cells].copy(),
            split_slots=space.split_slots[:n_splits].copy(),
            split_weights=space.split_weights[:n_splits].copy(),
            coordinates=coordinates,
            buckets=buckets,
            places=places,
            starts=starts,
            sizes=sizes,
            ids=ids[order].astype(np.int32),
            scale=scale,
            margin=margin,
        )
        return arrays, points

    def _rows_of(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        tree = self._trees[number]
        ids = np.flatnonzero(self._owners == number).astype(np.int32)
        places = tree.places[self._points[ids]]
        return ids, tree.coordinates[places // LEAF, :, places % LEAF]

    # Queries

    def _answer(self, queries: Queries, with_values: bool, ordered: bool) -> Answers:
        counts, work = np.zeros(len(queries.normals), np.int64), np.zeros(3, np.int64)
        answers = [self._answer_of(tree, queries, work) for tree in self._trees.values()]
        for _, own in answers:
            counts += own
        if len(answers) == 1:
            ids = answers[0][0]
        else:
            ids = np.empty(counts.sum(), np.int32)
            begins = np.cumsum(counts) - counts
            for found, own in answers:
                put_answers(found, own, begins, ids)
        if ordered:
            sort_answers(ids, counts, self._next_id)
        values = np.empty(len(ids) if with_values else 0, self.dtype)
        if with_values:
            for number, tree in self._trees.items():
                where = tree.coordinates, tree.places, self._owners, self._points, number
                values_of(*where, queries.normals, counts, ids, values)
        return Answers(counts, ids, values, *work.tolist())

    def _answer_of(self, tree: CellArrays, queries: Queries, work: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids that the queries find in one tree, and their number for each query."""
        counts, parts, done = np.zeros(len(queries.normals), np.int64), [], 0
        stack = np.empty(256, np.int32)  # three waiting children on each of at most 16 levels, and four on the last
        while done < len(counts):
            found = np.empty(len(tree.ids) + _BUFFER_IDS, np.int32)
            before = done
            done = search(tree, queries, done, found, stack, counts, work)
            parts.append(found[: counts[before:done].sum()])
        return (parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, np.int32)])), counts

    def _live_rows(self) -> tuple[np.ndarray, np.ndarray]:
        parts = [self._rows_of(number) for number in self._trees]
        if not parts:
            return np.empty(0, np.int32), np.empty((0, self.n_features), self.dtype)
        ids, rows = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = np.argsort(ids)
        return ids[order], rows[order]

    # Changes

    def _renumber(self, ids: np.ndarray, next_id: int) -> None:
        owners, points = np.full(next_id, -1, np.int32), np.zeros(next_id, np.int32)
        owners[ids], points[ids] = self._owners, self._points
        self._owners, self._points = owners, points
        for tree in self._trees.values():
            tree.ids[:] = ids[tree.ids]

    def _contains(self, numbers: np.ndarray) -> np.ndarray:
        present = (numbers >= 0) & (numbers < self._next_id)
        present[present] = self._owners[numbers[present]] >= 0
        return present

    def _add(self, points: np.ndarray, ids: np.ndarray) -> None:
        missing = self._next_id + len(ids) - len(self._owners)
        if missing > 0:
            more = max(missing, len(self._owners) // 4)
            self._owners = np.concatenate([self._owners, np.full(more, -1, np.int32)])
            self._points = np.concatenate([self._points, np.zeros(more, np.int32)])
        self._insert(points, ids)
        self._length += len(ids)

    def _insert(self, points: np.ndarray, ids: np.ndarray, replaced: Sequence[int] = ()) -> None:
        """Build one tree of these points and of all trees at most twice as large as those collected before them.

        Trees without cells are always collected. The tree also replaces the trees ``replaced``, whose points are given.
        """
        parts, count, taken = [(ids.astype(np.int32), points)], len(ids), list(replaced)
        for number in sorted(self._sizes.keys() - taken, key=lambda k: self._sizes[k][0]):
            size = self._sizes[number][0]
            if size > max(2 * count, _FEW):
                break
            parts.append(self._rows_of(number))
            taken.append(number)
            count += size
        all_ids, rows = (np.concatenate(part) for part in zip(*parts, strict=True))
        self._plant(rows, all_ids, taken)

    def _delete(self, ids: np.ndarray) -> None:
        self._length -= len(ids)
        self._remove(ids)

    def _remove(self, ids: np.ndarray) -> None:
        owners = self._owners[ids]
        touched = np.unique(owners).tolist()
        for number in touched:
            own = ids[owners == number]
            remove(self._trees[number], own, self._points)
            self._sizes[number][0] -= len(own)
        self._owners[ids] = -1
        for number in touched:
            left, built = self._sizes.get(number, (1, 1))  # it may have been merged into another tree by now
            if left == 0:
                del self._trees[number], self._sizes[number]
            elif left < built // 2:
                rest, rows = self._rows_of(number)
                self._insert(rows, rest, [number])

    def _move(self, ids: np.ndarray, points: np.ndarray) -> None:
        try:
            self._remove(ids)
            self._insert(points, ids)
        except BaseException:  # a build failed, and these ids are deleted
            self._length = int((self._owners >= 0).sum())
            raise


def _number_leaves(ranges: np.ndarray, children: np.ndarray) -> np.ndarray:
    """Number the leaves in the order of their points, and write the leaves of every cell; returns their ends."""
    is_leaf = children[:, FIRST] == children[:, LAST]
    begins, ends = np.sort(ranges[is_leaf, 0]), np.sort(ranges[is_leaf, 1])
    children[:, FIRST_LEAF] = np.searchsorted(begins, ranges[:, 0])
    children[:, LAST_LEAF] = np.searchsorted(ends, ranges[:, 1]) + 1
    return ends
