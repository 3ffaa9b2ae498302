"""Which model to use: scores, how far they can be trusted, and the advice in plain words."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite, sqrt
from typing import Any

import numpy as np

from fireset._util.wording import duration
from fireset.commands.model_contenders import MODELS, Fit

SURE = 2.0  # standard errors, above which a difference counts


@dataclass
class Scored:
    """A model and its fits, one for each split; ``note`` says why there are none, or that they had fewer rows."""

    name: str
    fits: list[Fit] = field(default_factory=list)
    note: str | None = None
    stopped: bool = False  # before it had a fit

    @property
    def label(self) -> str:
        return MODELS[self.name].label

    def mean(self, score: str) -> float | None:
        """The mean of a score over the splits; None where it has none."""
        found = [fit.scores[score] for fit in self.fits if score in fit.scores]
        return float(np.mean(found)) if found and len(found) == len(self.fits) else None

    def deviation(self, score: str) -> float | None:
        """Standard deviation of a score over the splits; None with fewer than two."""
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
    def success(self) -> float:
        """What models are ranked by: accuracy, or R²."""
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


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def standard_error(better: Scored, worse: Scored) -> float:
    """Standard error of the difference of two models' scores, on the same rows held out.

    Over k splits, s √(1/k + n_test/n_train) with s the deviation of the differences: splits share rows, and s/√k alone
    would promise too much (Nadeau and Bengio, 2003). From the rows of each split, the deviation of the differences row
    by row over √n_test. The larger of the two; with one split, the second.
    """
    pairs = list(zip(worse.fits, better.fits, strict=False))
    differences = [w.row_errors - b.row_errors for w, b in pairs]
    k, tested = len(pairs), len(differences[0])
    by_rows = float(np.mean([d.std() for d in differences])) / sqrt(tested * k)
    if k < 2:
        return by_rows
    deviation = float(np.std([d.mean() for d in differences], ddof=1))
    return max(by_rows, deviation * sqrt(1 / k + tested / max(1, pairs[0][0].rows)))


def advice(models: Sequence[Scored], task: str) -> str:
    """Which model to use, how sure that is, and where fireset stands; a tie is called one, and the fastest advised."""
    ran = sorted((model for model in models if model.fits), key=lambda model: -model.success)
    if len(ran) < 2:
        return "No answer: fewer than two models were measured; give a larger --budget."
    score = "accuracy" if task == "classification" else "R²"
    splits = len(ran[0].fits)
    tested = len(ran[0].fits[0].row_errors)
    on = f"{splits} splits of the table" if splits > 1 else f"one split of the table, {tested:,} rows held out"
    best = ran[0]
    tied = [best, *(model for model in ran[1:] if not _differs(best, model))]
    if len(tied) == 1:
        margin = best.success - ran[1].success
        error = standard_error(best, ran[1])
        text = (
            f"Use {_the(best)}: its {score} is {best.success:.3f}, ahead of {_the(ran[1])} with {ran[1].success:.3f}. "
            f"The difference is {margin:.3f}, standard error {error:.3f}, {_how_sure(margin, error)} (by {on})."
        )
        chosen = best
    else:
        chosen = _fastest(tied)
        names = _listed([_the(model) for model in tied])
        text = (
            f"A tie: {names} have {score} from {tied[-1].success:.3f} to {best.success:.3f}, which is within "
            f"chance (by {on}). Use {_the(chosen)}, among the fastest of them: it is fitted in "
            f"{duration(chosen.fit_seconds)}."
        )
    return f"{text}{_where_fireset_stands(ran, best, chosen, tied, score)}{_fewer_rows(ran)}"


def _fastest(models: Sequence[Scored]) -> Scored:
    """The first of those, in the order given, that take at most twice as long as the fastest: seconds scatter, too."""
    least = min(model.seconds for model in models)
    return next(model for model in models if model.seconds <= 2 * least)


def _differs(better: Scored, worse: Scored) -> bool:
    margin = better.success - worse.success
    return margin > SURE * standard_error(better, worse) and margin > 0


def _how_sure(margin: float, error: float) -> str:
    if error == 0:
        return "the same on all rows held out"
    times = margin / error
    return "highly significant" if times > 4 else "significant" if times > 2.5 else "barely significant"


def _where_fireset_stands(
    ran: Sequence[Scored], best: Scored, chosen: Scored, tied: Sequence[Scored], score: str
) -> str:
    ours = next((model for model in ran if model.name == "fireset"), None)
    if ours is None:
        return " fireset was not measured."
    if ours is chosen:
        return ""
    if ours in tied:
        return f" fireset is as good, and takes {_ratio(ours.seconds / chosen.seconds)} times as long."
    margin, error = best.success - ours.success, standard_error(best, ours)
    return f" fireset has {score} {ours.success:.3f}, {margin:.3f} (standard error {error:.3f}) below the best."


def _fewer_rows(ran: Sequence[Scored]) -> str:
    short = [model for model in ran if model.note]
    if not short:
        return ""
    return (
        f" {_listed([_the(model) for model in short], capital=True)} had fewer training rows, to stay within the "
        "budget; a larger --budget may change the answer."
    )


def _the(model: Scored) -> str:
    proper = {"fireset": "fireset", "boosting": "gradient boosting"}
    return proper.get(model.name, f"the {model.label}")


def _listed(names: list[str], *, capital: bool = False) -> str:
    text = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return text[0].upper() + text[1:] if capital and not text.startswith("fireset") else text


def _ratio(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:,.0f}"
