"""The pinball loss: quantiles, one or several at once."""

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
    """L = Σ_i Σ_k ρ_k(y_i − u_ik), with ρ_k(r) = τ_k r for r ≥ 0 and (τ_k − 1) r below: output k is quantile τ_k.

    ρ_k(r) = ½ |r| + (τ_k − ½) r, and |r| is rounded off at 0 as for ``AbsoluteError``: what is learned are quantiles of
    the target with an error of up to ±ε added to it.

    Parameters
    ----------
    levels : float or tuple of float
        τ, ascending, between 0 and 1. Several levels need as many outputs, all of which see one target; one level
        serves any number of targets.
    smoothing : float
        ε beside the spread of the targets, as for ``AbsoluteError``.
    """

    levels: Any = (0.1, 0.5, 0.9)  # a tuple, whatever was given
    smoothing: float = spread.SMOOTHING

    name = "quantile"
    round_tolerance = spread.ROUND_TOLERANCE
    tasks = ("regression",)

    def __post_init__(self):
        given = self.levels
        levels: tuple[Any, ...] = (
            tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
        )
        if not (levels and all(is_number(level) and 0 < level < 1 for level in levels)):
            raise InputError(f"levels of quantiles must be numbers between 0 and 1, got {given!r}")
        if any(low >= high for low, high in pairwise(levels)):
            raise InputError(f"levels of quantiles must ascend, got {given!r}; give each once, from low to high")
        object.__setattr__(self, "levels", tuple(float(level) for level in levels))
        check_smoothing(self.smoothing)

    @property
    def shares_target(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(self.levels) > 1

    @property
    def _tilt(self) -> np.ndarray:
        """τ − ½, (q,)."""
        return np.array(self.levels) - 0.5

    def value(self, u, targets, sample_weight) -> float:
        r = targets - u
        return float(sample_weight @ (0.5 * spread.smoothed_size(r, self.smoothing) + self._tilt * r).sum(axis=1))

    def residual(self, u, targets, sample_weight) -> np.ndarray:
        slopes = np.clip((u - targets) / self.smoothing, -1.0, 1.0)
        return (0.5 * slopes - self._tilt) * sample_weight[:, None]

    def curvature(self, n_outputs: int) -> float:  # noqa: ARG002
        return 0.5 / self.smoothing

    def step_curvature(self, n_outputs: int) -> float:
        return spread.CURVED_SHARE * self.curvature(n_outputs)

    def curvatures(self, u, targets, sample_weight) -> np.ndarray:
        return 0.5 * sample_weight[:, None] / np.maximum(np.abs(u - targets), self.smoothing)

    def check_targets(self, targets) -> None:
        if self.shares_target and targets.shape[1] != len(self.levels):
            raise InputError(
                f"a quantile loss of {len(self.levels)} levels needs a network of as many outputs, got "
                f"{targets.shape[1]}; make it with n_outputs={len(self.levels)}"
            )

    def for_targets(self, targets, sample_weight) -> "Quantile":
        return replace(self, smoothing=self.smoothing * float(spread.spreads(targets, sample_weight).min()))

    def broadened(self, errors, sample_weight) -> "Quantile":
        return replace(self, smoothing=spread.broad(self.smoothing, errors, sample_weight))

    def for_ridge(self, targets, sample_weight) -> "tuple[Quantile, np.ndarray]":
        """The median: how smooth a fit must be is the same for all levels, and rows in the middle tell it best.

        A tail alone has too few rows beyond it: leave-one-out by the pinball loss of 0.1 or 0.9 chose a ridge a hundred
        times too small, and quantiles that half of new rows lay beyond.
        """
        own = targets[:, :1] if self.shares_target else targets
        return replace(self, levels=(0.5,)), own - spread.quantiles(own, sample_weight, 0.5)

    def standardization(self, y, sample_weight) -> tuple[np.ndarray, np.ndarray]:
        """The quantile of each level, and the spread."""
        if self.shares_target and y.shape[1] > 1:
            raise InputError(f"several quantiles need a single target, got y with {y.shape[1]} columns; fit one a time")
        centre = np.concatenate([spread.quantiles(y, sample_weight, level) for level in self.levels])
        return centre, np.broadcast_to(spread.spreads(y, sample_weight), centre.shape).copy()

    def screening(self, y, sample_weight) -> np.ndarray:
        return spread.winsorized(y, sample_weight)


def pinball(y: np.ndarray, predicted: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
    """Mean pinball loss of each level, (q,), without smoothing; y (n,), predicted (n, q)."""
    r = y[:, None] - predicted
    tilt = np.array(levels)
    return np.maximum(tilt * r, (tilt - 1.0) * r).mean(axis=0)
