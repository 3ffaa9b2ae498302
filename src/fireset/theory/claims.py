"""Assumptions and claims of the paper about a run, compared with measurements."""

from dataclasses import dataclass
from math import inf, isfinite, isnan
from typing import Any


@dataclass(frozen=True)
class Assumption:
    """Condition of a lemma, and whether the run meets it."""

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
    """Statement of the paper about the run: its bound and the measured value, in the iteration nearest to failing.

    ``holds`` is None if the claim does not apply or nothing was measured; ``reason`` gives the cause.
    """

    key: str
    source: str  # the lemma, claim or theorem
    text: str
    bound: float | None
    measured: float | None
    holds: bool | None
    iteration: int | None
    unmet: tuple[Assumption, ...] = ()
    reason: str = ""
    measured_iterations: tuple[int, ...] = ()  # iterations in which it was measured
    total: int = 1  # iterations, or steps, that the claim covers

    @property
    def complete(self) -> bool:
        """Whether every iteration that the claim covers was measured, not a sample of them."""
        return len(self.measured_iterations) >= self.total

    @property
    def proved(self) -> bool:
        """Whether the paper proves the claim for this run: it applies, and all assumptions are met."""
        return self.holds is not None and not self.unmet

    @property
    def verdict(self) -> str:
        if self.holds is None:
            return f"does not apply: {self.reason}"
        holds = (
            "holds"
            if self.complete
            else f"holds in {len(self.measured_iterations)} measured of {self.total} iterations"
        )
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
            "measured_iterations": list(self.measured_iterations),
            "total": self.total,
            "complete": self.complete,
            "unmet": [assumption.key for assumption in self.unmet],
            "verdict": self.verdict,
        }


class ClaimCollector:
    """Judge claims and collect them in ``claims``.

    Parameters
    ----------
    assumptions : list of Assumption
        All assumptions that claims may refer to.
    no_descent_reason, no_lambda_reason, no_movement_reason : str
        Reasons why claims about plain descent, claims that divide by λ, or claims about weights that moved do not
        apply to this run; empty if they apply.
    """

    def __init__(
        self, assumptions: list[Assumption], no_descent_reason: str, no_lambda_reason: str, no_movement_reason: str = ""
    ):
        self.assumptions = {assumption.key: assumption for assumption in assumptions}
        self.claims: list[Claim] = []
        self._no_descent_reason, self._no_lambda_reason = no_descent_reason, no_lambda_reason
        self._no_movement_reason = no_movement_reason

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
        """Judge one claim from its observations (iteration, measured, bound).

        ``assumes`` are keys of assumptions. The claim is measured ≤ bound if ``at_most``, otherwise measured ≥ bound.
        The claim keeps the observation nearest to failing, by the difference relative to the bound. ``missing`` is the
        reason if nothing was observed. The claim covers ``total`` iterations or steps; fewer observations are a
        sample.
        """
        reason = (
            (self._no_descent_reason if needs_descent else "")
            or (self._no_movement_reason if needs_movement else "")
            or (self._no_lambda_reason if needs_lambda else "")
            or ("" if observed else missing)
        )
        if reason:
            self.claims.append(Claim(key, source, text, None, None, None, None, (), reason))
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
        iterations = tuple(t for t, _, _ in observed)
        holds = excess(worst) <= slack
        self.claims.append(
            Claim(
                key, source, text, bound, measured, holds, iteration, unmet, measured_iterations=iterations, total=total
            )
        )


@dataclass(frozen=True)
class CertificateReport:
    """All claims about a run, their assumptions, and curves for figures."""

    quantities: dict[str, float]
    assumptions: list[Assumption]
    claims: list[Claim]
    curves: dict[str, list[float]]  # by iteration, or by sampled iteration
    notes: list[str]  # which values are exact or sampled, and the time it took

    def claim(self, key: str) -> Claim:
        return next(claim for claim in self.claims if claim.key == key)

    def assumption(self, key: str) -> Assumption:
        return next(assumption for assumption in self.assumptions if assumption.key == key)

    @property
    def failed(self) -> list[str]:
        """Keys of the claims that apply and do not hold."""
        return [claim.key for claim in self.claims if claim.holds is False]

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data for JSON; ∞ and NaN become None."""
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
    """Copy nested dicts and lists with None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: json_safe(part) for key, part in value.items()}
    if isinstance(value, list):
        return [json_safe(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value
