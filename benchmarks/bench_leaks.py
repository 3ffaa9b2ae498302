"""Memory, threads and open files of a process over many small fits: all three must stay where they are.

    python benchmarks/bench_leaks.py [--fits 1000]

Each kind of fit runs in turns in one process: both estimators and solvers, several engines, ``Trainer`` driven by hand,
saving and loading, checkpoints, and fits that end with an error. After a warm-up of a fifth of the fits the counts are
taken a hundred times; exit code 1 if threads or open files grow at all, or the resident set by more than
``MAX_BYTES_PER_FIT`` per fit (slope of a least-squares line).
"""

import argparse
import gc
import os
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

import fireset
from fireset import Checkpoints, ShiftedReLUClassifier, ShiftedReLUNetwork, ShiftedReLURegressor, Trainer

MAX_BYTES_PER_FIT = 4096
MEASUREMENTS = 100
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # no waiting for disks to be synced

X = np.random.default_rng(0).standard_normal((60, 4))
Y = np.sin(X[:, 0])
ROWS = X / np.linalg.norm(X, axis=1, keepdims=True)


def counts() -> dict[str, int]:
    """Resident bytes, threads and open files of this process."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "bytes": 1024 * int(fields["VmRSS"].split()[0]),
        "threads": int(fields["Threads"]),
        "files": len(os.listdir("/proc/self/fd")),
    }


def regress(k: int, _: Path) -> None:
    ShiftedReLURegressor(200, random_state=k % 7, max_iter=5).fit(X, Y).predict(X)


def descend(k: int, _: Path) -> None:
    engine = ("data", "dense", "weights", "sums", "rows")[k % 5]
    ShiftedReLURegressor(200, random_state=0, solver="gradient", engine=engine, max_iter=5).fit(X, Y)


def classify(k: int, _: Path) -> None:
    model = ShiftedReLUClassifier(200, random_state=k % 7, loss="log_loss", max_iter=5).fit(X, Y > 0)
    pickle.loads(pickle.dumps(model)).predict_proba(X)


def store(_: int, folder: Path) -> None:
    fireset.save(ShiftedReLURegressor(100, random_state=0, max_iter=3).fit(X, Y), folder / "model.safetensors")
    fireset.load(folder / "model.safetensors").predict(X)


def resume(k: int, folder: Path) -> None:
    for again in (False, True):
        network = ShiftedReLUNetwork.initialize(100, 4, seed=1)
        place = Checkpoints(folder / f"checkpoints-{k}", every=2, resume=again)
        fireset.train(network, ROWS, Y, max_iter=6 if again else 4, tol=0, checkpoint=place)


def step(_: int, __: Path) -> None:
    trainer = Trainer(ShiftedReLUNetwork.initialize(100, 4), ROWS, Y, engine="data")
    for _ in range(4):
        trainer.step()  # and never finished


def fail(k: int, folder: Path) -> None:
    def stop(_: object) -> None:
        raise KeyError(k)

    with suppress(KeyError):
        ShiftedReLURegressor(100, random_state=0).fit(X, Y, callbacks=[stop], checkpoint=Checkpoints(folder / f"f-{k}"))
    with suppress(ValueError):
        ShiftedReLURegressor(100).fit(X, Y[:-1])


KINDS: list[Callable[[int, Path], None]] = [regress, descend, classify, store, resume, step, fail]


def measure(fits: int) -> tuple[list[dict[str, int]], float]:
    """Counts after each hundredth of the fits, and how many bytes a fit adds."""
    warm_up, found, at = fits // 5, [], []
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(warm_up + fits):
            KINDS[k % len(KINDS)](k, Path(folder))
            if k >= warm_up and (k - warm_up) % max(1, fits // MEASUREMENTS) == 0:
                gc.collect()
                at.append(k)
                found.append(counts())
    slope = float(np.polyfit(at, [one["bytes"] for one in found], 1)[0])
    return found, slope


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--fits", type=int, default=1000)
    found, slope = measure(parser.parse_args().fits)
    first, last = found[0], found[-1]
    for name in first:
        print(f"{name}: {first[name]:,} → {last[name]:,}, most {max(one[name] for one in found):,}")
    print(f"bytes per fit: {slope:,.0f}")
    grows = [name for name in ("threads", "files") if last[name] > first[name]]
    sys.exit(bool(grows) or slope > MAX_BYTES_PER_FIT)


if __name__ == "__main__":
    main()
