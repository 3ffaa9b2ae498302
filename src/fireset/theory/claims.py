"""What the paper assumes and claims about a run, compared with what was measured."""

from dataclasses import dataclass
from math import inf, isfinite, isnan
from typing import Any


@dataclass(frozen=True)
class Assumption:
    """A condition of a lemma, and whether the run meets it."""

    key: str
    text: str  # the condition, as a formula
    needed: float
    actual: float
    met: bool
    reason: str  # why it is not met, in words, with the numbers

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
    iteration: int | None
    unmet: tuple[Assumption, ...] = ()
    why_not: str = ""
    looked_at: tuple[int, ...] = ()  # iterations in which it was measured
    total: int = 1  # iterations, or steps, of the run that the claim is about

    @property
    def complete(self) -> bool:
        """Whether every iteration that the claim is about was measured, not a sample of them."""
        return len(self.looked_at) >= self.total

    @property
    def proved(self) -> bool:
        """Whether the paper's statement covers this run: it applies, and all it assumes is met."""
        return self.holds is not None and not self.unmet

    @property
    def verdict(self) -> str:
        if self.holds is None:
            return f"does not apply: {self.why_not}"
        holds = "holds" if self.complete else f"holds in the {len(self.looked_at)} of {self.total} iterations looked at"
        if not self.unmet:
            return holds if self.holds else "fails, though its assumptions are met"
        reasons = "; ".join(assumption.reason for assumption in self.unmet)
        return f"{f'{holds}, but is not proved here' if self.holds else 'fails'}: {reasons}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "claim": self.key,
            "source": self.source,
            "statement": self.text,
            "bound": self.bound,
            "measured": self.measured,
            "iteration": self.iteration,
            "holds": self.holds,
            "proved": self.proved,
            "looked_at": list(self.looked_at),
            "total": self.total,
            "complete": self.complete,
            "unmet": [assumption.key for assumption in self.unmet],
            "verdict": self.verdict,
        }


class ClaimCollector:
    """Judges claims one after the other and keeps them in ``claims``.

    Parameters
    ----------
    assumptions : list of Assumption
        All that claims may refer to.
    why_not_descent, why_no_lambda, no_movement_reason : str
        Why claims about plain descent, claims that divide by λ, or claims about weights that have moved do not apply
        to this run; empty if they do.
    """

    def __init__(
        self, assumptions: list[Assumption], why_not_descent: str, why_no_lambda: str, no_movement_reason: str = ""
    ):
        self.assumptions = {assumption.key: assumption for assumption in assumptions}
        self.claims: list[Claim] = []
        self._descent_mismatch, self._why_no_lambda = why_not_descent, why_no_lambda
        self._why_no_movement = no_movement_reason

    def add(
        self,
        key: str,
        source: str,
        text: str,
        observed: list[tuple[int, float, float]],
        assumes: tuple[str, ...] = (),
        *,
        needs_descent: bool = False,
        needs_lambda: bool = False,
        needs_movement: bool = False,
        at_most: bool = True,
        slack: float = 1e-12,
        missing: str = "nothing was measured",
        total: int = 1,
    ) -> None:
        """Judge one claim from what was ``observed``: (iteration, measured, bound).

        ``assumes`` are keys of assumptions. ``at_most``: the claim is measured ≤ bound, otherwise measured ≥ bound.
        Shown is the observation nearest to failing, by difference in units of the bound. ``missing`` is the reason
        given if nothing was observed. ``total`` iterations or steps are what the claim is about; fewer observations are
        a sample.
        """
        why_not = (
            (self._descent_mismatch if needs_descent else "")
            or (self._why_no_movement if needs_movement else "")
            or (self._why_no_lambda if needs_lambda else "")
            or ("" if observed else missing)
        )
        if why_not:
            self.claims.append(Claim(key, source, text, None, None, None, None, (), why_not))
            return
        sign = 1.0 if at_most else -1.0

        def excess(observation: tuple[int, float, float]) -> float:
            _, measured, bound = observation
            if bound == sign * inf:
                return -1.0  # an infinite bound holds for any number
            over = sign * (measured - bound) / max(abs(bound), 1e-300)
            return inf if isnan(over) else over  # a run that diverged to NaN breaks every bound

        worst = max(observed, key=excess)
        iteration, measured, bound = worst
        unmet = tuple(self.assumptions[name] for name in assumes if not self.assumptions[name].met)
        looked_at = tuple(t for t, _, _ in observed)
        holds = excess(worst) <= slack
        self.claims.append(
            Claim(key, source, text, bound, measured, holds, iteration, unmet, looked_at=looked_at, total=total)
        )


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
        """As plain data for JSON, which has neither ∞ nor NaN: None stands for them."""
        return json_safe(
            {
                "quantities": self.quantities,
                "assumptions": [assumption.to_dict() for assumption in self.assumptions],
                "claims": [claim.to_dict() for claim in self.claims],
                "curves": self.curves,
                "notes": self.notes,
            }
        )


def json_safe(value: Any) -> Any:
    """The same nested dicts and lists with None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: json_safe(part) for key, part in value.items()}
    if isinstance(value, list):
        return [json_safe(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value
