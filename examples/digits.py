"""Handwritten digits with 20,000 neurons: accuracy, time and active pairs.

Trains on scikit-learn's digits and draws the loss, the active and the computed pairs, and the digits with the most
uncertain predictions. Needs matplotlib::

    python examples/digits.py [--width 20000] [--out digits.png]
"""

import argparse
import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fireset import ShiftedReLUClassifier

ACTIVE, COMPUTED = "#d1495b", "#30363d"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=20_000)
    parser.add_argument("--out", default="digits.png")
    arguments = parser.parse_args()

    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    model = ShiftedReLUClassifier(width=arguments.width, random_state=0, verbose=True)
    started = time.perf_counter()
    model.fit(X_train, y_train)
    history = model.result_.history
    took = time.perf_counter() - started
    print(
        f"{arguments.width:,} neurons, {len(history) - 1} iterations in {took:.1f} s, including the choice of settings"
    )
    print(f"accuracy {model.score(X_test, y_test):.2%} on {len(X_test)} held-out digits")

    figure, (loss, work, uncertain) = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    loss.semilogy(history.column("seconds"), history.column("loss"), color=ACTIVE)
    loss.set(xlabel="seconds", ylabel="loss", title="Training")

    pairs = len(X_train) * arguments.width
    work.semilogy(history.column("inner_products") / pairs, color=COMPUTED, label="computed")
    work.semilogy(history.column("active_fraction"), color=ACTIVE, label="active")
    work.axhline(1.0, color=COMPUTED, ls=":", label="computed by a dense implementation")
    work.set(xlabel="iteration", ylabel="share of all pairs", title="Pairs per iteration", ylim=(None, 2))
    work.legend(frameon=False)

    outputs = np.sort(model.decision_function(X_test), axis=1)
    hardest = np.argsort(outputs[:, -1] - outputs[:, -2])[:12]
    tiles = np.pad(X_test[hardest].reshape(3, 4, 8, 8), ((0, 0), (0, 0), (1, 1), (1, 1)))
    uncertain.imshow(tiles.transpose(0, 2, 1, 3).reshape(30, 40), cmap="gray_r")
    predicted, true = model.predict(X_test[hardest]), y_test[hardest]
    for k in range(12):
        right = predicted[k] == true[k]
        place = {"x": 10 * (k % 4) + 0.7, "y": 10 * (k // 4) + 2.2}
        uncertain.text(**place, s=str(predicted[k]), color="#2f6f4f" if right else ACTIVE, weight="bold")
    uncertain.set(xticks=[], yticks=[], title="Most uncertain predictions, errors in red")
    for axes in (loss, work):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(arguments.out, dpi=110)
    print(f"figure in {arguments.out}")


if __name__ == "__main__":
    main()
