"""Indexes that are read and changed by several threads at once."""

import pickle
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from fireset._util.readers_writer_lock import ReadersWriterLock
from fireset.hsr import build, kinds, scan
from fireset.hsr.base import HalfSpaceIndex
from fireset.hsr.registry import index_class

DYNAMIC = [kind for kind in kinds() if index_class(kind).dynamic]
POINTS, BATCH, CHANGES = 3000, 200, 60
NORMALS = np.random.default_rng(1).standard_normal((12, 3))
THRESHOLDS = np.linspace(-0.5, 2.0, 12)


class Script:
    """A fixed sequence of changes, and the expected answers after each of them."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.points = rng.standard_normal((POINTS, 3))
        alive = dict(enumerate(self.points))
        self.changes: list[tuple[str, tuple]] = []
        self.answers, self.counts = [self._brute_force(alive)], [len(alive)]
        given_out = POINTS
        for k in range(CHANGES):
            how = ("add", "move", "delete")[k % 3]
            # Sometimes all points are replaced, which builds a new tree.
            size = len(alive) // 2 if k % 15 in (6, 7, 8) else BATCH
            rows = 3.0 * rng.standard_normal((size, 3)) if how == "move" else rng.standard_normal((size, 3))
            ids = rng.permutation(np.fromiter(alive, int))[:size]
            if how == "add":
                self.changes.append((how, (rows,)))
                alive.update(zip(range(given_out, given_out + size), rows, strict=True))
                given_out += size
            elif how == "move":
                self.changes.append((how, (ids, rows)))
                alive.update(zip(ids.tolist(), rows, strict=True))
            else:
                self.changes.append((how, (ids,)))
                for i in ids.tolist():
                    del alive[i]
            self.answers.append(self._brute_force(alive))
            self.counts.append(len(alive))
        self.given_out = given_out

    @staticmethod
    def _brute_force(alive: dict[int, np.ndarray]) -> list[bytes]:
        ids = np.fromiter(sorted(alive), np.int64)
        values = NORMALS @ np.array([alive[i] for i in ids.tolist()]).T
        return [ids[row > threshold].tobytes() for row, threshold in zip(values, THRESHOLDS, strict=True)]


SCRIPT = Script()


def in_threads(*tasks: Callable[[], object]) -> None:
    """Run all functions in parallel, and raise the first error of any of them."""
    errors: list[BaseException] = []

    def guarded(task: Callable[[], object]) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    if errors:
        raise errors[0]


def one_query(index: HalfSpaceIndex) -> list[tuple[int, bytes]]:
    k = int(np.random.default_rng().integers(len(NORMALS)))
    return [(k, index.query(NORMALS[k], THRESHOLDS[k]).tobytes())]


def all_queries(index: HalfSpaceIndex) -> list[tuple[int, bytes]]:
    indptr, ids = index.query_batch(NORMALS, THRESHOLDS)
    return [(k, ids[indptr[k] : indptr[k + 1]].astype(np.int64).tobytes()) for k in range(len(NORMALS))]


@pytest.mark.parametrize("kind", DYNAMIC)
def test_answers_belong_to_one_state(kind):
    index = build(SCRIPT.points, kind)
    all_queries(index)  # compiles the kernels
    begun = ended = 0
    seen: list[tuple[int, int, list[tuple[int, bytes]]]] = []
    sizes: list[tuple[int, int, int]] = []

    def change() -> None:
        nonlocal begun, ended
        for how, arguments in SCRIPT.changes:
            begun += 1
            getattr(index, how)(*arguments)
            ended += 1
            time.sleep(1e-3)

    def read(ask) -> Callable[[], None]:
        def reading() -> None:
            while ended < CHANGES:
                before = ended
                answers = ask(index)
                seen.append((before, begun, answers))
                before = ended
                size = len(index)
                sizes.append((before, begun, size))

        return reading

    in_threads(change, read(one_query), read(all_queries), read(one_query))
    assert len(seen) > 20
    for first, last, answers in seen:
        # All answers of a batch are those of one state.
        assert any(
            all(found == SCRIPT.answers[state][k] for k, found in answers) for state in range(first, last + 1)
        ), f"{kind}: an answer is that of no state from {first} to {last}"
    assert all(size in SCRIPT.counts[first : last + 1] for first, last, size in sizes)
    assert all_queries(index) == list(enumerate(SCRIPT.answers[-1]))
    assert index.work.queries == sum(len(answers) for _, _, answers in seen) + 2 * len(NORMALS)


@pytest.mark.parametrize("kind", DYNAMIC)
def test_concurrent_changes(kind):
    index = build(SCRIPT.points[:500], kind)
    given_out: list[np.ndarray] = []

    def come_and_go(seed: int) -> Callable[[], None]:
        def changing() -> None:
            rng = np.random.default_rng(seed)
            for _ in range(40):
                ids = index.add(rng.standard_normal((50, 3)))
                given_out.append(ids)
                index.move(ids[:30], np.full((30, 3), 100.0 + seed))
                index.delete(ids[10:])

        return changing

    in_threads(*(come_and_go(seed) for seed in range(3)))
    assert np.array_equal(np.sort(np.concatenate(given_out)), np.arange(500, 500 + 3 * 40 * 50))
    assert len(index) == 500 + 3 * 40 * 10
    expected = np.sort(np.concatenate([ids[:10] for ids in given_out]))
    assert np.array_equal(index.query([1.0, 1.0, 1.0], 200.0), expected)


@pytest.mark.parametrize("kind", DYNAMIC)
def test_refused_change_releases_the_lock(kind):
    index = build(SCRIPT.points, kind)
    for change in (lambda: index.delete([POINTS]), lambda: index.move([0], [[np.nan] * 3]), lambda: index.add([[1.0]])):
        with pytest.raises(ValueError, match="must"):
            change()
    with pytest.raises(ValueError, match="must"):
        index.query([1.0], 0.0)
    in_threads(lambda: index.delete([0]), lambda: index.query(NORMALS[0], 0.0))
    assert len(pickle.loads(pickle.dumps(index))) == POINTS - 1


def test_readers_share_and_writers_exclude():
    lock, inside, alone = ReadersWriterLock(), [], []
    meeting = threading.Barrier(2, timeout=10)

    def read() -> None:
        with lock.reading:
            meeting.wait()  # until both are inside

    def write() -> None:
        for _ in range(50):
            with lock.writing:
                alone.append(len(inside))
                inside.append(1)
                time.sleep(1e-4)
                inside.pop()

    in_threads(read, read)
    in_threads(write, write, *[lambda: [_enter(lock, inside) for _ in range(200)]] * 2)
    assert set(alone) == {0}


def _enter(lock: ReadersWriterLock, inside: list) -> None:
    with lock.reading:
        assert not inside


def test_writers_do_not_starve():
    lock, done = ReadersWriterLock(), threading.Event()

    def read() -> None:
        while not done.is_set():
            with lock.reading:
                time.sleep(2e-3)

    def write() -> None:
        with lock.writing:
            done.set()

    in_threads(read, read, read, write)
    assert done.is_set()


@pytest.mark.parametrize("change", ["add", "move", "delete"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_query_of_a_scan_belongs_to_one_state(change, dtype, monkeypatch):
    """A query that does not lock is repeated, and counted once, if the index is changed meanwhile."""
    points = np.eye(4, 3, dtype=dtype)
    index, normal = build(points, "scan"), np.ones(3, dtype)
    compute, changes = scan.ids_above, [None]

    def change_meanwhile(*arguments):
        found = compute(*arguments)
        if changes:
            changes.pop()
            if change == "add":
                index.add(3 * points[:2])
            elif change == "move":
                index.move([0, 3], -points[[0, 2]])
            else:
                index.delete([1])
        return found

    monkeypatch.setattr(scan, "ids_above", change_meanwhile)
    expected = {"add": [0, 1, 2, 4, 5], "move": [1, 2], "delete": [0, 2]}[change]
    assert index.query(normal, 0.5).tolist() == expected
    assert index.work.queries == 1
    assert index.query(normal, 0.5).tolist() == expected
    assert index.work.queries == 2
    assert index.work.points_reported == 2 * len(expected)


def test_writers_are_counted():
    lock = ReadersWriterLock()
    with lock.writing:
        assert lock.writing.count == 1
    with lock.reading:
        assert lock.writing.count == 2
    with pytest.raises(KeyError), lock.writing:
        raise KeyError
    assert lock.writing.count == 4
