"""Write the page of the commands from the command line itself, so that no option is missing or made up.

    python docs/make_commands.py [docs/commands.md]

``tests/docs/test_newcomers.py`` fails where the page is not what this writes.
"""

import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer.main

from fireset.cli import app

PAGE = Path(__file__).parent / "commands.md"
BEGINNING = """\
# Commands

Written by `docs/make_commands.py` from the program itself. `fireset COMMAND --help` prints the same;
`python -m fireset` does what `fireset` does. `fireset --version` prints the version, and `fireset --show-completion` a
script that completes commands in your shell.
"""
EXIT_CODES = """\
## Exit codes

| code | what happened |
| ---: | --- |
| 0 | done |
| 2 | a mistake in arguments, files or data; one line says which |
| 70 | an unexpected error in fireset itself; one line names the log file to report |
| 73 | an output such as `--history` could not be written; one line says which, and where the model is |
| 75 | another worker was lost, or silent for `--worker-timeout` ([several machines](distributed.md)) |
| 130 | Ctrl-C; the best network was written |
| 141 | the reader of standard output closed it early, as `head` does |
| 143 | SIGTERM; with `--checkpoint`, the next checkpoint was written (within about five seconds), and no model |
"""
# In the order of first use; commands that are not here follow.
FURTHER = {
    "train": "[Tutorial](tutorial.md), [train on a table](tabular-data.md), [which setting when](which-setting.md)",
    "predict": "[Tutorial](tutorial.md), [train on a table](tabular-data.md)",
    "info": "[Train on a table](tabular-data.md)",
    "export": "[Serve a model without fireset](export.md)",
    "compare": "[Does preprocessing help on my data, and is fireset the right model?](compare.md)",
    "engines": "[Engines](wide-networks.md#engines)",
    "theory": "[Certify a run](certify.md), [the paper, statement by statement](paper-map.md)",
    "quantum": "[Quantum](quantum.md)",
    "warmup": "[Does preprocessing help on my data?](compare.md#how-long-it-takes)",
    "demo": "[Start](index.md)",
}


def commands() -> dict[str, Any]:
    """The commands by name, in the order of ``FURTHER``."""
    known = typer.main.get_group(app).commands
    return {name: known[name] for name in [*FURTHER, *sorted(set(known) - set(FURTHER))]}


def value_of(command: Any, option: Any) -> str:
    """What stands behind the option: nothing for a switch, else its metavar, or FILE, NUMBER or VALUE by its type."""
    if option.is_flag:
        return ""
    if option.metavar:
        return f" {option.metavar}"
    hint = get_type_hints(command.callback)[option.name]
    kinds = set(get_args(hint) or [hint])
    return " FILE" if Path in kinds else " NUMBER" if kinds & {int, float} else " VALUE"


def default_of(option: Any) -> str:
    if option.required:
        return "must be given"
    if option.default is None or option.default == []:
        return ""
    if option.is_flag:
        return "yes" if option.default else "no"
    return f"`{option.default}`"


def option_row(command: Any, option: Any) -> str:
    names = [f"`{name}{value_of(command, option)}`" for name in sorted(option.opts, key=len, reverse=True)]
    names += [f"`{name}`" for name in option.secondary_opts if option.default]  # --no-… where it is on
    return f"| {', '.join(names)} | {option.help.replace('|', '&#124;')} | {default_of(option)} |"


def usage(name: str, command: Any) -> str:
    arguments = [each.name.upper() for each in command.params if each.param_type_name == "argument"]
    needed = [each for each in command.params if each.param_type_name == "option" and each.required]
    words = [*arguments, *(f"{each.opts[0]}{value_of(command, each)}" for each in needed), "[options]"]
    return " ".join(["fireset", name, *words])


def section(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    lines = [f"## fireset {name}", "", command.help, "", "```", usage(name, command), "```", ""]
    lines += [f"- `{each.name.upper()}`: {each.help}" for each in arguments]
    lines += [""] if arguments else []
    lines += ["| option | what it does | by default |", "| --- | --- | --- |"]
    lines += [option_row(command, each) for each in options if not each.hidden]
    if name in FURTHER:
        lines += ["", f"More: {FURTHER[name]}."]
    return "\n".join([*lines, ""])


def page() -> str:
    found = commands()
    rows = [f"| [`{name}`](#fireset-{name}) | {command.help} |" for name, command in found.items()]
    table = "\n".join(["| command | what it does |", "| --- | --- |", *rows, ""])
    return "\n".join([BEGINNING, table, *(section(name, command) for name, command in found.items()), EXIT_CODES])


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else PAGE).write_text(page(), encoding="utf-8")
