"""How good predictions are."""

import numpy as np


def scores(task: str, answers: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """Accuracy, or RMSE and R² (without spread in the answers there is no R²)."""
    if task == "classification":
        return {"accuracy": float(np.mean(answers == predictions))}
    error = answers - predictions
    spread = float(np.sum((answers - answers.mean()) ** 2))
    found = {"rmse": float(np.sqrt(np.mean(error**2)))}
    if spread > 0:
        found["r2"] = 1.0 - float(np.sum(error**2)) / spread
    return found
