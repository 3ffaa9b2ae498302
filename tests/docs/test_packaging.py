"""Metadata is consistent, and every import has a requirement."""

import ast
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import fireset

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Import names that differ from the name of the distribution.
DISTRIBUTIONS = {"sklearn": "scikit-learn", "qiskit_aer": "qiskit-aer"}
# Extras for users, and the peers that `fireset compare` uses if they are installed.
EXTRAS = ("excel", "report", "quantum", "torch", "tensorboard", "onnx", "bench")


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", requirement)[0].lower() for requirement in requirements}


def test_the_version_has_one_source():
    assert "version" in PROJECT["dynamic"]
    assert version("fireset") == fireset.__version__


def test_the_citation_has_the_version():
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited is not None
    assert cited[1] == fireset.__version__


def test_every_import_has_a_requirement():
    """The requirement is a dependency of the package or of an extra, not an indirect one."""
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    imported = {DISTRIBUTIONS.get(name, name) for name in imported - sys.stdlib_module_names - {"fireset"}}
    required = names(PROJECT["dependencies"]).union(*(names(PROJECT["optional-dependencies"][each]) for each in EXTRAS))
    assert not imported - required
    assert names(PROJECT["dependencies"]) <= imported


def test_every_requirement_is_pinned():
    pinned = names((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:])
    pinned = {name.replace("_", "-") for name in pinned}
    extras = PROJECT["optional-dependencies"].values()
    required = names(PROJECT["dependencies"]).union(*(names(extra) for extra in extras)) - {"fireset"}
    assert required <= pinned


def test_classifiers_and_makefile_list_the_same_python_versions():
    claimed = {c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert claimed == set(re.findall(r"python(3\.\d+)\b", makefile.partition("VENV :=")[0]))
