"""Two runs held against the paper, claim by claim: one that meets every assumption, and one as practice has it.

    python examples/certificate.py

The first run has two orthogonal samples, a million neurons and a low threshold: then λ is so large that the width is
enough. The second is scikit-learn's diabetes data, 10,000 neurons, the paper's threshold and a rate that descends.
"""

import numpy as np
from sklearn.datasets import load_diabetes

import fireset
from fireset.theory import Certificate


def show(title: str, network, X, y, **settings) -> None:
    certificate = Certificate()
    fireset.train(network, X, y, tol=0, callbacks=[certificate], **settings)
    report = certificate.report()
    print(title)
    for claim in report.claims:
        bound, measured = ("" if value is None else f"{value:.4g}" for value in (claim.bound, claim.measured))
        print(f"  {claim.text:64} {bound:>10} {measured:>10}  {claim.verdict}")
    print("  " + "\n  ".join(report.notes) + "\n")


X = np.eye(2)
network = fireset.ShiftedReLUNetwork.initialize(1_000_000, 2, threshold=0.05, dtype="float64")
show("Every assumption met", network, X, [0.3, -0.2], learning_rate="theory", max_iter=40)

X, y = load_diabetes(return_X_y=True)
model = fireset.ShiftedReLURegressor(width=10_000, dtype="float64", random_state=0)
rows, targets, _, _ = model.prepare(X, y)
show("Diabetes, as practice has it", model.network_, rows, targets, learning_rate="auto", max_iter=200)
