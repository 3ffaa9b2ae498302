"""Handwritten digits with 20,000 neurons: how well, how fast, and who fires for whom.

Trains on scikit-learn's digits and draws the loss, the pairs that fire beside those that were looked at, and the digits
that the network is least sure of. Run it, with matplotlib installed::

    python examples/digits.py [--width 20000] [--out digits.png]
"""

import argparse
import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fireset import ShiftedReLUClassifier

FIRED, LOOKED = "#d1495b", "#30363d"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=20_000)
    parser.add_argument("--out", default="digits.png")
    asked = parser.parse_args()

    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
    model = ShiftedReLUClassifier(width=asked.width, random_state=0, verbose=True)
    started = time.perf_counter()
    model.fit(X_train, y_train)
    history = model.result_.history
    took = time.perf_counter() - started
    print(f"{asked.width:,} neurons, {len(history) - 1} iterations in {took:.1f} s, everything included")
    print(f"right on {model.score(X_test, y_test):.2%} of {len(X_test)} digits that it has not seen")

    figure, (loss, work, unsure) = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    loss.semilogy(history.column("seconds"), history.column("loss"), color=FIRED)
    loss.set(xlabel="seconds", ylabel="loss", title="Training")

    pairs = len(X_train) * asked.width
    work.semilogy(history.column("inner_products") / pairs, color=LOOKED, label="looked at")
    work.semilogy(history.column("active_fraction"), color=FIRED, label="fire")
    work.axhline(1.0, color=LOOKED, ls=":", label="looked at by a dense program")
    work.set(xlabel="iteration", ylabel="share of all pairs", title="What an iteration looks at", ylim=(None, 2))
    work.legend(frameon=False)

    outputs = np.sort(model.decision_function(X_test), axis=1)
    hardest = np.argsort(outputs[:, -1] - outputs[:, -2])[:12]
    tiles = np.pad(X_test[hardest].reshape(3, 4, 8, 8), ((0, 0), (0, 0), (1, 1), (1, 1)))
    unsure.imshow(tiles.transpose(0, 2, 1, 3).reshape(30, 40), cmap="gray_r")
    said, true = model.predict(X_test[hardest]), y_test[hardest]
    for k in range(12):
        right = said[k] == true[k]
        place = {"x": 10 * (k % 4) + 0.7, "y": 10 * (k // 4) + 2.2}
        unsure.text(**place, s=str(said[k]), color="#2f6f4f" if right else FIRED, weight="bold")
    unsure.set(xticks=[], yticks=[], title="The least sure: what it says, red where wrong")
    for axes in (loss, work):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(asked.out, dpi=110)
    print(f"figure in {asked.out}")


if __name__ == "__main__":
    main()
