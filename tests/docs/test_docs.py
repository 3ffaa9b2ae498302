"""Documentation: its Python blocks run, and its commands, names, paths and tests exist."""

import re
import sys
from importlib import import_module, invalidate_caches
from inspect import ismodule
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

import fireset
from fireset.cli import app
from support.pages import ROOT, Fence, blocks, commands, fences, resolve, text_of

PAGES = sorted((ROOT / "docs").glob("*.md"))
ALL_PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
SLOW_PAGES = ("accuracy", "pytorch", "quantum")


# Python


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a file of a page in the package, or apply its diff to a registry, until the end of the test."""
    before = set(sys.modules)

    def put(fence: Fence) -> None:
        path = Path(fence.title).relative_to("src")
        module = ".".join(path.with_suffix("").parts)
        if fence.language == "diff":
            _apply(fence.text, import_module(module), monkeypatch)
            return
        assert not (ROOT / fence.title).exists(), f"{fence.title} exists already"
        file = tmp_path / "installed" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(fence.text, encoding="utf-8")
        package = import_module(module.rpartition(".")[0])
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(file.parent)])
        monkeypatch.setattr(package, file.stem, None, raising=False)  # removed after the test
        invalidate_caches()

    yield put
    for name in set(sys.modules) - before:
        if name.startswith("fireset.") and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def _apply(change: str, module: ModuleType, monkeypatch) -> None:
    """Apply a diff to the source of a module, and add the new entry of its registry at its position."""
    assert module.__file__
    lines = Path(module.__file__).read_text(encoding="utf-8").splitlines()
    at = 0
    for mark, text in ((line[:1], line[1:]) for line in change.splitlines()):
        if mark == "+":
            lines.insert(at, text)
            at += 1
        else:
            at = lines.index(text, at) + (mark != "-")
            if mark == "-":
                del lines[at]
    changed: dict[str, Any] = {"__name__": module.__name__}
    exec(compile("\n".join(lines), module.__file__, "exec"), changed)
    registries = [name for name, value in vars(module).items() if name.isupper() and isinstance(value, dict)]
    more = [(name, key) for name in registries for key in changed[name] if key not in getattr(module, name)]
    assert len(more) == 1, f"the change should add one entry, not {more}"
    registry = getattr(module, more[0][0])
    for key in reversed(list(registry)):  # so that the original order is restored at the end of the test
        monkeypatch.delitem(registry, key)
    for key, value in changed[more[0][0]].items():
        monkeypatch.setitem(registry, key, value)


def run_page(page: Path, install) -> dict[str, Any]:
    """Run all blocks of a page in order; a block with a title is installed as that file."""
    names: dict[str, Any] = {"__name__": "docs"}
    for number, fence in enumerate(fences(page), 1):
        if fence.title:
            install(fence)
        elif fence.language == "python":
            exec(compile(fence.text, f"{page.name}, block {number}", "exec"), names)
    return names


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in SLOW_PAGES else [])
        for page in PAGES
        if blocks(page, "python") and page.stem not in ("extending", "tutorial")  # the tutorial: test_newcomers.py
    ],
)
def test_python_runs(page, install, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(page, install)


def test_the_engine_and_index_of_extending_pass_the_hard_cases(install, tmp_path, monkeypatch):
    from fireset.engines import create
    from support import indexes, problems
    from support.side_by_side import run_side_by_side

    monkeypatch.chdir(tmp_path)
    run_page(ROOT / "docs" / "extending.md", install)
    for problem in problems.hard_cases().values():
        run_side_by_side(problem, create("row-by-row"), 5, {"momentum": 0.9})
    for points, normals, thresholds in indexes.hard_cases().values():
        built = [fireset.hsr.build(points, kind) for kind in ("scan", "brute-force")]
        expected, found = (index.report(normals, thresholds) for index in built)
        assert found.indptr.tolist() == expected.indptr.tolist()
        assert found.ids.tolist() == expected.ids.tolist()


# Commands


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_commands_exist(page):
    lines = commands(page)
    known = typer.main.get_group(app).commands if lines else {}
    for _, name, *words in lines:
        assert name in known
        options = {option for parameter in known[name].params for option in parameter.opts}
        unknown = {word for word in words if word.startswith("-")} - options
        assert not unknown, f"fireset {name} has no {unknown}"


def test_pages_have_commands():
    assert len([each for page in (ROOT / "README.md", *PAGES) for each in commands(page)]) > 10


def test_makefile_targets_exist():
    rules = re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {name for rule in rules for name in rule.split()}
    for page in ALL_PAGES:
        named = re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(named) <= targets


# Names, paths and tests

PACKAGES = sorted(path.parent.name for path in (ROOT / "src" / "fireset").glob("*/__init__.py"))


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_names_exist(page):
    """Resolve dotted names in backticks, with or without the prefix ``fireset``."""
    for name in re.findall(rf"`((?:fireset|{'|'.join(PACKAGES)})(?:\.\w+)+)", text_of(page)):
        resolve(name if name.startswith("fireset.") else f"fireset.{name}")


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_paths_exist(page):
    """Find files and folders relative to the root or the package, or by file name."""
    new = {fence.title for fence in fences(page)}
    text = text_of(page)
    for path in re.findall(r"\b(?:src|tests|docs|examples|benchmarks)/[\w./*-]*[\w*/]", text):
        assert path in new or list(ROOT.glob(path)), path
    for path in re.findall(r"`([\w/-]+(?:\.py|/))`", text):
        places = [ROOT / path, ROOT / "src" / "fireset" / path]
        if "/" not in path:
            places += (ROOT / "src" / "fireset").rglob(path)
            places += (ROOT / "tests").rglob(path)
        assert path == "out/" or any(place.exists() for place in places), path


def test_tests_exist():
    """Find ``test_file.py::test_name``, or ``::test_name`` of the last named file."""
    for page in ALL_PAGES:
        defined: set[str] = set()
        for file, name in re.findall(r"`(?:tests/(?:\w+/)?)?(test_\w+\.py)?(?:::(test_\w+))?`", text_of(page)):
            if file:
                (path,) = (ROOT / "tests").glob(f"**/{file}")
                defined = set(re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
            assert not name or name in defined, f"{page.name}: {name}"


def test_functions_of_the_paper_map_exist():
    """Names without a module are public, or in ``fireset.theory.bounds``."""
    spaces = [fireset, fireset.theory.bounds]
    column, seen = None, 0
    for line in (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if "function" in cells:
            column = cells.index("function")
        elif not cells:
            column = None
        elif column is not None:
            for name in re.findall(r"`([\w.]+)`", cells[column]):
                if "." in name:
                    resolve(name if name.startswith("fireset.") else f"fireset.{name}")
                else:
                    assert any(hasattr(space, name) for space in spaces), name
                seen += 1
    assert seen > 40


# The reference


def documented() -> list[Any]:
    """Return every object that docs/api.md names, and all callables of the modules that it names."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = [resolve(name) for name in re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)]
    inside = [
        value
        for module in named
        if ismodule(module)
        for value in vars(module).values()
        if callable(value) and value.__module__ == module.__name__
    ]
    return named + inside


@pytest.mark.parametrize("package", ["fireset", "engines", "hsr", "theory", "quantum"])
def test_every_public_name_is_in_the_reference(package):
    module = fireset if package == "fireset" else getattr(fireset, package)
    page, described = (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), documented()
    for name in module.__all__:
        value = getattr(module, name)
        is_package = ismodule(value) and module is fireset
        assert f"`fireset.{name}`" in page if is_package else any(value is each for each in described), name


def test_the_readme_is_short_and_names_the_make_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 130
    assert "make demo" in text
    assert "make test" in text


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    for page in PAGES:
        assert f": {page.name}\n" in navigation, page.name


# Results


def test_results_are_collected(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from collect import page  # pyright: ignore[reportMissingImports]

    (tmp_path / "step.md").write_text("# One gradient step, 2026-01-01\n\nMachine.\n\n## case\n")
    text = page(tmp_path)
    assert text.startswith("# Results\n")
    assert "## One gradient step, 2026-01-01\n\n`make bench-step`\n\nMachine.\n\n### case\n" in text
    assert "bench-index" not in text
