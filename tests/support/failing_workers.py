"""What the workers of ``test_failed_factorizations.py`` do, four of them: fits that fail on the first."""

import json
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np

from fireset import ShiftedReLURegressor
from fireset.distributed.process_group import joined_group
from fireset.distributed.worker_grid import grid
from fireset.training.solvers import gauss_newton

TIMEOUT = 150.0  # seconds of an exchange


def fail(*_, **__):
    raise FloatingPointError("injected")


def main(folder: Path) -> None:
    gauss_newton.best_ridge = fail
    X = np.random.default_rng(0).standard_normal((400, 3))
    told = {}
    with joined_group(timedelta(seconds=TIMEOUT)) as workers, grid(neurons=2, rows=2):
        for solver in ("gauss-newton", "nystrom"):
            try:
                ShiftedReLURegressor(64, solver=solver, random_state=0).fit(X, X[:, 0])
            except FloatingPointError as error:
                told[solver] = str(error)
        (folder / f"{workers.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
