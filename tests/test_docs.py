"""The documentation: its Python runs, its commands exist, and it has a page for every entry."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from fireset.cli import app

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of this language; "" for those that name none."""
    found, inside = [], None
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            if inside is None:
                inside = (line[3:].strip(), [])
            else:
                found.append(inside)
                inside = None
        elif inside is not None:
            inside[1].append(line)
    return ["\n".join(lines) for name, lines in found if name == language]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.stem)
def test_python_runs(page, tmp_path, monkeypatch):
    """All blocks of a page, one after the other, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "docs"}
    for number, block in enumerate(blocks(page, "python"), 1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)


def commands(page: Path) -> list[list[str]]:
    """Words of every line of a block without a language that runs fireset, comments left out."""
    lines = "\n".join(blocks(page, "")).splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("fireset ")]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_commands_exist(page):
    known = typer.main.get_group(app).commands
    for _, name, *words in commands(page):
        assert name in known
        options = {option for parameter in known[name].params for option in parameter.opts}
        unknown = {word for word in words if word.startswith("-")} - options
        assert not unknown, f"fireset {name} has no {unknown}"


def test_some_commands_were_found():
    assert len([each for page in (ROOT / "README.md", *PAGES) for each in commands(page)]) > 10


def test_makefile_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES):
        named = re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(named) <= targets


@pytest.mark.parametrize("example", ["digits", "regression_table"])
def test_examples_leave_a_figure(example, tmp_path):
    figure = tmp_path / "figure.png"
    command = [sys.executable, ROOT / "examples" / f"{example}.py", "--out", figure, "--width", "300"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_results_are_collected(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from collect import page  # pyright: ignore[reportMissingImports]

    (tmp_path / "step.md").write_text("# One gradient step, 2026-01-01\n\nMachine.\n\n## case\n")
    text = page(tmp_path)
    assert text.startswith("# Results\n")
    assert "## One gradient step, 2026-01-01\n\n`make bench-step`\n\nMachine.\n\n### case\n" in text
    assert "bench-index" not in text
