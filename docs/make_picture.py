"""Draw the picture of the README: active pairs, and the certificate radius.

python docs/make_picture.py docs/fireset.png
"""

import sys

import matplotlib.pyplot as plt
import numpy as np

from fireset import ShiftedReLUNetwork

ACTIVE, NEAR, FAR, INK = "#d1495b", "#edae49", "#c9d1d9", "#30363d"


def unit_rows(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    X = rng.standard_normal((n, d))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def draw_fire_sets(axes) -> None:
    rng = np.random.default_rng(0)
    network = ShiftedReLUNetwork.initialize(100_000, 64)
    X = unit_rows(rng, 1000, 64)
    active = network.fire_sets(X)
    share = active.nnz / (active.shape[0] * active.shape[1])
    axes.imshow(active[:150, :210].toarray(), cmap=plt.matplotlib.colors.ListedColormap(["#f6f8fa", ACTIVE]))
    axes.set(xlabel="neuron", ylabel="sample", title=f"Active pairs: {share:.1%} of all pairs")


def draw_certificate(axes) -> None:
    rng = np.random.default_rng(3)
    points = rng.uniform(-1.6, 1.6, (420, 2))
    w, b, radius = np.array([0.94, 0.34]), 0.55, 0.35
    values = points @ w
    for chosen, color, label in (
        (values <= b - radius, FAR, "cannot become active while the neuron moves by less than R: not computed"),
        ((values > b - radius) & (values <= b), NEAR, "near misses: computed as the neuron moves"),
        (values > b, ACTIVE, "active"),
    ):
        axes.scatter(*points[chosen].T, s=14, color=color, label=label)
    across = np.array([-w[1], w[0]])
    for level, style in ((b, "-"), (b - radius, "--")):
        ends = np.array([level * w / (w @ w) + t * across for t in (-4, 4)])
        axes.plot(*ends.T, style, color=INK, lw=1.2)
    axes.annotate("", xy=b * w, xytext=(b - radius) * w, arrowprops={"arrowstyle": "<->", "color": INK})
    axes.text(*((b - radius / 2) * w + 0.13 * across), "R", color=INK, ha="center", fontsize=12)
    axes.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), xticks=[], yticks=[], title="One neuron and its certificate radius R")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), fontsize=8, frameon=False)


def main(path: str) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    draw_fire_sets(axes[0])
    draw_certificate(axes[1])
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(sys.argv[1])
