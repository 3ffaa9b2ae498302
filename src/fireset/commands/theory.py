"""``fireset theory``: the requirements of the convergence theorem on a table, and what practice needs."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.gaussian import upper_tail
from fireset._util.text import percent
from fireset.commands.certificate import merge_equal_rows, merged_rows_text
from fireset.commands.scores import scores
from fireset.estimators import PAPER, ShiftedReLUClassifier, estimator_for
from fireset.reporting import check_report, write_page
from fireset.reporting.figures import Figure, Section, Series, Table
from fireset.tables.problem import TableProblem
from fireset.theory import KernelRegression, bounds, least_width, measure_separation, shifted_ntk
from fireset.theory.claims import json_safe
from fireset.theory.separation import Separation
from fireset.theory.spectrum import ShiftedCholesky, Spectrum, check_memory, extreme_eigenvalues

FAILURE_PROBABILITY = 0.01  # ρ
ACCURACY = 0.01  # ε in T; in practice, the share of ‖err(0)‖ that remains
ALPHA = 0.2  # of the corollary; b = √(0.4 ln m)
_MAX_ROWS_LEAST_WIDTH = 400  # for more rows its eigenvalue problems would take minutes
_MAX_ROWS_ALL_EIGENVALUES = 1500  # for more rows only the extreme eigenvalues are computed


@dataclass(frozen=True)
class Theory:
    """The computed quantities by name, and all eigenvalues of H^cts (none for many rows)."""

    summary: dict[str, Any]
    eigenvalues: list[float]


def theory_table(
    file: Path,
    target: str,
    *,
    holdout: float,
    settings: dict[str, Any],
    report: Path | None,
    progress: Callable[[str], None] | None,
    **reading: Any,
) -> Theory:
    """Compute δ, λ, the constants of the theorem and the score of kernel regression on the rows that ``train`` uses.

    ``settings`` go to the estimator, ``reading`` to ``TableProblem.read``. Takes n³/3 operations and 8 n² bytes for n
    rows. For many rows ``progress`` is called with the name of each stage.
    """
    if report is not None:
        check_report(report)
    if not 0 <= holdout < 1:
        raise InputError(f"holdout must be at least 0 and below 1, got {holdout}")
    problem = TableProblem.read(file, target, **reading)
    estimator = estimator_for(problem.task, **{**PAPER, **settings})
    train_rows, test_rows = problem.hold_out(holdout, settings["random_state"])
    by_class = problem.classes is not None
    distinct = merge_equal_rows(problem.X[train_rows], problem.y[train_rows], classes=by_class, dtype=estimator.dtype)
    train_rows = train_rows[distinct.rows]
    check_memory(len(train_rows))
    prepared = estimator.prepare(problem.X[train_rows], distinct.y)
    rows, targets, network = prepared.rows, prepared.targets, estimator.network_
    n, b = len(rows), network.threshold

    def stage(name: str) -> None:
        if progress is not None and n > _MAX_ROWS_ALL_EIGENVALUES:
            progress(name)

    stage(f"separation of {n:,} rows")
    separation = measure_separation(rows).with_row_numbers(train_rows + 1)  # from 1, as in messages about tables
    stage(f"the kernel, {8e-9 * n * n:.1f} GB")
    kernel = shifted_ntk(rows, b)
    stage("its eigenvalues")
    eigenvalues, factor, spectrum = _decompose(kernel)
    if spectrum.largest <= 0:
        raise InputError(
            f"threshold {b:g} is so high that no neuron is ever active: H^cts is 0; give a lower --threshold"
        )
    initial_error = float(np.linalg.norm(targets - network.predict(rows)))
    summary: dict[str, Any] = {"task": problem.task, "merged_rows": distinct.merged}
    summary |= _data_summary(rows, network, separation, spectrum, initial_error)
    summary |= _theorem_summary(n, b, separation, spectrum, initial_error)
    summary |= _least_widths(rows, targets, spectrum, settings["threshold"], initial_error)
    summary |= _practice_summary(rows, network, spectrum, initial_error)
    summary |= _forecast(problem, train_rows, settings["random_state"])
    if n <= _MAX_ROWS_ALL_EIGENVALUES:
        with_bias = shifted_ntk(rows, b, trained_bias=True)
        summary["lambda_trained_bias"] = _lambda_or_zero(extreme_eigenvalues(with_bias))
    if len(test_rows):
        stage("kernel regression")
        outputs = KernelRegression(b).fit(rows, targets, factor=factor).predict(estimator.sphere_(problem.X[test_rows]))
        summary["held_out_rows"] = len(test_rows)
        found = scores(problem.task, problem.y[test_rows], _predictions(estimator, outputs))
        summary |= {f"kernel_regression_{name}": value for name, value in found.items()}
    return Theory(json_safe(summary), eigenvalues)


def _forecast(problem: TableProblem, rows: np.ndarray, seed: int) -> dict[str, Any]:
    """Return the score that cross-fitting of the infinitely wide network forecasts for the defaults of ``train``."""
    estimator = estimator_for(problem.task, width=2, random_state=seed)  # the forecast does not depend on the network
    estimator.prepare(problem.X[rows], problem.y[rows])
    forecast = estimator.settings_.forecast
    score = "accuracy" if problem.task == "classification" else "r2"
    return {} if forecast is None else {f"forecast_{score}": forecast, "forecast_rows": estimator.settings_.rows}


def _data_summary(
    rows: np.ndarray, network, separation: Separation, spectrum: Spectrum, initial_error: float
) -> dict[str, Any]:
    """Return the size of the data, their separation and the eigenvalues of their kernel."""
    n, b = len(rows), network.threshold
    low, high = bounds.eigenvalue_bounds(n, b, separation.distance)
    return {
        "rows": n,
        "coordinates": rows.shape[1],
        "outputs": network.n_outputs,
        "width": network.width,
        "threshold": b,
        "separation": separation.distance,
        "closest_rows": None if separation.pair is None else list(separation.pair),
        "closest_rows_are_opposite": separation.opposite,
        "lambda": _lambda_or_zero(spectrum),
        "lambda_rounding": spectrum.rounding,
        "lambda_is_zero": spectrum.singular,
        "lambda_lower_bound": low,
        "lambda_hermite_bound": bounds.hermite_bound(n, b, separation.distance),
        "lambda_upper_bound": high,
        "lambda_max": spectrum.largest,
        "initial_error": initial_error,
    }


def _theorem_summary(
    n: int, b: float, separation: Separation, spectrum: Spectrum, initial_error: float
) -> dict[str, float]:
    """Return the requirements of the convergence theorem."""
    smallest = _lambda_or_zero(spectrum)
    rate = bounds.learning_rate(n, smallest)
    return {
        "theorem_learning_rate": rate,
        "theorem_sparse_learning_rate": bounds.sparse_learning_rate(n, smallest, 2.0 * bounds.tail_bound(b)),
        "theorem_radius": bounds.paper_radius(n, smallest),
        "theorem_safe_radius": bounds.safe_radius(n, smallest),
        "theorem_iterations": bounds.iterations(n, smallest, ACCURACY),
        "theorem_iterations_at_rate": bounds.iterations_at_rate(rate, smallest, ACCURACY**2),
        "theorem_width": bounds.width_for_movement(n, smallest, initial_error),
        "theorem_kernel_width": bounds.discrete_width(n, smallest, FAILURE_PROBABILITY),
        "lemma_width": bounds.width_lemma(n, smallest, b, FAILURE_PROBABILITY),
        "corollary_width": bounds.width_corollary(n, separation.distance, FAILURE_PROBABILITY, ALPHA),
        "sufficient_width": bounds.sufficient_width(n, smallest, b, initial_error, FAILURE_PROBABILITY),
    }


def _least_widths(
    rows: np.ndarray, targets: np.ndarray, spectrum: Spectrum, threshold: float | str, initial_error: float
) -> dict[str, float]:
    """Return the least sufficient widths at the paper's threshold and at 0; {} for other settings or many rows."""
    if threshold != "paper" or spectrum.singular or targets.shape[1] != 1 or len(rows) > _MAX_ROWS_LEAST_WIDTH:
        return {}
    settings = {"least_width": {"alpha": ALPHA}, "least_width_at_zero": {"threshold": 0.0}}
    return {
        name: least_width(rows, targets, failure=FAILURE_PROBABILITY, error=initial_error, **options).width
        for name, options in settings.items()
    }


def _practice_summary(rows: np.ndarray, network, spectrum: Spectrum, initial_error: float) -> dict[str, Any]:
    """Return the bounds for this network, and what practice needs."""
    n, m, b, smallest = len(rows), network.width, network.threshold, _lambda_or_zero(spectrum)
    rate = 1.0 / spectrum.largest
    return {
        "movement_bound": bounds.movement_bound(n, m, smallest, initial_error),
        "sufficient_error": bounds.sufficient_error(n, m, smallest),
        "active_fraction": upper_tail(b),
        "active_bound_fraction": min(1.0, 2.0 * bounds.tail_bound(b)),
        "sparsity_failure": bounds.sparsity_failure(n, m, b),
        "practical_learning_rate": rate,
        "practical_iterations": log(1.0 / ACCURACY) / (rate * smallest) if smallest > 0 else inf,
        "operations": bounds.iteration_costs(n, m, rows.shape[1], b),
    }


def _lambda_or_zero(spectrum: Spectrum) -> float:
    """Return λ, or 0 if it cannot be distinguished from 0 by rounding."""
    return 0.0 if spectrum.singular else spectrum.smallest


def _decompose(kernel: np.ndarray) -> tuple[list[float], ShiftedCholesky, Spectrum]:
    """Return all eigenvalues if there are few rows, a Cholesky factor, and λ_min and λ_max. Overwrites the kernel."""
    n = len(kernel)
    if n > _MAX_ROWS_ALL_EIGENVALUES:
        factor = ShiftedCholesky(kernel, overwrite=True)
        return [], factor, factor.spectrum()
    values = np.linalg.eigvalsh(kernel)
    eps = float(np.finfo(np.float64).eps)
    spectrum = Spectrum(float(values[0]), float(values[-1]), n * eps * float(values[-1]))
    return values[::-1].tolist(), ShiftedCholesky(kernel, overwrite=True), spectrum


def _predictions(estimator, outputs: np.ndarray) -> np.ndarray:
    """Convert network outputs (n, c) to the predictions of the estimator."""
    if not isinstance(estimator, ShiftedReLUClassifier):
        return (outputs * estimator.target_scale_ + estimator.target_mean_)[:, 0]
    return outputs.argmax(axis=1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).astype(int)


def theory_tables(found: Theory) -> list[tuple[str, Table]]:
    """Return the results as headings and tables."""
    s = found.summary
    columns = ("quantity", "value", "meaning")
    pair = s["closest_rows"]
    side = "opposite" if s["closest_rows_are_opposite"] else "the same"
    if pair is None:
        nearest = "one row: no pair"
    elif s["separation"] == 0:
        nearest = f"rows {pair[0]} and {pair[1]} are {side}: λ = 0, and the theorem says nothing"
    else:
        nearest = f"between row {pair[0]} and {'minus ' if s['closest_rows_are_opposite'] else ''}row {pair[1]}"
    merged = (
        f": {merged_rows_text(s['merged_rows'], classes=s['task'] == 'classification')}" if s["merged_rows"] else ""
    )
    data = [
        ("n", f"{s['rows']:,}", f"rows to train on{merged}"),
        ("d", f"{s['coordinates']:,}", "coordinates of a row, the constant one included"),
        ("δ", _number(s["separation"]), f"separation, {nearest}"),
        ("λ", "0" if s["lambda_is_zero"] else _number(s["lambda"]), "smallest eigenvalue of H^cts"),
        ("", _number(s["lambda_lower_bound"]), "the theorem's lower bound, e^(−b²/2) δ/(100 n²)"),
        (
            "",
            _number(s["lambda_hermite_bound"]),
            "a sharper lower bound, from the Hermite series; 0 where it gives none",
        ),
        ("", _number(s["lambda_upper_bound"]), "the theorem's upper bound, e^(−b²/2)"),
        ("λ_max", _number(s["lambda_max"]), "largest eigenvalue"),
    ]
    if "lambda_trained_bias" in s:
        data.append(("", _number(s["lambda_trained_bias"]), "λ if thresholds were trained, too"))
    required = [
        ("η", _number(s["theorem_learning_rate"]), "learning rate, λ/(4n²)"),
        (
            "",
            _number(s["theorem_sparse_learning_rate"]),
            "larger, since few neurons are active: λ/(16 p² n²), p their share",
        ),
        ("R", _number(s["theorem_radius"]), "radius within which neurons must stay, λ/(12n)"),
        ("", _number(s["theorem_safe_radius"]), "the smaller one that the last step of the proof needs, λ/(16n)"),
        ("T", _number(s["theorem_iterations"]), f"iterations, λ⁻² n² ln(n/ε), ε = {ACCURACY:g}"),
        (
            "",
            _number(s["theorem_iterations_at_rate"]),
            f"as the proof has it, until (1 − ηλ/2)^t = ε², ε = {ACCURACY:g}",
        ),
        ("m", _number(s["theorem_width"]), "neurons, so that D < R: 2304 λ⁻⁴ n³ ‖err(0)‖²"),
        ("", _number(s["sufficient_width"]), "for every assumption of the convergence lemma, at this threshold"),
        *(
            [
                ("", _number(s["least_width"]), "for every assumption, with b = √(0.4 ln m) of that width"),
                ("", _number(s["least_width_at_zero"]), "for every assumption, with threshold 0 (α = 1)"),
            ]
            if "least_width" in s
            else []
        ),
        ("", _number(s["lemma_width"]), f"the convergence lemma, constant 1, ρ = {FAILURE_PROBABILITY:g}"),
        ("", _number(s["theorem_kernel_width"]), "for λ_min(H^dis) ≥ 3λ/4 alone"),
        ("", _number(s["corollary_width"]), f"the corollary, α = {ALPHA:g}, constant 1"),
    ]
    practice = [
        ("m", f"{s['width']:,}", "neurons (--width)"),
        ("b", f"{s['threshold']:.4g}", "threshold"),
        ("active", percent(s["active_fraction"], 2), "of all pairs are expected to be active"),
        ("", percent(s["active_bound_fraction"], 2), "the sparsity lemma's bound, 2 e^(−b²/2)"),
        ("D", _number(s["movement_bound"]), "bound on the movement of a neuron, at this width"),
        (
            "‖err(0)‖",
            _number(s["initial_error"]),
            f"initial error at this width; D < R requires at most {_number(s['sufficient_error'])}",
        ),
        ("η", _number(s["practical_learning_rate"]), "learning rate at which the loss falls, 1/λ_max"),
        (
            "T",
            _number(s["practical_iterations"]),
            f"iterations until the slowest part of the error is at {percent(ACCURACY, 0)}",
        ),
    ]
    practice += _score_rows(s)
    meanings = {
        "dense": "every pair of row and neuron",
        "weights": "Algorithm 1 of the paper",
        "data": "Algorithm 2 of the paper",
        "quantum": "either of the two, on a quantum computer",
    }
    costs = [(name, _number(value), meanings[name]) for name, value in s["operations"].items()]
    return [
        ("The data and their kernel", Table(columns, data)),
        ("What the theorem requires", Table(columns, required)),
        ("What practice needs", Table(columns, practice)),
        ("Operations of one iteration, constants left out", Table(columns, costs)),
    ]


def _score_rows(summary: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = summary.get("held_out_rows", 0)
    meaning = f"of kernel regression, the infinitely wide network, on {rows:,} rows held out"
    names = {"accuracy": "accuracy", "rmse": "RMSE", "r2": "R²"}
    found = {name: summary.get(f"kernel_regression_{name}") for name in names}
    expected = (
        f"that fireset train may expect at its defaults: cross-fitting on {summary.get('forecast_rows', 0):,} rows"
    )
    forecasts = [
        (f"forecast, {names[name]}", percent(value) if name == "accuracy" else _number(value), expected)
        for name in names
        if (value := summary.get(f"forecast_{name}")) is not None
    ]
    return forecasts + [
        (names[name], percent(value) if name == "accuracy" else _number(value), meaning)
        for name, value in found.items()
        if value is not None
    ]


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def theory_sections(found: Theory) -> list[Section]:
    """Return the results as sections of a page, with a figure of the spectrum of H^cts."""
    s = found.summary
    sections = [Section(heading, tables=[table]) for heading, table in theory_tables(found)]
    if found.eigenvalues:
        ranks = list(range(1, len(found.eigenvalues) + 1))
        ends = [1, len(ranks)]
        series = [
            Series("eigenvalues of H^cts", ranks, found.eigenvalues, "line"),
            Series("upper bound on the smallest, e^(−b²/2)", ends, [s["lambda_upper_bound"]] * 2, "dashed"),
            Series("lower bound, e^(−b²/2) δ/(100 n²)", ends, [s["lambda_lower_bound"]] * 2, "dashed"),
        ]
        if s["lambda_hermite_bound"] > 0:
            series.append(Series("sharper lower bound", ends, [s["lambda_hermite_bound"]] * 2, "dashed"))
        figure = Figure(
            "Eigenvalues of H^cts",
            "rank",
            "eigenvalue",
            series,
            f"The eigenvalues fall from {s['lambda_max']:.3g} to {s['lambda']:.3g}; the bounds on the smallest one are "
            f"drawn as dashed lines.",
            log_y=True,
        )
        sections[0] = Section(sections[0].heading, tables=sections[0].tables, figures=[figure])
    return [Section("Summary", [_summary_text(s)]), *sections]


def _summary_text(s: dict[str, Any]) -> str:
    """Say whether the theorem covers this network, and what practice needs."""
    if s["lambda_is_zero"]:
        return (
            "The smallest eigenvalue of the kernel is 0, so that the convergence theorem does not apply to these rows."
        )
    required, width = s["sufficient_width"], s["width"]
    covered = "the theorem covers it" if width >= required else "the theorem does not cover it"
    return (
        f"On these {s['rows']:,} rows the convergence theorem requires {_number(required)} neurons. This network has "
        f"{width:,}: {covered}. In practice the loss falls at learning rates up to "
        f"{_number(s['practical_learning_rate'])}, and the slowest part of the error takes about "
        f"{_number(s['practical_iterations'])} iterations."
    )


def write_theory_page(path: Path, file: Path, found: Theory, settings: dict[str, Any]) -> None:
    """Write a report with the results."""
    title = f"What the theorem requires on {file.name}"
    write_page(path, title, theory_sections(found), settings=settings)
