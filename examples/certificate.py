"""Compare runs with the claims of the paper: one that meets all assumptions, and a practical one.

    python examples/certificate.py

The first run has two orthogonal samples, a million neurons and a low threshold: λ is so large that the width suffices.
The second has scikit-learn's diabetes data, 10,000 neurons, the paper's threshold and an automatic learning rate. It is
repeated with outputs scaled by κ: neurons move 1/κ as far, and claims about movement and flips hold for large κ.
"""

import numpy as np
from sklearn.datasets import load_diabetes

import fireset
from fireset.theory import Certificate


def certified(network, X, y, **settings):
    certificate = Certificate()
    fireset.train(network, X, y, tol=0, callbacks=[certificate], **settings)
    return certificate.report()


def show(title: str, report) -> None:
    print(title)
    for claim in report.claims:
        bound, measured = ("" if value is None else f"{value:.4g}" for value in (claim.bound, claim.measured))
        print(f"  {claim.text:64} {bound:>10} {measured:>10}  {claim.verdict}")
    print("  " + "\n  ".join(report.notes) + "\n")


X = np.eye(2)
network = fireset.ShiftedReLUNetwork.initialize(1_000_000, 2, threshold=0.05, dtype="float64")
show("All assumptions met", certified(network, X, [0.3, -0.2], learning_rate="theory", max_iter=40))

X, y = load_diabetes(return_X_y=True)
paper = {"threshold": "paper", "solver": "gradient", "bias": 3.0, "column_scales": None}


def diabetes(scale: float):
    """Train from the paper's start for κ = 1, and from the antisymmetric start for other κ."""
    start = "paper" if scale == 1.0 else "antisymmetric"
    model = fireset.ShiftedReLURegressor(
        width=10_000, start=start, output_scale=scale, dtype="float64", random_state=0, **paper
    )
    prepared = model.prepare(X, y)
    return certified(model.network_, prepared.rows, prepared.targets, learning_rate="auto", max_iter=200)


show("Diabetes, a practical run", diabetes(1.0))
scales = (1.0, 10.0, 100.0, 1e4, 1e7)
reports = [{claim.key: claim for claim in diabetes(scale).claims} for scale in scales]
print("Diabetes, measured value and verdict with outputs scaled by", ", ".join(f"{scale:g}" for scale in scales))
for key, claim in reports[0].items():
    cells = ["" if (measured := one[key].measured) is None else f"{measured:.3g} {one[key].verdict}" for one in reports]
    print(f"  {claim.text:64} " + "; ".join(cells))
