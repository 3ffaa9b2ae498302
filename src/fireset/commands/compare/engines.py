"""Compare all engines on the same rows, initial network and learning rate, in one process.

Only steps are timed; compilation, preprocessing, recall and memory are measured separately. Engines take turns of a few
iterations, so that other load on the machine affects all of them, with a short pause before each turn: BLAS threads of
one engine spin for a while after its last product and would occupy a core.
"""

import threading
import time
from collections.abc import Callable
from math import isfinite

import numpy as np

from fireset._util.errors import InputError
from fireset._util.text import duration
from fireset.commands.compare.budget import (
    Budget,
    engines_over_budget,
    measure_expected_times,
    pilot_problem,
)
from fireset.commands.compare.engine_contenders import (
    PEERS,
    EngineProblem,
    Kind,
    fixed_learning_rate,
    installed_peers,
    make_contender,
    peak_memory,
)
from fireset.commands.compare.result import EngineComparison, EngineResult, Scaling
from fireset.commands.compare.verdict import crossover, engine_verdict, fastest_pair
from fireset.engines.registry import ENGINES, REFERENCE, engine_class, names_with
from fireset.network import ShiftedReLUNetwork
from fireset.tables.cells import one_line

_MIN_TURNS = 10  # if there are as many iterations
_MAX_TURN_ITERATIONS = 10
_MAX_TURN_FRACTION = 0.1  # of the budget for one turn of all engines
_PAUSE_SECONDS = 0.05  # before a turn
_DIVERGENCE_FACTOR = 1e6  # times the initial loss
_HALVINGS = 5  # widths below the requested one, to find the crossover
_MIN_WIDTH = 64
_SHORT_RUN_STEPS = 5  # timed steps at each of these widths
_SHORT_RUNS_FRACTION = 0.25  # of the budget reserved for these runs
_COMPILE_FRACTION = 0.4  # of the budget that must remain when the compilation of another engine starts
_BUDGET_OVER = "the budget was over"

ShowStage = Callable[[str], None]


def selected_engines(text: str | None) -> list[str]:
    """Return the names in a comma-separated list, after ``REFERENCE``, which all others are compared with.

    By default all engines except simulations, and the peers that are installed.
    """
    known = sorted(ENGINES)
    if text is None:
        names = [name for name in known if not engine_class(name).simulated] + installed_peers()
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
        allowed = [*known, *PEERS]
        for name in names:
            if name not in allowed:
                raise InputError(f"engines must be names from {', '.join(allowed)}, separated by commas; got {name!r}")
    return list(dict.fromkeys([REFERENCE, *names]))


def compare_engines(
    problem: EngineProblem,
    names: list[str],
    iterations: int,
    budget: Budget,
    *,
    seed: int = 0,
    interrupted: threading.Event,
    show_stage: ShowStage = lambda _: None,
) -> EngineComparison:
    """Run ``iterations`` steps of each engine, and short runs at smaller widths, within the budget.

    Engines that are too slow for the budget are left out. If the time is still too short, all engines do fewer steps.
    When ``interrupted`` is set, the measurements made so far are returned.
    """
    found = EngineComparison([_new_result(name) for name in names], problem=problem, iterations=iterations)
    run = _EngineRun(found, budget, seed, interrupted, show_stage)
    run.leave_out_slow_engines()
    run.prepare()
    if not interrupted.is_set():
        run.take_turns()
    found.interrupted = interrupted.is_set()
    for result in found.results:
        if result.running and not result.steps:
            result.reason = "interrupted before its first step"
    _average_steps(found)
    pair = fastest_pair(found.results)
    if pair is not None and not found.interrupted:
        engines = [each.name for each in found.results if each.running and each.contender and each.contender.is_engine]
        run.measure_scaling(list(dict.fromkeys([pair[0].name, *engines])))
        curves = {curve.name: curve for curve in found.scaling}
        if pair[0].name in curves and pair[1].name in curves:
            found.crossover = crossover(curves[pair[0].name], curves[pair[1].name])
        found.interrupted = interrupted.is_set()
    found.verdict = engine_verdict(found.results, problem.network.width, iterations, found.crossover)
    return found


def _new_result(name: str) -> EngineResult:
    try:
        contender = make_contender(name)
    except Exception as error:
        return EngineResult(name, "preprocessed", reason=_error_text(error))
    return EngineResult(name, contender.kind, contender=contender)


def _attempt(result: EngineResult, work: Callable[[EngineResult], None]) -> None:
    """Do some work for an engine that is still running. An error ends this engine only and becomes its ``reason``."""
    if not result.running:
        return
    try:
        work(result)
    except Exception as error:
        result.reason = _error_text(error)


def _error_text(error: Exception) -> str:
    text = one_line(error) or type(error).__name__
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"


class _EngineRun:
    """The stages of a comparison, in the order in which they are called. They fill ``found``."""

    def __init__(
        self,
        found: EngineComparison,
        budget: Budget,
        seed: int,
        interrupted: threading.Event,
        show_stage: ShowStage,
    ):
        self._found, self._budget, self._seed = found, budget, seed
        self._interrupted, self._show_stage = interrupted, show_stage

    def leave_out_slow_engines(self) -> None:
        """Compile all engines and time them on a small problem; leave out those that are too slow for the budget."""
        found, budget = self._found, self._budget
        pilot = pilot_problem(found.problem, self._seed)

        def measure(result: EngineResult) -> None:
            started = time.perf_counter()
            result.expected = measure_expected_times(result.name, pilot, found.problem)
            result.compile_seconds = time.perf_counter() - started - result.expected.pilot_seconds

        first = set(names_with("compiles_fast"))  # compilation may use up the time of all others
        for result in sorted(found.results, key=lambda result: result.name not in first):
            if self._interrupted.is_set():
                return
            late = budget.remaining() < _COMPILE_FRACTION * budget.seconds
            if result.running and late and result.name not in first:
                result.reason = (
                    f"not started: of the budget of {duration(budget.seconds)} only {duration(budget.remaining())} "
                    "were left when its turn came to be compiled, which is done once on a machine; run 'fireset "
                    "warmup', or give a larger --budget"
                )
            if result.running:
                self._show_stage(f"{result.name}, compiling")
            _attempt(result, measure)
        expected = {each.name: each.expected for each in found.results if each.running and each.expected is not None}
        kinds: dict[str, Kind] = {result.name: result.kind for result in found.results}
        reasons = engines_over_budget(expected, kinds, found.iterations, budget.remaining())
        for result in found.results:
            result.reason = reasons.get(result.name, result.reason)
        self._update_expected_time(found.iterations)

    def prepare(self) -> None:
        """Compile for the whole problem, measure the memory, preprocess."""
        for result in self._found.results:
            if self._interrupted.is_set():
                return
            if result.running:
                self._show_stage(f"{result.name}, measuring its memory")
            _attempt(result, self._prepare_engine)

    def _prepare_engine(self, result: EngineResult) -> None:
        assert result.contender is not None
        problem = self._found.problem
        started = time.perf_counter()
        result.contender.compile(problem)
        result.compile_seconds = (result.compile_seconds or 0.0) + time.perf_counter() - started
        result.peak_megabytes = peak_memory(result.contender, problem)
        started = time.perf_counter()
        result.contender.start(problem)
        result.preprocessing_seconds = time.perf_counter() - started if result.contender.preprocesses else 0.0

    def take_turns(self) -> None:
        """Do all steps, in turns; after each turn measure the distances from the weights of the dense engine."""
        found, budget = self._found, self._budget
        initial = found.problem.network.weights.astype(np.float64)
        done, turn = 0, min(_MAX_TURN_ITERATIONS, -(-found.iterations // _MIN_TURNS))
        seconds = sum(each.expected.step for each in found.results if each.running and each.expected is not None)
        turn = max(1, min(turn, int(_MAX_TURN_FRACTION * budget.seconds / max(seconds, 1e-9))))
        while done < found.iterations:
            started = time.perf_counter()
            turn = min(turn, found.iterations - done)
            for result in found.results:
                if result.running:
                    self._show_stage(f"{done}/{found.iterations} iterations, {result.name}'s turn")
                    time.sleep(_PAUSE_SECONDS)
                for _ in range(turn):
                    if self._interrupted.is_set():
                        return
                    _attempt(result, _step)
            done += turn
            _measure_distances(found.results, initial, done)
            seconds = (time.perf_counter() - started) / turn
            if done < found.iterations and budget.remaining() - turn * seconds < _SHORT_RUNS_FRACTION * budget.seconds:
                found.notes.append(
                    f"{done} of {found.iterations} iterations were done: the budget of {duration(budget.seconds)} did "
                    "not allow more; give a larger --budget, or fewer --engines"
                )
                break
            self._update_expected_time(found.iterations - done)
        for result in found.results:
            if self._interrupted.is_set():
                return
            _attempt(result, _measure_last_loss)

    def measure_scaling(self, names: list[str]) -> None:
        """Make short runs at widths that double up to the requested one."""
        found = self._found
        widest = found.problem.network.width
        widths = sorted({widest >> k for k in range(_HALVINGS + 1) if widest >> k >= _MIN_WIDTH} | {widest})
        curves = {each.name: Scaling(each.name, each.kind) for each in found.results if each.name in names}
        for width in widths:
            if self._budget.remaining() <= 0:
                for curve in curves.values():
                    curve.gaps[width] = _BUDGET_OVER
                continue
            problem = self._problem_of_width(width)
            for name in names:
                if self._interrupted.is_set():
                    break
                if not self._has_time_for_short_run(name, width):
                    curves[name].gaps[width] = _BUDGET_OVER
                    continue
                self._show_stage(f"width {width:,}, {name}")
                try:
                    seconds = _short_run(name, problem)
                except Exception as error:
                    curves[name].gaps[width] = _error_text(error)
                    continue
                curves[name].widths.append(width)
                curves[name].seconds.append(seconds)
        for result in found.results:  # without a short run at the requested width, use the long one
            curve = curves.get(result.name)
            if curve is not None and result.seconds_per_iteration and widest in curve.gaps:
                del curve.gaps[widest]
                curve.widths.append(widest)
                curve.seconds.append(result.seconds_per_iteration)
        found.scaling = [curve for curve in curves.values() if len(curve.widths) > 1]

    def _problem_of_width(self, width: int) -> EngineProblem:
        X, y, given = self._found.problem.X, self._found.problem.y, self._found.problem.network
        network = ShiftedReLUNetwork.initialize(
            width, given.n_features, given.n_outputs, seed=self._seed, dtype=str(given.dtype)
        )
        return EngineProblem(X, y, network, fixed_learning_rate(network, X))

    def _has_time_for_short_run(self, name: str, width: int) -> bool:
        expected = next(result.expected for result in self._found.results if result.name == name)
        if expected is None:
            return self._budget.remaining() > 0
        seconds = expected.short_run(_SHORT_RUN_STEPS) * width / self._found.problem.network.width
        return seconds < self._budget.remaining()

    def _update_expected_time(self, iterations: int) -> None:
        """Set the expected time of ``iterations`` further steps of all engines and of the runs at other widths."""
        expected = [each.expected for each in self._found.results if each.running and each.expected is not None]
        steps = sum(each.run(iterations) for each in expected)
        short_runs = sum(2 * each.short_run(_SHORT_RUN_STEPS) for each in expected)
        available = max(0.0, self._budget.remaining() - _SHORT_RUNS_FRACTION * self._budget.seconds)
        self._budget.set_expected(min(steps, available) + short_runs)


def _step(result: EngineResult) -> None:
    assert result.contender is not None
    step = result.contender.step()
    result.steps.append(step)
    if not (isfinite(step.loss) and step.loss <= _DIVERGENCE_FACTOR * max(result.steps[0].loss, 1e-300)):
        result.reason = f"diverged in iteration {len(result.steps) - 1}"
        return
    result.finite_steps = len(result.steps)


def _measure_last_loss(result: EngineResult) -> None:
    """Measure the loss after the last step by one more step, which is not timed."""
    assert result.contender is not None
    result.last_loss = result.contender.step().loss


def _measure_distances(results: list[EngineResult], initial: np.ndarray, done: int) -> None:
    """Update ``distance_to_dense`` of all engines that have done ``done`` steps."""
    dense = next((result for result in results if result.name == REFERENCE and result.running), None)
    if dense is None or dense.contender is None:
        return
    reference = dense.contender.weights().astype(np.float64)
    movement = float(np.linalg.norm(reference - initial))
    for result in results:
        if result.running and result.finite_steps == done and result.contender is not None:
            distance = float(np.linalg.norm(result.contender.weights() - reference))
            relative = distance / movement if movement > 0 else 0.0
            result.distance_to_dense = max(relative, result.distance_to_dense or 0.0)


def _average_steps(found: EngineComparison) -> None:
    """Compute means and final losses over the steps that all engines have done."""
    ran = [result for result in found.results if result.running]
    found.iterations_done = min((len(result.steps) for result in ran), default=0)
    complete = all(result.last_loss is not None for result in ran)
    for result in ran:
        if len(result.steps) > found.iterations_done or not complete:
            result.last_loss = None
        del result.steps[found.iterations_done :]
        steps = result.steps
        result.seconds_per_iteration = float(np.mean([step.seconds for step in steps]))
        result.inner_products = float(np.mean([step.inner_products for step in steps]))
        active = [step.active_pairs for step in steps if step.active_pairs is not None]
        recalls = [step.recall for step in steps if step.recall is not None]
        result.active_pairs = float(np.mean(active)) if active else None
        if recalls:
            result.recall = float(np.mean(recalls))
        elif result.kind in ("dense", "preprocessed") and result.contender and result.contender.is_engine:
            result.recall = 1.0  # by the definition of exact
        result.final_loss = result.losses()[-1]
    dense = next((result.seconds_per_iteration for result in ran if result.name == REFERENCE), None)
    if dense is not None:
        for result in ran:
            if result.seconds_per_iteration:
                result.speed_up = dense / result.seconds_per_iteration


def _short_run(name: str, problem: EngineProblem) -> float:
    """Return the median seconds of a few steps after a warm-up step."""
    contender = make_contender(name)
    contender.compile(problem)
    contender.start(problem)
    contender.step()  # touches memory for the first time
    time.sleep(_PAUSE_SECONDS)
    return float(np.median([contender.step().seconds for _ in range(_SHORT_RUN_STEPS)]))
