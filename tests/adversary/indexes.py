"""Random adds, deletes, moves and queries on every kind of index, from several threads at once.

Every thread that changes the index changes only its own points. A result is correct if, for each of these threads, it
is that of one state between the last change that had ended before the query and the last one that had begun before its
result; all results of one call must belong to one such state. Points are on a lattice, so that
products are exact and many points lie on the hyperplane of the query; or drawn at random, where ``reference.above``
decides.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable

import numpy as np

from adversary.reference import above
from fireset import InputError
from fireset.hsr import build, kinds
from fireset.hsr.base import HalfSpaceIndex
from fireset.hsr.registry import index_class

WAIT = 60.0  # seconds after which threads count as deadlocked


def run_case(seed: int, counts: Counter) -> None:
    rng = np.random.default_rng(seed)
    os.environ["OMP_NUM_THREADS"] = str(rng.choice((1, 2, 3)))
    kind, d = str(rng.choice(kinds())), int(rng.integers(1, 7))
    while not index_class(kind).suits(d):
        d = int(rng.integers(1, 7))
    case = Case(kind, d, rng)
    if index_class(kind).dynamic:
        writers = [case.writer(child) for child in rng.spawn(int(rng.integers(1, 4)))]
    else:
        writers = [case.refused]
    in_threads([*writers, *(case.reader(child) for child in rng.spawn(int(rng.integers(1, 4))))])
    case.check(counts)
    counts[f"{kind}, sequences"] += 1


class Case:
    """An index, the owner of each point, and a log of queries and results."""

    def __init__(self, kind: str, d: int, rng: np.random.Generator):
        self.kind, self.d = kind, d
        self.lattice = bool(rng.random() < 0.6)
        self.dtype = "float32" if self.lattice and rng.random() < 0.3 else "float64"
        start = int(rng.choice((0, 1, 5, 60, 700)))
        if kind in ("convex-layers", "hull-hierarchy"):
            start = max(start, 1)
        points = self.points(start, rng)
        self.index: HalfSpaceIndex = build(points, kind)
        # The points that are there from the start belong to no thread and stay.
        self.logs: list[Log] = [Log(dict(enumerate(points)))]
        self.calls = int(rng.integers(3, 25))
        self.answers: list[Answer] = []

    def points(self, count: int, rng: np.random.Generator) -> np.ndarray:
        rows = rng.integers(-2, 3, (count, self.d)) if self.lattice else rng.standard_normal((count, self.d))
        return rows.astype(self.dtype)

    def writer(self, rng: np.random.Generator) -> Callable[[], None]:
        """Add, move and delete the points of one thread, and log its state after each change."""
        log = Log({})
        self.logs.append(log)

        def change() -> None:
            own: dict[int, np.ndarray] = {}
            for _ in range(self.calls):
                how, size = str(rng.choice(("add", "add", "move", "delete"))), int(rng.choice((0, 1, 3, 40)))
                ids = rng.permutation(np.fromiter(own, np.int64))[:size]
                after = dict(own)
                if how == "delete":
                    after = {i: row for i, row in own.items() if i not in set(ids.tolist())}
                    with log.changing(after):
                        self.index.delete(ids)
                elif how == "move":
                    rows = self.points(len(ids), rng)
                    after.update(zip(ids.tolist(), rows, strict=True))
                    with log.changing(after):
                        self.index.move(ids, rows)
                else:
                    rows = self.points(size, rng)
                    with log.changing(after):  # ids are assigned during the change
                        given = self.index.add(rows)
                        after.update(zip(given.tolist(), rows, strict=True))
                own = after

        return change

    def refused(self) -> None:
        """Check that a static kind raises an error for changes, and answers queries afterwards."""
        for change in (lambda: self.index.add(np.zeros((1, self.d))), lambda: self.index.delete([0])):
            try:
                change()
            except InputError:
                continue
            raise AssertionError(f"{self.kind} took a change")

    def reader(self, rng: np.random.Generator) -> Callable[[], None]:
        ways = ["query", "query_batch", "report"]

        def ask() -> None:
            for _ in range(self.calls):
                how, count = str(rng.choice(ways)), int(rng.choice((1, 1, 2, 9)))
                normals = self.points(count, rng)
                thresholds = rng.integers(-3, 6, count).astype(float) if self.lattice else rng.normal(size=count)
                first = [log.ended for log in self.logs]
                result = self._ask(how, normals, thresholds)
                last = [log.begun for log in self.logs]
                self.answers.append(Answer(how, normals, thresholds, first, last, result))

        return ask

    def _ask(self, how: str, normals: np.ndarray, thresholds: np.ndarray):
        index = self.index
        if how == "query":
            return [index.query(normal, threshold) for normal, threshold in zip(normals[:1], thresholds, strict=False)]
        if how == "query_batch":
            indptr, ids = index.query_batch(normals, thresholds)
            return [ids[indptr[k] : indptr[k + 1]] for k in range(len(normals))]
        found = index.report(normals, thresholds, ordered=False)
        return [np.sort(found.ids[found.indptr[k] : found.indptr[k + 1]]) for k in range(len(normals))]

    def check(self, counts: Counter) -> None:
        states = [[Above(state, self.d) for state in log.states] for log in self.logs]
        for answer in self.answers:
            if answer.result is not None:
                answer.check(states, self.kind)
                counts["answers compared"] += 1
        alive = {i for log in self.logs for i in log.states[-1]}
        assert len(self.index) == len(alive), f"{self.kind} has {len(self.index)} points, not {len(alive)}"
        counts["changes made"] += sum(log.ended for log in self.logs)


class Log:
    """The states of the points of one thread."""

    def __init__(self, start: dict[int, np.ndarray]):
        self.states = [start]
        self.begun = self.ended = 0

    def changing(self, after: dict[int, np.ndarray]) -> "Log":
        self.states.append(after)
        return self

    def __enter__(self) -> None:
        self.begun += 1

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            self.ended += 1


class Above:
    """A state: ids and points."""

    def __init__(self, state: dict[int, np.ndarray], d: int):
        self.ids = np.array(sorted(state), np.int64)
        self.points = np.array([state[i] for i in self.ids.tolist()]).reshape(-1, d)


class Answer:
    """A query, the changes before and after it, and its result."""

    def __init__(self, how: str, normals, thresholds, first: list[int], last: list[int], result):
        self.how, self.normals, self.thresholds = how, normals, thresholds
        self.first, self.last, self.result = first, last, result

    def check(self, states: list[list[Above]], kind: str) -> None:
        count = len(self.result)
        possible = [
            [self._found(state, count) for state in own[lo : hi + 1]]
            for own, lo, hi in zip(states, self.first, self.last, strict=False)
        ]
        found = self.result
        known = 0
        for own, log in zip(possible, states, strict=False):
            ids = np.unique(np.concatenate([state.ids for state in log]))
            seen = [each[np.isin(each, ids)] for each in found]
            known += sum(map(len, seen))
            assert any(all(np.array_equal(a, b) for a, b in zip(seen, expected, strict=True)) for expected in own), (
                f"{kind}, {self.how}: an answer of no state between {self.first} and {self.last}"
            )
        assert known == sum(map(len, found)), f"{kind}, {self.how}: points that never were there"

    def _found(self, state: Above, count: int) -> list[np.ndarray]:
        over = above(self.normals[:count], state.points, self.thresholds[:count])
        return [state.ids[row] for row in over]


def in_threads(tasks: list[Callable[[], None]]) -> None:
    """Run all at the same time; raise the exception of any of them."""
    errors: list[BaseException] = []

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    if errors:
        raise errors[0]
