"""Regression on a CSV file with numbers, categories and missing cells, with early stopping.

Writes a synthetic table of house prices, trains on it, and draws predictions against prices and the validation loss.
Needs matplotlib::

    python examples/regression_table.py [--width 10000] [--out regression.png]
"""

import argparse
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import polars as pl
from sklearn.model_selection import train_test_split

from fireset import ShiftedReLURegressor
from fireset.tables.problem import TableProblem

ROWS = 4_000
INK, POINTS = "#30363d", "#d1495b"


def write_houses(file: Path) -> None:
    """Write prices that depend on size, age, place and interactions, with noise; 5 % of the ages are missing."""
    rng = np.random.default_rng(0)
    size = rng.uniform(30, 220, ROWS)
    age = rng.uniform(0, 110, ROWS)
    place = rng.choice(["old town", "river", "hill", "station"], ROWS)
    garden = rng.random(ROWS) < 0.4
    level = {"old town": 1.5, "river": 1.2, "hill": 1.0, "station": 0.8}
    worth = np.array([level[name] for name in place]) * (1 + 0.3 * np.cos(age / 18)) * size * 30
    price = worth * (1 + 0.15 * garden * (place != "old town")) * rng.lognormal(0, 0.08, ROWS)
    known = [None if rng.random() < 0.05 else round(float(years)) for years in age]
    pl.DataFrame({"size": size.round(), "age": known, "place": place, "garden": garden, "price": price}).write_csv(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=10_000)
    parser.add_argument("--out", default="regression.png")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "houses.csv"
        write_houses(file)
        problem = TableProblem.read(file, "price", impute=True)
    kept, held = train_test_split(np.arange(len(problem.y)), test_size=0.2, random_state=0)
    rows = problem.encode(kept)  # the encoder is learned on the training rows
    print(f"{len(problem.y):,} rows, columns after encoding: {', '.join(rows.encoder.feature_names)}")
    model = ShiftedReLURegressor(width=arguments.width, early_stopping=True, random_state=0, verbose=True)
    model.fit(rows[kept], problem.y[kept])
    predicted, true = model.predict(rows[held]), problem.y[held]
    history = model.result_.history
    print(
        f"engine {model.result_.engine}, {len(history) - 1} iterations, {history[-1].seconds:.1f} s; "
        f"R² {model.score(rows[held], true):.3f} on {len(held)} held-out rows, "
        f"median relative error {np.median(np.abs(predicted / true - 1)):.1%}"
    )

    figure, (fit, loss) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    fit.loglog(true, np.maximum(predicted, 1), ".", color=POINTS, ms=4, alpha=0.6)
    fit.loglog([true.min(), true.max()], [true.min(), true.max()], color=INK, lw=1)
    fit.set(xlabel="price", ylabel="predicted", title=f"{len(held)} held-out houses")
    loss.semilogy(history.column("loss") / history[0].loss, color=INK, label="training rows")
    validation = history.column("validation_loss").astype(float)
    loss.semilogy(validation / validation[0], color=POINTS, label="validation rows")
    loss.set(xlabel="iteration", ylabel="loss relative to the first", title="Training")
    loss.legend(frameon=False)
    for axes in (fit, loss):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(arguments.out, dpi=110)
    print(f"figure in {arguments.out}")


if __name__ == "__main__":
    main()
