"""The pinball loss, for one or several quantiles."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from fireset._util.checks import is_number
from fireset._util.errors import InputError
from fireset.training.losses import spread
from fireset.training.losses.absolute_error import check_smoothing
from fireset.training.losses.base import Loss


@dataclass(frozen=True)
class Quantile(Loss):
    """L = Σ_i Σ_k ρ_k(y_i − u_ik), with ρ_k(r) = τ_k r for r ≥ 0 and (τ_k − 1) r below. Output k is quantile τ_k.

    ρ_k(r) = ½ |r| + (τ_k − ½) r, with |r| smoothed at 0 as for ``AbsoluteError``. The network therefore predicts the
    quantiles of the target plus an error of up to ±ε.

    Parameters
    ----------
    levels : float or tuple of float
        τ, ascending, between 0 and 1. Several levels need one output each and a single target. One level works with any
        number of targets.
    smoothing : float
        ε relative to the spread of the targets, as for ``AbsoluteError``.
    """

    levels: Any = (0.1, 0.5, 0.9)  # converted to a tuple of float
    smoothing: float = spread.SMOOTHING

    name = "quantile"
    gauss_newton_tol = spread.GAUSS_NEWTON_TOL
    tasks = ("regression",)
    models_spread = True

    def __post_init__(self):
        given = self.levels
        levels: tuple[Any, ...] = (
            tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
        )
        if not (levels and all(is_number(level) and 0 < level < 1 for level in levels)):
            raise InputError(f"`levels` must be numbers between 0 and 1, got {given!r}.")
        if any(low >= high for low, high in pairwise(levels)):
            raise InputError(f"`levels` must ascend without repetition, got {given!r}.")
        object.__setattr__(self, "levels", tuple(float(level) for level in levels))
        check_smoothing(self.smoothing)

    @property
    def outputs_per_target(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(self.levels)

    @property
    def sorts_outputs(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Sorted quantiles never have a larger pinball loss (Chernozhukov, Fernández-Val and Galichon 2010)."""
        return len(self.levels) > 1

    @property
    def _tilt(self) -> np.ndarray:
        """τ − ½, (levels,)."""
        return np.array(self.levels) - 0.5

    def value(self, u, targets, sample_weight) -> float:
        r = targets - u
        return float(sample_weight @ (0.5 * spread.smoothed_abs(r, self.smoothing) + self._tilt * r).sum(axis=1))

    def residual(self, u, targets, sample_weight) -> np.ndarray:
        slopes = np.clip((u - targets) / self.smoothing, -1.0, 1.0)
        return (0.5 * slopes - self._tilt) * sample_weight[:, None]

    def max_curvature(self, n_outputs: int) -> float:  # noqa: ARG002
        return 0.5 / self.smoothing

    def step_curvature(self, n_outputs: int) -> float:
        return spread.CURVED_FRACTION * self.max_curvature(n_outputs)

    def curvatures(self, u, targets, sample_weight) -> np.ndarray:
        return 0.5 * sample_weight[:, None] / np.maximum(np.abs(u - targets), self.smoothing)

    def check_targets(self, targets) -> None:
        if self.outputs_per_target > 1 and targets.shape[1] != self.outputs_per_target:
            raise InputError(
                f"The network must have {self.outputs_per_target} outputs for as many quantiles, got "
                f"{targets.shape[1]}; pass n_outputs={self.outputs_per_target}."
            )

    def for_targets(self, targets, sample_weight) -> "Quantile":
        return replace(self, smoothing=self.smoothing * float(spread.spreads(targets, sample_weight).min()))

    def smoothed(self, errors, sample_weight) -> "Quantile":
        return replace(self, smoothing=spread.wider_smoothing(self.smoothing, errors, sample_weight))

    def ridge_problem(self, targets, sample_weight) -> "tuple[Quantile, np.ndarray]":
        """Return the median: the smoothness of the fit is common to all levels, and most rows are near the median.

        Few rows lie beyond a tail quantile. Leave-one-out with the pinball loss of 0.1 or 0.9 chose a ridge that was a
        hundred times too small, and quantiles that half of the new rows exceeded.
        """
        own = targets[:, :1] if self.outputs_per_target > 1 else targets
        return replace(self, levels=(0.5,)), own - spread.quantiles(own, sample_weight, 0.5)

    def standardization(self, y, sample_weight) -> tuple[np.ndarray, np.ndarray]:
        """Return the quantile of each level, and the spread."""
        if self.outputs_per_target > 1 and y.shape[1] > 1:
            raise InputError(f"`y` must be a single target for several quantiles, got {y.shape[1]} columns.")
        centre = np.concatenate([spread.quantiles(y, sample_weight, level) for level in self.levels])
        return centre, np.broadcast_to(spread.spreads(y, sample_weight), centre.shape).copy()

    def selection_targets(self, y, sample_weight) -> np.ndarray:
        return spread.winsorized(y, sample_weight)

    # Metrics

    def output_names(self) -> list[str]:
        return [f"q{level:g}" for level in self.levels]

    def point_predictions(self, predictions) -> np.ndarray:
        """Return the quantile nearest to the median."""
        nearest = int(np.argmin(np.abs(self._tilt)))
        return predictions.reshape(len(predictions), -1)[:, nearest]

    def metrics(self, y, predictions) -> dict[str, Any]:
        """Return the mean pinball loss of all levels without smoothing, and the fraction of y below each quantile."""
        predictions = predictions.reshape(len(y), -1)
        below = np.mean(y[:, None] <= predictions, axis=0)
        return {
            "pinball": self._mean_pinball(y, predictions),
            "coverage": {name: float(share) for name, share in zip(self.output_names(), below, strict=True)},
        }

    def constant_metrics(self, y, y_train) -> dict[str, Any]:
        """Return the pinball loss of the quantiles of ``y_train``."""
        constant = np.quantile(y_train, self.levels)
        return {"constant_pinball": self._mean_pinball(y, np.broadcast_to(constant, (len(y), len(constant))))}

    def _mean_pinball(self, y: np.ndarray, predictions: np.ndarray) -> float:
        from sklearn.metrics import mean_pinball_loss

        columns = zip(self.levels, predictions.T, strict=True)
        return float(np.mean([mean_pinball_loss(y, column, alpha=level) for level, column in columns]))

    def score(self, y, predictions, sample_weight=None) -> float:
        """Return D², 1 − (pinball loss)/(pinball loss of the quantiles of y), averaged over levels."""
        from sklearn.metrics import d2_pinball_score

        columns = predictions.T if self.outputs_per_target > 1 else [predictions]
        scores = [
            d2_pinball_score(y, column, sample_weight=sample_weight, alpha=level)
            for level, column in zip(self.levels, columns, strict=True)
        ]
        return float(np.mean(scores))
