"""How long a fit takes, and how good it is: the estimators at their defaults beside scikit-learn's, on public data.

    make bench-fit

A quarter of the rows is held out. All contenders fit the same rows in turns in one process, after a first fit of each
on a few rows that is not timed (kernels are compiled then). Peers that want standardized columns get them, inside the
time.
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
from sklearn import datasets
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

sys.path.insert(0, str(Path(__file__).parent))
from parts import machine

from fireset import ShiftedReLUClassifier, ShiftedReLURegressor

RESULTS = Path(__file__).parent / "results"


def clusters(rows: int, classes: int, features: int = 20):
    return lambda: datasets.make_classification(
        rows, features, n_informative=12, n_redundant=2, n_classes=classes, n_clusters_per_class=2, random_state=0
    )


CLASSIFICATION = {
    "digits": lambda: datasets.load_digits(return_X_y=True),
    "wine": lambda: datasets.load_wine(return_X_y=True),
    "breast cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "2 classes, 1,000 rows": clusters(1_000, 2),
    "6 classes, 3,000 rows": clusters(3_000, 6),
    "26 classes, 10,000 rows": clusters(10_000, 26),
    "2 classes, 50,000 rows": clusters(50_000, 2),
}
REGRESSION = {
    "diabetes": lambda: datasets.load_diabetes(return_X_y=True),
    "friedman1, 2,000 rows": lambda: datasets.make_friedman1(2000, 10, noise=1.0, random_state=0),
    "friedman2, 2,000 rows": lambda: datasets.make_friedman2(2000, noise=50.0, random_state=0),
    "friedman3, 2,000 rows": lambda: datasets.make_friedman3(2000, noise=0.1, random_state=0),
    "friedman1, 20,000 rows": lambda: datasets.make_friedman1(20_000, 10, noise=1.0, random_state=0),
}


def contenders(classes: bool) -> dict:
    """Makers of unfitted estimators; the target of a regression is standardized for those that want it."""
    if classes:
        return {
            "fireset": lambda: ShiftedReLUClassifier(random_state=0),
            "fireset, gradient": lambda: ShiftedReLUClassifier(random_state=0, solver="gradient"),
            "SVC": lambda: make_pipeline(StandardScaler(), SVC()),
            "MLP": lambda: make_pipeline(StandardScaler(), MLPClassifier(random_state=0)),
            "HistGradientBoosting": lambda: HistGradientBoostingClassifier(random_state=0),
            "RandomForest": lambda: RandomForestClassifier(random_state=0),
        }
    return {
        "fireset": lambda: ShiftedReLURegressor(random_state=0),
        "fireset, gradient": lambda: ShiftedReLURegressor(random_state=0, solver="gradient"),
        "SVR": lambda: make_pipeline(StandardScaler(), SVR()),
        "MLP": lambda: make_pipeline(StandardScaler(), MLPRegressor(random_state=0)),
        "HistGradientBoosting": lambda: HistGradientBoostingRegressor(random_state=0),
        "RandomForest": lambda: RandomForestRegressor(random_state=0),
    }


def run_set(name: str, load, classes: bool, repeats: int) -> dict:
    X, y = load()
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    if not classes:
        mean, spread = y_train.mean(), y_train.std()
        y_train, y_test = (y_train - mean) / spread, (y_test - mean) / spread
    rows = {}
    makers = contenders(classes)
    few = np.arange(min(len(X_train), 400))
    for maker in makers.values():
        maker().fit(X_train[few], y_train[few])
    seconds: dict[str, list[float]] = {who: [] for who in makers}
    fitted = {}
    for _ in range(repeats if len(X) <= 5_000 else 1):
        for who, maker in makers.items():
            if who == "fireset, gradient" and len(X) > 5_000:
                continue
            model = maker()
            begun = time.perf_counter()
            model.fit(X_train, y_train)
            seconds[who].append(time.perf_counter() - begun)
            fitted[who] = model
    for who, model in fitted.items():
        begun = time.perf_counter()
        score = float(model.score(X_test, y_test))
        rows[who] = {"seconds": min(seconds[who]), "score": score, "predict": time.perf_counter() - begun}
    ours = fitted["fireset"]
    result = ours.result_
    to_the_end = makers["fireset"]().set_params(tol=1e-5, max_iter=20).fit(X_train, y_train).result_
    return {
        "set": name,
        "classes": classes,
        "rows": len(X_train),
        "columns": X.shape[1],
        "contenders": rows,
        "rounds": len(result.history) - 1,
        "above_optimum": result.loss / to_the_end.loss - 1,
        "stop": str(result.stop_reason),
        "preprocessing": result.start_seconds,
        **result.details,
    }


def geometric_mean(results: list[dict], who: tuple[str, ...]) -> float | None:
    """Of our time beside theirs, over the sets that both fitted."""
    ratios = [
        r["contenders"]["fireset"]["seconds"] / r["contenders"][name]["seconds"]
        for r in results
        for name in who
        if name in r["contenders"]
    ]
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else None


def to_markdown(results: dict) -> str:
    lines = [f"# Fits at the defaults, {results['date']}", "", results["machine"], ""]
    lines.append("Score (accuracy or R²) on a quarter of the rows held out, and seconds of the fit. Above optimum: the")
    lines.append("training objective beside that of the same network trained with tol=1e-5.")
    for kind, classes in (("Classification", True), ("Regression", False)):
        some = [r for r in results["sets"] if r["classes"] == classes]
        names = list(dict.fromkeys(who for r in some for who in r["contenders"]))
        lines += [
            "",
            f"## {kind}",
            "",
            f"| table | rounds | above optimum | {' | '.join(names)} |",
            "| --- | ---: | ---: |" + " ---: |" * len(names),
        ]
        for r in some:
            cells = [
                f"{found['score']:.4f}, {found['seconds']:.2f} s" if (found := r["contenders"].get(who)) else ""
                for who in names
            ]
            lines.append(f"| {r['set']} | {r['rounds']} | {r['above_optimum']:.2%} | {' | '.join(cells)} |")
    lines.append("")
    for who, ratio in results["geometric_means"].items():
        lines.append(f"- Time as a multiple of that of {who}, geometric mean: {ratio:.2f}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "sets": []}
    for classes, sets in ((True, CLASSIFICATION), (False, REGRESSION)):
        for name, load in sets.items():
            if options.only in name:
                results["sets"].append(run_set(name, load, classes, options.repeats))
                print(json.dumps(results["sets"][-1]), file=sys.stderr, flush=True)
    peers = {
        "SVC or SVR": ("SVC", "SVR"),
        "MLP": ("MLP",),
        "HistGradientBoosting": ("HistGradientBoosting",),
        "RandomForest": ("RandomForest",),
        "gradient descent": ("fireset, gradient",),
    }
    means = {who: geometric_mean(results["sets"], names) for who, names in peers.items()}
    results["geometric_means"] = {who: mean for who, mean in means.items() if mean is not None}
    print(to_markdown(results))
    if not options.only:
        (RESULTS / "fit.json").write_text(json.dumps(results, indent=1))
        (RESULTS / "fit.md").write_text(to_markdown(results))


if __name__ == "__main__":
    main()
