"""Results of a comparison: ``Comparison``, with one result for each engine or model."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, isfinite, log
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from fireset.commands.compare.budget import ExpectedTimes
from fireset.commands.compare.engine_contenders import Contender, EngineProblem, Kind, TimedStep
from fireset.commands.compare.model_contenders import MODELS, Fit
from fireset.engines.registry import REFERENCE

SCORES = {"classification": ("accuracy", "balanced_accuracy", "log_loss"), "regression": ("r2", "rmse")}
_ENGINE_FIELDS = (
    *("name", "kind", "compile_seconds", "preprocessing_seconds", "seconds_per_iteration", "inner_products"),
    *("active_pairs", "recall", "peak_megabytes", "final_loss", "distance_to_dense", "speed_up", "reason"),
)


@dataclass
class EngineResult:
    """Measurements of one engine; ``reason`` says why they are missing or end early."""

    name: str
    kind: Kind
    compile_seconds: float | None = None
    preprocessing_seconds: float | None = None
    seconds_per_iteration: float | None = None
    inner_products: float | None = None  # per iteration
    active_pairs: float | None = None  # per iteration
    recall: float | None = None  # mean over the iterations
    peak_megabytes: float | None = None
    final_loss: float | None = None
    distance_to_dense: float | None = None  # largest ‖W − W_dense‖ / ‖W_dense − W(0)‖
    speed_up: float | None = None  # relative to fireset's dense engine
    reason: str | None = None
    # State of the run, not part of ``to_dict``
    contender: Contender | None = field(default=None, repr=False)
    expected: ExpectedTimes | None = None
    steps: list[TimedStep] = field(default_factory=list, repr=False)
    last_loss: float | None = None  # after all steps
    finite_steps: int = 0  # steps without an error and with a finite loss

    @property
    def running(self) -> bool:
        return self.contender is not None and self.reason is None

    def losses(self) -> list[float]:
        return [step.loss for step in self.steps] + ([] if self.last_loss is None else [self.last_loss])

    def to_dict(self) -> dict[str, Any]:
        """Return the measurements for JSON, which has no infinity."""
        return {name: _finite(getattr(self, name)) for name in _ENGINE_FIELDS}


@dataclass
class ModelResult:
    """The fits of one model, one for each split; ``note`` says why there are none, or that they had fewer rows."""

    name: str
    fits: list[Fit] = field(default_factory=list)
    note: str | None = None
    stopped: bool = False  # before the first fit ended

    @property
    def label(self) -> str:
        return MODELS[self.name].label

    def mean(self, score: str) -> float | None:
        """Return the mean of a score over the splits; None if the model does not have this score."""
        found = [fit.scores[score] for fit in self.fits if score in fit.scores]
        return float(np.mean(found)) if found and len(found) == len(self.fits) else None

    def deviation(self, score: str) -> float | None:
        """Return the standard deviation of a score over the splits; None with fewer than two."""
        found = [fit.scores[score] for fit in self.fits if score in fit.scores]
        return float(np.std(found, ddof=1)) if len(found) > 1 else None

    @property
    def fit_seconds(self) -> float:
        return float(np.median([fit.fit_seconds for fit in self.fits]))

    @property
    def predict_seconds(self) -> float:
        return float(np.median([fit.predict_seconds for fit in self.fits]))

    @property
    def seconds(self) -> float:
        return self.fit_seconds + self.predict_seconds

    @property
    def main_score(self) -> float:
        """Accuracy or R², by which models are ranked."""
        return 1.0 - float(np.mean([fit.row_errors.mean() for fit in self.fits]))

    def to_dict(self, score_names: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name, "splits": len(self.fits), "note": self.note}
        found["rows"] = self.fits[0].rows if self.fits else None
        for score in score_names:
            found[score] = _finite(self.mean(score))
            found[f"{score}_deviation"] = _finite(self.deviation(score))
        found["fit_seconds"] = self.fit_seconds if self.fits else None
        found["predict_seconds"] = self.predict_seconds if self.fits else None
        return found


@dataclass
class Scaling:
    """Seconds per iteration of an engine at several widths m, and the fitted power c · m^exponent."""

    name: str
    kind: Kind
    widths: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    gaps: dict[int, str] = field(default_factory=dict)  # widths that were not measured, and why

    @property
    def exponent(self) -> float:
        return self._fit()[0]

    def fitted(self, width: float) -> float:
        """Return the fitted seconds per iteration at a width."""
        slope, intercept = self._fit()
        return exp(intercept + slope * log(width))

    def _fit(self) -> tuple[float, float]:
        slope, intercept = np.polyfit(np.log(self.widths), np.log(self.seconds), 1)
        return float(slope), float(intercept)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "widths": self.widths,
            "seconds": self.seconds,
            "exponent": self.exponent,
            "gaps": self.gaps,
        }


@dataclass(frozen=True)
class Crossover:
    """The width from which on the preprocessed engine is faster than the dense one.

    ``how`` is "always" (at every measured width), "between" (two measured widths), "beyond" (extrapolated by the fits)
    or "never". For "always" and "never" ``width`` is the smallest and the largest measured width.
    """

    how: Literal["always", "between", "beyond", "never"]
    width: float


Result = TypeVar("Result", EngineResult, ModelResult)


@dataclass
class Comparison(Generic[Result]):
    """Result of a comparison of engines or of models."""

    results: list[Result]
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    verdict: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that both kinds of comparison print as JSON; subclasses add their own."""
        return {"interrupted": self.interrupted, "notes": self.notes, "verdict": self.verdict}


@dataclass
class EngineComparison(Comparison[EngineResult]):
    """Result of a comparison of engines."""

    problem: EngineProblem = field(kw_only=True)
    iterations: int = field(kw_only=True)  # requested
    iterations_done: int = 0  # by all engines
    scaling: list[Scaling] = field(default_factory=list)
    crossover: Crossover | None = None

    def trained_weights(self) -> np.ndarray | None:
        """Return the current weights of the dense engine, or else of the first exact engine that ran."""
        for result in sorted(self.results, key=lambda result: result.name != REFERENCE):
            if result.contender is not None and result.steps and result.kind in ("dense", "preprocessed"):
                return result.contender.weights()
        return None

    def to_dict(self) -> dict[str, Any]:
        network = self.problem.network
        return {
            "samples": len(self.problem.X),
            "coordinates": network.n_features,
            "outputs": network.n_outputs,
            "width": network.width,
            "threshold": network.threshold,
            "dtype": str(network.dtype),
            "learning_rate": self.problem.learning_rate,
            "iterations": self.iterations,
            "iterations_done": self.iterations_done,
            "contenders": [result.to_dict() for result in self.results],
            "scaling": [curve.to_dict() for curve in self.scaling],
            "crossover": None if self.crossover is None else vars(self.crossover),
            **super().to_dict(),
        }


@dataclass
class ModelComparison(Comparison[ModelResult]):
    """Result of a comparison of models."""

    task: str = field(kw_only=True)
    train_rows: int = field(kw_only=True)
    test_rows: int = field(kw_only=True)

    @property
    def scores(self) -> tuple[str, ...]:
        return SCORES[self.task]

    @property
    def splits(self) -> int:
        return max((len(result.fits) for result in self.results), default=0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "rows": self.train_rows,
            "held_out_rows": self.test_rows,
            "splits": self.splits,
            "models": [result.to_dict(self.scores) for result in self.results],
            **super().to_dict(),
        }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not isfinite(value) else value
