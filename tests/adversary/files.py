"""Mutated model files, checkpoints and tables: each is read correctly or raises a one-line error, in limited memory.

A case is one file. It is busy for ``SECONDS`` at most, and may allocate twice the file's size and ``SLACK`` besides
(stacks and arenas of threads): the address space is limited to that while it is read. Any exception but ``InputError``
is a finding, and so is a message of more than a line or about memory. One file in five is given to a command, which may
end with no other exit code than 0 or 2, and prints no traceback.
"""

import atexit
import io
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from threading import Barrier

import numpy as np

from fireset import Checkpoints, InputError, ShiftedReLUNetwork, train
from fireset.__main__ import main
from fireset._util.files import file_digest, read_model, write_model
from fireset.training.checkpoint_files import checksum
from fireset.training.solvers import GradientDescent
from support.checkpoint_folder import folder_for

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # without waiting for a disk
SECONDS = 20
SLACK = 64 << 20
ASKED_FOR = "requires too much memory"  # message of zstd for a frame that it does not start
WARM_UP = 120  # files read without a limit, so that pools, arenas and kernels are there
ODD = [0, 1, -1, 2**31, 2**62, 2**64, 1e308, -0.5, float("nan"), "", "x", "\n", None, True, [], {}, [[]], {"a": 1}]
CELLS = ["", "NaN", "inf", "1e999", '"', '""', "'", "\0", "\r", "9" * 400, "-", "0x1p3", "é", "\ud7ff", "1,2", "y", "#"]


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Change a few bytes, ranges of bytes, or a number written as text."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        size = len(data)
        if not size:
            break
        # Half of the places are near the beginning, where headers are.
        place = rng.randrange(min(size, 2000)) if rng.random() < 0.5 else rng.randrange(size)
        length = min(size - place, rng.choice((1, 1, 2, 8, 64, 512)))
        kind = rng.randrange(8)
        if kind == 0:
            data[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[place : place + length] = rng.randbytes(length)
        elif kind == 2:
            data[place : place + length] = rng.choice((b"\0", b"\xff")) * length
        elif kind == 3:
            del data[place : place + length]
        elif kind == 4:
            data[place:place] = data[place : place + length] * rng.choice((1, 1, 50))
        elif kind == 5:
            del data[place:]
        elif kind == 6:
            data[place:place] = rng.randbytes(length)
        else:
            numbers = list(re.finditer(rb"\d+", bytes(data[:4000])))
            if numbers:
                found = rng.choice(numbers)
                data[found.start() : found.end()] = str(rng.choice((0, 7, 255, 2**31, 2**40, 2**63, 10**30))).encode()
    return bytes(data)


def mutate_json(value, rng: random.Random):
    """Return a copy in which one part is replaced."""
    value = json.loads(json.dumps(value))
    places = []

    def walk(node) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(value)
    node, key = rng.choice(places)
    node[key] = rng.choice(ODD)
    return value


class Victims:
    """Valid files of each kind, and functions that read them."""

    def __init__(self, folder: Path):
        from test_model_file import small_model

        self.folder = folder
        self.table = folder / "table.csv"
        rows = [f"{k},{0.5 * k - 3:.3f},{'uvw'[k % 3]},{k % 7 / 2}" for k in range(40)]
        self.table.write_text("\n".join(["a,b,kind,y", *rows]) + "\n")
        self.models = []
        for task in ("classification", "regression"):
            small_model(task).save(folder / f"{task}.safetensors")
            self.models.append((folder / f"{task}.safetensors").read_bytes())
        network = ShiftedReLUNetwork.initialize(4000, 30)  # half a megabyte: twice its size is more than the noise
        network.save(folder / "large.safetensors")
        self.models.append((folder / "large.safetensors").read_bytes())
        self._make_tables()
        self._make_shards()
        self._make_checkpoint()

    def _make_tables(self) -> None:
        """Write the training table in all formats, compressed and not."""
        import polars as pl

        words = ["train", self.table, "--target", "y", "--width", 20, "--max-iter", 2, "-q", "--bias", 1]
        run_command(*words, "--solver", "gradient", "--out", self.folder / "table-model.safetensors")
        frame = pl.read_csv(self.table)
        X, y = frame.select("a", "b").to_numpy(), frame["y"].to_numpy()
        self.archives, self.parquets = [], []
        for save in (np.savez, np.savez_compressed):
            file = io.BytesIO()
            save(file, X=X, y=y, kind=frame["kind"].to_numpy().astype("U1"))
            self.archives.append(file.getvalue())
        for packed in ("uncompressed", "zstd", "snappy"):
            file = io.BytesIO()
            frame.write_parquet(file, compression=packed)
            self.parquets.append(file.getvalue())

    def _make_shards(self) -> None:
        network = ShiftedReLUNetwork.initialize(20, 3)
        shards = []
        for k in range(2):
            path = self.folder / f"shards.{k + 1}-of-2.00000000.safetensors"
            own = slice(10 * k, 10 * k + 10)
            write_model(
                path,
                {"weights": network.weights[own], "output_weights": network.output_weights[own].astype(np.int8)},
                {},
            )
            shards.append({"file": path.name, "checksum": file_digest(path).hex()})
        write_model(self.folder / "shards.safetensors", {}, {"threshold": 1.0, "shards": shards})
        self.shard = (self.folder / "shards.1-of-2.00000000.safetensors").read_bytes()
        self.index = (self.folder / "shards.safetensors").read_bytes()
        self.shards = shards

    def _make_checkpoint(self) -> None:
        self.X = np.random.default_rng(0).standard_normal((30, 3))
        self.X /= np.linalg.norm(self.X, axis=1, keepdims=True)
        checkpoints = Checkpoints(self.folder / "checkpoints", every=5, keep=1)
        train(
            self.network(),
            self.X,
            self.X[:, 0],
            momentum=0.9,
            max_iter=5,
            tol=0,
            engine="dense",
            checkpoint=checkpoints,
        )
        self.state_file = self.folder / "checkpoints" / "checkpoint-00000005.safetensors"
        self.part_file = self.folder / "checkpoints" / "checkpoint-00000005.1-of-1.safetensors"
        self.state, self.part = self.state_file.read_bytes(), self.part_file.read_bytes()
        self.arrays, self.description = read_model(self.state_file)

    def network(self) -> ShiftedReLUNetwork:
        return ShiftedReLUNetwork.initialize(60, 3, threshold=0.5, dtype="float64")

    def model(self, rng: random.Random) -> tuple[int, Callable[[], object]]:
        """Return a mutated model, or an index or a shard of one, some with their checksums corrected."""
        from fireset.model import Model

        kind = rng.randrange(8)
        if kind < 6:
            path = self.folder / "mutated.safetensors"
            path.write_bytes(mutate_bytes(self.models[kind // 2], rng))
            load = ShiftedReLUNetwork.load if kind >= 4 else Model.load
            use = (lambda: load(path)) if rng.random() < 0.8 else lambda: run_command("info", path, "--json")
            return path.stat().st_size, use
        index, shard = (self.folder / name for name in ("shards.safetensors", self.shards[0]["file"]))
        shard.write_bytes(mutate_bytes(self.shard, rng) if kind == 6 else self.shard)
        index.write_bytes(self.index if kind == 6 else mutate_bytes(self.index, rng))
        if rng.random() < 0.5:
            described = {
                "threshold": 1.0,
                "shards": [{**self.shards[0], "checksum": file_digest(shard).hex()}, self.shards[1]],
            }
            write_model(index, {}, described if kind == 6 else mutate_json(described, rng))
        size = index.stat().st_size + sum((self.folder / one["file"]).stat().st_size for one in self.shards)
        return size, lambda: ShiftedReLUNetwork.load(index)

    def checkpoint(self, rng: random.Random) -> tuple[int, Callable[[], object]]:
        """Return a mutated part of a checkpoint, half of them with checksums corrected."""
        kind = rng.randrange(2)
        self.part_file.write_bytes(mutate_bytes(self.part, rng) if kind == 0 else self.part)
        self.state_file.write_bytes(self.state if kind == 0 else mutate_bytes(self.state, rng))
        if rng.random() < 0.5:
            described = {**self.description, "shards": [file_digest(self.part_file).hex()]}
            arrays = dict(self.arrays)
            if kind == 1:
                described = mutate_json(described, rng)
                name = rng.choice(sorted(arrays))
                if rng.random() < 0.3:
                    arrays[name] = rng.choice((arrays[name][:-1], arrays[name].astype(np.int8), arrays[name][:, None]))
            if isinstance(described, dict):
                described["checksum"] = checksum(arrays, described)
                write_model(self.state_file, arrays, described)

        def load() -> None:
            network = self.network()
            checkpoints = Checkpoints(self.folder / "checkpoints", resume=True)
            known = {name: value for name, value in self.description["identity"].items() if name != "initial weights"}
            folder, history = folder_for(checkpoints, network, GradientDescent(momentum=0.9), known)
            if folder.load():
                assert np.isfinite(network.weights).all()
                assert len(history) == 5

        return self.state_file.stat().st_size + self.part_file.stat().st_size, load

    def csv(self, rng: random.Random) -> tuple[int, Callable[[], object]]:
        content = self.table.read_bytes()
        if rng.random() < 0.5:
            cells = content.split(b",")
            cells[rng.randrange(len(cells))] = rng.choice(CELLS).encode("utf-8", "surrogatepass")
            content = b",".join(cells)
        else:
            content = mutate_bytes(content, rng)
        return self._table("mutated.csv", content, rng)

    def npz(self, rng: random.Random) -> tuple[int, Callable[[], object]]:
        """Return a mutated archive, or one with a mutated array in it: checksums of archives are easily corrected."""
        if rng.random() < 0.5:
            return self._table("mutated.npz", mutate_bytes(rng.choice(self.archives), rng), rng)
        whole, changed = zipfile.ZipFile(io.BytesIO(rng.choice(self.archives))), io.BytesIO()
        names = whole.namelist()
        victim = rng.choice(names)
        with zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in names:
                content = whole.read(name)
                archive.writestr(name, mutate_bytes(content, rng) if name == victim else content)
        return self._table("mutated.npz", changed.getvalue(), rng)

    def parquet(self, rng: random.Random) -> tuple[int, Callable[[], object]]:
        """Return a mutated footer, or a file that is cut off.

        Pages are left as they are: polars decodes them, and in one of 10,000 mutations it ends the process, because a
        run length needs more memory than there is.
        """
        content = rng.choice(self.parquets)
        if rng.random() < 0.1:
            return self._table("mutated.parquet", content[: rng.randrange(len(content))], rng)
        footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        return self._table("mutated.parquet", content[:footer] + mutate_bytes(content[footer:], rng), rng)

    def _table(self, name: str, content: bytes, rng: random.Random) -> tuple[int, Callable[[], object]]:
        """Read a table as training does, or by a command."""
        from fireset.tables.problem import TableProblem

        path = self.folder / name
        path.write_bytes(content)
        impute = rng.random() < 0.5

        def read() -> None:
            problem = TableProblem.read(path, "y", impute=impute)
            assert np.isfinite(problem.X).all()
            assert len(problem.X) == len(problem.y)

        train_it = ["train", path, "--target", "y", "--width", 20, "--max-iter", 2, "--solver", "gradient", "-q"]
        train_it += ["--bias", 1, "--out", self.folder / "trained.safetensors", *(["--impute"] if impute else [])]
        predict_it = ["predict", self.folder / "table-model.safetensors", path, "--json"]
        use = read if rng.random() < 0.8 else lambda: run_command(*rng.choice((train_it, predict_it)))
        return path.stat().st_size, use


def run_command(*arguments) -> None:
    """Run a command in this process; its errors become an ``InputError``."""
    before, out, err = sys.argv, io.StringIO(), io.StringIO()
    sys.argv = ["fireset", *map(str, arguments)]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
        code = 0
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    said = err.getvalue()
    assert code in (0, 2), f"exit code {code}: {said}"
    assert "Traceback" not in said, said
    if code == 2:
        raise InputError(said.strip().splitlines()[-1])


@cache
def victims() -> Victims:
    """Return the files of this process, created and read once."""
    folder = tempfile.TemporaryDirectory(dir=IN_MEMORY)
    atexit.register(folder.cleanup)
    made = Victims(Path(folder.name))
    _fill_buffers()
    for k in range(WARM_UP):
        _use(made, -1 - k, None)
    return made


def _fill_buffers() -> None:
    """Make OpenBLAS allocate its work space: one buffer per thread that multiplies at the same time."""
    ready = Barrier(2 * (os.cpu_count() or 1))

    def multiply(_: int) -> None:
        ready.wait()
        for _ in range(20):
            np.ones((300, 300)) @ np.ones((300, 300))

    with ThreadPoolExecutor(ready.parties) as pool:
        list(pool.map(multiply, range(ready.parties)))


def run_case(seed: int, counts: Counter) -> None:
    counts[_use(victims(), seed, SLACK)] += 1


def _use(made: Victims, seed: int, slack: int | None) -> str:
    """Mutate a file and read it, within the limits; return its kind and whether it could be read."""
    rng = random.Random(seed)
    makers = (made.model, made.checkpoint, made.csv, made.npz, made.parquet)
    maker = makers[seed % len(makers)]
    size, use = maker(rng)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if slack is not None:
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + 2 * size + slack, limits[1]))
    signal.alarm(SECONDS)
    try:
        with np.errstate(all="ignore"):
            use()
    except InputError as error:
        if len(str(error).splitlines()) != 1 or "memory" in str(error).lower().replace(ASKED_FOR, ""):
            raise AssertionError(f"{maker.__name__}: {error}") from error
        return f"{maker.__name__} refused"
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    return f"{maker.__name__} read"


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
