"""The certificate of a run as tables and figures, and the merge of equal rows that it needs.

``certificate`` is the result of ``CertificateReport.to_dict``.
"""

from math import log10, sqrt
from string import ascii_lowercase
from typing import Any, NamedTuple

import numpy as np

from fireset.reporting.figures import Figure, Section, Series, Table


class DistinctRows(NamedTuple):
    """The first row of each group of equal rows, with a target for the group."""

    rows: np.ndarray  # positions, ascending
    y: np.ndarray  # mean of the targets, or the most frequent class
    merged: int  # number of rows dropped


def merge_equal_rows(X: np.ndarray, y: np.ndarray, *, classes: bool, dtype: str) -> DistinctRows:
    """Merge rows of X (n, p) that are equal in precision ``dtype``: with equal rows λ_min(H^cts) is 0.

    Of equally frequent classes the lowest code is used.
    """
    _, first, group = np.unique(X.astype(dtype), axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    if len(first) == len(X):
        return DistinctRows(np.arange(len(X)), y, 0)
    order = np.argsort(first)
    if classes:
        votes = np.zeros((len(first), int(y.max()) + 1), np.int64)
        np.add.at(votes, (group, y), 1)
        merged = votes.argmax(axis=1).astype(y.dtype)
    else:
        merged = np.bincount(group, y) / np.bincount(group)
    return DistinctRows(first[order], merged[order], len(X) - len(first))


def merged_rows_text(merged: int, *, classes: bool) -> str:
    """Return a sentence about rows that were merged."""
    target = "the most frequent class" if classes else "the mean target"
    count = "1 row equals" if merged == 1 else f"{merged:,} rows equal"
    return f"{count} an earlier row; equal rows were merged, with {target}, since λ is 0 with two equal rows."


def claims_table(certificate: dict[str, Any]) -> Table:
    """Return every claim with bound, measurement and verdict; brackets refer to ``unmet_reasons``."""
    number = {a["assumption"]: k for k, a in enumerate(_unmet(certificate), 1)}
    letters = _inapplicable(certificate)
    rows = []
    for claim in certificate["claims"]:
        bound, measured = ("" if claim[k] is None else f"{claim[k]:.4g}" for k in ("bound", "measured"))
        if claim["holds"] is False and claim["measured"] is None:
            measured = "not finite"
        marks = ", ".join(map(str, sorted(number[key] for key in claim["unmet"])))
        if claim["holds"] is None:
            verdict = f"does not apply [{letters[claim['verdict']]}]"
        elif not marks:
            verdict = "holds" if claim["holds"] else "fails, though its assumptions are met"
        else:
            verdict = f"{'holds, not proved here' if claim['holds'] else 'fails, not proved here'} [{marks}]"
        rows.append((claim["statement"], bound, measured, verdict, _coverage(claim)))
    return Table(("claim", "bound", "measured", "verdict", "iterations"), rows)


def _coverage(claim: dict[str, Any]) -> str:
    """Return how many of the iterations that a claim is about were measured."""
    if claim["holds"] is None:
        return ""
    if claim["total"] == 1:
        return "the first"
    return "all" if claim["complete"] else f"{len(claim['measured_iterations'])} of {claim['total']}"


def unmet_reasons(certificate: dict[str, Any]) -> list[str]:
    """Return numbered reasons why assumptions are not met, and lettered reasons why claims do not apply."""
    return [
        *(f"[{k}] {assumption['reason']}" for k, assumption in enumerate(_unmet(certificate), 1)),
        *(
            f"[{letter}] {verdict.removeprefix('does not apply: ')}"
            for verdict, letter in _inapplicable(certificate).items()
        ),
    ]


def _inapplicable(certificate: dict[str, Any]) -> dict[str, str]:
    """Return a letter for each verdict of claims that do not apply."""
    verdicts = dict.fromkeys(claim["verdict"] for claim in certificate["claims"] if claim["holds"] is None)
    return dict(zip(verdicts, ascii_lowercase, strict=False))


def _unmet(certificate: dict[str, Any]) -> list[dict[str, Any]]:
    return [assumption for assumption in certificate["assumptions"] if not assumption["met"]]


def certificate_sections(certificate: dict[str, Any]) -> list[Section]:
    """Return the claims with figures of the error, the active neurons and the movement, against their bounds."""
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
        "Active neurons of a row",
        "iteration",
        "neurons",
        [
            Series("most, of all rows", curves["sampled_iteration"], curves["max_active"], "line"),
            Series("mean over the rows", curves["sampled_iteration"], curves["mean_active"], "line"),
            Series("bound 2m e^(−b²/2)", curves["sampled_iteration"], curves["active_bound"], "dashed"),
        ],
        "The largest and the mean number of active neurons of a row, and the sparsity lemma's bound.",
        log_y=True,
    )
    most = max(curves["movement_count"], default=1.0)
    marks = [("R = λ/(12n)", quantities["radius"]), ("D = 4√n ‖err(0)‖/(√m λ)", quantities["movement_bound"])]
    moved = [log10(far) if far > 0 else 0.0 for far in curves["movement_bar"]]
    movement = Figure(
        "How far neurons have moved",
        "log₁₀ ‖w_r(t) − w_r(0)‖",  # a logarithmic axis would make the bars unequal
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
