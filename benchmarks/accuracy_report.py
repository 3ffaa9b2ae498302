"""Statistics and pages of the accuracy benchmark, from the results that ``bench_accuracy.py`` has stored.

Ranks use the splits of a table that all models have. A table that a model has no result for is left out, and so is a
model without results on most tables; the report names both.
"""

import json
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.stats import friedmanchisquare, rankdata, studentized_range
from tabular_peers import MODELS, OURS

Results = dict[tuple[str, int, str], dict]
Section = dict[str, dict[str, dict[int, dict]]]  # table -> model -> split -> result

KINDS = {"regression": "R²", "classification": "accuracy"}
GROUPS = {
    "untuned": ("Tables that no default was tuned on", ("real", "generated")),
    "real": ("Real tables that no default was tuned on", ("real",)),
    "generated": ("Generated tables that no default was tuned on", ("generated",)),
    "tuned": ("Tables seen during development", ("tuned",)),
}
PROBABILITIES = {"log_loss": "log loss", "brier": "Brier score", "calibration_error": "calibration error"}
MIN_SHARE_OF_TABLES = 0.9  # a model with results on fewer tables of a section is left out of its ranks


def read_lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines() if line] if file.exists() else []


def section(lines: list[dict], groups: tuple[str, ...], kind: str) -> tuple[Section, list[str], list[str]]:
    """Results of some groups and one kind, reduced to splits that all models have.

    Returns
    -------
    tables : dict
        Table, then model, then split.
    models : list of str
    left_out : list of str
        Models and tables without all results.
    """
    found: Section = defaultdict(lambda: defaultdict(dict))
    for each in lines:
        group, its_kind, _ = each["table"].split("/", 2)
        if group in groups and its_kind == kind:
            found[each["table"]][each["model"]][each["split"]] = each
    counts = {model: sum(model in table for table in found.values()) for model in MODELS}
    models = [model for model in MODELS if counts[model] > 0 and counts[model] >= MIN_SHARE_OF_TABLES * len(found)]
    left_out = [f"{model} ({counts[model]} of {len(found)} tables)" for model in MODELS if model not in models]
    tables: Section = {}
    for key, table in found.items():
        common = set.intersection(*(set(table.get(model, {})) for model in models)) if models else set()
        if common:
            tables[key] = {model: {split: table[model][split] for split in sorted(common)} for model in models}
        else:
            left_out.append(key)
    return tables, models, left_out


def values(table: dict[str, dict[int, dict]], model: str, measure: str) -> np.ndarray:
    return np.array([each[measure] for each in table[model].values()])


def mean_ranks(tables: Section, models: list[str], measure: str, *, larger: bool) -> dict[str, tuple[float, float]]:
    """Mean over tables of each model's mean rank over splits, and its standard error over tables."""
    models = [model for model in models if all(measure in r for t in tables.values() for r in t[model].values())]
    ranks = rank_matrix(tables, models, measure, larger=larger)
    errors = ranks.std(axis=0, ddof=1) / np.sqrt(len(ranks)) if len(ranks) > 1 else np.zeros(len(models))
    return {who: (float(m), float(e)) for who, m, e in zip(models, ranks.mean(axis=0), errors, strict=True)}


def rank_matrix(tables: Section, models: list[str], measure: str, *, larger: bool) -> np.ndarray:
    """Ranks of shape (tables, models), each the mean over the splits of a table."""
    rows = []
    for table in tables.values():
        found = np.array([values(table, model, measure) for model in models])
        rows.append(rankdata(-found if larger else found, axis=0).mean(axis=1))
    return np.array(rows)


def critical_difference(models: int, tables: int) -> float:
    """Critical difference of mean ranks at 5 % (Nemenyi's test; Demšar, JMLR 2006)."""
    q = studentized_range.ppf(0.95, models, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(models * (models + 1) / (6 * tables)))


def friedman(tables: Section, models: list[str]) -> float:
    """P-value of Friedman's test that all models have the same mean rank."""
    if len(models) < 3 or len(tables) < 2:
        return float("nan")
    return float(friedmanchisquare(*rank_matrix(tables, models, "score", larger=True).T).pvalue)


def wins(tables: Section, peer: str) -> tuple[int, int, int]:
    """Tables on which the mean score of fireset is larger than, equal to and smaller than a peer's."""
    gaps = [float(np.mean(values(t, OURS, "score") - values(t, peer, "score"))) for t in tables.values()]
    return sum(g > 1e-9 for g in gaps), sum(abs(g) <= 1e-9 for g in gaps), sum(g < -1e-9 for g in gaps)


def seconds(tables: Section, model: str, measure: str) -> tuple[float, float]:
    """Sum and geometric mean over tables of the mean time over splits. The clock's resolution is 0.01 s."""
    means = np.array([np.mean(values(table, model, measure)) for table in tables.values()])
    return float(means.sum()), float(np.exp(np.log(np.maximum(means, 0.005)).mean()))


def compare_versions(now: list[dict], before: list[dict]) -> list[dict]:
    """Mean paired difference of the score of each table, and the standard errors it is judged by.

    ``error`` is the larger of the standard error over splits of the paired difference and the standard error of the
    score over the test rows. A table is worse if it loses more than that.
    """
    earlier = {(each["table"], each["split"]): each for each in before}
    pairs = defaultdict(list)
    for each in now:
        if (each["table"], each["split"]) in earlier:
            pairs[each["table"]].append((earlier[each["table"], each["split"]], each))
    found = []
    for table, both in sorted(pairs.items()):
        gaps = np.array([new["score"] - old["score"] for old, new in both])
        paired = gaps.std(ddof=1) / np.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
        rows = np.sqrt(np.mean([old["score_error"] ** 2 for old, _ in both]) / len(both))
        found.append(
            {
                "table": table,
                "before": float(np.mean([old["score"] for old, _ in both])),
                "now": float(np.mean([new["score"] for _, new in both])),
                "difference": float(gaps.mean()),
                "paired_error": float(paired),
                "error": float(max(paired, rows)),
                "worse": bool(gaps.mean() < -max(paired, rows)),
            }
        )
    return found


def diagram(ranks: dict[str, tuple[float, float]], difference: float, title: str) -> str:
    """Draw mean ranks on a line, with standard errors and the critical difference, as SVG."""
    k = len(ranks)
    left, right, height = 120, 640, 70 + 26 * k

    def place(rank: float) -> float:
        return round(left + (right - left) * (rank - 1) / (k - 1), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 {height}" font-family="sans-serif" font-size="14">',
        f'<rect width="820" height="{height}" fill="white"/><text x="410" y="20" text-anchor="middle">{title}</text>',
        f'<line x1="{left}" x2="{right}" y1="50" y2="50" stroke="black"/>',
    ]
    for rank in range(1, k + 1):
        x = place(rank)
        parts.append(f'<line x1="{x}" x2="{x}" y1="45" y2="55" stroke="black"/>')
        parts.append(f'<text x="{x}" y="40" text-anchor="middle">{rank}</text>')
    for row, (who, (mean, error)) in enumerate(_sorted(ranks)):
        x, y = place(mean), 80 + 26 * row
        shade = "#c0392b" if who == OURS else "#34495e"
        parts.append(f'<line x1="{x}" x2="{x}" y1="50" y2="{y - 5}" stroke="{shade}" stroke-dasharray="2 3"/>')
        parts.append(f'<circle cx="{x}" cy="{y - 5}" r="4" fill="{shade}"/>')
        x0, x1 = place(mean - error), place(mean + error)
        parts.append(f'<line x1="{x0}" x2="{x1}" y1="{y - 5}" y2="{y - 5}" stroke="{shade}" stroke-width="2"/>')
        parts.append(f'<text x="{x1 + 8}" y="{y}" fill="{shade}">{who} {mean:.2f}</text>')
    width = place(1 + difference) - place(1)
    parts.append(f'<line x1="{left}" x2="{left + width}" y1="62" y2="62" stroke="#888" stroke-width="3"/>')
    parts.append(f'<text x="{left - 8}" y="66" text-anchor="end" fill="#666">CD {difference:.2f}</text></svg>')
    return "\n".join(parts)


def _sorted(ranks: dict[str, tuple[float, float]]) -> list[tuple[str, tuple[float, float]]]:
    return sorted(ranks.items(), key=lambda item: item[1][0])


def _bold(who: str) -> str:
    return f"**{who}**" if who == OURS else who


def rank_table(tables: Section, models: list[str]) -> list[str]:
    """Mean ranks, wins, and times, as lines of Markdown."""
    ranks = mean_ranks(tables, models, "score", larger=True)
    lines = [
        "| model | mean rank | ± | fireset better, equal, worse | fit, s, sum | geometric mean | predict, s, sum |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for who, (mean, error) in _sorted(ranks):
        fit, typical = seconds(tables, who, "fit")
        predict, _ = seconds(tables, who, "predict")
        against = "" if who == OURS or OURS not in models else ", ".join(map(str, wins(tables, who)))
        lines.append(
            f"| {_bold(who)} | {mean:.2f} | {error:.2f} | {against} | {fit:.1f} | {typical:.2f} | {predict:.2f} |"
        )
    return lines


def probability_table(tables: Section, models: list[str]) -> list[str]:
    """Mean rank and mean of each measure of probabilities."""
    ranks = {measure: mean_ranks(tables, models, measure, larger=False) for measure in PROBABILITIES}
    names = [name for measure in PROBABILITIES.values() for name in (f"rank, {measure}", f"{measure}")]
    lines = [f"| model | {' | '.join(names)} |", "| --- |" + " ---: |" * len(names)]
    for who, _ in _sorted(ranks["log_loss"]):
        cells = []
        for measure, found in ranks.items():
            mean = np.mean([values(table, who, measure).mean() for table in tables.values()])
            cells += [f"{found[who][0]:.2f} ± {found[who][1]:.2f}", f"{mean:.3f}"]
        lines.append(f"| {_bold(who)} | {' | '.join(cells)} |")
    return lines


def family_table(tables: Section, models: list[str]) -> list[str]:
    """Mean ranks within each family."""
    families: dict[str, Section] = defaultdict(dict)
    for key, table in tables.items():
        families[next(iter(table[models[0]].values()))["family"]][key] = table
    lines = [f"| family | tables | {' | '.join(models)} |", "| --- | ---: |" + " ---: |" * len(models)]
    for family, some in sorted(families.items()):
        ranks = mean_ranks(some, models, "score", larger=True)
        best = min(mean for mean, _ in ranks.values())
        cells = [f"**{ranks[who][0]:.1f}**" if ranks[who][0] == best else f"{ranks[who][0]:.1f}" for who in models]
        lines.append(f"| {family} | {len(some)} | {' | '.join(cells)} |")
    return lines


def score_table(tables: Section, models: list[str]) -> list[str]:
    lines = [
        f"| table | rows | columns | splits | {' | '.join(models)} |",
        "| --- | ---: | ---: | ---: |" + " ---: |" * len(models),
    ]
    for key, table in tables.items():
        some = next(iter(table[models[0]].values()))
        scores = [values(table, model, "score").mean() for model in models]
        cells = [f"**{score:.4f}**" if score == max(scores) else f"{score:.4f}" for score in scores]
        splits = len(table[models[0]])
        name = key.split("/", 2)[2]
        lines.append(f"| {name} | {some['rows']:,} | {some['columns']} | {splits} | {' | '.join(cells)} |")
    return lines


def section_lines(lines: list[dict], groups: tuple[str, ...], kind: str, *, details: bool) -> list[str]:
    """All statistics of one section; nothing if it has no tables."""
    tables, models, left_out = section(lines, groups, kind)
    if len(tables) < 2 or len(models) < 2:
        return []
    difference = critical_difference(len(models), len(tables))
    found = [f"### {kind.capitalize()}: {len(tables)} tables, {len(models)} models, by {KINDS[kind]}", ""]
    found += rank_table(tables, models)
    said = f"Critical difference of mean ranks (Nemenyi's test, 5 %): {difference:.2f} (Nemenyi); Friedman's test: "
    found += ["", f"{said}p = {friedman(tables, models):.1g}."]
    if left_out:
        found += ["", f"Left out for missing results: {', '.join(left_out)}."]
    if kind == "classification":
        found += ["", *probability_table(tables, models)]
    if details:
        found += ["", "Mean ranks by family:", "", *family_table(tables, models)]
        found += ["", f"{KINDS[kind]}, mean over splits:", "", *score_table(tables, models)]
    return [*found, ""]


def version_lines(compared: list[dict]) -> list[str]:
    """The comparison with the version before: what lost, and what gained, more than a standard error."""
    worse = [each for each in compared if each["worse"]]
    better = [each for each in compared if each["difference"] > each["error"]]
    mean = np.mean([each["difference"] for each in compared])
    lines = [
        "## fireset against the version before",
        "",
        f"{len(compared)} tables, paired by split: {len(better)} gain and {len(worse)} lose more than one standard "
        f"error; mean difference {mean:+.4f}. The standard error is the larger of that of the paired difference over "
        "splits and that of the score over test rows.",
        "",
    ]
    if better or worse:
        lines += ["| table | before | now | difference | standard error |", "| --- | ---: | ---: | ---: | ---: |"]
        for each in sorted(worse + better, key=lambda one: one["difference"]):
            cells = (f"{each[name]:.4f}" for name in ("before", "now", "difference", "error"))
            lines.append(f"| {each['table']} | {' | '.join(cells)} |")
        lines.append("")
    return lines


def forecast_line(lines: list[dict]) -> str:
    """Describe the differences between the forecasts of fireset and its test scores, on tables not tuned on."""
    ours = [each for each in lines if each["model"] == OURS and "forecast" in each]
    parts = []
    for kind, name in (("classification", "accuracy"), ("regression", "R²")):
        of_table: dict[str, list[float]] = {}
        for each in ours:
            if each["table"].split("/")[0] in GROUPS["untuned"][1] and each["table"].split("/")[1] == kind:
                of_table.setdefault(each["table"], []).append(each["forecast"] - each["score"])
        if not of_table:
            continue
        means = {table: float(np.mean(found)) for table, found in of_table.items()}
        gaps = np.array(list(means.values()))
        worst = max(means, key=lambda table: abs(means[table]))
        parts.append(
            f"{name} of {len(gaps)} tables: median absolute difference {np.median(np.abs(gaps)):.3f}, mean difference "
            f"{gaps.mean():+.3f}, worst {means[worst]:+.3f} ({worst.split('/', 2)[2]})"
        )
    return f"Forecast before training minus test score, {'; '.join(parts)}.\n" if parts else ""


def summary(lines: list[dict]) -> str:
    """The table for the README and the documentation: ranks and times on tables that no default was tuned on."""
    columns, notes, order = {}, [], []
    for kind in ("classification", "regression"):
        tables, models, _ = section(lines, GROUPS["untuned"][1], kind)
        if len(tables) < 2 or len(models) < 2:
            continue
        ranks = mean_ranks(tables, models, "score", larger=True)
        best = min(mean for mean, _ in ranks.values())
        for who, (mean, error) in ranks.items():
            rank = f"**{mean:.2f}**" if mean == best else f"{mean:.2f}"
            columns.setdefault(who, {})[kind] = f"{rank} ± {error:.2f} | {seconds(tables, who, 'fit')[0]:.0f}"
        order += [] if order else [who for who, _ in _sorted(ranks)]
        name = f"{kind}, {len(tables)} tables"
        notes.append((kind, name, critical_difference(len(models), len(tables))))
    kinds = [kind for kind, _, _ in notes]
    found = [
        "| | " + " | ".join(f"{name} | fit, s" for _, name, _ in notes) + " |",
        "| --- |" + " ---: | ---: |" * len(notes),
    ]
    rows = [*order, *(each for each in columns if each not in order)]
    found += [f"| {_bold(who)} | " + " | ".join(columns[who].get(kind, "| ") for kind in kinds) + " |" for who in rows]
    said = " and ".join(f"{difference:.2f} in {kind}" for kind, _, difference in notes)
    found += ["", f"Critical difference of mean ranks (Nemenyi's test, 5 %): {said}."]
    return "\n".join(found) + "\n"


def report(lines: list[dict], before: list[dict]) -> str:
    """The whole report."""
    dates = sorted({each["date"] for each in lines if each["model"] == OURS})
    peers = sorted({each["date"] for each in lines if each["model"] != OURS})
    versions = sorted({f"{each['model']} {each['version']}" for each in lines})
    found = [
        f"# Accuracy at the defaults, {dates[-1] if dates else time.strftime('%Y-%m-%d')}",
        "",
        f"Versions: {', '.join(versions)}. Peers were run on {', '.join(peers)}.",
        "",
        "A quarter of the rows is held out, at most 5,000 rows are for training. Categories are given to each model in "
        "its own way. Ranks are of the score in each table and split (1 is best), their mean over tables and its "
        "standard error. Times are process times in seconds (sum over threads) with one thread, on a machine with two "
        "cores; sums are over tables, of the mean over splits.",
        "",
    ]
    for name, (title, groups) in GROUPS.items():
        parts = [section_lines(lines, groups, kind, details=name in ("untuned", "tuned")) for kind in KINDS]
        if any(parts):
            found += [f"## {title}", "", *parts[0], *parts[1]]
    compared = compare_versions([each for each in lines if each["model"] == OURS], before)
    if compared:
        found += version_lines(compared)
    return "\n".join(found).rstrip() + "\n"


def write_report(folder: Path, results: Path, label: str = OURS) -> None:
    """Write ``accuracy.md``, its summary, the error of the forecasts and the two diagrams from the stored results."""
    lines = read_lines(folder / "peers.jsonl") + read_lines(folder / f"{label}.jsonl")
    before = read_lines(folder / "before.jsonl") if label != "before" else []
    if not lines:
        print("There are no results.")
        return
    (results / "accuracy.md").write_text(report(lines, before))
    (results / "accuracy-summary.md").write_text(summary(lines))
    (results / "accuracy-forecast.md").write_text(forecast_line(lines))
    for kind in KINDS:
        tables, models, _ = section(lines, GROUPS["untuned"][1], kind)
        if len(tables) > 1 and len(models) > 1:
            ranks = mean_ranks(tables, models, "score", larger=True)
            difference = critical_difference(len(models), len(tables))
            picture = diagram(ranks, difference, f"Mean rank, {kind}, tables not tuned on")
            (results / f"accuracy-{kind}.svg").write_text(picture)
    print(summary(lines))
    print(
        "\n".join(version_lines(compare_versions([e for e in lines if e["model"] == OURS], before)) if before else [])
    )
