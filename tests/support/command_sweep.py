"""Run some 250 command lines over public and generated tables: ``make try-commands``, or this file as a program.

Every run is a process of its own. It must end within 100 seconds with a documented exit code, print no traceback, and
not end with the exit code of an unexpected error.
"""

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
from sklearn import datasets

SECONDS = 100
DOCUMENTED = {0, 2, 73, 75, 130, 141, 143}
SMALL = ("--width", "500", "-q")
Run = tuple[str, ...]


def write_tables(folder: Path) -> None:
    """scikit-learn's own tables, generated ones, and files with odd contents."""
    for name in ("iris", "wine", "breast_cancer", "diabetes"):
        data = getattr(datasets, f"load_{name}")(as_frame=True)
        pl.DataFrame(data.frame.to_dict("list")).write_csv(folder / f"{name}.csv")
    rng = np.random.default_rng(0)
    n = 300
    base = {"a": rng.standard_normal(n), "b": rng.lognormal(size=n), "c": rng.choice(["x", "y", "z"], n)}
    y = base["a"] ** 2 + (base["c"] == "x")
    frame = pl.DataFrame({**base, "y": y})
    frame.write_csv(folder / "mixed.csv")
    frame.write_csv(folder / "semicolons.csv", separator=";")
    frame.write_csv(folder / "mixed.tsv", separator="\t")
    frame.write_parquet(folder / "mixed.parquet")
    np.savez(folder / "mixed.npz", X=rng.standard_normal((n, 4)), y=y)
    datasets.dump_svmlight_file(rng.standard_normal((n, 4)), y, str(folder / "mixed.svm"))
    columns = {
        "counts": rng.poisson(3, n),
        "ages": rng.integers(25, 35, n),
        "binary": np.where(y > 1, "yes", "no"),
        "rare": np.where(np.arange(n) == 7, "rare", np.where(y > 1, "up", "down")),
        "huge": 1e200 * y,
        "tiny": 1e-200 * y,
        "constant": np.ones(n),
        "money": [f"${value:,.2f}" for value in 1000 * y],
        "day": [f"2024-{1 + k % 12:02}-{1 + k % 28:02}" for k in range(n)],
        "customer_id": rng.integers(0, 30, n),
    }
    frame.with_columns(**{name: pl.Series(values) for name, values in columns.items()}).write_csv(
        folder / "targets.csv"
    )
    gaps = frame.with_columns(pl.when(pl.Series(rng.random(n)) < 0.2).then(None).otherwise(pl.col("a")).alias("a"))
    gaps.write_csv(folder / "gaps.csv")
    x = rng.uniform(0, 1, 3000)
    pl.DataFrame({"x": x, "y": np.sin(6 * x) + 0.3 * rng.standard_normal(3000)}).write_csv(folder / "one column.csv")
    odd = {
        "empty.csv": b"",
        "header.csv": b"a,y\n",
        "one row.csv": b"a,y\n1,2\n",
        "two rows.csv": b"a,y\n1,u\n2,v\n",
        "latin1.csv": "größe,y\n".encode("latin-1") + b"".join(b"%d,%d\n" % (k, k * k) for k in range(50)),
        "utf16.csv": ("a,y\n" + "".join(f"{k},{k * k}\n" for k in range(50))).encode("utf-16"),
        "carriage.csv": b"a,y\r" + b"".join(b"%d,%d\r" % (k, k * k) for k in range(50)),
        "short rows.csv": b"a,b,y\n1,2,3\n1,2\n3,4,5\n",
        "nulls.csv": b"a,y\n\x00\x00,1\n2,3\n",
        "binary.csv": bytes(range(256)) * 20,
        "quotes.csv": b'a,y\n"1,2\n3,4\n',
        "duplicate.csv": b"a,a,y\n" + b"".join(b"%d,%d,%d\n" % (k, k, k) for k in range(30)),
        "inf.csv": b"a,y\n1,2\ninf,3\n4,nan\n",
        "text.csv": b"a,y\nhello,world\nfoo,bar\nhello,bar\nfoo,world\n" * 10,
        "broken.parquet": b"PAR1 nothing else",
        "broken.npz": b"PK\x03\x04 nothing else",
        "truth.csv": b"a,y\n" + b"".join(b"%d,%s\n" % (k, b"true" if k % 3 else b"false") for k in range(40)),
    }
    for name, content in odd.items():
        (folder / name).write_bytes(content)
    (folder / "folder.csv").mkdir()


def training_runs() -> Iterator[Run]:
    tables = {
        **{f"{name}.csv": "target" for name in ("iris", "wine", "breast_cancer", "diabetes")},
        **dict.fromkeys(("mixed.csv", "semicolons.csv", "mixed.tsv", "mixed.parquet", "mixed.npz"), "y"),
        "mixed.svm": "target",
        "gaps.csv": "y",
        "one column.csv": "y",
    }
    for (file, target), options in itertools.product(
        tables.items(), ((), ("--explain",), ("--json", "--holdout", "0"))
    ):
        yield ("train", file, "--target", target, *SMALL, *options)
    targets = ("counts", "ages", "binary", "rare", "huge", "tiny", "constant", "money", "day", "customer_id", "c", "a")
    for target, options in itertools.product(targets, ((), ("--task", "regression"), ("--task", "classification"))):
        yield ("train", "targets.csv", "--target", target, *SMALL, *options)
    options = """
        --loss log_loss|--loss poisson --target counts|--loss huber|--loss absolute_error|--loss quantile
        --loss quantile --quantiles 0.5|--quantiles 0.5|--huber-delta 2 --loss huber|--solver gradient --max-iter 20
        --solver gauss-newton|--momentum 0 --certify --max-iter 5|--learning-rate theory --solver gradient --max-iter 5
        --batch-size 32 --solver gradient --max-iter 5|--threshold 0|--threshold 40|--threshold paper|--threshold -1
        --bias 0.1|--bias 0|--dtype float64|--dtype float16|--early-stopping|--holdout 0.9|--holdout 0.999|--holdout -1
        --holdout-by customer_id|--holdout-by day|--holdout-by a|--holdout-by nothing|--drop a,b|--drop y|--drop nothing
        --categorical customer_id|--categorical a,b|--no-impute|--balance|--target binary --balance|--time 1s|--time 0
        --report page.html|--history run.csv|--history run.txt|--tensorboard runs|--checkpoint ck1 --every 5
        --resume|--resume --checkpoint ck2|--memory 1M|--memory 12G|--memory much|--grid 2x2|--grid 0x1|--seed -1
        --seed 4294967296|--width 1|--width 2|--width 3|--width 1e3|--width 1.5|--width many|--width 1e12
        --output-scale 1e200|--output-scale 1e-200|--output-scale 0|--output-scale 1|--ridge 0|--ridge 1e-50|--ridge -1
        --tol 0 --max-iter 3|--tol -1|--tol nan|--max-iter 0|--max-iter 1|--momentum 1|--learning-rate 1e30 --max-iter 5
        --engine dense|--engine rows|--engine sums|--engine weights --solver gradient --max-iter 3|--engine nothing
        --engine hashing --solver gradient --max-iter 3|--eval targets.csv|--eval nothing.csv|--eval mixed.csv
        --out no/such/folder/m|--out .|--out /dev/null|--out targets.csv|--verbose|--json|--solver nothing
        --loss nothing|--worker-timeout 0s|--explain --loss poisson|--explain --drop a|--explain --json
    """
    for line in filter(None, (part.strip() for part in options.replace("\n", "|").split("|"))):
        words = line.split()
        target = () if "--target" in words else ("--target", "y")
        yield (
            "train",
            "targets.csv",
            *target,
            "--drop",
            "huge,tiny",
            *SMALL[: 0 if "--width" in words else 2],
            "-q",
            *words,
        )


def other_runs(folder: Path) -> Iterator[Run]:
    for file in sorted(path.name for path in folder.iterdir()):
        if (folder / file).is_dir() or (folder / file).stat().st_size < 6000:
            yield ("train", file, "--target", "y", *SMALL)
    yield ("train", "nowhere.csv", "--target", "y")
    for model, target in (("binary", "binary"), ("number", "y"), ("quantile", "y")):
        more = ("--loss", "quantile") if model == "quantile" else ()
        yield ("train", "targets.csv", "--target", target, "--drop", "huge,tiny", *SMALL, "--out", model, *more)
    for model in ("binary", "number", "quantile", "nothing", "mixed.csv", "folder.csv"):
        yield ("info", model)
        yield ("info", model, "--json")
        yield ("export", model, f"{model}.onnx")
        yield ("predict", model, "targets.csv", "--out", f"{model}-out.csv")
        yield ("predict", model, "targets.csv", "--proba", "--json")
    for keep in ("customer_id", "a,b", "nothing", "a,a", "y"):
        yield ("predict", "number", "targets.csv", "--keep", keep, "--out", "kept.csv")
    for file in ("mixed.csv", "empty.csv", "latin1.csv", "short rows.csv", "binary.csv", "nowhere.csv"):
        yield ("predict", "number", file)
    problem = ("--target", "y", "-q")
    for file in ("mixed.csv", "one column.csv", "gaps.csv", "text.csv"):
        yield ("theory", file, *problem, "--width", "500")
        yield ("quantum", file, *problem, "--width", "500", "--iterations", "1")
        yield ("engines", "--explain", file, "--target", "y", "--width", "500")
        yield (
            "compare",
            file,
            *problem,
            "--width",
            "300",
            "--iterations",
            "2",
            "--engines",
            "data,rows",
            "--budget",
            "20s",
        )
    yield ("compare", "mixed.csv", *problem, "--models", "--budget", "20s")
    yield ("compare", "mixed.csv", *problem, "--models", "--width", "10")
    yield ("compare", "mixed.csv", *problem, "--engines", "nothing")
    yield ("compare", "mixed.csv", *problem, "--budget", "soon")
    yield ("theory", "mixed.csv", *problem, "--report", "theory.html", "--json", "--width", "300")
    yield ("quantum", "mixed.csv", *problem, "--bits", "0")
    yield ("engines",)
    yield ("engines", "--json")
    yield ("engines", "--explain", "mixed.csv")
    yield ("demo", "--width", "300", "-q")
    yield ("--help",)
    yield ("--version",)
    yield ("nothing",)
    for command in ("train", "predict", "info", "export", "compare", "engines", "theory", "quantum", "warmup", "demo"):
        yield (command, "--help")


def try_run(folder: Path, words: Run) -> tuple[Run, int | None, float, str]:
    """The exit code of a run, None if it took too long, with its seconds and the end of what it said."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fireset", *words],
            cwd=folder,
            env={**os.environ, "XDG_STATE_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return words, None, time.monotonic() - started, "timeout"
    return words, done.returncode, time.monotonic() - started, done.stdout + done.stderr


def wrong(code: int | None, said: str) -> bool:
    return code not in DOCUMENTED or "Traceback" in said


def main() -> int:
    at_a_time = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tables(folder)
        runs = [*training_runs(), *other_runs(folder)]
        models = [words for words in runs if words[-1] in ("binary", "number") or "quantile" in words[-3:]]
        first = [words for words in models if "--out" in words]
        rest = [words for words in runs if words not in first]
        with ThreadPoolExecutor(at_a_time) as pool:
            found = [*pool.map(lambda words: try_run(folder, words), first)]
            for each in pool.map(lambda words: try_run(folder, words), rest):
                found.append(each)
                print(f"{len(found)} of {len(runs)} runs", end="\r", file=sys.stderr, flush=True)
    failed = [each for each in found if wrong(each[1], each[3])]
    for words, code, seconds, said in failed:
        print(f"exit code {code} after {seconds:.0f} s: fireset {' '.join(words)}\n    {said.strip()[-500:]}")
    codes = Counter(str(code) for _, code, _, _ in found)
    slowest = max(found, key=lambda each: each[2])
    print(f"{len(found)} runs, {len(failed)} wrong; exit codes {dict(sorted(codes.items()))}")
    print(f"slowest: {slowest[2]:.0f} s, fireset {' '.join(slowest[0])}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
