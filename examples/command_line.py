"""From a table to predictions on the command line: train, read the summary, predict, score.

Writes a synthetic table of bicycle rentals, runs ``fireset train``, ``fireset info`` and ``fireset predict`` on it, and
prints every command::

    python examples/command_line.py [FOLDER]
"""

import csv
import subprocess
import sys
from pathlib import Path

from make_rentals import COLUMNS, make_rentals


def write(file: Path, header: list[str], rows: list[list[str]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([header, *rows])


def run(folder: Path, *words: str) -> None:
    print(f"\n$ fireset {' '.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "fireset", *words], cwd=folder, check=True)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "rentals.csv", COLUMNS, make_rentals(800, seed=0))
    answers = make_rentals(200, seed=1)
    write(folder / "new_rentals.csv", COLUMNS[:-1], [row[:-1] for row in answers])

    run(folder, "train", "rentals.csv", "--target", "late", "--drop", "rental", "--out", "rentals.safetensors")
    run(folder, "info", "rentals.safetensors")
    run(folder, "predict", "rentals.safetensors", "new_rentals.csv", "--out", "predictions.csv")

    with (folder / "predictions.csv").open(newline="", encoding="utf-8") as opened:
        predictions = [row["prediction"] for row in csv.DictReader(opened)]
    right = sum(predicted == row[-1] for predicted, row in zip(predictions, answers, strict=True))
    print(f"\n{right} of {len(answers)} new rentals are predicted correctly")


if __name__ == "__main__":
    main()
