"""The command on a report page, given to a shell, parses to the options of the run."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from fireset.cli import app
from fireset.cli.app import command_line

COMMANDS: Any = typer.main.get_command(app)


def parsed(words: list[str]):
    command = COMMANDS.commands[words[0]]
    return command.make_context(words[0], list(words[1:]))


@pytest.mark.parametrize(
    "words",
    [
        ["train", "a table.csv", "--target", "it's y", "--drop", "x 1", "--drop", "$HOME", "--impute", "-q"],
        ["train", "t.csv", "--target", "-y", "--no-impute", "--ridge", "-1", "--seed", "7", "--certify", "--json"],
        ["train", "t.csv", "--target", "y", "--bias", "0.5", "--report", "out dir/page.html", "--balance"],
        ["compare", "t.csv", "--target", "y", "--models", "--budget", "5m", "--report", "p.html"],
        ["compare", "--target", "y", "--engines", "data,rows", "--width", "300", "--", "-t.csv"],
        ["theory", "t.csv", "--target", "y", "--threshold", "1.5", "--categorical", "größe", "--holdout", "0"],
        ["quantum", "t.csv", "--target=y", "--bits", "6"],
    ],
)
def test_the_command_repeats_the_run(words):
    context = parsed(words)
    text = command_line(context)
    program, *again = shlex.split(text)
    assert program == "fireset"
    assert parsed(again).params == context.params
    assert command_line(parsed(again)) == text


def test_only_what_was_given_is_named():
    context = parsed(["train", "t.csv", "--target", "y"])
    assert context.params["file"] == Path("t.csv")
    assert command_line(context) == "fireset train t.csv --target=y"


def test_commands_are_listed_in_the_order_of_use():
    context = COMMANDS.make_context("fireset", ["engines"])
    names = COMMANDS.list_commands(context)
    assert names[:4] == ["train", "predict", "info", "export"]
    assert set(names) == set(COMMANDS.commands)
