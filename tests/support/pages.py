"""Code blocks, commands and names on the pages of the documentation."""

import re
import shlex
from importlib import import_module
from inspect import ismodule
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]


class Fence(NamedTuple):
    """A code block; one without a language has the language ""."""

    language: str
    title: str
    text: str


def fences(page: Path) -> list[Fence]:
    found, inside = [], None
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            if inside is None:
                inside = (line[3:].strip(), [])
            else:
                language, _, options = inside[0].partition(" ")
                title = re.search(r'title="(.*?)"', options)
                found.append(Fence(language, title[1] if title else "", "\n".join(inside[1])))
                inside = None
        elif inside is not None:
            inside[1].append(line)
    return found


def blocks(page: Path, language: str) -> list[str]:
    return [fence.text for fence in fences(page) if fence.language == language]


def commands(page: Path) -> list[list[str]]:
    """Words of every line of a block without a language that runs fireset, comments left out."""
    lines = "\n".join(blocks(page, "")).splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("fireset ")]


def resolve(dotted: str) -> Any:
    """The module, class, function or value of this name; an error if there is none."""
    parts = dotted.split(".")
    found = import_module(parts[0])
    for number, part in enumerate(parts[1:], 2):
        if ismodule(found) and not hasattr(found, part):
            import_module(".".join(parts[:number]))
        found = getattr(found, part)
    return found


def text_of(page: Path) -> str:
    """Without code blocks, which are run or are commands."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
