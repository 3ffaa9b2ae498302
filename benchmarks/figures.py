"""Figures of README and docs, made from the stored results (``make figures``).

A page marks a block by the comments ``<!-- name -->`` and ``<!-- /name -->``. ``fill`` replaces what is between them by
the Markdown that ``BLOCKS[name]`` makes from ``benchmarks/results/``. ``tests/docs/test_figures.py`` compares every
block with the stored results.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import accuracy_report as accuracy
import numpy as np
from bench_scale import resumed_in_words
from space_and_time import space_table
from tabular_peers import OURS

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
ALGORITHMS = {"weights": "Algorithm 1", "data": "Algorithm 2"}
_MARKED = re.compile(r"^<!-- ([\w-]+) -->\n(.*?)^<!-- /\1 -->$", re.DOTALL | re.MULTILINE)
_NOT_MEASURED = "The stored results do not contain this measurement."
_WORST_TABLES = 8  # in the list of tables on which another model is better
_STEP_PEERS = {"PyTorch": "PyTorch", "Jax": "JAX", "BlockedNumPy": "NumPy in blocks"}
_FIT_PEERS = {
    "SVC, SVR": ("SVC", "SVR"),
    "MLP": ("MLP",),
    "HistGradientBoosting": ("HistGradientBoosting",),
    "RandomForest": ("RandomForest",),
}
_FAMILY_COLUMNS = {
    2: ("partition-tree", "cell-tree", "convex-layers"),
    3: ("partition-tree", "cell-tree", "hull-hierarchy"),
    4: ("partition-tree", "cell-tree"),
    6: ("partition-tree", "cell-tree"),
}
_SHORT_KINDS = {"partition-tree": "boxes", "cell-tree": "cells", "convex-layers": "layers", "hull-hierarchy": "hulls"}


@dataclass(frozen=True)
class Results:
    """The stored results of all benchmarks."""

    folder: Path = RESULTS

    def __getitem__(self, name: str) -> Any:
        return json.loads((self.folder / f"{name}.json").read_text())

    @cached_property
    def accuracy_lines(self) -> list[dict]:
        """One entry per table, split and model."""
        files = [self.folder / "accuracy" / f"{name}.jsonl" for name in ("peers", OURS)]
        return [line for file in files for line in accuracy.read_lines(file)]

    def untuned(self, kind: str) -> tuple[accuracy.Section, list[str]]:
        """Tables that no default was tuned on, and the models with results on them."""
        tables, models, _ = accuracy.section(self.accuracy_lines, accuracy.GROUPS["untuned"][1], kind)
        return tables, models


def fill(text: str, results: Results) -> str:
    """Replace every marked block of a page."""
    return _MARKED.sub(lambda found: _block(found[1], results), text)


def marked(text: str) -> list[str]:
    """Names of the marked blocks of a page."""
    return [found[1] for found in _MARKED.finditer(text)]


def without_blocks(text: str) -> str:
    """A page without its marked blocks."""
    return _MARKED.sub("", text)


def write_pages(results: Results) -> None:
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = fill(before, results)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(page)


def _block(name: str, results: Results) -> str:
    try:
        lines = BLOCKS[name](results)
    except FileNotFoundError:
        lines = [_NOT_MEASURED]
    return "\n".join([f"<!-- {name} -->", "", *lines, "", f"<!-- /{name} -->"])


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """A Markdown table, numbers aligned right, the columns ``left`` aligned left."""
    rule = " | ".join("---" if column in left else "---:" for column in range(len(columns)))
    return [f"| {' | '.join(columns)} |", f"| {rule} |", *(f"| {' | '.join(row)} |" for row in rows)]


def _measured(command: str, result: dict, part: str = "") -> str:
    """Command, date and machine of a result, or of one part that was measured later."""
    when = result.get("measured_later", {}).get(part) or f"{result['date']}, {result['machine']}"
    return f"`make {command}`, {when.rstrip('.')}"


def _times(ratio: float) -> str:
    return f"{ratio:.0f} ×" if ratio >= 9.5 else f"{ratio:.1f} ×"


def _listed(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


# Accuracy and fits


def accuracy_ranks(results: Results) -> list[str]:
    """Mean ranks on tables that no default was tuned on, with what limits the comparison."""
    sections = {kind: results.untuned(kind) for kind in ("classification", "regression")}
    models = sections["classification"][1]
    count = sum(len(tables) for tables, _ in sections.values())
    date = max(each["date"] for each in results.accuracy_lines if each["model"] == OURS)
    near, lost = [], []
    for kind, (tables, names) in sections.items():
        ranks = accuracy.mean_ranks(tables, names, "score", larger=True)
        difference = accuracy.critical_difference(len(names), len(tables))
        within = [who for who, (rank, _) in ranks.items() if who != OURS and abs(rank - ranks[OURS][0]) < difference]
        near.append(f"{', '.join(sorted(within, key=lambda who: ranks[who][0])) or 'none'} in {kind}")
        lost += [(kind, *each) for each in _losses(tables, names)]
    losses = accuracy.mean_ranks(sections["classification"][0], models, "log_loss", larger=False)
    best = sorted(losses, key=lambda who: losses[who][0])[:4]
    worst = sorted(lost, key=lambda each: each[3] - each[4][0][1])[:3]
    return [
        f"`make bench-accuracy`, {date}: {len(models)} models at their defaults, {count} real and generated tables "
        "on which no default was tuned.",
        "Mean rank by accuracy or R² (1 is best) ± standard error; sum of fit times (processor time, one thread):",
        "",
        *accuracy.summary(results.accuracy_lines).strip().splitlines(),
        f"Not significantly different from fireset: {'; '.join(near)}.",
        f"By log loss in classification: {', '.join(f'{who} {losses[who][0]:.2f}' for who in best)}. "
        "Largest deficits of fireset to the best model: "
        + "; ".join(
            f"{name.split('/', 2)[2]}, {accuracy.KINDS[kind]} {ours:.2f}, {others[0][0]} {others[0][1]:.2f}"
            for kind, name, _, ours, others in worst
        )
        + ".",
    ]


def _losses(tables: accuracy.Section, models: list[str]) -> list[tuple[str, dict, float, list[tuple[str, float]]]]:
    """Tables on which another model is better: name, a result, score of fireset, better models from the best on."""
    found = []
    for key, one in tables.items():
        scores = {who: float(accuracy.values(one, who, "score").mean()) for who in models}
        better = sorted(((who, s) for who, s in scores.items() if s > scores[OURS]), key=lambda each: -each[1])
        if better:
            found.append((key, next(iter(one[OURS].values())), scores[OURS], better))
    return found


def accuracy_losses(results: Results) -> list[str]:
    """The tables on which another model is better by most."""
    rows = []
    for kind in accuracy.KINDS:
        rows += [(kind, *each) for each in _losses(*results.untuned(kind))]
    rows.sort(key=lambda each: each[3] - each[4][0][1])
    return table(
        ("table", "family", "rows", "columns", "score", "fireset", "better"),
        [
            (
                key.split("/", 2)[2],
                some["family"],
                f"{some['rows']:,}",
                str(some["columns"]),
                accuracy.KINDS[kind],
                f"{ours:.3f}",
                ", ".join(f"{who} {score:.3f}" for who, score in better[:2]),
            )
            for kind, key, some, ours, better in rows[:_WORST_TABLES]
        ],
        left=(0, 1, 4, 6),
    )


def fits(results: Results) -> list[str]:
    """Score and fit time of each table, and geometric means of fit and prediction times beside the peers."""
    stored = results["fit"]
    lines, ratios = [], {}
    for one in stored["sets"]:
        found = one["contenders"]
        chosen = {"fireset": found["fireset"]}
        chosen |= {head: found[name] for head, names in _FIT_PEERS.items() for name in names if name in found}
        best, fastest = max(c["score"] for c in chosen.values()), min(c["seconds"] for c in chosen.values())
        cells = []
        for each in chosen.values():
            score, seconds = f"{each['score']:.3f}", f"{each['seconds']:.2f} s"
            score = f"**{score}**" if each["score"] == best else score
            cells.append(f"{score}, {f'**{seconds}**' if each['seconds'] == fastest else seconds}")
        lines.append((one["set"], f"{one['rows']:,}", *cells))
        for who, each in chosen.items():
            for measure in ("seconds", "predict"):
                ratios.setdefault((who, measure), []).append(found["fireset"][measure] / each[measure])
    means = {key: float(np.exp(np.mean(np.log(values)))) for key, values in ratios.items()}
    said = [
        f"{who} {means[who, 'seconds']:.2f} and {means[who, 'predict']:.2f}"
        for who in _FIT_PEERS
        if (who, "predict") in means
    ]
    return [
        f"{_measured('bench-fit', stored)}: accuracy or R² on a quarter of the rows, and seconds of the fit:",
        "",
        *table(("table", "training rows", "fireset", *_FIT_PEERS), lines),
        "",
        "Times of fireset, of fit and of predict, as multiples of those of a peer (geometric mean over these tables):",
        f"{'; '.join(said)}.",
    ]


# Steps and the layer


def steps(results: Results) -> list[str]:
    """Seconds per gradient step beside dense implementations."""
    stored = results["step"]["cases"]
    newest = max(stored, key=lambda case: case["date"])
    cases = [case for case in stored if case["machine"] == newest["machine"]]  # step.md has the others
    dates = sorted({case["date"] for case in cases})
    measured = {**newest, "date": dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"}
    rows = []
    for case in cases:
        seconds = case["seconds"]
        peers = [_times(case["peers"][who]["ratio"]) if who in case["peers"] else "" for who in _STEP_PEERS]
        rows.append((_case_name(case["case"]), f"{case['active_fraction']:.1%}", f"{seconds:.3f} s", *peers))
    peaks = [case["peak_megabytes"] for case in cases]
    prepared = [case["preprocessing_seconds"] for case in cases]
    counts = sorted({case["iterations"] for case in cases})
    return [
        f"{_measured('bench-step', measured)}: seconds per full-batch gradient",
        f"step of one network in float32, repeated queries included, mean of {_span(counts)} steps; dense "
        "implementations as multiples of it:",
        "",
        *table(("problem", "active pairs", "fireset", *_STEP_PEERS.values()), rows),
        "",
        f"Empty cells were not measured. Peak memory of fireset: {min(peaks) / 1e3:.2f} to {max(peaks) / 1e3:.2f} GB, "
        f"preprocessing: {min(prepared):.1f} to {max(prepared):.1f} s.",
    ]


def _span(counts: Sequence[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _case_name(case: str) -> str:
    """ "random n=1000 d=64 m=100,000" as "random, n = 1,000, d = 64, 100,000 neurons"."""
    sizes = re.sub(r",? ([nd])=([\d,]+)", lambda found: f", {found[1]} = {int(found[2].replace(',', '')):,}", case)
    return re.sub(r",? m=([\d,]+)", r", \1 neurons", sizes)


def sums(results: Results) -> list[str]:
    """Engines data and sums at b = 0 beside dense."""
    stored = results["sums"]
    rows = [row for row in stored["choice"] if row["threshold"] == 0]
    rows.sort(key=lambda row: (row["d"], row["n"]))
    return [
        f"{_measured('bench-sums', stored)}: plain ReLU (b = 0), seconds per step:",
        "",
        *table(
            ("n", "d", "m", "dense", "data", "sums", "dense / data", "dense / sums"),
            [
                (
                    f"{r['n']:,}",
                    str(r["d"]),
                    f"{r['m']:,}",
                    *(f"{r[engine]:.4f}" for engine in ("dense", "data", "sums")),
                    *(_times(r["dense"] / r[engine]) for engine in ("data", "sums")),
                )
                for r in rows
            ],
            left=(),
        ),
    ]


def layers(results: Results) -> list[str]:
    """Steps of the PyTorch layer beside a plain module."""
    stored = results["nn"]
    rows = []
    for row in stored["layers"]:
        ours, plain = row["fireset"], row["plain"]
        rows.append(
            (
                row["case"],
                f"{1e3 * ours['step']:.0f} ms",
                f"{1e3 * plain['step']:.0f} ms",
                _times(plain["step"] / ours["step"]),
                f"{ours['memory'] / 1e6:,.0f} MB",
                f"{plain['memory'] / 1e6:,.0f} MB",
            )
        )
    head = ("case", "`ShiftedReLU`", "plain PyTorch", "ratio", "memory, `ShiftedReLU`", "memory, plain")
    return [f"{_measured('bench-nn', stored)}, time of a step and memory:", "", *table(head, rows)]


def batches(results: Results) -> list[str]:
    """An epoch of batches beside an iteration with all rows."""
    stored = results["nn"]
    rows = []
    for row in stored["batches"]:
        losses = [f"{row['losses'][k]:.2g}" for k in (1, 4, 12) if k < len(row["losses"])]
        rows.append((row["kind"], f"{np.median(row['seconds'][2:]):.2f}", ", ".join(losses)))
    return [
        f"{_measured('bench-nn', stored)}: 50,000 rows, 32 columns, 20,000 neurons:",
        "",
        *table(("", "seconds per epoch", "loss per row after 1, 4 and 12 epochs"), rows),
    ]


def predictions(results: Results) -> list[str]:
    """Predictions of one row and of many."""
    stored = results["predict"]
    return [
        f"{_measured('bench-predict', stored)}. One row of 20 columns, 10,000 neurons:",
        "",
        *table(("", "µs"), [(row["who"], f"{row['microseconds']:.0f}") for row in stored["one row"]]),
        "",
        "100,000 rows of 50 columns, 20,000 neurons:",
        "",
        *table(("", "s"), [(row["who"], f"{row['seconds']:.2f}") for row in stored["many rows"]]),
    ]


def many_rows(results: Results) -> list[str]:
    """Default fits of up to a million rows, and of 50,000 rows with ten classes."""
    stored = results["scale"]
    titles = {
        "regression": ("`make_friedman1(n, 20, noise=1)`, defaults, R² on 20,000 other rows", "R²"),
        "classification": ("50,000 × 50 with 10 classes, defaults, accuracy on 20,000 other rows", "accuracy"),
    }
    lines = []
    for part, (title, score) in titles.items():
        rows = [
            (
                f"{one['rows']:,}",
                one["model"] + (f" ({one['solver']}, {one['width']:,} neurons)" if "solver" in one else ""),
                *(f"{one[key]:.1f}" for key in ("seconds", "processor_seconds")),
                f"{one['gigabytes']:.2f}",
                f"{one['score']:.4f}",
            )
            for one in stored.get(part, [])
        ]
        if rows:
            head = ("rows", "model", "s", "processor s", "peak GB", score)
            lines += [f"{_measured('bench-scale', stored, part)}: {title}:", "", *table(head, rows, left=(1,)), ""]
    return lines[:-1]


def large_files(results: Results) -> list[str]:
    """Training from files within a memory limit."""
    rows = [
        (
            f"{one['rows']:,}",
            one["memory"],
            *(f"{one[key]:.0f} s" for key in ("seconds", "processor_seconds")),
            f"{one['gigabytes']:.2f} GB",
            f"{one['score']:.4f}",
        )
        for one in results["scale"]["file"]
    ]
    head = ("rows", "`--memory`", "time", "processor time", "peak memory", "R²")
    lines = [f"{_measured('bench-scale', results['scale'], 'file')}:", "", *table(head, rows, left=(1,))]
    resumed = [one for one in results["scale"]["file"] if "same_weights" in one]
    return lines + [line for one in resumed for line in ("", resumed_in_words(one))]


def solvers_narrow(results: Results) -> list[str]:
    """Accuracy of Gauss–Newton and of gradient descent for narrow networks."""
    stored = results["solvers"]
    rows = [
        (f"{row['weights_per_target']:g}", f"{row['width']:,}", f"{row['gauss-newton']:.2f}", f"{row['gradient']:.2f}")
        for row in stored["narrow"]
    ]
    return [
        f"{_measured('bench-solvers', stored, 'narrow')}:",
        "",
        *table(("weights per target", "width", "Gauss–Newton", "gradient"), rows, left=()),
    ]


def solvers_centres(results: Results) -> list[str]:
    """Gauss–Newton on all rows and on centres."""
    stored = results["solvers"]
    names = {"regression": "`make_friedman1(n, 20, noise=1)`, R²", "classes": "10 classes of 50 columns, accuracy"}
    rows = []
    for row in stored.get("centres", []):
        cells = [f"{row[s]['processor_seconds']:.1f} s, {row[s]['score']:.4f}" for s in ("gauss-newton", "nystrom")]
        rows.append((names[row["task"]], f"{row['rows']:,}", *cells))
    if not rows:
        return [_NOT_MEASURED]
    return [
        f"{_measured('bench-solvers', stored, 'centres')}: processor seconds of a fit, and score on 20,000 other rows:",
        "",
        *table(("problem", "rows", "Gauss–Newton", "centres"), rows),
    ]


# The index


def index_queries(results: Results) -> list[str]:
    """Batches of queries beside faiss and NumPy."""
    stored = results["index"]
    rows = []
    for case in stored["queries"]:
        us = case["microseconds"]
        sphere = case.get("on the sphere")
        peers = [(us["faiss range_search"], "faiss_over_auto"), (us["NumPy scan"], "numpy_over_auto")]
        rows.append(
            (
                f"{case['n']:,}",
                str(case["d"]),
                f"{case['found']:,.0f}",
                case["auto"],
                f"{us['auto']:.1f}",
                f"{us['auto, any order']:.1f}",
                *(f"{value:,.0f} ({_times(case[ratio])})" for value, ratio in peers),
                f"{sphere['BallTree']:,.0f}" if sphere else "",
            )
        )
    head = ("n", "d", "found", "kind chosen by `auto`", "`auto`", "unordered", "faiss `range_search`", "NumPy scan")
    return [
        f"{_measured('bench-index', stored, 'queries')}: batches of 500 queries with b = √(0.4 ln n),",
        "Gaussian points in float32, all exact, µs per query:",
        "",
        *table((*head, "BallTree, unit vectors"), rows, left=(3,)),
    ]


def index_changes(results: Results) -> list[str]:
    """Builds, changes and comparisons with brute force."""
    stored = results["index"]
    ratios = [row["ratio"] for row in stored["builds"]]
    shares = [100 * row["replacing_share_of_build"] for row in stored["changes"]]
    tests = [row["tests_after_over_before"] for row in stored["changes"]]
    exact = stored["exact"]
    return [
        f"Building a partition tree takes {min(ratios):.2f} to {max(ratios):.2f} times as long as building scipy's "
        f"cKDTree. Replacing 1 % of the points takes {min(shares):.0f}",
        f"to {max(shares):.0f} % of the time of a build, and queries then test {min(tests):.2f} to {max(tests):.2f} "
        "times as many points.",
        f"{sum(row['queries'] for row in exact):,} queries in float64 of {len(exact)} kinds, with thresholds on and "
        f"between points, found {sum(row['found'] for row in exact):,} points, with",
        f"{sum(row['differences'] for row in exact)} differences from brute force "
        f"({_measured('bench-index', stored, 'builds')}).",
    ]


def index_top(results: Results) -> list[str]:
    """The k largest inner products beside faiss and usearch."""
    stored = results["index"]
    names = ("partition-tree", "scan", "faiss", "usearch exact")
    rows = [
        (f"{row['n']:,}", str(row["d"]), str(row["k"]), *(f"{row[name]:,.1f}" if name in row else "" for name in names))
        for row in stored.get("top", [])
    ]
    if not rows:
        return [_NOT_MEASURED]
    return [
        f"{_measured('bench-index', stored, 'top')}: the k largest of n Gaussian points in float32,",
        "500 normals at a time, µs per normal, all exact (`IndexFlatIP.search`; `search(exact=True)` of usearch):",
        "",
        *table(("n", "d", "k", *names), rows, left=()),
    ]


def index_one(results: Results) -> list[str]:
    """Single queries beside NumPy."""
    stored = results["index"]
    rows = [
        (
            f"{row['n']:,}",
            str(row["d"]),
            row["dtype"],
            row["auto is"],
            *(f"{row[name]:,.1f}" for name in ("NumPy", "scan", "auto")),
        )
        for row in stored.get("one", [])
    ]
    if not rows:
        return [_NOT_MEASURED]
    return [
        f"{_measured('bench-index', stored, 'one')}, µs:",
        "",
        *table(("n", "d", "", "kind chosen by `auto`", "NumPy", "`scan`", "`auto`"), rows, left=(2, 3)),
    ]


def index_families(results: Results) -> list[str]:
    """Growth of the tested points on families of points that are hard for an index."""
    stored = results["index"]
    found = {(row["family"], row["d"], row["kind"]): row for row in stored["families"]}
    columns = [(d, kind) for d, kinds in _FAMILY_COLUMNS.items() for kind in kinds]

    def cell(family: str, d: int, kind: str) -> str:
        row = found.get((family, d, kind))
        if row is None or "refused" in row:
            return "refused" if row else ""
        exponent = f"{row['exponents'][0]:.2f}".replace("-0.00", "0.00").replace("-", "−")
        return f"{exponent} ({row['tested'][-1]:,.0f})"

    rows = [(name, *(cell(name, d, kind) for d, kind in columns)) for name in dict.fromkeys(key[0] for key in found)]
    return table(("family", *(f"d = {d}, {_SHORT_KINDS[kind]}" for d, kind in columns)), rows)


def index_space(results: Results) -> list[str]:
    """Space and query time of cell trees by their number of directions."""
    return [f"{_measured('bench-index', results['index'], 'space')}:", "", *space_table(results["index"]["space"])]


# Theory, quantum, memory


def exponents(results: Results) -> list[str]:
    """Exponents in m of the cost of an iteration, n = 10, d = 3."""
    own = {
        (row["engine"], row["radius"]): row["fits"]
        for row in results["theory"]["costs"]
        if row["n"] == 10 and row["d"] == 3
    }

    def fit(engine: str, name: str) -> str:
        found = own[engine, "auto"][name]
        return f"{found['exponent']:.2f} ± {found['half_interval']:.2f}"

    times = ", of ".join(f"{label} {fit(engine, 'processor_ms')}" for engine, label in ALGORITHMS.items())
    return [
        f"{_measured('bench-theory', results['theory'], 'costs')}: exponents e of the cost mᵉ of an iteration "
        "with m neurons, n = 10, d = 3, "
        "m = 10⁴ … 10⁶ ([the paper](docs/paper-map.md#cost-of-an-iteration) has 0.8): "
        f"active pairs {fit('data', 'active')}, processor time of {times} "
        "(half-space search over the weights and over the rows).",
    ]


def costs(results: Results) -> list[str]:
    """Cost of an iteration of Algorithms 1 and 2 for n = 10."""
    m = 1_000_000
    own = [row for row in results["theory"]["costs"] if row["n"] == 10 and row["cells"][-1]["m"] == m]
    dense = {row["d"]: row["cells"][-1]["processor_ms"] for row in own if row["engine"] == "dense"}
    rows = []
    for row in own:
        if row["engine"] != "dense":
            cells = cost_cells(row, [m])
            rows.append([*cells[:5], *cells[6:10], f"{dense[row['d']]:,.0f}"])
    head = ("algorithm", "radius", "d", "index", "active", "queried", "updated", "time", "ms", "ms, dense")
    return table(head, rows, left=(0, 1))


def cost_cells(row: dict, shown: list[int]) -> list[str]:
    """Cells of one combination of algorithm, radius, d and n: exponents, and milliseconds at the widths ``shown``."""
    exponents, paper = row["fits"], row["paper"]

    def fit(name: str, term: str | None = None) -> str:
        if name not in exponents:  # not counted, or 0 in some iteration
            return ""
        text = f"{exponents[name]['exponent']:.2f} ± {exponents[name]['half_interval']:.2f}"
        return f"{text} ({paper[term]:.2f})" if term else text

    cells = {cell["m"]: cell for cell in row["cells"]}
    times = [f"{cells[m]['processor_ms']:,.1f}" if m in cells else "" for m in shown]
    index = row["cells"][-1]["index"] or ""
    live = f"{row['cells'][-1]['live'] / row['cells'][-1]['m']:.1%}" if row["engine"] != "dense" else ""
    named = [ALGORITHMS.get(row["engine"], "dense"), "" if row["radius"] is None else str(row["radius"]), str(row["d"])]
    terms = {"active": "gradient", "tested": None, "queried": "queries", "updated": "updates"}
    return [*named, index, *(fit(name, term) for name, term in terms.items()), fit("processor_ms"), *times, live]


def quantum_misses(results: Results) -> list[str]:
    """Searches that missed an item, and the formula."""
    stored = results["quantum"]
    rows = []
    for row in stored["failures"]:
        missed = list(row["missed_0_1_2_3"])
        while missed[-1] == 0:
            missed.pop()
        rates = (f"{row[key]:.4f}" for key in ("rate", "rate_by_the_formula"))
        rows.append((f"{row['N']:,}", f"{row['k']:,}", *rates, ", ".join(map(str, missed))))
    head = ("N", "k", "missed an item", "by the formula", "searches that missed none, one, two, three")
    return [
        f"{_measured('bench-quantum', stored, 'failures')}, δ = 0.05,",
        f"{stored['failures'][0]['searches']:,} searches each:",
        "",
        *table(head, rows, left=(4,)),
    ]


def quantum_calls(results: Results) -> list[str]:
    """Oracle calls of an iteration, beside the pairs and the inner products of the engine data."""
    stored = results["quantum"]
    by_width: dict[int, dict[str, dict]] = {}
    for row in stored["engines"]:
        by_width.setdefault(row["width"], {})[row["engine"]] = row
    names = ("quantum-weights", "quantum-data", "data")
    rows = []
    for m, found in by_width.items():
        pairs = found["quantum-weights"]["pairs"]
        rows.append((f"{m:,}", f"{pairs:,}", *(f"{found[name]['later']:,.0f}" for name in names)))
        rows[-1] += tuple(f"{found[name]['later'] / pairs:.2f}" for name in names)
    head = ("neurons m", "m·n", "Version 1", "Version 2", "`data`")
    return [
        f"{_measured('bench-quantum', stored, 'engines')}; the last three columns are shares of m·n:",
        "",
        *table((*head, "Version 1, share", "Version 2, share", "`data`, share"), rows, left=()),
    ]


def quantum_circuits(results: Results) -> list[str]:
    """Resources of one call of the arithmetic oracle."""
    names = ("points", "d", "bits", "qubits", "toffolis", "without_lookups", "t_count", "depth_at_most")
    head = ("points", "d", "bits", "qubits", "Toffolis", "arithmetic part", "T gates", "depth at most")
    return table(head, [[f"{row[name]:,}" for name in names] for row in results["quantum"]["oracle"]], left=())


def blocks(results: Results) -> list[str]:
    """Processor time of an iteration with candidate lists, in blocks, and dense."""
    stored = results["distributed"]
    seconds: dict[tuple[int, int, int], dict[str, float]] = {}
    for row in stored["blocks"]:
        seconds.setdefault((row["n"], row["d"], row["m"]), {})[row["engine"]] = row["cpu_seconds"]
    names = ("data", "8 blocks", "dense")
    return [
        f"{_measured('bench-distributed', stored, 'blocks')}",
        "Processor seconds of an iteration, float32, random rows:",
        "",
        *table(
            ("n", "d", "m", "lists kept", *names[1:]),
            [[*(f"{size:,}" for size in key), *(f"{one[name]:.2f}" for name in names)] for key, one in seconds.items()],
            left=(),
        ),
    ]


def memory(results: Results) -> list[str]:
    """Peak memory beside its estimate, over random problems."""
    rows = []
    found = results["memory"]
    for engine in (*sorted({one["engine"] for one in found}), "all"):
        some = [one for one in found if engine in (one["engine"], "all")]
        ratios = [one["estimate"] / one["peak"] for one in some]
        large = [one["estimate"] / one["peak"] for one in some if one["peak"] > 1e8]
        whole = [(one["before"] + one["estimate"]) / (one["before"] + one["peak"]) for one in some]
        cells = [f"{np.median(values):.2f}" if values else "" for values in (ratios, large, whole)]
        rows.append((engine, str(len(some)), str(sum(ratio < 1 for ratio in ratios)), *cells))
    head = ("engine", "problems", "above the estimate", "estimate / peak", "for peaks above 100 MB", "whole process")
    return table(head, rows)


BLOCKS: dict[str, Callable[[Results], list[str]]] = {
    "accuracy": accuracy_ranks,
    "accuracy-losses": accuracy_losses,
    "fit": fits,
    "step": steps,
    "sums": sums,
    "nn": layers,
    "nn-batches": batches,
    "predict": predictions,
    "scale": many_rows,
    "large-files": large_files,
    "solvers-narrow": solvers_narrow,
    "solvers-centres": solvers_centres,
    "index-queries": index_queries,
    "index-changes": index_changes,
    "index-top": index_top,
    "index-one": index_one,
    "index-families": index_families,
    "index-space": index_space,
    "costs": costs,
    "exponents": exponents,
    "quantum-misses": quantum_misses,
    "quantum-calls": quantum_calls,
    "quantum-circuits": quantum_circuits,
    "memory": memory,
    "blocks": blocks,
}
