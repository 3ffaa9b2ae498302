"""The typer application, and the arguments that several commands share."""

import shlex
from collections.abc import Collection
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fireset._util.errors import InputError
from fireset.tables.file_formats import formats_in_words

_ORDER = ("train", "predict", "info", "export", "compare", "engines", "theory", "quantum", "warmup", "demo")


class _InOrderOfUse(TyperGroup):
    """Lists the commands in the order in which they are first used; others follow."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))


app = typer.Typer(
    name="fireset",
    cls=_InOrderOfUse,
    help="Train very wide shifted-ReLU networks exactly, at the cost of the active neurons only.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Table = Annotated[Path, typer.Argument(help=f"The table: {formats_in_words()}.")]
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
Width = Annotated[str, typer.Option(metavar="NUMBER", help="Number of neurons, such as 10000 or 1e4.")]
Impute = Annotated[
    bool,
    typer.Option(help="Impute missing cells: numbers by the median with an indicator column, texts by a category."),
]
DropMissingTarget = Annotated[
    bool, typer.Option(help="Drop rows whose target is missing, which is an error otherwise.")
]
Bias = Annotated[
    float | None, typer.Option(help="Size of the constant coordinate appended to each row; larger is smoother.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")]
Seed = Annotated[int, typer.Option(help="Random seed of the network and of the hold-out split.")]
Engine = Annotated[str, typer.Option(help="How active neurons are found; `fireset engines` lists the engines.")]


def _version(wanted: bool) -> None:
    if wanted:
        from fireset import __version__

        print(f"fireset {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def given_options(context: typer.Context) -> set[str]:
    """Names of the parameters that the user has given, rather than left at their defaults."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


# What describes the problem: options that a suggested command takes over from another one.
PROBLEM = frozenset({"file", "target", "task", "drop", "categorical", "impute", "drop_missing_target", "seed"})


def command_line(
    context: typer.Context,
    *more: str,
    command: str | None = None,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    file: Path | None = None,
) -> str:
    """The command that repeats this one, with all that was given, quoted for a shell.

    ``command`` is another command that takes these options; ``only`` are the parameters to take over, ``without`` those
    to leave out, ``more`` further words. ``file`` is its argument where this command has the table as an option.
    """
    given, arguments, options = given_options(context), [str(file)] if file else [], []
    for parameter in context.command.params:
        if parameter.name not in given or parameter.name in without or not (only is None or parameter.name in only):
            continue
        value = context.params[parameter.name]
        option = max(parameter.opts, key=len)
        if parameter.param_type_name == "argument":
            arguments.append(str(value))
        elif isinstance(value, bool):  # --impute and --no-impute
            options.append(option if value else max(parameter.secondary_opts, key=len))
        else:  # as one word: a value may begin with a dash
            options += [f"{option}={each}" for each in (value if isinstance(value, list | tuple) else [value])]
    words = ["fireset", command or context.command.name or ""]
    if any(argument.startswith("-") for argument in arguments):
        return shlex.join([*words, *options, *more, "--", *arguments])
    return shlex.join([*words, *arguments, *options, *more])


def checked_seed(seed: int) -> int:
    if not 0 <= seed < 2**32:
        raise InputError(f"seed must be at least 0 and below 2**32, got {seed}")
    return seed


def whole_number_or_word(name: str, text: str, words: tuple[str, ...]) -> int | str:
    return text if text in words else whole_number(name, text, words)


def whole_number(name: str, text: str, words: tuple[str, ...] = ()) -> int:
    """A whole number as people write it: 10000, 10_000, 10,000 or 1e4. ``words`` are the other values allowed."""
    try:
        number = Decimal(text.replace("_", "").replace(",", ""))
        if number != number.to_integral_value() or abs(number) >= 2**63:
            raise ValueError
    except (InvalidOperation, ValueError, OverflowError):  # of no number, a fraction, infinity
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
