"""``fireset quantum``: the cost of the quantum-classical algorithms on a table (oracle calls, growth, circuits)."""

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.rounding import row_norms
from fireset._util.text import percent
from fireset.engines import Engine, create
from fireset.estimators import PAPER, estimator_for
from fireset.network import ShiftedReLUNetwork
from fireset.quantum.arithmetic import T_PER_TOFFOLI, FixedPoint, Resources, count_resources
from fireset.quantum.search import make_schedule
from fireset.reporting import write_page
from fireset.reporting.figures import Figure, Section, Series, Table
from fireset.tables.problem import TableProblem
from fireset.training.history import History
from fireset.training.loop import train
from fireset.training.progress import Progress, ProgressBar
from fireset.training.result import TrainingResult

VERSIONS = {"quantum-weights": "Version 1", "quantum-data": "Version 2"}
PAPER_EXPONENT = 0.9
_WIDTH_DIVISORS = (16, 8, 4, 2, 1)  # of the requested width, for the growth with m
_MIN_WIDTH = 64
ASSUMPTIONS = (
    "fault-tolerant qubits, and a quantum memory (QRAM) that answers in superposition; neither exists at this "
    "size. Without QRAM a single call reads all points in its look-up circuit, and nothing is gained. Calls are "
    "counted, not seconds: a call on corrected qubits takes far longer than an inner product does here"
)


@dataclass(frozen=True)
class VersionCosts:
    """Costs of one version of the algorithm by iteration."""

    oracle_calls: list[int]  # checks included; preprocessing in the first iteration
    square_roots: list[float]  # Σ_i √(m k_i) or Σ_r √(n k̃_r)
    missed_pairs: list[int]
    searches: list[int]
    resources: Resources  # of one call of the arithmetic oracle


@dataclass(frozen=True)
class WidthScaling:
    """Costs of one pass with new networks of several widths m, on the same rows."""

    widths: list[int]
    oracle_calls: dict[str, list[int]]
    exponents: dict[str, float]
    square_roots: dict[str, list[float]]
    square_root_exponents: dict[str, float]


@dataclass(frozen=True)
class QuantumCosts:
    """Results of ``fireset quantum`` for n rows and m neurons."""

    file: str
    rows: int
    coordinates: int
    width: int
    threshold: float
    active_fraction: float
    iterations: int
    failure_probability: float
    bits: int
    pairs: int  # m·n
    data_inner_products: list[int]  # of the classical engine ``data``, by iteration
    data_first_inner_products: int  # of its preprocessing
    verdict_calls: dict[str, float]  # calls by which a search establishes that no item is left
    versions: dict[str, VersionCosts]
    scaling: WidthScaling

    def to_dict(self) -> dict[str, Any]:
        """Return all results for JSON."""
        return {**asdict(self), "paper_exponent": PAPER_EXPONENT, "assumes": ASSUMPTIONS}


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
    **reading: Any,
) -> QuantumCosts:
    """Count the costs of a few plain gradient steps with both versions and with the classical engine ``data``.

    ``reading`` goes to ``TableProblem.read``. Simulation takes the time and memory of computing all pairs in every
    iteration.
    """
    if iterations < 1:
        raise InputError(f"iterations must be at least 1, got {iterations}")
    if width < _MIN_WIDTH:
        raise InputError(f"width must be at least {_MIN_WIDTH}, got {width}")
    make_schedule(1, failure_probability)  # raises InputError for an invalid probability
    problem = TableProblem.read(file, target, **reading)
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
    """Trains networks on the rows of the table with one engine after the other."""

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
                learning_rate="auto" if max_iter else 1.0,  # unused without a step
                max_iter=max_iter,
                tol=0,
                callbacks=[*callbacks, *shown],
            )
        if result.stop_reason == "interrupted":  # partial counts are useless
            raise KeyboardInterrupt
        return result

    def version(self, name: str, network, max_iter: int, title: str) -> tuple[History, list[float]]:
        """Return the history, and the sum of square roots of each iteration, by which the paper bounds the calls."""
        square_roots: list[float] = []

        def add_square_roots(progress: Progress) -> None:
            active = progress.engine.fire_sets()
            neurons = progress.network.width
            counts, items = (
                (np.diff(active.indptr), neurons)
                if name == "quantum-weights"
                else (np.bincount(active.indices, minlength=neurons), len(self.rows))
            )
            square_roots.append(float(np.sqrt(items * counts.astype(np.float64)).sum()))

        engine = create(name, failure_probability=self.failure_probability, seed=self.seed)
        return self.train(engine, network, max_iter, title, add_square_roots).history, square_roots


def _scaling(first: ShiftedReLUNetwork, runner: _Runner) -> WidthScaling:
    """Count the calls of one pass of both versions for networks of growing width."""
    widths = sorted({first.width // part for part in _WIDTH_DIVISORS})
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
    return WidthScaling(
        widths,
        calls,
        {name: _exponent(widths, calls[name]) for name in VERSIONS},
        roots,
        {name: _exponent(widths, roots[name]) for name in VERSIONS},
    )


def _exponent(x, y) -> float:
    """Return the slope of log y over log x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(np.maximum(y, 1.0)), 1)[0])


def _resources(network: ShiftedReLUNetwork, rows: np.ndarray, bits: int) -> dict[str, Resources]:
    """Return the resources of the oracle: of one row over all neurons, and of the longest neuron over all rows."""
    longest = network.weights[np.argmax(row_norms(network.weights))]
    return {
        "quantum-weights": count_resources(FixedPoint.round(network.weights, rows[0], network.threshold, bits)),
        "quantum-data": count_resources(FixedPoint.round(rows, longest, network.threshold, bits)),
    }


def quantum_summary(costs: QuantumCosts) -> dict[str, Any]:
    """Return the main results for the terminal; ``to_dict`` has all of them."""
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
    return {**summary, "paper_exponent": PAPER_EXPONENT, "assumes": ASSUMPTIONS}


def _later(counts: list[int]) -> int:
    """Return the mean over the iterations after the first."""
    return round(sum(counts[1:]) / (len(counts) - 1))


# The report


def write_quantum_page(path: Path, file: Path, costs: QuantumCosts, command: str) -> None:
    """Write the report of the costs on the table ``file``."""
    title = f"Quantum search for active neurons on {file.name}"
    write_page(path, title, quantum_sections(costs), settings={"command": command})


def quantum_sections(costs: QuantumCosts) -> list[Section]:
    """Return sections on calls by iteration, growth with the width, circuits and assumptions."""
    return [_call_section(costs), _growth_section(costs), _circuit_section(costs), _assumption_section(costs)]


def _answer(costs: QuantumCosts, products: int) -> str:
    """Compare the oracle calls of both versions with the classical engine, in the last iteration."""
    calls = [f"{title} needs {costs.versions[name].oracle_calls[-1]:,}" for name, title in VERSIONS.items()]
    fewest = min(costs.versions[name].oracle_calls[-1] for name in VERSIONS)
    verdict = "Quantum search needs fewer" if fewest < products else "Quantum search needs no fewer"
    return (
        f"{verdict} evaluations than the classical engine here. In the last iteration {' and '.join(calls)} oracle "
        f"calls; the classical engine data computed {products:,} inner products, of {costs.pairs:,} pairs."
    )


def _call_section(costs: QuantumCosts) -> Section:
    iterations = list(range(costs.iterations + 1))
    series = [Series("every pair, m·n", iterations, [costs.pairs] * len(iterations), "dashed")]
    rows = []
    for name, title in VERSIONS.items():
        found = costs.versions[name]
        sums = "Σ √(m k) over rows" if name == "quantum-weights" else "Σ √(n k) over neurons"
        series += [
            Series(f"{title}, oracle calls", iterations, found.oracle_calls),
            Series(f"{title}, {sums}", iterations, found.square_roots, "dashed"),
        ]
        rows += [
            [title, str(k), f"{searches:,}", f"{calls:,}", f"{roots:,.0f}", f"{calls / costs.pairs:.3g}", f"{missed:,}"]
            for k, (searches, calls, roots, missed) in enumerate(
                zip(found.searches, found.oracle_calls, found.square_roots, found.missed_pairs, strict=True)
            )
        ]
    first, *later = costs.data_inner_products
    products = [first + costs.data_first_inner_products, *later]
    series.append(Series("classical engine data, inner products", iterations, products, "points"))
    return Section(
        "Oracle calls by iteration",
        [
            _answer(costs, products[-1]),
            f"{costs.rows:,} rows with {costs.coordinates} coordinates, {costs.width:,} neurons, threshold "
            f"{costs.threshold:.3g}: {percent(costs.active_fraction, 2)} of the pairs are active. Version 1 searches "
            "the neurons for each row in every iteration; Version 2 searches the rows for each neuron once, and "
            "again for those that moved.",
            "A call is one evaluation of the predicate, in superposition or to check a measured item. The failure "
            f"probability of a search is {costs.failure_probability:g}. If few items are marked, most calls establish "
            f"that no item is left: {costs.verdict_calls['quantum-weights']:,.0f} calls for each search of Version 1, "
            f"{costs.verdict_calls['quantum-data']:,.0f} for each of Version 2.",
        ],
        [Table(["version", "iteration", "searches", "oracle calls", "square roots", "calls / m·n", "missed"], rows)],
        [
            Figure(
                "Evaluations by iteration",
                "iteration",
                "evaluations of the predicate",
                series,
                "Oracle calls of both versions by iteration, the number of all pairs, the sums of square roots of the "
                "paper's bounds, and the inner products of the classical engine.",
                log_y=True,
            )
        ],
    )


def _growth_section(costs: QuantumCosts) -> Section:
    scaling = costs.scaling
    series, rows = [], []
    for name, title in VERSIONS.items():
        calls = scaling.oracle_calls[name]
        series += [
            Series(title, scaling.widths, calls, "points"),
            Series(
                f"{title}, as m^{PAPER_EXPONENT:g}",
                scaling.widths,
                [calls[0] * (m / scaling.widths[0]) ** PAPER_EXPONENT for m in scaling.widths],
                "dashed",
            ),
        ]
        rows.append([title, f"{scaling.exponents[name]:.3f}", f"{scaling.square_root_exponents[name]:.3f}"])
    rows.append(["paper", f"{PAPER_EXPONENT:g}", f"{PAPER_EXPONENT:g}"])
    series.append(Series("every pair", scaling.widths, [costs.rows * m for m in scaling.widths], "dashed"))
    return Section(
        "Growth with the width",
        [
            "One pass with new networks. The paper's exponent omits logarithms. The share of active pairs is m^(−1/5) "
            "divided by a factor that grows as √(ln m), which makes the square roots grow more slowly than m^0.9. "
            "Version 2 establishes for each neuron that no row is left, whether it is active or not: this term grows "
            "as m and dominates if neurons are active for few rows.",
        ],
        [Table(["", "exponent of the calls", "exponent of the square roots"], rows)],
        [
            Figure(
                "Oracle calls of one pass",
                "neurons m",
                "oracle calls",
                series,
                f"Oracle calls over the width: Version 1 grows as m^{scaling.exponents['quantum-weights']:.2f}, "
                f"Version 2 as m^{scaling.exponents['quantum-data']:.2f}; the paper has m^{PAPER_EXPONENT:g}.",
                log_x=True,
                log_y=True,
            )
        ],
    )


def _circuit_section(costs: QuantumCosts) -> Section:
    rows = []
    for name, title in VERSIONS.items():
        need = costs.versions[name].resources
        rows.append(
            [
                title,
                f"{need.qubits:,}",
                f"{need.toffolis:,}",
                f"{need.toffolis - need.lookup_toffolis:,}",
                f"{need.t_count:,}",
                f"{need.depth:,}",
            ]
        )
    return Section(
        "The circuit of one oracle call",
        [
            f"⟨w, x⟩ > b in fixed point with {costs.bits} bits a number: points looked up by the index, multiplied by "
            "the bits and added, the sign turned into a phase, everything uncomputed. Seven T gates for a Toffoli; the "
            "depth is an upper bound with a Toffoli as one layer.",
        ],
        [Table(["", "qubits", "Toffolis", "without look-ups (QRAM)", "T gates", "depth at most"], rows)],
    )


def _assumption_section(costs: QuantumCosts) -> Section:
    later = costs.data_inner_products[1:]
    return Section(
        "Assumptions",
        [
            f"Assumed: {ASSUMPTIONS}.",
            f"On the same table the classical engine data computed {costs.data_first_inner_products:,} inner products "
            f"in its preprocessing and {sum(later) // len(later):,} in a later iteration, on the machine at hand.",
        ],
    )
