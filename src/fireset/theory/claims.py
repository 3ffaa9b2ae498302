"""What the paper asks of a run and claims about it, held against what was measured."""

from dataclasses import dataclass
from math import inf, isfinite, isnan
from typing import Any


@dataclass(frozen=True)
class Assumption:
    """Something that a lemma takes for granted."""

    key: str
    text: str  # the condition, as a formula
    needed: float
    actual: float
    met: bool
    reason: str  # in words, with the numbers, for when it is not met

    def to_dict(self) -> dict[str, Any]:
        return {
            "assumption": self.key,
            "condition": self.text,
            "needed": self.needed,
            "actual": self.actual,
            "met": self.met,
            "reason": "" if self.met else self.reason,
        }


@dataclass(frozen=True)
class Claim:
    """A statement of the paper about the run: a bound and what was measured, where the two came closest.

    ``holds`` is None where the claim does not apply or nothing was measured; ``why_not`` says why.
    """

    key: str
    source: str  # the lemma, claim or theorem
    text: str
    bound: float | None
    measured: float | None
    holds: bool | None
    at: int | None  # iteration
    unmet: tuple[Assumption, ...] = ()
    why_not: str = ""

    @property
    def proved(self) -> bool:
        """Whether the paper's statement covers this run: it applies, and all it assumes is met."""
        return self.holds is not None and not self.unmet

    @property
    def verdict(self) -> str:
        if self.holds is None:
            return f"does not apply: {self.why_not}"
        if not self.unmet:
            return "holds" if self.holds else "fails, though its assumptions are met"
        reasons = "; ".join(assumption.reason for assumption in self.unmet)
        return f"{'holds, but is not proved here' if self.holds else 'fails'}: {reasons}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "claim": self.key,
            "source": self.source,
            "statement": self.text,
            "bound": self.bound,
            "measured": self.measured,
            "iteration": self.at,
            "holds": self.holds,
            "proved": self.proved,
            "unmet": [assumption.key for assumption in self.unmet],
            "verdict": self.verdict,
        }


class Held:
    """Collects claims; knows which assumptions are met and why descent's claims may not apply."""

    def __init__(self, assumptions: list[Assumption], not_descent: str, not_separated: str):
        self.assumptions = {assumption.key: assumption for assumption in assumptions}
        self.claims: list[Claim] = []
        self._not_descent, self._not_separated = not_descent, not_separated

    def add(
        self,
        key: str,
        source: str,
        text: str,
        pairs: list[tuple[int, float, float]],
        needs: str = "",
        *,
        of_descent: bool = False,
        of_lambda: bool = False,
        below: bool = True,
        slack: float = 1e-12,
        missing: str = "nothing was measured",
    ) -> None:
        """Judge one claim from its ``pairs`` (iteration, measured, bound); ``needs`` names assumptions.

        ``below``: the claim is measured ≤ bound, otherwise ≥. The pair that is shown is the one nearest to failing, by
        difference in units of the bound.
        """
        why_not = (of_descent and self._not_descent) or (of_lambda and self._not_separated) or (not pairs and missing)
        if why_not:
            self.claims.append(Claim(key, source, text, None, None, None, None, (), str(why_not)))
            return
        sign = 1.0 if below else -1.0

        def excess(pair: tuple[int, float, float]) -> float:
            _, measured, bound = pair
            if bound == sign * inf:
                return -1.0  # a bound beyond all numbers is kept
            over = sign * (measured - bound) / max(abs(bound), 1e-300)
            return inf if isnan(over) else over  # a run that diverged to NaN breaks every bound

        at, measured, bound = max(pairs, key=excess)
        holds = excess((at, measured, bound)) <= slack
        unmet = tuple(self.assumptions[name] for name in needs.split() if not self.assumptions[name].met)
        self.claims.append(Claim(key, source, text, bound, measured, holds, at, unmet))


@dataclass(frozen=True)
class CertificateReport:
    """All claims about a run, what they assume, and the curves to draw."""

    quantities: dict[str, float]
    assumptions: list[Assumption]
    claims: list[Claim]
    curves: dict[str, list[float]]  # by iteration, or by sampled iteration
    notes: list[str]  # what is exact and what is sampled, and what it cost

    def claim(self, key: str) -> Claim:
        return next(claim for claim in self.claims if claim.key == key)

    def assumption(self, key: str) -> Assumption:
        return next(assumption for assumption in self.assumptions if assumption.key == key)

    @property
    def failed(self) -> list[str]:
        """Keys of the claims that apply and fail."""
        return [claim.key for claim in self.claims if claim.holds is False]

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON, which knows neither ∞ nor NaN: None stands for them."""
        return finite(
            {
                "quantities": self.quantities,
                "assumptions": [assumption.to_dict() for assumption in self.assumptions],
                "claims": [claim.to_dict() for claim in self.claims],
                "curves": self.curves,
                "notes": self.notes,
            }
        )


def finite(value: Any) -> Any:
    """The same with None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value
