"""The verdict of a comparison in a few sentences: does preprocessing help, and which model to use."""

from collections.abc import Sequence
from math import ceil, exp, log, sqrt

import numpy as np

from fireset._util.text import duration
from fireset.commands.compare.model_contenders import MODELS
from fireset.commands.compare.result import Crossover, EngineResult, ModelResult, Scaling

_MIN_STANDARD_ERRORS = 2.0  # a larger difference between models counts
_MAX_EXTRAPOLATION = 10  # times the largest width: a power fitted to a few short runs says nothing beyond


def crossover(dense: Scaling, engine: Scaling) -> Crossover | None:
    """Return the largest width at which the curves cross; None if they have fewer than two widths in common.

    Between two widths the curves are interpolated linearly in logarithms. Beyond the largest width the fitted powers
    are used, up to ten times that width.
    """
    common = sorted(set(dense.widths) & set(engine.widths))
    if len(common) < 2:
        return None
    lead = [
        log(dense.seconds[dense.widths.index(m)]) - log(engine.seconds[engine.widths.index(m)]) for m in common
    ]  # above 0 where the engine is faster
    if lead[-1] > 0:
        for k in range(len(common) - 2, -1, -1):
            if lead[k] <= 0:
                share = -lead[k] / (lead[k + 1] - lead[k])
                return Crossover("between", exp(log(common[k]) + share * log(common[k + 1] / common[k])))
        return Crossover("always", common[0])
    gain = dense.exponent - engine.exponent
    if gain > 0:
        largest = common[-1]
        width = largest * (engine.fitted(largest) / dense.fitted(largest)) ** (1 / gain)
        if largest < width <= _MAX_EXTRAPOLATION * largest:
            return Crossover("beyond", width)
    return Crossover("never", common[-1])


def fastest_pair(results: Sequence[EngineResult]) -> tuple[EngineResult, EngineResult] | None:
    """Return the fastest dense engine and the fastest exact engine with preprocessing; None if one is missing."""
    timed = [result for result in results if result.seconds_per_iteration is not None]
    dense = [result for result in timed if result.kind == "dense"]
    preprocessed = [result for result in timed if result.kind == "preprocessed"]
    if not dense or not preprocessed:
        return None
    return min(dense, key=_step_seconds), min(preprocessed, key=_step_seconds)


def engine_verdict(results: Sequence[EngineResult], width: int, iterations: int, crossing: Crossover | None) -> str:
    """Say whether preprocessing helps at this width, by how much, and from which width on."""
    pair = fastest_pair(results)
    if pair is None:
        return "No answer: a dense engine or an exact engine with preprocessing was not measured, and both are needed."
    dense, engine = pair
    slow, fast = _step_seconds(dense), _step_seconds(engine)
    times = f"the engine {engine.name} takes {_step_time(fast)} an iteration and the fastest dense run ({dense.name}) "
    times += _step_time(slow)
    if fast >= slow:
        ratio = f"{_engine_ratio(fast / slow)} times as long" if fast / slow >= 1.05 else "no less time"
        where = _crossover_text(crossing, helps=False)
        return f"No: at width {width:,} {times}, so that preprocessing takes {ratio}; {where}."
    needed = (engine.preprocessing_seconds or 0.0) / (slow - fast)
    after = max(1, ceil(needed))
    paid = f"its preprocessing has paid for itself after {after:,} iteration{'s' if after > 1 else ''}"
    start = "Yes" if needed <= iterations else f"Not within {iterations:,} iterations"
    times += f", {_engine_ratio(slow / fast)} times as long"
    return f"{start}: at width {width:,} {times}; {paid}, and {_crossover_text(crossing, helps=True)}."


def _crossover_text(crossing: Crossover | None, *, helps: bool) -> str:
    """Return a clause on the width from which on the engine is faster.

    ``helps`` is the result of the long run at the requested width.
    """
    if crossing is None:
        return "the width from which it is faster was not measured"
    width = f"{int(float(f'{crossing.width:.2g}')):,}"  # two digits: it is not known more precisely
    if not helps and crossing.how in ("always", "between"):  # the short runs contradict the long one
        return f"in short runs, however, it was faster from about {width} neurons on"
    if crossing.how == "always":
        return f"it was faster at every width measured, from {width} neurons on"
    if crossing.how == "between":
        return f"it is faster from about {width} neurons on"
    if crossing.how == "beyond":
        return f"extrapolated by the fitted exponents, it would be faster from about {width} neurons on"
    if helps:  # the short runs contradict the long one
        return f"in short runs, however, it was not faster up to width {width}"
    return f"no width up to {width} was found from which on it is faster"


def _step_seconds(result: EngineResult) -> float:
    assert result.seconds_per_iteration is not None
    return result.seconds_per_iteration


def _engine_ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 1.95 else f"{ratio:.2g}" if ratio < 100 else f"{ratio:.0f}"


def _step_time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def standard_error(better: ModelResult, worse: ModelResult) -> float:
    """Return the standard error of the difference of two models' scores on the same test rows.

    The larger of two estimates. Over k splits: s √(1/k + n_test/n_train) with s the standard deviation of the
    differences; s/√k would be too small, because the splits share rows (Nadeau and Bengio, 2003). Over rows: the
    standard deviation of the differences of the row errors, divided by √(k n_test). With one split only the second.
    """
    pairs = list(zip(worse.fits, better.fits, strict=False))
    differences = [w.row_errors - b.row_errors for w, b in pairs]
    k, tested = len(pairs), len(differences[0])
    over_rows = float(np.mean([d.std() for d in differences])) / sqrt(tested * k)
    if k < 2:
        return over_rows
    deviation = float(np.std([d.mean() for d in differences], ddof=1))
    return max(over_rows, deviation * sqrt(1 / k + tested / max(1, pairs[0][0].rows)))


def model_verdict(models: Sequence[ModelResult], task: str) -> str:
    """Say which model to use, how significant its lead is, and how fireset compares. Of a tie, advise the fastest."""
    ran = sorted((model for model in models if model.fits), key=lambda model: -model.main_score)
    if len(ran) < 2:
        return "No answer: fewer than two models were measured; give a larger --budget."
    score = "accuracy" if task == "classification" else "R²"
    splits = len(ran[0].fits)
    tested = len(ran[0].fits[0].row_errors)
    on = f"{splits} splits of the table" if splits > 1 else f"one split of the table, {tested:,} rows held out"
    best = ran[0]
    tied = [best, *(model for model in ran[1:] if not _differs(best, model))]
    if len(tied) == 1:
        margin = best.main_score - ran[1].main_score
        error = standard_error(best, ran[1])
        text = (
            f"Use {_with_article(best)}: its {score} is {best.main_score:.3f}, ahead of {_with_article(ran[1])} with "
            f"{ran[1].main_score:.3f}. The difference is {margin:.3f}, standard error {error:.3f}, "
            f"{_significance(margin, error)} (by {on})."
        )
        chosen = best
    else:
        chosen = _fastest(tied)
        names = _listed([_with_article(model) for model in tied])
        text = (
            f"A tie: {names} have {score} from {tied[-1].main_score:.3f} to {best.main_score:.3f}, which is within "
            f"chance (by {on}). Use {_with_article(chosen)}, among the fastest of them: it is fitted in "
            f"{duration(chosen.fit_seconds)}."
        )
    return f"{text}{_rank_of_fireset(ran, best, chosen, tied, score)}{_fewer_rows(ran)}"


def _fastest(models: Sequence[ModelResult]) -> ModelResult:
    """Return the first model that takes at most twice as long as the fastest: smaller differences are noise."""
    least = min(model.seconds for model in models)
    return next(model for model in models if model.seconds <= 2 * least)


def _differs(better: ModelResult, worse: ModelResult) -> bool:
    margin = better.main_score - worse.main_score
    return margin > _MIN_STANDARD_ERRORS * standard_error(better, worse) and margin > 0


def _significance(margin: float, error: float) -> str:
    if error == 0:
        return "the same on all rows held out"
    times = margin / error
    return "highly significant" if times > 4 else "significant" if times > 2.5 else "barely significant"


def _rank_of_fireset(
    ran: Sequence[ModelResult], best: ModelResult, chosen: ModelResult, tied: Sequence[ModelResult], score: str
) -> str:
    fireset = next((model for model in ran if model.name == "fireset"), None)
    if fireset is None:
        return " fireset was not measured."
    if fireset is chosen:
        return ""
    if fireset in tied:
        ratio = fireset.seconds / chosen.seconds
        return f" fireset is as good, and takes {f'{ratio:.1f}' if ratio < 9.95 else f'{ratio:,.0f}'} times as long."
    margin, error = best.main_score - fireset.main_score, standard_error(best, fireset)
    return f" fireset has {score} {fireset.main_score:.3f}, {margin:.3f} (standard error {error:.3f}) below the best."


def _fewer_rows(ran: Sequence[ModelResult]) -> str:
    short = [model for model in ran if model.note]
    if not short:
        return ""
    names = _listed([_with_article(model) for model in short])
    names = names if names.startswith("fireset") else names[0].upper() + names[1:]
    return f" {names} had fewer training rows, to stay within the budget; a larger --budget may change the answer."


def _with_article(model: ModelResult) -> str:
    return f"{MODELS[model.name].article}{model.label}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
