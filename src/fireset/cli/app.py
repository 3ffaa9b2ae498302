"""The typer application, and the arguments that several commands share."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fireset._util.errors import InputError

app = typer.Typer(
    name="fireset",
    help="Train very wide shifted-ReLU networks exactly, paying only for the neurons that fire.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Table = Annotated[Path, typer.Argument(help="CSV, TSV, Parquet, NPZ or svmlight file; .gz, .bz2 and .zst, too.")]
Target = Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")]
Task = Annotated[str, typer.Option(help="auto, classification or regression.")]
Drop = Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="Leave it out; may be repeated.")]
Categorical = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN", help="Numbers that name categories; may be repeated.")
]
Impute = Annotated[
    bool, typer.Option(help="Fill missing cells: median and a column that says where; texts: a category.")
]
DropMissingTarget = Annotated[bool, typer.Option(help="Drop rows without a target instead of refusing them.")]
Bias = Annotated[float | None, typer.Option(help="Size of the constant coordinate; larger is smoother.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
Seed = Annotated[int, typer.Option(help="Seed of the network and of the hold-out split.")]
Engine = Annotated[str, typer.Option(help="How the fire sets are found; `fireset engines` lists them.")]


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


def command_line(context: typer.Context) -> str:
    """The command that repeats this one, with all that was given, quoted for a shell."""
    given, arguments, options = given_options(context), [], []
    for parameter in context.command.params:
        if parameter.name not in given:
            continue
        value = context.params[parameter.name]
        option = max(parameter.opts, key=len)
        if parameter.param_type_name == "argument":
            arguments.append(str(value))
        elif isinstance(value, bool):  # --impute and --no-impute
            options.append(option if value else max(parameter.secondary_opts, key=len))
        else:  # as one word: a value may begin with a dash
            options += [f"{option}={each}" for each in (value if isinstance(value, list | tuple) else [value])]
    if any(argument.startswith("-") for argument in arguments):
        return shlex.join(["fireset", context.command.name or "", *options, "--", *arguments])
    return shlex.join(["fireset", context.command.name or "", *arguments, *options])


def checked_seed(seed: int) -> int:
    if not 0 <= seed < 2**32:
        raise InputError(f"seed must be at least 0 and below 2**32, got {seed}")
    return seed


def whole_number_or_word(name: str, text: str, words: tuple[str, ...]) -> int | str:
    if text in words:
        return text
    try:
        return int(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise InputError(f"{name} must be {', '.join(words)} or a whole number, got {text!r}") from None


def number_or_word(name: str, text: str, words: tuple[str, ...]) -> float | str:
    if text in words:
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name} must be {', '.join(words)} or a number, got {text!r}") from None
