"""A certificate, from ``CertificateReport.to_dict()``, as tables and figures."""

from math import log10, sqrt
from string import ascii_lowercase
from typing import Any

from fireset.reporting.figures import Figure, Section, Series, Table


def claims_table(certificate: dict[str, Any]) -> Table:
    """Every claim with bound, measurement and verdict; brackets refer to ``unmet_reasons``."""
    place = {a["assumption"]: k for k, a in enumerate(_unmet(certificate), 1)}
    silent = _silent(certificate)
    rows = []
    for claim in certificate["claims"]:
        bound, measured = ("" if claim[k] is None else f"{claim[k]:.4g}" for k in ("bound", "measured"))
        if claim["holds"] is False and claim["measured"] is None:
            measured = "not finite"
        marks = ", ".join(map(str, sorted(place[key] for key in claim["unmet"])))
        if claim["holds"] is None:
            verdict = f"does not apply [{silent[claim['verdict']]}]"
        elif not marks:
            verdict = "holds" if claim["holds"] else "fails, though its assumptions are met"
        else:
            verdict = f"{'holds, not proved here' if claim['holds'] else 'fails, not proved here'} [{marks}]"
        rows.append((claim["statement"], bound, measured, verdict, _looked_at(claim)))
    return Table(("claim", "bound", "measured", "verdict", "iterations"), rows)


def _looked_at(claim: dict[str, Any]) -> str:
    """How many of the iterations that a claim is about were measured."""
    if claim["holds"] is None:
        return ""
    if claim["total"] == 1:
        return "the first"
    return "all" if claim["complete"] else f"{len(claim['looked_at'])} of {claim['total']}"


def unmet_reasons(certificate: dict[str, Any]) -> list[str]:
    """The assumptions that the run does not meet, numbered, and why claims do not apply, lettered."""
    return [
        *(f"[{k}] {assumption['reason']}" for k, assumption in enumerate(_unmet(certificate), 1)),
        *(f"[{letter}] {verdict.removeprefix('does not apply: ')}" for verdict, letter in _silent(certificate).items()),
    ]


def _silent(certificate: dict[str, Any]) -> dict[str, str]:
    """The verdicts of claims that do not apply, with a letter each."""
    verdicts = dict.fromkeys(claim["verdict"] for claim in certificate["claims"] if claim["holds"] is None)
    return dict(zip(verdicts, ascii_lowercase, strict=False))


def _unmet(certificate: dict[str, Any]) -> list[dict[str, Any]]:
    return [assumption for assumption in certificate["assumptions"] if not assumption["met"]]


def certificate_sections(certificate: dict[str, Any]) -> list[Section]:
    """The claims, and three figures: error against the proved rate, fired neurons and movement against their bounds."""
    curves, quantities = certificate["curves"], certificate["quantities"]
    error = Figure(
        "Squared error and the proved rate",
        "iteration",
        "‖err(t)‖²",
        [
            Series("measured", curves["iteration"], curves["squared_error"], "line"),
            Series("(1 − ηλ/2)^t ‖err(0)‖²", curves["iteration"], curves["proved_squared_error"], "dashed"),
        ],
        "The squared error over the iterations, and the rate that the convergence lemma proves as a dashed line.",
        log_y=True,
    )
    active = Figure(
        "Neurons that fire for a sample",
        "iteration",
        "neurons",
        [
            Series("most, of all samples", curves["sampled_iteration"], curves["max_active"], "line"),
            Series("mean over the samples", curves["sampled_iteration"], curves["mean_active"], "line"),
            Series("bound 2m e^(−b²/2)", curves["sampled_iteration"], curves["active_bound"], "dashed"),
        ],
        "The largest and the mean number of neurons that fire for a sample, below the sparsity lemma's bound.",
        log_y=True,
    )
    most = max(curves["movement_count"], default=1.0)
    marks = [("R = λ/(12n)", quantities["radius"]), ("D = 4√n ‖err(0)‖/(√m λ)", quantities["movement_bound"])]
    moved = [log10(far) if far > 0 else 0.0 for far in curves["movement_bar"]]
    movement = Figure(
        "How far neurons have moved",
        "log₁₀ ‖w_r(t) − w_r(0)‖",  # bars of equal width; on a logarithmic axis they would be slivers
        "neurons",
        [
            Series("neurons that moved", moved, curves["movement_count"], "bars"),
            *(Series(name, [log10(at)] * 2, [0.0, most], "dashed") for name, at in marks if at),
        ],
        "Histogram of the distance of each neuron from its initial weights; dashed lines mark the proof's radius R and "
        "the bound D.",
    )
    holding = sum(claim["holds"] is True for claim in certificate["claims"])
    applying = sum(claim["holds"] is not None for claim in certificate["claims"])
    proved = sum(claim["proved"] for claim in certificate["claims"])
    summary = (
        f"{holding} of the {applying} claims that apply hold, and {proved} of them are proved for this run: all that "
        f"they assume is met. ‖err(0)‖ was {sqrt(curves['squared_error'][0]):.4g}."
    )
    return [
        Section(
            "The run against the paper",
            [summary, *unmet_reasons(certificate), *certificate["notes"]],
            [claims_table(certificate)],
            [error, active, movement],
        )
    ]
