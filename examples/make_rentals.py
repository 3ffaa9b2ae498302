"""Write the table of the tutorial: synthetic bicycle rentals with dates, text and missing cells.

    python examples/make_rentals.py [FOLDER]

Three files: ``rentals.csv`` for training, ``new_rentals.csv`` without the column ``late`` for prediction, and
``rentals-semicolon.csv``, the first one with semicolons and decimal commas.
"""

import csv
import sys
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

ROWS, NEW_ROWS = 1_500, 200
COLUMNS = ["rental", "pickup", "station", "bike", "booked_hours", "temperature", "age", "late"]
STATIONS = {"harbour": 0.9, "old town": 0.2, "hill": -0.6, "station": -0.3}
BIKES = {"city": 0.0, "cargo": 0.5, "electric": -0.7}


def make_rentals(rows: int, seed: int) -> list[list[str]]:
    """Rentals due in the evening, on warm weekends or by young customers are late more often, with interactions."""
    rng = np.random.default_rng(seed)
    table = []
    for number in range(rows):
        pickup = datetime(2025, 1, 1) + timedelta(days=int(rng.integers(365)), minutes=int(rng.integers(420, 1200)))
        station, bike = str(rng.choice(list(STATIONS))), str(rng.choice(list(BIKES), p=[0.6, 0.15, 0.25]))
        hours = float(rng.choice([0.5, 1, 2, 3, 4, 6, 8, 10]))
        warmth = 11 - 9 * np.cos(2 * np.pi * (pickup.timetuple().tm_yday - 15) / 365) + 3 * rng.standard_normal()
        age = int(np.clip(rng.gamma(6, 6), 16, 80))
        due = pickup.hour + pickup.minute / 60 + hours
        logit = -0.9 + STATIONS[station] + BIKES[bike] + 0.1 * (warmth - 11) * (pickup.weekday() >= 5)
        logit += 2.2 * np.sin(2 * np.pi * (due - 13) / 14) + 1.2 * (age < 24)
        late = rng.random() < 1 / (1 + np.exp(-1.8 * logit))
        missing = rng.random(3)
        table.append([
            f"R{seed}{number:04}",
            pickup.strftime("%Y-%m-%d %H:%M"),
            "" if missing[0] < 0.02 else station,
            bike,
            f"{hours:g}",
            "" if missing[1] < 0.08 else f"{warmth:.1f}",
            "NA" if missing[2] < 0.12 else str(age),
            "yes" if late else "no",
        ])  # fmt: skip
    return table


def write(path: Path, header: list[str], rows: list[list[str]], separator: str = ",") -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=separator, lineterminator="\n").writerows([header, *rows])


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    rentals = make_rentals(ROWS, seed=1)
    write(folder / "rentals.csv", COLUMNS, rentals)
    write(folder / "new_rentals.csv", COLUMNS[:-1], [row[:-1] for row in make_rentals(NEW_ROWS, seed=2)])
    commas = [[*row[:5], row[5].replace(".", ","), *row[6:]] for row in rentals]
    write(folder / "rentals-semicolon.csv", COLUMNS, commas, separator=";")
    print(f"{len(rentals):,} rentals in {folder / 'rentals.csv'}, {NEW_ROWS} new ones in {folder / 'new_rentals.csv'}")


if __name__ == "__main__":
    main()
