"""Who predicts best at the defaults: mean ranks over many tables, five splits each, beside scikit-learn's estimators.

    make bench-accuracy

A quarter of the rows is held out in each split. Ranks are of the score (accuracy, R²) in each table and split, their
mean over tables, with the standard error over tables. Classifiers that give probabilities are compared by log loss,
Brier score and expected calibration error, too.
"""

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))

import numpy as np
from scipy.stats import rankdata, studentized_range
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

sys.path.insert(0, str(Path(__file__).parent))
from bench_fit import contenders
from parts import RESULTS, machine
from table_families import CLASSIFICATION, REGRESSION

SPLITS = 5
OURS = "fireset"


def run_table(name: str, load, classes: bool, splits: int) -> dict:
    X, y = load()
    few = np.arange(len(X))[:: -(-len(X) // 200)]
    for maker in contenders(classes).values():  # kernels are compiled, or read, before the clock runs
        maker().fit(X[few], y[few])
    found: dict[str, dict[str, list[float]]] = {}
    for split in range(splits):
        strata = y if classes else None
        X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=split, stratify=strata)
        if not classes:
            mean, spread = y_train.mean(), y_train.std()
            y_train, y_test = (y_train - mean) / spread, (y_test - mean) / spread
        for who, maker in contenders(classes).items():
            if "gradient" in who:
                continue
            model = maker()
            begun = time.perf_counter()
            model.fit(X_train, y_train)
            fitted = time.perf_counter()
            score = float(model.score(X_test, y_test))
            entry = found.setdefault(who, {"score": [], "fit": [], "predict": []})
            entry["score"].append(score)
            entry["fit"].append(fitted - begun)
            entry["predict"].append(time.perf_counter() - fitted)
            if classes and who != "SVC":  # SVC gives no probabilities at its defaults
                for measure, value in probability_scores(model, X_test, y_test).items():
                    entry.setdefault(measure, []).append(value)
    return {"table": name, "rows": len(X), "columns": X.shape[1], "classes": classes, "contenders": found}


def probability_scores(model, X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    p = model.predict_proba(X)
    p = np.clip(p, 1e-7, 1.0)
    p /= p.sum(axis=1, keepdims=True)
    codes = np.searchsorted(model.classes_, y)
    one_hot = np.eye(p.shape[1])[codes]
    sure, right = p.max(axis=1), p.argmax(axis=1) == codes
    bins = np.minimum((sure * 10).astype(int), 9)
    gaps = [abs(sure[bins == k].mean() - right[bins == k].mean()) * np.mean(bins == k) for k in np.unique(bins)]
    return {
        "log_loss": float(log_loss(y, p, labels=model.classes_)),
        "brier": float(((p - one_hot) ** 2).sum(axis=1).mean()),
        "calibration_error": float(sum(gaps)),
    }


def mean_ranks(tables: list[dict], measure: str, *, larger: bool) -> dict[str, tuple[float, float]]:
    """Mean rank of each contender over tables (of its mean rank over splits), and the standard error over tables."""
    names = [who for who in tables[0]["contenders"] if measure in tables[0]["contenders"][who]]
    ranks = []
    for table in tables:
        values = np.array([table["contenders"][who][measure] for who in names])
        ranks.append(rankdata(-values if larger else values, axis=0).mean(axis=1))
    spread = np.std(ranks, axis=0, ddof=1) / np.sqrt(len(ranks)) if len(ranks) > 1 else np.zeros(len(names))
    return {
        who: (float(mean), float(error)) for who, mean, error in zip(names, np.mean(ranks, axis=0), spread, strict=True)
    }


def critical_difference(contenders: int, tables: int) -> float:
    """Of mean ranks, at 5 % (Nemenyi's test; Demšar, JMLR 2006)."""
    q = studentized_range.ppf(0.95, contenders, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(contenders * (contenders + 1) / (6 * tables)))


def diagram(ranks: dict[str, tuple[float, float]], difference: float, title: str) -> str:
    """Mean ranks on a line, with the critical difference, as SVG."""
    k = len(ranks)
    left, right, height = 120, 680, 70 + 26 * k

    def place(rank: float) -> float:
        return left + (right - left) * (rank - 1) / (k - 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {height}" font-family="sans-serif" font-size="14">',
        f'<rect width="800" height="{height}" fill="white"/><text x="400" y="20" text-anchor="middle">{title}</text>',
        f'<line x1="{left}" x2="{right}" y1="50" y2="50" stroke="black"/>',
    ]
    for rank in range(1, k + 1):
        x = place(rank)
        parts.append(f'<line x1="{x}" x2="{x}" y1="45" y2="55" stroke="black"/>')
        parts.append(f'<text x="{x}" y="40" text-anchor="middle">{rank}</text>')
    for row, (who, (mean, error)) in enumerate(sorted(ranks.items(), key=lambda item: item[1][0])):
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


def to_markdown(results: dict) -> str:
    lines = [f"# Accuracy at the defaults, {results['date']}", "", results["machine"], ""]
    lines.append(f"Mean of {results['splits']} splits, a quarter of the rows held out; times are geometric means.")
    for kind, found in results["kinds"].items():
        tables = found["tables"]
        names = list(tables[0]["contenders"])
        lines += ["", f"## {kind.capitalize()}, {len(tables)} tables", ""]
        lines += [
            "| contender | mean rank | ± | fit, s, geometric mean | predict, ms | ",
            "| --- | ---: | ---: | ---: | ---: |",
        ]
        for who, (mean, error) in sorted(found["ranks"].items(), key=lambda item: item[1][0]):
            seconds = np.exp(np.mean([np.log(np.mean(t["contenders"][who]["fit"])) for t in tables]))
            predict = 1000 * np.exp(np.mean([np.log(np.mean(t["contenders"][who]["predict"])) for t in tables]))
            lines.append(f"| {who} | {mean:.2f} | {error:.2f} | {seconds:.3f} | {predict:.1f} |")
        lines.append("")
        lines.append(f"Critical difference of mean ranks at 5 %: {found['critical_difference']:.2f}.")
        lines += [
            "",
            f"| table | rows | columns | {' | '.join(names)} |",
            "| --- | ---: | ---: |" + " ---: |" * len(names),
        ]
        for t in tables:
            cells = [f"{np.mean(t['contenders'][who]['score']):.4f}" for who in names]
            lines.append(f"| {t['table']} | {t['rows']:,} | {t['columns']} | {' | '.join(cells)} |")
        for measure, ranks in found.get("probabilities", {}).items():
            said = ", ".join(f"{who} {mean:.2f}" for who, (mean, _) in sorted(ranks.items(), key=lambda i: i[1][0]))
            lines += ["", f"Mean rank by {measure.replace('_', ' ')}: {said}."]
            values = {who: np.mean([np.mean(t["contenders"][who][measure]) for t in tables]) for who in ranks}
            lines.append(f"Mean: {', '.join(f'{who} {value:.4f}' for who, value in values.items())}.")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--splits", type=int, default=SPLITS)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "splits": asked.splits, "kinds": {}}
    for kind, sets in (("classification", CLASSIFICATION), ("regression", REGRESSION)):
        tables = []
        for name, load in sets.items():
            if asked.only in name:
                tables.append(run_table(name, load, kind == "classification", asked.splits))
                scores = {who: round(float(np.mean(e["score"])), 4) for who, e in tables[-1]["contenders"].items()}
                print(name, scores, file=sys.stderr, flush=True)
        if not tables:
            continue
        ranks = mean_ranks(tables, "score", larger=True)
        difference = critical_difference(len(ranks), len(tables))
        found = {"tables": tables, "ranks": ranks, "critical_difference": difference}
        if kind == "classification":
            measures = ("log_loss", "brier", "calibration_error")
            found["probabilities"] = {measure: mean_ranks(tables, measure, larger=False) for measure in measures}
        results["kinds"][kind] = found
        if not asked.only:
            (RESULTS / f"accuracy-{kind}.svg").write_text(diagram(ranks, difference, f"Mean rank, {kind}"))
    print(to_markdown(results))
    if not asked.only:
        (RESULTS / "accuracy.json").write_text(json.dumps(results, indent=1))
        (RESULTS / "accuracy.md").write_text(to_markdown(results))


if __name__ == "__main__":
    main()
