"""Does preprocessing help? The answer in one sentence, from measurements and from nothing else."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import exp, isfinite, log
from typing import Any, Literal

import numpy as np

Kind = Literal["dense", "preprocessed", "approximate", "simulated"]


@dataclass
class Row:
    """What was measured of one contender; ``reason`` says why there is nothing, or why it ended early."""

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
    distance_to_dense: float | None = None  # largest, as a share of the way that the dense run went
    speed_up: float | None = None  # over fireset's dense engine
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which knows no infinity."""
        return {
            name: None if isinstance(value, float) and not isfinite(value) else value
            for name, value in asdict(self).items()
        }


@dataclass
class Scaling:
    """Seconds per iteration over widths, and the fit c · m^exponent."""

    name: str
    kind: Kind
    widths: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    gaps: dict[int, str] = field(default_factory=dict)  # widths at which it failed, and why

    @property
    def exponent(self) -> float:
        return self._fit()[0]

    def expected(self, width: float) -> float:
        """The fit at a width."""
        slope, intercept = self._fit()
        return exp(intercept + slope * log(width))

    def _fit(self) -> tuple[float, float]:
        slope, intercept = np.polyfit(np.log(self.widths), np.log(self.seconds), 1)
        return float(slope), float(intercept)


@dataclass(frozen=True)
class Crossover:
    """From which width on the preprocessed engine is the faster one.

    ``how``: "always" at every width measured; "between" two of them; "beyond" them, by the fits; "never" as far as the
    measurements reach. ``width`` is that width, for "always" and "never" the smallest and the largest measured.
    """

    how: Literal["always", "between", "beyond", "never"]
    width: float


def crossover(dense: Scaling, engine: Scaling) -> Crossover | None:
    """Where the two curves cross for the last time, going up in width; None without two widths that both have.

    Between two widths the curves are taken as straight in logarithms. Beyond the largest the fits are asked, no further
    than ten times: past that, an exponent of a few short runs says nothing.
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
        width = largest * (engine.expected(largest) / dense.expected(largest)) ** (1 / gain)
        if largest < width <= 10 * largest:
            return Crossover("beyond", width)
    return Crossover("never", common[-1])


def contest(rows: Sequence[Row]) -> tuple[Row, Row] | None:
    """The fastest dense contender and the fastest exact one with preprocessing; None where one is missing."""
    timed = [row for row in rows if row.seconds_per_iteration is not None]
    dense = [row for row in timed if row.kind == "dense"]
    engines = [row for row in timed if row.kind == "preprocessed"]
    if not dense or not engines:
        return None
    return min(dense, key=_seconds), min(engines, key=_seconds)


def verdict(rows: Sequence[Row], width: int, iterations: int, crossing: Crossover | None) -> str:
    """One sentence: does preprocessing help at this width, by how much, and from which width on."""
    pair = contest(rows)
    if pair is None:
        return "No answer: a dense engine or an exact engine with preprocessing was not measured, and both are needed."
    dense, engine = pair
    slow, fast = _seconds(dense), _seconds(engine)
    times = f"the engine {engine.name} takes {_time(fast)} an iteration and the fastest dense run ({dense.name}) "
    times += _time(slow)
    if fast >= slow:
        ratio = f"{_ratio(fast / slow)} times as long" if fast / slow >= 1.05 else "no less time"
        return f"No: at width {width:,} {times}, so that preprocessing takes {ratio}; {_place(crossing, False)}."
    needed = (engine.preprocessing_seconds or 0.0) / (slow - fast)
    after = max(1, int(np.ceil(needed)))
    paid = f"its preprocessing has paid for itself after {after:,} iteration{'s' if after > 1 else ''}"
    start = "Yes" if needed <= iterations else f"Not within {iterations:,} iterations"
    times += f", {_ratio(slow / fast)} times as long"
    return f"{start}: at width {width:,} {times}; {paid}, and {_place(crossing, True)}."


def _place(crossing: Crossover | None, helps: bool) -> str:
    if crossing is None:
        return "the width from which it is faster was not measured"
    width = f"{_rounded(crossing.width):,}"
    if not helps and crossing.how in ("always", "between"):  # the long run and the short ones disagree
        return f"in short runs, however, it was faster from about {width} neurons on"
    if crossing.how == "always":
        return f"it was faster at every width measured, from {width} neurons on"
    if crossing.how == "between":
        return f"it is faster from about {width} neurons on"
    if crossing.how == "beyond":
        return f"extrapolated by the fitted exponents, it would be faster from about {width} neurons on"
    if helps:  # as above
        return f"in short runs, however, it was not faster up to width {width}"
    return f"no width up to {width} was found from which on it is faster"


def _seconds(row: Row) -> float:
    assert row.seconds_per_iteration is not None
    return row.seconds_per_iteration


def _rounded(width: float) -> int:
    """Two digits: a crossover is not known better."""
    return int(float(f"{width:.2g}"))


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 1.95 else f"{ratio:.2g}" if ratio < 100 else f"{ratio:.0f}"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
