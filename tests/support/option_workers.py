"""What two workers of ``test_distributed.py`` do that were given different settings, under torchrun.

Each case writes ``NAME.RANK.json``: how it ended on that worker.
"""

import contextlib
import io
import os
import sys
from pathlib import Path

import numpy as np

from fireset import InputError, ShiftedReLUNetwork, ShiftedReLURegressor, train
from fireset.__main__ import main as command_line
from fireset.distributed.process_group import current_group
from fireset.distributed.worker_grid import grid
from support import workers

OPTIONS = {  # of worker 0, and of worker 1
    "--learning-rate": ("0.1", "0.2"),
    "--momentum": ("0.5", "0.9"),
    "--engine": ("data", "dense"),
    "--tol": ("0", "0.01"),
    "--ridge": ("1.0", "2.0"),
    "--loss": ("huber", "absolute_error"),
    "--max-iter": ("3", "4"),
    "--threshold": ("1.5", "1.25"),
    "--dtype": ("float32", "float64"),
    "--grid": ("2x1", "1x2"),
    "--holdout": ("0.2", "0.25"),
    "--seed": ("0", "1"),
    "--checkpoint": ("first", "second"),
}
SETTINGS = {
    "learning_rate": (0.1, 0.2),
    "engine": ("data", "dense"),
    "width": (100, 102),
    "solver": ("gradient", "gauss-newton"),
    "column_scales": (None, np.array([1.0, 2.0])),
    "random_state": (1, np.random.RandomState(1)),
}
RANK = workers.RANK


def run_command(name: str, *options: str, table: str = "table.csv") -> None:
    """``fireset train``, in a group of its own."""
    # The group's store is kept by torchrun: as after a restart, each case gets a part of it.
    os.environ["TORCHELASTIC_RESTART_COUNT"] = name
    sys.argv = ["fireset", "train", table, "--target", "y", "--width", "100", "--max-iter", "2", *options]
    errors = io.StringIO()
    code: object = 0
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            command_line()
        except SystemExit as end:
            code = end.code
    workers.note(f"{name}.{RANK}", [code, errors.getvalue()])


def run_python(name: str, attempt) -> None:
    try:
        attempt()
        workers.note(f"{name}.{RANK}", "")
    except InputError as error:
        workers.note(f"{name}.{RANK}", str(error))


def lay_out() -> None:
    with grid(neurons=2 - RANK, rows=1 + RANK):
        pass


def main() -> None:
    os.chdir(workers.OUT)
    X, y = workers.problem()
    for option, values in OPTIONS.items():
        run_command(option, option, values[RANK], "--out", "model.safetensors")
    run_command("--eval", *(["--eval", "table.csv"] if RANK else []))
    run_command("--explain", *(["--explain"] if RANK else []))
    run_command("both explain", "--explain")
    # Options of one worker: where a copy of the table is, what is shown, how much memory there is.
    Path(f"copy.{RANK}").mkdir()
    Path(f"copy.{RANK}/table.csv").write_bytes(Path("table.csv").read_bytes())
    own = ["--quiet", "--memory", "2G"] if RANK else ["--json", "--memory", "3G", "--history", "history.csv"]
    run_command("own", "--out", "own.safetensors", *own, table=f"copy.{RANK}/table.csv")
    with workers.group("settings", 2):
        assert current_group().size == 2
        for name, values in SETTINGS.items():
            given = {"width": 100, "max_iter": 2, "random_state": 0, name: values[RANK]}
            run_python(f"estimator {name}", lambda given=given: ShiftedReLURegressor(**given).fit(X[:, :2], y))
        run_python("no seed", lambda: ShiftedReLURegressor(100).fit(X, y))
        network = ShiftedReLUNetwork.initialize(100, X.shape[1], 2, seed=RANK)
        run_python("weights", lambda: train(network, X, y, max_iter=2))
        run_python("grid", lay_out)
        run_python("same", lambda: train(workers.network(), X, y, max_iter=2, engine="data"))


if __name__ == "__main__":
    main()
