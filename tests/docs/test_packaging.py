"""What is said about the package in several places is said alike, and what it imports it asks for."""

import ast
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import fireset

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Import names that are not those of the distribution.
DISTRIBUTIONS = {"sklearn": "scikit-learn", "qiskit_aer": "qiskit-aer"}
# Those for users, and the programs that `fireset compare` compares with where they are installed.
EXTRAS = ("excel", "report", "quantum", "torch", "tensorboard", "onnx", "bench")


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", requirement)[0].lower() for requirement in requirements}


def test_the_version_is_written_once():
    assert "version" in PROJECT["dynamic"]
    assert version("fireset") == fireset.__version__


def test_the_citation_has_the_version():
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited is not None
    assert cited[1] == fireset.__version__


def test_what_is_imported_is_asked_for():
    """By the package itself or by one of its extras; a dependency's dependency may go without notice."""
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    imported = {DISTRIBUTIONS.get(name, name) for name in imported - sys.stdlib_module_names - {"fireset"}}
    asked = names(PROJECT["dependencies"]).union(*(names(PROJECT["optional-dependencies"][each]) for each in EXTRAS))
    assert not imported - asked
    assert names(PROJECT["dependencies"]) <= imported


def test_every_requirement_is_pinned_for_the_tests():
    pinned = names((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:])
    pinned = {name.replace("_", "-") for name in pinned}
    extras = PROJECT["optional-dependencies"].values()
    asked = names(PROJECT["dependencies"]).union(*(names(extra) for extra in extras)) - {"fireset"}
    assert asked <= pinned


def test_pythons_of_the_classifiers_are_those_of_the_makefile():
    claimed = {c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert claimed == set(re.findall(r"python(3\.\d+)\b", makefile.partition("VENV :=")[0]))
