"""Draw the picture of the README: active pairs, the certificate radius, and seconds per iteration.

python docs/make_picture.py docs/fireset.png
"""

import sys

import matplotlib.pyplot as plt
import numpy as np

from fireset import ShiftedReLUNetwork, train

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
    axes.imshow(active[:120, :240].toarray(), cmap=plt.matplotlib.colors.ListedColormap(["#f6f8fa", ACTIVE]))
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


def draw_times(axes) -> None:
    rng = np.random.default_rng(0)
    X = unit_rows(rng, 1000, 64)
    y = np.sign(X[:, 0]) * 0.5 + X[:, 1]
    widths = [3_000, 10_000, 30_000, 100_000]
    for engine, color in (("dense", INK), ("data", ACTIVE)):
        seconds = []
        for width in widths:
            steps = 10 if engine == "dense" else 100
            result = train(ShiftedReLUNetwork.initialize(width, 64), X, y, engine=engine, max_iter=steps, tol=0)
            seconds.append(result.history[-1].seconds / steps)
        name = {"dense": "every pair (dense engine)", "data": "candidate pairs only (data engine)"}[engine]
        axes.loglog(widths, seconds, "o-", color=color, label=name)
        axes.annotate(
            f"{seconds[-1]:.3f} s", (widths[-1], seconds[-1]), (-10, -4), textcoords="offset points", ha="right"
        )
    axes.set(xlabel="width m", ylabel="seconds per iteration", title="Same result, less time (n = 1000, d = 64)")
    axes.legend(frameon=False, fontsize=9)
    axes.grid(alpha=0.25, which="both", lw=0.5)


def main(path: str) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.6), layout="constrained")
    draw_fire_sets(axes[0])
    draw_certificate(axes[1])
    draw_times(axes[2])
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(sys.argv[1])
