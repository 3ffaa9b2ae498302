"""The page of ``fireset quantum``, as plain data: what ``fireset.reporting`` draws."""

from pathlib import Path

from fireset._util.wording import percent
from fireset.commands.quantum import ASSUMES, PAPER_EXPONENT, VERSIONS, QuantumCosts
from fireset.reporting import write_page
from fireset.reporting.figures import Figure, Section, Series, Table


def write_quantum_page(path: Path, file: Path, costs: QuantumCosts, command: str) -> None:
    """Write the page of the costs on the table ``file``."""
    title = f"Quantum search for active neurons on {file.name}"
    write_page(path, title, quantum_sections(costs), settings={"command": command})


def quantum_sections(costs: QuantumCosts) -> list[Section]:
    """Calls by iteration, growth with the width, circuits, and what is assumed."""
    return [_calls(costs), _growth(costs), _circuits(costs), _assumptions(costs)]


def _answer(costs: QuantumCosts, products: int) -> str:
    """Oracle calls of both versions beside what a classical engine computes, in the last iteration."""
    calls = [f"{title} needs {costs.versions[name].oracle_calls[-1]:,}" for name, title in VERSIONS.items()]
    fewest = min(costs.versions[name].oracle_calls[-1] for name in VERSIONS)
    verdict = "Quantum search needs fewer" if fewest < products else "Quantum search needs no fewer"
    return (
        f"{verdict} evaluations than the classical engine here. In the last iteration {' and '.join(calls)} oracle "
        f"calls; the classical engine data computed {products:,} inner products, of {costs.pairs:,} pairs."
    )


def _calls(costs: QuantumCosts) -> Section:
    iterations = list(range(costs.iterations + 1))
    series = [Series("every pair, m·n", iterations, [costs.pairs] * len(iterations), "dashed")]
    rows = []
    for name, title in VERSIONS.items():
        found = costs.versions[name]
        sums = "Σ √(m k) over samples" if name == "quantum-weights" else "Σ √(n k) over neurons"
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
            f"{costs.rows:,} samples with {costs.coordinates} coordinates, {costs.width:,} neurons, threshold "
            f"{costs.threshold:.3g}: {percent(costs.active_fraction, 2)} of the pairs are active. Version 1 searches "
            "the neurons for each sample in every iteration; Version 2 searches the samples for each neuron once, and "
            "again for those that moved.",
            "A call is one evaluation of the predicate, in superposition or to check what was measured. The failure "
            f"probability of a search is {costs.failure_probability:g}, and knowing that nothing is left is what most "
            f"of the calls go into where few items are marked: {costs.verdict_calls['quantum-weights']:,.0f} calls for "
            f"each search of Version 1, {costs.verdict_calls['quantum-data']:,.0f} for each of Version 2.",
        ],
        [Table(["version", "iteration", "searches", "oracle calls", "square roots", "calls / m·n", "missed"], rows)],
        [
            Figure(
                "Evaluations by iteration",
                "iteration",
                "evaluations of the predicate",
                series,
                "Oracle calls of both versions by iteration, beside the number of all pairs, the sums of square roots "
                "of the paper's bounds, and the inner products of the classical engine.",
                log_y=True,
            )
        ],
    )


def _growth(costs: QuantumCosts) -> Section:
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
            "One pass over freshly drawn networks. The paper's exponent hides logarithms. The share of pairs that fire "
            "is m^(−1/5) divided by a factor that grows as √(ln m), which makes the square roots grow more slowly than "
            "m^0.9; and Version 2 pays for the verdict once for each neuron, whether it fires or not, a term that "
            "grows as m and takes over where neurons fire for few samples.",
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


def _circuits(costs: QuantumCosts) -> Section:
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
            "the bits and added, the sign turned into a phase, everything taken back. Seven T gates for a Toffoli; the "
            "depth is an upper bound with a Toffoli as one layer.",
        ],
        [Table(["", "qubits", "Toffolis", "without look-ups (QRAM)", "T gates", "depth at most"], rows)],
    )


def _assumptions(costs: QuantumCosts) -> Section:
    later = costs.data_inner_products[1:]
    return Section(
        "What is assumed",
        [
            f"Assumed: {ASSUMES}.",
            f"On the same table the classical engine data computed {costs.data_first_inner_products:,} inner products "
            f"in its preprocessing and {sum(later) // len(later):,} in a later iteration, on the machine at hand.",
        ],
    )
