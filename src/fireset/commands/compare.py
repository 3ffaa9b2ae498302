"""Every engine on the same table, the same first network and the same steps, in one process, in turns.

The clock runs only during steps: compiling, preprocessing, measuring recall and memory are apart. Contenders take turns
of a few iterations, so that whatever else the machine does meets all of them, with a short rest before each turn: BLAS
workers of one contender spin on for a while, and would sit on a core that the next one needs.
"""

import threading
import time
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.checks import whole_number
from fireset._util.errors import InputError
from fireset._util.files import file_name
from fireset._util.text import duration
from fireset.commands.budget import Budget
from fireset.commands.comparison import Comparison, Run
from fireset.commands.contenders import Problem, make_contender, peak_memory, steady_rate
from fireset.commands.overwrite_check import check_outputs_differ_from_inputs
from fireset.commands.peers import PEERS, installed
from fireset.commands.rescue import write_or_report
from fireset.commands.schedule import expected_times, left_out, pilot_problem
from fireset.commands.stages import StageBar
from fireset.commands.verdict import Kind, Row, Scaling, contest, crossover
from fireset.engines.registry import ENGINES, engine_class
from fireset.estimators import PAPER, estimator_for
from fireset.network import ShiftedReLUNetwork
from fireset.reporting import check_report
from fireset.tables.cells import one_line
from fireset.tables.problem import TableProblem
from fireset.training.signals import interruptible

_TURNS = 10  # at least, if there are as many iterations
_MAX_TURN = 10
_REST = 0.05  # seconds before a turn
_HOPELESS = 1e6  # times the first loss
_DOUBLINGS = 5  # widths below the one asked for, to find the crossover
_MIN_WIDTH = 64
_SHORT_RUN = 5  # timed steps at each of these widths
_FOR_WIDTHS = 0.25  # of the budget that the race leaves for these runs
_FIRST = ("dense", "data", "rows")  # to be compiled, where that may take the time of the others
_OVER = "the budget was over"
_ENTRY = 0.4  # of the budget that must be left for a contender to be compiled


def compare_table(
    file: Path,
    target: str,
    *,
    engines: str | None,
    width: int,
    iterations: int,
    dtype: str,
    budget: float,
    seed: int,
    report: Path | None,
    verbose: bool,
    command: str | None = None,
    **reading: Any,
) -> dict[str, Any]:
    """Read a table, run the contenders, write the report if asked for; returns what to show."""
    clock = Budget(budget)
    names = chosen_names(engines)
    whole_number("iterations", iterations, 1)
    if report is not None:
        check_outputs_differ_from_inputs(report, file, flag="--report")
        check_report(report)
    with interruptible() as interrupted, StageBar("comparing", shown=verbose, left=clock.expected) as bar:
        bar.say("reading the table")
        table = TableProblem.read(file, target, **reading)
        estimator = estimator_for(table.task, **{**PAPER, "width": width, "dtype": dtype, "random_state": seed})
        prepared = estimator.prepare(table.X, table.y)
        network = estimator.network_
        X = network.check_rows(prepared.rows)
        bar.say("choosing the learning rate")
        problem = Problem(X, prepared.targets, network, steady_rate(network, X))
        found = compare(problem, names, iterations, clock, seed=seed, interrupted=interrupted, say=bar.say)
    summary: dict[str, Any] = {
        "task": table.task,
        **({} if table.choice is None else {"task_reason": str(table.choice)}),
        "samples": len(X),
        "coordinates": X.shape[1],
        "outputs": network.n_outputs,
        "width": network.width,
        "threshold": network.threshold,
        "dtype": str(network.dtype),
        "learning_rate": problem.rate,
        "iterations": iterations,
        "iterations_done": found.done,
        "budget_seconds": budget,
        "interrupted": found.interrupted,
        "contenders": [row.to_dict() for row in found.rows],
        "scaling": [
            {"name": s.name, "widths": s.widths, "seconds": s.seconds, "exponent": s.exponent, "gaps": s.gaps}
            for s in found.scaling
        ],
        "crossover": None if found.crossing is None else {"how": found.crossing.how, "width": found.crossing.width},
        "notes": found.notes,
        "verdict": found.sentence(),
    }
    if report is not None:
        from fireset.commands.compare_report import write_comparison

        facts = {k: v for k, v in summary.items() if isinstance(v, (str, int, float)) and k != "verdict"}
        settings = {
            "command": command,
            "file": file_name(file),
            "target": target,
            "seed": seed,
            "engines": names,
            **reading,
            **facts,
        }
        summary |= write_or_report("report", report, lambda: write_comparison(report, found, settings))
    return summary


def compare(
    problem: Problem,
    names: list[str],
    iterations: int,
    budget: Budget,
    *,
    seed: int = 0,
    interrupted: threading.Event,
    say: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Run the contenders of these names ``iterations`` steps each, and the crossover's short runs, within the budget.

    Who is too slow for it is left out; then all do as many steps as there is time for. When ``interrupted`` is set,
    what has been measured until then is returned.
    """
    found = Comparison(problem, iterations, budget, [_entered(name) for name in names])
    _choose(found, seed, interrupted, say)
    for run in found.runs:
        if interrupted.is_set():
            break
        if run.alive:
            say(f"{run.row.name}, measuring its memory")
        _attempt(run, lambda run=run: _prepare(run, problem))
    if not interrupted.is_set():
        _race(found, interrupted, say)
    found.interrupted = interrupted.is_set()
    for run in found.runs:
        if run.alive and not run.steps:
            run.row.reason = "interrupted before its first step"
    _fill_rows(found)
    pair = contest(found.rows)
    if pair is not None and not found.interrupted:
        engines = [run.row.name for run in found.runs if run.alive and run.row.name not in PEERS]
        _scale(found, list(dict.fromkeys([pair[0].name, *engines])), seed, interrupted, say)
        curves = {s.name: s for s in found.scaling}
        if pair[0].name in curves and pair[1].name in curves:
            found.crossing = crossover(curves[pair[0].name], curves[pair[1].name])
        found.interrupted = interrupted.is_set()
    return found


def chosen_names(asked: str | None) -> list[str]:
    """Contenders from the user's words; the dense engine, which all are held against, is always the first.

    By default all engines but the quantum ones, which are simulations and run only when asked for by name, and those
    peers that are installed.
    """
    known = sorted(ENGINES)
    if asked is None:
        names = [name for name in known if not engine_class(name).simulated] + installed()
    else:
        names = [name.strip() for name in asked.split(",") if name.strip()]
        allowed = [*known, *PEERS]
        for name in names:
            if name not in allowed:
                raise InputError(f"engines must be names from {', '.join(allowed)}, separated by commas; got {name!r}")
    return list(dict.fromkeys(["dense", *names]))


def _entered(name: str) -> Run:
    try:
        contender = make_contender(name)
    except Exception as error:
        return Run(Row(name, "preprocessed", reason=_reason(error)))
    return Run(Row(name, contender.kind), contender)


def _attempt(run: Run, work: Callable[[], None]) -> None:
    """A contender that fails, in whatever way, is a row with its reason; the others go on."""
    if not run.alive:
        return
    try:
        work()
    except Exception as error:
        run.row.reason = _reason(error)


def _prepare(run: Run, problem: Problem) -> None:
    assert run.contender is not None
    started = time.perf_counter()
    run.contender.compile(problem)
    run.row.compile_seconds = (run.row.compile_seconds or 0.0) + time.perf_counter() - started
    run.row.peak_megabytes = peak_memory(run.contender, problem)
    started = time.perf_counter()
    run.contender.start(problem)
    run.row.preprocessing_seconds = time.perf_counter() - started if run.contender.preprocesses else 0.0


def _choose(found: Comparison, seed: int, interrupted: threading.Event, say: Callable[[str], None]) -> None:
    """Have everyone compiled and tried on a small problem; who would take too long is a row with its reason."""
    budget = found.budget
    pilot = pilot_problem(found.problem, seed)
    for run in sorted(found.runs, key=lambda run: run.row.name not in _FIRST):
        if interrupted.is_set():
            return
        if run.alive and budget.left() < _ENTRY * budget.seconds and run.row.name not in _FIRST:
            run.row.reason = (
                f"not started: of the budget of {duration(budget.seconds)} only {duration(budget.left())} "
                "were left when its turn came to be compiled, which is done once on a machine; run 'fireset warmup', "
                "or give a larger --budget"
            )
        if run.alive:
            say(f"{run.row.name}, compiling")
        _attempt(run, lambda run=run: _try(run, pilot, found.problem))
    expected = {run.row.name: run.expected for run in found.runs if run.alive and run.expected is not None}
    kinds: dict[str, Kind] = {run.row.name: run.row.kind for run in found.runs}
    reasons = left_out(expected, kinds, found.iterations, budget.left())
    for run in found.runs:
        run.row.reason = reasons.get(run.row.name, run.row.reason)
    _expected_times(found, found.iterations)


def _try(run: Run, pilot: Problem, problem: Problem) -> None:
    started = time.perf_counter()
    run.expected = expected_times(run.row.name, pilot, problem)
    run.row.compile_seconds = time.perf_counter() - started - run.expected.pilot_seconds


def _expected_times(found: Comparison, iterations: int) -> None:
    """How long so many further iterations of all, and the runs at other widths, will take."""
    alive = [run.expected for run in found.runs if run.alive and run.expected is not None]
    race = sum(each.run(iterations) for each in alive)
    widths = sum(2 * each.short_run(_SHORT_RUN) for each in alive)
    budget = found.budget
    found.budget.expect(min(race, max(0.0, budget.left() - _FOR_WIDTHS * budget.seconds)) + widths)


def _race(found: Comparison, interrupted: threading.Event, say: Callable[[str], None]) -> None:
    """All steps, in turns; after each turn, how far everyone is from the dense engine's weights."""
    first = found.problem.network.weights.astype(np.float64)
    budget = found.budget
    done, turn = 0, min(_MAX_TURN, -(-found.iterations // _TURNS))
    round_seconds = sum(run.expected.step for run in found.runs if run.alive and run.expected is not None)
    turn = max(1, min(turn, int(0.1 * budget.seconds / max(round_seconds, 1e-9))))
    while done < found.iterations:
        started = time.perf_counter()
        turn = min(turn, found.iterations - done)
        for run in found.runs:
            if run.alive:
                say(f"{done}/{found.iterations} iterations, {run.row.name}'s turn")
                time.sleep(_REST)
            for _ in range(turn):
                if interrupted.is_set():
                    return
                _attempt(run, lambda run=run: _step(run))
        done += turn
        _measure_distances(found.runs, first, done)
        each = (time.perf_counter() - started) / turn
        if done < found.iterations and budget.left() - turn * each < _FOR_WIDTHS * budget.seconds:
            found.notes.append(
                f"{done} of {found.iterations} iterations were done: the budget of {duration(budget.seconds)} did "
                "not allow more; give a larger --budget, or fewer --engines"
            )
            break
        _expected_times(found, found.iterations - done)
    for run in found.runs:
        if interrupted.is_set():
            return
        _attempt(run, lambda run=run: _end(run))


def _step(run: Run) -> None:
    assert run.contender is not None
    taken = run.contender.step()
    run.steps.append(taken)
    if not (isfinite(taken.loss) and taken.loss <= _HOPELESS * max(run.steps[0].loss, 1e-300)):
        run.row.reason = f"diverged in iteration {len(run.steps) - 1}"
        return
    run.reached = len(run.steps)


def _end(run: Run) -> None:
    """The loss after the last step: that of one more step, which is not timed."""
    assert run.contender is not None
    run.last_loss = run.contender.step().loss


def _measure_distances(runs: list[Run], first: np.ndarray, done: int) -> None:
    dense = next((run for run in runs if run.row.name == "dense" and run.alive), None)
    if dense is None or dense.contender is None:
        return
    reference = dense.contender.weights().astype(np.float64)
    way = float(np.linalg.norm(reference - first))
    for run in runs:
        if run.alive and run.reached == done and run.contender is not None:
            off = float(np.linalg.norm(run.contender.weights() - reference))
            share = off / way if way > 0 else 0.0
            run.row.distance_to_dense = max(share, run.row.distance_to_dense or 0.0)


def _fill_rows(found: Comparison) -> None:
    """The means, and the loss: of the steps that all have done, and of no others."""
    ran = [run for run in found.runs if run.alive]
    found.done = min((len(run.steps) for run in ran), default=0)
    ended = all(run.last_loss is not None for run in ran)
    for run in ran:
        if len(run.steps) > found.done or not ended:
            run.last_loss = None
        del run.steps[found.done :]
    dense = next((run for run in ran if run.row.name == "dense"), None)
    for run in ran:
        row, steps = run.row, run.steps
        row.seconds_per_iteration = float(np.mean([taken.seconds for taken in steps]))
        row.inner_products = float(np.mean([taken.inner_products for taken in steps]))
        active = [taken.active_pairs for taken in steps if taken.active_pairs is not None]
        recalls = [taken.recall for taken in steps if taken.recall is not None]
        row.active_pairs = float(np.mean(active)) if active else None
        if recalls:
            row.recall = float(np.mean(recalls))
        elif row.kind in ("dense", "preprocessed") and row.name not in PEERS:
            row.recall = 1.0  # by the definition of exact, which the tests check in every iteration
        row.final_loss = run.losses()[-1]
    if dense is not None and dense.row.seconds_per_iteration is not None:
        for run in ran:
            if run.row.seconds_per_iteration:
                run.row.speed_up = dense.row.seconds_per_iteration / run.row.seconds_per_iteration


def _scale(found: Comparison, names: list[str], seed: int, interrupted: threading.Event, say) -> None:
    """Short runs at widths that double up to the one asked for."""
    widest = found.problem.network.width
    widths = sorted({widest >> k for k in range(_DOUBLINGS + 1) if widest >> k >= _MIN_WIDTH} | {widest})
    curves = {run.row.name: Scaling(run.row.name, run.row.kind) for run in found.runs if run.row.name in names}
    for width in widths:
        if found.budget.left() <= 0:
            for curve in curves.values():
                curve.gaps[width] = _OVER
            continue
        X, y, given = found.problem.X, found.problem.y, found.problem.network
        network = ShiftedReLUNetwork.initialize(
            width, given.n_features, given.n_outputs, seed=seed, dtype=str(given.dtype)
        )
        problem = Problem(X, y, network, steady_rate(network, X))
        for name in names:
            if interrupted.is_set():
                break
            if not _affordable(found, name, width):
                curves[name].gaps[width] = _OVER
                continue
            say(f"width {width:,}, {name}")
            try:
                seconds = _short_run(name, problem)
            except Exception as error:  # a gap in its curve; at the width asked for, it ran
                curves[name].gaps[width] = _reason(error)
                continue
            curves[name].widths.append(width)
            curves[name].seconds.append(seconds)
    for run in found.runs:  # where no time was left for the width asked for, there is the race
        curve = curves.get(run.row.name)
        if curve is not None and run.row.seconds_per_iteration and widest in curve.gaps:
            del curve.gaps[widest]
            curve.widths.append(widest)
            curve.seconds.append(run.row.seconds_per_iteration)
    found.scaling = [curve for curve in curves.values() if len(curve.widths) > 1]


def _affordable(found: Comparison, name: str, width: int) -> bool:
    """Whether there is time for a short run at this width."""
    expected = next(run.expected for run in found.runs if run.row.name == name)
    if expected is None:
        return found.budget.left() > 0
    return expected.short_run(_SHORT_RUN) * width / found.problem.network.width < found.budget.left()


def _short_run(name: str, problem: Problem) -> float:
    contender = make_contender(name)
    contender.compile(problem)
    contender.start(problem)
    contender.step()  # first touches of memory are nobody's step
    time.sleep(_REST)
    return float(np.median([contender.step().seconds for _ in range(_SHORT_RUN)]))


def _reason(error: Exception) -> str:
    text = one_line(error) or type(error).__name__
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"
