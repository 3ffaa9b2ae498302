"""Fit a surface over a plane with a very wide ReLU network.

65,536 samples, 10,000 neurons or more, plain ReLU (threshold 0): half of all pairs are active. The cost of the engine
`sums` is proportional to the boundaries of the neurons, not to the active pairs. Needs matplotlib::

    python examples/fit_surface.py [--picture photograph] [--width 10000] [--seconds 60] [--out surface.png]

`--picture photograph` fits scikit-learn's flower.jpg in grey. Gradient descent on raw coordinates learns fine texture
slowly, so that the result stays blurred.
"""

import argparse
import time

import numpy as np

import fireset

SIDE = 256
STRETCH = 2.0  # of the plane before the map to the sphere, so that more neurons have their boundary in the picture


def smooth_surface(side: int) -> np.ndarray:
    """Return a surface of hills, a ridge and a wave."""
    x, y = np.meshgrid(np.linspace(-1, 1, side), np.linspace(-1, 1, side))
    hills = np.exp(-8 * ((x - 0.4) ** 2 + (y + 0.3) ** 2)) - 0.7 * np.exp(-12 * ((x + 0.5) ** 2 + (y - 0.4) ** 2))
    ridge = 0.5 * np.exp(-20 * (x + 0.6 * y + 0.3) ** 2)
    return hills + ridge + 0.25 * np.sin(4 * x) * np.cos(5 * y)


def photograph(side: int) -> np.ndarray:
    """Return the middle of scikit-learn's flower in grey."""
    from sklearn.datasets import load_sample_image

    grey = load_sample_image("flower.jpg").mean(axis=2) / 255
    top, left = (grey.shape[0] - 400) // 2, (grey.shape[1] - 400) // 2
    places = np.linspace(0, 399, side).astype(int)
    return grey[top : top + 400, left : left + 400][np.ix_(places, places)]


def on_the_sphere(side: int) -> np.ndarray:
    """Map pixel (x, y) to the unit vector along (s·x, s·y, 1)."""
    x, y = np.meshgrid(np.linspace(-1, 1, side), np.linspace(-1, 1, side))
    rows = np.stack([STRETCH * x.ravel(), STRETCH * y.ravel(), np.ones(side * side)], axis=1)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def psnr(fit: np.ndarray, target: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio in decibels."""
    return float(20 * np.log10(np.ptp(target) / np.sqrt(np.mean((fit - target) ** 2))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", choices=["surface", "photograph"], default="surface")
    parser.add_argument("--width", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", default="surface.png")
    arguments = parser.parse_args()

    target = smooth_surface(SIDE) if arguments.picture == "surface" else photograph(SIDE)
    X, y = on_the_sphere(SIDE), (target - target.mean()).ravel()
    network = fireset.ShiftedReLUNetwork.initialize(arguments.width, 3, threshold=0.0, seed=0)
    network.output_weights[1::2] = -network.output_weights[::2]  # neurons in pairs that cancel: the network starts at 0
    network.weights[1::2] = network.weights[::2]
    started = time.perf_counter()

    def report(progress) -> bool:
        """Says how it goes; True ends the training."""
        spent = time.perf_counter() - started
        if progress.record.iteration % 50 == 0:
            decibels = 20 * np.log10(np.ptp(y) / np.sqrt(2 * progress.record.loss / len(y)))
            print(f"{spent:6.1f} s, iteration {progress.record.iteration:5}: {decibels:5.1f} dB", flush=True)
        return spent > arguments.seconds

    result = fireset.train(
        network,
        X,
        y,
        engine="sums",
        momentum=0.98,
        nesterov=True,
        max_iter=100_000,
        tol=0,
        callbacks=[report],
    )
    fit = network.predict(X).reshape(SIDE, SIDE) + target.mean()
    per_step = result.history[-1].seconds / max(1, len(result.history) - 1)
    print(f"{psnr(fit, target):.1f} dB after {len(result.history) - 1} iterations, {1e3 * per_step:.0f} ms each")
    draw(target, fit, network, arguments.out)
    print(f"picture: {arguments.out}")


def draw(target: np.ndarray, fit: np.ndarray, network: fireset.ShiftedReLUNetwork, path: str) -> None:
    """Draw target, fit, error, and the boundaries of some neurons."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(15, 4), layout="constrained")
    extent, lowest, highest = (-1, 1, -1, 1), target.min(), target.max()
    shown = {"extent": extent, "origin": "lower"}
    for axis, picture, title in ((axes[0], target, "target"), (axes[1], fit, f"fit, {psnr(fit, target):.1f} dB")):
        image = axis.imshow(picture, cmap="viridis", vmin=lowest, vmax=highest, **shown)
        axis.set_title(title)
    figure.colorbar(image, ax=axes[:2], shrink=0.8)
    error = fit - target
    largest = np.abs(error).max()
    image = axes[2].imshow(error, cmap="RdBu", vmin=-largest, vmax=largest, **shown)
    axes[2].set_title("error")
    figure.colorbar(image, ax=axes[2], shrink=0.8)
    axes[3].imshow(fit, cmap="Greys", alpha=0.5, **shown)
    x = np.linspace(-1, 1, 2)
    for w in network.weights[:120:2]:
        if abs(w[1]) > 1e-3:
            axes[3].plot(x, -(w[0] * x + w[2] / STRETCH) / w[1], lw=0.7, color="#d1495b", alpha=0.7)
    axes[3].set(xlim=(-1, 1), ylim=(-1, 1), title="boundaries of 60 neurons", aspect="equal")
    for axis in axes:
        axis.set_xticks([])
        axis.set_yticks([])
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
