"""The contract of a loss.

Engines only see the residual ∂L/∂u. Everything else that depends on the loss is a method or an attribute of ``Loss``:
curvature, scaling of targets, links to predictions and probabilities, metrics, and the nodes of an ONNX export.

``targets`` have the shape of the outputs u, (n, c). ``sample_weight``, (n,), multiplies the loss of each row.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from fireset._util.errors import InputError


class OnnxGraph(Protocol):
    """The methods of an ONNX graph under construction that a loss uses. Each returns the name of the new value."""

    def constant(self, name: str, value: Any) -> str: ...

    def add(self, operation: str, *inputs: str, name: str, **attributes: Any) -> str: ...

    def joined(self, values: Sequence[str], name: str) -> str: ...


class Loss(ABC):
    """A loss of outputs u (n, c): value, gradient and curvature in u, and the meaning of the outputs.

    ``value``, ``residual`` and ``max_curvature`` are sufficient to train a network. The other methods default to a
    regression whose outputs are the standardized targets.

    Attributes
    ----------
    name : str
        Name in the registry, the value of ``loss=``.
    tasks : tuple of str
        Tasks of the estimators that accept the loss: "regression", "classification".
    outputs_per_target : int
        Number of network outputs for each target column; above 1 for several quantiles.
    sorts_outputs : bool
        Whether the predictions of a row are sorted, so that quantiles do not cross.
    gauss_newton_tol : float
        Default of ``tol`` for Gauss–Newton: stop when the predicted reduction is below this fraction of the objective.
    suits_output_layer : bool
        Whether estimators may train the output layer by default: leave-one-out by squared error represents the loss,
        and few tangent products solve its systems.
    ridge_iterations : int
        Reweighted leave-one-out fits that ``ridge="auto"`` makes (``training/solvers/gauss_newton.py``).
    is_squared_error : bool
        Whether the loss is ½ Σ (u − y)²: the loss of the paper, which one round of Gauss–Newton minimizes.
    zero_is_best_constant : bool
        Whether outputs of 0, those before training, are the best constant prediction.
    models_spread : bool
        Whether predictions depend on the spread of the targets as well as on their centre. The settings of a table are
        then chosen by the absolute errors, too.
    forecasts_score : bool
        Whether the leave-one-out score of least squares forecasts the score of a fit with this loss.
    calibrates_classes : bool
        Whether a classifier centres the class targets and learns a calibration from outputs to probabilities. If not,
        it uses ``probabilities``.
    """

    name: str
    tasks: tuple[str, ...] = ("regression", "classification")
    outputs_per_target: int = 1
    sorts_outputs: bool = False
    gauss_newton_tol: float = 3e-3
    ridge_iterations: int = 4
    suits_output_layer: bool = False
    is_squared_error: ClassVar[bool] = False
    zero_is_best_constant: ClassVar[bool] = True
    models_spread: ClassVar[bool] = False
    forecasts_score: ClassVar[bool] = False
    calibrates_classes: ClassVar[bool] = False

    # Training

    @abstractmethod
    def value(self, u: np.ndarray, targets: np.ndarray, sample_weight: np.ndarray) -> float:
        """Return L ≥ 0, a sum over rows."""

    @abstractmethod
    def residual(self, u: np.ndarray, targets: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
        """Return ∂L/∂u, (n, c)."""

    @abstractmethod
    def max_curvature(self, n_outputs: int) -> float:
        """Return the largest eigenvalue that the Hessian of one row's loss in u can have."""

    def step_curvature(self, n_outputs: int) -> float:
        """Return the curvature that ``learning_rate="auto"`` divides by.

        Below ``max_curvature`` for losses where few rows reach the maximum at a time.
        """
        return self.max_curvature(n_outputs)

    def curvatures(self, u: np.ndarray, targets: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """Return b, (n, c), with L(v) ≤ L(u) + Σ e (v − u) + ½ Σ b (v − u)² for v near u, where e is the residual at u.

        Gauss–Newton minimizes the right-hand side.
        """
        return np.broadcast_to(self.max_curvature(u.shape[1]) * sample_weight[:, None], u.shape).copy()

    def check_targets(self, targets: np.ndarray) -> None:
        """Raise InputError for invalid targets. By default all finite numbers are valid."""

    def for_targets(self, targets: np.ndarray, sample_weight: np.ndarray) -> "Loss":  # noqa: ARG002
        """Return the loss to train with: parameters relative to the spread of the targets become absolute."""
        return self

    # Choice of the ridge

    def smoothed(self, errors: np.ndarray, sample_weight: np.ndarray) -> "Loss":  # noqa: ARG002
        """Return a similar loss that is curved over the range of ``errors`` (n, k), for the choice of the ridge.

        By default the loss itself. A loss with a kink gives rows next to the kink a hundred times the weight of others,
        which makes leave-one-out errors useless.
        """
        return self

    def ridge_problem(self, targets: np.ndarray, sample_weight: np.ndarray) -> "tuple[Loss, np.ndarray]":  # noqa: ARG002
        """Return the loss and the targets that the ridge is chosen for. By default this loss and all targets."""
        return self, targets

    # Regression targets

    def standardization(self, y: np.ndarray, sample_weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return centre and scale of the targets, (c,) each; the network is trained on (y − centre)/scale.

        By default the mean and the standard deviation of each column of y, (n, columns).
        """
        centre = np.average(y, axis=0, weights=sample_weight)
        scale = np.sqrt(np.average((y - centre) ** 2, axis=0, weights=sample_weight))
        return centre, np.where(scale > 1e-12 * np.abs(centre), scale, 1.0)

    def selection_targets(self, y: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
        """Return centred targets, (n, k), for the least-squares fits that choose bias and column scales.

        By default the standardized targets.
        """
        centre, scale = self.standardization(y, sample_weight)
        return (y - centre) / scale

    # Classes

    def class_targets(self, one_hot: np.ndarray) -> np.ndarray:
        """Return the targets of classes given as boolean codes, (n, c). By default ±1."""
        return 2.0 * one_hot - 1.0

    def constant_outputs(self, targets: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """Return the outputs of the best constant prediction, in the shape of ``targets``. By default 0."""
        return np.zeros_like(targets)

    # Meaning of the outputs

    def predictions(self, u: np.ndarray) -> np.ndarray:
        """Return the standardized targets that outputs u predict: the inverse link. By default u."""
        return u

    def probabilities(self, u: np.ndarray) -> np.ndarray:
        """Return class probabilities: the logistic function of one output, softmax of several."""
        return probabilities(u)

    def add_predictions(self, graph: OnnxGraph, u: str) -> str:  # noqa: ARG002
        """Add the ONNX nodes of ``predictions``; return the name of their value.

        A loss that overrides ``predictions`` must override this method to be exported.
        """
        if type(self).predictions is not Loss.predictions:
            raise InputError(
                f"`loss` must define `add_predictions` to be exported to ONNX, got {self}; train with one of fireset's "
                "losses."
            )
        return u

    def add_probabilities(self, graph: OnnxGraph, u: str, n_classes: int) -> str:
        """Add the ONNX nodes of ``probabilities``; return the name of the value, (rows, n_classes)."""
        if type(self).probabilities is not Loss.probabilities:
            raise InputError(
                f"`loss` must define `add_probabilities` to be exported to ONNX, got {self}; train with one of "
                "fireset's losses."
            )
        if n_classes > 2:
            return graph.add("Softmax", u, name="softmax", axis=1)
        p = graph.add("Sigmoid", u, name="p_of_second")
        first = graph.add("Sub", graph.constant("one", 1.0), p, name="p_of_first")
        return graph.joined([first, p], "p_of_both")

    # Metrics of regression, all in the units of y. ``predictions`` are those of ``ShiftedReLURegressor.predict``.

    def output_names(self) -> list[str]:
        """Return the names of the prediction columns of one target."""
        return ["prediction"]

    def point_predictions(self, predictions: np.ndarray) -> np.ndarray:
        """Return one prediction for each row, (n,)."""
        return predictions

    def metrics(self, y: np.ndarray, predictions: np.ndarray) -> dict[str, Any]:
        """Return the metrics of predictions of y (n,) by name. R² needs targets that differ."""
        from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

        found = {"r2": float(r2_score(y, predictions))} if len(y) > 1 and np.ptp(y) > 0 else {}
        found["rmse"] = float(root_mean_squared_error(y, predictions))
        found["mae"] = float(mean_absolute_error(y, predictions))
        return found

    def constant_metrics(self, y: np.ndarray, y_train: np.ndarray) -> dict[str, Any]:
        """Return the metrics on y of the best constant prediction for ``y_train``."""
        mean = float(np.mean(y_train))
        return {"constant_prediction": mean, "constant_rmse": float(np.sqrt(np.mean((y - mean) ** 2)))}

    def score(self, y: np.ndarray, predictions: np.ndarray, sample_weight: np.ndarray | None = None) -> float:
        """Return the score of ``ShiftedReLURegressor.score``: R² by default."""
        from sklearn.metrics import r2_score

        return float(r2_score(y, predictions, sample_weight=sample_weight))

    def __str__(self) -> str:
        """Return the name and the parameters, which identify a run."""
        parameters = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{self.name}({parameters})" if parameters else self.name


def probabilities(u: np.ndarray) -> np.ndarray:
    """Return the logistic function of one output, (n, 1), or softmax of several, (n, c)."""
    from scipy.special import expit, softmax

    return expit(u) if u.shape[1] == 1 else softmax(u, axis=1)
