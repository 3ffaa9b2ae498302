"""What the quantum-classical algorithms would cost on a table: oracle calls, growth with the width, circuits."""

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.rounding import row_norms
from fireset.engines import Engine, create
from fireset.estimators import PAPER, estimator_for
from fireset.network import ShiftedReLUNetwork
from fireset.quantum.arithmetic import T_PER_TOFFOLI, FixedPoint, Resources, count_resources
from fireset.quantum.search import make_schedule
from fireset.tables.problem import TableProblem
from fireset.training.history import History
from fireset.training.loop import train
from fireset.training.progress import Progress, ProgressBar
from fireset.training.result import TrainingResult

VERSIONS = {"quantum-weights": "Version 1", "quantum-data": "Version 2"}
PAPER_EXPONENT = 0.9
_SCALED_DOWN = (16, 8, 4, 2, 1)  # widths of the figure over m, as fractions of the one asked for
_MIN_WIDTH = 64
ASSUMES = (
    "fault-tolerant qubits, and a quantum memory (QRAM) that answers in superposition; neither exists at this "
    "size. Without QRAM a single call reads all points in its look-up circuit, and nothing is gained. Calls are "
    "counted, not seconds: a call on corrected qubits takes far longer than an inner product does here"
)


@dataclass(frozen=True)
class VersionCosts:
    """One version of the algorithm, iteration by iteration."""

    oracle_calls: list[int]  # checks included; the first iteration has the preprocessing
    square_roots: list[float]  # Σ_i √(m k_i) or Σ_r √(n k̃_r)
    missed_pairs: list[int]
    searches: list[int]
    resources: Resources  # of one call of the arithmetic oracle


@dataclass(frozen=True)
class Scaling:
    """One pass over freshly drawn networks of several widths m, on the same samples."""

    widths: list[int]
    oracle_calls: dict[str, list[int]]
    exponents: dict[str, float]
    square_roots: dict[str, list[float]]
    square_root_exponents: dict[str, float]


@dataclass(frozen=True)
class QuantumCosts:
    """All that ``fireset quantum`` found. n samples, m neurons."""

    file: str
    rows: int
    coordinates: int
    width: int
    threshold: float
    active_fraction: float
    iterations: int
    failure_probability: float
    bits: int
    pairs: int  # m·n, the evaluations of looking at every pair
    data_inner_products: list[int]  # of the classical engine ``data``, by iteration
    data_first_inner_products: int  # of its preprocessing
    verdict_calls: dict[str, float]  # of a search to find out that nothing is left
    versions: dict[str, VersionCosts]
    scaling: Scaling

    def to_dict(self) -> dict[str, Any]:
        """As JSON wants it."""
        return {**asdict(self), "paper_exponent": PAPER_EXPONENT, "assumes": ASSUMES}


def quantum_costs(
    file: Path,
    target: str,
    *,
    width: int,
    iterations: int,
    failure_probability: float,
    bits: int,
    seed: int,
    verbose: bool,
    **table: Any,
) -> QuantumCosts:
    """Train for a few plain gradient steps with both versions, and with the classical engine ``data`` beside them.

    ``table`` goes to ``TableProblem.read``. Time and memory are those of looking at every pair in every iteration.
    """
    if iterations < 1:
        raise InputError(f"iterations must be at least 1, got {iterations}")
    if width < _MIN_WIDTH:
        raise InputError(f"width must be at least {_MIN_WIDTH}, got {width}")
    make_schedule(1, failure_probability)  # refuses what is no probability
    problem = TableProblem.read(file, target, **table)
    estimator = estimator_for(problem.task, **{**PAPER, "width": width, "random_state": seed})
    prepared = estimator.prepare(problem.X, problem.y)
    first = estimator.network_
    rows = first.check_rows(prepared.rows)
    resources = _resources(first, rows, bits)
    runner = _Runner(rows, prepared.targets, failure_probability, seed, verbose)
    versions = {}
    for name, title in VERSIONS.items():
        history, square_roots = runner.version(name, first.copy(), iterations, title)
        again = [int(count) for count in history.column("refreshes")[1:]]
        versions[name] = VersionCosts(
            [int(calls) for calls in history.column("oracle_queries")],
            square_roots,
            [int(missed) for missed in history.column("missed_pairs")],
            [len(rows)] * len(history) if name == "quantum-weights" else [width, *again],
            resources[name],
        )
    classical = create("data")
    data = runner.train(classical, first.copy(), iterations, "the classical engine data").history
    products = [int(count) for count in data.column("inner_products")]
    return QuantumCosts(
        file=file.name,
        rows=len(rows),
        coordinates=rows.shape[1],
        width=width,
        threshold=first.threshold,
        active_fraction=data[0].active_fraction,
        iterations=iterations,
        failure_probability=failure_probability,
        bits=bits,
        pairs=len(rows) * width,
        data_inner_products=products,
        data_first_inner_products=classical.work.inner_products - sum(products),
        verdict_calls={
            "quantum-weights": make_schedule(width, failure_probability).verdict_calls,
            "quantum-data": make_schedule(len(rows), failure_probability).verdict_calls,
        },
        versions=versions,
        scaling=_scaling(first, runner),
    )


@dataclass(frozen=True)
class _Runner:
    """The table's problem, to be trained on with one engine after the other."""

    rows: np.ndarray
    targets: np.ndarray
    failure_probability: float
    seed: int
    verbose: bool

    def train(self, engine: Engine, network, max_iter: int, title: str, *callbacks) -> TrainingResult:
        with ExitStack() as stack:
            shown = [stack.enter_context(ProgressBar(title))] if self.verbose else []
            result = train(
                network,
                self.rows,
                self.targets,
                engine=engine,
                learning_rate="auto" if max_iter else 1.0,  # without a step there is nothing to choose a rate for
                max_iter=max_iter,
                tol=0,
                callbacks=[*callbacks, *shown],
            )
        if result.stop_reason == "interrupted":  # half a count says nothing
            raise KeyboardInterrupt
        return result

    def version(self, name: str, network, max_iter: int, title: str) -> tuple[History, list[float]]:
        """The history, and for each iteration the sum of square roots that the paper bounds the calls by."""
        square_roots: list[float] = []

        def look(progress: Progress) -> None:
            active = progress.engine.fire_sets()
            samples, neurons = len(self.rows), progress.network.width
            counts, items = (
                (np.diff(active.indptr), neurons)
                if name == "quantum-weights"
                else (np.bincount(active.indices, minlength=neurons), samples)
            )
            square_roots.append(float(np.sqrt(items * counts.astype(np.float64)).sum()))

        engine = create(name, failure_probability=self.failure_probability, seed=self.seed)
        return self.train(engine, network, max_iter, title, look).history, square_roots


def _scaling(first: ShiftedReLUNetwork, runner: _Runner) -> Scaling:
    """Calls of one pass of both versions, over networks of growing width."""
    widths = sorted({first.width // part for part in _SCALED_DOWN})
    calls: dict[str, list[int]] = {name: [] for name in VERSIONS}
    roots: dict[str, list[float]] = {name: [] for name in VERSIONS}
    for m in widths:
        for name, title in VERSIONS.items():
            network = (
                first.copy()
                if m == first.width
                else ShiftedReLUNetwork.initialize(
                    m, first.n_features, first.n_outputs, seed=runner.seed, dtype=str(first.dtype)
                )
            )
            history, square_roots = runner.version(name, network, 0, f"{title}, {m:,} neurons")
            calls[name].append(int(history.column("oracle_queries")[0]))
            roots[name] += square_roots
    return Scaling(
        widths,
        calls,
        {name: _exponent(widths, calls[name]) for name in VERSIONS},
        roots,
        {name: _exponent(widths, roots[name]) for name in VERSIONS},
    )


def _exponent(x, y) -> float:
    """The slope of log y over log x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(np.maximum(y, 1.0)), 1)[0])


def _resources(network: ShiftedReLUNetwork, rows: np.ndarray, bits: int) -> dict[str, Resources]:
    """Of the arithmetic oracle: neurons looked up for a sample, and samples for the longest neuron."""
    longest = network.weights[np.argmax(row_norms(network.weights))]
    return {
        "quantum-weights": count_resources(FixedPoint.round(network.weights, rows[0], network.threshold, bits)),
        "quantum-data": count_resources(FixedPoint.round(rows, longest, network.threshold, bits)),
    }


def quantum_summary(costs: QuantumCosts) -> dict[str, Any]:
    """What a person reads first; ``to_dict`` has all of it."""
    summary: dict[str, Any] = {
        "rows": costs.rows,
        "coordinates": costs.coordinates,
        "width": costs.width,
        "threshold": costs.threshold,
        "active_fraction": costs.active_fraction,
        "failure_probability": costs.failure_probability,
        "evaluations_of_every_pair": costs.pairs,
        "classical_engine_data_first": costs.data_first_inner_products,
        "classical_engine_data_later": _later(costs.data_inner_products),
    }
    for name, version in VERSIONS.items():
        found, label = costs.versions[name], version.lower().replace(" ", "_")
        summary |= {
            f"{label}_calls_first": found.oracle_calls[0],
            f"{label}_calls_later": _later(found.oracle_calls),
            f"{label}_square_roots": round(found.square_roots[0]),
            f"{label}_missed_pairs": sum(found.missed_pairs),
            f"{label}_exponent_in_width": costs.scaling.exponents[name],
            f"{label}_qubits": found.resources.qubits,
            f"{label}_T_gates_per_call": found.resources.t_count,
            f"{label}_T_gates_with_QRAM": T_PER_TOFFOLI * (found.resources.toffolis - found.resources.lookup_toffolis),
            f"{label}_depth_at_most": found.resources.depth,
        }
    return {**summary, "paper_exponent": PAPER_EXPONENT, "assumes": ASSUMES}


def _later(counts: list[int]) -> int:
    """Mean of an iteration after the first."""
    return round(sum(counts[1:]) / (len(counts) - 1))
