"""The typer application, and the command lines that commands suggest."""

import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_COMMAND_ORDER = ("train", "predict", "info", "export", "compare", "engines", "theory", "quantum", "warmup", "demo")


class _OrderedGroup(TyperGroup):
    """Lists the commands in the order of ``_COMMAND_ORDER``, then all others."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(
            names, key=lambda name: _COMMAND_ORDER.index(name) if name in _COMMAND_ORDER else len(_COMMAND_ORDER)
        )


app = typer.Typer(
    name="fireset",
    cls=_OrderedGroup,
    help="Train very wide shifted-ReLU networks exactly, at the cost of the active neurons only.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(requested: bool) -> None:
    if requested:
        from fireset import __version__

        print(f"fireset {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def given_options(context: typer.Context) -> set[str]:
    """Return the names of the parameters that were given on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def command_line(
    context: typer.Context,
    *more: str,
    command: str | None = None,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    file: Path | None = None,
) -> str:
    """Return the current command with its given options, or another command with them, quoted for a shell.

    Parameters
    ----------
    more : str
        Further words.
    command : str, optional
        Another command that has these options.
    only, without : collection of str
        Parameters to take over, and to leave out.
    file : Path, optional
        The table, if it is an option of the current command but an argument of ``command``.
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
        else:  # as one word, because a value may begin with a dash
            options += [f"{option}={each}" for each in (value if isinstance(value, list | tuple) else [value])]
    words = ["fireset", command or context.command.name or ""]
    if any(argument.startswith("-") for argument in arguments):
        return shlex.join([*words, *options, *more, "--", *arguments])
    return shlex.join([*words, *arguments, *options, *more])
