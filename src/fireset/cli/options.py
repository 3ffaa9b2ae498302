"""Types of the command-line options that several commands share, and the conversion of their values."""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import typer

from fireset._util.errors import InputError
from fireset.tables.file_formats import formats_in_words

Table = Annotated[Path, typer.Argument(help=f"The table: {formats_in_words()}.")]
TrainingTable = Annotated[
    Path, typer.Argument(help=f"The table: {formats_in_words()}; or a folder of Parquet or CSV files, its parts.")
]
Target = Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")]
Task = Annotated[str, typer.Option(help="auto, classification or regression.")]
Drop = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMNS", help="Columns to leave out, separated by commas; may be repeated."),
]
Categorical = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMNS", help="Columns whose numbers name categories, separated by commas; may be repeated."
    ),
]
Impute = Annotated[
    bool,
    typer.Option(help="Impute missing cells: numbers by the median with an indicator column, texts by a category."),
]
DropMissingTarget = Annotated[
    bool, typer.Option(help="Drop rows whose target is missing, which is an error otherwise.")
]
Width = Annotated[str, typer.Option(metavar="NUMBER", help="Number of neurons, such as 10000 or 1e4.")]
Bias = Annotated[
    float | None, typer.Option(help="Size of the constant coordinate appended to each row; larger is smoother.")
]
Dtype = Annotated[str, typer.Option(help="Precision: float32 or float64.")]
Engine = Annotated[str, typer.Option(help="How active neurons are found; `fireset engines` lists the engines.")]
Holdout = Annotated[float, typer.Option(help="Share of the rows held out for the score; 0 for none.")]
Report = Annotated[Path | None, typer.Option(metavar="PAGE.html", help="Write a report with figures.")]
Seed = Annotated[int, typer.Option(help="Random seed of the network and of the hold-out split.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Model = Annotated[Path, typer.Argument(help="A file that `fireset train` wrote.")]

# Parameters that describe the problem: a suggested command takes them over from the current one.
PROBLEM = frozenset({"file", "target", "task", "drop", "categorical", "impute", "drop_missing_target", "seed"})


@dataclass(frozen=True)
class Reading:
    """Options that determine how a table is read."""

    task: str
    drop: list[str] | None
    categorical: list[str] | None
    impute: bool
    drop_missing_target: bool | None = None  # None for commands without this option

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of ``TableProblem.read``."""
        found = {**vars(self), "drop": self.drop or [], "categorical": self.categorical or []}
        return {name: value for name, value in found.items() if value is not None}


def checked_seed(seed: int) -> int:
    if not 0 <= seed < 2**32:
        raise InputError(f"seed must be at least 0 and below 2**32, got {seed}")
    return seed


def whole_number_or_word(name: str, text: str, words: tuple[str, ...]) -> int | str:
    return text if text in words else whole_number(name, text, words)


def whole_number(name: str, text: str, words: tuple[str, ...] = ()) -> int:
    """Convert 10000, 10_000, 10,000 or 1e4 to an int. ``words`` are other allowed values, for the error message."""
    try:
        number = Decimal(text.replace("_", "").replace(",", ""))
        if number != number.to_integral_value() or abs(number) >= 2**63:
            raise ValueError
    except (InvalidOperation, ValueError, OverflowError):  # not a number, a fraction, infinity
        allowed = ", ".join([*words, "a whole number"]).replace(", a whole", " or a whole")
        raise InputError(f"{name} must be {allowed}, got {text!r}") from None
    return int(number)


def number_or_word(name: str, text: str, words: tuple[str, ...]) -> float | str:
    if text in words:
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name} must be {', '.join(words)} or a number, got {text!r}") from None
