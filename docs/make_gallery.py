"""Draw the pictures of the gallery, docs/gallery/NAME.png, one function per picture.

    python docs/make_gallery.py [NAME ...]

Except for the times of ``steps`` the pictures are the same on every machine, up to rounding.
"""

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from make_picture import ACTIVE, FAR, INK, NEAR, draw_certificate, unit_rows
from matplotlib.colors import ListedColormap
from matplotlib.patches import Rectangle

from fireset import ShiftedReLUClassifier, ShiftedReLUNetwork, ShiftedReLURegressor, hsr, theory, train

FOLDER = Path(__file__).parent / "gallery"
BLUE, GREEN = "#2a6f97", "#3a7d44"
# 676 pixels wide with letters of 23 pixels, readable at half size on a phone.
STYLE = {
    "figure.figsize": (5.2, 4.2),
    "figure.dpi": 130,
    "font.size": 13,
    "axes.titlesize": 14,
    "legend.fontsize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "text.color": INK,
    "legend.frameon": False,
}


def fires(axes) -> None:
    """Digits sorted by class, neurons sorted by the class that they are most often active for."""
    from sklearn.datasets import load_digits

    images, digit = load_digits(return_X_y=True)
    chosen = np.concatenate([np.flatnonzero(digit == each)[:20] for each in range(10)])
    X = images[chosen] - images.mean(axis=0)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    active = ShiftedReLUNetwork.initialize(20_000, 64, threshold=1.5, seed=0).fire_sets(X).toarray()
    by_class = active.reshape(10, 20, -1).sum(axis=1)
    most_active = np.argsort(-by_class.max(axis=0), kind="stable")[:300]
    order = most_active[np.argsort(by_class[:, most_active].argmax(axis=0), kind="stable")]
    axes.imshow(active[:, order], cmap=ListedColormap(["#f6f8fa", ACTIVE]), aspect="auto", interpolation="nearest")
    axes.set(xlabel="300 of 20,000 neurons", ylabel="digit", title="Active pairs")
    axes.set_yticks(np.arange(10, 210, 20), labels=[str(each) for each in range(10)])


def radius(axes) -> None:
    draw_certificate(axes)
    axes.set_title("A neuron and its radius R")
    handles, _ = axes.get_legend_handles_labels()
    labels = ["inactive while it moves less than R", "near misses: computed", "active"]
    axes.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), handletextpad=0.2)
    axes.spines[:].set_visible(False)


def bands(axes) -> None:
    """Noise that grows from left to right, and the interval with four fifths of it."""
    from fireset.training.losses import Quantile

    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0, 6, 300))
    y = np.sin(2 * x) + (0.05 + 0.12 * x) * rng.standard_normal(300)
    model = ShiftedReLURegressor(2_000, loss=Quantile((0.1, 0.5, 0.9)), random_state=0).fit(x[:, None], y)
    places = np.linspace(0, 6, 200)
    low, middle, high = model.predict(places[:, None]).T
    axes.scatter(x, y, s=9, color=INK, alpha=0.45, lw=0)
    axes.fill_between(places, low, high, color=NEAR, alpha=0.45, label="10 % to 90 %")
    axes.plot(places, middle, color=ACTIVE, lw=2.2, label="median")
    axes.set(xlabel="x", ylabel="y", title="Prediction intervals", ylim=(-3.2, 3.4))
    axes.legend(loc="upper left", ncols=2)


def outliers(axes) -> None:
    """One target in eight is wrong, which shifts the mean and not the median."""
    rng = np.random.default_rng(4)
    x = np.sort(rng.uniform(0, 6, 160))
    y = np.sin(1.5 * x) + 0.1 * rng.standard_normal(160)
    wrong = rng.random(160) < 0.12
    y[wrong] += 4
    places = np.linspace(0, 6, 200)[:, None]
    axes.scatter(x[~wrong], y[~wrong], s=12, color=INK, alpha=0.5, lw=0)
    axes.scatter(x[wrong], y[wrong], s=22, color=INK, marker="x", lw=1.2)
    for loss, color, name in (("squared_error", BLUE, "squared error"), ("absolute_error", ACTIVE, "absolute error")):
        model = ShiftedReLURegressor(2_000, loss=loss, random_state=0).fit(x[:, None], y)
        axes.plot(places, model.predict(places), color=color, lw=2.2, label=name)
    axes.set(xlabel="x", ylabel="y", title="Outliers in the target (×)", ylim=(-1.6, 7))
    axes.legend(loc="upper left", ncols=2)


def moons(axes) -> None:
    from sklearn.datasets import make_moons

    X, y = make_moons(300, noise=0.22, random_state=0)
    model = ShiftedReLUClassifier(random_state=0).fit(X, y)
    across, up = np.meshgrid(np.linspace(-1.7, 2.7, 110), np.linspace(-1.3, 1.8, 90))
    probability = model.predict_proba(np.c_[across.ravel(), up.ravel()])[:, 1].reshape(across.shape)
    filled = axes.contourf(across, up, probability, levels=np.linspace(0, 1, 11), cmap="RdBu_r", alpha=0.75)
    axes.contour(across, up, probability, levels=[0.5], colors=INK, linewidths=1.8)
    for label, color in ((0, "#1d4e89"), (1, "#9d0208")):
        axes.scatter(*X[y == label].T, s=14, color=color, edgecolor="white", lw=0.4)
    axes.figure.colorbar(filled, ax=axes, ticks=[0, 0.5, 1], label="probability of red")
    axes.set(xticks=[], yticks=[], title="Two moons")


def calibration(axes) -> None:
    """Share of the class among rows with predicted probability p; all models at their defaults."""
    from sklearn.calibration import calibration_curve
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    rng = np.random.default_rng(0)
    X = rng.standard_normal((4_000, 8))
    y = rng.random(4_000) < 1 / (1 + np.exp(-2 * X[:, 0] - 2 * np.sin(2 * X[:, 1])))
    axes.plot([0, 1], [0, 1], color=INK, ls=":", lw=1.2)
    for name, model, color in (
        ("MLP", MLPClassifier(random_state=0), BLUE),
        ("random forest", RandomForestClassifier(random_state=0), GREEN),
        ("fireset", ShiftedReLUClassifier(random_state=0), ACTIVE),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the MLP stops after 200 epochs by default
            predicted = model.fit(X[:600], y[:600]).predict_proba(X[600:])[:, 1]
        observed, mean_predicted = calibration_curve(y[600:], predicted, n_bins=8, strategy="quantile")
        axes.plot(mean_predicted, observed, "o-", color=color, label=name, lw=2)
    axes.set(xlabel="predicted probability", ylabel="observed share", title="Calibration")
    axes.legend(loc="upper left")


def learning(axes) -> None:
    """R² on new rows of friedman1, at the defaults of each model."""
    from sklearn.datasets import make_friedman1
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVR

    X, y = make_friedman1(3_000, 10, noise=1.0, random_state=0)
    sizes = [60, 125, 250, 500, 1_000]
    models: dict[str, tuple[Callable, str]] = {
        "support vectors": (lambda: make_pipeline(StandardScaler(), SVR()), GREEN),
        "random forest": (lambda: RandomForestRegressor(25, random_state=0), BLUE),
        "fireset": (lambda: ShiftedReLURegressor(8_000, random_state=0), ACTIVE),
    }
    for name, (make, color) in models.items():
        scores = [make().fit(X[:size], y[:size]).score(X[1_000:], y[1_000:]) for size in sizes]
        axes.semilogx(sizes, scores, "o-", color=color, label=name, lw=2)
    axes.set(xlabel="training rows", ylabel="R² on 2,000 new rows", title="Learning curve", ylim=(0, 1))
    axes.set_xticks(sizes, labels=[f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.legend(loc="lower right")


def query(axes) -> None:
    """The leaves of a partition tree: inside the half-space, outside, or cut by its boundary."""
    from fireset.kernels.partition_tree import FAN, N_CHILDREN

    points = np.random.default_rng(0).standard_normal((2_500, 2))
    normal, threshold = np.array([0.6, 0.8]), 0.4
    index = hsr.build(points, "partition-tree")
    found = index.query(normal, threshold)
    tree = index.trimmed_arrays()
    for node, columns in enumerate(tree.nodes):
        for child in range(min(FAN, columns[N_CHILDREN])):
            if columns[child] >= 0:
                continue  # an inner node; its leaves are drawn
            upper, lower = tree.boxes[node, :2, child], tree.boxes[node, 2:, child]
            corners = [normal @ [x, y] for x in (lower[0], upper[0]) for y in (lower[1], upper[1])]
            color = ACTIVE if min(corners) > threshold else FAR if max(corners) <= threshold else NEAR
            axes.add_patch(Rectangle(lower, *(upper - lower), facecolor=color, edgecolor=INK, lw=0.8, alpha=0.55))
    axes.scatter(*points.T, s=2.5, color=INK, alpha=0.6, lw=0)
    axes.scatter(*points[found].T, s=4, color="#7a0916", lw=0)
    ends = np.array([threshold * normal + t * np.array([-0.8, 0.6]) for t in (-6, 6)])
    axes.plot(*ends.T, color=INK, lw=1.8)
    axes.set(xlim=(-3, 3), ylim=(-2.9, 2.9), xticks=[], yticks=[], title="A half-space query")
    colors = {"skipped": FAR, "tested": NEAR, "reported whole": ACTIVE}
    marks = [Rectangle((0, 0), 1, 1, facecolor=color, edgecolor=INK, alpha=0.7) for color in colors.values()]
    axes.legend(marks, colors, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=3, columnspacing=0.9)
    axes.spines[:].set_visible(False)


def thresholds(axes) -> None:
    """Counted share of active pairs, and P(z > b) of the normal distribution."""
    from scipy.stats import norm

    X = unit_rows(np.random.default_rng(0), 200, 20)
    levels = np.linspace(0, 2.75, 12)
    counted = []
    for level in levels:
        pairs = ShiftedReLUNetwork.initialize(10_000, 20, threshold=float(level), seed=0).fire_sets(X)
        counted.append(pairs.nnz / (200 * 10_000))
    axes.semilogy(levels, norm.sf(levels), color=INK, lw=1.6, label="P(z > b)")
    axes.semilogy(levels, counted, "o", color=ACTIVE, label="counted")
    for width, name in ((10_000, "m = 10⁴"), (1_000_000, "m = 10⁶")):
        place = theory_threshold(width)
        axes.axvline(place, color=BLUE, ls="--", lw=1.2)
        axes.text(place - 0.05, 0.42, name, color=BLUE, rotation=90, ha="right", va="top")
    axes.set(xlabel="threshold b", ylabel="share of active pairs", title="Sparsity by threshold")
    axes.set_yticks([0.5, 0.1, 0.02, 0.004], labels=["50 %", "10 %", "2 %", "0.4 %"])
    axes.minorticks_off()
    axes.legend(loc="lower left")


def theory_threshold(width: int) -> float:
    """The paper's b = √(0.4 ln m)."""
    return float(np.sqrt(0.4 * np.log(width)))


def steps(axes) -> None:
    """Time of a gradient step by width, without compile time."""
    X = unit_rows(np.random.default_rng(0), 500, 32)
    y = np.sign(X[:, 0]) + X[:, 1]
    widths = [1_000, 3_000, 10_000, 30_000]
    for engine, color, name in (("dense", INK, "every pair (dense)"), ("data", ACTIVE, "candidates (data)")):
        seconds = []
        for width in widths:
            times: list[float] = []

            def clock(_, times=times) -> None:
                times.append(time.perf_counter())

            network = ShiftedReLUNetwork.initialize(width, 32, seed=0)
            train(network, X, y, engine=engine, max_iter=8, tol=0, callbacks=[clock])
            seconds.append(float(np.median(np.diff(times))))
        axes.loglog(widths, 1e3 * np.array(seconds), "o-", color=color, label=name, lw=2)
    axes.set(xlabel="neurons", ylabel="ms per step", title="Time per step")
    axes.set_xticks(widths, labels=[f"{width:,}" for width in widths])
    axes.set_yticks([1, 3, 10, 30, 100], labels=["1", "3", "10", "30", "100"])
    axes.minorticks_off()
    axes.legend(loc="upper left")


def limit(axes) -> None:
    """H of m neurons for two rows, by the angle between them, and its limit H^cts."""
    angles = np.linspace(0, np.pi, 60)
    X = np.c_[np.cos(angles), np.sin(angles)]
    for width, color in ((100, FAR), (1_000, NEAR), (100_000, ACTIVE)):
        active = ShiftedReLUNetwork.initialize(width, 2, threshold=1.0, seed=5).fire_sets(X)
        kernel = theory.fire_set_kernel(X, active)[0]
        axes.plot(np.degrees(angles), kernel, color=color, lw=2.2, label=f"{width:,} neurons")
    axes.plot(np.degrees(angles), theory.shifted_ntk(X, 1.0)[0], color=INK, lw=1.4, ls="--", label="infinitely many")
    axes.set(xlabel="angle between two rows, degrees", ylabel="kernel", title="Wide networks approach a kernel")
    axes.set_xticks([0, 45, 90, 135, 180])
    axes.legend(loc="upper right")


def importances(axes) -> None:
    """friedman1: five columns determine the target, five are noise."""
    from sklearn.datasets import make_friedman1

    X, y = make_friedman1(600, 10, noise=1.0, random_state=0)
    shares = ShiftedReLURegressor(4_000, random_state=0).fit(X, y).feature_importances_
    axes.barh(np.arange(10), 100 * shares, color=[ACTIVE] * 5 + [INK] * 5)
    axes.set_yticks(np.arange(10), labels=[f"column {k}" for k in range(10)])
    axes.invert_yaxis()
    axes.set(xlabel="importance, %", title="Feature importances", xlim=(0, 28))
    for k, share in enumerate(shares):
        axes.text(100 * share + 0.6, k, f"{100 * share:.0f} %", va="center", fontsize=11)


PICTURES: dict[str, Callable] = {
    each.__name__: each
    for each in (
        fires, radius, thresholds, query, moons, calibration, bands, outliers, learning, importances, steps, limit
    )
}  # fmt: skip


def draw(name: str, folder: Path = FOLDER) -> Path:
    """Draw one picture; returns its file."""
    folder.mkdir(exist_ok=True)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(layout="constrained")
        PICTURES[name](axes)
        figure.savefig(folder / f"{name}.png")
        plt.close(figure)
    return folder / f"{name}.png"


if __name__ == "__main__":
    for wanted in sys.argv[1:] or PICTURES:
        started = time.perf_counter()
        print(f"{draw(wanted)}, {time.perf_counter() - started:.1f} s", flush=True)
